"""Serves gRPC with the Open Inference Protocol v2, as ``tritonclient.grpc`` uses it.

Threads of gRPC score requests themselves. ``maximum_concurrent_rpcs`` limits the number of these threads and of the requests that
wait for them; gRPC answers further requests with RESOURCE_EXHAUSTED at once. The queue of the service is a second limit. The
token comes as metadata ``authorization: Bearer …``.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc
import numpy as np
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from ctrbox.errors import CtrboxError, PlanError
from ctrbox.serve.answers import names_of_outputs
from ctrbox.serve.connection_limits import client_of
from ctrbox.serve.http_head import HEAD_BYTES
from ctrbox.serve.listener import IDLE_SECONDS
from ctrbox.serve.native_scoring import Tensor
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.service import Limits, Service
from ctrbox.serve.tensors import DATATYPES, NUMPY, check_output, checked_shape, from_binary, little, objects, wrong
from ctrbox.serve.tls import Certificate
from ctrbox.serve.traces import Traced

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
log = logging.getLogger("ctrbox.serve")


class InferenceService(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, service: Service) -> None:
        self.service = service

    def _answer(self, context: Any, work: Callable[[], Any]) -> Any:
        """Return what ``work`` returns, and convert a refusal to a status of gRPC."""
        try:
            return work()
        except Refused as refused:
            context.abort(CODES.get(refused.status, grpc.StatusCode.INVALID_ARGUMENT), str(refused))
        except CtrboxError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception:
            log.exception("a request failed")
            context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has more")

    # ---- the protocol's names are not ours

    def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer(context, lambda: service_pb2.ServerReadyResponse(ready=self.service.ready))

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        def work() -> Any:
            try:
                self.service.check_model(request.name, request.version)
            except Refused:
                return service_pb2.ModelReadyResponse(ready=False)
            return service_pb2.ModelReadyResponse(ready=self.service.ready)

        return self._answer(context, work)

    def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer(context, lambda: service_pb2.ServerMetadataResponse(**self.service.server_metadata()))

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        def work() -> Any:
            self.service.check_model(request.name, request.version)
            told = self.service.model_metadata()
            tensor = service_pb2.ModelMetadataResponse.TensorMetadata
            for part in ("inputs", "outputs"):
                told[part] = [tensor(**entry) for entry in told[part]]
            return service_pb2.ModelMetadataResponse(**told)

        return self._answer(context, work)

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        def work() -> Any:
            self.service.check_model(request.name, request.version)
            told = self.service.model_config()
            told["input"] = [model_config_pb2.ModelInput(**typed(entry)) for entry in told["input"]]
            told["output"] = [model_config_pb2.ModelOutput(**typed(entry)) for entry in told["output"]]
            return service_pb2.ModelConfigResponse(config=model_config_pb2.ModelConfig(**told))

        return self._answer(context, work)

    def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        def work() -> Any:
            index = service_pb2.RepositoryIndexResponse()
            index.models.add(name=self.service.name, version=str(self.service.served.version), state="READY")
            return index

        return self._answer(context, work)

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        began, status, rows, size, version = time.perf_counter(), 200, 0, 0, None
        service = self.service
        client = client_of_peer(context.peer())
        traced = None if service.traces is None else self._traced(context, client)

        def work() -> Any:
            nonlocal rows, size, version
            self.service.check_model(request.model_name, request.model_version)
            expression = score_of(request)
            possible = names_of_outputs(self.service.labels, expression)
            for output in request.outputs:
                check_output(output.name, possible)
            tensors = plain_tensors(request) if expression is None else None
            found = None if tensors is None else self.service.tensors_plain(tensors, request.model_version)
            if found is None:
                asked = service.served.reader.from_tensors(tensors_of(request), expression)
                service.lap("reading")
                found, rows = service.answer(asked, request.model_version), asked.rows
                service.lap("engine")
            else:
                rows = len(found.scores)
            if found.views:
                context.set_trailing_metadata((("ctrbox-views", found.views.decode("ascii")),))
            answer = service_pb2.ModelInferResponse(
                model_name=self.service.name, model_version=str(found.version), id=request.id
            )
            given = found.outputs()
            for name in dict.fromkeys(output.name for output in request.outputs) or given:
                answer.outputs.add(name=name, datatype=DATATYPES[given[name].dtype.char], shape=[len(given[name])])
                answer.raw_output_contents.append(little(given[name]).tobytes())
            version = found.version
            size = sum(map(len, answer.raw_output_contents))
            return answer

        def counted() -> Any:
            nonlocal status
            try:
                return service.queue.run_here(work if traced is None else partial(traced.around, work), client)
            except CtrboxError as error:
                status = getattr(error, "status", 400)
                raise
            except Exception:
                status = 500
                raise

        try:
            return self._answer(context, counted)
        finally:
            seconds = time.perf_counter() - began
            service.metrics.add("grpc", status, seconds, rows)
            if traced is not None:
                traced.end(status, {"rpc.status": status, "ctrbox.candidates": rows})
            if service.access is not None:
                trace = "" if traced is None else traced.trace_id
                service.access.add(client, "gRPC", "ModelInfer", status, seconds, size, rows, version, trace)

    def _traced(self, context: Any, client: str) -> Traced | None:
        assert self.service.traces is not None
        carrier = {k: v for k, v in context.invocation_metadata() or () if k in ("traceparent", "tracestate")}
        facts = {"rpc.system": "grpc", "rpc.method": "ModelInfer", "client.address": client}
        return self.service.traces.begin("inference.GRPCInferenceService/ModelInfer", carrier, facts)


def absent(name: str) -> Callable[..., Any]:
    def method(self: Any, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not offered by this server")

    return method


# The generated ones raise NotImplementedError, which gRPC logs with a traceback for every call of a stranger.
for _name in vars(service_pb2_grpc.GRPCInferenceServiceServicer):
    if not _name.startswith("_") and _name not in vars(InferenceService):
        setattr(InferenceService, _name, absent(_name))


def typed(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "data_type": getattr(model_config_pb2, entry["data_type"])}


def score_of(request: Any) -> str | None:
    """Return the expression of several labels that a request asks for in its parameter ``score``."""
    if "score" not in request.parameters:
        return None
    given = request.parameters["score"]
    if given.WhichOneof("parameter_choice") != "string_param":
        raise wrong("parameter 'score' must be a string, an expression of the labels of the model")
    return str(given.string_param)


def plain_tensors(request: Any) -> list[Tensor] | None:
    """Return the inputs for native code; None if `tensors_of` has to read them, or has to say what is wrong."""
    raw, inputs = request.raw_input_contents, request.inputs
    if len(raw) == len(inputs):
        if any(entry.HasField("contents") or len(entry.shape) > 2 for entry in inputs):
            return None
        return [(e.name, e.datatype, e.shape, data) for e, data in zip(inputs, raw, strict=True)]
    if raw:
        return None
    try:
        return [(e.name, e.datatype, e.shape, elements_of(e)) for e in inputs]
    except Refused:
        return None


def elements_of(entry: Any) -> bytes:
    """Return typed contents as the elements of a raw tensor."""
    values = from_contents(entry, checked_shape(entry.name, entry.datatype, list(entry.shape)))
    if entry.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(text)) + text for text in values.ravel())
    return values.tobytes()


def tensors_of(request: Any) -> dict[str, np.ndarray]:
    """Return the inputs by name, from raw or from typed contents."""
    raw, found = list(request.raw_input_contents), {}
    if raw and len(raw) != len(request.inputs):
        raise wrong(
            f"the request has {len(raw)} raw contents for {len(request.inputs)} inputs; expected one for each input"
        )
    for k, entry in enumerate(request.inputs):
        shape = checked_shape(entry.name, entry.datatype, list(entry.shape))
        if entry.name in found:
            raise wrong(f"input {entry.name[:100]!r} occurs twice")
        if raw:
            if entry.HasField("contents"):
                raise wrong(f"input {entry.name[:100]!r} has both contents and raw contents; expected one of the two")
            found[entry.name] = from_binary(entry.name, entry.datatype, shape, raw[k])
        else:
            found[entry.name] = from_contents(entry, shape)
    return found


def from_contents(entry: Any, shape: list[int]) -> np.ndarray:
    count = int(np.prod(shape, dtype=object))
    name = "bytes_contents" if entry.datatype == "BYTES" else CONTENTS.get(entry.datatype)
    if name is None:
        raise wrong(f"input {entry.name[:100]!r}: {entry.datatype} is accepted in raw contents only")
    others = [field.name for field, _ in entry.contents.ListFields() if field.name != name]
    if others:
        raise wrong(f"input {entry.name[:100]!r} is {entry.datatype} and has {others[0]}; expected only {name}")
    values = getattr(entry.contents, name)
    if len(values) != count:
        raise wrong(f"input {entry.name[:100]!r} has {len(values)} values, expected {count} for shape {shape}")
    if entry.datatype == "BYTES":
        return objects(list(values), shape)
    try:
        return np.array(values, NUMPY[entry.datatype]).reshape(shape)
    except (OverflowError, ValueError):
        raise wrong(
            f"input {entry.name[:100]!r} contains a number outside the range of {entry.datatype}; use a larger datatype"
        ) from None


class TokenFirst(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses a call without the token before its message is read or a thread scores it. Liveness needs no token."""

    def __init__(self, service: Service) -> None:
        self.service = service

        def refuse(requests: Any, context: Any) -> Any:
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "this server requires a token; send it as gRPC metadata: authorization: Bearer TOKEN",
            )

        # A handler of streams, which is called before anything of the message was received.
        self.refuse = grpc.stream_stream_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Callable[[Any], Any], call: Any) -> Any:
        given = next((v for k, v in call.invocation_metadata or () if k == "authorization"), "")
        if call.method.endswith("/ServerLive") or self.service.allows(
            given.encode() if isinstance(given, str) else given
        ):
            return continuation(call)
        return self.refuse


def client_of_peer(peer: str) -> str:
    """Return the client address in gRPC's ``ipv4:127.0.0.1:4711`` or ``ipv6:[::1]:4711``."""
    kind, _, rest = unquote(peer).partition(":")
    return client_of(rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer)


def options(limits: Limits, threads: int, most_connections: int, shared: bool = False) -> list[tuple[str, int]]:
    """Return the settings of gRPC that enforce the limits of the service. ``shared``: other workers listen at the same port."""
    return [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_metadata_size", HEAD_BYTES),
        ("grpc.absolute_max_metadata_size", 2 * HEAD_BYTES),
        ("grpc.max_concurrent_streams", limits.waiting + threads),  # of one connection
        ("grpc.max_allowed_incoming_connections", most_connections),
        ("grpc.max_connection_idle_ms", int(1000 * IDLE_SECONDS)),
        ("grpc.server_handshake_timeout_ms", int(1000 * limits.body_seconds)),
        ("grpc.so_reuseport", int(shared)),
    ]


def grpc_server(
    service: Service, address: str, threads: int, most_connections: int = 1024, certificate: Certificate | None = None
) -> Any:
    """Return a server that listens at ``address`` (host:port) but has not started.

    If there are several workers, each has a server at the same port.
    """
    limits = service.limits
    server = grpc.server(
        ThreadPoolExecutor(threads, thread_name_prefix="ctrbox-grpc"),
        maximum_concurrent_rpcs=limits.waiting + threads,
        interceptors=[TokenFirst(service)],
        options=options(limits, threads, most_connections, service.desk is not None),
    )
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(InferenceService(service), server)
    try:
        if certificate is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials(certificate))
    except RuntimeError:
        bound = 0
    if not bound:
        raise PlanError(f"cannot listen at {address} for gRPC: the port is taken, or not allowed")
    return server


def credentials(certificate: Certificate) -> Any:
    """Return the certificate for gRPC. gRPC asks for it at each handshake, because the HTTP side reloads changed files."""

    def now() -> Any:
        return grpc.ssl_server_certificate_configuration([certificate.texts])

    return grpc.dynamic_ssl_server_credentials(now(), now)
