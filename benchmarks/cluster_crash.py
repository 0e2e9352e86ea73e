"""Does a training on a cluster that loses workers, servers and whole machines end as the unbroken one?

    python -m benchmarks.cluster_crash [--quick] [--rounds 20] [--seed 0]

A Ray cluster of a head and two nodes on this machine (ray.cluster_utils). Each round trains 2 workers with 2 servers into a fresh
run folder and, at a random moment, kills a worker, a server or a node with SIGKILL; a node that was killed is replaced. Every
round must end with the weights of the unbroken training, bit for bit, the same metrics, and every row counted once.
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
ROWS = 4000


def train(plan: cb.Plan, out: Path, told: list[str]) -> cb.Run:
    torch.manual_seed(0)
    net = cb.models.DeepFM(plan.schema, dim=4)
    table = cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1)
    return cb.Trainer(net, table).fit(
        plan,
        batch_size=32,
        checkpoint_steps=5,
        checkpoint_seconds=1e9,
        explain=False,
        out=out,
        cluster=cb.Cluster("auto", workers=2, servers=2, cores=1, tell=told.append),
    )


class Killer(threading.Thread):
    """Waits for a checkpoint of a random step, then kills."""

    def __init__(self, machines: Machines, nodes: list[Any], folder: Path, kind: str, step: int) -> None:
        super().__init__(daemon=True)
        self.machines, self.nodes, self.folder, self.kind, self.step = machines, nodes, folder, kind, step
        self.at = -1
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            steps = [int(p.name[5:]) for p in (self.folder / "checkpoints").glob("step-*")]
            if steps and max(steps) >= self.step:
                self.at = max(steps)
                break
            time.sleep(0.01)
        else:
            return
        if self.kind == "node":
            victim = self.nodes.pop(random.randrange(len(self.nodes)))
            self.machines.remove_node(victim, allow_graceful=False)
            self.nodes.append(self.machines.add_node(num_cpus=2))
        else:
            found = processes(f"ray::{self.kind.capitalize()}")
            if not found:
                self.at = -1
                return
            os.kill(random.choice(found), signal.SIGKILL)


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="3 rounds, one of each kind")
    asked = parser.parse_args()
    rounds = 3 if asked.quick else asked.rounds
    random.seed(asked.seed)
    torch.set_num_threads(1)
    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [machines.add_node(num_cpus=2) for _ in range(2)]
    ray.init(address=machines.address, log_to_driver=False, logging_level="error")
    killed: collections.Counter[str] = collections.Counter()
    seconds: list[float] = []
    lost = 0
    try:
        with tempfile.TemporaryDirectory(prefix="ctrbox-crash-") as place:
            plan = on_disk(Path(place), ROWS)
            began = time.perf_counter()
            whole = train(plan, Path(place) / "whole", [])
            unbroken = time.perf_counter() - began
            for number in range(rounds):
                kind, step = KINDS[number % 3], random.randrange(0, 100)
                told: list[str] = []
                out = Path(place) / f"round-{number}"
                killer = Killer(machines, nodes, out, kind, step)
                killer.start()
                began = time.perf_counter()
                run = train(plan, out, told)
                seconds.append(time.perf_counter() - began)
                killer.done.set()
                killer.join()
                again = sum("lost" in line for line in told)
                lost += again
                killed[kind] += killer.at >= 0
                if weights(run) != weights(whole) or run.metrics != whole.metrics:
                    raise SystemExit(f"round {number}: {kind} killed after step {killer.at}: another model came out")
                if run.summary["rows"]["train"] != round(ROWS * 0.9):
                    raise SystemExit(f"round {number}: {run.summary['rows']['train']:,} rows were counted")
                met = f"{kind} killed after step {killer.at}, {again} times back"
                print(f"round {number}: {met}, {seconds[-1]:.0f} s", flush=True)
    finally:
        ray.shutdown()
        machines.shutdown()
    report.table(
        ["killed", "rounds"],
        [[kind, killed[kind]] for kind in KINDS],
    )
    median = sorted(seconds)[len(seconds) // 2]
    report.finish(
        median, {"unbroken": unbroken}, "s", more_is_better=False, rounds=rounds, killed=dict(killed), restarts=lost
    )


if __name__ == "__main__":
    main()
