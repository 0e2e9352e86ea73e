"""The devices of these tests: the CUDA engine's own kernels on the CPU, a thread a block and 256 of them."""

from __future__ import annotations

from functools import cache

import pytest

from tests.cuda_host import HostRuntime

# Whole plans that run with blocks of 256 threads among the fast tests, by a part of their names.
BLOCKS_TOO = (
    "test_any_plan",
    "1030-300",
    "memory_grow",
    "block-document",
    "several_filters",
    "False-gaps",
    "7-left",
    "more_tiles",
    "lz4-True",
)


@cache
def host_runtime(threads: int) -> HostRuntime:
    return HostRuntime(threads, order=-1, level="-O0")


@pytest.fixture(scope="session", params=[1, 256], ids=["a thread a block", "256 threads a block"])
def runtime(request: pytest.FixtureRequest) -> HostRuntime:
    return host_runtime(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        blocks = (
            item.path.name in ("test_plans.py", "test_operators.py", "test_columns_only_gpu_reads.py")
            and "256 threads" in item.name
        )
        if blocks and not any(part in item.name for part in BLOCKS_TOO):
            item.add_marker(pytest.mark.exhaustive)
