"""Ranks that train on a GPU: two of them share the one GPU of the test machine, and exchange tensors through gloo.

Ranks are threads of this process (tests/ranks/threads.py), but for the tests of the command line. Tests that need no GPU run here
with the kernels on the CPU (tests/cuda_host.py) as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox.engines.cuda.runtime import Runtime, cuda_runtime, why_not
from ctrbox.errors import DeviceError
from ctrbox.ranks.ranks import Followed
from tests.cuda_host import HostRuntime
from tests.ranks.threads import DRAWING, Plain, in_ranks, worlds
from tests.train.worlds import Small, folder_with_log, on_disk

NO_GPU = why_not()
GPU = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]
SETTINGS: dict[str, Any] = {"batch_size": 64, "epochs": 4, "checkpoint_seconds": 1e9, "explain": False}
STEPS = 228  # of SETTINGS on 4,000 rows
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(
    scope="module", params=[pytest.param("host", marks=pytest.mark.exhaustive), pytest.param("cuda", marks=GPU)]
)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return HostRuntime() if request.param == "host" else cuda_runtime()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with_log(tmp_path_factory.mktemp("log"), 4000)


class Job:
    """One job, as every rank defines it. ``place``: a runtime, or None for the CPU."""

    def __init__(self, log: Path, folder: Path, kind: str = "gpu", net: Callable[..., Any] = Plain) -> None:
        self.log, self.folder, self.kind, self.net, self.tables = log, folder, kind, net, 0
        self.optimizer: Any = cb.optim.SGD(lr=0.1)

    def table(self, runtime: Runtime | None) -> Any:
        settings: dict[str, Any] = {"optimizer": self.optimizer, "init": 0.1}
        if self.kind in ("level", "sparse"):
            self.tables += 1
            below = cb.SparseTable(self.folder / f"{self.kind}-{self.tables}", 4, **settings)
            return below if runtime is None else cb.tables.LevelTable(below, memory="2MB", runtime=runtime)
        if self.kind == "memory" or runtime is None:
            return cb.MemoryTable(4, **settings)
        return cb.tables.GpuTable(4, memory="64MB", runtime=runtime, **settings)

    def plan(self, runtime: Runtime | None) -> cb.Plan:
        """A plan that extracts on the GPU, if there is one."""
        plan = on_disk(self.log)
        on_gpu = runtime is not None and runtime.device.type == "cuda"
        return cb.compile(plan.log, plan.features, threads=2, device="cuda" if on_gpu else "cpu")

    def fit(
        self,
        size: int,
        runtime: Runtime | None,
        out: Path,
        stop_at: int | None = None,
        exchange: str = "auto",
        **options: Any,
    ) -> Any:
        """Train with so many ranks, and return the run, or the error of the first rank that failed; 0: without ranks.

        A process without ranks that trains on a GPU reports the loss of a step or two before, so its losses cannot be compared
        with those of ranks step by step.
        """
        on_gpu = runtime is not None and runtime.device.type == "cuda"

        def work(ranks: Any) -> Any:
            with DRAWING:
                plan = self.plan(runtime)
                torch.manual_seed(3)
                net, table = self.net(plan.schema), self.table(runtime)
            net.stop_at = stop_at
            device = "cuda" if on_gpu else "auto"
            trainer = cb.Trainer(net, table, optimizer=cb.optim.SGD(lr=0.05), threads=1, device=device)
            run = trainer.fit(plan, **{**SETTINGS, **options}, out=out, cluster=ranks)
            if on_gpu:
                assert type(plan.extractor()).__name__ == "CudaExtractor", "the features were not extracted on the GPU"
                assert next(run.learner.model.parameters()).is_cuda, "the model is not on the GPU"
            return run

        if not size:
            return work(None)
        found = in_ranks(size, work, exchange=exchange)
        failed = [one for one in found if isinstance(one, BaseException) and not isinstance(one, Followed)]
        return failed[0] if failed else found[0]


def trained(run: Any) -> Any:
    if isinstance(run, BaseException):
        raise run
    return run


def losses(run: Path) -> np.ndarray:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return np.array([line["loss"] for line in lines if line["kind"] == "train"])


def bits(folder: Path) -> dict[str, bytes]:
    """The tables of all ranks and the dense weights of the final model, as they are stored."""
    files = [
        p
        for p in sorted((folder / "model").rglob("*"))
        if p.is_file() and (p.suffix == ".ctrtable" or p.name == "dense.safetensors")
    ]
    assert files, f"{folder}/model holds no weights"
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def apart(some: np.ndarray, others: np.ndarray) -> str:
    """Return in words where two courses of losses differ most."""
    n = min(len(some), len(others))
    far = np.abs(some[:n] - others[:n])
    first = int(np.argmax(far > 0)) if far.any() else -1
    most = f"most by {far.max():.3g} in step {far.argmax() + 1}"
    return f"{len(some)} and {len(others)} losses; they first differ in step {first + 1}, {most}"


@pytest.mark.parametrize("kind", ["memory", "gpu", "level"])
def test_two_ranks_on_one_gpu_learn_what_one_learns_twice_the_same(
    log: Path, runtime: Runtime, kind: str, tmp_path: Path
) -> None:
    job = Job(log, tmp_path, kind)
    alone = trained(job.fit(0, runtime, tmp_path / "0"))
    trained(job.fit(1, runtime, tmp_path / "1"))
    found = trained(job.fit(2, runtime, tmp_path / "2"))
    trained(job.fit(2, runtime, tmp_path / "again"))
    one, two, again = (losses(tmp_path / name) for name in ("1", "2", "again"))
    assert len(one) == len(two) == STEPS
    np.testing.assert_allclose(two, one, atol=1e-5, err_msg=apart(two, one))
    assert (two == again).all(), apart(two, again)
    if kind != "level":  # the files of a Sparse Table have an identity of their own
        first, second = bits(tmp_path / "2"), bits(tmp_path / "again")
        assert first.keys() == second.keys()
        assert [name for name in first if first[name] != second[name]] == []
    assert found.metrics["auc"] == pytest.approx(alone.metrics["auc"], abs=1e-3)
    facts = found.summary["ranks"]
    assert [one["rank"] for one in facts] == [0, 1]
    assert all(one["sent_per_step"]["rows"] > 0 and one["sent_per_step"]["gradients"] > 0 for one in facts)


def test_statistics_of_a_batch_are_those_of_all_ranks(log: Path, runtime: Runtime, tmp_path: Path) -> None:
    """Batch normalization and moments of dense columns cross the ranks through main memory."""
    job = Job(log, tmp_path, "gpu", lambda schema: Small(schema, dropout=0.0))
    trained(job.fit(0, None, tmp_path / "1", epochs=1))
    trained(job.fit(2, runtime, tmp_path / "2", epochs=1))
    one, two = losses(tmp_path / "1"), losses(tmp_path / "2")
    np.testing.assert_allclose(two, one, atol=1e-4, err_msg=apart(two, one))


@pytest.mark.parametrize("kinds", [("gpu", "memory"), ("level", "sparse")], ids=["in memory", "on SSD"])
def test_a_run_goes_on_from_gpus_to_cpus_and_back(
    log: Path, runtime: Runtime, kinds: tuple[str, str], tmp_path: Path
) -> None:
    """2 ranks with GPU tables, then 1 process on the CPU, then 2 ranks with GPU tables; each rank is stopped by an error."""
    options = {"checkpoint_steps": 10, "epochs": 2}
    there, here = (Job(log, tmp_path, kind) for kind in kinds)
    whole = trained(here.fit(0, None, tmp_path / "whole", **options))
    place = tmp_path / "run"
    failed = there.fit(2, runtime, place, stop_at=35, **options)
    assert "stopped by the test" in str(failed), failed
    with pytest.raises(cb.errors.TrainError, match="stopped by the test"):
        here.fit(0, None, place, stop_at=35, **options)  # steps 31 to 65
    again = trained(there.fit(2, runtime, place, **options))
    kept = losses(place)
    np.testing.assert_allclose(kept[-50:], losses(tmp_path / "whole")[-50:], atol=1e-5)
    assert (
        again.summary["rows"]["trained"] == whole.summary["rows"]["trained"]
        if "trained" in whole.summary["rows"]
        else True
    )
    assert again.metrics["auc"] == pytest.approx(whole.metrics["auc"], abs=1e-3)
    loaded = cb.Run.load(place, model=Plain(here.plan(None).schema), views={})
    assert len(loaded.learner.embedders[0]) == len(whole.learner.embedders[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU)])
def test_two_ranks_on_one_gpu_cannot_use_nccl(log: Path, device: str, tmp_path: Path) -> None:
    failed = Job(log, tmp_path).fit(2, cuda_runtime(), tmp_path / "run", exchange="nccl")
    assert isinstance(failed, DeviceError), repr(failed)
    assert "ranks 0 and 1 share cuda:0" in str(failed)
    assert "which NCCL does not support; start one rank per GPU, or use --exchange gloo" in str(failed)
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
@pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")
def test_nccl_moves_the_tensors_that_gloo_moves() -> None:
    """NCCL with one rank, because the test machine has one GPU: the calls are those of several ranks."""
    from ctrbox.ranks.group import Group

    (world,), store = worlds(1)
    group = Group.join(world, 60.0)
    try:
        rows, keys = torch.randn(7, 3, device="cuda"), torch.arange(5, device="cuda")
        weights = [torch.nn.Parameter(torch.zeros(n, device="cuda")) for n in (4, 9)]
        given = [torch.randn_like(w) for w in weights]
        found: list[list[torch.Tensor]] = []
        for nccl in (False, True):
            if nccl:
                group.connect_gpus(torch.device("cuda", 0))
            assert group.by_nccl == nccl
            for w, g in zip(weights, given, strict=True):
                w.grad = g.clone()
            group.add_up(weights, 0.5)
            moved = [group.exchange_tensor(t, [len(t)], [len(t)], "rows") for t in (rows, keys, rows[:0])]
            assert all(t.is_cuda for t in moved)
            found.append([*moved, *(w.grad.clone() for w in weights if w.grad is not None)])
        for some, others in zip(*found, strict=True):
            assert torch.equal(some, others)
    finally:
        group.leave()
        del store


# ---- the command line

JOB = """\
import ctrbox as cb
from tests.train.worlds import on_disk
from pathlib import Path

plan = on_disk(Path({log!r}))
plan = cb.compile(plan.log, plan.features, threads=2)
model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,), dropout=0.0)
table = {table}
optimizer = cb.optim.SGD(lr=0.05)
settings = {{"epochs": 4, "batch_size": 64, "explain": False}}
"""


def ctrbox(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]))
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run(
        [sys.executable, "-m", "ctrbox", "train", "job.py", *words],
        cwd=folder,
        env=kept | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")
@pytest.mark.parametrize("table", ["None", "cb.MemoryTable(4, optimizer=cb.optim.SGD(lr=0.1), init=0.1)"])
def test_the_command_trains_two_processes_on_one_gpu(log: Path, table: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB.format(log=str(log), table=table))
    one = ctrbox(tmp_path, "--gpus", "1", "--out", "1")
    assert one.returncode == 0, one.stderr[-4000:]
    two = ctrbox(tmp_path, "--gpus", "1", "--ranks", "2", "--out", "2")
    assert two.returncode == 0, two.stderr[-4000:]
    assert len(losses(tmp_path / "2")) == STEPS
    some, others = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("2", "1"))
    assert some["steps"] == others["steps"] == STEPS
    assert len(some["ranks"]) == 2
    for figure in ("auc", "logloss"):
        assert some["metrics"][figure] == pytest.approx(others["metrics"][figure], abs=2e-3), (some, others)


@pytest.mark.gpu
@pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")
def test_more_gpus_than_there_are_are_refused_before_anything_is_written(log: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB.format(log=str(log), table="None"))
    for words in (["--gpus", "99"], ["--gpus", "99", "--ranks", "200"]):
        done = ctrbox(tmp_path, *words, "--out", "run")
        assert done.returncode != 0
        assert "--gpus 99 needs 99 GPUs, but this machine has" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
