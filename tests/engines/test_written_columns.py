"""Columns of basic features as a file holds them, and how rows are dealt to part files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrbox.engines.materialize import Parts, check_ids, shape, vectors
from ctrbox.engines.quantile_sketch import Blocks
from ctrbox.errors import DataError

LISTS = pa.array([[1.0, 2.0, 3.0], [], [4.0], [5.0, 6.0]], pa.large_list(pa.float64()))


def test_lists_become_vectors_that_are_filled_with_zeros_or_cut() -> None:
    found = vectors(LISTS, pa.list_(pa.float32(), 2))
    assert found.type == pa.list_(pa.float32(), 2)
    assert found.to_pylist() == [[1, 2], [0, 0], [4, 0], [5, 6]]
    assert vectors(LISTS.slice(1, 2), pa.list_(pa.float32(), 2)).to_pylist() == [[0, 0], [4, 0]]
    assert vectors(LISTS, pa.list_(pa.float32(), 4)).to_pylist()[0] == [1, 2, 3, 0]


def test_keys_become_signed_numbers_and_floats_single_ones() -> None:
    keys = pa.array([2**64 - 1, 5], pa.uint64())
    assert shape(keys, pa.int64()).to_pylist() == [-1, 5]
    lists = pa.LargeListArray.from_arrays([0, 2, 2], keys)
    assert shape(lists, pa.list_(pa.int64())).to_pylist() == [[-1, 5], []]
    assert shape(pa.array([0.1, 1e300]), pa.float32()).to_pylist() == [float(np.float32(0.1)), float("inf")]
    same = pa.array([1, 2])
    assert shape(same, pa.int64()) is same


def test_the_row_of_a_null_id_is_counted_from_the_first_row_of_all() -> None:
    check_ids(pa.array([1, 2]), "id", "n", 100)
    with pytest.raises(DataError, match=r"id is null in row 102 of the output; filter such rows: "):
        check_ids(pa.array([1, 2, None, None]), "id", "n", 100)
    bad = pa.Array.from_buffers(pa.large_string(), 1, [None, pa.array([0, 1]).buffers()[1], pa.py_buffer(b"\xff")])
    with pytest.raises(DataError, match="id is not UTF-8 near row 7 of the output:"):
        check_ids(bad, "id", "n", 7)


@pytest.mark.parametrize(
    ("most", "given", "parts"),
    [
        (4, [2, 2, 1], [4, 1]),
        (4, [2, 3], [2, 3]),
        (4, [4, 4], [4, 4]),
        (4, [5, 1], [5, 1]),  # one table is never cut
        (4, [], [0]),
        (None, [4, 4, 4], [12]),
    ],
)
def test_a_part_file_takes_tables_up_to_its_number_of_rows(
    tmp_path: Path, most: int | None, given: list[int], parts: list[int]
) -> None:
    schema = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("f", pa.float32())])
    place = tmp_path / ("folder" if most else "one.parquet")
    files = Parts(place, schema, "zstd", most)
    for rows in given:
        files.write(pa.table({"id": range(rows), "key": range(rows), "f": [0.5] * rows}, schema=schema))
    files.close()
    found = sorted(place.iterdir()) if most else [place]
    assert [p.name for p in found] == (
        [f"part-{k:05d}.parquet" for k in range(len(parts))] if most else ["one.parquet"]
    )
    assert [pq.read_metadata(p).num_rows for p in found] == parts
    if given:
        columns = [pq.read_metadata(found[0]).row_group(0).column(k) for k in range(3)]
        # Keys repeat, so they have a dictionary; ids and fractions do not.
        assert ["RLE_DICTIONARY" in c.encodings for c in columns] == [False, True, False]


def test_blocks_are_full_whatever_pieces_they_come_in() -> None:
    blocks = Blocks(4)
    assert blocks.add(np.arange(3.0)) == []
    assert blocks.rest.tolist() == [0, 1, 2]
    (full,) = blocks.add(np.arange(3.0, 5.0))
    assert (full.tolist(), blocks.rest.tolist()) == ([0, 1, 2, 3], [4])
    two = blocks.add(np.arange(5.0, 12.0))
    assert [block.tolist() for block in two] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert blocks.rest.tolist() == []
    assert full.tolist() == [0, 1, 2, 3]  # a copy of its own
