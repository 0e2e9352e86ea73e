"""kill -9 and power cuts at random moments: a table that is opened again is exactly its last checkpoint."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from tests.embed.ssd.killing import ROOT, Rounds, look
from tests.embed.ssd.power_cut import (
    EVERYTHING,
    MODES,
    NOTHING,
    SAID,
    SOME,
    WRITE,
    Disk,
    Entry,
    read_log,
    shim,
)
from tests.embed.ssd.trainee import Replay, opened


def test_a_killed_table_is_its_last_checkpoint(tmp_path: Path) -> None:
    done = Rounds(tmp_path, seed=1, batches=40).go(kills=3)
    assert done.kills == 3
    assert done.runs >= 1


def test_a_table_that_lost_power_is_its_last_checkpoint(tmp_path: Path, library: Path) -> None:
    done = Rounds(tmp_path, 2, library, cuts=20, batches=40).go(kills=2)
    assert done.cuts == 2 * 21
    assert len(done.modes) > 2


@pytest.mark.exhaustive
def test_many_kills(tmp_path: Path) -> None:
    done = Rounds(tmp_path, seed=3).go(kills=6)
    assert len(done.during) > 2


@pytest.mark.exhaustive
def test_many_power_cuts(tmp_path: Path, library: Path) -> None:
    done = Rounds(tmp_path, 4, library, cuts=10).go(kills=6)
    assert set(done.modes) == set(MODES)


def logged(library: Path, folder: Path, code: str) -> tuple[Disk, list[Entry]]:
    """The disk before a program that had ``folder`` to itself and ended well, and the log of what it did."""
    disk, log = Disk(folder), folder.with_suffix(".log")
    head = "import os, sys\nfrom tests.embed.ssd.trainee import opened, say, train_batch\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code, str(folder)],
        env=os.environ | shim(library, folder, log) | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return disk, read_log(log)


def played(disk: Disk, entries: list[Entry]) -> Disk:
    for entry in entries:
        disk.play(entry)
    return disk


def states(disk: Disk, entries: list[Entry], place: Path) -> Iterator[tuple[Path, str, str]]:
    """Folders as cuts leave them, around every call that is not one of many writes: (folder, what was said, when)."""
    rng = random.Random(5)
    for number, entry in enumerate([*entries, None]):
        if entry is None or entry.kind != WRITE or entries[number - 1].kind != WRITE or rng.random() < 0.02:
            mode = rng.choice((EVERYTHING, NOTHING, SOME))
            disk.cut(place, rng, mode)
            yield place, disk.said.decode(), f"cut before call {number} of {len(entries)}, {mode} kept"
            shutil.rmtree(place)
        if entry is not None:
            disk.play(entry)


def test_a_cut_around_any_single_call_leaves_the_last_checkpoint(library: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    code = """
table = opened(sys.argv[1])
for n in range(12):
    train_batch(table, 0, n)
    if n % 5 == 1: table.flush()
    if n == 8: table.compact()
    if n % 4 == 3:
        say(f"asks {n + 1}"); table.checkpoint(); say(f"has {n + 1}")
os._exit(0)
"""
    disk, entries = logged(library, tmp_path / "disk", code)
    replay = Replay(0)
    found = {look(folder, replay, said, False, when) for folder, said, when in states(disk, entries, tmp_path / "cut")}
    assert found == {0, 4, 8, 12}


def test_a_cut_during_restore_leaves_the_old_table_or_the_new_one(library: Path, tmp_path: Path) -> None:
    (tmp_path / "disk" / "table").mkdir(parents=True)
    code = """
table = opened(sys.argv[1] + "/table")
for n in range(4): train_batch(table, 0, n)
table.save(sys.argv[1] + "/saved")
for n in range(4, 9): train_batch(table, 0, n)
table.checkpoint()
say("has 4")
table.restore(sys.argv[1] + "/saved")
os._exit(0)
"""
    disk, entries = logged(library, tmp_path / "disk", code)
    begins = next(number for number, entry in enumerate(entries) if entry.kind == SAID)
    played(disk, entries[:begins])
    replay, found = Replay(0), set()
    for folder, said, when in states(disk, entries[begins:], tmp_path / "cut"):
        found.add(look(folder / "table", replay, said + "asks 4\nasks 9\n", False, when))
    assert found == {4, 9}


def cuts_after(library: Path, place: Path, code: str) -> Iterator[Path]:
    """The folder that a program had to itself, after a power cut behind its end, for every way in which a disk may be cut."""
    (place / "disk").mkdir()
    disk = played(*logged(library, place / "disk", code))
    for number, mode in enumerate([NOTHING, *MODES]):
        after = place / f"after-{number}"
        disk.cut(after, random.Random(number), mode)
        yield after


def test_a_table_in_a_folder_that_it_made_is_there_after_its_first_checkpoint(library: Path, tmp_path: Path) -> None:
    code = """
table = opened(sys.argv[1] + "/made/here")
for n in range(5): train_batch(table, 0, n)
table.checkpoint()
os._exit(0)
"""
    for after in cuts_after(library, tmp_path, code):
        with opened(after / "made" / "here") as table:
            assert Replay(0).differences(table.export()) == ""
            assert len(table) >= len(Replay(0).at(5)[0])


def test_a_saved_table_survives_a_power_cut_after_save(library: Path, tmp_path: Path) -> None:
    code = """
table = opened(sys.argv[1] + "/table")
for n in range(5): train_batch(table, 0, n)
table.checkpoint()
for n in range(5, 9): train_batch(table, 0, n)
table.save(sys.argv[1] + "/saved")
train_batch(table, 0, 9)
table.compact()
os._exit(0)
"""
    for after in cuts_after(library, tmp_path, code):
        with opened(after / "saved") as table:
            assert table.verify() == []
            rows = table.export()
            assert Replay(0).differences(rows) == ""
            assert np.isin(Replay(0).at(9)[0], rows[0]).all()


BIG = """
import threading, time
from pathlib import Path
import numpy as np
import ctrbox as cb
from tests.embed.ssd.test_crash import BIG_SETTINGS, keys_of_one_shard
folder, keys = Path(sys.argv[1]) / "table", keys_of_one_shard(8000)
table = cb.SparseTable(folder, **BIG_SETTINGS)
for part in np.array_split(keys, 4):
    table.push(part, np.ones((len(part), 128), np.float32))
    table.flush()
def size(): return sum(path.stat().st_size for path in (folder / "segments").iterdir())
whole = size()
merging = threading.Thread(target=table.compact)
merging.start()
while merging.is_alive() and size() < whole + (1 << 20): time.sleep(0)
table.checkpoint()
merging.join()
table.checkpoint()
os._exit(0)
"""
BIG_SETTINGS: dict[str, Any] = {"dim": 128, "ram": "400MB", "threads": 2}


def keys_of_one_shard(count: int) -> np.ndarray:
    """Keys that lie in the first of 64 shards, so that one run of a small table is large."""
    keys = np.arange(1, 100 * count, dtype=np.uint64)
    mix = keys ^ (keys >> np.uint64(32))
    mix *= np.uint64(0xE9846AF9B1A615D)
    mix ^= mix >> np.uint64(32)
    mix *= np.uint64(0xE9846AF9B1A615D)
    mix ^= mix >> np.uint64(28)
    return keys[mix >> np.uint64(58) == 0][:count].astype(np.int64)


def test_a_large_merge_that_a_checkpoint_interrupted_is_durable_at_the_next(library: Path, tmp_path: Path) -> None:
    (tmp_path / "disk" / "table").mkdir(parents=True)
    disk = played(*logged(library, tmp_path / "disk", BIG))
    disk.cut(tmp_path / "after", random.Random(0), NOTHING)
    with cb.SparseTable(tmp_path / "after" / "table", **BIG_SETTINGS) as table:
        assert table.verify() == []
        keys, values, _ = table.export()
    right = cb.MemoryTable(128)
    right.push(keys_of_one_shard(8000), np.ones((8000, 128), np.float32))
    np.testing.assert_array_equal(keys, right.export()[0])
    np.testing.assert_array_equal(values.view(np.uint32), right.export()[1].view(np.uint32))
