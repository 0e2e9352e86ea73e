"""The online loop computes the history columns that training computes offline, bit for bit, through crashes and restarts."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch
from ctrbox.datasets import adlog, adlog_events
from ctrbox.errors import DataError, PlanError
from ctrbox.loop.checkpoint import Checkpoints
from ctrbox.loop.history_columns import PastOfExamples, histories_of
from ctrbox.loop.learn_events import Learner
from ctrbox.loop.online_loop import OnlineLoop

ROWS, WINDOW_S, LATENESS_S = 1_000, 3_600, 240


def log_of(data: Any) -> cb.View:
    user = cb.past(by="user_id", time="ts", gap="10m")
    ad = cb.past(by="ad_id", time="ts", where=col("clicked") == 1)
    return (
        cb.View(data, key="instance_id", name="log")
        .fill(price=0.0)
        .with_history(
            seen=cb.history("ad_id", by="user_id", time="ts", last=5, within="6h", gap="1m"),
            shows=user.count(within="2h"),
            rate=ad.mean("price", within="1d"),
            spent=user.decayed("price", half_life="1h"),
            since=ad.since(),
        )
        .with_history(busy=cb.past(by="device", time="ts").sum("shows", within="1h"))
    )


def features(label: Any = None) -> cb.FeatureSet:
    return cb.FeatureSet(
        label=col("clicked") if label is None else label,
        sparse={"ad": col("ad_id").key(), "seen": col("seen").key(space="ad"), "user": col("user_id").key()},
        dense={
            "shows": col("shows"),
            "rate": col("rate").fill(-1.0),
            "spent": col("spent"),
            "since": col("since").fill(-1.0),
            "busy": col("busy"),
        },
    )


def plan_of(data: Any) -> cb.Plan:
    return cb.compile(log_of(data), features(), device="cpu", threads=1)


class Crash(Exception):
    """Stands for the end of a process that has no time to save anything."""


class Recorded:
    """A plan that keeps the features of what it ran, by the number of the example; it crashes after so many calls."""

    def __init__(self, plan: cb.Plan, found: dict[int, Any], crash: int) -> None:
        self.plan, self.features, self.found, self.crash = plan, plan.features, found, crash
        self.learner: Learner | None = None

    def run(self, rows: Any) -> Batch:
        batch = self.plan.run(rows)
        assert self.learner is not None
        for k, row in enumerate(bits(batch)):
            # An example that is learned again after a crash has the same features as before.
            assert self.found.setdefault(self.learner.engine.learned + k, row) == row
        self.crash -= 1
        if not self.crash:
            raise Crash
        return batch


class Recording(OnlineLoop):
    """A loop that keeps the features of its examples."""

    found: dict[int, Any]
    crash = 0

    def _fresh(self) -> Learner:
        learner = super()._fresh()
        plan = Recorded(self.plan, self.found, self.crash)
        learner.plan, plan.learner = plan, learner  # type: ignore[assignment]
        return learner


def bits(batch: Batch) -> list[Any]:
    dense = np.ascontiguousarray(batch.dense).view(np.uint32).tolist()
    return [(row, *(batch.sparse[n][k].tolist() for n in ("ad", "seen", "user"))) for k, row in enumerate(dense)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("past")
    adlog(rows=ROWS, seed=6, out=place / "data", days=1)
    adlog_events(place / "data", place / "events", chunk_rows=150, click_delay_s=1200, disorder_s=200)
    return place


@pytest.fixture(scope="module")
def offline(world: Path) -> list[Any]:
    """The features of a training log that somebody wrote from the same events: impressions by time, with their labels."""
    events = pq.read_table(world / "events").to_pylist()
    clicked = {e["instance_id"]: e["ts"] for e in events if e["event"] == "click"}
    shown = sorted((e for e in events if e["event"] == "impression"), key=lambda e: e["ts"])
    newest = max(e["ts"] for e in events)
    rows = []
    for row in shown:
        if (newest - row["ts"]).total_seconds() <= WINDOW_S + LATENESS_S:
            continue
        delay = (clicked[row["instance_id"]] - row["ts"]).total_seconds() if row["instance_id"] in clicked else -1
        rows.append({**row, "clicked": int(0 <= delay <= WINDOW_S)})
    schema = pq.read_schema(next((world / "data" / "impressions").glob("*.parquet")))
    table = pa.Table.from_pylist([{n: row[n] for n in schema.names if n in row} for row in rows])
    plan = plan_of(world / "data" / "impressions").over(
        table.cast(pa.schema([schema.field(n) for n in table.schema.names]))
    )
    found = [row for batch in plan.batches(333) for row in bits(batch)]
    assert len({str(row) for row in found}) > len(found) // 2
    return found


def loop(world: Path, stream: Path, out: Path, found: dict[int, Any], crash: int = 0, **options: Any) -> Recording:
    plan = plan_of(world / "data" / "impressions")
    Recording.found, Recording.crash = found, crash
    engine = cb.DeepFFM(plan.schema, k=4, hidden=(4,), bits=12)
    usual: dict[str, Any] = {"every": "200ex", "window": "1h", "lateness": "4m", "checkpoint": 0, "checkpoint_share": 1}
    return Recording(plan, engine, stream, out, tell=lambda line: None, once=True, **{**usual, **options})


def test_the_loop_learns_from_the_features_of_training(world: Path, offline: list[Any], tmp_path: Path) -> None:
    found: dict[int, Any] = {}
    made = loop(world, world / "events", tmp_path / "model", found)
    assert "clicked" not in made.layout.columns.names
    assert {"price", "device", "ts"} <= set(made.layout.columns.names)
    told = made.run()
    assert told["counts"]["left_out"] == 0
    assert [found[k] for k in range(len(found))] == offline


def test_crashes_and_restarts_feed_every_example_exactly_once(world: Path, offline: list[Any], tmp_path: Path) -> None:
    choose, found, crashes = random.Random(5), {}, 0
    stream = tmp_path / "stream"
    stream.mkdir()
    chunks = sorted((world / "events").iterdir())
    while True:
        for chunk in chunks[: choose.randrange(1, 4)]:
            shutil.copy(chunk, stream)
            chunks.remove(chunk)
        try:
            loop(world, stream, tmp_path / "model", found, crash=choose.randrange(0, 4)).run()
        except Crash:
            crashes += 1
            continue
        if not chunks:
            break
    assert crashes > 1
    assert [found[k] for k in range(len(found))] == offline
    unbroken = loop(world, world / "events", tmp_path / "unbroken", {})
    unbroken.run()
    for file in ("engine.ffm", "histories.past"):
        one, other = (Checkpoints(tmp_path / name / "online").found()[-1] / file for name in ("model", "unbroken"))
        assert one.read_bytes() == other.read_bytes()


def test_a_damaged_state_goes_back_to_the_checkpoint_before(world: Path, offline: list[Any], tmp_path: Path) -> None:
    stream, found = tmp_path / "stream", {}
    stream.mkdir()
    chunks = sorted((world / "events").iterdir())
    for chunk in chunks[:6]:
        shutil.copy(chunk, stream)
        loop(world, stream, tmp_path / "model", found).run()
    place = Checkpoints(tmp_path / "model" / "online").found()[-1] / "histories.past"
    data = bytearray(place.read_bytes())
    data[-20] ^= 1
    place.write_bytes(data)
    for chunk in chunks[6:]:
        shutil.copy(chunk, stream)
    told: list[str] = []
    again = loop(world, stream, tmp_path / "model", found)
    again.tell = told.append
    again.run()
    assert any("is damaged, so the loop continues from the previous one" in line for line in told)
    assert [found[k] for k in range(len(found))] == offline


def test_the_loop_can_begin_with_the_state_of_yesterdays_log(world: Path, tmp_path: Path) -> None:
    plan = plan_of(world / "data" / "impressions")
    state = plan.histories()
    state.read_log()
    state.save(tmp_path / "yesterday.past")
    begun = loop(world, world / "events", tmp_path / "model", found := {}, state=tmp_path / "yesterday.past")
    counts = begun.run()["counts"]
    # The stream repeats the log, so that most of its examples are older than the newest event of the state.
    assert counts["left_out"] > 0
    assert begun.histories is not None
    assert begun.histories.taken == ROWS + len(found)
    fresh = loop(world, world / "events", tmp_path / "other", {}, state=tmp_path / "nothing.past")
    with pytest.raises(Exception, match="cannot read"):
        fresh.run()


def test_a_row_that_no_history_can_take_is_left_out_and_counted(world: Path, tmp_path: Path) -> None:
    (tmp_path / "stream").mkdir()
    table = pa.concat_tables(pq.read_table(p) for p in sorted((world / "events").iterdir())[:6])
    shown = [k for k, kind in enumerate(table["event"].to_pylist()) if kind == "impression"]
    users = table["device"].to_pylist()
    users[shown[0]] = None  # the log has no null there
    table = table.set_column(table.schema.get_field_index("device"), "device", pa.array(users))
    pq.write_table(table, tmp_path / "stream" / "chunk.parquet")
    clean = loop(world, world / "events", tmp_path / "clean", {})
    found: dict[int, Any] = {}
    told = loop(world, tmp_path / "stream", tmp_path / "model", found).run()
    nulls = clean.histories is not None and not clean.plan.log.source.nullable("device")
    assert told["counts"]["left_out"] == int(nulls)


@pytest.mark.parametrize(
    ("label", "view", "message"),
    [
        (col("clicked") > 0, "log", r"read column 'clicked', from which the label is computed.*label=col\('clicked'\)"),
        (None, "clicks", r"histories of events of another view \('clicks'\)"),
    ],
)
def test_histories_that_the_loop_cannot_feed_are_refused(
    world: Path, tmp_path: Path, label: Any, view: str, message: str
) -> None:
    data = world / "data" / "impressions"
    log = log_of(data)
    if view == "clicks":
        clicks = cb.View(data, name="clicks")
        log = log.with_history(n=clicks.past(by="user_id", time="ts").count())
    plan = cb.compile(log, features(label), device="cpu", threads=1)
    engine = cb.DeepFFM(plan.schema, k=4, hidden=(4,), bits=12)
    with pytest.raises(PlanError, match=message):
        OnlineLoop(plan, engine, world / "events", tmp_path / "model")


def without_histories(world: Path) -> cb.Plan:
    return cb.compile(
        cb.View(world / "data" / "impressions", key="instance_id"),
        cb.FeatureSet(label=col("clicked"), sparse={"ad": col("ad_id").key()}),
        device="cpu",
    )


def test_a_state_is_refused_where_the_plan_has_no_histories(world: Path, tmp_path: Path) -> None:
    plan = without_histories(world)
    with pytest.raises(PlanError, match="the plan has no histories"):
        OnlineLoop(plan, cb.DeepFFM(plan.schema, bits=12), world / "events", tmp_path / "model", state="x.past")


def test_a_checkpoint_without_histories_is_told(world: Path, tmp_path: Path) -> None:
    loop(world, world / "events", tmp_path / "model", {}).run()
    for place in Checkpoints(tmp_path / "model" / "online").found():
        (place / "histories.past").unlink()
    with pytest.raises((DataError, PlanError, cb.errors.SourceError), match=r"histories\.past is missing"):
        loop(world, world / "events", tmp_path / "model", {}).run()


def test_servers_get_the_state_of_the_examples_that_were_learned(world: Path, tmp_path: Path) -> None:
    """The file that servers follow is there from the first moment, and at the end holds every example."""
    out = tmp_path / "model"
    fed: list[tuple[int, str]] = []

    def looking(self: OnlineLoop, every: float) -> None:
        publish(self, every)
        state = self.plan.histories(out / "histories.past")
        fed.append((state.taken, state.position))

    publish = OnlineLoop._publish_state
    made = loop(world, world / "events", out, {}, state_every=1e-6)
    made._publish_state = looking.__get__(made)  # type: ignore[method-assign]
    made.run()
    assert fed[0][0] == 0
    assert [taken for taken, _ in fed] == sorted(taken for taken, _ in fed)
    taken, position = fed[-1]
    assert made.histories is not None
    assert (taken, position) == (made.histories.taken, f"{made.engine.learned} examples")
    assert taken > 0
    plan = without_histories(world)
    with pytest.raises(PlanError, match="publishes the state of histories, but the plan has no histories"):
        OnlineLoop(plan, cb.DeepFFM(plan.schema, bits=12), world / "events", tmp_path / "b", state_every="5s")


def test_a_sum_that_no_float_holds_leaves_out_its_rows_and_the_loop_goes_on() -> None:
    prices = [1.7e308, 1.7e308, 1.0, 2.0, 3.0]
    table = pa.table(
        {
            "instance_id": range(5),
            "user": [1, 1, 1, 2, 2],
            "price": prices,
            "ts": pa.array([k * 1_000_000 for k in range(5)], pa.timestamp("us")),
            "clicked": [0, 1, 0, 1, 0],
        }
    )
    log = cb.View(table, key="instance_id", name="log")
    log = log.with_history(spent=cb.past(by="user", time="ts").sum("price"), n=cb.past(by="user", time="ts").count())
    log = log.with_history(more=cb.past(by="user", time="ts").sum("spent"))
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), dense={"spent": col("spent")}), device="cpu", threads=1)
    histories = histories_of(plan)
    assert histories is not None
    left: list[tuple[int, str]] = []
    columns = ["user", "price", "ts", "clicked"]
    taken, places = PastOfExamples(plan, histories).add(
        table.select(columns).to_batches()[0], None, lambda place, why: left.append((place, why))
    )
    assert left == [(2, "the sum of the values of one key does not fit into a float64")]
    assert places.tolist() == [0, 1, 3, 4]
    assert taken.column("spent").to_pylist() == [0.0, 1.7e308, 0.0, 2.0]
    assert taken.column("n").to_pylist() == [0, 1, 0, 1]
    assert not histories.broken
    assert histories.taken == 5
