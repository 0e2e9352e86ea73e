"""Does a training by several ranks whose processes are killed end as the unbroken one?

    python -m benchmarks.ranks_crash [--rounds 20] [--tables memory,sparse,server] [--steps 60] [--seed 0] [--quick]

Trains the demo's job with each kind of table. In each round, 2 or 3 ranks train into a fresh run folder, with a checkpoint every
4 steps. A random rank is killed with SIGKILL within 50 ms after a random checkpoint; the launcher must end with an error that
names it. The same run then continues with 1, 2 or 3 ranks to its end. A kill that comes after the end of the training is counted
as late, and its round is made again.

Before the rounds, for each kind of table: a training by 4 ranks is killed, continues with 3 and is killed, continues with one
process and is killed, and ends with 2 ranks.

Every training must learn every row once, in as many steps as the unbroken training of one process, and end with its AUC within
0.001.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import report
from benchmarks.ranks_job import TABLES, finished, make_data, start

ROUNDS, STEPS = 20, 60
CHECKPOINT = ("--checkpoint-steps", "4")
CLOSE = 0.001  # of AUC
ELASTIC = (4, 3, 1, 2)  # ranks, one after the other
AGAIN = 5  # tries of a round whose kill came too late
ENDS = 300.0  # seconds within which the other ranks end after a kill


def main(arguments: list[str] | None = None) -> None:
    """Kill, continue, compare; print what was killed."""
    parser = report.options(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds with each kind of table; default {ROUNDS}")
    parser.add_argument("--tables", default=",".join(TABLES), help=f"some of {', '.join(TABLES)}; default: all")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of a training; default {STEPS}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one round with each kind of table")
    asked = parser.parse_args(arguments)
    random.seed(asked.seed)
    with TemporaryDirectory(prefix="ctrbox-ranks-") as place:
        make_data(Path(place), asked.steps)
        found = [Kills(Path(place), f"demo-{kind}") for kind in asked.tables.split(",")]
        for kills in found:
            kills.elastic()
            for number in range(1 if asked.quick else asked.rounds):
                kills.round(number)
    report.table(
        [
            "case",
            "rounds",
            "ranks killed",
            "too late",
            "AUC unbroken",
            "largest difference of AUC",
            "s to end after a kill",
        ],
        [kills.line() for kills in found],
    )
    met = sum((kills.met for kills in found), collections.Counter())
    report.finish(
        sum(kills.killed for kills in found),
        {},
        "kills survived",
        numbers_of_ranks={f"{a} to {b}": count for (a, b), count in sorted(met.items())},
        largest_difference_of_auc=max(kills.apart for kills in found),
    )


class Kills:
    """All rounds of one case against one unbroken training of one process."""

    def __init__(self, data: Path, case: str) -> None:
        self.data, self.case = data, case
        finished(data, data / f"{case}-whole", 1, (case,), *CHECKPOINT)
        self.whole = self._summary(data / f"{case}-whole")
        self.rounds = self.killed = self.late = 0
        self.apart = 0.0
        self.met: collections.Counter[tuple[int, int]] = collections.Counter()  # ranks before and after a kill
        self.seconds: list[float] = []  # from a kill to the end of all ranks

    def round(self, number: int) -> None:
        """Kill one of several ranks, and let some number of ranks continue."""
        for attempt in range(AGAIN):
            out = self.data / f"{self.case}-{number}-{attempt}"
            before, after = random.choice((2, 3)), random.choice((1, 2, 3))
            if self._broken(out, before, random.randrange(self.whole["steps"] * 3 // 4)):
                self.met[before, after] += 1
                self._ended(out, after)
                self.rounds += 1
                print(f"{self.case}, round {number}: {before} ranks, killed, {after} to the end", flush=True)
                return
        raise SystemExit(f"{self.case}: {AGAIN} kills came too late")

    def elastic(self) -> None:
        """Continue on fewer and on more ranks, with a kill each time."""
        out, steps = self.data / f"{self.case}-elastic", self.whole["steps"]
        for k, (ranks, after) in enumerate(itertools.pairwise(ELASTIC)):
            if not self._broken(out, ranks, steps * (k + 1) // 5):
                raise SystemExit(f"{self.case}: the kill of {ranks} ranks came too late; choose more --steps")
            self.met[ranks, after] += 1
        self._ended(out, ELASTIC[-1])
        met = ", ".join(f"{ranks} ranks, killed" for ranks in ELASTIC[:-1])
        print(f"{self.case}: {met}, {ELASTIC[-1]} to the end", flush=True)

    def _broken(self, out: Path, ranks: int, step: int) -> bool:
        """Start so many ranks and kill one after a checkpoint of this step or a later one; return False if they ended before."""
        process = start(self.data, out, ranks, (self.case,), *CHECKPOINT)
        while process.poll() is None and self._saved(out) < step:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.05))
        found = children(process.pid) if ranks > 1 else [process.pid]
        if process.poll() is not None or (out / self.case / "summary.json").exists() or len(found) != ranks:
            _, told = process.communicate()
            if process.returncode:
                raise SystemExit(f"{self.case}: {ranks} ranks failed before a kill:\n{told[-3000:]}")
            self.late += 1
            return False
        os.kill(random.choice(found), signal.SIGKILL)
        began = time.monotonic()
        _, told = ended(process)
        self.seconds.append(time.monotonic() - began)
        if ranks > 1 and (process.returncode != 1 or not re.search(r"rank \d was killed by SIGKILL", told)):
            raise SystemExit(
                f"{self.case}: after a kill, {ranks} ranks ended with {process.returncode}:\n{told[-3000:]}"
            )
        if (out / self.case / "summary.json").exists():
            self.late += 1
            return False
        self.killed += 1
        return True

    def _ended(self, out: Path, ranks: int) -> None:
        """Continue to the end, and compare with the unbroken training."""
        finished(self.data, out, ranks, (self.case,), *CHECKPOINT)
        found = self._summary(out)
        apart = abs(found["auc"] - self.whole["auc"])
        if (found["rows"], found["steps"]) != (self.whole["rows"], self.whole["steps"]) or not apart <= CLOSE:
            raise SystemExit(f"{self.case}: {found} after kills, expected {self.whole}")
        self.apart = max(self.apart, apart)

    def _summary(self, out: Path) -> dict[str, Any]:
        summary = json.loads((out / self.case / "summary.json").read_text())
        return {"rows": summary["rows"], "steps": summary["steps"], "auc": summary["metrics"]["auc"]}

    def _saved(self, out: Path) -> int:
        return max((int(p.name[5:]) for p in (out / self.case / "checkpoints").glob("step-*")), default=-1)

    def line(self) -> Sequence[object]:
        """Return the cells of the table."""
        median = statistics.median(self.seconds)
        auc = self.whole["auc"]
        return [self.case, self.rounds, self.killed, self.late, f"{auc:.4f}", f"{self.apart:.1e}", f"{median:.1f}"]


def children(process: int) -> list[int]:
    """Return the ranks that a launcher has started."""
    return [int(text) for text in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for a training whose rank was killed; one that does not end is a failure of the benchmark."""
    try:
        return process.communicate(timeout=ENDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise SystemExit(f"the ranks did not end within {ENDS:g} s after one of them was killed") from None


if __name__ == "__main__":
    main()
