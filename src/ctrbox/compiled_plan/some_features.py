"""Computes some of a plan's sparse features alone, from rows that have just the columns which these features read.

    rows of the log's columns ──► operators of these features, joined views looked up ──► a batch of these features

The operators are the plan's own, so the features have the bits of the plan over whole rows. Filters of the plan do not run:
they may read columns that these rows do not have. `Split` is for requests whose other half comes as well.

Refused: features that read columns which the plan merges from another view, because such columns cannot be looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ctrbox.arguments.names import nearest
from ctrbox.columns.batch import Batch, Schema
from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.split_for_requests import Split, part_of, plain_schema
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cpu.frames_and_arrow import frame_of
from ctrbox.engines.missed_keys import JoinCount, counted_in
from ctrbox.errors import DataError, PlanError
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.graph.unlabeled import LABELS, without_label_filters


class SomeFeatures:
    """The sparse features ``names`` of a plan. ``columns``: the log columns that they read, with their types. Thread-safe."""

    def __init__(self, plan: Plan, names: Sequence[str]) -> None:
        full = plan._request_extractor()
        known = [f.name for f in full.schema.sparse]
        for name in names:
            if name not in known:
                raise PlanError(f"{name!r} is not a sparse feature of this plan{nearest(name, known)}; it has {known}")
        graph = without_label_filters(plan.graph, (*LABELS, "group"))
        outputs = [o for o in graph.outputs if o.role == "sparse" and o.name in names]
        bare = Graph(graph.typed, [replace(graph.frames[0], filters=[]), *graph.frames[1:]], graph.outputs, graph.fits)
        options: dict[str, Any] = {"chunk_rows": plan.chunk_rows, "threads": plan.threads}
        schema = part_of(full.schema, outputs)
        self.extractor = Extractor(
            bare, plan.fitted, schema=schema, outputs=outputs, dimensions=full.dimensions, **options
        )
        for source, merged in zip(self.extractor.log.sources[1:], self.extractor.loaded[1:], strict=True):
            if merged:
                raise PlanError(
                    f"the features {', '.join(map(repr, names))} read column {merged[0]!r}, which the plan merges from view "
                    f"{source.view.name!r}; expected features of the log and of joined views"
                )
        self.columns = plain_schema(plan.log.source.schema, Split._read(self.extractor))

    @property
    def schema(self) -> Schema:
        return self.extractor.schema

    def batch(self, rows: pa.RecordBatch) -> Batch:
        """Return the features of rows that have exactly ``columns``."""
        if not rows.schema.equals(self.columns):
            raise DataError(f"rows must have the columns {self.columns.names}, got {rows.schema.names}")
        frame = frame_of(rows) if self.columns.names else None
        merged = len(self.extractor.columns) - 1
        return Split._run(self.extractor, [(frame, None, 0), *[(None, None, 0)] * merged], rows.num_rows)

    def joins(self) -> list[JoinCount]:
        """Return the counts of the joins of these features so far."""
        return counted_in([self.extractor])
