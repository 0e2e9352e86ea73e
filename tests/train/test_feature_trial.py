"""Feature trials: the shared pass gives what separate trainings give, verdicts are right, texts are read without running them."""

from __future__ import annotations

import ast
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Field, Schema
from ctrbox.evaluate.compare_two_models import Difference
from ctrbox.plan.language.expressions import Expr
from ctrbox.plan.language.feature_text import METHODS, parse_feature, parse_features
from ctrbox.train.feature_trial import Candidate, Cost, Trial
from tests.train import worlds

FAST: dict[str, Any] = {"batch_size": 256}
BOTH = cb.cross(((col("user") % 2).fill(0)), ((col("ad") % 2).fill(0)))
NOISE = ((col("id") * 7919) % 97).fill(0)


@pytest.fixture(scope="module")
def log() -> Any:
    return worlds.checkerboard(3000)


@pytest.fixture(scope="module")
def planted(log: Any) -> Trial:
    """A linear model cannot learn the checkerboard; with the cross it can."""
    plan = worlds.plan_of(log)
    add = {"both": BOTH, "noise": NOISE, "number": col("price").log1p()}
    return cb.trial(plan, cb.models.LR(plan.schema), add, seeds=2, **FAST)


def test_a_planted_cross_is_found_better(planted: Trial) -> None:
    found = planted["both"]
    assert found.verdict == "better"
    assert found.auc.low > 0.2
    assert found.logloss.high < 0
    assert found.rows_needed is None


def test_noise_cannot_be_told_from_nothing(planted: Trial) -> None:
    assert planted["noise"].verdict == "cannot tell"
    assert planted["noise"].rows_needed >= planted.valid_rows  # type: ignore[operator]
    assert planted["number"].verdict == "cannot tell"


def test_noise_is_mostly_not_called_better_or_worse(log: Any) -> None:
    plan = worlds.plan_of(log)
    add = {f"noise{k}": ((col("id") * (7919 + 2 * k)) % (11 + k)).fill(0) for k in range(8)}
    found = cb.trial(plan, cb.models.LR(plan.schema), add, seeds=1, batch_size=512)
    told = [c.name for c in found.values() if c.verdict != "cannot tell"]
    assert len(told) <= 2


def test_costs_are_those_of_the_feature(planted: Trial) -> None:
    both, noise, number = (planted[n].cost for n in ("both", "noise", "number"))
    assert (both.keys, noise.keys, number.keys) == (1.0, 1.0, 0.0)
    assert (both.new_keys, noise.new_keys, number.new_keys) == (4, 97, 0)
    assert number.table_bytes == 0 < noise.table_bytes
    assert all(math.isfinite(c.cost.extract_us) and math.isfinite(c.cost.learn_us) for c in planted.values())
    assert planted.extract_us > 0


def test_a_trial_prints_a_table_and_is_plain_data(planted: Trial) -> None:
    text = str(planted)
    lines = text.splitlines()
    assert lines[0] == "LR on memory: 2,700 training rows, 300 validation rows (121 clicks), 2 seeds"
    assert [line.split()[0] for line in lines[3:7]] == ["without", "both", "noise", "number"]
    assert lines[4].endswith("better")
    data = json.loads(json.dumps(planted.to_dict(), allow_nan=False))
    assert [c["verdict"] for c in data["candidates"]] == ["better", "cannot tell", "cannot tell"]
    assert np.mean(data["candidates"][0]["auc"]["by_seed"]) == pytest.approx(data["candidates"][0]["auc"]["with"])
    assert data["without"]["auc"] == pytest.approx(np.mean(planted.aucs))
    assert repr(planted) == "Trial(LR, both: better, noise: cannot tell, number: cannot tell)"


@pytest.mark.parametrize("options", [{}, {"shuffle": 512, "negatives": 0.5, "epochs": 2, "seeds": [0]}])
def test_every_learner_ends_as_a_training_of_its_own(log: Any, options: dict[str, Any]) -> None:
    """The slow twin: Trainer.fit with each set of features and each seed alone."""
    add = {"both": BOTH, "number": col("price").log1p()}
    seeds = options.get("seeds", [0, 1])
    options = {k: v for k, v in options.items() if k != "seeds"}
    plan = worlds.plan_of(log)
    found = cb.trial(plan, worlds.Small, add, table=worlds.table(), seeds=seeds, **FAST, **options)
    plans = [
        (worlds.plan_of(log), found.aucs, found.loglosses),
        (worlds.plan_of(log, sparse={"both": BOTH}), found["both"].aucs, found["both"].loglosses),
        (worlds.plan_of(log, dense={"number": add["number"]}), found["number"].aucs, found["number"].loglosses),
    ]
    for alone, aucs, losses in plans:
        for seed, auc, loss in zip(seeds, aucs, losses, strict=True):
            table = cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1, seed=seed)
            run = cb.Trainer(worlds.Small(alone.schema), table).fit(alone, seed=seed, **worlds.FAST, **options)
            assert run.metrics["auc"] == pytest.approx(auc, abs=1e-12)  # two ways to add up the same ranks
            assert run.metrics["logloss"] == pytest.approx(loss, abs=1e-12)


def test_overlap_changes_nothing_and_the_callers_random_numbers_stay(log: Any) -> None:
    plan = worlds.plan_of(log)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = [
        cb.trial(plan, worlds.Small, {"both": BOTH}, table=worlds.table(), seeds=1, overlap=o, **FAST)
        for o in (True, False)
    ]
    assert torch.equal(before, torch.get_rng_state())
    assert found[0].aucs == found[1].aucs
    assert found[0]["both"].aucs == found[1]["both"].aucs


def test_tables_that_are_not_given_are_those_of_the_trainer(log: Any) -> None:
    plan = worlds.plan_of(log)
    found = cb.trial(plan, cb.models.FM(plan.schema, dim=4), {"both": BOTH}, seeds=1, **FAST)
    torch.manual_seed(0)
    run = cb.Trainer(cb.models.FM(plan.schema, dim=4)).fit(plan, **worlds.FAST)
    assert run.metrics["auc"] == pytest.approx(found.aucs[0], abs=1e-12)


def test_all_together_are_one_candidate(log: Any) -> None:
    plan = worlds.plan_of(log)
    add = {"both": BOTH, "number": col("price").log1p()}
    found = cb.trial(plan, cb.models.LR(plan.schema), add, seeds=1, together=True, **FAST)
    assert list(found) == ["both + number"]
    assert set(found["both + number"].features) == {"both", "number"}
    assert found["both + number"].verdict == "better"
    assert "One seed" in str(found)


def test_another_log_can_judge(log: Any) -> None:
    plan, other = worlds.plan_of(log), worlds.plan_of(worlds.checkerboard(700, seed=9))
    add = {"both": BOTH, "bucket": cb.cross(col("price").bucketize(quantiles=4), "device")}
    found = cb.trial(plan, cb.models.LR(plan.schema), add, seeds=1, valid=other, **FAST)
    assert (found.train_rows, found.valid_rows) == (3000, 700)
    assert found["both"].verdict == "better"


def test_what_cannot_be_tried_is_refused(log: Any) -> None:
    plan = worlds.plan_of(log)
    model = cb.models.LR(plan.schema)
    add = {"both": BOTH}

    def refused(words: str, *args: Any, error: type[Exception] = cb.errors.PlanError, **more: Any) -> None:
        with pytest.raises(error, match=words):
            cb.trial(*args, **{**FAST, **more})

    refused("'user' is already in the plan;", plan, model, {"user": col("user")})
    refused("'price' is already in the plan;", plan, model, {"price": col("price")})
    refused("add must be a dict of the features to try", plan, model, {})
    refused("add must be a dict of the features to try", plan, model, [BOTH])
    refused("must be an expression", plan, model, {"x": 3})
    refused("'usr' is not in view .*nearest: 'user'", plan, model, {"x": cb.cross("usr", "ad")})
    refused("may be null.*add .fill", plan, model, {"x": col("user") % 2})
    refused("needs a plan", "plan", model, add)
    refused("patience= cannot be used", plan, model, add, patience=2)
    refused(
        "trial has no argument 'batchsize'; nearest: 'batch_size'; it has plan, model, add, ",
        plan,
        model,
        add,
        batchsize=2,
    )
    for name in ("calibrate", "adaptive_l2"):  # settings of a training that a trial does not use
        refused(f"trial has no argument '{name}'", plan, model, add, **{name: 1.0})
    refused("valid= to a share above 0", plan, model, add, valid=0)
    refused("seeds must be a number from 1", plan, model, add, seeds=0)
    refused("seeds must be a number from 1", plan, model, add, seeds=[1, 1])
    refused("seeds must be a number from 1", plan, model, add, seeds="3")
    refused("Small cannot be built again.*lambda schema", plan, worlds.Small(plan.schema), add)
    refused("must be a torch module or a function", plan, "DeepFM", add)
    refused("expected a torch module", plan, lambda schema: 3, add)
    refused(r"reads only \['user'\], so it would not see 'both'", plan, cb.models.LR(plan.schema, fields=["user"]), add)
    refused("tables with the settings of a cb.MemoryTable, got dict_keys", plan, model, add, table={"*": {}.keys()})
    tiny = cb.MemoryTable(4, budget=2000)
    refused(
        "divides the budget among the 2 models",
        plan, worlds.Small, add, error=cb.errors.BudgetError, table=tiny, seeds=1,
    )  # fmt: skip
    blind = cb.compile(plan.log, cb.FeatureSet(sparse={"user": "user"}))
    refused("no label; add", blind, model, add, error=cb.errors.TrainError)
    with pytest.raises(cb.errors.PlanError, match="'bath' was not tried; nearest: 'both'"):
        Trial({"both": None}, model="", data="", seeds=(0,), train_rows=0, valid_rows=0, aucs=(), loglosses=(),
              extract_us=0, learn_us=0, seconds=0)["bath"]  # type: ignore[dict-item]  # fmt: skip


# ---- a batch of fewer features


def test_a_selected_batch_equals_the_batch_of_a_smaller_plan(log: Any) -> None:
    whole = worlds.plan_of(log, dense={"a": col("price") + 1.0, "b": col("price") * 2.0}, sparse={"both": BOTH})
    for sparse, dense in [((), ("b",)), (("both",), ()), (("both",), ("a", "b")), ((), ())]:
        few = worlds.plan_of(
            log,
            sparse=dict.fromkeys(sparse, BOTH),
            dense={n: {"a": col("price") + 1.0, "b": col("price") * 2.0}[n] for n in dense},
        )
        for big, small in zip(whole.batches(1000), few.batches(1000), strict=True):
            part = big.select(small.schema)
            assert part.to_arrow().equals(small.to_arrow())
            assert part.dense.flags.c_contiguous
    assert big.select(whole.schema).dense is big.dense
    with pytest.raises(
        cb.errors.PlanError, match="'bth' is neither a sparse feature nor a dense column of this batch; nearest: 'both'"
    ):
        big.select(Schema((Field("bth", "bth", False),), (), True, True, False))


# ---- features as text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x_y=cross('x','y')", cb.cross("x", "y")),
        ("x_y = cb.cross(x, y.lower(), limit=7)", cb.cross("x", col("y").lower(), limit=7)),
        ("a=x", col("x")),
        ("a='x'", col("x")),
        ("a=col('x').hour()", col("x").hour()),
        ("a=cb.col(x).hour(60)", col("x").hour(60)),
        ("a='x'.split('|').last(3)", col("x").split("|").last(3)),
        ("a=when(x > 3).then('u').otherwise('v')", cb.when(col("x") > 3).then("u").otherwise("v")),
        ("a=(-x * 2 + 1) / 3 - x // 4 % 5", (-col("x") * 2 + 1) / 3 - col("x") // 4 % 5),
        ("a=(x == 'b') & ~(y != -2) | (z >= 1.5)", (col("x") == "b") & ~(col("y") != -2) | (col("z") >= 1.5)),
        ("a=x.is_in([1, -2])", col("x").is_in([1, -2])),
        ("a=x.bucketize(quantiles=10)", col("x").bucketize(quantiles=10)),
        ("a=overlap(x, y, 'jaccard')", cb.overlap("x", "y", "jaccard")),
        ("a=concat(x, 'y', sep='-')", cb.concat("x", "y", sep="-")),
        ("a=min_('x', max_(y, 2))", cb.min_("x", cb.max_("y", 2))),
        ("a=rate('ad', time='ts', label='clicked')", cb.rate("ad", time="ts", label="clicked")),
        ("a=x.key(space=None)", col("x").key()),
        ("a.b-c=x.json('$.a', strict=True)", col("x").json("$.a", strict=True)),
        ("a=1 - x", 1 - col("x")),
        ("a=cb.min_", None),
    ],
)
def test_a_written_feature_is_what_python_would_have_built(text: str, expected: Any) -> None:
    if expected is None:
        with pytest.raises(cb.errors.PlanError, match="without a call"):
            parse_feature(text)
        return
    name, found = parse_feature(text)
    assert name == text.partition("=")[0].strip()
    assert repr(found) == repr(expected)
    assert found.op == expected.op


ATTACKS = [
    "",
    "x",
    "x==y",
    "1x=y",
    "a b=y",
    "a=",
    "a=x y",
    "a=().__class__.__bases__",
    "a=x.__class__",
    "a=x.__class__()",
    "a=x.__init__('eq')",
    "a=x._call('eq', 1)",
    "a=x.args",
    "a=x.op",
    "a=x.op()",
    "a=x.lookup('d')",
    "a=col.__globals__",
    "a=cb.View('/etc/passwd')",
    "a=cb.cb.col('x')",
    "a=__import__('os').system('true')",
    "a=__builtins__",
    "a=open('x')",
    "a=eval('x')",
    "a=lambda: 1",
    "a=(lambda: x)()",
    "a=[c for c in x]",
    "a=(c for c in x)",
    "a={c: 1 for c in x}",
    "a={1, 2}",
    "a=(x, y)",
    "a=x[0]",
    "a=x if y else z",
    "a=x and y",
    "a=not x",
    "a=x < y < z",
    "a=x in [1]",
    "a=x is None",
    "a=x ** 2",
    "a=x << 2",
    "a=x @ y",
    "a='a' * 10 ** 9",
    "a=9 ** 9 ** 9",
    "a=f'{x}'",
    "a=(y := x)",
    "a=cross(*x)",
    "a=cross(**x)",
    "a=cross(x)",
    "a=cross(x, y, depth=3)",
    "a=await x",
    "a=x; import os",
    "a=b'x'",
    "a=...",
    "a=1j",
    "a=1",
    "a=None",
    "a=True",
    "a=[1]",
    "a=when(x)",
    "a=when(x).then(1)",
    "a=when(x).otherwise(1)",
    "a=when(x).then(1).then(2)",
    "a=when(x) + 1",
    "a=cross(when(x).then(1), y)",
    "a=x.bucketize([x])",
    "a=x.bucketize([[1]])",
    "a=x.fill(None)",
    "a=x.key(1, 2, 3)",
    "a=(3).hour()",
    "a=x.split(separator=y)",
    "a=x\0",
    "a=x + " + "9" * 40,
    "a=" + "9" * 1990,
    "a=" + "-" * 1990 + "x",
    "a=" + "~" * 150 + "x",
    "a=" + "(" * 900 + "x" + ")" * 900,
    "a=" + "x+" * 700 + "x",
    "a=" + "[" * 300 + "]" * 300,
    "a=" + "x" * 3000,
    "a=x" + ".lower()" * 200,
    "a=\ud800",
]


@pytest.mark.parametrize("text", ATTACKS, ids=lambda t: repr(t[:30]))
def test_what_is_not_a_feature_is_refused_in_words(text: str) -> None:
    with pytest.raises(cb.errors.PlanError):
        parse_feature(text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abxy_.=('\")[]{}:,+-*/~&|<>! 019lambdforin\n\\", max_size=60))
def test_no_text_gets_past_the_reader(text: str) -> None:
    """Either a plain expression or a PlanError; whatever is accepted holds only known operators."""
    try:
        _, found = parse_feature("a=" + text)
    except cb.errors.PlanError:
        return
    assert isinstance(found, Expr)
    ast.parse(text.strip(), mode="eval")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(dir(Expr)), st.sampled_from(["", "1", "'a'", "x, x", "[1, 2]"]))
def test_only_public_operators_are_called(method: str, arguments: str) -> None:
    try:
        found = parse_feature(f"a=x.{method}({arguments})")[1]
    except cb.errors.PlanError:
        return
    assert method in METHODS
    # is_not_null is written as the negation of is_null, so that the column lies one step deeper.
    inner = found.args[0].args[0] if method == "is_not_null" else found.args[0]
    assert inner.op == "column"


def test_several_features_need_names_of_their_own() -> None:
    assert list(parse_features(["a=x", "b=y"])) == ["a", "b"]
    with pytest.raises(cb.errors.PlanError, match="'a' is written twice"):
        parse_features(["a=x", "a=y"])
    with pytest.raises(cb.errors.PlanError, match="written as name=expression"):
        parse_features([3])  # type: ignore[list-item]


def test_a_misspelled_function_names_the_nearest() -> None:
    with pytest.raises(cb.errors.PlanError, match="nearest: 'cross'"):
        parse_feature("a=crss('x', 'y')")
    with pytest.raises(cb.errors.PlanError, match="nearest: 'lower'"):
        parse_feature("a=x.lowr()")
    with pytest.raises(cb.errors.PlanError, match=r"expected \.then"):
        parse_feature("a=when(x).than(3)")


def test_several_candidates_widen_each_interval_so_that_all_hold_at_once(log: Any) -> None:
    plan = worlds.plan_of(log)
    add = {f"noise{k}": ((col("id") * (7 + k)) % (11 + k)).fill(0) for k in range(4)}
    found = cb.trial(plan, cb.models.LR(plan.schema), add, seeds=1, **FAST)
    assert {c.auc.level for c in found.values()} == {1 - 0.05 / 4}
    assert "4 candidates: each interval is widened" in str(found)


def candidate(rows: int, clicks: int) -> Candidate:
    better = Difference("auc", 0.6, 0.7, 0.1, 0.05, 0.15, 0.02, 0.001, 0.95, rows, 1, clicks)
    return Candidate("x", {"x": "x"}, better, better, (0.7,), (0.3,), Cost(0.0, 0.0, 0, 0, 0.0))


def test_few_clicks_are_too_few_to_tell() -> None:
    assert candidate(1000, 50).verdict == "better"
    assert candidate(1000, 9).verdict == "cannot tell"
    assert candidate(1000, 995).verdict == "cannot tell"
    assert candidate(1000, 9).rows_needed is None


def test_a_trial_with_weights_says_that_its_figures_are_plain() -> None:
    weighted = worlds.checkerboard(2000)
    weighted = weighted.append_column("w", pa.array(np.where(weighted.column("clicked").to_numpy() == 1, 3.0, 1.0)))
    plan = worlds.plan_of(weighted, weight=col("w"))
    found = cb.trial(plan, cb.models.LR(plan.schema), {"both": BOTH}, seeds=1, **FAST)
    assert "AUC and log loss here do not: all validation rows count equally" in str(found)
    assert found.to_dict()["weighted_training"] is True
