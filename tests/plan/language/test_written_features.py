"""Features, labels, histories and spans as users write them: what they become, and the whole sentence of each refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox import col, lit
from ctrbox.errors import PlanError
from ctrbox.plan.language.features import SPANS, space_of, span
from ctrbox.plan.language.history_columns import MOST_SPAN, PastFeature

PAST = cb.past(by="user", time="ts", gap="1m")
DAYS = MOST_SPAN // 86_400_000_000


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: cb.Label(5), "a label must be an expression or a column's name, got 5"),
        (
            lambda: cb.Label("click", "counts"),
            "kind of a label must be one of binary, regression, count, got 'counts'; nearest: 'count'",
        ),
        (lambda: cb.Label("click", 5), "kind of a label must be one of binary, regression, count, got 5"),
        (
            lambda: cb.Label("click", delay="d"),
            (
                "a label whose ones arrive late needs delay=, elapsed= and window= together; elapsed and window "
                "are missing"
            ),
        ),
        (
            lambda: cb.Label("click", delay="d", window=1),
            "a label whose ones arrive late needs delay=, elapsed= and window= together; elapsed is missing",
        ),
        (
            lambda: cb.Label("click", "count", delay="d", elapsed="e", window=1),
            "delay=, elapsed= and window= belong to a binary label, but its kind is 'count'",
        ),
        (
            lambda: cb.Label("click", delay=1, elapsed="e", window=1),
            "delay must be an expression or a column's name, got 1",
        ),
        (
            lambda: cb.Label("click", delay="d", elapsed=1, window=1),
            "elapsed must be an expression or a column's name, got 1",
        ),
        (
            lambda: cb.Label("click", delay="d", elapsed="e", window=0),
            "window must be a number from 1e-30 to 1e+30, got 0",
        ),
        (
            lambda: cb.Label("click", delay="d", elapsed="e", window=1e31),
            "window must be a number from 1e-30 to 1e+30, got 1e+31",
        ),
        (
            lambda: cb.Label("click", delay="d", elapsed="e", window=True),
            "window must be a number from 1e-30 to 1e+30, got True",
        ),
        (
            lambda: cb.FeatureSet(lable="click"),
            (
                "FeatureSet has no argument 'lable'; nearest: 'label'; it has label, group, weight, sparse, dense, "
                "labels"
            ),
        ),
        (lambda: cb.FeatureSet(sparse=["a"]), "sparse features must be a dict from names to expressions, got list"),
        (lambda: cb.FeatureSet(dense={"a": 5}), "feature 'a' must be an expression or a column's name, got 5"),
        (lambda: cb.FeatureSet(sparse={5: "a"}), "a feature's name must be a string, got 5"),
        (
            lambda: cb.FeatureSet(sparse={"label": "a"}),
            "feature name 'label' is already in use; each feature needs a name of its own",
        ),
        (
            lambda: cb.FeatureSet(dense={"group": "a"}),
            "feature name 'group' is already in use; each feature needs a name of its own",
        ),
        (
            lambda: cb.FeatureSet(labels={"weight": "a"}),
            "label name 'weight' is already in use; each label needs a name of its own",
        ),
        (
            lambda: cb.FeatureSet(labels={"a": "a"}, dense={"a": "a"}),
            "label name 'a' is already in use; each label needs a name of its own",
        ),
        (
            lambda: cb.FeatureSet(sparse={"a": "a"}, dense={"a": "a"}),
            "feature name 'a' is already in use; each feature needs a name of its own",
        ),
        (lambda: cb.FeatureSet(labels="a"), "labels must be a dict from names to expressions, got str"),
        (
            lambda: cb.FeatureSet(label="a", labels={"b": "b"}),
            "a FeatureSet has either label= or labels=; move the expression of label= into labels=",
        ),
        (
            lambda: cb.FeatureSet(labels={f"t{k}": "a" for k in range(65)}),
            "labels has 65 entries; expected at most 64",
        ),
        (
            lambda: cb.FeatureSet(labels={"a-b": "a"}),
            (
                "label name 'a-b' must be a name such as 'click' or 'add_to_cart': letters, digits and "
                "underscores, not beginning with a digit, because metrics and expressions of scores use it"
            ),
        ),
        (lambda: cb.FeatureSet(labels={5: "a"}), "a label's name must be a string, got 5"),
        (lambda: cb.FeatureSet(labels={"a": 5}), "a label must be an expression or a column's name, got 5"),
        (lambda: span("1.5h"), "expected a span such as '30m', '6h', '1d' or '2w', got '1.5h'"),
        (lambda: span("1" * 16 + "s"), "expected a span such as '30m', '6h', '1d' or '2w', got '1111111111111111s'"),
        (lambda: cb.shows(time="ts", label="y"), "shows needs at least one column to group by, such as 'ad_id'"),
        (
            lambda: cb.rate("a", time="ts", label="y", every="0s"),
            "every= must be a span of time above 0, such as '1d', got '0s'",
        ),
        (
            lambda: cb.rate("a", time="ts", label="y", every="2h", window="3h"),
            "window '3h' must be a multiple of every='2h'",
        ),
        (
            lambda: cb.rate("a", time="ts", label="y", every="2h", window="0h"),
            "window '0h' must be a multiple of every='2h'",
        ),
        (
            lambda: cb.rate("a", time="ts", label="y", every="2h", window="-2h"),
            "window '-2h' must be a multiple of every='2h'",
        ),
        (
            lambda: cb.past(by=[], time="ts"),
            "past needs by=, the columns whose values say to whom an event belongs, such as by='user_id'",
        ),
        (
            lambda: cb.past(by="user", time="ts", where="click"),
            "where must be a condition such as col('clicked') == 1, got 'click'",
        ),
        (
            lambda: cb.past(by="user", time="ts", gap="-1m"),
            "gap must be a span from 0 to 13,343,998 days, got '-1m'",
        ),
        (
            lambda: cb.past(by="user", time="ts", lateness=f"{DAYS + 1}d"),
            "lateness must be a span from 0 to 13,343,998 days, got '13343999d'",
        ),
        (
            lambda: cb.past(by="user", time="ts", budget="5"),
            "budget='5' has no unit; expected a size such as '512MB' or '2GB'",
        ),
        (
            lambda: cb.past(by="user", tim="ts"),
            "past has no argument 'tim'; nearest: 'time'; it has by, time, where, gap, lateness, budget, spill",
        ),
        (lambda: PAST.count(within="0h"), "within must be longer than 0, got '0h'"),
        (
            lambda: PAST.count(within="1m"),
            "the window within= (60 s) must be longer than gap= (60 s); otherwise no event could ever be counted",
        ),
        (
            lambda: PAST.count(within="59s"),
            "the window within= (59 s) must be longer than gap= (60 s); otherwise no event could ever be counted",
        ),
        (lambda: PAST.history(), "history takes 1 to 64 columns of values, got 0"),
        (lambda: PAST.history(*map(str, range(65))), "history takes 1 to 64 columns of values, got 65"),
        (lambda: PAST.history("a", last=0), "last must be a whole number from 1 to 100,000, got 0"),
        (lambda: PAST.history("a", last=100_001), "last must be a whole number from 1 to 100,000, got 100001"),
        (
            lambda: PAST.history("a", "a"),
            (
                "history and distinct take several values only if each is a column and their names differ; give "
                "expressions a name first: .with_columns(name=…)"
            ),
        ),
        (
            lambda: PAST.history("a", col("b") + 1),
            (
                "history and distinct take several values only if each is a column and their names differ; give "
                "expressions a name first: .with_columns(name=…)"
            ),
        ),
        (lambda: PAST.distinct(), "distinct takes 1 to 64 columns of values, got 0"),
        (lambda: PAST.distinct("a", last=0), "last must be a whole number from 1 to 100,000, got 0"),
        (lambda: PAST.decayed("a", half_life=None), "only decayed has a half_life, such as '1d', and it needs one"),
        (lambda: PAST.decayed("a", half_life="0s"), "half_life must be longer than 0, got '0s'"),
        (
            lambda: PastFeature(PAST, "median", (col("a"),)),
            "a history column is one of history, count, sum, mean, decayed, since, distinct, got 'median'",
        ),
        (lambda: PastFeature(PAST, "count", (col("a"),)), "count takes 0 columns of values, got 1"),
        (lambda: PastFeature(PAST, "sum", ()), "sum takes 1 columns of values, got 0"),
        (lambda: PastFeature(PAST, "sum", (col("a"), col("b"))), "sum takes 1 columns of values, got 2"),
        (
            lambda: PastFeature(PAST, "decayed", (col("a"), col("b")), half_life=5),
            "decayed takes 0 to 1 columns of values, got 2",
        ),
        (
            lambda: PastFeature(PAST, "count", half_life=5),
            "only decayed has a half_life, such as '1d', and it needs one",
        ),
        (lambda: PastFeature(PAST, "count", last=-1), "last must be a whole number from 0 to 100,000, got -1"),
        (lambda: col(5), "col needs the name of a column, got 5"),
        (
            lambda: lit([1]),
            "a list can be a constant only if it is empty; to compare with several values, use is_in([...])",
        ),
        (lambda: lit(None), "a constant must be a number, a string, a bool or a time, got NoneType None"),
        (
            lambda: lit(np.datetime64("291970-01-01")),
            (
                f"the constant {np.datetime64('291970-01-01')!r} does not fit into 64-bit microseconds; expected years "
                "up to 290,000"
            ),
        ),
        (
            lambda: lit(np.datetime64("-288030-01-01")),
            (
                f"the constant {np.datetime64('-288030-01-01')!r} does not fit into 64-bit microseconds; expected years "
                "up to 290,000"
            ),
        ),
        (
            lambda: lit(np.timedelta64(3, "s")),
            f"a constant must be a number, a string, a bool or a time, got timedelta64 {np.timedelta64(3, 's')!r}",
        ),
        (
            lambda: lit(np.array([1, 2])),
            "a constant must be a number, a string, a bool or a time, got ndarray array([1, 2])",
        ),
        (lambda: col("a").bucketize(), "bucketize needs either boundaries=[…] or quantiles=n, and not both"),
        (
            lambda: col("a").bucketize([1], quantiles=2),
            "bucketize needs either boundaries=[…] or quantiles=n, and not both",
        ),
        (lambda: col("a").cast("int", unit="s"), "cast to 'int' takes no unit=; only .cast('time', unit='s') does"),
        (
            lambda: col("a").cast("time", unit="h"),
            (
                "unit='h' is not a unit of time; expected one of 's' (seconds), 'ms' (milliseconds), 'us' "
                "(microseconds), 'ns' (nanoseconds)"
            ),
        ),
        (lambda: col("a").encode("x"), "encode() takes a cb.tables.Encoder, got str"),
        (lambda: cb.cross("a"), "cross needs two or more columns or expressions, such as cb.cross('user', 'ad')"),
        (lambda: cb.overlap("a", "b", "both"), "the measure of overlap must be 'count' or 'jaccard', got 'both'"),
        (lambda: cb.concat(), "concat needs at least one column or expression"),
        (
            lambda: bool(col("a") == 1),
            (
                "an expression has no value while the plan is built, so it cannot be used with if, and, or, not; "
                "combine conditions with & | ~, and put comparisons in parentheses"
            ),
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: repr(cb.Label("click").expressions), "(col('click'),)"),
        (lambda: repr(cb.Label(col("a") + 1, "count").expressions), "(col('a').add(1),)"),
        (
            lambda: repr(cb.Label("click", delay="d", elapsed=col("e"), window=1e30).expressions),
            "(col('click'), col('d'), col('e'))",
        ),
        (lambda: cb.Label("click", delay="d", elapsed="e", window=np.float32(0.5)).window, 0.5),
        (lambda: len(cb.FeatureSet(labels={f"t{k}": "a" for k in range(64)}).labels), 64),
        (lambda: cb.FeatureSet(label="a", labels={}).labels, {}),
        (lambda: repr(space_of("f", col("a"))), "(col('a').key(space='f'), 'f')"),
        (lambda: repr(space_of("f", col("a").key())), "(col('a').key(space='f'), 'f')"),
        (lambda: repr(space_of("f", col("a").key(space="s"))), "(col('a').key(space='s'), 's')"),
        (lambda: repr(space_of("f", cb.cross("a", "b"))), "(col('a').cross(col('b'), limit=1024, space='f'), 'f')"),
        (lambda: repr(space_of("f", col("a").as_key())), "(col('a').as_key(space='f'), 'f')"),
        (lambda: [span(f"3{unit}") // SPANS[unit] for unit in "smhdw"], [3, 3, 3, 3, 3]),
        (lambda: span("-" + "1" * 15 + "s"), -111111111111111000000),
        (
            lambda: repr(cb.shows("a", time="ts", label="y")),
            "col('y').history(col('ts'), col('a'), buckets=0, every=86400000000, what='shows')",
        ),
        (
            lambda: repr(cb.clicks("a", "b", time="ts", label="y", every="2h", window="2h")),
            "col('y').history(col('ts'), col('a'), col('b'), buckets=1, every=7200000000, what='clicks')",
        ),
        (
            lambda: repr(cb.rate("a", time="ts", label="y", every="1d", window="1w", prior=0.1, weight=5)),
            ("col('y').history(col('ts'), col('a'), buckets=7, every=86400000000, prior=0.1, weight=5.0, what='rate')"),
        ),
        (lambda: PAST.count(within="61s").within, 61000000),
        (
            lambda: (PAST.gap, PAST.lateness, PAST.budget, PAST.spill, PAST.where, PAST.events),
            (60000000, 0, 4294967296, None, None, None),
        ),
        (lambda: cb.past(by=("a", col("b")), time="ts", lateness=f"{DAYS}d", spill=True).spill, ""),
        (lambda: repr(cb.past(by=["a", "b"], time="ts").by), "(col('a'), col('b'))"),
        (
            lambda: (PAST.decayed(half_life="1h").values, PAST.decayed("a", half_life="1h").half_life),
            ((), 3600000000),
        ),
        (lambda: PAST.history("a").columns("c"), ["c", "c_age"]),
        (lambda: PAST.history("a", "b").columns("c"), ["c_a", "c_b", "c_age"]),
        (lambda: PAST.history(col("a") + 1).columns("c"), ["c", "c_age"]),
        (lambda: PAST.distinct("a", "b").columns("c"), ["c"]),
        (
            lambda: (
                PAST.history("a").last,
                PAST.distinct("a").last,
                PAST.count().last,
                PAST.history("a", last=np.int8(3)).last,
            ),
            (100, 1000, 0, 3),
        ),
        (lambda: [PAST.since(within="1d").what, PAST.mean("a").what, PAST.sum("a").what], ["since", "mean", "sum"]),
        (lambda: repr(lit(np.datetime64("1970-01-01T00:00:01"))), "1000000"),
        (lambda: repr(lit(np.datetime64("291969-01-01"))), "9151484544000000000"),
        (lambda: repr(lit(np.datetime64("-288029-01-01"))), "-9151484544000000000"),
        (lambda: repr(lit(np.float32(0.5))), "0.5"),
        (lambda: repr(lit(())), "()"),
        (lambda: repr(col("a").json("$.b", strict=True)), "col('a').json(path='$.b', to='str')"),
        (lambda: repr(col("a").key()), "col('a').key()"),
        (lambda: repr(cb.when(col("a") > 1).then(2).otherwise("x")), "col('a').gt(1).select(2, 'x')"),
        (
            lambda: repr(cb.concat("a", "b", "c", sep="-")),
            "col('a').concat(col('b'), separator='-').concat(col('c'), separator='-')",
        ),
        (lambda: repr(1 - col("a") % 2), "1.sub(col('a').mod(2))"),
        (lambda: repr(~(col("a") & (True | col("b")))), "col('a').and(True.or(col('b'))).not()"),
        (lambda: repr(lit("x" * 998))[-3:], "xx'"),
        (lambda: repr(lit("x" * 999))[-3:], "xx…"),
    ],
)
def test_what_is_written_becomes_what_is_meant(make: Callable[[], Any], shown: Any) -> None:
    assert make() == shown
