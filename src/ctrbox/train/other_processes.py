"""Defines ``OtherProcesses``: what a training asks of several processes that train in its place, such as ranks or a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ctrbox.files.stored_folder import StoredFolder
from ctrbox.train.run import Run

if TYPE_CHECKING:
    from ctrbox.train.fit import Fit


class OtherProcesses(Protocol):
    """Takes a training from its newest checkpoint to its last in several processes, as ``cb.Cluster`` does."""

    leads: bool  # whether this process keeps the run folder; others only follow
    # Whether the processes keep the rows of tables to the end, so that this one never holds all of them.
    keeps_rows: bool

    def check(self, fit: Fit) -> None:
        """Refuse what it could not train, before anything is written."""

    def train(self, fit: Fit) -> None:
        """Train into the run folder of ``fit``; its learner is not touched.

        With ``keeps_rows``, ``fit`` gets a learner whose tables ask all processes, for evaluating and for saving the model.
        """

    def ended(self, fit: Fit, summary: Mapping[str, Any], kept: Path | None, stored: StoredFolder | None) -> Run:
        """With ``keeps_rows``: end the processes, and return the run whose model ``fit`` has saved. ``kept``: its folder."""

    def follow(self, fit: Fit) -> NoReturn:
        """Take part in a training that another process leads, and raise an exception that says so at its end."""
