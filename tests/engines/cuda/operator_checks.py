"""Every operator on a device gives the CPU's bits. The test bodies; which device is a fixture, `runtime`."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cuda.program import SPLIT_HASH
from ctrbox.engines.cuda.runtime import Runtime
from tests.engines.cuda import expressions, hostile
from tests.engines.cuda.registers import Registers, shrunk

unhurried = {"deadline": None, "suppress_health_check": list(HealthCheck)}
SEEDS = st.integers(0, 2**32)
MOST_ROWS = 300


@cache
def made(runtime: Runtime, family: str, nulls: bool) -> Registers:
    return Registers(expressions.FAMILIES[family](), hostile.sample(nulls), runtime, fitted=expressions.fitted)


@cache
def drawn_rows(seed: int, nulls: bool, long: int) -> pa.Table:
    """Draw rows once for all families: drawing them takes twice the time of comparing them."""
    return hostile.table(seed, MOST_ROWS + 9, nulls=nulls, long=long)


def compared(runtime: Runtime, family: str, seed: int, rows: int, nulls: bool, long: int, skip: int) -> None:
    made(runtime, family, nulls).check(drawn_rows(seed, nulls, long).slice(skip, rows))


@pytest.mark.parametrize("family", expressions.FAMILIES)
@settings(max_examples=8, **unhurried)
@given(st.integers(0, 3), st.sampled_from([60, 1, 0, 257]), st.booleans(), st.sampled_from([0, 1]), st.integers(0, 9))
def test_every_operator_gives_the_bits_of_the_cpu(
    runtime: Runtime, family: str, seed: int, rows: int, nulls: bool, long: int, skip: int
) -> None:
    compared(runtime, family, seed, rows, nulls, long, skip)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", expressions.FAMILIES)
@settings(max_examples=40, **unhurried)
@given(
    st.integers(0, 3), st.sampled_from([60, MOST_ROWS, 1]), st.booleans(), st.sampled_from([0, 1]), st.integers(0, 9)
)
def test_every_operator_gives_the_bits_of_the_cpu_on_many_rows(
    runtime: Runtime, family: str, seed: int, rows: int, nulls: bool, long: int, skip: int
) -> None:
    compared(runtime, family, seed, rows, nulls, long, skip)


@pytest.mark.parametrize("family", expressions.FAMILIES)
def test_rows_without_nulls_rows_of_nulls_only_and_rows_far_beyond_the_first_pool(
    runtime: Runtime, family: str
) -> None:
    registers = made(runtime, family, True)
    for share in (0.0, 1.0):
        registers.check(hostile.table(5, 40, share=share))
    shrunk(registers.extractor.device)
    registers.check(hostile.table(8, 12, long=2))


# ---- a split and a hash as one ------------------------------------------------------------------------------------

PARTED = ["", "/", "//", "a", "/a", "a/", "\0/\0", "é/ü", "x" * 64, "X" * 63 + "/", "/" * 64, "word-of-17-bytes!/" * 9]


@cache
def split_and_hashed(runtime: Runtime, nulls: bool) -> Registers:
    s = col("s")
    columns = {
        "one": s.split("/").hash(),
        "of a change": s.lower().split("x").hash(),
        "of a constant": s.fill("n/o").split("/").hash() if nulls else s.split("-").hash(),
        "zeros": s.split("\0").hash(),
        "two bytes": s.split("/a").hash(),
        "two readers": s.split("!").hash(),
        "the other reader": s.split("!").length(),
    }
    kept = pa.array(["a", None] if nulls else ["a"])
    made = Registers(columns, pa.table({"s": kept}), runtime)
    code = [k for layer in made.extractor.layout.layers for k in layer.code]
    assert [k.body for k in code].count(SPLIT_HASH) == 4
    assert [k.body for k in code].count("Split") == 2
    return made


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("long", [0, 20, 4000])
def test_a_split_whose_parts_are_only_hashed_gives_the_same_hashes(runtime: Runtime, nulls: bool, long: int) -> None:
    """In blocks whose text or parts pass the shared memory, too; `long`: parts of one row, or of each where there are few."""
    rng = np.random.default_rng(long)
    texts = [
        PARTED[k] if rng.random() < 0.5 else "".join(rng.choice(list("aAb/!é\0"), 9)) for k in rng.integers(0, 12, 300)
    ]
    if long == 20:
        texts[:256] = ["a/" * long] * 256
    elif long:
        texts[70] = "part/" * long
    rows = pa.table({"s": pa.array([None if nulls and rng.random() < 0.2 else text for text in texts], pa.string())})
    made = split_and_hashed(runtime, nulls)
    made.check(rows)
    shrunk(made.extractor.device)
    made.check(rows)


# ---- Arrow's layouts ----------------------------------------------------------------------------------------

INDICES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
NUMBERS = [pa.bool_(), *(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32)), pa.int64()]
FLOATS = [pa.float32(), pa.float64()]
MOMENTS = [pa.timestamp("us")]


def values_of(type_: pa.DataType, d: hostile.Draw, rows: int) -> list[Any]:
    rng = d.rng
    if pa.types.is_boolean(type_):
        return [rng.random() < 0.5 for _ in range(rows)]
    if pa.types.is_integer(type_):
        return [hostile.within(type_.bit_width, not str(type_).startswith("u"))(d) for _ in range(rows)]
    if pa.types.is_floating(type_):
        return [rng.choice([0.5, -0.0, 1e30, float("nan")]) for _ in range(rows)]
    if pa.types.is_timestamp(type_):
        return [rng.randrange(2**50) for _ in range(rows)]
    return [rng.choice([*hostile.WORDS, "", "long " * rng.randrange(9)]).encode() for _ in range(rows)]


def flat(type_: pa.DataType, d: hostile.Draw, rows: int, share: float) -> pa.Array:
    found = [None if d.rng.random() < share else x for x in values_of(type_, d, rows)]
    return pa.array(found, pa.int64()).cast(type_) if pa.types.is_timestamp(type_) else pa.array(found, type_)


def nested(inner: pa.Array, shape: str, d: hostile.Draw, rows: int, share: float) -> pa.Array:
    """Lists whose elements lie in ``inner``, some of it in none of them."""
    mask = pa.array([d.rng.random() < share for _ in range(rows)], pa.bool_())
    if shape == "fixed":
        return pa.FixedSizeListArray.from_arrays(inner[: 2 * rows], 2, mask=mask)
    offsets = sorted(d.rng.randrange(len(inner) + 1) for _ in range(rows + 1))
    kind, made = (pa.int32(), pa.ListArray) if shape == "list" else (pa.int64(), pa.LargeListArray)
    return made.from_arrays(pa.array(offsets, kind), inner, mask=mask)


def layouts(seed: int, rows: int, share: float, skip: int) -> pa.RecordBatch:
    """A column of every Arrow type that the engine reads, each a slice with some offset."""
    d = hostile.Draw(seed, 0)
    made: dict[str, pa.Array] = {}
    for type_ in (*NUMBERS, *FLOATS, *MOMENTS, *TEXTS):
        made[f"{type_}"] = flat(type_, d, rows + skip, share)
        for shape in ("list", "large", "fixed"):
            # A vector must have all its elements.
            inner = flat(type_, d, 2 * (rows + skip) + 3, 0.0 if shape == "fixed" else share)
            made[f"{shape} of {type_}"] = nested(inner.slice(1), shape, d, rows + skip, share)
    for type_ in TEXTS[:2]:
        words = flat(type_, d, 5, share)
        for index in INDICES:
            at = [None if d.rng.random() < share else d.rng.randrange(5) for _ in range(rows + skip)]
            made[f"{index} to {type_}"] = pa.DictionaryArray.from_arrays(pa.array(at, index), words)
        inner = pa.DictionaryArray.from_arrays(pa.array([d.rng.randrange(5) for _ in range(40)], pa.int16()), words)
        made[f"list of words of {type_}"] = nested(inner, "list", d, rows + skip, share)
    return pa.RecordBatch.from_pydict(made).slice(skip)


@cache
def loaded(runtime: Runtime, nulls: bool) -> Registers:
    sample = layouts(3, 30, 0.4 if nulls else 0.0, 0)
    return Registers({name: col(name) for name in sample.schema.names}, pa.Table.from_batches([sample]), runtime)


@settings(max_examples=15, **unhurried)
@given(SEEDS, st.sampled_from([40, 1, 0, 9]), st.booleans(), st.integers(0, 17))
def test_every_arrow_layout_is_read_as_the_cpu_reads_it(
    runtime: Runtime, seed: int, rows: int, nulls: bool, skip: int
) -> None:
    loaded(runtime, nulls).check(layouts(seed, rows, 0.3 if nulls else 0.0, skip))


# ---- rows of other views ------------------------------------------------------------------------------------


def joined(nulls: bool, how: str, seed: int = 4) -> tuple[dict[str, Any], cb.View]:
    """Everything of a hostile view, gathered by keys of a log that it may lack, and expressions over both sides."""
    other = hostile.table(seed, 40, nulls=nulls, long=1).append_column("id", pa.array(range(-20, 20)))
    view = cb.View(other, key="id", name="other")
    words = pa.table({"w": [*hostile.WORDS[:9], ""], "weight": pa.array([None, *range(9)], pa.int32())})
    log = cb.View(pa.table({"at": pa.array([0, None, 99]), "d": ["red", None, ""], "lm": [[1], None, []]}))
    log = log.join(view, on="at", prefix="o_", how=how).join(cb.View(words, key="w", name="words"), on="d")
    columns: dict[str, Any] = {name: col(f"o_{name}") for name in other.schema.names if name != "id"}
    columns |= {
        "weight": col("weight"),
        "split": col("o_s").split(" "),
        "hash": col("o_ls").hash(),
        "city": col("o_doc").json("$.a.b"),
        "tags": col("o_doc").json("$.tags", "list[str]"),
        "both": cb.overlap("lm", "o_lm"),
        "mixed": cb.concat(col("d"), col("o_s"), sep="-"),
        "cross": cb.cross("d", "o_ls"),
        "sum": col("weight") + col("o_n"),
    }
    return columns, log


@cache
def gathered(runtime: Runtime, nulls: bool, how: str) -> Registers:
    columns, log = joined(nulls, how)
    return Registers(columns, log, runtime)


@pytest.mark.parametrize("how", ["left", "inner"])
@settings(max_examples=6, **unhurried)
@given(SEEDS, st.sampled_from([300, 0, 1, 50]), st.booleans())
def test_joined_rows_are_gathered_whether_or_not_a_key_is_found(
    runtime: Runtime, how: str, seed: int, rows: int, nulls: bool
) -> None:
    rng = hostile.Draw(seed, 0).rng
    at = [rng.choice([None, rng.randrange(-25, 25), 2**63 - 1, -(2**63)]) for _ in range(rows)]
    words = [rng.choice([None, *hostile.WORDS, ""]) for _ in range(rows)]
    lists = [None if rng.random() < 0.2 else [rng.randrange(4) for _ in range(rng.randrange(5))] for _ in range(rows)]
    table = {
        "at": pa.array(at, pa.int64()),
        "d": pa.array(words, pa.string()),
        "lm": pa.array(lists, pa.list_(pa.int64())),
    }
    found = gathered(runtime, nulls, how).check(pa.table(table))
    kept = [k for k in at if how == "left" or (k is not None and -20 <= k < 20)]
    assert len(found["n"]) == len(kept)


# ---- rows that are an error ---------------------------------------------------------------------------------


def same_error(registers: Registers, rows: Any) -> str:
    """What both engines say of these rows."""
    said = []
    for run in (registers.on_cpu, registers.on_device):
        with pytest.raises(cb.errors.DataError) as caught:
            run(rows)
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


@pytest.mark.parametrize("row", [0, 1, 255, 256, 700, 1999])
def test_a_strict_document_that_is_none_is_an_error_of_its_row(runtime: Runtime, row: int) -> None:
    docs: list[Any] = ['{"a": 1}'] * 2000
    value = col("doc").json("$.a", "int", strict=True)
    registers = Registers({"a": value, "b": col("doc").json("$.b")}, pa.table({"doc": [*docs, None]}), runtime)
    docs[row] = '{"a": '
    docs[1999] = "["
    assert f"json: the value is malformed (at memory row {row})" in same_error(registers, pa.table({"doc": docs}))
    registers.check(pa.table({"doc": ['{"a": 1}', None, '{"a": "x"}']}))


def test_the_error_is_that_of_the_first_operator_of_the_first_rows_that_have_one(runtime: Runtime) -> None:
    columns = {name: col(name).json("$.a", "int", strict=True) for name in ("x", "y")}
    registers = Registers(columns, pa.table({"x": ["1", None], "y": ["1", None]}), runtime, chunk_rows=16)
    good = ["{}"] * 40
    for bad_x, bad_y, row in ((9, 3, 9), (17, 3, 3), (39, 38, 39)):
        x, y = good.copy(), good.copy()
        x[bad_x] = y[bad_y] = "{"
        assert re.search(rf"memory row {row}\)$", same_error(registers, pa.table({"x": x, "y": y})))


@pytest.mark.parametrize("type_", [pa.int64(), pa.string(), pa.list_(pa.int64()), pa.bool_(), pa.list_(pa.string())])
def test_a_null_where_there_never_was_one_is_an_error_of_its_row(runtime: Runtime, type_: pa.DataType) -> None:
    zero = {"int64": 1, "string": "a", "bool": True}.get(str(type_), [])
    registers = Registers({"x": col("x"), "y": col("y")}, pa.table({"x": pa.array([zero], type_), "y": [1]}), runtime)
    values = [zero] * 40
    values[33] = values[35] = None
    said = same_error(registers, pa.table({"x": pa.array(values, type_), "y": [1] * 40}))
    assert "column 'x' is null, but the plan was built on data where it never is" in said
    assert said.endswith("(at memory row 33)")
    registers.check(pa.table({"x": pa.array([zero] * 5, type_), "y": [1] * 5}))


def test_a_null_inside_a_vector_is_an_error(runtime: Runtime) -> None:
    type_ = pa.list_(pa.float64(), 2)
    registers = Registers({"v": col("v")}, pa.table({"v": pa.array([[1.0, 2.0], None], type_)}), runtime)
    values: list[Any] = [[1.0, 2.0]] * 9
    values[5] = [1.0, None]
    for run in (registers.on_cpu, registers.on_device):
        with pytest.raises(cb.errors.DataError, match="null inside"):
            run(pa.RecordBatch.from_pydict({"v": pa.array(values, type_)}))
    values[5] = None
    registers.check(pa.RecordBatch.from_pydict({"v": pa.array(values, type_)}))


def test_a_dictionary_index_outside_is_an_error(runtime: Runtime) -> None:
    words = pa.array(["a", "b"])
    registers = Registers({"d": col("d")}, pa.table({"d": pa.array(["a", None]).dictionary_encode()}), runtime)
    for wrong in (2, -1, 2**31 - 1):
        indices = pa.array([0, 1, None, wrong, 0], pa.int32())
        batch = pa.RecordBatch.from_pydict({"d": pa.DictionaryArray.from_arrays(indices, words, safe=False)})
        for run in (registers.on_cpu, registers.on_device):
            with pytest.raises(cb.errors.DataError, match=r"column 'd'.*dictionary index outside its dictionary"):
                run(batch)
