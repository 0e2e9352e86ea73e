"""String operators equal their slow twins on hostile text: any bytes, any script, any length."""

from __future__ import annotations

import io
import sys
import unicodedata
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from tests.twins import strings as twin

unhurried = settings(deadline=None, max_examples=50)  # a busy machine is no failure

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "native/operators/unicode_tables.h"
TABLES_VERSION = TABLES.read_text().split()[2].rstrip(";")
SAME_UNICODE = unicodedata.unidata_version == TABLES_VERSION
OTHER_UNICODE = f"the tables are Unicode {TABLES_VERSION}, this Python has {unicodedata.unidata_version}"

# Cases: none, simple, final sigma, growing (Ⱥ) and shrinking (Kelvin) in bytes, several code points (İ);
# marks, a joiner, white space that is not ASCII, scripts with and without spaces, emoji, a zero byte.
CHARS = "aAzZ09_ ,|.-\t\n\0@[`{é́ÄßİıΣςσПяʼnȺⱥ\u212a½Ⅷ²がが゙ー中文々〇한글กำ \u3000\u200d\ufe0f👍🏽❤𐐀𝟙"
characters = st.characters(codec="utf-8") if SAME_UNICODE else st.sampled_from(CHARS)
texts = st.text(st.sampled_from(CHARS) | characters, max_size=40)
# Sequences cut short, overlong, surrogates, above U+10FFFF, stray.
BROKEN = (
    b"\xff",
    b"\x80",
    b"\xc3",
    b"\xe4\xb8",
    b"\xf0\x9f\x91",
    b"\xc0\x80",
    b"\xe0\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
)
rows = (
    texts.map(twin.raw)
    | st.binary(max_size=24)
    | st.text(st.sampled_from("aAbB ,_"), max_size=200).map(str.encode)
    | st.lists(texts.map(twin.raw) | st.sampled_from(BROKEN), max_size=6).map(b"".join)
)
columns = st.lists(st.none() | rows, max_size=12)
pairs = st.lists(st.tuples(st.none() | rows, st.none() | rows), max_size=12)
# Patterns come from users: valid text, not empty unless said. Pieces of the alphabet, so that they occur.
patterns = st.text(st.sampled_from(CHARS), min_size=1, max_size=3)
counts = st.integers(0, 45) | st.sampled_from([2**31, 2**32, 2**62 - 1])
places = st.integers(-45, 45) | st.sampled_from([2**32, 2**62 - 1, -(2**62) + 1])


def strings(values: list[bytes | None]) -> pa.Array:
    """A string column whose bytes nobody has validated, as a careless writer leaves it."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), raw.null_count)


def as_bytes(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_large_list(kind) and pa.types.is_large_string(kind.value_type):
        column = column.cast(pa.large_list(pa.large_binary()))
    elif pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    return column.to_pylist()


def run(expr: cb.types.Expr, **values: list[bytes | None]) -> list[Any]:
    table = pa.table({name: strings(column) for name, column in values.items()})
    result = as_bytes(cb.compute({"out": expr}, table)["out"])
    # Five rows a chunk: pools are reset and reused between chunks.
    assert as_bytes(cb.compute({"out": expr}, table, chunk_rows=5)["out"]) == result
    return result


def each(values: list[bytes | None], body: Any, *args: Any) -> list[Any]:
    return twin.over(values, lambda row: body(row, *args))


def both(values: list[tuple[bytes | None, bytes | None]], body: Any) -> list[Any]:
    return [None if a is None or b is None else body(a, b) for a, b in values]


def of_pairs(expr: cb.types.Expr, values: list[tuple[bytes | None, bytes | None]]) -> list[Any]:
    return run(expr, x=[a for a, _ in values], y=[b for _, b in values])


@unhurried
@given(columns)
@example([])
@example([None])
@example([b""])
@example([b"\xe4\xb8\xad" * 9 + b"\xe4"])
def test_lengths(values: list[bytes | None]) -> None:
    assert run(col("x").length(), x=values) == each(values, twin.length)
    assert run(col("x").byte_length(), x=values) == each(values, len)


@unhurried
@given(columns)
@example([b"ABCDEFGH" * 3, b"abcdefgh", b"abcdefghI"])
@example(["Ⱥ".encode() * 100, "\u212a".encode() * 9])
def test_lower_maps_one_code_point_to_one(values: list[bytes | None]) -> None:
    assert run(col("x").lower(), x=values) == each(values, twin.lower)


@unhurried
@given(columns, st.just("") | patterns)
def test_strip_takes_characters_off_both_ends(values: list[bytes | None], chars: str) -> None:
    assert run(col("x").strip(chars), x=values) == each(values, twin.strip, chars)


@unhurried
@given(columns, counts)
def test_prefix_and_suffix_count_code_points(values: list[bytes | None], n: int) -> None:
    assert run(col("x").prefix(n), x=values) == each(values, twin.prefix, n)
    assert run(col("x").suffix(n), x=values) == each(values, twin.suffix, n)


@unhurried
@given(columns, places, places)
def test_substring_counts_code_points(values: list[bytes | None], start: int, length: int) -> None:
    assert run(col("x").substring(start, length), x=values) == each(values, twin.substring, start, length)
    assert run(col("x").substring(start), x=values) == each(values, twin.substring, start)


@unhurried
@given(columns, st.just("") | patterns)
def test_searches_compare_bytes(values: list[bytes | None], text: str) -> None:
    needle = text.encode()
    assert run(col("x").contains(text), x=values) == each(values, lambda row: needle in row)
    assert run(col("x").starts_with(text), x=values) == each(values, lambda row: row.startswith(needle))
    assert run(col("x").ends_with(text), x=values) == each(values, lambda row: row.endswith(needle))


@unhurried
@given(columns, st.just("") | patterns, st.text(st.sampled_from(CHARS), max_size=20))
@example([b"aaa", b"a" * 300], "aa", "a")
@example([b"a" * 300], "a", "twenty characters...")
def test_replace_goes_from_the_left(values: list[bytes | None], old: str, new: str) -> None:
    assert run(col("x").replace(old, new), x=values) == each(values, twin.replace, old, new)


@unhurried
@given(pairs, st.text(st.sampled_from(CHARS), max_size=3))
def test_concat_puts_the_separator_between(values: list[Any], sep: str) -> None:
    expected = both(values, lambda a, b: a + sep.encode() + b)
    assert of_pairs(cb.concat(col("x"), col("y"), sep=sep), values) == expected


@unhurried
@given(columns, patterns)
@example([b",,a,", b",", b""], ",")
@example([b"x," * 200], ",")
@example([b"\0\0", b"a\0"], "\0")
def test_split_keeps_empty_parts(values: list[bytes | None], sep: str) -> None:
    assert run(col("x").split(sep), x=values) == each(values, twin.split, sep)


@unhurried
@given(columns)
@example(["naïve café, 中文ab が!".encode(), "❤️ x\u0301".encode(), b"a" * 64, b"a" * 64 + b" b"])
def test_words_of_every_script(values: list[bytes | None]) -> None:
    assert run(col("x").words(), x=values) == each(values, twin.words)


@unhurried
@given(columns, st.integers(1, 12))
def test_ngrams_are_runs_of_code_points(values: list[bytes | None], n: int) -> None:
    assert run(col("x").ngrams(n), x=values) == each(values, twin.ngrams, n)


close = st.lists(st.text(st.sampled_from("ab中\U0001f44d"), max_size=30).map(str.encode) | rows, min_size=2, max_size=2)


@unhurried
@given(pairs | st.lists(close.map(tuple), max_size=8), st.integers(0, 64))
@example([(b"kitten", b"sitting"), (b"\xe4\xb8", b"\xe4\xb8\xad"), (b"a" * 90, b"b" * 90)], 64)
def test_edit_distance_stops_at_its_limit(values: list[Any], limit: int) -> None:
    expected = both(values, lambda a, b: twin.edit_distance(a, b, limit))
    assert of_pairs(col("x").edit_distance(col("y"), limit), values) == expected


@unhurried
@given(pairs)
@example([(b"abcdefgh\xff", b"abcdefgh\x01"), (b"a", b"a\0")])
@pytest.mark.slow
def test_comparison_is_by_bytes(values: list[Any]) -> None:
    x, y = col("x"), col("y")
    assert of_pairs(x == y, values) == both(values, lambda a, b: a == b)
    assert of_pairs(x != y, values) == both(values, lambda a, b: a != b)
    assert of_pairs(x < y, values) == both(values, lambda a, b: a < b)
    assert of_pairs(x <= y, values) == both(values, lambda a, b: a <= b)
    assert of_pairs(x > y, values) == both(values, lambda a, b: a > b)
    assert of_pairs(x >= y, values) == both(values, lambda a, b: a >= b)


def test_a_megabyte_in_one_row() -> None:
    piece = "Word, Größe, 中文ab 👍 ".encode() + b"\xe4\xb8, " + b"plain ascii text, " * 9
    values = [b"small", piece * (1_000_000 // len(piece)), None, b""]
    assert run(col("x").length(), x=values) == each(values, twin.length)
    assert run(col("x").lower(), x=values) == each(values, twin.lower)
    assert run(col("x").words(), x=values) == each(values, twin.words)
    assert run(col("x").split(","), x=values) == each(values, twin.split, ",")
    assert run(col("x").replace(",", "<comma>"), x=values) == each(values, twin.replace, ",", "<comma>")
    assert run(col("x").suffix(400_000), x=values) == each(values, twin.suffix, 400_000)


def test_results_feed_the_next_operator() -> None:
    values = [b" Red SHOES|Blue  Hats ", None, b"", b"|"]
    expr = col("x").lower().strip().split("|").get(-1).words().join("+")
    assert run(expr, x=values) == [b"blue+hats", None, None, b""]


@pytest.mark.parametrize("build", [lambda x: x.split(""), lambda x: x.ngrams(0), lambda x: x.edit_distance(x, 65)])
def test_what_cannot_run_is_refused_when_the_plan_is_built(build: Any) -> None:
    with pytest.raises(cb.errors.PlanError):
        build(col("x"))


@pytest.mark.skipif(not SAME_UNICODE, reason=OTHER_UNICODE)
@pytest.mark.slow
def test_every_code_point_has_python_s_case_space_and_category() -> None:
    # All that Python knows by name or category, and some of the 830,000 it does not.
    known = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs") or c % 97 == 0]
    values = [chr(c).encode() for c in known if not 0xD800 <= c < 0xE000]
    table = pa.table({"x": strings(values)})
    x = col("x")
    out = cb.compute({"lower": x.lower(), "words": cb.concat(cb.lit("a"), x).words(), "strip": x.strip()}, table)
    assert as_bytes(out["lower"]) == [twin.lower(row) for row in values]
    assert as_bytes(out["words"]) == [twin.words(b"a" + row) for row in values]
    assert as_bytes(out["strip"]) == [twin.strip(row) for row in values]


@pytest.mark.skipif(not SAME_UNICODE, reason=OTHER_UNICODE)
def test_the_tables_are_what_the_tool_writes() -> None:
    spec = spec_from_file_location("make_unicode_tables", ROOT / "tools/make_unicode_tables.py")
    assert spec is not None
    assert spec.loader is not None
    tool = module_from_spec(spec)
    sys.modules[spec.name] = tool
    spec.loader.exec_module(tool)
    written = io.StringIO()
    with redirect_stdout(written):
        tool.main()
    assert written.getvalue() == TABLES.read_text()


# ---- the ends of words and blocks, which operators read 8 and 64 bytes at a time

SIZES = (0, 1, 2, 6, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 71, 72, 127, 128, 129)
AT_ENDS: list[bytes | None] = [None]
for size in SIZES:
    AT_ENDS += [
        b"a" * size,
        b" " * size,
        b"Ab, " * (size // 4) + b"x" * (size % 4),
        b"." * size + b"a",
        b"a" * size + b",",
    ]
    AT_ENDS += ["é".encode() * (size // 2), b"a" * size + "中".encode(), b"a" * size + "Я".encode() + b"b"]
    AT_ENDS += [b"a" * size + b"\xe4\xb8", b"a" * size + b"\0" + b"b" * 9]


@pytest.mark.parametrize(
    ("build", "body"),
    [
        (lambda x: x.length(), twin.length),
        (lambda x: x.lower(), twin.lower),
        (lambda x: x.words(), twin.words),
        (lambda x: x.strip(), twin.strip),
        (lambda x: x.strip("a"), lambda row: twin.strip(row, "a")),
        (lambda x: x.split(","), lambda row: twin.split(row, ",")),
        (lambda x: x.split("\0"), lambda row: twin.split(row, "\0")),
        (lambda x: x.split(", "), lambda row: twin.split(row, ", ")),
        (lambda x: x.replace("a", "bcd"), lambda row: twin.replace(row, "a", "bcd")),
        (lambda x: x.replace("Ab,", ""), lambda row: twin.replace(row, "Ab,", "")),
        (lambda x: x.contains("a,"), lambda row: b"a," in row),
        (lambda x: x.contains("aЯb"), lambda row: "aЯb".encode() in row),
        (lambda x: x.starts_with("Ab"), lambda row: row.startswith(b"Ab")),
        (lambda x: x.ends_with(",,"), lambda row: row.endswith(b",,")),
        (lambda x: x.ngrams(3), lambda row: twin.ngrams(row, 3)),
        *((lambda x, n=n: x.prefix(n), lambda row, n=n: twin.prefix(row, n)) for n in (0, 1, 8, 64)),
        *((lambda x, n=n: x.suffix(n), lambda row, n=n: twin.suffix(row, n)) for n in (0, 1, 8, 64)),
        *((lambda x, n=n: x.substring(n, 7), lambda row, n=n: twin.substring(row, n, 7)) for n in (-9, -1, 0, 8, 63)),
    ],
)
def test_operators_are_right_at_the_ends_of_words_and_blocks(build: Any, body: Any) -> None:
    assert run(build(col("x")), x=AT_ENDS) == each(AT_ENDS, body)


def test_comparisons_are_right_at_the_ends_of_words() -> None:
    values: list[Any] = [(None, b"a"), (b"a", None)]
    for size in SIZES[:12]:
        one = b"a" * size
        values += [(one, one), (one + b"\xff", one + b"\x01"), (one, one + b"\0"), (one + b"b", one + b"a" * 9)]
        values += [(b"\x80" + one, b"\x7f" + one), (one + b"ab", one + b"ba"), (one[:-1] + b"b", one)]
    x, y = col("x"), col("y")
    for expr, body in (
        (x == y, lambda a, b: a == b),
        (x != y, lambda a, b: a != b),
        (x < y, lambda a, b: a < b),
        (x <= y, lambda a, b: a <= b),
        (x > y, lambda a, b: a > b),
        (x >= y, lambda a, b: a >= b),
        (x.edit_distance(y, 2), lambda a, b: twin.edit_distance(a, b, 2)),
        (cb.concat(x, y, sep="-"), lambda a, b: a + b"-" + b),
    ):
        assert of_pairs(expr, values) == both(values, body)


@pytest.mark.skipif(not SAME_UNICODE, reason=OTHER_UNICODE)
def test_letters_up_to_cyrillic_and_some_of_every_block_have_python_s_case_and_category() -> None:
    edges = [
        0x2E7F,
        0x2E80,
        0xA63F,
        0xA640,
        0xA641,
        0x10400,
        0x10428,
        0x1E920,
        0x1E921,
        0x1E922,
        0xFF21,
        0xFF3A,
        0xFF3B,
    ]
    known = [*range(0x540), *edges, *(c for c in range(0x540, 0x110000, 251) if not 0xD800 <= c < 0xE000)]
    values: list[bytes | None] = [chr(c).encode() for c in known]
    x = col("x")
    assert run(x.lower(), x=values) == each(values, twin.lower)
    assert run(cb.concat(cb.lit("a"), x).words(), x=values) == each(values, lambda row: twin.words(b"a" + row))
    assert run(x.strip(), x=values) == each(values, twin.strip)
