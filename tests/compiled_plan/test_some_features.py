"""Some sparse features of a plan alone have the keys of the whole plan; what cannot be computed alone is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.compiled_plan.some_features import SomeFeatures
from ctrbox.compiled_plan.split_for_requests import Split, features_of
from ctrbox.engines.missed_keys import JoinCount
from ctrbox.errors import CtrboxError

ROWS = pa.table(
    {
        "id": [1, 2],
        "user": [1, 7],
        "q": ["a b", ""],
        "y": [0, 1],
        "d": pa.array(["x", "z"]).dictionary_encode(),
    }
)


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    users = cb.View(pa.table({"user": [1], "age": [5]}), key="user", name="users").fill(age=0)
    more = cb.View(pa.table({"id": [1, 2], "m": [3, 4]}), key="id", name="more").fill(m=0)
    log = cb.View(ROWS, key="id", name="log").merge(more).join(users, on="user").filter(col("y") >= 1)
    sparse = {
        "user": col("user").key(),
        "q": col("q").split(" ").key(),
        "mk": col("m").key(),
        "d": col("d").key(),
        "agek": col("age").key(),
    }
    features = cb.FeatureSet(label="y", dense={"age": "age", "m": "m"}, sparse=sparse)
    return cb.compile(log, features, device="cpu", threads=1)


def told(call: Any) -> str:
    with pytest.raises(CtrboxError) as met:
        call()
    return str(met.value)


def test_chosen_features_have_the_keys_of_the_plan_and_no_filter(plan: cb.Plan) -> None:
    some = SomeFeatures(plan, ["agek", "q", "d"])
    assert some.columns == pa.schema([("q", pa.string()), ("d", pa.string()), ("user", pa.int64())])
    assert [field.name for field in some.schema.sparse] == ["q", "d", "agek"]
    rows = pa.record_batch({"q": ["a b", ""], "d": ["x", "z"], "user": [1, 7]}, schema=some.columns)
    found = some.batch(rows)
    whole = plan.run(ROWS)  # of which the filter lets the second row pass
    assert (found.rows, found.index, whole.rows) == (2, None, 1)
    for name in ("q", "d", "agek"):
        assert found.sparse[name][1].tolist() == whole.sparse[name][0].tolist()
    assert found.sparse["q"].offsets.tolist() == [0, 2, 2]
    assert some.joins() == [JoinCount("users", ("user",), 2, 1)]
    assert (
        told(lambda: some.batch(rows.select(["user"]))) == "rows must have the columns ['q', 'd', 'user'], got ['user']"
    )
    assert told(lambda: some.batch(rows.select(["d", "q", "user"]))).startswith("rows must have the columns")


def test_features_that_are_not_sparse_or_need_merged_columns_are_refused(plan: cb.Plan) -> None:
    every = "it has ['user', 'q', 'mk', 'd', 'agek']"
    assert told(lambda: SomeFeatures(plan, ["usr"])) == (
        f"'usr' is not a sparse feature of this plan; nearest: 'user'; {every}"
    )
    assert told(lambda: SomeFeatures(plan, ["user", "age"])) == (
        f"'age' is not a sparse feature of this plan; nearest: 'agek'; {every}"
    )
    assert told(lambda: SomeFeatures(plan, ["user", "mk"])) == (
        "the features 'user', 'mk' read column 'm', which the plan merges from view 'more'; expected features of the log and "
        "of joined views"
    )
    by_id = cb.View(pa.table({"id": [1, 2]}), key="id", name="more").with_columns(twice=col("id") * 2).fill(twice=0)
    log = cb.View(ROWS, key="id", name="log").merge(by_id)
    job = cb.compile(log, cb.FeatureSet(sparse={"twice": col("twice")}), device="cpu", threads=1)
    assert told(lambda: SomeFeatures(job, ["twice"])).startswith(
        "the features 'twice' read column 'id', which the plan"
    )


def test_a_split_names_the_columns_that_rows_must_have(plan: cb.Plan) -> None:
    split = Split(plan, ["user", "q"])
    assert (split.context_schema.names, split.candidate_schema.names) == (["user", "q"], ["d", "y"])
    assert split.candidate_schema.field("d").type == pa.string()
    assert [f.name for f in split.context_features.sparse] == ["user", "q", "agek"]
    assert [f.name for f in split.candidate_features.sparse] == ["mk", "d"]
    assert (split.context_features.dense, split.candidate_features.dense) == ((("age", 1),), (("m", 1),))
    one = "a context must have exactly one row with the columns ['user', 'q'], got"
    assert told(lambda: split.context(pa.record_batch({"user": [1]}))) == f"{one} 1 rows with ['user']"
    two = pa.record_batch({"user": [1, 2], "q": ["a", "b"]})
    assert told(lambda: split.context(two)) == f"{one} 2 rows with ['user', 'q']"
    assert told(lambda: split.candidates(None, pa.record_batch({"user": [1]}))) == (
        "candidates must have the columns ['d', 'y'], got ['user']"
    )
    assert split.joins() == [JoinCount("users", ("user",), 0, 0)]
    part = split.context(two.slice(0, 1))
    assert split.joins() == [JoinCount("users", ("user",), 1, 0)]
    rows = pa.record_batch({"d": ["x", "z", "x"], "y": [1, 0, 1]})
    found = split.candidates(part.frame, rows)
    assert found.index is not None
    assert found.index.tolist() == [0, 2]
    whole = split.joined(part, found)
    assert (whole.rows, whole.dense.tolist()) == (2, [[5.0, 0.0]] * 2)
    assert [whole.sparse["user"][k].tolist() for k in (0, 1)] == [part.batch.sparse["user"][0].tolist()] * 2
    for call in (lambda: Split(plan, ["usr"]), lambda: features_of(plan, ["user", "usr"])):
        assert told(call) == "column 'usr' is not in view 'log'; nearest: 'user'"


def test_the_copy_of_a_context_holds_its_own_bytes(plan: cb.Plan) -> None:
    split = Split(plan, ["user", "q"])
    part = split.context(pa.record_batch({"user": [1], "q": ["a b"]}))
    own = part.owned()
    assert own.frame is part.frame
    for name in ("user", "q", "agek"):
        mine, theirs = own.batch.sparse[name], part.batch.sparse[name]
        assert (mine.values.tolist(), mine.offsets.tolist()) == (theirs.values.tolist(), theirs.offsets.tolist())
        assert mine.values.base is None
    none = Split(plan, ["id"]).context(pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([]))))
    assert (none.frame, none.bytes) == (None, none.batch.dense.nbytes + 256)
