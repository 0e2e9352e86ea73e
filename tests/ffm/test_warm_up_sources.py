"""Fetching ahead: in order, several at once, within a budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.errors import PlanError, SourceError
from ctrbox.ffm import warm_up_sources
from ctrbox.ffm.warm_up_sources import Ahead, ahead

# A thread that ends by an error would leave the others alone.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def numbers(n: int, pieces: int) -> Iterator[tuple[int, int, int]]:
    for k in range(pieces):
        yield n, k, 10_000


@given(st.lists(st.integers(0, 6), max_size=12), st.integers(1, 6), st.integers(1, 100_000))
@settings(max_examples=80, deadline=None)
def test_items_come_in_order_within_the_budget(sizes: list[int], in_flight: int, budget: int) -> None:
    sources = [partial(numbers, n, pieces) for n, pieces in enumerate(sizes)]
    line = Ahead(sources, size=lambda item: item[2], in_flight=in_flight, bytes=budget)
    assert [item[:2] for item in line] == [(n, k) for n, pieces in enumerate(sizes) for k in range(pieces)]
    assert line.most <= budget + 10_000  # a piece more of the source whose turn it is


def test_several_sources_are_under_way_at_once() -> None:
    together = threading.Barrier(3, timeout=30)

    def slow(n: int) -> Iterator[int]:
        together.wait()  # none goes on before three are here
        yield n

    assert list(Ahead([partial(slow, n) for n in range(6)], size=lambda item: 1, in_flight=3)) == list(range(6))


def test_reading_stops_where_the_budget_is_full() -> None:
    begun: list[int] = []

    def source(n: int) -> Iterator[int]:
        begun.append(n)
        yield n

    line = Ahead([partial(source, n) for n in range(50)], size=lambda item: 10_000, in_flight=2, bytes=30_000)
    walk = iter(line)
    assert next(walk) == 0
    until = time.monotonic() + 30
    while len(begun) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.1)  # whoever would read on has had the time to
    assert len(begun) <= 1 + 3 + 2
    walk.close()  # type: ignore[attr-defined]
    assert not any(thread.is_alive() for thread in line._crew)


def test_pieces_wait_up_to_the_last_byte_of_the_budget() -> None:
    line = Ahead([partial(numbers, 0, 5)], size=lambda item: item[2], in_flight=1, bytes=30_000)
    until = time.monotonic() + 10
    while line.most < 30_000 and time.monotonic() < until:
        time.sleep(0.005)
    assert line.most == 30_000
    assert [item[1] for item in line] == list(range(5))
    assert line.most == 30_000


def test_only_the_time_until_an_item_is_there_counts_as_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now, wanted, asks = [100.0], threading.Event(), [False]

    def clock() -> float:
        found = now[0]
        if asks[0]:
            wanted.set()
        return found

    def source() -> Iterator[int]:
        assert wanted.wait(30)
        now[0] = 103.0
        yield 7

    monkeypatch.setattr(warm_up_sources, "time", SimpleNamespace(perf_counter=clock))
    line = Ahead([source], size=lambda item: 1)
    asks[0], now[0] = True, 101.0
    walk = iter(line)
    assert next(walk) == 7
    now[0] = 108.0
    assert (line.waited_s, line.share_waited) == (2.0, 0.25)
    assert list(walk) == []


def test_an_error_comes_behind_what_was_before_it() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise SourceError("it broke")

    walk = iter(Ahead([lambda: iter([0]), broken, lambda: iter([2])], size=lambda item: 1))
    assert [next(walk), next(walk)] == [0, 1]
    with pytest.raises(SourceError, match="it broke"):
        next(walk)


@pytest.mark.parametrize("given", [{"in_flight": 0}, {"in_flight": 2.5}, {"bytes": "much"}, {"bytes": 0}])
def test_wrong_settings_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        Ahead([], size=lambda item: 1, **given)  # type: ignore[arg-type]


def test_files_of_folders_and_globs_go_on_at_a_row(tmp_path: Path) -> None:
    for day in ("a", "b"):
        (tmp_path / day).mkdir()
        for part in range(3):
            rows = list(range(10 * part, 10 * part + 10))
            pq.write_table(
                pa.table({"day": [day] * 10, "row": rows, "other": rows}), tmp_path / day / f"{part}.parquet"
            )
    paths = [str(tmp_path / "a"), str(tmp_path / "b" / "*.parquet")]
    found = [(m.origin.path, m.rows) for m in ahead(paths, columns=["day", "row"], in_flight=3)]
    rows = [(r["day"], r["row"]) for _, part in found for r in part.to_pylist()]
    assert rows == [(day, n) for day in ("a", "b") for n in range(30)]
    assert found[0][1].schema.names == ["day", "row"]

    again = ahead(paths, columns=["day", "row"], start=(str(tmp_path / "a" / "2.parquet"), 4))
    assert [(r["day"], r["row"]) for m in again for r in m.rows.to_pylist()] == rows[24:]
    with pytest.raises(PlanError, match="is not among the 6 files"):
        ahead(paths, start=("gone.parquet", 4))
    with pytest.raises(
        PlanError, match=r"^.*/b/1\.parquet is named twice among the files to read; name each file once"
    ):
        ahead([*paths, str(tmp_path / "b" / "1.parquet")])


def test_any_filesystem_of_arrow_is_read() -> None:
    fs = pafs._MockFileSystem()
    fs.create_dir("past")
    with fs.open_output_stream("past/one.parquet") as out:
        pq.write_table(pa.table({"row": [1, 2, 3]}), out)
    assert [m.rows.num_rows for m in ahead("past", filesystem=fs)] == [3]
