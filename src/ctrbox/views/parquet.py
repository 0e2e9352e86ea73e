"""Reads Parquet files: footers, row groups, and what statistics prove. Pages are checked against their checksums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File, first_line
from ctrbox.views.files_with_row_index import Footer, Prune, Wanted
from ctrbox.views.parquet_footers import read_footer
from ctrbox.views.parquet_pages import decode_columns
from ctrbox.views.simple_types import Leaf


class Parquet:
    """Reads one row group at a time; `Footer.detail` is the file's metadata."""

    unit = "row group"

    def footer(self, file: File) -> Footer:
        try:
            with file.version.reading() as raw, self._open(file, raw) as opened:
                meta = opened.metadata
                rows = tuple(meta.row_group(i).num_rows for i in range(meta.num_row_groups))
                _check_counts(file, rows, meta.num_rows)
                return Footer(opened.schema_arrow, rows, meta, written=read_footer(raw, meta))
        except pa.ArrowInvalid as error:
            text = str(error)
            if "magic bytes" in text or "file size is" in text:
                with file.version.reading() as raw:
                    first = raw.read(4)
                if not b"PAR1".startswith(first):
                    raise SourceError(
                        f"{file.shown} is not a Parquet file: it begins with {first!r}, expected b'PAR1'; "
                        "if it holds text or Arrow, pass its format: View(…, format='csv')"
                    ) from error
                raise SourceError(
                    f"{file.shown} is not a complete Parquet file: its footer is missing "
                    f"({file.size:,} bytes; was the file cut short, or is it still being written?)"
                ) from error
            raise

    def read(self, file: File, footer: Footer, wanted: Wanted) -> list[pa.RecordBatch]:
        with file.version.reading() as raw:
            parts: list[pa.RecordBatch] = []
            rest = list(wanted.leaves)

            def take(decoded: pa.RecordBatch | None) -> None:
                nonlocal rest
                if decoded is not None:
                    parts.append(decoded)
                    rest = [leaf for leaf in rest if leaf.name not in decoded.schema.names]

            if wanted.elsewhere is not None and file.version.local:
                take(wanted.elsewhere.decode(raw, footer, wanted.groups, rest))
            if rest and (len(wanted.groups) == 1 or parts) and file.version.local:
                # pyarrow reads remote files ahead, and joins small row groups
                plain = [leaf for leaf in rest if leaf.name not in wanted.dictionary]
                take(_decoded(raw, footer, wanted.groups, plain))
            if parts and not rest:
                if len(parts) == 1:
                    return parts
            else:
                batches = self._read(file, raw, footer, replace(wanted, leaves=rest)) if rest else []
                told = sum(footer.rows[group] for group in wanted.groups)
                if not parts:
                    return batches
                if [batch.num_rows for batch in batches] != [told]:
                    # Strings of more than 2 GB came in pieces, or the file contradicts itself.
                    return self._read(file, raw, footer, wanted)
                parts += batches
        columns = [column for part in parts for column in part.columns]
        return [pa.RecordBatch.from_arrays(columns, [name for part in parts for name in part.schema.names])]

    def _read(self, file: File, raw: pa.NativeFile, footer: Footer, wanted: Wanted) -> list[pa.RecordBatch]:
        """Read with pyarrow, which knows all of Parquet and decides what is damaged."""
        groups = wanted.groups
        dictionary = [name for name in wanted.dictionary if not _delta_encoded(footer, groups, name)]
        with self._open(file, raw, footer, dictionary) as opened:
            table = opened.read_row_groups(
                list(groups), columns=[".".join(leaf.path) for leaf in wanted.leaves], use_threads=False
            )
        told = sum(footer.rows[group] for group in groups)
        if table.num_rows != told:  # pyarrow writes such files where lists have a fixed size of 0
            raise pa.ArrowInvalid(f"its pages hold {table.num_rows:,} rows, but its footer says {told:,}")
        batches: list[pa.RecordBatch] = table.to_batches()
        return batches

    def _open(
        self, file: File, raw: pa.NativeFile, footer: Footer | None = None, dictionary: Sequence[str] = ()
    ) -> pq.ParquetFile:
        return pq.ParquetFile(
            raw,
            metadata=None if footer is None else footer.detail,
            read_dictionary=list(dictionary),
            pre_buffer=file.store.remote,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
            arrow_extensions_enabled=False,
        )

    def size(self, footer: Footer, wanted: Wanted) -> int | None:
        places = [footer.places.get(".".join(leaf.path)) for leaf in wanted.leaves]
        if None in places:
            return None
        asked = tuple(wanted.groups), tuple(places)
        known = footer.sizes.get(asked)
        if known is None:
            chunks = (footer.detail.row_group(group).column(place) for group in wanted.groups for place in places)
            known = footer.sizes[asked] = sum(int(chunk.total_compressed_size) for chunk in chunks)
        return known

    def no_nulls(self, footer: Footer, leaf: Leaf) -> bool:
        found = _chunks(footer, leaf)
        return found is not None and all(
            stats is not None and stats.has_null_count and stats.null_count == 0 for stats in found
        )

    def ranges(self, footer: Footer, leaf: Leaf) -> list[tuple[Any, Any]] | None:
        if pa.types.is_floating(leaf.stored) or leaf.type is None or pa.types.is_nested(leaf.type):
            return None  # NaN is outside a float column's range, and a list's range is its elements'.
        found = _chunks(footer, leaf)
        if found is None or not all(stats is not None and stats.has_min_max for stats in found):
            return None
        try:
            return [(stats.min, stats.max) for stats in found]
        except (ValueError, OverflowError, pa.ArrowException):
            return None  # text that is not UTF-8, or a day that Python's dates do not reach

    def survivors(self, file: File, footer: Footer, prune: Prune) -> set[int] | None:
        """Return the row groups that may contain a wanted row; None: all of them."""
        if not all(footer.sound):
            return None  # pyarrow cannot be asked; what it reads is filtered later in any case
        try:
            schema = footer.schema
            for field in prune.fields:
                place = schema.get_field_index(field.name)
                schema = schema.append(field) if place < 0 else schema.set(place, field)
            with file.version.reading() as raw:  # the fragment reads a footer of its own
                fragment = ds.ParquetFileFormat().make_fragment(raw, partition_expression=prune.promise)
                left = fragment.subset(filter=prune.wanted, schema=schema)
                return {group.id for group in left.row_groups}
        except OSError as error:
            raise SourceError(f"{file.shown} cannot be read: {first_line(error)}") from error
        except (pa.ArrowException, TypeError, NotImplementedError, ValueError):
            return None  # An expression that cannot be asked of this file's statistics prunes nothing.


def _decoded(
    raw: pa.NativeFile, footer: Footer, groups: Sequence[int], leaves: Sequence[Leaf]
) -> pa.RecordBatch | None:
    """Decode those of ``leaves`` that the core can read in all of these row groups."""
    found: list[pa.RecordBatch] = []
    for group in groups:
        batch = decode_columns(raw, footer, group, leaves)
        if batch is None or (found and batch.schema != found[0].schema):
            return None
        found.append(batch)
    if len(found) == 1:
        return found[0]
    joined: list[pa.RecordBatch] = pa.Table.from_batches(found).combine_chunks().to_batches()
    return joined[0] if len(joined) == 1 else None  # strings of more than 2 GB do not fit into one array


def _check_counts(file: File, rows: Sequence[int], told: int) -> None:
    """Refuse a footer whose row groups do not add up to the rows of the file."""
    for group, count in enumerate(rows):
        if count < 0:
            raise SourceError(
                f"{file.shown} has a damaged footer: row group {group} would hold {count:,} rows, expected 0 or more; "
                "write the file again"
            )
    if sum(rows) != told:
        raise SourceError(
            f"{file.shown} has a damaged footer: its row groups hold {sum(rows):,} rows, but the file is said to hold "
            f"{told:,}; write the file again"
        )


def _delta_encoded(footer: Footer, groups: Sequence[int], name: str) -> bool:
    """Return whether strings are stored as differences, which pyarrow cannot read into a dictionary."""
    place = footer.places.get(name)
    return place is not None and any(
        encoding.startswith("DELTA_")
        for group in groups
        for encoding in footer.detail.row_group(group).column(place).encodings
    )


def _chunks(footer: Footer, leaf: Leaf) -> list[Any] | None:
    """Return the column's statistics in each row group that has rows, or None if it is not one Parquet leaf."""
    meta = footer.detail
    places = footer.places
    place = places.get(".".join(leaf.path))
    if place is None:
        return None
    return [meta.row_group(group).column(place).statistics for group, rows in enumerate(footer.rows) if rows]
