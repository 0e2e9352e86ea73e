"""When a training evaluates, writes checkpoints, tells its progress and stops: step by step, in trainings of a few rows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.callbacks import Callback
from ctrbox.errors import DataError, PlanError
from ctrbox.train.evaluation import Split
from ctrbox.train.fit import Fit
from ctrbox.train.progress_line import Progress, watcher
from ctrbox.train.sampling import thin
from ctrbox.train.settings import Settings
from tests.train.test_sparse_training import told_at_every_step

ROWS, BATCH = 100, 10


def planned(clicked: Any = None, rows: int = ROWS) -> cb.Plan:
    rng = np.random.default_rng(4)
    labels = (rng.random(rows) < 0.4).astype(np.int8) if clicked is None else clicked
    log = pa.table({"id": np.arange(rows), "user": rng.integers(0, 10, rows), "clicked": labels})
    return cb.compile(
        cb.View(log, key="id"), cb.FeatureSet(label=col("clicked"), sparse={"user": col("user")}), threads=1
    )


class Notes(Callback):
    """The steps at which something happened."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.steps: list[tuple[int, int, int]] = []
        self.evaluations: list[tuple[int, int, float, bool]] = []
        self.checkpoints: list[int] = []
        self.ends: list[Any] = []

    def on_step(self, event: Any) -> None:
        self.steps.append((event.step, event.epoch, event.rows))
        if event.step == self.stop_at:
            raise cb.callbacks.StopTraining("enough")

    def on_evaluate(self, event: Any) -> None:
        self.evaluations.append((event.step, event.epoch, event.metrics["logloss"], event.best))

    def on_checkpoint(self, event: Any) -> None:
        self.checkpoints.append(event.step)
        assert (event.path / "state.json").exists()

    def on_end(self, event: Any) -> None:
        self.ends.append(event)


def fitted(notes: Notes, plan: cb.Plan | None = None, lr: float = 0.05, **options: Any) -> cb.Run:
    plan = planned() if plan is None else plan
    torch.manual_seed(0)
    trainer = cb.Trainer(cb.models.LR(plan.schema), cb.MemoryTable(0, optimizer=cb.optim.SGD(lr=lr)), threads=1)
    usual = {"valid": 0.1, "epochs": 2, "batch_size": BATCH, "callbacks": [notes], "explain": False}
    return trainer.fit(plan, **{**usual, **options})


@pytest.mark.parametrize(
    ("every", "steps"),
    [(None, [9, 18]), (4, [4, 8, 9, 12, 16, 18]), (9, [9, 18]), (1, [*range(1, 19)]), (100, [9, 18])],
)
def test_evaluations_come_every_so_many_steps_and_at_the_end_of_each_epoch(every: int | None, steps: list[int]) -> None:
    notes = Notes()
    run = fitted(notes, evaluate_every=every)
    assert [step for step, *_ in notes.evaluations] == steps
    losses = [loss for _, _, loss, _ in notes.evaluations]
    assert [best for *_, best in notes.evaluations] == [
        all(loss < before for before in losses[:k]) for k, loss in enumerate(losses)
    ]
    assert run.summary["best_step"] == steps[int(np.argmin(losses))]
    assert run.metrics["logloss"] == losses[-1]


def test_steps_are_told_with_epochs_and_rows() -> None:
    notes = Notes()
    run = fitted(notes)
    assert notes.steps == [(k, (k - 1) // 9, BATCH * k) for k in range(1, 19)]
    assert [(one.step, one.epoch, one.rows, one.stopped, one.folder) for one in notes.ends] == [
        (18, 2, 180, None, None)
    ]
    assert notes.checkpoints == []
    assert run.summary["stopped"] is None


@pytest.mark.parametrize(("every", "steps"), [(None, [9, 18]), (4, [4, 8, 9, 12, 16, 18]), (9, [9, 9, 18, 18])])
def test_checkpoints_come_every_so_many_steps_and_at_the_end_of_each_epoch(
    every: int | None, steps: list[int], tmp_path: Path
) -> None:
    notes = Notes()
    fitted(notes, checkpoint_steps=every, checkpoint_seconds=1e9, out=tmp_path / "run")
    assert notes.checkpoints == steps
    assert notes.ends[0].folder == tmp_path / "run"
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("seconds", "steps"), [(1e-9, [*range(1, 10), 9, *range(10, 19), 18]), (1e9, [9, 18]), (math.inf, [9, 18])]
)
def test_checkpoints_come_every_so_many_seconds(seconds: float, steps: list[int], tmp_path: Path) -> None:
    notes = Notes()
    fitted(notes, checkpoint_seconds=seconds, out=tmp_path / "run")
    assert notes.checkpoints == steps


class Interrupts(Notes):
    """Presses Ctrl-C after the first checkpoint, which it reads before."""

    def on_checkpoint(self, event: Any) -> None:
        super().on_checkpoint(event)
        self.kept = json.loads((event.path / "state.json").read_text())["state"]
        raise KeyboardInterrupt


def test_a_resumed_training_counts_the_seconds_and_steps_before_it(tmp_path: Path) -> None:
    first, second = Interrupts(), Notes()
    with pytest.raises(KeyboardInterrupt):
        fitted(first, checkpoint_steps=4, out=tmp_path / "run")
    assert (first.kept["step"], first.kept["seen"], first.kept["rows"], first.kept["epoch"]) == (4, 40, 40, 0)
    seconds: list[float] = []
    second.on_step = lambda event: seconds.append(event.seconds)  # type: ignore[method-assign]
    began = time.perf_counter()
    run = fitted(second, checkpoint_steps=4, out=tmp_path / "run")
    took = time.perf_counter() - began
    assert len(seconds) == 14
    before = first.kept["seconds"]
    assert 0 < before < seconds[0] < seconds[-1] <= run.summary["seconds"] < before + took
    assert run.summary["steps"] == 18
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in told] == [*range(1, 19)]
    assert [line["rows"] for line in told] == [BATCH * k for k in range(1, 19)]
    assert all(line["rows_per_second"] == pytest.approx(line["rows"] / line["seconds"]) for line in told)


@pytest.mark.parametrize("patience", [1, 2])
def test_patience_counts_evaluations_without_improvement_and_the_best_weights_come_back(patience: int) -> None:
    notes = Notes()
    run = fitted(notes, lr=1.0, patience=patience, evaluate_every=1, epochs=20)
    losses = [loss for _, _, loss, _ in notes.evaluations]
    best = int(np.argmin(losses))
    assert len(losses) == best + 1 + patience  # so many after the best one, then it ends
    assert run.summary["steps"] == best + 1 + patience
    assert run.metrics["logloss"] == pytest.approx(losses[best])
    words = "evaluations ago"
    assert run.summary["stopped"] == (
        f"patience: logloss of the validation rows was best after step {best + 1:,}, {patience} {words}"
    )


@pytest.mark.parametrize("stop_at", [1, 9, 13])
def test_a_callback_ends_the_training_after_its_step(stop_at: int, tmp_path: Path) -> None:
    notes = Notes(stop_at)
    run = fitted(notes, out=tmp_path / "run")
    assert run.summary["steps"] == stop_at
    assert run.summary["stopped"] == "enough" == notes.ends[0].stopped
    assert run.metrics["rows"] == 10


def test_progress_is_the_share_of_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    told_at_every_step(monkeypatch)

    class Sees:
        def __init__(self) -> None:
            self.seen: list[Progress] = []
            self.evaluations = self.ended = 0

        def see(self, progress: Progress) -> None:
            self.seen.append(progress)

        def evaluated(self, metrics: Any) -> None:
            self.evaluations += 1

        def resumed(self, step: int, rows: int) -> None: ...

        def end(self) -> None:
            self.ended += 1

    watch = Sees()
    fitted(Notes(), progress=watch)
    assert [p.step for p in watch.seen] == [*range(1, 19)]
    assert [p.share for p in watch.seen] == pytest.approx([k / 18 for k in range(1, 19)])
    assert [p.epoch for p in watch.seen] == [0] * 9 + [1] * 9
    assert [p.rows for p in watch.seen] == [BATCH * k for k in range(1, 19)]
    assert all(p.rows_per_second == pytest.approx(p.rows / p.seconds) for p in watch.seen)
    assert (watch.evaluations, watch.ended) == (2, 1)


def test_thinned_negatives_are_the_same_in_every_run_and_others_in_every_epoch() -> None:
    first, second, third = Notes(), Notes(), Notes()
    for notes, seed in ((first, 1), (second, 1), (third, 2)):
        fitted(notes, negatives=0.5, seed=seed)
    rows = [np.diff([0, *(seen for *_, seen in notes.steps)]).tolist() for notes in (first, second, third)]
    assert rows[0] == rows[1] != rows[2]
    assert rows[0][:9] != rows[0][9:]
    assert all(0 < n <= BATCH for n in rows[0])


# ---- workers


class OneOfTwo:
    """The second of two workers, of which the other never says anything."""

    part, of = 1, 2

    def sums(self, values: Sequence[float]) -> list[float]:
        return [float(v) for v in values]

    def add_up(self, weights: Sequence[torch.Tensor], scale: float) -> None: ...

    def leave(self) -> None: ...


def test_a_worker_takes_its_part_of_each_batch_and_names_rows_of_the_log() -> None:
    labels = np.arange(40) % 2
    labels[36] = 2
    plan = planned(labels, 40)
    settings = Settings(batch_size=16, valid=0.0)
    trainer = cb.Trainer(cb.models.LR(plan.schema), threads=1)
    fit = Fit(trainer, plan, Split.of(plan, None, settings), settings, False, 2, watcher(False), OneOfTwo())
    assert not fit.leads
    walk = fit._walk(0)
    for number, done in ((0, 16), (1, 32)):
        handed = next(walk)
        assert (handed.number, handed.rows, handed.batch.rows, handed.clicks) == (number, done, 8, 4)
    with pytest.raises(DataError, match=r"the label is 2.0 in row 36 of the training rows"):
        next(walk)


def begun(other: Any = None, **settings: Any) -> Fit:
    plan = planned()
    chosen = Settings(batch_size=16, valid=0.2, **settings)
    trainer = cb.Trainer(cb.models.LR(plan.schema), threads=1)
    more = () if other is None else (other,)
    return Fit(trainer, plan, Split.of(plan, None, chosen), chosen, False, 2, watcher(False), *more)


@pytest.mark.parametrize("epoch", [0, 3])
def test_each_epoch_is_shuffled_by_its_seed_and_thinned_by_its_number(epoch: int) -> None:
    fit = begun(shuffle=48, seed=7, negatives=0.5)
    first, rows = 0, 0
    parts = fit.plan.parts(16, 0, 1, shuffle=48, seed=7 + epoch, stop=80)
    for (batch, position, count), handed in zip(parts, fit._walk(epoch), strict=True):
        kept = thin(batch, first, 0.5, 7, epoch)
        first, rows = first + batch.rows, rows + kept.rows
        assert (handed.position, handed.rows, handed.clicks) == (position, first, int(batch.label.sum()))  # type: ignore[union-attr]
        assert handed.batch.sparse["user"].values.tobytes() == kept.sparse["user"].values.tobytes()
        assert count == batch.rows
    assert first == 80 > rows


@pytest.mark.parametrize(("seed", "step"), [(0, 0), (5, 0), (5, 3), (2**62, 7)])
def test_each_step_of_each_worker_draws_random_numbers_of_its_own(seed: int, step: int) -> None:
    fit = begun(OneOfTwo(), seed=seed)
    fit.state.step = step
    handed: Any = SimpleNamespace(clicks=4)
    assert fit._learn(handed, None) == (0, 0.0, 4, False)
    assert torch.initial_seed() == (seed * 0x9E3779B9 + step * 4096 + 1) % 2**63
    fit.ending = True
    assert fit._learn(handed, None)[3]


def test_epochs_that_are_done_are_a_share_of_the_training_rows() -> None:
    fit = begun()
    fit.state.epoch = 2
    assert [fit._epochs(row) for row in (0, 20, 80, 90)] == [2.0, 2.25, 3.0, 3.0]


def test_looking_ahead_needs_a_table_on_disk_and_no_patience() -> None:
    with pytest.raises(PlanError, match="look_ahead= cannot be used with patience="):
        fitted(Notes(), look_ahead=2, patience=1)
    with pytest.raises(PlanError, match=r"look_ahead= needs a cb.SparseTable, but this training has none"):
        fitted(Notes(), look_ahead=2)


def test_an_intercept_is_fitted_to_the_validation_rows() -> None:
    run = fitted(Notes(), calibrate="intercept")
    assert run.metrics["calibration"] == pytest.approx(1.0, abs=1e-5)
    assert run.summary["logit_shift"] == run.learner.shift != 0
    moved = fitted(Notes(), calibrate=0.5)
    plain = fitted(Notes())
    assert moved.learner.shift == 0.5
    p, q = (one.predict(pa.table({"id": [0], "user": [3]}))[0] for one in (plain, moved))
    assert math.log(q / (1 - q)) - math.log(p / (1 - p)) == pytest.approx(0.5, abs=1e-4)
