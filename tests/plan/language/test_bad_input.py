"""Whatever is given, one error of ours comes out: never a raw one, never a crash."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col, lit, when
from ctrbox.compiled_plan.plan_file import load_plan, save_plan
from ctrbox.engines.cpu.operator_tables import Tables
from ctrbox.errors import PlanError, SourceError
from ctrbox.plan.language.expressions import Expr, Time
from ctrbox.plan.language.tables_of_operators import TableSpec, misfit
from tests.plan import world
from tests.plan.graph.test_saved import forged

ROWS = pa.table({"i": pa.array([1, None, 3]), "n": [1, 2, 3], "f": [0.5, 1.5, 2.0], "s": ["a", "b", "c"]})
NAN, INF = float("nan"), float("inf")


def values(e: Any) -> list[Any]:
    found: list[Any] = cb.compute({"x": e}, ROWS)["x"].to_pylist()
    return found


# ---- dictionaries


@pytest.mark.parametrize(
    ("words", "given", "says"),
    [
        (["a"], [[]], "at least one number"),
        (["a"], np.zeros((1, 0)), "at least one number"),
        (["a"], np.array([2**63 + 1], np.uint64), "must be at most 2"),
        (["a"], [[1j]], "whole numbers, one per word, or a matrix"),
        (["a"], np.array([1], "m8[s]"), "whole numbers, one per word, or a matrix"),
        (["a"], 5, "whole numbers, one per word, or a matrix"),
        (["a", "b"], [[1], [1, 2]], "rows of one length"),
        (None, None, "words must be strings"),
        (5, None, "words must be strings"),
        (["a", 1], None, "words must be strings"),
        (["\ud800"], None, "words must be strings"),
        ([2**64], None, "words must be strings"),
        (pa.array([2**63], pa.uint64()), None, "whole numbers of 64 bits"),
        (pa.array([b"\xff"]), None, "must be UTF-8"),
    ],
)
def test_a_dictionary_of_what_it_cannot_hold(words: Any, given: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        cb.Dictionary(words, given)


def test_a_dictionary_holds_nan() -> None:
    (first, *_) = values(col("s").lookup(cb.Dictionary(["a"], [[NAN, 1.0]])))
    assert first[0] != first[0]


def test_a_dictionary_read_from_what_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nope"):
        cb.Dictionary.read("/nope", "w", "v")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(SourceError, match="cannot be read"):
        cb.Dictionary.read(tmp_path / "text", "w", "v")
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"w": ["a", "b"], "v": [[1.0], [2.0, 3.0, 4.0]], "n": [1, None]}), path)
    with pytest.raises(PlanError, match="no column 'x'"):
        cb.Dictionary.read(path, "w", "x")
    with pytest.raises(PlanError, match="the same length"):  # four numbers for two words, and still not two each
        cb.Dictionary.read(path, "w", "v")
    with pytest.raises(PlanError, match="must not contain nulls"):
        cb.Dictionary.read(path, "w", "n")
    pq.write_table(pa.table({"w": ["a", "b"], "v": [[1.0, 2.0], [3.0, 4.0]], "n": [7, 8]}), path)
    assert cb.Dictionary.read(path, "w", "v").vectors.tolist() == [1, 2, 3, 4]
    assert cb.Dictionary.read(str(path), "w", "n").ids.tolist() == [7, 8]


# ---- constants and parameters


@pytest.mark.parametrize(
    "make",
    [
        lambda: lit(10**400),
        lambda: lit(10**5000),
        lambda: col("n") + 10**5000,
        lambda: lit(np.array([1, 2])),
        lambda: col("i").fill(NAN),
        lambda: col("i").fill(INF),
        lambda: col("i").fill(1e300),
        lambda: col("i").fill(2**70),
        lambda: col("s").lookup(cb.Dictionary(["a"]), default=2**70),
        lambda: col("s").lookup(cb.Dictionary(["a"]), default=np.array([1, 2])),
        lambda: col("n").clip("a", "b"),
        lambda: col("n").clip(0, 10**400),
        lambda: col("f").clip(0, NAN),
        lambda: col("n").bucketize(["a"]),
        lambda: col("n").bucketize(5),
        lambda: col("n").bucketize([10**400]),
        lambda: col("n").bucketize([NAN]),
        lambda: col("n").bucketize([2, 1]),
        lambda: col("n").is_in(5),
        lambda: col("f").is_in([10**400]),
        lambda: col("n").is_in([10**5000]),
        lambda: lit("\ud800"),
        lambda: col("s") == "\ud800",
        lambda: col("s").is_in(["\ud800"]),
        lambda: col("s").starts_with("\ud800"),
        lambda: col("s").key(space="\ud800"),
        lambda: col("s").key(space=5),
        lambda: col("s").key(space=b"x"),
        lambda: col("n").as_key(space=5),
        lambda: col("s").json("$.\ud800"),
        lambda: col("s").json(5),
        lambda: col("s").json("$.a", strict=np.array([1, 2])),
        lambda: col("s").ngrams(True),
        lambda: col("f").round(2**70),
        lambda: col("s").prefix(2**63),
        lambda: col("n").age(0, unit=[]),
        lambda: cb.rate("n", time="t", label="l", prior="a"),
        lambda: cb.rate("n", time="t", label="l", weight=INF),
        lambda: cb.rate("n", time="t", label="l", prior=2),
        lambda: cb.rate("n", time="t", label="l", every="9" * 30 + "d"),
    ],
)
def test_a_parameter_that_cannot_be(make: Callable[[], Any]) -> None:
    with pytest.raises(PlanError) as caught:
        values(make())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("bucketize", {"boundaries": (2.0, 1.0)}),
        ("bucketize", {"boundaries": (NAN,)}),
        ("bucketize", {"boundaries": ("a",)}),
        ("bucketize", {"boundaries": 5}),
        ("bucketize", {"quantiles": 1}),
        ("bucketize", {"quantiles": 10**9}),
        ("ngrams", {"n": 0}),
        ("ngrams", {"n": 65}),
        ("ngrams", {"n": "2"}),
        ("split", {"separator": ""}),
        ("split", {"separator": 5}),
        ("round", {"digits": 16}),
        ("prefix", {"n": -1}),
        ("prefix", {"n": 2**63}),
        ("json", {"path": 5, "to": "str", "strict": False}),
        ("is_in", {"values": 5}),
        ("key", {"space": 5}),
        ("user", {"function": len}),
        ("cross", {"limit": 5, "space": None}),
        ("literal", {"value": Time(2**70)}),
    ],
)
def test_an_expression_made_by_hand_meets_the_same_checks(op: str, params: dict[str, Any]) -> None:
    """As one that comes from a file does."""
    column = col("s") if op in ("ngrams", "split", "json", "prefix") else col("f" if op == "round" else "n")
    with pytest.raises(PlanError):
        values(Expr(op, (column,), tuple(sorted(params.items()))))


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("edit_distance", {"limit": 65}),
        ("edit_distance", {"limit": -1}),
        ("cross", {"limit": 0, "space": None}),
        ("cross", {"limit": 10**7, "space": None}),
        ("cross", {"limit": 5, "space": 7}),
        ("history", {"what": "shows", "every": 0, "buckets": 0}),
        ("history", {"what": "shows", "every": 1, "buckets": -1}),
        ("history", {"what": "rate", "every": 1, "buckets": 0, "prior": "a", "weight": 1.0}),
        ("history", {"what": "rate", "every": 1, "buckets": 0, "prior": 0.5, "weight": NAN}),
        ("history", {"what": "all", "every": 1, "buckets": 0}),
        ("history", {"what": "shows", "every": 1, "buckets": 0}),  # counts by nothing
    ],
)
def test_an_expression_of_two_columns_made_by_hand(op: str, params: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        values(Expr(op, (col("s"), col("s")), tuple(sorted(params.items()))))


def test_what_is_fine_stays_fine() -> None:
    assert values(when(col("n") > 1).then(NAN).otherwise(col("n")))[0] == 1.0
    assert values(when(col("n") > 1).then(INF).otherwise(1)) == [1.0, INF, INF]
    assert values(col("n").bucketize([-INF, 2, INF])) == [1, 2, 2]
    assert values(col("s").prefix(np.int64(1))) == ["a", "b", "c"]
    assert values(col("f").clip(np.float32(1), 2)) == [1.0, 1.5, 2.0]
    assert values(col("n").is_in({1, 2})) == [True, True, False]


def test_bytes_that_are_not_utf8_are_compared_as_bytes() -> None:
    log = cb.View(pa.table({"s": pa.array([b"\x80", b"a"])}))
    escaped = b"\x80".decode("utf-8", "surrogateescape")
    for e in (col("s") == escaped, col("s").is_in([escaped]), col("s").starts_with(escaped)):
        assert cb.compute({"x": e}, log)["x"].to_pylist() == [True, False]


# ---- features and operators


@pytest.mark.parametrize("name", [5, None, b"x", "\ud800"])
def test_a_feature_needs_a_name(name: Any) -> None:
    for role in ("sparse", "dense"):
        with pytest.raises(PlanError, match="a feature's name"):
            cb.FeatureSet(**{role: {name: col("n")}})


def test_a_name_made_of_bytes_is_kept(tmp_path: Path) -> None:
    name = b"\x80".decode("utf-8", "surrogateescape")
    plan = cb.compile(cb.View(ROWS, name="log"), cb.FeatureSet(sparse={name: col("n")}), device="cpu")
    plan.explain()
    plan.show(tmp_path / "p.svg")
    plan.save(tmp_path / "p.plan")
    loaded = cb.Plan.load(tmp_path / "p.plan", views={"log": ROWS})
    assert loaded.fingerprint == plan.fingerprint
    (batch,) = loaded.batches(8)
    assert list(batch.sparse) == [name]


def test_many_features_take_no_square_of_time() -> None:
    began = time.perf_counter()
    cb.FeatureSet(sparse={f"f{k}": col("n") for k in range(50_000)})
    assert time.perf_counter() - began < 5
    with pytest.raises(PlanError, match="'a' is already in use"):
        cb.FeatureSet(sparse={"a": col("n")}, dense={"a": col("n")})


def scaled(column: Any, by: int) -> Any:
    return pa.array([v * by for v in column.to_pylist()])


def test_a_partial_is_an_operator_without_a_name(tmp_path: Path) -> None:
    triple = cb.operator(args=["int"], result="int")(functools.partial(scaled, by=3))
    assert values(triple(col("n"))) == [3, 6, 9]
    plan = cb.compile(cb.View(ROWS), cb.FeatureSet(dense={"x": triple(col("n"))}), device="cpu")
    assert "partial" in plan.explain()
    with pytest.raises(PlanError, match="cannot be saved: a saved plan names each operator by its import path"):
        plan.save(tmp_path / "p.plan")
    with pytest.raises(PlanError, match="takes 1 columns, got 2"):
        triple("n", "n")


@pytest.mark.parametrize(
    "declare",
    [
        lambda: cb.operator(args=[5], result="int"),
        lambda: cb.operator(args=5, result="int"),
        lambda: cb.operator(args=["int"], result="int")(5),
    ],
)
def test_an_operator_of_no_types_or_no_function(declare: Callable[[], Any]) -> None:
    with pytest.raises(PlanError, match="operator"):
        declare()


# ---- depth


def deep(levels: int) -> Expr:
    e = col("n")
    for _ in range(levels):
        e = e + 1
    return e


def test_an_expression_of_thousands_of_calls(tmp_path: Path) -> None:
    plan = cb.compile(cb.View(ROWS, name="log"), cb.FeatureSet(dense={"x": deep(3000)}), device="cpu")
    (batch,) = plan.batches(8)
    assert batch.dense[:, 0].tolist() == [3001, 3002, 3003]
    assert "layer 3000" in plan.explain()
    plan.save(tmp_path / "p.plan")
    loaded = cb.Plan.load(tmp_path / "p.plan", views={"log": ROWS})
    assert loaded.fingerprint == plan.fingerprint


def test_an_expression_too_deep_for_a_file_is_not_saved(tmp_path: Path) -> None:
    plan = cb.compile(cb.View(ROWS, name="log"), cb.FeatureSet(dense={"x": deep(10_000)}), device="cpu")
    with pytest.raises(PlanError, match=r"nested 10,001 deep.*10,000"):
        plan.save(tmp_path / "p.plan")
    assert not (tmp_path / "p.plan").exists()


def test_a_long_expression_is_shown() -> None:
    assert repr(deep(3)) == "col('n').add(1).add(1).add(1)"
    assert repr(deep(2000)).count("add") == 2000
    assert repr(cb.cross("a", col("b").prefix(2))) == "col('a').cross(col('b').prefix(n=2), limit=1024)"
    doubled = col("n")
    for _ in range(200):
        doubled = doubled + doubled
    assert len(repr(doubled)) == 100_000
    assert "too long" in repr(lit(10**5000))


def test_a_concat_of_many_parts() -> None:
    parts = [lit(str(k)) if k % 2 else col("s") for k in range(1201)]
    wanted = ["-".join(str(k) if k % 2 else s for k in range(1201)) for s in "abc"]
    assert values(cb.concat(*parts, sep="-")) == wanted
    assert values(cb.concat("s")) == ["a", "b", "c"]


# ---- saved plans


def fits(saved: dict[str, Any]) -> dict[str, str]:
    """Number of the fit of each kind."""
    kinds = {"boundaries": "quantiles", "mean": "moments", "hashes": "history"}
    return {kinds[next(n for n in kinds if n in state)]: number for number, state in saved["fitted"].items()}


def swapped(a: str, b: str) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        of, fitted = fits(header), header["fitted"]
        fitted[of[a]], fitted[of[b]] = fitted[of[b]], fitted[of[a]]

    return change


def renamed(how: str, name: str, other: str) -> Callable[[dict[str, Any]], None]:
    """One array in the place of another."""

    def change(header: dict[str, Any]) -> None:
        state = header["fitted"][fits(header)[how]]
        state[name] = state[other]

    return change


def reshaped(how: str, name: str, **entry: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header["blobs"][header["fitted"][fits(header)[how]][name]].update(entry)

    return change


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "p.plan"
    save_plan(world.plan().fit(), path)
    return path.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        swapped("quantiles", "history"),
        swapped("moments", "history"),
        swapped("quantiles", "moments"),
        renamed("history", "hashes", "buckets"),
        renamed("history", "shows", "hashes"),
        lambda h: h["fitted"][fits(h)["history"]].pop("clicks"),
        lambda h: h["fitted"][fits(h)["moments"]].update(more=0),
        lambda h: h["fitted"].pop(fits(h)["moments"]),
        lambda h: h["fitted"].update({fits(h)["moments"]: {}}),
        reshaped("history", "hashes", dtype="<i8"),
        reshaped("quantiles", "boundaries", dtype="<i8"),
        reshaped("moments", "mean", shape=[1, 1]),
        reshaped("moments", "mean", shape=[]),
    ],
)
def test_fitted_states_that_do_not_belong(
    saved: bytes, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    (tmp_path / "p.plan").write_bytes(forged(saved, change))
    with pytest.raises(PlanError, match="malformed"):
        load_plan(tmp_path / "p.plan", views=world.tables())


def counts(hashes: list[int], buckets: list[int], shows: list[int], clicks: list[int]) -> dict[str, np.ndarray]:
    return {
        "hashes": np.array(hashes, np.uint64),
        "buckets": np.array(buckets, np.int64),
        "shows": np.array(shows, np.int64),
        "clicks": np.array(clicks, np.int64),
    }


@pytest.mark.parametrize(
    ("how", "state", "says"),
    [
        ("quantiles", {"boundaries": np.array([1.0, 2.0, INF])}, ""),
        ("quantiles", {"boundaries": np.zeros(0)}, ""),
        ("quantiles", {"boundaries": np.array([2.0, 1.0])}, "ascend"),
        ("quantiles", {"boundaries": np.array([1.0, 1.0])}, "ascend"),
        ("quantiles", {"boundaries": np.array([NAN])}, "ascend"),
        ("quantiles", {"boundaries": [1.0]}, "vector"),
        ("quantiles", 5, "need boundaries"),
        ("moments", {"mean": np.zeros(1), "scale": np.ones(1)}, ""),
        ("moments", {"mean": np.zeros(0), "scale": np.zeros(0)}, "one value"),
        ("moments", {"mean": np.array([INF]), "scale": np.ones(1)}, "finite"),
        ("history", counts([], [], [], []), ""),
        ("history", counts([1, 1, 2**63], [0, 1, -5], [1, 1, 1], [0, 1, 1]), ""),
        ("history", counts([1, 1], [0, 0], [1, 1], [0, 0]), "sorted"),
        ("history", counts([1, 1], [1, 0], [1, 1], [0, 0]), "sorted"),
        ("history", counts([2, 1], [0, 1], [1, 1], [0, 0]), "sorted"),
        ("history", counts([1, 2], [0, 0], [1], [0, 0]), "the same length"),
        ("history", counts([1], [0], [1], [2]), "fewer shows"),
        ("history", counts([1], [0], [1], [-1]), "fewer"),
    ],
)
def test_what_a_fit_can_have_learned(how: str, state: Any, says: str) -> None:
    found = misfit(how, state)
    assert says in found
    assert bool(found) == bool(says)


def test_an_engine_refuses_the_state_of_another_fit() -> None:
    tables = Tables({0: {"boundaries": np.array([1.0])}})
    tables.native(TableSpec("fit", 0, "quantiles"))
    with pytest.raises(PlanError, match="history need hashes"):
        Tables(tables.fitted).native(TableSpec("fit", 0, "history"))
    plan = world.plan().fit()
    numbers = list(plan.fitted)
    plan = plan._like(fitted=dict(zip(numbers, [plan.fitted[k] for k in reversed(numbers)], strict=True)))
    with pytest.raises(PlanError, match="not match the operators of the plan:"):
        list(plan.batches(7))


def test_a_plan_is_written_to_files_only(tmp_path: Path) -> None:
    import os

    plan = world.plan()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for target in (tmp_path, tmp_path / "pipe", tmp_path / "link"):
        with pytest.raises(cb.errors.WriteError, match="cannot write"):
            plan.save(target)
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(cb.errors.WriteError, match="cannot write"):
        plan.save(tmp_path / "a\0b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_mapping_is_a_dictionary() -> None:
    words = cb.Dictionary({"ios": 7, "android": 9})
    found = cb.compute({"id": col("s").lookup(words, default=0)}, pa.table({"s": ["android", "ios", "tv"]}))
    assert found["id"].to_pylist() == [9, 7, 0]
    with pytest.raises(PlanError, match="one mapping"):
        cb.Dictionary({"a": 1}, [2])
