"""Hostile requests against a real server: refused cleanly, and it goes on. `python -m tests.serve.hostile` sends 10,000."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import orjson

from tests.serve.hostile import attack
from tests.serve.running import Running, running
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World


def test_hostile_requests_are_refused_and_the_server_goes_on(world: World, server: Running) -> None:
    good = body_of(world.rows(0, 5))
    before = server.score(orjson.dumps(good)).json()
    met = attack("127.0.0.1", server.port, good, "ads", 600, seed=int(os.environ.get("HOSTILE_SEED", "7")))
    kinds = {kind for kind, _ in met}
    assert kinds >= {"noise", "mutated", "wrong_value", "lying_length", "chunked", "binary_tensors"}
    assert "nearly_right_tensors" in kinds
    assert server.process.poll() is None
    assert server.score(orjson.dumps(good)).json() == before
    assert server.get("/metrics").text.count('code="500"') == 0
    assert not any("Traceback" in line for line in server.said)


def test_a_body_beyond_the_limit_is_refused_without_being_read(world: World, server: Running) -> None:
    head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"
    claimed = server.raw(head + b"Content-Length: 100000000\r\n\r\n{")
    assert claimed.startswith(b"HTTP/1.1 413")
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    streamed = server.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 8 + b"0\r\n\r\n")
    assert streamed.startswith(b"HTTP/1.1 413")


def test_clients_that_dawdle_are_cut_off(world: World) -> None:
    """Slow loris, in the head and in the body: others are served meanwhile, and the slow ones do not stay."""
    body = orjson.dumps(body_of(world.rows(0, 5)))
    with running(world.folder, "--body-timeout", "1.5") as server, contextlib.ExitStack() as held:
        slow = []
        for k in range(60):
            s = held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            s.sendall(
                b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"
                + (b"Content-Length: 100\r\n\r\n{" if k % 2 else b"A: b")
            )
            slow.append(s)
        began = time.monotonic()
        assert server.score(body).status_code == 200
        answers = []
        for s in slow:
            with contextlib.suppress(OSError):
                answers.append(s.recv(1000))
        assert time.monotonic() - began < 20
        assert sum(a.startswith(b"HTTP/1.1 408") for a in answers) >= 30
        assert server.score(body).status_code == 200
        assert server.gauge("ctrbox_buffered_bytes") < 4096  # the request for it alone
