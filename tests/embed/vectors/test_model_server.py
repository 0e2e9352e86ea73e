"""A Model Server against the torch model that runs the sub-model inside its graph: the same bits; and what it refuses."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

import ctrbox as cb
from ctrbox.embed.embedder import Embedder, Row
from ctrbox.embed.vectors.count_keys_without_vector import BATCHES, Misses
from ctrbox.embed.vectors.model_server_file import HEAD, is_server, read_server, write_server
from ctrbox.errors import BudgetError, DataError, PlanError, SourceError
from tests.models.conftest import one_thread  # noqa: F401

WIDTH = 9


def data(folder: Path, rows: int = 40, shards: int | None = None, seed: int = 0) -> cb.tables.VectorFile:
    vectors = np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)
    return cb.tables.write_vectors(
        folder / f"v{shards}", {"k": np.arange(1, rows + 1), "v": vectors}, key="k", vector="v", shards=shards
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int | None, cb.tables.VectorFile]:
    return {shards: data(tmp_path_factory.mktemp("files"), shards=shards) for shards in (None, 2)}


def submodel(seed: int = 0, dim: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return cb.tables.ImageEmbedding(WIDTH, (7, 5), dim)


class InGraph:
    """The slow twin: rows gathered from a dict, the sub-model inside the graph of the loss."""

    def __init__(self, file: cb.tables.VectorFile, model: nn.Module, block: int) -> None:
        self.rows = dict(zip(file.keys.tolist(), file.read(file.find(file.keys)), strict=True))
        self.model, self.block = model, block
        self.step = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)

    def vectors(self, keys: np.ndarray) -> torch.Tensor:
        there = [k for k in keys.tolist() if k in self.rows]
        found = torch.tensor(np.array([self.rows[k] for k in there], np.float32).reshape(len(there), WIDTH))
        parts = [self.model(x) for x in found.split(self.block)] if len(there) else []
        computed = torch.cat(parts) if parts else torch.zeros(0, 3)
        out = torch.zeros(len(keys), 3)
        at = [i for i, k in enumerate(keys.tolist()) if k in self.rows]
        return out.index_copy(0, torch.tensor(at, dtype=torch.int64), computed)

    def learn(self, keys: np.ndarray, weight: torch.Tensor) -> torch.Tensor:
        self.step.zero_grad()
        vectors = self.vectors(keys)
        loss = ((vectors * weight).sum(1).square()).mean()
        if vectors.requires_grad:
            loss.backward()
        self.step.step()
        return vectors.detach()


def bits(model: nn.Module, what: str = "grad") -> dict[str, bytes]:
    found = {n: getattr(p, what) for n, p in model.named_parameters()}
    return {n: b"" if t is None else t.detach().numpy().tobytes() for n, t in found.items()}


@settings(max_examples=15, deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(-3, 60), min_size=1, max_size=50, unique=True), min_size=1, max_size=4),
    block=st.integers(1, 60),
    recompute=st.booleans(),
    shards=st.sampled_from([None, 2]),
    prefetch=st.booleans(),
)
def test_gradients_and_weights_are_those_of_the_graph_bit_for_bit(
    files: dict[int | None, cb.tables.VectorFile],
    batches: list[list[int]],
    block: int,
    recompute: bool,
    shards: int | None,
    prefetch: bool,
) -> None:
    file = files[shards]
    twin = InGraph(file, submodel(), block)
    server = cb.tables.ModelServer(file, submodel(), optimizer=cb.optim.Adam(lr=0.01), block=block, recompute=recompute)
    weight = torch.linspace(-1, 1, 3)
    missing = 0
    for asked in batches:
        keys = np.array(asked, np.int64)
        if prefetch:
            server.prefetch(keys)
        pulled = torch.from_numpy(server.pull(keys)).requires_grad_()
        ((pulled * weight).sum(1).square()).mean().backward()
        assert pulled.grad is not None
        server.push(keys, pulled.grad.numpy())
        expected = twin.learn(keys, weight)
        assert pulled.detach().numpy().tobytes() == expected.numpy().tobytes()
        assert bits(server.submodel) == bits(twin.model)
        assert bits(server.submodel, "data") == bits(twin.model, "data")
        missing += len({k for k in asked if k != 0 and k not in twin.rows})
    assert server.stats()["missing"] == missing


def test_a_key_given_twice_is_computed_once_and_its_gradients_are_added_up(tmp_path: Path) -> None:
    file = data(tmp_path)
    server, once = cb.tables.ModelServer(file, submodel()), cb.tables.ModelServer(file, submodel())
    keys = np.array([5, 3, 5, 99, 3, 5])
    vectors = server.pull(keys)
    assert server.stats()["computed"] == 2
    assert np.array_equal(vectors[[0, 1, 3]], once.pull(np.array([5, 3, 99])))
    assert np.array_equal(vectors[0], vectors[2])
    assert not vectors[3].any()
    g = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    server.push(keys, g)
    once.push(np.array([5, 3, 99]), np.stack([(g[0] + g[2]) + g[5], g[1] + g[4], g[3]]))
    assert bits(server.submodel, "data") == bits(once.submodel, "data")


def test_looking_between_pull_and_push_changes_nothing_but_the_forward(tmp_path: Path) -> None:
    file = data(tmp_path)
    one, other = cb.tables.ModelServer(file, submodel()), cb.tables.ModelServer(file, submodel())
    keys, g = np.arange(1, 9), np.ones((8, 3), np.float32)
    one.pull(keys)
    one.pull(np.arange(20, 30), create=False)
    one.push(keys, g)
    other.push(keys, g)  # without a pull at all
    assert bits(one.submodel, "data") == bits(other.submodel, "data")


def test_dropout_is_the_one_of_the_pull(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dropped = nn.Sequential(nn.Linear(WIDTH, 30), nn.Dropout(0.5), nn.Linear(30, 3))
    server = cb.tables.ModelServer(data(tmp_path), dropped, optimizer=cb.optim.SGD(lr=1.0))
    before = copy.deepcopy(dropped)
    keys = np.arange(1, 20)
    torch.manual_seed(5)
    pulled = server.pull(keys)
    server.push(keys, np.ones((19, 3), np.float32))
    torch.manual_seed(5)
    before.train()
    out = before(torch.from_numpy(server.data.read(server.data.find(keys))))
    assert np.array_equal(out.detach().numpy(), pulled)
    out.backward(torch.ones(19, 3))
    assert bits(dropped) == bits(before)
    assert np.array_equal(server.pull(keys, create=False), server.pull(keys, create=False))
    torch.manual_seed(5)
    server.pull(keys)
    server.pull(keys[:4], create=False)  # an evaluation in between does not take its activations away
    kept = server._kept
    assert kept is not None
    server.push(keys, np.ones((19, 3), np.float32))
    with pytest.raises(PlanError, match="its Dropout would give another result"):
        cb.tables.ModelServer(server.data, dropped, recompute=True)


def test_it_is_an_embedder_and_says_what_it_gives(tmp_path: Path) -> None:
    server = cb.tables.ModelServer(data(tmp_path), dim=3)
    assert isinstance(server, Embedder)
    server.open(Row(3))
    for row in (Row(4), Row(3, linear=True)):
        with pytest.raises(PlanError, match="this Model Server returns dim=3, but the model reads"):
            server.open(row)
    assert len(server) == 40
    assert server.nbytes >= 4 * sum(p.numel() for p in server.submodel.parameters())


def test_the_usual_submodel_is_the_papers() -> None:
    sizes = [m.weight.shape for m in cb.tables.ImageEmbedding() if isinstance(m, nn.Linear)]
    assert [tuple(s) for s in sizes] == [(256, 4096), (64, 256), (12, 64)]
    assert [m.num_parameters for m in cb.tables.ImageEmbedding() if isinstance(m, nn.PReLU)] == [256, 64]


def test_text_is_embedded_by_its_tokens(tmp_path: Path) -> None:
    data = {"k": [1, 2, 3], "t": [[4, 4, 2], [], [1]]}
    file = cb.tables.write_tokens(tmp_path / "t", data, key="k", tokens="t", width=4)
    with pytest.raises(PlanError, match="pass a sub-model for them"):
        cb.tables.ModelServer(file)
    text = cb.tables.TextEmbedding(5, hidden=6, dim=3)
    server = cb.tables.ModelServer(file, text, optimizer=cb.optim.SGD(lr=0.1))
    with torch.no_grad():
        text.tokens.weight[0] = 7.0  # of the zeros behind a list: read by nobody
        mean = (2 * text.tokens.weight[4] + text.tokens.weight[2]) / 3
        means = (mean, torch.zeros(6), text.tokens.weight[1])
        expected = torch.stack([text.out(text.between(m[None]))[0] for m in means])
    found = server.pull(np.array([1, 2, 3]))
    assert np.allclose(found, expected.numpy(), atol=1e-6)
    before = text.tokens.weight.detach().clone()
    server.push(np.array([1, 2, 3]), np.ones((3, 3), np.float32))
    moved = (text.tokens.weight != before).any(1).tolist()
    assert moved == [False, True, True, False, True, False]


def test_an_unseen_object_is_embedded(tmp_path: Path) -> None:
    server = cb.tables.ModelServer(data(tmp_path), submodel(), block=16)
    everything = dict(zip(*(np.concatenate(p).tolist() for p in zip(*server.vectors(), strict=True)), strict=True))
    rows = server.data.read(server.data.find(np.arange(1, 41)))
    assert np.allclose(server.embed(rows), [everything[k] for k in range(1, 41)], atol=1e-6)
    with pytest.raises(DataError, match=r"expected rows of shape \(n, 9\), got \(2, 8\)"):
        server.embed(np.zeros((2, 8)))
    with pytest.raises(DataError, match="row 1 contains a NaN or an infinity; expected finite numbers"):
        server.embed([[0.0] * 9, [float("nan")] * 9])


def test_servers_of_shards_that_add_up_their_gradients_stay_one_model(tmp_path: Path) -> None:
    """Two servers, each with its keys, in lockstep: the sum of their gradients is that of one server with all keys."""
    file = data(tmp_path, shards=2)
    whole = cb.tables.ModelServer(file, submodel(), optimizer=cb.optim.SGD(lr=0.1))
    pushed: list[list[torch.Tensor]] = []

    def collect(weights: Any) -> None:
        pushed.append([w.grad.clone() for w in weights])
        if len(pushed) == 2:
            for one, two, weight in zip(pushed[0], pushed[1], weights, strict=True):
                weight.grad = one + two

    parts = [cb.tables.VectorFile(file.path, shard=k) for k in range(2)]
    servers = [cb.tables.ModelServer(p, submodel(), optimizer=cb.optim.SGD(lr=0.1), synchronize=collect) for p in parts]
    keys, g = np.arange(1, 41), np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    mine = [np.flatnonzero(p.find(keys) >= 0) for p in parts]
    assert all(len(m) for m in mine)
    for server, at in zip(servers, mine, strict=True):
        server.push(keys[at], g[at])
    whole.push(keys, g)
    for a, b in zip(servers[1].submodel.parameters(), whole.submodel.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    idle = cb.tables.ModelServer(
        parts[0], submodel(), synchronize=lambda weights: pushed.append([w.grad for w in weights])
    )
    idle.push(np.array([99]), np.ones((1, 3), np.float32))  # nothing of the batch is here
    assert all(not t.any() for t in pushed[-1])


# ---- checkpoints


@pytest.mark.parametrize("optimizer", [cb.optim.Adam(lr=0.01), cb.optim.SGD(lr=0.1), cb.Adagrad(lr=0.1)])
def test_a_saved_server_goes_on_exactly(tmp_path: Path, optimizer: Any) -> None:
    file = data(tmp_path)
    server = cb.tables.ModelServer(file, submodel(), optimizer=optimizer)
    keys, g = np.arange(1, 30), np.random.default_rng(0).standard_normal((29, 3)).astype(np.float32)
    server.push(keys, g)
    server.save(tmp_path / "s")
    other = cb.tables.ModelServer(file, submodel(seed=9), optimizer=optimizer)
    other.push(keys, -g)
    other.restore(tmp_path / "s")
    weights = cb.tables.ModelServer(file, submodel(seed=9), optimizer=cb.optim.SGD(lr=1.0))
    weights.restore(tmp_path / "s", optimizer=False)
    assert bits(weights.submodel, "data") == bits(server.submodel, "data")
    for one in (server, other):
        one.push(keys, g)
    assert bits(server.submodel, "data") == bits(other.submodel, "data")
    server.save(tmp_path / "a")
    other.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_no_damage_of_a_saved_server_goes_unseen(tmp_path: Path) -> None:
    server = cb.tables.ModelServer(data(tmp_path), submodel())
    path = tmp_path / "s"
    server.save(path)
    whole, before = path.read_bytes(), bits(server.submodel, "data")
    for at in [*range(HEAD.size + 40), *range(HEAD.size + 40, len(whole), 37)]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((DataError, SourceError), match=r"damaged|not a file of|version"):
            server.restore(path)
    for length in (0, 7, HEAD.size, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises((DataError, SourceError)):
            server.restore(path)
    assert bits(server.submodel, "data") == before


def test_another_submodel_or_optimizer_is_refused(tmp_path: Path) -> None:
    file = data(tmp_path)
    cb.tables.ModelServer(file, submodel()).save(tmp_path / "s")
    for other, message in (
        (cb.tables.ModelServer(file, submodel(dim=4)), "saved with dim 3, but this Model Server has 4"),
        (cb.tables.ModelServer(file, cb.tables.ImageEmbedding(WIDTH, (8, 5), 3)), r"weight '0\.\w+' is \(7,"),
        (cb.tables.ModelServer(file, nn.Linear(WIDTH, 3)), "only one of the two has the weight"),
        (
            cb.tables.ModelServer(file, submodel(), optimizer=cb.optim.SGD()),
            "saved with optimizer 'Adam', but this Model Server has 'SGD'",
        ),
    ):
        before = bits(other.submodel, "data")
        with pytest.raises(DataError, match=message):
            other.restore(tmp_path / "s")
        assert bits(other.submodel, "data") == before


# ---- what is refused


def test_missing_keys_are_an_error_where_asked(tmp_path: Path) -> None:
    server = cb.tables.ModelServer(data(tmp_path), dim=3, missing="error")
    server.pull(np.array([0, 1, 2]))  # the null slot is no missing key
    with pytest.raises(DataError, match=r"2 keys of a batch have no row in .*, such as key 77; missing='zero'"):
        server.pull(np.array([1, 77, 0, -5]))
    with pytest.raises(PlanError, match="nearest: 'error'"):
        cb.tables.ModelServer(server.data, missing="eror")


def test_the_budget_is_refused_before_the_forward(tmp_path: Path) -> None:
    file = data(tmp_path)
    server = cb.tables.ModelServer(file, submodel(), budget=1500, block=4)
    with pytest.raises(
        BudgetError, match=r"40 keys need [\d,]+ bytes for rows and activations, but the budget .* is 1,500"
    ):
        server.pull(np.arange(1, 41))
    server.prefetch(np.arange(1, 41))  # touches pages only
    assert len(server._ahead) == 0
    for first in (1, 3, 5):
        server.prefetch(np.arange(first, first + 2))
    assert len(server._ahead) == 3
    server.pull(np.arange(10, 19))  # what was read ahead gives way
    assert len(server._ahead) == 0
    assert len(server.pull(np.arange(1, 41), create=False)) == 40  # block by block
    again = cb.tables.ModelServer(file, submodel(), budget=1500, block=4, recompute=True)
    assert again.pull(np.arange(1, 41)).shape == (40, 3)
    again.push(np.arange(1, 41), np.ones((40, 3), np.float32))


def test_gradients_that_are_not_finite_change_nothing(tmp_path: Path) -> None:
    server = cb.tables.ModelServer(data(tmp_path), submodel())
    before = bits(server.submodel, "data")
    server.pull(np.array([3, 4]))
    g = np.zeros((2, 3), np.float32)
    g[1, 2] = np.inf
    with pytest.raises(DataError, match="the gradient of key 4 is"):
        server.push(np.array([3, 4]), g)
    for wrong in (np.zeros((2, 4), np.float32), np.zeros((2, 3)), np.zeros((1, 3), np.float32)):
        with pytest.raises(DataError, match="expected gradients of shape"):
            server.push(np.array([3, 4]), wrong)
    assert bits(server.submodel, "data") == before


@pytest.mark.parametrize("optimizer", [cb.optim.Adam(), cb.Adagrad(), cb.optim.SGD(lr=10.0), cb.optim.SGD(lr=1e-9)])
@pytest.mark.parametrize("size", [3e38, 1e25, 1e16, 1e10])
def test_gradients_whose_step_would_not_be_finite_change_nothing(tmp_path: Path, optimizer: Any, size: float) -> None:
    server, skips = (
        cb.tables.ModelServer(data(tmp_path), submodel(), optimizer=optimizer, nonfinite=how)
        for how in ("refuse", "skip")
    )
    keys = np.arange(1, 11)
    for one in (server, skips):
        one.push(keys, np.ones((10, 3), np.float32))
        one.save(tmp_path / "before")
    before = (tmp_path / "before").read_bytes()
    g = np.full((10, 3), size, np.float32)
    refused = size == 3e38 or (size == 1e25 and not isinstance(optimizer, cb.optim.SGD))
    expected = pytest.raises(DataError, match="would make weights infinite or NaN; no weight was changed")
    with expected if refused else contextlib.nullcontext():
        server.push(keys, g)
    skips.push(keys, g)
    assert skips.stats()["skipped"] == (10 if refused else 0)
    for one in (server, skips):
        one.save(tmp_path / "after")
        assert ((tmp_path / "after").read_bytes() == before) == refused
        states = torch.cat([t.flatten() for t in [*one.submodel.state_dict().values(), *state_of(one)]])
        assert torch.isfinite(states).all()


def state_of(server: cb.tables.ModelServer) -> list[torch.Tensor]:
    return [t for state in server._step.state.values() for t in state.values() if isinstance(t, torch.Tensor)]


def test_a_gradient_that_is_not_finite_is_skipped_with_its_key_where_asked(tmp_path: Path) -> None:
    server, other = (cb.tables.ModelServer(data(tmp_path), submodel(), nonfinite="skip") for _ in range(2))
    g = np.ones((3, 3), np.float32)
    other.push(np.array([3, 4, 5]), g * np.array([[1], [0], [1]], np.float32))
    g[1, 2] = np.nan
    server.push(np.array([3, 4, 5]), g)
    assert bits(server.submodel, "data") == bits(other.submodel, "data")
    assert server.stats()["skipped"] == 1
    twice = np.full((2, 3), 3e38, np.float32)  # finite one by one, not together
    with pytest.raises(DataError, match=r"the gradient of key 4 is \[inf"):
        cb.tables.ModelServer(data(tmp_path), submodel()).push(np.array([4, 4]), twice)


@pytest.mark.parametrize("device", ["nope", "cuda:99", 7.5, None])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, device: Any) -> None:
    with pytest.raises(PlanError, match=r"device= must be 'cpu', or 'cuda' on a machine with a GPU, got"):
        cb.tables.ModelServer(data(tmp_path), device=device)


class Odd(nn.Module):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, 3))
        self.answer = answer

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(x @ self.weight)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda y: y.double(), r"returned \(2, 3\) torch\.float64 for two rows"),
        (lambda y: y.sum(1), r"returned \(2,\) torch\.float32 for two rows"),
        (lambda y: (y, y), "returned tuple for two rows"),
        (lambda y: y @ torch.ones(2, 2), "Odd cannot read the rows of .*, which have 9 float32 each"),
    ],
)
def test_odd_submodels_are_refused_when_the_server_is_made(tmp_path: Path, answer: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        cb.tables.ModelServer(data(tmp_path), Odd(answer))


def test_a_submodel_that_blows_up_names_the_key(tmp_path: Path) -> None:
    server = cb.tables.ModelServer(data(tmp_path), Odd(lambda y: y / (y[:, :1] * 0 if len(y) == 1 else 1)))
    with pytest.raises(DataError, match=r"the sub-model returned .*(nan|inf).* for key 9"):
        server.pull(np.array([9]))
    with pytest.raises(
        PlanError, match="has no weights that could be trained; write its output to a vector file instead"
    ):
        cb.tables.ModelServer(server.data, nn.Flatten())


def test_prefetch_runs_beside_pull_and_push(tmp_path: Path) -> None:
    file = data(tmp_path)
    server, alone = (cb.tables.ModelServer(file, submodel(), block=8) for _ in range(2))
    rng = np.random.default_rng(0)
    batches = [rng.permutation(np.arange(1, 41))[: rng.integers(1, 40)] for _ in range(30)]
    looking = threading.Thread(target=lambda: [server.prefetch(keys) for keys in batches])
    looking.start()
    for keys in batches:
        for one in (server, alone):
            one.push(keys, one.pull(keys) * np.float32(0.1))
    looking.join()
    assert bits(server.submodel, "data") == bits(alone.submodel, "data")


# ---- sizes, counts and what a file may say


@pytest.mark.parametrize(
    ("options", "keys", "need"),
    [
        # 40 rows: of each the activations (132 bytes, more than its 9 floats), its vector and that of its gradient
        ({}, 40, 40 * (132 + 24)),
        ({"recompute": True}, 40, 4 * (36 + 24)),  # a block of rows and their vectors
        ({"recompute": True}, 3, 3 * (36 + 24)),
    ],
)
def test_a_pull_may_use_its_budget_to_the_last_byte(
    tmp_path: Path, options: dict[str, Any], keys: int, need: int
) -> None:
    file, asked = data(tmp_path), np.arange(1, keys + 1)
    server = cb.tables.ModelServer(file, submodel(), block=4, budget=need, **options)
    assert server.pull(asked).shape == (keys, 3)
    server = cb.tables.ModelServer(file, submodel(), block=4, budget=need - 1, **options)
    with pytest.raises(
        BudgetError,
        match=f"{keys} keys need {need:,} bytes for rows and activations, but the budget of this Model Server is {need - 1:,};",
    ):
        server.pull(asked)
    assert server.stats()["pulls"] == 0


def test_rows_are_read_ahead_where_four_batches_need_no_more_than_half_of_the_budget(tmp_path: Path) -> None:
    file, keys = data(tmp_path), np.arange(1, 11)
    for budget, ahead in ((2 * 4 * 10 * 36, 1), (2 * 4 * 10 * 36 - 2, 0)):
        server = cb.tables.ModelServer(file, submodel(), budget=budget)
        before = server.nbytes
        assert before == 4 * (9 * 7 + 7 + 7 + 7 * 5 + 5 + 5 + 5 * 3 + 3)  # weights, offsets and slopes
        server.prefetch(np.array([*keys, 99]))
        assert (len(server._ahead), server.nbytes - before) == (ahead, ahead * 10 * 36)
        assert server.stats()["rows_read"] == ahead * 10


def test_rows_read_ahead_give_way_where_a_pull_needs_their_memory(tmp_path: Path) -> None:
    file, keys = data(tmp_path), np.arange(1, 6)
    for budget, left in ((5 * 156 + 2 * 36, 1), (5 * 156 + 2 * 36 - 1, 0)):
        server = cb.tables.ModelServer(file, submodel(), budget=budget, block=4)
        server._ahead[b"other"] = keys, keys, np.zeros((2, WIDTH), np.float32)
        server.pull(keys)
        assert len(server._ahead) == left


def test_the_batch_read_ahead_first_is_forgotten_first(tmp_path: Path) -> None:
    server = cb.tables.ModelServer(data(tmp_path), submodel())
    batches = [np.arange(first, first + 3) for first in (1, 4, 7, 10, 13)]
    for keys in batches:
        server.prefetch(keys)
    assert [*server._ahead] == [keys.tobytes() for keys in batches[1:]]
    assert server.stats()["rows_read"] == 15
    server.pull(batches[4])
    assert (len(server._ahead), server.stats()["rows_read"]) == (3, 15)
    server.pull(batches[0])
    assert (len(server._ahead), server.stats()["rows_read"]) == (3, 18)


def test_a_server_counts_what_it_did(tmp_path: Path) -> None:
    server = cb.tables.ModelServer(data(tmp_path), submodel(), nonfinite="skip", block=3)
    keys = np.array([0, 5, 6, 77, 5, 7, 8])
    server.pull(keys)
    server.push(keys, np.ones((7, 3), np.float32))
    server.pull(keys[:3], create=False)
    server.push(np.array([9, 99]), np.full((2, 3), np.nan, np.float32))
    assert server.stats() == {
        "pulls": 2,
        "pushes": 2,
        "keys": 6 + 3,
        "missing": 1,
        "computed": 4 + 2,
        "rows_read": 4 + 2 + 1,
        "skipped": 2,
    }
    assert (server.misses.asked, server.misses.lost, server.misses.batches, server.misses.example) == (5, 1, 1, 77)


def test_a_server_shows_its_file_and_what_its_vectors_depend_on(tmp_path: Path) -> None:
    server = cb.tables.ModelServer(data(tmp_path), nn.Linear(WIDTH, 3), block=7, missing="error")
    assert repr(server) == f"ModelServer({server.data!r} -> Linear -> dim=3)"
    assert server.identity == (
        f"Linear(in_features=9, out_features=3, bias=True) over {server.data.fingerprint}, block 7, missing error"
    )


def test_an_export_has_all_keys_in_order_and_no_states(tmp_path: Path) -> None:
    server = cb.tables.ModelServer(data(tmp_path, shards=2), submodel(), block=16)
    keys, vectors, states = server.export()
    assert keys.tolist() == list(range(1, 41))
    assert states.shape == (40, 0)
    assert np.allclose(vectors, server.pull(keys, create=False), atol=1e-6)
    none = server.embed(np.zeros((0, WIDTH)))
    assert (none.shape, none.dtype) == ((0, 3), np.float32)


def test_a_factor_multiplies_the_rate_of_later_pushes(tmp_path: Path) -> None:
    file, keys, g = data(tmp_path), np.arange(1, 9), np.ones((8, 3), np.float32)
    one, other = (cb.tables.ModelServer(file, submodel(), optimizer=cb.optim.SGD(lr=lr)) for lr in (0.5, 0.125))
    one.scale_lr(0.25)
    for server in (one, other):
        server.push(keys, g)
    assert bits(one.submodel, "data") == bits(other.submodel, "data")


@pytest.mark.parametrize(
    ("part", "refused"),
    [
        (nn.Dropout(0.5), True),
        (nn.Dropout(0.0), False),
        (nn.BatchNorm1d(3), True),
        (nn.PReLU(3), False),
    ],
)
def test_only_parts_that_differ_at_a_second_forward_pass_are_refused(
    tmp_path: Path, part: nn.Module, refused: bool
) -> None:
    built = nn.Sequential(nn.Linear(WIDTH, 3), part)
    cb.tables.ModelServer(data(tmp_path), built)
    expected = pytest.raises(
        PlanError,
        match=f"its {type(part).__name__} would give another result the second time; use recompute=False",
    )
    with expected if refused else contextlib.nullcontext():
        cb.tables.ModelServer(data(tmp_path), built, recompute=True)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"plain": [1]}, r"is damaged: its optimizer state is \[1\]; restore it from a copy"),
        ({"plain": {"0.step": "x"}}, r"is damaged: its optimizer state is \{'0\.step': 'x'\}; restore"),
        ({"optimizer": None}, "was saved with optimizer None, but this Model Server has 'Adam'"),
        ({"width": 8}, "was saved with width 8, but this Model Server has 9"),
        ({"dim": None}, "was saved with dim None, but this Model Server has 3"),
    ],
)
def test_a_file_that_describes_another_server_is_refused(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    server = cb.tables.ModelServer(data(tmp_path), submodel())
    server.save(tmp_path / "s")
    tensors, about = read_server(tmp_path / "s")
    write_server(tmp_path / "t", tensors, about | changed)
    with pytest.raises(DataError, match=says):
        server.restore(tmp_path / "t")
    if "plain" in changed or "optimizer" in changed:
        server.restore(tmp_path / "t", optimizer=False)


@pytest.mark.parametrize("changed", [torch.zeros(7, 9, dtype=torch.float64), torch.zeros(7, 8)])
def test_weights_of_another_type_or_shape_are_refused(tmp_path: Path, changed: torch.Tensor) -> None:
    server = cb.tables.ModelServer(data(tmp_path), submodel())
    server.save(tmp_path / "s")
    tensors, about = read_server(tmp_path / "s")
    write_server(tmp_path / "s", tensors | {"model.0.weight": changed}, about)
    with pytest.raises(
        DataError,
        match=re.escape(f"weight '0.weight' is {tuple(changed.shape)} {changed.dtype}, expected (7, 9) torch.float32"),
    ):
        server.restore(tmp_path / "s")


def test_a_file_without_a_description_is_refused(tmp_path: Path) -> None:
    write_server(tmp_path / "s", {}, {"dim": 3})
    assert read_server(tmp_path / "s") == ({}, {"dim": 3})
    for text, says in ((b"[3]", "it does not describe its sub-model"), (b"{", "is damaged: Expecting")):
        body = save({"about": torch.frombuffer(bytearray(text), dtype=torch.uint8)})
        head = HEAD.pack(b"CTRSERV\n", 1, 0, len(body), hashlib.sha256(body).digest())
        (tmp_path / "s").write_bytes(head + body)
        with pytest.raises(DataError, match=says):
            read_server(tmp_path / "s")
    for head, says in (
        (HEAD.pack(b"CTRSERV\n", 2, 0, 0, b""), "has format version 2, but this version of CTRBox reads 1"),
        (HEAD.pack(b"CTRSERV\n", 1, 1, 0, b""), "bytes 12 to 15 of its head are not zero"),
        (HEAD.pack(b"CTRSERV\n", 1, 0, 5, b"") + b"1234", "it has 4 bytes after its header, expected 5"),
        (HEAD.pack(b"CTRSERV\n", 1, 0, 4, b"") + b"1234", "its checksum does not match"),
        (HEAD.pack(b"CTRSERV\n", 1, 0, 0, b"")[:-1], r"it begins with b'CTRSERV\\n', expected"),
        (HEAD.pack(b"CTRSERX\n", 1, 0, 0, b""), r"it begins with b'CTRSERX\\n', expected b'CTRSERV\\n'"),
    ):
        (tmp_path / "s").write_bytes(head)
        with pytest.raises((DataError, SourceError), match=says):
            read_server(tmp_path / "s")
        assert is_server(tmp_path / "s") == (b"CTRSERV" in head)
    assert not is_server(tmp_path / "none")


# ---- keys without a row


def told_of(misses: Misses, file: cb.tables.VectorFile) -> str:
    with pytest.raises(DataError) as told:
        misses.check(file)
    return str(told.value)


def test_a_training_that_finds_no_key_is_told_how_the_keys_differ(tmp_path: Path) -> None:
    file, misses = data(tmp_path), Misses()
    misses.check(file)  # nothing was asked for
    misses.reads = "The field reads text. "
    misses.add(np.array([0, 70, 80]), np.array([-1, -1, -1]), file)
    misses.add(np.array([0]), np.array([-1]), file)
    assert (misses.asked, misses.lost, misses.batches, misses.example, misses.share) == (2, 2, 1, 70, 1.0)
    told = told_of(misses, file)
    assert told.startswith(
        f"none of the 2 keys in the first 1 batches has a row in {file.path}, which holds 40 keys; one of them is 70, while a "
        "key of the file is 1. The field reads text. The keys in the file are small plain numbers; they were not hashed. Write"
    )
    one = cb.tables.write_vectors(tmp_path / "w", {"k": [5], "v": [[1.0]]}, key="k", vector="v")
    assert "a key of the file is 5. The field reads text. A key is the hash of a value together" in told_of(misses, one)
    misses.add(np.array([1]), np.array([0]), file)
    misses.check(file)
    assert (Misses().share, misses.share) == (0.0, 2 / 3)
    rank = Misses()  # one rank of several: the others may have found some
    rank.alone = False
    for _ in range(BATCHES):
        rank.add(np.array([99]), np.array([-1]), file)
    assert told_of(rank, file).startswith("none of the 20 keys in the first 20 batches has a row")


def test_counts_of_ranks_are_added_up() -> None:
    found = Misses.added_up([(5, 2, 3, 0), (7, 4, 2, 9), (1, 1, 1, 8)])
    assert (found.asked, found.lost, found.batches, found.example) == (13, 7, 3, 9)
