"""Mistakes on the command line and in job files, in the process of the test: the sentence that a user reads."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer

import ctrbox as cb
from ctrbox.cli import after_training as learning
from ctrbox.cli import table as tables
from ctrbox.cli import terminal
from ctrbox.cli import train as training_command
from ctrbox.cli.job_file import batches, blaming, load_job, raise_mistake
from ctrbox.cli.main import app, tell_stages
from ctrbox.cli.open_runs import reading
from ctrbox.cli.output import check_output, no_rows, writing
from ctrbox.cli.search import read_models
from ctrbox.cli.terminal import Mistake, meter, say
from ctrbox.embed.ssd.repair import repair
from ctrbox.engines.lost_values import CastCount
from ctrbox.errors import PlanError, WriteError
from ctrbox.publish import Published

PLAN = "class Plan:\n    batches = None\nplan = Plan()\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ctrbox"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("CTRBOX_TRACEBACK", raising=False)


def ctrbox(*words: object) -> None:
    typer.main.get_command(app).main([str(w) for w in words], prog_name="ctrbox", standalone_mode=False)


def job(text: str) -> Path:
    path = Path("job.py")
    path.write_text(text)
    return path


# ---- job files


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("settings = [1]", "`settings` in job.py must be a dict of arguments of Trainer.fit, got [1]"),
        ("settings = {1: 2}", "`settings` in job.py must be a dict of arguments of Trainer.fit, got {1: 2}"),
        (
            "settings = {'out': 'x'}",
            "`settings` in job.py has 'out', which only an option of the command line can set; remove it from `settings`",
        ),
        (
            "settings = {'callbacks': []}",
            "`settings` in job.py has 'callbacks'; define it as a variable of its own instead:",
        ),
        ("callbacks = 7", "`callbacks` in job.py must be a list of callbacks, got int"),
        ("engine = 1\ncontext = 'user'", "`context` in job.py must be a list of the log's columns, got 'user'"),
        ("engine = 1\ncontext = ['user', 7]", "`context` in job.py must be a list of the log's columns"),
        ("common = 'user'", "`common` in job.py must be a list of fields of the plan, got 'user'"),
        ("common = ['user', 7]", "`common` in job.py must be a list of fields of the plan, got ['user', 7]"),
        (
            "encoders = 7",
            "`encoders` in job.py must be a dict from fields to encoders, {FIELD: cb.tables.Encoder(…)}, got 7",
        ),
        ("encoders = {'image': 7}", "`encoders` in job.py must be a dict from fields to encoders, "),
        ("plan = 7", "`plan` in job.py is a int; expected a plan, as cb.compile returns it"),
        ("del plan", "job.py defines no `plan`; end it with: plan = cb.compile(log, features)"),
        ("raise SystemExit(3)", "job.py called exit (exit code 3) before it defined `plan`"),
        ("1 / 0", "job.py:4: ZeroDivisionError: division by zero"),
        ("raise PlanError('too bad')", "job.py:4: NameError: name 'PlanError' is not defined"),
        ("import ctrbox as cb; raise cb.errors.PlanError('too\\nbad')", "job.py:4: too bad"),
        (
            "import ctrbox as cb; raise cb.errors.PlanError('2 values:\\n  x; add  a\\n  y; add b')",
            "job.py:4: 2 values: x; add a | y; add b",
        ),
        ("(", "job.py:4: SyntaxError: '(' was never closed"),
    ],
)
def test_a_mistake_in_a_job_is_one_line(more: str, message: str) -> None:
    with pytest.raises(Mistake, match=re.escape(message)) as told:
        load_job(job(PLAN + more))
    assert "\n" not in str(told.value)


def test_a_job_that_is_stopped_is_no_mistake() -> None:
    for error in ("KeyboardInterrupt", "terminal.Stopped(143)"):
        with pytest.raises((KeyboardInterrupt, terminal.Stopped)):
            load_job(job(f"from ctrbox.cli import terminal\nraise {error}"))
    with pytest.raises(Mistake, match=r"^job\.py:1: GeneratorExit: $"):
        load_job(job("raise GeneratorExit"))


def test_a_model_and_an_engine_are_asked_for_by_the_line_that_makes_them() -> None:
    found = load_job(job(PLAN + "class Model:\n    reads = ()\n    def __call__(self): ...\nmodel = Model()\n"))
    assert found.needed_model() is found.model
    for more, told in (
        ("", "job.py defines no `model`; add: model = cb.models.DeepFM(plan.schema)"),
        ("model = Plan", "`model` in job.py is the class Plan; expected an instance of it: Plan(plan.schema)"),
        (
            "model = plan",
            "`model` in job.py is a Plan; expected a torch module with `reads`, such as cb.models.DeepFM(",
        ),
        ("model = lambda: 1", "`model` in job.py is a function; expected a torch module with `reads`"),
        ("class Bare:\n    reads = ()\nmodel = Bare()", "`model` in job.py is a Bare; expected a torch module with"),
    ):
        with pytest.raises(Mistake) as met:
            load_job(job(PLAN + more)).needed_model()
        assert str(met.value).startswith(told)
    for more, told in (("", "defines no `engine`"), ("engine = 7", "has a int as `engine`")):
        with pytest.raises(Mistake) as met:
            load_job(job(PLAN + more)).needed_engine()
        assert str(met.value) == f"job.py {told}; add: engine = cb.DeepFFM(plan.schema)"


@pytest.mark.parametrize("name", ["log.parquet", "log.CSV", "log.jsonl"])
def test_data_in_place_of_a_job_are_told_where_they_go(name: str) -> None:
    Path(name).touch()
    with pytest.raises(Mistake) as met:
        load_job(Path(name))
    assert str(met.value) == (
        f"{name} is a data file; expected a job file, such as job.py, that reads it with cb.View('{name}', key=…) and "
        "defines `plan`"
    )


def test_a_job_gives_what_it_defines() -> None:
    found = load_job(job(PLAN + "context = 'an expression'\nsettings = {'epochs': 2}\ncallbacks = (1, 2)"))
    assert (found.context, found.settings, found.callbacks) == ((), {"epochs": 2}, (1, 2))
    assert load_job(job(PLAN + "engine = 1\ncontext = ('a', 'b')")).context == ("a", "b")


def test_a_folder_or_nothing_in_place_of_a_job_is_told() -> None:
    job(PLAN)
    Path("jobs").mkdir()
    with pytest.raises(Mistake, match=r"^jobs is a folder; expected a job file, such as job\.py, that defines `plan`$"):
        load_job(Path("jobs"))
    with pytest.raises(Mistake, match=r"^there is no job file job_txt\.py; nearest: job\.py$"):
        load_job(Path("job_txt.py"))
    with pytest.raises(Mistake, match=r"^there is no job file no/job\.py, because there is no folder no$"):
        load_job(Path("no/job.py"))
    with pytest.raises(Mistake, match=r"^there is no job file jobs/job\.py; there is no Python file in jobs$"):
        load_job(Path("jobs/job.py"))
    for name in "abcdefg":
        Path(f"jobs/{name * 5}.py").touch()
    Path("jobs/train_day.py").touch()
    with pytest.raises(
        Mistake, match=r"; nearest: jobs/train_day\.py; the folder has: aaaaa\.py, .*eeeee\.py and 2 more$"
    ):
        load_job(Path("jobs/train_days.py"))
    Path("jobs/ggggg.py").unlink()
    Path("jobs/fffff.py").unlink()  # five others: all are named
    with pytest.raises(Mistake, match=r"; the folder has: aaaaa\.py, bbbbb\.py, ccccc\.py, ddddd\.py, eeeee\.py$"):
        load_job(Path("jobs/train_days.py"))


def test_the_traceback_of_a_job_is_shown_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRBOX_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        load_job(job(PLAN + "1 / 0"))
    with pytest.raises(ValueError, match="mine"):
        raise_mistake(ValueError("mine"), Path("job.py"))


class Reading:
    """A plan whose data cannot be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def batches(self, rows: int, limit: int | None = None) -> Any:
        yield rows
        raise self.error


def test_errors_while_a_plan_is_read_are_told_or_blamed_on_the_job() -> None:
    found = batches(Reading(OSError(5, "Input/output error")), Path("job.py"), 7)
    assert next(found) == 7
    with pytest.raises(Mistake, match=r"^cannot read: \[Errno 5\] Input/output error$"):
        next(found)
    with pytest.raises(PlanError, match=r"^ours$"):
        list(batches(Reading(PlanError("ours")), Path("job.py"), 7))
    with (
        pytest.raises(KeyError),
        blaming(Path("job.py")),
    ):  # in no line of the job: a fault of the program, not of the user
        raise KeyError("theirs")
    path = job("def broken():\n    raise KeyError('mine')\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path.resolve()), "exec"), names)
    with pytest.raises(Mistake, match=r"^job\.py:2: KeyError: 'mine'$"), blaming(path):
        names["broken"]()


@pytest.mark.parametrize("data", ["log.parquet", None])
def test_errors_of_the_data_name_it(data: str | None) -> None:
    named = data or "the log of the run"
    with pytest.raises(Mistake, match=rf"^cannot read {named}: Input/output error$"), reading(data):
        raise OSError(5, "Input/output error")
    with pytest.raises(Mistake, match=rf"^cannot read {named}: odd$"), reading(data):
        raise OSError("odd")
    with pytest.raises(WriteError, match=r"^cannot write$"), reading(data):
        raise WriteError("cannot write")


# ---- publish


def a_model() -> None:
    Path("a.vw").write_text("1 |a x |b y\n-1 |a z |b y\n" * 20)
    engine = cb.DeepFFM(["a", "b"], bits=10)
    engine.learn(cb.ffm.ExampleText("a.vw"))
    engine.save("model.ffm")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "create model --view users=x",
            "--view, --allow-views and --server can be used only if --model is a run folder, such as --model runs/today",
        ),
        (
            "create model --allow-views x",
            "--view, --allow-views and --server can be used only if --model is a run folder, such as --model runs/today",
        ),
        (
            "create model --server a=x",
            "--view, --allow-views and --server can be used only if --model is a run folder, such as --model runs/today",
        ),
        (
            "create model",
            "the plan is missing; name the job that defines it with --job JOB.PY, or a run folder with --model RUN",
        ),
        (
            "create model --job job.py",
            "job.py defines no `context`; list the log columns that a client sends once per request",
        ),
        ("create model --job job.py --context a", "job.py defines no `engine`; name the saved model:"),
        (
            "push served model.ffm",
            "served is the folder of a served model; expected a folder of published versions; "
            "its versions are in served/weights",
        ),
        (
            "push out model.ffm --server a=x.ctrvec",
            "--server can be used only with a run folder, but model.ffm is not a run folder",
        ),
        (
            "push out none.ffm --server a=x.ctrvec",
            "--server can be used only with a run folder, but there is no none.ffm",
        ),
        (
            "push out model.ffm --job job.py",
            "--job can be used only with a run folder, but model.ffm is not one; remove --job",
        ),
        ("log out", "out holds no published version; try: ctrbox publish push out MODEL"),
        ("log served", "served holds no published version; its versions are in served/weights"),
        ("verify out", "1 of the checked files is damaged or missing"),
        ("verify out served", "2 of the checked files are damaged or missing"),
    ],
)
def test_what_cannot_be_published_is_told(words: str, message: str) -> None:
    a_model()
    job(PLAN)
    Path("x.ctrvec").write_bytes(b"")
    for folder in ("out", "served"):
        Path(folder).mkdir()
    Path("served/serve.json").write_text("{}")
    with pytest.raises(Mistake, match=re.escape(message)):
        ctrbox("publish", *words.split())
    assert not Path("model").exists()
    assert not list(Path("out").iterdir())


def test_the_bytes_of_a_patch_are_told_as_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    a_model()
    for _ in range(2):
        ctrbox("publish", "push", "out", "model.ffm")
    versions = Published("out").log()
    old, new = (f"out/versions/{v.name}.fbw" for v in versions)
    capsys.readouterr()
    ctrbox("publish", "diff", old, new, "-o", "p")
    told = capsys.readouterr().err
    share = 100 * Path("p").stat().st_size / Path(new).stat().st_size
    assert f"wrote {Path('p').stat().st_size:,} bytes ({share:.2f} % of {new}) to p" in told


# ---- the other commands


def test_workers_and_servers_need_a_cluster() -> None:
    for given in ({"workers": 2}, {"servers": 2}):
        with pytest.raises(
            Mistake,
            match="--workers and --servers need a cluster; add --cluster local, or --cluster with the address of "
            "a Ray cluster",
        ):
            training_command.train(job(PLAN), **given)  # type: ignore[arg-type]


def test_a_job_that_is_not_the_demos_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    Path("demo").mkdir()
    Path("demo/job.py").write_text("mine = 1")
    with pytest.raises(
        Mistake,
        match=r"demo/job\.py already exists and was not written by the demo; choose another "
        "--out, or move the file",
    ):
        learning.demo(rows=50, out=Path("demo"))
    assert Path("demo/job.py").read_text() == "mine = 1"


def test_models_that_cannot_be_read_are_told() -> None:
    with pytest.raises(Mistake, match=r"^cannot read none\.yaml: No such file or directory$"):
        read_models(Path("none.yaml"))
    Path("latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(Mistake, match=r"^cannot read latin\.yaml: 'utf-8' codec"):
        read_models(Path("latin.yaml"))


def test_a_table_of_a_checkpoint_of_several_is_not_compacted() -> None:
    folder = Path("several/00000001/dim-4")
    folder.mkdir(parents=True)
    tables.refuse_of_a_run(folder)
    Path("several/TABLES").touch()
    with pytest.raises(Mistake, match=r"dim-4 is part of a checkpoint of several tables; open them with cb"):
        tables.refuse_of_a_run(folder)


def test_a_table_that_needs_no_repair_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with cb.SparseTable("params", 4, ram="300kB") as table:
        table.push(np.arange(1, 10), np.ones((9, 4), np.float32))
        table.checkpoint()
        table.save("saved")
    assert repair(Path("params"), Path("saved")) == []
    tables.repair(Path("params"), Path("saved"))
    found = capsys.readouterr()
    assert (found.out, found.err) == ("", "params is not damaged\nnext: ctrbox table verify params\n")
    tables.repair(Path("params"), Path("saved"), as_json=True)
    assert capsys.readouterr().out == '{"repaired": []}\n'


class Tried:
    """What a trial found."""

    def __str__(self) -> str:
        return "in words"

    def to_dict(self) -> dict[str, str]:
        return {"in": "json"}


def test_a_trial_takes_the_settings_of_the_job_and_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[dict[str, Any]] = []

    def trained(plan: Any, model: Any, wanted: Any, **options: Any) -> Tried:
        given.append(options)
        return Tried()

    monkeypatch.setattr("ctrbox.train.feature_trial.trial", trained)
    model = "class Model:\n    reads = 1\n    def __call__(self): pass\nmodel = Model()\n"
    path = job(PLAN + model + "settings = {'epochs': 2, 'batch_size': 30, 'patience': 3}")
    learning.trial(path, ["price=col('price')"], batch_size=50)
    assert capsys.readouterr().out == "in words\n"
    learning.trial(path, ["price=col('price')"], as_json=True)
    assert capsys.readouterr().out == '{"in": "json"}\n'
    assert [(g["epochs"], g["batch_size"], "limit" in g, "patience" in g) for g in given] == [
        (2, 50, False, False),
        (2, 30, False, False),
    ]
    path = job(PLAN + model + "settings = {'average': 0.9, 'l2': 0.5, 'adaptive_l2': 0.0}")
    learning.trial(path, ["price=col('price')"])
    told = "trials do not support l2= and average= of the job, so their models are trained without"
    assert told in capsys.readouterr().err


def test_the_demos_job_finds_its_data_and_counts_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from ctrbox.cli.demo import demo_job
    from ctrbox.datasets import adlog

    monkeypatch.delenv("CTRBOX_DATA", raising=False)
    adlog(rows=20_000, seed=1, out="data", days=1)
    Path("job.py").write_text(demo_job())
    found = load_job(Path("job.py"))
    assert found.plan.rows == 20_000
    assert found.settings["schedule"].steps == 6  # two passes over 18,000 rows in batches of 8,192
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert load_job(Path("../job.py")).plan.rows == 20_000  # beside the job
    Path("job.py").write_text(demo_job())
    with pytest.raises(Mistake, match=r"job\.py:\d+: .*data/users"):  # neither beside the job nor here
        load_job(Path("job.py"))
    monkeypatch.setenv("CTRBOX_DATA", "../data")
    assert load_job(Path("job.py")).plan.rows == 20_000


def test_a_server_without_its_libraries_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from ctrbox.serve.server import Server

    def opened(*given: Any) -> Any:
        raise ImportError("no grpc", name="grpc")

    monkeypatch.setattr(Server, "open", opened)
    with pytest.raises(
        PlanError, match=r"serving needs grpcio, which is not installed in .*: pip install 'ctrbox\[serve\]'"
    ):
        ctrbox("serve", "model")
    monkeypatch.setitem(sys.modules, "ctrbox.serve.server", None)
    with pytest.raises(Mistake, match=r"serving needs ctrbox\.serve\.server, which is not installed: pip install"):
        ctrbox("serve", "model")


def test_seconds_are_those_that_a_command_took(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    with cb.SparseTable("params", 4, ram="300kB") as table:
        table.push(np.arange(1, 10), np.ones((9, 4), np.float32))
    a_model()
    for name in ("old", "new"):
        ctrbox("publish", "pack", "model.ffm", "-o", f"{name}.fbw")
    ctrbox("publish", "diff", "old.fbw", "new.fbw", "-o", "p")
    for words in ("table verify params --json", "publish apply old.fbw p -o again.fbw --json"):
        capsys.readouterr()
        ctrbox(*words.split())
        took = json.loads(capsys.readouterr().out)["seconds"]
        assert 0 <= took <= time.perf_counter() - began


class Counted:
    """What a plan knows after a pass."""

    stats = {"read": {"rows": 4000, "seconds": 2.0}, "nothing": {}}  # noqa: RUF012
    joins = [  # noqa: RUF012
        SimpleNamespace(view="users", on=("user", "day"), keys=4000, missed=500, share=0.125),
        SimpleNamespace(view="ads", on=("ad",), keys=4000, missed=0, share=0.0),
    ]
    warnings = {"nulls": 3, "none": 0, "cast('int') of 'age'": 2}  # noqa: RUF012
    casts = [CastCount("cast('int')", "age", 1000, 2, "n/a"), CastCount("cast('time')", "ts", 9, 0)]  # noqa: RUF012


def test_stages_and_warnings_of_a_pass_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    tell_stages(Counted(), 4000, 4.0, " to x")
    assert [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()] == [
        "extracted 4,000 rows in 4.00 s (1,000 rows/s) to x",
        "read 4,000 rows 2.000 s 2,000 rows/s",
        "nothing 0 rows 0.000 s",
        "join with view users on user, day: 12.5% of 4,000 keys have no row in this view",
        "warning: nulls: 3 values lost",
        "warning: cast('int') of 'age': 2 of 1,000 values could not be converted and are null (the first is 'n/a')",
    ]


# ---- streams


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, os.strerror(28))


@pytest.mark.parametrize(
    ("output", "as_json", "message"),
    [
        ("-", True, "-o - and --json both write to stdout; remove one of the two"),
        (
            "-",
            False,
            "an Arrow stream cannot be shown on a terminal; pipe it into another program, or name a file: -o out.parquet",
        ),
        ("x.csv", False, "-o x.csv: the name must end in .parquet or .arrow, or be - for stdout"),
    ],
)
def test_an_output_that_cannot_be_is_told(
    monkeypatch: pytest.MonkeyPatch, output: str, as_json: bool, message: str
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    with pytest.raises(Mistake, match=re.escape(message)):
        check_output(output, (".parquet", ".arrow"), as_json)
    check_output("x.arrow", (".parquet", ".arrow"), as_json)


def test_errors_of_the_output_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Mistake, match=r"^cannot write x: No space left on device$"), writing("x"):
        raise OSError(28, "of another file", "y")
    with pytest.raises(Mistake, match=r"^cannot write to stdout \(odd\)$"), writing("-"):
        raise OSError("odd")
    with pytest.raises(WriteError, match=r"^ours$"), writing("x"):
        raise WriteError("ours")
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(Mistake, match=r"^cannot write to stdout \(No space left on device\)$"):
        say("data")


def test_a_batch_without_rows_has_what_its_schema_has() -> None:
    view = cb.View(pa.table({"a": [1], "y": [0]}))
    for label in (None, cb.col("y")):
        plan = cb.compile(view, cb.FeatureSet(label=label, sparse={"a": cb.col("a").key()}), device="cpu")
        empty = no_rows(plan.schema)
        assert empty.rows == 0
        assert (empty.label is None) is (label is None)


def test_a_meter_moves_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with meter("read") as tick:
        tick(5)
    assert capsys.readouterr().err == ""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(terminal.time, "perf_counter", iter([10.0, 12.0]).__next__)
    with meter("read") as tick:
        tick(5000)
    assert "read 5,000 rows, 2,500 rows/s" in shown.getvalue()


# ---- the end of a command


def ended(command: Callable[[], Any]) -> Any:
    with pytest.raises(SystemExit) as told:
        terminal.run(command)
    return told.value.code


@pytest.fixture
def _signals_as_before() -> Any:
    import signal
    import warnings

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), warnings.showwarning
    yield
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])
    warnings.showwarning = before[2]


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.usefixtures("_signals_as_before")
def test_a_command_ends_with_the_code_of_what_happened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, code, told in (
        (SystemExit(), 0, ""),
        (SystemExit(2), 2, ""),
        (SystemExit("why"), 1, ""),
        (Mistake("yours"), 1, "ctrbox: error: yours\n"),
        (PlanError("ours"), 1, "ctrbox: error: ours\n"),
        (OSError(2, "No such file", "x"), 1, "ctrbox: error: cannot use x: No such file\n"),
        (KeyboardInterrupt(), 130, "ctrbox: stopped; unfinished output was removed\n"),
    ):
        assert ended(raising(error)) == code
        assert capsys.readouterr().err == told
    assert ended(lambda: None) == 0
    with pytest.raises(KeyError):  # a fault of the program keeps its traceback
        terminal.run(raising(KeyError("x")))
    monkeypatch.setattr(terminal, "old_native", lambda error: f"the native extension is older ({error})")
    assert ended(raising(AttributeError("no best_products"))) == 1
    assert capsys.readouterr().err == "ctrbox: error: the native extension is older (no best_products)\n"
    monkeypatch.setenv("CTRBOX_TRACEBACK", "1")
    for error in (Mistake("yours"), AttributeError("no best_products")):
        with pytest.raises(type(error)):
            terminal.run(raising(error))
