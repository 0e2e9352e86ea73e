"""Operators of users on a GPU: C++ bodies as NVRTC compiles them, scalar functions as numba compiles and nvJitLink links them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox.engines.cuda.runtime import CudaRuntime, cuda_runtime, why_not
from ctrbox.errors import DeviceError
from tests.engines.cuda.plans import on_device
from tests.engines.cuda.user_checks import *  # noqa: F403  # the test bodies, as they run on the CPU too
from tests.engines.cuda.user_checks import bent, log, weighed

MISSING = why_not()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(MISSING), reason=MISSING or "a GPU is there")]


@pytest.fixture(scope="session")
def runtime() -> CudaRuntime:
    return cuda_runtime()


@pytest.mark.usefixtures("scalars")
def test_a_million_rows_are_the_cpu_s_bit_for_bit(runtime: CudaRuntime) -> None:
    rng = np.random.default_rng(8)
    n = 1_000_000
    table = pa.table(
        {"x": rng.normal(scale=1e3, size=n), "n": rng.integers(-(2**40), 2**40, n), "ok": rng.random(n) < 0.5}
    )
    features = cb.FeatureSet(dense={"b": bent("x", "n", "ok"), "w": weighed("x", "n")})
    made = [
        np.concatenate(
            [np.asarray(b.cpu().dense) for b in cb.compile(cb.View(table), features, device=device).batches(65_536)]
        )
        for device in ("cuda", "cpu")
    ]
    assert made[0].tobytes() == made[1].tobytes()


def test_a_body_that_does_not_compile_is_told_with_its_line(runtime: CudaRuntime) -> None:
    @cb.operator(args=["float"], result="float", cuda="double y = x;\nreturn y + foo;")
    def ratio(x: pa.Array) -> pa.Array:
        return x

    plan = cb.compile(cb.View(log()), cb.FeatureSet(dense={"r": ratio("x"), "w": weighed("x", "n")}))
    with pytest.raises(
        DeviceError, match=r"(?s)operator '.*ratio' does not compile:.*\(2\): error.*line 2: return y \+ foo;"
    ):
        on_device(plan, runtime)
