"""Reads the number of processes and the number of this process from the environment variables that torchrun sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ctrbox.errors import DeviceError

MOST_RANKS = 1024
LAUNCHED = "CTRBOX_LAUNCHED"  # set by start_and_watch_ranks.py, which reports failures itself
EXCHANGES = ("auto", "nccl", "gloo")  # ways in which ranks on GPUs exchange tensors
GPUS = "CTRBOX_GPUS"  # set by start_and_watch_ranks.py: number of GPUs of this machine that the ranks use


@dataclass(frozen=True)
class World:
    """One of ``size`` processes that train together. ``rank``: its number over all machines, from 0."""

    rank: int
    size: int
    local_size: int  # processes on this machine
    host: str  # where the store listens at which all processes meet
    port: int
    store_is_served: bool  # by the launcher; otherwise rank 0 serves it
    attempt: int  # how often the launcher has restarted all processes
    launched: bool  # by ``ctrbox train --ranks``
    local_rank: int = 0  # counts from 0 on this machine
    gpus: int | None = None  # number of GPUs of this machine that the ranks use, where --gpus has set it

    @property
    def leads(self) -> bool:
        """Whether this process evaluates, writes the run folder and reports."""
        return self.rank == 0

    @staticmethod
    def here(environment: Mapping[str, str] = os.environ) -> World | None:
        """Return what the environment says about this process, or None if it does not train together with others."""
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            return None
        size = _number(environment, "WORLD_SIZE", 1, MOST_RANKS)
        rank = _number(environment, "RANK", 0, size - 1)
        if size == 1:
            return None
        if not environment.get("MASTER_ADDR"):
            raise DeviceError(
                f"RANK={rank} and WORLD_SIZE={size} are set, but MASTER_ADDR is not, so the ranks cannot find each other; "
                "start them with torchrun, or with ctrbox train --ranks"
            )
        return World(
            rank,
            size,
            _number(environment, "LOCAL_WORLD_SIZE", 1, size) if "LOCAL_WORLD_SIZE" in environment else 1,
            environment["MASTER_ADDR"],
            _number(environment, "MASTER_PORT", 1, 65_535),
            environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            _number(environment, "TORCHELASTIC_RESTART_COUNT", 0, 2**31)
            if "TORCHELASTIC_RESTART_COUNT" in environment
            else 0,
            environment.get(LAUNCHED) == "1",
            _number(environment, "LOCAL_RANK", 0, size - 1) if "LOCAL_RANK" in environment else 0,
            _number(environment, GPUS, 1, MOST_RANKS) if GPUS in environment else None,
        )


def _number(environment: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = environment.get(name, "")
    if not text.isdecimal() or not low <= int(text) <= high:
        raise DeviceError(
            f"the environment variable {name} must be a whole number from {low:,} to {high:,}, got {text!r}; start the ranks "
            "with torchrun, or with ctrbox train --ranks"
        )
    return int(text)
