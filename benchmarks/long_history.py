"""Asks whether models that search or encode a long history see interests that an attention over its end cannot see.

    python -m benchmarks.long_history [--rows 24000] [--events 150] [--seeds 5] [--jobs 16] [--log cells.jsonl]

A planted world: each user has lived through three phases of equal length with two interests (categories) each, and has clicked
ads of the interests of the phase, besides random ones. An old interest returns: a candidate is clicked more often the more
events of its category the whole history holds, however long ago they were. **The world is made so, and favors models that
see the whole history.** Compared on the last quarter of the rows, which no model learned from: DIN over the last 50 events
(what is usual), DIN over all events, SIM by category and by inner products, HSTU over the last 50 and over all events, and
DIN's network without any history. DIN compares ads and categories, SIM and HSTU ads with categories beside them. "best" is the
AUC of the true probability. The interval is that of the mean difference to DIN over the last 50 events (95 %, Student's t), each
seed a world of its own. Cost: CPU time of training for each row and epoch, and of predictions for each row, key look-up and
extraction included, on one thread. Each finished training is a line of ``--log`` and is not repeated.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import ctrbox as cb
from benchmarks import report
from benchmarks.objectives import STUDENT, auc
from benchmarks.table_cells_in_processes import Cells
from ctrbox import col

DIM, HIDDEN, LAST = 8, (64, 32), 50
ADS, CATEGORIES, PHASES = 400, 40, 3
BY_CATEGORY = {"search": "category", "category": "category", "categories": "categories", "keep": 50}
PAIRS = {"target": ["ad", "category"], "history": ["history", "categories"]}
FIELDS = ["ad", "category", "history", "categories"]
Make = Callable[[Any], torch.nn.Module]


def hstu(schema: Any, longest: int) -> torch.nn.Module:
    how: dict[str, Any] = {"target": "category", "history": "categories", "longest": longest}
    return cb.models.HSTU(schema, DIM, layers=1, heads=1, hidden=HIDDEN, **how)


MODELS: dict[str, tuple[bool, Make]] = {  # by name: whether it gets all events, and how it is made
    "no history": (False, lambda schema: cb.models.EmbeddingMLP(schema, DIM, fields=["ad", "category"], hidden=HIDDEN)),
    "DIN, last 50": (False, lambda schema: cb.models.DIN(schema, DIM, hidden=HIDDEN, **PAIRS)),
    "DIN, all": (True, lambda schema: cb.models.DIN(schema, DIM, hidden=HIDDEN, **PAIRS)),
    "SIM by category": (True, lambda schema: cb.models.SIM(schema, DIM, hidden=HIDDEN, **BY_CATEGORY)),
    "SIM by inner product": (
        True,
        lambda schema: cb.models.SIM(schema, DIM, target="category", history="categories", keep=50, hidden=HIDDEN),
    ),
    "HSTU, last 50": (False, lambda schema: hstu(schema, LAST)),
    "HSTU, all": (True, lambda schema: hstu(schema, 1000)),
}


def world(rows: int, events: int, seed: int) -> tuple[pa.Table, np.ndarray]:
    """Return the log, and the true probability of a click for each row. A user has twelve rows."""
    draw = np.random.default_rng(seed)
    category = np.arange(ADS) % CATEGORIES
    users = -(-rows // 12)
    interests = np.stack([draw.permutation(CATEGORIES)[: 2 * PHASES] for _ in range(users)])
    phase = np.minimum(np.arange(events) * PHASES // events, PHASES - 1)
    liked = interests[np.arange(users)[:, None], 2 * phase + draw.integers(0, 2, (users, events))]
    of_interest = draw.random((users, events)) < 0.7
    within = draw.integers(0, ADS // CATEGORIES, (users, events)) * CATEGORIES
    history = np.where(of_interest, liked + within, draw.integers(0, ADS, (users, events)))
    user = np.arange(rows) % users
    wanted = interests[user, draw.integers(0, 2 * PHASES, rows)]
    about = draw.random(rows) < 0.5
    ad = np.where(about, wanted + draw.integers(0, ADS // CATEGORIES, rows) * CATEGORIES, draw.integers(0, ADS, rows))
    met = (category[history][user] == category[ad][:, None]).sum(1)
    p = 1 / (1 + np.exp(-(-2.5 + np.log1p(met))))
    lists = pa.array(history[user].tolist(), pa.list_(pa.int64()))
    table = pa.table(
        {
            "id": np.arange(rows),
            "clicked": (draw.random(rows) < p).astype(np.int64),
            "ad": ad,
            "category": category[ad],
            "history": lists,
            "categories": pa.array(category[history][user].tolist(), pa.list_(pa.int64())),
        }
    )
    return table, p


def features(everything: bool) -> cb.FeatureSet:
    def events(name: str) -> Any:
        return col(name) if everything else col(name).last(LAST)

    return cb.FeatureSet(
        label=col("clicked"),
        sparse={
            "ad": col("ad").key(),
            "category": col("category").key(),
            "history": events("history").key(space="ad"),
            "categories": events("categories").key(space="category"),
        },
    )


def trained(name: str, log: pa.Table, seed: int, stop: int, epochs: int) -> tuple[np.ndarray, float, float]:
    """Return the scores of the rows from ``stop`` on, and CPU µs of a row in training and in prediction."""
    everything, make = MODELS[name]
    plan = cb.compile(cb.View(log, key="id"), features(everything), device="cpu", threads=1)
    torch.manual_seed(seed)
    model = make(plan.schema)
    began = time.process_time()
    table = cb.MemoryTable(DIM, optimizer=cb.optim.Adam(lr=0.01), init=0.1)
    run = cb.Trainer(model, table, optimizer=cb.optim.Adam(lr=0.003), device="cpu", threads=1).fit(
        plan, limit=stop, valid=0.0, epochs=epochs, batch_size=128, seed=seed
    )
    learned = (time.process_time() - began) / (stop * epochs)
    began = time.process_time()
    found = [run.click_model.predict(batch) for batch in plan.batches(1024, start=cb.types.Position(stop))]
    return np.concatenate(found), 1e6 * learned, 1e6 * (time.process_time() - began) / (log.num_rows - stop)


def one(name: str, rows: int, events: int, epochs: int, seed: int) -> dict[str, float]:
    """Train one model on the world of one seed; return its test AUC, the best possible one, and CPU µs for each row."""
    torch.set_num_threads(1)
    stop = rows * 3 // 4
    log, p = world(rows, events, seed)
    label = log.column("clicked").to_numpy()[stop:] == 1
    found, learned, predicted = trained(name, log, seed, stop, epochs)
    return {"auc": auc(label, found), "best": auc(label, p[stop:]), "learned": learned, "predicted": predicted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=24_000, help="rows of each world")
    parser.add_argument("--events", type=int, default=150, help="events in the history of a user")
    parser.add_argument("--seeds", type=int, default=5, choices=sorted(STUDENT), help="number of seeds")
    parser.add_argument("--epochs", type=int, default=5, help="number of epochs")
    parser.add_argument("--models", default="", help="only these models, by semicolon, such as 'DIN, all;HSTU, all'")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, each with one thread")
    parser.add_argument("--log", type=Path, help="append every training as a JSON line, and read those that are there")
    parser.add_argument("--budget", type=float, help="seconds after which no training runs any more")
    parser.add_argument(
        "--quick", action="store_true", help="1,200 rows, 60 events, 2 seeds and 1 epoch, to see that it runs"
    )
    asked = parser.parse_args()
    rows, events, seeds, epochs = (
        (1200, 60, 2, 1) if asked.quick else (asked.rows, asked.events, asked.seeds, asked.epochs)
    )
    names = asked.models.split(";") if asked.models else [*MODELS]
    cells = Cells(asked.log)

    def cell(name: str, seed: int) -> dict[str, Any]:
        return {"model": name, "rows": rows, "events": events, "epochs": epochs, "seed": seed}

    # The slowest first, so that no process works alone at the end.
    slow = sorted(names, key=lambda name: ("HSTU" in name, "all" in name or "SIM" in name), reverse=True)
    work = [(cell(n, seed), one, (n, rows, events, epochs, seed)) for n in slow for seed in range(seeds)]
    cells.run(work, min(asked.jobs, os.cpu_count() or 1), asked.budget)
    every = {name: [cells.get(cell(name, seed)) for seed in range(seeds)] for name in MODELS}
    whole = {name: [line for line in lines if line is not None] for name, lines in every.items() if None not in lines}
    if "DIN, last 50" not in whole:
        raise SystemExit("the trainings of DIN over the last 50 events are not finished; run the command again")
    usual = np.array([line["auc"] for line in whole["DIN, last 50"]])
    best = float(np.mean([line["best"] for line in whole["DIN, last 50"]]))
    print(f"test AUC, {rows:,} rows, {events} events a user, {epochs} epochs, {seeds} seeds; CPU µs for each row")
    print(f"  {'best':<22}{best:.4f}")
    ours: dict[str, float] = {}
    for name, lines in whole.items():
        values = np.array([line["auc"] for line in lines])
        gap = values - usual
        reach = STUDENT[seeds] * gap.std(ddof=1) / np.sqrt(seeds)
        cost = [min(line[kind] for line in lines) for kind in ("learned", "predicted")]
        beside = f"{gap.mean():+.4f} ± {reach:.4f}   learned {cost[0]:6.0f}   predicted {cost[1]:6.0f}"
        print(f"  {name:<22}{values.mean():.4f}  {beside}")
        ours[name] = round(float(values.mean()), 5)
    peers = {"best": round(best, 5)}
    peers |= {name: ours.pop(name) for name in ("no history", "DIN, last 50", "DIN, all") if name in ours}
    report.finish_several(ours, peers, "test AUC", cores=1)


if __name__ == "__main__":
    main()
