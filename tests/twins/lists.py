"""Slow twins of the list operators: plain Python, one row at a time; a row is a list without nulls."""

from __future__ import annotations

from typing import Any

_TOP = 1 << 64


def first(row: list[Any], n: int) -> list[Any]:
    return row[: max(n, 0)]


def last(row: list[Any], n: int) -> list[Any]:
    return row[max(len(row) - max(n, 0), 0) :]


def get(row: list[Any], index: int) -> Any:
    try:
        return row[index]
    except IndexError:
        return None


def join(row: list[bytes], sep: str) -> bytes:
    return sep.encode().join(row)


def distinct(row: list[Any]) -> list[Any]:
    return list(dict.fromkeys(row))


def overlap_count(a: list[Any], b: list[Any]) -> int:
    return len(set(a) & set(b))


def overlap_jaccard(a: list[Any], b: list[Any]) -> float:
    either = set(a) | set(b)
    return len(set(a) & set(b)) / len(either) if either else 0.0


def sum_int(row: list[int]) -> int:
    """Wraps around at 64 bits."""
    total = sum(row) % _TOP
    return total - _TOP if total >= _TOP // 2 else total


def sum_float(row: list[float]) -> float:
    """Left to right; the built-in sum of newer Pythons compensates and gives other bits."""
    total = 0.0
    for x in row:
        total += x
    return total


def mean(row: list[float]) -> float | None:
    return sum_float(row) / len(row) if row else None


def largest(row: list[Any]) -> Any:
    """A NaN anywhere is the answer; of equal zeros the first stays."""
    return _extreme(row, lambda new, old: new > old)


def smallest(row: list[Any]) -> Any:
    return _extreme(row, lambda new, old: new < old)


def _extreme(row: list[Any], better: Any) -> Any:
    if not row:
        return None
    best = row[0]
    for x in row[1:]:
        if best == best and (better(x, best) or x != x):
            best = x
    return best


def finish(x: int) -> int:
    x ^= x >> 32
    x = x * 0xE9846AF9B1A615D % _TOP
    x ^= x >> 32
    x = x * 0xE9846AF9B1A615D % _TOP
    return x ^ x >> 28


def fold(a: int, b: int) -> int:
    """An ordered pair of hashes, as native/operators/hash.h folds them."""
    return finish((a * 0x9E3779B97F4A7C15 % _TOP) ^ b)


def ngrams(row: list[int], n: int) -> list[int]:
    grams = []
    for k in range(len(row) - n + 1):
        gram = row[k]
        for x in row[k + 1 : k + n]:
            gram = fold(gram, x)
        grams.append(gram)
    return grams
