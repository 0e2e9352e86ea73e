"""Published models on a real HTTP server: opened, followed, downloads that break and go on, and a server that lies."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ctrbox.errors import CtrboxError, DataError, PlanError, SignatureError, SourceError, WriteError
from ctrbox.files import http_files, stored_folder
from ctrbox.files.folder_manifest import StoredFile, manifest_text, object_name
from ctrbox.publish import Published, Trust, keygen
from ctrbox.publish.versions import _facts
from ctrbox.serve.model_folder import create
from ctrbox.serve.server import Server, Settings
from tests.files import web as lies
from tests.files.web import Web, web
from tests.serve.test_reload import learner
from tests.serve.worlds import CONTEXT, World


@pytest.fixture(scope="module")
def made(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a signed model of two versions, which tests copy, and the key."""
    place = tmp_path_factory.mktemp("web")
    keygen(place / "key")
    model = create(place / "shown" / "model", world.plan, world.engine, context=CONTEXT, sign_with=place / "key")
    engine = learner(world)
    engine.learn(world.plan.batches(200, limit=200))
    model.published.publish(engine)
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stored_folder, "RETRY_PAUSES_S", (0.0, 0.0))
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def shown(place: Path) -> Iterator[Web]:
    with web(place / "shown") as server:
        yield server


def next_version(world: World, place: Path, rows: int = 300) -> Published:
    engine = learner(world)
    engine.learn(world.plan.batches(rows, limit=rows))
    published = Published(place / "shown" / "model" / "weights", sign_with=place / "key")
    published.publish(engine)
    return published


@pytest.mark.parametrize("signed", [True, False])
def test_a_server_opens_a_url_and_follows_it(world: World, place: Path, shown: Web, signed: bool) -> None:
    keys = [place / "key.pub"] if signed else []
    found = Server.open(f"{shown.url}/model", Settings(public_keys=keys, allow_views=[str(world.data)]))
    assert found.service.name == "model"
    assert found.service.served.version == 2
    reloader = found.reloader
    assert reloader is not None
    assert reloader.period == 5.0
    assert not reloader.look()
    assert not shown.asked_for(".patch")
    published = next_version(world, place)
    shown.asked.clear()
    assert reloader.look()
    assert found.service.served.version == 3
    assert reloader.copy.read_bytes() == published.file().read_bytes()
    # The pointer, the end of the list and one patch; no whole file and nothing of the model beside it.
    assert {path.rpartition("/")[2] for path, _ in shown.asked} == {"CURRENT", "log.jsonl", "00000003.patch"}
    assert all(wanted.startswith("bytes=") for wanted in shown.asked_for("log.jsonl"))
    shown.asked.clear()
    assert not reloader.look()
    assert {path for path, _ in shown.asked} == {"/model/weights/CURRENT"}
    # Away for two versions: by two patches; for many, when they have more bytes than the file, by the file.
    for rows in (400, 500):
        published = next_version(world, place, rows)
    assert reloader.look()
    metrics, log = found.service.metrics, published.log()
    assert metrics.last_reload["how"] == "2 patches"
    assert metrics.version_bytes == sum(v.patch_bytes for v in log[2:])
    while sum(v.patch_bytes for v in log[5:]) <= log[-1].bytes:
        published.rollback({5: 4, 6: 3}.get(len(log), len(log) - 1))  # never what the server has
        log = published.log()
    before = metrics.version_bytes
    assert reloader.look()
    assert metrics.last_reload["how"] == "whole file"
    assert metrics.version_bytes - before == log[-1].bytes
    text = found.service.prometheus()
    assert "ctrbox_versions_by_patches_total 2\nctrbox_versions_by_whole_file_total 1\n" in text.replace(
        "# TYPE ctrbox_versions_by_whole_file_total counter\n", ""
    )
    reloader.close()


@pytest.mark.parametrize("name", ["plan.ctr", "serve.json", "log.arrow"])
def test_a_file_that_was_changed_after_it_was_signed_is_called_so(place: Path, shown: Web, name: str) -> None:
    path = place / "shown" / "model" / name
    whole = path.read_bytes()
    for changed in (
        whole[:50] + bytes([whole[50] ^ 1]) + whole[51:],
        whole[:-1],
        whole + b"\0",
        whole + bytes(100_000),
    ):
        path.write_bytes(changed)
        for where in (place / "shown" / "model", f"{shown.url}/model"):
            with pytest.raises(
                SignatureError, match=f"was changed after it was signed.*{name}|{name} was changed after"
            ):
                Server.open(where, Settings(public_keys=[place / "key.pub"], allow_views=["*"]))
    path.unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        Server.open(f"{shown.url}/model", Settings(public_keys=[place / "key.pub"], allow_views=["*"]))


def test_a_folder_with_a_manifest_is_read_as_on_s3(place: Path, tmp_path: Path, shown: Web) -> None:
    files = {}
    for path in (place / "shown" / "model").rglob("*"):
        if path.is_file() and path.name != "LOCK":
            name, facts = path.relative_to(place / "shown" / "model").as_posix(), _facts(path)
            files[name] = StoredFile(*facts, object_name(name, facts[1]))
            (place / "shown" / "stored" / "files").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place / "shown" / "stored" / "files" / files[name].object)
    (place / "shown" / "stored" / "_ctrbox_manifest.json").write_bytes(manifest_text(files))
    for trust in (None, Trust([place / "key.pub"])):
        published = Published(f"{shown.url}/stored/weights", trust=trust)
        assert published.update(tmp_path / "copy.fbw").number == 2
        assert published.verify() == []
    found = Server.open(f"{shown.url}/stored", Settings(public_keys=[place / "key.pub"], allow_views=["*"]))
    assert found.service.served.version == 2
    assert found.reloader is not None
    found.reloader.close()


def test_published_versions_are_read_and_not_written(world: World, place: Path, shown: Web, tmp_path: Path) -> None:
    reader = Published(f"{shown.url}/model/weights", trust=Trust([place / "key.pub"]))
    assert [v.number for v in reader.log()] == [1, 2]
    assert reader.verify() == []
    path = place / "shown" / "model" / "weights" / "patches" / "00000002.patch"
    path.write_bytes(b"x" * path.stat().st_size)
    wrong = Published(f"{shown.url}/model/weights").verify()
    assert len(wrong) == 1
    assert "00000002.patch" in wrong[0]
    with pytest.raises(WriteError, match="is read over HTTP, so nothing can be written to it"):
        Published(f"{shown.url}/model/weights", sign_with=place / "key").publish(world.engine)
    with pytest.raises(PlanError, match=r"use http://localhost:[0-9]+/model/weights"):
        Published(f"{shown.url}/model")
    with pytest.raises(
        SourceError, match=r"there is no served model at http://localhost.*/none: the server has neither"
    ):
        Server.open(f"{shown.url}/none", Settings())
    for url in ("http://example.org/model", "http://10.1.2.3/model"):
        with pytest.raises(
            PlanError, match="is not encrypted, so anybody on the network path can change it; use https"
        ):
            Server.open(url, Settings())
    with pytest.raises(PlanError, match="can only be on a local disk, on s3:// or on hdfs://"):
        create(f"{shown.url}/new", world.plan, world.engine, context=CONTEXT)


def test_a_download_that_breaks_goes_on_where_it_stopped(
    place: Path, shown: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "versions/00000002.fbw"
    whole = (place / "shown" / "model" / "weights" / name).read_bytes()
    reader = Published(f"{shown.url}/model/weights")
    shown.lies[name] = lies.breaking(4)
    with pytest.raises(SourceError, match="the connection was closed"):
        reader.update(tmp_path / "copy.fbw")  # three tries, each of a third of the rest
    assert reader.update(tmp_path / "copy.fbw").number == 2
    assert (tmp_path / "copy.fbw").read_bytes() == whole
    starts = [int(wanted.removeprefix("bytes=").rstrip("-") or 0) for wanted in shown.asked_for(name)]
    assert len(starts) == 5
    assert starts == sorted(set(starts))
    # The first part came from another file, so the file is downloaded again from its beginning.
    first = [True]

    def another_half(handler: Any, contents: bytes) -> None:
        handler.tell(b"x" * len(contents) if first else contents, sent=len(contents) // 2 if first else None)
        if first:
            first.pop()

    shown.lies[name] = another_half
    again = Published(f"{shown.url}/model/weights")
    monkeypatch.setattr(stored_folder, "RETRY_PAUSES_S", ())
    with pytest.raises(SourceError, match="the connection was closed"):
        again.update(tmp_path / "again.fbw")
    assert again.update(tmp_path / "again.fbw").number == 2
    assert (tmp_path / "again.fbw").read_bytes() == whole


@pytest.mark.parametrize(
    "lie",
    [
        *(lies.endless, lies.endless_chunks, lies.endless_heads, lies.silent, lies.slow, lies.compressed, lies.no_http),
        *(lies.wrong_range, lies.status(403), lies.status(404), lies.status(500), lies.too_long, lies.too_short),
        *(lies.redirected("http://example.org/x"), lies.other(b"other"), lies.other(b"")),
    ],
)
@pytest.mark.parametrize("name", ["CURRENT", "log.jsonl", "00000003.patch"])
def test_a_server_goes_on_with_its_version_while_the_other_one_lies(
    world: World,
    following: tuple[Server, Web, Path],
    lie: Callable[[Any, bytes], None],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, shown = following
    monkeypatch.setattr(stored_folder, "RETRY_PAUSES_S", ())
    monkeypatch.setattr(http_files, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(http_files, "GRACE_S", 0.3)
    reloader = found.reloader
    assert reloader is not None
    version, refused = found.service.served.version, found.service.metrics.refused
    reloader._retry_at, reloader._told = 0.0, ""
    reloader.refused.clear()
    shown.lies = {name: lie}
    reloader.look_safely()
    shown.lies = {}
    assert found.service.served.version == version == 2
    assert found.service.metrics.refused == refused + 1
    assert "stale" in found.service.readiness()
    copies = [p for p in reloader.published.folder.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in copies) < 10_000_000
    assert reloader.served.version == 2


@pytest.fixture(scope="module")
def following(world: World, made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Web]]:
    """A server of version 2, while version 3 is published: each lie stands in its way."""
    place = tmp_path_factory.mktemp("following")
    shutil.copytree(made, place, dirs_exist_ok=True)
    with web(place / "shown") as shown:
        found = Server.open(
            f"{shown.url}/model", Settings(public_keys=[place / "key.pub"], allow_views=[str(world.data)])
        )
        next_version(world, place)
        yield found, shown
        reloader = found.reloader
        assert reloader is not None
        reloader.refused.clear()
        reloader._retry_at = 0.0
        assert reloader.look(), (
            found.service.metrics.last_refusal
        )  # and when the truth is told again, the version comes
        assert found.service.served.version == 3
        reloader.close()


def test_a_list_that_was_rewritten_is_read_from_its_beginning(
    world: World, place: Path, shown: Web, tmp_path: Path
) -> None:
    weights = place / "shown" / "model" / "weights"
    reader = Published(f"{shown.url}/model/weights")
    assert [v.number for v in reader.log()] == [1, 2]
    shutil.rmtree(weights)
    again = Published(weights, sign_with=place / "key")
    for note in ("one", "two", "three"):
        again.publish(world.engine, note=note)
    assert [v.note for v in reader.log()] == ["one", "two", "three"]
    trusting = Published(f"{shown.url}/model/weights", trust=Trust([place / "key.pub"]))
    assert trusting.log()[-1].number == 3
    (weights / "CURRENT").write_bytes(b'{"log_bytes": true}')
    with pytest.raises(DataError, match=r"CURRENT of .* is damaged, or does not belong to a published model"):
        reader.log()
    (weights / "CURRENT").unlink()
    with pytest.raises(CtrboxError, match="CURRENT is missing, although it was there before; publish the folder again"):
        reader.log()


def test_an_older_state_on_the_server_is_refused(world: World, place: Path, shown: Web) -> None:
    weights = place / "shown" / "model" / "weights"
    old = {name: (weights / name).read_bytes() for name in ("CURRENT", "log.jsonl")}
    next_version(world, place)
    trusting = Published(f"{shown.url}/model/weights", trust=Trust([place / "key.pub"]))
    assert trusting.log()[-1].number == 3
    for name, contents in old.items():
        (weights / name).write_bytes(contents)
    with pytest.raises(SignatureError, match="is version 2, older than version 3"):
        trusting.log()
