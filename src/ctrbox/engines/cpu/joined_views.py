"""Loads joined views: reads and cleans their rows, runs hoisted operators, and indexes the rows by key.

A view that takes more memory than its budget is refused, or stored on a disk if the join allows that (spilled_views.py).
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ctrbox import _native
from ctrbox.engines.cpu.assemble_program import Assembler, Dimension
from ctrbox.engines.cpu.frames_and_arrow import frame_of
from ctrbox.engines.cpu.in_order import in_order
from ctrbox.engines.cpu.morsel_stages import Stages, located
from ctrbox.engines.cpu.operator_tables import Tables
from ctrbox.engines.cpu.spilled_views import SpilledViewFiles
from ctrbox.engines.cpu.view_runs import MOST_IN_MEMORY, Ahead, Part, Run, fill_run, memory_of
from ctrbox.errors import BudgetError, DataError
from ctrbox.plan.graph.graph import FrameSpec, Graph
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.types_of_operators import origin
from ctrbox.plan.placement.device_description import shown_bytes
from ctrbox.views.columns_as_recorded import opened
from ctrbox.views.source import Morsel

LOAD_ROWS = 16_384  # rows of a dimension handled at a time: small enough that one row group keeps several cores busy


def load_dimension(
    graph: Graph,
    frame: FrameSpec,
    tables: Tables,
    dimensions: dict[int, Dimension],
    chunk_rows: int,
    threads: int,
    stop: threading.Event,
) -> Dimension:
    """Read and clean the rows of a view, run its hoisted operators and index the rows, which keep the order of the source.

    Once ``stop`` is set, it raises a CancelledError within one part."""
    columns = graph.columns(frame, 0)
    where = {name: k for k, name in enumerate(columns)}

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

    check_budget(frame, no_records().fixed_bytes)
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

    def row_for_missing_keys() -> Any:
        row = no_records()
        if frame.role == "inner":
            row.add_blank()  # met only by rows that the join's filter is about to drop
            return row
        # Nulls, cleaned like any other row but past the filters.
        unfiltered, assembler = program([])
        nulls = unfiltered.prepare(1, [(None, None, 0)]).piece(0, 1)
        assembler.assemble(asked, list(enumerate(asked)), unfiltered.sources).native.run_records([nulls], row)
        return row

    files: SpilledViewFiles | None = None
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="ctrbox-join") as pool:
            morsels = frame.view.source.scan(columns, rows=LOAD_ROWS, threads=threads)
            loaded = Ahead(in_order(load, morsels, pool, threads + 1, stop))
            try:
                run = fill_run(loaded, no_records(), frame.budget_bytes, pool, threads, stop)
                needed = run.needed_bytes
                if loaded.waiting is not None or needed > frame.budget_bytes:
                    if frame.spill is None:
                        raise BudgetError(over_budget(frame, run))
                    files = SpilledViewFiles(frame, run.records, threads)
                    files.add(run)
                    while loaded.waiting is not None:
                        del run  # its memory is for the next one
                        run = fill_run(loaded, no_records(), files.budget_of_a_run, pool, threads, stop)
                        needed += run.needed_bytes
                        files.add(run)
            finally:
                loaded.close()
        dimension = Dimension(
            frame.name,
            None,
            None,
            0,
            0,
            {n.id: k for k, n in enumerate(asked)},
            [body, *stages.programs],
            budget_bytes=frame.budget_bytes,
            needed_bytes=needed,
        )
        if files is not None:
            del run
            first, second = files.merge(stop)
            if first >= 0:
                raise DataError(duplicate(frame, first, second))
            view = files.finish(row_for_missing_keys())
            dimension.index = dimension.records = view
            dimension.rows, dimension.null_row = view.rows, view.null_row
            dimension.folder, dimension.memory_bytes = files.folder, view.memory_bytes
            return dimension
    finally:
        if files is not None:
            files.close()
    dimension.index = indexed(frame, run, threads)
    dimension.records, null_row = run.records, row_for_missing_keys()
    dimension.records.put(dimension.records.place(null_row), null_row)
    dimension.index.point_at(dimension.records, threads)
    dimension.rows, dimension.null_row, dimension.memory_bytes = run.rows, dimension.records.null_row, needed
    return dimension


def indexed(frame: FrameSpec, run: Run, threads: int) -> Any:
    """Build the index of a view in memory. Raise a DataError that names two rows if they have the same key."""
    keep_last = frame.view.keep == "last"
    index: Any
    if frame.time is None:
        index, first, second = _native.Index.build(run.every_hash, keep_last, threads)
    else:
        index, first, second = _native.AsOfIndex.build(run.every_hash, run.every_time, keep_last, threads)
    if first >= 0:
        rows = run.source_rows
        raise DataError(duplicate(frame, int(rows[first]), int(rows[second])))
    return index


def null_key(frame: FrameSpec, what: str, where: str) -> str:
    name = frame.key[0] if what == "key" or frame.time is None else origin(frame.time).name
    return f"{what} {name!r} of view {frame.name!r} is null at {where}; filter those rows: .filter(~col({name!r}).is_null())"


def duplicate(frame: FrameSpec, first: int, second: int) -> str:
    """Say which key two rows of the source share."""
    (one, here), (other, there) = (key_at(frame, row) for row in (first, second))
    if one != other:
        return f"keys {one} and {other} of view {frame.name!r} have the same 64-bit hash; join on another column"
    same = (
        "more than once" if frame.time is None else f"more than once with the same time in {origin(frame.time).name!r}"
    )
    return (
        f"view {frame.name!r} has key {one} {same} ({here} and {there}); "
        f"make the keys unique, or keep only the last row of each key: View(…, keep='last')"
    )


def key_at(frame: FrameSpec, row: int) -> tuple[str, str]:
    """Return a key as it stands in the data, read again from the source, and where it is."""
    for morsel in frame.view.source.scan(list(frame.key), start=row, rows=1):
        values = [f"{name}={morsel.rows.column(k)[0].as_py()!r}" for k, name in enumerate(frame.key)]
        return ", ".join(values), morsel.origin.name(0)
    return "?", f"row {row}"


def check_budget(frame: FrameSpec, record_bytes: int) -> None:
    """Refuse a view before a row is read if records without strings and lists alone pass the budget."""
    source = opened(frame.view.source)
    if source.rows is None or frame.filters or frame.spill is not None:
        return
    need = memory_of(source.rows * record_bytes, source.rows, frame.time is not None)
    if need > frame.budget_bytes:
        raise BudgetError(
            f"{called(frame)} needs at least {shown_bytes(need)} of memory for its {source.rows:,} rows, more than its "
            f"budget of {shown_bytes(frame.budget_bytes)}; {remedies(frame)}"
        )


def over_budget(frame: FrameSpec, run: Run) -> str:
    total, read = opened(frame.view.source).rows, run.rows_read
    rows = f"{run.rows:,} rows" if total is None or frame.filters else f"{run.rows:,} of its {total:,} rows"
    whole = ""
    if total is not None and total > read > 0:
        whole = f" (all rows about {shown_bytes(run.needed_bytes * total / read)})"
    limit = f"its budget is {shown_bytes(frame.budget_bytes)}"
    if frame.budget_bytes > MOST_IN_MEMORY:
        limit = f"{shown_bytes(MOST_IN_MEMORY)} is the most that the records of a joined view can take in memory"
    more = " and there are more" if run.needed_bytes <= frame.budget_bytes else ""
    view = called(frame).removesuffix(",")
    return f"{view}: {rows} take {shown_bytes(run.needed_bytes)} of memory{whole}{more}; {limit}; {remedies(frame)}"


def called(frame: FrameSpec) -> str:
    return (
        f"merged view {frame.name!r}, which is not merged as a stream,"
        if frame.merged
        else f"joined view {frame.name!r}"
    )


def remedies(frame: FrameSpec) -> str:
    if frame.merged:
        return (
            "sort both views by id, so that they are merged as streams, raise merge(…, budget=…), or store the view on a "
            "local disk: merge(…, spill=True)"
        )
    return "raise join(…, budget=…), or store the view on a local disk: join(…, spill=True), or spill='/a/folder'"
