"""Counts keys that have no row in a vector file, and raises an error when no key at all has one.

A field of whole numbers and a file that was written with text ids have no key in common, although the ids look the
same. All vectors are zero then, and training would run to its end without using the file. A Model Server therefore
refuses to train if none of the keys of its first ``BATCHES`` batches, or none of its first ``KEYS`` keys, was found.
Training warns if the share of keys without a row is above ``WARNED_SHARE``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrbox.embed.embedder import Keys
from ctrbox.embed.vectors.vector_file import Places, VectorFile
from ctrbox.errors import DataError

BATCHES = 20
KEYS = 100_000
WARNED_SHARE = 0.5  # of the keys asked for, above which a training says that they have no data
PLAIN = 1 << 40  # hashed keys use all 64 bits: a file whose keys all lie below this was written with plain numbers


def plain(data: VectorFile) -> bool:
    """Whether the keys of a file are small whole numbers, which no hash gives: two of them prove it to 1 in 10^13."""
    known = data.keys
    return len(known) > 1 and int(np.abs(known).max()) < PLAIN


class Misses:
    """Counts how many of the keys that a training run requests have no row. Key 0, the null slot, is not counted."""

    def __init__(self) -> None:
        self.reads = ""  # what is known of the fields that ask: how their keys are made, and of which type
        self.asked = self.lost = self.batches = 0
        self.example = 0  # a key without a row
        self.alone = True  # whether these are all keys that a training asks for, and not those of one rank

    @staticmethod
    def added_up(parts: Sequence[Sequence[int]]) -> Misses:
        """Return the sum of the counts of several ranks; each rank gives asked, lost, batches and an example."""
        found = Misses()
        for asked, lost, batches, example in parts:
            found.asked += asked
            found.lost += lost
            found.batches = max(found.batches, batches)
            found.example = found.example or example
        return found

    @property
    def share(self) -> float:
        """The share of the requested keys that have no row, 0 to 1. A key counts once per batch."""
        return self.lost / self.asked if self.asked else 0.0

    def add(self, keys: Keys, places: Places, data: VectorFile) -> None:
        """Count the distinct keys of one batch. Raise a `DataError` if no key of the first batches was found."""
        asked = keys != 0
        lost = np.flatnonzero(asked & (places < 0))
        self.asked += int(asked.sum())
        self.lost += len(lost)
        self.batches += bool(asked.any())
        if len(lost) and not self.example:
            self.example = int(keys[lost[0]])
        if self.alone and (self.batches >= BATCHES or self.asked >= KEYS):
            self.check(data)

    def check(self, data: VectorFile) -> None:
        """Raise a `DataError` if keys were requested and none of them was found."""
        if not self.asked or self.lost < self.asked:
            return
        known = data.keys
        examples = f"one of them is {self.example}"
        if len(known):
            examples += f", while a key of the file is {int(known[0])}"
        cause = (
            "The keys in the file are small plain numbers; they were not hashed"
            if plain(data)
            else "A key is the hash of a value together with its type and its key space, so the number 7 and the text '7' have "
            "different keys, and so does one value in two spaces"
        )
        raise DataError(
            f"none of the {self.asked:,} keys in the first {self.batches:,} batches has a row in {data.path}, which holds "
            f"{len(known):,} keys; {examples}. {self.reads}{cause}. Write the file with the same key expression and id "
            "type as the plan, for example cb.tables.write_vectors(…, key=col('ad_id').cast('str').key(space='image')), or cast "
            "the plan's column to the type of the ids in the file"
        )
