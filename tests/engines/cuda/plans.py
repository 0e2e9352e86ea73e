"""A plan on a device beside the same plan on the CPU: the same batches, the same positions, the same warnings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

import ctrbox as cb
from ctrbox.columns.batch import Batch
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cuda.extract import CudaExtractor
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.plan.language.node import Node
from ctrbox.plan.placement.placement import place
from tests.engines.cuda import registers

Stream = list[tuple[Batch, int]]
ROOMY = cb.types.Device("cuda", memory="80GB")


def on_cpu(plan: cb.Plan) -> Extractor:
    plan.fit()
    return Extractor(plan.graph, plan.fitted, schema=plan.schema, chunk_rows=plan.chunk_rows, threads=2)


def on_device(plan: cb.Plan, runtime: Runtime, device: cb.types.Device = ROOMY, **options: Any) -> CudaExtractor:
    """The plan as it is placed on a GPU of this size, with chunks of a few rows; ``host``: what the CPU computes instead."""
    plan.fit()
    placement = place(plan.graph, device)
    return CudaExtractor(
        plan.graph,
        plan.fitted,
        schema=plan.schema,
        runtime=runtime,
        **{
            "host": placement.carried,
            "host_filters": placement.filters == "cpu",
            "chunk_rows": plan.chunk_rows,
            "threads": 2,
            "capacity": 256,
            **options,
        },
    )


def assert_same(got: Stream, want: Stream) -> None:
    """Bit for bit, but that a NaN is a NaN."""
    assert [(b.rows, after) for b, after in got] == [(b.rows, after) for b, after in want]
    for number, ((a, _), (b, _)) in enumerate(zip(got, want, strict=True)):
        assert a.schema == b.schema
        mine = a.cpu()
        for role in ("label", "weight", "group", "dense"):
            assert_arrays(getattr(mine, role), getattr(b, role), f"{role} of batch {number}")
        assert list(mine.sparse) == list(b.sparse)
        for name, ragged in b.sparse.items():
            assert_arrays(mine.sparse[name].offsets, ragged.offsets, f"offsets of {name!r} of batch {number}")
            assert_arrays(mine.sparse[name].values, ragged.values, f"{name!r} of batch {number}")


def assert_arrays(got: Any, want: Any, what: str) -> None:
    assert (got is None) == (want is None), what
    if want is None:
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    unsigned = {4: np.uint32, 8: np.uint64}[want.itemsize]
    same = np.ascontiguousarray(got).view(unsigned) == np.ascontiguousarray(want).view(unsigned)
    if want.dtype.kind == "f":
        same |= np.isnan(got) & np.isnan(want)
    assert same.all(), f"{what}: {got[~same][:5]} but {want[~same][:5]} at {np.argwhere(~same)[:5].tolist()}"


def computed(plan: cb.Plan, *ops: str) -> list[Node]:
    """The operators of the log that have one of these names."""
    return [n for n in plan.graph.nodes(plan.graph.frames[0]) if n.op in ops]


def warned(extractor: Extractor) -> Counter[str]:
    """As `Plan.warnings` counts."""
    return registers.warned([*extractor.programs, *(p for d in extractor.dimensions.values() for p in d.programs)])


def agree(
    plan: cb.Plan, runtime: Runtime, sizes: tuple[int, ...] = (1000,), *, warnings: bool = True, **options: Any
) -> CudaExtractor:
    """Every batch size over the whole log; returns the device's extractor."""
    made = on_device(plan, runtime, **options)
    cpu = on_cpu(plan)
    for size in sizes:
        assert_same(list(made.batches(size)), list(cpu.batches(size)))
    assert not warnings or warned(made) == warned(cpu)
    assert made.joins.counts() == cpu.joins.counts()
    # Operators that run on the device keep no example of a lost value; those that run on the CPU do.
    of_device, of_cpu = ([replace(count, example=None) for count in x.casts.counts()] for x in (made, cpu))
    assert of_device == of_cpu
    return made
