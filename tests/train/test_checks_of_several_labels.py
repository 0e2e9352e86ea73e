"""Labels of several tasks: how they are counted and refused, where biases begin, and settings that do not fit them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.label_task import Task
from ctrbox.errors import DataError, PlanError, TrainError
from ctrbox.train.sampling import eventful, no_rows, thin, uniform, weights_by_label
from ctrbox.train.settings import MONITORS, Settings
from ctrbox.train.several_labels import (
    TaskLabels,
    check_settings,
    monitors,
    start_from_means,
    warn_of_young_rows,
)
from tests.train.worlds import checkerboard, plan_of

CLICK, VALUE, VISITS = Task("click", "binary"), Task("value", "regression"), Task("visits", "count")
LATE = Task("buy", "binary", 24.0)
NAN = float("nan")
ADS = cb.View(pa.table({"ad": [1], "x": [2]}), key="ad", name="ads")


def batch(weight: list[float] | None = None, **labels: list[float]) -> cb.Batch:
    """Rows with these labels, whose kinds their names tell; NaN was not observed."""
    tasks = tuple(task for task in (CLICK, VALUE, VISITS) if task.name in labels)
    rows = len(next(iter(labels.values())))
    schema = cb.types.Schema((), (), False, False, weight is not None, tasks=tasks)
    values = {name: np.array(label, np.float32) for name, label in labels.items()}
    return cb.Batch(
        schema,
        rows,
        None,
        np.zeros((rows, 0), np.float32),
        {},
        None,
        None if weight is None else np.array(weight, np.float32),
        labels=values,
        observed={name: ~np.isnan(label) for name, label in values.items()},
    )


def alone(values: Sequence[float]) -> list[float]:
    return [float(v) for v in values]


def twice(values: Sequence[float]) -> list[float]:
    """Sums over two workers that saw the same."""
    return [2.0 * v for v in values]


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    return plan_of(checkerboard(50))


# ---- labels of an epoch


def test_observed_labels_and_ones_are_counted_over_batches() -> None:
    labels = TaskLabels((CLICK, VALUE, VISITS))
    labels.add(batch(click=[1, 0, NAN], value=[0.5, NAN, NAN], visits=[3, 0, 1]), 0, "training")
    labels.add(batch([0.0, 2.0], click=[1, 1], value=[1.0, 1.0], visits=[NAN, 1]), 3, "training")
    assert labels.rows == 5
    assert labels.observed == {"click": 4, "value": 3, "visits": 4}
    assert labels.ones == {"click": 3, "value": 0, "visits": 0}
    labels.check("training")


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"click": [1, 0, 2]}, "label 'click' is 2.0 in row 1,002 of the test rows; expected 0 or 1: (col(…) > 0) turns"),
        ({"value": [1, float("inf")]}, "label 'value' is inf in row 1,001 of the test rows; expected a finite number; a"),
        ({"visits": [0.5]}, "label 'visits' is 0.5 in row 1,000 of the test rows; expected a whole number of 0 or more;"),
    ],
)  # fmt: skip
def test_a_label_that_does_not_fit_its_kind_is_named_with_its_row(labels: dict[str, list[float]], told: str) -> None:
    given = batch(**labels)
    with pytest.raises(DataError, match=re.escape(told)):
        TaskLabels(given.schema.tasks).add(given, 1000, "test")


def test_weights_of_rows_with_several_labels_are_checked() -> None:
    with pytest.raises(DataError, match=r"the sample weight is -1.0 in row 11 of the test rows"):
        TaskLabels((CLICK,)).add(batch([1.0, -1.0], click=[0, 1]), 10, "test")


@pytest.mark.parametrize(
    ("click", "told"),
    [
        ([NAN, NAN], "label 'click' is null in all 2 training rows, so a model cannot learn to predict it"),
        ([1, NAN], "label 'click' is 1 in all 1 training rows in which it was observed; a model needs"),
        ([0, 0], "label 'click' is 0 in all 2 training rows in which it was observed; a model needs"),
        ([0, 1], None),
    ],
)
def test_an_epoch_needs_rows_with_and_without_each_binary_label(
    click: list[float], told: str | None, plan: cb.Plan
) -> None:
    labels = TaskLabels((CLICK, VALUE))
    labels.add(batch(click=click, value=[0.0, 0.0]), 0, "training")
    if told is None:
        labels.end_epoch(2, plan, None, alone)
        assert (labels.rows, labels.observed, labels.ones) == (0, {"click": 0, "value": 0}, {"click": 0, "value": 0})
        return
    with pytest.raises(TrainError, match=re.escape(told)):
        labels.end_epoch(2, plan, None, alone)


def test_an_epoch_is_checked_with_the_counts_of_all_workers_and_not_after_a_resume(plan: cb.Plan) -> None:
    def ended(rows: int, sums: Any) -> None:
        labels = TaskLabels((VALUE, CLICK))
        labels.add(batch(click=[1, 1], value=[NAN, 1.0]), 0, "training")
        labels.end_epoch(rows, plan, None, sums)
        assert (labels.rows, labels.observed["click"], labels.ones["click"]) == (0, 0, 0)

    with pytest.raises(TrainError, match="label 'click' is 1 in all 4 training rows"):
        ended(4, twice)
    ended(5, twice)  # the counts lack the rows before the checkpoint
    ended(4, lambda values: [4.0, 4.0, 4.0, 2.0, 3.0])  # another worker saw a row without a click
    with pytest.raises(TrainError, match="label 'value' is null in all 4 training rows"):
        ended(4, lambda values: [4.0, 0.0, 4.0, 0.0, 3.0])
    with pytest.raises(TrainError, match="there are no training rows: the plan dropped all 50 rows"):
        ended(0, alone)


# ---- where biases begin


class Biases(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(count))


TASKS = (CLICK, VALUE, VISITS)
FIRST = {"click": [1.0, 0, 1, NAN], "value": [4.0, NAN, 1, 1], "visits": [3.0, 0, NAN, 6]}


@pytest.mark.parametrize(
    ("given", "weighted", "sums", "expected"),
    [
        (batch(**FIRST), False, alone, [np.log(2.5 / 1.5), 2.0, np.log(9.5 / 3.5)]),
        (batch(**FIRST), True, alone, [np.log(2.5 / 1.5), 2.0, np.log(9.5 / 3.5)]),  # without weights all count alike
        (batch([1, 4, 1, 2], **FIRST), False, alone, [np.log(2.5 / 1.5), 2.0, np.log(9.5 / 3.5)]),
        (batch([1, 4, 1, 2], **FIRST), True, alone, [np.log(2.5 / 4.5), 7 / 4, np.log(15.5 / 7.5)]),
        (batch(**FIRST), False, twice, [np.log(4.5 / 2.5), 2.0, np.log(18.5 / 6.5)]),
        (None, False, alone, [0.0, 0.0, 0.0]),
    ],
)
def test_biases_begin_at_the_means_of_the_first_batch_of_all_workers(
    given: cb.Batch | None, weighted: bool, sums: Any, expected: list[float]
) -> None:
    def counted(values: Sequence[float]) -> list[float]:
        assert len(values) == 6  # two numbers of each label, in every worker
        return list(sums(values))

    model = Biases(3)
    start_from_means(model, TASKS, given, counted, weighted)
    assert model.bias.detach().numpy() == pytest.approx(np.array(expected, np.float32))


def test_what_is_no_bias_of_each_label_stays() -> None:
    for other in (nn.Identity(), Biases(2)):
        start_from_means(other, TASKS, batch(**FIRST), alone)
        assert all(not p.any() for p in other.parameters())
    started = Biases(3)
    with torch.no_grad():
        started.bias[1] = 2.0
    start_from_means(started, TASKS, batch(**FIRST), alone)
    assert started.bias.tolist() == [0.0, 2.0, 0.0]


# ---- settings


def schema(*tasks: Task, group: bool = False) -> cb.types.Schema:
    return cb.types.Schema((), (), not tasks, group, False, tasks=tasks)


def test_the_best_weights_are_chosen_by_the_loss_or_a_figure_of_a_label() -> None:
    assert monitors(schema(*TASKS)) == [
        *("loss", "click.auc", "click.logloss", "value.rmse", "value.mae"),
        *("visits.deviance", "visits.rmse", "visits.mae"),
    ]
    assert monitors(schema(CLICK, group=True)) == ["loss", "click.auc", "click.gauc", "click.logloss"]


@pytest.mark.parametrize(
    ("tasks", "settings", "asked", "told"),
    [
        ((), {"monitor": "auc"}, {"time": 1}, None),
        ((), {"monitor": "loss"}, {}, f"monitor='loss' needs several labels; this plan has one, so use {', '.join(MONITORS)}"),
        (TASKS, {}, {"time": None, "explain": False}, None),
        (TASKS, {}, {"explain": 0}, "explain= is not available for several labels (labels=) yet; remove explain=, or use"),
        (TASKS, {}, {"explain": None, "by": {}}, "by= is not available for several labels (labels=) yet; remove by=, or"),
        (TASKS, {"monitor": "loss"}, {}, None),
        (TASKS, {"monitor": "value.mae"}, {}, None),
        (TASKS, {"monitor": "click.gauc"}, {}, "monitor must be one of loss, click.auc, click.logloss, value.rmse, value.mae,"),
        (TASKS, {"calibrate": "platt"}, {}, None),
        (TASKS, {"calibrate": "weights"}, {}, "calibrate='weights' adds one number to the logits of one label, but this plan"),
        ((VALUE,), {"calibrate": "platt"}, {}, "calibrate='platt' corrects probabilities, but no label of this plan is binary"),
        ((VALUE, VISITS), {"negatives": 0.5}, {}, None),
        ((VALUE, VALUE), {"negatives": 0.5}, {}, "negatives=0.5 leaves out rows without a click, but every label of"),
        ((VALUE,), {"negatives": 1.0}, {}, None),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_labels_are_refused(
    tasks: tuple[Task, ...], settings: dict[str, Any], asked: dict[str, Any], told: str | None
) -> None:
    if told is None:
        check_settings(schema(*tasks), Settings(**settings), asked)
        return
    with pytest.raises(PlanError, match=re.escape(told)):
        check_settings(schema(*tasks), Settings(**settings), asked)


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"buy.rows": 0, "buy.young_rows": 1200}, True),
        ({"buy.young_rows": 1200}, True),
        ({"buy.rows": 1, "buy.young_rows": 1200}, False),
        ({"buy.rows": 0, "buy.young_rows": 0}, False),
        ({"buy.rows": 0}, False),
        ({"click.rows": 0, "click.young_rows": 7}, False),  # its ones do not arrive late
    ],
)
def test_metrics_that_lack_old_rows_are_warned_of(metrics: dict[str, float], told: bool) -> None:
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        warn_of_young_rows(metrics, (CLICK, LATE))
    assert len(met) == told
    if told:
        assert str(met[0].message).startswith(
            "the metrics of label 'buy' are missing: all 1,200 validation rows with this label are younger than its window (24), "
            "so their labels may still change."
        )


# ---- rows of a training


def test_a_row_has_an_event_if_an_observed_label_other_than_a_regression_is_above_0() -> None:
    rows = batch(click=[0, 1, NAN, 0, 0], value=[9, 9, 9, 9, NAN], visits=[0, 0, NAN, 2, NAN])
    assert eventful(rows).tolist() == [False, True, False, True, False]
    assert not eventful(batch(value=[5.0])).any()


def test_rows_with_an_event_keep_their_weight_and_kept_others_weigh_more() -> None:
    clicks = [float(k % 4 == 0) for k in range(64)]
    whole = batch(click=clicks)
    kept = thin(whole, 0, 0.25, 1, 0)
    assert 16 < kept.rows < 48
    assert kept.weight is not None
    assert kept.weight.tolist() == [1.0 if c else 4.0 for c in kept.labels["click"]]
    heavy = thin(batch([2.0] * 64, click=clicks), 0, 0.25, 1, 0)
    assert heavy.weight is not None
    assert heavy.weight.tolist() == [2.0 * w for w in kept.weight]
    assert thin(whole, 0, 1.0, 1, 0) is whole


def test_a_row_whose_draw_is_the_share_itself_is_left_out() -> None:
    drawn = uniform(np.arange(20, dtype=np.uint64), 1, 0)
    rows, share = int((drawn < drawn[3]).sum()), float(drawn[3])
    assert 0 < rows < 19
    assert thin(batch(click=[0.0] * 20), 0, share, 1, 0).rows == rows
    label, dense = np.zeros(20, np.float32), np.zeros((20, 0), np.float32)
    one = cb.Batch(cb.types.Schema((), (), True, False, False), 20, label, dense, {}, None)
    assert thin(one, 0, share, 1, 0).rows == rows
    unlabeled = cb.Batch(cb.types.Schema((), (), False, False, False), 20, None, dense, {}, None)
    assert thin(unlabeled, 0, share, 1, 0) is unlabeled


@pytest.mark.parametrize(
    ("steps", "start", "stop", "told"),
    [
        (lambda v: v, 0, None, "there are no test rows: the plan dropped all 50 rows of 'memory'"),
        (lambda v: v, 10, 30, "there are no test rows: the plan dropped all 20 rows of 'memory'"),
        (lambda v: v, 10, 99, "there are no test rows: the plan dropped all 40 rows of 'memory'"),
        (lambda v: v, 50, None, "there are no test rows: the log 'memory' has none from row 50 on"),
        (lambda v: v, 1060, 99, "there are no test rows: the log 'memory' has none from row 1,060 on"),
        (
            lambda v: v.join(ADS, on="ad", how="inner"),
            0,
            None,
            "there are no test rows: the inner join with view 'ads' dropped all 50 rows of 'memory'",
        ),
        (
            lambda v: v.join(ADS, on="ad"),
            0,
            None,
            "there are no test rows: the plan dropped all 50 rows of 'memory'",
        ),
        (
            lambda v: v.filter(col("id") < 0),
            0,
            None,
            "there are no test rows: .filter(col('id').lt(0)) dropped all 50 rows of 'memory'. A plan keeps its filters when it "
            "runs over other data; to train and validate on values of a column such as 'split', divide the data before cb.View "
            "(docs/training.md, 'Data with a split column')",
        ),
    ],
)
def test_what_dropped_all_rows_is_named(steps: Any, start: int, stop: int | None, told: str) -> None:
    view = steps(cb.View(checkerboard(50), key="id"))
    plan = cb.compile(view, cb.FeatureSet(label=col("clicked"), sparse={"user": col("user")}), threads=1)
    assert no_rows("test", plan, start, stop) == told


def test_the_weights_of_each_label_are_read_from_the_training_rows() -> None:
    log = pa.table({"clicked": [0, 1, 0, 1, 1, 0], "w": [1.0, 3.0, 2.0, 5.0, 4.0, 99.0]})
    features = cb.FeatureSet(label=col("clicked"), weight=col("w"), sparse={"w": col("w").bucketize([2.0])})
    plan = cb.compile(cb.View(log), features, threads=1)
    assert weights_by_label(plan, 5) == {0: (1.0, 2.0), 1: (3.0, 5.0)}
    assert weights_by_label(plan, None) == {0: (1.0, 99.0), 1: (3.0, 5.0)}
    assert weights_by_label(plan, 1) == {0: (1.0, 1.0)}
    for lacking in ({"label": col("clicked")}, {"weight": col("w")}):
        bare = cb.compile(cb.View(log), cb.FeatureSet(**lacking, sparse=plan.features.sparse), threads=1)
        with pytest.raises(PlanError, match="calibrate='weights' corrects for sample weights, but this plan has none"):
            weights_by_label(bare, None)
