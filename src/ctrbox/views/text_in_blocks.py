"""Reads text files in blocks of whole lines, as valid UTF-8.

A text file is UTF-8, with or without a byte order mark, unless the view says another `encoding`; other bytes are
refused. Nothing is replaced or left out.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types as pt

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File
from ctrbox.views.files_without_row_index import open_stream
from ctrbox.views.text_options import TextOptions

BLOCK_BYTES = 4 << 20
LINE_BYTES = 256 << 20  # A longer line is taken for a mistake: a wrong format, or a quote that never closes.

MARK = codecs.BOM_UTF8
_SIGNS = (
    (codecs.BOM_UTF16_LE, "it is UTF-16; pass encoding='utf-16'"),
    (codecs.BOM_UTF16_BE, "it is UTF-16; pass encoding='utf-16'"),
    (b"\x1f\x8b", "it is compressed by gzip; let its name end in .gz"),
    (b"\x28\xb5\x2f\xfd", "it is compressed by zstd; let its name end in .zst"),
    (b"BZh", "it is compressed by bzip2; let its name end in .bz2"),
    (b"PK\x03\x04", "it is a zip archive or a spreadsheet; save it as text"),
    (b"PAR1", "it is Parquet; pass format='parquet'"),
    (b"ARROW1", "it is Arrow; pass format='arrow'"),
)


@dataclass(frozen=True)
class Block:
    """Whole lines of a file; `at` is the byte in the (decompressed) text at which they begin."""

    data: bytes
    at: int
    last: bool


def text_blocks(file: File, options: TextOptions, find_end: Callable[[bytes], int]) -> Iterator[Block]:
    """Yield a file in blocks of whole lines, which end where `find_end` says; blocks of blank lines are left out."""
    stream = open_stream(file)
    read = _decoded(file, stream, options.encoding) if is_decoded(options.encoding) else stream.read
    rest, at = b"", 0
    try:
        while chunk := read(max(BLOCK_BYTES, len(rest))):
            if not at and not rest:
                _check_signs(file, chunk, options)
                at, chunk = (len(MARK), chunk[len(MARK) :]) if chunk.startswith(MARK) else (0, chunk)
            rest = rest + chunk if rest else chunk
            end = find_end(rest)
            if end:
                block, rest = rest[:end], rest[end:]
                if not block.isspace():
                    yield Block(block, at, False)
                at += end
            elif len(rest) > LINE_BYTES:
                limit = f"{LINE_BYTES >> 20} MiB"
                raise SourceError(
                    f"{file.shown} has a line longer than {limit}, starting at byte {at}. A quote may open there and never "
                    "close; quote=False treats quotes as ordinary characters"
                )
        if rest and not rest.isspace():
            yield Block(rest, at, True)
    finally:
        stream.close()


def is_decoded(encoding: str | None) -> bool:
    """Return whether text must be converted to UTF-8 first."""
    return encoding is not None and codecs.lookup(encoding).name not in ("utf-8", "utf-8-sig")


def _decoded(file: File, stream: Any, encoding: str | None) -> Callable[[int], bytes]:
    decoder = codecs.getincrementaldecoder(encoding or "utf-8")("strict")
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        text = ""
        while not text:
            chunk = bytes(stream.read(size))
            held = len(decoder.getstate()[0])  # bytes of a letter that began in the chunk before
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                where = at - held + error.start
                raise SourceError(
                    f"byte {where} of {file.shown} is not valid {encoding}: {error.reason}; pass the file's real encoding as "
                    "encoding="
                ) from error
            at += len(chunk)
            if not chunk:
                break
        return text.encode("utf-8", "surrogatepass")

    return read


def _check_signs(file: File, chunk: bytes, options: TextOptions) -> None:
    """Refuse a file whose first bytes show that it is not UTF-8 text."""
    if options.encoding is not None:
        return
    for sign, advice in _SIGNS:
        if chunk.startswith(sign) and not (sign.isalnum() and _is_utf8(chunk)):
            raise SourceError(f"{file.shown} is not UTF-8 text: {advice}")


class NotText(Exception):
    """Raised if a block has bytes that are not text; `at` is the place in the block."""

    def __init__(self, what: str, at: int):
        super().__init__(what)
        self.at = at


def check_text(block: Block, options: TextOptions) -> None:
    """Refuse bytes that are not UTF-8, and NUL bytes unless the view names the encoding. Raise `NotText`."""
    data = block.data
    if not _is_utf8(data):
        try:
            data.decode()
        except UnicodeDecodeError as error:
            told = f"byte {block.at + error.start} ({data[error.start]:#04x}) is not UTF-8"
            advice = "pass the file's encoding, such as encoding='latin-1' or encoding='cp1252'"
            raise NotText(f"{told}; {advice}", error.start) from None
    if options.encoding is None and (at := data.find(b"\0")) >= 0:
        advice = "if the file is UTF-16, pass encoding='utf-16'; if NUL belongs to the text, pass encoding='utf-8'"
        raise NotText(f"byte {block.at + at} is NUL, which does not occur in text; {advice}", at)


def _is_utf8(data: bytes) -> bool:
    """Tell whether bytes are UTF-8, without making a Python string of them."""
    if data.isascii():
        return True
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(data)))
    try:
        pa.Array.from_buffers(pa.utf8(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def no_null_type(type: pa.DataType) -> pa.DataType:
    """Return the type with every null type (nothing met yet) replaced by text."""
    if pt.is_null(type):
        return pa.utf8()
    if pt.is_list(type):
        return pa.list_(no_null_type(type.value_type))
    if pt.is_struct(type):
        return pa.struct([pa.field(field.name, no_null_type(field.type)) for field in type])
    return type
