"""Images of tables and records, read here as a device would: bytes at an address, pointers into themselves.

Whether the bodies answer alike over an image is native/tests/test_device_image.cpp's matter.
"""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox import _native
from ctrbox.engines.cpu.frames_and_arrow import frame_of

BASE = 0x7F0000000000  # where the image is said to lie
SLOT = np.dtype({"names": ["hash", "row"], "formats": ["<u8", "<u4"], "offsets": [0, 8], "itemsize": 16})
STR_SLOT = np.dtype([("hash", "<u8"), ("at", "<u4"), ("n", "<u4")])


class Memory:
    """An image at BASE; reads are checked against its end."""

    def __init__(self, table: _native.Table | _native.Records) -> None:
        self.bytes = table.image(BASE)
        assert self.bytes.dtype == np.uint8
        assert len(self.bytes) == table.image_bytes
        assert not self.bytes[-16:].any()

    def at(self, address: int, dtype: str | np.dtype, count: int = 1) -> np.ndarray:
        size = np.dtype(dtype).itemsize * count
        begin = address - BASE
        assert 0 <= begin <= begin + size + 16 <= len(self.bytes)
        return self.bytes[begin : begin + size].view(dtype)

    def number(self, address: int, dtype: str) -> int:
        return int(self.at(address, dtype)[0])

    def text(self, entry: int) -> bytes:
        """Of a string's entry {pointer, count}."""
        count = self.number(entry + 8, "<u4")
        return self.at(self.number(entry, "<u8"), "u1", count).tobytes() if count else b""


def records_of(batch: pa.RecordBatch, kinds: list[str], nullable: list[bool]) -> _native.Records:
    program = _native.Program(3)
    for k, kind in enumerate(kinds):
        program.emit(k, program.load(0, k, kind, nullable[k], f"column {k}"))
    program.finish()
    records = _native.Records(kinds, nullable)
    if batch.num_rows:
        program.run_records([(batch.num_rows, [(frame_of(batch), None, 0)])], records)
    return records


texts = st.text(max_size=12)
rows = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        texts,
        st.none() | st.lists(texts, max_size=4),
        st.booleans(),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(rows)
def test_records_are_found_and_read_in_their_images(given_rows: list[tuple]) -> None:
    types = [pa.int64(), pa.string(), pa.list_(pa.string()), pa.bool_(), pa.list_(pa.int64())]
    columns = [pa.array([row[k] for row in given_rows], type_) for k, type_ in enumerate(types)]
    batch = pa.record_batch(columns, [str(k) for k in range(5)])
    kinds, nullable = ["i", "s", "*s", "b", "*i"], [True, False, True, False, False]
    records = records_of(batch, kinds, nullable)
    records.add_blank()
    hashes = np.arange(1, len(given_rows) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    index, _, _ = _native.Index.build(hashes, False)
    index.point_at(records)

    handles = handles_in(Memory(index), hashes)
    memory = Memory(records)
    assert [field[2:] for field in records.layout] == [(k in ("s", "*i"), k) for k in kinds]
    assert [field[1] >= 0 for field in records.layout] == nullable
    assert max(field[0] for field in records.layout) < records.fixed_bytes
    for row, handle in zip([*given_rows, None], [*handles, records.null_row], strict=True):
        expected = (None, "", None, False, []) if row is None else row
        assert row_at(memory, BASE + 8 * handle, records.layout) == expected


def handles_in(memory: Memory, hashes: np.ndarray) -> list[int]:
    slots, mask = memory.at(BASE, "<u8", 2).tolist()
    found = {int(s["hash"]): int(s["row"]) for s in memory.at(slots, SLOT, mask + 1) if s["row"] != 0xFFFFFFFF}
    return [found[int(h)] for h in hashes]


def row_at(memory: Memory, block: int, layout: list[tuple[int, int, bool, str]]) -> tuple:
    out: list[object] = []
    for offset, valid, inside, kind in layout:
        entry = block + offset
        if valid >= 0 and not memory.number(block + valid, "u1"):
            out.append(None)
        elif inside:
            at, count = memory.at(entry, "<u4", 2).tolist()
            held = memory.at(block + at, "u1" if kind == "s" else "<i8", count)
            out.append(held.tobytes().decode() if kind == "s" else held.tolist())
        elif kind == "*s":
            first, count = memory.number(entry, "<u8"), memory.number(entry + 8, "<u4")
            out.append([memory.text(first + 16 * k).decode() for k in range(count)])
        else:
            value = memory.number(entry, "u1" if kind == "b" else "<i8")
            out.append(bool(value) if kind == "b" else value)
    return tuple(out)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=40))
def test_members_of_a_set_are_in_its_image(members: list[bytes]) -> None:
    memory = Memory(_native.StrSet(members))
    slots, bytes_ = memory.at(BASE, "<u8", 2).tolist()
    n, mask = memory.at(BASE + 16, "<u4", 2).tolist()
    held = memory.at(slots if n else BASE, STR_SLOT, mask + 1 if mask else n)
    found = [memory.at(bytes_ + int(s["at"]), "u1", int(s["n"])).tobytes() for s in held if s["hash"]]
    assert sorted(found) == sorted(set(members))


def test_only_pointers_change_with_the_address() -> None:
    words = np.arange(20, dtype=np.uint64)
    tables = {
        1: _native.IntSet([5, 6]),
        2: _native.Dictionary(words, np.arange(20), np.zeros(0), 0),
        4: _native.JsonPaths(["$.a"], ["i"]),
        5: _native.History(words, np.arange(20), np.arange(20), np.arange(20)),
    }
    for pointers, table in tables.items():
        here, there = table.image(0).view("<u8"), table.image(BASE).view("<u8")
        moved = there != here
        assert moved.sum() == pointers
        assert (there[moved] - here[moved] == BASE).all()


@pytest.mark.parametrize("table", [_native.IntSet([]), _native.StrSet([]), _native.Boundaries([])])
def test_an_empty_table_points_at_nothing(table: _native.Table) -> None:
    assert Memory(table).number(BASE, "<u8") == 0


def test_an_address_off_the_16_byte_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="a multiple of 16 bytes, not at 4104"):
        _native.IntSet([1]).image(4104)
    with pytest.raises(ValueError, match="multiple of 16"):
        _native.Records(["i"], [False]).image(8)
