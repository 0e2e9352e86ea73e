"""Turns history columns into native states, and rows into columns.

Each history has a state of its own. Counters with the same key, time, condition, gap and lateness share one, in which an event
has one running total for each different value that is summed. ``_native.HistoryState`` does the work;
native/core/history/state.h says what it promises.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox import _native
from ctrbox.columns.kind import arrow_type
from ctrbox.engines.history.columns_read import Column, Resolved
from ctrbox.errors import DataError, SourceError, WriteError

VALUE, TEXT, TOTAL, FLOAT_TOTAL, DECAYED_WORD, WIDE_TOTAL = 1, 2, 3, 4, 5, 6  # PastWordKind
COUNT, SUM, DECAYED, SINCE, WIDE_SUM = 1, 2, 3, 4, 5  # CounterKind
EXACT = 1 << 53  # whole numbers up to this one are floats without rounding
READ_BACK = 60_000_000  # microseconds by which a request may be older than the oldest row that may still come

TOO_LARGE = "the sum of the values of one key does not fit into a float64"

Given = tuple[Any, ...]  # key, time, valid, asks, feeds and values, as a native state takes them


@dataclass(frozen=True)
class Rows:
    """The columns of some rows that a state reads. ``where``: returns the name of one of these rows, for an error."""

    count: int
    columns: dict[int, Column]
    passed: np.ndarray | None  # by the filters before the step; None: all
    asks: np.ndarray | None  # which rows want an answer; None: all
    threads: int
    where: Callable[[int], str]
    events: np.ndarray | None = None  # which rows can be events; None: all


class State:
    """One native state and the features that are read from it. ``folder``: for events that need more than the budget."""

    folder = ""

    def __init__(self, features: Sequence[Resolved], native: Any) -> None:
        self.features = features
        self.first = features[0]
        self.native = native
        self.budget = min(f.feature.past.budget for f in features)
        folders = [f.feature.past.spill for f in features if f.feature.past.spill is not None]
        if folders:
            self.folder = folders[0] or tempfile.gettempdir()
            try:
                native.spill_to(self.folder, self.budget)
            except OSError as error:
                raise WriteError(
                    f"cannot make a file in {self.folder} for the past events of {self.first.name!r}: {error.strerror}; name "
                    "a folder on a local disk that can be written: spill='/a/folder'"
                ) from error
        self._newest_at: Callable[[], str] = str  # returns the name of the row with the newest time, for errors

    @property
    def lateness(self) -> int:
        return self.first.feature.past.lateness

    def given(self, rows: Rows) -> Given:
        """Return rows as the native state takes them, and feed nothing; raise a DataError for a value that it cannot hold."""
        raise NotImplementedError

    def passed(self, given: Given, threads: int) -> dict[str, pa.Array]:
        """Read and feed rows that `given` returned; return the columns of the rows that need an answer.

        A sum that no float64 holds is infinite or NaN there, and not an error, because the rows have been fed.
        """
        raise NotImplementedError

    def columns(self, rows: Rows) -> dict[str, pa.Array]:
        """Feed rows and return the columns of those that ask; a row out of order, or over the budget, is a DataError."""
        given = self.given(rows)
        self.check_order(rows)
        found = self.passed(given, rows.threads)
        check_finite(found)
        self.check_budget()
        return found

    def seen(self, rows: Rows) -> dict[str, pa.Array]:
        """Return the columns of rows whose key and time alone are known, and change nothing."""
        found = self.read(rows)
        check_finite(found)
        return found

    def read(self, rows: Rows) -> dict[str, pa.Array]:
        """Do the same as `seen`, but a sum that no float64 holds is infinite or NaN."""
        self._check_age(rows)
        key, time = rows.columns[self.first.key.id], rows.columns[self.first.time.id]
        valid = _both(_both(key.valid, time.valid), rows.passed)
        (times,) = time.arrays
        nothing = [
            (np.zeros(rows.count + 1, np.int64), np.zeros(0, np.uint8)) if is_text else np.zeros(rows.count, np.uint64)
            for is_text in self._texts()
        ]
        feeds = np.zeros(rows.count, np.uint8)
        return self.passed((key.arrays[0], times, _bytes(valid), None, feeds, nothing), rows.threads)

    def _texts(self) -> list[bool]:
        """Return whether the values of each word of the state are texts."""
        raise NotImplementedError

    def too_old(self, rows: Rows) -> np.ndarray:
        """Return which rows are so old that the state may have dropped events that they should see."""
        key, time = rows.columns[self.first.key.id], rows.columns[self.first.time.id]
        valid, newest = _both(_both(key.valid, time.valid), rows.passed), self.native.newest
        (times,) = time.arrays
        if newest is None:
            return np.zeros(rows.count, bool)
        old: np.ndarray = times < newest - self.lateness - READ_BACK
        return old if valid is None else old & valid

    def _check_age(self, rows: Rows) -> None:
        old, newest = self.too_old(rows), self.native.newest
        if old.any():
            row = int(old.argmax())
            (times,) = rows.columns[self.first.time.id].arrays
            raise DataError(
                f"{self.first.name!r}: the time {_shown(times[row])} at {rows.where(row)} is more than "
                f"{(self.lateness + READ_BACK) / 1e6:g} s before the newest event, {_shown(newest)}, so events that "
                "such a row should see may have been removed already; send the time of the request, or give a larger lateness="
            )

    def _arguments(self, rows: Rows, columns: list[Any], extra: np.ndarray | None) -> Given:
        key, time = rows.columns[self.first.key.id], rows.columns[self.first.time.id]
        timed = _both(time.valid, rows.passed)  # a row that a filter before the step drops may have any time
        valid = _both(key.valid, timed)
        (times,) = time.arrays
        feeds = _both(valid, rows.events)
        if self.first.where is not None:
            condition = rows.columns[self.first.where.id]
            (held,) = condition.arrays
            feeds = _both(_both(feeds, np.asarray(held).astype(bool)), condition.valid)
        feeds = _both(feeds, extra)
        flags = np.ones(rows.count, np.uint8) if feeds is None else feeds.astype(np.uint8)
        return key.arrays[0], times, _bytes(valid), _bytes(rows.asks), flags, columns

    def timed(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return the times of rows, and which rows count: those that have a time and pass the filters before the step."""
        time = rows.columns[self.first.time.id]
        known = _both(time.valid, rows.passed)
        (times,) = time.arrays
        return times, np.ones(rows.count, bool) if known is None else known

    def check_order(self, rows: Rows) -> None:
        before = self.native.newest
        time = rows.columns[self.first.time.id]
        (times,) = time.arrays
        late = self.native.late(times, _bytes(_both(time.valid, rows.passed)))
        if late >= 0:
            times, known = self.timed(rows)
            earlier = np.flatnonzero(known[:late])
            newest, at = before, self._newest_at()
            if len(earlier) and (before is None or times[earlier].max() > before):
                row = int(earlier[times[earlier].argmax()])
                newest, at = int(times[row]), rows.where(row)
            past = self.first.feature.past
            allowed = (
                f"at most lateness={past.lateness / 1e6:g} s before it" if past.lateness else "times in ascending order"
            )
            raise DataError(
                f"{self.first.name!r}: the time {_shown(times[late])} at {rows.where(late)} comes after {_shown(newest)} at "
                f"{at}; expected {allowed}: sort the rows by time, give a larger lateness=, or, if the earlier row has a wrong "
                "time, drop it with .filter(…) before with_history"
            )
        if self.native.newest != before:
            kept = replace(rows, columns={self.first.time.id: time})
            self._newest_at = lambda: kept.where(self._newest_row(kept))

    def _newest_row(self, rows: Rows) -> int:
        times, known = self.timed(rows)
        return int(np.flatnonzero(known)[times[known].argmax()])

    def read_and_feed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the native state, which may read events from the disk."""
        try:
            return call(*arguments)
        except _native.DamagedFile as error:
            raise SourceError(
                f"the file in {self.folder} with past events of {self.first.name!r} is damaged: {error}"
            ) from error
        except OSError as error:
            told = f"cannot read past events of {self.first.name!r} from {self.folder}: {os.strerror(error.errno or 0)}"
            raise SourceError(told) from error

    def check_budget(self) -> None:
        if self.native.bytes > self.budget and self.native.spill_error:
            self.native.try_disk_again()  # the disk may have room by now
        used = self.native.bytes
        if used <= self.budget:
            return
        if failed := self.native.spill_error:
            raise WriteError(
                f"cannot write past events of {self.first.name!r} to {self.folder}, where they have "
                f"{self.native.spilled_bytes:,} bytes already: {os.strerror(failed)}; free some space, or name a folder on "
                "another disk: spill='/a/folder'"
            )
        remedy = (
            f"and their keys and texts alone, which stay in memory, need more than budget={self.budget:,}; raise budget="
            if self.folder
            else f"more than budget={self.budget:,}; raise budget=, shorten last=, within= or gap=, or store them on "
            "a local disk: spill=True, or spill='/a/folder'"
        )
        raise DataError(
            f"the past events of {self.first.name!r} take {used:,} bytes ({self.native.events:,} events of "
            f"{self.native.keys:,} keys), {remedy}"
        )


class ListState(State):
    """The state of one history."""

    def __init__(self, resolved: Resolved) -> None:
        feature = resolved.feature
        words = [(TEXT if n.kind == "s" else VALUE, 0.0) for n in resolved.values]
        past = feature.past
        native = _native.HistoryState(words, past.gap, past.lateness, feature.within, feature.last, False, READ_BACK)
        super().__init__([resolved], native)

    def _texts(self) -> list[bool]:
        return [n.kind == "s" for n in self.first.values]

    def given(self, rows: Rows) -> Given:
        given = [rows.columns[n.id] for n in self.first.values]
        known: np.ndarray | None = None
        for column in given:
            known = _both(known, column.valid)
        return self._arguments(rows, [_words(column) for column in given], known)

    def passed(self, given: Given, threads: int) -> dict[str, pa.Array]:
        """Return what each row that asks has seen, as one list for each value, and one of ages."""
        offsets, words, ages = self.read_and_feed(self.native.lists, *given, threads)
        names = self.first.feature.columns(self.first.name)
        kinds = [n.kind for n in self.first.values]
        children = [_values(kind, word) for kind, word in zip(kinds, words, strict=True)]
        lists = [_list(offsets, child) for child in [*children, pa.array(ages)]]
        return dict(zip(names, lists, strict=True))


class DistinctState(ListState):
    """The state of `distinct`: a list of the hashes of values, in which the native code counts the different ones."""

    def passed(self, given: Given, threads: int) -> dict[str, pa.Array]:
        """Return how many different values each row that asks has seen."""
        return {self.first.name: pa.array(self.read_and_feed(self.native.distinct, *given, threads))}


@dataclass
class Layout:
    """The words of a state of counters, and what each feature reads of them."""

    words: list[tuple[int, float]] = field(default_factory=list)
    makers: list[Callable[[Rows], np.ndarray]] = field(default_factory=list)  # of each word's values
    reads: list[tuple[int, int, int]] = field(default_factory=list)
    places: dict[Any, int] = field(default_factory=dict)

    def word(self, key: Any, kind: int, half_life: float, maker: Callable[[Rows], np.ndarray]) -> int:
        if key not in self.places:
            self.places[key] = len(self.words)
            self.words.append((kind, half_life))
            self.makers.append(maker)
        return self.places[key]

    def read(self, kind: int, word: int, within: int) -> int:
        self.reads.append((kind, word, within))
        return len(self.reads) - 1


class CounterState(State):
    """The state of counters that share their events."""

    def __init__(self, features: Sequence[Resolved]) -> None:
        self.layout = Layout()
        self.makers = [self._maker(resolved) for resolved in features]
        windows = [within for _, _, within in self.layout.reads]
        unlimited = 0 in windows
        past = features[0].feature.past
        within = max(windows)
        last = 1 if not within else 0  # a running total of all time needs only the newest event that is seen
        native = _native.HistoryState(self.layout.words, past.gap, past.lateness, within, last, unlimited, READ_BACK)
        super().__init__(features, native)

    def _texts(self) -> list[bool]:
        return [False] * len(self.layout.words)

    def _maker(self, resolved: Resolved) -> Callable[[list[Any]], pa.Array]:
        """Add what a feature needs to the layout; return how its column is made of what was read."""
        layout, feature = self.layout, resolved.feature
        value = resolved.values[0] if resolved.values else None

        def count(node: Any) -> int:
            key = ("count", None if node is None or not (node.nullable or node.kind == "f") else node.id)
            return layout.word(key, TOTAL, 0.0, lambda rows: _present(rows, node).astype(np.uint64))

        def numbers(rows: Rows) -> np.ndarray:
            return _numbers(rows, value, resolved.name)

        match feature.what:
            case "count":
                at = layout.read(COUNT, count(None), feature.within)
                return lambda found: pa.array(found[at][0].view(np.int64))
            case "since":
                at = layout.read(SINCE, 0, feature.within)
                return lambda found: _or_null(found[at][0].view(np.float64), found[at][1])
            case "decayed":
                key = ("decayed", None if value is None else value.id, feature.half_life)
                at = layout.read(DECAYED, layout.word(key, DECAYED_WORD, float(feature.half_life), numbers), 0)
                return lambda found: pa.array(found[at][0].view(np.float64))
        assert value is not None  # of sum and mean
        if value.kind == "b":  # whole numbers of 64 bits hold the sums of flags
            flags = layout.word(("flags", value.id), TOTAL, 0.0, lambda rows: _flags(rows, value))
            total = layout.read(COUNT, flags, feature.within)
        else:
            kind, read = (WIDE_TOTAL, WIDE_SUM) if value.kind == "f" else (FLOAT_TOTAL, SUM)
            total = layout.read(read, layout.word(("sum", value.id), kind, 0.0, numbers), feature.within)

        def sums(found: list[Any]) -> np.ndarray:
            words = found[total][0]
            return words.view(np.int64) if value.kind == "b" else words.view(np.float64)

        if feature.what == "sum":
            return lambda found: pa.array(sums(found).astype(np.float64, copy=False))
        counted = layout.read(COUNT, count(value), feature.within)

        def mean(found: list[Any]) -> pa.Array:
            counts = found[counted][0].view(np.int64)
            return _or_null(sums(found) / np.maximum(counts, 1), counts > 0)

        return mean

    def given(self, rows: Rows) -> Given:
        values = [np.ascontiguousarray(maker(rows)).view(np.uint64) for maker in self.layout.makers]
        return self._arguments(rows, values, None)

    def passed(self, given: Given, threads: int) -> dict[str, pa.Array]:
        """Return the counters of each row that asks."""
        found = self.read_and_feed(self.native.counters, *given, self.layout.reads, threads)
        return {f.name: maker(found) for f, maker in zip(self.features, self.makers, strict=True)}


LISTS: dict[str, type[ListState]] = {"history": ListState, "distinct": DistinctState}


def states_of(features: Sequence[Resolved]) -> list[ListState | CounterState]:
    """Return fresh states: one for each history and each number of different values, one for each group of counters."""
    groups: dict[tuple[Any, ...], list[Resolved]] = {}
    for resolved in features:
        if resolved.feature.what not in LISTS:
            groups.setdefault(resolved.group, []).append(resolved)
    lists = [LISTS[resolved.feature.what](resolved) for resolved in features if resolved.feature.what in LISTS]
    return [*lists, *(CounterState(group) for group in groups.values())]


def not_finite(column: pa.Array) -> np.ndarray:
    """Return in which rows of a column of counters the sum of the values does not fit into a float64."""
    if not pa.types.is_float64(column.type):
        return np.zeros(len(column), bool)
    values = np.frombuffer(column.buffers()[1] or b"", np.float64)[column.offset : column.offset + len(column)]
    finite = np.isfinite(values)
    if finite.all():  # values of nulls included, so the nulls need not be looked at
        return ~finite
    return ~np.isfinite(column.fill_null(0.0).to_numpy(zero_copy_only=False))


def check_finite(made: Mapping[str, pa.Array]) -> None:
    for name, column in made.items():
        if not_finite(column).any():
            raise DataError(f"{name!r}: {TOO_LARGE}; scale them first")


def load_state(state: State, path: str, begin: int) -> int:
    """Replace what a state holds by what was saved at byte ``begin`` of a file; return the place of the byte behind it."""
    try:
        state.native, end = state.native.loaded_at(path, begin)
    except _native.DamagedFile as error:
        raise DataError(f"{path} is damaged: {error}") from error
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
    state._newest_at = lambda: f"the end of the state in {path}"
    state.check_budget()
    return int(end)


def _both(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    return b if a is None else a if b is None else a & b


def _bytes(flags: np.ndarray | None) -> np.ndarray | None:
    return None if flags is None else flags.astype(np.uint8)


def _shown(time: int) -> str:
    return str(np.datetime64(int(time), "us"))


def _words(column: Column) -> Any:
    """Return a column as 64-bit words, or as offsets and bytes of texts."""
    if column.kind == "s":
        offsets, text = column.arrays
        return np.asarray(offsets, np.int64), np.asarray(text, np.uint8)
    (values,) = column.arrays
    return values.astype(np.uint64) if column.kind == "b" else np.ascontiguousarray(values).view(np.uint64)


def _present(rows: Rows, node: Any) -> np.ndarray:
    """Return which rows have a number that can be summed."""
    if node is None:
        return np.ones(rows.count, bool)
    column = rows.columns[node.id]
    (values,) = column.arrays
    present = np.isfinite(values) if column.kind == "f" else np.ones(rows.count, bool)
    return present if column.valid is None else present & column.valid


def _numbers(rows: Rows, node: Any, name: str) -> np.ndarray:
    """Return the numbers to be summed, 0 where there is none; a whole number that no float64 holds exactly is a DataError."""
    if node is None:
        return np.ones(rows.count)
    present = _present(rows, node)
    column = rows.columns[node.id]
    (values,) = column.arrays
    if column.kind == "i":
        large = present & ((values > EXACT) | (values < -EXACT))
        if large.any():
            row = int(large.argmax())
            raise DataError(
                f"{name!r}: the value {values[row]} at {rows.where(row)} cannot be represented exactly as a float64, in which "
                "sums and means are computed; expected whole numbers from -2^53 to 2^53"
            )
    return np.where(present, values, 0).astype(np.float64)


def _flags(rows: Rows, node: Any) -> np.ndarray:
    """Return a column of bools as the whole numbers 0 and 1, 0 where it is null."""
    column = rows.columns[node.id]
    (values,) = column.arrays
    held = np.asarray(values) != 0
    return (held if column.valid is None else held & column.valid).astype(np.uint64)


def _values(kind: str, word: Any) -> pa.Array:
    """Return the elements of lists from their 64-bit words, or from offsets and bytes of texts."""
    target = arrow_type(kind)
    if kind == "s":
        offsets, text = word
        return pa.Array.from_buffers(target, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    if kind == "b":
        return pa.array(word.astype(bool))
    return pa.Array.from_buffers(target, len(word), [None, pa.py_buffer(word)])


def _list(offsets: np.ndarray, child: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_list(child.type), len(offsets) - 1, [None, pa.py_buffer(offsets)], children=[child]
    )


def _or_null(values: np.ndarray, known: np.ndarray) -> pa.Array:
    """Return float64 values that are null where they are not known."""
    bits = pa.py_buffer(np.packbits(known.view(np.uint8), bitorder="little"))
    return pa.Array.from_buffers(pa.float64(), len(values), [bits, pa.py_buffer(values)])
