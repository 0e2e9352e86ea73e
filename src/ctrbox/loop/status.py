"""Reports the status of the online loop: ``online.json`` for the page of the server, and a log of bad rows.

{"examples", "clicked", "loss", "auc", "auc_examples", "constant", "calibration": {"predicted", "clicked"}, "published_at",
 "version", "lag_s", "windows": [[examples, loss, auc, constant], …], "held", "counts": {…}, "updated_at"}

All examples count equally in these figures. If examples have weights, "weighted": {"loss", "auc", "predicted", "clicked"} has the
same figures with weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ctrbox.errors import DataError, WriteError
from ctrbox.ffm.progressive_validation import Progress
from ctrbox.files.atomic import written_aside
from ctrbox.files.sealed_json import tidy

WINDOWS = 200
NAMED = 10


class Complaints:
    """Counts rows and chunks that were left out, and reports the first ten rows and every chunk.

    With ``strict``, the first of them is an error.
    """

    def __init__(self, tell: Callable[[str], object], log: Path, strict: bool = False) -> None:
        self.tell, self.log, self.strict = tell, log, strict
        self.lines = self.chunks = 0

    def line(self, chunk: str, row: int, why: str) -> None:
        """Count a row that was left out, and report it if it is one of the first. ``chunk`` is "" if the chunk is not known."""
        what = f"{chunk} line {row + 1:,}: {why}" if chunk else why
        self.lines += 1
        if self.strict:
            raise DataError(what)
        if self.lines <= NAMED:
            self.tell(f"skipped: {what}")
        if self.lines == NAMED:
            self.tell("further skipped events of this kind are only counted")

    def chunk(self, name: str, why: str) -> None:
        """Count a chunk that was refused, report it, and add it to the file of refused chunks."""
        self.chunks += 1
        if self.strict:
            raise DataError(f"chunk {name} cannot be read: {why}")
        self.tell(f"refused: chunk {name}: {why}")
        try:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"chunk": name, "why": why, "time": now()}) + "\n")
        except OSError as error:
            self.tell(f"cannot write {self.log}: {error.strerror or error}")


def status(progress: Progress, **beside: Any) -> dict[str, Any]:
    predicted, clicked = progress.calibration
    weighted = {}
    if progress.has_weights:
        shares = dict(zip(("predicted", "clicked"), progress.weighted_calibration, strict=True))
        weighted = {"weighted": {"loss": progress.weighted_loss, "auc": progress.weighted_auc, **shares}}
    return {
        "examples": progress.examples,
        "loss": progress.loss,
        "auc": progress.auc,
        "auc_examples": progress.auc_examples,
        "constant": progress.constant,
        "clicked": progress.clicks,
        "calibration": {"predicted": predicted, "clicked": clicked},
        "windows": [[w.examples, w.loss, w.auc, w.constant] for w in progress.windows[-WINDOWS:]],
        **weighted,
        **beside,
        "updated_at": now(),
    }


def write_status(place: Path, found: Mapping[str, Any], tell: Callable[[str], object]) -> None:
    """Write the status to a temporary file and rename it. If that fails, it is reported, and learning continues."""
    try:
        with written_aside(place) as aside:
            aside.write_text(json.dumps(tidy(found)), encoding="utf-8")
    except WriteError as error:
        tell(str(error))


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
