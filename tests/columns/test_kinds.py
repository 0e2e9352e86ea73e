"""Kinds of values: their names, their Arrow types, the kinds of keys, the kinds of labels, and strict JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox.columns.exact_casts import decimals_to_float64, floor_divide, times_to_microseconds
from ctrbox.columns.json_text import strict_json
from ctrbox.columns.key_kinds import TOLD, checked_kinds, joined, mismatch
from ctrbox.columns.kind import arrow_type, kind_named, kind_of_arrow, name_of
from ctrbox.columns.label_task import Task, by_name, late, matrix, predictions_of, refused
from ctrbox.errors import DataError


@pytest.mark.parametrize(
    ("kind", "name", "arrow"),
    [
        ("b", "bool", pa.bool_()),
        ("i", "int", pa.int64()),
        ("f", "float", pa.float64()),
        ("t", "time", pa.timestamp("us")),
        ("s", "str", pa.large_string()),
        ("*s", "list[str]", pa.large_list(pa.large_string())),
        ("*i", "list[int]", pa.large_list(pa.int64())),
    ],
)
def test_a_kind_has_a_name_and_a_type(kind: str, name: str, arrow: pa.DataType) -> None:
    assert (name_of(kind), kind_named(name)) == (name, kind)
    assert arrow_type(kind) == arrow
    assert kind_of_arrow(arrow) == kind
    assert arrow_type("*k") == pa.large_list(pa.uint64())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("string", "s"), ("timestamp", "t"), ("list[string]", "*s")),
        *((name, None) for name in ("", "long", "list[long]", "list[int", "int]", "list[list[int]]", "list[]")),
    ],
)
def test_other_names_of_kinds(name: str, kind: str | None) -> None:
    assert kind_named(name) == kind


@pytest.mark.parametrize(
    ("arrow", "kind"),
    [
        (pa.dictionary(pa.int8(), pa.string()), "s"),
        (pa.dictionary(pa.int8(), pa.int32()), "i"),
        (pa.uint8(), "i"),
        (pa.float16(), "f"),
        (pa.timestamp("ns", "UTC"), "t"),
        (pa.string(), "s"),
        (pa.binary(), "s"),
        (pa.large_binary(), "s"),
        (pa.list_(pa.string()), "*s"),
        (pa.list_(pa.float32(), 3), "*f"),
        (pa.large_list(pa.bool_()), "*b"),
        (pa.list_(pa.list_(pa.int64())), None),
        (pa.list_(pa.null()), None),
        (pa.null(), None),
        (pa.date32(), None),
        (pa.time64("us"), None),
        (pa.decimal128(5, 2), None),
        (pa.struct([("a", pa.int64())]), None),
        (pa.map_(pa.string(), pa.int64()), None),
    ],
    ids=str,
)
def test_simple_types_of_arrow_have_a_kind(arrow: pa.DataType, kind: str | None) -> None:
    assert kind_of_arrow(arrow) == kind


# ---- kinds of keys


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("int", "int", "int"),
        ("int", "", "int"),
        ("", "int", "int"),
        ("", "", ""),
        ("int", "string", ""),
        ("text", "int", "text"),
        ("", "text", "text"),
    ],
)
def test_keys_of_two_kinds_make_a_field_of_text_or_of_no_known_kind(first: str, second: str, both: str) -> None:
    assert joined(first, second) == both


@pytest.mark.parametrize(
    ("trained", "planned", "told"),
    [
        ({"a": "int"}, {"a": "int"}, ""),
        ({"a": ""}, {"a": "int"}, ""),
        ({"a": "int"}, {"a": ""}, ""),
        ({"a": "int"}, {}, ""),
        ({"a": 5}, {"a": "int"}, ""),
        ({"a": "no kind"}, {"a": "int"}, ""),
        (
            {"a": "int", "b": "int", "c": "int"},
            {"a": "int", "b": "string", "c": "text"},
            f"field 'b' was trained on {TOLD['int']}, but the plan makes {TOLD['string']}",
        ),
    ],
)
def test_the_first_field_of_another_kind_is_told(trained: dict[str, Any], planned: dict[str, str], told: str) -> None:
    assert mismatch(trained, planned) == told


def test_kinds_of_a_file_are_one_for_each_field() -> None:
    assert checked_kinds(None, ["a", "b"]) == ["", ""]
    assert checked_kinds(["int", ""], ["a", "b"]) == ["int", ""]
    for wrong in (["int"], ["int", "", ""], ["int", "no kind"], ["int", None], "is", {"a": "int", "b": ""}):
        with pytest.raises(
            ValueError, match="its list of kinds of keys is damaged; expected one for each of its 2 fields"
        ):
            checked_kinds(wrong, ["a", "b"])


# ---- kinds of labels

CLICK, VALUE, VISITS = Task("click", "binary"), Task("value", "regression"), Task("visits", "count", 7.0)


def test_outputs_become_predictions_by_the_kind_of_their_label() -> None:
    outputs = np.array([[0.0, -3.0, 0.0], [20.0, 2.5, 200.0]], np.float32)
    found = predictions_of(outputs, (CLICK, VALUE, VISITS))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[0.5, -3.0, 1.0], [1 / (1 + np.exp(-20.0)), 2.5, np.exp(80.0)]], rtol=1e-15)
    assert found[1, 0] < 1
    assert outputs[0].tolist() == [0.0, -3.0, 0.0]  # the outputs stay what they are
    columns = by_name(found, (CLICK, VALUE, VISITS))
    assert {name: values.tolist() for name, values in columns.items()}["value"] == [-3.0, 2.5]
    assert {values.dtype for values in columns.values()} == {np.dtype(np.float32)}
    assert matrix(columns, (VALUE, CLICK)).tolist() == [[-3.0, 0.5], [2.5, 1.0]]
    assert late((CLICK, VALUE, VISITS)) == (VISITS,)


@pytest.mark.parametrize(
    ("task", "values", "row"),
    [
        (CLICK, [0, 1, 0], None),
        (CLICK, [0, 0.5, 2], 1),
        (CLICK, [0, 1, np.nan], 2),
        (VALUE, [-1.5, 0, 1e30], None),
        (VALUE, [0, np.inf, np.nan], 1),
        (VISITS, [0, 1, 7], None),
        (VISITS, [0, -1, 0], 1),
        (VISITS, [0, 1, 1.5], 2),
        (VISITS, [np.inf, 1, 1], 0),
    ],
)
def test_the_first_row_whose_label_does_not_fit_its_kind_is_found(
    task: Task, values: list[float], row: int | None
) -> None:
    everywhere = np.ones(3, bool)
    assert refused(task, np.array(values), everywhere) == row
    assert refused(task, np.array(values), ~everywhere) is None  # what was not observed is not looked at
    assert refused(task, np.array(values), np.arange(3) != row) != row or row is None


# ---- exact casts, and strict JSON


def test_stored_numbers_are_divided_rounding_down_in_slices_too() -> None:
    array = pa.array([5, -1, None, -1000, 1999], pa.int64())
    assert floor_divide(array, 1000).to_pylist() == [0, -1, None, -1, 1]
    assert floor_divide(array.slice(1, 3), 1000).to_pylist() == [-1, None, -1]
    assert floor_divide(array.slice(3), 2).to_pylist() == [-500, 999]
    assert floor_divide(pa.array([], pa.int64()), 2).to_pylist() == []


@pytest.mark.parametrize(
    ("kind", "stored", "microseconds"),
    [
        (pa.timestamp("ns"), [-1, 1999, None], [-1, 1, None]),
        (pa.timestamp("ns", "Asia/Tokyo"), [1000, None, 0], [1, None, 0]),
        (pa.timestamp("us", "Asia/Tokyo"), [7, None, -7], [7, None, -7]),
        (pa.timestamp("ms"), [1, None, -1], [1000, None, -1000]),
        (pa.date32(), [1, None, -1], [86_400_000_000, None, -86_400_000_000]),
    ],
    ids=str,
)
def test_times_of_every_unit_become_microseconds(
    kind: pa.DataType, stored: list[int | None], microseconds: list[int | None]
) -> None:
    found = times_to_microseconds(pa.array(stored, kind))
    assert found.type == pa.timestamp("us")
    assert found.view(pa.int64()).to_pylist() == microseconds


def test_decimals_become_the_nearest_doubles_in_slices_too() -> None:
    array = pa.array(["0.10", None, "-2.35", "9.99"]).cast(pa.decimal128(9, 2))
    assert decimals_to_float64(array).to_pylist() == [0.1, None, -2.35, 9.99]
    assert decimals_to_float64(array.slice(1, 2)).to_pylist() == [None, -2.35]
    assert decimals_to_float64(array.slice(3)).to_pylist() == [9.99]
    assert decimals_to_float64(pa.array([], pa.decimal128(9, 2))).to_pylist() == []


def test_json_has_each_name_once_and_finite_numbers() -> None:
    assert strict_json(b'{"a": [1, {"a": 2.5}], "b": null}') == {"a": [1, {"a": 2.5}], "b": None}
    for text, told in (
        (b'{"a": 1, "b": 2, "a": 3}', "the name 'a' occurs twice in one JSON object; remove one of the two"),
        (b"[NaN]", "NaN is not JSON; expected a finite number or null"),
        (b"-Infinity", "-Infinity is not JSON; expected a finite number or null"),
        (b"[" * 100_000, "the JSON contains too many objects or lists inside each other; write it with less nesting"),
    ):
        with pytest.raises(DataError) as caught:
            strict_json(text)
        assert str(caught.value) == told
