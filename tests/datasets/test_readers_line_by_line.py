"""Readers of text logs at the edges of blocks, lines and fields, and of click sets whose rows are counted."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from ctrbox.datasets import avazu, criteo_attribution, criteo_sample, libffm, movielens, public_text_logs, vw
from ctrbox.datasets.criteo_avazu import Avazu, Delimited
from ctrbox.datasets.movielens import MOVIES, RATINGS, MovieLens, _complaint
from ctrbox.datasets.public_text_logs import Block, TextLog, blocks, find, head, shown
from ctrbox.datasets.vw_libffm import VowpalWabbit
from ctrbox.errors import DataError, SourceError

# ---- blocks and lines


@pytest.mark.parametrize(
    ("data", "size", "found"),
    [
        (b"", 4, []),
        (b"a\nb\n", 100, [(1, b"a\nb\n")]),
        (b"a\nb", 100, [(1, b"a\n"), (2, b"b")]),
        (b"a\nb\nc\n", 4, [(1, b"a\nb\n"), (3, b"c\n")]),
        (b"aaaaa\nb\n", 2, [(1, b"aaaaa\n"), (2, b"b\n")]),
        (b"\n\na\n", 2, [(1, b"\n\n"), (3, b"a\n")]),
        (b"aaaaa", 2, [(1, b"aaaaa")]),
    ],
)
def test_a_file_comes_in_blocks_of_whole_lines(tmp_path: Path, data: bytes, size: int, found: list[Any]) -> None:
    (tmp_path / "log").write_bytes(data)
    path = str(tmp_path / "log")
    assert list(blocks(path, size=size)) == [Block(path, line, part) for line, part in found]
    uri = f"file://{path}"
    assert list(blocks(uri, size=size)) == [Block(uri, line, part) for line, part in found]


def test_a_header_is_left_out_of_the_first_block(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    for data, found in (
        (b"h\na\n", [(2, b"a\n")]),
        (b"h\r\na\nb", [(2, b"a\n"), (3, b"b")]),
        (b"h\n", []),
        (b"h", []),
        (b"", []),
    ):
        (tmp_path / "log").write_bytes(data)
        assert list(blocks(path, b"h")) == [Block(path, line, part) for line, part in found]
        assert [(b.line, b.data) for b in blocks(path, b"h", 2) if b.data.strip()] == found
    (tmp_path / "log").write_bytes(b"x" * 90 + b"\na\n")
    with pytest.raises(DataError) as caught:
        list(blocks(path, b"h" * 80))
    assert str(caught.value) == f"{path} line 1: found '{'x' * 77}...'; expected the header '{'h' * 80}'"
    assert shown(b"ab\xff\r") == r"'ab\\xff'"


def test_text_that_breaks_off_is_told_with_the_lines_before(tmp_path: Path) -> None:
    lines = "".join(f"{number * 7919 % 10007} {number}\n" for number in range(20_000)).encode()
    packed = gzip.compress(lines)
    path = tmp_path / "log.gz"
    path.write_bytes(packed[: len(packed) // 2])
    ends: list[int] = []
    with pytest.raises(SourceError) as caught:
        ends.extend(block.line + block.data.count(b"\n") - 1 for block in blocks(str(path), size=1000))
    last = ends[-1]
    assert 100 < last < 20_000
    assert str(caught.value).startswith(f"{path} cannot be read after line {last}: ")


def test_the_first_lines_come_from_as_many_files_as_needed(tmp_path: Path) -> None:
    for name, data in (("a", b"1\n\n2\n"), ("b", b"3\n"), ("c", b"4")):
        (tmp_path / name).write_bytes(data)
    paths = [str(tmp_path / name) for name in "abc"]
    assert head(paths, 10) == [b"1", b"2", b"3", b"4"]
    for lines in (1, 2, 3):
        assert head([*paths[:2], "nowhere"], lines) == [b"1", b"2", b"3"][:lines]  # what is not needed is not opened


class Numbers:
    """A format of one number a line, which complains at any length that is asked for."""

    schema, header = pa.schema([("x", pa.int64())]), None

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def parse(self, block: bytes) -> pa.RecordBatch:
        try:
            return pa.record_batch({"x": [int(line) for line in block.split()]}, self.schema)
        except ValueError:
            raise public_text_logs.Unparsed("no number") from None

    def complaint(self, line: bytes) -> str | None:
        return None if line.strip().isdigit() else "c" * self.length


def log(tmp_path: Path, text: str, format: Numbers | None = None, **options: Any) -> TextLog:
    (tmp_path / "log").write_text(text)
    return TextLog((str(tmp_path / "log"),), format or Numbers(), **options)


def test_a_complaint_is_cut_at_a_most_length(tmp_path: Path) -> None:
    for length, told in ((300, "c" * 300), (301, "c" * 299 + "…")):
        with pytest.raises(DataError) as caught:
            list(log(tmp_path, "1\nx\n", Numbers(length)).batches())
        assert str(caught.value) == f"{tmp_path}/log line 2: {told}"


def test_rows_are_counted_over_blocks_without_bad_lines(tmp_path: Path) -> None:
    found = log(tmp_path, "1\nx\n\n2\ny\n3", on_error="skip")
    batches = list(found.batches())
    assert [batch.to_pydict() for batch in batches] == [{"row": [0, 1], "x": [1, 2]}, {"row": [2], "x": [3]}]
    assert found.skipped == 2
    assert next(iter(found.batches())).num_rows == 2
    assert found.skipped == 2  # of this reading alone
    assert list(log(tmp_path, "x\ny\n", on_error="skip").batches()) == []
    two = TextLog((f"{tmp_path}/log",) * 2, Numbers(), "skip")  # type: ignore[arg-type]
    assert (two.name, repr(two)) == (f"{tmp_path}/log and 1 more", f"<TextLog {tmp_path}/log and 1 more: 2 columns>")
    assert (found.name, repr(found)) == (f"{tmp_path}/log", f"<TextLog {tmp_path}/log: 2 columns>")


def test_paths_and_patterns_are_found_as_files(tmp_path: Path) -> None:
    for name in ("b", "a", "d/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert find(f"{tmp_path}/*") == (f"{tmp_path}/a", f"{tmp_path}/b")  # a folder is left out
    assert find(f"{tmp_path}/**") == tuple(f"{tmp_path}/{name}" for name in ("a", "b", "d/c"))
    assert find([tmp_path / "b", f"{tmp_path}/[a]"]) == (f"{tmp_path}/b", f"{tmp_path}/a")
    assert find("s3://bucket/log") == ("s3://bucket/log",)
    version = public_text_logs.version_of(f"file://{tmp_path}/a")
    assert (version.shown, version.path, isinstance(version.fs, pafs.LocalFileSystem)) == (
        f"file://{tmp_path}/a",
        f"{tmp_path}/a",
        True,
    )
    with pytest.raises(SourceError, match=rf"^{tmp_path}/none cannot be opened: "):
        public_text_logs.version_of(f"{tmp_path}/none")


# ---- Criteo and Avazu


def test_a_line_is_complained_of_by_its_first_fault() -> None:
    format = Delimited(pa.schema([("n", pa.int8()), ("s", pa.utf8()), ("m", pa.int64())]), ",")
    for line, told in (
        (b"1,a,2", None),
        (b",,", None),
        (b"1,a,2\r", None),
        (b"1,a\r,2", "the line contains a carriage return; expected one only at the end of a line"),
        (b"1,a", "found 2 values; expected 3"),
        (b"1,a,2,", "found 4 values; expected 3"),
        (b"128,a,x", "n is '128'; expected an integer of 8 bits, or nothing"),
        (b"1,a,x", "m is 'x'; expected an integer of 64 bits, or nothing"),
        (b"1,\xff,2", "byte 2 is 0xff; expected UTF-8"),
    ):
        assert format.complaint(line) == told
    assert format.parse(b" \n").num_rows == 0
    assert format.parse(b"1,0x1F,2\n").to_pydict() == {"n": [1], "s": ["0x1F"], "m": [2]}
    for bad in (b"0x1F,a,2\n", b"0X1F,a,2\n", b" 1,a,2\n"):
        with pytest.raises((public_text_logs.Unparsed, pa.ArrowInvalid)):
            format.parse(bad)
    assert format.parse(b",a b,-2\n").to_pydict() == {"n": [None], "s": ["a b"], "m": [-2]}


def test_an_hour_is_judged_where_it_stands() -> None:
    format = Avazu(["id", "click", "hour", "C14", "site"], b"id,click,hour,C14,site")
    assert [field.type for field in format.schema] == [
        pa.utf8(), pa.int8(), pa.int64(), pa.int64(), pa.utf8(), pa.timestamp("us"),
    ]  # fmt: skip
    for line, told in (
        (b"a,1,14102100,5,x", None),
        (b"a,1,,5,x\r", None),
        (b"a,1,14102124,5,x", "hour is '14102124'; expected YYMMDDHH"),
        (b"a,300,14102100,5,x", "click is '300'; expected an integer of 8 bits, or nothing"),
    ):
        assert format.complaint(line) == told
    assert format.parse(b"a,1,,5,x\n").column(5).to_pylist() == [None]
    with pytest.raises(public_text_logs.Unparsed, match="an hour is not YYMMDDHH"):
        format.parse(b"a,1,14102124,5,x\n")


@pytest.mark.parametrize("name", ["row", "ts", "id"])
def test_a_name_that_occurs_twice_or_is_added_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "log").write_text(f"id,hour,{name}\n")
    with pytest.raises(DataError) as caught:
        avazu(tmp_path / "log")
    assert str(caught.value) == (
        f"{tmp_path}/log line 1: the column name {name!r} occurs twice in the header, or is the name of a column that the "
        "reader adds"
    )


# ---- Vowpal Wabbit and libffm


def rows(found: TextLog) -> list[dict[str, Any]]:
    return [row for batch in found.batches() for row in batch.to_pylist()]


@pytest.mark.parametrize("text", ["1\t|a\tx:2\ty\n", "1 |a x:2 y\r\n", "\t1 |a x:2  y \n"])
def test_tabs_and_carriage_returns_part_tokens(tmp_path: Path, text: str) -> None:
    (tmp_path / "log").write_bytes(text.encode())
    (row,) = rows(vw(tmp_path / "log"))
    assert (row["label"], row["a"], row["a.weights"]) == (1.0, ["x", "y"], [2.0, 1.0])
    (tmp_path / "log").write_bytes(text.replace("|a", "").replace("x:2", "0:x:2").replace("y", "0:y:1").encode())
    (row,) = rows(libffm(tmp_path / "log"))
    assert (row["label"], row["f0"], row["f0.weights"]) == (1.0, ["x", "y"], [2.0, 1.0])


@pytest.mark.parametrize(
    ("namespaces", "prefix", "twice"),
    [
        (["a", "a"], "", "a"),
        (["a", "a.weights"], "", "a.weights"),
        (["a.weights", "a"], "", "a"),
        (["eight"], "w", "weight"),
        (["row"], "", "row"),
        (["label"], "", "label"),
    ],
)
def test_two_columns_may_not_have_one_name(tmp_path: Path, namespaces: list[str], prefix: str, twice: str) -> None:
    (tmp_path / "log").write_text("1 |a x\n")
    with pytest.raises(DataError) as caught:
        vw(tmp_path / "log", namespaces=namespaces, prefix=prefix)
    assert str(caught.value) == f"{tmp_path}/log: two columns would be called {twice!r}; choose another prefix"


def test_labels_weights_and_tags_of_a_line() -> None:
    format = VowpalWabbit(["default", "b"], ["default", "b"], binary=False)
    lines = ["1 2 0 'tag | x", "-.5 tag| x:3", "|b:2 y:3 z", "'t |b", "1e3 1. -0e5 3|b:-1 y:.5"]
    found = format.parse("\n".join(lines).encode()).to_pylist()
    assert [(r["label"], r["weight"], r["tag"]) for r in found] == [
        (1.0, 2.0, "tag"),
        (-0.5, 1.0, "tag"),
        (None, 1.0, None),
        (None, 1.0, "t"),
        (1000.0, 1.0, "3"),
    ]
    assert [(r["default"], r["default.weights"], r["b"], r["b.weights"]) for r in found] == [
        (["x"], [1.0], [], []),
        (["x"], [3.0], [], []),
        ([], [], ["y", "z"], [6.0, 2.0]),
        ([], [], [], []),
        ([], [], ["y"], [-0.5]),
    ]
    assert [format.complaint(line.encode()) for line in lines] == [None] * 5
    assert format.complaint(b"1 |b \xff") == "byte 5 is 0xff; expected UTF-8"
    assert format.complaint(b"1 |c x") is not None
    only = VowpalWabbit(["b"], ["b"], binary=True)
    assert str(only.complaint(b"2 |b x")) == "label is '2'; binary=True expects -1, 0 or 1"
    assert only.complaint(b"|b x") is None
    assert str(only.complaint(b"1 | x")).startswith("namespace 'default' is unknown: ")


def test_the_fields_of_the_first_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for text, names in (("1 0:1:1 3:1:1\n", 4), ("1\n", 0), ("1 0:1:1\n", 1), ("7 x:1:1 1:5:1\n", 2)):
        path.write_text(text)
        assert len(libffm(path).schema) == 2 + 2 * names
    path.write_text("1 0:1:1\n0 1:2:1\n")
    assert [row["f1"] for row in rows(libffm(path, fields=2))] == [[], ["2"]]
    with pytest.raises(DataError, match=r"log line 2: field 1 is unknown: .* \(known: f0\)"):
        rows(libffm(path, fields=1))
    with pytest.raises(DataError, match=r"log line 1: field 0 is unknown: .* \(known: none\)"):
        rows(libffm(path, fields=0))


# ---- MovieLens


def test_the_first_wrong_line_of_ratings_is_complained_of() -> None:
    for text, told in (
        ("1::2::3::4\n\n", None),
        ("1::2::3::4\n\n1::2::3\n", "line 3: found 3 values; expected 4: user_id::movie_id::rating::timestamp"),
        ("1::2::3::4::5\n", "line 1: found 5 values; expected 4: user_id::movie_id::rating::timestamp"),
        ("1::2::x::4\n", "line 1: rating is 'x'; expected a number"),
        ("1::2.5::3::4\n", "line 1: movie_id is '2.5'; expected a number"),
    ):
        assert _complaint(text, RATINGS) == told
    assert _complaint("1::x::y\n", MOVIES) is None


def test_an_empty_log_of_ratings_has_no_rows_and_a_missing_rating_is_named(tmp_path: Path) -> None:
    (tmp_path / "ratings.dat").write_text(" \n")
    (tmp_path / "movies.dat").write_text("1::A::B\n")
    found = movielens(tmp_path)
    assert (found.ratings.num_rows, found.users, found.vectors, found.log().num_rows) == (0, None, None, 0)
    rated = {"user_id": [1, 1], "movie_id": [2, 3], "rating": [5.0, None], "timestamp": [1, 2]}
    (tmp_path / "ratings.dat").unlink()
    pq.write_table(pa.table(rated), tmp_path / "ratings.parquet")
    with pytest.raises(DataError, match=rf"^{tmp_path}/ratings: rating of row 1 is empty$"):
        movielens(tmp_path)
    pq.write_table(pa.table({**rated, "rating": [5.0, 1.0]}), tmp_path / "ratings.parquet")
    (tmp_path / "movies.dat").unlink()
    for name in "abcdefghij":
        (tmp_path / name).touch()
    with pytest.raises(SourceError) as caught:
        movielens(tmp_path)
    assert str(caught.value) == f"{tmp_path} has neither movies.dat nor movies.parquet; it has a, b, c, d, e, f, g, h"
    (tmp_path / "ratings.parquet").unlink()
    with pytest.raises(SourceError, match=r"has neither ratings\.dat nor ratings\.parquet; it has a, b"):
        movielens(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"empty has neither ratings\.dat nor ratings\.parquet; it has nothing$"):
        movielens(tmp_path / "empty")


def test_ratings_of_one_second_do_not_know_of_each_other() -> None:
    columns = {"user_id": [1, 1, 1, 2], "movie_id": [7, 8, 9, 7], "rating": [5, 5, 5, 5], "timestamp": [1, 1, 2, 2]}
    table = pa.table({name: pa.array(columns[name], RATINGS.field(name).type) for name in RATINGS.names})
    found = MovieLens(table, None, MOVIES.empty_table()).log(history=1)
    assert found["history"].to_pylist() == [[], [], [8], []]
    assert [value.timestamp() for value in found["ts"].to_pylist()] == [
        value.timestamp() for value in pa.array([10**6, 10**6, 2 * 10**6, 2 * 10**6], pa.timestamp("us")).to_pylist()
    ]


# ---- click sets in Parquet


def test_the_last_fifth_of_two_sets_is_the_test_part(tmp_path: Path) -> None:
    names = ("orig_row", "cat1", "cat4", "cat6", "cat8", "cat9", "click")
    pq.write_table(pa.table({name: range(11) for name in names}), tmp_path / "criteo_attribution_165k.parquet")
    clicks = criteo_attribution(tmp_path)
    assert (clicks.rows, clicks.table("train")["row"].to_pylist(), clicks.table("test")["row"].to_pylist()) == (
        11,
        list(range(8)),
        [8, 9, 10],
    )
    columns = ["row", "label", *(f"i{k}" for k in range(1, 14)), *(f"c{k}" for k in range(1, 27))]
    pq.write_table(pa.table({name: [5, 6] for name in columns}), tmp_path / "criteo_1tb_80k.parquet")
    sample = criteo_sample(tmp_path)
    assert (len(sample.numbers), len(sample.categories), sample.label) == (13, 26, "label")
    assert sample.table("train")["row"].to_pylist() == [0, 1]
    assert sample.table("test").num_rows == 0
    with pytest.raises(SourceError, match=r"cannot read a int, expected the folder of criteo_1tb_80k\.parquet"):
        criteo_sample(5)  # type: ignore[arg-type]
