"""Studies over a job: the space that it declares, what a trial may train, and how trials are told and ranked."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.errors import CtrboxError, PlanError, TrainError, WriteError
from ctrbox.train.tuning import Study, best_of, check_metric, chosen, direction_of, fresh_table, space_of
from tests.train.test_checks_of_several_labels import CLICK, VALUE, VISITS, schema
from tests.train.test_small_fit import planned


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    return planned()


# ---- the space of a job


@pytest.mark.parametrize(
    ("tune", "told"),
    [
        (None, 'job.py declares no search space; define a function from a trial to what it trains: def tune(trial): return {"'),
        (3, "`tune` in job.py must be a function of a trial, got int"),
        (lambda: {"clip": 1.0}, "`tune` in job.py must take one argument, the trial; it takes 0"),
        (lambda trial=1: {}, "`tune` in job.py must take one argument, the trial; it takes 0"),
        (lambda trial, plan: {}, "`tune` in job.py must take one argument, the trial; it takes 2"),
    ],
)  # fmt: skip
def test_a_space_is_a_function_of_one_trial(tune: Any, told: str) -> None:
    with pytest.raises(PlanError, match=re.escape(told)):
        space_of(tune, "job.py")


def test_a_space_may_have_further_arguments_with_values_of_their_own() -> None:
    space = lambda trial, dim=4: {"dim": dim}
    assert space_of(space, "job.py") is space


def test_what_a_trial_trains_is_parts_and_arguments_of_fit() -> None:
    given = {"model": 1, "clip": 2.0, "table": None, "optimizer": 3, "negatives": 0.5}
    assert chosen(lambda trial: {**given, "seed": trial}, 7) == (
        {"model": 1, "table": None, "optimizer": 3},
        {"clip": 2.0, "negatives": 0.5, "seed": 7},
    )
    with pytest.raises(PlanError, match="`tune` returned a list; expected a dict with 'model', 'table' or settings of"):
        chosen(lambda trial: [], 7)
    for name, near in (("clipp", "; nearest: 'clip'"), ("out", ""), ("self", ""), ("callbacks", ""), ("plan", "")):
        with pytest.raises(PlanError) as caught:
            chosen(lambda trial, name=name: {name: 1}, 7)
        words = str(caught.value)
        assert words.startswith(f"`tune` returned {name!r}, which is not part of a trial{near}")
        allowed = words.partition("it may return ")[2].split(", ")
        assert allowed[:3] == ["model", "table", "optimizer"]
        assert "clip" in allowed
        assert not {"self", "unknown", "plan", "out", "resume", "overwrite", "progress", "callbacks", "cluster"} & {
            *allowed
        }


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("logloss", "minimize"),
        ("auc", "maximize"),
        ("gauc", "maximize"),
        ("rig", "maximize"),
        ("loss", "minimize"),
        ("click.auc", "maximize"),
        ("click.gauc", "maximize"),
        ("click.logloss", "minimize"),
        ("value.rmse", "minimize"),
        ("value.mae", "minimize"),
        ("visits.deviance", "minimize"),
        ("rmse", None),
        (".auc", None),
        ("a.b.auc", None),
        ("click.rig", None),
    ],
)
def test_a_metric_is_minimized_or_maximized(metric: str, direction: str | None) -> None:
    if direction is not None:
        assert direction_of(metric) == direction
        return
    with pytest.raises(
        PlanError, match=f"metric must be one of logloss, auc, gauc, rig, got '{metric}'.*such as click.auc"
    ):
        direction_of(metric)


def test_a_study_needs_a_metric_of_the_labels_of_its_job() -> None:
    def of(*tasks: Any) -> Any:
        return type("Plan", (), {"schema": schema(*tasks)})

    for metric in ("logloss", "auc", "gauc", "rig"):
        check_metric(metric, of())
        with pytest.raises(PlanError, match=f"several labels, so its trials are not compared by '{metric}'"):
            check_metric(metric, of(CLICK, VALUE))
    for metric in ("loss", "click.auc", "value.rmse"):
        check_metric(metric, of(CLICK, VALUE))
        with pytest.raises(
            PlanError, match=f"'{metric}' is a metric of several labels; this job has one, so use logloss"
        ):
            check_metric(metric, of())
    with pytest.raises(
        PlanError, match=r"nearest: 'visits.mae'; use --metric with one of loss, visits.deviance, visits.rmse"
    ):
        check_metric("visit.mae", of(VISITS))


def test_a_table_that_is_no_memory_table_is_made_in_each_trial(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 2, ram="1MB") as table, pytest.raises(
        PlanError, match="a SparseTable defined in the job would carry rows from one trial to the next; create a table inside"
    ):  # fmt: skip
        fresh_table(table)
    mine, other = cb.MemoryTable(2), cb.MemoryTable(3)
    found = fresh_table({"a": mine, "b": other, "c": mine})
    assert found["a"] is found["c"] is not mine
    assert (found["a"].dim, found["b"].dim) == (2, 3)


# ---- trials


def interrupted(trial: Any) -> dict[str, Any]:
    raise KeyboardInterrupt


def study(folder: Path, metric: str = "logloss") -> Study:
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'ctrbox[tune]'")
    return Study(folder, metric)


def run(mine: Study, plan: cb.Plan, tune: Callable[[Any], Any], trials: int = 1, **more: Any) -> list[str]:
    told: list[str] = []
    options: dict[str, Any] = {"model": cb.models.LR(plan.schema), "settings": {"batch_size": 50, "valid": 0.3}}
    mine.run(tune, plan, trials=trials, tell=told.append, threads=1, **{**options, **more})
    return told


def test_trials_are_ranked_by_their_metric_and_told_in_one_line(tmp_path: Path, plan: cb.Plan) -> None:
    rates = [0.001, 1.0, 0.1]

    def tune(trial: Any) -> dict[str, Any]:
        trial.suggest_int("dim", 4, 4)
        lr = trial.suggest_float("lr", rates[trial.number], rates[trial.number])
        return {"table": cb.MemoryTable(0, optimizer=cb.optim.SGD(lr=lr))}

    for metric, sign in (("logloss", 1), ("auc", -1)):
        mine = study(tmp_path / metric, metric)
        told = run(mine, plan, tune, trials=3)
        values = [t.value for t in mine.study.trials]
        assert [t.value for t in mine.done] == sorted(values, key=lambda v, sign=sign: sign * v)
        assert told == [
            f"trial {k}    complete  {f'{metric} {values[k]:.5f}':<18} dim=4, lr={rates[k]:.4g}" for k in range(3)
        ]
        best = best_of(tmp_path / metric, lambda trial: {"clip": trial.suggest_float("lr", 0, 2), "seed": trial.number})
        assert best == ({}, {"clip": rates[mine.done[0].number], "seed": mine.done[0].number})


def test_trials_have_the_precision_and_the_common_features_of_the_job(tmp_path: Path, plan: cb.Plan) -> None:
    mine, table = study(tmp_path / "s"), {"table": cb.MemoryTable(0)}
    (told,) = run(mine, plan, lambda trial: table, common=["nobody"])
    assert "common names 'nobody', which the model does not read" in told
    run(mine, plan, lambda trial: table, bf16=True)
    assert mine.of_trainer == {"bf16": True, "common": ()}


def test_a_trial_that_fails_is_told_with_its_reason_and_the_next_one_begins(tmp_path: Path, plan: cb.Plan) -> None:
    full = cb.MemoryTable(0)
    full.open(Row(0, True))
    full.pull(np.array([1, 2, 3]))
    asked: list[dict[str, Any]] = [
        {"clip": -1.0},
        {"valid": 0.0},
        {"table": full},
        {"table": {"user": full}},
        {"model": None},
        {"table": None},
    ]
    mine = study(tmp_path / "s")
    told = run(mine, plan, lambda trial: asked[trial.number], trials=6)
    rows = "already holds 3 rows from another trial; create a new table for each trial, such as cb.SparseTable"
    expected = [
        "trial 0 failed: clip must be a number above 0",
        "trial 1 failed: trials are compared on validation rows, but this job has none; set valid= to a share of the log",
        f"trial 2 failed: the table of trial 2 {rows}",
        f"trial 3 failed: the table of trial 3 {rows}",
        "trial 4 failed: neither the job nor `tune` defines a model; define `model` in the job, or return",
        "trial 5    complete  logloss ",
    ]
    assert [line[: len(words)] for line, words in zip(told, expected, strict=True)] == expected
    assert mine.line(0).startswith("trial 0    fail      " + " " * 19 + "  (clip must be a number above 0")
    assert [t.state.name for t in mine.study.trials] == ["FAIL"] * 5 + ["COMPLETE"]
    assert [t.number for t in mine.done] == [5]


def test_errors_of_the_function_are_told_with_their_line_and_a_pruned_trial_is_no_failure(
    tmp_path: Path, plan: cb.Plan
) -> None:
    mine = study(tmp_path / "s", "gauc")  # which a plan without groups does not have

    def tune(trial: Any) -> dict[str, Any]:
        if trial.number == 0:
            raise ValueError("of two\n  lines")
        if trial.number == 1:
            raise mine.optuna.TrialPruned
        if trial.number == 2:
            int("x")
        return {}

    line = tune.__code__.co_firstlineno
    told = run(mine, plan, tune, trials=4)
    here = Path(__file__).name
    assert told == [
        f"trial 0 failed: `tune` raised ValueError at {here}:{line + 2}: of two lines",
        "trial 1    pruned    " + " " * 19,
        f"trial 2 failed: `tune` raised ValueError at {here}:{line + 6}: invalid literal for int() with base 10: 'x'",
        "trial 3    fail      " + " " * 19 + "  (gauc is nan)",
    ]
    with pytest.raises(KeyboardInterrupt):
        run(mine, plan, interrupted)
    assert mine.study.trials[4].state.name == "FAIL"
    assert mine.done == []
    with pytest.raises(CtrboxError, match="neither the job nor `tune` defines a model"):
        mine._train(mine.study.ask(), lambda trial: {}, plan, None, None, None, {}, None, None)
    elsewhere = partial(setattr, mine)  # lacks a value, and is written in no file
    with pytest.raises(TrainError, match=r"^`tune` raised TypeError: "):
        mine._train(mine.study.ask(), elsewhere, plan, None, None, None, {}, None, None)


def test_reading_the_best_trial_leaves_the_trial_that_another_process_trains(tmp_path: Path) -> None:
    mine = study(tmp_path / "s", "auc")
    mine.study.tell(mine.study.ask(), 0.5)
    running = mine.study.ask()
    assert best_of(tmp_path / "s", lambda trial: {"seed": trial.number}) == ({}, {"seed": 0})
    mine.study.tell(running, 0.7)
    assert [t.value for t in mine.done] == [0.7, 0.5]


def test_a_second_process_is_refused_while_one_adds_trials(tmp_path: Path, plan: cb.Plan) -> None:
    refused = (
        f"^cannot add trials to the study in {tmp_path}/s: another process is doing so; stop that process, or choose "
    )

    def tune(trial: Any) -> dict[str, Any]:
        with pytest.raises(WriteError, match=refused + "another folder$"):
            run(study(tmp_path / "s"), plan, lambda trial: {})
        return {}

    mine = study(tmp_path / "s")
    for _ in range(2):
        run(mine, plan, tune)
    assert [t.state.name for t in mine.study.trials] == ["COMPLETE"] * 2
    with pytest.raises(KeyboardInterrupt):
        run(mine, plan, interrupted)
    run(study(tmp_path / "s"), plan, lambda trial: {})
    assert [t.state.name for t in mine.study.trials] == ["COMPLETE"] * 2 + ["FAIL", "COMPLETE"]


HANGS = """
import sys, time
from pathlib import Path
import ctrbox as cb
from ctrbox.train.tuning import Study
from tests.train.test_small_fit import planned

def tune(trial):
    print("a trial is running", flush=True)
    time.sleep(60)

Study(Path(sys.argv[1]), "logloss").run(tune, planned(), model=None, settings={}, trials=1)
"""


def test_a_study_goes_on_after_its_process_was_killed_in_a_trial(tmp_path: Path, plan: cb.Plan) -> None:
    mine = study(tmp_path / "s")
    command = [sys.executable, "-c", HANGS, str(tmp_path / "s")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "a trial is running\n"
            with pytest.raises(WriteError, match="another process is doing so"):
                run(mine, plan, lambda trial: {})
            assert [t.state.name for t in mine.study.trials] == ["RUNNING"]
        finally:
            other.kill()
    run(mine, plan, lambda trial: {})
    assert [t.state.name for t in mine.study.trials] == ["FAIL", "COMPLETE"]


def test_what_a_process_left_unfinished_is_marked_and_a_resumed_study_draws_other_numbers(
    tmp_path: Path, plan: cb.Plan
) -> None:
    def drawn(mine: Study) -> float:
        return float(mine.study.ask().suggest_float("x", 0, 1))

    first = drawn(study(tmp_path / "s"))
    again = study(tmp_path / "s")
    run(again, plan, lambda trial: {}, trials=0)
    assert [t.state.name for t in again.study.trials] == ["FAIL"]
    assert len({first, drawn(again), drawn(study(tmp_path / "s")), drawn(study(tmp_path / "s"))}) == 4
    assert drawn(study(tmp_path / "other")) == first
    with pytest.raises(PlanError, match="is a URL, but a study can only be on a local disk"):
        study(Path("s3://bucket/study"))
