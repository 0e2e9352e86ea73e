"""Runs the cells of a table in several processes and appends each finished cell to a JSON lines file.

A cell is one measurement: a dict that names it (set, model, seed and so on), and a function that returns its figures as a dict. A
cell that is in the file already is not run again, so that a benchmark that was stopped continues where it was. A line that was
cut off in the middle is ignored. A cell that fails is reported on stderr and left out; it is tried again by the next run.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
Run = Callable[..., Cell]


def key_of(cell: Mapping[str, Any]) -> str:
    """Return a text that is the same for the same cell."""
    return json.dumps(cell, sort_keys=True)


class Cells:
    """Finished cells by their names. ``log``: the file that keeps them; None: they are kept in memory only."""

    def __init__(self, log: Path | None) -> None:
        self.log = log
        self.known: dict[str, Cell] = {}
        self.failed: list[str] = []
        whole = log.read_bytes() if log is not None and log.exists() else b""
        for line in whole.decode("utf-8", "replace").splitlines():
            try:
                found = json.loads(line)
                self.known[key_of(found["cell"])] = found["found"]
            except (ValueError, KeyError, TypeError):
                continue  # the end of a run that was killed
        if log is not None and whole and not whole.endswith(b"\n"):
            with log.open("a") as file:
                file.write("\n")

    def get(self, cell: Mapping[str, Any]) -> Cell | None:
        """Return the figures of a cell, None if it has not been run."""
        return self.known.get(key_of(cell))

    def keep(self, cell: Mapping[str, Any], found: Cell) -> None:
        """Remember the figures of a cell, and append them to the file."""
        self.known[key_of(cell)] = found
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps({"cell": cell, "found": found}) + "\n")

    def run(self, work: Sequence[tuple[Cell, Run, tuple[Any, ...]]], jobs: int, seconds: float | None = None) -> None:
        """Run the cells that are not known, ``jobs`` at a time, each in a process that has one thread.

        After so many ``seconds``, the processes are ended, and cells that are not finished are left out. One job without a limit
        runs in this process, and a cell that fails raises its exception.
        """
        todo = [one for one in work if self.get(one[0]) is None]
        if not todo or seconds == 0:
            return
        if jobs == 1 and seconds is None:
            for cell, run, given in todo:
                self.keep(cell, run(*given))
            return
        began = time.perf_counter()
        fresh = multiprocessing.get_context(
            "spawn"
        )  # a forked process would inherit the threads of torch in an odd state
        pool = ProcessPoolExecutor(min(jobs, len(todo)), mp_context=fresh)
        running = {pool.submit(run, *given): cell for cell, run, given in todo}
        try:
            for k, future in enumerate(as_completed(running, timeout=seconds), 1):
                cell = running[future]
                where = (
                    f"{k}/{len(todo)} after {time.perf_counter() - began:.0f} s: {' '.join(map(str, cell.values()))}"
                )
                try:
                    found = future.result()
                except Exception as error:  # one cell that fails must not cost the others
                    self.failed.append(f"{where}: {type(error).__name__}: {error}")
                    print(f"{where} FAILED: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    continue
                self.keep(cell, found)
                shown = {name: round(value, 4) for name, value in found.items() if isinstance(value, float)}
                print(f"{where} {shown}", file=sys.stderr, flush=True)
        except TimeoutError:
            print(f"time is over: {len(todo)} cells were to be run", file=sys.stderr, flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if seconds is not None:
                for process in list((pool._processes or {}).values()):
                    process.terminate()
