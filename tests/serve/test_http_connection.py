"""HTTP/1.1 on our own wire: what a parser and a connection can get wrong."""

from __future__ import annotations

import re
import socket
import time

import orjson
import pytest

from tests.serve.running import Running
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def post(body: bytes, *more: bytes, path: bytes = b"/v1/score") -> bytes:
    head = [b"POST %b HTTP/1.1" % path, b"Host: localhost", b"Content-Length: %d" % len(body), *more]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


@pytest.fixture
def body(world: World) -> bytes:
    return orjson.dumps(body_of(world.rows(0, 5)))


def codes(answer: bytes) -> list[int]:
    return [int(code) for code in STATUS.findall(answer)]


def test_requests_sent_ahead_are_answered_in_order(server: Running, body: bytes) -> None:
    ahead = (
        post(body)
        + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        + post(b"{}")
        + post(body, b"Connection: close")
    )
    answer = server.raw(ahead + b"GET /healthz HTTP/1.1\r\n\r\n")
    assert codes(answer) == [200, 200, 400, 200]  # what comes behind a last request is not read
    assert answer.count(b'"scores"') == 2
    assert answer.rstrip().endswith(b"]}")


def test_a_flood_of_requests_ahead_is_answered_in_order_while_others_are_served(server: Running, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(post(body) * 200)
        assert server.score(body).status_code == 200
        s.shutdown(socket.SHUT_WR)
        found = b""
        while part := s.recv(65_536):
            found += part
    assert codes(found) == [200] * 200


def test_a_connection_is_kept_and_bytes_may_come_one_by_one(server: Running, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        for _ in range(3):
            for at in range(0, len(post(body)), 97):
                s.sendall(post(body)[at : at + 97])
            found = b""
            while b"]}" not in found:
                found += s.recv(65_536)
            assert codes(found) == [200]
            assert b"connection: close" not in found
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[k : k + 50]), body[k : k + 50]) for k in range(0, len(body), 50))
        s.sendall(
            b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        )
        assert codes(s.recv(65_536)) == [200]


HOST = b"Host: localhost\r\n"
POST = b"POST /v1/score HTTP/1.1\r\n" + HOST


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"HEAD /healthz HTTP/1.1\r\n" + HOST + b"\r\n", [200]),
        (b"GET /healthz HTTP/1.0\r\n\r\n", [200]),
        (b"GET http://127.0.0.1/healthz HTTP/1.1\r\n" + HOST + b"\r\n", [200]),
        (b"GET /healthz?a=1&b HTTP/1.1\r\n" + HOST + b"\r\n", [200]),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", [404]),
        (b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n", [400]),
        (b"GET /healthz HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", [200]),
        (b"nonsense\r\n\r\n", [400]),
        (POST + b"Content-Length: -1\r\n\r\n", [400]),
        (POST + b"Content-Length: 50\r\n\r\n{", [400]),  # ends before its end
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", [431]),
        (b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"h%d: x\r\n" % k for k in range(300)) + b"\r\n", [431]),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", [501]),
        (POST + b"Transfer-Encoding: identity\r\n\r\n{}", [501]),
        (b"GET /healthz HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400]),
        (b"GET /healthz HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n", [200]),
        (b"", []),
    ],
)
def test_heads_of_every_kind(server: Running, data: bytes, expected: list[int]) -> None:
    assert codes(server.raw(data)) == expected


GET = b"GET /healthz HTTP/1.1\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n" + GET + HOST + b"\r\n",  # two empty lines before a request
        b"\n" + GET + HOST + b"\r\n",
        b"\r" + GET + HOST + b"\r\n",
        b"\r\r\n" + GET + HOST + b"\r\n",
        b"\r\n " + GET + HOST + b"\r\n",
        GET + HOST + HOST + b"\r\n",
        GET + HOST + b"Host: other\r\n\r\n",
        GET + b"\r\n",
        GET + b"Host:\r\n\r\n",
        b"GET /healthz\r\n\r\n",  # HTTP/0.9
        b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n",
        b"GET /healthz HTTP/1.2\r\n" + HOST + b"\r\n",
        b"get /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET  /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /healthz HTTP/1.1\n" + HOST + b"\r\n",  # a bare LF, in each place
        GET + b"Host: localhost\n\r\n",
        GET + HOST + b"\n",
        GET + HOST + b"A: b\r c\r\n\r\n",  # a bare CR
        GET + HOST + b"A: b\r\n c\r\n\r\n",  # a folded line
        GET + b" Host: localhost\r\n\r\n",
        GET + HOST + b"A : b\r\n\r\n",
        GET + HOST + b"A: \0\r\n\r\n",
        GET + HOST + b"nothing\r\n\r\n",
        POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}{}{}",
        POST + b"Content-Length: 2, 2\r\n\r\n{}",
        POST + b"Content-Length: +2\r\n\r\n{}",
        POST + b"Content-Length: 0x2\r\n\r\n{}",
        POST + b"Content-Length: 2 2\r\n\r\n{}",
        POST + b"Content-Length:\r\n\r\n{}",
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"\r\n2;a=b\r\n{}\r\n0\r\n\r\n",  # a chunk's extension
        CHUNKED + b"\r\n+2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"\r\n0x2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"\r\n 2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"\r\n2\n{}\r\n0\r\n\r\n",
        CHUNKED + b"\r\n2\r\n{}\n0\r\n\r\n",
        CHUNKED + b"\r\n2\r\n{}}}\r\n0\r\n\r\n",
        CHUNKED + b"\r\n000000002\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"\r\n2\r\n{}\r\n0\r\nA: b\r\n\r\n",  # a trailer
    ],
)
def test_what_two_servers_could_read_in_two_ways_is_refused_and_the_connection_closed(
    server: Running, data: bytes
) -> None:
    assert codes(server.raw(data + GET + HOST + b"\r\n")) == [400]


def test_an_idle_client_that_sends_no_more_is_not_answered_again(server: Running, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(post(body))
        found = b""
        while not found.endswith(b"}"):
            found += s.recv(65_536)
        s.shutdown(socket.SHUT_WR)
        while part := s.recv(65_536):
            found += part
    assert codes(found) == [200]
    assert codes(server.raw(b"")) == []
    assert codes(server.raw(post(body)[:-1])) == [400]


def test_one_empty_line_before_a_request_is_ignored(server: Running, body: bytes) -> None:
    get = GET + HOST + b"\r\n"
    assert codes(server.raw(b"\r\n" + get)) == [200]
    assert codes(server.raw(b"\r\n" + post(body) + b"\r\n" + get + get)) == [200, 200, 200]
    assert codes(server.raw(post(body) + b"\r\n")) == [200]  # what some old clients send behind a body
    assert codes(server.raw(b"\r\n")) == []
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        for _ in range(3):
            for byte in b"\r\n" + get:
                s.sendall(bytes([byte]))
            assert codes(s.recv(65_536)) == [200]


def test_head_answers_like_get_without_a_body(server: Running) -> None:
    for path in (b"/healthz", b"/metrics", b"/", b"/docs", b"/v2/models/ads"):
        answer = server.raw(b"HEAD %b HTTP/1.1\r\n" % path + HOST + b"Connection: close\r\n\r\n")
        assert codes(answer) == [200]
        assert answer.endswith(b"\r\n\r\n")
        assert int(answer.split(b"content-length: ")[1].split(b"\r\n")[0]) > 0
    assert codes(server.raw(b"HEAD /v1/score HTTP/1.1\r\n" + HOST + b"\r\n")) == [405]


def test_expect_is_answered_before_the_body_comes(server: Running, body: bytes) -> None:
    whole = post(body, b"Expect: 100-continue", b"Connection: close")
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(whole[: -len(body)])
        assert s.recv(100).startswith(b"HTTP/1.1 100 ")
        s.sendall(body)
        assert codes(s.recv(65_536)) == [200]


def test_trailers_have_an_end(server: Running) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-T: "
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(head)
        with pytest.raises(ConnectionError):
            s.sendall(b"a" * (64 << 20))
    assert server.get("/healthz").status_code == 200


def test_one_who_does_not_read_holds_up_nobody(server: Running, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.setblocking(False)
        sent = 0
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            try:
                sent += s.send(post(body) * 10)
            except (BlockingIOError, ConnectionError):  # full, or refused for what was sent ahead
                break
        assert server.score(body).status_code == 200
    assert server.score(body).status_code == 200
    assert server.gauge("ctrbox_buffered_bytes") < 4096  # the request for it alone
