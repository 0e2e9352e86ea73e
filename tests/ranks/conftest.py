"""What trainings of ranks share: one thread of torch, whose sums depend on how many there are, and a small log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ctrbox as cb
from tests.train.worlds import on_disk


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> cb.Plan:
    return on_disk(tmp_path_factory.mktemp("log"), 4000).using(threads=1)
