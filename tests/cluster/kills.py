"""Kills that surely hit: a model that says at which step it is, and waits there until the kill has been done."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import torch

import ctrbox as cb
from ctrbox.models.inputs import Inputs
from tests.cluster.ray_processes import processes

PATIENCE = 300.0  # seconds, of a machine that does other things


class Paused(cb.models.DeepFM):
    """Every worker waits in the middle of step ``stops[0]`` until somebody says that it may go on, then of ``stops[1]`` …

    Steps are counted anew behind a recovery. Each stop is made once."""

    def __init__(self, schema: cb.types.Schema, folder: Path, stops: list[int]) -> None:
        super().__init__(schema, dim=4)
        self.folder, self.stops, self.steps = folder, stops, 0

    def forward(self, x: Inputs) -> torch.Tensor:
        if self.training:
            self.steps += 1
            number = len(list(self.folder.glob("gone-on-*")))
            # Not from that step on: who comes late to a stop that is over must not take it for the next one.
            if number < len(self.stops) and self.steps == self.stops[number]:
                (self.folder / f"waits-{number}").touch()
                gone_on, until = self.folder / f"gone-on-{number}", time.monotonic() + PATIENCE
                while not gone_on.exists() and time.monotonic() < until:
                    time.sleep(0.005)
        return super().forward(x)


class Killer(threading.Thread):
    """Kills the newest process of each name while the training waits at the stop of that number."""

    def __init__(self, folder: Path, victims: list[str]) -> None:
        super().__init__(daemon=True)
        self.folder, self.victims, self.killed = folder, victims, list[str]()

    def run(self) -> None:
        for number, name in enumerate(self.victims):
            until = time.monotonic() + PATIENCE
            while not (self.folder / f"waits-{number}").exists():
                if time.monotonic() > until:
                    return
                time.sleep(0.005)
            try:
                os.kill(processes(f"ray::{name}")[-1], signal.SIGKILL)
                self.killed.append(name)
            finally:
                (self.folder / f"gone-on-{number}").touch()
