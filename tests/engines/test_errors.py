"""Bad input gets one clear error that names what was met; nothing is lost and nothing goes on silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col


def table(**columns: Any) -> pa.Table:
    return pa.table({name: x if isinstance(x, pa.Array) else pa.array(x) for name, x in columns.items()})


LOG = table(
    instance_id=[1, 2, 3],
    user_id=pa.array([1, 2, None], pa.int64()),
    query=["red shoes", "", "靴"],
    score=[0.5, 1.5, 2.5],
    docs=['{"a": 1}', "{", '{"a": "x"}'],
)


def log(**columns: Any) -> cb.View:
    return cb.View(table(**columns) if columns else LOG, key="instance_id", name="impressions")


def dense(view: cb.View, e: Any, **options: Any) -> list[float]:
    plan = cb.compile(view, cb.FeatureSet(dense={"e": e}), **options)
    return [x for batch in plan.batches(2) for x in batch.dense[:, 0].tolist()]


def users(keep: str | None = None, **columns: Any) -> cb.View:
    return cb.View(table(**columns), key="user_id", name="users", keep=keep).fill(age=-1)


# ---- joins -------------------------------------------------------------------------------------------------


def test_duplicate_keys_of_a_dimension_are_named() -> None:
    view = log().join(users(user_id=[2, 7, 5, 7], age=[1, 2, 3, 4]), on="user_id")
    with pytest.raises(
        cb.errors.DataError, match=r"'users' has key user_id=7 more than once \(memory row 1 and memory row 3\)"
    ):
        dense(view, col("age"))


def test_duplicate_keys_are_named_in_their_files(tmp_path: Path) -> None:
    pq.write_table(table(user_id=["a", "b"], age=[1, 2]), tmp_path / "0.parquet")
    pq.write_table(table(user_id=["c", "a"], age=[3, 4]), tmp_path / "1.parquet")
    view = cb.View(table(instance_id=[1], user_id=["a"]), key="instance_id")
    people = cb.View(str(tmp_path), key="user_id", name="users").fill(age=0)
    with pytest.raises(cb.errors.DataError, match=r"user_id='a'.*0\.parquet row 0 and .*1\.parquet row 1"):
        dense(view.join(people, on="user_id"), col("age"))
    last = cb.View(str(tmp_path), key="user_id", name="users", keep="last").fill(age=0)
    assert dense(view.join(last, on="user_id"), col("age")) == [4.0]


def test_duplicate_pairs_of_keys_are_named() -> None:
    prices = cb.View(
        table(shop=["a", "b", "a"], day=[1, 1, 1], price=[1.0, 2.0, 3.0]), key=["shop", "day"], name="prices"
    )
    view = cb.View(table(instance_id=[1], shop=["a"], day=[1]), key="instance_id")
    with pytest.raises(cb.errors.DataError, match="shop='a', day=1"):
        dense(view.join(prices.fill(price=0.0), on=["shop", "day"]), col("price"))


def test_the_last_of_equal_keys_wins_where_asked() -> None:
    view = log().join(users("last", user_id=[2, 1, 2, 2], age=[1, 2, 3, 4]), on="user_id")
    assert dense(view, col("age")) == [2.0, 4.0, -1.0]


def test_a_filter_of_the_dimension_comes_before_its_duplicates() -> None:
    people = users(user_id=[1, 1, 2], age=[10, 20, 30]).filter(col("age") != 20)
    assert dense(log().join(people, on="user_id"), col("age")) == [10.0, 30.0, -1.0]
    people = users("last", user_id=[1, 1, 2], age=[10, 20, 30]).filter(col("age") != 20)
    assert dense(log().join(people, on="user_id"), col("age")) == [10.0, 30.0, -1.0]


def test_null_keys_of_a_dimension_are_named_and_can_be_filtered() -> None:
    people = users(user_id=pa.array([1, None], pa.int64()), age=[5, 6])
    with pytest.raises(cb.errors.DataError, match=r"key 'user_id' of view 'users' is null at memory row 1.*filter"):
        dense(log().join(people, on="user_id"), col("age"))
    assert dense(log().join(people.filter(~col("user_id").is_null()), on="user_id"), col("age")) == [
        5.0,
        -1.0,
        -1.0,
    ]


def test_null_keys_of_the_log_meet_no_row() -> None:
    people = users(user_id=[1, 0], age=[5, 6])
    assert dense(log().join(people, on="user_id"), col("age")) == [5.0, -1.0, -1.0]
    assert dense(log().join(people, on="user_id", how="inner"), col("age")) == [5.0]


@pytest.mark.parametrize("keys", [["1", "2"], [True, False]])
def test_a_join_key_of_another_type_is_refused(keys: list[Any]) -> None:
    view = log().join(users(user_id=keys, age=[1, 2]), on="user_id")
    with pytest.raises(
        cb.errors.PlanError,
        match=r"join on 'user_id': the column is int in view 'impressions', but \w+ in view 'users'.*cast",
    ):
        cb.compile(view, cb.FeatureSet(dense={"age": col("age")}))


def test_a_join_key_of_another_width_is_the_same_key() -> None:
    people = users(user_id=pa.array([2, 1], pa.uint8()), age=[20, 10])
    assert dense(log().join(people, on="user_id"), col("age")) == [10.0, 20.0, -1.0]


def test_a_join_key_cast_to_the_other_type_is_found() -> None:
    people = users(user_id=["1", "2"], age=[1, 2])
    assert dense(log().cast(user_id="str").join(people, on="user_id"), col("age")) == [1.0, 2.0, -1.0]


def test_a_float_cannot_be_a_join_key() -> None:
    people = cb.View(table(score=[0.5], age=[1]), key="score", name="scores").fill(age=0)
    with pytest.raises(cb.errors.PlanError, match="float, which cannot be a join key"):
        dense(log().join(people, on="score"), col("age"))


def test_a_column_of_two_views_needs_a_prefix() -> None:
    people = cb.View(table(user_id=[1], score=[1.0]), key="user_id", name="users")
    with pytest.raises(
        cb.errors.PlanError, match=r"column 'score' is in both 'impressions' and 'users'.*prefix='users_'"
    ):
        dense(log().join(people, on="user_id"), col("score"))


def test_joins_that_cannot_be_are_refused_at_once() -> None:
    people = cb.View(table(user_id=[1], age=[1]), name="users")
    with pytest.raises(cb.errors.PlanError, match="has no key to join on"):
        log().join(people, on="user_id")
    with pytest.raises(cb.errors.PlanError, match="as many columns"):
        log().join(users(user_id=[1], age=[1]), on=["user_id", "query"])
    with pytest.raises(cb.errors.PlanError, match="'left' or 'inner'"):
        log().join(users(user_id=[1], age=[1]), on="user_id", how="outer")
    with pytest.raises(cb.errors.PlanError, match="needs a View"):
        log().join(table(user_id=[1]), on="user_id")  # type: ignore[arg-type]
    with pytest.raises(cb.errors.PlanError, match=r"not a column.*nearest: 'user_id'"):
        cb.View(table(user_id=[1]), key="userid")


# ---- merges ------------------------------------------------------------------------------------------------


def basic(**columns: Any) -> cb.View:
    return cb.View(table(**columns), key="instance_id", name="basic").fill(ctr=-1.0)


def test_a_merge_finds_rows_in_any_order() -> None:
    assert dense(log().merge(basic(instance_id=[3, 1], ctr=[0.3, 0.1])), col("ctr")) == pytest.approx([0.1, -1.0, 0.3])
    assert dense(log().merge(basic(instance_id=[1, 3], ctr=[0.5, 0.25])), col("ctr")) == [0.5, -1.0, 0.25]


@pytest.mark.parametrize("ids", [[1, 3, 2], [1, 2, 2]])
def test_a_merge_said_to_be_ordered_checks_it(ids: list[int]) -> None:
    view = log().merge(basic(instance_id=ids, ctr=[0.1, 0.2, 0.3]), ordered=True)
    with pytest.raises(cb.errors.DataError, match=r"'basic' 2 comes after \d at memory row 2.*ordered=False"):
        dense(view, col("ctr"))


def test_a_merge_of_duplicate_ids_names_them() -> None:
    view = log().merge(basic(instance_id=[3, 1, 3], ctr=[0.1, 0.2, 0.3]))
    with pytest.raises(cb.errors.DataError, match="'basic' has key instance_id=3 more than once"):
        dense(view, col("ctr"))


def test_null_ids_of_a_merge_are_named() -> None:
    ids = pa.array([1, None, 3], pa.int64())
    view = log().merge(basic(instance_id=ids, ctr=[0.1, 0.2, 0.3]), ordered=True)
    with pytest.raises(cb.errors.DataError, match="'basic' is null at memory row 1"):
        dense(view, col("ctr"))


def test_a_merge_beyond_its_budget_is_refused() -> None:
    view = log().merge(basic(instance_id=[3, 1], ctr=[0.1, 0.2]), budget="10B")
    with pytest.raises(cb.errors.BudgetError, match=r"merged view 'basic', .*budget of 10 B; sort both views"):
        dense(view, col("ctr"))


def test_a_merge_that_cannot_stream_says_why() -> None:
    filtered = basic(instance_id=[1, 2], ctr=[0.1, 0.2]).filter(col("ctr") > 0.0)
    with pytest.raises(cb.errors.PlanError, match="ordered=True is possible only on the log"):
        dense(log().merge(filtered, ordered=True), col("ctr"))
    with pytest.raises(cb.errors.PlanError, match="one key column"):
        log().merge(cb.View(table(instance_id=[1])))


def test_a_merge_by_ids_of_another_type_is_refused() -> None:
    view = log().merge(basic(instance_id=["1", "2"], ctr=[0.1, 0.2]), ordered=False)
    with pytest.raises(cb.errors.PlanError, match=r"instance_id.*int.*str"):
        dense(view, col("ctr"))


# ---- crosses and documents ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_an_exploding_cross_is_cut_and_counted(threads: int) -> None:
    words = [" ".join(f"w{k}" for k in range(n)) for n in (0, 1, 3, 100, 2000)]
    view = log(instance_id=list(range(5)), words=words)
    tokens = col("words").split(" ")
    wanted = cb.FeatureSet(sparse={"pairs": cb.cross(tokens, tokens, limit=500), "all": tokens.key()})
    plan = cb.compile(view, wanted, threads=threads, chunk_rows=2)
    (batch,) = plan.batches(10)
    assert np.diff(batch.sparse["pairs"].offsets).tolist() == [0, 1, 9, 500, 500]
    assert np.diff(batch.sparse["all"].offsets).tolist() == [0, 1, 3, 100, 2000]
    assert plan.warnings == {"cross of 'words'": 2}
    cut = cb.compile(view, cb.FeatureSet(sparse={"pairs": cb.cross(tokens, tokens, limit=9)})).run(view_rows(words))
    for r in range(5):  # what is left is the beginning, the left member outermost
        assert cut.sparse["pairs"][r].tolist() == batch.sparse["pairs"][r][:9].tolist()


def view_rows(words: list[str]) -> pa.Table:
    return table(instance_id=list(range(len(words))), words=words)


def test_a_row_cut_by_a_cross_of_three_is_counted_once() -> None:
    view = log(instance_id=[1, 2], words=["a b c", "a"])
    tokens = col("words").split(" ")
    plan = cb.compile(view, cb.FeatureSet(sparse={"triples": cb.cross(tokens, tokens, tokens, limit=4)}))
    list(plan.batches(10))
    assert plan.warnings == {"cross of 'words'": 1}


def test_malformed_json_is_null_and_counted_or_an_error() -> None:
    value = col("docs").json("$.a", "int")
    plan = cb.compile(log(), cb.FeatureSet(dense={"a": value.fill(-1)}))
    assert [b.dense[:, 0].tolist() for b in plan.batches(10)] == [[1.0, -1.0, -1.0]]
    assert plan.warnings == {"json of 'docs'": 1, "json('$.a', 'int') of 'docs'": 1}  # one has another type
    with pytest.raises(cb.errors.DataError, match=r"json: the value is malformed \(at memory row 1\)"):
        dense(log(), col("docs").json("$.a", "int", strict=True).fill(-1))
    plan = cb.compile(log(), cb.FeatureSet(dense={"a": col("docs").json("$.a", "int", strict=True).fill(-1)}))
    with pytest.raises(cb.errors.DataError, match="at request row 1"):
        plan.run(LOG)
    assert plan.run(LOG.slice(0, 1)).dense.tolist() == [[1.0]]


def test_a_json_path_that_is_none_is_refused() -> None:
    for path in ("a.b", "$..a", "$[-1]", "$['a", "$.a b", ""):
        with pytest.raises(cb.errors.PlanError, match="JSON path"):
            dense(log(), col("docs").json(path, "int").fill(0))


# ---- expressions -------------------------------------------------------------------------------------------


def test_a_column_that_may_be_null_says_what_to_add() -> None:
    with pytest.raises(
        cb.errors.PlanError, match=r"feature 'user' may be null: column 'user_id'.*add \.fill\(user_id=0\)"
    ):
        cb.compile(log(), cb.FeatureSet(sparse={"user": col("user_id").key()}))
    with pytest.raises(cb.errors.PlanError, match=r"label may be null.*add \.with_columns\(label_known=…\)\.filter\("):
        cb.compile(log(), cb.FeatureSet(label=col("instance_id") // 2))
    people = cb.View(table(user_id=[1], age=[1]), key="user_id", name="users")
    with pytest.raises(
        cb.errors.PlanError, match=r"column 'age' may be null \(a key may be missing from view 'users'\)"
    ):
        cb.compile(log().join(people, on="user_id"), cb.FeatureSet(dense={"age": col("age")}))


def test_an_unknown_column_suggests_the_nearest() -> None:
    with pytest.raises(cb.errors.PlanError, match="column 'scores_' is not in view 'impressions'; nearest: 'score'"):
        cb.compile(log(), cb.FeatureSet(sparse={"q": col("scores_").key()}))


def test_a_float_cannot_be_a_key() -> None:
    for feature in (col("score").key(), cb.cross("score", "query"), col("score")):
        with pytest.raises(cb.errors.PlanError, match=r"float, which cannot be a key.*bucketize"):
            cb.compile(log(), cb.FeatureSet(sparse={"s": feature}))


def test_wrong_types_name_what_is_accepted() -> None:
    with pytest.raises(cb.errors.PlanError, match=r"lower of float \(.score.\) is not possible; it takes str"):
        cb.compile(log(), cb.FeatureSet(sparse={"s": col("score").lower().key()}))
    with pytest.raises(cb.errors.PlanError, match="dense feature 'q' must be a number, but it is str"):
        cb.compile(log(), cb.FeatureSet(dense={"q": col("query")}))
    with pytest.raises(cb.errors.PlanError, match=r"filter needs a condition \(bool\), got float"):
        cb.compile(log().filter(col("score")), cb.FeatureSet(dense={"s": col("score")}))
    with pytest.raises(cb.errors.PlanError, match="an expression has no value while the plan is built"):
        bool(col("score") > 1)


def test_a_column_of_no_simple_type_is_an_error_only_where_it_is_used() -> None:
    view = log(instance_id=[1], nested=pa.array([[[1]]], pa.list_(pa.list_(pa.int64()))), x=[1.0])
    assert dense(view, col("x")) == [1.0]
    with pytest.raises(cb.errors.PlanError, match=r"column 'nested'.*expected a number"):
        dense(view, col("nested").length())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_whole_number_cannot_be_filled_with_nan(value: float) -> None:
    with pytest.raises(cb.errors.PlanError, match="must be int, got"):
        cb.compile(log(), cb.FeatureSet(dense={"u": col("user_id").fill(value)}))


@pytest.mark.parametrize("e", [col("instance_id").is_in([2**70]), col("instance_id").clip(0, 2**70)])
def test_constants_beyond_64_bits_are_refused(e: Any) -> None:
    with pytest.raises(cb.errors.PlanError, match="64 bits"):
        dense(log(), e)


# ---- requests ----------------------------------------------------------------------------------------------


@pytest.fixture
def plan() -> cb.Plan:
    people = users(user_id=[1, 2], age=[10, 20])
    wanted = cb.FeatureSet(
        dense={"score": col("score"), "age": col("age")}, sparse={"q": col("query").split(" ").key()}
    )
    return cb.compile(log().join(people, on="user_id"), wanted)


def test_a_request_that_lacks_a_column(plan: cb.Plan) -> None:
    with pytest.raises(cb.errors.DataError, match="the request lacks column 'query'; nearest: 'queri'"):
        plan.run(LOG.rename_columns(["instance_id", "user_id", "queri", "score", "docs"]))
    with pytest.raises(cb.errors.DataError, match=r"lacks column '\w+'; also '\w+', '\w+'$") as met:
        plan.run(LOG.select(["instance_id"]))
    assert all(f"'{name}'" in str(met.value) for name in ("user_id", "query", "score"))


def test_a_request_needs_only_the_columns_that_are_read(plan: cb.Plan) -> None:
    assert plan.run(LOG.select(["query", "score", "user_id"])).dense.tolist() == [
        [0.5, 10],
        [1.5, 20],
        [2.5, -1],
    ]


def test_a_request_of_another_type(plan: cb.Plan) -> None:
    wrong = LOG.set_column(3, "score", pa.array(["0.5", "1.5", "x"]))
    with pytest.raises(
        cb.errors.DataError, match="column 'score' of the request is str, but the plan was built on float"
    ):
        plan.run(wrong)
    narrow = LOG.set_column(3, "score", pa.array([0.5, 1.5, 2.5], pa.float32()))
    assert plan.run(narrow).dense.tolist() == plan.run(LOG).dense.tolist()
    words = LOG.set_column(2, "query", LOG["query"].combine_chunks().dictionary_encode())
    assert plan.run(words).sparse["q"].values.tolist() == plan.run(LOG).sparse["q"].values.tolist()


@pytest.mark.parametrize("as_batch", [False, True])
def test_a_request_with_a_null_where_none_can_be(plan: cb.Plan, as_batch: bool) -> None:
    rows = LOG.set_column(3, "score", pa.array([0.5, None, 2.5]))
    good, bad = (t.combine_chunks().to_batches()[0] if as_batch else t for t in (LOG, rows))
    before = plan.run(good).dense.tolist()
    with pytest.raises(cb.errors.DataError, match=r"column 'score' is null.*add \.fill\(score=…\).*request row 1"):
        plan.run(bad)
    assert plan.run(good).dense.tolist() == before  # and the plan still works


def test_a_request_with_nulls_where_they_are_filled(plan: cb.Plan) -> None:
    rows = LOG.set_column(1, "user_id", pa.array([None, None, 2], pa.int64()))
    assert plan.run(rows).dense[:, 1].tolist() == [-1.0, -1.0, 20.0]


def test_an_empty_request(plan: cb.Plan) -> None:
    batch = plan.run(LOG.slice(0, 0))
    assert (batch.rows, batch.dense.shape, len(batch.sparse["q"].values)) == (0, (0, 2), 0)
    assert batch.sparse["q"].offsets.tolist() == [0]


def test_a_request_that_is_no_table(plan: cb.Plan) -> None:
    with pytest.raises(cb.errors.SourceError, match="speaks Arrow"):
        plan.run(5)


def test_a_request_of_rows_that_lack_columns_names_them(plan: cb.Plan) -> None:
    with pytest.raises(cb.errors.DataError, match="lacks column 'score'; also 'user_id'"):
        plan.run([{"query": "a"}])


def test_a_null_that_appears_after_the_plan_was_built(tmp_path: Path) -> None:
    """Files may change under a plan: the row is named."""
    pq.write_table(table(instance_id=[1, 2], score=[1.0, 2.0]), tmp_path / "a.parquet")
    plan = cb.compile(cb.View(str(tmp_path), key="instance_id"), cb.FeatureSet(dense={"s": col("score")}))
    assert plan.run(table(instance_id=[1], score=[3.0])).dense.tolist() == [[3.0]]
    pq.write_table(table(instance_id=[1, 2], score=pa.array([1.0, None])), tmp_path / "a.parquet")
    with pytest.raises((cb.errors.DataError, cb.errors.SourceError), match=r"a\.parquet"):
        list(plan.batches(10))


# ---- what an attack found


def test_a_list_cannot_be_a_join_key() -> None:
    left = cb.View(pa.table({"k": [[1, 2], [3]]}))
    right = cb.View(pa.table({"k": [[1, 2], [3]], "v": [7, 8]}), key="k", name="lists").fill(v=0)
    with pytest.raises(cb.errors.PlanError, match="cannot be a join key"):
        cb.compute({"v": col("v")}, left.join(right, on="k"))


def test_a_null_inside_a_dictionary_is_a_null() -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), pa.array(["a", None, "c"]))
    view = cb.View(pa.table({"x": coded}))
    found = cb.compute({"x": col("x").fill("none"), "null": col("x").is_null()}, view)
    assert found.to_pydict() == {"x": ["a", "none", "c"], "null": [False, True, False]}


def test_a_list_view_from_a_user_operator_is_read_right() -> None:
    @cb.operator(args=["int"], result="list[int]")
    def lists(x: pa.Array) -> pa.Array:
        return pa.array([[1], [2, 2], [3]], pa.list_view(pa.int64()))

    found = cb.compute({"sum": lists(col("x")).sum()}, pa.table({"x": [1, 2, 3]}))
    assert found["sum"].to_pylist() == [1, 4, 3]


def test_a_user_operator_may_run_its_own_plan() -> None:
    inner = cb.compile(cb.View(pa.table({"x": [5]})), cb.FeatureSet(dense={"x": col("x")}))

    @cb.operator(args=["int"], result="float")
    def nested(x: pa.Array) -> Any:
        return [float(plan.run(pa.table({"y": [1]})).dense[0, 0]) if len(x) > 1 else 9.0 for _ in range(len(x))]

    assert inner.run(pa.table({"x": [1]})).rows == 1
    plan = cb.compile(cb.View(pa.table({"y": [1, 2]})), cb.FeatureSet(dense={"n": nested(col("y"))}))
    assert plan.run(pa.table({"y": [1, 2]})).dense.tolist() == [[9.0], [9.0]]


def test_a_null_inside_a_vector_is_an_error() -> None:
    vectors = pa.array([[1.0, None, 3.0]], pa.list_(pa.float64(), 3))
    with pytest.raises(cb.errors.DataError, match=r"column .v.*null inside a list of fixed size"):
        cb.compute({"v": col("v")}, pa.table({"v": vectors}))


def test_strict_json_in_a_joined_view_names_the_row() -> None:
    users = cb.View(pa.table({"u": [1, 2], "profile": ['{"a": 1}', "{"]}), key="u", name="users")
    age = col("profile").json("$.a", "int", strict=True).fill(0)
    plan = cb.compile(cb.View(pa.table({"u": [1]})).join(users, on="u"), cb.FeatureSet(dense={"a": age}))
    with pytest.raises(cb.errors.DataError, match=r"the value is malformed \(at memory row 1\)"):
        next(plan.batches(1))


def test_pruning_leaves_durations_alone(tmp_path: Path) -> None:
    table = pa.table({"z": pa.array([1000, 1000, 2000, 2000], pa.duration("ns"))})
    pq.write_table(table, tmp_path / "z.parquet", row_group_size=2)
    for data in (table, str(tmp_path / "z.parquet")):
        assert cb.compute({"z": col("z")}, cb.View(data).filter(col("z").is_in([1]))).num_rows == 2


@pytest.mark.parametrize("sizes", [{"batch_size": 2.5}, {"limit": 2.5}, {"seed": 2**70}, {"start": 5}, {"shuffle": -1}])
def test_sizes_that_are_no_whole_numbers_are_refused(sizes: dict[str, Any]) -> None:
    plan = cb.compile(cb.View(pa.table({"x": [1]})), cb.FeatureSet(dense={"x": col("x")}))
    with pytest.raises(cb.errors.PlanError):
        next(plan.batches(**{"batch_size": 10, **sizes}))


@pytest.mark.parametrize("options", [{"threads": -1}, {"threads": 0}, {"chunk_rows": 0}, {"chunk_rows": 2**32}])
def test_options_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(cb.errors.PlanError, match="whole number"):
        cb.compile(cb.View(pa.table({"x": [1]})), cb.FeatureSet(dense={"x": col("x")}), **options)
