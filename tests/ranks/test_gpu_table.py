"""The tables of ranks on GPUs, with kernels on the CPU; twins: a GPU table of one process, and tables of ranks on CPUs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.embed.embedder import Row
from ctrbox.embed.gpu.batch_to_device import References
from ctrbox.embed.shards import Spec, restore_shard, shard_path
from ctrbox.embed.vectors.vector_file import shard_of
from ctrbox.errors import TrainError
from ctrbox.ranks.gpu_table import GpuRankTable, owners_of
from ctrbox.ranks.table import RankTable
from tests.cuda_host import HostRuntime
from tests.ranks.test_group import joined

ROW = Row(3, True)
SETTINGS: dict[str, Any] = {"optimizer": cb.Adagrad(lr=0.1, initial=0.1), "linear": cb.optim.FTRL(), "init": 0.1}
NUMBER = itertools.count()


@cache
def runtime() -> HostRuntime:
    return HostRuntime()


def made(kind: str, folder: Path) -> Any:
    """A table of one process, of each kind that a rank on a GPU may own a part of."""
    if kind == "memory":
        table: Any = cb.MemoryTable(3, **SETTINGS)
    elif kind == "gpu":
        table = cb.tables.GpuTable(3, memory="1MB", runtime=runtime(), **SETTINGS)
    else:
        below = cb.SparseTable(folder / f"params-{next(NUMBER)}", 3, **SETTINGS)
        table = cb.tables.LevelTable(below, memory="1MB", runtime=runtime())
    table.open(ROW)
    return table


def test_the_owner_of_a_key_is_the_same_on_every_device() -> None:
    rng = np.random.default_rng(0)
    keys = np.concatenate([[0, 1, -1, 2**63 - 1, -(2**63)], rng.integers(-(2**63), 2**63 - 1, 5000)]).astype(np.int64)
    for of in (1, 2, 3, 7, 8, 1000, 1024):
        np.testing.assert_array_equal(owners_of(torch.from_numpy(keys), of).numpy(), shard_of(keys, of))


class Alone:
    """A group of one rank, whose exchanges return what was given."""

    part, of, by_nccl = 0, 1, False

    def counts(self, mine: list[int], kind: str) -> list[int]:
        return mine

    def exchange_tensor(self, tensor: torch.Tensor, mine: Any, theirs: Any, kind: str) -> torch.Tensor:
        return tensor


def ragged_batch(rng: np.random.Generator, rows: int) -> Batch:
    """Few keys that occur often, the null key among them, rows without keys, and a field of one key per row."""
    names, sparse = ("one", "bag", "most", "past"), {}
    for name in names:
        lengths = np.ones(rows, np.int64) if name == "one" else rng.integers(0, 4, rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        sparse[name] = Ragged(np.minimum(rng.zipf(1.4, offsets[-1]), 60) - 1, offsets)
    schema = Schema(tuple(Field(name, name, name != "one") for name in names), (), False, False, False)
    return Batch(schema, rows, None, np.zeros((rows, 0), np.float32), sparse, None)


def learned(table: Any, batch: Batch, rng: np.random.Generator, scale: float) -> list[np.ndarray]:
    """Make a step with random gradients; return what the model was given."""
    pooled, kinds, sequences = ("one", "bag", "most"), ("sum", "mean", "max"), ("past",)
    references = References.of(batch, (*pooled, *sequences), torch.device("cpu"), sequences)
    reading = table.read(references, pooled, kinds, sequences)
    outputs = [reading.weights, reading.vectors, reading.sequences["past"][0]]
    gradients = [torch.from_numpy(rng.standard_normal(o.shape).astype(np.float32)) for o in outputs]
    torch.autograd.backward(outputs, gradients)
    reading.push(scale)
    return [o.detach().numpy() for o in outputs]


@pytest.mark.parametrize("kind", ["gpu", "memory", pytest.param("level", marks=pytest.mark.exhaustive)])
def test_one_rank_learns_the_bits_of_a_gpu_table(kind: str, tmp_path: Path) -> None:
    table = GpuRankTable(Alone(), Spec.of_rank(made(kind, tmp_path), 1), runtime())  # type: ignore[arg-type]
    whole = made("gpu", tmp_path)
    for seed in range(6):
        found = [
            learned(t, ragged_batch(np.random.default_rng(seed), 50), np.random.default_rng(seed), 2.0)
            for t in (table, whole)
        ]
        for some, others in zip(*found, strict=True):
            assert some.tobytes() == others.tobytes()
    for some, others in zip(table.own.export(), whole.export(), strict=True):
        assert some.tobytes() == others.tobytes()
    table.wait()
    assert table.told() == -1


@pytest.mark.parametrize("kind", ["gpu", "memory", pytest.param("level", marks=pytest.mark.exhaustive)])
def test_three_ranks_hold_the_bits_of_ranks_on_cpus(kind: str, tmp_path: Path) -> None:
    """Ranks ask for overlapping keys, one for none; the sums of gradients are in rank order."""
    rng = np.random.default_rng(0)
    asked = [rng.permutation(50)[:30].astype(np.int64), np.empty(0, np.int64), np.arange(20, 60)]
    given = [rng.standard_normal((len(keys), ROW.width)).astype(np.float32) for keys in asked]
    specs = [Spec.of_rank(made(k, tmp_path), 3) for k in (kind, "memory")]

    def work(table: Callable[[Any], RankTable], mine: np.ndarray, gradients: np.ndarray) -> Any:
        def steps(group: Any) -> Any:
            one = table(group)
            try:
                before = one.pull(asked[group.part])
                one.scale_lr(0.5)
                one.push(asked[group.part], given[group.part])
                return before.tobytes(), one.pull(asked[group.part], create=False).tobytes(), len(one), one.least
            finally:
                one.close()

        return joined(3, steps)

    found = work(lambda group: GpuRankTable(group, specs[0], runtime(), group.beside("ahead")), asked[0], given[0])
    expected = work(lambda group: RankTable(group, specs[1]), asked[0], given[0])
    assert found == expected


def test_keys_sent_ahead_are_those_of_the_next_pull() -> None:
    table = GpuRankTable(Alone(), Spec.of_rank(made("memory", Path()), 1), runtime(), Alone())  # type: ignore[arg-type]
    keys = torch.tensor([5, 7, 5, 0])
    table.take(table.ask(keys))
    rows = table.pull(keys)
    assert rows.shape == (4, 4)
    assert torch.equal(rows[0], rows[2])
    assert not rows[3].any()
    table.take(table.ask(keys))
    with pytest.raises(TrainError, match="the keys of this pull differ from the keys that were exchanged ahead for it"):
        table.pull(keys.clone())
    with pytest.raises(TrainError, match="a push must follow the pull of the same keys"):
        table.push(np.array([1]), np.zeros((1, 4), np.float32))


def test_a_gradient_that_is_not_finite_is_told_and_moves_no_row() -> None:
    table = GpuRankTable(Alone(), Spec.of_rank(made("memory", Path()), 1), runtime())  # type: ignore[arg-type]
    batch = ragged_batch(np.random.default_rng(1), 8)
    references = References.of(batch, ("one",), torch.device("cpu"))
    reading = table.read(references, ("one",), ("sum",))
    gradient = torch.zeros_like(reading.vectors)
    gradient[5] = torch.inf
    before = table.own.export()[1]
    torch.autograd.backward([reading.vectors], [gradient])
    reading.push(1.0)
    table.wait()
    assert references.keys[table.told()] == references.keys[5]
    assert table.told() == -1
    np.testing.assert_array_equal(table.own.export()[1][:, 1:], before[:, 1:])


@pytest.mark.parametrize("kinds", [("gpu", "memory"), ("level", "sparse")], ids=["in memory", "on SSD"])
def test_parts_of_tables_on_gpus_and_cpus_restore_each_other(kinds: tuple[str, str], tmp_path: Path) -> None:
    """A table saved in 2 parts is restored in 3 parts of the other kind, and those in one table of the first kind."""
    rng = np.random.default_rng(2)
    keys = np.arange(1, 200)
    whole = made(kinds[0], tmp_path)
    whole.push(keys, rng.standard_normal((len(keys), 4)).astype(np.float32))
    expected = whole.export()

    def parts(kind: str, of: int, source: Path, to: Path | None) -> list[np.ndarray]:
        found = []
        if to is not None:
            to.mkdir()
        for shard in range(of):
            table = made(kind, tmp_path) if kind != "sparse" else made("level", tmp_path).below
            restore_shard(table, source, shard, of)
            found.append(table.export())
            assert (shard_of(found[-1][0], of) == shard).all()
            if to is not None:
                table.save(shard_path(to, shard, of))
        keys, rows, states = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        order = np.argsort(keys)
        return [keys[order], rows[order], states[order]]

    whole.save(tmp_path / "whole")
    for kind, of, source, to in [
        (kinds[0], 2, tmp_path / "whole", tmp_path / "two"),
        (kinds[1], 3, tmp_path / "two", tmp_path / "three"),
        (kinds[0], 1, tmp_path / "three", None),
    ]:
        for some, others in zip(parts(kind, of, source, to), expected, strict=True):
            assert some.tobytes() == others.tobytes()
