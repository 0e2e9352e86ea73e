"""The native step of the usual models: its torch twin, the same bits for any number of threads, and what it leaves to torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.optimizers.of_dense_weights import dense_optimizer
from ctrbox.optimizers.of_table_rows import SGD
from ctrbox.train.learn_batch import Learner
from ctrbox.train.native_training_step import native_step
from tests.train.worlds import FAST, checkerboard, plan_of, weights

Make = Callable[[cb.types.Schema], torch.nn.Module]

MODELS: dict[str, Make] = {
    "LR": lambda s: cb.models.LR(s, pooling="sum"),
    "FM": lambda s: cb.models.FM(s, 5),
    "a tower without hidden layers": lambda s: cb.models.EmbeddingMLP(s, 4, hidden=()),
    "EmbeddingMLP": lambda s: cb.models.EmbeddingMLP(s, 8, hidden=(20,), pooling="max"),
    "WideDeep": lambda s: cb.models.WideDeep(s, 4, wide=["ad", "tags"], hidden=(16, 7), dropout=0.3),
    "DeepFM": lambda s: cb.models.DeepFM(s, 8, hidden=(64, 32), dropout=0.1),
    "a wide DeepFM": lambda s: cb.models.DeepFM(s, 3, hidden=(150, 33, 5)),
}


def log(rows: int, seed: int = 0) -> pa.Table:
    """A checkerboard with a second field of the ads' keys, and one that has key 0, the null slot."""
    table = checkerboard(rows, seed)
    rng = np.random.default_rng(seed + 1)
    return table.append_column("seen", pa.array(rng.integers(0, 40, rows))).append_column(
        "city", pa.array(rng.integers(0, 5, rows))
    )


def plan(rows: int, seed: int = 0, **more: Any) -> cb.Plan:
    sparse = {"seen": col("seen").key("ad"), "city": col("city").as_key()}
    return plan_of(log(rows, seed), sparse=sparse, dense={"twice": col("price") * 2e6, "one": col("price") * 0}, **more)


def learner(model: torch.nn.Module, schema: cb.types.Schema, threads: int = 1, native: bool = True) -> Learner:
    dim = 0 if isinstance(model, cb.models.LR) else model.reads.dim  # type: ignore[union-attr]
    table = cb.MemoryTable(dim, optimizer=SGD(lr=0.5), init=0.3)
    found = Learner(model, schema, table, dense_optimizer(SGD(lr=0.5)), threads=threads)
    assert found.native is not None
    if not native:
        found.native = None
    return found


def steps(model: torch.nn.Module, batches: list[Any], threads: int = 1, native: bool = True) -> dict[str, Any]:
    """Train on the batches; return losses, gradients of the last step, weights and rows."""
    mine = copy.deepcopy(model)
    one = learner(mine, batches[0].schema, threads, native)
    torch.manual_seed(5)
    losses = [one.learn(one.look(batch, k)) for k, batch in enumerate(batches)]
    keys, values, _ = one.embedders[0].export()  # type: ignore[attr-defined]
    order = np.argsort(keys)
    found = {"losses": np.array(losses), "keys": keys[order], "rows": values[order]}
    found |= {f"gradient of {n}": p.grad.numpy().copy() for n, p in mine.named_parameters() if p.grad is not None}
    return found | {n: t.numpy().copy() for n, t in mine.state_dict().items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [1, 2, 63, 700])
def test_native_step_computes_what_torch_computes(name: str, rows: int) -> None:
    p = plan(2 * rows, weight=col("price") + 0.5)
    batches = list(p.batches(rows))
    model = MODELS[name](p.schema)
    native, twin = steps(model, batches), steps(model, batches, native=False)
    assert native.keys() == twin.keys()
    for what in native:
        scale = float(np.abs(twin[what]).max(initial=1e-3))
        np.testing.assert_allclose(native[what], twin[what], rtol=2e-4, atol=2e-5 * scale, err_msg=what)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(list(MODELS)),
    rows=st.sampled_from([1, 5, 64, 65, 127, 1000, 2049]),
    threads=st.sampled_from([2, 5, 16]),
    seed=st.integers(0, 3),
)
def test_weights_have_the_same_bits_for_any_number_of_threads(name: str, rows: int, threads: int, seed: int) -> None:
    p = plan(min(3 * rows, 4100), seed)
    batches = list(p.batches(rows))
    torch.manual_seed(seed)
    model = MODELS[name](p.schema)
    alone, many = steps(model, batches), steps(model, batches, threads)
    for what in alone:
        assert alone[what].tobytes() == many[what].tobytes(), what


def test_training_ends_with_the_same_bits_on_1_2_5_and_16_threads() -> None:
    found = []
    for threads in (1, 2, 5, 16):
        p = plan(6000).using(threads=threads)
        torch.manual_seed(1)
        trainer = cb.Trainer(MODELS["DeepFM"](p.schema), cb.MemoryTable(8), threads=threads)
        found.append(weights(trainer.fit(p, **FAST | {"batch_size": 1111, "epochs": 2})))
    assert found[0] == found[1] == found[2] == found[3]


def test_a_step_keeps_the_moments_of_dense_columns_that_torch_keeps() -> None:
    p = plan(900)
    batches = list(p.batches(300))
    model = MODELS["FM"](p.schema)
    native, twin = steps(model, batches), steps(model, batches, native=False)
    assert native["dense.seen"] == twin["dense.seen"] == 900
    np.testing.assert_allclose(native["dense.mean"], twin["dense.mean"], rtol=1e-6)
    np.testing.assert_allclose(native["dense.spread"], twin["dense.spread"], rtol=1e-5, atol=1e-9)


def test_frozen_weights_get_no_gradient() -> None:
    p = plan(200)
    model = MODELS["DeepFM"](p.schema)
    model.tower.layers[0].weight.requires_grad_(False)  # type: ignore[union-attr,index]
    before = model.tower.layers[0].weight.clone()  # type: ignore[union-attr,index,operator]
    after = steps(model, list(p.batches(100)))
    assert np.array_equal(after["tower.layers.0.weight"], before.numpy())
    assert "gradient of tower.layers.0.weight" not in after


def test_weights_that_move_to_other_memory_are_followed() -> None:
    p = plan(400)
    first, second = p.batches(200)
    model = MODELS["FM"](p.schema)
    one = learner(model, p.schema)
    one.learn(one.look(first))
    model.bias.data = torch.full((1,), 3.0)  # type: ignore[union-attr]
    one.learn(one.look(second))
    assert float(model.bias.detach()) != 3.0  # type: ignore[arg-type,operator,union-attr]
    assert abs(float(model.bias.detach()) - 3.0) < 1.0  # type: ignore[arg-type,operator,union-attr]


class Own(cb.models.DeepFM):
    """A user's model that looks like one of ours."""


OTHERS: dict[str, Make] = {
    "a subclass": lambda s: Own(s, 4),
    "batch normalization": lambda s: cb.models.DeepFM(s, 4, batch_norm=True),
    "another activation": lambda s: cb.models.EmbeddingMLP(s, 4, activation="prelu"),
    "two dims": lambda s: cb.models.EmbeddingMLP(s, 4, dims={"device": 8}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_torch_computes_models_that_the_native_step_does_not_know(what: str) -> None:
    p = plan_of(checkerboard(300))
    model = OTHERS[what](p.schema)
    table = {"*": cb.MemoryTable(4), "device": cb.MemoryTable(8)} if what == "two dims" else cb.MemoryTable(4)
    assert Learner(model, p.schema, table).native is None


def test_a_hook_is_called_also_when_it_comes_late() -> None:
    p = plan_of(checkerboard(600))
    model = cb.models.DeepFM(p.schema, 4)
    one = learner(model, p.schema)
    first, second = p.batches(300)
    one.learn(one.look(first))
    met: list[int] = []
    handle = model.tower.register_forward_hook(lambda *_: met.append(1))
    one.learn(one.look(second))
    assert met == [1]
    handle.remove()
    one.learn(one.look(first))
    assert met == [1]


def test_a_loss_that_is_not_finite_is_refused_before_weights_change() -> None:
    p = plan_of(checkerboard(200))
    model = cb.models.FM(p.schema, 4)
    with torch.no_grad():
        model.first.weight.fill_(float("inf"))
    one = learner(model, p.schema)
    (batch,) = p.batches(200)
    bias = model.bias.detach().clone()
    one.begun = True
    looked = one.look(batch)
    with pytest.raises(cb.errors.TrainError, match=r"weight 'first\.weight' of the model is not finite"):
        one.learn(looked)
    assert torch.equal(model.bias.detach(), bias)


def test_dropout_drops_as_often_as_asked_and_never_by_position() -> None:
    drop = cb.models.MLP(4, (400, 1), dropout=0.25).between[0][1]  # type: ignore[index]
    drop.train()
    kept = drop(torch.ones(1000, 400)) > 0
    assert abs(float(kept.float().mean()) - 0.75) < 0.005
    assert float((kept.float().mean(0) - 0.75).abs().max()) < 0.08
    assert float((kept.float().mean(1) - 0.75).abs().max()) < 0.12
    again = drop(torch.ones(1000, 400)) > 0
    assert abs(float((kept == again).float().mean()) - 0.625) < 0.005  # independent draws: 0.75² + 0.25²


def test_an_index_is_built_ahead_and_refused_for_another_batch() -> None:
    p = plan(400)
    first, second = p.batches(200)
    one = learner(MODELS["DeepFM"](p.schema), p.schema)
    assert one.native is not None
    ahead, other = one.keyed(first, learns=True), one.keyed(second, learns=True)
    assert ahead.index is not None
    assert one.keyed(first).index is None  # scoring needs none
    one.learn(one.announce(ahead))
    lookup = ahead.lookups[0]
    rows = one.embedders[0].pull(lookup.keys)
    arguments = (rows, ahead.logs, np.zeros(200, np.float32), None, 1)
    with pytest.raises(ValueError, match="the index belongs to another batch or model"):
        native_step(one.native, lookup, other.index, *arguments)  # type: ignore[arg-type]


def test_a_batch_indexed_ahead_learns_the_same_bits() -> None:
    p = plan(900)
    batches = list(p.batches(300))
    found = []
    for learns in (False, True):
        torch.manual_seed(2)
        model = MODELS["DeepFM"](p.schema)
        one = learner(model, p.schema, threads=2)
        for k, batch in enumerate(batches):
            one.learn(one.announce(one.keyed(batch, k, learns=learns)))
        found.append(torch.cat([w.detach().flatten() for w in model.parameters()]).numpy().tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("name", MODELS)
def test_native_scores_are_those_of_torch_and_do_not_depend_on_threads(name: str) -> None:
    p = plan(1300)
    batches = list(p.batches(500))
    torch.manual_seed(4)
    one = learner(MODELS[name](p.schema), p.schema)
    one.learn(one.look(batches[0]))
    looked = [one.look(batch, prefetch=False) for batch in batches]
    native = [one.score(batch) for batch in looked]
    one.threads = 5
    assert all(np.array_equal(a, one.score(batch)) for a, batch in zip(native, looked, strict=True))
    one.native = None
    for ours, batch in zip(native, looked, strict=True):
        twin = one.score(batch)
        np.testing.assert_allclose(ours, twin, rtol=1e-4, atol=1e-5 * float(np.abs(twin).max()))


def test_scores_go_through_a_hook_where_there_is_one() -> None:
    p = plan(300)
    model = MODELS["DeepFM"](p.schema)
    one = learner(model, p.schema)
    (batch,) = p.batches(300)
    met: list[int] = []
    model.tower.register_forward_hook(lambda *_: met.append(1))  # type: ignore[union-attr,operator]
    one.score(one.look(batch, prefetch=False))
    assert met == [1]
