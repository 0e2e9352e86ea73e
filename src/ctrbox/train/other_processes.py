"""Defines ``OtherProcesses``: the interface to processes that train in place of this one, such as ranks or a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ctrbox.files.stored_folder import StoredFolder
from ctrbox.train.run import Run

if TYPE_CHECKING:
    from ctrbox.train.fit import Fit


class OtherProcesses(Protocol):
    """Several processes that continue a training run from its newest checkpoint to its end, such as ``cb.Cluster``."""

    leads: bool  # whether this process keeps the run folder; others only follow
    # Whether the processes keep the rows of tables to the end, so that this one never holds all of them.
    keeps_rows: bool

    def check(self, fit: Fit) -> None:
        """Refuse a training run that these processes cannot make, before anything is written."""

    def train(self, fit: Fit) -> None:
        """Train into the run folder of ``fit``; the learner of ``fit`` does not change.

        With ``keeps_rows``, ``fit`` gets a learner whose tables ask all processes, for evaluating and for saving the model.
        """

    def ended(self, fit: Fit, summary: Mapping[str, Any], kept: Path | None, stored: StoredFolder | None) -> Run:
        """End the processes if they kept rows (``keeps_rows``), and return the run whose model ``fit`` has saved in ``kept``."""

    def follow(self, fit: Fit) -> NoReturn:
        """Take part in a training run that another process leads, and raise an exception that says so at its end."""
