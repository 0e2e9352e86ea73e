"""Opens streams of events, which return the events in the same order every time they are read.

A stream is a sequence of chunks. A chunk is a file or a message that contains rows. The stream hands out pieces of chunks in
order. The loop calls `took` when it has learned from a piece, and asks for the `position` to write a checkpoint. A stream that is
opened at that position continues with the next row. The loop calls `kept` when no later start will begin before a position. The
stream may then forget the events before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol
from urllib.parse import urlsplit

from ctrbox.errors import PlanError
from ctrbox.loop.decode_events import Layout, Piece

Position = dict[str, Any]  # plain data, for a checkpoint; each kind of stream has its own


class Stream(Protocol):
    """A stream of events. One thread uses it."""

    failing: str  # why nothing can be had right now; "" where all is well
    waited_s: float  # for events that were not there

    @property
    def name(self) -> str:
        """The name of the stream for messages, without passwords."""

    def pieces(self) -> Iterator[Piece | None]:
        """Yield pieces from the position on, without an end. None means that nothing is there at the moment. Call it only
        once.
        """

    def drained(self) -> bool:
        """After a None: return whether the stream has no more events, or whether they have only not arrived yet."""

    def took(self, piece: Piece) -> None:
        """Note that the loop has learned from the piece or holds its rows; ``position`` is then after this piece."""

    def position(self) -> Position: ...

    def kept(self, position: Position) -> None:
        """Note that all checkpoints that the loop may go back to contain the events before this position."""

    def close(self) -> None: ...


def open_stream(
    where: str, layout: Layout, position: Position | None, tell: Callable[[str], object], *, delete: bool = False
) -> Stream:
    """Open a folder of chunks on any filesystem, or ``nats://host:port/STREAM``.

    ``delete`` removes chunks from the folder when they are kept in the checkpoints.
    """
    if not where.strip():
        raise PlanError("the address of the stream is empty; pass a folder of chunks, or nats://host:port/STREAM")
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
