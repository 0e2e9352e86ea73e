"""Requests read by Python: what is refused in which words, tensors by column, and which columns native code reads."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from ctrbox.columns.raw_values import RawColumn
from ctrbox.columns.times import FIRST, LAST
from ctrbox.errors import CtrboxError
from ctrbox.serve.fields_of_requests import RowReader
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.request import RequestReader, count, described_for_native, fast_reader, shape

SCHEMA = pa.schema([("user", pa.int64()), ("ad", pa.int64()), ("title", pa.string()), ("tags", pa.list_(pa.int64()))])
KNOWN = [*SCHEMA.names, "unread"]


def reader(context: Any = ("user",), most: int = 5, **more: Any) -> RequestReader:
    return RequestReader(SCHEMA, KNOWN, context, most, **more)


def tensors(rows: int, **changed: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "user": np.array([7]),
        "ad": np.arange(rows),
        "title": np.array([b"t"] * rows, object),
        "tags": np.arange(2 * rows).reshape(rows, 2),
    }
    return {name: value for name, value in (made | changed).items() if value is not None}


def columns_of(request: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    return request.context().to_pydict(), request.candidates.to_pydict(), request.rows


@pytest.mark.parametrize("frames", [False, True])
def test_tensors_are_divided_into_context_and_candidates(frames: bool) -> None:
    mine = reader(frames=frames)
    each = {"ad": [0, 1], "title": ["t", "t"], "tags": [[0, 1], [2, 3]]}
    assert columns_of(mine.from_tensors(tensors(2))) == ({"user": [7]}, each, 2)
    narrow = tensors(2, user=np.array([[7]]), ad=np.array([[0], [1]]), unread=np.arange(9))
    assert columns_of(mine.from_tensors(narrow)) == ({"user": [7]}, each, 2)
    lists = mine.from_tensors(tensors(1, tags=np.array([[9]])))
    assert columns_of(lists) == ({"user": [7]}, {"ad": [0], "title": ["t"], "tags": [[9]]}, 1)
    assert mine.from_tensors(tensors(0)).rows == 0
    assert mine.from_tensors(tensors(5)).rows == 5


def test_without_a_context_of_its_own_what_has_one_row_is_the_context_of_several() -> None:
    mine = reader(None)
    assert columns_of(mine.from_tensors(tensors(2)))[0] == {"user": [7]}
    assert columns_of(mine.from_tensors(tensors(1)))[0] == {}
    both = mine.from_tensors(tensors(3, title=np.array([b"same"], object)))
    assert both.context().to_pydict() == {"user": [7], "title": ["same"]}
    assert both.candidates.schema.names == ["ad", "tags"]
    assert mine.native is None


SHAPED = "tensor {!r} has shape {}, expected {} in the first dimension, because "
ONCE = "it belongs to the context, which has one row"
EACH = "the other columns of the candidates have that many rows"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"user": np.array([7, 8])}, SHAPED.format("user", [2], 1) + ONCE),
        ({"title": np.array([b"t"] * 3, object)}, SHAPED.format("title", [3], 2) + EACH),
        ({"title": np.array(b"t", object)}, SHAPED.format("title", [], 2) + EACH),
        ({"user": np.array(7)}, SHAPED.format("user", [], 1) + ONCE),
        ({"usr": np.array([7])}, "the log has no column 'usr'; nearest: 'user'"),
        ({"user": None}, "the request lacks column 'user'"),
        ({"ad": np.arange(6)}, "the request has 6 candidates; this server scores at most 5 per request"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_in_words(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CtrboxError, match=f"^{re.escape(message)}"):
        reader().from_tensors(tensors(2, **changed))


def test_the_key_of_a_context_is_made_of_its_values() -> None:
    fields = [("a", pa.int8()), ("b", pa.bool_()), ("c", pa.float32()), ("d", pa.string()), ("e", pa.timestamp("us"))]
    mine = RequestReader(pa.schema([*fields, ("ad", pa.int64())]), [*"abcde", "ad"], list("abcde"), 5)
    given = {
        "a": np.array([-2], np.int8),
        "b": np.array([True]),
        "c": np.array([0.5], np.float32),
        "d": np.array(["é".encode()], object),
        "e": np.array([b"1970-01-01T00:00:01"], object),
        "ad": np.arange(2),
    }
    parts = [(-2).to_bytes(8, "little", signed=True), b"\1", np.float64(0.5).tobytes(), b"\2\0\0\0\xc3\xa9"]
    parts.append((1_000_000).to_bytes(8, "little"))
    assert mine.from_tensors(given).key == b"values " + b"".join(parts)
    lists = reader(("user", "tags"))
    assert lists.from_tensors(tensors(2, tags=np.array([[1, 2]]))).key.startswith(b"tensors ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[1]", "expected a JSON object with context and candidates, got [1]"),
        (b"7", "expected a JSON object with context and candidates, got 7"),
        (b"{}", "expected a JSON object with context and candidates, got an object with nothing"),
        (b'{"context":{}}', "expected a JSON object with context and candidates, got an object with 'context'"),
        (b'{"candidates":[],"score":5}', "score must be a string with an expression of the labels of the model, got 5"),
        (b"{", "the body is not JSON: "),
    ],
)
def test_what_is_no_request_is_refused_in_words(body: bytes, message: str) -> None:
    with pytest.raises(Refused) as told:
        reader(None).from_json(body)
    assert str(told.value).startswith(message)
    assert told.value.status == 400


def test_a_context_is_read_when_it_is_needed() -> None:
    mine = RequestReader(SCHEMA.remove(3), [*"abc", *SCHEMA.names[:3]], ["user"], 5)
    row = {"ad": 1, "title": "a"}
    fast = mine.from_json(orjson.dumps({"context": {"user": 3}, "candidates": [row]}))
    assert (fast.context().rows, fast.rows, fast.key) == (1, 1, b'{"user":3}')
    slow = mine.from_json(orjson.dumps({"context": {"user": None, "a": [1]}, "candidates": [row]}))
    assert mine.native is not None
    assert slow.rows == 1
    broken = mine.from_json(b'{"context": {"user": tru}, "candidates": [{"ad": 1, "title": "a"}]}')
    with pytest.raises(Refused, match=r"^the context is not JSON: "):
        broken.context()
    none = mine.from_json(orjson.dumps({"candidates": [row]}))
    assert none.key == b"{}"
    with pytest.raises(CtrboxError, match=r"^context lacks column 'user'"):
        none.context()


def test_readers_of_64_sets_of_context_columns_are_kept() -> None:
    names = [f"c{k}" for k in range(70)]
    mine = RequestReader(pa.schema([(name, pa.int64()) for name in names]), names, None, 5)
    for name in names:
        assert mine.readers({name: 1}) is not None
    assert len(mine._readers) == 64
    first, last = ({name: 1} for name in (names[0], names[-1]))
    assert mine.readers(first) is mine.readers(first)
    assert mine.readers(last) is not mine.readers(last)


@pytest.mark.parametrize(
    ("type", "unit", "expected"),
    [
        (pa.int8(), None, ("x", "i", -128, 127, False, 0)),
        (pa.uint32(), None, ("x", "i", 0, 2**32 - 1, False, 0)),
        (pa.uint64(), None, None),
        (pa.float32(), None, ("x", "f", 0, 0, True, 0)),
        (pa.float64(), None, ("x", "f", 0, 0, False, 0)),
        (pa.float16(), None, None),
        (pa.bool_(), None, ("x", "b", 0, 0, False, 0)),
        (pa.string(), None, ("x", "s", 0, 0, False, 0)),
        (pa.list_(pa.int64()), None, None),
        (pa.timestamp("us"), None, ("x", "t", 0, 0, False, 0)),
        (pa.timestamp("us"), "us", ("x", "t", FIRST, LAST, False, 1)),
        (pa.timestamp("us"), "s", ("x", "t", -62_135_596_800, 253_402_300_799, False, 1_000_000)),
        (pa.timestamp("ms"), None, None),
    ],
)
def test_a_column_is_described_to_the_native_reader_or_left_to_python(type: Any, unit: Any, expected: Any) -> None:
    column = RawColumn(pa.field("x", type), unit)
    assert described_for_native(column) == expected
    assert (fast_reader([column], [], 5) is None) is (expected is None)
    assert fast_reader([], [], 5) is None


def test_candidates_are_counted_before_they_are_read() -> None:
    for given, rows in (([1, 2], 2), ({"a": [1, 2], "b": [1]}, 2), ({"a": 5}, 0), ({}, 0), ("abc", 0), (None, 0)):
        assert count(given) == rows
    assert shape({str(k): k for k in range(9)}) == "an object with '0', '1', '2', '3', '4'"
    assert (shape({}), shape([1])) == ("an object with nothing", "[1]")


def rows_of(*names: str) -> RowReader:
    schema = pa.schema([(name, pa.int64()) for name in names])
    columns = [RawColumn(field) for field in schema]
    return RowReader(columns, schema, [*names, "unread"], {"user": "context"}, "candidates")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"a": 1, "b": 1}, 5], "candidates: row 1 must be an object of columns, got 5"),
        (
            [{"a": 1, "b": 1}, {"a": 1}],
            "candidates: row 0 has column 'b', but row 1 does not; every row needs the same columns",
        ),
        (
            [{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}],
            "candidates: row 1 has column 'c', but row 0 does not; every row needs the same columns",
        ),
        (
            [{"a": 1, "b": 1}, {"a": 1, "c": 1}],
            "candidates: row 0 has column 'b', but row 1 does not; every row needs the same columns",
        ),
        ([{"a": 1}], "candidates lack column 'b'"),
        ([{"a": 1, "b": 1, "user": 1}], "column 'user' belongs to the request's context, not to its candidates"),
        ([{"a": 1, "unred": 1}], "candidates: the log has no column 'unred'; nearest: 'unread'"),
        ({"a": [1], "b": 5}, "candidates: column 'b' must be a list, got 5"),
        ({"a": [1], "b": [1, 2]}, "candidates: column 'a' has 1 values, but column 'b' has 2"),
        (5, "candidates must be a list of objects, or an object of lists, got 5"),
    ],
)
def test_rows_that_differ_are_named(given: Any, message: str) -> None:
    with pytest.raises(CtrboxError, match=f"^{re.escape(message)}"):
        rows_of("a", "b").rows(given)


def test_rows_of_no_one_and_several_columns_are_read() -> None:
    assert rows_of("a", "b").rows([{"b": 2, "a": 1, "unread": 0}] * 2).to_pydict() == {"a": [1, 1], "b": [2, 2]}
    assert rows_of("a").rows([{"a": 1}, {"a": 2}]).to_pydict() == {"a": [1, 2]}
    assert rows_of("a").rows({"a": [3, 4]}).to_pydict() == {"a": [3, 4]}
    for given, rows in (([{}] * 3, 3), ([], 0), ({"unread": [1, 2]}, 2), ({}, 0)):
        found = rows_of().rows(given)
        assert (found.num_rows, found.num_columns) == (rows, 0)
    many = rows_of("a")
    many.known = frozenset(["a", *(f"c{k}" for k in range(70))])
    for k in range(70):
        many.rows([{"a": 1, f"c{k}": 0}])
    assert len(many.seen) == 64
