"""`Cluster` itself, with the part of Ray that runs in this process: joining, cores and threads, what is told, what is refused."""

from __future__ import annotations

import contextlib
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.embedder import Row
from tests.cluster.trainings import OPTIONS, model, table
from tests.train.worlds import on_disk

pytest.importorskip("ray", reason="needs ray: pip install 'ctrbox[cluster]'")

from ray.exceptions import RayTaskError

from ctrbox.cluster import cluster as launch
from ctrbox.cluster import recovery
from ctrbox.cluster import workers as workers_module
from ctrbox.cluster.recovery import Crew
from ctrbox.cluster.same_code_data_settings import facts_of
from ctrbox.cluster.shards import Meeting, Server, Shards, Spec
from ctrbox.cluster.workers import Worker
from ctrbox.errors import DeviceError, PlanError
from tests.cluster.in_process import InProcessRay, in_process

__all__ = ["in_process"]


@pytest.fixture
def joined(in_process: InProcessRay, monkeypatch: pytest.MonkeyPatch) -> InProcessRay:
    """The Ray that `Cluster` imports when it needs one."""
    monkeypatch.setitem(sys.modules, "ray", in_process)
    return in_process


def quiet(address: str = "local", **options: Any) -> cb.Cluster:
    return cb.Cluster(address, tell=lambda line: None, **options)


# ---- what is asked for


@pytest.mark.parametrize("address", ["", 7, None])
def test_an_address_that_is_none_is_refused(address: Any) -> None:
    with pytest.raises(PlanError, match=r"address must be 'local', 'auto' or host:port of a Ray cluster, got "):
        cb.Cluster(address)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("workers", 1, 1024), ("servers", 1, 1024), ("cores", 1, 1024), ("restarts", 0, 10_000)],
)
def test_numbers_have_their_ranges(name: str, least: int, most: int) -> None:
    for number in (least, most):
        assert getattr(cb.Cluster(**{name: number}), name) == number
    for number in (least - 1, most + 1):
        with pytest.raises(PlanError, match=f"{name} must be a whole number"):
            cb.Cluster(**{name: number})


def fit_with(device: str = "cpu", bf16: bool = False, adaptive_l2: float = 0.0, embedder: Any = None) -> Any:
    sources = [] if embedder is None else [SimpleNamespace(embedder=embedder)]
    learner = SimpleNamespace(device=torch.device(device), bf16=bf16, sources=sources, tasks=())
    return SimpleNamespace(learner=learner, settings=SimpleNamespace(adaptive_l2=adaptive_l2, average=None))


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (
            fit_with(device="meta"),
            "training on a cluster uses CPUs only; set device='cpu' for the plan and the trainer",
        ),
        (fit_with(bf16=True), "training on a cluster uses CPUs only; set device='cpu' for the plan and the trainer"),
        (
            fit_with(adaptive_l2=0.1),
            "adaptive_l2 needs the number of times that each key occurred on all workers",
        ),
        (fit_with(embedder=object()), "a object cannot be split over servers; use cb.MemoryTable, cb.SparseTable"),
        (fit_with(embedder=table(counters=cb.tables.Counters())), "servers=1"),
    ],
)
def test_what_a_cluster_cannot_train_is_refused(fit: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        quiet(servers=2).check(fit)
    quiet(servers=2).check(fit_with(embedder=table()))


def test_a_cluster_trains_one_label_and_the_last_weights(tmp_path: Path) -> None:
    several, averaged = fit_with(), fit_with()
    several.learner.tasks = ("click", "convert")
    averaged.settings.average = 0.9
    cb.tables.write_vectors(tmp_path / "v.ctrvec", pa.table({"id": [1, 2], "v": [[1.0], [2.0]]}), key="id", vector="v")
    server = cb.tables.ModelServer(tmp_path / "v.ctrvec", torch.nn.Linear(1, 2))
    quiet().check(fit_with(embedder=server))
    server.device = torch.device("meta")
    counted = fit_with(embedder=table(counters=cb.tables.Counters()))
    for fit, told in (
        (
            several,
            "cluster= is not available for several labels (labels=) yet; remove cluster=, or use one label=",
        ),
        (averaged, "average= is not available on a cluster; remove average=, or train without cluster="),
        (
            fit_with(embedder=server),
            "this ModelServer computes on meta, but a cluster trains on CPUs only; set device='cpu', or train without cluster=",
        ),
    ):
        with pytest.raises(PlanError) as met:
            quiet().check(fit)
        assert str(met.value) == told
    quiet(servers=1).check(counted)  # one server has all rows
    assert repr(quiet("auto", workers=3, servers=2)) == "Cluster('auto', workers=3, servers=2)"


# ---- joining


@pytest.mark.parametrize(("dashboard", "told"), [(True, None), (False, False)])
def test_a_local_ray_is_started_with_or_without_its_pages(dashboard: bool, told: Any, joined: InProcessRay) -> None:
    quiet(dashboard=dashboard)._join()
    assert joined.started["address"] == "local"
    assert joined.started["include_dashboard"] is told
    quiet("auto", dashboard=dashboard)._join()
    assert joined.started["address"] == "auto"
    assert "include_dashboard" not in joined.started


@pytest.mark.parametrize(("mode", "hint"), [("token", launch.STRANGER), ("disabled", launch.TOKENLESS)])
def test_a_cluster_that_refuses_is_named_with_the_likely_cause(
    mode: str, hint: str, joined: InProcessRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    joined.refuses = ConnectionError("nobody\n  there")
    with pytest.raises(DeviceError) as told:
        quiet("auto")._join()
    assert str(told.value) == f"cannot join the Ray cluster at 'auto': nobody there{hint}"


def test_more_cores_than_a_cluster_has_are_refused(joined: InProcessRay) -> None:
    joined.cpus = 5
    quiet("auto", workers=5)._check_room(1)
    with pytest.raises(DeviceError, match="3 workers of 2 cores need 6 cores, but this cluster has 5; lower workers="):
        quiet("auto", workers=3)._check_room(2)
    with pytest.raises(DeviceError, match="1 worker of 6 cores needs 6 cores, but this cluster has 5; lower workers="):
        quiet("auto", workers=1)._check_room(6)


def test_where_everybody_is_and_what_a_server_holds_is_told(joined: InProcessRay) -> None:
    lines: list[str] = []
    cluster = cb.Cluster(workers=2, servers=1, tell=lines.append)
    crew = SimpleNamespace(placed=lambda: {"10.0.0.1": ["worker 0", "server 0"], "10.0.0.2": ["worker 1"]})
    row = Row(4, linear=True)
    tables = [
        (["a", "b", "c", "d"], Spec(cb.MemoryTable, row, None, budget=4000)),
        (["a", "b", "c", "d", "e"], Spec(cb.tables.ModelServer, row, None, budget=5000)),
    ]
    order = SimpleNamespace(tables=tables)
    cluster._show(crew, order, 3)
    assert lines == [
        "2 workers of 3 cores, 1 server",
        "  10.0.0.1: worker 0, server 0",
        "  10.0.0.2: worker 1",
        "  table 0 (MemoryTable: a, b, c, d): at most 4,000 bytes per server",
        "  table 1 (Model Server: a, b, c, d …): at most 5,000 bytes per server",
        "  no dashboard; to get one: pip install 'ray[default]'",
    ]
    joined._private.worker._global_node.webui_url = "127.0.0.1:8265"
    cluster._show(crew, order, 3)
    assert lines[-1] == "  dashboard: http://127.0.0.1:8265"
    joined._private.worker._global_node.webui_url = None
    cluster.dashboard = False
    cluster._show(crew, order, 3)
    assert lines[-1].startswith("  table 1 ")


# ---- a training


class Enough(Exception):
    pass


class Probe(cb.Cluster):
    """Gives the training that it is asked for to a function."""

    work: Any = None

    def train(self, fit: Any) -> None:
        self.work(fit)
        raise Enough


@pytest.fixture
def log(tmp_path: Path) -> cb.Plan:
    return on_disk(tmp_path, 400)


def test_cores_and_threads_follow_the_machine_and_what_is_asked_for(
    log: cb.Plan, tmp_path: Path, joined: InProcessRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch._native, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    crews: list[Crew] = []

    def run(crew: Crew, watch: Any, tell: Any, show: Any) -> dict[str, Any]:
        crews.append(crew)
        show()
        return {}

    monkeypatch.setattr(Crew, "run", run)
    monkeypatch.setattr(Crew, "placed", lambda crew: {})
    joined.cpus = 16
    found: dict[Any, Any] = {}

    def work(fit: Any) -> None:
        for address, workers, cores in [
            ("local", 1, None), ("local", 3, None), ("local", 9, None), ("local", 2, 3), ("auto", 1, None), ("auto", 2, None),
            ("auto", 1, 5), ("auto", 2, 5),
        ]:  # fmt: skip
            lines: list[str] = []
            cb.Cluster(address, workers=workers, cores=cores, tell=lines.append).train(fit)
            found[address, workers, cores] = (lines[0], crews[-1].cores, crews[-1].order.threads)
            assert not joined.initialized
        with pytest.raises(DeviceError, match="need 20 cores, but this cluster has 16"):
            cb.Cluster("auto", workers=4, cores=5).train(fit)
        assert not joined.initialized

    probe = Probe()
    probe.work = work
    with contextlib.suppress(Enough):
        cb.Trainer(model(log), table()).fit(log, **OPTIONS, out=tmp_path / "run", cluster=probe)
    assert found == {
        ("local", 1, None): ("1 worker of 8 cores, 1 server", 0, 7),
        ("local", 3, None): ("3 workers of 2 cores, 1 server", 0, 2),
        ("local", 9, None): ("9 workers of 1 core, 1 server", 0, 1),
        ("local", 2, 3): ("2 workers of 3 cores, 1 server", 0, 3),
        ("auto", 1, None): ("1 worker of 1 core, 1 server", 1, 7),
        ("auto", 2, None): ("2 workers of 1 core, 1 server", 1, 1),
        ("auto", 1, 5): ("1 worker of 5 cores, 1 server", 5, 5),
        ("auto", 2, 5): ("2 workers of 5 cores, 1 server", 5, 5),
    }


def test_a_ray_that_runs_already_is_used_and_left_running(log: cb.Plan, tmp_path: Path, joined: InProcessRay) -> None:
    joined.initialized = True
    lines: list[str] = []
    where = cb.Cluster(servers=2, tell=lines.append)
    run = cb.Trainer(model(log), table()).fit(log, **OPTIONS, out=tmp_path / "run", cluster=where)
    assert (joined.started, joined.initialized) == ({}, True)
    assert where.moved > 0
    assert lines[1] == "  127.0.0.1: worker 0, server 0, server 1"
    assert not joined.of("Server")
    assert run.report().exists()


def test_a_worker_of_other_code_is_refused_at_once(
    log: cb.Plan, tmp_path: Path, joined: InProcessRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "facts_of", lambda *given: {**facts_of(*given), "ctrbox": "0.0 0123456789"})
    with pytest.raises(PlanError, match=r"differs in ctrbox: .*, expected '0\.0 0123456789'"):
        cb.Trainer(model(log), table()).fit(log, **OPTIONS, out=tmp_path / "run", cluster=quiet())
    assert not joined.of("Worker")
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-0000000000"]


def test_an_interrupted_training_ends_behind_its_step(
    log: cb.Plan, tmp_path: Path, joined: InProcessRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "train", lambda self, *given: {"ended": True})
    with pytest.raises(KeyboardInterrupt):
        cb.Trainer(model(log), table()).fit(log, **OPTIONS, out=tmp_path / "run", cluster=quiet())
    (worker,) = [actor for actor in joined.actors if actor.kind is Worker]
    assert "end" in worker.calls


def test_a_worker_that_is_told_to_end_tells_its_training() -> None:
    worker = Worker()
    worker.end()
    assert worker.ending
    worker.fit = SimpleNamespace(ending=False)  # type: ignore[assignment]
    worker.end()
    assert worker.fit.ending  # type: ignore[union-attr]


@pytest.mark.parametrize("part", [0, 1])
def test_the_first_worker_meets_the_others_at_the_store_that_it_holds(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Met(Exception):
        pass

    def gang(*given: Any) -> Any:
        raise Met(*given)

    monkeypatch.setattr(workers_module, "Gang", gang)
    worker = Worker()
    worker.store = "held"
    with pytest.raises(Met) as caught:
        worker.train(SimpleNamespace(threads=torch.get_num_threads()), [], part, 2, "here:5", 1)  # type: ignore[arg-type]
    assert caught.value.args == (part, 2, "here:5", worker.host, "held" if part == 0 else None)


# ---- actors


def test_an_actor_that_does_not_start_or_fails_is_named(in_process: InProcessRay) -> None:
    with pytest.raises(DeviceError, match=r"worker 3 did not start within 0 s; check with"):
        Crew._within(0.01, Future(), "worker 3")
    failed: Future[Any] = Future()
    failed.set_exception(RayTaskError("facts", "text", PlanError("the cause")))
    with pytest.raises(PlanError, match=r"^the cause$"):
        Crew._within(0.01, failed, "worker 3")


def test_an_error_of_the_work_of_all_reaches_all() -> None:
    meeting = Meeting(1)

    def broken(parts: list[Any]) -> list[Any]:
        raise ValueError(f"met {parts}")

    with pytest.raises(ValueError, match=r"met \['a'\]"):
        meeting.meet(0, "a", broken)
    assert meeting.meet(0, "b", lambda parts: parts) == "b"


# ---- how a shard is made


def test_a_shard_has_its_part_of_the_budget_and_a_folder_of_its_own(tmp_path: Path) -> None:
    assert Spec.of(table(budget=9000), 3).budget == 3000
    row = Row(4, linear=True)
    with cb.SparseTable(tmp_path / "params", 4, ram="900kB") as sparse:
        sparse.open(row)
        spec = Spec.of(sparse, 3)
        assert (spec.kind, spec.budget) == (cb.SparseTable, sparse.ram // 3)
    made = spec.make(1, 3)
    with made:
        assert made.path == tmp_path / "params.shards" / "00001-of-00003"
        assert made.row == row
        made.push(np.arange(1, 5), np.ones((4, 5), np.float32))
    with spec.make(1, 3) as again:  # what it held comes from a checkpoint
        assert len(again) == 0


def test_a_model_server_reads_its_shard_of_vectors_that_are_split_alike(tmp_path: Path) -> None:
    key = col("ad").key(space="image")
    images = {"ad": np.arange(40), "image": np.ones((40, 3), np.float32)}
    cb.tables.write_vectors(tmp_path / "whole.ctrvec", images, key=key, vector="image")
    cb.tables.write_vectors(tmp_path / "split.ctrvec", images, key=key, vector="image", shards=2)
    sizes = {}
    for name in ("whole", "split"):
        server = cb.tables.ModelServer(tmp_path / f"{name}.ctrvec", torch.nn.Linear(3, 4), budget=8000)
        spec = Spec.of(server, 2)
        assert spec.budget == 4000
        sizes[name] = [len(spec.make(0, of).data) for of in (1, 2, 3)]
    assert sizes["whole"] == [40, 40, 40]
    assert sizes["split"][0] == sizes["split"][2] == 40
    assert 0 < sizes["split"][1] < 40


def test_keys_are_announced_to_the_servers_that_hold_them(tmp_path: Path, in_process: InProcessRay) -> None:
    with cb.SparseTable(tmp_path / "params", 4, ram="900kB") as sparse:
        sparse.open(Row(4, linear=True))
        spec = Spec.of(sparse, 2)
    servers = [in_process.remote(Server).remote(k, 2, [spec]) for k in range(2)]
    meet = in_process.get(servers[0].address.remote())
    in_process.get([one.begin.remote(1, meet, 1) for one in servers])
    split = Shards(servers, 0, spec, 0, 1)
    keys = np.arange(1, 60, dtype=np.int64) * 7919
    of_one = keys[next(place for server, place in split._split(keys) if server is servers[0])]
    split.prefetch(of_one)
    assert [server.calls.count("prefetch") for server in servers] == [1, 0]
    split.prefetch(keys)
    assert [server.calls.count("prefetch") for server in servers] == [2, 1]
    split.close()


def test_counts_that_a_worker_does_not_have_are_none(in_process: InProcessRay) -> None:
    counted = table(counters=cb.tables.Counters())
    counted.open(Row(4, linear=True))
    spec = Spec.of(counted, 1)
    server = Server(0, 1, [spec])
    server.begin(2, server.address(), 1)
    gradients, none = np.ones((1, 5), np.float32), np.empty((0, 5), np.float32)
    keys, no_keys = np.array([7]), np.empty(0, np.int64)
    server._push_of_all(0, 1.0, [(keys, gradients, np.array([[3, 1]], np.float32)), (no_keys, none, None)])
    assert len(server.tables[0]) == 1
