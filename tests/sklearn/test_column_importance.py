"""The importance of a column: what is shuffled with it, which rows it is measured on, and what a model loses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch
from ctrbox.evaluate.metrics import Scores
from ctrbox.sklearn.column_importance import REPEATS, _permuted, _rows, column_importances
from ctrbox.train import importance

ROWS = 60


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    rng = np.random.default_rng(2)
    label = (np.arange(ROWS) % 3 == 0).astype(np.int64)
    label[:10] = 0
    table = pa.table(
        {
            "label": label,
            "x": label * 2.0 + rng.random(ROWS),
            "x#missing": np.arange(ROWS) % 7,
            "xy": rng.random(ROWS),
            "k": np.arange(ROWS) % 5,
        }
    )
    sparse = {name: col(name).key() for name in ("k", "x#missing")}
    features = cb.FeatureSet(label=col("label"), sparse=sparse, dense={"x": col("x"), "xy": col("xy")})
    return cb.compile(cb.View(table, name="frame"), features, threads=1)


def run_of(plan: cb.Plan, held: Any = None) -> Any:
    """A run whose model scores by the first dense column."""

    def predict(batch: Batch) -> np.ndarray:
        return np.asarray(batch.dense[:, 0] / 3, np.float32)

    return SimpleNamespace(plan=plan, summary={"held": held}, learner=SimpleNamespace(predict=predict))


def test_everything_that_was_made_of_a_column_changes_places_together(plan: cb.Plan) -> None:
    (batch,) = plan.batches(ROWS)
    order = np.arange(ROWS)[::-1].copy()
    found = _permuted(batch, "x", order)
    assert found.dense[:, 0].tolist() == batch.dense[::-1, 0].tolist()
    assert found.dense[:, 1].tolist() == batch.dense[:, 1].tolist()
    assert found.sparse["x#missing"].values.tolist() == batch.sparse["x#missing"].values[::-1].tolist()
    assert found.sparse["k"].values.tolist() == batch.sparse["k"].values.tolist()
    found = _permuted(batch, "k", order)
    assert found.dense.tolist() == batch.dense.tolist()
    assert found.sparse["k"].values.tolist() == batch.sparse["k"].values[::-1].tolist()
    assert found.sparse["x#missing"].values.tolist() == batch.sparse["x#missing"].values.tolist()


@pytest.mark.parametrize(
    ("held", "first", "rows"),
    [
        (None, 0, ROWS),
        ({"start": 40, "stop": 60}, 40, 20),
        ({"start": 0, "stop": 10}, 0, ROWS),  # of one class
        ({"start": 60, "stop": 60}, 0, ROWS),
    ],
)
def test_importance_is_measured_on_held_out_rows_of_both_classes_or_else_on_training_rows(
    plan: cb.Plan, held: dict[str, int] | None, first: int, rows: int
) -> None:
    found = _rows(run_of(plan, held))
    expected = importance.sample(plan, first, None, rows)
    assert expected is not None
    assert (found.rows, found.dense.tolist()) == (rows, expected.dense.tolist())


def test_importances_are_means_over_permutations_of_the_seed(plan: cb.Plan) -> None:
    run = run_of(plan)
    frame: Any = SimpleNamespace(columns=[SimpleNamespace(name=name) for name in ("xy", "x", "k")])
    found = column_importances(run, frame, 7)
    assert (found[0], found[2]) == (0.0, 0.0)
    (batch,) = plan.batches(ROWS)
    random = np.random.Generator(np.random.Philox(key=[7, ROWS]))
    lost = []
    for _ in range(REPEATS):
        order = random.permutation(ROWS)
        scores, base = Scores(), Scores()
        scores.add(batch.label, np.asarray(batch.dense[order, 0] / 3, np.float32))
        base.add(batch.label, np.asarray(batch.dense[:, 0] / 3, np.float32))
        lost.append(base.result()["auc"] - scores.result()["auc"])
    assert found[1] == pytest.approx(np.mean(lost))
    assert found[1] > 0.2
    assert column_importances(run, frame, 7).tolist() == found.tolist()
    assert column_importances(run, frame, 8)[1] != found[1]
