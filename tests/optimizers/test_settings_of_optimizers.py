"""Settings of optimizers at their bounds, as numbers for native code, as optimizers of torch; and steps that must be finite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ctrbox.errors import DataError, PlanError
from ctrbox.optimizers.of_dense_weights import (
    SAFE,
    checked_device,
    dense_optimizer,
    finite_step,
    optimizer_state,
    restore_optimizer,
)
from ctrbox.optimizers.of_table_rows import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    RowwiseAdagrad,
    is_dense,
    kind_of,
    optimizer_of,
    spec_of,
    with_rate,
)


@pytest.mark.parametrize("value", [1e30, 1e-30, 1, 5])
def test_a_rate_is_taken_up_to_what_a_float32_holds(value: float) -> None:
    for kind in (SGD, Adagrad, RowwiseAdagrad, Adam, AdamW):
        found = kind(lr=value)
        assert (found.lr, type(found.lr)) == (value, float)
    assert FTRL(alpha=value).alpha == value


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (SGD, {"lr": 0}, "SGD(lr=…) must be above 0, got 0.0"),
        (SGD, {"lr": -1}, "SGD(lr=…) must be above 0, got -1.0"),
        (SGD, {"l2": -0.5}, "SGD(l2=…) must be 0 or more, got -0.5"),
        (Adagrad, {"eps": 0}, "Adagrad(eps=…) must be above 0, got 0.0"),
        (Adagrad, {"initial": -1}, "Adagrad(initial=…) must be 0 or more, got -1.0"),
        (RowwiseAdagrad, {"lr": 1.1e30}, "RowwiseAdagrad(lr=…) must fit a float32 (1e-30 to 1e30), got 1.1e+30"),
        (Adam, {"beta1": 1}, "Adam(beta1=…) must be below 1, got 1.0"),
        (Adam, {"beta2": 1.5}, "Adam(beta2=…) must be below 1, got 1.5"),
        (Adam, {"l2": 9e-31}, "Adam(l2=…) must fit a float32 (1e-30 to 1e30), got 9e-31"),
        (Adam, {"dense": 1}, "Adam(dense=…) must be True or False, got 1"),
        (AdamW, {"weight_decay": float("nan")}, "AdamW(weight_decay=…) must be a finite number, got nan"),
        (AdamW, {"beta1": "x"}, "AdamW(beta1=…) must be a finite number, got 'x'"),
        (FTRL, {"alpha": 0}, "FTRL(alpha=…) must be above 0, got 0.0"),
        (FTRL, {"beta": True}, "FTRL(beta=…) must be a finite number, got True"),
    ],
)
def test_a_setting_that_cannot_be_is_named(kind: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=f"^{re.escape(says)}$"):
        kind(**given)


def test_settings_that_may_be_zero() -> None:
    assert (SGD(l2=0).l2, Adagrad(initial=0, l2=0).initial, Adam(beta1=0, beta2=0).beta2) == (0, 0, 0)
    assert (AdamW(weight_decay=0).weight_decay, FTRL(beta=0, l1=0, l2=1).beta, FTRL(l1=0, l2=0).l2) == (0, 0, 0)


def test_ftrl_without_beta_and_l2_is_refused_but_read_from_a_file() -> None:
    with pytest.raises(
        PlanError, match=r"^FTRL\(beta=0, l2=0\) divides by √Σg², .*; set beta above 0 \(the default is 1\)"
    ):
        FTRL(0.5, beta=0, l1=0.25)
    spec = (5, (0.5, 0.0, 0.25, 0.0, 0.0))
    found = optimizer_of(spec)
    assert repr(found) == "FTRL(alpha=0.5, beta=0.0, l1=0.25, l2=0.0)"
    assert spec_of(found) == spec


EVERY: list[tuple[Any, int, tuple[float, ...], bool]] = [
    (SGD(0.5, 0.25), 1, (0.5, 0.25, 0, 0, 0), False),
    (Adagrad(0.5, 0.125, 2, 0.25), 2, (0.5, 0.125, 2, 0.25, 0), False),
    (RowwiseAdagrad(0.5, 0.125, 2, 0.25), 3, (0.5, 0.125, 2, 0.25, 0), False),
    (Adam(0.5, 0.75, 0.875, 0.125, 0.25), 4, (0.5, 0.75, 0.875, 0.125, 0.25), False),
    (FTRL(0.5, 2, 3, 4), 5, (0.5, 2, 3, 4, 0), False),
    (Adam(0.5, 0.75, 0.875, 0.125, 0.25, dense=True), 6, (0.5, 0.75, 0.875, 0.125, 0.25), True),
    (AdamW(0.5, 0.75, 0.875, 0.125, 0.25), 7, (0.5, 0.75, 0.875, 0.125, 0.25), True),
]


@pytest.mark.parametrize(("optimizer", "kind", "numbers", "dense"), EVERY)
def test_an_optimizer_is_a_number_and_five_settings_for_native_code(
    optimizer: Any, kind: int, numbers: tuple[float, ...], dense: bool
) -> None:
    assert spec_of(optimizer) == (kind_of(optimizer), numbers) == (kind, numbers)
    assert optimizer_of((kind, numbers)) == optimizer  # type: ignore[arg-type]
    assert is_dense(optimizer) == dense
    slower = with_rate(optimizer, 0.0625)
    assert type(slower) is type(optimizer)
    assert spec_of(slower) == (kind, (0.0625, *numbers[1:]))


@pytest.mark.parametrize(
    ("given", "kind", "settings"),
    [
        (SGD(0.5, 0.25), torch.optim.SGD, {"lr": 0.5, "weight_decay": 0.25}),
        (
            Adagrad(0.5, 0.125, 2, 0.25),
            torch.optim.Adagrad,
            {"lr": 0.5, "eps": 0.125, "initial_accumulator_value": 2, "weight_decay": 0.25},
        ),
        (
            Adam(0.5, 0.75, 0.875, 0.125, 0.25),
            torch.optim.Adam,
            {"lr": 0.5, "betas": (0.75, 0.875), "eps": 0.125, "weight_decay": 0.25, "foreach": True},
        ),
        (
            AdamW(0.5, 0.75, 0.875, 0.125, 0.25),
            torch.optim.AdamW,
            {"lr": 0.5, "betas": (0.75, 0.875), "eps": 0.125, "weight_decay": 0.25, "foreach": True},
        ),
    ],
)
def test_dense_weights_get_the_optimizer_of_torch_with_the_same_settings(
    given: Any, kind: Any, settings: dict[str, Any]
) -> None:
    found = dense_optimizer(given)([torch.nn.Parameter(torch.ones(2))])
    assert type(found) is kind
    assert {name: found.param_groups[0][name] for name in settings} == settings


@pytest.mark.parametrize(
    ("given", "shown"), [(Adam, "Adam"), (3, "3"), (torch.optim.Adam, "Adam"), (FTRL(), repr(FTRL()))]
)
def test_what_makes_no_optimizer_of_dense_weights_is_refused(given: Any, shown: str) -> None:
    with pytest.raises(PlanError, match=re.escape(f"cb.optim.SGD(…) or a function, got {shown}")):
        dense_optimizer(given)
    with pytest.raises(PlanError, match="the optimizer function returned a list; expected a torch optimizer"):
        dense_optimizer(lambda weights: weights)([])


# ---- steps that must be finite


def stepped(gradient: list[float] | None, kind: Any = torch.optim.SGD, **settings: Any) -> tuple[bool, list[float]]:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = kind([weight, torch.nn.Parameter(torch.ones(1))], **{"lr": 1.0, **settings})
    weight.grad = None if gradient is None else torch.tensor(gradient)
    before = optimizer_state(optimizer)
    done = finite_step(optimizer)
    if not done:
        assert repr(optimizer_state(optimizer)) == repr(before)
    return done, weight.tolist()


@pytest.mark.parametrize(
    ("gradient", "settings", "done", "weights"),
    [
        ([0.5, -1.0], {}, True, [0.5, 3.0]),
        (None, {}, True, [1.0, 2.0]),
        ([float("nan"), 0.0], {}, False, [1.0, 2.0]),
        ([0.0, float("inf")], {}, False, [1.0, 2.0]),
        ([-2 * SAFE, 0.0], {}, True, [1 + 2 * SAFE, 2.0]),
        ([3e38, 0.0], {"lr": 10.0}, False, [1.0, 2.0]),
        ([1e30, 0.0], {"kind": torch.optim.Adam}, False, [1.0, 2.0]),  # its square is not finite
        ([1.0, 0.0], {"lr": 1e38}, True, [-1e38, 2.0]),
    ],
)
def test_a_step_that_would_not_be_finite_changes_nothing(
    gradient: list[float] | None, settings: dict[str, Any], done: bool, weights: list[float]
) -> None:
    found, now = stepped(gradient, **settings)
    assert found == done
    assert now == pytest.approx(weights, rel=1e-6)


# ---- states and devices


def test_the_state_of_an_optimizer_comes_back() -> None:
    def made(steps: int) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        optimizer = torch.optim.Adam([weight], lr=0.1)
        for _ in range(steps):
            weight.grad = torch.tensor([0.5, -1.0])
            optimizer.step()
        return weight, optimizer

    assert optimizer_state(None) == ({}, {})
    _, one = made(2)
    tensors, plain = optimizer_state(one)
    assert (sorted(tensors), plain) == (["0.exp_avg", "0.exp_avg_sq", "0.step"], {})
    second, other = made(0)
    restore_optimizer(other, tensors, {"0.note": 3}, Path("x"))
    assert other.state[second]["note"] == 3
    assert float(other.state[second]["step"]) == 2
    restore_optimizer(made(0)[1], {}, {}, Path("x"))
    for name in ("0", "a.step", "0.", ".step", "-1.step"):
        with pytest.raises(
            DataError, match=f"^x holds an optimizer state named '{name}'; expected one such as '0.exp_avg'"
        ):
            restore_optimizer(other, {}, {name: 1}, Path("x"))
    with pytest.raises(
        DataError, match=r"^x contains the optimizer state of more weights than this model has; load it with"
    ):
        restore_optimizer(other, {}, {"1.step": 1}, Path("x"))


def test_a_device_that_torch_does_not_know_is_named() -> None:
    assert checked_device("cpu") == torch.device("cpu")
    with pytest.raises(PlanError, match=r"device= must be 'cpu', or 'cuda' on a machine with a GPU, got 'gpu': .+"):
        checked_device("gpu")
