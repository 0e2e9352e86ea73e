"""Three levels against the table in memory, bit for bit: memory for few rows on the "GPU", so that rows come and go all the time.

Kernels run on the CPU here; tests/gpu/test_levels.py runs these tests on a GPU, and has training.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.columns.batch import Batch
from ctrbox.embed.embedder import Embedder, Row
from ctrbox.embed.gpu import level_table as gpu_levels
from ctrbox.embed.gpu.batch_to_device import References
from ctrbox.embed.gpu.level_table import LevelTable
from ctrbox.embed.gpu.table_memory import slots_for
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.embed.ssd.sparse_table import SparseTable
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.errors import BudgetError, DataError, PlanError, SourceError
from ctrbox.optimizers.of_table_rows import Optimizer, RowwiseAdagrad
from tests.cuda_host import HostRuntime
from tests.embed.calls import FLOATS, bits
from tests.embed.gpu.test_gpu_pooling import batch_of_keys, expected_push
from tests.embed.gpu.test_gpu_table import SHAPES, assert_same, shapes

KEYS = st.integers(-12, 12) | st.sampled_from([-(2**63), 2**63 - 1])
USUAL = next((row, pairs[0]) for row, pairs in SHAPES if row == Row(8, True))


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return HostRuntime()


def levels(
    runtime: Runtime,
    folder: Path,
    shape: tuple[Row, tuple[Optimizer, Optimizer]] = USUAL,
    rows: int = 10,
    seed: int = 7,
) -> tuple[LevelTable, MemoryTable]:
    """A table of so many working rows, and its twin."""
    row, (optimizer, linear) = shape
    made = {"optimizer": optimizer, "linear": linear, "init": 0.05, "seed": seed}
    below, slow = SparseTable(folder, row.dim, ram="4MB", **made), MemoryTable(row.dim, **made)
    table = LevelTable(below, memory="1MB", runtime=runtime)
    for each in (table, slow):
        each.open(row)
    # What so many rows take: the budget's own sum, of a table that was never used.
    table.memory = slots_for(rows) * 16 + (rows + 1) * (table.store.row_bytes + 32)
    table._made = None
    assert table.store.capacity == rows
    return table, slow


def batch_from(keys: list[int]) -> Batch:
    return batch_of_keys({"k": np.array(keys, np.int64)}, len(keys))


def step(table: LevelTable, references: References, gradient: np.ndarray) -> None:
    reading = table.read(references, ["k"], ["sum"])
    linear = int(table.row.linear)
    outputs = [(reading.vectors, gradient[:, :, linear:])]
    if reading.weights is not None:
        outputs.append((reading.weights, gradient[:, :, 0]))
    torch.autograd.backward(
        [o for o, _ in outputs], [torch.from_numpy(np.ascontiguousarray(g)).to(table.device) for _, g in outputs]
    )
    reading.push(1.0)


def test_it_is_an_embedder(runtime: Runtime, tmp_path: Path) -> None:
    assert isinstance(levels(runtime, tmp_path)[0], Embedder)


@settings(max_examples=50, deadline=None)
@given(shapes, st.integers(5, 12), st.integers(0, 2**64 - 1), st.data())
def test_any_sequence_of_calls_equals_the_table_in_memory_bit_for_bit(
    runtime: Runtime, shape: tuple[Row, tuple[Optimizer, Optimizer]], rows: int, seed: int, data: st.DataObject
) -> None:
    row = shape[0]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        table, slow = levels(runtime, folder / "table", shape, rows, seed)
        ahead: list[tuple[Batch, References]] = []
        expected: set[int] = set()
        verbs = ["prefetch", "pull", "look", "push", "expect", "learn", "learn", "give up", "save", "restore", "wait"]
        for _ in range(data.draw(st.integers(1, 14))):
            verb = data.draw(st.sampled_from(verbs))
            keys = np.array(data.draw(st.lists(KEYS, max_size=12, unique=True)), np.int64)
            if verb == "prefetch":
                table.prefetch(keys)
                slow.prefetch(keys)
            if verb in ("pull", "look"):
                create = verb == "pull"
                mine, theirs = (each.pull(keys, create=create) for each in (table, slow))
                np.testing.assert_array_equal(bits(mine), bits(theirs))
            if verb == "push":
                some = data.draw(st.lists(FLOATS, min_size=1, max_size=40))
                g = np.resize(np.array(some, np.float32), (len(keys), row.width))
                table.push(keys, g)
                slow.push(keys, g)
            if verb == "expect" and len(ahead) < 4:
                batch = batch_from(data.draw(st.lists(st.sampled_from([0, *keys[:5].tolist()]), max_size=9)))
                ahead.append((batch, References.of(batch, ["k"], table.device)))
                expected |= set(batch.sparse["k"].values.tolist())
                if data.draw(st.booleans()):
                    table.expect(ahead[-1][1])
            if verb == "learn" and ahead:
                batch, references = ahead.pop(data.draw(st.sampled_from([0, 0, 0, -1])))
                rng = np.random.default_rng(len(batch.sparse["k"].values))
                g = rng.normal(size=(batch.rows, 1, row.width)).astype(np.float32)
                step(table, references, g)
                expected_push(slow, batch, ["k"], ["sum"], g, 1.0)
            if verb == "give up":
                ahead.clear()
            if verb == "save":
                for each in (table, slow):
                    each.save(folder / f"saved {type(each).__name__}")
            if verb == "restore" and (folder / "saved MemoryTable").exists():
                for each in (table, slow):
                    each.restore(folder / f"saved {type(each).__name__}")
            if verb == "wait":
                table.write_back()
        for each in (table, slow):  # those of a batch that was not learned may have been made
            each.prefetch(np.array([*expected], np.int64))
        assert len(table) == len(slow)
        assert_same(table, slow)
        table.checkpoint()
        table.close(checkpoint=False)
        with SparseTable.load(folder / "table", ram="4MB", read_only=True) as reopened:
            for mine, theirs in zip(reopened.export(), slow.export(), strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_many_batches_come_and_go_and_only_what_changed_is_written(runtime: Runtime, tmp_path: Path) -> None:
    table, slow = levels(runtime, tmp_path, rows=300)
    rng = np.random.default_rng(0)
    for _ in range(40):
        batch = batch_from(np.minimum(rng.zipf(1.2, 120), 10_000).tolist())
        references = References.of(batch, ["k"], table.device)
        table.expect(references)
        g = rng.normal(size=(batch.rows, 1, 9)).astype(np.float32)
        step(table, references, g)
        expected_push(slow, batch, ["k"], ["sum"], g, 1.0)
    stats = table.stats()
    assert stats["late"] == 0
    assert stats["left"] >= stats["brought"] - 300
    assert stats["written"] <= stats["left"] <= stats["brought"] < stats["asked"]
    assert_same(table, slow)
    written = table.stats()["written"]
    table.write_back()
    assert table.stats()["written"] == written


def test_a_score_creates_nothing_and_moves_nothing(runtime: Runtime, tmp_path: Path) -> None:
    table, slow = levels(runtime, tmp_path)
    for each in (table, slow):
        each.push(np.arange(1, 40), np.ones((39, 9), np.float32))
        each.prefetch(np.arange(3, 9))
    before = table.stats()
    batch = batch_from([*range(-50, 50)])
    reading = table.read(References.of(batch, ["k"], table.device), ["k"], ["sum"], train=False)
    assert reading.weights is not None
    mine = torch.cat([reading.weights.unsqueeze(2), reading.vectors], 2).cpu().numpy()
    np.testing.assert_array_equal(bits(mine[:, 0]), bits(slow.pull(batch.sparse["k"].values, create=False)))
    assert table.stats() == before
    assert len(table) == 39


# ---- room -----------------------------------------------------------------------------------------------------------


def test_batches_that_do_not_fit_together_are_brought_one_by_one(runtime: Runtime, tmp_path: Path) -> None:
    table, slow = levels(runtime, tmp_path, rows=10)
    rng = np.random.default_rng(0)
    ahead: list[tuple[Batch, References]] = []
    for k in range(60):
        # In the middle each is nearly all that there is room for; before and after three fit.
        batch = batch_from((rng.permutation(100)[: 9 if 20 <= k < 30 else 3] + 1).tolist())
        ahead.append((batch, References.of(batch, ["k"], table.device)))
        table.expect(ahead[-1][1])
        if len(ahead) == 3:
            batch, references = ahead.pop(0)
            g = rng.normal(size=(batch.rows, 1, 9)).astype(np.float32)
            step(table, references, g)
            expected_push(slow, batch, ["k"], ["sum"], g, 1.0)
    assert 10 <= table.stats()["late"] <= 14
    slow.prefetch(np.concatenate([batch.sparse["k"].values for batch, _ in ahead]))
    assert_same(table, slow)


def test_a_batch_beyond_the_memory_is_refused_with_numbers_and_changes_nothing(
    runtime: Runtime, tmp_path: Path
) -> None:
    table, slow = levels(runtime, tmp_path, rows=10)
    for each in (table, slow):
        each.prefetch(np.arange(1, 9))
        each.push(np.arange(1, 9), np.ones((8, 9), np.float32))
    references = References.of(batch_from([*range(-5, 7), 3]), ["k"], table.device)
    table.expect(references)
    with pytest.raises(
        BudgetError,
        match=rf"refers to 11 keys, but memory={table.memory:,} bytes .* only 10 rows of this table; raise memory=",
    ):
        table.read(references, ["k"], ["sum"])
    assert_same(table, slow)


def test_a_budget_without_room_for_anything_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    with SparseTable(tmp_path / "t", 4, ram="4MB") as below:
        with pytest.raises(BudgetError, match=r"100 bytes .* has no room for 1 more rows"):
            LevelTable(below, memory=100, runtime=runtime).pull(np.arange(1, 2))


# ---- failures -------------------------------------------------------------------------------------------------------


def test_a_disk_that_fails_while_rows_leave_loses_nothing(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, slow = levels(runtime, tmp_path)
    for each in (table, slow):
        each.prefetch(np.arange(1, 11))
        each.push(np.arange(1, 11), np.ones((10, 9), np.float32))

    def full(*_: Any, **__: Any) -> None:
        raise SourceError("the disk is full")

    for name in ("write", "read"):
        with monkeypatch.context() as patch:
            patch.setattr(table.below, name, full)
            with pytest.raises(SourceError, match="full"):
                table.prefetch(np.arange(20, 29))
    assert_same(table, slow)
    table.prefetch(np.arange(20, 29))
    slow.prefetch(np.arange(20, 29))
    assert_same(table, slow)


@pytest.mark.parametrize("moment", ["fill", "_enter", "rebuild"])
def test_an_interruption_leaves_every_row_where_it_can_be_found(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    table, slow = levels(runtime, tmp_path)
    for each in (table, slow):
        each.prefetch(np.arange(1, 9))
        each.push(np.arange(1, 9), np.ones((8, 9), np.float32))

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(table.store), moment, stop)
        with pytest.raises(KeyboardInterrupt):
            table.prefetch(np.arange(5, 14))
    slow.prefetch(np.arange(5, 14))
    for each in (table, slow):
        each.prefetch(np.arange(3, 12))
        each.push(np.arange(3, 14), np.ones((11, 9), np.float32))
    assert_same(table, slow)


def test_what_is_written_back_block_by_block_is_the_same(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_levels, "PART", 7)
    table, slow = levels(runtime, tmp_path, rows=40)
    for first in range(1, 200, 20):
        keys = np.arange(first, first + 35)
        for each in (table, slow):
            each.prefetch(keys)
            each.push(keys, np.full((35, 9), 0.5, np.float32))
    assert_same(table, slow)


def test_bad_arguments_are_refused_by_name(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cb\.tables\.LevelTable needs a cb\.SparseTable, .* got MemoryTable"):
        LevelTable(MemoryTable(4), runtime=runtime)  # type: ignore[arg-type]
    table, _ = levels(runtime, tmp_path / "t")
    with pytest.raises(DataError, match="key 5 is given twice"):
        table.push(np.array([5, 6, 5]), np.ones((3, 9), np.float32))
    with pytest.raises(DataError, match=r"gradient of key 6 is nan"):
        table.push(np.array([5, 6]), np.array([[0.0] * 9, [np.nan] * 9], np.float32))
    with pytest.raises(DataError, match=r"expected gradients of shape \(2, 9\) float32"):
        table.push(np.arange(2), np.zeros((2, 8), np.float32))
    with pytest.raises(PlanError, match="needs a folder of its own"):
        table.like(Row(4))
    table.pull(np.arange(1, 3))
    with pytest.raises(PlanError, match="holds 2 rows of dim=8, linear, but the model reads dim=3"):
        table.open(Row(3))
    with table:
        assert "LevelTable(SparseTable(" in repr(table)
    with pytest.raises(PlanError, match="closed"):
        table.pull(np.arange(1, 3))
    with SparseTable.load(tmp_path / "t", read_only=True) as below, pytest.raises(PlanError, match="read_only=True"):
        LevelTable(below, runtime=runtime)
    again = LevelTable.load(tmp_path / "t", ram="4MB", memory="1MB", runtime=runtime)
    assert len(again) == 2
    again.close()


def test_another_shape_is_taken_while_the_table_is_empty(runtime: Runtime, tmp_path: Path) -> None:
    below = SparseTable(tmp_path / "t", 4, ram="4MB", optimizer=RowwiseAdagrad())
    table, slow = LevelTable(below, memory="1MB", runtime=runtime), MemoryTable(4, optimizer=RowwiseAdagrad())
    table.pull(np.zeros(0, np.int64))
    for each in (table, slow):
        each.open(Row(4, True))
        each.prefetch(np.arange(1, 5))
        each.push(np.arange(1, 9), np.ones((8, 5), np.float32))
    assert_same(table, slow)
