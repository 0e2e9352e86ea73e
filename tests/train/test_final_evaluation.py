"""The final evaluation of a run against plain NumPy, and how a summary shares out the time of its stages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.evaluate.metrics import calibration_curve, windows
from ctrbox.report.bottleneck import StageShares
from ctrbox.train.evaluation import columns_of, watched, watched_name
from ctrbox.train.pipeline import Clock
from ctrbox.train.summary import Look, judge, pipeline, stage_shares, tables, time_column

ROWS, START, STOP = 300, 40, 290
TIMELESS = (50, 51, 120, 280)


def log(timeless: tuple[int, ...] = TIMELESS, **more: Any) -> pa.Table:
    rng = np.random.default_rng(3)
    user = rng.integers(0, 8, ROWS)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "ts": pa.array([None if k in timeless else k * 1_800_000_000 for k in range(ROWS)], pa.timestamp("us")),
            "user": user,
            "hour": np.arange(ROWS) % 2,
            "clicked": (rng.random(ROWS) < 0.2 + 0.6 * (user % 2)).astype(np.int8),
            "w": rng.integers(1, 5, ROWS).astype(np.float64),
            **more,
        }
    )


def planned(rows: pa.Table, weight: bool = False, group: bool = True) -> cb.Plan:
    features = cb.FeatureSet(
        label=col("clicked"),
        group=col("user") if group else None,
        weight=col("w") if weight else None,
        sparse={"user": col("user")},
    )
    return cb.compile(cb.View(rows, key="id"), features, threads=1)


@pytest.fixture(scope="module")
def run() -> cb.Run:
    plan = planned(log())
    return cb.Trainer(cb.models.LR(plan.schema), cb.MemoryTable(0), threads=1).fit(plan, batch_size=30, explain=False)


def judged(run: cb.Run, plan: cb.Plan, look: Look | None = None, stop: int | None = STOP) -> dict[str, Any]:
    return judge(run.learner, plan, START, stop, 64, look or Look())


@pytest.mark.parametrize(("weight", "group"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("timeless", [(), (1, 2), TIMELESS])
def test_windows_are_of_the_rows_with_a_time_and_all_other_figures_of_all_rows(
    run: cb.Run, timeless: tuple[int, ...], weight: bool, group: bool
) -> None:
    rows = log(timeless)
    found = judged(run, planned(rows, weight, group))
    here = rows.slice(START, STOP - START)
    p = run.predict(here)
    label, known = here["clicked"].to_numpy(), here["ts"].is_valid().to_numpy()
    of = {
        "weight": here["w"].to_numpy()[known] if weight else None,
        "group": here["user"].to_numpy()[known] if group else None,
        "time": here["ts"].drop_null().to_numpy().astype("datetime64[us]").astype(np.int64),
    }
    assert repr(found["windows"]) == repr(windows(label[known], p[known], **of, count=5))
    assert sum(one["rows"] for one in found["windows"]) == known.sum()
    assert found["rows_without_time"] == sum(START <= k < STOP for k in timeless)
    assert (found["metrics"]["rows"], found["metrics"]["clicks"]) == (250, label.sum())
    assert ("weighted_auc" in found["metrics"]) == weight
    assert np.isfinite(found["metrics"]["gauc"]) == group
    assert found["calibration"] == [  # 250 rows make five groups
        {"p": one["mean_p"], "rate": one["click_rate"], "rows": one["rows"]}
        for one in calibration_curve(label, p, bins=5)["bins"]
    ]


@pytest.mark.parametrize(("stop", "parts"), [(START + 49, 1), (START + 99, 1), (START + 100, 2), (STOP, 5)])
def test_rows_without_times_are_cut_into_windows_of_at_least_fifty(run: cb.Run, stop: int, parts: int) -> None:
    plan = planned(log().drop_columns(["ts"]))
    assert time_column(plan) is None
    found = judged(run, plan, stop=stop)
    assert len(found["windows"]) == parts
    assert found["windows"][0]["first_row"] == 0
    assert len(found["calibration"]) <= parts
    assert found["rows_without_time"] == 0


def test_slices_are_those_asked_for_or_columns_of_few_values(run: cb.Run) -> None:
    plan = planned(log())
    found = judged(run, plan)
    assert found["slices_looked_at"] == 1  # users, each of whom has fewer than 100 rows
    asked = judged(run, plan, Look(col("ts"), {"hour": col("hour"), "user": col("user")}))
    assert asked["slices_looked_at"] == 3
    assert [one["field"] for one in asked["slices_asked_for"]] == ["hour", "hour", "user"]
    assert sum(one["rows"] for one in asked["slices_asked_for"][:2]) == STOP - START
    assert found["slices_asked_for"] == []
    assert repr(asked["windows"]) == repr(found["windows"])
    assert repr(judged(run, plan, Look("ts", {"hour": "hour", "user": "user"}))) == repr(asked)
    nothing = judged(run, plan, Look(by={}))
    assert (nothing["slices"], nothing["slices_looked_at"], nothing["slices_without_figures"]) == ([], 0, [])
    assert repr(nothing["windows"]) == repr(found["windows"])
    assert [one["name"] for one in nothing["features"]] == ["user"]


def test_a_slice_without_clicks_and_a_bad_one_are_told_apart(run: cb.Run) -> None:
    rows = log()
    clicked = np.where(rows["hour"].to_numpy() == 1, 0, rows["clicked"].to_numpy())
    clicked = np.where(rows["hour"].to_numpy() == 0, 1 - rows["user"].to_numpy() % 2, clicked)
    rows = rows.set_column(rows.column_names.index("clicked"), "clicked", pa.array(clicked))
    found = judged(run, planned(rows, weight=True), Look(by={"hour": col("hour")}))
    here = slice(START, STOP)
    assert [(one["field"], one["value"], one["rows"]) for one in found["slices_without_figures"]] == [
        ("hour", "1", int((rows["hour"].to_numpy()[here] == 1).sum()))
    ]
    assert [(one["field"], one["value"]) for one in found["slices"]] == [("hour", "0")]
    assert found["slices"][0]["weighted_auc"] < 0.5
    assert found["slices_looked_at"] == 2


def test_a_log_with_one_usable_time_has_windows_by_it() -> None:
    assert repr(time_column(planned(log()))) == repr(col("ts"))
    assert time_column(planned(log(later=pa.array([0] * ROWS, pa.timestamp("us"))))) is None


def test_columns_of_no_rows_are_none() -> None:
    plan = planned(log())
    assert columns_of(plan, {"u": col("user"), "h": col("hour")}, 297, None)["h"].to_pylist() == [1, 0, 1]
    assert columns_of(plan, {"u": col("user")}, 300, None) == {}


@pytest.mark.parametrize(
    ("metrics", "monitor", "name", "value"),
    [
        ({"loss": 0.5, "logloss": 0.25}, None, "loss", 0.5),
        ({"loss": 0.5, "click.auc": 0.75}, "click.auc", "click.auc", -0.75),
        ({"loss": 0.5, "value.rmse": 2.0}, "value.rmse", "value.rmse", 2.0),
        ({"loss": 0.5, "value.mae": 2.0}, "value.mae", "value.mae", 2.0),
        ({"loss": 0.5, "visits.deviance": 2.0}, "visits.deviance", "visits.deviance", 2.0),
        ({"loss": 0.5}, "loss", "loss", 0.5),
        ({"logloss": 0.5, "weighted_logloss": 0.25}, "logloss", "logloss", 0.5),
        ({"gauc": 0.5}, "gauc", "gauc", -0.5),
    ],
)
def test_a_watched_figure_is_smaller_where_it_is_better(
    metrics: dict[str, float], monitor: str | None, name: str, value: float
) -> None:
    assert (watched_name(metrics, monitor), watched(metrics, monitor)) == (name, value)


# ---- the time of stages


def test_before_a_pass_has_ended_stages_are_shared_out_by_all_seconds() -> None:
    clocks = [Clock("extract", 1.0, 2.0, 1.0), Clock("learn", 9.0, 5.0, 4.0)]
    passes: Any = SimpleNamespace(done={})
    assert stage_shares(passes, clocks, 4.0) == [StageShares("extract", 0.25, 0.75), StageShares("learn", 1.0, 1.0)]
    assert pipeline(passes, clocks) == {"seconds": 0.0, "sequential": 0.0, "slowest": 0.0}
    passes.done = {"stages": {"seconds": 8.0, "extract_busy": 2.0, "extract_for_input": 1.0, "extract_for_room": 3.0}}
    assert stage_shares(passes, clocks, 4.0) == [StageShares("extract", 0.25, 0.5), StageShares("learn", 0.0, 0.0)]
    passes.done["stages"] |= {"learn_busy": 9.0, "learn_for_room": 7.0, "learn_for_input": 7.0}
    assert stage_shares(passes, clocks, 4.0)[1] == StageShares("learn", 1.0, 1.0)
    assert pipeline(passes, clocks) == {"seconds": 8.0, "sequential": 11.0, "slowest": 9.0}
    assert pipeline(passes, []) == {"seconds": 8.0, "sequential": 0, "slowest": 0.0}


def test_tables_that_count_are_told_with_what_they_hold() -> None:
    def source(*fields: str, folder: str | None = None) -> Any:
        return SimpleNamespace(fields=fields, traits=SimpleNamespace(folder=folder))

    learner: Any = SimpleNamespace(sources=[source("a"), source("b", "c", folder="params"), source("d"), source("e")])
    stats = {"table-1": lambda: {"keys": 7, "asked": 99}, "table-2": lambda: {"keys": 8}, "table-3": dict}
    done = {"table-1": {"asked": 10, "hits": 3, "misses": 1, "reads": 5}, "table-3": {}, "table-0": {"asked": 1}}
    assert tables(learner, SimpleNamespace(stats=stats, done=done)) == [  # type: ignore[arg-type]
        {
            "name": "table-1",
            "fields": ["b", "c"],
            "path": "params",
            "asked": 10,
            "hits": 3,
            "misses": 1,
            "reads": 5,
            "hit_rate": 0.75,
            "reads_per_key": 0.5,
            "keys": 7,
        },
        {"name": "table-3", "fields": ["e"], "path": None, "hit_rate": None, "reads_per_key": None},
    ]
