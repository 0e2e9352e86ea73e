"""Collects the figures of one worker, in addition to its counts of requests, and adds them up for all workers.

A worker writes its figures to the board (memory_shared_by_workers.py) 50 ms after an answer, twice a second, and when it is asked
for the figures of the server. They are plain JSON:

    counters   numbers that only grow; those of a worker that ended are added to those of its successor
    gauges     present values
    keys       by field: number of known and of unknown keys
    joins      view, columns, number of keys, number of keys without a row
    labels     for several labels, by name: sum and number of the predictions (prediction_sums.py)
    unlearned  fields in which no key was known for a long time (unlearned_keys.py)
    vectors    number of objects with published vectors, which is the same in every worker
    versions   versions of the model that workers serve
    views      for each joined view: the versions that workers read
    past       for the state of histories: the newest time that was fed, in microseconds since 1970
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ctrbox.serve.view_versions import joins_together

if TYPE_CHECKING:
    from ctrbox.serve.service import Service

Figures = dict[str, Any]


def figures_of(service: Service) -> Figures:
    """Return the figures of this process."""
    cache, door, queue, served = service.served.cache, service.door, service.queue, service.served
    objects = served.objects()
    counters = {
        "cache_hits": cache.counts.hits,
        "cache_misses": cache.counts.misses,
        "cache_evictions": cache.counts.evictions,
        "overload_refusals": queue.refusals,
        "connections_dropped": door.dropped,
        "connections_refused": door.refused,
    }
    gauges = {
        "cache_bytes": cache.bytes,
        "cache_entries": len(cache),
        "requests_pending": queue.pending,
        "buffered_bytes": door.held,
        "connections": door.connections,
        "connections_limit": door.most_connections,
        "clients": len(door.clients),
    }
    counters |= {f"objects_{what}": objects[what] for what in ("missing", "embedded", "encoded") if what in objects}
    gauges |= {f"objects_{what}": objects[what] for what in ("remembered",) if what in objects}
    joins = served.joins()
    if service.prerank is not None:
        counters |= {"prerank_candidates": service.prerank.candidates, "prerank_missing": service.prerank.missing}
        joins = joins_together(joins, service.prerank.joins())  # both may join one view
    return {
        "counters": counters,
        "gauges": gauges,
        "keys": {name: [counts["known"], counts["unknown"]] for name, counts in served.known.counted().items()},
        "joins": [[join.view, list(join.on), join.keys, join.missed] for join in joins],
        "labels": service.label_sums.told(),
        "unlearned": served.known.never_found(),
        "vectors": objects.get("vectors"),
        "versions": [served.version],
        "views": {name: [one.number] for name, one in served.views.loaded.items()},
        "past": [newest] if served.past is not None and (newest := served.past.histories.newest) is not None else [],
    }


def together(parts: Iterable[Figures]) -> Figures:
    """Return the figures of several workers as those of one server. Parts without values are left out."""
    counters: Counter[str] = Counter()
    gauges: Counter[str] = Counter()
    keys: dict[str, list[int]] = {}
    joins: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    labels: dict[str, list[float]] = {}
    unlearned: dict[str, None] = {}
    vectors: int | None = None
    versions: set[int] = set()
    views: dict[str, set[int]] = {}
    past: set[int] = set()
    for part in parts:
        if not part:
            continue
        for name, count in part["counters"].items():
            counters[name] += count
        for name, value in part["gauges"].items():
            gauges[name] += value
        for name, (known, unknown) in part["keys"].items():
            met = keys.setdefault(name, [0, 0])
            met[0], met[1] = met[0] + known, met[1] + unknown
        for view, on, looked_up, missed in part["joins"]:
            found = joins.setdefault((view, tuple(on)), [0, 0])
            found[0], found[1] = found[0] + looked_up, found[1] + missed
        for name, (total, count) in part.get("labels", {}).items():
            sums = labels.setdefault(name, [0.0, 0])
            sums[0], sums[1] = sums[0] + total, sums[1] + count
        unlearned |= dict.fromkeys(part["unlearned"])
        vectors = part["vectors"] if vectors is None else vectors
        versions |= set(part["versions"])
        past |= set(part.get("past", []))
        for name, numbers in part.get("views", {}).items():
            views.setdefault(name, set()).update(numbers)
    return {
        "counters": dict(counters),
        "gauges": dict(gauges),
        "keys": keys,
        "joins": [[view, list(on), *counts] for (view, on), counts in joins.items()],
        "labels": labels,
        "unlearned": list(unlearned),
        "vectors": vectors,
        "versions": sorted(versions),
        "views": {name: sorted(numbers) for name, numbers in views.items()},
        "past": sorted(past),
    }


def carried(figures: Figures) -> Figures:
    """Return the counts of a worker that has ended, which its successor continues; present values are left out."""
    if not figures:
        return {}
    return {**figures, "gauges": {}, "unlearned": [], "vectors": None, "versions": [], "views": {}, "past": []}
