"""The tables of docs/operators/*.md are the catalogue; it is complete; what it says of kinds and nulls is so."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox import _native
from ctrbox.columns.kind import name_of
from ctrbox.plan.graph.build_graph import build_columns
from ctrbox.plan.language.catalogue import FAMILIES, ROWS, WRITTEN, Row, markdown, special_cases
from ctrbox.plan.language.catalogue_lists import ABSENT
from ctrbox.plan.language.catalogue_lists import EMPTY as EMPTY_LIST
from ctrbox.plan.language.catalogue_phrases import EITHER, NULL
from ctrbox.plan.language.catalogue_strings import EMPTY as EMPTY_STRING
from ctrbox.plan.language.expressions import Expr
from ctrbox.plan.language.features import space_of
from ctrbox.plan.language.node import closure

ROOT = Path(__file__).resolve().parents[2]
FITTED = ("standardize", "quantiles=", "cb.shows", "cb.clicks", "cb.rate")
# Methods of Expr that are no operator: what makes it a Python object.
NO_OPERATOR = {
    "__post_init__",
    "__init__",
    "__repr__",
    "__bool__",
    "__getattr__",
    "__hash__",
    "__setattr__",
    "__delattr__",
    "__replace__",
}


class Lengths(torch.nn.Module):
    def forward(self, texts: list[str]) -> torch.Tensor:
        return torch.tensor([[float(len(text)), 1.0] for text in texts])


TEXT = pa.array(["sale 7", None, ""])
VALUES = {
    "n": pa.array([5, None, 0]),
    "x": pa.array([0.5, None, -1.5]),
    "ok": pa.array([True, None, False]),
    "ts": pa.array([datetime(2026, 1, 2, 3), None, datetime(1969, 12, 31)], pa.timestamp("us")),
    "seen": pa.array([datetime(2026, 1, 1), None, datetime(1970, 1, 1)], pa.timestamp("us")),
    "s": TEXT,
    "doc": pa.array(['{"geo": {"city": "Oslo"}, "tags": ["a"]}', None, "{}"]),
    "words": pa.array([["sale", "7"], None, []], pa.list_(pa.string())),
    "ids": pa.array([[3, 1], None, []], pa.list_(pa.int64())),
    "prices": pa.array([[1.5, 2.5], None, []], pa.list_(pa.float64())),
}
LOG = pa.table(VALUES)
NAMES = {
    "cb": cb,
    "col": cb.col,
    "lit": cb.lit,
    "when": cb.when,
    "cities": cb.Dictionary(["sale", ""]),
    "vectors": cb.Dictionary(["sale", ""], np.ones((2, 3))),
    "encoder": cb.tables.Encoder(Lengths(), kind="text"),
}
# Rows that are no expression: steps of a view and a decorator.
NO_EXPRESSION = {"history of keys", "past of keys", "join of keys", "merge of keys", "operator of keys"}


def called(row: Row) -> str:
    return f"{row.name} of {row.family}"


def expressions(row: Row) -> list[Expr]:
    """The examples as features of their own, so that keys have a space."""
    made = [eval(example, dict(NAMES)) for example in row.written.examples]  # noqa: S307  # our own text
    return [space_of("x", e)[0] if e.op in ("key", "cross", "as_key") else e for e in made]


EXPRESSIONS = [row for row in ROWS if called(row) not in NO_EXPRESSION]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_of_a_family_is_what_the_catalogue_makes(family: str) -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "make_operator_docs.py"))
    page = (ROOT / "docs" / "operators" / f"{family}.md").read_text(encoding="utf-8")
    assert markdown(family) in page, "run: python tools/make_operator_docs.py"
    assert tool["renewed"](page, family) == page, "run: python tools/make_operator_docs.py"


def test_a_table_leaves_out_only_what_holds_for_every_operator() -> None:
    special = {called(row): special_cases(row) for row in ROWS}
    assert special["sqrt of numbers"] == ""
    assert special["mod of numbers"] == "The remainder of a division by zero is null."
    assert special["concat of strings"].startswith(EITHER)


def test_every_cell_is_made_of_sentences() -> None:
    cells = [(called(row), cell) for row in ROWS for cell in (row.what, special_cases(row)) if cell]
    assert [name for name, cell in cells if not re.match(r"[A-Z0-9`−]", cell) or not cell.endswith((".", ".)"))] == []


def test_every_row_is_told_and_written_once() -> None:
    for family, rows in FAMILIES.items():
        assert Counter(name for name, *_ in rows) == Counter(list(WRITTEN[family]))
    cells = [cell for row in ROWS for cell in (row.what, row.null, row.empty, row.unicode, row.overflow)]
    assert all(cells)


def test_every_method_and_function_is_in_the_table() -> None:
    dunders = {name for name, value in vars(Expr).items() if name.startswith("__") and callable(value)}
    methods = {name for name, value in vars(Expr).items() if not name.startswith("_") and callable(value)}
    functions = {
        name
        for name, home in vars(cb)["HOME"].items()
        if home.startswith("ctrbox.plan.") and not isinstance(getattr(cb, name), type)
    }
    written = {call for row in ROWS for call in row.written.calls}
    assert written - {"View.join", "View.merge"} == {f".{m}" for m in methods | dunders - NO_OPERATOR} | functions


def test_every_native_operator_is_behind_a_row() -> None:
    native = {name for name, *_ in _native.catalogue()}
    assert native == {kernel for row in ROWS for kernel in row.written.kernels}


@pytest.mark.parametrize("row", EXPRESSIONS, ids=called)
def test_examples_use_the_operators_and_give_the_kinds_they_say(row: Row) -> None:
    used = set()
    for e in expressions(row):
        (output,) = build_columns(cb.View(LOG), {"x": e}).outputs
        used |= {n.op for n in closure([output.node])}
        if "→" in row.kinds:
            ends = [part.rpartition("→")[2] for part in row.kinds.split("; ")]
            assert any(name_of(output.node.kind) in end or "T" in end for end in ends), e
    assert set(row.written.kernels) <= used


@pytest.mark.parametrize("row", [r for r in EXPRESSIONS if r.null.startswith((NULL, EITHER))], ids=called)
def test_a_null_gives_a_null_where_the_table_says_so(row: Row) -> None:
    for example, e in zip(row.written.examples, expressions(row), strict=True):
        if not any(word in example for word in FITTED):
            assert evaluated(e)[1] is None, example


EMPTY = {
    "An empty string gives 0.": 0,
    "An empty list gives 0.": 0,
    "Two empty lists give 0.": 0,
    EMPTY_STRING: "",
    "An empty list gives an empty string.": "",
    EMPTY_LIST: [],
    "An empty string gives an empty list.": [],
    "A string with fewer than n characters gives an empty list.": [],
    "A list with fewer than n elements gives an empty list.": [],
    ABSENT: None,
    "An empty string gives a null.": None,
    "An empty list contains no value, so the result is false.": False,
}


@pytest.mark.parametrize("row", [r for r in EXPRESSIONS if r.empty in EMPTY], ids=called)
def test_an_empty_value_gives_what_the_table_says(row: Row) -> None:
    for example, e in zip(row.written.examples, expressions(row), strict=True):
        if "doc" not in example and 'col("n")' not in example:
            assert evaluated(e)[2] == EMPTY[row.empty], example


def evaluated(e: Expr) -> list[Any]:
    values: list[Any] = cb.compute({"x": e}, LOG).column("x").to_pylist()
    return values
