"""The log is read while joined views are loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu.early_scan import EarlyScan
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.views.source import Morsel

LOG = pa.table({"id": range(100), "user": [k % 7 for k in range(100)]})
USERS = pa.table({"user": range(7), "age": [10 * k for k in range(7)]})


class Told:
    """Rows that are asked for anew at each scan, and tell when their reading begins."""

    streaming = True

    def __init__(self, table: pa.Table, begin: Callable[[], None]) -> None:
        self.table = table
        self.begin = begin

    def batches(self) -> Iterator[pa.RecordBatch]:
        self.begin()
        yield from self.table.to_batches()

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested)


def plan_of(log: Any, users: Any) -> Any:
    joined = cb.View(log, key="id").join(cb.View(users, key="user").fill(age=0), on="user")
    return cb.compile(joined, cb.FeatureSet(dense={"age": col("age").cast("float")}), threads=2)


def test_the_log_is_read_before_joined_views_are_loaded() -> None:
    read = threading.Event()

    def loading() -> None:
        assert read.wait(60), "nobody began to read the log"

    plan = plan_of(Told(LOG, read.set), Told(USERS, loading))
    ages = [age for batch in plan.batches(30) for age in batch.dense[:, 0].tolist()]
    assert ages == [10.0 * (k % 7) for k in range(100)]


def test_a_joined_view_that_fails_ends_the_reading_of_the_log() -> None:
    before = set(threading.enumerate())
    twice = pa.table({"user": [1, 2, 1], "age": [1, 2, 3]})
    plan = plan_of(LOG, twice)
    with pytest.raises(cb.errors.DataError, match="user=1 more than once"):
        next(plan.batches(10))
    assert not set(threading.enumerate()) - before


def test_an_error_of_the_log_is_raised_where_its_rows_are_taken() -> None:
    def broken() -> None:
        raise OSError("the disk is gone")

    plan = plan_of(Told(LOG, broken), USERS)
    for _ in range(2):  # the second time the views are loaded and the log is read as usual
        with pytest.raises(cb.errors.CtrboxError, match="the disk is gone"):
            next(plan.batches(10))


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_scan_that_is_closed_early_closes_what_it_reads(taken: int) -> None:
    closed = threading.Event()

    def morsels() -> Iterator[Morsel]:
        try:
            yield from [f"morsel {k}" for k in range(5)]  # type: ignore[misc]
        finally:
            closed.set()

    early = EarlyScan(morsels(), 0)
    stream = early.morsels()
    assert [next(stream) for _ in range(taken)] == [f"morsel {k}" for k in range(taken)]
    stream.close()
    early.close()
    assert closed.is_set()


def test_batches_from_another_row_than_the_early_scan_are_the_same() -> None:
    plan = plan_of(LOG, USERS)
    extractor = plan.extractor(begin=40)
    rows = [age for batch, _ in extractor.batches(30, 10) for age in batch.dense[:, 0].tolist()]
    assert rows == [10.0 * (k % 7) for k in range(10, 100)]
    assert extractor.early is None


def test_the_log_is_read_early_only_where_a_scan_follows_and_views_are_still_to_be_loaded() -> None:
    asked = plan_of(LOG, USERS).extractor(begin=0)
    assert asked.early is not None
    asked._end_early_scan()
    plan = plan_of(LOG, USERS)
    assert plan.extractor().early is None
    again = Extractor(plan.graph, plan.fitted, schema=plan.schema, dimensions=asked.dimensions, begin=0)
    assert again.early is None
