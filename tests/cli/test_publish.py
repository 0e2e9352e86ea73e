"""`ctrbox publish`, as a user types it."""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import typer

import ctrbox as cb
from ctrbox import _native, col
from ctrbox import publish as publishing
from ctrbox.cli import publish as command
from ctrbox.cli.main import app
from ctrbox.cli.terminal import Mistake
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


# ---- in the process of the test: every line, and the command that follows


@pytest.fixture
def files(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "argv", ["ctrbox"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    return here


COMMANDS = functools.cache(lambda: typer.main.get_command(app))


def called(*words: object) -> None:
    COMMANDS().main(["publish", *map(str, words)], prog_name="ctrbox", standalone_mode=False)


def test_a_weight_file_leads_to_a_patch_or_to_the_next_one(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, hint in (
        (("-o", "new.fbw"), "ctrbox publish pack NEWER_MODEL --base new.fbw -o newer.fbw"),
        (("-o", "my old.fbw"), "ctrbox publish pack NEWER_MODEL --base 'my old.fbw' -o new.fbw"),
        (("-o", "b.fbw", "--base", "my old.fbw"), "ctrbox publish diff 'my old.fbw' b.fbw -o update.patch"),
        (("-o", "b.fbw", "--base", "b.fbw"), "ctrbox publish pack NEWER_MODEL --base b.fbw -o new.fbw"),
    ):
        called("pack", "new.ffm", *words)
        size = Path(words[1]).stat().st_size
        said = capsys.readouterr()
        assert (said.out, said.err) == ("", f"wrote {size:,} bytes of deep_ffm weights to {words[1]}\nnext: {hint}\n")
    called("pack", "new.ffm", "-o", "c.fbw", "--json")
    found = json.loads(capsys.readouterr().out)
    quantized = found.pop("quantized_bytes")
    assert found == {"kind": "deep_ffm", "bytes": Path("c.fbw").stat().st_size, "output": "c.fbw"}
    assert 0 < quantized < found["bytes"]
    called("pack", "new.ffm", "-o", "c.fbw", "--no-quantize", "--json")
    assert json.loads(capsys.readouterr().out)["quantized_bytes"] == 0
    called("diff", "my old.fbw", "b.fbw", "-o", "my.patch")
    size, whole = Path("my.patch").stat().st_size, Path("b.fbw").stat().st_size
    assert capsys.readouterr().err.splitlines() == [
        f"wrote {size:,} bytes ({100 * size / whole:.2f} % of b.fbw) to my.patch",
        "next: ctrbox publish apply 'my old.fbw' my.patch -o again.fbw",
    ]
    called("apply", "my old.fbw", "my.patch", "-o", "again.fbw")
    told = [f"wrote {whole:,} bytes to again.fbw", "next: ctrbox publish verify again.fbw"]
    assert capsys.readouterr().err.splitlines() == told


def test_the_versions_of_a_folder_are_told_in_columns(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called("push", "out", "old.ffm", "--note", "after lunch")
    called("push", "out", "new.ffm")
    called("rollback", "out", "1")
    said = capsys.readouterr()
    folder = publishing.Published("out")
    one, two, three = folder.log()
    patches = [f", a patch of {v.patch_bytes:,}" if v.number > 1 else "" for v in (one, two, three)]
    assert said.err.splitlines() == [
        line
        for v, patch in zip((one, two, three), patches, strict=True)
        for line in (f"version {v.number} of out is current: {v.bytes:,} bytes{patch}", "next: ctrbox publish log out")
    ]
    assert said.out == ""
    called("log", "out")
    said = capsys.readouterr()
    head = lambda v: f"{v.number:>8}  {v.time}  {v.bytes:>14,}  {v.patch_bytes:>12,}  {v.sha256[:12]}"
    assert said.out.splitlines() == [
        f"{head(one)}  deep_ffm          after lunch",
        f"{head(two)}  deep_ffm",
        f"{head(three)}  copy of version 1",
    ]
    columns = "columns: version, time, bytes, bytes of its patch, checksum, kind, note"
    assert said.err == f"version 3 is current; {columns}\n"
    called("log", "out", "--json")
    told = json.loads(capsys.readouterr().out)
    assert ([v["number"] for v in told["versions"]], told["signed"]) == ([1, 2, 3], None)
    called("rollback", "out", "2", "--json")
    assert json.loads(capsys.readouterr().out)["copy_of"] == 2


def test_keys_and_signatures_are_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography", reason="needs cryptography: pip install 'ctrbox[sign]'")
    called("keygen", "my.key")
    (key,) = publishing.Trust("my.key.pub").keys
    told = f"wrote the private key my.key and the public key my.key.pub, id {key}\n"
    assert capsys.readouterr() == ("", told + "next: ctrbox publish create model/ --sign-with my.key …\n")
    called("push", "out", "old.ffm")
    capsys.readouterr()
    called("sign", "out", "--sign-with", "my.key")
    claimed = publishing.Published("out").claimed()
    assert claimed is not None
    first = f"signed version 1 of out as the model {claimed['model']}\n"
    assert capsys.readouterr() == ("", first + "next: ctrbox publish log out\n")
    called("sign", "out", "--sign-with", "my.key", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["number"], found["model"], found["kind"]) == (1, claimed["model"], "deep_ffm")
    called("log", "out")
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"signed as the model {claimed['model']} by the key {key}",
        "next: ctrbox publish verify out --public-key FILE",
    ]
    called("verify", "out", "--public-key", "my.key.pub")
    assert capsys.readouterr().err == "every checksum matches, and every folder is signed\n"
    only = "is a file, but only folders of published versions have signatures; remove this path, or remove --public-key"
    with pytest.raises(Mistake, match=r"^1 of the checked files is damaged or missing$"):
        called("verify", "old.ffm", "--public-key", "my.key.pub")
    assert capsys.readouterr().err == f"old.ffm {only}\n"
    called("keygen", "other.key")
    capsys.readouterr()
    with pytest.raises(Mistake, match=r"^1 of the checked files is damaged or missing$"):
        called("verify", "out", "--public-key", "other.key.pub", "--json")
    said = capsys.readouterr()
    damaged = json.loads(said.out)["damaged"]
    assert said.err.splitlines() == damaged
    assert damaged[0].startswith(f"out is signed by the key {key}, which is not trusted here")
    assert command.checking(None) == ""
    assert command.checking(Path("my own.key")) == " --public-key 'my own.key.pub'"


def test_what_is_checked_is_known_by_its_contents(files: Path) -> None:
    called("pack", "old.ffm", "-o", "old.fbw")
    called("pack", "new.ffm", "-o", "new.fbw")
    called("diff", "old.fbw", "new.fbw", "-o", "p")
    assert command.wrong_with("old.fbw", []) == command.wrong_with("p", []) == []
    for name in ("old.fbw", "p"):
        damaged = bytearray(Path(name).read_bytes())
        damaged[-1] ^= 1
        Path(name).write_bytes(damaged)
    (weights,), (patch,) = command.wrong_with("old.fbw", []), command.wrong_with("p", [])
    assert weights.startswith("cannot read old.fbw: it is damaged: the checksum of part ")
    assert patch.startswith("p is damaged or truncated, because its checksum does not match")
    assert command.wrong_with("none", []) == ["cannot read none: No such file or directory"]
    Path("empty").mkdir()
    assert command.wrong_with("empty", []) == ["empty holds no published version"]


JOB = """\
class Plan:
    batches = None
plan = Plan()
context = ["user"]
engine = 7
"""


def test_a_new_folder_is_told_with_the_command_that_serves_it(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def made(folder: str, plan: Any, model: Any, **options: Any) -> Any:
        asked.append((folder, model, options))
        return SimpleNamespace(context=options["context"])

    monkeypatch.setattr("ctrbox.serve.model_folder.create", made)
    run = SimpleNamespace(plan="plan", model=[])
    monkeypatch.setattr(command, "load_run", lambda model, job, **more: run)
    Path("job.py").write_text(JOB)
    (files / "run").mkdir()
    (files / "run" / "config.json").touch()
    called("push", "published", "new.ffm")
    capsys.readouterr()
    for words, served, told, facts in (
        (
            ("--model", "run", "--context", "user,, ad"),
            "model",
            "the list model of run",
            {"context": ["user", "ad"], "model": "list"},
        ),
        (
            ("--model", "run", "--context", "", "--job", "job.py"),
            "model --job job.py",
            "the list model of run",
            {"context": [], "model": "list"},
        ),
        (
            ("--model", "new.ffm", "--job", "job.py"),
            "model",
            "a model that learned from 80 examples",
            {"context": ["user"], "fields": ["a", "b"], "learned": 80},
        ),
        (
            ("--model", "published", "--job", "job.py", "--context", ""),
            "model",
            "a model that learned from 80 examples",
            {"context": [], "fields": ["a", "b"], "learned": 80},
        ),
    ):
        for more, key, checks in (
            ((), None, ""),
            (("--sign-with", "my key", "--json"), Path("my key"), " --public-key 'my key.pub'"),
        ):
            called("create", "model", *words, *more)
            said = capsys.readouterr()
            assert said.err.splitlines() == [
                f"created model with version 1 of {told}",
                f"next: ctrbox serve {served}{checks}",
            ]
            assert said.out == (json.dumps({"folder": "model", **facts}) + "\n" if more else "")
            folder, model, given = asked.pop()
            assert (folder, given["note"], given["sign_with"]) == ("model", "", key)
            assert (list(given["context"]), model is run) == (facts["context"], "run" in words)


def test_a_plan_for_libctrbox_is_one_of_a_deep_ffm(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[Any] = []
    model = SimpleNamespace(kind="deep_ffm", context=("user",), plan=lambda views, allow_views: (views, allow_views))

    def saved(plan: Any, output: Path, context: Any) -> None:
        opened.append((plan, context))
        output.write_bytes(bytes(1234))

    monkeypatch.setattr("ctrbox.serve.ModelFolder.open", lambda folder, trust: opened.append(trust) or model)
    monkeypatch.setattr("ctrbox.serve.save_request_plan", saved)
    called("request-plan", "model", "-o", "my.ctr", "--view", "ads=tomorrow/ads")
    assert capsys.readouterr().err.splitlines() == [
        "wrote 1,234 bytes to my.ctr",
        "next: make -C examples/c request, then: examples/c/request my.ctr WEIGHTS < requests.jsonl",
    ]
    assert opened == [None, (({"ads": "tomorrow/ads"}, ()), ("user",))]
    called("request-plan", "model", "-o", "my.ctr", "--allow-views", "/data", "--json")
    assert json.loads(capsys.readouterr().out) == {"output": "my.ctr", "bytes": 1234, "context": ["user"]}
    assert opened[3] == (({}, ["/data"]), ("user",))
    model.kind = "click_model"
    with pytest.raises(
        Mistake, match=r"^model does not contain a Deep FFM, and libctrbox can score no other model; name the folder of"
    ):
        called("request-plan", "model", "-o", "other.ctr")
    assert not Path("other.ctr").exists()
