"""Tests which version of a file a view accepts: its store may tell the recorded size, another size, or no size."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow.fs as pafs
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ctrbox.errors import SourceError
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
