"""Writes the results of a command to a Parquet, Arrow or CSV file, or as an Arrow stream to stdout."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctrbox.cli.terminal import Mistake, utf8, written_aside
from ctrbox.errors import CtrboxError
from ctrbox.files.urls import refuse_url

if TYPE_CHECKING:
    import pyarrow as pa


def check_output(output: str, endings: tuple[str, ...], as_json: bool) -> None:
    """Refuse an output that could not be written at the end, before the work begins."""
    if output == "-" and as_json:
        raise Mistake("-o - and --json both write to stdout; remove one of the two")
    if output == "-" and sys.stdout.isatty():
        raise Mistake(
            f"an Arrow stream cannot be shown on a terminal; pipe it into another program, or name a file: -o "
            f"out{endings[0]}"
        )
    if output != "-":
        refuse_url(output, "the file that -o names")
    if output != "-" and Path(output).suffix not in endings:
        known = f"{', '.join(endings[:-1])} or {endings[-1]}"
        raise Mistake(f"-o {output}: the name must end in {known}, or be - for stdout")
    utf8(Path(output))


@contextlib.contextmanager
def writing(output: str) -> Iterator[None]:
    """Turn an error of the system inside this context into one that names the output."""
    try:
        yield
    except OSError as error:
        if isinstance(error, CtrboxError):
            raise
        # By its number: the text may name the file that is written aside.
        why = os.strerror(error.errno) if error.errno else error.strerror or error
        raise Mistake(
            f"cannot write to stdout ({why})" if output == "-" else f"cannot write {output}: {why}"
        ) from error


@contextlib.contextmanager
def sink(
    output: str | None, arrow: Callable[[Any], pa.RecordBatch], nothing: Callable[[], Any]
) -> Iterator[Callable[[Any], None]]:
    """Yield a function ``write(rows)``, which does nothing if ``output`` is None.

    ``arrow`` makes a record batch from rows. ``nothing`` returns an empty set of rows.
    """
    if output is None:
        yield lambda rows: None
        return

    writer: Any = None

    with contextlib.ExitStack() as stack:
        target: Any = sys.stdout.buffer
        if output != "-":
            target = str(stack.enter_context(written_aside(Path(output))))

        def open_writer(schema: pa.Schema) -> Any:
            # The first rows bring the schema; until then there is nothing to open.
            if output != "-" and output.endswith(".parquet"):
                import pyarrow.parquet as pq

                return pq.ParquetWriter(target, schema, compression="zstd", write_page_checksum=True)
            if output != "-" and output.endswith(".csv"):
                import pyarrow.csv

                return pyarrow.csv.CSVWriter(target, schema)
            import pyarrow.ipc as ipc

            return ipc.new_stream(target, schema) if output == "-" else ipc.new_file(target, schema)

        def write(rows: Any) -> None:
            nonlocal writer
            columns = arrow(rows)
            with writing(output):
                if writer is None:
                    writer = open_writer(columns.schema)
                writer.write_batch(columns)

        try:
            yield write
            if writer is None:
                # No row passed the filters: the file has the right columns all the same.
                write(nothing())
        finally:
            # Closing after a failure can fail again, with a less useful message.
            with contextlib.suppress(Exception) if sys.exc_info()[0] else writing(output):
                if writer is not None:
                    writer.close()


def no_rows(schema: Any) -> Any:
    """Return a batch with the schema of a plan and without rows."""
    import numpy as np

    from ctrbox.columns.batch import Batch, Ragged

    def none(present: bool, dtype: Any) -> Any:
        return np.zeros(0, dtype) if present else None

    empty = Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64))
    return Batch(
        schema=schema,
        rows=0,
        label=none(schema.label, np.float32),
        dense=np.zeros((0, schema.dense_width), np.float32),
        sparse={field.name: empty for field in schema.sparse},
        group=none(schema.group, np.int64),
        weight=none(schema.weight, np.float32),
        labels={task.name: np.zeros(0, np.float32) for task in schema.tasks},
        observed={task.name: np.zeros(0, bool) for task in schema.tasks},
        arrived={task.name: np.zeros(0, np.float32) for task in schema.tasks if task.window is not None},
    )
