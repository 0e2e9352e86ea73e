"""Records where the user wrote an expression (file and line), for errors that are found later."""

from __future__ import annotations

import sys

Where = tuple[str, int]


def written_at() -> Where | None:
    """Return file and line of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ctrbox":
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)
