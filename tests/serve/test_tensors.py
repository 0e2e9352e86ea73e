"""Tensors of the Open Inference Protocol: how an answer is written, and the sentence of every refusal."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tritonclient.grpc import service_pb2

from ctrbox.columns.raw_values import RawColumn
from ctrbox.serve.grpc_server import tensors_of
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.tensors import MOST_INPUTS, InferRequest, infer_answer, inputs_of, read_infer

TWO = {"name": "x", "shape": [2], "datatype": "INT64", "data": [1, 2]}
BINARY = {"name": "x", "shape": [2], "datatype": "INT8", "parameters": {"binary_data_size": 2}}


def read(given: Any, rest: bytes | None = None) -> InferRequest:
    head = json.dumps(given).encode()
    return read_infer(head, None) if rest is None else read_infer(head + rest, str(len(head)))


def of(**changed: Any) -> dict[str, Any]:
    """Return a request with one input that has these entries changed; None leaves an entry out."""
    return {"inputs": [{k: v for k, v in (TWO | changed).items() if v is not None}]}


def asking(**more: Any) -> dict[str, Any]:
    return {"inputs": [TWO], **more}


def test_what_a_request_holds_is_read() -> None:
    found = read(asking(id="seven"))
    assert (found.id, found.binary, found.tensors["x"].tolist()) == ("seven", False, [1, 2])
    rows = read(of(shape=[2, 2], data=[[1, 2], [3, 4]])).tensors["x"]
    assert rows.tolist() == read(of(shape=[2, 2], data=[1, 2, 3, 4])).tensors["x"].tolist() == [[1, 2], [3, 4]]
    two = {"inputs": [BINARY, BINARY | {"name": "y", "datatype": "BOOL"}]}
    tensors = read(two, b"\x05\xff\x00\x01").tensors
    assert (tensors["x"].tolist(), tensors["y"].tolist()) == ([5, -1], [False, True])
    words = BINARY | {"datatype": "BYTES", "parameters": {"binary_data_size": 11}}
    assert read({"inputs": [words]}, struct.pack("<I2sI1s", 2, b"ab", 1, b"c")).tensors["x"].tolist() == [b"ab", b"c"]


@pytest.mark.parametrize(
    ("more", "binary"),
    [
        ({}, False),
        ({"outputs": []}, False),
        ({"parameters": {"binary_data_output": True}}, True),
        ({"parameters": {"binary_data_output": 1}}, False),
        ({"outputs": [{"name": "score"}]}, False),
        ({"outputs": [{"name": "score"}], "parameters": {"binary_data_output": True}}, True),
        ({"outputs": [{"name": "score", "parameters": {"binary_data": True}}]}, True),
        ({"outputs": [{"name": "score", "parameters": {"binary_data": 1}}]}, False),
        (
            {
                "outputs": [{"name": "score", "parameters": {"binary_data": False}}],
                "parameters": {"binary_data_output": True},
            },
            False,
        ),
    ],
)
def test_an_output_is_binary_only_where_the_request_says_so(more: dict[str, Any], binary: bool) -> None:
    found = read(asking(**more))
    assert found.outputs.get("score", found.binary) is binary


NEEDED = "the request needs inputs: a list of tensors with name, shape, datatype and data"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], NEEDED),
        ({"inputs": []}, NEEDED),
        ({"inputs": {}}, NEEDED),
        ({"inputs": [TWO | {"name": str(k)} for k in range(MOST_INPUTS + 1)]}, NEEDED),
        ({"inputs": [TWO, TWO]}, "input 'x' occurs twice"),
        ({"inputs": [5]}, "an input must be an object, got 5"),
        (of(name=5), "an input's name must be a short string, got 5"),
        (of(name="n" * 1001), "an input's name must be a short string, got 'nnn"),
        (of(datatype="INT65"), "input 'x' has datatype 'INT65'; expected BYTES or one of BOOL, UINT8"),
        (of(shape=[]), "input 'x' has shape []; expected one dimension, or two"),
        (of(shape=[1, 1, 2]), "input 'x' has shape [1, 1, 2]; expected one dimension, or two"),
        (of(shape=[-1]), "input 'x' has shape [-1]; expected whole numbers"),
        (of(shape=[1 << 31]), "expected whole numbers"),
        (of(shape=[2.0]), "input 'x' has shape [2.0]; expected whole numbers"),
        (of(data=None), "input 'x' has neither data nor binary_data_size"),
        (of(data=[1]), "input 'x' has 1 values, expected 2 for shape [2]"),
        (of(shape=[2, 2], data=[[1, 2], [3]]), "input 'x': its rows are not lists of 2"),
        (of(shape=[2, 2], data=[[1, 2], 3]), "input 'x': its rows are not lists of 2"),
        (of(datatype="INT8", data=[1, 128]), "input 'x' contains a number outside the range of INT8"),
        (of(data=[1, True]), "input 'x' holds values that are not INT64"),
        (
            of(datatype="BYTES", data=["a", 1]),
            "input 'x' contains values that are not strings, but its datatype is BYTES",
        ),
        (of(parameters=[]), "parameters must be an object, got []"),
        (of(parameters={"binary_data_size": 1}), "input 'x' has both data and binary_data_size"),
        (asking(id=7), "id must be a short string, got 7"),
        (
            asking(parameters={"score": 5}),
            "parameter 'score' must be a string with an expression of the labels of the model, got 5",
        ),
        (asking(outputs="score"), "outputs must be a list, got 'score'"),
        (asking(outputs=["score"]), "an output must be an object, got 'score'"),
        (asking(outputs=[{}]), "an output's name must be a short string, got None"),
        (asking(outputs=[{"name": "other"}]), "there is no output 'other'; this model gives 'score'"),
    ],
)
def test_a_request_in_json_that_is_wrong_is_refused_in_words(given: Any, message: str) -> None:
    with pytest.raises(Refused, match=re.escape(message)) as told:
        read(given)
    assert told.value.status == 400


def test_the_most_inputs_and_the_longest_name_are_taken() -> None:
    inputs = [TWO | {"name": str(k)} for k in range(MOST_INPUTS - 1)]
    assert len(read({"inputs": [*inputs, TWO | {"name": "n" * 1000}]}).tensors) == MOST_INPUTS


def words(*elements: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack("<I", length) + data for length, data in elements)


@pytest.mark.parametrize(
    ("changed", "rest", "message"),
    [
        (
            {"parameters": {"binary_data_size": 3}},
            b"12",
            "input 'x' declares 3 bytes of binary data, but only 2 are left",
        ),
        (
            {"parameters": {"binary_data_size": -1}},
            b"12",
            "input 'x' declares -1 bytes of binary data, but only 2 are left",
        ),
        ({"parameters": {"binary_data_size": True}}, b"1", "input 'x' declares True bytes of binary data"),
        ({}, b"123", "1 bytes after the JSON belong to no input; declare them with binary_data_size"),
        ({"shape": [3]}, b"12", "input 'x' has 2 bytes, expected 3 for shape [3] of INT8"),
        ({"datatype": "BOOL"}, b"\x01\x02", "input 'x': byte 1 of BOOL is 2; expected 0 or 1"),
        (
            {"datatype": "BYTES", "parameters": {"binary_data_size": 7}},
            b"1234567",
            "input 'x': its 7 bytes are too few for 2 BYTES elements",
        ),
        (
            {"datatype": "BYTES", "parameters": {"binary_data_size": 8}},
            words((2, b"abcd")),
            "input 'x': element 1 begins after the end of its bytes",
        ),
        (
            {"datatype": "BYTES", "parameters": {"binary_data_size": 9}},
            words((0, b""), (2, b"a")),
            "input 'x': element 1 declares 2 bytes, but only 1 are left",
        ),
        (
            {"datatype": "BYTES", "parameters": {"binary_data_size": 10}},
            words((0, b""), (1, b"ab")),
            "input 'x': 1 bytes follow its last element; check its shape",
        ),
    ],
)
def test_binary_tensors_that_are_wrong_are_refused_in_words(changed: dict[str, Any], rest: bytes, message: str) -> None:
    with pytest.raises(Refused, match=re.escape(message)):
        read({"inputs": [BINARY | changed]}, rest)


def test_tensors_without_elements_and_empty_texts_at_the_end_are_read() -> None:
    none = BINARY | {"shape": [0], "parameters": {"binary_data_size": 0}}
    assert read({"inputs": [none]}, b"").tensors["x"].tolist() == []
    empty = BINARY | {"datatype": "BYTES", "parameters": {"binary_data_size": 9}}
    assert read({"inputs": [empty]}, words((1, b"a"), (0, b""))).tensors["x"].tolist() == [b"a", b""]
    assert read(of(datatype="BYTES", data=["a", "é"])).tensors["x"].tolist() == [b"a", "é".encode()]


@pytest.mark.parametrize("name", ["score", "ranking", "other"])
def test_outputs_that_need_an_expression_of_the_labels_say_so(name: str) -> None:
    given = json.dumps(asking(outputs=[{"name": name}])).encode()
    more = "" if name == "other" else "; 'score' and 'ranking' need the parameter score, an expression of the labels"
    with pytest.raises(Refused) as told:
        read_infer(given, None, ("click", "buy"))
    assert str(told.value) == f"there is no output {name!r}; this model gives 'click', 'buy'{more}"


def test_the_inputs_of_a_model_say_what_comes_once_and_what_is_a_list() -> None:
    fields = [
        ("user", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("price", pa.float32()),
        ("words", pa.list_(pa.int8())),
    ]
    columns = {name: RawColumn(pa.field(name, kind)) for name, kind in fields}

    def shapes(context: frozenset[str] | None) -> dict[str, Any]:
        return {one["name"]: (one["datatype"], one["shape"]) for one in inputs_of(columns, context)}

    each = {"user": ("INT64", [-1]), "tags": ("BYTES", [-1, -1]), "price": ("FP64", [-1]), "words": ("INT64", [-1, -1])}
    assert shapes(None) == shapes(frozenset()) == each
    assert shapes(frozenset(["user", "tags"])) == each | {"user": ("INT64", [1]), "tags": ("BYTES", [1, -1])}


def test_a_second_binary_tensor_has_what_the_first_one_left() -> None:
    second = BINARY | {"name": "y", "shape": [3], "parameters": {"binary_data_size": 3}}
    assert read({"inputs": [BINARY, second]}, b"12345").tensors["y"].tolist() == [51, 52, 53]
    with pytest.raises(Refused, match="input 'y' declares 3 bytes of binary data, but only 2 are left"):
        read({"inputs": [BINARY, second]}, b"1234")
    with pytest.raises(Refused, match="2 bytes after the JSON belong to no input; declare them with binary_data_size"):
        read({"inputs": [BINARY]}, b"1234")


@pytest.mark.parametrize("header", ["3", "x", "-1", "+1", "٣", "0" * 16])
def test_a_length_of_the_json_that_cannot_be_is_refused(header: str) -> None:
    with pytest.raises(
        Refused, match=re.escape(f"Inference-Header-Content-Length is {header!r}, but the body has 2 bytes")
    ):
        read_infer(b"{}", header)


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(Refused, match="the request is not JSON: unexpected"):
        read_infer(b"{", None)
    with pytest.raises(Refused, match="needs inputs"):
        read_infer(b"{}", "2")


def test_an_answer_carries_its_scores_as_json_or_behind_it() -> None:
    scores = np.array([0.25, 0.5, 0.75], np.float32)
    body, length = infer_answer("ads", 7, InferRequest("", {}, False), {"score": scores})
    assert length is None
    assert json.loads(body) == {
        "model_name": "ads",
        "model_version": "7",
        "outputs": [{"name": "score", "datatype": "FP32", "shape": [3], "data": [0.25, 0.5, 0.75]}],
    }
    body, length = infer_answer("ads", 7, InferRequest("one", {}, True), {"score": scores})
    assert length == len(body) - 12
    told = json.loads(body[:length])
    assert (told["id"], told["outputs"][0]["parameters"]) == ("one", {"binary_data_size": 12})
    assert body[length:] == scores.tobytes()


# ---- gRPC


def message(*inputs: dict[str, Any], raw: tuple[bytes, ...] = ()) -> Any:
    made = service_pb2.ModelInferRequest(raw_input_contents=raw)
    for entry in inputs:
        contents = entry.pop("contents", {})
        added = made.inputs.add(**{"name": "x", "datatype": "INT32", "shape": [1], **entry})
        for name, values in contents.items():
            getattr(added.contents, name).extend(values)
    return made


def test_a_message_holds_its_tensors_raw_or_typed() -> None:
    raw = message({}, {"name": "y", "datatype": "FP16"}, raw=(b"\1\0\0\0", b"\0\x3c"))
    assert [tensors_of(raw)[name].tolist() for name in "xy"] == [[1], [1.0]]
    typed = message({"contents": {"int_contents": [7]}}, {"name": "y", "datatype": "BYTES", "shape": [0]})
    assert [tensors_of(typed)[name].tolist() for name in "xy"] == [[7], []]


@pytest.mark.parametrize(
    ("inputs", "raw", "told"),
    [
        (({}, {"name": "y"}), (b"1234",), "the request has 1 raw contents for 2 inputs; expected one for each input"),
        (({}, {}), (b"1234", b"1234"), "input 'x' occurs twice"),
        (({"contents": {"int_contents": [1]}},), (b"1234",), "input 'x' has both contents and raw contents"),
        (({"datatype": "FP16"},), (), "input 'x': FP16 is accepted in raw contents only"),
        (
            ({"contents": {"fp32_contents": [1]}},),
            (),
            "input 'x' is INT32 and has fp32_contents; expected only int_contents",
        ),
        (({"contents": {"int_contents": [1, 2]}},), (), "input 'x' has 2 values, expected 1 for shape [1]"),
        (
            ({"datatype": "INT8", "contents": {"int_contents": [128]}},),
            (),
            "input 'x' contains a number outside the range of INT8",
        ),
    ],
)
def test_a_message_that_is_wrong_is_refused_in_words(
    inputs: tuple[dict[str, Any], ...], raw: tuple[bytes, ...], told: str
) -> None:
    with pytest.raises(Refused, match=f"^{re.escape(told)}(;|$)"):
        tensors_of(message(*[dict(entry) for entry in inputs], raw=raw))
