"""Sources: every format and every way to name data give the same rows; every damage has its error."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import hypothesis.strategies as st
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given, settings

from ctrbox.arguments.names import nearest
from ctrbox.errors import CtrboxError, DataError, PlanError, SourceError
from ctrbox.views import text_in_blocks
from ctrbox.views.delimited import Csv
from ctrbox.views.readahead import readahead
from ctrbox.views.source import Source, open_source
from ctrbox.views.view import View

pytestmark = pytest.mark.usefixtures("no_thread_left")

ROWS = 1000


def log(rows: int = ROWS, first: int = 0) -> pa.Table:
    ids = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "user": pa.array([f"u{i % 7}" for i in ids]),
            "bid": pa.array([None if i % 5 == 0 else i / 4 for i in ids], pa.float64()),
        }
    )


def read(source: Source, columns: list[str] | None = None, **options: Any) -> pa.Table:
    """All rows of a scan as one table; checks on the way that morsels are numbered right."""
    columns = source.schema.names if columns is None else columns
    at = options.get("start", 0)
    batches = []
    for morsel in source.scan(columns, **options):
        if "prune" not in options:
            assert morsel.start == at
        assert 0 < morsel.rows.num_rows <= options.get("rows", 65_536)
        at = morsel.start + morsel.rows.num_rows
        batches.append(morsel.rows)
    schema = pa.schema([source.schema.field(name) for name in columns])
    return pa.Table.from_batches(batches, schema=batches[0].schema if batches else schema)


def write_json(table: pa.Table, path: Path) -> None:
    pl.from_arrow(table).write_ndjson(path)  # type: ignore[union-attr]


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(path, table.schema) as out:
        out.write_table(table, max_chunksize=300)


def write_file(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as out:
        out.write_table(table, max_chunksize=300)


def write_gzip_csv(table: pa.Table, path: Path) -> None:
    out = pa.BufferOutputStream()
    pacsv.write_csv(table, out)
    path.write_bytes(gzip.compress(out.getvalue().to_pybytes()))


def write_zstd_json(table: pa.Table, path: Path) -> None:
    plain = path.with_suffix("")
    write_json(table, plain)
    with pa.CompressedOutputStream(str(path), "zstd") as out:
        out.write(plain.read_bytes())
    plain.unlink()


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "log.parquet": lambda table, path: pq.write_table(table, path, row_group_size=130),
    "log.csv": lambda table, path: pacsv.write_csv(table, path),
    "log.csv.gz": write_gzip_csv,
    "log.tsv": lambda table, path: pacsv.write_csv(table, path, pacsv.WriteOptions(delimiter="\t")),
    "log.jsonl": write_json,
    "log.ndjson.zst": write_zstd_json,
    "log.arrow": write_file,
    "log.feather": lambda table, path: feather.write_feather(table, str(path), compression="zstd"),
    "log.ipc": write_stream,
    "log.arrows": write_stream,
}


@pytest.fixture(params=list(WRITERS))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    WRITERS[request.param](log(), path)
    return path


# --- formats


def test_every_format_gives_the_rows_back(written: Path) -> None:
    source = open_source(written)
    assert read(source).equals(log())
    assert source.rows in (None, ROWS)
    assert source.bytes == written.stat().st_size
    assert source.name == str(written)


def test_only_chosen_columns_come_in_the_order_asked_for(written: Path) -> None:
    assert read(open_source(written), ["bid", "id"]).equals(log().select(["bid", "id"]))


def test_no_columns_still_count_the_rows(written: Path) -> None:
    morsels = list(open_source(written).scan([], rows=90))
    assert sum(morsel.rows.num_rows for morsel in morsels) == ROWS
    assert {morsel.rows.num_columns for morsel in morsels} == {0}
    assert morsels[1].start == morsels[0].rows.num_rows


def test_a_scan_can_be_repeated(written: Path) -> None:
    source = open_source(written)
    assert read(source, ["id"]).equals(read(source, ["id"]))
    assert source.fingerprint() == open_source(written).fingerprint()


def test_origin_names_the_row_of_the_file(tmp_path: Path) -> None:
    for part in range(2):
        pq.write_table(log(100, 100 * part), tmp_path / f"part-{part}.parquet", row_group_size=40)
    morsels = list(open_source(tmp_path).scan(["id"], rows=30))
    for morsel in morsels:
        assert morsel.rows["id"][0].as_py() == morsel.start
        assert morsel.origin.path == str(tmp_path / f"part-{morsel.start // 100}.parquet")
        assert morsel.origin.row == morsel.start % 100
    assert morsels[0].origin.name(17) == f"{tmp_path}/part-0.parquet row 17"


def test_any_start_equals_slicing(written: Path) -> None:
    source, whole = open_source(written), log()

    @settings(max_examples=15, deadline=None)
    @given(
        start=st.integers(0, ROWS + 20),
        rows=st.integers(1, 400),
        threads=st.integers(0, 3),
        ahead=st.integers(0, 3),
    )
    def check(start: int, rows: int, threads: int, ahead: int) -> None:
        got = read(source, ["id"], start=start, rows=rows, threads=threads, ahead=ahead)
        assert got.equals(whole.select(["id"]).slice(start))

    check()


def test_skipped_row_groups_are_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(log(), path, row_group_size=100, write_page_checksum=True, compression="none")
    flip(path, group=0, column=0)
    source = open_source(path)
    assert read(source, ["id"], start=100)["id"][0].as_py() == 100
    with pytest.raises(SourceError):
        read(source, ["id"], start=99)


def test_csv_values_may_hold_line_ends_and_lone_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 40)
    rows = [f'{i},"line\n{i}, ""said"""' if i % 3 else f'{i},5" phone' for i in range(50)]
    (tmp_path / "a.csv").write_text("id,note\n" + "\n".join(rows) + "\n")
    got = read(open_source(tmp_path / "a.csv"))
    assert got["id"].to_pylist() == list(range(50))
    assert got["note"].to_pylist() == [f'line\n{i}, "said"' if i % 3 else '5" phone' for i in range(50)]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='a",\n\r', max_size=60).map(str.encode))
def test_csv_lines_are_found_as_a_reader_by_letter_finds_them(block: bytes) -> None:
    ends, quoted, before = [0], False, b"\n"
    at = 0
    while at < len(block):
        letter = block[at : at + 1]
        if quoted and block[at : at + 2] == b'""':
            at, letter = at + 1, b"x"
        elif quoted and letter == b'"':
            quoted, letter = False, b"x"
        elif not quoted and letter == b'"' and before in (b"\n", b"\r", b","):
            quoted = True
        elif not quoted and letter == b"\n":
            ends.append(at + 1)
        before, at = letter, at + 1
    csv = Csv()
    found = csv._loose_lines.match(block)
    assert found is not None
    assert found.end() == ends[-1]
    assert csv._first_line_end(block) == (ends[1] if len(ends) > 1 else 0)
    # A line with text behind a closing quote is cut off alone, so that it can be refused by its row.
    assert csv._last_line_end(block) in ends


def test_csv_empty_field_is_null_and_quoted_empty_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n,s\n1,\n,""\n3,NA\n')
    got = read(open_source(tmp_path / "a.csv"))
    assert got.to_pydict() == {"n": [1, None, 3], "s": [None, "", "NA"]}
    assert open_source(tmp_path / "a.csv").nullable("n")


def test_text_in_small_blocks_equals_text_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pacsv.write_csv(log(), tmp_path / "a.csv")
    write_json(log(), tmp_path / "a.jsonl")
    sources = [open_source(tmp_path / "a.csv"), open_source(tmp_path / "a.jsonl")]
    for size in (7, 64, 1000):
        monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", size)
        for source in sources:
            assert read(source, threads=2).equals(log())


def test_csv_files_may_order_their_columns_differently(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n")
    (tmp_path / "b.csv").write_text("extra,y,x\n9,b,2\n")
    (tmp_path / "c.csv").write_text("")
    assert read(open_source(tmp_path)).to_pydict() == {"x": [1, 2], "y": ["a", "b"]}


def test_json_objects_flatten_and_missing_fields_are_null(tmp_path: Path) -> None:
    lines = [
        '{"a": 1, "geo": {"city": "Bern", "at": {"x": 1.5}}, "tags": ["p", "q"]}',
        '{"a": 2}',
        '{"geo": null}',
    ]
    (tmp_path / "a.json").write_text("\n".join(lines))
    source = open_source(tmp_path / "a.json")
    assert source.schema.names == ["a", "geo.city", "geo.at.x", "tags"]
    assert read(source, ["geo.at.x", "tags", "a"]).to_pydict() == {
        "geo.at.x": [1.5, None, None],
        "tags": [["p", "q"], None, None],
        "a": [1, 2, None],
    }


# --- naming files


def test_folders_and_globs_come_in_natural_order_without_hidden_files(tmp_path: Path) -> None:
    for part in (10, 9, 2):
        pq.write_table(log(10, part * 10), tmp_path / f"part-{part}.parquet")
    for name in ("_SUCCESS", ".part-2.parquet.crc", "_metadata"):
        (tmp_path / name).write_text("")
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "_temporary" / "x.parquet").write_text("")
    expected = [*range(20, 30), *range(90, 110)]
    for path in (tmp_path, tmp_path / "*.parquet", tmp_path / "part-*", tmp_path / "**"):
        assert read(open_source(path))["id"].to_pylist() == expected
    assert read(open_source(tmp_path / "part-[29].parquet"))["id"].to_pylist() == expected[:20]
    paths = [tmp_path / "part-10.parquet", str(tmp_path / "part-2.parquet")]
    assert read(open_source(paths))["id"].to_pylist() == [*range(100, 110), *range(20, 30)]


def test_globs_reach_into_folders(tmp_path: Path) -> None:
    for part, folder in enumerate(["a/x", "a/y", "b/x"]):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(log(5, part * 5), tmp_path / folder / "f.parquet")
    for glob, ids in {
        "*/x": [0, 2],
        "**/f.parquet": [0, 1, 2],
        "a/**": [0, 1],
        "a/[!x]/*.parquet": [1],
    }.items():
        got = read(open_source(tmp_path / glob))["id"].to_pylist()
        assert got == [i for part in ids for i in range(part * 5, part * 5 + 5)], glob


def test_a_relative_path_and_a_file_uri_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(log(3), tmp_path / "a[1].parquet")
    monkeypatch.chdir(tmp_path)
    for path in ("a[1].parquet", "./a[1].parquet", "*.parquet", ".", f"file://{tmp_path}/a[1].parquet"):
        assert read(open_source(path)).num_rows == 3


def test_hive_partitions_are_columns_and_prune(tmp_path: Path) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        for hour in (9, 10):
            folder = tmp_path / f"day={day}" / f"hour={hour}"
            folder.mkdir(parents=True)
            pq.write_table(log(4), folder / "f.parquet")
    source = open_source(tmp_path)
    assert source.schema.field("hour").type == pa.int32()
    assert source.schema.field("day").type == pa.utf8()
    assert not source.nullable("hour")
    got = read(source, ["day", "hour"])
    assert got["hour"].to_pylist() == [9] * 4 + [10] * 4 + [9] * 4 + [10] * 4
    assert got["day"].to_pylist() == ["2026-01-01"] * 8 + ["2026-01-02"] * 8
    for prune in (pc.field("day") == "2026-01-02", (pc.field("hour") > 9) & (pc.field("day") > "2026-01-01")):
        morsels = list(source.scan(["id", "hour"], prune=prune))
        assert morsels[0].start == (8 if len(morsels) == 2 else 12)
        assert sum(morsel.rows.num_rows for morsel in morsels) == (8 if len(morsels) == 2 else 4)
    assert read(open_source(tmp_path / "day=2026-01-02" / "*"), ["day"])["day"].to_pylist() == ["2026-01-02"] * 8


def test_hive_default_partition_is_null(tmp_path: Path) -> None:
    for value in ("7", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"ad=a%20b/campaign={value}").mkdir(parents=True)
        pq.write_table(log(1), tmp_path / f"ad=a%20b/campaign={value}" / "f.parquet")
    source = open_source(tmp_path)
    assert source.nullable("campaign")
    assert read(source, ["campaign", "ad"]).to_pylist() == [
        {"campaign": 7, "ad": "a b"},
        {"campaign": None, "ad": "a b"},
    ]


def test_a_filesystem_may_be_given(tmp_path: Path) -> None:
    pq.write_table(log(), tmp_path / "a.parquet", row_group_size=100)
    pacsv.write_csv(log(), tmp_path / "a.csv")
    below = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    for name in ("a.parquet", "a.csv"):
        assert read(open_source(name, filesystem=below)).equals(log())
        assert read(open_source(str(tmp_path / name), filesystem=LocalFileSystem())).equals(log())
    with pytest.raises(SourceError, match="filesystem is a int; expected a pyarrow or fsspec filesystem"):
        open_source("a.parquet", filesystem=3)
    with pytest.raises(SourceError, match="storage_options= can be used only with s3:// and hdfs:// paths, but"):
        open_source("a.parquet", storage_options={"region": "x"})


def test_hdfs_without_its_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(SourceError, match=r"pip install 'ctrbox\[hdfs\]'"):
        open_source("hdfs://127.0.0.1:9/x.parquet")


# --- frames


FRAMES: dict[str, Callable[[], Any]] = {
    "table": log,
    "batch": lambda: log().to_batches()[0],
    "reader": lambda: log().to_reader(max_chunksize=77),
    "chunked": lambda: pa.chunked_array(
        [log(400).to_struct_array().combine_chunks(), log(600, 400).to_struct_array().combine_chunks()]
    ),
    "struct": lambda: log().to_struct_array().combine_chunks(),
    "polars": lambda: pl.from_arrow(log()),
    "duckdb": lambda: duckdb.from_arrow(log()),
    "pandas": lambda: log().to_pandas(),
    "dataset": lambda: ds.dataset(log()),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_frame_is_a_source(kind: str) -> None:
    source = open_source(FRAMES[kind]())
    for start in (0, 450):
        got = read(source, ["id", "user", "bid"], start=start, rows=130)
        assert got["id"].to_pylist() == log()["id"].to_pylist()[start:]
        assert got["user"].to_pylist() == log()["user"].to_pylist()[start:]
        assert [None if b != b else b for b in got["bid"].to_pylist()] == log()["bid"].to_pylist()[start:]
    if kind != "dataset":
        assert source.rows == ROWS
        assert source.nullable("bid") == (kind != "nothing")
        assert not source.nullable("id")
        assert source.ordered("id")
        assert not source.ordered("user")


def test_simple_columns_in_memory_are_not_copied() -> None:
    table = log().combine_chunks()
    morsel = next(iter(open_source(table).scan(["id"])))
    assert morsel.rows["id"].buffers()[1].address == table["id"].chunk(0).buffers()[1].address


def test_a_streaming_object_is_asked_for_a_fresh_stream_each_scan() -> None:
    class Reader:
        streaming = True
        opened = 0

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            self.opened += 1
            return log().to_reader(max_chunksize=100).__arrow_c_stream__(requested_schema)

    reader = Reader()
    source = open_source(reader)
    assert read(source, start=250, rows=60).equals(log().slice(250))
    assert read(source).equals(log())
    assert reader.opened == 3  # one of them for the schema
    assert source.nullable("id")
    next(iter(source.scan(["id"])))


def test_a_streaming_object_that_can_be_read_only_once_is_refused_when_it_is_read_again() -> None:
    class Once:
        streaming = True
        reader = log().to_reader()

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return self.reader.__arrow_c_stream__(requested_schema)

        def __arrow_c_schema__(self) -> object:
            return log().schema.__arrow_c_schema__()

    source = open_source(Once())
    assert read(source).equals(log())
    with pytest.raises(SourceError, match=r"Once had rows when it was read before, but has none now"):
        read(source)


def test_dataset_of_files_keeps_its_partitions(tmp_path: Path) -> None:
    ds.write_dataset(
        log(100).append_column("day", pa.array(["x", "y"] * 50)),
        tmp_path,
        format="parquet",
        partitioning=ds.partitioning(pa.schema([("day", pa.utf8())])),
    )
    dataset = ds.dataset(tmp_path, partitioning=["day"])
    source = open_source(dataset)
    got = read(source, ["id", "day"]).sort_by("id")
    assert got.to_pydict() == {"id": list(range(100)), "day": ["x", "y"] * 50}
    assert source.rows == 100


# --- what is proved


def test_statistics_prove_nulls_and_order(tmp_path: Path) -> None:
    for part in range(2):
        pq.write_table(log(100, part * 100), tmp_path / f"{part}.parquet", row_group_size=30)
    source = open_source(tmp_path)
    assert (source.nullable("id"), source.nullable("user"), source.nullable("bid")) == (False, False, True)
    assert (source.ordered("id"), source.ordered("user"), source.ordered("bid")) == (True, False, False)
    reverse = open_source([tmp_path / "1.parquet", tmp_path / "0.parquet"])
    assert not reverse.ordered("id")
    assert read(source).equals(log(200))


def test_statistics_of_floats_and_lists_prove_no_order(tmp_path: Path) -> None:
    """NaN lies outside of the range of a column of floats, and the range of a list is that of its elements."""
    floats = pa.array([1.0, 2.0, 3.0, float("nan"), 4.0, 5.0], pa.float64())
    lists = pa.array([[k] for k in range(6)], pa.list_(pa.field("item", pa.int64(), nullable=False)))
    schema = pa.schema([pa.field(n, t, nullable=False) for n, t in (("x", floats.type), ("v", lists.type))])
    pq.write_table(pa.Table.from_arrays([floats, lists], schema=schema), tmp_path / "a.parquet", row_group_size=2)
    source = open_source(tmp_path / "a.parquet")
    assert [(source.nullable(name), source.ordered(name)) for name in ("x", "v")] == [(False, False)] * 2


def test_no_statistics_prove_nothing(tmp_path: Path) -> None:
    schema = log().schema.set(1, pa.field("user", pa.utf8(), nullable=False))
    pq.write_table(log().cast(schema), tmp_path / "a.parquet", write_statistics=False)
    source = open_source(tmp_path / "a.parquet")
    assert (source.nullable("id"), source.nullable("user")) == (True, False)
    assert not source.ordered("id")


def test_a_column_in_memory_with_nulls_or_lists_is_not_ordered() -> None:
    table = pa.table({"id": [1, 2, 3], "gap": [1, None, 3], "list": [[1], [2], [3]], "down": [3, 2, 1]})
    source = open_source(table)
    assert [source.ordered(name) for name in table.column_names] == [True, False, False, False]


def test_an_address_without_a_bucket_is_refused() -> None:
    for path in ("s3://", "s3:///log.parquet"):
        with pytest.raises(SourceError, match="has no bucket name; expected s3://bucket/path"):
            open_source(path, storage_options={"region": "none", "endpoint_override": "localhost:1"})


def test_prune_skips_row_groups_and_keeps_positions(tmp_path: Path) -> None:
    pq.write_table(log(), tmp_path / "a.parquet", row_group_size=100)
    source = open_source(tmp_path / "a.parquet")
    got = list(source.scan(["id"], rows=100, prune=(pc.field("id") >= 350) & (pc.field("id") < 420)))
    assert [morsel.start for morsel in got] == [300, 400]
    assert got[0].rows["id"][0].as_py() == 300
    assert list(source.scan(["id"], prune=pc.field("id") < 0)) == []
    assert read(source, ["id"], prune=pc.field("nowhere") < 0).num_rows == ROWS
    assert read(source, ["id"], start=410, prune=pc.field("id") >= 350)["id"][0].as_py() == 410


def test_dictionary_columns_stay_encoded_when_asked(tmp_path: Path) -> None:
    pq.write_table(log(), tmp_path / "a.parquet", row_group_size=400)
    source = open_source(tmp_path / "a.parquet")
    got = read(source, ["user", "id"], dictionary=["user", "id"])
    assert got.schema.types == [pa.dictionary(pa.int32(), pa.utf8()), pa.int64()]
    assert got["user"].to_pylist() == log()["user"].to_pylist()


# --- types


def simple_cases() -> dict[str, tuple[pa.Array, pa.DataType, list[Any]]]:
    noon = datetime(2026, 1, 1, 12)
    text = ["a", None, "ü"]
    return {
        "float16": (pa.array([1.5, None, 2], pa.float16()), pa.float32(), [1.5, None, 2.0]),
        "decimal": (pa.array([Decimal("1.25"), None], pa.decimal128(9, 2)), pa.float64(), [1.25, None]),
        "uint64": (pa.array([1, None, 2**63 - 1], pa.uint64()), pa.int64(), [1, None, 2**63 - 1]),
        "date": (pa.array([date(2026, 1, 1)]), pa.timestamp("us"), [datetime(2026, 1, 1)]),
        "seconds": (pa.array([noon], pa.timestamp("s")), pa.timestamp("us"), [noon]),
        "zone": (
            pa.array([noon.replace(tzinfo=UTC)], pa.timestamp("ns", "Asia/Tokyo")),
            pa.timestamp("us"),
            [noon],
        ),
        "time": (pa.array([1500], pa.time32("ms")), pa.int64(), [1_500_000]),
        "duration": (pa.array([timedelta(seconds=2)], pa.duration("ms")), pa.int64(), [2_000_000]),
        "view": (pa.array(text, pa.string_view()), pa.utf8(), text),
        "large": (pa.array(text, pa.large_utf8()), pa.large_utf8(), text),
        "binary": (pa.array([b"a", None]), pa.utf8(), ["a", None]),
        "fixed": (pa.array([b"ab", None], pa.binary(2)), pa.utf8(), ["ab", None]),
        "words": (
            pa.array(text, pa.large_utf8()).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.large_utf8())),
            pa.dictionary(pa.int32(), pa.utf8()),
            text,
        ),
        "codes": (pa.array([5, None, 5]).dictionary_encode(), pa.int64(), [5, None, 5]),
        "runs": (pa.RunEndEncodedArray.from_arrays([2, 3], ["x", None]), pa.utf8(), ["x", "x", None]),
        "lists": (
            pa.array([["a"], None, [], ["b", None]]),
            pa.list_(pa.utf8()),
            [["a"], None, [], ["b", None]],
        ),
        "views": (
            pa.array([[1], None, [2, 3], []], pa.list_view(pa.uint64())),
            pa.list_(pa.int64()),
            [[1], None, [2, 3], []],
        ),
        "many": (
            pa.array([["a", "b"], None, ["c"]], pa.large_list(pa.string_view())),
            pa.large_list(pa.utf8()),
            [["a", "b"], None, ["c"]],
        ),
        "pairs": (
            pa.array([[1, 2], None, [3, 4]], pa.list_(pa.uint64(), 2)),
            pa.list_(pa.int64(), 2),
            [[1, 2], None, [3, 4]],
        ),
        "uuid": (pa.array([b"0" * 16, None], pa.uuid()), pa.utf8(), ["0" * 16, None]),
    }


@pytest.mark.parametrize("kind", simple_cases())
def test_types_come_down_to_simple_ones(kind: str) -> None:
    array, expected, values = simple_cases()[kind]
    source = open_source(pa.table({"x": array}))
    assert source.schema.field("x").type == expected
    got = read(source)["x"]
    got.validate(full=True)
    assert got.type == expected
    assert got.to_pylist() == values
    assert source.nullable("x") == (None in values)
    for start in range(len(values)):
        part = read(source, start=start, rows=1)["x"]
        part.validate(full=True)
        assert part.to_pylist() == values[start:]


def test_structs_flatten_and_a_null_parent_makes_null_children(tmp_path: Path) -> None:
    inner = [{"city": "x", "at": {"lat": 1.0}}, None, {"city": None, "at": None}]
    table = pa.table({"id": [1, 2, 3], "geo": inner})
    pq.write_table(table, tmp_path / "a.parquet")
    feather.write_feather(table, str(tmp_path / "a.feather"))
    for data in (table, tmp_path / "a.parquet", tmp_path / "a.feather"):
        source = open_source(data)
        assert sorted(source.schema.names) == ["geo.at.lat", "geo.city", "id"]
        assert read(source, ["geo.at.lat", "geo.city"]).to_pydict() == {
            "geo.at.lat": [1.0, None, None],
            "geo.city": ["x", None, None],
        }
        assert source.nullable("geo.city")


def test_polars_categoricals_become_dictionaries() -> None:
    frame = pl.DataFrame({"c": pl.Series(["a", "b", None, "a"], dtype=pl.Categorical)})
    source = open_source(frame)
    assert source.schema.field("c").type == pa.dictionary(pa.int32(), pa.utf8())
    assert read(source, rows=2)["c"].to_pylist() == ["a", "b", None, "a"]


def broken_text() -> pa.Array:
    raw = pa.array([b"\xff\xfe", b"ok", b"\xc3"], pa.binary())
    return raw.view(pa.utf8())


def test_bytes_that_are_not_utf8_pass_through_unchanged(tmp_path: Path) -> None:
    table = pa.table({"s": broken_text()})
    listed = table.append_column("l", pa.ListArray.from_arrays([0, 1, 2, 3], broken_text()))
    pq.write_table(table, tmp_path / "a.parquet")
    write_file(listed, tmp_path / "a.arrow")
    write_stream(listed, tmp_path / "a.arrows")
    views = pa.table({"s": pa.array([b"\xff\xfe", b"ok", b"\xc3"], pa.binary_view())})
    for data in (
        table,
        views,
        *(tmp_path / f"a.{e}" for e in ("parquet", "arrow", "arrows")),
    ):
        got = read(open_source(data), ["s"])["s"].combine_chunks().view(pa.binary())
        assert got.to_pylist() == [b"\xff\xfe", b"ok", b"\xc3"], data


# --- reader threads


def test_never_more_in_flight_than_allowed() -> None:
    lock, alive, most = threading.Lock(), 0, 0

    class Result:
        def __init__(self) -> None:
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)

    def task() -> Result:
        made = Result()
        time.sleep(0.001)
        return made

    for _ in readahead(iter([task] * 60), threads=3, ahead=2):
        with lock:
            alive -= 1
        time.sleep(0.002)
    assert most <= 3 + 2 + 1  # one is in the consumer's hand
    assert most >= 4


def test_a_slow_consumer_holds_the_readers_back(tmp_path: Path) -> None:
    pq.write_table(log(), tmp_path / "a.parquet", row_group_size=20)
    source = open_source(tmp_path / "a.parquet")
    decoded: list[int] = []
    original = source._format.read  # type: ignore[attr-defined]
    source._format.read = lambda file, footer, wanted: (  # type: ignore[attr-defined]
        decoded.extend(wanted.groups),
        original(file, footer, wanted),
    )[1]
    scan = source.scan(["id"], rows=20, threads=2, ahead=3)
    for taken in range(1, 8):
        next(scan)
        time.sleep(0.02)
        assert len(decoded) <= taken + 2 + 3
    scan.close()  # type: ignore[attr-defined]
    assert len(decoded) < 50


def test_results_come_in_order_whatever_the_threads_do() -> None:
    def task(i: int) -> Callable[[], int]:
        return lambda: (time.sleep(0.003 * (i % 3)), i)[1]

    for threads in (0, 1, 4):
        assert list(readahead(map(task, range(40)), threads=threads, ahead=1)) == list(range(40))


def collect(items: Iterator[Any], into: list[Any]) -> None:
    for item in items:  # one by one: what came before an error must be kept
        into += [item]


def test_an_error_is_raised_at_its_place() -> None:
    def task(i: int) -> Callable[[], int]:
        return lambda: i if i != 7 else 1 // 0

    def broken() -> Iterator[Callable[[], int]]:
        yield from map(task, range(5))
        raise OSError("stream broke")

    for threads in (0, 1, 4):
        seen: list[int] = []
        with pytest.raises(ZeroDivisionError):
            collect(readahead(map(task, range(40)), threads=threads, ahead=2), seen)
        assert seen == list(range(7))
        seen = []
        with pytest.raises(OSError, match="stream broke"):
            collect(readahead(broken(), threads=threads, ahead=2), seen)
        assert seen == list(range(5))


def test_threads_end_on_close_drop_error_and_interrupt(written: Path) -> None:
    source = open_source(written)
    before = set(threading.enumerate())  # an encoder's thread, which lives as long as the process, may be among them

    def readers() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in before and t.name.startswith("ctrbox")]

    scan = source.scan(["id"], rows=10)
    next(scan)
    scan.close()  # type: ignore[attr-defined]
    assert not readers()
    scan = source.scan(["id"], rows=10)
    next(scan)
    del scan
    assert not readers()
    for error in (KeyboardInterrupt, ValueError):
        scan = source.scan(["id"], rows=10)
        next(scan)
        with pytest.raises(error):
            scan.throw(error)  # type: ignore[attr-defined]
        assert not readers()
    list(source.scan(["id"]))
    assert not readers()


def test_ctrl_c_in_mid_scan_reaches_the_caller_and_ends_the_process(tmp_path: Path) -> None:
    pq.write_table(log(200_000), tmp_path / "a.parquet", row_group_size=500)
    program = """if True:
        import sys, threading, time
        from ctrbox.views.source import open_source
        scan = open_source(sys.argv[1]).scan(["id"], rows=500)
        next(scan)
        print("reading", flush=True)
        try:
            for morsel in scan:
                time.sleep(0.05)
        except KeyboardInterrupt:
            scan.close()
            left = [t for t in threading.enumerate() if t.name.startswith("ctrbox")]
            print("stopped", len(left), flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "a.parquet")], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "reading\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=20)
    assert out == "stopped 0\n"
    assert child.returncode == 0


def test_many_small_files_are_read_in_good_time(tmp_path: Path) -> None:
    for part in range(300):
        pq.write_table(log(5, part * 5), tmp_path / f"{part}.parquet")
    began = time.monotonic()
    source = open_source(tmp_path)
    assert source.rows == 1500
    assert source.ordered("id")
    assert read(source, ["id"])["id"].to_pylist() == list(range(1500))
    assert time.monotonic() - began < 10


def test_small_row_groups_are_decoded_together(tmp_path: Path) -> None:
    pq.write_table(log(), tmp_path / "a.parquet", row_group_size=10)
    assert len(list(open_source(tmp_path / "a.parquet").scan(["id"], rows=500))) == 2


# --- damage and mistakes


def flip(path: Path, group: int, column: int) -> None:
    """Flip bits in the last bytes of a column's page, behind its header."""
    chunk = pq.read_metadata(path).row_group(group).column(column)
    place = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size - 3
    data = bytearray(path.read_bytes())
    data[place] ^= 0x55
    path.write_bytes(bytes(data))


def fails(data: Any, *words: str, columns: list[str] | None = None, kind: type = SourceError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        read(open_source(data, **options), columns)
    message = str(caught.value)
    assert isinstance(caught.value, CtrboxError)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


def test_missing_path_names_the_nearest(tmp_path: Path) -> None:
    pq.write_table(log(1), tmp_path / "impressions.parquet")
    fails(tmp_path / "impresions.parquet", "does not exist", "nearest: 'impressions.parquet'")
    fails(tmp_path / "impressons" / "part.parquet", "does not exist")
    fails(tmp_path / "impresions*.parquet", "matches no file")
    (tmp_path / "empty").mkdir()
    fails(tmp_path / "empty", "holds no data files")
    fails([], "an empty list")
    fails(3, "a int", "expected a path")
    fails(pl.LazyFrame({"a": [1]}), "LazyFrame", ".collect()")
    fails("ftp://x/y.parquet", "ftp://", "expected a local path")


def test_formats_unknown_or_mixed(tmp_path: Path) -> None:
    pq.write_table(log(1), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("a\n1\n")
    fails(tmp_path, "b.csv is csv", "a.parquet is parquet", "expected files of one format: select them")
    (tmp_path / "c.dat").write_text("")
    fails(tmp_path / "c.dat", "does not show its format; expected one of", ".parquet", ".jsonl")
    fails(tmp_path / "a.parquet", "format= is 'parqet'", "nearest: 'parquet'", format="parqet")
    (tmp_path / "a.parquet").rename(tmp_path / "000000_0")
    assert read(open_source(tmp_path / "000000_0", format="parquet")).num_rows == 1
    (tmp_path / "d.parquet.gz").write_text("x")
    fails(tmp_path / "d.parquet.gz", "compressed parquet")


@pytest.mark.parametrize("keep", [0, 3, 50, 0.5, -1])
def test_truncated_parquet(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(log(), path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if 0 < keep < 1 else int(keep)])
    fails(path, "a.parquet", "not a complete Parquet file: its footer is missing")
    pq.write_table(log(), tmp_path / "0.parquet")
    with pytest.raises(SourceError, match=r"a\.parquet is not a complete Parquet file"):
        open_source(tmp_path).nullable("id")


def test_text_called_parquet_is_not_called_cut_short(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("id,user\n1,u1\n" * 50)
    fails(
        tmp_path / "a.parquet",
        r"a.parquet is not a Parquet file: it begins with b'id,u', expected b'PAR1'; ",
        "format='csv'",
    )


def test_damaged_parquet_footer(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(log(), path)
    data = bytearray(path.read_bytes())
    data[-200:-150] = b"\xff" * 50
    path.write_bytes(bytes(data))
    fails(path, "a.parquet")


@pytest.mark.parametrize("rows", [100, 65_536])
def test_flipped_bit_in_a_page_names_file_and_row_group(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(log(), path, row_group_size=100, write_page_checksum=True, compression="none", use_dictionary=False)
    flip(path, group=4, column=0)
    source, seen = open_source(path), []
    with pytest.raises(SourceError, match=r"a\.parquet row group 4 cannot be read: .*[Cc][Rr][Cc]"):
        collect(source.scan(["id"], rows=rows), seen)
    assert sum(morsel.rows.num_rows for morsel in seen) == (400 if rows == 100 else 0)
    assert read(source, ["user"], rows=rows).num_rows == ROWS


def test_file_cut_between_opening_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(log(), path, row_group_size=100)
    source = open_source(path)
    assert source.rows == ROWS
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(SourceError, match=r"a\.parquet changed after it was opened.* has 900 bytes now"):
        read(source)
    path.unlink()
    with pytest.raises(SourceError, match=r"a\.parquet .*no longer exists"):
        read(source)


def test_schema_unlike_the_first_files(tmp_path: Path) -> None:
    pq.write_table(log(5), tmp_path / "0.parquet")
    pq.write_table(log(5).drop_columns(["bid"]), tmp_path / "1.parquet")
    fails(tmp_path, "1.parquet has no column 'bid'", "expected double", "0.parquet")
    assert read(open_source(tmp_path), ["id"]).num_rows == 10
    other = log(5).set_column(1, "user", pa.array(range(5)))
    pq.write_table(other.append_column("extra", pa.array(range(5))), tmp_path / "1.parquet")
    fails(tmp_path, "column 'user' of", "1.parquet is int64, expected string", "0.parquet")
    assert open_source(tmp_path).schema.names == ["id", "user", "bid"]
    with pytest.raises(SourceError, match="column 'user'"):
        open_source(tmp_path).nullable("user")


def test_later_files_widen_and_narrow_only_without_loss(tmp_path: Path) -> None:
    def write(name: str, x: pa.Array) -> None:
        pq.write_table(pa.table({"x": x}), tmp_path / f"{name}.parquet")

    write("0", pa.array([1, 2], pa.int32()))
    write("1", pa.array([3, None], pa.int64()))
    write("2", pa.nulls(1))
    write("3", pa.array([5], pa.uint8()))
    source = open_source(tmp_path)
    assert read(source)["x"].to_pylist() == [1, 2, 3, None, None, 5]
    assert read(source)["x"].type == pa.int32()
    write("4", pa.array([6, 2**40], pa.int64()))
    fails(tmp_path, "4.parquet row 1: column 'x' holds 1099511627776 (int64)", "int32", kind=DataError)
    write("4", pa.array([1.5]))
    fails(tmp_path, "column 'x' of", "4.parquet is double, expected int32")
    write("0", pa.array(["a"]))
    for name, kind in {
        "1": pa.large_utf8(),
        "2": pa.binary(),
        "3": pa.dictionary(pa.int32(), pa.utf8()),
    }.items():
        write(name, pa.array(["b"]).cast(kind))
    write("4", pa.nulls(1))
    assert read(open_source(tmp_path))["x"].to_pylist() == ["a", "b", "b", "b", None]


def test_uint64_too_large_names_file_column_and_row(tmp_path: Path) -> None:
    big = pa.array([1] * 70 + [2**63 + 5] + [2] * 30, pa.uint64())
    pq.write_table(pa.table({"k": big}), tmp_path / "a.parquet", row_group_size=60)
    fails(tmp_path / "a.parquet", "a.parquet row 70", "'k'", "9223372036854775813", kind=DataError)
    fails(pa.table({"k": big}), "memory row 70", kind=DataError)
    lists = pa.table({"k": pa.array([[1], [2**63]], pa.list_(pa.uint64()))})
    fails(lists, "memory row 1", "'k'", kind=DataError)


def test_columns_without_a_simple_type_are_listed_and_refused(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1],
            "m": pa.array([[("a", 1)]], pa.map_(pa.utf8(), pa.int64())),
            "ls": pa.array([[{"a": 1}]]),
            "ll": pa.array([[[1]]]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    for data in (table, tmp_path / "a.parquet"):
        source = open_source(data)
        assert source.schema.names == ["id", "m", "ls", "ll"]
        assert read(source, ["id"]).num_rows == 1
        for column in ("m", "ls", "ll"):
            with pytest.raises(SourceError, match=f"column '{column}' of .* is (map|list).*views cannot read"):
                read(source, [column])


def test_unknown_column_suggests_the_nearest(written: Path) -> None:
    fails(written, "has no column 'usr'", "nearest: 'user'", columns=["usr"])
    with pytest.raises(SourceError, match="nearest: 'user'"):
        open_source(written).nullable("usr")


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    twice = pa.table([[1], [2]], names=["a", "a"])
    fails(twice, "two columns called 'a'")
    (tmp_path / "a.csv").write_text("a,a\n1,2\n")
    fails(tmp_path / "a.csv", "two columns called 'a'")
    fails(pa.table({"g.x": [1], "g": [{"x": 1}]}), "two columns called 'g.x'")


def test_csv_damage_names_file_and_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{i},x{i}" for i in range(100)]
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 100)
    path.write_text("n,s\n" + "\n".join([*rows[:60], "60", *rows[61:]]) + "\n")
    fails(path, "a.csv row 60", "Expected 2 columns, got 1")
    path.write_text("n,s\n" + "\n".join([*rows[:60], "sixty,x", *rows[61:]]) + "\n")
    fails(path, "a.csv row 60", "column 'n'", "int", "'sixty'", "types={'n': 'str'}")
    assert read(open_source(path), ["s"]).num_rows == 100
    path.write_text("n,s\n1\n")
    fails(path, "a.csv row 0", "Expected 2 columns")
    path.write_text("")
    fails(path, "a.csv is empty")
    path.write_text("n,s\n")
    assert read(open_source(path)).num_rows == 0
    path.write_text("n,s\n1,a\n")
    (tmp_path / "b.csv").write_text("n,t\n1,a\n")
    fails(tmp_path, "b.csv has no column 's'")


def test_json_damage_names_file_and_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    rows = [f'{{"n": {i}, "s": "x"}}' for i in range(100)]
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 150)
    for damage in ('{"n": 60, "s": "x"', '{"n": "sixty"}', '{"n": 60.5}', "[60]", "garbage"):
        path.write_text("\n".join([*rows[:60], damage, *rows[61:]]) + "\n")
        fails(path, "a.jsonl row 60")
    path.write_text('[\n{"a": 1}\n]\n')
    fails(path, "a.jsonl is a JSON array", "expected one object on each line")
    path.write_text("\n \n")
    fails(path, "a.jsonl", "no JSON objects")


def test_cut_compressed_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    write_gzip_csv(log(), path)
    path.write_bytes(path.read_bytes()[:-2000])
    fails(path, "log.csv.gz")
    path.write_bytes(b"not gzip at all")
    fails(path, "log.csv.gz cannot be read")


@pytest.mark.parametrize("name", ["log.arrow", "log.arrows"])
def test_damaged_arrow_files_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](log(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    fails(path, name)
    path.write_bytes(b"ARROW1\0\0 nonsense")
    fails(path, name)


def test_arrow_file_with_offsets_that_lead_astray(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write_file(pa.table({"s": ["aaaaaaaa", "bbbbbbbb", "cccccccc"]}), path)
    data = bytearray(path.read_bytes())
    place = data.index(bytes([0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0]))
    data[place + 4 : place + 8] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    fails(path, "a.arrow record batch 0 cannot be read")


@pytest.mark.parametrize("name", WRITERS)
def test_random_damage_gives_rows_or_a_named_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](log(300), path)
    whole = path.read_bytes()
    # A Parquet footer has no checksum; test_parquet_footers.py damages it, in a process of its own.
    end = len(whole) - (int.from_bytes(whole[-8:-4], "little") + 8 if name.endswith("parquet") else 0)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, end - 1), st.integers(0, 255)), min_size=1, max_size=4))
    def check(flips: list[tuple[int, int]]) -> None:
        data = bytearray(whole)
        for place, value in flips:
            data[place] = value
        path.write_bytes(bytes(data))
        message = name
        try:
            read(open_source(path), rows=90)
        except CtrboxError as error:
            message = str(error)
        assert name in message
        assert "\n" not in message

    check()


def test_fingerprint_follows_the_files(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    pq.write_table(log(5), tmp_path / "x" / "a.parquet")
    first = open_source(tmp_path / "x").fingerprint()
    (tmp_path / "x").rename(tmp_path / "y")
    assert open_source(tmp_path / "y").fingerprint() == first
    pq.write_table(log(6), tmp_path / "y" / "a.parquet")
    assert open_source(tmp_path / "y").fingerprint() != first
    assert open_source(log()).fingerprint() == open_source(log()).fingerprint() != open_source(log(3)).fingerprint()


def test_nearest() -> None:
    assert nearest("qury", ["query", "user"]) == "; nearest: 'query'"
    assert nearest("USER", ["query", "user"]) == "; nearest: 'user'"
    assert nearest("zzz", ["query", "user"]) == ""


def test_pandas_missing_values_are_null() -> None:
    frame = pd.DataFrame({"x": ["a", None], "y": [1.0, float("nan")]})
    assert read(open_source(frame))["x"].to_pylist() == ["a", None]


def test_json_lines_that_are_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow crashes where a block begins with null; a null is a row of nulls wherever it stands."""
    path = tmp_path / "n.json"
    for nothing in ("null\n", " null \nnull\n", "{}\n", "null\n{}\n"):
        path.write_text(nothing)
        fails(path, "n.json does not begin with a JSON object that has fields;")
    path.write_text('null\n{"a": 1}\nnull\n')
    assert read(open_source(path))["a"].to_pylist() == [None, 1, None]
    path.write_text('null\n{"a": 1}\n[]\n')
    fails(path, "n.json row 2")
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 12)
    path.write_text('{"a": 1111}\nnull\n{"a": 2}\nnull\nnull\nnull\n')
    assert read(open_source(path))["a"].to_pylist() == [1111, None, 2, None, None, None]
    assert sum(m.rows.num_rows for m in open_source(path).scan([])) == 6


def test_links_that_lead_back_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    (folder / "day=1").mkdir(parents=True)
    pq.write_table(log(5), folder / "day=1" / "a.parquet")
    (tmp_path / "elsewhere").mkdir()
    pq.write_table(log(7), tmp_path / "elsewhere" / "b.parquet")
    for name in ("loop", "again", "day=1/up"):  # two loops in a folder are met in 2**40 ways
        (folder / name).symlink_to(folder)
    (folder / "day=2").symlink_to(tmp_path / "elsewhere")
    for path in (folder, f"{folder}/**", f"{folder}/**/*.parquet", f"{tmp_path}/s*"):
        source = open_source(path)
        assert source.rows == 12
        assert read(source)["day"].to_pylist() == [1] * 5 + [2] * 7
    fails(f"{tmp_path}/absent/**", "matches no file")


def test_csv_lines_that_end_with_cr_alone_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old_mac.csv"
    path.write_bytes(b"a,b\r1,2\r3,4\r")
    fails(path, "old_mac.csv has lines that end with CR alone")
    path.write_bytes(b'"a\r1",b\r\n1,2\r\n')
    assert read(open_source(path)).to_pydict() == {"a\r1": [1], "b": [2]}


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff.csv"
    try:
        Path(os.fsdecode(odd)).write_text("a\n1\n")
    except OSError:
        pytest.skip("this disk takes UTF-8 names alone")
    for path in (tmp_path, f"{tmp_path}/*.csv", f"{tmp_path}/**", os.fsdecode(odd)):
        fails(path, "not UTF-8")
    fails(f"{tmp_path}/a\0b.csv", "NUL")


def test_what_is_no_regular_file_is_said_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    fails(tmp_path / "pipe.csv", "pipe.csv is a pipe, a socket or a device, expected a regular file")
    fails(tmp_path, "holds no data files")


def test_the_errors_of_a_streaming_reader_survive() -> None:
    class Reader:
        streaming = True
        schema = pa.schema([("a", pa.int64())])

        def __arrow_c_schema__(self) -> Any:
            return self.schema.__arrow_c_schema__()

        def __arrow_c_stream__(self, requested: Any = None) -> Any:
            raise AssertionError("batches() are read")

        def batches(self) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"a": [1, 2]})
            raise DataError("day_0 line 3: found 'x'")

    with pytest.raises(DataError, match=r"^day_0 line 3: found 'x'$"):
        read(open_source(Reader()))


def test_arguments_of_a_wrong_type_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(log(5), path)
    with pytest.raises(SourceError, match="format must be a string, got a int; expected one of parquet"):
        View(path, format=5)  # type: ignore[arg-type]
    for key in (5, None, ["id", 5], b"id"):
        with pytest.raises(PlanError, match="key takes the names of columns, got"):
            View(path, key=key)  # type: ignore[arg-type]
    view = View(path, key="id")
    with pytest.raises(PlanError, match="on takes the names of columns, got None"):
        view.join(view, on=None)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="select takes the names of columns, got 5"):
        view.select(5)  # type: ignore[arg-type]
    for budget in (None, 1.5, True):
        with pytest.raises(PlanError, match="budget= must be a size such as"):
            view.merge(view, budget=budget)  # type: ignore[arg-type]


def test_row_labels_of_a_pandas_frame_are_a_column_only_where_they_have_a_name() -> None:
    frame = pd.DataFrame({"user": [3, 1, 2, 7], "price": [0.5, 1.5, 2.5, 3.5]})
    kept = View(frame.sort_values("user").head(3))  # its labels are 1, 2 and 0
    assert kept.source.schema.names == ["user", "price"]
    assert kept.source.rows == 3
    several = frame.set_axis(pd.MultiIndex.from_tuples([(1, 2), (1, 3), (2, 4), (2, 5)]))
    assert View(several).source.schema.names == ["user", "price"]
    assert sorted(View(frame.set_index("user")).source.schema.names) == ["price", "user"]
    even = View(
        frame.assign(user=[4, 6, 8, 10]).set_index("user")
    )  # pandas hands these over as a range, not as a column
    assert sorted(even.source.schema.names) == ["price", "user"]
    assert next(iter(even.source.scan(["user"]))).rows.column(0).to_pylist() == [4, 6, 8, 10]
