"""`ctrbox serve` and `ctrbox publish create`: what is refused, and in which words. Serving itself is in tests/serve."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from ctrbox.arguments.sizes import bytes_within
from ctrbox.cli.job_file import Job
from ctrbox.cli.main import app
from ctrbox.cli.serve import encoders_of
from ctrbox.cli.terminal import Mistake
from ctrbox.datasets import adlog
from ctrbox.errors import CtrboxError
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.server import read_token

JOB = """\
import ctrbox as cb
from ctrbox import col

ads = cb.View("data/ads", key="ad_id").fill(category="none")
log = cb.View("data/impressions", key="instance_id").fill(query="").join(ads, on="ad_id")
sparse = {"user": col("user_id").key(), "ad": col("ad_id").key(), "category": col("category").key()}
plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse=sparse), device="cpu")
engine = cb.DeepFFM(plan.schema, k=2, bits=10)
engine.save("model.ffm")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("serve")
    adlog(rows=300, seed=1, out=made / "data", days=1)
    (made / "job.py").write_text(JOB)
    return made


@pytest.fixture(autouse=True)
def _here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["ctrbox"])
    monkeypatch.setattr(sys, "path", list(sys.path))


def ctrbox(*words: str) -> None:
    typer.main.get_command(app).main(list(words), prog_name="ctrbox", standalone_mode=False)


def test_a_saved_model_becomes_a_served_folder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Mistake, match=r"job\.py defines no `context`; list the .* --context user_id,query"):
        ctrbox("publish", "create", "model", "--job", "job.py")
    with pytest.raises(Mistake, match=r"model\.ffm is a file; .* ctrbox publish create model --model model\.ffm --job"):
        ctrbox("serve", "model.ffm")
    words = ("publish", "create", "model", "--model", "model.ffm", "--job", "job.py", "--context")
    with pytest.raises(CtrboxError, match=r"column 'user' is not in view .*nearest: 'user_id'"):
        ctrbox(*words, "user")
    assert not (place / "model").exists()
    ctrbox(*words, "user_id, query")
    assert "next: ctrbox serve model" in capsys.readouterr().err
    assert ModelFolder.open("model").context == ("user_id", "query")
    with pytest.raises(
        Mistake,
        match=r"model/weights holds only the versions of a model; pass the model folder above it: ctrbox serve model",
    ):
        ctrbox("serve", "model/weights")
    shutil.copytree("model/weights", "bare")
    with pytest.raises(Mistake, match="bare holds published versions but no plan"):
        ctrbox("serve", "bare")
    ctrbox("publish", "create", "again", "--model", "bare", "--job", "job.py", "--context", "user_id")
    assert ModelFolder.open("again").engine().fields == ["user", "ad", "category"]


def test_serving_from_elsewhere_names_the_option(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctrbox("publish", "create", str(tmp_path / "model"), "--job", "job.py", "--context", "user_id")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Mistake, match=r"view 'ads': .*; or pass other data: --view ads=PATH$"):
        ctrbox("serve", "model")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--max-body", "-1MB", "--max-body must be from 1 to 268,435,456 bytes, got '-1MB'"),
        ("--max-body", "0B", "--max-body must be from 1 to 268,435,456 bytes, got '0B'"),
        ("--max-body", "0", "--max-body 0 has no unit; expected a size such as '512MB'"),
        ("--max-body", "5", "--max-body 5 has no unit; expected a size such as '512MB'"),
        ("--cache", "5", "--cache 5 has no unit; expected a size such as '512MB'"),
        ("--max-body", "10GB", "--max-body must be from 1 to 268,435,456 bytes, got '10GB'"),
        ("--max-body", "much", "--max-body must be a size such as '512MB' or '2GB', got 'much'"),
        ("--cache", "-5KB", "--cache must be from 0 to"),
        (
            "--token-file",
            "/dev/zero",
            "the token file /dev/zero is a folder, a pipe or a device; expected a regular file",
        ),
    ],
)
def test_settings_out_of_range_are_refused(option: str, value: str, said: str) -> None:
    with pytest.raises((CtrboxError, Mistake), match=re.escape(said)):
        ctrbox("serve", "data", option, value)


def test_there_is_one_http_server() -> None:
    """Other servers behind ``--http`` did not keep the time limits that docs/serving/limits.md promises."""
    with pytest.raises(Exception, match=r"No such option: --http\b"):
        ctrbox("serve", "data", "--http", "uvicorn")


def test_a_token_file_is_a_small_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"a" * 10_000)
    for name, said in (("pipe", "a pipe or a device"), ("long", "larger than 8,192 bytes"), ("none", "No such file")):
        with pytest.raises(CtrboxError, match=said):
            read_token(tmp_path / name)
    (tmp_path / "fine").write_text(" secret\n")
    assert read_token(tmp_path / "fine") == "secret"


@pytest.mark.parametrize(
    ("size", "found"),
    [("0", 0), (" 00 ", 0), ("5B", 5), ("500M", 500 << 20), ("1.5kb", 1536), ("2GiB", 2 << 30), (7, 7)],
)
def test_sizes_have_units_of_1024_and_0_needs_none(size: str | int, found: int) -> None:
    assert bytes_within("--cache", size, 0, 1 << 50) == found


# ---- without a server


@pytest.mark.parametrize(
    ("words", "workers", "url", "told"),
    [
        ((), 1, "http://127.0.0.1:8000", "at http://127.0.0.1:8000; press"),
        ((), 2, "http://127.0.0.1:8000", "at http://127.0.0.1:8000 with 2 workers; press"),
        (
            ("--host", "::1", "--port", "9000", "--grpc-port", "9001", "--tls-cert", "cert.pem"),
            4,
            "https://[::1]:9000",
            "at https://[::1]:9000, gRPC at [::1]:9001 with 4 workers; press",
        ),
    ],
)
def test_a_server_that_is_ready_says_where(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    workers: int,
    url: str,
    told: str,
) -> None:
    asked: list[Any] = []
    service = SimpleNamespace(name="ads", served=SimpleNamespace(kind="deep_ffm", version=7))
    server = SimpleNamespace(service=service, workers=workers, run=lambda ready: ready())
    monkeypatch.setattr("ctrbox.serve.server.Server.open", lambda model, given: asked.append((model, given)) or server)
    for as_json in (False, True):
        ctrbox("serve", "data", *words, *(["--json"] if as_json else []))
        said = capsys.readouterr()
        assert said.err.splitlines() == [
            f"serving data version 7 {told} Ctrl-C to stop",
            f"next: curl {url}/openapi.json    or open {url}/ in a browser",
            "stopped; all requests that had been received were answered",
        ]
        facts = {"model": "ads", "kind": "deep_ffm", "version": 7, "url": url, "workers": workers}
        assert said.out == (json.dumps({**facts, "grpc": 9001 if words else None}) + "\n" if as_json else "")
    model, settings = asked[0]
    assert (model, settings.grpc_port, settings.workers) == ("data", 9001 if words else 0, None)


def test_what_is_asked_for_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    server = SimpleNamespace(run=lambda ready: None)
    monkeypatch.setattr("ctrbox.serve.server.Server.open", lambda model, given: asked.append(given) or server)
    words = "--cache 1KB --max-body 2KB --client-share 25 --view a=b --prerank-view c=d --server e=f --encoder g=h"
    words += " --table-memory 3KB --allow-views /x --allow-host y --public-key k"
    ctrbox("serve", "data", *words.split())
    ctrbox("serve", "data")
    ctrbox("serve", "data", "--allow-operators", "--cache", "0")
    first, usual, third = asked
    assert (first.limits.cache_bytes, first.limits.body_bytes, first.limits.client_share) == (1024, 2048, 0.25)
    assert (first.views, first.prerank_views, first.servers) == ({"a": "b"}, {"c": "d"}, {"e": "f"})
    assert (first.encoders, first.table_memory, first.allow_views) == ({"g": "h"}, 3072, ["/x"])
    assert (first.allow_hosts, first.public_keys, first.allow_operators) == (("y",), (Path("k"),), False)
    assert (usual.limits.cache_bytes, usual.limits.body_bytes, usual.limits.client_share) == (256 << 20, 1 << 20, 0.5)
    assert (usual.table_memory, usual.allow_views, usual.allow_hosts, usual.own_model) == (None, (), (), None)
    assert (third.allow_operators, third.limits.cache_bytes) == (True, 0)
    for option, most in (("--cache", 1 << 50), ("--table-memory", 1 << 50), ("--max-body", 256 << 20)):
        ctrbox("serve", "data", option, f"{most}B")
        with pytest.raises(CtrboxError, match=rf"^{option} must be from [01] to {most:,} bytes, got '{most + 1}B'$"):
            ctrbox("serve", "data", option, f"{most + 1}B")


def test_an_encoder_is_the_jobs_or_of_a_weight_file() -> None:
    own = Job(Path("job.py"), None, encoders={"image": "mine"})
    assert encoders_of(None, {"image": "w"}) == {"image": "w"}
    assert encoders_of(own, {"text": "w"}) == {"image": "mine", "text": "w"}
    assert own.encoders == {"image": "mine"}
    with pytest.raises(
        Mistake, match=r"^--encoder image=w: the job also defines an encoder for field 'image'; remove one of the two$"
    ):
        encoders_of(own, {"image": "w"})
