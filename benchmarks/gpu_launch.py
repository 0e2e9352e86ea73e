"""What does a launch cost, and what is a layer of 40 crosses worth as one kernel?

    python -m benchmarks.gpu_launch [--quick]

Three questions. How long do 1 to 10,000 launches of an empty kernel take, from Python, from a loop in C and as a replayed
graph? How long does a layer of 40 crosses take on 4,096 rows, with one launch an operator and as the meta-kernel that the
engine generates? Which share of the copy bandwidth does that kernel reach on a million rows? The answers of all kernels
are checked against NumPy first. Kernels of the small layer take turns on registers that together do not fit the cache.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks import gpu, report

NAME = "gpu_launch"
COUNTS = [1, 10, 100, 1_000, 10_000]
PAPER_US = {1: 4, 10: 35, 100: 360, 1_000: 3_619, 10_000: 34_515}  # FeatureBox, table 1: a V100, from C
CROSSES, COLUMNS = 40, 80
SMALL, LARGE = 4_096, 1 << 20  # rows
GROUPS = [1, 2, 4, 8, 16, 40]  # operators of a plain group
CACHE = 60 << 20  # L2 of an H200
GOAL_TIMES, GOAL_SHARE = 50.0, 0.85
EMPTY = 'extern "C" __global__ void empty(const void*, const void*, const void*, const void*, const void*) {}\n'
LOOP = r"""
typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
extern "C" int launch_all(Launch launch, void** kernels, unsigned count, unsigned x, unsigned y, unsigned block,
                          void* stream, unsigned long long* args, unsigned given) {
  void* places[8];
  for (unsigned k = 0; k < given; ++k) places[k] = args + k;
  int wrong = 0;
  for (unsigned k = 0; k < count && !wrong; ++k) wrong = launch(kernels[k], x, y, 1, block, 1, 1, 0, stream, places, 0);
  return wrong;
}
"""


# ---- launches from C -------------------------------------------------------------------------------------------------


class Loop:
    """Launches in a loop of C: what a launch costs where no interpreter stands before it."""

    def __init__(self) -> None:
        compiler = shutil.which("c++") or shutil.which("g++")
        if compiler is None:
            raise OSError("there is no C++ compiler")
        folder = Path(tempfile.mkdtemp(prefix="ctrbox-loop-"))
        (folder / "loop.cpp").write_text(LOOP)
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(folder / "loop.so"), str(folder / "loop.cpp")]
        subprocess.run(command, check=True, capture_output=True)
        self.library = ctypes.CDLL(str(folder / "loop.so"))
        self.launch = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p)

    def of(self, kernels: list[Any], grid: tuple[int, int], block: int, args: list[int]) -> gpu.Work:
        """A call that launches these kernels, one after the other, on the stream that is current now."""
        handles = (ctypes.c_void_p * len(kernels))(*(int(k.kernel.handle) for k in kernels))
        given = (ctypes.c_uint64 * 8)(*args)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

        def call() -> None:
            wrong = self.library.launch_all(
                self.launch, handles, len(kernels), *grid, block, stream, given, ctypes.c_uint(len(args))
            )
            if wrong:
                raise RuntimeError(f"cuLaunchKernel says {wrong}")

        return call


def loop_here(runtime: Any) -> Loop | None:
    """The loop, where it can be built and can launch."""
    kernel = empty_kernel(runtime)
    try:
        loop = Loop()
        loop.of([kernel], (1, 1), runtime.threads, [0] * 5)()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"launches from C are left out: {error}")
        return None
    return loop


# ---- empty kernels ---------------------------------------------------------------------------------------------------


def empty_kernel(runtime: Any) -> Any:
    return runtime.compile(EMPTY, ["empty"], name="empty")["empty"]


def empty_launches(runtime: Any, clock: gpu.Clock, counts: list[int], loop: Loop | None) -> list[dict[str, float]]:
    """Microseconds of so many launches, until the last is done."""
    kernel = empty_kernel(runtime)
    found = []
    for count in counts:

        def plain(times: int = count) -> None:
            for _ in range(times):
                kernel((1, 1), runtime.threads, 0, 0, 0, 0, 0)

        rounds = 3 if count >= 10_000 else 7
        row: dict[str, float] = {"launches": count, "python": clock.wall(plain, 1, rounds) * 1e3}
        if loop is not None:
            row["c"] = clock.wall(loop.of([kernel] * count, (1, 1), runtime.threads, [0] * 5), 1, rounds) * 1e3
        row["graph"] = clock.wall(clock.replayed(plain), 1, rounds) * 1e3
        found.append(row)
    return found


def show_launches(rows: list[dict[str, float]]) -> None:
    def cell(row: dict[str, float], name: str) -> str:
        return f"{row[name]:,.1f}" if name in row else "–"

    lines = [
        [
            f"{int(r['launches']):,}",
            *(cell(r, n) for n in ("python", "c", "graph")),
            f"{PAPER_US[int(r['launches'])]:,}",
        ]
        for r in rows
        if int(r["launches"]) in PAPER_US
    ]
    report.table(["launches of an empty kernel", "Python µs", "C µs", "graph µs", "paper, V100 µs"], lines)


# ---- a layer of crosses ----------------------------------------------------------------------------------------------


def fold(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a cross is, in NumPy."""
    x = a * np.uint64(0x9E3779B97F4A7C15) ^ b
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xE9846AF9B1A615D)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xE9846AF9B1A615D)
    return x ^ x >> np.uint64(28)


@functools.cache
def keys_of(rows: int) -> np.ndarray:
    """(columns, rows) random keys."""
    return np.random.default_rng(1).integers(0, 2**64, (COLUMNS, rows), dtype=np.uint64)


@functools.cache
def truth_of(rows: int) -> np.ndarray:
    """(crosses, rows): what the layer must give for them."""
    keys = keys_of(rows)
    return np.stack([fold(keys[2 * k], keys[2 * k + 1]) for k in range(CROSSES)])


@dataclass
class Crosses:
    """A chunk whose second layer is the crosses: fused, and once more with a kernel for each."""

    chunk: gpu.Chunk
    keys: list[Any]  # registers of the results
    slots: list[Any]  # to take turns
    single: list[Any]  # one kernel an operator
    truth: torch.Tensor  # (crosses, rows) int64, on the device

    def fused(self, slot: Any) -> None:
        self.chunk.launch("layer_1", slot)

    def one_by_one(self, slot: Any) -> None:
        device, place = self.chunk.device, slot.record.data_ptr()
        for kernel in self.single:
            kernel((device.tiles, 1), device.runtime.threads, place, device.tiles, 0)

    def turns(self, work: Callable[[Any], None]) -> gpu.Work:
        """Each call takes the next slot."""
        order = itertools.cycle(self.slots)
        return lambda: work(next(order))

    def results(self, slot: Any) -> list[torch.Tensor]:
        """The registers of the results, all rows that they have room for."""
        device = self.chunk.device
        slab = slot.keep[0] if slot.keep else device.slab
        return [slab[r.at * device.capacity : (r.at + 8) * device.capacity].view(torch.int64) for r in self.keys]

    def wrong(self, slot: Any) -> int:
        """How many results differ from NumPy's."""
        rows = self.truth.shape[1]
        return sum(int((r[:rows] != t).sum()) for r, t in zip(self.results(slot), self.truth, strict=True))

    def blank(self, slot: Any) -> None:
        for register in self.results(slot):
            register.zero_()


def crosses(runtime: Any, rows: int, group: int, copies: int) -> Crosses:
    """The layer over random keys, `group` operators a group, with `copies` slots whose first layer has run."""
    from ctrbox.engines.cuda import kernel_source as generator
    from ctrbox.engines.cuda.program import Output, Recorded

    columns = keys_of(rows)
    batch = pa.RecordBatch.from_arrays([pa.array(c.view(np.int64)) for c in columns], [f"k{k}" for k in range(COLUMNS)])
    program = Recorded()
    loaded = [program.load(0, k, "k", False, f"k{k}") for k in range(COLUMNS)]
    made = [
        program.call("cross", "k,k", loaded[2 * k : 2 * k + 2], ["k"], [False], [], [], [], None, False)[0]
        for k in range(CROSSES)
    ]
    for number, register in enumerate(made):
        program.emit(number, register)
    outputs = [Output("keys", program.registers[r]) for r in made]
    usual, generator.PLAIN = generator.PLAIN, group
    try:
        chunk = gpu.chunk_of(runtime, program, outputs, batch)
    finally:
        generator.PLAIN = usual
    layer = chunk.device.layout.layers[1]
    names = [f"cross_{k}" for k in range(CROSSES)]
    own = generator.Source(chunk.device.layout)
    text = own.text().partition('extern "C"')[0]
    for name, instruction in zip(names, layer.code, strict=True):
        text += own.kernel(name, layer.phase, [f"      if (!live) return;\n{own.plain(instruction, layer)}"])
    compiled = runtime.compile(text, names, name="single")
    slots = [chunk.slot, *(chunk.again() for _ in range(copies - 1))]
    for slot in slots:
        chunk.launch("layer_0", slot)
    keys = [program.registers[r] for r in made]
    truth = torch.from_numpy(truth_of(rows).view(np.int64)).to(runtime.device)
    return Crosses(chunk, keys, slots, [compiled[n] for n in names], truth)


def checked(layer: Crosses) -> int:
    """Both ways against NumPy, on the first and the last slot; the number of values compared."""
    compared = 0
    for work in (layer.one_by_one, layer.fused):
        for slot in {id(s): s for s in (layer.slots[0], layer.slots[-1])}.values():
            layer.blank(slot)
            work(slot)
            wrong = layer.wrong(slot)
            if wrong:
                raise SystemExit(f"{work.__name__}: {wrong:,} of {CROSSES * layer.truth.shape[1]:,} crosses are wrong")
            compared += CROSSES * layer.truth.shape[1]
    return compared


def small_layer(runtime: Any, clock: gpu.Clock, rows: int, groups: list[int], loop: Loop | None) -> dict[str, Any]:
    """Milliseconds of the layer, launched and inside a graph, by group size; and of one launch an operator."""
    copies = 2 + CACHE // (rows * 8 * (COLUMNS + CROSSES))
    fused: dict[int, dict[str, float]] = {}
    single: dict[str, float] = {}
    compared = 0
    for group in groups:
        layer = crosses(runtime, rows, group, copies)
        compared += checked(layer)
        many = len(layer.slots)

        def all_slots(work: Callable[[Any], None], made: Crosses = layer) -> None:
            for slot in made.slots:
                work(slot)

        work = layer.turns(layer.fused)
        kernel = layer.chunk.kernels["layer_1"]
        fused[group] = {
            "wall": clock.wall(work, 200),
            "events": clock.gpu(work, 200),
            "graph": clock.gpu(clock.replayed(lambda f=layer.fused: all_slots(f)), 20) / many,
            "registers": kernel.registers,
        }
        if single:
            continue
        work = layer.turns(layer.one_by_one)
        single = {
            "wall": clock.wall(work, 20),
            "events": clock.gpu(work, 20),
            "graph": clock.gpu(clock.replayed(lambda f=layer.one_by_one: all_slots(f)), 20) / many,
        }
        if loop is not None:
            device = layer.chunk.device
            args = [layer.slots[0].record.data_ptr(), device.tiles, 0]
            single["c"] = clock.wall(loop.of(layer.single, (device.tiles, 1), runtime.threads, args), 20)
    return {"fused": fused, "single": single, "compared": compared}


def large_layer(runtime: Any, clock: gpu.Clock, rows: int, groups: list[int]) -> dict[int, float]:
    """Milliseconds of the layer by group size."""
    found = {}
    for group in groups:
        layer = crosses(runtime, rows, group, 1)
        checked(layer)
        found[group] = clock.gpu(layer.turns(layer.fused), 10)
    return found


def show_small(small: dict[str, Any], rows: int) -> None:
    single, fused = small["single"], small["fused"]

    def line(name: str, times: dict[str, float]) -> list[str]:
        return [name, *(f"{times[k] * 1e3:,.1f}" if k in times else "–" for k in ("wall", "events", "graph"))]

    lines = [line("one launch an operator", single)]
    if "c" in single:
        lines.append(["one launch an operator, from C", f"{single['c'] * 1e3:,.1f}", "–", "–"])
    for group, times in fused.items():
        blocks = -(-CROSSES // group)
        lines.append(line(f"fused, {blocks} groups of {group}, {times['registers']} registers", times))
    head = [f"{CROSSES} crosses of {rows:,} rows", "wall µs", "events µs", "in a graph µs"]
    report.table(head, lines)


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="up to 1,000 launches, three group sizes")
    options.add_argument("--rows", type=int, default=LARGE, help="of the large layer")
    given = options.parse_args()
    runtime = gpu.runtime_here(NAME)
    if runtime is None:
        return
    clock = gpu.Clock(runtime.device)
    counts = COUNTS[:4] if given.quick else COUNTS
    groups = [1, 4, 16] if given.quick else GROUPS
    print(f"{gpu.gpu_in_words()}\ncommit {report.commit()}\n")
    loop = loop_here(runtime)
    launches = empty_launches(runtime, clock, counts, loop)
    show_launches(launches)
    small = small_layer(runtime, clock, SMALL, groups, loop)
    print(f"\n{small['compared']:,} crosses agree with NumPy")
    show_small(small, SMALL)
    copy = clock.copy_gbs()
    large = large_layer(runtime, clock, given.rows, groups)
    moved = 8 * (COLUMNS + CROSSES) * given.rows
    shares = {group: moved / ms / 1e6 / copy for group, ms in large.items()}
    lines = [
        [f"{g} operators a group", f"{ms:.3f}", f"{moved / ms / 1e6:,.0f}", f"{shares[g]:.1%}"]
        for g, ms in large.items()
    ]
    print()
    head = [f"{CROSSES} crosses of {given.rows:,} rows", "ms", "GB/s", f"of the copy's {copy:,.0f} GB/s"]
    report.table(head, lines)

    single, fused = small["single"], small["fused"]
    best = min(fused, key=lambda g: fused[g]["graph"])
    times = {
        "both in a graph": single["graph"] / fused[best]["graph"],
        "both launched from Python": single["wall"] / min(f["wall"] for f in fused.values()),
        "single launches against the engine's graph": single["wall"] / fused[best]["graph"],
    }
    print(f"\nfused is faster by: {', '.join(f'{name} {t:.1f} ×' for name, t in times.items())}")
    share = max(shares.values())
    goals = {
        f"a layer of {CROSSES} crosses {GOAL_TIMES:g} × faster": times["both in a graph"] >= GOAL_TIMES,
        f"{GOAL_SHARE:.0%} of the copy bandwidth": share >= GOAL_SHARE,
    }
    gpu.finish(
        NAME,
        goals,
        fused[best]["graph"],
        {"one launch an operator, in a graph": single["graph"], "one launch an operator, from Python": single["wall"]},
        "ms, a layer of 40 crosses of 4,096 rows",
        more_is_better=False,
        quick=given.quick,
        launches_us=launches,
        small_ms={"single": single, "fused": fused},
        times=times,
        large_ms=large,
        copy_gbs=copy,
        copy_shares=shares,
        best_group={"small": best, "large": max(shares, key=lambda g: shares[g])},
    )


if __name__ == "__main__":
    main()
