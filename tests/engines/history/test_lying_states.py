"""Saved states of past events whose checksums are true and whose content is not, and shapes and rows that no plan makes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrbox import _native
from tests.twins.checked_file import finish, sealed

VALUE, TEXT, TOTAL, FLOAT_TOTAL, DECAYED, WIDE_TOTAL = range(1, 7)
LOW = -(2**63)
SPAN = 2**60  # microseconds, the longest


def shard_of(key: int) -> int:
    return finish(key) >> 60


def of_shard(shard: int, count: int) -> list[int]:
    """The first keys of a shard."""
    found: list[int] = []
    key = 0
    while len(found) < count:
        if shard_of(key) == shard:
            found.append(key)
        key += 1
    return found


FIRST, SECOND = of_shard(3, 2)
Events = list[tuple[int, ...]]  # a time, then the words


@dataclass(frozen=True)
class Past:
    """A saved state: a total of two floats and a text of each event, and three events of two keys."""

    magic: bytes = b"CTRBPAST"
    version: int = 3
    words: tuple[tuple[int, float], ...] = ((FLOAT_TOTAL, 0.0), (TEXT, 0.0))
    counted: int | None = None  # words that the head names
    spans: tuple[int, int, int, int, int, int] = (5, 7, 11, 13, 17, 1)  # gap, lateness, back, within, last, keeps last
    reached: tuple[int, int] = (1, 90)
    texts: tuple[bytes, ...] = (b"", b"xyz")
    lengths: dict[int, int] = field(default_factory=dict)  # of a text, where it is not the true one
    text_count: int | None = None
    shard: tuple[tuple[int, Events], ...] = ((FIRST, [(-4, 1, 2, 1), (-4, 3, 4, 0)]), (SECOND, [(60, 5, 6, 0)]))
    facts: tuple[int, int] = (60, 1024)  # of that shard: its newest time, and keys after the last sweep
    key_count: int | None = None
    event_count: int | None = None  # of the first key
    end: bytes = b"CTRBPEND"
    events: int = 3
    behind: bytes = b""

    def octets(self) -> bytes:
        head = self.magic + struct.pack("<II", self.version, len(self.words) if self.counted is None else self.counted)
        head += b"".join(struct.pack("<Id", *word) for word in self.words)
        head += struct.pack("<4qQI", *self.spans) + struct.pack("<Iq", *self.reached)
        texts = struct.pack("<Q", len(self.texts) if self.text_count is None else self.text_count)
        for k, text in enumerate(self.texts):
            texts += struct.pack("<I", self.lengths.get(k, len(text))) + text
        blocks = [head, texts]
        for number in range(16):
            keys = self.shard if number == 3 else ()
            newest, swept = self.facts if number == 3 else (LOW, 1024)
            count = len(keys) if self.key_count is None or number != 3 else self.key_count
            block = struct.pack("<qQQ", newest, swept, count)
            for k, (key, events) in enumerate(keys):
                block += struct.pack("<QQ", key, len(events) if k or self.event_count is None else self.event_count)
                block += b"".join(struct.pack("<q3Q", *event) for event in events)
            blocks.append(block)
        return sealed([*blocks, self.end + struct.pack("<Q", self.events)]) + self.behind


def empty(past: Past) -> Any:
    gap, lateness, back, within, last, keeps_last = past.spans
    return _native.HistoryState(list(past.words), gap, lateness, within, last, bool(keeps_last), back)


GOOD = Past()
EVENTS = "shard 3 has events out of order"
FORMAT = "of the format, but this version of CTRBox reads version 3"


@pytest.mark.parametrize(
    ("past", "sentence"),
    [
        (replace(GOOD, magic=b"CTRBPASS"), "it is not a saved state of past events: it does not start with CTRBPAST"),
        (replace(GOOD, version=2), f"it has version 2 {FORMAT}"),
        (replace(GOOD, version=4), f"it has version 4 {FORMAT}"),
        (replace(GOOD, counted=257), "its head names 257 words"),
        (replace(GOOD, text_count=200), "it claims more texts than it can hold"),
        (replace(GOOD, lengths={0: 10**6}), "a text is longer than the file"),
        (replace(GOOD, texts=(b"a", b"b", b"a")), "it holds a text twice"),
        (replace(GOOD, texts=(b"a",)), "shard 3 refers to a text that does not exist"),
        (replace(GOOD, key_count=300), "shard 3 claims more keys than the file can hold"),
        (replace(GOOD, event_count=300), "shard 3 claims more events than the file can hold"),
        (replace(GOOD, shard=((FIRST, []), (FIRST, []))), "shard 3 has a wrong or repeated key"),
        (replace(GOOD, shard=((of_shard(4, 1)[0], []),)), "shard 3 has a wrong or repeated key"),
        (replace(GOOD, shard=((FIRST, [(5, 0, 0, 0), (4, 0, 0, 0)]),)), EVENTS),
        (replace(GOOD, shard=((FIRST, [(61, 0, 0, 0)]),)), EVENTS),
        (replace(GOOD, facts=(60, 2**40 + 1)), "shard 3 contradicts itself"),
        (replace(GOOD, end=b"CTRBPENE"), "its end mark is wrong"),
        (replace(GOOD, events=2), "its end mark is wrong"),
        (replace(GOOD, behind=b"x"), "its end mark is wrong"),
    ],
)
def test_a_state_that_lies_is_refused(past: Past, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(past.octets())
    with pytest.raises(_native.DamagedFile) as told:
        empty(GOOD).loaded(str(tmp_path / "s"))
    assert str(told.value).endswith(sentence)


@pytest.mark.parametrize(
    "past",
    [
        GOOD,
        replace(GOOD, facts=(60, 2**40)),
        replace(GOOD, facts=(61, 5000)),
        replace(GOOD, reached=(0, 0)),
        replace(GOOD, shard=((FIRST, []),), events=0),
        replace(GOOD, texts=(b"only",), shard=((FIRST, [(LOW, 0, 0, 0)]),), events=1),
        replace(GOOD, texts=(), shard=(), events=0),
    ],
)
def test_a_state_is_written_as_it_was_read(past: Past, tmp_path: Path) -> None:
    path, again = tmp_path / "s", tmp_path / "again"
    path.write_bytes(past.octets())
    state = empty(GOOD).loaded(str(path))
    assert (state.keys, state.events) == (len(past.shard), past.events)
    assert state.newest == (past.reached[1] if past.reached[0] else None)
    state.save(str(again))
    assert again.read_bytes() == path.read_bytes()
    state.append(str(again))
    for begin in (0, len(path.read_bytes())):
        part, end = empty(GOOD).loaded_at(str(again), begin)
        assert (part.events, end) == (past.events, begin + len(path.read_bytes()))
    with pytest.raises(_native.DamagedFile, match="its end mark is wrong"):
        empty(GOOD).loaded(str(again))


@pytest.mark.parametrize("k", range(6))
def test_a_state_of_another_shape_is_refused(k: int, tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(GOOD.octets())
    spans = list(GOOD.spans)
    spans[k] = 0 if k == 5 else spans[k] + 1
    for other in (replace(GOOD, spans=tuple(spans)), replace(GOOD, words=((VALUE, 0.0), (TEXT, 0.0)))):
        with pytest.raises(ValueError, match="it holds the past of other features: its shape differs"):
            empty(other).loaded(str(tmp_path / "s"))


def test_a_file_that_is_too_short_for_a_state_is_refused(tmp_path: Path) -> None:
    for size, sentence in ((7, "it is not a saved state of past events: it is too short"), (8, "before its end mark")):
        (tmp_path / "s").write_bytes(GOOD.octets()[:size])
        with pytest.raises(_native.DamagedFile, match=sentence):
            empty(GOOD).loaded(str(tmp_path / "s"))
    with pytest.raises(_native.DamagedFile, match="it ends at byte 8, before its part at byte 9"):
        empty(GOOD).loaded_at(str(tmp_path / "s"), 9)


# ---- shapes


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        *(({name: value}, fits) for name in ("gap", "lateness", "within", "back") for value, fits in (
            (0, True), (SPAN, True), (-1, False), (SPAN + 1, False))),
        ({"last": 2**30}, True),
        ({"last": 2**30 + 1}, False),
        ({"words": [(VALUE, 0.0)] * 256}, True),
        ({"words": [(VALUE, 0.0)] * 257}, False),
        *(({"words": [(kind, 0.0)]}, fits) for kind, fits in (
            (0, False), (1, True), (2, True), (3, True), (4, True), (5, False), (6, True), (7, False))),
        *(({"words": [(kind, 1.0)]}, kind == DECAYED) for kind in range(1, 7)),
        *(({"words": [(DECAYED, life)]}, fits) for life, fits in ((0.99, False), (1e18, True), (1.1e18, False))),
    ],
)  # fmt: skip
def test_a_shape_has_its_ranges(change: dict[str, Any], fits: bool) -> None:
    shape = {"words": [], "gap": 0, "lateness": 0, "within": 0, "last": 0, "keeps_last": False, "back": 0, **change}
    if fits:
        assert _native.HistoryState(**shape).events == 0
    else:
        with pytest.raises(ValueError, match="the shape of the past events is out of range"):
            _native.HistoryState(**shape)


def test_a_budget_has_a_byte_for_each_shard(tmp_path: Path) -> None:
    state = _native.HistoryState([], 0, 0, 0, 0, False)
    with pytest.raises(ValueError, match="the budget of past events is out of range"):
        state.spill_to(str(tmp_path), 15)
    state.spill_to(str(tmp_path), 16)


# ---- rows


ONE = np.ones(2, np.uint8)
KEYS, TIMES, VALUES = np.array([1, 2], np.uint64), np.array([1, 2]), np.array([5, 6], np.uint64)


def words(*offsets: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(offsets), np.frombuffer(b"abc", np.uint8)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, ""),
        ({"time": TIMES[:1]}, "time must have one value for each row"),
        ({"valid": ONE[:1]}, "valid must have one value for each row"),
        ({"asks": ONE[:1]}, "asks must have one value for each row"),
        ({"feeds": np.ones(3, np.uint8)}, "feeds must have one value for each row"),
        ({"columns": [VALUES]}, "expected one column for each word"),
        ({"columns": [VALUES, words(0, 1, 3), VALUES]}, "expected one column for each word"),
        ({"columns": [VALUES[:1], words(0, 1, 3)]}, "a column must have one value for each row"),
        ({"columns": [None, words(0, 1, 3)]}, "a column must be given"),
        *(
            ({"columns": [VALUES, words(*offsets)]}, "offsets of a text column must ascend and lie inside its bytes")
            for offsets in ((0, 1), (0, 1, 2, 3), (-1, 1, 2), (0, 2, 1), (0, 1, 4))
        ),
        ({"columns": [VALUES, words(3, 3, 3)]}, ""),
    ],
)
def test_rows_have_a_value_of_everything(change: dict[str, Any], sentence: str) -> None:
    rows = {"key": KEYS, "time": TIMES, "valid": None, "asks": None, "feeds": ONE}
    rows |= {"columns": [VALUES, words(0, 1, 3)], **change}
    state = _native.HistoryState([(VALUE, 0.0), (TEXT, 0.0)], 0, 0, 0, 0, False)
    if sentence:
        with pytest.raises(ValueError) as told:
            state.lists(**rows, threads=1)
        assert str(told.value) == sentence
    else:
        state.lists(**rows, threads=1)
    assert state.events == (0 if sentence else 2)


def test_what_is_read_fits_the_words() -> None:
    def refused(read: Callable[[], object], sentence: str) -> None:
        with pytest.raises(ValueError) as told:
            read()
        assert str(told.value) == sentence

    rows: Any = (KEYS, TIMES, None, None, ONE)
    for kind in (TOTAL, FLOAT_TOTAL, WIDE_TOTAL):
        state = _native.HistoryState([(kind, 0.0)], 0, 0, 0, 0, False)
        refused(lambda s=state: s.lists(*rows, [VALUES], 1), "only values can be listed")
    limited = "expected one value and a limit of the number of events"
    for shape, last in (([], 1), ([(VALUE, 0.0)] * 2, 1), ([(TOTAL, 0.0)], 1), ([(VALUE, 0.0)], 0)):
        state = _native.HistoryState(shape, 0, 0, 0, last, False)
        refused(lambda s=state, w=shape: s.distinct(*rows, [VALUES] * len(w), 1), limited)
    kinds = [(TOTAL, 0.0), (FLOAT_TOTAL, 0.0), (DECAYED, 1.0), (WIDE_TOTAL, 0.0)]
    state = _native.HistoryState(kinds, 0, 0, 0, 0, False)
    good = {1: 0, 2: 1, 3: 2, 5: 3}  # kinds of counters and their words
    for kind in range(7):
        for word in range(5):
            asked = [(kind, word, 0)]
            read = lambda a=asked: state.counters(*rows, [VALUES] * 4, a, 1)
            if not 1 <= kind <= 5:
                refused(read, "there is no counter with this number")
            elif kind == 4 or good[kind] == word:
                assert len(read()) == 1
            elif word == 4:
                refused(read, "a counter reads a word that does not exist")
            else:
                refused(read, "a counter reads a word of another kind")
    for within, fits in ((-1, False), (0, True), (SPAN, True), (SPAN + 1, False)):
        if fits:
            state.counters(*rows, [VALUES] * 4, [(4, 0, within)], 1)
        else:
            refused(
                lambda w=within: state.counters(*rows, [VALUES] * 4, [(4, 0, w)], 1),
                "there is no counter with this number",
            )


def test_the_first_row_that_comes_too_late_is_told() -> None:
    def told(times: list[int], valid: list[int] | None = None) -> tuple[int, int | None]:
        state = _native.HistoryState([], 0, 3, 0, 0, False)
        flags = None if valid is None else np.array(valid, np.uint8)
        return state.late(np.array(times, np.int64), flags), state.newest

    assert told([]) == (-1, None)
    assert told([5, 2, 7, 4]) == (-1, 7)  # as late as may be
    assert told([5, 2, 7, 3, 9]) == (3, 7)  # what comes behind is not reached
    assert told([-5, -9]) == (1, -5)
    assert told([LOW, LOW + 1, LOW]) == (-1, LOW + 1)
    assert told([9, 1, 8], [0, 1, 1]) == (-1, 8)
    assert told([9, 1, 8], [1, 0, 1]) == (-1, 9)
    assert told([9, 1, 8], [1, 1, 0]) == (1, 9)
    assert told([9, 1], [0, 0]) == (-1, None)


# ---- what is forgotten


class Twin:
    """Times of the events of keys of one shard, forgotten as native/core/history/state_shard.cpp says."""

    def __init__(self, gap: int, lateness: int, within: int, last: int, keeps_last: bool, back: int) -> None:
        self.gap, self.within, self.last, self.keeps_last = gap, within, last, keeps_last
        self.late = lateness + back
        self.keys: dict[int, list[int]] = {}
        self.newest, self.swept = LOW, 1024

    def feed(self, key: int, time: int) -> None:
        self.newest = max(self.newest, time)
        earliest = self.newest - self.late
        if key not in self.keys:
            if len(self.keys) >= 2 * self.swept:
                if self.within and not self.keeps_last:
                    kept = {k: times for k, times in self.keys.items() if times[-1] >= earliest - self.within}
                    self.keys = kept
                self.swept = max(1024, len(self.keys))
            self.keys[key] = []
        times = self.keys[key]
        while len(times) > 1:
            enough = self.last and len(times) > self.last and times[self.last] < earliest - self.gap
            aged = self.within and times[1] < earliest - self.within
            if not enough and not aged:
                break
            times.pop(0)
        times.append(time)
        times.sort()


@pytest.mark.parametrize(
    ("gap", "lateness", "within", "last", "keeps_last", "back"),
    [
        (0, 0, 100, 0, False, 0),
        (0, 7, 100, 0, False, 0),
        (3, 0, 100, 0, False, 9),
        (0, 0, 100, 0, True, 0),
        (5, 11, 0, 2, False, 3),
        (5, 0, 60, 1, False, 0),
        (0, 0, 0, 0, False, 0),
    ],
)
def test_events_and_keys_are_forgotten_as_the_twin_forgets_them(
    gap: int, lateness: int, within: int, last: int, keeps_last: bool, back: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(gap + last)
    one_shard = SHARD
    new = np.array(one_shard, np.uint64)[:2600]
    keys = np.concatenate([new[:40].repeat(5), new, new[random.integers(0, 60, 300)]])
    times = np.sort(random.integers(0, 700, len(keys)))
    twin = Twin(gap, lateness, within, last, keeps_last, back)
    state = _native.HistoryState([(VALUE, 0.0)], gap, lateness, within, last, keeps_last, back)
    for begin in range(0, len(keys), 310):
        part = slice(begin, begin + 310)
        for key, time in zip(keys[part].tolist(), times[part].tolist(), strict=True):
            twin.feed(key, time)
        count = len(keys[part])
        nothing, all_ = np.zeros(count, np.uint8), np.ones(count, np.uint8)
        state.lists(keys[part], times[part], None, nothing, all_, [keys[part]], 1)
        assert (state.keys, state.events) == (len(twin.keys), sum(map(len, twin.keys.values())))
    state.save(str(tmp_path / "s"))
    octets = (tmp_path / "s").read_bytes()
    saved = b"".join(
        struct.pack("<QQ", key, len(held)) + b"".join(struct.pack("<qQ", time, key) for time in held)
        for key, held in twin.keys.items()
    )
    assert struct.pack("<qQQ", twin.newest, twin.swept, len(twin.keys)) + saved in octets


SHARD = of_shard(9, 2600)
