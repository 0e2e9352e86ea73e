"""Batches read far ahead: next uses as a dictionary finds them, the same items and errors, nothing left on disk, the same
weights, and more rows found in memory."""

from __future__ import annotations

import resource
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.train.look_ahead import look_ahead
from tests.train.test_run_folder import Stop, StopAt
from tests.train.test_sparse_training import RAM, told_at_every_step
from tests.train.worlds import FAST, Small, checkerboard, plan_of, table, weights
from tests.twins.next_use import next_uses

KEYS = st.one_of(st.integers(-5, 5), st.sampled_from([2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1))


def ordered(keys: list[int]) -> np.ndarray:
    """As lookups have them: each once, by shard."""
    found = _native.Lookup.of([(np.array(keys, np.int64), None)], len(keys), 1)
    return np.asarray(found.keys).copy()


class KeysAlone:
    """Items that are their keys; None asks for nothing."""

    def pack(self, item: Any) -> Any:
        return item, [] if item is None else [item], [] if item is None else [item, item[::2]]

    def unpack(self, kept: Any, arrays: list[np.ndarray]) -> Any:
        return None if kept is None else arrays[0]


# ---- next uses ------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.lists(KEYS, max_size=12), max_size=12), st.data())
def test_next_uses_are_those_of_a_dictionary(batches: list[list[int]], data: st.DataObject) -> None:
    answered = data.draw(st.integers(0, len(batches)))
    found = _native.next_uses([np.array(b, np.int64) for b in batches], answered)
    assert [f.tolist() for f in found] == next_uses(batches)[:answered]


def test_next_uses_of_many_keys_and_far_ones() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.zipf(1.3, 5000).clip(0, 10**9) for _ in range(150)]
    batches[3][0] = batches[140][0] = 77_777_777_777  # 137 batches apart
    found = _native.next_uses(batches, 60)
    assert [f.tolist() for f in found] == next_uses([b.tolist() for b in batches])[:60]
    assert found[3][0] == 0
    with pytest.raises(ValueError, match="more batches than there are"):
        _native.next_uses(batches, 151)


def test_bounds_of_shards_are_refused_where_keys_are_in_no_order() -> None:
    keys = ordered(list(range(1, 2000)))
    bounds = _native.shard_bounds(keys)
    assert len(bounds) == 65
    assert bounds[0] == 0
    assert bounds[-1] == len(keys)
    assert list(bounds) == sorted(bounds)
    with pytest.raises(ValueError, match="not in the order of their shards"):
        _native.shard_bounds(keys[::-1].copy())


# ---- items ----------------------------------------------------------------------------------------------------------


def told(batches: list[Any], window: int) -> list[list[int]]:
    """By the blocks of the design: 1, 2, 4 … batches, each of which sees to the end of the next."""
    asked = [None if b is None else b.tolist() for b in batches]
    out: list[list[int]] = []
    begin, size = 0, 1
    while begin < len(asked):
        after = min(2 * size, window)
        seen = asked[begin : begin + size + after]
        some = iter(next_uses([b for b in seen if b is not None]))
        out += [[] if b is None else next(some) for b in seen][:size]
        begin, size = begin + size, after
    return out


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.lists(KEYS, max_size=6).map(ordered)), max_size=40), st.sampled_from([1, 2, 3, 64])
)
def test_items_come_as_they_are_with_their_next_uses(batches: list[Any], window: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = list(look_ahead((b for b in batches), window, KeysAlone(), Path(folder)))
        assert not list(Path(folder).iterdir())
    assert len(found) == len(batches)
    for (item, uses), batch, expected in zip(found, batches, told(batches, window), strict=True):
        if batch is None:
            assert item is None
            assert uses == []
        else:
            assert item.tolist() == batch.tolist()
            assert uses[0].tolist() == expected
            assert len(uses[1]) == len(batch[::2])


def counting(upto: int, closed: list[bool], error: Exception | None = None) -> Generator[np.ndarray, None, None]:
    try:
        for k in range(upto):
            yield ordered([k, k + 1, 7])
        if error is not None:
            raise error
    finally:
        closed.append(True)


def test_an_error_comes_behind_the_items_before_it(tmp_path: Path) -> None:
    closed: list[bool] = []
    walk = look_ahead(counting(9, closed, ValueError("row 9 is wrong")), 4, KeysAlone(), tmp_path)
    seen = []
    with pytest.raises(ValueError, match="row 9 is wrong"):
        seen.extend(item for item, _ in walk)
    assert len(seen) == 9
    assert closed == [True]


def test_who_leaves_early_leaves_nothing_behind(tmp_path: Path) -> None:
    closed: list[bool] = []
    walk = look_ahead(counting(1000, closed), 8, KeysAlone(), tmp_path)
    for _ in range(20):
        next(walk)
    walk.close()
    assert closed == [True]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keys", [3000, 200])
def test_a_full_disk_is_named(tmp_path: Path, keys: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (keys * 10, before[1]))
    try:
        batches = (ordered(list(range(k, k + keys))) for k in range(50))
        with pytest.raises(SourceError, match=r"is full: look_ahead=16 keeps up to 48 batches there; free some space,"):
            list(look_ahead(batches, 16, KeysAlone(), tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"cannot write the batches that are read ahead to .*nowhere: No such file"):
        list(look_ahead(counting(3, []), 4, KeysAlone(), tmp_path / "nowhere"))


# ---- tables and training --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> cb.Plan:
    """The checkerboard with thousands of keys beside its few, some often and some once."""
    log = checkerboard()
    visit = np.random.default_rng(3).zipf(1.2, len(log)).clip(0, 3_000)
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(log.append_column("visit", pa.array(visit)), path)
    return plan_of(str(path), sparse={"visit": cb.cross("visit", "ad").key()}, weight=cb.col("price"))


def fitted(plan: cb.Plan, embedder: Any, **options: Any) -> cb.Run:
    return cb.Trainer(Small(plan.schema), embedder).fit(plan, **{**FAST, **options})


def sparse(folder: Path) -> cb.SparseTable:
    like = table()
    return cb.SparseTable(folder, like.dim, ram=RAM, optimizer=like.optimizer, init=like.init)


@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"look_ahead": 1}, {"negatives": 0.3}], ids=str)
def test_the_weights_are_those_of_a_training_that_sees_nothing(
    tmp_path: Path, plan: cb.Plan, options: dict[str, Any]
) -> None:
    usual = {name: value for name, value in options.items() if name != "look_ahead"}
    expected = fitted(plan, table(), epochs=2, **usual)
    with sparse(tmp_path / "t") as mine:
        run = fitted(plan, mine, epochs=2, **{"look_ahead": 16, **options})
        assert weights(run) == weights(expected)
        assert run.metrics == expected.metrics
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_batches_that_lost_all_their_rows_wait_like_others(tmp_path: Path, plan: cb.Plan) -> None:
    options = {**FAST, "negatives": 0.01, "batch_size": 2, "limit": 400}
    expected = cb.Trainer(deep(plan), table()).fit(plan, **options)
    with sparse(tmp_path / "t") as mine:
        run = cb.Trainer(deep(plan), mine).fit(plan, **options, look_ahead=4)
        assert run.summary["steps"] < 150  # of 180 batches
        assert weights(run) == weights(expected)


def deep(plan: cb.Plan) -> cb.models.DeepFM:
    torch.manual_seed(0)
    return cb.models.DeepFM(plan.schema, 4)


def test_rows_that_come_again_are_found_in_memory(tmp_path: Path) -> None:
    """Eight batches take turns at random, so that counts tell nothing of who comes next."""
    rng = np.random.default_rng(1)
    turns = [rng.permutation(np.arange(1, 20_001))[:1200] for _ in range(8)]
    batches = [ordered(turns[k].tolist()) for k in rng.integers(0, 8, 120)]
    hits = {}
    for name in ("alone", "ahead"):
        with cb.SparseTable(tmp_path / name, 4, ram=300_000) as mine:
            for keys, (next_use, _) in look_ahead((b for b in batches), 32, KeysAlone(), tmp_path):
                mine.prefetch(keys, next_use=next_use if name == "ahead" else None)
                mine.push(keys, np.ones_like(mine.pull(keys)))
            hits[name] = mine.stats()["hits"]
    assert hits["ahead"] > 1.1 * hits["alone"]


def test_what_was_due_and_did_not_come_is_forgotten(tmp_path: Path) -> None:
    """Also where nobody tells of next uses any more."""
    hits = {}
    for name in ("told", "untold"):
        with cb.SparseTable(tmp_path / name, 4, ram=300_000) as mine:
            for part in np.array_split(np.arange(1, 4001), 8):
                mine.prefetch(part, next_use=np.full(len(part), 127, np.uint8) if name == "told" else None)
                mine.push(part, np.ones_like(mine.pull(part)))
            rng = np.random.default_rng(2)
            for step in range(400):
                keys = rng.permutation(np.arange(5001, 8001))[:600]
                if step == 200:
                    hits[name] = -mine.stats()["hits"]
                mine.push(keys, np.ones_like(mine.pull(keys)))
            hits[name] += mine.stats()["hits"]
    assert hits["told"] > 0.99 * hits["untold"]


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path: Path, plan: cb.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    told_at_every_step(monkeypatch)
    expected = weights(fitted(plan, table(), epochs=2))
    options = {**FAST, "epochs": 2, "out": tmp_path / "run", "checkpoint_steps": 5, "look_ahead": 8}
    with sparse(tmp_path / "t") as mine, pytest.raises(Stop):
        cb.Trainer(Small(plan.schema), mine).fit(plan, **options, progress=StopAt(13))
    seen = StopAt(10**9)
    with sparse(tmp_path / "t") as mine:
        run = cb.Trainer(Small(plan.schema), mine).fit(plan, **options, progress=seen)
        assert seen.resumed_at
        assert weights(run) == expected


def test_what_cannot_look_ahead_says_so(tmp_path: Path, plan: cb.Plan) -> None:
    with pytest.raises(PlanError, match=r"needs a cb\.SparseTable, but this training has none"):
        fitted(plan, table(), look_ahead=8)
    with sparse(tmp_path / "t") as mine:
        with pytest.raises(PlanError, match="look_ahead must be a whole number from 0 to 64, got 65"):
            fitted(plan, mine, look_ahead=65)
        with pytest.raises(PlanError, match="look_ahead= cannot be used with patience="):
            fitted(plan, mine, look_ahead=8, patience=2)
        with pytest.raises(PlanError, match="cannot be used with cluster=; remove one of the two"):
            fitted(plan, mine, look_ahead=8, cluster=cb.Cluster(workers=1))
        for wrong in (np.zeros(3, np.uint8), np.zeros(2, np.int64), np.zeros((2, 1), np.uint8), [1, 2], 5):
            with pytest.raises(DataError, match="next_use must be uint8, one value for each of 2 keys, got"):
                mine.prefetch(np.array([1, 2]), next_use=wrong)
