"""Dense optimizers of a table in memory: the bits of torch.optim.Adam and AdamW, and of a slow twin, for every row."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.embedder import Row
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.embed.shards import Spec
from ctrbox.errors import DataError, PlanError
from ctrbox.optimizers.of_table_rows import Adagrad, Adam, AdamW, Optimizer, optimizer_of, spec_of
from tests.embed.calls import KEYS, VERBS, bits, call_both
from tests.embed.memory.test_memory_table import assert_same, pair, random_calls
from tests.train.test_run_folder import Stop, StopAt
from tests.train.test_run_folder import see_every_step as see_every_step
from tests.train.worlds import FAST, Small, checkerboard, plan_of, weights

DENSE: list[Optimizer] = [
    Adam(lr=0.01, dense=True),
    Adam(lr=0.003, l2=0.02, dense=True),
    Adam(lr=0.01, beta1=0.3, beta2=0.9, eps=1e-3, l2=0.1, dense=True),
    AdamW(lr=0.01),
    AdamW(lr=0.05, beta1=0.0, beta2=0.99, weight_decay=0.3),
]
KEPT = np.arange(1, 38) * 7919  # keys of 37 rows, a number that no vector register divides


def torch_fuses() -> bool:
    """Whether torch's kernels use fused multiply-add: 1 + 2⁻¹¹ is what is left of a square after rounding."""
    x = torch.full((64,), 1 + 2.0**-12)
    return bool((torch.full((64,), -(1 + 2.0**-11)).add(x, alpha=1 + 2.0**-12) == 2.0**-24).all())


def torch_rounds_roots() -> bool:
    """Whether torch's square roots are the nearest floats. Those of Intel MKL, on x86_64, miss the nearest for some of them."""
    x = np.random.default_rng(1).random(10_000, np.float32)
    return bool((torch.from_numpy(x).sqrt().numpy() == np.sqrt(x)).all())


class NearestRoots(TorchDispatchMode):
    """Inside it torch computes with square roots that are rounded to the nearest float, everything else as always."""

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call is torch.ops.aten.sqrt.default:
            return torch.from_numpy(np.sqrt(args[0].detach().numpy()))
        return call(*args, **(kwargs or {}))


def in_torch(optimizer: Optimizer, weight: torch.Tensor) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"foreach": False, "fused": False, "lr": optimizer.lr, "eps": optimizer.eps}  # type: ignore[union-attr]
    options["betas"] = (optimizer.beta1, optimizer.beta2)  # type: ignore[union-attr]
    if isinstance(optimizer, AdamW):
        return torch.optim.AdamW([weight], weight_decay=optimizer.weight_decay, **options)
    assert isinstance(optimizer, Adam)
    return torch.optim.Adam([weight], weight_decay=optimizer.l2, **options)


@pytest.mark.skipif(not torch_fuses(), reason="torch's kernels on this CPU round between multiplication and addition")
@pytest.mark.parametrize("optimizer", DENSE, ids=str)
@pytest.mark.parametrize("row", [Row(5, True), Row(16), Row(0, True)], ids=str)
def test_a_hundred_steps_have_the_bits_of_torch_also_in_rows_that_no_batch_touches(
    optimizer: Optimizer, row: Row, tmp_path: Path
) -> None:
    rng = np.random.default_rng(row.width)
    table = MemoryTable(row.dim, optimizer=optimizer, init=0.1, seed=3)
    table.open(row)
    weight = torch.from_numpy(table.pull(KEPT).copy()).requires_grad_()
    slow = in_torch(optimizer, weight)
    exact = torch_rounds_roots()
    for step in range(100):
        some = rng.permutation(len(KEPT) - 10)[: rng.integers(0, 20)]  # the last ten keys are in no batch
        g = (rng.normal(size=(len(some), row.width)) * 10.0 ** rng.integers(-5, 2)).astype(np.float32)
        factor = float(rng.choice([1.0, 0.3]))
        table.scale_lr(factor)
        slow.param_groups[0]["lr"] = optimizer.lr * factor  # type: ignore[union-attr]
        weight.grad = torch.zeros_like(weight)
        weight.grad[some] = torch.from_numpy(g)
        with nullcontext() if exact else NearestRoots():
            slow.step()
        table.push(KEPT[some], g)
        np.testing.assert_array_equal(bits(table.pull(KEPT)), bits(weight.detach().numpy()))
        if step == 50:  # as a training that stops and resumes
            table.save(tmp_path / "half.ctrtable")
            table = MemoryTable.load(tmp_path / "half.ctrtable")


def test_rows_stay_close_to_torch_with_whatever_square_roots_it_has() -> None:
    optimizer, rng = Adam(lr=0.01, dense=True), np.random.default_rng(4)
    table = MemoryTable(8, optimizer=optimizer, init=0.1, seed=3)
    weight = torch.from_numpy(table.pull(KEPT).copy()).requires_grad_()
    slow = in_torch(optimizer, weight)
    for _ in range(50):
        g = rng.normal(size=(len(KEPT), 8)).astype(np.float32)
        weight.grad = torch.from_numpy(g)
        slow.step()
        table.push(KEPT, g)
    np.testing.assert_allclose(table.pull(KEPT), weight.detach().numpy(), rtol=1e-5, atol=1e-7)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_sequence_of_calls_equals_the_twin_on_any_number_of_threads(data: st.DataObject) -> None:
    row = Row(data.draw(st.sampled_from([0, 1, 3, 8])), True)
    optimizer, linear = data.draw(st.sampled_from(DENSE)), data.draw(st.sampled_from(DENSE))
    table, slow = pair(row, optimizer, linear, threads=data.draw(st.sampled_from([1, 3])))
    verbs = [verb for verb in VERBS if verb != "scale"]
    gradients = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=20)
    for _ in range(data.draw(st.integers(1, 6))):
        keys = np.array(data.draw(st.lists(KEYS, max_size=8, unique=True)), np.int64)
        call_both(data, table, slow, keys, row.width, verbs, gradients)
    assert_same(table, slow)


def test_many_rows_on_many_threads_equal_those_on_one() -> None:
    tables = [MemoryTable(8, optimizer=DENSE[1], threads=threads) for threads in (1, 4)]
    for keys, g in random_calls(np.random.default_rng(5), Row(8), 12, 6000):
        for table in tables:
            table.push(keys, g)
    assert_same(tables[0], tables[1])


def test_a_row_that_was_only_prefetched_keeps_its_initial_value() -> None:
    """When a row is prefetched depends on the speed of other threads: results must not."""
    table = MemoryTable(4, optimizer=AdamW(lr=0.1, weight_decay=0.5), init=0.1)
    fresh = table.pull(KEPT, create=False).copy()
    table.prefetch(KEPT)
    for _ in range(3):
        table.push(KEPT[:1], np.ones((1, 4), np.float32))
    np.testing.assert_array_equal(table.pull(KEPT[1:], create=False), fresh[1:])
    table.pull(KEPT)
    table.push(KEPT[:1], np.ones((1, 4), np.float32))
    np.testing.assert_array_equal(table.pull(KEPT[1:]), fresh[1:] * np.float32(1 - 0.1 * 0.5))


def test_a_repeated_key_and_a_gradient_that_is_not_finite_change_nothing() -> None:
    table = MemoryTable(4, optimizer=DENSE[1])
    table.push(KEPT, np.ones((37, 4), np.float32))
    before = [array.copy() for array in table.export()]
    with pytest.raises(
        DataError, match=rf"key {KEPT[2]} is given twice in one push, but the dense optimizer Adam\(.*\) takes"
    ):
        table.push(KEPT[[0, 2, 40 % 37, 2]], np.ones((4, 4), np.float32))
    with pytest.raises(DataError, match="no weight was changed"):
        table.push(KEPT[:2], np.array([[1, 1, 1, 1], [1, np.inf, 1, 1]], np.float32))
    for mine, earlier in zip(table.export(), before, strict=True):
        np.testing.assert_array_equal(mine, earlier)
    table.push(KEPT[:1], np.ones((1, 4), np.float32))
    skipping = MemoryTable(4, optimizer=DENSE[1], nonfinite="skip")
    skipping.push(KEPT[:2], np.array([[1, 1, 1, 1], [1, np.inf, 1, 1]], np.float32))
    assert skipping.skipped == 1


def test_tables_that_cannot_move_all_rows_refuse_a_dense_optimizer(tmp_path: Path) -> None:
    from tests.cuda_host import HostRuntime

    for optimizer in (DENSE[0], DENSE[3]):
        with pytest.raises(
            PlanError, match=r"is dense: every push moves all rows of the table, which a SparseTable cannot do"
        ):
            cb.SparseTable(tmp_path / "table", 4, optimizer=optimizer)
        assert not (tmp_path / "table").exists()
        with pytest.raises(PlanError, match=r"which a GpuTable cannot do; use cb\.MemoryTable"):
            cb.tables.GpuTable(4, linear=optimizer, runtime=HostRuntime())
        with pytest.raises(PlanError, match=r"must be either both dense or both not dense"):
            cb.MemoryTable(4, optimizer=optimizer, linear=Adagrad())
        with pytest.raises(PlanError, match="takes no counters= or admission="):
            cb.MemoryTable(4, optimizer=optimizer, counters=cb.tables.Counters())
        with pytest.raises(PlanError, match="which a table that is split over processes does not support"):
            Spec.of(cb.MemoryTable(4, optimizer=optimizer), 2)
    with pytest.raises(PlanError, match=r"Adam\(dense=…\) must be True or False, got 1"):
        Adam(dense=1)  # type: ignore[arg-type]
    saved = cb.MemoryTable(4, optimizer=DENSE[1])
    saved.push(KEPT, np.ones((37, 4), np.float32))
    saved.save(tmp_path / "saved.ctrtable")
    with pytest.raises(PlanError, match="which a GpuTable cannot do"):
        cb.tables.GpuTable(4, runtime=HostRuntime()).restore(tmp_path / "saved.ctrtable")
    with pytest.raises(PlanError, match="which Adam"):
        saved.set_optimizer(Adam())
    saved.set_optimizer(Adam(lr=0.5, dense=True))
    with pytest.raises(DataError, match="cannot use those optimizer states"):
        cb.MemoryTable(4, optimizer=Adam()).restore(tmp_path / "saved.ctrtable")


def test_dense_optimizers_come_back_from_their_numbers() -> None:
    for optimizer in DENSE:
        assert optimizer_of(spec_of(optimizer)) == optimizer


# ---- in a training


def trained(optimizer: Optimizer, **options: Any) -> cb.Run:
    plan = plan_of(checkerboard(3000))
    table = cb.MemoryTable(4, optimizer=optimizer, init=0.1)
    return cb.Trainer(Small(plan.schema), table).fit(plan, **{**FAST, "epochs": 2, **options})


@pytest.mark.parametrize("optimizer", [DENSE[1], DENSE[3]], ids=str)
def test_a_training_resumes_bit_for_bit_and_does_not_depend_on_the_stages(optimizer: Optimizer, tmp_path: Path) -> None:
    whole = trained(optimizer)
    assert weights(trained(optimizer, overlap=False)) == weights(whole)
    with pytest.raises(Stop):
        trained(optimizer, out=tmp_path / "run", checkpoint_steps=4, progress=StopAt(14))
    watch = StopAt(10**9)
    assert weights(trained(optimizer, out=tmp_path / "run", checkpoint_steps=4, progress=watch)) == weights(whole)
    assert watch.resumed_at == 12


@pytest.mark.parametrize("batch_size", [64, 256])
def test_l2_of_a_dense_optimizer_is_the_weight_decay_of_torch_for_a_batch_of_any_size(batch_size: int) -> None:
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key(), "ad": col("ad").key()})
    plan = cb.compile(cb.View(checkerboard(1000), key="id"), features)
    table = cb.MemoryTable(0, optimizer=Adam(lr=0.01, l2=0.05, dense=True))
    model = cb.models.LR(plan.schema)
    cb.Trainer(model, table, optimizer=cb.optim.Adam(lr=0.01)).fit(plan, batch_size=batch_size, valid=0.0)

    batches = list(plan.batches(batch_size))
    fields = [[np.asarray(batch.sparse[name].values) for name in ("user", "ad")] for batch in batches]
    keys = np.unique(np.concatenate([values for batch in fields for values in batch]))
    weight, bias = torch.zeros(len(keys), requires_grad=True), torch.zeros(1, requires_grad=True)
    first = batches[0]
    with torch.no_grad():
        bias.fill_(float(np.log((first.label.sum() + 0.5) / (first.rows - first.label.sum() + 0.5))))
    slow = torch.optim.Adam([{"params": [weight], "weight_decay": 0.05}, {"params": [bias]}], lr=0.01, foreach=False)
    for batch, values in zip(batches, fields, strict=True):
        user, ad = (weight[torch.from_numpy(np.searchsorted(keys, one))] for one in values)
        label = torch.from_numpy(np.asarray(batch.label, np.float32))
        slow.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(user + ad + bias, label).backward()
        slow.step()
    assert float(weight.detach().abs().max()) > 0.01
    np.testing.assert_allclose(table.pull(keys)[:, 0], weight.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(model.bias.detach().numpy(), bias.detach().numpy(), atol=1e-5)
