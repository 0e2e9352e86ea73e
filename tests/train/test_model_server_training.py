"""Training through a Model Server: the bits of the model that runs the sub-model in its graph; resume; runs that come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.pooling import pool, sequence
from ctrbox.embed.unique_keys import Lookup
from ctrbox.errors import PlanError
from ctrbox.models import Inputs, LocalActivation, Pooled, Reads
from ctrbox.optimizers.of_dense_weights import dense_optimizer
from ctrbox.train.loss import loss_of
from tests.models.conftest import one_thread  # noqa: F401
from tests.train.test_run_folder import Stop, StopAt
from tests.train.test_sparse_training import told_at_every_step

ITEMS, WIDTH, DIM = 60, 8, 4
FAST: dict[str, Any] = {"batch_size": 100, "checkpoint_seconds": 1e9}


def rows(count: int = 1500, seed: int = 0) -> tuple[pa.Table, np.ndarray]:
    """Users click ads whose image points where the images of their history point; some items have no image."""
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((ITEMS, WIDTH)).astype(np.float32)
    history = [rng.integers(0, ITEMS + 5, rng.integers(0, 6)).tolist() for _ in range(count)]
    ad = rng.integers(0, ITEMS + 5, count)
    known = np.concatenate([images, np.zeros((5, WIDTH), np.float32)])
    wanted = np.array([known[h].sum(0) if h else np.zeros(WIDTH) for h in history])
    clicked = (rng.random(count) < 1 / (1 + np.exp(-(wanted * known[ad]).sum(1)))).astype(np.int64)
    table = {"id": np.arange(count), "user": rng.integers(0, 30, count), "ad": ad, "clicked": clicked}
    return pa.table({**table, "history": pa.array(history, pa.list_(pa.int64()))}), images


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    log, _ = rows()
    sparse = {
        "user": col("user"),
        "image": col("ad").key(space="image"),
        "seen": col("history").key(space="image"),
    }
    view = cb.View(log, key="id").fill(history=[])
    return cb.compile(view, cb.FeatureSet(label=col("clicked"), group=col("user"), sparse=sparse), threads=1)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> cb.tables.VectorFile:
    _, images = rows()
    path = tmp_path_factory.mktemp("images") / "images.ctrvec"
    data = {"ad": np.arange(ITEMS), "v": images}
    return cb.tables.write_vectors(path, data, key=col("ad").key(space="image"), vector="v")


class Visual(torch.nn.Module):
    def __init__(self, schema: cb.types.Schema, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.reads = Reads(schema, DIM, pooling={"seen": "none"})
        self.attention = LocalActivation(DIM, (6,), kind="prelu")
        self.tower = torch.nn.Sequential(torch.nn.Linear(3 * DIM, 8), torch.nn.PReLU(), torch.nn.Linear(8, 1))

    def forward(self, x: Inputs) -> torch.Tensor:
        seen = self.attention(x.field("image"), *x.sequence("seen"))
        both = x.field("image") * seen
        return self.tower(torch.cat([x.field("user"), both, seen], 1)).squeeze(1)


def submodel() -> torch.nn.Module:
    torch.manual_seed(3)
    return cb.tables.ImageEmbedding(WIDTH, (6,), DIM)


def server(file: cb.tables.VectorFile, **more: Any) -> cb.tables.ModelServer:
    return cb.tables.ModelServer(file, submodel(), optimizer=cb.optim.Adam(lr=0.01), **more)


def embedders(one: cb.tables.ModelServer) -> dict[str, Any]:
    return {"image": one, "seen": one, "*": cb.MemoryTable(DIM)}


def trained(plan: cb.Plan, one: cb.tables.ModelServer, **options: Any) -> cb.Run:
    return cb.Trainer(Visual(plan.schema), embedders(one), optimizer=cb.optim.Adam(lr=0.01), threads=1).fit(
        plan, **{**FAST, **options}
    )


def bits(*models: torch.nn.Module) -> list[bytes]:
    return [value.numpy().tobytes() for model in models for value in model.state_dict().values()]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_the_weights_are_those_of_one_graph(
    plan: cb.Plan, file: cb.tables.VectorFile, overlap: bool, recompute: bool
) -> None:
    one = server(file, recompute=recompute)
    run = trained(plan, one, valid=0.0, overlap=overlap)

    model, inside, users = Visual(plan.schema), submodel(), cb.MemoryTable(DIM)
    steps = [dense_optimizer(cb.optim.Adam(lr=0.01))(list(m.parameters())) for m in (model, inside)]
    torch.manual_seed(0)
    for batch in plan.batches(100):
        ids, images = Lookup.of(batch, ["user"]), Lookup.of(batch, ["image", "seen"])
        of_user = torch.from_numpy(users.pull(ids.keys)).requires_grad_()
        places = file.find(images.keys)
        present = torch.from_numpy(np.flatnonzero(places >= 0))
        computed = inside(torch.from_numpy(file.read(places[places >= 0])))
        vectors = torch.zeros(len(images.keys), DIM).index_copy(0, present, computed)
        pools = (
            Pooled(("user",), None, pool(of_user, ids, users.row, ["mean"])[1]),
            Pooled(("image",), None, pool(vectors, images, one.row, ["mean"], fields=["image"])[1]),
        )
        seen = {"seen": sequence(vectors, images, one.row, "seen")}
        loss = loss_of(
            model(Inputs(model.reads, batch.rows, torch.from_numpy(batch.dense), pools, seen)),
            torch.from_numpy(np.asarray(batch.label, np.float32)),
            None,
        )
        for step in steps:
            step.zero_grad()
        loss.backward()
        assert of_user.grad is not None
        users.push(ids.keys, of_user.grad.numpy() * np.float32(batch.rows))
        for step in steps:
            step.step()
    assert bits(run.model, one.submodel) == bits(model, inside)


def test_images_are_learned(plan: cb.Plan, file: cb.tables.VectorFile) -> None:
    one = server(file)
    with_images = trained(plan, one, epochs=8).metrics["auc"]
    assert with_images > 0.65
    assert one.stats()["missing"] > 0
    assert one.stats()["computed"] < 1500 * 8 * 2  # each once a batch, though an item is met many times


def test_a_run_that_was_stopped_goes_on_exactly(
    tmp_path: Path, plan: cb.Plan, file: cb.tables.VectorFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_at_every_step(monkeypatch)
    whole = server(file)
    expected = bits(trained(plan, whole, epochs=2).model, whole.submodel)
    options: dict[str, Any] = {"epochs": 2, "out": tmp_path / "run", "checkpoint_steps": 4}
    with pytest.raises(Stop):
        trained(plan, server(file), **options, progress=StopAt(9))
    seen, again = StopAt(10**9), server(file)
    run = trained(plan, again, **options, progress=seen)
    assert seen.resumed_at
    assert bits(run.model, again.submodel) == expected


def test_a_run_comes_back_with_the_data_it_is_given(tmp_path: Path, plan: cb.Plan, file: cb.tables.VectorFile) -> None:
    run = trained(plan, server(file), out=tmp_path / "run")
    ask = rows(40, seed=5)[0]
    expected = run.predict(ask)
    views = {"memory": rows()[0]}
    fresh = cb.tables.ModelServer(file, cb.tables.ImageEmbedding(WIDTH, (6,), DIM))
    loaded = cb.Run.load(tmp_path / "run", views=views, model=Visual(plan.schema, 9), servers={"image": fresh})
    assert np.array_equal(loaded.predict(ask), expected)
    with pytest.raises(PlanError, match=r"vectors of 'image', 'seen' with a Model Server; pass one, with its data"):
        cb.Run.load(tmp_path / "run", views=views, model=Visual(plan.schema))
    with pytest.raises(PlanError, match="has a table for 'user', not a Model Server; remove it from servers="):
        cb.Run.load(tmp_path / "run", views=views, model=Visual(plan.schema), servers={"user": fresh, "seen": fresh})


def test_a_run_does_not_go_on_with_another_submodel(tmp_path: Path, plan: cb.Plan, file: cb.tables.VectorFile) -> None:
    with pytest.raises(Stop):
        trained(plan, server(file), out=tmp_path / "run", checkpoint_steps=2, progress=StopAt(1))
    with pytest.raises(cb.errors.DataError, match="differs in tables"):
        trained(plan, server(file, block=7), out=tmp_path / "run")
