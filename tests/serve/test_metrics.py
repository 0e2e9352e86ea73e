"""Counts that many threads add to at once, and what the text of Prometheus says of them."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from typing import Any

import pytest

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


def test_a_server_that_ended_leaves_nothing_behind(world: World) -> None:
    port, grpc_port = free_ports(2)
    server = Server.open(world.folder, Settings(port=port, grpc_port=grpc_port))
    assert server.reloader is not None
    copy = server.reloader.copy.parent
    kept: list[socket.socket] = []

    def ready() -> None:
        for p in (port, grpc_port):
            kept.append(socket.create_connection(("127.0.0.1", p), timeout=10))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(ready)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
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
