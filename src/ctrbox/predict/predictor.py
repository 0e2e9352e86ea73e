"""Defines ``Predictor``, the interface of trained models for serving and publishing. A Deep FFM and a run implement it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ctrbox.columns.batch import Batch, Schema
from ctrbox.publish.weight_file import Weights


@runtime_checkable
class Predictor(Protocol):
    """A trained model: `cb.DeepFFM` and `cb.Run`."""

    @property
    def kind(self) -> str:
        """The kind of its published weights: "deep_ffm" or "click_model"."""

    @property
    def fields(self) -> Sequence[str]:
        """Names of the features that the model reads."""

    def check_schema(self, schema: Schema) -> None:
        """Raise a `PlanError` unless batches of this schema have the features that the model was trained with."""

    def predict_batch(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the click probability of each row of a batch."""

    def published(self) -> Weights:
        """Return everything that decides the predictions, for `cb.publish`."""
