"""Reads a published model from an HTTP server that serves a plain local folder or a folder with a manifest (S3 behind a CDN).

A folder with a manifest is read as on S3 (files/stored_folder.py). In a plain folder the names of the files are known, and
their sizes and checksums come from the version list:

    CURRENT                 requested at every check; a few hundred bytes
    log.jsonl               the bytes that CURRENT names. Lines are only appended, so only the end is requested, from a byte
                            before the last seal on: the seal stands for all lines before it
    versions/, patches/     as the version list names them
    serve.json, plan.ctr    of a model folder, once, at the start; log.arrow if it is there

All contents are compared with the version list, and with signatures where there is a public key (versions.py). Without one, only
https is accepted, or a server on this machine: over plain http anybody on the network path can change the model.
"""

from __future__ import annotations

import contextlib
import hashlib
import json

from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.atomic import written_aside
from ctrbox.files.folder_manifest import MANIFEST, StoredFile
from ctrbox.files.http_files import HttpFiles, NoSuchRange
from ctrbox.files.stored_folder import BLOCK, StoredFolder
from ctrbox.files.urls import WEB
from ctrbox.publish.chain_of_sealed_lines import opened_line

MOST_POINTER = 1 << 20  # bytes of CURRENT
MOST_LOG = 1 << 30  # bytes of log.jsonl
MOST_BESIDE = 1 << 32  # bytes of a file beside the versions, such as the plan
OVERLAP = 256  # bytes of the log that are read again: more than the last seal has
WEIGHTS = "weights/"


def open_folder(url: str, what: str, *, signed: bool) -> StoredFolder:
    """Open a folder at a URL. ``what``: what the folder is, in words; ``signed``: whether the caller checks its signatures."""
    if url.partition(":")[0] not in WEB:
        return StoredFolder(url, what)
    if not signed and not HttpFiles(url).private:
        raise PlanError(
            f"{url} is not encrypted, so anybody on the network path can change it; use https://, or check the signatures: "
            "--public-key FILE, or trust="
        )
    return WebFolder(url, what)


class WebFolder(StoredFolder):
    """A folder at an http:// or https:// URL, which is only read."""

    _below: str | None = (
        None  # where the versions of a plain folder are: "", or "weights/"; None for one with a manifest
    )

    def refresh(self) -> bool:
        """Read the manifest, or CURRENT and the version list, again; return whether they have changed."""
        if self._below is None:
            if self._text is not None:
                return super().refresh()
            if self._read_manifest() is not None:
                return super().refresh()
        places = (WEIGHTS, "") if self._below is None else (self._below,)
        for below in places:
            pointer = self._small(f"{below}CURRENT", MOST_POINTER)
            if pointer is None:
                continue
            self._below = below
            if pointer == self._text:
                return False
            self._keep(f"{below}log.jsonl", self._log_of(pointer))
            self._keep(f"{below}CURRENT", pointer)
            self._text = pointer
            return True
        if self._below is not None:
            raise SourceError(
                f"{self.url}/{self._below}CURRENT is missing, although it was there before; publish the folder again"
            )
        return False

    def need(self) -> None:
        if not self.exists:
            raise SourceError(
                f"there is no {self.what.removeprefix('a ')} at {self.url}: the server has neither {MANIFEST} nor "
                f"{WEIGHTS}CURRENT nor CURRENT there"
            )

    def shown(self, name: str) -> str:
        return super().shown(name) if self._below is None else f"{self.url}/{name}"

    def expect(self, name: str, size: int, sha256: str) -> None:
        """Say which file the next `pull` downloads; in a folder with a manifest, the manifest must list the same file."""
        if self._below is None:
            super().expect(name, size, sha256)
        else:
            self.files[name] = StoredFile(size, sha256, name)

    def find(self, names: tuple[str, ...]) -> None:
        """Download those of these files of a plain folder that exist; no list tells their sizes and checksums."""
        for name in names:
            if self._below is not None and (found := self._small(name, MOST_BESIDE)) is not None:
                self._keep(name, found)

    def _at(self, held: StoredFile) -> str:
        return super()._at(held) if self._below is None else f"/{held.object}"

    def _log_of(self, pointer: bytes) -> bytes:
        """Return the version list that CURRENT names; bytes of it that are already here are not downloaded again.

        Its seals are checked before it is kept, so that a wrong list, sent once, does not block the correct one later.
        """
        name, size = f"{self._below}log.jsonl", log_bytes_of(pointer, self.url)
        place = self.path / name
        here = place.read_bytes() if place.exists() else b""
        if OVERLAP < len(here) <= size:
            start = len(here) - OVERLAP
            news = self._small(name, size, start)
            if news is not None and news[:OVERLAP] == here[start:]:
                whole = here + news[OVERLAP:]
                with contextlib.suppress(DataError):
                    check_log(pointer, whole, f"{self.url}/{name}")
                    return whole
        found = self._small(name, size)
        if found is None:
            raise SourceError(f"{self.url}/{name} is missing; publish the folder again")
        check_log(pointer, found, f"{self.url}/{name}")
        return found

    def _small(self, name: str, most: int, start: int = 0) -> bytes | None:
        """Return the bytes of a file from ``start`` up to ``most``; None if it is not there, or has none from ``start`` on.

        Only the log may be longer: lines may be added to it meanwhile.
        """

        def read() -> bytes:
            cut = name.endswith("log.jsonl")
            found, left = bytearray(), most - start if cut else most - start + 1
            try:
                with self._open(f"/{name}", start, MOST_LOG if cut else most) as file:
                    while block := file.read(min(BLOCK, left - len(found))):
                        found += block
            except NoSuchRange:
                raise FileNotFoundError(name) from None
            if len(found) > most - start:
                raise DataError(f"{self.url}/{name} has more than {most:,} bytes, the maximum size of this file")
            return bytes(found)

        try:
            return self._attempt(f"read {self.url}/{name}", SourceError, read)
        except FileNotFoundError:
            return None

    def _keep(self, name: str, contents: bytes) -> None:
        place = self.path / name
        with written_aside(place) as aside:
            aside.write_bytes(contents)
        sha256 = hashlib.sha256(contents).hexdigest()
        self.files[name] = StoredFile(len(contents), sha256, name)
        self._here[name] = sha256


def check_log(pointer: bytes, log: bytes, shown: str) -> None:
    """Raise a `DataError` if the version list is not the one that CURRENT names."""
    facts, seal = opened_line("", pointer, f"CURRENT beside {shown}")[0], ""
    if len(log) != facts["log_bytes"]:
        raise DataError(f"{shown} was truncated: it has {len(log):,} bytes, expected {facts['log_bytes']:,}")
    for line in log.splitlines():
        seal = opened_line(seal, line, shown)[1]
    if seal != facts.get("log_seal"):
        raise DataError(f"{shown} is damaged: CURRENT and log.jsonl do not belong together; publish the folder again")


def log_bytes_of(pointer: bytes, shown: str) -> int:
    """Return how many bytes of the version list count, as CURRENT says. The caller must check CURRENT and the list."""
    try:
        size = json.loads(pointer)["log_bytes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        size = None
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MOST_LOG:
        raise DataError(f"CURRENT of {shown} is damaged, or does not belong to a published model")
    return size
