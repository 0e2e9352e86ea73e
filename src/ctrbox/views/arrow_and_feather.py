"""Reads Arrow IPC: files (Feather version 2) by record batch, and streams from front to back.

Buffers that are read from disk are checked before their offsets are used; text need not be UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyarrow import types as pt

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File
from ctrbox.views.files_with_row_index import Footer, NoStatistics, Wanted
from ctrbox.views.files_without_row_index import Parse, open_stream
from ctrbox.views.simple_types import Leaf, castable
from ctrbox.views.simple_types import leaves as leaves_of

MAGIC = b"ARROW1"


def is_stream(file: File) -> bool:
    """Return whether a file named .arrow, .feather or .ipc has the stream format."""
    return file.store.attempt(file.shown, lambda: _head(file)) != MAGIC


def _head(file: File) -> bytes:
    with file.version.reading() as opened:
        return bytes(opened.read(len(MAGIC)))


class IpcFile(NoStatistics):
    """Reads one record batch at a time. The format holds no statistics, so nullness comes from the schema."""

    unit = "record batch"

    def footer(self, file: File) -> Footer:
        with file.version.reading() as opened:
            reader = pa.ipc.open_file(opened)
            schema = reader.schema
            counts = pa.ipc.open_file(opened, options=_only(schema, _narrowest(schema)))
            rows = tuple(counts.get_batch(i).num_rows for i in range(counts.num_record_batches))
        return Footer(schema, rows)

    def read(self, file: File, footer: Footer, wanted: Wanted) -> list[pa.RecordBatch]:
        names = dict.fromkeys(leaf.path[0] for leaf in wanted.leaves)
        places = sorted(footer.schema.get_field_index(name) for name in names)
        with file.version.reading() as opened:
            reader = pa.ipc.open_file(opened, options=_only(footer.schema, places))
            batches = [reader.get_batch(group) for group in wanted.groups]
        for batch in batches:
            check_batch(batch)
        return batches


class IpcStream:
    """The stream format: schema first, then record batches to the end."""

    name = "arrows"
    options = None  # It is not text.

    def schema(self, file: File) -> pa.Schema:
        with _open(file) as reader:
            return reader.schema

    def blocks(self, file: File, leaves: Sequence[Leaf]) -> Iterator[Parse]:
        with _open(file) as reader:
            mine = leaves_of(reader.schema, file.shown)
            for leaf in leaves:
                found = mine.get(leaf.name)
                if found is None:
                    raise SourceError(f"{file.shown} has no column {leaf.name!r}, expected {leaf.stored}")
                nested = len(leaf.path) > 1 and leaf.type is not None and castable(found.type, leaf.type, found.stored)
                if found.stored != leaf.stored and not nested:
                    raise SourceError(
                        f"column {leaf.name!r} of {file.shown} is {found.stored}, expected {leaf.stored} as in the first file"
                    )
            for batch in reader:
                yield partial(check_batch, batch)


def _open(file: File) -> pa.RecordBatchStreamReader:
    stream = open_stream(file)
    if not isinstance(stream, pa.NativeFile):
        stream = pa.PythonFile(stream, mode="r")
    return pa.ipc.open_stream(stream)


def _narrowest(schema: pa.Schema) -> list[int]:
    """Return the place of the column that is the cheapest to read if only rows are counted."""
    bits = widths(schema)
    return [bits.index(min(bits))] if bits else []


def widths(schema: pa.Schema) -> list[int]:
    """Return the bits of a value of each column; strings and lists count as a large number of bits."""
    return [_bits(field.type) for field in schema]


def _bits(type: pa.DataType) -> int:
    try:
        return int(type.bit_width)
    except ValueError:
        return 1 << 30


def _only(schema: pa.Schema, places: list[int]) -> pa.ipc.IpcReadOptions:
    return pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)


def check_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch; raise ``pa.ArrowInvalid`` if offsets or indices lead outside its buffers."""
    for column in batch.columns:
        _check(column)
    return batch


def _check(array: pa.Array) -> None:
    """Raise ``pa.ArrowInvalid`` if offsets or indices lead outside the buffers."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error) and "UTF-8" not in str(error):
            raise
    else:
        return
    # Bytes that are not UTF-8 are welcome: check again with text read as binary.
    type = array.type
    if pt.is_string(type):
        array.view(pa.binary()).validate(full=True)
    elif pt.is_large_string(type):
        array.view(pa.large_binary()).validate(full=True)
    elif pt.is_string_view(type):
        array.view(pa.binary_view()).validate(full=True)
    elif pt.is_dictionary(type):
        _check(array.dictionary)
        blank = pa.nulls(len(array.dictionary), pa.utf8())
        pa.DictionaryArray.from_arrays(array.indices, blank, safe=True)
    elif pt.is_list(type) or pt.is_large_list(type):
        _check(array.values)
        blank = pa.nulls(len(array.values), pa.int8())
        array.__class__.from_arrays(array.offsets, blank).validate(full=True)
    elif pt.is_struct(type):
        for place in range(type.num_fields):
            _check(array.field(place))
    else:
        raise pa.ArrowInvalid(f"a value of type {type} is not UTF-8")
