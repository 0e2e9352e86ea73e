"""Reads and writes tensors of the Open Inference Protocol v2, in JSON, in its binary extension and in gRPC.

    BYTES, binary    4 bytes of length, little-endian, then the bytes, for each element
    others, binary   elements in order, little-endian

An input is a raw column of the log. Its shape is [1] or [1, 1] for a column of the context, [n] or [n, 1] for a column of the
candidates, and [n, w] for lists. Sizes are compared with the number of received bytes before any array is made.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from ctrbox.columns.raw_values import brief
from ctrbox.serve.answers import RANKING, SCORE, names_of_outputs
from ctrbox.serve.json_body import read_json
from ctrbox.serve.refused_request import Refused

NUMPY: dict[str, Any] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
OF_KIND = {"b": "BOOL", "i": "INT64", "t": "BYTES", "f": "FP64", "s": "BYTES"}  # a time is ISO 8601 text
JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
DATATYPES = {"f": "FP32", "i": "INT32"}  # of outputs, by the letter of their numpy type
MOST_INPUTS = 1024


@dataclass(frozen=True)
class InferRequest:
    id: str
    tensors: dict[str, np.ndarray]
    binary: bool  # whether outputs are wanted as binary, where the request does not say it of each
    score: str | None = None  # the expression of several labels that is asked for
    outputs: Mapping[str, bool] = field(
        default_factory=dict
    )  # those that are wanted, and whether as binary; empty: all


def wrong(message: str) -> Refused:
    return Refused(400, message)


def read_infer(body: bytes, header_bytes: str | None, labels: Sequence[str] = ()) -> InferRequest:
    """Read a REST request. ``header_bytes`` is the length of its JSON if tensors follow it, as the header says.

    ``labels``: the names of several labels that the model has.
    """
    head, rest = body, b""
    if header_bytes is not None:
        length = length_of_json(header_bytes, len(body))
        if length is None:
            raise wrong(f"Inference-Header-Content-Length is {header_bytes[:40]!r}, but the body has {len(body)} bytes")
        head, rest = body[:length], body[length:]
    try:
        given = read_json(head)
    except orjson.JSONDecodeError as error:
        raise wrong(f"the request is not JSON: {str(error)[:200]}") from None
    inputs = given.get("inputs") if isinstance(given, dict) else None
    if not isinstance(inputs, list) or not 0 < len(inputs) <= MOST_INPUTS:
        raise wrong("the request needs inputs: a list of tensors with name, shape, datatype and data")
    tensors: dict[str, np.ndarray] = {}
    at = 0
    for entry in inputs:
        name, datatype, shape = described(entry)
        if name in tensors:
            raise wrong(f"input {name!r} occurs twice; send each input once")
        size = a_dict(entry.get("parameters"), "parameters").get("binary_data_size")
        if size is None:
            tensors[name] = from_json(name, datatype, shape, entry.get("data"))
            continue
        if "data" in entry:
            raise wrong(f"input {name!r} has both data and binary_data_size; expected one of the two")
        if type(size) is not int or not 0 <= size <= len(rest) - at:
            raise wrong(
                f"input {name!r} declares {brief(size)} bytes of binary data, but only {len(rest) - at} are left"
            )
        tensors[name] = from_binary(name, datatype, shape, rest[at : at + size])
        at += size
    if at != len(rest):
        raise wrong(f"{len(rest) - at} bytes after the JSON belong to no input; declare them with binary_data_size")
    parameters = a_dict(given.get("parameters"), "parameters")
    score = parameters.get("score")
    if score is not None and not isinstance(score, str):
        raise wrong(
            f"parameter 'score' must be a string with an expression of the labels of the model, got {brief(score)}"
        )
    every = parameters.get("binary_data_output", False) is True
    outputs = wanted_outputs(given.get("outputs"), every, names_of_outputs(labels, score))
    return InferRequest(a_text(given.get("id", ""), "id"), tensors, every, score, outputs)


def length_of_json(header_bytes: str | None, length: int) -> int | None:
    """Return how many bytes of a body of ``length`` bytes are JSON; None if the header is not a number up to ``length``."""
    if header_bytes is None:
        return length
    plain = header_bytes.isascii() and header_bytes.isdigit() and len(header_bytes) < 16
    return int(header_bytes) if plain and int(header_bytes) <= length else None


def wanted_outputs(outputs: Any, every: bool, possible: Sequence[str]) -> dict[str, bool]:
    """Return the outputs that a request names, and whether each is wanted as binary; ``every`` is the default for this."""
    if not outputs:
        return {}
    if not isinstance(outputs, list):
        raise wrong(f"outputs must be a list, got {brief(outputs)}")
    found = {}
    for entry in outputs:
        name = a_text(a_dict(entry, "an output").get("name"), "an output's name")
        check_output(name, possible)
        found[name] = a_dict(entry.get("parameters"), "parameters").get("binary_data", every) is True
    return found


def check_output(name: str, possible: Sequence[str]) -> None:
    if name not in possible:
        asked = "; 'score' and 'ranking' need the parameter score, an expression of the labels" * (
            name in (SCORE, RANKING)
        )
        raise wrong(f"there is no output {name[:100]!r}; this model gives {', '.join(map(repr, possible))}{asked}")


def described(entry: Any) -> tuple[str, str, list[int]]:
    entry = a_dict(entry, "an input")
    name, datatype = a_text(entry.get("name"), "an input's name"), a_text(entry.get("datatype"), "a datatype")
    return name, datatype, checked_shape(name, datatype, entry.get("shape"))


def checked_shape(name: str, datatype: str, shape: Any) -> list[int]:
    if datatype not in NUMPY and datatype != "BYTES":
        raise wrong(f"input {name[:100]!r} has datatype {datatype[:20]!r}; expected BYTES or one of {', '.join(NUMPY)}")
    if not isinstance(shape, list) or not 1 <= len(shape) <= 2:
        raise wrong(f"input {name[:100]!r} has shape {brief(shape)}; expected one dimension, or two")
    if not all(type(n) is int and 0 <= n < 1 << 31 for n in shape):
        raise wrong(f"input {name[:100]!r} has shape {brief(shape)}; expected whole numbers")
    return shape


def from_binary(name: str, datatype: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    count = math.prod(shape)
    if datatype == "BYTES":
        return texts(name, shape, data)
    dtype = NUMPY[datatype]
    if len(data) != count * dtype.itemsize:
        raise wrong(
            f"input {name!r} has {len(data)} bytes, expected {count * dtype.itemsize} for shape {list(shape)} of {datatype}"
        )
    if datatype == "BOOL":
        given = np.frombuffer(data, np.uint8)
        if (given > 1).any():
            at = int(np.argmax(given > 1))
            raise wrong(f"input {name!r}: byte {at} of BOOL is {given[at]}; expected 0 or 1")
        return (given != 0).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


def texts(name: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    count, at = math.prod(shape), 0
    found: list[bytes] = []
    if 4 * count > len(data):
        raise wrong(f"input {name!r}: its {len(data)} bytes are too few for {count} BYTES elements")
    unpack = struct.Struct("<I").unpack_from
    for _ in range(count):
        if at + 4 > len(data):
            raise wrong(f"input {name!r}: element {len(found)} begins after the end of its bytes")
        (length,) = unpack(data, at)
        at += 4
        if length > len(data) - at:
            raise wrong(
                f"input {name!r}: element {len(found)} declares {length} bytes, but only {len(data) - at} are left"
            )
        found.append(data[at : at + length])
        at += length
    if at != len(data):
        raise wrong(f"input {name!r}: {len(data) - at} bytes follow its last element; check its shape")
    return objects(found, shape)


def objects(values: Sequence[Any], shape: Sequence[int]) -> np.ndarray:
    made = np.empty(len(values), object)
    made[:] = values
    return made.reshape(shape)


def from_json(name: str, datatype: str, shape: Sequence[int], data: Any) -> np.ndarray:
    """Return data in row-major order, which may be flat or nested in JSON."""
    if not isinstance(data, list):
        raise wrong(f"input {name!r} has neither data nor binary_data_size; send one of the two")
    flat = data
    if len(shape) == 2 and data and isinstance(data[0], list):
        if not all(isinstance(row, list) and len(row) == shape[1] for row in data):
            raise wrong(f"input {name!r}: its rows are not lists of {shape[1]} values, as its shape says")
        flat = [value for row in data for value in row]
    if len(flat) != math.prod(shape):
        raise wrong(f"input {name!r} has {len(flat)} values, expected {math.prod(shape)} for shape {list(shape)}")
    met = set(map(type, flat))
    if datatype == "BYTES":
        if not met <= {str}:
            raise wrong(f"input {name!r} contains values that are not strings, but its datatype is BYTES")
        return objects([text.encode() for text in flat], shape)
    dtype = NUMPY[datatype]
    if not met <= JSON_TYPES[dtype.kind]:
        raise wrong(f"input {name!r} holds values that are not {datatype}")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype).reshape(shape)
    except (OverflowError, ValueError, FloatingPointError):
        raise wrong(
            f"input {name!r} contains a number outside the range of {datatype}; use a larger datatype"
        ) from None


def infer_answer(
    name: str, version: int, request: InferRequest, outputs: Mapping[str, np.ndarray]
) -> tuple[bytes, int | None]:
    """Return the body, and the length of its JSON if outputs follow as binary data."""
    told: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for output, as_binary in (request.outputs or dict.fromkeys(outputs, request.binary)).items():
        values = outputs[output]
        entry: dict[str, Any] = {"name": output, "datatype": DATATYPES[values.dtype.char], "shape": [len(values)]}
        if as_binary:
            binary.append(little(values).tobytes())
            entry["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            entry["data"] = values
        told.append(entry)
    answer: dict[str, Any] = {"model_name": name, "model_version": str(version), "outputs": told}
    if request.id:
        answer["id"] = request.id
    head = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return (head + b"".join(binary), len(head)) if binary else (head, None)


def little(values: np.ndarray) -> np.ndarray:
    """Return an output in little-endian byte order."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<"))


def inputs_of(columns: Mapping[str, Any], context: frozenset[str] | None) -> list[dict[str, Any]]:
    """Return the inputs of the model as its metadata names them.

    ``columns``: `RawColumn` by name. For a run, any column may come once per request.
    """
    found = []
    for name, column in columns.items():
        first = 1 if context is not None and name in context else -1
        shape = [first, -1] if column.is_list else [first]
        found.append({"name": name, "datatype": OF_KIND[column.letter], "shape": shape})
    return found


def a_dict(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(f"{what} must be an object, got {brief(value)}")
    return value


def a_text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > 1000:
        raise wrong(f"{what} must be a short string, got {brief(value)}")
    return value
