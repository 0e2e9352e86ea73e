"""Defines the calibration of a model of several labels: one calibration (`calibration_maps`) for each binary label.

The map of a label is fitted to the calibration rows in which that label was observed. Predictions of numbers and counts are not
changed. In a run folder and in published weights, a calibration of several labels has its own format number, so that an
older version of CTRBox refuses the model instead of predicting without its calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox.columns.batch import Schema
from ctrbox.columns.label_task import Task
from ctrbox.errors import DataError
from ctrbox.evaluate.calibration_maps import KINDS, Calibration

FORMAT = 2  # 1 is a calibration of one label


@dataclass(frozen=True)
class TaskCalibration:
    """The calibrations of several labels. ``parts``: one for each task, in the order of the tasks; None: not calibrated."""

    kind: str
    tasks: tuple[Task, ...]
    parts: tuple[Calibration | None, ...]
    by: str | None = None

    def apply(self, outputs: npt.NDArray[np.float32], keys: npt.NDArray[np.int64] | None) -> npt.NDArray[np.float32]:
        """Return the outputs (rows, tasks) with calibrated logits. ``keys``: see `Calibration.apply`."""
        found = np.array(outputs, np.float32)
        for k, part in enumerate(self.parts):
            if part is not None:
                found[:, k] = part.apply(np.ascontiguousarray(outputs[:, k]), keys)
        return found

    def check_field(self, schema: Schema) -> None:
        """Raise a DataError unless the field ``by`` has exactly one key per row of this schema."""
        for part in self.parts:
            if part is not None:
                part.check_field(schema)

    def plain(self) -> dict[str, Any]:
        """Return the calibration as plain JSON."""
        labels = {
            task.name: part.plain() for task, part in zip(self.tasks, self.parts, strict=True) if part is not None
        }
        return {"format": FORMAT, "kind": self.kind, "by": self.by, "labels": labels}

    @staticmethod
    def of(plain: Any, tasks: Sequence[Task], where: str) -> TaskCalibration:
        """Read what ``plain`` returned; ``where`` names its file. Raises a DataError for anything else."""
        met = plain.get("format") if isinstance(plain, Mapping) else None
        if met != FORMAT or isinstance(met, bool):
            raise DataError(
                f"{where} has a calibration of format {str(met)[:100]}, but its plan has several labels; this version "
                f"of CTRBox reads {FORMAT} for them"
            )
        kind, by, labels = plain.get("kind"), plain.get("by"), plain.get("labels")
        binary = [task.name for task in tasks if task.kind == "binary"]
        if not isinstance(kind, str) or kind not in KINDS or not isinstance(labels, Mapping) or not labels:
            raise DataError(f"{where} is damaged: its calibration cannot be read; restore it from a copy")
        for name, part in labels.items():
            if name not in binary:
                raise DataError(
                    f"{where} is damaged: it has a calibration of {str(name)[:100]!r}, which is not a binary label of its plan"
                )
            if not isinstance(part, Mapping) or part.get("kind") != kind or part.get("by") != by:
                raise DataError(
                    f"{where} is damaged: the calibrations of its labels contradict each other; restore it from a copy"
                )
        missing = [name for name in binary if name not in labels]
        if missing:
            raise DataError(
                f"{where} is damaged: it has a calibration without the label {missing[0]!r}; expected one of each binary label "
                f"of its plan: {', '.join(map(repr, binary))}"
            )
        parts = {name: Calibration.of(part, where) for name, part in labels.items()}
        return TaskCalibration(kind, tuple(tasks), tuple(parts.get(task.name) for task in tasks), by)
