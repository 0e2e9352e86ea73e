"""Stand-ins for columns that lie in other memory: they slice as arrays do, and their owner lives as long as they do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrbox.views.device_columns import behind, stand_in
from ctrbox.views.source import open_source


class Owner:
    """Whatever knows where a column is."""


class Somewhere:
    """Takes one column of every row group it is asked for, and leaves the others to the CPU."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def decode(self, raw: Any, footer: Any, groups: Sequence[int], leaves: Sequence[Any]) -> pa.RecordBatch | None:
        self.asked.append(list(groups))
        if "a" not in [leaf.name for leaf in leaves]:
            return None
        return pa.RecordBatch.from_arrays([stand_in(sum(footer.rows[g] for g in groups), Owner())], ["a"])


def test_a_slice_knows_its_owner_and_its_first_row() -> None:
    owner = Owner()
    part = pa.RecordBatch.from_arrays([stand_in(10, owner)], ["x"]).slice(3, 4).slice(1).column(0)
    assert behind(part) is owner
    assert (part.offset, len(part), part.null_count) == (4, 3, 0)


def test_other_arrays_have_nothing_behind_them() -> None:
    assert behind(pa.array([1])) is None
    assert behind(pa.array([b"", b""], pa.binary(0))) is None


def test_the_owner_lives_as_long_as_a_slice() -> None:
    owner = Owner()
    known = weakref.ref(owner)
    part = pa.RecordBatch.from_arrays([stand_in(10, owner)], ["x"]).slice(3)
    del owner
    gc.collect()
    assert known() is not None
    del part
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("rows", [7, 64])
def test_a_scan_hands_out_stand_ins_beside_columns_of_the_cpu(tmp_path: Path, rows: int) -> None:
    table = pa.table({"a": range(40), "b": [f"t{k}" for k in range(40)], "day": [1] * 40})
    (tmp_path / "hour=3").mkdir()
    pq.write_table(table, tmp_path / "hour=3" / "x.parquet", row_group_size=10)
    there = Somewhere()
    source = open_source(str(tmp_path))
    seen = 0
    for morsel in source.scan(["b", "a", "hour"], rows=rows, start=5, elsewhere=there):
        n = morsel.rows.num_rows
        b, a, hour = morsel.rows.columns
        assert isinstance(behind(a), Owner)
        assert b.to_pylist() == [f"t{k}" for k in range(morsel.start, morsel.start + n)]
        assert hour.to_pylist() == [3] * n
        seen += n
    assert seen == 35
    assert sum(len(groups) for groups in there.asked) == 4
    (whole,) = source.scan(["b"], rows=64, elsewhere=there)
    assert whole.rows.column(0).to_pylist() == table["b"].to_pylist()
