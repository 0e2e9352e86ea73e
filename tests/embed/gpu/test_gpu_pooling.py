"""A training step over a GPU table against lookup, pooling and push on the CPU, its sums in the promised order, bit for bit.

As in test_gpu_table.py, kernels run on the CPU here and on a GPU in tests/gpu.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.embed.embedder import Row
from ctrbox.embed.gpu import kernels as gpu_kernels
from ctrbox.embed.gpu.batch_to_device import References, joined
from ctrbox.embed.gpu.gpu_table import GpuTable
from ctrbox.embed.gpu.pooling import Reading
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.embed.pooling import KINDS, sequence
from ctrbox.embed.unique_keys import Lookup
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.errors import DataError, PlanError
from ctrbox.optimizers.of_table_rows import FTRL, SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad
from tests.cuda_host import HostRuntime
from tests.embed.calls import bits
from tests.embed.gpu.test_gpu_table import SHAPES, Shape, assert_same, named, pair, plain, shapes
from tests.embed.test_unique_keys import batches
from tests.twins import unique_keys as twin

CHUNK, GROUP = gpu_kernels.CHUNK, gpu_kernels.GROUP


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return HostRuntime()


# ---- reading a batch ------------------------------------------------------------------------------------------------


def summed(terms: list[np.ndarray]) -> np.ndarray:
    """The promised order: chunks of 64, groups of 64 chunks, then whole groups, whole chunks and terms left."""

    def in_order(parts: list[np.ndarray]) -> np.ndarray:
        total = parts[0].copy()
        for part in parts[1:]:
            total = total + part
        return total

    chunks = [in_order(terms[k : k + CHUNK]) for k in range(0, len(terms) // CHUNK * CHUNK, CHUNK)]
    whole = len(chunks) // CHUNK * CHUNK
    groups = [in_order(chunks[k : k + CHUNK]) for k in range(0, whole, CHUNK)]
    return in_order([*groups, *chunks[whole:], *terms[len(chunks) * CHUNK :]])


def expected_push(
    slow: MemoryTable,
    batch: Batch,
    fields: Sequence[str],
    kinds: Sequence[str],
    gradient: np.ndarray,
    scale: float,
) -> None:
    """One step of the table in memory, gradients summed reference by reference. gradient (rows, fields, width)."""
    terms: dict[int, list[np.ndarray]] = {}
    one = np.float32(1)
    for f, (name, kind) in enumerate(zip(fields, kinds, strict=True)):
        for r in range(batch.rows):
            keys = batch.sparse[name][r].tolist()
            g = gradient[r, f]
            rows = slow.pull(np.array(list(dict.fromkeys(keys)), np.int64), create=False) if kind == "max" else None
            place = {key: k for k, key in enumerate(dict.fromkeys(keys))}
            for k, key in enumerate(keys):
                term = g * (one / np.float32(len(keys))) if kind == "mean" else g.copy()
                if rows is not None:
                    won = [twin.winner([rows[place[other]][c] for other in keys]) == k for c in range(len(g))]
                    term = np.where(won, g, np.float32(0)).astype(np.float32)
                terms.setdefault(key, []).append(term)
    terms.pop(0, None)
    keys = np.array(list(terms), np.int64)
    width = slow.row.width
    sums = np.array([summed(t) for t in terms.values()], np.float32).reshape(len(keys), width) * np.float32(scale)
    slow.push(keys, sums)


def read_and_push(
    table: GpuTable,
    batch: Batch,
    fields: Sequence[str],
    kinds: Sequence[str],
    gradient: np.ndarray,
    scale: float,
    used: str = "both",
) -> Reading:
    reading = table.read(References.of(batch, fields, table.device), fields, kinds)
    linear = int(table.row.linear)
    outputs = []
    if used != "weights":
        outputs.append((reading.vectors, gradient[:, :, linear:]))
    if reading.weights is not None and used != "vectors":
        outputs.append((reading.weights, gradient[:, :, 0]))
    given_back = [torch.from_numpy(np.ascontiguousarray(g)).to(table.device) for _, g in outputs]
    torch.autograd.backward([o for o, _ in outputs], given_back)
    reading.push(scale)
    return reading


def shown(reading: Reading) -> np.ndarray:
    parts = [reading.vectors] if reading.weights is None else [reading.weights.unsqueeze(2), reading.vectors]
    return torch.cat(parts, 2).detach().cpu().numpy()


def trained(rng: np.random.Generator, *tables: Any, keys: np.ndarray) -> None:
    g = rng.normal(size=(len(keys), tables[0].row.width)).astype(np.float32)
    for table in tables:
        table.push(keys, g)


few = st.integers(0, 4)  # few keys: rows repeat them, fields share them


@settings(max_examples=80, deadline=None)
@given(batches(few), shapes, st.data())
def test_a_step_over_a_batch_equals_lookup_pooling_and_push(
    runtime: Runtime, batch: Batch, shape: tuple[Row, tuple[Optimizer, Optimizer]], data: st.DataObject
) -> None:
    row, optimizers = shape
    table, slow = pair(runtime, row, optimizers)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    trained(rng, table, slow, keys=np.arange(1, 4))  # some known, some new
    fields = [f.name for f in batch.schema.sparse]
    kinds = [data.draw(st.sampled_from(KINDS)) for _ in fields]
    used = data.draw(st.sampled_from(["both", "vectors", "weights"])) if row.linear and row.dim else "both"
    gradient = rng.normal(size=(batch.rows, len(fields), row.width)).astype(np.float32)
    if used != "both":
        gradient[:, :, slice(1) if used == "vectors" else slice(1, None)] = 0
    found = twin.lookup(batch, fields)
    keys = np.array(found.keys, np.int64)
    forward = twin.pool(slow.pull(keys), found.lists, kinds) if fields else np.zeros((batch.rows, 0, row.width))
    reading = read_and_push(table, batch, fields, kinds, gradient, 3.0, used)
    np.testing.assert_array_equal(bits(shown(reading)), bits(forward.astype(np.float32)))
    expected_push(slow, batch, fields, kinds, gradient, 3.0)
    assert_same(table, slow)
    look = table.read(References.of(batch, fields, table.device), fields, kinds, train=False)
    np.testing.assert_array_equal(
        bits(shown(look)), bits(twin.pool(slow.pull(keys), found.lists, kinds) if fields else shown(look))
    )


def batch_of_keys(fields: dict[str, Any], rows: int, ragged: bool = False) -> Batch:
    schema = Schema(tuple(Field(name, name, ragged) for name in fields), (), False, False, False)
    sparse = {
        name: Ragged(values, np.arange(rows + 1) * (len(values) // max(rows, 1))) for name, values in fields.items()
    }
    return Batch(schema, rows, None, np.zeros((rows, 0), np.float32), sparse, None)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.sampled_from([1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7, GROUP, GROUP + CHUNK]), max_size=6
    ),
    st.integers(0, 2**32),
)
def test_keys_with_many_references_are_summed_in_the_promised_order(
    runtime: Runtime, counts: list[int], seed: int
) -> None:
    table, slow = plain(runtime)
    rng = np.random.default_rng(seed)
    keys = rng.permutation(np.repeat(np.arange(len(counts)), counts))  # key 0, the null slot, among them
    batch = batch_of_keys({"a": keys}, len(keys))
    gradient = rng.normal(size=(len(keys), 1, 9)).astype(np.float32)
    read_and_push(table, batch, ["a"], ["sum"], gradient, 2.0)
    expected_push(slow, batch, ["a"], ["sum"], gradient, 2.0)
    assert_same(table, slow)


def test_one_key_with_all_references_of_a_batch(runtime: Runtime) -> None:
    table, slow = plain(runtime)
    rng = np.random.default_rng(0)
    rows = 3000
    batch = batch_of_keys({name: np.full(rows, 7) for name in "abcdef"}, rows)
    gradient = rng.normal(size=(rows, 6, 9)).astype(np.float32)
    read_and_push(table, batch, [*"abcdef"], ["mean"] * 6, gradient, 1.0)
    expected_push(slow, batch, [*"abcdef"], ["sum"] * 6, gradient, 1.0)
    assert_same(table, slow)


IN_STEPS: list[Shape] = [
    (Row(16, True), [(RowwiseAdagrad(lr=0.2, l2=1e-3), FTRL(l1=0.01))]),
    (Row(18, True), [(Adagrad(initial=0.1), RowwiseAdagrad())]),  # a part of two columns
    (Row(17), [(Adam(lr=0.01, l2=1e-2), SGD())]),
    (Row(36, True), [(Adagrad(initial=0.1), Adam())]),
    (Row(160), [(RowwiseAdagrad(initial=0.5), SGD())]),  # more parts than lanes
]
IN_WINDOWS: list[Shape] = [
    (Row(16), [(SGD(l2=0.1), SGD())]),
    (Row(18), [(Adagrad(initial=0.1), SGD())]),  # a part of two columns
    (Row(40), [(RowwiseAdagrad(lr=0.2, l2=1e-3), SGD())]),  # more parts than lanes
    (Row(128), [(RowwiseAdagrad(initial=0.5), SGD())]),
]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("shape", "windows"),
    [*((shape, False) for shape in IN_STEPS), *((shape, True) for shape in IN_WINDOWS)],
    ids=lambda x: named(x) if isinstance(x, tuple) else "windows" if x else "steps",
)
def test_lanes_that_share_a_row_give_the_bits_of_one_thread(shape: Shape, windows: bool, order: int) -> None:
    """Blocks of 64 fibers in the place of threads, the first or the last of them first."""
    row, [optimizers] = shape
    table, slow = pair(HostRuntime(64, order=order), row, optimizers)
    assert table.store.kernels.windows == windows
    assert table.store.kernels.lanes == min(32, 1 << ((row.dim + 3) // 4).bit_length() - 1) > 1
    rng = np.random.default_rng(2)
    rows = 200 if row.dim < 100 else 30  # fibers that meet are slow
    keys = {"a": rng.integers(0, 1 + rows // 40, 3 * rows), "b": rng.integers(0, 2 * rows, 3 * rows)}
    batch = batch_of_keys(keys, rows, ragged=True)
    for _ in range(2):
        gradient = rng.normal(size=(rows, 2, row.width)).astype(np.float32)
        expected_push(slow, batch, ["a", "b"], ["mean", "sum"], gradient, 1.0)
        read_and_push(table, batch, ["a", "b"], ["mean", "sum"], gradient, 1.0)
    assert_same(table, slow)
    gradient[7, 1, -1] = np.nan
    read_and_push(table, batch, ["a", "b"], ["mean", "sum"], gradient, 1.0)
    told = table.told()
    assert batch.sparse["b"].values[told - 3 * rows] in batch.sparse["b"][7]
    assert np.isfinite(table.export()[1]).all()


@pytest.mark.parametrize("dim", [16, 32, 128])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_windows_of_sorted_references_give_the_bits_of_single_steps(
    dim: int, bf16: bool, ragged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of one reference to three chunks of them, in rows that end inside windows, at their ends and beyond."""
    rng = np.random.default_rng(dim)
    counts = [1, 2, 3, 31, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5, *[1] * 20]
    keys = rng.permutation(np.repeat(np.arange(len(counts)), counts))  # key 0, the null slot, among them
    keys = keys[: len(keys) // 2 * 2]
    rows = len(keys) // 2 if ragged else len(keys)
    batch = batch_of_keys({"a": keys}, rows, ragged=ragged)
    found = []
    for windows in (True, False):
        if not windows:
            monkeypatch.setattr(gpu_kernels, "in_windows", lambda *_: False)
        table, _ = pair(HostRuntime(64), Row(dim), (RowwiseAdagrad(lr=0.3, l2=1e-3), SGD()))
        assert table.store.kernels.windows == windows
        for step in range(2):
            reading = table.read(References.of(batch, ["a"], table.device), ["a"], ["mean"], bf16=bf16)
            gradient = np.random.default_rng(step).normal(size=(rows, 1, dim)).astype(np.float32)
            reading.vectors.backward(torch.from_numpy(gradient).to(reading.vectors.dtype))
            reading.push(2.0)
        found.append(table)
    assert_same(found[0], found[1])


@settings(max_examples=40, deadline=None)
@given(batches(few), st.integers(1, 3), st.data())
def test_sequences_and_their_gradient_equal_those_of_the_table_in_memory(
    runtime: Runtime, batch: Batch, longest: int, data: st.DataObject
) -> None:
    names = [f.name for f in batch.schema.sparse]
    if not names:
        return
    table, slow = plain(runtime)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    trained(rng, table, slow, keys=np.arange(1, 3))
    cut = data.draw(st.integers(0, len(names) - 1))
    pooled, sequences = names[:cut], names[cut:]
    references = References.of(batch, names, table.device, sequences)
    reading = table.read(references, pooled, ["sum"] * cut, sequences, longest=longest)
    lookup = Lookup.of(batch, names)
    rows = torch.from_numpy(slow.pull(lookup.keys)).requires_grad_()
    outputs, given_back, slow_outputs = [], [], []
    for name in sequences:
        vectors, lengths = reading.sequences[name]
        expected, counts = sequence(rows, lookup, slow.row, name, longest)
        np.testing.assert_array_equal(bits(vectors.detach().cpu().numpy()), bits(expected.detach().numpy()))
        np.testing.assert_array_equal(lengths.cpu().numpy(), counts.numpy())
        # Whole numbers: their sums are exact in any order.
        g = torch.from_numpy(rng.integers(-8, 8, tuple(vectors.shape)).astype(np.float32))
        outputs.append(vectors)
        slow_outputs.append(expected)
        given_back.append(g)
    torch.autograd.backward(outputs, [g.to(table.device) for g in given_back])
    torch.autograd.backward(slow_outputs, given_back)
    reading.push(1.0)
    assert rows.grad is not None
    slow.push(lookup.keys, rows.grad.numpy())
    assert_same(table, slow)


def test_what_the_loss_does_not_depend_on_is_not_pushed(runtime: Runtime) -> None:
    table, _ = plain(runtime)
    batch = batch_of_keys({"a": np.arange(1, 5)}, 4)
    reading = table.read(References.of(batch, ["a"], table.device), ["a"], ["sum"])
    before = table.export()
    reading.push(1.0)
    for mine, theirs in zip(table.export(), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_told_by_its_reference(runtime: Runtime, value: float) -> None:
    for row, pairs in SHAPES:
        if row.dim == 0:
            continue
        table, slow = pair(runtime, row, pairs[0])
        batch = batch_of_keys({"a": np.arange(1, 100), "b": np.arange(1000, 1099)}, 99)
        gradient = np.ones((99, 2, row.width), np.float32)
        gradient[40, 1, -1] = value
        read_and_push(table, batch, ["a", "b"], ["sum", "sum"], gradient, 1.0)
        table.wait()
        assert table.told() == 99 + 40
        assert table.told() == -1  # once
        assert np.isfinite(table.export()[1]).all()
        others = np.array([*range(1, 100), *(k for k in range(1000, 1099) if k != 1040)])
        slow.push(others, np.ones((len(others), row.width), np.float32))
        np.testing.assert_array_equal(bits(table.pull(others)), bits(slow.pull(others)))


# ---- batches of tensors ---------------------------------------------------------------------------------------------


def as_tensors(batch: Batch, device: torch.device) -> Batch:
    def moved(array: Any) -> Any:
        return None if array is None else torch.from_numpy(np.array(array)).to(device)

    sparse = {name: Ragged(moved(r.values), moved(r.offsets)) for name, r in batch.sparse.items()}
    return Batch(batch.schema, batch.rows, moved(batch.label), moved(batch.dense), sparse, moved(batch.group))


@settings(max_examples=40, deadline=None)
@given(batches(few), st.data())
def test_a_batch_of_tensors_reads_as_its_arrays_do(runtime: Runtime, batch: Batch, data: st.DataObject) -> None:
    there = as_tensors(Batch.concat([batch]) if batch.rows else batch, runtime.device)
    names = data.draw(st.permutations([f.name for f in batch.schema.sparse]))
    kinds = [data.draw(st.sampled_from(KINDS)) for _ in names]
    table, _ = plain(runtime)
    if batch.rows:
        mine = shown(table.read(References.of(there, names, table.device), names, kinds))
        other = shown(table.read(References.of(batch, names, table.device), names, kinds))
        np.testing.assert_array_equal(bits(mine), bits(other))
        rows = np.array(data.draw(st.lists(st.integers(0, batch.rows - 1))), np.int64)
        taken, expected = there.take(rows).cpu(), batch.take(rows)
        for name in names:
            np.testing.assert_array_equal(taken.sparse[name].values, expected.sparse[name].values)
            np.testing.assert_array_equal(taken.sparse[name].offsets, expected.sparse[name].offsets)
    assert there.on_device
    assert not there.cpu().on_device


def test_wrong_offsets_of_tensors_read_nothing_outside_their_field(runtime: Runtime) -> None:
    table, _ = plain(runtime)
    batch = as_tensors(batch_of_keys({"a": np.arange(1, 9), "b": np.arange(11, 19)}, 4, ragged=True), runtime.device)
    before = shown(table.read(References.of(batch, ["a", "b"], table.device), ["a", "b"], ["sum", "sum"]))
    batch.sparse["a"].offsets[:] = torch.tensor([-5, 3, 2**62, 7, -(2**62)], device=runtime.device)
    odd = shown(table.read(References.of(batch, ["a", "b"], table.device), ["a", "b"], ["sum", "sum"]))
    np.testing.assert_array_equal(odd[:, 1], before[:, 1])
    np.testing.assert_array_equal(bits(odd[0, 0]), bits(table.pull(np.arange(1, 4)).cumsum(0, np.float32)[-1]))


def test_neighbors_in_memory_are_joined_without_a_copy(runtime: Runtime) -> None:
    whole = torch.arange(30, device=runtime.device)
    together = joined([whole[:10], whole[10:10], whole[10:25]], runtime.device)
    assert together.data_ptr() == whole.data_ptr()
    assert together.tolist() == list(range(25))
    apart = joined([whole[:10], whole[11:25]], runtime.device)
    assert apart.tolist() == [*range(10), *range(11, 25)]
    assert joined([whole[10:20], whole[:10]], runtime.device).tolist() == [*range(10, 20), *range(10)]
    assert joined([whole[::2]], runtime.device).tolist() == list(range(0, 30, 2))
    assert len(joined([], runtime.device)) == 0


def test_batches_that_do_not_fit_are_refused(runtime: Runtime) -> None:
    good = batch_of_keys({"a": np.arange(1, 9)}, 4, ragged=True)
    for batch in (good, as_tensors(good, runtime.device)):
        with pytest.raises(PlanError, match="'b' is not a sparse field of this batch"):
            References.of(batch, ["b"], runtime.device)
    for offsets, words in [
        ([-1, 2, 4, 6, 8], "begin at -1, below 0"),
        ([0, 5, 4, 6, 8], "offsets decrease"),
        ([0, 2, 4, 6, 9], "offsets end at 9, but there are only 8 values"),
    ]:
        odd = Batch(good.schema, 4, None, good.dense, {"a": Ragged(np.arange(8), np.array(offsets))}, None)
        with pytest.raises(DataError, match=words):
            References.of(odd, ["a"], runtime.device)
    floats = Batch(good.schema, 4, None, good.dense, {"a": Ragged(np.zeros(4), np.arange(5))}, None)
    single = batch_of_keys({"a": np.arange(1, 9)}, 4)
    for batch, words in [
        (floats, "expected int64"),
        (single, "no key or several keys, but its schema says exactly one"),
    ]:
        for one in (batch, as_tensors(batch, runtime.device)):
            with pytest.raises(DataError, match=words):
                References.of(one, ["a"], runtime.device)
    with pytest.raises(PlanError, match="pooling must be one of"):
        plain(runtime)[0].read(References.of(good, ["a"], runtime.device), ["a"], ["none"])


# ---- in bfloat16 ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(batches(few), shapes, st.integers(0, 2**32 - 1))
def test_vectors_in_bfloat16_are_the_rounded_ones_and_their_gradients_count_as_floats(
    runtime: Runtime, batch: Batch, shape: tuple[Row, tuple[Optimizer, Optimizer]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    row, _ = shape
    fields = [f.name for f in batch.schema.sparse]
    kinds = [KINDS[int(k)] for k in rng.integers(0, 3, len(fields))]
    keys = np.arange(1, 5)
    first = rng.normal(size=(4, row.width)).astype(np.float32)
    linear = int(row.linear)
    gradient = torch.from_numpy(rng.normal(size=(batch.rows, len(fields), row.width)).astype(np.float32))
    rounded = gradient[:, :, linear:].to(torch.bfloat16)
    found = []
    for bf16 in (False, True):
        table = pair(runtime, *shape)[0]
        table.push(keys, first)
        where = torch.device(table.device)
        reading = table.read(References.of(batch, fields, where), fields, kinds, bf16=bf16)
        assert reading.vectors.dtype == (torch.bfloat16 if bf16 else torch.float32)
        outputs, given_back = [reading.vectors], [(rounded if bf16 else rounded.float()).to(where)]
        if reading.weights is not None:
            outputs.append(reading.weights)
            given_back.append(gradient[:, :, 0].contiguous().to(where))
        torch.autograd.backward(outputs, given_back)
        reading.push(2.0)
        found.append((reading.vectors.detach(), *table.export()))
    exact, half = found
    assert torch.equal(half[0].view(torch.int16), exact[0].to(torch.bfloat16).view(torch.int16))
    for mine, theirs in zip(half[1:], exact[1:], strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_numbers_that_bfloat16_rounds_in_either_direction_or_not_at_all(runtime: Runtime) -> None:
    table = GpuTable(4, optimizer=SGD(lr=1.0), init=0.0, runtime=runtime)
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x00000001, 0x80000000, 0x00008000, 0xBF80FFFF]
    values = np.array(bits[:8], np.uint32).view(np.float32).reshape(2, 4)
    table.push(np.array([1, 2]), -values)  # SGD with a rate of 1: the rows become these numbers
    offsets = np.arange(3)
    batch = Batch(
        Schema((Field("a", "a", False),), (), True, False, False),
        2,
        np.zeros(2, np.float32),
        np.zeros((2, 0), np.float32),
        {"a": Ragged(np.array([1, 2]), offsets)},
        None,
    )
    reading = table.read(References.of(batch, ["a"], table.device), ["a"], ["sum"], train=False, bf16=True)
    expected = torch.from_numpy(np.asarray(table.pull(np.array([1, 2])))).to(torch.bfloat16)
    assert torch.equal(reading.vectors[:, 0].cpu().view(torch.int16), expected.view(torch.int16))
