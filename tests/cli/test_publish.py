"""`ctrbox publish`, as a user types it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import _native, col
from tests.cli.test_cli import ctrbox


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "a.vw").write_text("1 |a x |b y\n-1 |a z |b y\n" * 20)
    engine = cb.DeepFFM(["a", "b"], bits=10)
    for name in ("old", "new"):
        engine.learn(cb.ffm.ExampleText(tmp_path / "a.vw"))
        engine.save(tmp_path / f"{name}.ffm")
    return tmp_path


def test_pack_diff_apply_verify(here: Path) -> None:
    first = ctrbox("publish", "pack", "old.ffm", "-o", "old.fbw", cwd=here)
    assert "next: ctrbox publish pack NEWER_MODEL --base old.fbw -o new.fbw\n" in first.stderr
    second = ctrbox("publish", "pack", "new.ffm", "-o", "new.fbw", "--base", "old.fbw", cwd=here)
    assert "next: ctrbox publish diff old.fbw new.fbw -o update.patch\n" in second.stderr
    began = time.perf_counter()
    told = json.loads(ctrbox("publish", "diff", "old.fbw", "new.fbw", "-o", "p", "--json", cwd=here).stdout)
    assert told["bytes"] == (here / "p").stat().st_size
    assert 0 < told["seconds"] < time.perf_counter() - began
    began = time.perf_counter()
    told = json.loads(ctrbox("publish", "apply", "old.fbw", "p", "-o", "again.fbw", "--json", cwd=here).stdout)
    assert 0 < told["seconds"] < time.perf_counter() - began
    assert (here / "again.fbw").read_bytes() == (here / "new.fbw").read_bytes()
    assert "every checksum matches" in ctrbox("publish", "verify", "again.fbw", "p", cwd=here).stderr
    wrong = ctrbox("publish", "apply", "new.fbw", "p", "-o", "no.fbw", cwd=here, check=1).stderr
    assert "applies to another file" in wrong
    assert len(wrong.strip().splitlines()) == 1
    assert not (here / "no.fbw").exists()


def test_push_log_rollback(here: Path) -> None:
    for name in ("old.ffm", "new.ffm"):
        ctrbox("publish", "push", "published", name, "--note", name, cwd=here)
    ctrbox("publish", "rollback", "published", "1", cwd=here)
    said = ctrbox("publish", "log", "published", cwd=here)
    assert [line.split()[0] for line in said.stdout.splitlines()] == ["1", "2", "3"]
    assert "copy of version 1" in said.stdout
    assert "version 3 is current" in said.stderr
    (here / "published" / "versions" / "00000003.fbw").write_bytes(b"x")
    assert "00000003.fbw is damaged" in ctrbox("publish", "verify", "published", cwd=here, check=1).stderr


def test_the_commands_make_keys_sign_and_check(here: Path) -> None:
    made = json.loads(ctrbox("publish", "keygen", "model.key", "--json", cwd=here).stdout)
    assert (made["private"], made["public"]) == ("model.key", "model.key.pub")
    assert "exists already and is not replaced" in ctrbox("publish", "keygen", "model.key", cwd=here, check=1).stderr
    ctrbox("publish", "push", "signed", "old.ffm", "--sign-with", "model.key", cwd=here)
    told = ctrbox("publish", "push", "signed", "new.ffm", cwd=here, check=1).stderr
    assert "the versions of signed are signed" in told
    ctrbox("publish", "rollback", "signed", "1", "--sign-with", "model.key", cwd=here)
    assert f"by the key {made['id']}" in ctrbox("publish", "log", "signed", cwd=here).stderr
    told = ctrbox("publish", "verify", "signed", "--public-key", "model.key.pub", cwd=here).stderr
    assert "every checksum matches, and every folder is signed" in told
    (here / "signed" / "serve.json").write_text("{}")
    told = ctrbox("publish", "sign", "signed", "--sign-with", "model.key", cwd=here, check=1).stderr
    assert "its versions are in signed/weights" in told


def test_the_plan_of_a_published_model_is_written_for_libctrbox(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "user": [7, 8], "ad": [1, 2], "clicked": [0, 1]})
    sparse = {"user": col("user").key(), "ad": col("ad").key()}
    plan = cb.compile(cb.View(table, key="id"), cb.FeatureSet(label=col("clicked"), sparse=sparse), device="cpu")
    engine = cb.DeepFFM(plan.schema, bits=8)
    cb.serve.create(tmp_path / "model", plan, engine, context=["user"])
    told = ctrbox("publish", "request-plan", "model", "-o", "request.ctr", "--json", cwd=tmp_path)
    assert json.loads(told.stdout) == {
        "output": "request.ctr",
        "bytes": (tmp_path / "request.ctr").stat().st_size,
        "context": ["user"],
    }
    read = _native.RequestPlan.read(str(tmp_path / "request.ctr"))
    assert read.fingerprint == plan.fingerprint
    wrong = ctrbox("publish", "request-plan", "none", "-o", "other.ctr", cwd=tmp_path, check=1).stderr
    assert "there is no model folder none" in wrong
    assert not (tmp_path / "other.ctr").exists()
