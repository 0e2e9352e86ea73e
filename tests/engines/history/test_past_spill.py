"""Past events that need more memory than their budget lie on a disk: same features, same state files, bounded memory."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import DataError, PlanError, SourceError, WriteError

SMALL = 40_000  # bytes; the index of 60 keys fits, their events do not
NAMES = ["seen", "seen_age", "cities", "cities_age", "n", "spent", "warm", "since"]


def log_of(rows: int, users: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    seconds = np.sort(random.integers(0, max(1, rows // 2), rows)) - random.integers(0, 4, rows)
    return pa.table(
        {
            "user": (users * random.random(rows) ** 2).astype(np.int64),
            "ad": random.integers(0, 50, rows),
            "city": pa.array([f"city {k}" for k in random.integers(0, 30, rows)]),
            "ts": pa.array(seconds * 1_000_000, pa.timestamp("us")),
            "price": random.random(rows) * 10.0 ** random.integers(-20, 20, rows),
            "clicked": random.integers(0, 2, rows),
        }
    )


def viewed(log: pa.Table, **memory: Any) -> cb.View:
    past = cb.past(by="user", time="ts", lateness="5s", **memory)
    return cb.View(log, name="log").with_history(
        seen=past.history("ad", last=20, within="900s"),
        cities=past.history("city", last=30),
        n=past.count(within="300s"),
        spent=past.sum("price", within="600s"),
        warm=past.decayed("price", half_life="100s"),
        since=past.since(),
    )


def columns_of(view: cb.View, threads: int, rows: int, start: int = 0) -> pa.Table:
    parts = [m.rows for m in view.source.scan(NAMES, threads=threads, rows=rows, start=start)]
    return pa.Table.from_batches(parts).combine_chunks()


@settings(
    max_examples=5,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 1_000),
    users=st.integers(1, 60),
    threads=st.integers(1, 3),
    rows=st.sampled_from([1, 7, 300, 4_000]),
    budget=st.sampled_from([SMALL, 60_000, 200_000]),
)
def test_features_and_state_files_are_those_of_events_in_memory(
    tmp_path: Path, seed: int, users: int, threads: int, rows: int, budget: int
) -> None:
    log = log_of(700, users, seed)
    inside, spilled = viewed(log), viewed(log, budget=budget, spill=str(tmp_path))
    assert columns_of(spilled, threads, rows).equals(columns_of(inside, 2, 1_000))
    files = []
    for name, view in (("inside", inside), ("spilled", spilled)):
        plan = cb.compile(view, cb.FeatureSet(label=col("clicked"), dense={"n": col("n")}))
        state = plan.histories()
        state.observe(log.slice(0, 400))
        state.save(tmp_path / name)
        state = plan.histories(tmp_path / name)
        state.observe(log.slice(400))
        assert (state.bytes <= 3 * budget) or name == "inside"
        state.save(tmp_path / name)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]


def test_events_really_lie_on_the_disk_and_damage_there_is_an_error(tmp_path: Path) -> None:
    log = log_of(4_000, 60, 1)
    plan = cb.compile(
        viewed(log, budget=SMALL, spill=str(tmp_path)), cb.FeatureSet(label=col("clicked"), dense={"n": col("n")})
    )
    state = plan.histories()
    state.observe(log.slice(0, 3_000))
    assert all(mine.native.spilled_bytes > 0 for mine in state.states)
    assert all(mine.native.bytes <= SMALL for mine in state.states)
    assert not list(tmp_path.iterdir())  # the files have no names
    files = [fd for fd in Path("/proc/self/fd").iterdir() if _target(fd).startswith(f"{tmp_path}/.past-")]
    assert len(files) == 16 * len(state.states)
    for file in files:
        with file.open("r+b", buffering=0) as opened:
            content = opened.read()
            opened.seek(0)
            opened.write(bytes(byte ^ 1 for byte in content))
    with pytest.raises(SourceError, match="is damaged"):
        state.observe(log.slice(3_000))
    with pytest.raises(PlanError, match="an earlier call failed"):
        state.observe(log.slice(3_000))


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:  # it was that of the listing
        return ""


def test_a_full_disk_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    view = viewed(log_of(4_000, 60, 2), budget=SMALL, spill=str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_024, hard))  # Python ignores SIGXFSZ, so writing beyond it fails
    try:
        with pytest.raises(WriteError, match=rf"cannot write past events of .* to {tmp_path}"):
            columns_of(view, 1, 500)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_events_are_moved_again_when_a_full_disk_has_room(tmp_path: Path) -> None:
    log = log_of(4_000, 60, 2)
    features = cb.FeatureSet(label=col("clicked"), dense={"n": col("n")})
    state = cb.compile(viewed(log, budget=SMALL, spill=str(tmp_path)), features).histories()
    inside = cb.compile(viewed(log), features).histories()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_024, hard))

    def feed() -> None:
        while state.taken < 4_000:
            state.observe(log.slice(state.taken, 100))

    try:
        with pytest.raises(WriteError, match="free some space"):
            feed()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert 0 < state.taken < 4_000
    feed()
    inside.observe(log)
    for name, one in (("inside", inside), ("spilled", state)):
        one.save(tmp_path / name)
    assert (tmp_path / "spilled").read_bytes() == (tmp_path / "inside").read_bytes()
    assert all(mine.native.bytes <= 3 * SMALL for mine in state.states)


def test_a_folder_that_is_not_there_and_keys_beyond_the_budget_are_errors(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"cannot make a file in .*nowhere.*name a folder"):
        columns_of(viewed(log_of(10, 3, 0), spill=str(tmp_path / "nowhere")), 1, 10)
    many = log_of(3_000, 1_000_000, 3)
    with pytest.raises(DataError, match="their keys and texts alone, which stay in memory"):
        columns_of(viewed(many, budget=SMALL, spill=True), 1, 1_000)
    with pytest.raises(DataError, match="spill=True"):
        columns_of(viewed(many, budget=SMALL), 1, 1_000)
    with pytest.raises(PlanError, match="spill must be True or a folder"):
        cb.past(by="user", time="ts", spill=3)


def test_a_saved_plan_remembers_that_events_may_lie_on_a_disk(tmp_path: Path) -> None:
    log = log_of(2_000, 60, 4)
    plan = cb.compile(
        viewed(log, budget=SMALL, spill=str(tmp_path)), cb.FeatureSet(label=col("clicked"), dense={"n": col("n")})
    )
    plan.save(tmp_path / "plan")
    again = cb.Plan.load(tmp_path / "plan", views={"log": log})
    first, second = next(iter(plan.batches(2_000))), next(iter(again.batches(2_000)))
    assert np.array_equal(first.dense, second.dense)
    assert again.histories().states[0].folder
    assert str(tmp_path).encode() not in (tmp_path / "plan").read_bytes()
