"""A run of the trainer behind the same requests: any column in either part, lists too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import BudgetError, CtrboxError, DataError, PlanError
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.routes import Routes
from ctrbox.serve.served_click_model import ServedModel
from ctrbox.serve.served_models import ServedRun, open_served
from ctrbox.serve.server import Server, Settings
from ctrbox.serve.service import Limits, Service
from tests.serve.running import running
from tests.train.worlds import checkerboard, on_disk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    plan = on_disk(place, rows=2000)
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))
    cb.Trainer(model, cb.MemoryTable(4)).fit(plan, batch_size=500, epochs=1, out=place / "run")
    return place / "run"


@pytest.fixture(scope="module")
def served(folder: Path) -> ServedRun:
    made = open_served(ModelFolder.open(folder), most_candidates=100)
    assert isinstance(made, ServedRun)
    return made


def test_a_run_scores_as_it_predicts_whatever_is_in_the_context(served: ServedRun) -> None:
    rows = checkerboard(30, seed=5).drop_columns(["clicked", "ts", "id"])
    one = rows.slice(4, 1).to_pylist()[0]
    for context in ([], ["user"], ["user", "device", "tags"], ["price"]):
        listed = [{k: v for k, v in row.items() if k not in context} for row in rows.to_pylist()]
        joined = pa.table({n: [one[n]] * 30 if n in context else rows[n] for n in rows.column_names}, rows.schema)
        body = {"context": {n: one[n] for n in context}, "candidates": listed}
        scores, version = served.score(served.reader.from_json(orjson.dumps(body)))
        assert version == 1
        assert np.array_equal(scores, served.run.predict(joined))
        columns = {n: [row[n] for row in listed] for n in listed[0]}
        again, _ = served.score(served.reader.from_json(orjson.dumps({**body, "candidates": columns})))
        assert np.array_equal(scores, again)


def test_a_request_needs_no_id_for_columns_of_a_merged_view(tmp_path: Path) -> None:
    ids = list(range(400))
    log = pa.table({"id": ids, "ad": [k % 7 for k in ids], "y": [k % 2 for k in ids]})
    pq.write_table(log, tmp_path / "log.parquet")
    pq.write_table(pa.table({"id": ids, "price": [k / 400 for k in ids]}), tmp_path / "more.parquet")
    more = cb.View(tmp_path / "more.parquet", key="id").fill(price=0.0)
    merged = cb.View(tmp_path / "log.parquet", key="id").fill(y=0, ad=0).merge(more, ordered=True)
    features = cb.FeatureSet(label=col("y"), sparse={"ad": col("ad").key()}, dense={"price": "price"})
    plan = cb.compile(merged, features, device="cpu")
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))
    run = cb.Trainer(model, cb.MemoryTable(4)).fit(plan, batch_size=100, epochs=1, out=tmp_path / "run")
    served = open_served(ModelFolder.open(tmp_path / "run"))
    assert isinstance(served, ServedRun)
    rows = [{"ad": 1, "price": 0.0}, {"ad": 1, "price": 0.9}, {"ad": 2, "price": 0.9}]
    scores, _ = served.score(served.reader.from_json(orjson.dumps({"candidates": rows})))
    assert scores.tolist() == run.predict(rows).tolist()
    assert len(set(scores.tolist())) == 3


def test_columns_of_a_merged_view_are_all_needed_by_a_run_and_refused_by_a_published_model(tmp_path: Path) -> None:
    ids = list(range(400))
    log = pa.table({"id": ids, "ad": [k % 7 for k in ids], "user": [k % 5 for k in ids], "y": [k % 2 for k in ids]})
    pq.write_table(log, tmp_path / "log.parquet")
    pq.write_table(pa.table({"id": ids, "price": [k / 400 for k in ids], "rank": ids}), tmp_path / "more.parquet")
    more = cb.View(tmp_path / "more.parquet", key="id", name="more").fill(price=0.0, rank=0)
    merged = cb.View(tmp_path / "log.parquet", key="id").fill(y=0, ad=0, user=0).merge(more, ordered=True)
    features = cb.FeatureSet(
        label=col("y"),
        sparse={"ad": col("ad").key(), "user": col("user").key()},
        dense={"price": "price", "rank": col("rank").log1p()},
    )
    plan = cb.compile(merged, features, device="cpu")
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))
    run = cb.Trainer(model, cb.MemoryTable(4)).fit(plan, batch_size=100, epochs=1, out=tmp_path / "run")
    told = (
        "features read column 'price' of view 'more', which the plan merges as a stream; requests to a published model cannot "
        "bring the columns of this view, so these features always use its fill values; serve the run folder instead, or train "
        "with merge(…, ordered=False), which looks the rows up by their id"
    )
    with pytest.warns(UserWarning, match="features read column") as warned:
        create(tmp_path / "published", plan, run, context=["user"])
    assert [str(w.message) for w in warned if "merges" in str(w.message)] == [told]
    engine = cb.DeepFFM(plan.schema, k=4, hidden=(4,), bits=10, context=plan.features_of(["user"]))
    with pytest.warns(UserWarning, match="features read column 'price' of view 'more'"):
        create(tmp_path / "ffm", plan, engine, context=["user"])

    user = {"user": 1}

    def refused(kind: str, rows: list[dict[str, object]]) -> list[str]:
        """Return the errors of a request that is sent as JSON, by rows and by columns, and as tensors."""
        served = open_served(ModelFolder.open(tmp_path / kind), allow_views=[str(tmp_path)])
        columns = {n: [row[n] for row in rows] for n in rows[0]}
        found = []
        for read in (
            lambda: served.reader.from_json(orjson.dumps({"context": user, "candidates": rows})),
            lambda: served.reader.from_json(orjson.dumps({"context": user, "candidates": columns})),
            lambda: served.reader.from_tensors({n: np.array(values) for n, values in {"user": [1], **columns}.items()}),
        ):
            with pytest.raises(DataError) as met:
                served.score(read())
            found.append(str(met.value))
        return found

    some: list[dict[str, object]] = [{"ad": 1, "price": 0.5}, {"ad": 2, "price": 0.5}]
    why = (
        "column 'rank'; column 'rank' is from view 'more', of which a request needs all columns that the features read"
    )
    assert refused("run", some) == [f"candidates lack {why}", f"candidates lack {why}", f"the request lacks {why}"]
    none = refused("run", [{"ad": 1}, {"ad": 2}])
    assert [text.split("; column")[0] for text in none] == [
        "candidates lack column 'price'; also 'rank'",
        "candidates lack column 'price'; also 'rank'",
        "the request lacks column 'price'; also 'rank'",
    ]
    never = (
        "column 'price' is from view 'more', which the plan merges into the log; requests to a published model cannot bring the "
        "columns of this view, so its features use the fill values of the view; leave these columns out, or serve the run folder"
    )
    for kind in ("published", "ffm"):
        assert refused(kind, some) == [f"candidates: {never}", f"candidates: {never}", never]

    # Native code leaves such requests to Python.
    served = open_served(ModelFolder.open(tmp_path / "ffm"), allow_views=[str(tmp_path)])
    routes = Routes(Service(served, "model", ScoringQueue(0, 8, 1.0), Limits()))
    plain = served.plain()
    assert plain is not None
    for price in ([], [("price", "FP64", [1], np.array([0.5]).tobytes())]):
        sent = [(n, "INT64", [1], np.array([1]).tobytes()) for n in ("user", "ad")] + price
        values = {"user": [1], "ad": [1], "price": [0.5]}
        inputs = [{"name": n, "datatype": kind, "shape": shape, "data": values[n]} for n, kind, shape, _ in sent]
        tensors = orjson.dumps({"inputs": inputs})
        rows = orjson.dumps({"context": user, "candidates": [{"ad": 1, **({"price": 0.5} if price else {})}]})
        answers = [plain.json(rows), plain.infer(tensors, len(tensors)), plain.tensors(sent)]
        assert [one is None for one in answers] == [bool(price)] * 3
        if price:
            for call, text in (
                (lambda rows=rows: routes.score(rows), f"candidates: {never}"),
                (lambda tensors=tensors: routes.infer(tensors, None, ""), never),
            ):
                with pytest.raises(DataError) as met:
                    call()
                assert str(met.value) == text


def test_a_run_has_no_engine(folder: Path) -> None:
    with pytest.raises(PlanError, match="serves a model of kind 'run'; only the folder of a Deep FFM has an engine"):
        ModelFolder.open(folder).engine()


def test_tensors_of_one_row_are_the_context(served: ServedRun) -> None:
    n = 6
    tensors = {
        "user": np.array([3]),
        "device": np.array([[b"ios"]], object),
        "ad": np.arange(n),
        "price": np.linspace(0, 1, n, dtype=np.float64),
        "tags": np.array([[b"t1", b"t2"]] * n, object),
    }
    scores, _ = served.score(served.reader.from_tensors(tensors))
    rows = [
        {"user": 3, "device": "ios", "ad": k, "price": float(tensors["price"][k]), "tags": ["t1", "t2"]}
        for k in range(n)
    ]
    assert np.array_equal(scores, served.run.predict(rows))
    few = [{name: t[:k] if len(t) == n else t for name, t in tensors.items()} for k in (1, 0)]
    assert [served.score(served.reader.from_tensors(given))[0].tolist() for given in few] == [[scores[0]], []]


@pytest.mark.parametrize(
    "change",
    [{"tags": "t1"}, {"tags": [1]}, {"tags": [["t1"]]}, {"price": "1"}, {"price": None}, {"other": 1}, {"user": ...}],
)
def test_wrong_fields_are_refused(served: ServedRun, change: dict[str, object]) -> None:
    row: dict[str, object] = {"user": 1, "ad": 2, "tags": [], "price": 0.5, "device": "ios"}
    good = orjson.dumps({"candidates": [row]})
    assert served.score(served.reader.from_json(good))[0].shape == (1,)
    row.update(change)
    wrong = orjson.dumps({"candidates": [{k: v for k, v in row.items() if v is not ...}]})
    with pytest.raises(CtrboxError):
        served.score(served.reader.from_json(wrong))


def test_a_run_has_no_published_versions(folder: Path) -> None:
    with pytest.raises(PlanError, match="no published versions"):
        _ = ModelFolder.open(folder).published


def test_a_run_with_a_sparse_table_is_served_by_one_process(tmp_path: Path) -> None:
    plan = on_disk(tmp_path, rows=200)
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))
    table = cb.SparseTable(tmp_path / "table", dim=4, ram="64MB")
    cb.Trainer(model, table).fit(plan, batch_size=100, epochs=1, out=tmp_path / "run")
    with pytest.raises(PlanError, match=r"--workers 2 is not possible: the run has a Sparse Table.*; use --workers 1"):
        Server.open(tmp_path / "run", Settings(workers=2))
    assert Server.open(tmp_path / "run", Settings(workers=None)).workers == 1


def test_rows_of_a_sparse_table_are_read_from_disk_within_the_memory_that_is_set(folder: Path, tmp_path: Path) -> None:
    plan = on_disk(tmp_path, rows=20_000)
    model = cb.models.DeepFM(plan.schema, dim=64, hidden=(8,))
    table = cb.SparseTable(tmp_path / "table", dim=64, ram="64MB")
    cb.Trainer(model, table).fit(plan, batch_size=500, epochs=1, out=tmp_path / "run")
    opened = ModelFolder.open(tmp_path / "run")
    row = {"ad": 2, "tags": ["t0"], "price": 0.5, "device": "ios"}

    def scores(**options: Any) -> tuple[list[list[float]], cb.SparseTable]:
        served = open_served(opened, **options)
        assert isinstance(served, ServedRun)
        (found,) = served.run.click_model.embedders
        bodies = [
            {"context": {"user": user}, "candidates": [{**row, "ad": ad} for ad in range(9)]} for user in range(300)
        ]
        assert isinstance(found, cb.SparseTable)
        return [served.score(served.reader.from_json(orjson.dumps(b)))[0].tolist() for b in bodies], found

    whole, large = scores()
    with pytest.raises(
        BudgetError, match=r"ram=1,000 bytes holds fewer than 1,024 rows .*expected at least ([\d,]+)"
    ) as told:
        open_served(opened, table_memory=1_000)
    least = int(re.findall(r"at least ([\d,]+)", str(told.value))[0].replace(",", ""))
    few, small = scores(table_memory=least)
    assert few == whole
    assert (large.ram, small.ram) == (2 << 30, least)
    with pytest.raises(
        PlanError, match=r"^ram= is for Sparse Tables, but the tables of .* are in memory; remove ram=$"
    ):
        open_served(ModelFolder.open(folder), table_memory=1 << 30)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_is_served(folder: Path, workers: str) -> None:
    with running(folder, "--workers", workers) as server:
        row = {"ad": 2, "tags": ["t0"], "price": 0.5, "device": "ios"}
        found = server.score(orjson.dumps({"context": {"user": 1}, "candidates": [row, {**row, "ad": 3}]}))
        assert found.status_code == 200
        expected = cb.Run.load(folder).predict([{**row, "user": 1}, {**row, "ad": 3, "user": 1}])
        assert np.abs(np.array(found.json()["scores"]) - expected).max() < 1e-6
        assert server.stop() == 0


def test_a_published_run_that_breaks_names_the_candidate(folder: Path, tmp_path: Path) -> None:
    run = cb.Run.load(folder)
    create(tmp_path / "model", run.plan, run, context=["user"])
    served = open_served(ModelFolder.open(tmp_path / "model"))
    assert isinstance(served, ServedModel)
    row = {"ad": 2, "tags": [], "price": 0.5, "device": "ios"}

    def scores(**changed: object) -> np.ndarray:
        body = {"context": {"user": 1}, "candidates": [row, {**row, **changed}]}
        return served.score(served.reader.from_json(orjson.dumps(body)))[0]

    def logit(of: np.ndarray) -> np.ndarray:
        return np.log(of / (1 - of))

    before, learner = scores(), served.live.click_model
    learner.shift += 1.0
    assert np.allclose(logit(scores()) - logit(before), 1.0, atol=1e-4)
    with pytest.raises(DataError, match="dense column 'price' of candidate 1 is inf"):
        scores(price=1e39)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(
        DataError,
        match="the model's output for candidate 0 is not finite; check that no value is too large",
    ):
        scores()


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_a_calibrated_run_is_served_with_its_map(tmp_path: Path, kind: str) -> None:
    plan = on_disk(tmp_path, rows=8000)
    torch.manual_seed(0)
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))
    run = cb.Trainer(model, cb.MemoryTable(4)).fit(
        plan, batch_size=250, epochs=3, calibrate=kind, calibrate_share=0.5, calibrate_by="device", out=tmp_path / "run"
    )
    assert run.learner.calibration is not None
    assert len(run.learner.calibration.keys) == 2
    rows = checkerboard(30, seed=5).drop_columns(["clicked", "ts", "id"])
    one = rows.slice(4, 1).to_pylist()[0]
    direct = open_served(ModelFolder.open(tmp_path / "run"), most_candidates=100)
    for number, context in enumerate((["user"], ["user", "device"])):  # the slice is the candidates', or the context's
        folder = tmp_path / f"model-{number}"
        create(folder, run.plan, run, context=context)
        served = open_served(ModelFolder.open(folder))
        listed = [{k: v for k, v in row.items() if k not in context} for row in rows.to_pylist()]
        joined = pa.table({n: [one[n]] * 30 if n in context else rows[n] for n in rows.column_names}, rows.schema)
        body = orjson.dumps({"context": {n: one[n] for n in context}, "candidates": listed})
        assert np.array_equal(direct.score(direct.reader.from_json(body))[0], run.predict(joined))
        scores = served.score(served.reader.from_json(body))[0]
        live = served.live.click_model  # type: ignore[union-attr]
        assert live.calibration is not None
        assert live.calibration.plain() == run.learner.calibration.plain()
        # Published weights are rounded to 16 bits, so that they are compared with themselves.
        batch = run.plan.run(joined)
        expected = live.predict(batch)
        assert np.abs(scores - expected).max() < 1e-6
        live.calibration = None
        assert np.abs(live.predict(batch) - expected).max() > 1e-3
