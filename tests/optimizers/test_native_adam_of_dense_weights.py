"""Adam's native step: its torch twin, the same bits for any number of threads, and what it leaves to torch."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox.optimizers.native_adam_of_dense_weights import AdamStep
from ctrbox.optimizers.of_dense_weights import dense_optimizer
from ctrbox.train.learn_batch import Learner
from tests.train.worlds import checkerboard, plan_of


def weights(sizes: list[int], seed: int = 0) -> list[torch.nn.Parameter]:
    torch.manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(size)) for size in sizes]


def gradients(mine: list[torch.nn.Parameter], step: int) -> None:
    torch.manual_seed(1000 + step)
    for weight in mine:
        weight.grad = torch.randn(weight.shape) * 10.0 ** ((step % 5) - 4)


def state(optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    return {
        f"{k}.{name}": value.numpy().copy()
        for k, one in optimizer.state_dict()["state"].items()
        for name, value in one.items()
    }


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 3, 16, 77]), min_size=1, max_size=3),
    asked=st.builds(
        cb.optim.Adam,
        lr=st.sampled_from([1e-3, 0.1]),
        beta1=st.sampled_from([0.0, 0.9]),
        beta2=st.sampled_from([0.5, 0.999]),
        eps=st.sampled_from([1e-8, 1e-3]),
        l2=st.sampled_from([0.0, 0.01]),
    ),
)
def test_native_steps_are_those_of_torch(sizes: list[int], asked: cb.optim.Adam) -> None:
    ours, theirs = weights(sizes), weights(sizes)
    mine, twin = dense_optimizer(asked)(ours), dense_optimizer(asked)(theirs)
    native = AdamStep(mine)
    assert native.usable
    for step in range(6):
        gradients(ours, step)
        gradients(theirs, step)
        native.step(2)
        twin.step()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.detach(), b.detach(), rtol=1e-5, atol=1e-3 * asked.lr)
    for (name, a), (other, b) in zip(state(mine).items(), state(twin).items(), strict=True):
        assert name == other
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * float(np.abs(b).max()), err_msg=name)


def test_weights_have_the_same_bits_for_any_number_of_threads() -> None:
    found = []
    for threads in (1, 2, 5, 16):
        mine = weights([100_003, 1, 40_000])
        native = AdamStep(dense_optimizer(cb.optim.Adam(lr=0.01))(mine))
        for step in range(3):
            gradients(mine, step)
            native.step(threads)
        found.append(b"".join(w.detach().numpy().tobytes() for w in mine))
    assert found[0] == found[1] == found[2] == found[3]


def test_native_steps_go_on_where_torch_or_a_checkpoint_left_the_state() -> None:
    ours, theirs = weights([20]), weights([20])
    mine, twin = (dense_optimizer(cb.optim.Adam(lr=0.01))(w) for w in (ours, theirs))
    native = AdamStep(mine)
    for step in range(6):
        gradients(ours, step)
        gradients(theirs, step)
        if step == 2:
            mine.step()
        elif step == 4:
            mine.load_state_dict(mine.state_dict())
            native.step(1)
        else:
            native.step(1)
        twin.step()
    np.testing.assert_allclose(ours[0].detach(), theirs[0].detach(), rtol=1e-5)
    assert float(mine.state[ours[0]]["step"]) == 6


def test_native_steps_take_the_rate_of_a_state_that_was_loaded() -> None:
    (mine,) = weights([4])
    optimizer = dense_optimizer(cb.optim.Adam(lr=0.1))([mine])
    native = AdamStep(optimizer)
    gradients([mine], 0)
    native.step(1)
    optimizer.load_state_dict(optimizer.state_dict())  # the same tensors in other groups
    optimizer.param_groups[0]["lr"] = 0.0
    before = mine.detach().clone()
    native.step(1)
    assert torch.equal(mine.detach(), before)


def test_weights_without_a_gradient_stay() -> None:
    mine = weights([4, 5])
    before = mine[1].detach().clone()
    optimizer = dense_optimizer(cb.optim.Adam(lr=0.01))(mine)
    gradients(mine[:1], 0)
    AdamStep(optimizer).step(1)
    assert torch.equal(mine[1].detach(), before)
    assert mine[1] not in optimizer.state


@pytest.mark.parametrize(
    "option",
    [
        {"amsgrad": True},
        {"maximize": True},
        {"lr": torch.tensor(0.1), "foreach": False},
        pytest.param(
            {"decoupled_weight_decay": True, "weight_decay": 0.1},
            marks=pytest.mark.skipif(
                "decoupled_weight_decay" not in inspect.signature(torch.optim.Adam).parameters,
                reason="this version of torch has no decoupled_weight_decay of Adam",
            ),
        ),
    ],
)
def test_torch_keeps_what_the_native_step_does_not_know(option: dict[str, Any]) -> None:
    assert not AdamStep(torch.optim.Adam(weights([3]), **option)).usable


def test_torch_keeps_an_optimizer_that_somebody_hooked_into() -> None:
    optimizer = torch.optim.Adam(weights([3]))
    native = AdamStep(optimizer)
    assert native.usable
    handle = optimizer.register_step_post_hook(lambda *_: None)
    assert not native.usable
    handle.remove()
    assert native.usable
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # counts steps by a step function of its own
    assert not native.usable


def test_a_training_step_of_a_usual_model_takes_the_native_step() -> None:
    plan = plan_of(checkerboard(200))
    (batch,) = plan.batches(200)
    found = []
    for native in (True, False):
        torch.manual_seed(0)
        model = cb.models.FM(plan.schema, 4)
        one = Learner(model, plan.schema, cb.MemoryTable(4), dense_optimizer(cb.optim.Adam(lr=0.01)))
        assert one.adam is not None
        calls: list[int] = []
        if native:
            step = one.adam.step
            one.adam.step = lambda threads, step=step, calls=calls: (calls.append(1), step(threads))  # type: ignore[misc]
        else:
            one.adam = None
        for _ in range(3):
            one.learn(one.look(batch))
        assert len(calls) == (3 if native else 0)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_another_optimizer_is_left_to_torch() -> None:
    plan = plan_of(checkerboard(100))
    for other in (cb.optim.SGD(lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.1)):
        made = dense_optimizer(other)
        assert Learner(cb.models.FM(plan.schema, 4), plan.schema, cb.MemoryTable(4), made).adam is None
