"""One row has one meaning, whichever way it comes in: requests, tensors, Arrow rows, files and streams give the same batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.times import TIME, times_of
from ctrbox.datasets.write_adlog_events import encoded
from ctrbox.errors import CtrboxError, DataError, PlanError
from ctrbox.loop.chunk_decoder import pieces
from ctrbox.loop.decode_events import Layout
from ctrbox.serve.request import RequestReader
from ctrbox.serve.tensors import read_infer

EPOCH = datetime(1970, 1, 1)
TIMES = [0, -1, -999_999, -86_400_000_001, 1_574_953_200_000_000, 1_574_953_200_123_456, 4_102_444_800_000_001]
FAR = [253_402_300_799_999_999, -62_135_596_800_000_000]  # the last and the first moment of ISO 8601's years
FURTHEST = [(1 << 63) - 1, -(1 << 63) + 1]  # timestamps may lie there, numbers may not
LOG = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us")), ("user", pa.int64()), ("price", pa.float32())])


def plan_with(units: dict[str, str], folder: Path | None = None) -> cb.Plan:
    rows = pa.table({"id": [1, 2], "ts": [0, 1], "user": [1, 2], "price": [0.5, 1.0]}).cast(LOG)
    log = rows.append_column("clicked", pa.array([0, 1]))
    features = cb.FeatureSet(
        label=col("clicked"),
        sparse={
            "ts": col("ts").key(),
            "hour": cb.cross(col("ts").hour(), "user"),
            "day": col("ts").weekday().key(),
            "cheap": (col("price") > 0.3).key(),
        },
        dense={"price": col("price")},
    )
    return cb.compile(cb.View(log, key="id", name="log", time_units=units), features, device="cpu")


PLANS = {unit: plan_with({"ts": unit} if unit else {}) for unit in ("", "s", "ms", "us", "ns")}


def engine_of(plan: cb.Plan) -> cb.DeepFFM:
    engine = cb.DeepFFM(plan.schema, k=2, hidden=(4,), bits=12)
    engine.learn(plan)
    return engine


def raw(times: Sequence[int], kind: pa.DataType = TIME) -> pa.Table:
    """Rows with these microseconds."""
    stamps = pa.array(times, pa.timestamp("us")).cast(kind)
    n = len(times)
    return pa.table(
        {"ts": stamps, "user": range(7, 7 + n), "price": pa.array([0.1 * k for k in range(n)], pa.float32())}
    )


def iso(microseconds: int) -> str:
    return (EPOCH + timedelta(microseconds=microseconds)).isoformat()


def with_zone(microseconds: int) -> str:
    """The same moment in a zone of an hour and a half, with digits beyond microseconds."""
    local = EPOCH + timedelta(microseconds=microseconds + 5_400_000_000)
    return f"{local.isoformat(timespec='microseconds')}999+01:30"


def reader_of(unit: str) -> RequestReader:
    plan = PLANS[unit]
    return RequestReader(plan.request_schema(), ["id", "clicked", *LOG.names], None, 1000, plan.time_units)


def rows_with(times: Sequence[int], written: Callable[[int], Any]) -> list[dict[str, Any]]:
    prices = raw(times)["price"].to_pylist()
    return [{"ts": written(t), "user": 7 + k, "price": prices[k]} for k, t in enumerate(times)]


# ---- the ways in: each takes microseconds and gives the raw rows that the plan then runs


def arrow(kind: pa.DataType, times: Sequence[int]) -> pa.Table:
    return raw(times, kind)


def arrow_ns(times: Sequence[int]) -> pa.Table:
    """999 nanoseconds behind each microsecond: rounded down, before 1970 too."""
    stamps = pa.array([1000 * t + 999 for t in times], pa.int64()).view(pa.timestamp("ns"))
    return raw(times).set_column(0, "ts", stamps)


def datetimes(times: Sequence[int]) -> pa.Table:
    rows = rows_with(times, lambda t: EPOCH + timedelta(microseconds=t))
    return pa.Table.from_pylist(rows, raw([0]).schema)


def wide(times: Sequence[int]) -> pa.Table:
    """Fractions as float64 where the log has float32."""
    return raw(times).set_column(2, "price", pa.array([0.1 * k for k in range(len(times))], pa.float64()))


def numpy_times(times: Sequence[int]) -> pa.Table:
    return raw(times).set_column(0, "ts", pa.array(np.array(times, "datetime64[us]")))


def request(unit: str, written: Callable[[int], Any], times: Sequence[int]) -> Any:
    return reader_of(unit).from_json(json.dumps({"candidates": rows_with(times, written)}).encode()).candidates


def by_column(unit: str, written: Callable[[int], Any], times: Sequence[int]) -> Any:
    rows = rows_with(times, written)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return reader_of(unit).from_json(json.dumps({"candidates": columns}).encode()).candidates


def tensors(unit: str, written: Callable[[int], Any], form: str, times: Sequence[int]) -> Any:
    """A request of the Open Inference Protocol: its JSON, its binary extension, or gRPC's message in both of its forms."""
    values = [written(t) for t in times]
    text = isinstance(values[0], str)
    n, prices = len(times), raw(times)["price"].to_pylist()
    columns: list[tuple[str, str, list[Any]]] = [
        ("ts", "BYTES" if text else "INT64", values),
        ("user", "INT64", list(range(7, 7 + n))),
        ("price", "FP32", prices),
    ]
    if form == "json":
        inputs = [{"name": c, "datatype": d, "shape": [n], "data": v} for c, d, v in columns]
        found = read_infer(json.dumps({"inputs": inputs}).encode(), None).tensors
    elif form == "binary":
        parts = [packed(d, v) for _, d, v in columns]
        inputs = [
            {"name": c, "datatype": d, "shape": [n], "parameters": {"binary_data_size": len(p)}}
            for (c, d, _), p in zip(columns, parts, strict=True)
        ]
        head = json.dumps({"inputs": inputs}).encode()
        found = read_infer(head + b"".join(parts), str(len(head))).tensors
    else:
        found = grpc_tensors(columns, n, form)
    return reader_of(unit).from_tensors(found).candidates


def packed(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(len(v).to_bytes(4, "little") + v.encode() for v in values)
    return np.array(values, {"INT64": "<i8", "FP32": "<f4"}[datatype]).tobytes()


def grpc_tensors(columns: list[tuple[str, str, list[Any]]], n: int, form: str) -> dict[str, np.ndarray]:
    from tritonclient.grpc import service_pb2

    from ctrbox.serve.grpc_server import tensors_of

    message = service_pb2.ModelInferRequest()
    for name, datatype, values in columns:
        entry = message.inputs.add(name=name, datatype=datatype, shape=[n])
        if form == "grpc raw":
            message.raw_input_contents.append(packed(datatype, values))
        elif datatype == "BYTES":
            entry.contents.bytes_contents.extend(v.encode() for v in values)
        elif datatype == "INT64":
            entry.contents.int64_contents.extend(values)
        else:
            entry.contents.fp32_contents.extend(values)
    return tensors_of(message)


def stream(unit: str, written: Callable[[int], Any] | None, format: str, times: Sequence[int]) -> Any:
    """A chunk of `ctrbox online`, a file or a message of NATS."""
    plan = PLANS[unit]
    layout = Layout.of(plan.request_schema(), plan.log.source.schema, id="id", time="ts", time_units=plan.time_units)
    table = raw(times) if written is None else raw(times).set_column(0, "ts", pa.array([written(t) for t in times]))
    table = table.append_column("id", pa.array(range(len(times)))).append_column(
        "event", pa.repeat("impression", len(times))
    )
    found = list(pieces("c", encoded(table, format), layout))
    assert not any(p.bad or p.refused for p in found)
    rows = [p.events.rows for p in found if p.events is not None]
    return pa.Table.from_batches(rows)


def same(t: int) -> int:
    return t


def nanoseconds(t: int) -> int:
    return 1000 * t + 999


NEAR = TIMES  # within the years that nanoseconds reach
ALL = TIMES + FAR
WAYS: dict[str, tuple[Callable[[Sequence[int]], Any], list[int]]] = {
    "Arrow timestamp[us]": (lambda t: arrow(pa.timestamp("us"), t), ALL + FURTHEST),
    "Arrow timestamp[us, UTC]": (lambda t: arrow(pa.timestamp("us", "UTC"), t), ALL),
    "Arrow timestamp[us, zone]": (lambda t: arrow(pa.timestamp("us", "+05:30"), t), ALL),
    "Arrow timestamp[ms]": (lambda t: arrow(pa.timestamp("ms"), t), [t for t in ALL if t % 1000 == 0]),
    "Arrow timestamp[s]": (lambda t: arrow(pa.timestamp("s"), t), [t for t in ALL if t % 1_000_000 == 0]),
    "Arrow timestamp[ns]": (arrow_ns, NEAR),
    "datetime": (datetimes, ALL),
    "fractions as float64": (wide, ALL),
    "NumPy datetime64": (numpy_times, ALL),
    "JSON, ISO text": (lambda t: request("", iso, t), ALL),
    "JSON, ISO text with a zone": (lambda t: request("", with_zone, t), TIMES),
    "JSON, microseconds": (lambda t: request("us", same, t), ALL),
    "JSON, nanoseconds": (lambda t: request("ns", nanoseconds, t), NEAR),
    "JSON, milliseconds": (lambda t: request("ms", lambda u: u // 1000, t), [t for t in ALL if t % 1000 == 0]),
    "JSON, seconds": (lambda t: request("s", lambda u: u // 10**6, t), [t for t in ALL if t % 10**6 == 0]),
    "JSON, text where a unit is declared": (lambda t: request("s", iso, t), ALL),
    "JSON by column, ISO text": (lambda t: by_column("", iso, t), ALL),
    "JSON by column, microseconds": (lambda t: by_column("us", same, t), ALL),
    "OIP JSON, text": (lambda t: tensors("", iso, "json", t), ALL),
    "OIP JSON, microseconds": (lambda t: tensors("us", same, "json", t), ALL),
    "OIP binary, text": (lambda t: tensors("", with_zone, "binary", t), TIMES),
    "OIP binary, microseconds": (lambda t: tensors("us", same, "binary", t), ALL),
    "OIP binary, nanoseconds": (lambda t: tensors("ns", nanoseconds, "binary", t), NEAR),
    "gRPC raw, text": (lambda t: tensors("", iso, "grpc raw", t), ALL),
    "gRPC raw, microseconds": (lambda t: tensors("us", same, "grpc raw", t), ALL),
    "gRPC contents, text": (lambda t: tensors("", iso, "grpc contents", t), ALL),
    "gRPC contents, microseconds": (lambda t: tensors("us", same, "grpc contents", t), ALL),
    "stream of JSON lines, ISO text": (lambda t: stream("", iso, "jsonl", t), ALL),
    "stream of JSON lines, with a zone": (lambda t: stream("", with_zone, "jsonl", t), TIMES),
    "stream of JSON lines, microseconds": (lambda t: stream("us", same, "jsonl", t), ALL),
    "stream of JSON lines, nanoseconds": (lambda t: stream("ns", nanoseconds, "jsonl", t), NEAR),
    "stream of Parquet, timestamps": (lambda t: stream("", None, "parquet", t), ALL),
    "stream of Parquet, ISO text": (lambda t: stream("", iso, "parquet", t), ALL),
    "stream of Parquet, microseconds": (lambda t: stream("us", same, "parquet", t), ALL),
    "stream of Arrow, timestamps": (lambda t: stream("", None, "arrow", t), ALL),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_rows_give_the_same_batch_and_score_by_every_way_in(way: str) -> None:
    come_in, times = WAYS[way]
    plan = PLANS[""]
    engine = engine_of(plan)
    expected, found = plan.run(raw(times)), plan.run(come_in(times))
    for name in ("ts", "hour", "day", "cheap"):
        assert np.array_equal(found.sparse[name].values, expected.sparse[name].values), name
    assert found.dense.tobytes() == expected.dense.tobytes()
    assert engine.predict(found).tobytes() == engine.predict(expected).tobytes()


def test_a_file_of_nanoseconds_is_rounded_down_as_a_request_is(tmp_path: Path) -> None:
    stamps = pa.array([1000 * t + 999 for t in NEAR], pa.int64()).view(pa.timestamp("ns"))
    table = raw(NEAR).set_column(0, "ts", stamps).append_column("id", pa.array(range(len(NEAR))))
    pq.write_table(table, tmp_path / "log.parquet")
    (found,) = PLANS[""].over(str(tmp_path / "log.parquet"), label=False).batches(100)
    assert np.array_equal(found.sparse["ts"].values, PLANS[""].run(raw(NEAR)).sparse["ts"].values)


@pytest.mark.parametrize("way", ["JSON", "columns", "OIP json", "OIP binary", "gRPC", "stream", "Parquet"])
@pytest.mark.parametrize("value", [1574953200, 0, -1])
def test_a_number_without_a_declared_unit_is_refused_by_every_way_in(way: str, value: int) -> None:
    ways: dict[str, Callable[[], Any]] = {
        "JSON": lambda: request("", same, [value]),
        "columns": lambda: by_column("", same, [value]),
        "OIP json": lambda: tensors("", same, "json", [value]),
        "OIP binary": lambda: tensors("", same, "binary", [value]),
        "gRPC": lambda: tensors("", same, "grpc contents", [value]),
        "stream": lambda: refused_of("jsonl", value),
        "Parquet": lambda: refused_of("parquet", value),
    }
    with pytest.raises(DataError, match=r"'ts' (is|holds) .*expected a time: ISO 8601 text.*time_units="):
        ways[way]()


def refused_of(format: str, value: Any, unit: str = "") -> None:
    """What the stream says of a click with this time, as an error."""
    plan = PLANS[unit]
    layout = Layout.of(plan.request_schema(), plan.log.source.schema, id="id", time="ts", time_units=plan.time_units)
    ts = pa.repeat(value, 1)
    (piece,) = pieces("c", encoded(pa.table({"event": ["click"], "id": [1], "ts": ts}), format), layout)
    raise DataError(piece.refused or piece.bad[0][1])


@pytest.mark.parametrize(
    ("unit", "value", "says"),
    [
        (
            "s",
            1574953200000,
            r"1574953200000 seconds since 1970 lie in the year 51,878, .*; check the unit, which may "
            r"be milliseconds",
        ),
        (
            "s",
            1574953200000000,
            r"lie in the year 49,910,250, outside the years 0001 to 9999; check the unit, which "
            r"may be microseconds",
        ),
        (
            "ms",
            1574953200000000,
            r"lie in the year 51,878, outside the years 0001 to 9999; check the unit, which may "
            r"be microseconds",
        ),
        (
            "us",
            1574953200000000000,
            r"lie in the year 51,878, outside the years 0001 to 9999; check the unit, which "
            r"may be nanoseconds",
        ),
        ("s", FAR[0] // 10**6 + 1, r"lie in the year 10,000, outside the years 0001 to 9999"),
        ("ms", FAR[1] // 1000 - 1, r"lie in the year 0, outside the years 0001 to 9999"),
        ("us", FURTHEST[0], r"lie in the year 294,247, outside"),
        ("us", FURTHEST[1], r"lie in the year -290,308, outside"),
        ("s", FURTHEST[0], r"lie in the year beyond 1,000,000,000, outside"),
    ],
)
@pytest.mark.parametrize("way", ["JSON", "columns", "OIP json", "OIP binary", "gRPC", "dicts", "jsonl", "parquet"])
def test_a_number_outside_the_years_of_dates_is_refused_by_every_way_in(
    way: str, unit: str, value: int, says: str
) -> None:
    ways: dict[str, Callable[[], Any]] = {
        "JSON": lambda: request(unit, same, [0, value]),
        "columns": lambda: by_column(unit, same, [0, value]),
        "OIP json": lambda: tensors(unit, same, "json", [0, value]),
        "OIP binary": lambda: tensors(unit, same, "binary", [0, value]),
        "gRPC": lambda: tensors(unit, same, "grpc contents", [0, value]),
        "dicts": lambda: PLANS[unit].run({"ts": value, "user": 7, "price": 0.5}),
        "jsonl": lambda: refused_of("jsonl", value, unit),
        "parquet": lambda: refused_of("parquet", value, unit),
    }
    with pytest.raises(DataError, match=rf"'ts' .*{says}"):
        ways[way]()


def test_a_timestamp_of_a_stream_outside_the_years_of_dates_is_left_out() -> None:
    with pytest.raises(DataError, match=r"'ts' .* lie in the year 51,878, outside the years 0001 to 9999"):
        refused_of("parquet", pa.scalar(1574953200000, pa.timestamp("s")))


NO_TIMES: list[Any] = [1.0, 1.5, True, [], {}, "", "now", "1574953200", 2**63, -(2**63) - 1, 2**53 * 1000]
NO_TIMES += [
    "2026-13-01",
    "2026-02-29",
    "0000-01-01",
    "20260101",
    "2026-01-01Z",
    "+02026-01-01",
    " 2026-01-01",
    "2026-01-01\n",
]
NO_TIMES += [
    "2026-01-01T00",
    "2026-01-01T24:00",
    "2026-01-01t00:00",
    "2026-01-01T00:00+0130",
    "\u0662\u0660\u0662\u0666-01-01",
]
NO_TIMES += [f"2026-01-01T00:00:{rest}" for rest in ("60", "00.", "00,5", "00.1234567890", "00z", "00+24:00")]


@pytest.mark.parametrize("value", NO_TIMES)
def test_what_is_not_a_time_is_refused_with_the_accepted_forms(value: Any) -> None:
    with pytest.raises(
        CtrboxError, match=r"row 1: column 'ts' is .*expected a time: ISO 8601 text.*whole number of seconds"
    ):
        reader_of("s").from_json(
            json.dumps({"candidates": [{"ts": t, "user": 1, "price": 1} for t in ("2026-01-01", value)]}).encode()
        )


def test_a_unit_is_declared_for_a_column_that_exists_and_is_one_of_four() -> None:
    with pytest.raises(PlanError, match="contains 'tss', but the view has no column of this name; nearest: 'ts'"):
        plan_with({"tss": "s"})
    with pytest.raises(PlanError, match=r"gives 'seconds' as the unit of column 'ts'; expected one of 's' .seconds."):
        plan_with({"ts": "seconds"})


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (
            pa.array([1574953200]),
            r"'x', which is int, not a time; make it a time with col\('x'\)\.cast\('time', unit='s'\)",
        ),
        (pa.array(["2026-01-01"]), r"'x', which is str, not a time; make it a time with col\('x'\)\.cast\('time'\)"),
        (pa.array([0.5]), r"'x', which is float, not a time; a unit is declared for times only"),
        (pa.array([{}], pa.map_(pa.int64(), pa.int64())), r"'x', which is map<int64, int64.*>, not a time"),
    ],
)
def test_a_unit_for_a_column_that_is_not_a_time_is_refused(column: pa.Array, says: str) -> None:
    with pytest.raises(PlanError, match=f"time_units= names {says}"):
        cb.View(pa.table({"x": column}), time_units={"x": "s"})
    cb.View(pa.table({"x": pa.array([[0]], pa.list_(pa.timestamp("us")))}), time_units={"x": "s"})


def test_a_saved_plan_keeps_its_units_and_the_fingerprint_of_one_without(tmp_path: Path) -> None:
    plan = PLANS["ms"]
    plan.save(tmp_path / "plan.ctr")
    again = cb.Plan.load(tmp_path / "plan.ctr", views={"log": plan.log.source.table})
    assert again.time_units == {"ts": "ms"}
    assert again.over(raw([0]).append_column("id", pa.array([1])), label=False).time_units == {"ts": "ms"}
    assert plan.fingerprint == PLANS[""].fingerprint


TEXTS = st.one_of(
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda t: t.isoformat()),
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)).map(str),
    st.from_regex(
        r"\A[0-9]{4}-[01][0-9]-[0-3][0-9]"
        r"([ T][0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{0,10})?)?(Z|[+-][0-2][0-9]:[0-6][0-9])?)?\Z"
    ),
    st.text("0123456789-:TZ+. ", max_size=30),
)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_text_is_read_as_the_cast_of_a_plan_reads_it(text: str) -> None:
    table = pa.table({"text": [text]})
    native = cb.compute({"t": col("text").cast("time")}, table)["t"][0]
    try:
        found = times_of([text], None)[0].value
    except ValueError:
        found = None
    if text == text.strip(" "):
        assert found == native.value
    else:
        assert found is None
