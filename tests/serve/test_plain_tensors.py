"""Tensors that native code answers in one call against the path through Python: the same answers, errors and counts."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from ctrbox.serve.grpc_server import CONTENTS, InferenceService
from ctrbox.serve.routes import Answer, Routes, answer_of
from ctrbox.serve.tensors import NUMPY
from tests.compiled_plan.test_split_for_requests import COLUMNS
from tests.serve.hostile import RAW_VALUES, VALUES
from tests.serve.test_plain_requests import MOST, WITHOUT_PYTHON, Sent, Twins, sent, served_of, twins

# Every column with the datatypes that it takes, in which all values of `rows` can be written.
DATATYPES = {
    "user": ["INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8"],
    "ad": ["INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8"],
    "query": ["BYTES"],
    "device": ["BYTES"],
    "price": ["FP64", "FP32", "FP16", "INT64", "UINT8"],
    "shown": ["BOOL"],
}
ALL = [*NUMPY, "BYTES"]
SIZES = [-1, 0, 1, 3, 4, 2**31 - 1, 2**31, 2**63, 2**64, 10**30]
SHAPES: list[Any] = [[], [0], [1], [2], [1, 1], [2, 1], [1, 2], [1, 1, 1], [1] * 1000, [-1], [2**31], [2**62, 4], [2.0]]
Tensors = list[tuple[str, str, list[int], list[Any]]]  # name, datatype, shape, values

rows = st.fixed_dictionaries(
    {
        "user": st.integers(0, 5),
        "ad": st.integers(0, 4),
        "query": st.sampled_from(["", "red HAT", "blue  shoe red", "ü\n\x00\x7f", '"\\']),
        "device": st.sampled_from(["ios", "bot", ""]),
        "price": st.sampled_from([0.0, 1.0, 3.0]),
        "shown": st.booleans(),
    }
)


def tensors_of(
    context: frozenset[str], one: dict[str, Any], candidates: list[dict[str, Any]], draw: random.Random
) -> Tensors:
    made: Tensors = []
    for name in draw.sample(COLUMNS, len(COLUMNS)):
        values = [one[name]] if name in context else [row[name] for row in candidates]
        shape = [len(values)] if draw.random() < 0.7 else [len(values), 1]
        made.append((name, draw.choice(DATATYPES[name]), shape, values))
    if draw.random() < 0.5 and candidates:  # a column of the log that the plan does not read
        ignored = draw.choice(["INT64", "UINT8", "FP32"])
        made.insert(draw.randrange(len(made)), ("id", ignored, [len(candidates)], [1] * len(candidates)))
    return made


def binary(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(v.encode())) + v.encode() for v in values)
    return np.array(values, NUMPY[datatype]).tobytes()


def body_of(tensors: Tensors, draw: random.Random, *, how: str) -> tuple[dict[str, Any], bytes]:
    """Return the JSON of a request, and the binary tensors behind it."""
    inputs, rest = [], b""
    for name, datatype, shape, values in tensors:
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if how == "binary" or (how == "both" and draw.random() < 0.5):
            data = binary(datatype, values)
            entry["parameters"] = {"binary_data_size": len(data)}
            rest += data
        else:
            fraction = datatype.startswith("FP")
            whole = (fraction and draw.random() < 0.5) or "INT" in datatype
            flat = [int(v) if whole else float(v) if fraction else v for v in values]
            entry["data"] = [[v] for v in flat] if len(shape) == 2 and draw.random() < 0.5 else flat
        inputs.append(dict(draw.sample(list(entry.items()), len(entry))))
    body: dict[str, Any] = {"inputs": inputs}
    if draw.random() < 0.3:
        body["id"] = draw.choice(["", "seven", "é"])
    if draw.random() < 0.5:
        body["parameters"] = {"binary_data_output": draw.random() < 0.5}
    if draw.random() < 0.5:
        output: dict[str, Any] = {"name": "score"}
        if draw.random() < 0.5:
            output["parameters"] = {"binary_data": draw.random() < 0.5}
        body["outputs"] = draw.choice([[], [output]])
    return dict(draw.sample(list(body.items()), len(body))), rest


def spoiled(body: dict[str, Any], rest: bytes, draw: random.Random) -> tuple[bytes, bytes]:
    """A request with something strange in it: what an input says of itself, its values, its bytes, a member, or its end."""
    what = draw.randrange(14)
    entry = draw.choice(body["inputs"])
    if what == 0:
        entry["shape"] = draw.choice(SHAPES)
    elif what == 1:
        entry["datatype"] = draw.choice([*ALL, "INT65", "", None, 5])
    elif what == 2:
        entry["name"] = draw.choice(["id", "clicked", "segment", "objects.x", "", "n" * 2000, 7, *COLUMNS])
    elif what == 3:
        entry["parameters"] = {"binary_data_size": draw.choice([*SIZES, True, "4", 1.0, None])}
    elif what == 4 and entry.get("data"):
        data = entry["data"]
        data[draw.randrange(len(data))] = draw.choice([*VALUES, 128, 256, 2**31, 1e39, "\ud800"])
        return json.dumps(body).encode("utf-8", "replace"), rest
    elif what == 5:
        entry[draw.choice(["data", "extra", "shape", "parameters", "name"])] = draw.choice([*VALUES, [[1]], {}])
    elif what == 6:
        body["inputs"].append(draw.choice([entry, {}, 5, {**entry, "name": "id"}]))
    elif what == 7:
        body["inputs"].remove(entry)
    elif what == 8:
        name = draw.choice(["id", "outputs", "parameters", "inputs", "extra"])
        body[name] = draw.choice([*VALUES, [{"name": "other"}], [{"name": "score"}] * 2, {"score": "a"}, [{"name": 5}]])
    elif what == 9:
        text = json.dumps(body).encode()
        return text[: draw.randrange(len(text))], rest
    elif what == 10:
        made = bytearray(json.dumps(body, ensure_ascii=False).encode())
        made[draw.randrange(len(made))] = draw.randrange(256)
        return bytes(made), rest
    elif what == 11 and rest:
        raw = bytearray(rest)
        raw[draw.randrange(len(raw))] = draw.randrange(256)
        return json.dumps(body).encode(), bytes(raw)
    elif what == 12:
        return json.dumps(body).encode(), draw.choice([rest[:-1], rest + b"\0", rest[1:], b"", rest * 2])
    elif what == 13:
        text = json.dumps(body).encode()
        mark = draw.choice([m for m in (b"1", b"0", b'"ios"', b"true", b'"BYTES"') if m in text] or [b"{"])
        return text.replace(mark, draw.choice(RAW_VALUES), 1), rest
    return json.dumps(body).encode("utf-8", "replace"), rest


def answer(routes: Routes, body: bytes, header: str | None, version: str) -> Answer:
    try:
        return routes.infer(body, header, version)
    except Exception as error:
        return answer_of(error)


def check_counts(pair: Twins) -> None:
    fast, slow = (served_of(routes) for routes in pair)
    for name in ("hits", "misses", "evictions"):
        assert getattr(fast.cache.counts, name) == getattr(slow.cache.counts, name)
    assert len(fast.cache) == len(slow.cache)
    assert fast.joins() == slow.joins()
    assert pair[0].service.metrics.requests == pair[1].service.metrics.requests
    assert pair[0].service.metrics.candidates == pair[1].service.metrics.candidates


def same(pair: Twins, head: bytes, rest: bytes, version: str = "", header: str | None = None) -> Answer:
    if header is None and rest:
        header = str(len(head))
    found, expected = (answer(routes, head + rest, header, version) for routes in pair)
    assert found == expected
    check_counts(pair)
    return found


@settings(max_examples=150, deadline=None)
@given(request=sent(rows), how=st.sampled_from(["json", "binary", "both"]))
def test_answers_errors_and_counts_are_those_of_the_path_through_python(request: Sent, how: str) -> None:
    pair, draw = request.twins(), random.Random(request.seed)
    made = tensors_of(request.context, request.one, request.candidates, draw)
    body, rest = body_of(made, draw, how=how)
    plain = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode()
    found = same(pair, plain, rest)
    assert found.status == (413 if len(request.candidates) > MOST else 200)
    same(pair, plain, rest, version=draw.choice(["1", "2", "x"]))
    same(pair, plain, rest, header=draw.choice(["", "-1", "0", "1", str(len(plain) + 1), "9" * 20, "٣"]))
    same(pair, *spoiled(body, rest, draw))
    again, more = body_of(tensors_of(request.context, request.one, request.candidates, draw), draw, how="both")
    same(pair, json.dumps(again).encode(), more)


def test_plain_tensors_never_reach_python(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"user": 1, "ad": 2, "query": "ü\n", "device": "ios", "price": 1.0, "shown": True}
    context, draw = frozenset(["user", "query"]), random.Random(1)
    for variant in WITHOUT_PYTHON:
        pair = twins(variant, context, cached=False)
        monkeypatch.setattr(served_of(pair[0]).reader, "from_tensors", None)
        for how in ("json", "binary", "both"):
            made = [(n, "FP32" if d == "FP16" else d, s, v) for n, d, s, v in tensors_of(context, row, [row] * 2, draw)]
            body, rest = body_of(made, draw, how=how)
            head = json.dumps(body, ensure_ascii=False).encode()
            found = same(pair, head, rest, "1", str(len(head)))
            assert (found.status, found.rows) == (200, 2)
        for typed in (False, True):
            assert [asked(routes, message(made, typed=typed))[1] for routes in pair] == ["", ""]
        check_counts(pair)


def test_equal_contexts_of_other_datatypes_are_found_in_the_cache_by_both_paths() -> None:
    context, draw = frozenset(["user", "query", "price"]), random.Random(2)
    pair = twins(3, context, cached=True)
    row = {"user": 4, "ad": 2, "query": "seldom", "device": "ios", "price": 2.0, "shown": True}
    before = served_of(pair[0]).cache.counts
    for datatype in ("FP16", "FP32", "FP64", "INT8"):  # FP16 is read by Python
        made = [(n, datatype if n == "price" else d, s, v) for n, d, s, v in tensors_of(context, row, [row], draw)]
        body, rest = body_of(made, draw, how="binary")
        assert same(pair, json.dumps(body).encode(), rest).status == 200
    after = served_of(pair[0]).cache.counts
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 3)


# ---- gRPC


class Call:
    """What a handler of gRPC is given beside the message, as far as this server uses it."""

    def __init__(self) -> None:
        self.trailing: Any = None
        self.refusal = ""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.trailing = metadata

    def abort(self, code: Any, details: str) -> None:
        self.refusal = f"{code}: {details}"
        raise RuntimeError(self.refusal)


def asked(routes: Routes, request: Any) -> tuple[bytes, str]:
    """The answer as its bytes, with its metadata; and the refusal, if it is one."""
    call = Call()
    try:
        answer = InferenceService(routes.service).ModelInfer(request, call).SerializeToString()
    except RuntimeError:
        answer = b""
    return answer + repr(call.trailing).encode(), call.refusal


def message(tensors: Tensors, *, typed: bool) -> Any:
    made = service_pb2.ModelInferRequest(model_name="model", id="seven")
    for name, datatype, shape, values in tensors:
        entry = made.inputs.add(name=name, datatype=datatype, shape=shape)
        if not typed:
            made.raw_input_contents.append(binary(datatype, values))
        elif datatype == "BYTES":
            entry.contents.bytes_contents.extend(v.encode() for v in values)
        else:
            kind = bool if datatype == "BOOL" else float if datatype.startswith("FP") else int
            getattr(entry.contents, CONTENTS.get(datatype, "fp32_contents")).extend(map(kind, values))
    return made


def spoil_message(request: Any, draw: random.Random) -> None:
    what, entry = draw.randrange(9), draw.choice(request.inputs)
    if what == 0:
        entry.shape[:] = draw.choice([[], [0], [1], [2], [1, 1], [1, 2], [1] * 100_000, [-1], [2**62, 4], [2**63 - 1]])
    elif what == 1:
        entry.datatype = draw.choice([*ALL, "INT65", ""])
    elif what == 2:
        entry.name = draw.choice(["id", "segment", "objects.x", "", "n" * 2000, *COLUMNS])
    elif what == 3:
        request.inputs.add().CopyFrom(entry)
    elif what == 4:
        del request.inputs[draw.randrange(len(request.inputs))]
    elif what == 5:
        request.outputs.add(name=draw.choice(["score", "other", ""]))
    elif what == 6:
        request.raw_input_contents.append(b"")
    elif what == 7:
        entry.contents.int_contents.append(draw.choice([128, -1]))
    elif request.raw_input_contents:
        k = draw.randrange(len(request.raw_input_contents))
        raw = bytearray(request.raw_input_contents[k] or b"\xff")
        if draw.random() < 0.5:
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        else:
            raw = draw.choice([raw[:-1], raw + b"\0", raw * 2])
        request.raw_input_contents[k] = bytes(raw)


@settings(max_examples=100, deadline=None)
@given(sent_one=sent(rows), typed=st.booleans())
def test_messages_get_the_answers_errors_and_counts_of_the_path_through_python(sent_one: Sent, typed: bool) -> None:
    pair, draw = sent_one.twins(), random.Random(sent_one.seed)
    request = message(tensors_of(sent_one.context, sent_one.one, sent_one.candidates, draw), typed=typed)
    for _ in range(2):
        found = [asked(routes, request) for routes in pair]
        assert found[0] == found[1]
        assert bool(found[0][1]) == (
            len(sent_one.candidates) > MOST or (typed and any(e.datatype == "FP16" for e in request.inputs))
        )
        check_counts(pair)
    request.model_version = draw.choice(["", "1", "2"])
    spoil_message(request, draw)
    found = [asked(routes, request) for routes in pair]
    assert found[0] == found[1]
    check_counts(pair)
