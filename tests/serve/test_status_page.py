"""The page at /, in a real browser."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import orjson
import pyarrow as pa
import pytest

from ctrbox.columns.raw_values import RawColumn
from ctrbox.serve import try_form
from tests.serve.running import Running, listening, running
from tests.serve.test_scoring import body_of
from tests.serve.worlds import CONTEXT, World

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def rendered(url: str, place: Path) -> str:
    """The page's elements after a few seconds of its time."""
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={place}"]
    command += ["--virtual-time-budget=3500", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


def words(page: str, key: str) -> str:
    found = re.search(rf'id="{key}"[^>]*>([^<]*)<', page)
    assert found, key
    return found[1]


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine: the page is not seen by a browser")
def test_the_page_shows_what_happens(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(world.folder, folder)
    windows = [[30_000 * (k + 1), 0.4 - 0.01 * k, 0.6 + 0.02 * k, 0.41] for k in range(6)]  # as the loop writes them
    learning = {"examples": 180_000, "loss": 0.35, "auc": 0.7012, "constant": 0.41, "windows": windows}
    calibration = {"predicted": 0.11, "clicked": 0.1}
    (folder / "online.json").write_text(json.dumps({**learning, "calibration": calibration, "published_at": 0}))
    body = orjson.dumps(body_of(world.rows(0, 10)))
    with running(folder, "--name", "ads <b>") as server:
        for _ in range(20):
            assert server.score(body).status_code == 200
        page = rendered(f"{server.url}/", tmp_path / "profile")
        (folder / "online.json").write_text("{broken")
        broken = rendered(f"{server.url}/", tmp_path / "profile")
    assert int(re.search(r'data-ticks="(\d+)"', page)[1]) >= 2  # type: ignore[index]
    assert words(page, "version") == "1"
    assert words(page, "hits") == "95.0 %"
    assert words(page, "patch") == "none yet"
    assert words(page, "auc") == "0.7012"
    assert words(page, "calibration") == "1.100"
    assert words(page, "p50").endswith(" ms")
    assert "ads &lt;b&gt;" in page
    for chart in ("requests", "latency", "aucs", "losses"):
        drawn = re.search(rf'<svg[^>]*id="{chart}".*?</svg>', page, re.DOTALL)
        assert drawn
        assert re.search(r'<path d="M[\d.]+ [\d.]+(L|M|")', drawn[0])
    assert words(page, "state").startswith("up ")
    assert 'id="learning" hidden' in broken
    assert words(broken, "auc") == "–"


# ---- the form


def fields_of(page: str) -> dict[str, tuple[str, str, str]]:
    """The part, the type in words and the example of each field."""
    found = re.findall(
        r'<input name="(\w+)" value="([^"]*)" data-part="(\w+)" data-kind="\w+" data-words="([^"]*)"', page
    )
    return {name: (part, unescape(words), unescape(value)) for name, value, part, words in found}


def test_the_form_has_a_field_for_every_column_with_its_type_and_an_example(world: World) -> None:
    with listening(world.folder) as server:
        page = httpx.get(f"http://127.0.0.1:{server.port}/", timeout=30).text
        described = httpx.get(f"http://127.0.0.1:{server.port}/openapi.json", timeout=30).json()
    fields = fields_of(page)
    assert {name for name, (part, _, _) in fields.items() if part == "context"} == set(CONTEXT)
    assert {name for name, (part, _, _) in fields.items() if part == "candidates"} == {"ad_id", "position"}
    assert fields["user_id"] == ("context", "whole number", "1")
    assert fields["query"] == ("context", "text", "text")
    assert fields["ts"][1] == "time, such as 2026-11-15T12:00:00, or microseconds since 1970"
    example = described["paths"]["/v1/score"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert {name: fields[name][2] for name in example["context"]} == {n: str(v) for n, v in example["context"].items()}


def test_the_types_of_lists_and_truth_values_are_told_in_words() -> None:
    def words(kind: pa.DataType) -> str:
        return try_form.described(RawColumn(pa.field("x", kind)))

    assert words(pa.list_(pa.string())) == 'list of texts, such as ["text"]'
    assert words(pa.list_(pa.int64())) == "list of whole numbers, such as [1]"
    assert words(pa.bool_()) == "true or false"
    assert words(pa.float32()) == "number"


@contextlib.contextmanager
def page_that_is_submitted(server: Running, change: str) -> Iterator[str]:
    """The same page and routes at another address, with a script that changes a field and presses the button."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = httpx.get(server.url + self.path, timeout=30)
            body = found.content
            if self.path == "/":
                submit = f"<script>{change}; document.getElementById('try').requestSubmit();</script></body>"
                body = body.replace(b"</body>", submit.encode())
            self.answer(found, body)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found = httpx.post(server.url + self.path, content=body, timeout=30)
            self.answer(found, found.content)

        def answer(self, found: httpx.Response, body: bytes) -> None:
            self.send_response(found.status_code)
            for name in ("content-type", "content-security-policy"):
                if name in found.headers:
                    self.send_header(name, found.headers[name])
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}/"
    finally:
        proxy.shutdown()
        proxy.server_close()


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine: the form is not filled in by a browser")
def test_the_button_sends_what_was_typed_and_shows_the_score(world: World, tmp_path: Path) -> None:
    def typed(name: str, value: str) -> str:
        return f"document.querySelector('input[name={name}]').value = {json.dumps(value)}"

    large = 2**62 + 1  # more bits than a browser's numbers hold
    with running(world.folder) as server:
        with page_that_is_submitted(
            server, typed("user_id", str(large)) + ";" + typed("query", "it's 5\" long")
        ) as url:
            page = rendered(url, tmp_path / "profile")
        with page_that_is_submitted(server, typed("user_id", "five")) as url:
            wrong = rendered(url, tmp_path / "profile")
        with page_that_is_submitted(server, typed("ts", "yesterday")) as url:
            refused = rendered(url, tmp_path / "profile")
        sent = unescape(words(page, "curl")).partition(" -d ")[2]
        body = shlex.split(sent)[0].encode()
        score = server.score(body).json()["scores"][0]
    assert orjson.loads(body)["context"] | {"ts": ""} == {
        "ts": "",
        "user_id": large,
        "query": "it's 5\" long",
        "device": "text",
        "context": "text",
    }
    assert words(page, "scored") == f"click probability {score:#.5g} (model version 1)"
    assert words(wrong, "scored") == "user_id: expected whole number, got five"
    assert "ts" in words(refused, "scored")
    assert 'id="scored" class="bad"' in refused
