"""Formats numbers for people, in reports and on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ctrbox.evaluate.auc_of_many_sets import LEAST_GROUPS
from ctrbox.report.several_labels import brief_tasks, by_task, task_table

TITLES = {
    "auc": "AUC",
    "gauc": "GAUC",
    "logloss": "log loss",
    "rig": "RIG",
    "calibration": "calibration",
    "base_rate": "click rate",
    "mean_prediction": "mean prediction",
}


def fixed(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def sized(count: float) -> str:
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} bytes"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def spent(seconds: float) -> str:
    """Format a duration that may be very short."""
    return duration(seconds) if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def learned_rows(rows: int, epochs: int, *, whole: bool) -> str:
    """Say how many rows a training run learned from, in how many epochs. ``rows``: counted once per epoch.

    ``whole``: whether every epoch learned from the same rows. This is not so if training stopped within an epoch, or if
    negatives were downsampled.
    """
    if epochs <= 1:
        return f"{rows:,} rows"
    if whole and rows % epochs == 0:
        return f"{rows // epochs:,} rows, {epochs:,} epochs"
    return f"{rows:,} rows over {epochs:,} epochs, counting a row once per epoch"


def brief(metrics: Mapping[str, float]) -> str:
    """Return the main figures on one line, and then the weighted figures."""
    if by_task(metrics):
        return brief_tasks(metrics)
    names = ("auc", "gauc", "logloss", "calibration")
    shown = [f"{TITLES[n]} {metrics[n]:.4f}" for n in names if math.isfinite(metrics.get(n, math.nan))]
    weighted = [
        f"{TITLES[n]} {metrics[f'weighted_{n}']:.4f}"
        for n in names
        if math.isfinite(metrics.get(f"weighted_{n}", math.nan))
    ]
    return "  ".join(shown) + (f"  (by weight: {'  '.join(weighted)})" if weighted else "")


def figure_table(metrics: Mapping[str, float]) -> list[str]:
    """Return lines of a table: each figure, its 95 % interval, and the weighted figure if rows have weights."""
    if by_task(metrics):
        return task_table(metrics)
    weighted = "weighted_logloss" in metrics
    lines = [f"{'':<16}{'':>10}  {'95 % interval':<22}" + ("by weight" if weighted else "")]
    for name, title in TITLES.items():
        value, low, high = (metrics.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high"))
        between = f"{low:.4f} to {high:.4f}" if math.isfinite(low) and math.isfinite(high) else ""
        line = (
            f"{title:<16}{value:>10.4f}  {between:<22}" if math.isfinite(value) else f"{title:<16}{'-':>10}  {'':<22}"
        )
        again = metrics.get(f"weighted_{name}", math.nan)
        lines.append((line + (f"{again:.4f}" if weighted and math.isfinite(again) else "")).rstrip())
    return lines + [f"{name:<16}{metrics[name]:>10,.0f}" for name in ("rows", "clicks")]


def remarks(metrics: Mapping[str, float]) -> list[str]:
    """Return sentences about what the figures leave out or cannot say."""
    if several := by_task(metrics):
        return [f"label {task!r}: {one}" for task, figures in several.items() for one in remarks(figures)]
    if "rmse" in metrics:  # of a label that is a number: all sentences are about clicks
        return []
    found = []
    rows, clicks = metrics.get("rows", 0.0), metrics.get("clicks", 0.0)
    if rows and clicks in (0, rows):
        what = "clicks" if clicks else "non-clicks"
        found.append(f"all {rows:,.0f} rows are {what}, so AUC, GAUC and RIG are undefined")
    left = metrics.get("gauc_left_out_groups", 0.0)
    if left:
        found.append(
            f"GAUC is over {metrics['gauc_groups']:,.0f} groups; {left:,.0f} groups ({metrics['gauc_left_out_rows']:,.0f} rows) "
            "have only one class and are excluded"
        )
    if few := few_groups(metrics.get("gauc"), metrics.get("gauc_groups")):
        found.append(few)
    if metrics.get("share", 1.0) < 1:
        found.append(
            f"GAUC is computed from a sample of the groups, {metrics['share']:.3g} of them; the other figures are computed "
            "from all rows"
        )
    return found


def few_groups(gauc: float | None, groups: float | None) -> str:
    """Say why a GAUC over fewer than `LEAST_GROUPS` groups has no interval; otherwise return ""."""
    if gauc is None or not math.isfinite(gauc) or not groups or groups >= LEAST_GROUPS:
        return ""
    return (
        f"GAUC is over {groups:,.0f} group{'s' * (groups != 1)} with clicks and non-clicks; below {LEAST_GROUPS} groups it has "
        "no interval, because so few groups do not show how much it varies"
    )
