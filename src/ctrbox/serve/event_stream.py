"""Feeds the state of histories from a NATS JetStream stream, so that a click counts in the next request.

    nats://host:4222/CLICKS ──► messages in order, each as POST /v1/events takes it ──► ServedPast.take ──► Histories

The position in the state is JSON with the number of the last message that was fed. It is set together with the message's events
and saved with them, so each message counts exactly once, however often the server starts. Every worker reads the whole stream for
itself, through a consumer of its own without acknowledgements. Equal messages in equal order give equal states, so the
states of the workers differ only by messages that have not reached all of them yet, which takes a few milliseconds.

A stream must keep its messages for all readers: it needs limits retention. A message that POST /v1/events would refuse is
logged, counted and skipped. While the NATS server cannot be reached, the state stays as it is, requests are answered from it, and
the worker tries to connect again after 0.5 s, 1 s and so on up to 30 s. If the memory of the state is full, the message waits.
If a message failed after a part of it was fed, the state is broken: nothing more is fed before a restart, which begins with the
saved state.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from typing import Any

from ctrbox.errors import PlanError, SourceError
from ctrbox.files.interruptible_wait import join
from ctrbox.files.nats_address import nats_address
from ctrbox.files.nats_connection import nats_connection
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.state_of_histories import ServedPast

ANSWER_S = 10.0
WAIT_S = 0.25  # seconds to wait for a message before checking whether to stop
FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 30.0
MOST_AT_ONCE = 256  # messages between two checks whether to stop
log = logging.getLogger("ctrbox.serve")


class EventStream:
    """Feeds the state of histories from a stream.

    ``start`` follows the stream in a thread until ``close`` is called. ``wait`` waits until the messages that were in the stream
    at the start have been fed.
    """

    def __init__(self, past: ServedPast, url: str) -> None:
        self.past = past
        self.server, self.stream, self.subject, self.name = nats_address(url)
        self.refused = 0  # messages that could not be fed
        self.lost = 0  # messages that the stream dropped before they were fed
        self.failing = ""  # why no message arrives; "" if there is no failure
        self.failing_since = 0.0  # seconds since 1970
        self._caught_up = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ctrbox-events", daemon=True)
        self._seq, self._created = self._position()  # of the last message that was fed

    def _position(self) -> tuple[int, str]:
        """Return the last message that was fed and when its stream was created, from the position of the state."""
        text = self.past.histories.position
        if not text:
            return 0, ""
        try:
            found = json.loads(text)
            seq, created, stream = found["seq"], found["created"], found["stream"]
        except (ValueError, TypeError, KeyError):
            seq = created = stream = None
        if type(seq) is not int or seq < 0 or not isinstance(created, str) or stream != self.stream:
            raise PlanError(
                f"the state is at position {text[:100]!r}, which is not a position in stream {self.stream!r}; start with a "
                "state that was fed from this stream, or with one without a position"
            )
        return seq, created

    # ---- for the server

    def check(self) -> None:
        """Raise a SourceError unless the stream can be read now."""

        async def once() -> None:
            client = await nats_connection(self.server, self.name, "ctrbox-serve")
            try:
                await self._info(client)
            finally:
                await client.close()

        asyncio.run(once())

    def start(self) -> None:
        self._seq, self._created = self._position()  # the state may have been replaced since
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the messages that the stream held at the start have been fed; return whether this happened in time."""
        return self._caught_up.wait(seconds)

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            join(self._thread)

    def told(self) -> dict[str, Any]:
        """Return the number of the last message that was fed, and the last error."""
        found: dict[str, Any] = {"name": self.name, "message": self._seq, "refused": self.refused, "lost": self.lost}
        if self.failing:
            found["failing"] = {"seconds": round(time.time() - self.failing_since, 1), "reason": self.failing}
        return found

    # ---- in the thread

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._stop.is_set():
            before = self._seq
            try:
                asyncio.run(self._session())
            except Exception as error:
                reason = str(error) or type(error).__name__
                if not self.failing:
                    self.failing_since = time.time()
                if reason != self.failing:
                    log.warning("events cannot be read for now, trying again: %s", reason)
                self.failing = reason
            pause = FIRST_PAUSE_S if self._seq != before else min(2 * pause, MOST_PAUSE_S)
            self._stop.wait(pause)

    async def _info(self, client: Any) -> Any:
        from nats.js.api import RetentionPolicy
        from nats.js.errors import NotFoundError

        try:
            info = await client.jetstream(timeout=ANSWER_S).stream_info(self.stream)
        except NotFoundError as error:
            raise SourceError(
                f"{self.name}: there is no stream {self.stream!r} on that server; check its name, or create it"
            ) from error
        if info.config.retention != RetentionPolicy.LIMITS:
            raise SourceError(
                f"stream {self.stream!r} has {info.config.retention} retention, which deletes a message after one reader has "
                "read it. Every worker of this server must read all messages; use a stream with limits retention"
            )
        created = str(getattr(info, "created", "") or "")
        if (self._created and created and created != self._created) or info.state.last_seq < self._seq:
            raise SourceError(
                f"stream {self.stream!r} was created again since message {self._seq:,} was fed: it has only "
                f"{info.state.last_seq:,} messages; start with a new state"
            )
        self._created = created
        return info

    async def _session(self) -> None:
        """Feed messages, beginning with the next one, until the connection is lost or the stream is closed."""
        from nats.errors import TimeoutError as NothingThere
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        client = await nats_connection(self.server, self.name, "ctrbox-serve")
        try:
            info = await self._info(client)
            gone = info.state.first_seq - self._seq - 1
            if gone > 0 and self._seq and not self.subject:
                self.lost += gone
                log.warning("the limits of %s deleted %s messages before they were fed", self.name, f"{gone:,}")
            config = ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._seq + 1,
                ack_policy=AckPolicy.NONE,
                mem_storage=True,
                inactive_threshold=60.0,
            )
            stream = client.jetstream(timeout=ANSWER_S)
            there = await stream.subscribe(self.subject or ">", stream=self.stream, config=config, manual_ack=True)
            self.failing, expected, last = "", 1, info.state.last_seq
            while not self._stop.is_set():
                try:
                    messages = [await there.next_msg(timeout=WAIT_S)]
                except (NothingThere, TimeoutError):
                    if not client.is_connected:
                        raise SourceError(f"the connection to {self.name} was lost") from None
                    self._caught_up.set()  # also of a subject without newer messages
                    continue
                while there.pending_msgs and len(messages) < MOST_AT_ONCE:
                    messages.append(await there.next_msg(timeout=WAIT_S))
                for message in messages:
                    number = message.metadata.sequence
                    if number.consumer != expected:
                        raise SourceError(f"{self.name}: a message before number {number.stream:,} was not delivered")
                    expected += 1
                    if number.stream > self._seq:
                        self._take(number.stream, message.data)
                if self._seq >= last:
                    self._caught_up.set()
        finally:
            with contextlib.suppress(Exception):
                await client.close()

    def _take(self, number: int, body: bytes) -> None:
        position = json.dumps({"stream": self.stream, "created": self._created, "seq": number})
        try:
            self.past.take(body, position)
        except Exception as error:
            full = isinstance(error, MemoryError) or (isinstance(error, Refused) and error.status == 503)
            if full or self.past.histories.broken:  # the message waits, or nothing can be fed before a restart
                raise
            self.refused += 1
            self.past.pass_over(position)
            log.warning("message %s of %s was left out: %s", f"{number:,}", self.name, str(error)[:500])
        self._seq = number
