"""Runs a plan on the few raw rows of a request, with the same programs that made the training batches.

A request needs the columns of the log that features read. It needs no label and no weight, and no instance id. The columns of a
view that is merged as a stream may come with it: all that are read, or none, and then they are missing and filled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from ctrbox.arguments.names import lacking
from ctrbox.columns.batch import Batch
from ctrbox.columns.kind import kind_of_arrow, name_of
from ctrbox.columns.one_array import one_batch
from ctrbox.columns.raw_values import narrowed, narrower
from ctrbox.columns.times import as_time_advice
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cpu.frames_and_arrow import frame_of
from ctrbox.engines.cpu.morsel_stages import Prepared, Rows
from ctrbox.errors import DataError
from ctrbox.plan.graph.graph import Graph
from ctrbox.views.columns_as_recorded import AgreeingSource, Described
from ctrbox.views.source import Origin, Source, open_source

ORIGIN = Origin("request", 0)


def single(rows: Any) -> Any:
    """Return a table of one chunk as a record batch, and anything else as it is."""
    if isinstance(rows, pa.Table) and rows.num_rows and rows.column(0).num_chunks == 1:
        batches = rows.to_batches()
        return batches[0] if len(batches) == 1 else rows
    return rows


class Requests:
    """Runs requests through one extractor; remembers the last schema that was found to be right.

    ``sent``: the columns of each merged view that show that a request brings the view; those of the label are among them.
    """

    def __init__(self, extractor: Extractor, sent: list[list[str]] | None = None) -> None:
        self.extractor = extractor
        self.sent = extractor.loaded[1:] if sent is None else sent
        self.needed = [n for n in extractor.columns[0] if n not in extractor.only_for_merge]
        log, *others = [source.view.source.schema for source in extractor.log.sources]
        self.types: dict[str, pa.DataType] = {n: log.field(n).type for n in extractor.columns[0]}
        for schema, names in zip(others, extractor.loaded[1:], strict=True):
            self.types = {n: schema.field(n).type for n in names} | self.types
        self.known: tuple[pa.Schema, list[list[int]]] | None = None

    def knows(self, rows: Any) -> bool:
        return self._places(rows) is not None

    def _places(self, rows: Any) -> list[list[int]] | None:
        """Return the places of the columns in rows of the known schema; None for other rows."""
        known = self.known  # read once: another thread may set that of another schema meanwhile
        if known is None or not isinstance(rows, pa.RecordBatch) or not rows.schema.equals(known[0]):
            return None
        return known[1]

    def lacks(self, names: list[str]) -> list[str]:
        return [n for n in self.needed if n not in names]

    def merged(self, names: list[str]) -> list[list[str]]:
        """Return the columns that are read of each merged view: all of them, or none where the request has none."""
        return [part if set(part) <= set(names) else [] for part in self.extractor.loaded[1:]]

    def incomplete(self, names: list[str]) -> str:
        """Return why a request is wrong that has some, but not all, columns of a merged view; "" if there is no such view."""
        log, *others = self.extractor.log.sources
        of_log = log.view.source.schema.names  # such a column, as the id, does not say whether the other view was sent
        for source, part, sent in zip(others, self.extractor.loaded[1:], self.sent, strict=True):
            came = [n for n in sent if n in names and n not in of_log]
            missing = [n for n in part if n not in names]
            if came and missing:
                return (
                    f"the request has {listed(came)} of view {source.view.name!r}, which the plan merges into the log, but "
                    f"lacks {lacking(missing, names)}; send all of {', '.join(map(repr, part))}, or none of them: "
                    "then the features use the fill values of the view"
                )
        return ""

    def run(self, rows: Any) -> Batch:
        """Return the batch of a request. If there are filters, ``index`` says which of its rows passed them."""
        sources, count = self.sources(rows)
        if not self.extractor.stages.steps:
            return self.extractor.run([(Prepared(count, sources, None, ORIGIN), 0, count)])
        prepared = self.extractor.staged(count, sources, ORIGIN, 0)
        batch = self.extractor.run([(prepared, 0, prepared.rows)])
        return batch if prepared.selected is None else replace(batch, index=prepared.selected)

    def sources(self, rows: Any) -> tuple[list[Rows], int]:
        places_of_parts = self._places(rows)
        if places_of_parts is not None:
            frames = [frame_of(rows.select(places)) if places else None for places in places_of_parts]
            return [(frame, None, 0) for frame in frames], rows.num_rows
        source = self.typed(open_source(rows))
        names = source.schema.names
        self.check(source)
        wanted = [[n for n in self.extractor.columns[0] if n in names], *self.merged(names)]
        every = list(dict.fromkeys(n for part in wanted for n in part))
        batch = self.planned(whole(source, every))
        if isinstance(rows, pa.RecordBatch) and batch.schema.equals(rows.schema.empty_table().select(every).schema):
            self.known = (rows.schema, [[rows.schema.get_field_index(n) for n in part] for part in wanted])
        return [(frame_of(batch.select(part)) if part else None, None, 0) for part in wanted], batch.num_rows

    def typed(self, source: Source) -> Source:
        """Give a column of Arrow type null, of which no value is known, the type that the plan was built on."""
        null = {f.name for f in source.schema if pa.types.is_null(f.type)}
        if not null:
            return source
        types = {name: type_ for name, type_ in self.types.items() if name in null}
        return AgreeingSource(source, Described(self.extractor.log.view.name, types, frozenset(types)), strict=False)

    def planned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Round float64, also in lists, to the nearest float32 where the plan was built on that, as a request of JSON is."""
        for place, field in enumerate(batch.schema):
            if (wanted := narrower(field.type, self.types.get(field.name, field.type))) is not None:
                try:
                    rounded = narrowed(batch.column(place), wanted)
                except OverflowError as error:
                    raise DataError(
                        f"column {field.name!r} of the request: {error}, the type that the plan was built with"
                    ) from None
                batch = batch.set_column(place, field.with_type(wanted), rounded)
        return batch

    def check(self, source: Source) -> None:
        """Raise a DataError unless the request has every column, in the kind that the plan was built on."""
        if missing := self.lacks(source.schema.names):
            raise DataError(f"the request lacks {lacking(missing, source.schema.names)}")
        if wrong := self.incomplete(source.schema.names):
            raise DataError(wrong)
        for name in dict.fromkeys(n for part in (self.needed, *self.merged(source.schema.names)) for n in part):
            mine, planned = source.schema.field(name).type, self.types[name]
            kind, wanted = kind_of_arrow(mine), kind_of_arrow(planned)
            if kind != wanted:
                raise DataError(
                    f"column {name!r} of the request is {name_of(kind) if kind else mine}, "
                    f"but the plan was built on {name_of(wanted or 's')}"
                    + (as_time_advice(name, kind) if wanted == "t" else "")
                )
            sizes = [getattr(t, "list_size", "any number of") for t in (mine, planned)]
            if sizes[0] != sizes[1]:
                raise DataError(
                    f"column {name!r} of the request holds lists of {sizes[0]} values, but the plan was built on lists of "
                    f"{sizes[1]} values"
                )


def listed(names: list[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def merged_as_streams(graph: Graph) -> dict[str, str]:
    """Return the view of each column that the log gets from a view that is merged as a stream, without those of the log."""
    log, *others = [source.view for source in graph.frames[0].sources]
    return {n: v.name for v in others for n in v.source.schema.names if n not in log.source.schema.names}


def whole(source: Source, columns: list[str]) -> pa.RecordBatch:
    """Return all rows of a source as one record batch."""
    parts = [m.rows for m in source.scan(columns)]
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * sum(p.num_rows for p in parts), pa.struct([])))
    if not parts:
        return pa.RecordBatch.from_arrays([pa.array([], source.schema.field(n).type) for n in columns], columns)
    return parts[0] if len(parts) == 1 else one_batch(pa.Table.from_batches(parts))


def names_of(rows: Any) -> list[str]:
    schema = getattr(rows, "schema", None)
    return list(schema.names) if isinstance(schema, pa.Schema) else list(open_source(rows).schema.names)
