"""The memory of joined views: what it is counted as, the last row that fits, and what is said of a view that does not."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import _native, col
from ctrbox.engines.cpu import joined_views
from ctrbox.engines.cpu.morsel_stages import Prepared
from ctrbox.engines.cpu.spilled_views import SpilledViewFiles
from ctrbox.engines.cpu.view_runs import Run, memory_of
from ctrbox.errors import BudgetError

USERS = pa.table({"user": [1, 2, 3, 4, 5], "age": [1, 2, 3, 4, 5], "name": ["x" * 100] * 5})


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_views, "LOAD_ROWS", 2)


def plan(budget: int, users: Any = USERS, *, filtered: bool = False, merged: bool = False, **how: Any) -> cb.Plan:
    view = cb.View(users, key="user", name="users").fill(age=0, name="")
    view = view.filter(col("age") > 0) if filtered else view
    log = cb.View(pa.table({"id": [1, 2], "user": [1, 2]}), key="user" if merged else "id", name="log")
    both = (
        log.merge(view, ordered=False, budget=budget, **how)
        if merged
        else log.join(view, on="user", budget=budget, **how)
    )
    features = cb.FeatureSet(dense={"age": "age", "n": col("name").length()}, sparse={"name": col("name").key()})
    return cb.compile(both, features, device="cpu", threads=1)


def refused(job: cb.Plan) -> str:
    with pytest.raises(BudgetError) as met:
        list(job.batches(2))
    return str(met.value)


def test_the_memory_of_a_view_is_its_records_and_its_keys_and_its_index() -> None:
    found = [(rows, memory_of(1000, rows, False), memory_of(1000, rows, True)) for rows in (0, 1, 7, 8, 9, 16, 17)]
    assert found == [
        (rows, 1000 + 16 * rows + 16 * slots, 1000 + 48 * rows + 16 * slots)
        for rows, slots in ((0, 16), (1, 16), (7, 16), (8, 16), (9, 32), (16, 32), (17, 64))
    ]


RAISE = "raise join(…, budget=…), or store the view on a local disk: join(…, spill=True), or spill='/a/folder'"
SORT = (
    "sort both views by id, so that they are merged as streams, raise merge(…, budget=…), or store the view on a local disk: "
    "merge(…, spill=True)"
)


def test_a_view_of_exactly_its_budget_is_loaded_and_of_one_byte_more_is_not(tmp_path: Path) -> None:
    (made,) = _loaded(plan(476))
    assert (made.needed_bytes, made.memory_bytes, made.budget_bytes, made.rows) == (476, 476, 476, 5)
    assert made.lies == {"needed_bytes": 476, "memory_bytes": 476, "folder": None, "file_bytes": 0}
    before = "joined view 'users': 4"
    after = f"rows take 432 B of memory (all rows about 540 B) and there are more; its budget is 475 B; {RAISE}"
    assert refused(plan(475)) == f"{before} of its 5 {after}"
    assert refused(plan(475, filtered=True)) == f"{before} {after}"
    assert refused(plan(475, merged=True)) == (
        "merged view 'users', which is not merged as a stream: 4 of its 5 rows take 432 B of memory (all rows about 540 B) "
        f"and there are more; its budget is 475 B; {SORT}"
    )
    (disk,) = _loaded(plan(475, spill=str(tmp_path)))
    assert (disk.folder, disk.on_disk, disk.rows) == (str(tmp_path), True, 5)
    assert disk.lies["file_bytes"] > 0


def test_a_view_that_cannot_fit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    least = "needs at least 456 B of memory for its 5 rows, more than its budget of"
    assert refused(plan(455)) == f"joined view 'users' {least} 455 B; {RAISE}"
    assert refused(plan(1, merged=True)) == f"merged view 'users', which is not merged as a stream, {least} 1 B; {SORT}"
    assert refused(plan(456)).startswith("joined view 'users': 4 of its 5 rows take")
    # How many rows pass the filter is not known before they are read, and a file of text does not say how many it has.
    few = "joined view 'users': 2 rows take 344 B of memory"
    assert refused(plan(1, filtered=True)) == f"{few} (all rows about 860 B); its budget is 1 B; {RAISE}"
    (tmp_path / "users.csv").write_text("user,age,name\n1,1,x\n2,2,x\n")
    assert refused(plan(1, tmp_path / "users.csv")) == f"{few}; its budget is 1 B; {RAISE}"


@pytest.mark.parametrize(("least", "rows", "takes"), [(0, 5, 488), (9, 0, 256)])
def test_what_all_rows_would_take_is_told_only_if_more_rows_may_come(
    monkeypatch: pytest.MonkeyPatch, least: int, rows: int, takes: int
) -> None:
    monkeypatch.setattr(joined_views, "LOAD_ROWS", 100)
    users = cb.View(USERS, key="user", name="users").fill(age=0, name="").filter(col("age") > least)
    log = cb.View(pa.table({"id": [1, 2], "user": [1, 2]}), key="id", name="log").join(users, on="user", budget=255)
    features = cb.FeatureSet(dense={"age": "age", "n": col("name").length()}, sparse={"name": col("name").key()})
    job = cb.compile(log, features, device="cpu", threads=1)
    assert refused(job) == f"joined view 'users': {rows} rows take {takes} B of memory; its budget is 255 B; {RAISE}"


def _loaded(job: cb.Plan) -> list[Any]:
    list(job.batches(2))
    return list((job._dimensions or {}).values())


def test_a_run_knows_where_its_rows_were_in_the_source() -> None:
    def part(rows: int, start: int, selected: list[int] | None = None, first: int = 0) -> Prepared:
        return Prepared(rows, [], None if selected is None else np.array(selected, np.int32), None, start, first)

    empty = Run(None)
    assert (empty.rows_read, empty.source_rows.tolist(), empty.every_hash.tolist(), empty.every_time.tolist()) == (
        0,
        [],
        [],
        [],
    )
    run = Run(None, [part(2, 0), part(2, 10, [1, 4]), part(0, 20, [])])
    assert run.source_rows.tolist() == [0, 1, 11, 14]
    assert run.rows_read == 15
    assert Run(None, [part(3, 10, None, 2)]).rows_read == 15
    run.hashes, run.times = [np.array([3], np.uint64), np.array([1], np.uint64)], [np.array([-1]), np.array([7])]
    assert (run.every_hash.tolist(), run.every_time.tolist()) == ([3, 1], [-1, 7])


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_rows_of_a_view_with_the_same_key_or_without_one_are_named(tmp_path: Path, kind: str) -> None:
    def told(view: pa.Table, **how: Any) -> str:
        pq.write_table(view, tmp_path / "v.parquet")
        data = view if kind == "memory" else tmp_path / "v.parquet"
        log = cb.View(pa.table({"a": [1], "b": ["x"], "at": pa.array([9], pa.timestamp("us"))}), name="log")
        joined = log.join(cb.View(data, key=("a", "b"), name="v").fill(n=0), on=("a", "b"), **how)
        with pytest.raises(cb.errors.DataError) as met:
            list(cb.compile(joined, cb.FeatureSet(dense={"n": "n"}), device="cpu", threads=1).batches(1))
        return str(met.value).replace(str(tmp_path / "v.parquet"), "memory")

    times = pa.array([1, 2, 1], pa.timestamp("us"))
    view = pa.table({"a": [1, 2, 1], "b": ["x", "y", "x"], "n": [1, 2, 3]})
    cure = "(memory row 0 and memory row 2); make the keys unique, or keep only the last row of each key: View(…, keep='last')"
    for place in ({}, {"budget": 1, "spill": str(tmp_path)}):
        assert told(view, **place) == f"view 'v' has key a=1, b='x' more than once {cure}"
    timed = view.append_column("since", times)
    assert told(timed, as_of=("at", "since")) == (
        f"view 'v' has key a=1, b='x' more than once with the same time in 'since' {cure}"
    )
    late = view.append_column("since", pa.array([1, None, 2], pa.timestamp("us")))
    assert told(late, as_of=("at", "since")) == (
        "time 'since' of view 'v' is null at memory row 1; filter those rows: .filter(~col('since').is_null())"
    )
    for how in ({}, {"as_of": ("at", "since")}):
        nobody = timed.set_column(0, "a", pa.array([1, None, 2]))
        assert told(nobody, **how) == (
            "key 'a' of view 'v' is null at memory row 1; filter those rows: .filter(~col('a').is_null())"
        )


@pytest.mark.parametrize("merged", [False, True])
def test_what_goes_wrong_on_the_disk_of_a_view_is_told_with_its_folder(tmp_path: Path, merged: bool) -> None:
    job = plan(10**6, merged=merged, spill=str(tmp_path))
    frame = next(frame for frame in job.graph.frames if frame.name == "users")
    files = SpilledViewFiles(frame, _native.Records([], []), 1)
    files.rows = 1234
    view = f"{'merged' if merged else 'joined'} view 'users'"
    assert (files.called, files.folder) == (view, str(tmp_path))

    def told(error: Exception) -> str:
        with pytest.raises(cb.errors.CtrboxError) as met, files.told():
            raise error
        return f"{type(met.value).__name__}: {met.value}"

    assert told(OSError(errno.ENOSPC, "x")) == (
        f"WriteError: the disk of {tmp_path} is full: {view} is larger than its memory budget, and its first 1,234 rows take "
        "0 B there; loading the view needs up to twice as much space as its rows; free some space, or name a folder on "
        "another disk: spill='/a/folder'"
    )
    assert told(OSError(errno.EIO, "x")) == f"WriteError: cannot write {view} to {tmp_path}: Input/output error"
    assert told(_native.DamagedFile("page 3")) == f"SourceError: {view}: its file in {tmp_path} is damaged: page 3"
    assert told(_native.IndexTooLarge("5000000")) == (
        f"BudgetError: {view} is too large for its budget of 976.6 KB even on disk: for the index of its first 1,234 rows alone "
        "it needs budget=5,000,000 or more"
    )
    files.close()
    assert all(file.closed for file in files.files)
    files.close()
