"""Routes by themselves: what a head is refused for, which work a path gives, and calls that refresh views."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ctrbox.errors import DataError
from ctrbox.serve.host_and_origin import AllowedHosts
from ctrbox.serve.refused_request import Refused, overloaded
from ctrbox.serve.routes import Answer, Routes, Scoring, answer_of, error_body
from tests.serve.test_service import Model, service_of

TOKEN = "this server requires a token, but {}; expected the header Authorization: Bearer TOKEN"
NONE = TOKEN.format("the request has none")
OTHER = TOKEN.format("the Authorization header has another token")
ENCODED = "the request has a Content-Encoding, which this server does not support; send the body uncompressed"


@pytest.mark.parametrize(
    ("path", "headers", "status", "message"),
    [
        ("/v2", {}, 401, NONE),
        ("/v2", {b"authorization": b"Bearer other"}, 401, OTHER),
        ("/v2", {b"authorization": b""}, 401, OTHER),
        ("/v2", {b"authorization": b"Bearer secret"}, 0, ""),
        ("/healthz", {}, 0, ""),
        ("/v2/health/live", {}, 0, ""),
        ("/v2/health/ready", {}, 401, NONE),
        ("/healthz", {b"content-encoding": b"gzip"}, 415, ENCODED),
        ("/healthz", {b"content-encoding": b"identity"}, 0, ""),
        ("/healthz", {b"content-length": b"x"}, 0, ""),  # whoever reads the head refuses it
        ("/healthz", {b"content-length": b"9" * 18}, 413, ""),
        ("/healthz", {b"content-length": b"0" * 18}, 0, ""),
        ("/healthz", {b"content-length": b"0" * 19}, 413, ""),
        ("/healthz", {b"content-length": b"1048576"}, 0, ""),
        ("/healthz", {b"content-length": b"1048577"}, 413, ""),
    ],
)
def test_a_head_that_is_enough_to_refuse_a_request_is_refused(
    path: str, headers: dict[bytes, bytes], status: int, message: str
) -> None:
    routes = Routes(service_of(token=b"secret"))
    if not status:
        routes.head("GET", path, headers)
        return
    with pytest.raises(Refused) as told:
        routes.head("GET", path, headers)
    large = "the body is larger than 1,048,576 bytes, the maximum of this server"
    assert (told.value.status, str(told.value)) == (status, message or large)


def test_a_server_without_a_token_asks_for_the_name_of_its_machine() -> None:
    routes = Routes(service_of(hosts=AllowedHosts("127.0.0.1", ["ads.example"])))
    for host in (b"ads.example", b"127.0.0.1:80", b""):
        routes.head("GET", "/", {b"host": host, b"origin": b"http://ads.example" if host else b""})
    with pytest.raises(Refused) as told:
        routes.head("GET", "/", {b"host": b"other"})
    assert (told.value.status, str(told.value)) == (
        403,
        "the Host header names 'other', which is not a name of this machine; to allow it, start the server with --allow-host "
        "NAME",
    )
    with pytest.raises(Refused) as told:
        routes.head("GET", "/", {b"host": b"localhost", b"origin": b"https://other"})
    assert (told.value.status, str(told.value)) == (
        403,
        "web pages from 'https://other' are not allowed to call this server; to allow them, start it with --allow-host NAME",
    )


def found(routes: Routes, method: str, path: str, body: bytes = b"", **headers: bytes) -> Any:
    """Return the status and the JSON of an answer, the route of work for the queue, or the refusal."""
    given = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    try:
        answer = routes.answer(method, path, given, body)
    except Refused as refused:
        return refused.status, str(refused)
    if isinstance(answer, Scoring):
        return answer.route
    return answer.status, json.loads(answer.body) if answer.body.startswith((b"{", b"[")) else answer.body


@pytest.mark.parametrize("name", ["ads", "a/b &"])
def test_a_path_of_the_inference_protocol_names_a_model_and_perhaps_a_version(name: str) -> None:
    service = service_of()
    service.name = name
    routes, quoted = Routes(service), name.replace("/", "%2F").replace(" ", "%20")
    metadata = service.model_metadata()
    assert metadata["platform"] == "ctrbox_deep_ffm"
    for base in (f"/v2/models/{quoted}", f"/v2/models/{quoted}/versions/3"):
        assert found(routes, "GET", base) == (200, metadata)
        assert found(routes, "HEAD", base) == (200, metadata)
        assert found(routes, "GET", f"{base}/config") == (200, service.model_config())
        assert found(routes, "GET", f"{base}/ready") == (200, service.readiness())
        assert found(routes, "POST", f"{base}/infer") == "infer"
        assert found(routes, "POST", f"{base}/config") == (405, f"{base}/config accepts GET, not POST"[:200])
        assert found(routes, "HEAD", f"{base}/infer") == (405, f"{base}/infer accepts POST, not HEAD")
        assert found(routes, "GET", f"{base}/more")[0] == found(routes, "GET", f"{base}/ready/more")[0] == 404
    other = (404, f"model {name!r} has no version '4' here; the version that is served is 3")
    assert found(routes, "POST", f"/v2/models/{quoted}/versions/4/infer") == other
    assert found(routes, "GET", "/v2/models/none")[1] == f"there is no model 'none'; this server serves {name!r}"
    index = [{"name": name, "version": "3", "state": "READY"}]
    assert found(routes, "POST", "/v2/repository/index") == (200, index)
    assert found(routes, "GET", "/v2/repository/index")[0] == 405
    for path in ("/v2/models//ready", "/v2/models/ads/versions", "/v2/modelsads", "/v2/other"):
        assert found(routes, "GET", path) == (404, f"there is no resource at {path!r}; see /docs")
    service.queue.close()
    assert found(routes, "GET", f"/v2/models/{quoted}/ready")[0] == 503


def test_pages_are_read_and_scoring_is_posted() -> None:
    routes = Routes(service_of())
    assert found(routes, "GET", "/healthz") == found(routes, "HEAD", "/healthz") == (200, {"status": "ok"})
    assert found(routes, "GET", "/v2") == found(routes, "GET", "/v2/")
    assert found(routes, "GET", "/v2/health/live") == (200, b"")
    for route in ("score", "prerank", "cascade"):
        assert found(routes, "POST", f"/v1/{route}") == route
        assert found(routes, "GET", f"/v1/{route}") == (405, f"/v1/{route} accepts POST, not GET")
    assert found(routes, "D" * 30, "/healthz") == (405, f"/healthz accepts GET, not {'D' * 20}")
    assert found(routes, "GET", "/" + "x" * 200) == (404, f"there is no resource at {'/' + 'x' * 99!r}; see /docs")


def test_views_are_read_again_where_there_are_some_and_a_call_has_no_body() -> None:
    service = service_of()
    routes = Routes(service)
    assert found(routes, "GET", "/v1/views") == (200, {"done": 0, "views": []})
    nothing = (404, "this model joins no views of files, so there is nothing to refresh")
    assert found(routes, "POST", "/v1/views/refresh") == nothing
    calls = iter([5, 6])
    service.refresher = SimpleNamespace(ask=lambda: next(calls), told=lambda: {"done": 4, "views": {}})  # type: ignore[assignment]
    assert found(routes, "POST", "/v1/views/refresh") == (202, {"call": 5, "done": 4, "views": []})
    assert found(routes, "POST", "/v1/views/refresh", b" {} \n") == (202, {"call": 6, "done": 4, "views": []})
    assert found(routes, "GET", "/v1/views") == (200, {"done": 4, "views": []})
    assert found(routes, "GET", "/v1/views/refresh") == (405, "/v1/views/refresh accepts POST, not GET")
    assert found(routes, "POST", "/v1/views/refresh", b'{"a": 1}') == (
        400,
        "a call that refreshes the joined views must have no body, because it reads all views that have files again",
    )


def test_events_are_taken_where_a_state_is_kept() -> None:
    model = Model()
    routes = Routes(service_of(model))
    none = (404, "this server keeps no state of histories, so it accepts no events; start it with --state FILE")
    assert found(routes, "POST", "/v1/events") == found(routes, "GET", "/v1/events") == none
    model.past = SimpleNamespace(told=lambda: {"position": "7"}, observe=lambda body: {"taken": len(body)})
    assert found(routes, "GET", "/v1/events") == found(routes, "HEAD", "/v1/events") == (200, {"position": "7"})
    assert found(routes, "PUT", "/v1/events") == (405, "/v1/events accepts POST and GET, not PUT")
    work = routes.answer("POST", "/v1/events", {}, b"12345")
    assert isinstance(work, Scoring)
    assert (work.route, work.work()) == ("other", Answer(200, b'{"taken":5}'))


def test_refusals_carry_the_headers_that_clients_need() -> None:
    asked = answer_of(Refused(401, "who"))
    assert asked.headers == ((b"www-authenticate", b'Bearer, Basic realm="ctrbox: any name, the token as password"'),)
    assert answer_of(overloaded("later")) == Answer(503, b'{"error":"later"}', headers=((b"retry-after", b"1"),))
    assert answer_of(Refused(404, "none")).headers == ()
    assert answer_of(DataError("x" * 3000)) == Answer(400, error_body("x" * 2000))
    assert error_body("a\ud800b") == b'{"error":"a?b"}'
