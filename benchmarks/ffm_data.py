"""Clicks with planted pairs of fields, for benchmarks.ffm: logistic regression sees a little of them, pairs see well.

24 fields, 25.9 features a line (two fields have one to three), values by Zipf, a click rate near 0.19. The logit is a sum of
first-order weights and of 18 pairs of fields, each the product of two latent vectors of 3 numbers. The true probabilities are
kept: their AUC is the best possible one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

FIELDS = 24
NAMES = "abcdefghijklmnopqrstuvwx"  # Vowpal Wabbit tells namespaces apart by their first letter
PAIRS = 18
MULTI = (3, 11)  # fields with one to three features
SIZES = [20, 60, 250, 1_000, 5_000, 20_000] * 4  # values of a field
EXPONENT = 1.1
RANK = 3
FIRST, PAIR, BIAS = 0.08, 0.49, -2.25  # sizes of first-order weights and of pairs; the click rate


@dataclass(frozen=True)
class Clicks:
    values: np.ndarray  # (rows, 24)
    more: tuple[np.ndarray, np.ndarray]  # further values of the fields of MULTI, (rows, 2), -1 for none
    truth: np.ndarray
    labels: np.ndarray

    def text(self, path: Path, rows: slice, libffm: bool = False) -> None:
        """As Vowpal Wabbit's lines, or libffm's."""
        words = [[f" {f}:{v}:1" if libffm else f" {v}" for v in range(size)] for f, size in enumerate(SIZES)]
        heads = ["" if libffm else f" |{name}" for name in NAMES]
        with path.open("w") as out:
            labels = self.labels[rows].tolist()
            more = [m[rows].tolist() for m in self.more]
            for r, row in enumerate(self.values[rows].tolist()):
                parts = ["1" if labels[r] else ("0" if libffm else "-1")]
                for f, v in enumerate(row):
                    parts.append(heads[f] + words[f][v])
                    if f in MULTI:
                        parts += [words[f][w] for w in more[MULTI.index(f)][r] if w >= 0]
                out.write("".join(parts) + "\n")


def zipf(random: np.random.Generator, size: int, rows: int) -> np.ndarray:
    weights = np.arange(1, size + 1) ** -EXPONENT
    return np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(rows)).astype(np.int32)


def make(rows: int, seed: int = 0) -> Clicks:
    random = np.random.default_rng(seed)
    values = np.stack([zipf(random, size, rows) for size in SIZES], axis=1)
    first = [random.normal(0, FIRST, size) for size in SIZES]
    logit = np.full(rows, BIAS)
    for f in range(FIELDS):
        logit += first[f][values[:, f]]
    more = []
    for f in MULTI:  # the second is there in 0.63, the third in 0.32 of the rows; both add to the field
        further = np.stack([zipf(random, SIZES[f], rows) for _ in range(2)], axis=1)
        count = random.random(rows)
        further[count > 0.63, 0] = -1
        further[count > 0.32, 1] = -1
        more.append(further)
        for c in range(2):
            logit += np.where(further[:, c] >= 0, first[f][further[:, c]], 0.0)
    order = random.permutation(FIELDS * (FIELDS - 1) // 2)[:PAIRS]
    every = [(f, g) for f in range(FIELDS) for g in range(f + 1, FIELDS)]
    for f, g in (every[n] for n in order):
        a, b = (random.normal(0, 1, (SIZES[h], RANK)) for h in (f, g))
        logit += PAIR * np.einsum("rd,rd->r", a[values[:, f]], b[values[:, g]]) / np.sqrt(RANK)
    truth = 1 / (1 + np.exp(-logit))
    labels = (random.random(rows) < truth).astype(np.float32)
    return Clicks(values, (more[0], more[1]), truth, labels)
