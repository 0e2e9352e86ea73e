"""Does a training on a cluster that loses workers, servers and whole machines end as the unbroken one?

    python -m benchmarks.cluster_crash [--quick] [--rounds 20] [--seed 0]

A Ray cluster of a head and two nodes on this machine (ray.cluster_utils), one for all rounds. Each round trains 2 workers with 2
servers into a fresh run folder and kills a worker, a server or a node with SIGKILL: once a random step has been announced by its
checkpoint, a random few milliseconds later. In every fourth round somebody else is killed up to 10 s after that, while the others
recover. A node that was killed is replaced. Every round must count a recovery and end with the weights of the unbroken training,
bit for bit, the same metrics and every row counted once. A kill that came behind the training's end is told, and its round made
again.

Last, two trainings that may not recover break off; they go on with 1 and with 3 servers, and must end with the same bits.
"""

from __future__ import annotations

import collections
import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a cluster of this machine alone; Ray reads it when imported

import ray
import torch
from ray.cluster_utils import Cluster as Machines

import ctrbox as cb
from benchmarks import report
from tests.cluster.ray_processes import processes
from tests.train.worlds import on_disk, weights

KINDS = ("worker", "server", "node")
ROWS, BATCH = 4000, 32
STEPS = 113  # of 3,600 rows
AGAIN = 3  # tries of a round whose kill came too late


def train(plan: cb.Plan, out: Path, told: list[str], servers: int = 2, restarts: int = 20) -> cb.Run:
    torch.manual_seed(0)
    net = cb.models.DeepFM(plan.schema, dim=4)
    table = cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1)
    return cb.Trainer(net, table).fit(
        plan,
        batch_size=BATCH,
        checkpoint_steps=5,
        checkpoint_seconds=1e9,
        explain=False,
        out=out,
        cluster=cb.Cluster("auto", workers=2, servers=servers, cores=1, restarts=restarts, tell=told.append),
    )


class Killer(threading.Thread):
    """Waits for a checkpoint of the step, then kills; ``again``: seconds after which somebody of another kind follows."""

    def __init__(
        self, machines: Machines, nodes: list[Any], folder: Path, kind: str, step: int, again: float | None = None
    ) -> None:
        super().__init__(daemon=True)
        self.machines, self.nodes, self.folder, self.step, self.again = machines, nodes, folder, step, again
        self.kind, self.at = kind, -1
        self.delay = random.uniform(0, 0.05)
        self.killed: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.005):
            steps = [int(p.name[5:]) for p in (self.folder / "checkpoints").glob("step-*")]
            if steps and max(steps) >= self.step:
                self.at = max(steps)
                break
        else:
            return
        if self.done.wait(self.delay):
            return
        self._kill(self.kind)
        if self.again is not None and not self.done.wait(self.again):
            self._kill(random.choice([k for k in KINDS if k != self.kind]))

    def _kill(self, kind: str) -> None:
        if kind == "node":
            victim = self.nodes.pop(random.randrange(len(self.nodes)))
            self.machines.remove_node(victim, allow_graceful=False)
            self.nodes.append(self.machines.add_node(num_cpus=2))
            self.killed.append(kind)
            return
        found = processes(f"ray::{kind.capitalize()}")
        if found:
            os.kill(random.choice(found), signal.SIGKILL)
            self.killed.append(kind)


class Rounds:
    """All rounds on one cluster, against one unbroken training."""

    def __init__(self, machines: Machines, nodes: list[Any], place: Path) -> None:
        self.machines, self.nodes, self.place = machines, nodes, place
        self.plan = on_disk(place, ROWS)
        began = time.perf_counter()
        self.whole = train(self.plan, place / "whole", [])
        self.unbroken = time.perf_counter() - began
        self.killed: collections.Counter[str] = collections.Counter()
        self.seconds: list[float] = []
        self.lost = self.late = 0
        print(f"unbroken: {self.whole.summary['steps']} steps, {self.unbroken:.0f} s", flush=True)

    def one(self, number: int) -> None:
        kind = KINDS[number % 3]
        for attempt in range(AGAIN):
            step = random.randrange(STEPS - 10)
            again = random.uniform(0, 10) if number % 4 == 3 else None
            out, told = self.place / f"round-{number}-{attempt}", list[str]()
            killer = self._killer(out, kind, step, again)
            began = time.perf_counter()
            run = train(self.plan, out, told)
            seconds = time.perf_counter() - began
            killer.done.set()
            killer.join()
            if len(self.nodes) != 2:
                raise SystemExit(f"round {number}: {len(self.nodes)} machines are left, 2 expected")
            back = sum("lost" in line for line in told)
            met = f"round {number}: {' and '.join(killer.killed) or 'nobody'} killed from step {killer.at} on"
            self._check(run, met)
            if back:
                self.killed.update(killer.killed)
                self.lost += back
                self.seconds.append(seconds)
                print(f"{met}, {back} times back, {seconds:.0f} s, the same bits", flush=True)
                return
            self.late += 1
            print(f"{met}: too late, made again", flush=True)
        raise SystemExit(f"round {number}: {AGAIN} kills came too late")

    def elastic(self, servers: int) -> None:
        """Two servers, broken off; the checkpoint goes onto ``servers``."""
        out = self._broken_off(servers)
        step = max(int(p.name[5:]) for p in (out / "checkpoints").glob("step-*"))
        shards = sorted(p.name for p in (out / "checkpoints").glob(f"step-{step:010}/*/*-of-*"))
        if len(shards) != 2:
            raise SystemExit(f"onto {servers} servers: the checkpoint has the shards {shards}")
        met = f"2 shards of step {step} onto {servers} servers"
        self._check(train(self.plan, out, [], servers=servers), met)
        print(f"{met}: the same bits", flush=True)

    def _broken_off(self, number: int) -> Path:
        for attempt in range(AGAIN):
            out = self.place / f"onto-{number}-{attempt}"
            killer = self._killer(out, "server", random.randrange(5, STEPS // 2), None)
            try:
                train(self.plan, out, [], restarts=0)
            except cb.errors.TrainError:
                return out
            finally:
                killer.done.set()
                killer.join()
            self.late += 1
        raise SystemExit(f"{AGAIN} kills came too late")

    def _killer(self, out: Path, kind: str, step: int, again: float | None) -> Killer:
        until = time.monotonic() + 60
        while (processes("ray::Worker") or processes("ray::Server")) and time.monotonic() < until:
            time.sleep(0.1)  # those of the round before
        killer = Killer(self.machines, self.nodes, out, kind, step, again)
        killer.start()
        return killer

    def _check(self, run: cb.Run, met: str) -> None:
        if weights(run) != weights(self.whole) or run.metrics != self.whole.metrics:
            raise SystemExit(f"{met}: another model came out")
        if run.summary["rows"]["train"] != round(ROWS * 0.9) or run.summary["steps"] != STEPS:
            raise SystemExit(
                f"{met}: {run.summary['rows']['train']:,} rows in {run.summary['steps']} steps were counted"
            )


def main() -> None:
    quick_help = "4 rounds: one of each kind, and one with two kills"
    rounds, seed = report.count_and_seed(__doc__, "rounds", 20, quick=4, quick_help=quick_help)
    random.seed(seed)
    torch.set_num_threads(1)
    head = {"num_cpus": 0, "include_dashboard": False}
    machines = Machines(
        initialize_head=True, head_node_args=head, shutdown_at_exit=False
    )  # hooks are of the main thread
    try:
        nodes = [machines.add_node(num_cpus=2) for _ in range(2)]
        ray.init(address=machines.address, log_to_driver=False, logging_level="error")
        with tempfile.TemporaryDirectory(prefix="ctrbox-crash-") as place:
            met = Rounds(machines, nodes, Path(place))
            for number in range(rounds):
                met.one(number)
            for servers in (1, 3):
                met.elastic(servers)
    finally:
        ray.shutdown()
        machines.shutdown()
    report.table(["killed", "times"], [[kind, met.killed[kind]] for kind in KINDS])
    median = sorted(met.seconds)[len(met.seconds) // 2]
    report.finish(
        median,
        {"unbroken": met.unbroken},
        "s",
        more_is_better=False,
        rounds=rounds,
        killed=dict(met.killed),
        restarts=met.lost,
        late=met.late,
    )


if __name__ == "__main__":
    main()
