"""The type of a column that some data does not tell: columns of Arrow type null, and integers of two widths in one view."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.views.source import open_source


def written(folder: Path, *columns: pa.Array) -> str:
    for k, column in enumerate(columns):
        pq.write_table(pa.table({"a": column, "clicked": [k % 2] * len(column)}), folder / f"{k}.parquet")
    return str(folder / "*.parquet")


def plan_of(data: Any) -> cb.Plan:
    return cb.compile(cb.View(data).fill(a=7), cb.FeatureSet(label=col("clicked"), dense={"a": col("a")}), device="cpu")


def values(plan: cb.Plan) -> list[float]:
    return [value for batch in plan.batches(10) for value in batch.dense[:, 0].tolist()]


def test_a_column_without_values_in_the_first_file_has_the_type_of_a_later_one(tmp_path: Path) -> None:
    data = written(tmp_path, pa.nulls(2), pa.nulls(1), pa.array([4, None], pa.int32()))
    assert open_source(data).schema.field("a").type == pa.int32()
    assert values(plan_of(data)) == [7, 7, 7, 4, 7]


def test_a_column_without_any_value_is_not_taken_as_text(tmp_path: Path) -> None:
    for data in (written(tmp_path, pa.nulls(2)), pa.table({"a": pa.nulls(2), "clicked": [0, 1]})):
        with pytest.raises(
            PlanError, match=r"column 'a' of view .* has Arrow type null.*such as pa.nulls\(rows, pa.int64"
        ):
            plan_of(data)
        with pytest.raises(SourceError, match=r"column 'a' of .* has Arrow type null"):
            next(iter(open_source(data).scan(["a"])))
        assert [m.rows.num_rows for m in open_source(data).scan(["clicked"])] == [2]


def test_a_plan_reads_other_data_whose_column_holds_no_value(tmp_path: Path) -> None:
    plan = plan_of(pa.table({"a": [1, None], "clicked": [0, 1]}))
    without = pa.table({"clicked": [0, 1, 0], "a": pa.nulls(3)})
    assert values(plan.over(without)) == [7, 7, 7]
    assert values(plan.over(written(tmp_path, pa.nulls(2), pa.nulls(2)))) == [7, 7, 7, 7]
    assert plan.run(without).dense[:, 0].tolist() == [7, 7, 7]
    assert plan.run([{"a": None, "clicked": 1}, {"a": 3, "clicked": 0}]).dense[:, 0].tolist() == [7, 3]


def test_a_plan_built_on_full_columns_names_the_row_that_has_no_value() -> None:
    features = cb.FeatureSet(label=col("clicked"), dense={"a": col("a")})
    plan = cb.compile(cb.View(pa.table({"a": [1, 2], "clicked": [0, 1]})), features, device="cpu")
    over = plan.over(pa.table({"clicked": [0, 1], "a": pa.nulls(2)}))
    with pytest.raises(DataError, match="column 'a' is null at memory row 0; the plan was built on data without nulls"):
        values(over)


def test_an_integer_too_wide_for_the_first_file_is_answered_with_the_wider_type(tmp_path: Path) -> None:
    data = written(tmp_path, pa.array([1], pa.int32()), pa.array([2, 2**40], pa.int64()))
    told = (
        r"1.parquet row 1: column 'a' holds 1099511627776 \(int64\), which does not fit int32, the type of this column in the "
        "first file of the view; write the first file again with int64, or put a file that has int64 first"
    )
    with pytest.raises(DataError, match=told):
        values(plan_of(data))


def test_a_number_beyond_every_integer_is_still_to_be_stored_as_text() -> None:
    with pytest.raises(DataError, match="does not fit int64; store such values as text"):
        values(plan_of(pa.table({"a": pa.array([2**64 - 1], pa.uint64()), "clicked": [1]})))


@pytest.mark.parametrize(("later", "advice"), [("5", "int"), ("true", "bool"), ("2.5", "float")])
def test_json_whose_first_file_has_no_value_says_which_type_to_declare(tmp_path: Path, later: str, advice: str) -> None:
    (tmp_path / "0.jsonl").write_text('{"a": null, "s": {"b": null}, "clicked": 0}\n' * 2)
    (tmp_path / "1.jsonl").write_text(f'{{"a": {later}, "s": {{"b": {later}}}, "clicked": 1}}\n')
    for column in ("a", "s.b"):
        with pytest.raises(SourceError) as caught:
            cb.compute({"x": col(column)}, cb.View(str(tmp_path / "*.jsonl")))
        told = str(caught.value)
        assert f"1.jsonl row 0: column {column!r} has no value in the first rows of the view" in told
        assert f"here it holds {later}; pass types={{{column!r}: {advice!r}}}" in told
    made = cb.compute({"x": col("a")}, cb.View(str(tmp_path / "*.jsonl"), types={"a": advice}))
    assert made["x"].to_pylist() == [None, None, json.loads(later)]


def test_a_time_given_as_text_or_number_is_answered_with_what_to_do() -> None:
    times = pa.array([0, 1], pa.timestamp("s"))
    log = pa.table({"ts": times, "clicked": [0, 1]})
    plan = cb.compile(cb.View(log), cb.FeatureSet(sparse={"hour": col("ts").hour()}), device="cpu")
    text = pa.table({"ts": ["2026-01-31T10:00:00Z"]})
    number = pa.table({"ts": [1_700_000_000]})
    for run in (plan.run, lambda rows: plan.over(rows)):
        with pytest.raises(
            (DataError, PlanError), match=r"plan was built on time; make it a time first, .*, utc=True\)$"
        ):
            run(text)
        with pytest.raises((DataError, PlanError), match=r"which has no unit; .*, unit='s'\)$"):
            run(number)


def test_the_view_whose_column_has_no_type_is_named_also_in_a_streamed_merge() -> None:
    log = cb.View(pa.table({"id": [1, 2], "clicked": [0, 1]}), key="id", name="log")
    basic = cb.View(pa.table({"id": [1, 2], "x": pa.nulls(2)}), key="id", name="basic")
    for ordered in (True, False):
        with pytest.raises(PlanError, match="column 'x' of view 'basic' has Arrow type null"):
            cb.compile(log.merge(basic, ordered=ordered), cb.FeatureSet(sparse={"x": col("x")}), device="cpu")
        with pytest.raises(PlanError, match="column 'y' is not in view 'basic'"):
            cb.compile(
                log.merge(basic.fill(y=0), ordered=ordered), cb.FeatureSet(sparse={"id": col("id")}), device="cpu"
            )


def test_a_unit_given_to_the_cast_of_a_view_is_answered_with_the_cast_that_takes_one() -> None:
    with pytest.raises(
        PlanError, match=r"View\.cast takes no unit=; .*\.with_columns\(ts=col\('ts'\)\.cast\('time', unit='ms'\)\)"
    ):
        cb.View(pa.table({"ts": [1]})).cast(ts="time", unit="ms")
    units = cb.View(pa.table({"unit": [1]})).cast(unit="str")  # a column may have this name
    assert cb.compute({"unit": col("unit")}, units)["unit"].to_pylist() == ["1"]
