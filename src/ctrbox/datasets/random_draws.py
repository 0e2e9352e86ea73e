"""Draws random events of a given probability."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def chance(rng: np.random.Generator, share: float | npt.NDArray[np.floating[Any]], count: int) -> npt.NDArray[np.bool_]:
    """Return ``count`` truth values, each true with the probability ``share``, 0 to 1."""
    return np.asarray(rng.random(count) < share)
