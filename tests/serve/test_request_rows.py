"""The fast reader of candidates against the slow one: the same columns, or it leaves the request to it."""

from __future__ import annotations

import itertools
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
from ctrbox.serve.request import RequestReader, fast_reader

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


LEFT = "left to the slow way"


def read_one(kind: str, text: str, single: bool = False, low: int = -10, high: int = 10) -> Any:
    """Return the value of one candidate with one column, or LEFT."""
    reader = _native.RequestRows([("a", kind, low, high, single)], [], 3)
    found = reader.read(f'{{"candidates": [{{"a": {text}}}]}}'.encode("latin-1"))
    lists = reader.read(f'{{"candidates": {{"a": [{text}]}}}}'.encode("latin-1"))
    assert (found is None) == (lists is None)
    if found is None or lists is None:
        return LEFT
    assert column_of(found[2], 0).to_pylist() == column_of(lists[2], 0).to_pylist()
    return column_of(found[2], 0).to_pylist()[0]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        *(("i", text, int(text)) for text in ("-10", "-9", "-1", "-0", "0", "1", "9", "10")),
        *(
            ("i", text, LEFT)
            for text in ("-11", "11", "00", "01", "-01", "09", "+1", "-", "1.0", "1e0", "1E0", "1a", "")
        ),
        *(("i", text, LEFT) for text in ("9223372036854775808", "true", '"1"', ".", "0x1", "/", ":", "1:")),
        *(
            ("f", text, float(text))
            for text in ("0", "-0.0", "9", "10", "0.5", "90.09", "1e5", "1E5", "1e+2", "1e-2", "-1.25e0")
        ),
        *(
            ("f", text, LEFT)
            for text in ("1.", ".5", "1e", "1e+", "1e-", "1.e5", "01.5", "-", "1e400", "-1e400", "nan", "1.5.5")
        ),
        *(("s", f'"{text}"', text) for text in ("", " ", "~", "a b", "{}[],:", "'", "a" * 300)),
        *(("s", f'"{text}"', LEFT) for text in ("\x1f", "\x7f", "\x80", "\\n", "\\\\", "\n")),
        *(("s", text, LEFT) for text in ('"', '"a', "a", "1", "true")),
        *(("b", text, LEFT) for text in ("tru", "truE", "fals", "True", "1", "t", '"true"', "truefalse")),
        ("b", "true", True),
        ("b", "false", False),
        *((kind, "null", None) for kind in "bifs"),
        *((kind, text, LEFT) for kind in "bifs" for text in ("nul", "nulls", "n", "[]", "{}", "")),
    ],
)
def test_a_value_is_taken_where_it_is_plain_and_left_where_it_is_not(kind: str, text: str, expected: Any) -> None:
    found = read_one(kind, text)
    assert found == expected
    assert type(found) is type(expected)
    assert read_one(kind, f" \t\r\n{text} \t\r\n") == expected or expected is LEFT


def test_a_float32_is_rounded_and_left_where_it_is_too_large() -> None:
    assert read_one("f", "0.1", True) == float(np.float32(0.1))
    assert read_one("f", "3.4028235e38", True) == float(np.finfo(np.float32).max)
    assert (read_one("f", "3.5e38", True), read_one("f", "3.5e38")) == (LEFT, 3.5e38)
    assert read_one("i", str(2**63 - 1), low=-(2**63), high=2**63 - 1) == 2**63 - 1
    assert read_one("i", str(-(2**63)), low=-(2**63), high=2**63 - 1) == -(2**63)


@pytest.mark.parametrize(
    ("candidates", "rows"),
    [
        ('[{"a": 1, "b": "x"}]', 1),
        ('[{"b": "x", "a": 1}, {"b": "y", "a": 2}]', 2),
        ('[{"b": "x", "a": 1}, {"a": 2, "b": "y"}]', None),  # another order
        ('[{"a": 1}]', None),
        ('[{"a": 1, "b": "x", "a": 2}]', None),
        ('[{"a": 1, "b": "x", "d": 2}]', None),
        ('[{"a": 1, "b": "x"}, {"a": 1}]', None),
        ('[{"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 1}]', None),
        ('[{"a": 1, "b": "x", "c": 1}, {"a": 1, "b": "x"}]', None),
        ('[{"a": 1, "b": "x", "c": 1.5e3}]', 1),
        ('[{"a": 1, "c": null, "b": "x"}, {"a": 1, "c": true, "b": "x"}, {"a": 1, "c": false, "b": "x"}]', 3),
        ('[{"a": 1, "c": "x", "b": "x"}]', 1),
        ('[{"a": 1, "c": [1], "b": "x"}]', None),
        ('[{"a": 1, "c": 1e400, "b": "x"}]', None),
        ('[{"a": 1, "c": tru, "b": "x"}]', None),
        ('[{"c": 1}]', None),
        ("[" + ", ".join(['{"a": 1, "b": "x"}'] * 3) + "]", 3),
        ("[" + ", ".join(['{"a": 1, "b": "x"}'] * 4) + "]", None),
        ('{"a": [1, 2, 3], "b": ["x", null, "z"]}', 3),
        ('{"a": [1, 2, 3, 4], "b": ["x", "y", "z", "z"]}', None),
        ('{"c": [1, 2], "a": [1, 2], "b": ["x", "y"]}', 2),
        ('{"a": [1, 2], "b": ["x"]}', None),
        ('{"a": [1], "b": ["x", "y"]}', None),
        ('{"a": [1, 2], "b": ["x", "y"], "c": [1]}', None),
        ('{"a": [1]}', None),
        ('{"a": [1], "b": ["x"], "a": [1]}', None),
        ('{"a": [], "b": []}', None),
        ("[]", None),
        ("{}", None),
        ("[{}]", None),
        ('[{"a": 1, "b": "x"},]', None),
        ('[{"a": 1, "b": "x",}]', None),
        ('[{"a": 1, "b": "x"}', None),
        ('[{"a": 1 "b": "x"}]', None),
        ('[{"a" 1, "b": "x"}]', None),
        ('{"a": [1], "b": ["x"]', None),
        ('{"a": [1,], "b": ["x"]}', None),
        ("7", None),
    ],
)
def test_candidates_are_read_where_every_row_has_the_same_names(candidates: str, rows: int | None) -> None:
    reader = _native.RequestRows([("a", "i", -10, 10, False), ("b", "s", 0, 0, False)], ["c"], 3)
    context = '{"x": [{"y": "}\\"]\\\\"}], "z": {}}'
    for body in (
        f'{{"candidates": {candidates}}}',
        f'{{"context": {context}, "candidates": {candidates}}}',
        f' {{ "candidates" :\t{candidates}\n,\r"context" : {context} }} ',
    ):
        found = reader.read(body.encode())
        assert (None if found is None else found[2].rows) == rows
        if found is not None:
            assert body[found[0] : found[1]] == (context if "context" in body else "")
            assert column_of(found[2], 1).to_pylist()[0] == "x"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"context": {}}',
        '{"context": {}, "context": {}, "candidates": GOOD}',
        '{"candidates": GOOD, "candidates": GOOD}',
        '{"context": 7, "candidates": GOOD}',
        '{"context": [], "candidates": GOOD}',
        '{"context": {"a": "b, "candidates": GOOD}',
        '{"context": {"a": [}, "candidates": GOOD',
        '{"more": 1, "candidates": GOOD}',
        '{"candidates": GOOD} x',
        '{"candidates": GOOD}}',
        '{"candidates": GOOD',
        '{"candidates": GOOD,}',
        '"candidates": GOOD}',
        '{"candidates" GOOD}',
    ],
)
def test_a_body_of_another_form_is_left_to_the_slow_way(body: str) -> None:
    reader = _native.RequestRows([("a", "i", -10, 10, False)], [], 3)
    assert reader.read(b'{"candidates": [{"a": 1}]}') is not None
    assert reader.read(body.replace("GOOD", '[{"a": 1}]').encode()) is None


@pytest.mark.parametrize(
    ("types", "read"),
    [
        ([pa.int64(), pa.uint32(), pa.bool_(), pa.float32(), pa.large_string()], True),
        ([pa.uint64()], False),
        ([pa.int64(), pa.uint64()], False),
        ([pa.int64(), pa.float16()], False),
        ([pa.timestamp("us")], False),
        ([pa.list_(pa.int64())], False),
        ([], False),
    ],
)
def test_the_fast_reader_is_made_for_columns_that_it_reads(types: list[pa.DataType], read: bool) -> None:
    schema = pa.schema([("user", pa.uint64()), *((f"c{k}", type) for k, type in enumerate(types))])
    found = fast_reader(schema, frozenset({"user"}), [*schema.names, "extra"], 3)
    assert (found is not None) == read
    if read:
        row = {"c0": 1, "c1": 2, "c2": True, "c3": 0.5, "c4": "a", "extra": None}
        assert found.read(json.dumps({"candidates": [row] * 3}).encode())[2].rows == 3
        assert found.read(json.dumps({"candidates": [row] * 4}).encode()) is None
        assert found.read(json.dumps({"candidates": [{**row, "c0": 2**63}]}).encode()) is None
        assert found.read(json.dumps({"candidates": [{**row, "user": 1}]}).encode()) is None


def test_a_row_with_other_names_is_told_from_the_first() -> None:
    each = RequestReader(SCHEMA, KNOWN, None, 50).readers({})[1]
    row: dict[str, Any] = {f.name: None for f in SCHEMA}
    other = {("extra" if name == "ad" else name): value for name, value in row.items()}
    with pytest.raises(CtrboxError, match="row 0 has column 'ad', row 1 has not; every row needs the same"):
        each.rows([row, other])
    with pytest.raises(CtrboxError, match="row 1 must be an object of columns, got"):
        each.rows([row, 7])
    with pytest.raises(CtrboxError, match="row 1 has column 'extra', row 0 has not"):
        each.rows([row, {**row, "extra": 1}])


def test_orders_of_names_and_divisions_are_remembered_up_to_a_bound() -> None:
    reader = RequestReader(SCHEMA, KNOWN, None, 50)
    row = {"user": 1, "ad": 5, "slot": 3, "size": 9, "price": 1.5, "rate": 2, "title": "", "text": "", "shown": True}
    each = reader.readers({})[1]
    for order in itertools.islice(itertools.permutations(row), 70):
        assert each.rows([{name: row[name] for name in order}]).to_pylist() == [row]
    assert len(each.seen) == 64
    for names in itertools.islice(itertools.combinations(row, 3), 70):
        asked = {"context": {name: row[name] for name in names}}
        asked["candidates"] = [{name: value for name, value in row.items() if name not in names}]
        found = reader.from_json(json.dumps(asked).encode())
        assert found.context().to_pylist() == [{name: row[name] for name in row if name in names}]
    assert len(reader._readers) == 64
