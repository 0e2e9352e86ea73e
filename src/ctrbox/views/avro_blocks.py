"""Reads the container of an Avro file: its schema, and its blocks of rows as uncompressed bytes.

    header   b"Obj\\x01" · metadata: a map of strings to bytes, with avro.schema (JSON) and avro.codec · sync: 16 bytes
    block    rows: long · size: long · that many bytes, compressed by the codec · sync

A long is a zigzag varint. Every size is compared with a bound before anything of this size is read or unpacked.
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ctrbox.views.files_without_row_index import BlockError

MAGIC = b"Obj\x01"
SYNC = 16
MOST_METADATA = 16 << 20
MOST_BLOCK = 1 << 30  # bytes of a block, compressed or not
MOST_ROWS = 1 << 22  # of a block; rows without any column take no bytes
CODECS = ("null", "deflate", "snappy", "zstandard", "bzip2", "xz")


@dataclass(frozen=True)
class Header:
    """The beginning of a file. ``schema`` is the JSON value that the writer wrote."""

    schema: Any
    codec: str
    sync: bytes


def read_header(file: Any) -> Header:
    """Read the header; the file then stands at its first block."""
    if (first := file.read(len(MAGIC))) != MAGIC:
        raise pa.ArrowInvalid(f"it is not an Avro file: it begins with {bytes(first)!r}, expected {MAGIC!r}")
    metadata: dict[str, bytes] = {}
    left = MOST_METADATA
    while count := _long(file):
        if count < 0:
            count = -count
            _long(file)  # the bytes of these entries
        for _ in range(count):
            key = _sized(file, left)
            value = _sized(file, left - len(key))
            left -= len(key) + len(value) + 1
            metadata[key.decode("utf-8", "replace")] = value
    sync = _exactly(file, SYNC)
    if "avro.schema" not in metadata:
        raise pa.ArrowInvalid("its header has no schema")
    codec = metadata.get("avro.codec", b"null").decode("ascii", "replace")
    if codec not in CODECS:
        raise pa.ArrowInvalid(f"its blocks are compressed with {codec[:20]!r}, expected one of {', '.join(CODECS)}")
    try:
        return Header(json.loads(metadata["avro.schema"]), codec, sync)
    except (ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(f"its schema is not JSON: {error}") from error


def read_blocks(file: Any, header: Header) -> Iterator[tuple[int, bytes]]:
    """Yield the rows and the compressed bytes of each block after the header."""
    while first := file.read(1):
        rows, size = _long(file, first), _long(file)
        if not 0 <= rows <= MOST_ROWS or not 0 <= size <= MOST_BLOCK:
            raise pa.ArrowInvalid(
                f"a block would hold {rows:,} rows in {size:,} bytes; at most {MOST_ROWS:,} rows and {MOST_BLOCK:,} bytes are "
                "read"
            )
        data = _exactly(file, size)
        if _exactly(file, SYNC) != header.sync:
            raise pa.ArrowInvalid("a block does not end with the file's sync marker; the file is damaged")
        yield rows, data


def unpacked(data: bytes, codec: str) -> bytes:
    """Return the bytes of a block, of which there may be at most MOST_BLOCK."""
    try:
        found = _unpack(data, codec)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, pa.ArrowException) as error:
        raise BlockError(f"a block cannot be decompressed with {codec}: {error}") from error
    if len(found) > MOST_BLOCK:
        raise BlockError(f"a decompressed block has more than {MOST_BLOCK:,} bytes")
    return found


def _unpack(data: bytes, codec: str) -> bytes:
    if codec == "null":
        return data
    if codec == "deflate":
        return _whole(zlib.decompressobj(-zlib.MAX_WBITS), data)
    if codec == "bzip2":
        return _whole(bz2.BZ2Decompressor(), data)
    if codec == "xz":
        return _whole(lzma.LZMADecompressor(), data)
    if codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return bytes(stream.read(MOST_BLOCK + 1))
    body, told = data[:-4], data[-4:]
    size = _varint(body)
    if size > MOST_BLOCK:
        raise pa.ArrowInvalid(f"it would take {size:,} bytes; at most {MOST_BLOCK:,} are read")
    found = bytes(pa.Codec("snappy").decompress(body, decompressed_size=size))
    if zlib.crc32(found).to_bytes(4, "big") != told:
        raise pa.ArrowInvalid("its checksum does not match")
    return found


def _whole(unpacker: Any, data: bytes) -> bytes:
    found: bytes = unpacker.decompress(data, MOST_BLOCK + 1)
    if len(found) <= MOST_BLOCK and not unpacker.eof:
        raise EOFError("the end of the block is missing")
    return found


def _varint(data: bytes) -> int:
    """Return the number at the beginning of bytes that snappy compressed."""
    found = 0
    for place, byte in enumerate(data[:5]):
        found |= (byte & 127) << 7 * place
        if byte < 128:
            return found
    raise pa.ArrowInvalid("its size is missing")


def _long(file: Any, first: bytes = b"") -> int:
    found = shift = 0
    while True:
        byte = first or _exactly(file, 1)
        first = b""
        found |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return (found >> 1) ^ -(found & 1)
        shift += 7
        if shift > 63:
            raise pa.ArrowInvalid("a number in its header or in a block is damaged")


def _sized(file: Any, most: int) -> bytes:
    size = _long(file)
    if not 0 <= size <= most:
        raise pa.ArrowInvalid(
            f"its header has an entry of {size:,} bytes, but all entries together may have at most {MOST_METADATA:,} bytes"
        )
    return _exactly(file, size)


def _exactly(file: Any, size: int) -> bytes:
    found = bytes(file.read(size)) if size else b""
    while len(found) < size and (more := bytes(file.read(size - len(found)))):
        found += more
    if len(found) < size:
        raise pa.ArrowInvalid("it ends within its header or a block; it was cut short")
    return found
