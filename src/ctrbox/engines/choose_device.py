"""Chooses the device of a plan: checks the given name, and resolves "auto" to a GPU if one can be used."""

from __future__ import annotations

import warnings
from typing import Any

from ctrbox.errors import PlanError
from ctrbox.plan.language.features import FeatureSet
from ctrbox.plan.placement.device_description import Device, device_named, gpu_here


def checked_device(device: Any) -> Any:
    """Return the device as it was given. Raise a PlanError if it names no device, whether or not there is a GPU here."""
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
            f"a plan with several labels (labels=) runs on the CPU only, got device={named!r}; use device='cpu', or "
            "a single label (label=)"
        )
    return "cpu" if named == "auto" else named


def wants_gpu(device: Any) -> bool:
    """Return whether a plan for ``device`` runs on a GPU: always if it names one, and for "auto" if this process can use one."""
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
