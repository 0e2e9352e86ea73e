"""Tunes a job with Optuna: reads its search space, and runs one study over it. `ctrbox tune` is in cli/tune.py.

A job declares its space as a function from a trial to what that trial trains:

def tune(trial):
    dim = trial.suggest_categorical("dim", [8, 16, 32])
    return {
        "model": cb.models.DeepFM(plan.schema, dim=dim),
        "table": cb.MemoryTable(dim, optimizer=cb.Adagrad(lr=trial.suggest_float("lr", 0.005, 0.5, log=True))),
        "negatives": trial.suggest_float("negatives", 0.1, 1.0),
    }

The dict may have "model", "table", "optimizer" and every argument of ``Trainer.fit``; for anything that it leaves out,
the trial uses what the job defines. Every trial begins with fresh weights and empty tables. The study is a file (an
Optuna journal, JSON lines), so that it can be resumed.
"""

from __future__ import annotations

import copy
import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ctrbox.arguments.names import nearest
from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.embedder_traits import traits_of
from ctrbox.errors import CtrboxError, PlanError, TrainError
from ctrbox.files.atomic import locked
from ctrbox.files.urls import refuse_url
from ctrbox.train.progress_line import Watcher
from ctrbox.train.several_labels import monitors
from ctrbox.train.trackers import OptunaPruning, imported
from ctrbox.train.trainer import FIT, Trainer

# Metrics by which trials are compared, and whether less of them is better.
METRICS = {"logloss": "minimize", "auc": "maximize", "gauc": "maximize", "rig": "maximize"}
OF_LABEL = {"auc": "maximize", "gauc": "maximize", **dict.fromkeys(("logloss", "rmse", "mae", "deviance"), "minimize")}
PARTS = ("model", "table", "optimizer")
NOT_HERE = ("out", "resume", "overwrite", "progress", "callbacks", "cluster", "plan")
STUDY = "study.journal"


def space_of(tune: Any, path: Path | str) -> Callable[[Any], Mapping[str, Any]]:
    """Return the function ``tune`` of a job. Raise a `PlanError` if the job does not define it."""
    if tune is None:
        raise PlanError(
            f"{path} declares no search space; define a function from a trial to what it trains: def tune(trial): return "
            '{"model": cb.models.DeepFM(plan.schema, dim=trial.suggest_categorical("dim", [8, 16]))}'
        )
    if not callable(tune):
        raise PlanError(f"`tune` in {path} must be a function of a trial, got {type(tune).__name__}")
    wanted = [p for p in inspect.signature(tune).parameters.values() if p.default is p.empty]
    if len(wanted) != 1:
        raise PlanError(f"`tune` in {path} must take one argument, the trial; it takes {len(wanted)}")
    found: Callable[[Any], Mapping[str, Any]] = tune
    return found


def chosen(tune: Callable[[Any], Mapping[str, Any]], trial: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a trial trains: the model, the table and the optimizer, and arguments of ``Trainer.fit``."""
    found = tune(trial)
    if not isinstance(found, Mapping):
        raise PlanError(
            f"`tune` returned a {type(found).__name__}; expected a dict with 'model', 'table' or settings of Trainer.fit"
        )
    known = [*PARTS, *(name for name in FIT if name not in ("self", "unknown", *NOT_HERE))]
    for name in found:
        if name not in known:
            near = nearest(str(name), known)
            raise PlanError(
                f"`tune` returned {name!r}, which is not part of a trial{near}; it may return {', '.join(known)}"
            )
    return {n: v for n, v in found.items() if n in PARTS}, {n: v for n, v in found.items() if n not in PARTS}


def fresh_table(table: Any) -> Any:
    """Return an empty table with the settings of the job's table, so that no trial begins with what another one learned."""
    if table is None:
        return None
    if isinstance(table, Mapping):
        made: dict[int, Any] = {}
        return {name: made.setdefault(id(one), fresh_table(one)) for name, one in table.items()}
    if traits_of(table).copies:
        if len(table):
            raise PlanError(
                f"the job's table already holds {len(table):,} rows, but every trial must start with an empty table"
            )
        return table.like(table.row)
    raise PlanError(
        f"a {type(table).__name__} defined in the job would carry rows from one trial to the next; create a table inside "
        f"`tune` "
        'for each trial, such as {"table": cb.MemoryTable(8)}'
    )


def _told(error: Exception, tune: Callable[..., Any]) -> str:
    """Return the kind and the message of an error of a job, with the line of the job where it arose."""
    file = getattr(getattr(tune, "__code__", None), "co_filename", None)
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    where = f" at {Path(str(file)).name}:{lines[-1]}" if lines else ""
    return f"{type(error).__name__}{where}: {' '.join(str(error).split())}"


def direction_of(metric: str) -> str:
    """Return whether trials minimize or maximize a metric: of one label, or ``loss`` and ``click.auc`` of several labels."""
    label, dot, figure = metric.rpartition(".")
    if metric == "loss":
        return "minimize"
    if dot and label.isidentifier() and figure in OF_LABEL:
        return OF_LABEL[figure]
    if metric not in METRICS:
        raise PlanError(
            f"metric must be one of {', '.join(METRICS)}, got {metric!r}{nearest(metric, METRICS)}; for several labels it is "
            "loss, or a metric of one label, such as click.auc"
        )
    return METRICS[metric]


def check_metric(metric: str, plan: Plan) -> None:
    """Raise a `PlanError` unless training with this plan computes the metric."""
    if plan.schema.tasks and metric not in (known := monitors(plan.schema)):
        raise PlanError(
            f"this job has several labels, so its trials are not compared by {metric!r}{nearest(metric, known)}; use "
            f"--metric with one of {', '.join(known)}"
        )
    if not plan.schema.tasks and metric not in METRICS:
        raise PlanError(f"{metric!r} is a metric of several labels; this job has one, so use {', '.join(METRICS)}")


class Study:
    """An Optuna study over a job, kept in a folder."""

    def __init__(self, folder: Path, metric: str, seed: int = 0) -> None:
        direction = direction_of(metric)
        self.optuna = imported("optuna", "tune", "tuning")
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        self.metric, self.folder = metric, folder
        self.of_trainer: dict[str, Any] = {}  # arguments of ``Trainer`` that the job defines and no trial changes
        refuse_url(folder, "a study")
        folder.mkdir(parents=True, exist_ok=True)
        backend = self.optuna.storages.journal.JournalFileBackend(str(folder / STUDY))
        known = self.optuna.get_all_study_names(self.optuna.storages.JournalStorage(backend))
        if known and known != [metric]:
            raise PlanError(f"{folder} holds a study of the metric {known[0]!r}, not {metric!r}; choose another folder")
        self.study = self.optuna.create_study(
            study_name=metric,
            storage=self.optuna.storages.JournalStorage(backend),
            direction=direction,
            pruner=self.optuna.pruners.MedianPruner(n_startup_trials=4),
            load_if_exists=True,
        )
        # Trials that were made before count as numbers drawn, so that a study does not repeat them each time that it is resumed.
        trials = len(self.study.get_trials(deepcopy=False))
        self.study.sampler = self.optuna.samplers.TPESampler(seed=seed + trials)

    def _end_broken(self) -> None:
        """Mark trials that a process left unfinished as failed, because nothing continues them.

        Only the process that holds the lock of the study calls this, because another one would end a trial that is running.
        """
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state == self.optuna.trial.TrialState.RUNNING:
                self.study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)

    def run(
        self,
        tune: Callable[[Any], Mapping[str, Any]],
        plan: Plan,
        *,
        model: nn.Module | None,
        table: Any = None,
        optimizer: Any = None,
        settings: Mapping[str, Any],
        trials: int,
        threads: int | None = None,
        bf16: bool = False,
        common: Sequence[str] = (),
        watch: Callable[[], Watcher] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Train ``trials`` more trials. One that fails is recorded with its reason, and the next one begins.

        Raise a WriteError if another process is adding trials to this study.
        """
        check_metric(self.metric, plan)
        self.of_trainer = {"bf16": bf16, "common": common}
        with locked(self.folder, f"add trials to the study in {self.folder}"):
            self._end_broken()
            for _ in range(trials):
                trial = self.study.ask()
                train = partial(self._train, trial, tune, plan, model, table, optimizer, settings, threads, watch)
                self._record(trial, train, tell)

    def _record(self, trial: Any, train: Callable[[], tuple[float, bool]], tell: Callable[[str], None]) -> None:
        """Train a trial, and record in the study how it ended."""
        states = self.optuna.trial.TrialState
        try:
            value, pruned = train()
        except CtrboxError as error:
            trial.set_user_attr("failed", str(error))
            self.study.tell(trial, state=states.FAIL)
            tell(f"trial {trial.number} failed: {error}")
            return
        except BaseException:
            self.study.tell(trial, state=states.FAIL)
            raise
        if pruned:
            self.study.tell(trial, state=states.PRUNED)
        elif math.isfinite(value):
            self.study.tell(trial, value)
        else:
            trial.set_user_attr("failed", f"{self.metric} is {value}")
            self.study.tell(trial, state=states.FAIL)
        tell(self.line(trial.number))

    def _train(
        self,
        trial: Any,
        tune: Callable[[Any], Mapping[str, Any]],
        plan: Plan,
        model: nn.Module | None,
        table: Any,
        optimizer: Any,
        settings: Mapping[str, Any],
        threads: int | None,
        watch: Callable[[], Watcher] | None,
    ) -> tuple[float, bool]:
        """Return the metric of a trial, and whether it was pruned."""
        try:
            parts, asked = chosen(tune, trial)
        except CtrboxError:
            raise
        except self.optuna.TrialPruned:
            return math.nan, True
        except Exception as error:  # whatever the job's own code raises is the end of this trial alone
            raise TrainError(f"`tune` raised {_told(error, tune)}") from error
        mine = parts.get("model", None if model is None else copy.deepcopy(model))
        if mine is None:
            raise PlanError(
                'neither the job nor `tune` defines a model; define `model` in the job, or return {"model": '
                "…} from `tune`"
            )
        own = parts["table"] if "table" in parts else fresh_table(table)
        for one in own.values() if isinstance(own, Mapping) else [own]:
            if one is not None and traits_of(one).clears and len(one):
                raise PlanError(
                    f"the table of trial {trial.number} already holds {len(one):,} rows from another trial; create a new table "
                    'for each trial, such as cb.SparseTable(f"params/{trial.number}") or cb.MemoryTable(8)'
                )
        pruning = OptunaPruning(trial, self.metric)
        progress = False if watch is None else watch()
        chosen_optimizer = parts.get("optimizer", optimizer)
        fitted = Trainer(mine, own, optimizer=chosen_optimizer, threads=threads, **self.of_trainer).fit(
            plan, callbacks=[pruning], progress=progress, **{**settings, **asked}
        )
        if not fitted.metrics:
            raise TrainError(
                "trials are compared on validation rows, but this job has none; set valid= to a share of the log, such as 0.1"
            )
        return float(fitted.metrics.get(self.metric, math.nan)), pruning.pruned

    # ---- what was found

    @property
    def done(self) -> Sequence[Any]:
        """Return the trials that ran to their end, best first."""
        found = [t for t in self.study.get_trials(deepcopy=False) if t.state == self.optuna.trial.TrialState.COMPLETE]
        sign = 1 if direction_of(self.metric) == "minimize" else -1
        return sorted(found, key=lambda t: sign * t.value)

    def line(self, number: int) -> str:
        """Return one line about a trial: how it ended, its metric and its parameters."""
        trial = self.study.get_trials(deepcopy=False)[number]
        values = trial.intermediate_values
        last = trial.value if trial.value is not None else values[max(values)] if values else None
        shown = "" if last is None else f"{self.metric} {last:.5f}"
        parameters = ", ".join(f"{n}={v:.4g}" if isinstance(v, float) else f"{n}={v}" for n, v in trial.params.items())
        why = trial.user_attrs.get("failed", "")
        return f"trial {number:<4} {trial.state.name.lower():<9} {shown:<18} {parameters}" + (
            f"  ({why})" if why else ""
        )


def best_of(folder: Path, tune: Callable[[Any], Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the best trial of a study trained, made again: parts and arguments, as ``chosen`` returns them."""
    optuna = imported("optuna", "tune", "a tuned training")
    refuse_url(folder, "a study")
    if not (folder / STUDY).exists():
        raise PlanError(f"{folder} holds no study; create one with ctrbox tune")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / STUDY)))
    (metric,) = optuna.get_all_study_names(storage)
    best = Study(folder, metric).done
    if not best:
        raise PlanError(
            f"no trial in {folder} ran to completion; add more trials with `ctrbox tune JOB.PY --out {folder} --metric "
            f"{metric}`, which also prints why trials failed"
        )
    return chosen(tune, optuna.trial.FixedTrial(best[0].params, number=best[0].number))
