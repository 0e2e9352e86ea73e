"""Reads files from an HTTP server that is not trusted: every size, time and redirect is bounded.

Each file takes one GET request, with a Range header if a download resumes. The certificate of an https server is verified, and a
redirect is followed only within the same server, so that this process talks only to the server that the URL names. Never
more bytes are read than were requested: a longer answer is an error before it is stored, an endless one is cut off at the limit,
and a slow one after a time that grows with the bytes received. The caller compares the contents with a checksum.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable
from ipaddress import ip_address
from types import TracebackType
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from ctrbox.errors import PlanError
from ctrbox.files.urls import WEB

CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 5.0  # without a single byte
GRACE_S = 10.0  # for an answer of any size
LEAST_RATE = 16 << 10  # bytes a second on average, after the first GRACE_S
MOST_REDIRECTS = 3
ROOM = 128 << 10  # bytes of the head of an answer, with all interim ones
REDIRECTS = (301, 302, 303, 307, 308)
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_LENGTH = re.compile(r"\d{1,18}")


class NoSuchRange(OSError):
    """The server has no bytes at the place from which a download should resume."""


class TooLarge(OSError):
    """The file has more bytes than the caller takes."""


class HttpFiles:
    """The files below a URL. It has the one method of a pyarrow filesystem by which files are read."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise PlanError(
                "a URL must not contain a user name or a password, because URLs are written into logs; remove them"
            )
        try:
            port = parts.port
        except ValueError:
            raise PlanError(
                f"{url} has no valid port number; expected one from 1 to 65535, such as https://host:8443/folder"
            ) from None
        if parts.scheme not in WEB or not parts.hostname or parts.query or parts.fragment or not url.isascii():
            raise PlanError(
                f"{url!r} is not the URL of a folder; expected https://host/folder, in ASCII and without '?' and '#'"
            )
        if any(letter <= " " for letter in url):
            raise PlanError(f"{url!r} contains a space; write it as %20")
        self.scheme, self.host, self.port = parts.scheme, parts.hostname, port
        self.base = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None

    @property
    def private(self) -> bool:
        """Whether nobody on the network path can change what is read: by TLS, or because the server is on this machine."""
        if self.scheme == "https" or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def open_input_stream(
        self, path: str, *, compression: None = None, offset: int = 0, most: int | None = None
    ) -> HttpBody:
        """Request a file from ``offset`` on. Raise FileNotFoundError for status 404 or 410. ``most``: largest allowed size."""
        limit = 1 << 62 if most is None else most
        target = self.base + quote(path)
        for _ in range(MOST_REDIRECTS + 1):
            connection, answer = self._ask(target, offset, limit)
            try:
                if answer.status not in REDIRECTS:
                    return HttpBody(connection, answer, offset, limit)
                target = self._redirected(target, answer)
            except BaseException:
                connection.close()
                raise
            connection.close()
        raise OSError(f"the server redirected more than {MOST_REDIRECTS} times")

    def _ask(self, target: str, offset: int, limit: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        options: dict[str, Any] = {"timeout": CONNECT_TIMEOUT_S}
        if self._tls is not None:
            kind, options = http.client.HTTPSConnection, {**options, "context": self._tls}
        connection = kind(self.host, self.port, **options)
        pace = Pace(ROOM)
        # The answer is read through a file that keeps to the pace, from its first byte on.
        connection.response_class = lambda sock, **how: http.client.HTTPResponse(_Paced(sock, pace), **how)  # type: ignore
        headers = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "ctrbox"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        try:
            connection.request("GET", target, headers=headers)
            answer = connection.getresponse()
            pace.most += limit
            return connection, answer
        except BaseException as error:
            connection.close()
            if isinstance(error, http.client.HTTPException | ValueError) and not isinstance(error, OSError):
                raise OSError(f"the answer is not HTTP: {type(error).__name__}") from error
            raise

    def _redirected(self, target: str, answer: http.client.HTTPResponse) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        here = f"{self.scheme}://{host}{'' if self.port is None else f':{self.port}'}"
        try:
            there = urlsplit(urljoin(here + target, answer.headers.get("Location", "")))
            same = (there.scheme, there.hostname, there.port) == (self.scheme, self.host, self.port)
        except ValueError:
            same = False
        if not same or "@" in there.netloc:
            raise OSError(
                f"status {answer.status} redirects to another server, but only redirects within {here} are followed"
            )
        return quote(there.path, safe="/%~") + (f"?{quote(there.query, safe='=&%~')}" if there.query else "")


class HttpBody:
    """The bytes of a file from the requested place on. The caller must close it."""

    def __init__(
        self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, offset: int, most: int
    ) -> None:
        self._connection, self._answer = connection, answer
        status, headers = answer.status, answer.headers
        if status in (404, 410):
            raise FileNotFoundError(f"status {status}")
        if status == 416 and offset:
            raise NoSuchRange(f"the file ends at byte {offset:,} or earlier, so there is nothing to read from there")
        if status not in (200, 206):
            raise OSError(f"status {status} {answer.reason[:80]!r}")
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise OSError("the answer is compressed, although the request did not allow that")
        # Servers of files know the length. Chunks can be of a byte each, of which a file has many.
        length = headers.get("Content-Length", "none")
        if answer.chunked or not _LENGTH.fullmatch(length):
            raise OSError(
                f"the answer has the Content-Length {length[:40]!r}; expected the length of the answer in bytes, and "
                "no chunked encoding"
            )
        self._left = int(length)
        at = 0
        if status == 206:
            met = _RANGE.fullmatch(headers.get("Content-Range", ""))
            if met is None or int(met[1]) != offset:
                raise OSError(
                    f"the request asked for the bytes from {offset:,} on, but the answer contains other bytes"
                )
            at = offset
        if at + self._left > most:
            raise TooLarge(f"the answer has {at + self._left:,} bytes; expected at most {most:,}")
        while at < offset:  # a server without ranges sends the whole file
            if not (skipped := self.read(min(1 << 20, offset - at))):
                raise NoSuchRange(
                    f"the file ends at byte {at:,}, but the request asked for the bytes from {offset:,} on"
                )
            at += len(skipped)

    def __enter__(self) -> HttpBody:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._answer.close()
        self._connection.close()

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, or fewer at the end. Raise an OSError if the connection breaks before the end."""
        found = bytearray()
        while len(found) < size and (block := self.read_some(size - len(found))):
            found += block
        return bytes(found)

    def read_some(self, size: int) -> bytes:
        """Return the bytes that have arrived, at most ``size``; none at the end."""
        block = self._answer.read1(min(size, self._left, 1 << 20)) if self._left and size else b""
        if not block and self._left and size:
            raise OSError(f"the connection was closed {self._left:,} bytes before the end of the file")
        self._left -= len(block)
        return block


class Pace:
    """Limits of one answer: its size in bytes, and its time, which grows with the bytes received."""

    def __init__(self, most: int) -> None:
        self.began, self.received, self.most = time.monotonic(), 0, most

    def left(self) -> float:
        """Return the seconds within which the next byte must arrive. Raise a TimeoutError if the answer is too slow."""
        left = self.began + GRACE_S + self.received / LEAST_RATE - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"only {self.received:,} bytes arrived in {time.monotonic() - self.began:.0f} s")
        return min(left, REQUEST_TIMEOUT_S)

    def add(self, count: int) -> None:
        self.received += count
        if self.received > self.most:
            raise OSError(f"the answer is longer than expected: {self.received:,} bytes arrived")


class _Paced(io.RawIOBase):
    """A socket as the file from which an HTTP response reads, with the limits of `Pace`."""

    def __init__(self, sock: socket.socket, pace: Pace) -> None:
        self._sock, self._raw, self._pace = sock, sock.makefile("rb", buffering=0), pace

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, 1 << 16)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._pace.left()
        if self._sock.fileno() >= 0:  # closed by its connection, it stays open for this file
            self._sock.settimeout(left)
        count: int = self._raw.readinto(buffer) or 0  # type: ignore[attr-defined]
        self._pace.add(count)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
