"""A NATS server that is not there, and a client that is not installed."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest

from ctrbox.errors import SourceError
from ctrbox.files.nats_connection import nats_connection


class Away(SourceError):
    """An error that the caller raises."""


def test_a_server_that_cannot_be_reached_raises_what_the_caller_asked_for() -> None:
    pytest.importorskip("nats")
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    shown = f"nats://127.0.0.1:{port}/ads"
    with pytest.raises(Away) as caught:
        asyncio.run(nats_connection(f"nats://u:secret@127.0.0.1:{port}", shown, "a test", Away))
    assert str(caught.value).startswith(f"cannot reach {shown}: ")
    assert "Connect call failed" in str(caught.value)  # what the client met, not that it gave up
    assert "secret" not in str(caught.value)


def test_the_client_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(SourceError, match=r"^nats://h/ads needs the NATS client: pip install 'ctrbox\[serve\]'$"):
        asyncio.run(nats_connection("nats://h", "nats://h/ads", "a test"))
