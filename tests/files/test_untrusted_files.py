"""Small files of folders that somebody else made: regular files up to a limit, and nothing else."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.embed.ssd.several_dims import named_in
from ctrbox.errors import CtrboxError, DataError, SourceError
from ctrbox.files.untrusted_files import kind_of, open_regular, read_regular
from ctrbox.publish.versions import Published
from ctrbox.publish.weight_file import is_weights, read_weights
from ctrbox.serve.model_folder import ModelFolder


def test_a_file_of_just_the_limit_is_read_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(DataError, match=r"file has 5 bytes; expected at most 4"):
        read_regular(tmp_path / "file", 4)


def test_a_file_that_hides_its_size_is_read_up_to_the_limit() -> None:
    with pytest.raises(DataError, match=r"has more than 10 bytes"):
        read_regular(Path("/proc/self/maps").resolve(), 10)


def test_other_kinds_of_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    os.mkfifo("fifo")
    Path("zero").symlink_to("/dev/zero")
    Path("link").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for name, kind in (("fifo", "a FIFO"), ("zero", "a symbolic link"), ("socket", "a socket")):
            with pytest.raises(DataError, match=f"{name} is {kind}; expected a regular file"):
                read_regular(Path(name), 10)
        for name, kind in (("zero", "a device"), ("link", "a FIFO")):
            with pytest.raises(DataError, match=f"{name} is {kind}; expected a regular file"):
                open_regular(Path(name), follow=True)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 10)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (stat.S_IFREG, "a regular file"),
        (stat.S_IFDIR, "a folder"),
        (stat.S_IFLNK, "a symbolic link"),
        (stat.S_IFIFO, "a FIFO"),
        (stat.S_IFSOCK, "a socket"),
        (stat.S_IFCHR, "a device"),
        (stat.S_IFBLK, "a device"),
    ],
)
def test_a_file_is_what_its_mode_says(mode: int, kind: str) -> None:
    assert kind_of(mode | 0o644) == kind


def test_what_opens_a_folder_of_somebody_else_does_not_wait_for_a_fifo(tmp_path: Path) -> None:
    for name in ("CURRENT", "serve.json", "TABLES", "weights.fbw"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(CtrboxError, match="CURRENT is a FIFO"):
        Published(tmp_path).log()
    with pytest.raises(CtrboxError, match=r"serve\.json is a FIFO"):
        ModelFolder.open(tmp_path)
    with pytest.raises(CtrboxError, match="TABLES is a FIFO"):
        named_in(tmp_path)
    assert not is_weights(tmp_path / "weights.fbw")
    with pytest.raises((DataError, SourceError), match=r"weights\.fbw is a FIFO"):
        read_weights(tmp_path / "weights.fbw")


@pytest.mark.timeout(60)
def test_the_native_readers_of_tables_do_not_wait_for_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table.ctrtable")
    for load in (cb.MemoryTable.load, cb.MemoryTable().restore, cb.DeepFFM.load):
        with pytest.raises(CtrboxError, match="expected a regular file"):
            load(tmp_path / "table.ctrtable")
    with cb.SparseTable(tmp_path / "sparse", 4, ram="16MB") as table:
        table.push(np.arange(1, 9), np.ones((8, 4), np.float32))
        table.save(tmp_path / "saved")
    segment = next((tmp_path / "saved").rglob("*.seg"))
    for file in (segment, tmp_path / "saved" / "MANIFEST"):
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(CtrboxError, match=file.name):
            cb.SparseTable.load(tmp_path / "saved", read_only=True)
