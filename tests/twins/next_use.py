"""When a key comes again, by a dictionary."""

from __future__ import annotations

from collections.abc import Sequence


def next_uses(batches: Sequence[Sequence[int]]) -> list[list[int]]:
    """Of every key of every batch: how many batches later it comes again; 0 where it never does, or beyond 127."""
    found: list[list[int]] = []
    soonest: dict[int, int] = {}
    for number in reversed(range(len(batches))):
        in_how_many = [soonest.get(key, number) - number if key else 0 for key in batches[number]]
        found.append([n if n <= 127 else 0 for n in in_how_many])
        soonest |= dict.fromkeys(batches[number], number)
    return found[::-1]
