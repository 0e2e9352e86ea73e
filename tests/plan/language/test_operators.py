"""Tests the operators, constants and kinds that each expression becomes, and the whole message of each refusal."""

from __future__ import annotations

import inspect
from datetime import datetime

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col, lit, when
from ctrbox.columns.kind import name_of
from ctrbox.columns.times import FIRST, LAST
from ctrbox.errors import PlanError
from ctrbox.plan.drawing.explain import Words
from ctrbox.plan.graph.build_graph import build_columns
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.language.expressions import Expr

ROWS = pa.table(
    {
        "i": pa.array([1, None]),
        "f": pa.array([0.5, None]),
        "b": pa.array([True, None]),
        "s": pa.array(["a", None]),
        "t": pa.array([0, None], pa.timestamp("us")),
        "n": [1, 2],
        "x": [0.5, 1.5],
        "y": [True, False],
        "w": ["a", "b"],
        "at": pa.array([0, 1], pa.timestamp("us")),
        "ws": pa.array([["a"], []], pa.list_(pa.string())),
        "ns": pa.array([[1], None], pa.list_(pa.int64())),
        "xs": pa.array([[1.0], []], pa.list_(pa.float64())),
    }
)
LOG = cb.View(ROWS, name="log")
WORDS = cb.Dictionary(["a", "b"], [10, 20])
VECTORS = cb.Dictionary(["a", "b"], [[1.0, 2.0], [3.0, 4.0]])


@cb.operator(args=["float", "int"], result="float")
def mixed(a: pa.Array, b: pa.Array) -> pa.Array:
    return a


def drawn(graph: Graph) -> str:
    """Return the operators with their kinds; columns by name, and each other operator by its place behind them."""
    words = Words(graph)
    nodes = graph.nodes(graph.frames[0])
    names = {f"{n}": n.name for n in nodes if n.op == "column"}
    others = [n for n in nodes if n.op not in ("column", "literal")]
    names |= {f"{n}": f"#{k}" for k, n in enumerate(others)}

    def named(text: str) -> str:
        for number in sorted(names, key=len, reverse=True):
            text = text.replace(number, names[number])
        return text

    return "; ".join(f"{named(words.operator(n))} {name_of(n.kind)}{'?' if n.nullable else ''}" for n in others)


def of(e: Expr) -> str:
    return drawn(build_columns(LOG, {"x": e}))


def refused(e: Expr) -> str:
    with pytest.raises(PlanError) as caught:
        of(e)
    return str(caught.value)


@pytest.mark.parametrize(
    ("e", "shown"),
    [
        (col("i").fill(2.0), "fill(i, 2) int"),
        (col("i").fill(True), "fill(i, 1) int"),
        (col("i").fill(col("n")), "fill(i, n) int"),
        (col("i").fill(col("i") + 1), "add(i, 1) int?; fill(i, #0) int?"),
        (col("n").fill(5), ""),
        (col("f").fill(3), "fill(f, 3.0) float"),
        (col("f").fill(True), "fill(f, 1.0) float"),
        (col("b").fill(1), "fill(b, True) bool"),
        (col("b").fill(0), "fill(b, False) bool"),
        (col("t").fill(datetime(1970, 1, 1, 0, 0, 1)), "fill(t, 1000000 µs) time"),
        (col("t").fill(0), "fill(t, 0 µs) time"),
        (col("ns").fill([]), "fill(ns, []) list[int]"),
        (col("n") == 1, "eq(n, 1) bool"),
        (col("n") == lit(True), "eq(n, 1) bool"),
        (col("n") == 2.0, "cast_f(n) float; eq(#0, 2.0) bool"),
        (col("x") == 1, "eq(x, 1.0) bool"),
        (col("at") < 0, "lt(at, 0 µs) bool"),
        (col("at") < datetime(1970, 1, 1, 0, 0, 1), "lt(at, 1000000 µs) bool"),
        (col("w") == "a", 'eq(w, "a") bool'),
        (lit(1) < col("n"), "lt(1, n) bool"),
        (col("y") == 1, "cast_i(y) int; eq(#0, 1) bool"),
        (col("ns").cast("float"), "cast_f(ns) list[float]?"),
        (col("ws").cast("list[int]"), "cast_i(ws) list[int]"),
        (col("n").cast("int"), ""),
        (col("w").cast("time"), "cast_t(w) time?"),
        (
            col("n").cast("time", unit="s"),
            (
                "mul(n, 1000000) int; clip(n, -62135596800, 253402300799) int; eq(#1, n) bool; cast_i(#2) int; "
                "floordiv(#0, #3) int?; cast_t(#4) time?"
            ),
        ),
        (
            col("n").cast("time", unit="us"),
            (
                "clip(n, -62135596800000000, 253402300799999999) int; eq(#0, n) bool; cast_i(#1) int; floordiv(n, "
                "#2) int?; cast_t(#3) time?"
            ),
        ),
        (col("n").cast("time", unit="ns"), "floordiv(n, 1000) int?; cast_t(#0) time?"),
        (
            col("n").cast("time", unit="ms") == lit(0).cast("time", unit="ns"),
            (
                "mul(n, 1000) int; clip(n, -62135596800000, 253402300799999) int; eq(#1, n) bool; cast_i(#2) int; "
                "floordiv(#0, #3) int?; cast_t(#4) time?; eq(#5, 0 µs) bool?"
            ),
        ),
        (lit(-1).cast("time", unit="ns") < col("at"), "lt(-1 µs, at) bool"),
        (lit(FIRST).cast("time", unit="us") < col("at"), "lt(-62135596800000000 µs, at) bool"),
        (lit(LAST).cast("time", unit="us") < col("at"), "lt(253402300799999999 µs, at) bool"),
        (lit(LAST // 1_000_000).cast("time", unit="s") < col("at"), "lt(253402300799000000 µs, at) bool"),
        (when(col("b")).then(1).otherwise(col("x")), "select(b, 1.0, x) float"),
        (when(col("y")).then(col("n")).otherwise(2.0), "select(y, n, 2) int"),
        (when(col("y")).then(col("i")).otherwise(0), "select(y, i, 0) int?"),
        (when(col("y")).then(0).otherwise(col("i")), "select(y, 0, i) int?"),
        (when(col("b")).then(0).otherwise(1), "select(b, 0, 1) int"),
        (col("i").is_null(), "is_null(i) bool"),
        (~col("s").is_null(), "is_null(s) bool; not(#0) bool"),
        (col("n").clip(0, 5), "clip(n, 0, 5) int"),
        (col("n").clip(5, 5), "clip(n, 5, 5) int"),
        (col("n").clip(0.0, 5), "cast_f(n) float; clip(#0, 0, 5) float"),
        (col("n").clip(0, 5.5), "cast_f(n) float; clip(#0, 0, 5.5) float"),
        (col("x").clip(0, 5), "clip(x, 0, 5) float"),
        (col("y").clip(0, 1), "cast_i(y) int; cast_f(#0) float; clip(#1, 0, 1) float"),
        (col("y").bucketize([0.5]), "cast_i(y) int; cast_f(#0) float; bucketize(#1, [0.5]) int"),
        (col("n").bucketize([1, 2]), "cast_f(n) float; bucketize(#0, [1, 2]) int"),
        (col("x").bucketize([0.5]), "bucketize(x, [0.5]) int"),
        (col("y").is_in([0, 1]), "cast_i(y) int; is_in(#0, {0, 1}) bool"),
        (col("n").is_in([1, -(2**63), 2**63 - 1]), "is_in(n, {1, -9223372036854775808, 9223372036854775807}) bool"),
        (col("x").is_in([1, 0.5, 2**1000]), "is_in(x, {1, 0.5, 1.07151e+301}) bool"),
        (col("w").is_in(["a", b"b"]), 'is_in(w, {"a", "b"}) bool'),
        (col("at").is_in([datetime(1970, 1, 1), 0]), "is_in(at, {0, 0}) bool"),
        (col("at").age(datetime(1970, 1, 1), "days"), "age(at, 0 µs, 8.64e+10) float"),
        (col("at").age(col("t"), "minutes"), "age(at, t, 6e+07) float?"),
        (col("w").contains("a"), 'contains(w, "a") bool'),
        (col("ws").contains(col("w")), "hash(ws) list[key]; hash(w) key; contains(#0, #1) bool"),
        (col("w").json("$.a"), "json(w, $.a) str?"),
        (col("w").json("$.a", "list[int]", strict=True), "json(w, $.a) list[int]?"),
        (col("ws").key(space="q"), "hash(ws) list[key]; key(#0, 742407522095701382) list[key]"),
        (col("ws").hash(), "hash(ws) list[key]"),
        (col("ns").as_key(), "as_key(ns) list[key]?"),
        (cb.cross("n", "w"), "hash(n) key; hash(w) key; cross(#0, #1) key"),
        (cb.cross("n", "w", "y"), "hash(n) key; hash(w) key; cross(#0, #1) key; hash(y) key; cross(#2, #3) key"),
        (cb.cross("ws", "n"), "hash(ws) list[key]; hash(n) key; cross(#0, #1, 1024) list[key]"),
        (
            cb.cross("n", "ws", "w", limit=7),
            "hash(n) key; hash(ws) list[key]; cross(#0, #1, 8) list[key]; hash(w) key; cross(#2, #3, 7) list[key]",
        ),
        (cb.cross("ws", "ns", limit=7), "hash(ws) list[key]; hash(ns) list[key]?; cross(#0, #1, 7) list[key]?"),
        (col("w").ngrams(2), "ngrams(w, 2) list[str]"),
        (col("ws").ngrams(2), "hash(ws) list[key]; ngrams(#0, 2) list[key]"),
        (cb.overlap("ws", "ws"), "hash(ws) list[key]; overlap_count(#0, #0) int"),
        (
            cb.overlap("ws", col("w").split(" "), "jaccard"),
            (
                'hash(ws) list[key]; split(w, " ") list[str]; hash(#1) list[key]; overlap_count(#0, #2) int; '
                "distinct_count(#0) int; distinct_count(#2) int; jaccard(#3, #4, #5) float"
            ),
        ),
        (col("w").lookup(VECTORS), "hash(w) key; dictionary_vector(#0, 2 words) list[float]"),
        (col("w").lookup(WORDS), "hash(w) key; dictionary_maybe(#0, 2 words) int?"),
        (col("w").lookup(WORDS, default=-1), "hash(w) key; dictionary_id(#0, -1, 2 words) int"),
        (col("ws").lookup(WORDS, default=True), "hash(ws) list[key]; dictionary_id(#0, 1, 2 words) list[int]"),
        (mixed(col("n"), col("y")), "cast_f(n) float; cast_i(y) int; mixed(#0, #1) float"),
        (mixed(col("f"), col("n")), "mixed(f, n) float"),
        (col("n") + col("y"), "cast_i(y) int; add(n, #0) int"),
        (col("n") / col("n"), "cast_f(n) float; div(#0, #0) float"),
        (col("n") + 0.5, "cast_f(n) float; add(#0, 0.5) float"),
        (lit(1) + lit(True) + col("n"), "add(1, 1) int; add(#0, n) int"),
        (col("w").substring(1), "substring(w, 1, -1) str"),
        (col("x").round(2), "round(x, 2) float"),
        (col("w").strip("ab"), 'strip(w, "ab") str'),
        (col("w").split(", "), 'split(w, ", ") list[str]'),
        (cb.min_("n", 2), "min(n, 2) int"),
        (col("ns").max(), "max(ns) int?"),
    ],
)
def test_an_expression_becomes_operators_of_fitting_kinds(e: Expr, shown: str) -> None:
    assert of(e) == shown


@pytest.mark.parametrize(
    ("e", "told"),
    [
        (
            col("at").cast("str"),
            "cast('str') of time ('at') is not possible; it takes bool or int or list[int]; .cast('int') first",
        ),
        (col("i").fill("a"), "fill of column 'i' (int) must be int, got str"),
        (col("i").fill(2.5), "fill of column 'i' (int) must be int, got float"),
        (col("i").fill(2.0**63), "fill of column 'i' (int) must be int, got float"),
        (col("i").fill(-(2.0**63)), "fill of column 'i' (int) must be int, got float"),
        (col("b").fill(2), "fill of column 'b' (bool) must be bool, got int"),
        (col("n").fill([]), "fill of column 'n' (int) must be int, got list[str]"),
        (col("s").fill([]), "fill of column 's' (str) must be str, got list[str]"),
        (
            col("t").fill(5),
            (
                "the constant 5 is used with 't', which is a time, but a number has no unit; write datetime(2026, "
                "1, 31, 9, 30), or cb.lit(5).cast('time', unit='s') with its unit, 's', 'ms', 'us' or 'ns'"
            ),
        ),
        (
            col("at") == 5,
            (
                "the constant 5 is used with 'at', which is a time, but a number has no unit; write datetime(2026, "
                "1, 31, 9, 30), or cb.lit(5).cast('time', unit='s') with its unit, 's', 'ms', 'us' or 'ns'"
            ),
        ),
        (
            lit(datetime(1970, 1, 2)) == 5,
            (
                "the constant 5 is used with 'a value', which is a time, but a number has no unit; write "
                "datetime(2026, 1, 31, 9, 30), or cb.lit(5).cast('time', unit='s') with its unit, 's', 'ms', 'us' "
                "or 'ns'"
            ),
        ),
        (
            col("at").is_in([5]),
            (
                "the constant 5 is used with 'at', which is a time, but a number has no unit; write datetime(2026, "
                "1, 31, 9, 30), or cb.lit(5).cast('time', unit='s') with its unit, 's', 'ms', 'us' or 'ns'"
            ),
        ),
        (
            col("at").is_in([0.5]),
            "is_in on 'at' (time, 64 bits) cannot contain 0.5 (float); give values of the type of the column",
        ),
        (col("w").cast("list[key]"), "cast cannot convert to 'list[key]'; expected int, float, str, bool or time"),
        (col("w").cast("list[int]"), "cast of 'w' (str) to a list is not possible; use .split(…) or .json(…)"),
        (
            col("n").cast("time"),
            (
                "cast to time of 'n', which is int, needs the unit that it counts since 1970: .cast('time', "
                "unit='s'), or 'ms', 'us' or 'ns'; in a view, write this cast in .with_columns(…)"
            ),
        ),
        (
            lit(5).cast("time"),
            (
                "cast to time of 'a number', which is int, needs the unit that it counts since 1970: .cast('time', "
                "unit='s'), or 'ms', 'us' or 'ns'; in a view, write this cast in .with_columns(…)"
            ),
        ),
        (
            col("x").cast("time", unit="us"),
            (
                "cast to time with unit='us' takes whole numbers, but 'x' is float; make it a whole number of "
                "microseconds first; if it counts seconds: (col(…) * 1000000).round().cast('int').cast('time', "
                "unit='us')"
            ),
        ),
        (
            col("w").cast("time", unit="s"),
            (
                "cast to time with unit='s' takes whole numbers, but 'w' is str; cast text without unit=, or "
                "convert it to a number first: .cast('int').cast('time', unit='s')"
            ),
        ),
        (
            col("at").cast("time", unit="s"),
            "cast to time with unit='s' takes whole numbers, but 'at' is time; it needs no cast",
        ),
        (col("y").cast("time", unit="s"), "cast to time with unit='s' takes whole numbers, but 'y' is bool"),
        (
            lit(LAST + 1).cast("time", unit="us"),
            (
                "cast to time with unit='us' of 253402300800000000 is a time outside the years 0001 to 9999; check "
                "the unit"
            ),
        ),
        (
            lit(FIRST - 1).cast("time", unit="us"),
            (
                "cast to time with unit='us' of -62135596800000001 is a time outside the years 0001 to 9999; check "
                "the unit"
            ),
        ),
        (
            lit(LAST).cast("time", unit="s"),
            (
                "cast to time with unit='s' of 253402300799999999 is a time outside the years 0001 to 9999; check "
                "the unit"
            ),
        ),
        (col("n").clip(True, 5), "clip needs a number for each bound, got True"),
        (col("n").clip(0, "5"), "clip needs a number for each bound, got '5'"),
        (
            col("n").clip(2**63, 2**64),
            "clip: 9223372036854775808 does not fit into 64 bits; write it as a float: 9.223372036854776e+18",
        ),
        (col("n").clip(2, 1), "clip needs low <= high, got low=2 and high=1"),
        (col("n").clip(0.0, float("nan")), "clip needs low <= high, got low=0.0 and high=nan"),
        (col("at").bucketize([1.0]), "bucketize takes a number, not time ('at')"),
        (col("ns").standardize(), "standardize takes a number, not list[int] ('ns')"),
        (col("ns").is_in([1]), "is_in takes int, float, str or time, not list[int] ('ns')"),
        (
            col("n").is_in([0.5]),
            "is_in on 'n' (int, 64 bits) cannot contain 0.5 (float); give values of the type of the column",
        ),
        (
            col("n").is_in([2**63]),
            (
                "is_in on 'n' (int, 64 bits) cannot contain 9223372036854775808 (int); give values of the type of "
                "the column"
            ),
        ),
        (
            col("n").is_in([datetime(1970, 1, 1)]),
            "is_in on 'n' (int, 64 bits) cannot contain 0 (Time); give values of the type of the column",
        ),
        (
            col("x").is_in([2**1023]),
            (
                "is_in on 'x' (float, 64 bits) cannot contain "
                "8988465674311579538646525953945123668089884894711532863671504057886633790275048… (int); give "
                "values of the type of the column"
            ),
        ),
        (
            col("x").is_in(["a"]),
            "is_in on 'x' (float, 64 bits) cannot contain 'a' (str); give values of the type of the column",
        ),
        (
            col("w").is_in([1]),
            "is_in on 'w' (str, 64 bits) cannot contain 1 (int); give values of the type of the column",
        ),
        (
            Expr("age", (col("at"), col("at")), (("unit", "weeks"),)),
            "age needs a unit of seconds, minutes, hours, days, got 'weeks'",
        ),
        (
            Expr("age", (col("at"), col("at")), (("unit", 5),)),
            "age needs a unit of seconds, minutes, hours, days, got 5",
        ),
        (
            col("at").age(5),
            (
                "age of time ('at') and int is not possible; it takes time and time; write a datetime, cast a "
                "string with .cast('time') or a whole number with .cast('time', unit='s')"
            ),
        ),
        (
            col("w").json("$.a", "list[time]"),
            "json can return str, int, float, bool or a list of str, int or float, not 'list[time]'",
        ),
        (
            col("w").json("$.a", "key"),
            "json can return str, int, float, bool or a list of str, int or float, not 'key'",
        ),
        (col("x").json("$.a"), "json reads a str column; 'x' is float"),
        (
            Expr("json", (col("w"),), (("path", "$.a"), ("strict", 1), ("to", "str"))),
            "json needs a path and strict=True or False, got '$.a' and 1",
        ),
        (col("w").json("$..a"), "JSON path '$..a': '..' is not supported at position 2"),
        (
            col("x").key("q"),
            (
                "key: 'x' is float, which cannot be a key, because numbers that are nearly equal would get "
                "unrelated keys; use .bucketize([…]) or .round().cast('int').fill(0), or put it under dense"
            ),
        ),
        (
            col("xs").key("q"),
            (
                "key: 'xs' is list[float], which cannot be a key, because numbers that are nearly equal would get "
                "unrelated keys; use one element, .get(n) or .max(), and .bucketize([…]) or "
                ".round().cast('int').fill(0), or put it under dense"
            ),
        ),
        (
            col("x").hash(),
            (
                "hash of float ('x') is not possible; it takes bool or int or list[bool] or list[int] or list[str] "
                "or list[time] or str or time; a float cannot be a key: .bucketize([…]) or "
                ".round().cast('int').fill(0) first"
            ),
        ),
        (
            col("w").key(),
            "key needs a space here, because it is not a sparse feature whose name it could use: .key(space='…')",
        ),
        (col("x").as_key(), "as_key takes whole numbers that are already keys; 'x' is float; use .key()"),
        (col("w").as_key(space="q"), "as_key takes whole numbers that are already keys; 'w' is str; use .key()"),
        (
            cb.cross("n", "x"),
            (
                "cross: 'x' is float, which cannot be a key, because numbers that are nearly equal would get "
                "unrelated keys; use .bucketize([…]) or .round().cast('int').fill(0), or put it under dense"
            ),
        ),
        (
            col("x").ngrams(2),
            (
                "ngrams: 'x' is float, which cannot be a key, because numbers that are nearly equal would get "
                "unrelated keys; use .bucketize([…]) or .round().cast('int').fill(0), or put it under dense"
            ),
        ),
        (
            cb.overlap("n", "ws"),
            (
                "overlap of key ('n') and list[key] ('ws') is not possible; it takes list[key] and list[key]; make "
                "lists with .split(…) or .words()"
            ),
        ),
        (Expr("dictionary", (col("w"),), (("default", None), ("table", 5))), "lookup needs a cb.Dictionary, got int"),
        (col("n").lookup(WORDS), "lookup of 'n' (int) in a dictionary of str; cast the column or the words"),
        (
            col("ws").lookup(WORDS),
            (
                "lookup of a list needs a default for words that the dictionary does not contain: "
                ".lookup(dictionary, default=0)"
            ),
        ),
        (
            col("w").lookup(WORDS, default=0.5),
            "the default of a dictionary of ids must be a whole number of 64 bits, got 0.5",
        ),
        (
            col("w").lookup(WORDS, default=2**63),
            "the default of a dictionary of ids must be a whole number of 64 bits, got 9223372036854775808",
        ),
        (
            cb.shows("n", time="n", label="y"),
            (
                "shows needs a time column, but 'n' is int; make it a time with .cast('time', unit='s'); the unit is "
                "'s', 'ms', 'us' or 'ns'"
            ),
        ),
        (
            cb.shows("n", time="w", label="y"),
            "shows needs a time column, but 'w' is str; make it a time with .cast('time')",
        ),
        (cb.shows("n", time="x", label="y"), "shows needs a time column, but 'x' is float"),
        (
            cb.shows("xs", time="at", label="y"),
            (
                "shows: 'xs' is list[float], which cannot be a key, because numbers that are nearly equal would "
                "get unrelated keys; use one element, .get(n) or .max(), and .bucketize([…]) or "
                ".round().cast('int').fill(0), or put it under dense"
            ),
        ),
        (cb.shows("n", "ws", time="at", label="y"), "shows counts single values, not lists ('ws')"),
        (cb.shows("n", time="at", label="w"), "shows needs a label of numbers, but 'w' is str"),
        (
            Expr("history", (col("y"), col("at")), (("buckets", 0), ("every", 1), ("what", "clicks"))),
            "clicks needs the columns to group by",
        ),
        (mixed(col("w"), col("n")), "operator 'mixed' takes float as argument 1, got str ('w')"),
        (mixed(col("x"), col("x")), "operator 'mixed' takes int as argument 2, got float ('x')"),
        (Expr("user", (col("n"),), (("function", mixed),)), "operator 'mixed' takes 2 columns, got 1"),
        (
            Expr("user", (col("n"),), (("function", len),)),
            "an operator must be declared with @cb.operator, got <built-in function len>",
        ),
        (col("w") + 1, "+ of str ('w') and int is not possible; it takes float and float or int and int"),
        (
            col("n") + col("at"),
            "+ of int ('n') and time ('at') is not possible; it takes float and float or int and int",
        ),
        (col("w").abs(), "abs of str ('w') is not possible; it takes float or int; .cast('int') first"),
        (col("n").lower(), "lower of int ('n') is not possible; it takes str; .cast('str') first"),
        (
            col("n").hour(),
            (
                "hour of int ('n') is not possible; it takes time; make it a time with .cast('time', unit='s'); "
                "the unit is 's', 'ms', 'us' or 'ns'"
            ),
        ),
        (col("w").hour(), "hour of str ('w') is not possible; it takes time; .cast('time') first"),
        (col("w").sum(), "sum of str ('w') is not possible; it takes list[float] or list[int]"),
        (
            col("ns").min() > "a",
            (
                "> of int ('ns') and str is not possible; it takes bool and bool or float and float or int and int "
                "or str and str or time and time"
            ),
        ),
        (
            col("n").min(),
            (
                "min of int ('n') is not possible; it takes list[float] or list[int]; the smaller of two values of "
                "a row is cb.min_(a, b)"
            ),
        ),
        (
            when(col("n")).then(1).otherwise(2),
            (
                "when(…).then(…).otherwise(…) needs a bool condition and two branches of one kind, got int ('n') "
                "and int and int"
            ),
        ),
        (
            when(col("y")).then("a").otherwise(col("n")),
            (
                "when(…).then(…).otherwise(…) needs a bool condition and two branches of one kind, got bool ('y') "
                "and str and int ('n')"
            ),
        ),
        (
            cb.max_("w", "n"),
            (
                "max of str ('w') and int ('n') is not possible; it takes float and float or int and int or time "
                "and time; the larger of two values of a row is cb.max_(a, b)"
            ),
        ),
        (col("ws").mean(), "mean of list[str] ('ws') is not possible; it takes list[float]; .cast('float') first"),
        (
            col("at").cast("float"),
            (
                "cast('float') of time ('at') is not possible; it takes bool or int or list[int] or list[str] or "
                "str; .cast('int') first"
            ),
        ),
        (
            col("ws").cast("bool"),
            (
                "cast('bool') of list[str] ('ws') is not possible; it takes float or int; compare instead: "
                "col('x') == 'true'"
            ),
        ),
        (~col("n"), "~ of int ('n') is not possible; it takes bool; .cast('bool') first"),
        (col("y") & 1.5, "& of bool ('y') and float is not possible; it takes bool and bool"),
        (col("n").edit_distance("a"), "edit_distance of int ('n') and str is not possible; it takes str and str"),
    ],
)
def test_an_expression_that_cannot_be_is_refused_in_a_sentence(e: Expr, told: str) -> None:
    assert refused(e) == told


def test_an_error_knows_the_line_on_which_the_wrong_operator_is_written() -> None:
    here = inspect.currentframe()
    assert here is not None
    first = col("w").lower()
    wrong = first.abs()
    line = here.f_lineno - 1
    last = wrong + 1
    for e in (wrong, last):
        with pytest.raises(PlanError) as caught:
            of(e)
        assert caught.value.written_at == (__file__, line)
