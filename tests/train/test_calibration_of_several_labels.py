"""Several labels: a calibration map for each, downsampled negatives with weights, and trials by one of the labels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch
from ctrbox.columns.label_task import Task
from ctrbox.errors import DataError, PlanError, TrainError
from ctrbox.evaluate.calibration_fit import fit_calibration
from ctrbox.evaluate.calibration_maps import Calibration, PlattMap
from ctrbox.evaluate.calibration_of_several_labels import TaskCalibration
from ctrbox.predict.exported_network import ExportedNetwork
from ctrbox.predict.published_run import click_model_of, weights_of_run
from ctrbox.train.sampling import eventful, thin
from tests.train.test_several_labels import made, plan, trainer, world

FIT: dict[str, Any] = {"valid": 0.25, "batch_size": 64, "calibrate_share": 0.4}


def drifting(rows: int = 3000) -> pa.Table:
    """The world, with fewer clicks and more conversions in its newest two thirds."""
    log = world(rows)
    draw = np.random.default_rng(7).random(rows)
    new = np.arange(rows) >= rows // 3
    clicked = log["clicked"].to_numpy() & ~(new & (draw < 0.5))
    converted = np.array([bool(v) for v in log["converted"].to_pylist()]) | (new & (draw > 0.75))
    value = pa.array(1.0 + log["x"].to_numpy(), mask=~(clicked & converted))
    log = log.set_column(3, "clicked", pa.array(clicked))
    return log.set_column(4, "converted", pa.array(converted, mask=~clicked)).set_column(5, "revenue", value)


def fitted(log: pa.Table, name: str = "ESMM", **more: Any) -> cb.Run:
    p = plan(log)
    return trainer(made(p, name)).fit(p, **{**FIT, **more})


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return drifting()


@pytest.fixture(scope="module")
def run(log: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> cb.Run:
    return fitted(log, calibrate="platt", out=tmp_path_factory.mktemp("runs") / "run")


def test_each_binary_label_gets_the_map_of_the_rows_in_which_it_was_observed(run: cb.Run, log: pa.Table) -> None:
    plain = fitted(log.slice(0, 1350), valid=0, calibrate_share=None)  # the very rows that the other one trained on
    (batch,) = run.plan.batches(3000)
    outputs = plain.learner.score(plain.learner.look(batch, prefetch=False))
    assert np.array_equal(run.learner.uncalibrated(run.learner.look(batch, prefetch=False)), outputs)
    after = run.learner.score(run.learner.look(batch, prefetch=False))
    part = slice(1350, 2250)
    for k, name in ((0, "click"), (1, "convert")):
        known = batch.observed[name][part]
        expected = fit_calibration("platt", batch.labels[name][part][known], outputs[part, k][known])
        assert np.array_equal(after[:, k], expected.apply(outputs[:, k], None)), name
        assert run.summary["calibrator"]["labels"][name]["rows"] == int(known.sum())
    assert np.array_equal(after[:, 2], outputs[:, 2])  # a regression stays as it is
    assert run.metrics["convert.calibration"] != plain.metrics.get("convert.calibration")


def test_drifted_predictions_of_every_label_are_put_right(run: cb.Run) -> None:
    for name, found in run.summary["calibrator"]["labels"].items():
        assert found["before"]["ece"] > 0.08, name
        assert found["after"]["ece"] < found["before"]["ece"] / 2, name
    assert 0.85 < run.metrics["click.calibration"] < 1.15
    assert 0.8 < run.metrics["convert.calibration"] < 1.2


def test_a_saved_a_published_and_an_exported_model_predict_with_the_maps(run: cb.Run, log: pa.Table) -> None:
    few = log.slice(2900)
    expected = run.predict(few)
    assert run.folder is not None
    loaded = cb.Run.load(run.folder, views={run.plan.log.name: log})
    published = click_model_of(weights_of_run(run.learner), run.plan.schema, "it")
    (batch,) = run.plan.over(few).batches(100)
    for k, name in enumerate(expected):
        assert np.array_equal(loaded.predict(few)[name], expected[name])
        np.testing.assert_allclose(published.predict(batch)[:, k], expected[name], rtol=1e-6)
    assert loaded.evaluate()["click.logloss"] == run.metrics["click.logloss"]
    assert "Before and after the calibration" in (page := run.report().read_text())
    assert "Label convert" in page
    network = ExportedNetwork(run.learner)
    given_ = {
        "dense.values": torch.from_numpy(batch.dense),
        "rows.user": torch.from_numpy(run.learner.embedders[0].pull(batch.sparse["user"].values, create=False)),
    }
    scores = network(*(given_[one.name] for one in network.inputs))
    for one, name in zip(scores, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), expected[name], atol=1e-6)


def test_maps_by_the_values_of_a_field_and_isotonic_ones(log: pa.Table) -> None:
    run = fitted(log, calibrate="isotonic", calibrate_by="user", out=None)
    assert run.summary["calibrator"]["by"] == "user"
    assert set(run.summary["calibrator"]["labels"]) == {"click", "convert"}
    assert run.learner.calibration is not None
    plain = json.loads(json.dumps(run.learner.calibration.plain()))
    again = TaskCalibration.of(plain, run.learner.tasks, "it")
    assert again.plain() == plain
    assert again.by == "user"


def test_labels_that_cannot_be_calibrated_are_refused_before_training(log: pa.Table) -> None:
    never = np.where(np.arange(3000) < 1000, log["clicked"].to_numpy(), False)
    p = plan(log.set_column(3, "clicked", pa.array(never)))
    with pytest.raises(
        TrainError, match="label 'click': calibrate='platt' needs calibration rows with and without clicks"
    ):
        trainer(made(p, "MMoE")).fit(p, calibrate="platt", **FIT)
    numbers = plan(log, {"number": cb.Label("x", "regression")})
    for more in ({"calibrate": "platt"}, {"negatives": 0.5}):
        with pytest.raises(
            PlanError, match=r"no label of this plan is binary|every label of this plan is a regression"
        ):
            trainer(made(numbers)).fit(numbers, **more)


TASKS = (Task("click", "binary"), Task("value", "regression"))
STORED = TaskCalibration("platt", TASKS, (Calibration("platt", PlattMap(1.0, 0.5)), None)).plain()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"format": True},
        {"format": None},
        {"kind": "other"},
        {"kind": ["platt"]},
        {"kind": "isotonic"},
        {"labels": {}},
        {"labels": []},
        {"labels": {"value": STORED["labels"]["click"]}},
        {"labels": {"click": None}},
        {"labels": {"click": {**STORED["labels"]["click"], "shared": {"slope": -1, "intercept": 0}}}},
        {"by": "user"},
        {"by": 3},
    ],
)
def test_a_damaged_calibration_is_refused(change: dict[str, Any]) -> None:
    assert TaskCalibration.of(STORED, TASKS, "it").plain() == STORED
    with pytest.raises(DataError, match=r"it has a calibration|it is damaged"):
        TaskCalibration.of({**STORED, **change}, TASKS, "it")


def test_a_calibration_that_lacks_a_binary_label_is_refused() -> None:
    """A training calibrates all of them, so the scores of one alone would be raw only in a forged or damaged file."""
    tasks = (*TASKS, Task("convert", "binary"))
    with pytest.raises(
        DataError,
        match=r"it is damaged: it has a calibration without the label 'convert'; expected .*: 'click', 'convert'",
    ):
        TaskCalibration.of(STORED, tasks, "it")


def test_a_calibration_of_one_label_and_of_several_are_not_mixed_up() -> None:
    with pytest.raises(DataError, match="format 2, but this version of CTRBox reads 1"):
        Calibration.of(STORED, "it")
    for other in (None, 3, [], Calibration("platt", PlattMap(1.0, 0.0)).plain()):
        with pytest.raises(DataError, match="but its plan has several labels"):
            TaskCalibration.of(other, TASKS, "it")


# ---- downsampled negatives


def batch_of(log: pa.Table, **more: Any) -> Batch:
    (batch,) = plan(log, **more).batches(log.num_rows)
    return batch


@settings(max_examples=20, deadline=None)
@given(share=st.floats(0.05, 1.0), seed=st.integers(0, 2**32), first=st.integers(0, 2**40), weighted=st.booleans())
def test_rows_with_an_event_stay_and_others_stand_for_those_that_went(
    share: float, seed: int, first: int, weighted: bool
) -> None:
    """The slow twin: one row after the other."""
    log = world(60)
    whole = batch_of(log, **({"weight": col("x") * col("x")} if weighted else {}))
    kept = thin(whole, first, share, seed, 1)
    if share == 1.0:
        assert kept is whole
        return
    rows = {tuple(row.values()): k for k, row in enumerate(whole.to_arrow().to_pylist())}
    assert len(rows) == 60
    stayed = set()
    before = np.ones(60) if whole.weight is None else np.asarray(whole.weight)
    for k in range(60):
        event = any(whole.labels[n][k] > 0 for n in ("click", "convert"))  # NaN is no event
        assert bool(eventful(whole)[k]) == event
    at = 0
    clear = kept.to_arrow().to_pylist()
    for k in range(60):
        if at < kept.rows and np.array_equal(kept.dense[at], whole.dense[k]):
            event = bool(eventful(whole)[k])
            assert kept.weight is not None
            assert kept.weight[at] == pytest.approx(before[k] * (1.0 if event else 1.0 / share))
            stayed.add(k)
            at += 1
        else:
            assert not eventful(whole)[k]  # a row with an event never goes
    assert at == kept.rows == len(clear)


def test_the_thinned_loss_is_that_of_all_rows_on_average() -> None:
    p = plan(world(400))
    (batch,) = p.batches(400)
    model = made(p, "SharedBottom")
    objective: Any = model.objective
    outputs = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32))

    def summed(some: Batch, which: np.ndarray) -> float:
        labels, known = (
            torch.from_numpy(np.stack([columns[t.name] for t in p.schema.tasks], 1))
            for columns in (some.labels, some.observed)
        )
        weight = None if some.weight is None else torch.from_numpy(some.weight.astype(np.float32))
        return float(objective(outputs[which], labels, known, weight)) * some.rows

    whole = summed(batch, np.arange(400))
    place = {x: k for k, x in enumerate(batch.dense[:, 0].tolist())}
    found = []
    for seed in range(60):
        some = thin(batch, 0, 0.25, seed, 0)
        found.append(summed(some, np.array([place[x] for x in some.dense[:, 0].tolist()])))
    error = np.std(found) / len(found) ** 0.5
    assert abs(np.mean(found) - whole) < 4 * error
    assert error < 0.02 * whole


def test_a_model_that_learns_from_a_tenth_of_the_negatives_predicts_all_rates() -> None:
    draw = np.random.default_rng(2)
    rows = 6_000
    clicked = draw.random(rows) < 0.05
    liked = draw.random(rows) < np.where(clicked, 0.5, 0.02)
    log = pa.table({"id": np.arange(rows), "user": draw.integers(0, 5, rows), "clicked": clicked, "liked": liked})
    features = cb.FeatureSet(labels={"click": col("clicked"), "like": col("liked")}, sparse={"user": col("user").key()})
    p = cb.compile(cb.View(log, key="id"), features, threads=1)
    torch.manual_seed(0)
    model = cb.models.SharedBottom(p.schema, dim=4, hidden=(8,))
    run = trainer(model).fit(p, negatives=0.1, valid=0.25, batch_size=750)
    assert run.summary["logit_shift"] == 0.0
    for name in ("click", "like"):
        assert 0.75 < run.metrics[f"{name}.calibration"] < 1.35, name


# ---- trials


def test_a_trial_compares_one_of_several_labels() -> None:
    log = world(2400)
    even = pa.array((log["user"].to_numpy() % 2).astype(np.int64))
    p = plan(log.append_column("even", even).append_column("device", pa.array(["a", "b", "c"] * 800)))
    features = cb.FeatureSet(labels=p.features.labels, dense={"x": col("x")}, sparse={"device": col("device")})
    short = cb.compile(p.log, features, threads=1)
    model = cb.models.ESMM(short.schema, dim=4, hidden=(8,))
    add = {"even": col("even").key()}
    table, fast = cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.3)), cb.optim.Adam(lr=0.02)
    same: dict[str, Any] = {"batch_size": 64, "valid": 0.3, "negatives": 0.5}
    found = cb.trial(short, model, add, label="convert", seeds=1, table=table, optimizer=fast, **same)
    assert found["even"].verdict == "better"
    assert found.valid_rows == int(log["clicked"].to_numpy()[1680:].sum())
    assert found.to_dict()["label"] == "convert"
    assert "with 'convert'" in str(found)
    # The slow twin: a training with the feature, on its own.
    wide = cb.FeatureSet(
        labels=p.features.labels, dense={"x": col("x")}, sparse={"device": col("device"), "even": col("even").key()}
    )
    alone = cb.compile(p.log, wide, threads=1)
    torch.manual_seed(0)
    alike = cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.3))
    run = cb.Trainer(cb.models.ESMM(alone.schema, dim=4, hidden=(8,)), alike, optimizer=fast, threads=1).fit(
        alone, **same
    )
    assert found["even"].aucs[0] == pytest.approx(run.metrics["convert.auc"], abs=1e-6)


@pytest.mark.parametrize(
    ("label", "told"),
    [
        (None, "choose the label by which the features are compared: label='click' \\(or 'convert'\\)"),
        ("clik", "'clik' is not a label of this plan.*'click'"),
        ("value", "label 'value' is a regression"),
        (3, "label=3 is not a label"),
    ],
)
def test_a_trial_asks_which_label(label: Any, told: str) -> None:
    p = plan()
    with pytest.raises(PlanError, match=told):
        cb.trial(p, made(p), {"more": col("user").key()}, label=label)
    one = cb.compile(p.log, cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()}))
    with pytest.raises(PlanError, match="label='click' chooses one of several labels"):
        cb.trial(one, cb.models.LR(one.schema), {"more": col("x")}, label="click")
    with pytest.raises(PlanError, match="'click' is a label of the plan"):
        cb.trial(p, made(p), {"click": col("user").key()}, label="click")
