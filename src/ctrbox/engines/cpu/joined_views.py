"""Loads joined views: reads and cleans their rows, runs hoisted operators, and indexes the rows by key."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrbox import _native
from ctrbox.engines.cpu.arrow import frame_of
from ctrbox.engines.cpu.assemble import Assembler, Dimension
from ctrbox.engines.cpu.in_order import in_order
from ctrbox.engines.cpu.stages import Prepared, Stages, located
from ctrbox.engines.cpu.tables import Tables
from ctrbox.errors import DataError
from ctrbox.plan.graph.graph import FrameSpec, Graph
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.typing import origin
from ctrbox.views.recorded import opened
from ctrbox.views.source import Morsel

LOAD_ROWS = 16_384  # rows of a dimension handled at a time: small enough that one row group keeps several cores busy


@dataclass
class Part:
    """Some rows of a dimension, done."""

    rows: Prepared  # where they come from; what they were made of is gone
    hashes: np.ndarray
    times: np.ndarray | None  # for an as-of join: from when on each row is valid, in microseconds; otherwise None
    records: Any  # _native.Records


def load_dimension(
    graph: Graph,
    frame: FrameSpec,
    tables: Tables,
    dimensions: dict[int, Dimension],
    chunk_rows: int,
    threads: int,
    stop: threading.Event,
) -> Dimension:
    """Read, clean, compute what was hoisted, index. The rows' order is the source's, whatever the number of threads.
    Once ``stop`` is set it ends by CancelledError, within a part."""
    columns = graph.columns(frame, 0)
    where = {name: k for k, name in enumerate(columns)}
    check_budget(frame, columns)

    def column_at(node: Node) -> tuple[int, int]:
        return 0, where[node.name]

    assert frame.hash is not None
    keys = [frame.hash, *([frame.time] if frame.time is not None else [])]
    kinds, nullable = [n.kind for n in keys], [n.nullable for n in keys]
    asked = graph.asked[frame.id]

    def program(filters: list[Node]) -> tuple[Stages, Assembler]:
        assembler = Assembler(tables, dimensions, column_at, chunk_rows)
        return Stages(assembler, filters, [*asked, *keys], 1), assembler

    def no_records() -> Any:
        return _native.Records([n.kind for n in asked], [n.nullable for n in asked])

    stages, assembler = program(frame.filters)
    body = assembler.assemble(asked, list(enumerate(asked)), stages.sources)
    hashing = assembler.assemble(keys, list(enumerate(keys)), stages.sources)

    def load(morsel: Morsel) -> Part:
        records = no_records()
        part = stages.prepare(morsel.rows.num_rows, [(frame_of(morsel.rows), None, 0)], morsel.origin, morsel.start)
        try:
            kept, _ = hashing.native.run_frame([part.piece(0, part.rows)], kinds, nullable, [])
            found = []
            for place, what in enumerate(("key", "time")[: len(keys)]):
                _, valid, (values,) = kept.export(place)
                if valid is not None and not valid.all():
                    raise DataError(null_key(frame, what, part.origin.name(part.row(int(valid.argmin())))))
                found.append(values)
            body.native.run_records([part.piece(0, part.rows)], records)
        except _native.RowError as error:
            raise located(error, [(part, 0, part.rows)]) from None
        part.sources = []
        return Part(part, found[0], found[1] if frame.time is not None else None, records)

    records = no_records()

    def placed(pool: Executor) -> Generator[tuple[Part, tuple[int, int]], None, None]:
        """Give each part its place among the records, in order; the parts are then copied there by all threads."""
        morsels = frame.view.source.scan(columns, rows=LOAD_ROWS, threads=threads)
        loaded = in_order(load, morsels, pool, threads + 1, stop)
        try:
            for part in loaded:
                yield part, records.place(part.records)
        finally:
            loaded.close()

    def put(placed: tuple[Part, tuple[int, int]]) -> Part:
        part, place = placed
        records.put(place, part.records)
        return part

    parts: list[Prepared] = []
    hashes: list[np.ndarray] = []
    times: list[np.ndarray] = []
    with ThreadPoolExecutor(threads, thread_name_prefix="ctrbox-join") as pool:
        for part in in_order(put, placed(pool), pool, threads + 1, stop):
            parts.append(part.rows)
            hashes.append(part.hashes)
            if part.times is not None:
                times.append(part.times)
    every = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
    keep_last = frame.view.keep == "last"
    index: Any
    if frame.time is None:
        index, first, second = _native.Index.build(every, keep_last, threads)
    else:
        moments = np.concatenate(times) if times else np.zeros(0, np.int64)
        index, first, second = _native.AsOfIndex.build(every, moments, keep_last, threads)
    if first >= 0:
        raise DataError(duplicate(frame, parts, first, second))
    if frame.role == "inner":
        records.add_blank()  # met only by rows that the join's filter is about to drop
    else:  # the row for missing keys: nulls, cleaned like any other but past the filters
        unfiltered, assembler = program([])
        null_row = unfiltered.prepare(1, [(None, None, 0)]).piece(0, 1)
        assembler.assemble(asked, list(enumerate(asked)), unfiltered.sources).native.run_records([null_row], records)
    index.point_at(records, threads)
    return Dimension(
        frame.name,
        index,
        records,
        len(every),
        records.null_row,
        {n.id: k for k, n in enumerate(asked)},
        [body, *stages.programs],
    )


def null_key(frame: FrameSpec, what: str, where: str) -> str:
    name = frame.key[0] if what == "key" or frame.time is None else origin(frame.time).name
    return f"{what} {name!r} of view {frame.name!r} is null at {where}; filter those rows: .filter(~col({name!r}).is_null())"


def duplicate(frame: FrameSpec, parts: list[Prepared], first: int, second: int) -> str:
    where, values = [], []
    for row in (first, second):
        for part in parts:
            if row < part.rows:
                local = part.row(row)
                where.append(part.origin.name(local))
                values.append(key_at(frame, part.start + local))
                break
            row -= part.rows
    if values[0] != values[1]:
        return f"keys {values[0]} and {values[1]} of view {frame.name!r} have one 64-bit hash; join on another column"
    same = (
        "more than once" if frame.time is None else f"more than once with the same time in {origin(frame.time).name!r}"
    )
    return (
        f"view {frame.name!r} has key {values[0]} {same} ({where[0]} and {where[1]}); "
        f"make it unique or let the last one win: View(…, keep='last')"
    )


def key_at(frame: FrameSpec, row: int) -> str:
    """A key as the user wrote it, read again from the source."""
    for morsel in frame.view.source.scan(list(frame.key), start=row, rows=1):
        values = [f"{name}={morsel.rows.column(k)[0].as_py()!r}" for k, name in enumerate(frame.key)]
        return ", ".join(values)
    return "?"


def check_budget(frame: FrameSpec, columns: list[str]) -> None:
    """Refuse a hashed merge whose plain columns alone pass the budget."""
    if frame.budget_bytes is None:
        return
    source = opened(frame.view.source)
    if source.rows is None:
        return
    need = source.rows * (32 + 16 * len(columns))  # two index slots at half load, and an entry a column
    if need > frame.budget_bytes:
        raise DataError(
            f"merging {frame.name!r} with ordered=False needs an index of its {source.rows:,} rows, about {need >> 20:,} "
            f"MB, which is over the budget of {frame.budget_bytes >> 20:,} MB; sort both views by id, so that they "
            f"are merged as streams, or raise merge(…, budget=…)"
        )
