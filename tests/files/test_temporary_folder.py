"""Temporary folders of one process; tests/serve/test_reload.py tries those of processes that were killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ctrbox.errors import WriteError
from ctrbox.files import temporary_folder
from ctrbox.files.temporary_folder import OwnFolder, remove_stale

CODE = """
import os
from ctrbox.files.temporary_folder import OwnFolder
own = OwnFolder("ctrbox-test-")
child = os.fork()
if child == 0:
    own.close()
    os._exit(0)
os.waitpid(child, 0)
assert own.place.is_dir()
own.close()
assert not own.place.exists()
"""


def test_a_forked_process_does_not_remove_the_folder_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_folders_of_processes_that_ended_are_removed_and_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ctrbox-x-1", "ctrbox-x-2", "ctrbox-x-held", "ctrbox-x-bare", "ctrbox-y-1"):
        (tmp_path / name).mkdir()
        if name != "ctrbox-x-bare":
            (tmp_path / name / "LOCK").touch()
            (tmp_path / name / "file").write_text("x")
    (tmp_path / "ctrbox-x-file").touch()
    (tmp_path / "ctrbox-x-link").symlink_to(tmp_path / "ctrbox-y-1")
    kept = {"ctrbox-x-held", "ctrbox-x-bare", "ctrbox-x-file", "ctrbox-x-link", "ctrbox-y-1"}
    with (tmp_path / "ctrbox-x-held" / "LOCK").open("r+") as held, caplog.at_level("INFO", "ctrbox.files"):
        fcntl.flock(held, fcntl.LOCK_EX)
        with monkeypatch.context() as patch:
            patch.setattr(temporary_folder.os, "geteuid", lambda: os.getuid() + 1)  # they belong to somebody else
            assert remove_stale(tmp_path, "ctrbox-x-") == []
            assert not caplog.messages
        gone = remove_stale(tmp_path, "ctrbox-x-")
    assert sorted(path.name for path in gone) == ["ctrbox-x-1", "ctrbox-x-2"]
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert caplog.messages == ["removed temporary folders that killed processes left behind: 2"]


def test_a_folder_is_held_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = OwnFolder("ctrbox-x-")
    assert [path.name for path in own.place.iterdir()] == ["LOCK"]
    assert remove_stale(tmp_path, "ctrbox-x-") == []
    handle = own._lock
    own.close()
    own.close()  # once is enough
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_a_folder_that_cannot_be_made_or_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(
        WriteError, match=r"^cannot make a temporary folder: .*; set TMPDIR to a folder that can be written$"
    ):
        OwnFolder("ctrbox-x-")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    for error, told in ((OSError(37, "No locks available"), "No locks available"), (OSError("odd"), "odd")):

        def refused(handle: int, how: int, error: OSError = error) -> None:
            raise error

        monkeypatch.setattr(temporary_folder.fcntl, "flock", refused)
        with pytest.raises(WriteError, match=rf"^cannot lock {tmp_path}/ctrbox-x-\w+: {told}$"):
            OwnFolder("ctrbox-x-")
        assert list(tmp_path.iterdir()) == []
