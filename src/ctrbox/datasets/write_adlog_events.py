"""Writes the synthetic ad log as a stream of impressions and clicks, in chunks (``adlog_events``).

    out/chunk-000000.parquet, chunk-000001.parquet, …      in order of time, with a little disorder

An impression has all columns of the log but ``clicked``, which nobody knows yet; a click has the id of its impression and a time
some seconds to minutes later. Chunks are written aside and renamed, as `ctrbox online` expects them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctrbox.arguments.numbers import whole
from ctrbox.errors import DataError, WriteError
from ctrbox.files.urls import local_path

FORMATS = ("parquet", "arrow", "jsonl")
READ_ROWS = 65_536


def adlog_events(
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    chunk_rows: int = 10_000,
    rows: int | None = None,
    click_delay_s: float = 60.0,
    disorder_s: float = 5.0,
    seed: int = 0,
    format: str = "parquet",
    events_per_s: float | None = None,
) -> int:
    """Write the events of an ad log (`adlog`) as chunks of ``chunk_rows`` events, and return the number of events.

    ``rows``           number of impressions of the log to use; default: all
    ``click_delay_s``  mean time from an impression to its click, in seconds
    ``disorder_s``     longest time, in seconds, by which an event may come after an event with a later time
    ``events_per_s``   number of events to write per second; default: as fast as possible
    """
    if format not in FORMATS:
        raise DataError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    whole("chunk_rows=", chunk_rows, 1, 1 << 40)
    if rows is not None:
        whole("rows=", rows, 1, 1 << 40)
    place, log = local_path(out, "a stream of chunk files"), local_path(data, "the ad log of a stream")
    began, done = time.monotonic(), 0
    try:
        place.mkdir(parents=True, exist_ok=True)
        if there := sorted(place.glob("chunk-*")):
            raise WriteError(
                f"{place} already contains the chunks of a stream ({there[0].name} …). The online loop identifies chunks by "
                "their names, so new chunks must not be mixed with old ones; remove the old chunks, or choose another folder"
            )
        for number, chunk in enumerate(_chunks(log, chunk_rows, rows, click_delay_s, disorder_s, seed)):
            if events_per_s:
                time.sleep(max(0.0, began + done / events_per_s - time.monotonic()))
            aside = place / f".chunk-{number:06}.{os.getpid()}"
            aside.write_bytes(encoded(chunk, format))
            aside.rename(place / f"chunk-{number:06}.{format}")
            done += chunk.num_rows
    except OSError as error:
        raise WriteError(f"cannot write a stream to {place}: {error.strerror or error}") from error
    return done


def encoded(events: pa.Table, format: str) -> bytes:
    """Return events as the bytes of a chunk, which is a file or a message."""
    sink = pa.BufferOutputStream()
    if format == "parquet":
        pq.write_table(events, sink, compression="zstd", write_page_checksum=True)
    elif format == "arrow":
        with pa.ipc.new_file(sink, events.schema) as file:
            file.write_table(events)
    else:
        return "".join(f"{line}\n" for line in _lines(events)).encode()
    return sink.getvalue().to_pybytes()


def _lines(events: pa.Table) -> Iterator[str]:
    import json

    for row in events.to_pylist():
        plain = {k: v.isoformat() if hasattr(v, "isoformat") else v for k, v in row.items() if v is not None}
        yield json.dumps(plain, ensure_ascii=False)


def _chunks(
    data: Path, chunk_rows: int, rows: int | None, delay_s: float, disorder_s: float, seed: int
) -> Iterator[pa.Table]:
    files = sorted((data / "impressions").glob("*.parquet"))
    if not files:
        raise DataError(f"{data} does not contain an ad log; make one: ctrbox datasets adlog --out {data}")
    waiting: pa.Table | None = None  # events that later ones may still come before
    left, rng = rows, np.random.default_rng(seed)
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(READ_ROWS):
            if left is not None:
                batch = batch.slice(0, left)
                left -= len(batch)
            if not len(batch):
                break
            fresh, newest = _events(pa.Table.from_batches([batch]), rng, delay_s, disorder_s)
            together = fresh if waiting is None else pa.concat_tables([waiting, fresh])
            together = together.sort_by([("order", "ascending"), ("instance_id", "ascending")])
            ready = int(np.searchsorted(together.column("order").to_numpy(), newest - int(1e6 * disorder_s)))
            whole = ready - ready % chunk_rows
            for at in range(0, whole, chunk_rows):
                yield together.slice(at, chunk_rows).drop_columns(["order"]).combine_chunks()
            waiting = together.slice(whole)
    for at in range(0, 0 if waiting is None else len(waiting), chunk_rows):
        assert waiting is not None
        yield waiting.slice(at, chunk_rows).drop_columns(["order"]).combine_chunks()


def _events(log: pa.Table, rng: np.random.Generator, delay_s: float, disorder_s: float) -> tuple[pa.Table, int]:
    """Return impressions and clicks of some rows, with the place at which each arrives, and the time of the newest impression."""
    shown = log.drop_columns(["clicked"])
    at = log.column("ts").cast(pa.int64()).to_numpy()
    clicked = log.filter(pc.equal(log.column("clicked"), 1)).select(["instance_id", "ts"])
    when = clicked.column("ts").cast(pa.int64()).to_numpy()
    when = when + (1e6 * (0.5 + rng.exponential(delay_s, len(when)))).astype(np.int64)
    names = ["impression", "click"]
    parts = [
        shown.append_column("event", pa.repeat(names[0], len(at))),
        pa.table(
            {"instance_id": clicked.column("instance_id"), "ts": pa.array(when).cast(pa.timestamp("us"))}
        ).append_column("event", pa.repeat(names[1], len(when))),
    ]
    nullable = pa.schema([f.with_nullable(True) for f in parts[0].schema])
    events = pa.concat_tables([parts[0].cast(nullable), parts[1]], promote_options="default")
    jitter = (1e6 * disorder_s * rng.random(len(events))).astype(np.int64)
    return events.append_column("order", pa.array(np.concatenate([at, when]) + jitter)), int(at.max())
