"""A plain twin of native/core/system/checked_file.h: blocks of bytes, and behind each its checksum, seeded by the one before."""

from __future__ import annotations

import struct

WORD = (1 << 64) - 1


def finish(x: int) -> int:
    for shift in (32, 32):
        x ^= x >> shift
        x = x * 0xE9846AF9B1A615D & WORD
    return x ^ x >> 28


def checksum(data: bytes, seed: int = 0) -> int:
    lanes = [finish((seed + k + 1) & WORD) for k in range(4)]
    padded = data + bytes(32 - len(data) % 32)  # a block that fills its stripes has one more of zeros
    for at in range(0, len(padded), 32):
        for k, word in enumerate(struct.unpack_from("<4Q", padded, at)):
            mixed = lanes[k] ^ word * 0x9E3779B97F4A7C15 & WORD
            lanes[k] = (mixed << 29 | mixed >> 35) * 0xBF58476D1CE4E5B9 & WORD
    out = finish(len(data) + 1)
    for lane in lanes:
        out = finish(out ^ lane)
    return out


def sealed(blocks: list[bytes]) -> bytes:
    """Return the file that has these blocks, each with its true checksum."""
    out, seal = b"", 0
    for block in blocks:
        seal = checksum(block, seal)
        out += block + struct.pack("<Q", seal)
    return out


def unsealed(file: bytes, sizes: list[int]) -> list[bytes]:
    """Return the blocks of these sizes; the rest of the file is the block behind them."""
    blocks, at = [], 0
    for size in sizes:
        blocks.append(file[at : at + size])
        at += size + 8
    blocks.append(file[at:-8])
    assert sealed(blocks) == file
    return blocks
