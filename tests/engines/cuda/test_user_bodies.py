"""Operators of users with a body for the GPU: their kernels on the CPU, and compiled and linked for a GPU that is not there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cuda.compiler import LINKING, nvrtc
from ctrbox.engines.cuda.user_row_function import device_code
from ctrbox.errors import DeviceError
from tests.engines.cuda.plans import on_device
from tests.engines.cuda.user_checks import *  # noqa: F403  # the test bodies; the GPU's tests have them too
from tests.engines.cuda.user_checks import ONE, TWO, bent, divides, flagged, hashed, log, weighed
from tests.engines.cuda.user_runtime import NvrtcRuntime, ScalarRuntime

pytest.importorskip("cuda.core", reason="kernels are compiled through cuda-core, which is not installed")


@pytest.fixture(scope="session")
def runtime() -> ScalarRuntime:
    return ScalarRuntime(256, order=-1, level="-O0")


# ---- compiled for a GPU ------------------------------------------------------------------------------------


def features(**dense: Any) -> cb.FeatureSet:
    return cb.FeatureSet(dense=dense)


def body(text: str, name: str = "ratio") -> Any:
    def function(x: Any, n: Any) -> Any:
        return x

    function.__qualname__ = name
    return cb.operator(args=["float", "int"], result="float", cuda=text)(function)


@pytest.mark.usefixtures("scalars")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_bodies_and_scalar_functions_become_machine_code(tmp_path: Path, arch: str) -> None:
    plan = cb.compile(
        cb.View(log()).filter(divides("n", "k")),
        features(
            w=weighed("x", "n"), b=bent("x", "n", flagged(col("n") > 0, "n")), h=hashed("word"), d=divides("n", "k")
        ),
    )
    runtime = NvrtcRuntime(tmp_path, arch)
    extractor = on_device(plan, runtime)
    assert set(runtime.made[-1].usage()) >= {*extractor.source.launches, "copy"}
    # What was linked is kept as everything else is, and found again.
    kept = sorted(tmp_path.glob("*.cubin"))
    on_device(plan, NvrtcRuntime(tmp_path, arch))
    assert sorted(tmp_path.glob("*.cubin")) == kept


@pytest.mark.usefixtures("scalars")
def test_linked_functions_are_put_into_their_kernels_and_nothing_is_contracted(tmp_path: Path) -> None:
    from cuda.bindings import nvjitlink

    source = """extern "C" __device__ double f_scalar(double, long long, unsigned char);
    extern "C" __global__ void k(double* x, long long* n, unsigned char* p) { x[0] = f_scalar(x[0], n[0], p[0]); }"""
    core = nvrtc()
    options = core.ProgramOptions(arch="sm_90", relocatable_device_code=True, link_time_optimization=True)
    parts = [bytes(core.Program(source, "c++", options).compile("ltoir").code), device_code(bent, "f_scalar", "sm_90")]

    def ptx(*more: str) -> str:
        given = ["-arch=sm_90", "-ptx", *more]
        handle = nvjitlink.create(len(given), given)
        try:
            for part in parts:
                nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, part, len(part), "part")
            nvjitlink.complete(handle)
            made = bytearray(nvjitlink.get_linked_ptx_size(handle))
            nvjitlink.get_linked_ptx(handle, made)
        finally:
            nvjitlink.destroy(handle)
        return made.decode()

    assert "fma.rn.f64" in ptx("-lto")  # what would be without our options
    ours = ptx(*LINKING)
    assert "mul.rn.f64" in ours
    assert not re.search(r"fma|call|\.ftz|approx", ours)


@pytest.mark.usefixtures("scalars")
def test_the_same_name_twice_is_two_functions(tmp_path: Path) -> None:
    plan = cb.compile(cb.View(log()), features(a=ONE[0]("n") + TWO[0]("n"), b=ONE[1]("n") + TWO[1]("n"), c=ONE[0]("k")))
    assert len(on_device(plan, NvrtcRuntime(tmp_path)).layout.users) == 4


# ---- bodies that do not compile ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "double y = x;\n  return y + foo;",
            r'operator ratio\(2\): error: identifier "foo" is undefined.*line 2: return y',
        ),
        ("\n\nreturn word.n;", r"operator ratio\(3\): error.*line 3: return word\.n;$"),
        ("if (x > 0) return x;", r"missing return statement"),
        ("if (x > 0) { return x;", r'expected a "}"'),
        ("return x; }", r"operator ratio\(2\): error: expected a declaration"),
        ('return x + "a";', r"operator ratio\(1\): error"),
    ],
)
def test_the_operator_its_message_and_its_line_are_shown(tmp_path: Path, text: str, said: str) -> None:
    plan = cb.compile(cb.View(log()), features(a=weighed("x", "n"), b=body(text)("x", "n"), c=hashed("word")))
    with pytest.raises(DeviceError, match=r"the cuda body of operator 'ratio' does not compile:") as caught:
        on_device(plan, NvrtcRuntime(tmp_path))
    assert re.search(said, str(caught.value), re.S), caught.value
    assert "weighed" not in str(caught.value)


def test_of_two_broken_bodies_each_is_told_by_its_own_name(tmp_path: Path) -> None:
    for first, second, blamed in (("{ return x;", "return x;", "one"), ("return x;", "return q;", 'two "of" them\\')):
        plan = cb.compile(
            cb.View(log()), features(a=body(first, "one")("x", "n"), b=body(second, 'two "of" them\\')("x", "n"))
        )
        with pytest.raises(DeviceError, match=re.escape(f"operator {blamed!r} does not compile")):
            on_device(plan, NvrtcRuntime(tmp_path))


@pytest.mark.usefixtures("scalars")
def test_a_function_that_numba_cannot_compile_for_a_gpu_is_named() -> None:
    @cb.operator(args=["int"], result="int", scalar=True)
    def listed(n: int) -> int:
        return len([k for k in range(n)])  # noqa: C416  # needs memory, which a row of a GPU has not

    with pytest.raises(DeviceError, match=r"operator '.*listed' cannot be compiled"):
        device_code(listed, "f", "sm_90")


def test_without_numba_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    @cb.operator(args=["int"], result="int", scalar=True)
    def twice(n: int) -> int:
        return 2 * n

    monkeypatch.setitem(sys.modules, "numba", None)
    plan = cb.compile(cb.View(log()), features(a=twice("n")))
    planned = plan.explain(device=cb.types.Device("cuda", memory="8GB"), json=True)
    assert [n["device"] for n in planned["frames"][0]["layers"][1]] == ["cuda"]  # it is planned without numba
    for run in (lambda: next(plan.batches(9)), lambda: device_code(twice, "f", "sm_90")):
        with pytest.raises(
            cb.errors.PlanError, match=r"compiled by numba, which cannot be imported .*: pip install 'ctrbox\[numba\]'"
        ):
            run()


def test_the_source_is_readable_and_calls_no_body_for_a_null_row(runtime: ScalarRuntime) -> None:
    table = pa.table({"x": [1.0, None], "n": [1, 2]})
    plan = cb.compile(cb.View(table), features(w=weighed("x", "n").fill(0.0), v=weighed(2.0, "n")))
    text = on_device(plan, runtime).source.text()
    assert '#line 1 "operator weighed"\nreturn x * 3.1 + (double)n;\n}' in text
    assert (
        text.count("static __device__ double user_0_weighed(double x, int64_t n)") == 2
    )  # declared, defined: one body
    assert len(re.findall(r"if \(ok\) x = user_0_weighed\(", text)) == 1
    assert len(re.findall(r"= user_0_weighed\(", text)) == 2


def test_nvrtc_sees_no_macro_of_another_body(tmp_path: Path) -> None:
    one = body("#define n 3.0\n#define DOUBLED(v) ((v) + (v))\nreturn DOUBLED(x) * n;", "one")
    two = body("#ifdef DOUBLED\n#error leaked\n#endif\nint64_t m = n; return x + m;", "two")
    plan = cb.compile(cb.View(log()), features(a=one("x", "n"), b=two("x", "n")))
    on_device(plan, NvrtcRuntime(tmp_path))  # a macro that leaked would not compile
