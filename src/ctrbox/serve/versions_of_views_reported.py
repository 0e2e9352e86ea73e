"""Reports which versions of the joined views a server reads: for /v1/views, for readiness and for Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ctrbox.serve.figures_of_workers import Figures
from ctrbox.serve.metrics import escaped

if TYPE_CHECKING:
    from ctrbox.serve.service import Service


def views_of(service: Service, now: Figures) -> list[dict[str, Any]]:
    """Return, for each joined view, the lowest version that a worker reads, the versions of all workers, and why it is stale."""
    told = {} if service.refresher is None else service.refresher.told().get("views", {})
    found = []
    for name, one in service.served.views.loaded.items():
        known = told.get(name, {})
        stale = known.get("stale")
        numbers = now["views"].get(name) or [one.number]
        read_at = known.get("read_at", one.read_at)
        found.append(
            {
                "name": name,
                "version": numbers[0],
                "versions": numbers,
                "rows": known.get("rows", one.rows),
                "read_at": read_at,
                "files": known.get("digest", one.digest) or None,
                "refreshable": known.get("refreshable", False),
                "stale": None if stale is None else {"seconds": since(stale["since"]), "reason": stale["reason"]},
            }
        )
    return found


def since(moment: float) -> float:
    return round(max(0.0, time.time() - moment), 1)


def lines_of_views(service: Service, now: Figures) -> list[str]:
    """Return the metrics of joined views in Prometheus' text format; empty for a model without joined views."""
    views = views_of(service, now)
    if not views:
        return []
    told = {} if service.refresher is None else service.refresher.told()
    gauges = {
        "view_version": ("Lowest version of a joined view that a worker reads.", lambda one: one["version"]),
        "view_rows": ("Rows of a joined view.", lambda one: one["rows"]),
        "view_age_seconds": ("Time since a joined view was read.", lambda one: since(one["read_at"])),
        "view_stale_seconds": (
            "Time for which newer files of a joined view could not be read; 0 if it is not stale.",
            lambda one: one["stale"]["seconds"] if one["stale"] else 0,
        ),
    }
    lines = []
    for name, (words, value) in gauges.items():
        lines += [f"# HELP ctrbox_{name} {words}", f"# TYPE ctrbox_{name} gauge"]
        lines += [f'ctrbox_{name}{{view="{escaped(one["name"])}"}} {value(one):.12g}' for one in views]
    for name, words in (("refreshed", "Joined views that were read again."), ("refused", "Refreshes that failed.")):
        full = f"ctrbox_views_{name}_total"
        lines += [f"# HELP {full} {words}", f"# TYPE {full} counter", f"{full} {told.get(name, 0)}"]
    return lines
