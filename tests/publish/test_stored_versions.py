"""Folders of versions at a URL: here `s3://` is a folder of this machine, so that all that `Published` does with it is quick."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import pytest

from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files import stored_folder
from ctrbox.files.filesystems import Store
from ctrbox.publish import Part, Published, Trust, Weights, keygen, stored_versions
from ctrbox.publish.stored_versions import StoredVersions
from ctrbox.publish.versions import Version

URL = "s3://bucket/ads"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder behind s3://bucket; every object may be written."""

    (tmp_path / "far/bucket").mkdir(parents=True)
    fs = pafs.SubTreeFileSystem(str(tmp_path / "far"), pafs.LocalFileSystem())

    def opened(url: str) -> tuple[Store, str]:
        inside = url.removeprefix("s3://")
        fs.create_dir(f"{inside}/files")  # an object store needs no folders
        return Store(fs, "s3://", remote=True), inside

    monkeypatch.setattr(stored_folder, "open_store", opened)
    return tmp_path / "far/bucket"


def weights(seed: int, size: int = 4000) -> Weights:
    floats = np.random.default_rng(0).random(size).astype(np.float32)
    floats[:3] = seed
    return Weights("test", {}, [Part.floats("w", floats)])


def held(url: str = URL) -> list[str]:
    return sorted(stored_folder.StoredFolder(url, "a folder").files)


def published(count: int, **options: Any) -> Published:
    made = Published(URL, **options)
    for seed in range(1, count + 1):
        made.publish(weights(seed), note=f"number {seed}", quantize=False)
    return made


def names(*versions: int, patches: int) -> list[str]:
    return [
        "CURRENT",
        "log.jsonl",
        *(f"patches/{number:08}.patch" for number in range(2, patches + 1)),
        *(f"versions/{number:08}.fbw" for number in versions),
    ]


@pytest.mark.usefixtures("bucket")
def test_a_folder_at_a_url_is_published_followed_and_rolled_back(tmp_path: Path) -> None:
    made, copy = Published(URL, keep=3), tmp_path / "copy.fbw"
    assert (made.shown, made.current, made.claimed()) == (URL, None, None)
    follower = Published(URL)
    for seed in (1, 2):
        made.publish(weights(seed), quantize=False)
        assert follower.updated(copy).version.number == seed
        assert copy.read_bytes() == made.file().read_bytes()
    assert [follower.updated(copy).how, Published(URL).updated(copy).bytes] == ["nothing", 0]
    assert held() == names(1, 2, patches=2)
    made.publish(weights(3), quantize=False)
    update = follower.updated(copy)
    assert (update.how, update.bytes) == ("patch", made.log()[2].patch_bytes)
    assert not (follower.folder / "versions" / "00000003.fbw").exists()  # the patch is enough
    assert made.rollback(2).number == 4
    assert held() == names(2, 3, 4, patches=4)
    with pytest.raises(DataError, match=f"^version 1 of {URL} is no longer kept; the folder still contains 2, 3, 4$"):
        Published(URL).file(1)
    assert Published(URL).copied(tmp_path / "old.fbw", 3).number == 3
    assert Published(URL).patch(4).name == "00000004.patch"
    assert follower.verify() == Published(URL).verify() == made.verify() == []
    assert follower.updated(copy, whole=True).how == "whole file"
    assert copy.read_bytes() == made.file(2).read_bytes()


def test_a_file_that_another_one_replaced_is_told_and_not_downloaded(bucket: Path) -> None:
    made = published(2)
    held = made.stored.stored.files["versions/00000002.fbw"]  # type: ignore[union-attr]
    place = bucket / "ads" / "files" / held.object
    other = bytearray(place.read_bytes())
    other[-1] ^= 1
    place.write_bytes(other)
    with pytest.raises(
        DataError, match=rf"{held.object} is damaged: its checksum is not that in _ctrbox_manifest.json"
    ):
        Published(URL).file()
    assert Published(URL).verify()[0].startswith(f"{URL}/files/{held.object} is damaged")
    version = made.log()[-1]
    versions = StoredVersions.open(URL)
    versions.refresh()
    for size, sha256 in ((version.bytes + 1, version.sha256), (version.bytes, "0" * 64)):
        with pytest.raises(DataError, match=r"^versions/00000002.fbw of s3://bucket/ads is another file than expected"):
            versions.fetch("versions/00000002.fbw", size, sha256)


@pytest.mark.usefixtures("bucket")
def test_a_push_that_breaks_leaves_the_version_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made = published(2)

    def broken(self: Any, files: Any, new: Any) -> None:
        raise OSError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(stored_folder.StoredFolder, "_commit", broken)
        with pytest.raises(OSError, match="the connection broke"):
            made.publish(weights(3), quantize=False)
    assert Published(URL).current == made.log()[-1]
    assert made.log()[-1].number == 2  # what was not uploaded is gone from the copy, too
    assert made.publish(weights(4), quantize=False).number == 3
    assert Published(URL).verify() == []


@pytest.mark.usefixtures("bucket")
def test_versions_at_a_url_are_signed(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="needs cryptography: pip install 'ctrbox[sign]'")
    key, other = (keygen(tmp_path / name) for name in ("key", "other"))
    made = published(2)
    assert Published(URL, sign_with=tmp_path / "key").sign().number == 2
    trusting = Published(URL, trust=Trust([key]))
    statement = trusting.statement()
    assert statement is not None
    assert (statement.version, trusting.claimed()) == (2, {"model": statement.model, "key": key.id})
    assert trusting.file().read_bytes() == made.file().read_bytes()
    assert trusting.verify() == []
    with pytest.raises(PlanError, match=f"^the versions of {URL} are signed, and its servers would refuse an unsigned"):
        published(1)
    with pytest.raises(
        PlanError, match=f"^signing {URL} needs the private key; give it: --sign-with KEY, or sign_with="
    ):
        Published(URL).sign()
    assert Published(URL, trust=Trust([other])).verify() == [
        f"{URL} is signed by the key {key.id}, which is not trusted here; trusted: {other.id}"
    ]
    with pytest.raises(SourceError, match=r"^s3://bucket/none holds no published version$"):
        Published("s3://bucket/none", sign_with=tmp_path / "key").sign()


# ---- inside the folder of a served model


def served(**files: str) -> None:
    model = stored_folder.StoredFolder("s3://bucket/model", "a served model")
    for name, text in files.items():
        place = model.path / name.replace("__", "/").replace("_", ".")
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    model.push()


def test_the_weights_of_a_served_model_are_found_inside_its_folder(bucket: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="needs cryptography: pip install 'ctrbox[sign]'")
    key = keygen(tmp_path / "key")
    served(serve_json="{}", plan_ctr="plan", notes_txt="")
    made = Published("s3://bucket/model/weights", sign_with=tmp_path / "key")
    assert (made.shown, made.folder.name) == ("s3://bucket/model/weights", "weights")
    made.serves(["user", "ad"], {"user": "int"})
    made.publish(weights(1), quantize=False)
    made.publish(weights(2), quantize=False)
    below = [f"weights/{name}" for name in ("CURRENT", "FEATURES", *names(1, 2, patches=2)[1:])]
    assert held("s3://bucket/model") == ["notes.txt", "plan.ctr", "serve.json", *below]
    again = Published("s3://bucket/model/weights", trust=Trust([key]))
    statement = again.statement()
    assert statement is not None
    assert sorted(statement.files) == ["plan.ctr", "serve.json"]  # those that a server loads with the versions
    assert again._features() == {"user": "int", "ad": ""}
    assert again.stored is not None
    assert again.stored.kept() == [1, 2]
    assert again.verify() == []
    assert (again.file().read_bytes(), again.patch(2).name) == (made.file().read_bytes(), "00000002.patch")
    model = stored_folder.StoredFolder("s3://bucket/model", "a served model")
    model.pull()
    (model.path / "plan.ctr").write_text("another plan")
    model.push()
    told = [f"plan.ctr beside {made.shown} changed after the signature"]
    assert Published(made.shown, trust=Trust([key])).verify() == told


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"serve_json": "{}", "weights__CURRENT": ""},
            r"^s3://bucket/model holds 'serve\.json' and no published version; use s3://bucket/model/weights$",
        ),
        (
            {"weights__CURRENT": ""},
            r"^s3://bucket/model holds 'weights/CURRENT' and no .*; use s3://bucket/model/weights$",
        ),
        ({"serve_json": "{}"}, r"^s3://bucket/model holds 'serve\.json' and no .*; use s3://bucket/model/weights$"),
        (
            {"b_txt": "", "a_txt": ""},
            r"^s3://bucket/model holds 'a\.txt' and no published version; choose another place$",
        ),
        ({"FEATURES": ""}, None),
        ({"CURRENT": ""}, None),
        ({}, None),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_a_folder_of_something_else_is_refused(files: dict[str, str], message: str | None) -> None:
    if files:
        served(**files)
    if message is None:
        assert StoredVersions.open("s3://bucket/model").below == ""
        return
    with pytest.raises(PlanError, match=message):
        StoredVersions.open("s3://bucket/model")


def test_a_folder_named_weights_needs_no_served_model_around_it(bucket: Path) -> None:
    closed: list[str] = []
    for around in ({}, {"notes_txt": ""}, {"serve_json": "{}"}):
        if around:
            served(**around)
        versions = StoredVersions.open("s3://bucket/model/weights")
        inside = "serve_json" in around
        closed.append(versions.stored.url)
        assert versions.below == ("weights/" if inside else "")
        assert versions.shown == "s3://bucket/model/weights"
    assert closed == ["s3://bucket/model/weights"] * 2 + ["s3://bucket/model"]
    versions = StoredVersions.open("s3://bucket/model/other")
    assert (versions.below, versions.stored.url) == ("", "s3://bucket/model/other")


@pytest.mark.usefixtures("bucket")
def test_small_files_have_a_most_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = published(1)
    sizes = {name: held.bytes for name, held in made.stored.stored.files.items()}  # type: ignore[union-attr]
    monkeypatch.setattr(stored_versions, "SMALL", {name: sizes[name] for name in ("CURRENT", "log.jsonl")})
    StoredVersions.open(URL).refresh()
    for name in ("CURRENT", "log.jsonl"):
        with monkeypatch.context() as patched:
            patched.setitem(stored_versions.SMALL, name, sizes[name] - 1)
            with pytest.raises(
                DataError,
                match=rf"^{name} of {URL} has {sizes[name]:,} bytes; expected at most {sizes[name] - 1:,}$",
            ):
                StoredVersions.open(URL).refresh()


@pytest.mark.usefixtures("bucket")
def test_the_commands_take_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    from ctrbox.cli import publish as publishing

    published(2)
    publishing.log(URL, as_json=True)
    told = [Version(**version).number for version in json.loads(capsys.readouterr().out)["versions"]]
    assert told == [1, 2]
    publishing.verify([URL])
    assert capsys.readouterr().err == "every checksum matches\n"
    served(serve_json="{}")
    assert [publishing.served(url) for url in (URL, "s3://bucket/model/")] == [
        "",
        "; its versions are in s3://bucket/model/weights",
    ]
