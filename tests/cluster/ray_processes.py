"""Ray's processes by their names, for those who kill them."""

from __future__ import annotations

import os
from pathlib import Path


def processes(title: str) -> list[int]:
    """Ray's processes of that name that this one's Ray started, the newest last. A child's number may be the smaller one."""
    children: dict[int, list[int]] = {}
    began: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(place.name))
        began[int(place.name)] = int(fields[19])
    found, below = [], [os.getpid()]
    while below:
        process = below.pop()
        below += children.get(process, [])
        try:
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(title.encode()):
                found.append(process)
        except OSError:
            continue
    return sorted(found, key=lambda process: (began[process], process))
