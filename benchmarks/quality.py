"""How good are the models? Every click model of CTRBox and Deep FFM on every set at hand, beside LightGBM, VW and scikit-learn.

    python -m benchmarks.quality [--sets frappe_x1,…] [--models DeepFM,LightGBM,…] [--seeds 5] [--jobs 16] [--log quality.jsonl]
                                 [--data FOLDER] [--budget SECONDS] [--adlog-rows 200000] [--quick]

Each model trains on the oldest rows of a set, stops early by the next rows (validation), and is scored on the newest rows (test;
`quality_data.py` has the splits). The table has two columns:

    defaults   the settings of ``cb.Classifier`` (10 epochs, patience 2, vectors of 8 floats, all rows shuffled), of
               ``cb.DeepFFM(schema)`` after one epoch, and of each peer
    tuned      of the defaults and the candidates in `GRID` the one with the best validation AUC of one seed

and each is the mean test AUC of the seeds with its standard error. Test rows choose nothing. A peer is run with one seed.
Frappe has its ten fields without crosses here; `frappe.py` compares with the published figures, whose models are larger.

Each finished cell is a line of ``--log`` and is not run again. After ``--budget`` seconds, cells that still run are ended; the
table then shows what there is. Every cell has one thread. Peers that are not installed are left out, and a line says so; LightGBM
(`pip install lightgbm`) and Vowpal Wabbit (`pip install vowpalwabbit`) are compared with settings of `quality_peers.py`.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import quality_data, quality_peers, report
from benchmarks.table_cells_in_processes import Cell, Cells

Options = dict[str, Any]

OURS = (
    "LR", "FM", "EmbeddingMLP", "WideDeep", "DeepCrossing", "PNN", "YouTubeDNN", "DeepFM", "XDeepFM", "DCNv2", "AutoInt",
    "MaskNet", "FinalMLP", "GDCN", "DIN", "JointTowers",
)  # fmt: skip
FFM = "Deep FFM"
PEERS = {"LightGBM": "lightgbm", "VW linear": "vowpalwabbit", "VW pairs": "vowpalwabbit", "one-hot LR": "sklearn"}
WITHOUT_SEED = (*PEERS,)  # they are run with one seed: their results do not depend on it
PLAIN = ("LR", "FM")  # models without a tower
SMALL: Options = {"hidden": (64, 32), "dropout": 0.3}

# What is tried beside the defaults, by validation. Of ours: `plan` (of quality_data), `dim`, `model`, `vectors` and `linear`
# (rate and initial of Adagrad), `lr` of the dense weights, and arguments of fit. A model without a tower ignores `model`.
GRID: dict[str, list[Options]] = {
    "": [
        {"dim": 16, "vectors": (0.01, 0.1), "linear": (0.02, 0.1), "model": {"dropout": 0.2}},
        {"vectors": (0.05, 0.1), "linear": (0.05, 0.1)},
        {"dim": 8, "vectors": (0.005, 0.1), "linear": (0.01, 0.1), "model": SMALL, "batch_size": 512},
    ],
    FFM: [{"lr": 0.1}, {"epochs": 3, "lr": 0.02}, {"ffm": None, "lr": 0.05}],
    "one-hot LR": [{"C": 0.1}, {"C": 0.02}, {"C": 0.005}],
}  # fmt: skip


def made(set_: str, options: Options) -> list[Any]:
    """The plans of train, valid and test, with what the training part taught."""
    plan = quality_data.plan(set_, "train", **options.get("plan", {})).using(threads=1)
    folder = quality_data.folder(set_)
    return [plan, *(plan.over(str(folder / f"{part}.parquet")) for part in ("valid", "test"))]


def scores(labels: Sequence[Any], predictions: Sequence[Any], began: float) -> Cell:
    """The figures of a cell: of validation and of test rows."""
    valid, test = labels
    return {
        "valid_auc": quality_data.auc(valid, predictions[0]),
        "test_auc": quality_data.auc(test, predictions[1]),
        "test_logloss": quality_data.logloss(test, predictions[1]),
        "seconds": round(time.perf_counter() - began, 2),
    }


def ours(set_: str, name: str, options: Options, seed: int) -> Cell:
    """Train one of ``cb.models``."""
    import torch

    import ctrbox as cb
    from ctrbox.sklearn.classifier import Classifier, shuffled_together

    began = time.perf_counter()
    train, valid, test = made(set_, options)
    model: Options = {} if name == "LR" else {"dim": options.get("dim", 8)}
    if name == "DIN":
        model |= {"target": "leaf", "history": "history"}
    if name not in PLAIN:
        model |= options.get("model", {})
    if name == "DeepCrossing" and "hidden" in model:
        model["hidden"] = model["hidden"][:2]
    torch.manual_seed(seed)
    network = getattr(cb.models, name)(train.schema, **model)
    rates = {
        argument: cb.Adagrad(lr=pair[0], initial=pair[1])
        for argument, pair in (("optimizer", options.get("vectors")), ("linear", options.get("linear")))
        if pair is not None
    }
    dims = network.reads.dims
    tables = {dim: cb.MemoryTable(dim, seed=seed, threads=1, **rates) for dim in set(dims.values())}
    batch = options.get("batch_size") or Classifier()._batch(train.rows)
    run = cb.Trainer(
        network,
        {field: tables[dim] for field, dim in dims.items()},
        optimizer=cb.optim.Adam(lr=options.get("lr", 1e-3)),
        threads=1,
    ).fit(
        train,
        valid=valid,
        epochs=10,
        patience=2,
        batch_size=batch,
        shuffle=shuffled_together(train.rows, batch),
        seed=seed,
        explain=False,
        overlap=False,
    )
    found = [run.evaluate(plan) for plan in (valid, test)]
    return {
        "valid_auc": found[0]["auc"],
        "test_auc": found[1]["auc"],
        "test_logloss": found[1]["logloss"],
        "seconds": round(time.perf_counter() - began, 2),
    }


def deep_ffm(set_: str, name: str, options: Options, seed: int) -> Cell:
    """Learn with the engine of Deep FFM on the CPU, in the order of the log."""
    import ctrbox as cb

    began = time.perf_counter()
    train, valid, test = made(set_, options)
    o = dict(options)
    epochs = o.pop("epochs", 1)
    engine = cb.DeepFFM(train.schema, bits=20, seed=seed, **o)
    batches = list(train.batches(16_384))
    for _ in range(epochs):
        engine.learn(batches)
    parts = [list(plan.batches(16_384)) for plan in (valid, test)]
    labels = [np.concatenate([np.asarray(b.label) for b in part]) for part in parts]
    return scores(labels, [engine.predict(part) for part in parts], began)


def one_hot(set_: str, name: str, options: Options, seed: int) -> Cell:
    """Fit scikit-learn's logistic regression to one-hot codes and standardized dense columns."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    began = time.perf_counter()
    parts = quality_peers.parts(set_)
    coded, _, _ = quality_peers.codes(set_)
    encoder, scaler = OneHotEncoder(handle_unknown="ignore"), StandardScaler()
    x = [encoder.fit_transform(coded[0]), *(encoder.transform(one) for one in coded[1:])]
    if parts[0].dense.size:
        dense = [scaler.fit_transform(parts[0].dense), *(scaler.transform(one.dense) for one in parts[1:])]
        x = [sparse.hstack([a, b]).tocsr() for a, b in zip(x, dense, strict=True)]
    model = LogisticRegression(max_iter=300, **options).fit(x[0], parts[0].label)
    found = [model.predict_proba(one)[:, 1] for one in x[1:]]
    return scores([one.label for one in parts[1:]], found, began)


def peer(set_: str, name: str, options: Options, seed: int) -> Cell:
    """Train LightGBM or Vowpal Wabbit with settings of `quality_peers`."""
    began = time.perf_counter()
    run = quality_peers.lightgbm if name == "LightGBM" else quality_peers.vw
    found = run(set_, options)
    labels = [part.label for part in quality_peers.parts(set_)[1:]]
    return scores(labels, [found.valid, found.test], began)


def candidates(set_: str, name: str) -> list[Options]:
    """The settings that are tried for a model of a set; the first one is its defaults."""
    if name in ("LightGBM", "VW linear", "VW pairs"):
        tool = "lightgbm" if name == "LightGBM" else "vw"
        usual: Options = {"encode": "codes"} if tool == "lightgbm" else {"args": "-b 22", "passes": 1}
        if name == "VW pairs":
            usual = {"args": "-b 24 {pairs}", "passes": 1}
        mine = [s.options for s in quality_peers.SETTINGS[set_] if s.tool == tool and s.model in (name, "LightGBM")]
        return [usual, *mine]
    return [{}, *GRID.get(name, GRID[""])]


def one(set_: str, name: str, options: Options, seed: int, data: str, adlog: int) -> Cell:
    """Run one cell."""
    import torch

    torch.set_num_threads(1)
    quality_data.SHARED, quality_data.ADLOG_ROWS = Path(data), adlog
    run = {FFM: deep_ffm, "one-hot LR": one_hot}.get(name) or (peer if name in PEERS else ours)
    return run(set_, name, options, seed)


def cell(set_: str, name: str, candidate: int, seed: int, adlog: int) -> Cell:
    found: Cell = {"set": set_, "model": name, "candidate": candidate, "seed": seed}
    return {**found, "rows": adlog} if set_ == "adlog" else found


def fits(set_: str, name: str) -> bool:
    """Whether a model can read a set: DIN needs a history."""
    return name != "DIN" or set_ == "adlog"


def best(cells: Cells, set_: str, name: str, adlog: int) -> int | None:
    """The candidate with the best validation AUC of seed 0, None while one of them is missing."""
    found = [cells.get(cell(set_, name, k, 0, adlog)) for k in range(len(candidates(set_, name)))]
    known = [(line["valid_auc"], -k) for k, line in enumerate(found) if line is not None]
    return -max(known)[1] if len(known) == len(found) else None


def shown(lines: Sequence[Cell]) -> str:
    if not lines:
        return "–"
    values = [line["test_auc"] for line in lines]
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{error}" + (f" ({len(values)})" if len(values) not in (1, 5) else "")


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--sets", default=",".join(quality_data.SETS), help="names by comma; default: all at hand")
    parser.add_argument("--models", default="", help="models, 'Deep FFM' and peers by comma; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cells at a time, each with one thread")
    parser.add_argument("--log", type=Path, help="append every cell as a JSON line, and read those that are there")
    parser.add_argument("--data", type=Path, default=quality_data.SHARED, help="the folder of the real sets")
    parser.add_argument("--adlog-rows", type=int, default=200_000, help="rows of the generated ad log")
    parser.add_argument("--budget", type=float, help="seconds after which no cell runs any more")
    parser.add_argument("--quick", action="store_true", help="Criteo, LR and Deep FFM, one seed: does it run")
    asked = parser.parse_args()
    quality_data.SHARED, quality_data.ADLOG_ROWS = asked.data, asked.adlog_rows
    sets = ["criteo_1tb_80k"] if asked.quick else asked.sets.split(",")
    absent = [s for s in sets if s != "adlog" and s in quality_data.SETS and not (asked.data / s).is_dir()]
    for set_ in absent:
        print(f"{set_} is left out: {asked.data / set_} is absent")
    sets = [quality_data.known(s) for s in sets if s not in absent]
    names = asked.models.split(",") if asked.models else [*OURS, FFM, *PEERS]
    names = ["LR", FFM] if asked.quick else names
    for name in [n for n in names if n in PEERS and importlib.util.find_spec(PEERS[n]) is None]:
        print(f"{name} is left out: the package {PEERS[name]} is not installed")
        names.remove(name)
    for name in names:
        if name not in (*OURS, FFM, *PEERS):
            raise SystemExit(f"no model {name!r}; known: {', '.join((*OURS, FFM, *PEERS))}")
    for set_ in sets:
        quality_data.folder(set_)  # written once, before several processes ask for it
    cells, began = Cells(asked.log), time.perf_counter()
    seeds = 1 if asked.quick else asked.seeds
    pairs = [(set_, name) for set_ in sets for name in names if fits(set_, name)]

    def work(set_: str, name: str, k: int, seed: int) -> Any:
        options = candidates(set_, name)[k]
        return cell(set_, name, k, seed, asked.adlog_rows), one, (
            set_, name, options, seed, str(asked.data), asked.adlog_rows,
        )  # fmt: skip

    def left() -> float | None:
        return None if asked.budget is None else max(0.0, asked.budget - (time.perf_counter() - began))

    def repeats(name: str) -> int:
        return 1 if name in WITHOUT_SEED else seeds

    # The trainings that choose the tuned settings run first, then the seeds, so that a run that is stopped still has a table.
    cells.run([work(s, n, k, 0) for s, n in pairs for k in range(len(candidates(s, n)))], asked.jobs, left())
    chosen = {(s, n): best(cells, s, n, asked.adlog_rows) for s, n in pairs}
    more = [
        work(s, n, k, seed)
        for seed in range(1, seeds)
        for s, n in pairs
        if seed < repeats(n)
        for k in dict.fromkeys([0, chosen[s, n] or 0])
    ]
    cells.run(more, asked.jobs, left())
    table(cells, sets, names, chosen, seeds, asked.adlog_rows)


def table(cells: Cells, sets: Sequence[str], names: Sequence[str], chosen: Any, seeds: int, adlog: int) -> None:
    """Print the table, and the last line in JSON."""
    mine: dict[str, float] = {}
    theirs: dict[str, float] = {}
    lost: dict[str, float] = {}
    for set_ in sets:
        rows = []
        for name in names:
            if (set_, name) not in chosen:
                continue

            def lines(k: int | None, name: str = name, set_: str = set_) -> list[Cell]:
                found = [] if k is None else [cells.get(cell(set_, name, k, seed, adlog)) for seed in range(seeds)]
                return [line for line in found if line is not None]

            default, tuned = lines(0), lines(chosen[set_, name])
            if not default:
                continue
            aucs = [statistics.fmean(line["test_auc"] for line in some) for some in (default, tuned) if some]
            seconds = [statistics.fmean(line["seconds"] for line in some) for some in (default, tuned) if some]
            (theirs if name in PEERS else mine)[f"{set_} {name}"] = round(aucs[-1], 5)
            if len(aucs) > 1 and name not in PEERS:
                lost[f"{set_} {name}"] = round(aucs[1] - aucs[0], 5)
            loss = statistics.fmean(line["test_logloss"] for line in (tuned or default))
            setting = "–" if chosen[set_, name] is None else candidates(set_, name)[chosen[set_, name]] or "defaults"
            took = " / ".join(f"{one:.0f}" for one in seconds)
            rows.append((name, shown(default), shown(tuned), f"{loss:.4f}", took, str(setting)))
        rows.sort(key=lambda row: row[2], reverse=True)
        print(f"\n{set_}: test AUC, mean and standard error of {seeds} seeds; seconds of defaults / tuned")
        report.table(("model", "defaults", "tuned", "log loss", "seconds", "setting"), rows)
    for told in cells.failed:
        print(f"failed: {told}")
    report.finish(None, theirs, "test AUC", cores=1, models=mine, defaults_lose=lost)


if __name__ == "__main__":
    main()
