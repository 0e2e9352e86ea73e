"""Defines ``OnlineModel``, the interface between the online loop and a model, and ``OnlineFfm``, a Deep FFM in the loop.

    join ──► plan ──► batch ──► examples(batch) ──► learn(examples)       predicts every example before it learns from it
                                     │
                                     └─ DataError for a row that the model cannot take; the loop leaves this row out

A checkpoint of the loop contains the position in the stream, the files that ``save`` writes, and what ``tables`` returns at the
same moment. ``restored`` returns the model of a checkpoint, and ``published`` (of `Predictor`) returns the contents of the next
version. online_click_model.py defines the click models of torch for the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ctrbox import _native
from ctrbox.columns.batch import Batch, Schema
from ctrbox.errors import DataError, PlanError
from ctrbox.ffm.engine import DeepFFM
from ctrbox.ffm.progressive_validation import Progress
from ctrbox.predict.predictor import Predictor
from ctrbox.publish.weight_file import Weights
from ctrbox.publish.weights_of_models import DEEP_FFM, RATES, SETTINGS

ENGINE = "engine.ffm"  # the file of a Deep FFM in a checkpoint; it checks itself
MODEL = "model"  # the folder of a click model of torch in a checkpoint; its own state.json checks it


@runtime_checkable
class OnlineModel(Predictor, Protocol):
    """A model that learns in the loop. One thread uses it."""

    @property
    def progress(self) -> Progress:
        """The metrics of the predictions that were made before learning (progressive validation)."""

    @property
    def learned(self) -> int:
        """Number of examples that the weights have learned from."""

    @property
    def waiting(self) -> int:
        """Number of examples that were given to ``learn`` and wait until their batch is full."""

    @property
    def fresh(self) -> bool:
        """Whether the weights are new: they have learned from no example, neither in this loop nor before it."""

    def begin(self) -> None:
        """Take the weights that a new model folder starts with. The loop calls it before it writes anything."""

    def examples(self, batch: Batch) -> Any:
        """Convert a batch with labels to what ``learn`` takes. Raise a DataError if the model cannot take one of its rows."""

    def learn(self, examples: Any) -> None:
        """Predict the examples, then learn from them. ``progress`` contains the metrics of the predictions."""

    def room(self, examples: int) -> int:
        """Return how many examples ``learn`` may get so that it learns from at least ``examples`` more, and then stops."""

    def save(self, folder: Path) -> None:
        """Write the weights and the state of the optimizer into the folder of a checkpoint."""

    def restored(self, folder: Path, learned: Any) -> OnlineModel:
        """Return the model of a checkpoint, which learned from this number of examples.

        Raise a PlanError if the checkpoint has other settings than this model, and a DataError or SourceError if it is damaged.
        """

    def tables(self) -> dict[str, pa.Table]:
        """Return the examples that wait for a full batch, for a checkpoint."""

    def take_tables(self, tables: Mapping[str, pa.Table]) -> None:
        """Continue with the examples that ``tables`` returned."""


class OnlineFfm:
    """A `cb.DeepFFM` in the loop. It learns one example after the other, so no example waits for a batch."""

    kind = DEEP_FFM

    def __init__(self, engine: DeepFFM, threads: int = 1) -> None:
        self.engine, self.threads = engine, threads

    @staticmethod
    def read(folder: Path, learned: Any) -> OnlineFfm:
        """Return the model of a checkpoint, whatever its settings are."""
        engine = DeepFFM.load(folder / ENGINE)
        if engine.learned != learned:
            raise DataError(
                f"{folder / ENGINE} has learned from {engine.learned:,} examples, but its checkpoint says {learned}"
            )
        return OnlineFfm(engine)

    def restored(self, folder: Path, learned: Any) -> Self:
        found = self.read(folder, learned).engine
        mine, theirs = self.published().about, found.published().about
        other = [name for name in ("names", *SETTINGS, *RATES) if mine[name] != theirs[name]]
        if other:
            raise PlanError(
                f"the engine in {folder.parent.parent} has {', '.join(_argument(n, theirs[n]) for n in other)}, but the engine "
                f"of this job has {', '.join(_argument(n, mine[n]) for n in other)}; to continue, give the engine of this job "
                "the settings of the folder, or choose another folder"
            )
        found.progress.show = self.progress.show
        return type(self)(found, self.threads)

    @property
    def progress(self) -> Progress:
        return self.engine.progress

    @property
    def learned(self) -> int:
        return self.engine.learned

    @property
    def waiting(self) -> int:
        return 0

    @property
    def fresh(self) -> bool:
        return not self.engine.learned

    def begin(self) -> None:
        """Do nothing, because the job has loaded the weights already."""

    def examples(self, batch: Batch) -> _native.Examples:
        return self.engine.examples(batch)

    def learn(self, examples: _native.Examples) -> None:
        self.engine.learn(examples, threads=self.threads)

    def room(self, examples: int) -> int:
        return examples

    def save(self, folder: Path) -> None:
        self.engine.save(folder / ENGINE)

    def tables(self) -> dict[str, pa.Table]:
        return {}

    def take_tables(self, tables: Mapping[str, pa.Table]) -> None:
        """Do nothing: no example waits."""

    # ---- the engine as a predictor

    @property
    def fields(self) -> Sequence[str]:
        return self.engine.fields

    def check_schema(self, schema: Schema) -> None:
        self.engine.check_schema(schema)

    def predict_batch(self, batch: Batch) -> npt.NDArray[np.float32]:
        return self.engine.predict_batch(batch)

    def published(self) -> Weights:
        return self.engine.published()


def online_model(given: Any, threads: int | None) -> OnlineModel:
    """Return the model of a loop that was given a Deep FFM or a model for the loop.

    ``threads`` is the number of threads of a Deep FFM; default: 1.
    """
    if isinstance(given, DeepFFM):
        return OnlineFfm(given, 1 if threads is None else threads)
    if isinstance(given, OnlineModel):
        if threads is not None:
            raise PlanError(
                "threads= of the loop can be used only with a Deep FFM; pass it to the model instead: "
                f"{type(given).__name__}(…, threads={threads})"
            )
        return given
    raise PlanError(
        f"the online loop trains a cb.DeepFFM or a cb.loop.OnlineClickModel, got {type(given).__name__}; wrap a torch model: "
        "cb.loop.OnlineClickModel(plan, model, table)"
    )


def _argument(name: str, value: Any) -> str:
    """Return a setting of an engine as an argument of ``cb.DeepFFM``."""
    if name in RATES:
        return f"{name.removesuffix('_rates')}=cb.ffm.Rate({', '.join(f'{number:g}' for number in value)})"
    return f"{name}={tuple(value) if name == 'hidden' else value!r}"
