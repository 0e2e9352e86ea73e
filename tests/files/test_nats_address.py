"""Addresses of NATS streams: every part is used or refused, and no error shows the password."""

from __future__ import annotations

import pytest

from ctrbox.errors import PlanError
from ctrbox.files.nats_address import nats_address


@pytest.mark.parametrize(
    ("url", "server", "stream", "subject", "name"),
    [
        ("nats://h/S", "nats://h", "S", "", "nats://h:4222/S"),
        ("nats://u:secret@h:1/S?subject=ads.*", "nats://u:secret@h:1", "S", "ads.*", "nats://h:1/S"),
        ("tls://h:5/S/", "tls://h:5", "S", "", "tls://h:5/S"),
    ],
)
def test_an_address_has_its_parts(url: str, server: str, stream: str, subject: str, name: str) -> None:
    assert nats_address(url) == (server, stream, subject, name)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://u:secret@h/S", "expected one of nats, tls, ws, wss before ://"),
        ("h:4222/S", "expected one of nats"),
        ("nats://u:secret@h", "the address must name a server and a stream"),
        ("nats:///S", "the address must name a server and a stream"),
        ("nats://u:secret@h/S/T", "the address must name a server and a stream"),
        ("nats://u:secret@h:x/S", "is not the address of a NATS server"),
        ("nats://u:secret@h:99999/S", "Port out of range"),
        ("nats://u:secret@[h/S", "Invalid IPv6"),
        ("nats://u:secret@h/S?subjct=a", "'subjct' is not an option"),
        ("nats://u:secret@h/S?other=", "'other' is not an option"),
        ("nats://u:secret@h/S?subject=a&subject=b", "an address may have one subject="),
        ("nats://u:secret@h/S?subject=", "which must not be empty"),
        ("nats://u:secret@h/S?subject=ads#1", "write it as %23"),
    ],
)
def test_what_would_be_ignored_is_refused_without_the_password(url: str, why: str) -> None:
    with pytest.raises(PlanError, match=why) as refused:
        nats_address(url)
    assert "secret" not in str(refused.value)
