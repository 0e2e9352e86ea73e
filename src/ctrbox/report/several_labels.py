"""Shows the metrics of several labels in the report and on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ctrbox.report.read_recorded_files import Fields
from ctrbox.show.charts import text
from ctrbox.show.page import named, section, table

FIGURES = {
    "rows": "rows observed",
    "young_rows": "rows too young",
    "auc": "AUC",
    "gauc": "GAUC",
    "logloss": "log loss",
    "calibration": "calibration",
    "base_rate": "share of ones",
    "rmse": "RMSE",
    "mae": "mean absolute error",
    "r2": "R²",
    "deviance": "Poisson deviance",
    "mean_label": "mean label",
    "mean_prediction": "mean prediction",
}
BRIEF = ("auc", "logloss", "rmse", "deviance")


def by_task(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the metrics of each of several labels, by the name of the label; an empty dict for a run with one label."""
    found: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        task, dot, figure = key.partition(".")
        if dot:
            found.setdefault(task, {})[figure] = value
    return found


def brief_tasks(metrics: Mapping[str, float]) -> str:
    """Return the main figures of several labels on one line."""
    parts = [f"loss {metrics['loss']:.4f}"] if "loss" in metrics else []
    for task, figures in by_task(metrics).items():
        shown = [f"{FIGURES[n]} {figures[n]:.4f}" for n in BRIEF if math.isfinite(figures.get(n, math.nan))]
        parts.append(f"{task}: {' '.join(shown) or 'not observed'}")
    return "  ".join(parts)


def task_table(metrics: Mapping[str, float]) -> list[str]:
    """Return the lines of a table: the metrics of each label, their 95 % intervals, and the weighted metrics."""
    weighted = any(name.partition(".")[2].startswith("weighted_") for name in metrics)
    lines = [f"{'':<12}{'':<20}{'':>12}  {'95 % interval':<22}" + ("by weight" if weighted else "")]
    for task, figures in by_task(metrics).items():
        for name, title in FIGURES.items():
            if name not in figures:
                continue
            line = f"{task:<12}{title:<20}{_number(name, figures[name]):>12}  {_interval(figures, name):<22}"
            lines.append((line + (_number(name, figures.get(f"weighted_{name}")) if weighted else "")).rstrip())
    if "loss" in metrics:
        lines.append(f"{'all':<12}{'loss':<20}{metrics['loss']:>12.4f}")
    return [*lines, f"{'all':<12}{'rows':<20}{metrics.get('rows', 0):>12,.0f}"]


def tasks_shown(s: Fields) -> str:
    """Return the section of the report with the metrics of several labels; an empty text for a run with one label."""
    numbers = {name: value for name, value in s.fields("metrics").values.items() if isinstance(value, int | float)}
    found = by_task(numbers)
    if not found:
        return ""
    rows = [
        [named(task), text(title), text(_number(name, figures[name])), text(_interval(figures, name))]
        for task, figures in found.items()
        for name, title in FIGURES.items()
        if name in figures
    ]
    heads = [("label", ""), ("figure", ""), ("value", "n"), ("95 % interval", "")]
    note = "Metrics of each label, over the validation rows in which it was observed."
    if young := [task for task, figures in found.items() if "young_rows" in figures]:
        note += (
            f" Conversions of {' and '.join(map(repr, young))} arrive late: these metrics count only rows that are as old as the "
            "window of the label; younger rows, whose label may still change, are left out."
        )
    return section("labels", "Labels", note, table(heads, rows))


def _number(name: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:,.0f}" if name.endswith("rows") else f"{value:.4f}"


def _interval(figures: Mapping[str, float], name: str) -> str:
    low, high = (figures.get(f"{name}_{end}", math.nan) for end in ("low", "high"))
    return f"{low:.4f} to {high:.4f}" if math.isfinite(low) and math.isfinite(high) else ""
