"""Slow twin of native/core/embed/row_lifetime.h over the twin of a table: counters, admission and expiry, one key at a time."""

from __future__ import annotations

import math

import numpy as np

from tests.twins.optimizers import GOLDEN, MASK, Array, Table, begin, finish, shard_of

F = np.float32
MOST = np.finfo(F).max


def faded(decay: float, periods: int) -> float:
    """By squaring, as a power by multiplication would round differently."""
    power = 1.0
    while periods:
        if periods & 1:
            power *= decay
        decay *= decay
        periods >>= 1
    return power


class LivingTable(Table):
    """``count`` 0: every push of a key gives it a row, with ``probability``."""

    def __init__(self, *args, decay: float, count: int, probability: float, sketch: int) -> None:
        super().__init__(*args)
        self.decay, self.count, self.probability = decay, count, probability
        self.each = max(64, sketch // 64)
        self.sketch: dict[tuple[int, int], int] = {}
        self.counters: dict[int, tuple[np.float32, np.float32, int]] = {}
        self.clock = self.pushes = self.skipped = self.not_admitted = 0

    @property
    def admits_all(self) -> bool:
        return self.count == 0 and self.probability == 1

    def create(self, key: int) -> None:
        if key and key not in self.rows and self.admits_all:
            self.make(key)

    def make(self, key: int) -> None:
        values = self.initial(key)
        self.rows[key] = values, [begin(o, w) for o, w in zip(self.parts, values, strict=True)]
        self.counters[key] = F(0), F(0), self.clock

    def admitted(self, key: int, times: float) -> bool:
        mix = finish(key & MASK)
        if self.probability < 1:
            chance = finish(mix ^ finish((self.seed + self.pushes * GOLDEN) & MASK))
            if (chance >> 11) * 2.0**-53 >= self.probability:
                return False
        if not self.count:
            return True
        places = [(shard_of(key), (m & 0xFFFFFFFF) * self.each >> 32) for m in (mix, finish((mix + 1) & MASK))]
        now = min(255, min(self.sketch.get(p, 0) for p in places) + math.ceil(min(times, 255)))
        for p in places:
            self.sketch[p] = max(self.sketch.get(p, 0), now)
        return now >= self.count

    def push_shown(self, keys: Array, gradients: Array, shows: Array, clicks: Array) -> None:
        self.pushes += 1
        finite = np.isfinite(gradients).all(1)
        self.skipped += int((~finite & (keys != 0)).sum())
        moved = []
        for k, key in enumerate(map(int, keys)):
            self.create(key)
            if not key or not finite[k]:
                continue
            if key not in self.rows:
                if not self.admitted(key, float(shows[k])):
                    self.not_admitted += 1
                    continue
                self.make(key)
            moved.append(k)
        for k in moved:
            key = int(keys[k])
            super().push(keys[k : k + 1], gradients[k : k + 1])
            had, clicked, period = self.counters[key]
            by = faded(self.decay, self.clock - period)
            with np.errstate(over="ignore"):
                now = F(float(had) * by) + shows[k], F(float(clicked) * by) + clicks[k]
            self.counters[key] = min(now[0], MOST), min(now[1], MOST), self.clock

    def expire(self, unseen: int | None, score: float | None, click: float, nonclick: float) -> int:
        gone = []
        for key, (shows, clicks, period) in self.counters.items():
            by = faded(self.decay, self.clock - period)
            now = float(F(float(shows) * by)), float(F(float(clicks) * by))
            old = unseen is not None and self.clock - period > unseen
            if old or (score and click * now[1] + nonclick * (now[0] - now[1]) < score):
                gone.append(key)
        for key in gone:
            del self.rows[key], self.counters[key]
        return len(gone)
