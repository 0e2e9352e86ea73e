"""Recognizes the log that a run was trained on, so that nobody measures a model on rows that it has learned from unawares.

Logs are compared by the fingerprints of their content (`Plan.data_fingerprints`), of which a run folder records one per view.
A part of a log, or a copy of it under another name, has another fingerprint and is not recognized.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctrbox.engines.plan import Plan
from ctrbox.files.sealed import read_sealed
from ctrbox.views.memory import StreamSource
from ctrbox.views.recorded import AgreeingSource


def recorded_fingerprint(folder: Path) -> str:
    """Return the fingerprint of the log that the run in a folder was trained on; "" where the folder does not tell."""
    identity = read_sealed(folder / "config.json", "run folder").get("identity")
    views = identity.get("data") if isinstance(identity, dict) else None
    # The log comes first; its joined views and the views of separate validation rows follow.
    if not isinstance(views, list) or not views or not isinstance(views[0], list) or len(views[0]) != 2:
        return ""
    return str(views[0][1])


def log_fingerprint(plan: Plan) -> str:
    """Return the fingerprint of the log that a plan reads; "" for a stream that cannot tell its content."""
    source = plan.log.source
    while isinstance(source, AgreeingSource):
        source = source.inner
    if isinstance(source, StreamSource) and not source.identified:
        return ""
    return source.fingerprint()


def warn_of_learned_rows(trained_on: str, plan: Plan, summary: Mapping[str, Any]) -> None:
    """Warn where a plan reads the whole log with the fingerprint ``trained_on``. ``summary``: of the run that learned from it."""
    if not trained_on or trained_on != log_fingerprint(plan):
        return
    held = summary.get("held")
    advice = "Measure it on rows that it has not seen, for example on those of a later day"
    if isinstance(held, Mapping):
        rows = int(held["stop"]) - int(held["start"])
        advice = (
            f"To measure it on the {rows:,} rows that the run held back for validation, give no log: run.evaluate(), or "
            "`ctrbox evaluate RUN`"
        )
    warnings.warn(
        f"{plan.log.source.name} is the log that this run was trained on: the model has learned from rows of it, so the metrics "
        f"are better than on new rows. {advice}",
        stacklevel=3,
    )
