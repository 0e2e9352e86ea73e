"""Tests which version of a file a view accepts: its store may tell the recorded size, another size, or no size."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ctrbox.errors import SourceError
from ctrbox.files import file_version
from ctrbox.files.file_version import FileVersion


class WithoutSizes(MemoryFileSystem):
    """A store that tells when a file was made, and not how long it is, as some web servers do."""

    cachable = False

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {**super().info(path, **options), "size": None}


@pytest.fixture(params=[MemoryFileSystem, WithoutSizes])
def store(request: pytest.FixtureRequest) -> MemoryFileSystem:
    made: MemoryFileSystem = request.param()
    return made


@pytest.mark.parametrize("size", [None, 5, 9])
def test_a_file_is_read_if_it_has_the_size_of_its_listing_or_one_is_not_known(
    store: MemoryFileSystem, size: int | None
) -> None:
    path = f"/{uuid.uuid4()}"
    store.pipe_file(path, b"12345")
    version = FileVersion(pafs.PyFileSystem(pafs.FSSpecHandler(store)), path, "the log", size)
    assert version.facts == ()
    if size == 9 and not isinstance(store, WithoutSizes):
        with pytest.raises(SourceError, match=r"the log changed .*: it had 9 bytes and has 5 bytes now"):
            version.open()
        return
    with version.reading() as raw:
        assert raw.read() == b"12345"
    assert "created" in dict(version.facts)
    store.rm(path)
    store.pipe_file(path, b"54321")
    with pytest.raises(SourceError, match="the log changed after it was opened for reading"):
        version.check()


# ---- what a store tells, and what is made of it


class Told:
    """An opened file of a store that tells something about it."""

    def __init__(self, facts: dict[str, bytes], size: int = 7) -> None:
        self.facts, self.length = facts, size

    def metadata(self) -> dict[str, bytes]:
        return self.facts

    def size(self) -> int:
        return self.length


def test_an_opened_file_is_recognized_by_what_its_store_tells() -> None:
    told = Told({"ETag": b"abc", "Content-Length": b"5", "Content-Type": b"text", "Version-Id": b"\xff"})
    assert file_version._told(told) == (("content-length", "5"), ("etag", "abc"), ("version-id", "\ufffd"))  # type: ignore[arg-type]
    assert file_version._told(Told({"Content-Type": b"text"})) == (("size", "7"),)  # type: ignore[arg-type]
    facts = {"Size": 5, "mtime": 1.5, "name": "a", "created": None, "INO": 3}
    assert file_version._telling(facts.items()) == (("ino", "3"), ("mtime", "1.5"), ("size", "5"))


class Plain(pafs.FileSystemHandler):  # type: ignore[misc]
    """Files in memory as a filesystem of Arrow that is neither fsspec nor one of the clouds."""

    def __init__(self, files: dict[str, bytes], mtime: int | None = 3) -> None:
        self.files, self.mtime = files, mtime

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [
            pafs.FileInfo(path, pafs.FileType.File, size=len(self.files[path]), mtime_ns=self.mtime)
            if path in self.files
            else pafs.FileInfo(path, pafs.FileType.NotFound)
            for path in paths
        ]

    def open_input_file(self, path: str) -> Any:
        return pa.BufferReader(self.files[path])

    def get_type_name(self) -> str:
        return "plain"

    def unused(self, *given: Any) -> Any:
        raise NotImplementedError

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_file = delete_root_dir_contents = unused
    get_file_info_selector = move = normalize_path = open_append_stream = open_input_stream = open_output_stream = (
        unused
    )


def test_other_stores_are_asked_for_size_and_time() -> None:
    handler = Plain({"a": b"12345"})
    fs = pafs.PyFileSystem(handler)
    assert file_version._asked(fs, "a") == (("size", "5"), ("mtime_ns", "3"))
    with pytest.raises(FileNotFoundError, match=r"^b$"):
        file_version._asked(fs, "b")
    handler.mtime = None
    assert file_version._asked(fs, "a") == (("size", "5"), ("mtime_ns", "0"))
    version = FileVersion(fs, "a", size=5)
    assert (version.shown, version.local, version.facts, version.etag) == ("a", False, (), None)
    with version.reading() as raw:
        assert raw.read() == b"12345"
    handler.mtime = 10**9
    with pytest.raises(
        SourceError,
        match=r"^a changed after it was opened for reading: it was written to; its modification time was "
        r"1970-01-01T00:00:00\.000\+00:00 and is 1970-01-01T00:00:01\.000\+00:00 now\. Reading on would mix",
    ):
        version.check()


class S3FileSystem(pafs.PyFileSystem):  # type: ignore[misc]
    """A filesystem by the name of one whose files must be opened to tell their version."""


def test_files_of_a_cloud_are_opened_to_be_asked() -> None:
    handler = Plain({"a": b"12345"})
    fs = S3FileSystem(handler)
    assert file_version._asked(fs, "a") == ()
    version = FileVersion(fs, "a", size=5)
    with version.reading() as raw:
        assert raw.read() == b"12345"
    assert version.facts == (("size", "5"),)
    handler.files["a"] = b"123456"
    with pytest.raises(SourceError, match=r"a changed after .*: it had 5 bytes and has 6 bytes now"):
        version.check()


@pytest.mark.parametrize(
    ("known", "facts", "told"),
    [
        ({"size": "1234"}, {"size": "5"}, "it had 1,234 bytes and has 5 bytes now"),
        (
            {"content-length": "4", "etag": "a"},
            {"content-length": "5", "etag": "b"},
            "it had 4 bytes and has 5 bytes now",
        ),
        ({"size": "5", "etag": "a"}, {"size": "5", "etag": "b"}, "its etag was a and is b now"),
        ({"size": "5", "etag": "a"}, {"size": "5"}, "its etag was a and is missing now"),
        ({"size": "5", "etag": "a"}, {"etag": "b"}, "its size was 5 and is missing now"),
        (
            {"device": "1", "inode": "2"},
            {"device": "1", "inode": "3"},
            "another file of the same size was put in its place",
        ),
        (
            {"device": "1", "inode": "2"},
            {"device": "2", "inode": "2"},
            "another file of the same size was put in its place",
        ),
        ({"size": "5"}, {"size": "5", "etag": "b"}, "the store describes it differently now"),
    ],
)
def test_what_changed_is_told(known: dict[str, str], facts: dict[str, str], told: str) -> None:
    version = FileVersion(pafs.PyFileSystem(Plain({})), "a")
    assert version._difference(tuple(known.items()), tuple(facts.items())) == told


@pytest.mark.parametrize(
    ("size", "facts", "taken"),
    [
        (None, {"size": "5"}, True),
        (5, {}, True),
        (5, {"size": "5"}, True),
        (5, {"content-length": "5"}, True),
        (5, {"size": "6"}, False),
        (5, {"content-length": "6", "etag": "a"}, False),
    ],
)
def test_the_first_version_that_is_met_has_the_size_of_the_listing(
    size: int | None, facts: dict[str, str], taken: bool
) -> None:
    version = FileVersion(pafs.PyFileSystem(Plain({})), "a", "the log", size)
    if taken:
        version._compare(tuple(facts.items()))
        assert version.facts == tuple(facts.items())
        return
    with pytest.raises(SourceError, match=r"^the log changed after it was opened for reading: it"):
        version._compare(tuple(facts.items()))


@pytest.mark.parametrize("name", ["etag", "e_tag", "generation", "md5"])
def test_a_checksum_of_the_store_is_its_etag_or_generation(name: str) -> None:
    version = FileVersion(pafs.PyFileSystem(Plain({})), "a")
    version._compare((("size", "5"), (name, "abc")))
    assert version.etag == (None if name == "md5" else "abc")


def test_a_folder_of_a_folder_is_unwrapped(tmp_path: Path) -> None:
    (tmp_path / "x" / "y").mkdir(parents=True)
    (tmp_path / "x" / "y" / "a").write_text("1")
    inner = pafs.SubTreeFileSystem(str(tmp_path / "x"), pafs.LocalFileSystem())
    version = FileVersion(pafs.SubTreeFileSystem("y", inner), "/a")
    assert (version.path, version.local, version.shown, version.size) == (f"{tmp_path}/x/y/a", True, "/a", 1)
