"""The fast reader of candidates against the slow one: the same columns, or it leaves the request to it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox import _native
from ctrbox.columns.kind import kind_of_arrow
from ctrbox.engines.cpu.arrow import column_of
from ctrbox.errors import CtrboxError
from ctrbox.serve.request import RequestReader

SCHEMA = pa.schema(
    [
        ("user", pa.int64()),
        ("ad", pa.int64()),
        ("slot", pa.int8()),
        ("size", pa.uint32()),
        ("price", pa.float64()),
        ("rate", pa.float32()),
        ("title", pa.string()),
        ("text", pa.large_string()),
        ("shown", pa.bool_()),
    ]
)
KNOWN = [*SCHEMA.names, "extra", "clicked"]
READER = RequestReader(SCHEMA, KNOWN, ["user", "clicked"], 50)
EACH = [f for f in SCHEMA if f.name != "user"]

wild = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 127, 128, -128, -129, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, -(2**63), 2**64]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.1, 1e308, 3.5e38, 5e-324, -0.0, 1e-400]),
    st.text(max_size=6),
    st.sampled_from(["", "plain", 'quo"te', "back\\slash", "ü", "\x7f", "\n", "a" * 300]),
    st.lists(st.integers(), max_size=2),
)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "ad": st.integers(-(2**63), 2**63 - 1),
    "slot": st.integers(-128, 127),
    "size": st.integers(0, 2**32 - 1),
    "price": st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**60), 2**60)),
    "rate": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "title": st.text("abc XYZ09-/", max_size=8),
    "text": st.text("abc", max_size=3),
    "shown": st.booleans(),
    "extra": st.one_of(st.none(), st.integers(), st.text("xyz")),
}


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """Mostly right requests, with some wrong values, keys, orders and forms."""
    names = draw(st.permutations(list(GOOD)))
    if draw(st.booleans()):
        names = [n for n in names if n != "extra"]
    rows = draw(st.lists(st.fixed_dictionaries({n: GOOD[n] | st.none() for n in names}), min_size=0, max_size=5))
    for row in rows:
        if draw(st.integers(0, 9)) == 0:
            row[draw(st.sampled_from([*names, "user", "other"]))] = draw(wild)
        if draw(st.integers(0, 19)) == 0:
            row.pop(draw(st.sampled_from(names)), None)
    candidates: Any = rows
    if draw(st.booleans()):
        candidates = {n: [row.get(n) for row in rows] for n in names}
    body: dict[str, Any] = {"context": {"user": 7, "clicked": [{"a": '"}'}, "]"]}, "candidates": candidates}
    if draw(st.integers(0, 9)) == 0:
        body[draw(st.sampled_from(["context", "candidates", "more"]))] = draw(wild)
    parts = list(body.items())
    if draw(st.booleans()):
        parts.reverse()
    indent = draw(st.sampled_from([None, 0, 2]))
    text = json.dumps(dict(parts), ensure_ascii=draw(st.booleans()), indent=indent)
    if draw(st.integers(0, 5)) == 0 and text:
        at = draw(st.integers(0, len(text) - 1))
        text = (
            text[:at] + draw(st.sampled_from(["", "0", '"', "}", "]", ",", "\\", " ", "e5", "\x00"])) + text[at + 1 :]
        )
    return text


def slow(body: bytes) -> Any:
    try:
        return READER.slowly(body)
    except CtrboxError as error:
        return error


@settings(max_examples=200, deadline=None)
@given(bodies())
def test_what_the_fast_reader_takes_is_what_the_slow_one_makes(text: str) -> None:
    body = text.encode(errors="replace")
    found = READER._fast.read(body)
    expected = slow(body)
    if found is None:
        return
    frame = found[2]
    if isinstance(expected, CtrboxError):
        # The fast reader does not look into the context; whoever needs it does.
        with pytest.raises(CtrboxError):
            READER.from_json(body).context()
        return
    assert frame.rows == expected.rows > 0
    assert READER.from_json(body).context().equals(expected.context())
    for k, field in enumerate(EACH):
        mine, theirs = column_of(frame, k), expected.candidates.column(field.name)
        assert mine.is_null().equals(theirs.is_null())
        plain = [None if v is None else v for v in theirs.to_pylist()]
        assert mine.to_pylist() == plain, field.name
        if kind_of_arrow(field.type) == "f":
            assert np.array_equal(np.signbit(mine.drop_null()), np.signbit(theirs.drop_null()))


def test_plain_requests_go_the_fast_way() -> None:
    row = {"ad": 5, "slot": -3, "size": 9, "price": 1.5, "rate": 2, "title": "red shoe", "text": "", "shown": True}
    for candidates in ([row, {**row, "price": None}], {n: [v, v] for n, v in row.items()}):
        for indent in (None, 1):
            body = json.dumps({"candidates": candidates, "context": {"user": 1}}, indent=indent).encode()
            begin, end, frame = READER._fast.read(body)
            assert json.loads(body[begin:end]) == {"user": 1}
            assert frame.rows == 2
    assert READER._fast.read(json.dumps({"context": {}, "candidates": [row] * 51}).encode()) is None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200))
def test_any_bytes_are_taken_or_left(noise: bytes, cut: int) -> None:
    reader = _native.RequestRows([("a", "i", -10, 10, False), ("b", "s", 0, 0, False)], ["c"], 3)
    good = b'{"context": {"x": "\\"}"}, "candidates": [{"a": 1, "b": "t", "c": 1e5}, {"a": 2, "b": null, "c": true}]}'
    assert reader.read(good) is not None
    for body in (noise, good[:cut], good[:cut] + noise + good[cut:], good + noise.strip()):
        found = reader.read(body)
        if found is not None:  # all but the context, which is left to whoever needs it, is JSON
            assert json.loads(body[: found[0]] + b"{}" + body[found[1] :])["candidates"]
