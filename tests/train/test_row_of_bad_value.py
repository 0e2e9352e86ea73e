"""An error about a value names the file and the row that hold it, whatever filters and shuffling did before."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import DataError, TrainError
from ctrbox.predict.row_of_bad_value import Sought, place_of

ROWS, FILES = 1_000, 4


def plan_of(folder: Path, **changed: dict[int, float]) -> cb.Plan:
    """Write a log of four files with the values of ``changed`` by row, and compile a plan that drops some of its rows."""
    columns = {
        "x": np.ones(ROWS),
        "weight": np.ones(ROWS),
        "clicked": (np.arange(ROWS) % 2).astype(float),
        "user": np.arange(ROWS) % 97,
    }
    for name, values in changed.items():
        columns[name][list(values)] = list(values.values())
    for k in range(FILES):
        part = slice(k * ROWS // FILES, (k + 1) * ROWS // FILES)
        pq.write_table(pa.table({n: c[part] for n, c in columns.items()}), folder / f"{k}.parquet")
    log = cb.View(str(folder / "*.parquet")).filter(col("user") != 3)
    features = cb.FeatureSet(
        label=col("clicked"), weight=col("weight"), sparse={"user": col("user").key()}, dense={"x": col("x")}
    )
    return cb.compile(log, features, device="cpu")


def fit(plan: cb.Plan, **settings: Any) -> None:
    trainer = cb.Trainer(cb.models.DeepFM(plan.schema, dim=2, hidden=(2,)), cb.MemoryTable(2))
    trainer.fit(plan, batch_size=64, progress=False, **settings)


@pytest.mark.parametrize("settings", [{}, {"shuffle": 512}, {"valid": 0.3}, {"negatives": 0.5}], ids=str)
def test_a_feature_that_is_not_a_number_is_named_with_its_file_and_row(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    plan = plan_of(tmp_path, x={777: math.nan, 801: math.inf, 900: math.nan})
    with pytest.raises(TrainError, match=r"dense feature 'x' is .* first such row of the log is .*/3\.parquet row 27$"):
        fit(plan, **settings)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [("clicked", math.nan, "the label is nan in row"), ("weight", -1.0, "the sample weight is -1.0 in row")],
)
@pytest.mark.parametrize("row", [260, 999])  # of the training rows, and of the validation rows
def test_a_refused_label_or_weight_is_named_with_its_file_and_row(
    tmp_path: Path, column: str, value: float, told: str, row: int
) -> None:
    place = f"{row // 250}.parquet row {row % 250}"
    with pytest.raises(DataError, match=f"{told}.*The first such row of the log is .*/{place}$"):
        fit(plan_of(tmp_path, **{column: {row: value}}), valid=0.2)


def test_a_search_that_finds_nothing_names_no_row(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, x={777: math.nan})
    assert place_of(plan, Sought("weight")) is None
    assert place_of(plan, Sought("dense", "x"), stop=777) is None
    found = place_of(plan, Sought("dense", "x"), start=500)
    assert found is not None
    assert found.endswith("3.parquet row 27")
    assert place_of(plan, Sought("dense", "x"), start=778) is None
    (tmp_path / "3.parquet").unlink()  # the error that is being explained matters more
    assert place_of(plan, Sought("dense", "x")) is None
