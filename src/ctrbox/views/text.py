"""CSV and JSON lines. Types are inferred from the first block of the first file and then hold for all.

CSV: the first line names the columns; an empty field without quotes is null, in every column; values may hold
line ends inside quotes. JSON: one object a line; a missing field is null; fields first met later are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
from pyarrow import types as pt

from ctrbox.errors import SourceError
from ctrbox.views.filesystems import File, first_line
from ctrbox.views.simple import Leaf
from ctrbox.views.streamed import BlockError, Parse, open_stream

BLOCK_BYTES = 4 << 20
LINE_BYTES = 256 << 20  # A line longer than this is not a log's line.

_CSV_ROW = re.compile(r"Row #(\d+): ")
_JSON_ROW = re.compile(r" in row (\d+)$")
_NULL_FIRST = re.compile(rb"\s*null")
_QUOTED = re.compile(rb'"[^"]*+"')


def _blocks(file: File, find_end: Callable[[bytes], int]) -> Iterator[bytes]:
    """Blocks of whole lines, each as long as `find_end` says."""
    stream = open_stream(file)
    rest = b""
    try:
        while chunk := stream.read(max(BLOCK_BYTES, len(rest))):
            rest = rest + chunk if rest else chunk
            end = find_end(rest)
            if end:
                block, rest = rest[:end], rest[end:]
                if not block.isspace():
                    yield block
            elif len(rest) > LINE_BYTES:
                limit = f"{LINE_BYTES >> 20} MiB"
                raise SourceError(f"{file.shown} has a line longer than {limit}, expected rows as lines")
        if rest and not rest.isspace():
            yield rest
    finally:
        stream.close()


def _newline(block: bytes) -> int:
    return block.rfind(b"\n") + 1


class Csv:
    """Delimited text with a header."""

    def __init__(self, delimiter: str = ","):
        self._parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        # A quote opens a value only where a field begins; elsewhere it is a letter. Possessive: one pass, no
        # backtracking, about 100 MB/s of text that is mostly quotes.
        start = re.escape(delimiter.encode())
        line = rb'(?:[^"\n]++|(?<=[^\n\r%s])"|"[^"]*+(?:""[^"]*+)*+")*+\n' % start
        self._line = re.compile(line)
        self._lines = re.compile(rb"(?:%s)*+" % line)

    def _last_line_end(self, block: bytes) -> int:
        """The last line end outside quotes."""
        if b'"' not in block:
            return _newline(block)
        found = self._lines.match(block)
        return found.end() if found else 0

    def _first_line_end(self, block: bytes) -> int:
        found = self._line.match(block)
        return found.end() if found else 0

    def _header_and_blocks(self, file: File) -> tuple[list[str], Iterator[bytes]]:
        blocks = _blocks(file, self._last_line_end)
        first = next(blocks, b"")
        end = self._first_line_end(first) or len(first)
        if b"\r" in _QUOTED.sub(b"", first[:end].rstrip(b"\r\n")):
            raise SourceError(f"{file.shown} has lines that end with CR alone, expected LF or CR LF")
        names, rest = self._names(file, first[:end]), first[end:]

        def remaining() -> Iterator[bytes]:
            if rest and not rest.isspace():
                yield rest
            yield from blocks

        return names, remaining()

    def schema(self, file: File) -> pa.Schema:
        names, blocks = self._header_and_blocks(file)
        block = next(blocks, None)
        if block is None:
            return pa.schema([pa.field(name, pa.utf8()) for name in names])
        try:
            found = self._read(block, names, pacsv.ConvertOptions(**_NULLS)).schema
        except pa.ArrowInvalid as error:
            raise SourceError(_csv_message(file, error)) from error
        return pa.schema([pa.field(field.name, _no_null_type(field.type)) for field in found])

    def blocks(self, file: File, leaves: Sequence[Leaf]) -> Iterator[Parse]:
        names, blocks = self._header_and_blocks(file)
        types = {leaf.path[0]: leaf.stored for leaf in leaves}
        for name, type in types.items():
            if name not in names:
                raise SourceError(f"{file.shown} has no column {name!r}, expected {type} as in the first file")
        # At least one column is parsed, because rows are counted by it.
        convert = pacsv.ConvertOptions(
            include_columns=list(types) or names[:1],
            column_types=types or {names[0]: pa.utf8()},
            **_NULLS,
        )
        for block in blocks:
            yield partial(self._block, block, names, convert)

    def _block(self, block: bytes, names: list[str], convert: pacsv.ConvertOptions) -> pa.RecordBatch:
        try:
            return self._read(block, names, convert)
        except pa.ArrowInvalid as error:
            text = first_line(error)
            found = _CSV_ROW.search(text)
            column = re.match(r"In CSV column #(\d+): ", text)
            if column:
                text = f"column {names[int(column[1])]!r}: " + text[column.end() :]
                found = _CSV_ROW.search(text)
            row = int(found[1]) - 1 if found else None
            raise BlockError(_CSV_ROW.sub("", text), row) from error

    def _read(self, block: bytes, names: list[str], convert: pacsv.ConvertOptions) -> pa.RecordBatch:
        read = pacsv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names)
        table = pacsv.read_csv(pa.BufferReader(block), read, self._parse, convert)
        return _one_batch(table)

    def _names(self, file: File, header: bytes) -> list[str]:
        try:
            names = pacsv.read_csv(pa.BufferReader(header), parse_options=self._parse).column_names
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise SourceError(f"{file.shown} has no header, expected the names of the columns") from error
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise SourceError(f"{file.shown} has two columns called {twice[0]!r}; expected each name once")
        return list(names)


# Quoted text is never null, so "" and an absent value stay apart.
_NULLS: dict[str, Any] = {
    "null_values": [""],
    "strings_can_be_null": True,
    "quoted_strings_can_be_null": False,
    "check_utf8": False,
}


def _csv_message(file: File, error: Exception) -> str:
    text = first_line(error)
    found = _CSV_ROW.search(text)
    where = f" row {int(found[1]) - 1}" if found else ""
    return f"{file.shown}{where}: {_CSV_ROW.sub('', text)}"


class Json:
    """JSON lines."""

    def schema(self, file: File) -> pa.Schema:
        block = next(_blocks(file, _newline), None)
        if block is None:
            raise SourceError(f"{file.shown} holds no JSON objects, expected one on each line")
        try:
            found = self._read(block, None).schema
        except BlockError as error:
            where = "" if error.row is None else f" row {error.row}"
            raise SourceError(f"{file.shown}{where}: {error}; expected one JSON object a line") from error
        if not found.names:
            raise SourceError(f"{file.shown} begins without a JSON object that has fields, expected one on each line")
        return pa.schema([pa.field(field.name, _no_null_type(field.type)) for field in found])

    def blocks(self, file: File, leaves: Sequence[Leaf]) -> Iterator[Parse]:
        wanted: dict[str, Any] = {}
        for leaf in leaves:
            inner = wanted
            for name in leaf.path[:-1]:
                inner = inner.setdefault(name, {})
            inner[leaf.path[-1]] = leaf.stored
        schema = pa.schema(_fields(wanted))
        for block in _blocks(file, _newline):
            yield partial(self._read, block, schema)

    def _read(self, block: bytes, schema: pa.Schema | None) -> pa.RecordBatch:
        try:
            return parse_json(block, schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            text = first_line(error)
            found = _JSON_ROW.search(text)
            row = int(found[1]) - _led(block) if found else _broken_line(block, schema)
            raise BlockError(_JSON_ROW.sub("", text), row) from error


def _led(block: bytes) -> int:
    """How many rows must go before a block: pyarrow crashes where the first value is null."""
    return 1 if _NULL_FIRST.match(block) else 0


def parse_json(block: bytes, schema: pa.Schema | None) -> pa.RecordBatch:
    """Lines of JSON as rows: of the given columns alone, or of those that are met."""
    if _led(block):
        return parse_json(b"{}\n" + block, schema).slice(1)
    read = pajson.ReadOptions(use_threads=False, block_size=len(block) + 1)
    behaviour = "infer" if schema is None else "ignore"
    parse = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behaviour)
    return _one_batch(pajson.read_json(pa.BufferReader(block), read, parse))


def _broken_line(block: bytes, schema: pa.Schema | None) -> int | None:
    """The first row that cannot be parsed alone; None when each can (they disagree about a type)."""
    lines = [line for line in block.splitlines() if line.strip()]
    low, high = 0, len(lines)
    while low < high:
        middle = (low + high) // 2
        try:
            parse_json(b"\n".join(lines[low : middle + 1]), schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            high = middle
        else:
            low = middle + 1
    return low if low < len(lines) else None


def _fields(wanted: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, pa.struct(_fields(inner)) if isinstance(inner, dict) else inner)
        for name, inner in wanted.items()
    ]


def _no_null_type(type: pa.DataType) -> pa.DataType:
    """The type with every null (nothing met yet) read as text."""
    if pt.is_null(type):
        return pa.utf8()
    if pt.is_list(type):
        return pa.list_(_no_null_type(type.value_type))
    if pt.is_struct(type):
        return pa.struct([pa.field(field.name, _no_null_type(field.type)) for field in type])
    return type


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if batches:
        return batches[0]
    empty = [pa.nulls(table.num_rows, field.type) for field in table.schema]
    return pa.RecordBatch.from_arrays(empty, schema=table.schema)
