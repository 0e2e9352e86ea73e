"""Counts the keys that requests ask for, by field, and those that the model has never learned.

A key that was never learned gets its initial row. If the ids of a field are written in another way than in training ('0017'
instead of '17'), the scores look right but do not use the field. For each request, two numbers per field are counted here, and
/metrics shows them. If none of the keys of a field was known in ``REQUESTS`` requests in a row, the log, readiness and the page
say so, until a known key comes.

A context that is in the cache is not looked up again, so its keys count once. Null values are not counted. A Deep FFM has no
keys: every key points to some weight of an array.
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
    """Counts of keys by field. Any number of threads may add."""

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
                counts = self.fields.setdefault(name, FieldKeys())  # another version may read other fields
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
        """Restart the count of requests in a row, for another version of the model."""
        with self._lock:
            for counts in self.fields.values():
                counts.all_unknown = 0
