"""Files, streams and options that a view refuses, and the words in which it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError, SourceError
from ctrbox.files import filesystems
from ctrbox.files.filesystems import Store, _open_s3, _region
from ctrbox.views import text_in_blocks
from ctrbox.views.arrow_and_feather import _check
from ctrbox.views.columns_of_source import cut
from ctrbox.views.delimited import _SPARE
from ctrbox.views.files_without_row_index import BlockError
from ctrbox.views.json_lines import _broken_line, _check_lines
from ctrbox.views.simple_types import castable, choose, leaves
from ctrbox.views.source import like

ROWS = pa.table({"n": [1, 2], "s": ["a", "b"]})


def read(view: cb.View, column: str = "n") -> list[Any]:
    found: list[Any] = cb.compute({"x": col(column)}, view)["x"].to_pylist()
    return found


# ---- options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"names": []}, "names= must list at least one column, got an empty list"),
        ({"names": ["a", ""]}, "names must be strings that are not empty, got ''"),
        ({"names": ["a", 5]}, "names must be strings that are not empty, got 5"),
        ({"names": ["a", "a"]}, "names contains 'a' twice; rename one of the two columns"),
        ({"quote": ";", "delimiter": ";"}, "quote ';' is also part of the delimiter ';'"),
        ({"quote": ":", "delimiter": "::"}, "quote ':' is also part of the delimiter '::'"),
        (
            {"names": ["user"], "types": {"usr": "str"}},
            "types= names the column 'usr', which is not in names=; nearest: 'user'",
        ),
        ({"types": {5: "str"}}, "types= names the column 5, which is not in names"),
    ],
)
def test_an_option_of_text_that_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        cb.View("nowhere.csv", **options)
    assert says in str(caught.value)


def test_keep_is_last_or_nothing() -> None:
    assert read(cb.View(ROWS, keep="last", key="n")) == [1, 2]
    with pytest.raises(PlanError, match="keep must be None or 'last', got 'first'"):
        cb.View(ROWS, keep="first")


def test_a_merge_takes_a_view() -> None:
    with pytest.raises(PlanError, match=r"merge needs a View, got Table; wrap it: cb\.View\(data, key=…\)"):
        cb.View(ROWS, key="n").merge(ROWS)  # type: ignore[arg-type]


def test_options_of_text_hold_for_other_text_of_the_same_kind(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv", "a.json", "a"):
        (tmp_path / name).write_text("x")
    said = {"header": False}
    assert like("csv", said, tmp_path / "a.csv") == said
    assert like("csv", said, [str(tmp_path / "a.tsv")]) == said
    assert like("csv", said, tmp_path / "a.json") == {}
    assert like("csv", said, tmp_path / "a") == {"format": "csv", **said}
    assert like("parquet", said, tmp_path / "a.csv") == like("csv", said, ROWS) == {}


# ---- text


def test_a_line_that_never_ends_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_in_blocks, "BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr(text_in_blocks, "LINE_BYTES", 1 << 20)
    path = tmp_path / "a.csv"
    path.write_text('n,s\n1,"' + "x" * (3 << 20))
    with pytest.raises(SourceError, match=r"has a line longer than 1 MiB, starting at byte 4. A quote may open there"):
        read(cb.View(path))


def test_text_of_many_control_characters_leaves_none_to_part_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    spare = b"".join(_SPARE)
    path.write_bytes(b"n::s\n1::" + spare[1:] + b"\n")
    assert read(cb.View(path, delimiter="::")) == [1]
    path.write_bytes(b"n::s\n1::" + spare + b"\n")
    with pytest.raises(
        SourceError, match="text with delimiter '::' contains too many control characters; check that the file is text"
    ):
        read(cb.View(path, delimiter="::"))


def test_each_line_of_json_holds_one_object() -> None:
    two = b'{"a": 1}\n{"a": 2}'
    for block in (two, two + b"\n", two + b"\n\n"):
        _check_lines(block, 2)
    with pytest.raises(BlockError, match="2 lines hold 3 JSON objects; expected one on each line"):
        _check_lines(two, 3)
    with pytest.raises(BlockError, match="a line does not hold exactly one JSON object"):
        _check_lines(b'{"a": 1} {"a": 2}\n', 2)


@pytest.mark.parametrize("broken", [0, 1, 2, 3])
def test_the_broken_line_of_json_is_found(broken: int) -> None:
    lines = [b'{"a": %d}' % k for k in range(4)]
    assert _broken_line(b"\n".join(lines), None) is None
    lines[broken] = b'{"a": }'
    assert _broken_line(b"\n\n".join(lines), None) == broken


# ---- Arrow


def stream(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (pa.table({"s": ["c"]}), r"b\.arrows has no column 'n', expected int64"),
        (
            pa.table({"n": [0.5], "s": ["c"]}),
            r"column 'n' of .*b\.arrows is double, expected int64 as in the first file",
        ),
    ],
)
def test_streams_of_one_view_have_one_schema(tmp_path: Path, other: pa.Table, says: str) -> None:
    first = stream(tmp_path / "a.arrows", ROWS)
    assert read(cb.View([str(first), str(stream(tmp_path / "b.arrows", ROWS))])) == [1, 2, 1, 2]
    stream(tmp_path / "b.arrows", other)
    with pytest.raises(SourceError, match=says):
        read(cb.View([str(first), str(tmp_path / "b.arrows")]))


def test_text_inside_other_types_must_be_utf8() -> None:
    bad = pa.Array.from_buffers(pa.utf8(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    _check(bad)
    _check(pa.array([["a"]], pa.list_(pa.utf8(), 1)))
    with pytest.raises(pa.ArrowInvalid, match=r"a value of type fixed_size_list<.*>.* is not UTF-8"):
        _check(pa.FixedSizeListArray.from_arrays(bad, 1))


class Faulty:
    """A stream of rows that fails after the first batch."""

    streaming, name = True, "faulty"

    def __arrow_c_schema__(self) -> Any:
        return ROWS.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        raise OSError("the cable is out\nsecond line")

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield ROWS.to_batches()[0]
        raise OSError("the cable is out\nsecond line")


def test_a_stream_that_fails_says_after_which_row() -> None:
    with pytest.raises(SourceError, match=r"faulty cannot be read after row 2: the cable is out$"):
        read(cb.View(Faulty()))


def test_an_object_that_gives_no_rows_is_named() -> None:
    class Silent(Faulty):
        streaming = False  # type: ignore[assignment]

    with pytest.raises(SourceError, match="the Silent cannot be read as Arrow rows: "):
        cb.View(Silent())


def test_a_batch_is_cut_into_slices() -> None:
    batch = pa.record_batch({"n": list(range(5))})
    assert [(at, part["n"].to_pylist()) for at, part in cut(batch, 1, 2)] == [(1, [1, 2]), (3, [3, 4])]
    assert list(cut(batch, 5, 2)) == []
    with pytest.raises(ValueError, match="a morsel has at least one row, not 0"):
        next(cut(batch, 0, 0))


# ---- columns


@pytest.mark.parametrize(("count", "more"), [(12, False), (13, True)])
def test_the_columns_that_exist_are_listed(count: int, more: bool) -> None:
    known = leaves(pa.schema([(f"c{k}", pa.int64()) for k in range(count)]), "log")
    with pytest.raises(SourceError) as caught:
        choose(known, ["zzzzzz"], "log")
    assert "log has no column 'zzzzzz'; it has 'c0', 'c1'" in str(caught.value)
    assert "'c11'" in str(caught.value)
    assert str(caught.value).endswith(", …") == more
    assert "'c12'" not in str(caught.value)


@pytest.mark.parametrize(
    ("found", "wanted", "can"),
    [
        (pa.int32(), pa.float64(), True),
        (pa.float32(), pa.float64(), True),
        (pa.utf8(), pa.float64(), False),
        (pa.bool_(), pa.float64(), False),
        (pa.int8(), pa.int64(), True),
        (pa.float64(), pa.int64(), False),
        (pa.large_utf8(), pa.utf8(), True),
        (pa.dictionary(pa.int32(), pa.utf8()), pa.utf8(), True),
        (pa.dictionary(pa.int32(), pa.utf8()), pa.int64(), False),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), True),
        (pa.list_(pa.utf8()), pa.list_(pa.int64()), False),
        (pa.list_(pa.int64()), pa.list_(pa.int64(), 2), False),
        (pa.null(), pa.int64(), True),
        (pa.bool_(), pa.bool_(), True),
        (pa.date32(), pa.date32(), True),
    ],
)
def test_which_types_of_a_later_file_can_be_read_as_those_of_the_first(
    found: pa.DataType, wanted: pa.DataType, can: bool
) -> None:
    assert castable(found, wanted, found) is can


# ---- folders


def test_files_of_a_folder_are_partitioned_alike(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(ROWS, tmp_path / "day=1" / "a.parquet")
    assert read(cb.View(tmp_path), "day") == [1, 1]
    pq.write_table(ROWS, tmp_path / "z.parquet")
    with pytest.raises(SourceError, match=r"z\.parquet is partitioned by nothing, expected 'day' as in .*a\.parquet"):
        cb.View(tmp_path)


def test_a_partition_of_days_is_a_time(tmp_path: Path) -> None:
    kind = ds.partitioning(pa.schema([("day", pa.date32())]), flavor="hive")
    table = ROWS.append_column("day", pa.array([date(2026, 1, 2)] * 2))
    ds.write_dataset(table, tmp_path, format="parquet", partitioning=kind)
    view = cb.View(ds.dataset(tmp_path, format="parquet", partitioning=kind))
    assert view.source.schema.field("day").type == pa.timestamp("us")
    assert read(view.with_columns(x=col("day") == date(2026, 1, 2)), "x") == [True, True]


def test_a_dataset_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="the dataset contains no files; expected at least one file"):
        cb.View(ds.dataset(tmp_path, format="parquet", schema=ROWS.schema))


# ---- remote stores, without asking one


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def settings(store: Store) -> dict[str, Any]:
    """Return what an S3 filesystem was made with, as it would be sent to another process."""
    parts = store.fs.__reduce__()
    return next(part for part in _flat(parts) if isinstance(part, dict) and "endpoint_override" in part)


def _flat(parts: Any) -> Iterator[Any]:
    for part in parts:
        yield part
        if isinstance(part, tuple | list):
            yield from _flat(part)


KEYS = {"access_key": "a", "secret_key": "b"}


@pytest.mark.parametrize(
    ("path", "options", "inside", "wanted"),
    [
        (
            "s3://b/k?endpoint=http://h:1",
            {},
            "b/k",
            {"endpoint_override": "h:1", "scheme": "http", "region": "us-east-1"},
        ),
        ("s3://b/k?x", {"endpoint": "h:1", "region": "eu-1"}, "b/k?x", {"endpoint_override": "h:1", "region": "eu-1"}),
        ("s3://b/k", {"endpoint": "https://h", "scheme": "http"}, "b/k", {"endpoint_override": "h", "scheme": "http"}),
        ("s3://b/k?region=r1&endpoint=h", {"region": "r2"}, "b/k", {"region": "r2", "endpoint_override": "h"}),
        ("s3://b", {"region": "r1"}, "b", {"endpoint_override": "", "scheme": "https", "region": "r1"}),
    ],
)
def test_where_an_s3_path_is_looked_for(
    no_aws: Any, path: str, options: dict[str, Any], inside: str, wanted: dict[str, str]
) -> None:
    store, found = _open_s3(path, {**KEYS, **options})
    assert found == inside
    assert (store.prefix, store.remote) == ("s3://", True)
    assert {name: settings(store)[name] for name in wanted} == wanted


def test_the_environment_names_the_endpoint_and_the_region_of_s3(no_aws: pytest.MonkeyPatch) -> None:
    no_aws.setenv("AWS_ENDPOINT_URL", "http://other:1")
    no_aws.setenv("AWS_DEFAULT_REGION", "eu-2")
    assert settings(_open_s3("s3://b/k", KEYS)[0])["endpoint_override"] == "other:1"
    no_aws.setenv("AWS_ENDPOINT_URL_S3", "http://mine:2")
    found = settings(_open_s3("s3://b/k", KEYS)[0])
    assert (found["endpoint_override"], found["scheme"]) == ("mine:2", "http")
    assert _region("b", "h") == "us-east-1"


@pytest.mark.parametrize(
    ("path", "options", "says"),
    [
        ("s3://", {"endpoint": "h"}, "'s3://' has no bucket name; expected s3://bucket/path"),
        ("s3:///k", {"endpoint": "h"}, "'s3:///k' has no bucket name; expected s3://bucket/path"),
        ("s3://b/k", {"regoin": "x"}, "storage option 'regoin' is not an option for S3; expected one of"),
        ("s3://b/k", {"endpoint": "h", "access_key": "a", "scheme": 5}, "'s3://b/k' cannot be opened: "),
    ],
)
def test_an_s3_path_that_cannot_be_opened(no_aws: Any, path: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(SourceError) as caught:
        _open_s3(path, options)
    assert says in str(caught.value)


def test_a_read_from_a_remote_store_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(filesystems.time, "sleep", slept.append)
    monkeypatch.setattr(filesystems, "RETRY_PAUSES_S", (0.5, 1.0))

    def failing(times: int) -> Callable[[], str]:
        left = [OSError("gone for now")] * times

        def action() -> str:
            if left:
                raise left.pop()
            return "done"

        return action

    remote, local = Store(pafs.LocalFileSystem(), "s3://", True), Store(pafs.LocalFileSystem())
    assert remote.attempt("x", failing(2)) == "done"
    assert slept == [0.5, 1.0]
    with pytest.raises(SourceError, match=r"x cannot be read \(3 tries in \d\.\d s\): gone for now"):
        remote.attempt("x", failing(3))
    with pytest.raises(SourceError, match="x cannot be read: gone for now"):
        local.attempt("x", failing(1))
    monkeypatch.setattr(filesystems, "RETRY_TOTAL_S", 0.4)
    with pytest.raises(SourceError, match=r"x cannot be read \(1 tries in"):
        remote.attempt("x", failing(1))
    assert slept == [0.5, 1.0, 0.5, 1.0]


def test_fields_of_structs_in_streams_keep_their_values(tmp_path: Path) -> None:
    def rows(number: pa.DataType, word: pa.DataType, values: list[Any]) -> pa.Table:
        return pa.table({"a": pa.array(values, pa.struct([("number", number), ("word", word)]))})

    first = stream(tmp_path / "a.arrows", rows(pa.float32(), pa.string(), [{"number": 0.5, "word": "007"}]))
    for number, word, told in (
        (
            pa.float64(),
            pa.string(),
            r"column 'a\.number' of .*b\.arrows is double, expected float as in the first file",
        ),
        (pa.float32(), pa.int64(), r"column 'a\.word' of .*b\.arrows is int64, expected string as in the first file"),
    ):
        value = {"number": 0.1, "word": "8" if pa.types.is_string(word) else 8}
        stream(tmp_path / "b.arrows", rows(number, word, [value]))
        with pytest.raises(SourceError, match=told):
            cb.View([str(first), str(tmp_path / "b.arrows")]).head()
    small = stream(tmp_path / "c.arrows", pa.table({"a": pa.array([{"n": 1}], pa.struct([("n", pa.int64())]))}))
    stream(tmp_path / "d.arrows", pa.table({"a": pa.array([{"n": 2}], pa.struct([("n", pa.int32())]))}))
    assert cb.View([str(small), str(tmp_path / "d.arrows")]).head().column("a.n").to_pylist() == [1, 2]
