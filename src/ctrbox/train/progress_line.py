"""Shows the progress of a training run as one line on a terminal or in a notebook, and nothing elsewhere."""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

from ctrbox.report.bottleneck import StageShares, bottleneck
from ctrbox.report.number_format import brief
from ctrbox.train.pipeline import Clock

RECENT = 2.0  # seconds: what is shown of stages is of the last one or two times as many


@dataclass(frozen=True)
class Progress:
    rows: int  # learned
    share: float  # of all there is to do, 0 to 1
    loss: float  # smoothed
    rows_per_second: float
    seconds: float
    step: int
    epoch: int
    stages: Mapping[str, float]  # name → share of the last seconds that it was busy
    queues: Mapping[str, float] = field(default_factory=dict)  # name → batches that waited behind it

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {self.seconds_left:,.0f} s left"
        return (
            f"{self.share:.0%}: step {self.step:,}, {self.rows:,} rows, {self.rows_per_second:,.0f} rows/s, loss {self.loss:.4f}"
            f", {self.shown}{left}"
        )

    def __repr__(self) -> str:
        return f"Progress({self})"

    def _repr_html_(self) -> str:
        """Return a bar and the same line, for notebooks."""
        return f'<progress value="{self.share:.4f}" max="1"></progress> {html.escape(str(self))}'

    @property
    def bottleneck(self) -> str:
        """Name of the stage that the others wait for, as in the report; "" if no stage clearly is the bottleneck."""
        return bottleneck(StageShares(name, busy, 1 - busy) for name, busy in self.stages.items())

    @property
    def shown(self) -> str:
        """Return the share of time that each stage is busy and, between two stages, the batches that wait.

        An example is "extract 62% →1.8→ lookup 31% →0.1→ learn 97%".
        """
        parts = []
        for name, share in self.stages.items():
            depth = self.queues.get(name)
            parts.append(f"{name} {share:.0%}" + ("" if depth is None else f" →{round(depth, 1):g}→"))
        return " ".join(parts)

    @property
    def seconds_left(self) -> float | None:
        return self.seconds * (1 - self.share) / self.share if self.share > 0 else None


class Lately:
    """How busy each stage was in the last few seconds, and how many batches waited behind it."""

    def __init__(self, clocks: Sequence[Clock], now: float) -> None:
        self.clocks = clocks
        self.older = self.newer = (now, [copy(c) for c in clocks])

    def look(self, now: float) -> tuple[dict[str, float], dict[str, float]]:
        """Return shares and queue lengths by stage, as ``Progress`` has them."""
        if now - self.newer[0] > RECENT:
            self.older, self.newer = self.newer, (now, [copy(c) for c in self.clocks])
        began, earlier = self.older
        passed = [c.since(e) for c, e in zip(self.clocks, earlier, strict=True)]
        shares = {c.name: min(1.0, c.busy / max(1e-9, now - began)) for c in passed}
        return shares, {c.name: c.depth for c in passed if c.depth is not None}


class Watcher(Protocol):
    def see(self, progress: Progress) -> None:
        """Show the progress, at most ten times per second."""

    def evaluated(self, metrics: Mapping[str, float]) -> None: ...

    def resumed(self, step: int, rows: int) -> None: ...

    def end(self) -> None: ...


class Silent:
    def see(self, progress: Progress) -> None: ...

    def evaluated(self, metrics: Mapping[str, float]) -> None: ...

    def resumed(self, step: int, rows: int) -> None: ...

    def end(self) -> None: ...


class Line:
    """A line with a bar, rows per second, what each stage is doing, the loss and the time left. Evaluations are printed
    above it.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self.bars = Bars(
            TextColumn("training"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[stages]}"),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
            # Rich finds out itself that it writes into a notebook, and shows one cell output that it replaces.
            console=Console() if in_notebook() else Console(stderr=True),
            transient=True,
        )
        self.task: Any = None

    def see(self, progress: Progress) -> None:
        fields: dict[str, Any] = {
            "rate": f"{progress.rows_per_second:,.0f} rows/s",
            "stages": progress.shown,
            "loss": f"loss {progress.loss:.4f}",
        }
        if self.task is None:
            self.bars.start()
            self.task = self.bars.add_task("train", total=1.0, **fields)
        self.bars.update(self.task, completed=progress.share, **fields)

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        self.bars.console.print(f"validation  {brief(metrics)}", highlight=False)

    def resumed(self, step: int, rows: int) -> None:
        self.bars.console.print(f"continuing after step {step:,} ({rows:,} rows)", highlight=False)

    def end(self) -> None:
        if self.task is not None:
            self.bars.stop()
            self.task = None


def in_notebook() -> bool:
    """Whether this process runs the cells of a Jupyter notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def watcher(asked: bool | Watcher) -> Watcher:
    """Return the given watcher. For True, return a line on a terminal or in a notebook, and nothing elsewhere."""
    if isinstance(asked, bool):
        return Line() if asked and (sys.stderr.isatty() or in_notebook()) else Silent()
    return asked
