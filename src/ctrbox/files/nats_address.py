"""Reads the address of a NATS JetStream stream: nats://user:password@host:4222/STREAM?subject=ads.*"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from ctrbox.errors import PlanError


class NatsAddress(NamedTuple):
    server: str  # with the password
    stream: str
    subject: str  # "": all
    name: str  # for people, without the password


def nats_address(url: str) -> NatsAddress:
    """Return the parts of an address; PlanError for one that is none."""
    parts = urlsplit(url)
    stream = parts.path.strip("/")
    try:
        host = f"{parts.hostname or ''}:{parts.port or 4222}"
    except ValueError as error:
        raise PlanError(f"{url!r} is not the address of a NATS server: {error}") from error
    asked = parse_qs(parts.query)
    unknown = sorted(set(asked) - {"subject"})
    if not parts.hostname or not stream or "/" in stream or unknown:
        why = f"{unknown[0]!r} is not an option" if unknown else "a server and a stream are needed"
        raise PlanError(f"{parts.scheme}://{host}{parts.path}: {why}; expected nats://host:4222/STREAM[?subject=ads.*]")
    name = f"{parts.scheme}://{host}/{stream}"
    return NatsAddress(f"{parts.scheme}://{parts.netloc}", stream, asked.get("subject", [""])[0], name)
