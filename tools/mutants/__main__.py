"""make test-mutants: apply random changes to copies of the tree, one at a time, and run the tests against each.

    python -m tools.mutants --record [--jobs 2]
    python -m tools.mutants --count 100 --seed 1 [--jobs 2] [--native 0.25] [--fast-only] [--only 7,31]

The first command runs all tests once and records which test executes which line (`lines_run_by_tests.py`); the second does
so where no record exists. The second command draws changes with a seed, so that a run can be repeated, and makes them in
copies of the committed tree. A Python change meets the fast tests that execute the changed statement; a C++ change meets all
fast tests, quick ones of the folders that belong to it first. A change that survives the fast tests meets the type checker
(Python) or the native tests under the address and undefined-behavior sanitizers (C++), which `make test` runs too, and then
the slow tests, chosen in the same way.

A change is caught when a test fails, crashes or exceeds its time limit, does so again when it is run alone, and passes in the
unchanged tree within the same limit: a test that fails by chance, or because the machine is busy, catches nothing.

Where --budget is given, tests beyond so many seconds per change are left out, and a change that only they would catch counts
as a survivor; the line of such a survivor says so, and the printed percentages are lower bounds. A measurement leaves --budget
out: then a survivor has met all tests.

The command prints a line for each change, the survivors, and a last line of JSON. It exits with 1 where fewer than --least
percent (fast tests) or --least-all percent (all of `make test`) were caught.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.builder import Builder
from tools.mutants.lines_run_by_tests import FAST, SLOW, Recorded, git, record
from tools.mutants.sites import Site, native_sites, python_sites
from tools.mutants.tree import ROOT, Tree

BUILD_LIBRARY = """
from pathlib import Path
from tests.capi.library import installed
installed(Path("build/capi-installed").resolve())
"""
STEPS = ("fast tests", "slow tests", "types", "native tests")


@dataclass
class Outcome:
    number: int  # place of the change in the sample of its seed
    site: Site
    step: str  # one of STEPS, "stillborn" where the change does not compile, or empty for a survivor
    by: str  # the test that caught it; for a survivor, how much was left out
    seconds: float

    def __str__(self) -> str:
        return f"{self.number:4} {self.step or 'SURVIVED':12} {self.seconds:5.0f} s  {self.site}  {self.by}".rstrip()


class Trial:
    """One change in one copy of the tree."""

    def __init__(
        self,
        trees: tuple[Tree, Tree],
        builder: Builder,
        recorded: Recorded,
        site: Site,
        broken: set[str],
        budget: float,
    ) -> None:
        self.tree, self.unchanged = trees
        self.builder = builder
        self.recorded, self.site, self.broken, self.budget = recorded, site, broken, budget
        self.left_out = 0.0  # seconds of tests

    def outcome(self, slow: bool) -> tuple[str, str]:
        """Make the change, run the tests, take the change back; return the step and the test that caught it."""
        path = self.tree.place / self.site.path
        original = path.read_text(encoding="utf-8")
        native = self.site.path.startswith("native/")
        try:
            path.write_text(self.site.applied(original), encoding="utf-8")
            step, by = self._caught(native, slow)
        finally:
            path.write_text(original, encoding="utf-8")
            if native:
                (own,) = (self.unchanged.place / "src/ctrbox").glob("_native*.so")
                self.tree.use_extension(own)
        if not step and self.left_out:
            by = f"({self.left_out:.0f} s of tests beyond the budget were not run)"
        return step, by

    def _caught(self, native: bool, slow: bool) -> tuple[str, str]:
        if self.site.path.startswith("native/capi/"):  # no part of the extension
            if not self.builder.library_compiles(self.site):
                return "stillborn", ""
            for tree in (
                self.tree,
                self.unchanged,
            ):  # before the tests, because the compiler takes longer than their limit
                tree.ran([tree.python, "-c", BUILD_LIBRARY], 3600)
        elif native:
            built = self.tree.place / "build/changed.so"
            built.parent.mkdir(exist_ok=True)
            if not self.builder.extension(self.site, built):
                return "stillborn", ""
            self.tree.use_extension(built)
        if by := self._failing(slow=False):
            return "fast tests", by
        if not slow:
            return "", ""
        if native and not self.builder.native_tests_pass(self.site):
            return "native tests", ""
        if not native and self.tree.ran([self.tree.python, "-m", "mypy"], 600) != 0:
            return "types", ""
        if by := self._failing(slow=True):
            return "slow tests", by
        return "", ""

    def _failing(self, slow: bool) -> str:
        """Run the tests that can notice; return the name of one that fails, or nothing."""
        marks = SLOW if slow else FAST
        for tests in self._portions(slow):
            while tests and (failed := self._first_failure(self.tree, tests, marks)):
                alone = [(failed, 0.0)] if failed != "collection" else tests[:1]
                again = self._first_failure(self.tree, alone, marks)
                if again and not self._first_failure(self.unchanged, alone, marks):
                    return failed
                names = [name for name, _ in tests]  # it failed by chance: go on behind it
                tests = tests[names.index(failed) + 1 :] if failed in names else []
        return ""

    def _portions(self, slow: bool) -> Iterator[list[tuple[str, float]]]:
        """A first portion of some 20 seconds, which catches most, then portions that grow, until the budget is spent."""
        portion: list[tuple[str, float]] = []
        spent, pause = 0.0, 20.0
        for name, seconds in self.recorded.chosen(self.site, slow):
            if name in self.broken:
                continue
            if self.budget and spent + seconds > self.budget:
                self.left_out += seconds
                continue
            spent += seconds
            portion.append((name, seconds))
            if spent > pause:
                yield portion
                portion, pause = [], 4 * spent
        yield portion

    def _first_failure(self, tree: Tree, tests: list[tuple[str, float]], marks: str) -> str:
        """Return the test at which pytest failed, "collection" where it came to none, or nothing where all passed."""
        names = [name for name, _ in tests]
        files = list(dict.fromkeys(name.split("::")[0] for name in names))
        longest = max([self.recorded.tests.get(name, {}).get("seconds", 20) for name in names])
        limit = max(30.0, 6 * longest)
        arguments: list[object] = ["-x", "-p", "no:xdist", "--timeout", limit, "-m", marks, *files]
        status, entries = tree.pytest(arguments, 60 + 4 * limit + 6 * sum(s for _, s in tests), chosen=names)
        if status in (0, 5):
            return ""
        return next((e["test"] for e in reversed(entries) if e.get("failed") or e.get("started")), "collection")


def drawn(seed: int, native: float) -> list[Site]:
    """All sites in a random order, ``native`` of them from C++."""
    rng = random.Random(seed)
    pools = [list(python_sites(ROOT)), list(native_sites(ROOT))]
    for pool in pools:
        rng.shuffle(pool)
    order = []
    while all(pools):
        order.append(pools[rng.random() < native].pop())
    return order


def broken_tests(recorded: Recorded, place: Path) -> set[str]:
    """Find the tests that fail on the unchanged tree and so can catch nothing, among those that failed under coverage.py."""
    again = [name for name, test in recorded.tests.items() if test["failed"]]
    if not again:
        return set()
    files = list(dict.fromkeys(name.split("::")[0] for name in again))
    _, entries = Tree(place / "unchanged").pytest(["-p", "no:xdist", *files], 3600, chosen=again)
    passed = set(again) & {e["test"] for e in entries} - {e["test"] for e in entries if e.get("failed")}
    return set(again) - passed


def _numbers(text: str) -> set[int]:
    return {int(part) for part in text.split(",")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="record anew which test executes which line, and end")
    parser.add_argument("--count", type=int, default=100, help="number of changes (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: 1)")
    parser.add_argument("--only", type=_numbers, help="numbers of changes in the sample, such as 7,31: try these alone")
    parser.add_argument("--jobs", type=int, default=2, help="changes tried at a time (default: 2)")
    parser.add_argument("--native", type=float, default=0.25, help="share of C++ changes, 0 to 1 (default: 0.25)")
    parser.add_argument(
        "--fast-only", action="store_true", help="leave out, and do not record, what follows the fast tests"
    )
    parser.add_argument(
        "--under", default="", help="folders, with commas between them, such as src/ctrbox/plan: no changes outside"
    )
    parser.add_argument(
        "--budget", type=float, default=0, help="seconds of tests per change and step; 0: all tests (default)"
    )
    parser.add_argument("--least", type=float, default=90, help="percent that fast tests must catch (default: 90)")
    parser.add_argument("--least-all", type=float, default=95, help="percent that all tests must catch (default: 95)")
    parser.add_argument("--minutes", type=float, default=0, help="stop drawing after this time; 0: never (default)")
    parser.add_argument(
        "--place", type=Path, default=ROOT / "build/mutants", help="folder of records and copies of the tree"
    )
    asked = parser.parse_args()
    # A shell has commands in the background ignore Ctrl-C, and their children inherit that; some tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place = asked.place.resolve()
    began = time.monotonic()
    if asked.record or not Recorded.exists(place):
        print("recording which test executes which line: all tests run once", flush=True)
        record(place, asked.jobs, not asked.fast_only)
    if asked.record:
        return
    recorded = Recorded(place)
    print(f"commit {git('rev-parse', 'HEAD').strip()}, tests recorded at {recorded.commit}", flush=True)
    broken = broken_tests(recorded, place)
    print(f"left out, because they fail on the unchanged tree: {sorted(broken) or 'none'}", flush=True)
    waiting: queue.SimpleQueue[tuple[int, Site]] = queue.SimpleQueue()
    for numbered in enumerate(drawn(asked.seed, asked.native)):
        if numbered[1].path.startswith(tuple(asked.under.split(","))) and (
            asked.only is None or numbered[0] in asked.only
        ):
            waiting.put(numbered)
    outcomes: list[Outcome] = []
    lock, reserved = threading.Lock(), [0]

    builder = Builder(place / "builder")

    def work(number: int) -> None:
        trees = Tree(place / f"job-{number}"), Tree(place / f"unchanged-{number}")
        while True:
            with lock:
                late = asked.minutes and time.monotonic() - began > 60 * asked.minutes
                if reserved[0] >= asked.count or late or waiting.empty():
                    return
                reserved[0] += 1
                number, site = waiting.get()
            started = time.monotonic()
            step, by = Trial(trees, builder, recorded, site, broken, asked.budget).outcome(not asked.fast_only)
            outcome = Outcome(number, site, step, by, time.monotonic() - started)
            with lock:
                if outcome.step == "stillborn":
                    reserved[0] -= 1
                else:
                    outcomes.append(outcome)
                print(outcome, flush=True)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(asked.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    total = len(outcomes)
    counts = {step: sum(o.step == step for o in outcomes) for step in STEPS}
    print(f"\n{total} changes with seed {asked.seed}, caught by: {counts}. Survivors:")
    for outcome in outcomes:
        if not outcome.step:
            print(f"  {outcome.number:4} {outcome.site}  {outcome.by}")
    share = {"fast": 100 * counts["fast tests"] / max(1, total), "all": 100 * sum(counts.values()) / max(1, total)}
    print(json.dumps({"changes": total, "seed": asked.seed, "percent_caught": share, "unit": "percent of changes"}))
    sys.exit(share["fast"] < asked.least or (not asked.fast_only and share["all"] < asked.least_all))


if __name__ == "__main__":
    main()
