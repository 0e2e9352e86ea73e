"""Reads a NATS JetStream stream, each message of which is a chunk of events.

    nats://user:password@host:4222/STREAM?subject=ads.events

Messages are read in the order of their sequence numbers, beginning after the position of the checkpoint. At every start and after
every failure, the consumer of the stream is created again at the next number. A message that arrives a second time is recognized
by its number. A message is acknowledged when the older of the two checkpoints that are kept contains it. A stream with work-queue
retention then deletes the message, and a stream with limits keeps it. Interest retention is refused, because such a stream
deletes events while nobody reads it.

The client of NATS runs in a thread of its own, which fetches the next messages while the loop learns from the last ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from ctrbox.errors import PlanError, SourceError
from ctrbox.files.interruptible_wait import join
from ctrbox.files.nats_address import nats_address
from ctrbox.files.nats_connection import nats_connection
from ctrbox.loop.chunk_decoder import pieces
from ctrbox.loop.decode_events import Layout, Piece
from ctrbox.loop.stream import Position

T = TypeVar("T")

WAIT_S = 0.25  # for messages, before the loop may do something else
ANSWER_S = 10.0
MOST_PAUSE_S = 30.0
FETCH_MESSAGES, FETCH_BYTES = 256, 64 << 20
MOST_PENDING = 500_000  # messages behind the checkpoint; then the server waits for one
FORGOTTEN_S = 86_400.0  # then the server drops a consumer that nobody uses; the position is ours
ACK_WAIT_S = 3600.0  # a consumer lives as long as its connection: a message comes again to the next one, not to this


class NatsStream:
    """A `Stream` over JetStream."""

    def __init__(
        self, url: str, layout: Layout, position: Position | None, tell: Callable[[str], object], wait_s: float = WAIT_S
    ) -> None:
        self.server, self.stream, self.subject, self.name = nats_address(url)
        self.layout, self.tell, self.wait_s = layout, tell, wait_s
        found = position or {}
        self.seq: int = found.get("seq", 0)  # up to here all was taken
        self.rows: int = found.get("rows", 0)  # of the next message
        self.created: str = found.get("created", "")
        self.consumer: str = found.get("consumer") or f"ctrbox-{secrets.token_hex(8)}"
        self.lost: int = found.get("lost", 0)  # messages that the stream dropped before they were read
        self._counted: int = found.get("counted", 0)  # up to here dropped messages are in `lost`
        self.failing = ""
        self.waited_s = 0.0
        self._kept = 0
        self._read = self.seq  # handed out or about to be
        self._unacked: deque[tuple[int, str]] = deque()
        self._delivered = 0  # the consumer's own count
        self._each = False  # every message is acknowledged for itself
        self._client: Any = None
        self._subscription: Any = None
        self._batch = 1
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ctrbox-nats", daemon=True)
        self._thread.start()
        try:
            self._call(self._open(), 2 * ANSWER_S)
        except BaseException:
            self.close()
            raise

    # ---- a stream

    def pieces(self) -> Iterator[Piece | None]:
        pause, coming = 0.5, None
        while True:
            try:
                if self._client is None:
                    self._call(self._open(), 2 * ANSWER_S)
                    self.tell(f"the connection to {self.name} is restored")
                coming = coming or self._start(self._fetch())
                began = time.perf_counter()
                messages = coming.result(self.wait_s + ANSWER_S)
                self.waited_s += time.perf_counter() - began
                coming = self._start(self._fetch()) if messages else None
                self.failing, pause = "", 0.5
            except Exception as error:
                if isinstance(error, SourceError | PlanError) and not isinstance(error, _Away):
                    raise
                coming = None
                self._fault(error, pause)
                yield None
                time.sleep(pause)
                pause = min(2 * pause, MOST_PAUSE_S)
                continue
            if not messages:
                yield None
            for sequence, payload in messages:
                start = self.rows if sequence == self.seq + 1 else 0
                yield from pieces(str(sequence), payload, self.layout, start)

    def drained(self) -> bool:
        try:
            return self._call(self._all_came(), ANSWER_S)
        except Exception as error:
            self.failing = str(error) or type(error).__name__
            return False

    def took(self, piece: Piece) -> None:
        if piece.last:
            self.seq, self.rows = int(piece.chunk), 0
        else:
            self.seq, self.rows = int(piece.chunk) - 1, piece.stop

    def position(self) -> Position:
        return {
            "seq": self.seq,
            "rows": self.rows,
            "created": self.created,
            "consumer": self.consumer,
            "lost": self.lost,
            "counted": self._counted,
        }

    def kept(self, position: Position) -> None:
        self._kept = max(self._kept, int(position["seq"]))
        if self._client is not None:
            with contextlib.suppress(Exception):  # what is not acknowledged now is later: its number is known
                self._call(self._acknowledge(), ANSWER_S)

    def close(self) -> None:
        if self._thread.is_alive():
            with contextlib.suppress(Exception):
                self._call(self._shut(), ANSWER_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            join(self._thread)
            self._loop.close()

    # ---- in the client's thread

    async def _open(self) -> None:
        # The client must not reconnect on its own: a new consumer must begin at the right message, which only the caller knows.
        client = await nats_connection(self.server, self.name, self.consumer, _Away)
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy
        from nats.js.errors import NotFoundError

        try:
            stream = client.jetstream(timeout=ANSWER_S)
            try:
                info = await stream.stream_info(self.stream)
            except NotFoundError as error:
                raise SourceError(
                    f"{self.name}: there is no stream {self.stream!r} on that server; check its name, or create it"
                ) from error
            self._check(info)
            with contextlib.suppress(NotFoundError):
                await stream.delete_consumer(self.stream, self.consumer)
            self._each = info.config.retention == RetentionPolicy.WORK_QUEUE
            config = ConsumerConfig(
                durable_name=self.consumer,
                deliver_policy=DeliverPolicy.ALL if self._each else DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=None if self._each else self._read + 1,
                ack_policy=AckPolicy.EXPLICIT if self._each else AckPolicy.ALL,
                ack_wait=ACK_WAIT_S,
                max_ack_pending=MOST_PENDING,
                inactive_threshold=FORGOTTEN_S,
                filter_subject=self.subject or None,
            )
            await stream.add_consumer(self.stream, config)
            self._subscription = await stream.pull_subscribe_bind(consumer=self.consumer, stream=self.stream)
            self._batch = max(1, min(FETCH_MESSAGES, FETCH_BYTES // max(1, client.max_payload)))
            self._unacked.clear()
            self._delivered = 0
            self._client = client
        except BaseException:
            await client.close()
            raise

    def _check(self, info: Any) -> None:
        from nats.js.api import RetentionPolicy

        if info.config.retention == RetentionPolicy.INTEREST:
            raise SourceError(
                f"stream {self.stream!r} has interest retention, "
                f"which drops events while no consumer is connected; "
                f"expected limits or work-queue retention"
            )
        created = str(getattr(info, "created", "") or "")
        if (self.created and created and created != self.created) or info.state.last_seq < self._read:
            raise SourceError(
                f"stream {self.stream!r} "
                f"was created again since message {self._read:,} was read: it now has only "
                f"{info.state.last_seq:,} messages; use another output folder, or give the stream another name"
            )
        self.created = created
        # A stream that is opened again before its next message comes has the same gap.
        gone = info.state.first_seq - max(self._read, self._counted) - 1
        # What a work queue dropped was acknowledged.
        if gone > 0 and self._read and info.config.retention == RetentionPolicy.LIMITS and not self.subject:
            self.lost += gone
            self._counted = info.state.first_seq - 1
            self.tell(
                f"{gone:,} messages of {self.name} were deleted by the limits of the stream before the loop read them"
            )

    async def _fetch(self) -> list[tuple[int, bytes]]:
        import nats.errors

        try:
            messages = await self._subscription.fetch(self._batch, timeout=self.wait_s)
        except (nats.errors.TimeoutError, TimeoutError):
            if not self._client.is_connected:
                raise _Away(f"the connection to {self.name} was lost") from None
            return []
        found = []
        for message in messages:
            data = message.metadata
            number, delivery = int(data.sequence.stream), int(data.sequence.consumer)
            if delivery > self._delivered + 1:  # one between was sent and never came
                raise _Away(f"{self.name}: a message before number {number:,} was not delivered")
            self._delivered = max(self._delivered, delivery)
            self._unacked.append((number, message.reply))
            if number > self._read:
                self._read = number
                found.append((number, message.data))
        if len(found) < len(messages):
            await self._acknowledge()
        return found

    async def _all_came(self) -> bool:
        info = await self._client.jetstream(timeout=ANSWER_S).consumer_info(self.stream, self.consumer)
        return bool(info.num_pending == 0 and info.delivered.consumer_seq == self._delivered)

    async def _acknowledge(self) -> None:
        ready = []
        while self._unacked and self._unacked[0][0] <= self._kept:
            ready.append(self._unacked.popleft())
        for _, reply in ready if self._each else sorted(ready)[-1:]:
            await self._client.publish(reply, b"+ACK")
        if ready:
            await self._client.flush()

    async def _shut(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    # ---- between the threads

    def _start(self, work: Coroutine[Any, Any, T]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _call(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        try:
            found: T = self._start(work).result(seconds)
        except TimeoutError as error:
            raise _Away(f"{self.name} did not answer within {seconds:.0f} s") from error
        return found

    def _fault(self, error: Exception, pause: float) -> None:
        with contextlib.suppress(Exception):
            self._call(self._shut(), ANSWER_S)
        self._client = None
        # What was fetched and not handed out comes again; what was, is known by its number.
        self._read = self.seq
        self.failing = str(error) or type(error).__name__
        self.tell(f"{self.failing}; trying again in {pause:.1f} s")


class _Away(SourceError):
    """The server cannot be reached at the moment, but may be reached later."""
