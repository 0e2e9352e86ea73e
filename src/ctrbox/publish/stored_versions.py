"""Downloads and uploads the files of published versions in a folder on S3, HDFS or an HTTP server.

`Published` works on a local copy. CURRENT, log.jsonl and FEATURES are small and are brought up to date before each use; the
weight file and the patch of a version are downloaded when they are needed. A new version is uploaded at once, and is published at
the moment in which the manifest of the folder is written (files/stored_folder.py).
"""

from __future__ import annotations

from pathlib import Path

from ctrbox.errors import DataError, PlanError
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.publish.web_folder import open_folder

WHAT = "a folder of published versions"
MOST_LOG = 1 << 30  # bytes of log.jsonl
MOST_SMALL = 64 << 20  # bytes of CURRENT and of FEATURES
SMALL = {"CURRENT": MOST_SMALL, "FEATURES": MOST_SMALL, "log.jsonl": MOST_LOG}


class StoredVersions:
    """The versions in a folder. ``below``: the beginning of the names of their files: "weights/" for a served model."""

    def __init__(self, stored: StoredFolder, below: str = "") -> None:
        self.stored, self.below = stored, below
        self.folder: Path = stored.path / below

    @staticmethod
    def open(url: str, *, signed: bool = False) -> StoredVersions:
        """Open the folder at a URL, which may be that of the weights inside the folder of a served model.

        ``signed``: whether the caller checks its signatures.
        """
        stored = open_folder(url, WHAT, signed=signed)
        above, _, name = stored.url.rpartition("/")
        if not stored.exists and name == "weights":
            model = open_folder(above, "a served model", signed=signed)
            if model.holds("serve.json"):
                stored.close()
                return StoredVersions(model, "weights/")
            model.close()
        if stored.files and not stored.holds("CURRENT") and not stored.holds("FEATURES"):
            inside = stored.holds("serve.json") or stored.holds("weights/CURRENT")
            advice = f"use {stored.url}/weights" if inside else "choose another place"
            raise PlanError(f"{stored.url} holds {min(stored.files)!r} and no published version; {advice}")
        return StoredVersions(stored)

    @property
    def shown(self) -> str:
        return f"{self.stored.url}/{self.below}".rstrip("/")

    def refresh(self) -> None:
        """Bring the small files up to date. CURRENT is replaced last, because it says how many bytes of the log count."""
        self.stored.refresh()
        small = {f"{self.below}{name}": most for name, most in SMALL.items()}
        for name, most in small.items():
            if (held := self.stored.files.get(name)) is not None and held.bytes > most:
                raise DataError(f"{name} of {self.stored.url} has {held.bytes:,} bytes; expected at most {most:,}")
        self.stored.pull(lambda name: name in small, last=[f"{self.below}CURRENT"])

    def fetch(self, name: str, size: int, sha256: str) -> None:
        """Download a file, if the folder has it and it is not in the local copy yet; ``name``: such as "versions/00000007.fbw".

        ``size`` and ``sha256`` are those in the version list. A file with another size or checksum raises an error, and is not
        downloaded.
        """
        self.stored.expect(self.below + name, size, sha256)
        self.stored.pull(lambda one: one == self.below + name)

    def fetch_all(self) -> None:
        self.stored.refresh()
        self.stored.pull(lambda name: name.startswith(self.below))

    def kept(self) -> list[int]:
        """Return the numbers of the versions whose weight files the folder has."""
        start = f"{self.below}versions/"
        stems = (Path(name).stem for name in self.stored.files if name.startswith(start))
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def drop(self, name: str) -> None:
        self.stored.drop(self.below + name)

    def push(self) -> None:
        """Upload new files. If this fails, the next refresh downloads everything again."""
        try:
            self.stored.push()
        except BaseException:
            self.stored.distrust()
            raise
