"""Are our models on Frappe as good as published? Ten fields, no crosses, the published split, as BARS trains its models.

    python -m benchmarks.frappe [--models DeepFM,DCNv2] [--seeds 5] [--jobs 16] [--log frappe.jsonl] [--data FOLDER] [--quick]
    python -m benchmarks.frappe --search            # the validation AUC of every candidate, one seed

The training is that of BARS (reczoo/BARS, ranking/ctr, the README of each model on Frappe_x1): vectors of 10 floats that begin
near 0, batches of 4,096 shuffled rows, dense Adam with a rate of 0.001, an L2 penalty on the whole tables, a tenth of the rate
after each epoch in which validation AUC does not improve, and the end after two such epochs in a row; the weights of the best
epoch count. `CANDIDATES` holds the settings: those of BARS ("BARS") and our own. Of each model the candidate with the best
mean validation AUC is reported; test rows choose nothing. Each finished training is a line of the log, with the validation AUC
of every epoch. One thread for each training; with ``--device cuda`` the network of each is on the GPU and its table in memory.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks import quality_data, report
from benchmarks.table_cells_in_processes import Cells

Options = dict[str, Any]

SET, BATCH = "frappe_x1", 4096
LIMIT = 60  # epochs; BARS allows 100, and none of its logs is longer than 40
TOWERS: Options = {"hidden": (400, 400, 400), "batch_norm": True}
STREAMS: Options = {
    "hidden": (400,), "second_hidden": (100,), "heads": 5, "gate_hidden": (400,), "first_context": ("user",),
    "second_context": ("item",), "batch_norm": True, "dropout": 0.4,
}  # fmt: skip

DEEP_FM: Options = {"l2": 0.05, "dropout": 0.2, **TOWERS}
DCN: Options = {"l2": 0.05, "layers": 4, "dropout": 0.4, **TOWERS}
FINAL: Options = {"l2": 0.05, **STREAMS}
# By model and name of the candidate: `l2` of the tables, `dim`, `rate`, what the model takes, and `hold`: the full rate for so
# many epochs and a tenth of it for eight more, in place of the schedule of BARS, whose first cut may be caused by chance.
CANDIDATES: dict[str, dict[str, Options]] = {
    "DeepFM": {
        "BARS": DEEP_FM,
        "hold 10": {"hold": 10, **DEEP_FM},
        "hold 15": {"hold": 15, **DEEP_FM},
        "hold 20": {"hold": 20, **DEEP_FM},
        "hold 8, l2 0.02": {"hold": 8, **DEEP_FM, "l2": 0.02},
        "hold 20, dropout 0.4": {"hold": 20, **DEEP_FM, "dropout": 0.4},
        "hold 15, dim 16": {"hold": 15, **DEEP_FM, "dim": 16},
        "hold 20, dim 16, dropout 0.4": {"hold": 20, **DEEP_FM, "dim": 16, "dropout": 0.4},
        "hold 20, dim 20, dropout 0.5": {"hold": 20, **DEEP_FM, "dim": 20, "dropout": 0.5},
    },
    "DCNv2": {
        "BARS": DCN,
        "hold 15": {"hold": 15, **DCN},
        "hold 20": {"hold": 20, **DCN},
        "hold 10, l2 0.02": {"hold": 10, **DCN, "l2": 0.02},
        "hold 20, dim 20, dropout 0.5": {"hold": 20, **DCN, "dim": 20, "dropout": 0.5},
    },
    "FinalMLP": {
        "BARS": FINAL,
        "hold 15": {"hold": 15, **FINAL},
        "hold 20": {"hold": 20, **FINAL},
        "hold 25": {"hold": 25, **FINAL},
        "hold 20, dim 16": {"hold": 20, **FINAL, "dim": 16},
        "hold 20, dropout 0.5": {"hold": 20, **FINAL, "dropout": 0.5},
        "hold 20, dim 16, dropout 0.5": {"hold": 20, **FINAL, "dim": 16, "dropout": 0.5},
        "hold 25, dim 20, dropout 0.5": {"hold": 25, **FINAL, "dim": 20, "dropout": 0.5},
        "hold 20, l2 0.02": {"hold": 20, **FINAL, "l2": 0.02},
        "hold 20, 400 and 400": {"hold": 20, **FINAL, "second_hidden": (400,)},
        "hold 12, l2 0.02": {"hold": 12, **FINAL, "l2": 0.02},
        "hold 10, l2 0.01": {"hold": 10, **FINAL, "l2": 0.01},
    },
    "PNN": {"hold 15": {"hold": 15, **DEEP_FM}, "hold 20, dim 16": {"hold": 20, **DEEP_FM, "dim": 16, "dropout": 0.4}},
    "GDCN": {"hold 15": {"hold": 15, **DCN, "layers": 3}},
}
AFTER = 8  # epochs at a tenth of the rate
# The best single run in BARS and, where it lists five runs, their mean.
PUBLISHED = {"DeepFM": "0.9842 (0.9839)", "DCNv2": "0.9845 (0.9838)", "FinalMLP": "0.9861", "XDeepFM": "0.9845"}


def one(
    model: str, options: Options, seed: int, data: str, quick: bool, seconds: float | None = None, device: str = "cpu"
) -> dict[str, Any]:
    """Train one model with one seed; return its validation and test figures and the validation AUC of each epoch.

    After so many ``seconds``, a training ends with the epoch at hand, and its line says that it was cut.
    """
    import torch

    import ctrbox as cb

    torch.set_num_threads(1)
    quality_data.SHARED = Path(data)
    o = dict(options)
    dim, l2, rate, hold = o.pop("dim", 10), o.pop("l2"), o.pop("rate", 1e-3), o.pop("hold", None)
    train, valid, test = (plan.using(threads=1) for plan in quality_data.plans(SET))
    torch.manual_seed(seed)
    made = getattr(cb.models, model)(train.schema, dim, **o)
    dense = cb.optim.Adam(lr=rate, l2=l2, dense=True)
    table = cb.MemoryTable(dim, optimizer=dense, linear=dense, init=1e-4, seed=seed, threads=1)
    curve: list[float] = []
    cut: list[bool] = []

    class Curve(cb.callbacks.Callback):
        def on_evaluate(self, event: Any) -> None:
            curve.append(round(float(event.metrics["auc"]), 5))
            if seconds is not None and time.perf_counter() - began > seconds:
                cut.append(True)
                raise cb.callbacks.StopTraining("time is over")

    if hold is None:
        epochs, patience = LIMIT, 2
        schedule: Any = cb.optim.ReduceOnPlateau(factor=0.1, patience=0, threshold=1e-6, floor=1e-3)
    else:  # the patience ends nothing; with it, the weights of the best epoch count
        epochs = patience = hold + AFTER
        schedule = cb.optim.Decay(0.1, hold * -(-train.rows // BATCH))
    began = time.perf_counter()
    run = cb.Trainer(made, table, optimizer=cb.optim.Adam(lr=rate), device=device, threads=1).fit(
        train,
        valid=valid,
        batch_size=BATCH,
        epochs=1 if quick else epochs,
        shuffle=train.rows,
        patience=patience,
        monitor="auc",
        schedule=schedule,
        seed=seed,
        explain=False,
        overlap=False,
        callbacks=[Curve()],
    )
    took = time.perf_counter() - began
    scored = run.evaluate(test)
    return {
        "valid_auc": run.metrics["auc"],
        "test_auc": scored["auc"],
        "test_logloss": scored["logloss"],
        "epochs": len(curve),
        "seconds": took,
        "cut": bool(cut),
        "curve": curve,
    }


def cell(model: str, name: str, seed: int, quick: bool, device: str = "cpu") -> dict[str, Any]:
    unusual: Options = {"quick": True} if quick else {}  # so that lines of earlier logs keep their names
    if device != "cpu":
        unusual["device"] = device
    return {"model": model, "candidate": name, "seed": seed, **unusual}


def mean(values: list[float]) -> str:
    """The mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.fmean(values):.5f} ± {error:.5f}"


def best(
    cells: Cells, model: str, seeds: int, quick: bool, device: str = "cpu"
) -> tuple[str, list[dict[str, Any]]] | None:
    """Return the candidate with the best mean validation AUC among those with all seeds, and its cells."""
    found = {}
    for name in CANDIDATES[model]:
        lines = [cells.get(cell(model, name, seed, quick, device)) for seed in range(seeds)]
        if all(line is not None for line in lines):
            found[name] = [line for line in lines if line is not None]
    if not found:
        return None
    chosen = max(found, key=lambda name: statistics.fmean(line["valid_auc"] for line in found[name]))
    return chosen, found[chosen]


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--models", default="DeepFM,DCNv2,FinalMLP", help="names by comma")
    parser.add_argument("--candidates", default="", help="only these candidates, by semicolon: 'hold 20;PNN hold 15'")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, each with one thread")
    parser.add_argument("--log", type=Path, help="append every training as a JSON line, and read those that are there")
    parser.add_argument("--seconds", type=float, help="end each training with the first epoch after so many seconds")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device of the networks")
    parser.add_argument("--data", type=Path, default=quality_data.SHARED, help="the folder of the real sets")
    parser.add_argument(
        "--search", action="store_true", help="every candidate with seed 0; prints validation AUC alone"
    )
    parser.add_argument("--quick", action="store_true", help="one epoch of each training: does it run")
    asked = parser.parse_args()
    quality_data.SHARED = asked.data
    quality_data.folder(quality_data.known(SET))  # written once, before several processes ask for it
    wanted = asked.candidates.split(";") if asked.candidates else []
    seeds = 1 if asked.search else asked.seeds
    cells = Cells(asked.log)
    models = asked.models.split(",")
    work = [
        (
            cell(model, name, seed, asked.quick, asked.device),
            one,
            (model, options, seed, str(asked.data), asked.quick, asked.seconds, asked.device),
        )
        for seed in range(seeds)
        for model in models
        for name, options in CANDIDATES[model].items()
        if not wanted or f"{model} {name}" in wanted or name in wanted
    ]
    cells.run(work, asked.jobs)
    if asked.search:
        lines = [(f"{c['model']} {c['candidate']}", cells.get(c)) for c, _, _ in work]
        searched = {name: line["valid_auc"] for name, line in lines if line is not None}
        report.table(("candidate", "validation AUC"), [(name, f"{auc:.5f}") for name, auc in searched.items()])
        report.finish(max(searched.values(), default=None), {}, "validation AUC", cores=1, candidates=searched)
        return
    rows: list[tuple[str, ...]] = []
    ours: dict[str, float] = {}
    settings: dict[str, str] = {}
    for model in models:
        picked = best(cells, model, seeds, asked.quick, asked.device)
        if picked is None:
            continue
        name, found = picked
        columns = [[line[figure] for line in found] for figure in ("valid_auc", "test_auc", "test_logloss")]
        ours[model], settings[model] = round(statistics.fmean(columns[1]), 5), name
        took = f"{statistics.fmean(line['seconds'] for line in found):.0f}"
        took += " (cut)" if any(line["cut"] for line in found) else ""
        rows.append((model, name, *map(mean, columns), PUBLISHED.get(model, "–"), took))
    head = ("model", "settings", "validation AUC", "test AUC", "test log loss", "BARS, test AUC", "seconds")
    print(f"Frappe_x1 without crosses, {seeds} seeds, mean and standard error")
    report.table(head, rows)
    report.finish(
        max(ours.values(), default=None), {"BARS FinalMLP": 0.9861}, "test AUC", models=ours, settings=settings
    )


if __name__ == "__main__":
    main()
