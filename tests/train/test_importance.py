"""What a report says about each feature: coverage, keys, and what a model loses without it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch
from ctrbox.train import importance

ROWS = 400
CLICKED = np.arange(ROWS) % 4 == 0


@pytest.fixture(scope="module")
def batch() -> Batch:
    """``tells`` and ``value`` are the label itself; ``list`` has two keys in every second row and none in the others."""
    table = pa.table(
        {
            "clicked": CLICKED.astype(np.int64),
            "tells": CLICKED.astype(np.int64),
            "noise": np.arange(ROWS) % 7,
            "list": pa.array([[1, 2] if k % 2 else [] for k in range(ROWS)], pa.list_(pa.int64())),
            "value": CLICKED.astype(np.float64),
        }
    )
    sparse = {"tells": col("tells").key(), "noise": col("noise").key(), "list": col("list").key()}
    dense = {"value": col("value"), "nothing": col("value") * 0.0}
    plan = cb.compile(cb.View(table), cb.FeatureSet(label=col("clicked"), sparse=sparse, dense=dense), threads=1)
    return plan.run(table)


def learner(batch: Batch, *fields: str) -> Any:
    """Return a model that reads these fields and scores by ``tells`` and the first dense column."""
    one = batch.sparse["tells"].values[0]  # of the first row, which was clicked

    def predict(given: Batch) -> np.ndarray:
        scores = np.where(given.sparse["tells"].values == one, 0.5, 0.1) + 0.4 * given.dense[:, 0]
        return np.asarray(scores, np.float32)

    return SimpleNamespace(predict=predict, reads=SimpleNamespace(fields=fields, sequences=("list",)))


def test_a_feature_is_important_where_the_model_loses_without_it(batch: Batch) -> None:
    found = {one["name"]: one for one in importance.features(learner(batch, "tells"), batch)}
    assert [*found] == ["tells", "noise", "list", "value", "nothing"]
    facts = {name: (one["kind"], one["coverage"], one["keys"], one["distinct"]) for name, one in found.items()}
    assert facts == {
        "tells": ("sparse", 1.0, 1.0, 2),
        "noise": ("sparse", 1.0, 1.0, 7),
        "list": ("sparse", 0.5, 1.0, 2),
        "value": ("dense", 0.25, None, 2),
        "nothing": ("dense", 0.0, None, 1),
    }
    for name in ("tells", "value"):
        assert found[name]["importance_low"] < found[name]["importance"] < found[name]["importance_high"]
        assert found[name]["importance"] > 0.02
    assert math.isnan(found["noise"]["importance"])  # the model does not read it
    assert (found["list"]["importance"], found["nothing"]["importance"]) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["BST", "SIM", "HSTU"])
def test_lists_beside_a_history_keep_its_length(tmp_path: Path, name: str) -> None:
    random = np.random.default_rng(3)
    lists = [random.integers(1, 6, length).tolist() for length in random.integers(0, 4, ROWS)]
    ages = [[7 if k % 4 == 0 else 8 for _ in items] for k, items in enumerate(lists)]  # which tell the label
    table = pa.table({"y": CLICKED.astype(np.int64), "ad": np.arange(ROWS) % 5, "items": lists, "ages": ages})
    ad = {"ad": col("ad").key(space="ad"), "history": col("items").key(space="ad"), "ages": col("ages").key()}
    plan = cb.compile(cb.View(table).fill(items=[], ages=[]), cb.FeatureSet(label=col("y"), sparse=ad), threads=1)
    model = cb.models.build(name, plan.schema, {"dim": 4, "age": "ages", "hidden": [8]})
    fast = cb.Adagrad(lr=0.3, initial=0.1)
    trainer = cb.Trainer(model, cb.MemoryTable(4, optimizer=fast), optimizer=cb.optim.Adam(lr=0.03), threads=1)
    run = trainer.fit(plan, batch_size=50, epochs=8, valid=0.5, out=tmp_path / "run")
    found = {one["name"]: one["importance"] for one in run.summary["features"]}
    assert found["ages"] > 0.1
    assert found["history"] > 0.1  # its ages go with it


@pytest.mark.parametrize(("piece", "sizes"), [(ROWS, [400]), (ROWS - 1, [399, 1]), (150, [150, 150, 100])])
def test_a_large_sample_is_predicted_in_pieces(
    batch: Batch, piece: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importance, "PIECE", piece)
    assert [part.rows for part in importance._pieces(batch)] == sizes
    model = learner(batch, "tells")
    assert importance._predictions(model, batch).tolist() == model.predict(batch).tolist()


def test_the_sample_is_the_first_rows_of_its_part() -> None:
    table = pa.table({"clicked": [0, 1] * 20, "a": [float(k) for k in range(40)]})
    features = cb.FeatureSet(label=col("clicked"), dense={"a": col("a")})
    plan = cb.compile(cb.View(table), features, threads=1)
    found = importance.sample(plan, 10, 35, rows=15)
    assert found is not None
    assert found.dense[:, 0].tolist() == list(range(10, 25))
    assert importance.sample(plan, 10, 10) is None
