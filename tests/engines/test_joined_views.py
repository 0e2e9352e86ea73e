"""Joined views are loaded in parts, on several threads: the same rows as when they are loaded at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu import joined_views as dimensions


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dimensions, "LOAD_ROWS", 7)
        yield


def users(ids: list[int | None]) -> pa.Table:
    return pa.table(
        {
            "user_id": pa.array(ids, pa.int64()),
            "age": pa.array([None if k % 5 == 4 else k for k in range(len(ids))], pa.int64()),
            "interests": pa.array(
                [None if k % 6 == 5 else "|".join("ab" * (k % 4)) for k in range(len(ids))], pa.string()
            ),
        }
    )


def joined(table: pa.Table, asked: list[int], threads: int, *, keep: str | None = None, least: int = -1) -> Any:
    """(age, length of interests, their keys) of each user asked for, in one batch."""
    ids = pa.array(asked, pa.int64())
    log = cb.View(pa.table({"id": range(len(asked)), "user_id": ids, "clicked": [1] * len(asked)}), key="id")
    people = cb.View(table, key="user_id", name="users", keep=keep).fill(age=-1, interests="none")
    interests = col("interests").split("|")
    features = cb.FeatureSet(
        label=col("clicked"),
        sparse={"interests": interests.key()},
        dense={"age": col("age"), "chars": col("interests").length()},
    )
    plan = cb.compile(log.join(people.filter(col("age") >= least), on="user_id"), features, threads=threads)
    (batch,) = plan.batches(len(asked))
    keys = batch.sparse["interests"]
    return [(*batch.dense[r], *keys.values[keys.offsets[r] : keys.offsets[r + 1]]) for r in range(len(asked))]


@settings(deadline=None)
@given(
    ids=st.lists(st.integers(0, 60), max_size=60),
    threads=st.integers(1, 5),
    least=st.sampled_from([-1, 0, 30, 1000]),
)
def test_parts_are_put_together_in_order(ids: list[int], threads: int, least: int) -> None:
    table = users(list(ids))
    rows = table.to_pylist()
    last = {row["user_id"]: row for row in rows if (-1 if row["age"] is None else row["age"]) >= least}
    found = joined(table, list(range(-1, 61)), threads, keep="last", least=least)
    keys = {}  # of each interest, as the log's own column gives it
    for asked, (age, chars, *rest) in zip(range(-1, 61), found, strict=True):
        row = last.get(asked, {"age": None, "interests": None})
        text = "none" if row["interests"] is None else row["interests"]
        assert age == (-1 if row["age"] is None else row["age"])
        assert chars == len(text)
        words = text.split("|") if text else []
        assert len(rest) == len(words)
        for word, key in zip(words, rest, strict=True):
            assert keys.setdefault(word, key) == key
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(("first", "second"), [(0, 1), (0, 99), (30, 57), (98, 99)])
def test_duplicates_are_named_across_parts(threads: int, first: int, second: int) -> None:
    ids: list[int | None] = list(range(100))
    ids[second] = ids[first]
    with pytest.raises(
        cb.errors.DataError,
        match=rf"has key user_id={first} more than once \(memory row {first} and memory row {second}\)",
    ):
        joined(users(ids), [1], threads)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("null", [0, 50, 99])
def test_the_first_null_key_is_named(threads: int, null: int) -> None:
    ids: list[int | None] = [None if k >= null else k for k in range(100)]
    with pytest.raises(cb.errors.DataError, match=rf"key 'user_id' of view 'users' is null at memory row {null};"):
        joined(users(ids), [1], threads)


@cb.operator(args=["int"], result="int")
def same(a: Any) -> Any:
    return a


@pytest.mark.parametrize("least", [0, 30, 70])
@pytest.mark.parametrize("joined_view", [True, False])
def test_a_row_behind_a_filter_and_a_user_operator_is_named(least: int, joined_view: bool) -> None:
    documents = ['{"a": 1}'] * 100
    documents[71] = '{"a": '
    table = pa.table({"uid": range(100), "document": documents})
    view = cb.View(table, key="uid", name="documents").fill(document="{}").filter(col("uid") >= least)
    read = same(col("document").json("$.a", "int", strict=True).fill(0))
    if joined_view:
        view = cb.View(pa.table({"id": [1], "u": [5]}), key="id").join(view, on="u")
    with pytest.raises(cb.errors.DataError, match=r"the value is malformed \(at memory row 71\)"):
        cb.compute({"a": read}, view)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_of_two_errors_the_earlier_is_told(tmp_path: Path, threads: int) -> None:
    documents = ['{"a": 1}'] * 400
    documents[3] = '{"a": '
    pq.write_table(pa.table({"uid": range(400), "document": documents}), tmp_path / "d.parquet", row_group_size=100)
    place = pq.ParquetFile(tmp_path / "d.parquet").metadata.row_group(1).column(1).data_page_offset
    damaged = bytearray((tmp_path / "d.parquet").read_bytes())
    damaged[place : place + 8] = b"\xff" * 8
    (tmp_path / "d.parquet").write_bytes(damaged)
    view = cb.View(str(tmp_path / "d.parquet"), key="uid", name="documents").fill(document="{}")
    log = cb.View(pa.table({"id": [1], "u": [5], "clicked": [1]}), key="id").join(view, on="u")
    read = col("document").json("$.a", "int", strict=True).fill(0)
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse={"a": read.key()}), threads=threads)
    with pytest.raises(cb.errors.DataError, match=r"the value is malformed \(at .*d\.parquet row 3\)"):
        next(iter(plan.batches(1)))


CTRL_C = """
    import time, numpy as np, pyarrow as pa, ctrbox as cb
    from ctrbox import col

    @cb.operator(args=["int"], result="int")
    def slow(a):
        print("part", flush=True)
        time.sleep(0.1)
        return a

    rows = np.arange(16_384 * 600)
    table = pa.table({"uid": rows, "v": rows})
    view = cb.View(table, key="uid", name="users").fill(v=0)
    log = cb.View(pa.table({"id": [1], "u": [1]}), key="id").join(view, on="u")
    cb.compute({"v": slow(col("v"))}, log)
"""


def test_ctrl_c_while_a_view_is_loaded_ends_with_the_part_it_is_at() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CTRL_C)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "part"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    assert out.count("part") < 599  # of 600, a minute's worth of sleeping
