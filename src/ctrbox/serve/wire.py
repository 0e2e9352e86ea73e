"""HTTP/1.1 on the event loop itself: httptools (the parser of Node) reads, the routes answer, nothing stands between.

No task, no future and no thread for a request, so one of 100 candidates costs about half of what an ASGI server took
(docs/tried.md 18). A connection has one request under way; a few that are sent ahead wait, in order. Bounded: bytes of a head,
bytes of a body while it is read, bytes of all bodies together, the time within which a request must be there, connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import httptools

from ctrbox.serve.refused import Refused, overloaded
from ctrbox.serve.routes import Answer, Headers, Routes, answer_of, too_large
from ctrbox.serve.service import Service

HEAD_BYTES = 64 << 10
TRAILER_BYTES = 1 << 20  # more than one read of the socket, in which trailers may follow a body
MOST_CONNECTIONS = 8192
MOST_AHEAD = 16  # requests that a connection may have waiting
IDLE_SECONDS = 75.0  # a connection without a request is kept so long
SWEEP_SECONDS = 0.5
CODING = b"transfer-encoding"
REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
}


class Request(NamedTuple):
    """A request that is complete, or a refusal of one that never will be."""

    method: str
    path: str
    headers: Headers
    body: bytes
    last: bool  # the connection ends with its answer
    refusal: Refused | None = None


class Connection(asyncio.Protocol):
    def __init__(self, front: Wire) -> None:
        self.front, self.service = front, front.service
        self.transport: Any = None
        self.parser = httptools.HttpRequestParser(self)
        self.waiting: deque[Request] = deque()  # the first of them is under way
        self.deaf = False  # nothing that comes is read any more
        self.held = 0  # bytes of bodies that are read or waiting
        self.blocked = False  # the client does not read what it asked for
        self.since = time.monotonic()  # of the request that is being read, or of the last answer
        self._fresh()

    def _fresh(self) -> None:
        self.url = b""
        self.headers: Headers = {}
        self.parts: list[bytes] = []
        self.head_bytes = self.body_bytes = 0
        self.reading = self.headed = False  # something of a request has come; its head has
        self.refusal: Refused | None = None

    # ---- the transport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.front.connections.add(self)
        if len(self.front.connections) > MOST_CONNECTIONS or self.service.queue.closed:
            self.refuse(overloaded("this server has too many connections, or is shutting down"))

    def connection_lost(self, error: Exception | None) -> None:
        self.front.connections.discard(self)
        self.service.buffered -= self.held
        self.held, self.transport = 0, None

    def eof_received(self) -> bool:
        """The client will send no more; it may still read."""
        if self.reading and not self.deaf:
            self.refuse(Refused(400, f"the request ended after {self.body_bytes} bytes of its body, before its end"))
        self.deaf = True
        return bool(self.waiting) or (self.transport is not None and self.transport.is_closing())

    def pause_writing(self) -> None:
        self.blocked = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.blocked = False
        if len(self.waiting) <= 1 and self.transport is not None:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        if not self.reading:
            self.reading, self.since = True, time.monotonic()
        self.head_bytes += len(data)  # without body: on_body begins anew
        if not self.headed:
            if self.head_bytes > HEAD_BYTES + self.service.limits.body_bytes:
                self.refuse(Refused(431, f"the request's head is larger than {HEAD_BYTES:,} bytes"))
                return
        elif self.head_bytes > TRAILER_BYTES:
            self.refuse(Refused(431, f"what follows the request's body is larger than {TRAILER_BYTES:,} bytes"))
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refuse(Refused(400, "this server speaks HTTP/1.1 and nothing else"))
        except httptools.HttpParserCallbackError as error:
            self.refuse(self.refusal or error.__context__ or error)
        except httptools.HttpParserError as error:
            self.refuse(Refused(400, f"the request is no HTTP/1.1: {str(error)[:100]}"))

    # ---- the parser

    def on_url(self, url: bytes) -> None:
        self.url += url
        self.check_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == CODING and name in self.headers:
            value = self.headers[name] + b", " + value
        self.headers[name] = value
        self.check_head()

    def check_head(self) -> None:
        size = len(self.url) + sum(map(len, self.headers.values())) if len(self.headers) % 8 == 0 else len(self.url)
        if len(self.headers) > 200 or size > HEAD_BYTES:
            self.refusal = Refused(
                431, f"the request's head has more than {HEAD_BYTES:,} bytes, or more than 200 fields"
            )
            raise self.refusal

    def on_headers_complete(self) -> None:
        self.headed, self.head_bytes = True, 0
        if self.parser.should_upgrade():
            self.refusal = Refused(400, "this server speaks HTTP/1.1 and nothing else")
            raise self.refusal
        self.method = self.parser.get_method().decode("latin-1")
        if CODING in self.headers:
            self.check_coding(self.headers[CODING])
        try:
            self.path = self.url.partition(b"?")[0].decode("latin-1")
            if self.url[:1] != b"/":
                self.path = (httptools.parse_url(self.url).path or b"*").decode("latin-1")
            self.front.routes.head(self.method, self.path, self.headers)
        except Refused as refused:
            self.refusal = refused
            raise
        except httptools.HttpParserInvalidURLError:
            self.refusal = Refused(400, "the request's path is malformed")
            raise self.refusal from None
        if self.headers.get(b"expect", b"").lower() == b"100-continue" and not self.waiting:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def check_coding(self, coding: bytes) -> None:
        """Only chunked, only in HTTP/1.1: whoever stands before this server must see the same end of a body (RFC 9112, 6.1)."""
        if self.parser.get_http_version() != "1.1":
            self.refusal = Refused(400, "HTTP/1.0 has no Transfer-Encoding; send Content-Length")
        elif coding.strip().lower() != b"chunked":
            met = coding[:60].decode("latin-1")
            self.refusal = Refused(501, f"this server takes Transfer-Encoding: chunked alone, got {met!r}")
        if self.refusal is not None:
            raise self.refusal

    def on_body(self, part: bytes) -> None:
        limits = self.service.limits
        self.head_bytes = 0
        self.body_bytes += len(part)
        self.held += len(part)
        self.service.buffered += len(part)
        if self.body_bytes > limits.body_bytes:
            self.refusal = too_large(limits.body_bytes)
        elif self.service.buffered > limits.buffered_bytes:
            self.refusal = overloaded("too many bodies are being read; ask again in a moment")
        if self.refusal is not None:
            raise self.refusal
        self.parts.append(part)

    def on_message_complete(self) -> None:
        body = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        request = Request(self.method, self.path, self.headers, body, not self.parser.should_keep_alive())
        self._fresh()
        self.waiting.append(request)
        if request.last:
            self.deaf = True
        if len(self.waiting) == 1:
            self.begin()
        else:
            self.transport.pause_reading()
            if len(self.waiting) > MOST_AHEAD:
                self.refusal = overloaded(f"more than {MOST_AHEAD} requests were sent ahead on one connection")
                raise self.refusal

    # ---- requests

    def begin(self) -> None:
        """The first of those that wait."""
        request, began = self.waiting[0], time.perf_counter()
        try:
            if request.refusal is not None:
                raise request.refusal
            found = self.front.routes.answer(request.method, request.path, request.headers, request.body)
        except Exception as error:
            found = answer_of(error)
        if isinstance(found, Answer):
            self.respond(found, "other", began)
            return
        route = found.route
        try:
            self.service.queue.push(found.work, lambda result, failure: self.scored(result, failure, route, began))
        except Refused as refused:
            self.respond(answer_of(refused), route, began)

    def scored(self, result: Any, failure: Exception | None, route: str, began: float) -> None:
        self.respond(result if failure is None else answer_of(failure), route, began)

    def respond(self, answer: Answer, route: str, began: float) -> None:
        self.service.metrics.add(route, answer.status, time.perf_counter() - began, answer.rows)
        request = self.waiting.popleft()
        if self.transport is None:  # the client went away
            return
        self.held -= len(request.body)
        self.service.buffered -= len(request.body)
        last = request.last or (self.deaf and not self.waiting) or self.service.queue.closed
        self.write(answer, last, request.method == "HEAD")
        self.since = time.monotonic()
        if last:
            self.deaf = True
            self.waiting.clear()
            self.transport.close()
        elif self.waiting:
            # In a turn of its own: who sends many requests ahead is served like others.
            self.front.loop.call_soon(self.go_on)
        elif not self.deaf and not self.blocked:
            self.transport.resume_reading()

    def go_on(self) -> None:
        if self.waiting and self.transport is not None:
            self.begin()

    def refuse(self, refusal: BaseException) -> None:
        """Answer and close: what is left of the request is not read."""
        self.deaf = True
        told = refusal if isinstance(refusal, Refused) else None
        if told is None:
            answer_of(refusal)  # a fault of ours: logged
            told = Refused(500, "internal error; the server's log has more")
        self.waiting.append(Request("", "", {}, b"", True, told))
        if len(self.waiting) == 1:
            self.begin()

    def write(self, answer: Answer, last: bool, bare: bool) -> None:
        close = b"connection: close\r\n" if last else b""
        more = b"".join(b"%b: %b\r\n" % pair for pair in answer.headers)
        head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n"
        reason = REASONS.get(answer.status, b"Refused")
        told = head % (answer.status, reason, answer.kind, len(answer.body), more, close)
        self.transport.write(told if bare else told + answer.body)


class Wire:
    """Listens and keeps the connections; ``serve`` until ``stop``."""

    def __init__(self, service: Service, host: str, port: int) -> None:
        self.service, self.host, self.port = service, host, port
        self.routes = Routes(service)
        self.connections: set[Connection] = set()
        self.ended: Callable[[], None] = lambda: None

    async def serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        end = asyncio.Event()
        self.ended = end.set
        server = await self.loop.create_server(lambda: Connection(self), self.host, self.port, backlog=1024)
        try:
            while not end.is_set():
                self.sweep()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(end.wait(), SWEEP_SECONDS)
        finally:
            server.close()
            for connection in list(self.connections):
                if connection.transport is not None:
                    connection.transport.close()

    def stop(self) -> None:
        self.ended()

    def sweep(self) -> None:
        """Cut off who dawdles: a request that does not come to its end, a connection that nobody uses."""
        now, limit = time.monotonic(), self.service.limits.body_seconds
        for connection in list(self.connections):
            if connection.waiting or connection.transport is None:
                continue
            if connection.deaf:
                if now - connection.since > limit:
                    connection.transport.abort()
            elif connection.reading and now - connection.since > limit:
                connection.refuse(Refused(408, f"the request was not complete within {limit:g} s"))
            elif now - connection.since > (limit if connection.service.queue.closed else IDLE_SECONDS):
                connection.transport.abort() if connection.blocked else connection.transport.close()
