"""How `ctrbox train` becomes several processes, in this process: what is refused, what is started, and how a rank ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ctrbox import _native
from ctrbox.cli import ranks as command
from ctrbox.cli import terminal
from ctrbox.cli.job_file import Job
from ctrbox.cli.terminal import Mistake
from ctrbox.errors import DeviceError, TrainError
from ctrbox.ranks.group import RankHangs, RankLost
from ctrbox.ranks.ranks import Followed
from ctrbox.ranks.start_and_watch_ranks import LOST
from ctrbox.ranks.torchrun_environment import World

CLUSTER = "--cluster trains on Ray and cannot be used with --ranks or torchrun; remove one of the two"


class Ended(BaseException):
    """Where the process would end."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine of 3 cores and 2 GPUs on which nobody started this process; notes what is launched."""
    found = SimpleNamespace(world=None, cores=3, launched=[], beside=[], gpu=[])

    def launch(*given: Any) -> int:
        found.launched.append(given)
        return 7

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(World, "here", staticmethod(lambda: found.world))
    monkeypatch.setattr(_native, "usable_cores", lambda: found.cores)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("ctrbox.ranks.start_and_watch_ranks.launch", launch)
    monkeypatch.setattr(command, "end_quietly", end)
    monkeypatch.setattr("ctrbox.embed.ssd.folder.keep_beside", found.beside.append)
    monkeypatch.setattr("ctrbox.engines.cuda.runtime.use_gpu", found.gpu.append)
    monkeypatch.setattr(sys, "argv", ["ctrbox", "train", "job.py"])
    return found


def rank(number: int = 1, **more: Any) -> World:
    return World(number, 4, 2, "host", 29500, True, 0, **{"launched": False, "local_rank": number % 2, **more})


def test_one_process_trains_alone(machine: SimpleNamespace) -> None:
    for ranks in (None, 1):
        assert command.joined(ranks, 600.0, None) is None
        assert command.joined(ranks, 600.0, "local") is None
    assert command.joined(None, 600.0, None, gpus=1) is None
    assert command.joined(1, 600.0, None, gpus=1) is None
    assert not machine.launched


@pytest.mark.parametrize(
    ("ranks", "gpus", "started"), [(2, None, 2), (12, None, 12), (None, 2, 2), (3, 2, 3), (2, 2, 2), (2, 1, 2)]
)
def test_several_processes_are_started_with_the_same_words(
    machine: SimpleNamespace, ranks: int | None, gpus: int | None, started: int
) -> None:
    with pytest.raises(Ended) as ended:
        command.joined(ranks, 600.0, None, gpus)
    assert ended.value.args == (7,)
    words = [sys.executable, "-m", "ctrbox", "train", "job.py"]
    assert machine.launched == [(started, words, terminal.tell, gpus)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((2, 600.0, "local"), CLUSTER),
        (
            (None, 600.0, "local", 1),
            "--cluster trains on Ray and cannot be used with --gpus; remove one of the two",
        ),
        (
            (None, 600.0, None, None, "ncl"),
            "--exchange must be one of auto, nccl, gloo, got 'ncl'; nearest: 'nccl'",
        ),
        (
            (1, 600.0, None, 2),
            "--ranks 1 would use only 1 of the 2 GPUs of --gpus, because each process trains on one GPU; use --gpus 1, or "
            "remove --ranks",
        ),
        (
            (13, 600.0, None),
            "--ranks 13 would start 13 processes, but this process may use 3 cores; use at most 12",
        ),
    ],
)
def test_what_ranks_cannot_be_is_told(machine: SimpleNamespace, given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(Mistake) as told:
        command.joined(*given)
    assert str(told.value) == message
    assert not machine.launched


def test_a_machine_of_one_core_may_start_eight(machine: SimpleNamespace) -> None:
    machine.cores = 1
    with pytest.raises(Mistake, match=r"but this process may use 1 core; use at most 8$"):
        command.joined(9, 600.0, None)
    with pytest.raises(Ended):
        command.joined(8, 600.0, None)
    with pytest.raises(DeviceError, match=r"^--gpus 3 needs 3 GPUs, but this machine has 2 GPUs"):
        command.joined(None, 600.0, None, gpus=3)


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("gpus", [None, 1])
def test_a_process_that_torchrun_started_takes_its_place(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, number: int, gpus: int | None
) -> None:
    machine.world = rank(number)
    with pytest.raises(Mistake) as told:
        command.joined(None, 600.0, "auto")
    assert str(told.value) == CLUSTER
    with pytest.raises(
        Mistake,
        match=r"^--ranks 3 cannot be used here, because torchrun has already started 4 processes \(WORLD_SIZE=4\)",
    ):
        command.joined(3, 600.0, None)
    found = command.joined(4, 30.0, None, gpus, "gloo")
    assert found is not None
    assert (found.world.rank, found.world.gpus, found.timeout, found.exchange) == (number, gpus, 30.0, "gloo")
    assert machine.beside == ([] if number == 0 else [f"of-rank-{number}"])  # rank 0 has the folders of the job
    assert machine.gpu == [0 if gpus == 1 else number % 2]
    killed: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda *given: killed.append(given))
    assert found.orphaned is not None
    found.orphaned()
    assert killed == [(os.getpid(), signal.SIGTERM)]


def test_what_a_job_wants_and_ranks_cannot_do_is_refused() -> None:
    model: Any = None
    for settings, asked in (({}, {}), ({"look_ahead": 4}, {"look_ahead": 0}), ({"epochs": 2}, {})):
        command.check_job(Job(Path("job.py"), None, model, settings=settings), asked)
    for settings, asked in (({"look_ahead": 4}, {}), ({"look_ahead": 0}, {"look_ahead": 4})):
        with pytest.raises(
            Mistake, match=r"^look-ahead cannot be used when several processes train together \(--ranks\)"
        ):
            command.check_job(Job(Path("job.py"), None, model, settings=settings), asked)
    with pytest.raises(Mistake, match=r"^`callbacks` in job.py cannot be used when several processes train together"):
        command.check_job(Job(Path("job.py"), None, model, callbacks=(print,)), {})


@pytest.mark.parametrize(("cores", "processes", "threads"), [(16, 1, 16), (16, 2, 8), (7, 2, 3), (2, 4, 1)])
def test_ranks_share_the_cores_of_their_machine(
    machine: SimpleNamespace, cores: int, processes: int, threads: int
) -> None:
    machine.cores = cores
    assert command.threads_of(World(0, 8, processes, "host", 1, True, 0, False)) == threads


@pytest.mark.parametrize(
    ("world", "more", "words"),
    [
        ({"launched": True}, {}, ["ctrbox", "train", "--ranks", "4"]),
        ({"launched": True, "gpus": 2}, {}, ["ctrbox", "train", "--gpus", "2", "--ranks", "4"]),
        ({}, {}, ["torchrun", "--nproc-per-node", "2", "-m", "ctrbox", "train"]),
        (
            {"gpus": 2},
            {"exchange": "gloo", "timeout": 30.5},
            [
                *("torchrun", "--nproc-per-node", "2", "-m", "ctrbox", "train", "--gpus", "2", "--exchange", "gloo"),
                *("--rank-timeout", "30.5"),
            ],
        ),
    ],
)
def test_the_command_that_starts_the_ranks_again(world: dict[str, Any], more: dict[str, Any], words: list[str]) -> None:
    ranks: Any = SimpleNamespace(**{"world": rank(**world), "exchange": "auto", "timeout": 600.0, **more})
    assert command.command_again(ranks, ["ctrbox", "train"]) == words


LOST_ONE, HANGS = RankLost("rank 2 failed: why"), RankHangs("rank 2 did not answer")


def worded(error: Exception) -> Mistake:
    """The same error in words of the command line."""
    try:
        raise Mistake("in words") from error
    except Mistake as told:
        return told


@pytest.mark.parametrize(
    ("number", "launched", "trains", "error", "speaks", "code"),
    [
        (0, True, True, TrainError("mine"), True, None),  # rank 0 says it itself
        (1, True, True, TrainError("mine"), False, None),  # the launcher says it
        (1, False, True, TrainError("mine"), True, None),  # torchrun does not
        (1, False, True, worded(TrainError("mine")), True, None),
        (0, True, False, TrainError("mine"), False, None),  # before it began, all ranks raise the same
        (0, True, True, LOST_ONE, False, LOST),
        (1, True, True, worded(LOST_ONE), False, LOST),
        (1, False, True, LOST_ONE, False, None),
        (1, True, True, HANGS, False, None),  # nobody else says that one hangs
        (1, True, True, Followed(), False, 0),
    ],
)
def test_of_a_rank_that_ends_one_process_says_why(
    machine: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    launched: bool,
    trains: bool,
    error: Exception,
    speaks: bool,
    code: int | None,
) -> None:
    def leave(given: Exception) -> None:
        left.append(given)

    def end(code: int) -> None:
        raise Ended(code)

    left: list[Exception] = []
    monkeypatch.setattr(command, "speaker", [])
    monkeypatch.setattr(os, "_exit", end)
    world = rank(number, launched=launched)
    ranks: Any = SimpleNamespace(world=world, leads=world.leads, trains=trains, leave=leave)
    try:
        command.end_of_rank(ranks, error)
        ended = None
    except Ended as met:
        (ended,) = met.args
    assert ended == code
    assert command.speaker == ([f"rank {number}: "] if speaks else [])
    assert left == ([] if isinstance(error, Followed) else [error])
