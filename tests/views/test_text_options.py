"""Text options of a view: what is accepted at the limit, and what is refused beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from ctrbox.errors import PlanError
from ctrbox.views.text_options import checked_options


@pytest.mark.parametrize(
    "given",
    [
        {"delimiter": ";"},
        {"delimiter": "x" * 16},
        {"header": False, "names": ["a", "b"], "types": {"a": "str"}},
        {"quote": "'", "delimiter": "::"},
        {"quote": False},
        {"encoding": "latin-1"},
        {"types": {"zip": "str"}},
    ],
)
def test_options_are_kept_as_they_were_given(given: dict[str, Any]) -> None:
    assert checked_options(**given).given() == given


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"delimiter": ""}, "delimiter must be a text of 1 to 16 characters"),
        ({"delimiter": "x" * 17}, "delimiter must be a text of 1 to 16 characters"),
        ({"delimiter": 7}, "delimiter must be a text of 1 to 16 characters"),
        ({"delimiter": "a\n"}, "delimiter must be a text of 1 to 16 characters without line ends"),
        ({"header": 1}, "header must be True .* or False, got 1"),
        ({"encoding": "klingon"}, "encoding must be one that Python knows, .* got 'klingon'"),
        ({"encoding": 8}, "encoding must be one that Python knows, .* got 8"),
        ({"quote": ""}, "quote must be one ASCII character, or False for none, got ''"),
        ({"quote": "''"}, "quote must be one ASCII character"),
        ({"quote": "é"}, "quote must be one ASCII character"),
        ({"quote": "\n"}, "quote must be one ASCII character"),
        ({"quote": True}, "quote must be one ASCII character"),
        ({"quote": ":", "delimiter": "::"}, "quote ':' is also part of the delimiter '::'"),
        ({"names": "ab"}, "names must be a list of the names of all columns, got 'ab'"),
        ({"names": 2}, "names must be a list of the names of all columns, got 2"),
        ({"names": []}, "names= must list at least one column, got an empty list"),
        ({"names": ["a", ""]}, "names must be strings that are not empty, got ''"),
        ({"names": ["a", 1]}, "names must be strings that are not empty, got 1"),
        ({"names": ["a", "b", "a"]}, "names contains 'a' twice"),
        ({"types": ["str"]}, "types must map columns to types"),
        ({"types": {7: "str"}}, "types= names the column 7, which is not in names"),
        (
            {"types": {"cc": "str"}, "names": ["c"]},
            "types= names the column 'cc', which is not in names=; nearest: 'c'",
        ),
        ({"types": {"c": "text"}}, "the type of column 'c' must be one of .*, got 'text'"),
        ({"types": {"c": int}}, "the type of column 'c' must be one of .*, got <class 'int'>"),
    ],
)
def test_an_option_out_of_range_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        checked_options(**given)
