"""Does a training by several ranks whose processes are killed end as the unbroken one?

    python -m benchmarks.ranks_crash [--rounds 20] [--tables memory,sparse,server] [--steps 60] [--seed 0] [--quick]
                                    [--log FILE] [--minutes N]

Trains the demo's job with each kind of table. In each round, 2 or 3 ranks train into a fresh run folder, with a checkpoint every
4 steps. A random rank is killed with SIGKILL within 50 ms after a random checkpoint; the launcher must end with an error that
names it. The same run then continues with 1, 2 or 3 ranks to its end. A kill that comes after the end of the training is counted
as late, and its round is made again.

Before the rounds, for each kind of table: a training by 4 ranks is killed, continues with 3 and is killed, continues with one
process and is killed, and ends with 2 ranks.

Every training must learn every row once, in as many steps as the unbroken training of one process, and end with its AUC within
0.001.

`--log FILE` keeps each round that has ended well as a line of JSON, and a later call with the same file continues with the rounds
that are missing. `--minutes N` begins no round after N minutes. So the rounds can be collected in several calls. What is random
in a round depends on the seed, the kind of table and the number of the round only.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import report
from benchmarks.ranks_job import TABLES, finished, make_data, start
from ctrbox.ranks.same_code_data_settings import code

ROUNDS, STEPS = 20, 60
CHECKPOINT = ("--checkpoint-steps", "4")
CLOSE = 0.001  # of AUC
ELASTIC = (4, 3, 1, 2)  # ranks, one after the other
ELASTIC_ROUND = -1  # number of their round
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
    parser.add_argument("--log", type=Path, help="file of the rounds that are done; a later call continues with it")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round after so many minutes")
    asked = parser.parse_args(arguments)
    until = time.monotonic() + 60 * asked.minutes
    log = Log(asked.log, {"code": code(), "steps": asked.steps, "seed": asked.seed})
    with TemporaryDirectory(prefix="ctrbox-ranks-") as place:
        make_data(Path(place), asked.steps)
        found = [Kills(Path(place), f"demo-{kind}", log, asked.seed) for kind in asked.tables.split(",")]
        for number, kills in itertools.product([ELASTIC_ROUND, *range(1 if asked.quick else asked.rounds)], found):
            if time.monotonic() < until:
                kills.make(number)
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
    rounds = [one for kills in found for one in kills.rounds()]
    met = Counter(tuple(pair) for one in rounds for pair in one.met)
    report.finish(
        sum(len(one.seconds) for one in rounds),
        {},
        "kills survived",
        numbers_of_ranks={f"{a} to {b}": count for (a, b), count in sorted(met.items())},
        largest_difference_of_auc=max((one.apart for one in rounds), default=0.0),
    )


@dataclass
class Round:
    """A training that was killed and continued."""

    case: str
    number: int  # ELASTIC_ROUND: that of 4, 3, 1 and 2 ranks
    whole_auc: float  # of the unbroken training
    apart: float = 0.0  # its difference from the AUC of this one
    late: int = 0  # kills that came after the end of a training
    met: list[tuple[int, int]] = field(default_factory=list)  # numbers of ranks before and after each kill
    seconds: list[float] = field(default_factory=list)  # from each kill to the end of all ranks


class Log:
    """The rounds that are done, and the file that keeps them, if there is one."""

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path, self.settings, self.rounds = path, settings, dict[tuple[str, int], Round]()
        if path is None or not path.exists():
            return
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]  # the benchmark may have been killed while it wrote a line
        if whole != text:
            path.write_text(whole)
        for line in whole.splitlines():
            kept = json.loads(line)
            if kept["settings"] != settings:
                raise SystemExit(f"{path} has rounds of {kept['settings']}, expected {settings}; choose another --log")
            one = Round(**kept["round"])
            self.rounds[one.case, one.number] = one

    def add(self, one: Round) -> None:
        self.rounds[one.case, one.number] = one
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"settings": self.settings, "round": asdict(one)}) + "\n")


class Kills:
    """All rounds of one case against one unbroken training of one process."""

    def __init__(self, data: Path, case: str, log: Log, seed: int) -> None:
        self.data, self.case, self.log, self.seed = data, case, log, seed

    @cached_property
    def whole(self) -> dict[str, Any]:
        """Rows, steps and AUC of the unbroken training."""
        finished(self.data, self.data / f"{self.case}-whole", 1, (self.case,), *CHECKPOINT)
        return self._summary(self.data / f"{self.case}-whole")

    def make(self, number: int) -> None:
        """Make a round, unless the log has it."""
        if (self.case, number) in self.log.rounds:
            return
        one = Round(self.case, number, self.whole["auc"])
        if number == ELASTIC_ROUND:
            self._elastic(one)
        else:
            self._random(one)
        ranks = [f"{before} ranks, killed" for before, _ in one.met]
        print(f"{self.case}, round {number}: {', '.join(ranks)}, {one.met[-1][1]} to the end", flush=True)
        self.log.add(one)

    def rounds(self) -> list[Round]:
        """Return the rounds that are done."""
        return [one for (case, _), one in self.log.rounds.items() if case == self.case]

    def _random(self, one: Round) -> None:
        """Kill one of several ranks, and let some number of ranks continue."""
        for attempt in range(AGAIN):
            chance = random.Random(f"{self.seed} {self.case} {one.number} {attempt}")
            out = self.data / f"{self.case}-{one.number}-{attempt}"
            before, after = chance.choice((2, 3)), chance.choice((1, 2, 3))
            if self._broken(one, out, before, after, chance.randrange(self.whole["steps"] * 3 // 4), chance):
                return self._ended(one, out, after)
        raise SystemExit(f"{self.case}: {AGAIN} kills came too late")

    def _elastic(self, one: Round) -> None:
        """Continue on fewer and on more ranks, with a kill each time."""
        out, steps, chance = self.data / f"{self.case}-elastic", self.whole["steps"], random.Random(self.seed)
        for k, (ranks, after) in enumerate(itertools.pairwise(ELASTIC)):
            if not self._broken(one, out, ranks, after, steps * (k + 1) // 5, chance):
                raise SystemExit(f"{self.case}: the kill of {ranks} ranks came too late; choose more --steps")
        self._ended(one, out, ELASTIC[-1])

    def _broken(self, one: Round, out: Path, ranks: int, after: int, step: int, chance: random.Random) -> bool:
        """Start so many ranks and kill one after a checkpoint of this step or a later one; return False if they ended before."""
        process = start(self.data, out, ranks, (self.case,), *CHECKPOINT)
        while process.poll() is None and self._saved(out) < step:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.05))
        found = children(process.pid) if ranks > 1 else [process.pid]
        if process.poll() is not None or (out / self.case / "summary.json").exists() or len(found) != ranks:
            _, told = process.communicate()
            if process.returncode:
                raise SystemExit(f"{self.case}: {ranks} ranks failed before a kill:\n{told[-3000:]}")
            one.late += 1
            return False
        os.kill(chance.choice(sorted(found)), signal.SIGKILL)
        began = time.monotonic()
        _, told = ended(process)
        if ranks > 1 and (process.returncode != 1 or not re.search(r"rank \d was killed by SIGKILL", told)):
            raise SystemExit(
                f"{self.case}: after a kill, {ranks} ranks ended with {process.returncode}:\n{told[-3000:]}"
            )
        if (out / self.case / "summary.json").exists():
            one.late += 1
            return False
        one.met.append((ranks, after))
        one.seconds.append(time.monotonic() - began)
        return True

    def _ended(self, one: Round, out: Path, ranks: int) -> None:
        """Continue to the end, and compare with the unbroken training."""
        finished(self.data, out, ranks, (self.case,), *CHECKPOINT)
        found = self._summary(out)
        one.apart = abs(found["auc"] - self.whole["auc"])
        if (found["rows"], found["steps"]) != (self.whole["rows"], self.whole["steps"]) or not one.apart <= CLOSE:
            raise SystemExit(f"{self.case}: {found} after kills, expected {self.whole}")

    def _summary(self, out: Path) -> dict[str, Any]:
        summary = json.loads((out / self.case / "summary.json").read_text())
        return {"rows": summary["rows"], "steps": summary["steps"], "auc": summary["metrics"]["auc"]}

    def _saved(self, out: Path) -> int:
        return max((int(p.name[5:]) for p in (out / self.case / "checkpoints").glob("step-*")), default=-1)

    def line(self) -> Sequence[object]:
        """Return the cells of the table."""
        rounds = self.rounds()
        seconds = [one for each in rounds for one in each.seconds]
        apart = max((one.apart for one in rounds), default=0.0)
        auc = ", ".join(sorted({f"{one.whole_auc:.4f}" for one in rounds}))
        ended_in = f"{statistics.median(seconds):.1f}" if seconds else ""
        numbered = sum(one.number != ELASTIC_ROUND for one in rounds)
        return [self.case, numbered, len(seconds), sum(one.late for one in rounds), auc, f"{apart:.1e}", ended_in]


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
