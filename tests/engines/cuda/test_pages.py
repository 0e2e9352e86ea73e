"""The GPU's page decoder, run on the CPU, gives what the CPU's reader gives, and refuses what that refuses."""

from __future__ import annotations

from typing import Any

import pytest

from ctrbox.engines.cuda.pages import PageDecoder
from tests.cuda_host import HostRuntime
from tests.engines.cuda.page_checks import *  # noqa: F403  # the test bodies


@pytest.fixture(scope="module", params=[1, 256], ids=["one thread a warp", "warps"])
def decoder(request: Any) -> PageDecoder:
    return PageDecoder(HostRuntime(threads=request.param), 1 << 28)
