"""Pooling against plain loops to the bit, and its gradient against torch's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox import _native
from ctrbox.columns.batch import Batch
from ctrbox.embed.embedder import Row
from ctrbox.embed.pooling import KINDS, pool, sequence
from ctrbox.embed.unique_keys import Lookup
from ctrbox.errors import PlanError
from tests.embed.test_unique_keys import batch_of, batches
from tests.twins import unique_keys as twin

SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e38, -1e38, 1e-45, 1.0, 1.0], np.float32)


def numbers(random: np.random.Generator, shape: Sequence[int], wild: bool) -> np.ndarray:
    plain = random.standard_normal(shape).astype(np.float32)
    if not wild:
        return plain
    return np.where(random.random(shape) < 0.4, random.choice(SPECIAL, shape), plain).astype(np.float32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit; any NaN equals any NaN."""
    either = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and bool(np.all(either | (a.view(np.int32) == b.view(np.int32))))


def joined(weights: torch.Tensor | None, vectors: torch.Tensor) -> np.ndarray:
    parts = [vectors] if weights is None else [weights.unsqueeze(2), vectors]
    return torch.cat(parts, 2).detach().numpy()


small = st.integers(0, 4)  # few keys: rows repeat them, fields share them


@settings(max_examples=150, deadline=None)
@given(
    batches(small),
    st.sampled_from([0, 1, 3, 4, 8, 16, 32]),
    st.booleans(),
    st.integers(1, 3),
    st.booleans(),
    st.data(),
)
def test_pooling_and_its_gradient_equal_the_plain_loop(
    batch: Batch, dim: int, linear: bool, threads: int, wild: bool, data: st.DataObject
) -> None:
    names = [f.name for f in batch.schema.sparse]
    picked = data.draw(st.permutations(names))[: data.draw(st.integers(0, len(names)))]
    kinds = [data.draw(st.sampled_from(KINDS)) for _ in picked]
    used = data.draw(st.sampled_from(["both", "vectors", "weights"] if linear else ["both"]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    found, row = Lookup.of(batch, names, threads), Row(dim, linear)
    slow = twin.lookup(batch, names)
    order = [names.index(name) for name in picked]
    lists = [slow.lists[k] for k in order]
    rows = numbers(random, (len(found), row.width), wild)
    with np.errstate(all="ignore"):
        expected = twin.pool(rows, lists, kinds)
    given_rows = torch.from_numpy(rows.copy()).requires_grad_()
    weights, vectors = pool(given_rows, found, row, kinds, threads, picked)
    assert (weights is None) == (not linear)
    assert vectors.shape == (batch.rows, len(picked), dim)
    if picked:
        assert same(joined(weights, vectors), expected)

    gradient = numbers(random, (batch.rows, len(picked), row.width), wild)
    if used != "both":
        gradient[:, :, slice(1) if used == "vectors" else slice(1, None)] = 0
    outputs = [(vectors, gradient[:, :, int(linear) :])] if used != "weights" else []
    if weights is not None and used != "vectors":
        outputs.append((weights, gradient[:, :, 0]))
    torch.autograd.backward([o for o, _ in outputs], [torch.from_numpy(np.ascontiguousarray(g)) for _, g in outputs])
    assert given_rows.grad is not None
    with np.errstate(all="ignore"):
        back = twin.pool_gradient(rows, lists, kinds, gradient)
    assert same(given_rows.grad.numpy(), back)


@settings(max_examples=150, deadline=None)
@given(
    batches(small),
    st.sampled_from([1, 4, 5]),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from([None, 1, 2, 20]),
    st.data(),
)
def test_sequences_and_their_gradient_equal_the_plain_loop(
    batch: Batch, dim: int, linear: bool, threads: int, longest: int | None, data: st.DataObject
) -> None:
    names = [f.name for f in batch.schema.sparse]
    if not names:
        return
    name = data.draw(st.sampled_from(names))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    found, row = Lookup.of(batch, names), Row(dim, linear)
    lists = twin.lookup(batch, names).lists[names.index(name)]
    rows = numbers(random, (len(found), row.width), True)
    given_rows = torch.from_numpy(rows.copy()).requires_grad_()
    vectors, lengths = sequence(given_rows, found, row, name, longest, threads)
    expected, counts = twin.sequence(rows[:, int(linear) :], lists, longest)
    assert same(vectors.detach().numpy(), expected)
    assert lengths.dtype == torch.int64
    assert lengths.tolist() == counts
    gradient = numbers(random, vectors.shape, True)
    vectors.backward(torch.from_numpy(gradient))
    assert given_rows.grad is not None
    back = np.zeros_like(rows)
    with np.errstate(all="ignore"):
        back[:, int(linear) :] = twin.sequence_gradient(rows[:, int(linear) :], lists, longest, gradient)
    assert same(given_rows.grad.numpy(), back)

    by_hand, again = sequence(torch.from_numpy(rows), replace(found, native=None), row, name, longest)
    assert same(by_hand.numpy(), expected)
    assert again.tolist() == counts


def many(seed: int) -> tuple[Batch, list[str]]:
    """A batch of many chunks and tasks: one key per row, lists, hot keys, rare keys, a space that two fields share."""
    random = np.random.default_rng(seed)
    rows = 5_000

    def lists(distinct: int) -> list[list[int]]:
        return [random.integers(0, distinct, n).tolist() for n in random.integers(0, 9, rows)]

    shared = lists(400)
    batch = batch_of(
        {
            "hot": random.integers(0, 3, rows).tolist(),
            "rare": random.integers(0, 10**12, rows).tolist(),
            "a": shared,
            "b": shared[::-1],
            "c": lists(10**6),
        }
    )
    return batch, ["hot", "rare", "a", "b", "c"]


@pytest.mark.parametrize("dim", [5, 16])
@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_bits(dim: int) -> None:
    batch, names = many(dim)
    random = np.random.default_rng(1)
    row = Row(dim, True)
    kinds = ["sum", "mean", "max", "mean", "sum"]
    found = Lookup.of(batch, names)
    rows = numbers(random, (len(found), row.width), False)
    gradient = torch.from_numpy(numbers(random, (batch.rows, 5, dim), False))
    results = []
    for threads in (1, 2, 3):
        given_rows = torch.from_numpy(rows).requires_grad_()
        weights, vectors = pool(given_rows, Lookup.of(batch, names, threads), row, kinds, threads)
        assert weights is not None
        history, _ = sequence(given_rows, found, row, "c", 4, threads)
        alone = torch.autograd.grad(history.square().sum(), given_rows)[0]
        torch.autograd.backward([weights, vectors], [gradient[:, :, 0].contiguous(), gradient])
        assert given_rows.grad is not None
        results.append([joined(weights, vectors), given_rows.grad.numpy().copy(), alone.numpy()])
    slow = twin.lookup(batch, names)
    assert same(results[0][0], twin.pool(rows, slow.lists, kinds))
    both = torch.cat([gradient[:, :, :1], gradient], 2).numpy()
    assert same(results[0][1], twin.pool_gradient(rows, slow.lists, kinds, both))
    for other in results[1:]:
        assert all(same(x, y) for x, y in zip(results[0], other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_agrees_with_torch_on_the_plain_way(kind: str) -> None:
    batch, names = many(3)
    row = Row(8, True)
    found = Lookup.of(batch, names)
    rows = torch.randn(len(found), row.width, generator=torch.Generator().manual_seed(0))
    answers = []
    for lookup in (found, replace(found, native=None)):
        given_rows = rows.clone().requires_grad_()
        weights, vectors = pool(given_rows, lookup, row, [kind] * 5)
        assert weights is not None
        (weights.tanh().sum() + (vectors * vectors).sum()).backward()
        assert given_rows.grad is not None
        answers.append((joined(weights, vectors), given_rows.grad.numpy()))
    for fast, plain in zip(*answers, strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-4, atol=1e-4)


def test_a_maximum_gives_its_gradient_to_the_first_of_equals_and_to_nan_first() -> None:
    batch = batch_of({"a": [[3, 1, 3, 2], [2, 1], [], [1, 4, 5]]})
    found = Lookup.of(batch, ["a"])
    value = {1: 5.0, 2: 5.0, 3: 5.0, 4: np.nan, 5: np.nan}
    rows = torch.tensor([[value[key]] for key in found.keys.tolist()], requires_grad=True)
    for lookup in (found, replace(found, native=None)):
        rows.grad = None
        _, vectors = pool(rows, lookup, Row(1), ["max"])
        vectors.sum(0).backward(torch.ones(1, 1))
        assert rows.grad is not None
        got = dict(zip(found.keys.tolist(), rows.grad[:, 0].tolist(), strict=True))
        assert got == {1: 0.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 0.0}
        assert vectors[:3, 0, 0].tolist() == [5.0, 5.0, 0.0]
        assert vectors[3].isnan().all()


def test_one_row_of_100_000_keys_is_summed_in_order() -> None:
    row = np.random.default_rng(0).integers(0, 50, 100_000).tolist()
    batch = batch_of({"a": [[], row]})
    found = Lookup.of(batch, ["a"])
    rows = numbers(np.random.default_rng(1), (len(found), 4), False)
    given_rows = torch.from_numpy(rows.copy()).requires_grad_()
    _, vectors = pool(given_rows, found, Row(4), ["mean"], 2)
    assert same(vectors.detach().numpy(), twin.pool(rows, twin.lookup(batch, ["a"]).lists, ["mean"]))
    vectors.sum().backward()
    assert given_rows.grad is not None
    assert given_rows.grad.sum().item() == pytest.approx(4.0, rel=1e-4)


def test_evaluation_leaves_no_graph_behind() -> None:
    batch = batch_of({"a": [1, 2]})
    found = Lookup.of(batch, ["a"])
    _, vectors = pool(torch.zeros(2, 3), found, Row(3), ["sum"])
    assert not vectors.requires_grad


def test_what_does_not_fit_is_refused() -> None:
    found = Lookup.of(batch_of({"query": [1, 2], "b": [3, 4]}), ["query", "b"])
    rows = torch.zeros(4, 3)
    with pytest.raises(PlanError, match="'qury' is not a field of this lookup; nearest: 'query'"):
        pool(rows, found, Row(3), ["sum"], fields=["qury"])
    with pytest.raises(PlanError, match="1 kinds of pooling were given for 2 fields"):
        pool(rows, found, Row(3), ["sum"])
    with pytest.raises(PlanError, match="pooling must be one of sum, mean, max, got 'avg'"):
        pool(rows, found, Row(3), ["sum", "avg"])
    with pytest.raises(PlanError, match="each field may be pooled only once"):
        pool(rows, found, Row(3), ["sum", "sum"], fields=["b", "b"])
    with pytest.raises(
        PlanError, match=r"rows have shape \(4, 3\) and type torch.float32; this lookup needs shape \(4, 4\)"
    ):
        pool(rows, found, Row(3, True), ["sum", "sum"])
    with pytest.raises(PlanError, match="float64"):
        sequence(rows.double(), found, Row(3), "b")
    with pytest.raises(PlanError, match="longest= must be at least 1 key, got 0"):
        sequence(rows, found, Row(3), "b", 0)


def test_native_pooling_refuses_arrays_that_do_not_fit() -> None:
    native = Lookup.of(batch_of({"a": [1, 2], "b": [[3], []]}), ["a", "b"]).native
    assert isinstance(native, _native.Lookup)
    rows, none = np.zeros((3, 4), np.float32), np.zeros((2, 0, 4), np.int32)
    with pytest.raises(ValueError, match="rows are"):
        native.pool(rows[:2], False, [(0, 0)], 1)
    with pytest.raises(ValueError, match="must exist"):
        native.pool(rows, False, [(2, 0)], 1)
    with pytest.raises(ValueError, match="kind"):
        native.pool(rows, False, [(0, 3)], 1)
    with pytest.raises(ValueError, match="first-order weight"):
        native.pool(rows[:, :0], True, [(0, 0)], 1)
    with pytest.raises(ValueError, match="gradients of vectors"):
        native.pool_gradient(None, np.zeros((2, 1, 3), np.float32), none, 4, False, [(0, 0)], 1)
    with pytest.raises(ValueError, match="gradients of weights"):
        native.pool_gradient(np.zeros((2, 3), np.float32), None, none, 4, False, [(0, 0)], 1)
    with pytest.raises(ValueError, match="winners"):
        native.pool_gradient(None, np.zeros((2, 1, 4), np.float32), none, 4, False, [(0, 2)], 1)
    with pytest.raises(ValueError, match="there is no field"):
        native.sequence(rows, False, 2, 1, 1)
    with pytest.raises(ValueError, match="gradients of vectors"):
        native.sequence_gradient(np.zeros((3, 1, 4), np.float32), False, 0, 1)
