"""Counts the keys that requests ask for, by field, and those that the model has never learned.

A key that was never learned gets its initial row, so a field whose ids are written in another way than they were trained with
('0017' instead of '17') gives scores that look fine and use nothing of the field. Each request adds two numbers per field here;
/metrics has them. Once none of the keys of a field was known in ``REQUESTS`` requests in a row, the log says so, and readiness
and the page do until a known key comes.

A context that is taken from the cache is not looked up again, and so its keys are counted once. Null values are not counted. A
Deep FFM knows no keys: its weights are an array that every key points into.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from ctrbox.embed.keys_looked_up import Asked

REQUESTS = 100  # in a row, of which no key of a field was known, until the log says so
log = logging.getLogger("ctrbox.serve")


@dataclass
class FieldKeys:
    known: int = 0
    unknown: int = 0
    all_unknown: int = 0  # requests in a row of which no key was known


class KnownKeys:
    """Counts by field. Any number of threads."""

    def __init__(self, fields: Iterable[str] = ()) -> None:
        self.fields = {name: FieldKeys() for name in fields}
        self._lock = threading.Lock()

    def add(self, asked: Iterable[Asked]) -> None:
        """Count the keys of one request."""
        told = []
        with self._lock:
            for name, keys, unknown in asked:
                if not keys:
                    continue
                counts = self.fields[name]
                counts.known += keys - unknown
                counts.unknown += unknown
                counts.all_unknown = counts.all_unknown + 1 if unknown == keys else 0
                if counts.all_unknown == REQUESTS:
                    told.append(name)
        for name in told:
            log.warning(
                "none of the keys of field %r in the last %d requests was learned by the model, so their scores do not depend "
                "on it; compare the ids in the requests, and in the joined views, with those of the training log: type, "
                "leading zeros, upper and lower case",
                name,
                REQUESTS,
            )

    def never_found(self) -> list[str]:
        """Return the fields of which no key was known in the last ``REQUESTS`` requests or more."""
        with self._lock:
            return [name for name, counts in self.fields.items() if counts.all_unknown >= REQUESTS]

    def counted(self) -> dict[str, dict[str, int]]:
        with self._lock:
            return {name: {"known": c.known, "unknown": c.unknown} for name, c in self.fields.items()}

    def restart(self) -> None:
        """Begin the count of requests in a row anew, for another version of the model."""
        with self._lock:
            for counts in self.fields.values():
                counts.all_unknown = 0
