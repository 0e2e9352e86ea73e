"""Published folders: versions, rollback, what a crash or a full disk leaves, what is found damaged."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrbox.errors import CtrboxError, DataError, PlanError, WriteError
from ctrbox.files import atomic as aside
from ctrbox.publish import Part, Published, Weights, apply, read_weights


def weights(seed: int) -> Weights:
    floats = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    floats[seed * 10 : seed * 10 + 5] += 0.01
    return Weights("test", {"seed": seed}, [Part.floats("w", floats)])


@pytest.fixture
def folder(tmp_path: Path) -> Published:
    made = Published(tmp_path / "published", keep=3)
    for seed in range(1, 4):
        made.publish(weights(seed), note=f"number {seed}")
    return made


def seed_of(folder: Published) -> Any:
    return read_weights(folder.file()).about["seed"]


def test_versions_are_numbered_and_patches_lead_from_one_to_the_next(folder: Published, tmp_path: Path) -> None:
    assert [(v.number, v.note) for v in folder.log()] == [(1, "number 1"), (2, "number 2"), (3, "number 3")]
    follower = tmp_path / "follower.fbw"
    follower.write_bytes(folder.file(1).read_bytes())
    for number in (2, 3):
        apply(follower, folder.patch(number), follower)
        assert follower.read_bytes() == folder.file(number).read_bytes()
        assert folder.patch(number).stat().st_size < 0.3 * folder.file(number).stat().st_size
    assert folder.verify() == []


def test_a_copy_of_any_version_is_brought_up_to_date(folder: Published, tmp_path: Path) -> None:
    copies = [tmp_path / f"{n}.fbw" for n in range(5)]
    for number in (1, 2, 3):
        copies[number].write_bytes(folder.file(number).read_bytes())
    copies[4].write_bytes(b"something else")
    folder.publish(weights(6))
    folder.rollback(3)
    folder.publish(weights(7))
    for copy in copies:
        assert folder.update(copy).number == 6
        assert copy.read_bytes() == folder.file().read_bytes()


def test_rollback_is_an_older_version_published_again(folder: Published) -> None:
    before = folder.file(1).read_bytes()
    again = folder.rollback(1)
    assert (again.number, again.copy_of) == (4, 1)
    assert folder.file().read_bytes() == before
    assert folder.publish(weights(9)).number == 5
    with pytest.raises(DataError, match="no longer kept; the folder still contains 3, 4, 5"):
        folder.rollback(1)
    with pytest.raises(DataError, match="no version 6; its versions are 1 to 5"):
        folder.rollback(6)
    assert folder.verify() == []


def test_a_process_that_dies_before_current_leaves_the_old_version(
    folder: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("ctrbox.publish.versions.remove", lambda _: None)  # the dead tidy nothing
        patched.setattr("ctrbox.publish.versions.written_aside", die)
        with pytest.raises(Killed):
            folder.publish(weights(7))
    assert (folder.folder / "versions" / "00000004.fbw").exists()
    assert folder.current is not None
    assert folder.current.number == 3
    assert folder.verify() == []
    assert folder.publish(weights(8)).number == 4
    assert seed_of(folder) == 8
    assert folder.verify() == []


@pytest.mark.parametrize("writes", range(8))
def test_a_disk_that_fills_leaves_the_old_version(
    folder: Published, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """The disk is full at the n-th fsync on the way."""
    real, left = os.fsync, [writes]

    def full(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with monkeypatch.context() as patched:
        patched.setattr(aside.os, "fsync", full)
        if writes < 7:  # the file, its folder; the patch, its folder; the log; CURRENT, its folder
            with pytest.raises(WriteError, match="No space left"):
                folder.publish(weights(7))
        else:
            folder.publish(weights(7))
    found = folder.current
    assert found is not None
    assert seed_of(folder) == (7 if found.number == 4 else 3)
    assert folder.verify() == []
    assert not [p for p in folder.folder.rglob("*") if "partial" in p.name]
    assert folder.publish(weights(8)).number == found.number + 1
    assert folder.verify() == []


@pytest.mark.parametrize("limit", [0, 50, 700, 4000])
def test_a_disk_that_takes_so_many_bytes_leaves_the_old_version(folder: Published, limit: int) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # a write beyond it fails half done
    try:
        with pytest.raises(WriteError):
            folder.publish(weights(7))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert seed_of(folder) == 3
    assert folder.verify() == []
    assert not [p for p in folder.folder.rglob("*") if "partial" in p.name or "00000004" in p.name]


def test_every_flip_in_log_and_pointer_is_refused_and_nothing_is_published_over_it(folder: Published) -> None:
    for name in ("CURRENT", "log.jsonl"):
        path = folder.folder / name
        whole = path.read_bytes()
        for at in range(0, len(whole), 3):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            path.write_bytes(damaged)
            try:
                found = folder.log()
            except CtrboxError:
                continue
            assert [v.number for v in found] == [1, 2, 3]  # white space between two words of JSON
        path.write_bytes(whole)
    (folder.folder / "log.jsonl").write_bytes(whole[:-20])
    with pytest.raises(DataError, match="was truncated"):
        folder.publish(weights(8))
    (folder.folder / "CURRENT").unlink()
    with pytest.raises(CtrboxError, match="CURRENT is missing"):
        folder.publish(weights(8))


def test_verify_names_damaged_files(folder: Published) -> None:
    for path in (folder.file(3), folder.patch(2)):
        whole = bytearray(path.read_bytes())
        whole[-1] ^= 1
        path.write_bytes(whole)
    found = folder.verify()
    assert len(found) == 2
    assert "00000002.patch" in found[0]
    assert "00000003.fbw" in found[1]


def test_a_folder_holds_one_kind_of_model(folder: Published) -> None:
    with pytest.raises(DataError, match="kind 'test', but this model is of kind 'other'"):
        folder.publish(Weights("other", {}, []))
    assert seed_of(folder) == 3
    assert not (folder.folder / "versions" / "00000004.fbw").exists()


def test_two_publishers_do_not_meet(folder: Published) -> None:
    with folder._locked(), pytest.raises(WriteError, match=r"cannot publish to .* another process is doing so"):
        Published(folder.folder).publish(weights(5))


def test_a_rollback_waits_for_no_publisher_and_the_lock_ends_with_its_holder(folder: Published) -> None:
    """Held by another process, the lock refuses whatever writes; given back, even after a failure, it refuses nothing."""
    before = folder.log()
    holding = (
        "import sys; from ctrbox.publish.versions import Published\n"
        "with Published(sys.argv[1])._locked(): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", holding, str(folder.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    for write in (lambda: folder.rollback(2), lambda: folder.publish(weights(5))):
        with pytest.raises(WriteError, match="another process is doing so"):
            write()
    assert folder.log() == before
    other.communicate("")
    with pytest.raises(DataError):
        folder.publish(Weights("other", {}, []))
    assert folder.rollback(2).number == len(before) + 1


def test_keep_is_at_least_the_current_one_and_the_one_before(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="keep="):
        Published(tmp_path, keep=1)
