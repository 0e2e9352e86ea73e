"""New versions while serving: a thread watches CURRENT of the published folder.

The server has its own copy of the weights. A new version comes as the patches since the copy's, each checked against its base
and its result before anything is written; then the copy is loaded beside the model that serves, and one reference is replaced.
What is refused is said and counted once, and the old version goes on; when a later version is published, the whole file is taken
instead of a chain that holds the bad patch.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
import time

from ctrbox.engines.aside import written_aside
from ctrbox.errors import CtrboxError, DataError, WriteError
from ctrbox.publish.versions import Published, Version
from ctrbox.serve import own_copy
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.served import Updated

log = logging.getLogger("ctrbox.serve")


class Reloader:
    """``start`` to watch every ``period`` seconds; ``look`` does it once, here."""

    def __init__(self, served: Updated, published: Published, metrics: Metrics, period: float = 0.5) -> None:
        self.served, self.published, self.metrics, self.period = served, published, metrics, period
        self._own = own_copy.OwnCopy()
        self.copy = self._own.place / "served.fbw"
        try:
            shutil.copyfile(published.file(served.version), self.copy)
        except OSError as error:
            self._own.close()
            raise WriteError(f"cannot copy the weights to {self.copy.parent}: {error.strerror or error}") from error
        except BaseException:
            self._own.close()
            raise
        self.refused: set[int] = set()  # versions that were tried and could not be taken
        self._seen: tuple[int, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ctrbox-reload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._own.close()

    def _watch(self) -> None:
        while not self._stop.wait(self.period):
            try:
                self.look()
            except Exception as error:  # what a folder holds must not end the watch over it
                self._refuse(None, f"{type(error).__name__}: {error}")

    def look(self) -> bool:
        """Take up the current version where it is another one; whether it was taken up."""
        try:
            facts = (self.published.folder / "CURRENT").stat()
            seen = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            if seen == self._seen:
                return False
            self._seen = seen
            version = self.published.current
        except (OSError, CtrboxError) as error:
            self._refuse(None, str(error))
            return False
        if version is None or version.number == self.served.version or version.number in self.refused:
            return False
        began = time.perf_counter()
        try:
            version, how = self._update(version)
            self.served.take(self.copy, version.number)
        except (CtrboxError, OSError, MemoryError) as error:
            self.refused.add(version.number)
            self._refuse(version, str(error) or type(error).__name__)
            return False
        self.refused = {n for n in self.refused if n > version.number}
        seconds = time.perf_counter() - began
        self.metrics.reloaded(version.number, seconds, how)
        log.info("serving version %d, by %s in %.2f s", version.number, how, seconds)
        return True

    def _update(self, version: Version) -> tuple[Version, str]:
        """Bring the copy to a version, or to one published meanwhile; which, and how in words."""
        if self.refused.isdisjoint(range(self.served.version + 1, version.number + 1)):
            return self.published.update(self.copy), "patch"
        with written_aside(self.copy) as aside:
            shutil.copyfile(self.published.file(version.number), aside)
            with aside.open("rb") as file:
                met = (aside.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
            if met != (version.bytes, version.sha256):
                raise DataError(f"the file of version {version.number} is damaged: its checksum does not fit")
        return version, "whole file"

    def _refuse(self, version: Version | None, reason: str) -> None:
        what = f"version {version.number}" if version else "the published folder"
        self.metrics.not_reloaded(f"{what}: {reason}")
        log.warning("%s is refused, version %d goes on: %s", what, self.served.version, reason)
