"""Constructors of public classes: misspelled arguments get the nearest name, numbers of NumPy are taken, nonsense is refused."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.arguments.names import named_arguments
from ctrbox.arguments.numbers import number, shown_value
from ctrbox.errors import PlanError
from ctrbox.loop.intervals import Cadence, seconds
from ctrbox.train.settings import Settings

HUGE = 10**400
SCHEMA = cb.compile(cb.View(pa.table({"a": [1, 2]})), cb.FeatureSet(sparse={"a": col("a")}), device="cpu").schema
RATES: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda x: cb.optim.SGD(lr=x).lr,
    "Adagrad": lambda x: cb.Adagrad(lr=x).lr,
    "RowwiseAdagrad": lambda x: cb.optim.RowwiseAdagrad(lr=x).lr,
    "Adam": lambda x: cb.optim.Adam(lr=x).lr,
    "FTRL": lambda x: cb.optim.FTRL(alpha=x).alpha,
    "Trainer": lambda x: cb.Trainer(cb.models.LR(SCHEMA), lr=x).lr,
    "clip": lambda x: Settings(clip=x).clip,
    "adaptive_l2": lambda x: Settings(adaptive_l2=x).adaptive_l2,
    "init": lambda x: cb.MemoryTable(dim=2, init=x).init,
    "calibrate": lambda x: Settings(calibrate=x).calibrate,
    "pcie": lambda x: cb.types.Device("cpu", pcie=x).pcie,
    "span": lambda x: seconds(x),
    "cadence": lambda x: Cadence.of(x).seconds,
}


@pytest.mark.parametrize("made", sorted(RATES))
def test_a_number_of_numpy_is_taken_as_a_plain_one(made: str) -> None:
    for value in (np.float64(0.25), np.float32(0.25), np.float16(0.25)):
        kept = RATES[made](value)
        assert type(kept) is float
        assert kept == 0.25
    assert RATES[made](np.int64(1)) == 1.0


@pytest.mark.parametrize("made", sorted(RATES))
@pytest.mark.parametrize("value", [HUGE, -HUGE, math.nan, math.inf, True, np.bool_(True), -1e9, "x", [0.1]])
def test_what_is_no_usable_number_is_refused_with_a_message(made: str, value: Any) -> None:
    with pytest.raises(PlanError) as caught:
        RATES[made](value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [-1, 0, HUGE, True, 2.5, "-1GB", "5", None, "much"])
def test_the_budget_of_a_merge_is_a_size(value: Any) -> None:
    view = cb.View(pa.table({"id": [1, 2], "a": [1, 2]}), key="id")
    other = cb.View(pa.table({"id": [1, 2], "b": [1, 2]}), key="id")
    with pytest.raises(PlanError, match="budget="):
        view.merge(other, budget=value)
    view.merge(other, budget=np.int64(1 << 20))  # type: ignore[arg-type]


def test_a_misspelled_argument_of_a_function_is_answered_with_the_nearest_one() -> None:
    view = cb.View(pa.table({"id": [1]}), key="id")
    for call, words in (
        (lambda: view.join(view, on="id", spil=True), "View.join has no argument 'spil'; nearest: 'spill'"),  # type: ignore[call-arg]
        (lambda: view.merge(view, budgett=1), "View.merge has no argument 'budgett'; nearest: 'budget'"),  # type: ignore[call-arg]
        (lambda: cb.history("a", byy="id", time="t"), "history has no argument 'byy'; nearest: 'by'"),  # type: ignore[call-arg]
    ):
        with pytest.raises(PlanError) as caught:
            call()
        assert str(caught.value).startswith(words)
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("value", [-1, HUGE, True, 2.5, "-1GB", "much"])
def test_the_memory_of_a_device_is_a_size(value: Any) -> None:
    with pytest.raises(PlanError, match="memory of a device"):
        cb.types.Device("cuda", memory=value)


MISSPELLED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "DeepFM": (lambda: cb.models.DeepFM(SCHEMA, hiden=(8,)), "hiden", "hidden"),  # type: ignore[call-arg]
    "LR": (lambda: cb.models.LR(SCHEMA, biass=1), "biass", ""),  # type: ignore[call-arg]
    "DCNv2": (lambda: cb.models.DCNv2(SCHEMA, drop_out=0.1), "drop_out", "dropout"),  # type: ignore[call-arg]
    "SparseTable": (lambda: cb.SparseTable("t", dim=4, rams="1GB"), "rams", "ram"),  # type: ignore[call-arg]
    "MemoryTable": (lambda: cb.MemoryTable(dims=4), "dims", "dim"),  # type: ignore[call-arg]
    "Adagrad": (lambda: cb.Adagrad(lrr=0.1), "lrr", "lr"),  # type: ignore[call-arg]
    "Cosine": (lambda: cb.optim.Cosine(step=3), "step", "steps"),  # type: ignore[call-arg]
    "Classifier": (lambda: cb.Classifier(epoch=3), "epoch", "epochs"),  # type: ignore[call-arg]
    "Trainer": (lambda: cb.Trainer(cb.models.LR(SCHEMA), optimizr=1), "optimizr", "optimizer"),  # type: ignore[call-arg]
    "DeepFFM": (lambda: cb.DeepFFM(SCHEMA, bit=18), "bit", "bits"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("owner", sorted(MISSPELLED))
def test_a_misspelled_argument_is_answered_with_the_nearest_one(owner: str, tmp_path: Path) -> None:
    make, given, near = MISSPELLED[owner]
    with pytest.raises(PlanError) as caught:
        make()
    assert isinstance(caught.value, TypeError)  # as Python would say it
    nearest = f"; nearest: {near!r}" if near else ""
    assert str(caught.value).startswith(f"{owner} has no argument {given!r}{nearest}; it has ")
    assert "self" not in str(caught.value).split("it has ")[1].split(", ")


def test_a_decorated_constructor_keeps_its_signature_and_its_own_errors() -> None:
    assert list(inspect.signature(cb.Adagrad).parameters) == ["lr", "eps", "initial", "l2"]
    assert "dim" in inspect.signature(cb.MemoryTable).parameters
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        cb.models.DeepFM()  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="takes any keyword argument"):

        @named_arguments
        class Anything:
            def __init__(self, **given: Any) -> None: ...


def test_numbers_are_checked_against_their_bounds() -> None:
    assert number("x", np.float32(0.5), 0, 1) == 0.5
    with pytest.raises(PlanError, match=r"^x must be a number from 0 to 1, got 2$"):
        number("x", 2, 0, 1)
    with pytest.raises(PlanError, match=r"^x must be a number above 0 and at most 1,000, got 0$"):
        number("x", 0, 0, 1000, above=True)
    assert shown_value(10**5000) == "a number of 16,610 bits"
    assert shown_value("a") == "'a'"


@pytest.mark.parametrize("value", ["no", 0, 1, None, math.nan, np.int64(1)])
def test_what_is_neither_true_nor_false_is_not_taken_for_one_of_them(value: Any) -> None:
    makers: dict[str, Callable[[Any], Any]] = {
        "batch_norm": lambda x: cb.models.DeepFM(SCHEMA, batch_norm=x),
        "norm": lambda x: cb.DeepFFM(["a", "b"], bits=8, norm=x),
        "residual": lambda x: cb.DeepFFM(["a", "b"], bits=8, residual=x),
        "bf16": lambda x: cb.Trainer(cb.models.LR(SCHEMA), bf16=x),
    }
    for name, make in makers.items():
        with pytest.raises(PlanError, match=f"^{name} must be True or False, got "):
            make(value)
        make(np.bool_(False))


@pytest.mark.parametrize("name", ["lr", "ffm", "nn", "ffm_init"])
def test_a_rate_of_deep_ffm_beyond_all_floats_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match="out of range"):
        cb.DeepFFM(["a", "b"], bits=8, **{name: HUGE})
