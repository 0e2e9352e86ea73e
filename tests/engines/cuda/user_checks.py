"""Operators of users on a device equal what the CPU engine makes of them. The test bodies; the device is a fixture, `runtime`."""

from __future__ import annotations

import math
import struct
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cuda.runtime import Runtime
from tests.engines.cuda import hostile
from tests.engines.cuda.plans import ROOMY, agree, computed, on_device
from tests.engines.cuda.registers import Registers

MASK = 2**64 - 1


def lists(words: pa.Array) -> list[Any]:
    """Strings as bytes, which they are: they need not be UTF-8."""
    inner = words.values if pa.types.is_large_list(words.type) else words
    raw = inner.view(pa.large_binary()).to_pylist()
    if inner is words:
        return raw
    ends = words.offsets.to_pylist()
    return [raw[a:b] for a, b in pairwise(ends)]


def fits(value: int) -> int:
    """As 64 bits wrap around."""
    return struct.unpack("<q", struct.pack("<Q", value & MASK))[0]


# ---- bodies in C++, each beside a slow twin in Python ------------------------------------------------------


@cb.operator(args=["float", "int"], result="float", arrays="numpy", cuda="return x * 3.1 + (double)n;")
def weighed(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x * 3.1 + n


@cb.operator(
    args=["int", "int"], result="int", arrays="numpy", cuda="return (int64_t)((uint64_t)n * 31u + (uint64_t)m);"
)
def mixed(n: np.ndarray, m: np.ndarray) -> np.ndarray:
    return (n.view(np.uint64) * np.uint64(31) + m.view(np.uint64)).view(np.int64)


@cb.operator(args=["bool", "int"], result="bool", cuda="if (p) return n;\nreturn n & 6;")  # neither is 0 or 1
def flagged(p: pa.Array, n: pa.Array) -> pa.Array:
    return pa.array(
        [bool(b) if a else bool(b & 6) for a, b in zip(p.to_pylist(), n.to_pylist(), strict=True)], pa.bool_()
    )


@cb.operator(args=["time"], result="time", cuda="return t / 1000000 * 1000000;")
def second(t: pa.Array) -> list[int]:
    return [abs(v) // 10**6 * (10**6 if v >= 0 else -(10**6)) for v in t.view(pa.int64()).to_pylist()]


BYTES = """
uint64_t h = 1469598103934665603ull;
for (uint32_t k = 0; k < s.n; ++k) {
  h ^= (uint8_t)s.p[k];  // a char has a sign on some machines
  h *= 1099511628211ull;
}
return (int64_t)h;
"""


@cb.operator(args=["str"], result="int", cuda=BYTES)
def hashed(s: pa.Array) -> list[int]:
    found = []
    for word in lists(s):
        h = 1469598103934665603
        for byte in word:
            h = (h ^ byte) * 1099511628211 & MASK
        found.append(fits(h))
    return found


@cb.operator(
    args=["list[str]", "list[float]", "list[time]", "list[bool]"],
    result="float",
    cuda="""
    double sum = 0;
    for (uint32_t k = 0; k < ls.n; ++k) sum += ls.p[k].n;
    for (uint32_t k = 0; k < lx.n; ++k) sum += lx.p[k];
    for (uint32_t k = 0; k < lt.n; ++k) sum += (double)lt.p[k];
    for (uint32_t k = 0; k < lp.n; ++k) sum += lp.p[k] ? 0.5 : 0.25;
    return sum;
    """,
)
def summed(ls: pa.Array, lx: pa.Array, lt: pa.Array, lp: pa.Array) -> list[float]:
    found = []
    times = pa.LargeListArray.from_arrays(lt.offsets, lt.values.view(pa.int64())).to_pylist()
    for words, numbers, moments, flags in zip(lists(ls), lx.to_pylist(), times, lp.to_pylist(), strict=True):
        total = 0.0
        for part in ([len(w) for w in words], numbers, map(float, moments), [0.5 if f else 0.25 for f in flags]):
            for value in part:
                total += value
        found.append(total)
    return found


# ---- functions of one row ----------------------------------------------------------------------------------


@cb.operator(args=["float", "int", "bool"], result="float", scalar=True)
def bent(x: float, n: int, p: bool) -> float:
    if p and x > 0.0:
        return x * 3.1 + n / x
    return x * x - abs(x) * 0.1


@cb.operator(args=["int", "int"], result="bool", scalar=True)
def divides(n: int, m: int) -> bool:
    return m != 0 and n % m == 0


@cb.operator(args=["time", "time"], result="time", scalar=True)
def later(t: int, u: int) -> int:
    return t if t > u else u


@cb.operator(args=["bool", "bool"], result="int", scalar=True)
def both(p: bool, q: bool) -> int:
    return p + q  # a bool where an int is declared


@cb.operator(args=["float"], result="float", scalar=True)
def root(double: float) -> float:  # a name that C++ would not take
    return math.sqrt(double) if double >= 0.0 else math.nan


@cb.operator(args=["int"], result="int", scalar=True, cuda="return (n > 0) - (n < 0);")
def sign(n: int) -> int:
    """Both: numba's for the CPU, the body for the GPU."""
    return 1 if n > 0 else -1 if n < 0 else 0


def shifted(by: int) -> Any:
    """Operators of one name that differ."""

    @cb.operator(args=["int"], result="int", scalar=True)
    def moved(n: int) -> int:
        return n + by

    @cb.operator(args=["int"], result="int", arrays="numpy", cuda=f"return (int64_t)((uint64_t)n - {by}u);")
    def back(n: np.ndarray) -> np.ndarray:
        return n - by

    return moved, back


ONE, TWO = shifted(1), shifted(2)
BODIES: dict[str, Any] = {
    "weighed": weighed("x", "few"),
    "mixed": mixed("n", "m"),
    "flagged": flagged("p", "n"),
    "second": second("t"),
    "hashed": hashed("s"),
    "of_a_dictionary": hashed("d"),
    "summed": summed("ls", "lx", "lt", "lp"),
    "alike": ONE[1]("few") * 10_000 + TWO[1]("few"),
    "chain": mixed(hashed(col("s").lower()), flagged("p", "n")).fill(7) + 1,
    "of_constants": weighed(2.5, "n"),
    "widened": weighed("i32", "p"),
}
SCALARS: dict[str, Any] = {
    "bent": bent("x", "n", "p"),
    "divides": divides("n", "few"),
    "later": later("t", "u"),
    "both": both("p", "q"),
    "root": root("x"),
    "sign": sign("n"),
    "alike": ONE[0]("few") * 100 + TWO[0]("few"),
    "chain": mixed(both("p", divides("n", "m")), "few").fill(7) + 1,
    "of_constants": bent(2.5, "n", True),
    "widened": bent("i32", "q", "p"),
}


@cache
def why_no_scalars() -> str:
    """Why scalar functions cannot be compiled for a GPU here, or empty."""
    try:
        from numba import cuda, types

        cuda.compile(lambda x: x, types.float64(types.float64), cc=(9, 0), output="ltoir")
    except Exception as error:
        return f"numba cannot compile for a GPU here: {type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


@pytest.fixture(scope="session")
def scalars() -> None:
    if why_no_scalars():
        pytest.skip(why_no_scalars())


@pytest.fixture(scope="session", params=["bodies", "scalar functions"])
def columns(request: pytest.FixtureRequest) -> str:
    if request.param != "bodies":
        request.getfixturevalue("scalars")
    return request.param


@cache
def registers(runtime: Runtime, columns: str, nulls: bool) -> Registers:
    return Registers(BODIES if columns == "bodies" else SCALARS, hostile.sample(nulls), runtime)


@given(seed=st.integers(0, 2**32), rows=st.sampled_from([0, 1, 2, 31, 255, 256, 257, 700]), long=st.integers(0, 1))
@settings(max_examples=8, deadline=None)
def test_every_kind_of_argument_and_result_gives_the_cpu_s_bits(
    runtime: Runtime, columns: str, seed: int, rows: int, long: int
) -> None:
    registers(runtime, columns, True).check(hostile.table(seed, rows, long=long))


@given(seed=st.integers(0, 2**32), rows=st.integers(0, 300))
@settings(max_examples=4, deadline=None)
def test_without_nulls_too(runtime: Runtime, columns: str, seed: int, rows: int) -> None:
    registers(runtime, columns, False).check(hostile.table(seed, rows, nulls=False))


@given(seed=st.integers(0, 2**32), at=st.integers(0, 37), rows=st.integers(0, 40))
@settings(max_examples=5, deadline=None)
def test_slices_with_odd_offsets_too(runtime: Runtime, columns: str, seed: int, at: int, rows: int) -> None:
    (batch,) = hostile.table(seed, 80).combine_chunks().to_batches()
    registers(runtime, columns, True).check(batch.slice(at, rows))


def test_a_result_is_null_where_an_argument_is(runtime: Runtime, columns: str) -> None:
    table = hostile.table(3, 300)
    found = registers(runtime, columns, True).check(table)
    reads = {"bent": "x n p", "summed": "ls lx lt lp", "hashed": "s", "later": "t u"}
    for name in reads.keys() & found.keys():
        present = np.logical_and.reduce([table[c].is_valid().to_numpy() for c in reads[name].split()])
        assert [v is not None for v in found[name]] == present.tolist()
    assert None not in found["chain"]


# ---- in plans ----------------------------------------------------------------------------------------------


@cb.operator(args=["float"], result="float", arrays="numpy")
def python(x: np.ndarray) -> np.ndarray:
    return x / 2


def log(rows: int = 900) -> pa.Table:
    rng = np.random.default_rng(4)
    words = pa.array(rng.choice(["red", "", "blue shoes", "straße"], rows))
    return pa.table(
        {"x": rng.normal(size=rows), "n": rng.integers(-9, 9, rows), "word": words, "k": rng.integers(0, 6, rows)}
    )


@pytest.mark.usefixtures("scalars")
def test_nothing_of_them_is_left_to_the_cpu(runtime: Runtime) -> None:
    plan = cb.compile(cb.View(log()), cb.FeatureSet(dense={"w": weighed("x", "n"), "b": bent("x", "n", col("n") > 0)}))
    extractor = on_device(plan, runtime)
    assert not extractor.host
    assert {k.name for layer in extractor.layout.layers for k in layer.code if k.user} == {"weighed", "bent"}
    agree(plan, runtime)


@pytest.mark.usefixtures("scalars")
def test_a_filter_may_call_them_and_features_use_its_result(runtime: Runtime) -> None:
    view = (
        cb.View(log())
        .with_columns(h=hashed("word"), ok=divides("n", "k"))
        .filter(col("ok"))
        .filter(weighed("x", "n") < 9)
    )
    features = cb.FeatureSet(
        label=col("ok"),
        dense={"w": weighed("x", "n"), "r": root(col("x").abs())},
        sparse={"h": col("h").key(), "words": col("word").split(" ").key()},
    )
    agree(cb.compile(view, features), runtime)


@pytest.mark.usefixtures("scalars")
def test_they_stand_before_and_behind_functions_that_only_python_runs(runtime: Runtime) -> None:
    behind = weighed(python(weighed("x", "n")), "n")  # the inner one runs on the CPU too, for the function
    features = cb.FeatureSet(dense={"a": behind, "b": python(python(bent("x", "n", col("n") > 2))), "c": root(behind)})
    for view in (cb.View(log()), cb.View(log()).filter(divides("n", "k"))):
        plan = cb.compile(view, features)
        assert len(computed(plan, "user")) >= 6
        assert on_device(plan, runtime, ROOMY).host
        agree(plan, runtime)


@pytest.mark.usefixtures("scalars")
def test_of_a_joined_view_they_run_once_a_row_of_it(runtime: Runtime) -> None:
    side = cb.View(pa.table({"k": [0, 1, 2, 3], "bid": [1.5, None, 2.5, -1.0]}), key="k").fill(bid=0.25)
    features = cb.FeatureSet(dense={"s": root("bid").fill(9), "both": weighed("bid", "n")})
    agree(cb.compile(cb.View(log()).join(side, on="k"), features), runtime)


def test_many_rows_and_chunks(runtime: Runtime) -> None:
    dense = {
        "w": weighed("x", "n"),
        "s": second(col("n").cast("time", unit="us").fill(0)).cast("int"),
        "m": mixed("n", "k"),
    }
    agree(cb.compile(cb.View(log(5_000)), cb.FeatureSet(dense=dense)), runtime)


@pytest.mark.usefixtures("scalars")
def test_an_infinity_and_a_nan_come_out_as_they_should(runtime: Runtime) -> None:
    table = pa.table({"x": [0.0, -0.0, math.inf, -math.inf, math.nan], "n": [3, 0, 0, 2**62, 1], "p": [True] * 5})
    found = Registers({"w": weighed("x", "n"), "b": bent("x", "n", "p")}, table, runtime).check(table)
    bits = [struct.unpack("<Q", struct.pack("<d", v))[0] for v in (3.0, 0.0, math.inf, -math.inf)]
    assert found["w"][:4] == bits
    assert pa.array(found["b"], pa.uint64()).view(pa.float64()).is_nan().to_pylist() == [False] * 3 + [True] * 2


def test_a_macro_of_one_body_does_not_reach_the_others(runtime: Runtime) -> None:
    @cb.operator(
        args=["float"], result="float", cuda="#define n 3.0\n#define TWICE(v) \\\n  ((v) + (v))\nreturn TWICE(x) * n;"
    )
    def first(x: Any) -> Any:
        return pc.multiply(pc.add(x, x), 3.0)

    @cb.operator(args=["int"], result="int", cuda="#ifdef TWICE\nreturn -1;\n#else\nreturn n + 1;\n#endif")
    def second_body(n: Any) -> Any:
        return pc.add(n, 1)

    @cb.operator(args=["int"], result="int", cuda="#/* as before */define TWICE(v) (v)\n#undef n\nreturn TWICE(n);")
    def third(n: Any) -> Any:
        return n

    features = cb.FeatureSet(dense={"a": first("x"), "b": second_body("n"), "c": third("n"), "d": first("x") + 1.0})
    agree(cb.compile(cb.View(log()), features), runtime)
