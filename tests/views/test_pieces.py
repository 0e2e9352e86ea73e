"""Which row groups are read together, and how files of several schemas and empty files are read as one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ctrbox.errors import DataError, SourceError
from ctrbox.views.files_with_row_index import Footer, IndexedFiles
from ctrbox.views.parquet import Parquet, _check_counts
from ctrbox.views.source import open_source


def pieces(
    files: list[tuple[int, ...]], start: int, rows: int, kept: list[set[int] | None] | None = None
) -> list[tuple[int, list[int], int, int, int]]:
    """Return file, groups, row in the file, row in the source and number of rows of each piece."""
    source: Any = IndexedFiles.__new__(IndexedFiles)
    source._survivors = lambda footers, prune: kept
    footers = [Footer(pa.schema([]), counts) for counts in files]
    prune: Any = None if kept is None else "some condition"
    return [(p.file, list(p.groups), p.row, p.start, p.rows) for p in source._pieces(footers, start, rows, prune)]


@pytest.mark.parametrize(
    ("files", "start", "rows", "kept", "found"),
    [
        ([(3, 3, 3)], 0, 6, None, [(0, [0, 1], 0, 0, 6), (0, [2], 6, 6, 3)]),
        ([(3, 3, 3)], 0, 5, None, [(0, [0], 0, 0, 3), (0, [1], 3, 3, 3), (0, [2], 6, 6, 3)]),
        ([(3, 3, 3)], 2, 6, None, [(0, [0, 1], 0, 0, 6), (0, [2], 6, 6, 3)]),
        ([(3, 3, 3)], 3, 6, None, [(0, [1, 2], 3, 3, 6)]),
        ([(3, 3, 3)], 8, 6, None, [(0, [2], 6, 6, 3)]),
        ([(3, 3, 3)], 9, 6, None, []),
        ([(3,), (2, 2)], 0, 10, None, [(0, [0], 0, 0, 3), (1, [0, 1], 0, 3, 4)]),
        ([(3,), (2, 2)], 4, 10, None, [(1, [0, 1], 0, 3, 4)]),
        ([(3,), (2, 2)], 5, 10, None, [(1, [1], 2, 5, 2)]),
        ([(3, 0, 3)], 0, 10, None, [(0, [0], 0, 0, 3), (0, [2], 3, 3, 3)]),
        ([(3, 3, 3)], 0, 10, [{0, 2}], [(0, [0], 0, 0, 3), (0, [2], 6, 6, 3)]),
        ([(3, 3), (3,)], 0, 10, [None, set()], [(0, [0, 1], 0, 0, 6)]),
        ([(3, 3), (3,)], 0, 10, [set(), None], [(1, [0], 0, 6, 3)]),
        ([(20,)], 0, 10, None, [(0, [0], 0, 0, 20)]),
        ([()], 0, 10, None, []),
    ],
)
def test_small_neighbors_of_a_file_are_decoded_together(
    files: Any, start: int, rows: int, kept: Any, found: list[Any]
) -> None:
    assert pieces(files, start, rows, kept) == found


def test_threads_that_ask_at_the_same_time_read_every_footer_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / f"{name}.parquet")
    read, asked = [], threading.Barrier(2)
    footer = Parquet.footer

    def slowly(self: Parquet, file: Any) -> Footer:
        read.append(file.shown)
        time.sleep(0.02)  # time for the other thread to ask, too
        return footer(self, file)

    monkeypatch.setattr(Parquet, "footer", slowly)
    source = open_source(str(tmp_path))
    assert isinstance(source, IndexedFiles)
    first = len(read)

    def ask(_: int) -> tuple[int | None, list[int]]:
        asked.wait(30)
        return source.rows, source.groups

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == [(6, [2, 2, 2])] * 2
    assert (first, len(read)) == (1, 3)
    assert len(set(read)) == 3


class Shown:
    shown = "f"


@pytest.mark.parametrize(
    ("rows", "told", "says"),
    [
        ((1, 2), 3, ""),
        ((0, 0), 0, ""),
        ((1, -2), -1, "f has a damaged footer: row group 1 would hold -2 rows, expected 0 or more"),
        ((1, 2), 4, "its row groups hold 3 rows, but the file is said to hold 4"),
    ],
)
def test_row_groups_add_up_to_the_file(rows: tuple[int, ...], told: int, says: str) -> None:
    if not says:
        _check_counts(Shown(), rows, told)  # type: ignore[arg-type]
    else:
        with pytest.raises(SourceError, match=says):
            _check_counts(Shown(), rows, told)  # type: ignore[arg-type]


def values(source: Any, name: str = "x", **options: Any) -> list[Any]:
    return [value for morsel in source.scan([name], **options) for value in morsel.rows[name].to_pylist()]


def test_later_files_are_read_as_the_first_or_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1], pa.int32()), "y": ["a"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"y": ["b"], "x": pa.array([2], pa.int64())}), tmp_path / "1.parquet")
    source = open_source(tmp_path)
    assert values(source) == [1, 2]
    assert (source.rows, source.nullable("x"), source.ordered("x")) == (2, False, True)
    assert source.prunable("x")  # type: ignore[attr-defined]
    pq.write_table(pa.table({"x": ["text"], "y": ["b"]}), tmp_path / "1.parquet")
    source = open_source(tmp_path)
    assert values(source, "y") == ["a", "b"]
    for ask in (lambda: values(source), lambda: source.nullable("x"), lambda: source.ordered("x")):
        with pytest.raises(
            SourceError, match=r"column 'x' of .*1\.parquet is string, expected int32 as in .*0\.parquet"
        ):
            ask()
    pq.write_table(pa.table({"y": ["b"]}), tmp_path / "1.parquet")
    with pytest.raises(
        SourceError, match=r"1\.parquet has no column 'x', expected int32 as in .*0\.parquet; write the file again"
    ):
        values(open_source(tmp_path))
    pq.write_table(pa.table({"x": [2**31], "y": ["b"]}), tmp_path / "1.parquet")
    with pytest.raises(
        DataError, match=r"1\.parquet row 0: column 'x' holds 2147483648 \(int64\), which does not fit int32"
    ):
        values(open_source(tmp_path))


def test_a_footer_knows_its_columns_by_their_paths(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "s": [{"x": 1, "y": 2}], "l": [[1]], "one": [{"z": 1}]})
    pq.write_table(table, tmp_path / "a.parquet")
    (file,) = open_source(tmp_path / "a.parquet")._files  # type: ignore[attr-defined]
    footer = Parquet().footer(file)
    assert footer.rows == (1,)
    assert footer.places == {
        "a": 0, "s.x": 1, "s.y": 2, "l": 3, "l.list": 3, "l.list.element": 3, "one": 4, "one.z": 4,
    }  # fmt: skip


def test_text_files_without_rows_take_no_part(tmp_path: Path) -> None:
    for name, content in (
        ("0.csv", ""),
        ("1.csv", "x,y\n"),
        ("2.csv", "x,y\n5,a\n"),
        ("3.csv", ""),
        ("4.csv", "y,x\nb,6\n"),
    ):
        (tmp_path / name).write_text(content)
    source = open_source(tmp_path)
    assert (source.schema.field("x").type, values(source)) == (pa.int64(), [5, 6])
    assert [(m.start, m.origin.path[-5:], m.origin.row) for m in source.scan(["x"])] == [
        (0, "2.csv", 0),
        (1, "4.csv", 0),
    ]
    assert values(source, start=1) == [6]
    assert values(source, start=2) == []
    named = open_source([tmp_path / "0.csv", tmp_path / "1.csv"])
    assert (named.schema.field("x").type, values(named)) == (pa.utf8(), [])
    with pytest.raises(SourceError, match=r"0\.csv is empty, expected rows to take the columns and types from"):
        open_source([tmp_path / "0.csv", tmp_path / "3.csv"])
    late = open_source(tmp_path)
    (tmp_path / "3.csv").write_text("x,y\n7,c\n")
    with pytest.raises(SourceError, match=r"3\.csv changed after it was opened"):
        values(late)


def test_a_local_file_is_asked_what_pruning_leaves_when_its_turn_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(6):
        pq.write_table(pa.table({"id": range(10 * k, 10 * k + 10)}), tmp_path / f"part-{k}.parquet")
    asked: list[str] = []
    survivors = Parquet.survivors

    def noted(self: Parquet, file: Any, *rest: Any) -> Any:
        asked.append(file.shown)
        return survivors(self, file, *rest)

    monkeypatch.setattr(Parquet, "survivors", noted)
    scan = open_source(str(tmp_path)).scan(["id"], prune=pc.field("id") >= 20, threads=1)
    assert next(scan).rows["id"].to_pylist() == list(range(20, 30))
    assert len(asked) < 6
    assert [v for morsel in scan for v in morsel.rows["id"].to_pylist()] == list(range(30, 60))
    assert len(asked) == 6
