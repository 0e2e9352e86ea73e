"""Defines ``RunPredictor``, the part of a run that predicts: its plan, and its model with the tables."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import nn

from ctrbox.columns.batch import Batch, Schema
from ctrbox.columns.label_task import by_name
from ctrbox.columns.rows_as_dicts import is_dicts
from ctrbox.compiled_plan.plan import Plan
from ctrbox.errors import DataError, PlanError
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.predict.model_with_tables import ClickModel
from ctrbox.predict.published_run import weights_of_run
from ctrbox.predict.read_run_folder import fetched_run, other_plan, read_run
from ctrbox.predict.score_expression import ScoreExpression
from ctrbox.publish.weight_file import Weights
from ctrbox.publish.weights_of_models import CLICK_MODEL


class RunPredictor:
    """A trained model with its plan. It is a `Predictor` that also predicts raw rows. `cb.Run` extends it."""

    kind = CLICK_MODEL

    def __init__(
        self, plan: Plan, click_model: ClickModel, folder: Path | None = None, stored: StoredFolder | None = None
    ) -> None:
        """``stored``: the folder on S3 or HDFS of which ``folder`` is the local copy."""
        self.plan, self.click_model, self.folder, self.stored = plan, click_model, folder, stored

    @staticmethod
    def open(folder: str | Path | StoredFolder, **options: Any) -> RunPredictor:
        """Open a finished run to predict with it. ``options``: as for `cb.Run.load`."""
        place, stored = fetched_run(folder)
        return RunPredictor(*read_run(place, ClickModel, **options), place, stored)

    @property
    def fields(self) -> Sequence[str]:
        """Names of the sparse features that the model reads."""
        return [name for source in self.click_model.sources for name in source.fields]

    def check_schema(self, schema: Schema) -> None:
        """Raise a `PlanError` unless the schema is that of the plan with which the model was trained."""
        if schema.fingerprint != self.click_model.schema.fingerprint:
            raise PlanError(other_plan(self.click_model.schema.fingerprint, schema.fingerprint))

    @property
    def model(self) -> nn.Module:
        return self.click_model.model

    def predict_batch(self, batch: Batch) -> np.ndarray:
        """Return the click probability of each row of a batch of this run's plan; for several labels, a matrix (rows, labels)."""
        if batch.schema.fingerprint not in ("", self.click_model.schema.fingerprint):
            raise PlanError(other_plan(self.click_model.schema.fingerprint, batch.schema.fingerprint))
        return self.click_model.predict(batch)

    def predict(self, rows: Any, *, score: str | None = None, warn: bool = True) -> Any:
        """Return the click probability of each raw row; NaN, with a warning, for a row that a filter drops.

        For a model of several labels, it returns a dict with one such array for each label. With ``score``, an expression of the
        labels such as ``"click * convert * value"``, it returns one array, the score of each row.
        ``rows``: anything that speaks Arrow, a dict or a list of dicts. Columns that the plan merges from another view must
        be among them. ``warn=False``: say nothing about rows that a filter drops.
        """
        tasks = self.click_model.tasks
        asked = None if score is None else ScoreExpression.of(score, [task.name for task in tasks])
        found = self.predictions_of_rows(rows, warn=warn)
        if asked is not None:
            return asked.of_predictions(found).astype(np.float32)
        return by_name(found, tasks) if tasks else found.astype(np.float32)

    def predictions_of_rows(self, rows: Any, *, warn: bool = True) -> np.ndarray:
        """Return the predictions (rows,) or, for several labels, (rows, labels) in float64; NaN as `predict` says."""
        if isinstance(rows, list | tuple) and not rows:
            return np.zeros((0, len(self.click_model.tasks)) if self.click_model.tasks else 0)
        table = self._table(rows)
        merged = self.plan.extractor()
        for source, columns in zip(merged.log.sources[1:], merged.loaded[1:], strict=True):
            for name in columns:
                if name not in table.column_names:
                    raise DataError(
                        f"these rows lack column {name!r}, which the plan merges from view {source.view.name!r}; add it, or "
                        "predict a whole log with its views: run.predictions(path)"
                    )
        batch = self.plan.run(table)
        p = self.click_model.predictions(batch)
        if batch.index is None:
            return p
        whole = np.full((table.num_rows, *p.shape[1:]), np.nan)
        whole[batch.index] = p
        dropped = table.num_rows - len(p)
        if dropped and warn:
            warnings.warn(
                f"the plan's filters drop {dropped:,} of {table.num_rows:,} rows; their predictions are NaN",
                stacklevel=3,
            )
        return whole

    def _table(self, rows: Any) -> pa.Table:
        if is_dicts(rows):
            return self.plan.table_of_dicts(rows)
        if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
            return pa.table(rows)
        raise PlanError(
            f"predict takes rows (a frame, an Arrow table, a list of dicts), got {type(rows).__name__}; for a whole log: "
            "run.predictions(path)"
        )

    def export(self, folder: str | Path, format: str = "onnx") -> Path:
        """Export the run into a new folder and return its path: the network, the tables, and a description of its inputs.

        ``format``: "onnx", for ONNX Runtime, or "torch", a package of ``torch.export``. The scores of the export are those of
        `predict`, calibration included, up to rounding. `docs/publishing/export.md` describes the folder.
        """
        from ctrbox.predict.exporting import export_model

        return export_model(self.click_model, self.plan, folder, format)

    def published(self) -> Weights:
        """Return everything that decides the predictions, for `cb.publish`.

        The vectors of all objects of its Model Servers are computed now, and published with the sub-models.
        """
        return weights_of_run(self.click_model)
