"""Slow twins of lookups and pooling: plain loops over references, float32 all the way, in the order that is promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctrbox.columns.batch import Batch

ZERO = np.float32(0)


def shard(key: int) -> int:
    """The top 6 bits of the mixed key."""
    x = key % 2**64
    for _ in range(2):
        x ^= x >> 32
        x = x * 0xE9846AF9B1A615D % 2**64
    return (x ^ x >> 28) >> 58


@dataclass
class Twin:
    keys: list[int]
    inverse: list[int]
    lists: list[list[list[int]]]  # field → row → positions in keys


def lookup(batch: Batch, fields: Sequence[str]) -> Twin:
    rows = [[batch.sparse[name][r].tolist() for r in range(batch.rows)] for name in fields]
    first: dict[int, int] = {}
    for field in rows:
        for row in field:
            for key in row:
                first.setdefault(key, len(first))
    keys = sorted(first, key=lambda key: (shard(key), first[key]))
    place = {key: k for k, key in enumerate(keys)}
    lists = [[[place[key] for key in row] for row in field] for field in rows]
    return Twin(keys, [k for field in lists for row in field for k in row], lists)


def beats(x: np.float32, best: np.float32) -> bool:
    return bool(x > best or (np.isnan(x) and not np.isnan(best)))


def winner(numbers: Sequence[np.float32]) -> int:
    best = 0
    for k in range(1, len(numbers)):
        if beats(numbers[k], numbers[best]):
            best = k
    return best


def pool(rows: np.ndarray, lists: list[list[list[int]]], kinds: Sequence[str]) -> np.ndarray:
    """(rows, fields, width): first-order weight and vector side by side."""
    out = np.zeros((len(lists[0]) if lists else 0, len(lists), rows.shape[1]), np.float32)
    for f, kind in enumerate(kinds):
        for r, keys in enumerate(lists[f]):
            if not keys:
                continue
            if kind == "max":
                out[r, f] = [column[winner(column)] for column in zip(*(rows[k] for k in keys), strict=True)]
                continue
            total = rows[keys[0]].copy()
            for key in keys[1:]:
                total += rows[key]
            out[r, f] = total / np.float32(len(keys)) if kind == "mean" else total
    return out


def pool_gradient(
    rows: np.ndarray, lists: list[list[list[int]]], kinds: Sequence[str], gradient: np.ndarray
) -> np.ndarray:
    """Gradient of rows: row after row, within a row field after field."""
    out = np.zeros_like(rows)
    for r in range(len(gradient)):
        for f, kind in enumerate(kinds):
            keys, g = lists[f][r], gradient[r, f]
            if kind == "max" and keys:
                wins = [keys[winner(column)] for column in zip(*(rows[k] for k in keys), strict=True)]
                for key in dict.fromkeys(keys):
                    out[key] += np.where(np.equal(wins, key), g, ZERO)
            else:
                share = np.float32(1) / np.float32(len(keys) or 1) if kind == "mean" else np.float32(1)
                for key in keys:
                    out[key] += g * share
    return out


def sequence(rows: np.ndarray, lists: list[list[int]], longest: int | None) -> tuple[np.ndarray, list[int]]:
    kept = [keys if longest is None else keys[-longest:] for keys in lists]
    lengths = [len(keys) for keys in kept]
    out = np.zeros((len(kept), max([1, *lengths]), rows.shape[1]), np.float32)
    for r, keys in enumerate(kept):
        for k, key in enumerate(keys):
            out[r, k] = rows[key]
    return out, lengths


def sequence_gradient(
    rows: np.ndarray, lists: list[list[int]], longest: int | None, gradient: np.ndarray
) -> np.ndarray:
    out = np.zeros_like(rows)
    for r, keys in enumerate(lists):
        for k, key in enumerate(keys if longest is None else keys[-longest:]):
            out[key] += gradient[r, k]
    return out
