"""Pre-rank: exported vectors give the logits of the model, the best of the candidates are those of a plain sort."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox.errors import DataError, PlanError
from tests.models.conftest import one_thread  # noqa: F401
from tests.train.worlds import FAST, Small, checkerboard, plan_of


@pytest.fixture(scope="module")
def run() -> cb.Run:
    torch.manual_seed(0)
    plan = plan_of(checkerboard(3000))
    model = cb.models.TwoTower(plan.schema, 4, user=["user", "device"], ad=["ad", "tags"], vector=5, hidden=(8,))
    return cb.Trainer(model, cb.MemoryTable(4)).fit(plan, **FAST)


def test_exported_vectors_give_the_logits_of_the_model(run: cb.Run, tmp_path: Path) -> None:
    users = cb.tables.export_vectors(run, "user", tmp_path / "users", batch_size=512)
    ads = cb.tables.export_vectors(run, "ad", tmp_path / "ads", batch_size=700)
    assert (len(users), len(ads), users.width) == (40, 40, 5)
    batches = list(run.plan.batches(1000))
    last = batches[-1]
    keys = {side: last.sparse[side].values for side in ("user", "ad")}
    # The last row of the log is its user's and its ad's last.
    u, a = users.read(users.find(keys["user"][-1:]))[0], ads.read(ads.find(keys["ad"][-1:]))[0]
    logit = np.log(p := run.predict_batch(last)[-1]) - np.log1p(-p)
    assert float(u @ a + run.model.bias.item()) == pytest.approx(float(logit), abs=1e-4)


def test_what_has_no_vectors_is_refused(run: cb.Run, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="nearest: 'user'"):
        cb.tables.export_vectors(run, "users", tmp_path / "v")
    with pytest.raises(PlanError, match="'user' is not a field of the ad"):
        cb.tables.export_vectors(run, "ad", tmp_path / "v", key="user")
    with pytest.raises(PlanError, match="'tags' has rows with no key or several keys; name"):
        cb.tables.export_vectors(run, "ad", tmp_path / "v", key="tags")
    other = cb.Trainer(Small(run.plan.schema), cb.MemoryTable(4)).fit(run.plan, **FAST, limit=600)
    with pytest.raises(PlanError, match=r"only a run of cb\.models\.TwoTower"):
        cb.tables.export_vectors(other, "ad", tmp_path / "v")


@settings(max_examples=60, deadline=None)
@given(
    candidates=st.lists(st.integers(-2, 30), max_size=40),
    k=st.integers(1, 50),
    user=st.lists(st.sampled_from([0.0, 1.0, -2.0]), min_size=3, max_size=3),
)
def test_the_top_is_that_of_a_plain_sort(
    candidates: list[int], k: int, user: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rank = ranked(tmp_path_factory)
    found, scores = rank.top(user, np.array(candidates, np.int64), k)
    rows = dict(zip(range(1, 21), ROWS, strict=True))
    plain = sorted(
        ((-float(rows[c] @ np.array(user)), at) for at, c in enumerate(candidates) if c in rows),
    )[:k]
    assert found.tolist() == [at for _, at in plain]
    assert scores.tolist() == [-score for score, _ in plain]


ROWS = np.random.default_rng(0).integers(-3, 4, (20, 3)).astype(np.float32)
MADE: list[cb.tables.PreRank] = []


def ranked(tmp_path_factory: pytest.TempPathFactory) -> cb.tables.PreRank:
    if not MADE:
        path = tmp_path_factory.mktemp("rank") / "ads"
        MADE.append(
            cb.tables.PreRank(cb.tables.write_vectors(path, {"k": np.arange(1, 21), "v": ROWS}, key="k", vector="v"))
        )
    return MADE[0]


def test_bad_users_and_files_are_refused(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    rank = ranked(tmp_path_factory)
    before = rank.missing
    rank.top([1, 0, 0], np.array([1, 99, 98]))
    assert rank.missing == before + 2
    wrong: list[Any] = [[1, 2], [1, 2, float("nan")]]
    for user in wrong:
        with pytest.raises(DataError, match="a user vector of 3 finite floats"):
            rank.top(user, np.array([1]))
    tokens = cb.tables.write_tokens(tmp_path / "t", {"k": [1], "t": [[1]]}, key="k", tokens="t", width=2)
    with pytest.raises(PlanError, match="contains tokens"):
        cb.tables.PreRank(tokens)


# ---- adaptive regularization


def test_adaptive_regularization_is_its_formula() -> None:
    """w -= lr · (summed gradient + λ w / n), n the times a key was met so far."""
    plan = plan_of(checkerboard(600))
    made = {}
    for strength in (0.0, 0.5):
        torch.manual_seed(0)
        model = cb.models.LR(plan.schema, fields=["user", "ad"])
        table = cb.MemoryTable(0, optimizer=cb.optim.SGD(lr=0.1), counters=cb.tables.Counters())
        options = {"valid": 0.0, "batch_size": 200, "adaptive_l2": strength}
        made[strength] = cb.Trainer(model, table, optimizer=cb.optim.SGD(lr=0.1)).fit(plan, **options)
    weight, bias = {}, 0.0
    met: dict[int, int] = {}
    dense = np.zeros(1)
    seen = list(plan.batches(200))
    for batch in seen:
        assert batch.rows == 200
    lr, strength = 0.1, 0.5
    model = cb.models.LR(plan.schema, fields=["user", "ad"])
    for number, batch in enumerate(seen):
        keys = np.stack([batch.sparse["user"].values, batch.sparse["ad"].values], 1)
        label = np.asarray(batch.label, np.float64)
        if number == 0:
            bias = float(np.log((label.sum() + 0.5) / (200 - label.sum() + 0.5)))
        model.train()
        z = model.dense(torch.from_numpy(batch.dense)).numpy().astype(np.float64)
        w = np.array([[weight.get(int(k), 0.0) for k in row] for row in keys])
        error = 1 / (1 + np.exp(-(bias + w.sum(1) + z @ dense))) - label
        for k in np.unique(keys).tolist():
            at = keys == k
            met[k] = met.get(k, 0) + int(at.sum())
            w = weight.get(k, 0.0)
            weight[k] = w - lr * ((error[:, None] * at).sum() + strength * w / met[k])
        dense = dense - lr * (z.T @ error) / 200
        bias -= lr * error.mean()
    keys, values, _ = made[0.5].learner.embedders[0].export()  # type: ignore[attr-defined]
    np.testing.assert_allclose(values[:, 0], [weight[k] for k in keys.tolist()], rtol=1e-3, atol=1e-4)
    plain = made[0.0].learner.embedders[0].export()[1]  # type: ignore[attr-defined]
    assert np.abs(values).sum() < np.abs(plain).sum()


def test_adaptive_regularization_needs_tables_that_count() -> None:
    plan = plan_of(checkerboard(600))
    with pytest.raises(PlanError, match=r"create it with counters=cb\.tables\.Counters\(\)"):
        cb.Trainer(Small(plan.schema), cb.MemoryTable(4)).fit(plan, **FAST, adaptive_l2=0.1)
    with pytest.raises(PlanError, match="adaptive_l2 must be a number"):
        cb.Trainer(Small(plan.schema), cb.MemoryTable(4)).fit(plan, **FAST, adaptive_l2=-1)
