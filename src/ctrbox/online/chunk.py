"""The bytes of a chunk, a file or a message, as pieces: JSON lines, Parquet or Arrow, told apart by their first bytes.

Text may be compressed (gzip, zstd). A line that does not parse is left out with its number and the reason; a chunk that cannot be
read further ends in a piece that says why. Nothing is held but the chunk's bytes and the piece under way, so a compressed chunk
that unpacks to terabytes costs time and no memory; a line has a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctrbox.errors import CtrboxError, DataError
from ctrbox.online.events import Layout, Piece, events_of, timed
from ctrbox.views.filesystems import first_line
from ctrbox.views.text import parse_json

ROWS = 8192  # of a piece, at most: a checkpoint can lie behind any
BLOCK_BYTES = 4 << 20
LINE_BYTES = 16 << 20

Schemas = tuple[pa.Schema, pa.Schema]

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def pieces(name: str, payload: bytes, layout: Layout, start: int = 0) -> Iterator[Piece]:
    """The chunk's rows from ``start`` on. The last piece says so, also where the chunk has no rows or cannot be read."""
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
            events, bad = events_of(pa.Table.from_batches([part]), layout)
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
    # A time is text as JSON has it, or a number.
    schemas, at, rest = (layout.nested, layout.numbered), 0, b""
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
                raise DataError(f"line {at + 1:,} is longer than {LINE_BYTES:,} bytes")
            block = following


def _of_lines(name: str, lines: list[bytes], first: int, schemas: Schemas, layout: Layout) -> Piece:
    filled = [n for n, line in enumerate(lines) if line.strip()]
    places: list[int] = []
    bad: list[tuple[int, str]] = []
    batches = [timed(batch, layout) for batch in _parsed(lines, filled, schemas, places, bad)]
    table = pa.Table.from_batches(batches, schemas[0])
    events, odd = events_of(table, layout)
    events = replace(events, chunk=name, lines=first + np.array(places, np.int64)[events.lines])
    bad += [(places[row], why) for row, why in odd]
    return Piece(name, first, first + len(lines), events, bad=tuple((first + n, why) for n, why in sorted(bad)))


def _parsed(
    lines: list[bytes], at: list[int], schemas: Schemas, places: list[int], bad: list[tuple[int, str]]
) -> Iterator[pa.RecordBatch]:
    """Lines as rows; where they do not parse together, each half for itself."""
    if not at:
        return
    text = b"\n".join(lines[n] for n in at)
    why = ""
    for schema in schemas:
        try:
            batch = parse_json(text, schema)
            if batch.num_rows != len(at):  # two objects in a line
                raise pa.ArrowInvalid(f"{batch.num_rows} objects in {len(at)} lines")
        except (pa.ArrowException, ValueError) as error:
            why = why or first_line(error)
            continue
        places += at
        yield batch
        return
    if len(at) == 1:
        bad.append((at[0], why))
        return
    middle = len(at) // 2
    yield from _parsed(lines, at[:middle], schemas, places, bad)
    yield from _parsed(lines, at[middle:], schemas, places, bad)
