"""Extracts batches on a GPU, in order; copies, kernels and the operators on the CPU overlap.

    reader ──► prepare (threads: what is copied, staged in page-locked memory; the operators on the CPU, if there are any)
           ──► copy stream: header and arena of a free slot
           ──► compute stream: the layers of the chunk, one graph
           ──► out stream: rows cut out of the slot as pieces of batches

At most `SLOTS` chunks are in progress, one in each slot. A chunk is a morsel of the log; a batch may have rows of several chunks.
The runtime of the tests, which needs no GPU, has no streams: every step runs at once, in the same order.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ctrbox import _native
from ctrbox.columns.batch import Batch
from ctrbox.engines.cpu.assemble_program import Assembled, Assembler
from ctrbox.engines.cpu.extract import Extractor, end
from ctrbox.engines.cpu.frames_and_arrow import column_of
from ctrbox.engines.cpu.merge_by_id import Aligned, in_one_batch, parts_of
from ctrbox.engines.cpu.morsel_stages import Native, Prepared, Stages, located
from ctrbox.engines.cuda.columns_only_gpu_reads import SHARE, Reading
from ctrbox.engines.cuda.copy_out_batches import Batches
from ctrbox.engines.cuda.cut_batches_and_limit_rows import Cutter
from ctrbox.engines.cuda.device_memory import Device, Outcome, Slot
from ctrbox.engines.cuda.kernel_source import Source
from ctrbox.engines.cuda.parquet_pages import PageDecoder
from ctrbox.engines.cuda.program import Layout, Output, Recorded
from ctrbox.engines.cuda.runtime import Kernel, Runtime, cuda_runtime, gpu_bytes, use_gpu_of
from ctrbox.engines.cuda.staging import Pinned, Staging, send
from ctrbox.engines.cuda.upload import Layout as HeaderLayout
from ctrbox.engines.cuda.upload import Upload, slices
from ctrbox.engines.cuda.user_kernels import compile_kernels
from ctrbox.engines.missed_keys import watched
from ctrbox.errors import DataError, DeviceError
from ctrbox.files.interruptible_wait import result_of
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.language.node import Node
from ctrbox.plan.placement.device_description import device_named, gpu_decodes_parquet
from ctrbox.plan.placement.placement import CHUNK_ROWS, SLOTS, place
from ctrbox.views.frames_in_memory import MemorySource
from ctrbox.views.parquet_chunks import readable
from ctrbox.views.source import Morsel, Origin

MOST_REGISTERS = 96  # a thread: with more, fewer than half of a multiprocessor's warps fit


@dataclass
class Chunk:
    """A morsel that is processed in a slot."""

    slot: Slot
    number: int
    morsel: Morsel
    rows: int = 0
    upload: Upload | None = None
    staged: torch.Tensor | None = None
    prepared: Prepared | None = None  # where the CPU filtered


class CudaExtractor(Extractor):
    """A graph made ready to run on a device. Requests (`run`) still use the CPU's program, whose results have the same bits."""

    def __init__(
        self,
        *args: Any,
        runtime: Runtime,
        host: Sequence[Node] = (),
        host_filters: bool = False,
        capacity: int = CHUNK_ROWS,
        graphs: bool = True,
        parquet_bytes: int = 0,
        **options: Any,
    ) -> None:
        """``parquet_bytes``: the GPU decodes Parquet files itself, with so many bytes of its memory for one call of the
        decoder; 0: the CPU decodes them."""
        super().__init__(*args, **options)
        self.runtime = runtime
        self.morsel_rows = min(capacity, CHUNK_ROWS)
        self.host = list(host)
        self.filters_here = bool(self.host) or host_filters  # whether the CPU filters
        self.cuda = runtime.device.type == "cuda"
        self.graphs = graphs and self.cuda
        asked = [o.node for o in self.outputs]
        self.layout = self._laid_out(asked)
        self.source, kernels = compiled(runtime, self.layout)
        self.device = Device(runtime, self.layout, self.source, kernels, self.morsel_rows, self.schema.dense_width)
        self.header = HeaderLayout(self.layout.columns)
        self.maker = Batches(self.device, self.schema, self.layout.outputs)
        self.slots: list[Slot] = []
        self.idle: list[int] = []  # slots that no stream has
        self.turn = threading.Lock()  # one chunk's kernels are queued, or memory grows, at a time
        self.stagings: list[Staging] = []
        self.pinned = Pinned()
        self._pin()
        self.readings = self._readings(parquet_bytes)
        if self.cuda:
            # What is read out of a finished chunk goes before the kernels of the next: batches wait for it.
            self.copying, self.computing = (torch.cuda.Stream(runtime.device) for _ in range(2))
            self.reading = torch.cuda.Stream(runtime.device, priority=-1)

    @property
    def programs(self) -> list[Assembled]:
        shared = [] if self.share is None else [self.share]
        here = [*shared, *(self.stages.programs if self.filters_here else [])]
        # What both sides compute is told of once: by the CPU, whose filters see every row.
        told = {known_by(n) for p in here for n, label in zip(p.nodes, p.labels, strict=True) if label != "load"}
        there = [replace(p, nodes=[None if known_by(n) in told else n for n in p.nodes]) for p in self.device_programs]
        return [*here, *there]

    def measure(self) -> dict[str, float]:
        """Return the nanoseconds per row of each operator, by its node: run each group of each layer alone over the last chunk.

        Operators of one plain group share its time evenly; the time of one scan or visit is stored under its first operator.
        """
        if not self.cuda or not self.slots:
            raise DeviceError(
                "this plan has not run on the GPU yet, so there are no measured times; read a batch first"
            )
        torch.cuda.synchronize(self.runtime.device)
        slot = self.slots[0]
        rows = max(1, int(slot.header[:8].view(torch.int64)[0]))
        spent = self.device.timed(slot)
        nodes = {
            id(entry): node
            for program in self.device_programs
            for entry, node in zip(program.native.entries, program.nodes, strict=True)
            if entry is not None and node is not None
        }
        told: dict[str, float] = {}
        for layer, groups in self.source.members.items():
            for number, group in enumerate(groups):
                share = spent[layer, number] * 1e6 / rows / len(group)
                told.update({str(nodes[id(k)]): share for k in group if id(k) in nodes})
        return told

    # ---- what runs
    def _laid_out(self, asked: list[Node]) -> Layout:
        given: dict[int, tuple[int, int]] = {}
        self.share = None
        if self.host:
            self.share = self.assembler.assemble(self.host, list(enumerate(self.host)), self.stages.sources)
            given = {node.id: (len(self.columns), k) for k, node in enumerate(self.host)}
        probe = Assembler(self.tables, self.dimensions, lambda n: (0, 0), self.chunk_rows, given=dict(given))
        filters = [] if self.filters_here else self.log.filters
        needed = probe.needed([*asked, *filters])
        self.sent = [self.graph.columns(self.log, k, needed) for k in range(len(self.log.sources))]
        where = [{name: k for k, name in enumerate(names)} for names in self.sent]
        self.on_device = Assembler(
            self.tables,
            self.dimensions,
            lambda n: (n.param("source"), where[n.param("source")][n.name]),
            self.chunk_rows,
            given=given,
            make=Recorded,
        )
        columns = [len(names) for names in self.sent] + ([len(self.host)] if self.host else [])
        staged = Stages(self.on_device, filters, asked, len(columns))
        programs = [step.program for step in staged.steps if isinstance(step, Native)]
        body = self.on_device.assemble(asked, [(k, o.node) for k, o in enumerate(self.outputs)], staged.sources)
        self.device_programs = [*programs, body]
        recorded: list[Recorded] = [p.native for p in self.device_programs]
        emitted = dict(recorded[-1].emits)
        at = 0
        outputs = []
        for k, o in enumerate(self.outputs):
            role = o.role if o.role != "sparse" else "lists" if o.node.kind == "*k" else "keys"
            outputs.append(Output(role, emitted[k], at, o.width))
            at += o.width if o.role == "dense" else 0
        return Layout(recorded, outputs, columns)

    def _pin(self) -> None:
        """Page-lock columns that stay in memory, once and without copying them."""
        for spec in self.log.sources:
            source = spec.view.source
            table = source.table if self.cuda and isinstance(source, MemorySource) else None
            if table is not None:
                self.pinned.hold(table)

    def _readings(self, most: int) -> list[Reading | None]:
        """Return the GPU decoder of each source; None if the CPU needs its columns, or they are not in files."""
        none: list[Reading | None] = [None] * len(self.log.sources)
        if not most or self.filters_here or not any(readable(s.view.source) for s in self.log.sources):
            return none
        ids = [self.log.key[0] if self.merged else None, *(s.on for s in self.log.sources[1:])]
        decoder = PageDecoder(self.runtime, most)
        return [
            Reading(decoder, [n for n in names if n != id]) if readable(spec.view.source) else None
            for spec, names, id in zip(self.log.sources, self.sent, ids, strict=True)
        ]

    def _morsels(self, start: int, stop: int | None) -> Generator[tuple[Morsel, list[Aligned]], None, None]:
        """Yield morsels with the rows merged into them; if the GPU decodes these rows, a morsel uses only one slice of them."""
        for reading in self.readings:
            if reading is not None:
                reading.begin()
        stream = self.stream(start, stop, self.readings)
        try:
            if not any(self.readings[1:]):
                yield from stream
                return
            for morsel, merged in stream:
                rows, origin = morsel.rows.num_rows, morsel.origin
                for begin, end, beside in parts_of(rows, merged, most=rows):
                    part = morsel.rows.slice(begin, end - begin)
                    cut = Morsel(part, Origin(origin.path, origin.row + begin), morsel.start + begin)
                    yield cut, [([] if b is None else [b], index, base) for b, index, base in beside]
        finally:
            stream.close()

    def _lend(self) -> int:
        """Return a slot for a stream; two streams of a plan never share one."""
        with self.turn:
            if not self.idle:
                self.idle.append(len(self.slots))
                self.slots.append(self.device.slot(self.header.header_bytes))
                self.stagings.append(Staging())
            return self.idle.pop()

    def _slot(self, number: int) -> Slot:
        while len(self.slots) <= number:
            self.idle.insert(0, self._lend())
        return self.slots[number]

    # ---- the host's part of a chunk; in a worker thread
    def prepare_chunk(self, chunk: Chunk, merged: list[Any]) -> Chunk:
        began = time.perf_counter()
        morsel = chunk.morsel
        beside = [in_one_batch(slices) for slices, _, _ in merged]
        batches = [morsel.rows, *beside]
        sent = [None if b is None else b.select(names) for b, names in zip(batches, self.sent, strict=True)]
        sources: list[Any]
        if not self.filters_here:
            chunk.rows = morsel.rows.num_rows
            sources = [(sent[0], None, 0), *((b, i, at) for b, (_, i, at) in zip(sent[1:], merged, strict=True))]
        else:
            aligned = zip(beside, merged, strict=True)
            prepared = self.prepare(morsel, [([] if b is None else [b], i, at) for b, (_, i, at) in aligned])
            chunk.prepared, chunk.rows = prepared, prepared.rows
            sources = [(b, i, at) for b, (_, i, at) in zip(sent, prepared.sources[: len(sent)], strict=True)]
            if self.share is not None:
                sources.append((self._share_of(prepared), None, 0))
        straight = self.pinned.part if self.cuda else None
        chunk.upload = slices(self.header, chunk.rows, sources, first=morsel.start, straight=straight)
        chunk.staged = self.stagings[chunk.number].fill(chunk.upload)
        self.stats.add("prepare", chunk.rows, time.perf_counter() - began)
        return chunk

    def _share_of(self, prepared: Prepared) -> pa.RecordBatch:
        """Return the results of the operators that run on the CPU for a chunk, as columns."""
        assert self.share is not None
        kinds, nullable = [n.kind for n in self.host], [n.nullable for n in self.host]
        keep = list({id(f): f for f, _, _ in prepared.sources if f is not None}.values())
        try:
            frame, _ = self.share.native.run_frame([prepared.piece(0, prepared.rows)], kinds, nullable, keep)
        except _native.RowError as error:
            raise located(error, [(prepared, 0, prepared.rows)]) from None
        names = [f"{k}" for k in range(len(self.host))]
        return pa.RecordBatch.from_arrays([signed(column_of(frame, k)) for k in range(len(self.host))], names)

    # ---- the device's part
    @contextlib.contextmanager
    def on(self, stream: str) -> Iterator[None]:
        if not self.cuda:
            yield
            return
        with torch.cuda.stream(getattr(self, stream)):
            yield

    def start(self, chunk: Chunk) -> None:
        """Queue the copies and kernels of a prepared chunk."""
        slot, upload = chunk.slot, chunk.upload
        assert upload is not None
        assert chunk.staged is not None
        with self.on("copying"), self.device.fitting("the columns of a chunk", upload.arena_bytes):
            if slot.arena is None or slot.arena.numel() < upload.arena_bytes + 64:
                slot.arena = self.device.bytes(upload.arena_bytes + upload.arena_bytes // 4)
            upload.header(slot.arena.data_ptr(), out=slot.heading.numpy())
            slot.header[: len(slot.heading)].copy_(slot.heading, non_blocking=True)
            send(upload, chunk.staged, slot.arena)
            slot.keep = upload.keep
            if self.cuda:
                slot.copied = self.copying.record_event()
        self.run_slot(slot)

    def run_slot(self, slot: Slot) -> None:
        with self.turn, self.on("computing"):
            if self.cuda:
                self.computing.wait_event(slot.copied)
                if slot.read is not None:  # its last outputs have left
                    self.computing.wait_event(slot.read)
            if not self.graphs:
                self.device.launch(slot)
            else:
                if slot.graph is None:
                    self.computing.synchronize()
                    slot.graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(slot.graph, stream=self.computing, capture_error_mode="thread_local"):
                        self.device.launch(slot)
                slot.graph.replay()
            slot.heard.copy_(slot.counters, non_blocking=True)
            if self.cuda:
                slot.done = self.computing.record_event()

    def finish(self, chunk: Chunk, left: int | None = None) -> Outcome:
        """Wait for the kernels of a chunk, and run them again if memory was too small. A bad row of a filter is a DataError.

        A chunk that gives more than ``left`` rows runs again without the others, so that no warning counts rows after a limit.
        """
        outcome = self.heard(chunk, chunk.rows)
        if left is not None and left < outcome.rows:
            rows = int(chunk.slot.picked[left - 1]) + 1 if self.layout.filtered else left
            self.shorten(chunk.slot, rows)
            outcome = self.heard(chunk, rows)
        for program in self.device_programs:
            for k, entry in enumerate(program.native.entries):
                program.native.counts[k] += outcome.warnings.get(id(entry), 0)
                if id(entry) in outcome.looked:
                    counted = zip(program.native.lookups[k], outcome.looked[id(entry)], strict=True)
                    program.native.lookups[k] = [(a + values, b + missed) for (a, b), (values, missed) in counted]
        return outcome

    def shorten(self, slot: Slot, rows: int) -> None:
        """Run a chunk again, over its first ``rows`` rows."""
        with self.on("copying"):
            slot.heading.view(torch.int64)[0] = rows  # the header's first word (upload.py)
            slot.header[: len(slot.heading)].copy_(slot.heading, non_blocking=True)
            if self.cuda:
                slot.copied = self.copying.record_event()
        self.run_slot(slot)

    def heard(self, chunk: Chunk, rows: int) -> Outcome:
        """Wait for the kernels of a chunk of ``rows`` rows and return their results."""
        slot = chunk.slot
        while True:
            self.wait(slot)
            with self.turn:
                small = self.device.too_small(slot)
            if not small:
                break
            self.run_slot(slot)
        outcome = self.device.heard(slot, rows)
        if any(phase == 0 for _, _, _, phase in outcome.bad):
            raise self.bad_row(chunk, outcome)
        return outcome

    def wait(self, slot: Slot) -> None:
        if not self.cuda:
            return
        try:
            slot.done.synchronize()
        except RuntimeError as error:
            layers = ", ".join(f"{a.name} ({', '.join(sorted({k.name for k in a.code}))})" for a in self.layout.layers)
            raise DeviceError(
                f"a kernel of this plan failed on the GPU: {str(error).splitlines()[0]}; its layers: {layers}"
            ) from None

    def bad_row(self, chunk: Chunk, outcome: Outcome, begin: int = 0) -> DataError:
        """Return the error that the CPU engine raises: that of the first operator in the first chunk of rows with an error.
        ``begin``: the number of the first row of the batch that contains the error."""
        size = self.chunk_rows

        def order(found: tuple[int, int, Any, int]) -> tuple[int, int, int]:
            return found[3], (found[0] - begin) // size, found[2].number

        row, code, k, phase = min(outcome.bad, key=order)
        position = row
        if phase == 1 and self.layout.filtered:
            position = int(chunk.slot.picked[row])
        prepared = chunk.prepared or Prepared(chunk.rows, [], None, chunk.morsel.origin, chunk.morsel.start)
        messages = {
            1: f"column '{k.name}' is null, but the plan was built on data where it never is; give every row a value, "
            f"or add .fill({k.name}=…) to its view",
            2: f"column '{k.name}' has a dictionary index outside its dictionary",
            3: f"column '{k.name}' has a string or list of 2^31 or more",
            4: f"column '{k.name}' has a null inside a list of fixed size; a vector needs all its elements",
            5: f"{k.name}: the value is malformed",
        }
        return located(_native.RowError(messages[code], 0, position), [(prepared, 0, chunk.rows)])

    # ---- the whole log
    def batches(
        self, batch_size: int, start: int = 0, limit: int | None = None, stop: int | None = None
    ) -> Generator[tuple[Batch, int], None, None]:
        stream = self._batches(batch_size, start, limit, stop)
        try:
            yield from watched(stream, self.joins.warn, self.casts.warn)
        finally:
            stream.close()

    @property
    def keeps_all_rows(self) -> bool:
        """Whether the plan drops no row of the log: it has no filter and no inner join."""
        return not self.log.filters

    def numbered(
        self, batch_size: int, start: int, stop: int | None
    ) -> Generator[tuple[Batch, np.ndarray], None, None]:
        """Yield batches in main memory, each with the number of each of its rows in the log; only if ``keeps_all_rows``."""
        assert self.keeps_all_rows, "the GPU does not tell which rows the filters kept"
        with contextlib.closing(self.batches(batch_size, start, None, stop)) as stream:
            for batch, after in stream:
                yield batch.cpu(), np.arange(after - batch.rows, after)

    def _batches(
        self, batch_size: int, start: int, limit: int | None, stop: int | None
    ) -> Generator[tuple[Batch, int], None, None]:
        pool = ThreadPoolExecutor(SLOTS, thread_name_prefix="ctrbox-prepare")
        reader = ThreadPoolExecutor(
            1, thread_name_prefix="ctrbox-read"
        )  # a morsel ahead: ids of merged views are compared
        stream = self._morsels(start, stop)
        ahead = reader.submit(next, stream, None)
        free: deque[int] = deque()
        lent: list[int] = []
        preparing: deque[tuple[Chunk, Future[Chunk]]] = deque()
        running: deque[Chunk] = deque()
        cutter = Cutter(self, batch_size, limit)
        failure: Exception | None = None
        ended = False
        try:
            while not cutter.full:
                while not ended and (free or len(lent) < SLOTS):
                    try:
                        item = result_of(ahead)
                    except Exception as error:  # raised where it lies, after the rows before it
                        item, failure = None, error
                    if item is None:
                        ended = True
                        break
                    ahead = reader.submit(next, stream, None)
                    morsel, merged = item
                    if not free:
                        free.append(self._lend())
                        lent.append(free[0])
                    number = free.popleft()
                    chunk = Chunk(self._slot(number), number, morsel)
                    preparing.append((chunk, pool.submit(self.prepare_chunk, chunk, merged)))
                while preparing and (not running or preparing[0][1].done()):
                    chunk, future = preparing.popleft()
                    try:
                        result_of(future)
                    except Exception as error:
                        failure, ended = error, True
                        for _, later in preparing:
                            later.cancel()
                        preparing.clear()
                        break
                    self.start(chunk)
                    running.append(chunk)
                if not running:
                    break
                chunk = running.popleft()
                outcome = self.finish(chunk, cutter.left)
                began = time.perf_counter()
                made = cutter.take(chunk, outcome)
                self.stats.add("extract", outcome.rows, time.perf_counter() - began)
                chunk.slot.keep = []
                free.append(chunk.number)
                yield from made
                if outcome.bad and not cutter.full:
                    raise self.bad_row(chunk, outcome, cutter.begin)
            if failure is not None and not cutter.full:
                raise failure
            yield from cutter.rest()
        finally:
            for _, future in preparing:
                future.cancel()
            end(reader)
            stream.close()
            end(pool)
            if self.cuda:
                torch.cuda.synchronize(self.runtime.device)  # nothing travels from memory that is about to go
            with self.turn:
                self.idle += lent


def compiled(runtime: Runtime, layout: Layout) -> tuple[Source, dict[str, Kernel]]:
    """Compile the kernels of a layout. A layer that needs too many registers per thread is divided in two and compiled again."""
    source = Source(layout)
    kernels = compile_kernels(runtime, source)
    names = [layer.name for layer in layout.layers]
    heavy = frozenset(n for n in names if kernels[n].registers > MOST_REGISTERS and source.groups[n] > 1)
    if heavy:
        source = Source(layout, split=heavy)
        kernels = compile_kernels(runtime, source)
    return source, kernels


def known_by(node: Node | None) -> tuple[str, int] | None:
    """Return the name under which the time of an operator is known; the paths of one document are one scan."""
    return None if node is None else (node.op, node.args[0].id if node.op == "json" else node.id)


def signed(array: pa.Array) -> pa.Array:
    """Return keys as signed numbers with the same bits, because the GPU reads no columns of unsigned 64-bit numbers."""
    if array.type == pa.uint64():
        return array.view(pa.int64())
    if array.type != pa.large_list(pa.uint64()):
        return array
    keys = array.values.view(pa.int64())
    head = array.buffers()[:2]
    return pa.Array.from_buffers(pa.large_list(pa.int64()), len(array), head, array.null_count, array.offset, [keys])


def on_gpu(graph: Graph, fitted: dict[int, dict[str, np.ndarray]], device: Any, **options: Any) -> CudaExtractor:
    """Return the extractor of a plan for a GPU of this machine; raise a DeviceError if none can be used."""
    use_gpu_of(device)
    runtime = cuda_runtime()
    placement = place(graph, device_named(device, gpu_bytes=gpu_bytes()))
    if not placement.chunk_rows:
        reasons = [o.reason for o in placement.operators.values() if o.node.op != "column"]
        reason = next(iter(reasons), "its columns alone do not fit")
        raise DeviceError(
            f"even a small chunk of this plan does not fit into the memory of {placement.device}: {reason}; allow more "
            "memory, or use device='cpu'"
        )
    return CudaExtractor(
        graph,
        fitted,
        runtime=runtime,
        host=placement.carried,
        host_filters=placement.filters == "cpu",
        capacity=placement.chunk_rows,
        parquet_bytes=placement.device.budget // SHARE if gpu_decodes_parquet() else 0,
        **options,
    )
