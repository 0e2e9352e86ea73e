"""The slow twin of `ctrbox.loop.join`: lists, looked through from front to back at every event."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple


class Event(NamedTuple):
    click: bool
    time: int
    id: int
    mark: int = 0  # which impression it is


class Waiting(NamedTuple):
    time: int
    id: int
    mark: int


def joined(events: list[Event], window: int, lateness: int) -> tuple[list[tuple[int, bool]], Counter[str], list[int]]:
    """(mark, clicked) of the examples in order; counts; marks of the impressions that wait, by time and arrival."""
    held: list[Waiting] = []
    clicked: set[int] = set()  # marks
    clicks: list[tuple[int, int, bool]] = []  # time, id, late
    newest = -math.inf
    found: list[tuple[int, bool]] = []
    counts: Counter[str] = Counter()

    def match(shown: Waiting, time: int) -> None:
        if not shown.time <= time <= shown.time + window:
            counts["outside_clicks"] += 1
        elif shown.mark in clicked:
            counts["repeated_clicks"] += 1
        else:
            clicked.add(shown.mark)

    for click, time, id, mark in events:
        watermark = newest - lateness
        same = [h for h in held if h.id == id]
        if click:
            counts["clicks"] += 1
            if same:
                match(same[0], time)
            elif time + window < watermark:
                counts["late_clicks"] += 1
            else:
                clicks.append((time, id, time < watermark))
        else:
            counts["impressions"] += 1
            if time + window < watermark:
                counts["late_impressions"] += 1
            elif same:
                counts["duplicates"] += 1
            else:
                shown = Waiting(time, id, mark)
                held.append(shown)
                for when, of, _ in clicks:
                    if of == id:
                        match(shown, when)
                clicks = [c for c in clicks if c[1] != id]
        newest = max(newest, time)
        watermark = newest - lateness
        passed = [h for h in held if h.time + window < watermark]
        for h in sorted(passed, key=lambda h: h.time):
            found.append((h.mark, h.mark in clicked))
            held.remove(h)
        for gone in [c for c in clicks if c[0] + window < watermark]:
            clicks.remove(gone)
            counts["late_clicks" if gone[2] else "lone_clicks"] += 1
    counts["examples"] = len(found)
    counts["clicked"] = sum(c for _, c in found)
    return found, counts, [h.mark for h in sorted(held, key=lambda h: h.time)]
