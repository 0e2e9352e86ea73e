"""A Deep FFM and a run are predictors alike, and serving knows nothing else of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox.errors import PlanError
from ctrbox.predict.predictor import Predictor
from ctrbox.predict.run_predictor import RunPredictor
from ctrbox.publish.weight_file import read_weights
from tests.train.worlds import checkerboard, plan_of

ROWS = 600


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    return plan_of(checkerboard(ROWS))


@pytest.fixture(scope="module")
def run(plan: cb.Plan, tmp_path_factory: pytest.TempPathFactory) -> cb.Run:
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("runs") / "run"
    return cb.Trainer(cb.models.LR(plan.schema), threads=1).fit(plan, batch_size=100, out=out, progress=False)


@pytest.fixture(scope="module")
def engine(plan: cb.Plan) -> cb.DeepFFM:
    made = cb.DeepFFM(plan.schema, k=2, bits=12)
    made.learn(plan.batches(100))
    return made


@pytest.fixture(params=["run", "engine"])
def predictor(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_both_kinds_of_model_are_predictors(predictor: Any, plan: cb.Plan, tmp_path: Path) -> None:
    assert isinstance(predictor, Predictor)
    assert set(predictor.fields) <= {*plan.features.sparse, *plan.features.dense}
    predictor.check_schema(plan.schema)
    p = predictor.predict_batch(next(plan.batches(50)))
    assert p.dtype == np.float32
    assert ((p > 0) & (p < 1)).all()
    cb.publish.pack(predictor, tmp_path / "weights.fbw")
    assert read_weights(tmp_path / "weights.fbw").kind == predictor.kind


def test_a_model_refuses_a_plan_that_makes_other_features(predictor: Any) -> None:
    log = cb.View(checkerboard(ROWS), key="id")
    other = cb.compile(log, cb.FeatureSet(label=cb.col("clicked"), sparse={"other": cb.col("user").key()}), threads=1)
    with pytest.raises(PlanError, match=r"is not a feature of the plan|was trained with a plan of fingerprint"):
        predictor.check_schema(other.schema)


def test_what_only_looks_like_a_model_is_not_served(plan: cb.Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"create needs a cb.DeepFFM or a cb.Run, got LR"):
        cb.serve.create(tmp_path / "model", plan, cb.models.LR(plan.schema), context=["user"])  # type: ignore[arg-type]


def test_a_run_is_opened_to_predict_without_what_trains_it(run: cb.Run) -> None:
    rows = checkerboard(40, seed=5)
    opened = RunPredictor.open(run.folder, views={"memory": rows})  # type: ignore[arg-type]
    assert not isinstance(opened, cb.Run)
    assert np.array_equal(opened.predict(rows), run.predict(rows))
    assert opened.check_schema(run.plan.schema) is None
    assert opened.predict([]).tolist() == []


SERVED = """
import json, sys
import pyarrow as pa
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.served_models import open_served

log, *folders = sys.argv[1:]
rows = pa.ipc.open_file(log).read_all()
candidates = [{"ad": 4, "tags": ["t1"], "price": 0.5}, {"ad": 5, "tags": [], "price": 0.5}]
asked = json.dumps({"context": {"user": 3, "device": "web"}, "candidates": candidates}).encode()
for folder in folders:
    served = open_served(ModelFolder.open(folder), views={"memory": rows})
    scores, _ = served.score(served.reader.from_json(asked))
    assert len(scores) == 2 and all(0 < score < 1 for score in scores), scores
print(*sorted(name for name in sys.modules if name.startswith("ctrbox.train")))
"""


def test_serving_a_model_of_each_kind_imports_nothing_of_training(
    run: cb.Run, engine: cb.DeepFFM, tmp_path: Path
) -> None:
    for name, model in (("published", run), ("engine", engine)):
        cb.serve.create(tmp_path / name, run.plan, model, context=["user", "device"])
    table = checkerboard(10)
    with pa.OSFile(str(tmp_path / "log.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    given = [str(tmp_path / "log.arrow"), str(run.folder), str(tmp_path / "published"), str(tmp_path / "engine")]
    done = subprocess.run([sys.executable, "-c", SERVED, *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
