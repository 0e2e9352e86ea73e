"""What do three levels cost? The ad log with a table several times larger than the GPU memory it gets, and than its ram.

    python -m benchmarks.levels [--quick] [--epochs 2] [--folder DIR]

The same DeepFM, the same batches in the order of the log: with all rows on the GPU (`GpuTable`); with three levels
(`LevelTable` over a `SparseTable`: a quarter of the rows' bytes as GPU memory, a half as ram, the rest on the SSD); with two
(the same, and ram for all rows); and with the Sparse Table of three trained by the CPU. Seconds of each epoch, what the
levels were asked for, what of the time is the Sparse Table's, and whether those on the GPU end with the same weights, bit
for bit. In the first epoch every row is made; in the second all of them come back.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import extract_job, gpu, overlap, report

NAME = "levels"
ROWS, QUICK_ROWS = 2_000_000, 200_000
BATCH, QUICK_BATCH = 8_192, 1_024
DIM, HIDDEN = 16, (256, 128)
GPU_SHARE, RAM_SHARE = 1 / 4, 1 / 2


@dataclass
class Side:
    """One way to train: seconds of epochs and busy ones of their stages, and where it ends."""

    seconds: list[float] = field(default_factory=list)
    stages: list[dict[str, float]] = field(default_factory=list)
    weights: dict[str, bytes] = field(default_factory=dict)


def train(job: Any, table: Any, device: torch.device, batch: int, epochs: int, seen: Callable[[], Any]) -> Side:
    """``seen`` is called behind every epoch."""
    import ctrbox as cb
    from ctrbox.optimizers.of_dense_weights import dense_optimizer
    from ctrbox.train.learn_batch import Learner

    torch.manual_seed(0)
    model = cb.models.DeepFM(job.schema, dim=DIM, hidden=HIDDEN)
    learner = Learner(model, job.schema, table, dense_optimizer(cb.optim.Adam()), device=device, rows=batch)
    done = Side()
    for _ in range(epochs):
        began = time.perf_counter()
        clocks = overlap.run(job, learner, True, batch)
        learner.settle()
        done.seconds.append(time.perf_counter() - began)
        done.stages.append({name: clock.busy for name, clock in clocks.items()})
        seen()
    done.weights = {name: value.cpu().numpy().tobytes() for name, value in learner.model.state_dict().items()}
    for name, array in zip(("keys", "values", "states"), table.export(), strict=True):
        done.weights[name] = array.tobytes()
    return done


@dataclass
class Question:
    """The three sides over one log."""

    runtime: Any
    on_gpu: Any
    on_cpu: Any
    batch: int
    epochs: int
    folder: Path

    def leveled(self, name: str, memory: int, ram: int, shape: dict[str, Any], facts: dict[str, Any]) -> Side:
        """With rows on the GPU and below."""
        import ctrbox as cb

        with cb.SparseTable(self.folder / name, DIM, ram=ram, **shape) as below:
            table = cb.tables.LevelTable(below, memory=memory, runtime=self.runtime)
            spent: dict[str, float] = {"read": 0.0, "write": 0.0}
            for call in spent:
                setattr(below, call, timed(getattr(below, call), spent, call))
            stats: list[dict[str, Any]] = []
            device = self.runtime.device
            side = train(
                self.on_gpu, table, device, self.batch, self.epochs, lambda: stats.append({**table.stats(), **spent})
            )
            facts[name], facts[f"{name}, below"] = stats, below.stats()
        return side

    def ask(self) -> tuple[dict[str, Side], dict[str, Any]]:
        import ctrbox as cb

        device, cpu = self.runtime.device, torch.device("cpu")
        shape: dict[str, Any] = {"optimizer": cb.Adagrad(lr=0.05), "seed": 1}
        sides: dict[str, Side] = {}

        def nothing() -> None: ...

        # Kernels are compiled and the extractor is ready behind one epoch.
        train(
            self.on_gpu,
            cb.tables.GpuTable(DIM, memory="16GB", runtime=self.runtime, **shape),
            device,
            self.batch,
            1,
            nothing,
        )
        table = cb.tables.GpuTable(DIM, memory="16GB", runtime=self.runtime, **shape)
        sides["all on the GPU"] = train(self.on_gpu, table, device, self.batch, self.epochs, nothing)
        keys = len(table)
        row = 8 + 4 * table.store.kernels.file_floats
        needed = keys * row
        del table
        facts: dict[str, Any] = {
            "keys": keys,
            "table_bytes": needed,
            "gpu_memory": int(needed * GPU_SHARE),
            "ram": int(needed * RAM_SHARE),
        }
        memory, ram = facts["gpu_memory"], facts["ram"]
        sides["three levels"] = self.leveled("three levels", memory, ram, shape, facts)
        sides["two levels"] = self.leveled("two levels", memory, 3 * needed, shape, facts)
        with cb.SparseTable(self.folder / "cpu", DIM, ram=facts["ram"], **shape) as sparse:
            sides["Sparse Table, CPU"] = train(self.on_cpu, sparse, cpu, self.batch, self.epochs, nothing)
        return sides, facts


def show(sides: dict[str, Side], facts: dict[str, Any], rows: int) -> None:
    epochs = range(len(next(iter(sides.values())).seconds))
    lines = []
    for name, side in sides.items():
        busy = ", ".join(f"{stage} {s:.2f}" for stage, s in side.stages[-1].items())
        lines.append([name, *(f"{s:.2f}" for s in side.seconds), f"{rows / side.seconds[-1]:,.0f}", busy])
    report.table(["", *(f"epoch {k + 1} s" for k in epochs), "rows/s, last", "stages of the last, busy s"], lines)
    for name in ("three levels", "two levels"):
        print(f"\n{name}")
        lines, before = [], dict.fromkeys(facts[name][0], 0)
        for k, stats in enumerate(facts[name]):
            d = {what: stats[what] - before[what] for what in before}
            counts = [f"{d[what]:,}" for what in ("asked", "brought", "left", "written", "late")]
            rate = f"{1 - d['brought'] / d['asked']:.1%}"
            lines.append([str(k + 1), *counts, rate, f"{d['read']:.2f}", f"{d['write']:.2f}"])
            before = stats
        heads = [
            "epoch",
            "keys asked",
            "brought",
            "left",
            "written",
            "batches late",
            "GPU hit rate",
            "read s",
            "write s",
        ]
        report.table(heads, lines)


def timed(call: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    def wrapped(*given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*given, **named)
        finally:
            spent[name] += time.perf_counter() - began

    return wrapped


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows in batches of {QUICK_BATCH:,}")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument(
        "--folder", type=Path, help="where the tables lie; a temporary folder of this disk unless told"
    )
    given = options.parse_args()
    runtime = gpu.runtime_here(NAME)
    if runtime is None:
        return
    rows, batch = (QUICK_ROWS, QUICK_BATCH) if given.quick else (ROWS, BATCH)
    root = extract_job.data(rows)
    memory = extract_job.tables(root)
    folder = Path(tempfile.mkdtemp(prefix="levels-", dir=given.folder or report.ROOT / ".cache"))
    jobs = [extract_job.plan(root, memory=memory, device=device) for device in ("cuda", "cpu")]
    try:
        sides, facts = Question(runtime, *jobs, batch, given.epochs, folder).ask()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{gpu.gpu_in_words()}\n{report.machine()}\ncommit {report.commit()}\n")
    hidden = "-".join(map(str, HIDDEN))
    print(f"{rows:,} rows, DeepFM, dim {DIM}, hidden {hidden}, Adagrad, batches of {batch:,}")
    sizes = ", ".join(f"{what} {facts[name]:,}" for what, name in (("GPU memory", "gpu_memory"), ("ram", "ram")))
    print(f"{facts['keys']:,} keys, {facts['table_bytes']:,} bytes of rows; {sizes}\n")
    show(sides, facts, rows)
    alone = sides["all on the GPU"].weights
    same = all(sides[name].weights == alone for name in ("three levels", "two levels"))
    print()
    gpu.finish(
        NAME,
        {"levels end with the weights of a table on the GPU, bit for bit": same},
        sides["three levels"].seconds[-1],
        {name: side.seconds[-1] for name, side in sides.items() if name != "three levels"},
        "seconds of the last epoch",
        more_is_better=False,
        seconds={name: side.seconds for name, side in sides.items()},
        stages={name: side.stages for name, side in sides.items()},
        quick=given.quick,
        rows=rows,
        **facts,
    )


if __name__ == "__main__":
    main()
