"""Files of joined views on a disk, byte by byte: what the writer takes and writes, and files whose checksums are true and lie."""

from __future__ import annotations

import itertools
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox import _native
from ctrbox.errors import SourceError
from tests.twins.checked_file import checksum, finish

PAGE = 4096


def records_of(kind: str, values: pa.Array) -> Any:
    frame = _native.Frame.from_arrow(pa.record_batch({"x": values}))
    program = _native.Program(8)
    program.emit(0, program.load(0, 0, kind, False, "x"))
    program.finish()
    records = _native.Records([kind], [False])
    program.run_records([(len(values), [(frame, None, 0)])], records)
    return records


def numbers(*values: int) -> Any:
    return records_of("i", pa.array(values, pa.int64()))


def hashes_of(keys: list[int]) -> np.ndarray:
    """The hashes that look-ups of these numbers search."""
    frame = _native.Frame.from_arrow(pa.record_batch({"x": pa.array(keys, pa.int64())}))
    program = _native.Program(8)
    key = program.call("hash", "i", [program.load(0, 0, "i", False, "x")], ["k"], [False], [], [], [], None, False)[0]
    program.emit(0, key)
    program.finish()
    kept, _ = program.run_frame([(len(keys), [(frame, None, 0)])], ["k"], [False], [])
    return np.array(kept.export(0)[2][0])


class Files:
    """The two files of a writer."""

    def __init__(self) -> None:
        self.runs, self.view = (tempfile.TemporaryFile(buffering=0) for _ in range(2))  # noqa: SIM115

    def writer(self, records: Any, as_of: bool = False, keep_last: bool = False, budget: int = 1 << 20) -> Any:
        return _native.SpillWriter(self.runs.fileno(), self.view.fileno(), records, as_of, keep_last, budget)

    # Opened anew: the writer reads and writes past the page cache, in whole pages.

    def octets(self, file: Any) -> bytes:
        return Path(f"/proc/self/fd/{file.fileno()}").read_bytes()

    def replaced(self, file: Any, octets: bytes) -> None:
        Path(f"/proc/self/fd/{file.fileno()}").write_bytes(octets)


@pytest.fixture
def files() -> Iterator[Files]:
    made = Files()
    yield made
    made.runs.close()
    made.view.close()


def rows(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def found(view: Any, keys: list[int], times: list[int] | None = None, kind: str = "i") -> list[Any]:
    """The values of keys in a view of one field; those of its null row for the others."""
    columns: dict[str, pa.Array] = {"x": pa.array(keys, pa.int64())}
    if times is not None:
        columns["t"] = pa.array(times, pa.timestamp("us"))
    frame = _native.Frame.from_arrow(pa.record_batch(columns))
    program = _native.Program(64)
    number = program.load(0, 0, "i", False, "x")
    key = program.call("hash", "i", [number], ["k"], [False], [], [], [], None, False)[0]
    if times is None:
        row = program.lookup(view, key, view.null_row)
    else:
        row = program.lookup_as_of(view, key, program.load(0, 1, "t", False, "t"), view.null_row)
    program.emit(0, program.gather(view, row, [0])[0])
    program.finish()
    kept, _ = program.run_frame([(len(keys), [(frame, None, 0)])], [kind], [False], [])
    return list(kept.export(0)[2][0].tolist())


def test_parts_of_a_run_fit_each_other_and_its_steps_come_in_their_order(files: Files) -> None:
    two, times = numbers(5, 6), np.array([1, 2])
    told = "expected a hash, a row and, for an as-of join, a time for each record"
    plain, as_of = files.writer(two), files.writer(two, as_of=True)
    for writer, hashes, when, which in (
        (plain, rows(1), None, rows(0)),
        (plain, rows(1, 2), None, rows(0)),
        (plain, rows(1, 2), times, rows(0, 1)),
        (as_of, rows(1, 2), None, rows(0, 1)),
        (as_of, rows(1, 2), times[:1], rows(0, 1)),
    ):
        with pytest.raises(ValueError, match=told):
            writer.add_run(two, hashes, when, which, 1)
    with pytest.raises(RuntimeError, match="the runs are not merged yet"):
        plain.finish("v", two)
    plain.add_run(two, rows(1, 2), None, rows(0, 1), 1)
    assert (plain.merge(0), plain.merge(1), plain.merge(1), plain.merge(1)) == (True, True, False, False)
    with pytest.raises(RuntimeError, match="the runs have already been merged"):
        plain.add_run(two, rows(1, 2), None, rows(0, 1), 1)
    for wrong in (_native.Records(["i"], [False]), _native.Records(["i", "i"], [False] * 2)):
        if len(wrong.layout) == 2:
            wrong.add_blank()
        with pytest.raises(ValueError, match="expected a null row with the fields of the view"):
            plain.finish("v", wrong)
    assert plain.finish("v", two).rows == 2


def test_of_rows_with_one_key_the_first_stays_and_is_told_or_the_last_counts(files: Files) -> None:
    hashes = hashes_of([7, 8, 7, 7, 8])
    for keep_last, values, duplicate in ((False, [10, 11], (0, 2)), (True, [13, 14], (-1, -1))):
        writer = files.writer(numbers(0), keep_last=keep_last)
        writer.add_run(numbers(10, 11, 12), hashes[:3], None, rows(0, 1, 2), 1)
        writer.add_run(numbers(13, 14), hashes[3:], None, rows(3, 4), 1)
        assert writer.merge(100) is False
        assert writer.duplicate == duplicate
        view = writer.finish("v", numbers(1, -1))
        assert view.rows == 2
        assert found(view, [7, 8, 9]) == [*values, -1]


def run_block(at: int, *entries: tuple[int, int, int, bytes], sizes: tuple[int, ...] = ()) -> bytes:
    body = b""
    for k, (hash_, time, row, record) in enumerate(entries):
        body += struct.pack("<QqQQ", hash_, time, row, sizes[k] if sizes else len(record)) + record
    rest = struct.pack("<II", len(body), len(entries)) + body
    return struct.pack("<Q", checksum(rest, at)) + rest


def number_record(value: int) -> bytes:
    return struct.pack("<q", value)


def test_a_run_is_written_sorted_by_its_keys(files: Files) -> None:
    writer = files.writer(numbers(0), as_of=True)
    writer.add_run(numbers(10, 11, 12), rows(9, 3, 9), np.array([5, 0, -5]), rows(4, 6, 8), 1)
    first = run_block(
        0, (3, 0, 6, number_record(11)), (9, -5, 8, number_record(12)), (9, 5, 4, number_record(10))
    )  # fmt: skip
    writer.add_run(numbers(13), rows(1), np.array([2]), rows(9), 1)
    second = run_block(len(first), (1, 2, 9, number_record(13)))
    assert files.octets(files.runs) == first + second
    assert writer.runs_bytes == len(first + second)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda block: block[:-1], "at byte 0"),
        (lambda block: block[:15], "at byte 0"),
        (lambda block: b"", "at byte 0"),
        (lambda block: bytes([block[0] ^ 1]) + block[1:], "at byte 0"),
        (lambda block: block[:-1] + b"\1", "at byte 0"),
        (lambda block: block[:8] + struct.pack("<I", 41) + block[12:], "at byte 0"),
        (lambda block: run_block(0, (5, 0, 0, number_record(7)), sizes=(9,)), "before byte 56"),
        (lambda block: run_block(0, (5, 0, 0, b""), sizes=(0,)) + bytes(8), None),
    ],
)
def test_a_run_that_was_changed_is_refused(files: Files, change: Callable[[bytes], bytes], place: str | None) -> None:
    writer = files.writer(numbers(0))
    writer.add_run(numbers(7), rows(5), None, rows(0), 1)
    block = files.octets(files.runs)
    assert block == run_block(0, (5, 0, 0, number_record(7)))
    files.replaced(files.runs, change(block))
    told = "the sorted rows .* are not as they were written" if place is None else (
        f"the sorted rows {place} are not as they were written")  # fmt: skip
    with pytest.raises(_native.DamagedFile, match=told):
        writer.merge(10)


# ---- the file of the view


def page_of(number: int, entries: list[tuple[int, int, bytes]], as_of: bool, **lies: Any) -> bytes:
    """A block of a view, at a page; ``lies``: the number of entries, bytes in use, places of records."""
    each = 24 if as_of else 16
    head = 16 + each * len(entries)
    records = b"".join(record for _, _, record in entries)
    begins = np.cumsum([head, *(len(record) for _, _, record in entries)]).tolist()
    places = lies.get("places", [(begin, len(e[2])) for begin, e in zip(begins, entries, strict=False)])
    rest = struct.pack("<II", lies.get("count", len(entries)), lies.get("used", head + len(records)))
    rest += b"".join(struct.pack("<Q", hash_) for hash_, _, _ in entries)
    rest += b"".join(struct.pack("<q", time) for _, time, _ in entries) if as_of else b""
    rest += b"".join(struct.pack("<II", *place) for place in places) + records
    rest = rest.ljust(-(-(len(rest) + 8) // PAGE) * PAGE - 8, b"\0")
    return struct.pack("<Q", checksum(rest, number)) + rest


def head_page(count: int, fences: int, as_of: bool) -> bytes:
    head = b"ctrbjoin" + struct.pack("<IIQQ", 1, as_of, count, fences)
    return (head + struct.pack("<Q", checksum(head))).ljust(PAGE, b"\0")


@pytest.mark.parametrize("as_of", [False, True])
@pytest.mark.parametrize("count", [0, 1, 5, 127, 128, 170, 171, 400])
def test_a_view_is_written_block_by_block(files: Files, count: int, as_of: bool) -> None:
    keys = list(range(1, count + 1))
    hashes, times = hashes_of(keys), np.arange(count) - 2
    writer = files.writer(numbers(0), as_of=as_of)
    half = count // 2
    for part in (slice(0, half), slice(half, count)):
        values = numbers(*(1000 + key for key in keys[part]))
        writer.add_run(values, hashes[part], times[part] if as_of else None, np.arange(count, dtype=np.uint64)[part], 2)
    assert writer.merge(10**6) is False
    view = writer.finish("v", numbers(-1))
    entries = sorted((int(h), int(t), number_record(1000 + k)) for h, t, k in zip(hashes, times, keys, strict=True))
    room = (PAGE - 16) // (8 + (24 if as_of else 16))  # entries of a block
    blocks = [entries[at : at + room] for at in range(0, count, room)]
    expected = head_page(count, len(blocks), as_of)
    expected += b"".join(page_of(1 + k, block, as_of) for k, block in enumerate(blocks))
    assert files.octets(files.view) == expected
    assert (view.rows, view.file_bytes) == (count, len(expected))
    asked = [0, *keys, count + 1, 1] if count else [0]
    expected_values = [1000 + k if 1 <= k <= count else -1 for k in asked]
    if as_of:
        assert found(view, asked, [k - 3 for k in asked]) == expected_values  # the very time
        assert found(view, asked, [k - 4 for k in asked]) == [-1] * len(asked)  # just before it
    else:
        assert found(view, asked) == expected_values
        chunks = [asked[at : at + 64] for at in range(0, len(asked), 64)]
        assert view.counts[0] == sum(len(set(chunk)) for chunk in chunks)
        assert found(view, asked) == expected_values


def test_a_record_larger_than_a_page_has_a_block_of_its_own(files: Files) -> None:
    words = ["a" * 5000, "b", "c" * 9000]
    hashes = hashes_of([1, 2, 3])
    writer = files.writer(records_of("s", pa.array(["none"])))
    writer.add_run(records_of("s", pa.array(words)), hashes, None, rows(0, 1, 2), 1)
    assert writer.merge(10) is False
    view = writer.finish("v", records_of("s", pa.array(["none"])))
    frame = _native.Frame.from_arrow(pa.record_batch({"x": pa.array([3, 1, 4, 2], pa.int64())}))
    program = _native.Program(64)
    key = program.call("hash", "i", [program.load(0, 0, "i", False, "x")], ["k"], [False], [], [], [], None, False)[0]
    program.emit(0, program.gather(view, program.lookup(view, key, view.null_row), [0])[0])
    program.finish()
    for _ in range(2):  # from the disk, then from memory
        kept, _ = program.run_frame([(4, [(frame, None, 0)])], ["s"], [False], [])
        offsets, octets = kept.export(0)[2]
        text = octets.tobytes().decode()
        assert [text[a:b] for a, b in itertools.pairwise(offsets)] == [words[2], words[0], "none", "b"]


BESIDE = "v: its file is damaged: page 1 has a record outside of its block"
CHANGED = "v: its file is damaged: page 1 is not as it was written"


@pytest.mark.parametrize("as_of", [False, True])
@pytest.mark.parametrize(
    ("lies", "sentence"),
    [
        ({}, ""),
        ({"places": [(0, 8)]}, ""),  # any bytes of the block
        ({"places": [(-8, 8)]}, ""),
        ({"places": [(-7, 8)]}, BESIDE),
        ({"places": [(1, 1)]}, BESIDE),
        ({"places": [(0, 0)]}, BESIDE),
        ({"places": [(-7, 7)]}, "v: its file is damaged: a record ends before its values do"),
        ({"used": PAGE + 1}, CHANGED),
        ({"used": PAGE}, ""),
        ({"used": 39}, CHANGED),
        ({"count": 200}, CHANGED),
    ],
)
def test_a_block_that_lies_is_refused(files: Files, as_of: bool, lies: dict[str, Any], sentence: str) -> None:
    (hash_,) = hashes_of([7]).tolist()
    writer = files.writer(numbers(0), as_of=as_of)
    writer.add_run(numbers(70), rows(hash_), np.array([5]) if as_of else None, rows(0), 1)
    writer.merge(10)
    view = writer.finish("v", numbers(-1))
    used = 16 + (24 if as_of else 16) + 8
    if "places" in lies:  # from the end of what is in use, or past it
        (begin, size) = lies["places"][0]
        lies = {"places": [(used + begin if begin else used - 8, size)]}
    if lies.get("used") == 39:
        lies = {"used": used - 8 - 1}
    written = files.octets(files.view)
    assert written == head_page(1, 1, as_of) + page_of(1, [(hash_, 5, number_record(70))], as_of)
    files.replaced(files.view, written[:PAGE] + page_of(1, [(hash_, 5, number_record(70))], as_of, **lies))
    if sentence:
        with pytest.raises(SourceError) as told:
            found(view, [7], [9] if as_of else None)
        assert str(told.value) == sentence
    else:
        assert found(view, [7], [9] if as_of else None) == [70]


def test_a_file_that_ends_early_is_refused(files: Files) -> None:
    writer = files.writer(numbers(0))
    writer.add_run(numbers(70), hashes_of([7]), None, rows(0), 1)
    writer.merge(10)
    view = writer.finish("v", numbers(-1))
    files.view.truncate(PAGE)
    with pytest.raises(SourceError, match="v: its file"):
        found(view, [7])


def test_look_ups_and_their_rows_belong_together(files: Files) -> None:
    writer, other = files.writer(numbers(0)), Files()
    views = []
    for made, as_of in ((writer, False), (other.writer(numbers(0), as_of=True), True)):
        made.add_run(numbers(70), rows(5), np.array([5]) if as_of else None, rows(0), 1)
        made.merge(10)
        views.append(made.finish("v", numbers(-1)))
    plain, timed = views
    program = _native.Program(8)
    number, time = program.load(0, 0, "i", False, "x"), program.load(0, 1, "t", False, "t")
    key = program.call("hash", "i", [number], ["k"], [False], [], [], [], None, False)[0]
    takes, both = "an as-of look-up takes a key and a time, any other a key", "an as-of look-up takes a key and a time"
    for call, sentence in (
        (lambda: program.lookup(plain, number, plain.null_row), "a look-up takes a key"),
        (lambda: program.lookup(plain, key, plain.null_row + 1), "missing keys get the null row of the view"),
        (lambda: program.lookup(timed, key, timed.null_row), takes),
        (lambda: program.lookup_as_of(plain, key, time, plain.null_row), takes),
        (lambda: program.lookup_as_of(timed, number, time, timed.null_row), both),
        (lambda: program.lookup_as_of(timed, key, number, timed.null_row), both),
        (lambda: program.gather(plain, number, [0]), "the row of a view on disk must be looked up in the same program"),
    ):
        with pytest.raises(ValueError) as told:
            call()
        assert str(told.value) == sentence
    row = program.lookup(plain, key, plain.null_row)
    with pytest.raises(ValueError, match="must be looked up in the same program"):
        program.gather(timed, row, [0])
    with pytest.raises(ValueError, match="the row of a view on disk is an address, which ends with its chunk"):
        program.emit(0, row)
    program.gather(plain, row, [0])
    program.emit(0, key)
    other.runs.close()
    other.view.close()


def test_an_index_beyond_half_of_the_budget_is_told_before_all_is_written(files: Files) -> None:
    """A fence of 12 bytes for each page, and two more; 64 KiB count as the least budget."""
    long = "x" * 65_536
    one = files.writer(records_of("s", pa.array([""])), budget=0)
    one.add_run(records_of("s", pa.array([long])), rows(1), None, rows(0), 1)
    record = one.runs_bytes - 48
    for budget, most in ((0, 32_768), (65_536, 32_768), (65_600, 32_800)):
        enough = next(n for n in range(1, 1000) if (n * (record + 16) // PAGE + 2) * 12 > most)
        values, all_rows = pa.array([long] * enough), np.arange(enough, dtype=np.uint64)
        files.replaced(files.runs, b"")
        writer = files.writer(records_of("s", pa.array([""])), budget=budget)
        records = records_of("s", values)
        with pytest.raises(_native.IndexTooLarge) as told:
            writer.add_run(records, all_rows, None, all_rows, 1)
        assert int(str(told.value)) == 2 * 12 * (enough * (record + 16) // PAGE + 2)
        files.replaced(files.runs, b"")
        fewer = files.writer(records_of("s", pa.array([""])), budget=budget)
        fewer.add_run(records_of("s", values[1:]), all_rows[1:], None, all_rows[1:], 1)


# ---- what was read last


class Recent:
    """A plain twin of native/core/join/recently_read.h: shards of a young and an old generation, each with room and slots."""

    def __init__(self, size: int, typical: int) -> None:
        shards = min(max(size >> 16, 1), 64)
        shards = 1 << shards.bit_length() - 1
        each = size // shards // 2
        least = max(8, each // (typical + 20))
        self.slots = 1 << (least - 1).bit_length()
        self.room = (each - 4 * self.slots) // 8 * 8
        self.shards: list[list[dict[int, int]]] = []  # of each generation the sizes by their ids
        if each >= 4 * self.slots + 256:
            self.shards = [[{}, {}] for _ in range(shards)]
        self.bytes = 2 * each * len(self.shards)

    def shard(self, id_: int) -> list[dict[int, int]]:
        return self.shards[finish(id_) >> 32 & len(self.shards) - 1]

    def fits(self, young: dict[int, int], size: int) -> bool:
        used = 0
        for one in young.values():
            used = min(-(-(used + 16 + one) // 8) * 8, self.room)
        return used + 16 + size <= self.room and 4 * (len(young) + 1) <= 3 * self.slots

    def get(self, id_: int) -> bool:
        if not self.shards:
            return False
        young, old = self.shard(id_)
        if id_ not in young and id_ in old and self.fits(young, old[id_]):
            young[id_] = old[id_]
        return id_ in young or id_ in old

    def put(self, id_: int, size: int) -> None:
        if not self.shards or size > self.room // 4 or id_ in self.shard(id_)[0]:
            return
        shard = self.shard(id_)
        if not self.fits(shard[0], size):
            shard[:] = [{}, shard[0]]
        shard[0][id_] = size


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("budget", [0, 500, 900, 1300, 2000, 6000, 20_000, 131_000, 300_000])
def test_what_was_read_last_stays_in_memory_within_the_budget(files: Files, budget: int, texts: bool) -> None:
    random = np.random.default_rng(budget)
    keys = list(range(1, 301))
    hashes = hashes_of(keys)
    lengths = random.integers(0, 60, len(keys)) ** 2 // 8 if texts else np.zeros(len(keys), np.int64)
    values = records_of("s", pa.array(["x" * n for n in lengths.tolist()])) if texts else numbers(*keys)
    null_row = records_of("s", pa.array([""])) if texts else numbers(-1)
    writer = files.writer(values, budget=budget)
    writer.add_run(values, hashes, None, np.arange(len(keys), dtype=np.uint64), 1)
    sizes: dict[int, int] = {}
    octets, at = files.octets(files.runs), 0
    while at < len(octets):
        end = at + 16 + struct.unpack_from("<I", octets, at + 8)[0]
        at += 16
        while at < end:
            hash_, size = struct.unpack_from("<Q16xQ", octets, at)
            sizes[hash_] = size
            at += 32 + size
    writer.merge(10**6)
    view = writer.finish("v", null_row)
    frame = _native.Frame.from_arrow(pa.record_batch({"x": pa.array(range(400), pa.int64())}))
    program = _native.Program(1)  # one key after the other
    key = program.call("hash", "i", [program.load(0, 0, "i", False, "x")], ["k"], [False], [], [], [], None, False)[0]
    program.gather(view, program.lookup(view, key, view.null_row), [0])
    program.emit(0, key)
    program.finish()
    blocks = view.file_bytes // PAGE - 1
    index = 12 * blocks + 4 + 256  # fences of the blocks and of the end, and the null row
    cache = Recent(budget - min(budget, index), sum(sizes.values()) // len(sizes))
    assert view.memory_bytes == index + cache.bytes
    asked = (random.zipf(1.2, 700) % 320).astype(np.int32)
    every = hashes_of(list(range(320)))
    least = min(sizes)
    cached, read = 0, 0
    for id_ in every[asked].tolist():
        if cache.get(id_):
            cached += 1
        elif id_ >= least:  # else it lies before the first block
            read += 1
            cache.put(id_, sizes.get(id_, 0))
    program.run_frame([(len(asked), [(frame, asked, 0)])], ["k"], [False], [frame])
    assert view.counts == (len(asked), cached, read)
