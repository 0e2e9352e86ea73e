"""Keeps a folder on S3 or HDFS, or reads one on an HTTP server, and works on it in a local copy.

Object stores have neither locks nor a rename, so nothing is changed in place (folder_manifest.py describes the layout):

- `push` uploads the files whose contents the folder does not hold yet, then writes the manifest, then removes the objects that no
  file needs any more. A process that dies before the manifest is written leaves the previous version as it was; what it
  uploaded is removed by the next `push` of another process.
- `pull` downloads the files that the manifest names, and nothing else. A missing object, and one whose size or SHA-256 differs
  from the manifest, is an error that names the object. A folder that is replaced while it is read is read again. An interrupted
  download continues where it stopped, also at the next `pull`.
- One process writes to a folder at a time. There is no lock; `push` compares the manifest with the one that it knows and
  refuses to replace another one.

The local copy lies in the folder for temporary files (the environment variable TMPDIR) and is removed with the object or when
the process ends. Credentials come from the environment of the process (docs/processes/storage.md), never from the URL.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import secrets
import shutil
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from ctrbox.errors import CtrboxError, DataError, PlanError, SourceError, WriteError
from ctrbox.files.filesystems import RETRY_PAUSES_S, Store, first_line, open_store
from ctrbox.files.folder_manifest import (
    MANIFEST,
    OBJECT,
    OBJECTS,
    StoredFile,
    files_below,
    manifest_text,
    object_name,
    read_manifest,
)
from ctrbox.files.http_files import HttpFiles, NoSuchRange, TooLarge
from ctrbox.files.interruptible_wait import results_of
from ctrbox.files.sealed_json import MOST_BYTES
from ctrbox.files.temporary_folder import OwnFolder
from ctrbox.files.urls import WEB, readable_url

T = TypeVar("T")

THREADS = 8  # that upload or download at a time
BLOCK = 4 << 20
TRIES = 3  # of a reader whose folder is replaced meanwhile
PREFIX = "ctrbox-copy-"
log = logging.getLogger("ctrbox.files")


class StoredFolder:
    """A folder at ``url`` and its local copy at ``path``, which is empty until `pull` is called."""

    def __init__(self, url: str, what: str) -> None:
        """``what``: what the folder is, in words, such as "a run folder". Reads the manifest, if there is one."""
        checked = readable_url(url, what)
        if checked is None:
            raise PlanError(f"{url!r} is not a URL; expected s3://bucket/folder or hdfs://host/folder")
        if "?" in checked:
            raise PlanError(
                f"{checked} has options after '?', which {what} must not have; set the endpoint and the credentials in the "
                "environment: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION"
            )
        self.url, self.what = checked.rstrip("/"), what
        self.store, inside = _opened(self.url)
        self.inside = inside.rstrip("/")
        name = self.url.rpartition("/")[2]
        if not name or name.startswith(".") or "\0" in name:
            raise PlanError(f"{checked} does not name a folder; expected s3://bucket/folder or hdfs://host/folder")
        self.files: dict[str, StoredFile] = {}
        self._text: bytes | None = None  # of the manifest as it was read or written last
        self._here: dict[str, str] = {}  # SHA-256 of the files that the local copy has, or had, by name
        self._known: dict[
            tuple[int, int, int, int], str
        ] = {}  # SHA-256 of local files, by device, inode, size and time
        self._cleaned = False
        own = OwnFolder(PREFIX)
        self._finalize = weakref.finalize(self, own.close)
        self._incoming = own.place / "incoming"
        self.path = own.place / name
        for folder in (self._incoming, self.path):
            folder.mkdir()
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return self.url

    def close(self) -> None:
        """Remove the local copy."""
        self._finalize()

    @property
    def exists(self) -> bool:
        """Whether there is a manifest at the URL."""
        return self._text is not None

    def need(self) -> None:
        """Raise a `SourceError` if there is nothing at the URL."""
        if not self.exists:
            raise SourceError(f"there is no {self.what.removeprefix('a ')} at {self.url}: {MANIFEST} is missing")

    def shown(self, name: str) -> str:
        """Return the URL of the object that holds a file, or that of the folder for a file that was not uploaded."""
        held = self.files.get(name)
        return self.url if held is None else f"{self.url}/{OBJECTS}/{held.object}"

    def holds(self, prefix: str) -> bool:
        """Whether the folder has this file, or files in this folder."""
        return prefix in self.files or any(name.startswith(f"{prefix}/") for name in self.files)

    # ---- reading

    def expect(self, name: str, size: int, sha256: str) -> None:
        """Raise a `DataError` if the folder holds another file of this name; `pull` reports a missing file."""
        held = self.files.get(name)
        if held is not None and (held.bytes, held.sha256) != (size, sha256):
            raise DataError(
                f"{name} of {self.url} is another file than expected: it has {held.bytes:,} bytes, expected {size:,} bytes "
                f"and the checksum {sha256[:12]}…"
            )

    def refresh(self) -> bool:
        """Read the manifest again, and return whether it has changed."""
        text = self._read_manifest()
        if text == self._text:
            return False
        self.files = {} if text is None else read_manifest(text, f"{self.url}/{MANIFEST}")
        self._text = text
        return True

    def pull(self, wanted: Callable[[str], bool] = lambda name: True, *, last: Iterable[str] = ()) -> None:
        """Download the files whose names are ``wanted`` and whose contents are not here yet; each appears whole or not at all.

        ``last``: names of files that are put in place after all others. Files that the folder has no longer are removed.
        """
        for tries in range(1, TRIES + 1):
            names = [n for n, f in sorted(self.files.items()) if wanted(n) and self._here.get(n) != f.sha256]
            try:
                self._download(sorted(names, key=lambda name: name in last))
            except _Missing as missing:
                if tries < TRIES and self.refresh():
                    continue
                raise DataError(str(missing)) from None
            break
        for name in set(self._here) - set(self.files):
            with contextlib.suppress(OSError):
                (self.path / name).unlink()
            del self._here[name]

    def _download(self, names: list[str]) -> None:
        first = {self.files[name].object: name for name in reversed(names)}
        wanted, free = sum(self.files[name].bytes for name in first.values()), shutil.disk_usage(self.path).free
        if wanted > free:
            raise WriteError(
                f"{self.url} has {wanted:,} bytes to download, and {self.path.parent} has {free:,} bytes free; set TMPDIR to "
                "another disk"
            ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with ThreadPoolExecutor(THREADS, thread_name_prefix="ctrbox-download") as pool:
            fetched = dict(zip(first, results_of(pool, self._fetch, first.values()), strict=True))
        for name in names:
            held, place = self.files[name], self.path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            aside = self._incoming / secrets.token_hex(8)
            # The segments of a table are never changed, so its checkpoints share them; other files may be appended to.
            link_or_copy(fetched[held.object], aside, link=".ctrtable/" in name)
            aside.replace(place)
            self._here[name] = held.sha256
            self._known[_identity(place)] = held.sha256
        for path in fetched.values():
            path.unlink()

    def _fetch(self, name: str) -> Path:
        """Download the object of a file beside the local copy, and compare it with the manifest."""
        held = self.files[name]
        place = self._incoming / f"{hashlib.sha256(held.object.encode()).hexdigest()}.part"
        shown, began_at = self.shown(name), place.stat().st_size if place.exists() else 0
        try:
            size, sha256 = self._attempt(f"read {shown}", SourceError, lambda: self._on_with(held, place, shown))
            if began_at and (size, sha256) != (
                held.bytes,
                held.sha256,
            ):  # what was here may be of another object of that name
                place.unlink()
                size, sha256 = self._attempt(f"read {shown}", SourceError, lambda: self._on_with(held, place, shown))
        except FileNotFoundError:
            place.unlink(missing_ok=True)
            raise _Missing(f"{shown} is missing; it holds {name!r} of {self.url}, which is damaged") from None
        if (size, sha256) != (held.bytes, held.sha256):
            place.unlink()
            met = f"it has {size:,} bytes" if size <= held.bytes else f"it has more than {held.bytes:,} bytes"
            met += f", expected {held.bytes:,} bytes"
            wrong = met if size != held.bytes else f"its checksum is not that in {MANIFEST}"
            raise OtherContents(f"{shown} is damaged: {wrong}; it holds {name!r} of {self.url}")
        return place

    def _on_with(self, held: StoredFile, place: Path, shown: str) -> tuple[int, str]:
        """Download an object, continuing where the last try ended, and return its size and SHA-256."""
        digest, size = hashlib.sha256(), 0
        with place.open("a+b") as file:
            file.seek(0)
            while size < held.bytes and (block := file.read(min(BLOCK, held.bytes - size))):
                digest.update(block)
                size += len(block)
            file.truncate(size)
            if size and size == held.bytes:
                return size, digest.hexdigest()
            if size:
                log.info("the download of %s continues at byte %s of %s", shown, f"{size:,}", f"{held.bytes:,}")
            try:
                with self._open(self._at(held), size, held.bytes) as source:
                    read = getattr(source, "read_some", source.read)  # what came before a break is kept
                    while size <= held.bytes and (block := read(min(BLOCK, held.bytes + 1 - size))):
                        digest.update(block)
                        file.write(block)
                        size += len(block)
            except NoSuchRange:
                file.truncate(0)
                raise
            except TooLarge:
                return held.bytes + 1, ""
        return size, digest.hexdigest()

    def _open(self, path: str, offset: int, most: int) -> Any:
        """Open a file of the store for reading, from a byte on. ``most``: bytes that it should have at most."""
        fs: Any = self.store.fs
        if isinstance(fs, HttpFiles):
            return fs.open_input_stream(path, offset=offset, most=most)
        if not offset:
            return fs.open_input_stream(path, compression=None)
        file = fs.open_input_file(path)
        file.seek(offset)
        return file

    # ---- writing

    def claim(self) -> None:
        """Check before any work that the URL can be written and holds nothing but such a folder; otherwise an error."""
        if isinstance(self.store.fs, HttpFiles):
            raise WriteError(
                f"{self.url} is read over HTTP, so nothing can be written to it; publish to the folder whose files the HTTP "
                "server sends"
            )
        if not self.exists:
            for info in self._list(self.inside):
                if info.base_name not in (OBJECTS, "") and not info.base_name.startswith("_writable-"):
                    raise DataError(
                        f"{self.url} holds {info.base_name!r} and no {MANIFEST}, so it is not {self.what} of CTRBox; choose "
                        "an empty folder"
                    )
        probe = f"{self.inside}/_writable-{secrets.token_hex(8)}"

        def write() -> None:
            with self.store.fs.open_output_stream(probe, compression=None) as file:
                file.write(b"written by CTRBox to see whether it may write here\n")
            self.store.fs.delete_file(probe)

        with _written(self.url):
            self._attempt(f"write to {self.url}", WriteError, write)

    def replace_all(self) -> None:
        """Make the next `push` remove every file that the local copy does not have, even those that were never downloaded."""
        self._here = {name: held.sha256 for name, held in self.files.items()} | self._here

    def drop(self, name: str) -> None:
        """Make the next `push` remove a file, whether it was downloaded or not."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / name).unlink()
        self._here.setdefault(name, "")

    def distrust(self) -> None:
        """Make the next `pull` download everything again, because the local copy has changes that were not uploaded."""
        self._here = {}

    def push(self) -> None:
        """Upload the files of the local copy that are not at the URL yet, and commit them with a new manifest.

        Files that were never downloaded stay as they are; those that were removed from the local copy are removed.
        """
        with _written(self.url):
            local = dict(files_below(self.path))
            by_contents = {held.sha256: held for held in self.files.values()}
            files = {name: held for name, held in self.files.items() if name not in self._here and name not in local}
            new: dict[str, tuple[StoredFile, Path]] = {}
            for name, path in local.items():
                sha256 = self._digest(path)
                held = by_contents.get(sha256)
                if held is None:
                    held = StoredFile(path.stat().st_size, sha256, object_name(name, sha256))
                    by_contents[sha256], new[sha256] = held, (held, path)
                files[name] = held
            if files != self.files or not self.exists:
                self._commit(files, [*new.values()])
            self._here = {name: files[name].sha256 for name in local}

    def _commit(self, files: dict[str, StoredFile], new: list[tuple[StoredFile, Path]]) -> None:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="ctrbox-upload") as pool:
            for _ in results_of(pool, lambda one: self._upload(*one), new):
                pass
        if self._read_manifest() != self._text:
            raise WriteError(
                f"another process wrote to {self.url} at the same time, so nothing was replaced there; let one process write to "
                "it, or choose another place"
            )
        text = manifest_text(files)
        if len(text) > MOST_BYTES:
            raise WriteError(
                f"{self.url} would have {len(files):,} files, more than one {MANIFEST} can list; write to several folders"
            )
        self._attempt(f"write {self.url}/{MANIFEST}", WriteError, lambda: self._put_manifest(text))
        before = {held.object for held in self.files.values()}
        self.files, self._text = files, text
        self._remove(before - {held.object for held in files.values()})
        if not self._cleaned:  # once: what an earlier process uploaded and never committed
            self._cleaned = True
            needed = {held.object for held in files.values()}
            with contextlib.suppress(CtrboxError):
                there = {info.base_name for info in self._list(f"{self.inside}/{OBJECTS}")}
                self._remove({name for name in there - needed if OBJECT.fullmatch(name)})

    def _upload(self, held: StoredFile, path: Path) -> None:
        def upload() -> None:
            with path.open("rb") as file, self.store.fs.open_output_stream(self._at(held), compression=None) as target:
                shutil.copyfileobj(file, target, BLOCK)

        self._attempt(f"write {self.url}/{OBJECTS}/{held.object}", WriteError, upload)

    def _put_manifest(self, text: bytes) -> None:
        """Replace the manifest in one step: S3 shows an object when it is complete; on HDFS it is renamed."""
        place, fs = f"{self.inside}/{MANIFEST}", self.store.fs
        renames = isinstance(fs, pafs.PyFileSystem)
        with fs.open_output_stream(f"{place}.new" if renames else place, compression=None) as file:
            file.write(text)
        if renames:
            fs.handler.fs.mv(f"{place}.new", place, overwrite=True)

    def _remove(self, objects: Iterable[str]) -> None:
        for name in objects:
            with contextlib.suppress(OSError, RuntimeError):  # an object too many does no harm
                self.store.fs.delete_file(f"{self.inside}/{OBJECTS}/{name}")

    # ---- parts

    def _at(self, held: StoredFile) -> str:
        return f"{self.inside}/{OBJECTS}/{held.object}"

    def _read_manifest(self) -> bytes | None:
        def read() -> bytes:
            with self._open(f"{self.inside}/{MANIFEST}", 0, MOST_BYTES) as file:
                return bytes(file.read(MOST_BYTES + 1))

        try:
            return self._attempt(f"read {self.url}/{MANIFEST}", SourceError, read)
        except FileNotFoundError:
            return None

    def _list(self, folder: str) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(folder, allow_not_found=True)
        found: list[pafs.FileInfo] = self._attempt(
            f"list {self.url}", SourceError, lambda: self.store.fs.get_file_info(selector)
        )
        return found

    def _digest(self, path: Path) -> str:
        """Return the SHA-256 of a local file. Hard links to a file that was read before are not read again."""
        identity = _identity(path)
        if identity not in self._known:
            with path.open("rb") as file:
                self._known[identity] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._known[identity]

    def _attempt(self, deed: str, kind: type[CtrboxError], action: Callable[[], T]) -> T:
        """Run an action on the store, up to three times. A FileNotFoundError is raised at once, for the caller to handle."""
        for pause in (*RETRY_PAUSES_S, None):
            try:
                return action()
            except FileNotFoundError:
                raise
            except (OSError, RuntimeError, pa.ArrowException) as error:
                if pause is None:
                    # With a number of the system, so that whoever follows the folder knows that it may pass.
                    raise kind(f"cannot {deed}: {first_line(error)}") from OSError(errno.EIO, first_line(error))
            time.sleep(pause)
        raise AssertionError


class OtherContents(DataError):
    """Raised if a file has another size or checksum than expected."""


class _Missing(Exception):
    """An object that a manifest names is not there; the folder may have been replaced."""


def link_or_copy(source: Path, target: Path, *, link: bool) -> None:
    """Make a hard link to a file, or a copy of it if ``link`` is False or a hard link is not possible."""
    if link:
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def _identity(path: Path) -> tuple[int, int, int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def _opened(url: str) -> tuple[Store, str]:
    """Return the store of a URL and the path inside it."""
    if url.partition("://")[2].strip("/") == "":
        raise PlanError(f"{url} names neither a bucket nor a folder; expected s3://bucket/folder or hdfs://host/folder")
    if url.partition(":")[0] in WEB:
        return Store(HttpFiles(url), remote=True), ""
    return open_store(url)


@contextlib.contextmanager
def _written(url: str) -> Iterator[None]:
    """Convert the error for a missing bucket or folder to a WriteError."""
    try:
        yield
    except FileNotFoundError as error:
        raise WriteError(f"cannot write to {url}: {first_line(error)}") from error
