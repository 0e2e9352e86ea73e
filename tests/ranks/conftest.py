"""What trainings of ranks share: a small log."""

from __future__ import annotations

import pytest

import ctrbox as cb
from tests.train.worlds import on_disk


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> cb.Plan:
    return on_disk(tmp_path_factory.mktemp("log"), 4000).using(threads=1)
