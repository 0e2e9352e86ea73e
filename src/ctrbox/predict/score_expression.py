"""Parses and computes a score that combines the predictions of several labels, such as ``click * convert * value``.

    sum      = product { ("+" | "-") product }
    product  = signed { ("*" | "/") signed }
    signed   = ("+" | "-") signed | operand
    operand  = number | label | "pow" "(" sum "," sum ")" | "(" sum ")"

The text may come from a client: its length, its nesting and its powers are bounded, it is never given to Python's ``eval``, and
a label is only looked up among those of the model. It is parsed into steps of a stack machine. Every step works on float64
numbers, one for each row, so a score has the same bits whatever the number of rows. A score that is not finite is an error, never
an answer.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ctrbox.arguments.names import nearest
from ctrbox.errors import DataError

MOST_CHARACTERS = 2_000  # room for a weighted sum of 64 labels
MOST_DEPTH = 32  # parentheses, pow and signs inside one another
MOST_POWERS = 16  # each takes about 0.1 ms for 1,000 candidates
NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Return base to the power of exponent; NaN where the result is not a real number or too large for a float64.

    numpy's own loop differs in the last bit for one row in 30, and the rows that differ depend on strides and processor.
    """
    found = np.full(len(base), np.nan)
    for k, (a, b) in enumerate(zip(base.tolist(), exponent.tolist(), strict=True)):
        with contextlib.suppress(ValueError, OverflowError):
            found[k] = math.pow(a, b)
    return found


OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "pow": power,
    "negative": np.negative,
}
Step = float | int | str  # a number; the place of a label; an operation


@dataclass(frozen=True)
class ScoreExpression:
    """A score of the labels ``names``, parsed by `ScoreExpression.of`. Thread-safe."""

    text: str
    names: tuple[str, ...]
    steps: tuple[Step, ...]

    @staticmethod
    def of(text: str, names: Sequence[str]) -> ScoreExpression:
        """Parse an expression of the labels ``names``. Raise a DataError if it cannot be read."""
        if not names:
            raise DataError("this model predicts one label, so there are no labels to combine; remove the score")
        if not isinstance(text, str):
            raise DataError(f"the score must be text such as {example(names)!r}, got a {type(text).__name__}")
        if len(text) > MOST_CHARACTERS:
            raise DataError(f"the score has {len(text):,} characters; expected at most {MOST_CHARACTERS:,}")
        return _parsed(text, tuple(names))

    def of_predictions(self, predictions: np.ndarray, what: str = "row") -> np.ndarray:
        """Return the score of each row of ``predictions`` (rows, labels) as float64; NaN for a row of NaN, which was dropped.

        Raise a DataError if another score is not finite or does not fit a float32. ``what``: the word for a row in that error.
        """
        rows = len(predictions)
        columns = np.ascontiguousarray(predictions.T, np.float64)
        stack: list[np.ndarray] = []
        with np.errstate(all="ignore"):
            for step in self.steps:
                if isinstance(step, str):
                    last = stack.pop()
                    operation = OPERATIONS[step]
                    stack.append(operation(last) if step == "negative" else operation(stack.pop(), last))
                else:
                    stack.append(columns[step] if isinstance(step, int) else np.full(rows, step))
            (found,) = stack
            fits = np.isfinite(found.astype(np.float32))
        bad = np.flatnonzero(~fits & np.isfinite(columns).all(0))
        if len(bad):
            row = int(bad[0])
            read = dict.fromkeys(k for k in self.steps if isinstance(k, int))  # a number 1.0 equals the place 1
            met = ", ".join(f"{self.names[k]}={columns[k][row]:g}" for k in read)
            raise DataError(
                f"the score {self.text[:200]!r} is {found[row]} for {what} {row:,}, where {met or 'no label is read'}; "
                "expected a finite number"
            )
        return np.where(np.isfinite(columns).all(0), found, np.nan)


def example(names: Sequence[str]) -> str:
    """Return an expression that a person could write for these labels."""
    return " * ".join(names[:3])


@lru_cache(64)
def _parsed(text: str, names: tuple[str, ...]) -> ScoreExpression:
    return ScoreExpression(text, names, tuple(_Parser(text, names).steps()))


class _Parser:
    """Recursive descent over the characters of one text; each method reads what its name says and appends its steps."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text, self.names = text, names
        self.at = self.depth = 0
        self.found: list[Step] = []

    def steps(self) -> list[Step]:
        self.sum()
        if self.next():
            raise self.unexpected("an operator or the end")
        return self.found

    # ---- the grammar

    def sum(self) -> None:
        self.chain("+-", self.product)

    def product(self) -> None:
        self.chain("*/", self.signed)

    def chain(self, operators: str, operand: Callable[[], None]) -> None:
        """Read operands with operators between them, from left to right."""
        operand()
        while (sign := self.next()) and sign in operators:
            if self.text.startswith("**", self.at):
                raise DataError(
                    f"the score has ** at character {self.at + 1:,}; write pow(a, b) for a to the power of b"
                )
            self.at += 1
            operand()
            self.found.append(sign)

    def signed(self) -> None:
        sign = self.next()
        if not sign or sign not in "+-":
            self.operand()
            return
        self.at += 1
        self.nested(self.signed)
        if sign == "-":
            self.found.append("negative")

    def operand(self) -> None:
        first = self.next()
        if first == "(":
            self.at += 1
            self.nested(self.sum)
            self.need(")")
        elif number := NUMBER.match(self.text, self.at):
            self.at = number.end()
            value = float(number[0])
            if not math.isfinite(value):
                raise DataError(
                    f"the score has the number {number[0][:40]}, which is too large; expected at most 1e308"
                )
            self.found.append(value)
        elif first.isidentifier():
            self.name()
        else:
            raise self.unexpected("a label, a number or (")

    def name(self) -> None:
        begin = self.at
        while self.at < len(self.text) and self.text[begin : self.at + 1].isidentifier():
            self.at += 1
        name = self.text[begin : self.at]
        if self.next() == "(":
            if name != "pow":
                raise DataError(f"the score calls {name[:100]!r}; the only function is pow(a, b)")
            self.at += 1
            self.nested(self.sum)
            self.need(",")
            self.nested(self.sum)
            self.need(")")
            self.found.append("pow")
            if self.found.count("pow") > MOST_POWERS:
                raise DataError(f"the score has more than {MOST_POWERS} powers; write pow(a, 2) as a * a")
        elif name in self.names:
            self.found.append(self.names.index(name))
        else:
            labels = ", ".join(self.names)
            raise DataError(
                f"the score has {name[:100]!r}, which is not a label{nearest(name, self.names)}; expected {labels}"
            )

    # ---- parts of it

    def nested(self, part: Callable[[], None]) -> None:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise DataError(
                f"the score has more than {MOST_DEPTH} levels of nesting at character {self.at + 1:,}; simplify it"
            )
        part()
        self.depth -= 1

    def next(self) -> str:
        """Return the next character that is not a space; "" at the end."""
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1
        return self.text[self.at : self.at + 1]

    def need(self, character: str) -> None:
        if self.next() != character:
            raise self.unexpected(repr(character))
        self.at += 1

    def unexpected(self, expected: str) -> DataError:
        met = f"{self.next()!r} at character {self.at + 1:,}" if self.next() else "nothing more at its end"
        return DataError(
            f"the score {self.text[:200]!r} cannot be read: expected {expected}, got {met}; an example is {example(self.names)!r}"
        )
