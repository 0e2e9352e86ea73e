"""Each part against the plain formula, in loops."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.errors import PlanError
from ctrbox.models import (
    CIN,
    MLP,
    CrossMixture,
    CrossNetwork,
    DenseInput,
    Dice,
    FirstOrder,
    InnerProducts,
    LocalActivation,
    LowRankCross,
    OuterProducts,
    PairSum,
    dense_columns,
)
from ctrbox.models import cin as cin_file
from ctrbox.models.deep_crossing import Residual
from ctrbox.models.dense_columns import checked_logs, logs_of
from ctrbox.models.mlp import Dropout, linear
from ctrbox.models.products import dots

SHAPES = st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(1, 4))  # rows, fields, dim


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(got: torch.Tensor, expected: object) -> None:
    wanted = torch.as_tensor(np.asarray(expected, dtype=np.float32))
    torch.testing.assert_close(got.detach().float(), wanted.reshape(got.shape), rtol=1e-4, atol=1e-5)


def same_gradients(fast: torch.Tensor, slow: torch.Tensor, of: list[torch.Tensor]) -> None:
    weights = drawn(*fast.shape, seed=9)
    got = torch.autograd.grad((fast * weights).sum(), of)
    wanted = torch.autograd.grad((slow * weights).sum(), of)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(0, 3))
def test_pair_sum_is_the_sum_over_all_pairs_of_features(shape: tuple[int, int, int], columns: int) -> None:
    rows, fields, dim = shape
    part = PairSum(columns, dim)
    vectors, dense = drawn(*shape), drawn(rows, columns, seed=1)
    weight = part.weight.detach()
    expected = []
    for r in range(rows):
        features = [vectors[r, f] for f in range(fields)] + [dense[r, c] * weight[c] for c in range(columns)]
        total = 0.0
        for i in range(len(features)):
            for j in range(i + 1, len(features)):
                total += float(features[i] @ features[j])
        expected.append(total)
    close(part(vectors, dense), expected)


def test_a_dense_column_counts_in_pairs_as_a_feature_of_any_size() -> None:
    part, vectors, dense = PairSum(3, 2), drawn(4, 2, 2), drawn(4, 3, seed=1)
    torch.nn.init.normal_(part.weight)
    features = torch.cat([vectors, dense.unsqueeze(2) * part.weight.detach()], 1)
    pairs = [(features[:, i] * features[:, j]).sum(1) for i, j in itertools.combinations(range(5), 2)]
    close(part(vectors, dense), sum(pairs))


@pytest.mark.parametrize("shape", [(40, 6), (8, 5, 6), (240,)])
def test_dropout_scales_what_it_leaves_of_a_tensor_of_any_shape(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    part, x = Dropout(0.25), drawn(*shape)
    found = part(x)
    kept = found != 0
    assert 0.5 < float(kept.float().mean()) < 0.95
    torch.testing.assert_close(found, torch.where(kept, x / 0.75, 0.0))
    assert part.eval()(x) is x
    assert Dropout(0.0)(x) is x


@settings(max_examples=25, deadline=None)
@given(SHAPES)
def test_inner_products_are_those_of_all_pairs_in_order(shape: tuple[int, int, int]) -> None:
    rows, fields, _ = shape
    vectors = drawn(*shape)
    expected = [
        [float(vectors[r, i] @ vectors[r, j]) for i in range(fields) for j in range(i + 1, fields)] for r in range(rows)
    ]
    part = InnerProducts(fields)
    assert part.width == fields * (fields - 1) // 2
    close(part(vectors), np.reshape(np.asarray(expected, np.float32), (rows, part.width)))


@settings(max_examples=25, deadline=None)
@given(SHAPES)
def test_outer_products_add_up_over_all_pairs_of_fields(shape: tuple[int, int, int]) -> None:
    rows, fields, dim = shape
    vectors = drawn(*shape)
    expected = np.zeros((rows, dim, dim), np.float32)
    for r in range(rows):
        for i in range(fields):
            for j in range(fields):
                expected[r] += np.outer(vectors[r, i], vectors[r, j])
    close(OuterProducts(dim)(vectors), expected)


def test_dots_have_the_gradients_of_the_plain_product() -> None:
    left, right = drawn(3, 4, 2).requires_grad_(), drawn(3, 5, 2, seed=1).requires_grad_()
    plain = (left.unsqueeze(2) * right.unsqueeze(1)).sum(3)
    torch.testing.assert_close(dots(left, right), plain)
    same_gradients(dots(left, right), plain, [left, right])
    same_gradients(dots(left, left), (left.unsqueeze(2) * left.unsqueeze(1)).sum(3), [left])


def slow_cin(part: CIN, vectors: torch.Tensor) -> torch.Tensor:
    rows, fields, dim = vectors.shape
    out = []
    here = vectors
    for k, (weight, maps) in enumerate(zip(part.weights, part.maps, strict=True)):
        pairs = (
            [(i, j) for i in range(fields) for j in range(i, fields)]
            if k == 0
            else [(i, j) for i in range(here.shape[1]) for j in range(fields)]
        )
        layer = []
        for h in range(maps):
            total = torch.zeros(rows, dim)
            for at, (i, j) in enumerate(pairs):
                total = total + weight[h, at] * here[:, i] * vectors[:, j]
            layer.append(total)
        here = torch.stack(layer, 1)
        out.append(here.sum(2))
    return torch.cat(out, 1)


@settings(max_examples=20, deadline=None)
@given(SHAPES, st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 3))
def test_cin_is_the_formula_of_the_paper(shape: tuple[int, int, int], maps: list[int], piece: int) -> None:
    part = CIN(shape[1], maps)
    vectors = drawn(*shape).requires_grad_()
    before, cin_file.PIECE = cin_file.PIECE, piece
    try:
        fast = part(vectors)
        slow = slow_cin(part, vectors)
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(part(vectors), slow.detach(), rtol=1e-4, atol=1e-5)
        if shape[0]:
            same_gradients(fast, slow, [vectors, *part.weights])
    finally:
        cin_file.PIECE = before


def test_a_residual_unit_adds_its_maps_to_its_input() -> None:
    part, x = Residual(3, 5, dropout=0.0, batch_norm=False), drawn(4, 3)
    first, second = part.maps.layers
    torch.nn.init.normal_(second.weight)
    inside = torch.relu(x @ first.weight + first.bias)
    torch.testing.assert_close(part(x), torch.relu(x + inside @ second.weight + second.bias))


def test_cross_network_is_the_formula_of_the_paper() -> None:
    part, x0 = CrossNetwork(5, 3), drawn(4, 5)
    x = x0.clone()
    for layer in part.layers:
        torch.nn.init.normal_(layer.bias)
        x = torch.stack([x0[r] * (x[r] @ layer.weight + layer.bias) + x[r] for r in range(4)])
    torch.testing.assert_close(part(x0), x)


def test_low_rank_cross_is_the_formula_of_the_paper() -> None:
    part, x0 = LowRankCross(5, 3, 2), drawn(4, 5)
    x = x0.clone()
    for down, up in zip(part.down, part.up, strict=True):
        torch.nn.init.normal_(up.bias)
        x = torch.stack([x0[r] * (x[r] @ down.weight @ up.weight + up.bias) + x[r] for r in range(4)])
    torch.testing.assert_close(part(x0), x)


@pytest.mark.parametrize("layers", [1, 3])
def test_low_rank_cross_in_bfloat16_has_the_gradients_of_its_formula(layers: int) -> None:
    part = LowRankCross(24, layers, 8)
    for up in part.up:
        torch.nn.init.normal_(up.bias, std=0.1)
    found = []
    for kind in (torch.float32, torch.bfloat16):
        x0 = drawn(40, 24).to(torch.bfloat16).to(kind).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
            out = part(x0)
        assert out.dtype == kind
        part.zero_grad()
        (out.float() * drawn(40, 24, seed=1)).sum().backward()
        found.append([out, x0.grad, *(p.grad for p in part.parameters())])
    for exact, rounded in zip(*found, strict=True):
        assert rounded.dtype in (torch.bfloat16, torch.float32)
        torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.02 * float(exact.detach().abs().max()))


@pytest.mark.parametrize("layers", [1, 2])
def test_the_gradient_that_comes_into_a_low_rank_cross_stays_as_it_is(layers: int) -> None:
    part, x0 = LowRankCross(6, layers, 2), drawn(5, 6).to(torch.bfloat16).requires_grad_()
    given = drawn(5, 6, seed=1).to(torch.bfloat16)
    before = given.clone()
    with torch.autocast("cpu", torch.bfloat16):
        part(x0).backward(given)
    assert torch.equal(given, before)


def test_a_map_adds_its_bias_to_each_row_of_any_tensor() -> None:
    layer = linear(3, 2)
    torch.nn.init.normal_(layer.bias)  # type: ignore[arg-type]
    x = drawn(4, 5, 3)
    expected = (x.unsqueeze(3) * layer.weight).sum(2) + layer.bias
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x[0]), expected[0])
    assert linear(3, 2, bias=False)(x).shape == expected.shape


@pytest.mark.parametrize("experts", [1, 3])
def test_cross_mixture_is_the_formula_of_the_paper(experts: int) -> None:
    rank = 2
    part, x0 = CrossMixture(5, 2, rank, experts), drawn(4, 5)
    x = x0.clone()
    for k in range(2):
        torch.nn.init.normal_(part.up[k].bias)
        rows = []
        for r in range(4):
            gates = torch.softmax(part.gate[k](x[r]), 0) if experts > 1 else torch.ones(1)
            total = torch.zeros(5)
            for e in range(experts):
                of = slice(e * rank, (e + 1) * rank)
                low = torch.tanh(part.turn[k][e] @ torch.tanh(x[r] @ part.down[k].weight[:, of]))
                total = total + gates[e] * (x0[r] * (low @ part.up[k].weight[of] + part.up[k].bias))
            rows.append(total + x[r])
        x = torch.stack(rows)
    torch.testing.assert_close(part(x0), x)


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("kind", ["dice", "prelu"])
def test_attention_weighs_each_item_against_the_target(softmax: bool, kind: str) -> None:
    rows, longest, dim = 5, 4, 3
    part = LocalActivation(dim, (6, 2), kind=kind, softmax=softmax).eval()
    torch.nn.init.normal_(part.of_target.bias)
    target, history, lengths = drawn(rows, dim), drawn(rows, longest, dim, seed=1), torch.tensor([0, 1, 4, 2, 0])
    expected = torch.zeros(rows, dim)
    for r in range(rows):
        scores = []
        for i in range(int(lengths[r])):
            q, k = target[r], history[r, i]
            unit = part.of_target(q) + part.of_item(k) + part.of_product(q * k)
            scores.append(float(part.score(part.between(unit.unsqueeze(0))).detach()))
        if softmax and scores:
            scores = [math.exp(s) / sum(math.exp(t) for t in scores) for s in scores]
        for i, score in enumerate(scores):
            expected[r] += score * history[r, i]
    close(part(target, history, lengths), expected)


def test_padding_does_not_shift_the_statistics_of_dice() -> None:
    torch.manual_seed(0)
    one = LocalActivation(3, (6,))
    two = LocalActivation(3, (6,))
    two.load_state_dict(one.state_dict())
    target, history, lengths = drawn(5, 3), drawn(5, 2, 3, seed=1), torch.tensor([0, 1, 2, 2, 0])
    wide = torch.cat([history, torch.zeros(5, 7, 3)], 1)
    torch.testing.assert_close(one(target, history, lengths), two(target, wide, lengths))
    torch.testing.assert_close(one.state_dict(), two.state_dict())


def test_dice_is_the_formula_of_the_paper() -> None:
    part, x = Dice(2), drawn(6, 2)
    torch.nn.init.constant_(part.alpha, 0.3)
    got = part(x).detach()
    for column in range(2):
        values = [float(v) for v in x[:, column]]
        mean = sum(values) / 6
        variance = sum((v - mean) ** 2 for v in values) / 6
        for r, v in enumerate(values):
            p = 1 / (1 + math.exp(-(v - mean) / math.sqrt(variance + 1e-8)))
            assert float(got[r, column]) == pytest.approx(p * v + (1 - p) * 0.3 * v, abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 4), st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_a_tower_reads_parts_as_if_they_were_side_by_side(rows: int, widths: list[int]) -> None:
    if not sum(widths):
        widths = [*widths, 1]
    parts = [drawn(rows, width, seed=k).requires_grad_() for k, width in enumerate(widths)]
    tower = MLP(sum(widths), (4, 2))
    whole = tower(torch.cat(parts, 1))
    torch.testing.assert_close(tower(*parts), whole)
    first, second = tower.layers
    expected = [
        torch.relu(row @ first.weight + first.bias) @ second.weight + second.bias for row in torch.cat(parts, 1)
    ]
    close(whole, torch.stack(expected).detach() if rows else np.zeros((0, 2)))
    if rows:
        same_gradients(tower(*parts), whole, [*(p for p in parts if p.numel()), *tower.parameters()])


def test_a_tower_given_too_few_columns_says_so() -> None:
    with pytest.raises(PlanError, match="7 inputs, but got 5 numbers per row"):
        MLP(7, (2, 1))(torch.zeros(3, 4), torch.zeros(3, 1))


@pytest.mark.parametrize("widths", [(), (0,), (4, -1), (2.5,), "ab", (True,)])
def test_a_tower_of_no_width_is_refused(widths: object) -> None:
    with pytest.raises(PlanError):
        MLP(3, widths)  # type: ignore[arg-type]


@pytest.mark.parametrize("dropout", [1.0, -0.1, "much"])
def test_a_dropout_outside_0_to_1_is_refused(dropout: object) -> None:
    with pytest.raises(PlanError, match="dropout"):
        MLP(3, (2, 1), dropout=dropout)  # type: ignore[arg-type]


COLUMNS = st.lists(st.floats(-1e9, 1e9, width=32), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(COLUMNS, st.lists(st.integers(0, 40), max_size=4))
def test_dense_columns_are_standardized_over_all_rows_seen(values: list[float], cuts: list[int]) -> None:
    part = DenseInput(1)
    column = torch.tensor(values).unsqueeze(1)
    edges = [0, *sorted(min(c, len(values)) for c in cuts), len(values)]
    for a, b in itertools.pairwise(edges):
        part(column[a:b])
    logs = [math.copysign(math.log1p(abs(v)), v) for v in values]
    mean = math.fsum(logs) / len(logs)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in logs) / len(logs))
    assert float(part.mean) == pytest.approx(mean, rel=1e-5, abs=1e-5)
    assert math.sqrt(float(part.spread) / len(values)) == pytest.approx(deviation, rel=1e-4, abs=1e-5)
    got = part.eval()(column)
    assert torch.isfinite(got).all()
    if deviation > 1e-3 * (1 + abs(mean)):
        wanted = [min(10.0, max(-10.0, (v - mean) / deviation)) for v in logs]
        torch.testing.assert_close(got.squeeze(1), torch.tensor(wanted), rtol=1e-2, atol=1e-2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=70), st.sampled_from([1, 3]))
def test_logs_of_dense_columns_are_exact_to_the_last_place(values: list[float], threads: int) -> None:
    column = np.array(values, np.float32)
    found, finite = checked_logs(column, threads)
    assert finite == bool(np.isfinite(column).all())
    exact = np.copysign(np.log1p(np.abs(column.astype(np.float64))), column)
    known = ~np.isnan(column)
    np.testing.assert_array_max_ulp(found[known], exact[known].astype(np.float32), 1)
    assert np.array_equal(np.isnan(found), ~known)
    assert np.array_equal(np.signbit(found[known]), np.signbit(column[known]))
    twin = torch.copysign(torch.log1p(torch.from_numpy(column).abs()), torch.from_numpy(column))
    torch.testing.assert_close(logs_of(torch.from_numpy(column)), twin, equal_nan=True, rtol=3e-7, atol=1e-37)


def test_logs_are_the_same_bits_for_any_number_of_threads_and_keep_a_gradient() -> None:
    column = np.random.default_rng(0).normal(0, 1e4, 200_001).astype(np.float32)
    assert checked_logs(column)[0].tobytes() == checked_logs(column, 5)[0].tobytes()
    asked = torch.tensor([3.0, -1.0], requires_grad=True)
    logs_of(asked).sum().backward()
    torch.testing.assert_close(asked.grad, torch.tensor([0.25, 0.5]))


def test_only_plain_floats_in_memory_that_nobody_records_are_computed_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def native(column: Any, threads: int = 1) -> Any:
        called.append(column.shape)
        return checked_logs(column, threads)

    monkeypatch.setattr(dense_columns, "checked_logs", native)
    plain = torch.tensor([[3.0, -1.0]])
    expected = torch.tensor([[math.log(4), -math.log(2)]])
    torch.testing.assert_close(logs_of(plain), expected)
    torch.testing.assert_close(logs_of(plain.expand(2, 2)), expected.expand(2, 2))
    assert called == [(1, 2), (2, 2)]
    for other in (plain.double(), plain.as_subclass(torch.nn.Parameter), plain.clone().requires_grad_()):
        torch.testing.assert_close(logs_of(other).float(), expected, check_dtype=False)
    assert len(called) == 2


def test_a_traced_dense_input_computes_logs_of_what_it_is_given_later() -> None:
    part = DenseInput(1)
    part(torch.tensor([[1.0], [2.0], [3.0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(part.eval(), torch.tensor([[5.0]]))
    torch.testing.assert_close(traced(torch.tensor([[2.5]])), part(torch.tensor([[2.5]])))


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e9, 3e38, 1e-30])
def test_a_constant_dense_column_becomes_nothing(value: float) -> None:
    part = DenseInput(1)
    column = torch.full((1000, 1), value)
    for _ in range(3):
        assert part(column).abs().max() < 1e-3
    assert part.eval()(column[:1]).abs().max() < 1e-3
    assert torch.isfinite(part(torch.tensor([[1e9], [-1e9], [0.0]]))).all()


def test_a_rare_huge_value_in_a_dense_column_stays_within_reach() -> None:
    part, column = DenseInput(1), torch.zeros(100_000, 1)
    column[500] = 1e9
    got = part(column)
    assert got.abs().max() == 10.0
    assert got[0].abs() < 0.1


def test_workers_add_up_their_moments_and_none_of_no_rows() -> None:
    alone, part, asked = DenseInput(2), DenseInput(2), []

    def sums(values: Any) -> list[float]:
        asked.append(len(values))
        return [2 * value for value in values]  # of another worker with the same rows

    part.sums = sums
    rows = drawn(6, 2) * 100
    part(rows)
    alone(torch.cat([rows, rows]))
    torch.testing.assert_close(part.state_dict(), alone.state_dict(), rtol=1e-5, atol=1e-6)
    part.learn_none()  # nor has the other one any
    torch.testing.assert_close(part.state_dict(), alone.state_dict(), rtol=1e-5, atol=1e-6)
    assert asked == [5, 5]
    none = DenseInput(0)
    none.sums = sums
    none.learn_none()
    assert asked == [5, 5]
    part.sums = lambda values: [6.0, *(6 * float(v) for v in alone.mean), *(6 * float(v) ** 2 for v in alone.mean)]
    spread = part.spread.clone()
    part.learn_none()  # rows at the mean move nothing
    torch.testing.assert_close(part.spread, spread, rtol=1e-5, atol=1e-4)
    assert float(part.seen) == 18


def test_evaluation_leaves_the_statistics_alone() -> None:
    part = DenseInput(2)
    part(drawn(50, 2))
    before = {name: value.clone() for name, value in part.state_dict().items()}
    part.eval()(drawn(50, 2, seed=1) * 1e6)
    torch.testing.assert_close(part.state_dict(), before, rtol=0, atol=0)


def test_an_untrained_dense_input_gives_finite_numbers() -> None:
    assert torch.isfinite(DenseInput(2).eval()(drawn(5, 2) * 1e9)).all()


def test_first_order_adds_up_weights_and_dense_columns() -> None:
    part = FirstOrder(2)
    torch.nn.init.normal_(part.weight)
    linear, dense = drawn(3, 4), drawn(3, 2, seed=1)
    expected = [
        sum(float(v) for v in linear[r]) + sum(float(dense[r, c] * part.weight.detach()[c]) for c in range(2))
        for r in range(3)
    ]
    close(part(linear, dense), expected)


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("kind", ["dice", "prelu", "relu"])
def test_attention_over_padded_items_is_that_over_real_ones(kind: str, softmax: bool) -> None:
    torch.manual_seed(0)
    unit = LocalActivation(3, (5, 4), kind=kind, softmax=softmax).eval()
    target, lengths = torch.randn(6, 3), torch.tensor([0, 1, 4, 2, 0, 3])
    history = torch.randn(6, 4, 3) * (torch.arange(4) < lengths[:, None]).unsqueeze(2)
    with torch.no_grad():
        assert torch.allclose(unit.padded(target, history, lengths), unit(target, history, lengths), atol=1e-6)
