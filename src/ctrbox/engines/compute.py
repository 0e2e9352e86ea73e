"""Computes expressions over the rows of a view as tables, without the batches, labels and keys of a plan (``cb.compute``)."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Schema
from ctrbox.columns.kind import arrow_type
from ctrbox.engines.cpu.extract import CHUNK_ROWS, Extractor
from ctrbox.engines.cpu.frames_and_arrow import column_of
from ctrbox.errors import PlanError
from ctrbox.plan.graph.build_graph import build_columns
from ctrbox.views.view import View

if TYPE_CHECKING:
    from ctrbox.compiled_plan.plan import Plan

EVALUATE_ROWS = 65_536
NO_FEATURES = Schema((), (), False, False, False)


def columns_of(
    plan: Plan, columns: dict[str, Any], rows: int, start: int, stop: int | None
) -> Generator[pa.Table, None, None]:
    """Yield tables of expressions over the log of a plan, ``rows`` rows each; `Plan.columns` describes the arguments."""
    rows, start = whole("rows", rows, 1, 2**31 - 1), whole("start", start, 0, 2**62)
    stop = None if stop is None else whole("stop", stop, 0, 2**62)
    graph = build_columns(plan.log, columns)
    if graph.fits:
        raise PlanError(
            "this call cannot run operators that are fitted on the log (bucketize(quantiles=…), standardize, rate, …); "
            "remove them from the columns"
        )
    extractor = Extractor(graph, {}, schema=NO_FEATURES, chunk_rows=plan.chunk_rows, threads=plan.threads)
    frames = extractor.frames(rows, start, None, stop)
    try:
        for frame in frames:
            yield pa.table({name: column_of(frame, k) for k, name in enumerate(columns)})
    finally:
        frames.close()


def compute(columns: dict[str, Any], rows: Any, *, chunk_rows: int = CHUNK_ROWS) -> pa.Table:
    """Evaluate expressions for the rows of a view, or of any Arrow data, and return a table. Nulls are kept, and filters are
    applied.
    """
    view = rows if isinstance(rows, View) else View(rows)
    graph = build_columns(view, columns)
    graph.check_units()
    if graph.fits:
        raise PlanError(
            "compute cannot run operators that are fitted on the log (bucketize(quantiles=…), standardize, shows, clicks, rate); "
            "make a plan with cb.compile"
        )
    extractor = Extractor(graph, {}, schema=NO_FEATURES, chunk_rows=chunk_rows)
    parts = [
        pa.table({name: column_of(frame, k) for k, name in enumerate(columns)})
        for frame in extractor.frames(EVALUATE_ROWS)
    ]
    if parts:
        return pa.concat_tables(parts)
    return pa.table({o.name: pa.array([], arrow_type(o.node.kind)) for o in graph.outputs})
