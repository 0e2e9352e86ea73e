"""Which GPU a rank uses, how ranks exchange tensors, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ctrbox.cli.ranks import command_again, joined, take_gpu
from ctrbox.cli.terminal import Mistake
from ctrbox.errors import DeviceError, PlanError
from ctrbox.ranks.devices import check_gpus, chosen_exchange, gpu_of_rank, place_of
from ctrbox.ranks.ranks import Ranks
from ctrbox.ranks.torchrun_environment import World


def test_ranks_of_a_machine_take_its_gpus_in_turn() -> None:
    assert [gpu_of_rank(rank, None, 8) for rank in range(8)] == list(range(8))
    assert [gpu_of_rank(rank, None, 2) for rank in range(4)] == [0, 1, 0, 1]
    assert [gpu_of_rank(rank, 1, 8) for rank in range(3)] == [0, 0, 0]
    assert gpu_of_rank(3, None, 0) is None


def test_a_rank_uses_its_gpu_and_a_machine_without_gpus_has_none_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr("ctrbox.engines.cuda.runtime.use_gpu", used.append)
    for count in (0, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        take_gpu(World(5, 8, 4, "here", 1, True, 0, True, local_rank=3))
    assert used == [1]


def test_gpus_that_do_not_exist_are_refused_in_one_sentence() -> None:
    check_gpus(2, 2)
    with pytest.raises(
        DeviceError, match=r"^--gpus 8 needs 8 GPUs, but this machine has 1 GPU \(cuda:0\); use --gpus 1"
    ):
        check_gpus(8, 1)
    with pytest.raises(DeviceError, match=r"has 2 GPUs \(cuda:0 to cuda:1\)"):
        gpu_of_rank(0, 3, 2)
    with pytest.raises(
        DeviceError, match=r"^--gpus 1 needs 1 GPU, but this machine shows no GPU .*remove --gpus to train"
    ):
        check_gpus(1, 0)


def test_nccl_is_used_where_every_rank_has_a_gpu_of_its_own() -> None:
    apart, shared = ["cuda:0 of a", "cuda:1 of a"], ["cuda:0 of a", "cuda:1 of a", "cuda:0 of a"]
    assert chosen_exchange("auto", apart, nccl=True) == chosen_exchange("nccl", apart, nccl=True) == "nccl"
    assert chosen_exchange("auto", apart, nccl=False) == "gloo"
    assert chosen_exchange("auto", shared, nccl=True) == chosen_exchange("gloo", apart, nccl=True) == "gloo"
    assert chosen_exchange("auto", ["", ""], nccl=True) == "gloo"
    with pytest.raises(
        DeviceError,
        match=r"^ranks 0 and 2 use the same GPU \(cuda:0 of a\), which NCCL does not support; start one rank per GPU",
    ):
        chosen_exchange("nccl", shared, nccl=True)
    with pytest.raises(PlanError, match=r"^--exchange nccl moves tensors between GPUs, but this training runs on CPUs"):
        chosen_exchange("nccl", ["", ""], nccl=True)
    with pytest.raises(DeviceError, match=r"^--exchange nccl needs a torch that was built with NCCL"):
        chosen_exchange("nccl", apart, nccl=False)
    assert place_of(torch.device("cpu")) == ""


def test_the_command_line_refuses_gpus_without_work_and_unknown_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(
        Mistake,
        match=r"^--ranks 2 would use only 2 of the 4 GPUs of --gpus, because each process trains on one GPU; "
        r"use --gpus 2, or remove --ranks",
    ):
        joined(2, 60.0, None, gpus=4)
    with pytest.raises(DeviceError, match=r"^--gpus 5 needs 5 GPUs"):
        joined(None, 60.0, None, gpus=5)
    with pytest.raises(Mistake, match=r"^--exchange must be one of auto, nccl, gloo, got 'ncl'; nearest: 'nccl'"):
        joined(None, 60.0, None, exchange="ncl")
    with pytest.raises(Mistake, match=r"--cluster trains on Ray and cannot be used with --gpus"):
        joined(None, 60.0, "local", gpus=1)
    assert joined(None, 60.0, None, gpus=1) is None  # one process


def test_the_command_that_continues_names_the_options_of_ranks() -> None:
    launched = World(0, 4, 4, "here", 1, True, 0, True, 0, 2)
    assert command_again(Ranks(launched), ["ctrbox", "train", "job.py"])[3:] == ["--gpus", "2", "--ranks", "4"]
    chosen = Ranks(replace(launched, gpus=None), 90.5, exchange="gloo")
    options = ["--exchange", "gloo", "--rank-timeout", "90.5", "--ranks", "4"]
    assert command_again(chosen, ["ctrbox", "train", "job.py"])[3:] == options
    by_torchrun = World(0, 4, 4, "here", 1, True, 0, False, 0, 4)
    assert command_again(Ranks(by_torchrun), ["ctrbox", "train", "job.py"]) == [
        *("torchrun", "--nproc-per-node", "4", "-m", "ctrbox", "train", "job.py", "--gpus", "4")
    ]
