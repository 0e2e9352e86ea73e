"""The library that records what a process asks of its disk, compiled once for each module whose tests cut the power."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.embed.ssd.power_cut import NoShim, compile_shim


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compile_shim(tmp_path_factory.mktemp("shim"))
    except NoShim as why:
        pytest.skip(str(why))
