"""Files from an HTTP server: what is asked for, and how each lie of the server ends."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctrbox.errors import PlanError
from ctrbox.files import http_files
from ctrbox.files.http_files import HttpBody, HttpFiles, NoSuchRange, Pace, TooLarge
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


def test_three_redirects_are_followed_and_a_fourth_is_not(server: Web) -> None:
    for number in (4, 3, 2, 1):
        target = "/a%20b/file%231.bin" if number == 1 else f"/a%20b/step{number - 1}"
        server.lies[f"/step{number}"] = lies.redirected(target)
    assert read(server, "/step3") == CONTENTS
    assert [path for path, _ in server.asked] == ["/a b/step3", "/a b/step2", "/a b/step1", "/a b/file#1.bin"]
    with pytest.raises(OSError, match=r"^the server redirected more than 3 times$"):
        read(server, "/step4")


def test_a_server_that_hangs_up_is_told_as_it_is(server: Web) -> None:
    server.lies["file#1.bin"] = lambda handler, contents: None
    with pytest.raises(OSError, match="Remote end closed connection without response"):
        read(server)


def test_bytes_before_the_offset_are_passed_over_in_parts(server: Web, tmp_path: Path) -> None:
    (tmp_path / "a b" / "large").write_bytes(b"x" * (1 << 20) + CONTENTS)
    server.ranges = False
    assert read(server, "/large", offset=(1 << 20) + 10) == CONTENTS[10:]


def redirect(url: str, location: str | None, target: str = "/x/file") -> str:
    headers = {} if location is None else {"Location": location}
    return HttpFiles(url)._redirected(target, SimpleNamespace(status=302, headers=headers))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "location", "target"),
    [
        ("http://h/x", "other", "/x/other"),
        ("http://h/x", "/y?a=b c", "/y?a=b%20c"),
        ("http://h/x", "http://h/y", "/y"),
        ("http://[::1]:5/x", "http://[::1]:5/y%20z", "/y%20z"),
        ("https://h:8443/x", "//h:8443/y", "/y"),
        ("http://h/x", None, "/x/file"),
    ],
)
def test_a_redirect_leads_to_a_path_of_the_same_server(url: str, location: str | None, target: str) -> None:
    assert redirect(url, location) == target


@pytest.mark.parametrize(
    ("url", "location", "here"),
    [
        ("http://h/x", "https://h/y", "http://h"),
        ("https://h/x", "https://other/y", "https://h"),
        ("http://h:80/x", "http://h:81/y", "http://h:80"),
        ("http://[::1]:5/x", "http://[::2]:5/y", "http://[::1]:5"),
        ("http://h/x", "http://u@h/y", "http://h"),
        ("http://h/x", "http://h:port/y", "http://h"),
    ],
)
def test_a_redirect_elsewhere_is_refused(url: str, location: str, here: str) -> None:
    with pytest.raises(OSError) as caught:
        redirect(url, location)
    assert str(caught.value) == (
        f"status 302 redirects to another server, but only redirects within {here} are followed"
    )


class Answer:
    """An answer of a server, as the client of Python gives it."""

    def __init__(
        self, status: int, body: bytes = b"", reason: str = "OK", chunked: bool = False, **headers: str
    ) -> None:
        self.status, self.reason, self.chunked = status, reason, chunked
        self.headers = {"Content-Length": str(len(body)), **{name.replace("_", "-"): v for name, v in headers.items()}}
        self.body = io.BytesIO(body)

    def read1(self, size: int) -> bytes:
        return self.body.read(min(size, 3))


def body(answer: Answer, offset: int = 0, most: int = 10) -> HttpBody:
    return HttpBody(None, answer, offset, most)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "offset", "kind", "told"),
    [
        (Answer(404), 0, FileNotFoundError, "status 404"),
        (Answer(410), 0, FileNotFoundError, "status 410"),
        (
            Answer(416),
            1234,
            NoSuchRange,
            "the file ends at byte 1,234 or earlier, so there is nothing to read from there",
        ),
        (Answer(416, reason="x" * 90), 0, OSError, f"status 416 {'x' * 80!r}"),
        (Answer(204, reason="No"), 0, OSError, "status 204 'No'"),
        (
            Answer(200, Content_Encoding="GZIP"),
            0,
            OSError,
            "the answer is compressed, although the request did not allow that",
        ),
        (
            Answer(200, b"1", chunked=True),
            0,
            OSError,
            "the answer has the Content-Length '1'; expected the length of the answer in bytes, and no chunked encoding",
        ),
        (
            Answer(200, Content_Length="-1"),
            0,
            OSError,
            "the answer has the Content-Length '-1'; expected the length of the answer in bytes, and no chunked encoding",
        ),
        (
            Answer(206, b"1", Content_Range="bytes 3-4/5"),
            1234,
            OSError,
            "the request asked for the bytes from 1,234 on, but the answer contains other bytes",
        ),
        (
            Answer(206, b"1"),
            3,
            OSError,
            "the request asked for the bytes from 3 on, but the answer contains other bytes",
        ),
        (Answer(200, b"12345678901"), 0, TooLarge, "the answer has 11 bytes; expected at most 10"),
        (
            Answer(206, b"1234", Content_Range="bytes 7-10/*"),
            7,
            TooLarge,
            "the answer has 11 bytes; expected at most 10",
        ),
        (
            Answer(200, b"1234"),
            5,
            NoSuchRange,
            "the file ends at byte 4, but the request asked for the bytes from 5 on",
        ),
    ],
)
def test_an_answer_without_the_bytes_is_told_by_its_head(
    answer: Answer, offset: int, kind: type[OSError], told: str
) -> None:
    with pytest.raises(kind) as caught:
        body(answer, offset)
    assert (type(caught.value), str(caught.value)) == (kind, told)


def test_an_answer_is_read_to_its_end_and_not_beyond() -> None:
    for answer, offset in (
        (Answer(200, b"0123456789"), 0),
        (Answer(200, b"0123456789", Content_Encoding="Identity"), 0),
        (Answer(206, b"456789", Content_Range="bytes 4-9/10"), 4),
        (Answer(200, b"0123456789"), 4),
    ):
        found, rest = body(answer, offset), b"0123456789"[offset:]
        assert found.read(0) == found.read_some(0) == b""
        assert found.read_some(2) == rest[:2]
        assert found.read(100) == rest[2:]
        assert found.read(1) == found.read_some(1) == b""
    cut = Answer(200, b"0123")
    cut.headers["Content-Length"] = "7"
    found = body(cut)
    assert (found.read_some(3), found.read_some(3)) == (b"012", b"3")
    with pytest.raises(OSError, match=r"^the connection was closed 3 bytes before the end of the file$"):
        found.read(1)


def test_an_answer_has_more_time_the_more_of_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(http_files, "time", clock)
    pace = Pace(40_000)
    assert pace.left() == http_files.REQUEST_TIMEOUT_S
    clock.now = 107.0
    assert pace.left() == 3.0
    pace.add(2 * http_files.LEAST_RATE)
    assert pace.left() == 5.0
    clock.now = 111.5
    assert pace.left() == 0.5
    for now, seconds in ((112.0, 12), (200.0, 100)):
        clock.now = now
        with pytest.raises(TimeoutError, match=rf"^only 32,768 bytes arrived in {seconds} s$"):
            pace.left()
    pace.add(40_000 - 32_768)
    with pytest.raises(OSError, match=r"^the answer is longer than expected: 40,001 bytes arrived$"):
        pace.add(1)


def test_only_folders_on_web_servers_have_such_a_url() -> None:
    for url in ("ftp://host/folder", "file:///folder", "host/folder"):
        with pytest.raises(PlanError, match=r"is not the URL of a folder; expected https://host/folder, in ASCII"):
            HttpFiles(url)
    found = HttpFiles("http://HOST:8080/a/b//")
    assert (found.scheme, found.host, found.port, found.base) == ("http", "host", 8080, "/a/b")
    assert HttpFiles("https://host").port is None
