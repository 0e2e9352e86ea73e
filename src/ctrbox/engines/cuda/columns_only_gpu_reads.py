"""Lets the GPU decode the columns of local Parquet files that only the GPU reads, and tells why it does not decode the others.

A plan's log and the views merged with it are read row group by row group. Ids by which views are merged stay on the CPU,
as do columns that are stored in a way that parquet_pages.py does not know; all others come as stand-ins
(views/device_columns.py) whose owner is a `DeviceColumn`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from ctrbox.engines.cuda.parquet_pages import DeviceColumn, PageDecoder
from ctrbox.views.device_columns import stand_in
from ctrbox.views.files_with_row_index import Footer
from ctrbox.views.parquet_chunks import Chunk, chunks_of
from ctrbox.views.simple_types import Leaf

SHARE = (
    256  # a call of the decoder may take this part of the plan's GPU memory; up to sixty such parts are held at a time
)
MOST_KNOWN = 4096  # row groups whose place in the file is cached


class Reading:
    """Decodes ``columns`` of one view on the GPU; thread-safe. ``reasons``: why the CPU had to decode a column, by its name."""

    def __init__(self, decoder: PageDecoder, columns: Collection[str]) -> None:
        self.decoder = decoder
        self.names = frozenset(columns)
        self.reasons: dict[str, str] = {}
        self.decoded: set[str] = set()
        self._known: dict[tuple[int, tuple[int, ...], tuple[str, ...]], tuple[Footer, list[list[Chunk] | str]]] = {}
        self._calls = 0  # of the current scan
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin a scan: count calls from 0 again, because the first row groups of a scan are needed first."""
        with self._lock:
            self._calls = 0

    def decode(
        self, raw: pa.NativeFile, footer: Footer, groups: Sequence[int], leaves: Sequence[Leaf]
    ) -> pa.RecordBatch | None:
        """Decode those of ``leaves`` that can be decoded; see `ctrbox.views.device_columns.Elsewhere`."""
        mine = [leaf for leaf in leaves if leaf.name in self.names]
        if not mine:
            return None
        found = self._chunks(footer, tuple(groups), mine)
        chosen = [(leaf, chunks) for leaf, chunks in zip(mine, found, strict=True) if not isinstance(chunks, str)]
        with self._lock:
            order = self._calls
            self._calls += 1
        got = self.decoder.decode(raw.fileno(), [chunks for _, chunks in chosen], order) if chosen else []
        if self.decoder.too_large in got:  # reading them twice would cost more than the GPU saves
            self.names = frozenset()
        rows = sum(footer.rows[group] for group in groups)
        names, arrays = [], []
        for (leaf, _), column in zip(chosen, got, strict=True):
            if isinstance(column, DeviceColumn):
                names.append(leaf.name)
                arrays.append(stand_in(rows, replace(column, type=leaf.type)))
            else:
                self.reasons.setdefault(leaf.name, column)
        for leaf, chunks in zip(mine, found, strict=True):
            if isinstance(chunks, str):
                self.reasons.setdefault(leaf.name, chunks)
        self.decoded.update(names)
        return pa.RecordBatch.from_arrays(arrays, names) if names else None

    def _chunks(self, footer: Footer, groups: tuple[int, ...], leaves: Sequence[Leaf]) -> list[list[Chunk] | str]:
        key = (id(footer), groups, tuple(leaf.name for leaf in leaves))
        with self._lock:
            known = self._known.get(key)
        if known is not None and known[0] is footer:
            return known[1]
        metas = [footer.detail.row_group(group) for group in groups]
        found = [chunks_of(footer, metas, leaf) for leaf in leaves]
        with self._lock:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = (footer, found)
        return found
