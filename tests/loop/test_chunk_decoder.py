"""Chunks of events: JSON lines, Parquet and Arrow; what is malformed, cut or no chunk at all."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.datasets.write_adlog_events import encoded
from ctrbox.errors import PlanError
from ctrbox.loop import chunk_decoder as chunk
from ctrbox.loop.chunk_decoder import pieces
from ctrbox.loop.decode_events import Layout, Piece

LOG = pa.schema(
    [
        ("id", pa.int64()),
        ("ts", pa.timestamp("us")),
        ("user", pa.int64()),
        ("query", pa.string()),
        ("page.depth", pa.float64()),
    ]
)
LAYOUT = Layout.of(pa.schema([LOG.field(n) for n in ("user", "query", "page.depth")]), LOG, id="id", time="ts")
ROW = {"event": "impression", "id": 1, "ts": "2026-01-01T00:00:00", "user": 7, "query": "a b", "page": {"depth": 0.5}}


def all_of(payload: bytes, start: int = 0, layout: Layout = LAYOUT) -> tuple[list[tuple[Any, ...]], list[Piece]]:
    """(click, microseconds, id, row) of every event, and the pieces, which must lie end to end."""
    found = list(pieces("c", payload, layout, start))
    assert [p.last for p in found] == [False] * (len(found) - 1) + [True]
    assert all(a.stop == b.start for a, b in itertools.pairwise(found))
    rows = [
        (bool(e.click[n]), int(e.time[n]), e.ids[n], e.rows.slice(n, 1).to_pylist()[0])
        for p in found
        if (e := p.events) is not None
        for n in range(len(e))
    ]
    return rows, found


def text(*rows: Any) -> bytes:
    return "\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows).encode()


def test_formats_give_the_same_events() -> None:
    click = {"event": "click", "id": 1, "ts": "2026-01-01T00:00:40.25"}
    lines = text(ROW, click)
    expected, _ = all_of(lines)
    assert expected == [
        (False, 1767225600000000, 1, {"user": 7, "query": "a b", "page.depth": 0.5}),
        (True, 1767225640250000, 1, {"user": None, "query": None, "page.depth": None}),
    ]
    table = pa.Table.from_pylist([ROW, click])
    table = table.set_column(2, "ts", table.column("ts").cast(pa.timestamp("us")))
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as sink:
        sink.write_table(table)
    zstd = pa.BufferOutputStream()
    with pa.CompressedOutputStream(zstd, "zstd") as out:
        out.write(lines)
    for payload in (
        lines + b"\n",
        b"\n\n" + lines,
        lines.replace(b"\n", b"\r\n"),
        gzip.compress(lines),
        zstd.getvalue().to_pybytes(),
        encoded(table, "parquet"),
        encoded(table, "arrow"),
        stream.getvalue().to_pybytes(),
    ):
        assert all_of(payload)[0] == expected


def test_a_malformed_line_is_named_and_the_others_are_read() -> None:
    lines = text(
        ROW,
        "{broken",
        "[1]",
        "null",
        {**ROW, "id": "x"},
        {**ROW, "id": None},
        {**ROW, "ts": None},
        {**ROW, "event": "view"},
        f"{json.dumps(ROW)} {json.dumps(ROW)}",
        {**ROW, "id": 2},
    )
    rows, found = all_of(lines)
    assert [r[2] for r in rows] == [1, 2]
    bad = dict(pair for p in found for pair in p.bad)
    assert list(bad) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (bad[5], bad[6], bad[7]) == (
        "'id' is null",
        "'ts' is null",
        "'event' is neither 'impression' nor 'click'",
    )
    assert bad[8] == "found 2 objects; expected one per line"


@given(
    st.lists(
        st.sampled_from([json.dumps(ROW), "{", "", "7", '{"event":"click","id":3,"ts":"2026-01-01T00:00:01"}']),
        max_size=40,
    )
)
@settings(max_examples=60, deadline=None)
def test_bad_lines_are_those_that_are_bad_alone(lines: list[str]) -> None:
    whole, found = all_of(text(*lines))
    alone = [all_of(text(line)) for line in lines]
    assert whole == [row for rows, _ in alone for row in rows]
    assert [n for p in found for n, _ in p.bad] == [
        n for n, (_, parts) in enumerate(alone) if any(p.bad for p in parts)
    ]


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
def test_a_chunk_goes_on_behind_any_row(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "ROWS", 3)
    monkeypatch.setattr(chunk, "BLOCK_BYTES", 256)
    base = pa.Table.from_pylist([{**ROW, "id": n} for n in range(10)])
    table = base.set_column(2, "ts", base.column("ts").cast(pa.timestamp("us")))
    payload = encoded(table, format)
    for start in range(11):
        assert [r[2] for r in all_of(payload, start)[0]] == list(range(start, 10))


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_numbers_are_times_of_the_declared_unit(format: str, unit: str) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    values = [1767225600 * per_second, None, -1, 1574953200 * per_second]
    table = pa.table({"event": ["click"] * 4, "id": [1, 2, 3, 4], "ts": pa.array(values, pa.int64())})
    expected = [1767225600000000, -max(1, 10**6 // per_second), 1574953200000000]
    for columns in (LAYOUT.columns, pa.schema([LOG.field("ts")])):
        layout = Layout.of(columns, LOG, id="id", time="ts", time_units={"ts": unit})
        rows, found = all_of(encoded(table, format), layout=layout)
        assert [r[1] for r in rows] == expected
        assert [pair for p in found for pair in p.bad] == [(1, "'ts' is null")]
        if "ts" in columns.names:
            stamps = [(r[3]["ts"] - datetime(1970, 1, 1)) // timedelta(microseconds=1) for r in rows]
            assert stamps == expected


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize("value", [1574953200, 1574953200.5])
def test_a_number_without_a_declared_unit_is_refused(format: str, value: float) -> None:
    rows, found = all_of(encoded(pa.table({"event": ["click"], "id": [1], "ts": [value]}), format))
    assert not rows
    told = found[-1].refused or found[0].bad[0][1]
    assert "'ts' is" in told
    assert "expected a time: ISO 8601 text" in told
    assert "time_units=" in told


def test_a_log_whose_times_are_numbers_must_declare_their_unit() -> None:
    log = LOG.set(1, pa.field("ts", pa.int64()))
    with pytest.raises(PlanError, match=r"pass the unit: ctrbox online --time-unit s"):
        Layout.of(LAYOUT.columns, log, id="id", time="ts")
    layout = Layout.of(LAYOUT.columns, log, id="id", time="ts", time_units={"ts": "s"})
    assert all_of(text({**ROW, "ts": -5}), layout=layout)[0][0][1] == -5_000_000


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (pa.table({"id": [1], "ts": ["2026-01-01"]}), "the events have no column 'event'"),
        (pa.table({"event": ["click"], "ts": ["2026-01-01"]}), "the events have no column 'id'"),
        (
            pa.table({"event": ["impression"], "id": [1], "ts": ["2026-01-01"], "users": [1]}),
            "impressions have no column 'user'; nearest: 'users'",
        ),
        (pa.table({"event": [3], "id": [1], "ts": ["2026-01-01"]}), "column 'event' is int64, expected text"),
        (pa.table({"event": ["click"], "id": ["x"], "ts": ["2026-01-01"]}), "column 'id' is string, expected int64"),
        (pa.table({"event": ["click"], "id": [1], "ts": [True]}), "column 'ts' is bool, expected a time"),
        (pa.table({"event": ["click"], "id": ["5"], "ts": ["2026-01-01"]}), "column 'id' is string, expected int64"),
        (pa.table({"event": ["click"], "id": [5.0], "ts": ["2026-01-01"]}), "column 'id' is double, expected int64"),
        (
            pa.table({"event": ["click"], "id": [1], "ts": ["2026-01-01"], "query": [5]}),
            "column 'query' is int64, expected string",
        ),
    ],
)
def test_columns_that_are_missing_or_wrong_refuse_the_chunk(table: pa.Table, why: str) -> None:
    rows, found = all_of(encoded(table, "arrow"))
    assert not rows
    assert why in found[-1].refused


def test_damaged_chunks_are_refused_and_never_crash() -> None:
    base = pa.Table.from_pylist(
        [{**ROW, "id": n, "ts": datetime.fromtimestamp(1767225600 + n, UTC)} for n in range(500)]
    )
    rng = random.Random(0)
    for format in ("parquet", "arrow", "jsonl"):
        whole = encoded(base, format)
        for payload in [whole, gzip.compress(whole)] if format == "jsonl" else [whole]:
            for _ in range(60):
                damaged = bytearray(payload)
                for _ in range(rng.randrange(1, 4)):
                    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
                cut = rng.choice([len(damaged), rng.randrange(len(damaged))])
                assert list(pieces("c", bytes(damaged[:cut]), LAYOUT))[-1].last
    assert list(pieces("c", encoded(base, "parquet")[:-3], LAYOUT))[-1].refused


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "BLOCK_BYTES", 64)
    monkeypatch.setattr(chunk, "LINE_BYTES", 1000)
    rows, found = all_of(text(ROW) + b"\n" + b"x" * 5000)
    assert len(rows) == 1
    assert "line 2 is longer than 1,000 bytes" in found[-1].refused


def test_ids_may_be_text_that_is_not_utf8() -> None:
    log = pa.schema([("id", pa.string()), ("ts", pa.timestamp("us")), ("user", pa.int64())])
    layout = Layout.of(log.remove(0).remove(0), log, id="id", time="ts")
    ids = pa.Array.from_buffers(
        pa.utf8(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    table = pa.table({"event": ["click"], "id": ids.cast(pa.binary()), "ts": ["2026-01-01"]})
    assert all_of(encoded(table, "parquet"), layout=layout)[0][0][2] == b"\xff\xfe"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({"id": "ID", "time": "ts"}, "no column 'ID' for the id of an impression; nearest: 'id'"),
        ({"id": "id", "time": "tss"}, "no column 'tss' for the time of an event; nearest: 'ts'"),
        (
            {"id": "id", "time": "ts", "event": "user"},
            "column 'user' contains the kind of the event, but a feature reads it too; choose",
        ),
    ],
)
def test_a_layout_names_columns_that_are_there(names: dict[str, str], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        Layout.of(LAYOUT.columns, LOG, **names)


def test_without_a_timestamp_a_column_whose_name_speaks_of_time_is_suggested() -> None:
    log = pa.schema([("id", pa.int64()), ("user", pa.int64()), ("click_Date", pa.int64())])
    with pytest.raises(PlanError, match="no column 'moment' for the time of an event; nearest: 'click_Date'"):
        Layout.of(LAYOUT.columns, log, id="id", time="moment")
    with pytest.raises(PlanError, match="no column 'moment' for the time of an event; name it"):
        Layout.of(LAYOUT.columns, log.remove(2), id="id", time="moment")


def test_a_line_may_be_as_long_as_the_longest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "BLOCK_BYTES", 64)
    line = text({**ROW, "query": "q" * 200}).rstrip(b"\n")
    line += b" " * (-len(line) % 64)
    longest = len(line) - 64  # of it is held when its last block is read
    monkeypatch.setattr(chunk, "LINE_BYTES", longest)
    rows, found = all_of(line)
    assert (len(rows), found[-1].refused, found[-1].stop) == (1, "", 1)
    monkeypatch.setattr(chunk, "LINE_BYTES", longest - 1)
    rows, found = all_of(text(ROW).rstrip(b"\n") + b"\n" + line + b"\n" + text(ROW))
    assert len(rows) == 1
    assert found[-1].refused == f"line 2 is longer than {longest - 1:,} bytes; write one event per line"
