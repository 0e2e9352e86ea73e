"""A stream of events without a broker: pauses between tries, messages that wait or are left out, and streams that changed."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from nats.js.api import RetentionPolicy

from ctrbox.errors import BudgetError, DataError, SourceError
from ctrbox.serve import state_of_histories
from ctrbox.serve.event_stream import EventStream
from ctrbox.serve.refused_request import Refused, overloaded
from ctrbox.serve.state_of_histories import StateFollower, version_of


class Past:
    """A state that takes every message, unless it is told to fail."""

    def __init__(self, position: str = "") -> None:
        self.histories = SimpleNamespace(position=position, broken=False)
        self.error: Exception | None = None
        self.taken: list[str] = []
        self.passed: list[str] = []

    def take(self, body: bytes, position: str) -> None:
        if self.error is not None:
            raise self.error
        self.taken.append(position)

    def pass_over(self, position: str) -> None:
        self.passed.append(position)


def stream_of(past: Past | None = None) -> Any:
    return EventStream(past or Past(), "nats://127.0.0.1:4222/EVENTS")  # type: ignore[arg-type]


def position(number: int, created: str = "") -> str:
    return json.dumps({"stream": "EVENTS", "created": created, "seq": number})


@pytest.mark.parametrize("error", [MemoryError(), overloaded("full"), BudgetError("full")])
def test_a_message_waits_where_memory_is_full_and_is_left_out_where_it_is_wrong(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    past = Past()
    stream = stream_of(past)
    stream._take(1, b"")
    assert (past.taken, stream.told()["message"]) == ([position(1)], 1)
    past.error = error
    waits = not isinstance(error, BudgetError)  # that one is turned into a refusal before
    if waits:
        with pytest.raises(type(error)):
            stream._take(2, b"")
        assert (stream.refused, stream._seq, past.passed) == (0, 1, [])
    past.error = Refused(400, "wrong " + "x" * 1000)
    stream._take(1200, b"")
    assert (stream.refused, stream._seq, past.passed) == (1, 1200, [position(1200)])
    assert caplog.messages == [f"message 1,200 of {stream.name} was left out: {('wrong ' + 'x' * 1000)[:500]}"]
    past.histories.broken = True
    with pytest.raises(Refused):
        stream._take(1201, b"")
    assert (stream.refused, stream._seq) == (1, 1200)


def test_the_time_between_tries_doubles_until_a_message_is_fed(caplog: pytest.LogCaptureFixture) -> None:
    stream = stream_of()
    reasons = iter(["gone"] * 7 + ["other", "", "fed", "fed", "gone"])
    waits: list[float] = []
    since: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        since.append(stream.failing_since)

    async def session() -> None:
        reason = next(reasons)
        if reason == "fed":
            stream._seq += 1
            stream.failing = ""
            return
        raise SourceError(reason)

    stream._session = session
    stream._stop = SimpleNamespace(is_set=lambda: len(waits) == 12, wait=wait, set=lambda: None)
    with caplog.at_level(logging.WARNING, "ctrbox.serve"):
        stream._run()
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0, 0.5, 0.5, 1.0]
    why = "events cannot be read for now, trying again:"
    assert caplog.messages == [f"{why} gone", f"{why} other", f"{why} SourceError", f"{why} gone"]
    told = stream.told()["failing"]
    assert told["reason"] == "gone"
    assert 0 <= told["seconds"] < 60
    assert since[0] > 1e9
    assert since[:11] == [since[0]] * 11  # the first of the failures in a row


def info(created: str | None, last: int, retention: Any = RetentionPolicy.LIMITS) -> Any:
    return SimpleNamespace(
        config=SimpleNamespace(retention=retention), state=SimpleNamespace(last_seq=last), created=created
    )


def asked(stream: Any, found: Any) -> Any:
    async def stream_info(name: str) -> Any:
        assert name == "EVENTS"
        return found

    client = SimpleNamespace(jetstream=lambda timeout: SimpleNamespace(stream_info=stream_info))
    return asyncio.run(stream._info(client))


def test_a_stream_that_was_created_again_or_deletes_messages_is_refused() -> None:
    fed = stream_of(Past(position(1234, "monday")))
    for good in (info("monday", 1234), info("monday", 5000)):
        assert asked(fed, good) is good
    again = r"^stream 'EVENTS' was created again since message 1,234 was fed: it has only {} messages; start with a new state$"
    for found, count in ((info("tuesday", 5000), "5,000"), (info("monday", 1233), "1,233")):
        with pytest.raises(SourceError, match=again.format(count)):
            asked(fed, found)
    assert fed._created == "monday"
    asked(fed, info(None, 1234))  # a server that does not say when
    assert fed._created == ""
    new = stream_of()
    asked(new, info("tuesday", 0))
    assert new._created == "tuesday"
    with pytest.raises(
        SourceError, match=r"^stream 'EVENTS' has .* retention, which deletes a message after one reader has"
    ):
        asked(new, info("tuesday", 0, RetentionPolicy.WORK_QUEUE))


# ---- a file that others renew


def test_a_file_that_cannot_be_read_is_tried_later_each_time(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(state_of_histories, "time", SimpleNamespace(monotonic=lambda: clock.now))
    file = tmp_path / "state"
    assert version_of(file) == ()
    file.write_text("one")
    errors: list[Any] = []

    def renew() -> bool:
        if errors:
            raise errors[0]
        return True

    past: Any = SimpleNamespace(file=file, renew=renew, refused=0, stale="")
    follower = StateFollower(past)
    assert follower.look()
    errors.append(DataError("damaged"))
    assert not follower.look()
    why = "the state of histories could not be renewed, so the previous one stays: damaged"
    assert (past.stale, past.refused, caplog.messages) == ("damaged", 1, [why])
    for wait in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        assert follower._retry_at == clock.now + wait
        clock.now += wait - 0.5
        assert not follower.look()
        assert follower._retry_at == clock.now + 0.5  # too early
        clock.now += 0.5
        assert not follower.look()
    assert (past.refused, len(caplog.messages)) == (1, 1)
    file.write_text("another")  # tried at once
    errors[0] = MemoryError()
    assert not follower.look()
    assert (past.stale, past.refused, follower._retry_at) == ("MemoryError", 2, clock.now + 1.0)
    errors.clear()
    clock.now += 1.0
    assert follower.look()
    assert past.stale == ""
