"""Shows a run in a notebook: its metrics and its learning curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ctrbox.errors import CtrboxError
from ctrbox.report.quality_sections import learning
from ctrbox.report.read_recorded_files import read_run
from ctrbox.report.several_labels import BRIEF, FIGURES, by_task
from ctrbox.show.charts import finite
from ctrbox.show.notebook import facts, framed, said

METRICS = {"auc": "AUC", "gauc": "GAUC", "logloss": "log loss", "calibration": "calibration", "base_rate": "click rate"}


def for_notebook(title: str, metrics: Mapping[str, float], folder: Path | None) -> str:
    """Return a run as HTML; metrics that are not finite are left out.

    The learning curve is read from the run folder. If the run has no folder, a sentence says so.
    """
    shown = {word: f"{metrics[name]:.4f}" for name, word in METRICS.items() if finite(metrics.get(name))}
    for task, figures in by_task(metrics).items():
        shown |= {f"{task} {FIGURES[n]}": f"{figures[n]:.4f}" for n in BRIEF if finite(figures.get(n))}
    if "rows" in metrics:
        shown["validation rows"] = f"{metrics['rows']:,.0f}"
    if folder is None:
        return framed(title, facts(shown), said("This run has no folder (out=), so there is no learning curve."))
    try:
        recorded = read_run(folder)
        curve = learning(recorded.metrics, recorded.summary)
    except CtrboxError as error:
        curve = said(error)
    return framed(title, facts(shown), curve)
