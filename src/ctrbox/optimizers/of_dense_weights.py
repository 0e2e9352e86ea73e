"""Creates torch optimizers for the dense weights, and saves and restores their state as plain tensors and numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ctrbox.errors import DataError, PlanError
from ctrbox.optimizers.of_table_rows import SGD, Adagrad, Adam, AdamW

SAFE = 1e15

DenseOptimizer: TypeAlias = SGD | Adagrad | Adam | AdamW | Callable[[Any], torch.optim.Optimizer]


def dense_optimizer(given: DenseOptimizer) -> Callable[[Any], torch.optim.Optimizer]:
    """Return a function that makes the torch optimizer with the same name and settings."""
    match given:
        case SGD():
            return lambda weights: torch.optim.SGD(weights, lr=given.lr, weight_decay=given.l2)
        case Adagrad():
            return lambda weights: torch.optim.Adagrad(
                weights, lr=given.lr, eps=given.eps, initial_accumulator_value=given.initial, weight_decay=given.l2
            )
        case Adam() | AdamW():
            kind = torch.optim.Adam if isinstance(given, Adam) else torch.optim.AdamW
            decay = given.l2 if isinstance(given, Adam) else given.weight_decay
            betas = given.beta1, given.beta2
            return lambda weights: kind(
                weights, lr=given.lr, betas=betas, eps=given.eps, weight_decay=decay, foreach=True
            )
    if not callable(given) or isinstance(given, type):
        shown = given.__name__ if isinstance(given, type) else repr(given)
        raise PlanError(
            f"optimizer must be cb.optim.Adam(…), cb.optim.AdamW(…), cb.Adagrad(…), cb.optim.SGD(…) or a function, got {shown}"
        )

    def made(weights: Any) -> torch.optim.Optimizer:
        found = given(weights)
        if not isinstance(found, torch.optim.Optimizer):
            raise PlanError(f"the optimizer function returned a {type(found).__name__}; expected a torch optimizer")
        return found

    return made


def finite_step(optimizer: torch.optim.Optimizer) -> bool:
    """Make a step and return True. If a weight or a state would not be finite after it, change nothing and return False.

    Gradients below 1e15 cannot cause this, because their squares are below 1e30, and float32 reaches 3e38. So the
    weights are copied only if there is a larger gradient.
    """
    weights = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not weights:
        optimizer.step()
        return True
    grads = [p.grad.coalesce().values() if p.grad.is_sparse else p.grad for p in weights]
    largest = torch.stack([torch.linalg.vector_norm(g, float("inf")) for g in grads if g.numel()]).max()
    if float(largest) * max(1.0, *(float(group["lr"]) for group in optimizer.param_groups)) < SAFE:
        optimizer.step()
        return True
    if not torch.isfinite(largest):
        return False
    before, state = [p.detach().clone() for p in weights], copy.deepcopy(optimizer.state_dict())
    optimizer.step()
    now = [*weights, *optimizer_state(optimizer)[0].values()]
    if all(bool(torch.isfinite(t).all()) for t in now):
        return True
    with torch.no_grad():
        for weight, value in zip(weights, before, strict=True):
            weight.copy_(value)
    optimizer.load_state_dict(state)
    return False


def checked_device(name: str) -> torch.device:
    """Return a torch device. Raise a `PlanError` if torch does not know it, or if this machine does not have it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError, ValueError, NotImplementedError) as error:
        why = str(error).splitlines()[0][:200]
        raise PlanError(f"device= must be 'cpu', or 'cuda' on a machine with a GPU, got {name!r}: {why}") from error
    return device


def optimizer_state(optimizer: torch.optim.Optimizer | None) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors of the state by "parameter.name", and its other values by names of the same form."""
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
        raise DataError(
            f"{place} contains the optimizer state of more weights than this model has; load it with the model that it was "
            "saved with"
        )
    optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
