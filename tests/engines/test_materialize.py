"""Basic features: the bits of the batches, mergeable by id, and nothing half-written whatever goes wrong."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import WriteError
from ctrbox.files import atomic as aside

pytestmark = pytest.mark.usefixtures("no_thread_left")

ROWS = 1000
VECTORS = cb.Dictionary(["red", "blue"], np.array([[1.5, 2.5, 3.5], [4.0, 5.0, 6.0]]))


def log(rows: int = ROWS, **columns: Any) -> cb.View:
    rng = np.random.default_rng(11)
    table = {
        "instance_id": np.arange(rows) * 3 + 7,
        "color": np.array(["red", "blue", "green"])[rng.integers(0, 3, rows)],
        "query": [" ".join(str(w) for w in rng.integers(0, 20, k % 4)) for k in range(rows)],
        "bid": rng.lognormal(size=rows),
        "clicked": rng.integers(0, 2, rows),
        **columns,
    }
    return cb.View(pa.table(table), key="instance_id", name="impressions")


def features() -> cb.FeatureSet:
    return cb.FeatureSet(
        label=col("clicked"),
        dense={"bid": col("bid"), "vector": col("color").lookup(VECTORS), "n": col("query").length()},
        sparse={"color": col("color").key(), "words": col("query").split(" ").key()},
    )


def plan(view: cb.View | None = None) -> cb.Plan:
    return cb.compile(log() if view is None else view, features())


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def same_as_batch(table: pa.Table, batch: cb.Batch) -> None:
    table = table.combine_chunks()
    at = 0
    for name, width in batch.schema.dense:
        column = table[name].combine_chunks()
        values = (column.flatten() if width > 1 else column).to_numpy().reshape(-1, width)
        assert values.dtype == np.float32
        assert values.tobytes() == np.ascontiguousarray(batch.dense[:, at : at + width]).tobytes()
        at += width
    for field in batch.schema.sparse:
        ragged, column = batch.sparse[field.name], table[field.name].combine_chunks()
        if field.ragged:
            assert column.offsets.to_numpy().tolist() == ragged.offsets.tolist()
            column = column.values
        assert column.to_numpy().tolist() == ragged.values.tolist()


# ---- what is written ---------------------------------------------------------------------------------------


def test_a_file_holds_the_ids_and_the_bits_of_the_batches(tmp_path: Path) -> None:
    job = plan()
    assert job.materialize(tmp_path / "basic.parquet", row_group_rows=64) == ROWS
    table = pq.read_table(tmp_path / "basic.parquet")
    assert table.column_names == ["instance_id", "bid", "vector", "n", "color", "words"]
    assert table["instance_id"].to_pylist() == [3 * k + 7 for k in range(ROWS)]
    assert table.schema.field("vector").type.list_size == 3
    assert table.schema.field("words").type.value_type == pa.int64()
    same_as_batch(table, next(job.batches(ROWS)))
    metadata = pq.read_metadata(tmp_path / "basic.parquet")
    assert [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)] == [64] * 15 + [40]
    assert names(tmp_path) == ["basic.parquet"]


def test_pages_carry_checksums(tmp_path: Path) -> None:
    plan().materialize(tmp_path / "basic.parquet", compression="none")
    raw = bytearray((tmp_path / "basic.parquet").read_bytes())
    column = pq.read_metadata(tmp_path / "basic.parquet").row_group(0).column(1)
    raw[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
    (tmp_path / "bad.parquet").write_bytes(raw)
    with pytest.raises(OSError, match=r"[Cc]hecksum|CRC"):
        pq.read_table(tmp_path / "bad.parquet", page_checksum_verification=True)


def test_a_folder_holds_parts_in_the_order_of_the_log(tmp_path: Path) -> None:
    job = plan()
    assert job.materialize(tmp_path / "basic", row_group_rows=100, part_rows=250) == ROWS
    parts = names(tmp_path / "basic")
    assert parts == [f"part-{k:05d}.parquet" for k in range(5)]
    assert [pq.read_metadata(tmp_path / "basic" / n).num_rows for n in parts] == [200] * 5
    same_as_batch(pq.read_table(tmp_path / "basic"), next(job.batches(ROWS)))


def test_chosen_features_come_in_the_order_asked_for(tmp_path: Path) -> None:
    plan().materialize(tmp_path / "some.parquet", ["words", "bid", "words"])
    assert pq.read_schema(tmp_path / "some.parquet").names == ["instance_id", "words", "bid"]


def test_filtered_rows_are_not_written(tmp_path: Path) -> None:
    job = plan(log().filter(col("clicked") == 1))
    rows = job.materialize(tmp_path / "basic.parquet", row_group_rows=50)
    assert rows == sum(b.rows for b in job.batches(64))
    table = pq.read_table(tmp_path / "basic.parquet")
    assert table.num_rows == rows < ROWS
    same_as_batch(table, next(job.batches(ROWS)))


def test_fits_and_joins_are_materialized_too(tmp_path: Path) -> None:
    colors = cb.View(pa.table({"color": ["red", "blue"], "heat": [3.0, -1.0]}), key="color").fill(heat=0.0)
    job = cb.compile(
        log().join(colors, on="color"),
        cb.FeatureSet(
            dense={"z": (col("heat") * col("bid")).standardize(), "heat": col("heat")},
            sparse={"bid": col("bid").bucketize(quantiles=8)},
        ),
    )
    job.materialize(tmp_path / "basic.parquet")
    same_as_batch(pq.read_table(tmp_path / "basic.parquet"), next(job.batches(ROWS)))


def test_beyond_float32_is_infinite_as_in_a_batch(tmp_path: Path) -> None:
    view = log(3, bid=[1e300, -1e300, 1.0])
    job = cb.compile(view, cb.FeatureSet(dense={"bid": col("bid")}))
    job.materialize(tmp_path / "b.parquet")
    same_as_batch(pq.read_table(tmp_path / "b.parquet"), next(job.batches(9)))


def test_ids_may_be_strings(tmp_path: Path) -> None:
    plan(log(3, instance_id=["x", "é", ""])).materialize(tmp_path / "b.parquet", ["bid"])
    assert pq.read_table(tmp_path / "b.parquet")["instance_id"].to_pylist() == ["x", "é", ""]


def test_the_key_need_not_be_the_first_column(tmp_path: Path) -> None:
    table = pa.table({"other": [9, 8, 7], "bid": [0.5, 1.5, 2.5], "instance_id": [3, 1, 2]})
    job = cb.compile(cb.View(table, key="instance_id"), cb.FeatureSet(dense={"b": col("bid"), "o": col("other")}))
    job.materialize(tmp_path / "b.parquet")
    found = pq.read_table(tmp_path / "b.parquet")
    assert found.to_pydict() == {"instance_id": [3, 1, 2], "b": [0.5, 1.5, 2.5], "o": [9, 8, 7]}


def test_ids_that_are_not_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(cb.errors.DataError, match="'instance_id' of view 'impressions' is not UTF-8"):
        plan(log(3, instance_id=[b"\xff", b"a", b""])).materialize(tmp_path / "b.parquet")
    assert names(tmp_path) == []


def test_a_log_whose_filters_leave_nothing_gives_a_file_without_rows(tmp_path: Path) -> None:
    assert plan(log().filter(col("bid") < 0.0)).materialize(tmp_path / "none.parquet") == 0
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0
    assert plan(log().filter(col("bid") < 0.0)).materialize(tmp_path / "none") == 0
    assert pq.read_table(tmp_path / "none").column_names[0] == "instance_id"


@pytest.mark.parametrize("ordered", [True, False])
def test_basic_features_merge_back_by_id(tmp_path: Path, ordered: bool) -> None:
    first = plan()
    first.materialize(tmp_path / "basic", row_group_rows=64, part_rows=300)
    basic = cb.View(tmp_path / "basic", key="instance_id").select("instance_id", "vector", "n", "color")
    basic = basic.with_columns(old=col("color"), length=col("n")).select("instance_id", "vector", "old", "length")
    view = log().merge(basic.fill(vector=[], old=0, length=0.0), ordered=ordered)
    later = cb.compile(view, cb.FeatureSet(dense={"vector": col("vector"), "n": col("length")}))
    old, new = next(first.batches(ROWS)), next(later.batches(ROWS))
    assert new.dense.tolist() == old.dense[:, 1:].tolist()


# ---- what is refused ---------------------------------------------------------------------------------------


def test_an_unknown_feature_gets_its_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(cb.errors.PlanError, match="'colur'; nearest: 'color'"):
        plan().materialize(tmp_path / "b.parquet", ["colur"])
    with pytest.raises(cb.errors.PlanError, match="'label'"):
        plan().materialize(tmp_path / "b.parquet", ["label"])
    with pytest.raises(cb.errors.PlanError, match="at least one"):
        plan().materialize(tmp_path / "b.parquet", [])


def test_a_log_needs_one_key_of_a_simple_type(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "b": [2.0]})
    for key, met in (((), "it has no key"), (("a", "b"), "its key is"), ("b", "is float")):
        job = cb.compile(cb.View(table, key=key), cb.FeatureSet(dense={"x": col("b")}))
        with pytest.raises(cb.errors.PlanError, match=met):
            job.materialize(tmp_path / "b.parquet")


def test_a_feature_cannot_take_the_name_of_the_key(tmp_path: Path) -> None:
    job = cb.compile(log(), cb.FeatureSet(sparse={"instance_id": col("instance_id").key()}))
    with pytest.raises(cb.errors.PlanError, match="'instance_id' has the same name as the key"):
        job.materialize(tmp_path / "b.parquet")


def test_a_null_id_is_named(tmp_path: Path) -> None:
    job = plan(log(3, instance_id=[1, None, 3]))
    with pytest.raises(cb.errors.DataError, match=r"'instance_id' of view 'impressions' is null in row 1 "):
        job.materialize(tmp_path / "b.parquet")
    assert names(tmp_path) == []


def test_places_that_cannot_be_are_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "d.parquet").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("precious")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.parquet")
    for path, met in (
        ("pipe", "is a pipe"),
        ("pipe.parquet", "is a pipe"),
        ("d.parquet", "is a folder"),
        ("file", "is a file"),
        ("home", "'thesis.txt'"),
    ):
        with pytest.raises(cb.errors.PlanError, match=met):
            plan().materialize(tmp_path / path)
    with pytest.raises(cb.errors.PlanError, match="writes a folder of part files"):
        plan().materialize("s3://bucket/basic.parquet")
    with pytest.raises(cb.errors.PlanError, match="'zip'"):
        plan().materialize(tmp_path / "b.parquet", compression="zip")
    with pytest.raises(cb.errors.PlanError, match="row_group_rows"):
        plan().materialize(tmp_path / "b.parquet", row_group_rows=0)
    assert (tmp_path / "home" / "thesis.txt").read_text() == "precious"
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "pipe.parquet").is_fifo()


# ---- what goes wrong on the way ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic.parquet", "basic"])
def test_a_second_run_replaces_the_first(tmp_path: Path, name: str) -> None:
    plan().materialize(tmp_path / name, ["bid"])
    plan().materialize(tmp_path / name, ["n"])
    assert pq.read_table(tmp_path / name).column_names == ["instance_id", "n"]
    assert names(tmp_path) == [name]


def failing_after(rows: int, error: type[BaseException]) -> Any:
    seen = 0

    @cb.operator(args=["float"], result="float", arrays="numpy")
    def breaks(values: np.ndarray) -> np.ndarray:
        nonlocal seen
        seen += len(values)
        if seen > rows:
            raise error("bad luck")
        return values

    return breaks


@pytest.mark.parametrize("name", ["basic.parquet", "basic"])
@pytest.mark.parametrize(
    ("error", "met"),
    [(ValueError, cb.errors.DataError), (KeyboardInterrupt, KeyboardInterrupt)],
)
def test_a_failure_midway_leaves_the_old_file(
    tmp_path: Path, name: str, error: type[BaseException], met: type[BaseException]
) -> None:
    plan().materialize(tmp_path / name, ["bid"])
    before = pq.read_table(tmp_path / name)
    many = pa.table({"id": np.arange(400_000), "x": np.random.default_rng(1).random(400_000)})
    breaks = failing_after(300_000, error)  # morsels that were written when it fails
    job = cb.compile(cb.View(many, key="id"), cb.FeatureSet(dense={"x": breaks("x")}))
    with pytest.raises(met):
        job.materialize(tmp_path / name, row_group_rows=4096)
    assert pq.read_table(tmp_path / name).equals(before)
    assert names(tmp_path) == [name]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: a shell that starts a command in the background has it ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_leaves_the_old_file_and_no_threads(tmp_path: Path) -> None:
    plan().materialize(tmp_path / "basic.parquet", ["bid"])
    before = pq.read_table(tmp_path / "basic.parquet")
    calls = itertools.count(1)  # several threads call

    @cb.operator(args=["float"], result="float", arrays="numpy")
    def pressed(values: np.ndarray) -> np.ndarray:
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return values

    many = pa.table({"id": np.arange(1_000_000), "x": np.random.default_rng(1).random(1_000_000)})
    job = cb.compile(cb.View(many, key="id"), cb.FeatureSet(dense={"x": pressed("x")}))
    with pytest.raises(KeyboardInterrupt):
        job.materialize(tmp_path / "basic.parquet")
    assert pq.read_table(tmp_path / "basic.parquet").equals(before)
    assert names(tmp_path) == ["basic.parquet"]


FULL = """
import resource, signal, sys
import numpy as np, pyarrow as pa, ctrbox as cb
from ctrbox import col
path, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
rows = 400_000
table = pa.table({"id": np.arange(rows), "x": np.random.default_rng(0).random(rows)})
plan = cb.compile(cb.View(table, key="id"), cb.FeatureSet(dense={"x": col("x")}))
try:
    plan.materialize(path, row_group_rows=8192)
except cb.errors.CtrboxError as error:
    print(type(error).__name__, error)
    raise SystemExit(7)
"""


def run_full(path: Path, limit: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path), str(limit)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 7, done.stderr
    assert not done.stderr  # no exception was lost in a destructor
    return done.stdout


@pytest.mark.parametrize("name", ["basic.parquet", "basic"])
def test_a_file_too_large_is_named_with_its_bytes_and_removed(tmp_path: Path, name: str) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    plan().materialize(tmp_path / name, ["bid"])
    before = pq.read_table(tmp_path / name)
    message = run_full(tmp_path / name, 1 << 20)
    assert message.startswith("WriteError")
    assert str(tmp_path / name) in message
    assert "bytes" in message
    assert "the previous contents are unchanged" in message
    assert pq.read_table(tmp_path / name).equals(before)
    assert names(tmp_path) == [name]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a small disk needs the right to mount one: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="a small disk is made with tmpfs")
@pytest.mark.parametrize("name", ["basic.parquet", "basic"])
def test_a_full_disk_is_named_with_its_bytes_and_the_old_file_stays(small_disk: Path, name: str) -> None:
    plan().materialize(small_disk / name, ["n"])
    before = pq.read_table(small_disk / name)
    message = run_full(small_disk / name, 0)
    assert "No space left on device after" in message
    assert "bytes free" in message
    assert pq.read_table(small_disk / name).equals(before)
    assert names(small_disk) == [name]


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteError, match=r"cannot write .*file/b\.parquet: "):
        plan().materialize(tmp_path / "file" / "b.parquet")


@pytest.mark.parametrize("name", ["basic.parquet", "basic"])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, name: str) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = []
    for process, state in (
        (gone.pid, "partial"),
        (gone.pid, "old"),
        (os.getpid(), "partial"),
        (os.getppid(), "partial"),
    ):
        mine = aside.beside(tmp_path / name, state).name.replace(f"-{os.getpid()}.", f"-{process}.")
        left.append(tmp_path / mine)
        left[-1].mkdir() if name == "basic" else left[-1].write_bytes(b"PAR1")
    other = tmp_path / f".other.{gone.pid}.partial"
    other.write_bytes(b"not ours")
    plan().materialize(tmp_path / name)
    assert names(tmp_path) == sorted([other.name, left[-1].name, name])  # the one whose process runs stays


def test_a_plan_does_not_replace_what_it_reads(tmp_path: Path) -> None:
    for name in ("log", "basic"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": [1, 2], name[0]: [0.5, 1.5]}), tmp_path / name / "part-0.parquet")
    basic = cb.View(str(tmp_path / "basic"), key="id").fill(b=0.0)
    plan = cb.compile(cb.View(str(tmp_path / "log"), key="id").merge(basic), cb.FeatureSet(dense={"l": "l", "x": "b"}))
    for place in (tmp_path / "log", tmp_path / "basic", tmp_path, tmp_path / "log" / "part-0.parquet"):
        with pytest.raises(cb.errors.CtrboxError):
            plan.materialize(place)
    assert pq.read_table(tmp_path / "log").column_names == ["id", "l"]
    assert plan.materialize(tmp_path / "fresh") == 2
