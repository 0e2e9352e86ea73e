"""A file that changes under a view is an error that names it, never rows of two versions."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import SourceError
from ctrbox.views import text_in_blocks
from ctrbox.views.source import open_source

ROWS = 4000


def table(version: int) -> pa.Table:
    """Rows whose every value tells the version, and which take the same number of bytes in each."""
    ids = np.arange(ROWS, dtype=np.int64)
    return pa.table(
        {
            "id": ids + version * 1_000_000,
            "version": np.full(ROWS, version, np.int64),
            "noise": np.random.default_rng(version).integers(10**17, 10**18, ROWS),
        }
    )


def write(path: Path, rows: pa.Table) -> None:
    name = path.name
    if name.endswith(".parquet"):
        # The core decodes Snappy itself; Zstandard goes through pyarrow.
        codec = "zstd" if "zstd" in name else "snappy"
        pq.write_table(rows, path, row_group_size=500, compression=codec, use_dictionary=False)
    elif name.endswith(".arrow"):
        feather.write_feather(rows, str(path), chunksize=500, compression="uncompressed")
    elif name.endswith(".arrows"):
        with pa.ipc.new_stream(path, rows.schema) as out:
            out.write_table(rows, max_chunksize=500)
    elif name.endswith(".jsonl"):
        path.write_text("".join(f'{{"id": {r["id"]}, "version": {r["version"]}}}\n' for r in rows.to_pylist()))
    else:
        pacsv.write_csv(rows, path)
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


KINDS = ["log.parquet", "log_zstd.parquet", "log.arrow", "log.arrows", "log.csv", "log.csv.gz", "log.jsonl"]


def replace(path: Path) -> None:
    """Another file of the same length and the same modification time is renamed to the path."""
    times = path.stat()
    new = path.with_name("new-" + path.name)
    write(new, table(2))
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    new.rename(path)


def rewrite(path: Path) -> None:
    """The file's bytes are overwritten in place, and the modification time is set back."""
    times = path.stat()
    new = path.with_name("new-" + path.name)
    write(new, table(2))
    with path.open("r+b") as file:
        file.write(new.read_bytes()[: times.st_size])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(path.read_bytes())


def delete(path: Path) -> None:
    path.unlink()


CHANGES = [replace, rewrite, truncate, append, delete]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_file_that_changes_during_a_pass_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, change: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 4096)  # several reads of a small file
    path = tmp_path / kind
    write(path, table(1))
    morsels = open_source(path).scan(["id", "version"], rows=100, threads=0)
    rows = [next(morsels).rows]
    change(path)
    with pytest.raises(SourceError, match=rf"{kind} (changed after it was opened|.*no longer exists)"):
        rows.extend(morsel.rows for morsel in morsels)
    assert pa.Table.from_batches(rows)["version"].unique().to_pylist() == [1]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_file_that_changed_since_the_last_pass_is_refused_by_name(
    tmp_path: Path, kind: str, change: Callable[[Path], None]
) -> None:
    path = tmp_path / kind
    write(path, table(1))
    source = open_source(path)
    assert sum(morsel.rows.num_rows for morsel in source.scan(["id"])) == ROWS
    change(path)
    with pytest.raises(SourceError, match=rf"{kind} (changed after it was opened|.*no longer exists)"):
        list(source.scan(["id"]))


def test_later_file_that_changes_before_its_turn_is_refused(tmp_path: Path) -> None:
    for part in range(3):
        write(tmp_path / f"part-{part}.csv", table(1))
    morsels = open_source(tmp_path).scan(["version"], threads=0)
    next(morsels)
    replace(tmp_path / "part-2.csv")
    with pytest.raises(SourceError, match=r"part-2\.csv changed after it was opened"):
        list(morsels)


def test_empty_file_that_got_rows_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", table(1))
    (tmp_path / "b.csv").write_bytes(b"")
    source = open_source(tmp_path)
    assert sum(morsel.rows.num_rows for morsel in source.scan(["id"])) == ROWS
    write(tmp_path / "b.csv", table(1))
    with pytest.raises(SourceError, match=r"b\.csv changed after it was opened for reading: it had 0 bytes"):
        list(source.scan(["id"]))


def test_symbolic_link_that_is_swapped_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "monday.parquet", table(1))
    write(tmp_path / "tuesday.parquet", table(2))
    link = tmp_path / "latest.parquet"
    link.symlink_to("monday.parquet")
    morsels = open_source(link).scan(["version"], rows=100, threads=0)
    next(morsels)
    link.unlink()
    link.symlink_to("tuesday.parquet")
    with pytest.raises(SourceError, match=r"latest\.parquet changed after it was opened"):
        list(morsels)


def test_change_in_the_moment_of_opening_is_seen(tmp_path: Path) -> None:
    """The kernel stamps files by a clock of ticks: two writes within one tick would have the same times."""
    path = tmp_path / "log.parquet"
    new = tmp_path / "new"
    for _ in range(20):
        write(path, table(1))
        write(new.with_suffix(".parquet"), table(2))
        source = open_source(path)
        rewrite(path)
        with pytest.raises(SourceError, match="changed after it was opened"):
            list(source.scan(["id"]))


def test_statistics_are_read_from_the_version_that_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    write(path, table(1))
    source = open_source(path)
    assert source.rows == ROWS
    replace(path)
    with pytest.raises(SourceError, match=r"log\.parquet changed after it was opened"):
        list(source.scan(["id"], prune=ds.field("version") == 2))


def test_folder_keeps_the_files_that_it_had_when_it_was_opened(tmp_path: Path) -> None:
    write(tmp_path / "part-0.parquet", table(1))
    write(tmp_path / "part-1.parquet", table(1))
    source = open_source(tmp_path)
    write(tmp_path / "part-2.parquet", table(2))
    rows = pa.Table.from_batches([morsel.rows for morsel in source.scan(["version"])])
    assert rows.num_rows == 2 * ROWS
    (tmp_path / "part-1.parquet").unlink()
    with pytest.raises(SourceError, match=r"part-1\.parquet.* no longer exists"):
        list(source.scan(["version"]))


@pytest.mark.parametrize("kind", ["log.parquet", "log.csv", "log.arrows"])
@pytest.mark.parametrize("wrapped", ["fsspec", "subtree"])
def test_other_filesystems_are_watched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, wrapped: str
) -> None:
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 4096)
    monkeypatch.setattr("ctrbox.views.files_without_row_index.FETCH_BYTES", 4096)
    path = tmp_path / kind
    write(path, table(1))
    if wrapped == "fsspec":
        source = open_source(str(path), filesystem=fsspec.filesystem("file"))
    else:
        source = open_source(kind, filesystem=pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()))
    morsels = source.scan(["version"], rows=100, threads=0)
    rows = [next(morsels).rows]
    replace(path)
    with pytest.raises(SourceError, match=rf"{kind}.* changed after it was opened"):
        rows.extend(morsel.rows for morsel in morsels)
    assert pa.Table.from_batches(rows)["version"].unique().to_pylist() == [1]


# ---- through plans -----------------------------------------------------------------------------------------


def clicks(path: Path, version: int, rows: int = ROWS) -> None:
    random = np.random.default_rng(version)
    data = {
        "user": random.integers(0, 50, rows),
        "clicked": random.integers(0, 2, rows).astype(np.float32),
    }
    pq.write_table(pa.table(data), path, row_group_size=250)


def plan_over(log: Path, users: Path | None = None) -> Any:
    view = cb.View(str(log))
    sparse = {"user": col("user").key()}
    if users is not None:
        view = view.join(cb.View(str(users), key="user").fill(age=0), on="user")
        sparse["age"] = col("age").key()
    return cb.compile(view, cb.FeatureSet(label=col("clicked"), sparse=sparse), device="cpu")


def test_joined_view_that_changed_is_refused(tmp_path: Path) -> None:
    clicks(tmp_path / "log.parquet", 1)
    users = tmp_path / "users.parquet"
    pq.write_table(pa.table({"user": np.arange(50), "age": np.arange(50)}), users)
    plan = plan_over(tmp_path / "log.parquet", users)
    pq.write_table(pa.table({"user": np.arange(50), "age": np.arange(50) + 1}), users)
    with pytest.raises(SourceError, match=r"users\.parquet changed after it was opened"):
        list(plan.batches(1000))


def test_log_that_changes_during_the_second_epoch_ends_the_training(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    clicks(log, 1)
    plan = plan_over(log)

    class Replacing(cb.models.LR):  # type: ignore[misc]
        steps = 0

        def forward(self, *args: Any) -> Any:
            if self.training:
                self.steps += 1
                if self.steps == 6:  # of 4 in an epoch
                    clicks(tmp_path / "new.parquet", 2)
                    (tmp_path / "new.parquet").rename(log)
            return super().forward(*args)

    trainer = cb.Trainer(Replacing(plan.schema))
    with pytest.raises(SourceError, match=r"log\.parquet changed after it was opened"):
        trainer.fit(plan, batch_size=1000, epochs=3)


def test_evaluation_over_a_log_that_changed_since_the_training_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    clicks(log, 1)
    plan = plan_over(log)
    run = cb.Trainer(cb.models.LR(plan.schema)).fit(plan, batch_size=1000)
    clicks(log, 2)
    with pytest.raises(SourceError, match=r"log\.parquet changed after it was opened"):
        run.evaluate(plan)
    with pytest.raises(SourceError, match=r"log\.parquet changed after it was opened"):
        list(plan.batches(1000))


# ---- pyarrow datasets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["log.parquet", "log.csv"])
def test_files_of_a_dataset_are_watched(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    write(path, table(1))
    data = ds.dataset(path, format=kind.rpartition(".")[2])
    source, before = open_source(data), open_source(data).fingerprint()
    assert sum(morsel.rows.num_rows for morsel in source.scan(["id"])) == ROWS
    replace(path)
    with pytest.raises(SourceError, match=rf"{kind}.* changed after it was opened"):
        list(source.scan(["id"]))
    assert open_source(data).fingerprint() != before


def test_filter_of_a_dataset_holds(tmp_path: Path) -> None:
    write(tmp_path / "log.parquet", table(1))
    data = ds.dataset(tmp_path / "log.parquet").filter(ds.field("id") < 1_000_010)
    source = open_source(data)
    assert sum(morsel.rows.num_rows for morsel in source.scan(["version"])) == 10
    replace(tmp_path / "log.parquet")
    with pytest.raises(SourceError, match=r"log\.parquet changed after it was opened"):
        list(source.scan(["version"]))


def test_dataset_in_memory_is_identified_by_its_rows() -> None:
    first, second = (open_source(ds.dataset(table(version))).fingerprint() for version in (1, 2))
    assert first != second
    assert open_source(ds.dataset(table(1))).fingerprint() == first


def test_dataset_of_some_row_groups_is_refused(tmp_path: Path) -> None:
    """A view reads whole files, and would return the rows of the other row groups too."""
    write(tmp_path / "log.parquet", table(1))
    (fragment,) = ds.dataset(tmp_path / "log.parquet").get_fragments()
    some = ds.FileSystemDataset([fragment.subset(row_group_ids=[2])], fragment.physical_schema, fragment.format)
    assert some.to_table().num_rows == 500
    with pytest.raises(SourceError, match=r"the dataset takes 500 of the 4,000 rows of .*log\.parquet"):
        list(open_source(some).scan(["id"]))
