"""How many cores torch takes while a model learns on the CPU.

Extraction and lookup work beside the model, on the same cores. Where torch has a thread on every core, each product of it
waits, spinning, for the thread whose core is at work for them: DeepFM of 9,067 dense weights used 32 s of processor time on
2 cores that others used too, 19 s with one thread. So torch leaves one core to the other stages where the dense part is
small. A large one is what takes the time, and keeps all cores.

The number depends on the model and the machine only, never on how busy that is: two trainings give the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

SMALL = 16_384  # dense weights; an estimate: on 2 cores a second thread that waits pays off from some 20,000 on


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(model: nn.Module, device: torch.device, given: int, cores: int) -> int:
    """Threads of torch out of those it was ``given``; fewer than cores is somebody's choice, and stays."""
    small = sum(p.numel() for p in model.parameters()) <= SMALL
    return cores - 1 if device.type == "cpu" and small and given >= cores > 1 else given


@contextmanager
def shared_cores(model: nn.Module, device: torch.device) -> Iterator[None]:
    """While inside, torch leaves a core to the stages beside a small model. To be entered by the thread that learns."""
    given = torch.get_num_threads()
    torch.set_num_threads(threads_for(model, device, given, usable_cores()))
    try:
        yield
    finally:
        torch.set_num_threads(given)
