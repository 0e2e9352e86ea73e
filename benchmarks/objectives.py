"""Asks whether one model of clicks and conversions ranks conversions better than a model of each.

    python -m benchmarks.objectives [--rows 300000] [--seeds 5] [--out DIR]

The ad log has planted conversions whose probability is known (`cb.datasets.adlog(…, conversions=True)`). Compared
are, on the last fifth of the log, which no model learned from: ESMM and MMoE, which learn from clicks and conversions
of all impressions, and a single model of conversions, an `EmbeddingMLP` of the same layers, that learns from clicked
rows alone. The measure is the AUC of p(convert | click): over clicked rows against what happened, and over all
impressions against what their click would have led to, which only a generator knows. "best" is the AUC of the true
probability. The interval is that of the mean difference to the single model over seeds (95 %, Student's t), each seed
a log of its own.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ctrbox as cb
from benchmarks import report
from ctrbox import col
from ctrbox.evaluate.auc_of_many_sets import auc_by

DIM, HIDDEN, EPOCHS = 8, (64, 32), 2
STUDENT = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    5: 2.776,
    6: 2.571,
    7: 2.447,
    8: 2.365,
    9: 2.306,
    10: 2.262,
}  # 97.5 %, by seeds
SPARSE: dict[str, Any] = {
    "user": col("user_id").key(),
    "ad": col("ad_id").key(),
    "segment": col("segment").key(),
    "category": col("category").key(),
    "segment_x_category": cb.cross("segment", "category"),
}


def view(log: Any, *, clicked: bool) -> cb.View:
    """The impressions with their conversions, users and ads; ``clicked``: only those that were clicked."""
    found = cb.View(log.impressions, key="instance_id").merge(cb.View(log.conversions, key="instance_id"))
    found = found.join(cb.View(log.users, key="user_id").select("user_id", "segment").fill(segment=-1), on="user_id")
    found = found.join(cb.View(log.ads, key="ad_id").select("ad_id", "category").fill(category="none"), on="ad_id")
    return found.filter(col("converted").is_not_null()) if clicked else found


def auc(label: np.ndarray, p: np.ndarray) -> float:
    return float(auc_by(np.zeros(len(p), np.int64), 1, label.astype(np.uint8), p.astype(np.float32))[0])


def trained(name: str, log: Any, seed: int, stop: int) -> np.ndarray:
    """Train a model on the first ``stop`` rows; return p(convert | click) of the others."""
    single = name == "single"
    labels = (
        {"label": col("converted")} if single else {"labels": {"click": col("clicked"), "convert": col("converted")}}
    )
    plan = cb.compile(view(log, clicked=single), cb.FeatureSet(**labels, sparse=SPARSE), device="cpu")
    torch.manual_seed(seed)
    if single:
        model: Any = cb.models.EmbeddingMLP(plan.schema, DIM, hidden=HIDDEN)
    else:
        more = {"hidden": HIDDEN} if name == "ESMM" else {"expert": HIDDEN[:1], "hidden": HIDDEN[1:]}
        model = cb.models.build(name, plan.schema, {"dim": DIM, **more})
    run = cb.Trainer(model, cb.MemoryTable(DIM), device="cpu").fit(
        plan, limit=stop, valid=0.0, epochs=EPOCHS, seed=seed
    )
    whole = cb.compile(view(log, clicked=False), cb.FeatureSet(sparse=SPARSE), device="cpu")
    found = []
    for batch in whole.batches(16_384, start=cb.types.Position(stop)):
        p = run.click_model.predict(batch)
        found.append(p if single else p[:, 1])
    return np.concatenate(found)


def one_seed(rows: int, seed: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return both AUCs of each model, and the best possible ones."""
    log = cb.datasets.adlog(rows, seed, folder / f"log-{seed}", conversions=True)
    truth = cb.compute({"p": col("p_convert"), "would": col("would_convert")}, cb.View(log.conversion_truth))
    stop = rows * 4 // 5
    p, would = (truth.column(name).to_numpy()[stop:] for name in ("p", "would"))
    clicked = cb.compute({"c": col("clicked")}, cb.View(log.impressions)).column("c").to_numpy()[stop:] == 1

    def both(score: np.ndarray) -> dict[str, float]:
        return {"clicked": auc(would[clicked], score[clicked]), "all": auc(would, score)}

    return {"best": both(p), **{name: both(trained(name, log, seed, stop)) for name in ("single", "ESMM", "MMoE")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="impressions of each log")
    parser.add_argument("--seeds", type=int, default=5, choices=sorted(STUDENT), help="number of seeds")
    parser.add_argument("--out", type=Path, default=None, help="folder for the logs; default: a temporary one")
    parser.add_argument("--quick", action="store_true", help="20,000 rows and 2 seeds, to see that it runs")
    asked = parser.parse_args()
    rows, seeds = (20_000, 2) if asked.quick else (asked.rows, asked.seeds)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as aside:
        found = [one_seed(rows, seed, asked.out or Path(aside)) for seed in range(seeds)]
    peers: dict[str, float] = {}
    ours: dict[str, dict[str, float]] = {}
    for rows_of in ("clicked", "all"):
        table = {name: np.array([one[name][rows_of] for one in found]) for name in found[0]}
        print(f"AUC of p(convert | click) over {rows_of} impressions of {rows:,} rows, {seeds} seeds")
        for name, values in table.items():
            gap = values - table["single"]
            reach = STUDENT[seeds] * gap.std(ddof=1) / np.sqrt(seeds)
            beside = "" if name in ("single", "best") else f"  {gap.mean():+.4f} ± {reach:.4f} against single"
            print(f"  {name:<8}{values.mean():.4f}{beside}")
            if name in ("ESMM", "MMoE"):
                ours.setdefault(name, {})[rows_of] = round(float(gap.mean()), 5)
                ours[name][f"{rows_of} interval"] = round(float(reach), 5)
        peers |= {f"{name}, {rows_of}": round(float(table[name].mean()), 5) for name in ("single", "best")}
    seconds = round(time.perf_counter() - began, 1)
    unit = "AUC of p(convert | click); ours: mean difference to the single model"
    report.finish_several(ours, peers, unit, threads=torch.get_num_threads(), seconds=seconds)


if __name__ == "__main__":
    main()
