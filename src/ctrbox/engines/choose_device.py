"""Chooses the device of a plan: checks the given name, and resolves "auto" to a GPU where one can be used."""

from __future__ import annotations

import warnings
from typing import Any

from ctrbox.errors import PlanError
from ctrbox.plan.language.features import FeatureSet
from ctrbox.plan.placement.device_description import Device, device_named, gpu_here


def checked_device(device: Any) -> Any:
    """The device as it was named; PlanError where that names none, whether or not there is a GPU here."""
    if not isinstance(device, Device):
        device_named(device, gpu_bytes=1)
    return device


def device_of_labels(features: FeatureSet, device: Any) -> Any:
    """Check the device of a plan and return it; for a plan with several labels, "auto" becomes the CPU and a GPU is an error."""
    named = checked_device(device)
    if not features.labels:
        return named
    kind = (
        named.kind if isinstance(named, Device) else "cpu" if named == "auto" else device_named(named, gpu_bytes=1).kind
    )
    if kind == "cuda":
        raise PlanError(
            f"a plan with several labels (labels=) runs on the CPU only, got device={named!r}; use device='cpu', or one label="
        )
    return "cpu" if named == "auto" else named


def wants_gpu(device: Any) -> bool:
    """Whether a plan for ``device`` runs on a GPU here: always where one is named, for "auto" where one can be used."""
    if isinstance(device, Device):
        return device.kind == "cuda"
    if device != "auto":
        return device_named(device, gpu_bytes=1).kind == "cuda"
    if not gpu_here():
        return False
    from ctrbox.engines.cuda.runtime import why_not

    missing = why_not()
    if missing:
        warnings.warn(f"this machine has a GPU, but the plan runs on the CPU: {missing}", stacklevel=3)
    return not missing
