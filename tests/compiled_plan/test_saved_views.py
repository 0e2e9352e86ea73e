"""What a plan's file says about a view, read entry by entry."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset, feather, orc

import ctrbox as cb
from ctrbox import col
from ctrbox.compiled_plan.saved_views import (
    MOST_WIDTH,
    _check_allowed,
    _described,
    _without_secrets,
    check_names,
    reference_of,
    reopened,
    view_entry,
)
from ctrbox.errors import PlanError
from ctrbox.views.allowed_paths import Allowed
from ctrbox.views.columns_as_recorded import RecordedSource


def entry(**changed: Any) -> dict[str, Any]:
    whole = {"columns": [["n", "i", 0, False], ["s", "s", 0, True], ["v", "*f", 3, False]], "rows": 5, "bytes": 70}
    return whole | changed


def files(*paths: str, form: str = "parquet", **more: Any) -> dict[str, Any]:
    return {"paths": list(paths), "format": form, **more}


def test_columns_rows_and_bytes_are_those_of_the_entry() -> None:
    found = _described("log", entry())
    assert found.types == {"n": pa.int64(), "s": pa.large_string(), "v": pa.list_(pa.float64(), 3)}
    assert (found.maybe_null, found.rows, found.bytes, found.ordered) == ({"s"}, 5, 70, False)
    assert (found.shown, found.reference, found.text_options, found.format_name) == ("memory", None, None, None)
    assert _described("log", entry(ordered=True)).ordered
    assert not _described("log", entry(ordered=1)).ordered
    nothing = _described("log", entry(rows=None, bytes=None))
    assert (nothing.rows, nothing.bytes) == (None, None)


@pytest.mark.parametrize(
    ("paths", "shown"),
    [(("a.parquet",), "a.parquet"), (("a", "b"), "a and 1 more"), (("a", "b", "c", "d"), "a and 3 more")],
)
def test_several_files_are_shown_as_the_first_and_how_many_more(paths: tuple[str, ...], shown: str) -> None:
    found = _described("log", entry(source=files(*paths)))
    assert found.shown == shown
    assert found.reference == files(*paths)
    assert (found.format_name, found.text_options) == ("parquet", None)


@pytest.mark.parametrize(
    ("form", "given", "options"), [("csv", {}, {}), ("csv", {"delimiter": ";"}, {"delimiter": ";"})]
)
def test_text_files_keep_how_they_were_read(form: str, given: dict[str, Any], options: dict[str, Any]) -> None:
    found = _described("log", entry(source=files("a.csv", form=form, text=given)))
    assert found.text_options is not None
    assert found.text_options.given() == options


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"columns": [["n", "i", 0, False], ["n", "s", 0, True]]}, "two columns of view 'log' have the same name"),
        ({"columns": [["n", "i", 0]]}, "a column"),
        ({"columns": [["v", "*f", MOST_WIDTH + 2, False]]}, "the width of a list"),
        ({"columns": [["n", "q", 0, False]]}, "'q' is not a kind of column"),
        ({"columns": [["n", "i", 3, False]]}, "column 'n' has two types"),
        ({"rows": -1}, "a count"),
        ({"bytes": (1 << 62) + 1}, "a count"),
        ({"source": files()}, "a view has a source without paths"),
        ({"source": files("a\0b")}, "a view has a source without paths"),
        ({"source": files("a", form="csv", text={"color": "red"})}, "unknown text option 'color'"),
        ({"source": {"paths": ["a"]}}, "a format"),
        ({"schema": "%"}, "the Arrow schema of a view"),
    ],
)
def test_an_entry_that_no_plan_writes_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError) as caught:
        _described("log", entry(**changed))
    assert told in str(caught.value)


def test_arrow_types_of_the_file_must_have_the_kinds_of_the_columns() -> None:
    def schema(*fields: tuple[str, pa.DataType]) -> str:
        return base64.b64encode(pa.schema(list(fields)).serialize()).decode()

    fits = schema(("n", pa.int8()), ("s", pa.string()), ("v", pa.list_(pa.float32(), 3)))
    assert _described("log", entry(schema=fits)).types["n"] == pa.int8()
    for wrong, column in (
        (schema(("n", pa.string())), "n"),
        (schema(("v", pa.list_(pa.float32(), 4))), "v"),
        (schema(("v", pa.list_(pa.float32()))), "v"),
    ):
        with pytest.raises(PlanError, match=f"column {column!r} has two types"):
            _described("log", entry(schema=wrong))


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("s3://bucket/a?access_key=x&secret_key=y", "s3://bucket/a"),
        ("s3://bucket/a?region=eu&secret_key=y&session_token=z", "s3://bucket/a?region=eu"),
        ("s3://bucket/a?region=eu", "s3://bucket/a?region=eu"),
        ("s3://bucket/what?", "s3://bucket/what?"),
        ("s3://bucket/what?now", "s3://bucket/what?now"),
        ("/data/a?secret_key=y", "/data/a?secret_key=y"),  # a file of this name
    ],
)
def test_secrets_are_not_written_with_a_path(path: str, kept: str) -> None:
    assert _without_secrets(path) == kept


def test_rows_in_memory_need_a_name_of_their_own() -> None:
    one, other = pa.table({"a": [1]}), pa.table({"a": [2]})
    check_names([cb.View(one, name="x"), cb.View(other, name="y")])
    view = cb.View(one, name="x")
    check_names([view, view])
    with pytest.raises(PlanError, match="two views are called 'x' and one of them holds rows in memory"):
        check_names([view, cb.View(other, name="x")])


# ---- where data are found again

TABLE = pa.table({"id": [1, 2], "a": [3, 4]})


def stored(folder: Path) -> Path:
    for name in "abc":
        pq.write_table(TABLE, folder / f"{name}.parquet")
    feather.write_feather(TABLE, folder / "x.arrow")
    orc.write_table(TABLE, folder / "x.orc")
    (folder / "x.csv").write_text("id,a\n1,2\n")
    (folder / "y.csv").write_text("id;a\n1;2\n")
    (folder / "x.jsonl").write_text('{"id": 1, "a": 2}\n')
    return folder


@pytest.mark.parametrize(
    ("names", "form", "options"),
    [
        (["a.parquet"], "parquet", {}),
        (["a.parquet", "b.parquet", "c.parquet"], "parquet", {}),
        (["*.parquet"], "parquet", {}),
        (["x.arrow"], "arrow", {}),
        (["x.orc"], "orc", {}),
        (["x.csv"], "csv", {}),
        (["y.csv"], "csv", {"delimiter": ";"}),
        (["x.jsonl"], "json", {}),
    ],
)
def test_files_are_found_again_by_their_paths_and_how_they_were_read(
    tmp_path: Path, names: list[str], form: str, options: dict[str, Any]
) -> None:
    paths = [f"{stored(tmp_path)}/{name}" for name in names]
    source = cb.View(paths if len(paths) > 1 else paths[0], **options).source
    expected = {"paths": paths, "format": form, **({"text": options} if options else {})}
    assert reference_of(source) == expected
    place = reopened(source)
    assert place is not None
    assert (place.paths, place.filesystem) == (paths, None)
    assert (place.open().name, reference_of(place.open())) == (source.name, expected)


def test_a_dataset_is_found_again_by_the_paths_of_its_files(tmp_path: Path) -> None:
    paths = [f"{stored(tmp_path)}/{name}.parquet" for name in "ab"]
    assert reference_of(cb.View(dataset.dataset(paths)).source) == {"paths": paths, "format": "parquet"}


def test_rows_in_memory_are_found_nowhere_and_views_of_files_may_share_a_name(tmp_path: Path) -> None:
    memory = cb.View(TABLE, name="x")
    assert (reference_of(memory.source), reopened(memory.source)) == (None, None)
    one, other = (cb.View(stored(tmp_path) / name, name="x") for name in ("a.parquet", "b.parquet"))
    check_names([one, other])
    for pair in ([memory, one], [one, memory]):
        with pytest.raises(PlanError, match="two views are called 'x' and one of them holds rows in memory"):
            check_names(pair)


def test_newer_data_of_a_saved_view_are_found_by_its_reference_unless_it_has_a_version() -> None:
    for reference, paths in (
        (None, None),
        (files("a", "b"), ["a", "b"]),
        (files("a", form="delta", version=3), None),
    ):
        place = reopened(RecordedSource(_described("x", entry(source=reference)), lambda: cb.View(TABLE).source))
        assert (None if place is None else place.paths) == paths


def test_a_plan_says_of_a_view_what_its_file_needs_to_open_it_again(tmp_path: Path) -> None:
    timed = TABLE.append_column("ts", pa.array([None, 5], pa.timestamp("us")))
    pq.write_table(timed, stored(tmp_path) / "log.parquet")
    log = cb.View(tmp_path / "log.parquet", key="id", name="log", time_units={"ts": "s"})
    more = cb.View(tmp_path / "b.parquet", key="id", name="more")
    more = more.with_columns(more=col("a")).select("id", "more").fill(more=0)
    plan = cb.compile(log.merge(more), cb.FeatureSet(dense={"a": "a", "more": "more"}), device="cpu", threads=1)
    views = [source.view for source in plan.graph.frames[0].sources]
    found = [view_entry(view, [["x"]], plan.graph) for view in views]
    assert [{**entry, "schema": "", "bytes": entry["bytes"] > 0} for entry in found] == [
        {
            "name": name,
            "key": ["id"],
            "keep": keep,
            "source": files(f"{tmp_path}/{file}"),
            "columns": [["id", "i", 0, False], ["a", "i", 0, False], *columns],
            "schema": "",
            "rows": 2,
            "bytes": True,
            "ordered": True,
            "steps": [["x"]],
            **more,
        }
        for name, file, keep, columns, more in (
            ("log", "log.parquet", None, [["ts", "t", 0, True]], {"time_units": {"ts": "s"}}),
            ("more", "b.parquet", None, [], {}),
        )
    ]
    assert _described("log", found[0]).types == {"id": pa.int64(), "a": pa.int64(), "ts": pa.timestamp("us")}
    plain = cb.compile(log, cb.FeatureSet(dense={"a": "a"}), device="cpu", threads=1)
    assert view_entry(log, [], plain.graph)["ordered"] is False


def test_columns_that_were_saved_without_arrow_types_get_those_of_their_kind() -> None:
    columns = [["a", "*s", 0, True], ["b", "*i", 2, False], ["c", "", 0, True], ["d", "t", 0, False]]
    assert _described("log", entry(columns=columns)).types == {
        "a": pa.large_list(pa.large_string()),
        "b": pa.list_(pa.int64(), 2),
        "c": pa.null(),
        "d": pa.timestamp("us"),
    }
    json = _described("log", entry(source=files("a.json", form="json")))
    assert json.text_options is not None
    assert json.text_options.given() == {}
    widest = _described("log", entry(columns=[["v", "*f", MOST_WIDTH, False]]))
    assert widest.types["v"].list_size == MOST_WIDTH
    with pytest.raises(PlanError, match="a version"):
        _described("log", entry(source=files("a", form="delta", version=-1)))


def test_every_path_that_must_be_allowed_is_named_at_once(tmp_path: Path) -> None:
    allowed = Allowed((), tmp_path)
    _check_allowed("log", [f"{tmp_path}/a"], allowed, "instead")
    refused = "which is neither below the current folder nor beside the plan"
    with pytest.raises(PlanError) as one:
        _check_allowed("log", ["/elsewhere/a.parquet"], allowed, "load(…, views={'log': …})")
    assert str(one.value) == (
        f"the plan's file says that view 'log' reads '/elsewhere/a.parquet', {refused}; if you trust it: "
        "load(…, allow_views=['/elsewhere/a.parquet']), or pass other data: load(…, views={'log': …})"
    )
    allowed.asked |= {"log": ["/elsewhere/a.parquet"], "ads": ["/other/b.parquet"]}
    with pytest.raises(PlanError) as two:
        _check_allowed("log", ["/elsewhere/a.parquet"], allowed, "load(…, views={'log': …})")
    assert str(two.value) == (
        f"the plan's file says that view 'log' reads '/elsewhere/a.parquet', {refused}; view 'ads', which reads "
        "'/other/b.parquet', is refused too; if you trust them: load(…, allow_views=['/elsewhere/a.parquet', "
        "'/other/b.parquet']), or pass other data: load(…, views={'log': …}) and load(…, views={'ads': …})"
    )


def test_other_data_for_views_of_one_name_are_joined_by_the_key_of_each(tmp_path: Path) -> None:
    items = pa.table({"item": [1, 2], "sku": [2, 1], "price": [10.0, 20.0]})
    pq.write_table(items, tmp_path / "items.parquet")
    log = cb.View(pa.table({"i": [1, 2], "y": [0, 1]}), name="log")
    for key in ("item", "sku"):
        log = log.join(cb.View(tmp_path / "items.parquet", key=key), on="i", prefix=f"{key}_")
    features = {key: col(f"{key}_price").fill(0.0) for key in ("item", "sku")}
    plan = cb.compile(log, cb.FeatureSet(label="y", dense=features), device="cpu")
    plan.save(tmp_path / "job.plan")
    other = items.set_column(2, "price", pa.array([1.0, 2.0]))
    pq.write_table(other, tmp_path / "other.parquet")
    rows = pa.table({"i": [1, 2], "y": [0, 1]})
    for data in (tmp_path / "other.parquet", other, cb.View(other), cb.View(other, key="item")):
        found = cb.Plan.load(tmp_path / "job.plan", views={"log": rows, "items": data})
        assert [batch.dense.tolist() for batch in found.batches(2)] == [[[1.0, 2.0], [2.0, 1.0]]]
    with pytest.raises(PlanError, match="key 'sku' is not a column of memory"):
        cb.Plan.load(tmp_path / "job.plan", views={"items": cb.View(other.drop_columns("sku"))})
