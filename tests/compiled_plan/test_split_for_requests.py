"""A plan cut in two against the plan over joined rows: any columns as context, filters, joins, crosses, user operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch
from ctrbox.compiled_plan.split_for_requests import Split
from ctrbox.errors import DataError, PlanError

USERS = pa.table({"user": [0, 1, 2, 3], "segment": [5, 6, 5, 7], "tags": [["a", "b"], [], ["c"], ["a"]]})
ADS = pa.table({"ad": [0, 1, 2], "title": ["red shoe", "blue hat", ""], "bid": [0.5, 2.0, 1.5]})
COLUMNS = ("user", "ad", "query", "device", "price", "shown")


@cb.operator(args=["int", "float"], result="float", arrays="numpy")
def mixed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a * 0.5 + b


def log_of(rows: pa.Table, variant: int) -> cb.View:
    log = cb.View(rows, key="id", name="log").fill(query="", device="none", price=0.0)
    users = cb.View(USERS, key="user", name="users").fill(segment=-1, tags=[])
    ads = cb.View(ADS, key="ad", name="ads").fill(title="", bid=0.0)
    if variant & 1:
        log = log.filter(col("device") != "bot")
    log = log.join(users, on="user").join(ads, on="ad", how="inner" if variant & 2 else "left")
    if variant & 4:
        log = log.filter(col("price") + col("bid") < 4.0)
    return log


def features_of(variant: int) -> cb.FeatureSet:
    words = col("query").lower().split(" ")
    sparse: dict[str, Any] = {
        "user": col("user").key(),
        "ad": col("ad").key(),
        "words": words.key(),
        "tags": col("tags").key(),
        "user_x_ad": cb.cross("user", "ad"),
        "segment_x_title": cb.cross("segment", col("title").split(" ")),
        "device_x_shown": cb.cross("device", "shown"),
    }
    dense: dict[str, Any] = {
        "price": col("price"),
        "overlap": cb.overlap(words, col("title").split(" ")),
        "bid": col("bid").log1p(),
        "both": col("price") * col("bid"),
    }
    if variant & 8:
        dense["mixed"] = mixed(col("user"), col("bid"))
        dense["mixed_price"] = mixed(col("user"), col("price"))
    return cb.FeatureSet(label=col("clicked"), group=col("user"), sparse=sparse, dense=dense)


rows = st.fixed_dictionaries(
    {
        "user": st.integers(0, 5),
        "ad": st.integers(0, 4),
        "query": st.sampled_from([None, "", "red HAT", "blue  shoe red", "ü"]),
        "device": st.sampled_from([None, "ios", "bot"]),
        "price": st.sampled_from([None, 0.0, 1.25, 3.0]),
        "shown": st.booleans(),
    }
)


def table_of(given: list[dict[str, Any]]) -> pa.Table:
    whole = [{"id": k, "clicked": 0, **row} for k, row in enumerate(given)]
    kinds = {
        "user": pa.int64(),
        "ad": pa.int32(),
        "query": pa.string(),
        "device": pa.large_string(),
        "price": pa.float32(),
    }
    kinds |= {"shown": pa.bool_(), "id": pa.int64(), "clicked": pa.int8()}
    return pa.table({n: pa.array([row[n] for row in whole], kind) for n, kind in kinds.items()})


FIRST = table_of([dict.fromkeys(("query", "device", "price")) | {"user": 0, "ad": 0, "shown": True}] * 2)
PLANS = {v: cb.compile(log_of(FIRST, v), features_of(v), device="cpu", threads=1) for v in range(16)}
SPLITS: dict[tuple[int, frozenset[str]], Split] = {}


def same(one: Batch, other: Batch) -> None:
    assert one.rows == other.rows
    assert np.array_equal(one.dense, other.dense)
    for field in other.schema.sparse:
        assert np.array_equal(one.sparse[field.name].values, other.sparse[field.name].values), field.name
        assert np.array_equal(one.sparse[field.name].offsets, other.sparse[field.name].offsets), field.name


@settings(max_examples=120, deadline=None)
@given(
    variant=st.integers(0, 15),
    context=st.frozensets(st.sampled_from(COLUMNS)),
    one=rows,
    candidates=st.lists(rows, min_size=0, max_size=6),
)
def test_two_parts_give_the_bits_of_the_joined_rows(
    variant: int, context: frozenset[str], one: dict[str, Any], candidates: list[dict[str, Any]]
) -> None:
    plan = PLANS[variant]
    split = SPLITS.setdefault((variant, context), Split(plan, sorted(context)))
    joined = [{**row, **{n: one[n] for n in context}} for row in candidates]
    (first,) = table_of([one]).select(split.context_schema.names).to_batches() if split.context_schema.names else [None]
    if first is None:
        first = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
    each = table_of(candidates).select(split.candidate_schema.names)
    names = split.candidate_schema.names
    arrays = [each[n].combine_chunks() for n in names]
    batch = pa.RecordBatch.from_arrays(arrays, schema=split.candidate_schema)
    if not names:
        batch = pa.RecordBatch.from_struct_array(pa.array([{}] * len(candidates), pa.struct([])))
    part = split.context(first)
    found = split.candidates(part.frame, batch)
    expected = plan.run(table_of(joined))
    same(split.joined(part, found), expected)
    kept = np.arange(len(candidates)) if found.index is None else found.index
    assert np.array_equal(kept, np.arange(len(candidates)) if expected.index is None else expected.index)


def test_features_of_says_what_comes_once() -> None:
    plan = PLANS[8]
    assert plan.features_of([]) == []
    assert plan.features_of(["user"]) == ["user", "tags"]
    assert plan.features_of(["user", "price", "query"]) == ["user", "words", "tags", "price", "mixed_price"]
    assert set(plan.features_of(["ad"])) == {"ad", "bid"}
    assert len(plan.features_of(COLUMNS)) == 13
    with pytest.raises(PlanError, match="nearest: 'user'"):
        plan.features_of(["usr"])


def test_what_reads_the_context_alone_runs_over_one_row() -> None:
    split = Split(PLANS[0], ["user", "query", "device"])
    assert split.context_schema.names == ["user", "query", "device"]
    assert set(split.candidate_schema.names) == {"ad", "price", "shown"}
    assert {o.name for o in split.each.outputs} == {
        "ad",
        "user_x_ad",
        "segment_x_title",
        "device_x_shown",
        "price",
        "overlap",
        "bid",
        "both",
    }


def test_rows_of_other_columns_are_refused() -> None:
    split = Split(PLANS[0], ["user"])
    good = pa.record_batch({"user": pa.array([1], pa.int64())})
    with pytest.raises(DataError, match="one row"):
        split.context(pa.record_batch({"user": pa.array([1, 2], pa.int64())}))
    with pytest.raises(DataError, match="one row"):
        split.context(pa.record_batch({"user": pa.array(["1"])}))
    with pytest.raises(DataError, match="candidates must have the columns"):
        split.candidates(split.context(good).frame, good)
    with pytest.raises(PlanError, match="not in view"):
        Split(PLANS[0], ["nothing"])


@pytest.mark.parametrize("count", [1023, 1024, 1025, 3000])
def test_many_candidates_share_one_context(count: int) -> None:
    plan = PLANS[0]
    split = Split(plan, ["user", "query", "device"])
    one = {"user": 1, "query": "red hat", "device": "ios"}
    candidates = [{**one, "ad": k % 4, "price": 1.25, "shown": k % 2 == 0} for k in range(count)]
    (first,) = table_of([candidates[0]]).select(split.context_schema.names).to_batches()
    each = table_of(candidates).select(split.candidate_schema.names)
    arrays = [column.combine_chunks() for column in each.columns]
    part = split.context(first)
    found = split.candidates(part.frame, pa.RecordBatch.from_arrays(arrays, schema=split.candidate_schema))
    same(split.joined(part, found), plan.run(table_of(candidates)))


def test_candidates_read_of_a_context_the_last_results_that_it_alone_gives() -> None:
    split = Split(PLANS[0], ["user", "query", "device"])
    assert split.shared is not None
    # user and device are hashed, the words too; of the users' view comes what was hashed there.
    assert sorted(o.node.op for o in split.shared.outputs) == ["gather", "hash", "hash", "hash"]
    assert Split(PLANS[0], ["price"]).shared is not None
    assert Split(PLANS[0], ["id"]).shared is None


def test_the_bytes_of_a_context_are_those_of_its_arrays_and_of_their_objects() -> None:
    split = Split(PLANS[0], ["user", "query", "price"])
    one = table_of([{"user": 1, "ad": 0, "query": "red blue hat", "device": "ios", "price": 1.5, "shown": True}])
    (row,) = one.select(split.context_schema.names).to_batches()
    part = split.context(row).owned()
    assert [f.name for f in part.batch.schema.sparse] == ["user", "words", "tags"]
    keys = {name: part.batch.sparse[name].values.tolist() for name in ("user", "words", "tags")}
    assert {name: len(found) for name, found in keys.items()} == {"user": 1, "words": 3, "tags": 0}
    values, offsets, dense = 8 * (1 + 3 + 0), 3 * 2 * 8, 4 * 1
    assert part.bytes - part.frame.bytes == values + offsets + dense + 7 * 256
