"""What the benchmarks of the GPU share: whether there is one, clocks, its limits, a chunk to run kernels over.

Times are medians of rounds. `Clock.gpu` is the time between two events on the GPU; what the host takes to launch shows in
it where the GPU waits for the host. `Clock.wall` is the host's, until the GPU is done. On another device than CUDA both
are the host's, so that the logic of a benchmark can be tried without a GPU.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from benchmarks import report

Work = Callable[[], Any]


def runtime_here(name: str) -> Any:
    """The GPU's runtime, or None after saying why there is none: one line, then the JSON that every benchmark ends with."""
    from ctrbox.engines.cuda.runtime import cuda_runtime, why_not

    missing = why_not()
    if not missing:
        return cuda_runtime()
    print(f"{name} needs a GPU: {missing}")
    print(json.dumps({"benchmark": name, "skipped": missing}))
    return None


def gpu_in_words() -> str:
    """Name, memory, driver, and what runs on it."""
    import cuda.core as core

    about = torch.cuda.get_device_properties(0)
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, IndexError, subprocess.CalledProcessError):
        driver = "unknown"
    memory = f"{about.total_memory / 2**30:.0f} GB"
    return f"{about.name}, {memory}, driver {driver}, torch {torch.__version__}, cuda.core {core.__version__}"


def finish(
    name: str, goals: dict[str, bool], ours: float | None, peers: dict[str, float], unit: str, **extra: Any
) -> None:
    """Which goals are met, then the last line."""
    for goal, met in goals.items():
        print(f"{goal}: {'met' if met else 'NOT met'}")
    print()
    report.finish(ours, peers, unit, benchmark=name, gpu=gpu_in_words(), goals=goals, **extra)


@dataclass(frozen=True)
class Clock:
    """Milliseconds of one call of some work, by the GPU's events or by the host's clock."""

    device: torch.device

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def wall(self, work: Work, calls: int = 20, rounds: int = 7) -> float:
        work()
        spent = []
        for _ in range(rounds):
            self.wait()
            began = time.perf_counter()
            for _ in range(calls):
                work()
            self.wait()
            spent.append((time.perf_counter() - began) * 1e3 / calls)
        return statistics.median(spent)

    def gpu(self, work: Work, calls: int = 20, rounds: int = 7) -> float:
        if not self.cuda:
            return self.wall(work, calls, rounds)
        work()
        spent = []
        for _ in range(rounds):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.wait()
            begin.record()
            for _ in range(calls):
                work()
            end.record()
            end.synchronize()
            spent.append(begin.elapsed_time(end) / calls)
        return statistics.median(spent)

    def once(self, work: Work) -> float:
        """Milliseconds of the first and only call of some work."""
        self.wait()
        if not self.cuda:
            began = time.perf_counter()
            work()
            return (time.perf_counter() - began) * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def replayed(self, work: Work) -> Work:
        """The launches of some work as a CUDA graph; calling the result replays it."""
        if not self.cuda:
            return work
        work()  # what is allocated or loaded at first must not be inside the capture
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def copy_gbs(self, size: int = 1 << 30) -> float:
        """GB/s of a copy within the device's memory, bytes read and bytes written together."""
        source, target = (torch.ones(size, dtype=torch.uint8, device=self.device) for _ in range(2))
        return 2 * size / self.gpu(lambda: target.copy_(source)) / 1e6

    def upload_gbs(self, size: int = 256 << 20) -> float:
        """GB/s of copies from page-locked host memory to the device."""
        source = torch.ones(size, dtype=torch.uint8, pin_memory=self.cuda)
        target = torch.empty(size, dtype=torch.uint8, device=self.device)
        return size / self.gpu(lambda: target.copy_(source, non_blocking=True), calls=5) / 1e6


# ---- a chunk ---------------------------------------------------------------------------------------------------------


@dataclass
class Chunk:
    """One batch of rows on the device, with the kernels of a small program over it."""

    device: Any  # ctrbox.engines.cuda.device_memory.Device
    slot: Any
    source: Any  # ctrbox.engines.cuda.kernel_source.Source
    kernels: dict[str, Any]

    def launch(self, name: str, slot: Any = None) -> None:
        """One kernel over all rows and all its groups."""
        device = self.device
        grid = (1 if name.endswith("_scan") else device.tiles, self.source.groups[name])
        self.kernels[name](grid, device.runtime.threads, (slot or self.slot).record.data_ptr(), device.tiles, 0)

    def run(self) -> None:
        """All kernels in order, again with more memory where the first run found it too small."""
        while True:
            self.device.launch(self.slot)
            self.slot.heard.copy_(self.slot.counters)
            if not self.device.too_small(self.slot):
                return

    def again(self) -> Any:
        """A slot over the same columns with registers of its own: kernels that take turns find nothing in the cache."""
        device = self.device
        slot = device.slot(self.slot.header.numel() - 64)
        slot.header.copy_(self.slot.header)
        slot.keep = [device.bytes(device.layout.row_bytes * device.capacity)]
        slot.record[0] = slot.keep[0].data_ptr()
        return slot


def chunk_of(runtime: Any, program: Any, outputs: list[Any], batch: pa.RecordBatch) -> Chunk:
    """The program laid out, compiled, and the batch brought over; nothing has run yet."""
    from ctrbox.engines.cuda.device_memory import Device
    from ctrbox.engines.cuda.extract import compiled
    from ctrbox.engines.cuda.program import Layout
    from ctrbox.engines.cuda.staging import Staging, send
    from ctrbox.engines.cuda.upload import Layout as HeaderLayout
    from ctrbox.engines.cuda.upload import slices

    program.finish()
    layout = Layout([program], outputs, [batch.num_columns])
    source, kernels = compiled(runtime, layout)
    device = Device(runtime, layout, source, kernels, batch.num_rows, 0)
    header = HeaderLayout(layout.columns)
    slot = device.slot(header.header_bytes)
    upload = slices(header, batch.num_rows, [(batch, None, 0)])
    slot.arena = device.bytes(upload.arena_bytes)
    with Staging() as staging:
        send(upload, staging.fill(upload), slot.arena)
        if runtime.device.type == "cuda":
            torch.cuda.synchronize(runtime.device)
    told = torch.from_numpy(upload.header(slot.arena.data_ptr()))
    slot.header[: len(told)].copy_(told)
    return Chunk(device, slot, source, kernels)
