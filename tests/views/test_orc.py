"""ORC files give the rows that were written to them, from any row on, and damaged ones are refused."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import SourceError
from ctrbox.views.source import open_source


def rows_of(source: Any, columns: list[str], **options: Any) -> list[dict[str, Any]]:
    return [row for morsel in source.scan(columns, **options) for row in morsel.rows.to_pylist()]


ROWS = 3000
TABLE = pa.table(
    {
        "flag": [True, None, False] * (ROWS // 3),
        "small": pa.array([1, None, -3] * (ROWS // 3), pa.int8()),
        "price": pa.array([Decimal("0.10"), None, Decimal("-19.99")] * (ROWS // 3), pa.decimal128(20, 2)),
        "text": ["x", "", None] * (ROWS // 3),
        "bytes": [b"a\x00", None, b""] * (ROWS // 3),
        "list": [[1, 2], [], None] * (ROWS // 3),
        "map": pa.array([[("a", 1)], [], None] * (ROWS // 3), pa.map_(pa.utf8(), pa.int64())),
        "inner": [{"a": 1, "b": "q"}, {"a": None, "b": "r"}, None] * (ROWS // 3),
        "at": pa.array(
            [datetime(1960, 1, 1, 0, 0, 0, 123456), None, datetime(2200, 1, 1)] * (ROWS // 3), pa.timestamp("us")
        ),
        "utc": pa.array([datetime(2026, 1, 1, tzinfo=UTC), None, None] * (ROWS // 3), pa.timestamp("us", "UTC")),
        "early": pa.array([-1, -1001, 1999] * (ROWS // 3), pa.timestamp("ns")),
        "day": [date(1901, 1, 1), None, date(2026, 2, 28)] * (ROWS // 3),
        "dotted.name": range(ROWS),
        "ratio": pa.array([0.5, None, float("inf")] * (ROWS // 3), pa.float32()),
    }
)


def test_rows_are_those_of_the_same_table_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.orc"
    orc.write_table(TABLE, path, stripe_size=4096, batch_size=64)
    source, memory = open_source(path), open_source(TABLE)
    names = [name for name in memory.schema.names if name != "map"]
    assert [(f.name, f.type) for f in source.schema] == [(f.name, f.type) for f in memory.schema]
    expected = rows_of(memory, names)
    assert rows_of(source, names, threads=3) == expected
    assert orc.ORCFile(path).nstripes > 5
    for start in (0, 1, 777, ROWS - 1, ROWS):
        assert rows_of(source, names, start=start, rows=100) == expected[start:]
    assert rows_of(source, ["text"], dictionary=["text"]) == [{"text": row["text"]} for row in expected]
    assert source.rows == ROWS
    with pytest.raises(SourceError, match="views cannot read"):
        list(source.scan(["map"]))


def test_partitions_globs_and_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for day in (1, 2):
        (tmp_path / "log" / f"day={day}").mkdir(parents=True)
        orc.write_table(pa.table({"id": [day * 10, day * 10 + 1]}), tmp_path / "log" / f"day={day}" / "part-0.orc")
    view = cb.View("log/day=*/*.orc", key="id").fill(id=0)
    assert view.filter(col("day") == 2).head()["id"].to_pylist() == [20, 21]
    cb.compile(view, cb.FeatureSet(sparse={"id": col("id")})).save("a.plan")
    assert sum(batch.rows for batch in cb.Plan.load("a.plan").batches(10)) == 4


def test_union_is_listed_and_refused_when_it_is_used(tmp_path: Path) -> None:
    kinds, places = pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32())
    either = pa.UnionArray.from_dense(kinds, places, [pa.array([1]), pa.array(["a"])])
    orc.write_table(pa.table({"either": either, "id": [1, 2]}), tmp_path / "a.orc")
    source = open_source(tmp_path / "a.orc")
    assert rows_of(source, ["id"]) == [{"id": 1}, {"id": 2}]
    with pytest.raises(SourceError, match=r"'either' .* views cannot read"):
        list(source.scan(["either"]))


def test_file_without_rows(tmp_path: Path) -> None:
    orc.write_table(TABLE.slice(0, 0), tmp_path / "a.orc")
    source = open_source(tmp_path / "a.orc")
    assert (source.rows, rows_of(source, ["text", "price"])) == (0, [])


def test_time_that_does_not_fit_nanoseconds_is_refused(tmp_path: Path) -> None:
    orc.write_table(pa.table({"at": pa.array([datetime(1500, 1, 1)], pa.timestamp("us"))}), tmp_path / "a.orc")
    with pytest.raises(SourceError, match=r"a\.orc stripe 0 cannot be read: .*range"):
        rows_of(open_source(tmp_path / "a.orc"), ["at"])


def test_replaced_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.orc"
    orc.write_table(TABLE, path)
    source = open_source(path)
    orc.write_table(TABLE.slice(1), path)
    with pytest.raises(SourceError, match="changed after it was opened"):
        rows_of(source, ["text"])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", r"a\.orc is not an ORC file: it begins with b'', expected b'ORC'"),
        (b"PAR1" * 9, r"a\.orc is not an ORC file: it begins with b'PAR', expected b'ORC'"),
        (b"O", r"a\.orc is not a complete ORC file"),
        (b"ORC", r"a\.orc is not a complete ORC file"),
        (b"ORC\x00", r"a\.orc"),
        (b"ORC" + b"\xff" * 99, r"a\.orc"),
    ],
)
def test_what_is_no_orc_file_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "a.orc").write_bytes(content)
    with pytest.raises(SourceError, match=told):
        open_source(tmp_path / "a.orc")


def test_damaged_file_is_refused_or_read_without_a_crash(tmp_path: Path) -> None:
    path, draw = tmp_path / "a.orc", random.Random(5)
    orc.write_table(TABLE, path, stripe_size=4096, batch_size=64)
    sound, refused = path.read_bytes(), 0
    names = [name for name in open_source(path).schema.names if name != "map"]
    for _ in range(40):
        damaged = bytearray(sound)
        place = draw.randrange(len(sound) - 400, len(sound)) if draw.random() < 0.6 else draw.randrange(len(sound))
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            rows_of(open_source(path), names)
        except cb.errors.CtrboxError as error:
            refused += str(path) in str(error)
    assert refused > 5
    for length in (len(sound) // 2, len(sound) - 1, 40, 3):
        path.write_bytes(sound[:length])
        with pytest.raises(
            SourceError, match=rf"a\.orc is not a complete ORC file: .* \({length:,} bytes; was the file cut short"
        ):
            open_source(path)
