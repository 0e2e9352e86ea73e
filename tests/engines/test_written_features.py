"""What `materialize` writes and refuses, to the last word: the schema, rows per file, places, ids and shapes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.materialize import COMPRESSIONS, check_ids, shape
from ctrbox.errors import CtrboxError, DataError, PlanError


def table(**columns: Any) -> pa.Table:
    return pa.table({"id": [5, 6, 7, 8], "word": ["a", "b", "a", "c"], "x": [0.5, 1.5, 2.5, 3.5], **columns})


def plan(view: cb.View | None = None) -> cb.Plan:
    features = cb.FeatureSet(
        dense={"x": col("x"), "more": col("x") + 1},
        sparse={"word": col("word").key(), "words": col("word").split(" ").key()},
    )
    return cb.compile(
        cb.View(table(), key="id", name="log") if view is None else view, features, device="cpu", threads=1
    )


def refused(call: Any) -> str:
    with pytest.raises(CtrboxError) as met:
        call()
    return str(met.value)


def test_the_file_says_what_its_columns_are_and_which_plan_made_them(tmp_path: Path) -> None:
    job = plan()
    assert job.materialize(tmp_path / "f.parquet") == 4
    schema = pq.read_schema(tmp_path / "f.parquet")
    assert [(f.name, f.type, f.nullable) for f in schema] == [
        ("id", pa.int64(), False),
        ("x", pa.float32(), False),
        ("more", pa.float32(), False),
        ("word", pa.int64(), False),
        ("words", pa.list_(pa.field("element", pa.int64())), False),
    ]
    spaces = {name: dict(schema.field(name).metadata).get(b"ctrbox.space") for name in ("word", "words")}
    assert spaces == {o.name: o.space.encode() for o in job.graph.outputs if o.role == "sparse"}
    assert b"ctrbox.space" not in (schema.field("x").metadata or {})
    assert json.loads(schema.metadata[b"ctrbox.basic"]) == {
        "key": "id",
        "plan": job.fingerprint,
        "features": ["x", "more", "word", "words"],
    }
    found = pq.read_metadata(tmp_path / "f.parquet").row_group(0)
    coded = [found.column(k).path_in_schema for k in range(5) if found.column(k).has_dictionary_page]
    assert coded == ["word", "words.list.element"]  # neither ids nor floats


def test_text_ids_are_written_as_text_and_codecs_by_their_names(tmp_path: Path) -> None:
    view = cb.View(table(id=["p", "q", "r", "s"]), key="id")
    for name in COMPRESSIONS:
        plan(view).materialize(tmp_path / f"{name}.parquet", ["x"], compression=name)
        assert pq.read_schema(tmp_path / f"{name}.parquet").field("id").type == pa.large_string()
        codec = pq.read_metadata(tmp_path / f"{name}.parquet").row_group(0).column(1).compression
        assert codec == {"none": "UNCOMPRESSED"}.get(name, name.upper())


@pytest.mark.parametrize(
    ("rows", "most", "files"),
    [(1, 1, [1, 1, 1, 1]), (1, 2, [2, 2]), (2, 2, [2, 2]), (1, 3, [3, 1]), (2, 3, [2, 2]), (4, 4, [4]), (3, 9, [4])],
)
def test_a_part_has_as_many_rows_as_it_may_have_and_no_more(
    tmp_path: Path, rows: int, most: int, files: list[int]
) -> None:
    assert plan().materialize(tmp_path / "parts", ["x"], row_group_rows=rows, part_rows=most) == 4
    found = sorted((tmp_path / "parts").iterdir())
    assert [pq.read_metadata(file).num_rows for file in found] == files
    one = tmp_path / "one.parquet"  # is never divided
    plan().materialize(one, ["x"], row_group_rows=rows, part_rows=most)
    groups = pq.read_metadata(one)
    assert [groups.row_group(k).num_rows for k in range(groups.num_row_groups)] == [
        min(rows, 4 - at) for at in range(0, 4, rows)
    ]


def test_sizes_and_codecs_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for rows, most in ((0, 5), (6, 5)):
        assert refused(
            lambda rows=rows, most=most: plan().materialize(tmp_path / "p", row_group_rows=rows, part_rows=most)
        ) == (  # type: ignore[misc]
            f"row_group_rows= must be from 1 to part_rows=, got row_group_rows={rows} and part_rows={most}"
        )
    assert refused(lambda: plan().materialize(tmp_path / "p", compression="zip")) == (
        "compression 'zip' is not known; expected zstd, lz4, snappy, gzip, brotli, none"
    )
    assert refused(lambda: plan().materialize(tmp_path / "p", [])) == (
        "materialize needs at least one dense or sparse feature, but the list of features is empty"
    )


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ((), "materialize needs one id column in view 'log', it has no key; make it with View(…, key='instance_id')"),
        (
            ("id", "word"),
            "materialize needs one id column in view 'log', its key is ('id', 'word'); make it with "
            "View(…, key='instance_id')",
        ),
        ("x", "key 'x' of view 'log' is float; materialize needs an int or a str id"),
        ("flag", "key 'flag' of view 'log' is bool; materialize needs an int or a str id"),
    ],
)
def test_a_log_without_one_plain_id_is_refused(tmp_path: Path, key: Any, told: str) -> None:
    view = cb.View(table(flag=[True] * 4), key=key, name="log")
    job = cb.compile(view, cb.FeatureSet(dense={"y": col("x")}), device="cpu", threads=1)
    assert refused(lambda: job.materialize(tmp_path / "f.parquet")) == told


def test_a_plan_names_what_it_reads_at_the_place_it_should_write(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    pq.write_table(table(), tmp_path / "log" / "part-00000.parquet")
    pq.write_table(table(), tmp_path / "log.parquet")

    def told(data: Path, place: Path) -> str:
        return refused(lambda: plan(cb.View(data, key="id")).materialize(place, ["x"]))

    folder, file = tmp_path / "log", tmp_path / "log.parquet"
    for data, place in ((folder, folder), (folder / "part-00000.parquet", folder)):
        assert told(data, place) == (
            f"cannot write {place}, because the plan reads part-00000.parquet from there; choose another path"
        )
    assert (
        told(file, file) == f"cannot write {file}, because the plan reads log.parquet from there; choose another path"
    )
    for data, place in ((folder, tmp_path / "lo"), (folder, tmp_path / "log" / "more"), (file, tmp_path / "lo")):
        assert plan(cb.View(data, key="id")).materialize(place, ["x"]) == 4


def test_ids_that_are_missing_or_no_text_are_named_by_their_row_of_the_output() -> None:
    check_ids(pa.array([1, 2]), "id 'x' of view 'v'", "x", 0)
    with pytest.raises(DataError) as null:
        check_ids(pa.array([1, 2, None, None]), "id 'x' of view 'v'", "x", 1000)
    assert str(null.value) == (
        "id 'x' of view 'v' is null in row 1,002 of the output; filter such rows: .filter(~col('x').is_null())"
    )
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")])
    with pytest.raises(DataError, match=re.escape("id 'x' of view 'v' is not UTF-8 near row 2,000 of the output: ")):
        check_ids(bad, "id 'x' of view 'v'", "x", 2000)


def test_more_keys_than_a_list_of_one_row_group_can_count_are_refused() -> None:
    few = pa.array([[2**64 - 1], [], [1, 2]], pa.large_list(pa.uint64()))
    assert shape(few, pa.list_(pa.int64())).to_pylist() == [[-1], [], [1, 2]]
    many: Any = SimpleNamespace(offsets=pa.array([0, 2**31]), values=pa.array([], pa.uint64()))  # would be 16 GB
    with pytest.raises(DataError) as met:
        shape(many, pa.list_(pa.int64()))
    assert str(met.value) == "2,147,483,648 keys are too many for the lists of one row group; lower row_group_rows="


def test_vectors_are_filled_with_zeros_and_cut() -> None:
    lists = pa.array([[], [1.5], [1.5, 2.5], [1.5, 2.5, 3.5]], pa.large_list(pa.float64()))
    expected = [[0, 0], [1.5, 0], [1.5, 2.5], [1.5, 2.5]]
    assert shape(lists, pa.list_(pa.float32(), 2)).to_pylist() == expected
    assert shape(lists.slice(1), pa.list_(pa.float32(), 2)).to_pylist() == expected[1:]
    keys = pa.array([2**64 - 1, 3], pa.uint64())
    assert shape(keys, pa.int64()).to_pylist() == [-1, 3]
    same = pa.array([1, 2])
    assert shape(same, pa.int64()) is same
    assert shape(pa.array([True, False]), pa.float32()).to_pylist() == [1.0, 0.0]


def test_places_that_are_something_else_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "d.parquet").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "part-00000.parquet").touch()
    (tmp_path / "home" / "thesis.txt").touch()
    for name, told in (
        ("file", "is a file; expected a folder, or a file that ends with .parquet"),
        (
            "d.parquet",
            "is a folder, but the ending .parquet stands for a single file; remove the ending, or choose another path",
        ),
    ):
        assert refused(lambda name=name: plan().materialize(tmp_path / name)) == f"{tmp_path / name} {told}"  # type: ignore[misc]
    assert refused(lambda: plan().materialize(tmp_path / "home")) == (
        f"folder {tmp_path / 'home'} would be replaced, but it holds 'thesis.txt', which is not a part file; choose another "
        "folder"
    )
    with pytest.raises(
        PlanError, match=r"ends with \.parquet, but on S3 and HDFS materialize writes a folder of part files"
    ):
        plan().materialize("s3://bucket/basic.parquet")


def test_a_plan_does_not_write_over_data_behind_a_history_or_a_saved_plan(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "user": ["a", "a"], "ts": pa.array([1, 2], pa.timestamp("us"))})
    log, clicks = tmp_path / "log.parquet", tmp_path / "clicks.parquet"
    pq.write_table(rows, log)
    pq.write_table(rows, clicks)
    past = {"own": cb.past(by="user", time="ts"), "other": cb.View(clicks, name="clicks").past(by="user", time="ts")}
    view = cb.View(log, key="id").with_history(**{name: one.count() for name, one in past.items()})
    job = cb.compile(view, cb.FeatureSet(dense={name: col(name) for name in past}), device="cpu", threads=1)
    job.save(tmp_path / "job.plan")
    for made in (job, job.over(log), cb.Plan.load(tmp_path / "job.plan")):
        for place in (log, clicks):
            told = refused(lambda made=made, place=place: made.materialize(place))
            assert told == f"cannot write {place}, because the plan reads {place.name} from there; choose another path"
    assert pq.read_table(log) == pq.read_table(clicks) == rows
