"""Columns decoded by the core are pyarrow's, value for value; damaged or foreign ones are left to pyarrow."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings

from ctrbox import _native
from ctrbox.errors import SourceError
from ctrbox.views.files_with_row_index import Footer
from ctrbox.views.parquet_footers import read_footer
from ctrbox.views.parquet_pages import decode_columns
from ctrbox.views.simple_types import leaves
from ctrbox.views.source import open_source

TYPES = {
    "i8": pa.int8(),
    "u16": pa.uint16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "day": pa.date32(),
    "at": pa.timestamp("us"),
    "utc": pa.timestamp("ns", "UTC"),
    "text": pa.string(),
    "bytes": pa.binary(),
}
FOREIGN = {  # stored as something else, nested, or of a type of its own
    "u64": pa.array([1, 2, 3], pa.uint64()),
    "bool": pa.array([True, None, False]),
    "big": pa.array(["a", None, "b"], pa.large_string()),
    "view": pa.array(["a", None, "b"], pa.string_view()),
    "coded": pa.array(["a", None, "a"]).dictionary_encode(),
    "list": pa.array([[1], None, []], pa.list_(pa.int64())),
    "struct": pa.array([{"x": 1}, None, {"x": 2}], pa.struct([("x", pa.int64())])),
    "sum": pa.array([1, None, 2], pa.decimal128(9, 2)),
    "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
}


def stored(table: pa.Table, **options: Any) -> bytes:
    to = io.BytesIO()
    pq.write_table(table, to, **options)
    return to.getvalue()


def decoded(file: bytes, group: int = 0) -> tuple[dict[str, pa.Array], pa.Table]:
    """What the core made of a row group, and pyarrow's word."""
    with pq.ParquetFile(io.BytesIO(file), page_checksum_verification=True) as opened:
        meta = opened.metadata
        rows = tuple(meta.row_group(k).num_rows for k in range(meta.num_row_groups))
        with tempfile.NamedTemporaryFile() as kept:
            kept.write(file)
            kept.flush()
            with pa.OSFile(kept.name) as raw:
                footer = Footer(opened.schema_arrow, rows, meta, written=read_footer(raw, meta))
                found = decode_columns(raw, footer, group, list(leaves(opened.schema_arrow, "test").values()))
        columns = {} if found is None else dict(zip(found.schema.names, found.columns, strict=True))
        return columns, opened.read_row_group(group)


def same(ours: pa.Array, theirs: pa.ChunkedArray) -> None:
    ours.validate(full=not pa.types.is_string(ours.type))
    theirs = theirs.combine_chunks()
    assert ours.type == theirs.type
    assert ours.null_count == theirs.null_count
    if pa.types.is_floating(ours.type):  # NaN is NaN
        bits = pa.int32() if ours.type == pa.float32() else pa.int64()
        ours, theirs = ours.view(bits), theirs.view(bits)
    if pa.types.is_string(ours.type):  # invalid UTF-8 is nobody's business here
        ours, theirs = ours.view(pa.binary()), theirs.view(pa.binary())
    assert ours.equals(theirs)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.sampled_from([0, 1, 7, 8, 9, 63, 64, 1000, 30_000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    distinct = draw(st.sampled_from([1, 2, 3, 100, 10**6]))
    length = draw(st.sampled_from([0, 3, 40, 5000 if rows <= 1000 else 60]))
    missing = draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    runs = draw(st.sampled_from([1, 50]))

    def column(type: pa.DataType) -> pa.Array:
        pick = np.repeat(rng.integers(0, distinct, rows // runs + 1), runs)[:rows]
        null = np.repeat(rng.random(rows // runs + 1) < missing, runs)[:rows]
        if type in (pa.string(), pa.binary()):
            words: dict[int, bytes] = {}
            for k in pick.tolist():
                if k not in words:
                    words[k] = rng.bytes(int(rng.integers(0, length + 1)))
            values = [None if gone else words[k] for k, gone in zip(pick.tolist(), null.tolist(), strict=True)]
            return pa.array(values, pa.binary()).view(type)
        width = type.bit_width // 8
        raw = rng.integers(0, 256, (min(distinct, rows + 1), width), dtype=np.uint8)[pick % min(distinct, rows + 1)]
        whole = pa.Array.from_buffers(type, rows, [None, pa.py_buffer(np.ascontiguousarray(raw))])
        mask = pa.array(~null)
        return pa.compute.if_else(mask, whole, pa.nulls(rows, type))

    given_nulls = draw(st.booleans()) or missing > 0
    return pa.table(
        [column(type) for type in TYPES.values()],
        pa.schema([pa.field(name, type, nullable=given_nulls) for name, type in TYPES.items()]),
    )


@settings(max_examples=60, deadline=None)
@given(
    table=tables(),
    codec=st.sampled_from(["none", "lz4", "snappy"]),
    version=st.sampled_from(["1.0", "2.0"]),
    coded=st.booleans(),
    page=st.sampled_from([64, 5000, 1 << 20]),
    checksum=st.booleans(),
)
def test_every_way_to_store_gives_what_pyarrow_gives(
    table: pa.Table, codec: str, version: str, coded: bool, page: int, checksum: bool
) -> None:
    file = stored(
        table,
        compression=codec,
        data_page_version=version,
        use_dictionary=coded,
        data_page_size=page,
        dictionary_pagesize_limit=10_000,  # so that some chunks begin with a dictionary and go on without
        write_page_checksum=checksum,
        row_group_size=max(1, table.num_rows),
        write_statistics=True,
    )
    if not table.num_rows:
        return
    found, theirs = decoded(file)
    assert list(found) == list(TYPES)
    for name, array in found.items():
        same(array, theirs[name])


def test_a_number_beyond_its_narrow_type_is_cut_as_pyarrow_cuts_it() -> None:
    table = pa.table(
        {"x": pa.array([11, 12, 13, 14], pa.int8())}, pa.schema([pa.field("x", pa.int8(), nullable=False)])
    )
    file = stored(table, compression="none", use_dictionary=False, write_statistics=False)
    numbers = np.array([11, 12, 13, 14], np.int32).tobytes()
    assert file.count(numbers) == 1
    found, theirs = decoded(file.replace(numbers, np.array([11, 300, -129, 2**31 - 1], np.int32).tobytes()))
    same(found["x"], theirs["x"])


def test_columns_that_are_stored_otherwise_are_left_to_pyarrow(tmp_path: Path) -> None:
    table = pa.table({**FOREIGN, "plain": [1, 2, 3]})
    file = stored(table, row_group_size=3)
    found, _ = decoded(file)
    assert list(found) == ["plain"]
    (tmp_path / "all.parquet").write_bytes(file)
    source = open_source(tmp_path / "all.parquet")
    (morsel,) = source.scan([field.name for field in source.schema])
    assert morsel.rows["plain"].to_pylist() == [1, 2, 3]
    assert morsel.rows["bool"].to_pylist() == [True, None, False]
    assert morsel.rows["struct.x"].to_pylist() == [1, None, 2]


@pytest.mark.parametrize("codec", ["gzip", "zstd", "brotli"])
def test_other_codecs_are_left_to_pyarrow(codec: str) -> None:
    found, _ = decoded(stored(pa.table({"a": [1, 2, 3]}), compression=codec))
    assert not found


@pytest.mark.parametrize(
    "encoding", ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
)
def test_other_encodings_are_left_to_pyarrow(encoding: str) -> None:
    values: list[Any] = ["a", "bb", "ccc"] if "BYTE_ARRAY" in encoding else [1, 2, 3]
    found, _ = decoded(stored(pa.table({"a": values}), use_dictionary=False, column_encoding={"a": encoding}))
    assert not found


def test_several_row_groups_of_one_file() -> None:
    table = pa.table({"a": list(range(1000)), "s": [f"row {k}" for k in range(1000)]})
    file = stored(table, row_group_size=300, compression="lz4")
    for group in range(4):
        found, theirs = decoded(file, group)
        for name, array in found.items():
            same(array, theirs[name])
    assert decoded(file, 3)[0]["s"].to_pylist() == [f"row {k}" for k in range(900, 1000)]


LOG = pa.table(
    {
        "s": [None if k % 11 == 0 else f"{k % 50} and some more" for k in range(2000)],
        "d": [f"{k % 5}" for k in range(2000)],
        "n": [None if k % 13 == 0 else k % 300 for k in range(2000)],
    }
)


def chunk_of(file: bytes, column: int) -> tuple[int, int, Any]:
    chunk = pq.ParquetFile(io.BytesIO(file)).metadata.row_group(0).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return start, chunk.total_compressed_size, chunk


@pytest.mark.parametrize("codec", ["none", "lz4", "snappy"])
@pytest.mark.parametrize("coded", [False, True])
def test_a_flipped_bit_is_found_or_changes_nothing(codec: str, coded: bool) -> None:
    """With checksums a flip in a page is seen; one in a header may be one that says nothing about the values."""
    file = stored(
        LOG, compression=codec, use_dictionary=coded, write_page_checksum=True, data_page_size=2000, store_schema=False
    )
    rng = np.random.default_rng(5)
    for place, (name, width) in enumerate([("s", 0), ("d", 0), ("n", 8)]):
        start, size, chunk = chunk_of(file, place)
        number = {"UNCOMPRESSED": 0, "LZ4": 1, "SNAPPY": 2}[chunk.compression]
        truth = _native.decode_parquet_column(
            np.frombuffer(file, np.uint8, size, start), number, width, True, LOG.num_rows
        )
        assert truth is not None
        assert truth[3] == LOG[name].null_count
        seen = 0
        for bit in rng.integers(0, size * 8, 400).tolist():
            bad = np.frombuffer(file, np.uint8, size, start).copy()
            bad[bit // 8] ^= 1 << (bit % 8)
            got = _native.decode_parquet_column(bad, number, width, True, LOG.num_rows)
            if got is None:
                seen += 1
                continue
            for ours, right in zip(got[:3], truth[:3], strict=True):
                assert (ours is None) == (right is None)
                if ours is not None:
                    assert np.array_equal(ours, right)
        assert seen > 200


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    codec=st.sampled_from(["none", "lz4", "snappy"]),
    coded=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
)
def test_without_checksums_any_bytes_are_read_or_refused(
    data: st.DataObject, codec: str, coded: bool, version: str
) -> None:
    file = stored(LOG[:200], compression=codec, use_dictionary=coded, data_page_version=version)
    start, size, _ = chunk_of(file, data.draw(st.sampled_from([0, 1, 2])))
    bad = np.frombuffer(file, np.uint8, size, start).copy()
    for _ in range(data.draw(st.integers(1, 5))):
        bad[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    bad = bad[: data.draw(st.integers(0, size))] if data.draw(st.booleans()) else bad
    for number in range(3):
        for width in (0, 4, 8):
            got = _native.decode_parquet_column(bad, number, width, data.draw(st.booleans()), 200)
            if got is None:
                continue
            values, offsets, valid, nulls = got
            if width:
                assert len(values) == 200 * width
            else:
                assert offsets is not None
                assert offsets[0] == 0
                assert offsets[-1] == len(values)
                assert (np.diff(offsets) >= 0).all()
            assert (valid is None) == (nulls == 0)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 2), st.sampled_from([0, 4, 8]), st.booleans(), st.integers(0, 40))
@example(b"", 0, 0, True, 0)
@example(b"\x15\x00" * 20, 1, 8, True, 10)
def test_any_bytes_at_all(chunk: bytes, codec: int, width: int, nullable: bool, rows: int) -> None:
    got = _native.decode_parquet_column(np.frombuffer(chunk, np.uint8), codec, width, nullable, rows)
    assert got is None or not rows or chunk


def test_absurd_numbers_of_rows_are_not_allocated() -> None:
    file = stored(pa.table({"a": [7] * 1000}))
    start, size, _ = chunk_of(file, 0)
    chunk = np.frombuffer(file, np.uint8, size, start)
    for rows in (-1, 0, 999, 1001, 2**40, 2**62):
        assert _native.decode_parquet_column(chunk, 2, 8, True, rows) is None


def test_a_dictionary_of_one_long_word_many_times_is_left_to_pyarrow() -> None:
    """A file of a few kilobytes whose strings would be 4 GB: more than Arrow's offsets of 32 bits can say."""
    word = "x" * 400_000
    indices = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), pa.array([word]))
    file = stored(pa.table({"a": indices}), store_schema=False, compression="snappy")
    start, size, _ = chunk_of(file, 0)
    assert size < 100_000
    assert _native.decode_parquet_column(np.frombuffer(file, np.uint8, size, start), 2, 0, True, 10_000) is None


def forged(file: bytes, old: bytes, new: bytes, start: int = 0) -> bytes:
    assert len(old) == len(new)
    assert old in file[start:]
    at = file.index(old, start)
    return file[:at] + new + file[at + len(old) :]


def test_pages_that_contradict_their_headers_are_left_to_pyarrow() -> None:
    """Headers have no checksum: what they say must fit together."""
    rows = pa.table({"a": pa.array(range(100), pa.int64())}, pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    file = stored(rows, use_dictionary=False, compression="none", data_page_version="2.0", write_statistics=False)
    start, size, _ = chunk_of(file, 0)
    chunk = np.frombuffer(file, np.uint8, size, start)
    assert _native.decode_parquet_column(chunk, 0, 8, False, 100) is not None
    assert chunk[:2].tolist() == [0x15, 6]  # the kind: DataV2
    for kind in (0, 2, 4):  # Data, Index, Dictionary
        bad = chunk.copy()
        bad[1] = kind
        assert _native.decode_parquet_column(bad, 0, 8, False, 100) is None
    places = np.flatnonzero((chunk[:30] == 0xC8) & (chunk[1:31] == 1))  # 100 as a varint: of values, then of rows
    assert len(places) == 2
    bad = chunk.copy()
    bad[places[1]] -= 2
    assert _native.decode_parquet_column(bad, 0, 8, False, 100) is None


def test_a_footer_that_contradicts_itself_has_pyarrows_answer(tmp_path: Path) -> None:
    """The number of values of a chunk is forged: of a column that the core reads, and of one that it leaves."""
    table = pa.table({"i": pa.array(range(500), pa.int64()), "u": pa.array([k % 7 for k in range(500)], pa.uint8())})
    whole = stored(table, compression="none", use_dictionary=False, write_statistics=False)
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    values = b"\x16\xe8\x07"  # an i64 of 500: the file's rows, then each chunk's values
    first = whole.index(values, whole.index(values, footer) + 1)
    second = whole.index(values, first + 1)
    for name, at in (("i", first), ("u", second)):
        bad = forged(whole, values, b"\x16\x80\x00", at)
        (tmp_path / f"{name}.parquet").write_bytes(bad)
        assert pq.ParquetFile(tmp_path / f"{name}.parquet").metadata.row_group(0).column(name == "u").num_values != 500
        with pytest.raises(SourceError, match=rf"{name}\.parquet row group 0 cannot be read"):
            list(open_source(tmp_path / f"{name}.parquet").scan(["i", "u"]))


def test_a_damaged_page_has_pyarrows_message(tmp_path: Path) -> None:
    file = bytearray(stored(LOG, compression="lz4", use_dictionary=False, write_page_checksum=True))
    start, size, _ = chunk_of(bytes(file), 0)
    file[start + size // 2] ^= 4
    (tmp_path / "bad.parquet").write_bytes(file)
    with pytest.raises(SourceError, match=r"bad\.parquet row group 0 cannot be read: .*(CRC|checksum)"):
        list(open_source(tmp_path / "bad.parquet").scan(["s"]))


def test_ten_million_rows_and_huge_strings() -> None:
    rows = np.arange(10**7)
    found, _ = decoded(stored(pa.table({"n": rows}), compression="lz4", row_group_size=10**7, use_dictionary=False))
    assert np.array_equal(found["n"].to_numpy(), rows)
    words = pa.table({"s": ["x" * 10_000_000, "", None, "é" * 3_000_000]})
    found, theirs = decoded(stored(words, use_dictionary=False, compression="lz4"))
    same(found["s"], theirs["s"])
