"""Extracts batches on the CPU: morsels are processed on all cores, and batches are returned in order.

Threads: the source's readers decode ahead; ``threads`` workers prepare morsels (filters) and run batches; the consumer's thread
only hands out work and hands over results. At most 1.5 morsels per thread, and as many batches, are in work at
a time. With only one more than there are threads, a batch that takes long would leave the other threads without work until
it is handed over (docs/tried.md, 29). Leaving the generator, by an error, by Ctrl-C or by closing it, ends the readers and the
workers.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ctrbox import _native
from ctrbox.columns.batch import Batch, Fields, Ragged, Schema
from ctrbox.engines.cpu.assemble_program import Assembled, Assembler, Dimension
from ctrbox.engines.cpu.early_scan import EarlyScan
from ctrbox.engines.cpu.frames_and_arrow import frame_of
from ctrbox.engines.cpu.in_order import in_order
from ctrbox.engines.cpu.joined_views import load_dimension
from ctrbox.engines.cpu.labels import OF_TASKS, RefusedRow, with_labels
from ctrbox.engines.cpu.merge_by_id import Aligned, MergeCursor, ascends, ids_of, in_one_batch, parts_of
from ctrbox.engines.cpu.morsel_stages import Prepared, Rows, Stages, located, located_in_batch
from ctrbox.engines.cpu.operator_tables import Tables
from ctrbox.engines.cpu.skip_row_groups import prune_expression
from ctrbox.engines.lost_values import Casts
from ctrbox.engines.missed_keys import Joins, watched
from ctrbox.errors import DataError
from ctrbox.files.interruptible_wait import result_of
from ctrbox.plan.graph.graph import Graph, Output
from ctrbox.plan.language.node import Node, closure
from ctrbox.views.device_columns import Elsewhere, aside
from ctrbox.views.source import Morsel

T = TypeVar("T")

CHUNK_ROWS = 1024  # registers of a chunk stay in a 1 MB L2 cache; docs/tried.md has the figures
MORSEL_ROWS = 65_536


@dataclass
class Stage:
    rows: int = 0
    seconds: float = 0.0


@dataclass
class Stats:
    """Rows and seconds of each stage; the seconds are the sum over all threads."""

    stages: dict[str, Stage] = field(default_factory=dict)

    def add(self, name: str, rows: int, seconds: float) -> None:
        stage = self.stages.setdefault(name, Stage())
        stage.rows += rows
        stage.seconds += seconds


class Extractor:
    """A graph made ready to run: dimensions loaded, programs assembled. Thread-safe once built."""

    def __init__(
        self,
        graph: Graph,
        fitted: dict[int, dict[str, np.ndarray]],
        *,
        schema: Schema,
        outputs: list[Output] | None = None,
        dimensions: dict[int, Dimension] | None = None,
        given: Sequence[Node] = (),
        chunk_rows: int = CHUNK_ROWS,
        threads: int = 2,
        begin: int | None = None,
    ) -> None:
        """``given``: nodes that are computed elsewhere and come as the columns of one more source, after those of the log.
        ``begin``: the row of the log at which ``batches`` will begin; the log is then read while joined views are loaded."""
        self.graph = graph
        self.schema = schema
        self.log = graph.frames[0]
        self.stats = Stats()
        self.joins = Joins(self)
        self.casts = Casts(self)
        self.threads = threads
        self.under_way = threads + max(1, threads // 2)
        self.chunk_rows = chunk_rows
        self.morsel_rows = MORSEL_ROWS
        self.fitted = fitted
        self.tables = Tables(fitted)
        self.outputs = graph.outputs if outputs is None else outputs
        asked = [o.node for o in self.outputs]
        known = {n.id: (len(self.log.sources), k) for k, n in enumerate(given)}
        needed = [n for n in closure([*asked, *self.log.filters], known) if n.id not in known]
        self.columns = [graph.columns(self.log, k, needed) for k in range(len(self.log.sources))]
        self._id_columns()
        self.early = None if begin is None or dimensions is not None else EarlyScan(self._scan(begin), begin)
        began = time.perf_counter()
        try:
            self.dimensions = dimensions if dimensions is not None else self._load()
        except BaseException:
            self._end_early_scan()
            raise
        self.stats.add("dimensions", sum(d.rows for d in self.dimensions.values()), time.perf_counter() - began)
        where = [{name: k for k, name in enumerate(names)} for names in self.columns]
        self.assembler = Assembler(
            self.tables,
            self.dimensions,
            lambda n: (n.param("source"), where[n.param("source")][n.name]),
            chunk_rows,
            known,
        )
        self.stages = Stages(self.assembler, self.log.filters, asked, len(self.columns) + bool(known))
        self.body = self._body(asked)
        self.hints: list[float] = []
        self.identity = np.arange(1, dtype=np.int64)
        self.names = [f.name for f in schema.sparse]

    def _load(self) -> dict[int, Dimension]:
        loaded: dict[int, Dimension] = {}
        waiting = [f for f in self.graph.frames[1:] if self.graph.asked[f.id] or self._joined(f.id)]
        while waiting:
            ready = [f for f in waiting if all(n in loaded for n in self._needs(f))]
            stop = threading.Event()
            with ThreadPoolExecutor(self.threads) as pool:
                futures = [
                    pool.submit(
                        load_dimension, self.graph, f, self.tables, dict(loaded), self.chunk_rows, self.threads, stop
                    )
                    for f in ready
                ]
                try:
                    for f, future in zip(ready, futures, strict=True):
                        loaded[f.id] = result_of(future)
                finally:  # an error or Ctrl-C: the others end with the part they are at
                    stop.set()
            waiting = [f for f in waiting if f.id not in loaded]
        return loaded

    def _joined(self, frame: int) -> bool:
        return any(n.op == "row" and n.param("frame") == frame for f in self.graph.frames for n in self.graph.nodes(f))

    def _needs(self, frame: Any) -> set[int]:
        return {n.param("frame") for n in self.graph.nodes(frame) if n.op == "row"}

    def _id_columns(self) -> None:
        """Read the ids of both sides of a streamed merge, whether or not a feature reads them."""
        self.merged = len(self.columns) > 1
        self.loaded = [list(names) for names in self.columns]  # by programs: without ids that only the merge reads
        self.only_for_merge: set[str] = set()
        if self.merged:
            key = self.log.key[0]
            if key not in self.columns[0]:
                self.columns[0].append(key)
                self.only_for_merge.add(key)
            self.id_at = self.columns[0].index(key)
        for k, source in enumerate(self.log.sources):
            if source.on is not None and source.on not in self.columns[k]:
                self.columns[k].append(source.on)

    def _body(self, asked: list[Node]) -> Assembled:
        plan = _native.BatchPlan()
        for o in self.outputs:
            if o.role in ("dense", *OF_TASKS):
                plan.dense(o.node.kind, o.width)
            elif o.role == "sparse":
                plan.keys(o.node.kind)
            elif o.role != "column":
                getattr(plan, o.role)(o.node.kind)
        self.batch_plan = plan
        self.of_tasks = [o for o in self.outputs if o.role in OF_TASKS]  # their columns come before the dense features
        emits = [(k, o.node) for k, o in enumerate(self.outputs)]
        return self.assembler.assemble(asked, emits, self.stages.sources)

    @property
    def programs(self) -> list[Assembled]:
        """Return all programs, whether they have run or not, for profiles and warnings."""
        return [self.body, *self.stages.programs]

    # ---- a batch
    def run(self, pieces: list[tuple[Prepared, int, int]]) -> Batch:
        """Return one batch, made of (prepared rows, begin, count) pieces, in the thread of the caller."""
        began = time.perf_counter()
        try:
            native = self.body.native.run_batch([p.piece(b, n) for p, b, n in pieces], self.batch_plan, self.hints)
        except _native.RowError as error:
            raise located(error, pieces) from None
        try:
            batch = self.wrap(native)
        except RefusedRow as error:
            raise located_in_batch(error.message, error.row, pieces) from None
        self.stats.add("extract", batch.rows, time.perf_counter() - began)
        return batch

    def wrap(self, native: Any) -> Batch:
        rows = native.rows
        identity = self.identity  # read once: another thread may set a shorter one meanwhile
        if len(identity) <= rows:
            identity = self.identity = np.arange(rows + 1, dtype=np.int64)
        ones = identity[: rows + 1]

        def ragged(k: int) -> Ragged:
            offsets = native.offsets(k)
            return Ragged(native.values(k), ones if offsets is None else offsets)

        sparse = Fields(self.names, ragged, native)
        if rows > 1024:
            self.hints = [1.05 * values for values in native.values_per_row]
        s = self.schema
        if self.of_tasks:
            return with_labels(self.of_tasks, native, s, sparse, self.fitted)
        return Batch(
            s,
            rows,
            native.label if s.label else None,
            native.dense,
            sparse,
            native.group if s.group else None,
            native.weight if s.weight else None,
        )

    # ---- a morsel
    def prepare(self, morsel: Morsel, merged: list[Aligned]) -> Prepared:
        beside: list[Rows] = []
        for slices, index, base in merged:
            rows = in_one_batch(slices)
            beside.append((None if rows is None else frame_of(rows), index, base))
        return self.staged(
            morsel.rows.num_rows, [(frame_of(morsel.rows), None, 0), *beside], morsel.origin, morsel.start
        )

    def prepare_parts(self, morsel: Morsel, merged: list[Aligned]) -> list[Prepared]:
        """Return the rows of a morsel in parts, which are cut where the rows of a merged view continue in other memory."""
        log = frame_of(morsel.rows)
        prepared = []
        for begin, end, beside in parts_of(morsel.rows.num_rows, merged):
            others = [(None if rows is None else frame_of(rows), index, base) for rows, index, base in beside]
            prepared.append(self.staged(end - begin, [(log, None, begin), *others], morsel.origin, morsel.start, begin))
        return prepared

    def staged(self, rows: int, sources: list[Rows], origin: Any, start: int, first: int = 0) -> Prepared:
        """Run the stages before the last program over rows."""
        began = time.perf_counter()
        prepared = self.stages.prepare(rows, sources, origin, start, first)
        self.stats.add("filter", rows, time.perf_counter() - began)
        return prepared

    # ---- the whole log
    def _scan(self, start: int, stop: int | None = None, elsewhere: Elsewhere | None = None) -> Iterator[Morsel]:
        return self.log.view.source.scan(
            self.columns[0],
            start=start,
            stop=stop,
            rows=self.morsel_rows,
            threads=self.threads,
            prune=prune_expression(self.log),
            **aside(elsewhere),
        )

    def _end_early_scan(self) -> None:
        if self.early is not None:
            self.early.close()
            self.early = None

    def _cursors(self, first: int | None, others: Sequence[Elsewhere | None]) -> list[MergeCursor]:
        """Open the views that are merged by id; no id of the log is below ``first``."""
        # A fourth of the threads: the log itself takes several times as long to decode as numbers. Threads that wait for
        # another decoder need no core, and more of them keep it busy.
        few, many = max(2, self.threads // 4), max(2, self.threads // 2)
        return [
            MergeCursor(s.view, s.on, self.columns[k], first, self.morsel_rows, few if o is None else many, o)
            for k, (s, o) in enumerate(zip(self.log.sources, others, strict=True))
            if s.on is not None
        ]

    def _least_id(self, start: int) -> int | None:
        """Return a lower bound of the ids from row ``start`` of the log on, without reading rows; None if none is known."""
        least = getattr(self.log.view.source, "least", None)  # sources without statistics have none
        return least(self.log.key[0], start) if self.merged and least is not None else None

    def stream(
        self, start: int = 0, stop: int | None = None, elsewhere: Sequence[Elsewhere | None] = ()
    ) -> Generator[tuple[Morsel, list[Aligned]], None, None]:
        """Yield the morsels of the log, as record batches, with the rows that are merged into them.

        ``elsewhere``: for each source, the decoder that writes its columns to other memory, as for `Source.scan`."""
        others = list(elsewhere) or [None] * len(self.log.sources)
        early, self.early = self.early, None
        if early is not None and early.start != start:
            early.close()
            early = None
        scan = self._scan(start, stop, others[0]) if early is None else early.morsels()
        first = self._least_id(start) if any(others[1:]) else None
        cursors = [] if first is None else self._cursors(first, others)
        ascend = self.merged and ascends(self.log.view, self.log.key[0])
        last: int | None = None
        began = time.perf_counter()
        try:
            for morsel in scan:
                if stop is not None and morsel.start >= stop:
                    break
                if stop is not None and morsel.start + morsel.rows.num_rows > stop:
                    morsel = Morsel(morsel.rows.slice(0, stop - morsel.start), morsel.origin, morsel.start)
                merged: list[Aligned] = []
                if self.merged:
                    what = f"id of view {self.log.name!r}"
                    ids = ids_of(morsel.rows, self.id_at, what, morsel.origin, ascend=ascend)
                    if len(ids) and last is not None and ids[0] <= last:
                        raise DataError(
                            f"id {ids[0]} of view {self.log.name!r} comes after {last} at {morsel.origin.name(0)}"
                            f"; "
                            f"expected ids in ascending order without repeats: sort the data, or use merge(…, "
                            f"ordered=False)"
                        )
                    if len(ids):
                        last = int(ids[-1])
                    if first is not None and len(ids) and ids[0] < first:  # the log's statistics are wrong
                        for cursor in cursors:
                            cursor.close()
                        cursors = []
                    if not cursors:
                        first = int(ids[0]) if len(ids) else None
                        cursors = self._cursors(first, others)
                    merged = [c.align(ids) for c in cursors]
                    for cursor in cursors:
                        self.joins.merge(cursor.name, len(ids), len(ids) - cursor.found)
                self.stats.add("read", morsel.rows.num_rows, time.perf_counter() - began)
                yield morsel, merged
                began = time.perf_counter()
            for cursor in cursors:
                cursor.finish()
        finally:
            for reading in (scan, *cursors):
                close = getattr(reading, "close", None)
                if close is not None:
                    close()

    def pieces(
        self,
        batch_size: int,
        start: int,
        pool: Executor,
        limit: int | None = None,
        stop: int | None = None,
    ) -> Generator[list[tuple[Prepared, int, int]], None, None]:
        """Yield the filtered rows of each batch, in order; a batch is a list of (prepared rows, begin, count)."""
        gathered: list[tuple[Prepared, int, int]] = []
        missing, left = batch_size, limit
        morsels = in_order(lambda item: self.prepare_parts(*item), self.stream(start, stop), pool, self.under_way)
        try:
            for prepared in itertools.chain.from_iterable(morsels):
                begin, end = 0, prepared.rows
                if left is not None:
                    end = min(end, left)
                    left -= end
                while begin < end:
                    take = min(missing, end - begin)
                    gathered.append((prepared, begin, take))
                    begin += take
                    missing -= take
                    if not missing:
                        yield gathered
                        gathered, missing = [], batch_size
                if left == 0:  # what lies behind the limit was not asked for, an error neither
                    break
            if gathered:
                yield gathered
        finally:
            morsels.close()

    def each_batch(
        self,
        run: Callable[[list[tuple[Prepared, int, int]]], T],
        batch_size: int,
        start: int = 0,
        limit: int | None = None,
        stop: int | None = None,
    ) -> Generator[tuple[T, int], None, None]:
        """Yield what ``run`` returns for the pieces of each batch, in order, with the row at which the next batch begins."""

        def batch(pieces: list[tuple[Prepared, int, int]]) -> tuple[T, int]:
            prepared, begin, count = pieces[-1]
            return run(pieces), prepared.start + prepared.row(begin + count - 1) + 1

        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="ctrbox-extract")
        results = in_order(batch, self.pieces(batch_size, start, pool, limit, stop), pool, self.under_way)
        try:
            yield from watched(results, self.joins.warn, self.casts.warn)
        finally:
            results.close()
            end(pool)

    def batches(
        self, batch_size: int, start: int = 0, limit: int | None = None, stop: int | None = None
    ) -> Generator[tuple[Batch, int], None, None]:
        """Yield batches in order, each with the row of the log at which the next one begins. ``limit``: maximum number of rows;
        ``stop``: the first row of the log that is not read."""
        return self.each_batch(self.run, batch_size, start, limit, stop)

    def parts(
        self, batch_size: int, start: int, stop: int | None, part: int, of: int
    ) -> Generator[tuple[Batch, int, int], None, None]:
        """Yield part ``part`` of ``of`` of each batch, with the row at which the next batch begins and the number of rows of the
        whole batch. Operators run over the rows of the part alone."""

        def run(pieces: list[tuple[Prepared, int, int]]) -> tuple[Batch, int]:
            rows = sum(count for _, _, count in pieces)
            return self.run(cut(pieces, rows * part // of, rows * (part + 1) // of)), rows

        with closing(self.each_batch(run, batch_size, start, None, stop)) as stream:
            for (batch, rows), after in stream:
                yield batch, rows, after

    def numbered(
        self, batch_size: int, start: int, stop: int | None
    ) -> Generator[tuple[Batch, np.ndarray], None, None]:
        """Yield batches in order, each with the numbers of its rows in the log."""

        def run(pieces: list[tuple[Prepared, int, int]]) -> tuple[Batch, np.ndarray]:
            numbers = [prepared.start + prepared.numbers(begin, count) for prepared, begin, count in pieces]
            return self.run(pieces), np.concatenate(numbers)

        with closing(self.each_batch(run, batch_size, start, None, stop)) as stream:
            yield from (found for found, _ in stream)

    def frames(
        self, rows: int, start: int = 0, limit: int | None = None, stop: int | None = None
    ) -> Generator[Any, None, None]:
        """Yield the outputs (role "column") as native frames of ``rows`` rows, in the order of the log."""
        nodes = [o.node for o in self.outputs]
        kinds, nullable = [n.kind for n in nodes], [n.nullable for n in nodes]

        def run(pieces: list[tuple[Prepared, int, int]]) -> Any:
            keep = list({id(f): f for p, _, _ in pieces for f, _, _ in p.sources if f is not None}.values())
            try:
                return self.body.native.run_frame([p.piece(b, n) for p, b, n in pieces], kinds, nullable, keep)[0]
            except _native.RowError as error:
                raise located(error, pieces) from None

        with closing(self.each_batch(run, rows, start, limit, stop)) as stream:
            yield from (frame for frame, _ in stream)


def cut(pieces: list[tuple[Prepared, int, int]], first: int, last: int) -> list[tuple[Prepared, int, int]]:
    """Return the pieces of the rows ``first`` to ``last`` of a batch."""
    found, at = [], 0
    for prepared, begin, count in pieces:
        low, high = max(first - at, 0), min(last - at, count)
        if low < high:
            found.append((prepared, begin + low, high - low))
        at += count
    # A part without rows still has the shape of the batch.
    return found or [(pieces[0][0], pieces[0][1], 0)]


def end(pool: ThreadPoolExecutor) -> None:
    """Wait until the pool's threads have ended. If the user presses Ctrl-C meanwhile, raise KeyboardInterrupt afterwards."""
    try:
        pool.shutdown(wait=True, cancel_futures=True)
    except KeyboardInterrupt:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
