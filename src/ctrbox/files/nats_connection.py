"""Connects to a NATS server once. The reader of a stream reconnects itself, because only it knows the next message."""

from __future__ import annotations

from typing import Any

from ctrbox.errors import SourceError


async def nats_connection(server: str, shown: str, client: str, away: type[SourceError] = SourceError) -> Any:
    """Return a connected client called ``client``. ``shown``: the address of the stream for messages, without a password.

    Raise ``away`` if the server cannot be reached within five seconds. The client does not reconnect.
    """
    try:
        import nats
        from nats.errors import Error
    except ImportError as error:
        raise SourceError(f"{shown} needs the NATS client: pip install 'ctrbox[serve]'") from error
    met: list[Exception] = []

    async def note(error: Exception) -> None:  # the client would print each
        met[:] = [error]

    try:
        return await nats.connect(
            server,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0.2,
            connect_timeout=5,
            error_cb=note,
            name=client,
        )
    except (Error, OSError, ValueError) as error:
        cause = met[0] if met else error
        raise away(f"cannot reach {shown}: {str(cause) or type(cause).__name__}") from error
