"""Tests which models native code computes and which are left to torch. Tests of training compare the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox.errors import PlanError
from ctrbox.models.mlp import MLP
from ctrbox.predict.model_with_tables import ClickModel
from ctrbox.predict.native_forward import MOST_LAYERS
from ctrbox.predict.refuse_several_labels import check_tasks
from tests.train.worlds import checkerboard, plan_of

PLAN = plan_of(checkerboard(40))
SCHEMA = PLAN.schema


class Mine(cb.models.LR):
    """A subclass, whose forward may be any."""


def hooked() -> nn.Module:
    model = cb.models.LR(SCHEMA)
    model.register_forward_hook(lambda *given: None)
    return model


def changed(change: Callable[[Any], Any], **settings: Any) -> nn.Module:
    model = cb.models.DeepFM(SCHEMA, dim=4, hidden=(8, 4), **settings)
    change(model)
    return model


def replaced(model: Any) -> None:
    model.tower.between[0] = nn.Sequential(nn.ReLU(), nn.Tanh())


def longer(model: Any) -> None:
    model.tower.between[0].append(nn.ReLU())


def fewer(model: Any) -> None:
    model.tower.between = nn.ModuleList(list(model.tower.between)[:-1])


@pytest.mark.parametrize(
    ("model", "native"),
    [
        (lambda: cb.models.LR(SCHEMA), True),
        (lambda: cb.models.FM(SCHEMA, dim=4), True),
        (lambda: cb.models.EmbeddingMLP(SCHEMA, dim=4, hidden=(8,)), True),
        (lambda: cb.models.WideDeep(SCHEMA, dim=4, hidden=(8,)), True),
        (lambda: cb.models.DeepFM(SCHEMA, dim=4, hidden=(8, 4)), True),
        (lambda: cb.models.DeepFM(SCHEMA, dim=4, hidden=(8, 4), dropout=0.5), True),
        (lambda: cb.models.EmbeddingMLP(SCHEMA, dim=4, hidden=(2,) * (MOST_LAYERS - 1)), True),
        (lambda: cb.models.EmbeddingMLP(SCHEMA, dim=4, hidden=(2,) * MOST_LAYERS), False),
        (lambda: cb.models.DeepFM(SCHEMA, dim=4, hidden=(8,), batch_norm=True), False),
        (lambda: cb.models.DCNv2(SCHEMA, dim=4, hidden=(8,)), False),
        (lambda: Mine(SCHEMA), False),
        (hooked, False),
        (lambda: cb.models.LR(SCHEMA).double(), False),
        (lambda: changed(replaced), False),
        (lambda: changed(longer), False),
        (lambda: changed(fewer), False),
    ],
)
def test_the_usual_models_are_computed_natively(model: Callable[[], nn.Module], native: bool) -> None:
    made = ClickModel(model(), SCHEMA, None)
    assert (made.native is not None) is native


def test_several_tables_and_common_fields_are_left_to_torch() -> None:
    model = cb.models.FM(SCHEMA, dim=4)
    tables = {"user": cb.MemoryTable(4), "*": cb.MemoryTable(4)}
    assert ClickModel(model, SCHEMA, tables).native is None
    assert ClickModel(model, SCHEMA, None, common=["tags"]).native is None
    assert ClickModel(model, SCHEMA, None, bf16=True).native is None


def test_dropout_is_that_of_the_layer_before_it() -> None:
    made = ClickModel(cb.models.DeepFM(SCHEMA, dim=4, hidden=(8, 4), dropout=0.25), SCHEMA, None)
    assert made.native is not None
    assert made.native.drops == [0.25, 0.25, 0.0]
    tower: Any = made.model.tower
    assert isinstance(tower, MLP)
    assert len(tower.layers) == 3


def test_weights_that_move_are_followed_and_hooks_hand_over_to_torch() -> None:
    torch.manual_seed(1)
    made = ClickModel(cb.models.DeepFM(SCHEMA, dim=4, hidden=(8,)), SCHEMA, None)
    batch = next(PLAN.batches(40))
    assert made.native is not None
    first = made.predict(batch)
    built = made.native.native
    made.predict(batch)
    assert made.native.native is built
    with torch.no_grad():
        for weight in made.model.parameters():
            weight.data = weight.data.clone() * 2 + 0.5
    second = made.predict(batch)
    assert made.native.native is not built
    assert not np.allclose(first, second)
    calls: list[int] = []
    handle = made.model.register_forward_hook(lambda *given: calls.append(1))
    assert not made.native.usable
    assert np.allclose(made.predict(batch), second, rtol=1e-5)
    assert calls == [1]
    handle.remove()
    assert made.native.usable


def test_several_labels_need_their_own_models_and_plain_tables_on_the_cpu() -> None:
    several = nn.Linear(1, 1)
    check_tasks(several, False, False)
    with pytest.raises(
        PlanError, match=r"^LR predicts one label, but this plan has several \(labels=\); use one of .*ESMM"
    ):
        check_tasks(cb.models.LR(SCHEMA), False, False)
    with pytest.raises(
        PlanError, match=r"^a model of several labels \(labels=\) runs on the CPU only; use device='cpu'"
    ):
        check_tasks(several, True, False)
    with pytest.raises(PlanError, match=r"^a table with counters= counts the clicks of one label, but this plan has"):
        check_tasks(several, False, True)
    check_tasks(Mine(SCHEMA), False, False)  # its forward may return several
