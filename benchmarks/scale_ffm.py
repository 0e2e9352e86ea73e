"""The Deep FFM part of benchmarks.scale: examples learned and predicted per second, and the AUC of the test.

800,000 examples of benchmarks.ffm_data, seed 7, are learned in one epoch and 200,000 are predicted, a quarter of both with
--quick. Examples lie in memory in pieces of 65,536, as a cache of examples hands them out; the time includes progressive
validation. One core learns one example after the other; several cores learn blocks, and the time of blocks on one core is
in the "learned in blocks" lines. Predictions are the best of three; N cores predict the test examples N times in one call, so
that the call takes as long as on one core: 16 cores would predict them once in 12 ms, which is too short to measure.

Independent processes learn one example after the other in pieces of 4,096, and predict the test examples in such pieces.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ffm_data
from benchmarks.scale_limit import Meet, rate_of
from ctrbox import _native
from ctrbox.ffm.engine import BLOCK, DeepFFM
from ctrbox.ffm.progressive_validation import auc

ROWS, TEST, SEED, BITS, PIECE = 800_000, 200_000, 7, 24, 65_536
LIMIT_PIECE, LIMIT_ROWS = (
    4096,
    200_000,
)  # of independent processes: examples of a call, and examples of which calls are made
MODELS: dict[str, dict[str, Any]] = {
    "FFM k=4": {"k": 4, "lr": 0.01, "hidden": ()},
    "Deep FFM k=4 24-24": {"k": 4, "lr": 0.01, "hidden": (24, 24), "nn": 0.05},
    "Deep FFM k=8 128-128": {"k": 8, "lr": 0.01, "hidden": (128, 128), "nn": 0.05},
}


def prepare(folder: Path, quick: bool) -> None:
    rows = (ROWS + TEST) // (4 if quick else 1)
    clicks = ffm_data.make(rows, SEED)
    np.savez(
        folder / "clicks.npz", values=clicks.values, first=clicks.more[0], second=clicks.more[1], labels=clicks.labels
    )


def train_rows(folder: Path) -> int:
    """Return the number of examples to learn from; the others are the test."""
    with np.load(folder / "clicks.npz") as kept:
        return len(kept["labels"]) * ROWS // (ROWS + TEST)


def pieces(folder: Path, rows: slice, piece: int = PIECE) -> tuple[list[_native.Examples], np.ndarray]:
    """Rows as examples, in pieces, and their labels."""
    with np.load(folder / "clicks.npz") as kept:
        values, labels = kept["values"][rows].astype(np.int64) + 1, kept["labels"][rows]
        more = [kept[name][rows].astype(np.int64) + 1 for name in ("first", "second")]
    salts = [_native.salt(name.encode()) for name in ffm_data.NAMES]
    found = []
    for at in range(0, len(labels), piece):
        part = slice(at, at + piece)
        count = len(labels[part])
        columns = []
        for f in range(ffm_data.FIELDS):
            column = values[part, f][:, None]
            if f in ffm_data.MULTI:
                column = np.concatenate([column, more[ffm_data.MULTI.index(f)][part]], axis=1)
            kept_ = column > 0  # 0: no further value
            columns.append((column[kept_], np.r_[0, np.cumsum(kept_.sum(axis=1))]))
        nothing = np.zeros((count, 0), np.float32)
        found.append(_native.Examples.from_batch(columns, nothing, salts, labels[part], np.zeros(0, np.float32)))
    return found, labels


def measure(folder: Path, cores: int, quick: bool) -> dict[str, dict[str, Any]]:
    rows = train_rows(folder)
    train, _ = pieces(folder, slice(0, rows))
    test, labels = pieces(folder, slice(rows, None))
    learned, blocks, predicted = {}, {}, {}
    for name, options in MODELS.items():
        for block, kept in ((None, learned), (BLOCK, blocks)):
            if block and cores > 1:  # that is what several cores do anyway
                kept[name] = learned[name]
                continue
            model = DeepFFM(list(ffm_data.NAMES), bits=BITS, **options)
            begin = time.perf_counter()
            model.learn(train, threads=cores, block=block)
            seconds = time.perf_counter() - begin
            kept[name] = {"rate": rows / seconds, "unit": "examples/s"}
            times = []
            for _ in range(3):
                begin = time.perf_counter()
                predictions = model.predict(test * cores, threads=cores)
                times.append(time.perf_counter() - begin)
            kept[name]["auc"] = auc(labels, predictions[: len(labels)])
            predicted[name] = {"rate": len(predictions) / min(times), "unit": "examples/s"}
    return {
        f"{name} {what}": one
        for what, found in (("learned", learned), ("learned in blocks", blocks), ("predicted", predicted))
        for name, one in found.items()
    }


def limit(folder: Path, quick: bool, seconds: float, meet: Meet) -> dict[str, float]:
    rows = train_rows(folder)
    train, _ = pieces(folder, slice(0, min(rows, LIMIT_ROWS)), LIMIT_PIECE)
    test, _ = pieces(folder, slice(rows, rows + LIMIT_ROWS), LIMIT_PIECE)
    found = {}
    for name, options in MODELS.items():
        model = DeepFFM(list(ffm_data.NAMES), bits=BITS, **options)
        model.learn(train[:1])
        for what, work, examples in (("learned", model.learn, train), ("predicted", model.predict, test)):
            following = itertools.cycle(examples)

            def one(work: Any = work, following: Any = following) -> int:
                piece = next(following)
                work([piece])
                return int(piece.rows)

            found[f"{name} {what}"] = rate_of(meet, seconds, one)
    return found
