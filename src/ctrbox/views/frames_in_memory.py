"""Reads frames and streams that speak Arrow's PyCapsule protocol: polars, duckdb, pandas, pyarrow."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import types as pt

from ctrbox.errors import CtrboxError, SourceError
from ctrbox.files.data_fingerprint import WHOLE_BYTES
from ctrbox.files.filesystems import File, first_line
from ctrbox.views.columns_of_source import Columns, ColumnSource, Scan, cut, digest, make_batch
from ctrbox.views.morsel import Morsel, Origin
from ctrbox.views.readahead import readahead
from ctrbox.views.simple_types import STRINGS, Leaf, pick, simplify

UNNAMED_LABELS = re.compile(r"__index_level_\d+__")
HEAD_ROWS = 10_000  # by which a dataset without files is identified


class MemorySource(ColumnSource):
    """A table in memory. Columns of simple types are handed out without a copy, others are converted
    morsel by morsel, so that no second copy of the table ever exists."""

    def __init__(self, table: pa.Table, name: str = "memory"):
        self.name = name
        self.rows: int | None = table.num_rows
        self.bytes: int | None = table.get_total_buffer_size()
        self._columns = Columns(table.schema, name)
        self._lock = threading.Lock()
        self._facts: dict[tuple[str, str], bool] = {}
        self._batches = [_plain_dictionaries(batch) for batch in table.to_batches() if batch.num_rows]

    @property
    def table(self) -> pa.Table | None:
        """The rows in memory, as scans read them; None if there are none."""
        return pa.Table.from_batches(self._batches) if self._batches else None

    def nullable(self, column: str) -> bool:
        (leaf,) = self._columns.choose([column], self.name)
        return leaf.nullable and self._fact("null", leaf, lambda array: array.null_count > 0, any)

    def ordered(self, column: str) -> bool:
        (leaf,) = self._columns.choose([column], self.name)
        if leaf.type is None or pt.is_nested(leaf.type) or self.nullable(column):
            return False
        with self._lock:
            if ("order", column) not in self._facts:
                self._facts["order", column] = self._ascends(leaf)
            return self._facts["order", column]

    def _ascends(self, leaf: Leaf) -> bool:
        last: pa.Scalar | None = None
        for batch in self._batches:
            values = simplify(pick(batch, leaf.path), leaf, Origin(self.name, 0))
            if pt.is_dictionary(values.type):
                values = values.dictionary_decode()
            if last is not None and not pc.less(last, values[0]).as_py():
                return False
            if not pc.all(pc.less(values.slice(0, len(values) - 1), values.slice(1)), min_count=0).as_py():
                return False
            last = values[len(values) - 1]
        return True

    def _fact(self, kind: str, leaf: Leaf, ask: Callable[[pa.Array], bool], join: Callable[[Any], bool]) -> bool:
        with self._lock:
            if (kind, leaf.name) not in self._facts:
                arrays = (pick(batch, leaf.path) for batch in self._batches)
                self._facts[kind, leaf.name] = join(ask(_logical(array)) for array in arrays)
            return self._facts[kind, leaf.name]

    def fingerprint(self) -> str:
        return digest(self.schema, extra=f"{self.rows} {self._sampled()}")

    def _sampled(self) -> str:
        """Return a digest of all rows if they take at most 64 MiB, else of some thousand rows that are spread evenly."""
        sink = hashlib.sha256()
        whole = (self.bytes or 0) <= WHOLE_BYTES
        for batch in self._batches if whole else self._batches[:: max(1, len(self._batches) // 64)]:
            step = 1 if whole else max(1, batch.num_rows // 64)
            rows = batch.take(pa.array(np.arange(0, batch.num_rows, step)))
            sink.update(rows.serialize())
        return sink.hexdigest()

    def _scan(self, columns: Sequence[str], asked: Scan) -> Iterator[Morsel]:
        chosen = self._columns.choose(columns, self.name)
        # Slices of simple columns cost nothing, so there is nothing to do ahead.
        converted = any(leaf.stored != leaf.type for leaf in chosen)
        crew = asked.threads if converted and (self.rows or 0) > asked.rows else 0
        tasks = self._tasks(chosen, asked.start, asked.rows)
        yield from readahead(tasks, threads=crew, ahead=asked.ahead)

    def _tasks(self, chosen: Sequence[Leaf], start: int, rows: int) -> Iterator[Callable[[], Morsel]]:
        at = 0
        for batch in self._batches:
            skip = max(0, min(batch.num_rows, start - at))
            for offset, part in cut(batch, skip, rows):
                yield partial(self._morsel, part, chosen, at + offset)
            at += batch.num_rows

    def _morsel(self, part: pa.RecordBatch, chosen: Sequence[Leaf], at: int) -> Morsel:
        origin = Origin(self.name, at)
        arrays = [simplify(pick(part, leaf.path), leaf, origin) for leaf in chosen]
        return Morsel(make_batch(arrays, chosen, part.num_rows), origin, at)


def _itself(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _logical(array: pa.Array) -> pa.Array:
    """Return an array whose null count is that of its values: encoded nulls are decoded."""
    if pt.is_run_end_encoded(array.type):
        return pc.run_end_decode(array)
    if pt.is_dictionary(array.type) and array.dictionary.null_count:
        return array.dictionary_decode()
    return array


def _plain_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert dictionaries of text to ``dictionary<int32, utf8>`` once, not once per morsel, because they may be big."""
    for place, field in enumerate(batch.schema):
        if pt.is_dictionary(field.type) and field.type != STRINGS:
            leaf = Leaf(field.name, (field.name,), field.type, STRINGS, True)
            found = Columns(pa.schema([field]), "memory").stored[field.name]
            if found.type == STRINGS:
                words = simplify(batch.column(place), leaf, Origin("memory", 0))
                batch = batch.set_column(place, field.with_type(STRINGS), words)
    return batch


class StreamSource(ColumnSource):
    """Something that hands out a fresh stream for each scan; it is never held in memory as a whole."""

    bytes: int | None = None

    def __init__(
        self,
        schema: pa.Schema,
        start: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],
        name: str = "stream",
        rows: int | None = None,
        identity: Callable[[], str] = str,
        identified: bool = True,
    ):
        """``identified``: whether ``identity`` changes with the content of the stream."""
        self.name = name
        self.rows = rows
        self._start = start
        self._identity = identity
        self.identified = identified
        self._columns = Columns(schema, name)
        self._had_rows = False  # in an earlier scan, or in this one

    def fingerprint(self) -> str:
        return digest(self.schema, extra=self._identity())

    def _scan(self, columns: Sequence[str], asked: Scan) -> Iterator[Morsel]:
        chosen = self._columns.choose(columns, self.name)
        at = 0
        for batch in readahead(self._tasks(chosen), threads=min(asked.threads, 1), ahead=asked.ahead):
            skip = max(0, min(batch.num_rows, asked.start - at))
            for offset, part in cut(batch, skip, asked.rows):
                origin = Origin(self.name, at + offset)
                arrays = [simplify(pick(part, leaf.path), leaf, origin) for leaf in chosen]
                yield Morsel(make_batch(arrays, chosen, part.num_rows), origin, at + offset)
            at += batch.num_rows

    def _tasks(self, chosen: Sequence[Leaf]) -> Iterator[Callable[[], pa.RecordBatch]]:
        at = 0
        try:
            for batch in self._start(list(dict.fromkeys(leaf.path[0] for leaf in chosen))):
                at += batch.num_rows
                self._had_rows |= batch.num_rows > 0
                yield partial(_itself, batch)
            if not at and self._had_rows:
                raise SourceError(
                    f"{self.name} had rows when it was read before, but has none now, because it can be read only once. Pass "
                    "its rows as a table, such as reader.read_all()"
                )
        except CtrboxError:
            raise
        except Exception as error:
            raise SourceError(f"{self.name} cannot be read after row {at}: {first_line(error)}") from error


def from_capsule(data: Any) -> MemorySource | StreamSource:
    """Return a source over ``__arrow_c_stream__`` or ``__arrow_c_array__``; see `open_source`."""
    kind = type(data).__name__
    try:
        if getattr(data, "streaming", False) is True:
            return _stream(data)
        return MemorySource(_table(data))
    except CtrboxError:
        raise
    except Exception as error:
        raise SourceError(f"the {kind} cannot be read as Arrow rows: {first_line(error)}") from error


def _table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.ChunkedArray) and pt.is_struct(data.type):
        return pa.Table.from_struct_array(data)
    if isinstance(data, pa.StructArray):
        return pa.Table.from_struct_array(data)
    if hasattr(data, "__arrow_c_stream__"):
        return with_named_labels(pa.RecordBatchReader.from_stream(data).read_all())
    return pa.Table.from_batches([pa.record_batch(data)])


def with_named_labels(table: pa.Table) -> pa.Table:
    """Make the row labels of a pandas frame columns if they have a name, and drop them otherwise.

    pandas hands labels without a name, such as those that a filter leaves behind, over as columns called
    ``__index_level_0__``; labels that count evenly it hands over as metadata alone, with their name or without one.
    """
    labels = (table.schema.pandas_metadata or {}).get("index_columns", [])
    unnamed = [n for n in labels if isinstance(n, str) and UNNAMED_LABELS.fullmatch(n) and n in table.column_names]
    for label in labels:
        if isinstance(label, dict) and isinstance(name := label.get("name"), str) and name not in table.column_names:
            numbers = np.arange(label["start"], label["stop"], label["step"], dtype=np.int64)
            if len(numbers) == table.num_rows:
                table = table.append_column(name, pa.array(numbers))
    return table.drop_columns(unnamed) if unnamed else table


def _stream(data: Any) -> StreamSource:
    if hasattr(data, "__arrow_c_schema__"):
        schema = pa.schema(data)
    else:
        with pa.RecordBatchReader.from_stream(data) as reader:
            schema = reader.schema

    batches = getattr(data, "batches", None)

    def start(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if callable(batches):  # its own errors come as they are; through the stream they would be ArrowInvalid
            yield from batches()
            return
        with pa.RecordBatchReader.from_stream(data) as reader:
            yield from reader

    name = str(getattr(data, "name", None) or type(data).__name__)
    fingerprint = getattr(data, "fingerprint", None)
    if callable(fingerprint):
        return StreamSource(schema, start, name, identity=lambda: str(fingerprint()))
    return StreamSource(schema, start, name, identity=lambda: name, identified=False)


def from_dataset(data: ds.Dataset, files: Sequence[File]) -> StreamSource:
    """Return a source over a pyarrow dataset, which its own scanner reads in order. `files`: the files that it reads, if known.

    If a file has changed since then, reading raises an error. A dataset that names no files is identified by its first rows.
    """
    versions = {file.path: file.version for file in files}

    def start(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        scanner = data.scanner(columns=list(columns), batch_readahead=2, fragment_readahead=1)
        for version in versions.values():
            version.check()
        for tagged in scanner.scan_batches():
            path = getattr(tagged.fragment, "path", "")
            if path in versions:
                versions[path].check()
            yield tagged.record_batch
        for version in versions.values():
            version.check()

    def identity() -> str:
        return digest(data.schema, files) if files else MemorySource(data.head(HEAD_ROWS)).fingerprint()

    return StreamSource(data.schema, start, "dataset", identity=identity)
