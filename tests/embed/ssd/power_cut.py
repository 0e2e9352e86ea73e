"""What a power cut may leave of a folder: the log of ``unsynced.c`` played on a disk that keeps only what was synced.

    library = compile_shim(folder)
    disk = Disk(folder)                                   # all that is there is taken for synced
    subprocess.run(…, env=os.environ | shim(library, folder, log))
    for entry in read_log(log): disk.play(entry)          # stop anywhere: a cut may come at any moment
    disk.cut(elsewhere, rng)                              # one of the many states that the cut may leave

Until a file is synced, each of its pages of 4 KiB may be on the disk in any version since the last sync, and its size
may be any since then; a page that never came is zero. Until a folder is synced, each change of it (a file made, renamed,
linked, removed) may be there or not; a rename comes whole. To sync a file does not sync its name: stricter than ext4,
which is what POSIX promises.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PAGE = 4096
ZERO_PAGE = bytes(PAGE)
HEAD = struct.Struct("<IIQQQII")
MARK = 0x31545543
CREATE, MKDIR, WRITE, TRUNCATE, ZERO, SYNC, SYNC_ALL, RENAME, LINK, UNLINK, SAID = range(1, 12)
SOURCE = Path(__file__).with_name("unsynced.c")

# How much of what was not synced is there after a cut.
NOTHING, SOME, MOST, ORDERED, EVERYTHING = "nothing", "some", "most", "ordered", "everything"
MODES = (NOTHING, SOME, SOME, MOST, ORDERED, EVERYTHING)


class NoShim(Exception):
    """The library cannot be made here; the message says why."""


def compile_shim(folder: Path) -> Path:
    """The preloaded library, built with the C compiler of the machine."""
    compiler = shutil.which("gcc") or shutil.which("g++") or shutil.which("cc")
    if compiler is None or not Path("/proc/self/fd").is_dir():
        raise NoShim("unsynced writes are dropped by a preloaded library: it needs a C compiler and /proc")
    built = folder / "unsynced.so"
    command = [compiler, "-x", "c", "-O2", "-fPIC", "-shared", "-o", str(built), str(SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NoShim(f"{SOURCE.name} does not compile here: {done.stderr[-500:]}")
    return built


def shim(library: Path, folder: Path, log: Path) -> dict[str, str]:
    """The environment of a process whose changes below ``folder`` are to be logged."""
    return {
        "LD_PRELOAD": str(library),
        "CTRBOX_UNSYNCED_ROOT": str(folder.resolve()),
        "CTRBOX_UNSYNCED_LOG": str(log),
    }


@dataclass(frozen=True)
class Entry:
    kind: int
    inode: int
    at: int
    more: int
    first: bytes
    second: bytes


def read_log(path: Path) -> list[Entry]:
    """The records; a last one that the kill tore apart is left out: its call was not synced either."""
    data, at, found = path.read_bytes() if path.exists() else b"", 0, []
    while at + HEAD.size <= len(data):
        mark, kind, inode, place, more, first, second = HEAD.unpack_from(data, at)
        assert mark == MARK, f"{path} is no log at byte {at}"
        start, end = at + HEAD.size, at + HEAD.size + first + second
        if end > len(data):
            break
        found.append(Entry(kind, inode, place, more, data[start : start + first], data[start + first : end]))
        at = end
    return found


@dataclass
class Version:
    """A page as a call left it. ``barrier``: a truncation took what was there, for good once its size is on the disk."""

    seq: int
    data: bytes
    barrier: bool = False


@dataclass(eq=False)
class File:
    pages: dict[int, bytes] = field(default_factory=dict)  # as the process sees them
    size: int = 0
    kept: dict[int, bytes] = field(default_factory=dict)  # as last synced
    kept_size: int = 0
    versions: dict[int, list[Version]] = field(default_factory=dict)  # pages since then
    sizes: list[tuple[int, int]] = field(default_factory=list)  # (seq, size) since then

    @classmethod
    def of(cls, data: bytes) -> File:
        pages = {n: data[n * PAGE : (n + 1) * PAGE].ljust(PAGE, b"\0") for n in range((len(data) + PAGE - 1) // PAGE)}
        return cls(pages, len(data), dict(pages), len(data))

    def put(self, seq: int, at: int, data: bytes, barrier: bool = False) -> None:
        done = 0
        while done < len(data):
            page, start = divmod(at + done, PAGE)
            part = data[done : done + PAGE - start]
            before = self.pages.get(page, ZERO_PAGE)
            after = before[:start] + part + before[start + len(part) :]
            self.pages[page] = after
            self.versions.setdefault(page, []).append(Version(seq, after, barrier))
            done += len(part)

    def write(self, seq: int, at: int, data: bytes) -> None:
        self.put(seq, at, data)
        if at + len(data) > self.size:
            self.resize(seq, at + len(data))

    def resize(self, seq: int, size: int) -> None:
        if size < self.size:
            last = max(self.pages, default=-1)
            self.put(seq, size, bytes(max(0, (last + 1) * PAGE - size)), barrier=True)
        self.size = size
        self.sizes.append((seq, size))

    def sync(self, before: int) -> None:
        for page, versions in list(self.versions.items()):
            for version in versions:
                if version.seq < before:
                    self.kept[page] = version.data
            self.versions[page] = [v for v in versions if v.seq >= before]
            if not self.versions[page]:
                del self.versions[page]
        for seq, size in self.sizes:
            if seq < before:
                self.kept_size = size
        self.sizes = [(seq, size) for seq, size in self.sizes if seq >= before]

    def data(self, mode: str, rng: random.Random) -> bytes:
        """The bytes after a cut."""
        seq, size = _one([(-1, self.kept_size), *self.sizes], mode, rng)
        pages = dict(self.kept)
        for page, versions in self.versions.items():
            start = max((v.seq for v in versions if v.barrier and v.seq <= seq), default=-1)
            end = min((v.seq for v in versions if v.barrier and v.seq > seq), default=None)
            open_to_choice = [v.data for v in versions if v.seq >= start and (end is None or v.seq < end)]
            if start < 0:
                open_to_choice.insert(0, self.kept.get(page, ZERO_PAGE))
            pages[page] = _one(open_to_choice, mode, rng)
        return _joined(pages, size)

    def now(self) -> bytes:
        return _joined(self.pages, self.size)


def _joined(pages: dict[int, bytes], size: int) -> bytes:
    return b"".join(pages.get(n, ZERO_PAGE) for n in range((size + PAGE - 1) // PAGE))[:size]


def _one(choices: list, mode: str, rng: random.Random):  # type: ignore[no-untyped-def,type-arg]
    """The oldest, the newest, or any, as the mode of the cut says."""
    if mode == NOTHING:
        return choices[0]
    if mode == EVERYTHING or rng.random() < (0.9 if mode == MOST else 0.4):
        return choices[-1]
    return rng.choice(choices)


@dataclass(eq=False)
class Folder:
    entries: dict[str, File | Folder] = field(default_factory=dict)
    kept: dict[str, File | Folder] = field(default_factory=dict)


@dataclass
class Change:
    """What one call did to folders: names that now lead to something, or (None) to nothing."""

    seq: int
    items: list[tuple[Folder, str, File | Folder | None]]


class Disk:
    def __init__(self, folder: Path) -> None:
        self.root = Folder()
        self.inodes: dict[int, File | Folder] = {}
        self.changes: list[Change] = []
        self.said = b""
        self.seq = 0
        self._take(folder, self.root)

    def _take(self, place: Path, into: Folder) -> None:
        self.inodes[place.stat().st_ino] = into
        for path in sorted(place.iterdir()):
            if path.is_dir():
                found: File | Folder = Folder()
                self._take(path, found)  # type: ignore[arg-type]
            else:
                found = self.inodes.setdefault(path.stat().st_ino, File.of(path.read_bytes()))
            into.entries[path.name] = into.kept[path.name] = found

    # ---- the log

    def play(self, entry: Entry) -> None:
        kind, inode, first, second = (
            entry.kind,
            entry.inode,
            entry.first.decode("latin-1"),
            entry.second.decode("latin-1"),
        )
        if kind in (CREATE, MKDIR):
            self.inodes[inode] = made = File() if kind == CREATE else Folder()
            self._change((first, made))
        elif kind == WRITE:
            self._file(inode).write(self.seq, entry.at, entry.first)
        elif kind == TRUNCATE:
            self._file(inode).resize(self.seq, entry.at)
        elif kind == ZERO:
            file = self._file(inode)
            file.put(self.seq, entry.at, bytes(max(0, min(entry.more, file.size - entry.at))))
        elif kind == SYNC:
            self._sync(self.inodes[inode], entry.at)
        elif kind == SYNC_ALL:
            for found in list(self._all()):
                self._sync(found, entry.at)
        elif kind == RENAME:
            moved = self._at(first)
            if self._at(second) is not moved:  # two names of one file: the call does nothing
                self._change((first, None), (second, moved))
        elif kind == LINK:
            self._change((second, self._at(first)))
        elif kind == UNLINK:
            self._change((first, None))
        elif kind == SAID:
            self.said += entry.first
        self.seq += 1

    def _file(self, inode: int) -> File:
        found = self.inodes[inode]
        assert isinstance(found, File)
        return found

    def _sync(self, found: File | Folder, before: int) -> None:
        if isinstance(found, File):
            found.sync(before)
            return
        for change in self.changes:
            if change.seq < before:
                for folder, name, target in change.items:
                    if folder is found:
                        _set(found.kept, name, target)
                change.items = [item for item in change.items if item[0] is not found]
        self.changes = [change for change in self.changes if change.items]

    def _change(self, *items: tuple[str, File | Folder | None]) -> None:
        placed = []
        for path, target in items:
            parent, _, name = path.rpartition("/")
            folder = self._at(parent)
            assert isinstance(folder, Folder)
            _set(folder.entries, name, target)
            placed.append((folder, name, target))
        self.changes.append(Change(self.seq, placed))

    def _at(self, path: str) -> File | Folder | None:
        found: File | Folder | None = self.root
        for name in filter(None, path.split("/")):
            assert isinstance(found, Folder)
            found = found.entries.get(name)
        return found

    def _all(self) -> Iterator[File | Folder]:
        yield from set(self.inodes.values())

    # ---- the cut

    def cut(self, to: Path, rng: random.Random, mode: str | None = None) -> str:
        """Write one of the possible states into a new folder; which mode it was."""
        mode = mode or rng.choice(MODES)
        entries: dict[Folder, dict[str, File | Folder]] = {}
        first_lost = rng.randrange(len(self.changes) + 1)
        for n, change in enumerate(self.changes):
            chance = {NOTHING: 0.0, SOME: 0.5, MOST: 0.9, ORDERED: float(n < first_lost), EVERYTHING: 1.0}[mode]
            if rng.random() < chance:
                for folder, name, target in change.items:
                    _set(entries.setdefault(folder, dict(folder.kept)), name, target)
        data: dict[File, bytes] = {}

        def put(folder: Folder, place: Path) -> None:
            place.mkdir()
            for name, found in sorted(entries.get(folder, folder.kept).items()):
                if isinstance(found, Folder):
                    put(found, place / name)
                else:
                    if found not in data:
                        data[found] = found.data(mode, rng)
                    (place / name).write_bytes(data[found])

        put(self.root, to)
        return mode

    def now(self) -> dict[str, bytes]:
        """Every file as the process saw it: what must lie in the folder when nothing was cut."""

        def walk(folder: Folder, prefix: str) -> Iterator[tuple[str, bytes]]:
            for name, found in folder.entries.items():
                if isinstance(found, Folder):
                    yield from walk(found, f"{prefix}{name}/")
                else:
                    yield prefix + name, found.now()

        return dict(walk(self.root, ""))


def _set(entries: dict[str, File | Folder], name: str, target: File | Folder | None) -> None:
    if target is None:
        entries.pop(name, None)
    else:
        entries[name] = target


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its relative path."""
    return {os.path.relpath(path, folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
