"""Many models over one stream: each with the bits it has alone, the table, the page, what is refused."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.columns.batch import Ragged
from ctrbox.ffm.model_search import Found, Results
from ctrbox.ffm.progressive_validation import auc
from tests.ffm.test_context import schema_of

FIELDS = ["user", "ad", "hour"]


def text(rows: int, seed: int) -> str:
    random = np.random.default_rng(seed)
    users, ads, hours = (random.integers(0, n, rows).tolist() for n in (8, 6, 4))
    odd = random.random(rows).tolist()
    return "".join(
        f"{1 if odd[r] < (0.8 if (users[r] + ads[r]) % 2 else 0.1) else -1} |user {users[r]} |ad {ads[r]} |hour {hours[r]}\n"
        for r in range(rows)
    )


@pytest.fixture
def caches(tmp_path: Path) -> tuple[Path, Path]:
    for name, rows in (("train", 1_000), ("test", 200)):
        (tmp_path / f"{name}.vw").write_text(text(rows, rows))
        cb.ffm.ExampleCache.parse(tmp_path / f"{name}.vw", tmp_path / f"{name}.ctrx", fields=FIELDS)
    return tmp_path / "train.ctrx", tmp_path / "test.ctrx"


def test_each_model_is_what_it_would_be_alone(caches: tuple[Path, Path]) -> None:
    train, test = caches
    models = cb.ffm.grid(k=[2, 4], hidden=[(), (6,)], bits=[12]) | {"lr": {"ffm": None, "bits": 12, "context": ["ad"]}}
    assert list(models) == ["k=2 hidden=()", "k=2 hidden=(6)", "k=4 hidden=()", "k=4 hidden=(6)", "lr"]
    found = cb.ffm.search(train, models, test=test, window=300, threads=3)
    labels = np.concatenate([b.labels for b in cb.ffm.ExampleCache(test)])
    for one in found.found:
        alone = cb.DeepFFM(FIELDS, **one.options)
        alone.progress.window = 300
        alone.learn(cb.ffm.ExampleCache(train))
        assert alone._native.weights().tobytes() == one.model._native.weights().tobytes()
        assert one.aucs == [w.auc for w in alone.progress.windows]
        assert len(one.aucs) == 3
        assert one.test == auc(labels, alone.predict(cb.ffm.ExampleCache(test)))
    assert found.best.test == max(f.test for f in found.found)
    assert found.examples == 1_000


def test_the_table_has_the_numbers_of_the_windows(caches: tuple[Path, Path], tmp_path: Path) -> None:
    found = cb.ffm.search(caches[0], cb.ffm.grid(k=[2, 4], bits=[12]), window=250)
    lines = str(found).splitlines()
    assert lines[0] == "window = 250, 1,000 examples"
    assert lines[1].split() == ["model", "avg", "median", "max", "std", "min", "test"]
    one = found.found[0]
    numbers = [statistics.fmean(one.aucs), statistics.median(one.aucs), max(one.aucs), statistics.pstdev(one.aucs)]
    assert lines[2].split()[:6] == ["k=2", *(f"{v:.4f}" for v in [*numbers, min(one.aucs)])]
    assert lines[2].split()[6] == "-"
    assert sum(line.endswith("*") for line in lines) == 1
    found.write(tmp_path / "search.html")
    page = (tmp_path / "search.html").read_text()
    assert "k=4" in page
    assert "<svg" in page
    assert json.loads(json.dumps(found.json()))["best"] == found.best.name


def test_a_window_holds_at_least_two_examples(tmp_path: Path) -> None:
    (tmp_path / "t.vw").write_text(text(10, 3))
    rows = cb.ffm.ExampleText(tmp_path / "t.vw", fields=FIELDS)
    assert len(cb.ffm.search(rows, {"a": {"bits": 10}}, window=2).best.aucs) == 5
    for window in (1, 0, True, 2.0):
        with pytest.raises(cb.errors.PlanError, match="window= must be a whole number from 2 to"):
            cb.ffm.search(rows, {"a": {"bits": 10}}, window=window)  # type: ignore[arg-type]


def test_batches_and_text_are_searched_over_their_fields(tmp_path: Path) -> None:
    rows = cb.ffm.ExampleText(tmp_path / "t.vw", fields=FIELDS)
    (tmp_path / "t.vw").write_text(text(100, 3))
    assert len(cb.ffm.search(rows, {"a": {"bits": 10}}).best.aucs) == 1  # fewer rows than a window: of all
    with pytest.raises(cb.errors.PlanError, match="pass them: search"):
        cb.ffm.search(cb.ffm.ExampleText(tmp_path / "t.vw"), {"a": {}})
    schema = schema_of(["ad"], [])
    keys = Ragged(np.array([1, 2]), np.arange(3))
    batch = cb.Batch(schema, 2, np.array([0, 1], np.float32), np.zeros((2, 0), np.float32), {"ad": keys}, None)
    assert cb.ffm.search(batch, {"a": {"bits": 10}}).examples == 2


def results(*models: tuple[str, float, list[float], str], tested: bool) -> Results:
    engine = cb.DeepFFM(["a"], bits=4)
    return Results([Found(name, {}, engine, test, failed, aucs) for name, test, aucs, failed in models], 10, 10, tested)


NAN = math.nan


@pytest.mark.parametrize(
    ("models", "tested", "best"),
    [
        ((("a", 0.6, [0.9], ""), ("b", 0.7, [0.1], "")), True, "b"),  # a test decides, not the windows
        ((("a", NAN, [0.9], ""), ("b", 0.7, [0.1], "")), True, "b"),  # no AUC on the test is not an AUC of windows
        ((("a", 0.9, [0.9], "broke"), ("b", 0.7, [0.1], "")), True, "b"),  # a model that failed is out
        ((("a", NAN, [0.6, NAN], ""), ("b", NAN, [0.5, 0.5], "")), False, "a"),  # a window without clicks is left out
        ((("a", NAN, [], ""), ("b", NAN, [0.5], "")), False, "b"),
        ((("a", NAN, [0.5], ""), ("b", NAN, [0.5], "")), False, "a"),  # of equal ones the first
    ],
)
def test_the_best_is_never_a_model_that_failed_or_has_no_score(models: Any, tested: bool, best: str) -> None:
    found = results(*models, tested=tested)
    assert found.best.name == best
    assert found.json()["best"] == best
    marked = [line.split()[0] for line in str(found).splitlines() if line.endswith("*")]
    assert marked == [best]


def test_a_search_without_any_score_has_no_best_and_still_tells_what_happened(tmp_path: Path) -> None:
    found = results(("a", NAN, [NAN], ""), ("b", NAN, [0.7], "not finite at example 3"), tested=True)
    with pytest.raises(cb.errors.TrainError, match=r"none of the 2 models has an AUC.*b: not finite at example 3"):
        _ = found.best
    assert "*" not in str(found)
    told = json.loads(json.dumps(found.json(), allow_nan=False))
    assert told["best"] is None
    assert told["models"][0]["windows"] == [None]
    found.write(tmp_path / "search.html")
    assert "no model has an AUC" in (tmp_path / "search.html").read_text()
    with pytest.raises(cb.errors.TrainError, match="the examples need clicks and non-clicks"):
        _ = results(("a", NAN, [NAN], ""), tested=False).best


def test_a_model_that_breaks_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "t.vw").write_text("1 |user a:1e20 |ad b:1e20\n" * 3 + text(50, 1))
    rows = cb.ffm.ExampleText(tmp_path / "t.vw", fields=FIELDS)
    found = cb.ffm.search(rows, {"wild": {"bits": 10, "ffm": None, "lr": 1e-6}, "calm": {"bits": 10}})
    assert "not finite" in found.found[0].failed
    assert found.found[1].failed == ""
    assert found.best.name == "calm"
    assert "wild: the model's output" in str(found)


def test_a_model_that_breaks_on_the_test_alone_is_left_out_and_said(caches: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "odd.vw").write_text(text(60, 2) + "1 |user 1:1e38 |ad 2:1e38\n")
    odd = cb.ffm.ExampleText(tmp_path / "odd.vw", fields=FIELDS)
    found = cb.ffm.search(caches[0], {"ffm": {"bits": 10}, "lr": {"bits": 10, "ffm": None, "lr": 1e-6}}, test=odd)
    assert "test: the model's output" in found.found[0].failed
    assert found.best.name == "lr"


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({}, "1 to 1,000 models"),
        ({"a": {"hiden": (3,)}}, "no option 'hiden'; nearest: 'hidden'"),
        ({"a": {"k": 0}}, "model 'a'"),
        ({"a": {"bits": 34}, "b": {"bits": 34}, "c": {"bits": 34}}, "bytes at the same time"),
    ],
)
def test_what_cannot_be_searched_is_refused(models: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = cb.ffm.ExampleText(tmp_path / "t.vw", fields=FIELDS)
    with pytest.raises(cb.errors.CtrboxError, match=message):
        cb.ffm.search(rows, models)
    with pytest.raises(cb.errors.PlanError, match="needs a list of values"):
        cb.ffm.grid(k=4)
    with pytest.raises(cb.errors.SourceError, match="no such file"):
        cb.ffm.search(tmp_path / "none.ctrx", {"a": {}})


def test_test_examples_without_a_label_are_refused(caches: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "some.vw").write_text(text(60, 2) + "|user 1 |ad 2\n")
    some = cb.ffm.ExampleText(tmp_path / "some.vw", fields=FIELDS)
    with pytest.raises(
        cb.errors.DataError, match=r"^1 of 61 test examples have no label; give every test example a label"
    ):
        cb.ffm.search(caches[0], {"lr": {"bits": 10, "ffm": None}}, test=some)


def test_lines_that_a_search_leaves_out_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.vw").write_text("1 |usr 1\n" + text(60, 2))
    train, test = (cb.ffm.ExampleText(tmp_path / f"{name}.vw", fields=FIELDS) for name in ("train", "test"))
    models = {"a": {"bits": 10, "context": ["ad"]}, "b": {"bits": 10}}  # with the fields in two orders
    assert cb.ffm.search(train, models, test=test).examples == 60
    why = "1 of 61 lines left out: line 1: namespace 'usr' is none of the fields; nearest: 'user'"
    assert capsys.readouterr().err.splitlines() == [f"{tmp_path / name}.vw: {why}" for name in ("train", "test")]


def test_a_grid_has_a_model_for_each_of_two_rates_that_differ_in_one_part() -> None:
    rates = [0.1, cb.ffm.Rate(0.1), cb.ffm.Rate(0.1, power_t=0.4)]
    models = cb.ffm.grid(lr=rates, k=[2, 4], bits=[8])
    assert [(one["lr"], one["k"]) for one in models.values()] == [(rate, k) for rate in rates for k in (2, 4)]
    assert list(models)[-1] == "lr=Rate(rate=0.1, power_t=0.4, initial=1.0) k=4"
    assert list(cb.ffm.grid(lr=[*rates[1:2], 0.2])) == ["lr=0.1", "lr=0.2"]
