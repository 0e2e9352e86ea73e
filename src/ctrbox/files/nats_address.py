"""Reads the address of a NATS JetStream stream: nats://user:password@host:4222/STREAM?subject=ads.*"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from ctrbox.errors import PlanError

SCHEMES = ("nats", "tls", "ws", "wss")
PASSWORD = re.compile(r"//[^/]*@")  # the user name and the password


class NatsAddress(NamedTuple):
    server: str  # with the password
    stream: str
    subject: str  # "": all
    name: str  # for people, without the password


def nats_address(url: str) -> NatsAddress:
    """Return the parts of an address. Raise a PlanError if it is not the address of a NATS stream."""
    shown = PASSWORD.sub("//", url)
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname or ''}:{parts.port or 4222}"
    except ValueError as error:
        raise PlanError(f"{shown!r} is not the address of a NATS server: {error}") from None
    stream = parts.path.strip("/")
    asked = parse_qs(parts.query, keep_blank_values=True)
    subjects = asked.pop("subject", [])
    why = ""
    if parts.scheme not in SCHEMES:
        why = f"expected one of {', '.join(SCHEMES)} before ://"
    elif not parts.hostname or not stream or "/" in stream:
        why = "the address must name a server and a stream"
    elif asked:
        why = f"{min(asked)!r} is not an option"
    elif len(subjects) > 1 or "" in subjects:
        why = (
            "an address may have one subject=, which must not be empty; without it, all messages of the stream are read"
        )
    elif parts.fragment:
        why = "'#' is not part of an address; write it as %23"
    if why:
        raise PlanError(f"{shown}: {why}; expected nats://host:4222/STREAM[?subject=ads.*]")
    name = f"{parts.scheme}://{host}/{stream}"
    return NatsAddress(f"{parts.scheme}://{parts.netloc}", stream, subjects[0] if subjects else "", name)
