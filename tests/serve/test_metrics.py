"""Counts that many threads add to at once, and what the text of Prometheus says of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from ctrbox.errors import PlanError
from ctrbox.serve.access_log import AccessLog
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.server import Server, Settings
from tests.serve.locks import waits_for
from tests.serve.running import free_ports
from tests.serve.worlds import World


class Slow:
    """Cells whose thread gives way between reading and writing, as any thread may."""

    def __init__(self, cells: memoryview) -> None:
        self.cells = cells

    def __getitem__(self, at: Any) -> Any:
        found = self.cells[at]
        passed.wait(0.0005)
        return found

    def __setitem__(self, at: Any, value: Any) -> None:
        self.cells[at] = value


passed = threading.Event()  # never set


def test_no_count_is_lost_between_threads() -> None:
    metrics = Metrics()
    metrics.cells = Slow(metrics.cells)  # type: ignore[assignment]
    workers = [
        threading.Thread(target=lambda: [metrics.add("score", 200, 0.001, 3) for _ in range(25)]) for _ in range(8)
    ]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert metrics.requests["score", 200] == metrics.candidates / 3 == sum(metrics.buckets) == 200


def test_everything_that_reads_or_changes_counts_takes_the_lock() -> None:
    """A text that is written while another thread adds would show half of a change."""
    metrics = Metrics()
    for work in (
        lambda: metrics.add("score", 200, 0.001, 3),
        lambda: metrics.text({}, {}),
        metrics.live,
        lambda: metrics.reloaded(2, 0.1, "patch"),
        lambda: metrics.not_reloaded("x"),
        lambda: metrics.stale(1, "x"),
        metrics.fresh,
    ):
        assert waits_for(metrics._lock, work)
    assert (metrics.applied, metrics.refused) == (1, 1)


def test_places_in_the_queue_are_counted_under_its_lock() -> None:
    queue = ScoringQueue(0, 4, 1.0)
    for work in (lambda: queue.admit("a"), lambda: queue.leave("a"), queue.close, lambda: queue.drain(1.0)):
        assert waits_for(queue._lock, work)
    assert (queue.pending, queue.closed) == (0, True)


def run_until_stopped(server: Server, ready: Callable[[], None]) -> None:
    """Run a server in this process, and restore the handlers of signals at its end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(ready)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_files() -> list[str]:
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(handle.readlink()))
    return found


def test_a_server_that_cannot_start_closes_its_access_log(world: World, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(port=port, grpc_port=taken.getsockname()[1], access_log=tmp_path / "log")
        server = Server.open(world.folder, settings)
        with pytest.raises(PlanError, match=r"cannot listen at .* for gRPC: the port is taken"):
            run_until_stopped(server, lambda: None)
    assert server.service.access is not None
    assert str(tmp_path / "log") not in open_files()


def test_the_line_of_a_call_that_ends_after_the_signal_is_in_the_access_log(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = AccessLog.add

    def late(*given: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        add(*given)

    monkeypatch.setattr(AccessLog, "add", late)
    port, grpc_port = free_ports(2)
    server = Server.open(world.folder, Settings(port=port, grpc_port=grpc_port, access_log=tmp_path / "log"))

    def call() -> None:
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel, contextlib.suppress(grpc.RpcError):
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"", timeout=30)

    caller = threading.Thread(target=call)
    run_until_stopped(server, caller.start)
    text = (tmp_path / "log").read_text()
    caller.join()
    assert [json.loads(line)["path"] for line in text.splitlines()] == ["ModelInfer"]
    assert str(tmp_path / "log") not in open_files()


def test_a_server_that_ended_leaves_nothing_behind(world: World, tmp_path: Path) -> None:
    port, grpc_port = free_ports(2)
    server = Server.open(world.folder, Settings(port=port, grpc_port=grpc_port, access_log=tmp_path / "log"))
    assert server.reloader is not None
    copy = server.reloader.copy.parent
    kept: list[socket.socket] = []

    def ready() -> None:
        for p in (port, grpc_port):
            kept.append(socket.create_connection(("127.0.0.1", p), timeout=10))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()

    run_until_stopped(server, ready)
    assert str(tmp_path / "log") not in open_files()
    kept[0].settimeout(10)
    assert kept[0].recv(100) == b""  # a connection that was kept alive is closed
    for s in kept:
        s.close()
    for p in (port, grpc_port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", p), timeout=10)
    assert not server.service.ready
    assert not copy.exists()
    names = [t.name for t in threading.enumerate()]
    assert not [n for n in names if re.match("ctrbox-(reload|score)", n)]
    assert not server.service.door.connections
