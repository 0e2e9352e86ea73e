"""An open-loop client: requests leave at a fixed rate whether or not answers come, as users do. A part of benchmarks/serve.py.

python -m benchmarks.serve_load PORT BODIES RATE SECONDS [TOKEN]

BODIES: a file with a body of /v1/score a line. The last line is JSON: answers by status with their latencies from the moment a
request was due, and what failed without an answer. A RATE of 0 is a closed loop instead: 8 connections ask again as soon as they
are answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import numpy as np

MOST_CONNECTIONS = 1500
CLOSED_LOOP = 8  # connections


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.due = 0.0
        self.busy = False
        self.buffer = b""
        self.request = b""  # the last one
        self.local = 0  # port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.local = int(transport.get_extra_info("sockname")[1])

    def ask(self, request: bytes, due: float) -> None:
        self.due, self.busy, self.buffer, self.request = due, True, b"", request
        self.transport.write(request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        lower = self.buffer[:head].lower()
        at = lower.index(b"content-length:") + 15
        length = int(lower[at:].split(b"\r\n", 1)[0])
        if len(self.buffer) >= head + 4 + length:
            self.busy = False
            self.load.answered(self, int(self.buffer[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        if self.busy:
            self.load.failed += 1
        self.load.gone(self)


class Load:
    def __init__(self, port: int, bodies: list[bytes], token: str = "") -> None:
        self.port = port
        head = b"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n"
        head += b"Authorization: Bearer " + token.encode() + b"\r\n\r\n" if token else b"\r\n"
        self.requests = [head % len(body) + body for body in bodies]
        self.free: list[Connection] = []
        self.all: set[Connection] = set()
        self.found: dict[int, list[float]] = {}
        self.failed = self.unsent = self.sent = self.opening = 0
        self.closed_until = 0.0

    def answered(self, connection: Connection, status: int) -> None:
        self.found.setdefault(status, []).append(time.perf_counter() - connection.due)
        self.free.append(connection)
        if time.perf_counter() < self.closed_until:
            self.free.pop().ask(self.requests[self.sent % len(self.requests)], time.perf_counter())
            self.sent += 1

    def gone(self, connection: Connection) -> None:
        self.all.discard(connection)
        if connection in self.free:
            self.free.remove(connection)

    async def open(self) -> None:
        self.opening += 1
        try:
            loop = asyncio.get_running_loop()
            _, made = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.port)
            self.all.add(made)
            self.free.append(made)
        except OSError:
            self.failed += 1
        finally:
            self.opening -= 1

    async def run(self, rate: float, seconds: float) -> None:
        await asyncio.gather(*(self.open() for _ in range(64 if rate else CLOSED_LOOP)))
        began = time.perf_counter()
        if not rate:
            self.closed_until = began + seconds
            for connection in list(self.free):
                self.answered(connection, 0)
            del self.found[0]
            await asyncio.sleep(seconds)
        opening: set[asyncio.Task[None]] = set()
        while rate and (now := time.perf_counter() - began) < seconds:
            while self.sent + self.unsent < now * rate:
                due = began + (self.sent + self.unsent) / rate
                if self.free:
                    self.free.pop().ask(self.requests[self.sent % len(self.requests)], due)
                    self.sent += 1
                elif len(self.all) + self.opening < MOST_CONNECTIONS:
                    task = asyncio.create_task(self.open())
                    opening.add(task)
                    task.add_done_callback(opening.discard)
                    break
                else:
                    self.unsent += 1
            await asyncio.sleep(0.0005)
        until = time.perf_counter() + 10
        while any(c.busy for c in self.all) and time.perf_counter() < until:
            await asyncio.sleep(0.01)
        self.failed += sum(c.busy for c in self.all)
        for connection in list(self.all):
            connection.busy = False
            connection.transport.close()


def main() -> None:
    port, path, rate, seconds, *token = sys.argv[1:]
    load = Load(int(port), Path(path).read_bytes().splitlines(), *token)
    asyncio.run(load.run(float(rate), float(seconds)))
    answers = {
        str(status): {
            "count": len(times),
            "p50_ms": 1000 * float(np.quantile(times, 0.5)),
            "p99_ms": 1000 * float(np.quantile(times, 0.99)),
            "max_ms": 1000 * max(times),
        }
        for status, times in sorted(load.found.items())
    }
    print(json.dumps({"sent": load.sent, "unsent": load.unsent, "failed": load.failed, "answers": answers}))


if __name__ == "__main__":
    main()
