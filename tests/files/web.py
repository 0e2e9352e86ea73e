"""An HTTP server on loopback for tests: it shows a folder with ranges, and lies where a test asks for it."""

from __future__ import annotations

import contextlib
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


@dataclass
class Web:
    """The server. ``lies``: by the end of a path, what is done instead of answering; ``asked``: paths and ranges so far."""

    folder: Path
    port: int = 0
    scheme: str = "http"
    ranges: bool = True
    lies: dict[str, Callable[[Any, bytes], None]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def asked_for(self, end: str) -> list[str]:
        """Return the Range headers with which files whose path ends so were asked for."""
        return [wanted for path, wanted in self.asked if path.endswith(end)]


class Handler(BaseHTTPRequestHandler):
    web: Web

    def do_GET(self) -> None:
        path, wanted = unquote(self.path), self.headers.get("Range", "")
        self.web.asked.append((path, wanted))
        place = self.web.folder / path.lstrip("/")
        contents = place.read_bytes() if place.is_file() else None
        for end, lie in self.web.lies.items():
            if path.endswith(end):
                with contextlib.suppress(OSError):
                    lie(self, contents or b"")
                return
        if contents is None:
            self.send_error(404)
            return
        self.tell(contents)

    def tell(self, contents: bytes, *, length: int | None = None, sent: int | None = None) -> None:
        """Answer as told, honestly unless ``length`` or ``sent``, the bytes that really come, say otherwise."""
        met = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if self.web.ranges else None
        start = int(met[1]) if met else 0
        if met and start >= len(contents):
            self.send_error(416)
            return
        self.send_response(206 if met else 200)
        if met:
            self.send_header("Content-Range", f"bytes {start}-{len(contents) - 1}/{len(contents)}")
        self.send_header("Content-Length", str(len(contents) - start if length is None else length))
        self.end_headers()
        self.wfile.write(contents[start : None if sent is None else start + sent])

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def web(folder: Path, certificate: Path | None = None) -> Iterator[Web]:
    """Show a folder at a free port of this machine; ``certificate``: by TLS, with the key beside it."""
    made = Web(folder, scheme="http" if certificate is None else "https")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (Handler,), {"web": made}))
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# ---- lies


def endless(handler: Any, contents: bytes) -> None:
    """A body without an end, and without a length."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 65_536)


def endless_chunks(handler: Any, contents: bytes) -> None:
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"1\r\nx\r\n" * 10_000)


def endless_heads(handler: Any, contents: bytes) -> None:
    """Interim answers, of which http.client skips any number."""
    while True:
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def slow(handler: Any, contents: bytes) -> None:
    """A byte now and then."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(contents)))
    handler.end_headers()
    for byte in contents:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(0.05)


def silent(handler: Any, contents: bytes) -> None:
    time.sleep(3)


def compressed(handler: Any, contents: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()


def no_http(handler: Any, contents: bytes) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n")


def wrong_range(handler: Any, contents: bytes) -> None:
    handler.send_response(206)
    handler.send_header("Content-Range", "bytes 7-9/10")
    handler.send_header("Content-Length", "3")
    handler.end_headers()
    handler.wfile.write(b"abc")


def status(code: int) -> Callable[[Any, bytes], None]:
    return lambda handler, _: handler.send_error(code)


def too_long(handler: Any, contents: bytes) -> None:
    handler.tell(contents, length=1 << 50)


def too_short(handler: Any, contents: bytes) -> None:
    """Closed in the middle."""
    handler.tell(contents, sent=len(contents) // 2)


def redirected(where: str) -> Callable[[Any, bytes], None]:
    def lie(handler: Any, contents: bytes) -> None:
        handler.send_response(302)
        handler.send_header("Location", where)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return lie


def other(contents: bytes) -> Callable[[Any, bytes], None]:
    return lambda handler, _: handler.tell(contents)


def breaking(times: int) -> Callable[[Any, bytes], None]:
    """Close the connection after a third of what is left, so many times."""
    left = [times]

    def lie(handler: Any, contents: bytes) -> None:
        left[0] -= 1
        met = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        rest = len(contents) - (int(met[1]) if met else 0)
        handler.tell(contents, sent=rest // 3 if left[0] >= 0 else None)

    return lie
