"""Defines ``ctrbox table``: statistics, verification, repair, compaction and export of the folder of a Sparse Table."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ctrbox.cli.help_text import Commands
from ctrbox.cli.options import AsJson
from ctrbox.cli.terminal import Mistake, hint, say, say_json, tell, utf8, written_aside

app = Commands(
    help="Inspect, check and compact the folder of a Sparse Table.", no_args_is_help=True, rich_markup_mode=None
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a Sparse Table.")]
Ram = Annotated[
    str, typer.Option(metavar="SIZE", help="Memory that the command may use, such as 500MB; units are powers of 1024.")
]


@app.command(epilog="\b\nExamples:\n  ctrbox table stat params\n")
def stat(folder: Folder, as_json: AsJson = False) -> None:
    """Print the numbers of keys, rows and bytes of a table."""
    with opened(folder, "256MB", read_only=True) as table:
        stats, row = table.stats(), table.row
        facts: dict[str, Any] = {
            "dim": table.dim,
            "linear": bool(row.linear),
            "optimizer": str(table.optimizer),
            "version": table.version,
            "keys": stats["keys"],
            "rows_on_disk": stats["disk_rows"],
            "of_which_newest": stats["keys"],  # the others are older states of the same keys
            "runs": stats["runs"],
            "bytes_on_disk": stats["disk_bytes"],
            "of_which_in_runs": stats["live_bytes"],  # the others are of runs that are no more
            "index_bytes": stats["index_bytes"],
            "compaction_errors": stats["compaction_errors"],  # since the last compact() that succeeded
        }
        last_error = table.last_compaction_error
    if as_json:
        say_json(**facts, last_compaction_error=last_error)
        return
    wide = max(len(name) for name in facts) + 2
    shown = {name: _shown(value) for name, value in facts.items()}
    right = max(map(len, shown.values()))
    for name, value in shown.items():
        say(f"{name.replace('_', ' '):<{wide}}{value:>{right}}")
    if facts["rows_on_disk"] > facts["keys"]:
        tell(
            f"{facts['rows_on_disk'] - facts['keys']:,} rows on disk are old versions of other rows; `ctrbox table "
            "compact` removes them"
        )
    if facts["compaction_errors"]:
        tell(
            f"the background compaction failed {facts['compaction_errors']:,} times, the last time with: {last_error}; "
            f"`ctrbox table compact {shlex.quote(str(folder))}` tries again, and says what is wrong"
        )
    hint(f"ctrbox table verify {shlex.quote(str(folder))}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


@app.command(epilog="\b\nExamples:\n  ctrbox table verify params\n")
def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Read and check every page of a table.

    The exit code is 1 if a page is damaged.
    """
    began = time.perf_counter()
    with opened(folder, "256MB", read_only=True) as table:
        found, size = table.verify(), table.stats()["live_bytes"]
    if as_json:
        say_json(damaged=found, bytes=size, seconds=time.perf_counter() - began)
    for line in found:
        tell(line)
    if found:
        places = "1 place" if len(found) == 1 else f"{len(found)} places"
        raise Mistake(
            f"{folder} is damaged in {places}; `ctrbox table repair {shlex.quote(str(folder))} --from SAVED` "
            f"replaces "
            f"the damaged files with those of a table saved on another disk"
        )
    tell(f"the checksums of all {size:,} bytes match")
    hint(f"ctrbox table {'stat' if of_a_run(folder) else 'compact'} {shlex.quote(str(folder))}")


@app.command(epilog="\b\nExamples:\n  ctrbox table repair params --from /backup/params\n")
def repair(
    folder: Folder,
    source: Annotated[
        Path, typer.Option("--from", metavar="SAVED", help="Folder of a saved copy of the same table, on another disk.")
    ],
    as_json: AsJson = False,
) -> None:
    """Replace damaged files of a table with saved copies.

    Afterwards the table has the contents of its own last checkpoint, and not those of the saved copy.
    """
    from ctrbox.embed.ssd.repair import repair as repaired

    files = repaired(utf8(folder), utf8(source))
    if as_json:
        say_json(repaired=[str(file) for file in files])
    for file in files:
        tell(f"{file} is repaired")
    if not files:
        tell(f"{folder} is not damaged")
    hint(f"ctrbox table verify {shlex.quote(str(folder))}")


@app.command(epilog="\b\nExamples:\n  ctrbox table compact params --ram 1GB\n")
def compact(folder: Folder, ram: Ram = "512MB", as_json: AsJson = False) -> None:
    """Merge the files of a table to free disk space.

    Afterwards every row is on disk only once. Older versions of the rows are removed.
    """
    refuse_of_a_run(folder)
    with opened(folder, ram) as table:
        before = table.stats()["disk_bytes"]
        table.compact()
        table.checkpoint()
        after = table.stats()["disk_bytes"]
    if as_json:
        say_json(before=before, after=after)
    tell(f"the table took {before:,} bytes on disk and now takes {after:,} bytes")
    hint(f"ctrbox table stat {shlex.quote(str(folder))}")


@app.command(
    epilog="\b\nExamples:\n  ctrbox table export params -o rows.parquet\n"
    "  ctrbox table export params --since 12 -o changed.parquet\n"
)
def export(
    folder: Folder,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Parquet file to write; its name ends in .parquet.")
    ],
    since: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="VERSION",
            help="Export only rows that changed after this version of the table; 0 exports all rows.",
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Export the rows of a table as Parquet.

    The file has one row for each key, in no particular order.

    \b
    Columns:
      key      int64
      version  uint32; number of the first checkpoint with the present state of the row
      weight   float; the first-order weight, if rows have one
      vector   list of dim floats
      states   list of floats: the optimizer states of the weight, then those of the vector
                 SGD             no states: the column is null
                 Adagrad         for each float, the sum of squared gradients
                 RowwiseAdagrad  one sum of mean squared gradients
                 Adam            the means, the means of squares, beta1^t, beta2^t
                 FTRL            z, then the sums of squared gradients
               If the table counts, three floats follow: shows, clicks, period of the last push
    """
    if output.suffix != ".parquet":
        raise Mistake(f"export writes Parquet; expected a name such as {output.with_suffix('.parquet')}, got {output}")
    import numpy as np
    import pyarrow.parquet as pq

    with opened(folder, "256MB", read_only=True) as table, written_aside(utf8(output)) as aside:
        nothing = np.empty(0, np.int64), np.empty(0, np.uint32), np.empty((0, table.floats), np.float32)
        rows = 0
        with pq.ParquetWriter(aside, _columns(table.row, *nothing).schema) as writer:
            for keys, versions, floats in table.scan(since):
                writer.write_table(_columns(table.row, keys, versions, floats))
                rows += len(keys)
    if as_json:
        say_json(rows=rows, output=str(output))
    tell(f"wrote {rows:,} rows to {output}")
    hint(f"ctrbox table stat {shlex.quote(str(folder))}")


def _columns(row: Any, keys: Any, versions: Any, floats: Any) -> Any:
    """Rows of a table as an Arrow table."""
    import pyarrow as pa

    columns = {"key": pa.array(keys), "version": pa.array(versions)}
    if row.linear:
        columns["weight"] = pa.array(floats[:, 0].copy())
    columns["vector"] = _lists(floats[:, row.width - row.dim : row.width])
    columns["states"] = _lists(floats[:, row.width :])
    return pa.table(columns)


def _lists(floats: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(floats).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, floats.shape[1]) if floats.shape[1] else pa.nulls(len(floats))


def of_a_checkpoint(folder: Path) -> bool:
    """Return whether a table is part of a checkpoint of several tables (cb.tables.SparseTables)."""
    return (folder.resolve().parent.parent / "TABLES").exists()


def of_a_run(folder: Path) -> Path | None:
    """Return the run folder to which a table belongs, as model/table-0.ctrtable or checkpoints/step-9/table-0.ctrtable;
    or None.
    """
    from ctrbox.predict.weights_folder import STATE

    place = folder.resolve()
    if place.suffix != ".ctrtable" or not (place.parent / STATE).is_file():
        return None
    return next((p for p in place.parents if (p / "config.json").is_file()), place.parent)


def refuse_of_a_run(folder: Path) -> None:
    """Refuse a table of a run or of a checkpoint. A run records the bytes of its tables, and checkpoints share their
    files, so nobody may change them.
    """
    if of_a_checkpoint(folder):
        raise Mistake(
            f"{folder} is part of a checkpoint of several tables; open them with cb.tables.SparseTables and call compact()"
        )
    run = of_a_run(folder)
    if run is not None:
        copied = folder.resolve().stem
        raise Mistake(
            f"{folder} is part of the run in {run}, and compacting it would make that run unreadable; compact a copy instead: "
            f"cp -r {shlex.quote(str(folder))} {copied} && ctrbox table compact {copied}"
        )


def opened(folder: Path, ram: str, *, read_only: bool = False) -> Any:
    from ctrbox.embed.ssd.sparse_table import SparseTable

    return SparseTable.load(utf8(folder), ram=ram, read_only=read_only)
