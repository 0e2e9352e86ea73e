"""Reads ORC files by stripe with pyarrow.

The format has no checksum, so buffers are checked before their offsets are used. pyarrow hands out timestamps as
nanoseconds and refuses those that do not fit, the years before 1677 and after 2262.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.orc as orc

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File
from ctrbox.views.arrow_and_feather import check_batch, widths
from ctrbox.views.files_with_row_index import Footer, NoStatistics, Wanted

MAGIC = b"ORC"
NO_END = ("postscript", "File size too small")  # words in pyarrow's errors about a file whose end is missing


class Orc(NoStatistics):
    """Reads one stripe at a time. Its statistics are not used, so every column may hold nulls."""

    unit = "stripe"

    def footer(self, file: File) -> Footer:
        with file.version.reading() as raw:
            if not MAGIC.startswith(first := raw.read(len(MAGIC))) or not first:
                raise SourceError(f"{file.shown} is not an ORC file: it begins with {first!r}, expected {MAGIC!r}")
            try:
                opened = orc.ORCFile(raw)
            except (pa.ArrowInvalid, OSError) as error:
                if any(words in str(error) for words in NO_END):
                    raise SourceError(
                        f"{file.shown} is not a complete ORC file: the postscript, which ends such a file, is missing or damaged "
                        f"({file.size:,} bytes; was the file cut short, or is it still being written?)"
                    ) from error
                raise
            stripes, schema = opened.nstripes, opened.schema
            if stripes <= 1:
                rows = (int(opened.nrows),) * stripes
            else:  # the package does not tell the rows of a stripe, so the cheapest column is read
                bits = widths(schema)
                narrow = [schema.names[bits.index(min(bits))]] if bits else []
                rows = tuple(opened.read_stripe(stripe, columns=narrow).num_rows for stripe in range(stripes))
            if sum(rows) != opened.nrows:
                raise pa.ArrowInvalid(f"its stripes hold {sum(rows):,} rows, but its footer says {opened.nrows:,}")
        return Footer(schema, rows)

    def read(self, file: File, footer: Footer, wanted: Wanted) -> list[pa.RecordBatch]:
        names = list(dict.fromkeys(leaf.path[0] for leaf in wanted.leaves))
        with file.version.reading() as raw:
            opened = orc.ORCFile(raw)
            batches = [opened.read_stripe(group, columns=names) for group in wanted.groups]
        for group, batch in zip(wanted.groups, batches, strict=True):
            if batch.num_rows != footer.rows[group]:
                raise pa.ArrowInvalid(f"stripe {group} holds {batch.num_rows:,} rows, expected {footer.rows[group]:,}")
            check_batch(batch)
        return batches
