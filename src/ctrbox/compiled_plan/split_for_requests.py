"""Splits a plan into two parts for requests that have one context and many candidates.

    context row ──► context features ─────────────────────────────► batch of 1 row      once a context
              └───► what candidates read of it ─► frame of 1 row ─┐
    candidate rows ────────────────────────────────────────────── ┴► batch of n rows    each request

Every operator that reads nothing but the context's columns, and the views joined by them, runs over one row. This also holds if
a candidate's feature (a cross, an overlap) or a filter uses its result: all candidates then read the result of that one row.
The operators are the plan's own, so the features have the bits of the plan over the joined rows. Filters run with the candidates;
``index`` of their batch says which candidates passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox import _native
from ctrbox.arguments.names import nearest
from ctrbox.columns.batch import Batch, Ragged, Schema
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cpu.frames_and_arrow import frame_of
from ctrbox.engines.cpu.morsel_stages import Prepared, Rows, located
from ctrbox.engines.missed_keys import JoinCount, counted_in
from ctrbox.engines.run_on_request import ORIGIN
from ctrbox.errors import DataError, PlanError
from ctrbox.plan.graph.graph import Graph, Output
from ctrbox.plan.graph.unlabeled import LABELS, without_label_filters
from ctrbox.plan.language.node import Node, closure
from ctrbox.views.morsel import Origin

FEATURES = ("dense", "sparse")
ARRAY = 256  # bytes of a small array beside its values: its object, its share of a dictionary, an allocator's own


@dataclass(frozen=True)
class ContextPart:
    """The results of one context row: its features, and the values that candidates read of it.

    The frame holds exactly its own bytes and keeps nothing of the request alive, so that a cache can count its bytes. The
    features are in buffers with room for more rows; a caller that keeps them should keep the part that `owned` returns.
    """

    batch: Batch
    frame: Any  # _native.Frame of one row; None where candidates read nothing of it

    def owned(self) -> ContextPart:
        """Return a copy of the part whose batch holds exactly its own bytes."""
        return ContextPart(own(self.batch), self.frame)

    @property
    def bytes(self) -> int:
        """Bytes that the part holds, with an estimate of its Python objects."""
        arrays = 1 + 2 * len(self.batch.schema.sparse)
        keys = sum(r.values.nbytes + r.offsets.nbytes for r in self.batch.sparse.values())
        frame = 0 if self.frame is None else self.frame.bytes
        return int(keys + self.batch.dense.nbytes + frame + arrays * ARRAY)


class _Once(Origin):
    """The origin of a context, which is one row without a number."""

    def name(self, offset: int) -> str:
        return self.path


CONTEXT = _Once("the request's context", 0)


class Split:
    """A plan for requests whose ``columns`` of the log come once. Thread-safe.

    ``context_schema`` and ``candidate_schema`` are the columns that are read, of the log's types; rows come as record batches of
    exactly these.
    """

    def __init__(self, plan: Plan, columns: Sequence[str]) -> None:
        log = plan.log.source.schema
        for name in columns:
            if name not in log.names:
                raise PlanError(f"column {name!r} is not in view {plan.log.name!r}{nearest(name, log.names)}")
        full = plan._request_extractor()
        graph = without_label_filters(plan.graph, (*LABELS, "group"))
        outputs = [o for o in graph.outputs if o.role in FEATURES]
        mine = reads_only(graph, frozenset(columns))
        once = [o for o in outputs if o.node.id in mine]
        each = [o for o in outputs if o.node.id not in mine]
        shared = frontier([*(o.node for o in each), *graph.frames[0].filters], mine)
        # The context's own programs know no filter: filters run with the candidates, who may pass them.
        bare = replace(graph.frames[0], filters=[])
        unfiltered = Graph(graph.typed, [bare, *graph.frames[1:]], graph.outputs, graph.fits)

        def extractor(graph: Graph, outputs: list[Output], given: Sequence[Node] = ()) -> Extractor:
            schema = part_of(full.schema, outputs)
            options: dict[str, Any] = {"chunk_rows": plan.chunk_rows, "threads": plan.threads, "given": given}
            return Extractor(graph, plan.fitted, schema=schema, outputs=outputs, dimensions=full.dimensions, **options)

        self.once = extractor(unfiltered, once)
        self.shared = extractor(unfiltered, [Output("column", f"given {n.id}", n) for n in shared]) if shared else None
        self.each = extractor(graph, each, shared)
        self.schema = replace(full.schema, label=False, weight=False, group=False, tasks=())
        self.kinds = [n.kind for n in shared]
        self.nullable = [n.nullable for n in shared]
        read = dict.fromkeys([*self._read(self.once), *(self._read(self.shared) if self.shared else ())])
        self.context_schema = plain_schema(log, list(read))
        self.candidate_schema = plain_schema(log, self._read(self.each))
        self.merged = len(graph.frames[0].sources) - 1
        self.zeros = np.zeros(1024, np.int32)

    def joins(self) -> list[JoinCount]:
        """Return what the joins of requests have met so far; those of a context once for each time that it is computed."""
        return counted_in([self.once, self.each, *([self.shared] if self.shared else [])])

    @property
    def context_features(self) -> Schema:
        return self.once.schema

    @property
    def candidate_features(self) -> Schema:
        return self.each.schema

    def context(self, row: Any) -> ContextPart:
        """Return the context's part of a request, from one row of ``context_schema``.

        ``row``: a record batch, or a native frame of just these columns.
        """
        if isinstance(row, _native.Frame):
            if row.rows != 1:
                raise DataError(f"a context must have exactly one row, got {row.rows} rows")
        elif row.num_rows != 1 or not row.schema.equals(self.context_schema):
            raise DataError(
                f"a context must have exactly one row with the columns {self.context_schema.names}, got {row.num_rows} rows "
                f"with {row.schema.names}"
            )
        batch = self._run(self.once, self._sources(self.once, row), 1, CONTEXT)
        if self.shared is None:
            return ContextPart(batch, None)
        sources = self._sources(self.shared, row)
        prepared = self.shared.staged(1, sources, CONTEXT, 0)
        keep = list({id(f): f for f, _, _ in prepared.sources if f is not None}.values())
        try:
            frame, _ = self.shared.body.native.run_frame([prepared.piece(0, 1)], self.kinds, self.nullable, keep)
        except _native.RowError as error:
            raise located(error, [(prepared, 0, 1)]) from None
        return ContextPart(batch, frame.compacted())

    def candidates(self, context: Any, rows: Any) -> Batch:
        """Return the features of the candidates, from rows of ``candidate_schema``, without the candidates that a filter drops.

        ``context``: the frame of the context's part. ``rows``: a record batch, or a native frame of just these columns.
        """
        if isinstance(rows, _native.Frame):
            count = rows.rows
            sources: list[Rows] = [(rows, None, 0), *[(None, None, 0)] * self.merged]
        else:
            if not rows.schema.equals(self.candidate_schema):
                raise DataError(
                    f"candidates must have the columns {self.candidate_schema.names}, got {rows.schema.names}"
                )
            count = rows.num_rows
            sources = self._sources(self.each, rows)
        if context is not None:
            zeros = self.zeros  # read once: another thread may set a longer one meanwhile
            if len(zeros) < count:
                zeros = self.zeros = np.zeros(2 * count, np.int32)
            sources.append((context, zeros[:count], 0))
        return self._run(self.each, sources, count)

    def _sources(self, extractor: Extractor, rows: Any) -> list[Rows]:
        """Return the sources of a program: the columns that it reads from ``rows``, a record batch or the frame of a context."""
        names = self._read(extractor)
        frame = None
        if names and isinstance(rows, _native.Frame):
            frame = rows.selected([self.context_schema.get_field_index(name) for name in names])
        elif names:
            frame = frame_of(rows if names == rows.schema.names else rows.select(names))
        return [(frame, None, 0), *[(None, None, 0)] * self.merged]

    @staticmethod
    def _read(extractor: Extractor) -> list[str]:
        """Return the log's columns that programs load; an id that only a merge reads comes after them."""
        return [n for n in extractor.columns[0] if n not in extractor.only_for_merge]

    @staticmethod
    def _run(extractor: Extractor, sources: list[Rows], count: int, origin: Origin = ORIGIN) -> Batch:
        if not extractor.stages.steps:
            return extractor.run([(Prepared(count, sources, None, origin), 0, count)])
        prepared = extractor.staged(count, sources, origin, 0)
        batch = extractor.run([(prepared, 0, prepared.rows)])
        return batch if prepared.selected is None else replace(batch, index=prepared.selected)

    def joined(self, part: ContextPart, candidates: Batch) -> Batch:
        """Return one batch with the context's features in every row, as the plan makes it from the joined rows."""
        rows = candidates.rows
        columns: dict[str, np.ndarray] = {}
        for batch in (part.batch, candidates):
            at = 0
            for name, width in batch.schema.dense:
                columns[name] = np.broadcast_to(batch.dense[:, at : at + width], (rows, width))
                at += width
        dense = np.empty((rows, self.schema.dense_width), np.float32)
        if columns:
            np.concatenate([columns[name] for name, _ in self.schema.dense], axis=1, out=dense)
        sparse: dict[str, Ragged] = {}
        for field in self.schema.sparse:
            if field.name in candidates.sparse:
                sparse[field.name] = candidates.sparse[field.name]
            else:
                values = part.batch.sparse[field.name][0]
                offsets = np.arange(rows + 1, dtype=np.int64) * len(values)
                sparse[field.name] = Ragged(np.tile(values, rows), offsets)
        return Batch(self.schema, rows, None, dense, sparse, None, None, candidates.index)


def own(batch: Batch) -> Batch:
    """Return a batch with arrays of its own: those of a program lie in buffers with room for more rows."""
    sparse = {f.name: batch.sparse[f.name] for f in batch.schema.sparse}
    copied = {name: Ragged(r.values.copy(), r.offsets.copy()) for name, r in sparse.items()}
    return replace(batch, dense=batch.dense.copy(), sparse=copied)


def features_of(plan: Plan, columns: Sequence[str]) -> list[str]:
    """Return the features that read nothing but these columns of the log and the views joined by them, under the names that
    models use: the columns of a dense vector are numbered."""
    known = plan.log.source.schema.names
    for name in columns:
        if name not in known:
            raise PlanError(f"column {name!r} is not in view {plan.log.name!r}{nearest(name, known)}")
    mine = reads_only(plan.graph, frozenset(columns))
    schema = part_of(plan.graph.schema(), [o for o in plan.graph.outputs if o.role in FEATURES and o.node.id in mine])
    return [*(f.name for f in schema.sparse), *schema.dense_names]


def reads_only(graph: Graph, columns: frozenset[str]) -> set[int]:
    """Return the ids of the log's nodes that read no other raw columns than these."""
    mine: set[int] = set()
    log = graph.frames[0]
    for node in closure([*(o.node for o in graph.outputs), *log.filters]):  # inputs before users
        if node.op == "column":
            if node.param("source") == 0 and node.name in columns:
                mine.add(node.id)
        elif all(a.id in mine for a in node.args):
            mine.add(node.id)
    return mine


def frontier(roots: Sequence[Node], mine: set[int]) -> list[Node]:
    """Return the nodes of ``mine`` that are roots, or that nodes outside of ``mine`` read; constants belong to both sides."""
    found: dict[int, Node] = {}
    for node in closure(roots, mine):
        if node.id not in mine:
            found.update({a.id: a for a in node.args if a.id in mine and a.op != "literal"})
    found.update({r.id: r for r in roots if r.id in mine and r.op != "literal"})
    return list(found.values())


def part_of(schema: Schema, outputs: Sequence[Output]) -> Schema:
    names = {o.name for o in outputs}
    return Schema(
        tuple(f for f in schema.sparse if f.name in names),
        tuple((name, width) for name, width in schema.dense if name in names),
        False,
        False,
        False,
    )


def plain_schema(log: pa.Schema, names: Sequence[str]) -> pa.Schema:
    def plain(kind: pa.DataType) -> pa.DataType:
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    return pa.schema([(name, plain(log.field(name).type)) for name in names])
