"""How good are the models? Every click model of CTRBox on real sets and on the ad log, next to the best of the peers.

    python -m benchmarks.quality [--quick] [--set frappe_x1] [--model DeepFM] [--jobs 2] [--peers peers.jsonl]

Each model trains on the set's oldest part with a few settings, stops early by AUC on the next part, and the setting with the best
AUC there is scored once on the newest part (`quality_data.py` has the splits). Peers come from `quality_peers.py --out FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.report import machine

ALL = (
    "LR", "FM", "EmbeddingMLP", "WideDeep", "DeepCrossing", "PNN", "YouTubeDNN", "DeepFM", "XDeepFM", "DCNv2", "DIN",
    "JointTowers",
)  # fmt: skip

NORM = {"batch_norm": True}
SLOW = ["Adagrad", {"lr": 0.05, "initial": 0.1}]

# Settings tried for every model of a set: of the plan (crosses, rates, least), the model, its table and the training.
GRID: dict[str, list[dict[str, Any]]] = {
    "frappe_x1": [
        {"crosses": 1, "dim": 16, "hidden": (256, 128), "dropout": 0.2, "PNN": NORM, "batch": 1024, "shuffle": 204_800,
         "table": SLOW, "lr": 1e-3, "epochs": 8, "cosine": True, "patience": 3},
    ],
    "criteo_1tb_80k": [
        {"rates": True, "least": 4, "dim": 4, "hidden": (256, 128), "dropout": 0.5, "batch": 512, "shuffle": 55_808,
         "table": ["Adagrad", {"lr": 0.005, "initial": 0.1}], "linear": ["FTRL", {"alpha": 0.05, "l1": 1.0}],
         "lr": 5e-4, "epochs": 6, "every": 55, "patience": 5},
        {"least": 4, "dim": 8, "hidden": (64, 32), "dropout": 0.3, "batch": 512, "shuffle": 55_808,
         "table": ["Adagrad", {"lr": 0.005, "initial": 0.1}], "linear": ["FTRL", {"alpha": 0.05, "l1": 1.0}],
         "lr": 5e-4, "epochs": 5, "every": 40, "patience": 4},
        {"least": 4, "dim": 4, "hidden": (64, 32), "dropout": 0.5, "batch": 512, "shuffle": 55_808,
         "table": ["Adagrad", {"lr": 0.005, "initial": 0.1}], "lr": 1e-3, "epochs": 5, "every": 40, "patience": 4},
    ],
    "criteo_attribution_165k": [
        {"rates": 5, "crosses": 2, "dim": 8, "hidden": (64, 32), "dropout": 0.1, "batch": 1024, "shuffle": 118_784,
         "table": ["Adagrad", {"lr": 0.01, "initial": 0.1}], "lr": 1e-3, "epochs": 6, "cosine": True, "patience": 3},
    ],
    "open_bandit_60k": [
        {"dim": 4, "hidden": (16,), "dropout": 0.2, "batch": 512, "shuffle": 30_000,
         "table": ["Adagrad", {"lr": 0.005, "initial": 0.1}], "lr": 3e-4, "epochs": 4, "every": 20, "patience": 4},
    ],
    "adlog": [
        {"dim": 8, "hidden": (64, 32), "dropout": 0.1, "batch": 8192, "drop": ["user"],
         "table": ["Adagrad", {"lr": 0.05, "initial": 1.0}], "lr": 2e-3, "epochs": 2, "cosine": True},
    ],
}  # fmt: skip


def one(set_: str, name: str, options: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """Train one model with one setting; valid and test scores."""
    import torch

    import ctrbox as cb
    from benchmarks import quality_data

    torch.set_num_threads(1)
    o = dict(options)
    given = {k: o.pop(k) for k in list(o) if k in ("least", "crosses", "rates")}
    train = quality_data.plan(set_, "train", **given).using(threads=1)
    valid, test = (train.over(str(quality_data.folder(set_) / f"{part}.parquet")) for part in ("valid", "test"))
    torch.manual_seed(o.get("seed", 0))
    made: dict[str, Any] = {"dim": o["dim"]}
    if name == "LR":
        made = {}
    elif name == "DIN":
        if "history" not in {f.name for f in train.schema.sparse}:
            return {}
        made |= {"target": "leaf", "history": "history", "hidden": o["hidden"], "dropout": o["dropout"]}
    elif name != "FM":
        made |= {"hidden": o["hidden"], "dropout": o["dropout"]}
        if name == "DeepCrossing":
            made["hidden"] = o["hidden"][:2]
    made |= o.get(name, {})
    if "drop" in o:
        made["fields"] = [f.name for f in train.schema.sparse if f.name not in o["drop"]]
    model = getattr(cb.models, name)(train.schema, **made)
    table = cb.MemoryTable(
        0 if name == "LR" else o["dim"],
        optimizer=optimizer(o["table"]),
        linear=optimizer(o["linear"]) if "linear" in o else None,
        init=o.get("init", 0.01),
        seed=o.get("seed", 0),
        threads=1,
    )
    steps = o["epochs"] * -(-train.rows // o["batch"])
    began = time.perf_counter()
    run = cb.Trainer(model, table, optimizer=cb.optim.Adam(lr=o["lr"]), threads=1).fit(
        train,
        valid=valid,
        batch_size=o["batch"],
        epochs=o["epochs"],
        shuffle=o.get("shuffle", 0),
        patience=o.get("patience", 2),
        monitor="auc",
        evaluate_every=o.get("every"),
        schedule=cb.optim.Cosine(steps, floor=0.02) if o.get("cosine") else lambda step: 1.0,
        limit=limit,
        seed=o.get("seed", 0),
        by={},
    )
    scored = run.evaluate(test)
    return {
        "set": set_,
        "tool": "ctrbox",
        "model": name,
        "valid_auc": run.metrics["auc"],
        "test_auc": scored["auc"],
        "test_logloss": scored["logloss"],
        "seconds": time.perf_counter() - began,
        "options": options,
    }


def optimizer(asked: list[Any]) -> Any:
    """["Adagrad", {"lr": 0.02}] → cb.Adagrad(lr=0.02)."""
    import ctrbox as cb

    name, options = asked
    return getattr(cb.optim, name)(**options)


def best_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every model the setting with the best valid AUC, best models first."""
    chosen: dict[tuple[str, str], dict[str, Any]] = {}
    for line in found:
        key = (line["tool"], line["model"])
        if key not in chosen or line["valid_auc"] > chosen[key]["valid_auc"]:
            chosen[key] = line
    return sorted(chosen.values(), key=lambda line: -line["test_auc"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", choices=[*GRID])
    parser.add_argument("--model", action="append", choices=ALL)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--peers", type=Path, help="lines that quality_peers wrote")
    parser.add_argument("--grid", type=Path, help="a JSON file of settings by set, instead of ours")
    parser.add_argument("--out", type=Path, help="append every run as a JSON line")
    parser.add_argument("--quick", action="store_true", help="5,000 rows of each set: does it run at all")
    asked = parser.parse_args()
    grid = json.loads(asked.grid.read_text()) if asked.grid else GRID
    sets = asked.set or list(grid)
    work = [(s, m, o) for s in sets for o in grid[s] for m in (o.pop("models", None) or asked.model or ALL)]
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(asked.jobs) as pool:
        running = [pool.submit(one, s, m, o, 5_000 if asked.quick else None) for s, m, o in work]
        for k, future in enumerate(as_completed(running)):
            try:
                line = future.result()
            except Exception as error:
                print(f"{k + 1}/{len(work)} failed: {error}", file=sys.stderr)
                continue
            if not line:
                continue
            found.append(line)
            print(f"{k + 1}/{len(work)} {line['set']} {line['model']} {line['test_auc']:.4f}", file=sys.stderr)
            if asked.out:
                with asked.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    if asked.peers:
        found += [json.loads(line) for line in asked.peers.read_text().splitlines() if line.strip()]
    ours, peers = {}, {}
    for s in sets:
        lines = best_of([line for line in found if line["set"] == s])
        print(f"\n{s}\n{'model':<16} {'tool':<10} {'valid AUC':>9} {'test AUC':>9} {'log loss':>9} {'seconds':>8}")
        for line in lines:
            print(
                f"{line['model']:<16} {line['tool']:<10} {line['valid_auc']:>9.4f} {line['test_auc']:>9.4f} "
                f"{line['test_logloss']:>9.4f} {line['seconds']:>8.1f}"
            )
        mine = [line["test_auc"] for line in lines if line["tool"] == "ctrbox"]
        theirs = [line["test_auc"] for line in lines if line["tool"] != "ctrbox"]
        if mine:
            ours[s] = max(mine)
        if theirs:
            peers[s] = max(theirs)
    ratios = {s: ours[s] / peers[s] for s in ours if s in peers}
    print(json.dumps({"ours": ours, "peers": peers, "ratios": ratios, "unit": "test AUC", "machine": machine()}))


if __name__ == "__main__":
    main()
