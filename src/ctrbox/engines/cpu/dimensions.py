"""Joined views: read once, cleaned, hoisted operators run, indexed by key."""

from __future__ import annotations

import numpy as np

from ctrbox import _native
from ctrbox.engines.cpu.arrow import frame_of
from ctrbox.engines.cpu.assemble import Assembler, Dimension
from ctrbox.engines.cpu.stages import Prepared, Rows, Stages, located
from ctrbox.engines.cpu.tables import Tables
from ctrbox.errors import DataError
from ctrbox.plan.graph import FrameSpec, Graph
from ctrbox.plan.node import Node

LOAD_ROWS = 262_144  # rows of a dimension handled at a time


def load_dimension(
    graph: Graph, frame: FrameSpec, tables: Tables, dimensions: dict[int, Dimension], chunk_rows: int
) -> Dimension:
    """Read, clean, compute what was hoisted, index."""
    columns = graph.columns(frame, 0)
    where = {name: k for k, name in enumerate(columns)}
    check_budget(frame, columns)

    def column_at(node: Node) -> tuple[int, int]:
        return 0, where[node.name]

    assert frame.hash is not None
    asked = graph.asked[frame.id]

    def program(filters: list[Node]) -> tuple[Stages, Assembler]:
        assembler = Assembler(tables, dimensions, column_at, chunk_rows)
        return Stages(assembler, filters, [*asked, frame.hash], 1), assembler  # type: ignore[list-item]

    stages, assembler = program(frame.filters)
    body = assembler.assemble(asked, list(enumerate(asked)), stages.sources)
    hashing = assembler.assemble([frame.hash], [(0, frame.hash)], stages.sources)

    parts: list[Prepared] = []
    hashes: list[np.ndarray] = []
    for morsel in frame.view.source.scan(columns, rows=LOAD_ROWS):
        rows: list[Rows] = [(frame_of(morsel.rows), None, 0)]
        part = Prepared(morsel.rows.num_rows, rows, None, morsel.origin, morsel.start)
        try:
            part = stages.prepare(part.rows, rows)
            part.origin, part.start = morsel.origin, morsel.start
            if not part.rows:
                continue
            kept, _ = hashing.native.run_frame([part.piece(0, part.rows)], ["k"], [frame.hash.nullable], [])
        except _native.RowError as error:
            raise located(error, [(part, 0, part.rows)]) from None
        _, valid, (values,) = kept.export(0)
        if valid is not None and not valid.all():
            raise DataError(
                f"key {frame.key[0]!r} of view {frame.name!r} is null at {part.origin.name(part.row(int(valid.argmin())))}; "
                f"filter those rows: .filter(~col({frame.key[0]!r}).is_null())"
            )
        parts.append(part)
        hashes.append(values)
    every = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
    index, first, second = _native.Index.build(every, frame.view.keep == "last")
    if first >= 0:
        raise DataError(duplicate(frame, parts, first, second))
    records = _native.Records([n.kind for n in asked], [n.nullable for n in asked])
    try:
        body.native.run_records([part.piece(0, part.rows) for part in parts], records)
    except _native.RowError as error:
        raise located(error, [(part, 0, part.rows) for part in parts]) from None
    if frame.role == "inner":
        records.add_blank()  # met only by rows that the join's filter is about to drop
    else:  # the row for missing keys: nulls, cleaned like any other but past the filters
        unfiltered, assembler = program([])
        null_row = unfiltered.prepare(1, [(None, None, 0)]).piece(0, 1)
        assembler.assemble(asked, list(enumerate(asked)), unfiltered.sources).native.run_records([null_row], records)
    index.point_at(records)
    return Dimension(
        frame.name,
        index,
        records,
        len(every),
        records.null_row,
        {n.id: k for k, n in enumerate(asked)},
        [body, *stages.programs],
    )


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
    return (
        f"view {frame.name!r} has key {values[0]} more than once ({where[0]} and {where[1]}); "
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
    source = frame.view.source
    if frame.budget_bytes is None or source.rows is None:
        return
    need = source.rows * (32 + 16 * len(columns))  # two index slots at half load, and an entry a column
    if need > frame.budget_bytes:
        raise DataError(
            f"merging {frame.name!r} out of id order would index {source.rows:,} rows in about {need >> 20:,} MB, over the "
            f"budget of {frame.budget_bytes >> 20:,} MB; sort both sides by id (streams), or raise merge(…, budget=…)"
        )
