"""Dictionaries, fitted arrays and declared operators: what is accepted, and the sentence of each refusal."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.errors import PlanError, SourceError
from ctrbox.plan.language.tables_of_operators import misfit

# ---- dictionaries


def test_ids_are_positions_unless_given_and_vectors_are_rows() -> None:
    plain = cb.Dictionary(["a", "b", "c"])
    assert (plain.word_kind, plain.width, plain.ids.tolist(), len(plain)) == ("s", 0, [0, 1, 2], 3)
    numbers = cb.Dictionary([5, 6], [10, -20])
    assert (numbers.word_kind, numbers.ids.tolist(), numbers.vectors.tolist()) == ("i", [10, -20], [])
    vectors = cb.Dictionary(["a", "b"], [[1, 2, 3], [4, 5, 6]])
    assert (vectors.width, vectors.vectors.tolist(), vectors.ids.tolist()) == (3, [1, 2, 3, 4, 5, 6], [])
    assert vectors.bytes == 16 * 16 + 8 * 6
    mapped = cb.Dictionary({"a": 7, "b": 9})
    assert (mapped.words.to_pylist(), mapped.ids.tolist()) == (["a", "b"], [7, 9])
    chunked = cb.Dictionary(pa.chunked_array([["a"], ["b"]]))
    assert chunked.words.to_pylist() == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "values", "told"),
    [
        ({"a": 1}, [1], "Dictionary takes words and values, or one mapping from words to values"),
        ([1.5], None, "a dictionary's words must be strings or whole numbers, got double"),
        (["a", None], None, "a dictionary's words must not contain nulls, but 1 of them are null"),
        (["a", 1], None, "a dictionary's words must be strings, or whole numbers of 64 bits: "),
        (["a"], [1, 2], "a dictionary needs one value per word, but has 1 words and 2 values"),
        (["a", "b"], [[1], [2, 3]], "a dictionary's values must be numbers, or rows of one length: "),
        (["a"], [1.5], "a dictionary's values must be whole numbers, one per word, or a matrix, one row per word"),
        (["a"], ["b"], "a dictionary's values must be whole numbers, one per word, or a matrix, one row per word"),
        (["a"], 5, "a dictionary's values must be whole numbers, one per word, or a matrix, one row per word"),
        (["a"], [[[1]]], "a dictionary's values must be whole numbers, one per word, or a matrix, one row per word"),
        (["a"], np.zeros((1, 0)), "a dictionary's vectors must hold at least one number"),
        (["a"], np.array([2**63], np.uint64), "a dictionary's ids must be at most 2^63 - 1; the largest is 9223"),
    ],
)
def test_what_is_no_dictionary_is_refused(words: Any, values: Any, told: str) -> None:
    with pytest.raises(PlanError) as caught:
        cb.Dictionary(words, values)
    assert str(caught.value).startswith(told)


def test_the_largest_id_fits() -> None:
    assert cb.Dictionary(["a"], np.array([2**63 - 1], np.uint64)).ids.tolist() == [2**63 - 1]


def test_a_dictionary_is_read_from_two_columns(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    rows = {
        "word": ["a", "b"],
        "id": [3, 4],
        "vector": [[1.0, 2.0], [3.0, 4.0]],
        "ragged": [[1.0], [1.0, 2.0]],
        "holes": [[1.0, None], [3.0, 4.0]],
        "gap": [1, None],
        "text": ["x", "y"],
    }
    pq.write_table(pa.table(rows), path)
    assert cb.Dictionary.read(path, "word", "id").ids.tolist() == [3, 4]
    vectors = cb.Dictionary.read(path, "word", "vector")
    assert (vectors.width, vectors.vectors.tolist()) == (2, [1, 2, 3, 4])
    for value, told in (
        ("ragged", "vectors in 'ragged' must all have the same length and contain no nulls"),
        ("holes", "vectors in 'holes' must all have the same length and contain no nulls"),
        ("gap", "column 'gap' must not contain nulls, but 1 of its values are null"),
        ("text", "column 'text' must hold whole numbers or lists of numbers, not string"),
        ("ids", "has no column 'ids'; nearest: 'id'"),
    ):
        with pytest.raises(PlanError) as caught:
            cb.Dictionary.read(path, "word", value)
        assert told in str(caught.value)
    pq.write_table(pa.table(rows).slice(0, 0), path)
    with pytest.raises(PlanError, match="must all have the same length"):
        cb.Dictionary.read(path, "word", "vector")
    with pytest.raises(SourceError, match="a dictionary cannot be read"):
        cb.Dictionary.read(tmp_path / "none.parquet", "word", "id")


# ---- what was fitted


def history(hashes: list[int], buckets: list[int], shows: list[int], clicks: list[int]) -> dict[str, np.ndarray]:
    whole = {"buckets": buckets, "shows": shows, "clicks": clicks}
    return {"hashes": np.array(hashes, np.uint64), **{name: np.array(v, np.int64) for name, v in whole.items()}}


@pytest.mark.parametrize(
    ("how", "state", "told"),
    [
        ("quantiles", {"boundaries": np.array([1.0, 2.0])}, ""),
        ("quantiles", {"boundaries": np.zeros(0)}, ""),
        ("quantiles", {"boundaries": np.array([1.0, 1.0])}, "boundaries must ascend"),
        ("quantiles", {"boundaries": np.array([1.0, np.nan])}, "boundaries must ascend"),
        ("quantiles", {"boundaries": np.array([np.nan])}, "boundaries must ascend"),
        ("quantiles", {"boundaries": np.array([1, 2])}, "boundaries of quantiles must be a vector of float64"),
        ("quantiles", {"boundaries": np.zeros((1, 1))}, "boundaries of quantiles must be a vector of float64"),
        ("quantiles", {"boundaries": [1.0]}, "boundaries of quantiles must be a vector of float64"),
        ("quantiles", {"edges": np.zeros(1)}, "quantiles need boundaries, got ['edges']"),
        ("quantiles", 5, "quantiles need boundaries, got 5"),
        ("moments", {"mean": np.zeros(1), "scale": np.ones(1)}, ""),
        ("moments", {"mean": np.zeros(1), "scale": np.array([np.inf])}, "moments must be finite"),
        ("moments", {"mean": np.zeros(2), "scale": np.ones(2)}, "mean, scale of moments must hold one value"),
        ("moments", {"mean": np.zeros(1), "scale": np.ones(2)}, "mean, scale of moments must hold one value"),
        ("history", history([1, 1, 2], [0, 1, -5], [1, 2, 3], [1, 0, 3]), ""),
        (
            "history",
            history([1, 1], [1, 1], [1, 1], [0, 0]),
            "a history must be sorted by hash and bucket, each pair once",
        ),
        (
            "history",
            history([1, 1], [2, 1], [1, 1], [0, 0]),
            "a history must be sorted by hash and bucket, each pair once",
        ),
        (
            "history",
            history([2, 1], [1, 2], [1, 1], [0, 0]),
            "a history must be sorted by hash and bucket, each pair once",
        ),
        ("history", history([1], [0], [1], [2]), "a history cannot have fewer shows than clicks, or fewer than none"),
        ("history", history([1], [0], [1], [-1]), "a history cannot have fewer shows than clicks, or fewer than none"),
        (
            "history",
            history([1], [0, 1], [1], [1]),
            "hashes, buckets, shows, clicks of history must have the same length",
        ),
    ],
)
def test_fitted_arrays_are_checked_before_native_code_trusts_them(how: str, state: Any, told: str) -> None:
    assert misfit(how, state) == told


GOOD_DELAYS = "delays must have ascending buckets, and shares that rise to 1"


@pytest.mark.parametrize(
    ("buckets", "shares", "told"),
    [
        ([0], [1.0], ""),
        ([0, 5], [0.0, 1.0], ""),
        ([3, 5, 9], [0.25, 0.25, 1.0], ""),
        ([], [], GOOD_DELAYS),
        ([-1, 5], [0.5, 1.0], GOOD_DELAYS),
        ([5, 5], [0.5, 1.0], GOOD_DELAYS),
        ([5, 4], [0.5, 1.0], GOOD_DELAYS),
        ([1, 2, 3], [0.5, 0.25, 1.0], GOOD_DELAYS),
        ([1, 2], [-0.5, 1.0], GOOD_DELAYS),
        ([1, 2], [0.5, 0.75], GOOD_DELAYS),
        ([1, 2], [0.5, 1.5], GOOD_DELAYS),
        ([1, 2], [0.5, float("nan")], GOOD_DELAYS),
        ([1, 2], [1.0], "buckets, shares of delays must have the same length"),
    ],
)
def test_delays_that_were_learned_rise_to_1(buckets: list[int], shares: list[float], told: str) -> None:
    state = {"buckets": np.array(buckets, np.int64), "shares": np.array(shares, np.float64)}
    assert misfit("delays", state) == told


# ---- operators of one's own


def add(a: Any, b: Any) -> Any:
    return a + b


def careful(a: Any) -> Any:
    if a < 0:
        raise ValueError
    return a


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"args": ["int"], "result": "thing"},
            "operator: 'thing' is not a type; expected int, float, str, bool, time or",
        ),
        ({"args": ["key"], "result": "int"}, "operator: 'key' is not a type"),
        ({"args": [3], "result": "int"}, "operator: 3 is not a type"),
        ({"args": 3, "result": "int"}, "operator needs a list of values, got 3"),
        (
            {"args": ["int"], "result": "int", "arrays": "torch"},
            "operator: arrays must be 'arrow' or 'numpy', got 'torch'",
        ),
        (
            {"args": ["int"], "result": "str", "cuda": "return x;"},
            "operator: a cuda body returns one bool, int, float or time per row",
        ),
        (
            {"args": ["int"], "result": "str", "scalar": True},
            "operator: a scalar function returns one bool, int, float or time per row",
        ),
        (
            {"args": ["int"], "result": "int", "cuda": "return x;", "nullable": True},
            "operator: a cuda body cannot return nulls of its own",
        ),
        (
            {"args": ["int"], "result": "int", "cuda": 3},
            "operator: cuda is the body of a C++ function as a string, got 3",
        ),
        (
            {"args": ["int"], "result": "int", "cuda": "x;"},
            "operator: a cuda body returns the row's value: 'return …;', got 'x;'",
        ),
        ({"args": ["int"], "result": "int", "cuda": "returned;"}, "operator: a cuda body returns the row's value"),
        (
            {"args": ["int"], "result": "int", "cuda": "return\0;"},
            "operator: a cuda body must be valid text, but this one contains a NUL character",
        ),
        (
            {"args": ["int"], "result": "int", "cuda": "return \ud800;"},
            "operator: a cuda body must be valid text, but this one contains a lone",
        ),
        (
            {"args": ["str"], "result": "int", "scalar": True},
            "operator: a scalar function takes bool, int, float or time, not str",
        ),
        (
            {"args": ["int"], "result": "int", "scalar": True, "arrays": "numpy"},
            "operator: a scalar function gets plain numbers",
        ),
    ],
)
def test_an_operator_that_cannot_be_is_refused_where_it_is_declared(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError) as caught:
        cb.operator(**settings)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("settings", "function", "told"),
    [
        ({"args": ["int"]}, 5, "operator: 5 is not a function"),
        (
            {"args": ["int"], "scalar": True},
            add,
            "a scalar function needs one named parameter per column: 'add' has 2 for 1",
        ),
        (
            {"args": ["int", "int"], "cuda": "return a;"},
            lambda a, *b: a,
            "a cuda body needs one named parameter per column: ",
        ),
        (
            {"args": ["int"], "cuda": "return a;"},
            lambda a, *, b=1: a,
            "a cuda body needs one named parameter per column: ",
        ),
        (
            {"args": ["int"], "cuda": "return int_;"},
            lambda double: 1,
            "a cuda body uses the names of the parameters, and 'double'",
        ),
        (
            {"args": ["int"], "cuda": "return x;"},
            lambda ü: 1,
            "a cuda body uses the names of the parameters, and 'ü' is not a valid name",
        ),
        ({"args": ["int"], "scalar": True}, careful, "scalar function 'careful' uses raise or assert, but code"),
        (
            {"args": ["int"], "scalar": True},
            functools.partial(add, 1),
            "a scalar function is a plain def or lambda, got",
        ),
        ({"args": ["int"], "cuda": "return x;"}, int.from_bytes, "a cuda body needs one named parameter per column: "),
    ],
)
def test_a_function_that_cannot_be_an_operator_is_refused(
    settings: dict[str, Any], function: Callable[..., Any], told: str
) -> None:
    with pytest.raises(PlanError) as caught:
        cb.operator(result="int", **settings)(function)
    assert str(caught.value).startswith(told)


def test_a_declared_operator_says_where_it_can_run() -> None:
    plain = cb.operator(args=["int", "int"], result="int")(add)
    body = cb.operator(args=["int", "int"], result="int", cuda="return a + b;")(add)
    scalar = cb.operator(args=["int", "int"], result="int", scalar=True)(add)
    assert [o.on_gpu for o in (plain, body, scalar)] == [False, True, True]
    assert [o.cuda for o in (plain, body)] == ["", "return a + b;"]
    assert (plain.name, plain.parameters, plain.path.rpartition(":")[2]) == ("add", ("a", "b"), "add")
    assert plain("x", cb.col("y")).op == "user"
    with pytest.raises(PlanError, match="operator 'add' takes 2 columns, got 1"):
        plain("x")
