"""The page at /, in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from tests.serve.running import running
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World

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
