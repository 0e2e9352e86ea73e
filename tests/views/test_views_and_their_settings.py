"""Arguments of views, joins and merges, and what sources tell where nobody had asked before."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.errors import PlanError, SourceError
from ctrbox.views import frames_in_memory
from ctrbox.views.columns_as_recorded import AgreeingSource, Described, RecordedSource
from ctrbox.views.files_with_row_index import Footer, IndexedFiles
from ctrbox.views.formats import _by_name, has_extension
from ctrbox.views.frames_in_memory import MemorySource, StreamSource, from_capsule
from ctrbox.views.morsel import SourceOver
from ctrbox.views.source import as_before, open_source
from ctrbox.views.text_options import TextOptions
from ctrbox.views.view import folder_of

ROWS = pa.table({"id": [1, 2], "at": pa.array([1, 2], pa.timestamp("us"))})


# ---- views


def test_an_argument_that_a_view_does_not_have_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        PlanError, match=r"^View has no argument 'delimeter'; nearest: 'delimiter'; it has data, key, .*types$"
    ):
        cb.View(ROWS, delimeter=";")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "folder"),
    [(None, None), (False, None), (True, ""), ("/mnt/ssd", "/mnt/ssd"), (Path("/mnt/ssd"), "/mnt/ssd"), ("a", "a")],
)
def test_what_exceeds_a_budget_goes_to_a_folder_or_is_refused(given: Any, folder: str | None) -> None:
    assert folder_of(given) == folder
    view = cb.View(ROWS, key="id")
    assert view.join(view, on="id").steps[-1].budget_bytes == 4_294_967_296  # type: ignore[union-attr]
    assert view.join(view, on="id", spill=given).steps[-1].spill == folder  # type: ignore[union-attr]
    assert view.merge(view, spill=given).steps[-1].spill == folder  # type: ignore[union-attr]


@pytest.mark.parametrize("given", ["", 1, 0, b"/mnt", ["/mnt"]])
def test_what_is_no_folder_for_it_is_refused(given: Any) -> None:
    with pytest.raises(PlanError) as caught:
        folder_of(given)
    assert (
        str(caught.value) == f"spill must be True or a folder on a local disk, such as spill='/mnt/ssd', got {given!r}"
    )
    with pytest.raises(
        PlanError, match=r"s3://b is a URL, but a folder for what does not fit into memory can only be on a"
    ):
        folder_of("s3://b")


def test_an_as_of_join_takes_one_time_or_two_that_are_no_keys() -> None:
    left = cb.View(ROWS, key="id")
    right = cb.View(ROWS.append_column("from", ROWS["at"]), key="id", name="right")
    assert left.join(right, on="id").steps[-1].as_of is None  # type: ignore[union-attr]
    assert left.join(right, on="id", as_of="at").steps[-1].as_of == ("at", "at")  # type: ignore[union-attr]
    for two in (("at", "from"), ["at", "from"]):
        assert left.join(right, on="id", as_of=two).steps[-1].as_of == ("at", "from")  # type: ignore[union-attr]
    for wrong in ((), ("a", "b", "c")):
        with pytest.raises(PlanError) as caught:
            left.join(right, on="id", as_of=wrong)
        assert str(caught.value) == (
            f"as_of takes a time column, or two where their names differ: as_of=('ts', 'valid_from'); got {wrong!r}"
        )
    for times in ("id", ("at", "id")):
        with pytest.raises(PlanError) as caught:
            left.join(right, on="id", as_of=times)
        assert str(caught.value) == (
            "as_of: the time 'id' is also in the key ('id',) of view 'right', so only rows with exactly the same time would "
            "be found; leave it out of the key: View(…, key=…)"
        )
    assert left.join(right, on="id", as_of=("id", "at")).steps[-1].as_of == ("id", "at")  # type: ignore[union-attr]


def test_a_view_is_shown_by_its_name_its_key_and_its_steps() -> None:
    view = cb.View(ROWS, key="id", name="log").select("id").fill(id=0)
    assert repr(view) == "View('log', key=('id',), steps=2)"
    assert (view.columns, view.schema.names) == (["id", "at"], ["id"])


# ---- formats


@pytest.mark.parametrize("name", ["csv.gz", "a.csv.txt", "gz", ".gz", "a.gz.csv.x", "a"])
def test_a_name_needs_a_stem_before_its_endings(name: str) -> None:
    class Named:
        path = shown = f"csv.d/{name}"

    with pytest.raises(
        SourceError, match=rf"^the name of csv\.d/{name} does not show its format; expected one of parquet"
    ):
        _by_name(Named())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "known"),
    [("a.csv", True), ("s3://b/a.GZ", True), ("a.avro", True), ("a.txt", False), ("csv", True), ("a", False)],
)
def test_a_data_file_is_known_by_its_ending(path: str, known: bool) -> None:
    assert has_extension(path) is known


# ---- sources


def values(source: Any, name: str, **options: Any) -> list[Any]:
    return [value for morsel in source.scan([name], **options) for value in morsel.rows[name].to_pylist()]


def test_bytes_of_row_groups_are_those_of_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        table = pa.table({"a": range(10 * day), "b": ["x" * day] * 10 * day})
        pq.write_table(table, tmp_path / f"day={day}" / "f.parquet", row_group_size=10)
    source: Any = open_source(tmp_path)
    detail = [pq.read_metadata(tmp_path / f"day={day}" / "f.parquet") for day in (1, 2)]
    a, b = (
        [meta.row_group(k).column(place).total_compressed_size for meta in detail for k in range(meta.num_row_groups)]
        for place in (0, 1)
    )
    assert source.sizes_of_groups(["a"]) == source.sizes_of_groups(["a", "day"]) == a
    assert source.sizes_of_groups(["b", "a"]) == [x + y for x, y in zip(a, b, strict=True)]
    assert source.sizes_of_groups(["day"]) == source.sizes_of_groups([]) == [0, 0, 0]
    assert source.groups == [10, 10, 10]
    assert [source.prunable(name) for name in ("a", "day", "none")] == [True, True, False]
    assert values(source, "a", rows=10) == [*range(10), *range(20)]
    assert (source.rows_read, source.bytes_read) == (30, sum(a))
    assert values(source, "day") == [1] * 10 + [2] * 20
    assert (source.rows_read, source.bytes_read) == (30, sum(a))  # nothing was read for it
    table = pa.table({"x": range(20)})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as out:
        out.write_table(table, max_chunksize=15)
    source = open_source(tmp_path / "a.arrow")
    assert source.sizes_of_groups(["x"]) == [15, 5]  # such files do not tell
    assert values(source, "x") == list(range(20))
    assert (source.rows_read, source.bytes_read) == (20, 160)
    times = pa.table({"at": pa.array([1, 2], pa.timestamp("ns")), "x": [[1], [2]]})
    pq.write_table(times, tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet")
    assert [source.prunable(name) for name in ("at", "x")] == [False, True]


def test_a_file_that_is_gone_when_its_statistics_are_asked_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(10)}), path, row_group_size=5)
    source = open_source(path)
    assert source.rows == 10
    path.unlink()
    with pytest.raises(SourceError, match=rf"^{path} cannot be read: "):
        values(source, "x", prune=pc.field("x") > 7)


def test_a_name_of_a_column_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"wxyz": [1]})
    with pa.ipc.new_file(path, table.schema) as out:
        out.write_table(table)
    path.write_bytes(path.read_bytes().replace(b"wxyz", b"w\xff\xfez"))
    with pytest.raises(SourceError, match=r"a\.arrow has a column whose name is not UTF-8: b'w\\xff\\xfez'$"):
        open_source(path)


def test_a_column_without_values_is_not_ordered() -> None:
    table = pa.table({"x": pa.nulls(2), "id": [1, 2], "down": [2, 1]})
    then = {"x": pa.int64(), "id": pa.int64(), "down": pa.int64()}
    source = AgreeingSource(MemorySource(table), Described("log", then, frozenset()), strict=False)
    assert [source.ordered(name) for name in ("id", "down", "x")] == [True, False, False]
    assert [source.nullable(name) for name in ("id", "down", "x")] == [False, False, True]
    assert source.fingerprint() == MemorySource(table).fingerprint()
    (morsel,) = source.scan(["x", "id"])
    assert morsel.rows.to_pydict() == {"x": [None, None], "id": [1, 2]}
    assert (source.name, source.rows, source.bytes) == ("memory", 2, MemorySource(table).bytes)
    assert source.table is not None
    assert (source.table.num_rows, source.text_options, source.format_name) == (2, None, None)


def test_a_source_over_text_tells_how_the_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n1\t2\n")
    inner: Any = cb.View(tmp_path / "a.tsv", quote=False).source

    class Over(SourceOver):
        pass

    over = Over()
    over.inner = inner
    assert (over.format_name, over.text_options, over.table, over.name) == (
        "tsv",
        TextOptions(quote=False),
        None,
        inner.name,
    )
    assert as_before(over, tmp_path / "a.tsv") == {"quote": False}  # type: ignore[arg-type]
    assert as_before(MemorySource(ROWS), tmp_path / "a.tsv") == {}
    assert MemorySource(ROWS.slice(0, 0)).table is None
    table = MemorySource(ROWS).table
    assert table is not None
    assert table.equals(ROWS)


# ---- streams


class Stream:
    """An object that hands out a fresh stream for each scan."""

    streaming = True

    def __init__(self, table: pa.Table, name: str | None = None) -> None:
        self.rows, self.name = table, name

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        return self.rows.to_reader(max_chunksize=1).__arrow_c_stream__(requested)


class Known(Stream):
    """Such an object that tells what it holds."""

    def fingerprint(self) -> str:
        return str(self.rows.num_rows)


def test_a_stream_is_identified_by_what_it_tells_or_by_its_name() -> None:
    plain, other, named = (
        from_capsule(Stream(ROWS)),
        from_capsule(Stream(ROWS.slice(1))),
        from_capsule(Stream(ROWS, "days")),
    )
    assert [(one.name, one.identified) for one in (plain, named)] == [("Stream", False), ("days", False)]  # type: ignore[union-attr]
    assert plain.fingerprint() == other.fingerprint() != named.fingerprint()
    first, second = from_capsule(Known(ROWS)), from_capsule(Known(ROWS.slice(1)))
    assert (first.name, first.identified) == ("Known", True)  # type: ignore[union-attr]
    assert first.fingerprint() != second.fingerprint()
    assert (first.rows, first.bytes) == (None, None)
    assert values(first, "id", start=1) == [2]
    assert [(m.start, m.origin.name(0)) for m in first.scan(["id"])] == [(0, "Known row 0"), (1, "Known row 1")]


def test_a_stream_that_never_had_a_row_may_be_read_again() -> None:
    empty = from_capsule(Stream(ROWS.slice(0, 0)))
    assert values(empty, "id") == values(empty, "id") == []
    batches = ROWS.slice(0, 0).combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], ROWS.schema)]
    source = StreamSource(ROWS.schema, lambda columns: iter(batches))
    assert values(source, "id") == values(source, "id") == []


def test_arrays_that_are_no_rows_are_named() -> None:
    for kind, data in (("ChunkedArray", pa.chunked_array([[1]])), ("Int64Array", pa.array([1]))):
        with pytest.raises(SourceError, match=f"^the {kind} cannot be read as Arrow rows: "):
            open_source(data)


def test_a_dataset_of_arrow_files_is_read_as_files_with_its_partitions(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2, 3], "day": [7, 7, 8]})
    kind = ds.partitioning(pa.schema([("day", pa.int32())]), flavor="hive")
    ds.write_dataset(table, tmp_path, format="feather", partitioning=kind)
    source = open_source(ds.dataset(tmp_path, format="feather", partitioning=kind))
    assert (source.rows, source.schema.names) == (3, ["x", "day"])
    assert (values(source, "x"), values(source, "day")) == ([1, 2, 3], [7, 7, 8])
    assert source.name.startswith(f"dataset of {tmp_path}/day=7/")


def test_datasets_of_several_kinds_are_read_through_their_own_scanner(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    text = ds.dataset(tmp_path / "a.csv", format="csv")
    source: Any = open_source(text)
    assert (source.name, source.rows, values(source, "x")) == ("dataset", None, [1, 2])
    both = ds.dataset([text, text])
    source = open_source(both)
    assert values(source, "x", start=3) == [2]
    (tmp_path / "a.csv").write_text("x\n1\n3\n")
    with pytest.raises(SourceError, match=r"a\.csv changed after it was opened"):
        values(source, "x")
    with pytest.raises(
        SourceError, match=r"^version= can be used only with a Delta Lake or Iceberg table, not with a "
    ):
        open_source(both, version=1)


def test_rows_beyond_the_limit_are_identified_by_some_that_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_in_memory, "WHOLE_BYTES", 0)

    def identity(*changed: int) -> str:
        chunks = [[-1 if row in changed else row for row in range(k, k + 2)] for k in range(0, 400, 2)]
        return MemorySource(pa.table({"x": pa.chunked_array(chunks)})).fingerprint()

    # Every third of two hundred chunks is compared, row by row.
    assert identity() == identity(2, 3, 4, 5) == identity(399)
    assert len({identity(), identity(0), identity(1), identity(6), identity(397)}) == 5


def test_a_stream_source_starts_with_the_columns_that_are_asked_for() -> None:
    asked: list[list[str]] = []

    def start(columns: Any) -> Any:
        asked.append(list(columns))
        return iter(pa.table({"a": [{"x": 1, "y": 2}], "b": [3]}).select(columns or ["b"]).to_batches())

    source = StreamSource(pa.table({"a": [{"x": 1, "y": 2}], "b": [3]}).schema, start, rows=1)
    assert values(source, "a.x") == [1]
    list(source.scan(["b", "a.y", "a.x"]))
    assert asked == [["a"], ["b", "a"]]
    assert (source.rows, source.nullable("b"), source.ordered("b")) == (1, True, False)
    with pytest.raises(SourceError, match=r"stream has no column 'c'; it has 'a\.x', 'a\.y', 'b'"):
        source.ordered("c")


def test_files_are_identified_by_their_names_below_their_common_folder(tmp_path: Path) -> None:
    def identity(*names: str, root: str = "root") -> str:
        for name in names:
            path = tmp_path / root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("a,b\n1,2\n")
            os.utime(path, ns=(10**18, 10**18))
        return open_source([tmp_path / root / name for name in names]).fingerprint()

    first = identity("x/one.csv", "y/one.csv")
    assert identity("x/one.csv", "y/one.csv", root="moved/further") == first
    assert identity("p/q/x/one.csv", "p/q/y/one.csv") == first
    assert identity("x/one.csv", "z/one.csv") != first
    assert identity("y/one.csv", "x/one.csv") != first
    assert identity("x/one.csv", "x/two.csv") == identity("one.csv", "two.csv", root="x") != first
    assert identity("x/one.csv") == identity("one.csv") != identity("two.csv")
    assert identity("x/y/one.csv", "x/two.csv") != identity("y/one.csv", "y/two.csv")


@pytest.mark.parametrize(
    ("start", "stop", "groups"),
    [
        (0, None, [[0, 1, 2], [0]]),
        (0, 0, []),
        (0, 1, [[0]]),
        (0, 3, [[0]]),
        (0, 4, [[0, 1]]),
        (3, 6, [[1]]),
        (2, 7, [[0, 1, 2]]),
        (0, 9, [[0, 1, 2]]),
        (0, 10, [[0, 1, 2], [0]]),
        (9, 10, [[0]]),
        (4, 4, [[1]]),  # the group that holds the row begins before it
    ],
)
def test_groups_from_the_row_on_at_which_a_scan_stops_are_not_read(
    start: int, stop: int | None, groups: list[Any]
) -> None:
    source: Any = IndexedFiles.__new__(IndexedFiles)
    footers = [Footer(pa.schema([]), counts) for counts in ((3, 3, 3), (3,))]
    found = [list(piece.groups) for piece in source._pieces(footers, start, 100, None, stop)]
    assert found == groups


def test_fields_of_structs_come_from_streams_of_several_files(tmp_path: Path) -> None:
    for name, values_ in (("a", [{"x": 1, "y": "p"}, None]), ("b", [{"y": "q", "x": 3}])):
        table = pa.table({"s": values_, "k": [name] * len(values_)})
        with pa.ipc.new_stream(tmp_path / f"{name}.arrows", table.schema) as out:
            out.write_table(table)
    source = open_source(tmp_path)
    assert sorted(source.schema.names) == ["k", "s.x", "s.y"]
    assert (values(source, "s.x"), values(source, "s.y")) == ([1, None, 3], ["p", None, "q"])
    assert values(source, "k", start=2) == ["b"]


@pytest.mark.parametrize(
    ("type", "rows", "threads"), [(pa.uint64(), 10, True), (pa.uint64(), 101, False), (pa.int64(), 10, False)]
)
def test_only_rows_in_memory_that_are_converted_in_parts_get_threads(
    type: pa.DataType, rows: int, threads: bool
) -> None:
    before = set(threading.enumerate())

    def readers() -> int:
        return sum(t.name.startswith("ctrbox-reader") for t in threading.enumerate() if t not in before)

    source = MemorySource(pa.table({"x": pa.array(range(100), type)}))
    scan = source.scan(["x"], rows=rows, threads=2, ahead=0)
    assert next(scan).rows.num_rows == min(rows, 100)
    assert (readers() > 0) is threads  # they wait until there is room for the next part
    assert sum(morsel.rows.num_rows for morsel in scan) == 100 - min(rows, 100)
    assert readers() == 0


def test_dictionaries_of_text_are_brought_to_one_type_and_others_are_kept() -> None:
    words = (
        pa.array(["a", "b", "a"], pa.large_utf8()).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.large_utf8()))
    )
    codes = pa.array([5, 6, 5]).dictionary_encode()
    usual = pa.array(["a", None, "a"]).dictionary_encode()
    table = MemorySource(pa.table({"words": words, "codes": codes, "usual": usual, "plain": ["a", "b", "c"]})).table
    assert table is not None
    assert table.schema.types == [usual.type, codes.type, usual.type, pa.utf8()]
    assert table.to_pydict() == {
        "words": ["a", "b", "a"],
        "codes": [5, 6, 5],
        "usual": ["a", None, "a"],
        "plain": ["a", "b", "c"],
    }


def test_rows_of_a_stream_know_their_places_in_it() -> None:
    batches = pa.table({"x": range(7)}).to_batches(max_chunksize=4)
    source = StreamSource(batches[0].schema, lambda columns: iter(batches))
    for start, places in ((0, [0, 3, 4]), (2, [2, 4]), (5, [5])):
        found = list(source.scan(["x"], rows=3, start=start))
        assert [(m.start, m.origin.row, m.rows["x"][0].as_py()) for m in found] == [
            (place, place, place) for place in places
        ]


def test_a_view_that_is_only_described_may_be_null_where_it_was_recorded() -> None:
    described = Described("log", {"id": pa.int64(), "word": pa.string()}, frozenset({"word"}))
    source = RecordedSource(described, lambda: open_source(pa.table({"id": [1], "word": ["a"]})))
    assert source.schema == pa.schema([pa.field("id", pa.int64(), False), pa.field("word", pa.string(), True)])
