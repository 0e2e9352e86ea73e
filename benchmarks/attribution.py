"""How much AUC do features of the past add to a click model, and does pandas compute the same features?

    python -m benchmarks.attribution [--sets criteo,adlog] [--rows 1000000] [--seeds 3] [--tools ours,pandas,lightgbm] [--quick]

Two logs: criteo_attribution_165k (its rows are in the order of time but have no times, so the number of a row in the original
set of 16 million serves as its second), and a month of the synthetic ad log, with 50 impressions for each user. The newest
fifth of the rows is the test part. The job is `examples/past.py`, as a user would write it: the raw files, a history, counters
over sliding windows with a gap, and DeepFM. It trains on the older rows; the state of its histories is saved and the test part
begins with it, as in a service. It is trained with and without the features of the past.

LightGBM gets the same columns: the fields as categories, and the features of the past as pandas computes them (rolling windows
of groups, binary search for histories). All features of the past of all rows are compared: counts, lists and times must be
equal, and click rates to 12 digits.

No setting was chosen on the test part. CTRBox uses the settings of the job, LightGBM those of `BOOSTED`; both hold back the
newest tenth of the older rows to decide when to stop. The seeds 0, 1, … choose the initial weights, and the features of
each tree of LightGBM. AUC is the mean over seeds with the 95 % interval of the rows; a difference has the interval of
rows and seeds together.
"""

from __future__ import annotations

import os
import runpy
import shutil
import tempfile
import time
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import ctrbox as cb
from benchmarks import report
from benchmarks.quality_data import SHARED, auc, auc_error
from ctrbox import col
from ctrbox.evaluate.compare_two_models import auc_difference

JOB = report.ROOT / "examples" / "past.py"
TEST = 0.2  # the newest rows
BOOSTED = {"objective": "binary", "learning_rate": 0.05, "num_leaves": 31, "feature_fraction": 0.8}
QUIET = {"verbose": -1, "num_threads": 1}
TREES, PATIENCE = 1000, 50
ROWS = 65_536  # of a batch
Scores = dict[str, list[np.ndarray]]  # by name of a model: the predictions of each seed


# ---- logs -------------------------------------------------------------------------------------------------------


def split_criteo(source: Path, folder: Path) -> tuple[Path, Path, pa.Table]:
    """Write the older rows to a file; return the paths of the whole log and of this file, and the newest rows."""
    whole = source / "criteo_attribution_165k" / "criteo_attribution_165k.parquet"
    rows = pq.read_table(whole)  # sorted by orig_row
    cut = round(rows.num_rows * (1 - TEST))
    pq.write_table(rows.slice(0, cut), folder / "train.parquet")
    return whole, folder / "train.parquet", rows.slice(cut)


def split_adlog(rows: int, folder: Path) -> tuple[Path, Path, pa.Table]:
    """Write a month of the ad log, and once more with the older impressions only; return both folders and the newest rows."""
    log = cb.datasets.adlog(rows, 1, folder / "whole", days=30, users=max(20, rows // 50))
    impressions = pq.read_table(log.impressions)
    cut = round(rows * (1 - TEST))
    train = folder / "train"
    (train / "impressions").mkdir(parents=True)
    pq.write_table(impressions.slice(0, cut), train / "impressions" / "part.parquet")
    for view in (log.users, log.ads):
        shutil.copytree(view, train / view.name)
    return log.path, train, impressions.slice(cut)


def job(data: Path, past: bool) -> dict[str, Any]:
    """Return what the job file defines."""
    with mock.patch.dict(os.environ, CTRBOX_DATA=str(data), CTRBOX_PAST=str(int(past))):
        return runpy.run_path(str(JOB))


# ---- ours -------------------------------------------------------------------------------------------------------


def trained(data: Path, test: pa.Table, past: bool, seed: int) -> np.ndarray:
    """Train the job on the older rows and return its predictions for the newest."""
    torch.manual_seed(seed)
    made = job(data, past)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the held-back rows are few at a tiny size
        state = saved(made["plan"], Path(folder) / "past.state") if past else None
        run = cb.Trainer(made["model"], made["table"], optimizer=made["optimizer"]).fit(
            made["plan"], seed=seed, explain=False, **made["settings"]
        )
        return np.concatenate(list(run.predictions(test, histories=state)))


def made_by_ours(whole: Path) -> pa.Table:
    """Return the features of the past of all rows."""
    made = job(whole, True)
    return cb.compute({name: col(name) for name in (*made["made"], "clicks_age")}, made["log"])


def check_state(whole: Path, data: Path, test: pa.Table) -> None:
    """Raise SystemExit unless the newest rows have the same dense features from a saved state as from the whole log."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "past.state"
        plan = job(data, True)["plan"]
        continued = plan.over(test, histories=saved(plan, state))
        dense = [
            np.concatenate([np.asarray(b.dense) for b in plan.batches(ROWS)])
            for plan in (job(whole, True)["plan"], continued)
        ]
    if not np.array_equal(dense[0][-test.num_rows :], dense[1]):
        raise SystemExit("a saved state gives the newest rows other features than the whole log")


def saved(plan: cb.Plan, path: Path) -> Path:
    """Save the state of a plan's histories after its log, and return the path."""
    histories = plan.histories()
    histories.read_log()
    histories.save(path)
    return path


# ---- pandas and LightGBM ----------------------------------------------------------------------------------------


def frame_of(whole: Path) -> Any:
    """Return all rows with the raw columns and those of joined views, as a data frame in the order of time."""
    import pandas as pd

    if whole.is_file():
        rows = pq.read_table(whole).to_pandas()
        rows["ts"] = pd.to_datetime(rows["orig_row"], unit="s")
        return rows
    rows = pq.read_table(whole / "impressions").to_pandas()
    rows = rows.fillna({"device": "unknown", "position": -1})
    users = pq.read_table(whole / "users").to_pandas()
    ads = pq.read_table(whole / "ads").to_pandas()
    rows = rows.merge(users.drop(columns="history"), on="user_id", how="left").merge(ads, on="ad_id", how="left")
    none = {
        "gender": "unknown",
        "country": "none",
        "segment": -1,
        "advertiser_id": 0,
        "campaign_id": 0,
        "category": "none",
    }
    return rows.fillna(none)


def made_by_pandas(rows: Any, made: dict[str, Any]) -> dict[str, Any]:
    """Return the features of the past that the job describes, as columns in the order of the rows.

    A window from `within` to `gap` before a row is the window of `within` without that of `gap`; both end before the row's time.
    """
    import pandas as pd

    def span_of(text: str) -> pd.Timedelta:
        return pd.Timedelta(text.replace("d", "D").replace("m", "min"))  # the units as pandas spells them

    label, gap = made["label"], span_of(made["gap"])
    rows = rows.assign(one=1)
    found: dict[str, Any] = {}
    for key, by in made["rates"].items():
        groups = rows.groupby(by, sort=False)

        order = np.concatenate(list(groups.indices.values()))

        def windowed(value: str, span: Any, groups: Any = groups, order: np.ndarray = order) -> np.ndarray:
            sums = groups.rolling(span, on="ts", closed="left")[value].sum()
            made = np.empty(len(rows))
            made[order] = sums.fillna(0).to_numpy()  # the sums come group by group
            return made

        near = {value: windowed(value, gap) for value in ("one", label)}
        for span, within in made["spans"].items():
            far = {value: windowed(value, span_of(within)) - near[value] for value in ("one", label)}
            shows, clicks = np.rint(far["one"]), np.rint(far[label])
            found[f"{key}_shows_{span}"] = shows.astype(np.int64)
            found[f"{key}_rate_{span}"] = np.divide(clicks, shows, out=np.full(len(rows), np.nan), where=shows > 0)
        since = np.full(len(rows), np.nan)
        for places in groups.indices.values():
            times = rows["ts"].to_numpy()[places]
            seen = np.searchsorted(times, times - gap.to_numpy(), side="left")
            told = seen > 0
            since[places[told]] = (times[told] - times[seen[told] - 1]) / np.timedelta64(1, "us") / 1e6
        found[f"{key}_since"] = since
    value, by = made["clicked"]
    lists: list[Any] = [()] * len(rows)
    ages: list[Any] = [()] * len(rows)
    all_times, all_values, clicked = rows["ts"].to_numpy(), rows[value].to_numpy(), rows[label].to_numpy() == 1
    for places in rows.groupby(by, sort=False).indices.values():
        events = places[clicked[places]]
        times, values = all_times[events], all_values[events]
        ends = np.searchsorted(times, all_times[places] - gap.to_numpy(), side="left")
        for place, end in zip(places, ends, strict=True):
            begin = max(0, end - 20)
            lists[place] = values[begin:end]
            ages[place] = (all_times[place] - times[begin:end]) / np.timedelta64(1, "us") / 1e6
    return found | {"clicks": lists, "clicks_age": ages}


def compare(ours: pa.Table, theirs: dict[str, Any]) -> int:
    """Raise SystemExit unless both made the same features; return the number of values compared."""
    compared = 0
    for name in ours.column_names:
        mine, other = ours[name].combine_chunks(), theirs[name]
        if pa.types.is_large_list(mine.type) or pa.types.is_list(mine.type):
            lengths = np.diff(mine.offsets.to_numpy())
            values = mine.flatten().to_numpy(zero_copy_only=False)
            same = np.array_equal(lengths, [len(one) for one in other])
            same = same and np.array_equal(values, np.concatenate([np.asarray(one, values.dtype) for one in other]))
            compared += len(values)
        else:
            values = mine.to_numpy(zero_copy_only=False)
            exact = "_rate_" not in name
            same = np.allclose(values, other, rtol=0, atol=0 if exact else 1e-12, equal_nan=True)
            compared += len(values)
        if not same:
            raise SystemExit(f"{name}: pandas computes other values")
    return compared


def boosted(rows: Any, made: dict[str, Any], past: dict[str, Any] | None, seeds: int, tests: int) -> list[np.ndarray]:
    """Train LightGBM on the older rows with each seed; return its predictions for the newest."""
    import lightgbm as lgb
    import pandas as pd

    x = pd.DataFrame({name: rows[name].astype("category") for name in made["fields"]})
    if past is not None:
        current = rows[made["clicked"][0]].to_numpy()
        x["taste"] = [int(now in list(seen)) for now, seen in zip(current, past["clicks"], strict=True)]
        for name, values in past.items():
            if not name.startswith("clicks"):
                x[name] = values
    y = rows[made["label"]].to_numpy()
    train, valid = len(rows) - tests, round((len(rows) - tests) * 0.1)
    found = []
    for seed in range(seeds):
        data = lgb.Dataset(x[: train - valid], y[: train - valid])
        held = lgb.Dataset(x[train - valid : train], y[train - valid : train], reference=data)
        model = lgb.train(
            BOOSTED | QUIET | {"seed": seed},
            data,
            TREES,
            [held],
            callbacks=[lgb.early_stopping(PATIENCE, verbose=False)],
        )
        found.append(np.asarray(model.predict(x[train:])))
    return found


# ---- the table --------------------------------------------------------------------------------------------------


def told(name: str, label: np.ndarray, scores: Sequence[np.ndarray], seconds: float) -> list[object]:
    value = float(np.mean([auc(label, one) for one in scores]))
    reach = 1.96 * auc_error(label, value)
    return [name, f"{value:.4f}", f"[{value - reach:.4f}, {value + reach:.4f}]", f"{seconds:.1f}"]


def one_set(name: str, source: Path, rows: int, seeds: int, tools: Sequence[str]) -> dict[str, float]:
    """Print the table of one log, and return the mean AUC of each model on its test part."""
    with tempfile.TemporaryDirectory() as folder:
        split = split_criteo(source, Path(folder)) if name == "criteo" else split_adlog(rows, Path(folder))
        whole, data, test = split
        check_state(whole, data, test)
        made = job(data, True)
        label = test[made["label"]].to_numpy()
        scores: Scores = {}
        seconds: dict[str, float] = {}

        def timed(model: str, run: Any) -> None:
            began = time.process_time()
            scores[model] = run()
            seconds[model] = (time.process_time() - began) / seeds

        for past in (False, True):
            which = "with the past" if past else "without"
            timed(f"CTRBox, {which}", lambda past=past: [trained(data, test, past, seed) for seed in range(seeds)])
        if {"pandas", "lightgbm"} & set(tools):
            frame = frame_of(whole)
            theirs = made_by_pandas(frame, made)
            compared = compare(made_by_ours(whole), theirs)
            print(f"{name}: {compared:,} values of features of the past are the same in CTRBox and pandas")
            for past in (False, True) if "lightgbm" in tools else ():
                which = "with the past" if past else "without"
                timed(
                    f"LightGBM, {which}",
                    lambda past=past: boosted(frame, made, theirs if past else None, seeds, len(label)),
                )
    print(f"{name}: {len(label):,} rows of the test part, {label.mean():.1%} clicked")
    lines = [told(model, label, found, seconds[model]) for model, found in scores.items()]
    report.table(["model", "test AUC", "95 % interval", "CPU seconds per seed"], lines)
    for a, b in (("CTRBox, without", "CTRBox, with the past"), ("LightGBM, with the past", "CTRBox, with the past")):
        if a in scores:
            print(f"{b} minus {a}: {auc_difference(label, np.stack(scores[a]), np.stack(scores[b]))}")
    print()
    return {model: float(np.mean([auc(label, one) for one in found])) for model, found in scores.items()}


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--sets", default="criteo,adlog", help="logs, of: criteo, adlog; default both")
    parser.add_argument("--rows", type=int, default=1_000_000, help="impressions of the ad log; default 1,000,000")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each model; default 3")
    parser.add_argument(
        "--tools", default="ours,pandas,lightgbm", help="of: ours, pandas (compares features), lightgbm"
    )
    parser.add_argument("--data", type=Path, default=SHARED, help="folder with criteo_attribution_165k")
    parser.add_argument("--quick", action="store_true", help="60,000 impressions of the ad log alone, one seed")
    given = parser.parse_args()
    if given.quick:
        given.sets, given.rows, given.seeds = "adlog", 60_000, 1
    tools = given.tools.split(",")
    if "lightgbm" in tools and find_spec("lightgbm") is None:
        print("LightGBM is left out, because it is not installed: pip install 'ctrbox[peers]'")
        tools.remove("lightgbm")
    found = {name: one_set(name, given.data, given.rows, given.seeds, tools) for name in given.sets.split(",")}
    ours = float(np.mean([aucs["CTRBox, with the past"] for aucs in found.values()]))
    peers = {
        model: float(np.mean([aucs[model] for aucs in found.values()]))
        for model in next(iter(found.values()))
        if model != "CTRBox, with the past"
    }
    report.finish(ours, peers, "mean test AUC of the logs", seeds=given.seeds, rows=given.rows, auc=found)


if __name__ == "__main__":
    main()
