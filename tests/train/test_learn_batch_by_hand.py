"""One step of a learner in numbers: the first bias, loss, tables, dense weights, workers; and which models run natively."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.gpu.batch_to_device import References, Told
from ctrbox.embed.gpu.pooling import Reading
from ctrbox.errors import PlanError, TrainError
from ctrbox.models.inputs import Reads
from ctrbox.models.mlp import Dropout
from ctrbox.optimizers.of_dense_weights import dense_optimizer
from ctrbox.predict.nan_in_batch import HUGE, culprit
from ctrbox.predict.native_forward import MOST_LAYERS
from ctrbox.train import learn_batch as learner_module
from ctrbox.train.cuda_graph import Fed
from ctrbox.train.learn_batch import Learner

USERS, ADS, CLICKS, WEIGHTS = [1, 1, 2, 3], [7, 8, 7, 7], [1, 0, 0, 0], [1.0, 3.0, 0.5, 2.0]


def planned(weighted: bool = False, **columns: Any) -> cb.Plan:
    rows = pa.table({"id": range(4), "user": USERS, "ad": ADS, "y": CLICKS, "w": WEIGHTS, "x": [0.5] * 4, **columns})
    sparse = {"user": col("user").as_key(), "ad": col("ad").as_key()}
    features = cb.FeatureSet(
        label=col("y"), weight=col("w") if weighted else None, sparse=sparse, dense={"x": col("x")}
    )
    return cb.compile(cb.View(rows, key="id"), features, threads=1)


class Sum(nn.Module):
    """The sum of the numbers of a row's keys, and a bias."""

    def __init__(self, schema: cb.types.Schema, bias: float = 0.0) -> None:
        super().__init__()
        self.reads = Reads(schema, 1)
        self.bias = nn.Parameter(torch.full((1,), bias))

    def forward(self, x: Any) -> torch.Tensor:
        return x.flat.sum(1) + self.bias


def made(plan: cb.Plan, bias: float = 0.0, table: Any = None, **options: Any) -> Learner:
    table = cb.MemoryTable(1, optimizer=cb.optim.SGD(lr=0.5), init=0.0) if table is None else table
    return Learner(Sum(plan.schema, bias), plan.schema, table, dense_optimizer(cb.optim.SGD(lr=0.25)), **options)


def rows_of(learner: Learner) -> dict[int, float]:
    keys, values, _ = learner.embedders[0].export()  # type: ignore[attr-defined]
    return dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))


def _bias(learner: Learner) -> float:
    return float(learner.model.bias.detach())  # type: ignore[operator, union-attr, arg-type]


def only_batch(plan: cb.Plan) -> cb.Batch:
    (batch,) = plan.batches(4)
    return batch


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_step_moves_tables_by_the_sum_and_dense_weights_by_the_mean(weighted: bool, factor: float) -> None:
    plan = planned(weighted)
    learner = made(plan)
    loss = learner.learn(learner.look(only_batch(plan)), factor)
    bias = math.log(1.5 / 3.5)  # one click of four rows, half a row added to each side
    p = 1 / (1 + math.exp(-bias))
    weight = WEIGHTS if weighted else [1.0] * 4
    off = [w * (p - y) for w, y in zip(weight, CLICKS, strict=True)]
    assert loss == pytest.approx(sum(w * -math.log(p if y else 1 - p) for w, y in zip(weight, CLICKS, strict=True)) / 4)
    keys = only_batch(plan).sparse
    expected: dict[int, float] = {}
    for name in ("user", "ad"):
        for key, error in zip(keys[name].values.tolist(), off, strict=True):
            expected[key] = expected.get(key, 0.0) - 0.5 * factor * error
    assert rows_of(learner) == pytest.approx(expected, rel=1e-5)
    assert _bias(learner) == pytest.approx(bias - 0.25 * factor * sum(off) / 4, rel=1e-5)  # type: ignore[arg-type]


def test_a_bias_that_was_set_is_where_the_model_starts() -> None:
    plan = planned()
    learner = made(plan, bias=2.0)
    assert learner.learn(learner.look(only_batch(plan))) == pytest.approx(
        (3 * math.log(1 + math.exp(2)) + math.log(1 + math.exp(-2))) / 4
    )
    again = made(plan)
    again.begun = True
    assert again.learn(again.look(only_batch(plan))) == pytest.approx(math.log(2))


@pytest.mark.parametrize(("clip", "norm"), [(None, 0.05), (0.02, 0.02), (0.1, 0.05)])
def test_clipping_bounds_the_step_of_dense_weights(clip: float | None, norm: float) -> None:
    plan = planned()
    learner = made(plan, bias=math.log(0.3 / 0.7), clip=clip)
    before = _bias(learner)  # type: ignore[arg-type]
    learner.learn(learner.look(only_batch(plan)))
    assert before - _bias(learner) == pytest.approx(0.25 * norm, rel=1e-3)  # type: ignore[arg-type]


def test_predictions_are_shifted_back_to_the_log_before_downsampling() -> None:
    plan = planned()
    learner = made(plan, bias=1.0, keep=0.5)
    assert learner.shift == math.log(0.5)
    p = learner.predict(only_batch(plan))
    assert p.tolist() == pytest.approx([1 / (1 + 2 * math.exp(-1))] * 4)
    assert learner.score(learner.look(only_batch(plan))).tolist() == pytest.approx([1 - math.log(2)] * 4)
    assert len(learner.embedders[0]) == 0 or rows_of(learner)  # look may create rows, predict does not
    bare = made(plan, bias=1.0)
    bare.predict(only_batch(plan))
    assert len(bare.embedders[0]) == 0


def test_rare_keys_are_held_most_by_adaptive_regularization() -> None:
    plan = planned()
    counting = cb.MemoryTable(1, optimizer=cb.optim.SGD(lr=1.0), init=0.5, counters=cb.tables.Counters())
    learner = made(plan, table=counting, adaptive_l2=0.25)
    plain = made(plan, table=cb.MemoryTable(1, optimizer=cb.optim.SGD(lr=1.0), init=0.5))
    before = dict(zip(*_pulled(plain, only_batch(plan)), strict=True))
    for one in (learner, plain):
        one.learn(one.look(only_batch(plan)))
    met = {key: count for name in ("user", "ad") for key, count in _counts(only_batch(plan), name).items()}
    moved = {key: rows_of(learner)[key] - rows_of(plain)[key] for key in met}
    assert moved == pytest.approx({key: -0.25 * before[key] / count for key, count in met.items()}, rel=1e-3)


def _pulled(learner: Learner, batch: cb.Batch) -> tuple[list[int], list[float]]:
    keys = sorted({*batch.sparse["user"].values.tolist(), *batch.sparse["ad"].values.tolist()})
    found = learner.embedders[0].pull(np.array(keys), create=False)
    return keys, found[:, 0].tolist()


def _counts(batch: cb.Batch, name: str) -> dict[int, int]:
    keys, counts = np.unique(batch.sparse[name].values, return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


class WithTwin:
    """Two workers of which the other has the same rows as this one: every sum is twice this worker's."""

    part, of = 0, 2

    def __init__(self) -> None:
        self.scales: list[float] = []

    def sums(self, values: Sequence[float]) -> list[float]:
        return [2.0 * v for v in values]

    def add_up(self, weights: Sequence[torch.Tensor], scale: float) -> None:
        self.scales.append(scale)
        for weight in weights:
            assert weight.grad is not None
            weight.grad *= 2 * scale

    def leave(self) -> None: ...


def test_a_worker_counts_by_its_share_of_the_rows() -> None:
    plan, together = planned(), WithTwin()
    learner, alone = made(plan, together=together), made(plan)
    rows, loss, told = learner.learn_part(learner.look(only_batch(plan)), 1.0, (5.0, 7.0))
    assert (rows, told) == (8, [10.0, 14.0])
    # Two clicks of eight rows and half a row to each side.
    assert loss == pytest.approx(_loss(math.log(2.5 / 6.5)))
    assert together.scales == [0.5]
    alone.begun = True
    with torch.no_grad():
        alone.model.bias.fill_(math.log(2.5 / 6.5))  # type: ignore[operator, union-attr]
    assert alone.learn(alone.look(only_batch(plan))) == pytest.approx(loss)
    assert _bias(learner) == pytest.approx(_bias(alone))  # type: ignore[arg-type]
    assert rows_of(learner) == pytest.approx(rows_of(alone))


def _loss(logit: float) -> float:
    return (3 * math.log(1 + math.exp(logit)) + math.log(1 + math.exp(-logit))) / 4


# ---- numbers that are none


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.inf, "batch 3: dense feature 'x' is inf in row 2 of the batch; in the plan, clip it"),
        (
            math.nan,
            r"batch 3: dense feature 'x' is nan in row 2 of the batch; in the plan, replace it with cb.when\(x.is",
        ),
    ],
)
def test_a_dense_value_that_is_no_number_is_named(value: float, message: str) -> None:
    plan = planned(x=[0.5, 0.5, value, math.inf])
    learner = made(plan)
    with pytest.raises(TrainError, match=message):
        learner.look(only_batch(plan), 3)


@pytest.mark.parametrize(("size", "named"), [(0.9 * HUGE, False), (1.1 * HUGE, True), (math.nan, True)])
def test_a_key_is_named_beyond_the_limit(size: float, named: bool) -> None:
    plan = planned()
    learner = made(plan)
    batch = only_batch(plan)
    looked = learner.look(batch, 3)
    pulled = learner._pull(looked, train=True)
    key = int(batch.sparse["ad"].values[1])
    place = looked.lookups[0].keys.tolist().index(key)  # type: ignore[union-attr]
    with torch.no_grad():
        pulled[0][place] = size  # type: ignore[index]
    found = str(culprit(learner, looked, pulled, math.inf))
    if named:
        shown = "inf" if math.isnan(size) else f"{size:.3g}"
        assert found.startswith(f"batch 3: a value of key {key} of field 'ad' has grown to {shown}")
    else:
        assert found == "batch 3: the loss is inf; lower the learning rate, or limit the gradients with clip=1.0"
        pulled[0].grad = torch.zeros_like(pulled[0])  # type: ignore[arg-type, union-attr]
        pulled[0].grad[place] = 2 * HUGE  # type: ignore[index, union-attr]
        assert f"a gradient of key {key} of field 'ad' has grown to 2e+06" in str(
            culprit(learner, looked, pulled, math.inf)
        )


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("weight", [1.0, math.nan, math.inf, 1.0], "batch 3: the sample weight is nan in row 1 of the batch"),
        ("label", [1.0, 0.0, math.inf, 1.0], "batch 3: the label is inf in row 2 of the batch"),
        (
            "weight",
            [1.0, 1.0, 1.0, 1.0],
            "batch 3: the loss is nan; lower the learning rate, or limit the gradients with clip=1.0",
        ),
    ],
)
def test_a_label_or_weight_that_is_no_number_is_named(name: str, values: list[float], message: str) -> None:
    plan = planned(weighted=True)
    learner = made(plan)
    looked = learner.look(replace(only_batch(plan), **{name: np.array(values, np.float32)}), 3)
    assert str(culprit(learner, looked, (), math.nan)) == message


def test_a_weight_of_the_model_that_is_no_number_is_named() -> None:
    plan = planned()
    learner = made(plan, bias=math.nan)
    with pytest.raises(TrainError, match="batch 0: weight 'bias' of the model is not finite"):
        learner.learn(learner.look(only_batch(plan)))
    with pytest.raises(TrainError, match="batch 0: weight 'bias' of the model is not finite"):
        learner.predict(only_batch(plan))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x, bias: x.flat.sum(1).long(), "Other returned a tensor of torch.int64; expected logits"),
        (lambda x, bias: [0.0], "Other returned a list; expected logits"),
        (lambda x, bias: x.flat.sum(1).detach(), "the logits of Other have no gradient"),
        (lambda x, bias: x.flat + bias, r"Other returned logits of shape \(4, 2\); expected one per row, \(4,\)"),
        (lambda x, bias: (x.flat.sum(1) + bias)[:3], r"Other returned logits of shape \(3,\)"),
    ],
)
def test_what_is_no_logit_of_each_row_is_refused(answer: Any, message: str) -> None:
    class Other(Sum):
        def forward(self, x: Any) -> torch.Tensor:
            found: torch.Tensor = answer(x, self.bias)
            return found

    plan = planned()
    learner = Learner(Other(plan.schema), plan.schema, cb.MemoryTable(1))
    with pytest.raises(PlanError, match=message):
        learner.learn(learner.look(only_batch(plan)))


def test_products_in_bfloat16_give_float32_logits() -> None:
    plan = planned()
    learner = made(plan, bias=1.0, bf16=True)
    assert learner.score(learner.look(only_batch(plan))).dtype == np.float32


# ---- which models run natively


def native(model: nn.Module, plan: cb.Plan, table: Any = None) -> bool:
    table = cb.MemoryTable(model.reads.dim) if table is None else table  # type: ignore[union-attr]
    return Learner(model, plan.schema, table).native is not None


def deep(plan: cb.Plan, *hidden: int, **more: Any) -> cb.models.EmbeddingMLP:
    return cb.models.EmbeddingMLP(plan.schema, 2, hidden=hidden, **more)


def test_towers_of_relu_and_dropout_up_to_32_layers_run_natively() -> None:
    plan = planned()
    assert native(deep(plan, 3), plan)
    assert native(deep(plan, 3, dropout=0.5), plan)
    assert native(deep(plan, *[2] * (MOST_LAYERS - 1)), plan)
    assert not native(deep(plan, *[2] * MOST_LAYERS), plan)
    assert native(cb.models.WideDeep(plan.schema, 2, hidden=(3,)), plan)
    assert not native(deep(plan, 3).double(), plan)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([nn.ReLU()], True),
        ([nn.ReLU(), Dropout(0.5)], True),
        ([nn.ReLU(), Dropout(0.5), Dropout(0.5)], False),
        ([nn.ReLU(), nn.ReLU()], False),
        ([Dropout(0.5), nn.ReLU()], False),
        ([nn.Tanh()], False),
        ([], False),
    ],
)
def test_a_part_that_was_replaced_leaves_the_model_to_torch(parts: list[nn.Module], expected: bool) -> None:
    plan = planned()
    model = deep(plan, 3)
    model.tower.between[0] = nn.Sequential(*parts)
    assert native(model, plan) == expected


def test_weights_that_do_not_lie_in_one_piece_leave_the_model_to_torch() -> None:
    plan = planned()
    model = deep(plan, 3, 3)
    assert native(model, plan)
    model.tower.layers[1].weight.data = torch.zeros(3, 3).t()
    assert not native(model, plan)


@pytest.mark.parametrize("wide", [None, ["ad"]])
def test_first_order_weights_are_those_of_the_wide_fields(wide: list[str] | None) -> None:
    plan, found = planned(), []
    for natively in (True, False):
        torch.manual_seed(1)
        model = cb.models.WideDeep(plan.schema, 2, wide=wide, hidden=(3,))
        table = cb.MemoryTable(2, optimizer=cb.optim.SGD(lr=0.5), init=0.5)
        learner = Learner(model, plan.schema, table, dense_optimizer(cb.optim.SGD(lr=0.25)))
        assert learner.native is not None
        if not natively:
            learner.native = None
        losses = [learner.learn(learner.look(only_batch(plan))) for _ in range(2)]
        found.append([*losses, *np.sort(table.export()[1].ravel()).tolist()])
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=1e-6)


# ---- a device whose losses come later


class Late(Told):
    """A loss that is on its way, as that of a GPU."""

    def __init__(self, number: torch.Tensor) -> None:
        super().__init__(number)
        self.here, self.known = float(number.detach()), False

    def value(self) -> float:
        return self.here


def test_a_step_whose_loss_is_on_its_way_returns_the_last_loss_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned()
    batch = only_batch(plan)
    plain = made(plan)
    losses = [plain.learn(plain.look(batch)) for _ in range(7)]
    assert len(set(losses)) == 7
    monkeypatch.setattr(learner_module, "Told", Late)
    late = made(plan)
    # The first loss is waited for; afterwards two steps are under way before a loss is asked for.
    assert [late.learn(late.look(batch)) for _ in range(7)] == [*losses[:1] * 4, *losses[1:4]]
    assert len(late.untold) == 3
    late.settle()
    assert not late.untold
    assert rows_of(late) == rows_of(plain)


def test_a_loss_that_comes_later_and_is_no_number_is_refused_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "Told", Late)
    plan = planned()
    late = made(plan)
    late.learn(late.look(only_batch(plan)))
    with torch.no_grad():
        late.model.bias.fill_(math.inf)  # type: ignore[operator, union-attr]
    late.learn(late.look(only_batch(plan)))
    with pytest.raises(TrainError, match="not finite"):
        late.settle()


# ---- what a graph of a GPU is fed with


def fed(weighted: bool = True) -> Fed:
    first = (torch.ones(3, 2), torch.zeros(3, 4))
    return Fed(first, (None, torch.ones(3, 1)), torch.ones(3, 5), torch.ones(3), torch.ones(3) if weighted else None)


@pytest.mark.parametrize("weighted", [True, False])
def test_inputs_of_a_recorded_step_are_copied_with_gradients_of_their_own(weighted: bool) -> None:
    given = fed(weighted)
    assert given.shapes == ((3, 2), (3, 4), (3, 1), (3, 5), (3,), *([(3,)] if weighted else []))
    copied = given.copied()
    assert copied.shapes == given.shapes
    assert (copied.weights[0], copied.weight is None) == (None, not weighted)
    for mine, theirs in zip(copied.tensors, given.tensors, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()
    assert [t.requires_grad for t in copied.tensors] == [True] * 3 + [False] * (3 if weighted else 2)


def reading(*sequences: str) -> Any:
    """A stand-in for the rows that a table on a GPU has read."""
    found = Reading.__new__(Reading)
    found.vectors, found.weights, found.names = torch.ones(3, 2), torch.ones(3, 1), sequences
    return found


def test_only_steps_of_the_usual_size_whose_tables_are_on_the_gpu_are_recorded() -> None:
    learner = made(planned())
    carried = SimpleNamespace(dense=torch.ones(3, 5), label=torch.ones(3), weight=None)
    looked: Any = SimpleNamespace(batch=SimpleNamespace(rows=3), carried=carried)
    assert learner._fed(looked, [reading()]) is None  # on the CPU no size is usual
    learner.usual = 3
    first = reading()
    learner.graphed = SimpleNamespace(shapes=((3, 2), (3, 1), (3, 5), (3,)))  # type: ignore[assignment]
    found = learner._fed(looked, [first])
    assert found is not None
    assert (found.vectors, found.weights, found.dense) == ((first.vectors,), (first.weights,), carried.dense)
    assert (found.label, found.weight) == (carried.label, None)
    for pulled in ([reading("tags")], [first, torch.ones(3, 2)], [first, reading("tags")]):
        assert learner._fed(looked, pulled) is None
    for change in ({"batch": SimpleNamespace(rows=2)}, {"carried": None}):
        assert learner._fed(SimpleNamespace(**{**vars(looked), **change}), [first]) is None  # type: ignore[arg-type]
    carried.label = None
    assert learner._fed(looked, [first]) is None


def test_gradients_of_a_recorded_step_go_to_what_was_read() -> None:
    learner = made(planned())
    mine = fed().copied()
    for k, tensor in enumerate(mine.tensors[:3]):
        tensor.grad = torch.full_like(tensor, float(k))
    learner.graphed = SimpleNamespace(run=lambda given: torch.tensor(0.5), fed=mine)  # type: ignore[assignment]
    pulled = [reading(), reading()]
    for one in pulled:
        one.inbox = []
    assert float(learner._replayed(fed(), pulled)) == 0.5
    assert [[g.unique().tolist() for g in one.inbox[0]] for one in pulled] == [[[0.0]], [[2.0], [1.0]]]
    learner.usual = 3
    looked: Any = SimpleNamespace(batch=SimpleNamespace(rows=3))
    vectors, weights = learner._recorded(looked, 0)  # type: ignore[misc]
    assert (vectors.data_ptr(), weights) == (mine.vectors[0].data_ptr(), None)
    vectors, weights = learner._recorded(looked, 1)  # type: ignore[misc]
    assert weights is not None
    assert (vectors.data_ptr(), weights.data_ptr()) == (mine.vectors[1].data_ptr(), mine.weights[1].data_ptr())  # type: ignore[union-attr]
    assert not vectors.requires_grad
    looked.batch.rows = 2
    assert learner._recorded(looked, 0) is None
    learner.graphed = None
    looked.batch.rows = 3
    assert learner._recorded(looked, 0) is None


def test_a_gradient_that_a_gpu_could_not_apply_is_named_when_it_is_heard_of() -> None:
    learner = made(planned())
    learner._heard()
    bad = {"one": -1, "two": 0}

    def source(name: str, fused: bool = True) -> Any:
        return SimpleNamespace(fused=fused, full=SimpleNamespace(told=lambda: bad[name]))

    keys = References(torch.tensor([70, 80, 90]), 2, ("user", "ad"), (0, 1, 3), None, (-1, -1))
    learner.sources = [source("two", fused=False), source("one"), source("two"), source("two")]
    learner.unsettled = SimpleNamespace(number=7, lookups=[keys, keys, None, keys])  # type: ignore[assignment]
    with pytest.raises(
        TrainError, match=r"^batch 7: a gradient of key 70 of field 'user' is not finite; lower the learning"
    ):
        learner._heard()
    assert learner.unsettled is None
    bad["two"] = 2
    learner.unsettled = SimpleNamespace(number=8, lookups=[keys, keys, keys, keys])  # type: ignore[assignment]
    with pytest.raises(TrainError, match=r"^batch 8: a gradient of key 90 of field 'ad' is not finite"):
        learner._heard()
    bad["two"] = -1
    learner.unsettled = SimpleNamespace(number=9, lookups=[keys] * 4)  # type: ignore[assignment]
    learner._heard()
