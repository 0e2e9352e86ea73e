"""Slow twins of the row-wise optimizers and of a whole table: NumPy float32, one row at a time.

Every operation is one rounding to float32 in the order of native/core/embed/row_optimizers.h, so results agree bit for bit.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np

from ctrbox.embed.embedder import Row
from ctrbox.optimizers.of_table_rows import FTRL, SGD, Adagrad, Adam, AdamW, Optimizer, RowwiseAdagrad, is_dense

Array = np.ndarray
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def finish(x: int) -> int:
    """The mix of native/operators/hash.h."""
    for shift in (32, 32):
        x ^= x >> shift
        x = x * 0xE9846AF9B1A615D & MASK
    return x ^ x >> 28


def shard_of(key: int) -> int:
    return finish(key & MASK) >> 58


def initial_vector(key: int, dim: int, init: float, seed: int) -> Array:
    """Uniform in ±init·√3: 24 bits a column, two columns a mix."""
    h = finish((key & MASK) ^ finish((seed + GOLDEN) & MASK))
    unit = np.float32(init * np.sqrt(3.0) / 2**23)
    out = np.empty(dim, np.float32)
    for c in range(dim):
        x = finish((h + (c // 2 + 1) * GOLDEN) & MASK)
        bits = x >> 40 if c % 2 == 0 else (x & 0xFFFFFFFF) >> 8
        out[c] = np.float32(bits - 2**23) * unit
    return out


def constants(optimizer: Optimizer, factor: float) -> list[np.float32]:
    first, *rest = astuple(optimizer)[: 5 if isinstance(optimizer, Adam) else None]
    return [np.float32(first * factor), *map(np.float32, rest)]


def begin(optimizer: Optimizer, w: Array) -> Array:
    """The states of a new part."""
    n = len(w)
    zeros = np.zeros(n, np.float32)
    if n == 0 or isinstance(optimizer, SGD):
        return np.zeros(0, np.float32)
    if isinstance(optimizer, Adagrad):
        return np.full(n, optimizer.initial, np.float32)
    if isinstance(optimizer, RowwiseAdagrad):
        return np.full(1, optimizer.initial, np.float32)
    if is_dense(optimizer):
        return np.concatenate([zeros, zeros])
    if isinstance(optimizer, Adam):
        return np.concatenate([zeros, zeros, np.ones(2, np.float32)])
    alpha, beta, l1, l2 = constants(optimizer, 1.0)
    slope = beta / alpha + l2
    z = np.where(w == 0, np.float32(0), -(w * slope) - np.where(w > 0, l1, -l1))
    return np.concatenate([z.astype(np.float32), zeros])


def step(optimizer: Optimizer, factor: float, w: Array, s: Array, g: Array) -> tuple[Array, Array]:
    """Weights and states after one step."""
    n = len(w)
    one = np.float32(1)
    with np.errstate(all="ignore"):
        if n == 0:
            return w, s
        if isinstance(optimizer, SGD):
            lr, l2 = constants(optimizer, factor)
            return w - lr * (g + l2 * w), s
        if isinstance(optimizer, Adagrad):
            lr, eps, _, l2 = constants(optimizer, factor)
            d = g + l2 * w
            s = s + d * d
            return w - (lr * d) / (np.sqrt(s) + eps), s
        if isinstance(optimizer, RowwiseAdagrad):
            lr, eps, _, l2 = constants(optimizer, factor)
            d = g + l2 * w
            lanes = np.zeros(4, np.float32)
            for k in range(n):
                lanes[k % 4] += d[k] * d[k]
            s = s + ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) / np.float32(n)
            return w - (lr * d) / (np.sqrt(s[0]) + eps), s
        if isinstance(optimizer, Adam):
            lr, beta1, beta2, eps, l2 = constants(optimizer, factor)
            d = g + l2 * w
            product1, product2 = s[2 * n] * beta1, s[2 * n + 1] * beta2
            m = beta1 * s[:n] + (one - beta1) * d
            v = beta2 * s[n : 2 * n] + (one - beta2) * (d * d)
            rate, spread = lr / (one - product1), one / (one - product2)
            w = w - (rate * m) / (np.sqrt(v * spread) + eps)
            return w, np.concatenate([m, v, [product1, product2]]).astype(np.float32)
        assert isinstance(optimizer, FTRL)
        alpha, beta, l1, l2 = constants(optimizer, factor)
        z, squares = s[:n], s[n:]
        grown = squares + g * g
        root = np.sqrt(grown)
        z = z + (g - (root - np.sqrt(squares)) / alpha * w)
        beyond = np.where(z > 0, z - l1, z + l1)
        moved = -(beyond / ((beta + root) / alpha + l2))
        return np.where(np.abs(z) <= l1, np.float32(0), moved), np.concatenate([z, grown])


def fma(a: Any, b: Any, c: Any) -> Array:
    """a·b + c with one rounding: the product is exact in float64, and the sum is rounded to odd before it becomes a float32."""
    a, b, c = (np.asarray(x, np.float64) for x in (a, b, c))
    with np.errstate(all="ignore"):
        product = a * b
        total = product + c
        back = total - product
        lost = (product - (total - back)) + (c - back)  # what the sum lost, exactly
        even = (total.view(np.int64) & 1) == 0
        fix = np.isfinite(total) & (lost != 0) & even
        towards = np.where(lost > 0, np.inf, -np.inf)
        return np.where(fix, np.nextafter(total, towards), total).astype(np.float32)


def dense_step(optimizer: Adam | AdamW, factor: float, t: int, w: Array, s: Array, g: Array) -> tuple[Array, Array]:
    """One step of torch.optim.Adam or AdamW, as native/core/embed/adam_of_every_row.cpp computes it."""
    n, f = len(w), np.float32
    lr, m, v = optimizer.lr * factor, s[:n], s[n:]
    with np.errstate(all="ignore"):
        if isinstance(optimizer, AdamW):
            d = g
            w = w * f(1 - lr * optimizer.weight_decay)
        else:
            d = fma(f(optimizer.l2), w, g) if optimizer.l2 else g
        weight = f(1 - optimizer.beta1)
        m = fma(weight, d - m, m) if weight < 0.5 else fma(weight - f(1), d - m, d)
        v = fma(f(1 - optimizer.beta2) * d, d, v * f(optimizer.beta2))
        root, rate = f((1 - optimizer.beta2**t) ** 0.5), f(-(lr / (1 - optimizer.beta1**t)))
        w = w + (rate * m) / (np.sqrt(v) / root + f(optimizer.eps))
    return w, np.concatenate([m, v])


class Table:
    """A dict of rows with the meaning of `ctrbox.embed.memory.memory_table.MemoryTable`."""

    def __init__(self, row: Row, optimizer: Optimizer, linear: Optimizer, init: float, seed: int) -> None:
        self.row, self.parts, self.init, self.seed = row, (linear, optimizer), init, seed
        self.factor = 1.0
        self.rows: dict[int, tuple[list[Array], list[Array]]] = {}  # values and states of both parts
        self.dense = is_dense(optimizer if row.dim else linear)
        self.steps, self.clocks = (
            0,
            dict[int, Array](),
        )  # of a dense optimizer: pushes, and the clocks of rows that are awake

    def initial(self, key: int) -> list[Array]:
        return [np.zeros(int(self.row.linear), np.float32), initial_vector(key, self.row.dim, self.init, self.seed)]

    def create(self, key: int) -> None:
        if key and key not in self.rows:
            values = self.initial(key)
            self.rows[key] = values, [begin(o, w) for o, w in zip(self.parts, values, strict=True)]

    def prefetch(self, keys: Array) -> None:
        for key in map(int, keys):
            self.create(key)

    def scale_lr(self, factor: float) -> None:
        self.factor = factor

    def wake(self, key: int) -> None:
        if key and self.dense:
            self.clocks.setdefault(key, np.array([self.steps, 1], np.float32))

    def pull(self, keys: Array, create: bool = True) -> Array:
        out = np.zeros((len(keys), self.row.width), np.float32)
        for k, key in enumerate(map(int, keys)):
            if create:
                self.create(key)
                self.wake(key)
            if key:
                out[k] = np.concatenate(self.rows[key][0] if key in self.rows else self.initial(key))
        return out

    def push_dense(self, keys: Array, gradients: Array) -> None:
        given = dict(zip(map(int, keys), gradients, strict=True))
        for key in given:
            self.create(key)
            self.wake(key)
        self.steps += 1
        none = np.zeros(self.row.width, np.float32)
        for key in self.clocks:
            values, states = self.rows[key]
            for p, g in enumerate(np.split(given.get(key, none), [int(self.row.linear)])):
                if len(g):
                    values[p], states[p] = dense_step(
                        self.parts[p],
                        self.factor,
                        self.steps,
                        values[p],
                        states[p],
                        g,  # type: ignore[arg-type]
                    )
            self.clocks[key] = np.array([self.steps, 1], np.float32)

    def push(self, keys: Array, gradients: Array) -> None:
        if self.dense:
            self.push_dense(keys, gradients)
            return
        for key, g in zip(map(int, keys), gradients, strict=True):
            if not key:
                continue
            self.create(key)
            values, states = self.rows[key]
            pieces = np.split(g, [int(self.row.linear)])
            for p, optimizer in enumerate(self.parts):
                values[p], states[p] = step(optimizer, self.factor, values[p], states[p], pieces[p])

    def export(self) -> tuple[Array, Array, Array]:
        keys = sorted(self.rows)
        rows = [self.rows[k] for k in keys]
        width = self.row.width
        values = np.array([np.concatenate(v) for v, _ in rows], np.float32).reshape(len(keys), width)
        held = sum(len(begin(o, w)) for o, w in zip(self.parts, self.initial(1), strict=True))
        asleep = np.zeros(2, np.float32)
        clocks = [[self.clocks.get(k, asleep)] if self.dense else [] for k in keys]
        held += 2 * self.dense
        states = [np.concatenate([*s, *clock]) for (_, s), clock in zip(rows, clocks, strict=True)]
        states = np.array(states, np.float32).reshape(len(keys), held)
        return np.array(keys, np.int64), values, states
