"""Counts the keys of each field that were looked up, and those that the model has never learned.

Key 0, the null slot, is not counted. ``lost`` are always the places of keys that were never learned.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ctrbox.embed.embedder import Keys
from ctrbox.embed.unique_keys import Lookup

Asked = tuple[str, int, int]  # of one batch: field, keys that were looked up, those among them that are unknown


def asked_of_rows(fields: tuple[str, ...], keys: Keys, lost: Keys) -> list[Asked]:
    """Count keys that are stored field after field, the same number for each field."""
    each = len(keys) // len(fields)
    if len(fields) == 1:
        return [(fields[0], int(np.count_nonzero(keys)), int(np.count_nonzero(keys[lost])) if len(lost) else 0)]
    asked = np.count_nonzero(keys.reshape(len(fields), each), axis=1).tolist()
    unknown: list[int] = [0] * len(fields)
    if len(lost):
        unknown = np.bincount(lost[keys[lost] != 0] // each, minlength=len(fields)).tolist()
    return list(zip(fields, asked, unknown, strict=True))


def asked_of_lookup(lookup: Lookup, lost: Keys) -> list[Asked]:
    """Count the references of each field to distinct keys."""
    starts, keys = lookup.starts, lookup.keys
    sizes = [end - begin for begin, end in pairwise(starts)]
    states = np.zeros(len(keys), np.int8)
    states[lost] = 1
    states[keys == 0] = 2
    if not states.any():
        return [(name, size, 0) for name, size in zip(lookup.fields, sizes, strict=True)]
    met = states[lookup.inverse]
    found = []
    for name, begin, size in zip(lookup.fields, starts, sizes, strict=False):
        _, unknown, null = np.bincount(met[begin : begin + size], minlength=3).tolist()
        found.append((name, size - null, unknown))
    return found
