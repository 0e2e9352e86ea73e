"""A training on a Sparse Table that may be killed at any moment, and its replay in memory.

    python -m tests.embed.ssd.trainee FOLDER --batches 200 --seed 0 [--beside]

What a table holds is a function of the number of batches pushed, and one row tells that number: every batch gives key
``COUNTER`` gradients of 1, so its Adagrad states are the count. A trainee opens its table, reads the count and goes on
from there. It says a line before everything it does:

    ready            imports are done          push N     batch N is trained
    open             the table is opened       flush | compact
    asks N           a checkpoint of N batches begins; ``has N``: it is there
    end              the table is closed, all batches pushed

``--beside``: checkpoints and compactions run in a thread of their own while batches are pushed.
"""

from __future__ import annotations

import argparse
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ctrbox as cb

DIM = 24
KEYS = 4000
BATCH = 120
COUNTER = 77
# What decides the rows; the table in memory takes it too.
SETTINGS: dict[str, Any] = {"dim": DIM, "optimizer": cb.Adagrad(lr=0.05), "init": 0.05, "seed": 11, "threads": 2}

RAM = "300kB"  # about 1,100 rows
SEGMENT_BYTES = 1 << 18

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # keys ascending, values, states


def opened(folder: Path) -> cb.SparseTable:
    return cb.SparseTable(folder, ram=RAM, segment_bytes=SEGMENT_BYTES, **SETTINGS)


def batch_of(seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys, some of them new and some always the same, and gradients."""
    rng = np.random.default_rng((seed, number))
    known = min(KEYS, 400 + 40 * number)
    popular = (known * rng.random(BATCH // 2) ** 4).astype(np.int64)
    drawn = np.unique(np.concatenate([popular, rng.integers(0, known, BATCH // 2)]))
    # Spread over all 64 bits, negative ones too; COUNTER is never among them by chance.
    keys = np.append((drawn + 1) * np.int64(0x1E3779B97F4A7C15 | 1), COUNTER)
    gradients = rng.normal(size=(len(keys), DIM)).astype(np.float32)
    gradients[-1] = 1
    order = rng.permutation(len(keys))
    return keys[order], gradients[order]


def train_batch(table: Any, seed: int, number: int) -> None:
    keys, gradients = batch_of(seed, number)
    table.prefetch(batch_of(seed, number + 1)[0])
    table.pull(keys)
    table.push(keys, gradients)


def batches_in(rows: Rows) -> int:
    """How many batches were pushed into a table, by its own rows."""
    keys, _, states = rows
    at = np.flatnonzero(keys == COUNTER)
    if len(at) == 0:
        return 0
    counts = states[at[0], :DIM]
    assert (counts == counts[0]).all(), f"a row was torn: its {DIM} counters are {counts}"
    return int(counts[0])


class Replay:
    """The same training in memory, asked for its rows after any number of batches, roughly in rising order."""

    def __init__(self, seed: int) -> None:
        self.seed, self.done = seed, 0
        self.table = cb.MemoryTable(**SETTINGS)
        self.kept: dict[int, Rows] = {0: self.table.export()}

    def at(self, number: int) -> Rows:
        while self.done < number:
            keys, gradients = batch_of(self.seed, self.done)
            self.table.push(keys, gradients)
            self.done += 1
            self.kept[self.done] = self.table.export()
        return self.kept[number]

    def forget(self, below: int) -> None:
        self.kept = {number: rows for number, rows in self.kept.items() if number >= below}

    def differences(self, rows: Rows) -> str:
        """What is wrong with a table's rows; empty when they are those of as many batches as its counter says.

        Rows that were prefetched, and not pushed yet, may be there with their first values.
        """
        number = batches_in(rows)
        expected, found = self.at(number), rows
        if (found[0][1:] <= found[0][:-1]).any():
            return "keys are not ascending"
        missing = np.setdiff1d(expected[0], found[0])
        if len(missing):
            return f"after {number} batches {len(missing)} keys are missing, such as {missing[0]}"
        here = np.isin(found[0], expected[0])
        for name, mine, right in zip(("values", "states"), found[1:], expected[1:], strict=True):
            wrong = np.flatnonzero((mine[here].view(np.uint32) != right.view(np.uint32)).any(axis=1))
            if len(wrong):
                return f"after {number} batches the {name} of {len(wrong)} keys differ, such as {expected[0][wrong[0]]}"
        extra = found[0][~here]
        coming = np.concatenate([batch_of(self.seed, number + ahead)[0] for ahead in range(3)])
        unknown = np.setdiff1d(extra, coming)
        if len(unknown):
            return f"after {number} batches {len(unknown)} keys are there that nobody asked for, such as {unknown[0]}"
        first = cb.MemoryTable(**SETTINGS)
        first.prefetch(extra)
        for name, mine, right in zip(("values", "states"), found[1:], first.export()[1:], strict=True):
            if not np.array_equal(mine[~here].view(np.uint32), right.view(np.uint32)):
                return f"after {number} batches the first {name} of prefetched keys are wrong"
        return ""


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def train(table: Any, seed: int, start: int, batches: int, beside: bool) -> None:
    pushed, ended = start, threading.Event()

    def checkpoint() -> None:
        number = pushed
        say(f"asks {number}")
        table.checkpoint()
        say(f"has {number}")

    def in_turns() -> None:
        for turn in range(1_000_000):
            if ended.is_set():
                return
            if turn % 3 == 2:
                say("compact")
                table.compact()
            checkpoint()

    def watched(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(3)

    side = threading.Thread(target=watched, args=(in_turns,)) if beside else None
    if side:
        side.start()
    for number in range(start, batches):
        say(f"push {number}")
        train_batch(table, seed, number)
        pushed = number + 1
        if pushed % 7 == 3:
            say("flush")
            table.flush()
        if not beside and pushed % 11 == 5:
            say("compact")
            table.compact()
        if not beside and pushed % 3 == 0:
            checkpoint()
    ended.set()
    if side:
        side.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--beside", action="store_true")
    asked = parser.parse_args()
    _ = cb.SparseTable, batch_of(0, 0)  # names and NumPy's generators are imported when first used
    say("ready")
    say("open")
    table = opened(asked.folder)
    start = batches_in(table.export())
    train(table, asked.seed, start, asked.batches, asked.beside)
    say(f"asks {asked.batches}")
    table.close()
    say(f"has {asked.batches}")
    say("end")


if __name__ == "__main__":
    main()
