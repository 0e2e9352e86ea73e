"""A whole plan equals a plain-Python oracle: any threads, chunk and batch size, from memory and from files.

Hypothesis draws the shape of the job (steps, expressions, engine settings) and a seed for the cells of the
raw rows: shrinking works on the job, and an example costs milliseconds.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch
from tests.engines.cuda.hostile import EDGES, SPECIAL
from tests.oracle import Extracted, Oracle, Row

THREADS, CHUNKS, BATCHES = (1, 2, 3), (1, 2, 7, 1024), (1, 3, 1000)

# ---- raw rows ----------------------------------------------------------------------------------------------

WORDS = [
    "red",
    "shoes",
    "RED",
    "Shoes",
    "ΣΊΣΥΦΟΣ",
    "straße",
    "Ünïcode",
    "靴",
    "赤い",
    "靴下",
    "👟",
    "👩‍👩‍👧",
    "e\u0301te\u0301",
    "a_b",
    "42",
    "-7",
    "3.5",
    "1e3",
]
BROKEN = [b"\xff", b"na\xc3", b"\xed\xa0\x80 x", b"ok \xf0\x9f bad", b"\x00nul"]
DOCUMENTS = [
    '{"geo": {"city": "Łódź", "zip": 90001}, "slot": 3, "tags": ["a", "b", null, 7], "ok": true}',
    '{"geo":{"city":"\\u00e9\\ud83d\\ude00\\ud800"},"slot":-2,"depth":1.25,"nums":[1,2.0,2.5,"x",9007199254740993]}',
    '{"slot": 9223372036854775808, "depth": 1e400, "ok": false, "geo": null}',
    '{"slot": 1, "slot": 2, "geo": {"city": ""}}',
    "[1, 2]",
    "7",
    " {} ",
    "",
    "{",
    '{"slot": 1,}',
    '{"slot": NaN}',
    "not json",
    '{"geo": {"city": "tab\there"}}',
]
FLOATS = [*EDGES, *SPECIAL, 16777217.0]
INTS = [0, 1, -1, 2, 7, -7, 100, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 16777217]
MOMENTS = [
    0,
    -1,
    1_700_000_000_000_000,
    1_709_251_199_999_999,
    -86_400_000_001,
    951_782_400_000_000,
    4_102_444_800_000_000,
]
TEXT_TIMES = ["2024-02-29T23:59:59.5Z", "2023-02-29", "1999-12-31 12:00+05:30", "", "yesterday"]
AD_KEYS = ["a1", "a2", "a3", "é", "", "a-long-key-of-more-than-16-bytes"]


@dataclass
class World:
    """Raw rows of every view, as columns."""

    tables: dict[str, pa.Table]

    def rows(self) -> dict[str, list[Row]]:
        return {name: table.to_pylist() for name, table in self.tables.items()}


def world(seed: int, rows: int, *, ordered: bool, nulls: bool = True) -> World:
    """A small ad log with everything that can be odd about one."""
    rng = random.Random(seed)

    def some(values: Any, share: float = 0.2) -> Any:
        return None if nulls and rng.random() < share else rng.choice(values)

    def text() -> Any:
        if rng.random() < 0.1:
            return rng.choice(BROKEN)
        return some([" ".join(rng.choices(WORDS, k=rng.randrange(5))).encode(), b"", b" padded\t"])

    def several(values: list[Any], broken: bool = True) -> Any:
        if nulls and rng.random() < 0.2:
            return None
        return [None if broken and rng.random() < 0.1 else rng.choice(values) for _ in range(rng.randrange(4))]

    ids = list(range(10, 10 + 3 * rows, 3))
    basic_ids = [i for i in range(9, 12 + 3 * rows) if rng.random() < 0.5]
    if not ordered:
        rng.shuffle(ids)
        rng.shuffle(basic_ids)
    each = range(rows)
    impressions = pa.table(
        {
            "instance_id": pa.array(ids, pa.int64()),
            "user_id": pa.array([some(range(8), 0.1) for _ in each], pa.int64()),
            "ad_id": pa.array([some(AD_KEYS, 0.1) for _ in each], pa.string()),
            "query": pa.array([text() for _ in each], pa.binary()),
            "context": pa.array([some(DOCUMENTS, 0.1) for _ in each], pa.string()),
            "score": pa.array([some(FLOATS) for _ in each], pa.float64()),
            "count": pa.array([some(INTS) for _ in each], pa.int64()),
            "small": pa.array([some(range(-3, 4)) for _ in each], pa.int8()),
            "flag": pa.array([some([True, False]) for _ in each], pa.bool_()),
            "ts": pa.array([some(MOMENTS) for _ in each], pa.timestamp("us")),
            "when": pa.array([some(TEXT_TIMES) for _ in each], pa.string()),
            "history": pa.array(["|".join(rng.choices(WORDS, k=rng.randrange(5))) for _ in each], pa.string()),
            "tags": pa.array([several(WORDS) for _ in each], pa.list_(pa.string())),
            "nums": pa.array([several(INTS) for _ in each], pa.list_(pa.int64())),
            "vector": pa.array([several(FLOATS) for _ in each], pa.large_list(pa.float64())),
            "device": pa.array([rng.choice(["ios", "android", "web"]) for _ in each], pa.string()).dictionary_encode(),
            "clicked": pa.array([rng.randrange(2) for _ in each], pa.int8()),
        }
    )
    users = [u for u in range(10) if rng.random() < 0.6]
    ads = [a for a in AD_KEYS if rng.random() < 0.7]
    advertisers = [a for a in range(4) if rng.random() < 0.7]
    rng.shuffle(users)
    return World(
        {
            "impressions": impressions,
            "users": pa.table(
                {
                    "user_id": pa.array(users, pa.int64()),
                    "age": pa.array([some([0, 17, 18, 99, -5]) for _ in users], pa.int32()),
                    "gender": pa.array([some(["f", "m", "", "ж"]) for _ in users], pa.string()),
                    "joined": pa.array([some(MOMENTS) for _ in users], pa.timestamp("us")),
                    "langs": pa.array([several(["de", "ja", "en"]) for _ in users], pa.list_(pa.string())),
                    "profile": pa.array([some(DOCUMENTS) for _ in users], pa.string()),
                }
            ),
            "ads": pa.table(
                {
                    "ad_id": pa.array(ads, pa.string()),
                    "advertiser_id": pa.array([some(range(5)) for _ in ads], pa.int16()),
                    "title": pa.array([text() for _ in ads], pa.binary()),
                    "bid": pa.array([some(FLOATS) for _ in ads], pa.float32()),
                }
            ),
            "advertisers": pa.table(
                {
                    "advertiser_id": pa.array(advertisers, pa.int64()),
                    "company": pa.array([some(["Acme", "東京", ""]) for _ in advertisers], pa.string()),
                    "budget": pa.array([some(FLOATS) for _ in advertisers], pa.float64()),
                }
            ),
            "basic": pa.table(
                {
                    "instance_id": pa.array(basic_ids, pa.int64()),
                    "ctr": pa.array([some(FLOATS) for _ in basic_ids], pa.float64()),
                    "position": pa.array([some(range(5)) for _ in basic_ids], pa.int64()),
                    "topic": pa.array([some(WORDS) for _ in basic_ids], pa.string()),
                }
            ),
        }
    )


# ---- expressions -------------------------------------------------------------------------------------------


@cb.operator(args=["int"], result="int", nullable=True)
def plus_one(x: pa.Array) -> Any:
    return pc.add(x, 1)


@cb.operator(args=["str", "float"], result="float", nullable=True)
def text_weight(s: pa.Array, x: pa.Array) -> Any:
    return pc.multiply(pc.cast(pc.binary_length(s), pa.float64()), x)


COLUMNS: dict[str, dict[str, list[str]]] = {  # view → kind → columns
    "impressions": {
        "i": ["user_id", "count", "small", "clicked", "instance_id"],
        "f": ["score"],
        "b": ["flag"],
        "t": ["ts"],
        "s": ["query", "context", "history", "device", "ad_id", "when"],
        "*s": ["tags"],
        "*i": ["nums"],
        "*f": ["vector"],
    },
    "users": {"i": ["age"], "s": ["gender", "profile"], "t": ["joined"], "*s": ["langs"]},
    "ads": {"i": ["advertiser_id"], "s": ["title"], "f": ["bid"]},
    "advertisers": {"s": ["company"], "f": ["budget"]},
    "basic": {"f": ["ctr"], "i": ["position"], "s": ["topic"]},
}
DEFAULTS: dict[str, list[Any]] = {
    "i": [0, -1, 5],
    "f": [0.0, 2.5],
    "b": [False, True],
    "t": [datetime(2024, 2, 29, 23, 59), datetime(1969, 1, 1)],
    "s": ["", "none", "é 👟"],
    "*s": [[]],
    "*i": [[]],
    "*f": [[]],
}
DICTIONARY = cb.Dictionary([*WORDS, "f", "none"], list(range(5, 5 + len(WORDS) + 2)))
VECTORS = cb.Dictionary(["f", "m", "none", ""], [[1.0, -2.0], [0.5, 1e40], [3.0, 4.0], [5.0, 6.0]])
SEPARATORS = [" ", "|", "e", "靴"]

Columns = dict[str, list[str]]


def merged(*views: Columns) -> Columns:
    return {kind: [name for view in views for name in view.get(kind, [])] for kind in DEFAULTS}


@st.composite
def typed(draw: st.DrawFn, kind: str, columns: Columns, depth: int) -> Any:
    """An expression of a kind over the columns; it may be null."""

    def of(other: str) -> Any:
        return draw(typed(other, columns, depth - 1))

    def one(*choices: Any) -> Any:
        return draw(st.sampled_from(choices))

    if depth <= 0 or draw(st.integers(0, 4)) == 0:
        if columns.get(kind) and draw(st.integers(0, 4)):
            return col(draw(st.sampled_from(columns[kind])))
        return cb.lit(one(*DEFAULTS[kind])) if kind in "ifbs" else EMPTY[kind]()
    anything = one("i", "f", "b", "t", "s", "*s", "*i")
    forms: dict[str, list[Any]] = {
        "i": [
            lambda: of("i") + of("i"),
            lambda: of("i") - of("b"),
            lambda: of("i") * one(1, 3, -7),
            lambda: of("i") // of("i"),
            lambda: of("i") % one(7, -3, 0),
            lambda: abs_or_neg(of("i"), one("abs", "neg")),
            lambda: of(one("s", "*s", "*i", "*f")).length(),
            lambda: of("s").byte_length(),
            lambda: getattr(of("t"), one("hour", "minute", "weekday", "day", "month", "year", "epoch_day"))(
                one(0, 330, -1)
            ),
            lambda: of("t") - of("t"),
            lambda: of(one("f", "b", "s", "t")).cast("int"),
            lambda: of("s").json(one("$.slot", "$", "$[1]", "$.geo.zip", "$.nums[0]"), "int"),
            lambda: of(one("f", "i")).bucketize(one([], [0.0], [-1.0, 0.5, 1e9])),
            lambda: one(cb.min_, cb.max_)(of("i"), of("i")),
            lambda: of("i").clip(-3, 100),
            lambda: of("*i").get(one(0, -1, 2)),
            lambda: of("*i").sum(),
            lambda: getattr(of("*i"), one("min", "max"))(),
            lambda: cb.overlap(of("*s"), of("*s")),
            lambda: of("s").edit_distance(of("s"), limit=one(0, 3)),
            lambda: of("s").lookup(DICTIONARY, default=one(None, -1)),
            lambda: plus_one(of("i")),
        ],
        "f": [
            lambda: of("f") + of(one("f", "i")),
            lambda: of("f") - of("f"),
            lambda: of("f") * of("f"),
            lambda: of(one("f", "i")) / of(one("f", "i", "b")),
            lambda: of("f") // of("f"),
            lambda: abs_or_neg(of("f"), one("abs", "neg", "sqrt", "floor", "ceil")),
            lambda: of("f").round(one(0, 1, 3)),
            lambda: of(one("i", "b", "s")).cast("float"),
            lambda: of("s").json(one("$.depth", "$.slot", "$.nums[2]"), "float"),
            lambda: of("t").age(of("t"), one("seconds", "days")),
            lambda: of("f").clip(-1.0, 2.0),
            lambda: one(cb.min_, cb.max_)(of("f"), of("f")),
            lambda: of("*f").mean(),
            lambda: of("*f").sum() + 0.0,  # the oracle cannot tell an empty list of floats from one of ints
            lambda: getattr(of("*f"), one("min", "max"))(),
            lambda: of("*f").get(one(0, -1)),
            lambda: cb.overlap(of("*s"), of("*s"), "jaccard"),
            lambda: text_weight(of("s"), of("f")),
        ],
        "b": [
            lambda: compared(one("lt", "le", "gt", "ge", "eq", "ne"), *pair(of, one("i", "f", "s", "t", "b"))),
            lambda: of("b") & of("b"),
            lambda: of("b") | of("b"),
            lambda: ~of("b"),
            lambda: of("i").is_in(one([], [0, 1, 7], list(range(20)))),
            lambda: of("f").is_in([0.0, 2.5, float("nan")]),
            lambda: of("s").is_in(one(["ios", "", "靴"], [*WORDS, "ios"])),
            lambda: of("s").contains(one("e", "", "靴")),
            lambda: of("s").starts_with(one("a", "Ü")),
            lambda: of("s").ends_with(one("s", "👟")),
            lambda: of("*s").contains(of("s")),
            lambda: of(anything).is_null(),
            lambda: of("f").is_nan(),
            lambda: of("s").json("$.ok", "bool"),
            lambda: of(one("i", "f")).cast("bool"),
        ],
        "s": [
            lambda: of("s").lower(),
            lambda: of("s").strip(one("", "e 靴")),
            lambda: of("s").prefix(one(0, 2, 9)),
            lambda: of("s").suffix(one(0, 1, 4)),
            lambda: of("s").substring(one(0, 2, -3), one(-1, 0, 2)),
            lambda: of("s").replace(one("e", "靴", ""), one("", "eé")),
            lambda: cb.concat(of("s"), of("s"), sep=one("", "-")),
            lambda: of(one("i", "b")).cast("str"),
            lambda: of("s").json(one("$.geo.city", "$.geo", "$.slot", "$['tags'][0]"), "str"),
            lambda: of("*s").get(one(0, -1, 2)),
            lambda: of("*s").join(one("", ", ")),
        ],
        "t": [
            lambda: of("s").cast("time"),
            lambda: of("i").cast("time", unit=one("s", "ms", "us", "ns")),
            lambda: one(cb.min_, cb.max_)(of("t"), of("t")),
        ],
        "*s": [
            lambda: of("s").split(one(*SEPARATORS)),
            lambda: of("s").words(),
            lambda: of("s").ngrams(one(1, 2, 5)),
            lambda: of("*s").first(one(0, 2)),
            lambda: of("*s").last(one(0, 1, 9)),
            lambda: of("*s").distinct(),
            lambda: of("s").json("$.tags", "list[str]"),
            lambda: of("*i").cast("str"),
        ],
        "*i": [
            lambda: of("*s").cast("int"),
            lambda: of("*i").first(2),
            lambda: of("*i").distinct(),
            lambda: of("s").json("$.nums", "list[int]"),
            lambda: of("*s").lookup(DICTIONARY, default=0),
        ],
        "*f": [
            lambda: of("*i").cast("float"),
            lambda: of("*s").cast("float"),
            lambda: of("*f").last(2),
            lambda: of("s").json("$.nums", "list[float]"),
        ],
    }
    shared = [
        lambda: of(kind).fill(of(kind)),
        lambda: cb.when(of("b")).then(of(kind)).otherwise(of(kind)),
    ]
    return draw(st.sampled_from([*forms[kind], *shared]))()


EMPTY: dict[str, Any] = {
    "t": lambda: cb.lit(1_000_000).cast("time", unit="us"),
    "*s": lambda: cb.lit("x y x").split(" "),
    "*i": lambda: cb.lit("1 2 x").split(" ").cast("int"),
    "*f": lambda: cb.lit("1.5 nan").split(" ").cast("float"),
}


def abs_or_neg(e: Any, op: str) -> Any:
    return -e if op == "neg" else getattr(e, op)()


def compared(op: str, a: Any, b: Any) -> Any:
    return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "ne": a != b}[op]


def pair(of: Any, kind: str) -> tuple[Any, Any]:
    return of(kind), of(kind)


@st.composite
def present(draw: st.DrawFn, kind: str, columns: Columns, depth: int = 2) -> Any:
    """An expression that is never null."""
    return draw(typed(kind, columns, depth)).fill(draw(st.sampled_from(DEFAULTS[kind])))


@st.composite
def keyed(draw: st.DrawFn, columns: Columns) -> Any:
    """A sparse feature."""
    kinds = st.sampled_from(["i", "b", "s", "t", "*s", "*i"])
    form = draw(st.integers(0, 5))
    if form == 0:
        members = [draw(present(draw(kinds), columns)) for _ in range(draw(st.integers(2, 3)))]
        return cb.cross(*members, limit=draw(st.sampled_from([1, 5, 1024])))
    if form == 1:
        return draw(present("*s", columns)).ngrams(draw(st.sampled_from([1, 2]))).key()
    value = draw(present(draw(kinds), columns))
    if form == 5:
        return draw(st.sampled_from([value.hash(), value.key(space="inner").key(), value.hash().key()]))
    return value if form == 2 else value.key(space=draw(st.sampled_from([None, "shared"])))


# ---- jobs --------------------------------------------------------------------------------------------------


@dataclass
class Job:
    seed: int
    rows: int
    ordered: bool
    steps: dict[str, list[tuple[str, Any]]]  # view → its cleaning
    joins: list[tuple[str, Any]]
    late: list[tuple[str, Any]]
    features: cb.FeatureSet

    def view(self, name: str, sources: dict[str, Any]) -> cb.View:
        key = {"impressions": "instance_id", "users": "user_id", "ads": "ad_id", "basic": "instance_id"}
        view = cb.View(sources[name], key=key.get(name, "advertiser_id"), name=name)
        return steps(view, self.steps.get(name, []))

    def log(self, sources: dict[str, Any]) -> cb.View:
        log = self.view("impressions", sources)
        for what, how in self.joins:
            if what == "merge":
                # Statistics of files say nothing of the order inside a row group.
                log = log.merge(self.view("basic", sources), ordered=None if self.ordered else False)
            elif what == "users":
                log = log.join(self.view("users", sources), on="user_id", how=how)
            else:
                ads = self.view("ads", sources)
                if "advertisers" in self.steps:
                    ads = ads.join(self.view("advertisers", sources), on="advertiser_id")
                    ads = steps(ads, self.steps["after advertisers"])
                log = log.join(ads, on="ad_id", how=how)
        return steps(log, self.late)


def steps(view: cb.View, what: list[tuple[str, Any]]) -> cb.View:
    for name, argument in what:
        view = view.filter(argument) if name == "filter" else getattr(view, name)(**argument)
    return view


@st.composite
def condition(draw: st.DrawFn, columns: Columns) -> Any:
    """Of a filter; most of them keep a good part of the rows."""
    drawn = draw(typed("b", columns, 2))
    form = draw(st.integers(0, 3))
    return [drawn.fill(True), ~drawn.fill(False), drawn, drawn.fill(True) | drawn.is_null()][form]


@st.composite
def cleaning(draw: st.DrawFn, columns: Columns, prefix: str) -> list[tuple[str, Any]]:
    """Some steps over the columns of a view; none of them changes the kind of a column."""
    found: list[tuple[str, Any]] = []
    for k in range(draw(st.integers(0, 2))):
        form = draw(st.sampled_from([0, 1, 1, 2, 2, 3]))
        kind = draw(st.sampled_from([kind for kind in ("i", "f", "s", "*s", "t", "b") if columns.get(kind)]))
        name = draw(st.sampled_from(columns[kind]))
        if form == 0:
            found.append(("fill", {name: draw(st.sampled_from(DEFAULTS[kind]))}))
        elif form == 1 and name not in ("instance_id", "user_id", "ad_id", "advertiser_id"):
            found.append(("with_columns", {name: draw(typed(kind, columns, 2))}))
        elif form == 2:
            made = f"{prefix}_{k}"
            found.append(("with_columns", {made: draw(typed(kind, columns, 2))}))
            columns[kind] = [*columns[kind], made]
        else:
            found.append(("filter", draw(condition(columns))))
    return found


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    here = {view: dict(kinds) for view, kinds in COLUMNS.items()}
    plans = {"impressions": draw(cleaning(here["impressions"], "made"))}
    scope = here["impressions"]
    joins: list[tuple[str, Any]] = []
    for what in draw(st.permutations(["users", "ads", "merge"]))[: draw(st.integers(0, 3))]:
        name = "basic" if what == "merge" else what
        plans[name] = draw(cleaning(here[name], name))
        scope = merged(scope, here[name])
        if what == "ads" and draw(st.booleans()):
            plans["advertisers"] = draw(cleaning(here["advertisers"], "advertisers"))
            both = merged(here["ads"], here["advertisers"])
            plans["after advertisers"] = draw(cleaning(both, "both"))
            scope = merged(scope, both)
        joins.append((what, draw(st.sampled_from(["left", "left", "left", "inner"]))))
        scope = {kind: list(dict.fromkeys(names)) for kind, names in scope.items()}
    late = draw(cleaning(scope, "late"))
    if draw(st.integers(0, 3)) == 0:
        late = [*late, ("filter", draw(condition(scope)))]
    dense: dict[str, Any] = {
        f"d{k}": draw(present(draw(st.sampled_from("ifb")), scope)) for k in range(draw(st.integers(0, 3)))
    }
    if draw(st.integers(0, 3)) == 0:
        dense["log"] = draw(present("f", scope)).log1p()
    sparse = {f"s{k}": draw(keyed(scope)) for k in range(draw(st.integers(0, 3)))}
    return Job(
        seed=draw(st.integers(0, 2**32)),
        rows=draw(st.sampled_from([5, 13, 40, 2, 1, 30, 20, 0])),
        ordered=draw(st.booleans()),
        steps=plans,
        joins=joins,
        late=late,
        features=cb.FeatureSet(
            label=draw(st.sampled_from([None, col("clicked").fill(0)])),
            weight=draw(present("f", scope)) if draw(st.booleans()) else None,
            group=draw(present(draw(st.sampled_from(["i", "s"])), scope)) if draw(st.booleans()) else None,
            dense=dense,
            sparse=sparse,
        ),
    )


# ---- comparison --------------------------------------------------------------------------------------------


def assert_equal(batches: list[Batch], wanted: Extracted, batch_size: int) -> None:
    """Every value of every row, floats to the bit (a NaN is a NaN), keys exactly; sizes as asked for."""
    assert [b.rows for b in batches] == [min(batch_size, len(wanted) - k) for k in range(0, len(wanted), batch_size)]
    begin = 0
    for batch in batches:
        rows = slice(begin, begin + batch.rows)
        for name in ("label", "weight"):
            array = getattr(batch, name)
            if array is None:
                assert set(getattr(wanted, name)) <= {None}
            else:
                assert_floats(array, np.array(getattr(wanted, name)[rows], np.float32), name)
        if batch.group is not None:
            assert batch.group.tolist() == wanted.group[rows], "group"
        width = batch.schema.dense_width
        assert batch.dense.dtype == np.float32
        assert batch.dense.shape == (batch.rows, width)
        assert_floats(batch.dense, np.array(wanted.dense[rows], np.float32).reshape(batch.rows, width), "dense")
        for f in batch.schema.sparse:
            ragged = batch.sparse[f.name]
            assert ragged.values.dtype == ragged.offsets.dtype == np.int64
            assert len(ragged.offsets) == batch.rows + 1
            assert ragged.offsets[0] == 0
            assert ragged.offsets[-1] == len(ragged.values)
            assert 0 not in ragged.values
            got = [ragged[r].tolist() for r in range(batch.rows)]
            assert got == [row[f.name] for row in wanted.sparse[rows]], f.name
        begin += batch.rows


def assert_floats(got: np.ndarray, want: np.ndarray, what: str) -> None:
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), f"{what}: {got[~same]} but {want[~same]}"


def write(tables: dict[str, pa.Table], folder: Path, files: int, group: int) -> dict[str, Any]:
    """Every view as Parquet, the log as several files of small row groups."""
    sources: dict[str, Any] = {}
    for name, table in tables.items():
        place = folder / name
        place.mkdir()
        cuts = files if name in ("impressions", "basic") else 1
        share = -(-table.num_rows // cuts) or 1
        for k in range(cuts):
            pq.write_table(table.slice(k * share, share), place / f"{k}.parquet", row_group_size=group)
        sources[name] = str(place)
    return sources


def request(job: Job, tables: dict[str, pa.Table]) -> pa.Table:
    """The raw rows of the log; where basic features are merged by streaming, a request brings its own."""
    rows = tables["impressions"]
    if not any(what == "merge" for what, _ in job.joins):
        return rows
    basic = {row["instance_id"]: row for row in tables["basic"].to_pylist()}
    for name in ("ctr", "position", "topic"):
        values = [basic.get(i, {}).get(name) for i in rows["instance_id"].to_pylist()]
        rows = rows.append_column(name, pa.array(values, tables["basic"].schema.field(name).type))
    return rows


def check(job: Job, threads: int, chunk_rows: int, batch_size: int, files: int, group: int) -> None:
    made = world(job.seed, job.rows, ordered=job.ordered)
    oracle = Oracle(made.rows())
    wanted = oracle.features(job.log(made.tables), job.features)
    plan = cb.compile(job.log(made.tables), job.features, threads=threads, chunk_rows=chunk_rows)
    assert_equal(list(plan.batches(batch_size)), wanted, batch_size)
    if job.rows:
        assert_equal(one_batch(plan.run(request(job, made.tables))), wanted, max(1, len(wanted)))
    if files:
        with tempfile.TemporaryDirectory() as folder:
            sources = write(made.tables, Path(folder), files, group)
            again = cb.compile(job.log(sources), job.features, threads=threads, chunk_rows=chunk_rows)
            assert_equal(list(again.batches(batch_size)), wanted, batch_size)


def one_batch(batch: Batch) -> list[Batch]:
    return [batch] if batch.rows else []


ENGINE = {
    "threads": st.sampled_from(THREADS),
    "chunk_rows": st.sampled_from(CHUNKS),
    "batch_size": st.sampled_from(BATCHES),
    "files": st.sampled_from([0, 1, 3]),
    "group": st.sampled_from([1, 3, 100]),
}
QUIET = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
}


@settings(max_examples=150, **QUIET)
@given(job=jobs(), **ENGINE)
@pytest.mark.slow
def test_any_plan_equals_the_oracle(job: Job, **engine: Any) -> None:
    check(job, **engine)


@pytest.mark.exhaustive
@settings(max_examples=600, **QUIET)
@given(job=jobs(), **ENGINE)
def test_many_plans_equal_the_oracle(job: Job, **engine: Any) -> None:
    check(job, **engine)


# ---- one rich job, every setting ---------------------------------------------------------------------------


def rich(sources: dict[str, Any], ordered: bool, condition: Any = None) -> tuple[cb.View, cb.FeatureSet]:
    advertisers = cb.View(sources["advertisers"], key="advertiser_id", name="advertisers").fill(budget=-1.0)
    users = cb.View(sources["users"], key="user_id", name="users").fill(age=0, gender="unknown", langs=[])
    ads = (
        cb.View(sources["ads"], key="ad_id", name="ads")
        .with_columns(words=col("title").fill("no title").lower().words())
        .join(advertisers, on="advertiser_id")
        .fill(company="nobody", bid=0.0)
        .filter(col("company") != "東京")
    )
    basic = cb.View(sources["basic"], key="instance_id", name="basic").fill(ctr=0.5, position=-1)
    log = (
        cb.View(sources["impressions"], key="instance_id", name="impressions")
        .with_columns(city=col("context").json("$.geo.city").fill("none"), q=col("query").fill(""))
        .filter(col("device").is_in(["ios", "android"]) if condition is None else condition)
        .join(users, on="user_id")
        .join(ads, on="ad_id", how="left")
        .merge(basic, ordered=None if ordered else False)
        .filter(col("age") < 90)
        .fill(user_id=-1, ts=0, tags=[], topic="", joined=0)
    )
    features = cb.FeatureSet(
        label=col("clicked"),
        group=col("user_id"),
        weight=col("bid") + 1.0,
        dense={
            "bid": col("bid").log1p(),
            "slot": col("context").json("$.slot", "int").fill(-9),
            "overlap": cb.overlap(col("q").lower().words(), col("words").fill([])),
            "jaccard": cb.overlap(col("tags"), col("langs"), "jaccard"),
            "age": col("ts").age(col("joined"), "days"),
            "ctr": col("ctr"),
            "budget": col("budget").fill(-1.0),
            "bucket": col("age").bucketize([18, 30]),
        },
        sparse={
            "user": col("user_id").key(),
            "city": col("city"),
            "query": col("q").lower().split(" ").key(),
            "bigrams": col("q").words().ngrams(2).key(),
            "user_x_ad": cb.cross("user_id", col("ad_id").fill("")),
            "three": cb.cross(col("q").split(" "), col("words").fill([]), col("ts").hour(), limit=7),
            "history": col("history").split("|").last(2).key(),
            "company": col("company").key(space="shared"),
            "position": col("position").key(space="shared"),
            "topic": col("topic").lower().key(),
        },
    )
    return log, features


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 60])
@pytest.mark.slow
def test_every_setting_gives_the_same_batches(rows: int, ordered: bool, tmp_path: Path) -> None:
    made = world(7, rows, ordered=ordered)
    log, features = rich(made.tables, ordered)
    wanted = Oracle(made.rows()).features(log, features)
    assert rows < 2 or 10 < len(wanted) < rows
    files = write(made.tables, tmp_path, files=3, group=5) if rows else made.tables
    for sources in (made.tables, files):
        for threads, chunk_rows in itertools.product(THREADS, CHUNKS):
            log, features = rich(sources, ordered)
            plan = cb.compile(log, features, threads=threads, chunk_rows=chunk_rows)
            for batch_size in BATCHES:
                assert_equal(list(plan.batches(batch_size)), wanted, batch_size)


@pytest.mark.slow
def test_long_strings_and_long_lists() -> None:
    """More than a pool's first block in one row, between rows that need little; kept by filter and join."""
    rng = random.Random(1)
    texts = ["", "a b", " ".join(WORDS * 20), "x" * 300_000, " ".join(f"t{k}" for k in range(9_000))]
    weights = [40, 40, 15, 3, 2]
    log = [{"id": k, "u": k % 5, "text": rng.choices(texts, weights)[0]} for k in range(50)]
    users = [{"u": k, "bio": texts[k]} for k in range(4)]
    tokens = col("text").lower().split(" ")
    view = (
        cb.View(pa.Table.from_pylist(log), key="id", name="log")
        .with_columns(tokens=tokens, upper=cb.concat("text", col("id").cast("str"), sep=" "))
        .filter((col("tokens").length() != 2) & (col("upper").length() > 2))
        .join(
            cb.View(pa.Table.from_pylist(users), key="u", name="users").with_columns(b=col("bio").words()),
            on="u",
        )
    )
    features = cb.FeatureSet(
        dense={
            "n": col("tokens").length(),
            "shared": cb.overlap(col("tokens"), col("b").fill([])),
            "distinct": col("tokens").distinct().length(),
        },
        sparse={
            "tokens": col("tokens").key(),
            "upper": col("upper").key(),
            "bio": col("b").fill([]).last(50).key(),
            "grams": col("tokens").ngrams(2).key(),
            "cross": cb.cross("tokens", col("b").fill([]), limit=300),
            "three": col("upper").suffix(50).replace("t", "TT").ngrams(3).key(),
        },
    )
    wanted = Oracle({"log": log, "users": users}).features(view, features)
    assert len(wanted) > 20
    for threads, chunk_rows in itertools.product((1, 3), (7, 1024)):
        plan = cb.compile(view, features, threads=threads, chunk_rows=chunk_rows)
        for batch_size in (3, 1000):
            assert_equal(list(plan.batches(batch_size)), wanted, batch_size)


@pytest.mark.parametrize("rows", [0, 1, 60])
def test_a_log_whose_rows_are_all_filtered_gives_no_batch(rows: int) -> None:
    made = world(3, rows, ordered=True)
    log, features = rich(made.tables, True, condition=col("device") == "fridge")
    plan = cb.compile(log, features)
    assert list(plan.batches(7)) == []
    assert list(plan.batches(7, shuffle=20)) == []
    assert plan.run(request_of_all(made)).rows == 0


def request_of_all(made: World) -> pa.Table:
    return request(Job(0, 0, True, {}, [("merge", "left")], [], cb.FeatureSet()), made.tables)


def test_a_request_equals_its_rows_of_the_log() -> None:
    """Row by row and all at once; a plan that merges by look-up needs nothing but the raw rows."""
    made = world(11, 30, ordered=False)
    log, features = rich(made.tables, ordered=False)
    plan = cb.compile(log, features)
    whole = list(plan.batches(1000))
    rows = made.tables["impressions"]
    assert digest(one_batch(plan.run(rows))) == digest(whole)
    singles = [plan.run(rows.slice(k, 1)) for k in range(rows.num_rows)]
    assert digest([Batch.concat(singles)]) == digest(whole)
    records = rows.combine_chunks().to_batches()[0]
    for _ in range(2):  # the second time by the remembered schema
        assert digest([Batch.concat([plan.run(records.slice(k, 1)) for k in range(rows.num_rows)])]) == digest(whole)


def digest(batches: list[Batch]) -> str:
    """All bytes of the batches."""
    state = hashlib.sha256()
    for batch in batches:
        arrays = [batch.label, batch.weight, batch.group, batch.dense]
        for ragged in batch.sparse.values():
            arrays += [ragged.values, ragged.offsets]
        for array in arrays:
            if array is not None:
                state.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


ELSEWHERE = """
import sys
import ctrbox as cb
from tests.compiled_plan.test_whole_plan import digest
plan = cb.Plan.load(sys.argv[1])
print(plan.fingerprint, digest(list(plan.batches(7))), digest(list(plan.batches(1000))))
"""


@pytest.mark.parametrize("ordered", [True, False])
def test_a_plan_loaded_in_another_process_gives_the_same_batches(ordered: bool, tmp_path: Path) -> None:
    made = world(5, 60, ordered=ordered)
    log, features = rich(write(made.tables, tmp_path, files=2, group=7), ordered)
    plan = cb.compile(log, features, threads=2)
    plan.save(tmp_path / "job.plan")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "job.plan")]
    out = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert out.returncode == 0, out.stderr
    assert out.stdout.split() == [
        plan.fingerprint,
        digest(list(plan.batches(7))),
        digest(list(plan.batches(1000))),
    ]


# ---- found by the search above, or by reading --------------------------------------------------------------


def dense_of(log: cb.View, e: Any, **options: Any) -> list[float]:
    plan = cb.compile(log, cb.FeatureSet(dense={"e": e}), **options)
    return [x for batch in plan.batches(10) for x in batch.dense[:, 0].tolist()]


def test_a_filter_that_keeps_no_column() -> None:
    log = pa.table({"id": [1, 2], "x": [1.0, 2.0]})
    assert dense_of(cb.View(log, key="id").filter(col("id") > 1), col("x")) == [2.0]


EMPTY_LISTS = """
import pyarrow as pa, ctrbox as cb
from ctrbox import col
ids, lists = pa.array([1, 2], pa.int64()), pa.array([[], []], pa.list_(pa.int64()))
log = cb.View(pa.table({"id": ids, "l": lists}), key="id")
other = cb.View(pa.table({"id": ids, "m": lists}), key="id").fill(m=[])
features = cb.FeatureSet(sparse={"l": col("l").key(), "m": col("m").key()})
plan = cb.compile(log.join(other, on="id"), features)
print(sum(len(field.values) for batch in plan.batches(5) for field in batch.sparse.values()))
"""


def test_empty_lists_are_the_first_thing_a_pool_is_asked_for() -> None:
    out = subprocess.run([sys.executable, "-c", EMPTY_LISTS], capture_output=True, text=True, timeout=120)
    assert (out.returncode, out.stdout.strip()) == (0, "0"), out.stderr[-500:]


def test_a_null_key_meets_no_row_even_where_a_hash_is_zero() -> None:
    zero = 0x2545F4914F6CDD1D  # the whole number whose hash is 0, which is also the entry of a null
    log = cb.View(pa.table({"id": [1, 2], "u": pa.array([None, zero], pa.int64())}), key="id")
    users = cb.View(pa.table({"u": pa.array([zero], pa.int64()), "a": [5]}), key="u").fill(a=0)
    assert dense_of(log.join(users, on="u"), col("a")) == [0.0, 5.0]


def test_constants_alone_are_features() -> None:
    log = cb.View(pa.table({"id": [1, 2, 3]}), key="id")
    features = cb.FeatureSet(label=cb.lit(1), dense={"one": cb.lit(1.5)}, sparse={"k": cb.lit("x").key()})
    plan = cb.compile(log, features, chunk_rows=2)
    assert_equal(list(plan.batches(2)), Oracle({log.name: [{"id": k} for k in range(3)]}).features(log, features), 2)
    assert plan.run(pa.table({"id": [1, 2, 3]})).rows == 3


@pytest.mark.parametrize("value", [b"\xff", "\udcff"])
@pytest.mark.parametrize("form", ["is_in", "eq"])
def test_a_filter_by_bytes_that_are_not_utf8(value: Any, form: str, tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3], "s": pa.array([b"a", b"\xff", b"b"], pa.binary())})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=1)
    condition = col("s").is_in([value]) if form == "is_in" else col("s") == value
    for source in (table, str(tmp_path)):
        assert dense_of(cb.View(source, key="id").filter(condition), col("id")) == [2.0]


def test_a_view_joined_twice_by_different_columns() -> None:
    users = cb.View(pa.table({"u": [1, 2], "a": [10, 20]}), key="u", name="users").fill(a=-1)
    log = pa.table({"id": [1, 2], "from": [1, 3], "to": [2, 1]})
    view = cb.View(log, key="id").join(users, on="from", prefix="from_").join(users, on="to", prefix="to_")
    assert dense_of(view, col("from_a") * 100 + col("to_a")) == [1020.0, -90.0]


@pytest.mark.parametrize("chunk_rows", CHUNKS)
def test_casts_selections_and_prefixes_of_views_equal_the_oracle(chunk_rows: int) -> None:
    made = world(21, 40, ordered=True)
    users = cb.View(made.tables["users"], key="user_id", name="users").cast(age="float", joined="int")
    users = users.fill(age=-1.0, joined=0).select("age", "joined", "langs").fill(langs=[])
    log = (
        cb.View(made.tables["impressions"], key="instance_id", name="impressions")
        .cast(when="time", small="str", count="float", score="int")
        .select("instance_id", "user_id", "when", "small", "count", "score", "flag")
        .fill(when=datetime(2024, 1, 1), small="", count=0.5, score=-1)
        .cast(flag="int")
        .filter(col("small") != "2")
        .join(users, on="user_id", prefix="user_")
    )
    features = cb.FeatureSet(
        label=col("flag").fill(2),
        dense={
            "count": col("count"),
            "score": col("score"),
            "age": col("user_age"),
            "hour": col("when").hour(),
        },
        sparse={"small": col("small"), "joined": col("user_joined"), "langs": col("user_langs").key()},
    )
    wanted = Oracle(made.rows()).features(log, features)
    assert len(wanted) > 20
    assert_equal(list(cb.compile(log, features, chunk_rows=chunk_rows).batches(7)), wanted, 7)
    with pytest.raises(cb.errors.PlanError, match="column 'query' is not in view"):
        cb.compile(log, cb.FeatureSet(sparse={"q": col("query")}))


def test_a_key_of_two_columns() -> None:
    prices = pa.table({"shop": ["a", "a", "b"], "day": [1, 2, 1], "price": [1.0, 2.0, 3.0]})
    log = pa.table({"id": [1, 2, 3, 4], "s": ["b", "a", "b", None], "d": [1, 2, 2, 1]})
    view = cb.View(log, key="id").join(cb.View(prices, key=["shop", "day"]).fill(price=0.0), on=["s", "d"])
    assert dense_of(view, col("price")) == [3.0, 2.0, 0.0, 0.0]


def test_an_inner_join_below_a_left_join_gives_nulls_for_missing_keys() -> None:
    advertisers = cb.View(pa.table({"v": [7], "b": [9]}), key="v", name="advertisers")
    ads = cb.View(pa.table({"a": [1], "v": [7]}), key="a", name="ads").join(advertisers, on="v", how="inner")
    log = cb.View(pa.table({"id": [1, 2], "a": [1, 2]}), key="id").join(ads, on="a")
    assert dense_of(log, col("b").fill(-2)) == [9.0, -2.0]


def test_a_merge_of_unordered_files_is_hashed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [3, 1, 2]}), tmp_path / "log.parquet")
    pq.write_table(pa.table({"id": [1, 2, 3], "v": [1.0, 2.0, 3.0]}), tmp_path / "basic.parquet")
    basic = cb.View(str(tmp_path / "basic.parquet"), key="id").fill(v=0.0)
    log = cb.View(str(tmp_path / "log.parquet"), key="id").merge(basic)
    assert dense_of(log, col("v")) == [3.0, 1.0, 2.0]


def test_a_merge_by_ordered_strings_is_hashed() -> None:
    basic = cb.View(pa.table({"id": ["a", "b"], "v": [1.0, 2.0]}), key="id").fill(v=0.0)
    assert dense_of(cb.View(pa.table({"id": ["a", "b"]}), key="id").merge(basic), col("v")) == [1.0, 2.0]
