"""How long does a training step take on a GPU, beside torch's sparse Embedding with SGD?

python -m benchmarks.gpu_step [--quick] [--profile]

A step: 65,536 rows × 40 ids, dim 16, a table of 20M rows, a tower 640-512-256-1, forward, backward, both optimizers. Ids
are uniform, the worst case for caches. Ours starts from 64-bit keys and finds their rows in the hash table; torch starts
from row numbers. First both must move the same weights to the same place. Then they take turns, in three precisions of
the tower: float32, TF32 and bfloat16. Batches lie on the GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks import report
from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.engines.cuda.runtime import Runtime, cuda_runtime, why_not
from ctrbox.models.inputs import Inputs, Reads
from ctrbox.optimizers.of_table_rows import SGD, Adagrad, Optimizer
from ctrbox.train.learn_batch import Learner

DIM, HIDDEN, LR, GOAL = 16, (512, 256), 0.05, 2.0
PRECISIONS = ("float32", "tf32", "bf16")
UNIT = "ms a training step"


class Tower(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        first, second = HIDDEN
        self.layers = nn.Sequential(
            nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 1)
        )

    def forward(self, flat: torch.Tensor) -> torch.Tensor:
        return self.layers(flat).squeeze(1)


class Model(nn.Module):
    """The tower as our trainer runs it."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.reads = Reads(schema, DIM, pooling="sum", bf16=True)
        self.tower = Tower(self.reads.width)

    def forward(self, x: Inputs) -> torch.Tensor:
        return self.tower(x.flat)


@dataclass(frozen=True)
class World:
    """A table's keys, and batches as both tools read them."""

    keys: torch.Tensor  # (table rows,)
    batches: list[Batch]
    ids: list[torch.Tensor]  # (rows, fields): which of the keys
    labels: list[torch.Tensor]

    @staticmethod
    def of(device: torch.device, table: int, rows: int, fields: int, batches: int, seed: int = 0) -> World:
        random = torch.Generator(device).manual_seed(seed)
        keys = torch.randint(1, 2**63 - 1, (table,), generator=random, device=device)
        names = [f"f{k}" for k in range(fields)]
        schema = Schema(tuple(Field(name, name, False) for name in names), (), True, False, False)
        ones: Any = torch.arange(rows + 1, device=device)
        found: list[Batch] = []
        ids, labels = [], []
        for _ in range(batches):
            chosen = torch.randint(0, table, (fields, rows), generator=random, device=device)
            label = torch.randint(0, 2, (rows,), generator=random, device=device).float()
            values: Any = keys[chosen]  # field after field, as the CUDA engine leaves them
            sparse = {name: Ragged(values[k], ones) for k, name in enumerate(names)}
            empty: Any = torch.zeros(rows, 0, device=device)
            given: Any = label
            found.append(Batch(schema, rows, given, empty, sparse, None))
            ids.append(chosen.t().contiguous())
            labels.append(label)
        return World(keys, found, ids, labels)

    @property
    def rows(self) -> int:
        return self.batches[0].rows


class Ours:
    """The step of cb.Trainer."""

    def __init__(self, world: World, optimizer: Optimizer, runtime: Runtime, bf16: bool = False) -> None:
        self.world = world
        self.table = GpuTable(DIM, optimizer=optimizer, memory="64GB", rows=len(world.keys), seed=1, runtime=runtime)
        for part in world.keys.split(1 << 20):
            self.table.prefetch(part)
        self.learner = Learner(
            Model(world.batches[0].schema),
            world.batches[0].schema,
            self.table,
            lambda weights: torch.optim.SGD(weights, lr=LR),
            device=runtime.device,
            bf16=bf16,
            rows=world.rows,
        )

    def step(self, k: int) -> None:
        self.learner.learn(self.learner.look(self.world.batches[k]))

    def weights(self) -> list[torch.Tensor]:
        return [self.table.pull(self.world.keys), *self.learner.model.tower.parameters()]


class Torch:
    """nn.Embedding(sparse=True) and SGD."""

    def __init__(self, world: World, weights: torch.Tensor, bf16: bool = False) -> None:
        self.world, self.bf16 = world, bf16
        device = weights.device
        self.embedding = nn.Embedding.from_pretrained(weights, freeze=False, sparse=True)
        self.tower = Tower(world.ids[0].shape[1] * DIM).to(device)
        parameters = [*self.embedding.parameters(), *self.tower.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=LR)

    def step(self, k: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        flat = self.embedding(self.world.ids[k]).flatten(1)
        with torch.autocast(flat.device.type, torch.bfloat16, enabled=self.bf16):
            logits = self.tower(flat)
        loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), self.world.labels[k])
        loss.backward()
        self.optimizer.step()

    def weights(self) -> list[torch.Tensor]:
        return [self.embedding.weight, *self.tower.parameters()]


def table_sgd(rows: int) -> SGD:
    """Our tables see the gradient of the summed loss: this rate moves them as far as torch's."""
    return SGD(lr=LR / rows)


def check(runtime: Runtime) -> None:
    """Three steps on a small world in float32: the same weights."""
    torch.set_float32_matmul_precision("highest")
    world = World.of(runtime.device, table=2_000, rows=500, fields=6, batches=3)
    ours = Ours(world, table_sgd(500), runtime)
    peer = Torch(world, ours.weights()[0].clone())
    before = [w.detach().clone() for w in ours.weights()]
    for k in range(3):
        ours.step(k)
        peer.step(k)
    ours.learner.settle()
    for mine, theirs, start in zip(ours.weights(), peer.weights(), before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
        assert float((mine.detach() - start).abs().max()) > 0
    print("same weights after three steps, in the table and in the tower\n")


@dataclass
class Times:
    device: list[float] = field(default_factory=list)  # ms a step, between CUDA events
    wall: list[float] = field(default_factory=list)


def timed(step: Callable[[int], None], batches: int, steps: int) -> tuple[float, float]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    wall = time.perf_counter()
    begin.record()
    for k in range(steps):
        step(k % batches)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / steps, (time.perf_counter() - wall) / steps * 1e3


def precision(name: str) -> None:
    torch.set_float32_matmul_precision("highest" if name == "float32" else "high")


def bandwidth(device: torch.device) -> float:
    """Bytes a second of a plain copy, read and written."""
    source = torch.ones(1 << 28, device=device)
    target = torch.empty_like(source)

    def copy(_: int) -> None:
        target.copy_(source)

    best = min(timed(copy, 1, 10)[0] for _ in range(3))
    return 2 * source.nbytes / best * 1e3


def moved(references: int) -> int:
    """Bytes a step under SGD cannot avoid outside the tower (embed/gpu/pooling.py says of what)."""
    return references * (8 + 32 + 8 + 64 + 64 + 96 + 64 + 128)


def profile(ours: Ours, steps: int = 5) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        for k in range(steps):
            ours.step(k % len(ours.world.batches))
        torch.cuda.synchronize()
    print(found.key_averages().table(sort_by="self_device_time_total", row_limit=30, max_name_column_width=60))


def main() -> None:
    options = report.options(__doc__)
    options.add_argument(
        "--quick", action="store_true", help="a tenth of the table, a quarter of the rows, few repeats"
    )
    options.add_argument("--profile", action="store_true", help="kernels of our step by time")
    options.add_argument("--repeats", type=int)
    given = options.parse_args()
    missing = why_not()
    if missing:
        print(f"no figures: {missing}")
        report.finish(None, {}, UNIT, more_is_better=False, skipped=missing)
        return
    runtime = cuda_runtime()
    check(runtime)
    table, rows, repeats, steps = (2_000_000, 16_384, 3, 10) if given.quick else (20_000_000, 65_536, 7, 30)
    repeats = given.repeats or repeats
    world = World.of(runtime.device, table, rows, 40, 4)
    start = Ours(world, table_sgd(rows), runtime).weights()[0].clone()

    times: dict[str, Times] = {}
    for kind in PRECISIONS:
        precision(kind)
        tools: dict[str, Any] = {
            f"ctrbox SGD, {kind}": Ours(world, table_sgd(rows), runtime, kind == "bf16"),
            f"torch sparse Embedding + SGD, {kind}": Torch(world, start, kind == "bf16"),
        }
        if kind == "bf16":
            tools[f"ctrbox Adagrad, {kind}"] = Ours(world, Adagrad(lr=LR), runtime, True)
        for repeat in range(repeats + 1):
            for name, tool in tools.items():
                device, wall = timed(tool.step, len(world.batches), steps)
                if repeat:  # the first round warms up
                    times.setdefault(name, Times()).device.append(device)
                    times[name].wall.append(wall)
        if given.profile and kind == "tf32":
            profile(tools[f"ctrbox SGD, {kind}"])
        for tool in tools.values():
            if isinstance(tool, Ours):
                tool.learner.settle()
        del tools, tool

    best = {name: min(t.device) for name, t in times.items()}
    lines = []
    for name, t in times.items():
        kind = name.rsplit(", ", 1)[1]
        ratio = "" if name.startswith("ctrbox") else f"{best[name] / best[f'ctrbox SGD, {kind}']:.2f}×"
        middle = statistics.median(t.device)
        lines.append((name, f"{best[name]:.3f}", f"{middle:.3f}", f"{min(t.wall):.3f}", ratio))
    report.table([UNIT, "best", "median", "wall", "ours is"], lines)
    floor, copy = moved(rows * 40), bandwidth(runtime.device)
    print(
        f"\noutside the tower a step must move {floor / 1e9:.2f} GB: {floor / copy * 1e3:.3f} ms at the {copy / 1e12:.2f} TB/s "
        "of a plain copy\n"
    )
    peers = {n: t for n, t in best.items() if n.startswith("torch")}
    same = {n: round(t / best[n.replace("torch sparse Embedding + SGD", "ctrbox SGD")], 3) for n, t in peers.items()}
    report.finish(
        best["ctrbox SGD, tf32"],
        {n: t for n, t in peers.items() if n.endswith("tf32")},  # the same precision; the others are in same_precision
        UNIT,
        more_is_better=False,
        same_precision=same,
        ours_by_precision={n: round(t, 4) for n, t in best.items() if n.startswith("ctrbox")},
        gpu=torch.cuda.get_device_name(runtime.device),
        table_rows=table,
        rows=rows,
        floor_ms=round(floor / copy * 1e3, 4),
        goal=GOAL,
        met=same["torch sparse Embedding + SGD, tf32"] >= GOAL,
    )


if __name__ == "__main__":
    main()
