"""Opens streams of events, which return the same order every time they are read.

A stream is a row of chunks; a chunk is a file, or a message, with rows in it. Pieces of chunks are handed out in order; whoever
learned from one says `took`, and asks for the `position` to write a checkpoint. A stream that is opened at that position goes on
with the next row. `kept` says that nothing will ever go on from before a position: events up to there may be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol
from urllib.parse import urlsplit

from ctrbox.errors import PlanError
from ctrbox.loop.decode_events import Layout, Piece

Position = dict[str, Any]  # plain data, for a checkpoint; each kind of stream has its own


class Stream(Protocol):
    """Used by one thread."""

    failing: str  # why nothing can be had right now; "" where all is well
    waited_s: float  # for events that were not there

    @property
    def name(self) -> str:
        """For people; without secrets."""

    def pieces(self) -> Iterator[Piece | None]:
        """From the position on, without an end; to be called once. None: nothing is there right now, after a short wait."""

    def drained(self) -> bool:
        """Behind a None: whether really nothing is left, or it is only not here yet."""

    def took(self, piece: Piece) -> None:
        """It was learned from, or is held: from now on ``position`` lies behind it."""

    def position(self) -> Position: ...

    def kept(self, position: Position) -> None:
        """A checkpoint holds it, and so does every one that may be gone back to."""

    def close(self) -> None: ...


def open_stream(
    where: str, layout: Layout, position: Position | None, tell: Callable[[str], object], *, delete: bool = False
) -> Stream:
    """A folder of chunks on any filesystem, or ``nats://host:port/STREAM``. ``delete``: chunks that are kept are removed."""
    if not where.strip():
        raise PlanError("the stream has no name; pass a folder of chunks, or nats://host:port/STREAM")
    try:
        scheme = urlsplit(where).scheme
    except ValueError as error:
        raise PlanError(f"{where!r} is not an address of a stream: {error}") from error
    if scheme in ("nats", "tls", "ws", "wss"):
        from ctrbox.loop.nats_stream import NatsStream

        if delete:
            raise PlanError(
                "delete= works only with a folder of chunks; a NATS stream deletes events according to its "
                "own retention policy"
            )
        return NatsStream(where, layout, position, tell)
    from ctrbox.loop.chunk_folder import ChunkFolder

    return ChunkFolder(where, layout, position, tell, delete=delete)
