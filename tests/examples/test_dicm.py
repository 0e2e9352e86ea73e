"""The commands of the DICM example, as its file gives them: from JPEG files and raw logs to a server that takes unseen images."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.files.sealed_json import read_sealed
from tests.cli.warm import run_command
from tests.serve.running import running

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "dicm"
NEW = 10**9  # no ad has this id


def commands() -> list[list[str]]:
    """Return the commands in the head of dicm.py, without the words beside them."""
    head = re.sub(r" \\\n *", " ", (EXAMPLE / "dicm.py").read_text().split('"""')[1])
    lines = [line.strip() for line in head.splitlines() if line.startswith("    ")]
    assert len(lines) == 9
    return [shlex.split(re.split(" {3,}", line)[0]) for line in lines]


def done(words: list[str], folder: Path) -> str:
    given = [str(EXAMPLE / word) if word.endswith(".py") else word for word in words]
    env = {**os.environ, "CTRBOX_ROWS": "1500", "CTRBOX_DATA": "data"}
    if given[0] == "python":
        found = subprocess.run([sys.executable, *given[1:]], cwd=folder, env=env, capture_output=True, text=True)
    else:
        found = run_command(given[1:], cwd=folder, env=env)
    assert found.returncode == 0, f"{words}: {found.stderr}"
    return found.stdout + found.stderr


@pytest.mark.slow
def test_the_commands_lead_from_images_and_logs_to_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow, with which images are decoded, is not installed")
    *steps, serving = commands()
    for words in steps:
        done(words, tmp_path)
    images = sorted((tmp_path / "data" / "images").glob("*.jpg"))
    vectors = cb.tables.VectorFile(tmp_path / "data" / "images.ctrvec")
    assert len(vectors) == len(images)
    assert vectors.encoder is not None
    assert vectors.encoder.name == "palette-1"
    for name, kind in (("first", None), ("second", "partial")):
        config = read_sealed(tmp_path / "runs" / name / "config.json", "run folder")
        assert '"common": ["behavior"]' in json.dumps(config)
        assert ("--warm-up" in config["command"]) == (kind is not None)
        assert {"--adaptive-l2", "--decay"} <= set(config["command"])
    ads = pq.read_table(tmp_path / "data" / "ads").num_rows
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CTRBOX_DATA", "data")
    options = [str(EXAMPLE / word) if word.endswith(".py") else word for word in serving[3:]]
    with running(Path(serving[2]), *options) as server:
        last = pq.read_table(tmp_path / "data" / "impressions").slice(1499, 1).to_pylist()[0]
        known = int(images[0].stem)
        body = {
            "context": {"user_id": last["user_id"], "ts": last["ts"].isoformat(), "device": last["device"]},
            "candidates": [{"ad_id": ad, "position": 1} for ad in (known, NEW)],
        }
        image = {"image": base64.b64encode(images[1].read_bytes()).decode()}
        blind, seen = (
            server.score(json.dumps(one).encode()).json()["scores"]
            for one in (body, {**body, "objects": {"ad_image": {str(NEW): image}}})
        )
        assert blind[0] == seen[0]
        assert blind[1] != seen[1]
        assert server.gauge("ctrbox_objects_encoded_total") == 1
        asked = {"context": {"user_id": last["user_id"]}, "k": ads}
        best = httpx.post(f"{server.url}/v1/prerank", json=asked, timeout=30).json()
        assert len(best["candidates"]["ad_id"]) == ads
        assert best["scores"] == sorted(best["scores"], reverse=True)
