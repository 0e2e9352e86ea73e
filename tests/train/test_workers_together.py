"""Workers that learn one batch together hold the weights of one that learns it alone; real gangs, in threads of one process."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.train.cuda_graph import Fed
from ctrbox.train.gradient_sums import ALONE, Gang, listening
from ctrbox.train.learn_batch import Learner
from tests.train.test_second_day import log

HOST = "127.0.0.1"


def planned(sparse: bool) -> cb.Plan:
    fields = {"user": col("user"), "ad": col("ad")} if sparse else {}
    dense = {"bid": col("bid"), "half": col("bid") / 2 + 1}
    features = cb.FeatureSet(label=col("clicked"), sparse=fields, dense=dense)
    return cb.compile(cb.View(log(60), key="id"), features, threads=1)


class Tower(nn.Module):
    def __init__(self, schema: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.reads = cb.models.inputs.Reads(schema, 2)
        self.layer = nn.Linear(self.reads.width + self.reads.dense, 1)

    def forward(self, x: Any) -> torch.Tensor:
        return self.layer(torch.cat([x.flat, x.dense], 1)).squeeze(1)


def learner(plan: cb.Plan) -> Learner:
    return Learner(Tower(plan.schema), plan.schema, cb.MemoryTable(2, init=0.1), threads=1)


def in_a_gang(made: list[Learner], work: Callable[[Learner, int], Any]) -> list[Any]:
    """Return what ``work`` returns for each worker of a gang and its number."""
    store, address = listening(HOST, len(made))

    def worker(part: int) -> Any:
        mine = made[part]
        mine.together = Gang(part, len(made), address, HOST, store if part == 0 else None)
        mine.together.sums([0.0])  # all are connected before the first one leaves
        try:
            told = work(mine, part)
        finally:
            mine.together.leave()  # or the others would wait for one that failed
        with pytest.raises(RuntimeError, match="this worker has left its gang"):
            mine.together.sums([1.0])
        return told

    with ThreadPoolExecutor(len(made)) as pool:
        return list(pool.map(worker, range(len(made))))


def learned(plan: cb.Plan, batches: list[Any]) -> list[tuple[Learner, tuple[int, float, list[float]]]]:
    """Let as many workers as there are batches take one step together; None is a worker without rows."""
    made = [learner(plan) for _ in batches]  # one after the other: they draw from one random state

    def step(mine: Learner, part: int) -> Any:
        batch = batches[part]
        return mine, mine.learn_part(None if batch is None else mine.look(batch), 1.0, (part + 1.0,))

    return in_a_gang(made, step)


def weights(one: Learner) -> list[np.ndarray]:
    return [p.detach().numpy() for p in one.model.parameters()]


def test_two_halves_of_a_batch_are_the_whole_batch() -> None:
    plan = planned(sparse=False)
    (batch,) = plan.batches(60)
    rows = np.arange(60)
    alone = learner(plan)
    loss = alone.learn(alone.look(batch))
    for cut in (15, 30):
        found = learned(plan, [batch.take(rows[:cut]), batch.take(rows[cut:]), None])
        for one, (count, mean, beside) in found:
            assert (count, beside) == (60, [6.0])
            assert mean == pytest.approx(loss, rel=1e-5)
            for mine, theirs in zip(weights(one), weights(alone), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
        assert [w.tobytes() for w in weights(found[0][0])] == [w.tobytes() for w in weights(found[1][0])]


class WithUnread(Tower):
    """A tower with a weight that the loss does not depend on, such as one that a part of the model will read later."""

    def __init__(self, schema: Any) -> None:
        super().__init__(schema)
        self.unread = nn.Parameter(torch.ones(3))


def test_weight_decay_does_not_move_a_weight_that_no_worker_reads() -> None:
    plan = planned(sparse=False)
    (batch,) = plan.batches(60)
    decay = lambda weights: torch.optim.AdamW(weights, lr=0.1, weight_decay=0.5)

    def made() -> Learner:
        return Learner(WithUnread(plan.schema), plan.schema, cb.MemoryTable(2, init=0.1), decay, threads=1)

    alone, workers = made(), [made() for _ in range(3)]
    alone.learn(alone.look(batch))
    parts = [batch.take(np.arange(20)), None, batch.take(np.arange(20, 60))]

    def step(mine: Learner, part: int) -> None:
        given = parts[part]
        mine.learn_part(None if given is None else mine.look(given), 1.0, ())

    in_a_gang(workers, step)
    for one in workers:
        assert one.model.unread.tolist() == [1.0, 1.0, 1.0]  # type: ignore[union-attr, operator]
        for mine, theirs in zip(weights(one), weights(alone), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_worker_without_rows_waits_for_the_others_and_learns_their_weights() -> None:
    plan = planned(sparse=True)
    (batch,) = plan.batches(60)
    alone = learner(plan)
    alone.learn(alone.look(batch))
    (busy, _), (idle, _) = learned(plan, [batch, None])
    for mine, theirs, his in zip(weights(busy), weights(alone), weights(idle), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
        assert mine.tobytes() == his.tobytes()
    for mine, theirs in zip(busy.embedders[0].export()[:2], alone.embedders[0].export()[:2], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
    assert len(idle.embedders[0]) == 0


def test_workers_start_from_the_click_rate_of_all_their_rows() -> None:
    plan = planned(sparse=False)
    first, second = plan.batches(40)
    batches = [first, None, second]

    def started(start: float) -> list[float]:
        made = [learner(plan) for _ in batches]
        for one in made:
            one.model.bias = nn.Parameter(torch.tensor([start]))

        def start_one(mine: Learner, part: int) -> float:
            mine._start_from_the_click_rate(batches[part])
            return mine.model.bias.item()  # type: ignore[union-attr, operator, return-value]

        return in_a_gang(made, start_one)

    clicks = float(first.label.sum() + second.label.sum())  # type: ignore[union-attr]
    assert 0 < clicks < 60
    assert started(0.0) == [pytest.approx(math.log((clicks + 0.5) / (60 - clicks + 0.5)))] * 3
    assert started(0.25) == [0.25] * 3


def test_a_step_without_any_rows_changes_nothing() -> None:
    plan = planned(sparse=True)
    mine = learner(plan)
    mine.begun = True
    before = [w.tobytes() for w in weights(mine)]
    assert mine.together is ALONE
    assert mine.learn_part(None, 1.0, (5.0,)) == (0, 0.0, [5.0])
    assert [w.tobytes() for w in weights(mine)] == before


def test_what_is_fed_to_a_recorded_step_is_copied() -> None:
    ones = torch.ones(2, 3)
    for weight in (None, torch.ones(2)):
        fed = Fed((ones, ones), (None, ones), torch.zeros(2, 1), torch.zeros(2), weight)
        assert len(fed.tensors) == 5 + (weight is not None)
        made = fed.copied()
        assert made.shapes == fed.shapes
        assert [v.requires_grad for v in made.vectors] == [True, True]
        assert made.weights[0] is None
        assert made.weights[1] is not None
        assert made.weights[1].requires_grad
        assert (made.weight is None) == (weight is None)
        assert not {t.data_ptr() for t in made.tensors} & {t.data_ptr() for t in fed.tensors}
