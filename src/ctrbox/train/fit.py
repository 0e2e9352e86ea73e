"""Runs one call of ``Trainer.fit``: extraction, look-up and learning as one pipeline, with checkpoints from which it resumes
exactly.

    plan.parts ──► thin, look (unique keys, prefetch) ──► learn ──► every so often: evaluate, checkpoint

There are three threads. One takes batches from the plan, which has worker threads of its own. One looks keys up. The thread that
called ``fit`` learns; it alone changes weights, between two checks for Ctrl-C. A checkpoint is written between two steps and
contains everything that the next step depends on.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ctrbox.columns.batch import Batch
from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.gpu.batch_to_device import facts
from ctrbox.engines.batch_stream import Position
from ctrbox.errors import CtrboxError, DataError, PlanError, TrainError
from ctrbox.evaluate.metrics import tracked
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.optimizers.of_dense_weights import dense_optimizer
from ctrbox.predict.check_keys_of_vector_files import check_key_kinds
from ctrbox.predict.model_with_tables import Looked
from ctrbox.predict.row_of_bad_value import naming_rows
from ctrbox.predict.weights_folder import read_state
from ctrbox.train.batch_feed import Foresight, Handed, keyed
from ctrbox.train.calibrate import calibrate, warn_of_weights
from ctrbox.train.callbacks import Callbacks, Checkpoint, End, Evaluation, Failure, Step
from ctrbox.train.check_model_servers import check_found, describe_fields, missing_shares, warn_of_misses
from ctrbox.train.checkpoint import checkpoint_path, random_states, read_weights, write_weights
from ctrbox.train.evaluation import Split, evaluate, watched, watched_name
from ctrbox.train.gradient_sums import ALONE, Together
from ctrbox.train.interrupt import Asked, asked_to_end, end_as_asked
from ctrbox.train.learn_batch import Learner
from ctrbox.train.other_processes import OtherProcesses
from ctrbox.train.pass_times import Passes
from ctrbox.train.pipeline import Clock, Stage, run_stages
from ctrbox.train.progress_line import Lately, Progress, Watcher, watcher
from ctrbox.train.run import Run
from ctrbox.train.run_folder import RunFolder, holds_run
from ctrbox.train.sampling import Labels, thin
from ctrbox.train.schedule import ReduceOnPlateau, check_reaches, factor_at
from ctrbox.train.seen_in_training import log_marks
from ctrbox.train.settings import Settings, described, device_for, identity
from ctrbox.train.several_labels import TaskLabels, warn_of_young_rows
from ctrbox.train.summary import Look, judge, summarize
from ctrbox.train.table_setup import check_rows_told, clear_rows, set_rate, warn_of_rows
from ctrbox.train.training_progress import BROKEN, State, state_of
from ctrbox.train.warm_up import WarmUp

if TYPE_CHECKING:
    from ctrbox.train.trainer import Trainer

POINTS = 500  # of the training loss in metrics.jsonl, about: every step of a short run, every so many of a long one


class Fit:
    """One call of ``fit``."""

    def __init__(
        self,
        trainer: Trainer,
        plan: Plan,
        split: Split,
        settings: Settings,
        overlap: bool,
        ahead: int,
        watch: Watcher,
        together: Together = ALONE,
        callbacks: Sequence[Any] = (),
    ) -> None:
        self.trainer, self.together, self.callbacks = trainer, together, Callbacks(callbacks)
        self.plan, self.split, self.settings, self.overlap, self.ahead = plan, split, settings, overlap, ahead
        assert settings.batch_size is not None
        self.batch_size = settings.batch_size
        schema = plan.fit().schema
        if not schema.label and not schema.tasks:
            raise TrainError("the plan has no label; add one: cb.FeatureSet(label=col('clicked'), …)")
        self.learner = Learner(
            trainer.model,
            schema,
            trainer.embedder,
            dense_optimizer(trainer.optimizer),
            threads=trainer.threads or plan.threads,
            clip=settings.clip,
            keep=settings.negatives,
            device=device_for(trainer.device, trainer.embedder, plan),
            bf16=trainer.bf16,
            rows=self.batch_size,
            adaptive_l2=settings.adaptive_l2,
            l2=settings.l2,
            average=settings.average,
            common=trainer.common,
            together=together,
        )
        if trainer.lr is not None:
            set_rate(self.learner.embedders, trainer.lr)
        check_reaches(settings.schedule, self.learner.embedders)
        describe_fields(self.learner, plan)
        check_key_kinds(self.learner, plan)
        self.learner.shift += settings.shift
        self.report_every = max(1, -(-split.train_rows // self.batch_size) * settings.epochs // POINTS)
        self.optimizer = described(trainer.optimizer)
        self.state = State()
        self.clocks = {name: Clock(name) for name in ("extract", "lookup", "learn", "evaluate", "checkpoint")}
        self.piped = list(self.clocks.values())[:3]
        self.passes = Passes(self.piped, self.learner.embedders, settings.epochs)
        self.watch = watch
        self.folder: RunFolder | None = None
        self.aside: tempfile.TemporaryDirectory[str] | None = None
        self.continues = False  # with everything that an earlier run ended with
        self.ending = False  # asked to end behind the next step; several workers agree on which
        self.metrics: dict[str, float] = {}
        self.warned = False  # of an evaluation whose figure is NaN
        self.evaluated = -1  # the step after which ``metrics`` were taken
        self.told = self.saved = 0.0
        self.reported = 0  # the step whose loss was recorded last
        self.factor = 1.0  # of the learning rates in the last step
        self.foresight: Foresight | None = None
        self.task_labels = TaskLabels(schema.tasks) if schema.tasks else None
        self.by_rank: list[dict[str, Any]] = []  # of a training by several ranks: what each has read and sent

    def look_ahead(self, batches: int, cluster: OtherProcesses | None) -> None:
        """Number of batches that are read ahead."""
        if cluster is not None:
            raise PlanError("look_ahead= cannot be used with cluster=; remove one of the two")
        if self.settings.patience is not None:
            raise PlanError(
                "look_ahead= cannot be used with patience=, because it creates rows for later batches before it is known "
                "whether the training continues; remove one of the two"
            )
        self.foresight = Foresight(self.learner, batches)

    def run(
        self,
        out: Path | StoredFolder | None,
        *,
        resume: bool,
        overwrite: bool,
        seconds: float,
        steps: int | None,
        look: Look | None,
        best_auc: float | None,
        warm: WarmUp,
        tables: str | None = None,
        cluster: OtherProcesses | None = None,
    ) -> Run:
        try:
            warm.check(self.learner)
            self.continues = warm.kind == "continue"
            if overwrite and out is not None and holds_run(out) and warm.kind == "none":
                check_rows_told(self.learner.embedders, tables)
            kept = out is not None
            if out is None and cluster is not None:
                self.aside = tempfile.TemporaryDirectory(prefix="ctrbox-cluster-")
                out = Path(self.aside.name) / "run"
            if out is not None:
                mine = identity(self.plan, self.split.other, self.learner.model, self.learner.embedders, self.settings)
                mine["optimizer"] = self.optimizer
                mine["warm up"] = warm.identity()
                mine["common"] = list(self.learner.common)  # the order of sums depends on it
                mine["precision"] = "bfloat16" if self.learner.bf16 else "float32"
                self.folder = RunFolder.open(out, mine, self.plan, resume=resume, overwrite=overwrite)
                self._go_on(self.folder, rows=cluster is None or not cluster.keeps_rows)
            if self.state.step == 0:
                if tables == "empty":
                    clear_rows(self.learner.embedders)
                elif tables is None and warm.kind == "none":
                    warn_of_rows(self.learner.embedders)
                warm.apply(self.learner)
                warm.warn_of_same_log(self.plan)
            self.seconds, self.steps = seconds, steps
            here = self.learner
            if cluster is None:
                self._train()
            else:
                self._train_elsewhere(cluster)
            self.learner.settle()
            self.learner.end_schedule()
            self.learner.keep_average()
            self._take_best()
            if isinstance(self.settings.calibrate, str):
                how = calibrate(self.learner, self.plan, self.split, self.settings, self.batch_size, self.overlap)
                self.evaluated = -1
            else:
                how = {}
            clocks, before = list(self.clocks.values()), self.before
            summary = summarize(self.learner, self.plan, self.settings, self.state, clocks, self.passes, before)
            summary |= how
            summary["servers"] = missing_shares(here)
            if self.by_rank:
                summary["ranks"] = self.by_rank
            summary["log_files"] = log_marks(self.plan)
            if self.foresight is not None:
                summary |= {"look_ahead": self.foresight.batches, "intermediate_bytes": self.foresight.bytes}
            if self.split.valid is not None:
                summary |= self._judge(look)
                warn_of_weights(summary["metrics"], self.settings)
                warn_of_young_rows(summary["metrics"], self.learner.tasks)
                summary["rows"]["valid"] = summary["metrics"]["rows"]
                if self.split.other is None:
                    summary["held"] = {"start": self.split.start, "stop": self.split.stop}
            if best_auc is not None:
                summary["metrics"]["best_auc"] = best_auc
            summary["stopped"] = self.callbacks.stopped or self._out_of_patience(summary.get("metrics", {}))
            self.learner.random_states = random_states(self.learner.model)
            if self.folder is not None:
                self.folder.finish(self.learner, summary)
            folder = self.folder.path if self.folder is not None and kept else None
            stored = out if isinstance(out, StoredFolder) else None
            if cluster is not None and cluster.keeps_rows:
                run = cluster.ended(self, summary, folder, stored)
            else:
                run = Run(self.plan, self.learner, summary, folder, stored)
            state = self.state
            self.callbacks.tell(
                "on_end", End(state.step, state.epoch, state.seen, run.metrics, summary["stopped"], run.folder)
            )
            return run
        except BaseException as error:
            self.callbacks.failed(Failure(self.state.step, self.state.epoch, self.state.seen, error))
            raise
        finally:
            self.watch.end()
            if self.folder is not None:
                self.folder.close()
            if self.aside is not None:
                self.aside.cleanup()

    def _train_elsewhere(self, cluster: OtherProcesses) -> None:
        """Train in other processes, which begin with a checkpoint and end with a checkpoint."""
        assert self.folder is not None
        self.before = self.state.seconds
        self.began = time.perf_counter() - self.before
        self.passes.begin(self._epochs(0))
        if not self.state.step and not self.state.epoch:
            if not self.continues:
                torch.manual_seed(self.settings.seed)
            self._checkpoint()
        cluster.train(self)
        if not cluster.keeps_rows:
            resumed, self.watch = self.watch, watcher(False)
            self._go_on(self.folder)
            self.watch = resumed
        self.folder.resumed_at = None

    def _train(self) -> None:
        if self.state.step == 0 and self.together.of == 1 and not self.continues:
            torch.manual_seed(self.settings.seed)
        self.before = self.state.seconds  # of the processes before this one
        self.began = time.perf_counter() - self.before
        self.saved = time.perf_counter()
        self.lately = Lately(self.piped, self.saved)
        self.passes.begin(self._epochs(self.state.position.get("row", 0)))
        with asked_to_end() as asked:
            for epoch in range(self.state.epoch, self.settings.epochs):
                if not self.state.finished:
                    with naming_rows(self.plan, 0, self.split.train_stop):
                        self._epoch(epoch, asked)
        self.learner.settle()
        self.state.seconds = time.perf_counter() - self.began

    def _judge(self, look: Look | None) -> dict[str, Any]:
        """Measure the final weights on the validation rows; with ``look``, also by time, slice and feature."""
        split = self.split
        assert split.valid is not None
        if look is not None:
            return judge(self.learner, split.valid, split.start, split.stop, self.batch_size, look)
        if self.evaluated != self.state.step:
            self.metrics = evaluate(self.learner, split, self.batch_size, self.overlap).result()
        return {"metrics": self.metrics}

    # ---- epochs
    def _epoch(self, epoch: int, asked: Asked) -> None:
        state, learn, every = self.state, self.clocks["learn"], self.settings.evaluate_every
        stages = self._looked(epoch)
        try:
            while True:
                began = time.perf_counter()
                item = next(stages, None)
                if self.overlap:  # Without it, the earlier stages work inside this call, and nobody waits.
                    learn.for_input += time.perf_counter() - began
                if item is None:
                    break
                handed, looked = item
                learned, loss, clicks, ending = learn.time(self._learn, handed, looked)
                if learned:
                    state.losses = [0.95 * state.losses[0] + 0.05 * loss, 0.95 * state.losses[1] + 0.05]
                    state.step += 1
                    state.seen += learned
                    learn.rows += learned
                    self._tell_step(loss)
                state.rows, state.position = handed.rows, asdict(handed.position)
                state.clicks += clicks
                self._report(handed.position.row)
                self._end_pass(self._epochs(handed.position.row))
                if every and learned and state.step % every == 0 and self._evaluate():
                    break
                if self._stopped():
                    break
                self._checkpoint_if_due(asked)
                if self._stopped():
                    break
                if ending:
                    self._checkpoint()
                    raise KeyboardInterrupt
        finally:
            stages.close()
        if not state.finished and self.task_labels is not None:
            self.task_labels.end_epoch(state.rows, self.plan, self.split.train_stop, self.together.sums)
        elif not state.finished:
            Labels(state.rows, state.clicks).check("training", self.plan, 0, self.split.train_stop)
        self._end_pass(epoch + 1)
        if epoch == 0:
            self._check_misses()
        state.epoch, state.rows, state.clicks, state.position = epoch + 1, 0, 0, {}
        self._record_loss()
        if not state.finished and not (every and state.step % every == 0):
            self._evaluate()
        self._stopped()
        self._checkpoint()
        self._stopped()

    def _check_misses(self) -> None:
        """Refuse Model Servers of which no key was found, and warn where many keys have no data."""
        check_found(self.learner)
        warn_of_misses(self.learner)

    def _looked(self, epoch: int) -> Generator[tuple[Handed, Looked | None], None, None]:
        """Yield the batches of an epoch from the current position, with their keys looked up ahead."""
        walk = self._walk(epoch)
        return run_stages(
            keyed(walk if self.foresight is None else self.foresight.walk(walk), self.learner, self.clocks["extract"]),
            self.clocks["extract"],
            [Stage(self.clocks["lookup"], self._announce)],
            ahead=self.ahead,
            overlap=self.overlap,
        )

    def _tell_step(self, loss: float) -> None:
        if self.callbacks.each_step:
            state, seconds = self.state, time.perf_counter() - self.began
            self.callbacks.step(Step(state.step, state.epoch, state.seen, loss, seconds))

    def _stopped(self) -> bool:
        """Whether a callback asked to stop. The training is then finished, also if it is resumed."""
        if self.callbacks.stopped is not None:
            self.state.finished = True
        return self.callbacks.stopped is not None

    def _learn(self, handed: Handed, looked: Looked | None) -> tuple[int, float, int, bool]:
        """Make one step. Return the rows learned, the mean loss and the clicks of all workers, and whether a signal asked one to
        end.
        """
        factor, state = self._next_factor(), self.state
        if self.together.of == 1:
            if looked is None:
                return 0, 0.0, handed.clicks, self.ending
            return looked.batch.rows, self.learner.learn(looked, factor), handed.clicks, self.ending
        # Of step and worker: a checkpoint need not hold the random state of each, and their number may change.
        torch.manual_seed((self.settings.seed * 0x9E3779B9 + state.step * 4096 + self.together.part) & (2**63 - 1))
        rows, loss, (clicks, ending) = self.learner.learn_part(looked, factor, (handed.clicks, float(self.ending)))
        return rows, loss, int(clicks), ending > 0

    def _next_factor(self) -> float:
        """Return the factor of the learning rates in the next step."""
        self.factor = factor_at(self.settings.schedule, self.state.step) * self.state.lr_factor
        return self.factor

    def _walk(self, epoch: int) -> Generator[Handed, None, None]:
        """Yield the batches of an epoch from the current position, with downsampled negatives."""
        s, state = self.settings, self.state
        start = Position(**state.position) if state.position else None
        part, of = self.together.part, self.together.of
        walk = self.plan.parts(
            self.batch_size, part, of, shuffle=s.shuffle, seed=s.seed + epoch, start=start, stop=self.split.train_stop
        )
        try:
            yield from self._handed(walk, epoch)
        finally:
            walk.close()

    def _handed(
        self, parts: Iterable[tuple[Batch, Position, int]], epoch: int, begun: tuple[int, int] | None = None
    ) -> Generator[Handed, None, None]:
        """Check and downsample the rows of this worker; ``parts`` is its part of each batch, as `Plan.parts` yields them.

        ``begun`` is the number of rows of the epoch and of steps before ``parts``, if batches before them are not learned yet.
        """
        s, part, of = self.settings, self.together.part, self.together.of
        done, number = begun or (self.state.rows, self.state.step)
        for batch, position, rows in parts:
            first, labels = done + rows * part // of, Labels()
            (self.task_labels or labels).add(facts(batch), first, "training")
            done += rows
            kept = thin(batch, first, s.negatives, s.seed, epoch)
            yield Handed(kept, position, done, labels.clicks, number)
            number += 1

    def _announce(self, item: tuple[Handed, Looked | None]) -> tuple[Handed, Looked | None]:
        handed, looked = item
        if looked is None:
            return item
        self.clocks["lookup"].rows += looked.batch.rows
        # Rows made ahead of an early stop would stay: the table would depend on how far ahead the stages were.
        ahead = self.settings.patience is None
        return handed, self.learner.announce(looked, prefetch=ahead, next_use=handed.next_use)

    # ---- now and then
    def _epochs(self, log_row: int) -> float:
        """Return the number of epochs that are done when the log is at this row."""
        return self.state.epoch + min(1.0, log_row / max(1, self.split.train_rows))

    def _end_pass(self, epochs: float) -> None:
        told, began = self.passes.end(epochs), time.perf_counter()
        if self.folder is not None:
            for kind, values in told.items():
                self.folder.record(kind, self.state.step, {"epoch": self.state.epoch, **values})
        self.passes.skip(time.perf_counter() - began)

    def _report(self, log_row: int) -> None:
        state, now = self.state, time.perf_counter()
        seconds = now - self.began
        rate = state.seen / seconds if seconds else 0.0
        if now - self.told > 0.1:
            self.told = now
            shares, queues = self.lately.look(now)
            self.watch.see(
                Progress(
                    rows=state.seen,
                    share=self._epochs(log_row) / self.settings.epochs,
                    loss=state.loss,
                    rows_per_second=rate,
                    seconds=seconds,
                    step=state.step,
                    epoch=state.epoch,
                    stages=shares,
                    queues=queues,
                )
            )
        if state.step == 1 or state.step % self.report_every == 0:
            self._record_loss()

    def _record_loss(self) -> None:
        """Record the training loss up to this step once. Which steps are recorded does not depend on time."""
        state = self.state
        if self.folder is None or state.step <= self.reported:
            return
        self.reported = state.step
        seconds = time.perf_counter() - self.began
        rates = {
            "rows_per_second": state.seen / seconds if seconds else 0.0,
            "lr": self.factor,
        }
        values = {"epoch": state.epoch, "rows": state.seen, "seconds": seconds, "loss": state.loss}
        self.folder.record("train", state.step, {**values, **rates})

    def _evaluate(self) -> bool:
        """Score the validation rows, and return whether the training should stop."""
        state, s, clock = self.state, self.settings, self.clocks["evaluate"]
        self.learner.settle()
        if self.split.valid is None:
            return False
        value = 0.0
        metrics = self._measure(self.split)
        if metrics is not None:
            self.metrics, self.evaluated = metrics, state.step
            clock.rows += int(metrics["rows"])
            self.watch.evaluated(metrics)
            if self.folder is not None:
                self.folder.record("valid", state.step, {**tracked(metrics), "epoch": state.epoch, "rows": state.seen})
            value = watched(metrics, s.monitor)
        value = self.together.sums([value])[0]
        unknown = value != value
        better = not unknown and (state.best is None or value < state.best)
        if unknown:
            self._warn_of_unknown()
        elif better:
            state.best, state.best_step, state.since_best = value, state.step, 0
            if s.patience is not None:
                self._keep_best()
        else:
            state.since_best += 1
        if isinstance(s.schedule, ReduceOnPlateau) and not unknown:
            s.schedule.evaluated(state, value)
        state.finished = s.patience is not None and state.since_best >= s.patience
        if self.leads:
            self.callbacks.tell("on_evaluate", Evaluation(state.step, state.epoch, state.seen, self.metrics, better))
        return state.finished or self._stopped()

    def _measure(self, split: Split) -> dict[str, float] | None:
        """Return the metrics of the validation rows; None in a worker that leaves this to worker 0."""
        if not self.leads:
            return None
        with self.passes.paused(), self.learner.averaged():
            scores = self.clocks["evaluate"].time(evaluate, self.learner, split, self.batch_size, self.overlap)
        found: dict[str, float] = scores.result()
        return found

    def _keep_best(self) -> None:
        """Write the weights, which are the best so far, into a folder from which they are loaded at the end."""
        if self.leads:
            learner, about = self.learner, {"step": self.state.step}
            with learner.averaged():
                write_weights(self._best(), about, learner.held, random=True)

    def _warn_of_unknown(self) -> None:
        """Warn once that an evaluation without a value counts neither as better nor as worse."""
        waiting = [] if self.settings.patience is None else ["patience="]
        if isinstance(self.settings.schedule, ReduceOnPlateau):
            waiting.append("ReduceOnPlateau")
        if not waiting or not self.leads or self.warned:
            return
        self.warned = True
        name = watched_name(self.metrics, self.settings.monitor)
        warnings.warn(
            f"{name} of the validation rows is not a number (NaN) after step {self.state.step:,}, so "
            f"{' and '.join(waiting)} cannot tell if training improves; this evaluation does not count. AUC needs rows with and "
            "without clicks, and a weighted figure needs weights above 0: choose other validation rows with "
            "valid=, or another figure with monitor=, such as 'logloss'",
            stacklevel=2,
        )

    def _out_of_patience(self, metrics: Mapping[str, float]) -> str | None:
        """Return why training stopped before its last epoch, if ``patience=`` stopped it."""
        patience, state = self.settings.patience, self.state
        if patience is None or state.since_best < patience:
            return None
        name = watched_name(metrics, self.settings.monitor)
        return f"patience: {name} of the validation rows was best after step {state.best_step:,}, {patience:,} evaluations ago"

    @property
    def leads(self) -> bool:
        """Whether this is the worker that evaluates and keeps the run folder."""
        return self.together.part == 0

    def _best(self) -> Path:
        """Return the folder in which the best weights so far are kept until the end."""
        if self.folder is not None:
            return self.folder.best
        if self.aside is None:
            self.aside = tempfile.TemporaryDirectory(prefix="ctrbox-best-")
        return Path(self.aside.name) / "best"

    def _take_best(self) -> None:
        if (
            self.settings.patience is not None
            and self.state.best is not None
            and self.state.best_step < self.state.step
        ):
            learner = self.learner
            read_weights(self._best(), read_state(self._best()), learner.held)
            self.evaluated = -1

    # ---- checkpoints
    def _checkpoint_if_due(self, asked: Asked) -> None:
        if self.folder is not None:
            now = time.perf_counter()
            due = now - self.saved > self.seconds or (self.steps and self.state.step % self.steps == 0)
            if due or asked.by is not None:
                self._checkpoint()
        if asked.by is not None:
            end_as_asked(asked)

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        self.learner.settle()
        self.state.seconds = time.perf_counter() - self.began
        began = time.perf_counter()
        self.clocks["checkpoint"].time(self.folder.checkpoint, self.learner, self.state.step, asdict(self.state))
        self.saved = time.perf_counter()
        self.passes.skip(self.saved - began)
        path = checkpoint_path(self.folder.path / "checkpoints", self.state.step)
        self.callbacks.tell("on_checkpoint", Checkpoint(self.state.step, self.state.epoch, path))

    def _go_on(self, folder: RunFolder, rows: bool = True) -> None:
        """Restore the newest checkpoint, if there is one. Without ``rows``, restore the state of the training but not the
        tables.
        """
        wrong: list[str] = []
        for place, kept in folder.whole_checkpoints(wrong):
            try:
                state, learner = state_of(kept.get("state")), self.learner
                if rows:
                    read_weights(place, kept, learner.held, learner.average)
            except (CtrboxError, *BROKEN) as error:
                wrong.append(f"{place} is damaged: {error}")
                continue
            self.state, self.reported = state, state.step
            folder.goes_on_after(state.step)
            self.watch.resumed(state.step, state.seen)
            return
        if wrong:
            raise DataError(
                f"no checkpoint in {folder.shown} can be used: {wrong[0]}. To start over, use overwrite=True"
            )
        folder.goes_on_after(-1)
