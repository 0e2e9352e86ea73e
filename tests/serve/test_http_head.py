"""The head of a request as text: what it says, the sentence of every refusal, and the sizes at which refusals begin."""

from __future__ import annotations

import re

import pytest

from ctrbox.serve.host_and_origin import AllowedHosts
from ctrbox.serve.http_head import HEAD_BYTES, MOST_FIELDS, check_partial, read_head
from ctrbox.serve.refused_request import Refused

NO_HTTP = (400, "the request does not begin with a line of HTTP/1.1 that ends with CR LF")
TOO_LONG = (431, "the request's head is larger than 16,384 bytes, or has more than 100 header fields")
NO_PATH = (400, "the target of the request must be a path that begins with /")
GET = b"GET /v2 HTTP/1.1\r\n"
HOST = b"Host: here\r\n"


def padded(size: int) -> bytes:
    """Return a good head of this many bytes."""
    rest = size - len(GET + HOST + b"A: \r\n\r\n")
    return GET + HOST + b"A: " + b"x" * rest + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "checked"),
    [(b"A", 0), (b"Z", 0), (GET, 0), (GET + b"Ho", 3), (padded(HEAD_BYTES)[:-1] + b"x", 0), (b"GET\r", 3)],
)
def test_a_beginning_that_may_become_a_good_head_is_waited_for(begin: bytes, checked: int) -> None:
    check_partial(bytearray(begin), checked)


@pytest.mark.parametrize(
    ("begin", "checked", "expected"),
    [
        (b"@", 0, NO_HTTP),
        (b"[", 0, NO_HTTP),
        (b"AB\n", 0, NO_HTTP),
        (b"AB\n", 2, NO_HTTP),
        (b"AB\n", 3, NO_HTTP),  # the byte before those that were checked is looked at again
        (b"GET /\r\n", 0, NO_HTTP),
        (padded(HEAD_BYTES)[:-1] + b"xx", 0, TOO_LONG),
    ],
)
def test_a_beginning_that_cannot_become_a_good_head_is_refused_at_once(
    begin: bytes, checked: int, expected: tuple[int, str]
) -> None:
    with pytest.raises(Refused) as told:
        check_partial(bytearray(begin), checked)
    assert (told.value.status, str(told.value)) == expected


def test_a_head_is_read() -> None:
    head = read_head(b"POST /v1/score?a=b HTTP/1.1\r\nHost: here\r\nContent-Length:  12 \r\nA: 1\r\nA: 2\r\n\r\n")
    assert (head.method, head.path, head.length, head.chunked, head.last) == ("POST", "/v1/score", 12, False, False)
    assert head.headers == {b"host": b"here", b"content-length": b"12", b"a": b"2"}
    chunked = read_head(b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: Chunked\r\n\r\n")
    assert (chunked.length, chunked.chunked) == (0, True)


@pytest.mark.parametrize(
    ("head", "last"),
    [
        (GET + HOST, False),
        (GET + HOST + b"Connection: keep-alive\r\n", False),
        (GET + HOST + b"Connection: Close\r\n", True),
        (b"GET / HTTP/1.0\r\n", True),
    ],
)
def test_http_1_0_and_a_close_header_end_the_connection(head: bytes, last: bool) -> None:
    assert read_head(head + b"\r\n").last is last


@pytest.mark.parametrize(
    ("line", "path", "host"),
    [
        (b"GET http://other:1/a/b?c HTTP/1.1", "/a/b", b"other:1"),
        (b"GET https://other HTTP/1.1", "/", b"other"),
        (b"GET http://other?c HTTP/1.1", "/", b"other"),
        (b"OPTIONS * HTTP/1.1", "*", b"here"),
        (b"GET /a HTTP/1.1", "/a", b"here"),
    ],
)
def test_the_authority_of_an_absolute_target_replaces_the_host(line: bytes, path: str, host: bytes) -> None:
    head = read_head(line + b"\r\n" + HOST + b"\r\n")
    assert (head.path, head.headers[b"host"]) == (path, host)


def test_the_largest_head_and_the_most_fields_are_taken() -> None:
    assert len(read_head(padded(HEAD_BYTES)).headers) == 2
    assert len(read_head(GET + HOST + fields(MOST_FIELDS - 1) + b"\r\n").headers) == MOST_FIELDS


def fields(count: int) -> bytes:
    return b"".join(b"h%d: x\r\n" % k for k in range(count))


@pytest.mark.parametrize(
    ("head", "status", "message"),
    [
        (padded(HEAD_BYTES + 1), *TOO_LONG),
        (GET + HOST + fields(MOST_FIELDS) + b"\r\n", *TOO_LONG),
        (b"GET /\r\n\r\n", *NO_HTTP),
        (GET + b"\r\n", 400, "an HTTP/1.1 request must have exactly one Host header"),
        (GET + b"Host:\r\n\r\n", 400, "an HTTP/1.1 request must have exactly one Host header"),
        (GET + HOST + HOST + b"\r\n", 400, "the request has the header host more than once"),
        (
            GET + HOST + b"x" * 50 + b"\r\n\r\n",
            400,
            f"a line of the request header is not a valid HTTP/1.1 header field: '{'x' * 40}'",
        ),
        (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", *NO_PATH),
        (b"OPTIONS x HTTP/1.1\r\n" + HOST + b"\r\n", *NO_PATH),
        (b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n", *NO_PATH),
        (b"CONNECT http://a/ HTTP/1.1\r\n" + HOST + b"\r\n", *NO_PATH),
        (
            b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "HTTP/1.0 does not support Transfer-Encoding; send Content-Length",
        ),
        (
            GET + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
            400,
            "the request has both Content-Length and Transfer-Encoding; send one of them",
        ),
        (
            GET + HOST + b"Transfer-Encoding: gzip\r\n\r\n",
            501,
            "the only Transfer-Encoding that this server accepts is chunked, got 'gzip'",
        ),
        (GET + HOST + b"Content-Length: 1x\r\n\r\n", 400, "Content-Length must be a whole number, got '1x'"),
    ],
)
def test_a_head_that_is_wrong_is_refused_in_words(head: bytes, status: int, message: str) -> None:
    with pytest.raises(Refused, match=re.escape(message)) as told:
        read_head(head)
    assert told.value.status == status


def test_names_that_are_not_this_machine_are_refused_in_words() -> None:
    hosts = AllowedHosts("10.0.0.7")
    for given in ({}, {b"host": b"10.0.0.7:80"}, {b"host": b"localhost", b"origin": b"http://127.0.0.2:1"}):
        hosts.check(given)
    with pytest.raises(Refused, match=r"the Host header names 'evil\.example', which is not a name of this machine"):
        hosts.check({b"host": b"evil.example"})
    with pytest.raises(Refused, match=r"web pages from 'http://evil\.example' are not allowed to call") as told:
        hosts.check({b"host": b"localhost", b"origin": b"http://evil.example"})
    assert told.value.status == 403
