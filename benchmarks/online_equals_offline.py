"""Are the history columns the same online and offline, bit for bit, through kill -9?

    python -m benchmarks.online_equals_offline            1,000,000 events
    python -m benchmarks.online_equals_offline --quick    20,000 events

An ad log is made, and its events: impressions and clicks, out of order, clicks with their delays. Online, a loop learns from
them in a process of its own, which is killed with SIGKILL at random moments and started again until nothing is left; it writes
down the features of every example that it learns from, also of those that it learns from again after a kill. Offline, a training
log is written from the same events with plain Arrow and NumPy (impressions by time, each with its label), and `plan.batches`
computes its features. Every feature of every example is compared by its bits, and so is what both states of histories answer.

Last line: one JSON object; ``differences`` must be 0.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import ctrbox as cb
from benchmarks import report
from ctrbox import col
from ctrbox.columns.batch import Batch
from ctrbox.datasets import adlog, adlog_events
from ctrbox.loop.checkpoint import Checkpoints
from ctrbox.loop.learn_events import Learner
from ctrbox.loop.online_loop import OnlineLoop

WINDOW_S, LATENESS_S = 3600, 240
SPARSE = ("user", "ad", "seen", "clicked_ads")


def plan_of(data: Any) -> cb.Plan:
    """Return a plan with two histories, six counters and a second step that reads what the first one made."""
    user, ad = cb.past(by="user_id", time="ts", gap="10m"), cb.past(by="ad_id", time="ts")
    clicked = cb.past(by=["user_id", "device"], time="ts", where=col("clicked") == 1, gap="1h")
    log = (
        cb.View(data, key="instance_id", name="log")
        .fill(price=0.0)
        .with_history(
            seen=cb.history("ad_id", by="user_id", time="ts", last=20, within="6h", gap="1m"),
            clicks=cb.history("ad_id", by="user_id", time="ts", where=col("clicked") == 1, last=50, gap="1h"),
            shows=user.count(within="2h"),
            rate=ad.mean("clicked", within="1d"),
            spent=user.decayed("price", half_life="1h"),
            paid=ad.sum("price", within="30m"),
            since=clicked.since(),
        )
        .with_history(busy=cb.past(by="device", time="ts").sum("shows", within="1h"))
    )
    features = cb.FeatureSet(
        label=col("clicked"),
        sparse={
            "user": col("user_id").key(),
            "ad": col("ad_id").key(),
            "seen": col("seen").key(space="ad"),
            "clicked_ads": col("clicks").key(space="ad"),
        },
        dense={
            "shows": col("shows"),
            "rate": col("rate").fill(-1.0),
            "spent": col("spent"),
            "paid": col("paid"),
            "since": col("since").fill(-1.0),
            "busy": col("busy"),
        },
    )
    return cb.compile(log, features, device="cpu", threads=1)


# ---- online: a process that is killed


class Written:
    """A plan that writes down the features of what it ran, with the number of the first example."""

    def __init__(self, plan: cb.Plan, place: Path) -> None:
        self.plan, self.features, self.place = plan, plan.features, place
        self.learner: Learner | None = None

    def run(self, rows: Any) -> Batch:
        batch = self.plan.run(rows)
        assert self.learner is not None
        first = self.learner.engine.learned
        aside = self.place / f".{os.getpid()}"
        with pa.ipc.new_file(str(aside), (table := table_of(batch)).schema) as file:
            file.write_table(table)
        aside.rename(self.place / f"{first:010}-{os.getpid()}-{time.monotonic_ns()}.arrow")
        return batch


class Writing(OnlineLoop):
    place: Path

    def _fresh(self) -> Learner:
        learner = super()._fresh()
        plan = Written(self.plan, self.place)
        learner.plan, plan.learner = plan, learner  # type: ignore[assignment]
        return learner


def table_of(batch: Batch) -> pa.Table:
    """Return the features of a batch as integers, so that equal means equal bits."""
    dense = np.ascontiguousarray(batch.dense).view(np.uint32)
    columns: dict[str, pa.Array] = {f"dense {k}": pa.array(dense[:, k]) for k in range(dense.shape[1])}
    for name in SPARSE:
        ragged = batch.sparse[name]
        columns[name] = pa.LargeListArray.from_arrays(
            pa.array(ragged.offsets.astype(np.int64)), pa.array(ragged.values)
        )
    return pa.table(columns)


def learn(data: Path, events: Path, model: Path, place: Path) -> None:
    plan = plan_of(data / "impressions")
    engine = cb.DeepFFM(plan.schema, k=4, hidden=(4,), bits=14)
    Writing.place = place
    options: dict[str, Any] = {"window": f"{WINDOW_S}s", "lateness": f"{LATENESS_S}s", "every": "1h"}
    Writing(plan, engine, events, model, once=True, checkpoint="1s", checkpoint_share=0.3, **options).run()


def online(world: Path, kills: int, seed: int, shortest: float, longest: float) -> tuple[int, float]:
    """Learn from the events, killed at random moments; return how often, and the seconds."""
    choose, began, killed = random.Random(seed), time.perf_counter(), 0
    (world / "written").mkdir()
    command = [sys.executable, "-m", "benchmarks.online_equals_offline", "--learn", str(world)]
    while True:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
            try:
                _, said = child.communicate(timeout=choose.uniform(shortest, longest) if killed < kills else None)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                killed += 1
                continue
        if child.returncode:
            raise RuntimeError(f"the loop ended with {child.returncode}: {said[-2000:]}")
        return killed, time.perf_counter() - began


# ---- offline: a training log of the same events


def training_log(world: Path) -> pa.Table:
    """Return the impressions whose window has passed, by time and arrival, with their labels; plain Arrow and NumPy."""
    events = pa.concat_tables([pq.read_table(path) for path in sorted((world / "events").iterdir())])
    kinds = np.array(events["event"].to_pylist())
    times = events["ts"].cast(pa.timestamp("us")).to_numpy().astype(np.int64)
    ids = events["instance_id"].to_numpy()
    shown, clicked = np.flatnonzero(kinds == "impression"), np.flatnonzero(kinds == "click")
    order = np.argsort(ids[clicked], kind="stable")
    known = ids[clicked][order]
    place = np.minimum(np.searchsorted(known, ids[shown]), len(known) - 1)
    delay = times[clicked][order][place] - times[shown]
    label = (known[place] == ids[shown]) & (delay >= 0) & (delay <= WINDOW_S * 1_000_000)
    passed = times.max() - times[shown] > (WINDOW_S + LATENESS_S) * 1_000_000
    at = np.argsort(times[shown], kind="stable")
    at = at[passed[at]]
    schema = pq.read_schema(next((world / "data" / "impressions").glob("*.parquet")))
    log = events.take(pa.array(shown[at]))
    columns = {n: log[n].cast(schema.field(n).type) for n in schema.names if n != "clicked"}
    columns["clicked"] = pa.array(label[at]).cast(schema.field("clicked").type)
    return pa.table(columns)


def compared(world: Path, offline: list[pa.Table]) -> tuple[int, int, int, int]:
    """Return how many examples were compared, how many again after a kill, how many features, and how many differ."""
    whole = pa.concat_tables(offline).combine_chunks()
    seen, again, differences = np.zeros(len(whole), bool), 0, 0
    for path in sorted((world / "written").glob("*.arrow")):
        with pa.ipc.open_file(str(path)) as file:
            part = file.read_all()
        first = int(path.name[:10])
        expected = whole.slice(first, len(part))
        again += int(seen[first : first + len(part)].sum())
        seen[first : first + len(part)] = True
        for name in whole.column_names:
            mine, theirs = (t[name].combine_chunks() for t in (part, expected))
            if not mine.equals(theirs):
                differences += sum(a != b for a, b in zip(mine.to_pylist(), theirs.to_pylist(), strict=False)) or 1
                print(f"different: {name} in {path.name}", flush=True)
    missing = int((~seen).sum())
    return int(seen.sum()), again, whole.num_columns, differences + missing


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--rows", type=int, default=0, help="impressions of the ad log; default: for a million events")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="folder to work in; default: a temporary one")
    parser.add_argument("--learn", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.learn is not None:
        learn(asked.learn / "data", asked.learn / "events", asked.learn / "model", asked.learn / "written")
        return
    rows = asked.rows or (18_000 if asked.quick else 950_000)
    with tempfile.TemporaryDirectory() as temporary:
        world = asked.out or Path(temporary)
        adlog(rows=rows, seed=asked.seed, out=world / "data", days=2)
        events = adlog_events(world / "data", world / "events", chunk_rows=20_000, click_delay_s=1200, disorder_s=200)
        print(f"{events:,} events of {rows:,} impressions", flush=True)
        shortest, longest = (4.0, 9.0) if asked.quick else (10.0, 35.0)
        kills, seconds = online(
            world, min(asked.kills, 4) if asked.quick else asked.kills, asked.seed, shortest, longest
        )
        print(f"online: {kills} times killed, {seconds:.1f} s", flush=True)
        began = time.perf_counter()
        log = training_log(world)
        plan = plan_of(world / "data" / "impressions").over(log)
        offline = [table_of(batch) for batch in plan.batches(65_536)]
        print(f"offline: {len(log):,} examples, {time.perf_counter() - began:.1f} s", flush=True)
        examples, again, features, differences = compared(world, offline)
        state = plan.histories()
        state.read_log()
        state.save(world / "offline.past")
        kept = Checkpoints(world / "model" / "online").found()[-1] / "histories.past"
        same_answers = answers(plan, world / "offline.past") == answers(plan, kept)
        print(
            f"{examples:,} examples of {features} features compared, {again:,} of them again after a kill: "
            f"{differences} differences; states {'equal' if same_answers else 'DIFFERENT'}",
            flush=True,
        )
        if asked.out:
            shutil.rmtree(world / "written")
    counts = {
        "events": events,
        "again": again,
        "features": features,
        "kills": kills,
        "seconds_online": round(seconds, 1),
    }
    report.finish(examples, {}, "examples compared", differences=differences, states_equal=same_answers, **counts)
    if differences or not same_answers or not examples:
        sys.exit(1)


def answers(plan: cb.Plan, file: Path) -> list[Any]:
    """Return what requests after the end would see, for many users and ads."""
    state = plan.histories(file)
    assert state.newest is not None
    moment = np.datetime64(state.newest + 7_000_000, "us")
    rows = pa.table(
        {
            "user_id": np.arange(500),
            "ad_id": np.arange(500) % 97,
            "device": pa.array((["ios", "android", "web"] * 167)[:500]),
            "ts": pa.array([moment] * 500, pa.timestamp("us")),
        }
    )
    return [repr(row) for row in state.columns_of(rows).to_pylist()]


if __name__ == "__main__":
    main()
