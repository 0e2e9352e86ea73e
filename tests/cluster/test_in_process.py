"""Shards, workers and recovery with actors of this process: what `test_cluster.py` checks on a real Ray, in a second."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.embedder import Row
from tests.cluster.trainings import OPTIONS, image_training, model, table
from tests.train.worlds import on_disk, weights

pytest.importorskip("ray", reason="needs ray: pip install 'ctrbox[cluster]'")

from ctrbox.cluster import recovery, shards, workers
from ctrbox.cluster.recovery import Crew
from ctrbox.cluster.shards import Over, Server, Shards, Spec
from ctrbox.cluster.workers import Order
from ctrbox.errors import PlanError, TrainError
from tests.cluster.in_process import InProcessRay, in_process

__all__ = ["in_process"]

KEYS = np.arange(1, 60, dtype=np.int64) * 7919


def opened(**options: Any) -> cb.MemoryTable:
    made = table(**options)
    made.open(Row(4, linear=True))
    return made


def servers_of(ray: InProcessRay, spec: Spec, of: int, workers: int = 1, attempt: int = 1) -> list[Any]:
    made = [ray.remote(Server).remote(k, of, [spec]) for k in range(of)]
    meet = ray.get(made[0].address.remote())
    ray.get([one.begin.remote(workers, meet, attempt) for one in made])
    return made


@pytest.mark.parametrize("of", [1, 2, 3])
@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "through Ray"])
def test_shards_hold_the_bits_of_one_table(
    of: int, shared: bool, in_process: InProcessRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shared:
        monkeypatch.setattr(shards.Lane, "make", staticmethod(lambda size: None))
    alone, spec = opened(), Spec.of(opened(), of)
    split = Shards(servers_of(in_process, spec, of), 0, spec, 0, 1)
    rng = np.random.default_rng(0)
    for step in range(6):
        keys = rng.permutation(KEYS)[: 10 * step + 5]
        rows = split.pull(keys)
        assert rows.tobytes() == alone.pull(keys).tobytes()
        gradients = rng.standard_normal(rows.shape).astype(np.float32)
        factor = 1.0 / (step + 1)
        split.scale_lr(factor)
        alone.scale_lr(factor)
        split.push(keys, gradients)
        alone.push(keys, gradients)
    pulled = sum(10 * step + 5 for step in range(6))
    assert split.moved == 2 * pulled * (8 + 5 * 4)  # keys and rows there, keys and gradients back
    assert split.pull(KEYS, create=False).tobytes() == alone.pull(KEYS, create=False).tobytes()
    assert len(split) == len(alone)
    split.close()


def test_a_push_of_two_workers_is_applied_once_with_the_sum_in_worker_order(in_process: InProcessRay) -> None:
    alone, spec = opened(), Spec.of(opened(), 2)
    servers = servers_of(in_process, spec, 2, workers=2)
    both = [Shards(servers, 0, spec, worker, 1) for worker in range(2)]
    mine = [KEYS[:40], KEYS[20:]]
    rng = np.random.default_rng(1)
    given = [rng.standard_normal((len(keys), 5)).astype(np.float32) for keys in mine]
    for one, keys in zip(both, mine, strict=True):
        one.pull(keys)
    alone.pull(KEYS)
    for worker in (1, 0):  # the order in which they come does not matter
        both[worker].push(mine[worker], given[worker])
    for one in both:
        one.settle()
    keys, total = shards.added_up(mine, given)
    alone.push(keys, total)
    assert both[0].pull(KEYS).tobytes() == alone.pull(KEYS).tobytes()


def test_a_call_of_an_earlier_attempt_changes_nothing(in_process: InProcessRay) -> None:
    spec = Spec.of(opened(), 1)
    servers = servers_of(in_process, spec, 1, attempt=2)
    now, late = Shards(servers, 0, spec, 0, 2), Shards(servers, 0, spec, 0, 1)
    rows = now.pull(KEYS)
    with pytest.raises(Over, match="attempt 1 came to a server that is at attempt 2"):
        late.pull(KEYS)
    for call in (
        servers[0].push.remote(1, 0, 0, KEYS, np.ones_like(rows), 1.0, None),
        servers[0].save.remote(1, 0, Path("never-written")),
        servers[0].restore.remote(1, 0, Path("never-read")),
        servers[0].prefetch.remote(1, 0, KEYS),
    ):
        with pytest.raises(Exception, match="attempt 1 came to a server that is at attempt 2"):
            in_process.get(call)
    assert now.pull(KEYS).tobytes() == rows.tobytes()
    assert not Path("never-written").exists()


def test_a_call_that_waits_for_a_lost_worker_is_released_by_end(in_process: InProcessRay) -> None:
    spec = Spec.of(opened(), 1)
    (server,) = servers_of(in_process, spec, 1, workers=2)
    waiting = server.push.remote(1, 0, 0, KEYS[:1], np.ones((1, 5), np.float32), 1.0, None)
    in_process.get(server.end.remote())
    with pytest.raises(Exception, match="a worker was lost before this step was complete"):
        in_process.get(waiting, timeout=30)


def test_saved_shards_are_restored_onto_another_number_of_servers(in_process: InProcessRay, tmp_path: Path) -> None:
    spec = Spec.of(opened(), 2)
    two = Shards(servers_of(in_process, spec, 2), 0, spec, 0, 1)
    rows = two.pull(KEYS)
    two.push(KEYS, np.ones_like(rows))
    second = Shards(two.servers, 0, spec, 1, 1)
    second.save(tmp_path / "by another worker")
    assert not (tmp_path / "by another worker").exists()  # worker 0 saves for all
    two.save(tmp_path / "saved")
    spec3 = Spec.of(opened(), 3)
    three = Shards(servers_of(in_process, spec3, 3), 0, spec3, 0, 1)
    Shards(three.servers, 0, spec3, 1, 1).restore(tmp_path / "saved")
    assert len(three) == 0
    three.restore(tmp_path / "saved")
    assert three.pull(KEYS, create=False).tobytes() == two.pull(KEYS, create=False).tobytes()
    assert three.nbytes > 0
    with pytest.raises(PlanError, match="the servers hold rows of"):
        three.open(Row(5, linear=True))


class Quiet:
    """A watcher that counts."""

    def __init__(self) -> None:
        self.seen, self.evaluations = 0, 0

    def see(self, progress: object) -> None:
        self.seen += 1

    def evaluated(self, metrics: object) -> None:
        self.evaluations += 1


class OneProcessCluster(cb.Cluster):
    """`Cluster` whose actors are those of this process."""

    ray: InProcessRay
    crew: Crew
    lines: list[str]

    def train(self, fit: Any) -> None:
        order = Order.of(fit, self.servers, 1)
        self.lines = []
        self.crew = Crew(order, fit.plan, self.workers, self.servers, 0, self.restarts)
        for name, clock in self.crew.run(fit.watch, self.lines.append, lambda: None).items():
            fit.clocks[name].__dict__.update(clock.__dict__)
        self.moved = self.crew.moved
        self.crew.dismiss()


@pytest.fixture
def log(tmp_path: Path) -> cb.Plan:
    return on_disk(tmp_path, 1200)


def fitted(plan: cb.Plan, where: Any, folder: Path, **options: Any) -> cb.Run:
    return cb.Trainer(model(plan), table()).fit(plan, **{**OPTIONS, **options}, out=folder, cluster=where)


def test_one_worker_in_process_trains_the_bits_of_a_plain_training(
    log: cb.Plan, tmp_path: Path, in_process: InProcessRay
) -> None:
    here = cb.Trainer(model(log), table()).fit(log, **OPTIONS)
    where = OneProcessCluster(workers=1, servers=2)
    there = fitted(log, where, tmp_path / "run")
    assert where.moved > 0
    assert weights(here) == weights(there)
    assert here.metrics == there.metrics
    assert not in_process.of("Worker")  # all are dismissed
    assert not in_process.of("Server")


def test_two_workers_in_process_train_and_close_the_folder_of_the_run(
    log: cb.Plan, tmp_path: Path, in_process: InProcessRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    close = workers.RunFolder.close

    def closing(self: Any) -> None:
        closed.append(self.lock)
        close(self)

    monkeypatch.setattr(workers.RunFolder, "close", closing)
    run = fitted(log, OneProcessCluster(workers=2, servers=1), tmp_path / "run", limit=240, epochs=1)
    assert closed[0] == -1  # worker 0's, which has no lock
    assert closed[1] >= 0  # the driver's
    assert len(closed) == 2
    assert run.summary["rows"] == {"train": 216, "valid": 24}
    assert run.summary["steps"] == 1


def test_the_error_with_which_a_worker_began_is_the_one_it_raises(
    log: cb.Plan, tmp_path: Path, in_process: InProcessRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any) -> None:
        raise TrainError("no such table")

    monkeypatch.setattr(workers.Worker, "_fit", refused)
    with pytest.raises(TrainError, match="no such table"):
        fitted(log, OneProcessCluster(workers=1, servers=1), tmp_path / "run")


def test_a_model_server_of_one_worker_trains_the_bits_of_a_plain_training(
    tmp_path: Path, in_process: InProcessRay
) -> None:
    loss, submodel = image_training(tmp_path, None)
    other_loss, other = image_training(tmp_path, OneProcessCluster(workers=1, servers=1))
    assert loss == other_loss
    assert submodel.tobytes() == other.tobytes()


def test_a_worker_with_another_plan_is_refused(
    log: cb.Plan, tmp_path: Path, in_process: InProcessRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cb.compile(log.log, dataclasses.replace(log.features, dense={"price": col("price") + 1}), threads=1)
    original = workers.Shipped.of
    monkeypatch.setattr(workers.Shipped, "of", staticmethod(lambda _: original(other)))
    with pytest.raises(PlanError, match="worker 0 differs in plan"):
        fitted(log, OneProcessCluster(workers=1, servers=1), tmp_path / "run")


@pytest.mark.parametrize("kind", ["Worker", "Server"])
def test_a_lost_actor_is_replaced_and_the_weights_are_those_of_an_unbroken_training(
    kind: str, log: cb.Plan, tmp_path: Path, in_process: InProcessRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "LEAVE", 5.0)
    options = {"batch_size": 64, "checkpoint_steps": 3}
    whole = fitted(log, OneProcessCluster(workers=1, servers=2), tmp_path / "whole", **options)
    where = OneProcessCluster(workers=1, servers=2)
    killed = threading.Event()
    pushed = [0]
    push = Server.push

    def counted(self: Server, *arguments: Any) -> None:
        push(self, *arguments)
        pushed[0] += 1
        if pushed[0] > 12 and not killed.is_set():
            killed.set()
            in_process.of(kind)[-1].kill()

    monkeypatch.setattr(Server, "push", counted)
    broken = fitted(log, where, tmp_path / "broken", **options)
    assert killed.is_set()
    (line,) = where.lines
    assert line.startswith(f"lost {kind.lower()} ")
    assert line.endswith("(1 of 20 restarts)")
    assert weights(broken) == weights(whole)
    assert broken.metrics == whole.metrics


def test_a_training_gives_up_after_its_restarts(
    log: cb.Plan, tmp_path: Path, in_process: InProcessRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "LEAVE", 5.0)
    push = Server.push

    def fatal(self: Server, *arguments: Any) -> None:
        push(self, *arguments)
        for server in in_process.of("Server"):
            server.kill()

    monkeypatch.setattr(Server, "push", fatal)
    with pytest.raises(TrainError, match="were lost 2 times, the last time server 0"):
        fitted(log, OneProcessCluster(workers=1, servers=1, restarts=1), tmp_path / "run")


def test_an_error_of_the_training_itself_is_raised_and_not_retried(
    log: cb.Plan, tmp_path: Path, in_process: InProcessRay
) -> None:
    where = OneProcessCluster(workers=1, servers=2)
    with pytest.raises(cb.errors.BudgetError, match="within its budget of 2,500 bytes"):
        cb.Trainer(model(log), table(budget=5000)).fit(log, **OPTIONS, out=tmp_path / "run", cluster=where)
    assert where.lines == []
    assert where.crew.attempt == 1
