"""A user's own operators: what they are handed, what they may return, and where in a plan they may stand."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

import ctrbox as cb
from ctrbox import col
from ctrbox.plan.placement.placement import place

TABLE = pa.table(
    {
        "x": pa.array([1.0, 2.0, None, 4.0, 5.0], pa.float64()),
        "n": [1, 2, 3, 4, 5],
        "word": ["red", "blue", "green", "red", ""],
        "tags": [["red", "blue"], [], ["none"], ["blue"], ["red", "red"]],
        "ok": [True, False, True, True, False],
        "at": pa.array([0, 1, 2, 3, 4], pa.timestamp("s")),
    }
)


@cb.operator(args=["float"], result="float", nullable=True)
def double(x: pa.Array) -> pa.Array:
    return pc.multiply(x, 2.0)


@cb.operator(args=["int", "int"], result="int", arrays="numpy")
def plus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a + b


@cb.operator(args=["str"], result="str")
def shout(words: pa.Array) -> pa.Array:
    return pc.utf8_upper(words)


@cb.operator(args=["str"], result="int", arrays="numpy")
def vowels(words: np.ndarray) -> np.ndarray:
    return np.array([sum(c in "aeiou" for c in w) for w in words], np.int64)


def values(e: Any, table: pa.Table = TABLE, **options: Any) -> list[Any]:
    return cb.compute({"out": e}, table, **options)["out"].to_pylist()


# ---- what a function is handed, and what it gives ----------------------------------------------------------


def test_arrow_arrays_keep_their_nulls() -> None:
    assert values(double("x")) == [2.0, 4.0, None, 8.0, 10.0]


def test_numpy_arrays_are_plain_numbers() -> None:
    assert values(plus("n", col("n") * 10)) == [11, 22, 33, 44, 55]


@pytest.mark.parametrize("arrays", ["arrow", "numpy"])
@pytest.mark.parametrize(
    ("column", "kind"),
    [("n", "int"), ("word", "str"), ("ok", "bool"), ("at", "time"), ("tags", "list[str]")],
)
def test_every_kind_passes_through_unchanged(column: str, kind: str, arrays: str) -> None:
    @cb.operator(args=[kind], result=kind, arrays=arrays)
    def same(a: Any) -> Any:
        return a

    assert (
        values(same(column))
        == TABLE[column].cast(pa.timestamp("us") if kind == "time" else TABLE[column].type).to_pylist()
    )


def test_arguments_are_widened_as_everywhere() -> None:
    @cb.operator(args=["float"], result="float", arrays="numpy")
    def half(x: np.ndarray) -> np.ndarray:
        assert x.dtype == np.float64
        return x / 2

    assert values(half("n")) == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert values(half("ok")) == [0.5, 0.0, 0.5, 0.5, 0.0]


def test_results_may_be_lists_chunks_or_narrower_numbers() -> None:
    @cb.operator(args=["int"], result="int")
    def as_list(n: pa.Array) -> Any:
        return [v.as_py() + 1 for v in n]

    @cb.operator(args=["int"], result="int")
    def as_chunks(n: pa.Array) -> Any:
        return pa.chunked_array([n.slice(0, 2), n.slice(2)])

    @cb.operator(args=["int"], result="int", arrays="numpy")
    def as_int8(n: np.ndarray) -> np.ndarray:
        return n.astype(np.int8)

    assert values(as_list("n")) == [2, 3, 4, 5, 6]
    assert values(as_chunks("n")) == values(as_int8("n")) == [1, 2, 3, 4, 5]


def test_a_list_of_strings_comes_out_as_tokens() -> None:
    @cb.operator(args=["str"], result="list[str]")
    def letters(words: pa.Array) -> Any:
        return pa.array([list(w.as_py()) for w in words], pa.list_(pa.string()))

    assert values(letters("word")) == [list(w) for w in TABLE["word"].to_pylist()]
    assert values(letters("word").length()) == [3, 4, 5, 3, 0]


@given(st.lists(st.text(), max_size=20), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_text_of_any_script_survives_the_way_there_and_back(words: list[str], chunk: int) -> None:
    table = pa.table({"word": pa.array(words, pa.string())})

    @cb.operator(args=["str"], result="str", nullable=True)
    def same(a: pa.Array) -> pa.Array:
        return a

    assert values(same("word"), table, chunk_rows=chunk) == words


def test_how_rows_are_grouped_changes_nothing() -> None:
    table = pa.table({"n": np.arange(200_000), "word": ["aeiou"[: k % 6] for k in range(200_000)]})
    plan = cb.compile(cb.View(table), cb.FeatureSet(dense={"v": vowels("word"), "s": plus("n", vowels("word"))}))
    whole = np.concatenate([b.dense for b in plan.batches(200_000)])
    parts = np.concatenate([b.dense for b in plan.batches(777)])
    assert whole.tobytes() == parts.tobytes()
    assert whole[:, 0].tolist() == [k % 6 for k in range(200_000)]


def test_a_request_runs_the_same_function() -> None:
    plan = cb.compile(cb.View(TABLE), cb.FeatureSet(dense={"v": vowels("word")}))
    assert plan.run(pa.table({"word": ["io", "x"]})).dense.tolist() == [[2.0], [0.0]]
    assert plan.run(pa.table({"word": pa.array([], pa.string())})).rows == 0


def test_functions_run_one_at_a_time() -> None:
    inside = threading.Semaphore(1)

    @cb.operator(args=["int"], result="int", arrays="numpy")
    def alone(n: np.ndarray) -> np.ndarray:
        assert inside.acquire(blocking=False)
        out = n + 1
        inside.release()
        return out

    table = pa.table({"n": np.arange(500_000)})
    plan = cb.compile(cb.View(table), cb.FeatureSet(dense={"n": alone("n")}), threads=4)
    assert sum(b.rows for b in plan.batches(10_000)) == 500_000


# ---- what breaks its declaration ---------------------------------------------------------------------------


def broken(result: Any, kind: str = "int", **options: Any) -> Any:
    @cb.operator(args=["int"], result=kind, **options)
    def broken(n: Any) -> Any:
        return result(n) if callable(result) else result

    return broken


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (broken(pa.array([1, 2])), r"broken' got 5 rows and returned 2; it must return one value for each row"),
        (broken(lambda n: n.cast(pa.string())), None),  # digits parse back
        (broken(pa.array(["a"] * 5)), r"broken' must return int"),
        (broken(pa.array([1.5] * 5)), r"broken' must return int"),
        (broken(pa.array([b"\xff"] * 5), "str"), r"broken' must return str"),
        (broken(pa.array([None, 1, 2, 3, 4])), r"broken' returned 1 nulls; declare it with nullable=True"),
        (broken(7), r"broken' must return int"),
        (broken(None), r"broken' must return int"),
        (broken(object()), r"broken' must return int"),
        (broken([2**70] * 5), r"broken' must return int"),
        (broken(np.full(5, 2**63, np.uint64)), r"broken' must return int"),
        (broken(np.zeros((5, 2))), r"broken' must return int"),
        (broken(lambda n: 1 / 0), r"broken' failed: ZeroDivisionError: division by zero"),
        (broken(lambda n: n.nothing), r"broken' failed: AttributeError"),
    ],
)
def test_a_broken_promise_is_named(operator: Any, message: str | None) -> None:
    if message is None:
        assert values(operator("n")) == [1, 2, 3, 4, 5]
        return
    with pytest.raises(cb.errors.DataError, match=message):
        values(operator("n"))
    with pytest.raises(cb.errors.DataError, match=message):
        list(cb.compile(cb.View(TABLE), cb.FeatureSet(sparse={"k": operator("n")})).batches(2))


def test_a_null_that_was_declared_must_be_filled() -> None:
    maybe = broken(pa.array([None, 1, 2, 3, 4]), nullable=True)
    with pytest.raises(cb.errors.PlanError, match=r"broken' may return nulls; add \.fill"):
        cb.compile(cb.View(TABLE), cb.FeatureSet(dense={"k": maybe("n")}))
    assert values(maybe("n").fill(-1)) == [-1, 1, 2, 3, 4]


def test_wrong_arguments_fail_when_the_plan_is_built() -> None:
    with pytest.raises(cb.errors.PlanError, match="takes 2 columns, got 1"):
        plus("n")
    with pytest.raises(cb.errors.PlanError, match=r"'plus' takes int as argument 2, got str \('word'\)"):
        values(plus("n", "word"))
    with pytest.raises(cb.errors.PlanError, match="takes int as argument 1, got float"):
        values(plus("x", "n"))
    with pytest.raises(cb.errors.PlanError, match="nearest: 'word'"):
        values(shout("wrod"))


def test_wrong_declarations_fail_at_once() -> None:
    with pytest.raises(cb.errors.PlanError, match="'number' is not a type"):
        cb.operator(args=["number"], result="int")
    with pytest.raises(cb.errors.PlanError, match="'key' is not a type"):
        cb.operator(args=["int"], result="key")
    with pytest.raises(cb.errors.PlanError, match="'arrow' or 'numpy', got 'pandas'"):
        cb.operator(args=["int"], result="int", arrays="pandas")


# ---- where in a plan ---------------------------------------------------------------------------------------


def test_native_operators_and_functions_take_turns() -> None:
    chain = vowels(shout(col("word").strip()).lower()) * 100 + plus(vowels("word"), col("n"))
    vowel = [sum(c in "aeiou" for c in w) for w in TABLE["word"].to_pylist()]
    assert values(chain) == [v * 100 + v + n for v, n in zip(vowel, TABLE["n"].to_pylist(), strict=True)]


def test_equal_calls_are_one_call() -> None:
    calls = []

    @cb.operator(args=["int"], result="int", arrays="numpy")
    def counted(n: np.ndarray) -> np.ndarray:
        calls.append(len(n))
        return n

    assert cb.compute({"a": counted("n"), "b": counted("n") + 1}, TABLE)["b"].to_pylist() == [2, 3, 4, 5, 6]
    assert calls == [5]


def test_a_filter_may_call_a_function_and_features_use_its_result() -> None:
    view = cb.View(TABLE).with_columns(v=vowels("word")).filter(col("v") > 0)
    plan = cb.compile(
        view, cb.FeatureSet(dense={"v": col("v"), "n": plus("n", "v"), "w": vowels(shout("word").lower())})
    )
    assert next(plan.batches(9)).dense.tolist() == [
        [1.0, 2.0, 1.0],
        [2.0, 4.0, 2.0],
        [2.0, 5.0, 2.0],
        [1.0, 5.0, 1.0],
    ]


def test_a_function_behind_a_filter_sees_only_the_rows_that_pass() -> None:
    @cb.operator(args=["int"], result="int", arrays="numpy")
    def even(n: np.ndarray) -> np.ndarray:
        assert (n % 2 == 0).all()
        return n // 2

    view = cb.View(TABLE).filter(col("n") % 2 == 0)
    assert next(cb.compile(view, cb.FeatureSet(dense={"h": even("n")})).batches(9)).dense.tolist() == [
        [1.0],
        [2.0],
    ]
    view = cb.View(TABLE).filter(col("n") > 100)
    assert list(cb.compile(view, cb.FeatureSet(dense={"h": even("n")})).batches(9)) == []


def test_a_function_of_a_joined_column_runs_once_a_row_of_its_view() -> None:
    seen: list[str] = []

    @cb.operator(args=["str"], result="int", arrays="numpy")
    def size(words: np.ndarray) -> np.ndarray:
        seen.extend(words)
        return np.array([len(w) for w in words], np.int64)

    titles = cb.View(pa.table({"n": [1, 2, 3], "title": ["a", "bb", "ccc"]}), key="n").fill(title="?????")
    view = cb.View(TABLE).join(titles, on="n")
    plan = cb.compile(view, cb.FeatureSet(dense={"s": size("title"), "both": plus(size("title"), "n")}))
    assert next(plan.batches(9)).dense.tolist() == [
        [1.0, 2.0],
        [2.0, 4.0],
        [3.0, 6.0],
        [5.0, 9.0],
        [5.0, 10.0],
    ]
    assert sorted(seen) == sorted(["a", "bb", "ccc", "?????"])  # the last one answers for missing keys


def test_a_function_may_clean_and_filter_a_joined_view() -> None:
    titles = cb.View(pa.table({"n": [1, 2, 3], "title": ["a", "bb", "ccc"]}), key="n")
    titles = titles.fill(title="").with_columns(loud=shout("title")).filter(vowels("title") == 0)
    view = cb.View(TABLE).join(titles, on="n", how="inner")
    assert cb.compute({"loud": col("loud")}, view)["loud"].to_pylist() == ["BB", "CCC"]


def test_a_function_may_make_a_key_to_join_on() -> None:
    titles = cb.View(pa.table({"word": ["RED", "BLUE"], "rank": [1, 2]}), key="word").fill(rank=0)
    view = cb.View(TABLE).with_columns(loud=shout("word")).join(titles, on="loud")
    assert cb.compute({"rank": col("rank")}, view)["rank"].to_pylist() == [1, 2, 0, 1, 0]


def test_a_function_may_feed_a_fit() -> None:
    plan = cb.compile(cb.View(TABLE), cb.FeatureSet(dense={"z": plus("n", "n").standardize()}))
    assert plan.fit().fitted[0]["mean"].tolist() == [6.0]


# ---- with a body for the GPU, on the CPU -------------------------------------------------------------------

NUMBA = pytest.mark.skipif(find_spec("numba") is None, reason="scalar functions are compiled by numba, not installed")


@cb.operator(args=["float", "int"], result="float", arrays="numpy", cuda="return x / (1.0 + fabs((double)n));")
def damped(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    assert x.dtype == np.float64
    assert n.dtype == np.int64  # no null turned it into floats
    with np.errstate(all="ignore"):
        return x / (1.0 + np.abs(n))


def bend(x: float, n: int, ok: bool) -> float:
    if ok and x > 0.0:
        return x * 3.1 + n / x
    return abs(x) - 0.5 * n


bent = cb.operator(args=["float", "int", "bool"], result="float", scalar=True)(bend)
floats = st.floats(width=64) | st.sampled_from([0.0, -0.0, 5e-324, 1e308])
rows = st.lists(
    st.tuples(st.none() | floats, st.none() | st.integers(-(2**31), 2**31), st.none() | st.booleans()), max_size=30
)


def asked(made: list[tuple[Any, Any, Any]]) -> pa.Table:
    kinds = {"x": pa.float64(), "n": pa.int64(), "ok": pa.bool_()}
    return pa.table({name: pa.array([r[k] for r in made], kind) for k, (name, kind) in enumerate(kinds.items())})


def bits(found: list[Any]) -> list[Any]:
    return [None if v is None else "nan" if v != v else np.float64(v).tobytes() for v in found]


@NUMBA
@given(rows, st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_a_scalar_function_gives_what_python_gives_row_by_row(made: list[tuple[Any, Any, Any]], chunk: int) -> None:
    expected = [None if None in row else bend(*row) for row in made]
    assert bits(values(bent("x", "n", "ok"), asked(made), chunk_rows=chunk)) == bits(expected)


@given(rows)
@settings(max_examples=40, deadline=None)
def test_a_function_beside_a_cuda_body_sees_no_null_and_gives_one_for_it(made: list[tuple[Any, Any, Any]]) -> None:
    with np.errstate(all="ignore"):
        expected = [None if None in (x, n) else np.float64(x) / (1.0 + abs(n)) for x, n, _ in made]
    assert bits(values(damped("x", "n"), asked(made))) == bits(expected)


def test_null_strings_and_lists_are_empty_for_it() -> None:
    @cb.operator(args=["str", "list[int]", "time", "bool"], result="int", cuda="return 0;")
    def seen(word: pa.Array, ids: pa.Array, at: pa.Array, ok: pa.Array) -> pa.Array:
        assert not any(a.null_count for a in (word, ids, at, ok))
        met.extend(zip(word.to_pylist(), ids.to_pylist(), at.view(pa.int64()).to_pylist(), ok.to_pylist(), strict=True))
        return pa.array([len(w) + len(i) for w, i in zip(word.to_pylist(), ids.to_pylist(), strict=True)], pa.int64())

    met: list[Any] = []
    table = pa.table(
        {
            "word": [None, "ab", "c"],
            "ids": pa.array([[1, 2], None, [3]], pa.list_(pa.int64())),
            "at": pa.array([7, 8, None], pa.timestamp("us")),
            "ok": [True, True, None],
        }
    )
    assert values(seen("word", "ids", "at", "ok"), table) == [None] * 3
    assert met == [("", [1, 2], 7, True), ("ab", [], 8, True), ("c", [3], 0, False)]


@NUMBA
def test_scalar_functions_take_and_give_every_number() -> None:
    @cb.operator(args=["time"], result="time", scalar=True)
    def later(at: int) -> int:
        return at + 1_000_000

    @cb.operator(args=["bool", "int"], result="bool", scalar=True)
    def either(ok: bool, n: int) -> bool:
        return not ok or n == 3

    @cb.operator(args=["bool"], result="int", scalar=True)
    def whole(ok: bool) -> int:
        return 3 if ok else 4

    @cb.operator(args=["int"], result="float", scalar=True)
    def constant(n: int) -> float:
        return 1

    moved = [t.timestamp() for t in values(later("at"))]
    assert [b - a.timestamp() for a, b in zip(TABLE["at"].to_pylist(), moved, strict=True)] == [1.0] * 5
    assert values(either("ok", "n")) == [False, True, True, False, True]
    assert values(whole("ok")) == [3, 4, 3, 3, 4]
    assert values(constant("n")) == [1.0] * 5


@NUMBA
def test_division_by_zero_and_overflow_are_no_errors_of_a_scalar_function() -> None:
    @cb.operator(args=["int", "int"], result="int", scalar=True)
    def parts(n: int, m: int) -> int:
        return n // m + n * n

    @cb.operator(args=["float", "int"], result="float", scalar=True)
    def share(x: float, n: int) -> float:
        return x / n

    table = pa.table({"x": [1.0, -1.0, 0.0], "n": [2**62, 7, 1], "z": [0, 0, 0]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert values(parts("n", "z"), table) == [0, 49, 1]
        assert bits(values(share("x", "z"), table)) == bits([np.inf, -np.inf, np.nan])


@NUMBA
def test_how_rows_are_grouped_changes_nothing_for_a_scalar_function() -> None:
    table = pa.table({"x": np.linspace(-3, 3, 200_000), "n": np.arange(200_000), "ok": np.arange(200_000) % 3 == 0})
    view = cb.View(table).filter(bent("x", "n", "ok") < 50_000)
    features = cb.FeatureSet(dense={"b": bent("x", "n", "ok"), "d": damped(bent("x", "n", "ok"), "n")})
    plan = cb.compile(view, features, threads=4)
    whole = np.concatenate([b.dense for b in plan.batches(200_000)])
    parts = np.concatenate([b.dense for b in plan.batches(777)])
    assert whole.tobytes() == parts.tobytes()
    expected = [bend(*row) for row in zip(*(table[c].to_pylist() for c in ("x", "n", "ok")), strict=True)]
    assert whole[:, 0].tolist() == [np.float32(v) for v in expected if v < 50_000]
    assert plan.run(table.slice(5, 3)).dense.tobytes() == whole[5:8].tobytes()


def test_a_null_argument_makes_a_result_that_must_be_filled() -> None:
    with pytest.raises(cb.errors.PlanError, match=r"'x'.*\.fill"):
        cb.compile(cb.View(TABLE), cb.FeatureSet(dense={"d": damped("x", "n")}))
    plan = cb.compile(cb.View(TABLE), cb.FeatureSet(dense={"d": damped("x", "n").fill(-1.0), "e": damped("n", "n")}))
    assert next(plan.batches(9)).dense[2].tolist() == [-1.0, 0.75]


def test_a_function_beside_a_cuda_body_must_make_no_nulls() -> None:
    def nulls(n: pa.Array) -> Any:
        return [None] * len(n)

    with pytest.raises(
        cb.errors.DataError,
        match=r"returned 5 nulls; an operator with a cuda body must return a "
        r"value for every row",
    ):
        values(cb.operator(args=["int"], result="int", cuda="return 0;")(nulls)("n"))


@NUMBA
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda n: n / 2, "returns float64 but is declared to return int; convert the result,"),
        (lambda n: None, "returns nothing on some code path; expected a result of type int"),
        (lambda n: n if n > 0 else None, "returns nothing on some code path; expected a result of type int"),
        (lambda n: (n, n), r"returns UniTuple\(int64 x 2\)"),
        (lambda n: "a", "returns unicode_type"),
        (lambda n: n.nothing, "cannot be compiled by numba: Unknown attribute 'nothing' of type int64"),
        (lambda n: missing(n), "cannot be compiled by numba: NameError|cannot be compiled by numba: .*missing"),  # noqa: F821
    ],
)
def test_a_scalar_function_that_cannot_be_compiled_is_refused_before_the_first_row(function: Any, message: str) -> None:
    with pytest.raises(cb.errors.PlanError, match=f"operator '.*<lambda>' {message}"):
        values(cb.operator(args=["int"], result="int", scalar=True)(function)("n"), TABLE.slice(0, 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cuda": 7}, "cuda is the body of a C\\+\\+ function as a string, got 7"),
        ({"cuda": "n + 1"}, "a cuda body returns the row's value: 'return …;', got 'n \\+ 1'"),
        ({"cuda": "return n;", "result": "str"}, "a cuda body returns one bool, int, float or time per row, not str"),
        ({"cuda": "return n;", "result": "list[int]"}, r"not list\[int\]"),
        (
            {"cuda": "return n;", "nullable": True},
            "cannot return nulls of its own: its result is null only where an argument is null; remove",
        ),
        ({"scalar": True, "nullable": True}, "a scalar function cannot return nulls of its own"),
        ({"scalar": True, "result": "str"}, "a scalar function returns one bool, int, float or time per row, not str"),
        ({"scalar": True, "args": ["str"]}, "takes bool, int, float or time, not str; cuda= takes any kind"),
        ({"scalar": True, "args": ["list[int]"]}, r"not list\[int\]"),
        ({"scalar": True, "arrays": "numpy"}, "gets plain numbers, not arrays; remove arrays="),
    ],
)
def test_wrong_bodies_fail_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(cb.errors.PlanError, match=message):
        cb.operator(**{"args": ["int"], "result": "int", **options})


def test_functions_that_have_no_place_beside_a_body_fail_at_once() -> None:
    def raises(n: int) -> int:
        if n < 0:
            raise ValueError
        return n

    def asserts(n: int) -> int:
        assert n >= 0
        return n

    for function, message in (
        (raises, "uses raise or assert, but code on a GPU cannot report an error"),
        (asserts, "uses raise or assert, but code"),
        (functools.partial(raises, 3), "a scalar function needs one named parameter per column"),
        (functools.partial(raises), r"a plain def or lambda, got functools\.partial"),
        (np.add, "needs one named parameter|whose parameters have names|a plain def or lambda"),
        (lambda *n: n, "one named parameter per column: .* has 0 for 1 columns"),
        (lambda n, m: n, "has 2 for 1 columns"),
    ):
        with pytest.raises(cb.errors.PlanError, match=message):
            cb.operator(args=["int"], result="int", scalar=True)(function)
    declare = cb.operator(args=["int"], result="int", cuda="return 0;")
    for function, message in (
        (lambda new: new, "uses the names of the parameters, and 'new' is not a valid name in C"),
        (lambda größe: größe, "'größe' is not a valid name in C"),
        (lambda n, m: n, "a cuda body needs one named parameter per column: .* has 2 for 1"),
        (3, "3 is not a function"),
    ):
        with pytest.raises(cb.errors.PlanError, match=message):
            declare(function)


def test_a_gpu_runs_those_that_have_a_body_and_no_others() -> None:
    plan = cb.compile(
        cb.View(TABLE).filter(damped("n", "n") > 0), cb.FeatureSet(dense={"a": damped("n", "n"), "b": plus("n", "n")})
    )
    users = {n.param("function").name: n for n in plan.graph.nodes(plan.graph.frames[0]) if n.op == "user"}
    found = place(plan.graph, cb.types.Device("cuda", memory="8GB"))
    assert (found.operators[users["plus"].id].device, found.operators[users["plus"].id].reason) == (
        "cpu",
        "a Python function",
    )
    assert found.operators[users["damped"].id].device == "cuda"
    on_cpu = place(plan.graph, "cpu")
    assert {on_cpu.operators[n.id].reason for n in users.values()} == {"a Python function", "the plan is for the CPU"}


OPERATORS = """
import ctrbox as cb

@cb.operator(args=["int"], result="int", arrays="numpy", cuda="return {body};")
def own(n):
    return 2 * n

@cb.operator(args=["int"], result="int", scalar={scalar})
def twice(n):
    return 2 * n
"""


def test_a_saved_plan_knows_its_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be taken for the next file's, of the same second
    module = f"bodies_{tmp_path.name.replace('-', '_')}"

    def written(body: str, scalar: bool) -> Any:
        (tmp_path / f"{module}.py").write_text(OPERATORS.format(body=body, scalar=scalar))
        sys.modules.pop(module, None)
        importlib.invalidate_caches()
        return importlib.import_module(module)

    def made(operators: Any) -> cb.Plan:
        return cb.compile(
            cb.View(pa.table({"n": [1, 2]}), name="log"),
            cb.FeatureSet(dense={"a": operators.own("n"), "b": operators.twice("n")}),
        )

    first = made(written("2 * n", True))
    file = tmp_path / "plan.cbp"
    first.save(file)
    again = cb.Plan.load(file, views={"log": pa.table({"n": [5]})}, allow_operators=True)
    assert again.fingerprint == first.fingerprint
    for body, scalar in (("n + n", True), ("2 * n", False)):
        other = made(written(body, scalar))
        assert other.fingerprint != first.fingerprint
        with pytest.raises(
            cb.errors.PlanError,
            match="has another CUDA body or other options than when the plan was saved; restore its declaration, or save "
            "the plan again",
        ):
            cb.Plan.load(file, views={"log": pa.table({"n": [5]})}, allow_operators=True)


# ---- dictionaries ------------------------------------------------------------------------------------------

IDS = cb.Dictionary(["red", "blue", "red"], [10, 20, 30])
VECTORS = cb.Dictionary(["red", "blue"], np.array([[1.0, 2.0], [3.0, 4.0]]))


def test_a_word_has_the_id_of_its_first_place() -> None:
    assert values(col("word").lookup(IDS, default=-1)) == [10, 20, -1, 10, -1]
    assert values(col("word").lookup(cb.Dictionary(["green", "red"]), default=9)) == [1, 9, 0, 1, 9]


def test_a_missing_word_without_a_default_is_null() -> None:
    assert values(col("word").lookup(IDS)) == [10, 20, None, 10, None]
    with pytest.raises(cb.errors.PlanError, match="may be null: lookup has no value"):
        cb.compile(cb.View(TABLE), cb.FeatureSet(dense={"id": col("word").lookup(IDS)}))


def test_a_vector_is_as_many_columns_and_zero_where_missing() -> None:
    plan = cb.compile(cb.View(TABLE), cb.FeatureSet(dense={"v": col("word").lookup(VECTORS)}))
    assert plan.schema.dense == (("v", 2),)
    assert next(plan.batches(9)).dense.tolist() == [[1, 2], [3, 4], [0, 0], [1, 2], [0, 0]]


def test_each_word_of_a_list_is_looked_up() -> None:
    assert values(col("tags").lookup(IDS, default=0)) == [[10, 20], [], [0], [20], [10, 10]]
    with pytest.raises(cb.errors.PlanError, match="lookup of a list needs a default"):
        values(col("tags").lookup(IDS))


def test_whole_numbers_are_words_too() -> None:
    squares = cb.Dictionary([1, 2, 3, -4], [1, 4, 9, 16])
    assert values(col("n").lookup(squares, default=0)) == [1, 4, 9, 0, 0]
    with pytest.raises(cb.errors.PlanError, match=r"'word' \(str\) in a dictionary of int"):
        values(col("word").lookup(squares))


def test_a_dictionary_of_nothing_finds_nothing() -> None:
    empty = cb.Dictionary(pa.array([], pa.string()))
    assert values(col("word").lookup(empty, default=-1)) == [-1] * 5


def test_a_dictionary_over_a_function_and_below_a_join() -> None:
    loud = cb.Dictionary(["RED"], [7])
    assert values(shout("word").lookup(loud, default=0)) == [7, 0, 0, 7, 0]
    colors = cb.View(pa.table({"n": [1, 2], "color": ["red", "pink"]}), key="n").fill(color="blue")
    view = cb.View(TABLE).join(colors, on="n")
    plan = cb.compile(view, cb.FeatureSet(dense={"v": col("color").lookup(VECTORS)}))
    assert next(plan.batches(9)).dense.tolist() == [[1, 2], [0, 0], [3, 4], [3, 4], [3, 4]]


def test_dictionaries_are_checked_when_made() -> None:
    for words, entries, message in (
        ([1.5], None, "strings or whole numbers"),
        (["a", None], None, "must not contain nulls, but 1 of them are null"),
        (["a"], [1, 2], "1 words and 2 values"),
        (["a"], [1.5], "must be whole numbers"),
    ):
        with pytest.raises(cb.errors.PlanError, match=message):
            cb.Dictionary(words, entries)
    with pytest.raises(cb.errors.PlanError, match=r"lookup needs a cb\.Dictionary, got dict"):
        values(col("word").lookup({"red": 1}))


def test_whole_numbers_that_numpy_would_round_beside_nulls_are_refused() -> None:
    large = 2**53 + 1

    def seen(values: list[int | None], arrays: str) -> list[Any]:
        def same(numbers: Any) -> Any:
            return pa.array([None if n is None or n != n else int(n) for n in numbers.tolist()], pa.int64())

        arrow = cb.operator(args=["int"], result="int", nullable=True)(lambda numbers: numbers)
        numpy = cb.operator(args=["int"], result="int", nullable=True, arrays="numpy")(same)
        view = cb.View(pa.table({"n": pa.array(values, pa.int64())}))
        return cb.compute({"n": (numpy if arrays == "numpy" else arrow)(col("n"))}, view).column("n").to_pylist()

    for values in ([large, 5], [2**53, None, -(2**53)]):
        assert seen(values, "numpy") == values
    assert seen([large, None], "arrow") == [large, None]
    for value in (large, -large):
        with pytest.raises(
            cb.errors.DataError, match=f"{value} cannot be represented exactly as a float64; fill the nulls"
        ):
            seen([None, value], "numpy")
