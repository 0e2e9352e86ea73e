"""How long from raw columns to a trained model on a GPU, next to a job that writes its features to Parquet in between?

    python -m benchmarks.gpu_pipeline [--quick] [--repeats N]

Both sides train the same model with the same table on the same GPU, on the same rows in the same order. The pipeline
extracts on the GPU while it trains; the staged job extracts with the CPU engine on all cores, writes Parquet, and trains
from those files. The clock runs from raw columns in memory to a validated model: planning, loading dimensions and page
locks count, compiling kernels does not (they are on disk after a first short run of each side).

GPU busy: the share of the time during which a kernel ran, as nvidia-smi samples it every 100 ms over epochs of training
from memory; beside it the union of all kernels' intervals over their span, as torch's profiler records it, which slows
the host down.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import extract_job, gpu, report
from benchmarks.extract_job import DENSE, DEVICES, RAGGED, SPARSE
from benchmarks.staged_train import HELD, Clock

NAME = "gpu_pipeline"
ROWS, QUICK_ROWS = 4_000_000, 500_000
BATCH, DIM, HIDDEN, SEED = 65_536, 16, (512, 256), 1
ROOM, QUICK_ROOM = 24_000_000, 8_000_000  # keys that the table has room for at once
FILE_ROWS = 131_072
SAME_AUC, GOAL_BUSY = 0.002, 0.80
BUSY_SECONDS = 6.0
SAMPLE_MS = 100


@dataclass(frozen=True)
class Site:
    """Where to train: the plan's device, and a fresh table."""

    device: str
    table: Callable[[], Any]


def gpu_site(room: int) -> Site:
    import ctrbox as cb

    return Site(
        "cuda",
        lambda: cb.tables.GpuTable(
            DIM, optimizer=cb.Adagrad(lr=0.05, initial=1.0), seed=SEED, memory="48GB", rows=room
        ),
    )


# ---- training --------------------------------------------------------------------------------------------------------


@dataclass
class Trained:
    """One training from start to validation."""

    seconds: float
    auc: float
    rows: int
    stages: dict[str, float]  # busy seconds
    keys: int


def train(site: Site, plan: Callable[[], Any], held: float, **settings: Any) -> Trained:
    """Plan, train in the order of the log, validate on the newest rows."""
    import torch

    import ctrbox as cb

    clock = Clock()
    torch.manual_seed(SEED)
    planned = plan()
    model = cb.models.DeepFM(planned.schema, dim=DIM, hidden=HIDDEN)
    trainer = cb.Trainer(model, site.table(), device=site.device)
    run = trainer.fit(planned, valid=held, **({"batch_size": BATCH, "seed": SEED} | settings), by={}, progress=clock)
    rows = run.summary["rows"]["train"]
    stages = {stage["name"]: stage["seconds"] for stage in run.summary["stages"]}
    seconds = clock.seconds if clock.metrics else run.summary["seconds"]
    return Trained(seconds, clock.metrics.get("auc", math.nan), rows, stages, run.summary["table"]["keys"])


def emptied(device: str) -> None:
    """Let go of the last run's memory before the next begins."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()


# ---- the staged job --------------------------------------------------------------------------------------------------


def write_features(plan: Any, folder: Path, threads: int) -> int:
    """The plan's batches as Parquet, several files at a time; bytes written."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    under_way: deque[Future[None]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for number, batch in enumerate(plan.batches(FILE_ROWS)):
            table = pa.Table.from_batches([batch.to_arrow()])
            under_way.append(pool.submit(pq.write_table, table, folder / f"part-{number:05d}.parquet"))
            if len(under_way) > 2 * threads:
                under_way.popleft().result()
        for future in under_way:
            future.result()
    return sum(file.stat().st_size for file in folder.glob("*.parquet"))


def plan_over_features(folder: Path, device: str) -> Any:
    """Keys as they are."""
    import ctrbox as cb
    from ctrbox import col

    features = cb.FeatureSet(
        label=col("label"),
        sparse={name: col(name).fill([] if name in RAGGED else 0).as_key() for name in SPARSE},
        dense={name: col(name).fill(0.0) for name in DENSE},
    )
    return cb.compile(cb.View([str(file) for file in sorted(folder.glob("*.parquet"))]), features, device=device)


def held_share(table: pa.Table) -> float:
    """Which share of the rows that pass the filter lies in the newest tenth of the log: the same rows on both sides."""
    kept = pc.is_in(table["device"], pa.array(DEVICES)).combine_chunks().to_numpy(zero_copy_only=False)
    newest = len(kept) - round(len(kept) * HELD)
    return float(kept[newest:].sum() / kept.sum())


# ---- how busy --------------------------------------------------------------------------------------------------------


class Sampler:
    """Collects the GPU's utilization that nvidia-smi shows, every 100 ms while the context is entered."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []  # moment, percent
        self.process: Any = None

    def __enter__(self) -> Sampler:
        asked = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", f"--loop-ms={SAMPLE_MS}"]
        with contextlib.suppress(OSError):
            self.process = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.samples.append((time.perf_counter(), float(line)))

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()

    def share(self, begin: float, end: float) -> float | None:
        """The mean between two moments; None where there are fewer than 5 samples."""
        inside = [percent for at, percent in self.samples if begin <= at <= end]
        return statistics.mean(inside) / 100 if len(inside) >= 5 else None


class Moments:
    """A watcher that keeps when each report of a training came: what lies between the first and the last is training."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def see(self, progress: Any) -> None:
        self.at.append(time.perf_counter())

    def evaluated(self, metrics: Any) -> None: ...
    def resumed(self, step: int, rows: int) -> None: ...
    def end(self) -> None: ...


def union(intervals: Sequence[tuple[float, float]]) -> float:
    """The length of all that the intervals cover."""
    covered, reached = 0.0, -math.inf
    for begin, end in sorted(intervals):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def sampled_busy(train_for: Callable[[int, Any], Trained], epochs: int) -> tuple[float | None, Trained]:
    """The utilization that nvidia-smi saw while the epochs ran."""
    moments = Moments()
    with Sampler() as sampler:
        done = train_for(epochs, moments)
        time.sleep(3 * SAMPLE_MS / 1e3)
    first, last = moments.at[0], moments.at[-1]
    return sampler.share(first + 0.3, last), done


def profiled_busy(train_for: Callable[[int, Any], Trained]) -> tuple[float, float] | None:
    """Kernels' share of their span in one epoch, and the same with copies; None where the profiler does not work."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            train_for(1, Moments())
        events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    except (RuntimeError, AssertionError) as error:
        print(f"torch's profiler is left out: {error}")
        return None
    intervals = [(e.name, e.time_range.start, e.time_range.end) for e in events]
    kernels = [(begin, end) for name, begin, end in intervals if not name.startswith(("Memcpy", "Memset"))]
    if not kernels:
        print("torch's profiler is left out: it saw no kernel")
        return None
    begin, end = min(a for a, _ in kernels), max(b for _, b in kernels)
    everything = [(max(a, begin), min(b, end)) for _, a, b in intervals if b > begin and a < end]
    return union(kernels) / (end - begin), union(everything) / (end - begin)


# ---- the question ----------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """The runs of one side; a run is its stages' seconds, and what was trained."""

    runs: list[tuple[dict[str, float], Trained]] = field(default_factory=list)

    @property
    def best(self) -> tuple[dict[str, float], Trained]:
        return min(self.runs, key=lambda run: sum(run[0].values()))

    @property
    def seconds(self) -> float:
        return sum(self.best[0].values())

    @property
    def auc(self) -> float:
        return statistics.median(trained.auc for _, trained in self.runs)


@dataclass
class Job:
    """The data of a run, and each side as a call."""

    root: Path
    memory: dict[str, pa.Table]
    site: Site
    work: Path
    threads: int

    def __post_init__(self) -> None:
        self.held = held_share(self.memory["impressions"])
        self.written = 0

    @property
    def rows(self) -> int:
        return int(self.memory["impressions"].num_rows)

    def raw(self, source: str) -> Any:
        memory = self.memory if source == "from memory" else None
        return extract_job.plan(self.root, memory=memory, device=self.site.device)

    def pipeline(self, source: str, **settings: Any) -> tuple[dict[str, float], Trained]:
        done = train(self.site, lambda: self.raw(source), HELD, **settings)
        return {"train": done.seconds}, done

    def staged(self, **settings: Any) -> tuple[dict[str, float], Trained]:
        began = time.perf_counter()
        self.written = write_features(extract_job.plan(self.root, memory=self.memory), self.work, self.threads)
        extract = time.perf_counter() - began
        done = train(self.site, lambda: plan_over_features(self.work, self.site.device), self.held, **settings)
        return {"extract to Parquet": extract, "train": done.seconds}, done

    def sides(self) -> dict[str, Callable[..., tuple[dict[str, float], Trained]]]:
        return {
            "pipeline, from memory": lambda **s: self.pipeline("from memory", **s),
            "staged, from memory": self.staged,
            "pipeline, from Parquet": lambda **s: self.pipeline("from Parquet", **s),
        }


def turns(job: Job, repeats: int) -> dict[str, Side]:
    """Every side, in turns, after a short run of each."""
    calls = job.sides()
    found = {name: Side() for name in calls}
    for _, call in _cleared(job, calls):
        call(limit=4 * BATCH)
    for _ in range(repeats):
        for name, call in _cleared(job, calls):
            found[name].runs.append(call())
    return found


def _cleared(job: Job, calls: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, call in calls.items():
        emptied(job.site.device)
        yield name, call


def show(sides: dict[str, Side], rows: int) -> None:
    lines = []
    for name, side in sides.items():
        parts, done = side.best
        extract = f"{parts['extract to Parquet']:.2f}" if "extract to Parquet" in parts else "–"
        busy = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in done.stages.items())
        lines.append(
            [
                name,
                extract,
                f"{parts['train']:.2f}",
                f"{side.seconds:.2f}",
                f"{rows / side.seconds / 1e6:.2f}",
                f"{side.auc:.5f}",
                busy,
            ]
        )
    head = ["side", "extract to Parquet s", "plan, train, validate s", "total s", "M rows/s", "AUC"]
    report.table([*head, "trainer's stages, busy s"], lines)


@dataclass
class Busy:
    """How busy the GPU was over some epochs of training from memory."""

    epochs: int
    trained: Trained
    sampled: float | None
    profiled: tuple[float, float] | None

    @property
    def share(self) -> float:
        """nvidia-smi's, else the profiler's."""
        return self.sampled if self.sampled is not None else self.profiled[0] if self.profiled else math.nan

    def show(self) -> None:
        told = (
            "nvidia-smi gave too few samples" if self.sampled is None else f"GPU busy {self.sampled:.0%} by nvidia-smi"
        )
        done = self.trained
        print(f"{self.epochs} epochs from memory: {done.rows / done.seconds / 1e6:.2f} M rows/s trained, {told}")
        if self.profiled:
            alone, both = self.profiled
            print(f"torch's profiler, one epoch: kernels {alone:.0%} of their span, with copies {both:.0%}")
        print("busy seconds of stages: " + ", ".join(f"{name} {s:.2f}" for name, s in done.stages.items()))


def how_busy(job: Job, seconds: float = BUSY_SECONDS) -> Busy:
    """Epochs of training without validation, for at least so many seconds."""
    import ctrbox as cb

    plan = job.raw("from memory")

    def train_for(epochs: int, watch: Any) -> Trained:
        emptied(job.site.device)
        model = cb.models.DeepFM(plan.schema, dim=DIM, hidden=HIDDEN)
        trainer = cb.Trainer(model, job.site.table(), device=job.site.device)
        began = time.perf_counter()
        run = trainer.fit(plan, valid=0.0, batch_size=BATCH, seed=SEED, epochs=epochs, progress=watch)
        spent = time.perf_counter() - began
        stages = {stage["name"]: stage["seconds"] for stage in run.summary["stages"]}
        return Trained(spent, math.nan, run.summary["rows"]["train"], stages, run.summary["table"]["keys"])

    first = train_for(2, Moments())  # extractor and kernels are ready after it
    epochs = max(2, math.ceil(2 * seconds / first.seconds))
    sampled, trained = sampled_busy(train_for, epochs)
    return Busy(epochs, trained, sampled, profiled_busy(train_for))


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows, 1 run of each side")
    options.add_argument("--repeats", type=int, help="runs of each side: 3, or 1 with --quick")
    given = options.parse_args()
    if gpu.runtime_here(NAME) is None:
        return
    rows, room = (QUICK_ROWS, QUICK_ROOM) if given.quick else (ROWS, ROOM)
    root = extract_job.data(rows)
    work = report.ROOT / ".cache" / "bench" / "gpu-features"
    job = Job(root, extract_job.tables(root), gpu_site(room), work, os.cpu_count() or 1)
    repeats = given.repeats or (1 if given.quick else 3)
    print(f"{gpu.gpu_in_words()}\n{report.machine()}\ncommit {report.commit()}\n")
    sides = turns(job, repeats)
    ours, staged = sides["pipeline, from memory"], sides["staged, from memory"]
    keys = ours.best[1].keys
    hidden = "-".join(map(str, HIDDEN))
    print(f"DeepFM, dim {DIM}, hidden {hidden}, Adagrad, batches of {BATCH:,}, one epoch in log order, {keys:,} keys")
    print(f"{rows:,} raw rows; best of {repeats} runs in turns\n")
    show(sides, rows)
    print(f"\nthe staged job wrote {job.written / 1e9:.2f} GB, the pipeline nothing")
    busy = how_busy(job)
    busy.show()
    print()
    apart = abs(ours.auc - staged.auc)
    goals = {
        f"AUC of both sides within {SAME_AUC} ({apart:.5f} apart)": apart <= SAME_AUC,
        f"GPU busy at least {GOAL_BUSY:.0%} from memory": busy.share >= GOAL_BUSY,
        "the pipeline is faster than the staged job": ours.seconds < staged.seconds,
    }
    gpu.finish(
        NAME,
        goals,
        ours.seconds,
        {"staged": staged.seconds},
        "seconds, raw columns to validated model",
        more_is_better=False,
        quick=given.quick,
        rows=rows,
        auc={name: side.auc for name, side in sides.items()},
        seconds={name: [parts for parts, _ in side.runs] for name, side in sides.items()},
        stages={name: side.best[1].stages for name, side in sides.items()},
        written_bytes=job.written,
        busy={"nvidia-smi": busy.sampled, "profiler": busy.profiled},
        trained_rows_per_second=busy.trained.rows / busy.trained.seconds,
        keys=keys,
    )
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
