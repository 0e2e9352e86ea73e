"""Reads joined views again while serving: when their files change, or when somebody asks for it.

    files change ─► listed every few seconds ─► unchanged for a second ─► read beside the old ones ─► one reference is replaced
    POST /v1/views/refresh ───────────────────────────────────────────┘

What requests read is replaced only when all rows of a view were read and agree with the plan
(`ctrbox.compiled_plan.refreshed_views`). Otherwise the server goes on answering with the old rows: the failure is logged and
counted once for each reason, readiness says that the view is stale, and the same files are tried again after 1 s, 2 s, 4 s
and so on up to a minute, or as soon as they change. The failure of one view does not delay the others.

With several workers, the supervisor reads the views, so that a worker that it starts later has the newest rows too. It has no
thread for this between two reads. When it has read a view, it says so on the board, and each worker reads the view itself
(`ViewFollower`): from the same files or, if they have changed since, only when the supervisor has read them as well. So a version
number stands for the same rows in all workers.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from ctrbox.compiled_plan.refreshed_views import JoinedViews
from ctrbox.errors import CtrboxError, PlanError
from ctrbox.serve.memory_shared_by_workers import Board, Desk
from ctrbox.serve.served_models import Served
from ctrbox.serve.watcher import FIRST_WAIT, LONGEST_WAIT, Watcher

TICK_SECONDS = 0.5  # between two checks whether there is work
QUIET_SECONDS = 1.0  # time for which the files of a view must not change before they are read
FAULTS = (CtrboxError, OSError, MemoryError)
log = logging.getLogger("ctrbox.serve")


@dataclass
class Watched:
    """The refresher's state of one view. Times are of the monotonic clock; ``stale_since`` is in seconds since 1970."""

    changed: str = ""  # digest of files that are other ones than those that were read
    changed_at: float = 0.0
    failed: str = ""  # digest of files that could not be read
    retry_at: float = math.inf
    wait: float = FIRST_WAIT
    reason: str = ""  # why the view is stale; "" if it is not
    stale_since: float = 0.0
    told: str = ""  # the last fault that was counted and logged


class ViewRefresher(Watcher):
    """Reads joined views again. ``start`` watches in a thread; ``look`` looks once, in the caller's thread.

    ``every``: seconds between two listings of the files; 0: views are read only after calls.
    """

    def __init__(self, served: Served, every: float = 0.0) -> None:
        super().__init__(self.look_safely, TICK_SECONDS, "ctrbox-views")
        self.served, self.every = served, every
        self.refreshed = self.refused = 0
        self.done = 0  # calls that were answered by a read
        self._calls = 0
        self.asked: Callable[[], int] = lambda: self._calls  # calls so far; of several workers, those of all of them
        self._next_listing = 0.0
        self.states = {name: Watched() for name in served.views.refreshable}
        self._lock = threading.Lock()

    def ask(self) -> int:
        """Ask for a read of all views that have files; returns the number of this call, which ``done`` reaches afterwards."""
        with self._lock:
            self._calls += 1
            return self._calls

    def interrupt(self) -> None:
        """End a read in progress. A signal handler may call it."""
        if not self._stop.is_set():
            self._stop.set()

    def look_safely(self) -> None:
        """Look at the files once. No content of a file may end the thread that watches them."""
        try:
            self.look()
        except CancelledError:
            return
        except Exception:
            log.exception("joined views could not be looked at")

    def look(self) -> bool:
        """Read the views that have changed or were asked for, and return whether there are new rows."""
        now, asked = time.monotonic(), self.asked()
        forced = asked > self.done
        listed = bool(self.every) and now >= self._next_listing
        if listed:
            self._next_listing = now + self.every
        before = views = self.served.views
        for name, watched in self.states.items():
            if not (forced or listed or watched.changed or now >= watched.retry_at):
                continue
            try:
                digest = views.found(name).digest
            except FAULTS as error:
                if forced or now >= watched.retry_at or not watched.reason:
                    self._failed(name, "", error)
                continue
            if not forced and not self._due(views, name, watched, digest, now):
                continue
            try:
                views = views.refreshed([name], stop=self._stop)
            except FAULTS as error:
                self._failed(name, digest, error)
                continue
            self.states[name] = Watched()
        if views is not before:
            self.served.take_views(views)
            for name in views.names:
                if (new := views.loaded[name]) is not before.loaded[name]:
                    self.refreshed += 1
                    log.info(
                        "joined view %r was read again in %.2f s: version %d has %s rows", name, new.seconds, new.number,
                        f"{new.rows:,}",
                    )  # fmt: skip
        if forced:
            self.done = asked
        return views is not before

    def _due(self, views: JoinedViews, name: str, watched: Watched, digest: str, now: float) -> bool:
        """Return whether to read the files of a view: they differ from those being served, and no longer change."""
        if digest == views.loaded[name].digest:
            self.states[name] = Watched()  # the files that serve are back
            return False
        if digest == watched.failed:
            return now >= watched.retry_at
        if digest != watched.changed:
            watched.changed, watched.changed_at = digest, now
            return False
        return now - watched.changed_at >= QUIET_SECONDS

    def _failed(self, name: str, digest: str, error: Exception) -> None:
        """Log and count a failure, once for each reason, and set the time of the next try."""
        watched = self.states[name]
        if digest != watched.failed:
            watched.wait = FIRST_WAIT
        watched.failed, watched.changed = digest, ""
        watched.retry_at = time.monotonic() + watched.wait
        wait, watched.wait = watched.wait, min(2 * watched.wait, LONGEST_WAIT)
        watched.stale_since = watched.stale_since or time.time()
        watched.reason = (str(error) or type(error).__name__)[:2000]
        told = f"{digest} {type(error).__name__}"
        if told != watched.told:
            watched.told = told
            self.refused += 1
            log.warning(
                "could not refresh joined view %r; the server still uses version %d of its rows; next try in %g s: %s",
                name, self.served.views.loaded[name].number, wait, watched.reason,
            )  # fmt: skip

    def told(self) -> dict[str, Any]:
        """Return what happened to joined views, as plain JSON."""
        views: dict[str, Any] = {}
        for name, one in self.served.views.loaded.items():
            watched = self.states.get(name, Watched())
            stale = {"since": watched.stale_since, "reason": watched.reason} if watched.reason else None
            views[name] = {
                "number": one.number,
                "digest": one.digest,
                "rows": one.rows,
                "read_at": one.read_at,
                "seconds": one.seconds,
                "refreshable": name in self.states,
                "stale": stale,
            }
        return {"refreshed": self.refreshed, "refused": self.refused, "done": self.done, "views": views}


class ViewFollower(Watcher):
    """Follows the supervisor in a worker: reads the views again that the board names."""

    def __init__(self, served: Served, desk: Desk) -> None:
        super().__init__(self.look_safely, TICK_SECONDS, "ctrbox-views")
        self.served, self.desk = served, desk
        self._retry_at, self._wait = 0.0, FIRST_WAIT

    @property
    def board(self) -> Board:
        return self.desk.board

    def ask(self) -> int:
        """Ask the supervisor for a read; returns the number of this call among those of all workers."""
        return self.desk.ask_for_views()

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = self.board.news.read().get("views", {})
        return found

    def look_safely(self) -> None:
        try:
            self.look()
        except CancelledError:
            return
        except Exception as error:
            if time.monotonic() >= self._retry_at:
                self._retry_at = time.monotonic() + self._wait
                log.warning("could not read joined views again; next try in %g s: %s", self._wait, error)
                self._wait = min(2 * self._wait, LONGEST_WAIT)

    def look(self) -> bool:
        """Read the views that the supervisor has read and this process has not, and return whether there were any."""
        mine = self.served.views
        if self.board.views in (0, sum(one.number for one in mine.loaded.values())):
            return False
        if time.monotonic() < self._retry_at:
            return False
        asked = self.told().get("views", {})
        behind = [name for name, one in mine.loaded.items() if name in asked and asked[name]["number"] > one.number]

        def others() -> bool:
            """Return whether the files have changed since the supervisor read them; it will then read them again."""
            return any(mine.found(name).digest != asked[name]["digest"] for name in behind if mine.loaded[name].digest)

        if not behind or others():
            return False
        numbers = {name: asked[name]["number"] for name in mine.loaded}
        read = mine.refreshed(behind, numbers, self._stop)
        if others() or any(read.loaded[name].digest != asked[name]["digest"] for name in behind):
            return False  # they changed while they were read
        self.served.take_views(read)
        self._retry_at, self._wait = 0.0, FIRST_WAIT
        return True


def check_refreshes(every: float, served: Served) -> None:
    """Raise PlanError if the settings ask to watch views, but no view has files."""
    if every and not served.views.refreshable:
        views = served.views.names
        why = f"the joined views {views} have no files to watch" if views else "this model joins no views"
        raise PlanError(f"--views-every {every:g} is not possible: {why}; remove the option")
