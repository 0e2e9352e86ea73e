"""Prepares ``ctrbox demo``: writes its data and its job file, and computes the best AUC that the data allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ctrbox.cli.terminal import meter


def generate(rows: int, seed: int, out: Path, images: int = 0, *, overwrite: bool = True) -> None:
    """Generate the synthetic ad log, unless the same log is already there. Another log is replaced with ``overwrite``,
    and otherwise refused.
    """
    from ctrbox.datasets import adlog

    with meter("generating") as tick:
        adlog(
            rows=rows, seed=seed, out=out, images=images, overwrite=overwrite, progress=lambda done, total: tick(done)
        )


def best_auc(plan: Any, truth: Path, share: float = 0.1) -> float | None:
    """Return the AUC of the true probabilities over the share of the rows that is held back; None if they are all of
    one class.

    The plan's filters drop rows, so probabilities and labels are joined by instance_id; both are in its order.
    """
    import numpy as np
    import pyarrow.dataset as ds

    from ctrbox.evaluate.metrics import auc_by
    from ctrbox.plan.language.expressions import col

    start = plan.rows - round(plan.rows * share)
    parts = list(plan.columns({"id": col("instance_id"), "label": col("clicked")}, start=start))
    if not parts:
        return None
    ids = np.concatenate([part.column("id").to_numpy() for part in parts])
    label = np.concatenate([part.column("label").to_numpy() for part in parts]).astype(np.uint8)
    known = ds.dataset(truth).to_table(filter=ds.field("instance_id") >= int(ids.min())).sort_by("instance_id")
    at = np.searchsorted(known.column("instance_id").to_numpy(), ids)
    p = known.column("p_click").to_numpy()[at].astype(np.float32)
    found = float(auc_by(np.zeros(len(p), np.int64), 1, label, p)[0])
    return found if found == found else None


def demo_job_path() -> Path:
    """Return the path of the job file for the ad log."""
    return Path(__file__).with_name("demo_job.py")


def demo_job() -> str:
    """Return the text of this job file, which the demo writes beside its data."""
    return demo_job_path().read_text(encoding="utf-8")
