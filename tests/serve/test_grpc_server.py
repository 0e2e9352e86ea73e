"""gRPC without sockets: what of a message native code reads, who may call, settings, and what is not offered."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from ctrbox.errors import DataError
from ctrbox.serve.grpc_server import InferenceService, TokenFirst, client_of_peer, options, plain_tensors, score_of
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.service import Limits
from tests.serve.test_service import Model, Native, service_of


class Aborted(Exception):
    pass


class Call:
    """Stands for the context that gRPC passes to a method."""

    def __init__(self, **metadata: str) -> None:
        self.metadata, self.trailing = tuple(metadata.items()), ()

    def abort(self, code: Any, message: str) -> None:
        raise Aborted(code.name, message)

    def peer(self) -> str:
        return "ipv4:10.0.0.7:4711"

    def invocation_metadata(self) -> Any:
        return self.metadata or None

    def set_trailing_metadata(self, given: Any) -> None:
        self.trailing = given


def message(*inputs: dict[str, Any], raw: tuple[bytes, ...] = (), **more: Any) -> Any:
    made = service_pb2.ModelInferRequest(raw_input_contents=raw, model_name="ads", **more)
    for entry in inputs:
        contents = entry.pop("contents", {})
        added = made.inputs.add(**{"name": "x", "datatype": "INT32", "shape": [1], **entry})
        for name, values in contents.items():
            getattr(added.contents, name).extend(values)
    return made


def read(*inputs: dict[str, Any], raw: tuple[bytes, ...] = ()) -> Any:
    found = plain_tensors(message(*inputs, raw=raw))
    return None if found is None else [(name, kind, list(shape), data) for name, kind, shape, data in found]


def test_native_code_gets_raw_and_typed_elements_and_nothing_that_is_wrong() -> None:
    words = struct.pack("<I1sI2s", 1, b"a", 2, b"bc")
    assert read() == []
    assert read({}, {"name": "y"}, raw=(b"1234", b"5678")) == [
        ("x", "INT32", [1], b"1234"),
        ("y", "INT32", [1], b"5678"),
    ]
    assert read({"shape": [1, 1]}, raw=(b"1234",)) == [("x", "INT32", [1, 1], b"1234")]
    assert read({"contents": {"int_contents": [7]}}) == [("x", "INT32", [1], np.int32(7).tobytes())]
    texts = {"datatype": "BYTES", "shape": [2], "contents": {"bytes_contents": [b"a", b"bc"]}}
    assert read(texts) == [("x", "BYTES", [2], words)]
    for wrong, raw in (
        ({"shape": [1, 1, 1]}, (b"1234",)),
        ({"contents": {"int_contents": [7]}}, (b"1234",)),
        ({}, (b"1234", b"1234")),
        ({"contents": {"int_contents": [7, 8]}}, ()),
        ({"datatype": "FP16"}, ()),
    ):
        assert read(dict(wrong), raw=raw) is None


def test_an_expression_is_a_text_among_the_parameters() -> None:
    asked = message()
    assert score_of(asked) is None
    asked.parameters["score"].string_param = "click * buy"
    assert score_of(asked) == "click * buy"
    asked.parameters["score"].int64_param = 5
    with pytest.raises(
        Refused, match=r"^parameter 'score' must be a string, an expression of the labels of the model$"
    ):
        score_of(asked)


def test_an_answer_has_the_outputs_that_are_asked_for() -> None:
    model = Model()
    model.native = Native(np.array([0.5, 0.25], np.float32))
    written: list[tuple[Any, ...]] = []
    access: Any = SimpleNamespace(add=lambda *given: written.append(given))
    service = service_of(model, access=access)
    methods, call = InferenceService(service), Call()
    answer = methods.ModelInfer(message(id="seven"), call)
    assert (answer.model_name, answer.model_version, answer.id) == ("ads", "8", "seven")
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("score", "FP32", [2])
    assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [0.5, 0.25]
    assert call.trailing == (("ctrbox-views", "ads=2"),)
    line = written[0]
    assert (*line[:4], *line[5:]) == ("10.0.0.7", "gRPC", "ModelInfer", 200, 8, 2, 8, "")
    assert 0 <= line[4] < 60
    model.native.found = None  # left to Python
    model.reader.from_tensors = lambda tensors, score: SimpleNamespace(rows=len(tensors), score=score)
    asked = message({}, {"name": "y"}, raw=(b"1234", b"1234"))
    for name in ("score", "score"):
        asked.outputs.add(name=name)
    answer = methods.ModelInfer(asked, Call())
    assert [one.name for one in answer.outputs] == ["score"]
    assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [0.25, 0.5]
    assert answer.model_version == "3"
    assert service.metrics.requests == {("grpc", 200): 2}
    assert (service.metrics.candidates, service.queue.pending) == (4, 0)
    assert 0 <= service.metrics.seconds < 60


def fails(error: Exception) -> Any:
    def reading(tensors: Any, score: Any) -> Any:
        raise error

    return reading


@pytest.mark.parametrize(
    ("error", "status", "code", "told"),
    [
        (Refused(413, "too many"), 413, "RESOURCE_EXHAUSTED", "too many"),
        (Refused(408, "too slow"), 408, "INVALID_ARGUMENT", "too slow"),
        (DataError("wrong"), 400, "INVALID_ARGUMENT", "wrong"),
        (KeyError("x"), 500, "INTERNAL", "internal error; the server's log has more"),
    ],
)
def test_a_refusal_has_the_status_of_grpc_and_is_counted(error: Exception, status: int, code: str, told: str) -> None:
    service = service_of(metrics=Metrics())
    service.served.reader.from_tensors = fails(error)  # type: ignore[method-assign]
    with pytest.raises(Aborted) as aborted:
        InferenceService(service).ModelInfer(message(), Call())
    assert aborted.value.args == (code, told)
    assert service.metrics.requests == {("grpc", status): 1}


def test_readiness_and_calls_that_are_not_offered() -> None:
    service = service_of()
    methods = InferenceService(service)
    assert methods.ServerReady(None, Call()).ready
    for name, version, ready in (("ads", "", True), ("ads", "3", True), ("ads", "4", False), ("other", "", False)):
        asked = service_pb2.ModelReadyRequest(name=name, version=version)
        assert methods.ModelReady(asked, Call()).ready is ready
    service.queue.close()
    assert not methods.ServerReady(None, Call()).ready
    assert not methods.ModelReady(service_pb2.ModelReadyRequest(name="ads"), Call()).ready
    with pytest.raises(Aborted) as aborted:
        methods.RepositoryModelLoad(None, Call())
    assert aborted.value.args == ("UNIMPLEMENTED", "RepositoryModelLoad is not offered by this server")


@pytest.mark.parametrize(
    ("method", "metadata", "allowed"),
    [
        ("ServerReady", (), False),
        ("ServerReady", None, False),
        ("ServerLive", None, True),
        ("ModelInfer", (("other", "Bearer secret"),), False),
        ("ModelInfer", (("authorization", "Bearer secret"),), True),
        ("ModelInfer", (("authorization", b"Bearer secret"),), True),
        ("ModelInfer", (("authorization", "Bearer other"),), False),
    ],
)
def test_a_call_without_the_token_is_refused_unless_it_asks_for_liveness(
    method: str, metadata: Any, allowed: bool
) -> None:
    first = TokenFirst(service_of(token=b"secret"))
    call = SimpleNamespace(method=f"/inference.GRPCInferenceService/{method}", invocation_metadata=metadata)
    answered = first.intercept_service(lambda given: given, call)
    assert answered is (call if allowed else first.refuse)
    with pytest.raises(Aborted) as aborted:
        first.refuse.stream_stream(iter([]), Call())
    assert aborted.value.args[0] == "UNAUTHENTICATED"
    assert isinstance(first, grpc.ServerInterceptor)


def test_peers_and_settings_are_those_of_workers_too() -> None:
    assert client_of_peer("unix:/tmp/socket") == "unix:/tmp/socket"
    assert client_of_peer("ipv6:[2001:db8::1]:80") == "2001:db8::/64"
    assert dict(options(Limits(), 2, 10, shared=True))["grpc.so_reuseport"] == 1


def test_the_trace_of_a_caller_is_in_the_metadata() -> None:
    begun: list[Any] = []
    traces: Any = SimpleNamespace(begin=lambda *given: begun.append(given))
    service = service_of(traces=traces)
    methods = InferenceService(service)
    for call in (Call(), Call(traceparent="00-1", tracestate="a=b", other="c")):
        assert methods._traced(call, "10.0.0.7") is None
    facts = {"rpc.system": "grpc", "rpc.method": "ModelInfer", "client.address": "10.0.0.7"}
    name = "inference.GRPCInferenceService/ModelInfer"
    assert begun == [(name, {}, facts), (name, {"traceparent": "00-1", "tracestate": "a=b"}, facts)]
