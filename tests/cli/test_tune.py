"""`ctrbox tune`: a study over a job, trials that fail or are pruned, a study that is gone on with, a tuned training."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
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


# ---- without Optuna's trials


def trial(number: int, value: float | None = None, state: str = "COMPLETE", **attributes: str) -> SimpleNamespace:
    facts = {"state": SimpleNamespace(name=state), "params": {"lr": number / 10}, "user_attrs": attributes}
    return SimpleNamespace(number=number, value=value, **facts)


@pytest.fixture
def studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A study that has the trials ``before`` and then those of ``after``; notes what it was asked for."""
    found = SimpleNamespace(before=[], after=[], done=[], asked={}, settings={})

    class Made:
        def __init__(self, folder: Path, metric: str, seed: int) -> None:
            found.study = (str(folder), metric, seed)
            self.trials = found.before
            self.study = SimpleNamespace(get_trials=lambda deepcopy: self.trials)

        @property
        def done(self) -> Any:
            return found.done

        def run(self, space: Any, plan: Any, **asked: Any) -> None:
            found.asked = asked
            self.trials = [*found.before, *found.after]

        def line(self, number: int) -> str:
            return f"trial {number}"

    job = lambda path, seed: SimpleNamespace(
        tune=None, settings=found.settings, plan=None, model=1, table=2, optimizer=3, bf16=True, common=("h",)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning_command, "load_seeded", job)
    monkeypatch.setattr("ctrbox.train.tuning.Study", Made)
    monkeypatch.setattr("ctrbox.train.tuning.space_of", lambda tune, job: "space")
    monkeypatch.setattr("ctrbox.train.tuning.check_metric", lambda metric, plan: None)
    return found


ONCE = "a trial of one epoch is evaluated only once, so it cannot be stopped early; add --evaluate-every STEPS to evaluate "


def test_a_study_tells_its_trials_the_completed_ones_first(
    studied: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    best, second = trial(2, 0.25), trial(0, 0.5)
    studied.after = [second, trial(1, None, "PRUNED"), best, trial(3, 0.125, "RUNNING")]
    studied.done = [best, second]
    tuning_command.tune(Path("my job.py"))
    said = capsys.readouterr()
    assert said.out.splitlines() == ["trial 2", "trial 0", "trial 1", "trial 3"]
    told = [
        "best: trial 2, logloss 0.25000, of 2 completed trials (4 in all)",
        "  lr = 0.2",
        "next: ctrbox train 'my job.py' --tuned 'tune/my job'",
    ]
    assert said.err.splitlines() == [f"{ONCE}more often", *told]
    assert studied.study == ("tune/my job", "logloss", 0)
    assert (studied.asked["settings"], studied.asked["trials"], studied.asked["threads"]) == ({"seed": 0}, 20, None)
    assert [studied.asked[name] for name in ("model", "table", "optimizer", "bf16", "common")] == [
        1,
        2,
        3,
        True,
        ("h",),
    ]
    studied.before = [trial(k, 1.0) for k in range(1200)]
    tuning_command.tune(Path("my job.py"), trials=1000, epochs=2, limit=7, seed=3, out=Path("my study"), as_json=True)
    said = capsys.readouterr()
    assert said.err.splitlines()[0] == "my study holds 1,200 trials; 1,000 are added"
    assert said.err.splitlines()[-1] == "next: ctrbox train 'my job.py' --tuned 'my study'"
    assert not any("only once" in line for line in said.err.splitlines())
    assert studied.asked["settings"] == {"seed": 3, "epochs": 2, "limit": 7}
    found = json.loads(said.out)
    assert (found["study"], found["best"], found["value"], len(found["trials"])) == (
        "my study",
        {"lr": 0.2},
        0.25,
        1204,
    )
    assert found["trials"][1201] == {"number": 1, "state": "pruned", "value": None, "params": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("settings", "options", "told"),
    [
        ({}, {}, True),
        ({"epochs": 2}, {}, False),
        ({"epochs": 2}, {"epochs": 1}, True),
        ({"evaluate_every": 10}, {}, False),
        ({}, {"evaluate_every": 10}, False),
    ],
)
def test_a_study_without_a_complete_trial_says_why(
    studied: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, Any],
    options: dict[str, Any],
    told: bool,
) -> None:
    studied.settings = settings
    studied.after = [trial(0, None, "PRUNED"), trial(1, None, "PRUNED")]
    with pytest.raises(Mistake, match=r"^none of the 2 trials in tune/job was completed: all were stopped early$"):
        tuning_command.tune(Path("job.py"), **options)
    assert ("only once" in capsys.readouterr().err) is told
    studied.after = [trial(0, None, "PRUNED"), trial(1, None, "FAIL", failed="no memory"), trial(2, failed="other")]
    with pytest.raises(Mistake, match=r"^none of the 3 trials in tune/job was completed: no memory$"):
        tuning_command.tune(Path("job.py"), **options)
