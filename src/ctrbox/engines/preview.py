"""Shows the columns and the first rows of a view after its steps."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.columns.kind import arrow_type
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cpu.frames_and_arrow import column_of
from ctrbox.errors import CtrboxError, PlanError
from ctrbox.plan.graph.build_graph import Unusable, build_columns, columns_after
from ctrbox.plan.language.expressions import col
from ctrbox.plan.language.node import Node
from ctrbox.show.notebook import framed, grid, said
from ctrbox.views.view import View

MOST_ROWS = 1_000_000
SHOWN = 5  # rows in a notebook


def schema(view: View) -> pa.Schema:
    """Return the columns of a view after its steps, with their types and whether they may be null. Reads no row.

    A column that no step changes has the type of its source; a computed or joined one has the type that the engines
    compute with. Columns of types that cannot be read, such as maps, are listed as well.
    """
    return pa.schema([_field(view, name, node) for name, node in columns_after(view).items()])


def _field(view: View, name: str, node: Node | Unusable) -> pa.Field:
    if isinstance(node, Unusable):
        return pa.field(name, node.type)
    if node.op == "column" and node.frame == 0 and node.param("source") == 0:
        stored = view.source.schema.field(node.name).type
        if not view.steps or not node.kind.startswith("*"):
            return pa.field(name, stored, node.nullable)
    return pa.field(name, arrow_type(node.kind), node.nullable)


def head(view: View, n: int) -> pa.Table:
    """Return the first `n` rows of a view after its steps. Reads no further than it must; joined views are read whole."""
    rows = whole("n", n, 0, MOST_ROWS)
    columns = columns_after(view)
    known = pa.schema([_field(view, name, node) for name, node in columns.items() if not isinstance(node, Unusable)])
    if not rows or not known.names:
        return known.empty_table()
    parts = _raw(view, known.names, rows) if not view.steps else _computed(view, known, rows)
    found, count = [], 0
    for part in parts:
        found.append(part.slice(0, rows - count))
        count += found[-1].num_rows
        if count == rows:
            break
    return pa.concat_tables(found).combine_chunks() if found else known.empty_table()


def _raw(view: View, names: list[str], rows: int) -> Iterator[pa.Table]:
    morsels = view.source.scan(names, rows=rows, threads=0)
    try:
        for morsel in morsels:
            yield pa.Table.from_batches([morsel.rows])
    finally:
        close = getattr(morsels, "close", None)
        if close is not None:
            close()


def _computed(view: View, known: pa.Schema, rows: int) -> Iterator[pa.Table]:
    graph = build_columns(view, {name: col(name) for name in known.names})
    if graph.fits:
        raise PlanError(
            "head cannot run operators that are fitted on the log (bucketize(quantiles=…), standardize, shows, clicks, "
            "rate); select other columns, or make a plan with cb.compile"
        )
    extractor = Extractor(graph, {}, schema=Schema((), (), False, False, False))
    frames = extractor.frames(rows, 0, rows)
    try:
        for frame in frames:
            arrays = [column_of(frame, k) for k in range(len(known))]
            yield pa.table([a.cast(f.type) for a, f in zip(arrays, known, strict=True)], schema=known)
    finally:
        frames.close()


def for_notebook(view: View) -> str:
    """Return the columns of a view and its first rows as HTML. If the rows cannot be read, the reason takes their place."""
    types = {field.name: f"{field.type}{'' if field.nullable else ', not null'}" for field in schema(view)}
    try:
        rows = head(view, SHOWN)
    except CtrboxError as error:
        return framed(repr(view), grid(list(types.items()), []), said(error))
    names = rows.column_names
    lines = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    left = [name for name in types if name not in names]
    note = said(f"columns of types that cannot be read: {', '.join(left)}") if left else ""
    return framed(repr(view), grid([(name, types[name]) for name in names], lines), note)
