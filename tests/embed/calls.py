"""Calls that are drawn and made to two tables in turn; what they give back has the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

KEYS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
FLOATS = st.floats(-3, 3, width=32) | st.sampled_from([0.0, -0.0, 1e-30, -1e-45, 3e38, -3e38, 1e19])
GRADIENTS = st.lists(FLOATS, min_size=1, max_size=40)
VERBS = ("prefetch", "pull", "look", "push", "pull and push", "scale")


def bits(array: np.ndarray) -> np.ndarray:
    """Floats as integers, every NaN the same: equal means the same bits."""
    return np.where(np.isnan(array), np.float32(np.nan), array).view(np.uint32)


def call_both(
    data: st.DataObject,
    table: Any,
    slow: Any,
    keys: np.ndarray,
    width: int,
    verbs: Sequence[str] = VERBS,
    gradients: st.SearchStrategy[list[float]] = GRADIENTS,
) -> None:
    """Make one call, for rows of ``width`` numbers, to a table and to the one that it is compared with."""
    verb = data.draw(st.sampled_from(verbs))
    if verb == "prefetch":
        table.prefetch(keys)
        slow.prefetch(keys)
    if verb in ("pull", "look", "pull and push"):
        create = verb != "look"
        np.testing.assert_array_equal(bits(table.pull(keys, create=create)), bits(slow.pull(keys, create=create)))
    if verb in ("push", "pull and push"):
        g = np.resize(np.array(data.draw(gradients), np.float32), (len(keys), width))
        table.push(keys, g)
        slow.push(keys, g)
    if verb == "scale":
        factor = data.draw(st.sampled_from([0.1, 0.5, 1.0, 2.0]))
        table.scale_lr(factor)
        slow.scale_lr(factor)
