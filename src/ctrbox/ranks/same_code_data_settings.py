"""Checks that all processes of a distributed training run have the same code, data and settings."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

import ctrbox
from ctrbox.compiled_plan.plan import Plan
from ctrbox.errors import PlanError


@cache
def code() -> str:
    """Return a digest of all source files of the package."""
    home, digest = Path(ctrbox.__file__).parent, hashlib.sha256()
    for path in sorted(home.rglob("*.py")):
        digest.update(str(path.relative_to(home)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def facts_here() -> dict[str, Any]:
    """Return the facts of this process."""
    return {
        "ctrbox": f"{ctrbox.__version__} {code()}",
        "torch": str(torch.__version__),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "machine": platform.machine(),
    }


def facts_of(plan: Plan, folder: Path) -> dict[str, Any]:
    """Return the facts of a plan as this process sees it: the same features over the same files, and the same run
    folder.
    """
    config = folder / "config.json"
    return {
        **facts_here(),
        "plan": plan.fingerprint,
        "data": plan.data_fingerprints(),
        "run folder": hashlib.sha256(config.read_bytes()).hexdigest()[:16] if config.exists() else "not visible",
    }


def check_same(mine: Mapping[str, Any], theirs: Mapping[str, Any], who: str) -> None:
    """Raise a PlanError if another process differs from this one, and say in what. ``who``: the other process, in words."""
    for name, met in theirs.items():
        expected = mine.get(name)
        if met == expected:
            continue
        if name == "run folder":
            raise PlanError(
                f"{who} cannot see the run folder of this training run; choose an out= on a file system that all "
                f"machines share"
            )
        if isinstance(met, list) and isinstance(expected, list) and len(met) == len(expected):
            met, expected = next((a, b) for a, b in zip(met, expected, strict=True) if a != b)
        raise PlanError(
            f"{who} differs in {name}: {met!r}, expected {expected!r}; give all processes the same code, data and settings"
        )
