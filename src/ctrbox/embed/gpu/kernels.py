"""Generates, compiles and launches the kernels of a GPU table for one shape of row.

``native/cuda/embedding_table.h`` describes the layout.

A shape is compiled once, which takes NVRTC seconds; later, the result is read from disk. The dim, the first-order
weight and the optimizers are constants in the source, so that the floats of a row stay in registers. Callers check
their arguments: tensors must be contiguous and on the device of the runtime.
`ctrbox.embed.memory.memory_table.MemoryTable` is the twin, with the same bits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from ctrbox.embed.embedder import Row
from ctrbox.engines.cuda.runtime import Kernel, Runtime
from ctrbox.optimizers.of_table_rows import KINDS, SGD, Adagrad, RowwiseAdagrad, Spec

NAMES = (
    "table_find",
    "table_settle",
    "table_rehash",
    "table_export",
    "table_import",
    "table_shape",
    "table_check",
    "table_gather",
    "table_pool",
    "table_chunks",
    "table_groups",
    "table_step",
)
# Kernels that replace table_chunks and table_step for shapes that are stepped in windows (native/cuda/table_step_in_windows.h).
IN_WINDOWS = ("table_chunk_windows", "table_windows")
MOST_LANES = 32  # of a warp
MOST_BLOCKS = 1 << 20  # of a launch; loops take the rest
CHUNK, GROUP = 64, 64 * 64  # references summed together, kChunk and kGroup of table_training_step.h


def source_of(row: Row, weight: Spec, vector: Spec, lanes: int, threads: int = 256) -> str:
    """Return the CUDA source of a table's kernels. ``threads``: largest number of threads in a block."""
    shape = {"DIM": row.dim, "LINEAR": int(row.linear), "WEIGHT": weight[0], "VECTOR": vector[0], "LANES": lanes}
    shape |= {"THREADS": threads}
    defined = "".join(f"#define CB_{name} {value}\n" for name, value in shape.items())
    step = "table_step_in_windows" if in_windows(row, vector) else "table_training_step"
    return f'{defined}#include "cuda/{step}.h"\n'


def in_windows(row: Row, vector: Spec) -> bool:
    """Return whether table_windows updates rows of this shape; it gives the same bits as table_step and waits less."""
    # A window of one lane, which up to 4 numbers have, is one reference. More than 4 * MOST_LANES numbers, a weight or another
    # optimizer need more registers than there are.
    few_registers = (
        row.dim <= 4 * MOST_LANES and not row.linear and KINDS.get(vector[0]) in (SGD, Adagrad, RowwiseAdagrad)
    )
    return row.dim > 4 and few_registers


def lanes_of(row: Row, runtime: Runtime) -> int:
    """Return the number of threads that share a row: a power of two, about one for every four floats; 1 if a block is
    one thread.
    """
    if runtime.threads < MOST_LANES:
        return 1
    parts = max(1, (row.dim + 3) // 4)
    return min(MOST_LANES, 1 << (parts.bit_length() - 1))


def address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def packed(floats: Sequence[float]) -> list[int]:
    """Return floats as a launch takes them: the bits of two floats in each number."""
    padded = [*floats, *[0.0] * (len(floats) % 2)]
    return list(struct.unpack(f"<{len(padded) // 2}q", struct.pack(f"<{len(padded)}f", *padded)))


class TableKernels:
    """Compiled kernels, and the sizes with which they were compiled."""

    def __init__(self, runtime: Runtime, row: Row, weight: Spec, vector: Spec, lanes: int | None = None) -> None:
        self.runtime = runtime
        self.lanes = lanes_of(row, runtime) if lanes is None else lanes
        source = source_of(row, weight, vector, self.lanes, runtime.threads)
        self.windows = in_windows(row, vector)
        names = (*NAMES, *IN_WINDOWS) if self.windows else NAMES
        self.kernels: dict[str, Kernel] = runtime.compile(source, names, name="table")
        sizes = torch.zeros(3, dtype=torch.int64, device=runtime.device)
        self.kernels["table_shape"]((1, 1), 1, sizes.data_ptr())
        self.stride, self.file_floats, self.sums = (int(n) for n in sizes.tolist())

    def __call__(self, name: str, work: int, *args: int, shared: bool = False) -> None:
        """Launch a kernel for this number of pieces of work. One thread does a piece or, with ``shared``, all lanes of
        a row do.
        """
        if work:
            threads = self.runtime.threads
            blocks = (work * (self.lanes if shared else 1) + threads - 1) // threads
            self.kernels[name]((min(blocks, MOST_BLOCKS), 1), threads, *args)

    def step(self, references: int, *args: int) -> None:
        """Launch the step over this number of sorted references."""
        if self.windows:
            self("table_windows", -(-references // self.lanes), *args, shared=True)
        else:
            self("table_step", references, *args, shared=True)

    def chunks(self, references: int, *args: int) -> None:
        """Launch the kernel that adds up each `CHUNK` sorted references to one row."""
        self("table_chunk_windows" if self.windows else "table_chunks", references // CHUNK, *args, shared=True)
