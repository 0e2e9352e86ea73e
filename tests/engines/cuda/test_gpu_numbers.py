"""The GPU of a process, chosen by its number. The machine of these tests needs none: torch's calls are replaced."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cuda import runtime
from ctrbox.errors import DeviceError, PlanError


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine with 4 GPUs of which none was used yet; the numbers that torch is told."""
    told: list[int] = []
    monkeypatch.setattr(runtime, "_gpu", 0)
    monkeypatch.setattr(runtime, "_chosen", False)
    monkeypatch.setattr(runtime, "_made", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    return told


def test_a_process_uses_the_gpu_that_is_named(chosen: list[int]) -> None:
    assert runtime.gpu_of_process() == torch.device("cuda", 0)
    for device in ("cuda", "cpu", "auto", "cuda:32GB"):
        runtime.use_gpu_of(device)
    runtime.use_gpu_of("cuda:3")
    runtime.use_gpu_of("cuda:3")
    assert runtime.gpu_of_process() == torch.device("cuda", 3)
    assert chosen == [3]


def test_a_second_gpu_and_one_that_is_not_there_are_refused(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        DeviceError, match=r"^there is no cuda:4; this machine has 4 GPUs, cuda:0 to cuda:3; choose one of these"
    ):
        runtime.use_gpu(4)
    runtime.use_gpu(0)
    with pytest.raises(
        DeviceError, match=r"^this process already uses cuda:0 and cannot use cuda:1 as well; name one GPU"
    ):
        runtime.use_gpu(1)
    monkeypatch.setattr(runtime, "_chosen", False)
    for count, words in ((0, "shows no NVIDIA GPU; use the CPU"), (1, "has one GPU, cuda:0; choose one of these")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        with pytest.raises(DeviceError, match=rf"^there is no cuda:1; this machine {words}"):
            runtime.use_gpu(1)
    assert chosen == []


def test_plans_and_trainers_take_a_gpu_by_number() -> None:
    log = cb.View(pa.table({"a": [1], "clicked": [1]}))
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse={"a": col("a").key()}), device="cuda:3")
    assert plan.device == "cuda:3"
    model = cb.models.LR(plan.schema)
    assert "device='cuda:3'" in repr(cb.Trainer(model, device="cuda:3"))
    with pytest.raises(PlanError, match="device must be one of auto, cpu, cuda, got 'cuda:x'"):
        cb.Trainer(model, device="cuda:x")
