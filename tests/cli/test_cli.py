"""The command line as a user meets it: a process, its two streams, its exit code."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.warm import run_command

ROWS = 4_000

JOB = """\
import ctrbox as cb
from ctrbox import col

impressions = cb.View("data/impressions", key="instance_id").fill(query="", device="unknown")
users = cb.View("data/users", key="user_id").fill(age=0)
log = impressions.join(users, on="user_id")
features = cb.FeatureSet(
    label=col("clicked"),
    sparse={"user": col("user_id").key(), "query": col("query").lower().split(" ").key()},
    dense={"age": col("age")},
)
plan = cb.compile(log, features)
"""


def ctrbox(*arguments: object, cwd: Path, check: int = 0, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run the command, and expect this exit code and no traceback. Options of `subprocess.run` ask for a fresh Python."""
    environment = {k: v for k, v in os.environ.items() if k != "CTRBOX_TRACEBACK"}
    text = options.pop("text", True)
    if options:
        command = [sys.executable, "-m", "ctrbox", *map(str, arguments)]
        streams = {"capture_output": True, "text": text, "timeout": 120}
        done: Any = subprocess.run(command, cwd=cwd, env=environment, **streams, **options)
    else:
        done = run_command(arguments, cwd=cwd, env=environment, text=text)
    assert done.returncode == check, done.stderr
    assert "Traceback" not in str(done.stderr)
    return done


@pytest.fixture(scope="session")
def ad_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ctrbox import datasets

    data = tmp_path_factory.mktemp("cli") / "data"
    datasets.adlog(rows=ROWS, seed=1, out=data)
    return data


@pytest.fixture
def job(tmp_path: Path, ad_log: Path) -> Path:
    (tmp_path / "data").symlink_to(ad_log)
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


# ---- help ---------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['ctrbox', '--help']\n"
        "from ctrbox.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Examples" in done.stdout


@pytest.mark.parametrize("command", ["extract", "explain", "show", "train", "evaluate", "predict", "report", "demo"])
def test_each_command_has_examples(command: str, tmp_path: Path) -> None:
    assert "Examples:" in ctrbox(command, "--help", cwd=tmp_path).stdout


def test_unknown_command_suggests_the_nearest(tmp_path: Path) -> None:
    assert "Did you mean 'extract'" in ctrbox("extrct", cwd=tmp_path, check=2).stderr


def test_version_is_data(tmp_path: Path) -> None:
    assert ctrbox("version", cwd=tmp_path).stdout.startswith("ctrbox ")
    assert ctrbox("--version", cwd=tmp_path).stdout == ctrbox("version", cwd=tmp_path).stdout
    assert json.loads(ctrbox("version", "--json", cwd=tmp_path).stdout)["ctrbox"]


# ---- extract ------------------------------------------------------------------------------------


def test_count_prints_rows_to_stdout_and_rates_to_stderr(job: Path) -> None:
    done = ctrbox("extract", job.name, "--count", cwd=job.parent)
    assert done.stdout == f"{ROWS}\n"
    assert "rows/s" in done.stderr
    assert "next: ctrbox explain job.py" in done.stderr


def test_json_is_one_object_on_stdout(job: Path) -> None:
    done = ctrbox("extract", job.name, "--count", "--json", cwd=job.parent)
    found = json.loads(done.stdout)
    assert found["rows"] == ROWS
    assert found["rows_per_second"] > 0
    assert found["stages"]


@pytest.mark.slow
def test_parquet_arrow_and_stream_hold_the_same_rows(job: Path) -> None:
    here = job.parent
    ctrbox("extract", job.name, "-o", "a.parquet", cwd=here)
    ctrbox("extract", job.name, "-o", "a.arrow", "--batch-size", 777, "--threads", 1, cwd=here)
    stream = ctrbox("extract", job.name, "-o", "-", cwd=here, text=False).stdout
    parquet = pq.read_table(here / "a.parquet", page_checksum_verification=True)
    arrow = pa.ipc.open_file(here / "a.arrow").read_all()
    piped = pa.ipc.open_stream(stream).read_all()
    assert parquet.num_rows == ROWS
    assert arrow.to_pydict() == parquet.to_pydict() == piped.to_pydict()
    assert [p.name for p in here.iterdir() if "partial" in p.name] == []


def test_limit_cuts_in_the_middle_of_a_batch(job: Path) -> None:
    ctrbox("extract", job.name, "-o", "a.parquet", "--limit", 1_500, "--batch-size", 1_000, cwd=job.parent)
    assert pq.read_table(job.parent / "a.parquet").num_rows == 1_500


@pytest.mark.slow
def test_no_row_left_gives_an_empty_file_with_the_same_columns(job: Path) -> None:
    ctrbox("extract", job.name, "-o", "some.parquet", cwd=job.parent)
    job.write_text(JOB.replace("cb.compile(log,", 'cb.compile(log.filter(col("device") == "toaster"),'))
    ctrbox("extract", job.name, "-o", "none.parquet", cwd=job.parent)
    none = pq.read_table(job.parent / "none.parquet")
    assert none.num_rows == 0
    assert none.schema.equals(pq.read_schema(job.parent / "some.parquet"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--count"),
        (["--count", "-o", "a.parquet"], "either -o FILE or --count"),
        (["-o", "a.csv"], "must end in .parquet or .arrow"),
        (["-o", "-", "--json"], "stdout"),
    ],
)
def test_contradictions_are_told_in_one_line(job: Path, arguments: list[str], message: str) -> None:
    done = ctrbox("extract", job.name, *arguments, cwd=job.parent, check=1)
    assert done.stdout == ""
    assert done.stderr.startswith("ctrbox: error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_full_disk_leaves_the_old_file_and_nothing_else(job: Path) -> None:
    import resource

    old = job.parent / "a.parquet"
    old.write_bytes(b"old")
    done = ctrbox(
        "extract",
        job.name,
        "-o",
        "a.parquet",
        cwd=job.parent,
        check=1,
        # A file that may not grow past 4 KiB fails like a disk that is full.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096)),
    )
    assert "cannot write a.parquet" in done.stderr
    assert old.read_bytes() == b"old"
    assert [p.name for p in job.parent.iterdir() if "partial" in p.name] == []


@pytest.mark.parametrize("verb", [["datasets", "adlog"], ["demo"]])
def test_full_disk_under_generated_data_is_one_line(tmp_path: Path, verb: list[str]) -> None:
    done = ctrbox(*verb, "--rows", 5_000, "--out", "log", cwd=tmp_path, check=1, preexec_fn=lambda: at_most(4_096))
    assert "ctrbox: error: cannot write " in done.stderr
    assert "File too large" in done.stderr
    assert "no partial output was kept" in done.stderr
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize(
    "arguments",
    [["extract", "job.py", "--count"], ["extract", "job.py", "-o", "-"], ["explain", "job.py"], ["--help"]],
)
def test_full_disk_under_stdout_is_one_line(job: Path, arguments: list[str]) -> None:
    with (job.parent / "stdout").open("wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "ctrbox", *arguments],
            cwd=job.parent,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            preexec_fn=lambda: at_most(0),
        )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("ctrbox: error: ") == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr


@pytest.mark.slow
def test_a_reader_of_stdout_that_goes_away_is_one_line(job: Path) -> None:
    for arguments in (["extract", "job.py", "-o", "-"], ["explain", "job.py"]):
        process = subprocess.Popen(
            [sys.executable, "-m", "ctrbox", *arguments],
            cwd=job.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        stderr = process.stderr.read().decode()
        process.stderr.close()
        assert process.wait(timeout=60) == 1
        assert "ctrbox: error: cannot write to stdout (Broken pipe)" in stderr
        assert "Traceback" not in stderr
        assert "ignored" not in stderr


@pytest.mark.slow
def test_streams_that_are_closed(job: Path) -> None:
    command = f"{sys.executable} -m ctrbox extract job.py"
    for rest, code, stdout in (
        ("--count 2>&-", 0, f"{ROWS}\n"),
        ("--count <&- 2>&-", 0, f"{ROWS}\n"),
        ("-o a.parquet 2>&- >&-", 0, ""),
        ("--count >&-", 1, ""),
        ("-o - >&-", 1, ""),
    ):
        done = subprocess.run(
            ["sh", "-c", f"{command} {rest}"], cwd=job.parent, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stdout) == (code, stdout), done.stderr
        assert "Traceback" not in done.stderr
    assert pq.read_table(job.parent / "a.parquet").num_rows == ROWS


@pytest.mark.slow
def test_what_is_no_file_is_not_replaced(job: Path) -> None:
    here = job.parent
    os.mkfifo(here / "pipe.svg")
    os.mkfifo(here / "pipe.parquet")
    (here / "d.parquet").mkdir()
    for arguments, met in (
        (["show", "job.py", "-o", "pipe.svg"], "cannot write pipe.svg: it is a pipe"),
        (["extract", "job.py", "-o", "pipe.parquet"], "cannot write pipe.parquet: it is a pipe"),
        (["extract", "job.py", "-o", "d.parquet"], "cannot write d.parquet: it is a folder"),
        (["show", "job.py", "-o", "."], "cannot write .: it is a folder"),
        (["show", "job.py", "-o", "/"], "cannot write /: it is a folder"),
    ):
        assert met in ctrbox(*arguments, cwd=here, check=1).stderr
    assert (here / "pipe.svg").is_fifo()
    assert (here / "pipe.parquet").is_fifo()


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_by_the_next(job: Path) -> None:
    job.write_text(
        JOB + "class Killed:\n"
        "    stats, warnings = {}, {}\n"
        "    def batches(self, rows, limit=None, plan=plan):\n"
        "        import os\n"
        "        for batch in plan.batches(rows):\n"
        "            yield batch\n"
        "            os.kill(os.getpid(), 9)\n"
        "plan = Killed()\n"
    )
    ctrbox("extract", "job.py", "-o", "a.parquet", cwd=job.parent, check=-9)
    assert len([p for p in job.parent.iterdir() if "partial" in p.name]) == 1
    job.write_text(JOB)
    ctrbox("extract", "job.py", "-o", "a.parquet", cwd=job.parent)
    assert sorted(p.name for p in job.parent.iterdir()) == ["a.parquet", "data", "job.py"]


def at_most(size: int) -> None:
    """A file that may not grow further fails like a disk that is full."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_output_folder_that_cannot_be_made_is_named(job: Path) -> None:
    done = ctrbox("extract", job.name, "-o", "job.py/a.parquet", cwd=job.parent, check=1)
    assert "cannot write job.py/a.parquet" in done.stderr


def extract_until_the_signal(job: Path, options: tuple[str, ...], sent: signal.Signals, code: int) -> str:
    """Send the signal once the job has made the file `started`; return what the process wrote to stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ctrbox", "extract", "job.py", *options],
        cwd=job.parent,
        stderr=subprocess.PIPE,
        text=True,
        # A runner that ignores Ctrl-C would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while not (job.parent / "started").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    return stderr


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_cleanly(job: Path, sent: signal.Signals, code: int) -> None:
    # An operator that says when it runs, then waits: the signal arrives in the middle of extraction.
    job.write_text(
        JOB.replace(
            "plan = cb.compile(log, features)\n",
            "class Slow:\n"
            "    plan = cb.compile(log, features)\n"
            "    stats, warnings = {}, {}\n"
            "    def batches(self, rows, limit=None):\n"
            "        import pathlib, time\n"
            "        for batch in self.plan.batches(rows):\n"
            "            yield batch\n"
            "            pathlib.Path('started').touch()\n"
            "            time.sleep(60)\n"
            "plan = Slow()\n",
        )
    )
    extract_until_the_signal(job, ("-o", "a.parquet", "--batch-size", "500"), sent, code)
    assert sorted(p.name for p in job.parent.iterdir() if "a.parquet" in p.name or "partial" in p.name) == []


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("swallowed", [False, True])
def test_a_signal_while_the_job_loads(job: Path, sent: signal.Signals, code: int, swallowed: bool) -> None:
    wait = "import pathlib, time\npathlib.Path('started').touch()\n"
    # Modules in C are known to turn an interrupt into an ImportError.
    wait += "try: time.sleep(60)\nexcept BaseException: raise ImportError\n" if swallowed else "time.sleep(60)\n"
    job.write_text(wait)
    stderr = extract_until_the_signal(job, ("--count",), sent, code)
    assert "called exit" not in stderr


def test_an_interrupt_while_modules_load_is_quiet(tmp_path: Path) -> None:
    # The interrupt comes when typer is asked for, which is before main().
    code = (
        "import os, signal, sys\n"
        "class Press:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
        "from ctrbox.cli.main import main\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ctrbox: stopped\n")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_torch_loads_ends_the_process_at_once(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    # Like C++ code that is being loaded, this torch cannot be left by an exception.
    (tmp_path / "torch.py").write_text(
        f"import os, signal\ntry: os.kill(os.getpid(), {int(sent)})\nexcept BaseException: os.abort()\n"
    )
    source = "from ctrbox.cli.terminal import run\nrun(lambda: __import__('torch'))\n"
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True)
    told = "ctrbox: stopped; unfinished output was removed\n"
    assert (done.returncode, done.stdout, done.stderr) == (code, "", told)


def test_the_package_itself_imports_nothing_slow(tmp_path: Path) -> None:
    # Before the command line has its own handler, Ctrl-C is a traceback: that time is kept short.
    source = "import sys, ctrbox\nprint(sorted({'enum', 'pathlib', 're', 'typing'} & set(sys.modules)))"
    sources = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", source], env=sources, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


# ---- mistakes in a job --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ny = nothing\n", "job.py:2: NameError: name 'nothing' is not defined"),
        ("x = 1\ndef f(:\n", "job.py:2: SyntaxError"),
        ("import sys\nsys.exit(3)\n", "called exit"),
        ("x = 1\n", "defines no `plan`"),
        ("plan = 5\n", "is a int"),
        (
            JOB.replace('col("age")}', 'col("agee")}'),
            "'age'",
        ),
    ],
)
def test_mistake_in_a_job_is_one_line(job: Path, source: str, message: str) -> None:
    job.write_text(source)
    done = ctrbox("extract", "job.py", "--count", cwd=job.parent, check=1)
    assert done.stdout == ""
    assert done.stderr.startswith("ctrbox: error: job.py") or done.stderr.startswith("ctrbox: error: `plan`")
    assert message in done.stderr


def test_missing_job_lists_what_is_there(job: Path) -> None:
    done = ctrbox("explain", "jop.py", cwd=job.parent, check=1)
    assert done.stderr == "ctrbox: error: there is no job file jop.py; nearest: job.py\n"


@pytest.mark.parametrize("name", ["log.parquet", "log.CSV", "log.jsonl"])
def test_data_in_place_of_a_job_is_told_where_they_go(job: Path, name: str) -> None:
    (job.parent / name).write_bytes(b"PAR1\0")
    done = ctrbox("extract", name, "--count", cwd=job.parent, check=1)
    assert done.stderr.startswith(f"ctrbox: error: {name} is a data file; expected a job file, such as job.py")
    assert f"cb.View('{name}', key=…)" in done.stderr


def test_a_folder_in_place_of_a_job_and_a_drawing_that_is_none(job: Path) -> None:
    done = ctrbox("explain", "data", cwd=job.parent, check=1)
    assert done.stderr.startswith("ctrbox: error: data is a folder; expected a job file")
    done = ctrbox("show", "job.py", "-o", "plan.png", cwd=job.parent, check=1)
    assert done.stderr.startswith("ctrbox: error: plan.png cannot be written: show writes SVG")
    assert not (job.parent / "plan.png").exists()


def test_missing_data_is_one_line_that_names_it(job: Path) -> None:
    job.write_text(JOB.replace("data/users", "data/people"))
    done = ctrbox("extract", "job.py", "--count", cwd=job.parent, check=1)
    assert "people" in done.stderr


def test_a_job_imports_its_neighbors(job: Path) -> None:
    (job.parent / "neighbor.py").write_text(JOB)
    job.write_text("from neighbor import plan\n")
    assert ctrbox("extract", "job.py", "--count", cwd=job.parent).stdout == f"{ROWS}\n"


# ---- explain, show, datasets --------------------------------------------------------------


@pytest.mark.slow
def test_explain_in_words_and_as_json(job: Path) -> None:
    assert "layer" in ctrbox("explain", "job.py", cwd=job.parent).stdout.lower()
    assert json.loads(ctrbox("explain", "job.py", "--json", cwd=job.parent).stdout)


def test_explain_places_for_a_device_that_is_not_here(job: Path) -> None:
    assert "cuda" in ctrbox("explain", "job.py", "--device", "cuda:32GB", cwd=job.parent).stdout


def test_show_writes_an_svg(job: Path) -> None:
    ctrbox("show", "job.py", "-o", "out/plan.svg", cwd=job.parent)
    assert "<svg" in (job.parent / "out" / "plan.svg").read_text()


def test_datasets_adlog_makes_every_view(tmp_path: Path) -> None:
    done = ctrbox("datasets", "adlog", "--rows", 500, "--seed", 3, "--out", "log", cwd=tmp_path)
    assert done.stdout == "log\n"
    for view in ("impressions", "users", "ads", "basic"):
        assert pq.read_table(tmp_path / "log" / view).num_rows > 0
    command = shlex.split(done.stderr.partition("next: ")[2])
    assert command[:2] == ["python", "-c"]
    shown = subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "user_id: int64" in shown.stdout


def test_another_ad_log_is_replaced_only_where_asked(tmp_path: Path) -> None:
    words = ("datasets", "adlog", "--rows", 200, "--out", "log")
    ctrbox(*words, cwd=tmp_path)
    before = (tmp_path / "log" / "adlog.json").read_text()
    ctrbox(*words, cwd=tmp_path)  # the same: it is there
    said = ctrbox(*words, "--seed", 3, cwd=tmp_path, check=1).stderr
    assert "log holds another ad log (seed=0); choose another folder, or replace it with --overwrite" in said
    assert (tmp_path / "log" / "adlog.json").read_text() == before
    ctrbox(*words, "--seed", 3, "--overwrite", cwd=tmp_path)
    assert json.loads((tmp_path / "log" / "adlog.json").read_text())["seed"] == 3


def test_datasets_help_has_examples(tmp_path: Path) -> None:
    for verb in ("adlog", "events", "list"):
        assert (
            f"ctrbox datasets {verb}" in ctrbox("datasets", verb, "--help", cwd=tmp_path).stdout.split("Examples:")[1]
        )


def test_datasets_list_names_the_ad_log(tmp_path: Path) -> None:
    assert "adlog" in ctrbox("datasets", "list", cwd=tmp_path).stdout
