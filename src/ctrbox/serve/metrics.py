"""Counts requests by route and status, latencies, candidates and reloads, for Prometheus and for the status page.

A latency falls into one of 64 buckets, each a quarter wider than the one before, so a quantile is right to 12 %. The page shows
the last seconds: a ring of one histogram a second.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

BOUNDS = tuple(50e-6 * 1.25**k for k in range(63))  # seconds; 50 µs … 51 s
SHOWN = BOUNDS[::6]  # the buckets Prometheus gets
RING = 60  # seconds
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Second:
    at: int = -1
    requests: int = 0
    refused: int = 0
    candidates: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * 64)


@dataclass(frozen=True)
class Stale:
    """Why the version that serves is not the current one."""

    since: float  # seconds since 1970
    version: int  # that could not be loaded; 0 where the folder could not be read
    reason: str


class ByLabel(NamedTuple):
    """A counter with labels."""

    name: str
    told: str  # what it counts
    values: list[tuple[dict[str, str], int]]


class Metrics:
    """Any number of threads add; reading copies under the same lock."""

    def __init__(self) -> None:
        self.started = time.time()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.candidates = 0
        self.buckets = [0] * 64
        self.seconds = 0.0
        self.applied = 0  # versions loaded while serving
        self.refused = 0  # versions that could not be
        self.last_reload: dict[str, Any] = {}
        self.last_refusal = ""
        self.staleness: Stale | None = None
        self._ring = [Second() for _ in range(RING)]
        self._lock = threading.Lock()

    def add(self, route: str, status: int, seconds: float, candidates: int = 0) -> None:
        """A request was answered. Latencies are those of scoring routes."""
        now = int(time.monotonic())
        with self._lock:
            self.requests[route, status] += 1
            if not candidates and route not in SCORING:
                return
            second = self._ring[now % RING]
            if second.at != now:
                second = self._ring[now % RING] = Second(now)
            second.requests += 1
            if status != 200:
                second.refused += 1
                return
            bucket = bisect_left(BOUNDS, seconds)
            self.buckets[bucket] += 1
            self.seconds += seconds
            self.candidates += candidates
            second.buckets[bucket] += 1
            second.candidates += candidates

    def reloaded(self, version: int, seconds: float, how: str) -> None:
        with self._lock:
            self.applied += 1
            self.last_refusal = ""  # what was wrong is so no more
            self.staleness = None
            self.last_reload = {"version": version, "seconds": seconds, "how": how, "at": time.time()}

    def not_reloaded(self, reason: str) -> None:
        with self._lock:
            self.refused += 1
            self.last_refusal = reason

    def stale(self, version: int, reason: str) -> None:
        """A newer version is published than the one that serves, and could not be loaded."""
        with self._lock:
            since = self.staleness.since if self.staleness is not None else time.time()
            self.staleness = Stale(since, version, reason)

    def fresh(self) -> None:
        """The version that serves is the current one."""
        with self._lock:
            self.staleness = None

    def stale_seconds(self) -> float:
        """Return for how long the model has been stale; 0 where it is not."""
        stale = self.staleness
        return 0.0 if stale is None else max(0.0, time.time() - stale.since)

    def live(self, window: int = 10) -> dict[str, Any]:
        """The last ``window`` whole seconds, and each of the last minute."""
        now = int(time.monotonic())
        with self._lock:
            ring = {s.at: (s.requests, s.refused, s.candidates, list(s.buckets)) for s in self._ring}
        nothing = (0, 0, 0, [0] * 64)
        recent = [ring.get(now - k, nothing) for k in range(1, window + 1)]
        buckets = [sum(column) for column in zip(*(r[3] for r in recent), strict=True)]
        minute = [ring.get(now - k, nothing) for k in range(RING - 1, 0, -1)]
        return {
            "requests_per_second": sum(r[0] for r in recent) / window,
            "refused_per_second": sum(r[1] for r in recent) / window,
            "candidates_per_second": sum(r[2] for r in recent) / window,
            "p50_ms": milliseconds(quantile(buckets, 0.5)),
            "p99_ms": milliseconds(quantile(buckets, 0.99)),
            "minute": {
                "requests": [r[0] for r in minute],
                "p50_ms": [milliseconds(quantile(r[3], 0.5)) for r in minute],
                "p99_ms": [milliseconds(quantile(r[3], 0.99)) for r in minute],
            },
        }

    def text(self, gauges: dict[str, float], counters: dict[str, float], by_label: Sequence[ByLabel] = ()) -> str:
        """Return everything in Prometheus' text form, with more gauges and counters by name and counters by labels."""
        with self._lock:
            requests, buckets = dict(self.requests), list(self.buckets)
            seconds = self.seconds
            counters = {
                **counters,
                "candidates": self.candidates,
                "patches_applied": self.applied,
                "patches_refused": self.refused,
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
        for kind, values in (("counter", counters), ("gauge", gauges)):
            for what, value in sorted(values.items()):
                name = f"ctrbox_{what}_total" if kind == "counter" else f"ctrbox_{what}"
                lines += [f"# TYPE {name} {kind}", f"{name} {value:.12g}"]
        lines += ["# TYPE process_resident_memory_bytes gauge", f"process_resident_memory_bytes {resident()}"]
        lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self.started:.3f}"]
        return "\n".join(lines) + "\n"


def escaped(label: str) -> str:
    """Return the value of a label as Prometheus reads it."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


SCORING = frozenset(["score", "infer", "grpc"])


def quantile(buckets: list[int], share: float) -> float | None:
    """The middle of the bucket that holds the quantile; None of nothing."""
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


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return 0
