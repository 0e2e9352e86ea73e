"""Lets ``ctrbox train`` run in several processes: starts them for --ranks, or joins those that torchrun started.

Every process runs the same command and the same job file. Only rank 0 prints messages; the other ranks are silent
unless they fail.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import counted
from ctrbox.cli.job_file import Job
from ctrbox.cli.terminal import Mistake, end_quietly, speaker, tell
from ctrbox.ranks.torchrun_environment import EXCHANGES, World

RANK_TIMEOUT = 600.0  # default of --rank-timeout in seconds

if TYPE_CHECKING:
    from ctrbox.ranks.ranks import Ranks


def joined(
    ranks: int | None, timeout: float, cluster: str | None, gpus: int | None = None, exchange: str = "auto"
) -> Ranks | None:
    """Return the place of this process among the ranks, or None where it trains alone.

    With --ranks or several --gpus, in a process that no launcher started, start the ranks, wait for them, and exit with
    their exit code.
    """
    world = World.here()
    if cluster is not None and (world is not None or (ranks or 1) > 1):
        raise Mistake("--cluster trains on Ray and cannot be used with --ranks or torchrun; remove one of the two")
    if cluster is not None and gpus is not None:
        raise Mistake("--cluster trains on Ray and cannot be used with --gpus; remove one of the two")
    if exchange not in EXCHANGES:
        raise Mistake(
            f"--exchange must be one of {', '.join(EXCHANGES)}, got {exchange!r}{nearest(exchange, EXCHANGES)}"
        )
    if gpus is not None and world is None:
        check_here(gpus)
        ranks = gpus if ranks is None else ranks
        if ranks < gpus:
            raise Mistake(
                f"--ranks {ranks} would use only {ranks} of the {gpus} GPUs of --gpus, because each process trains on "
                f"one GPU; use --gpus {ranks}, or remove --ranks"
            )
    if world is None:
        if (ranks or 1) > 1:
            from ctrbox import _native
            from ctrbox.ranks.start_and_watch_ranks import launch

            cores = _native.usable_cores()
            if (ranks or 1) > (most := max(8, 4 * cores)):
                raise Mistake(
                    f"--ranks {ranks} would start {ranks} processes, but this process may use "
                    f"{counted(cores, 'core')}; use at most {most}"
                )
            end_quietly(launch(ranks or 1, [sys.executable, "-m", "ctrbox", *sys.argv[1:]], tell, gpus))
        return None
    if ranks is not None and ranks != world.size:
        raise Mistake(
            f"--ranks {ranks} cannot be used here, because torchrun has already started {world.size} processes "
            f"(WORLD_SIZE={world.size}); remove --ranks"
        )
    if gpus is not None:
        world = replace(world, gpus=gpus)
    from ctrbox.embed.ssd.folder import keep_beside
    from ctrbox.ranks.ranks import Ranks

    if not world.leads:
        keep_beside(f"of-rank-{world.rank}")  # rank 0 has the folders that the job names
    take_gpu(world)
    return Ranks(world, timeout, orphaned=lambda: os.kill(os.getpid(), signal.SIGTERM), exchange=exchange)


def check_here(gpus: int) -> None:
    """Refuse more GPUs than this machine has, before a process is started or anything is written."""
    import torch

    from ctrbox.ranks.devices import check_gpus

    check_gpus(gpus, torch.cuda.device_count())


def take_gpu(world: World) -> None:
    """Choose the GPU of this rank, if the machine has any."""
    import torch

    from ctrbox.engines.cuda.runtime import use_gpu
    from ctrbox.ranks.devices import gpu_of_rank

    index = gpu_of_rank(world.local_rank, world.gpus, torch.cuda.device_count())
    if index is not None:
        use_gpu(index)


def check_job(job: Job, asked: Mapping[str, Any]) -> None:
    """Refuse settings of a job that ranks do not support, in the words of the command line."""
    if job.callbacks:
        raise Mistake(
            f"`callbacks` in {job.path} cannot be used when several processes train together (--ranks); remove them, and read "
            "the metrics from metrics.jsonl in the run folder"
        )
    if {**job.settings, **asked}.get("look_ahead"):
        raise Mistake(
            "look-ahead cannot be used when several processes train together (--ranks); set --look-ahead 0, "
            "or train in one process"
        )


def threads_of(world: World) -> int:
    """Return the default number of threads of a rank: its share of the cores of this machine."""
    from ctrbox import _native

    return max(1, _native.usable_cores() // world.local_size)


def command_again(ranks: Ranks, command: list[str]) -> list[str]:
    """Return the command that starts these ranks again, from that of one process: ctrbox train JOB.PY …"""
    world = ranks.world
    options = [] if world.gpus is None else ["--gpus", str(world.gpus)]
    if ranks.exchange != "auto":
        options += ["--exchange", ranks.exchange]
    if ranks.timeout != RANK_TIMEOUT:
        options += ["--rank-timeout", repr(ranks.timeout)]
    if world.launched:
        return [*command, *options, "--ranks", str(world.size)]
    return ["torchrun", "--nproc-per-node", str(world.local_size), "-m", *command, *options]


def end_of_rank(ranks: Ranks, error: Exception) -> None:
    """End this rank after an error. It ends quietly if rank 0 keeps the run, or if the rank that failed says why."""
    from ctrbox.ranks.group import RankHangs, RankLost
    from ctrbox.ranks.ranks import Followed
    from ctrbox.ranks.start_and_watch_ranks import LOST

    if isinstance(error, Followed):
        end_quietly(0)
    ranks.leave(error)
    met = error.__cause__ if isinstance(error, Mistake) else error  # which may be worded anew for the command line
    if ranks.trains and not isinstance(met, RankLost) and (ranks.leads or not ranks.world.launched):
        speaker.append(f"rank {ranks.world.rank}: ")  # the launcher says it of the others
    if isinstance(met, RankLost) and not isinstance(met, RankHangs) and ranks.world.launched:
        os._exit(LOST)  # at once: the launcher, which says what happened, waits for this process
