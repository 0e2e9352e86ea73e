"""How many threads torch has while a model learns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ctrbox.train.cores import SMALL, shared_cores, threads_for, usable_cores

CPU = torch.device("cpu")


def model(weights: int) -> nn.Module:
    return nn.Linear(weights, 1, bias=False)


@pytest.mark.parametrize(
    ("weights", "device", "given", "cores", "expected"),
    [
        (SMALL, "cpu", 2, 2, 1),
        (SMALL, "cpu", 16, 16, 15),
        (SMALL, "cpu", 32, 16, 15),
        (SMALL, "cpu", 4, 16, 4),  # somebody's choice
        (SMALL, "cpu", 1, 1, 1),
        (SMALL, "cpu", 2, 1, 2),
        (SMALL + 1, "cpu", 2, 2, 2),
        (SMALL, "cuda", 2, 2, 2),
    ],
)
def test_a_small_model_on_the_cpu_leaves_one_core_to_the_other_stages(
    weights: int, device: str, given: int, cores: int, expected: int
) -> None:
    assert threads_for(model(weights), torch.device(device), given, cores) == expected


def failing() -> None:
    with shared_cores(model(3), CPU):
        assert torch.get_num_threads() == max(1, usable_cores() - 1)
        raise ZeroDivisionError


def test_the_threads_of_torch_come_back_also_after_an_error() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(usable_cores())
        with pytest.raises(ZeroDivisionError):
            failing()
        assert torch.get_num_threads() == usable_cores()
    finally:
        torch.set_num_threads(before)
