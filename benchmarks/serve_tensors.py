"""What does a request of the Open Inference Protocol cost, in one native call and through Python?

python -m benchmarks.serve_tensors [--requests N] [--quick]

A Deep FFM over the demo's plan as in benchmarks.serve, 100 candidates a request, in four forms: POST /v1/score, v2 in JSON, v2 in
binary, gRPC. Each is answered by the native call and, with the same model, by the path through Python that takes whatever the
native call leaves; the answers must have the same bits.
    in process    CPU time of the route, from the body to the answer, without sockets
    with sockets  CPU time of a server process for a request over loopback, from one client that waits for each answer
Contexts never repeat (each request has another time), or always repeat (the cache has them). Both ways run in turns; the
figure is the median of the turns.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np
import orjson
from tritonclient.grpc import service_pb2

from benchmarks import report
from benchmarks.serve import CANDIDATES, free_port, make, requests_of
from ctrbox.serve.grpc_server import InferenceService, grpc_server
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.routes import Routes
from ctrbox.serve.served_models import ServedFfm, open_served
from ctrbox.serve.service import Limits, Service

FORMS = ("score", "v2 JSON", "v2 binary", "gRPC")
TURNS = 5
TICK = os.sysconf("SC_CLK_TCK")
INFER = "/v2/models/model/infer"


def service_of(folder: Path, native: bool) -> Service:
    served = open_served(ModelFolder.open(folder))
    assert isinstance(served, ServedFfm)
    if not native:
        served.live = replace(served.live, native=None)
    return Service(served, "model", ScoringQueue(0, 64, 10.0), Limits())


# ---- requests


Tensor = tuple[str, str, list[Any]]
FILLS: dict[str, Any] = {"query": "", "device": "unknown", "position": -1}  # tensors have no nulls


def filled(body: dict[str, Any]) -> dict[str, Any]:
    def row(given: dict[str, Any]) -> dict[str, Any]:
        return {name: FILLS[name] if value is None else value for name, value in given.items()}

    return {"context": row(body["context"]), "candidates": [row(one) for one in body["candidates"]]}


def tensors_of(body: dict[str, Any], number: int) -> list[Tensor]:
    """The columns of a request, with the time that number ``number`` of the fresh ones has."""
    columns = {name: [value] for name, value in body["context"].items()}
    columns |= {name: [row[name] for row in body["candidates"]] for name in body["candidates"][0]}
    columns["ts"] = [f"2026-11-18T12:00:00.{number:06}"]
    kinds = {int: "INT64", float: "FP64", str: "BYTES"}
    return [(name, kinds[type(values[0])], values) for name, values in columns.items()]


def binary(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in values)
    return np.array(values, "<i8" if datatype == "INT64" else "<f8").tobytes()


def request_of(form: str, body: dict[str, Any], number: int) -> tuple[bytes, int]:
    """Return the bytes of a request, and how many of them are JSON."""
    tensors = tensors_of(body, number)
    if form == "score":
        context = {**body["context"], "ts": tensors[[name for name, _, _ in tensors].index("ts")][2][0]}
        made = orjson.dumps({"context": context, "candidates": body["candidates"]})
        return made, len(made)
    if form == "gRPC":
        message = service_pb2.ModelInferRequest(model_name="model")
        for name, datatype, values in tensors:
            message.inputs.add(name=name, datatype=datatype, shape=[len(values)])
            message.raw_input_contents.append(binary(datatype, values))
        return message.SerializeToString(), 0
    inputs: list[dict[str, Any]] = [
        {"name": name, "datatype": datatype, "shape": [len(values)]} for name, datatype, values in tensors
    ]
    rest = b""
    for entry, (_, datatype, values) in zip(inputs, tensors, strict=True):
        if form == "v2 JSON":
            entry["data"] = values
        else:
            data = binary(datatype, values)
            entry["parameters"] = {"binary_data_size": len(data)}
            rest += data
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": form == "v2 binary"}})
    return head + rest, len(head)


# ---- in process


class Call:
    """Stands for the context that gRPC passes to a handler beside the message."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def set_trailing_metadata(self, _: Any) -> None: ...

    def abort(self, code: Any, details: str) -> None:
        raise RuntimeError(f"{code}: {details}")


def answering(service: Service, form: str) -> Callable[[bytes, int], bytes]:
    routes, handler, call = Routes(service), InferenceService(service), Call()
    if form == "score":
        return lambda body, _: routes.score(body).body
    if form == "gRPC":
        parse = service_pb2.ModelInferRequest.FromString
        return lambda body, _: handler.ModelInfer(parse(body), call).SerializeToString()
    return lambda body, head: routes.infer(body, str(head), "").body


def in_process(folder: Path, bodies: list[dict[str, Any]], count: int) -> dict[str, dict[str, float]]:
    services = {"native": service_of(folder, True), "Python": service_of(folder, False)}
    found: dict[str, dict[str, float]] = {}
    for form in FORMS:
        ways = {way: answering(service, form) for way, service in services.items()}
        for contexts in ("fresh", "repeated"):
            took: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(TURNS):
                asked = [
                    request_of(form, bodies[k % len(bodies)], turn * count + k if contexts == "fresh" else 0)
                    for k in range(count)
                ]
                answers = {}
                for way, answer in ways.items():
                    if contexts == "repeated":
                        for one in asked:
                            answer(*one)
                    began = time.process_time()
                    answers[way] = [answer(*one) for one in asked]
                    took[way].append((time.process_time() - began) / count)
                assert answers["native"] == answers["Python"]
            found[f"{form}, {contexts}"] = {way: 1e6 * statistics.median(took[way]) for way in ways}
    return found


# ---- with sockets


def serve(folder: Path, native: bool, ports: Any) -> None:
    import asyncio

    from ctrbox.serve.listener import Listener

    async def run() -> None:
        service = service_of(folder, native)
        front = Listener(service, "127.0.0.1", 0)
        front.start()
        port = free_port()
        rpc = grpc_server(service, f"127.0.0.1:{port}", 2, 8)
        rpc.start()
        ports.send((front.sockets[0].getsockname()[1], port))
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def server(folder: Path, native: bool) -> Iterator[tuple[int, int, int]]:
    """A server process: its number, its port of HTTP and that of gRPC."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(folder, native, there), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield process.pid, *here.recv()
    finally:
        process.kill()
        process.join()


def cpu_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


@contextmanager
def asking(form: str, port: int, grpc_port: int) -> Iterator[Callable[[bytes, int], bytes]]:
    if form == "gRPC":
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            name = "/inference.GRPCInferenceService/ModelInfer"
            ask = channel.unary_unary(name, request_serializer=None, response_deserializer=None)
            yield lambda body, _: ask(body)
        return
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def post(body: bytes, head: int) -> bytes:
        headers = {} if form == "score" else {"Inference-Header-Content-Length": str(head)}
        connection.request("POST", "/v1/score" if form == "score" else INFER, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return text

    try:
        yield post
    finally:
        connection.close()


def with_sockets(folder: Path, bodies: list[dict[str, Any]], count: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with server(folder, True) as native, server(folder, False) as python:
        for form in FORMS:
            took: dict[str, list[float]] = {"native": [], "Python": []}
            for turn in range(TURNS):
                asked = [request_of(form, bodies[k % len(bodies)], turn * count + k) for k in range(count)]
                answers = {}
                for way, (process, port, grpc_port) in (("native", native), ("Python", python)):
                    with asking(form, port, grpc_port) as ask:
                        ask(*asked[0])
                        began = cpu_of(process)
                        answers[way] = [ask(*one) for one in asked]
                        took[way].append((cpu_of(process) - began) / count)
                assert answers["native"] == answers["Python"]
            found[f"{form}, fresh"] = {way: 1e6 * statistics.median(took[way]) for way in took}
    return found


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--requests", type=int, default=400, help="of a turn")
    parser.add_argument("--quick", action="store_true", help="a log of 20,000 rows and 50 requests of a turn")
    asked = parser.parse_args()
    if asked.quick:
        asked.requests = 50
    with TemporaryDirectory(prefix="ctrbox-serve-") as name:
        place = Path(name)
        make(place, 20_000 if asked.quick else 100_000, 20)
        bodies = [body for body, _ in requests_of(place, 64, seed=0)]
        bodies = [filled(body) for body in bodies]
        found = {
            "in process": in_process(place / "model", bodies, asked.requests),
            "with sockets": with_sockets(place / "model", bodies, asked.requests),
        }
    print(f"{report.machine()}, commit {report.commit()}; µs of CPU for a request of {CANDIDATES} candidates")
    for where, forms in found.items():
        print(f"\n{where:28}  native  Python  ratio")
        for form, ways in forms.items():
            print(f"  {form:26} {ways['native']:7.0f} {ways['Python']:7.0f}  {ways['Python'] / ways['native']:5.2f}")
    binary = found["in process"]["v2 binary, fresh"]
    unit = "µs of CPU for a request in v2 binary whose context is new, in process"
    report.finish(binary["native"], {"Python": binary["Python"]}, unit, more_is_better=False, all=found)


if __name__ == "__main__":
    main()
