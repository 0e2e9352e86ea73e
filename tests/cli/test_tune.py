"""`ctrbox tune`: a study over a job, trials that fail or are pruned, a study that is gone on with, a tuned training."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from ctrbox.cli import train as training_command
from ctrbox.cli import tune as tuning_command
from ctrbox.cli.terminal import Mistake
from ctrbox.errors import CtrboxError, DeviceError
from ctrbox.train.progress_line import Progress, Silent, watcher
from ctrbox.train.tuning import Study

pytest.importorskip("optuna", reason="optuna is not installed: pip install 'ctrbox[tune]'")

JOB = """\
import numpy as np
import pyarrow as pa
import ctrbox as cb
from ctrbox import col

rng = np.random.default_rng(0)
user, ad = rng.integers(0, 30, 1500), rng.integers(0, 40, 1500)
clicked = (rng.random(1500) < 1 / (1 + np.exp(-((user % 5) - (ad % 4))))).astype(np.int64)
log = cb.View(pa.table({"id": np.arange(1500), "user": user, "ad": ad, "clicked": clicked}), key="id")
features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user"), "ad": col("ad")})
plan = cb.compile(log, features, threads=1)
model = cb.models.LR(plan.schema)
settings = {"batch_size": 100}
"""
SPACE = """
def tune(trial):
    lr = trial.suggest_float("lr", 0.01, 1.0, log=True)
    return {"table": cb.MemoryTable(0, optimizer=cb.Adagrad(lr=lr)), "clip": trial.suggest_float("clip", 0.5, 2.0)}
"""


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def called(text: str, **options: Any) -> tuple[str, str]:
        Path("job.py").write_text(text)
        capfd.readouterr()
        tuning_command.tune(Path("job.py"), **options)
        found = capfd.readouterr()
        return found.out, found.err

    return called


def test_a_study_tries_prunes_resumes_and_trains_its_best(tune: Any, capfd: pytest.CaptureFixture[str]) -> None:
    stdout, _ = tune(JOB + SPACE, trials=7, evaluate_every=2, as_json=True)
    found = json.loads(stdout)
    assert len(found["trials"]) == 7
    states = [t["state"] for t in found["trials"]]
    assert set(states) <= {"complete", "pruned"}
    assert states.count("complete") >= 4
    done = [t for t in found["trials"] if t["state"] == "complete"]
    assert found["value"] == min(t["value"] for t in done)
    assert found["best"] in [t["params"] for t in done if t["value"] == found["value"]]
    assert len({json.dumps(t["params"]) for t in found["trials"]}) == 7
    stdout, told = tune(JOB + SPACE, trials=2)
    assert "tune/job holds 7 trials; 2 are added" in told
    assert len(stdout.splitlines()) == 9
    assert "next: ctrbox train job.py --tuned tune/job" in told
    training_command.train(Path("job.py"), tuned=Path("tune/job"), as_json=True)
    trained = json.loads(capfd.readouterr().out)
    best = Study(Path("tune/job"), "logloss").done[0]
    assert trained["settings"]["clip"] == best.params["clip"]
    assert "--tuned tune/job" in Path("runs/job/report.html").read_text(encoding="utf-8")


def test_failed_and_nan_trials_are_recorded_and_the_others_go_on(tune: Any) -> None:
    space = """
def tune(trial):
    kind = trial.suggest_categorical("kind", ["good", "bad"])
    if trial.number in (0, 2):
        return {"clip": -1.0}
    return {"clip": 1.0}
"""
    stdout, told = tune(JOB + space, trials=4, as_json=True)
    found = json.loads(stdout)
    assert [t["state"] for t in found["trials"]] == ["fail", "complete", "fail", "complete"]
    assert "trial 0 failed: clip must be a number above 0" in told
    with pytest.raises(Mistake, match="none of the 3 trials in other was completed: gauc is nan"):
        tune(JOB + SPACE, trials=3, metric="gauc", out=Path("other"))


def test_an_exception_in_tune_fails_that_trial_alone(tune: Any) -> None:
    space = """
def tune(trial):
    trial.suggest_float("lr", 0.01, 1.0)
    if trial.number == 0:
        raise RuntimeError("no such model")
    if trial.number == 1:
        import optuna
        raise optuna.TrialPruned
    return {}
"""
    stdout, told = tune(JOB + space, trials=3, as_json=True)
    assert [t["state"] for t in json.loads(stdout)["trials"]] == ["fail", "pruned", "complete"]
    assert re.search(r"trial 0 failed: `tune` raised RuntimeError at job\.py:\d+: no such model", told)
    with pytest.raises(KeyboardInterrupt):
        tune(JOB + space.replace('RuntimeError("no such model")', "KeyboardInterrupt"), out=Path("ended"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "declares no search space; define a function from a trial"),
        ("tune = 3", "`tune` in job.py must be a function of a trial, got int"),
        ("def tune(): return {}", "must take one argument, the trial; it takes 0"),
    ],
)
def test_a_job_without_a_space_is_told_how_to_declare_one(tune: Any, text: str, words: str) -> None:
    with pytest.raises(CtrboxError, match=words):
        tune(JOB + text)
    assert not Path("tune").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def tune(trial): return 3", "`tune` returned a int; expected a dict"),
        (
            "def tune(trial): return {'clipp': 1.0}",
            "`tune` returned 'clipp', which is not part of a trial; nearest: 'clip'",
        ),
        (
            "table = cb.SparseTable('params', 0, ram='4MB')\ndef tune(trial): return {'clip': 1.0}",
            "would carry rows from one trial to the next",
        ),
        (
            "own = cb.MemoryTable(0)\nown.open(cb.models.LR(plan.schema).reads.row('user'))\nown.pull(np.arange(1, 3))\n"
            "def tune(trial): return {'table': own}",
            "already holds 2 rows from another trial",
        ),
    ],
)
def test_what_no_trial_can_train_is_said(tune: Any, text: str, words: str) -> None:
    with pytest.raises(Mistake, match=f"none of the 1 trials in tune/job was completed.*{words}"):
        tune(JOB + text, trials=1)


def test_without_optuna_it_is_said_how_to_install_it(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(DeviceError, match=r"tuning needs optuna, which is not installed: pip install 'ctrbox\[tune\]'"):
        tune(JOB + SPACE)


def test_a_progress_prints_itself() -> None:
    progress = Progress(1000, 0.5, 0.25, 100.0, 10.0, 7, 0, {"extract": 0.5, "learn": 0.9}, {"extract": 1.5})
    assert str(progress) == "50%: step 7, 1,000 rows, 100 rows/s, loss 0.2500, extract 50% →1.5→ learn 90%, 10 s left"
    assert progress._repr_html_().startswith('<progress value="0.5000" max="1"></progress> 50%: step 7')


def test_progress_off_a_terminal_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    shown = watcher(True)
    assert isinstance(shown, Silent)
    shown.see(Progress(1000, 0.5, 0.25, 100.0, 10.0, 7, 0, {}))
    shown.end()
    assert capfd.readouterr() == ("", "")


SEVERAL = JOB.replace(
    'label=col("clicked")', 'labels={"click": col("clicked"), "ad_number": cb.Label(col("ad"), "count")}'
)
SEVERAL = SEVERAL.replace("cb.models.LR(plan.schema)", "cb.models.SharedBottom(plan.schema, dim=4, hidden=(4,))")


def test_several_labels_are_tuned_by_the_loss_or_by_a_metric_of_one(tune: Any) -> None:
    space = '\ndef tune(trial):\n    return {"clip": trial.suggest_float("clip", 0.5, 2.0)}\n'
    for metric, words in (
        (
            "logloss",
            r"several labels, so its trials are not compared by 'logloss'.*; use --metric with one of loss, click.auc, ",
        ),
        ("clik.auc", r"not compared by 'clik.auc'; nearest: 'click.auc'; use --metric"),
        ("ad_number.auc", r"not compared by 'ad_number.auc'"),
    ):
        with pytest.raises(CtrboxError, match=words):
            tune(SEVERAL + space, trials=1, metric=metric)
        assert not Path("tune").exists()
    with pytest.raises(
        CtrboxError, match="'loss' is a metric of several labels; this job has one, so use logloss, auc"
    ):
        tune(JOB + SPACE, trials=1, metric="loss")
    for metric, best in (("click.auc", max), ("ad_number.rmse", min)):
        told, _ = tune(SEVERAL + space, trials=2, metric=metric, out=Path(metric), as_json=True)
        found = json.loads(told)
        assert found["value"] == best(one["value"] for one in found["trials"])
