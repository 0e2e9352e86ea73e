"""Computes how many connections the server can open within the open-file limit of the process."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from ctrbox.errors import PlanError

RESERVE = 64  # open files kept for the model, its views, a reload, the log and gRPC's own
FEWEST = 16  # connections; a server with fewer is of no use


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit, if this is allowed, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """Count the files that this process has open now."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return sum(1 for _ in Path(folder).iterdir())
    return 64


def connections_allowed(wanted: int) -> int:
    """Return how many connections may be open at a time: ``wanted``, or fewer if the limit of open files is low."""
    limit = raise_limit()
    left = limit - open_files() - RESERVE
    if left < FEWEST:
        raise PlanError(
            f"the open-file limit of {limit} leaves room for only {max(left, 0)} connections besides the open files and the "
            f"{RESERVE} files reserved for the model; at least {FEWEST} are needed. Raise the limit: ulimit -n 4096"
        )
    return min(wanted, left)
