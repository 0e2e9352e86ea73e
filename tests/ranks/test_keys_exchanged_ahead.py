"""The keys of the next batch are exchanged while a batch is learned: never further ahead, with the same bits, and measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.embed.embedder import Row
from ctrbox.embed.shards import Spec
from ctrbox.errors import TrainError
from ctrbox.ranks import blocks_dealt_to_ranks
from ctrbox.ranks.group import Group
from ctrbox.ranks.keys_exchanged_ahead import asked_ahead
from ctrbox.ranks.ranks import Ranks
from ctrbox.ranks.table import RankTable
from tests.ranks.test_training import losses
from tests.ranks.threads import fit, in_ranks
from tests.train.worlds import weights

pytestmark = pytest.mark.usefixtures("one_thread")


class Source:
    """Numbers from 0 on; knows whether it was closed, and which have been asked for."""

    def __init__(self, size: int, fails: int | None = None) -> None:
        self.size, self.fails, self.closed = size, fails, False
        self.asked: list[int] = []
        self.heard = threading.Condition()

    def read(self) -> Generator[int, None, None]:
        try:
            for k in range(self.size):
                if k == self.fails:
                    raise ValueError(f"item {k}")
                yield k
        finally:
            self.closed = True

    def ask(self, item: int) -> int:
        with self.heard:
            self.asked.append(item)
            self.heard.notify_all()
        return item * 10

    def until_asked(self, item: int) -> bool:
        with self.heard:
            return self.heard.wait_for(lambda: item in self.asked, 10.0)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_every_item_comes_once_in_order_with_its_answer(overlap: bool, size: int) -> None:
    source = Source(size)
    found = [(one.item, one.answer) for one in asked_ahead(source.read(), source.ask, overlap=overlap)]
    assert found == [(k, k * 10) for k in range(size)]
    assert source.closed


def test_the_next_item_is_asked_for_while_one_is_used_and_no_other() -> None:
    source = Source(5)
    for one in asked_ahead(source.read(), source.ask):
        if one.item < 4:
            assert source.until_asked(one.item + 1)
        time.sleep(0.01)
        assert source.asked == list(range(min(5, one.item + 2)))
    one_by_one = Source(3)
    for one in asked_ahead(one_by_one.read(), one_by_one.ask, overlap=False):
        assert one_by_one.asked == list(range(one.item + 1))


@pytest.mark.parametrize("overlap", [True, False])
def test_an_error_comes_after_the_items_before_it(overlap: bool) -> None:
    source = Source(5, fails=2)
    items = asked_ahead(source.read(), source.ask, overlap=overlap)
    assert [next(items).item, next(items).item] == [0, 1]
    with pytest.raises(ValueError, match="item 2"):
        next(items)
    assert source.closed


def test_leaving_waits_for_the_exchange_that_has_begun() -> None:
    """Other ranks wait for this rank in that exchange, even if this rank needs its result no more."""
    source = Source(5)

    def slow(item: int) -> int:
        time.sleep(0.05 * item)
        return source.ask(item)

    items = asked_ahead(source.read(), slow)
    assert next(items).item == 0
    items.close()
    assert source.asked == [0, 1]
    assert source.closed


def test_only_the_exchange_counts_as_waiting_and_not_the_reading() -> None:
    def reading_slowly() -> Generator[int, None, None]:
        for k in range(2):
            time.sleep(0.25)
            yield k

    def exchange(item: int) -> None:
        time.sleep(0.01)

    for overlap in (True, False):
        waits = [one.waited for one in asked_ahead(reading_slowly(), exchange, overlap=overlap)]
        assert all(0.005 < wait < 0.2 for wait in waits)
    items = asked_ahead((k for k in range(3)), exchange)
    next(items)
    time.sleep(0.1)  # the model
    assert next(items).waited == 0.0
    items.close()


def test_a_pull_of_other_keys_than_were_sent_ahead_is_refused() -> None:
    whole = cb.MemoryTable(3, optimizer=cb.optim.SGD(lr=0.5), init=0.1)
    whole.open(Row(3))
    keys = np.arange(1, 9)

    def work(ranks: Ranks) -> Any:
        group = ranks.group = Group.join(ranks.world, ranks.timeout)
        table = RankTable(group, Spec.of(whole, 2), ahead=group.beside("ahead"))
        route = table.ask(keys)
        before = table.pull(keys[:4], create=False)  # of an evaluation in between
        table.take(route)
        rows = table.pull(keys)
        table.take(table.ask(keys))
        with pytest.raises(TrainError, match="differ from the keys that were exchanged ahead"):
            table.pull(keys + 1)
        return len(before), rows.tobytes()

    expected = whole.pull(keys).tobytes()
    assert in_ranks(2, work) == [(4, expected)] * 2


def test_a_training_has_the_same_bits_with_and_without_asking_ahead(plan: cb.Plan, tmp_path: Path) -> None:
    """In the middle of an epoch it is evaluated, written to a checkpoint, and stopped early."""
    options: dict[str, Any] = {"limit": 900, "epochs": 9, "patience": 1, "evaluate_every": 3, "checkpoint_steps": 4}
    runs = [
        fit(plan, 2, out=tmp_path / str(ahead), asks_ahead=ahead, negatives=0.8, **options)[0]
        for ahead in (True, False)
    ]
    assert runs[0].summary["stopped"].startswith("patience")
    assert runs[0].summary["steps"] % 13 != 0  # not at the end of an epoch
    assert weights(runs[0]) == weights(runs[1])
    assert losses(tmp_path / "True") == losses(tmp_path / "False")
    for run in runs:
        for told in run.summary["ranks"]:
            assert set(told["waited_per_step"]) == {"keys", "rows", "gradients", "dense", "sums"}
            sent = told["sent_per_step"]
            least = told["least_bytes_per_step"]
            assert 0 < least <= sum(sent[kind] for kind in ("keys", "rows", "gradients", "dense")) < 1.2 * least
            assert least < told["bytes_sent_per_step"] < told["bytes_sent"]
    sent = [run.summary["ranks"][0]["sent_per_step"] for run in runs]
    keys = [one.pop("keys") for one in sent]
    assert sent[0] == sent[1]
    assert keys[0] > keys[1]  # those of the batch behind the last one were exchanged, too


def test_the_first_batch_of_a_round_is_asked_for_before_the_last_one_is_learned(
    plan: cb.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which negatives are dropped depends on the place of a row in the epoch, also in rounds of reading that begin early."""
    monkeypatch.setattr(blocks_dealt_to_ranks, "BLOCK_ROWS", 250)
    monkeypatch.setattr(blocks_dealt_to_ranks, "MOST_ROWS", 250)
    options: dict[str, Any] = {"limit": 3000, "negatives": 0.6, "batch_size": 100}
    alone = fit(plan, 1, out=tmp_path / "1", **options)[0]
    found = fit(plan, 2, out=tmp_path / "2", **options)[0]
    assert found.summary["rows"] == alone.summary["rows"]
    np.testing.assert_allclose(losses(tmp_path / "2"), losses(tmp_path / "1"), atol=1e-5)
