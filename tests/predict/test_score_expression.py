"""Scores that combine several labels: against Python's own arithmetic, and whatever else a client may send."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import numpy as np
import pytest

from ctrbox.errors import DataError
from ctrbox.predict.score_expression import MOST_CHARACTERS, MOST_DEPTH, ScoreExpression

NAMES = ("click", "convert", "value", "pow", "größe")


def scores(text: str, predictions: Any, names: tuple[str, ...] = NAMES) -> np.ndarray:
    return ScoreExpression.of(text, names).of_predictions(np.asarray(predictions, np.float64))


def written(draw: random.Random, depth: int) -> str:
    """Return a random expression in the grammar, with spaces anywhere."""
    kind = draw.choice(["label", "number"] if depth == 0 else ["chain", "signed", "pow", "bracket", "label", "number"])
    space = draw.choice(["", " ", "\n\t"])
    if kind == "label":
        return space + draw.choice(NAMES) + space
    if kind == "number":
        return draw.choice(["0", "1", "2.", ".5", "3.25", "1e-3", "2E+1", "12345678901234567890"]) + space
    if kind == "signed":
        return draw.choice("+-") + space + written(draw, depth - 1)
    if kind == "pow":
        return f"pow{space}({written(draw, depth - 1)},{written(draw, depth - 1)})"
    if kind == "bracket":
        return f"({written(draw, depth - 1)}){space}"
    parts = [written(draw, depth - 1) for _ in range(draw.randint(2, 4))]
    return "".join(part + (draw.choice("+-*/") if k + 1 < len(parts) else "") for k, part in enumerate(parts))


def power(a: float, b: float) -> np.float64:
    try:
        return np.float64(math.pow(a, b))
    except (ValueError, OverflowError):
        return np.float64("nan")


def by_python(text: str, row: np.ndarray) -> float:
    """Slow twin: Python's own parser and arithmetic over one row; NaN where Python has no number."""
    with np.errstate(all="ignore"):
        numbered = re.sub(r"(?<![\w.])(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", r"number(\g<0>)", text)
        labels = dict(zip(NAMES, row, strict=True))
        called = re.sub(r"pow(\s*)\(", r"power\1(", numbered)
        scope = {**labels, "number": np.float64, "power": power, "__builtins__": {}}
        return float(eval(" ".join(called.split()), scope))  # noqa: S307 - of the text that this test wrote


def test_random_expressions_are_what_python_computes() -> None:
    draw, numbers = random.Random(3), np.random.default_rng(3)
    compared = 0
    for _ in range(400):
        text = written(draw, draw.randint(0, 4))
        if len(text) > MOST_CHARACTERS:
            continue
        rows = numbers.uniform(-2, 2, (draw.choice([1, 3, 17]), len(NAMES)))
        expected = np.array([by_python(text, row) for row in rows])
        fits = np.isfinite(expected) & (np.abs(expected) <= np.finfo(np.float32).max)
        if fits.all():
            assert np.array_equal(scores(text, rows), expected), text
            compared += 1
        else:
            with pytest.raises(DataError, match=f"for row {int(np.flatnonzero(~fits)[0])}, where"):
                scores(text, rows)
    assert compared > 150


def test_a_score_has_the_same_bits_whatever_the_number_of_rows() -> None:
    rows = np.random.default_rng(0).uniform(0, 1, (100, 5))
    asked = ScoreExpression.of("pow(click, 0.37) * convert / (value + 0.1) - pow(2, convert)", NAMES)
    whole = asked.of_predictions(rows)
    for size in (1, 2, 7, 33):
        parts = [asked.of_predictions(rows[at : at + size]) for at in range(0, 100, size)]
        assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(asked.of_predictions(np.asfortranarray(rows)), whole)
    assert asked.of_predictions(rows[:0]).shape == (0,)


def test_rows_that_a_filter_dropped_have_no_score() -> None:
    rows = np.array([[0.5, 0.25, 8.0, 0, 0], [np.nan] * 5, [1.0, 0.5, 2.0, 0, 0]])
    assert scores("click * convert * value", rows).tolist()[::2] == [1.0, 1.0]
    for text in ("click", "1", "1 / click"):
        assert np.isnan(scores(text, rows)).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "the score '' cannot be read: expected a label, a number or (, got nothing more at its end; an example is",
        ),
        ("  ", "got nothing more at its end"),
        ("click convert", "expected an operator or the end, got 'c' at character 7"),
        ("click *", "expected a label, a number or (, got nothing more at its end"),
        ("* click", "expected a label, a number or (, got '*' at character 1"),
        ("(click", "expected ')', got nothing more at its end"),
        ("click)", "expected an operator or the end, got ')' at character 6"),
        ("click ** 2", "the score has ** at character 7; write pow(a, b) for a to the power of b"),
        ("pow(click)", "expected ',', got ')' at character 10"),
        ("pow(click, 2, 3)", "expected ')', got ',' at character 13"),
        ("exp(click)", "the score calls 'exp'; the only function is pow(a, b)"),
        ("__import__('os')", "the score calls '__import__'"),
        ("clik * 2", "the score has 'clik', which is not a label; nearest: 'click'; expected click, convert, value"),
        ("click.real", "expected an operator or the end, got '.' at character 6"),
        ("click[0]", "got '[' at character 6"),
        ("1e999", "the score has the number 1e999, which is too large"),
        ("1_000", "got '_' at character 2"),
        ("١", "got '١' at character 1"),
        ("0x10", "got 'x' at character 2"),
        ("click\0", r"got '\x00' at character 6"),
        ("click\u2028* 2", r"got '\u2028' at character 6"),
        ("click if 1 else 2", "got 'i' at character 7"),
        ("\ud800", "expected a label, a number or ("),
        ("(" * 3000, "the score has 3,000 characters; expected at most 2,000"),
        (
            "(" * 1000 + "1" + ")" * 999,
            f"the score has more than {MOST_DEPTH} levels of nesting at character {MOST_DEPTH + 2}",
        ),
        ("-" * 1999 + "1", f"the score has more than {MOST_DEPTH} levels of nesting"),
        ("+".join(["pow(click, 2)"] * 17), "the score has more than 16 powers; write pow(a, 2) as a * a"),
        ("pow(" * 400 + "1", f"the score has more than {MOST_DEPTH} levels of nesting"),
    ],
)
def test_what_is_no_expression_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        ScoreExpression.of(text, NAMES)


def test_a_score_needs_text_and_several_labels() -> None:
    with pytest.raises(
        DataError, match="this model predicts one label, so there are no labels to combine; remove the score"
    ):
        ScoreExpression.of("click", ())
    with pytest.raises(
        DataError, match=re.escape("the score must be text such as 'click * convert * value', got a int")
    ):
        ScoreExpression.of(5, NAMES)  # type: ignore[arg-type]


def test_the_deepest_and_the_longest_expressions_are_computed() -> None:
    deep = "(" * MOST_DEPTH + "click" + ")" * MOST_DEPTH
    long = "+".join(["click"] * (MOST_CHARACTERS // 6))
    rows = [[0.5, 0, 0, 0, 0]]
    assert scores(deep, rows).tolist() == [0.5]
    assert scores(long, rows).tolist() == [0.5 * (long.count("+") + 1)]
    assert scores("click".ljust(MOST_CHARACTERS), rows).tolist() == [0.5]
    assert scores("+".join(["pow(click, 2)"] * 16), rows).tolist() == [4.0]
    assert scores("1e308 * 0", rows).tolist() == [0.0]
    with pytest.raises(DataError, match="the score has 2,001 characters; expected at most 2,000"):
        scores("click".ljust(MOST_CHARACTERS + 1), rows)


@pytest.mark.parametrize("text", ["click / value", "pow(-1, 0.5) * click", "1e308 * 10 * click", "1e39 + click"])
def test_a_score_that_is_no_number_of_32_bits_names_the_row(text: str) -> None:
    rows = np.array([[0.5, 0.25, 0.0, 0, 0]] * 2)
    with pytest.raises(
        DataError, match=r"the score '.*' is \S+ for row 0, where click=0.5.*; expected a finite number"
    ):
        scores(text, rows)


def test_random_bytes_are_an_expression_or_refused_in_words() -> None:
    draw = random.Random(7)
    letters = [
        "click",
        "value",
        "pow",
        "(",
        ")",
        ",",
        "+",
        "-",
        "*",
        "/",
        "1",
        ".",
        "e",
        " ",
        "\x00",
        "é",
        "[",
        "_",
        "'",
    ]
    for _ in range(2000):
        text = "".join(draw.choice(letters) for _ in range(draw.randint(0, 12)))
        try:
            found = scores(text, [[0.5, 0.5, 0.5, 0.5, 0.5]])
        except DataError:
            continue
        assert math.isfinite(found[0])


def test_an_error_names_a_label_although_a_number_equals_its_place() -> None:
    with pytest.raises(DataError, match=r"is inf for row 0, where convert=0; expected a finite number"):
        ScoreExpression.of("1 / convert", ["click", "convert"]).of_predictions(np.array([[0.5, 0.0]]))
