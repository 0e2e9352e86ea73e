"""Batches: some of their features, several of them in a row, and back from Arrow and PyTorch; by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ctrbox.columns.batch import Batch, Field, Fields, Ragged, Schema
from ctrbox.errors import PlanError

SPARSE = (Field("ad", "ad", False), Field("tags", "tag", True))
DENSE = (("price", 1), ("vector", 2), ("age", 1))
WHOLE = Schema(SPARSE, DENSE, True, True, True)


def batch(schema: Schema = WHOLE, shift: int = 0) -> Batch:
    """Three rows; tags [1, 2], [], [3], all plus ``shift``."""
    numbers = np.arange(3) + shift
    return Batch(
        schema,
        3,
        (numbers % 2).astype(np.float32) if schema.label else None,
        (np.arange(12).reshape(3, 4) + shift).astype(np.float32),
        {
            "ad": Ragged(np.array([10, 11, 12]) + shift, np.arange(4)),
            "tags": Ragged(np.array([1, 2, 3]) + shift, np.array([0, 2, 2, 3])),
        },
        numbers + 100 if schema.group else None,
        (numbers * 0.5).astype(np.float32) if schema.weight else None,
    )


def plain(found: Batch) -> dict[str, Any]:
    """Return everything of a batch as lists."""
    told: dict[str, Any] = {"rows": found.rows, "dense": found.dense.tolist()}
    for name in ("label", "weight", "group", "index"):
        array = getattr(found, name)
        told[name] = None if array is None else array.tolist()
    for name, ragged in found.sparse.items():
        told[name] = [ragged.values[a:b].tolist() for a, b in zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)]
    return told


@pytest.mark.parametrize(
    ("label", "weight", "group"), [(True, False, False), (False, True, False), (False, False, True), (True, True, True)]
)
def test_a_choice_has_the_roles_that_its_schema_names(label: bool, weight: bool, group: bool) -> None:
    chosen = batch().select(Schema(SPARSE, DENSE, label=label, weight=weight, group=group))
    assert (chosen.label is not None, chosen.weight is not None, chosen.group is not None) == (label, weight, group)
    if label:
        assert chosen.label is not None
        assert chosen.label.tolist() == [0, 1, 0]
    if weight:
        assert chosen.weight is not None
        assert chosen.weight.tolist() == [0, 0.5, 1]
    if group:
        assert chosen.group is not None
        assert chosen.group.tolist() == [100, 101, 102]


def test_a_choice_has_its_columns_in_its_own_order() -> None:
    whole = batch()
    chosen = whole.select(Schema(SPARSE[1:], (("age", 1), ("vector", 2)), True, False, False))
    assert chosen.dense.tolist() == [[3, 1, 2], [7, 5, 6], [11, 9, 10]]
    assert list(chosen.sparse) == ["tags"]
    assert whole.select(Schema(SPARSE, DENSE, True, False, False)).dense is whole.dense
    with pytest.raises(
        PlanError,
        match="feature 'prize' is neither a sparse feature nor a dense column of this batch; nearest: 'price'",
    ):
        whole.select(Schema((), (("prize", 1),), False, False, False))


def test_batches_in_a_row_are_one_batch() -> None:
    both = Batch.concat([batch(), batch(shift=20).take(np.array([2, 0]))])
    assert plain(both) == {
        "rows": 5,
        "dense": [*np.arange(12).reshape(3, 4).tolist(), [28, 29, 30, 31], [20, 21, 22, 23]],
        "label": [0, 1, 0, 0, 0],
        "weight": [0, 0.5, 1, 11, 10],
        "group": [100, 101, 102, 122, 120],
        "index": None,
        "ad": [[10], [11], [12], [32], [30]],
        "tags": [[1, 2], [], [3], [23], [21, 22]],
    }


def test_a_piece_of_a_longer_array_is_joined_by_what_it_holds() -> None:
    piece = Ragged(np.array([9, 9, 1, 2, 3, 9]), np.array([2, 4, 4, 5]))
    one = batch()
    cut = Batch(one.schema, 3, one.label, one.dense, {**one.sparse, "tags": piece}, one.group, one.weight)
    assert plain(Batch.concat([cut, batch()]))["tags"] == [[1, 2], [], [3]] * 2


@pytest.mark.parametrize("tensors", [False, True])
def test_taken_rows_are_those_of_a_list_of_lists(tensors: bool) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        lengths = rng.integers(0, 4, rng.integers(1, 6))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        lists = np.split(np.arange(100, 100 + offsets[-1]), offsets[1:-1])
        rows = rng.integers(0, len(lists), rng.integers(0, 8))
        made: Any = torch.from_numpy if tensors else np.asarray  # batches of a GPU hold tensors
        for chosen in (rows, made(rows)):
            taken = Ragged(made(np.concatenate(lists)), made(offsets)).take(chosen)
            assert isinstance(taken.values, torch.Tensor) == tensors
            assert [taken.cpu()[k].tolist() for k in range(len(taken))] == [lists[row].tolist() for row in rows]


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (1, 3), (1, 2), (2, 2), (0, 0)])
def test_a_slice_is_those_rows_over_the_same_memory(start: int, stop: int) -> None:
    whole = batch()
    part = whole.slice(start, stop)
    assert plain(part) == plain(whole.take(np.arange(start, stop)))
    assert part.sparse["tags"].offsets[0] == 0
    assert stop == start or np.shares_memory(part.dense, whole.dense)
    assert plain(part.slice(0, stop - start)) == plain(part)


@pytest.mark.parametrize("roles", [(True, True, True), (False, False, False), (True, False, True)])
def test_arrow_and_pytorch_give_back_what_they_were_given(roles: tuple[bool, bool, bool]) -> None:
    schema = Schema(SPARSE, DENSE, *roles)
    whole = batch(schema)
    rows = whole.to_arrow()
    names = [
        n
        for n, there in zip(("label", "weight", "group"), (schema.label, schema.weight, schema.group), strict=True)
        if there
    ]
    assert rows.schema.names == [*names, "price", *schema.dense_names[1:3], "age", "ad", "tags"]
    assert plain(Batch.from_arrow(schema, rows)) == plain(whole)
    assert plain(Batch.from_arrow(schema, rows.slice(1))) == plain(whole.take(np.array([1, 2])))
    assert plain(Batch.from_torch(schema, whole.torch())) == plain(whole)
    assert set(whole.torch()) == {"dense", "sparse", *names}


def test_a_batch_without_columns_keeps_its_number_of_rows_in_arrow() -> None:
    schema = Schema((), (), label=False, group=False, weight=False)
    rows = Batch(schema, 3, None, np.empty((3, 0), np.float32), {}, None).to_arrow()
    assert (rows.num_rows, rows.num_columns) == (3, 0)
    assert Batch.from_arrow(schema, rows).rows == 3


def test_a_batch_prints_its_rows_roles_and_features() -> None:
    assert repr(batch()) == "Batch(3 rows, label, weight, group, sparse: ad, tags, dense: 4 columns)"
    many = Fields([f"s{k}" for k in range(7)], lambda k: Ragged(np.arange(1), np.arange(2)))
    bare = Batch(Schema((), (), False, False, False), 1, None, np.empty((1, 0), np.float32), many, None)
    assert repr(bare) == "Batch(1 rows, sparse: s0, s1, s2, s3, s4 and 2 more)"


def test_a_misspelled_sparse_feature_of_a_batch_is_answered_with_the_nearest() -> None:
    fields = Fields(["user", "ad"], lambda k: Ragged(np.arange(1), np.arange(2)))
    assert "usr" not in fields
    with pytest.raises(KeyError, match="the batch has no sparse feature 'usr'; nearest: 'user'"):
        fields["usr"]
