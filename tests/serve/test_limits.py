"""Limits against clients that take more than their share: connections, memory, places in the queue, time, log lines."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict

import orjson
import pytest

from ctrbox.errors import PlanError
from ctrbox.serve.connection_limits import Client, Door, client_of
from ctrbox.serve.log_limit import LogLimit
from ctrbox.serve.open_file_limit import connections_allowed
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.service import Limits
from tests.serve.running import Running, listening, running
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World

HEAD = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"
MB = 1 << 20


@pytest.fixture
def body(world: World) -> bytes:
    return orjson.dumps(body_of(world.rows(0, 5)))


@contextlib.contextmanager
def connections(port: int, count: int, source: str, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open ``count`` connections from a loopback address and send the beginning of a request on each."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                s = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))
                opened.append(s)
                if first:
                    s.sendall(first)
        yield opened
    finally:
        for s in opened:
            s.close()


def test_the_limits_are_those_of_the_documentation_unless_they_are_set() -> None:
    assert asdict(Limits()) == {
        "body_bytes": 1_048_576,
        "candidates": 1000,
        "waiting": 64,
        "deadline_ms": 200,
        "cache_bytes": 268_435_456,
        "body_seconds": 10.0,
        "buffered_bytes": 268_435_456,
        "connections": 8192,
        "images": 8,
        "pixels": 16_000_000,
        "client_share": 0.5,
    }


def test_small_chunks_take_the_memory_of_their_bytes(world: World) -> None:
    """A body of small chunks was a list with an object for each, many times its size."""
    with running(world.folder, "--max-body", "64MB") as server:
        before = server.gauge("process_resident_memory_bytes")
        size = 8 * MB
        chunk = b"10\r\n" + b" " * 16 + b"\r\n"
        with connections(server.port, 1, "127.0.0.2", HEAD + b"Transfer-Encoding: chunked\r\n\r\n") as (s,):
            for _ in range(size // 16 // 4096):
                s.sendall(chunk * 4096)
            until = time.monotonic() + 30
            while (held := server.gauge("ctrbox_buffered_bytes")) < size and time.monotonic() < until:
                time.sleep(0.05)
            grown = server.gauge("process_resident_memory_bytes") - before
        assert size <= held < 1.3 * size
        assert grown < 2.5 * size  # while the buffer grows there are two of it for a moment


def test_a_flood_of_tiny_chunks_is_refused(server: Running) -> None:
    answer = server.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 2000)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"chunks of fewer than 16 bytes" in answer


def test_a_head_without_an_end_is_refused_at_its_limit(server: Running) -> None:
    """It was kept up to the limit of a body, uncounted."""
    before = server.gauge("ctrbox_connections_refused_total")
    with connections(server.port, 1, "127.0.0.2", b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 20_000) as (s,):
        assert s.recv(1000).startswith(b"HTTP/1.1 431")
    assert server.gauge("ctrbox_connections_refused_total") == before


def test_idle_connections_beyond_the_limit_of_files_lock_nobody_out(world: World, body: bytes) -> None:
    code = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); "
        "sys.argv = sys.argv[1:]; runpy.run_module('ctrbox', run_name='__main__', alter_sys=True)"
    )
    with running(world.folder, before=("-c", code, "ctrbox")) as server:
        limit = server.gauge("ctrbox_connections_limit")
        assert 16 <= limit < 140
        with contextlib.ExitStack() as held:
            for k in range(3):
                held.enter_context(connections(server.port, 100, f"127.0.0.{k + 2}"))
                assert server.score(body).status_code == 200
            assert server.gauge("ctrbox_connections") <= limit
            assert server.gauge("ctrbox_connections_dropped_total") > 150
        assert server.stop() == 0
    assert not [line for line in server.said if "Traceback" in line or "cannot take" in line]


def test_a_connection_in_use_is_kept_while_an_attacker_fills_the_room(world: World, body: bytes) -> None:
    with listening(world.folder, Limits(connections=100)) as server:
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        with connections(server.port, 1, "127.0.0.1") as (kept,):
            for k in range(2, 6):
                with connections(server.port, 100, f"127.0.0.{k}", b"GET / HTT"):
                    kept.sendall(request)
                    assert kept.recv(65_536).startswith(b"HTTP/1.1 200")
        assert server.service.door.dropped >= 100


def test_one_address_may_hold_its_share_of_connections_and_no_more(world: World) -> None:
    with listening(world.folder, Limits(connections=40, client_share=0.25)) as server:
        with connections(server.port, 30, "127.0.0.2"):
            assert server.score(b"{}").status_code == 400
            assert server.service.door.connections <= 11


def test_unfinished_bodies_do_not_fill_the_memory(world: World, body: bytes) -> None:
    """256 bodies of 1 MB that lacked their end gave everybody 503 for as long as they were waited for."""
    limits = Limits(body_seconds=60, body_bytes=1 * MB, buffered_bytes=32 * MB)
    with listening(world.folder, limits) as server, contextlib.ExitStack() as held:
        part = HEAD + b"Content-Length: %d\r\n\r\n" % MB + b" " * (MB - 10)
        for k in range(3):
            held.enter_context(connections(server.port, 20, f"127.0.0.{k + 2}", part))
            assert server.score(body).status_code == 200
            assert server.service.door.clients[f"127.0.0.{k + 2}"].held <= 16 * MB
        assert 16 * MB < server.gauge("ctrbox_buffered_bytes") <= 32 * MB


@pytest.mark.parametrize(
    ("first", "seconds", "words"),
    [
        (b"GET / HT", 5.5, b"the head of the request was not complete within 5 s"),
        (HEAD + b"Content-Length: 100000\r\n\r\n{", 4.5, b"less than 16,384 bytes/s"),
        (HEAD + b"Content-Length: 1010000\r\n\r\n" + b" " * 1_000_000, 60.5, b"not complete within 60 s"),
        (b"", 75.5, b""),
    ],
)
def test_slow_heads_slow_bodies_and_idle_connections_end(
    world: World, first: bytes, seconds: float, words: bytes
) -> None:
    with listening(world.folder, Limits(body_seconds=60)) as server:
        with connections(server.port, 1, "127.0.0.2", first) as (s,):
            until = time.monotonic() + 20
            body = len(first.partition(b"\r\n\r\n")[2]) or len(first)
            while sum(len(c.inbox) for c in server.front.connections) < body and time.monotonic() < until:
                time.sleep(0.01)
            while not server.service.door.connections and time.monotonic() < until:
                time.sleep(0.01)
            (connection,) = server.front.connections
            now = connection.since

            def check(later: float) -> None:
                server.on_loop(lambda: connection.check_time(now + later, 75.0))

            check(seconds - 1.6)
            assert not connection.deaf
            check(seconds)
            told = s.recv(1000)
            assert told.startswith(b"HTTP/1.1 408") if words else told == b""
            assert words in told


def test_the_token_is_asked_for_before_a_body_is_read(world: World) -> None:
    with listening(world.folder, token=b"secret") as server:
        for line in (b"Content-Length: 1000\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n"):
            with connections(server.port, 1, "127.0.0.2", HEAD + line + b"\r\n") as (s,):
                assert s.recv(1000).startswith(b"HTTP/1.1 401")
        assert server.service.queue.pace == 0.0


def test_the_listener_waits_where_no_file_handle_is_left(
    world: World, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It tried again at once, 1,024 times a turn, with a traceback for each."""
    with listening(world.folder) as server, contextlib.ExitStack() as held:
        waiting = [held.enter_context(contextlib.closing(socket.socket())) for _ in range(3)]
        handles: list[int] = []
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            highest = os.dup(0)
            os.close(highest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, before[1]))
            with contextlib.suppress(OSError):
                while True:
                    handles.append(os.dup(0))
            for s in waiting:
                s.connect(("127.0.0.1", server.port))
            used = time.process_time()
            time.sleep(0.7)
            used = time.process_time() - used
        finally:
            for handle in handles:
                os.close(handle)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert used < 0.5
        assert server.score(body).status_code == 200  # goes on as soon as there are handles
    lines = [r.getMessage() for r in caplog.records if "cannot take a connection" in r.getMessage()]
    assert 1 <= len(lines) <= 20
    assert not [r for r in caplog.records if r.exc_info]


def test_stop_closes_the_socket_and_every_connection(world: World, body: bytes) -> None:
    with listening(world.folder) as server:
        port = server.port
        with connections(port, 2, "127.0.0.1") as (idle, reading):
            reading.sendall(b"GET / HTTP/1.1\r\n")
            assert server.score(body).status_code == 200
            server.on_loop(server.front.stop)
            assert idle.recv(100) == b""
            with contextlib.suppress(ConnectionResetError):
                assert reading.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        until = time.monotonic() + 10
        while server.service.door.connections and time.monotonic() < until:
            time.sleep(0.01)
        assert (server.service.door.connections, server.service.door.held) == (0, 0)
        assert not any(isinstance(f, LogLimit) for f in logging.getLogger("ctrbox.serve").filters)


# ---- the parts alone


class Kept:
    def __init__(self, door: Door, client: Client) -> None:
        self.door, self.client, self.reasons = door, client, list[str]()
        client.idle[self] = None

    def dropped(self, reason: str) -> None:
        self.reasons.append(reason)
        self.door.leave(self.client, self, 0)


def test_the_address_with_the_most_connections_gives_way_with_its_oldest_idle_one() -> None:
    door = Door(10, 1000, 0.8, 100)

    def enter(host: str) -> Kept | None:
        client = door.enter(host)
        return None if client is None else Kept(door, client)

    many = [enter("10.0.0.1") for _ in range(7)]
    few = [enter("10.0.0.2") for _ in range(3)]
    newcomer = enter("10.0.0.3")
    assert newcomer is not None
    assert [len(k.reasons) for k in many if k] == [1, 0, 0, 0, 0, 0, 0]
    assert not any(k.reasons for k in few if k)
    for k in (k for k in many if k and not k.reasons):  # all of its requests are under way: the next one gives way
        del k.client.idle[k]
    assert enter("10.0.0.3") is not None
    assert [len(k.reasons) for k in few if k] == [1, 0, 0]
    assert door.connections == 10
    assert [c.connections for c in door.clients.values()] == [6, 2, 2]
    for client in door.clients.values():
        client.idle.clear()
    assert enter("10.0.0.4") is None
    assert (door.refused, door.dropped) == (1, 2)


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert client_of("2001:db8:0:1::1") != client_of("2001:db8::1")
    assert client_of("::ffff:10.0.0.1") == client_of("10.0.0.1") == "10.0.0.1"
    assert client_of("fe80::1%eth0") == "fe80::/64"


def test_one_address_may_fill_its_share_of_the_queue() -> None:
    queue = ScoringQueue(0, 9, 30.0, share=0.5)
    for _ in range(5):
        queue.admit("a")
    with pytest.raises(Refused, match="5 requests from your address are already waiting"):
        queue.admit("a")
    for _ in range(5):
        queue.admit("b")
    with pytest.raises(Refused, match="10 requests are already waiting"):
        queue.admit("c")
    for client in "aaaaabbbbb":
        queue.leave(client)
    assert queue.pending == 0
    assert not queue.places


def test_too_low_a_limit_of_files_is_said_at_the_start() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connections_allowed(100) == 100
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] // 2, before[1]))
        connections_allowed(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]  # raised to the hard one
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ctrbox.serve.open_file_limit.raise_limit", lambda: 80)
        with pytest.raises(PlanError, match=r"open-file limit of 80 leaves room for only \d+ connections .*ulimit -n"):
            connections_allowed(100)


def test_repeated_log_lines_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    limit, log = LogLimit(most=3, within=0.2), logging.getLogger("ctrbox.serve")
    limit.attach()
    try:
        with caplog.at_level(logging.INFO, "ctrbox.serve"):
            writers = [threading.Thread(target=lambda: [log.warning("broken") for _ in range(50)]) for _ in range(4)]
            for w in writers:
                w.start()
            for w in writers:
                w.join()
            log.warning("something else")
            time.sleep(0.25)
            limit.tell()
    finally:
        limit.detach()
    lines = [r.getMessage() for r in caplog.records]
    assert lines.count("broken") == 3
    assert "something else" in lines
    assert any(line.startswith("197 more log lines like the last ones (test_limits.py:") for line in lines)
    assert limit.left_out == 197
