"""Deep FFM in NumPy, one float32 operation after the other: the bits of `native/core/ffm`.

Sums go in the order that kernels.h promises, so a comparison needs no tolerance. Weights come from the native model, and
so does the choice of places (`weight_layout.h`), which is written out here again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

F = np.float32
LANES = 16
SLICES = 32  # of a block
FEWEST = 16  # examples of a block at first
MASK = 2**64 - 1


def padded(n: int, to: int) -> int:
    return -(-n // to) * to


def lane_sum(a: np.ndarray) -> np.float32:
    s = a[:LANES].copy()
    for k in range(LANES, len(a), LANES):
        s = s + a[k : k + LANES]
    for half in (8, 4, 2, 1):
        s = s[:half] + s[half : 2 * half]
    return s[0]


def fused(a: np.ndarray, b: Any, c: Any) -> np.ndarray:
    """a · b + c, rounded once: exact in float64 up to the sum, which is rounded to odd before it becomes a float32."""
    p, c = np.float64(a) * np.float64(b), np.float64(c)
    t = np.atleast_1d(p + c)
    part = t - p
    error = (p - (t - part)) + (c - part)
    even = t.view(np.int64) & 1 == 0
    odd = np.nextafter(t, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, odd, t).astype(F)


def lane_dot(a: np.ndarray, b: np.ndarray) -> np.float32:
    s = a[:LANES] * b[:LANES]
    for k in range(LANES, len(a), LANES):
        s = fused(a[k : k + LANES], b[k : k + LANES], s)
    return lane_sum(s)


def latent_dot(a: np.ndarray, b: np.ndarray) -> np.float32:
    chunks = [(p[0] + p[1]) + (p[2] + p[3]) for p in (a * b).reshape(-1, 4)]
    total = chunks[0]
    for s in chunks[1:]:
        total = total + s
    return total


def inverse_power(a: np.ndarray, power_t: np.float32, fuse: bool) -> np.ndarray:
    """a^-power_t; for one half up to the factor 0.703952253, which the rate holds."""
    bits = a.view(np.int32)
    if power_t == F(0.5):
        y = (np.int32(0x5F1FFFF9) - (bits >> 1)).view(F)
        start = F(2.38924456)
        return y * (fused(-(a * y), y, start) if fuse else start - (a * y) * y)
    e = (bits - np.int32(0x3F3504F3)) >> 23
    m = (bits - (e << 23)).view(F)
    t = (m - F(1)) / (m + F(1))
    u = t * t
    series = F(2.88539008) + u * (F(0.961796694) + u * (F(0.577078016) + u * F(0.412198583)))
    x = (e.astype(F) + t * series) * -power_t
    n = (x + F(12582912)) - F(12582912)
    f = x - n
    p = F(0.000154035304)
    for c in (0.00133335581, 0.00961812911, 0.0555041087, 0.240226507, 0.693147181, 1.0):
        p = F(c) + f * p
    return (p.view(np.int32) + (n.astype(np.int32) << 23)).view(F)


def adagrad(w: np.ndarray, a: np.ndarray, g: np.ndarray, rates: Any, fuse: bool = False) -> None:
    """One step in place; `rates` has rate, power_t and initial."""
    power_t = F(rates.power_t)
    rate = F(rates.rate) * F(0.703952253) if power_t == F(0.5) else F(rates.rate)
    a[:] = fused(g, g, a) if fuse else a + g * g
    step = g * inverse_power(np.ascontiguousarray(a), power_t, fuse)
    w[:] = fused(-step, rate, w) if fuse else w - step * rate


@dataclass
class Gradient:
    """vector · factor, of the weights w with accumulators a; added up by slices ("fused" or "plain") or not at all."""

    w: np.ndarray
    a: np.ndarray
    vector: np.ndarray
    factor: Any
    rates: Any
    summed: str

    def place(self) -> tuple[int, ...]:
        return (self.w.__array_interface__["data"][0],)


class Twin:
    """The model behind `native`, with copies of its weights."""

    def __init__(self, native: Any) -> None:
        s = self.s = native.settings
        self.lr, self.ffm, self.dense = native.lr(), native.ffm(), native.dense()
        self._gradients: list[Gradient] | None = None  # of an example in a block
        self.latent = padded(s.k, 4)
        self.inputs = self.of_field(s.fields)
        self.layers = []
        at, before = LANES, self.inputs
        for n, neurons in enumerate([*s.hidden, 1] if s.hidden else []):
            by_input = 0 < n < len(s.hidden)
            width = padded(before + 1, LANES)
            rows, step = (before + 1, padded(neurons, LANES)) if by_input else (neurons, width)
            count = rows * step
            w = self.dense[at : at + count].reshape(rows, step)
            a = self.dense[at + count : at + 2 * count].reshape(rows, step)
            self.layers.append((before, neurons, by_input, w, a))
            at, before = at + 2 * count, neurons

    def learn(self, examples: Any) -> np.ndarray:
        return np.array([self._one(e) for e in rows_of(examples)], F)

    def learn_blocks(self, examples: Any, block: int, learned: int) -> np.ndarray:
        """Blocks, as block_learner.h has them: every gradient is one of the weights as the block found them."""
        rows, predictions, begin = rows_of(examples), [], 0
        while begin < len(rows):
            end = min(len(rows), begin + min(block, max((learned + begin) // 64 // FEWEST, 1) * FEWEST))
            cuts = [begin + (end - begin) * s // SLICES for s in range(SLICES + 1)]
            one_by_one: list[Gradient] = []
            sums: dict[tuple[int, ...], list[tuple[int, np.ndarray, Gradient]]] = {}
            for s in range(SLICES):
                for e in range(cuts[s], cuts[s + 1]):
                    self._gradients = []
                    predictions.append(self._one(rows[e]))
                    for g in self._gradients:
                        if not g.summed:
                            one_by_one.append(g)
                            continue
                        parts = sums.setdefault(g.place(), [])
                        if not parts or parts[-1][0] != s:
                            parts.append((s, g.vector * g.factor, g))
                        elif g.summed == "fused":
                            parts[-1] = (s, fused(g.vector, g.factor, parts[-1][1]), g)
                        else:
                            parts[-1] = (s, parts[-1][1] + g.vector * g.factor, g)
            self._gradients = None
            for g in one_by_one:
                adagrad(g.w, g.a, g.vector * g.factor, g.rates)
            for parts in sums.values():
                total = parts[0][1]
                for _, part, _ in parts[1:]:
                    total = total + part
                adagrad(parts[0][2].w, parts[0][2].a, total, parts[0][2].rates, fuse=True)
            begin = end
        return np.array(predictions, F)

    def _step(self, w: np.ndarray, a: np.ndarray, vector: Any, factor: Any, rates: Any, summed: str = "") -> None:
        """A step now, or a gradient to be kept until the end of its block."""
        if self._gradients is None:
            adagrad(w, a, vector * factor, rates, fuse=bool(summed))
        else:
            self._gradients.append(Gradient(w, a, np.array(vector), factor, rates, summed))

    def of_field(self, g: int) -> int:
        return (g * (g + 1) // 2 if self.s.ffm else 0) + (g if self.s.lr else 0)

    def pair(self, f: int, g: int) -> int:
        return self.of_field(g) + f

    def first_order(self, g: int) -> int:
        return self.of_field(g) + (g + 1 if self.s.ffm else 0)

    def vector(self, row: np.ndarray, g: int) -> np.ndarray:
        return row[g * self.latent : (g + 1) * self.latent]

    def _one(self, example: Any) -> np.float32:
        features, label, weight = example
        s, fields = self.s, self.s.fields
        x = np.zeros(padded(self.inputs + 1, LANES), F)
        groups: dict[int, list[tuple[int, np.float32]]] = {}
        for f, key, value in features:
            groups.setdefault(f, []).append((key, value))

        # forward
        sums = np.zeros((fields, self.ffm.shape[2] if s.ffm else 0), F)
        for f, group in groups.items():
            for n, (key, value) in enumerate(group):
                if s.lr:
                    x[self.first_order(f)] += self.lr[self.lr_of(key), 0] * value
                if s.ffm:
                    row = self.ffm[self.row_of(key), 0]
                    if n:
                        own = self.vector(row, f) * value
                        x[self.pair(f, f)] += latent_dot(self.vector(sums[f], f), own)
                    sums[f] += row * value
        for f in range(fields if s.ffm else 0):
            for g in range(f + 1, fields):
                x[self.pair(f, g)] = latent_dot(self.vector(sums[f], g), self.vector(sums[g], f))
        logit = lane_sum(x) if s.residual or not s.hidden else F(0)
        inverse = F(1)
        if s.hidden:
            into = x.copy()
            if s.norm:
                mean = lane_sum(x) / F(self.inputs)
                into[: self.inputs] -= mean
                inverse = F(1) / np.sqrt(lane_dot(into, into) / F(self.inputs) + F(1e-5))
                into *= inverse
            acts = [into]
            for before, neurons, by_input, w, _ in self.layers:
                acts[-1][before] = F(1)
                out = np.zeros(padded(neurons + 1, LANES), F)
                rows = np.zeros((neurons, len(acts[-1])), F)
                rows[:, : before + 1] = w.T[:neurons] if by_input else w[:, : before + 1]
                out[:neurons] = [lane_dot(row, acts[-1]) for row in rows]
                acts.append(np.where(out > 0, out, F(0)))
            logit = logit + out[0]
        logit = logit + self.dense[0]
        try:
            p = 1 / (1 + math.exp(-float(logit)))
        except OverflowError:
            p = 0.0
        slope = F((p - float(label)) * float(weight))

        # backward; everything reads what forward saw, but for features of one place, which are stepped in order
        self._step(self.dense[0:1], self.dense[1:2], np.array([slope]), F(1), s.lr_rates)
        dx = np.zeros_like(x)
        if s.hidden:
            upper = np.array([slope])
            for n in range(len(self.layers) - 1, -1, -1):
                before, neurons, by_input, w, a = self.layers[n]
                dx = np.zeros(padded(before + 1, LANES), F)
                delta = np.zeros(padded(neurons, LANES), F)
                last = n == len(self.layers) - 1
                delta[:neurons] = upper if last else np.where(acts[n + 1] > 0, upper, F(0))[:neurons]
                for i in range(before + 1 if by_input else 0):
                    dx[i] = lane_dot(w[i], delta)
                    self._step(w[i], a[i], delta, acts[n][i], s.nn_rates, "fused")
                for j in range(0 if by_input else neurons):
                    dx = fused(w[j], delta[j], dx)
                    self._step(w[j], a[j], acts[n], delta[j], s.nn_rates, "fused")
                upper = dx
            dx[self.inputs] = F(0)
            if s.norm:
                count = F(self.inputs)
                mean, along = lane_sum(dx) / count, lane_dot(dx, into) / count
                dx = ((dx - mean) - into * along) * inverse
        direct = slope if s.residual or not s.hidden else F(0)
        for f, group in groups.items():
            for key, value in group:
                if s.lr:
                    place = self.lr[self.lr_of(key)]
                    slope_of_sum = np.array([dx[self.first_order(f)] + direct])
                    self._step(place[0:1], place[1:2], slope_of_sum, value, s.lr_rates)
                if s.ffm:
                    w, a = self.ffm[self.row_of(key)]
                    g = np.zeros_like(w)
                    for h in range(fields):
                        other = self.vector(sums[h], f)
                        if h == f:
                            other = self.vector(sums[f], f) - self.vector(w, f) * value
                            if len(group) == 1:
                                other = np.zeros_like(other)
                        slope_of_pair = dx[self.pair(min(f, h), max(f, h))] + direct
                        self.vector(g, h)[:] = other * (slope_of_pair * value)
                    self._step(w, a, g, F(1), s.ffm_rates, "plain")
        return F(p)

    def row_of(self, key: int) -> int:
        return (key * len(self.ffm)) >> 64

    def lr_of(self, key: int) -> int:
        return (key * 0x9E3779B97F4A7C15 & MASK) >> (64 - self.s.bits)


def rows_of(examples: Any) -> list[tuple[list[tuple[int, int, np.float32]], float, float]]:
    """(field, key, value) of an example's features, its label and its weight."""
    offsets, keys, fields = examples.offsets.tolist(), examples.keys.tolist(), examples.fields.tolist()
    values = examples.values if len(examples.values) else np.ones(len(keys), F)
    weights = examples.weights if len(examples.weights) else np.ones(len(offsets) - 1, F)
    return [
        (
            [(fields[i], keys[i], values[i]) for i in range(offsets[e], offsets[e + 1])],
            float(examples.labels[e]),
            float(weights[e]),
        )
        for e in range(len(offsets) - 1)
    ]
