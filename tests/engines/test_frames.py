"""Columns of Arrow as a program loads them: every type, sliced, with nulls, in order and by an index that leaves rows out."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox import _native
from ctrbox.engines.cpu.frames_and_arrow import column_of

native: Any = _native
WHOLE = [7, 0, 120, 3, 3, 99, 1, 2, 64, 5]
TEXTS = ["a", "", "ü", "long text " * 9, "b", "c", "a", "\0", "d", "e"]
TIMES = [datetime.fromisoformat("2026-01-01") + timedelta(hours=25 * n) for n in range(10)]
SIMPLE: dict[str, tuple[pa.DataType, list[Any], str]] = {
    **{str(t): (t, WHOLE, "i") for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(t): (t, WHOLE, "i") for t in (pa.uint8(), pa.uint16(), pa.uint32())},
    **{str(t): (t, [n / 4 for n in WHOLE], "f") for t in (pa.float32(), pa.float64())},
    **{str(t): (t, TEXTS, "s") for t in (pa.string(), pa.large_string())},
    **{str(t): (t, TEXTS, "s") for t in (pa.dictionary(i, pa.string()) for i in (pa.int8(), pa.int16(), pa.int32()))},
    "wide dictionary": (pa.dictionary(pa.int64(), pa.large_string()), TEXTS, "s"),
    "bool": (pa.bool_(), [n % 3 == 0 for n in WHOLE], "b"),
    "time": (pa.timestamp("us"), TIMES, "t"),
}
ORDERS = {
    "in order": None,
    "by an index": [9, 0, 0, 5, 3, 8, 1],
    "with rows that are missing": [-1, 9, 0, -1, 5, 3, -1],
}


def loaded(column: pa.Array, kind: str, nullable: bool, index: list[int] | None, base: int = 0) -> list[Any]:
    """Load a column in chunks of three rows; return what the program holds."""
    program = native.Program(3)
    program.emit(0, program.load(0, 0, kind, nullable, "column x"))
    program.finish()
    frame = native.Frame.from_arrow(pa.record_batch({"x": column}))
    rows = (len(column) if index is None else len(index)) - base
    places = None if index is None else np.array(index, np.int32)
    made, _ = program.run_frame([(rows, [(frame, places, base)])], [kind], [nullable], [frame])
    again = native.Program(4)
    again.emit(0, again.load(0, 0, kind, nullable, "column x"))
    again.finish()
    kept, _ = again.run_frame([(rows, [(made, None, 0)])], [kind], [nullable], [made])
    first, second = column_of(made, 0), column_of(kept, 0)
    assert first.equals(second)
    assert column_of(made.compacted(), 0).equals(first)
    return first.to_pylist()


def expected(values: list[Any], index: list[int] | None, base: int = 0) -> list[Any]:
    places = list(range(len(values))) if index is None else index
    return [None if at < 0 else values[at] for at in places[base:]]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SIMPLE)
def test_a_column_is_loaded_as_it_is(name: str, order: str) -> None:
    kind_of, values, kind = SIMPLE[name]
    index = ORDERS[order]
    with_nulls = [None if n in (0, 4, 9) else v for n, v in enumerate(values)]
    for given in (values, with_nulls):
        nullable = given is with_nulls or order == "with rows that are missing"
        column = pa.array(given, kind_of)
        for base in (0, 1, 3):
            assert loaded(column, kind, nullable, index, base) == expected(given, index, base)
        longer = pa.concat_arrays([column.slice(4), column, column.slice(0, 3)])
        assert loaded(longer.slice(6, 10), kind, nullable, index) == expected(given, index)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["int8", "int64", "uint32", "float", "double", "string", "large_string", "bool"])
@pytest.mark.parametrize("lists", ["list", "large list", "fixed list"])
def test_a_list_is_loaded_without_its_nulls(name: str, lists: str, order: str) -> None:
    kind_of, values, kind = SIMPLE[name]
    index = ORDERS[order]
    if lists == "fixed list":
        made: list[Any] = [[values[n], values[(n + 1) % 10]] for n in range(10)]
        column = pa.array(made, pa.list_(kind_of, 2))
    else:
        made = [values[n : n + n % 4] for n in range(10)]
        made[2] = [None, *values[:2], None]
        column = pa.array(made, pa.list_(kind_of) if lists == "list" else pa.large_list(kind_of))
        made[2] = values[:2]
    nullable = order == "with rows that are missing"
    assert loaded(column, f"*{kind}", nullable, index) == expected(made, index)
    longer = pa.concat_arrays([column.slice(4), column, column.slice(0, 3)])
    assert loaded(longer.slice(6, 10), f"*{kind}", nullable, index) == expected(made, index)
    absent = [None if n == 3 else row for n, row in enumerate(made)]
    column = pa.array(absent, column.type)
    assert loaded(column, f"*{kind}", True, index) == expected(absent, index)


@pytest.mark.parametrize("name", ["int8", "int64", "double", "string", "bool"])
def test_elements_of_a_list_may_begin_within_their_array(name: str) -> None:
    kind_of, values, kind = SIMPLE[name]
    elements = pa.array(values, kind_of).slice(3)
    column = pa.ListArray.from_arrays(pa.array([0, 2, 2, 7], pa.int32()), elements)
    assert loaded(column, f"*{kind}", False, None) == [values[3:5], [], values[5:10]]
    assert loaded(column.slice(1), f"*{kind}", False, None) == [[], values[5:10]]


def test_a_kept_column_with_nulls_is_no_column_without() -> None:
    making = native.Program(3)
    making.emit(0, making.load(0, 0, "i", True, "column x"))
    making.finish()
    frame = native.Frame.from_arrow(pa.record_batch({"x": pa.array([1, 2, 3, 4, None, 6])}))
    made, _ = making.run_frame([(6, [(frame, None, 0)])], ["i"], [True], [])
    again = native.Program(3)
    again.emit(0, again.load(0, 0, "i", False, "column x"))
    again.finish()
    for base, index, place in ((0, None, 4), (3, None, 1), (0, [0, 4, 5], 1)):
        places = None if index is None else np.array(index, np.int32)
        rows = 6 - base if index is None else len(index)
        with pytest.raises(native.RowError) as told:
            again.run_frame([(rows, [(made, places, base)])], ["i"], [False], [])
        assert told.value.args[1:] == (0, place)
    kept, _ = again.run_frame([(4, [(made, np.array([3, 0, 5, 1], np.int32), 0)])], ["i"], [False], [])
    assert column_of(kept, 0).to_pylist() == [4, 1, 6, 2]


@pytest.mark.parametrize("order", ["in order", "by an index"])
def test_the_first_null_is_named_where_none_may_be(order: str) -> None:
    index = ORDERS[order]
    for name, (kind_of, values, kind) in SIMPLE.items():
        given = [None if n in (5, 8) else v for n, v in enumerate(values)]
        with pytest.raises(native.RowError) as told:
            loaded(pa.array(given, kind_of), kind, False, index)
        assert told.value.args[1:] == (0, 5 if index is None else 3), name


def test_a_null_inside_a_fixed_list_and_an_index_outside_a_dictionary_are_errors() -> None:
    column = pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), 2))
    with pytest.raises(native.RowError, match="a null inside a list of fixed size"):
        loaded(column, "*i", False, None)
    for wrong in (2, -1):
        indices = pa.array([0, 1, wrong], pa.int32())
        column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
        with pytest.raises(native.RowError, match="a dictionary index outside its dictionary"):
            loaded(column, "s", False, None)
    null_inside = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(["a", None]))
    assert loaded(null_inside, "s", True, None) == ["a", None, "a"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.uint64()),
        pa.array([1], pa.timestamp("ms")),
        pa.array([1], pa.date32()),
        pa.array([None], pa.null()),
        pa.array([[[1]]]),
        pa.array([{"a": 1}]),
        pa.array([1]).dictionary_encode(),
        pa.array([1.5], pa.float16()),
    ],
    ids=str,
)
def test_a_type_that_the_engine_does_not_read_is_named(column: pa.Array) -> None:
    with pytest.raises(ValueError, match=r"column 'x' has Arrow format .*, which the engine does not read"):
        native.Frame.from_arrow(pa.record_batch({"x": column}))
    with pytest.raises(ValueError, match="expected a record batch"):
        native.Frame.from_arrow(pa.array([1]))
