"""What a device's registers hold behind a chunk, as plain Python values, beside what the CPU engine's hold.

`Registers` makes expressions ready once, over rows of one schema, and runs any such rows on both engines. Strings and
lists are pointers on the device: every pointer is found again by its address range in a copy of the device's memory, and
what lies in none of them (constants of the source) is fetched by the engine's own copy kernel. Floats are given by their
bits. A null row must have a validity of 0 and an empty entry; anything else is an AssertionError here.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import ctrbox as cb
from ctrbox import _native
from ctrbox.columns.batch import Schema
from ctrbox.engines.cpu.assemble_program import Assembled
from ctrbox.engines.cpu.morsel_stages import located
from ctrbox.engines.cuda.device_memory import Device, Slot
from ctrbox.engines.cuda.extract import Chunk, CudaExtractor
from ctrbox.engines.cuda.program import Register, entry_width
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.plan.graph.build_graph import build_columns
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.language.types_of_operators import origin
from ctrbox.views.morsel import Morsel, Origin

Rows = pa.Table | pa.RecordBatch | None
Values = dict[str, list[Any]]  # a column: None, int, bytes, the bits of a float, or a list of these
WIDE = np.dtype([("p", "<u8"), ("n", "<u4"), ("unused", "<u4")])  # Str and List of native/operators/types.h
DTYPES = {"b": np.dtype("u1"), "i": np.dtype("<i8"), "t": np.dtype("<i8"), "f": np.dtype("<u8"), "k": np.dtype("<u8")}


class Registers:
    """Expressions made ready for ``runtime`` and for the CPU, over rows like ``sample`` (a table or a view)."""

    def __init__(
        self,
        columns: dict[str, Any],
        sample: pa.Table | cb.View,
        runtime: Runtime,
        *,
        fitted: Callable[[Graph], dict[int, dict[str, np.ndarray]]] = lambda graph: {},
        **options: Any,
    ) -> None:
        view = sample if isinstance(sample, cb.View) else cb.View(sample)
        self.graph = build_columns(view, columns)
        self.names = list(columns)
        self.extractor = CudaExtractor(
            self.graph,
            fitted(self.graph),
            schema=Schema((), (), False, False, False),
            runtime=runtime,
            **{"chunk_rows": 1024, "threads": 2, "capacity": 256, **options},
        )
        self.kinds = [o.node.kind for o in self.graph.outputs]

    @property
    def operators(self) -> set[str]:
        """Lines of the catalogue that run on the device, as "name(args)"."""
        code = [k for layer in self.extractor.layout.layers for k in layer.code]
        return {f"{k.name}({','.join(r.kind for r in k.reads)})" for k in code if k.what == "call"}

    def morsels(self, rows: Rows) -> Iterator[tuple[Any, list[Any]]]:
        """Morsels of these rows, or of the view itself, as the engine meets them; a record batch stays as it is."""
        e = self.extractor
        if rows is None:
            yield from e.stream()
            return
        if isinstance(rows, pa.RecordBatch):
            yield Morsel(rows.select(e.columns[0]), Origin("memory", 0), 0), []
            return
        for morsel in cb.View(rows).source.scan(e.columns[0], rows=e.morsel_rows, threads=0):
            yield morsel, []

    def on_device(self, rows: Rows = None) -> Values:
        e = self.extractor
        found: Values = {name: [] for name in self.names}
        for morsel, merged in self.morsels(rows):
            chunk = Chunk(e._slot(0), 0, morsel)
            e.prepare_chunk(chunk, merged)
            e.start(chunk)
            outcome = e.finish(chunk)
            if outcome.bad:
                raise e.bad_row(chunk, outcome)
            memory = Memory(e.device, chunk.slot)
            for name, output in zip(self.names, e.layout.outputs, strict=True):
                found[name] += memory.values(output.register, outcome.rows)
        return found

    def on_cpu(self, rows: Rows = None) -> Values:
        e = self.extractor
        found: Values = {name: [] for name in self.names}
        nullable = [o.node.nullable for o in self.graph.outputs]
        for morsel, merged in self.morsels(rows):
            prepared = e.prepare(morsel, merged)
            keep = list({id(f): f for f, _, _ in prepared.sources if f is not None}.values())
            try:
                frame, _ = e.body.native.run_frame([prepared.piece(0, prepared.rows)], self.kinds, nullable, keep)
            except _native.RowError as error:
                raise located(error, [(prepared, 0, prepared.rows)]) from None
            for k, name in enumerate(self.names):
                found[name] += exported(frame, k)
        return found

    def check(self, rows: Rows = None) -> Values:
        """Both engines over these rows; AssertionError at the first value, or number of warnings, that differs."""
        e = self.extractor
        programs = [e.body, *e.stages.programs], e.device_programs
        before = [warned(p) for p in programs]
        cpu, device = self.on_cpu(rows), self.on_device(rows)
        told = [warned(p) - b for p, b in zip(programs, before, strict=True)]
        assert told[0] == told[1], f"rows warned of: {told[0]} on the CPU, {told[1]} on the device"
        for name, kind in zip(self.names, self.kinds, strict=True):
            a, b = cpu[name], device[name]
            if kind.endswith("f"):  # sign and payload of a NaN are not promised (operators/numbers.h)
                a, b = any_nan(a), any_nan(b)
            if a != b:
                row = next((r for r, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                there = [shown(v[row], kind) if row < len(v) else "no such row" for v in (a, b)]
                raise AssertionError(f"{name}: row {row} is {there[0]} on the CPU, {there[1]} on the device")
        return device


def warned(programs: list[Assembled]) -> Counter[str]:
    """Rows by operator and column, as `Plan.warnings` tells them."""
    counts: Counter[str] = Counter()
    for program in programs:
        for node, (_, _, rows) in zip(program.nodes, program.native.profile(), strict=True):
            if rows and node is not None:
                counts[f"{node.op} of {origin(node).name!r}"] += rows
    return counts


def any_nan(values: Any) -> Any:
    """The same bits for every NaN."""
    if isinstance(values, list):
        return [any_nan(v) for v in values]
    return 0x7FF8 << 48 if values is not None and values & (2**63 - 1) > 0x7FF0 << 48 else values


def shown(value: Any, kind: str) -> str:
    if value is None or not kind.endswith("f"):
        return repr(value)[:200]
    bits = np.array(value, np.uint64)
    return f"{bits.view(np.float64)} ({bits})"


def shrunk(device: Device, pool: int = 128) -> None:
    """Give the device less memory than it learned to need."""
    device.pool, device.scratch = device.bytes(pool), device.bytes(pool)
    for slot in device.slots:
        slot.values = [device.words(1) for _ in slot.values]
        device.write(slot)
    device.settle()


# ---- the device's memory ------------------------------------------------------------------------------------


class Memory:
    """A copy of everything that a chunk's registers can point into."""

    def __init__(self, device: Device, slot: Slot) -> None:
        self.device = device
        held = [device.slab, device.pool, device.scratch, slot.header, slot.picked, *device.images]
        if slot.arena is not None:
            held.append(slot.arena)
        held.sort(key=lambda t: t.data_ptr())
        self.begins = [t.data_ptr() for t in held]
        arrays = [t.contiguous().view(torch.uint8).cpu().numpy().reshape(-1) for t in held]
        self.slab = arrays[self.begins.index(device.slab.data_ptr())]
        self.copies = [array.tobytes() for array in arrays]  # Python cuts pieces of bytes faster than numpy does

    def at(self, address: int, size: int) -> bytes:
        if not size:
            return b""
        k = bisect.bisect_right(self.begins, address) - 1
        from_ = address - self.begins[k]
        if k >= 0 and from_ + size <= len(self.copies[k]):
            return self.copies[k][from_ : from_ + size]
        return self.fetched(address, size)

    def fetched(self, address: int, size: int) -> bytes:
        """Bytes outside of all that torch holds, by a kernel; whole words, as the copy kernel moves them."""
        skip = address & 7
        words = (skip + size + 7) // 8
        to = torch.zeros(words, dtype=torch.int64, device=self.device.device)
        table = torch.tensor([[address - skip, to.data_ptr(), 8 * words, -1]]).to(self.device.device)
        self.device.kernels["copy"]((1, 1), self.device.runtime.threads, table.data_ptr(), 0, 0)
        return bytes(to.cpu().numpy().tobytes()[skip : skip + size])

    def column(self, at: int, dtype: np.dtype, rows: int) -> np.ndarray:
        begin = at * self.device.capacity
        return self.slab[begin : begin + rows * dtype.itemsize].view(dtype)

    def values(self, register: Register, rows: int) -> list[Any]:
        if register.literal is not None:
            return [constant(register)] * rows
        dtype = DTYPES.get(register.kind, WIDE)
        assert dtype.itemsize == entry_width(register.kind)
        entries = self.column(register.at, dtype, rows)
        present = np.ones(rows, np.uint8)
        if register.nullable:
            present = self.column(register.valid_at, np.dtype("u1"), rows)
            assert np.isin(present, (0, 1)).all(), f"validity beside 0 and 1: {np.unique(present)}"
        blank = (entries["n"] if dtype is WIDE else entries)[present == 0]
        assert not blank.any(), f"a null row of kind {register.kind} has an entry: {blank[:5]}"
        made = self.decoded(register.kind, entries)
        return [value if there else None for value, there in zip(made, present, strict=True)]

    def decoded(self, kind: str, entries: np.ndarray) -> list[Any]:
        if kind.startswith("*"):
            element = DTYPES.get(kind[1:], WIDE)
            inner = [self.at(p, n * element.itemsize) for p, n in places(entries)]
            return [self.decoded(kind[1:], np.frombuffer(raw, element)) for raw in inner]
        if kind == "s":
            return [self.at(p, n) for p, n in places(entries)]
        return entries.astype(bool).tolist() if kind == "b" else entries.tolist()


def places(entries: np.ndarray) -> Iterator[tuple[int, int]]:
    """Give the address and the number of elements of each entry."""
    return zip(entries["p"].tolist(), entries["n"].tolist(), strict=True)


def constant(register: Register) -> Any:
    (value,) = register.literal
    if register.kind.startswith("*"):
        return []
    if register.kind == "f":
        return int(np.array(value, np.float64).view(np.uint64))
    if register.kind == "k":
        return value % 2**64
    return bool(value) if register.kind == "b" else value


# ---- the CPU's frames ----------------------------------------------------------------------------------------


def exported(frame: Any, column: int) -> list[Any]:
    """A kept column as the values above."""
    kind, valid, arrays = frame.export(column)
    if kind.startswith("*"):
        offsets, elements = arrays
        flat = elements_of(kind[1:], elements)
        made = [flat[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    else:
        made = elements_of(kind, arrays)
    return made if valid is None else [value if there else None for value, there in zip(made, valid, strict=True)]


def elements_of(kind: str, arrays: Any) -> list[Any]:
    if kind == "s":
        offsets, text = arrays
        raw = np.asarray(text).tobytes()
        return [raw[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    values = np.asarray(arrays[0])
    if kind == "b":
        return values.astype(bool).tolist()
    return values.view(DTYPES[kind]).tolist()
