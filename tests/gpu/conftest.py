"""The GPU that these tests run on, or the reason why there is none."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from ctrbox.engines.cuda.compiler import kernel_folder
from ctrbox.engines.cuda.runtime import CudaRuntime, cuda_runtime, why_not
from tests.engines.cuda import expressions, hostile
from tests.engines.cuda.registers import Registers
from tests.engines.cuda.user_runtime import NvrtcRuntime


@pytest.fixture(scope="session")
def runtime() -> CudaRuntime:
    missing = why_not()
    if missing:
        pytest.skip(missing)
    made = cuda_runtime()
    if "PYTEST_XDIST_WORKER" not in os.environ:  # several workers compile at the same time anyway
        compiled_ahead(made.arch)
    return made


def compiled_ahead(arch: str) -> None:
    """The largest sources, into the cache of kernels, on all cores: one after the other they would take minutes."""

    def compile(what: tuple[str, bool]) -> None:
        family, nulls = what
        device = NvrtcRuntime(kernel_folder(), arch)
        Registers(expressions.FAMILIES[family](), hostile.sample(nulls), device, fitted=expressions.fitted)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile, product(expressions.FAMILIES, (True, False))))
