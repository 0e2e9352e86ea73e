"""The trace of `benchmarks.table`: batches of unique keys by Zipf's law, and the best hit rate any cache has on it.

A trace is a file of ranks (uint32, 1 = the most frequent key), batch after batch, each rank once a batch and in the
order in which the trainer meets its keys (by shard, then by first reference). Keys are ranks mixed to 64 bits; the mix
is a bijection, so that two ranks never meet, and only rank 0, which is never drawn, would be the null slot. A trace that
lies in the folder from an earlier run with the same parameters is used again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ctrbox import _native

Ranks = npt.NDArray[np.uint32]
Keys = npt.NDArray[np.int64]
MIX = np.uint64(0xE9846AF9B1A615D)
NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Shape:
    space: int
    batches: int
    references: int  # of a batch, repeated keys counted
    exponent: float = 1.05
    seed: int = 0

    @property
    def name(self) -> str:
        return "trace-" + hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]


class Zipf:
    """Ranks 1 to ``space`` with P(k) ~ k^-exponent, by rejection-inversion (Hörmann and Derflinger, 1996), whole arrays."""

    def __init__(self, space: int, exponent: float) -> None:
        self.space, self.power = space, 1.0 - exponent
        self.exponent = exponent
        self.first = self._area(np.float64(1.5)) - 1.0
        self.last = self._area(np.float64(space + 0.5))
        self.sure = 2.0 - self._at(self._area(np.float64(2.5)) - 2.0**-exponent)

    def draw(self, rng: np.random.Generator, n: int) -> Ranks:
        out = np.empty(n, np.uint32)
        done = 0
        while done < n:
            u = self.last + rng.random(n - done) * (self.first - self.last)
            x = self._at(u)
            k = np.clip(np.rint(x), 1, self.space)
            taken = k - x <= self.sure
            left = np.flatnonzero(~taken)
            taken[left] = u[left] >= self._area(k[left] + 0.5) - k[left] ** -self.exponent
            some = k[taken]
            out[done : done + len(some)] = some
            done += len(some)
        return out

    def _area(self, x: np.ndarray) -> np.ndarray:
        return np.expm1(self.power * np.log(x)) / self.power

    def _at(self, area: np.ndarray) -> np.ndarray:
        return np.exp(np.log1p(self.power * area) / self.power)


def mixed(ranks: Ranks) -> Keys:
    """Keys that look like those of features."""
    x = ranks.astype(np.uint64)
    with np.errstate(over="ignore"):
        for _ in range(2):
            x ^= x >> np.uint64(32)
            x *= MIX
    x ^= x >> np.uint64(28)
    return x.view(np.int64)


def unique(ranks: Ranks, threads: int = 2) -> Ranks:
    """Each rank once, in the order of the trainer's look-up."""
    found = _native.Lookup.of([(mixed(ranks), None)], len(ranks), threads)
    out = np.empty(len(np.asarray(found.keys)), np.uint32)
    out[np.asarray(found.inverse)] = ranks
    return out


@dataclass(frozen=True)
class Trace:
    shape: Shape
    path: Path
    starts: tuple[int, ...]  # batches + 1
    distinct: int

    @staticmethod
    def made(shape: Shape, folder: Path) -> Trace:
        """Written into ``folder``, or found there."""
        path, facts = folder / f"{shape.name}.u32", folder / f"{shape.name}.json"
        if not facts.exists():
            folder.mkdir(parents=True, exist_ok=True)
            rng, zipf = np.random.default_rng(shape.seed), Zipf(shape.space, shape.exponent)
            seen = np.zeros(shape.space + 1, bool)
            starts = [0]
            with path.open("wb") as out:
                for _ in range(shape.batches):
                    ranks = unique(zipf.draw(rng, shape.references))
                    seen[ranks] = True
                    starts.append(starts[-1] + len(ranks))
                    ranks.tofile(out)
            facts.write_text(json.dumps({"starts": starts, "distinct": int(seen.sum())}))
        known = json.loads(facts.read_text())
        return Trace(shape, path, tuple(known["starts"]), known["distinct"])

    @property
    def keys(self) -> int:
        """Unique keys of all batches added up: what a run pulls and pushes."""
        return self.starts[-1]

    def ranks(self, batch: int) -> Ranks:
        begin, end = self.starts[batch : batch + 2]
        return np.fromfile(self.path, np.uint32, end - begin, offset=4 * begin)

    def walk(self) -> Iterator[Keys]:
        for batch in range(self.shape.batches):
            yield mixed(self.ranks(batch))


@dataclass(frozen=True)
class Best:
    """Hits of the optimum, and the keys that were asked before, batch by batch."""

    hits: tuple[int, ...]
    known: tuple[int, ...]

    def rate(self, since: int = 0) -> float:
        return sum(self.hits[since:]) / max(1, sum(self.known[since:]))


def belady(trace: Trace, capacity: int) -> Best:
    """What a cache of ``capacity`` rows that knows the future hits: after a batch it keeps the rows asked again soonest.

    A batch's rows are there while it is worked on, whatever the capacity; a row need not be kept. Both make the bound
    higher than that of a real table.
    """
    saved = trace.path.with_name(f"{trace.shape.name}-belady-{capacity}.json")
    if saved.exists():
        known = json.loads(saved.read_text())
        return Best(tuple(known["hits"]), tuple(known["known"]))
    upcoming = _next_uses(trace)
    held = np.empty(0, np.int32)  # the next use of every row kept: which row it is does not matter
    hits: list[int] = []
    for batch in range(trace.shape.batches):
        staying = held[held != batch]
        hits.append(len(held) - len(staying))
        begin, end = trace.starts[batch : batch + 2]
        asked_again = upcoming[begin:end]
        held = np.concatenate([staying, asked_again[asked_again != NEVER]])
        if len(held) > capacity:
            held = np.partition(held, capacity - 1)[:capacity]
    seen = np.zeros(trace.shape.space + 1, bool)
    before = []
    for batch in range(trace.shape.batches):
        ranks = trace.ranks(batch)
        before.append(int(seen[ranks].sum()))
        seen[ranks] = True
    saved.write_text(json.dumps({"hits": hits, "known": before}))
    return Best(tuple(hits), tuple(before))


def _next_uses(trace: Trace) -> npt.NDArray[np.int32]:
    """For every key of every batch the batch that asks for it next, or NEVER."""
    out = np.empty(trace.keys, np.int32)
    soonest = np.full(trace.shape.space + 1, NEVER, np.int32)
    for batch in reversed(range(trace.shape.batches)):
        ranks = trace.ranks(batch)
        begin, end = trace.starts[batch : batch + 2]
        out[begin:end] = soonest[ranks]
        soonest[ranks] = batch
    return out
