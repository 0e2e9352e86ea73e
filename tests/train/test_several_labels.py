"""Training with several labels: metrics of each task, runs that are saved, resumed and loaded, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.evaluate.several_labels import NumberScores
from ctrbox.report.number_format import brief, figure_table, remarks
from ctrbox.train.gradient_sums import ALONE
from ctrbox.train.several_labels import start_from_means

LABELS = {"click": col("clicked"), "convert": col("converted"), "value": cb.Label("revenue", "regression")}


def world(rows: int = 1200, seed: int = 0) -> pa.Table:
    """Users of two kinds: those with even ids click and convert more, and what they spend grows with x."""
    draw = np.random.default_rng(seed)
    user, x = draw.integers(0, 20, rows), draw.normal(size=rows)
    even = user % 2 == 0
    clicked = draw.random(rows) < np.where(even, 0.8, 0.3)
    converted = draw.random(rows) < np.where(even, 0.7, 0.2)
    revenue = 1.0 + x + 0.1 * draw.normal(size=rows)
    return pa.table(
        {
            "id": np.arange(rows),
            "user": user,
            "x": x,
            "clicked": clicked,
            "converted": pa.array(converted, mask=~clicked),
            "revenue": pa.array(revenue, mask=~(clicked & converted)),
        }
    )


def plan(rows: Any = None, labels: Any = LABELS, **more: Any) -> cb.Plan:
    features = cb.FeatureSet(labels=labels, sparse={"user": col("user").key()}, dense={"x": col("x")}, **more)
    return cb.compile(cb.View(world() if rows is None else rows, key="id"), features, threads=1)


def trainer(model: nn.Module, **more: Any) -> cb.Trainer:
    return cb.Trainer(model, cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.05)), threads=1, **more)


def made(p: cb.Plan, name: str = "SharedBottom", **more: Any) -> nn.Module:
    torch.manual_seed(1)
    return cb.models.build(name, p.schema, {"dim": 4, "hidden": [8], **more})


def test_every_task_is_learned_measured_saved_and_predicted(tmp_path: Path) -> None:
    p = plan(group=col("user"))
    out = tmp_path / "run"
    options = {"weights": "learned", "click": "click"}
    run = trainer(made(p, "ESMM", **options), optimizer=lambda w: torch.optim.Adam(w, lr=0.02)).fit(
        p, epochs=3, valid=0.25, batch_size=64, out=out
    )
    m = run.metrics
    assert m["rows"] == 300
    assert m["click.rows"] == 300
    assert m["convert.rows"] == m["click.clicks"]
    assert m["value.rows"] == m["convert.clicks"]
    assert min(m["click.auc"], m["convert.auc"]) > 0.65
    assert m["value.rmse"] < 0.9
    assert "click.gauc" in m
    assert "convert" in repr(run)
    loaded = cb.Run.load(out, views={p.log.name: world()})
    few = world(7, seed=3)
    found, again = run.predict(few), loaded.predict(few)
    assert list(found) == ["click", "convert", "value"]
    for name, values in found.items():
        assert values.shape == (7,)
        np.testing.assert_array_equal(values, again[name])
    assert loaded.evaluate()["convert.auc"] == m["convert.auc"]
    page = run.report().read_text()
    assert "Poisson" not in page
    assert "convert" in page
    lines = figure_table(m)
    assert any(line.startswith("value") and "RMSE" in line for line in lines)
    assert "convert: AUC" in brief(m)
    parts = np.concatenate(list(run.predictions(few)))
    np.testing.assert_allclose(parts[:, 2], found["value"], rtol=1e-6)


def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    p = plan()

    class Stop:
        def on_step(self, event: Any) -> None:
            if event.step == 9:
                raise KeyboardInterrupt

    def fit(out: Path, callbacks: Any = ()) -> cb.Run:
        model = made(p, "MMoE", weights="learned", dropout=0.1)
        settings: dict[str, Any] = {"epochs": 2, "valid": 0.2, "batch_size": 64, "checkpoint_steps": 4, "shuffle": 256}
        return trainer(model).fit(p, out=out, callbacks=callbacks, **settings)

    whole = fit(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", [Stop()])
    resumed = fit(tmp_path / "cut")
    assert dict(resumed.metrics) == pytest.approx(dict(whole.metrics), rel=0, abs=0, nan_ok=True)
    for (name, one), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_a_label_that_was_never_observed_is_refused_and_moves_no_weight_of_its_tower() -> None:
    rows = world(200)
    p = plan(rows.set_column(5, "revenue", pa.nulls(200, pa.float64())))
    model = made(p)
    towers: Any = model.towers
    before = [w.detach().clone() for w in towers[2].parameters()]
    with pytest.raises(cb.errors.TrainError, match="label 'value' is null in all 200 training rows"):
        trainer(model).fit(p, valid=0.0, batch_size=64)
    assert all(torch.equal(one, other) for one, other in zip(before, towers[2].parameters(), strict=True))


class Mine(nn.Module):
    """A module of one's own with named outputs."""

    def __init__(self, schema: cb.types.Schema) -> None:
        super().__init__()
        self.reads = cb.models.Reads(schema, dim=4)
        self.towers = nn.ModuleDict({t.name: nn.Linear(self.reads.width + 1, 1) for t in schema.tasks})

    def forward(self, x: cb.models.Inputs) -> dict[str, torch.Tensor]:
        columns = torch.cat([x.flat, x.dense], 1)
        return {name: tower(columns).squeeze(1) for name, tower in self.towers.items()}


def test_a_module_of_ones_own_returns_a_dict() -> None:
    p = plan()
    run = trainer(Mine(p.schema)).fit(p, epochs=2, valid=0.2, batch_size=64, patience=1, monitor="convert.auc")
    assert run.metrics["click.auc"] > 0.6


def test_a_count_is_predicted_as_an_expected_number() -> None:
    rows = world(600).append_column("visits", pa.array(np.random.default_rng(1).poisson(2.5, 600)))
    p = plan(rows, {"visits": cb.Label("visits", "count")})
    run = trainer(made(p)).fit(p, valid=0.3, batch_size=64)
    assert run.metrics["visits.mean_prediction"] == pytest.approx(2.5, abs=0.4)
    assert 0.5 < run.metrics["visits.deviance"] < 2.0


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [("clicked", 2.0, "label 'click' is 2.0 in row 5"), ("revenue", float("nan"), "label 'value' is nan in row 5")],
)
def test_a_label_that_does_not_fit_its_kind_is_refused_with_its_row(column: str, value: float, told: str) -> None:
    rows = world(100)
    values = [float(v) if v is not None else None for v in rows[column].to_pylist()]
    values[5] = value
    bad = rows.set_column(rows.column_names.index(column), column, pa.array(values, pa.float64()))
    p = plan(bad)
    with pytest.raises(cb.errors.DataError, match=told):
        trainer(made(p)).fit(p, valid=0.0, batch_size=50)


def test_a_constant_binary_label_is_refused() -> None:
    rows = world(100)
    p = plan(rows.set_column(3, "clicked", pa.array([True] * 100)))
    with pytest.raises(cb.errors.TrainError, match="label 'click' is 1 in all 100 training rows"):
        trainer(made(p)).fit(p, valid=0.0, batch_size=50)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"calibrate": "intercept"}, "calibrate='intercept' adds one number to the logits of one label"),
        ({"calibrate": 0.5}, "calibrate=0.5 adds one number to the logits of one label"),
        ({"look_ahead": 4}, "look_ahead= is not available for several labels"),
        ({"cluster": None}, "cluster= is not available for several labels"),
        ({"explain": True}, "explain= is not available for several labels"),
        ({"monitor": "auc"}, "monitor must be one of loss, click.auc"),
        ({"monitor": "value.auc"}, "monitor must be one of loss, click.auc"),
    ],
)
def test_what_knows_one_label_is_refused_before_anything_is_written(
    tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    p = plan()
    if "cluster" in settings:  # made here, because Ray reads its settings when the first cluster is made
        settings = {"cluster": cb.Cluster(workers=1, servers=1)}
    with pytest.raises(cb.errors.PlanError, match=told):
        trainer(made(p)).fit(p, out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_models_tables_and_engines_of_one_label_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    p = plan()
    with pytest.raises(cb.errors.PlanError, match="DeepFM predicts one label"):
        trainer(cb.models.DeepFM(p.schema, 4)).fit(p, out=tmp_path / "run")
    counting = cb.MemoryTable(4, counters=cb.tables.Counters())
    with pytest.raises(cb.errors.PlanError, match="counts the clicks of one label"):
        cb.Trainer(made(p), counting).fit(p, out=tmp_path / "run")
    with pytest.raises(cb.errors.PlanError, match="Deep FFM predicts one label"):
        cb.DeepFFM(p.schema)
    one = cb.compile(
        cb.View(world(), key="id"), cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()})
    )
    with pytest.raises(cb.errors.PlanError, match="needs several labels"):
        trainer(cb.models.LR(one.schema)).fit(one, monitor="click.auc", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class OnlyBiases(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(count))


def test_biases_begin_at_what_the_first_batch_makes_likely() -> None:
    rows = pa.table(
        {
            "user": [1, 2, 3, 4],
            "clicked": [0, 1, 1, 1],
            "value": pa.array([None, 2.5, None, 0.5], pa.float64()),
            "visits": pa.array([3, None, 0, 1], pa.int64()),
            "unseen": pa.array([None, None, None, None], pa.float64()),
        }
    )
    labels = {
        "click": col("clicked"),
        "value": cb.Label(col("value"), "regression"),
        "visits": cb.Label(col("visits"), "count"),
        "unseen": cb.Label(col("unseen"), "regression"),
    }
    features = cb.FeatureSet(labels=labels, sparse={"user": col("user").key()})
    (batch,) = cb.compile(cb.View(rows), features, threads=1).batches(4)
    model = OnlyBiases(4)
    start_from_means(model, batch.schema.tasks, batch, ALONE.sums)
    expected = [np.log(3.5 / 1.5), 1.5, np.log(4.5 / 3.5), 0.0]
    assert model.bias.detach().numpy() == pytest.approx(np.array(expected, np.float32))
    for other in (OnlyBiases(3), OnlyBiases(4)):  # of another width, or not at 0 any more
        with torch.no_grad():
            other.bias[0] = 0.0 if len(other.bias) == 3 else 2.0
        before = other.bias.detach().clone()
        start_from_means(other, batch.schema.tasks, batch, ALONE.sums)
        assert torch.equal(other.bias, before)


def test_r2_of_labels_that_are_all_alike_is_not_a_number() -> None:
    label = np.full(1000, 0.1, np.float32)  # not exact in binary, so that its mean square and squared mean differ
    off = 0.01 * np.arange(1000) / 1000
    alike, others = NumberScores("regression"), NumberScores("regression")
    for begin in (0, 300):
        part = slice(begin, 300 if not begin else None)
        alike.add(label[part], label[part] + off[part], np.full(len(label[part]), 0.3))
        others.add(1e6 + off[part] * 100, 1e6 + off[part] * 100 + 0.1, np.full(len(label[part]), 0.3))
    assert np.isnan([alike.result()["r2"], alike.result()["weighted_r2"]]).all()
    expected = 1 - 0.01 / np.var(off * 100)
    found = others.result()
    np.testing.assert_allclose([found["r2"], found["weighted_r2"]], expected, rtol=1e-6)


def test_remarks_about_clicks_are_of_binary_labels_alone() -> None:
    number = {"value.rows": 7.0, "value.rmse": 0.5, "value.mae": 0.5, "value.r2": 0.1}
    assert remarks({"rows": 9.0, "loss": 1.0, **number}) == []
    (told,) = remarks({"rows": 9.0, "click.rows": 9.0, "click.clicks": 0.0, **number})
    assert told.startswith("label 'click': all 9 rows are non-clicks")
