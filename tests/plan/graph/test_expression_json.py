"""Tests how views, features and expressions are written to a file and read back, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError
from ctrbox.plan.graph.expression_json import DEEPEST, Reader, Writer, canonical, sizes
from ctrbox.plan.language.features import FeatureSet
from ctrbox.plan.language.history_columns import MOST_SPAN
from ctrbox.views.view import DEFAULT_BUDGET, View

WORDS = cb.Dictionary(["a"], [1])
SIDE = View(pa.table({"k": [1], "x": [2]}), key="k", name="side")
CLICKS = View(pa.table({"k": [1], "at": [datetime(2026, 1, 1)]}), name="clicks")


@cb.operator(args=["int"], result="int")
def plain(column: pa.Array) -> pa.Array:
    return column


@cb.operator(args=["int"], result="float", cuda="return column;", arrays="numpy")
def body(column: pa.Array) -> pa.Array:
    return column


@cb.operator(args=["int"], result="int", scalar=True)
def alone(column: int) -> int:
    return column


HERE = plain.path.partition(":")[0]


def log() -> View:
    rows = {"id": [1], "k": [1], "s": ["a"], "at": [datetime(2026, 1, 1)], "since": [datetime(2026, 1, 1)]}
    return View(pa.table(rows), key="id", name="log")


def stepped() -> View:
    """Return a view with a step of each kind."""
    history = cb.past(by=["k", "s"], time="at", where=col("k") == 1, gap="1m", lateness="2m", budget="1MB", spill=True)
    more = View(pa.table({"id": [1], "y": [2.0]}), key="id", name="more")
    valid = View(pa.table({"k": [1], "when": [datetime(2026, 1, 1)], "z": [2]}), key="k", name="valid")
    shown = View(pa.table({"id": [1], "v": [2.0]}), key="id", name="shown")
    return (
        log()
        .with_columns(a=col("k") + 1)
        .fill(a=0, s="none")
        .cast(a="float")
        .filter(col("a") > 0.5)
        .with_history(
            seen=history.history("k", "s", last=7, within="1h"),
            old=cb.past(by="k", time="at").decayed(half_life="1d"),
            mine=CLICKS.past(by="k", time="at").count(),
        )
        .join(SIDE, on="k", how="inner", budget="2MB")
        .join(SIDE, on="k", prefix="again_", spill=True)
        .join(valid, on="k", as_of=("at", "when"), prefix="v_")
        .merge(more)
        .merge(shown, ordered=False, spill=True)
        .select("id", "k", "a", "seen_k", "y")
    )


STEPS: list[Any] = [
    ["with_columns", [["a", 2]]],
    ["fill", [["a", 3], ["s", 4]]],
    ["cast", [["a", "float"]]],
    ["filter", 7],
    [
        "with_history",
        [
            ["seen", "history", [0, 8], [0, 8], 10, 9, [7, 3600000000, 0, 60000000, 120000000]],
            ["old", "decayed", [], [0], 10, None, [0, 0, 86400000000, 0, 0]],
            ["mine", "count", [], [0], 10, None, [0, 0, 0, 0, 0], 0],
        ],
        [[1048576, True], 4294967296, 4294967296],
    ],
    ["join", 1, ["k"], "inner", "", {"budget": 2097152}],
    ["join", 1, ["k"], "left", "again_", {"spill": True}],
    ["join", 2, ["k"], "left", "v_", ["at", "when"]],
    ["merge", 3, None, 4294967296],
    ["merge", 4, False, 4294967296, True],
    ["select", ["id", "k", "a", "seen_k", "y"]],
]


def test_each_step_has_its_entry_and_is_read_back() -> None:
    writer = Writer()
    view = stepped()
    writer.view(view)
    assert [v.name for v in writer.views] == ["clicks", "side", "valid", "more", "shown", "log"]
    steps = writer.steps(view)
    assert steps == STEPS
    reader = Reader([], lambda written: plain)
    reader.expressions(json.loads(canonical(writer.expressions)))
    again = [reader.step(json.loads(json.dumps(step)), writer.views) for step in steps]
    twice = Writer(views=writer.views, _placed=writer._placed)
    assert [twice._step(step) for step in again] == STEPS
    assert [type(step) for step in again] == [type(step) for step in view.steps]
    # The folders of this machine are not those of another one.
    assert [getattr(step, "spill", None) for step in again] == [None] * 6 + ["", None, None, "", None]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, None),
        (True, True),
        (5, 5),
        ("a", "a"),
        (0.5, {"float": "0x1.0000000000000p-1"}),
        (datetime(1970, 1, 1, 0, 0, 1), {"time": 1_000_000}),
        (b"ab", {"bytes": "YWI="}),
        ((1, [2.0, None]), {"tuple": [1, {"tuple": [{"float": "0x1.0000000000000p+1"}, None]}]}),
        (WORDS, {"dictionary": 0}),
        (
            plain,
            {
                "operator": {
                    "path": f"{HERE}:plain",
                    "args": ["i"],
                    "result": "i",
                    "nullable": False,
                    "arrays": "arrow",
                }
            },
        ),
        (
            body,
            {
                "operator": {
                    "path": f"{HERE}:body",
                    "args": ["i"],
                    "result": "f",
                    "nullable": False,
                    "arrays": "numpy",
                    "cuda": "return column;",
                }
            },
        ),
        (
            alone,
            {
                "operator": {
                    "path": f"{HERE}:alone",
                    "args": ["i"],
                    "result": "i",
                    "nullable": False,
                    "arrays": "arrow",
                    "scalar": True,
                }
            },
        ),
    ],
)
def test_a_value_is_written_without_losing_a_bit(value: Any, written: Any) -> None:
    writer = Writer()
    assert writer.value(value) == written
    assert writer.value(value) == written  # and in the same place again
    assert (len(writer.dictionaries), len(writer.operators)) == (value is WORDS, callable(value))


def test_features_and_labels_have_their_entries() -> None:
    writer = Writer()
    one = writer.features(FeatureSet(label="k", group="s", sparse={"s": "s"}, dense={"x": col("k") + 1}))
    assert one == {"label": 0, "group": 1, "weight": None, "sparse": [["s", 1]], "dense": [["x", 3]]}
    several = writer.features(
        FeatureSet(labels={"a": "k", "b": cb.Label("s", "count"), "c": cb.Label("k", delay="s", elapsed="k", window=7)})
    )
    assert several["labels"] == [["a", 0, "binary"], ["b", 1, "count"], ["c", 0, "binary", 1, 0, 7.0]]
    reader = Reader([], lambda written: plain)
    reader.expressions(writer.expressions)
    for written in (one, several):
        assert Writer().features(reader.features(written)).keys() == written.keys()
        assert writer.features(reader.features(written)) == written


def reader() -> Reader:
    found = Reader([WORDS], lambda written: plain)
    found.expressions([["column", [], {"name": "k"}], ["neg", [0], {}]])
    return found


def step(*parts: Any) -> Callable[[], Any]:
    return lambda: reader().step(list(parts), [SIDE])


def expressions(*table: Any) -> Callable[[], Any]:
    return lambda: reader().expressions(list(table))


def features(**written: Any) -> Callable[[], Any]:
    return lambda: reader().features({"sparse": [], "dense": [], **written})


PAST = ["seen", "count", [], [0], 0, None, [0, 0, 0, 0, 0]]


def past(place: int, value: Any, budget: Any = 5) -> Callable[[], Any]:
    changed = [*PAST[:place], value, *PAST[place + 1 :]]
    return step("with_history", [changed], [budget])


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (expressions(["column", []]), "an expression must be a list of 3 elements"),
        (expressions([5, [], {}]), "an operator must be a string"),
        (expressions(["zzz", [], {}]), "there is no operator 'zzz'"),
        (expressions(["ne", [], {}], ["nega", [0], {}]), "there is no operator 'nega'; nearest: 'neg'"),
        (expressions(["neg", 0, {}]), "arguments must be a list of at most 1,000,000 elements"),
        (expressions(["neg", [0], {}]), "an argument must be the number of an earlier entry, but there is none"),
        (expressions(["neg", [], []]), "parameters must be an object"),
        (lambda: reader().expressions({}), "expressions must be a list of at most 1,000,000 elements"),
        (lambda: reader().at(2), "the place of an expression must be a whole number from 0 to 1"),
        (lambda: reader().at(True), "the place of an expression must be a whole number from 0 to 1"),
        (lambda: reader().value([1]), "'[1]' is not a value"),
        (lambda: reader().value({}), "'{}' is not a value"),
        (lambda: reader().value({"what": 1}), "'what' is not a kind of value"),
        (lambda: reader().value({"float": "x"}), "'x' is not a float"),
        (lambda: reader().value({"float": 0.5}), "a float must be a string"),
        (lambda: reader().value({"time": "x"}), "'time' is not a kind of value"),
        (lambda: reader().value({"time": True}), "'time' is not a kind of value"),
        (lambda: reader().value({"bytes": "?"}), "it contains bytes that are not base64"),
        (lambda: reader().value({"tuple": 5}), "a tuple must be a list of at most 1,000,000 elements"),
        (lambda: reader().value({"dictionary": 1}), "it refers to a dictionary that it does not contain"),
        (
            lambda: reader().value({"dictionary": -1}),
            f"a dictionary's place must be a whole number from 0 to {2**63 - 1:,}",
        ),
        (lambda: reader().value({"encoder": 1}), "an encoder must be an object"),
        (lambda: reader().value({"operator": 1}), "an operator must be an object"),
        (lambda: reader().features([]), "features must be an object"),
        (features(label=2), "the place of an expression must be a whole number from 0 to 1"),
        (features(sparse=5), "sparse features must be a list of at most 1,000,000 elements"),
        (features(dense=[["a"]]), "a feature must be a list of 2 elements"),
        (features(dense=[[5, 0]]), "a feature's name must be a string"),
        (features(dense=[["a", 0], ["a", 1]]), "two dense features have the same name"),
        (features(labels=[["a", 0, "binary"]] * 65), "labels must be a list of at most 64 elements"),
        (features(labels=[5]), "a label must be a list of at most 1,000,000 elements"),
        (features(labels=[["a", 0]]), "a label must be a list of 3 elements"),
        (features(labels=[["a", 0, "binary", 1]]), "a label must be a list of 6 elements"),
        (features(labels=[["a", 0, "binary"], ["a", 1, "count"]]), "two labels have the same name"),
        (features(labels=[["a", 0, 5]]), "the kind of a label must be a string"),
        (lambda: reader().step([], []), "a step of a view is empty"),
        (step("drop", 1), "there is no step 'drop'"),
        (step("fill", 5), "fill must not contain a value of type int"),
        (step("fill", [], []), "fill must be a list of 1 element"),
        (step("fill", [["a"]]), "fill must be a list of 2 elements"),
        (step("with_columns", [[5, 0]]), "with_columns must be a string"),
        (step("cast", [["a", 5]]), "cast must be a string"),
        (step("filter", [0]), "filter must not contain a value of type list"),
        (step("select", ["a", 5]), "select must be a string"),
        (step("join", 0, ["k"], "outer", ""), "a join must be left or inner, not 'outer'"),
        (step("join", 0, ["k"], "left"), "join must be a list of 4 elements"),
        (step("join", 1, ["k"], "left", ""), "a step refers to a view that does not come before it"),
        (step("join", -1, ["k"], "left", ""), "a step refers to a view that does not come before it"),
        (step("join", "0", ["k"], "left", ""), "a step refers to a view that does not come before it"),
        (step("join", 0, ["k"], "left", 5), "join must be a string"),
        (step("join", 0, ["k"], "left", "", ["a"]), "the times of a join must be a list of 2 elements"),
        (step("join", 0, ["k"], "left", "", ["a", 5]), "a time of a join must be a string"),
        (
            step("join", 0, ["k"], "left", "", {"budget": -1}),
            f"a budget must be a whole number from 0 to {2**63 - 1:,}",
        ),
        (step("join", 0, ["k"], "left", "", ["a", "b"], {}, {}), "join must be a list of 5 elements"),
        (step("merge", 0, None), "merge must be a list of 3 elements"),
        (step("merge", 0, 1, 5), "ordered must be true or false"),
        (step("merge", 0, None, 5, 1), "spill must be true or false"),
        (step("merge", 0, None, "5"), f"a budget must be a whole number from 0 to {2**63 - 1:,}"),
        (step("with_history", []), "with_history must be a list of 2 elements"),
        (step("with_history", [PAST], []), "with_history must be a list of 1 element"),
        (step("with_history", [PAST[:6]], [5]), "a history column must be a list of 7 elements"),
        (past(0, 5), "the name of a history must be a string"),
        (past(1, 5), "a history column must be a string"),
        (past(2, 5), "columns of a history must be a list of at most 1,000,000 elements"),
        (past(3, []), "a history column has no key, or reads several expressions"),
        (past(6, [0, 0]), "the spans of a history must be a list of 5 elements"),
        (past(6, [0, 0, 0, MOST_SPAN + 1, 0]), f"a span must be a whole number from 0 to {MOST_SPAN:,}"),
        (past(6, PAST[6], [5]), "the memory of a history must be a list of 2 elements"),
        (past(6, PAST[6], [5, 5]), "spill must be true or false"),
        (past(6, PAST[6], -5), f"a budget must be a whole number from 0 to {2**63 - 1:,}"),
        (
            step("with_history", [["seen", "history", [0, 1], [0], 0, None, [1, 0, 0, 0, 0]]], [5]),
            "a history column has no key, or reads several expressions",
        ),
    ],
)
def test_what_no_plan_says_is_refused_in_a_sentence(read: Callable[[], Any], told: str) -> None:
    with pytest.raises(PlanError) as caught:
        read()
    assert str(caught.value) == f"the saved plan is malformed: {told}; compile the plan and save it again"


def test_what_a_file_leaves_out_has_its_default() -> None:
    found = reader()
    joined: Any = found.step(["join", 0, ["k"], "left", ""], [SIDE])
    assert (joined.view, joined.on, joined.how, joined.as_of) == (SIDE, ("k",), "left", None)
    assert (joined.budget_bytes, joined.spill) == (DEFAULT_BUDGET, None)
    joined = found.step(["join", 0, ["k"], "inner", "p_", ["a", "b"], {"budget": 7, "spill": True}], [SIDE])
    assert (joined.how, joined.prefix, joined.as_of, joined.budget_bytes, joined.spill) == (
        *("inner", "p_", ("a", "b"), 7, ""),
    )
    merged: Any = found.step(["merge", 0, None, 7], [SIDE])
    assert (merged.ordered, merged.spill) == (None, None)
    merged = found.step(["merge", 0, False, 7, True], [SIDE])
    assert (merged.ordered, merged.spill) == (False, "")
    merged = found.step(["merge", 0, True, 7, False], [SIDE])
    assert (merged.ordered, merged.spill) == (True, None)
    several: Any = found.step(["with_history", [PAST, [*PAST, 0]], [5, [6, True]]], [SIDE])
    (_, first), (_, second) = several.features
    assert (first.past.events, first.past.budget, first.past.spill) == (None, 5, None)
    assert (second.past.events, second.past.budget, second.past.spill) == (SIDE, 6, "")
    empty = found.features({"sparse": [], "dense": [], "label": 1})
    assert (repr(empty.label), empty.group, empty.weight, empty.labels) == ("col('k').neg()", None, None, {})


def test_an_expression_may_be_10000_calls_deep() -> None:
    chain: list[list[Any]] = [["column", [], {}], *(["neg", [k], {}] for k in range(DEEPEST - 1))]
    assert sizes(chain)[-1] == DEEPEST
    assert sizes([["column", [], {}], ["add", [0, 0], {}], ["add", [0, 1], {}]]) == [1, 3, 5]
    with pytest.raises(PlanError) as caught:
        sizes([*chain, ["neg", [DEEPEST - 1], {}]])
    assert str(caught.value) == (
        "an expression of 10,001 calls, nested 10,001 deep, is too large for a saved plan; the limits are 5,000,000 calls and "
        "a depth of 10,000"
    )
