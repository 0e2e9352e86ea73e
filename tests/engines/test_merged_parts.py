"""Rows of a morsel, cut where a merged view goes on in its next slice; the twin puts the slices together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu.merge_by_id import MOST_CUTS, Aligned, in_one_batch, parts_of
from ctrbox.errors import DataError


def values(rows: pa.RecordBatch | None, index: np.ndarray | None, base: int, count: int) -> list[int | None]:
    """What each of `count` rows finds in a merged view."""
    if rows is None:
        return [None] * count
    found = rows.column(0).to_pylist()
    if index is None:
        return found[base : base + count]
    return [None if k < 0 else found[k] for k in index[base : base + count].tolist()]


@st.composite
def sides(draw: st.DrawFn, rows: int) -> Aligned:
    if draw(st.booleans()):  # the view holds the same rows
        there, taken = list(range(rows)), [True] * rows
    else:
        there = sorted(draw(st.sets(st.integers(0, 3 * rows))))
        taken = [draw(st.booleans()) for _ in there]
    table = pa.record_batch({"value": pa.array(there, pa.int64())})
    cuts = sorted(draw(st.sets(st.integers(0, len(there)), max_size=draw(st.sampled_from([1, 3, 20])))))
    slices = [
        table.slice(begin, end - begin)
        for begin, end in zip([0, *cuts], [*cuts, len(there)], strict=True)
        if end > begin
    ]
    if all(taken) and len(there) == rows:
        return slices, None, 0
    places = iter([k for k, use in enumerate(taken) if use])
    index = np.array([next(places, -1) if draw(st.booleans()) else -1 for _ in range(rows)], np.int32)
    return slices, index if slices else None, 0


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_parts_find_what_the_slices_put_together_hold(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 30))
    merged = [data.draw(sides(rows)) for _ in range(data.draw(st.integers(0, 2)))]
    parts = parts_of(rows, merged)
    assert [begin for begin, _, _ in parts] == [0, *(end for _, end, _ in parts[:-1])]
    assert parts[-1][1] == rows
    assert len(parts) <= MOST_CUTS + 1
    for side, (slices, index, base) in enumerate(merged):
        found = [value for begin, end, beside in parts for value in values(*beside[side], end - begin)]
        assert found == values(in_one_batch(slices), index, base, rows)


def test_an_error_names_the_row_of_the_log_behind_a_cut(tmp_path: Path) -> None:
    rows = 1000
    log = pa.table(
        {"id": range(rows), "text": ['{"a": 1}'] * 700 + ["{"] + ['{"a": 1}'] * (rows - 701), "clicked": [0] * rows}
    )
    basic = pa.table({"id": range(rows), "f": [1.0] * rows})
    pa.parquet.write_table(log, tmp_path / "log.parquet")
    pa.parquet.write_table(basic, tmp_path / "basic.parquet", row_group_size=400)  # the log is cut at 400 and 800
    view = cb.View(str(tmp_path / "log.parquet"), key="id")
    merged = view.merge(cb.View(str(tmp_path / "basic.parquet"), key="id").fill(f=0.0))
    features = cb.FeatureSet(
        label=col("clicked"), dense={"f": col("f"), "a": col("text").json("$.a", "float", strict=True).fill(0.0)}
    )
    with pytest.raises(DataError, match=r"log\.parquet row 700\b"):
        list(cb.compile(merged, features, device="cpu").batches(256))
