"""A damaged Parquet footer gives rows or a named error: no lost rows, and no end of the process."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native
from ctrbox.views.parquet_footers import _shape, read_footer, sound_columns
from tests.twins import footers as twin

# In a process of its own: without its checks, a damaged footer ends the process (SIGABRT).
ATTACK = """
import sys
from functools import lru_cache
from pathlib import Path
import pyarrow.compute as pc
from ctrbox.errors import CtrboxError
from ctrbox.views.source import open_source

path = Path(sys.argv[1])
whole = path.read_bytes()
begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
refused = wrong = 0
for place in range(begin, len(whole) - 8):
    for value in (0xFF, (whole[place] + 1) % 256):
        path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        try:
            source = open_source(path)
            names = source.schema.names
            for name in names:
                source.nullable(name), source.ordered(name)
            list(source.scan(names, prune=pc.field("id") > 1) if "id" in names else ())
            rows = sum(morsel.rows.num_rows for morsel in source.scan(names))
            wrong += rows != 6
        except CtrboxError as error:
            assert path.name in str(error), str(error)
            refused += 1
print(refused, wrong)
"""


def test_a_damaged_footer_gives_all_rows_or_a_named_error_and_never_ends_the_process(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    table = pa.table({"id": [1, 2, 3, 4, 5, 6], "user": ["a", None, "b", "c", "d", "e"]})
    pq.write_table(table, path, row_group_size=4, store_schema=False)
    done = subprocess.run([sys.executable, "-c", ATTACK, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-1000:]
    refused, wrong = map(int, done.stdout.split())
    assert refused > 100
    assert wrong == 0


def rewritten(path: Path, old: bytes, new: bytes) -> None:
    """Replace the last occurrence of some bytes in a file."""
    whole = path.read_bytes()
    at = whole.rindex(old)
    path.write_bytes(whole[:at] + new + whole[at + len(old) :])


@pytest.mark.parametrize(("new", "word"), [(b"\x16\x7f", "-64 rows"), (b"\x16\x02", "hold 131 rows")])
def test_row_groups_that_do_not_add_up_to_the_file_are_refused(tmp_path: Path, new: bytes, word: str) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"id": range(167)}), path, row_group_size=130, store_schema=False)
    rewritten(path, b"\x16\x4a", new)  # field 3 of the last row group: 37 rows, as Thrift writes it
    with pytest.raises(cb.errors.SourceError, match="damaged footer") as caught:
        list(cb.View(path).source.scan(["id"]))
    assert word in str(caught.value)
    assert "log.parquet" in str(caught.value)


def sound(path: Path) -> bool:
    meta = pq.read_metadata(path)
    with pa.OSFile(str(path)) as raw:
        return all(sound_columns(meta, read_footer(raw, meta)))


def table_of_every_type() -> pa.Table:
    return pa.table(
        {
            "int": [1, None],
            "text": ["a", ""],
            "list": [[1, 2], None],
            "struct": [{"x": 1, "y": None}, None],
            "bool": [True, None],
            "decimal": pa.array([1, 2]).cast(pa.decimal128(30, 2)),
            "half": pa.array([1.0, 2.0], pa.float16()),
            "fixed": pa.array([b"abc", None], pa.binary(3)),
            "time": pa.array([1000, 2000]).cast(pa.timestamp("ns")),
            "nothing": pa.nulls(2),
        }
    )


@lru_cache
def footer_of_every_type() -> tuple[bytes, list[twin.Shape]]:
    file = pa.BufferOutputStream()
    pq.write_table(table_of_every_type(), file, row_group_size=1)
    raw = pa.BufferReader(file.getvalue())
    meta = pq.read_metadata(raw)
    return read_footer(raw, meta), [_shape(meta.schema.column(place)) for place in range(meta.num_columns)]


def same(written: bytes, shapes: list[twin.Shape]) -> list[bool]:
    found = _native.sound_parquet_columns(written, shapes)
    assert found == twin.sound_columns(written, shapes)
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3), st.data())
def test_damaged_footers_are_judged_as_by_plain_python(changes: list[tuple[int, int]], data: st.DataObject) -> None:
    good, shapes = footer_of_every_type()
    assert same(good, shapes) == [True] * len(shapes)
    written = bytearray(good)
    for place, value in changes:
        written[place % len(written)] = value
    same(bytes(written), shapes)
    end = data.draw(st.integers(0, len(good)))
    same(good[:end], shapes)
    same(good[:end] + data.draw(st.binary(max_size=20)) + good[end:], shapes)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_footer_have_no_sound_column(written: bytes) -> None:
    same(written, [(1, 4, 0, 1)])


@pytest.mark.parametrize("nested", [b"\x1c" * 100_000, b"\x19" + b"\x19" * 100_000, b"\x19\xfc\xff\xff\xff\xff\x0f"])
def test_a_footer_nested_without_end_or_with_a_huge_list_is_refused_at_once(nested: bytes) -> None:
    assert same(nested, [(1, 4, 0, 1)]) == [False]


def test_columns_of_every_type_in_a_good_file_are_sound(tmp_path: Path) -> None:
    table = table_of_every_type()
    for version in ("1.0", "2.6"):
        pq.write_table(table, tmp_path / "a.parquet", version=version)
        assert sound(tmp_path / "a.parquet")
    pq.write_table(table.select(["int", "time"]), tmp_path / "b.parquet", use_deprecated_int96_timestamps=True)
    assert sound(tmp_path / "b.parquet")


def test_days_beyond_the_dates_of_python_have_no_known_range(tmp_path: Path) -> None:
    days = pa.array([2932897, 5000000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"day": days}), tmp_path / "a.parquet")
    assert not cb.View(tmp_path / "a.parquet").source.ordered("day")
