"""Views and their sources by direct calls: sizes, names, keys, allowed paths, and data held to a description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files import table_formats
from ctrbox.files.table_formats import _above
from ctrbox.views.allowed_paths import Allowed, to_allow
from ctrbox.views.columns_as_recorded import AgreeingSource, Described, RecordedSource, opened
from ctrbox.views.formats import format_of
from ctrbox.views.frames_in_memory import MemorySource
from ctrbox.views.source import like, open_source
from ctrbox.views.view import short_name

ROWS = pa.table({"id": [1, 2], "other": [3, 4]})


# ---- sizes and names


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data/users/*.parquet", "users"),
        ("data/users.v2.parquet", "users"),
        ("data/users/", "users"),
        ("data\\users", "users"),
        ("memory", "memory"),
        ("*", "*"),
    ],
)
def test_a_view_is_named_by_the_last_telling_part_of_its_path(path: str, name: str) -> None:
    assert short_name(path) == name


# ---- joins, merges, other data


def test_keys_of_a_join_are_paired_by_position() -> None:
    left, right = cb.View(ROWS, key="id"), cb.View(ROWS, key=["id", "other"], name="right")
    assert left.join(right, on=["other", "third"]).steps[-1].on == ("other", "third")  # type: ignore[union-attr]
    assert left.join(right, on=["id", "other"]).steps[-1].on == ("id", "other")  # type: ignore[union-attr]
    for on, says in (
        (["other", "id"], r"the order of on= differs from the key of view 'right': use on=\['id', 'other'\]"),
        (["id"], r"join on \('id',\) must have as many columns as the key \('id', 'other'\) of view 'right'"),
    ):
        with pytest.raises(PlanError, match=says):
            left.join(right, on=on)
    with pytest.raises(PlanError, match=r"view 'memory' has no key to join on; create it with View\(…, key='id'\)"):
        left.join(cb.View(ROWS), on="id")
    with pytest.raises(PlanError, match="how must be 'left' or 'inner', got 'outer'"):
        left.join(left, on="id", how="outer")
    with pytest.raises(PlanError, match="join needs a View, got Table"):
        left.join(ROWS, on="id")  # type: ignore[arg-type]
    for one, other in ((left, right), (right, left), (left, cb.View(ROWS))):
        with pytest.raises(PlanError, match="id, so both views need one key column:"):
            one.merge(other)
    assert left.merge(left, budget="1KB").steps[-1].budget_bytes == 1024  # type: ignore[union-attr]
    with pytest.raises(PlanError, match="key 'idd' is not a column of memory; nearest: 'id'"):
        cb.View(ROWS, key="idd")


def test_other_rows_take_the_place_of_a_view_and_of_those_it_brings() -> None:
    ads = cb.View(pa.table({"ad": [1], "x": [10]}), key="ad", name="ads")
    users = cb.View(pa.table({"id": [1], "ad": [1]}), key="id", name="users").join(ads, on="ad")
    log = cb.View(ROWS, name="log").join(users, on="id").select("id")
    assert [view.name for view in log.brought()] == ["users", "ads"]
    other_ads = pa.table({"ad": [1], "x": [99]})
    moved = log.over(pa.table({"id": [5], "other": [6]}), {"ads": other_ads})
    assert moved.source.rows == 1
    assert [view.source.schema.names for view in moved.brought()] == [["id", "ad"], ["ad", "x"]]
    (found,) = moved.brought()[1].source.scan(["x"])
    assert found.rows["x"].to_pylist() == [99]
    (kept,) = log.brought()[1].source.scan(["x"])
    assert kept.rows["x"].to_pylist() == [10]
    both = log.over(ROWS, {"users": pa.table({"id": [7], "ad": [1]}), "ads": other_ads})
    assert [next(iter(view.source.scan([view.key[0]]))).rows.column(0).to_pylist() for view in both.brought()] == [
        [7],
        [1],
    ]
    for data, views, says in (
        (
            ROWS,
            {"adds": other_ads},
            r"view 'adds' is not joined or merged here; nearest: 'ads'; the joined and merged views are: \['ads', 'users'\]",
        ),
        (log, {}, "but view 'log' has join, select; pass its data"),
    ):
        with pytest.raises(PlanError, match=says):
            log.over(data, views)
    with pytest.raises(PlanError, match="key 'id' is not a column of memory"):
        users.over(cb.View(pa.table({"x": [1]})))
    assert users.over(cb.View(pa.table({"id": [8], "ad": [1]}))).source.rows == 1


# ---- what is no source


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "cannot read an empty list; expected a path"),
        ([1], "cannot read a list; expected a path"),
        (5, "cannot read a int; expected a path"),
        (cb.View(ROWS), "it is a View already: use it as it is"),
    ],
)
def test_what_cannot_be_read_is_named(data: Any, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        open_source(data)


def test_several_paths_are_named_by_the_first(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("x,y\n1,2\n")
    one, two = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
    assert open_source([one]).name == one
    assert open_source([one, Path(two)]).name == f"{one} and 1 more"
    assert like("csv", {"quote": False}, [one, 5]) == {}
    for options, says in (
        ({"delimiter": ";"}, "delimiter= is for delimited text (csv, tsv), but this view reads a Table in memory"),
        ({"encoding": "cp1252"}, "encoding= is for text files, but this view reads a Table in memory"),
    ):
        with pytest.raises(SourceError) as caught:
            cb.View(ROWS, **options)  # type: ignore[arg-type]
        assert says in str(caught.value)
    (tmp_path / "c.jsonl").write_text('{"x": 1}\n')
    assert cb.View(tmp_path / "c.jsonl", types={"x": "str"}).source.schema.field("x").type == pa.utf8()
    with pytest.raises(
        SourceError, match=r"header= is for delimited text \(csv, tsv\), but this view reads json files"
    ):
        cb.View(tmp_path / "c.jsonl", header=True)


def test_a_dataset_is_read_as_its_files_where_that_gives_its_rows(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    whole = ds.dataset(tmp_path / "a.parquet")
    assert (open_source(whole).rows, open_source(whole).name) == (2, f"dataset of {tmp_path}/a.parquet")
    filtered = open_source(whole.filter(ds.field("id") > 1))
    assert (filtered.rows, [m.rows["id"].to_pylist() for m in filtered.scan(["id"])]) == (None, [[2]])
    both = open_source(ds.dataset([whole, whole]))
    assert [value for m in both.scan(["id"]) for value in m.rows["id"].to_pylist()] == [1, 2, 1, 2]
    assert open_source(ds.dataset(ROWS)).rows == 2


# ---- tables of other systems


def test_folders_above_a_file_may_be_tables_unless_they_are_partitions() -> None:
    assert list(_above("/a/b/day=1/f", 1)) == ["/a/b", "/a"]
    assert list(_above("/a/b/day=1/f", 3)) == ["/a/b"]
    assert list(_above("a/b/f", 1)) == ["a/b", "a"]
    assert list(_above("f", 1)) == []


def test_remote_folders_are_asked_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(table_formats, "table_format", lambda fs, folder: asked.append(folder))
    remote = pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())
    files = [f"b/t/{k:02}/f" for k in range(40)]
    table_formats.refuse_table_formats(remote, "s3://", "b/t", files)
    assert asked == ["b", "b/t", *(f"b/t/{k:02}" for k in range(30))]
    asked.clear()
    table_formats.refuse_table_formats(pafs.LocalFileSystem(), "", "/1/2/3/4/5/6/7", ["/1/2/3/4/5/6/7/day=1/f"])
    assert asked == ["/1/2", "/1/2/3", "/1/2/3/4", "/1/2/3/4/5", "/1/2/3/4/5/6", "/1/2/3/4/5/6/7"]
    asked.clear()
    monkeypatch.setattr(table_formats, "MOST_SECONDS", -1.0)
    table_formats.refuse_table_formats(remote, "s3://", "b/t", files)
    assert asked == ["b"]


# ---- allowed paths


@pytest.mark.parametrize(
    ("path", "named", "allowed"),
    [
        ("log/a.csv", [], True),
        ("log/*.csv", [], True),
        ("*.csv", [], True),
        ("../a.csv", [], False),
        ("log/../a.csv", [], True),
        ("log/*/../../../a.csv", [], False),
        ("/elsewhere/a.csv", [], False),
        ("/elsewhere/a.csv", ["/elsewhere"], True),
        ("/elsewhere/*.csv", ["/elsewhere/"], True),
        ("/elsewhere2/a.csv", ["/elsewhere"], False),
        ("file:///elsewhere/a.csv", ["/elsewhere"], True),
        ("/*", ["/elsewhere"], False),
        ("s3://b/k", [], False),
        ("s3://b/k", ["s3://b"], True),
        ("s3a://b/k/x", ["s3://b/k/"], True),
        ("s3://b/kk", ["s3://b/k"], False),
        ("s3://b2/k", ["s3://b"], False),
        ("s3://b/k/../../x", ["s3://b/k"], False),
        ("s3://b/k?endpoint=h", ["s3://b/k"], False),
        ("s3://b/k/x?endpoint=h&region=r", ["s3://b/k?region=r&endpoint=h"], True),
        ("s3://b/k?.csv", ["s3://b"], True),
        ("s3://b/k", ["/"], False),
        ("anything://at/all", ["*"], True),
    ],
)
def test_a_path_is_opened_only_below_what_the_user_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, named: list[str], allowed: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CTRBOX_ALLOW_VIEWS", raising=False)
    assert (Allowed(named).refused(["log/fine.csv", path]) is None) is allowed
    monkeypatch.setenv("CTRBOX_ALLOW_VIEWS", " , ".join([*named, ""]))
    assert (Allowed().refused([path]) is None) is allowed
    rules = Allowed(named)
    rules.asked = {"a": ["log/fine.csv"], "b": [path]}
    assert rules.refused_views() == ({} if allowed else {"b": path})


def test_links_may_lead_out_of_the_own_folder_and_not_out_of_the_folder_beside_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside, out = (tmp_path / name for name in ("here", "beside", "out"))
    for folder in (here, beside, out):
        folder.mkdir()
    for folder in (here, beside):
        (folder / "link").symlink_to(out)
    monkeypatch.chdir(here)
    monkeypatch.delenv("CTRBOX_ALLOW_VIEWS", raising=False)
    rules = Allowed(beside=beside)
    assert rules.refused(["link/a.csv", f"{beside}/a.csv"]) is None
    assert rules.refused([f"{beside}/link/a.csv"]) == f"{beside}/link/a.csv"
    monkeypatch.chdir("/")
    assert Allowed(beside=Path("/")).refused(["/etc/passwd"]) == "/etc/passwd"
    for given in ("/data", Path("/data")):
        with pytest.raises(PlanError, match=r"allow_views= must be a list of paths, got '/data'; write \['/data'\]"):
            Allowed(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("a/b.csv", "a/b.csv"),
        ("a/*/b.csv", "a"),
        ("/a*", "/"),
        ("a*", "."),
        ("s3://b/*", "s3://b/*"),
        ("/a/b?.csv", "/a"),
    ],
)
def test_what_would_allow_a_path_is_told(path: str, named: str) -> None:
    assert to_allow(path) == named


# ---- data held to a description


def described(**types: pa.DataType) -> Described:
    return Described("log", types, frozenset(name for name in types if name.startswith("maybe")))


def agreeing(table: pa.Table, strict: bool = True, **types: pa.DataType) -> AgreeingSource:
    return AgreeingSource(MemorySource(table), described(**types), strict=strict)


def values(source: Any, *names: str) -> dict[str, list[Any]]:
    found = [morsel.rows for morsel in source.scan(list(names))]
    return pa.Table.from_batches(found).to_pydict()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (2**53, ""),
        (-(2**53), ""),
        (2**53 + 1, "column 'x' is 9007199254740993 at memory row 1; the plan was built on floats"),
        (-(2**53) - 1, "column 'x' is -9007199254740993 at memory row 1"),
    ],
)
def test_whole_numbers_become_floats_where_floats_were_recorded_and_only_exactly(value: int, says: str) -> None:
    source = agreeing(pa.table({"x": [None, value], "y": [1, 2]}), x=pa.float64(), y=pa.int64())
    assert source.schema.field("x").type == pa.float64()
    if says:
        with pytest.raises(DataError, match="column 'x' is null at memory row 0"):
            values(source, "x")
        loose = agreeing(pa.table({"x": [1, value]}), x=pa.float64())
        with pytest.raises(DataError, match=says):
            values(loose, "x")
    else:
        loose = agreeing(pa.table({"x": [None, value]}), strict=False, x=pa.float64())
        assert values(loose, "x") == {"x": [None, float(value)]}
    for type in (pa.uint8(), pa.int16(), pa.uint32(), pa.uint64()):
        assert values(agreeing(pa.table({"x": pa.array([1, 2], type)}), x=pa.float64()), "x") == {"x": [1.0, 2.0]}


def test_a_null_where_none_was_recorded_is_an_error_that_names_its_row() -> None:
    table = pa.table({"x": [1, None, 3], "maybe": [1, None, 3], "new": [1, None, 3]})
    source = agreeing(table, x=pa.int64(), maybe=pa.int64())
    assert [source.nullable(name) for name in ("x", "maybe", "new")] == [False, True, True]
    assert [source.nullable_then(name) for name in ("x", "maybe", "new")] == [False, True, True]
    assert values(source, "maybe", "new")["new"] == [1, None, 3]
    with pytest.raises(DataError, match=r"column 'x' is null at memory row 1; .* train again with \.fill\(x=…\)"):
        values(source, "x")
    loose = agreeing(table, strict=False, x=pa.int64(), maybe=pa.int64())
    assert [loose.nullable(name) for name in ("x", "maybe", "new")] == [True, True, True]
    assert values(loose, "x") == {"x": [1, None, 3]}
    assert (source.changed, loose.changed) == (True, False)
    assert agreeing(table, strict=False, x=pa.float64()).changed
    with pytest.raises(DataError, match=r"memory lacks .*'xx'.*; the plan reads it from view 'log'"):
        source.scan(["xx"])


@pytest.mark.parametrize(
    ("then", "now", "says"),
    [
        (pa.utf8(), pa.array([1]), "column 'x' of view 'log' is .* in memory, but the plan was built on"),
        (pa.int64(), pa.array([1.5]), "the plan was built on"),
        (pa.int64(), pa.array([1], pa.int8()), ""),
        (
            pa.list_(pa.float32(), 2),
            pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float32(), 3)),
            " of 3 in memory, .* of 2$",
        ),
        (pa.list_(pa.float32(), 2), pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), ""),
        (pa.utf8(), pa.array([[("a", 1)]], pa.map_(pa.utf8(), pa.int64())), "of no simple type"),
    ],
)
def test_a_column_of_another_kind_than_recorded_is_refused(then: pa.DataType, now: pa.Array, says: str) -> None:
    source = agreeing(pa.table({"x": now, "y": [1]}), x=then)
    source.check(["y", "absent"])
    if says:
        with pytest.raises(PlanError, match=says):
            source.check(["x"])
    else:
        source.check(["x"])


def test_recorded_data_is_opened_when_rows_are_asked_for_and_once() -> None:
    times: list[int] = []

    def open_data() -> MemorySource:
        times.append(1)
        return MemorySource(pa.table({"x": [1, 2, 3]}))

    source = RecordedSource(Described("log", {"x": pa.int64()}, frozenset(), rows=7, bytes=9, ordered=True), open_data)
    assert (source.name, source.rows, source.bytes, source.nullable("x"), source.ordered("x")) == (
        "log",
        7,
        9,
        False,
        True,
    )
    assert source.schema == pa.schema([pa.field("x", pa.int64(), False)])
    assert not times
    assert values(source, "x") == {"x": [1, 2, 3]}
    assert source.rows == 3
    assert opened(source) is opened(source)
    assert opened(source).rows == 3
    source.fingerprint()
    assert times == [1]
    plain = MemorySource(ROWS)
    assert opened(plain) is plain


@pytest.mark.parametrize(
    ("given", "expected"),
    [("parquet", "parquet"), (".PARQUET", "parquet"), ("CSV", "csv"), ("tsv", "tsv"), ("jsonl", "json")],
)
def test_a_format_is_known_by_its_name_or_an_ending(given: str, expected: str) -> None:
    assert format_of([], given) == expected


def test_a_format_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(SourceError, match=r"format= is 'parket'; expected one of .*parquet.*; nearest: 'parquet'"):
        format_of([], "parket")
    with pytest.raises(SourceError, match="format must be a string, got a int; expected one of parquet, "):
        format_of([], 7)  # type: ignore[arg-type]
