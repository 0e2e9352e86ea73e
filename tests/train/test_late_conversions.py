"""Training on conversions that arrive late: unbiased predictions, metrics of old rows, calibration, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.served_models import open_served
from tests.ranks.threads import DRAWING, in_ranks

pytestmark = pytest.mark.usefixtures("one_thread")

WINDOW = 24.0


def world(rows: int = 40_000, seed: int = 0) -> tuple[pa.Table, np.ndarray]:
    """Clicks of users of two kinds, recorded at the age of each row, and the true conversion rate of each within the window."""
    draw = np.random.default_rng(seed)
    user = draw.integers(0, 20, rows)
    clicked = draw.random(rows) < 0.7
    age = np.sort(draw.uniform(0, 48, rows))[::-1]
    delay = np.where(draw.random(rows) < 0.3, 0.0, draw.exponential(12.0, rows))
    p = np.where(user % 2 == 0, 0.6, 0.2)
    seen = (draw.random(rows) < p) & (delay <= age) & clicked
    columns = {
        "id": np.arange(rows),
        "user": user,
        "clicked": clicked,
        "seen": pa.array(seen, mask=~clicked),
        "delay": pa.array(delay, mask=~seen),
        "age": age,
    }
    return pa.table(columns), p * (0.3 + 0.7 * (1 - np.exp(-WINDOW / 12)))


LATE = cb.Label("seen", delay="delay", elapsed="age", window=WINDOW)


def plan(rows: Any, label: Any = LATE, **more: Any) -> cb.Plan:
    features = cb.FeatureSet(
        labels={"click": col("clicked"), "convert": label}, sparse={"user": col("user").key()}, **more
    )
    return cb.compile(cb.View(rows, key="id"), features, threads=1)


def fitted(p: cb.Plan, name: str = "SharedBottom", cluster: Any = None, **more: Any) -> cb.Run:
    with DRAWING:
        torch.manual_seed(1)
        model = cb.models.build(name, p.schema, {"dim": 4, "hidden": [8]})
    table = cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.1))
    trainer = cb.Trainer(model, table, optimizer=lambda w: torch.optim.Adam(w, lr=0.01), threads=1)
    options: dict[str, Any] = {"valid": 0.2, "epochs": 2, "batch_size": 512, "explain": False, **more}
    return trainer.fit(p, **options, **({} if cluster is None else {"cluster": cluster}))


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return world()[0]


@pytest.mark.parametrize("name", ["SharedBottom", "ESMM"])
def test_predictions_of_fresh_rows_are_unbiased_and_those_of_naive_labels_are_not(name: str) -> None:
    rows, truth = world()
    with pytest.warns(
        UserWarning, match=r"metrics of label 'convert' are missing: all .* younger than its window \(24\)"
    ):
        late = fitted(plan(rows), name)
    naive = fitted(plan(rows, col("seen")), name)
    found, other = (run.predict(rows)["convert"].mean() / truth.mean() for run in (late, naive))
    assert found == pytest.approx(1, abs=0.03)
    assert other < 0.95
    assert np.isfinite(late.metrics["loss"])
    assert late.metrics["convert.rows"] == 0


def test_metrics_count_old_rows_only_and_the_report_says_so(tmp_path: Path, rows: pa.Table) -> None:
    p = plan(rows)
    old = p.over(rows.slice(0, 28_000))  # from 48 to 14 hours old
    run = fitted(p, valid=old, out=tmp_path / "run", calibrate="platt", calibrate_share=0.7)
    ages, known = rows["age"].to_numpy()[:28_000], rows["seen"].is_valid().to_numpy()[:28_000]
    m = run.metrics
    assert m["convert.rows"] == np.count_nonzero(known & (ages >= WINDOW))
    assert m["convert.young_rows"] == np.count_nonzero(known & (ages < WINDOW))
    assert m["click.rows"] == 28_000
    page = run.report().read_text()
    assert "rows too young" in page
    assert "arrive late: these metrics count only rows that are as old as the window" in page
    told = run.summary["calibrator"]["labels"]["convert"]
    every = rows["age"].to_numpy()
    first = round(len(rows) * 0.3)
    assert told["rows"] == np.count_nonzero(rows["seen"].is_valid().to_numpy()[first:] & (every[first:] >= WINDOW))
    loaded = cb.Run.load(tmp_path / "run", views={p.log.name: rows})
    assert dict(loaded.evaluate(rows.slice(0, 28_000))) == pytest.approx(dict(m), rel=1e-6, nan_ok=True)
    few = rows.slice(0, 50)
    for name, scores in run.predict(few.select(["id", "user"])).items():
        np.testing.assert_array_equal(scores, loaded.predict(few)[name])


def test_a_resumed_training_and_two_ranks_end_as_one_training(tmp_path: Path, rows: pa.Table) -> None:
    class Stop:
        def on_step(self, event: Any) -> None:
            if event.step == 9:
                raise KeyboardInterrupt

    p = plan(rows.slice(0, 12_000))
    settings: dict[str, Any] = {"valid": 0.1, "epochs": 1, "checkpoint_steps": 4}
    whole = fitted(p, "ESMM", out=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        fitted(p, "ESMM", out=tmp_path / "run", callbacks=[Stop()], **settings)
    resumed = fitted(p, "ESMM", out=tmp_path / "run", **settings)
    for mine, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    ranked = in_ranks(2, lambda ranks: fitted(p, "ESMM", out=tmp_path / "ranks", cluster=ranks, **settings))[0]
    assert dict(ranked.metrics) == pytest.approx(dict(whole.metrics), abs=1e-3, nan_ok=True)


def test_downsampled_negatives_leave_late_conversions_unbiased() -> None:
    rows, truth = world()
    run = fitted(plan(rows), negatives=0.5)
    assert run.predict(rows)["convert"].mean() / truth.mean() == pytest.approx(1, abs=0.06)


def test_calibration_rows_that_are_all_too_young_are_refused(rows: pa.Table) -> None:
    with pytest.raises(
        cb.errors.TrainError, match=r"label 'convert': .* 0 of the 0 .* younger than window=24 of the label"
    ):
        fitted(plan(rows), calibrate="platt")


def test_a_trial_by_a_label_without_old_validation_rows_is_refused(rows: pa.Table) -> None:
    p = plan(rows.slice(0, 32_000))
    model = cb.models.SharedBottom(p.schema, dim=2, bottom=(4,), hidden=())
    told = (
        r"label 'convert' was not observed in a row that is as old as its window \(24\) among the 6,400 validation rows"
    )
    with pytest.raises(cb.errors.TrainError, match=told):
        cb.trial(p, model, {"pair": cb.cross("user", "user")}, label="convert", seeds=1, valid=0.2, batch_size=4096)


def test_a_server_scores_requests_that_have_neither_age_nor_delay(tmp_path: Path, rows: pa.Table) -> None:
    run = fitted(plan(rows.slice(0, 30_000)), valid=0.0, epochs=1, batch_size=4096)
    create(tmp_path / "model", run.plan, run, context=[], quantize=False)
    served = open_served(ModelFolder.open(tmp_path / "model"))
    body = json.dumps({"context": {}, "candidates": [{"user": 3}, {"user": 4}]}).encode()
    found, _ = served.score(served.reader.from_json(body))
    expected = run.predict(rows.slice(0, 2).select(["id", "user"]).set_column(1, "user", [[3, 4]]))
    np.testing.assert_allclose(found[:, 1], expected["convert"], rtol=1e-6)


def test_a_feature_that_reads_the_delay_is_a_leak(rows: pa.Table) -> None:
    with pytest.warns(UserWarning, match="the label reads the same column as a feature: .*'delay'"):
        plan(rows, dense={"late": col("delay").fill(0)})


def test_an_objective_of_ones_own_is_refused(rows: pa.Table) -> None:
    class Mine(nn.Module):
        def __init__(self, schema: Any) -> None:
            super().__init__()
            self.reads = cb.models.Reads(schema, dim=4)
            self.objective = nn.Identity()

    p = plan(rows)
    with pytest.raises(
        cb.errors.PlanError,
        match=r"does not account for conversions that arrive late; derive its class from cb\.models\.Obj",
    ):
        cb.Trainer(Mine(p.schema), cb.MemoryTable(4), threads=1).fit(p, valid=0.0)
