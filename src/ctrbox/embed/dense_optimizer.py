"""torch optimizers of weights that every row shares: which one is meant, and its state as plain tensors and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ctrbox.embed.optimizers import SGD, Adagrad, Adam
from ctrbox.errors import DataError, PlanError

DenseOptimizer: TypeAlias = SGD | Adagrad | Adam | Callable[[Any], torch.optim.Optimizer]


def dense_optimizer(given: DenseOptimizer) -> Callable[[Any], torch.optim.Optimizer]:
    """torch's optimizer of the same name and settings."""
    match given:
        case SGD():
            return lambda weights: torch.optim.SGD(weights, lr=given.lr)
        case Adagrad():
            return lambda weights: torch.optim.Adagrad(
                weights, lr=given.lr, eps=given.eps, initial_accumulator_value=given.initial
            )
        case Adam():
            return lambda weights: torch.optim.Adam(
                weights, lr=given.lr, betas=(given.beta1, given.beta2), eps=given.eps, foreach=True
            )
    if not callable(given) or isinstance(given, type):
        shown = given.__name__ if isinstance(given, type) else repr(given)
        raise PlanError(f"optimizer must be cb.Adam(…), cb.Adagrad(…), cb.SGD(…) or a function, got {shown}")

    def made(weights: Any) -> torch.optim.Optimizer:
        found = given(weights)
        if not isinstance(found, torch.optim.Optimizer):
            raise PlanError(f"the optimizer function gave a {type(found).__name__}; expected a torch optimizer")
        return found

    return made


def optimizer_state(optimizer: torch.optim.Optimizer | None) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors by "parameter.name", and plain values by the same names."""
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, Any] = {}
    if optimizer is not None:
        for number, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{number}.{name}"] = value.cpu().contiguous()
                else:
                    plain[f"{number}.{name}"] = value
    return tensors, plain


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any], place: Path
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in [*tensors.items(), *plain.items()]:
        number, _, what = name.partition(".")
        if not number.isdigit() or not what:
            raise DataError(f"{place} holds an optimizer state named {name!r}; expected one such as '0.exp_avg'")
        state.setdefault(int(number), {})[what] = value
    whole = optimizer.state_dict()
    sizes = [len(g["params"]) for g in whole["param_groups"]]
    if state and max(state) >= sum(sizes):
        raise DataError(f"{place} holds the state of an optimizer of more weights than this model has")
    optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
