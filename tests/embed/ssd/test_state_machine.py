"""Random sequences of everything a table can do, compared with the table in memory, bit for bit.

Some hundred keys and a budget that holds a part of them, so that rows leave, runs are written and merged all the time. A
crash is a copy of the folder taken while the table is open, with or without the bytes that came after the last
checkpoint; what is opened from it must be the twin as it was at that checkpoint.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import ctrbox as cb
from ctrbox import _native
from ctrbox.embed.embedder import Row
from ctrbox.embed.row_lifetime import life_of
from ctrbox.embed.settings_of_tables import shape_of
from ctrbox.embed.ssd.sparse_table import POLICIES

# Over the least a table takes, which is that of some thousand rows.
RAMS = [1.0, 1.3, 3.0]
OPTIMIZERS = [
    cb.Adagrad(lr=0.05),
    cb.optim.SGD(lr=0.3, l2=0.01),
    cb.optim.RowwiseAdagrad(lr=0.2, initial=0.5),
    cb.optim.Adam(lr=0.01),
    cb.optim.FTRL(alpha=0.5, beta=0.1, l1=0.05, l2=0.3),
]
ADMISSIONS = [None, None, cb.tables.Admission(count=2, sketch=4096), cb.tables.Admission(probability=0.5)]
# In memory a sync costs nothing: 5 s instead of 40. Real disks are for test_crash.py.
QUICK_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32)]
POOL = np.unique(np.append(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 3000), EXTREMES))

# A call's keys are drawn by a seed: hypothesis shrinks the number of them and the sequence of calls.
SEEDS = st.integers(0, 2**32 - 1)
COUNTS = st.sampled_from([1, 60, 0, 7, 60])

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def bits(array: np.ndarray) -> np.ndarray:
    """Floats as integers, every NaN the same: equal means the same bits."""
    if array.dtype != np.float32:
        return array
    return np.where(np.isnan(array), np.float32(np.nan), array).view(np.uint32)


def assert_same(found: Rows, expected: Rows) -> None:
    for mine, right in zip(found, expected, strict=True):
        assert mine.dtype == right.dtype
        np.testing.assert_array_equal(bits(mine), bits(right))


class SparseTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="ctrbox-machine-", dir=QUICK_DISK))
        self.folder = self.place / "table-0"
        self.opened = 0

    @initialize(
        dim=st.sampled_from([40, 3, 24]),
        linear=st.booleans(),
        optimizer=st.sampled_from(OPTIMIZERS),
        weights=st.sampled_from(OPTIMIZERS),
        ram=st.sampled_from(RAMS),
        threads=st.sampled_from([1, 2, None]),
        policy=st.sampled_from(POLICIES),
        counters=st.sampled_from([None, cb.tables.Counters(0.8)]),
        admission=st.sampled_from(ADMISSIONS),
        warm=st.sampled_from([50, 0, 90]),
    )
    def begin(
        self,
        dim: int,
        linear: bool,
        optimizer: Any,
        weights: Any,
        ram: float,
        threads: int | None,
        policy: str,
        counters: cb.tables.Counters | None,
        admission: cb.tables.Admission | None,
        warm: int,
    ) -> None:
        self.row, self.policy = Row(dim, linear), policy
        self.settings = {"optimizer": optimizer, "linear": weights, "init": 0.05, "seed": 9, "threads": threads}
        self.settings |= {"counters": counters, "admission": admission}
        self.life = life_of(counters, admission)
        self.twin = cb.MemoryTable(dim, **self.settings)
        self.twin.open(self.row)
        self.version = 0
        self.changed: dict[int, int] = {}  # key → the checkpoint that will hold its last change first
        self.snapshots: dict[int, Rows] = {0: self.twin.export()}
        self.table = self.open(self.folder, ram)
        self.commit()
        self.train(0, warm)

    def open(self, folder: Path, ram: float) -> cb.SparseTable:
        more = {"segment_bytes": 1 << 17, "policy": self.policy}
        table = cb.SparseTable(folder, self.row.dim, ram=self.bytes(ram), **more, **self.settings)
        table.open(self.row)
        return table

    def bytes(self, ram: float) -> int:
        shape = shape_of(self.row, self.settings["linear"], self.settings["optimizer"], 0.05, 9, self.life)
        return int(ram * _native.SparseTable.ram_bounds(shape, self.policy)[0])

    def commit(self) -> None:
        """The twin and the files as they are at a checkpoint."""
        self.version = self.table.version
        self.twin.save(self.place / "twin")
        self.committed = self.twin.export()
        self.snapshots[self.version] = self.committed
        self.changed_then = dict(self.changed)
        self.synced = self.sizes()

    def revert(self) -> None:
        """The twin goes back to the last checkpoint."""
        self.twin.restore(self.place / "twin")
        self.changed = dict(self.changed_then)

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]

    def sizes(self) -> dict[Path, int]:
        """Return the size of each file. A compaction in the background may remove a file after it was listed."""
        found = {}
        for path in self.files():
            with contextlib.suppress(FileNotFoundError):
                found[path] = path.stat().st_size
        return found

    def keys(self, seed: int, count: int, repeat: bool = False) -> np.ndarray:
        rng = np.random.default_rng(seed)
        near = rng.integers(0, len(POOL))  # neighbors half of the time: some rows become old
        chosen = rng.choice(np.roll(POOL, near)[:100] if seed % 2 else POOL, count, replace=False)
        return np.append(chosen, chosen[: count // 3]) if repeat else chosen

    def gradients(self, seed: int, keys: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng((seed, 1))
        return (rng.normal(size=(len(keys), self.row.width)) * 10.0 ** rng.integers(-6, 2)).astype(np.float32)

    def touch(self, keys: np.ndarray) -> None:
        for key in keys.tolist():
            if key:
                self.changed[key] = self.version + 1

    # ---- the contract

    @rule(seed=SEEDS, count=COUNTS, create=st.booleans(), repeat=st.booleans())
    def pull(self, seed: int, count: int, create: bool, repeat: bool) -> None:
        keys = self.keys(seed, count, repeat)
        if create:
            self.touch(np.array([key for key in keys if int(key) not in self.changed], np.int64))
        found, right = self.table.pull(keys, create=create), self.twin.pull(keys, create=create)
        np.testing.assert_array_equal(bits(found), bits(right))

    @rule(seed=SEEDS, count=COUNTS, repeat=st.booleans())
    def push(self, seed: int, count: int, repeat: bool) -> None:
        keys = self.keys(seed, count, repeat)
        gradients = self.gradients(seed, keys)
        shows = np.random.default_rng(seed).integers(0, 4, len(keys))
        for table in (self.table, self.twin):
            table.push(keys, gradients, shows=shows, clicks=shows // 2)
        self.touch(keys)

    @rule(seed=SEEDS, count=COUNTS)
    def prefetch(self, seed: int, count: int) -> None:
        keys = self.keys(seed, count)
        self.touch(np.array([key for key in keys if int(key) not in self.changed], np.int64))
        self.table.prefetch(keys, next_use=self.next_use(seed, keys))
        self.twin.prefetch(keys)

    def next_use(self, seed: int, keys: np.ndarray) -> np.ndarray | None:
        """Of half of the batches something is said, most of it untrue: it may change what stays in memory, and no row."""
        return np.random.default_rng(seed).integers(0, 256, len(keys), np.uint8) if seed % 2 else None

    @rule(seed=SEEDS, batches=st.sampled_from([5, 1, 30]))
    def train(self, seed: int, batches: int) -> None:
        for number in range(batches):
            keys = self.keys(seed + number, 60)
            gradients = self.gradients(seed + number, keys)
            self.table.prefetch(keys, next_use=self.next_use(seed + number, keys))
            self.twin.prefetch(keys)
            for table in (self.table, self.twin):
                table.push(keys, gradients + table.pull(keys))
            self.touch(keys)

    @rule(seed=SEEDS, count=st.sampled_from([1, 60]), bad=st.sampled_from([np.nan, np.inf, -np.inf]))
    def push_what_is_not_finite(self, seed: int, count: int, bad: float) -> None:
        keys = self.keys(seed, count)
        at = random.Random(seed).randrange(count)
        if keys[at] == 0:
            return
        gradients = self.gradients(seed, keys)
        gradients[at, -1] = bad
        with pytest.raises(cb.errors.DataError, match=str(keys[at])):
            self.table.push(keys, gradients)

    @rule(seed=SEEDS)
    def call_with_keys_of_another_kind(self, seed: int) -> None:
        keys = self.keys(seed, 7)
        for wrong in (keys.astype(np.float64), keys.astype(np.uint64), keys.reshape(1, -1)):
            with pytest.raises(cb.errors.DataError):
                self.table.pull(wrong)  # type: ignore[arg-type]
        with pytest.raises(cb.errors.DataError):
            self.table.push(keys, np.zeros((7, self.row.width + 1), np.float32))

    # ---- how rows go

    @precondition(lambda self: self.life[0] > 0)
    @rule(periods=st.sampled_from([1, 3]))
    def advance(self, periods: int) -> None:
        for table in (self.table, self.twin):
            table.advance(periods)

    @precondition(lambda self: self.life[0] > 0)
    @rule(unseen=st.sampled_from([None, 0, 2]), score=st.sampled_from([0.05, 0.4]))
    def expire(self, unseen: int | None, score: float) -> None:
        before = self.twin.export()[0]
        gone = [table.expire(unseen=unseen, score=score) for table in (self.table, self.twin)]
        after = self.twin.export()[0]
        assert gone == [len(before) - len(after)] * 2
        for key in np.setdiff1d(before, after).tolist():
            del self.changed[key]

    # ---- what a table does to itself

    @rule()
    def flush(self) -> None:
        self.table.flush()

    @rule()
    def compact(self) -> None:
        self.table.compact()

    @rule()
    def verify(self) -> None:
        assert self.table.verify() == []

    @rule()
    def checkpoint(self) -> None:
        assert self.table.checkpoint() == self.version + 1 == self.table.version
        self.commit()

    @rule()
    def export(self) -> None:
        assert_same(self.table.export(), self.twin.export())

    @precondition(lambda self: self.version > 0)
    @rule(pick=SEEDS)
    def export_what_changed_since(self, pick: int) -> None:
        versions = sorted(self.snapshots)
        since = versions[pick % len(versions)]
        keys, values, states = self.table.export(since=since)
        now = self.twin.export()
        at = np.searchsorted(now[0], keys)
        assert_same((keys, values, states), (now[0][at], now[1][at], now[2][at]))
        then = self.snapshots[since]
        same = np.isin(now[0], then[0])
        for mine, old in zip(now[1:], then[1:], strict=True):
            if mine.shape[1]:
                equal = (bits(mine[same]) == bits(old[np.searchsorted(then[0], now[0][same])])).all(axis=1)
                assert np.isin(now[0][same][~equal], keys).all()
        assert np.isin(now[0][~same], keys).all()
        assert all(self.changed[key] > since for key in keys.tolist())

    # ---- ends and beginnings

    @rule(checkpoint=st.booleans(), ram=st.sampled_from(RAMS))
    def close_and_open(self, checkpoint: bool, ram: float) -> None:
        self.table.close(checkpoint=checkpoint)
        if not checkpoint:
            self.revert()
        self.table = self.open(self.folder, ram)
        if checkpoint:
            self.commit()

    @rule(ram=st.sampled_from(RAMS))
    def drop_without_a_checkpoint(self, ram: float) -> None:
        del self.table
        gc.collect()
        self.revert()
        self.table = self.open(self.folder, ram)
        assert_same(self.table.export(), self.twin.export())

    @rule(seed=SEEDS, ram=st.sampled_from(RAMS), lose=st.booleans(), go_on=st.booleans())
    def crash(self, seed: int, ram: float, lose: bool, go_on: bool) -> None:
        self.opened += 1
        copy = self.place / f"table-{self.opened}"
        self.copied(copy, random.Random(seed) if lose else None)
        table = self.open(copy, ram)
        assert table.verify() == []
        assert_same(table.export(), self.committed)
        keys = self.committed[0][:60]
        np.testing.assert_array_equal(bits(table.pull(keys, create=False)), bits(self.committed[1][:60]))
        assert len(table) == len(self.committed[0])
        if not go_on:
            table.close(checkpoint=False)
            shutil.rmtree(copy)
            return
        self.table.close(checkpoint=False)
        shutil.rmtree(self.folder)
        self.folder, self.table = copy, table
        self.revert()
        self.synced = self.sizes()

    def copied(self, to: Path, rng: random.Random | None) -> None:
        """The files as they are, or without some of the bytes that came after the last checkpoint."""
        for path in self.files():
            target = to / path.relative_to(self.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                data = bytearray(path.read_bytes())
            except FileNotFoundError:  # removed by a compaction just now
                continue
            kept = self.synced.get(path)
            if rng is not None and kept is None and rng.random() < 0.5:
                continue
            if rng is not None and path.name != "LOCK":
                for page in range((kept or 0) // 4096 * 4096, len(data), 4096):
                    if rng.random() < 0.5:
                        start = max(page, kept or 0)
                        data[start : page + 4096] = bytes(len(data[start : page + 4096]))
                if rng.random() < 0.5:
                    data = data[: rng.randrange(kept or 0, len(data) + 1)]
            target.write_bytes(data)
        (to / "segments").mkdir(parents=True, exist_ok=True)

    @rule(ram=st.sampled_from(RAMS))
    def save_and_load(self, ram: float) -> None:
        self.opened += 1
        self.table.save(self.place / f"saved-{self.opened}")  # a checkpoint here as well
        self.commit()
        with cb.SparseTable.load(self.place / f"saved-{self.opened}", ram=self.bytes(ram), policy=self.policy) as other:
            assert other.row == self.row
            assert_same(other.export(), self.twin.export())
            assert other.verify() == []
        shutil.rmtree(self.place / f"saved-{self.opened}")

    @rule(seed=SEEDS, checkpoint=st.booleans())
    def save_and_restore(self, seed: int, checkpoint: bool) -> None:
        self.opened += 1
        self.table.save(self.place / f"saved-{self.opened}")
        self.commit()
        changed, snapshots, saved = self.changed_then, dict(self.snapshots), self.committed
        self.twin.save(self.place / "saved-twin")
        self.train(seed, 3)
        if checkpoint:
            self.checkpoint()
        self.table.restore(self.place / f"saved-{self.opened}")
        self.twin.restore(self.place / "saved-twin")
        self.changed, self.snapshots = dict(changed), snapshots  # numbers of later checkpoints are given again
        assert_same(self.table.export(), saved)
        self.commit()
        shutil.rmtree(self.place / f"saved-{self.opened}")

    @invariant()
    def as_many_keys_as_the_twin(self) -> None:
        if hasattr(self, "twin"):
            assert len(self.table) == len(self.twin)

    def teardown(self) -> None:
        if hasattr(self, "table"):
            assert_same(self.table.export(), self.twin.export())
            self.table.close(checkpoint=False)
        shutil.rmtree(self.place)


SparseTableMachine.TestCase.settings = settings(
    max_examples=14, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSparseTable = SparseTableMachine.TestCase


class LongSparseTableMachine(SparseTableMachine):
    pass


LongSparseTableMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.exhaustive
class TestSparseTableAtLength(LongSparseTableMachine.TestCase):  # type: ignore[misc,name-defined]
    pass
