"""Tables of Delta Lake and Iceberg by their parts: where columns are found, what options become, and what is refused in words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import Store
from ctrbox.views.snapshots import delta, iceberg
from ctrbox.views.snapshots.delta import ByName
from ctrbox.views.snapshots.iceberg import ById, read_iceberg
from ctrbox.views.snapshots.opening import path_of_table, read_snapshot
from ctrbox.views.snapshots.snapshot import below_location, data_file
from ctrbox.views.source import open_source

LOCAL = Store(pafs.LocalFileSystem())
AFAR = Store(pafs.SubTreeFileSystem("/", pafs.LocalFileSystem()), "s3://", True)


# ---- columns by name


def test_columns_of_a_table_are_found_by_their_names() -> None:
    inner = pa.struct([("a", pa.int64()), ("t", pa.struct([("b", pa.int64())]))])
    stored = pa.schema([("ID", pa.int64()), ("id", pa.int64()), ("s", inner), ("n", pa.int64())])
    wanted = [("id",), ("ID",), ("s", "a"), ("s", "x"), ("s", "t", "b"), ("s", "t", "c"), ("n", "b"), ("none",)]
    assert ByName().paths(wanted, stored, "f") == [
        ("id",), ("ID",), ("s", "a"), None, ("s", "t", "b"), None, ("n", "b"), None,
    ]  # fmt: skip
    with pytest.raises(SourceError) as caught:
        ByName().paths([("n",), ("S", "a")], stored, "f.parquet")
    assert str(caught.value) == (
        "f.parquet has a column 's' where its table has 'S'; write the file again with the table's spelling (names are "
        "compared letter by letter)"
    )


# ---- options and features of Delta Lake


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("options", "environment", "found"),
    [
        ({}, {}, {}),
        (
            {
                "access_key": "a",
                "secret_key": "b",
                "session_token": "c",
                "region": "r",
                "role_arn": "x",
                "scheme": "http",
            },
            {},
            {
                "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": "b",
                "AWS_SESSION_TOKEN": "c",
                "AWS_REGION": "r",
                "AWS_IAM_ROLE_ARN": "x",
            },
        ),
        ({"anonymous": True}, {}, {"AWS_SKIP_SIGNATURE": "true"}),
        ({"anonymous": False}, {}, {}),
        ({"endpoint": "h:1"}, {}, {"AWS_ENDPOINT_URL": "https://h:1", "AWS_REGION": "us-east-1"}),
        (
            {"endpoint_override": "h:1", "scheme": "http", "region": "r"},
            {"AWS_REGION": "other"},
            {"AWS_ENDPOINT_URL": "http://h:1", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "r"},
        ),
        (
            {"endpoint": "http://h:1", "scheme": "https"},
            {"AWS_REGION": "eu", "AWS_ENDPOINT_URL_S3": "http://x"},
            {"AWS_ENDPOINT_URL": "http://h:1", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu"},
        ),
        (
            {},
            {"AWS_ENDPOINT_URL": "https://x"},
            {"AWS_ENDPOINT_URL": "https://x", "AWS_REGION": "us-east-1"},
        ),
        (
            {},
            {"AWS_ENDPOINT_URL": "https://x", "AWS_ENDPOINT_URL_S3": "https://y"},
            {"AWS_ENDPOINT_URL": "https://y", "AWS_REGION": "us-east-1"},
        ),
    ],
)
def test_options_of_s3_have_the_names_that_the_package_knows(
    no_aws: pytest.MonkeyPatch, options: dict[str, Any], environment: dict[str, str], found: dict[str, str]
) -> None:
    for name, value in environment.items():
        no_aws.setenv(name, value)
    assert delta._settings(options) == found


def checked(mode: str | None = None, version: int = 3, features: list[str] | None = None, vectors: int = 0) -> None:
    settings = {} if mode is None else {"delta.columnMapping.mode": mode}
    table = SimpleNamespace(
        protocol=lambda: SimpleNamespace(reader_features=features, min_reader_version=version),
        metadata=lambda: SimpleNamespace(configuration=settings),
        deletion_vectors=lambda: pa.table({"x": [1] * vectors}),
    )
    delta._check_features(table, "clicks", 4)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, ""),
        ({"mode": "none", "version": 1}, ""),
        ({"features": ["timestampNtz", "vacuumProtocolCheck", "columnMapping", "deletionVectors"]}, ""),
        ({"vectors": 5}, ""),  # without the feature, nothing is asked
        ({"mode": "id"}, "clicks uses column mapping (mode 'id'), which views do not read; read the rows"),
        (
            {"features": ["zz", "variantType"]},
            "clicks needs the reader feature 'variantType', which views do not know; read",
        ),
        ({"version": 4}, "clicks needs reader version 4, which views do not know; read the rows"),
        (
            {"features": ["deletionVectors"], "vectors": 1234},
            "version 4 of clicks has deletion vectors for 1,234 of its files, which views do not read; read the rows",
        ),
    ],
)
def test_features_that_change_the_rows_of_files_are_refused(given: dict[str, Any], told: str) -> None:
    if not told:
        checked(**given)
        return
    with pytest.raises(SourceError) as caught:
        checked(**given)
    assert str(caught.value).startswith(told)


def test_tables_of_delta_lake_are_on_a_disk_or_on_s3_and_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deltalake")
    elsewhere = Store(AFAR.fs, "hdfs://h", True)
    for store, given in ((LOCAL, True), (elsewhere, False), (AFAR, True)):
        with pytest.raises(
            SourceError, match=r"^clicks is a Delta Lake table; such tables are read only from local disk and from"
        ):
            delta._open(store, "clicks", "clicks", None, {}, given)
    with pytest.raises(SourceError, match=r"^clicks has a '%' in its path, which the deltalake package cannot open"):
        delta._open(LOCAL, "a%20b", "clicks", None, {}, False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(
        SourceError, match=r"^clicks is a Delta Lake table, and reading .* pip install 'ctrbox\[delta\]'$"
    ):
        delta._open(LOCAL, "clicks", "clicks", None, {}, False)


def test_an_error_of_the_package_is_told_without_the_names_of_its_layers() -> None:
    assert delta._reason(OSError("Kernel error: Generic delta kernel error: no log\nmore")) == "no log"
    assert delta._reason(OSError("odd: Kernel error: x")) == "odd: Kernel error: x"


class Fake:
    """A table of the package with these files in its log."""

    def __init__(self, *files: str) -> None:
        self.files = files

    def version(self) -> int:
        return 3

    def protocol(self) -> Any:
        return SimpleNamespace(reader_features=None, min_reader_version=1)

    def metadata(self) -> Any:
        return SimpleNamespace(configuration={}, partition_columns=[])

    def schema(self) -> Any:
        return SimpleNamespace(to_arrow=lambda: pa.schema([("id", pa.int64())]))

    def get_add_actions(self, flatten: bool) -> pa.Table:
        count = len(self.files)
        return pa.table(
            {
                "path": pa.array(self.files, pa.utf8()),
                "modification_time": pa.array([5] * count, pa.int64()),
                "size_bytes": pa.array([Path(f"{file}").stat().st_size if file != "x" else 0 for file in self.files]),
                "num_records": pa.array([None] * count, pa.int64()),
            }
        )


def test_files_of_one_commit_come_in_their_natural_order_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a10", "a9"):
        pq.write_table(pa.table({"id": [1]}), tmp_path / name)
    monkeypatch.setattr(delta, "_open", lambda *given: Fake("a10", "a9"))
    snapshot = delta.read_delta(LOCAL, ".", "clicks", None, {}, False)
    assert [file.path for file in snapshot.files] == ["./a9", "./a10"]
    assert (snapshot.rows, snapshot.version, snapshot.format) == ((None, None), 3, "delta")
    monkeypatch.setattr(delta, "_open", lambda *given: Fake("a9", "a9"))
    with pytest.raises(SourceError, match=r"^version 3 of clicks lists a data file twice; its log is damaged$"):
        delta.read_delta(LOCAL, ".", "clicks", None, {}, False)
    monkeypatch.setattr(Fake, "schema", lambda self: (_ for _ in ()).throw(ValueError("Kernel error: no schema.")))
    with pytest.raises(SourceError, match=r"^clicks cannot be read as a Delta Lake table: no schema$"):
        delta.read_delta(LOCAL, ".", "clicks", None, {}, False)


# ---- rows of files that are not as their table has them


def added(path: Path, name: str, table: pa.Table, stats: str | None = None) -> None:
    """Add a file to a table, and whatever its log says of it."""
    from tests.views.test_delta import added as first
    from tests.views.test_delta import commit

    pq.write_table(table, path / name)
    number = len(list((path / "_delta_log").glob("*.json")))
    size = (path / name).stat().st_size
    commit(path, number, {"add": {**first(path), "path": name, "size": size, "stats": stats}})


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(tmp_path / "clicks"), pa.table({"id": [1, 2], "s": [{"x": 1}, {"x": 2}]}))
    return tmp_path / "clicks"


def read(source: Any, *names: str, **options: Any) -> list[Any]:
    return [row for morsel in source.scan(list(names), **options) for row in morsel.rows.to_pylist()]


def test_a_file_that_was_replaced_has_other_rows_than_the_log_says(clicks: Path) -> None:
    good = pa.table({"id": [3], "s": [{"x": 3}]})
    added(clicks, "x1.parquet", good, '{"numRecords": 1}')
    assert open_source(clicks).rows == 3
    added(clicks, "x2.parquet", good, '{"numRecords": 1234}')
    with pytest.raises(SourceError) as caught:
        read(open_source(clicks), "id")
    assert str(caught.value) == (
        f"{clicks}/x2.parquet has 1 rows, but the log of {clicks} says 1,234; the file was replaced. Write it again, or open a "
        "newer version of the table"
    )


def test_a_file_whose_columns_are_of_other_types_is_refused(clicks: Path) -> None:
    added(clicks, "x1.parquet", pa.table({"id": ["text"], "s": [{"x": 3}]}))
    source = open_source(clicks)
    assert read(source, "s.x") == [{"s.x": 1}, {"s.x": 2}, {"s.x": 3}]
    with pytest.raises(SourceError) as caught:
        read(source, "id")
    assert str(caught.value) == (
        f"column 'id' of {clicks}/x1.parquet is string, which cannot be read as int64, its type in the table {clicks}; write "
        "the file again"
    )
    added(clicks, "x2.parquet", pa.table({"id": [5], "s": [7]}))
    with pytest.raises(
        SourceError, match=r"column 's\.x' of .*x2\.parquet is not stored as int64, as its table has it; write"
    ):
        read(open_source(clicks), "id")


def test_statistics_prove_order_only_where_every_file_is_as_the_table(clicks: Path) -> None:
    added(clicks, "x1.parquet", pa.table({"id": [3, 4], "s": [{"x": 0}, {"x": 0}]}))
    source: Any = open_source(clicks)
    assert [source.ordered(name) for name in ("id", "s.x")] == [True, False]
    assert [source.prunable(name) for name in ("id", "s.x", "none")] == [True, True, False]
    assert (source.nullable("id"), source.rows_read) == (False, 0)
    added(clicks, "x2.parquet", pa.table({"s": [{"x": 9}], "id": pa.array([5], pa.int32())}))
    source = open_source(clicks)
    assert not source.ordered("id")  # one file has it in a narrower type
    assert [row["id"] for row in read(source, "id")] == [1, 2, 3, 4, 5]
    added(clicks, "x3.parquet", pa.table({"s": [{"x": 9}, {"x": 8}, {"x": 7}]}))
    source = open_source(clicks)
    assert read(source, "id", start=4, rows=2) == [{"id": 5}, {"id": None}, {"id": None}, {"id": None}]
    assert read(source, "s.x", "id", start=6) == [{"s.x": 8, "id": None}, {"s.x": 7, "id": None}]
    assert sum(morsel.rows.num_rows for morsel in source.scan([])) == 8
    assert (source.nullable("id"), source.rows) == (True, 8)
    before = source.rows_read
    assert len(read(source, "id")) == 8
    assert source.rows_read == before + 8


# ---- places


@pytest.mark.parametrize(
    ("uri", "location", "below"),
    [
        ("file:///t/a/b", "file:///t", "a/b"),
        ("file:/t/a", "/t/", "a"),
        ("/t/a", "file:///t", "a"),
        ("s3a://b/t/a", "s3://b/t", "a"),
        ("s3://b/t/a", "s3n://b/t/", "a"),
        ("gs://b/t/a", "gs://b/t", "a"),
        ("gs://b/t/a", "s3://b/t", "gs://b/t/a"),
        ("/tt/a", "/t", "/tt/a"),
        ("s3a", "s3", "s3a"),
    ],
)
def test_a_file_lies_below_its_table_however_its_uri_is_written(uri: str, location: str, below: str) -> None:
    assert below_location(uri, location) == below


def test_a_data_file_lies_in_the_folder_of_its_table_and_has_its_size(tmp_path: Path) -> None:
    (tmp_path / "a..b").mkdir()
    (tmp_path / "a..b" / "x").write_text("12345")
    assert data_file(LOCAL, f"{tmp_path}/", "a..b/x", 5, "the table").path == f"{tmp_path}/a..b/x"
    for below in ("/x", "../x", "a/../x", "a\0b"):
        with pytest.raises(
            SourceError, match=r"^the table names a data file outside of its own folder \('.*'\), which is not"
        ):
            data_file(LOCAL, str(tmp_path), below, 5, "the table")
    with pytest.raises(
        SourceError, match=r"a\.\.b/x has 5 bytes, but the log of the table says 1,234; the file was replaced"
    ):
        data_file(LOCAL, str(tmp_path), "a..b/x", 1234, "the table")
    with pytest.raises(
        SourceError, match=r"^the table needs the data file gone, which cannot be opened \(.*\); if the table"
    ):
        data_file(LOCAL, str(tmp_path), "gone", 5, "the table")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"format": "delta"},
            "a/b is not the folder of a table (delta): it contains no folder '_delta_log'; check the path",
        ),
        (
            {"format": "iceberg"},
            "a/b is not the folder of a table (iceberg): it contains no folder 'metadata'; check the",
        ),
        (
            {"version": 0},
            "version= chooses a version of a Delta Lake or Iceberg table, but a/b is not the folder of such a",
        ),
        (
            {"version": 0, "format": "csv"},
            "version= chooses a version of a Delta Lake or Iceberg table, but a/b is not",
        ),
        ({"version": -1}, "version must be between 0 and 2^63 - 1, got -1"),
        ({"version": 1 << 63}, "version must be between 0 and 2^63 - 1, got 9223372036854775808"),
        ({"version": True}, "version must be a whole number, got True"),
        ({"version": "1"}, "version must be a whole number, got '1'"),
    ],
)
def test_what_only_a_table_can_have_is_refused_of_files(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SourceError) as caught:
        read_snapshot("a/b", **given)
    assert str(caught.value).startswith(told)
    assert read_snapshot("a/b") is None
    assert read_snapshot("a/b", format="csv") is None
    with pytest.raises(
        SourceError, match=r"version= chooses a version of a Delta Lake or Iceberg table, but s3://b/a\.csv is"
    ):
        read_snapshot("s3://b/a.csv", version=(1 << 63) - 1)
    assert read_snapshot("s3://b/a.csv") is None  # nothing is asked


def test_tables_are_known_by_the_modules_of_their_classes() -> None:
    def made(module: str, name: str, **more: Any) -> Any:
        return type(name, (), {"__module__": module, **more})()

    table = {"table_uri": "/t", "version": lambda self: 3}
    assert path_of_table(made("deltalake.table", "DeltaTable", **table)) == ("/t", 3)
    assert path_of_table(made("deltalake.table", "Other", **table)) is None
    assert path_of_table(made("other.deltalake.", "DeltaTable", **table)) is None
    ice = {"metadata_location": "/m", "current_snapshot": lambda self: SimpleNamespace(snapshot_id=5)}
    assert path_of_table(made("pyiceberg.table", "Table", **ice)) == ("/m", 5)
    assert path_of_table(made("pyiceberg.table", "Scan")) is None
    assert path_of_table(made("other", "Table", **ice)) is None
    assert path_of_table("pyiceberg.table") is None


# ---- metadata of Iceberg


def test_the_package_of_iceberg_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "find_spec", lambda name: None)
    with pytest.raises(
        SourceError, match=r"^clicks is an Iceberg table, and reading .* pip install 'ctrbox\[iceberg\]'$"
    ):
        read_iceberg(LOCAL, "clicks", "clicks", None, None)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Any]:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("x", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("db")
    made = catalog.create_table("db.clicks", schema=pa.schema([("id", pa.int64())]))
    made.append(pa.table({"id": [1, 2]}))
    yield made
    catalog.close()


def test_data_files_are_plain_parquet_and_listed_once(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg import manifest as manifests

    def entry(path: str, content: str = "DATA", format: str = "PARQUET", key: bytes | None = None) -> Any:
        data = SimpleNamespace(
            content=manifests.DataFileContent[content],
            file_format=manifests.FileFormat[format],
            key_metadata=key,
            file_path=path,
        )
        return SimpleNamespace(data_file=data)

    number, place = table.current_snapshot().snapshot_id, table.metadata.location
    for entries, told in (
        ([entry("f", format="ORC")], "has the data file f, which is not a Parquet file"),
        ([entry("f", content="EQUALITY_DELETES")], "has the data file f, which is not a Parquet file"),
        ([entry("f", key=b"k")], "has the data file f, which is encrypted"),
        ([entry("f"), entry("f")], "lists a data file twice; its metadata is damaged"),
    ):
        manifest = SimpleNamespace(content=manifests.ManifestContent.DATA, fetch_manifest_entry=lambda io, e=entries: e)
        monkeypatch.setattr(manifests, "read_manifest_list", lambda file, m=manifest: [m])
        with pytest.raises(SourceError) as caught:
            open_source(table)
        assert str(caught.value) == f"snapshot {number} of {place} {told}"
    empty = SimpleNamespace(content=manifests.ManifestContent.DELETES, fetch_manifest_entry=lambda io: [])
    monkeypatch.setattr(manifests, "read_manifest_list", lambda file: [empty])
    assert open_source(table).rows == 0  # a list of delete files that names none


def test_files_of_metadata_are_only_read(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    (tmp_path / "a").write_text("12345")
    files = iceberg._files_below(LOCAL, str(tmp_path), "s3://b/t", "the table")
    one = files.new_input("s3a://b/t/a")
    assert (len(one), one.exists(), one.open().read()) == (5, True, b"12345")
    for change in (files.new_output, files.delete):
        with pytest.raises(NotImplementedError):
            change("s3://b/t/a")
    for outside in ("s3://b/tt/a", "s3://b/t/../a", "/etc/passwd"):
        with pytest.raises(
            SourceError, match=r"^the table names .*, which lies outside of the table's folder and is not read$"
        ):
            files.new_input(outside).open()


def test_names_that_stand_for_ids_are_those_of_the_mapping() -> None:
    mapping = [
        {"field-id": 1, "names": ["a", "b"]},
        {"names": ["s"], "fields": [{"field-id": "3", "names": ["x"]}]},
        {"field-id": 4},
    ]
    assert list(iceberg._named(mapping)) == [(("a",), 1), (("b",), 1), (("s", "x"), 3)]
    assert list(iceberg._named({"names": ["a"]})) == []
    stored = pa.schema([("b", pa.int64()), ("s", pa.struct([("x", pa.int64())])), ("more", pa.int64())])
    finder = ById(((("p",), 1), (("q",), 3), (("r",), 4)), frozenset(), frozenset(), tuple(iceberg._named(mapping)))
    assert finder.paths([("q",), ("p",), ("r",)], stored, "f") == [("s", "x"), ("b",), None]
    assert finder.paths([("p",)], pa.schema([]), "f") == [None]


def test_large_strings_become_those_of_parquet_files_at_every_depth() -> None:
    large, plain = pa.large_utf8(), pa.utf8()
    wide = [
        large,
        pa.large_binary(),
        pa.int8(),
        pa.large_list(large),
        pa.list_(pa.large_binary()),
        pa.struct([("x", large)]),
    ]
    usual = [plain, pa.binary(), pa.int8(), pa.list_(plain), pa.list_(pa.binary()), pa.struct([("x", plain)])]
    fields = [pa.field(f"c{k}", type, nullable=bool(k % 2), metadata={"k": "v"}) for k, type in enumerate(wide)]
    found = iceberg._plain_strings(pa.schema(fields))
    assert found.types == usual
    assert [(field.nullable, field.metadata) for field in found] == [
        (bool(k % 2), {b"k": b"v"}) for k in range(len(wide))
    ]
