"""A connection that is given its bytes in chosen pieces at chosen times: chunks, limits of time, requests sent ahead.

Sockets cut bytes where they like. Here the protocol object of a real listener gets them from the test.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from ctrbox.serve.access_log import AccessLog
from ctrbox.serve.http_connection import FREE_CHUNKS, HEAD_COUNTED, LEAST_PACE, Connection
from ctrbox.serve.listener import Listener
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.served_models import open_served
from ctrbox.serve.service import Limits, Service
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"POST /v1/score HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"POST /v1/score HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
MOST = 8_000  # bytes of a body
SECONDS = 10.0  # within which a request must be there


class Kept(asyncio.Transport):
    """Keeps what is written, and whether it is closed and read from."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.closed, self.aborted, self.reading = b"", False, False, True
        self.waiting = 0  # bytes that the client has not taken yet

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    @property
    def codes(self) -> list[int]:
        return [int(code) for code in STATUS.findall(self.sent)]


@pytest.fixture(scope="module")
def service(world: World) -> Service:
    limits = Limits(body_bytes=MOST, body_seconds=SECONDS)
    served = open_served(ModelFolder.open(world.folder))
    return Service(served, "ads", ScoringQueue(0, 64, 60.0), limits)


@pytest.fixture
def body(world: World) -> bytes:
    return orjson.dumps(body_of(world.rows(0, 2)))


async def settled(connection: Connection) -> None:
    """Wait until every request that has come is answered; one that was sent ahead begins in a turn of its own."""
    for _ in range(5):
        await asyncio.sleep(0)
        while connection.busy and connection.transport is not None:
            await asyncio.sleep(0.0002)


def met(service: Service, *pieces: bytes, then: Callable[[Connection, Kept], Any] | None = None) -> Kept:
    """Return the transport of a connection that received these pieces, one after the other."""

    faults: list[Any] = []

    async def give() -> Kept:
        asyncio.get_running_loop().set_exception_handler(lambda loop, about: faults.append(about))
        front = Listener(service, "127.0.0.1", 0)
        client = front.door.enter("127.0.0.1")
        assert client is not None
        connection, transport = Connection(front, client), Kept()
        connection.connection_made(transport)
        for piece in pieces:
            connection.data_received(piece)
            await settled(connection)
        if then is not None:
            then(connection, transport)
            await settled(connection)
        while service.queue.pending:  # what nobody waits for is scored all the same
            await asyncio.sleep(0.0002)
        connection.connection_lost(None)
        assert (front.door.connections, front.door.held, connection.counted) == (0, 0, 0)
        front.stop()
        return transport

    transport = asyncio.run(give())
    assert not faults
    return transport


def chunks(body: bytes, size: int) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(body[k : k + size]), body[k : k + size]) for k in range(0, len(body), size))


# ---- chunks


def test_chunks_give_the_answer_of_a_plain_body_wherever_they_are_cut(service: Service, body: bytes) -> None:
    plain = met(service, LENGTH % len(body) + body)
    assert plain.codes == [200]
    whole = CHUNKED + chunks(body, 40) + b"0\r\n\r\n"
    assert met(service, whole).sent == plain.sent
    assert met(service, *(whole[k : k + 1] for k in range(len(whole)))).sent == plain.sent
    begin = len(CHUNKED)
    for cut in [*range(begin - 2, begin + 50), *range(len(whole) - 10, len(whole))]:
        assert met(service, whole[:cut], whole[cut:]).sent == plain.sent, cut


def test_a_second_chunked_request_begins_anew(service: Service, body: bytes) -> None:
    whole = CHUNKED + chunks(body, 40) + b"0\r\n\r\n"
    found = met(service, whole + whole, whole)
    assert found.codes == [200, 200, 200]
    assert found.sent == 3 * met(service, whole).sent


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (b"2\r\n{}x\n", "a chunk of the body is not followed by CR LF at its declared size"),
        (b"2\r\n{}\r\r", "a chunk of the body is not followed by CR LF at its declared size"),
        (b"2;a\n", "a chunk must begin with its size in hexadecimal digits followed by CR LF"),
        (b"000000002\r", "a chunk must begin with its size in hexadecimal digits followed by CR LF"),
        (b"0\r\nA:", "trailer fields after the last chunk are not accepted"),
        (b"%x\r\n" % (MOST + 1), f"the body is larger than {MOST:,} bytes"),
        (chunks(b" " * 5_001, 5_001) + b"%x\r\n" % (MOST - 5_000), f"the body is larger than {MOST:,} bytes"),
        (b"1\r\n \r\n" * (FREE_CHUNKS + 2), "the body comes in chunks of fewer than 16 bytes on average"),
        (chunks(b" " * 15 * (FREE_CHUNKS + 2), 15), "the body comes in chunks of fewer than 16 bytes on average"),
    ],
)
def test_a_chunk_that_is_wrong_is_refused_in_words(service: Service, rest: bytes, message: str) -> None:
    found = met(service, CHUNKED + rest)
    assert (found.codes, found.closed) == ([413] if "larger" in message else [400], True)
    assert message in found.sent.decode()


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"2\r\n{}\r",
        b"2",
        b"00000002\r",
        b"0\r\n",
        b"0\r\n\r",
        b"%x\r\n" % MOST,
        chunks(b" " * 5_000, 5_000) + b"%x\r\n" % (MOST - 5_000),
        b"1\r\n \r\n" * (FREE_CHUNKS + 1),
        chunks(b" " * 16 * (FREE_CHUNKS + 20), 16),
    ],
)
def test_chunks_that_may_become_a_good_body_are_waited_for(service: Service, rest: bytes) -> None:
    found = met(service, CHUNKED + rest)
    assert (found.sent, found.closed) == (b"", False)


# ---- before and behind a request


def test_one_empty_line_is_skipped_also_where_it_is_cut(service: Service) -> None:
    for pieces in ([b"\r", b"\n", HEALTH], [b"\r\n", HEALTH], [b"\r", b"\n" + HEALTH], [HEALTH + b"\r\n", HEALTH]):
        assert set(met(service, *pieces).codes) == {200}
    assert met(service, b"\r", b"x").codes == [400]


def test_the_end_of_what_a_client_sends(service: Service, body: bytes) -> None:
    def end(connection: Connection, transport: Kept) -> None:
        keep = connection.eof_received()
        assert keep is transport.closed  # asyncio closes by itself where it is told False

    assert met(service, b"", then=end).codes == []
    assert met(service, b"\r\n", then=end).codes == []
    for unfinished in (b"GET", CHUNKED, LENGTH % 5 + b"{}"):
        found = met(service, unfinished, then=end)
        assert found.codes == [400]
        assert b"the connection ended before the end of the request" in found.sent
    assert met(service, HEALTH, then=end).codes == [200]

    def end_ahead(connection: Connection, transport: Kept) -> None:
        connection.data_received(HEALTH + b"\r\n")
        connection.data_received(b"GET")
        connection.eof_received()

    assert met(service, then=end_ahead).codes == [200, 400]

    ask = LENGTH % len(body) + body

    def end_behind_an_empty_line(connection: Connection, transport: Kept) -> None:
        connection.data_received(ask + b"\r\n")
        assert connection.busy
        assert connection.eof_received() is True

    found = met(service, then=end_behind_an_empty_line)
    assert (found.codes, found.closed) == ([200], True)


def test_requests_sent_ahead_wait_in_the_socket_and_are_answered_in_order(service: Service, body: bytes) -> None:
    ask = LENGTH % len(body) + body
    seen: list[bool] = []

    def ahead(connection: Connection, transport: Kept) -> None:
        connection.data_received(ask)
        assert connection.busy
        connection.data_received(HEALTH)  # the first one is under way: nothing more is read
        seen.append(transport.reading)

    found = met(service, then=ahead)
    assert (seen, found.codes, found.reading) == ([False], [200, 200], True)
    assert found.sent.index(b"scores") < found.sent.index(b'"ok"')
    busy: list[bool] = []

    def behind(connection: Connection, transport: Kept) -> None:
        resume = transport.resume_reading

        def resumed() -> None:
            busy.append(connection.busy)
            resume()

        transport.resume_reading = resumed  # type: ignore[method-assign]
        connection.data_received(HEALTH + ask)

    assert met(service, then=behind).codes == [200, 200]
    assert busy == [False]  # not while the second one is under way
    last = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    found = met(service, HEALTH + last + HEALTH)
    assert (found.codes, found.closed) == ([200, 200], True)


def test_a_client_that_does_not_read_is_not_read_from(service: Service) -> None:
    def blocked(connection: Connection, transport: Kept) -> None:
        connection.pause_writing()
        assert not transport.reading
        connection.pause_writing()  # again: asked once
        connection.resume_writing()
        assert transport.reading
        connection.pause_writing()
        connection.busy = True
        connection.resume_writing()  # the answer is still to come
        assert not transport.reading
        connection.busy = False

    met(service, HEALTH, then=blocked)


# ---- what is counted


def state(connection: Connection) -> str:
    client = connection.client
    return "idle" if connection in client.idle else "reading" if connection in client.reading else "busy"


def test_a_connection_is_idle_read_from_or_busy_and_its_buffers_are_counted(service: Service, body: bytes) -> None:
    ask, before = LENGTH % len(body), service.metrics.seconds

    def pieces(connection: Connection, transport: Kept) -> None:
        def give(piece: bytes) -> tuple[str, int]:
            connection.data_received(piece)
            held = connection.inbox.__alloc__() + connection.body.__alloc__() + connection.working
            assert connection.counted == connection.client.held == connection.door.held == held
            return state(connection), len(connection.inbox) + len(connection.body)

        assert give(b"\r\n") == ("idle", 0)  # an empty line begins no request
        assert give(b"PO") == ("reading", 2)
        assert give(ask[2:]) == ("reading", 0)  # the head alone
        assert give(body[:-1]) == ("reading", len(body) - 1)
        assert give(body[-1:]) == ("busy", 0)
        assert connection.working == len(body) + HEAD_COUNTED
        assert give(HEALTH) == ("busy", len(HEALTH))

    assert met(service, then=pieces).codes == [200, 200]
    assert 0 <= service.metrics.seconds - before < 60

    def chunked(connection: Connection, transport: Kept) -> None:
        connection.data_received(CHUNKED + chunks(b" " * 3_000, 3_000) + b"10\r\nabc")
        assert (bytes(connection.inbox), len(connection.body)) == (b"", 3_003)
        assert connection.counted == connection.door.held > 3_003

    met(service, then=chunked)


def test_a_second_empty_line_is_refused_at_its_first_byte(service: Service) -> None:
    assert met(service, b"\r\n", b"\r").codes == [400]
    assert met(service, b"\r\n", b"G").codes == []
    assert met(service, b"\x01").codes == [400]


def test_a_connection_that_makes_room_is_ended_or_its_request_refused(service: Service, body: bytes) -> None:
    def dropped(connection: Connection, transport: Kept) -> None:
        connection.dropped("no room")
        assert connection.front.door.connections == 0
        assert connection.deaf

    idle = met(service, then=dropped)
    assert (idle.sent, idle.aborted) == (b"", True)
    for unfinished in (b"GET", LENGTH % 5 + b"{}"):
        reading = met(service, unfinished, then=dropped)
        assert (reading.codes, reading.closed, reading.aborted) == ([503], True, False)
        assert b"no room" in reading.sent

    def untaken(connection: Connection, transport: Kept) -> None:
        transport.waiting = 1
        dropped(connection, transport)

    full = met(service, b"GET", then=untaken)
    assert (full.codes, full.aborted) == ([503], True)

    async def beginning() -> list[bool]:
        front = Listener(service, "127.0.0.1", 0)
        asked = []
        for starts in (True, False):
            client = front.door.enter("127.0.0.1")
            assert client is not None
            connection, late = Connection(front, client), Kept()
            if starts:
                connection.starting = asyncio.get_running_loop().create_task(asyncio.sleep(60))
            connection.dropped("no room")
            asked.append(connection.starting is not None and bool(connection.starting.cancelling()))
            connection.connection_made(late)  # a TLS handshake that ends all the same
            asked.append(late.aborted and connection.transport is None)
        front.stop()
        return asked

    assert asyncio.run(beginning()) == [True, True, False, True]


def test_an_answer_for_a_client_that_went_away_is_not_sent(service: Service, body: bytes) -> None:
    ask = LENGTH % len(body) + body

    def away(connection: Connection, transport: Kept) -> None:
        connection.data_received(ask)
        connection.connection_lost(None)

    assert met(service, then=away).sent == b""

    def away_ahead(connection: Connection, transport: Kept) -> None:
        connection.data_received(HEALTH + HEALTH)  # the second one waits for a turn of its own
        connection.connection_lost(None)

    assert met(service, then=away_ahead).codes == [200]

    def refused(connection: Connection, transport: Kept) -> None:
        connection.data_received(ask)
        connection.refuse(Refused(400, "no more"))

    assert met(service, then=refused).codes == [400]


def test_the_end_of_a_secure_connection_is_the_end(service: Service, body: bytes) -> None:
    def secure(connection: Connection, transport: Kept) -> None:
        transport.get_extra_info = lambda name, default=None: object()  # type: ignore[assignment,method-assign]
        connection.data_received(LENGTH % len(body) + body)
        assert connection.eof_received() is False

    assert met(service, then=secure).codes == [200]


def test_refusals_are_in_the_access_log_with_what_was_read_of_their_heads(service: Service, tmp_path: Path) -> None:
    service.access = AccessLog(tmp_path / "log")
    try:
        met(service, b"nonsense\r\n\r\n")
        met(service, CHUNKED + b"x\r\n")
        met(service, HEALTH)
    finally:
        service.access.close()
        service.access = None
    lines = [orjson.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    found = [(line["method"], line["path"], line["status"], line["client"]) for line in lines]
    assert found == [
        ("", "", 400, "127.0.0.1"),
        ("POST", "/v1/score", 400, "127.0.0.1"),
        ("GET", "/healthz", 200, "127.0.0.1"),
    ]


# ---- time


@pytest.mark.parametrize(
    ("pieces", "seconds", "message"),
    [
        (b"GET", 5.0, "the head of the request was not complete within 5 s"),
        (LENGTH % 2 + b"{", SECONDS, ""),  # by its pace long before
        (LENGTH % 50 + b"{", 3.0 + 1 / LEAST_PACE, "the body arrived at less than 16,384 bytes/s on average"),
        (CHUNKED + chunks(b" " * 100, 100), 3.0 + 100 / LEAST_PACE, "(measured after the first 3 s)"),
    ],
)
def test_a_request_that_dawdles_is_refused_when_its_time_is_over(
    service: Service, pieces: bytes, seconds: float, message: str
) -> None:
    def wait(connection: Connection, transport: Kept) -> None:
        connection.since = 0.0
        if message:
            connection.check_time(seconds, 75.0)
            assert not transport.sent
        connection.check_time(seconds + 0.001, 75.0)

    found = met(service, pieces, then=wait)
    assert (found.codes, found.closed) == ([408], True)
    assert message in found.sent.decode()


def test_a_body_that_keeps_its_pace_has_until_the_limit(world: World) -> None:
    limits = Limits(body_bytes=1 << 20, body_seconds=SECONDS)
    service = Service(open_served(ModelFolder.open(world.folder)), "ads", ScoringQueue(0, 64, 60.0), limits)

    def wait(connection: Connection, transport: Kept) -> None:
        connection.since = 0.0
        connection.check_time(SECONDS, 75.0)
        assert not transport.sent
        connection.check_time(SECONDS + 0.001, 75.0)

    found = met(service, LENGTH % (1 << 20) + b" " * (8 * LEAST_PACE), then=wait)
    assert found.codes == [408]
    assert b"the request was not complete within 10 s" in found.sent


def test_the_time_of_a_request_begins_with_its_first_byte(service: Service, body: bytes) -> None:
    ask = LENGTH % len(body) + body

    def pieces(connection: Connection, transport: Kept) -> None:
        for piece, begins in ((ask[:5], True), (ask[5 : -len(body)], False), (body[:9], False), (body[9:20], False)):
            connection.since = 0.0
            connection.data_received(piece)
            assert (connection.since > 0.0) is begins, piece

    met(service, HEALTH, then=pieces)


def test_idle_and_deaf_connections_are_closed_when_their_time_is_over(service: Service) -> None:
    def idle(connection: Connection, transport: Kept) -> None:
        connection.since = 0.0
        connection.check_time(75.0, 75.0)
        assert not transport.closed
        connection.check_time(75.001, 75.0)
        assert (transport.closed, transport.aborted) == (True, False)
        connection.since = 0.0  # closed, and the client does not read its answer
        connection.check_time(SECONDS, 75.0)
        assert not transport.aborted
        connection.check_time(SECONDS + 0.001, 75.0)
        assert transport.aborted

    met(service, HEALTH, then=idle)

    def blocked(connection: Connection, transport: Kept) -> None:
        connection.pause_writing()
        connection.since = 0.0
        connection.busy = True
        connection.check_time(1000.0, 75.0)  # the server's own time is not the client's
        assert not transport.aborted
        connection.busy = False
        connection.check_time(SECONDS + 0.001, 75.0)
        assert transport.aborted

    met(service, HEALTH, then=blocked)
