"""What a training is asked for, and by which facts one run is told from another."""

from __future__ import annotations

import hashlib
import inspect
import platform
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn

from ctrbox.embed.embedder import Embedder
from ctrbox.engines.plan import Plan
from ctrbox.errors import DataError, PlanError, nearest
from ctrbox.train.schedule import Constant, Schedule

MONITORS = ("logloss", "auc", "gauc")


@dataclass(frozen=True)
class Settings:
    """``Trainer.fit``'s arguments that decide the weights. Rows are rows of the log unless said otherwise."""

    batch_size: int = 16_384
    epochs: int = 1
    valid: float = 0.1  # share of the log, its newest rows; 0: none
    limit: int | None = None  # of the log, to try things out
    shuffle: int = 0
    negatives: float = 1.0  # share of the rows without a click that is kept
    patience: int | None = None  # evaluations without improvement after which training stops
    monitor: str = "logloss"
    evaluate_every: int | None = None  # steps; None: after each epoch
    clip: float | None = None
    seed: int = 0
    schedule: Schedule = Constant()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        _whole("batch_size", self.batch_size, 1, 2**24)
        _whole("epochs", self.epochs, 1, 10_000)
        _whole("shuffle", self.shuffle, 0, 2**31 - 1)
        _whole("seed", self.seed, 0, 2**63 - 1)
        for name in ("limit", "patience", "evaluate_every"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1, 2**62)
        _share("valid", self.valid, 0.0, 0.9)
        _share("negatives", self.negatives, 1e-6, 1.0)
        if self.clip is not None and not (isinstance(self.clip, int | float) and 0 < self.clip < float("inf")):
            raise PlanError(f"clip must be a number above 0, got {self.clip!r}")
        if self.monitor not in MONITORS:
            raise PlanError(
                f"monitor must be one of {', '.join(MONITORS)}, got {self.monitor!r}{nearest(str(self.monitor), MONITORS)}"
            )
        if not callable(self.schedule):
            raise PlanError(f"schedule must give a factor for a step, as cb.Cosine does, got {self.schedule!r}")

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "schedule": repr(self.schedule)}


def settings_of(given: dict[str, Any]) -> Settings:
    known = [f.name for f in fields(Settings)]
    for name in given:
        if name not in known:
            raise PlanError(f"there is no setting {name!r}{nearest(name, known)}; expected one of {', '.join(known)}")
    return Settings(**given)


def identity(
    plan: Plan, valid: Plan | None, model: nn.Module, tables: list[Embedder], settings: Settings
) -> dict[str, Any]:
    """Everything that decides the weights a run ends with."""
    import ctrbox

    return {
        "ctrbox": ctrbox.__version__,
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "plan": plan.fingerprint,
        "data": _data(plan) if valid is None else [*_data(plan), *_data(valid)],
        "model": type(model).__name__,
        "model config": getattr(model, "config", None),
        "code of the model": _code(model),
        "tables": [_table(t) for t in tables],
        "settings": settings.plain(),
    }


def same_run(folder: Any, kept: Any, mine: dict[str, Any]) -> None:
    """Refuse to go on with a run of other code, data or settings, and name the first difference."""
    if not isinstance(kept, dict):
        raise DataError(f"{folder} has a damaged config.json: its identity is missing")
    for name, value in mine.items():
        there = kept.get(name)
        if there == value:
            continue
        if isinstance(value, dict) and isinstance(there, dict):
            key = next(k for k in value if there.get(k) != value[k]) if set(there) == set(value) else ""
            if key:
                name, there, value = f"{name} {key!r}", there.get(key), value[key]
        raise DataError(
            f"{folder} holds an unfinished run that differs in {name}: {_short(there)} there, {_short(value)} now; resume "
            "with what it began with, or begin anew with overwrite=True"
        )


def _data(plan: Plan) -> list[list[str]]:
    views = {id(s.view): s.view for frame in plan.graph.frames for s in frame.sources}
    return [[view.name, view.source.fingerprint()] for view in views.values()]


def _table(table: Embedder) -> str:
    shown = [f"{n}={getattr(table, n)!r}" for n in ("row", "optimizer", "linear", "init", "seed") if hasattr(table, n)]
    return f"{type(table).__name__}({', '.join(shown)})"


def _code(model: nn.Module) -> str:
    try:
        return hashlib.sha256(inspect.getsource(type(model)).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""  # typed at a prompt: its source cannot be read again


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise PlanError(f"{name} must be a whole number from {low:,} to {high:,}, got {value!r}")


def _share(name: str, value: Any, low: float, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise PlanError(f"{name} must be a share from {low:g} to {high:g}, got {value!r}")
