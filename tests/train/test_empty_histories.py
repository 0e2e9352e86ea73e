"""A run that scores other data says so where the histories of this data begin empty, and is silent where they do not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col

ROWS = 600
TOLD = r"columns of with_history \(seen, seen_age, shown\) are computed from .* alone"


def rows(seed: int, begin: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(begin, begin + ROWS),
            "user": draw.integers(0, 9, ROWS),
            "ad": draw.integers(0, 5, ROWS),
            "ts": pa.array(begin + np.arange(ROWS), pa.timestamp("s")),
            "clicked": draw.integers(0, 2, ROWS),
        }
    )


def view(data: Any, events: Any = None) -> cb.View:
    log = cb.View(data, key="id", name="log")
    if events is None:
        seen: Any = cb.past(by="user", time="ts")
        return log.with_history(seen=cb.history("ad", by="user", time="ts", last=3), shown=seen.count()).select(
            "ad", "clicked", "seen", "shown"
        )
    other = cb.View(events, name="events")
    return log.with_history(
        seen=other.history("ad", by="user", time="ts", last=3), shown=other.past(by="user", time="ts").count()
    ).select("ad", "clicked", "seen", "shown")


def trained(log: cb.View, **settings: Any) -> cb.Run:
    features = cb.FeatureSet(
        label=col("clicked"),
        sparse={"ad": col("ad").key(), "seen": col("seen").key(space="ad")},
        dense={"shown": col("shown")},
    )
    plan = cb.compile(log, features, device="cpu")
    return cb.Trainer(cb.models.LR(plan.schema), threads=1).fit(plan, batch_size=200, **settings)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("histories")
    pq.write_table(rows(0, 0), place / "log.parquet")
    pq.write_table(rows(1, ROWS), place / "tomorrow.parquet")
    trained(view(str(place / "log.parquet")), out=place / "run")
    return place


def told(work: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        work()
    return [str(w.message) for w in met]


def test_predictions_and_evaluations_of_other_data_tell_that_its_histories_begin_empty(world: Path) -> None:
    run = cb.Run.load(world / "run", allow_views=[str(world)])
    with pytest.warns(UserWarning, match=TOLD):
        assert sum(len(p) for p in run.predictions(world / "tomorrow.parquet")) == ROWS
    with pytest.warns(UserWarning, match=TOLD):
        run.evaluate(world / "tomorrow.parquet")


def test_the_log_of_the_training_and_rows_that_bring_their_histories_are_scored_without_a_word(world: Path) -> None:
    run = cb.Run.load(world / "run", allow_views=[str(world)])
    assert told(lambda: list(run.predictions(world / "log.parquet"))) == []
    both = pa.concat_tables([rows(0, 0), rows(1, ROWS)])
    columns = {name: col(name) for name in ("seen", "seen_age", "shown")}
    made = cb.compute(columns, cb.View(both).with_history(**dict(view(both).steps[0].features)))
    for name in columns:
        both = both.append_column(name, made[name])
    assert told(lambda: list(run.predictions(both.slice(ROWS)))) == []


def test_histories_of_events_in_another_view_do_not_begin_empty() -> None:
    run = trained(view(rows(0, 0), rows(2, 0)))
    assert told(lambda: list(run.predictions(rows(1, ROWS)))) == []
