"""Conditions for readers that follow from the filters of a log: what every selected row satisfies, and nothing else."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu.skip_row_groups import MOST_CONDITIONS, prune_expression

TABLE = pa.table(
    {
        "i": [1, 2],
        "f": [0.5, 1.0],
        "s": ["a", "b"],
        "b": [True, False],
        "t": pa.array([1, 2], pa.timestamp("us")),
    }
)
I, F, S = pc.field("i"), pc.field("f"), pc.field("s")


def conditions(view: cb.View) -> Any:
    plan = cb.compile(view, cb.FeatureSet(dense={"x": "i"}), device="cpu", threads=1)
    return prune_expression(plan.graph.frames[0])


@pytest.fixture
def log(tmp_path: Path) -> cb.View:
    pq.write_table(TABLE, tmp_path / "log.parquet")
    return cb.View(tmp_path / "log.parquet", key="i", name="log")


@pytest.mark.parametrize(
    ("filtered", "expected"),
    [
        (col("i") == 1, I == 1),
        (col("i") < 1, I < 1),
        (col("i") <= 1, I <= 1),
        (col("i") > 1, I > 1),
        (col("i") >= 1, I >= 1),
        (col("f") < 0.5, F < 0.5),
        (col("s") == "a", S == "a"),
        (col("i").is_in([1, 2]), I.isin([1, 2])),
        (col("s").is_in(["a"]), S.isin(["a"])),
        ((col("i") > 1) & (col("s") == "a") & (col("f") < col("i")), (S == "a") & (I > 1)),
    ],
)
def test_filters_by_constants_skip_row_groups(log: cb.View, filtered: Any, expected: pc.Expression) -> None:
    found = conditions(log.filter(filtered))
    assert found is not None
    assert found.equals(expected)


@pytest.mark.parametrize(
    "filtered",
    [
        col("i") != 1,
        col("i") > 1.5,
        col("i") + 1 > 2,
        col("i") < col("f"),
        ~(col("i") > 1),
        (col("i") > 1) | (col("s") == "a"),
        col("f").is_in([1.0]),
        col("s") == "\udc80",
        col("s").is_in(["a", "\udc80"]),
        col("b") == True,  # noqa: E712
        col("t") > datetime(2020, 1, 1),
    ],
)
def test_filters_of_which_statistics_say_nothing_skip_none(log: cb.View, filtered: Any) -> None:
    assert conditions(log.filter(filtered)) is None


def test_rows_in_memory_and_columns_of_merged_views_skip_no_row_group(log: cb.View, tmp_path: Path) -> None:
    assert conditions(cb.View(TABLE).filter(col("i") > 1)) is None
    pq.write_table(pa.table({"i": [1, 2], "more": [3, 4]}), tmp_path / "more.parquet")
    merged = log.merge(cb.View(tmp_path / "more.parquet", key="i", name="more").fill(more=0))
    assert conditions(merged.filter(col("more") > 1)) is None
    assert conditions(merged.filter(col("more") > 1).filter(col("f") > 1)).equals(F > 1.0)


def test_only_so_many_conditions_are_handed_on(log: cb.View) -> None:
    view = log
    for least in range(MOST_CONDITIONS + 2):
        view = view.filter(col("i") > least)
    assert str(conditions(view)).count(">") == MOST_CONDITIONS
    assert conditions(log.filter(col("i") > 1).filter(col("i") > 2)).equals((I > 2) & (I > 1))
