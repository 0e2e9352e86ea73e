"""History columns in plain Python: every row looks at every row before it."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def seen(
    rows: list[Row], at: int, *, by: str, gap: int = 0, within: int = 0, where: str | None = None, last: int = 0
) -> list[Row]:
    """Return the earlier rows that row ``at`` may see, oldest first. Times and spans are microseconds."""
    mine = rows[at]
    if mine[by] is None or mine["ts"] is None:
        return []
    found = [
        row
        for row in rows[:at]
        if row[by] == mine[by]
        and row["ts"] is not None
        and row["ts"] < mine["ts"] - gap
        and (not within or row["ts"] >= mine["ts"] - within)
        and (where is None or row[where])
    ]
    found.sort(key=lambda row: row["ts"])  # stable: events of equal time in the order of the log
    return found[-last:] if last else found
