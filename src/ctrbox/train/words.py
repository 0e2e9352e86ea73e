"""Numbers as a person reads them: in a report, in a line of a terminal."""

from __future__ import annotations


def fixed(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def sized(count: float) -> str:
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} bytes"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def spent(seconds: float) -> str:
    """A duration that may be very short."""
    return duration(seconds) if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
