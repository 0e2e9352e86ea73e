"""Exchanges between ranks, a rank that hangs, the environment of torchrun, and the table whose rows ranks own."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.embed.shards import Spec
from ctrbox.errors import DataError, DeviceError, TrainError
from ctrbox.ranks import group as connections
from ctrbox.ranks.group import Group, RankHangs
from ctrbox.ranks.table import RankTable
from ctrbox.ranks.torchrun_environment import World
from tests.ranks.threads import in_ranks, worlds


def joined(size: int, work: Any, timeout: float = 60.0) -> list[Any]:
    """Run ``work`` with the group of each rank."""

    def run(ranks: Any) -> Any:
        ranks.group = Group.join(ranks.world, ranks.timeout)
        return work(ranks.group)

    return in_ranks(size, run, timeout)


def test_every_rank_gets_the_parts_that_are_meant_for_it_in_rank_order() -> None:
    def work(group: Group) -> Any:
        mine = [group.part + 1, 2, 0]
        rows = np.full((sum(mine), 2), group.part, np.float32)
        theirs = group.counts(mine)
        first = group.to_first(np.arange(group.part, dtype=np.int64))
        told = group.everyone({"rank": group.part, "text": "é" * group.part})
        return theirs, group.exchange(rows, mine, theirs)[:, 0].tolist(), [a.tolist() for a in first], told

    found = joined(3, work)
    told = [{"rank": 0, "text": ""}, {"rank": 1, "text": "é"}, {"rank": 2, "text": "éé"}]
    assert found == [
        ([1, 2, 3], [0, 1, 1, 2, 2, 2], [[], [0], [0, 1]], told),
        ([2, 2, 2], [0, 0, 1, 1, 2, 2], [[], [], []], told),
        ([0, 0, 0], [], [[], [], []], told),
    ]


def test_the_rank_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PUBLISHED", 0.05)
    given_up = threading.Barrier(3)

    def work(group: Group) -> Any:
        group.sums([1.0])
        if group.part == 1:  # which does nothing until the others have given up
            return given_up.wait()
        try:
            return group.sums([1.0])
        finally:
            given_up.wait()

    waiting, _, other = joined(3, work, timeout=3.0)
    assert {type(waiting), type(other)} <= {RankHangs, connections.RankLost}
    named = next(error for error in (waiting, other) if isinstance(error, RankHangs))
    assert str(named).startswith("rank 1 did not answer for 3 s while rank ")


def test_a_rank_that_does_not_come_is_named() -> None:
    places, store = worlds(3)
    with pytest.raises(DeviceError, match=r"ranks 1, 2 did not reach the start of the training within 0\.1 s"):
        Group.join(places[0], 0.1)
    del store


def test_a_store_that_nobody_serves_is_one_sentence() -> None:
    places, store = worlds(2)
    del store
    with pytest.raises(DeviceError, match=r"rank 1 cannot reach the other ranks at 127\.0\.0\.1:"):
        Group.join(places[1], 0.1)


def environment(**more: str) -> dict[str, str]:
    return {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500", **more}


def test_the_environment_of_torchrun_says_which_rank_this_is() -> None:
    assert World.here({}) is None
    assert World.here(environment(RANK="0", WORLD_SIZE="1")) is None
    more = environment(LOCAL_WORLD_SIZE="2", TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="3")
    assert World.here(more) == World(1, 4, 2, "node0", 29500, True, 3, False)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"RANK": "4"}, "RANK must be a whole number from 0 to 3, got '4'"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE must be a whole number from 1 to 1,024, got 'many'"),
        ({"MASTER_PORT": ""}, "MASTER_PORT must be a whole number from 1 to 65,535, got ''"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not"),
    ],
)
def test_a_wrong_environment_is_named(wrong: dict[str, str], words: str) -> None:
    with pytest.raises(DeviceError) as raised:
        World.here(environment(**wrong))
    assert words in str(raised.value)


# ---- the table


def spec() -> Spec:
    whole = cb.MemoryTable(3, optimizer=cb.optim.SGD(lr=0.5), init=0.1)
    whole.open(Row(3))
    return Spec.of(whole, 3)


def test_rows_of_a_rank_table_are_those_of_one_table() -> None:
    """Ranks ask for overlapping keys, one for none; the sums of gradients are in rank order."""
    rng = np.random.default_rng(0)
    asked = [rng.permutation(50)[:30].astype(np.int64), np.empty(0, np.int64), np.arange(20, 60)]
    given = [rng.standard_normal((len(keys), 3)).astype(np.float32) for keys in asked]

    def work(group: Group) -> Any:
        table, mine = RankTable(group, spec()), asked[group.part]
        before = table.pull(mine)
        table.scale_lr(0.5)
        table.push(mine, given[group.part])
        return before, table.pull(mine, create=False), len(table)

    alone = cb.MemoryTable(3, optimizer=cb.optim.SGD(lr=0.5), init=0.1)
    first = [alone.pull(keys) for keys in asked]
    total = np.zeros((60, 3), np.float32)
    for keys, gradients in zip(asked, given, strict=True):
        total[keys] += gradients
    alone.scale_lr(0.5)
    union = np.unique(np.concatenate(asked))
    alone.push(union, total[union])
    found = joined(3, work)
    for (before, after, _), keys, rows in zip(found, asked, first, strict=True):
        assert before.tobytes() == rows.tobytes()
        assert after.tobytes() == alone.pull(keys).tobytes()
    assert sum(held for _, _, held in found) == len(alone)


def test_a_push_of_other_keys_and_a_gradient_that_is_not_finite_are_refused() -> None:
    keys = np.arange(1, 5)

    def work(group: Group) -> Any:
        table = RankTable(group, spec())
        table.pull(keys)
        with pytest.raises(DataError, match="not finite"):
            table.push(keys, np.full((4, 3), np.nan, np.float32))
        table.pull(keys)
        with pytest.raises(TrainError, match="a push must follow the pull of the same keys"):
            table.push(keys + 1, np.ones((4, 3), np.float32))
        return len(table)

    assert sum(joined(2, work)) == 4
