"""Models of several labels, and their loss compared with plain NumPy."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ctrbox.columns.batch import Schema
from ctrbox.columns.label_task import Task
from ctrbox.errors import DataError, PlanError
from ctrbox.models import ESMM, TASK_MODELS, MMoE, Objective, build
from ctrbox.models.esmm import EntireSpace
from ctrbox.models.loss_of_several_labels import objective_of, stacked
from tests.models.worlds import inputs, schema

CLICK, CONVERT = Task("click", "binary"), Task("convert", "binary")
VALUE, VISITS = Task("value", "regression"), Task("visits", "count")
NONE = np.nan


def several(*tasks: Task) -> Schema:
    return replace(schema(), label=False, tasks=tasks or (CLICK, CONVERT, VALUE, VISITS))


def loss_in_numpy(
    tasks: list[Task], outputs: Any, labels: Any, weights: list[float], sample: Any = None, esmm: bool = False
) -> float:
    """The loss of all tasks, row by row; of ESMM the tasks are click, convert and others."""
    total = 0.0
    sigmoid = lambda z: 1 / (1 + np.exp(-z))
    for r in range(len(outputs)):
        for k, task in enumerate(tasks):
            z, y = float(outputs[r][k]), float(labels[r][k])
            p = sigmoid(z)
            if esmm and k == 1:
                clicked, p = labels[r][0], sigmoid(outputs[r][0]) * p
                if np.isnan(clicked) or (clicked == 1 and np.isnan(y)):
                    continue
                y = 1.0 if clicked == 1 and y == 1 else 0.0
            if np.isnan(y):
                continue
            if task.kind == "binary":
                lost = -np.log(p if y == 1 else 1 - p)
            else:
                lost = (z - y) ** 2 / 2 if task.kind == "regression" else np.exp(z) - y * z
            total += weights[k] * lost * (1.0 if sample is None else sample[r])
    return float(total / len(outputs))


def loss_of(objective: Objective, outputs: Any, labels: Any, sample: Any = None) -> float:
    y = torch.tensor(labels, dtype=torch.float64)
    weight = None if sample is None else torch.tensor(sample, dtype=torch.float64)
    return float(objective(torch.tensor(outputs, dtype=torch.float64), y, ~y.isnan(), weight))


logits = st.floats(-6, 6)
bits = st.sampled_from([0.0, 1.0, NONE])
rows_of = st.lists(
    st.tuples(
        st.tuples(logits, logits, logits, st.floats(-3, 3)),
        st.tuples(bits, bits, st.floats(-9, 9) | st.just(NONE), st.sampled_from([0.0, 1.0, 4.0, NONE])),
        st.floats(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(rows_of, st.lists(st.floats(0.1, 3), min_size=4, max_size=4))
def test_the_loss_of_several_labels_equals_numpy(rows: list[Any], weights: list[float]) -> None:
    outputs, labels, sample = (list(column) for column in zip(*rows, strict=True))
    of = several()
    objective = Objective(of, dict(zip((t.name for t in of.tasks), weights, strict=True))).double()
    weights = objective.given.tolist()
    assert loss_of(objective, outputs, labels) == pytest.approx(loss_in_numpy([*of.tasks], outputs, labels, weights))
    with_sample = loss_in_numpy([*of.tasks], outputs, labels, weights, sample)
    assert loss_of(objective, outputs, labels, sample) == pytest.approx(with_sample)


@settings(max_examples=60, deadline=None)
@given(rows_of)
def test_the_loss_of_esmm_equals_numpy(rows: list[Any]) -> None:
    outputs = [row[0] for row in rows]
    # A row that was not clicked cannot have a conversion by a click.
    labels = [(c, NONE if c == 0 and v == 1 else v, *rest) for c, v, *rest in (row[1] for row in rows)]
    of = several()
    expected = loss_in_numpy([*of.tasks], outputs, labels, [1.0] * 4, esmm=True)
    assert loss_of(EntireSpace(of), outputs, labels) == pytest.approx(expected)


def test_esmm_by_hand_counts_impressions_without_a_click_and_not_unknown_conversions() -> None:
    of = several(CLICK, CONVERT)
    # p(click) = p(convert | click) = 1/2: each click costs log 2; no product costs log(4/3), a product log 4.
    outputs = [[0.0, 0.0]] * 4
    labels = [[0.0, NONE], [1.0, NONE], [1.0, 0.0], [1.0, 1.0]]
    expected = (4 * np.log(2) + 2 * np.log(4 / 3) + np.log(4)) / 4
    assert loss_of(EntireSpace(of), outputs, labels) == pytest.approx(expected)


def test_the_loss_of_esmm_is_finite_for_extreme_logits() -> None:
    of = several(CLICK, CONVERT)
    outputs = torch.tensor([[90.0, 90.0], [-90.0, -90.0], [90.0, -90.0], [-90.0, 90.0]], requires_grad=True)
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, NONE], [1.0, 0.0]])
    loss = EntireSpace(of)(outputs, labels, ~labels.isnan())
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(outputs.grad).all()  # type: ignore[arg-type]


def test_esmm_refuses_a_conversion_without_a_click() -> None:
    with pytest.raises(DataError, match="a conversion, but no click"):
        loss_of(EntireSpace(several(CLICK, CONVERT)), [[0.0, 0.0]], [[0.0, 1.0]])


def test_conversions_that_are_0_without_a_click_are_warned_of_once_and_have_the_loss_of_null() -> None:
    loss = EntireSpace(several(CLICK, CONVERT))
    outputs = [[0.3, -0.2], [0.5, 1.0]]
    with pytest.warns(
        UserWarning, match=r"'convert' is 0 and not null in rows without a click.* null where 'click' is 0"
    ):
        found = loss_of(loss, outputs, [[0.0, 0.0], [1.0, 1.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loss_of(loss, outputs, [[0.0, 0.0], [1.0, 1.0]]) == found
        nulls = EntireSpace(several(CLICK, CONVERT))
        assert loss_of(nulls, outputs, [[0.0, NONE], [1.0, 1.0]]) == found
        loss_of(nulls, outputs, [[NONE, 0.0], [1.0, 0.0]])  # whether there was a click is not known


def test_learned_weights_cost_half_their_logarithm_and_get_gradients() -> None:
    objective = Objective(several(CLICK, VALUE), "learned").double()
    assert objective.log_variances is not None
    with torch.no_grad():
        objective.log_variances.copy_(torch.tensor([0.5, -1.0]))
    outputs = torch.tensor([[0.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    labels = torch.tensor([[1.0, NONE], [0.0, 5.0]], dtype=torch.float64)
    loss = objective(outputs, labels, ~labels.isnan())
    expected = (2 * (np.exp(-0.5) * np.log(2) + 0.25) + np.exp(1.0) * 4.5 - 0.5) / 2
    assert float(loss) == pytest.approx(expected)
    loss.backward()
    assert (objective.log_variances.grad != 0).all()
    assert objective.weights() == pytest.approx({"click": np.exp(-0.5), "value": np.exp(1.0)})


@pytest.mark.parametrize("name", TASK_MODELS)
def test_a_model_returns_one_output_a_label_and_is_built_again_from_its_config(name: str) -> None:
    of = several()
    torch.manual_seed(3)
    model = TASK_MODELS[name](of, 4, weights={"convert": 2.0}, dropout=0.1, batch_norm=True)
    x = inputs(model.reads, 5)  # type: ignore[arg-type]
    found = stacked(model(x), of.tasks, 5, name)
    assert found.shape == (5, 4)
    found.square().sum().backward()
    read = [part.vectors for part in x.pooled]
    assert all(v.grad is not None and v.grad.abs().sum() > 0 for v in read)
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []
    again = build(name, of, model.config)  # type: ignore[arg-type]
    again.load_state_dict(model.state_dict())
    model.eval()
    again.eval()
    with torch.no_grad():
        one, other = (stacked(m(x), of.tasks, 5, name) for m in (model, again))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: MMoE(schema()), "MMoE predicts several labels, but this plan names none"),
        (lambda: MMoE(several(), weights="learn"), "or 'learned', got 'learn'"),
        (lambda: MMoE(several(), weights={"clik": 1.0}), "'clik', which is not a label of this plan.*click"),
        (lambda: MMoE(several(), weights={"click": -1.0}), "the weight of 'click' must be a number from 0"),
        (lambda: Objective(several(CLICK), {"click": 0.0}), "nothing would be learned"),
        (lambda: MMoE(several(), experts=0), "experts"),
        (lambda: ESMM(several(CLICK, VALUE)), "ESMM needs a label 'convert'"),
        (lambda: ESMM(several(), convert="value"), "ESMM needs a binary label 'value'"),
        (lambda: ESMM(several(), convert="click"), "both are 'click'"),
        (lambda: stacked(torch.zeros(2), (CLICK,), 2, "Mine"), "expected a dict with one tensor"),
        (lambda: stacked({"clik": torch.zeros(2)}, (CLICK,), 2, "Mine"), "expected one for each of the labels"),
        (lambda: stacked({"click": torch.zeros(3)}, (CLICK,), 2, "Mine"), r"output 'click' of Mine is \(3,\)"),
    ],
)
def test_what_cannot_be_learned_is_refused(make: Any, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        make()


LATE = Task("convert", "binary", 30.0)
shares = st.sampled_from([0.0, 1e-6, 0.25, 0.5, float(np.nextafter(np.float32(1), np.float32(0))), 1.0])


clicks = st.sampled_from([(0.0, NONE), (1.0, 0.0), (1.0, 1.0), (1.0, NONE)])  # clicked, converted


def late_loss_in_numpy(logit: np.ndarray, label: np.ndarray, share: np.ndarray) -> float:
    """The mean loss of a label that arrives late, from its definition, in float64."""
    p = 1 / (1 + np.exp(-logit))
    each = np.where(label == 1, -np.log(p), -np.log(1 - p * share))
    return float(np.where(np.isnan(label) | (share == 0), 0.0, each).sum() / len(label))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(logits, bits, shares), min_size=1, max_size=12))
def test_the_loss_of_a_late_label_and_its_gradient_equal_numpy(rows: list[Any]) -> None:
    logit, label, share = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    outputs = torch.tensor(logit[:, None], requires_grad=True)
    y = torch.tensor(label[:, None])
    loss = Objective(several(LATE)).double()(outputs, y, ~y.isnan(), None, {"convert": torch.tensor(share)})
    assert float(loss.detach()) == pytest.approx(late_loss_in_numpy(logit, label, share), abs=1e-9)
    loss.backward()
    assert outputs.grad is not None
    for row in range(len(rows)):
        step = np.zeros(len(rows))
        step[row] = 1e-6
        rise = late_loss_in_numpy(logit + step, label, share) - late_loss_in_numpy(logit - step, label, share)
        assert float(outputs.grad[row, 0]) == pytest.approx(rise / 2e-6, abs=1e-5)


def test_the_loss_of_a_late_label_is_finite_for_extreme_logits_and_least_at_the_truth() -> None:
    outputs = torch.tensor([[200.0], [-200.0], [200.0], [-200.0]], requires_grad=True)
    y, share = torch.tensor([[0.0], [0.0], [1.0], [1.0]]), torch.tensor([0.5, 0.5, 1.0, 1.0])
    objective = Objective(several(LATE))
    loss = objective(outputs, y, y >= 0, None, {"convert": share})
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(outputs.grad).all()  # type: ignore[arg-type]
    # Of rows of any age, p · F have the label 1: the expected loss is least at p.
    p, ages = 0.3, np.array([0.1, 0.4, 1.0])
    at = np.linspace(0.05, 0.6, 111)
    expected = [np.mean([p * f * -np.log(q) - (1 - p * f) * np.log(1 - q * f) for f in ages]) for q in at]
    assert at[int(np.argmin(expected))] == pytest.approx(p, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(logits, logits, st.sampled_from([(0.0, NONE), (1.0, 0.0), (1.0, 1.0), (1.0, NONE)]), shares),
        min_size=1,
        max_size=12,
    )
)
def test_the_loss_of_esmm_with_late_conversions_equals_numpy(rows: list[Any]) -> None:
    a, b, share = (np.array([row[k] for row in rows]) for k in (0, 1, 3))
    click, convert = (np.array([row[2][k] for row in rows]) for k in (0, 1))
    pa_, pb = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(-b))
    first = -np.log(np.where(click == 1, pa_, 1 - pa_))
    second = np.where(convert == 1, -np.log(pa_ * pb), -np.log(1 - pa_ * pb * share))
    counts = ((click == 0) | ~np.isnan(convert)) & (share > 0)
    expected = (first.sum() + second[counts].sum()) / len(rows)
    y = torch.tensor(np.stack([click, convert], 1))
    loss = EntireSpace(several(CLICK, LATE)).double()(
        torch.tensor(np.stack([a, b], 1)), y, ~y.isnan(), None, {"convert": torch.tensor(share)}
    )
    assert float(loss) == pytest.approx(expected, abs=1e-9)


def test_esmm_with_late_conversions_needs_the_age_of_every_impression() -> None:
    y = torch.tensor([[0.0, NONE]])
    with pytest.raises(DataError, match="elapsed= of label 'convert' is null or negative in a row without a click"):
        EntireSpace(several(CLICK, LATE))(torch.zeros(1, 2), y, ~y.isnan(), None, {"convert": torch.tensor([NONE])})
    with pytest.raises(PlanError, match="the label 'click' of ESMM cannot arrive late"):
        EntireSpace(several(Task("click", "binary", 3.0), CONVERT))


def test_an_objective_that_cannot_be_told_of_late_conversions_is_refused() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.objective = nn.Linear(1, 1)

    with pytest.raises(
        PlanError, match="conversions of label 'convert' arrive late, but the objective of Mine is a Linear"
    ):
        objective_of(Mine(), several(LATE))


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        ({"click": torch.zeros(2), "convert": torch.zeros(2)}, ""),
        (
            [torch.zeros(2)] * 2,
            "Mine returned a list, but this plan has several labels; expected a dict with one tensor for each of ['click', "
            "'convert'], as cb.models.MMoE returns it",
        ),
        (
            {"click": torch.zeros(2), "convert": torch.zeros(2), "more": torch.zeros(2)},
            "Mine returned the outputs ['click', 'convert', 'more']; expected one for each of the labels ['click', 'convert']",
        ),
        (
            {"click": torch.zeros(2)},
            "Mine returned the outputs ['click']; expected one for each of the labels ['click', 'convert']",
        ),
        (
            {"click": [0.0, 0.0], "convert": torch.zeros(2)},
            "output 'click' of Mine is a list; expected a tensor with one float per row, (2,)",
        ),
        (
            {"click": torch.zeros(2, dtype=torch.int64), "convert": torch.zeros(2)},
            "output 'click' of Mine is (2,) of torch.int64; expected a tensor with one float per row, (2,)",
        ),
        (
            {"click": torch.zeros(2), "convert": torch.zeros(2, 1)},
            "output 'convert' of Mine is (2, 1) of torch.float32; expected a tensor with one float per row, (2,)",
        ),
    ],
)
def test_outputs_of_a_model_are_one_float_for_each_row_and_label(outputs: Any, told: str) -> None:
    if not told:
        assert stacked(outputs, (CLICK, CONVERT), 2, "Mine").shape == (2, 2)
        return
    with pytest.raises(PlanError) as met:
        stacked(outputs, (CLICK, CONVERT), 2, "Mine")
    assert str(met.value) == told


def test_an_objective_is_the_models_or_weighs_all_labels_alike() -> None:
    of, mine = several(CLICK, VALUE), nn.Module()
    assert objective_of(mine, of).weights() == {"click": 1.0, "value": 1.0}  # type: ignore[operator]
    mine.objective = nn.Linear(1, 1)
    assert objective_of(mine, of) is mine.objective  # nothing arrives late
    mine.objective = Objective(several(LATE), {"convert": 2.0})
    assert objective_of(mine, several(LATE)) is mine.objective
    for weights in (5, ["click"]):
        with pytest.raises(PlanError, match=r"^weights must be a dict from tasks to numbers, or 'learned', got "):
            Objective(of, weights)  # type: ignore[arg-type]
    assert Objective(of, {"click": 0}).weights() == {"click": 0.0, "value": 1.0}
    assert Objective(of, "learned").weights() == {"click": 1.0, "value": 1.0}
    with pytest.raises(PlanError, match=r"^a model needs a schema, such as plan\.schema, got a str$"):
        Objective("schema")  # type: ignore[arg-type]


def test_esmm_finds_its_labels_wherever_they_are() -> None:
    outputs, labels = [[0.5, 1.0, -0.25]], {"click": 1.0, "convert": 0.0, "value": 2.0}
    expected = loss_of(EntireSpace(several(CLICK, CONVERT, VALUE)), outputs, [list(labels.values())])
    for names in (("value", "convert", "click"), ("convert", "click", "value"), ("click", "value", "convert")):
        tasks = {task.name: task for task in (CLICK, CONVERT, VALUE)}
        of = several(*(tasks[name] for name in names))
        moved = [outputs[0][list(labels).index(name)] for name in names]
        assert loss_of(EntireSpace(of), [moved], [[labels[name] for name in names]]) == pytest.approx(expected)


def test_a_late_label_counts_beside_others_wherever_it_is() -> None:
    y = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    outputs, share = torch.tensor([[0.5, 1.0, -0.25], [0.25, 2.0, 0.5]], dtype=torch.float64), torch.tensor([0.0, 0.5])
    for order in ((0, 1, 2), (1, 0, 2), (0, 2, 1)):
        of = several(*((CLICK, LATE, VALUE)[k] for k in order))
        _, counts = Objective(of).each(outputs[:, order], y[:, order], y[:, order] >= 0, {"convert": share})
        assert counts[:, [order.index(k) for k in range(3)]].tolist() == [[True, False, True], [True, True, True]]
