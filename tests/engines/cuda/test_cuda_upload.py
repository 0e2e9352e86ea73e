"""Rows on their way to the GPU: header and arena, read back slowly by the words of native/cuda/raw_column.h, are the rows."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox import _native
from ctrbox.engines.cuda import upload
from ctrbox.engines.cuda.upload import HEADER, RAW, SOURCE, Layout, Source, slices
from ctrbox.errors import DataError, PlanError
from tests.twins.raw_values import Device, as_bytes, is_text, send_and_read

NATIVE = Path(__file__).parents[3] / "native"

# ---- hostile batches ------------------------------------------------------------------------------------------------

INTEGERS = {
    f"{u}int{w}": getattr(pa, f"{u}int{w}")() for u in ("", "u") for w in (8, 16, 32, 64) if (u, w) != ("u", 64)
}
FLAT = {
    **INTEGERS,
    "bool": pa.bool_(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "time": pa.timestamp("us"),
    "utf8": pa.utf8(),
    "large_utf8": pa.large_utf8(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
}
WORDS = [b"", b"a", "žluť".encode(), b"\xff\xfe\x00", b"\x00", b"x" * 70, b"\xe2\x82"]
REALS = [0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 2.0**-149, 2.0**120]
INDEX = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]


def pool_of(type: pa.DataType) -> list[Any]:
    if is_text(type):
        return WORDS
    if type in (pa.float32(), pa.float64()):
        return REALS
    if type == pa.bool_():
        return [True, False]
    bits = type.bit_width
    low, high = (0, 2**bits - 1) if str(type).startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return [low, high, 0, 1, 7, high // 3]


def masks(draw: Any, n: int) -> pa.Array:
    """Which are null: some, none, or all of the later ones only."""
    kind = draw(st.sampled_from(["some", "none", "late"]))
    flags = [draw(st.booleans()) if kind == "some" else kind == "late" and k > n // 2 for k in range(n)]
    return pa.array(flags, pa.bool_())


def flat_array(draw: Any, type: pa.DataType, n: int, nulls: bool = True) -> pa.Array:
    lead = draw(st.integers(0, 11))
    values: list[Any] = draw(st.lists(st.sampled_from(pool_of(type)), min_size=n + lead, max_size=n + lead))
    if nulls:
        values = [None if null.as_py() else v for v, null in zip(values, masks(draw, n + lead), strict=True)]
    if is_text(type):
        array = pa.array(values, as_bytes(type)).view(type)
    elif type == pa.timestamp("us"):
        array = pa.array(values, pa.int64()).view(type)
    else:
        array = pa.array(values, type)
    return array.slice(lead, n)


def dictionary_array(draw: Any, type: pa.DataType, n: int) -> pa.Array:
    words = flat_array(draw, type, draw(st.integers(1, 6)))
    index = INTEGERS[draw(st.sampled_from(INDEX))]
    lead = draw(st.integers(0, 9))
    null = masks(draw, n + lead).to_pylist()
    # 99 is outside the dictionary: nobody may look at what lies below a null.
    numbers = [99 if gone else draw(st.integers(0, len(words) - 1)) for gone in null]
    bits = pa.py_buffer(np.packbits(~np.array(null, bool), bitorder="little"))
    buffers = [bits, pa.py_buffer(np.array(numbers, index.to_pandas_dtype()))]
    indices = pa.Array.from_buffers(index, n + lead, buffers)
    return pa.DictionaryArray.from_arrays(indices, words, safe=False).slice(lead, n)


def list_array(draw: Any, kind: str, element: Callable[[Any, int], pa.Array], n: int) -> pa.Array:
    lead = draw(st.integers(0, 5))
    n += lead
    mask = masks(draw, n)  # null lists keep their elements
    if kind == "fixed":
        size = draw(st.integers(1, 3))
        return pa.FixedSizeListArray.from_arrays(element(draw, n * size), size, mask=mask).slice(lead)
    before = draw(st.integers(0, 9))
    lengths = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    offsets = np.cumsum([before, *lengths])
    values = element(draw, int(offsets[-1]) + draw(st.integers(0, 2)))
    if kind == "large":
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values, mask=mask).slice(lead)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=mask).slice(lead)


KINDS = [*FLAT, "dictionary", "dictionary of numbers", "list", "large", "fixed"]


def column(draw: Any, n: int) -> pa.Array:
    kind = draw(st.sampled_from(KINDS))
    if kind in FLAT:
        return flat_array(draw, FLAT[kind], n)
    if kind == "dictionary":
        return dictionary_array(draw, FLAT[draw(st.sampled_from(["utf8", "large_utf8", "binary"]))], n)
    if kind == "dictionary of numbers":
        return dictionary_array(draw, FLAT[draw(st.sampled_from(["int16", "float64", "bool"]))], n)
    type = FLAT[draw(st.sampled_from(list(FLAT)))]
    if draw(st.integers(0, 4)) == 0:
        return list_array(draw, kind, lambda d, k: dictionary_array(d, type, k), n)
    return list_array(draw, kind, lambda d, k: flat_array(d, type, k), n)


@st.composite
def batches(draw: Any, rows: int | None = None) -> pa.RecordBatch:
    n = draw(st.integers(0, 20)) if rows is None else rows
    arrays = [column(draw, n) for _ in range(draw(st.integers(1, 4)))]
    return pa.RecordBatch.from_arrays(arrays, [f"c{k}" for k in range(len(arrays))])


@st.composite
def chunks(draw: Any) -> tuple[int, list[Source], list[int]]:
    """Rows of a chunk, its sources and how many columns each has."""
    rows = draw(st.integers(0, 12))
    sources: list[Source] = []
    columns: list[int] = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["rows", "rows", "index", "absent"]))
        base = draw(st.integers(0, 9))
        if kind == "absent":
            sources.append(draw(st.sampled_from([None, (None, None, 0)])))
            columns.append(draw(st.integers(0, 3)))
            continue
        batch = draw(batches(rows + base + draw(st.integers(0, 5)) if kind == "rows" else None))
        index = None
        if kind == "index":
            some = st.integers(-1, batch.num_rows - 1)
            index = np.array(draw(st.lists(some, min_size=rows + base, max_size=rows + base + 2)), np.int32)
        sources.append((batch, index, base))
        columns.append(batch.num_columns)
    return rows, sources, columns


# ---- header and arena -----------------------------------------------------------------------------------------------


def test_the_dtypes_have_the_sizes_and_offsets_of_the_header_file(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler to ask")
    lines = [
        f'std::printf("{struct}.{name} %zu\\n", offsetof(cb::{struct}, {name}));'
        for struct, dtype in (("Header", HEADER), ("SourceRows", SOURCE), ("Raw", RAW))
        for name in dtype.names
    ]
    lines += [f'std::printf("{s} %zu\\n", sizeof(cb::{s}));' for s in ("Header", "SourceRows", "Raw")]
    storages = {
        f"k{name}": getattr(upload, re.sub("(?<=[a-z])(?=[A-Z])", "_", name).upper())
        for name in [
            *("Bool", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "F32", "F64", "Utf8", "LargeUtf8"),
            *("Dictionary", "List", "LargeList", "FixedList", "Absent"),
        ]
    }
    lines += [f'std::printf("{name} %zu\\n", size_t{{cb::{name}}});' for name in storages]
    source = tmp_path / "offsets.cpp"
    source.write_text(
        '#include <cstddef>\n#include <cstdio>\n#include "cuda/raw_column.h"\nint main() {' + "\n".join(lines) + "}"
    )
    program = tmp_path / "offsets"
    subprocess.run([compiler, "-std=c++20", f"-I{NATIVE}", "-o", program, source], check=True, timeout=120)
    printed = subprocess.run([program], check=True, capture_output=True, text=True, timeout=60).stdout
    told = {name: int(value) for name, value in (line.split() for line in printed.splitlines())}
    meant = dict(storages)
    for name, dtype in (("Header", HEADER), ("SourceRows", SOURCE), ("Raw", RAW)):
        meant[name] = dtype.itemsize
        meant |= {f"{name}.{field}": offset for field, (_, offset) in dtype.fields.items()}
    assert told == meant


def test_a_layout_is_head_then_sources_then_columns_in_order() -> None:
    layout = Layout([2, 0, 3])
    assert layout.sources == [16, 32, 48]
    assert [layout.raw(0, 0), layout.raw(0, 1), layout.raw(2, 0), layout.raw(2, 2)] == [64, 144, 224, 384]
    assert layout.header_bytes == 64 + 5 * 80
    assert Layout([]).header_bytes == 16


@settings(max_examples=120, deadline=None)
@given(chunks())
def test_rows_read_back_from_header_and_arena_are_the_rows(chunk: tuple[int, list[Source], list[int]]) -> None:
    rows, sources, columns = chunk
    send_and_read(rows, sources, columns)


@pytest.mark.parametrize(
    "straight", [None, lambda at, size: (at, at + size), lambda at, size: None if size % 2 else (at, at + size)]
)
def test_pieces_lie_apart_aligned_and_with_spare_bytes_behind(straight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "STRAIGHT_BYTES", 1)
    batches = [pa.RecordBatch.from_pydict({"c": np.zeros(size, np.uint8)}) for size in range(300)]
    one = np.array([-1], np.int32)  # with an index a whole batch travels, however few rows the chunk has
    sent = slices(Layout([1] * 300), 1, [(batch, one, 0) for batch in batches], straight=straight)
    assert {p.bytes for p in sent.pieces} == set(range(1, 300))
    ends = [0]
    for piece in sent.pieces:
        assert piece.at % 16 == 0
        assert piece.at >= ends[-1]
        ends.append(piece.at + piece.bytes + 16)
    assert ends[-1] <= sent.arena_bytes
    assert ends[len(sent.staged)] <= sent.staged_bytes


@settings(max_examples=50, deadline=None)
@given(chunks(), st.integers(0, 2**31))
def test_pieces_that_go_straight_lie_behind_the_others(chunk: Any, seed: int) -> None:
    rows, sources, columns = chunk
    asked: list[tuple[int, int]] = []

    def straight(address: int, size: int) -> tuple[int, int] | None:
        asked.append((address, size))
        drawn = len(asked) * 2654435761 + seed
        edges = (0, 0) if drawn % 3 == 1 else (drawn // 3 % 2, drawn // 7 % 3)
        return (address + edges[0], address + size - edges[1]) if drawn % 3 else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upload, "STRAIGHT_BYTES", 4)
        device = send_and_read(rows, sources, columns, straight=straight)
    sent = device.sent
    assert all(size >= 4 for _, size in asked)
    assert all(p.at + p.bytes + 16 <= sent.staged_bytes for p in sent.staged)
    assert all(p.at >= sent.staged_bytes for p in sent.straight + sent.edges)


def test_the_header_names_rows_first_and_the_rows_of_each_source() -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1, 2, 3, 4])})
    layout = Layout([1, 1, 2])
    index = np.array([9, 3, -1], np.int32)
    sent = slices(layout, 2, [(batch, None, 1), (batch, index, 1), None], first=77)
    header = sent.header(1 << 40)
    assert header[:16].view(HEADER)[0].item() == (2, 77)
    rows = header[16:64].view(SOURCE)
    assert rows["rows"].tolist() == [2, 4, 0]
    assert rows["index"][0] == rows["index"][2] == 0
    assert rows["index"][1] >= 1 << 40
    assert header[layout.raws[2] :].view(RAW)["storage"].tolist() == [upload.ABSENT] * 2
    into = np.full(layout.header_bytes, 0xEE, np.uint8)
    assert sent.header(1 << 40, into) is into
    assert (into == header).all()


def test_only_the_rows_of_the_chunk_travel() -> None:
    batch = pa.RecordBatch.from_pydict({"s": [f"{k:09d}" for k in range(1000)], "l": [[k, k, k] for k in range(1000)]})
    sent = slices(Layout([2]), 10, [(batch, None, 500)])
    assert sorted(p.bytes for p in sent.pieces) == [44, 44, 90, 240]
    whole = slices(Layout([2]), 10, [(batch, np.zeros(10, np.int32), 0)])
    assert sorted(p.bytes for p in whole.pieces) == [40, 4004, 4004, 9000, 24000]


def test_no_validity_bits_travel_where_the_chunk_has_no_null() -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1, None, *range(98)]), "l": pa.array([[None], *[[1]] * 99])})
    with_nulls, without = (slices(Layout([2]), 40, [(batch, None, base)]) for base in (0, 40))
    assert sorted(p.bytes for p in without.pieces) == [164, 320, 320]
    assert sorted(p.bytes for p in with_nulls.pieces) == [5, 5, 164, 320, 320]


def test_a_row_of_an_empty_source_reads_as_zeros() -> None:
    # Threads of missing rows may load row 0 before they look whether there is one.
    types = [
        pa.int64(),
        pa.bool_(),
        pa.utf8(),
        pa.large_utf8(),
        pa.list_(pa.utf8()),
        pa.dictionary(pa.int32(), pa.utf8()),
    ]
    batch = pa.RecordBatch.from_arrays([pa.array([], t) for t in types], [str(k) for k in range(len(types))])
    device = send_and_read(3, [(batch, np.full(3, -1, np.int32), 0)], [len(types)])
    raws = device.header[device.layout.raws[0] :].view(RAW)
    assert [device.read(int(raw["values"]), 16) for raw in raws] == [bytes(16)] * len(types)


@pytest.mark.parametrize("index", [pa.uint8(), pa.uint16()])
def test_unsigned_dictionary_indices_beyond_the_signed_range_keep_their_meaning(index: pa.DataType) -> None:
    size = min(2**index.bit_width, 40_000)
    words = pa.array([f"word{k}" for k in range(size)])
    numbers = pa.array([0, size - 1, None, size // 2, size // 2 + 1, size - 1], index)
    column = pa.DictionaryArray.from_arrays(numbers, words)
    batch = pa.RecordBatch.from_arrays([pa.concat_arrays([column, column]).slice(1)], ["d"])
    device = send_and_read(8, [(batch, None, 3)], [1])
    assert device.header[device.layout.raws[0] :].view(RAW)["index_width"][0] == index.bit_width // 4


def test_an_extension_array_travels_as_what_it_holds() -> None:
    json = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None, "[1]"]))
    batch = pa.RecordBatch.from_arrays([json], ["j"])
    layout = Layout([1])
    assert Device(layout, slices(layout, 2, [(batch, None, 1)])).columns(0) == [[None, b"[1]"]]


# ---- what is refused ------------------------------------------------------------------------------------------------

OTHERS = [
    *(pa.uint64(), pa.float16(), pa.decimal128(9, 2), pa.date32(), pa.time64("us"), pa.duration("us"), pa.null()),
    *(pa.timestamp("s"), pa.timestamp("ns"), pa.string_view(), pa.binary(4), pa.struct([("a", pa.int8())])),
    *(pa.list_(pa.list_(pa.int8())), pa.list_(pa.uint64()), pa.list_view(pa.int8()), pa.map_(pa.utf8(), pa.int8())),
    *(pa.list_(pa.struct([("a", pa.int8())])), pa.list_(pa.timestamp("ms"), 2)),
]
READ = [*FLAT.values(), *map(pa.list_, FLAT.values()), pa.timestamp("us", "Asia/Tokyo"), pa.large_list(pa.utf8())]


@pytest.mark.parametrize("type", [*OTHERS, *READ], ids=str)
@pytest.mark.parametrize("rows", [0, 3])
def test_the_engine_refuses_the_types_that_the_cpu_engine_refuses(type: pa.DataType, rows: int) -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(rows, type)], ["odd one"])
    if type in READ:
        _native.Frame.from_arrow(batch)
        send_and_read(rows, [(batch, None, 0)], [1])
        return
    with pytest.raises(
        ValueError, match=r"column '(odd one|\w+)' has Arrow format '.*', which the engine does not read"
    ):
        _native.Frame.from_arrow(batch)
    with pytest.raises(PlanError, match=r"column 'odd one' has Arrow type .*, which the engine cannot read; expected"):
        slices(Layout([1]), rows, [(batch, None, 0)])


def test_a_dictionary_of_a_refused_type_is_refused_by_the_name_of_its_column() -> None:
    column = pa.array([2**63], pa.uint64()).dictionary_encode()
    with pytest.raises(PlanError, match="column 'big' has Arrow type dictionary<values=uint64"):
        slices(Layout([1]), 1, [(pa.RecordBatch.from_arrays([column], ["big"]), None, 0)])


@pytest.mark.parametrize(
    ("rows", "index", "base", "says"),
    [
        (3, None, 2, "4 rows; expected it to contain rows 2 to 5"),
        (1, None, -1, "4 rows; expected it to contain rows -1 to 0"),
        (3, np.zeros(4, np.int32), 2, "4 indices; expected 3 of them, starting at 2"),
        (1, np.zeros(4, np.int32), -1, "4 indices; expected 1 of them, starting at -1"),
        (2, np.array([0, 4], np.int32), 0, "index outside its rows; expected -1 to 3"),
        (2, np.array([0, -2], np.int32), 0, "index outside its rows; expected -1 to 3"),
    ],
)
def test_rows_outside_a_source_are_refused(rows: int, index: np.ndarray | None, base: int, says: str) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3, 4]})
    with pytest.raises(DataError, match=says):
        slices(Layout([1]), rows, [(batch, index, base)])


def test_sources_and_columns_that_the_plan_does_not_know_are_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": [1]})
    with pytest.raises(PlanError, match="source 0 has 2 columns; expected 1, as in the plan"):
        slices(Layout([1]), 1, [(batch, None, 0)])
    with pytest.raises(PlanError, match="1 sources; expected 2, as in the plan"):
        slices(Layout([2, 2]), 1, [(batch, None, 0)])


@pytest.mark.parametrize("offsets", [[0, 9, 99], [5, 2, 1], [-4, 2, 3]])
def test_offsets_that_leave_their_buffer_are_refused_before_anything_is_read(offsets: list[int]) -> None:
    numbers = np.array([0, 1, 2], np.int32)
    buffer = pa.py_buffer(numbers)
    text = pa.Array.from_buffers(pa.utf8(), 2, [None, buffer, pa.py_buffer(b"0123456789")])
    lists = pa.Array.from_buffers(pa.list_(pa.int8()), 2, [None, buffer], children=[pa.array(range(10), pa.int8())])
    words = pa.array(["a"] * 10).dictionary_encode()
    coded = pa.Array.from_buffers(pa.list_(words.type), 2, [None, buffer], children=[words])
    batches = [pa.RecordBatch.from_arrays([array], ["c"]) for array in (text, lists, coded)]
    numbers[:] = offsets  # Arrow has looked at them already
    for batch in batches:
        with pytest.raises(
            DataError, match=r"column 'c' \(.*\) has (offsets|strings|lists) .*(; expected|, but it has only)"
        ):
            slices(Layout([1]), 2, [(batch, None, 0)])
