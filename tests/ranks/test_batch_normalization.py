"""Batch normalization over ranks is that of one process over the whole batch, whichever rows a rank has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import TrainError
from ctrbox.models.dense_columns import DenseInput
from ctrbox.models.mlp import Dice, Norm
from ctrbox.ranks.batch_normalization import Statistics, can_share_statistics, normalizations, statistics_of
from ctrbox.ranks.group import Group
from ctrbox.ranks.ranks import Ranks
from tests.ranks.test_what_ranks_can import Run, adagrad, close, din_run, losses, visits
from tests.ranks.threads import in_ranks
from tests.train.worlds import Small, weights

pytestmark = pytest.mark.usefixtures("one_thread")


def together(parts: list[torch.Tensor], model: Any, loss: Any) -> list[Any]:
    """Make one step of the model in each rank with its rows; return outputs, gradients of rows, the model, weighted by share."""
    total, models = sum(len(part) for part in parts), []
    for _ in parts:  # threads share torch's random numbers
        torch.manual_seed(1)
        models.append(model())

    def work(ranks: Ranks) -> Any:
        group = ranks.group = Group.join(ranks.world, ranks.timeout)
        mine = models[group.part]
        statistics = statistics_of(group, mine)
        assert statistics is not None
        x = parts[group.part].clone().requires_grad_()
        statistics.begin(len(x))
        y = None
        if len(x):
            y = mine(x)
            loss(y).backward()
            x.grad *= len(x) / total  # type: ignore[operator]
        statistics.finish()
        weighted = [p for p in mine.parameters() if p.requires_grad]
        group.add_up(weighted, len(x) / total)
        statistics.end()
        assert all("forward" not in vars(norm) for norm in statistics.norms)
        return y, x.grad, mine

    return in_ranks(len(parts), work)


def alone(parts: list[torch.Tensor], model: Any, loss: Any) -> Any:
    torch.manual_seed(1)
    mine, x = model(), torch.cat(parts).clone().requires_grad_()
    y = mine(x)
    loss(y).backward()
    return y, x.grad, mine


def mean_loss(y: torch.Tensor) -> torch.Tensor:
    return (y.flatten(1).sin() * torch.arange(1.0, y[0].numel() + 1)).sum(1).mean()


def check(parts: list[torch.Tensor], model: Any, atol: float = 1e-6) -> None:
    found, (y, grad, whole) = together(parts, model, mean_loss), alone(parts, model, mean_loss)
    errors = [one for one in found if isinstance(one, BaseException)]
    assert not errors, errors
    torch.testing.assert_close(torch.cat([one[0] for one in found if one[0] is not None]), y, atol=atol, rtol=1e-5)
    torch.testing.assert_close(torch.cat([one[1] for one in found if one[1] is not None]), grad, atol=atol, rtol=1e-4)
    for _, _, mine in found:
        for (name, expected), value in zip(whole.state_dict().items(), mine.state_dict().values(), strict=True):
            torch.testing.assert_close(value, expected, atol=atol, rtol=1e-5, msg=name)
        for expected, value in zip(whole.parameters(), mine.parameters(), strict=True):
            torch.testing.assert_close(value.grad, expected.grad, atol=1e-5, rtol=1e-4)
    states = [[value.numpy().tobytes() for value in mine.state_dict().values()] for _, _, mine in found]
    assert all(state == states[0] for state in states)


def rows(*sizes: int, shape: tuple[int, ...] = (3,), scale: float = 5.0) -> list[torch.Tensor]:
    torch.manual_seed(sum(sizes) + len(shape))
    return [100.0 + scale * torch.randn(n, *shape) for n in sizes]


@pytest.mark.parametrize("sizes", [(4, 4), (1, 7, 2), (0, 5), (3, 0, 1)])
@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.BatchNorm1d(3),
        lambda: nn.BatchNorm1d(3, affine=False, momentum=None),
        lambda: Norm(3),
        lambda: Dice(3),
    ],
    ids=["affine", "cumulative", "of a tower", "dice"],
)
def test_outputs_gradients_and_statistics_are_those_of_the_whole_batch(sizes: tuple[int, ...], norm: Any) -> None:
    """Behind a linear map, and before another one, so that gradients come from and go to other layers."""
    check(rows(*sizes), lambda: nn.Sequential(nn.Linear(3, 3), norm(), nn.Linear(3, 2), nn.Tanh()), atol=2e-5)


@pytest.mark.parametrize(
    ("norm", "shape"), [(nn.BatchNorm1d, (3, 4)), (nn.BatchNorm2d, (3, 2, 2)), (nn.BatchNorm3d, (3, 2, 1, 2))]
)
def test_more_dimensions_count_as_rows(norm: Any, shape: tuple[int, ...]) -> None:
    check(rows(2, 3, shape=shape), lambda: norm(3), atol=2e-5)


def test_a_batch_of_one_row_uses_the_running_statistics_as_in_one_process() -> None:
    check(rows(0, 1), lambda: nn.Sequential(nn.Linear(3, 3), Norm(3)), atol=2e-5)
    found = together(rows(0, 1), lambda: nn.BatchNorm1d(3), mean_loss)
    assert [str(error) for error in found] == [
        "BatchNorm1d needs more than one row in a batch to learn, but this batch has one; choose another batch_size="
    ] * 2


class Skips(nn.Module):
    """Normalizes only the columns of a part of the rows, and nothing where there are none, as DIN's attention does."""

    def __init__(self, dense_first: bool = False) -> None:
        super().__init__()
        self.dense = DenseInput(2)
        self.some, self.all = Norm(3), nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.ones(3))
        self.dense_first = dense_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = (x[:, 0] > 0.0).nonzero().squeeze(1)
        out = x * self.scale
        if self.dense_first:
            self.dense(x[:, :2].detach())
        if len(chosen):
            out = out.index_add(0, chosen, self.some(out.index_select(0, chosen)))
        if not self.dense_first:
            self.dense(x[:, :2].detach())
        return self.all(out)  # type: ignore[no-any-return]


def test_ranks_that_skip_a_normalization_wait_and_learn_its_statistics() -> None:
    parts = [part - 100.0 for part in rows(4, 3, 0)]
    parts[1][:, 0] = -1.0  # no row is chosen in this rank
    check(parts, Skips, atol=5e-5)


def test_a_normalization_at_different_places_is_an_error_in_all_ranks() -> None:
    places = iter([False, True])
    parts = rows(4, 4)
    for part in parts:
        part[:, 0] = 101.0
    found = together(parts, lambda: Skips(dense_first=next(places)), mean_loss)
    assert [type(one) for one in found] == [TrainError] * 2
    assert {str(one) for one in found} == {
        "the ranks run part 1 of 3 with statistics of a batch (Norm) at different points of the forward pass, so "
        "they cannot compute the statistics of the whole batch together; train in one process"
    }


def test_a_turn_that_others_have_had_is_refused() -> None:
    class Script:
        part, of = 0, 2

        def __init__(self) -> None:
            self.theirs = iter([(0.0, 1.0), (0.0, 0.0)])

        def gathered(self, mine: np.ndarray, kind: str) -> np.ndarray:
            assert kind == "normalization"
            other = np.zeros_like(mine)
            other[:2] = next(self.theirs)
            other[3:5] = 2.0
            return np.stack([mine, other])

    norms = nn.Sequential(nn.BatchNorm1d(2), Norm(2)).train()
    statistics = Statistics(Script(), [norms[0], norms[1]])  # type: ignore[list-item]
    statistics.begin(2)
    norms[1](torch.randn(2, 2))  # together with the other rank
    statistics.had.add((0, 0, 0))
    with pytest.raises(TrainError, match=r"part 1 of 2 with statistics of a batch \(BatchNorm1d\) at different points"):
        norms[0](torch.randn(2, 2))


def test_which_normalizations_can_be_shared() -> None:
    class Own(nn.BatchNorm1d):
        pass

    assert statistics_of(None, nn.Linear(1, 1)) is None  # type: ignore[arg-type]
    found = normalizations(
        nn.Sequential(nn.LayerNorm(2), Own(2), nn.BatchNorm1d(2, track_running_stats=False), Dice(2))
    )
    assert [name for name, _ in found] == ["1", "2", "3.norm"]
    assert [can_share_statistics(norm) for _, norm in found] == [False, False, True]


# ---- trainings


def test_a_training_with_batch_normalization_is_that_of_one_process(plan: cb.Plan, tmp_path: Path) -> None:
    run = Run(plan, lambda schema: Small(schema, dropout=0.0), lambda rank: adagrad())
    options: dict[str, Any] = {"limit": 900, "valid": 0.1, "negatives": 0.8, "clip": 1.0}
    whole = run(1, out=tmp_path / "1", **options)
    again = [run(3, out=tmp_path / f"3-{k}", **options) for k in range(2)]
    assert weights(again[0]) == weights(again[1])
    np.testing.assert_allclose(losses(tmp_path / "3-0"), losses(tmp_path / "1"), atol=1e-5)
    close(again[0], whole)
    assert again[0].metrics["auc"] == pytest.approx(whole.metrics["auc"], abs=1e-4)
    assert again[0].summary["ranks"][1]["sent_per_step"]["normalization"] > 0


def test_din_with_dice_and_common_features_is_that_of_one_process(tmp_path: Path) -> None:
    """Batches are small, so that some ranks have no history, or no rows, in a step."""
    pq.write_table(visits(240), tmp_path / "log.parquet", row_group_size=50)
    run = din_run(tmp_path / "log.parquet", "dice", dense={"x": col("ad").cast("float")})
    for batch_size, size in ((50, 2), (5, 3)):
        options: dict[str, Any] = {"batch_size": batch_size, "valid": 0.1, "negatives": 0.7}
        whole = run(1, out=tmp_path / f"{batch_size}-1", **options)
        found = run(size, out=tmp_path / f"{batch_size}-{size}", **options)
        np.testing.assert_allclose(
            losses(tmp_path / f"{batch_size}-{size}"), losses(tmp_path / f"{batch_size}-1"), atol=1e-5
        )
        close(found, whole)


def test_a_normalization_nobody_knows_is_refused(plan: cb.Plan) -> None:
    class Own(nn.BatchNorm1d):
        pass

    net = Small(plan.schema)
    net.norm = Own(1)
    trainer = cb.Trainer(net, adagrad())
    (end,) = in_ranks(1, lambda ranks: trainer.fit(plan, batch_size=64, limit=100, cluster=ranks))
    assert "Own ('norm' of the model) is not known to several ranks" in str(end)
