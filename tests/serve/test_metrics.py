"""Counts that many threads add to at once, and what the text of Prometheus says of them."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections import Counter
from typing import Any

import pytest

from ctrbox.serve.metrics import Metrics
from ctrbox.serve.server import Server, Settings
from tests.serve.running import free_ports
from tests.serve.worlds import World


class Slow(Counter[Any]):
    """A counter whose thread gives way between reading and writing, as any thread may."""

    def __getitem__(self, key: Any) -> int:
        found = super().__getitem__(key)
        passed.wait(0.0005)
        return found


passed = threading.Event()  # never set


def test_no_count_is_lost_between_threads() -> None:
    metrics = Metrics()
    metrics.requests = Slow()
    workers = [
        threading.Thread(target=lambda: [metrics.add("score", 200, 0.001, 3) for _ in range(25)]) for _ in range(8)
    ]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert metrics.requests["score", 200] == metrics.candidates / 3 == sum(metrics.buckets) == 200


def test_reading_waits_for_those_who_add() -> None:
    """A text that is written while the lock is held elsewhere would show half of a change."""
    metrics = Metrics()
    for read in (lambda: metrics.text({}, {}), metrics.live, lambda: metrics.stale(1, "x"), metrics.fresh):
        done = threading.Event()

        def work(read: Any = read, done: threading.Event = done) -> None:
            read()
            done.set()

        with metrics._lock:
            reader = threading.Thread(target=work)
            reader.start()
            assert not done.wait(0.05)
        assert done.wait(10)
        reader.join()


def test_reloads_are_counted_under_the_lock() -> None:
    metrics = Metrics()
    for change in (lambda: metrics.reloaded(2, 0.1, "patch"), lambda: metrics.not_reloaded("x")):
        with metrics._lock:
            changer = threading.Thread(target=change)
            changer.start()
            changer.join(0.05)
            assert (metrics.applied, metrics.refused) in ((0, 0), (1, 0))
            before = (metrics.applied, metrics.refused)
        changer.join(10)
        assert (metrics.applied, metrics.refused) != before
    assert (metrics.applied, metrics.refused) == (1, 1)


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
