"""Spans of requests through the SDK of OpenTelemetry, and the lines of the access log."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ctrbox.errors import PlanError, SourceError
from ctrbox.serve.access_log import AccessLog
from ctrbox.serve.traces import Traces, check_target, current
from tests.serve.running import Listening, listening, running
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = CALLER[:-1] + "0"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(world: World, spans: InMemorySpanExporter, tmp_path: Path) -> Iterator[Listening]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    access = AccessLog(tmp_path / "access.log")
    with listening(world.folder, traces=Traces(provider), access=access) as server:
        yield server


def lines_of(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "access.log").read_text().splitlines()]


def tree_of(spans: InMemorySpanExporter) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """The span of the one request, and its parts in order."""
    found = spans.get_finished_spans()
    (root,) = [span for span in found if span.name not in ("reading", "plan", "engine", "writing")]
    parts = sorted((span for span in found if span is not root), key=lambda span: span.start_time or 0)
    for part in parts:
        assert part.parent is not None
        assert part.parent.span_id == root.context.span_id
        assert part.context.trace_id == root.context.trace_id
    spans.clear()
    return root, parts


def infer_body(world: World) -> bytes:
    request = body_of(world.rows(0, 4))
    inputs = []
    for name, value in request["context"].items():
        inputs.append(
            {"name": name, "shape": [1], "datatype": "BYTES", "data": [value]}
            if isinstance(value, str)
            else {"name": name, "shape": [1], "datatype": "INT64", "data": [value]}
        )
    for name in request["candidates"][0]:
        values = [row[name] for row in request["candidates"]]
        kind = "FP64" if isinstance(values[0], float) else "INT64"
        inputs.append({"name": name, "shape": [len(values)], "datatype": kind, "data": values})
    return json.dumps({"inputs": inputs}).encode()


@pytest.mark.parametrize("path", ["/v1/score", "/v2/models/ads/infer"])
def test_a_request_has_a_span_with_its_parts(
    world: World, traced: Listening, spans: InMemorySpanExporter, path: str
) -> None:
    body = json.dumps(body_of(world.rows(0, 4))).encode() if path == "/v1/score" else infer_body(world)
    for cached in (False, True):
        answer = httpx.post(f"http://127.0.0.1:{traced.port}{path}", content=body)
        assert answer.status_code == 200, answer.text
        root, parts = tree_of(spans)
        assert root.name == f"POST {path}".replace("/ads/", "/{model}/")
        assert root.attributes is not None
        assert root.attributes["http.response.status_code"] == 200
        assert root.attributes["ctrbox.candidates"] == 4
        assert root.attributes["ctrbox.context_cached"] is cached
        assert [part.name for part in parts] == ["reading", "plan", "engine", "writing"]
        ends = [root.start_time or 0, *((part.end_time or 0) for part in parts), root.end_time or 0]
        assert ends == sorted(ends)
        assert all((part.end_time or 0) > (part.start_time or 0) for part in parts)
    assert current() is None


def test_the_trace_of_the_caller_goes_on(world: World, traced: Listening, spans: InMemorySpanExporter) -> None:
    body, url = json.dumps(body_of(world.rows(0, 4))).encode(), f"http://127.0.0.1:{traced.port}/v1/score"
    httpx.post(url, content=body, headers={"traceparent": CALLER, "tracestate": "vendor=value"})
    root, _ = tree_of(spans)
    assert root.parent is not None
    assert format(root.context.trace_id, "032x") == CALLER.split("-")[1]
    assert format(root.parent.span_id, "016x") == CALLER.split("-")[2]
    assert root.context.trace_state.get("vendor") == "value"
    httpx.post(url, content=body, headers={"traceparent": NOT_SAMPLED})
    assert not spans.get_finished_spans()
    bad = [
        "x",
        "",
        "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
        CALLER.upper(),
        "ff" + CALLER[2:],
        "é",
        CALLER + "x" * 2000,
    ]
    for header in bad:
        found = httpx.post(url, content=body, headers={"traceparent": header.encode(), "tracestate": "=,,;" * 300})
        assert found.status_code == 200
        root, _ = tree_of(spans)
        assert root.parent is None


def test_a_refused_request_has_a_span_without_the_parts_that_it_did_not_reach(
    world: World, traced: Listening, spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    found = traced.score(b'{"context": {}, "candidates": [{"ad_id": 1}]}')
    assert found.status_code == 400
    root, parts = tree_of(spans)
    assert root.attributes is not None
    assert root.attributes["http.response.status_code"] == 400
    assert [part.name for part in parts] == []
    traced.service.queue.most = 0
    assert traced.score(b"{}").status_code == 503
    root, parts = tree_of(spans)
    assert not root.status.is_ok
    assert not parts
    assert [line["status"] for line in lines_of(tmp_path)] == [400, 503]


def test_a_request_that_python_reads_has_its_parts_too(
    world: World, traced: Listening, spans: InMemorySpanExporter
) -> None:
    body = body_of(world.rows(0, 4))
    text = json.dumps(body).replace('"user_id"', '"\\u0075ser_id"')  # the native reader takes no names with escapes
    assert traced.score(text.encode()).status_code == 200
    _, parts = tree_of(spans)
    assert [part.name for part in parts] == ["reading", "engine", "writing"]


def test_without_a_sampled_trace_no_part_is_measured(world: World, spans: InMemorySpanExporter) -> None:
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF))
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with listening(world.folder, traces=Traces(provider)) as server:
        body = json.dumps(body_of(world.rows(0, 4))).encode()
        assert server.score(body).status_code == 200
        assert not spans.get_finished_spans()
        url = f"http://127.0.0.1:{server.port}/v1/score"
        assert httpx.post(url, content=body, headers={"traceparent": CALLER}).status_code == 200
        assert len(spans.get_finished_spans()) == 5


def test_every_answer_has_a_line_in_the_access_log(world: World, traced: Listening, tmp_path: Path) -> None:
    body, url = json.dumps(body_of(world.rows(0, 4))).encode(), f"http://127.0.0.1:{traced.port}"
    answers = [
        httpx.post(url + "/v1/score", content=body, headers={"traceparent": CALLER}),
        httpx.get(url + "/healthz"),
        httpx.get(url + "/" + "é" * 300),
        httpx.post(url + "/v1/score", content=b"{", headers={"authorization": "Bearer secret-token"}),
        httpx.get(url + "/metrics", headers={"content-encoding": "gzip"}),
    ]
    (tmp_path / "access.log").read_text().encode("ascii")
    found = lines_of(tmp_path)
    assert [line["status"] for line in found] == [a.status_code for a in answers] == [200, 200, 404, 400, 415]
    assert [line["bytes"] for line in found] == [len(a.content) for a in answers]
    assert found[0] | {"time": "", "ms": 0} == {
        "time": "",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/score",
        "status": 200,
        "ms": 0,
        "bytes": len(answers[0].content),
        "candidates": 4,
        "version": 1,
        "trace": CALLER.split("-")[1],
    }
    assert found[0]["ms"] > 0
    assert len(found[2]["path"]) == 200
    assert "secret" not in (tmp_path / "access.log").read_text()


def test_the_access_log_follows_its_name_and_survives_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(path)
    log.add("c", "GET", "/a", 200, 0.0, 1)
    path.rename(tmp_path / "access.log.1")
    log._checked -= 2.0
    log.add("c", "GET", "/b", 200, 0.0, 1)
    assert [json.loads(p.read_text())["path"] for p in (tmp_path / "access.log.1", path)] == ["/a", "/b"]
    log.close()
    full = AccessLog(Path("/dev/full"))
    full.add("c", "GET", "/c", 200, 0.0, 1)
    full.close()
    with pytest.raises(SourceError, match=r"cannot write the access log .*nowhere/a: No such file"):
        AccessLog(tmp_path / "nowhere" / "a")


def test_a_server_sends_its_spans_to_a_collector_and_logs(world: World, tmp_path: Path) -> None:
    """A real collector's side: the OTLP exporter posts protobuf to it."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    came: list[Any] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    place = tmp_path / "access.log"
    try:
        with running(
            world.folder, "--name", "ads", "--traces", url, "--access-log", str(place), "--workers", "2"
        ) as server:
            headers = {"traceparent": CALLER}
            body = json.dumps(body_of(world.rows(0, 4))).encode()
            assert httpx.post(f"{server.url}/v1/score", content=body, headers=headers).status_code == 200
            stub = service_pb2_grpc.GRPCInferenceServiceStub(_channel(server.grpc_port))
            stub.ModelInfer(message_of(world), metadata=[("traceparent", CALLER)])
            assert server.stop() == 0
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    resources = [resource for request in came for resource in request.resource_spans]
    found = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert {span.trace_id.hex() for span in found} == {CALLER.split("-")[1]}
    names = [
        "POST /v1/score",
        "inference.GRPCInferenceService/ModelInfer",
        *(2 * ["reading", "plan", "engine", "writing"]),
    ]
    assert sorted(span.name for span in found) == sorted(names)
    facts = {pair.key: pair.value.string_value for pair in resources[0].resource.attributes}
    assert (facts["service.name"], facts["ctrbox.model"]) == ("ctrbox", "ads")
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    assert [(line["method"], line["path"]) for line in lines if line["path"] != "/healthz"] == [
        ("POST", "/v1/score"),
        ("gRPC", "ModelInfer"),
    ]


def _channel(port: int) -> Any:
    import grpc

    return grpc.insecure_channel(f"127.0.0.1:{port}")


def message_of(world: World) -> Any:
    made = service_pb2.ModelInferRequest(model_name="ads")
    for entry in json.loads(infer_body(world))["inputs"]:
        made.inputs.add(name=entry["name"], datatype=entry["datatype"], shape=entry["shape"])
        data = entry["data"]
        if entry["datatype"] == "BYTES":
            raw = b"".join(struct.pack("<I", len(v.encode())) + v.encode() for v in data)
        else:
            raw = struct.pack(f"<{len(data)}{'q' if entry['datatype'] == 'INT64' else 'd'}", *data)
        made.raw_input_contents.append(raw)
    return made


def test_a_target_that_is_none_is_refused() -> None:
    for bad in ("file", "localhost:4318", "ftp://x"):
        with pytest.raises(PlanError, match="--traces takes the URL of an OTLP/HTTP collector"):
            check_target(bad)
    check_target("console")
