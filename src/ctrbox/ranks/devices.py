"""Gives each rank its GPU, and chooses how ranks on GPUs exchange tensors.

On a machine with G GPUs, the rank with number r on this machine uses ``cuda:(r mod G)``; ``--gpus`` sets a smaller G. NCCL moves
the tensors if every rank has a GPU of its own. Ranks that share a GPU, which NCCL refuses, move their tensors through main memory
with gloo.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import torch

from ctrbox.errors import DeviceError, PlanError


def check_gpus(gpus: int, present: int) -> None:
    """Raise an error if ``--gpus`` asks for more GPUs than this machine has."""
    if present < 1:
        raise DeviceError(
            f"--gpus {gpus} needs {_gpus(gpus)}, but this machine shows no GPU that torch can use; remove --gpus to train on CPUs"
        )
    if gpus > present:
        last = f"cuda:0 to cuda:{present - 1}" if present > 1 else "cuda:0"
        raise DeviceError(
            f"--gpus {gpus} needs {_gpus(gpus)}, but this machine has {_gpus(present)} ({last}); use --gpus {present}, and "
            "--ranks if several processes should share a GPU"
        )


def gpu_of_rank(local_rank: int, gpus: int | None, present: int) -> int | None:
    """Return the number of the GPU that a rank uses, from the rank's number on its machine; None if there is no GPU.

    ``gpus``: number of GPUs that --gpus asked for; ``present``: number of GPUs of this machine.
    """
    if gpus is not None:
        check_gpus(gpus, present)
    elif not present:
        return None
    return local_rank % (gpus or present)


def place_of(device: torch.device) -> str:
    """Return a text that identifies the GPU of this rank among all machines; empty for a CPU."""
    if device.type != "cuda":
        return ""
    return f"{device} of {socket.gethostname()} ({torch.cuda.get_device_properties(device).uuid})"


def chosen_exchange(asked: str, places: Sequence[str], nccl: bool) -> str:
    """Return "nccl" or "gloo" for ranks on these GPUs; ``nccl``: whether this torch has NCCL.

    ``places``: for each rank, the text that ``place_of`` returns.
    """
    if asked == "gloo":
        return "gloo"
    shared = [rank for rank, place in enumerate(places) if places.count(place) > 1]
    if not all(places):
        if asked == "nccl":
            raise PlanError(
                "--exchange nccl moves tensors between GPUs, but this training runs on CPUs; add --gpus, or remove --exchange"
            )
        return "gloo"
    if asked == "nccl" and shared:
        both = [rank for rank, place in enumerate(places) if place == places[shared[0]]]
        raise DeviceError(
            f"ranks {' and '.join(map(str, both))} use the same GPU ({places[shared[0]]}), which NCCL does not support; "
            "start one rank per GPU, or use --exchange gloo, which moves tensors through main memory"
        )
    if asked == "nccl" and not nccl:
        raise DeviceError(
            f"--exchange nccl needs a torch that was built with NCCL, but this torch ({torch.__version__}) was not; use "
            "--exchange gloo"
        )
    return "nccl" if nccl and not shared else "gloo"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
