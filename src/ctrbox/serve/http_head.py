"""Parses the head of an HTTP/1.1 request strictly: it refuses whatever two servers could understand differently.

    POST /v1/score HTTP/1.1 CRLF
    Host: 127.0.0.1:8000 CRLF
    Content-Length: 52 CRLF
    CRLF

Lines end with CR LF. One empty line before the request line is ignored (RFC 9112, section 2.2; `wire` does it), a second one is
an error. A field is a name, a colon and one line of printable text; a folded line, a bare LF, a space before the
colon or a control character is an error. The fields that decide where a request goes or ends may come once. So a proxy before
this server and the server itself always agree on where one request ends and the next one begins (RFC 9112, sections 6 and 11).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ctrbox.serve.refused_request import Refused

Headers = dict[bytes, bytes]

HEAD_BYTES = 16 << 10  # the request line and all fields together
MOST_FIELDS = 100
END = b"\r\n\r\n"
LINE = re.compile(rb"([A-Z][A-Z-]{0,19}) ([!-~]+) HTTP/1\.([01])\r\n")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)\r\n")
ABSOLUTE = re.compile(rb"https?://([^/?#]+)([^?#]*)")
BARE_NEWLINE = re.compile(rb"(?<!\r)\n")
# Fields of which a second one could contradict the first.
ONCE = frozenset(
    [
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"expect",
        b"host",
        b"inference-header-content-length",
        b"origin",
        b"transfer-encoding",
    ]
)


class Head(NamedTuple):
    method: str
    path: str
    headers: Headers
    length: int  # bytes of the body, where it is not chunked
    chunked: bool
    last: bool  # the connection ends with the answer


def check_partial(text: bytearray, begin: int) -> None:
    """Refuse an incomplete head that cannot become valid, without waiting for its end.

    The bytes before ``begin`` were checked already.
    """
    if not 65 <= text[0] <= 90 or BARE_NEWLINE.search(text, max(0, begin - 1)):
        raise no_http()
    if len(text) > HEAD_BYTES:
        raise too_long()
    if b"\r\n" in text and LINE.match(text) is None:
        raise no_http()


def read_head(text: bytes) -> Head:
    """Parse a head, including the empty line at its end."""
    if len(text) > HEAD_BYTES:
        raise too_long()
    line = LINE.match(text)
    if line is None:
        raise no_http()
    method, target, minor = line.groups()
    headers: Headers = {}
    at, end, fields = line.end(), len(text) - 2, 0
    while at < end:
        field = FIELD.match(text, at)
        if field is None:
            told = text[at : at + 40].decode("latin-1")
            raise Refused(400, f"a line of the request header is not a valid HTTP/1.1 header field: {told!r}")
        name, value = field.groups()
        name = name.lower()
        if name in ONCE and name in headers:
            raise Refused(400, f"the request has the header {name.decode()} more than once; send it once")
        headers[name] = value.strip(b" \t")
        at, fields = field.end(), fields + 1
    if fields > MOST_FIELDS:
        raise too_long()
    http10 = minor == b"0"
    if not http10 and not headers.get(b"host"):
        raise Refused(400, "an HTTP/1.1 request must have exactly one Host header")
    path = target.partition(b"?")[0]
    if target[:1] != b"/":
        path = path_of(target, method, headers)
    length, chunked = length_of(headers, http10)
    last = http10 or b"close" in headers.get(b"connection", b"").lower()
    return Head(method.decode(), path.decode("latin-1"), headers, length, chunked, last)


def path_of(target: bytes, method: bytes, headers: Headers) -> bytes:
    """Return the path of a target in absolute form. The authority in the target replaces the Host header."""
    if target == b"*" and method == b"OPTIONS":
        return target
    found = ABSOLUTE.match(target)
    if found is None or method == b"CONNECT":
        raise Refused(400, "the target of the request must be a path that begins with /")
    headers[b"host"] = found[1]
    return found[2] or b"/"


def length_of(headers: Headers, http10: bool) -> tuple[int, bool]:
    """Return the number of bytes of the body, and whether the body is sent in chunks instead."""
    coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    if coding is not None:
        if http10:
            raise Refused(400, "HTTP/1.0 does not support Transfer-Encoding; send Content-Length")
        if length is not None:
            raise Refused(400, "the request has both Content-Length and Transfer-Encoding; send one of them")
        if coding.lower() != b"chunked":
            raise Refused(
                501,
                f"the only Transfer-Encoding that this server accepts is chunked, got {coding[:60].decode('latin-1')!r}",
            )
        return 0, True
    if length is None:
        return 0, False
    if not length.isdigit():
        raise Refused(400, f"Content-Length must be a whole number, got {length[:40].decode('latin-1')!r}")
    return int(length[:20]), False


def no_http() -> Refused:
    return Refused(400, "the request does not begin with a line of HTTP/1.1 that ends with CR LF")


def too_long() -> Refused:
    return Refused(
        431, f"the request's head is larger than {HEAD_BYTES:,} bytes, or has more than {MOST_FIELDS} header fields"
    )
