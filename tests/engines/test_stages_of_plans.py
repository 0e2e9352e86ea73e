"""Tests the stages before the last program: filters, functions of the user, and joined views of which no column is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu.morsel_stages import Native

ROWS = pa.table(
    {"n": [1, 2, 3], "doc": ['{"a":1,"b":2}', '{"a":2,"b":3}', '{"a":3,"b":4}'], "u": [1, 2, 9], "f": [0.5, 1.5, 2.5]}
)
USERS = pa.table({"u": [1, 2], "age": [5, 6]})
A, B = (col("doc").json(path, "int").fill(0) for path in ("$.a", "$.b"))
STRICT = col("doc").json("$.b", "int", strict=True).fill(0)


@cb.operator(args=["int"], result="int", arrays="numpy")
def twice(x: np.ndarray) -> np.ndarray:
    return 2 * x


@cb.operator(args=["int"], result="int", arrays="numpy")
def plus(x: np.ndarray) -> np.ndarray:
    return x + 1


def log(**join: Any) -> cb.View:
    users = cb.View(USERS, key="u", name="users").fill(age=0)
    view = cb.View(ROWS, name="log")
    return view.join(users, on="u", **join) if join else view


LEFT: dict[str, Any] = {"how": "left"}
INNER: dict[str, Any] = {"how": "inner"}
Steps = list[tuple[list[str], list[str]] | list[str]]


@pytest.mark.parametrize(
    ("view", "dense", "steps", "last", "rows", "loaded"),
    [
        (log(), {"n": col("n")}, [], ["load", "emit"], [[1], [2], [3]], []),
        # A document is scanned once for a filter and a feature, but a strict path waits for the filter.
        (
            log().filter(A > 1),
            {"b": B},
            [(["json"], ["load", "json", "fill", "gt", "emit", "emit"])],
            ["load", "fill", "emit"],
            [[3], [4]],
            [],
        ),
        (
            log().filter(A > 1),
            {"b": STRICT},
            [([], ["load", "json", "fill", "gt", "emit"])],
            ["load", "json", "fill", "emit"],
            [[3], [4]],
            [],
        ),
        # A value that the filter computed is kept if a feature needs it; a plain column is loaded again.
        (
            log().filter(A > 1),
            {"a": A, "b": B, "n": col("n")},
            [(["fill", "json"], ["load", "json", "fill", "gt", "emit", "emit", "emit"])],
            ["load", "load", "load", "emit", "emit", "fill", "emit"],
            [[2, 3, 2], [3, 4, 3]],
            [],
        ),
        (
            log().filter(col("n") > 1),
            {"m": col("n") + 1},
            [([], ["load", "gt", "emit"])],
            ["load", "add", "emit"],
            [[3], [4]],
            [],
        ),
        (
            log().filter(col("n") + 1 > 2),
            {"m": col("n") + 1, "k": (col("n") + 1) * 2},
            [(["add"], ["load", "add", "gt", "emit", "emit"])],
            ["load", "emit", "mul", "emit"],
            [[3, 6], [4, 8]],
            [],
        ),
        (
            log().filter(col("n") > 1).filter(col("f") < 2),
            {"n": col("n")},
            [([], ["load", "load", "gt", "lt", "and", "emit"])],
            ["load", "emit"],
            [[2]],
            [],
        ),
        # A view of which nothing is read is loaded only if the join drops rows.
        (log(**LEFT), {"n": col("n")}, [], ["load", "emit"], [[1], [2], [3]], []),
        (
            log(**INNER),
            {"n": col("n")},
            [([], ["load", "hash", "join", "ne", "emit"])],
            ["load", "emit"],
            [[1], [2]],
            [2],
        ),
        (
            log(**LEFT).filter(col("age") > 5),
            {"age": col("age")},
            [(["row"], ["load", "hash", "join", "gather", "emit", "emit"])],
            ["load", "gather", "emit"],
            [[6]],
            [2],
        ),
        # Functions of one round share a program before them.
        (
            log(),
            {"t": twice("n"), "p": plus("n"), "q": plus(twice("n"))},
            [(["column"], ["load", "emit"]), ["user", "user"], (["user"], ["load", "emit"]), ["user"]],
            ["load", "load", "load", "emit", "emit", "emit"],
            [[2, 2, 3], [4, 3, 5], [6, 4, 7]],
            [],
        ),
        (
            log().filter(twice("n") > 2),
            {"t": twice("n"), "p": plus(twice("n"))},
            [
                (["column"], ["load", "emit"]),
                ["user"],
                ([], ["load", "gt", "emit"]),
                (["user"], ["load", "emit"]),
                ["user"],
            ],
            ["load", "load", "emit", "emit"],
            [[4, 5], [6, 7]],
            [],
        ),
    ],
)
def test_stages_compute_what_filters_and_functions_need_and_keep_what_is_needed_later(
    view: cb.View, dense: dict[str, Any], steps: Steps, last: list[str], rows: list[list[int]], loaded: list[int]
) -> None:
    plan = cb.compile(view, cb.FeatureSet(dense=dense), device="cpu", threads=1)
    extractor = plan.extractor()
    found: Steps = [
        ([n.op for n in step.kept], step.program.labels) if isinstance(step, Native) else [n.op for n in step.nodes]
        for step in extractor.stages.steps
    ]
    assert found == steps
    assert extractor.body.labels == last
    assert [d.rows for d in extractor.dimensions.values()] == loaded
    assert [row for batch in plan.batches(2) for row in batch.dense.tolist()] == rows


@pytest.mark.parametrize("more", ["age", "n"])
def test_a_filter_by_a_view_on_disk_reads_what_features_need_of_it_with_the_row(tmp_path: Path, more: str) -> None:
    users = cb.View(pa.table({"u": [1, 2], "age": [5, 6], "size": [7, 8]}), key="u", name="users").fill(age=0, size=0)
    joined = cb.View(ROWS, name="log").join(users, on="u", budget=1, spill=str(tmp_path)).filter(col("age") > 4)
    plan = cb.compile(joined, cb.FeatureSet(dense={"m": col(more), "size": col("size")}), device="cpu", threads=1)
    (step,) = plan.extractor().stages.steps
    assert isinstance(step, Native)
    assert sorted(n.op for n in step.kept) == ["gather"] * (1 + (more == "age"))
    assert [row for batch in plan.batches(9) for row in batch.dense.tolist()] == [
        [5 if more == "age" else 1, 7],
        [6 if more == "age" else 2, 8],
    ]


def returning(make: Any, kind: str, **options: Any) -> Any:
    @cb.operator(args=["int"], result=kind, **options)
    def made(n: pa.Array) -> Any:
        return make(n)

    return made


@pytest.mark.parametrize(
    ("make", "kind", "expected"),
    [
        (lambda n: pa.chunked_array([n.slice(0, 1), n.slice(1)]), "int", [1, 2, 3]),
        (lambda n: n.cast(pa.int8()), "int", [1, 2, 3]),
        (lambda n: [1.5, 2, 3], "float", [1.5, 2.0, 3.0]),
        (lambda n: n.cast(pa.decimal128(22, 3)), "float", [1.0, 2.0, 3.0]),
        (lambda n: pa.array([[k.as_py()] for k in n]), "list[int]", [[1], [2], [3]]),
        (lambda n: pa.array([[1], [2, 3], []], pa.list_view(pa.int64())), "list[int]", [[1], [2, 3], []]),
        (lambda n: pa.array([[1], [2, 3], []], pa.large_list_view(pa.int32())), "list[int]", [[1], [2, 3], []]),
        (
            lambda n: pc.cast(pa.array([["1.5"], [], ["2"]]), pa.list_(pa.decimal128(9, 2))),
            "list[float]",
            [[1.5], [], [2.0]],
        ),
    ],
)
def test_what_a_function_returns_becomes_its_declared_type(make: Any, kind: str, expected: list[Any]) -> None:
    found = cb.compute({"x": returning(make, kind)("n")}, cb.View(ROWS))
    assert found["x"].to_pylist() == expected


def test_a_function_that_breaks_its_word_is_named_with_what_helps() -> None:
    def told(make: Any, kind: str = "int", **options: Any) -> str:
        with pytest.raises(cb.errors.DataError) as met:
            cb.compute({"x": returning(make, kind, **options)("n")}, cb.View(ROWS))
        return str(met.value).replace(repr(returning(make, kind).name), "NAME")

    def fails(n: pa.Array) -> Any:
        raise ValueError("two\n  lines")

    assert told(fails) == "operator NAME failed: ValueError: two lines"
    assert told(lambda n: [1]) == "operator NAME got 3 rows and returned 1; it must return one value for each row"
    assert told(lambda n: [1, None, None]) == "operator NAME returned 2 nulls; declare it with nullable=True"
    assert told(lambda n: ["x", "y", "z"]).startswith("operator NAME must return int: ")
    nullable = cb.compute({"x": returning(lambda n: [1, None, 3], "int", nullable=True)("n")}, cb.View(ROWS))
    assert nullable["x"].to_pylist() == [1, None, 3]
