"""What every benchmark shares: the machine in words, fresh processes, a table, the last line in JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def options(about: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def compares_tools(
    parser: argparse.ArgumentParser, tools: Iterable[str], repeats: int, counts: str = ", of which the fastest counts"
) -> None:
    """Add the options of a benchmark that runs several tools in turn: which of them, how often, and on how many cores."""
    every = list(tools)
    parser.add_argument("--tools", default=",".join(every), help=f"tools to run, of: {', '.join(every)}")
    parser.add_argument("--repeats", type=int, default=repeats, help=f"runs of each tool{counts}; default {repeats}")
    parser.add_argument("--cores", type=int, default=2, help="cores for each tool; default 2")


def count_and_seed(about: str | None, what: str, usual: int, quick: int, quick_help: str) -> tuple[int, int]:
    """Read from the command line how many kills or rounds to do (``what``), and the seed of what is random in them."""
    parser = options(about)
    parser.add_argument(f"--{what}", type=int, default=usual)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help=quick_help)
    asked = parser.parse_args()
    return quick if asked.quick else getattr(asked, what), asked.seed


def machine(cores: int | None = None) -> str:
    """Processor, cores used and memory."""
    name = platform.processor() or platform.machine()
    try:
        listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
        facts = dict(line.split(":", 1) for line in listed.splitlines() if ":" in line)
        name = facts.get("Model name", name).strip()
    except (OSError, subprocess.CalledProcessError):
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    used = cores or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name} {platform.machine()}, {used} of {os.cpu_count()} cores, {memory:.0f} GB"


def commit() -> str:
    """The short hash of the code measured; '+' when the tree differs from it."""
    try:
        asked = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"


def peak_rss() -> int:
    """The most memory this process held, in bytes. Not ru_maxrss: that one starts at the parent's."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def pin(cores: int) -> None:
    """Keep this process to so many cores, so that every tool's own thread count is the same."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def one_thread() -> None:
    """Keep this process to one core, and torch to one thread."""
    import torch

    pin(1)
    torch.set_num_threads(1)


def fresh(module: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark module in a process of its own; its last line is its answer."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


@dataclass
class Runs:
    """The repeats of one tool."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int = 0

    def add(self, answer: Mapping[str, Any]) -> None:
        self.seconds.append(answer["seconds"])
        self.cpu.append(answer["cpu"])
        self.peak = max(self.peak, answer["peak"])

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as needed, the first to the left, the others to the right."""
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for n, row in enumerate(cells):
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        print("  ".join([row[0].ljust(widths[0]), *rest]))
        if n == 0:
            print("  ".join("-" * w for w in widths))


def finish(
    ours: float | None,
    peers: Mapping[str, float],
    unit: str,
    *,
    more_is_better: bool = True,
    cores: int | None = None,
    **extra: Any,
) -> None:
    """The last line. A ratio says by which factor ours is the better one."""
    ratios = {} if not ours else {k: (ours / v if more_is_better else v / ours) for k, v in peers.items()}
    _last_line(ours, peers, {k: round(r, 3) for k, r in ratios.items()}, unit, cores, extra)


def finish_several(
    ours: Mapping[str, Any], peers: Mapping[str, Any], unit: str, *, cores: int | None = None, **extra: Any
) -> None:
    """The last line of a benchmark of several models, such as AUCs, of which a ratio would say nothing."""
    _last_line(ours, peers, {}, unit, cores, extra)


def _last_line(
    ours: Any,
    peers: Mapping[str, Any],
    ratios: Mapping[str, float],
    unit: str,
    cores: int | None,
    extra: Mapping[str, Any],
) -> None:
    line: dict[str, Any] = {
        "ours": ours,
        "peers": dict(peers),
        "ratios": dict(ratios),
        "unit": unit,
        "machine": machine(cores),
        "commit": commit(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    print(json.dumps(line | dict(extra)))
