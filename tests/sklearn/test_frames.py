"""What a column of a frame is taken for, how its gaps are filled, and which frames, labels and weights are refused."""

from __future__ import annotations

import math
import sys
from datetime import date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox.sklearn.classifier_folder import frame_of, of_frame
from ctrbox.sklearn.frames import (
    LARGEST,
    Column,
    Frame,
    InputError,
    NotFittedYet,
    features_of,
    labels_of,
    not_fitted,
    stratified,
    weights_of,
)

TEXT, WHOLE, DOUBLE = pa.string(), pa.int64(), pa.float64()
MANY = [*range(51)] * 2  # 51 distinct numbers, each twice: keys and a number
LOST = "\0missing"


class Undecided:
    """Compares as pandas.NA does."""

    def __ne__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


def only(values: Any, **asked: Any) -> Column:
    return Frame.of(pa.table({"x": values}), **asked).columns[0]


def table_of(values: Any, **asked: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = Frame.of(pa.table({"x": values}), **asked).table.to_pydict()
    return found


# ---- what a column is


@pytest.mark.parametrize(
    ("values", "kind", "type_", "family"),
    [
        (pa.array(["a", None]), "keys", TEXT, "text"),
        (pa.array(["a"], pa.large_string()), "keys", TEXT, "text"),
        (pa.array(["a"], pa.string_view()), "keys", TEXT, "text"),
        (pa.array(["a"]).dictionary_encode(), "keys", TEXT, "text"),
        (pa.array([7]).dictionary_encode(), "keys", WHOLE, "number"),
        (pa.array([7], pa.uint64()).dictionary_encode(), "keys", TEXT, "number"),
        (pa.array([0.5]).dictionary_encode(), "keys", TEXT, "number"),
        (pa.array([True, False]), "keys", TEXT, "bool"),
        (pa.array([True, None]), "keys", TEXT, "bool"),
        (pa.nulls(2), "keys", TEXT, "none"),
        (pa.array([1, 2], pa.int8()), "keys", WHOLE, "number"),
        (pa.array([1, 2], pa.uint64()), "keys", TEXT, "number"),
        (pa.array(range(50)), "keys", WHOLE, "number"),
        (pa.array(range(51)), "number", WHOLE, "number"),
        (pa.array(MANY), "both", WHOLE, "number"),
        (pa.array([*MANY, 51]), "number", WHOLE, "number"),  # 52 distinct of 103 rows: more than half
        (pa.array(MANY, pa.uint64()), "number", WHOLE, "number"),
        (pa.array([0.5, 1.5]), "number", DOUBLE, "number"),
        (pa.array([0.5], pa.float16()), "number", DOUBLE, "number"),
        (pa.array([Decimal("0.5")]), "number", DOUBLE, "number"),
        (pa.array([datetime(2026, 1, 2)]), "time", pa.timestamp("us"), "time"),
        (pa.array([date(2026, 1, 2)]), "time", pa.timestamp("us"), "time"),
        (pa.array([[1], []]), "list", pa.list_(WHOLE), "list"),
        (pa.array([[1]], pa.large_list(pa.int32())), "list", pa.list_(WHOLE), "list"),
        (pa.array([[1, 2]], pa.list_(pa.int16(), 2)), "list", pa.list_(WHOLE), "list"),
        (pa.array([["a"]]), "list", pa.list_(TEXT), "list"),
        (pa.array([["a"]], pa.list_(pa.large_string())), "list", pa.list_(TEXT), "list"),
        (pa.array([[None]]), "list", pa.list_(TEXT), "list"),
    ],
)  # fmt: skip
def test_a_column_is_taken_for_what_its_type_and_values_say(
    values: pa.Array, kind: str, type_: pa.DataType, family: str
) -> None:
    found = only(values)
    assert (found.kind, found.type, found.family) == (kind, type_, family)


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (pa.array(range(99)), WHOLE),
        (pa.array(range(99), pa.uint64()), TEXT),
        (pa.array([0.5, 1.5]), TEXT),
        (pa.array([Decimal("0.5")]), TEXT),
        (pa.array(["a"]), TEXT),
    ],
)
def test_what_is_asked_for_as_categorical_is_keys(values: pa.Array, type_: pa.DataType) -> None:
    found = only(values, categorical=["x"])
    assert (found.kind, found.type) == ("keys", type_)


@pytest.mark.parametrize("values", [pa.array(["1", "2.5"]), pa.array([1, 2]), pa.array([True, False])])
def test_what_is_asked_for_as_numeric_is_a_number(values: pa.Array) -> None:
    found = only(values, numeric="x")
    assert (found.kind, found.type) == ("number", DOUBLE)


@pytest.mark.parametrize(
    "values", [pa.array([b"a"]), pa.array([[0.5]]), pa.array([[[1]]]), pa.array([{"a": 1}]), pa.array([1], pa.time64("us"))]
)  # fmt: skip
def test_a_type_that_is_no_feature_is_refused_by_name(values: pa.Array) -> None:
    with pytest.raises(InputError, match=r"column 'x' has type .*; expected text, numbers, bools, times, or lists"):
        only(values)


def test_a_number_knows_its_mean_its_gaps_and_whether_it_varies() -> None:
    found = only(pa.array([1.0, 2.0, None, math.nan, 6.0]))
    assert (found.mean, found.missing, found.constant) == (3.0, True, False)
    found = only(pa.array([2.5, 2.5]))
    assert (found.mean, found.missing, found.constant) == (2.5, False, True)
    found = only(pa.array([None, math.nan], DOUBLE))
    assert (found.mean, found.missing, found.constant) == (0.0, True, True)


@pytest.mark.parametrize(
    ("chosen", "kinds"),
    [
        (["a"], ["keys", "number"]),
        ("b", ["number", "keys"]),
        ([1], ["number", "keys"]),
        ([-1], ["number", "keys"]),
        ([-2], ["keys", "number"]),
        ([], ["number", "number"]),
        (None, ["number", "number"]),
    ],
)
def test_columns_are_asked_for_by_name_or_place(chosen: Any, kinds: list[str]) -> None:
    frame = Frame.of({"a": [0.5, 1.5], "b": [0.5, 1.5]}, categorical=chosen)
    assert [*frame.kinds.values()] == kinds


@pytest.mark.parametrize("wrong", [2, -3, True, "c", 0.5])
def test_a_column_that_is_asked_for_and_absent_is_named(wrong: Any) -> None:
    with pytest.raises(InputError, match=f"numeric= contains {wrong!r}, but X has no column of this name"):
        Frame.of({"a": [0.5, 1.5], "b": [0.5, 1.5]}, numeric=[wrong])


def test_a_column_is_either_categorical_or_numeric() -> None:
    with pytest.raises(InputError, match="column 'a' is both in categorical= and in numeric=; leave it in one"):
        Frame.of({"a": [0.5, 1.5]}, categorical=["a"], numeric=[0])


def test_names_of_columns_are_kept_unless_they_are_taken() -> None:
    def inside(*names: str) -> list[str]:
        return [c.name for c in Frame.of({n: [1, 2] for n in names}).columns]

    assert inside("a", "b") == ["a", "b"]
    assert inside("label", "weight", "group", "a") == ["label#", "weight#", "group#", "a"]
    assert inside("a", "b#") == ["x0", "x1"]
    assert inside("a", "") == ["x0", "x1"]
    assert [c.name for c in Frame.of(np.zeros((2, 2))).columns] == ["x0", "x1"]


# ---- gaps and values


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array(["a", None]), {"x": ["a", LOST]}),
        (pa.array([True, None]), {"x": ["true", LOST]}),
        (pa.array([True, False]), {"x": ["true", "false"]}),
        (pa.array([1, None]), {"x": [1, -(2**63)]}),
        (pa.array([2**64 - 1, None], pa.uint64()), {"x": ["18446744073709551615", LOST]}),
        (pa.nulls(2), {"x": [LOST, LOST]}),
        (pa.array([1.0, None, 4.0]), {"x": [1.0, 2.5, 4.0], "x#missing": [False, True, False]}),
        (pa.array([1.0, math.nan, 4.0]), {"x": [1.0, 2.5, 4.0], "x#missing": [False, True, False]}),
        (pa.array([1.0, 4.0]), {"x": [1.0, 4.0]}),
        (pa.array([Decimal("19.99")]), {"x": [19.99]}),
        (pa.array([datetime(2026, 1, 2, 15), None]), {"x#hour": [15, -1], "x#weekday": [4, -1]}),
        (pa.array([[1, None], None, []]), {"x": [[1, -(2**63)], [-(2**63)], []]}),
        (pa.array([["a", None], None]), {"x": [["a", LOST], [LOST]]}),
        (pa.array([[1, 2], None], pa.list_(pa.int16(), 2)), {"x": [[1, 2], [-(2**63)]]}),
        (pa.array([["a"], ["b"]]), {"x": [["a"], ["b"]]}),
        (pa.array(["a", None]).dictionary_encode(), {"x": ["a", LOST]}),
    ],
)  # fmt: skip
def test_gaps_are_filled_with_a_key_of_their_own_or_the_mean(values: pa.Array, expected: dict[str, list[Any]]) -> None:
    assert table_of(values) == expected


def test_a_missing_list_is_an_empty_one_for_a_classifier_that_an_earlier_version_fitted() -> None:
    fitted = Frame.of({"x": [["a"], None]}).without_rows()
    assert frame_of(of_frame(fitted)).columns == fitted.columns
    described = of_frame(fitted)
    for column in described["columns"]:
        del column["key_of_null"]
    rows = {"x": [None, [], ["b"]]}
    assert frame_of(described).read(rows).to_pydict() == {"x": [[], [], ["b"]]}
    assert fitted.read(rows).to_pydict() == {"x": [[LOST], [], ["b"]]}
    assert fitted.read({"x": pa.nulls(2)}).to_pydict() == {"x": [[LOST], [LOST]]}


def test_a_number_among_keys_has_a_gap_of_its_own_in_each_role() -> None:
    found = table_of(pa.array([*MANY, None, None]))
    assert found["x"][-3:] == [50, -(2**63), -(2**63)]
    assert found["x#number"][-3:] == [50.0, 25.0, 25.0]
    assert found["x#missing"][-3:] == [False, True, True]
    assert list(table_of(pa.array(MANY))) == ["x#number", "x"]


def test_floats_that_are_keys_keep_nan_as_missing() -> None:
    assert table_of(pa.array([0.5, math.nan, None]), categorical=["x"]) == {"x": ["0.5", LOST, LOST]}


@pytest.mark.parametrize("value", [math.inf, -math.inf, 2 * LARGEST, -2 * LARGEST])
def test_numbers_beyond_float32_are_refused_with_their_row(value: float) -> None:
    with pytest.raises(InputError, match=r"column 'x' is .* in row 1; replace it"):
        only(pa.array([0.0, value, math.inf]))
    assert only(pa.array([LARGEST, -LARGEST])).mean == 0


def test_text_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match=r"column 'x' \(string\) cannot be read as numbers"):
        only(pa.array(["1", "two"]), numeric=["x"])


# ---- other rows


def read(fitted: Any, later: Any, **asked: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = Frame.of(fitted, **asked).read(later).to_pydict()
    return found


def test_other_rows_are_read_by_name_where_both_have_names_else_by_place() -> None:
    assert read({"a": ["p"], "b": ["q"]}, {"c": ["0"], "b": ["1"], "a": ["2"]}) == {"a": ["2"], "b": ["1"]}
    assert read({"a": ["p"], "b": ["q"]}, np.array([["1", "2"]])) == {"a": ["1"], "b": ["2"]}
    assert read(np.array([["p", "q"]]), {"z": ["1"], "y": ["2"]}) == {"x0": ["1"], "x1": ["2"]}
    with pytest.raises(InputError, match="X has 1 features, but Classifier is expecting 2 features as input"):
        read({"a": ["p"], "b": ["q"]}, np.array([["1"]]))
    with pytest.raises(InputError, match="X has 3 features, but Classifier is expecting 2 features as input"):
        read(np.array([["p", "q"]]), {"x": ["1"], "y": ["2"], "z": ["3"]})
    with pytest.raises(InputError, match=r"X lacks column 'b', which was in the X given to fit\(\)"):
        read({"a": ["p"], "b": ["q"]}, {"a": ["1"], "c": ["2"]})


@pytest.mark.parametrize(
    ("fitted", "later"),
    [(["a"], [5]), ([5], ["a"]), ([True, False], [1]), ([1, 2], [True]), ([[1]], [1]), ([datetime(2026, 1, 2)], ["2026-01-02"])],
)  # fmt: skip
def test_a_column_of_another_family_than_in_fit_is_refused(fitted: Any, later: Any) -> None:
    with pytest.raises(InputError, match=r"column 'x' was .* in fit .* now; convert it to the type"):
        read({"x": fitted}, {"x": later})


def test_columns_of_nulls_fit_every_family_and_asked_numbers_may_come_as_text_first() -> None:
    assert read({"x": ["a"]}, {"x": pa.nulls(1)}) == {"x": [LOST]}
    assert read({"x": pa.nulls(1)}, {"x": [5]}) == {"x": ["5"]}
    assert read({"x": ["1", "2"]}, {"x": [5]}, numeric=["x"]) == {"x": [5.0]}
    with pytest.raises(InputError, match="convert it to the type"):
        read({"x": [1, 2]}, {"x": ["5"]}, numeric=["x"])


def test_a_value_that_does_not_fit_the_type_of_fit_is_refused() -> None:
    with pytest.raises(InputError, match="column 'x' was int64 in fit and is double now"):
        read({"x": [1, 2]}, {"x": [0.5]})


def test_features_of_a_frame_follow_what_its_columns_are() -> None:
    frame = Frame.of(
        {
            "text": ["a"] * 104,
            "both": [*MANY, None, None],
            "number": [0.5, 1.5] * 52,
            "gaps": [0.5, None] * 52,
            "level": [0.5] * 104,
            "time": [datetime(2026, 1, 2)] * 104,
        }
    )
    sparse, dense = features_of(frame)
    assert list(sparse) == [
        *("text", "both", "both#bucket", "both#missing", "number#bucket", "gaps#bucket", "gaps#missing"),
        *("level#bucket", "time#hour", "time#weekday"),
    ]
    assert list(dense) == ["both#number", "number"]  # what does not vary has no deviation to be divided by


# ---- what is no frame


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (SimpleNamespace(tocsr=1), "X is a sparse matrix; expected a dataframe of columns"),
        (SimpleNamespace(tocoo=1), "X is a sparse matrix; expected a dataframe of columns"),
        (np.zeros(3), r"Expected 2D array, got 1D array instead: X has shape \(3,\)"),
        (np.zeros((1, 1, 1)), "Expected 2D array, got 3D array"),
        (np.zeros((2, 2), complex), "Complex data not supported: X has type complex128"),
        (np.zeros((2, 2), "datetime64[s]"), r"^X has type datetime64\[s\]; expected numbers or strings"),
        (np.array([["a", 1], [2, object()]], object), "X has a column of mixed types"),
        (np.zeros((2, 0)), r"X has 0 feature\(s\)"),
        (np.zeros((0, 2)), "X has no rows"),
        ({"x": []}, "X has no rows"),
        ({"x": [1], "y": [1, 2]}, "X cannot be read as columns"),
        (pa.table([[1], [2]], names=["x", "x"]), "X has two columns 'x'; give each a name of its own"),
    ],
)
def test_what_is_no_frame_of_columns_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Frame.of(given)


def test_the_row_labels_of_pandas_are_no_feature() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": [3, 4]}, index=pandas.Index([7, 8], name="id"))
    assert Frame.of(frame).names == ["a", "b"]
    assert Frame.of(frame.reset_index()).names == ["id", "a", "b"]


def test_arrays_of_every_kind_are_columns_by_place() -> None:
    assert Frame.of(np.array([[1, 2], [3, 4]])).table.to_pydict() == {"x0": [1, 3], "x1": [2, 4]}
    assert Frame.of(np.array([["a", "b"]])).table.to_pydict() == {"x0": ["a"], "x1": ["b"]}
    assert Frame.of(np.array([["a", 1]], object)).table.to_pydict() == {"x0": ["a"], "x1": [1]}
    assert Frame.of(np.array([[True], [False]])).table.to_pydict() == {"x0": ["true", "false"]}


# ---- labels


@pytest.mark.parametrize(
    ("y", "classes", "codes"),
    [
        ([5, 3, 5], [3, 5], [1, 0, 1]),
        (["no", "yes", "no"], ["no", "yes"], [0, 1, 0]),
        ([True, False], [False, True], [1, 0]),
        ([0.5, 1.0], [0.5, 1.0], [0, 1]),
        (np.array(["b", "a"], object), ["a", "b"], [1, 0]),
    ],
)
def test_the_two_classes_are_numbered_in_ascending_order(y: Any, classes: list[Any], codes: list[int]) -> None:
    found, index = labels_of(y, len(y))
    assert found.tolist() == classes
    assert index.tolist() == codes
    assert index.dtype == np.int8


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "the target y is None"),
        (np.zeros((2, 2)), r"y should be a 1d array, got an array of shape \(2, 2\) instead"),
        (np.float64(0), r"y should be a 1d array, got an array of shape \(\) instead"),
        ([0, 1, 1], "X has 2 rows and y has 3; expected one label for each row"),
        ([1j, 0], "Complex data not supported"),
        ([0.0, math.nan], "y is nan in row 1"),
        ([math.inf, 1.0], "y is inf in row 0"),
        (np.array(["a", None], object), "y has rows without a label"),
        (np.array(["a", math.nan], object), "y has rows without a label"),
        (np.array([True, Undecided()], object), "y has rows without a label"),
        (np.array(["a", 1], object), "y contains labels of different types"),
        ([1, 1], r"y has one class \(1\), expected two classes$"),
        ([1.0, 1.0], r"y has one class \(1.0\), expected two classes$"),
        ([0.5, 0.5], r"Unknown label type: y is continuous, one class \(0.5, …\)"),
    ],
)
def test_labels_that_are_not_two_classes_are_refused(y: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        labels_of(y, 2)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1, 2, 3], r"y has 3 classes \(1, 2, 3\), expected two classes; Only binary classification is supported"),
        ([1, 2, 3, 4, 5], r"y has 5 classes \(1, 2, 3, 4, 5\), expected"),
        ([1, 2, 3, 4, 5, 6], r"y has 6 classes \(1, 2, 3, 4, 5, …\), expected"),
        ([0.5, 1.0, 1.5], r"y is continuous, 3 classes \(0.5, 1.0, 1.5, …\); make it y > threshold"),
        ([1.0, 2.0, 3.0], r"y has 3 classes \(1.0, 2.0, 3.0\), expected two classes; Only binary"),
    ],
)
def test_more_than_two_classes_are_counted_and_the_first_five_shown(y: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        labels_of(y, len(y))


def test_labels_as_one_column_are_taken_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="A column-vector y was passed"):
        classes, index = labels_of(np.array([[0], [1]]), 2)
    assert (classes.tolist(), index.tolist()) == ([0, 1], [0, 1])


# ---- weights and rows held out


def test_weights_are_one_finite_number_for_each_row() -> None:
    assert weights_of(None, 2) is None
    assert weights_of([0, 2.5], 2).tolist() == [0.0, 2.5]  # type: ignore[union-attr]
    assert weights_of(3, 2).tolist() == [3.0, 3.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (["a", "b"], "sample_weight must be numbers"),
        ([1.0], r"sample_weight has shape \(1,\); expected \(2,\)"),
        ([[1.0, 1.0]], r"sample_weight has shape \(1, 2\)"),
        ([1.0, -0.5], "finite and 0 or more, and the weight of at least one row must not be zero"),
        ([1.0, math.inf], "finite and 0 or more"),
        ([math.nan, 1.0], "finite and 0 or more"),
        ([0.0, 0.0], "the weight of at least one row must not be zero"),
    ],
)
def test_weights_that_are_no_weights_are_refused(weight: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        weights_of(weight, 2)


@pytest.mark.parametrize(
    ("clicks", "others", "share", "held"),
    [(10, 20, 0.1, (1, 2)), (10, 20, 0.5, (5, 10)), (1, 3, 0.9, (0, 2)), (4, 4, 0.0, (0, 0)), (6, 1, 0.25, (2, 0))],
)
def test_a_share_of_each_class_is_held_out_but_never_all_of_one(
    clicks: int, others: int, share: float, held: tuple[int, int]
) -> None:
    clicked = np.repeat([1, 0], [clicks, others])
    order, count = stratified(clicked, share, 3)
    assert sorted(order.tolist()) == [*range(clicks + others)]
    assert count == sum(held)
    last = clicked[order[len(order) - count :]]
    assert (int(last.sum()), int((1 - last).sum())) == held


def test_without_scikit_learn_the_error_before_fit_is_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sklearn.exceptions", raising=False)
    assert type(not_fitted()) is NotFittedYet
    assert str(not_fitted()) == "This Classifier instance is not fitted yet; call fit(X, y) first"
