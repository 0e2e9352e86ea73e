"""What a job means, in plain Python: one row at a time, dicts and lists, no sharing, no hoisting.

A row is a dict from column to value. A value is None, bool, int, float, bytes (a string, any bytes), Moment
(a time in microseconds), Key (a hash) or a list of those without nulls. Expressions must be well typed, with
literals of the kind they meet (1.0 beside a float, not 1): the oracle widens only what Python's arithmetic
widens by itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.columns.kind import arrow_type
from ctrbox.plan.language.expressions import Expr, Time, col, expression
from ctrbox.plan.language.features import FeatureSet
from ctrbox.views.view import Cast, Fill, Filter, Join, Merge, Select, View, WithColumns
from tests.twins import lists, strings, times
from tests.twins.times import part

Row = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOP = 1 << 64


class Moment(int):
    """A time, in microseconds since 1970 UTC."""


class Key(int):
    """A hash or a key: 64 bits, unsigned."""


def value_of(raw: Any) -> Any:
    """A cell as Arrow's to_pylist gives it, as a value. Null elements of lists are dropped."""
    if isinstance(raw, str):
        return raw.encode("utf-8", "surrogateescape")
    if isinstance(raw, Time):
        return Moment(raw)
    if isinstance(raw, datetime):
        aware = raw if raw.tzinfo else raw.replace(tzinfo=UTC)
        return Moment((aware - EPOCH) // timedelta(microseconds=1))
    if isinstance(raw, list | tuple):
        return [value_of(x) for x in raw if x is not None]
    return raw


# ---- keys: native/operators/hash.h -------------------------------------------------------------------------


def multiply_fold(a: int, b: int) -> int:
    product = a * b
    return (product ^ product >> 64) % TOP


def hash_bytes(s: bytes) -> int:
    k0, k1, seed = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3
    n = len(s)

    def load(start: int, width: int) -> int:
        return int.from_bytes(s[start : start + width], "little")

    if n > 16:
        at = 0
        while n - at > 16:
            seed = multiply_fold(load(at, 8) ^ k0, load(at + 8, 8) ^ seed)
            at += 16
        a, b = load(n - 16, 8), load(n - 8, 8)
    elif n >= 8:
        a, b = load(0, 8), load(n - 8, 8)
    elif n >= 4:
        a, b = load(0, 4), load(n - 4, 4)
    elif n > 0:
        a, b = s[0] << 16 | s[n >> 1] << 8 | s[n - 1], 0
    else:
        a, b = 0, 0
    return multiply_fold(k1 ^ n, multiply_fold(a ^ k0, b ^ seed) ^ k0)


def hashed(value: Any) -> Any:
    """The hash of a value of any kind that can be a key; of a list, of each element."""
    if isinstance(value, list):
        return [hashed(x) for x in value]
    if isinstance(value, Key):
        return value
    if isinstance(value, bytes):
        return Key(hash_bytes(value))
    kind = 0xD6E8FEB86659FD93 if isinstance(value, bool) else 0x2545F4914F6CDD1D
    kind = 0x9FB21C651E98DF25 if isinstance(value, Moment) else kind
    return Key(lists.finish(int(value) % TOP ^ kind))


def salted(value: Any, space: str) -> Any:
    if isinstance(value, list):
        return [salted(x, space) for x in value]
    return Key(lists.finish(value ^ hash_bytes(space.encode())) or 1)


def crossed(members: Sequence[Any], limit: int) -> Any:
    """Hashes of the members folded in order; lists multiply out, the left one outermost, up to the limit."""
    result = hashed(members[0])
    for member in members[1:]:
        other = hashed(member)
        if not isinstance(result, list) and not isinstance(other, list):
            result = Key(lists.fold(result, other))
            continue
        left = result if isinstance(result, list) else [result]
        right = other if isinstance(other, list) else [other]
        result = [Key(lists.fold(x, y)) for x in left for y in right][:limit]
    return result


# ---- JSON --------------------------------------------------------------------------------------------------

STRING = re.compile(rb'"((?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)"')
NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
WORDS = {b"true": "true", b"false": "false", b"null": "null"}
BLANK = re.compile(rb"[ \t\n\r]*")
STEP = re.compile(r"""\.([\w-]+)|\[(\d+)\]|\['([^']*)'\]""")


class Malformed(Exception):
    pass


@dataclass
class Json:
    type: str  # null, true, false, number, string, array, object
    text: bytes  # as written; of a string, between the quotes
    items: Any = None  # dict or list


def parse_json(doc: bytes) -> Json:
    value, end = _json_value(doc, BLANK.match(doc).end(), 0)  # type: ignore[union-attr]
    if BLANK.fullmatch(doc, end) is None:
        raise Malformed
    return value


def _json_value(doc: bytes, at: int, depth: int) -> tuple[Json, int]:
    for word, kind in WORDS.items():
        if doc.startswith(word, at):
            return Json(kind, word), at + len(word)
    if found := STRING.match(doc, at):
        return Json("string", found[1]), found.end()
    if found := NUMBER.match(doc, at):
        return Json("number", found[0]), found.end()
    opening = doc[at : at + 1]
    if opening not in (b"[", b"{") or depth == 64:
        raise Malformed
    closing = b"]" if opening == b"[" else b"}"
    items: Any = [] if opening == b"[" else {}
    start, at = at, _blank(doc, at + 1)
    if doc[at : at + 1] == closing:
        at += 1
    else:
        while True:
            name = None
            if opening == b"{":
                found = STRING.match(doc, at)
                if found is None:
                    raise Malformed
                name = unescape(found[1])
                at = _blank(doc, found.end())
                if doc[at : at + 1] != b":":
                    raise Malformed
                at = _blank(doc, at + 1)
            value, at = _json_value(doc, at, depth + 1)
            if name is None:
                items.append(value)
            else:
                items[name] = value  # the last of equal keys wins
            at = _blank(doc, at)
            mark, at = doc[at : at + 1], at + 1
            if mark == closing:
                break
            if mark != b",":
                raise Malformed
            at = _blank(doc, at)
    return Json("array" if opening == b"[" else "object", doc[start:at], items), at


def _blank(doc: bytes, at: int) -> int:
    return BLANK.match(doc, at).end()  # type: ignore[union-attr]


ESCAPE = re.compile(rb"\\(?:u([dD][89abAB]..)\\u([dD][c-fC-F]..)|u(....)|(.))")
SHORT = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescape(text: bytes) -> bytes:
    def plain(found: re.Match[bytes]) -> bytes:
        high, low, single, short = found.groups()
        if high:
            return chr(0x10000 + (int(high, 16) - 0xD800 << 10) + int(low, 16) - 0xDC00).encode()
        if single:
            lone = 0xD800 <= int(single, 16) < 0xE000
            return "\ufffd".encode() if lone else chr(int(single, 16)).encode()
        return SHORT.get(short, short)

    return ESCAPE.sub(plain, text)


def at_path(value: Json, path: str) -> Json | None:
    for name, index, quoted in STEP.findall(path[1:]):
        if index:
            inside = isinstance(value.items, list) and int(index) < len(value.items)
            found = value.items[int(index)] if inside else None
        else:
            found = value.items.get((name or quoted).encode()) if isinstance(value.items, dict) else None
        if found is None:
            return None
        value = found
    return value


def json_as(value: Json, to: str) -> Any:
    if to.startswith("list["):
        if value.type != "array":
            return None
        return [x for x in (json_as(item, to[5:-1]) for item in value.items) if x is not None]
    if to == "str":
        return None if value.type == "null" else unescape(value.text) if value.type == "string" else value.text
    if to == "bool":
        return {"true": True, "false": False}.get(value.type)
    if value.type != "number":
        return None
    if to == "float":
        return float(value.text)
    exact = Decimal(value.text.decode())
    return int(exact) if exact == exact.to_integral_value() and -(2**63) <= exact < 2**63 else None


# ---- one row, one operator ---------------------------------------------------------------------------------


def wrap(x: int) -> int:
    """Two's complement of 64 bits."""
    return (x + 2**63) % TOP - 2**63


def is_float(*values: Any) -> bool:
    return any(isinstance(v, float) for v in values)


def double(function: Callable[..., Any]) -> Callable[..., float]:
    """IEEE arithmetic: no exceptions, ±inf and NaN instead."""

    def apply(*values: Any) -> float:
        with np.errstate(all="ignore"):
            return float(function(*(np.float64(v) for v in values)))

    return apply


def arithmetic(whole: Callable[[int, int], int], real: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: double(real)(a, b) if is_float(a, b) else wrap(whole(int(a), int(b)))


def floordiv(a: Any, b: Any) -> Any:
    if is_float(a, b):
        return double(lambda x, y: np.floor(x / y))(a, b)
    return None if b == 0 else wrap(int(a) // int(b))


def round_half_even(x: float, digits: int) -> float:
    wide = double(lambda v: v * 10.0**digits)(x)
    return double(lambda v: np.rint(v) / 10.0**digits)(wide) if math.isfinite(wide) else x


def lesser(a: Any, b: Any) -> Any:
    return b if b < a or b != b else a


def greater(a: Any, b: Any) -> Any:
    return b if b > a or b != b else a


def clip(x: Any, low: Any, high: Any) -> Any:
    if isinstance(x, bool) or not (isinstance(x, int) and isinstance(low, int) and isinstance(high, int)):
        x, low, high = float(x), float(low), float(high)
    return low if x < low else high if x > high else x


INTEGER = re.compile(rb"([+-]?[0-9]+)")
DECIMAL = re.compile(
    rb"([+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan))",
    re.IGNORECASE,
)
ISO = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)"
    rb"(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:\d\d)?)?"
)


def parse_int(s: bytes) -> int | None:
    found = INTEGER.fullmatch(s)
    return int(found[1]) if found and -(2**63) <= int(found[1]) < 2**63 else None


def parse_float(s: bytes) -> float | None:
    found = DECIMAL.fullmatch(s)
    return float(found[1]) if found else None


def parse_time(s: bytes) -> Moment | None:
    found = ISO.fullmatch(s)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(found[k] or 0) for k in range(1, 7))
    try:
        local = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    micros = (local - EPOCH) // timedelta(microseconds=1) + int(((found[7] or b"") + b"000000")[:6])
    zone = found[8] or b"Z"
    if zone != b"Z":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours > 23 or minutes > 59:
            return None
        micros -= (1 if zone[:1] == b"+" else -1) * (hours * 60 + minutes) * 60_000_000
    return Moment(micros)


def cast(value: Any, to: str, unit: str | None = None) -> Any:
    if unit is not None:
        moment = times.of_number(value, unit)
        return None if moment is None else Moment(moment)
    if isinstance(value, list):
        return [x for x in (cast(v, to.removeprefix("list[").removesuffix("]")) for v in value) if x is not None]
    if to == "int":
        if isinstance(value, bytes):
            return parse_int(value)
        if isinstance(value, float):
            return int(value) if -(2.0**63) <= value < 2.0**63 else None
        return int(value)
    if to == "float":
        return parse_float(value) if isinstance(value, bytes) else float(value)
    if to == "time":
        return parse_time(value) if isinstance(value, bytes) else Moment(value)
    if to == "bool":
        return value != 0
    if isinstance(value, bytes):
        return value
    return (b"true" if value else b"false") if isinstance(value, bool) else str(int(value)).encode()


def part_of_time(op: str, t: int, offset: int) -> int:
    return part(op, int(t), offset)  # NumPy's calendar: Python's ends with the year 9999


def bucketize(x: Any, boundaries: Sequence[float]) -> int:
    return len(boundaries) if x != x else sum(b <= x for b in boundaries)


def is_in(x: Any, values: Sequence[Any]) -> bool:
    return any(x == value_of(v) for v in values)


UNITS = {"seconds": 1e6, "minutes": 60e6, "hours": 3600e6, "days": 86400e6}
PARTS = ("hour", "minute", "weekday", "day", "month", "year", "epoch_day")

# Arguments are the values of the row, none of them null, then the parameters by name.
OPERATORS: dict[str, Callable[..., Any]] = {
    "cast": cast,
    "add": arithmetic(lambda a, b: a + b, lambda a, b: a + b),
    "sub": arithmetic(lambda a, b: a - b, lambda a, b: a - b),
    "mul": arithmetic(lambda a, b: a * b, lambda a, b: a * b),
    "div": double(lambda a, b: a / b),
    "floordiv": floordiv,
    "mod": lambda a, b: None if b == 0 else int(a) % int(b),
    "neg": lambda a: -a if is_float(a) else wrap(-a),
    "abs": lambda a: abs(a) if is_float(a) else wrap(abs(a)),
    "sqrt": double(np.sqrt),
    "log1p": double(np.log1p),
    "round": lambda a, digits: round_half_even(float(a), digits),
    "floor": double(np.floor),
    "ceil": double(np.ceil),
    "clip": clip,
    "is_nan": lambda a: a != a,
    "bucketize": bucketize,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
    "is_in": is_in,
    **{op: lambda t, offset, op=op: part_of_time(op, t, offset) for op in PARTS},
    "age": lambda now, then, unit: double(lambda d, u: d / u)(wrap(now - then), UNITS[unit]),
    "length": lambda x: len(x) if isinstance(x, list) else strings.length(x),
    "byte_length": len,
    "lower": strings.lower,
    "strip": lambda s, characters: strings.strip(s, characters),
    "prefix": strings.prefix,
    "suffix": strings.suffix,
    "substring": strings.substring,
    "contains": lambda x, *key, text="": hashed(key[0]) in hashed(x) if key else text.encode() in x,
    "starts_with": lambda s, text: s.startswith(text.encode()),
    "ends_with": lambda s, text: s.endswith(text.encode()),
    "replace": strings.replace,
    "concat": lambda a, b, separator: a + separator.encode() + b,
    "split": lambda s, separator: strings.split(s, separator),
    "words": strings.words,
    "ngrams": lambda x, n: lists.ngrams(hashed(x), n) if isinstance(x, list) else strings.ngrams(x, n),
    "edit_distance": strings.edit_distance,
    "first": lists.first,
    "last": lists.last,
    "get": lists.get,
    "join": lambda x, separator: lists.join(x, separator),
    "distinct": lists.distinct,
    "sum": lambda x: lists.sum_float(x) if x and is_float(x[0]) else lists.sum_int(x),
    "mean": lists.mean,
    "min": lambda a, *b: lesser(a, b[0]) if b else lists.smallest(a),
    "max": lambda a, *b: greater(a, b[0]) if b else lists.largest(a),
    "hash": hashed,
    "key": lambda x, space: salted(hashed(x), space),
    "cross": lambda *members, limit, space: (
        crossed(members, limit) if space is None else salted(crossed(members, limit), space)
    ),
    "overlap_count": lambda a, b: lists.overlap_count(hashed(a), hashed(b)),
    "overlap_jaccard": lambda a, b: lists.overlap_jaccard(hashed(a), hashed(b)),
}


def lookup(word: Any, table: Any, default: Any) -> Any:
    known = {}
    for k, w in enumerate(table.words.to_pylist()):
        known.setdefault(value_of(w), k)
    if table.width:
        rows = table.vectors.reshape(-1, table.width)
        return [float(x) for x in rows[known[word]]] if word in known else []
    if isinstance(word, list):
        return [lookup(w, table, default) for w in word]
    return int(table.ids[known[word]]) if word in known else default


def call_user(op: Any, args: Sequence[Any]) -> Any:
    """A user's function over columns of one row."""
    arrays = [as_array([a], kind) for a, kind in zip(args, op.args, strict=True)]
    if op.arrays == "numpy":
        arrays = [a.to_numpy(zero_copy_only=False) for a in arrays]
    result = op.function(*arrays)
    array = result if isinstance(result, pa.Array | pa.ChunkedArray) else pa.array(result)
    return value_of(array.to_pylist()[0])


def as_array(values: list[Any], kind: str) -> pa.Array:
    if kind == "s":
        return pa.array(values, pa.large_binary()).view(pa.large_string())
    return pa.array([int(v) if isinstance(v, Moment) else v for v in values], arrow_type(kind))


@dataclass
class Oracle:
    """The job over views given as lists of rows, by the name of the view."""

    views: Mapping[str, list[Row]]
    malformed: int = 0  # documents that were not JSON, as often as they were looked at
    cut: int = 0  # rows whose cross had more keys than its limit
    indexes: dict[int, tuple[View, dict[tuple[Any, ...], Row]]] = field(default_factory=dict)

    def evaluate(self, e: Expr, row: Row) -> Any:
        params = dict(e.params)
        if e.op == "column":
            return row[params["name"]]
        if e.op == "literal":
            return value_of(params["value"])
        if e.op == "fill":
            value = self.evaluate(e.args[0], row)
            return self.evaluate(e.args[1], row) if value is None else value
        if e.op == "is_null":
            return self.evaluate(e.args[0], row) is None
        if e.op == "select":  # a null condition takes the second branch
            return self.evaluate(e.args[1 if self.evaluate(e.args[0], row) else 2], row)
        args = [self.evaluate(a, row) for a in e.args]
        if e.op == "user":
            return call_user(params["function"], args)
        if any(a is None for a in args):
            return None
        if e.op == "json":
            return self.json(args[0], **params)
        if e.op == "dictionary":
            return lookup(args[0], params["table"], params["default"])
        if e.op == "cross":
            size = math.prod(len(a) if isinstance(a, list) else 1 for a in args)
            self.cut += size > params["limit"]
        result = OPERATORS[e.op](*args, **params)
        return [Key(x) for x in result] if e.op == "ngrams" and isinstance(args[0], list) else result

    def json(self, doc: bytes, path: str, to: str, strict: bool) -> Any:
        try:
            tree = parse_json(doc)
        except Malformed:
            if strict:
                raise
            self.malformed += 1
            return None
        found = at_path(tree, path)
        return None if found is None else json_as(found, to)

    # ---- views
    def rows(self, view: View) -> list[Row]:
        """The rows of a view after its steps, in order."""
        cleaned = (self.through(view, raw) for raw in self.views[view.name])
        return [row for row in cleaned if row is not None]

    def through(self, view: View, raw: Row, filters: bool = True) -> Row | None:
        """A raw row through the steps of its view; None where a filter drops it."""
        row = {name: value_of(x) for name, x in raw.items()}
        for step in view.steps:
            match step:
                case WithColumns(columns):
                    row = row | {name: self.evaluate(expression(e), row) for name, e in columns}
                case Fill(values):
                    for name, value in values:
                        row[name] = self.evaluate(col(name).fill(value), row)
                case Cast(types):
                    for name, to in types:
                        row[name] = self.evaluate(col(name).cast(to), row)
                case Filter(condition):
                    if filters and self.evaluate(condition, row) is not True:
                        return None
                case Select(columns):
                    row = {name: row[name] for name in columns}
                case Join(other, on, how, prefix):
                    found = self.find(other, tuple(row[name] for name in on))
                    if found is None and how == "inner" and filters:
                        return None
                    row = row | self.brought(other, found, prefix)
                case Merge(other):
                    row = row | self.brought(other, self.find(other, (row[view.key[0]],)), "")
        return row

    def find(self, view: View, key: tuple[Any, ...]) -> Row | None:
        """The row of a joined view with this key; a key with a null in it is in no view."""
        if id(view) not in self.indexes:
            index: dict[tuple[Any, ...], Row] = {}
            for raw in self.views[view.name]:
                row = self.through(view, raw)
                if row is None:
                    continue
                own = tuple(value_of(raw[name]) for name in view.key)
                if None in own:
                    raise ValueError(f"null key in {view.name}")
                if own in index and view.keep != "last":
                    raise ValueError(f"duplicate key {own} in {view.name}")
                index[own] = row
            self.indexes[id(view)] = (view, index)
        return None if None in key else self.indexes[id(view)][1].get(key)

    def brought(self, view: View, found: Row | None, prefix: str) -> Row:
        """The columns a join takes along. A missing key is a row of nulls, cleaned but not filtered."""
        if found is None:
            found = self.through(view, dict.fromkeys(view.source.schema.names), filters=False)
        assert found is not None
        return {prefix + name: x for name, x in found.items() if name not in view.key}

    # ---- features
    def features(self, log: View, wanted: FeatureSet) -> Extracted:
        out = Extracted()
        for row in self.rows(log):
            out.label.append(None if wanted.label is None else as_float32(self.evaluate(wanted.label, row)))
            out.weight.append(None if wanted.weight is None else as_float32(self.evaluate(wanted.weight, row)))
            out.group.append(None if wanted.group is None else as_int64(hashed(self.evaluate(wanted.group, row))))
            out.dense.append([as_float32(self.evaluate(e, row)) for e in wanted.dense.values()])
            out.sparse.append({name: self.keys(name, e, row) for name, e in wanted.sparse.items()})
        return out

    def keys(self, name: str, e: Expr, row: Row) -> list[int]:
        """The keys of a sparse feature; its space is the feature's name unless it says another."""
        space = name
        if e.op in ("key", "cross"):
            params = dict(e.params)
            space = params["space"] or name
            e = Expr(e.op, e.args, tuple({**params, "space": None}.items())) if e.op == "cross" else e.args[0]
        value = salted(hashed(self.evaluate(e, row)), space)
        return [as_int64(k) for k in value] if isinstance(value, list) else [as_int64(value)]


@dataclass
class Extracted:
    """What the batches must hold, row by row."""

    label: list[Any] = field(default_factory=list)
    weight: list[Any] = field(default_factory=list)
    group: list[Any] = field(default_factory=list)
    dense: list[list[Any]] = field(default_factory=list)
    sparse: list[dict[str, list[int]]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.dense)


def as_float32(value: Any) -> np.float32:
    """Rounded once: a whole number goes straight to float32."""
    assert value is not None, "a feature is null"
    with np.errstate(over="ignore"):
        return (np.float64(value) if is_float(value) else np.int64(value)).astype(np.float32)


def as_int64(key: int) -> int:
    return wrap(int(key))
