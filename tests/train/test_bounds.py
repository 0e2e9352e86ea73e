"""What a training may be asked for: every bound from both sides, and small functions that decide before anything "
"is trained."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox.errors import DataError, DeviceError, PlanError, TrainError
from ctrbox.evaluate.calibration import curve, intercept, label_shift, weights_advice
from ctrbox.sklearn.classifier import Classifier
from ctrbox.train import settings as settings_module
from ctrbox.train.evaluation import Split, probability, watched, watched_name
from ctrbox.train.interrupt import Asked, asked_to_end, end_as_asked
from ctrbox.train.sampling import Labels, thin, uniform
from ctrbox.train.settings import Settings, described, device_for, no_setting, same_run, with_batch_size
from ctrbox.train.table_setup import check_tables
from ctrbox.train.trainer import check_arguments, check_have_effect
from ctrbox.train.training_progress import State, state_of
from ctrbox.train.warm_up import WarmUp, differences
from tests.train.test_second_day import log, planned

INF, NAN = math.inf, math.nan


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    return planned(log(100))


# ---- settings


@pytest.mark.parametrize(
    ("name", "inside", "outside", "message"),
    [
        ("batch_size", (1, 2**24), (0, 2**24 + 1, 1.0), "batch_size must be a whole number from 1 to 16,777,216"),
        ("epochs", (1, 10_000), (0, 10_001, None), "epochs must be a whole number from 1 to 10,000"),
        ("shuffle", (0, 2**31 - 1), (-1, 2**31), "shuffle must be a whole number from 0"),
        ("seed", (0, 2**63 - 1), (-1, 2**63), "seed must be a whole number from 0"),
        ("limit", (None, 1, 2**62), (0, 2**62 + 1), "limit must be a whole number from 1"),
        ("patience", (None, 1), (0,), "patience must be a whole number from 1"),
        ("evaluate_every", (None, 1), (0,), "evaluate_every must be a whole number from 1"),
        ("valid", (0, 0.9), (-0.001, 0.901, True, "0.1", NAN), "valid must be a share from 0 to 0.9"),
        ("negatives", (1e-6, 1), (0.9e-6, 1.001, True), "negatives must be a share from 1e-06 to 1"),
        ("clip", (None, 1e-9, 1e300), (0, -1, INF, NAN, "1"), "clip must be a number above 0"),
        ("adaptive_l2", (0, 1e6), (-1e-9, 1e6 + 1, NAN, "1"), "adaptive_l2 must be a number from 0 to 1,000,000"),
        ("l2", (0, 1e6), (-1e-9, 1e6 + 1, NAN, "1", True), "l2 must be a number from 0 to 1,000,000"),
        ("average", (None, 0.5, 1e-9), (0, 1, -0.5, NAN, True, "0.9"), "average must be a number above 0 and below 1"),
        ("monitor", (None, "auc", "weighted_gauc"), ("accuracy", ""), "monitor must be one of logloss, auc"),
        ("calibrate", (None, "weights", "intercept", "platt", 0, 49.9, -49.9), ("odd", 50, -50, True, NAN), "calibrate must be"),
        ("schedule", (cb.optim.Cosine(3), lambda step: 1.0), (0.5,), "schedule must be a function from a step to a "
        "factor, such"),
    ],
)  # fmt: skip
def test_every_setting_is_taken_up_to_its_bounds_and_refused_beyond(
    name: str, inside: tuple[Any, ...], outside: tuple[Any, ...], message: str
) -> None:
    for value in inside:
        assert getattr(Settings(**{name: value}), name) == value
    for value in outside:
        with pytest.raises(PlanError, match=message):
            Settings(**{name: value})


@pytest.mark.parametrize(
    ("rows", "size"),
    [(0, 64), (16_000, 64), (16_001, 128), (32_000, 128), (32_001, 256), (16_384 * 250, 16_384), (10**9, 16_384)],
)
def test_the_batch_size_gives_about_250_steps_an_epoch(rows: int, size: int) -> None:
    assert with_batch_size(Settings(), rows).batch_size == size
    assert with_batch_size(Settings(batch_size=7), rows).batch_size == 7


def test_arguments_of_the_trainer_are_no_settings() -> None:
    for name in ("embedder", "optimizer", "threads", "device", "bf16", "common", "lr"):
        found = str(no_setting({name: 1}, ["epochs"]))
        assert f"{name} is an argument of the trainer, " in found
        assert f"cb.Trainer(…, {name}=1)" in found
    for name, told in (("lr", True), ("learning_rate", True), ("threads", False)):
        assert ("on the command line: ctrbox train --lr" in str(no_setting({name: 1}, []))) == told
    assert "there is no setting 'epoch'; nearest: 'epochs'" in str(no_setting({"epoch": 1}, ["epochs", "seed"]))
    assert f"optimizer='{'x' * 76}…)" in str(no_setting({"optimizer": "x" * 100}, []))
    assert f"optimizer='{'x' * 78}')" in str(no_setting({"optimizer": "x" * 78}, []))


def test_a_number_for_calibration_is_the_shift() -> None:
    assert [Settings(calibrate=value).shift for value in (None, "weights", 1, -0.5)] == [0.0, 0.0, 1.0, -0.5]


def gpu_table(number: int) -> cb.tables.GpuTable:
    """A table that would lie on a GPU; nothing is allocated before it is opened."""
    return cb.tables.GpuTable(4, runtime=SimpleNamespace(device=torch.device("cuda", number)))  # type: ignore[arg-type]


def test_a_model_trains_where_its_gpu_tables_are(plan: cb.Plan) -> None:
    table = gpu_table(1)
    assert device_for("auto", table, plan) == torch.device("cuda", 1)
    assert device_for("cuda", {"user": table, "ad": cb.MemoryTable(4)}, plan) == torch.device("cuda", 1)
    with pytest.raises(PlanError, match=r"device='cpu' cannot train with a cb.tables.GpuTable on cuda:1"):
        device_for("cpu", table, plan)
    with pytest.raises(
        PlanError,
        match=r"the tables of this training are on different devices \(cuda:0 and cuda:1\); put all of them on the same device",
    ):
        device_for("auto", {"user": table, "ad": gpu_table(0)}, plan)


def test_without_gpu_tables_the_device_is_the_one_asked_for(plan: cb.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = SimpleNamespace(device="cuda")
    chose = SimpleNamespace(device="auto")
    monkeypatch.setattr(settings_module, "wants_gpu", lambda device: True)
    monkeypatch.setattr(settings_module, "why_not", lambda: "")
    cpu, cuda, memory = torch.device("cpu"), torch.device("cuda", 0), cb.MemoryTable(4)
    assert device_for("cpu", memory, on_gpu) == cpu  # type: ignore[arg-type]
    assert device_for("auto", memory, on_gpu) == cuda  # type: ignore[arg-type]
    assert device_for("auto", memory, chose) == cpu  # type: ignore[arg-type]
    assert device_for("auto", None, chose) == cuda  # type: ignore[arg-type]
    assert device_for("cuda", memory, chose) == cuda  # type: ignore[arg-type]
    monkeypatch.setattr(settings_module, "why_not", lambda: "there is no driver")
    with pytest.raises(DeviceError, match="training on device='cuda': there is no driver"):
        device_for("cuda", memory, chose)  # type: ignore[arg-type]
    monkeypatch.setattr(settings_module, "wants_gpu", lambda device: False)
    assert device_for("auto", memory, on_gpu) == cpu  # type: ignore[arg-type]


def test_a_run_of_before_says_its_precision_with_its_device() -> None:
    same_run("run", {"device": "cpu"}, {"precision": "float32"})
    same_run("run", {"device": "cuda, bf16"}, {"precision": "bfloat16"})
    with pytest.raises(DataError, match="differs in precision: it has 'bfloat16', but this training has 'float32'"):
        same_run("run", {"device": "cuda, bf16"}, {"precision": "float32"})


def test_the_first_difference_between_two_runs_is_named() -> None:
    same_run("run", {"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 2}})
    for kept, mine, message in (
        ({"a": 1}, {"a": 2}, "differs in a: it has 1, but this training has 2"),
        ({"s": {"x": 1, "y": 2}}, {"s": {"x": 1, "y": 3}}, "differs in s 'y': it has 2, but this training has 3"),
        (
            {"s": {"x": 1}},
            {"s": {"x": 1, "y": 3}},
            "differs in s: it has {'x': 1}, but this training has {'x': 1, 'y': 3}",
        ),
        ({}, {"a": 2}, "differs in a: it has None, but this training has 2"),
    ):
        with pytest.raises(DataError, match=message):
            same_run("run", kept, mine)
    with pytest.raises(DataError, match=r"damaged config.json"):
        same_run("run", None, {})


def test_functions_are_described_by_their_code_and_objects_without_their_address() -> None:
    def one(step: int) -> float:
        return 1.0

    def two(step: int) -> float:
        return 2.0

    first = described(one)
    assert first.endswith(described(one)[-16:])
    assert "one" in first
    two.__qualname__ = one.__qualname__
    assert described(two) != first
    two.__code__ = one.__code__
    assert described(two) == first
    assert " at 0x" not in described(object())
    assert described(3) == "3"


def test_functions_are_described_by_the_values_that_they_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_closure(lr: float) -> Callable[[Any], Any]:
        return lambda weights: torch.optim.Adam(weights, lr=lr)

    def of_default(lr: float) -> Callable[..., float]:
        def one(step: int, factor: float = lr, *, floor: float = 2 * lr) -> float:
            return factor + floor

        return one

    def of_global(lr: float) -> Callable[[int], list[float]]:
        monkeypatch.setitem(globals(), "RATE", lr)
        return lambda step: [RATE for _ in range(step)]  # type: ignore[name-defined] # noqa: F821

    def told(make: Callable[[float], Any], lr: float) -> str:
        return described(make(lr))

    for make in (of_closure, of_default, of_global):
        assert told(make, 0.1) == told(make, 0.1) != told(make, 0.2), make.__name__


# ---- arguments of fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"out": "runs/x", "ahead": 1000, "look_ahead": 64, "seconds": 1e-9, "steps": 2**62, "progress": True}, ""),
        ({"out": Path("x"), "ahead": 1, "look_ahead": 0, "steps": 1}, ""),
        ({"out": 5}, "out must be a path or a URL, got 5"),
        ({"ahead": 0}, "ahead must be a whole number from 1 to 1,000"),
        ({"ahead": 1001}, "ahead must be a whole number from 1 to 1,000"),
        ({"look_ahead": -1}, "look_ahead must be a whole number from 0 to 64"),
        ({"look_ahead": 65}, "look_ahead must be a whole number from 0 to 64"),
        ({"seconds": 0}, "checkpoint_seconds must be a number above 0, got 0"),
        ({"seconds": True}, "checkpoint_seconds must be a number above 0, got True"),
        ({"seconds": NAN}, "checkpoint_seconds must be a number above 0, got nan"),
        ({"seconds": "1"}, "checkpoint_seconds must be a number above 0, got '1'"),
        ({"steps": 0}, "checkpoint_steps must be a whole number from 1"),
        ({"progress": 1}, "progress must be True, False or a Watcher"),
        ({"progress": SimpleNamespace(see=1, evaluated=1, resumed=1)}, "progress must be True, False or a Watcher"),
        ({"progress": SimpleNamespace(see=1, evaluated=1, resumed=1, end=1)}, ""),
    ],
)
def test_arguments_of_fit_are_checked(change: dict[str, Any], message: str) -> None:
    usual = {"out": None, "ahead": 2, "look_ahead": 0, "seconds": 300.0, "steps": None, "progress": False}
    if not message:
        check_arguments(**{**usual, **change})
        return
    with pytest.raises(PlanError, match=message):
        check_arguments(**{**usual, **change})


@pytest.mark.parametrize(
    ("chosen", "held", "more", "message"),
    [
        ({}, True, {}, ""),
        ({"patience": 2, "evaluate_every": 3, "monitor": "auc"}, True, {"time": 1, "by": {"x": 1}}, ""),
        ({}, False, {"by": {}}, ""),
        ({}, False, {"looked": False}, ""),
        ({"patience": 2}, False, {}, "patience=2 needs validation rows, but there are none"),
        ({"evaluate_every": 3}, False, {}, "evaluate_every=3 needs validation rows"),
        ({"monitor": "weighted_auc"}, True, {}, "monitor='weighted_auc' needs sample weights; .* or use 'auc'"),
        ({"monitor": "gauc"}, True, {}, r"monitor='gauc' needs groups"),
        ({}, False, {"time": 1}, r"which requires validation rows \(valid=\)"),
        ({}, False, {"by": {"x": 1}}, r"which requires validation rows \(valid=\)"),
        ({}, True, {"time": 1, "looked": False}, r"which requires explain=True, or a run folder \(out=\)"),
        ({}, True, {"by": {"x": 1}, "looked": False}, "which requires explain=True"),
    ],
)
def test_settings_without_effect_are_refused(
    plan: cb.Plan, chosen: dict[str, Any], held: bool, more: dict[str, Any], message: str
) -> None:
    split = Split(90, 90, plan if held else None)
    options = {"looked": True, "time": None, "by": None, **more}
    if not message:
        check_have_effect(Settings(**chosen), plan, split, **options)
        return
    with pytest.raises(PlanError, match=message):
        check_have_effect(Settings(**chosen), plan, split, **options)


def test_what_tables_keep_is_asked_by_name() -> None:
    for fine in (None, "keep", "empty"):
        check_tables(fine)
    with pytest.raises(PlanError, match="tables must be 'keep' or 'empty', got 'empt'; nearest: 'empty'"):
        check_tables("empt")


@pytest.mark.parametrize(
    ("kind", "run", "message"),
    [
        ("none", None, ""),
        ("full", "runs/x", ""),
        ("partial", Path("runs/x"), ""),
        ("continue", "runs/x", ""),
        ("ful", None, "warm_up must be one of none, partial, full, continue, got 'ful'; nearest: 'full'"),
        (3, None, "warm_up must be one of"),
        ("full", None, "warm_up='full' needs the run to start from: warm_from='runs/yesterday'"),
        ("none", "runs/x", "warm_from is given, but warm_up is 'none'"),
        ("full", 5, "warm_from must be a run or its folder, got int"),
    ],
)
def test_a_warm_up_needs_a_kind_and_a_run(kind: Any, run: Any, message: str) -> None:
    if not message:
        assert WarmUp(kind, run).kind == kind
        return
    with pytest.raises(PlanError, match=message):
        WarmUp(kind, run)


def test_differences_of_settings_are_one_line_each() -> None:
    assert differences({"dim": 8, "same": 1, "deep": {"a": 1}}, {"dim": 16, "same": 1, "deep": {"a": 2}, "new": 0}) == [
        "dim: 8 there, 16 here",
        "deep of 'a': 1 there, 2 here",
        "new: not set there, 0 here",
    ]
    assert differences(None, {"dim": 16}) == ["config: None there, {'dim': 16} here"]
    assert differences({"a": 1}, {}) == ["a: 1 there, not set here"]


# ---- rows of training and validation


@pytest.mark.parametrize(
    ("limit", "valid", "expected"),
    [
        (None, 0.1, (90, True, 90, 100)),
        (None, 0.0, (100, False, 100, 100)),
        (50, 0.1, (45, True, 45, 50)),
        (1000, 0.1, (90, True, 90, 100)),
        (10, 0.05, None),  # rounds to no validation rows
        (1, 0.9, None),  # leaves nothing to train on
        (1, 0.0, (1, False, 1, 1)),
        (2, 0.5, (1, True, 1, 2)),
    ],
)
def test_the_newest_rows_of_the_log_are_held_back(
    plan: cb.Plan, limit: int | None, valid: float, expected: tuple[int, bool, int, int] | None
) -> None:
    settings = Settings(limit=limit, valid=valid)
    if expected is None:
        with pytest.raises(TrainError, match=rf"the log has {limit} rows; valid={valid:g} leaves"):
            Split.of(plan, None, settings)
        return
    found = Split.of(plan, None, settings)
    assert (found.train_stop, found.valid is plan, found.start, found.stop) == expected
    assert found.train_rows == found.train_stop


def test_the_watched_figure_is_lower_where_it_is_better() -> None:
    metrics = {"logloss": 0.5, "auc": 0.75}
    assert (watched_name(metrics, None), watched(metrics, None)) == ("logloss", 0.5)
    assert watched(metrics, "auc") == -0.75
    assert watched({**metrics, "weighted_logloss": 0.25}, None) == 0.25
    assert probability(np.array([0.0, math.log(3)])).tolist() == [0.5, pytest.approx(0.75)]


def batch(labels: list[float], weights: list[float] | None = None) -> cb.Batch:
    schema = cb.types.Schema((), (), True, False, weights is not None)
    dense = np.zeros((len(labels), 0), np.float32)
    weight = None if weights is None else np.array(weights, np.float32)
    return cb.Batch(schema, len(labels), np.array(labels, np.float32), dense, {}, None, weight)


def test_thinning_keeps_clicks_and_the_rows_whose_draw_is_below_the_share() -> None:
    labels = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    whole = batch(labels)
    drawn = uniform(np.arange(30, 38, dtype=np.uint64), 7, 2)
    share = float(np.sort(drawn)[4])  # the row with this very draw is left out
    kept = thin(whole, 30, share, 7, 2)
    assert kept.rows == sum(label > 0 or draw < share for label, draw in zip(labels, drawn, strict=True)) < 8
    assert thin(whole, 30, 1.0, 7, 2) is whole
    assert thin(batch([1.0, 1.0]), 0, 1e-6, 7, 2).rows == 2


def test_draws_depend_on_row_seed_and_epoch_and_are_even() -> None:
    rows = np.arange(4000, dtype=np.uint64)
    first = uniform(rows, 1, 0)
    assert 0 <= first.min() < first.max() < 1
    assert first.mean() == pytest.approx(0.5, abs=0.02)
    assert np.unique(first).size == 4000
    assert uniform(rows[5:6], 1, 0) == first[5]
    for other in (uniform(rows, 2, 0), uniform(rows, 1, 1)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.06

    def twin(row: int, seed: int, epoch: int) -> float:
        mask = 2**64 - 1
        x = (row + seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & mask
        for shift in (32, 32):
            x = ((x ^ (x >> shift)) * 0xE9846AF9B1A615D) & mask
        return ((x ^ (x >> 28)) >> 11) * 2.0**-53

    assert uniform(np.array([0, 77], np.uint64), 3, 5).tolist() == [twin(0, 3, 5), twin(77, 3, 5)]


def test_labels_and_weights_are_counted_and_bad_ones_named(plan: cb.Plan) -> None:
    labels = Labels()
    labels.add(batch([1.0, 0.0, 1.0], [0.0, 1.0, 2.5]), 0, "training")
    assert (labels.rows, labels.clicks) == (3, 2)
    labels.check("training", plan)
    for value in (-0.5, INF, NAN):
        with pytest.raises(DataError, match=rf"the sample weight is {value} in row 1,001 of the training rows"):
            labels.add(batch([1.0, 0.0], [1.0, value]), 1000, "training")
    with pytest.raises(TrainError, match="the label is 1 in all 5 training rows"):
        Labels(5, 5).check("training", plan)
    with pytest.raises(TrainError, match="the label is 0 in all 5 validation rows"):
        Labels(5, 0).check("validation", plan)
    with pytest.raises(TrainError, match=r"there are no validation rows: the log .* has none from row 100 on"):
        Labels().check("validation", plan, 100, 200)
    with pytest.raises(TrainError, match="the plan dropped all 90 rows"):
        Labels().check("training", plan, 10)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("best", [None, 0.5, 3], [True, "x", []]),
        ("seconds", [1, 0.5], [True, "x", None]),
        ("step", [5], [0.5, "x"]),
        ("finished", [True], [1, None]),
        ("position", [{}, {"row": 3}], [{"row": "3"}, {"row": 0.5}, []]),
        ("losses", [[1.0, 2.0]], ["x", None]),
    ],
)
def test_a_kept_state_has_the_types_of_a_training(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(state_of({**asdict(State()), name: value}), name) == value
    for value in bad:
        with pytest.raises(TypeError):
            state_of({**asdict(State()), name: value})
    assert State(losses=[3.0, 2.0]).loss == 1.5
    assert State().loss == 0.0


# ---- calibration


def test_bins_of_a_calibration_curve_keep_equal_predictions_together() -> None:
    found = curve(np.array([1, 0, 1, 1]), np.array([0.25, 0.25, 0.25, 0.75], np.float32), None, 2)
    assert found["bins"] == [
        {"rows": 3, "mean_p": 0.25, "click_rate": pytest.approx(2 / 3), "low": 0.25, "high": 0.25},
        {"rows": 1, "mean_p": 0.75, "click_rate": 1.0, "low": 0.75, "high": 0.75},
    ]
    assert found["ece"] == pytest.approx((3 * (2 / 3 - 1 / 4) + 1 / 4) / 4)
    weighted = curve(np.array([1, 0, 1]), np.array([0.25, 0.5, 0.75], np.float32), np.array([3.0, 0.0, 1.0]), 1)
    assert weighted["bins"] == [{"rows": 2, "mean_p": 0.375, "click_rate": 1.0, "low": 0.25, "high": 0.75}]
    assert weighted["ece"] == pytest.approx(0.625)


def test_an_intercept_solves_its_equation() -> None:
    assert intercept(np.array([1, 0, 0, 0]), np.zeros(4)) == pytest.approx(math.log(1 / 3), abs=1e-12)
    assert intercept(np.array([1, 1, 1, 0]), np.full(4, 2.0)) == pytest.approx(math.log(3) - 2, abs=1e-12)
    for label, clicks in (([1, 1], 2), ([0, 0], 0)):
        with pytest.raises(TrainError, match=f"but {clicks} of the 2 validation rows are clicks"):
            intercept(np.array(label), np.zeros(2))


def test_the_shift_of_weights_is_the_log_of_their_ratio() -> None:
    assert label_shift({0: (1.0, 1.0), 1: (4.0, 4.0)}) == -math.log(4)
    with pytest.raises(
        PlanError, match="the weights of rows with label 0 range from 1 to 2; use calibrate='intercept'"
    ):
        label_shift({1: (3.0, 4.0), 0: (1.0, 2.0)})
    with pytest.raises(TrainError, match="all rows have label 1"):
        label_shift({1: (4.0, 4.0)})
    for zero in ({0: (0.0, 0.0), 1: (4.0, 4.0)}, {0: (1.0, 1.0), 1: (0.0, 0.0)}):
        with pytest.raises(PlanError, match="needs weights above 0 for both labels"):
            label_shift(zero)


@pytest.mark.parametrize(
    ("low", "high", "told"), [(1.1, 2.0, False), (1.11, 2.0, True), (0.5, 0.9, False), (0.5, 0.89, True), (NAN, NAN, False)]
)  # fmt: skip
def test_advice_needs_a_calibration_more_than_a_tenth_off(low: float, high: float, told: bool) -> None:
    metrics = {"calibration_low": low, "calibration_high": high, "mean_prediction": 0.5, "base_rate": 0.25}
    metrics |= {"calibration": 2.0, "weighted_calibration": 1.0}
    assert bool(weights_advice(metrics)) == told
    assert weights_advice({k: v for k, v in metrics.items() if k != "weighted_calibration"}) == ""
    if told:
        assert "calibrate='weights'" in weights_advice(metrics)
        assert "calibrate='weights'" not in weights_advice(metrics, corrected=True)


# ---- the classifier's batches


@pytest.mark.parametrize(
    ("rows", "batch"),
    [
        (1, 32),
        (32, 32),
        (33, 33),
        (65, 33),
        (1600, 32),
        (1601, 33),
        (1650, 33),
        (10_000, 200),
        (10_001, 201),
        (10**7, 4096),
    ],
)
def test_a_batch_of_the_classifier_leaves_no_single_row_over(rows: int, batch: int) -> None:
    found = Classifier()._batch(rows)
    assert found == batch
    assert rows % found != 1 or rows == 1
    assert Classifier(batch_size=7)._batch(rows) == 7


# ---- signals


def test_signals_that_nobody_handles_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with asked_to_end():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        mine = lambda number, frame: None
        signal.signal(signal.SIGTERM, mine)
        with asked_to_end() as asked:
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not mine
            signal.raise_signal(signal.SIGTERM)
            assert asked.by == signal.SIGTERM
            assert signal.getsignal(signal.SIGTERM) is mine  # a second one acts as ever
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with asked_to_end() as asked:
            assert signal.getsignal(signal.SIGINT) != signal.SIG_DFL
        noted = Asked()
        noted.by = signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            end_as_asked(noted)
        end_as_asked(Asked())
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def test_outside_of_the_main_thread_no_signal_is_noted() -> None:
    found: list[Any] = []
    handler = signal.getsignal(signal.SIGINT)

    def inside() -> None:
        with asked_to_end() as asked:
            found.append((asked.by, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [(None, handler)]
