"""The Deep FFM part of benchmarks.scale: examples learned and predicted per second, and the AUC of the test.

800,000 examples of benchmarks.ffm_data, seed 7, are learned in one pass and 200,000 are predicted, a quarter of both with
--quick. Examples lie in memory in pieces of 65,536, as a cache of examples hands them out; the time includes progressive
validation. One core learns one example after the other; several cores learn blocks, and the time of blocks on one core is
in the "learned in blocks" lines. Predictions are the best of three.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ffm_data
from ctrbox import _native
from ctrbox.ffm.engine import BLOCK, DeepFFM
from ctrbox.ffm.progress import auc

ROWS, TEST, SEED, BITS, PIECE = 800_000, 200_000, 7, 24, 65_536
MODELS: dict[str, dict[str, Any]] = {
    "FFM k=4": {"k": 4, "lr": 0.01},
    "Deep FFM k=4 24-24": {"k": 4, "lr": 0.01, "hidden": (24, 24)},
    "Deep FFM k=8 128-128": {"k": 8, "lr": 0.01, "hidden": (128, 128)},
}


def prepare(folder: Path, quick: bool) -> None:
    rows = (ROWS + TEST) // (4 if quick else 1)
    clicks = ffm_data.make(rows, SEED)
    np.savez(
        folder / "clicks.npz", values=clicks.values, first=clicks.more[0], second=clicks.more[1], labels=clicks.labels
    )


def pieces(folder: Path, rows: slice) -> tuple[list[_native.Examples], np.ndarray]:
    """Rows as examples, in pieces, and their labels."""
    with np.load(folder / "clicks.npz") as kept:
        values, labels = kept["values"][rows].astype(np.int64) + 1, kept["labels"][rows]
        more = [kept[name][rows].astype(np.int64) + 1 for name in ("first", "second")]
    salts = [_native.salt(name.encode()) for name in ffm_data.NAMES]
    found = []
    for at in range(0, len(labels), PIECE):
        part = slice(at, at + PIECE)
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
    rows = ROWS // (4 if quick else 1)
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
                predictions = model.predict(test, threads=cores)
                times.append(time.perf_counter() - begin)
            kept[name]["auc"] = auc(labels, predictions)
            predicted[name] = {"rate": len(labels) / min(times), "unit": "examples/s"}
    return {
        f"{name} {what}": one
        for what, found in (("learned", learned), ("learned in blocks", blocks), ("predicted", predicted))
        for name, one in found.items()
    }
