"""Loads new versions while serving: a thread watches the CURRENT file of the published folder.

The server has its own copy of the weights (own_copy_of_weights.py). A new version is read as the patches since the version of the
copy, or as a whole file if that has fewer bytes. Each file is compared with the list of versions, which may be signed, before
anything is written. Then the new copy is loaded while the old model still serves, and one reference is replaced. A version that
is refused is logged and counted once, and the server keeps the old version. The reason decides what happens next:

    a temporary fault   no file handle, a full disk, no memory, a folder that cannot be read for now: the server tries again after
                        1 s, 2 s, 4 s and so on up to a minute, until it succeeds
    a damaged version   a wrong checksum or signature, or a field that the plan does not have: the server does not try again; when
                        a later version is published, it reads the whole file instead of a chain with the damaged patch

While a newer version is published than the one that is served, the model is stale. `Metrics.stale` says since when and why.

If there are several workers, only the supervisor does this, without a thread. It writes each version that it loaded to a file
(`SharedVersions`), which the workers then open (worker_follows_supervisor.py).
"""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from ctrbox.errors import CtrboxError, SignatureError
from ctrbox.publish.shared_weights import write_shared
from ctrbox.publish.versions import Published, Update, Version
from ctrbox.publish.weights_of_models import DEEP_FFM
from ctrbox.serve.metrics import Metrics
from ctrbox.serve.own_copy_of_weights import OwnCopy
from ctrbox.serve.served_models import Updated
from ctrbox.serve.watcher import FIRST_WAIT, LONGEST_WAIT, Watcher

log = logging.getLogger("ctrbox.serve")


class Reloader(Watcher):
    """Loads new versions. ``start`` watches every ``period`` seconds in a thread; ``look`` looks once, in the caller's thread."""

    def __init__(
        self,
        served: Updated,
        published: Published,
        metrics: Metrics,
        period: float = 0.5,
        *,
        shares: bool = False,
        own: OwnCopy | None = None,
    ) -> None:
        """``shares`` writes each version to a file for other processes. ``own`` is the copy from which the model was loaded."""
        super().__init__(self.look_safely, period, "ctrbox-reload")
        self.served, self.published, self.metrics = served, published, metrics
        self.own = OwnCopy(published, served.version) if own is None else own
        self.copy = self.own.file
        self.shared = SharedVersions(self.own.folder) if shares else None
        self.refused: set[int] = set()  # versions that were tried and could not be taken
        self._seen: tuple[int, ...] = ()  # facts of CURRENT when it was last read
        self._retry_at = math.inf  # by the monotonic clock
        self._wait = FIRST_WAIT
        self._told = ""  # the last fault that was counted and logged

    def close(self) -> None:
        super().close()
        self.own.close()

    def look_safely(self) -> None:
        """Look once. No content of a folder may end the thread that watches it."""
        try:
            self.look()
        except Exception as error:
            self._failed(None, error)

    def look(self) -> bool:
        """Load the current version if it is another one; return whether it was loaded."""
        again = time.monotonic() >= self._retry_at
        version = None
        began = time.perf_counter()
        try:
            self.published.refresh()
            facts = (self.published.folder / "CURRENT").stat()
            seen = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            if seen == self._seen and not again:
                return False
            if seen != self._seen:
                self._seen, self._wait, self._told = seen, FIRST_WAIT, ""
            self._retry_at = math.inf
            version = self.published.current
            if version is None or version.number == self.served.version:
                self.metrics.fresh()
                return False
            if version.number in self.refused:
                return False
            update = self._update(version)
            version = update.version
            if self.shared is None:
                self.served.take(self.copy, version.number)
            else:
                self.shared.give(self.copy, version, lambda file: self.served.take(file, version.number, shared=True))
        except (CtrboxError, OSError, MemoryError) as error:
            self._failed(version, error)
            return False
        self.refused = {n for n in self.refused if n > version.number}
        self._wait, self._told = FIRST_WAIT, ""
        seconds = time.perf_counter() - began
        self.metrics.reloaded(version.number, seconds, update.how, update.bytes)
        log.info(
            "serving version %d, by %s in %.2f s: read %s bytes, the whole file has %s",
            version.number, update.how, seconds, f"{update.bytes:,}", f"{version.bytes:,}",
        )  # fmt: skip
        return True

    def _update(self, version: Version) -> Update:
        """Bring the copy to a version, or to a newer one that was published meanwhile."""
        # A refused version may have a patch that cannot be read, so the versions behind it are loaded from whole files.
        return self.published.updated(self.copy, whole=any(number < version.number for number in self.refused))

    def _failed(self, version: Version | None, error: Exception) -> None:
        """Log and count a failure, once for each reason. If it may be temporary, set the time of the next try."""
        what = f"version {version.number}" if version else "the published folder"
        reason = f"{what}: {str(error) or type(error).__name__}"
        then = "it will not be retried"
        if passing(error):
            self._retry_at = time.monotonic() + self._wait
            then = f"next retry in {self._wait:g} s"
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        elif version is not None:
            self.refused.add(version.number)
        self.metrics.stale(version.number if version else 0, reason)
        told = f"{what}: {type(error).__name__} {_errno(error)}"  # a message may hold numbers that change, such as free bytes
        if told != self._told:
            self._told = told
            self.metrics.not_reloaded(reason, signature=isinstance(error, SignatureError))
            log.warning("could not load %s, still serving version %d; %s: %s", what, self.served.version, then, error)


class SharedVersions:
    """The version that several processes serve, as a file that never changes. ``file`` is its path, or "" if there is none."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, ""

    def give(self, copy: Path, version: Version, take: Callable[[Path], None]) -> None:
        """Make the file of a version, and keep it if ``take`` accepts it. Then remove the file of the version before.

        A worker that has not opened the old file yet does not find it, looks again and finds the new one. A worker that has
        mapped the old file keeps its memory.
        """
        place = self.folder / f"{version.number:08}.shared"
        try:
            if version.kind == DEEP_FFM:
                write_shared(copy, place)
            else:
                # Tables are copied by whoever loads them. A second name is enough, because an update replaces the copy.
                place.unlink(missing_ok=True)
                os.link(copy, place)
            take(place)
        except BaseException:
            place.unlink(missing_ok=True)
            raise
        if self.file:
            Path(self.file).unlink(missing_ok=True)
        self.file = str(place)


def passing(error: BaseException) -> bool:
    """Return whether a fault is temporary: a fault of the machine, and not of the published version."""
    number = _errno(error)
    if number is not None:
        return number not in (errno.ENOENT, errno.ENOTDIR)  # a file that was removed does not come back
    return not isinstance(error, CtrboxError)


def _errno(error: BaseException) -> int | None:
    """Return the system's error number of an error; ENOMEM for a MemoryError."""
    met: BaseException | None = error
    while met is not None:
        if isinstance(met, MemoryError):
            return errno.ENOMEM
        if isinstance(met, OSError) and met.errno is not None:
            return met.errno
        met = met.__cause__ or met.__context__
    return None
