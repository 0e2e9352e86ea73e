"""Counts requests by route and status, latencies, candidates and reloads, for Prometheus and for the status page.

A latency falls into one of 64 buckets. Each bucket is a quarter wider than the one before, so a quantile has an error of at most
12 %. The page shows the last seconds, from a ring with one histogram for each second.

The counts of a process are float64 numbers in one block of memory, its *cells*, which are exact up to 2^53:

    requests by route and status   one cell each (`CELL`)
    latencies                      64 buckets, then the sum of seconds
    candidates                     one cell
    the ring                       60 seconds of: the second, requests, refused, candidates, 64 buckets

Worker processes can therefore count in memory that all of them map (memory_shared_by_workers.py). Each worker writes its own
cells, and the worker that is asked for metrics adds the cells of all workers.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

BOUNDS = tuple(50e-6 * 1.25**k for k in range(63))  # seconds; 50 µs … 51 s
SHOWN = BOUNDS[::6]  # the buckets Prometheus gets
RING = 60  # seconds
PAGE = os.sysconf("SC_PAGE_SIZE")


ROUTES = ("score", "infer", "grpc", "prerank", "cascade", "other")
SCORING = frozenset(ROUTES) - {"other"}
STATUSES = (200, 202, 400, 401, 403, 404, 405, 408, 413, 415, 431, 500, 501, 503)
CELL = {pair: k for k, pair in enumerate((route, status) for route in ROUTES for status in STATUSES)}
WIDTH = 64  # buckets
BUCKETS = len(CELL)
SECONDS = BUCKETS + WIDTH
CANDIDATES = SECONDS + 1
FIRST = CANDIDATES + 1  # of the ring
SECOND = 4 + WIDTH  # cells of a second: its number, requests, refused, candidates, buckets
CELLS = FIRST + RING * SECOND
NOTHING = array("d", bytes(8 * SECOND))
Cells: TypeAlias = "memoryview[float]"  # of CELLS float64 numbers


def new_cells() -> Cells:
    return memoryview(bytearray(8 * CELLS)).cast("d")


@dataclass(frozen=True)
class Stale:
    """The reason why the version that is served is not the current one."""

    since: float  # seconds since 1970
    version: int  # that could not be loaded; 0 where the folder could not be read
    reason: str


class ByLabel(NamedTuple):
    """A counter with labels."""

    name: str
    told: str  # what it counts
    values: list[tuple[dict[str, str], int]]


class Metrics:
    """The counts of a server. Any number of threads may add; reading copies the counts under the same lock.

    ``cells`` is where this process counts; default: memory of its own. ``everyone`` has the cells of all workers of the server,
    including these, and their sums are shown; default: only these.
    """

    def __init__(
        self, cells: Cells | None = None, everyone: Sequence[Cells] = (), started: float | None = None
    ) -> None:
        self.started = time.time() if started is None else started
        self.cells = new_cells() if cells is None else cells
        self.everyone = list(everyone) or [self.cells]
        self.applied = 0  # versions loaded while serving
        self.refused = 0  # versions that could not be
        self.signatures_refused = 0  # those of them that no trusted key signed as they are
        self.by_patches = self.by_whole_file = 0  # versions loaded while serving, by what was read for them
        self.version_bytes = 0  # read for them
        self.last_reload: dict[str, Any] = {}
        self.last_refusal = ""
        self.staleness: Stale | None = None
        self._lock = threading.Lock()

    def add(self, route: str, status: int, seconds: float, candidates: int = 0) -> None:
        """Count a request that was answered. Latencies are counted for scoring routes."""
        now = int(time.monotonic())
        cells = self.cells
        with self._lock:
            cells[CELL[route, status]] += 1
            if not candidates and route not in SCORING:
                return
            second = FIRST + now % RING * SECOND
            if cells[second] != now:
                cells[second : second + SECOND] = NOTHING
                cells[second] = now
            cells[second + 1] += 1
            if status != 200:
                cells[second + 2] += 1
                return
            bucket = bisect_left(BOUNDS, seconds)
            cells[BUCKETS + bucket] += 1
            cells[SECONDS] += seconds
            cells[CANDIDATES] += candidates
            cells[second + 4 + bucket] += 1
            cells[second + 3] += candidates

    # ---- sums of all workers

    @property
    def requests(self) -> Counter[tuple[str, int]]:
        """Number of answered requests, by route and status."""
        counted = {pair: int(sum(cells[k] for cells in self.everyone)) for pair, k in CELL.items()}
        return Counter({pair: n for pair, n in counted.items() if n})

    @property
    def buckets(self) -> list[int]:
        """Number of scored requests, by the bucket of their latency."""
        return [int(sum(cells[k] for cells in self.everyone)) for k in range(BUCKETS, BUCKETS + WIDTH)]

    @property
    def seconds(self) -> float:
        """The sum of the latencies."""
        return float(sum(cells[SECONDS] for cells in self.everyone))

    @property
    def candidates(self) -> int:
        return int(sum(cells[CANDIDATES] for cells in self.everyone))

    def _of_second(self, number: int) -> list[int]:
        """Return requests, refused, candidates and the 64 buckets of a second of the last minute."""
        at = FIRST + number % RING * SECOND
        met = [cells[at : at + SECOND].tolist() for cells in self.everyone]
        found = [second for second in met if second[0] == number]
        return [int(sum(column)) for column in zip(*found, strict=True)][1:] if found else [0] * (SECOND - 1)

    # ---- versions

    def reloaded(self, version: int, seconds: float, how: str, read: int = 0) -> None:
        """Count a version that was loaded. ``how``: "whole file" or by patches; ``read``: bytes that were read for it."""
        with self._lock:
            self.applied += 1
            if how == "whole file":
                self.by_whole_file += 1
            else:
                self.by_patches += 1
            self.version_bytes += read
            self.last_refusal = ""  # what was wrong is so no more
            self.staleness = None
            self.last_reload = {"version": version, "seconds": seconds, "how": how, "at": time.time()}

    def not_reloaded(self, reason: str, *, signature: bool = False) -> None:
        """Count a version that was refused. ``signature``: it was not signed by a trusted key."""
        with self._lock:
            self.refused += 1
            self.signatures_refused += signature
            self.last_refusal = reason

    def stale(self, version: int, reason: str) -> None:
        """Note that a newer version than the one that is served could not be loaded."""
        with self._lock:
            since = self.staleness.since if self.staleness is not None else time.time()
            self.staleness = Stale(since, version, reason)

    def fresh(self) -> None:
        """Note that the version that is served is the current one."""
        with self._lock:
            self.staleness = None

    def stale_seconds(self) -> float:
        """Return how many seconds the model has been stale; 0 if it is not."""
        stale = self.staleness
        return 0.0 if stale is None else max(0.0, time.time() - stale.since)

    def told(self) -> dict[str, Any]:
        """Return what happened to new versions, for `hear` in another process."""
        with self._lock:
            return {
                "applied": self.applied,
                "refused": self.refused,
                "signatures_refused": self.signatures_refused,
                "by": [self.by_patches, self.by_whole_file, self.version_bytes],
                "last_reload": self.last_reload,
                "last_refusal": self.last_refusal,
                "stale": None if self.staleness is None else asdict(self.staleness),
            }

    def hear(self, told: dict[str, Any]) -> None:
        """Copy what the process that loads new versions has told."""
        with self._lock:
            self.applied, self.refused = told["applied"], told["refused"]
            self.signatures_refused = told["signatures_refused"]
            self.by_patches, self.by_whole_file, self.version_bytes = told["by"]
            self.last_reload, self.last_refusal = told["last_reload"], told["last_refusal"]
            self.staleness = None if told["stale"] is None else Stale(**told["stale"])

    def live(self, window: int = 10) -> dict[str, Any]:
        """Return figures of the last ``window`` complete seconds, and of each second of the last minute."""
        now = int(time.monotonic())
        with self._lock:
            minute = [self._of_second(now - k) for k in range(RING - 1, 0, -1)]
        recent = minute[-window:]
        buckets = [sum(column) for column in zip(*(r[3:] for r in recent), strict=True)]
        return {
            "requests_per_second": sum(r[0] for r in recent) / window,
            "refused_per_second": sum(r[1] for r in recent) / window,
            "candidates_per_second": sum(r[2] for r in recent) / window,
            "p50_ms": milliseconds(quantile(buckets, 0.5)),
            "p99_ms": milliseconds(quantile(buckets, 0.99)),
            "minute": {
                "requests": [r[0] for r in minute],
                "p50_ms": [milliseconds(quantile(r[3:], 0.5)) for r in minute],
                "p99_ms": [milliseconds(quantile(r[3:], 0.99)) for r in minute],
            },
        }

    def text(
        self,
        gauges: dict[str, float],
        counters: dict[str, float],
        by_label: Sequence[ByLabel] = (),
        memory: int | None = None,
        more: Sequence[str] = (),
    ) -> str:
        """Return everything in the text format of Prometheus, with more gauges and counters by name and counters by labels.

        ``memory``: bytes of memory of the server; default: of this process. ``more``: lines that other code wrote.
        """
        with self._lock:
            requests, buckets, seconds = self.requests, self.buckets, self.seconds
            counters = {
                **counters,
                "candidates": self.candidates,
                "patches_applied": self.applied,
                "patches_refused": self.refused,
                "signatures_refused": self.signatures_refused,
                "versions_by_patches": self.by_patches,
                "versions_by_whole_file": self.by_whole_file,
                "version_bytes": self.version_bytes,
            }
        lines = ["# HELP ctrbox_requests_total Requests answered.", "# TYPE ctrbox_requests_total counter"]
        lines += [
            f'ctrbox_requests_total{{route="{route}",code="{status}"}} {n}'
            for (route, status), n in sorted(requests.items())
        ]
        name = "ctrbox_request_seconds"
        lines += [f"# HELP {name} Time from a request's last byte to its answer.", f"# TYPE {name} histogram"]
        for bound in SHOWN:
            upto = sum(buckets[: bisect_left(BOUNDS, bound) + 1])
            lines.append(f'{name}_bucket{{le="{bound:.6g}"}} {upto}')
        lines += [
            f'{name}_bucket{{le="+Inf"}} {sum(buckets)}',
            f"{name}_sum {seconds:.9g}",
            f"{name}_count {sum(buckets)}",
        ]
        for one in by_label:
            name = f"ctrbox_{one.name}_total"
            lines += [f"# HELP {name} {one.told}", f"# TYPE {name} counter"]
            for labels, count in one.values:
                shown = ",".join(f'{label}="{escaped(what)}"' for label, what in labels.items())
                lines.append(f"{name}{{{shown}}} {count}")
        lines += more
        for kind, values in (("counter", counters), ("gauge", gauges)):
            for what, value in sorted(values.items()):
                name = f"ctrbox_{what}_total" if kind == "counter" else f"ctrbox_{what}"
                lines += [f"# TYPE {name} {kind}", f"{name} {value:.12g}"]
        held = resident() if memory is None else memory
        lines += ["# TYPE process_resident_memory_bytes gauge", f"process_resident_memory_bytes {held}"]
        lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self.started:.3f}"]
        return "\n".join(lines) + "\n"


def escaped(label: str) -> str:
    """Return the value of a label in the notation of Prometheus."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def quantile(buckets: list[int], share: float) -> float | None:
    """Return the middle of the bucket that contains the quantile; None if there are no values."""
    total = sum(buckets)
    if not total:
        return None
    left = share * total
    for k, n in enumerate(buckets):
        left -= n
        if left <= 0:
            low = BOUNDS[k - 1] if k else 0.0
            return (low + BOUNDS[min(k, len(BOUNDS) - 1)]) / 2
    return BOUNDS[-1]


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def resident(process: int | str = "self") -> int:
    """Return the bytes of memory of a process; 0 if the system does not say."""
    try:
        with open(f"/proc/{process}/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return 0
