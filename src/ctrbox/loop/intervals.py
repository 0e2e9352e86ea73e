"""Parses intervals, which are spans of time ("5m") or numbers of examples ("100000ex")."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ctrbox.arguments.numbers import is_number, shown_value
from ctrbox.errors import PlanError

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
EXAMPLES = re.compile(r"(\d[\d_,]*)\s*(?:ex|examples)")


def seconds(span: str | float, name: str = "a span of time", *, zero: bool = True) -> float:
    """Return the seconds of a span of time: 600.0 for "10m". A number is seconds. ``zero``: whether 0 is allowed."""
    if is_number(span):
        value = float(span)
    else:
        found = SPAN.fullmatch(span.strip().lower()) if isinstance(span, str) else None
        value = float(found[1]) * UNITS[found[2]] if found else math.nan
    if not 0 <= value < 1e9:
        raise PlanError(f"{name} must be a span such as 30s, 5m or 2h, got {shown_value(span)}")
    if not value and not zero:
        raise PlanError(f"{name} must be above 0, such as 30s, 5m or 2h, got {span!r}")
    return value


@dataclass(frozen=True)
class Cadence:
    """How often something happens: every ``seconds`` seconds, or every ``examples`` examples. The other number is 0."""

    seconds: float = 0.0
    examples: int = 0

    @staticmethod
    def of(given: str | float, name: str = "every") -> Cadence:
        found = EXAMPLES.fullmatch(given.strip().lower()) if isinstance(given, str) else None
        if not found:
            return Cadence(seconds(given, name, zero=False))
        examples = int(found[1].replace(",", "").replace("_", ""))
        if not examples:
            raise PlanError(f"{name} must be at least one example, got {given!r}")
        return Cadence(examples=examples)

    def left(self, learned: int) -> int | None:
        """Return the number of examples until it is due again; None if it depends on time."""
        return self.examples - learned % self.examples if self.examples else None

    def due(self, learned: int, before: int, since_s: float) -> bool:
        """Return whether it is due. The last time was ``since_s`` seconds ago, after ``before`` examples."""
        return learned // self.examples > before // self.examples if self.examples else since_s >= self.seconds
