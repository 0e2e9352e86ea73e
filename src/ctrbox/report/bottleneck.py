"""Finds the bottleneck of a pipeline: the stage that the others wait for.

A stage waits for input when an earlier stage holds it up, and for room behind it when a later one does. So the stage that
holds the others up is the one that waits least. It need not be the one with the most seconds of work: a stage that has
worked ahead waits for room while a later one works.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CLEAR = 0.6  # a stage that works for a smaller share of the time than this holds nobody up
ALIKE = 0.02  # shares of waiting that differ by less than this are taken as equal; the busier stage counts then


@dataclass(frozen=True)
class StageShares:
    """Shares of the pipeline's time, from 0 to 1, in which a stage worked and in which it waited for input or for room."""

    name: str
    busy: float
    waited: float


def least_waiting(stages: Iterable[StageShares]) -> StageShares | None:
    """Return the stage that waits least, the busiest of several that wait alike; None if there is no stage."""
    found = list(stages)
    least = min((stage.waited for stage in found), default=0.0)
    return max((stage for stage in found if stage.waited <= least + ALIKE), key=lambda s: s.busy, default=None)


def bottleneck(stages: Iterable[StageShares]) -> str:
    """Return the name of the stage that the others wait for; "" if no stage clearly is."""
    found = least_waiting(stages)
    return found.name if found is not None and found.busy >= CLEAR else ""
