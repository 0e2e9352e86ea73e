"""What a field of a request or of a stream may be, value by value: the table of docs/serving/requests.md."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.raw_values import RawColumn
from ctrbox.datasets.write_adlog_events import encoded
from ctrbox.engines.cpu.frames_and_arrow import column_of
from ctrbox.errors import CtrboxError, DataError
from ctrbox.loop.chunk_decoder import pieces
from ctrbox.loop.decode_events import Layout
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.request import RequestReader
from ctrbox.serve.tensors import from_json, read_infer

TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "int8": pa.int8(),
    "float": pa.float64(),
    "float32": pa.float32(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "time": pa.timestamp("us"),
    "ints": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float64()),
    "pair": pa.list_(pa.float32(), 2),
    "texts": pa.list_(pa.string()),
}
REFUSED: Any = object()
TENTH = float(np.float32(0.1))

# A field's type, the JSON that comes, and what it is read as.
TABLE: list[tuple[str, str, Any]] = [
    ("int", "5", 5),
    ("int", "-9223372036854775808", -(2**63)),
    ("int", "9223372036854775807", 2**63 - 1),
    ("int", "9007199254740993", 2**53 + 1),
    ("int", "9223372036854775808", REFUSED),
    ("int", "18446744073709551616", REFUSED),
    ("int", "1.0", REFUSED),
    ("int", "1e2", REFUSED),
    ("int", "true", REFUSED),
    ("int", '"5"', REFUSED),
    ("int", '""', REFUSED),
    ("int", "[5]", REFUSED),
    ("int", '{"a": 5}', REFUSED),
    ("int", "NaN", REFUSED),
    ("int", "01", REFUSED),
    ("int", "null", None),
    ("int8", "127", 127),
    ("int8", "128", REFUSED),
    ("int8", "-129", REFUSED),
    ("float", "1.5", 1.5),
    ("float", "1", 1.0),
    ("float", "0.1", 0.1),
    ("float", "9007199254740993", 2.0**53),
    ("float", "18446744073709551617", 2.0**64),
    ("float", "1e-400", 0.0),
    ("float", "1e400", REFUSED),
    ("float", "-1e400", REFUSED),
    ("float", "NaN", REFUSED),
    ("float", "Infinity", REFUSED),
    ("float", "-Infinity", REFUSED),
    ("float", "true", REFUSED),
    ("float", '"1.5"', REFUSED),
    ("float", "[1.5]", REFUSED),
    ("float", "null", None),
    ("float32", "0.1", TENTH),
    ("float32", "16777217", 16777216.0),
    ("float32", "1e300", REFUSED),
    ("str", '"text"', "text"),
    ("str", '""', ""),
    ("str", '"\\u00e9\\ud83d\\ude00"', "é😀"),
    ("str", '"a\\u0000b"', "a\0b"),
    ("str", '"\\ud800"', REFUSED),
    ("str", "1", REFUSED),
    ("str", "true", REFUSED),
    ("str", '["a"]', REFUSED),
    ("str", '{"a": "b"}', REFUSED),
    ("str", "null", None),
    ("bool", "true", True),
    ("bool", "false", False),
    ("bool", "1", REFUSED),
    ("bool", "0", REFUSED),
    ("bool", '"true"', REFUSED),
    ("bool", "null", None),
    ("time", '"1970-01-01T00:00:01"', 1_000_000),
    ("time", '"1970-01-01T00:00:00.0000019"', 1),
    ("time", "1574953200", REFUSED),
    ("time", '"1574953200"', REFUSED),
    ("time", "null", None),
    ("ints", "[1, 2]", [1, 2]),
    ("ints", "[]", []),
    ("ints", "null", None),
    ("ints", "5", REFUSED),
    ("ints", '"5"', REFUSED),
    ("ints", "[1, null]", REFUSED),
    ("ints", "[1.0]", REFUSED),
    ("ints", "[true]", REFUSED),
    ("ints", '["1"]', REFUSED),
    ("ints", "[[1]]", REFUSED),
    ("ints", "[9223372036854775808]", REFUSED),
    ("floats", "[1, 0.1]", [1.0, 0.1]),
    ("floats", "[9007199254740993]", [2.0**53]),
    ("floats", "[NaN]", REFUSED),
    ("floats", "[1e400]", REFUSED),
    ("pair", "[0.1, 2]", [TENTH, 2.0]),
    ("pair", "[1]", REFUSED),
    ("pair", "[]", REFUSED),
    ("pair", "[1, 2, 3]", REFUSED),
    ("pair", "[1, 1e300]", REFUSED),
    ("pair", "null", None),
    ("texts", '["a", ""]', ["a", ""]),
    ("texts", "[]", []),
    ("texts", "[1]", REFUSED),
    ("texts", '"a"', REFUSED),
]


def plain(array: Any) -> Any:
    """The first value, of a time its microseconds."""
    value = array[0]
    return value.value if isinstance(value, pa.TimestampScalar) else value.as_py()


def by_request(kind: str, text: str) -> Any:
    """Through Python's values: any column may stand in either part."""
    reader = RequestReader(pa.schema([("x", TYPES[kind])]), ["x"], None, 10)
    return plain(reader.from_json(f'{{"candidates": [{{"x": {text}}}]}}'.encode()).candidates["x"])


def by_columns(kind: str, text: str) -> Any:
    reader = RequestReader(pa.schema([("x", TYPES[kind])]), ["x"], None, 10)
    return plain(reader.from_json(f'{{"candidates": {{"x": [{text}]}}}}'.encode()).candidates["x"])


def by_context(kind: str, text: str) -> Any:
    reader = RequestReader(pa.schema([("x", TYPES[kind]), ("y", pa.int64())]), ["x", "y"], ["x"], 10)
    found = reader.from_json(f'{{"context": {{"x": {text}}}, "candidates": [{{"y": 1}}]}}'.encode()).context()
    return plain(found["x"] if isinstance(found, pa.RecordBatch) else column_of(found, 0))


def by_fast_reader(kind: str, text: str) -> Any:
    """Through the native reader, which leaves what it does not take to the other."""
    reader = RequestReader(pa.schema([("x", TYPES[kind])]), ["x"], [], 10)
    found = reader.from_json(f'{{"candidates": [{{"x": {text}}}]}}'.encode()).candidates
    return plain(found["x"] if isinstance(found, pa.RecordBatch) else column_of(found, 0))


def by_stream(kind: str, text: str) -> Any:
    log = pa.schema([("id", pa.int64()), ("when", pa.timestamp("us")), ("x", TYPES[kind])])
    layout = Layout.of(pa.schema([log.field("x")]), log, id="id", time="when")
    line = f'{{"event": "impression", "id": 1, "when": "2026-01-01", "x": {text}}}'
    (piece,) = pieces("c", line.encode(), layout)
    if piece.bad or piece.refused:
        raise DataError(piece.refused or piece.bad[0][1])
    assert piece.events is not None
    return plain(piece.events.rows["x"])


def by_dict(kind: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        raise DataError("'x' is not JSON, so no dict has it") from None
    log = pa.table({"x": pa.nulls(1, TYPES[kind]), "clicked": [1], "id": [1]})
    features = cb.FeatureSet(label=col("clicked"), sparse={"id": col("id").key()})
    return plain(cb.compile(cb.View(log, key="id"), features, device="cpu").table_of_dicts([{"x": value}])["x"])


WAYS = {
    "request": by_request,
    "columns": by_columns,
    "context": by_context,
    "fast": by_fast_reader,
    "stream": by_stream,
    "dict": by_dict,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "text", "expected"), TABLE, ids=[f"{k}-{t}" for k, t, _ in TABLE])
def test_a_value_is_read_exactly_or_refused(way: str, kind: str, text: str, expected: Any) -> None:
    if expected is REFUSED:
        with pytest.raises(CtrboxError) as met:
            WAYS[way](kind, text)
        # What is not JSON at all is named by its place, what is JSON by the field.
        assert "'x'" in str(met.value) or "JSON" in str(met.value)
        return
    found = WAYS[way](kind, text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"candidates": [{"x": 1, "x": 2}]}', "the name 'x' occurs twice"),
        ('{"candidates": [{"x": 1}], "candidates": [{"x": 2}]}', "the name 'candidates' occurs twice"),
        ('{"context": {"y": 1, "y": 1}, "candidates": [{"x": 1}]}', "the name 'y' occurs twice"),
        ('{"candidates": [{"x": 1}, {"x": 1, "x": 1}]}', "the name 'x' occurs twice"),
        ('{"context": {"y": 1}, "candidates": [{"\\u0078": 1, "x": 2}]}', "the name 'x' occurs twice"),
        ('{"context": {"y": 1}, "candidates": [{"X": 1}]}', "no column 'X'; nearest: 'x'"),
        ('{"context": {"y": 1}, "candidates": [{}]}', "candidates lack column 'x'"),
        ('{"context": {}, "candidates": [{"x": 1}]}', "context lacks column 'y'"),
        ('{"context": {"y": 1}, "candidates": [{"x": 1, "other": 1}]}', "no column 'other'"),
        ('{"context": {"y": 1}, "candidates": [{"x": 1}, {}]}', "row 0 has column 'x', but row 1 does not"),
        (
            '{"context": {"y": 1}, "candidates": {"x": [1], "unread": [1, 2]}}',
            "has 1 values, but column 'unread' has 2",
        ),
        ('{"context": {"y": 1}, "candidates": [{"x": 1}], "more": 1}', "unknown member 'more'"),
        ('{"contxt": {"y": 1}, "candidates": [{"x": 1}]}', "unknown member 'contxt'; nearest: 'context'"),
        ('{"context": {"y": 1}, "candidate": [{"x": 1}]}', "unknown member 'candidate'; nearest: 'candidates'"),
        ('{"context": {"y": 1}}', "expected a JSON object with context and candidates"),
    ],
)
@pytest.mark.parametrize("context", [["y"], None])
def test_names_that_are_missing_unknown_or_there_twice_are_refused(body: str, why: str, context: Any) -> None:
    reader = RequestReader(pa.schema([("x", pa.int64()), ("y", pa.int64())]), ["x", "y", "unread"], context, 10)
    if context is None and "context lacks" in why:
        why = "candidates lack column 'y'"
    with pytest.raises(CtrboxError, match=re.escape(why)):
        reader.from_json(body.encode()).context()


def test_names_twice_are_found_in_objects_that_are_nested_deeply_and_beside_quotes() -> None:
    reader = RequestReader(pa.schema([("x", pa.string())]), ["x", "unread"], None, 10)
    deep = "[" * 300 + "]" * 300
    body = f'{{"candidates": [{{"x": "a", "unread": {deep}}}]}}'
    assert reader.from_json(body.encode()).candidates["x"].to_pylist() == ["a"]
    for text in ('"\\""', '"\\u0022"', '"\\\\"', '"\\\\\\""'):
        with pytest.raises(DataError, match="'x' occurs twice"):
            reader.from_json(f'{{"candidates": [{{"x": {text}, "x": {text}}}]}}'.encode())
        assert reader.from_json(f'{{"candidates": [{{"x": {text}}}]}}'.encode()).candidates["x"][
            0
        ].as_py() == json.loads(text)


def test_a_colon_in_a_text_is_not_a_name() -> None:
    reader = RequestReader(pa.schema([("x", pa.string())]), ["x"], None, 10)
    texts = ["a:b", '":"', '\\":', 'quo"te: {"x": 1}', "\\", ""]
    body = orjson.dumps({"candidates": [{"x": t} for t in texts]})
    assert reader.from_json(body).candidates["x"].to_pylist() == texts


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"event": "click", "id": 1, "id": 2, "when": "2026-01-01"}', "twice"),
        ('{"event": "click", "id": 1.0, "when": "2026-01-01"}', "column 'id' is a fraction (1.0), expected int"),
        ('{"event": "click", "id": "1", "when": "2026-01-01"}', "column 'id' is a string ('1'), expected int"),
        (
            '{"event": "impression", "id": 1, "when": "2026-01-01", "x": "5"}',
            "column 'x' is a string ('5'), expected int",
        ),
    ],
)
def test_a_line_of_a_stream_is_refused_as_a_request_is(line: str, why: str) -> None:
    log = pa.schema([("id", pa.int64()), ("when", pa.timestamp("us")), ("x", pa.int64())])
    (piece,) = pieces("c", line.encode(), Layout.of(pa.schema([log.field("x")]), log, id="id", time="when"))
    assert why in piece.bad[0][1]


# ---- tensors: a column's type, the tensor's type and values, what they are read as
TENSORS: list[tuple[str, Any, Any]] = [
    ("int", np.array([5], np.int8), 5),
    ("int", np.array([2**63 - 1], np.uint64), 2**63 - 1),
    ("int", np.array([2**63], np.uint64), REFUSED),
    ("int", np.array([5.0], np.float64), REFUSED),
    ("int", np.array([True]), REFUSED),
    ("int", np.array([b"5"], object), REFUSED),
    ("int", np.array([[5, 6]]), REFUSED),
    ("int8", np.array([128], np.int64), REFUSED),
    ("float", np.array([0.1], np.float32), TENTH),
    ("float", np.array([1.5], np.float16), 1.5),
    ("float", np.array([2**53 + 1], np.int64), 2.0**53),
    ("float", np.array([np.nan]), REFUSED),
    ("float", np.array([np.inf], np.float32), REFUSED),
    ("float32", np.array([0.1], np.float64), TENTH),
    ("float32", np.array([1e300], np.float64), REFUSED),
    ("str", np.array(["é".encode()], object), "é"),
    ("str", np.array([b"\xff"], object), REFUSED),
    ("str", np.array([5]), REFUSED),
    ("bool", np.array([True]), True),
    ("bool", np.array([1]), REFUSED),
    ("time", np.array([b"1970-01-01T00:00:01"], object), 1_000_000),
    ("time", np.array([1]), REFUSED),
    ("time", np.array([1.0]), REFUSED),
    ("ints", np.array([[1, 2]]), [1, 2]),
    ("ints", np.zeros((1, 0), np.int64), []),
    ("ints", np.array([1]), REFUSED),
    ("floats", np.array([[0.1]], np.float32), [TENTH]),
    ("floats", np.array([[np.nan]]), REFUSED),
    ("pair", np.array([[1.0, 2.0]]), [1.0, 2.0]),
    ("pair", np.array([[1.0, 2.0, 3.0]]), REFUSED),
    ("texts", np.array([[b"a", b""]], object), ["a", ""]),
    ("texts", np.array([[b"\xff"]], object), REFUSED),
]


@pytest.mark.parametrize(("kind", "tensor", "expected"), TENSORS)
def test_a_tensor_is_read_exactly_or_refused(kind: str, tensor: np.ndarray, expected: Any) -> None:
    column = RawColumn(pa.field("x", TYPES[kind]))
    if expected is REFUSED:
        with pytest.raises(DataError, match="tensor 'x'"):
            column.from_tensor(tensor)
        return
    found = column.from_tensor(tensor)
    assert found.type == TYPES[kind]
    assert plain(found) == expected


@pytest.mark.parametrize(
    ("entry", "payload", "why"),
    [
        ({"datatype": "INT64", "shape": [2]}, b"12345678", "8 bytes, expected 16"),
        ({"datatype": "BOOL", "shape": [2]}, b"\1\2", "byte 1 of BOOL is 2; expected 0 or 1"),
        ({"datatype": "BYTES", "shape": [1]}, b"\4\0\0\0abc", "declares 4 bytes, but only 3 are left"),
        ({"datatype": "BYTES", "shape": [1]}, b"\1\0\0\0abc", "2 bytes follow its last element"),
        ({"datatype": "INT64", "shape": [1], "data": [5]}, b"12345678", "both data and binary_data_size"),
        ({"datatype": "INT64", "shape": [1, 1, 1]}, b"12345678", "expected one dimension, or two"),
        ({"datatype": "INT64", "shape": [-1]}, b"12345678", "expected whole numbers"),
        ({"datatype": "INT64", "shape": [1.0]}, b"12345678", "expected whole numbers"),
    ],
)
def test_sizes_and_shapes_that_disagree_are_refused(entry: dict[str, Any], payload: bytes, why: str) -> None:
    described = {"name": "x", "parameters": {"binary_data_size": len(payload)}, **entry}
    head = json.dumps({"inputs": [described]}).encode()
    with pytest.raises(Refused, match=why):
        read_infer(head + payload, str(len(head)))


OTHER_DATA: list[tuple[str, list[Any]]] = [("INT64", [v]) for v in (1.0, True, "1", None, 2**63)]
OTHER_DATA += [("INT8", [128]), ("UINT8", [-1]), ("UINT64", [2**64]), ("BOOL", [1]), ("BYTES", [1])]
OTHER_DATA += [("FP16", [1e10]), ("FP16", [70_000]), ("FP32", [1e300])]
OTHER_DATA += [("FP32", ["1"]), ("FP32", [True]), ("FP64", [None]), ("INT64", []), ("INT64", [1, 2])]


@pytest.mark.parametrize(("datatype", "data"), OTHER_DATA)
def test_json_data_of_a_tensor_has_its_type(datatype: str, data: list[Any]) -> None:
    with pytest.raises(Refused, match="input 'x'"):
        from_json("x", datatype, [1], data)


def test_grpc_contents_are_of_the_type_that_the_tensor_says() -> None:
    from tritonclient.grpc import service_pb2

    from ctrbox.serve.grpc_server import tensors_of

    message = service_pb2.ModelInferRequest()
    entry = message.inputs.add(name="x", datatype="INT64", shape=[1])
    entry.contents.int64_contents.append(5)
    assert tensors_of(message)["x"].tolist() == [5]
    entry.contents.fp32_contents.append(7.0)
    with pytest.raises(Refused, match="is INT64 and has fp32_contents; expected only int64_contents"):
        tensors_of(message)
    message.raw_input_contents.append(b"12345678")
    with pytest.raises(Refused, match="both contents and raw contents"):
        tensors_of(message)


def test_dicts_may_hold_numpy_values_and_every_row_has_the_same_names() -> None:
    log = pa.table({"id": [1], "x": [1.0], "clicked": [0]})
    features = cb.FeatureSet(label=col("clicked"), sparse={"id": col("id").key()}, dense={"x": col("x")})
    plan = cb.compile(cb.View(log, key="id"), features, device="cpu")
    rows = [{"id": np.int64(3), "x": np.float32(0.5)}, {"id": 4, "x": 2}]
    assert plan.run(rows).dense.reshape(-1).tolist() == [0.5, 2.0]
    assert plan.run(rows[1]).rows == 1
    with pytest.raises(DataError, match="row 0 has column 'x', but row 1 does not; give every row the same columns"):
        plan.run([rows[0], {"id": 4}])
    for value in (True, "5", 5.0, math.nan, 2**63):
        with pytest.raises(DataError, match="row 1: column 'id' is"):
            plan.run([rows[0], {"id": value, "x": 1.0}])


PAGE = (Path(__file__).parents[2] / "docs" / "serving" / "requests.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## What a request field may be")[2].partition("\n## ")[0]
SHOWN = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("value", [1e300, -1e39])
def test_a_float64_beyond_the_float32_of_the_log_is_refused_in_rows_and_chunks(value: float) -> None:
    log = pa.schema([("id", pa.int64()), ("when", pa.timestamp("us")), ("x", pa.float32())])
    rows = pa.table({"id": [1], "when": [0], "x": [1.0], "clicked": [1]}).cast(
        log.append(pa.field("clicked", pa.int64()))
    )
    features = cb.FeatureSet(label=col("clicked"), sparse={"id": col("id").key()}, dense={"x": col("x")})
    plan = cb.compile(cb.View(rows, key="id"), features, device="cpu")
    with pytest.raises(DataError, match="column 'x' of the request: a value is outside the range of float"):
        plan.run(pa.table({"id": [1], "x": [value]}))
    layout = Layout.of(pa.schema([log.field("x")]), log, id="id", time="when")
    chunk = pa.table({"event": ["impression"], "id": [1], "when": ["2026-01-01"], "x": [value]})
    (piece,) = pieces("c", encoded(chunk, "parquet"), layout)
    assert "column 'x' is double, expected float: a value is outside the range of float" in piece.refused


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "taken", "refused"), SHOWN, ids=[row[0] for row in SHOWN])
def test_the_page_is_right_about_every_sample(way: str, kind: str, taken: str, refused: str) -> None:
    assert [row[0] for row in SHOWN] == ["int", "float", "str", "bool", "time", "list"]
    name = "ints" if kind == "list" else kind
    for sample in re.findall("`([^`]+)`", taken):
        assert WAYS[way](name, sample) is not None
    for sample in re.findall("`([^`]+)`", refused):
        with pytest.raises(CtrboxError):
            WAYS[way](name, sample)
