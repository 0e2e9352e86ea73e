"""Checks the settings of a training run, chooses its device, and identifies runs by their settings."""

from __future__ import annotations

import contextlib
import dis
import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import flag, is_number, number, share, shown_value, whole
from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.embedder import Embedder
from ctrbox.embed.embedder_traits import settings_of as table_settings
from ctrbox.embed.embedder_traits import traits_of
from ctrbox.engines.choose_device import wants_gpu
from ctrbox.engines.cuda.runtime import gpu_of_process, use_gpu_of, why_not
from ctrbox.errors import DataError, DeviceError, PlanError
from ctrbox.evaluate.calibration import MOST_SHIFT
from ctrbox.evaluate.calibration_maps import KINDS
from ctrbox.train.schedule import CONSTANT, Schedule

DEVICES = ("auto", "cpu", "cuda")
MONITORS = ("logloss", "auc", "gauc", "weighted_logloss", "weighted_auc", "weighted_gauc")
CALIBRATIONS = ("weights", "intercept", *KINDS)
OF_THE_TRAINER = ("embedder", "optimizer", "threads", "device", "bf16", "common", "lr")  # arguments of cb.Trainer
# Settings that are whole numbers: the least and the largest that each may be.
WHOLE = {
    "batch_size": (1, 2**24),
    "epochs": (1, 10_000),
    "limit": (1, 2**62),
    "shuffle": (0, 2**31 - 1),
    "patience": (1, 2**62),
    "evaluate_every": (1, 2**62),
    "seed": (0, 2**63 - 1),
}
CALIBRATION_SHARE, MOST_CALIBRATION_ROWS = 0.1, 1_000_000  # of the training rows; more do not make a map better
STEPS = 250  # of an epoch: with fewer a model of fresh weights has hardly moved
LEAST_BATCH, MOST_BATCH = 64, 16_384
MOST_CLIP = 1e308  # of a gradient, about the largest float


@dataclass(frozen=True)
class Settings:
    """The arguments of ``Trainer.fit`` that decide the weights. Rows are rows of the log unless said otherwise."""

    batch_size: int | None = None  # None: a power of two that gives about STEPS steps an epoch
    epochs: int = 1
    valid: float = 0.1  # share of the log, its newest rows; 0: none
    limit: int | None = None  # of the log, to try things out
    shuffle: int = 0
    negatives: float = 1.0  # share of the rows without a click that is kept
    patience: int | None = None  # evaluations without improvement after which training stops
    monitor: str | None = (
        None  # None: the loss that training lowers, weighted_logloss where rows have weights, else logloss
    )
    evaluate_every: int | None = None  # steps; None: after each epoch
    clip: float | None = None
    seed: int = 0
    schedule: Schedule = CONSTANT
    calibrate: str | float | None = None  # what corrects logits; see ``ctrbox.evaluate.calibration``
    calibrate_share: float | None = None  # of the training rows, the newest; None: `CALIBRATION_SHARE`
    calibrate_by: str | None = None  # a sparse field, each frequent key of which gets a map of its own
    calibrate_trend: bool = False  # whether the map corrects for a drift of the click rate over the calibration rows
    adaptive_l2: float = 0.0  # a key's gradient += this · its row / how often it was met: rare keys are held most
    l2: float = 0.0  # a key's gradient of the summed loss += this · its row, for each time that the batch has the key
    average: float | None = None  # decay of a moving average of the dense weights, which are evaluated and saved

    def __post_init__(self) -> None:
        for name, (low, high) in WHOLE.items():
            if getattr(self, name) is not None or name in ("epochs", "shuffle", "seed"):
                object.__setattr__(self, name, whole(name, getattr(self, name), low, high))
        object.__setattr__(self, "valid", share("valid", self.valid, 0.0, 0.9))
        object.__setattr__(self, "negatives", share("negatives", self.negatives, 1e-6, 1.0))
        if self.clip is not None:
            object.__setattr__(self, "clip", number("clip", self.clip, 0, MOST_CLIP, above=True))
        object.__setattr__(self, "adaptive_l2", number("adaptive_l2", self.adaptive_l2, 0, 1_000_000))
        object.__setattr__(self, "l2", number("l2", self.l2, 0, 1_000_000))
        if self.average is not None and not (is_number(self.average) and 0 < self.average < 1):
            raise PlanError(f"average must be a number above 0 and below 1, such as 0.999, got {self.average!r}")
        several = isinstance(self.monitor, str) and (
            self.monitor == "loss" or "." in self.monitor
        )  # a metric of several labels, which train/several_labels.py checks
        if self.monitor is not None and self.monitor not in MONITORS and not several:
            raise PlanError(
                f"monitor must be one of {', '.join(MONITORS)}, got {self.monitor!r}{nearest(str(self.monitor), MONITORS)}"
            )
        if is_number(self.calibrate):
            object.__setattr__(self, "calibrate", self.shift)
        if self.calibrate not in (None, *CALIBRATIONS) and not (
            is_number(self.calibrate) and abs(self.shift) < MOST_SHIFT
        ):
            raise PlanError(
                f"calibrate must be 'platt', 'isotonic', 'weights', 'intercept', or a number above -{MOST_SHIFT:g} and below "
                f"{MOST_SHIFT:g} that is added to every logit, got {shown_value(self.calibrate)}"
                f"{nearest(self.calibrate, CALIBRATIONS) if isinstance(self.calibrate, str) else ''}"
            )
        self._check_calibration()
        if not callable(self.schedule):
            raise PlanError(
                f"schedule must be a function from a step to a factor, such as cb.optim.Cosine, got {self.schedule!r}"
            )

    def _check_calibration(self) -> None:
        if self.calibrate_share is not None:
            object.__setattr__(self, "calibrate_share", share("calibrate_share", self.calibrate_share, 1e-6, 0.9))
        if self.calibrate_by is not None and not isinstance(self.calibrate_by, str):
            raise PlanError(f"calibrate_by must be the name of a sparse feature, got {self.calibrate_by!r}")
        object.__setattr__(self, "calibrate_trend", flag("calibrate_trend", self.calibrate_trend))
        for name in ("calibrate_share", "calibrate_by", "calibrate_trend"):
            if getattr(self, name) not in (None, False) and not self.fits_map:
                raise PlanError(
                    f"{name}= needs calibrate='platt' or calibrate='isotonic', got calibrate={self.calibrate!r}; change "
                    f"calibrate=, or remove {name}="
                )

    @property
    def fits_map(self) -> bool:
        """Whether a calibration map is fitted after the training, to rows that are held back for it."""
        return self.calibrate in KINDS

    def calibration_rows(self, rows: int) -> int:
        """Return how many of this number of training rows, the newest, are held back for the calibration map."""
        if not self.fits_map:
            return 0
        part = CALIBRATION_SHARE if self.calibrate_share is None else self.calibrate_share
        return min(round(rows * part), MOST_CALIBRATION_ROWS)

    @property
    def shift(self) -> float:
        """The number that ``calibrate`` adds to every logit, as far as it is known before training."""
        return float(self.calibrate) if self.calibrate is not None and is_number(self.calibrate) else 0.0

    def plain(self) -> dict[str, Any]:
        return {**asdict(replace(self, schedule=CONSTANT)), "schedule": described(self.schedule)}


def with_batch_size(settings: Settings, rows: int) -> Settings:
    """Return the settings with a batch size for this number of training rows."""
    if settings.batch_size is not None:
        return settings
    size = LEAST_BATCH
    while size < MOST_BATCH and size * STEPS < rows:
        size *= 2
    return replace(settings, batch_size=size)


def no_setting(given: Mapping[str, Any], names: Iterable[str]) -> PlanError:
    """Return the error for arguments that ``Trainer.fit`` does not have; ``names`` are those that it has."""
    name, value = next(iter(given.items()))
    if name in OF_THE_TRAINER or name == "learning_rate":
        right = "lr" if name == "learning_rate" else name
        return PlanError(
            f"{name} is an argument of the trainer, not of fit: cb.Trainer(…, {right}={_short(value)})"
            + ("; on the command line: ctrbox train --lr" if right == "lr" else "")
        )
    known = [known for known in names if known not in ("self", "plan", "unknown")]
    return PlanError(f"there is no setting {name!r}{nearest(name, known)}; expected one of {', '.join(known)}")


def device_for(asked: str, embedder: Any, plan: Plan) -> torch.device:
    """Return the device of a model. "auto" is that of its GPU tables; else the GPU if its plan runs there, else the CPU.

    A plan that chose the GPU by itself does not move tables that are in memory.
    """
    given = [*embedder.values()] if isinstance(embedder, Mapping) else [embedder]
    homes = {home for t in given if t is not None and (home := traits_of(t).device) is not None}
    if len(homes) > 1:
        raise PlanError(
            f"the tables of this training are on different devices ({' and '.join(sorted(map(str, homes)))}); put all of "
            "them on the same device"
        )
    if homes:
        home = homes.pop()
        if asked not in ("auto", home.type, str(home)):
            raise PlanError(
                f"device={asked!r} cannot train with a cb.tables.GpuTable on {home}; use device='auto', or a cb.MemoryTable"
            )
        return home
    for device in (asked, plan.device):
        use_gpu_of(device)
    named = plan.device != "auto" or embedder is None
    if asked == "cpu" or (asked == "auto" and not (named and wants_gpu(plan.device))):
        return torch.device("cpu")
    missing = why_not()
    if missing:
        raise DeviceError(f"training on device='cuda': {missing}")
    return gpu_of_process()


def identity(
    plan: Plan, valid: Plan | None, model: nn.Module, tables: list[Embedder], settings: Settings
) -> dict[str, Any]:
    """Return everything that decides the weights at the end of a run."""
    import ctrbox

    versions = {view: table["version"] for view, table in plan.table_versions.items()}
    if valid is not None:
        versions |= {f"{view} (validation)": table["version"] for view, table in valid.table_versions.items()}
    return {
        "ctrbox": ctrbox.__version__,
        "torch": str(torch.__version__),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "machine": platform.machine(),
        "plan": plan.fingerprint,
        **({"version of the table": versions} if versions else {}),
        "data": [*plan.data_fingerprints(), *(valid.data_fingerprints() if valid is not None else ())],
        "model": type(model).__name__,
        "model config": config_of(model),
        "code of the model": _code(model),
        "tables": [described_table(t) for t in tables],
        "settings": settings.plain(),
    }


def config_of(model: nn.Module) -> Any:
    """Return the config of a model, or None for a module without one. Raise a `PlanError` if it is not plain JSON."""
    config = getattr(model, "config", None)
    try:
        json.dumps(config)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"config of {type(model).__name__} must be plain JSON, so that it can be saved with the run: {error}"
        ) from None
    return config


def same_run(folder: Any, kept: Any, mine: dict[str, Any]) -> None:
    """Refuse to continue a run of other code, data or settings, and name the first difference."""
    if not isinstance(kept, dict):
        raise DataError(
            f"{folder} has a damaged config.json, which does not say what the run trains; restore it from a copy, or start "
            "over with overwrite=True"
        )
    for name, value in mine.items():
        there = kept.get(name)
        if name == "precision" and there is None and "device" in kept:  # a run of 0.2 names both in one text
            there = "bfloat16" if "bf16" in str(kept["device"]) else "float32"
        if there == value:
            continue
        if isinstance(value, dict) and isinstance(there, dict):
            key = next(k for k in value if there.get(k) != value[k]) if set(there) == set(value) else ""
            if key:
                name, there, value = f"{name} {key!r}", there.get(key), value[key]
        raise DataError(
            f"{folder} holds an unfinished run that differs in {name}: "
            f"it has {_short(there)}, but this training has "
            f"{_short(value)}; resume with the original value, or start over with overwrite=True"
        )


def described_table(table: Embedder) -> str:
    """Return the kind of a table and the settings that decide its rows, as text that is the same in every process.

    If a table writes the files of another kind, as one on a GPU does, it has that name, because a run may continue with either.
    """
    shown = [f"{name}={described(value)}" for name, value in table_settings(table).items()]
    return f"{traits_of(table).saved_as or type(table).__name__}({', '.join(shown)})"


def _code(model: nn.Module) -> str:
    """Return a checksum of the compiled methods of the model's class and of its parents below nn.Module."""
    digest = hashlib.sha256()
    for cls in type(model).__mro__:
        if cls in (nn.Module, object):
            continue
        for name, value in sorted(vars(cls).items()):
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, FunctionType):
                digest.update(name.encode())
                _add_code(digest, function.__code__)
    return digest.hexdigest()[:16]


def _add_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code + repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        elif not isinstance(constant, frozenset):  # printed in any order
            digest.update(repr(constant).encode())


def described(value: Any) -> str:
    """Return a text that is the same for the same thing in every process, also for a function with the values that it uses."""
    function = getattr(value, "__func__", value)
    if isinstance(function, FunctionType):
        digest = hashlib.sha256()
        _add_code(digest, function.__code__)
        if used := _values_used(function):
            digest.update(repr(used).encode())
        return f"{function.__qualname__} {digest.hexdigest()[:16]}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _values_used(function: FunctionType) -> list[tuple[str, Any]]:
    """Return the numbers and texts that a function does not contain but uses: defaults, and variables from outside."""
    found = [(f"default {k}", value) for k, value in enumerate(function.__defaults__ or ())]
    found += sorted((function.__kwdefaults__ or {}).items())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            found.append((name, cell.cell_contents))
    known = function.__globals__
    found += [
        (name, known[name]) for name in sorted(_globals_read(function.__code__) & known.keys()) if name[:2] != "__"
    ]
    return [(name, value) for name, value in found if isinstance(value, bool | int | float | str)]


def _globals_read(code: CodeType) -> set[str]:
    """Return the names of the global variables that a function reads, or a function within it."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return found.union(*(_globals_read(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
