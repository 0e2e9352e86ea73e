"""Handles one HTTP/1.1 connection on the event loop: reads the head strictly, and answers by the routes.

A request needs no task, no future and no thread. A request of 100 candidates therefore takes about half of the CPU time that an
ASGI server took (docs/tried.md 18). A connection has one request in progress. Requests that a client sends ahead wait in the
buffer of the socket, and in what was read from it. They are answered in order, each in a turn of the event loop.

Everything that was read and not yet answered is in one growing buffer, whose real size counts for the limits
(connection_limits.py): a chunk of one byte takes one byte. A body is read only after its head was accepted, which includes its
token.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ctrbox.serve.connection_limits import Client
from ctrbox.serve.http_head import END, Head, check_partial, read_head
from ctrbox.serve.refused_request import Refused, overloaded
from ctrbox.serve.routes import Answer, answer_of, too_large

if TYPE_CHECKING:
    from ctrbox.serve.listener import Listener
    from ctrbox.serve.traces import Traced

HEAD_SECONDS = 5.0  # within which a head must be there
PACE_AFTER = 3.0  # seconds after which a body must keep its pace
LEAST_PACE = 16 << 10  # bytes a second, on average
HEAD_COUNTED = 2 << 10  # bytes that a head of a request under way is counted as
FREE_CHUNKS = 256  # beyond them chunks must have a size that is worth their reading
LEAST_CHUNK = 16  # bytes, on average
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
CHUNK_LINE = 10  # bytes of the longest size of a chunk and its CR LF
PATHS = {  # of routes, in the names of spans
    "score": "/v1/score",
    "infer": "/v2/models/{model}/infer",
    "prerank": "/v1/prerank",
    "cascade": "/v1/cascade",
    "other": "/v1/events",
}
REASONS = {
    200: b"OK",
    202: b"Accepted",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
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


class Connection(asyncio.Protocol):
    def __init__(self, front: Listener, client: Client) -> None:
        self.front, self.service, self.client = front, front.service, client
        self.door = front.door
        self.transport: Any = None
        self.starting: asyncio.Task[None] | None = None  # until there is a transport: a TLS handshake takes a while
        client.idle[self] = None
        self.inbox = bytearray()  # what was read and belongs to no complete request
        self.scanned = 0  # bytes of the inbox in which no head ends
        self.skipped = False  # an empty line came before the head that is being read
        self.head: Head | None = None
        self.body = bytearray()  # of chunks that have come
        self.chunk = 0  # bytes that the chunk being read still lacks, its CR LF included; 0: a size comes next
        self.chunks = 0
        self.working = 0  # bytes of the request under way
        self.counted = 0  # bytes that the door knows of
        self.left = False  # the door does not count this connection any more
        self.busy = False  # a request is under way
        self.paused = False
        self.blocked = False  # the client does not read what it asked for
        self.deaf = False  # nothing that comes is read any more
        self.ended = False  # the client sends no more
        self.since = time.monotonic()  # of the request that is being read, or of the last answer

    # ---- the transport

    def connection_made(self, transport: Any) -> None:
        if self.left:  # dropped while its TLS handshake was under way
            transport.abort()
            return
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.leave()
        self.transport = None

    def leave(self) -> None:
        """Stop being counted by the door."""
        if not self.left:
            self.left = True
            self.front.connections.discard(self)
            self.door.leave(self.client, self, self.counted)
            self.counted = 0

    def dropped(self, reason: str) -> None:
        """Make room for others: close the connection if it is idle, or refuse the request that is being read and then close
        it.
        """
        reading = self in self.client.reading
        self.leave()
        if self.transport is None:
            if self.starting is not None:
                self.starting.cancel()
            return
        if reading:
            self.refuse(overloaded(reason))
        if not reading or self.transport.get_write_buffer_size():
            self.deaf = True
            self.transport.abort()

    def eof_received(self) -> bool:
        """Note that the client will send no more. Over plain TCP, it may still read."""
        self.ended = True
        if self.transport is None or self.transport.get_extra_info("sslcontext") is not None:
            return False
        if not self.busy and not self.deaf and (self.inbox or self.head is not None):
            self.refuse(self.unfinished())
        return self.busy or self.transport.is_closing()

    def pause_writing(self) -> None:
        self.blocked, self.since = True, time.monotonic()
        self.pause()

    def resume_writing(self) -> None:
        self.blocked = False
        if not self.busy:
            self.resume()

    def pause(self) -> None:
        if not self.paused and self.transport is not None:
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.paused and not self.blocked and self.transport is not None and not self.transport.is_closing():
            self.paused = False
            self.transport.resume_reading()

    # ---- reading

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        if not self.inbox and self.head is None:
            self.since = time.monotonic()
        self.inbox += data
        if self.busy:  # sent ahead: the rest waits in the socket
            self.pause()
            self.count()
        else:
            self.advance()

    def advance(self) -> None:
        """Continue to read the request in the inbox, and begin to answer it when it is complete."""
        try:
            body = self.request()
        except Refused as refused:
            self.refuse(refused)
            return
        except Exception as error:
            self.refuse(error)
            return
        if body is None:
            if not self.inbox and self.head is None:  # only an empty line came: there is no request yet
                if self.ended:
                    self.close()
                else:
                    self.count()
                return
            if self.ended:
                self.refuse(self.unfinished())
                return
            self.client.idle.pop(self, None)
            self.client.reading.setdefault(self, None)
            self.count()
            return
        head, self.head = self.head, None
        assert head is not None
        self.client.idle.pop(self, None)
        self.client.reading.pop(self, None)
        self.busy = True
        self.working = len(body) + HEAD_COUNTED
        if self.count():
            self.begin(head, body)

    def request(self) -> bytes | None:
        """Read the head as soon as it is complete, then the body. Return the body, or None while something is missing."""
        inbox = self.inbox
        if self.head is None:
            if not self.skipped and inbox.startswith(b"\r"):
                if len(inbox) < 2:
                    return None
                if inbox.startswith(b"\r\n"):  # one empty line before a request line is ignored (RFC 9112, section 2.2)
                    del inbox[:2]
                    self.skipped = True
            end = inbox.find(END, max(0, self.scanned - 3))
            if end < 0:
                if inbox:
                    check_partial(inbox, self.scanned)
                self.scanned = len(inbox)
                return None
            text = bytes(inbox[: end + 4])
            del inbox[: end + 4]
            self.scanned = 0
            head = read_head(text)
            self.front.routes.head(head.method, head.path, head.headers)
            self.head, self.skipped = head, False
            if head.headers.get(b"expect", b"").lower() == b"100-continue" and not inbox:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.head.chunked:
            return self.unchunked()
        length = self.head.length
        if len(inbox) < length:
            return None
        body = bytes(inbox[:length])
        del inbox[:length]
        return body

    def unchunked(self) -> bytes | None:
        """Move the data of chunks from the inbox to the body. Return the body when the last chunk has arrived."""
        inbox, body, most = self.inbox, self.body, self.service.limits.body_bytes
        while inbox:
            if self.chunk > 2:
                part = inbox[: self.chunk - 2]
                body += part
                del inbox[: len(part)]
                self.chunk -= len(part)
                continue
            if self.chunk:
                if len(inbox) < 2:
                    return None
                if inbox[:2] != b"\r\n":
                    raise Refused(400, "a chunk of the body is not followed by CR LF at its declared size")
                del inbox[:2]
                self.chunk = 0
                continue
            size = CHUNK.match(inbox)
            if size is None:
                if len(inbox) >= CHUNK_LINE or b"\n" in inbox:
                    raise Refused(
                        400,
                        "a chunk must begin with its size in hexadecimal digits followed by CR LF; chunk extensions are not "
                        "accepted",
                    )
                return None
            length = int(size[1], 16)
            if not length:
                return self.last_chunk(size.end())
            if len(body) + length > most:
                raise too_large(most)
            if self.chunks > FREE_CHUNKS and len(body) < LEAST_CHUNK * self.chunks:
                raise Refused(400, f"the body comes in chunks of fewer than {LEAST_CHUNK} bytes on average")
            self.chunks += 1
            del inbox[: size.end()]
            self.chunk = length + 2
        return None

    def last_chunk(self, end: int) -> bytes | None:
        inbox = self.inbox
        if len(inbox) < end + 2:
            return None
        if inbox[end : end + 2] != b"\r\n":
            raise Refused(400, "trailer fields after the last chunk are not accepted")
        del inbox[: end + 2]
        whole, self.body, self.chunks = bytes(self.body), bytearray(), 0
        return whole

    def count(self) -> bool:
        """Report the size of all buffers to the door, including spare space. Return False if the request was refused for it."""
        held = self.inbox.__alloc__() + self.body.__alloc__() + self.working
        if held == self.counted:
            return True
        reason = self.door.hold(self.client, held - self.counted) if not self.left else ""
        self.counted = held if not self.left else 0
        if reason:
            self.refuse(overloaded(reason))
        return not reason

    def unfinished(self) -> Refused:
        return Refused(400, "the connection ended before the end of the request")

    # ---- answering

    def begin(self, head: Head, body: bytes) -> None:
        began = time.perf_counter()
        try:
            found = self.front.routes.answer(head.method, head.path, head.headers, body)
        except Exception as error:
            found = answer_of(error)
        if isinstance(found, Answer):
            self.respond(found, head, "other", began)
            return
        route, work = found.route, found.work
        traced = None if self.service.traces is None else self.traced(head, route)
        if traced is not None:
            work = partial(traced.around, work)

        def done(result: Any, failure: Exception | None) -> None:
            self.respond(result if failure is None else answer_of(failure), head, route, began, traced)

        try:
            self.service.queue.push(work, done, self.client.address)
        except Refused as refused:
            self.respond(answer_of(refused), head, route, began, traced)

    def traced(self, head: Head, route: str) -> Traced | None:
        """Begin and return the span of a request that is scored. Return None if it is not sampled."""
        assert self.service.traces is not None
        headers = head.headers
        carrier = {n.decode(): headers[n].decode("latin-1") for n in (b"traceparent", b"tracestate") if n in headers}
        facts = {"http.request.method": head.method, "url.path": head.path[:200], "client.address": self.client.address}
        return self.service.traces.begin(f"{head.method} {PATHS.get(route, route)}", carrier, facts)

    def respond(self, answer: Answer, head: Head, route: str, began: float, traced: Traced | None = None) -> None:
        seconds = time.perf_counter() - began
        self.service.metrics.add(route, answer.status, seconds, answer.rows)
        trace = ""
        if traced is not None:
            trace = traced.trace_id
            traced.end(answer.status, {"http.response.status_code": answer.status, "ctrbox.candidates": answer.rows})
        if self.service.access is not None:
            self.log(answer, head.method, head.path, seconds, trace)
        self.front.answered()
        self.busy, self.working = False, 0
        if self.transport is None or self.deaf:  # the client went away, or was refused meanwhile
            return
        last = head.last or self.service.queue.closed or (self.ended and not self.inbox)
        self.write(answer, last, head.method == "HEAD")
        self.since = time.monotonic()
        if last:
            self.close()
            return
        self.count()
        self.client.idle[self] = None
        if self.inbox:
            # In a turn of its own: who sends many requests ahead is served like others.
            self.pause()
            self.front.loop.call_soon(self.go_on)
        else:
            self.resume()

    def log(self, answer: Answer, method: str, path: str, seconds: float, trace: str = "") -> None:
        assert self.service.access is not None
        self.service.access.add(
            self.client.address,
            method,
            path,
            answer.status,
            seconds,
            len(answer.body),
            answer.rows,
            answer.version,
            trace,
        )

    def go_on(self) -> None:
        if self.transport is None or self.deaf or self.busy or not self.inbox:
            return
        self.since = time.monotonic()
        self.advance()
        if not self.busy and not self.deaf:
            self.resume()

    def refuse(self, refusal: BaseException) -> None:
        """Send a refusal and close the connection; the rest of the request is not read."""
        if self.deaf:
            return
        answer = answer_of(refusal)
        self.service.metrics.add("other", answer.status, 0.0)
        if self.service.access is not None:
            method, path = ("", "") if self.head is None else (self.head.method, self.head.path)
            self.log(answer, method, path, 0.0)
        if self.transport is not None:
            self.write(answer, True, False)
        self.close()

    def close(self) -> None:
        """Send what was written, then close the connection."""
        self.deaf, self.busy, self.working, self.head = True, False, 0, None
        self.inbox, self.body = bytearray(), bytearray()
        self.client.idle.pop(self, None)
        self.client.reading.pop(self, None)
        self.count()
        self.since = time.monotonic()
        if self.transport is not None:
            self.transport.close()

    def write(self, answer: Answer, last: bool, bare: bool) -> None:
        self.transport.write(response(answer, last, bare))

    # ---- time

    def check_time(self, now: float, idle_seconds: float) -> None:
        """Close the connection if the client is too slow: with a head, with a body, with reading its answer, or when idle."""
        if self.transport is None or self.busy:
            return
        limit, passed = self.service.limits.body_seconds, now - self.since
        if self.deaf or self.blocked:
            if passed > limit:
                self.transport.abort()
        elif self.head is not None:
            received = len(self.inbox) + len(self.body)
            if passed > limit:
                self.refuse(Refused(408, f"the request was not complete within {limit:g} s"))
            elif passed > PACE_AFTER and received < LEAST_PACE * (passed - PACE_AFTER):
                slow = f"the body arrived at less than {LEAST_PACE:,} bytes/s on average"
                self.refuse(Refused(408, f"{slow} (measured after the first {PACE_AFTER:g} s)"))
        elif self.inbox:
            most = min(limit, HEAD_SECONDS)
            if passed > most:
                self.refuse(Refused(408, f"the head of the request was not complete within {most:g} s"))
        elif passed > idle_seconds:
            self.close()


def response(answer: Answer, last: bool, bare: bool) -> bytes:
    close = b"connection: close\r\n" if last else b""
    more = b"".join(b"%b: %b\r\n" % pair for pair in answer.headers)
    head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n"
    reason = REASONS.get(answer.status, b"Refused")
    told = head % (answer.status, reason, answer.kind, len(answer.body), more, close)
    return told if bare else told + answer.body
