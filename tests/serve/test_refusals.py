"""What a server refuses, and in which words: requests, models, folders, checkpoints, tokens and certificates."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from tritonclient.grpc import service_pb2

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch, Ragged
from ctrbox.errors import CtrboxError, DataError, PlanError, SourceError, WriteError
from ctrbox.files import temporary_folder
from ctrbox.files.sealed_json import sealed
from ctrbox.serve.grpc_server import InferenceService, grpc_server
from ctrbox.serve.listener import listening_sockets
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.objects_in_requests import ObjectKeys, Objects, matrix
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.reload import Reloader
from ctrbox.serve.request import RequestReader
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.routes import Answer, Routes, Scoring, answer_of
from ctrbox.serve.served_models import Live, ServedFfm, open_served
from ctrbox.serve.server import Settings, check, missing_library, read_token
from ctrbox.serve.service import Limits, Service
from ctrbox.serve.tls import Certificate
from ctrbox.serve.torch_model_scorer import single_keys
from tests.serve.test_scoring import body_of
from tests.serve.worlds import CONTEXT, World


@pytest.fixture(scope="module")
def service(world: World) -> Service:
    return Service(open_served(ModelFolder.open(world.folder)), "ads", ScoringQueue(0, 64, 60.0), Limits())


@pytest.fixture
def body(world: World) -> dict[str, Any]:
    return body_of(world.rows(0, 3))


# ---- requests


def test_parts_of_a_request_that_are_no_columns_are_refused(service: Service, body: dict[str, Any]) -> None:
    read = service.served.reader.from_json
    for changed, message in (
        ({"context": 5}, "context must be an object of columns, got 5"),
        ({"candidates": 5}, "candidates must be a list of objects, or an object of lists, got 5"),
        ({"candidates": [5]}, "candidates: row 0 must be an object of columns, got 5"),
        (
            {"candidates": {"ad_id": 7, "position": [1], "price": [1.0]}},
            "candidates: column 'ad_id' must be a list, got 7",
        ),
        (
            {"candidates": {"ad_id": [7, 8], "position": [1], "price": [1.0]}},
            "candidates: column 'ad_id' has 2 values, but column 'price' has 1",
        ),
    ):
        with pytest.raises(DataError) as told:
            read(orjson.dumps({**body, **changed})).context()
        assert str(told.value) == message


def test_the_most_candidates_are_taken_and_one_more_is_refused() -> None:
    reader = RequestReader(pa.schema([("ad", pa.int64()), ("text", pa.string())]), ["ad", "text"], None, 2)
    rows = [{"ad": 1, "text": "a"}] * 3
    assert reader.from_json(orjson.dumps({"candidates": rows[:2]})).rows == 2
    with pytest.raises(Refused, match="the request has 3 candidates; this server scores at most 2") as told:
        reader.from_json(orjson.dumps({"candidates": rows}))
    assert told.value.status == 413
    with pytest.raises(DataError, match="context: the log has no column 'txt'; nearest: 'text'"):
        reader.from_json(orjson.dumps({"context": {"txt": "a"}, "candidates": [{"ad": 1}]}))


def test_objects_for_a_model_without_are_refused(service: Service, body: dict[str, Any]) -> None:
    request = service.served.reader.from_json(orjson.dumps(body))
    with pytest.raises(
        DataError, match="this model does not compute vectors for objects; leave objects out of the request"
    ):
        service.served.score(replace(request, objects={"ad": None}))  # type: ignore[dict-item]


# ---- the service


class Broken:
    """A model that fails."""

    version = 7
    tasks = ()

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def answer(self, request: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (Refused(413, "too many"), 413, "too many"),
        (
            SourceError("cannot read /secret"),
            500,
            "the server cannot read a file of the model; its log has the details",
        ),
        (DataError("a value is wrong"), 400, "a value is wrong"),
        (MemoryError(), 503, "there is not enough memory for this request now; retry shortly"),
    ],
)
def test_an_error_of_the_model_has_a_status(
    service: Service, error: BaseException, status: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = replace(service, served=Broken(error))  # type: ignore[type-var]
    with pytest.raises(Refused) as told:
        broken.score(None)  # type: ignore[arg-type]
    assert (told.value.status, str(told.value)) == (status, message)
    assert ("cannot read /secret" in caplog.text) is (status == 500)


def test_models_and_versions_that_are_not_served_are_named(service: Service, body: dict[str, Any]) -> None:
    service.check_model("ads")
    service.check_model("ads", "1")
    for name, version, message in (
        ("adds", "", "there is no model 'adds'; this server serves 'ads'"),
        ("ads", "2", "model 'ads' has no version '2' here; the version that is served is 1"),
    ):
        with pytest.raises(Refused) as told:
            service.check_model(name, version)
        assert (told.value.status, str(told.value)) == (404, message)
    request = service.served.reader.from_json(orjson.dumps(body))
    assert service.score(request, "1")[1] == service.score(request)[1] == 1
    with pytest.raises(Refused, match="version '2' is no longer served; the current version is 1") as told:
        service.score(request, "2")
    assert told.value.status == 404


def test_the_configuration_has_types_of_triton(service: Service) -> None:
    config = service.model_config()
    types = {entry["name"]: entry["data_type"] for entry in config["input"]}
    assert (types["query"], types["ad_id"]) == ("TYPE_STRING", "TYPE_INT64")
    assert config["output"] == [{"name": "score", "data_type": "TYPE_FP32", "dims": [-1]}]


def test_what_a_learner_wrote_is_told_where_it_is_an_object(service: Service, tmp_path: Path) -> None:
    assert replace(service, online=tmp_path / "none").learning() is None
    for text, found in (('{"auc": 0.7}', {"auc": 0.7}), ("[1]", None), ("{", None)):
        (tmp_path / "online.json").write_text(text)
        assert replace(service, online=tmp_path / "online.json").learning() == found


def test_errors_become_answers(caplog: pytest.LogCaptureFixture) -> None:
    assert answer_of(Refused(404, "none")) == Answer(404, b'{"error":"none"}')
    assert answer_of(Refused(503, "later", retry_after=1)).headers == ((b"retry-after", b"1"),)
    assert answer_of(Refused(401, "who"))[3][0][0] == b"www-authenticate"
    assert answer_of(DataError("wrong")) == Answer(400, b'{"error":"wrong"}')
    assert not caplog.records
    assert answer_of(KeyError("x")) == Answer(500, b'{"error":"internal error; the server\'s log has more"}')
    assert "a request failed" in caplog.text


@pytest.mark.parametrize("binary", [False, True])
def test_inference_answers_as_json_or_binary(service: Service, body: dict[str, Any], binary: bool) -> None:
    rows = body["candidates"]
    tensors = [
        {"name": "ad_id", "shape": [3], "datatype": "INT64", "data": [row["ad_id"] for row in rows]},
        {"name": "position", "shape": [3], "datatype": "INT64", "data": [row["position"] or 0 for row in rows]},
        *(
            {"name": name, "shape": [1], "datatype": kind, "data": [value]}
            for name, kind, value in (
                ("ts", "BYTES", body["context"]["ts"]),
                ("user_id", "INT64", body["context"]["user_id"]),
                ("query", "BYTES", "shoes"),
                ("device", "BYTES", "tv"),
                ("context", "BYTES", "{}"),
            )
        ),
    ]
    text = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": binary}}).encode()
    routes = Routes(service)
    length = b"inference-header-content-length"
    for headers in ({}, {length: b"%d" % len(text)}):
        found = routes.answer("POST", "/v2/models/ads/infer", headers, text)
        assert isinstance(found, Scoring)
        answer = found.work()
        assert (answer.status, answer.rows) == (200, 3)
        if binary:
            assert answer.kind == b"application/octet-stream"
            ((name, size), views) = answer.headers
            assert (name, len(answer.body) - int(size)) == (length, 12)
        else:
            assert answer.kind == b"application/json"
            (views,) = answer.headers
            assert len(json.loads(answer.body)["outputs"][0]["data"]) == 3
        assert views == (b"ctrbox-views", b"users=1, ads=1")


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/score", 405, "/v1/score accepts POST, not GET"),
        ("HEAD", "/v1/score", 405, "/v1/score accepts POST, not HEAD"),
        ("POST", "/healthz", 405, "/healthz accepts GET, not POST"),
        ("GET", "/v3", 404, "there is no resource at '/v3'; see /docs"),
        ("GET", "/v2/models", 404, "there is no resource at '/v2/models'; see /docs"),
        ("GET", "/v2/models/ads/other", 404, "there is no resource at '/v2/models/ads/other'; see /docs"),
        ("GET", "/v2/models/ads/infer", 405, "/v2/models/ads/infer accepts POST, not GET"),
        (
            "GET",
            "/v2/models/ads/versions/2",
            404,
            "model 'ads' has no version '2' here; the version that is served is 1",
        ),
    ],
)
def test_routes_that_are_none_are_refused(service: Service, method: str, path: str, status: int, message: str) -> None:
    with pytest.raises(Refused) as told:
        Routes(service).answer(method, path, {}, b"")
    assert (told.value.status, str(told.value)) == (status, message)


def test_a_body_of_the_largest_size_is_taken_by_its_head(service: Service) -> None:
    routes, most = Routes(service), service.limits.body_bytes
    routes.head("POST", "/v1/score", {b"content-length": b"%d" % most})
    for claimed in (b"%d" % (most + 1), b"9" * 19):
        with pytest.raises(Refused, match=f"the body is larger than {most:,} bytes") as told:
            routes.head("POST", "/v1/score", {b"content-length": claimed})
        assert told.value.status == 413


class Aborted(Exception):
    pass


class Context:
    """Stands for the context that gRPC passes to a method."""

    def abort(self, code: Any, message: str) -> None:
        raise Aborted(code.name, message)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:4711"


def test_a_refusal_over_grpc_has_its_status_and_is_counted(service: Service) -> None:
    fresh = replace(service, metrics=Metrics())
    methods = InferenceService(fresh)
    with pytest.raises(Aborted) as told:
        methods.ModelInfer(service_pb2.ModelInferRequest(model_name="adds"), Context())
    assert told.value.args == ("NOT_FOUND", "there is no model 'adds'; this server serves 'ads'")
    with pytest.raises(Aborted) as told:
        methods.ModelInfer(service_pb2.ModelInferRequest(model_name="ads"), Context())
    assert told.value.args[0] == "INVALID_ARGUMENT"
    text = fresh.prometheus()
    assert re.search(r'route="grpc",code="404"\} 1', text)
    assert re.search(r'route="grpc",code="400"\} 1', text)


def test_a_port_of_grpc_that_is_taken_is_told(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PlanError, match=f"cannot listen at {address} for gRPC: the port is taken, or not allowed"):
            grpc_server(service, address, 1)


# ---- models


def test_a_version_with_other_fields_is_refused_and_one_that_breaks_is_told(world: World, service: Service) -> None:
    served = service.served
    assert isinstance(served, ServedFfm)
    other = cb.DeepFFM(["user", "adversary"], bits=10)
    with pytest.raises(DataError, match="the model's field 'adversary' is not a feature of its plan"):
        served.over(Live(other, 2), served._parts)
    huge = cb.DeepFFM.load(ModelFolder.open(world.folder).published.file())
    huge._native.give_weights(np.full(huge._native.weights().shape, 1e30, np.float32))
    request = served.reader.from_json(orjson.dumps(body_of(world.rows(0, 3))))
    before, served.live = served.live, served.over(Live(huge, 2), served._parts)
    try:
        with pytest.raises(
            DataError,
            match="the model's output for candidate 0 is not finite; check that no value is too large",
        ):
            served.score(request)
    finally:
        served.live = before


def test_a_field_of_one_key_with_others_is_refused() -> None:
    plan = cb.compile(
        cb.View(pa.table({"a": [1, 2]})), cb.FeatureSet(sparse={"a": col("a").key()}), device="cpu", threads=1
    )
    batch = plan.run(pa.table({"a": [1, 2]}))
    assert single_keys(batch, ["a"]).shape == (2,)
    wrong = replace(batch, sparse={"a": Ragged(np.array([1]), np.array([0, 1, 1]))})  # type: ignore[type-var]
    with pytest.raises(
        DataError, match="field 'a' has rows with no key or several keys, but its schema says exactly one key per row"
    ):
        single_keys(wrong, ["a"])
    assert isinstance(batch, Batch)


def test_objects_are_named_by_fields_of_one_plain_id() -> None:
    log = cb.View(pa.table({"a": [1], "b": ["x"]}))
    sparse = {"number": col("a").key(), "text": col("b").key(), "both": cb.cross("a", "b")}
    keys = ObjectKeys(cb.compile(log, cb.FeatureSet(sparse=sparse), device="cpu", threads=1))
    assert len(keys.of("number", ["-1", b"2", 1 << 62])) == 3
    assert len(keys.of("text", ["x"])) == 1
    with pytest.raises(
        DataError, match="objects of 'both': the keys of this field are not made from one id column alone"
    ):
        keys.of("both", ["1"])
    assert len(keys.of("number", [str((1 << 63) - 1), str(-(1 << 63))])) == 2
    for beyond in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(DataError, match=f"id '{beyond}' is not a whole number from -2"):
            keys.of("number", [str(beyond)])
    for other in (
        "",
        "-",
        "--1",
        "1.0",
        "+1",
        " 1",
        "x",
        "\u00b2",
        "\u0661",
        "1" * 5000,
    ):  # int() would take some of them
        with pytest.raises(DataError, match=r"objects of 'number': id .* is not a whole number from -2"):
            keys.of("number", [other])


def test_objects_of_a_request_fill_rows_of_numbers() -> None:
    table: Any = SimpleNamespace(width=2, vocabulary=0, checked=lambda rows, what: rows.tolist())
    words: Any = SimpleNamespace(width=2, vocabulary=9, checked=lambda rows, what: rows.tolist())
    assert matrix("image", Objects(["7"], [[1, 0.5]]), table) == [[1.0, 0.5]]
    assert matrix("title", Objects(["7", "8"], [[3], []]), words) == [[3, 0], [0, 0]]
    assert matrix("image", Objects([], []), table).shape == (0, 2)
    for row, says in (
        ([1], "object '7' of 'image' has 1 numbers; expected 2"),
        ([1, 2, 3], "object '7' of 'image' has 3 numbers; expected 2"),
        ([1, True], "object '7' of 'image' must be a list of 2 numbers, got"),
        ("ab", "object '7' of 'image' must be a list of 2 numbers, got"),
    ):
        with pytest.raises(DataError, match=says):
            matrix("image", Objects(["7"], [row]), table)
    with pytest.raises(DataError, match="object '7' of 'title' has 3 numbers; expected 2"):
        matrix("title", Objects(["7"], [[1, 2, 3]]), words)


# ---- folders


def test_a_folder_of_a_run_of_another_kind_or_plan_is_refused(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(world.folder, folder)
    found = ModelFolder.open(folder)
    with pytest.raises(DataError) as told:
        replace(found, fingerprint="0" * 64).plan()
    assert f"{folder}/plan.ctr has fingerprint {world.plan.fingerprint[:16]}…" in str(told.value)
    assert f"the model was made with {'0' * 16}…" in str(told.value)
    with pytest.raises(
        PlanError, match=f"{folder} serves a model of kind 'click_model'; only the folder of a Deep FFM has an engine"
    ):
        replace(found, kind="click_model").engine()
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    with pytest.raises(PlanError, match=rf"{run} is a run folder; open it with cb\.Run\.load"):
        ModelFolder.open(run).plan()
    with pytest.raises(PlanError, match=r"context= must be a list of column names, got 'user_id'"):
        create(tmp_path / "new", world.plan, world.engine, context="user_id")
    for wrong in ({"kind": "tree"}, {"context": "user_id"}, {"fingerprint": 7}):
        facts = {"kind": found.kind, "context": list(CONTEXT), "fingerprint": found.fingerprint, **wrong}
        (folder / "serve.json").write_text(sealed(facts))
        kind = facts["kind"]
        with pytest.raises(
            DataError, match=f"{folder}/serve.json describes a model of kind '{kind}'; this version of CTRBox serves"
        ):
            ModelFolder.open(folder)


def test_a_reloader_of_a_version_that_is_gone_leaves_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_folder.tempfile, "tempdir", str(tmp_path))
    folder = ModelFolder.open(world.folder)
    served = open_served(folder)
    assert isinstance(served, ServedFfm)
    served.live = replace(served.live, version=9)
    with pytest.raises(DataError, match="has no version 9"):
        Reloader(served, folder.published, Metrics())
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_cannot_be_locked_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary_folder.tempfile, "tempdir", str(tmp_path))

    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(temporary_folder.fcntl, "flock", flock)
    with pytest.raises(WriteError, match=r"^cannot lock .*/ctrbox-serve-\w+: No locks available$"):
        temporary_folder.OwnFolder("ctrbox-serve-")
    assert list(tmp_path.iterdir()) == []


# ---- who may ask, and where


def test_tokens_and_token_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(SourceError, match=f"the token file {tmp_path}/empty is empty"):
        read_token(tmp_path / "empty")
    check(Settings(token="t" * 4096))
    for token in ("t" * 4097, "tökén", "a\nb"):
        with pytest.raises(PlanError, match="a token must be printable ASCII of at most 4096 characters"):
            check(Settings(token=token))


@pytest.mark.parametrize(
    ("name", "package"),
    [("grpc._cython", "grpcio"), ("mystery.part", "mystery"), (None, "no word")],
)
def test_a_library_that_is_missing_is_named(name: str | None, package: str) -> None:
    told = str(missing_library(ImportError("no word", name=name)))
    assert f"serving needs {package}, which is not installed in " in told


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    certificate = Path(__file__).with_name("certificates") / "one.pem"
    with pytest.raises(SourceError, match=f"^cannot read {tmp_path}/none: No such file or directory$"):
        Certificate(certificate, tmp_path / "none")
    with pytest.raises(SourceError, match=f"^cannot read {tmp_path}: Is a directory$"):
        Certificate(certificate, tmp_path)
    with pytest.raises(SourceError, match=f"^cannot read {tmp_path}: Is a directory$"):
        Certificate(tmp_path, certificate.with_suffix(".key"))


def test_a_port_that_is_taken_or_an_address_of_others_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PlanError, match=f"^cannot listen at 127.0.0.1:{port}: Address already in use$"):
            listening_sockets("127.0.0.1", port)
    with pytest.raises(PlanError, match=r"^cannot listen at 192\.0\.2\.1:0: Cannot assign requested address$"):
        listening_sockets("192.0.2.1", 0)
    for sock in listening_sockets("localhost", 0):
        sock.close()
    assert issubclass(PlanError, CtrboxError)
