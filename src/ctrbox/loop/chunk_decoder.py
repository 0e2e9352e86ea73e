"""Decodes the bytes of a chunk, which are JSON lines, Parquet or Arrow, recognized by their first bytes.

Text may be compressed with gzip or zstd. A line that cannot be parsed is left out, and its number and the reason are reported. If
the rest of a chunk cannot be read, the last piece says why. The decoder keeps only the bytes of the chunk and the current piece
in memory, and a line has a largest length. A compressed chunk that expands to terabytes therefore takes time, but not memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctrbox.columns.json_text import strict_json
from ctrbox.columns.one_array import one_array
from ctrbox.columns.raw_values import brief
from ctrbox.errors import CtrboxError, DataError
from ctrbox.files.filesystems import first_line
from ctrbox.loop.decode_events import Layout, Piece, events_of, typed_rows
from ctrbox.views.json_lines import parse_json

ROWS = 8192  # of a piece, at most: a checkpoint can lie behind any
BLOCK_BYTES = 4 << 20
LINE_BYTES = 16 << 20

Schemas = tuple[pa.Schema, ...]

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def pieces(name: str, payload: bytes, layout: Layout, start: int = 0) -> Iterator[Piece]:
    """Yield the rows of a chunk from ``start`` on. The last piece is marked, also if the chunk has no rows or cannot be read."""
    at = start
    waiting: Piece | None = None
    try:
        for piece in _read(name, payload, layout, start):
            if waiting is not None:
                yield waiting
            at, waiting = piece.stop, piece
        refused = ""
    except CtrboxError as error:
        refused = str(error)
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        OverflowError,
        RecursionError,
    ) as error:
        refused = first_line(error)
    if waiting is not None:
        last = not refused
        yield Piece(waiting.chunk, waiting.start, waiting.stop, waiting.events, last, waiting.bad)
        if last:
            return
    yield Piece(name, at, at, None, True, refused=refused)


def _read(name: str, payload: bytes, layout: Layout, start: int) -> Iterator[Piece]:
    if payload[:4] == b"PAR1":
        with pq.ParquetFile(pa.BufferReader(payload), page_checksum_verification=True) as file:
            wanted = [
                n for n in file.schema_arrow.names if n in {f.name for f in layout.nested} or n in layout.read.names
            ]
            yield from _columnar(name, file.iter_batches(ROWS, columns=wanted, use_threads=False), layout, start)
    elif payload[:6] == b"ARROW1":
        with pa.ipc.open_file(pa.BufferReader(payload)) as arrow:
            batches = (_whole(arrow.get_batch(k)) for k in range(arrow.num_record_batches))
            yield from _columnar(name, batches, layout, start)
    elif payload[:4] == b"\xff\xff\xff\xff":
        with pa.ipc.open_stream(pa.BufferReader(payload)) as stream:
            yield from _columnar(name, (_whole(batch) for batch in stream), layout, start)
    else:
        yield from _lines(name, _plain(payload), layout, start)


def _whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.validate(full=True)  # offsets of a stranger
    return batch


def _columnar(name: str, batches: Iterator[pa.RecordBatch], layout: Layout, start: int) -> Iterator[Piece]:
    at = 0
    for batch in batches:
        begin = max(0, min(batch.num_rows, start - at))
        while begin < batch.num_rows:
            part = batch.slice(begin, ROWS)
            events, bad = events_of(*typed_rows(pa.Table.from_batches([part]), layout), layout)
            first = at + begin
            begin += part.num_rows
            events = replace(events, chunk=name, lines=first + events.lines)
            yield Piece(name, first, at + begin, events, bad=tuple((first + row, why) for row, why in bad))
        at += batch.num_rows


def _plain(payload: bytes) -> Any:
    codec = "gzip" if payload[:2] == GZIP else "zstd" if payload[:4] == ZSTD else None
    buffer = pa.BufferReader(payload)
    return buffer if codec is None else pa.CompressedInputStream(buffer, codec)


def _lines(name: str, stream: Any, layout: Layout, start: int) -> Iterator[Piece]:
    # A time is text, or a number where its unit is declared.
    schemas = (layout.nested, layout.numbered) if layout.time_units else (layout.nested,)
    at, rest = 0, b""
    with stream:
        block = stream.read(BLOCK_BYTES)
        while block:
            following = stream.read(BLOCK_BYTES)
            rest = rest + block if rest else block
            end = rest.rfind(b"\n") + 1 if following else len(rest)
            if end:
                lines = rest[:end].split(b"\n")
                if not lines[-1]:
                    lines.pop()  # behind the last line end
                rest = rest[end:]
                for begin in range(max(0, start - at), len(lines), ROWS):
                    part = lines[begin : begin + ROWS]
                    yield _of_lines(name, part, at + begin, schemas, layout)
                at += len(lines)
            if len(rest) > LINE_BYTES:
                raise DataError(f"line {at + 1:,} is longer than {LINE_BYTES:,} bytes; write one event per line")
            block = following


def _of_lines(name: str, lines: list[bytes], first: int, schemas: Schemas, layout: Layout) -> Piece:
    filled = [n for n, line in enumerate(lines) if line.strip()]
    places: list[int] = []
    bad: list[tuple[int, str]] = []
    tables: list[pa.Table] = []
    wrong: dict[int, str] = {}
    for batch in _parsed(lines, filled, schemas, layout, places, bad):
        before = sum(t.num_rows for t in tables)
        rows, odd = typed_rows(pa.Table.from_batches([batch]), layout)
        odd = _not_json(rows) | odd
        wrong |= {before + row: why for row, why in odd.items()}
        tables.append(rows)
    if not tables:
        return Piece(name, first, first + len(lines), None, bad=tuple((first + n, why) for n, why in sorted(bad)))
    events, reasons = events_of(pa.concat_tables(tables).combine_chunks(), wrong, layout)
    events = replace(events, chunk=name, lines=first + np.array(places, np.int64)[events.lines])
    bad += [(places[row], why) for row, why in reasons]
    return Piece(name, first, first + len(lines), events, bad=tuple((first + n, why) for n, why in sorted(bad)))


def _not_json(rows: pa.Table) -> dict[int, str]:
    """Return the rows that Arrow accepts but a request may not contain: NaN and Infinity, which are not JSON, and nulls in
    lists.
    """
    found: dict[int, str] = {}
    for name in rows.schema.names:
        column = one_array(name, rows.column(name))
        if pa.types.is_floating(column.type):
            values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(~np.isfinite(values)).tolist():
                found.setdefault(row, f"{name!r} is {values[row]}, expected a finite number")
        elif pa.types.is_nested(column.type):
            inner = column.flatten()
            if inner.null_count or (pa.types.is_floating(inner.type) and not np.isfinite(inner.to_numpy()).all()):
                for row, values in enumerate(column.to_pylist()):
                    if any(v is None or v != v or v in (np.inf, -np.inf) for v in values or ()):
                        found.setdefault(
                            row, f"{name!r} is {brief(values)}, expected a list without null, NaN or Infinity"
                        )
    return found


def _parsed(
    lines: list[bytes],
    at: list[int],
    schemas: Schemas,
    layout: Layout,
    places: list[int],
    bad: list[tuple[int, str]],
) -> Iterator[pa.RecordBatch]:
    """Parse lines to rows. If they cannot be parsed together, each half is parsed by itself, down to single lines."""
    if not at:
        return
    text = b"\n".join(lines[n] for n in at)
    why = ""
    for schema in schemas:
        try:
            batch = parse_json(text, schema)
            if batch.num_rows != len(at):  # two objects in a line
                raise pa.ArrowInvalid(f"found {batch.num_rows} objects; expected one per line")
        except (pa.ArrowException, ValueError) as error:
            why = why or first_line(error)
            continue
        places += at
        yield batch
        return
    if len(at) == 1:
        try:
            batch = row_of_line(lines[at[0]], layout)
        except DataError as error:
            bad.append((at[0], str(error)))
        except (pa.ArrowException, ValueError):
            bad.append((at[0], why))
        else:
            places += at
            yield batch
        return
    middle = len(at) // 2
    yield from _parsed(lines, at[:middle], schemas, layout, places, bad)
    yield from _parsed(lines, at[middle:], schemas, layout, places, bad)


def row_of_line(line: bytes, layout: Layout) -> pa.RecordBatch:
    """Parse one line by the rules of requests. Raises a `DataError` that names the field, its value and what was expected."""
    given = strict_json(line)
    if not isinstance(given, dict):
        raise DataError(f"a line must be a JSON object with the fields of one event, got {brief(given)}")
    arrays = []
    for field in layout.read:
        value: Any = given
        for name in field.name.split("."):
            if value is not None and not isinstance(value, dict):
                raise DataError(
                    f"column {field.name!r} is nested in a field that is {brief(value)}; expected a JSON object there"
                )
            value = None if value is None else value.get(name)
        try:
            arrays.append(layout.column(field.name).array([value]))
        except DataError as error:
            raise DataError(str(error).removeprefix("row 0: ")) from None
    return pa.RecordBatch.from_arrays(arrays, schema=layout.read)
