"""Tests which columns of Parquet files can be decoded as they are stored, and why the CPU decodes others. Needs no GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from ctrbox.views.files_with_row_index import IndexedFiles
from ctrbox.views.parquet_chunks import Chunk, chunks_of, readable, why_the_cpu
from ctrbox.views.parquet_pages import Flat, start_of, stored_chunk
from ctrbox.views.source import open_source

COLUMNS = {
    "i8": pa.array([1, 2, 3], pa.int8()),
    "u16": pa.array([1, 2, 3], pa.uint16()),
    "i32": pa.array([1, 2, 3], pa.int32()),
    "i64": pa.array([1, 2, 3], pa.int64()),
    "f32": pa.array([1, 2, 3], pa.float32()),
    "f64": pa.array([1, 2, 3], pa.float64()),
    "at": pa.array([1, 2, 3], pa.timestamp("us")),
    "text": pa.array(["a", "b", None]),
    "bytes": pa.array([b"a", b"b", None]),
    "ms": pa.array([1, 2, 3], pa.timestamp("ms")),
    "day": pa.array([1, 2, 3], pa.date32()),
    "flag": pa.array([True, False, None]),
    "list": pa.array([[1], [], None]),
    "large": pa.array(["a", "b", None], pa.large_utf8()),
}
ONLY = "is nested, or has a type or an encoding that only the CPU decodes"
WHY = {
    "ms": "is stored as timestamp[ms], which the CPU converts",
    "day": "is stored as date32[day], which the CPU converts",
    "flag": ONLY,
    "list": ONLY,
    "large": ONLY,
}


def written(folder: Path, **options: Any) -> IndexedFiles:
    pq.write_table(pa.table(COLUMNS), folder / "a.parquet", row_group_size=2, **options)
    found = open_source(folder / "a.parquet")
    assert isinstance(found, IndexedFiles)
    return found


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_means_what_is_stored_needs_no_cpu(tmp_path: Path, name: str) -> None:
    assert why_the_cpu(written(tmp_path), name) == WHY.get(name, "")


def test_a_codec_that_only_the_cpu_knows_is_named(tmp_path: Path) -> None:
    source = written(tmp_path, compression="zstd")
    assert why_the_cpu(source, "i64") == "is compressed with ZSTD, which only the CPU decompresses"
    assert why_the_cpu(source, "list") == ONLY


@pytest.mark.parametrize(("codec", "number"), [("none", 0), ("lz4", 1), ("snappy", 2)])
def test_chunks_are_described_as_the_footer_does(tmp_path: Path, codec: str, number: int) -> None:
    source = written(tmp_path, compression=codec, use_dictionary=["i64"])
    footer = source.first
    groups = [footer.detail.row_group(k) for k in range(2)]
    for name, width, narrow in (("i8", 4, 1), ("u16", 4, 2), ("i32", 4, 0), ("i64", 8, 0), ("text", 0, 0)):
        found = chunks_of(footer, groups, footer.leaves[name])
        assert isinstance(found, list)
        place = list(COLUMNS).index(name)
        wanted = []
        for rows, group in zip((2, 1), groups, strict=True):
            meta = group.column(place)
            start = meta.dictionary_page_offset or meta.data_page_offset
            wanted.append(Chunk(start, meta.total_compressed_size, number, width, True, rows, narrow))
        assert found == wanted


def test_only_local_parquet_files_are_read_so(tmp_path: Path) -> None:
    source = written(tmp_path)
    assert readable(source)
    orc.write_table(pa.table({"i64": [1]}), tmp_path / "a.orc")
    afar = open_source("a.parquet", filesystem=pafs.PyFileSystem(pafs.FSSpecHandler(local())))
    for other in (open_source(tmp_path / "a.orc"), open_source(pa.table(COLUMNS)), afar):
        assert not readable(other)
        assert why_the_cpu(other, "i64") == "is not in local Parquet files"


def local() -> Any:
    import fsspec

    return fsspec.filesystem("file")


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_the_path_tells_is_not_stored(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "day=1" / "a.parquet")
    source = open_source(tmp_path / "day=1")
    assert why_the_cpu(source, "day") == "comes from the names of the files"
    assert why_the_cpu(source, "x") == ""


@pytest.mark.parametrize(
    ("has", "dictionary", "data", "start"),
    [(True, 4, 50, 4), (False, 4, 50, 50), (True, 0, 50, 50), (True, 50, 50, 50), (True, 60, 50, 50), (True, 1, 2, 1)],
)
def test_a_chunk_starts_at_its_dictionary_where_that_comes_first(
    has: bool, dictionary: int, data: int, start: int
) -> None:
    chunk = SimpleNamespace(has_dictionary_page=has, dictionary_page_offset=dictionary, data_page_offset=data)
    assert start_of(chunk) == start


@pytest.mark.parametrize(
    ("changed", "known"),
    [
        ({}, True),
        ({"compression": "ZSTD"}, False),
        ({"num_values": 4}, False),
        ({"file_path": "elsewhere"}, False),
    ],
)
def test_a_chunk_that_is_stored_in_an_unusual_way_is_left_to_pyarrow(changed: dict[str, Any], known: bool) -> None:
    facts = {
        "compression": "LZ4",
        "num_values": 3,
        "file_path": "",
        "has_dictionary_page": False,
        "data_page_offset": 9,
    }
    chunk = SimpleNamespace(**{**facts, "total_compressed_size": 70, **changed})
    column = Flat(0, 8, True, pa.field("x", pa.int64()), None)
    assert stored_chunk(chunk, column, 3) == ((9, 70, 1, 8, True) if known else None)
