"""Prepared rows and the pieces of a batch: which row of the source a position is, parts of a batch, rows behind a filter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu.extract import cut
from ctrbox.engines.cpu.morsel_stages import Prepared, located, located_in_batch, narrowed
from ctrbox.errors import PlanError
from ctrbox.views.morsel import Origin

FRAME = object()


def prepared(rows: int, selected: list[int] | None = None, first: int = 0, start: int = 0) -> Prepared:
    chosen = None if selected is None else np.array(selected, np.int32)
    return Prepared(rows, [(FRAME, None, 2)], chosen, Origin("file", 100), start, first)


def test_a_position_is_a_row_of_the_morsel() -> None:
    whole, filtered = prepared(5, first=7), prepared(3, [1, 4, 6], first=7)
    assert [whole.row(k) for k in range(3)] == [7, 8, 9]
    assert [filtered.row(k) for k in range(3)] == [8, 11, 13]
    assert whole.numbers(1, 3).tolist() == [8, 9, 10]
    assert filtered.numbers(1, 2).tolist() == [11, 13]
    assert filtered.numbers(3, 0).tolist() == []
    assert whole.piece(3, 2) == (2, [(FRAME, None, 5)])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=5), st.data())
def test_a_part_of_a_batch_has_the_rows_from_the_first_to_the_last(
    pieces: list[tuple[int, int]], data: st.DataObject
) -> None:
    given_pieces: Any = [(name, begin, count) for name, (begin, count) in enumerate(pieces)]
    rows = [(name, begin + k) for name, begin, count in given_pieces for k in range(count)]
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    found: Any = cut(given_pieces, first, last)
    assert [(name, begin + k) for name, begin, count in found for k in range(count)] == rows[first:last]
    if first == last:
        assert found == [(0, pieces[0][0], 0)]  # it still has the shape of the batch
    else:
        assert all(count > 0 for _, _, count in found)


def test_a_row_of_a_batch_is_named_by_its_place_in_the_file() -> None:
    pieces = [(prepared(9, first=1), 2, 3), (prepared(3, [1, 4, 6], first=7), 1, 2)]
    told = [str(located_in_batch("bad", row, pieces)) for row in range(5)]
    assert told == [f"bad (at file row {100 + row})" for row in (3, 4, 5, 11, 13)]
    with pytest.raises(AssertionError, match="the row is not in the batch"):
        located_in_batch("bad", 5, pieces)
    error = SimpleNamespace(args=("bad", 1, 1))
    assert str(located(error, pieces)) == "bad (at file row 113)"
    nowhere = Prepared(4, [], None, None, 0, 5)
    assert str(located_in_batch("bad", 1, [(nowhere, 2, 2)])) == "bad (at row 8)"


def test_rows_that_pass_a_filter_are_picked_from_each_source() -> None:
    picked = np.array([0, 2, 3], np.int32)
    assert narrowed((None, None, 0), picked) == (None, None, 0)
    frame, index, base = narrowed((FRAME, None, 0), picked)
    assert (frame, index is picked, base) == (FRAME, True, 0)
    frame, index, base = narrowed((FRAME, None, 5), picked)
    assert index is not None
    assert (frame, index.tolist(), index.dtype, base) == (FRAME, [5, 7, 8], np.int32, 0)
    frame, index, base = narrowed((FRAME, np.array([9, 9, 4, -1, 6, 7], np.int32), 2), picked)
    assert index is not None
    assert (frame, index.tolist(), base) == (FRAME, [4, 6, 7], 0)


# ---- the log as batches

ROWS = 23


def plan(threads: int = 2, view: cb.View | None = None) -> cb.Plan:
    log = cb.View(pa.table({"n": list(range(ROWS))}), name="log") if view is None else view
    return cb.compile(log, cb.FeatureSet(dense={"n": "n"}), device="cpu", threads=threads)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize(
    ("start", "limit", "stop"),
    [
        (0, None, None),
        (0, 0, None),
        (0, 7, None),
        (3, 8, None),
        (3, 4, 20),
        (0, None, 10),
        (0, None, 0),
        (9, None, 9),
        (9, None, 10),
        (0, 50, 22),
        (22, None, 50),
        (23, None, None),
    ],
)
def test_a_walk_begins_at_a_row_and_ends_at_a_row_or_after_so_many(
    start: int, limit: int | None, stop: int | None, filtered: bool
) -> None:
    log = cb.View(pa.table({"n": list(range(ROWS))}), name="log")
    job = plan(view=log.filter(col("n") % 3 != 0) if filtered else log)
    extractor = job.extractor()
    extractor.morsel_rows = 4
    expected = [n for n in range(ROWS)[start:stop] if not filtered or n % 3][:limit]
    found = list(extractor.batches(4, start, limit, stop))
    assert [int(n) for batch, _ in found for n in batch.dense[:, 0]] == expected
    assert [batch.rows for batch, _ in found[:-1]] == [4] * (len(found) - 1)
    assert [after for _, after in found] == [int(batch.dense[-1, 0]) + 1 for batch, _ in found]
    if limit is None:
        numbered = list(extractor.numbered(4, start, stop))
        assert [int(n) for _, numbers in numbered for n in numbers] == expected
        parts = [list(extractor.parts(4, start, stop, part, 3)) for part in range(3)]
        for whole, *each in zip(found, *parts, strict=True):
            assert [int(n) for batch, _, _ in each for n in batch.dense[:, 0]] == whole[0].dense[:, 0].tolist()
            assert {(rows, after) for _, rows, after in each} == {(whole[0].rows, whole[1])}


def test_the_work_of_each_stage_is_counted_in_rows_and_seconds() -> None:
    users = cb.View(pa.table({"n": [1, 2, 3], "age": [4, 5, 6]}), key="n", name="users").fill(age=0)
    log = cb.View(pa.table({"n": list(range(ROWS))}), name="log").filter(col("n") >= 3).join(users, on="n")
    job = cb.compile(log, cb.FeatureSet(dense={"age": "age"}), device="cpu", threads=2)
    list(job.batches(5))
    assert {name: stage["rows"] for name, stage in job.stats.items()} == {
        "dimensions": 3,
        "read": ROWS,
        "filter": ROWS,
        "extract": ROWS - 3,
    }
    assert all(0 <= stage["seconds"] < 60 for stage in job.stats.values())


@pytest.mark.parametrize(("threads", "under_way"), [(1, 2), (2, 3), (3, 4), (4, 6), (9, 13)])
def test_half_as_many_morsels_again_as_threads_are_under_way(threads: int, under_way: int) -> None:
    assert plan(threads).extractor().under_way == under_way


def test_large_batches_and_small_ones_have_the_same_keys() -> None:
    log = cb.View(pa.table({"n": list(range(5000))}), name="log")
    job = cb.compile(log, cb.FeatureSet(sparse={"n": col("n").key()}), device="cpu", threads=1)
    found = {size: list(job.batches(size)) for size in (100, 101, 1025, 5000)}
    (whole,) = found[5000]
    for batches in found.values():
        for batch in batches:
            assert batch.sparse["n"].offsets.tolist() == list(range(batch.rows + 1))
        assert [k for batch in batches for k in batch.sparse["n"].values.tolist()] == whole.sparse["n"].values.tolist()


@pytest.mark.parametrize(("name", "low", "high"), [("rows", 1, 2**31 - 1), ("start", 0, 2**62), ("stop", 0, 2**62)])
def test_tables_of_columns_have_bounds(name: str, low: int, high: int) -> None:
    job = plan()
    for value in (low - 1, high + 1):
        with pytest.raises(PlanError) as met:
            next(job.columns({"n": col("n")}, **{name: value}))  # type: ignore[arg-type]
        assert str(met.value) == f"{name} must be a whole number from {low:,} to {high:,}, got {value}"
    for value in (low, high):
        found = [n for table in job.columns({"n": col("n")}, **{name: value}) for n in table["n"].to_pylist()]  # type: ignore[arg-type]
        assert found == ([] if (name, value) in (("start", high), ("stop", low)) else list(range(ROWS)))


def test_expressions_are_computed_for_some_rows_and_keep_their_types_without_any() -> None:
    found = plan().columns({"m": col("n") * 2}, rows=3, start=2, stop=9)
    assert [table["m"].to_pylist() for table in found] == [[4, 6, 8], [10, 12, 14], [16]]
    empty = cb.compute({"n": col("n"), "words": col("s").split(" ")}, pa.table({"n": [1], "s": ["a"]}).slice(0, 0))
    assert empty.to_pydict() == {"n": [], "words": []}
    assert empty.schema.types == [pa.int64(), pa.large_list(pa.large_string())]
    fitted = {"z": (col("n") * 1.0).standardize()}
    with pytest.raises(PlanError) as of_plan:
        next(plan().columns(fitted))
    assert str(of_plan.value) == (
        "this call cannot run operators that are fitted on the log (bucketize(quantiles=…), standardize, rate, …); remove them "
        "from the columns"
    )
    with pytest.raises(PlanError) as alone:
        cb.compute(fitted, pa.table({"n": [1]}))
    assert str(alone.value) == (
        "compute cannot run operators that are fitted on the log (bucketize(quantiles=…), standardize, shows, clicks, rate); "
        "make a plan with cb.compile"
    )
