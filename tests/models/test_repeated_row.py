"""A row that stands for all gives what the repeated rows give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox import _native
from ctrbox.models.aggregators import AGGREGATORS, aggregator, one_behavior
from ctrbox.models.attention import LocalActivation
from ctrbox.models.mlp import MLP
from ctrbox.models.repeated_row import stands_for_all


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-5 * scale, rtol=1e-5)


def jolted(module: torch.nn.Module) -> torch.nn.Module:
    """Other weights than the first ones, slopes beyond 1 and below 0 among them."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight))
    return module.eval()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9),
    length=st.integers(0, 7),
    padding=st.integers(0, 2),
    kind=st.sampled_from(AGGREGATORS),
    dim=st.sampled_from([4, 12, 17]),
    other=st.sampled_from([4, 6]),
    hidden=st.sampled_from([(5,), (16,), (36,), (5, 3)]),
    seed=st.integers(0, 99),
)
@torch.inference_mode()
def test_aggregators(
    rows: int, length: int, padding: int, kind: str, dim: int, other: int, hidden: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    made = jolted(aggregator(kind, dim, [dim, other], longest=5, attention=hidden))
    items = torch.zeros(1, max(1, length + padding), dim)
    items[:, :length] = torch.randn(1, length, dim)
    if length > 3:
        items[:, 1], items[:, 2] = items[:, 0], 0.0  # one again, and one without a vector
    lengths = torch.tensor([length])
    queries = [torch.randn(rows, 3, dim)[:, 1], torch.randn(rows, other)][: 2 if kind == "multi_query" else 1]
    once = items.expand(rows, -1, -1), lengths.expand(rows)
    whole = made(items.repeat(rows, 1, 1), lengths.repeat(rows), *queries)
    assert close(made(*once, *queries), whole)
    ahead = one_behavior(made, items[0, :length])
    assert (ahead is None) == (kind not in ("attentive", "multi_query") or length == 0 or len(hidden) > 1)
    if ahead is not None:
        assert close(ahead(queries), whole)


@pytest.mark.parametrize("kind", ["dice", "prelu"])
@pytest.mark.parametrize("softmax", [False, True])
@torch.inference_mode()
def test_local_activation(kind: str, softmax: bool) -> None:
    torch.manual_seed(1)
    unit = jolted(LocalActivation(4, (6, 3), kind=kind, softmax=softmax))
    items, target = torch.randn(1, 5, 4), torch.randn(8, 4)
    items[:, 3:] = 0.0
    lengths = torch.tensor([3])
    once = unit(target, items.expand(8, -1, -1), lengths.expand(8))
    assert close(once, unit(target, items.repeat(8, 1, 1), lengths.repeat(8)))


@settings(max_examples=40, deadline=None)
@given(shared=st.lists(st.booleans(), min_size=1, max_size=5), rows=st.integers(1, 6), bias=st.booleans())
@torch.inference_mode()
def test_towers(shared: list[bool], rows: int, bias: bool) -> None:
    widths = [(7 * k) % 4 for k in range(1, len(shared) + 1)]
    if not sum(widths):
        return
    made = jolted(MLP(sum(widths), (5, 1) if bias else (1,), bias=bias))
    parts = [torch.randn(1 if one else rows, w).expand(rows, -1) for one, w in zip(shared, widths, strict=True)]
    assert close(made(*parts), made(*(p.contiguous() for p in parts)))
    assert stands_for_all(torch.randn(1, 2).expand(3, -1))
    assert not stands_for_all(torch.randn(3, 2))


def test_where_nothing_is_worked_out_ahead() -> None:
    items = torch.randn(3, 4)
    with torch.inference_mode():
        assert one_behavior(aggregator("attentive", 4, [4], attention=(4097,)).eval(), items) is None
        assert one_behavior(aggregator("attentive", 4, [4]).eval().double(), items) is None
        assert one_behavior(aggregator("attentive", 4, [4]), items) is None  # it trains
        assert one_behavior(aggregator("attentive", 4, [4]).eval(), items) is not None
    assert one_behavior(aggregator("attentive", 4, [4]).eval(), items) is None  # gradients
    with pytest.raises(ValueError, match="a unit is None"):
        _native.attend([None], [items.numpy()])  # type: ignore[list-item]


def test_targets_that_native_code_cannot_read_are_refused() -> None:
    parts = [np.zeros(shape, np.float32) for shape in ((3, 4, 2), (3, 2), (2,), (2,), (3, 4))]
    unit = _native.HistoryAttention(*parts, 0.0)
    wide = np.zeros((5, 8), np.float32)
    assert _native.attend([unit], [wide[:, :4]]).shape == (5, 4)
    with pytest.raises(ValueError, match="targets must be contiguous in memory"):
        _native.attend([unit], [wide[:, ::2]])
    with pytest.raises(ValueError, match=r"targets are \(5, 8\); expected \(5, 4\)"):
        _native.attend([unit], [wide])
    for index, shape in ((1, (2, 2)), (1, (3, 1)), (2, (1,)), (3, (1,)), (4, (2, 4)), (4, (3, 3))):
        other = [*parts]
        other[index] = np.zeros(shape, np.float32)
        with pytest.raises(ValueError, match="the other parts do not fit them"):
            _native.HistoryAttention(*other, 0.0)
    for shape in ((3, 0, 2), (3, 4, 0)):
        with pytest.raises(ValueError, match="a dim and a width of at least 1"):
            _native.HistoryAttention(np.zeros(shape, np.float32), *parts[1:], 0.0)


def test_an_attention_is_as_large_as_its_limits_and_no_larger() -> None:
    def made(items: int, dim: int, width: int) -> _native.HistoryAttention:
        shapes = ((items, dim, width), (items, width), (width,), (width,), (items, dim))
        return _native.HistoryAttention(*(np.zeros(shape, np.float32) for shape in shapes), 0.0)

    for shape in ((1 << 20, 1, 1), (1, 4096, 1), (1, 1, 4096)):
        assert made(*shape).nbytes > 0
    for shape in (((1 << 20) + 1, 1, 1), (1, 4097, 1), (1, 1, 4097)):
        with pytest.raises(ValueError, match=r"at most 2\^20 items, and vectors and units of at most 4,096 floats"):
            made(*shape)
