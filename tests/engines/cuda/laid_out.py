"""The tables of the page decoder, made of NumPy arrays: the slow twin of native/core/parquet/staged_pages.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrbox import _native
from ctrbox.views.parquet_chunks import Chunk

SPACING = 16  # of buffers on the device
SLACK = 64  # unused bytes after a decompressed page
VIEW_BYTES = 8  # of a string's TextView
MOST_TEXT = (1 << 32) - 1  # bytes; a view holds offsets of 32 bits
STORED_PAGE = np.dtype(
    {
        "names": [
            *("stored", "raw", "row", "stored_size", "raw_size", "values", "plain", "column", "dictionary"),
            *("codec", "kind", "unused"),
        ],
        "formats": [*["<u8"] * 3, *["<u4"] * 5, "<i4", "u1", "u1", "(6,)u1"],
        "offsets": [0, 8, 16, *range(24, 48, 4), 48, 49, 50],
        "itemsize": 56,
    }
)
PAGE_COLUMN = np.dtype(
    [
        *((name, "<u8") for name in ("values", "levels", "bits", "between", "words", "text", "rows")),
        ("width", "<u4"),
        ("nullable", "<u2"),
        ("out_width", "<u2"),
    ]
)
# Columns of what list_parquet_pages tells of a page.
STORED, STORED_SIZE, RAW_SIZE, VALUES, PLAIN, KIND, CODED, CODEC = range(8)


def _ends(sizes: np.ndarray) -> np.ndarray:
    """Return the offsets of parts of these sizes, which lie one after the other, and the end of the last part."""
    spaced = (sizes + SPACING - 1) & -SPACING
    return np.concatenate([[0], np.cumsum(spaced)]).astype(np.int64)


def _before(counts: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Return, for each page, the sum of `counts` over the earlier pages of its column; a column's pages are adjacent."""
    sums = np.cumsum(counts) - counts
    begins = np.flatnonzero(np.diff(column, prepend=-1))
    return sums - np.repeat(sums[begins], np.diff([*begins, len(column)]))


@dataclass
class Plan:
    """Pages and columns of a call, with the places of their parts in three buffers: stored, held, between."""

    pages: np.ndarray  # STORED_PAGE; `stored` and `raw` count from the begin of their buffers
    shapes: np.ndarray  # PAGE_COLUMN, likewise
    in_held: np.ndarray  # by page: whether `raw` lies in the held buffer, since views count from there
    dictionaries: np.ndarray
    data: np.ndarray
    numbers: list[int]  # of the columns that are decoded
    held: int
    between: int

    def placed(self, stored: int, held: int, between: int) -> tuple[np.ndarray, np.ndarray]:
        pages, shapes = self.pages.copy(), self.shapes.copy()
        pages["stored"] += np.uint64(stored)
        pages["raw"] += np.where(self.in_held, held, between).astype(np.uint64)
        for name in ("values", "bits", "text"):
            shapes[name] += np.uint64(held)
        for name in ("levels", "between", "words"):
            shapes[name] += np.uint64(between)
        return pages, shapes

    def table(self, stored: int, held: int, between: int) -> bytes:
        """The bytes of `StagedPages.write`."""
        pages, shapes = self.placed(stored, held, between)
        return b"".join(part.tobytes() for part in (pages, shapes, self.dictionaries, self.data))

    def outcome(self, results: np.ndarray, held: int, columns: int) -> list[Any]:
        """The columns of `StagedPages.outcome`."""
        given: list[Any] = [None] * columns
        _, shapes = self.placed(0, held, 0)
        for k, number in enumerate(self.numbers):
            mine = self.pages["column"] == k
            data = mine & (self.pages["kind"] != 0)
            nulls = int(shapes["rows"][k]) - int(results[data, 1].astype(np.int64).sum())
            width = int(shapes["out_width"][k]) if shapes["width"][k] else 0
            bits = int(shapes["bits"][k]) if nulls else 0
            failed = int(results[mine, 0].max(initial=0))
            places = int(shapes["values"][k]), int(shapes["text"][k]), bits
            given[number] = (failed, int(shapes["rows"][k]), width, *places, nulls)
        return given


def listed(raw: bytes, columns: Sequence[Sequence[Chunk]]) -> list[np.ndarray | None]:
    """The pages of every chunk, with places among the chunks that lie one after the other."""
    tables, at = [], 0
    for chunk in (chunk for chunks in columns for chunk in chunks):
        fields = None
        if 0 <= chunk.size <= len(raw) and 0 <= chunk.start <= len(raw) - chunk.size:
            stored = np.frombuffer(raw, np.uint8)[chunk.start : chunk.start + chunk.size]
            fields = _native.list_parquet_pages(stored, *chunk[2:6])
        if fields is not None:
            fields = fields + np.array([at, *[0] * 7])
        tables.append(fields)
        at += (max(0, chunk.size) + SPACING - 1) & -SPACING
    return tables


def laid_out(columns: Sequence[Sequence[Chunk]], tables: Sequence[np.ndarray | None]) -> Plan:
    numbers: list[int] = []
    parts: list[np.ndarray] = []
    first = 0
    for number, chunks in enumerate(columns):
        mine = tables[first : first + len(chunks)]
        first += len(chunks)
        whole = [table for table in mine if table is not None]
        if len(whole) < len(mine) or not whole or not _fits(chunks, whole):
            continue
        numbers.append(number)
        parts += whole
    column = np.repeat(np.arange(len(numbers)), [sum(len(parts[k]) for k in span) for span in _spans(columns, numbers)])
    fields = np.concatenate(parts) if parts else np.empty((0, 8), np.int64)
    segment = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    begins = np.cumsum([0, *(len(part) for part in parts)])[segment]
    dictionary = fields[:, KIND] == 0
    pages = np.zeros(len(fields), STORED_PAGE)
    for name, k in (("stored", STORED), ("stored_size", STORED_SIZE), ("raw_size", RAW_SIZE), ("values", VALUES)):
        pages[name] = fields[:, k]
    for name, k in (("plain", PLAIN), ("codec", CODEC), ("kind", KIND)):
        pages[name] = fields[:, k]
    pages["column"] = column
    pages["dictionary"] = np.where(fields[:, CODED] == 1, begins, -1)
    entries = np.where(dictionary, fields[:, VALUES], 0)
    rows = np.where(dictionary, 0, fields[:, VALUES])
    pages["row"] = np.where(dictionary, _before(entries, column), _before(rows, column))

    count = len(numbers)
    shapes = np.zeros(count, PAGE_COLUMN)
    shapes["width"] = [columns[n][0].width for n in numbers]
    shapes["nullable"] = [columns[n][0].nullable for n in numbers]
    shapes["out_width"] = [columns[n][0].narrow or columns[n][0].width or VIEW_BYTES for n in numbers]
    shapes["rows"] = [sum(chunk.rows for chunk in columns[n]) for n in numbers]
    height = shapes["rows"].astype(np.int64)
    kept = shapes["out_width"].astype(np.int64)
    nullable = shapes["nullable"].astype(np.int64)
    texts = shapes["width"] == 0
    words = np.bincount(column, weights=np.where(texts[column], entries, 0), minlength=count).astype(np.int64)

    in_held = texts[column] if count else np.empty(0, bool)
    room = fields[:, RAW_SIZE] + SLACK
    in_text, in_between = _ends(np.where(in_held, room, 0)), _ends(np.where(in_held, 0, room))
    pages["raw"] = np.where(in_held, in_text[:-1], in_between[:-1])
    at = in_text[-1]
    begin = np.searchsorted(column, np.arange(count))
    shapes["text"] = in_text[begin]
    for name, sizes in (("values", height * kept), ("bits", nullable * ((height + 7) // 8))):
        places = at + _ends(sizes)
        shapes[name] = places[:-1]
        at = places[-1]
    held = int(at) + SLACK
    at = in_between[-1]
    for name, sizes in (("levels", nullable * (height + 8)), ("between", nullable * 8 * height), ("words", 8 * words)):
        places = at + _ends(sizes)
        shapes[name] = places[:-1]
        at = places[-1]
    chosen = np.arange(len(pages), dtype=np.uint32)
    return Plan(pages, shapes, in_held, chosen[dictionary], chosen[~dictionary], numbers, held, int(at) + SLACK)


def _spans(columns: Sequence[Sequence[Chunk]], numbers: Sequence[int]) -> Iterator[range]:
    """Return, for each decoded column, which of the parts belong to it."""
    begin = 0
    for number in numbers:
        end = begin + len(columns[number])
        yield range(begin, end)
        begin = end


def _fits(chunks: Sequence[Chunk], tables: Sequence[np.ndarray]) -> bool:
    """Return whether a column's strings can be addressed, and its dictionaries have no more entries than the bytes allow."""
    if chunks[0].width:
        return True
    text = sum(int((table[:, RAW_SIZE] + SLACK + SPACING).sum()) for table in tables)
    dictionaries = (table[table[:, KIND] == 0] for table in tables)
    return text <= MOST_TEXT and all((d[:, VALUES] <= d[:, RAW_SIZE] // 4).all() for d in dictionaries)
