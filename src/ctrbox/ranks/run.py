"""Defines ``RankRun``, the run that rank 0 returns: it reads the rows of its tables from the run folder when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctrbox.embed.sharded import restore_shard
from ctrbox.engines.plan import Plan
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.predict.click_model import ClickModel
from ctrbox.train.learner import Learner
from ctrbox.train.run import Run


class RankRun(Run):
    """A finished training of several ranks. Metrics and reports need no rows; a prediction reads all into the job's tables."""

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        summary: Mapping[str, Any],
        folder: Path | None,
        stored: StoredFolder | None,
        model: Path,
    ) -> None:
        """``model``: the folder with the saved tables. Without ``folder`` they are read at once, because it is going away."""
        self._model: Path | None = model
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
        """Keep nothing: it is the learner, which `Run` sets as well."""

    def _read(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            for k, source in enumerate(self._learner.sources):
                restore_shard(source.embedder, model / f"table-{k}.ctrtable")
