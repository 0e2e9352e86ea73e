"""Recognizes the log that a run was trained on, so that nobody measures a model on its training rows by mistake.

Logs are compared by the fingerprints of their content (`Plan.data_fingerprints`); a run folder records one for each
view. A copy of a log under another name, or a part of its files, has another fingerprint. A run therefore also records
a mark of each file of its log (`marks_of_files` of files/data_fingerprint.py), if there are at most 1,000 files. Two
cases are not recognized: some rows of a file that were written into another file, and rows in memory that are a part of
the training rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.history.history_columns_of_log import base_of
from ctrbox.errors import SourceError
from ctrbox.files.data_fingerprint import marks_of_files
from ctrbox.files.filesystems import File
from ctrbox.files.sealed_json import read_sealed
from ctrbox.views.columns_as_recorded import AgreeingSource, opened
from ctrbox.views.frames_in_memory import StreamSource

MOST_FILES = 1000
LEAST_SHARE = 0.01  # of the bytes of a log that known files hold; files with a head and no rows may be equal by chance


def recorded_fingerprint(folder: Path) -> str:
    """Return the fingerprint of the log that the run in a folder was trained on; "" if the folder does not contain it."""
    identity = read_sealed(folder / "config.json", "run folder").get("identity")
    views = identity.get("data") if isinstance(identity, dict) else None
    # The log comes first; its joined views and the views of separate validation rows follow.
    if not isinstance(views, list) or not views or not isinstance(views[0], list) or len(views[0]) != 2:
        return ""
    return str(views[0][1])


def log_fingerprint(plan: Plan) -> str:
    """Return the fingerprint of the log that a plan reads; "" for a stream whose content has no fingerprint."""
    source = plan.log.source
    while isinstance(source, AgreeingSource):
        source = source.inner
    if isinstance(source, StreamSource) and not source.identified:
        return ""
    return source.fingerprint()


def log_marks(plan: Plan) -> list[str]:
    """Return a mark of each file of the log that a plan reads; nothing for more than 1,000 files, and for rows in memory."""
    files = files_of(plan)
    if not 0 < len(files) <= MOST_FILES:
        return []
    store = files[0].store
    try:
        return marks_of_files([f.version for f in files], lambda version, read: store.attempt(version.shown, read))
    except (OSError, SourceError):  # a training that has ended does not fail because its log is gone
        return []


def files_of(plan: Plan) -> Sequence[File]:
    source: Any = base_of(plan.log.source)
    while isinstance(source := opened(source), AgreeingSource):
        source = base_of(source.inner)
    return getattr(source, "files", ())


def known_share(marks: Iterable[str], plan: Plan) -> tuple[int, int, float]:
    """Return how many files of a plan's log have one of these marks, the number of its files, and the share of these bytes."""
    learned, files = set(marks), files_of(plan)
    mine = log_marks(plan) if learned else []
    sizes = [file.size for file, mark in zip(files, mine, strict=False) if mark in learned]
    return len(sizes), len(files), sum(sizes) / max(1, sum(file.size for file in files))


def warn_of_learned_rows(trained_on: str, plan: Plan, summary: Mapping[str, Any]) -> None:
    """Warn if a plan reads the log with the fingerprint ``trained_on``, or copies of its files.

    ``summary`` is that of the run that learned from the log.
    """
    if not trained_on or trained_on != log_fingerprint(plan):
        known, count, share = known_share(summary.get("log_files") or (), plan)
        if share >= LEAST_SHARE:
            name = plan.log.source.name
            which = f"{known:,} of the {count:,} files of {name} have" if count > 1 else f"{name} has"
            warnings.warn(
                f"{which} the same content as files of the log that this run was trained on ({share:.0%} of the bytes): the "
                "model has learned from rows of it, so the metrics are better than on new rows. Measure it on rows that it has "
                "not seen, for example on those of a later day",
                stacklevel=3,
            )
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
