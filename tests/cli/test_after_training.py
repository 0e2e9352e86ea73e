"""evaluate, predict, export, report and demo over runs made by hand: all that they print, and the command that follows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.cli import after_training as learning
from ctrbox.cli.demo import demo_job
from ctrbox.cli.terminal import Mistake
from tests.cli.test_words_of_runs import run_of

METRICS = {"rows": 1000.0, "clicks": 200.0, "auc": 0.75, "logloss": 0.4}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command takes 2.5 seconds."""
    now = [10.0]

    def clock() -> float:
        now[0] += 2.5
        return now[0]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(learning, "time", SimpleNamespace(perf_counter=clock))


def opens(monkeypatch: pytest.MonkeyPatch, run: Any) -> list[Any]:
    """Make the commands open this run; return what they ask for."""
    asked: list[Any] = []
    run.learner = SimpleNamespace(sources=[])
    monkeypatch.setattr(learning, "load_run", lambda *given, **more: asked.append((given, more)) or run)
    return asked


def test_an_evaluation_tells_its_speed_and_the_command_that_predicts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = opens(monkeypatch, SimpleNamespace(evaluate=lambda data, histories: {**METRICS, "of": 1.0}))
    learning.evaluate("runs/a b", "new data", ["u=v", "w=x"], ["/data"], job=Path("own.py"), threads=3)
    said = capsys.readouterr()
    assert said.out.splitlines()[-2:] == ["rows                 1,000", "clicks                 200"]
    assert said.err.splitlines() == [
        "scored 1,000 rows in 2.5 s (400 rows/s)",
        "next: ctrbox predict 'runs/a b' 'new data' -o predictions.parquet --job own.py --view u=v --view w=x "
        "--allow-views /data",
    ]
    more = {"view": ["u=v", "w=x"], "allow_views": ["/data"], "threads": 3, "ram": None, "server": None}
    assert asked == [(("runs/a b", Path("own.py")), more)]
    learning.evaluate("runs/a", as_json=True, server=["image=a.ctrvec"])
    said = capsys.readouterr()
    assert json.loads(said.out) == {**METRICS, "of": 1.0, "seconds": 2.5, "run": "runs/a", "data": None}
    assert said.err.splitlines() == [
        "scored 1,000 rows in 2.5 s (400 rows/s)",
        "these are the rows that the run held back for validation",
        "next: ctrbox predict runs/a DATA -o predictions.parquet --server image=a.ctrvec",
    ]
    learning.evaluate("runs/a", "data", state=Path("state"), as_json=True)
    with pytest.raises(Mistake, match=r"^--state needs DATA: FILE holds the earlier events from which"):
        learning.evaluate("runs/a", state=Path("state"))


def test_an_evaluation_of_one_class_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opens(monkeypatch, SimpleNamespace(evaluate=lambda data, histories: {"rows": 5.0, "clicks": 0.0, "logloss": 0.1}))
    learning.evaluate("runs/a")
    assert capsys.readouterr().err.splitlines()[0] == "all 5 rows are non-clicks, so AUC, GAUC and RIG are undefined"


def test_predictions_tell_their_speed_and_where_they_are(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    opens(monkeypatch, run_of([6], [2, 4]))
    learning.predict("runs/a b", "data", "p.parquet")
    said = capsysbinary.readouterr()
    assert said.out == b""
    assert said.err.decode().splitlines() == [
        "predicted 6 rows in 2.50 s (2 rows/s) to p.parquet",
        "next: ctrbox report 'runs/a b'",
    ]
    assert pq.read_table("p.parquet")["id"].to_pylist() == list(range(6))
    opens(monkeypatch, run_of([6], [6]))
    learning.predict("runs/a", "data", "p.csv", as_json=True)
    found = json.loads(capsysbinary.readouterr().out)
    assert found == {
        "rows": 6,
        "seconds": 2.5,
        "rows_per_second": 2.4,
        "output": "p.csv",
        "run": "runs/a",
        "data": "data",
    }
    run = run_of([], [2, 1], key=())
    run.plan.log.name = "log"
    opens(monkeypatch, run)
    learning.predict("runs/a", "data", "-")
    said = capsysbinary.readouterr()
    assert pa.ipc.open_stream(said.out).read_all().to_pydict() == {"probability": [0.0, 0.01, 0.02]}
    first, *others = said.err.decode().splitlines()
    assert first.startswith("warning: view 'log' has no key, so the output has only the column 'probability'")
    assert others == ["predicted 3 rows in 2.50 s (1 rows/s)", "next: ctrbox report runs/a"]


def test_an_export_tells_the_bytes_of_its_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exported(output: Path, format: str) -> Path:
        output.mkdir(exist_ok=True)
        (output / "network").write_bytes(bytes(1200))
        (output / "reader.py").write_bytes(bytes(34))
        return output

    opens(monkeypatch, SimpleNamespace(export=exported))
    told = "exported 1,234 bytes to out in 2.5 s; the module reader.py in that folder computes predictions from it\n"
    learning.export("runs/a", Path("out"))
    assert capsys.readouterr() == ("out\n", told)
    learning.export("runs/a", Path("out"), "torch", as_json=True)
    said = capsys.readouterr()
    facts = {"run": "runs/a", "output": "out", "format": "torch", "bytes": 1234, "seconds": 2.5}
    assert (json.loads(said.out), said.err) == (facts, told)


def test_a_report_lies_where_its_run_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pushed: list[bool] = []
    far = SimpleNamespace(push=lambda: pushed.append(True), shown=lambda name: f"s3://b/run/{name}")
    monkeypatch.setattr("ctrbox.report.write_report.write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(learning, "evaluate_command", lambda folder, shown: f"{folder} as {shown}")
    for stored, place in ((None, "copy/report.html"), (far, "s3://b/run/report.html")):
        monkeypatch.setattr(learning, "fetched", lambda run, stored=stored: (Path("copy"), stored))
        learning.report("run")
        assert capsys.readouterr() == (f"{place}\n", "next: copy as run\n")
        learning.report("run", as_json=True)
        assert json.loads(capsys.readouterr().out) == {"report": place}
    assert pushed == [True, True]


def test_a_demo_replaces_what_a_demo_wrote(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(learning, "generate", lambda rows, seed, out: begun.append((rows, seed, str(out))))
    monkeypatch.setattr(learning, "load_seeded", lambda path, seed: SimpleNamespace(plan=None))
    monkeypatch.setattr(learning, "best_auc", lambda plan, truth: 0.8)
    monkeypatch.setattr(learning, "fit", lambda job, place, asked, **more: begun.append((str(place), more)))
    monkeypatch.setattr(learning, "finish", lambda done, as_json: None)
    out = Path("my demo")
    out.mkdir()
    for again in (False, True):
        learning.demo(1500, out)
        assert begun == [(1500, 1, "my demo/data"), ("my demo/run", {"overwrite": again, "best": 0.8})]
        assert capsys.readouterr().err.splitlines() == [
            "generated 1,500 impressions in 2.5 s: my demo/data",
            "compiled my demo/job.py in 2.50 s",
            "next: ctrbox predict 'my demo/run' 'my demo/data/impressions' -o clicks.parquet",
        ]
        assert (out / "job.py").read_text() == demo_job()
        begun.clear()
        (out / "run").mkdir(exist_ok=True)
        (out / "run" / "summary.json").touch()


def test_keys_belong_to_their_predictions_where_a_filter_reads_a_history(tmp_path: Path) -> None:
    def log(name: str, first: int, rows: int) -> str:
        numbers = np.arange(first, first + rows)
        columns = {"id": numbers, "ts": pa.array(numbers, pa.timestamp("s")), "user": numbers % 3, "click": numbers % 2}
        pq.write_table(pa.table(columns), tmp_path / name)
        return str(tmp_path / name)

    view = cb.View(log("past.parquet", 0, 7), name="log", key="id")
    view = view.with_history(seen=cb.past(by="user", time="ts").count()).filter(col("seen") < 3)
    features = cb.FeatureSet(label=col("click"), sparse={"user": col("user").key()})
    plan = cb.compile(view, features, device="cpu", threads=1)
    run = cb.Trainer(cb.models.LR(plan.schema), device="cpu", threads=1).fit(plan, batch_size=4)
    state = plan.histories()
    state.read_log()
    state.save(tmp_path / "s.past")
    parts = learning.predictions(run, log("new.parquet", 9, 6), None, tmp_path / "s.past")
    assert [row["id"] for part in parts for row in part.to_pylist()] == [10, 11]  # user 0 came three times
