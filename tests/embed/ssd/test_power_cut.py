"""The harness itself: the log misses no write, and a program that forgets one sync is caught by some cut."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.embed.ssd.power_cut import EVERYTHING, MODES, NOTHING, Disk, files_of, read_log, shim


def ran(library: Path, folder: Path, code: str, *arguments: str) -> tuple[list, str]:
    """The log of a small program that works in ``folder``."""
    log = folder.with_suffix(".log")
    log.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],
        env=os.environ | shim(library, folder, log),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return read_log(log), done.stdout


EVERY_CALL = """
import os, threading
f = os.open("a", os.O_RDWR | os.O_CREAT, 0o644)
os.write(f, b"x" * 5000); os.writev(f, [b"yy", b"", b"z" * 9000]); os.pwrite(f, b"in the middle", 4090)
os.pwritev(f, [b"one", b"two"], 20_000)
copy = os.dup(f); os.lseek(copy, 100, os.SEEK_SET); os.write(copy, b"by a copy"); os.ftruncate(f, 18_500)
os.posix_fallocate(f, 0, 30_000); os.close(f); os.close(copy)
os.mkdir("deep"); os.makedirs("deep/er", exist_ok=True)
folder = os.open("deep", os.O_RDONLY)
g = os.open("er/b", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644, dir_fd=folder)
os.write(g, b"first"); os.write(g, b"second")
os.rename("er/b", "c", src_dir_fd=folder, dst_dir_fd=folder); os.write(g, b" after the rename")
os.link("deep/c", "d"); os.rmdir("deep/er"); os.truncate("d", 3); os.write(g, b"!")
for n in range(5):
    with open(f"t{n}", "wb") as h: h.write(bytes([n]) * 1000 * n)
os.replace("t1", "t2"); os.remove("t3"); os.unlink("deep/../t4")
with open("t0", "wb") as h: h.write(b"again")
with open("t0", "r+b") as h: h.write(b"AG")
def many(n):
    for k in range(50): os.pwrite(shared, bytes([n, k]) * 300, (n * 50 + k) * 600)
shared = os.open("shared", os.O_WRONLY | os.O_CREAT); threads = [threading.Thread(target=many, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print("said")
"""


def test_a_log_played_to_its_end_is_the_folder_byte_for_byte(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "before").write_bytes(b"was there" * 1000)
    disk = Disk(folder)
    entries, said = ran(library, folder, EVERY_CALL)
    for entry in entries:
        disk.play(entry)
    assert disk.now() == files_of(folder)
    assert disk.said.decode() == said == "said\n"
    assert disk.cut(tmp_path / "all", random.Random(0), EVERYTHING) == EVERYTHING
    assert files_of(tmp_path / "all") == files_of(folder)
    disk.cut(tmp_path / "none", random.Random(0), NOTHING)
    assert files_of(tmp_path / "none") == {"before": b"was there" * 1000}  # nothing else was synced


REFUSED = """
import ctypes, errno, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
f = os.open("a", os.O_RDWR | os.O_CREAT, 0o644); os.write(f, bytes(4096)); g = os.open("b", os.O_RDWR | os.O_CREAT, 0o644)
def refused(reason, call, *arguments):
    try: call(*arguments)
    except OSError as error: assert error.errno == reason, error
    else: raise AssertionError(call)
refused(errno.ENODEV, mmap.mmap, f, 4096)
refused(errno.EXDEV, os.copy_file_range, f, g, 4096)
refused(errno.EINVAL, os.sendfile, g, f, 0, 4096)
refused(errno.EPERM, os.symlink, "a", "s")
refused(errno.EXDEV, os.rename, "a", "../a")
libc.fopen.restype = ctypes.c_void_p
assert libc.fopen(b"c", b"w") is None and libc.fopen(b"a", b"r") is not None
libc.syscall.restype = ctypes.c_long
assert libc.syscall(ctypes.c_long(425), ctypes.c_long(8), None) == -1 and ctypes.get_errno() == errno.ENOSYS
"""


def test_what_the_log_cannot_see_is_refused(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ran(library, folder, REFUSED)


# A small store that replaces its data file: `data-N` in a folder, named by CURRENT.
STORE = """
import os, sys
forgotten = sys.argv[1]
def sync(step, path):
    if step != forgotten:
        f = os.open(path, os.O_RDONLY); os.fsync(f); os.close(f)
def put(path, data):
    with open(path, "wb") as f: f.write(data)
for n in range(1, 6):
    put(f"data/{n}", bytes([n]) * 20_000)
    sync("the data", f"data/{n}"); sync("the name of the data", "data")
    put("CURRENT.new", str(n).encode()); sync("the pointer", "CURRENT.new")
    os.rename("CURRENT.new", "CURRENT"); sync("the rename", ".")
    print(n, flush=True)
    if n > 1: os.unlink(f"data/{n - 1}")
"""


def damage_after_cuts(library: Path, tmp_path: Path, forgotten: str, cuts: int = 150) -> list[str]:
    folder = tmp_path / "folder"
    (folder / "data").mkdir(parents=True)
    disk, rng, found = Disk(folder), random.Random(3), []
    entries, _ = ran(library, folder, STORE, forgotten)
    places = sorted(rng.randrange(len(entries) + 1) for _ in range(cuts))
    for number, place in enumerate(places):
        while disk.seq < place:
            disk.play(entries[disk.seq])
        state = tmp_path / f"cut-{number}"
        mode = disk.cut(state, rng, MODES[number % len(MODES)])
        promised = int(disk.said.split()[-1]) if disk.said.split() else 0
        current = (state / "CURRENT").read_bytes() if (state / "CURRENT").exists() else b"0"
        if not current.isdigit() or int(current) < promised:
            found.append(f"CURRENT is {current!r}, promised was {promised} ({mode})")
            continue
        data = state / "data" / current.decode()
        if current != b"0" and (not data.exists() or data.read_bytes() != bytes([int(current)]) * 20_000):
            found.append(f"data {int(current)} is lost or torn ({mode})")
    return found


def test_a_store_that_syncs_everything_survives_every_cut(library: Path, tmp_path: Path) -> None:
    assert damage_after_cuts(library, tmp_path, "nothing", 300) == []


@pytest.mark.parametrize("forgotten", ["the data", "the name of the data", "the pointer", "the rename"])
def test_a_store_that_forgets_one_sync_is_caught(library: Path, tmp_path: Path, forgotten: str) -> None:
    assert damage_after_cuts(library, tmp_path, forgotten)
