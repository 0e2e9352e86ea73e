"""Defines ``RankRun``, the run that rank 0 returns: it reads the rows of its tables from the run folder when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.shards import restore_shard
from ctrbox.errors import DataError
from ctrbox.files.sealed_json import read_sealed
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.predict.model_with_tables import ClickModel
from ctrbox.predict.weights_folder import STATE, read_state
from ctrbox.train.learn_batch import Learner
from ctrbox.train.run import Run


class RankRun(Run):
    """A finished run of several ranks. Metrics and reports need no rows of tables; a prediction reads all rows into memory."""

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        summary: Mapping[str, Any],
        folder: Path | None,
        stored: StoredFolder | None,
        model: Path,
    ) -> None:
        """``model``: the folder with the saved tables. Without ``folder``, it is temporary, so the tables are read at once."""
        self._model: Path | None = model
        self._saved = read_sealed(model / STATE, "folder of weights")
        super().__init__(plan, learner, summary, folder, stored)
        if folder is None:
            self._read()

    @property
    def learner(self) -> Learner:
        self._read()
        return self._learner

    @learner.setter
    def learner(self, learner: Learner) -> None:
        self._learner = learner

    @property
    def click_model(self) -> Learner:
        return self.learner

    @click_model.setter
    def click_model(self, made: ClickModel) -> None:
        """Do nothing, because ``made`` is the learner, which this run has already."""

    def _read(self) -> None:
        model = self._model
        if model is None:
            return
        if read_state(model) != self._saved:
            raise DataError(
                f"{model} now holds the model of another training run, but this run reads its tables from there; load the "
                "new run with cb.Run.load, or choose another out= for each training run"
            )
        for k, source in enumerate(self._learner.sources):
            restore_shard(source.embedder, model / f"table-{k}.ctrtable")
        self._model = None  # only after success: after an error the tables are not complete
