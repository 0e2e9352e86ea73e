"""Defines ``Run``: a finished training run with its plan, model and tables, to inspect and to predict with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ctrbox.compiled_plan.fingerprint import difference, only_filters_differ
from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.errors import PlanError
from ctrbox.files.sealed_json import read_sealed
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.predict.read_run_folder import fetched_run, other_plan, read_run
from ctrbox.predict.run_predictor import RunPredictor
from ctrbox.predict.unlearned_keys import refusing_unknown
from ctrbox.train.empty_histories import warn_of_empty_histories
from ctrbox.train.evaluation import score_plan, scored
from ctrbox.train.learn_batch import Learner
from ctrbox.train.seen_in_training import log_fingerprint, recorded_fingerprint, warn_of_learned_rows
from ctrbox.views.columns_as_recorded import RecordedSource

ROWS = 16_384
FIRST = {"binary": "auc", "regression": "rmse", "count": "deviance"}  # the figure of a task that is shown first


class Run(RunPredictor):
    """A finished training run: ``run.metrics["auc"]``, ``run.predict(data)``, ``run.report()``.

    ``cb.Run.load("runs/today")`` loads a run from its folder.
    """

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        summary: Mapping[str, Any],
        folder: Path | None,
        stored: StoredFolder | None = None,
    ) -> None:
        super().__init__(plan, learner, folder, stored)
        self.learner = learner
        self.summary = summary

    def __repr__(self) -> str:
        where = "" if self.folder is None else f", {self.stored.url if self.stored else str(self.folder)!r}"
        figures = {"auc": self.metrics.get("auc") or float("nan")}
        if tasks := self.plan.schema.tasks:
            figures = {task.name: self.metrics.get(f"{task.name}.{FIRST[task.kind]}", float("nan")) for task in tasks}
        shown = ", ".join(f"{name}={value:.4f}" for name, value in figures.items())
        return f"Run({self.summary['model']}, {shown}{where})"

    def _repr_html_(self) -> str:
        """Return the metrics and the learning curve, for notebooks."""
        from ctrbox.report.run_in_notebook import for_notebook

        return for_notebook(repr(self), self.metrics, self.folder)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the validation rows at the end of the training."""
        found: Mapping[str, float] = self.summary.get("metrics", {})
        return found

    def predictions(
        self,
        data: Any,
        batch_size: int = ROWS,
        views: Mapping[str, Any] | None = None,
        histories: str | os.PathLike[str] | None = None,
    ) -> Iterator[np.ndarray]:
        """Yield the click probabilities of a whole log in its order, one batch at a time. Rows that filters drop are left out.

        If the model has several labels, each batch is a matrix (rows, labels), in the order of the labels. ``views``: other
        data for joined and merged views, by name. ``histories``: as for `evaluate`.
        """
        plan = self.plan.over(data, label=False, views=views, histories=histories)
        warn_of_empty_histories(self._trained_on, plan)
        with refusing_unknown(self.learner):
            for _, p in scored(self.learner, plan, batch_size):
                yield p

    def evaluate(
        self,
        data: Any = None,
        batch_size: int = ROWS,
        views: Mapping[str, Any] | None = None,
        histories: str | os.PathLike[str] | None = None,
    ) -> dict[str, float]:
        """Return the metrics on another log with labels, or on a plan over one. Default: on the validation rows of this run.

        ``histories``: the file of a saved state (``plan.histories``) with which the histories of the other log begin; by
        default, they begin empty, with a warning. Also warns if the log is the one on which this run was trained.
        """
        if histories is not None and (data is None or isinstance(data, Plan)):
            met = "the rows that this run held back" if data is None else "a plan"
            raise PlanError(
                f"histories= can be used only with another log, but the data is {met}; pass the state to the plan instead: "
                "plan.over(log, histories=…)"
            )
        if data is None:
            held = self.summary.get("held")
            if not isinstance(held, Mapping):
                raise PlanError("this run kept no rows for validation; pass a log with labels: run.evaluate(log)")
            self._need_log()
            return score_plan(self.learner, self.plan, batch_size, int(held["start"]), int(held["stop"])).result()
        if isinstance(data, Plan):
            if self.learner.schema.fingerprint not in (data.fingerprint, data.made_over):
                if only_filters_differ(self.plan, data):
                    raise PlanError(f"this plan has {difference(self.plan, data)}")
                raise PlanError(other_plan(self.learner.schema.fingerprint, data.fingerprint))
            plan = data
        else:
            plan = self.plan.over(data, views=views, histories=histories)
        warn_of_learned_rows(self._trained_on(), plan, self.summary)
        warn_of_empty_histories(self._trained_on, plan)
        with refusing_unknown(self.learner):
            return score_plan(self.learner, plan, batch_size).result()

    def _trained_on(self) -> str:
        """Return the fingerprint of the log that this run was trained on."""
        return log_fingerprint(self.plan) if self.folder is None else recorded_fingerprint(self.folder)

    def _need_log(self) -> None:
        """Raise a PlanError if the rows that this run held back cannot be found."""
        log = self.plan.log
        if isinstance(log.source, RecordedSource) and log.source.described.reference is None:
            raise PlanError(
                "this run was trained on rows in memory, which are not saved. To evaluate it on other labeled data, use "
                "run.evaluate(data); to evaluate it on its own validation rows, pass the original log again: "
                f"load(…, views={{{log.name!r}: …}})"
            )

    def report(self) -> Path:
        """Write report.html into the run folder and return its path. If the run is on S3 or HDFS, return the path of a local
        copy.
        """
        if self.folder is None:
            raise PlanError("this run has no folder; call fit with out='runs/…' to get a report")
        from ctrbox.report.write_report import write_report

        written = write_report(self.folder)
        if self.stored is not None:
            self.stored.push()
        return written

    @staticmethod
    def load(
        folder: str | Path | StoredFolder,
        *,
        model: nn.Module | None = None,
        views: dict[str, Any] | None = None,
        allow_operators: bool | Sequence[UserOperator] = False,
        allow_views: Sequence[str] = (),
        plan: Plan | None = None,
        ram: int | str | None = None,
        servers: Mapping[str, ModelServer] | None = None,
    ) -> Run:
        """Load a finished run from its folder, which may be on s3:// or hdfs://.

        ``model``    an untrained instance of your own model class; models of ``cb.models`` are built automatically
        ``views``, ``allow_operators``, ``allow_views``  as for ``cb.Plan.load``
        ``plan``     the plan of the job that trained the run. Its views and operators are used instead of the saved ones; the
                     fitted values come from the folder. If the run uses an operator that this plan does not have, loading is
                     refused, unless ``allow_operators`` allows the operator
        ``ram``      memory for all Sparse Tables of the run together, which are opened read-only; default: 2 GB per table
        ``servers``  Model Servers by field; their weights are read from the folder, but not their data
        """
        place, stored = fetched_run(folder)
        plan, learner = read_run(
            place,
            Learner,
            model=model,
            views=views,
            allow_operators=allow_operators,
            allow_views=allow_views,
            plan=plan,
            ram=ram,
            servers=servers,
        )
        return Run(plan, learner, read_sealed(place / "summary.json", "finished run"), place, stored)
