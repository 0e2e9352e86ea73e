"""The fast reader of candidates against the slow one: the same columns, or it leaves the request to it."""

from __future__ import annotations

import itertools
import json
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox import _native
from ctrbox.columns.kind import kind_of_arrow
from ctrbox.columns.raw_values import RawColumn
from ctrbox.engines.cpu.frames_and_arrow import column_of
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


def values_of(row: Any) -> list[Any]:
    """Return the values of a record batch or of a native frame of one row, column by column, fractions by their bits."""
    if isinstance(row, pa.RecordBatch):
        columns = row.columns
    else:
        columns = [column_of(row, k) for k in range(row.columns)]
    # Times by their microseconds: some lie beyond those of datetime.
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns]
    values = [value for column in columns for value in column.to_pylist()]
    return [value.hex() if isinstance(value, float) else value for value in values]


def of_context(request: Any) -> Any:
    """Return the values of a request's context, or why it is refused, such as a name that is no column."""
    try:
        return values_of(request.context())
    except CtrboxError as error:
        return str(error)


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
    assert of_context(READER.from_json(body)) == of_context(expected)
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
    reader = _native.RequestRows([("a", "i", -10, 10, False, 0), ("b", "s", 0, 0, False, 0)], ["c"], 3)
    good = b'{"context": {"x": "\\"}"}, "candidates": [{"a": 1, "b": "t", "c": 1e5}, {"a": 2, "b": null, "c": true}]}'
    assert reader.read(good) is not None
    for body in (noise, good[:cut], good[:cut] + noise + good[cut:], good + noise.strip()):
        found = reader.read(body)
        if found is not None:  # all but the context, which is left to whoever needs it, is JSON
            assert json.loads(body[: found[0]] + b"{}" + body[found[1] :])["candidates"]


LEFT = "left to the slow way"


def read_one(kind: str, text: str, single: bool = False, low: int = -10, high: int = 10, unit: int = 0) -> Any:
    """Return the value of one candidate with one column, or LEFT."""
    reader = _native.RequestRows([("a", kind, low, high, single, unit)], [], 3)
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
        *(
            ("s", f'"{text}"', LEFT)
            for text in ("\x1f", "\x7f", "\x80", "\n", "\\", "\\x", "\\u00g0", "\\ud800", "\\u12")
        ),
        *(("s", text, LEFT) for text in ('"', '"a', "a", "1", "true")),
        *(("b", text, LEFT) for text in ("tru", "truE", "fals", "True", "1", "t", '"true"', "truefalse")),
        ("b", "true", True),
        ("b", "false", False),
        ("t", '"2026-11-18T09:30:15.5Z"', datetime(2026, 11, 18, 9, 30, 15, 500_000)),
        *(("t", text, LEFT) for text in ('"2026-11-31"', '" 2026-11-18"', '"now"', "1", '"2026-11-18T09\\u003a30"')),
        *((kind, "null", None) for kind in "bifst"),
        *((kind, text, LEFT) for kind in "bifst" for text in ("nul", "nulls", "n", "[]", "{}", "")),
    ],
)
def test_a_value_is_taken_where_it_is_plain_and_left_where_it_is_not(kind: str, text: str, expected: Any) -> None:
    found = read_one(kind, text)
    assert found == expected
    assert type(found) is type(expected)
    assert read_one(kind, f" \t\r\n{text} \t\r\n") == expected or expected is LEFT


@pytest.mark.parametrize(("text", "negative"), [("-0", False), ("0", False), ("-0.0", True), ("-0e0", True)])
def test_a_whole_zero_has_no_sign(text: str, negative: bool) -> None:
    body = f'{{"context": {{"user": 1}}, "candidates": [{{"price": {text}}}]}}'.encode()
    reader = RequestReader(pa.schema([("user", pa.int64()), ("price", pa.float64())]), ["user", "price"], ["user"], 5)
    fast, slow = column_of(reader.from_json(body).candidates, 0), reader.slowly(body).candidates["price"]
    assert [bool(np.signbit(column.to_numpy()[0])) for column in (fast, slow)] == [negative] * 2


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
    reader = _native.RequestRows([("a", "i", -10, 10, False, 0), ("b", "s", 0, 0, False, 0)], ["c"], 3)
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
    reader = _native.RequestRows([("a", "i", -10, 10, False, 0)], [], 3)
    assert reader.read(b'{"candidates": [{"a": 1}]}') is not None
    assert reader.read(body.replace("GOOD", '[{"a": 1}]').encode()) is None


@pytest.mark.parametrize(
    ("types", "read"),
    [
        ([pa.int64(), pa.uint32(), pa.bool_(), pa.float32(), pa.large_string()], True),
        ([pa.uint64()], False),
        ([pa.int64(), pa.uint64()], False),
        ([pa.int64(), pa.float16()], False),
        ([pa.timestamp("ns")], False),
        ([pa.list_(pa.int64())], False),
        ([], False),
    ],
)
def test_the_fast_reader_is_made_for_columns_that_it_reads(types: list[pa.DataType], read: bool) -> None:
    schema = pa.schema([("user", pa.uint64()), *((f"c{k}", type) for k, type in enumerate(types))])
    found = fast_reader([RawColumn(field) for field in schema if field.name != "user"], ["extra"], 3)
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
    with pytest.raises(
        CtrboxError, match="row 0 has column 'ad', but row 1 does not; every row needs the same columns"
    ):
        each.rows([row, other])
    with pytest.raises(CtrboxError, match="row 1 must be an object of columns, got"):
        each.rows([row, 7])
    with pytest.raises(CtrboxError, match="row 1 has column 'extra', but row 0 does not"):
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


WHEN = pa.schema(
    [
        ("user", pa.int32()),
        ("rate", pa.float32()),
        ("query", pa.string()),
        ("shown", pa.bool_()),
        ("ts", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("seconds", pa.timestamp("us")),
        ("ad", pa.int64()),
    ]
)
ONCE = [*WHEN.names[:-1], "unread"]
CONTEXTS = RequestReader(WHEN, [*WHEN.names, "unread"], ONCE, 50, {"seconds": "s"})
times = st.one_of(
    st.datetimes().map(lambda t: t.isoformat()),
    st.dates().map(lambda d: d.isoformat()),
    st.sampled_from(
        [
            "2026-11-18T09:30",
            "2026-11-18 09:30:15.123456789+01:00",
            "0001-01-01T00:00:00+00:01",
            "0001-01-01T00:00:00+23:59",
            "9999-12-31T23:59:59.999999-23:59",
            "2024-02-30",
            "0000-01-01",
            "2026-11-18T09:30Z ",
            "2026-11-18T24:00",
            "2026-11-18T09:30:60",
        ]
    ),
)
seconds = st.one_of(
    st.integers(-(2**40), 2**40), st.sampled_from([-62_135_596_800, -62_135_596_801, 253_402_300_799, 253_402_300_800])
)
texts = st.one_of(
    st.text(max_size=8), st.sampled_from(['say "hi"', "\\/\b\f\n\r\t", "Mérida", "😀", "\0", "\ud800", '{"a":"b"}'])
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_context_that_the_fast_reader_takes_is_what_the_slow_one_makes(data: st.DataObject) -> None:
    draw = data.draw
    row: dict[str, Any] = {
        "user": draw(st.none() | st.integers(-(2**31) - 1, 2**31)),
        "rate": draw(
            st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.1, 1e39])
        ),
        "query": draw(st.none() | texts),
        "shown": draw(st.none() | st.booleans()),
        "ts": draw(st.none() | times),
        "zoned": draw(st.none() | times),
        "seconds": draw(st.none() | times | seconds),
        "unread": draw(st.none() | texts | st.integers() | st.lists(st.integers(), max_size=2)),
    }
    names = draw(st.permutations(list(row)))
    if draw(st.integers(0, 9)) == 0:
        names = names[1:]
    if draw(st.integers(0, 9)) == 0:
        row[names[0]] = draw(wild)
    context = {name: row[name] for name in names}
    text = json.dumps(context, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(text)))
        text = (
            text[:at] + draw(st.sampled_from(["", "0", '"', "}", ",", "\\", "\\u00e9", " ", "\x00"])) + text[at + 1 :]
        )
    found = CONTEXTS._fast_context.row(text.encode(errors="surrogatepass"))
    if found is None:
        return
    assert CONTEXTS._fixed is not None
    expected = CONTEXTS._fixed[0].row(json.loads(text))
    assert found.rows == 1
    assert values_of(found) == values_of(expected)


def test_plain_contexts_go_the_fast_way() -> None:
    row = {
        "user": 7,
        "rate": 0.1,
        "query": 'Cama "XL" 😀 M\u00e9rida',
        "shown": True,
        "ts": "2026-11-18T09:30:15.25",
        "zoned": "2026-11-18T10:30:15.25+01:00",
        "seconds": 1_795_000_000,
        "unread": None,
    }
    for ascii_only in (True, False):
        text = json.dumps(row, ensure_ascii=ascii_only).encode()
        found = CONTEXTS._fast_context.row(text)
        assert found is not None
        assert column_of(found, 2).to_pylist() == [row["query"]]
        assert column_of(found, 4).equals(column_of(found, 5))
        assert column_of(found, 6).to_pylist() == [datetime(2026, 11, 18, 11, 6, 40)]
        body = b'{"context": %s, "candidates": [{"ad": 1}]}' % text
        request = CONTEXTS.from_json(body)
        assert values_of(request.context()) == values_of(CONTEXTS.slowly(body).context())
    assert CONTEXTS._fast_context.row(json.dumps({**row, "seconds": 1.5}).encode()) is None
    assert CONTEXTS._fast_context.row(json.dumps({**row, "ts": 1_795_000_000}).encode()) is None
    assert CONTEXTS._fast_context.row(json.dumps(row).encode() + b"x") is None
    assert CONTEXTS._fast_context.row(b"{}") is None
    assert CONTEXTS._fast_context.row(json.dumps({**row, "ad": 1}).encode()) is None


def test_some_columns_of_a_frame_are_selected_without_copying() -> None:
    found = CONTEXTS._fast.read(b'{"candidates": [{"ad": 1}, {"ad": null}]}')[2]
    twice = found.selected([0, 0])
    del found
    assert [column_of(twice, k).to_pylist() for k in range(2)] == [[1, None], [1, None]]
    with pytest.raises(IndexError):
        twice.selected([2])
    arrow = _native.Frame.from_arrow(pa.record_batch({"a": [1]}))
    with pytest.raises(ValueError, match="only kept columns can be selected"):
        arrow.selected([0])
