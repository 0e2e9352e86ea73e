"""Common features: rows of one user share their keys, and the model sees what it would see without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.embed.common_features import shared
from ctrbox.errors import PlanError
from ctrbox.models import Inputs, LocalActivation, Reads
from tests.models.conftest import one_thread  # noqa: F401

LISTS = st.lists(st.integers(-3, 3), max_size=3)
FIELDS = (Field("a", "a", True), Field("b", "b", True), Field("c", "c", True))


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 3), LISTS, LISTS, LISTS), max_size=12))
def test_every_row_finds_its_keys_and_none_is_kept_twice(
    rows: list[tuple[int, list[int], list[int], list[int]]],
) -> None:
    def ragged(lists: list[list[int]]) -> Ragged:
        # The arrays of a batch may begin anywhere.
        before = [9, 9]
        values = np.array([*before, *(v for one in lists for v in one)], np.int64)
        return Ragged(values, np.cumsum([2, *map(len, lists)]).astype(np.int64))

    lists = {name: [row[k] for row in rows] for k, name in ((1, "a"), (2, "b"), (3, "c"))}
    sparse = {name: ragged(found) for name, found in lists.items()}
    group = np.array([row[0] for row in rows], np.int64)
    schema = Schema(FIELDS, (), False, True, False)
    batch = Batch(schema, len(rows), None, np.zeros((len(rows), 0), np.float32), sparse, group)
    found, first = shared(batch, ["a", "b"])
    seen: dict[int, int] = {}
    for r in range(len(rows)):
        for name in ("a", "b"):
            assert found.sparse[name][int(first[r])].tolist() == lists[name][r]
        assert found.sparse["c"][r].tolist() == lists["c"][r]
        assert group[first[r]] == group[r]
        leader = seen.setdefault(int(group[r]), r)
        same = all(lists[name][leader] == lists[name][r] for name in ("a", "b"))
        assert first[r] == (leader if same else r)
        if first[r] != r:
            assert not len(found.sparse["a"][r])
            assert not len(found.sparse["b"][r])


def log(rows: int = 1200) -> pa.Table:
    """Six rows a user, one after the other; a third of the users changes its history in between."""
    rng = np.random.default_rng(0)
    user = np.arange(rows) // 6
    likes = [rng.integers(0, 30, rng.integers(0, 5)).tolist() for _ in range(rows // 6)]
    history = [[*likes[u], 99] if u % 3 == 0 and r % 6 > 2 else likes[u] for r, u in enumerate(user)]
    ad = rng.integers(0, 30, rows)
    clicked = np.array([(a in h) or c for a, h, c in zip(ad, history, rng.random(rows) < 0.2, strict=True)])
    tags = [[f"t{u % 7}"] * (u % 3) for u in user]
    table = {"id": np.arange(rows), "user": user, "ad": ad, "clicked": clicked.astype(np.int64)}
    return pa.table(
        {**table, "history": pa.array(history, pa.list_(pa.int64())), "tags": pa.array(tags, pa.list_(pa.string()))}
    )


class Past(torch.nn.Module):
    def __init__(self, schema: cb.types.Schema) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reads = Reads(schema, 4, linear=True, pooling={"history": "none", "tags": "sum"})
        self.attention = LocalActivation(4, (6,), kind="prelu")
        self.tower = torch.nn.Linear(self.reads.width + 4, 1)

    def forward(self, x: Inputs) -> torch.Tensor:
        seen = self.attention(x.field("ad"), *x.sequence("history"))
        return self.tower(torch.cat([x.flat, seen], 1)).squeeze(1) + x.linear.sum(1)


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    sparse = {
        "user": col("user"),
        "ad": col("ad").key(space="ad"),
        "history": col("history").key(space="ad"),
        "tags": col("tags"),
    }
    view = cb.View(log(), key="id").fill(history=[], tags=[])
    return cb.compile(view, cb.FeatureSet(label=col("clicked"), group=col("user"), sparse=sparse), threads=1)


def trained(plan: cb.Plan, common: Any, **more: Any) -> cb.Run:
    table = cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.1, initial=0.1), **more)
    return cb.Trainer(Past(plan.schema), table, threads=1, common=common).fit(plan, batch_size=128, epochs=2)


def test_training_with_common_features_is_training_without_up_to_rounding(plan: cb.Plan) -> None:
    one, other = trained(plan, ["history", "tags"]), trained(plan, [])
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert one.metrics["auc"] == pytest.approx(other.metrics["auc"], abs=5e-3)


def test_what_a_model_sees_of_a_batch_is_the_same_bits(plan: cb.Plan) -> None:
    run = trained(plan, ["history", "tags"])
    learner = run.learner
    (batch,) = plan.batches(1200)
    expected = learner.predict(batch)
    looked = learner.look(batch)
    references = sum(len(lookup.inverse) for lookup in looked.lookups)  # type: ignore[union-attr]
    learner.common = ()
    assert np.array_equal(learner.predict(batch), expected)
    assert references < sum(len(lookup.inverse) for lookup in learner.look(batch).lookups)  # type: ignore[union-attr]


def test_tables_of_other_fields_may_count_and_count_as_without_common_fields(plan: cb.Plan) -> None:
    def fitted(common: list[str]) -> cb.Run:
        rate = cb.Adagrad(lr=0.1, initial=0.1)
        counted = cb.MemoryTable(4, optimizer=rate, counters=cb.tables.Counters())
        tables = {"tags": cb.MemoryTable(4, optimizer=rate), "*": counted}
        trainer = cb.Trainer(Past(plan.schema), tables, threads=1, common=common)
        return trainer.fit(plan, batch_size=128, epochs=2)

    one, other = fitted(["tags"]), fitted([])
    keys = np.unique(next(iter(plan.batches(1200))).sparse["ad"].values)
    counts = [next(s for s in run.learner.sources if s.traits.shows).full.counts(keys) for run in (one, other)]
    assert all(np.array_equal(a, b) for a, b in zip(*counts, strict=True))
    assert counts[0][0].sum() > 0
    assert one.metrics["auc"] == pytest.approx(other.metrics["auc"], abs=5e-3)


def test_what_cannot_be_shared_is_refused(plan: cb.Plan) -> None:
    for common, message in (
        (["histori"], "nearest: 'history'"),
        (["ad"], "'ad', which has one key per row"),
        ("history", "common must be a list of fields"),
    ):
        with pytest.raises(PlanError, match=message):
            trained(plan, common)
    with pytest.raises(
        PlanError, match=r"fields whose tables have no counters, but .* is in a table with counters; remove it"
    ):
        trained(plan, ["history"], counters=cb.tables.Counters())
    view = cb.View(log(), key="id").fill(history=[])
    alone = cb.compile(view, cb.FeatureSet(label=col("clicked"), sparse={"history": col("history")}))
    with pytest.raises(
        PlanError,
        match=r"common= needs a group, because the rows of a group share these features; add "
        r"one to the FeatureSet: cb\.FeatureSet",
    ):
        cb.Trainer(cb.models.LR(alone.schema), common=["history"]).fit(alone, batch_size=100)
