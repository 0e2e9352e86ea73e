"""Tests the whole messages of a scorer about wrong requests, and which JSON the fast readers accept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrbox import _native
from tests.serve.test_lying_request_plans import EACH, GOOD, HIGH, LOW, SECOND, column

COLUMNS = [
    ("ad", "i", LOW, HIGH, False, 0),
    ("n", "i", -3, 7, False, 0),
    ("word", "s", 0, 0, False, 0),
    ("b", "b", 0, 0, False, 0),
    ("x", "f", 0, 0, False, 0),
    ("y", "f", 0, 0, True, 0),
    ("at", "t", -9, 9, False, SECOND),
    ("day", "t", 0, 0, False, 0),
]
ROW: dict[str, Any] = {"ad": 5, "n": 7, "word": "é", "b": True, "x": 0.5, "y": -1e10, "at": 9, "day": "2024-05-01"}

NULL = "column 'c' is null, but the plan was built on data where it never is; "
NULL += "give every row a value, or add .fill(c=…) to its view"


def scorer_of(place: Path, weight: float) -> Any:
    """A scorer of a key of the user and one of the ad, with all weights alike."""
    each = replace(EACH, columns=tuple(range(len(COLUMNS))))
    plan = replace(GOOD, candidates=[column(*described) for described in COLUMNS], each=each)
    place.write_bytes(plan.octets())
    settings = _native.FfmSettings()
    settings.fields, settings.context, settings.k, settings.bits, settings.hidden = 2, 1, 2, 6, []
    model = _native.DeepFfm(settings, False)
    model.give_weights(np.full(settings.weights(), weight, np.float32))
    return _native.RequestScorer(_native.RequestPlan.read(str(place)), model, ["user", "ad"])


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return scorer_of(tmp_path_factory.mktemp("plan") / "request.ctr", 0.0)


def of(candidates: str, context: str = '{"user": 1}', behind: str = "") -> str:
    return f'{{"context": {context}, "candidates": {candidates}}}{behind}'


def row(**changes: Any) -> str:
    """A list of one candidate; of a changed column its JSON."""
    return "[{" + ", ".join(f'"{k}": {changes.get(k, json.dumps(v))}' for k, v in ROW.items()) + "}]"


def wrong(kind: str, met: str) -> str:
    return f"candidates: row 0: column '{kind[0]}' must be {kind[1:]}, or null; met {met}"


WHOLE = f"a whole number from {LOW} to {HIGH}"
SMALL = "a whole number from -3 to 7"
REST = json.dumps(ROW)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("", "expected an object with context and candidates at byte 0, where the request ends"),
        ("[1]", "expected an object with context and candidates at byte 0, met [1]"),
        ("  " + "x" * 41, f"expected an object with context and candidates at byte 2, met {'x' * 40}..."),
        ("x" * 40, f"expected an object with context and candidates at byte 0, met {'x' * 40}"),
        ("\x1f~\x7f", "expected an object with context and candidates at byte 0, met ?~?"),
        ("{", 'expected "context" or "candidates" at byte 1, where the request ends'),
        ("{}", 'expected "context" or "candidates" at byte 1, met }'),
        ('{"context"}', "expected a colon at byte 10, met }"),
        ('{"context": []}', "expected an object of columns at byte 12, met []}"),
        ('{"context": {"a": 1', "expected the end of the context at byte 19, where the request ends"),
        ('{"context": {}, ', 'expected "context" or "candidates" at byte 16, where the request ends'),
        ('{"context": {} x', "expected a comma or the end of the request at byte 15, met x"),
        ('{"context": {}}', "the request has no candidates"),
        ('{"candidates": [], "candidates": []}', "'candidates' occurs twice"),
        ('{"context": {}, "context": {}}', "'context' occurs twice"),
        ('{"score": 1}', "a request has a context and candidates, but no 'score'"),
        (of("[]", behind="x"), "expected nothing behind the request at byte 42, met x"),
        (of("[]", behind=" \t\r\n"), ""),
        (of("7"), "candidates: expected a list of objects, or an object of lists at byte 39, met 7}"),
        (of("[7]"), "candidates: expected an object of columns at byte 40, met 7]}"),
        (of("[{]"), "candidates: expected the name of a column, without escapes at byte 41, met ]}"),
        (of('[{"ad" 1}]'), "candidates: expected a colon at byte 46, met 1}]}"),
        (of('[{"\\u0061d": 1}]'), 'candidates: expected the name of a column, without escapes at byte 42, met \\u0061d": 1}]}'),
        (of('[{"add": 1}]'), "candidates: there is no column 'add' here"),
        (of('[{"' + "a" * 41 + '": 1}]'), f"candidates: there is no column '{'a' * 40}...' here"),
        (of('[{"ad": 1, "ad": 2}]'), "candidates: column 'ad' occurs twice"),
        (of('[{"ad": 1}]'), "candidates: column 'n' is missing"),
        (of('[{"ad": 1 "n"'), 'candidates: expected a comma or the end of the object at byte 49, met "n"}'),
        (of("[" + REST + " 7"), f"candidates: expected a comma or the end of the list at byte {41 + len(REST)}, met 7}}"),
        (of("[" + REST + ', {"n": 1}]'),
         "candidates: row 1 has column 'n' where row 0 has another one; all rows need the same columns in the same order"),
        (of("[" + REST + ', {"ad": 1}]'), "candidates: row 1 lacks column 'n', which row 0 has"),
        (of("[" + REST + ', {}]'), "candidates: row 1 lacks column 'ad', which row 0 has"),
        (of("[" + REST + ", " + REST[:-1] + ', "more": 1}]'),
         "candidates: row 1 has column 'more' where row 0 has another one; all rows need the same columns in the same order"),
        (of("[" + REST + ", " + REST + "]"), ""),
        (of("[" + REST[:-1] + ', "unread": 7}]'), ""),
        (of("[" + REST[:-1] + ', "unread": [7]}]'),
         f"candidates: expected a string, a number, true, false or null at byte {51 + len(REST)}, met [7]}}]}}"),
        # Lists of columns.
        (of("{}"), "candidates: column 'ad' is missing"),
        (of('{"ad" 7}'), "candidates: expected a colon at byte 45, met 7}}"),
        (of("{7}"), "candidates: expected the name of a column, without escapes at byte 40, met 7}}"),
        (of('{"ad": 7}'), "candidates: expected a list of values at byte 46, met 7}}"),
        (of('{"ad": [7 8]}'), "candidates: expected a comma or the end of the list at byte 49, met 8]}}"),
        (of('{"ad": [7], "n": []}'), "candidates: column 'ad' has 1 values, but column 'n' has 0"),
        (of('{"ad": [7, 8], "n": [1]}'), "candidates: column 'ad' has 2 values, but column 'n' has 1"),
        (of('{"ad": [7, true]}'), f"candidates: row 1: column 'ad' must be {WHOLE}, or null; met true]}}}}"),
        (of('{"ad": [7] "n"'), 'candidates: expected a comma or the end of the object at byte 50, met "n"}'),
        (of('{"unread": [7], "ad": [1, 2]}'), "candidates: column 'unread' has 1 values, but column 'ad' has 2"),
        (of("{" + ", ".join(f'"{k}": [{json.dumps(v)}]' for k, v in ROW.items()) + "}"), ""),
        (of("{" + ", ".join(f'"{k}": []' for k in ROW) + "}"), ""),
        # Values.
        *((of(row(**{name: value})), f"candidates: row 0: column '{name}' must be {what}, or null; met {value}")
          for name, what, values in (
            ("ad", WHOLE, ("1.5", "1e3", '"1"', "true", str(HIGH + 1), str(LOW - 1), "-", "+1", "01", "nul")),
            ("n", SMALL, ("8", "-4")),
            ("word", "a string of UTF-8 without control characters", ("7", "true", "'a'")),
            ("b", "true, false or null"[:-9], ()),
            ("x", "a number that fits float64", ('"1"', "1e400", "NaN", "-Infinity", ".5", "1.", "1e")),
            ("y", "a number that fits float32", ("1e39",)),
            ("at", "a time as text, a whole number from -9 to 9", ("10", "-10", "0.5", '"noon"', "true")),
            ("day", "a time as text", ("7", '"05-01"', "false")))
          for value in values),
        (of(row(b="1")), "candidates: row 0: column 'b' must be true, false or null; met 1"),
        *((of(row(**{name: value})), "") for name, value in (
            ("ad", str(HIGH)), ("ad", str(LOW)), ("ad", "-0"), ("n", "-3"), ("n", "null"), ("word", "null"),
            ("word", '""'), ("b", "false"), ("b", "null"), ("x", "null"), ("x", "-0"), ("x", "1E+2"), ("x", "1.5e-3"),
            ("y", "1e38"), ("at", "-9"), ("at", '"1970-01-01T00:00:09Z"'), ("at", "null"), ("day", "null"))),
        (of(row(ad="null")), f"candidate 0: {NULL}"),
        (of("[]", "{}"), "context: column 'user' is missing"),
        ('{"candidates": []}', "context: column 'user' is missing"),
        (of("[]", '{"user": null}'), f"context: {NULL}"),
        (of("[]", '{"user": "1"}'), f"context: row 0: column 'user' must be {WHOLE}, or null; met \"1\"}}"),
        (of("[]", '{"usr": 1}'), "context: there is no column 'usr' here"),
        (of("[]", '{"user": 1, "unread": "x"}'), ""),
        (of("[]", "{}}"), "the request has no candidates"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_told_where_it_is_wrong(scorer: Any, body: str, sentence: str) -> None:
    _, met = scorer.scores(body.encode("latin-1") if "\x7f" in body else body.encode())
    if "; met " in sentence:  # the rest of the request follows, as far as it is shown
        assert met.startswith(sentence)
        assert len(met.split("; met ")[1]) <= 43
        assert f"must be {sentence.split('must be ')[1].split('; met')[0]}; met" in met
    else:
        assert met == sentence


def test_a_score_that_is_not_finite_names_its_candidate(tmp_path: Path) -> None:
    scorer = scorer_of(tmp_path / "request.ctr", 3e38)
    body = of("[" + REST + ", " + REST + "]").encode()
    assert scorer.scores(body)[1] == "the score of candidate 0 is not finite; check that no value is too large"


def test_a_request_has_at_most_so_many_candidates() -> None:
    for most in (1, 2):
        reader = _native.RequestRows([COLUMNS[0]], [], most)
        for count in (1, 2, 3):
            for candidates in ([{"ad": k} for k in range(count)], {"ad": list(range(count))}):
                found = reader.read(json.dumps({"candidates": candidates}).encode())
                assert (found is not None) == (count <= most)


def test_where_the_context_lies_is_told() -> None:
    reader = _native.RequestRows([COLUMNS[0]], [], 10)
    for context in ("{}", '{"a": "}"}', '{"a": "\\"}"}', '{"a": {"b": []}}', '{"a": [{}, "\\\\"]}'):
        body = f'{{ "context" : {context} , "candidates": [{{"ad": 1}}]}}'.encode()
        begin, end, _ = reader.read(body)
        assert body[begin:end].decode() == context
    for context in ("{", '{"a}', '{"a": "\\"}', "{]", "[]"):
        read = reader.read(f'{{"context": {context}'.encode())
        assert read is None
    assert reader.read(b'{"candidates": []}') is None


# ---- JSON, value by value


def value_of(kind: str, raw: bytes) -> Any:
    """Return what the reader makes of one value, or None if it leaves the value to the slow reader."""
    frame = _native.RequestRows([("c", kind, LOW, HIGH, False, 0)], [], 10).row(b'{"c":' + raw + b"}")
    if frame is None:
        return None
    _, valid, (values, *octets) = frame.export(0)
    assert valid is None
    return octets[0].tobytes().decode() if octets else values[0].item()


@pytest.mark.parametrize(
    "raw",
    [
        '""', '"a"', ' \t\r\n"a" ', '"é€😀"', '"\\""', '"\\\\"', '"\\/"', '"\\b\\f\\n\\r\\t"', '"x\\ny"', '"\\u0041"',
        '"\\u00e9"', '"\\u00E9"', '"\\u007e"', '"\\u0080"', '"\\u07ff"', '"\\u0800"', '"\\ud7ff"', '"\\ue000"', '"\\uffff"',
        '"\\ud800\\udc00"', '"\\udbff\\udfff"', '"\\ud83d\\ude00!"', '"é\\u00e9é"', '"\\u00e9' + "x" * 300 + '"',
        '"~ "', '"{[\\"]}"',
    ],
)  # fmt: skip
def test_a_text_is_what_every_parser_makes_of_it(raw: str) -> None:
    assert value_of("s", raw.encode()) == json.loads(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'"', b'"a', b"a", b"'a'", b'"\\"', b'"\\x"', b'"\\', b'"\\u"', b'"\\u004"', b'"\\u004g"', b'"\\u004G"', b'"\\u00:1"',
        b'"\\u00/1"', b'"\\u00@1"', b'"\\u00`1"', b'"\\ud800"', b'"\\ud800x"', b'"\\ud800\\n"', b'"\\ud800\\u0041"',
        b'"\\ud800\\ud800"',
        b'"\\ud800\\ue000"', b'"\\udc00"', b'"\\udfff\\ud800"', b'"\x1f"', b'"\x7f"', b'"\n"', b'"\x80"', b'"\xc3"', b'"\xc3x"',
        b'"\xe2\x82"', b'"\xff"', b'"\\n\x1f"', b'"\\n\x80"', b'"\\n', b'"a" "b"', b'"a",', b'"a"]', b"",
    ],
)  # fmt: skip
def test_a_text_that_some_parser_reads_otherwise_is_left_to_others(raw: bytes) -> None:
    assert value_of("s", raw) is None


@pytest.mark.parametrize(
    "raw", ["0", "-0", "7", "-7", "10", "9007199254740993", str(HIGH), str(LOW), "0.5", "-0.25", "1e3", "1E3", "1e+3", "1e-3",
            "12.5e2", "0e0", "0.0", "1e308", "5e-324", "123456789.123456789", "9999999999999999999"]
)  # fmt: skip
def test_a_number_is_what_every_parser_makes_of_it(raw: str) -> None:
    expected = json.loads(raw)
    met = value_of("f", raw.encode())
    assert (met, np.signbit(met)) == (float(expected), np.signbit(float(expected)))
    whole = isinstance(expected, int) and LOW <= expected <= HIGH
    assert value_of("i", raw.encode()) == (expected if whole else None)


@pytest.mark.parametrize(
    "raw", ["", "-", "+1", "01", "-01", "00", ".5", "1.", "1.e3", "1e", "1e+", "1e-", "1 2", "1x", "0x1", "1_0", "1e400", "NaN",
            "Infinity", "-Infinity", "--1", "1.5.5", "/", ":", "true", '"1"']
)  # fmt: skip
def test_what_is_no_number_is_left_to_others(raw: str) -> None:
    assert value_of("f", raw.encode()) is None
    assert value_of("i", raw.encode()) is None


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("true", True),
        ("false", False),
        ("tru", None),
        ("truex", None),
        ("True", None),
        ("1", None),
        ("falsefalse", None),
    ],
)
def test_a_bool_is_one_of_two_words(raw: str, value: bool | None) -> None:
    met = value_of("b", raw.encode())
    assert (None if met is None else bool(met)) == value
