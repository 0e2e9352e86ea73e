"""What a plan's file says about a view, read entry by entry."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox.compiled_plan.saved_views import MOST_WIDTH, _described, _without_secrets, check_names
from ctrbox.errors import PlanError


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
