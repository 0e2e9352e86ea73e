"""Defines the life of table rows: decaying counters of shows and clicks, admission of new keys, and expiry.

table = cb.MemoryTable(16, counters=cb.tables.Counters(decay=0.98), admission=cb.tables.Admission(count=3))
table.push(keys, gradients, shows=shows, clicks=clicks)   # a trainer gives them by itself
table.advance()                                           # a period has passed: a day, say
table.expire(unseen=30, score=0.5)                        # rows not pushed for 30 periods, or of too low a score

The same calls give the same rows in a `MemoryTable` and a `SparseTable`, whatever fits into memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ctrbox.arguments.numbers import is_number
from ctrbox.arguments.sizes import parse_bytes
from ctrbox.errors import PlanError

Life = tuple[float, int, float, int]  # decay or 0, count, probability, bytes of the sketch
NO_LIFE: Life = (0.0, 0, 1.0, 0)
MOST_COUNT = 255
MOST_SKETCH = 1 << 34


@dataclass(frozen=True)
class Counters:
    """Counters of the shows and clicks of every key, and of the period of its last push.

    ``table.advance()`` begins a new period and multiplies the counts by ``decay``.
    """

    decay: float = 1.0

    def __post_init__(self) -> None:
        if not is_number(self.decay) or not 0 < self.decay <= 1:
            raise PlanError(f"decay= must be a number above 0 and at most 1, got {self.decay!r}")
        object.__setattr__(self, "decay", float(self.decay))


@dataclass(frozen=True)
class Admission:
    """The rule that decides when a key gets a row. Before that, the key has its initial value, and its gradients are dropped.

    ``count``        number of occurrences after which a key gets a row. If shows are pushed, as trainers do, they are the
                     occurrences; otherwise, each push is one
    ``probability``  probability with which a push of a key gives it a row. The seed, the key and the number of the push
                     decide
    ``sketch``       memory for the counts of keys without a row, with two bytes per count; if it is too small, keys get rows
                     too early, but never too late
    """

    count: int = 1
    probability: float = 1.0
    sketch: int | str = "16MB"

    def __post_init__(self) -> None:
        if not is_number(self.count) or not 1 <= self.count <= MOST_COUNT or self.count != int(self.count):
            raise PlanError(f"count= must be a whole number from 1 to {MOST_COUNT}, got {self.count!r}")
        if not is_number(self.probability) or not 0 < self.probability <= 1:
            raise PlanError(f"probability= must be a number above 0 and at most 1, got {self.probability!r}")
        try:
            size = parse_bytes(self.sketch)
        except OverflowError:
            size = 0
        if not 64 <= size <= MOST_SKETCH:
            raise PlanError(f"sketch= must be from 64 bytes to {MOST_SKETCH:,}, got {self.sketch!r}")
        for name, value in (("count", int(self.count)), ("probability", float(self.probability)), ("sketch", size)):
            object.__setattr__(self, name, value)


def life_of(counters: Counters | None, admission: Admission | None) -> Life:
    for name, given, kind in (("counters", counters, Counters), ("admission", admission, Admission)):
        if given is not None and not isinstance(given, kind):
            raise PlanError(f"{name}= must be cb.tables.{kind.__name__}(…) or None, got {given!r}")
    decay = 0.0 if counters is None else float(counters.decay)
    if admission is None or (admission.count == 1 and admission.probability == 1):
        return (decay, *NO_LIFE[1:])
    counted = admission.count > 1
    return (
        decay,
        admission.count if counted else 0,
        float(admission.probability),
        int(admission.sketch) if counted else 0,
    )


def counters_of(life: Life) -> Counters | None:
    return Counters(life[0]) if life[0] else None


def admission_of(life: Life) -> Admission | None:
    _, count, probability, sketch = life
    if (count, probability) == NO_LIFE[1:3]:
        return None
    return Admission(max(1, count), probability, sketch or "16MB")


def shown(life: Life) -> str:
    return f"{counters_of(life)} and {admission_of(life)}"
