"""Stores the correction of a model's logits in a run folder and in published weights, and restores it.

    shift          for a model without a calibration map: a number that is added to every logit
    calibration    for a model with a calibration map: the map, which contains the shift
                   (`evaluate.calibration_maps`; for several labels, `evaluate.calibration_of_several_labels`)

A model with a map has no ``shift`` of its own. A version of CTRBox that does not know maps therefore refuses the model instead of
predicting without its calibration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctrbox.errors import DataError
from ctrbox.evaluate.calibration import MOST_SHIFT
from ctrbox.evaluate.calibration_maps import Calibration
from ctrbox.evaluate.calibration_of_several_labels import TaskCalibration
from ctrbox.predict.model_with_tables import ClickModel


def described_calibration(model: ClickModel) -> dict[str, Any]:
    """Return the shift and the calibration of a model as plain JSON."""
    if model.calibration is None:
        return {"shift": model.shift}
    return {"calibration": {**model.calibration.plain(), "shift": model.shift}}


def restore_calibration(model: ClickModel, described: Mapping[str, Any], where: str) -> None:
    """Give a model the shift and the calibration that `described_calibration` returned; ``where`` names their place."""
    stored = described.get("calibration")
    if stored is not None:
        made = TaskCalibration.of(stored, model.tasks, where) if model.tasks else Calibration.of(stored, where)
        made.check_field(model.schema)
        model.calibration = made
        described = stored
    shift = described.get("shift")
    if isinstance(shift, bool) or not isinstance(shift, int | float) or not abs(shift) < MOST_SHIFT:
        raise DataError(
            f"{where} is damaged: its shift, the number that is added to every logit, is {shift!r}; expected a number between "
            f"-{MOST_SHIFT:g} and {MOST_SHIFT:g}; restore it from a copy"
        )
    model.shift = float(shift)
