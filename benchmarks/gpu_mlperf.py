"""How fast does a GPU train DLRM-DCNv2 in the shape of MLPerf, and does it learn what plain torch modules learn?

    python -m benchmarks.gpu_mlperf [--quick] [--steps 2000] [--profile] [--only table|curve|step] [--compare]

The model of MLPerf's recommendation benchmark (v3.0 and later): 26 sparse fields with 214 ids a sample in total, summed, 13
dense columns, dim 128; a bottom tower 512-256-128, three cross layers of rank 512 over all 3,456 columns, a top tower
1024-1024-512-256-1. Row-wise Adagrad for the table and Adagrad for the network, which is computed in bfloat16. The five
tables of 40M rows are cut so that all rows together are the asked number (100M by default, MLPerf has 204M); ids are
log-uniform within a field. Batches lie on the GPU, and keys are found in the hash table.

Three parts. The curve: the same small world (200,000 rows) trained by ours and by torch modules whose table is one dense
tensor; losses of every step must agree, in float32 closely and in bfloat16 on average. The step: samples a second at
batches of 16,384 and 65,536, by events on the GPU. The table alone: keys found, pulled and updated a second, 64M rows of
dim 64, uniform keys; HierarchicalKV's published finds are printed beside them, measured by its authors on other machines.

``--compare`` measures the step alone, once for each way of computing the dense part (``WAYS``), over the same batches and from
the same weights. Before that come ten steps that hardly move the weights. Their losses must agree, and the gradients in the
first and the last of them must be about as near to gradients in float32 as those of torch's operators. On a GPU these steps
replay one recorded graph over different batches, so a kernel that is missing from the recording shows.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import gpu, report
from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.models import fused_layers
from ctrbox.models.inputs import Inputs, Reads
from ctrbox.models.mlp import MLP, Body
from ctrbox.models.products import LowRankCross
from ctrbox.optimizers.of_table_rows import RowwiseAdagrad
from ctrbox.train.learn_batch import Learner

NAME, UNIT = "gpu_mlperf", "million samples/s"
IDS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)  # a sample, by field
BIG = 40_000_000
ROWS_OF = (
    *(BIG, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, BIG, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4),
    *(976, 14, BIG, BIG, BIG, 590_152, 12_973, 108, 36),
)
DENSE = 13
GOAL = 2.2  # million samples a second, in both sizes of a batch
# What --compare checks: the losses of so many steps, and the gradients of the first and the last of them. The learning rates
# are multiplied by CHECKED_RATE, so that weights hardly move: Adagrad's first steps depend on the sign of each gradient alone,
# so at the full rates roundings make losses differ by 7 %, and at a hundredth of them gradients by 11 %, within ten steps.
CHECKED, CHECKED_RATE = 10, 1e-6
LOSSES_APART = 1e-3  # relative, at most, between ways of computing in bfloat16
FARTHER, MARGIN = 1.5, 0.01  # times as far from gradients in float32 as torch's operators, plus this margin, at most
GIBIBYTE = 1 << 30


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; the defaults are MLPerf's."""

    dim: int = 128
    bottom: tuple[int, ...] = (512, 256)
    rank: int = 512
    layers: int = 3
    top: tuple[int, ...] = (1024, 1024, 512, 256)


FULL, SMALL = Shape(), Shape(16, (32,), 16, 2, (64, 32))


def capped(rows: int) -> list[int]:
    """Rows of each field when the big tables are cut to make ``rows`` in all; small worlds cut others, too."""
    low, high = 1, BIG
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(min(n, middle) for n in ROWS_OF) <= rows else (low, middle - 1)
    return [min(n, low) for n in ROWS_OF]


class World:
    """Draws batches: log-uniform ids, and clicks that a hidden weight of each id and of each dense column decide."""

    def __init__(self, device: torch.device, rows: int, seed: int = 0) -> None:
        self.device, self.sizes = device, capped(rows)
        self.random = torch.Generator(device).manual_seed(seed)
        fields = [Field(f"f{k}", f"f{k}", ids > 1) for k, ids in enumerate(IDS)]
        self.schema = Schema(tuple(fields), tuple((f"d{k}", 1) for k in range(DENSE)), True, False, False)
        self.begins = [0, *np.cumsum(self.sizes).tolist()]  # of each field's ids among all rows

    def every_key(self) -> list[torch.Tensor]:
        """Every key of every field."""
        return [self._keys(k, torch.arange(n, device=self.device)) for k, n in enumerate(self.sizes)]

    def _keys(self, field: int, ids: torch.Tensor) -> torch.Tensor:
        return ids + ((field + 1) << 40)

    def draw(self, rows: int) -> Drawn:
        ids = []
        for size, many in zip(self.sizes, IDS, strict=True):
            uniform = torch.rand(rows * many, generator=self.random, device=self.device, dtype=torch.float64)
            ids.append((torch.exp(uniform * math.log(size + 1)).long() - 1).clamp(0, size - 1).view(rows, many))
        dense = torch.randn(rows, DENSE, generator=self.random, device=self.device)
        hidden = sum(_hidden(ids[k][:, 0] + self.begins[k]) for k in range(len(IDS)))
        logit = 0.5 * hidden + dense[:, 0] - 0.5 * dense[:, 1] - 1.0  # type: ignore[operator]
        drawn = torch.rand(rows, generator=self.random, device=self.device)
        label = (drawn < torch.sigmoid(logit)).float()
        # Values lie field after field, and offsets too, as the CUDA engine leaves them.
        values = torch.cat([self._keys(k, one.view(-1)) for k, one in enumerate(ids)])
        offsets = torch.cat([torch.arange(rows + 1, device=self.device) * many for many in IDS])
        parts, at = {}, 0
        for k, many in enumerate(IDS):
            ends: Any = offsets[k * (rows + 1) : (k + 1) * (rows + 1)]
            part: Any = values[at : at + rows * many]
            parts[f"f{k}"], at = Ragged(part, ends), at + rows * many
        given: tuple[Any, Any] = (label, dense)
        return Drawn(Batch(self.schema, rows, *given, parts, None), ids)


def _hidden(row: torch.Tensor) -> torch.Tensor:
    """A weight of about -1 to 1 that the number of a row decides."""
    return ((row * 2_654_435_761) % 65_536).float() / 32_768 - 1.0


@dataclass(frozen=True)
class Drawn:
    batch: Batch
    ids: list[torch.Tensor]  # by field (rows, ids a sample)


# ---- ours


class Dlrm(nn.Module):
    """DLRM-DCNv2 as a model of CTRBox."""

    def __init__(self, schema: Schema, shape: Shape) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reads = Reads(schema, shape.dim, pooling="sum", bf16=True)
        self.bottom = Body(DENSE, (*shape.bottom, shape.dim), dropout=0.0, batch_norm=False)
        self.cross = LowRankCross(self.reads.width + shape.dim, shape.layers, shape.rank)
        self.top = MLP(self.reads.width + shape.dim, (*shape.top, 1))

    def forward(self, x: Inputs) -> torch.Tensor:
        flat = x.flat
        x0 = torch.cat([self.bottom(x.dense).to(flat.dtype), flat], 1)
        return self.top(self.cross(x0)).squeeze(1)


def table_rate(rows: int) -> RowwiseAdagrad:
    """Our tables see the gradient of the summed loss; the mean's rate does not matter to Adagrad but through eps."""
    return RowwiseAdagrad(lr=0.005, eps=1e-8 * rows, initial=0.0)


def dense_optimizer(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(weights, lr=0.005, eps=1e-8)


# Ways of computing the dense part, by whether layers are fused (src/ctrbox/models/fused_layers.py).
WAYS = {"torch's operators": False, "fused layers": True}


class Ours:
    def __init__(
        self,
        world: World,
        shape: Shape,
        rows: int,
        runtime: Runtime,
        *,
        bf16: bool,
        memory: str,
    ) -> None:
        every = sum(world.sizes)
        self.table = GpuTable(
            shape.dim, optimizer=table_rate(rows), memory=memory, rows=every, seed=1, init=0.05, runtime=runtime
        )
        model = Dlrm(world.schema, shape)
        self.learner = Learner(
            model, world.schema, self.table, dense_optimizer, device=runtime.device, bf16=bf16, rows=rows
        )
        for keys in world.every_key():
            for part in keys.split(1 << 22):
                self.table.prefetch(part)

    def step(self, drawn: Drawn) -> None:
        self.learner.learn(self.learner.look(drawn.batch))


# ---- plain torch


class Torch:
    """The same model of torch's modules; its table is a dense tensor (rows, dim) with dense gradients."""

    def __init__(self, world: World, shape: Shape, ours: Ours, *, bf16: bool) -> None:
        self.world, self.bf16, self.dim = world, bf16, shape.dim
        self.table = torch.cat([ours.table.pull(keys) for keys in world.every_key()]).requires_grad_()
        self.states = torch.zeros(len(self.table), device=world.device)
        width = (len(IDS) + 1) * shape.dim
        towers = [(DENSE, *shape.bottom, shape.dim), (width, *shape.top, 1)]
        self.bottom, self.top = (_tower(widths, last) for widths, last in zip(towers, (True, False), strict=True))
        self.down = nn.ModuleList(nn.Linear(width, shape.rank, bias=False) for _ in range(shape.layers))
        self.up = nn.ModuleList(nn.Linear(shape.rank, width) for _ in range(shape.layers))
        self.parts = nn.ModuleList([self.bottom, self.top, self.down, self.up]).to(world.device)
        self._take(ours.learner.model)
        self.optimizer = dense_optimizer(self.parts.parameters())

    def _take(self, model: nn.Module) -> None:
        """The weights that ours begins with. Affine has them as (inputs, outputs), torch the other way round."""
        from ctrbox.models.mlp import Affine

        mine: list[nn.Linear] = []
        for part in (self.bottom, [*self.down, *self.up], self.top):
            mine += [layer for layer in part if isinstance(layer, nn.Linear)]
        theirs = [layer for layer in model.modules() if isinstance(layer, Affine)]
        with torch.no_grad():
            for to, from_ in zip(mine, theirs, strict=True):
                to.weight.copy_(from_.weight.t())
                if from_.bias is not None:
                    to.bias.copy_(from_.bias)

    def step(self, drawn: Drawn) -> torch.Tensor:
        self.table.grad = None
        self.optimizer.zero_grad(set_to_none=True)
        begins = self.world.begins
        pooled = [F.embedding_bag(ids + begins[k], self.table, mode="sum") for k, ids in enumerate(drawn.ids)]
        dense: Any = drawn.batch.dense
        label: Any = drawn.batch.label
        with torch.autocast(self.table.device.type, torch.bfloat16, enabled=self.bf16):
            x0 = torch.cat([self.bottom(dense), *pooled], 1)
            x = x0
            for down, up in zip(self.down, self.up, strict=True):
                x = x0 * up(down(x)) + x
            logits = self.top(x).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits.float(), label)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():  # row-wise Adagrad; a row without gradient stays as it is
            gradient = self.table.grad
            assert gradient is not None
            self.states += gradient.square().mean(1)
            root = self.states.sqrt() + 1e-8
            self.table -= 0.005 * gradient / root.unsqueeze(1)
        return loss.detach()


def _tower(widths: Sequence[int], activated: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if activated else layers[:-1]))


# ---- parts


@dataclass
class Curve:
    """Mean losses of windows of both sides, and the largest difference of a single step."""

    ours: list[float]
    torch: list[float]
    apart: float  # of one step, relative
    drift: float  # of the mean of the last quarter, relative


def curve(runtime: Runtime, shape: Shape, table: int, rows: int, steps: int, *, bf16: bool) -> Curve:
    """The losses of both over the same batches, every one drawn once."""
    torch.set_float32_matmul_precision("highest")
    world = World(runtime.device, table)
    ours = Ours(world, shape, rows, runtime, bf16=bf16, memory="8GB")
    peer = Torch(world, shape, ours, bf16=bf16)
    mine: list[float] = []
    heard: list[torch.Tensor] = []
    # A loss is heard of up to two steps later, so every step is settled before its loss is read.
    for _ in range(steps):
        drawn = world.draw(rows)
        ours.learner.last = None
        mine.append(ours.learner.learn(ours.learner.look(drawn.batch)))
        heard.append(peer.step(drawn))
    ours.learner.settle()
    theirs = [float(x) for x in heard]
    apart = max(abs(a - b) / b for a, b in zip(mine, theirs, strict=True))
    last = max(1, steps // 4)
    drift = abs(statistics.fmean(mine[-last:]) / statistics.fmean(theirs[-last:]) - 1.0)
    window = max(1, steps // 8)

    def windows(losses: list[float]) -> list[float]:
        return [statistics.fmean(losses[k : k + window]) for k in range(0, steps - window + 1, window)]

    return Curve(windows(mine), windows(theirs), apart, drift)


def timed(device: torch.device, work: Callable[[int], None], calls: int) -> float:
    """Milliseconds of a call, by events of a GPU, else by the host's clock."""
    if device.type != "cuda":
        began = time.perf_counter()
        for k in range(calls):
            work(k)
        return (time.perf_counter() - began) * 1e3 / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    for k in range(calls):
        work(k)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


@dataclass
class Step:
    """A size of batch: milliseconds of a step, best and median of rounds, and the kernels by time, where asked for."""

    rows: int
    best: float
    median: float
    profile: str = ""

    @property
    def rate(self) -> float:
        return self.rows / self.best / 1e3


def step_of(ours: Ours, world: World, rows: int, rounds: int, calls: int, *, profiled: bool) -> Step:
    batches = [world.draw(rows) for _ in range(4)]
    ours.learner.usual, ours.learner.graphed = (rows if world.device.type == "cuda" else None), None

    def work(k: int) -> None:
        ours.step(batches[k % len(batches)])

    timed(world.device, work, 4)  # kernels are chosen, the graph is recorded
    found = [timed(world.device, work, calls) for _ in range(rounds)]
    ours.learner.settle()
    return Step(rows, min(found), statistics.median(found), profile(work) if profiled else "")


@dataclass
class Compared:
    """A way: its losses and gradients while it learns from the first batches, and by size of batch milliseconds of a step."""

    losses: list[float]
    gradients: dict[str, torch.Tensor]  # of weights and vectors, in the first and the last step that are checked
    ms: dict[int, float]

    def losses_apart(self, other: Compared) -> float:
        """The largest difference of a step's loss, relative."""
        return max(abs(a / b - 1.0) for a, b in zip(self.losses, other.losses, strict=True))

    def from_exact(self, exact: dict[str, torch.Tensor]) -> dict[str, float]:
        """Return, by the name of a weight, the relative distance of its gradient from the gradient in float32."""
        pairs = [(name, self.gradients[name].float(), exact[name].float()) for name in exact]
        return {name: float((a - b).norm() / b.norm().clamp_min(1e-30)) for name, a, b in pairs}


def first_steps(ours: Ours, world: World, rows: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses of the first ``CHECKED`` steps, and the gradients of the first and the last of them."""
    losses: list[float] = []
    gradients: dict[str, torch.Tensor] = {}
    for k in range(CHECKED):
        ours.learner.last = None
        losses.append(ours.learner.learn(ours.learner.look(world.draw(rows).batch), CHECKED_RATE))
        if k in (0, CHECKED - 1):
            parts = dict(ours.learner.model.named_parameters())
            if world.device.type == "cuda":
                if ours.learner.graphed is None:
                    raise RuntimeError("the step could not be recorded")
                parts["pooled vectors"] = ours.learner.graphed.fed.vectors[0]
            for name, part in parts.items():
                assert part.grad is not None
                gradients[f"{name}, step {k + 1}"] = part.grad.detach().clone()
    return losses, gradients


def compared(world: World, runtime: Runtime, size: Size) -> tuple[dict[str, Compared], dict[str, torch.Tensor]]:
    """Every way of ``WAYS`` over the same batches, and gradients in float32; a way that fails is left out, with the reason
    printed."""
    usual = fused_layers.FUSED
    found: dict[str, Compared] = {}
    first = size.batches[0]
    world.random.manual_seed(1)
    ours = Ours(world, size.shape, first, runtime, bf16=False, memory="110GB")
    _, exact = first_steps(ours, world, first)
    del ours
    give_memory_back(runtime)
    try:
        for name, chosen in WAYS.items():
            fused_layers.FUSED = chosen
            world.random.manual_seed(1)
            try:
                ours = Ours(world, size.shape, first, runtime, bf16=True, memory="110GB")
                losses, gradients = first_steps(ours, world, first)
                ms = {
                    rows: step_of(ours, world, rows, size.rounds, size.calls, profiled=False).best
                    for rows in size.batches
                }
                found[name] = Compared(losses, gradients, ms)
            except Exception as error:  # whatever the driver, a library or torch raises, the other ways are measured
                first_line = (str(error).splitlines() or [""])[0]
                print(f"{name}: left out, {type(error).__name__}: {first_line}", flush=True)
            ours = None  # type: ignore[assignment]
            give_memory_back(runtime)
    finally:
        fused_layers.FUSED = usual
    return found, exact


def give_memory_back(runtime: Runtime) -> None:
    """Let go of a table that nothing refers to any more: two do not fit."""
    gc.collect()
    if runtime.device.type == "cuda":
        torch.cuda.empty_cache()


def report_compared(
    ways: dict[str, Compared], exact: dict[str, torch.Tensor], batches: Sequence[int], goals: dict[str, bool]
) -> dict[str, Any]:
    """Print the ways and whether they agree; add the goals, return the figures."""
    report.table(
        ["way", *(f"ms at {rows:,}" for rows in batches), *(f"M/s at {rows:,}" for rows in batches)],
        [
            [name, *(f"{ms:.3f}" for ms in way.ms.values()), *(f"{rows / ms / 1e3:.3f}" for rows, ms in way.ms.items())]
            for name, way in ways.items()
        ],
    )
    goals["every way runs"] = len(ways) == len(WAYS)
    facts: dict[str, Any] = {name: {"ms": way.ms, "losses": way.losses} for name, way in ways.items()}
    plain: dict[str, float] = {}
    for name, way in ways.items():
        far = way.from_exact(exact)
        worst = max(far, key=far.__getitem__)
        print(f"{name}: losses of {CHECKED} steps {', '.join(f'{x:.5f}' for x in way.losses)}")
        print(f"{name}: gradients at most {far[worst]:.1e} from those in float32 ({worst})")
        facts[name]["gradients from float32"] = far
        if not plain:
            plain = far
            continue
        losses = way.losses_apart(next(iter(ways.values())))
        ratio, worst = max(((far[n] - MARGIN) / max(plain[n], 1e-30), n) for n in far)
        print(f"{name}: losses apart {losses:.1e}; gradients at most {ratio:.2f} times as far, plus {MARGIN} ({worst})")
        goals[f"{name}: losses agree with torch's operators"] = losses < LOSSES_APART
        goals[f"{name}: gradients are as exact as those of torch's operators"] = ratio < FARTHER
    print()
    return facts


def profile(work: Callable[[int], None], steps: int = 4) -> str:
    """Kernels by their time on the GPU, over so many steps."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as found:
        for k in range(steps):
            work(k)
        torch.cuda.synchronize()
    return str(found.key_averages().table(sort_by="self_device_time_total", row_limit=40, max_name_column_width=90))


def table_alone(runtime: Runtime, rows: int, dim: int, many: int) -> dict[str, float]:
    """Billions of keys a second: found, pulled, updated. ``many`` uniform keys of a table of ``rows``, all of them there."""
    device = runtime.device
    table = GpuTable(dim, optimizer=RowwiseAdagrad(lr=0.01), memory="64GB", rows=rows, runtime=runtime)
    for first in range(0, rows, 1 << 22):
        table.prefetch(torch.arange(first + 1, min(rows, first + (1 << 22)) + 1, device=device) * 0x9E3779B97F4A7)
    random = torch.Generator(device).manual_seed(1)
    chosen = [torch.randint(1, rows + 1, (many,), generator=random, device=device) * 0x9E3779B97F4A7 for _ in range(4)]
    gradients = torch.full((many, dim), 1e-3, device=device)

    def rate(work: Callable[[int], Any]) -> float:
        timed(device, work, 2)
        return many / min(timed(device, work, 8) for _ in range(3)) / 1e6

    return {
        "find": rate(lambda k: table.store.find(chosen[k % 4], create=False)),
        "pull": rate(lambda k: table.pull(chosen[k % 4], create=False)),
        "push": rate(lambda k: table.push(chosen[k % 4], gradients)),
    }


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    shape: Shape
    rows: int  # of the table
    batches: tuple[int, ...]
    rounds: int
    calls: int
    curve: tuple[int, int, int]  # rows of the table, rows of a batch, steps
    table: tuple[int, int, int]  # rows, dim, keys of a call


FULL_SIZE = Size(FULL, 100_000_000, (16_384, 65_536), 7, 20, (200_000, 2_048, 2_000), (64_000_000, 64, 1 << 20))
QUICK_SIZE = Size(FULL, 10_000_000, (16_384, 65_536), 3, 10, (50_000, 1_024, 200), (8_000_000, 64, 1 << 20))


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="10M rows, 200 steps of the curve, fewer rounds")
    options.add_argument("--rows", type=int, help="rows of the table of the step")
    options.add_argument("--steps", type=int, help="steps of the curve")
    options.add_argument("--profile", action="store_true", help="kernels of a step by time")
    options.add_argument("--only", choices=("table", "curve", "step"), help="one part")
    options.add_argument("--compare", action="store_true", help="the step alone, by each way of computing it")
    given = options.parse_args()
    runtime = gpu.runtime_here(NAME)
    if runtime is None:
        return
    size = QUICK_SIZE if given.quick else FULL_SIZE
    parts = (given.only,) if given.only else ("curve", "step", "table")
    parts = () if given.compare else parts
    goals: dict[str, bool] = {}
    facts: dict[str, Any] = {}
    print(f"{gpu.gpu_in_words()}\n{report.machine()}\ncommit {report.commit()}\n")
    if "curve" in parts:
        table, rows, steps = size.curve
        for bf16 in (False, True):
            found = curve(runtime, size.shape, table, rows, given.steps or steps, bf16=bf16)
            kind = "bfloat16" if bf16 else "float32"
            facts[f"curve {kind}"] = vars(found)
            print(
                f"losses in {kind}, {table:,} rows, batches of {rows:,}, means of eighths of {given.steps or steps} steps"
            )
            report.table(
                ["", *map(str, range(1, len(found.ours) + 1))],
                [
                    [side, *(f"{x:.5f}" for x in losses)]
                    for side, losses in (("ours", found.ours), ("torch", found.torch))
                ],
            )
            print(
                f"largest difference of a step {found.apart:.2e}, of the mean of the last quarter {found.drift:.2e}\n"
            )
            goals[f"losses in {kind} agree with torch modules"] = found.drift < (1e-2 if bf16 else 2e-3)
    if given.compare:
        ways, exact = compared(World(runtime.device, given.rows or size.rows), runtime, size)
        facts["ways"] = report_compared(ways, exact, size.batches, goals)
    steps_found: list[Step] = []
    if "step" in parts:
        world = World(runtime.device, given.rows or size.rows)
        ours = Ours(world, size.shape, size.batches[0], runtime, bf16=True, memory="110GB")
        for rows in size.batches:
            steps_found.append(
                step_of(
                    ours, world, rows, size.rounds, size.calls, profiled=given.profile and runtime.device.type == "cuda"
                )
            )
        print(f"a step of DLRM-DCNv2, {sum(world.sizes):,} rows of dim {size.shape.dim}, {len(ours.table):,} keys")
        report.table(
            ["batch", "best ms", "median ms", "M samples/s", "G ids/s"],
            [
                [f"{s.rows:,}", f"{s.best:.3f}", f"{s.median:.3f}", f"{s.rate:.3f}", f"{s.rate * sum(IDS) / 1e3:.3f}"]
                for s in steps_found
            ],
        )
        print("published: 15.2 M samples/s by 8 H200 in MLPerf v4.0, 1.9 M a GPU, reading and exchange included\n")
        for s in steps_found:
            if s.profile:
                print(f"kernels of 4 steps of {s.rows:,} samples\n{s.profile}")
            goals[f"{GOAL} M samples/s at {s.rows:,}"] = s.rate >= GOAL
        del ours
    if "table" in parts:
        if runtime.device.type == "cuda":
            torch.cuda.empty_cache()
        rows, dim, many = size.table
        facts["table"] = table_alone(runtime, rows, dim, many)
        print(f"the table alone: {rows:,} rows of dim {dim}, {many:,} uniform keys a call, G keys/s")
        report.table(["find", "pull", "push"], [[f"{x:.2f}" for x in facts["table"].values()]])
        print("HierarchicalKV, published: finds 2.0 on an A100, 3.9 on an H100\n")
    gpu.finish(
        NAME,
        goals,
        min((s.rate for s in steps_found), default=None),
        {"MLPerf v4.0, an H200 of eight": 1.9},
        UNIT,
        quick=given.quick,
        steps={str(s.rows): {"best_ms": s.best, "median_ms": s.median, "rate": s.rate} for s in steps_found},
        **json.loads(json.dumps(facts)),
    )


if __name__ == "__main__":
    main()
