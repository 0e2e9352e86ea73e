"""Avro files that fastavro wrote give the rows that were written, in exact types, and damaged ones are refused."""

from __future__ import annotations

import io
import random
import uuid
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import SourceError
from ctrbox.views import avro_blocks
from ctrbox.views.source import open_source

fastavro = pytest.importorskip(
    "fastavro", reason="the fastavro package, with which files are written, is not installed"
)

SCHEMA = {
    "type": "record",
    "name": "Click",
    "namespace": "ads",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": ["null", "int"]},
        {"name": "flag", "type": "boolean"},
        {"name": "ratio", "type": ["float", "null"]},
        {"name": "exact", "type": "double"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["view", "click"]}},
        {"name": "again", "type": ["null", "Kind"]},
        {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 3}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "milli", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "micro", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "bids", "type": ["null", {"type": "array", "items": ["null", "double"]}]},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "either", "type": ["null", "string", "long"]},
        {
            "name": "geo",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Geo",
                    "fields": [
                        {"name": "city", "type": "string"},
                        {"name": "seen", "type": ["null", {"type": "int", "logicalType": "date"}]},
                        {"name": "odd", "type": ["long", "string"]},
                    ],
                },
            ],
        },
        {"name": "nothing", "type": "null"},
    ],
}
UNREAD = {"counts", "either", "geo.odd", "nothing"}
EARLY = datetime(1, 1, 1, tzinfo=UTC)


def record(draw: random.Random) -> dict[str, Any]:
    at = EARLY + timedelta(days=draw.randrange(3_600_000), microseconds=draw.randrange(86_400_000_000))
    whole = at.replace(microsecond=at.microsecond // 1000 * 1000)
    day = draw.choice([None, at.date()])
    return {
        "id": draw.choice([0, -1, 2**63 - 1, -(2**63), draw.randrange(99)]),
        "small": draw.choice([None, 0, -(2**31), 2**31 - 1]),
        "flag": draw.random() < 0.5,
        "ratio": draw.choice([None, 0.5, -0.0]),
        "exact": draw.choice([0.1, 1e300, float("inf")]),
        "text": draw.choice([None, "", "ä\0b", "x" * draw.randrange(200)]),
        "raw": draw.choice([b"", b"raw"]),
        "kind": draw.choice(["view", "click"]),
        "again": draw.choice([None, "click"]),
        "digest": b"abc",
        "price": draw.choice([Decimal("0.00"), Decimal("-19.99"), Decimal("9999999999.99")]),
        "day": day,
        "clock": time(23, 59, 59, 999999) if draw.random() < 0.5 else time(0),
        "milli": whole,
        "micro": draw.choice([None, at]),
        "local": at.replace(tzinfo=None),
        "uid": uuid.UUID(int=draw.getrandbits(128)),
        "tags": draw.choice([[], ["a", ""]]),
        "bids": draw.choice([None, [], [1.5]]),
        "counts": {"a": 1},
        "either": draw.choice([None, "a", 7]),
        "geo": draw.choice([None, {"city": "Rome", "seen": day, "odd": draw.choice([1, "one"])}]),
        "nothing": None,
    }


def expected(row: dict[str, Any]) -> dict[str, Any]:
    """Return the rows as `ctrbox.views.simple_types` gives them, computed from the rows that were written."""
    geo = row["geo"] or {}

    def moment(value: Any) -> Any:
        return None if value is None else datetime(value.year, value.month, value.day)

    found = {**row, "price": float(row["price"]), "uid": str(row["uid"]), "day": moment(row["day"])}
    found["raw"], found["digest"] = row["raw"].decode(), row["digest"].decode()
    c = row["clock"]
    found["clock"] = ((c.hour * 60 + c.minute) * 60 + c.second) * 1_000_000 + c.microsecond
    for name in ("milli", "micro"):
        found[name] = None if row[name] is None else row[name].replace(tzinfo=None)
    del found["geo"]
    found |= {"geo.city": geo.get("city"), "geo.seen": moment(geo.get("seen"))}
    return {name: value for name, value in found.items() if name not in UNREAD}


def write(path: Path, rows: list[dict[str, Any]], schema: Any = SCHEMA, **options: Any) -> Path:
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), rows, **options)
    return path


def rows_of(source: Any, columns: list[str] | None = None, **options: Any) -> list[dict[str, Any]]:
    names = columns or [name for name in source.schema.names if name not in UNREAD]
    return [row for morsel in source.scan(names, **options) for row in morsel.rows.to_pylist()]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_rows_are_what_was_written(tmp_path: Path, codec: str) -> None:
    draw = random.Random(codec)
    rows = [record(draw) for _ in range(200)]
    try:
        write(tmp_path / "log.avro", rows, codec=codec, sync_interval=2000)
    except ValueError as error:
        pytest.skip(f"fastavro cannot write {codec} here: {error}")
    source = open_source(tmp_path / "log.avro")
    wanted = [expected(row) for row in rows]
    assert rows_of(source, threads=3) == wanted
    names = [name for name in source.schema.names if name not in UNREAD]
    for start in (0, 1, 77, 199, 200):
        assert rows_of(source, names, start=start, rows=9) == wanted[start:]
    assert rows_of(source, ["text"]) == [{"text": row["text"]} for row in rows]
    assert sum(morsel.rows.num_rows for morsel in source.scan([])) == 200
    assert not source.nullable("id")
    assert source.nullable("geo.city")
    for name in UNREAD:
        with pytest.raises(SourceError, match=r"views cannot read|Arrow type null"):
            list(source.scan([name]))


def test_types_are_exact(tmp_path: Path) -> None:
    found = {f.name: str(f.type) for f in open_source(write(tmp_path / "a.avro", [])).schema}
    assert found["small"] == "int32"
    assert found["price"] == "double"
    assert found["milli"] == found["local"] == found["day"] == "timestamp[us]"
    assert found["tags"] == "list<item: string>"


def test_wide_decimals_and_logical_types_that_do_not_fit(tmp_path: Path) -> None:
    fields = [
        {"name": "wide", "type": {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 5}},
        {"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 10}},
        {"name": "wrong", "type": {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5}},
        {"name": "text", "type": {"type": "string", "logicalType": "timestamp-millis"}},
    ]
    big = Decimal("123456789012345678901234567890.12345")
    row = {"wide": big, "fixed": Decimal(-5), "wrong": b"\x01", "text": "noon"}
    path = tmp_path / "a.avro"
    with path.open("wb") as file:
        schema = {"type": "record", "name": "R", "fields": [*fields[:2], {"name": "wrong", "type": "bytes"}, fields[3]]}
        fastavro.writer(file, fastavro.parse_schema(schema), [row])
    assert rows_of(open_source(path)) == [{"wide": float(big), "fixed": -5.0, "wrong": "\x01", "text": "noon"}]


def test_later_files_may_have_other_columns_and_narrower_types(tmp_path: Path) -> None:
    def schema(*fields: tuple[str, Any]) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]}

    write(tmp_path / "0.avro", [{"a": 1, "b": 0.5}], schema(("a", "long"), ("b", "double")))
    write(tmp_path / "1.avro", [{"b": 0.25, "a": 2, "c": "x"}], schema(("b", "float"), ("a", "int"), ("c", "string")))
    assert rows_of(open_source(tmp_path)) == [{"a": 1, "b": 0.5}, {"a": 2, "b": 0.25}]
    write(
        tmp_path / "2.avro",
        [{"a": 3, "b": 1.0}, {"a": None, "b": 2.0}],
        schema(("a", ["null", "long"]), ("b", "double")),
    )
    with pytest.raises(SourceError, match=r"2\.avro row 1: column 'a' is null"):
        rows_of(open_source(tmp_path))
    write(tmp_path / "2.avro", [{"a": "3", "b": 1.0}], schema(("a", "string"), ("b", "double")))
    with pytest.raises(SourceError, match=r"column 'a' of .*2\.avro is string, expected int64"):
        rows_of(open_source(tmp_path))
    write(tmp_path / "2.avro", [{"a": 3}], schema(("a", "long")))
    with pytest.raises(SourceError, match=r"2\.avro has no column 'b'"):
        rows_of(open_source(tmp_path))


def test_later_file_whose_record_may_be_null_is_refused(tmp_path: Path) -> None:
    geo = {"type": "record", "name": "G", "fields": [{"name": "city", "type": "string"}]}
    for name, type, value in (("0", geo, {"city": "Rome"}), ("1", ["null", geo], None)):
        schema = {"type": "record", "name": "R", "fields": [{"name": "geo", "type": type}]}
        write(tmp_path / f"{name}.avro", [{"geo": value}], schema)
    source = open_source(tmp_path)
    assert not source.nullable("geo.city")
    with pytest.raises(SourceError, match=r"column 'geo.city' of .*1\.avro may be null"):
        rows_of(source)


def test_partitions_globs_and_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    for day in (1, 2):
        (tmp_path / "log" / f"day={day}").mkdir(parents=True)
        write(tmp_path / "log" / f"day={day}" / "a.avro", [{"id": day * 10}], schema)
    view = cb.View("log/day=*/*.avro", key="id")
    assert view.filter(col("day") == 2).head()["id"].to_pylist() == [20]
    cb.compile(view, cb.FeatureSet(sparse={"id": col("id")})).save("a.plan")
    assert sum(batch.rows for batch in cb.Plan.load("a.plan").batches(10)) == 2


def test_replaced_file_is_noticed(tmp_path: Path) -> None:
    draw = random.Random(1)
    path = write(tmp_path / "a.avro", [record(draw) for _ in range(50)])
    source = open_source(path)
    write(path, [record(draw) for _ in range(51)])
    with pytest.raises(SourceError, match="changed after it was opened"):
        rows_of(source)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("long", "are not records"),
        ({"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}, "contains itself"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]},
            "no bytes",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "S"}]}, "does not define"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": 7}}]}, "where a type belongs"),
    ],
)
def test_schemas_that_are_not_read_are_refused(tmp_path: Path, schema: Any, told: str) -> None:
    import json

    text = json.dumps(schema).encode()
    head = avro_blocks.MAGIC + b"\x02" + bytes([22]) + b"avro.schema" + _long(len(text)) + text + b"\0" + b"s" * 16
    (tmp_path / "a.avro").write_bytes(head)
    with pytest.raises(SourceError, match=rf"a\.avro cannot be read: .*{told}"):
        open_source(tmp_path / "a.avro")


def _long(number: int) -> bytes:
    number, found = number << 1, b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def block(rows: int, size: int, data: bytes) -> bytes:
    head = io.BytesIO()
    fastavro.writer(
        head, fastavro.parse_schema({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}), []
    )
    sync = head.getvalue()[-16:]
    return head.getvalue() + _long(rows) + _long(size) + data + sync


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (block(1, 2, b"\x02a"), ""),
        (block(1, 1 << 40, b""), "a block would hold"),
        (block(1 << 40, 2, b"\x02a"), "a block would hold"),
        (block(2, 2, b"\x02a"), "cannot be decoded"),
        (block(1, 4, b"\x02a\x02b"), "cannot be decoded|other bytes"),
        (block(1, 2, b"\xfe\xff"), "cannot be decoded"),
        (block(1, 2, b"\x02\xff"), "cannot be decoded"),
        (block(1, 2, b"\x02a")[:-1], "cut short"),
        (block(1, 2, b"\x02a")[:-16] + b"x" * 16, "sync marker"),
        (block(1, 2, b"\x02a")[:40], "cut short"),
        (b"", "is empty"),
        (b"PAR1", "not an Avro file"),
        (avro_blocks.MAGIC + b"\x02\xfe\xff\xff\xff\x0f", "entry of|cut short"),
        (avro_blocks.MAGIC + b"\xff" * 30, "damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "a.avro").write_bytes(content)
    if not told:
        assert rows_of(open_source(tmp_path / "a.avro")) == [{"a": "a"}]
        return
    with pytest.raises(SourceError, match=rf"a\.avro.*({told})"):
        rows_of(open_source(tmp_path / "a.avro"))


def test_block_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import bz2
    import lzma
    import zlib

    monkeypatch.setattr(avro_blocks, "MOST_BLOCK", 1000)
    deflate = zlib.compressobj(wbits=-15)
    bombs = {
        "deflate": deflate.compress(bytes(5000)) + deflate.flush(),
        "bzip2": bz2.compress(bytes(5000)),
        "xz": lzma.compress(bytes(5000)),
        "zstandard": pa.compress(bytes(5000), "zstd", asbytes=True),
        "snappy": pa.compress(bytes(5000), "snappy", asbytes=True) + b"1234",
        "null": bytes(5000),
    }
    for codec, data in bombs.items():
        with pytest.raises(avro_blocks.BlockError, match=r"more than 1,000 bytes|at most 1,000"):
            avro_blocks.unpacked(data, codec)
        with pytest.raises(avro_blocks.BlockError):
            avro_blocks.unpacked(data[:7] + b"\x01" * 2000, codec)


def test_codecs_that_fastavro_has_no_packer_for_here() -> None:
    import zlib

    data = b"some bytes of a block " * 50
    assert avro_blocks.unpacked(pa.compress(data, "zstd", asbytes=True), "zstandard") == data
    packed = pa.compress(data, "snappy", asbytes=True)
    assert avro_blocks.unpacked(packed + zlib.crc32(data).to_bytes(4, "big"), "snappy") == data
    with pytest.raises(avro_blocks.BlockError, match="checksum does not match"):
        avro_blocks.unpacked(packed + b"1234", "snappy")


def test_changed_bytes_are_refused_or_read_without_a_crash(tmp_path: Path) -> None:
    draw, path = random.Random(3), tmp_path / "a.avro"
    write(path, [record(draw) for _ in range(60)], codec="null", sync_interval=800)
    sound, refused = path.read_bytes(), 0
    for _ in range(60):
        damaged = bytearray(sound)
        for _ in range(draw.choice([1, 3])):
            damaged[draw.randrange(len(sound))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            source = open_source(path)
            for _ in source.scan([leaf.name for leaf in source._columns.all.values() if leaf.type is not None]):  # type: ignore[attr-defined]
                pass
        except cb.errors.CtrboxError as error:
            refused += str(path) in str(error)
    assert refused > 10
