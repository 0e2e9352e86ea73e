"""Parts of stored folders by themselves: manifests, names of files, what is fetched, uploaded and removed, and tries."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from ctrbox.errors import DataError, PlanError, SourceError, WriteError
from ctrbox.files import stored_folder
from ctrbox.files.filesystems import RETRY_PAUSES_S, Store
from ctrbox.files.folder_manifest import StoredFile, files_below, manifest_text, object_name, read_manifest
from ctrbox.files.sealed_json import sealed
from ctrbox.files.stored_folder import StoredFolder, link_or_copy
from tests.files.test_filesystems import Clock, Failing

HASH = "ab" * 32


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stored_folder, "time", made)
    return made


# ---- manifests


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("a", True),
        ("a/b.json", True),
        ("x" * 255, True),
        ("x" * 256, False),
        ("é" * 127, True),
        ("é" * 128, False),
        ("/".join(["x" * 127] * 8), True),  # 1,023 characters
        ("/".join(["x" * 128] * 8), False),  # 1,031
        ("a//b", False),
        ("../a", False),
        (".a", False),
        ("a/.b", False),
        ("", False),
        ("a\0b", False),
        ("\ud800", False),
    ],
)
def test_a_manifest_names_files_inside_the_folder(name: str, good: bool) -> None:
    held = {"bytes": 3, "sha256": HASH, "object": object_name("a", HASH)}
    text = sealed({"files": {name: held}}).encode()
    if good:
        assert read_manifest(text, "here") == {name: StoredFile(**held)}  # type: ignore[arg-type]
        return
    with pytest.raises(DataError, match=r"^here names a file .*; expected a path inside the folder"):
        read_manifest(text, "here")


@pytest.mark.parametrize(
    "changed",
    [
        {"bytes": -1},
        {"bytes": 1.5},
        {"sha256": HASH[:-1]},
        {"sha256": 5},
        {"object": "a"},
        {"object": f"a.{'cd' * 16}"},
        {"object": 5},
        {"more": 1},
    ],
)
def test_a_manifest_with_a_wrong_fact_is_refused(changed: dict[str, Any]) -> None:
    held = {"bytes": 0, "sha256": HASH, "object": object_name("a.json", HASH)}
    assert read_manifest(manifest_text({"a": StoredFile(**held)}), "here") == {"a": StoredFile(**held)}  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"^here is damaged: "):
        read_manifest(sealed({"files": {"a": {**held, **changed}}}).encode(), "here")
    with pytest.raises(DataError, match=r"^here is damaged: it does not list any files"):
        read_manifest(sealed({"files": []}).encode(), "here")


def test_an_object_is_named_after_its_file_and_its_contents() -> None:
    assert object_name("a/part-0.parquet", HASH) == f"part-0.{'ab' * 16}.parquet"
    assert object_name("state", HASH) == f"state.{'ab' * 16}"


def test_files_are_kept_but_for_locks_and_hidden_ones(tmp_path: Path) -> None:
    for name in ("b", "a/c", "LOCK", "a/LOCK", ".x", ".y/z", "a/.w"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [name for name, _ in files_below(tmp_path)] == ["a/c", "b"]
    (tmp_path / "link").symlink_to(tmp_path / "b")
    with pytest.raises(DataError, match=r"link is not a regular file, so it cannot be uploaded; remove it"):
        list(files_below(tmp_path))


# ---- a stored folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this machine behind s3://."""
    (tmp_path / "bucket/run/files").mkdir(parents=True)
    fs = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    store = Store(fs, "s3://", remote=True)
    monkeypatch.setattr(stored_folder, "open_store", lambda url: (store, url.removeprefix("s3://")))
    return tmp_path / "bucket/run"


def opened(url: str = "s3://bucket/run") -> StoredFolder:
    return StoredFolder(url, "a run folder")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("runs/a", r"^'runs/a' is not a URL; expected s3://bucket/folder"),
        ("s3://bucket/run?region=eu", r"has options after '\?', which a run folder must not have; set the endpoint"),
        ("s3://bucket/.run", r"^s3://bucket/\.run does not name a folder"),
        ("s3://bucket/a\0b", r"does not name a folder"),
        ("gs://bucket/run", r"^gs://bucket/run is a URL, but a run folder can only be on a local disk, on s3:// or"),
    ],
)
@pytest.mark.usefixtures("root")
def test_what_is_no_place_for_a_folder_is_refused(url: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        opened(url)


def test_what_a_folder_tells_of_itself(root: Path) -> None:
    folder = opened("s3://bucket/run/")
    assert (str(folder), folder.url, folder.inside, folder.path.name) == (*["s3://bucket/run"] * 2, "bucket/run", "run")
    assert not folder.exists
    assert not folder.refresh()
    with pytest.raises(
        SourceError, match=r"^there is no run folder at s3://bucket/run: _ctrbox_manifest\.json is missing"
    ):
        folder.need()
    (folder.path / "model").mkdir()
    (folder.path / "model/a.json").write_text("1")
    folder.push()
    assert folder.exists
    folder.need()
    assert not folder.refresh()
    assert [folder.holds(name) for name in ("model", "model/a.json", "mod", "model/a")] == [True, True, False, False]
    held = folder.files["model/a.json"]
    assert folder.shown("model/a.json") == f"s3://bucket/run/files/{held.object}"
    assert folder.shown("nothing") == "s3://bucket/run"
    assert (root / "files" / held.object).read_text() == "1"
    other = opened()
    assert other.files == folder.files
    (folder.path / "model/a.json").write_text("2")
    folder.push()
    assert other.refresh()


def test_a_pull_fetches_what_is_wanted_and_not_here_yet(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened()
    for name in ("a", "b", "c"):
        (first.path / name).write_text(name if name != "c" else "a")  # c has the contents of a
    first.push()
    assert len(list((root / "files").iterdir())) == 2
    fetched: list[str] = []
    order: list[str] = []
    fetch, replace = StoredFolder._fetch, Path.replace

    def counted(self: StoredFolder, name: str) -> Path:
        fetched.append(name)
        return fetch(self, name)

    def placed(self: Path, target: Any) -> Any:
        order.append(Path(target).name)
        return replace(self, target)

    monkeypatch.setattr(StoredFolder, "_fetch", counted)
    monkeypatch.setattr(Path, "replace", placed)
    second = opened()
    second.pull(lambda name: name != "b")
    assert (fetched, order) == (["a"], ["a", "c"])
    second.pull(last=["a"])
    assert (fetched, order) == (["a", "b"], ["a", "c", "b"])
    second.distrust()
    second.pull(last=["a"])
    assert order[3:] == ["b", "c", "a"]
    assert not list(second._incoming.iterdir())
    (first.path / "b").unlink()
    first.push()
    second.refresh()
    second.pull()
    assert sorted(p.name for p in second.path.iterdir()) == ["a", "c"]


@pytest.mark.parametrize("behind", [b"x", b"x" * 70_000])
def test_an_object_that_has_grown_is_refused(root: Path, behind: bytes) -> None:
    folder = opened()
    (folder.path / "a").write_text("contents")
    folder.push()
    with (root / "files" / folder.files["a"].object).open("ab") as file:
        file.write(behind)
    other = opened()
    with pytest.raises(DataError, match=r"s3://bucket/run/files/"):
        other.pull()
    assert not (other.path / "a").exists()


def test_a_push_without_changes_writes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = opened()
    folder.push()  # even an empty folder has a manifest
    assert folder.exists
    (folder.path / "a").write_text("1")
    folder.push()
    monkeypatch.setattr(StoredFolder, "_commit", lambda *given: pytest.fail("nothing has changed"))
    folder.push()
    (folder.path / "a").write_text("1")  # the same contents
    folder.push()


def test_a_manifest_too_large_is_refused_and_what_was_there_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = opened()
    (folder.path / "a").write_text("1")
    folder.push()
    before = (root / "_ctrbox_manifest.json").read_bytes()
    (folder.path / "b").write_text("2")
    size = len(manifest_text({**folder.files, "b": StoredFile(1, HASH, object_name("b", HASH))}))
    monkeypatch.setattr(stored_folder, "MOST_BYTES", size - 1)
    with pytest.raises(WriteError, match=r"^s3://bucket/run would have 2 files, more than one _ctrbox_manifest\.json"):
        folder.push()
    assert (root / "_ctrbox_manifest.json").read_bytes() == before
    monkeypatch.setattr(stored_folder, "MOST_BYTES", size)
    folder.push()
    assert set(opened().files) == {"a", "b"}


def test_left_over_objects_are_removed_once_and_foreign_ones_never(root: Path) -> None:
    stale = root / "files" / object_name("old.json", HASH)
    foreign = root / "files" / "notes.txt"
    stale.write_text("x")
    foreign.write_text("x")
    folder = opened()
    (folder.path / "a").write_text("1")
    folder.push()
    assert (stale.exists(), foreign.exists()) == (False, True)
    stale.write_text("x")
    (folder.path / "a").write_text("2")
    folder.push()
    assert stale.exists()
    assert len(list((root / "files").iterdir())) == 3


@pytest.mark.parametrize("times", [0, 2, 3])
def test_a_deed_is_tried_three_times(root: Path, clock: Clock, times: int) -> None:
    folder, failing = opened(), Failing(clock, times)
    if times < 3:
        assert folder._attempt("read it", SourceError, failing) == 7
    else:
        with pytest.raises(WriteError, match=r"^cannot write it: no answer$") as caught:
            folder._attempt("write it", WriteError, failing)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.EIO
    assert clock.slept == list(RETRY_PAUSES_S[:times])
    missing = Failing(clock, 1, error=FileNotFoundError("gone"))
    with pytest.raises(FileNotFoundError):
        folder._attempt("read it", SourceError, missing)
    assert missing.tries == 1


def test_a_folder_that_is_replaced_again_and_again_is_given_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = opened()
    (folder.path / "a").write_text("1")
    folder.push()
    reader = opened()
    (root / "files" / folder.files["a"].object).unlink()
    for changes, tries in ((True, stored_folder.TRIES), (False, 1)):
        asked: list[bool] = []
        monkeypatch.setattr(
            StoredFolder, "refresh", lambda self, asked=asked, changes=changes: asked.append(True) or changes
        )
        with pytest.raises(DataError, match=r"is missing; it holds 'a' of s3://bucket/run, which is damaged"):
            reader.pull()
        assert len(asked) == (tries - 1 if changes else 1)


def test_a_claim_leaves_no_trace_and_refuses_what_is_not_a_folder_of_ctrbox(root: Path) -> None:
    opened().claim()
    assert [p.name for p in root.iterdir()] == ["files"]
    (root / "_writable-0123").write_text("of a process that was killed")
    opened().claim()
    (root / "thesis.txt").write_text("x")
    with pytest.raises(
        DataError, match=r"^s3://bucket/run holds 'thesis\.txt' and no _ctrbox_manifest\.json, so it is"
    ):
        opened().claim()
    (root / "thesis.txt").unlink()
    folder = opened()
    folder.push()
    (root / "thesis.txt").write_text("x")
    folder.claim()  # it is one already


def test_a_link_is_made_only_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a"
    source.write_text("x")
    link_or_copy(source, tmp_path / "copy", link=False)
    link_or_copy(source, tmp_path / "link", link=True)
    assert (tmp_path / "link").samefile(source)
    assert not (tmp_path / "copy").samefile(source)
    assert (tmp_path / "copy").read_text() == "x"

    def refused(*given: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(stored_folder.os, "link", refused)
    link_or_copy(source, tmp_path / "other", link=True)
    assert not (tmp_path / "other").samefile(source)
    assert (tmp_path / "other").read_text() == "x"
