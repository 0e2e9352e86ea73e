"""A cursor that walks a view beside the log: the rows that it finds for ids, those that it counts, and ids out of order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu.merge_by_id import MergeCursor, _begins_at, ids_of, in_one_batch
from ctrbox.errors import DataError
from ctrbox.views.morsel import Origin


class Rows:
    """Rows that come one record batch after the other."""

    def __init__(self, table: pa.Table, rows: int) -> None:
        self.table, self.rows = table, rows

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        batches = self.table.to_batches(max_chunksize=self.rows)
        return pa.RecordBatchReader.from_batches(self.table.schema, batches).__arrow_c_stream__(requested)


def basic(ids: list[int], rows: int) -> cb.View:
    table = pa.table({"v": [10 * k for k in ids], "id": ids})
    return cb.View(Rows(table, rows), key="id", name="basic")


IDS = st.lists(st.integers(0, 40), unique=True, max_size=25).map(sorted)


@given(IDS, IDS, st.integers(1, 7), st.integers(1, 7), st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_cursor_finds_the_row_of_each_id(
    theirs: list[int], ids: list[int], rows: int, step: int, pruned: bool
) -> None:
    view = (
        basic(theirs, rows)
        if theirs
        else cb.View(pa.table({"v": pa.array([], pa.int64()), "id": pa.array([], pa.int64())}))
    )
    cursor = MergeCursor(view, "id", ["v", "id"], ids[0] if pruned and ids else None, rows)
    missed = 0
    for begin in range(0, len(ids), step):
        asked = np.array(ids[begin : begin + step], np.int64)
        slices, index, base = cursor.align(asked)
        whole = in_one_batch(slices)
        values = [] if whole is None else whole.column(0).to_pylist()
        places = [base + k if index is None else int(index[base + k]) for k in range(len(asked))]
        found = [None if whole is None or place < 0 else values[place] for place in places]
        assert found == [10 * k if k in theirs else None for k in asked.tolist()]
        assert cursor.found == sum(k in theirs for k in asked.tolist())
        missed += len(asked) - cursor.found
        assert cursor.missed == missed
    assert cursor.align(np.zeros(0, np.int64)) == ([], None, 0)
    assert (cursor.found, cursor.missed) == (0, missed)
    cursor.finish()
    assert cursor.ended or not missed
    cursor.close()


def test_rows_that_no_id_can_ask_for_any_more_are_let_go() -> None:
    cursor = MergeCursor(basic(list(range(12)), 3), "id", ["v", "id"], None, 3)
    cursor.align(np.array([0, 1]))
    assert [own.tolist() for _, own in cursor.held] == [[0, 1, 2]]
    cursor.align(np.array([2, 3]))
    assert [own.tolist() for _, own in cursor.held] == [[0, 1, 2], [3, 4, 5]]
    cursor.align(np.array([5, 8]))
    assert [own.tolist() for _, own in cursor.held] == [[3, 4, 5], [6, 7, 8]]
    cursor.align(np.array([10]))
    assert [own.tolist() for _, own in cursor.held] == [[9, 10, 11]]
    cursor.finish()
    assert [own.tolist() for _, own in cursor.held] == [[9, 10, 11]]  # every id had a row, so nothing more is read


ASCENDING = "expected ids in ascending order without repeats: sort the data, or use merge(…, ordered=False)"


def test_ids_that_do_not_ascend_are_named() -> None:
    def told(ids: list[int | None]) -> str:
        rows = pa.record_batch({"id": pa.array(ids, pa.int64())})
        with pytest.raises(DataError) as met:
            ids_of(rows, 0, "id of view 'v'", Origin("file", 10))
        return str(met.value)

    good = ids_of(pa.record_batch({"id": pa.array([3, 5], pa.int32())}), 0, "id", Origin("file", 0))
    assert (good.tolist(), good.dtype) == ([3, 5], np.int64)
    assert told([1, 2, None]) == (
        "id of view 'v' is null at file row 12; give every row an id, or drop such rows with .filter before the merge"
    )
    assert told([1, 5, 4]) == f"id of view 'v' 4 comes after 5 at file row 12; {ASCENDING}"
    assert told([1, 1]) == f"id of view 'v' 1 comes after 1 at file row 11; {ASCENDING}"


@pytest.mark.parametrize("next_id", [2, 1])
def test_ids_that_do_not_ascend_from_one_morsel_to_the_next_are_named(next_id: int) -> None:
    cursor = MergeCursor(basic([1, 2, next_id], 2), "id", ["v", "id"], None, 2)
    with pytest.raises(DataError) as met:
        cursor.align(np.array([1, 9]))
    assert str(met.value).startswith(f"id {next_id} of view 'basic' comes after 2 at ")
    assert str(met.value).endswith(f"; {ASCENDING}")
    late = MergeCursor(basic([1, 2, next_id], 2), "id", ["v", "id"], None, 2)
    late.align(np.array([0, 1]))
    with pytest.raises(DataError, match=f"^id {next_id} of view 'basic' comes after 2 at "):
        late.finish()  # an id had no row: it may be among those that are out of order
    whole = MergeCursor(basic([1, 2, next_id], 2), "id", ["v", "id"], None, 2)
    whole.align(np.array([1, 2]))
    whole.finish()


@pytest.mark.parametrize("next_id", [2, 1])
def test_ids_of_a_log_that_do_not_ascend_from_one_morsel_to_the_next_are_named(tmp_path: Path, next_id: int) -> None:
    pq.write_table(pa.table({"id": [1, 2, next_id, 9], "n": [1, 2, 3, 4]}), tmp_path / "log.parquet")
    more = cb.View(pa.table({"id": [1, 2, 9], "more": [1, 2, 3]}), key="id", name="more").fill(more=0)
    log = cb.View(tmp_path / "log.parquet", key="id", name="log").merge(more, ordered=True)
    job = cb.compile(log, cb.FeatureSet(dense={"n": "n", "more": "more"}), device="cpu", threads=1)
    job.extractor().morsel_rows = 2
    with pytest.raises(DataError) as met:
        list(job.batches(1))
    assert str(met.value) == (
        f"id {next_id} of view 'log' comes after 2 at {tmp_path / 'log.parquet'} row 2; {ASCENDING}"
    )


def test_statistics_tell_whether_an_id_of_the_view_lies_before_those_of_the_log(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [5, 6], "v": [1, 2]}), tmp_path / "v.parquet")
    view = cb.View(tmp_path / "v.parquet", key="id")
    assert [_begins_at(view, "id", first) for first in (4, 5, 6)] == [True, True, False]
    assert not _begins_at(cb.View(pa.table({"id": [5]})), "id", 4)


@pytest.mark.parametrize("stop", [None, 0, 3, 4, 5, 8, 20])
@pytest.mark.parametrize("start", [0, 3, 4, 7])
def test_a_merge_begins_and_ends_at_any_row_of_the_log(tmp_path: Path, start: int, stop: int | None) -> None:
    pq.write_table(
        pa.table({"id": list(range(0, 16, 2)), "n": list(range(8))}), tmp_path / "log.parquet", row_group_size=4
    )
    pq.write_table(pa.table({"id": list(range(16)), "m": [k * k for k in range(16)]}), tmp_path / "more.parquet")
    more = cb.View(tmp_path / "more.parquet", key="id", name="more").fill(m=-1)
    log = cb.View(tmp_path / "log.parquet", key="id", name="log").merge(more)
    job = cb.compile(log, cb.FeatureSet(dense={"n": col("n"), "m": col("m")}), device="cpu", threads=1)
    job.extractor().morsel_rows = 3
    found = [row for batch, _ in job.extractor().batches(2, start, None, stop) for row in batch.dense.tolist()]
    assert found == [[k, 4 * k * k] for k in range(8)[start:stop]]
    read = max(0, min(8, 8 if stop is None else stop) - start)
    assert [(join.keys, join.missed) for join in job.joins] == ([(read, 0)] if read else [])


class Nowhere:
    """Another memory, which takes no column and notes the row groups that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def decode(self, raw: Any, footer: Any, groups: Any, leaves: Any) -> None:
        self.asked += groups


def aligned(extractor: Any, start: int, stop: int | None, elsewhere: Any) -> list[tuple[int, int | None]]:
    """The ids of a log with what a merged view has for them."""
    found: list[tuple[int, int | None]] = []
    for morsel, [(slices, index, base)] in extractor.stream(start, stop, elsewhere):
        whole = in_one_batch(slices)
        values = [] if whole is None else whole.column(0).to_pylist()
        ids = morsel.rows.column(extractor.id_at).to_pylist()
        places = [base + k if index is None else int(index[base + k]) for k in range(len(ids))]
        found += [
            (id, None if whole is None or place < 0 else values[place]) for id, place in zip(ids, places, strict=True)
        ]
    return found


@pytest.mark.parametrize("stop", [None, 7])
@pytest.mark.parametrize("start", [0, 4, 5, 11, 12])
@pytest.mark.parametrize("least", ["true", "too large", "unknown"])
def test_a_view_that_is_decoded_elsewhere_is_read_from_the_least_id_of_the_log_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, stop: int | None, least: str
) -> None:
    ids = list(range(0, 24, 2))
    pq.write_table(pa.table({"id": ids, "n": ids}), tmp_path / "log.parquet", row_group_size=4)
    pq.write_table(
        pa.table({"m": [k * k for k in range(24)], "id": range(24)}), tmp_path / "more.parquet", row_group_size=6
    )
    more = cb.View(tmp_path / "more.parquet", key="id", name="more").fill(m=-1)
    log = cb.View(tmp_path / "log.parquet", key="id", name="log").merge(more)
    job = cb.compile(log, cb.FeatureSet(dense={"n": "n", "m": "m"}), device="cpu", threads=1)
    extractor = job.extractor()
    extractor.morsel_rows = 3
    if least != "true":
        wrong = {"too large": 23, "unknown": None}[least]
        source = type(extractor.log.view.source)
        known = source.least
        monkeypatch.setattr(
            source, "least", lambda self, *asked: wrong if self.name.endswith("log.parquet") else known(self, *asked)
        )
    expected = [(id, id * id) for id in ids[start:stop]]
    assert aligned(extractor, start, stop, []) == expected
    assert aligned(extractor, start, stop, [Nowhere(), None]) == expected
    there = Nowhere()
    assert aligned(extractor, start, stop, [None, there]) == expected
    if least == "true" and start < 12:
        first = ids[start - start % 4]  # of the row group of the log in which it begins
        assert extractor._least_id(start) == first
        assert min(there.asked) == first // 6  # the first row group of the view that may hold it; threads ask
