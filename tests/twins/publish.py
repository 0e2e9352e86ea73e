"""Plain twins of native/core/publish: codes in NumPy, patches in loops over integers."""

from __future__ import annotations

import numpy as np

JOIN = 3


def quantize(weights: np.ndarray, bucket: float, first: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        whole = np.rint(np.clip(weights.astype(np.float32) / np.float32(bucket), -4194303, 4194303)).astype(np.int64)
    return np.clip(whole - first, 0, 65535).astype(np.uint16)


def dequantize(codes: np.ndarray, bucket: float, first: int) -> np.ndarray:
    return (codes.astype(np.int64) + first).astype(np.float32) * np.float32(bucket)


Regions = list[tuple[int, int, int]]


def words(data: bytes, word: int) -> list[int]:
    padded = data + bytes(-len(data) % word)
    return [int.from_bytes(padded[i : i + word], "little") for i in range(0, len(padded), word)]


def beside(base: bytes, regions: Regions) -> bytes:
    """The base laid out as the result is."""
    return b"".join(base[at : at + held][:size].ljust(size, b"\0") for at, held, size in regions)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def diff(base: bytes, result: bytes, word: int, regions: Regions) -> tuple[bytes, list[bytes], int]:
    old, new = words(beside(base, regions), word), words(result, word)
    starts = set()  # a run never goes on over the border of a region, but two that touch are one
    at = 0
    for _, _, size in regions:
        starts.add(at)
        at += -(-size // word)
    runs: list[list[int]] = []
    for n, (a, b) in enumerate(zip(old, new, strict=True)):
        if a == b:
            continue
        same_region = runs and not any(runs[-1][1] <= s <= n for s in starts)
        if runs and (runs[-1][1] == n or (same_region and n - runs[-1][1] <= JOIN)):
            runs[-1][1] = n + 1
        else:
            runs.append([n, n + 1])
    positions, planes, last = b"", [bytearray() for _ in range(word)], 0
    bits = 8 * word
    for begin, end in runs:
        positions += varint(begin - last) + varint(end - begin)
        last = end
        for n in range(begin, end):
            delta = (new[n] - old[n]) % (1 << bits)
            signed = delta - (1 << bits) if delta >> (bits - 1) else delta
            zigzag = 2 * signed if signed >= 0 else -2 * signed - 1
            for b in range(word):
                planes[b].append(zigzag >> (8 * b) & 255)
    changed = sum(a != b for a, b in zip(old, new, strict=True))
    return positions, [bytes(p) for p in planes], changed
