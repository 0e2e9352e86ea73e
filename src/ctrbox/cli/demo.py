"""Prepares ``ctrbox demo``: writes its data and its job file, and computes the best AUC that the data allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ctrbox.cli.terminal import meter


def generate(rows: int, seed: int, out: Path, images: int = 0, *, overwrite: bool = True) -> None:
    """The synthetic ad log, or the one that is there if it is the same; another one is replaced, or refused."""
    from ctrbox.datasets import adlog

    with meter("generating") as tick:
        adlog(
            rows=rows, seed=seed, out=out, images=images, overwrite=overwrite, progress=lambda done, total: tick(done)
        )


def best_auc(plan: Any, truth: Path, share: float = 0.1) -> float | None:
    """AUC of the true probabilities over the rows that `share` keeps for validation; None where they lack a class.

    The plan's filters drop rows, so truth and labels meet by instance_id; both lie in its order.
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
    """The job of the ad log."""
    return Path(__file__).with_name("demo_job.py")


def demo_job() -> str:
    """Its text, which the demo writes beside its data."""
    return demo_job_path().read_text(encoding="utf-8")
