"""Plans with histories train, save, load and serve: a history is a column of the log to everything behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import CtrboxError, PlanError
from tests.engines.history.test_histories import clicks


def features() -> cb.FeatureSet:
    return cb.FeatureSet(
        label=col("clicked"),
        sparse={"ad": col("ad").key(), "history": col("h").key(space="ad")},
        dense={"n": col("n"), "ctr": col("ctr").fill(0.5)},
    )


def with_past(view: cb.View) -> cb.View:
    ad = cb.past(by="ad", time="ts", gap="1s")
    return view.with_history(
        h=cb.history("ad", by="user", time="ts", where=col("clicked") == 1, last=5, within="10m"),
        n=ad.count(within="1m"),
        ctr=ad.mean("clicked"),
    )


def plan_of(data: Any, **options: Any) -> cb.Plan:
    return cb.compile(with_past(cb.View(data, name="log")), features(), device="cpu", **options)


def rows_of(batches: Any) -> list[Any]:
    return [
        (batch.sparse["history"][row].tolist(), batch.dense[row].tolist())
        for batch in batches
        for row in range(batch.rows)
    ]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    pq.write_table(clicks(), tmp_path / "log.parquet", row_group_size=300)
    return tmp_path / "log.parquet"


def test_batches_are_the_same_for_any_size_threads_and_position(log: Path) -> None:
    whole = rows_of(plan_of(log, threads=1).batches(2_000))
    assert len(whole) == 2_000
    assert any(keys for keys, _ in whole)
    stream = plan_of(log, threads=2).batches(173)
    first = [next(stream), next(stream)]
    position = stream.position
    stream.close()
    rest = plan_of(log, threads=2).batches(91, start=position)
    assert rows_of(first) + rows_of(rest) == whole


def test_a_saved_plan_computes_the_same_histories_again(log: Path, tmp_path: Path) -> None:
    plan = plan_of(log)
    plan.save(tmp_path / "plan.ctrplan")
    loaded = cb.Plan.load(tmp_path / "plan.ctrplan", allow_views=[str(tmp_path)])
    assert loaded.fingerprint == plan.fingerprint
    assert loaded.rows == plan.rows == 2_000
    assert rows_of(loaded.batches(500)) == rows_of(plan.batches(500))
    other = cb.Plan.load(tmp_path / "plan.ctrplan", views={"log": clicks(300)})
    assert rows_of(other.batches(500)) == rows_of(plan_of(clicks(300)).batches(500))


def test_the_budget_is_no_part_of_a_fingerprint_and_the_gap_is(log: Path) -> None:
    def made(**options: Any) -> str:
        view = cb.View(log).with_history(h=cb.history("ad", by="user", time="ts", **options))
        return cb.compile(view, cb.FeatureSet(sparse={"h": col("h")}), device="cpu").fingerprint

    assert made() == made(budget="1GB")
    assert len({made(), made(gap="1s"), made(last=7), made(where=col("clicked") == 1)}) == 4


def test_a_plan_over_other_data_computes_its_histories_and_takes_those_that_are_there(log: Path) -> None:
    plan = plan_of(log)
    other = clicks(400)
    assert rows_of(plan.over(other).batches(500)) == rows_of(plan_of(other).batches(500))
    names = ["h", "h_age", "n", "ctr"]
    made = cb.compute({name: col(name) for name in names}, with_past(cb.View(other)))
    for name in names:
        other = other.append_column(name, made[name])
    tail = other.slice(200)
    assert rows_of(plan.over(tail).batches(500)) == rows_of(plan_of(clicks(400)).batches(500))[200:]
    with pytest.raises(
        PlanError, match=r"has the column 'h', which with_history computes, but not all columns of this step"
    ):
        plan.over(tail.drop_columns(["n"]))


def test_a_request_brings_its_history_with_it(log: Path) -> None:
    plan = plan_of(log)
    assert set(plan.request_schema().names) == {"ad", "h", "n", "ctr"}
    batch = plan.run([{"ad": 3, "h": [1, 2], "n": 7, "ctr": None}])
    assert batch.dense.tolist() == [[7.0, 0.5]]
    assert len(batch.sparse["history"][0]) == 2
    with pytest.raises(CtrboxError, match="'h'"):
        plan.run([{"ad": 3, "n": 7, "ctr": 0.1}])


def test_a_filter_after_the_step_skips_no_row_group_that_holds_events(log: Path) -> None:
    """Statistics would prove that early row groups hold no selected row; their events are needed all the same."""
    view = with_past(cb.View(log)).filter(col("instance_id") >= 1_900)
    plan = cb.compile(view, features(), device="cpu")
    assert rows_of(plan.batches(500)) == rows_of(plan_of(log).batches(2_000))[1_900:]


def test_a_plan_tells_that_histories_read_columns_that_no_feature_reads(log: Path) -> None:
    (source,) = plan_of(log).explain(json=True)["frames"][0]["sources"]
    assert {"user", "ts", "h"} <= set(source["columns_read"])
    assert set(source["columns_unread"]) == {"instance_id", "h_age"}


@pytest.mark.parametrize("condition", [None, col("pos") < 3], ids=["alone", "with another condition"])
@pytest.mark.parametrize("other", [False, True], ids=["the same rows", "a saved state"])
def test_rows_without_a_label_are_scored_but_are_no_events_if_a_filter_asks_for_it(
    condition: Any, other: bool, tmp_path: Path
) -> None:
    count = 60
    rng = np.random.default_rng(5)
    rows = [
        {
            "id": k,
            "u": int(rng.integers(0, 3)),
            "pos": int(rng.integers(0, 4)),
            "y": [None, 0, 1][int(rng.integers(0, 3))],
        }
        for k in range(count)
    ]
    times = pa.array([1_000_000 * k for k in range(count)], pa.timestamp("us"))
    data = pa.Table.from_pylist(rows).append_column("t", times)
    known = col("y").is_not_null()
    view = cb.View(data.slice(0, 40) if other else data, key="id")
    view = view.filter(known if condition is None else known & condition)
    view = view.with_history(n=cb.past(by="u", time="t").count())
    plan = cb.compile(
        view, cb.FeatureSet(label=col("y"), sparse={"u": col("u")}, dense={"id": col("id"), "n": col("n")})
    )
    state = None
    if other:
        past = plan.histories()
        past.read_log()
        state = tmp_path / "past.state"
        past.save(state)
    over = data.slice(40) if other else data
    found = {}
    for label in (True, False):
        batches = plan.over(over, label=label, histories=state).batches(7)
        found[label] = [(int(k), int(n)) for b in batches for k, n in b.dense.tolist()]
    passes = [condition is None or row["pos"] < 3 for row in rows]
    events = [p and row["y"] is not None for p, row in zip(passes, rows, strict=True)]
    begin = 40 if other else 0
    expected = [
        (k, sum(events[j] and rows[j]["u"] == rows[k]["u"] for j in range(k))) for k in range(begin, count) if passes[k]
    ]
    assert found[False] == expected
    assert found[True] == [(k, n) for k, n in expected if rows[k]["y"] is not None]


def test_data_without_the_label_needs_the_columns_of_the_histories(log: Path) -> None:
    plan = plan_of(log)
    with pytest.raises(PlanError, match=r"'clicked' is not in view 'log'.*unless the data has these columns already"):
        plan.over(clicks(300).drop_columns(["clicked"]), label=False)


def test_head_and_schema_show_the_columns_of_a_history(log: Path) -> None:
    view = with_past(cb.View(log))
    assert view.schema.names[-4:] == ["h", "h_age", "n", "ctr"]
    top = view.head(20)
    assert top["n"].to_pylist()[0] == 0
    assert view.schema.field("h").type == top.schema.field("h").type == pa.large_list(pa.int64())
    assert view.select("ad", "h").schema.names == ["ad", "h"]


def test_a_second_step_can_read_the_columns_of_the_first(log: Path) -> None:
    view = with_past(cb.View(log)).with_columns(busy=col("n") > 3)
    view = view.with_history(busy_before=cb.past(by="user", time="ts").sum("busy"))
    plan = cb.compile(view, cb.FeatureSet(dense={"b": col("busy_before")}), device="cpu")
    (batch,) = plan.batches(2_000)
    table = cb.compute({"user": col("user"), "n": col("n"), "ts": col("ts")}, with_past(cb.View(log))).to_pylist()
    for at in (0, 500, 1_999):
        mine = table[at]
        assert batch.dense[at, 0] == sum(
            r["n"] > 3 for r in table[:at] if r["user"] == mine["user"] and r["ts"] < mine["ts"]
        )


def test_a_merge_stands_behind_the_step(log: Path) -> None:
    basic = cb.View(pa.table({"instance_id": np.arange(2_000), "score": np.arange(2_000) / 2}), key="instance_id")
    feature = cb.history("ad", by="user", time="ts", last=2)
    view = cb.View(log, key="instance_id").with_history(h=feature).merge(basic)
    made = cb.compute({"s": col("score"), "h": col("h")}, view)
    assert made["s"].to_pylist() == [k / 2 for k in range(2_000)]
    with pytest.raises(PlanError, match="put it before the merge"):
        cb.View(log, key="instance_id").merge(basic, ordered=True).with_history(h=feature)


def test_a_damaged_step_of_a_saved_plan_is_refused(log: Path) -> None:
    from ctrbox.plan.graph.expression_json import Reader, Writer

    view = with_past(cb.View(log))
    writer = Writer()
    (written,) = writer.steps(view)
    reader = Reader([], lambda _: None)  # type: ignore[arg-type,return-value]
    reader.expressions(writer.expressions)
    again = reader.step(written, [])
    assert Writer().steps(view.with_steps((again,))) == [written]
    for place, value in ((1, "nothing"), (3, []), (4, 10_000), (6, [0, 0, 0, 0]), (6, [2**62, 0, 0, 0, 0]), (0, 5)):
        feature = list(written[1][0])
        feature[place] = value
        with pytest.raises(PlanError):
            reader.step(["with_history", [feature, *written[1][1:]], written[2]], [])
