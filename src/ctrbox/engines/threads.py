"""Checks ``threads=`` for all functions that take it, and warns if more threads cannot help."""

from __future__ import annotations

import warnings
from typing import Any

from ctrbox import _native
from ctrbox.arguments.numbers import counted, whole

MOST_EXTRACTING, MOST_LEARNING = 1024, 256  # threads


def checked_threads(threads: Any, most: int, *, rows: int | None = None, stacklevel: int = 3) -> int:
    """Return the number of threads if it is from 1 to ``most``; warn if it is above the number of usable cores or ``rows``.

    ``rows``: the number of rows that are worked on at once.
    """
    whole("threads", threads, 1, most)
    cores = _native.usable_cores()
    if threads > cores:
        reason = f"this process may use {counted(cores, 'core')}"
    elif rows is not None and threads > max(rows, 1):
        reason = f"only {counted(rows, 'row')} can be processed at once"
    else:
        return int(threads)
    warnings.warn(
        f"threads={threads}, but {reason}: more threads would not be faster; the result is the same",
        stacklevel=stacklevel,
    )
    return int(threads)
