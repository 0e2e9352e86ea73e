"""Training gives the same bits however it is run, learns what there is to learn, and says what is wrong with its input."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import BudgetError, DataError, PlanError, TrainError
from ctrbox.predict import nan_in_batch
from ctrbox.train.learn_batch import Learner
from tests.train.worlds import FAST, Small, checkerboard, fit, plan_of, table, weights


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return checkerboard()


@pytest.fixture(scope="module")
def plan(log: pa.Table) -> cb.Plan:
    return plan_of(log)


def test_the_checkerboard_is_learned(plan: cb.Plan) -> None:
    run = fit(plan, epochs=4)
    assert run.metrics["auc"] > 0.83  # the best possible is 0.85
    assert run.metrics["rows"] == 600
    assert 0.8 < run.metrics["calibration"] < 1.25


@pytest.mark.parametrize("options", [{}, {"epochs": 2, "shuffle": 1000}, {"negatives": 0.5}, {"evaluate_every": 3}])
def test_sequential_and_pipelined_weights_are_equal_bit_for_bit(plan: cb.Plan, options: dict[str, Any]) -> None:
    assert weights(fit(plan, overlap=True, **options)) == weights(fit(plan, overlap=False, **options))


def test_two_runs_with_one_seed_are_equal_and_another_seed_differs(plan: cb.Plan) -> None:
    first, again, other = fit(plan, seed=3), fit(plan, seed=3), fit(plan, seed=4)
    assert weights(first) == weights(again)
    assert weights(first) != weights(other)


def test_threads_of_the_engine_change_no_bit(log: pa.Table) -> None:
    runs = []
    for threads in (1, 3):
        mine = cb.compile(plan_of(log).log, plan_of(log).features, threads=threads)
        runs.append(weights(cb.Trainer(Small(mine.schema), table(), threads=threads).fit(mine, **FAST)))
    assert runs[0] == runs[1]


def test_validation_rows_are_the_newest_and_leave_no_rows_in_the_table(log: pa.Table) -> None:
    late = log.slice(5400)
    late = late.set_column(late.schema.get_field_index("user"), "user", pa.array(np.arange(600) + 10_000))
    plan = plan_of(pa.concat_tables([log.slice(0, 5400), late]))
    run = fit(plan)
    ours = {int(k) for b in plan.batches(1000, limit=5400) for f in b.sparse.values() for k in f.values}
    assert set(run.learner.embedders[0].export()[0].tolist()) == ours  # type: ignore[attr-defined]


def test_another_plan_can_be_the_validation(log: pa.Table) -> None:
    plan = plan_of(log.slice(0, 5400))
    run = fit(plan, valid=plan.over(log.slice(5400)))
    whole = fit(plan_of(log))
    assert weights(run) == weights(whole)
    assert run.metrics == whole.metrics


def test_thinned_negatives_are_recalibrated(plan: cb.Plan) -> None:
    run = fit(plan, negatives=0.3, epochs=3)
    assert 0.8 < run.metrics["calibration"] < 1.25
    assert run.summary["rows"]["train"] < 0.8 * 5400 * 3


def test_weights_of_zero_hide_rows(log: pa.Table) -> None:
    hidden = log.append_column("w", pa.array(np.where(np.arange(len(log)) % 2, 1.0, 0.0)))
    flipped = hidden.set_column(
        log.schema.get_field_index("clicked"),
        "clicked",
        pa.array(np.where(np.arange(len(log)) % 2, log["clicked"].to_numpy(), 1 - log["clicked"].to_numpy())),
    )
    a, b = (fit(plan_of(t, weight=col("w"))) for t in (hidden, flipped))
    assert weights(a) == weights(b)


def test_early_stop_gives_the_best_weights_back(log: pa.Table) -> None:
    noise = log.set_column(
        log.schema.get_field_index("clicked"), "clicked", pa.array(np.random.default_rng(1).integers(0, 2, len(log)))
    )
    plan = plan_of(noise)
    seen: list[float] = []

    class Watch:
        def see(self, progress: Any) -> None: ...
        def evaluated(self, metrics: Any) -> None:
            seen.append(metrics["logloss"])

        def resumed(self, step: int, rows: int) -> None: ...
        def end(self) -> None: ...

    run = fit(plan, epochs=20, patience=2, progress=Watch())
    assert len(seen) < 20
    assert run.metrics["logloss"] == min(seen)


@pytest.mark.parametrize("missing", ["clicks", "weights"])
def test_an_evaluation_without_a_figure_does_not_count_for_patience(log: pa.Table, missing: str) -> None:
    late = np.arange(len(log)) >= 5400  # the validation rows
    if missing == "clicks":
        clicked = pa.array(np.where(late, 0, log["clicked"].to_numpy()))
        plan = plan_of(log.set_column(log.schema.get_field_index("clicked"), "clicked", clicked))
    else:
        plan = plan_of(log.append_column("w", pa.array(np.where(late, 0.0, 1.0))), weight=col("w"))
    name = "auc" if missing == "clicks" else "weighted_logloss"
    with pytest.warns(UserWarning, match=rf"{name} of the validation rows is not a number .* does not count") as told:
        run = fit(plan, epochs=3, patience=1, monitor=name)
    assert sum("does not count" in str(one.message) for one in told) == 1
    assert run.summary["rows"]["train"] == 3 * 5400
    assert run.summary["stopped"] is None


def test_a_run_that_patience_stopped_says_so(plan: cb.Plan) -> None:
    run = fit(plan, epochs=30, patience=2)
    assert run.summary["rows"]["train"] < 30 * 5400
    step = run.summary["best_step"]
    assert run.summary["stopped"] == (
        f"patience: logloss of the validation rows was best after step {step:,}, 2 evaluations ago"
    )


def test_schedules_scale_dense_weights_and_tables(plan: cb.Plan) -> None:
    still = fit(plan, schedule=lambda step: 1e-12, limit=600)
    fresh = Small(plan.schema)
    for name, value in still.model.named_parameters():
        assert torch.allclose(value, dict(fresh.named_parameters())[name], atol=1e-6), name
    assert cb.optim.Warmup(4)(0) == 0.25
    assert cb.optim.Warmup(4)(9) == 1.0
    assert cb.optim.Cosine(10)(0) == 1.0
    assert cb.optim.Cosine(10)(10) == 0.0
    assert math.isclose(cb.optim.Cosine(10)(5), 0.5)
    assert cb.optim.Decay(0.5, 10)(25) == 0.25


def test_pushes_after_a_training_have_the_rate_of_the_table(plan: cb.Plan) -> None:
    table = cb.MemoryTable(2, optimizer=cb.optim.SGD(lr=0.5))
    model = cb.models.FM(plan.schema, 2)
    cb.Trainer(model, table).fit(plan, batch_size=500, valid=0.0, schedule=lambda step: 0.0)
    keys = np.array([1, 2])
    before = table.pull(keys)
    table.push(keys, np.ones_like(before))
    np.testing.assert_allclose(before - table.pull(keys), 0.5, rtol=1e-5)


def test_clipping_bounds_the_dense_step(plan: cb.Plan) -> None:
    model = Small(plan.schema)
    before = {k: v.detach().clone() for k, v in model.named_parameters()}
    cb.Trainer(model, table(), optimizer=cb.optim.SGD(lr=1.0)).fit(plan, clip=1e-3, limit=600, **FAST)
    steps = math.ceil(540 / 256)
    moved = math.sqrt(sum(float((v.detach() - before[k]).square().sum()) for k, v in model.named_parameters()))
    assert 0 < moved <= steps * 1e-3 * 1.01


def test_fields_may_have_tables_and_dims_of_their_own(plan: cb.Plan) -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reads = cb.models.Reads(plan.schema, dim=4, dims={"user": 6}, linear=True)
            self.out = nn.Linear(self.reads.width, 1)

        def forward(self, x: Any) -> torch.Tensor:
            return x.linear.sum(1) + self.out(x.flat).squeeze(1)

    torch.manual_seed(0)
    run = cb.Trainer(Mine()).fit(plan, **FAST)
    assert sorted(e.dim for e in run.learner.embedders) == [4, 6]
    run = cb.Trainer(Mine(), {"user": cb.MemoryTable(6), "*": cb.MemoryTable(4)}).fit(plan, **FAST)
    assert len(run.learner.embedders) == 2
    with pytest.raises(PlanError, match=r"first-order weights \(dim=0\) for .*has dim=1; build the table with dim=0$"):
        cb.Trainer(cb.models.LR(plan.schema), cb.MemoryTable(1)).fit(plan)
    with pytest.raises(
        PlanError, match="vectors of dim=6 for 'user', but its table has dim=4; build the model with dim=4, or"
    ):
        cb.Trainer(Mine(), cb.MemoryTable(4)).fit(plan, **FAST)


def test_predict_equals_the_batches_and_keeps_filtered_rows_apart(log: pa.Table) -> None:
    plan = cb.compile(cb.View(log, key="id").filter(col("device") == "web"), plan_of(log).features)
    run = fit(plan, batch_size=500)
    p = run.predict(log.slice(0, 50).drop_columns(["clicked"]))
    kept = np.array([d == "web" for d in log["device"].to_pylist()[:50]])
    assert np.isnan(p[~kept]).all()
    whole = np.concatenate(list(run.predictions(log.slice(0, 50).drop_columns(["clicked"]))))
    assert np.array_equal(p[kept], whole.astype(np.float32))


# ---- bad input ----------------------------------------------------------------------------------------------------


def changed(log: pa.Table, name: str, values: Any) -> pa.Table:
    return log.set_column(log.schema.get_field_index(name), name, pa.array(values))


def test_a_label_outside_0_and_1_is_named_with_its_row(log: pa.Table) -> None:
    label = log["clicked"].to_numpy().copy()
    label[777] = 3
    with pytest.raises(DataError, match=r"label is 3\.0 in row 777 of the training rows; expected 0 or 1"):
        fit(plan_of(changed(log, "clicked", label)))


@pytest.mark.parametrize("value", [0, 1])
def test_a_constant_label_is_refused(log: pa.Table, value: int) -> None:
    with pytest.raises(TrainError, match=f"label is {value} in all 5,400 training rows"):
        fit(plan_of(changed(log, "clicked", np.full(len(log), value, np.int8))))


def test_a_plan_without_a_label_is_refused(log: pa.Table) -> None:
    plan = cb.compile(cb.View(log, key="id"), cb.FeatureSet(sparse={"user": col("user").key()}))
    with pytest.raises(TrainError, match="has no label"):
        fit(plan)


def test_an_empty_split_is_refused(log: pa.Table) -> None:
    with pytest.raises(TrainError, match="leaves 1 for training and 0 for validation"):
        fit(plan_of(log.slice(0, 1)))
    with pytest.raises(TrainError, match="no training rows"):
        fit(cb.compile(cb.View(log, key="id").filter(col("id") >= 5500), plan_of(log).features))
    with pytest.raises(TrainError, match="no validation rows"):
        fit(cb.compile(cb.View(log, key="id").filter(col("id") < 5000), plan_of(log).features))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_a_number_stops_with_its_batch_feature_and_row(log: pa.Table, value: float) -> None:
    price = log["price"].to_numpy().copy()
    price[300] = value
    with pytest.raises(TrainError, match=r"batch 1: dense feature 'price' is (nan|inf) in row 44 of the batch"):
        fit(plan_of(changed(log, "price", price)))


def test_a_diverging_table_names_field_and_key(plan: cb.Plan) -> None:
    model = Small(plan.schema)
    with pytest.raises(TrainError, match=r"key -?\d+ of field '(user|ad|tags|device)' has grown to"):
        cb.Trainer(model, cb.MemoryTable(4, optimizer=cb.optim.SGD(lr=1e25), init=1.0)).fit(plan, **FAST)


@pytest.mark.parametrize(
    ("size", "told"), [(1e6, "the loss is nan"), (1e6 + 1, "key 3 of field 'user' has grown to 1e")]
)
def test_a_key_is_blamed_only_beyond_the_limit(
    plan: cb.Plan, monkeypatch: pytest.MonkeyPatch, size: float, told: str
) -> None:
    class Broken(Small):
        def forward(self, x: Any) -> torch.Tensor:
            return super().forward(x) * math.nan

    monkeypatch.setattr(nan_in_batch, "_largest", lambda *given: (size, "user", 3))
    with pytest.raises(TrainError, match=told):
        cb.Trainer(Broken(plan.schema), cb.MemoryTable(4)).fit(plan, **FAST)


def test_a_table_over_its_budget_says_so(plan: cb.Plan) -> None:
    with pytest.raises(BudgetError, match="budget of 4,096 bytes"):
        cb.Trainer(Small(plan.schema), cb.MemoryTable(4, budget=4096)).fit(plan, **FAST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1"),
        ({"valid": 1.5}, "valid must be a share"),
        ({"negatives": 0}, "negatives must be a share"),
        ({"monitor": "acc"}, "monitor must be one of logloss, auc, gauc"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"clip": -1}, "clip must be a number above 0"),
    ],
)
def test_wrong_settings_are_named(plan: cb.Plan, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        fit(plan, **options)


def test_a_module_that_does_not_say_what_it_reads_is_told_how(plan: cb.Plan) -> None:
    with pytest.raises(PlanError, match=r"does not declare which fields it reads; set self\.reads"):
        cb.Trainer(nn.Linear(1, 1)).fit(plan, **FAST)


# ---- what an attack found once ------------------------------------------------------------------------------------------


def test_a_validation_plan_of_other_expressions_is_refused(log: pa.Table, plan: cb.Plan) -> None:
    other = plan_of(log, dense={"price": -col("price")})
    with pytest.raises(PlanError, match=r"create it with plan\.over\(data\)"):
        fit(plan, valid=other)


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan])
def test_a_sample_weight_below_zero_or_not_finite_is_named(log: pa.Table, weight: float) -> None:
    weights_ = np.ones(len(log))
    weights_[70] = weight
    with pytest.raises(DataError, match=r"sample weight is (-1\.0|inf|nan) in row 70 of the training rows"):
        fit(plan_of(log.append_column("w", pa.array(weights_)), weight=col("w")))


def test_early_stop_ends_with_the_same_table_pipelined_or_not(plan: cb.Plan) -> None:
    options: dict[str, Any] = {"epochs": 6, "evaluate_every": 1, "patience": 1, "batch_size": 32, "limit": 1000}
    assert weights(fit(plan, overlap=True, **options)) == weights(fit(plan, overlap=False, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ahead": "a"}, "ahead must be a whole number"),
        ({"ahead": 0}, "ahead must be a whole number"),
        ({"checkpoint_seconds": "x"}, "checkpoint_seconds must be a number above 0"),
        ({"checkpoint_steps": 0}, "checkpoint_steps must be a whole number"),
        ({"progress": "x"}, "progress must be True, False or a Watcher"),
        ({"out": 3}, "out must be a path"),
        ({"explain": True, "time": col("price")}, "time must be a time,"),
        ({"explain": True, "time": col("user")}, r"got int; make it a time with .cast\('time', unit='s'\)"),
        ({"explain": True, "time": col("user").cast("time")}, "which is int, needs the unit"),
        ({"explain": True, "by": ["device"]}, "by must be a dict"),
        ({"explain": True, "by": {"z": col("zz")}}, "column 'zz' is not in view"),
        ({"lr": 0.1}, r"lr is an argument of the trainer, not of fit: cb\.Trainer\(…, lr=0\.1\)"),
        ({"learning_rate": 0.1}, r"argument of the trainer, not of fit: cb\.Trainer\(…, lr=0\.1\)"),
        ({"threads": 2}, r"threads is an argument of the trainer.* cb\.Trainer\(…, threads=2\)"),
        ({"batch": 3}, "there is no setting 'batch'; nearest: 'batch_size'"),
    ],
)
def test_wrong_arguments_are_named_before_training(plan: cb.Plan, options: dict[str, Any], message: str) -> None:
    class Never:
        def see(self, progress: Any) -> None:
            raise AssertionError("training began")

        def evaluated(self, metrics: Any) -> None: ...
        def resumed(self, step: int, rows: int) -> None: ...
        def end(self) -> None: ...

    with pytest.raises(PlanError, match=message):
        fit(plan, **{"progress": Never(), **options})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda y: None, "returned a NoneType; expected logits"),
        (lambda y: (y,), "returned a tuple"),
        (lambda y: y.detach(), "have no gradient"),
        (lambda y: y.long(), "returned a tensor of torch.int64"),
        (lambda y: y[:-1], "expected one per row"),
    ],
)
def test_a_forward_that_gives_no_logits_is_told_so(plan: cb.Plan, made: Any, message: str) -> None:
    class Odd(Small):
        def forward(self, x: Any) -> Any:
            return made(super().forward(x))

    with pytest.raises(PlanError, match=message):
        cb.Trainer(Odd(plan.schema), table()).fit(plan, **FAST)


@pytest.mark.parametrize("given", ["x", 3, {"*": "x"}])
def test_a_table_that_is_none_is_told_so(plan: cb.Plan, given: Any) -> None:
    with pytest.raises(PlanError, match="a table must be an embedder"):
        cb.Trainer(Small(plan.schema), given).fit(plan, **FAST)


def test_a_model_of_another_schema_names_the_field(log: pa.Table, plan: cb.Plan) -> None:
    other = cb.compile(cb.View(log, key="id"), cb.FeatureSet(label=col("clicked"), sparse={"ad": col("ad").key()}))
    with pytest.raises(PlanError, match="the model reads field 'user', which this plan does not have"):
        cb.Trainer(Small(plan.schema), table()).fit(other, **FAST)


def test_a_model_that_changes_its_input_changes_no_batch(plan: cb.Plan) -> None:
    class Halving(Small):
        def forward(self, x: Any) -> torch.Tensor:
            x.dense.mul_(0.5)
            return super().forward(x)

    run = cb.Trainer(Halving(plan.schema), table()).fit(plan, **FAST)
    batch = next(iter(plan.batches(100)))
    first = run.predict_batch(batch)
    assert np.array_equal(first, run.predict_batch(batch))


def test_predict_takes_dicts_and_wants_merged_columns(log: pa.Table) -> None:
    more = cb.View(
        pa.table({"id": np.arange(6000), "extra": np.random.default_rng(0).random(6000)}), key="id", name="more"
    )
    plan = cb.compile(
        cb.View(log, key="id").fill(tags=[]).merge(more.fill(extra=0.0)),
        cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()}, dense={"extra": col("extra")}),
    )
    run = cb.Trainer(Small(plan.schema), table()).fit(plan, **FAST)
    row = log.slice(3, 1).to_pylist()[0]
    with pytest.raises(DataError, match="lack column 'extra', which the plan merges from view 'more'"):
        run.predict([row])
    assert run.predict({**row, "extra": 0.25}).shape == (1,)
    with pytest.raises(PlanError, match=r"for a whole log: run\.predictions\(path\)"):
        run.predict("data/impressions")


def test_a_batch_size_follows_the_rows() -> None:
    from ctrbox.train.settings import Settings, with_batch_size

    assert [with_batch_size(Settings(), n).batch_size for n in (1, 30_000, 1_800_000, 10**9)] == [64, 128, 8192, 16_384]


@pytest.mark.parametrize(("summed", "share", "factor"), [(True, 0.25, 8), (False, 1.0, 1), (False, 0.25, 0.25)])
def test_gradients_are_sums_or_the_share_of_a_worker_in_the_mean(summed: bool, share: float, factor: float) -> None:
    """A batch of 8 rows: a table takes the sum of their gradients, another embedder the worker's part of the mean."""

    class Kept:
        def push(self, keys: Any, gradients: Any) -> None:
            self.gradients = gradients.tolist()

    embedder, rows = Kept(), torch.zeros(2, 3, requires_grad=True)
    traits = cb.tables.Traits(gradients="sum" if summed else "mean")
    rows.grad = torch.full((2, 3), 2.0)
    learner = SimpleNamespace(sources=[SimpleNamespace(embedder=embedder, traits=traits)], adaptive_l2=0.0, l2=0.0)
    looked = SimpleNamespace(lookups=[SimpleNamespace(keys=np.array([4, 5]))], batch=SimpleNamespace(rows=8))
    Learner._push(learner, looked, [rows], 1.0, share)  # type: ignore[arg-type]
    assert embedder.gradients == [[2.0 * factor] * 3] * 2
