"""Describes the device of a plan: the CPU, or a GPU with a given memory and a number of CPU cores beside it.

This module needs no GPU. A device is a description, and a plan can be placed on a device that this machine does not have.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import is_number, shown_value, whole
from ctrbox.arguments.sizes import MOST_BUDGET, bytes_within, parse_bytes
from ctrbox.errors import PlanError

GPUS = Path("/proc/driver/nvidia/gpus")
CONTROL = Path("/dev/nvidiactl")  # all there is to see in some containers
PARQUET_SWITCH = "CTRBOX_GPU_PARQUET"  # 1: the GPU decodes the Parquet files of a log; 0 or unset: the CPU does
CORES = 16  # beside a GPU of a data center
MOST_DIGITS = 4  # of the number of a GPU
PCIE_GBS = 54.0  # measured on an H200, pinned memory, PCIe 5


@dataclass(frozen=True)
class Device:
    """The device on which a plan's operators are placed: ``Device("cuda", memory="80GB")``, or ``Device("cpu")``.

    ``cores``: number of CPU cores beside the GPU. ``pcie``: bandwidth to the GPU in GB (10⁹ bytes) per second.
    """

    kind: str
    memory: int | str = 0
    note: str = field(default="", compare=False)
    cores: int = CORES
    pcie: float = PCIE_GBS

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in ("cpu", "cuda"):
            near = nearest(self.kind, ["cpu", "cuda"]) if isinstance(self.kind, str) else ""
            raise PlanError(f"the kind of a device must be 'cpu' or 'cuda', got {self.kind!r}{near}")
        if self.kind == "cuda" and self.budget == 0:
            raise PlanError('the memory of a GPU must be given: cb.types.Device("cuda", memory="80GB")')
        object.__setattr__(self, "cores", whole("cores of a device", self.cores, 1, 1_000_000))
        if not is_number(self.pcie) or not 1e-3 <= float(self.pcie) <= 1e6:
            raise PlanError(
                f"pcie of a device must be GB per second, from 0.001 to a million, got {shown_value(self.pcie)}"
            )
        object.__setattr__(self, "pcie", float(self.pcie))

    @property
    def budget(self) -> int:
        """The memory of the GPU in bytes; 0 for a CPU, which has no limit here."""
        return bytes_within("memory of a device", self.memory, 0, MOST_BUDGET)

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda with {shown_bytes(self.budget)}"


def device_named(device: Any, *, gpu_bytes: int | None = None) -> Device:
    """Return the device for "cpu", "cuda", "cuda:3", "cuda:32GB", "auto" or a `Device`.

    ``gpu_bytes``: the memory of this machine's GPU, if an engine has found it. Without a GPU, "auto" and "cuda" are the CPU, and
    the note of the device says so. Raise a PlanError for a "cuda" whose memory size is not known.
    """
    if isinstance(device, Device):
        return device
    if not isinstance(device, str):
        raise PlanError(
            f"a device must be 'cpu', 'cuda', 'cuda:0', 'cuda:32GB', 'auto' or a cb.types.Device, got {device!r}"
        )
    if gpu_number(device) is not None:
        device = "cuda"
    kind, colon, size = device.partition(":")
    if colon and kind == "cuda":
        return Device("cuda", parse_bytes(size))
    if device == "cpu":
        return Device("cpu")
    if device in ("auto", "cuda") and gpu_bytes is not None:
        return Device("cuda", gpu_bytes)
    if device == "cuda" and gpu_here():
        raise PlanError('the memory size of the GPU is not known; give it: cb.types.Device("cuda", memory="80GB")')
    if device in ("auto", "cuda"):
        why = "has no GPU" if not gpu_here() else "has no GPU of known size"
        note = (
            f"{device}: this machine {why}; to plan for a GPU that this machine does not have, describe it: "
            'cb.types.Device("cuda", memory="80GB")'
        )
        return Device("cpu", note=note)
    known = ["cpu", "cuda", "cuda:0", "cuda:32GB", "auto"]
    raise PlanError(f"{device!r} is not a device; expected one of {', '.join(known)}{nearest(device, known)}")


def gpu_number(device: Any) -> int | None:
    """Return the number of the GPU in a name such as "cuda:3", as torch names it; None for any other device."""
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    return int(number) if kind == "cuda" and number.isdecimal() and len(number) <= MOST_DIGITS else None


def gpu_decodes_parquet() -> bool:
    """Return whether the user lets a GPU decode the Parquet files of logs: ``CTRBOX_GPU_PARQUET=1``."""
    return os.environ.get(PARQUET_SWITCH, "0") not in ("", "0")


def gpu_here() -> bool:
    """Return whether a driver shows a GPU to this process; this loads no library."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    try:
        return any(GPUS.iterdir())
    except OSError:
        return CONTROL.exists()


def shown_bytes(count: float) -> str:
    """Return bytes in words, such as '1.5 KB' for 1536."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"
