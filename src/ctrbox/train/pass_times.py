"""Measures what the stages and the tables of a training run do in each pass.

A pass is a twentieth of an epoch, or a larger part if the run has more than 20 epochs.

AIBox also reports its pipeline by passes: Table 1 of the paper compares the time of a stage with that of a pass, and Figure 7
shows the requests to cache, SSD and filters in each pass. A pass does not contain the time of evaluations and checkpoints, nor
what evaluations read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ctrbox.embed.embedder import Embedder
from ctrbox.embed.embedder_traits import full, traits_of
from ctrbox.train.pipeline import Clock

OF_AN_EPOCH = 20
MOST = 400  # of a training of many epochs

# What a table counts up, and what it holds at a moment: names of its ``stats()``, which may have some of them only.
COUNTED = ("asked", "hits", "misses", "new", "false_positives", "reads", "bytes_read", "bytes_written", "evicted")
BY_ANYONE = ("false_positives", "reads", "bytes_read")  # also counted where nothing is created: by an evaluation
HELD = ("keys", "resident", "capacity", "runs", "disk_bytes")

Counters = dict[str, float]
Stats = Callable[[], Mapping[str, int]]


class Passes:
    """Watches stages and tables from ``begin`` on. Tables without counters are left out."""

    def __init__(self, clocks: Sequence[Clock], embedders: Sequence[Embedder], epochs: int) -> None:
        self.clocks = clocks
        self.stats = {f"table-{k}": found for k, e in enumerate(embedders) if (found := stats_of(e)) is not None}
        self.each = max(1, min(OF_AN_EPOCH, MOST // epochs))
        self.number = 0  # of the last pass that ended
        self.done: dict[str, Counters] = {}  # over the passes that ended in this process

    def begin(self, epochs: float) -> None:
        """Begin to watch. ``epochs`` is the number of epochs that are already done, which may be a fraction."""
        self.number = int(epochs * self.each + 1e-9)
        self.sums: dict[str, Counters] = {}
        self._begin_at(
            {kind: stats() for kind, stats in self.stats.items()}, by_stage(self.clocks), time.perf_counter()
        )

    def end(self, epochs: float) -> dict[str, dict[str, Any]]:
        """Return the values of the pass that ends at this point of the log, by kind ("stages", "table-0", "table-1" …),
        if one ends there.
        """
        number = int(epochs * self.each + 1e-9)
        if number <= self.number:
            return {}
        self.number = number
        held = self._gather()
        if not self.sums["stages"]["learn_busy"]:
            return {}
        found, self.sums = self.sums, {}
        told = {}
        for kind, counted in found.items():
            add(self.done.setdefault(kind, {}), counted)
            shown = {n: v for n, v in counted.items() if not n.endswith(("_given", "_depths"))}
            told[kind] = {"pass": number, **shown, **ratios(kind, counted), **held.get(kind, {})}
        return told

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause during an evaluation: its time and what it reads do not belong to a pass. What stages do ahead meanwhile does."""
        self._gather()
        try:
            yield
        finally:
            self._gather(paused=True)

    def skip(self, seconds: float) -> None:
        """Leave out time that does not belong to the pass."""
        self.began += seconds

    # ---- inside
    def _begin_at(self, counted: dict[str, Mapping[str, int]], worked: Counters, now: float) -> None:
        self.counted, self.worked, self.began = counted, worked, now

    def _gather(self, paused: bool = False) -> dict[str, Mapping[str, int]]:
        """Add what happened since the last call, and what the tables contain now."""
        # One reading ends this stretch and begins the next: stages go on working between two readings.
        counted = {kind: stats() for kind, stats in self.stats.items()}
        worked, now = by_stage(self.clocks), time.perf_counter()
        seconds = 0.0 if paused else now - self.began
        stages = {name: value - self.worked[name] for name, value in worked.items()}
        # A wait is counted where it ends: one that began while an evaluation ran is no longer than the time since.
        stages |= {name: min(value, seconds) for name, value in stages.items() if "_for_" in name}
        add(self.sums.setdefault("stages", {}), {"seconds": seconds, **stages})
        for kind, stats in counted.items():
            before = self.counted[kind]
            # A table that was restored counts from 0 again.
            more = {n: max(0, stats[n] - before.get(n, 0)) for n in COUNTED if n in stats}
            add(self.sums.setdefault(kind, {}), {n: 0 if paused and n in BY_ANYONE else v for n, v in more.items()})
        self._begin_at(counted, worked, now)
        return {kind: {n: stats[n] for n in HELD if n in stats} for kind, stats in counted.items()}


def stats_of(embedder: Embedder) -> Stats | None:
    """Return the function with which a table reports its counters; None if it has none."""
    return full(embedder).stats if traits_of(embedder).statistics else None


def by_stage(clocks: Sequence[Clock]) -> Counters:
    return {
        f"{clock.name}_{name}": getattr(clock, name)
        for clock in clocks
        for name in ("busy", "for_input", "for_room", "given", "depths")
    }


def ratios(kind: str, counted: Mapping[str, float]) -> dict[str, float | None]:
    """Return figures that follow from counters.

    For stages, they are the mean number of items in the queue after each stage. For a table, they are the share of known keys
    that were found in memory, and the pages read per requested key.
    """
    if kind == "stages":
        names = [n.removesuffix("_given") for n in counted if n.endswith("_given")]
        return {f"{n}_queue": counted[f"{n}_depths"] / counted[f"{n}_given"] for n in names if counted[f"{n}_given"]}
    asked, hits, misses = (counted.get(n, 0) for n in ("asked", "hits", "misses"))
    return {
        "hit_rate": hits / (hits + misses) if hits + misses else None,
        "reads_per_key": counted.get("reads", 0) / asked if asked else None,
    }


def add(sums: Counters, more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0) + value
