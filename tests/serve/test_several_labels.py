"""A model of several labels behind every protocol: scores by label, a score that combines them, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pytest
import torch
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

import ctrbox as cb
from ctrbox import col
from ctrbox.serve.figures_of_workers import together
from ctrbox.serve.grpc_server import grpc_server
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.prediction_sums import LabelSums, lines_of, means_of
from ctrbox.serve.served_models import open_served
from tests.serve.running import Listening, free_ports, inputs, listening
from tests.train.test_several_labels import world as rows_of_several

ASKED = "click * convert * pow(value, 2)"


@dataclass
class Several:
    plan: cb.Plan
    run: cb.Run
    folder: Path  # of the run
    model: Path  # the folder of the published model


def log_of(rows: int, seed: int = 0) -> pa.Table:
    table = rows_of_several(rows, seed)
    return table.append_column("ad", pa.array(np.random.default_rng(seed).integers(0, 9, rows)))


def several(place: Path, names: tuple[str, str, str] = ("click", "convert", "value"), model: str = "ESMM") -> Several:
    click, convert, value = names
    labels = {click: col("clicked"), convert: col("converted"), value: cb.Label("revenue", "regression")}
    sparse = {"user": col("user").key(), "ad": col("ad").key()}
    log = cb.View(log_of(600), key="id").filter(col("x") > -1.5)
    plan = cb.compile(log, cb.FeatureSet(labels=labels, sparse=sparse, dense={"x": col("x")}), threads=1)
    torch.manual_seed(1)
    made = cb.models.build(model, plan.schema, {"dim": 4, "hidden": [8], "click": click, "convert": convert})
    run = cb.Trainer(made, cb.MemoryTable(4), threads=1).fit(
        plan, batch_size=100, out=place / "run", progress=False, calibrate="platt", calibrate_share=0.4
    )
    create(place / "model", plan, run, context=["user"], quantize=False)
    return Several(plan, run, place / "run", place / "model")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Several:
    return several(tmp_path_factory.mktemp("several"))


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Listening, str]]:
    """Serve a folder by HTTP and gRPC in this process; the address of the latter comes with it."""
    with listening(folder) as server:
        (port,) = free_ports(1)
        rpc = grpc_server(server.service, f"127.0.0.1:{port}", 2)
        rpc.start()
        try:
            yield server, f"127.0.0.1:{port}"
        finally:
            rpc.stop(0).wait()


def asked_rows() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a context and candidates, the fourth of which the plan's filter drops."""
    rows = log_of(12, seed=5).select(["ad", "x"]).to_pylist()
    rows[3]["x"] = -2.0
    return {"user": 4}, [{**row, "x": max(row["x"], -1.4)} if k != 3 else row for k, row in enumerate(rows)]


@pytest.mark.parametrize("what", ["folder", "model"])
def test_every_protocol_gives_the_bits_of_python(made: Several, what: str) -> None:
    context, candidates = asked_rows()
    whole = [{**context, **c} for c in candidates]
    expected = made.run.predict(whole, warn=False)
    score = made.run.predict(whole, score=ASKED, warn=False)
    if what == "model":  # the context's part of a published model is computed once, which rounds otherwise
        served = open_served(ModelFolder.open(made.model))
        again = served.score(served.reader.from_json(orjson.dumps({"context": context, "candidates": candidates})))[0]
        for k, name in enumerate(expected):
            assert np.allclose(again[:, k], expected[name], rtol=1e-5, equal_nan=True)
        expected = {name: again[:, k].astype(np.float32) for k, name in enumerate(expected)}
        exact = again[:, 0] * again[:, 1] * again[:, 2] * again[:, 2]
        score = exact.astype(np.float32)
    kept = [k for k in range(12) if k != 3]
    ranking = sorted(kept, key=lambda k: -score[k])
    with serving(getattr(made, what)) as (server, rpc):
        body = {"context": context, "candidates": candidates}
        plain = server.score(orjson.dumps(body)).json()
        assert set(plain) == {"version", "scores"}
        told = server.score(orjson.dumps({**body, "score": ASKED})).json()
        assert told["scores"] == plain["scores"]
        assert told["ranking"] == ranking
        assert told["score"][3] is None
        assert list(told["scores"]) == ["click", "convert", "value"]
        for name, values in {**told["scores"], "score": told["score"]}.items():
            wanted = score if name == "score" else expected[name]
            assert np.array_equal(np.array(values, np.float32), wanted, equal_nan=True), name
        tensors = {"user": np.array([4]), "ad": np.array([c["ad"] for c in candidates])}
        tensors["x"] = np.array([c["x"] for c in candidates])
        clients = (
            (over_http, over_http.InferenceServerClient(f"127.0.0.1:{server.port}"), {"binary_data": True}),
            (over_http, over_http.InferenceServerClient(f"127.0.0.1:{server.port}"), {"binary_data": False}),
            (over_grpc, over_grpc.InferenceServerClient(rpc), {}),
        )
        for library, client, how in clients:
            with client:
                given = []
                for name, values in tensors.items():
                    kind = "FP64" if name == "x" else "INT64"
                    given.append(library.InferInput(name, list(values.shape), kind))
                    given[-1].set_data_from_numpy(values, **how)
                got = client.infer("ads", given, parameters={"score": ASKED})
                for name, wanted in {**expected, "score": score, "ranking": np.array(ranking, np.int32)}.items():
                    assert np.array_equal(got.as_numpy(name), wanted, equal_nan=True), (library, name)
                # Only what is asked for, in the order in which it is asked for.
                chosen = [library.InferRequestedOutput(name) for name in ("value", "click")]
                got = client.infer("ads", given, outputs=chosen)
                response = got.get_response()
                told_outputs = response["outputs"] if library is over_http else response.outputs
                names = [o["name"] if library is over_http else o.name for o in told_outputs]
                assert names == ["value", "click"]
                assert np.array_equal(got.as_numpy("click"), expected["click"], equal_nan=True)
                metadata = client.get_model_metadata("ads", **({} if library is over_http else {"as_json": True}))
                assert [o["name"] for o in metadata["outputs"]] == ["click", "convert", "value"]
                with pytest.raises(InferenceServerException, match="'score' and 'ranking' need the parameter score"):
                    client.infer("ads", given, outputs=[library.InferRequestedOutput("score")])
                with pytest.raises(InferenceServerException, match="'clik', which is not a label; nearest: 'click'"):
                    client.infer("ads", given, parameters={"score": "clik"})
                with pytest.raises(InferenceServerException, match="parameter 'score' must be a string"):
                    client.infer("ads", given, parameters={"score": 1})


def test_wrong_scores_are_refused_in_words(made: Several) -> None:
    context, candidates = asked_rows()
    with listening(made.folder) as server:
        for score, words in (
            (5, "score must be a string with an expression of the labels of the model, got 5"),
            (None, "score must be a string with an expression of the labels of the model, got null"),
            ("click / 0", "the score 'click / 0' is inf for candidate 0, where click="),
            ("spent", "'spent', which is not a label; expected click, convert, value"),
        ):
            body = {"context": context, "candidates": candidates, "score": score}
            answer = server.score(orjson.dumps(body))
            assert answer.status_code == 400
            assert words in answer.json()["error"] or words.replace("null", "None") in answer.json()["error"]
        nothing = server.score(orjson.dumps({"context": context, "candidates": [], "score": "click"})).json()
        assert nothing == {
            "version": 1,
            "scores": {"click": [], "convert": [], "value": []},
            "score": [],
            "ranking": [],
        }


def test_one_label_is_answered_as_before_and_takes_no_score(tmp_path: Path) -> None:
    plan = cb.compile(
        cb.View(log_of(300), key="id"),
        cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()}, dense={"x": col("x")}),
        threads=1,
    )
    cb.Trainer(cb.models.LR(plan.schema), threads=1).fit(plan, batch_size=100, out=tmp_path / "run", progress=False)
    with listening(tmp_path / "run") as server:
        body = {"candidates": [{"user": 1, "x": 0.5}]}
        answer = server.score(orjson.dumps(body)).json()
        assert set(answer) == {"version", "scores"}
        assert len(answer["scores"]) == 1
        refused = server.score(orjson.dumps({**body, "score": "click"}))
        assert refused.status_code == 400
        assert "this model predicts one label, so there are no labels to combine" in refused.json()["error"]
        assert "ctrbox_prediction_" not in server.service.prometheus()
        assert server.service.live()["labels"] == []


def test_a_label_named_score_is_served_and_its_expression_only_over_json(tmp_path: Path) -> None:
    world = several(tmp_path, ("score", "ranking", "pow"))
    context, candidates = asked_rows()
    with listening(world.folder) as server:
        body = {"context": context, "candidates": candidates, "score": "score * ranking + pow(pow, 2)"}
        found = server.score(orjson.dumps(body)).json()
        wanted = world.run.predict([{**context, **c} for c in candidates], score=body["score"], warn=False)
        assert np.array_equal(np.array(found["score"], np.float32), wanted, equal_nan=True)
        assert list(found["scores"]) == ["score", "ranking", "pow"]
        tensors = {"user": np.array([4]), "ad": np.array([1]), "x": np.array([0.5], np.float32)}
        with over_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            given = inputs(over_http, tensors)
            assert client.infer("ads", given).as_numpy("ranking").shape == (1,)
            with pytest.raises(
                InferenceServerException, match="this model has a label 'score', and the result of the score"
            ):
                client.infer("ads", given, parameters={"score": "pow"})


def test_metrics_the_page_and_the_description_show_each_label(made: Several) -> None:
    context, candidates = asked_rows()
    with listening(made.model) as server:
        for _ in range(3):
            server.score(orjson.dumps({"context": context, "candidates": candidates}))
        scores = server.score(orjson.dumps({"context": context, "candidates": candidates})).json()["scores"]
        means = {name: np.mean([p for p in values if p is not None]) for name, values in scores.items()}
        for name, mean in means.items():
            count = server.gauge(f'ctrbox_prediction_count{{label="{name}"}}')
            assert count == 44
            assert np.isclose(server.gauge(f'ctrbox_prediction_sum{{label="{name}"}}') / count, mean)
        live = httpx.get(f"http://127.0.0.1:{server.port}/v1/live").json()["labels"]
        assert [(one["label"], one["rows"]) for one in live] == [("click", 44), ("convert", 44), ("value", 44)]
        assert np.isclose(live[2]["mean"], means["value"])
        page = httpx.get(f"http://127.0.0.1:{server.port}/").text
        assert re.findall(r'what">(\w+, \w+)</small><b id="label-(\d)"', page) == [
            ("click, binary", "0"),
            ("convert, binary", "1"),
            ("value, regression", "2"),
        ]
        assert 'id="expression" value="click * convert * value"' in page
        described = httpx.get(f"http://127.0.0.1:{server.port}/openapi.json").json()["paths"]["/v1/score"]["post"]
        sent = described["requestBody"]["content"]["application/json"]
        assert server.score(orjson.dumps(sent["example"])).json()["ranking"] == [0]  # what the page shows is a request
        answer = described["responses"]["200"]["content"]["application/json"]["schema"]["properties"]
        assert set(answer) == {"version", "scores", "score", "ranking"}


def test_sums_of_several_workers_are_added_up() -> None:
    sums = LabelSums(["click", "value"])
    assert means_of(sums.told())[0] == {"label": "click", "rows": 0, "mean": None}
    sums.add({"click": np.array([0.5, np.nan, 0.25], np.float32), "value": np.array([-1.0, np.nan, -2.0], np.float32)})
    part = {"counters": {}, "gauges": {}, "keys": {}, "joins": [], "unlearned": [], "vectors": None, "versions": [1]}
    both = together([{**part, "labels": sums.told()}, part, {**part, "labels": sums.told()}])["labels"]
    assert both == {"click": [1.5, 4], "value": [-6.0, 4]}
    assert lines_of(both)[2:4] == [
        'ctrbox_prediction_sum{label="click"} 1.5',
        'ctrbox_prediction_count{label="click"} 4',
    ]
    assert lines_of({}) == []


def test_a_newer_version_of_several_labels_is_taken(made: Several, tmp_path: Path) -> None:
    folder = create(tmp_path / "model", made.plan, made.run, context=["user"])
    served = open_served(folder)
    with torch.no_grad():
        made.run.model.bias += 0.5  # type: ignore[operator]
        folder.published.publish(made.run)
        made.run.model.bias -= 0.5  # type: ignore[operator]
    context, candidates = asked_rows()
    body = orjson.dumps({"context": context, "candidates": candidates})
    before, _ = served.score(served.reader.from_json(body))
    served.take(folder.published.file(2), 2)  # type: ignore[union-attr]
    after, version = served.score(served.reader.from_json(body))
    assert version == 2
    assert (after[0] > before[0]).all()
