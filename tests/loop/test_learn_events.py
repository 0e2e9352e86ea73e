"""A learner by hand: how many examples it takes at once, rows that the plan refuses or drops, and its state in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.loop import learn_events
from ctrbox.loop.decode_events import Events, Layout
from ctrbox.loop.join import Join
from ctrbox.loop.learn_events import Learner
from ctrbox.loop.online_model import OnlineFfm
from ctrbox.loop.status import NAMED, Complaints

LOG = pa.table({"id": [1], "ts": pa.array([0], pa.timestamp("us")), "ad": [1], "price": [1.0], "clicked": [0]})
COLUMNS = pa.schema([("ad", pa.int64()), ("price", pa.float64())])
LAYOUT = Layout(COLUMNS, "id", "ts", id_type=pa.int64())


class World:
    """A learner whose join makes an example of each impression when the next one comes."""

    def __init__(self) -> None:
        log = cb.View(LOG, key="id", name="log").filter(col("ad") >= 0)
        features = cb.FeatureSet(
            label=col("clicked"), sparse={"ad": col("ad").key(), "price": col("price").bucketize([2.0])}
        )
        self.plan = cb.compile(log, features, device="cpu", threads=1)
        self.bad: list[tuple[str, int, str]] = []
        model = OnlineFfm(cb.DeepFFM(self.plan.schema, bits=6, k=1, hidden=()))
        self.learner = Learner(self.plan, model, Join(LAYOUT, 0), lambda *told: self.bad.append(told))

    @property
    def engine(self) -> Any:
        return self.learner.engine

    def add(self, ads: list[int], prices: list[float | None], at: int = 0) -> None:
        """Add one impression a microsecond; the last one is never an example, because its window does not end."""
        count = len(ads) + 1
        rows = pa.RecordBatch.from_arrays([pa.array([*ads, 0]), pa.array([*prices, 0.0], pa.float64())], schema=COLUMNS)
        times = np.arange(at, at + count)
        self.learner.add(Events(np.zeros(count, bool), times, times.tolist(), rows, "chunk", 100 + np.arange(count)))


def test_examples_are_learned_in_parts_of_at_most_so_many() -> None:
    world = World()
    assert not world.learner.waiting
    world.learner.learn(5)
    world.add([], [])
    assert not world.learner.waiting
    world.add([1] * 10, [1.0] * 10, 1)
    for most, learned in ((3, 4), (1, 5), (0, 6), (None, 11)):
        before = world.engine.learned
        assert world.learner.waiting
        if before == 0:
            world.learner.learn(1)  # the example of the call before
            assert world.engine.learned == 1
        world.learner.learn(most)
        assert world.engine.learned == learned
    assert not world.learner.waiting


def test_no_more_rows_than_a_block_are_learned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn_events, "ROWS", 4)
    world = World()
    world.add([1] * 10, [1.0] * 10)
    for learned in (4, 8, 10):
        world.learner.learn(100)
        assert world.engine.learned == learned
    assert not world.learner.waiting


def test_rows_that_the_plan_refuses_are_named_and_those_that_it_drops_are_counted() -> None:
    world = World()
    world.add([1, -1, 2, 3, -1, 4, 5], [1.0, 1.0, None, 1.0, None, 1.0, None])
    world.learner.learn()
    assert [(chunk, row) for chunk, row, _ in world.bad] == [("chunk", 102), ("chunk", 106)]
    assert {why for _, _, why in world.bad} == {
        "column 'price' is null, but the plan was built on data where it never is; give every row a value, or add "
        ".fill(price=…) to its view"
    }
    assert (world.engine.learned, world.learner.refused, world.learner.dropped) == (3, 2, 2)


def test_past_rows_have_labels_of_their_own_and_the_rows_of_their_file() -> None:
    world = World()
    past = pa.record_batch({"ad": [1, -1, 2], "price": pa.array([1.0, 1.0, None]), "clicked": [1, 0, 1]})
    world.learner.learn_past(past, "past.parquet", 50)
    assert (world.engine.learned, world.engine.progress.clicks, world.learner.dropped) == (1, 1, 1)
    assert [(chunk, row) for chunk, row, _ in world.bad] == [("past.parquet", 52)]


def test_examples_that_wait_are_in_a_checkpoint_with_their_labels_and_places() -> None:
    world = World()
    rows = pa.RecordBatch.from_arrays([pa.array([1, 1, 2, 0]), pa.array([1.0, 1.0, None, 0.0])], schema=COLUMNS)
    clicks = np.array([False, True, False, False])
    world.learner.add(Events(clicks, np.array([0, 0, 5, 9]), [1, 1, 2, 3], rows, "chunk", np.array([7, 8, 9, 10])))
    numbers, tables = world.learner.state()
    assert (numbers["learned"], numbers["dropped"], numbers["refused"]) == (0, 0, 0)
    ready = tables["ready"].to_pydict()
    assert (ready["ad"], ready["price"]) == ([1, 2], [1.0, None])
    assert [ready[name] for name in tables["ready"].schema.names[2:]] == [[1.0, 0.0], ["chunk", "chunk"], [7, 9]]
    again = World()
    again.learner.restore({**numbers, "dropped": 4, "refused": 5}, tables)
    again.learner.learn()
    assert (again.learner.dropped, again.learner.refused) == (4, 6)
    assert [(chunk, row) for chunk, row, _ in again.bad] == [("chunk", 9)]
    assert (again.engine.learned, again.engine.progress.clicks) == (1, 1)
    empty = World()
    empty.learner.restore(*World().learner.state())
    assert not empty.learner.waiting


def test_only_the_first_rows_that_are_left_out_are_told(tmp_path: Path) -> None:
    told: list[str] = []
    complaints = Complaints(told.append, tmp_path / "refused.jsonl")
    for row in range(NAMED + 2):
        complaints.line("a.jsonl" if row % 2 else "", row, "no time")
    lines = [f"skipped: {'a.jsonl line ' + str(row + 1) + ': ' if row % 2 else ''}no time" for row in range(NAMED)]
    assert told == [*lines, "further skipped events of this kind are only counted"]
    assert (complaints.lines, complaints.chunks) == (NAMED + 2, 0)
    complaints.chunk("b.parquet", "cut off")
    assert told[-1] == "refused: chunk b.parquet: cut off"
    assert '"chunk": "b.parquet", "why": "cut off"' in (tmp_path / "refused.jsonl").read_text()
    assert complaints.chunks == 1
