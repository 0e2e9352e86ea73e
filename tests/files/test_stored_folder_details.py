"""Parts of stored folders by themselves: manifests, names of files, what is fetched, uploaded and removed, and tries."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.fs as pafs
import pytest

from ctrbox.errors import DataError, PlanError, SourceError, WriteError
from ctrbox.files import stored_folder
from ctrbox.files.filesystems import RETRY_PAUSES_S, Store
from ctrbox.files.folder_manifest import StoredFile, files_below, manifest_text, object_name, read_manifest
from ctrbox.files.sealed_json import sealed
from ctrbox.files.stored_folder import OtherContents, StoredFolder, link_or_copy
from tests.files.test_filesystems import Clock, Failing
from tests.files.web import web

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


# ---- downloads that go wrong


def uploaded(**files: str) -> StoredFolder:
    folder = opened()
    for name, text in files.items():
        (folder.path / name).write_text(text)
    folder.push()
    return folder


@pytest.mark.usefixtures("root")
def test_a_file_is_expected_to_be_one_of_that_size_and_checksum() -> None:
    folder = uploaded(a="1234")
    held = folder.files["a"]
    folder.expect("a", 4, held.sha256)
    folder.expect("none", 4, held.sha256)  # a pull reports it
    for size, sha256 in ((5, held.sha256), (4, HASH)):
        with pytest.raises(DataError) as caught:
            folder.expect("a", size, sha256)
        assert str(caught.value) == (
            f"a of s3://bucket/run is another file than expected: it has 4 bytes, expected {size} bytes and the checksum "
            f"{sha256[:12]}…"
        )


@pytest.mark.usefixtures("root")
def test_what_does_not_fit_on_the_disk_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded(a="12345", b="12345", c="6")
    reader = opened()
    free = [5]
    monkeypatch.setattr(stored_folder.shutil, "disk_usage", lambda path: SimpleNamespace(free=free[0]))
    with pytest.raises(WriteError) as caught:
        reader.pull()
    assert str(caught.value) == (
        f"s3://bucket/run has 6 bytes to download, and {reader.path.parent} has 5 bytes free; set TMPDIR to another disk"
    )
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    free[0] = 6  # a and b share an object
    reader.pull()
    assert sorted(path.name for path in reader.path.iterdir()) == ["a", "b", "c"]


def part_of(reader: StoredFolder, name: str) -> Path:
    """Return where a download of a file that broke off is kept."""
    return reader._incoming / f"{hashlib.sha256(reader.files[name].object.encode()).hexdigest()}.part"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("there", ["", "012", "0123456789", "xyz", "0123456789abc", "x123456789"])
def test_a_download_goes_on_where_the_last_one_broke_off(
    there: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uploaded(a="0123456789")
    reader = opened()
    part_of(reader, "a").write_text(there)
    asked: list[tuple[str, int, int]] = []
    open_, name = StoredFolder._open, reader.files["a"].object

    def noted(self: StoredFolder, path: str, offset: int, most: int) -> Any:
        asked.append((path, offset, most))
        return open_(self, path, offset, most)

    monkeypatch.setattr(StoredFolder, "_open", noted)
    with caplog.at_level("INFO", "ctrbox.files"):
        reader.pull()
    assert (reader.path / "a").read_text() == "0123456789"
    from_the_start = (f"bucket/run/files/{name}", 0, 10)
    assert (
        asked
        == {
            "": [from_the_start],
            "012": [(f"bucket/run/files/{name}", 3, 10)],
            "0123456789": [],
            "xyz": [(f"bucket/run/files/{name}", 3, 10), from_the_start],
            "0123456789abc": [],
            "x123456789": [from_the_start],
        }[there]
    )
    told = f"the download of {reader.shown('a')} continues at byte 3 of 10"
    assert caplog.messages == ([told] if len(there) == 3 else [])
    assert not list(reader._incoming.iterdir())


@pytest.mark.parametrize(
    ("contents", "told"),
    [
        ("01234", "it has 5 bytes, expected 10 bytes; it holds 'a' of s3://bucket/run"),
        ("0123456789ab", "it has more than 10 bytes, expected 10 bytes; it holds 'a' of s3://bucket/run"),
        ("x123456789", "its checksum is not that in _ctrbox_manifest.json; it holds 'a' of s3://bucket/run"),
    ],
)
def test_an_object_with_other_contents_is_damaged(root: Path, contents: str, told: str) -> None:
    folder = uploaded(a="0123456789")
    (root / "files" / folder.files["a"].object).write_text(contents)
    reader = opened()
    with pytest.raises(OtherContents) as caught:
        reader.pull()
    assert str(caught.value) == f"{folder.shown('a')} is damaged: {told}"
    assert not list(reader._incoming.iterdir())


def test_only_segments_of_tables_are_linked_to_what_was_downloaded(root: Path) -> None:
    folder = opened()
    for name in ("t.ctrtable/a.seg", "t.ctrtable/b.seg", "c", "d"):
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text("same")
    folder.push()
    assert len(list((root / "files").iterdir())) == 1
    reader = opened()
    reader.pull()
    assert (reader.path / "t.ctrtable/a.seg").samefile(reader.path / "t.ctrtable/b.seg")
    assert not (reader.path / "c").samefile(reader.path / "d")
    assert not (reader.path / "c").samefile(reader.path / "t.ctrtable/a.seg")


def test_a_bucket_that_is_missing_is_an_error_of_writing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = uploaded(a="1")
    (folder.path / "a").write_text("2")
    missing = FileNotFoundError("no such bucket\nmore")
    monkeypatch.setattr(StoredFolder, "_attempt", lambda *given: (_ for _ in ()).throw(missing))
    for write in (folder.push, folder.claim):
        with pytest.raises(WriteError, match=r"^cannot write to s3://bucket/run: no such bucket$"):
            write()


# ---- a folder on an HTTP server


def test_a_folder_is_read_over_http_and_never_written(
    root: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    folder = uploaded(a="0123456789")
    name = folder.files["a"].object
    with web(root.parent) as server:
        reader = StoredFolder(f"{server.url}/run", "a model")
        assert (str(reader), reader.inside, reader.exists) == (f"{server.url}/run", "", True)
        part_of(reader, "a").write_text("0123")
        reader.pull()
        assert (reader.path / "a").read_text() == "0123456789"
        assert server.asked_for(name) == ["bytes=4-"]
        with pytest.raises(
            WriteError, match=r"/run is read over HTTP, so nothing can be written to it; publish to the folder"
        ):
            reader.claim()
        # The part that is there belongs to another object and has more bytes than the new one: the next try begins again.
        (root / "files" / name).write_text("012")
        reader.distrust()
        part_of(reader, "a").write_text("0123456")
        with pytest.raises(DataError, match=r"is damaged: it has 3 bytes, expected 10 bytes; it holds 'a'"):
            reader.pull()
        (root / "files" / name).write_text("0123456789abc")
        with pytest.raises(DataError, match=r"is damaged: it has more than 10 bytes, expected 10 bytes; it holds 'a'"):
            reader.pull()
        with pytest.raises(PlanError, match=r"^http: names neither a bucket nor a folder"):
            StoredFolder("http:///", "a model")
