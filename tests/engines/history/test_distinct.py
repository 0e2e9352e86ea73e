"""Numbers of different values of the past equal what a search of all earlier rows finds, offline and online."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError
from tests.engines.history.oracle import Row, seen
from tests.engines.history.test_histories import SECOND, computed, logs, table_of

NAMES = ["cities", "pairs", "some"]


def viewed(log: pa.Table, gap: int, last: int) -> cb.View:
    past = cb.past(by="user", time="ts", gap=f"{gap}s", lateness="4s")
    return cb.View(log, name="log").with_history(
        cities=past.distinct("city", within="9s"),
        pairs=past.distinct("ad", "city"),
        some=past.distinct("ad", last=last),
    )


@settings(max_examples=25, deadline=None)
@given(rows=logs(lateness=4), gap=st.sampled_from([0, 2]), last=st.integers(1, 5), chunk=st.integers(1, 70))
def test_numbers_of_different_values_are_what_a_search_finds(rows: list[Row], gap: int, last: int, chunk: int) -> None:
    table = pa.Table.from_batches(table_of(rows).to_batches(max_chunksize=chunk), table_of([]).schema)
    for at, row in enumerate(computed(viewed(table, gap, last), NAMES).to_pylist()):
        every, near = (seen(rows, at, by="user", gap=gap * SECOND, within=within * SECOND) for within in (0, 9))
        assert row["cities"] == len({event["city"] for event in near if event["city"] is not None})
        assert row["pairs"] == len({(event["ad"], event["city"]) for event in every if event["city"] is not None})
        assert row["some"] == len({event["ad"] for event in every[-last:]})


@settings(max_examples=10, deadline=None)
@given(rows=logs(), cut=st.integers(0, 60))
def test_a_state_that_is_saved_and_loaded_counts_what_the_log_counts(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], cut: int
) -> None:
    file: Path = tmp_path_factory.mktemp("state") / "past.state"
    known = [row for row in rows if row["ts"] is not None]
    log = table_of(known)
    plan = cb.compile(viewed(log, 0, 3), cb.FeatureSet(label=col("clicked").fill(False), dense={"n": col("some")}))
    offline = computed(viewed(log, 0, 3), NAMES).to_pylist()
    state = plan.histories()
    for at in range(min(cut, len(known))):
        state.observe(log.slice(at, 1))
    state.save(file)
    state = plan.histories(file)
    if cut < len(known):
        state.observe(log.slice(min(cut, len(known)), 0))
        assert state.columns_of(log.slice(cut, 1)).to_pylist() == [offline[cut]]


def test_values_that_cannot_be_told_apart_are_refused() -> None:
    past = cb.past(by="user", time="ts")
    with pytest.raises(PlanError, match=r"distinct takes values of the types .* but 'price' is"):
        cb.View(table_of([])).with_history(n=past.distinct("price"))
    with pytest.raises(PlanError, match="distinct takes 1 to 64 columns"):
        past.distinct()
    with pytest.raises(PlanError, match="last must be"):
        past.distinct("ad", last=0)
