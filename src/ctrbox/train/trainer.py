"""Defines ``Trainer``: a model, its embedder and its optimizer, and ``fit``, which checks its arguments and trains (fit.py)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Never

from torch import nn

from ctrbox import _native
from ctrbox.arguments.names import named_arguments, nearest
from ctrbox.arguments.numbers import flag, is_number, shown_value, whole
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.threads import MOST_LEARNING, checked_threads
from ctrbox.errors import PlanError
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.files.urls import stored_url
from ctrbox.optimizers.of_dense_weights import DenseOptimizer
from ctrbox.optimizers.of_table_rows import Adam
from ctrbox.plan.placement.device_description import gpu_number
from ctrbox.predict.tables_of_fields import Embedders
from ctrbox.train.calibrate import with_calibration
from ctrbox.train.evaluation import Split
from ctrbox.train.fit import Fit
from ctrbox.train.look_ahead import MOST
from ctrbox.train.other_processes import OtherProcesses
from ctrbox.train.progress_line import Watcher, watcher
from ctrbox.train.run import Run
from ctrbox.train.schedule import CONSTANT, ReduceOnPlateau, Schedule
from ctrbox.train.settings import DEVICES, Settings, no_setting, with_batch_size
from ctrbox.train.several_labels import check_settings
from ctrbox.train.summary import Look
from ctrbox.train.table_setup import check_tables
from ctrbox.train.warm_up import WarmUp


@named_arguments
class Trainer:
    """A trainer of a model and of the embedders of its sparse fields.

    ``embedder``   one embedder for all fields; a dict of embedders by field, in which ``"*"`` stands for all other fields;
                   `SparseTables`; or None for new tables on the model's device
    ``threads``    number of threads that learn, from 1 to 256; default: the number of threads of the plan. The weights do not
                   depend on it
    ``optimizer``  optimizer of the dense weights: ``cb.optim.Adam(lr=…)``, ``cb.Adagrad``, ``cb.optim.SGD``, or a function
                   that makes a torch optimizer from parameters
    ``device``     device of the model: "cpu", "cuda", a GPU by number such as "cuda:3", or "auto", the device of its tables
                   or of the plan
    ``bf16``       whether to compute matrix products of the dense layers in bfloat16; weights and tables stay float32
    ``common``     fields with many keys per row that the rows of one group share, such as a user's history; they are looked
                   up and pooled once per group and batch
    ``lr``         learning rate of the tables (``alpha`` of `FTRL`), instead of the rate with which they were created; rows
                   and optimizer states are kept
    """

    def __init__(
        self,
        model: nn.Module,
        embedder: Embedders | None = None,
        *,
        optimizer: DenseOptimizer | None = None,
        threads: int | None = None,
        device: str = "auto",
        bf16: bool = False,
        common: Sequence[str] = (),
        lr: float | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise PlanError(f"Trainer needs a torch module, got {type(model).__name__}: cb.models.DeepFM(plan.schema)")
        self.model = model
        self.embedder = embedder
        self.optimizer = Adam(lr=1e-3) if optimizer is None else optimizer
        if threads is not None:
            threads = whole("threads", threads, 1, MOST_LEARNING)
        self.threads = threads
        if device not in DEVICES and gpu_number(device) is None:
            raise PlanError(
                f"device must be one of {', '.join(DEVICES)}, got {device!r}{nearest(str(device), DEVICES)}"
            )
        bf16 = flag("bf16", bf16)
        self.device, self.bf16, self.common = device, bf16, common
        if lr is not None and (not is_number(lr) or lr <= 0):
            raise PlanError(f"lr must be a number above 0, got {shown_value(lr)}")
        self.lr = None if lr is None else float(lr)

    def __repr__(self) -> str:
        held = "tables on the model's device" if self.embedder is None else repr(self.embedder)
        return f"Trainer({type(self.model).__name__}, {held}, optimizer={self.optimizer!r}, device={self.device!r})"

    def fit(
        self,
        plan: Plan,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        valid: float | Plan = 0.1,
        limit: int | None = None,
        shuffle: int = 0,
        negatives: float = 1.0,
        patience: int | None = None,
        monitor: str | None = None,
        evaluate_every: int | None = None,
        clip: float | None = None,
        seed: int = 0,
        schedule: Schedule = CONSTANT,
        calibrate: str | float | None = None,
        calibrate_share: float | None = None,
        calibrate_by: str | None = None,
        calibrate_trend: bool = False,
        adaptive_l2: float = 0.0,
        l2: float = 0.0,
        average: float | None = None,
        out: str | Path | StoredFolder | None = None,
        resume: bool = True,
        overwrite: bool = False,
        overlap: bool = True,
        ahead: int = 2,
        look_ahead: int = 0,
        checkpoint_seconds: float = 300.0,
        checkpoint_steps: int | None = None,
        time: Any = None,
        by: Mapping[str, Any] | None = None,
        explain: bool | None = None,
        best_auc: float | None = None,
        progress: bool | Watcher = False,
        callbacks: Sequence[Any] = (),
        tables: str | None = None,
        warm_up: str = "none",
        warm_from: Run | str | Path | None = None,
        cluster: OtherProcesses | None = None,
        **unknown: Never,
    ) -> Run:
        """Train, evaluate, and write everything to the run folder ``out``. In the following, rows are rows of the log.

        Arguments that decide the weights:

        - ``batch_size``: rows per step; default: a power of two that gives about 250 steps per epoch.
        - ``epochs``: number of times that the model is trained on all training rows, from 1 to 10,000.
        - ``valid``: share of the log that is held back for validation, from 0 (none) to 0.9; its last rows are held back. A
          plan with the same features over another log may be given instead.
        - ``limit``: number of rows to use, from the start of the log; default: all rows.
        - ``shuffle``: number of consecutive rows that are put into a random order; 0 keeps the order of the log.
        - ``negatives``: share of the rows without a click that is kept for training, above 0 and up to 1.
        - ``patience``: number of consecutive evaluations without improvement of ``monitor`` after which training stops;
          default: training never stops early.
        - ``monitor``: metric that ``patience`` watches: "logloss", "auc", "gauc", or one of these names after "weighted_".
          With several labels, it is "loss" or a metric of one label, such as "convert.auc". Default: the loss that training
          minimizes.
        - ``evaluate_every``: number of steps between evaluations; default: one evaluation after each epoch.
        - ``clip``: maximum norm of the gradient of the dense weights in a step; default: none.
        - ``seed``: seed of the random numbers, 0 or more.
        - ``schedule``: function that returns the factor of all learning rates for each step, such as
          ``cb.optim.Cosine(steps=1000)``, or ``cb.optim.ReduceOnPlateau(patience=1)``, which lowers the rates when
          ``monitor`` stops improving.
        - ``calibrate``: correction of the predictions after training. "platt" and "isotonic" fit a map from scores to click
          rates to calibration rows, which are held back for this. The other values correct for sample weights: "weights" adds
          log(w0 / w1) to every logit, where w0 and w1 are the weights of a row without and with a click, and requires weights
          that depend only on the label; "intercept" adds the number that makes the mean prediction equal to the click rate of
          the validation rows; a number between -50 and 50 is added itself.
        - ``calibrate_share``: share of the training rows that become calibration rows, above 0 and up to 0.9, and at most a
          million rows; the newest training rows are taken; default: 0.1.
        - ``calibrate_by``: name of a sparse feature with one key per row. Each key with at least 1,000 calibration rows (50
          with and 50 without a click) gets a map of its own. Default: one map for all rows.
        - ``calibrate_trend``: whether the map also follows a straight line in time, so that it is right for the end of the
          calibration rows. It is for logs in the order of time whose click rates drift. Default: False.
        - ``adaptive_l2``: adds this number times the row, divided by the number of times that its key has occurred, to the
          gradient of each row of a table.
        - ``l2``: adds this number times the row to the gradient of the summed loss, once for each time that the key of the
          row occurs in the batch, so that it means the same for any batch size.
        - ``average``: decay of an exponential moving average of the dense weights, above 0 and below 1, such as 0.999. The
          averaged weights are evaluated, saved and served. Default: the weights of the last step.
        - ``tables``: what to do with rows that the tables already hold: "empty" removes them, "keep" continues from them.
          Default: "keep" with a warning, and an error with ``overwrite``.
        - ``warm_up``: what to take over from the run ``warm_from``: "partial" takes all weights except the rows of tables,
          "full" takes all weights, and "continue" also takes the optimizer states, as if that training had not ended.

        Arguments that change no weight:

        - ``out``: the run folder, a local path or a folder on s3:// or hdfs:// (docs/processes/storage.md); default: none.
        - ``resume``: whether to continue an unfinished run in ``out``. ``overwrite``: whether to replace a run in ``out``.
        - ``overlap``: False runs the stages of a training run one after the other. ``ahead``: number of batches that may wait
          between two stages.
        - ``look_ahead``: number of batches, up to 64, that are read in advance and wait on disk, so that a table larger than
          memory can keep the rows that are used again soon. 0 reads none in advance.
        - ``checkpoint_seconds``, ``checkpoint_steps``: seconds or steps between two checkpoints.
        - ``time`` and ``by``: expressions or names of columns that divide the final evaluation into windows and slices.
          ``explain``: whether to search for the worst slices and to compute the importance of features; default: True if
          ``out`` is given. ``best_auc``: the AUC of the true click probabilities, for the report.
        - ``progress``: True shows a progress line. ``callbacks``: objects that are called after steps, evaluations and
          checkpoints, at the end, and if training fails (docs/training/callbacks.md).
        - ``cluster``: where to train, such as ``cb.Cluster(workers=2, servers=2)``; default: in this process.
        """
        if unknown:
            raise no_setting(unknown, FIT)
        check_tables(tables)
        check_arguments(out, ahead, look_ahead, checkpoint_seconds, checkpoint_steps, progress)
        if not isinstance(plan, Plan):
            raise PlanError(f"fit needs a plan, as cb.compile returns it, got {type(plan).__name__}")
        warm = WarmUp(warm_up, warm_from)
        share = 0.0 if isinstance(valid, Plan) else valid
        chosen = Settings(
            batch_size=batch_size,
            epochs=epochs,
            valid=share,
            limit=limit,
            shuffle=shuffle,
            negatives=negatives,
            patience=patience,
            monitor=monitor,
            evaluate_every=evaluate_every,
            clip=clip,
            seed=seed,
            schedule=schedule,
            calibrate=calibrate,
            calibrate_share=calibrate_share,
            calibrate_by=calibrate_by,
            calibrate_trend=calibrate_trend,
            adaptive_l2=adaptive_l2,
            l2=l2,
            average=average,
        )
        several = {"time": time, "by": by, "best_auc": best_auc, "look_ahead": look_ahead or None}
        check_settings(plan.schema, chosen, {**several, "explain": explain})
        split = Split.of(plan, valid if isinstance(valid, Plan) else None, chosen)
        chosen = with_calibration(with_batch_size(chosen, split.train_rows), plan, split)
        # A plan with as many threads has warned of too few cores already.
        if self.threads is not None and not self.threads == plan.threads > _native.usable_cores():
            rows = min(chosen.batch_size or split.train_rows, split.train_rows)
            checked_threads(self.threads, MOST_LEARNING, rows=rows)
        wanted = out is not None and not plan.schema.tasks if explain is None else explain
        look = Look(time, by) if wanted else None
        check_have_effect(chosen, plan, split, looked=look is not None, time=time, by=by)
        if checkpoint_steps is not None and out is None and cluster is None:
            raise PlanError(
                "checkpoint_steps= needs a run folder to write checkpoints into; add out='runs/…', or remove it"
            )
        if look is not None and split.valid is not None:
            look.check(split.valid)
        if callbacks and cluster is not None:
            raise PlanError(
                "callbacks= cannot be used with cluster=, because the steps run in other processes; remove callbacks= and read "
                "the metrics from metrics.jsonl in the run folder"
            )
        place = None if out is None else run_place(out, cluster)
        fit = Fit(self, plan, split, chosen, overlap, ahead, watcher(progress), callbacks=callbacks)
        if look_ahead:
            fit.look_ahead(look_ahead, cluster)
        if cluster is not None:
            cluster.check(fit)
            if not cluster.leads:
                cluster.follow(fit)
        return fit.run(
            place,
            resume=resume,
            overwrite=overwrite,
            seconds=checkpoint_seconds,
            steps=checkpoint_steps,
            look=look,
            best_auc=best_auc,
            warm=warm,
            tables=tables,
            cluster=cluster,
        )


FIT = tuple(inspect.signature(Trainer.fit).parameters)


def run_place(out: str | Path | StoredFolder, cluster: OtherProcesses | None) -> Path | StoredFolder:
    """Return the place of a run. A place on S3 or HDFS that cannot be written is refused here, before any work."""
    url = out.url if isinstance(out, StoredFolder) else stored_url(out, "a run folder")
    if url is None:
        assert not isinstance(out, StoredFolder)
        return Path(out)
    if cluster is not None:
        raise PlanError(
            f"a training by several processes (--ranks, cluster=) cannot keep its run folder at {url}, because the processes "
            "share a local folder; choose a local out="
        )
    place = out if isinstance(out, StoredFolder) else StoredFolder(url, "a run folder")
    place.claim()
    return place


def check_have_effect(
    chosen: Settings, plan: Plan, split: Split, *, looked: bool, time: Any, by: Mapping[str, Any] | None
) -> None:
    """Refuse settings that this training would not use, so that nobody believes that they have an effect."""
    if split.valid is None:
        for name, asked in (("patience", chosen.patience), ("evaluate_every", chosen.evaluate_every)):
            if asked is not None:
                raise PlanError(
                    f"{name}={asked} needs validation rows, but there are none; set valid= to a share of the log, such as 0.1, "
                    f"or remove {name}="
                )
        if isinstance(chosen.schedule, ReduceOnPlateau):
            raise PlanError(
                "schedule=cb.optim.ReduceOnPlateau(…) needs validation rows, but there are none; set valid= to a share of the "
                "log, such as 0.1, or choose another schedule"
            )
    if chosen.monitor is not None and chosen.monitor.startswith("weighted_") and not plan.schema.weight:
        raise PlanError(
            f"monitor={chosen.monitor!r} needs sample weights; add them to the plan with cb.FeatureSet(weight=…), or use "
            f"{chosen.monitor.removeprefix('weighted_')!r}"
        )
    if chosen.monitor in ("gauc", "weighted_gauc") and not plan.schema.group:
        raise PlanError(
            f"monitor={chosen.monitor!r} needs groups; add them to the plan with cb.FeatureSet(group=col('user_id'), …), "
            f"or use 'auc'"
        )
    if (time is not None or by) and (not looked or split.valid is None):
        lacking = "validation rows (valid=)" if looked else "explain=True, or a run folder (out=)"
        raise PlanError(
            f"time= and by= split the final evaluation into windows and slices, which requires {lacking}; add that, or remove "
            "time= and by="
        )


def check_arguments(out: Any, ahead: Any, look_ahead: Any, seconds: Any, steps: Any, progress: Any) -> None:
    if out is not None and not isinstance(out, str | Path | StoredFolder):
        raise PlanError(f"out must be a path or a URL, got {out!r}")
    whole("ahead", ahead, 1, 1000)
    whole("look_ahead", look_ahead, 0, MOST)
    if seconds != math.inf and (not is_number(seconds) or seconds <= 0):
        raise PlanError(f"checkpoint_seconds must be a number above 0, got {shown_value(seconds)}")
    if steps is not None:
        whole("checkpoint_steps", steps, 1, 2**62)
    if not isinstance(progress, bool) and not all(
        hasattr(progress, name) for name in ("see", "evaluated", "resumed", "end")
    ):
        raise PlanError(f"progress must be True, False or a Watcher (see, evaluated, resumed, end), got {progress!r}")
