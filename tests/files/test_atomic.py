"""Files and folders that are written aside: whole or not at all, what they replace, what is left behind, and the words for it."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctrbox.errors import DataError, PlanError, WriteError
from ctrbox.files import atomic
from ctrbox.files.atomic import (
    beside,
    check,
    failure,
    locked,
    remove,
    remove_leftovers,
    replace,
    synced,
    written_aside,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_whole_and_replaces_the_one_before(tmp_path: Path) -> None:
    place = tmp_path / "new" / "a.json"
    for text in ("one", "two"):
        with written_aside(place) as aside:
            assert aside.parent == place.parent
            assert aside.name.startswith(".a.")
            assert aside.suffix == ".json"
            aside.write_text(text)
            assert not place.exists() or place.read_text() == "one"
        assert place.read_text() == text
    assert names(tmp_path / "new") == ["a.json"]


def test_a_folder_appears_when_it_is_whole_and_replaces_the_one_before(tmp_path: Path) -> None:
    place = tmp_path / "a"
    for name in ("one", "two"):
        with written_aside(place, folder=True) as aside:
            aside.mkdir()
            (aside / name).write_text(name)
        assert names(place) == [name]
    assert names(tmp_path) == ["a"]


def half_written(place: Path, error: BaseException, folder: bool = False) -> None:
    """Write a part of a file or of a folder, and fail."""
    with written_aside(place, folder=folder) as aside:
        if folder:
            aside.mkdir()
        (aside / "x" if folder else aside).write_bytes(b"x" * 1234)
        raise error


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("error", [ValueError("wrong"), DataError("wrong"), WriteError("cannot"), KeyboardInterrupt()])
def test_without_an_end_nothing_is_left_and_the_error_is_the_callers(
    tmp_path: Path, folder: bool, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        half_written(tmp_path / "a", error, folder)
    assert caught.value is error
    assert names(tmp_path) == []


def test_an_error_of_the_system_is_told_with_what_became_of_the_file(tmp_path: Path) -> None:
    place = tmp_path / "a"
    for kept in ("no partial output was kept", "the previous contents are unchanged"):
        with pytest.raises(WriteError) as caught:
            half_written(place, OSError(errno.EACCES, "Permission denied"))
        assert str(caught.value) == f"cannot write {place}: Permission denied; {kept}"
        place.write_text("before")
    assert place.read_text() == "before"
    with (
        pytest.raises(WriteError, match=r"cannot write .*a: No such file or directory; the previous"),
        written_aside(place),
    ):
        pass  # nothing was written
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(WriteError, match=r"cannot write .*file/b: .*; no partial output was kept"),
        written_aside(tmp_path / "file" / "b"),
    ):
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_told_with_the_bytes_that_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(atomic.shutil, "disk_usage", lambda path: SimpleNamespace(free=56_789))
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "x").write_bytes(b"x" * 1000)
    (aside / "y").write_bytes(b"y" * 234)
    told = str(failure(OSError(number, "It is full"), aside, tmp_path / "a"))
    assert (
        told
        == f"cannot write {tmp_path}/a: It is full after 1,234 bytes, 56,789 bytes free; no partial output was kept"
    )
    told = str(failure(OSError(number, "It is full"), aside / "x", aside))
    assert told == (
        f"cannot write {aside}: It is full after 1,000 bytes, 56,789 bytes free; the previous contents are unchanged"
    )
    told = str(failure(OSError(number, "It is full"), tmp_path / "gone", tmp_path / "a"))
    assert "It is full after 0 bytes, 56,789 bytes free" in told
    assert (
        str(failure(OSError("odd"), aside, tmp_path / "a"))
        == f"cannot write {tmp_path}/a: odd; no partial output was kept"
    )


def test_a_file_is_replaced_by_a_file_and_a_folder_by_a_folder(tmp_path: Path) -> None:
    file, folder, pipe = tmp_path / "file", tmp_path / "folder", tmp_path / "pipe"
    file.write_text("")
    folder.mkdir()
    os.mkfifo(pipe)
    for place, of_folder, met in (
        (file, False, ""),
        (file, True, "a file; expected the name of a folder"),
        (folder, False, "a folder; expected the name of a file"),
        (folder, True, ""),
        (pipe, False, "a pipe, a socket or a device, which is not replaced"),
        (pipe, True, "a pipe, a socket or a device, which is not replaced"),
        (tmp_path / "new", False, ""),
        (tmp_path / "new", True, ""),
        (Path("/"), True, "a folder; expected the name of a file"),
        (Path("/"), False, "a folder; expected the name of a file"),
    ):
        if not met:
            check(place, of_folder)
            continue
        with pytest.raises(WriteError) as caught:
            check(place, of_folder)
        assert str(caught.value) == f"cannot write {place}: it is {met}"
    with pytest.raises(WriteError, match=r"cannot write 'a\\x00b': the path contains a NUL byte; choose another path"):
        check(Path("a\0b"))
    with pytest.raises(
        PlanError, match="s3://bucket/a is a URL, but a file that this call writes can only be on a local"
    ):
        check(Path("s3://bucket/a"))


def ended() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_what_ended_processes_of_this_machine_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    host = "".join(c if c.isalnum() or c == "_" else "_" for c in socket.gethostname())[:40]
    assert beside(tmp_path / "a.json", "partial").name == f".a.{host}-{os.getpid()}.partial.json"
    gone = [
        f".a.{host}-{ended()}.partial.json",
        f".a.{host}-{os.getpid()}.partial.json",
        f".a.{host}-{10**30}.partial.json",  # no process can have this number
    ]
    kept = [
        f".a.{host}-{os.getppid()}.partial.json",
        f".a.{host}-1.partial.json",
        f".a.other-{ended()}.partial.json",
        f".b.{host}-{ended()}.partial.json",
        f".a.{host}-{ended()}.old.json",
        f".a.{host}-{ended()}.partial",
        "a.json",
    ]
    for name in (*gone, *kept):
        (tmp_path / name).write_text("")
    (tmp_path / gone[0]).unlink()
    (tmp_path / gone[0]).mkdir()  # a folder that was being written
    (tmp_path / gone[0] / "x").write_text("")
    remove_leftovers(tmp_path / "a.json", "partial")
    assert names(tmp_path) == sorted(kept)


def test_a_folder_that_cannot_be_replaced_comes_back(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.mkdir()
    (place / "x").write_text("before")
    with pytest.raises(FileNotFoundError):
        replace(tmp_path / "missing", place)
    assert (names(tmp_path), (place / "x").read_text()) == (["a"], "before")


def test_names_and_contents_are_forced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("x")
    forced: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        forced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(atomic.os, "fsync", noted)
    synced(tmp_path / "a")
    assert forced == [str(tmp_path / "a")]
    with written_aside(tmp_path / "b") as aside:
        aside.write_text("x")
    assert forced[1:] == [str(aside), str(tmp_path)]
    with written_aside(tmp_path / "c", folder=True) as aside:
        aside.mkdir()
    assert forced[3:] == [str(tmp_path)]


def test_removing_takes_files_and_folders_and_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "c").write_text("")
    for name in ("a", "c", "none"):
        remove(tmp_path / name)
    assert names(tmp_path) == []


def test_one_process_at_a_time_has_a_folder(tmp_path: Path) -> None:
    place = tmp_path / "new" / "run"
    with locked(place, "publish to run"):
        assert names(place) == ["LOCK"]
        with pytest.raises(WriteError) as caught, locked(place, "publish to run"):
            pass
        assert str(caught.value) == (
            "cannot publish to run: another process is doing so; stop that process, or choose another folder"
        )
    with locked(place, "publish to run"):
        pass
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(WriteError, match=r"^cannot publish there: (File exists|Not a directory)$"),
        locked(tmp_path / "file", "publish there"),
    ):
        pass
    with (
        pytest.raises(PlanError, match="is a URL, but a folder that this call writes can only be"),
        locked(Path("s3://bucket/a"), "publish"),
    ):
        pass


def test_an_error_without_a_number_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*given: Any) -> int:
        raise OSError("no handles left")

    monkeypatch.setattr(atomic.os, "open", odd)
    with pytest.raises(WriteError, match=r"^cannot publish: no handles left$"), locked(tmp_path, "publish"):
        pass
