"""JSON paths equal Python's json module on valid, broken and hostile documents."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from tests.twins import json_paths as twin
from tests.twins.numbers import same

unhurried = settings(deadline=None)  # a busy machine is no failure

KINDS = ("str", "int", "float", "bool", "list[str]", "list[int]", "list[float]")
NAMES = st.sampled_from(
    ["a", "b", "c", "a b", "é", "", "it's", 'q"', "back\\slash", "a_longer_key_1", "a_longer_key_2"]
)
NUMBERS = (
    st.integers(-(2**64), 2**64).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)
)
BLANKS = st.sampled_from(["", "", "", " ", "\n\t", "\r "])


@st.composite
def strings(draw: Any) -> str:
    """A JSON string with its quotes; some characters escaped that need not be."""
    out = ""
    for c in draw(st.text(max_size=12) | NAMES):
        if draw(st.integers(0, 9)) == 0 or c in '"\\' or ord(c) < 0x20 or 0xD800 <= ord(c) < 0xE000:
            out += json.dumps(c)[1:-1] if c != "/" else "\\/"
        else:
            out += c
    return (
        '"'
        + out
        + draw(st.sampled_from(["", "", "", "\\ud800", "\\udc00", "\\ud83d\\ude00", "\\u0000", "\\ud83dx"]))
        + '"'
    )


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    keys = (
        NAMES.map(lambda s: json.dumps(s, ensure_ascii=False))
        | NAMES.map(json.dumps)
        | NAMES.map(lambda s: '"' + "".join(f"\\u{ord(c):04x}" for c in s) + '"')
    )
    member = st.builds(lambda k, x, y, v: f"{k}{x}:{y}{v}", keys, BLANKS, BLANKS, inner)
    array = st.builds(lambda pad, items: f"[{pad}{(pad + ',').join(items)}{pad}]", BLANKS, st.lists(inner, max_size=4))
    record = st.builds(
        lambda pad, items: f"{{{pad}{(',' + pad).join(items)}{pad}}}", BLANKS, st.lists(member, max_size=5)
    )
    return array | record


DOCUMENTS = st.builds(
    lambda a, v, b: (a + v + b).encode("utf-8", "surrogatepass"),
    BLANKS,
    st.recursive(st.sampled_from(["true", "false", "null"]) | NUMBERS | strings(), containers, max_leaves=12),
    BLANKS,
)
ALPHABET = b'{}[]":,\\u019eE+-.tfnNaIy \n\x00\x1f\x7f\xc3\xff'


@st.composite
def mutants(draw: Any) -> bytes:
    """A valid document with a few bytes changed, removed or put in."""
    doc = bytearray(draw(DOCUMENTS))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(doc)))
        doc[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from([b"", *(bytes([b]) for b in ALPHABET)]))
    return bytes(doc)


STEPS = st.lists(NAMES.map(str.encode) | st.integers(0, 3), max_size=4)
PATHS = st.lists(st.tuples(STEPS, st.sampled_from(KINDS)), min_size=1, max_size=6)


def got(
    docs: list[bytes | None], paths: list[tuple[list[bytes | int], str]], chunk_rows: int = 1024
) -> list[list[Any]]:
    """One list per path."""
    table = pa.table({"d": pa.array(docs, pa.binary())})
    exprs = {str(k): col("d").json(twin.render(steps), kind) for k, (steps, kind) in enumerate(paths)}
    out = cb.compute(exprs, table, chunk_rows=chunk_rows)
    columns = []
    for k, (_, kind) in enumerate(paths):
        column = out[str(k)]
        if kind == "str":
            column = column.cast(pa.large_binary())
        elif kind == "list[str]":
            column = column.cast(pa.large_list(pa.large_binary()))
        columns.append(column.to_pylist())
    return columns


def check(docs: list[bytes | None], paths: list[tuple[list[bytes | int], str]], chunk_rows: int = 1024) -> None:
    want = [twin.evaluate(d, paths)[0] for d in docs]
    for k, column in enumerate(got(docs, paths, chunk_rows)):
        bad = [(d, paths[k], g, w[k]) for d, g, w in zip(docs, column, want, strict=True) if not same(g, w[k])]
        assert not bad, bad


@unhurried
@given(st.lists(st.none() | DOCUMENTS, max_size=8), PATHS, st.integers(1, 5))
@example(
    [b'{"a":{"b":1},"a":{"c":2}}', b'{"a":{"b":1,"b":2}}', b'{"\\u0061":{"b":3}}'],
    [([b"a", b"b"], "int"), ([b"a"], "str")],
    2,
)
@example([b'[1,[2],{"a":"]"},"\\n",null,1.0,true]', b"[]", b"[ ]", b"{}", b""], [([], k) for k in KINDS], 2)
@pytest.mark.slow
def test_values_equal_pythons_json(
    docs: list[bytes | None], paths: list[tuple[list[bytes | int], str]], chunk_rows: int
) -> None:
    check(docs, paths, chunk_rows)


@settings(max_examples=100, deadline=None)
@given(st.lists(mutants(), min_size=1, max_size=8))
@example(
    [
        b"",
        b" ",
        b"NaN",
        b"-Infinity",
        b"[1,]",
        b'{"a":1,}',
        b"01",
        b"1.",
        b"+1",
        b"\xef\xbb\xbf{}",
        b'"\n"',
        b'"\x7f"',
        b'"\xff"',
        b"1 2",
    ]
)
@example(
    [
        b'"\\u12"',
        b'"\\ud800',
        b"[" * 64 + b"]" * 64,
        b"[" * 65 + b"]" * 65,
        b"[" * 5000,
        b"{}x",
        b"\x00",
        b'{"a":tr}',
        b"[1]]",
        b"nul",
        b"truee",
    ]
)
@pytest.mark.slow
def test_validity_equals_pythons_json(docs: list[bytes]) -> None:
    # The whole document is asked for: a value tells that it is valid ("null" is valid without one).
    for doc, value in zip(docs, got(list(docs), [([], "str")])[0], strict=True):
        malformed = twin.evaluate(doc, [])[1]
        assert (value is None) == (malformed or doc.strip(b" \t\n\r") == b"null"), doc
    check(list(docs), [([b"a"], "str"), ([b"a", b"b"], "float"), ([0], "list[str]")])


@unhurried
@given(st.lists(NUMBERS, min_size=1, max_size=10))
@example(
    [
        "1.0",
        "1e3",
        "1.5",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808.0",
        "1e400",
        "-0",
        "-0.0",
        "0e9999",
    ]
)
@example(
    [
        "1e18",
        "1e19",
        "12345678901234567890123e-5",
        "1000e-3",
        "1e-400",
        "9223372036854775807.00000000000000000000000001",
    ]
)
def test_numbers_keep_their_exact_meaning(numbers: list[str]) -> None:
    docs: list[bytes | None] = [json_number.encode() for json_number in numbers]
    check(docs, [([], "int"), ([], "float"), ([], "str")])
    check(
        [b"[" + b",".join(d for d in docs if d) + b"]"],
        [([], "list[int]"), ([], "list[float]"), ([], "list[str]")],
    )


@pytest.mark.parametrize("length", [*range(20), 56, 62, 63, 64, 65, 66, 120, 128, 1000])
def test_strings_of_every_length_end_where_they_end(length: int) -> None:
    text = b"x" * length
    docs: list[bytes | None] = [
        b'{"k":"' + text + b'","a":"' + text + b'"}',
        b'{"a":"' + text + b'\\n"}',
        b'{"a":"' + text + b"\n" + b'"}',
        b'{"a":"' + text,
        b'{"' + text + b'":1,"a":2}',
        b'"' + text + b'"',
        b'{"a":1' + b" " * length + b"}",
    ]
    check(docs, [([b"a"], "str"), ([], "str"), ([text], "int")])


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("a.b", "starts with '$'"),
        ("$.a[-1]", "an index that counts from the end is not supported at position 4"),
        ("$..a", "position 2"),
        ("$.a[*]", "position 4"),
        ("$.a[1", "']' was expected"),
        ("$['a", "not closed"),
        ("$.a b", "position 3"),
    ],
)
def test_a_path_that_makes_no_sense_is_refused_with_its_place(path: str, says: str) -> None:
    with pytest.raises(cb.errors.PlanError, match="path") as error:
        cb.compute({"out": col("d").json(path)}, pa.table({"d": ["{}"]}))
    assert says in str(error.value)


def test_strict_names_the_first_malformed_row() -> None:
    table = pa.table({"d": ['{"a":1}', None, "{bad", "[", '{"a":2}']})
    with pytest.raises(cb.errors.DataError, match="2"):
        cb.compute({"out": col("d").json("$.a", "int", strict=True)}, table)


VALUES = [
    *("0", "-1", "1.5", "1e3", "true", "false", "null", '"text"', '""', '"\\u00e9\\n"', '"é"', "9223372036854775808"),
    *(
        "[]",
        "[ ]",
        "[1, 2,3]",
        '["a", "b\\"]", ""]',
        "[1.5, -2e1]",
        "[true,false]",
        "[null, 1]",
        '[1, "a", [2, "]"], {"b": "}"}]',
    ),
    *(
        "[[1], [2, 3]]",
        "{}",
        '{"b": 1}',
        '{"b": {"c": [4, 5]}}',
        '{"b": true, "c": false}',
        "[[], {}, [[]]]",
        '[{"b": 7}, 8]',
    ),
]
BROKEN = [
    *(
        "",
        " ",
        "tru",
        "truE",
        "falsy",
        "nul",
        "01",
        "1.",
        "+1",
        ".5",
        "1e",
        "-",
        "NaN",
        '"a',
        '"\n"',
        '"\\x"',
        '"\\u12g4"',
    ),
    *(
        "[1,]",
        "[1 2]",
        "[",
        "]",
        "[1}",
        '{"b"}',
        '{"b" 1}',
        '{"b": 1,}',
        "{b: 1}",
        '{"b": 1 "c": 2}',
        "{,}",
        '{"b":}',
        "1 2",
    ),
]
PLACES: list[list[bytes | int]] = [
    [],
    [b"a"],
    [0],
    [1],
    [2],
    [b"b"],
    [b"b", b"c"],
    [b"b", b"c", 1],
    [0, b"b"],
    [3, b"b"],
    [2, 1],
]


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_documents_equal_pythons_json(kind: str) -> None:
    around = [
        "%s",
        " %s\n",
        '{"a": %s}',
        '{"x": "a", "a" : %s , "b": 1}',
        '{"\\u0061":%s}',
        "[%s]",
        "[0, %s , 2]",
        '{"a":1,"a":%s}',
    ]
    docs = [(form % value).encode() for form in around for value in [*VALUES, *BROKEN]]
    for place in PLACES:
        check(list(docs), [(place, kind)], 64)
    several = [(place, kind) for place in PLACES]
    check(list(docs), several, 7)


def test_documents_are_as_deep_as_64_levels() -> None:
    deep = [b"[" * n + b"]" * n for n in (63, 64, 65)] + [b'{"a":' * n + b"1" + b"}" * n for n in (63, 64, 65)]
    check([*deep, b"[" * 5000, b"[1]]", b"{}x", b"\x00", b"\xef\xbb\xbf{}", b'"\xff"', b'"\x7f"'], [([], "str")])
    check(list(deep), [([0, 0], "str"), ([b"a"] * 3, "str"), ([b"a"] * 64, "int")])


def test_keys_of_every_form_are_found() -> None:
    names = [b"a", b"a b", "é".encode(), b"", b"it's", b'q"', b"back\\slash", b"a_longer_key_1", b"a_longer_key_2"]
    docs: list[bytes | None] = []
    for spell in (
        lambda s: json.dumps(s, ensure_ascii=False),
        json.dumps,
        lambda s: '"' + "".join(f"\\u{ord(c):04x}" for c in s) + '"',
    ):
        docs += [f"{{{spell(name.decode())}: {n}}}".encode() for n, name in enumerate(names)]
    check(docs, [([name], "int") for name in names])
