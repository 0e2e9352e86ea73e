"""Rows that a plan runs on: types that it takes and refuses, to the last word, and schemas that it remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import _native, col
from ctrbox.engines.preview import head
from ctrbox.engines.run_on_request import Requests, names_of, single, whole
from ctrbox.errors import CtrboxError, DataError, PlanError
from ctrbox.views.source import open_source

VECTORS = pa.list_(pa.float64(), 2)
ROWS = pa.table(
    {
        "id": [1, 2],
        "f": pa.array([0.5, 1.0], pa.float32()),
        "d": [0.5, 1.0],
        "s": ["a", None],
        "v": pa.array([[1.0, 2.0], [3.0, 4.0]], VECTORS),
        "at": pa.array([1, 2], pa.timestamp("us")),
        "y": [0, 1],
    }
)


def plan(view: cb.View | None = None, **options: Any) -> cb.Plan:
    log = cb.View(ROWS, key="id", name="log").fill(s="none") if view is None else view
    dense = {"f": "f", "d": "d", "v": "v", "h": col("at").hour()}
    features = cb.FeatureSet(label=col("y"), dense=dense, sparse={"s": col("s").key()})
    return cb.compile(log, features, device="cpu", threads=1, **options)


def changed(**columns: Any) -> pa.Table:
    return pa.table(
        {name: columns.get(name, ROWS[name]) for name in ROWS.schema.names if columns.get(name, 0) is not None}
    )


def refused(rows: Any, job: cb.Plan | None = None) -> str:
    with pytest.raises(CtrboxError) as met:
        (job or plan()).run(rows)
    return str(met.value)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"f": pa.array([1e300, 0.2])},
            "column 'f' of the request: a value is outside the range of float, the type that the plan was built with",
        ),
        (
            {"v": pa.array([[1.0, 2.0, 3.0]] * 2, pa.list_(pa.float64(), 3))},
            "column 'v' of the request holds lists of 3 values, but the plan was built on lists of 2 values",
        ),
        (
            {"v": pa.array([[1.0, 2.0]] * 2)},
            "column 'v' of the request holds lists of any number of values, but the plan was built on lists of 2 values",
        ),
        (
            {"at": pa.array([1, 2])},
            "column 'at' of the request is int, but the plan was built on time, which has no unit; make it a time first, for "
            "example frame['at'] = pandas.to_datetime(frame['at'], unit='s')",
        ),
        ({"s": pa.array([1, 2])}, "column 's' of the request is int, but the plan was built on str"),
        (
            {"d": pa.array([None] * 2, pa.map_(pa.int8(), pa.int8()))},
            "column 'd' of the request is map<int8, int8>, but the plan was built on float",
        ),
        (
            {"d": pa.nulls(2)},
            "column 'd' is null, but the plan was built on data where it never is; give every row a value, or add "
            ".fill(d=…) to its view (at request row 0)",
        ),
        ({"d": None}, "the request lacks column 'd'; nearest: 'id'"),
    ],
)
def test_a_request_of_other_types_is_refused(columns: dict[str, Any], told: str) -> None:
    assert refused(changed(**columns)) == told


def test_a_request_may_have_wider_floats_narrower_ones_and_columns_without_a_value() -> None:
    job = plan()
    tenth = float(np.float32(0.1))
    assert job.run(changed(f=pa.array([0.1, 1.0]))).dense[:, 0].tolist() == [tenth, 1.0]
    assert job.run(changed(d=pa.array([0.1, 1.0], pa.float32()))).dense[:, 1].tolist() == [tenth, 1.0]
    nothing = job.run(changed(s=pa.nulls(2)))
    assert nothing.sparse["s"].values.tolist() == [job.run(ROWS).sparse["s"].values[1]] * 2
    batch = job.run(changed(y=None))
    assert (batch.label, batch.schema.label) == (None, False)
    assert job.run(ROWS).label is not None
    assert job.run(ROWS).label.tolist() == [0.0, 1.0]  # type: ignore[union-attr]


def test_a_schema_that_was_found_to_be_right_is_remembered_and_others_are_looked_at() -> None:
    requests = Requests(plan().extractor())
    (batch,) = ROWS.to_batches()
    assert not requests.knows(batch)
    expected = requests.run(batch).dense.tolist()
    assert requests.knows(batch)
    assert not requests.knows(ROWS)  # of a table every chunk would have to be looked at
    assert not requests.knows(batch.select(ROWS.schema.names[::-1]))
    assert requests.run(batch).dense.tolist() == expected
    (wide,) = changed(f=pa.array([0.5, 1.0])).to_batches()
    assert requests.run(wide).dense.tolist() == expected
    assert not requests.knows(wide)  # its floats are rounded each time
    assert requests.lacks(["f", "d", "v", "at", "y"]) == ["s"]


def test_columns_of_a_merged_view_come_all_with_a_request_or_none_of_them() -> None:
    more = cb.View(pa.table({"id": [1, 2], "m": [3, 4], "k": [5, 6]}), key="id", name="more").fill(m=-1, k=-1)
    log = cb.View(ROWS.select(["id", "f"]), key="id", name="log").merge(more)
    features = cb.FeatureSet(dense={"f": col("f"), "m": col("m"), "k": col("k")})
    job = cb.compile(log, features, device="cpu", threads=1)
    half = pa.table({"f": pa.array([0.5], pa.float32()), "m": [8]})
    both = half.append_column("k", pa.array([9]))
    assert [job.run(rows).dense.tolist() for rows in (half.select(["f"]), both)] == [
        [[0.5, -1.0, -1.0]],
        [[0.5, 8.0, 9.0]],
    ]
    assert job.request_schema().names == ["f", "m", "k"]
    told = (
        "the request has column 'm' of view 'more', which the plan merges into the log, but lacks column 'k'; send all of 'm', "
        "'k', or none of them: then the features use the fill values of the view"
    )
    with_id = half.append_column("id", pa.array([1]))
    for rows in (half, half.to_batches()[0], half.to_pylist(), half.to_pylist()[0], with_id):
        with pytest.raises(DataError) as met:
            job.run(rows)
        assert str(met.value) == told
    # The id, which both views have, does not say whether the columns of the merged view were sent.
    assert job.run(with_id.select(["id", "f"])).dense.tolist() == [[0.5, -1.0, -1.0]]


def test_an_empty_list_of_rows_gives_a_batch_without_rows() -> None:
    job = plan()
    shape = job.run(ROWS.slice(0, 0).drop_columns(["y"]))
    for rows in ([], ()):
        batch = job.run(rows)
        assert (batch.rows, batch.dense.shape, batch.label) == (0, (0, shape.dense.shape[1]), None)
        assert {name: len(field) for name, field in batch.sparse.items()} == dict.fromkeys(shape.sparse, 0)
        assert batch.schema == shape.schema
    more = cb.View(pa.table({"id": [1, 2], "m": [3, 4]}), key="id", name="more").fill(m=-1)
    view = cb.View(ROWS.select(["id", "f"]), key="id", name="log").merge(more).filter(col("f") > 0.7)
    filtered = cb.compile(view, cb.FeatureSet(dense={"f": "f", "m": "m"}), device="cpu", threads=1).run([])
    assert (filtered.rows, filtered.dense.shape) == (0, (0, 2))


def test_a_request_needs_no_label_from_a_merged_view() -> None:
    more = cb.View(pa.table({"id": [1, 2], "m": [3, 4], "y": [0, 1]}), key="id", name="more").fill(m=-1, y=0)
    log = cb.View(ROWS.select(["id", "f"]), key="id", name="log").merge(more)
    job = cb.compile(log, cb.FeatureSet(label=col("y"), dense={"f": "f", "m": "m"}), device="cpu", threads=1)
    rows = pa.table({"f": pa.array([0.5], pa.float32()), "m": [8], "y": [1]})
    batch = job.run(rows.select(["f", "m"]))
    assert (batch.dense.tolist(), batch.label) == ([[0.5, 8.0]], None)
    assert job.run(rows).label.tolist() == [1.0]
    with pytest.raises(
        DataError, match=r"^the request has column 'y' of view 'more', .* but lacks column 'm'; send all of"
    ):
        job.run(rows.select(["f", "y"]))


def test_an_id_that_a_step_of_a_merged_view_reads_comes_with_a_request() -> None:
    rows = pa.table({"id": [1, 2], "m": [3, 4]})
    more = cb.View(rows, key="id", name="more").with_columns(twice=col("id") * 2).select("id", "m", "twice")
    log = cb.View(ROWS.select(["id", "f"]), key="id", name="log").merge(more.fill(m=-1, twice=-1))
    job = cb.compile(log, cb.FeatureSet(dense={"m": "m", "twice": "twice"}), device="cpu", threads=1)
    assert job.request_schema().names == ["m", "id"]
    half = pa.table({"m": [8]})
    assert job.run(half.append_column("id", pa.array([7]))).dense.tolist() == [[8.0, 14.0]]
    assert job.run(pa.table({"id": [7]})).dense.tolist() == [[-1.0, -1.0]]
    with pytest.raises(DataError, match="lacks column 'id'; send all of 'm', 'id', or none of them"):
        job.run(half)


def test_rows_that_pass_the_filters_are_numbered() -> None:
    view = cb.View(ROWS, key="id", name="log").fill(s="none")
    filtered = plan(view.filter(col("f") > 0.7))
    for rows in (ROWS, *ROWS.to_batches()):
        found = filtered.run(rows)
        assert found.index is not None
        assert (found.index.tolist(), found.rows) == ([1], 1)
        assert plan().run(rows).index is None


def test_tables_of_one_chunk_are_taken_as_the_record_batches_that_they_are() -> None:
    (batch,) = ROWS.to_batches()
    assert single(ROWS).equals(batch)
    assert isinstance(single(ROWS), pa.RecordBatch)
    several = pa.concat_tables([ROWS, ROWS])
    mixed = pa.table({"a": pa.chunked_array([[1, 2]]), "b": pa.chunked_array([[1], [2]])})
    for table in (several, mixed, ROWS.slice(0, 0)):
        assert single(table) is table
    assert single(batch) is batch
    assert [whole(open_source(t), ["id"]).to_pydict() for t in (ROWS, several, ROWS.slice(0, 0))] == [
        {"id": [1, 2]},
        {"id": [1, 2, 1, 2]},
        {"id": []},
    ]
    none = whole(open_source(several), [])
    assert (none.num_rows, none.num_columns) == (4, 0)
    assert names_of(ROWS) == names_of(batch) == ROWS.schema.names
    assert names_of(ROWS.to_pandas()) == ROWS.schema.names


def test_a_plan_shows_itself_and_cannot_be_changed() -> None:
    job = plan()
    assert repr(job) == "Plan('log', sparse=1, dense=4, threads=1)"
    for name, more in (
        ("threads", "; make another plan: plan = plan.using(threads=…)"),
        ("device", "; make another plan: plan = plan.using(device=…)"),
        ("log", ""),
    ):
        with pytest.raises(PlanError) as met:
            setattr(job, name, 1)
        assert str(met.value) == f"{name} cannot be set, because a plan cannot be changed after it was compiled{more}"
    other = job.using(threads=2)
    assert (other.threads, job.threads, other.device) == (2, 1, "cpu")
    assert job.using().threads == 1
    assert job.request_schema().names == ["f", "d", "v", "at", "s"]
    assert job.request_schema(label=True).names == ["y", "f", "d", "v", "at", "s"]
    assert job.rows == 2


# ---- the first rows of a view


def test_columns_keep_the_types_of_their_source_until_a_step_may_change_them() -> None:
    small = pa.table({"n": pa.array([1, None], pa.int8()), "l": pa.array([[1], []], pa.list_(pa.int8()))})
    raw = cb.View(small)
    assert raw.schema == small.schema.set(1, pa.field("l", pa.list_(pa.int8()), nullable=False))
    stepped = raw.with_columns(twice=col("n") * 2).schema
    assert [(f.name, f.type, f.nullable) for f in stepped] == [
        ("n", pa.int8(), True),
        ("l", pa.large_list(pa.int64()), False),
        ("twice", pa.int64(), True),
    ]
    chunks = cb.View(pa.concat_tables([small] * 3))
    for view in (chunks, chunks.with_columns(m=col("n"))):
        assert [head(view, n).num_rows for n in (0, 1, 2, 3, 6, 7)] == [0, 1, 2, 3, 6, 6]
        assert head(view, 3)["n"].to_pylist() == [1, None, 1]
        assert head(view, 3).num_columns == len(view.schema)


def test_a_notebook_sees_types_first_rows_and_columns_that_cannot_be_read() -> None:
    maps = pa.array([[("k", 1)]] * 7, pa.map_(pa.utf8(), pa.int64()))
    page = cb.View(pa.table({"a": pa.array(range(7)), "b": pa.array([None] * 7, pa.utf8()), "m": maps}))._repr_html_()
    body = page.partition("</style>")[2]
    assert "columns of types that cannot be read: m" in body
    assert body.count("<tr>") == 1 + 5
    assert ">int64, not null<" in body
    assert ">string<" in body
    plain = cb.View(pa.table({"a": [1]}))._repr_html_()
    assert "cannot be read" not in plain


def test_a_plan_counts_the_rows_of_a_log_that_does_not_say_how_many_it_has(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("n,m\n1,1\n2,2\n3,3\n")
    log = cb.View(tmp_path / "log.csv").fill(n=0)
    assert (log.source.rows, cb.compile(log, cb.FeatureSet(dense={"n": "n"}), device="cpu").rows) == (None, 3)
    job = plan()
    assert cb.compile(job.log, job.features, device="cpu").threads == _native.usable_cores()
    assert job.is_fitted
    assert job.schema.fingerprint == job.fingerprint
    fitted = cb.compile(job.log, cb.FeatureSet(dense={"z": col("d").standardize()}), device="cpu", threads=1)
    assert (fitted.is_fitted, fitted.schema.fingerprint) == (False, "")
    assert fitted.fit() is fitted
    assert (fitted.is_fitted, fitted.schema.fingerprint) == (True, fitted.fingerprint)
    shared = fitted.using(threads=1)
    assert shared.fitted is fitted.fitted
    assert shared.run(ROWS).dense.tolist() == fitted.run(ROWS).dense.tolist() == [[-1.0], [1.0]]


@pytest.mark.parametrize(
    "wide", [pa.float64(), pa.list_(pa.float64()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 1)]
)
def test_float64_is_rounded_to_float32_where_the_plan_was_built_on_it(wide: pa.DataType) -> None:
    listed = not pa.types.is_floating(wide)
    values: list[Any] = [[0.7], [0.1]] if listed else [0.7, 0.1]
    narrow = (
        pa.float32()
        if not listed
        else pa.list_(pa.float32(), 1)
        if pa.types.is_fixed_size_list(wide)
        else pa.list_(pa.float32())
    )
    number = col("x").max().fill(0.0) if listed else col("x")
    built = pa.table({"x": pa.array(values, narrow), "y": [0, 1]})
    features = cb.FeatureSet(label="y", sparse={"bucket": number.bucketize([0.1, 0.7]).key()})
    plan = cb.compile(cb.View(built), features, device="cpu")
    ((expected,),) = [[batch.sparse["bucket"].values.tolist()] for batch in plan.batches(2)]
    other = pa.table({"x": pa.array(values, wide), "y": [0, 1]})
    assert plan.run(other).sparse["bucket"].values.tolist() == expected
    ((found,),) = [[batch.sparse["bucket"].values.tolist()] for batch in plan.over(other).batches(2)]
    assert found == expected
    large = pa.table({"x": pa.array([[1e300]] if listed else [1e300], wide), "y": [0]})
    with pytest.raises(DataError, match="a value is outside the range of float, the type that the plan was built with"):
        plan.run(large)
    with pytest.raises(DataError, match="column 'x' of memory row 0 to 0: a value is outside the range of float"):
        list(plan.over(large).batches(2))


def test_a_request_uses_the_schema_that_it_was_compared_with() -> None:
    first = pa.record_batch({"x": pa.array([1.0]), "z": pa.array([2.0]), "y": pa.array([0])})
    other = first.select(["z", "x", "y"])
    made = cb.compile(cb.View(pa.table(first)), cb.FeatureSet(dense={"x": "x", "z": "z"}), device="cpu")
    requests = Requests(made._request_extractor())
    known = []
    for rows in (first, other):
        requests.run(rows)
        known.append(requests.known)

    class Replaced(tuple[Any, ...]):
        """A schema that another thread replaces by that of its own request as soon as this one has been compared."""

        def __getitem__(self, at: Any) -> Any:
            requests.known = known[1]
            return super().__getitem__(at)

    requests.known = Replaced(known[0] or ())  # type: ignore[assignment]
    assert requests.run(first).dense.tolist() == [[1.0, 2.0]]


def test_columns_of_a_merged_view_in_a_request_are_checked_and_rounded_like_those_of_the_log() -> None:
    log = pa.table({"id": [1, 2], "x": [1.0, 2.0]})
    basic = pa.table({"id": [1, 2], "f": pa.array([0.1, 0.7], pa.float32()), "n": [10, 20], "s": ["a", "b"]})
    merged = cb.View(basic, key="id", name="basic").fill(f=-1.0, n=-1, s="none")
    view = cb.View(log, key="id", name="log").merge(merged, ordered=True)
    sparse = {"bucket": col("f").bucketize([0.1, 0.7]), "s": col("s").key()}
    made = cb.compile(view, cb.FeatureSet(dense={"x": "x", "n": "n"}, sparse=sparse), device="cpu")
    whole = next(made.batches(2))

    def answer(**columns: Any) -> tuple[list[float], int, int]:
        batch = made.run(pa.table({"x": [2.0], **columns}))
        return batch.dense[0].tolist(), int(batch.sparse["bucket"].values[0]), int(batch.sparse["s"].values[0])

    bucket, word = (int(whole.sparse[name].values[1]) for name in ("bucket", "s"))
    _, low, none = answer()
    assert answer(f=[0.7], n=[20], s=["b"]) == ([2.0, 20.0], bucket, word)
    assert answer(f=[0.1], n=[20], s=pa.nulls(1)) == ([2.0, 20.0], int(whole.sparse["bucket"].values[0]), none)
    assert answer() == ([2.0, -1.0], low, none)
    with pytest.raises(
        DataError, match=r"the request has column 'f' of view 'basic', .* but lacks column 'n'; also 's'; send"
    ):
        answer(f=["0.7"])
    for columns, told in (
        ({"f": ["0.7"]}, "column 'f' of the request is str, but the plan was built on float"),
        ({"f": [7]}, "column 'f' of the request is int, but the plan was built on float"),
        ({"n": [20.5]}, "column 'n' of the request is float, but the plan was built on int"),
    ):
        with pytest.raises(DataError, match=told):
            answer(**{"f": [0.7], "n": [20], "s": ["b"], **columns})
