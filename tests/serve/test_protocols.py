"""A real server on loopback: JSON, the v2 protocol through an unchanged tritonclient, its pages, its refusals."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

from ctrbox.errors import PlanError
from ctrbox.serve.listener import listening_sockets
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.routes import Routes, Scoring, answer_of
from ctrbox.serve.served_models import open_served
from ctrbox.serve.server import Settings, check
from ctrbox.serve.service import Limits, Service
from tests.serve.running import Running, inputs
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World


def tensors_of(body: dict[str, Any]) -> dict[str, np.ndarray]:
    """The same request as tensors: texts as bytes, missing ones as what the plan fills in."""
    stamp = np.datetime64(body["context"]["ts"]).astype("datetime64[us]").astype(np.int64)
    candidates = body["candidates"]
    positions = [-1 if c["position"] is None else c["position"] for c in candidates]
    return {
        "ts": np.array([stamp]),
        "user_id": np.array([[body["context"]["user_id"]]]),
        "query": np.array([(body["context"]["query"] or "").encode()], object),
        "device": np.array([(body["context"]["device"] or "unknown").encode()], object),
        "context": np.array([body["context"]["context"].encode()], object),
        "ad_id": np.array([c["ad_id"] for c in candidates]),
        "position": np.array(positions, np.int64),
    }


def test_json_and_both_tritonclients_give_the_scores_of_training(world: World, server: Running) -> None:
    body = body_of(world.rows(300, 60), 2)
    answer = server.score(orjson.dumps(body)).json()
    engine = ModelFolder.open(world.folder).engine()
    table = world.rows(300, 60)
    rows = table.to_pydict()
    for name in body["context"]:
        rows[name] = [rows[name][2]] * 60
    expected = engine.predict(world.plan.run(pa.table(rows, table.schema)))
    assert answer["version"] == 1
    assert np.abs(np.array(answer["scores"]) - expected).max() < 1e-6
    tensors = tensors_of(body)
    with over_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        for how in ({"binary_data": True}, {"binary_data": False}):
            for wanted in (None, [over_http.InferRequestedOutput("score", binary_data=how["binary_data"])]):
                got = client.infer("ads", inputs(over_http, tensors, **how), outputs=wanted, request_id="r7")
                assert np.array_equal(got.as_numpy("score"), expected)
                assert got.get_response()["id"] == "r7"
    with over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        got = client.infer("ads", inputs(over_grpc, tensors), model_version="1", request_id="r8")
        assert np.array_equal(got.as_numpy("score"), expected)
        assert (got.get_response().id, got.get_response().model_version) == ("r8", "1")


def test_tritonclient_learns_what_the_model_is(server: Running) -> None:
    with over_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("ads")
        assert client.is_model_ready("ads", "1")
        assert not client.is_model_ready("ads", "2")
        assert client.get_server_metadata()["name"] == "ctrbox"
        metadata = client.get_model_metadata("ads")
        assert {i["name"]: i["shape"] for i in metadata["inputs"]}["user_id"] == [1]
        assert client.get_model_config("ads")["output"][0] == {"name": "score", "data_type": "TYPE_FP32", "dims": [-1]}
        assert client.get_model_repository_index()[0]["state"] == "READY"
    with over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("ads")
        assert not client.is_model_ready("adds")
        assert client.get_model_metadata("ads", as_json=True)["outputs"][0]["datatype"] == "FP32"
        assert client.get_model_config("ads", as_json=True)["config"]["backend"] == "ctrbox"
        assert client.get_server_metadata().name == "ctrbox"
        assert client.get_model_repository_index().models[0].version == "1"


def test_tritonclient_is_told_what_is_wrong(world: World, server: Running) -> None:
    tensors = tensors_of(body_of(world.rows(0, 5)))
    clients = (
        (over_http, over_http.InferenceServerClient(f"127.0.0.1:{server.port}")),
        (over_grpc, over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")),
    )
    for library, client in clients:
        with client:
            for changes, words in (
                ({"ad_id": np.zeros(4, np.int64)}, "because the other columns of the candidates have"),
                ({"ad_id": np.zeros(501, np.int64), "position": np.zeros(501, np.int64)}, "at most 500"),
                ({"user_id": np.zeros(5, np.int64)}, "belongs to the context"),
                ({"ad_idd": np.zeros(5, np.int64)}, "nearest: 'ad_id'"),
                ({"query": np.array([b"\xff\xfe"], object)}, "cannot be read"),
            ):
                with pytest.raises(InferenceServerException, match=words):
                    client.infer("ads", inputs(library, {**tensors, **changes}))
            with pytest.raises(InferenceServerException, match="this server serves 'ads'"):
                client.infer("other", inputs(library, tensors))
            with pytest.raises(InferenceServerException, match="that is served is 1"):
                client.infer("ads", inputs(library, tensors), model_version="9")
            with pytest.raises(InferenceServerException, match="no output 'p'"):
                client.infer("ads", inputs(library, tensors), outputs=[library.InferRequestedOutput("p")])


def test_what_grpc_does_not_offer_is_unimplemented_without_a_traceback(server: Running) -> None:
    with over_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        for ask in (client.get_trace_settings, client.get_system_shared_memory_status, client.get_log_settings):
            with pytest.raises(InferenceServerException, match="is not offered by this server") as told:
                ask()
            assert "UNIMPLEMENTED" in str(told.value.status())
        assert client.is_server_live()
    server.get("/healthz")
    assert not [line for line in server.said if "Traceback" in line or "Exception" in line]


def test_pages_load_nothing_from_outside(server: Running) -> None:
    for path in ("/", "/docs"):
        page = server.get(path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page.text)
    described = server.get("/openapi.json").json()
    request = described["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"]
    assert set(request["schema"]["properties"]["context"]["required"]) == {
        "ts",
        "user_id",
        "query",
        "device",
        "context",
    }
    assert server.score(orjson.dumps(request["example"])).status_code == 200  # what the page shows is a request


def test_metrics_count_what_happened(world: World, server: Running) -> None:
    def read() -> dict[str, float]:
        lines = [line.rsplit(" ", 1) for line in server.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    before = read()
    body = orjson.dumps(body_of(world.rows(700, 7), 6))
    for _ in range(3):
        assert server.score(body).status_code == 200
    assert server.score(b"{}").status_code == 400
    after = read()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown['ctrbox_requests_total{route="score",code="200"}'] == 3
    assert grown['ctrbox_requests_total{route="score",code="400"}'] == 1
    assert grown["ctrbox_candidates_total"] == 21
    assert grown["ctrbox_request_seconds_count"] == 3
    assert (grown["ctrbox_cache_hits_total"], grown["ctrbox_cache_misses_total"]) == (2, 1)
    live = server.get("/v1/live").json()
    assert live["model"] == {"name": "ads", "kind": "deep_ffm", "version": 1}


# ---- the routes and the queue alone, without a socket


def service_of(world: World, **options: Any) -> Service:
    limits = options.pop("limits", Limits())
    served = open_served(ModelFolder.open(world.folder), most_candidates=limits.candidates)
    return Service(served, "ads", ScoringQueue(0, limits.waiting, limits.deadline_ms / 1000), limits, **options)


def ask(service: Service, requests: list[tuple[str, str, bytes, dict[str, str]]]) -> list[httpx.Response]:
    """Answer requests that arrive together, in the order in which a connection asks: head, body, queue."""
    routes = Routes(service)

    async def one(method: str, path: str, body: bytes, given: dict[str, str]) -> httpx.Response:
        headers = {b"content-length": b"%d" % len(body), b"host": b"127.0.0.1"}
        headers |= {name.encode(): value.encode() for name, value in given.items()}
        try:
            routes.head(method, path, headers)
            found = routes.answer(method, path, headers, body)
            if isinstance(found, Scoring):
                found = await service.queue.run(found.work)
        except Exception as error:
            found = answer_of(error)
        return httpx.Response(found.status, headers=list(found.headers), content=found.body)

    async def all_of_them() -> list[httpx.Response]:
        return await asyncio.gather(*(one(*request) for request in requests))

    return asyncio.run(all_of_them())


def test_every_route_but_liveness_asks_for_the_token(world: World) -> None:
    service = service_of(world, token=b"secret")
    basic = base64.b64encode(b"me:secret").decode()
    paths = [
        "/",
        "/docs",
        "/metrics",
        "/v1/live",
        "/openapi.json",
        "/v2",
        "/v2/health/ready",
        "/v2/models/ads",
        "/nothing",
    ]
    for header, allowed in (
        ("", False),
        ("Bearer secret", True),
        ("bearer secret", True),
        ("Bearer secre", False),
        ("Bearer secrett", False),
        ("secret", False),
        (f"Basic {basic}", True),
        ("Basic !!", False),
        ("Basic bWU6bm8=", False),
    ):
        headers = {"authorization": header} if header else {}
        found = ask(service, [("GET", path, b"", headers) for path in paths])
        assert {r.status_code == 401 for r in found} == {not allowed}
        assert [r.status_code for r in ask(service, [("POST", "/v1/score", b"{}", headers)])] == [
            400 if allowed else 401
        ]
    assert [r.status_code for r in ask(service, [("GET", p, b"", {}) for p in ("/healthz", "/v2/health/live")])] == [
        200,
        200,
    ]


def test_beyond_loopback_a_token_is_needed() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        check(Settings(host=host))
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.com"):
        with pytest.raises(Exception, match="token is required:"):
            check(Settings(host=host))
        check(Settings(host=host, token="secret"))


def test_a_host_that_is_none_is_refused_in_words() -> None:
    for host in ("a" * 80, "é" * 80, "\u3002", "a..b"):
        with pytest.raises(PlanError, match="cannot listen at") as met:
            listening_sockets(host, 8000)
        assert len(str(met.value)) < 400


def test_a_full_queue_answers_503_at_once_and_the_rest_is_answered(world: World) -> None:
    service = service_of(world, limits=Limits(waiting=4))
    body = orjson.dumps(body_of(world.rows(0, 20)))
    found = ask(service, [("POST", "/v1/score", body, {})] * 40)
    codes = [r.status_code for r in found]
    assert set(codes) == {200, 503}
    assert codes.count(200) >= 5
    refused = next(r for r in found if r.status_code == 503)
    assert refused.headers["retry-after"] == "1"
    assert "are already waiting" in refused.json()["error"]
    assert service.queue.pending == 0


def test_a_deadline_that_passed_is_503(world: World) -> None:
    service = service_of(world)
    service.queue.check = lambda deadline: ScoringQueue.check(service.queue, deadline - 10)  # type: ignore[method-assign]
    (found,) = ask(service, [("POST", "/v1/score", orjson.dumps(body_of(world.rows(0, 5))), {})])
    assert found.status_code == 503
    assert "deadline" in found.json()["error"]


def test_who_would_wait_too_long_is_refused_at_the_door() -> None:
    queue = ScoringQueue(0, 1000, 30.0)  # far longer than this takes on any machine: only the pace decides

    async def ask_many() -> list[Any]:
        first = await asyncio.gather(*(queue.run(lambda: time.sleep(0.005)) for _ in range(8)))
        assert first == [None] * 8
        assert 0 < queue.pace < 30.0
        queue.pace = 3.0
        return await asyncio.gather(*(queue.run(lambda: 1) for _ in range(30)), return_exceptions=True)

    found = asyncio.run(ask_many())
    assert found[:10] == [1] * 10
    assert all(isinstance(f, Refused) for f in found[12:])
    assert queue.pending == 0


def test_a_closed_queue_is_not_ready(world: World) -> None:
    service = service_of(world)
    service.queue.close()
    body = orjson.dumps(body_of(world.rows(0, 5)))
    found = ask(
        service, [("GET", "/v2/health/ready", b"", {}), ("GET", "/healthz", b"", {}), ("POST", "/v1/score", body, {})]
    )
    assert [r.status_code for r in found] == [503, 200, 503]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/v1/score", b"", {}, 405),
        ("POST", "/metrics", b"", {}, 405),
        ("GET", "/v1/scores", b"", {}, 404),
        ("GET", "/v2/models", b"", {}, 404),
        ("GET", "/v2/models/", b"", {}, 404),
        ("GET", "/v2/models/ads/versions/1/ready", b"", {}, 200),
        ("GET", "/v2/models/ads/versions", b"", {}, 404),
        ("GET", "/v2/models/ads/infer", b"", {}, 405),
        ("GET", "/v2/models/%61ds", b"", {}, 200),
        ("POST", "/v1/score", b"x" * 2000, {}, 413),
        ("POST", "/v1/score", b"{}", {"content-length": "9" * 30}, 413),
        ("POST", "/v1/score", b"{}", {"content-encoding": "gzip"}, 415),
    ],
)
def test_routes_say_what_they_take(
    world: World, method: str, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    (found,) = ask(service_of(world, limits=Limits(body_bytes=1000)), [(method, path, body, headers)])
    assert found.status_code == status
    assert status == 200 or found.json()["error"]


def test_a_queue_of_threads_does_the_same() -> None:
    queue = ScoringQueue(2, 3, 1.0)

    async def fill() -> list[Any]:
        return await asyncio.gather(*(queue.run(lambda k=k: k * k) for k in range(9)), return_exceptions=True)

    found = asyncio.run(fill())
    assert [f for f in found if isinstance(f, int)] == [0, 1, 4, 9, 16]
    assert all(isinstance(f, Refused) for f in found[5:])
    assert queue.drain(1.0)
    assert not any(t.join(5) or t.is_alive() for t in queue.threads)
