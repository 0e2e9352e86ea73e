"""The verbs that learn, as a user meets them: train, evaluate, predict, report, demo.

A process of its own takes seconds to import torch: what does not need one calls the verb in this process.
"""

from __future__ import annotations

import csv
import gc
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.cli import after_training as learning
from ctrbox.cli import train as training_command
from ctrbox.cli.terminal import Mistake, tell_warning
from ctrbox.cli.train import run_place
from ctrbox.errors import CtrboxError, PlanError
from tests.cli.warm import run_command
from tests.own_model import OWN_MODEL

ROWS = 3_000

# A model of the user's own, so that loading it again needs the job; PAUSE makes a training long enough to be interrupted.
JOB = """\
import os
import time

import torch

import ctrbox as cb
from ctrbox import col

log = cb.View("data/impressions", key="instance_id").fill(query="", device="unknown", position=-1)
features = cb.FeatureSet(
    label=col("clicked"),
    group=col("user_id"),
    sparse={"user": col("user_id").key(), "ad": col("ad_id").key(), "device": col("device").key()},
    dense={"position": col("position")},
)
plan = cb.compile(log.filter(col("device") != "tv"), features)
"""
JOB += OWN_MODEL


def ctrbox(*arguments: object, cwd: Path, check: int = 0, text: bool = True, **more: str) -> Any:
    done = run_command(arguments, cwd=cwd, env=environment(**more), text=text)
    assert done.returncode == check, done.stderr
    assert "Traceback" not in str(done.stderr)
    return done


def environment(**more: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("CTRBOX_TRACEBACK", "PAUSE")} | more


Call = Callable[..., tuple[str, str]]


@pytest.fixture
def call(here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """`call(verb, …)` as cli.py would in a folder; returns what it wrote to stdout and stderr."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def called(verb: Callable[..., None], *arguments: Any, cwd: Path = here, **options: Any) -> tuple[str, str]:
        monkeypatch.chdir(cwd)
        capfd.readouterr()
        verb(*arguments, **options)
        found = capfd.readouterr()
        return found.out, found.err

    return called


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a job."""
    from ctrbox import datasets

    folder = tmp_path_factory.mktemp("learning")
    datasets.adlog(rows=ROWS, seed=1, out=folder / "data")
    (folder / "job.py").write_text(JOB)
    return folder


@pytest.fixture(scope="module")
def trained(here: Path) -> Any:
    """The same folder after a training, and what the training said."""
    return ctrbox("train", "job.py", "--batch-size", 500, "--seed", 3, cwd=here)


def kept_rows(folder: Path) -> pa.Table:
    """What the job's filter keeps; a null device is filled before it."""
    table = pq.read_table(folder / "data" / "impressions")
    return table.filter(pa.compute.fill_null(pa.compute.not_equal(table.column("device"), "tv"), True))


# ---- train --------------------------------------------------------------------------------------


def test_train_ends_with_metrics_stages_report_and_the_next_command(here: Path, trained: Any) -> None:
    assert trained.stdout == "runs/job\n"
    for words in (
        "95 % interval",
        "\nAUC                 0.",
        "\nlog loss            0.",
        "\ncalibration         1.",
        "rows/s",
        "intermediate files: 0 bytes",
        "extract",
        "lookup",
    ):
        assert words in trained.stderr
    assert "report: runs/job/report.html\nnext: ctrbox evaluate runs/job --job job.py\n" in trained.stderr
    page = (here / "runs" / "job" / "report.html").read_text(encoding="utf-8")
    assert "ctrbox train job.py --out runs/job --batch-size 500 --seed 3" in page


def test_training_with_weights_tells_both_figures_and_how_to_correct_them(here: Path, call: Call) -> None:
    weighted = JOB[: JOB.index("class Mine")].replace(
        "    label=", '    weight=cb.when(col("clicked") > 0).then(60.0).otherwise(1.0),\n    label='
    )
    assert weighted != JOB[: JOB.index("class Mine")]
    (here / "weighted.py").write_text(weighted + "model = cb.models.LR(plan.schema)\n")
    with pytest.warns(
        UserWarning,
        match="because training used sample weights, the predictions are far from the click rate: their mean is",
    ):
        _, told = call(training_command.train, Path("weighted.py"), batch_size=20, epochs=3)
    assert "by weight" in told
    found, _ = call(learning.evaluate, Path("runs/weighted"))
    calibration = next(line for line in found.splitlines() if line.startswith("calibration")).split()
    assert float(calibration[1]) > 1.2 > float(calibration[-1])
    calibrated, _ = call(training_command.train, Path("weighted.py"), batch_size=20, epochs=3, calibrate="weights")
    assert json.loads((Path(calibrated.strip()) / "model" / "state.json").read_text())["shift"] == pytest.approx(
        -math.log(60)
    )
    with pytest.raises(Mistake, match=r"--calibrate must be 'platt', 'isotonic', 'weights', 'intercept', or a number"):
        call(training_command.train, Path("weighted.py"), calibrate="spline")


SPARSE_JOB = (
    JOB[: JOB.index("class Mine")]
    + """
model = cb.models.DeepFM(plan.schema, dim=4)
table = cb.SparseTable("params", 4, ram="8MB")
"""
)


def test_a_job_with_a_sparse_table_tells_what_was_asked_of_it(here: Path, call: Call) -> None:
    (here / "sparse.py").write_text(SPARSE_JOB)
    _, told = call(training_command.train, Path("sparse.py"), batch_size=500)
    gc.collect()  # the table of the job is closed with it, as at the end of a process
    assert re.search(r"  lookup .* waited .* for .*  queue \d\.\d, most \d", told)
    assert re.search(
        r"all stages one after the other: \S+ s; the slowest stage alone: \S+ s; all stages in parallel: "
        r"\S+ s",
        told,
    )
    line = (
        r"table-0 \(.*/params\): [\d,]+ keys looked up, 100.0% of the known keys found in memory, [\d,]+ new keys, "
        r"0.000 pages read"
    )
    assert re.search(line, told)
    with pytest.warns(UserWarning, match="already holds .* rows"):
        _, told = call(training_command.train, Path("sparse.py"), limit=600)
    assert told.startswith(
        "runs/sparse holds a finished run, so this run is written to runs/sparse-2; "
        "--overwrite replaces the old run instead\n"
    )
    found, _ = call(learning.evaluate, Path("runs/sparse"), ram="8MB")
    assert "AUC" in found
    with pytest.raises(PlanError, match="ram= must be a size such as"):
        call(learning.predict, Path("runs/sparse"), "data/impressions", "x.parquet", ram="lots")


def test_overwrite_asks_what_becomes_of_a_sparse_table_and_from_goes_on_from_a_run(here: Path, call: Call) -> None:
    (here / "days.py").write_text(SPARSE_JOB.replace('"params"', '"days"'))
    train, job = training_command.train, Path("days.py")
    call(train, job, batch_size=500)
    gc.collect()
    with pytest.raises(Mistake, match=r"--overwrite starts the run over, but .* --tables empty, or .* --tables keep"):
        call(train, job, batch_size=500, overwrite=True)
    gc.collect()
    _, told = call(train, job, batch_size=500, overwrite=True, tables="empty")
    gc.collect()
    assert "already holds" not in told
    _, told = call(train, job, batch_size=500, earlier=Path("runs/days"), lr=0.01)
    gc.collect()
    assert "starting from the weights, tables and optimizer states of runs/days" in told
    assert "already holds" not in told
    with cb.SparseTable.load(here / "days", ram="8MB") as table:
        assert table.optimizer == cb.Adagrad(lr=0.01, initial=1.0)  # the rate of --lr, the rest of the default
    page = (here / "runs" / "days-2" / "report.html").read_text(encoding="utf-8")
    assert "--from runs/days --lr 0.01" in page
    for options, words in (
        ({"earlier": Path("runs/nowhere")}, "runs/nowhere holds no finished run; these runs are finished: runs/"),
        ({"earlier": Path("runs/days"), "out": Path("runs/days"), "overwrite": True}, "choose another --out"),
    ):
        with pytest.raises(Mistake, match=words):
            call(train, job, **options)
    job.write_text(job.read_text() + "settings = {'warm_up': 'continue'}\n")
    with pytest.raises(Mistake, match=r"^`settings` in days\.py has 'warm_up', which --from also sets; remove one"):
        call(train, job, earlier=Path("runs/days"))


def test_callbacks_of_a_job_are_called(here: Path, call: Call) -> None:
    text = """
class Stop(cb.callbacks.Callback):
    def on_step(self, event):
        if event.step == 3:
            raise cb.callbacks.StopTraining("three are enough")

callbacks = [Stop()]
"""
    (here / "stopping.py").write_text(JOB + text)
    stdout, _ = call(training_command.train, Path("stopping.py"), batch_size=200, as_json=True)
    found = json.loads(stdout)
    assert (found["steps"], found["stopped"]) == (3, "three are enough")
    (here / "stopping.py").write_text(JOB + "callbacks = 3\n")
    with pytest.raises(Mistake, match=r"`callbacks` in stopping.py must be a list of callbacks, got int"):
        call(training_command.train, Path("stopping.py"))


def test_a_warning_for_a_user_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    tell_warning("mind the gap", UserWarning, "x.py", 3)
    tell_warning("will go", DeprecationWarning, "x.py", 3)
    told = capfd.readouterr().err
    assert told == "ctrbox: warning: mind the gap\nx.py:3: DeprecationWarning: will go\n"


@pytest.mark.slow
def test_the_command_of_the_report_gives_the_same_weights(here: Path, trained: Any, tmp_path: Path) -> None:
    config = json.loads((here / "runs" / "job" / "config.json").read_text())
    command = [word if word != "runs/job" else str(tmp_path / "again") for word in config["command"][1:]]
    done = ctrbox(*command, "--json", cwd=here)
    found = json.loads(done.stdout)
    assert found["rows"]["train"] + found["rows"]["valid"] == kept_rows(here).num_rows
    assert found["intermediate_bytes"] == 0
    assert Path(found["report"]).is_file()
    first = sorted(p for p in (here / "runs" / "job" / "model").iterdir() if p.suffix == ".safetensors")
    assert first
    for file in first:
        assert file.read_bytes() == (tmp_path / "again" / "model" / file.name).read_bytes()


@pytest.mark.parametrize(
    ("finished", "begun", "options", "expected"),
    [
        ([], [], {}, ("runs/job", False)),
        (["job"], [], {}, ("runs/job-2", False)),
        (["job", "job-2"], [], {}, ("runs/job-3", False)),
        ([], ["job"], {}, ("runs/job", True)),
        (["job"], ["job-2"], {}, ("runs/job-2", True)),
        ([], ["job"], {"resume": False}, ("runs/job-2", False)),
        (["job"], [], {"overwrite": True}, ("runs/job", False)),
        (["x"], [], {"out": Path("runs/x"), "overwrite": True}, ("runs/x", False)),
        ([], ["x"], {"out": Path("runs/x")}, ("runs/x", True)),
        (["x"], [], {"out": Path("runs/x")}, "finished run; choose another --out, or replace it with --overwrite"),
        ([], ["x"], {"out": Path("runs/x"), "resume": False}, "unfinished run; remove --no-resume"),
    ],
)
def test_where_a_run_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: list[str], begun: list[str], options: Any, expected: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [*finished, *begun]:
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    for name in finished:
        (tmp_path / "runs" / name / "summary.json").touch()
    for name in begun:
        (tmp_path / "runs" / name / "checkpoints" / "step-0000000004").mkdir(parents=True)
    asked = {"out": None, "resume": True, "overwrite": False} | options
    if isinstance(expected, str):
        with pytest.raises(Mistake, match=expected):
            run_place(Path("jobs/job.py"), **asked)
    else:
        place, going_on = run_place(Path("jobs/job.py"), **asked)
        assert (str(place), going_on) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_training_says_how_to_go_on_and_does(
    here: Path, tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ctrbox", "train", "job.py", "--out", tmp_path / "run", "--batch-size", "20"],
        cwd=here,
        env=environment(PAUSE="0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A runner that ignores Ctrl-C would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(sent)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == code, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert "ctrbox: stopped; unfinished output was removed" not in stderr
    line = stderr.strip().split("\n")[-1]
    assert line == f"resume: ctrbox train job.py --out {tmp_path / 'run'} --batch-size 20"
    if sent == signal.SIGTERM:
        return  # both signals leave the same checkpoint: one of them is enough for what follows

    done = ctrbox("train", "job.py", "--out", tmp_path / "run", "--batch-size", 30, cwd=here, check=1)
    assert "differs in" in done.stderr
    assert "or start over with --overwrite" in done.stderr
    done = ctrbox("report", tmp_path / "run", cwd=here, check=1)
    assert "its run has not finished;" in done.stderr
    done = ctrbox(*shlex.split(line)[2:], cwd=here)
    assert f"continuing the unfinished run in {tmp_path / 'run'}" in done.stderr
    assert "continuing after step " in done.stderr
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            ("model = Mine(plan.schema)", ""),
            {},
            "job.py defines no `model`; add: model = cb.models.DeepFM(plan.schema)",
        ),
        (
            ("model = Mine(plan.schema)", "model = Mine"),
            {},
            "is the class Mine; expected an instance of it: Mine(plan.schema)",
        ),
        (("model = Mine(plan.schema)", "model = 7"), {}, "is a int; expected a torch module with `reads`"),
        (("self.top(torch", "self.tip(torch"), {}, "job.py:27: AttributeError: 'Mine' object has no attribute 'tip'"),
        (("", ""), {"valid": "2"}, "valid must be a share from 0 to 0.9, got 2.0"),
        (("", ""), {"valid": "nowhere"}, "nowhere does not exist"),
        (("", ""), {"look_ahead": 8}, "--look-ahead needs a cb.SparseTable, but this training has none; remove it"),
        (
            ("model = Mine", "table = cb.SparseTable('params', 4)\nmodel = Mine"),
            {"look_ahead": 8, "patience": 1},
            "--look-ahead cannot be used with --patience, because it creates rows",
        ),
        (("", ""), {"out": Path("data")}, "data is not a run folder: it holds "),
        (('label=col("clicked")', 'label=col("position").fill(0)'), {}, "label"),
        (('col("device") != "tv"', 'col("device") == "toaster"'), {}, "rows"),
    ],
)
def test_a_mistake_is_one_line(
    here: Path, tmp_path: Path, call: Call, change: tuple[str, str], options: dict[str, Any], message: str
) -> None:
    (tmp_path / "data").symlink_to(here / "data")
    (tmp_path / "job.py").write_text(JOB.replace(*change))
    with pytest.raises((Mistake, CtrboxError)) as caught:
        call(training_command.train, Path("job.py"), cwd=tmp_path, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_mistake_in_a_process_is_one_line_and_code_1(here: Path, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(here / "data")
    (tmp_path / "job.py").write_text(JOB.replace("model = Mine(plan.schema)", ""))
    done = ctrbox("train", "job.py", cwd=tmp_path, check=1)
    assert done.stdout == ""
    assert done.stderr == "ctrbox: error: job.py defines no `model`; add: model = cb.models.DeepFM(plan.schema)\n"


# ---- evaluate, predict, report ------------------------------------------------------------------


RUN, OWN = Path("runs/job"), Path("job.py")


def test_evaluate_measures_the_rows_of_a_log(here: Path, trained: Any, call: Call) -> None:
    stdout, stderr = call(learning.evaluate, RUN, job=OWN, as_json=True)
    held = json.loads(stdout)
    told = json.loads((here / RUN / "summary.json").read_text(encoding="utf-8"))["metrics"]
    assert (held["rows"], held["auc"], held["logloss"]) == (told["rows"], told["auc"], told["logloss"])
    assert "the rows that the run held back" in stderr
    assert "next: ctrbox predict runs/job DATA -o predictions.parquet --job job.py" in stderr
    part = sorted((here / "data" / "impressions").glob("*.parquet"))[0]
    stdout, _ = call(learning.evaluate, RUN, str(part), job=OWN, as_json=True)
    whole = json.loads(stdout)
    kept = kept_rows(here)
    assert whole["rows"] == kept.num_rows
    assert whole["clicks"] == pa.compute.sum(kept.column("clicked")).as_py()
    assert 0.5 < whole["auc"] < 1
    words, _ = call(learning.evaluate, RUN, str(part), job=OWN)
    assert f"{whole['auc']:.4f}" in words
    assert f"{whole['rows']:,.0f}" in words


@pytest.mark.slow
def test_predictions_carry_their_keys_in_the_order_of_the_log(
    here: Path, trained: Any, tmp_path: Path, call: Call
) -> None:
    call(learning.predict, RUN, "data/impressions", str(tmp_path / "p.parquet"), job=OWN)
    call(learning.predict, RUN, "data/impressions", str(tmp_path / "p.csv"), job=OWN, threads=1)
    stream = ctrbox(
        "predict", "runs/job", "data/impressions", "--job", "job.py", "-o", "-", cwd=here, text=False
    ).stdout
    table = pq.read_table(tmp_path / "p.parquet", page_checksum_verification=True)
    assert table.column_names == ["instance_id", "probability"]
    assert table.column("instance_id").to_pylist() == kept_rows(here).column("instance_id").to_pylist()
    p = table.column("probability").to_numpy()
    assert ((p > 0) & (p < 1)).all()
    assert len(set(p.tolist())) > 100
    assert pa.ipc.open_stream(stream).read_all().to_pydict() == table.to_pydict()
    with (tmp_path / "p.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["instance_id"]) for line in lines] == table.column("instance_id").to_pylist()
    assert [float(line["probability"]) for line in lines] == pytest.approx(p.tolist(), rel=1e-12)


def test_a_log_without_labels_is_predicted_and_one_without_rows_left_too(
    here: Path, trained: Any, tmp_path: Path, call: Call
) -> None:
    kept = kept_rows(here).drop_columns(["clicked"])
    pq.write_table(kept, tmp_path / "new.parquet")
    pq.write_table(kept.slice(0, 0), tmp_path / "none.parquet")
    for name, rows in (("new", kept.num_rows), ("none", 0)):
        data, output = str(tmp_path / f"{name}.parquet"), str(tmp_path / "p.arrow")
        stdout, _ = call(learning.predict, RUN, data, output, job=OWN, as_json=True)
        assert json.loads(stdout)["rows"] == rows
        found = pa.ipc.open_file(output).read_all()
        assert found.num_rows == rows
        assert found.schema.field("instance_id").type == pa.int64()
        assert found.schema.field("probability").type == pa.float64()


def test_report_is_written_again(here: Path, trained: Any, call: Call) -> None:
    page = here / "runs" / "job" / "report.html"
    before = page.read_bytes()
    page.unlink()
    stdout, _ = call(learning.report, RUN)
    assert stdout == "runs/job/report.html\n"
    assert page.read_bytes() == before


def test_what_cannot_be_loaded_is_one_line(here: Path, trained: Any, tmp_path: Path, call: Call) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(here / "runs" / "job", broken)
    weights = next((broken / "model").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-3])
    (broken / "summary.json").write_text("{")
    own: dict[str, Any] = {"job": OWN}
    for verb, arguments, options, message in (
        (learning.evaluate, [RUN], {}, "name the job that has it: --job JOB.PY"),
        (learning.evaluate, [Path("runs/jop")], {}, "there is no run folder runs/jop; this folder has: runs/"),
        (learning.evaluate, [broken], own, "broken"),
        (learning.evaluate, [Path("data")], own, "data is not a run folder"),
        (learning.evaluate, [RUN, "data/users"], own, "data/users"),
        (learning.predict, [RUN, "nowhere", "p.csv"], own, "nowhere does not exist"),
        (learning.predict, [RUN, "data", "p.txt"], own, "must end in .parquet, .arrow or .csv"),
        (learning.report, [broken], {}, "summary.json is damaged"),
        (learning.report, [Path("data")], {}, "data is not a run folder"),
    ):
        with pytest.raises((Mistake, CtrboxError)) as caught:
            call(verb, *arguments, **options)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (here / "p.csv").exists()


# ---- demo ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_demo_goes_the_whole_path(tmp_path: Path, call: Call) -> None:
    out, rows = Path("d"), 3_000
    stdout, stderr = call(learning.demo, rows, out, as_json=True, cwd=tmp_path)
    found = json.loads(stdout)
    assert found["rows"]["train"] / found["epochs"] + found["rows"]["valid"] == rows
    assert 0.5 < found["metrics"]["best_auc"] < 1
    assert "best possible" in stderr
    assert "intermediate files: 0 bytes" in stderr
    assert "next: ctrbox predict d/run d/data/impressions -o clicks.parquet" in stderr
    assert "best possible" in (tmp_path / "d" / "run" / "report.html").read_text(encoding="utf-8")
    # The next command works, and a second demo replaces the first.
    call(learning.predict, Path("d/run"), "d/data/impressions", "clicks.parquet", cwd=tmp_path)
    assert pq.read_table(tmp_path / "clicks.parquet").num_rows == rows
    again = json.loads(call(learning.demo, rows, out, as_json=True, cwd=tmp_path)[0])
    assert again["metrics"] == found["metrics"]


def test_the_best_possible_auc_counts_every_pair_of_the_validation_rows(here: Path) -> None:
    import ctrbox as cb
    from ctrbox import col
    from ctrbox.cli.demo import best_auc

    log = cb.View(str(here / "data" / "impressions"), key="instance_id").fill(device="unknown")
    plan = cb.compile(
        log.filter(col("device") != "tv"), cb.FeatureSet(label=col("clicked"), sparse={"u": col("user_id").key()})
    )
    # The slow twin: the newest tenth of the log, filtered, every pair of a click and a non-click.
    impressions = pq.read_table(here / "data" / "impressions").to_pylist()
    truth = {row["instance_id"]: row["p_click"] for row in pq.read_table(here / "data" / "truth").to_pylist()}
    newest = [row for row in impressions[ROWS - ROWS // 10 :] if row["device"] != "tv"]
    clicked = np.array([np.float32(truth[r["instance_id"]]) for r in newest if r["clicked"]])
    others = np.array([np.float32(truth[r["instance_id"]]) for r in newest if not r["clicked"]])
    above = (clicked[:, None] > others).sum() + 0.5 * (clicked[:, None] == others).sum()
    assert best_auc(plan, here / "data" / "truth") == pytest.approx(above / (len(clicked) * len(others)), abs=1e-12)
