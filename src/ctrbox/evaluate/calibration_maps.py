"""Defines calibration maps, which turn the logit of a model into the logit of a calibrated probability.
`calibration_fit` fits them.

    PlattMap      slope · logit + intercept
    IsotonicMap   a rising step function from logits to click rates, with straight lines between its steps
    Calibration   one map for all rows, and where it is fitted by slice one map for each frequent key of a sparse field

Every map is monotone: of two logits, the larger one never gets the smaller result. All arithmetic is in float64, element by
element, so that the result for a row depends neither on the other rows nor on the batch size.

A calibration is stored as plain JSON, in the state of a run folder and in the description of published weights. JSON keeps every
bit of a float64. Reading it back checks every number and every size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrbox.columns.batch import Schema
from ctrbox.errors import DataError

Floats: TypeAlias = npt.NDArray[np.float64]

FORMAT = 1
KINDS = ("platt", "isotonic")
MOST_KNOTS = 200  # of one isotonic map: two for each step
MOST_SLICES = 1000
MOST_LOGIT = 100.0  # of a result, in both directions: a float32 probability is 0 or 1 long before


@dataclass(frozen=True)
class PlattMap:
    """A straight line from logit to logit. A slope of 0 gives all rows the same probability."""

    slope: float
    intercept: float

    def apply(self, logit: Floats) -> Floats:
        """Return the calibrated logits."""
        return np.clip(self.slope * logit + self.intercept, -MOST_LOGIT, MOST_LOGIT)

    def plain(self) -> dict[str, Any]:
        return {"slope": self.slope, "intercept": self.intercept}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> PlattMap:
        """Read what ``plain`` returned. Raises ValueError, KeyError or TypeError for anything else."""
        found = PlattMap(_number(plain["slope"]), _number(plain["intercept"]))
        if found.slope < 0:
            raise ValueError(f"its slope is {found.slope}; expected 0 or more")
        return found


@dataclass(frozen=True)
class IsotonicMap:
    """Knots (logit, click rate), both rising. Between two knots the rate is interpolated; outside it is that of the end."""

    logits: Floats  # strictly rising
    rates: Floats  # rising, above 0 and below 1

    def apply(self, logit: Floats) -> Floats:
        """Return the calibrated logits."""
        last = len(self.logits) - 1
        right = np.searchsorted(self.logits, logit, side="right")  # the first knot above the logit
        left, right = np.clip(right - 1, 0, last), np.minimum(right, last)
        width = self.logits[right] - self.logits[left]
        between = (logit > self.logits[0]) & (width > 0)
        part = np.where(between, (logit - self.logits[left]) / np.where(width > 0, width, 1.0), 0.0)
        low, high = self.rates[left], self.rates[right]
        # Rounding may carry a point just left of a knot above that knot's rate, which would not be monotone.
        rate = np.minimum(low + part * (high - low), high)
        return np.log(rate) - np.log1p(-rate)

    def plain(self) -> dict[str, Any]:
        return {"logits": self.logits.tolist(), "rates": self.rates.tolist()}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> IsotonicMap:
        """Read what ``plain`` returned. Raises ValueError, KeyError or TypeError for anything else."""
        logits, rates = _numbers(plain["logits"]), _numbers(plain["rates"])
        if len(logits) != len(rates):
            raise ValueError(f"its knots have {len(logits):,} logits and {len(rates):,} rates")
        if (np.diff(logits) <= 0).any() or (np.diff(rates) < 0).any():
            raise ValueError("its knots are not in ascending order")
        if rates[0] <= 0 or rates[-1] >= 1:
            raise ValueError(f"its rates range from {rates[0]} to {rates[-1]}; expected rates above 0 and below 1")
        return IsotonicMap(logits, rates)


CalibrationMap: TypeAlias = PlattMap | IsotonicMap
READ: dict[str, Callable[[Mapping[str, Any]], CalibrationMap]] = {"platt": PlattMap.of, "isotonic": IsotonicMap.of}


@dataclass(frozen=True)
class Calibration:
    """The calibration of a model: ``shared`` is the map for all rows, except those whose key of field ``by`` is among
    ``keys``.
    """

    kind: str
    shared: CalibrationMap
    by: str | None = None
    keys: tuple[int, ...] = ()  # rising
    slices: tuple[CalibrationMap, ...] = ()  # one for each key

    def apply(self, logit: npt.NDArray[np.float32], keys: npt.NDArray[np.int64] | None) -> npt.NDArray[np.float32]:
        """Return the calibrated logits. ``keys``: the key of each row in the field ``by``; None without ``by``."""
        z = logit.astype(np.float64)
        if self.by is None or not self.keys:
            return self.shared.apply(z).astype(np.float32)
        assert keys is not None
        known = np.array(self.keys, np.int64)
        place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        place = np.where(known[place] == keys, place, -1)
        result = np.empty(len(z), np.float32)
        for k in np.unique(place).tolist():
            mine = place == k
            result[mine] = (self.shared if k < 0 else self.slices[k]).apply(z[mine]).astype(np.float32)
        return result

    def check_field(self, schema: Schema) -> None:
        """Raise a DataError unless the field ``by`` has exactly one key per row of this schema."""
        if self.by is not None and not any(f.name == self.by and not f.ragged for f in schema.sparse):
            raise DataError(
                f"the calibration of the model is fitted by field {self.by!r}, but rows of its plan may have no key or "
                "several keys in this field; calibrate by a field with exactly one key per row"
            )

    def plain(self) -> dict[str, Any]:
        """Return the calibration as plain JSON. Keys are text, because a reader of JSON may round large integers."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "shared": self.shared.plain(),
            "by": self.by,
            "slices": [{"key": str(key), **one.plain()} for key, one in zip(self.keys, self.slices, strict=True)],
        }

    @staticmethod
    def of(plain: Any, where: str) -> Calibration:
        """Read what ``plain`` returned; ``where`` names its file. Raises a DataError for anything else."""
        if isinstance(plain, Mapping) and plain.get("format") != FORMAT:
            raise DataError(
                f"{where} has a calibration of format {plain.get('format')!r}, but this version of CTRBox reads {FORMAT}; "
                "use the version that wrote it"
            )
        try:
            kind, by, slices = plain["kind"], plain["by"], plain["slices"]
            if kind not in KINDS:
                raise ValueError(f"its kind is {str(kind)[:100]!r}")
            if not (by is None or isinstance(by, str)) or not isinstance(slices, list) or len(slices) > MOST_SLICES:
                raise ValueError(f"its slices must be a list of at most {MOST_SLICES:,} maps, and their field a name")
            if slices and by is None:
                raise ValueError("it has slices, but no field")
            keys = tuple(int(one["key"]) for one in slices)
            if any(not -(2**63) <= key < 2**63 for key in keys) or list(keys) != sorted(set(keys)):
                raise ValueError("the keys of its slices are not in ascending order")
            read = READ[kind]
            return Calibration(kind, read(plain["shared"]), by, keys, tuple(map(read, slices)))
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{where} is damaged: its calibration cannot be read: {error}; restore it from a copy"
            ) from None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"one of its numbers is {str(value)[:100]!r}")
    return float(value)


def _numbers(values: Any) -> Floats:
    if not isinstance(values, Sequence) or isinstance(values, str) or not 1 <= len(values) <= MOST_KNOTS:
        raise ValueError(f"its knots must be a list of 1 to {MOST_KNOTS} numbers")
    return np.array([_number(value) for value in values], np.float64)
