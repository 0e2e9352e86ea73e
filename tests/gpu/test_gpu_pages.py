"""Parquet pages that a real GPU decodes have the bits that the CPU's reader gives; damaged ones are refused by both."""

from __future__ import annotations

import pytest

from ctrbox.engines.cuda.parquet_pages import PageDecoder
from ctrbox.engines.cuda.runtime import CudaRuntime
from tests.engines.cuda.page_checks import *  # noqa: F403  # the test bodies

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def decoder(runtime: CudaRuntime) -> PageDecoder:
    return PageDecoder(runtime, 1 << 30)
