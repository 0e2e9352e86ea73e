"""Every example runs as a job: it finds or makes its data, trains, and its run comes back from its folder."""

from __future__ import annotations

import gzip
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import ctrbox as cb
from ctrbox.cli.demo import demo_job_path
from ctrbox.plan.language.feature_text import parse_feature

DEMO = "the job that `ctrbox demo` writes"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def job(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int = 4000) -> dict[str, Any]:
    for variable in ("CTRBOX_MOVIELENS", "CTRBOX_CRITEO"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CTRBOX_DATA", str(folder / "data"))
    monkeypatch.setenv("CTRBOX_ROWS", str(rows))
    return load(name)


def load(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    path = demo_job_path() if name == DEMO else EXAMPLES / name
    return runpy.run_path(str(path), run_name="ctrbox_job")


def test_there_is_a_test_for_every_example() -> None:
    assert {p.name for p in EXAMPLES.glob("*.py")} == {"movielens.py", "criteo.py", "past.py"}


@pytest.mark.parametrize(
    ("name", "rows", "least"),
    [(DEMO, 4000, 0.5), ("past.py", 4000, 0.5), ("movielens.py", 6000, 0.6), ("criteo.py", 4000, 0.52)],
)
@pytest.mark.slow
def test_an_example_trains_and_its_run_comes_back(
    name: str, rows: int, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in (DEMO, "past.py"):
        cb.datasets.adlog(rows=rows, seed=1, out=tmp_path / "data")
    found = job(name, tmp_path, monkeypatch, rows)
    run = cb.Trainer(found["model"], found.get("table")).fit(
        found["plan"], out=tmp_path / "run", batch_size=512, epochs=2, by={}
    )
    assert run.metrics["auc"] > least
    assert run.summary["rows"] == {"train": run.summary["rows"]["train"], "valid": rows // 10}
    again = cb.Run.load(tmp_path / "run").evaluate()
    assert again["rows"] == rows // 10
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("name", ["movielens.py", "criteo.py"])
def test_made_up_data_is_made_once_and_is_the_same_everywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = job(name, tmp_path / "a", monkeypatch, 1000)["plan"]
    files = {p: p.stat().st_mtime_ns for p in sorted((tmp_path / "a").rglob("*.*"))}
    again = job(name, tmp_path / "a", monkeypatch, 1000)["plan"]
    assert files == {p: p.stat().st_mtime_ns for p in sorted((tmp_path / "a").rglob("*.*"))}
    elsewhere = job(name, tmp_path / "b", monkeypatch, 1000)["plan"]
    batches = [cb.Batch.concat(list(p.batches(256))).to_arrow() for p in (first, again, elsewhere)]
    assert batches[0].equals(batches[1])
    assert batches[0].equals(batches[2])


def test_histories_hold_what_was_liked_before_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = job("movielens.py", tmp_path, monkeypatch, 1500)
    rows = pa.Table.from_batches(pq.ParquetFile(found["log_file"]).iter_batches()).to_pylist()
    assert [r["ts"] for r in rows] == sorted(r["ts"] for r in rows)
    histories = cb.compute({"history": cb.col("history")}, found["log"])["history"].to_pylist()
    for row, history in zip(rows, histories, strict=True):
        before = [r for r in rows if r["userId"] == row["userId"] and r["rating"] >= 4 and r["ts"] < row["ts"]]
        assert history == [r["movieId"] for r in before][-20:]


def test_real_movielens_files_are_read_from_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "ml-latest-small"
    real.mkdir()
    (real / "movies.csv").write_text(
        "movieId,title,genres\n1,Toy Story (1995),Adventure|Animation\n"
        '11,"American President, The (1995)",Comedy|Drama\n7,Odd,(no genres listed)\n'
    )
    (real / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n1,11,4.0,964982703\n1,1,4.5,964981247\n2,7,0.5,964983815\n"
    )
    monkeypatch.setenv("CTRBOX_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CTRBOX_MOVIELENS", str(real))
    found = load("movielens.py")
    batch = next(found["plan"].batches(10))
    assert batch.label.tolist() == [1, 1, 0]
    assert np.diff(batch.sparse["history"].offsets).tolist() == [0, 1, 0]
    assert batch.sparse["history"].values[0] == batch.sparse["movie"].values[0]
    years = found["plan"].columns({"year": cb.col("year")})
    assert next(years)["year"].to_pylist()[:2] == ["1995", "1995"]


def test_a_real_criteo_file_is_read_from_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "\t".join(["1", "", "-1", *["5"] * 11, "68fd1e64", "", *["80e26c9b"] * 24]) + "\n"
    with gzip.open(tmp_path / "day_0.gz", "wt") as file:
        file.write(line * 3)
    monkeypatch.setenv("CTRBOX_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CTRBOX_CRITEO", str(tmp_path / "day_0.gz"))
    plan = load("criteo.py")["plan"]
    batch = next(plan.batches(10))
    assert batch.label.tolist() == [1, 1, 1]
    assert batch.dense[0, :3].tolist() == pytest.approx([0.0, 0.0, np.log1p(5)])
    assert (tmp_path / "data" / "criteo" / "day_0.parquet").exists()


def test_the_made_up_criteo_log_has_missing_values_and_both_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job("criteo.py", tmp_path, monkeypatch, 2000)
    lines = cb.datasets.criteo(tmp_path / "data" / "criteo" / "made-up.txt")
    table = pa.Table.from_batches(lines.batches())
    assert table.num_rows == 2000
    assert 0.05 < np.mean(table["label"].to_numpy()) < 0.6
    assert table["I3"].null_count > 0
    assert table["C3"].null_count > 0


def test_a_trial_of_the_planted_taste_is_run_on_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decades come in and out of fashion, by user: the cross of both is planted in the made-up ratings."""
    found = job("movielens.py", tmp_path, monkeypatch, 6000)
    plan = found["plan"]
    name, e = parse_feature("user_decade=cross('userId', year.prefix(3))")
    trial = cb.trial(plan, cb.models.LR(plan.schema), {name: e}, seeds=1, batch_size=256, valid=0.3, epochs=3)
    assert trial["user_decade"].verdict == "better"
