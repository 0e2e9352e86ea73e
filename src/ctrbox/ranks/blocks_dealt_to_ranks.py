"""Deals the blocks of a log to ranks, so that each rank decodes about as many bytes as any other.

    log      │ block 0 │ block 1 │ …     consecutive rows; a block is one or several whole row groups, or a part of one
    round    │ blocks 0 … W-1 │          each of W ranks reads one of them; a last round may have fewer

A rank that reads a part of a row group decodes all of it. The order of the rows does not depend on who reads them, so neither
do the batches; every rank computes the same blocks and readers from the footers of the files.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BLOCK_ROWS = 65_536
MOST_ROWS = 4 * BLOCK_ROWS  # of a block; a row group of more rows is cut, and decoded by several ranks
MORE_ROUNDS = 3  # that are tried, if smaller blocks make the shares of the ranks more even
EVEN = 0.02  # a difference that is not worth further rounds, as a part of the log

Rows = tuple[int, int]  # the first one, and the one behind the last
Part = tuple[int, int, int]  # the wanted rows of a row group, and the bytes of the group


@dataclass(frozen=True)
class Block:
    """Rows ``begin`` to ``end`` of the log. ``size``: bytes of their row groups, which the rank ``reader`` decodes."""

    begin: int
    end: int
    size: int
    reader: int


def dealt(
    groups: Sequence[int],
    start: int,
    stop: int,
    ranks: int,
    sizes: Sequence[int] | None = None,
    so_far: Sequence[int] | None = None,
) -> list[Block]:
    """Cut rows ``start`` to ``stop`` of a log into blocks, and deal them to the ranks.

    ``groups``: rows of each row group; ``sizes``: their bytes, which default to their rows. ``so_far``: bytes that each rank was
    dealt before. Blocks have about 65,536 rows or, where that makes the shares of the ranks more even, fewer. The choice makes
    the largest share of the bytes plus the largest share of the rows as small as possible: a row is decoded, and then extracted.
    """
    sizes, so_far = groups if sizes is None else sizes, [0] * ranks if so_far is None else so_far
    parts: list[Part] = []
    for (a, b), size in zip(itertools.pairwise(itertools.accumulate(groups, initial=0)), sizes, strict=True):
        if max(start, a) < min(stop, b):
            parts.append((max(start, a), min(stop, b), size))
    rows, whole = sum(b - a for a, b, _ in parts), max(1, sum(size for *_, size in parts))

    def uneven(blocks: list[Block]) -> tuple[int, int]:
        read, extracted = list(so_far), [0] * ranks
        for block in blocks:
            read[block.reader] += block.size
            extracted[block.reader] += block.end - block.begin
        return math.ceil(((max(read) - min(so_far)) / whole + max(extracted) / rows) / EVEN), len(blocks)

    return (
        min((with_readers(cut, parts, ranks, so_far) for cut in ways(parts, rows, ranks)), key=uneven) if rows else []
    )


def ways(parts: Sequence[Part], rows: int, ranks: int) -> Iterator[list[Rows]]:
    """Yield several ways to cut the wanted rows into blocks."""
    rounds = max(1, -(-rows // (ranks * BLOCK_ROWS)))
    most = max(1, min(MOST_ROWS, -(-rows // ranks) if len(parts) < ranks else MOST_ROWS))
    pieces: list[tuple[int, int, float]] = []
    for begin, end, size in parts:
        cut = even(begin, end, -(-(end - begin) // most))
        pieces += [(a, b, size / len(cut)) for a, b in cut]
    for wanted in range(rounds, rounds + MORE_ROUNDS + 1):
        blocks = joined(pieces, wanted * ranks)
        yield blocks
        left = len(blocks) % ranks
        if left:  # the blocks of the last round are cut, so that more ranks have a share
            cuts = [even(a, b, min(ranks // left, b - a)) for a, b in blocks[-left:]]
            yield blocks[:-left] + list(itertools.chain.from_iterable(cuts))


def joined(pieces: Sequence[tuple[int, int, float]], number: int) -> list[Rows]:
    """Join pieces of the log to at most ``number`` blocks of about equal bytes, or to more where they would be too large."""
    whole, before = sum(size for *_, size in pieces) or 1, 0.0
    blocks: list[Rows] = []
    last = -1
    for begin, end, size in pieces:
        place = int((before + size / 2) / whole * number)
        if blocks and place == last and end - blocks[-1][0] <= MOST_ROWS:
            blocks[-1] = blocks[-1][0], end
        else:
            blocks.append((begin, end))
        before, last = before + size, place
    return blocks


def with_readers(cut: Sequence[Rows], parts: Sequence[Part], ranks: int, so_far: Sequence[int]) -> list[Block]:
    """Deal the blocks: in each round, the largest one goes to the rank that was dealt the fewest bytes so far."""
    read, first, sizes = list(so_far), 0, list[int]()
    for begin, end in cut:
        while parts[first][1] <= begin:
            first += 1
        behind = first
        while behind < len(parts) and parts[behind][0] < end:
            behind += 1
        sizes.append(sum(size for *_, size in parts[first:behind]))
    blocks: list[Block] = []
    for at in range(0, len(cut), ranks):
        some = range(at, min(at + ranks, len(cut)))
        free = sorted(range(ranks), key=lambda rank: read[rank])
        reader = dict(zip(sorted(some, key=lambda block: -sizes[block]), free, strict=False))
        for block in some:
            read[reader[block]] += sizes[block]
            blocks.append(Block(*cut[block], sizes[block], reader[block]))
    return blocks


def even(begin: int, end: int, pieces: int) -> list[Rows]:
    """Cut rows ``begin`` to ``end`` into pieces of as equal a size as whole rows allow."""
    cuts = [begin + (end - begin) * k // pieces for k in range(pieces + 1)]
    return list(itertools.pairwise(cuts))
