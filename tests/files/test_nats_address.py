"""Addresses of NATS streams, good and bad."""

from __future__ import annotations

import pytest

from ctrbox.errors import PlanError
from ctrbox.files.nats_address import nats_address


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("nats://h:1/S", ("nats://h:1", "S", "", "nats://h:1/S")),
        ("nats://h/S/", ("nats://h", "S", "", "nats://h:4222/S")),
        ("nats://u:p@h/S?subject=a.*", ("nats://u:p@h", "S", "a.*", "nats://h:4222/S")),
    ],
)
def test_an_address_names_server_stream_and_subject(url: str, found: tuple[str, ...]) -> None:
    assert nats_address(url) == found


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nats://h", "a server and a stream are needed"),
        ("nats:///S", "a server and a stream are needed"),
        ("nats://h/S/T", "a server and a stream are needed"),
        ("nats://h/S?subjct=a", "'subjct' is not an option"),
        ("nats://h:x/S", "is not the address of a NATS server"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        nats_address(url)
