"""Files from an HTTP server: what is asked for, and how each lie of the server ends."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ctrbox.errors import PlanError
from ctrbox.files import http_files
from ctrbox.files.http_files import HttpFiles, NoSuchRange, Pace
from tests.files import web as lies
from tests.files.web import Web, web

CONTENTS = bytes(range(256)) * 40
CERTIFICATES = Path(__file__).parents[1] / "serve" / "certificates"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "file#1.bin").write_bytes(CONTENTS)
    with web(tmp_path) as found:
        yield found


def read(server: Web, path: str = "/file#1.bin", **options: Any) -> bytes:
    with HttpFiles(f"{server.url}/a%20b/").open_input_stream(path, **options) as file:
        return file.read(len(CONTENTS) + 1)


def test_files_and_ranges_are_read(server: Web) -> None:
    assert read(server) == CONTENTS
    assert read(server, most=len(CONTENTS)) == CONTENTS
    assert read(server, offset=1000) == CONTENTS[1000:]
    assert server.asked == [("/a b/file#1.bin", "")] * 2 + [("/a b/file#1.bin", "bytes=1000-")]
    with pytest.raises(NoSuchRange):
        read(server, offset=len(CONTENTS))
    server.ranges = False
    assert read(server, offset=1000) == CONTENTS[1000:]  # the whole file came
    with pytest.raises(NoSuchRange):
        read(server, offset=len(CONTENTS) + 1)
    with pytest.raises(FileNotFoundError):
        read(server, "/none")


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (lies.endless_heads, "the answer is longer than expected"),
        (lies.endless, "has the Content-Length 'none'; expected the length of the answer"),
        (lies.endless_chunks, "expected the length of the answer in bytes, and no chunked encoding"),
        (lies.other(b"x" * (len(CONTENTS) + 1)), "has 10,241 bytes; expected at most 10,240"),
        (lies.silent, "timed out"),
        (lies.compressed, "compressed, although the request did not allow that"),
        (lies.no_http, "the answer is not HTTP"),
        (lies.wrong_range, "the request asked for the bytes from 0 on, but the answer contains other bytes"),
        (lies.status(403), "status 403"),
        (lies.status(500), "status 500"),
        (lies.too_long, "expected at most 10,240"),
        (lies.too_short, "the connection was closed 5,120 bytes before the end of the file"),
        (lies.redirected("https://localhost:1/a%20b/file"), "redirects to another server"),
        (lies.redirected("//example.org/a"), "redirects to another server"),
        (lies.redirected("http://user@localhost/a"), "redirects to another server"),
        (lies.redirected("file:///etc/passwd"), "redirects to another server"),
        (lies.redirected("http://[::1/"), "redirects to another server"),
        (lies.redirected("file%231.bin"), "the server redirected more than 3 times"),
    ],
)
def test_an_answer_that_is_not_the_file_is_an_error(
    server: Web, lie: Callable[[Any, bytes], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_files, "REQUEST_TIMEOUT_S", 0.3)
    server.lies["file#1.bin"] = lie
    with pytest.raises(OSError, match=told):
        read(server, most=len(CONTENTS))


def test_a_slow_answer_ends_however_often_a_byte_comes(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_files, "GRACE_S", 0.4)
    server.lies["file#1.bin"] = lies.slow
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"only [0-9]+ bytes arrived in|timed out"):
        read(server)
    assert time.monotonic() - began < 5
    pace = Pace(10)
    pace.began -= 1e6
    pace.received = 10
    with pytest.raises(TimeoutError):
        pace.left()


def test_a_redirect_within_the_server_is_followed(server: Web) -> None:
    server.lies["/moved"] = lies.redirected("/a%20b/file%231.bin")
    assert read(server, "/moved", offset=10) == CONTENTS[10:]


def test_a_server_that_is_not_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        HttpFiles(f"http://127.0.0.1:{port}").open_input_stream("/a")


def test_the_certificate_of_the_server_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"text")
    with web(tmp_path, CERTIFICATES / "one.pem") as server:
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            HttpFiles(server.url).open_input_stream("/file")
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "one.pem"))
        with HttpFiles(server.url).open_input_stream("/file", offset=1) as file:
            assert file.read(10) == b"ext"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://user:secret@host/model", "a URL must not contain a user name or a password"),
        ("https://host:99999/model", "has no valid port"),
        ("https://host:port/model", "has no valid port"),
        ("https:///model", "is not the URL of a folder"),
        ("https://host/model?x=1", "is not the URL of a folder"),
        ("https://host/model#x", "is not the URL of a folder"),
        ("https://höst/model", "is not the URL of a folder"),
        ("https://host/a b", "contains a space"),
        ("https://host/a\r\nHost:x", "."),
    ],
)
def test_urls_that_are_none_are_refused(url: str, told: str) -> None:
    with pytest.raises(PlanError, match=told) as met:
        HttpFiles(url)
    assert "secret" not in str(met.value)


def test_a_way_on_which_nobody_can_change_anything() -> None:
    for url, private in (
        ("https://host", True),
        ("http://localhost:80", True),
        ("http://127.0.0.9/x", True),
        ("http://[::1]/", True),
        ("http://host", False),
        ("http://localhost.example.org", False),
        ("http://10.0.0.1", False),
    ):
        assert HttpFiles(url).private == private
