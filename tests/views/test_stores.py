"""Stores, paths and reader threads: which files a path names, and how their bytes come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import _clean, _hidden, find_files, first_line, natural, open_store
from ctrbox.files.table_formats import refuse_table_formats
from ctrbox.views import files_without_row_index
from ctrbox.views.files_without_row_index import _Steady, open_stream
from ctrbox.views.formats import _by_name, codec_of
from ctrbox.views.readahead import _Line, readahead


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with some files, each with its path as its content."""
    for name in (
        "a1.csv",
        "a2.csv",
        "a10.csv",
        "a#1.csv",
        "_a.csv",
        ".a.csv",
        "d/x.csv",
        "d/e/y.csv",
        "d/_t/z.csv",
        "day=1/f.csv",
        "_day=2/f.csv",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["a1.csv"], ["a1.csv"]),
        (["a#1.csv"], ["a#1.csv"]),
        (["_a.csv"], ["_a.csv"]),
        (["a*.csv"], ["a1.csv", "a2.csv", "a10.csv", "a#1.csv"]),
        (["a?.csv"], ["a1.csv", "a2.csv"]),
        (["_*.csv"], ["_a.csv"]),
        ([".*.csv"], [".a.csv"]),
        (["d"], ["d/e/y.csv", "d/x.csv"]),
        (["d/"], ["d/e/y.csv", "d/x.csv"]),
        (["d/*"], ["d/e/y.csv", "d/x.csv"]),
        (["d/*.csv"], ["d/x.csv"]),
        (["d/**"], ["d/e/y.csv", "d/x.csv"]),
        (["d/**/*.csv"], ["d/e/y.csv", "d/x.csv"]),
        (["d/**/y.csv"], ["d/e/y.csv"]),
        (["*/x.csv"], ["d/x.csv"]),
        (["[cd]/[x]*"], ["d/x.csv"]),
        (["*=1/*"], ["day=1/f.csv"]),
        (["a2.csv", "d/x.csv", "a1.csv"], ["a2.csv", "d/x.csv", "a1.csv"]),
    ],
)
def test_paths_name_these_files_in_this_order(places: Path, paths: list[str], found: list[str]) -> None:
    assert [file.path for file in find_files(paths, None, None)] == found
    whole = [f"{places}/{path}" for path in paths]
    assert [file.path for file in find_files(whole, None, None)] == [str(places / path) for path in found]
    uris = [f"file://{path}" for path in whole]
    assert [file.path for file in find_files(uris, None, None)] == [str(places / path) for path in found]


def test_paths_below_the_home_folder_are_found(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(places))
    found = find_files(["~/a1.csv", "~/d/x.csv", "a2.csv"], None, None)
    assert [file.path for file in found] == [f"{places}/a1.csv", f"{places}/d/x.csv", "a2.csv"]
    assert [(file.size, file.shown) for file in found[:2]] == [(6, f"{places}/a1.csv"), (7, f"{places}/d/x.csv")]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("empty", "folder empty holds no data files (names that start with '_' or '.' are hidden)"),
        ("d/_t/*.txt", "d/_t/*.txt matches no file"),
        ("b*.csv", "b*.csv matches no file"),
        ("d/xx.csv", "d/xx.csv does not exist; nearest: 'x.csv'"),
        ("dd/x.csv", "dd/x.csv does not exist"),
        ("fil:///a1.csv", "'fil:///a1.csv' is on fil://, expected a local path, s3:// or hdfs://; nearest: 'file'"),
    ],
)
def test_paths_that_name_no_file_are_refused(places: Path, path: str, says: str) -> None:
    with pytest.raises(SourceError) as caught:
        find_files([path], None, None)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("path", "filesystem", "prefix", "remote", "inside"),
    [
        ("a/b", None, "", False, "a/b"),
        ("file:///a/b", None, "", False, "/a/b"),
        ("a/b", pafs.LocalFileSystem(), "", False, "a/b"),
        ("mine://a/b", pafs.LocalFileSystem(), "mine://", False, "a/b"),
        ("mine://a/b", pafs.SubTreeFileSystem("/", pafs.LocalFileSystem()), "mine://", True, "a/b"),
        ("hdfs://nn:9000/a/b", pafs.LocalFileSystem(), "hdfs://nn:9000", False, "/a/b"),
        ("viewfs://all/a/b", pafs.LocalFileSystem(), "viewfs://all", False, "/a/b"),
    ],
)
def test_a_path_lies_on_a_store(path: str, filesystem: Any, prefix: str, remote: bool, inside: str) -> None:
    store, found = open_store(path, filesystem)
    assert (store.prefix, store.remote, found) == (prefix, remote, inside)
    assert store.show("a/b") == prefix + "a/b"


def test_options_of_a_store_are_for_remote_paths() -> None:
    with pytest.raises(
        SourceError, match="storage_options= can be used only with s3:// and hdfs:// paths, but 'a/b' is a local path"
    ):
        open_store("a/b", None, {"region": "r"})


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("a/b.csv", False),
        ("_SUCCESS", True),
        ("/_temporary/0/a.csv", True),
        ("a/.b.crc", True),
        ("_day=1/a.csv", False),
        (".day=1/a.csv", True),
        ("a_b/c.d", False),
        ("", False),
    ],
)
def test_files_of_writers_themselves_are_hidden(path: str, hidden: bool) -> None:
    assert _hidden(path) is hidden


def test_names_are_sorted_with_their_digits_as_numbers() -> None:
    names = ["part-10", "part-9", "part-9a", "9", "09", "a/10/x", "a/2/x", "part"]
    assert sorted(names, key=natural) == ["a/2/x", "a/10/x", "part", "part-9", "part-9a", "part-10", "09", "9"]
    assert natural("a10b") == [(0, 0, "a"), (1, 10, "10"), (0, 0, "b")]
    assert natural("007") == [(1, 7, "007")]


def test_a_path_is_written_without_a_leading_dot() -> None:
    assert [_clean(path) for path in ("./a", "../a", ".a", "a/./b")] == ["a", "../a", ".a", "a/./b"]


def test_an_error_is_told_in_its_first_line() -> None:
    assert first_line(OSError("it broke.\nmore")) == "it broke"
    assert first_line(ValueError("  ")) == "ValueError"


# ---- formats by name


class Named:
    def __init__(self, path: str) -> None:
        self.path = self.shown = path


@pytest.mark.parametrize(
    ("path", "name", "codec"),
    [
        ("x/a.csv", "csv", None),
        ("x/a.CSV.GZ", "csv", "gzip"),
        ("x/a.tsv.bz2", "tsv", "bz2"),
        ("x/a.b.jsonl.lz4", "json", "lz4"),
        ("x/a.arrows.zst", "arrows", "zstd"),
        ("x.csv/a.pq", "parquet", None),
        ("x/a.feather", "arrow", None),
    ],
)
def test_a_name_tells_the_format_and_the_compression(path: str, name: str, codec: str | None) -> None:
    assert _by_name(Named(path)) == name  # type: ignore[arg-type]
    assert codec_of(path) == codec


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("x.csv/a", "the name of x.csv/a does not show its format; expected one of parquet (.parquet"),
        ("a.gz", "the name of a.gz does not show its format; expected one of"),
        ("csv", "the name of csv does not show its format; expected one of"),
        (
            "a.parquet.gz",
            "a.parquet.gz is a compressed parquet file; expected an uncompressed one, because parquet files",
        ),
        ("a.ipc.zst", "a.ipc.zst is a compressed arrow file"),
    ],
)
def test_a_name_that_does_not_tell_is_refused(path: str, says: str) -> None:
    with pytest.raises(SourceError) as caught:
        _by_name(Named(path))  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_a_folder_of_plain_files_is_no_table_format(places: Path) -> None:
    refuse_table_formats(pafs.LocalFileSystem(), "", str(places), [str(places / "a1.csv")])


# ---- bytes from afar


@pytest.mark.parametrize("fetch", [1, 4, 5, 10, 11])
@pytest.mark.parametrize("sizes", [[3, 3, 3, 3, 3], [10, 1], [-1, 1], [4, -1], [4, 0, 6, 5], [100], [None]])
def test_remote_bytes_come_once_and_in_order_whatever_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetch: int, sizes: list[int | None]
) -> None:
    monkeypatch.setattr(files_without_row_index, "FETCH_BYTES", fetch)
    (tmp_path / "a.csv").write_bytes(b"0123456789")
    (file,) = find_files(["a.csv"], pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), None)
    assert file.store.remote
    steady, left = _Steady(file), b"0123456789"
    for size in sizes:
        wanted = len(left) if size is None or size < 0 else size
        given = b""
        while len(given) < min(wanted, len(left)):  # a read may give less, but never nothing before the end
            part = steady.read(wanted - len(given)) if size is not None and size >= 0 else steady.read(size)  # type: ignore[arg-type]
            assert part
            given += part
        assert given == left[:wanted]
        left = left[wanted:]
    if not left:
        assert steady.read(1) == steady.read(-1) == b""
    steady.close()
    assert open_stream(file).read(-1) == b"0123456789"


def test_a_remote_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"0123456789")
    (file,) = find_files(["a.csv"], pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), None)
    object.__setattr__(file, "size", 12)  # as a listing said it
    steady = _Steady(file)
    assert steady.read(10) == b"0123456789"
    with pytest.raises(SourceError, match=r"a\.csv ends after 10 bytes, but had 12 bytes when its folder was listed"):
        steady.read(1)


# ---- reader threads


class Waits(Exception):
    """A thread would wait here."""


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_tasks_are_drawn_than_the_consumer_has_room_for(limit: int) -> None:
    tasks: list[Callable[[], int]] = [lambda place=place: place for place in range(9)]  # type: ignore[misc]
    line = _Line(iter(tasks), limit, most=limit)

    def wait(timeout: float | None = None) -> bool:
        raise Waits

    line.room.wait = wait  # type: ignore[method-assign]

    def draw(count: int) -> None:
        for _ in range(count):
            drawn = line._draw()
            assert drawn is not None
            place, task = drawn
            line.results[place] = task()
        with pytest.raises(Waits):
            line._draw()

    draw(limit)
    results = iter(line)
    assert [next(results), next(results)] == [0, 1] if limit > 1 else next(results) == 0
    draw(2 if limit > 1 else 1)


@pytest.mark.parametrize("threads", [-1, 0, 1, 3])
@pytest.mark.parametrize("ahead", [-1, 0, 2])
def test_all_results_come_whatever_room_there_is(threads: int, ahead: int) -> None:
    tasks = (lambda place=place: place for place in range(20))  # type: ignore[misc]
    assert list(readahead(tasks, threads=threads, ahead=ahead)) == list(range(20))
    with pytest.raises(StopIteration):
        next(tasks)
