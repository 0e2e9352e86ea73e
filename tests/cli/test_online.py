"""`ctrbox online` and `ctrbox datasets events`, as a user meets them; signals are in tests/loop/test_online_loop.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import typer

import ctrbox as cb
from ctrbox import datasets as data
from ctrbox.cli import online as online_command
from ctrbox.cli import terminal
from ctrbox.cli.job_file import Job
from ctrbox.cli.main import app
from ctrbox.cli.online import SECRET, learner_of, of_own_class, told
from ctrbox.cli.terminal import Mistake
from ctrbox.datasets import adlog
from ctrbox.errors import CtrboxError
from tests.cli.warm import run_command

ROOT = Path(__file__).parents[2]
JOB = """\
import ctrbox as cb
from ctrbox import col

log = cb.View("data/impressions", key="instance_id").fill(query="")
features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user_id").key(), "ad": col("ad_id").key()})
plan = cb.compile(log, features, device="cpu")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("online")
    adlog(rows=600, seed=1, out=made / "data", days=1)
    (made / "job.py").write_text(JOB + "engine = cb.DeepFFM(plan.schema, k=2, bits=10)\ncontext = ['user_id']\n")
    (made / "bare.py").write_text(JOB)
    net = JOB + "model = cb.models.LR(plan.schema)\ncontext = ['user_id']\n"
    (made / "net.py").write_text(net + "settings = {'batch_size': 32, 'epochs': 2}\n")
    (made / "thinned.py").write_text(net + "settings = {'negatives': 0.5}\n")
    (made / "gpu.py").write_text(net + "bf16 = True\n")
    (made / "wrong.py").write_text(JOB + "engine = 7\n")
    return made


def ctrbox(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command(words, cwd=place)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


def test_a_stream_is_made_learned_from_and_gone_on_with(place: Path) -> None:
    made = ctrbox(place, "datasets", "events", "--chunk-rows", "100", "--format", "jsonl", "--json")
    assert json.loads(made.stdout)["events"] > 600, made.stderr
    words = ("online", "job.py", "--stream", "events", "--out", "model", "--every", "200ex", "--once", "--json")
    first = ctrbox(place, *words)
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["learned"] + found["held"] == 600
    assert "version 2: 200 examples; the patch has" in first.stderr
    assert "next: ctrbox serve model" in first.stderr
    assert (
        f"over all examples (the best constant prediction has {found['constant']:.6f}), AUC of all examples"
        in first.stderr
    )
    assert found["auc_examples"] == found["examples"]
    again = ctrbox(place, *words)
    assert json.loads(again.stdout)["learned"] == found["learned"]
    assert "continuing from checkpoint" in again.stderr
    assert "nothing was learned: events has no new events" in again.stderr


def test_a_model_of_torch_learns_and_begins_with_a_run(place: Path) -> None:
    made = ctrbox(place, "datasets", "events", "--chunk-rows", "100", "--out", "shown", "--json")
    assert made.returncode == 0, made.stderr
    trained = ctrbox(place, "train", "net.py", "--out", "run")
    assert trained.returncode == 0, trained.stderr
    words = ("online", "net.py", "--stream", "shown", "--out", "netmodel", "--model", "run", "--once", "--json")
    first = ctrbox(place, *words)
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["learned"] + found["unlearned"] + found["held"] == 600
    assert found["learned"] % 32 == 0
    assert found["version"] == 2
    assert "examples wait until their batch is full" in first.stderr
    assert "next: ctrbox serve netmodel\n" in first.stderr
    again = ctrbox(place, *words[:-4], "--batch-size", "64", "--once")
    assert again.returncode == 1, again.stderr
    assert "has batch_size 32, but the model of this job has 64; to continue, give" in again.stderr


def test_a_full_disk_ends_once_with_an_error(place: Path) -> None:
    (place / "none").mkdir()
    began = ctrbox(place, "online", "job.py", "--stream", "none", "--out", "small", "--once")
    assert began.returncode == 0, began.stderr
    assert "nothing was learned: none has no events" in began.stderr
    data.adlog_events(place / "data", place / "few", rows=300)
    # No file may outgrow 16 KiB: as on a disk without room, and the engine's file is larger.
    words = ["online", "job.py", "--stream", "few", "--out", "small", "--once", "--json"]
    small = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14)); "
    code = small + f"sys.argv = ['ctrbox', *{words!r}]; from ctrbox.cli.main import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=place, env=environment())
    assert ended.returncode == 1, ended.stderr
    assert "error: what was learned after checkpoint 1 could not be saved: cannot write" in ended.stderr
    assert "Traceback" not in ended.stderr
    again = ctrbox(place, *words)
    assert json.loads(again.stdout)["learned"] > 0, again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("bare.py", "--stream", "events", "--out", "new"),
            "bare.py defines neither `engine` nor `model`; add: engine = cb.DeepFFM(plan.schema), or: model = cb.models.DeepFM(",
        ),
        (
            ("job.py", "--stream", "events", "--out", "new", "--model", "runs/today"),
            "--model can be used only with a job that defines a torch `model`, but job.py defines `engine`, a Deep "
            "FFM; remove --model",
        ),
        (
            ("job.py", "--stream", "events", "--out", "new", "--batch-size", "64"),
            "--batch-size can be used only with a job that defines a torch `model`, but job.py defines `engine`",
        ),
        (
            ("thinned.py", "--stream", "events", "--out", "new"),
            "`settings` in thinned.py has 'negatives', which the online loop cannot use; remove it",
        ),
        (("gpu.py", "--stream", "events", "--out", "new"), "gpu.py sets `bf16`, which works only on a GPU"),
        (
            ("net.py", "--stream", "events", "--out", "new", "--model", "missing"),
            "there is no run folder missing to start from",
        ),
        (("wrong.py", "--stream", "events", "--out", "new"), "wrong.py has a int as `engine`"),
        (("job.py", "--stream", "nothing", "--out", "new"), "there is no folder nothing to read a stream from"),
        (("job.py", "--stream", "nats://localhost", "--out", "new"), "expected nats://host:4222/STREAM"),
    ],
)
def test_a_mistake_is_told_and_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    refused(place, monkeypatch, words, said)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--every", "soon", "every must be a span such as 30s, 5m or 2h, got 'soon'"),
        ("--every", "0s", "every must be above 0, such as 30s, 5m or 2h, got '0s'"),
        ("--window", "0m", "window must be above 0, such as 30s, 5m or 2h, got '0m'"),
        ("--held", "-1MB", "held must be from 1 to 1,125,899,906,842,624 bytes, got '-1MB'"),
        ("--held", "5", "held 5 has no unit; expected a size such as '512MB'"),
        (
            "--time",
            "tss",
            "no column 'tss' for the time of an event; nearest: 'ts'; name it with time=, or on the command line with --time",
        ),
        ("--time", "moment", "no column 'moment' for the time of an event; nearest: 'ts'; name it with"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_told_and_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, said: str
) -> None:
    refused(place, monkeypatch, ("job.py", "--stream", "data", "--out", "new", option, value), said)


def refused(place: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["ctrbox"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises((CtrboxError, Mistake), match=re.escape(said)):
        typer.main.get_command(app).main(["online", *words], prog_name="ctrbox", standalone_mode=False)
    assert not (place / "new").exists()


def test_a_model_of_ones_own_class_is_served_with_its_job() -> None:
    import torch

    assert of_own_class(torch.nn.Linear(1, 1))
    assert of_own_class(type("LR", (torch.nn.Module,), {})())  # a name of cb.models alone is not enough
    rows = pa.table({"a": [1, 2], "y": [0, 1]})
    schema = cb.compile(cb.View(rows), cb.FeatureSet(label=cb.col("y"), sparse={"a": cb.col("a").key()})).schema
    assert not of_own_class(cb.models.LR(schema))


def test_what_is_said_holds_no_password() -> None:
    said = "ctrbox online job.py --stream nats://me:secret@host:4222/ADS --out model"
    assert SECRET.sub("://…@", said) == "ctrbox online job.py --stream nats://…@host:4222/ADS --out model"
    assert SECRET.sub("://…@", "s3://bucket/events@home") == "s3://bucket/events@home"


# ---- without a stream

COUNTS = dict.fromkeys(
    (
        "duplicates",
        "late_impressions",
        "late_clicks",
        "lone_clicks",
        "outside_clicks",
        "future",
        "dropped_by_filters",
        "left_out",
        "refused_chunks",
    ),
    0,
)
FOUND: dict[str, Any] = {
    "counts": COUNTS,
    "learned": 1500,
    "examples": 1500,
    "clicked": 1200,
    "held": 3000,
    "version": 4,
    "unlearned": 0,
    "windows": [],
    "loss": 0.25,
    "constant": 0.5,
    "auc": 0.75,
    "auc_examples": 1500,
}
LEARNED = (
    "learned from 1,500 examples, 1,200 clicked; 3,000 impressions wait for the end of their click window; version 4"
)
LOSS = "loss 0.250000 over all examples (the best constant prediction has 0.500000), AUC of all examples 0.750000"


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        ({}, [LEARNED, LOSS]),
        (
            {"learned": 2500, "unlearned": 1024},
            [
                "learned from 1,500 examples, 1,200 clicked, besides 1,000 examples that the loaded engine had learned "
                "before; 3,000 impressions wait for the end of their click window; version 4",
                "  1,024 examples wait until their batch is full",
                LOSS,
            ],
        ),
        (
            {"windows": [1], "auc_examples": 1000},
            [LEARNED, LOSS.replace("all examples 0.7", "the last complete window (1,000 examples) 0.7")],
        ),
        (
            {"learned": 0, "examples": 0, "clicked": 0, "loss": None},
            ["learned from 0 examples, 0 clicked; 3,000 impressions wait for the end of their click window; version 4"],
        ),
        (
            {"counts": {**COUNTS, "late_clicks": 1000, "refused_chunks": 1}},
            [LEARNED, LOSS, "  late clicks: 1,000", "  refused chunks: 1"],
        ),
    ],
)
def test_the_end_is_told_line_by_line(
    capsys: pytest.CaptureFixture[str], changed: dict[str, Any], lines: list[str]
) -> None:
    told({**FOUND, **changed})
    assert capsys.readouterr().err.splitlines() == lines


def a_torch_job(**parts: Any) -> Job:
    return Job(Path("job.py"), "plan", type("Net", (), {"reads": (), "__call__": lambda self: None})(), **parts)


def test_a_torch_model_learns_with_the_settings_that_a_stream_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def learner(plan: Any, model: Any, table: Any, **options: Any) -> Any:
        given.append((plan, model, table, options))
        return SimpleNamespace(plan="its plan")

    monkeypatch.setattr("ctrbox.loop.online_click_model.OnlineClickModel", learner)
    usual = {"negatives": 1.0, "average": None, "calibrate": None, "schedule": None, "epochs": 3}
    job = a_torch_job(table="table", optimizer="adam", settings={"batch_size": 64, "clip": 1.0, **usual})
    plan, found = learner_of(job, Path("runs/today"), None, 3)
    assert (plan, found.plan) == ("its plan", "its plan")
    options = {"optimizer": "adam", "threads": 3, "start": Path("runs/today"), "clip": 1.0}
    assert given == [("plan", job.model, "table", {**options, "batch_size": 64})]
    learner_of(job, Path("runs/today"), 32, 3)
    assert given[1] == ("plan", job.model, "table", {**options, "batch_size": 32})
    for name in ("negatives", "average", "calibrate", "schedule"):
        with pytest.raises(Mistake, match=f"has '{name}', which the online loop cannot use; remove it"):
            learner_of(a_torch_job(settings={name: 0.5}), None, None, None)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A loop that ends at once, and what it was asked for; it learns an engine unless ``job`` is changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ctrbox", "online", "job.py", "--stream", "nats://me:secret@host/ADS"])
    monkeypatch.setattr(terminal, "farewells", [])
    made = SimpleNamespace(
        engine=SimpleNamespace(progress=SimpleNamespace(show=None)),
        job=Job(Path("job.py"), "plan", engine="engine", context=("user",)),
        ended=SimpleNamespace(
            run=lambda: {**FOUND, "windows": [7]}, nothing_learned="", interrupted=False, asked="asked"
        ),
        asked={},
    )

    def begun(plan: Any, engine: Any, stream: str, out: Path, **options: Any) -> Any:
        assert (plan, engine, stream, out) == ("plan", made.engine, "events", Path("a model"))
        made.asked = options
        return made.ended

    monkeypatch.setattr(online_command, "load_job", lambda path: made.job)
    monkeypatch.setattr(online_command, "learner_of", lambda job, run, size, threads: (job.plan, made.engine))
    monkeypatch.setattr("ctrbox.loop.online_loop.OnlineLoop", begun)
    return made


def online(*words: str) -> None:
    command = ["online", "job.py", "--stream", "events", "--out", "a model", *words]
    typer.main.get_command(app).main(command, prog_name="ctrbox", standalone_mode=False)


def test_the_loop_is_asked_for_what_the_command_says(loop: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    online("--threads", "3", "--warm-up", "past", "--sign-with", "my key")
    assert capsys.readouterr().err.splitlines()[-1] == "next: ctrbox serve 'a model' --public-key 'my key.pub'"
    asked = loop.asked
    assert (asked["threads"], asked["warm_up"], asked["context"]) == (3, ["past"], ("user",))
    assert loop.engine.progress.show is terminal.tell
    loop.job = Job(Path("my job.py"), "plan", object())
    online("--threads", "3", "--json")
    said = capsys.readouterr()
    assert json.loads(said.out) == {name: value for name, value in FOUND.items() if name != "windows"}
    assert said.err.splitlines()[-1] == "next: ctrbox serve 'a model' --job job.py"  # of its own class
    assert (loop.asked["threads"], loop.asked["warm_up"]) == (None, ())  # the learner has the threads


def test_a_loop_that_was_stopped_says_how_to_go_on_and_keeps_the_password(
    loop: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr("ctrbox.train.interrupt.end_as_asked", ended.append)
    loop.ended.nothing_learned = "nothing was learned: events has no events"
    online()
    assert capsys.readouterr().err.splitlines()[-2:] == [loop.ended.nothing_learned, "next: ctrbox serve 'a model'"]
    assert (ended, terminal.farewells) == ([], [])
    loop.ended.interrupted = True
    online()
    assert ended == ["asked"]
    assert terminal.farewells == ["resume: ctrbox online job.py --stream nats://…@host/ADS"]


def test_a_stream_of_events_is_told_with_its_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, asked = [10.0], []

    def clock() -> float:
        now[0] += 2.5
        return now[0]

    monkeypatch.setattr(online_command, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(data, "adlog_events", lambda *given, **more: asked.append((given, more)) or 1500)
    out = Path("my events")
    online_command.datasets_events(Path("data"), out, rate=500.0)
    told = "wrote 1,500 events in 2.5 s to my events\nnext: ctrbox online JOB.PY --stream 'my events' --out model\n"
    assert capsys.readouterr() == ("my events\n", told)
    options = {"rows": None, "chunk_rows": 10_000, "format": "parquet", "events_per_s": 500.0, "seed": 0}
    assert asked == [((Path("data"), out), options)]
    online_command.datasets_events(Path("data"), out, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"events": 1500, "out": "my events", "seconds": 2.5}
