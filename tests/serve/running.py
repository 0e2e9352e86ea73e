"""A server in a process of its own, as `ctrbox serve` starts it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from ctrbox.serve.listener import Listener
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.served_models import open_served
from ctrbox.serve.service import Limits, Service


@dataclass
class Running:
    process: subprocess.Popen[str]
    port: int
    grpc_port: int
    said: list[str] = field(default_factory=list)  # lines of stderr so far

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30)

    def gauge(self, name: str) -> float:
        """Return a value of /metrics."""
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    def score(self, body: bytes) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/score", content=body, timeout=30)

    def raw(self, data: bytes, *, wait: float = 10.0) -> bytes:
        """What comes back for these bytes, until the server closes or ``wait`` seconds pass."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as s:
            with contextlib.suppress(OSError):
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
            found = b""
            with contextlib.suppress(OSError):
                while part := s.recv(65_536):
                    found += part
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@dataclass
class Listening:
    """A listener in this process, on a loop in a thread of its own."""

    service: Service
    port: int
    front: Listener

    def gauge(self, name: str) -> float:
        lines = self.service.prometheus().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    def score(self, body: bytes) -> httpx.Response:
        return httpx.post(f"http://127.0.0.1:{self.port}/v1/score", content=body, timeout=30)

    def on_loop(self, work: Callable[[], Any]) -> Any:
        """Return what ``work`` returns when the loop runs it."""

        async def here() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(here(), self.front.loop).result(30)


@contextlib.contextmanager
def listening(folder: Path, limits: Limits | None = None, **options: Any) -> Iterator[Listening]:
    limits = limits or Limits()
    served = open_served(ModelFolder.open(folder), most_candidates=limits.candidates)
    queue = ScoringQueue(0, limits.waiting, limits.deadline_ms / 1000, limits.client_share)
    service = Service(served, "ads", queue, limits, **options)
    made: Future[Listening] = Future()

    async def serve() -> None:
        front = Listener(service, "127.0.0.1", 0)
        front.start()
        ended = asyncio.Event()
        made.set_result(Listening(service, front.sockets[0].getsockname()[1], front))
        stops.append(lambda: front.loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        front.stop()
        await asyncio.sleep(0)

    stops: list[Callable[[], Any]] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        yield made.result(30)
    finally:
        for stop in stops:
            stop()
        thread.join(30)


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def started(
    folder: Path, options: tuple[str, ...], token: str, before: tuple[str, ...]
) -> tuple[Running, threading.Thread]:
    port, grpc_port = free_ports(2)
    command = [sys.executable, *before, "serve", str(folder), "--json"]
    # One worker unless a test asks for others: its counts, caches and limits are then those of one process on any machine.
    command += ["--port", str(port), "--grpc-port", str(grpc_port), "--workers", "1", *options]
    env = {**os.environ, "CTRBOX_TOKEN": token}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    server = Running(process, port, grpc_port)
    assert process.stderr is not None
    stderr = process.stderr

    def listen() -> None:
        for line in stderr:
            server.said.append(line.rstrip())

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    return server, listener


def ended(server: Running, listener: threading.Thread) -> None:
    if server.process.poll() is None:
        server.process.kill()
    server.process.wait()
    listener.join()
    for stream in (server.process.stdout, server.process.stderr):
        if stream is not None:
            stream.close()


@contextlib.contextmanager
def running(
    folder: Path, *options: str, token: str = "", before: tuple[str, ...] = ("-m", "ctrbox")
) -> Iterator[Running]:
    for attempt in range(4):
        server, listener = started(folder, options, token, before)
        assert server.process.stdout is not None
        line = server.process.stdout.readline()
        if line:
            break
        ended(server, listener)
        # A port that was free a moment ago may be taken by a connection of somebody else.
        assert attempt < 3, "\n".join(server.said)
        assert any("cannot listen" in said for said in server.said), "\n".join(server.said)
    try:
        assert json.loads(line)["url"].partition(":")[2] == server.url.partition(":")[2]
        yield server
    finally:
        ended(server, listener)


def inputs(client: Any, tensors: dict[str, np.ndarray], **how: Any) -> list[Any]:
    """Tensors as one of the two tritonclients sends them."""
    made = []
    for name, values in tensors.items():
        kind = {"O": "BYTES", "i": "INT64", "f": "FP32"}[values.dtype.kind]
        made.append(client.InferInput(name, list(values.shape), kind))
        made[-1].set_data_from_numpy(values, **how)
    return made
