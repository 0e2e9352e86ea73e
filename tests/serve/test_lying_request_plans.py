"""Plans for requests whose checksums are true and whose programs are not what a planner writes: each lie is refused by name."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox import _native
from ctrbox.errors import SourceError
from tests.twins.checked_file import sealed

LOW, HIGH = -(2**63), 2**63 - 1
END = b"\0"
NO_TABLE = struct.pack("<I", 0)
SECOND = 1_000_000  # microseconds


def text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()


def texts(values: Sequence[str]) -> bytes:
    return struct.pack("<I", len(values)) + b"".join(map(text, values))


def many(form: str, values: Sequence[float]) -> bytes:
    return struct.pack(f"<I{len(values)}{form}", len(values), *values)


def rows(form: str, values: Sequence[float]) -> bytes:
    return struct.pack(f"<Q{len(values)}{form}", len(values), *values)


# ---- steps of a program


def load(source: int, column: int, kind: str, nullable: int = 0, name: str = "c") -> bytes:
    return b"\1" + struct.pack("<II", source, column) + text(kind) + bytes([nullable]) + text(name)


def literal(kind: str, i: int = 0, f: float = 0.0, s: str = "") -> bytes:
    return b"\2" + text(kind) + struct.pack("<qd", i, f) + text(s)


def call(
    name: str,
    registers: Sequence[int],
    ints: Sequence[int] = (),
    *,
    nullable: Sequence[int] = (0,),
    floats: Sequence[float] = (),
    words: Sequence[str] = (),
    table: bytes = NO_TABLE,
    strict: int = 0,
) -> bytes:
    head = b"\3" + text(name) + many("I", registers) + many("B", nullable) + many("q", ints) + many("d", floats)
    return head + texts(words) + table + bytes([strict])


def look_up(view: int, registers: Sequence[int], missing: int) -> bytes:
    return b"\4" + struct.pack("<I", view) + many("I", registers) + struct.pack("<q", missing)


def gather(view: int, register: int, fields: Sequence[int]) -> bytes:
    return b"\5" + struct.pack("<II", view, register) + many("I", fields)


def emit(slot: int, register: int) -> bytes:
    return b"\6" + struct.pack("<iI", slot, register)


def table(what: int, content: bytes, number: int = 1) -> bytes:
    return struct.pack("<IB", number, what) + content


# ---- parts of the file


def column(name: str, kind: str, low: int = LOW, high: int = HIGH, single: int = 0, unit: int = 0) -> bytes:
    return text(name) + kind.encode() + struct.pack("<qqBq", low, high, single, unit)


def slot(keys: int, kind: str, name: str, width: int = 1) -> bytes:
    return bytes([keys]) + text(kind) + struct.pack("<I", width) + text(name)


def view(fields: Sequence[tuple[str, int]], count: int, data: bytes, index: bytes, as_of: int = 0) -> bytes:
    kinds = b"".join(text(kind) + bytes([nullable]) for kind, nullable in fields)
    return bytes([as_of]) + struct.pack("<I", len(fields)) + kinds + struct.pack("<Q", count) + data + index


def index(*keys: tuple[int, int]) -> bytes:
    return struct.pack("<Q", len(keys)) + b"".join(struct.pack("<QI", *key) for key in keys)


def index_as_of(*keys: tuple[int, int, int]) -> bytes:
    return struct.pack("<Q", len(keys)) + b"".join(struct.pack("<QqI", *key) for key in keys)


@dataclass(frozen=True)
class Part:
    columns: Sequence[int] = (0,)
    filter: bytes | None = None
    slots: Sequence[bytes] = ()
    steps: bytes = END

    def octets(self) -> bytes:
        filter = b"\0" if self.filter is None else b"\1" + self.filter
        slots = struct.pack("<I", len(self.slots)) + b"".join(self.slots)
        return many("I", self.columns) + filter + slots + self.steps


@dataclass(frozen=True)
class Plan:
    """A context with a user, candidates with an ad and a word; a key of each of the first two."""

    version: int = 1
    merged: int = 0
    context: Sequence[bytes] = (column("user", "i"),)
    candidates: Sequence[bytes] = (column("ad", "i"), column("word", "s"), column("at", "t", -9, 9, 0, SECOND))
    views: Sequence[bytes] = ()
    once: Part = Part((0,), None, (slot(1, "k", "user"),), load(0, 0, "i") + call("hash", [0]) + emit(0, 1) + END)
    shared: Part | None = None
    each: Part = Part((0, 1, 2), None, (slot(1, "k", "ad"),), load(0, 0, "i") + call("hash", [0]) + emit(0, 1) + END)
    end: bytes = b"CTREND.."
    behind: bytes = b""

    def octets(self) -> bytes:
        head = b"CTRREQPL" + struct.pack("<II", self.version, self.merged)
        for columns in (self.context, self.candidates):
            head += struct.pack("<I", len(columns)) + b"".join(columns) + texts(["unread"])
        shared = b"\0" if self.shared is None else b"\1" + self.shared.octets()
        programs = struct.pack("<I", len(self.views)) + b"".join(self.views)
        programs += self.once.octets() + shared + self.each.octets() + self.end
        return sealed([head + text("fingerprint"), programs]) + self.behind


def said(plan: Plan, place: Path) -> str:
    """Return the error about a plan, or an empty text if it is accepted."""
    path = place / "request.ctr"
    path.write_bytes(plan.octets())
    try:
        assert _native.RequestPlan.read(str(path)).fingerprint == "fingerprint"
    except (SourceError, _native.DamagedFile) as error:
        return str(error)
    return ""


GOOD = Plan()


def steps(*more: bytes, views: Sequence[bytes] = ()) -> Plan:
    """A plan whose candidates' program has more steps; register 0 is the ad, 1 its key, 2 the word, 3 the time."""
    first = load(0, 0, "i") + call("hash", [0]) + load(0, 1, "s") + load(0, 2, "t")
    return replace(GOOD, views=views, each=replace(GOOD.each, steps=first + b"".join(more) + emit(0, 1) + END))


TWO = view([("f", 0)], 2, struct.pack("<2d", 0.5, 2.5), index((7, 0), (9, 1)))  # two rows
TIMES = view([("f", 0)], 2, struct.pack("<2d", 0.5, 2.5), index_as_of((7, -5, 0), (7, 5, 1)), as_of=1)
WORDS = struct.pack("<2QI", 5, 9, 0) + struct.pack("<2q", 0, 1)
PATHS = struct.pack("<I", 1) + text("$.a") + text("i")
CLICKS = struct.pack("<Q", 2) + struct.pack("<Q3q", 5, 1, 4, 1) + struct.pack("<Q3q", 5, 2, 6, 2)
MOST = 2**62


def a_set(kind: str, octets: bytes, number: int = 1) -> bytes:
    return call("is_in", [{"i": 0, "s": 2}[kind]], table=table({"i": 1, "s": 2}[kind], octets, number))


def clicks(*entries: tuple[int, int, int, int]) -> Plan:
    octets = struct.pack("<Q", len(entries)) + b"".join(struct.pack("<Q3q", *entry) for entry in entries)
    return steps(call("history_shows", [1, 3], [1, 0], table=table(6, octets)))


def merged(source: int, number: int, kind: str = "i") -> Plan:
    """A plan with one merged view, of which requests have no rows."""
    return replace(steps(load(source, number, kind, 1)), merged=1)


HEAD = [
    (replace(GOOD, version=2), "it has version 2 of the format, but this version of CTRBox reads 1"),
    (replace(GOOD, version=0), "it has version 0 of the format, but this version of CTRBox reads 1"),
    (replace(GOOD, merged=1000), ""),
    (replace(GOOD, merged=1001), "it claims 1001 merged views"),
    (replace(GOOD, end=b"CTREND.,"), "its end mark is missing"),
    (replace(GOOD, behind=b"xy"), "2 bytes follow its end mark"),
    (replace(GOOD, context=[column("u" * 41, "k")]), f"column '{'u' * 40}' is of a kind that a request cannot contain"),
    (replace(GOOD, context=[column("user", "i", single=2)]), "a flag is 2; expected 0 or 1"),
    (replace(GOOD, context=[column("user", "i"), column("not read", "s")]), ""),
]
UNITS = [
    *((low, high, unit, False) for low, high, unit in ((0, 0, -1), (0, 0, SECOND + 1))),
    *((low, high, unit, True) for low, high, unit in ((0, 0, SECOND), (LOW, HIGH, 0), (LOW, HIGH, 1))),
    *((low, high, 2, fits) for low, high, fits in ((-(2**62), 2**62 - 1, True), (-(2**62) - 1, 0, False))),
    *((low, high, 2, fits) for low, high, fits in ((0, 2**62, False), (0, 2**62 - 1, True))),
]
UNIT = f"the numbers of time column '{'t' * 40}' have an impossible unit or range"
HEAD += [
    (replace(GOOD, context=[column("user", "i"), column("t" * 41, "t", low, high, 0, unit)]), "" if fits else UNIT)
    for low, high, unit, fits in UNITS
]
HEAD += [  # numbers of units are of times alone
    (replace(GOOD, context=[column("user", "i"), column("n", "i", unit=-1)]), ""),
]

ONCE, EACH = GOOD.once, GOOD.each
MASK = literal("b", 1)
HANDED = Part((0,), None, (), load(0, 0, "i") + emit(0, 0) + END)  # a user for the candidates
KEPT = many("I", ())[:0] + struct.pack("<I", 1) + text("i") + b"\0" + load(0, 0, "i") + MASK
NONE_KEPT = struct.pack("<I", 0) + MASK + emit(-1, 0) + END
EMITS = "a program does not emit what its part needs"
PARTS = [
    (replace(GOOD, once=replace(ONCE, columns=(1,))), "a part reads a column that requests do not contain"),
    (replace(GOOD, each=replace(EACH, columns=(0, 2, 1))), "the columns of candidates are out of order"),
    (replace(GOOD, each=replace(EACH, columns=(0, 1))), ""),
    (replace(GOOD, once=replace(ONCE, slots=())), EMITS),
    (replace(GOOD, once=replace(ONCE, slots=ONCE.slots * 2)), EMITS),
    (replace(GOOD, once=replace(ONCE, steps=load(0, 0, "i") + call("hash", [0]) + emit(1, 1) + END)), EMITS),
    (replace(GOOD, once=replace(ONCE, steps=load(0, 0, "i") + emit(0, 0) + END)),
     "feature 'user' is of another kind than its program makes"),
    (replace(GOOD, once=replace(ONCE, slots=(slot(1, "k", "u" * 41, 2),))), f"feature '{'u' * 40}' is neither dense nor keys"),
    (replace(GOOD, once=replace(ONCE, filter=KEPT + emit(-1, 1) + emit(0, 0) + END)), "a context is not filtered"),
    # The values that the context passes to the candidates.
    (replace(GOOD, shared=HANDED), ""),
    (replace(GOOD, shared=HANDED, each=replace(EACH, steps=EACH.steps[:-1] + load(1, 0, "i") + END)), ""),
    (replace(GOOD, shared=HANDED, each=replace(EACH, steps=EACH.steps[:-1] + load(1, 0, "s") + END)),
     "column 'c' is loaded as 's', but it is 'i'"),
    (replace(GOOD, each=replace(EACH, steps=EACH.steps[:-1] + load(1, 0, "i") + END)),
     "a step loads from a source that its program does not have"),
    (replace(GOOD, shared=replace(HANDED, steps=load(0, 0, "i") + emit(1, 0) + END)), EMITS),
    (replace(GOOD, shared=replace(HANDED, steps=END)),
     "candidates read nothing of the context, but there is a program for it"),
    (replace(GOOD, shared=replace(HANDED, slots=(slot(0, "i", "user"),))),
     "the part of the context for candidates has features or a filter"),
    (replace(GOOD, shared=replace(HANDED, filter=NONE_KEPT, steps=load(1, 0, "i") + emit(0, 0) + END)),
     "the part of the context for candidates has features or a filter"),
    # Filters: a mask, and what they keep, which is another source of the program.
    (replace(GOOD, each=replace(EACH, filter=KEPT + emit(-1, 1) + emit(0, 0) + END)), ""),
    (replace(GOOD, each=replace(EACH, filter=KEPT + emit(-1, 0) + emit(0, 0) + END)), EMITS),  # a mask of numbers
    (replace(GOOD, each=replace(EACH, filter=KEPT + emit(0, 0) + END)), EMITS),
    (replace(GOOD, each=replace(EACH, filter=KEPT + emit(-1, 1) + END)), EMITS),
    (replace(GOOD, each=replace(EACH, filter=KEPT + emit(-1, 1) + emit(1, 0) + END)), EMITS),
    (replace(GOOD, each=replace(EACH, filter=KEPT + emit(-1, 1) + emit(0, 1) + END)),
     "a filter keeps another kind than its program makes"),
    (replace(GOOD, each=replace(EACH, filter=NONE_KEPT)), ""),
    (replace(GOOD, each=replace(EACH, filter=NONE_KEPT, steps=EACH.steps[:-1] + load(1, 7, "s", 1) + END)), ""),
    (replace(GOOD, each=replace(EACH, filter=KEPT + emit(-1, 1) + emit(0, 0) + END,
                                steps=EACH.steps[:-1] + load(1, 0, "i") + END)), ""),
    (replace(GOOD, each=replace(EACH, filter=KEPT + emit(-1, 1) + emit(0, 0) + END,
                                steps=EACH.steps[:-1] + load(1, 1, "i") + END)),
     "a step loads a column that its source does not have"),
]  # fmt: skip


def dense(kind: str, width: int, keys: int = 0) -> Plan:
    """A plan of a feature of a kind and a width, which its program makes of nothing."""
    feature = (slot(1, "k", "ad"), slot(keys, kind, "f" * 40, width))
    return replace(GOOD, each=replace(EACH, slots=feature, steps=EACH.steps[:-1] + literal(kind) + emit(1, 2) + END))


NEITHER = f"feature '{'f' * 40}' is neither dense nor keys"
PARTS += [(dense(kind, 1), "") for kind in ("f", "i", "b", "*f")]
PARTS += [(dense(kind, 1), NEITHER) for kind in ("s", "t", "k", "*i", "*k")]
PARTS += [(dense(kind, width), NEITHER) for kind in ("f", "i", "b") for width in (0, 2)]
PARTS += [(dense(kind, 1, 1), "" if kind in ("k", "*k") else NEITHER) for kind in ("k", "*k", "f", "s", "*s")]
PARTS += [(dense("*k", 2, 1), NEITHER), (dense("*f", 0), NEITHER), (dense("*f", 2), "")]
PARTS += [
    (dense("*f", 1 << 14), ""),
    (dense("*f", (1 << 14) + 1), NEITHER),
    (replace(GOOD, each=replace(EACH, slots=[*EACH.slots, slot(0, "*f", "v", 1 << 14), slot(0, "f", "x")],
                                steps=EACH.steps[:-1] + literal("*f") + emit(1, 2) + literal("f") + emit(2, 3) + END)),
     "a part has more than 16384 dense columns"),
]  # fmt: skip

LACKS = "lacks the table that it needs"
RANGE = "has parameters out of range"
STEPS = [
    (steps(b"\7"), "there is no step 7"),
    (steps(load(0, 0, "z" * 21)), f"there is no kind '{'z' * 20}'"),
    (steps(literal("**s")), "there is no kind '**s'"),
    *((steps(literal(kind)), "") for kind in ("b", "i", "f", "t", "s", "k", "*b", "*i", "*f", "*t", "*s", "*k")),
    (steps(load(0, 0, "i", 2)), "a flag is 2; expected 0 or 1"),
    (steps(load(0, 3, "i")), "a step loads a column that its source does not have"),
    (steps(load(1, 0, "i")), "a step loads from a source that its program does not have"),
    (merged(1, 12345), ""),  # what has no rows has any column
    (merged(2, 0), "a step loads from a source that its program does not have"),
    (steps(load(0, 1, "i", name="word")), "column 'word' is loaded as 'i', but it is 's'"),
    (steps(call("hash", [4])), "a step reads register 4 before a step wrote it"),
    (steps(call("hash", [3])), ""),
    (steps(emit(1, 4)), "a step reads register 4 before a step wrote it"),
    (steps(emit(0, 3)), "slot 0 is emitted twice"),
    (steps(call("hush", [0])), "this version of CTRBox has no operator 'hush' for columns of kind 'i'"),
    (steps(call("h" * 41, [2] * 8)),
     f"this version of CTRBox has no operator '{'h' * 40}' for columns of kind 's,s,s,s,s,s,s,s'"),
    (steps(call("hash", [2] * 9)), "a step has 9 values; expected at most 8"),
    (steps(call("hash", [0], nullable=[0] * 33)), "a step has 33 values; expected at most 32"),
    (steps(call("hash", [0], [0] * 5)), "a step has 5 values; expected at most 4"),
    (steps(call("hash", [0], [0] * 4, floats=[0, 0], words=["", ""])), ""),
    (steps(call("hash", [0], floats=[0, 0, 0])), "a step has 3 values; expected at most 2"),
    (steps(call("hash", [0], words=["", "", ""])), "it claims 3 parts that it does not have"),
    (steps(call("hash", [0], nullable=[0, 0])), "operator 'hash' has another number of results"),
    (steps(call("hash", [0], nullable=[])), "operator 'hash' has another number of results"),
    (steps(call("hash", [0], nullable=[2])), "a result of operator 'hash' can be null"),
    (steps(call("hash", [0], nullable=[1])), ""),
    (steps(call("hash", [0], strict=2)), "a flag is 2; expected 0 or 1"),
    (steps(call("cast_i", [2])), "a result of operator 'cast_i' can be null"),
    (steps(call("cast_i", [2], nullable=[1])), ""),
    (steps(literal("f"), call("standardise", [4], floats=[0, 1])), ""),  # as earlier versions wrote it
    # Tables.
    (steps(a_set("i", rows("q", [3, 5]))), ""),
    (steps(a_set("s", struct.pack("<Q", 2) + text("a") + text("b"))), ""),
    (steps(a_set("i", rows("q", [3])), call("is_in", [0], table=struct.pack("<I", 1))), ""),  # the same one
    (steps(a_set("i", rows("q", [3]), 2)), "a step uses a table that the file has not defined yet"),
    (steps(a_set("i", rows("q", [3])), call("is_in", [2], table=struct.pack("<I", 1))), f"operator 'is_in' {LACKS}"),
    (steps(call("is_in", [0])), f"operator 'is_in' {LACKS}"),
    (steps(call("is_in", [0], table=table(2, rows("q", [])))), f"operator 'is_in' {LACKS}"),
    (steps(call("hash", [0], table=table(1, rows("q", [])))), f"operator 'hash' {LACKS}"),
    (steps(literal("f"), call("bucketize", [4], table=table(3, rows("d", [0.5, 0.5])))), ""),
    (steps(literal("f"), call("bucketize", [4], table=table(1, rows("q", [])))), f"operator 'bucketize' {LACKS}"),
    (steps(literal("f"), call("bucketize", [4], table=table(3, rows("d", [0.5, 0.25])))),
     "bucketize: boundary 1 (0.250000) is below the one before it; boundaries must ascend"),
    (steps(call("json", [2], nullable=[1], table=table(4, PATHS))), ""),
    (steps(call("json", [2], nullable=[0], table=table(4, PATHS))), "a result of operator 'json' can be null"),
    (steps(call("json", [2], nullable=[1, 1], table=table(4, PATHS))), "operator 'json' has another number of results"),
    (steps(call("json", [2], nullable=[1], table=table(1, rows("q", [])))), f"operator 'json' {LACKS}"),
    (steps(call("json", [2], table=table(4, struct.pack("<I", 33) + bytes(400)))), "it claims 33 parts that it does not have"),
    (steps(call("dictionary_id", [1], [-1], table=table(5, WORDS[8:], 1))), "it claims 9 rows that it does not have"),
    (steps(call("dictionary_id", [1], [-1], table=table(5, struct.pack("<3QI2q", 2, 5, 9, 0, 0, 1)))), ""),
    (steps(call("dictionary_id", [1], [-1], table=table(5, struct.pack("<3QI2d", 2, 5, 9, 1, 0, 1)))),
     f"operator 'dictionary_id' {LACKS}"),
    (steps(call("dictionary_vector", [1], table=table(5, struct.pack("<3QI2d", 2, 5, 9, 1, 0, 1)))), ""),
    (steps(call("dictionary_vector", [1], table=table(5, struct.pack("<3QI2q", 2, 5, 9, 0, 0, 1)))),
     f"operator 'dictionary_vector' {LACKS}"),
    (steps(call("dictionary_vector", [1], table=table(1, rows("q", [])))), f"operator 'dictionary_vector' {LACKS}"),
    (steps(call("dictionary_vector", [1], table=table(5, struct.pack("<QI", 0, 1 << 20)))), ""),
    (steps(call("dictionary_vector", [1], table=table(5, struct.pack("<QI", 0, (1 << 20) + 1)))),
     "a dictionary has vectors of 1048577 numbers"),
    (steps(call("dictionary_vector", [1], table=table(5, struct.pack("<2QI", 1, 5, 1000)))),
     "it claims more values than it has bytes"),
    (steps(call("history_shows", [1, 3], [1, 0], table=table(6, CLICKS))), ""),
    (steps(call("history_shows", [1, 3], [1, 0])), f"operator 'history_shows' {LACKS}"),
    (steps(call("history_shows", [1, 3], [1, 0], table=table(1, rows("q", [])))), f"operator 'history_shows' {LACKS}"),
    (clicks((5, 1, HIGH - 1, HIGH), (5, 2, 1, 0)), ""),
    (clicks((5, 1, HIGH, 0), (5, 2, 1, 0)), "the counts of a click history are negative or too large"),
    (clicks((5, 1, 0, HIGH), (6, 2, 0, 1)), "the counts of a click history are negative or too large"),
    (clicks((5, 1, -1, 0)), "the counts of a click history are negative or too large"),
    (clicks((5, 1, 0, -1)), "the counts of a click history are negative or too large"),
    (clicks((5, -1, 0, 0), (5, 0, 0, 0)), ""),
    (clicks((5, 1, 0, 0), (5, 1, 0, 0)), "history: the buckets are out of order"),
    (clicks((5, 1, 0, 0), (6, 1, 0, 0), (5, 2, 0, 0)), "history: the keys are out of order"),
    (steps(call("hash", [0], table=table(0, b""))), "there is no table of kind 0"),
    (steps(call("hash", [0], table=table(7, b""))), "there is no table of kind 7"),
    (steps(a_set("i", struct.pack("<Q", 10**6))), "it claims 1000000 rows that it does not have"),
    # Parameters.
    (steps(call("key", [1], [LOW])), ""),
    (steps(call("hash", [0], [MOST, -MOST])), ""),
    (steps(call("hash", [0], [MOST + 1])), f"operator 'hash' {RANGE}"),
    (steps(call("hash", [0], [0, -MOST - 1])), f"operator 'hash' {RANGE}"),
    *((steps(call("ngrams", [2], [n])), "" if 1 <= n <= 64 else f"operator 'ngrams' {RANGE}") for n in (0, 1, 64, 65)),
    (steps(call("ngrams", [2])), f"operator 'ngrams' {RANGE}"),
    *((steps(call("edit_distance", [2, 2], [n])), "" if 0 <= n <= 64 else f"operator 'edit_distance' {RANGE}")
      for n in (-1, 0, 64, 65)),
    *((steps(literal("f"), call("round", [4], [n])), "" if 0 <= n <= 15 else f"operator 'round' {RANGE}")
      for n in (-1, 0, 15, 16)),
    *((steps(literal("*k"), call("cross", [4, 1], [n])), "" if 1 <= n <= 10**6 else f"operator 'cross' {RANGE}")
      for n in (0, 1, 10**6, 10**6 + 1)),
    (steps(call("cross", [1, 1])), ""),
    *((steps(call("history_shows", [1, 3], [n, m], table=table(6, CLICKS))), "" if fits else f"operator 'history_shows' {RANGE}")
      for n, m, fits in ((0, 0, False), (1, 0, True), (MOST, MOST, True), (1, -1, False))),
    *((steps(call("split", [2], words=words)), "" if words in (["x"], ["xy", ""]) else f"operator 'split' {RANGE}")
      for words in ([], [""], ["", "x"], ["x"], ["xy", ""])),
]  # fmt: skip

LOOKED_UP = "a look-up takes a key, and in an as-of join a time"
VIEWS = [
    (steps(look_up(0, [1], 1), gather(0, 4, [0]), views=[TWO]), ""),
    (steps(look_up(0, [1], 0), gather(0, 4, [0, 0]), emit(1, 4), views=[TWO]), EMITS),
    (steps(look_up(0, [1], 0), views=[]), "a step reads view 0, which the file does not have"),
    (steps(look_up(1, [1], 0), views=[TWO]), "a step reads view 1, which the file does not have"),
    *((steps(look_up(0, [1], row), views=[TWO]), "the row for missing keys does not belong to its view")
      for row in (-1, 2, 2**32, 2**32 + 1)),
    *((steps(look_up(0, registers, 0), views=[TWO]), LOOKED_UP) for registers in ([], [0], [2], [1, 3])),
    *((steps(look_up(0, registers, 0), views=[TIMES]), LOOKED_UP) for registers in ([1], [0, 3], [1, 1], [3, 1])),
    (steps(look_up(0, [1, 3, 3], 0), views=[TIMES]), "a step has 3 values; expected at most 2"),
    (steps(look_up(0, [1, 3], 0), views=[TIMES]), ""),
    (steps(gather(0, 0, [0]), views=[TWO]), "a step reads rows of a view that were not looked up in this view"),
    (steps(look_up(0, [1], 0), gather(1, 4, [0]), views=[TWO, TWO]),
     "a step reads rows of a view that were not looked up in this view"),
    (steps(look_up(1, [1], 0), gather(1, 4, [0]), views=[TWO, TWO]), ""),
    (steps(look_up(0, [1], 0), gather(0, 4, [1]), views=[TWO]), "a step reads a field that its view does not have"),
    (steps(look_up(0, [1], 0), gather(0, 5, [0]), views=[TWO]), "a step reads register 5 before a step wrote it"),
    (steps(views=[view([("f", 0)], 0, b"", index())]), "a view claims 0 rows that it does not have"),
    (steps(views=[view([("f", 0)], 2**32 - 1, b"", index())]), "a view claims 4294967295 rows that it does not have"),
    (steps(views=[view([("f", 0)], 10**6, b"", index())]), "a view claims 1000000 rows that it does not have"),
    (steps(views=[view([], 3, bytes(3), index((7, 2)))]), ""),
    (steps(views=[view([], 3, bytes(3), index((7, 3)))]), "an index points to a row that its view does not have"),
    (steps(views=[view([], 3, bytes(3), index((7, 1), (7, 2)))]), "an index has a key twice"),
    (steps(views=[view([], 3, bytes(3), index_as_of((7, 0, 3)), 1)]), "an index points to a row that its view does not have"),
    (steps(views=[view([], 3, bytes(3), index_as_of((7, 0, 0), (7, 0, 1)), 1)]), "an index has a key twice with the same time"),
    (steps(views=[view([], 3, bytes(3), index_as_of((7, 0, 0), (8, 0, 1)), 1)]), ""),
    (steps(views=[view([], 1025, bytes(1025), index((7, 1024)))]), ""),
    (steps(views=[view([("b", 0)], 2, b"\0\1", index())]), ""),
    (steps(views=[view([("b", 0)], 2, b"\0\2", index())]), "a bool is stored as 2; expected 0 or 1"),
    (steps(views=[view([("i", 1)], 1, b"\1" + bytes(8), index())]), ""),
    (steps(views=[view([("i", 1)], 1, b"\2" + bytes(8), index())]), "a bool is stored as 2; expected 0 or 1"),
    (steps(views=[view([("s", 0)], 2, struct.pack("<2I", 0, 3) + b"abc", index())]), ""),
    (steps(views=[view([("*b", 0)], 2, struct.pack("<2I", 2, 1) + b"\0\1\1", index())]), ""),
    (steps(views=[view([("*b", 0)], 2, struct.pack("<2I", 2, 1) + b"\0\1\3", index())]),
     "a bool is stored as 3; expected 0 or 1"),
    (steps(views=[view([("*i", 0)], 2, struct.pack("<2I", 2, 1) + bytes(24), index())]), ""),
    (steps(views=[view([("*s", 0)], 2, struct.pack("<2I", 1, 1) + struct.pack("<2I", 0, 2) + b"ab", index())]), ""),
    (steps(views=[view([("*s", 0)], 1, struct.pack("<I", 10**6), index())]), "it claims more values than it has bytes"),
    (steps(views=[view([("z", 0)], 1, bytes(9), index())]), "there is no kind 'z'"),
    (steps(views=[view([("i", 2)], 1, bytes(9), index())]), "a flag is 2; expected 0 or 1"),
    (steps(views=[view([], 1, b"\0", index(), as_of=2)]), "a flag is 2; expected 0 or 1"),
    (steps(views=[view([], 1, b"\0", struct.pack("<Q", 10**6))]), "it claims 1000000 rows that it does not have"),
    (steps(views=[view([("b", 0)], 1, b"\0", index())] * 1000), ""),
    (steps(views=[view([("b", 0)], 1, b"\0", index())] * 1001), "it claims 1001 parts that it does not have"),
]  # fmt: skip

ENOUGH = 2**14  # steps of a program


def gathered(more: int) -> Plan:
    """A plan whose candidates' program has 60,005 registers and more."""
    one = view([("b", 0)], 1, b"\0", index())
    return steps(look_up(0, [1], 0), gather(0, 4, [0] * 10_000) * 6, gather(0, 4, [0] * more), views=[one])


def literals(*kinds: str) -> Plan:
    """A plan whose candidates' program has two registers of 8 KiB, and these literals."""
    return replace(GOOD, each=replace(EACH, steps=EACH.steps[:-1] + b"".join(map(literal, kinds)) + END))


TOO_LONG = "bytes of memory; at most 67108864 are possible"
SIZES = [
    (gathered(65_536 - 60_005), ""),
    (gathered(65_536 - 60_004), "a program has too many registers"),
    (gathered(10_001), "a step has 10001 values; expected at most 10000"),
    (literals(*["s"] * 4095), ""),  # 16 KiB each
    (literals(*["s"] * 4095, "b"), f"a program needs 67109888 {TOO_LONG}"),
    (replace(GOOD, each=replace(EACH, steps=EACH.steps[:-1] + literal("b") * (ENOUGH - 3) + END)), ""),
    (replace(GOOD, each=replace(EACH, steps=EACH.steps[:-1] + literal("b") * (ENOUGH - 2) + END)),
     f"a program has more than {ENOUGH} steps"),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "sentence"), [*HEAD, *PARTS, *STEPS, *VIEWS, *SIZES])
def test_a_plan_that_lies_is_refused_and_one_at_its_bounds_is_not(plan: Plan, sentence: str, tmp_path: Path) -> None:
    met = said(plan, tmp_path)
    assert met.removeprefix(f"cannot read {tmp_path / 'request.ctr'}: ") == sentence


def test_a_plan_ends_where_its_file_does(tmp_path: Path) -> None:
    whole = GOOD.octets()
    path = tmp_path / "request.ctr"
    for octets, sentence in (
        (whole[:7], "it is not a request plan: it has 7 bytes"),
        (whole[:8], "it ends at byte 8, before its end mark"),
        (b"CTRREQPX", "it is not a request plan: it does not start with CTRREQPL"),
        (whole[:-1], f"it ends at byte {len(whole) - 1}, before its end mark"),
        (whole[:-1] + b"\0", "the checksum of its programs is wrong"),
        (whole[:15] + b"\1" + whole[16:], "it claims 16777216 merged views"),
        (whole[:18] + b"\1" + whole[19:], "it claims 65537 parts that it does not have"),
    ):
        path.write_bytes(octets)
        with pytest.raises((SourceError, _native.DamagedFile)) as told:
            _native.RequestPlan.read(str(path))
        assert str(told.value).endswith(sentence)


# ---- what is written


def plain(name: str, args: str, register: int, result: str, program: Any, **more: Any) -> int:
    """One call of an operator with one argument; its result is not null unless ``nullable`` says so."""
    nullable, words, ints = more.get("nullable", False), more.get("words", []), more.get("ints", [])
    call_ = program.call(name, args, [register], [result], [nullable], ints, [], words, more.get("table"), False)
    return int(call_[0])


def twin_call(name: str, registers: Sequence[int], ints: Sequence[int] = (), **more: Any) -> bytes:
    """A call as the writer writes it: all parameters that there may be."""
    return call(name, registers, [*ints, 0, 0, 0, 0][:4], floats=(0, 0), **{"words": ["", ""], **more})


def a_key(name: str = "c") -> Any:
    program = _native.Program(8)
    program.emit(0, plain("hash", "i", program.load(0, 0, "i", False, name), "k", program))
    program.finish()
    return program


A_KEY = load(0, 0, "i") + twin_call("hash", [0]) + emit(0, 1) + END
LONG = (("ad", "i", LOW, HIGH, False, 0), ("word", "s", LOW, HIGH, False, 0), ("at", "t", -9, 9, False, SECOND))


def written(place: Path, program: Any, views: Sequence[Any] = (), **parts: Any) -> bytes:
    """The file of the twin's plan with this program of its candidates."""
    path = place / "written.ctr"
    user = ([("user", "i", LOW, HIGH, False, 0)], ["unread"])
    candidates = (list(LONG), ["unread"])
    once = ([0], None, [(True, "k", 1, "user")], a_key())
    each = ([0, 1, 2], parts.get("filter"), [(True, "k", 1, "ad")], program)
    _native.write_request_plan(
        str(path), user, candidates, parts.get("merged", 0), "fingerprint", list(views), once, parts.get("shared"), each
    )
    octets = path.read_bytes()
    path.unlink()
    return octets


TWIN = replace(GOOD, once=replace(ONCE, steps=A_KEY), each=replace(EACH, steps=A_KEY))


def test_a_plan_is_written_as_its_twin(tmp_path: Path) -> None:
    assert written(tmp_path, a_key()) == TWIN.octets()
    handed = _native.Program(8)
    handed.emit(0, handed.load(0, 0, "i", False, "c"))
    handed.finish()
    mask = _native.Program(8)
    mask.emit(-1, mask.literal("b", 1, 0.0, b""))
    mask.finish()
    nothing = replace(TWIN.each, filter=struct.pack("<I", 0) + MASK + emit(-1, 0) + END)
    assert written(
        tmp_path, a_key(), merged=3, shared=([0], None, [], handed), filter=(mask, [], [])
    ) == replace(TWIN, merged=3, shared=HANDED, each=nothing).octets()  # fmt: skip


def test_literals_are_written_where_the_registers_behind_them_begin(tmp_path: Path) -> None:
    program = _native.Program(8)
    first = program.literal("s", 0, 0.0, b"none")
    ad = program.load(0, 0, "i", False, "c")
    program.literal("f", 0, 2.5, b"")
    program.emit(0, plain("hash", "i", ad, "k", program))
    program.literal("i", -7, 0.0, b"")
    program.finish()
    steps_ = literal("s", s="none") + load(0, 0, "i") + literal("f", f=2.5) + twin_call("hash", [1]) + emit(0, 3)
    twin = replace(TWIN, each=replace(EACH, steps=steps_ + literal("i", -7) + END))
    assert first == 0
    assert written(tmp_path, program) == twin.octets()
    assert said(twin, tmp_path) == ""


def test_tables_are_written_once_each_in_the_order_of_their_use(tmp_path: Path) -> None:
    program = _native.Program(8)
    ad = program.load(0, 0, "i", False, "c")
    key = plain("hash", "i", ad, "k", program)
    word, number = program.load(0, 1, "s", False, "c"), program.literal("f", 0, 0.5, b"")
    time = program.load(0, 2, "t", False, "c")
    few = _native.IntSet([5, 3, 5])
    for table_ in (few, few):
        plain("is_in", "i", ad, "b", program, table=table_)
    plain("is_in", "s", word, "b", program, table=_native.StrSet([b"b", b"", b"a"]))
    plain("bucketize", "f", number, "i", program, table=_native.Boundaries([0.5, 1.5]))
    plain("json", "s", word, "i", program, nullable=True, table=_native.JsonPaths(["$.a"], ["i"]))
    hashes = np.array([5, 9, 5], np.uint64)
    ids = _native.Dictionary(hashes, np.array([4, 6, 8]), np.zeros(0), 0)
    plain("dictionary_id", "k", key, "i", program, ints=[-1], table=ids)
    vectors = _native.Dictionary(hashes, np.zeros(0, np.int64), np.arange(6.0), 2)
    plain("dictionary_vector", "k", key, "*f", program, table=vectors)
    past = _native.History(
        np.array([5, 5, 2], np.uint64), np.array([1, 3, 1]), np.array([4, 6, 0]), np.array([1, 2, 0])
    )
    program.call("history_shows", "k,t", [key, time], ["i"], [False], [7, 1], [], [], past, True)
    plain("split", "s", word, "*s", program, words=[b", "])
    program.emit(0, key)
    program.finish()
    steps_ = load(0, 0, "i") + twin_call("hash", [0]) + load(0, 1, "s") + literal("f", f=0.5) + load(0, 2, "t")
    steps_ += twin_call("is_in", [0], table=table(1, rows("q", [3, 5]))) + twin_call(
        "is_in", [0], table=struct.pack("<I", 1)
    )
    texts_ = struct.pack("<Q", 3) + text("") + text("a") + text("b")
    steps_ += twin_call("is_in", [2], table=table(2, texts_, 2)) + twin_call(
        "bucketize", [3], table=table(3, rows("d", [0.5, 1.5]), 3)
    )
    steps_ += twin_call("json", [2], nullable=[1], table=table(4, PATHS, 4))
    steps_ += twin_call("dictionary_id", [1], [-1], table=table(5, struct.pack("<3QI2q", 2, 5, 9, 0, 4, 6), 5))
    steps_ += twin_call("dictionary_vector", [1], table=table(5, struct.pack("<3QI4d", 2, 5, 9, 2, 0, 1, 2, 3), 6))
    seen = [(5, 1, 4, 1), (5, 3, 6, 2), (2, 1, 0, 0)]
    octets = struct.pack("<Q", 3) + b"".join(struct.pack("<Q3q", *entry) for entry in seen)
    steps_ += twin_call("history_shows", [1, 4], [7, 1], table=table(6, octets, 7), strict=1)
    steps_ += twin_call("split", [2], words=[", ", ""]) + emit(0, 1) + END
    twin = replace(TWIN, each=replace(EACH, steps=steps_))
    assert written(tmp_path, program) == twin.octets()
    assert said(twin, tmp_path) == ""


FIELDS = [("f", 1), ("s", 0), ("*s", 1), ("*i", 0), ("b", 0), ("*b", 0)]
VALUES = {
    "f": pa.array([0.5, None, -1.0]),
    "s": pa.array(["", "abc", "d"]),
    "*s": pa.array([["x", ""], None, ["yz"]]),
    "*i": pa.array([[1, 2], [], [3]]),
    "b": pa.array([True, False, True]),
    "*b": pa.array([[True], [False, True], []]),
}


def joined() -> Any:
    """Three records with fields of every layout."""
    frame = _native.Frame.from_arrow(pa.record_batch(VALUES))
    program = _native.Program(8)
    for k, (kind, nullable) in enumerate(FIELDS):
        program.emit(k, program.load(0, k, kind, bool(nullable), kind))
    program.finish()
    records = _native.Records([kind for kind, _ in FIELDS], [bool(nullable) for _, nullable in FIELDS])
    program.run_records([(3, [(frame, None, 0)])], records)
    return records


def reads(index_: Any, records: Any, as_of: bool) -> Any:
    """A program that reads a field of a joined view."""
    program = _native.Program(8)
    ad = program.load(0, 0, "i", False, "c")
    key = plain("hash", "i", ad, "k", program)
    time = program.load(0, 2, "t", False, "c")
    row = program.lookup_as_of(index_, key, time, 0) if as_of else program.lookup(index_, key, 0)
    program.gather(records, row, [1, 0])
    program.emit(0, key)
    program.finish()
    return program


@pytest.mark.parametrize("as_of", [False, True])
def test_joined_views_are_written_field_by_field(as_of: bool, tmp_path: Path) -> None:
    records = joined()
    hashes = np.array([7, 9, 7] if as_of else [9, 7, 8], np.uint64)
    if as_of:
        index_ = _native.AsOfIndex.build(hashes, np.array([5, 0, -5]), False)[0]
        keys = index_as_of((7, -5, 2), (7, 5, 0), (9, 0, 1))
    else:
        index_ = _native.Index.build(hashes, False)[0]
        keys = index((9, 0), (7, 1), (8, 2))
    program = reads(index_, records, as_of)
    with pytest.raises(ValueError, match="an index points to a row that its view does not have"):
        written(tmp_path, program, [(index_, records)])
    index_.point_at(records)
    octets = b"\1\0\1" + struct.pack("<3d", 0.5, 0, -1) + struct.pack("<3I", 0, 3, 1) + b"abcd"
    octets += b"\1\0\1" + struct.pack("<3I", 2, 0, 1) + struct.pack("<3I", 1, 0, 2) + b"xyz"
    octets += struct.pack("<3I3q", 2, 0, 1, 1, 2, 3) + b"\1\0\1" + struct.pack("<3I", 1, 2, 0) + b"\1\0\1"
    steps_ = load(0, 0, "i") + twin_call("hash", [0]) + load(0, 2, "t")
    steps_ += look_up(0, [1, 2] if as_of else [1], 0) + gather(0, 3, [1, 0]) + emit(0, 1) + END
    twin = replace(TWIN, views=[view(FIELDS, 3, octets, keys, as_of)], each=replace(EACH, steps=steps_))
    met = written(tmp_path, program, [(index_, records)])
    if as_of:  # the order of keys is the index's own
        assert len(met) == len(twin.octets())
        assert keys[8:48] in met
        assert keys[48:] in met
    else:
        assert met == twin.octets()
    assert said(twin, tmp_path) == ""
    for views in ([], [(index_, joined())]):
        with pytest.raises(ValueError, match=r"a program reads a joined view that is not in the file"):
            written(tmp_path, program, views)


def test_rows_without_fields_are_written_in_chunks(tmp_path: Path) -> None:
    records = _native.Records([], [])
    for _ in range(1025):
        records.add_blank()
    index_ = _native.Index.build(np.arange(1025, dtype=np.uint64) + 5, False)[0]
    index_.point_at(records)
    twin = replace(TWIN, views=[view([], 1025, bytes(1025), index(*((k + 5, k) for k in range(1025))))])
    assert written(tmp_path, a_key(), [(index_, records)]) == twin.octets()
    with pytest.raises(ValueError, match="a view needs an index"):
        written(tmp_path, a_key(), [(_native.IntSet([1]), records)])


def test_only_a_finished_program_is_written(tmp_path: Path) -> None:
    program = _native.Program(8)
    with pytest.raises(ValueError, match="only a finished program can be written"):
        written(tmp_path, program)
    program.emit(0, plain("is_in", "f", program.literal("f", 0, 0.5, b""), "b", program, table=_native.FloatSet([0.5])))
    program.finish()
    assert written(tmp_path, program)
