"""Batches: some of their features, several of them in a row, and back from Arrow and PyTorch; by hand."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch

from ctrbox.columns.batch import Batch, Field, Fields, Ragged, Schema
from ctrbox.columns.label_task import Task
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


def test_only_batches_of_the_same_parts_are_joined() -> None:
    other = Schema(SPARSE, DENSE[::-1], True, True, True)  # as many columns, in another order
    with pytest.raises(
        PlanError, match=r"the same dense features, but batch 0 has \(\('price', 1\), .* and batch 2 has"
    ):
        Batch.concat([batch(), batch(), batch(other)])
    with pytest.raises(
        PlanError, match=r"the same sparse features, but batch 0 has \('ad', 'tags'\) and batch 1 has \('tags',\)"
    ):
        Batch.concat([batch(), batch().select(Schema(SPARSE[1:], DENSE, True, True, True))])
    unweighted = dataclasses.replace(batch(), weight=None)
    for pair in ([unweighted, batch()], [batch(), unweighted]):
        with pytest.raises(PlanError, match="the same labels, weights and groups, but batch 0 has"):
            Batch.concat(pair)
    with pytest.raises(PlanError, match="needs at least one batch"):
        Batch.concat([])


def test_a_row_of_keys_is_counted_from_the_end() -> None:
    tags = batch().sparse["tags"]
    assert [tags[row].tolist() for row in (-3, -2, -1)] == [tags[row].tolist() for row in (0, 1, 2)]
    assert [keys.tolist() for keys in tags] == [[1, 2], [], [3]]  # type: ignore[attr-defined]
    with pytest.raises(IndexError, match="there is no row -4, because there are 3 rows"):
        tags[-4]


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


@pytest.mark.parametrize("on_device", [False, True])
def test_rows_are_taken_from_the_end_and_by_a_mask(on_device: bool) -> None:
    whole = tensors(batch()) if on_device else dataclasses.replace(batch(), index=np.arange(3))
    expected = plain(whole.take(np.array([2, 0])).cpu())
    assert expected["tags"] == [[3], [1, 2]]
    assert expected["index"] == [2, 0]
    assert plain(whole.take(np.array([-1, -3])).cpu()) == expected
    assert plain(whole.take(np.array([True, False, True])).cpu()) == plain(whole.take(np.array([0, 2])).cpu())
    assert whole.take(np.array([])).rows == 0
    with pytest.raises(IndexError, match="boolean index did not match"):
        whole.take(np.array([True, False]))
    with pytest.raises(TypeError, match="Cannot cast"):
        whole.take(np.array([0.5]))


@pytest.mark.parametrize(("start", "stop"), [(-2, 3), (0, -1), (1, 99), (-99, 1), (5, 9), (2, 1), (-1, -1)])
def test_a_slice_counts_as_that_of_a_list_does(start: int, stop: int) -> None:
    whole = dataclasses.replace(batch(), index=np.arange(3))
    rows = list(range(3))[start:stop]
    assert plain(whole.slice(start, stop)) == plain(whole.take(np.array(rows, np.int64)))


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


# ---- several labels, tensors, what notebooks show


def several(rows: int = 3) -> Batch:
    """Rows with two labels; of the second one some values are not known, and some may still arrive."""
    schema = Schema(
        (Field("tags", "tags", True),),
        (("price", 1), ("vector", 2)),
        label=False,
        group=True,
        weight=True,
        tasks=(Task("click", "binary"), Task("buy", "binary", 7.0)),
    )
    lists = [[7, 8, 9, 10], [7, 8, 9], []]
    return Batch(
        schema,
        3,
        None,
        np.array([[0.5, 1, 2], [1.25, 3, 4], [1e6, 5, 6]], np.float32),
        {"tags": Ragged(np.concatenate(lists).astype(np.int64), np.cumsum([0, *map(len, lists)]))},
        np.array([5, 6, 7]),
        np.array([1.0, 2.0, 1.0], np.float32),
        labels={"click": np.array([0, 1, 0], np.float32), "buy": np.array([1, np.nan, 0], np.float32)},
        observed={"click": np.ones(3, bool), "buy": np.array([True, False, True])},
        arrived={"buy": np.array([1.0, np.nan, 0.5], np.float32)},
    ).take(np.arange(rows))


def tensors(made: Batch) -> Batch:
    """The batch as one of a GPU has it: with tensors in the place of arrays."""
    found: Any = made.torch()
    sparse: Any = {name: Ragged(values, offsets) for name, (values, offsets) in found["sparse"].items()}
    roles = [found.get(name) for name in ("label", "group", "weight")]
    labels = {kind: found.get(kind, {}) for kind in ("labels", "observed", "arrived")}
    index = np.arange(made.rows)
    return Batch(made.schema, made.rows, roles[0], found["dense"], sparse, roles[1], roles[2], index=index, **labels)


def test_a_batch_of_tensors_is_brought_over_taken_and_chosen_from() -> None:
    whole = batch()
    there = tensors(whole)
    assert (whole.on_device, there.on_device) == (False, True)
    assert whole.cpu() is whole
    assert plain(there.cpu()) == {**plain(whole), "index": [0, 1, 2]}
    assert plain(there.take(np.array([2, 0])).cpu()) == {**plain(whole.take(np.array([2, 0]))), "index": [2, 0]}
    assert there.to_arrow().equals(whole.to_arrow())
    assert plain(Batch.concat([there, whole])) == plain(Batch.concat([whole, whole]))
    narrow = Schema(SPARSE[1:], (("age", 1),), True, False, False)
    assert there.select(narrow).on_device
    assert plain(there.select(narrow).cpu()) == {**plain(whole.select(narrow)), "index": [0, 1, 2]}
    bare = tensors(batch(Schema(SPARSE, DENSE, False, False, False))).cpu()
    assert (bare.label, bare.weight, bare.group) == (None, None, None)


def test_weights_that_the_features_do_not_name_stay_with_the_rows() -> None:
    unweighted = Schema(SPARSE, DENSE, True, True, False)
    sampled = dataclasses.replace(batch(), schema=unweighted)  # weights that come from downsampled negatives
    assert sampled.select(Schema(SPARSE[:1], DENSE, True, True, False)).weight is sampled.weight
    assert batch().select(unweighted).weight is None
    assert plain(Batch.from_arrow(unweighted, sampled.to_arrow())) == plain(sampled)
    assert Batch.from_arrow(unweighted, batch(unweighted).to_arrow()).weight is None


def test_a_choice_among_several_labels_keeps_what_belongs_to_them() -> None:
    whole = several()
    chosen = whole.select(dataclasses.replace(whole.schema, tasks=(Task("buy", "binary", 7.0), Task("other", "count"))))
    assert [list(found) for found in (chosen.labels, chosen.observed, chosen.arrived)] == [["buy"]] * 3
    only = whole.select(dataclasses.replace(whole.schema, tasks=whole.schema.tasks[:1]))
    assert [list(found) for found in (only.labels, only.observed, only.arrived)] == [["click"], ["click"], []]


def test_a_label_is_final_where_its_window_is_over() -> None:
    whole = several()
    assert whole.final("click").tolist() == [True, True, True]
    assert whole.final("buy").tolist() == [True, False, False]
    assert whole.slice(1, 3).final("buy").tolist() == [False, False]


def test_several_labels_of_a_batch_of_tensors_are_brought_over() -> None:
    whole = several()
    there = tensors(whole)
    rows = np.array([2, 0])
    for found, expected in (
        (there.cpu(), whole),
        (there.take(rows).cpu(), whole.take(rows)),
        (Batch.concat([there, there.take(rows)]), Batch.concat([whole, whole.take(rows)])),
    ):
        for kind in ("labels", "observed", "arrived"):
            ours, theirs = getattr(expected, kind), getattr(found, kind)
            assert list(theirs) == list(ours)
            for name, values in ours.items():
                np.testing.assert_array_equal(theirs[name], values)
    assert there.to_arrow().schema == whole.to_arrow().schema


def test_several_labels_come_back_from_arrow_and_slices_with_their_masks() -> None:
    whole = several()
    rows = whole.to_arrow()
    assert rows.schema.names == [
        *("weight", "group", "click", "buy", "arrived buy", "price", "vector.0", "vector.1", "tags")
    ]
    assert rows.column("buy").is_valid().to_pylist() == [True, False, True]
    for again in (
        Batch.from_arrow(whole.schema, rows),
        Batch.from_torch(whole.schema, whole.torch()),
        Batch.concat([whole.take(np.array([0])), whole.take(np.array([1, 2]))]),
    ):
        assert plain(again) == plain(whole)
        for kind in ("labels", "observed", "arrived"):
            ours, theirs = getattr(whole, kind), getattr(again, kind)
            assert list(theirs) == list(ours)
            for name, values in ours.items():
                np.testing.assert_array_equal(theirs[name], values)
    part = whole.slice(1, 3)
    assert part.labels["buy"].tolist()[1:] == [0.0]
    assert part.observed["buy"].tolist() == [False, True]
    assert part.arrived["buy"].tolist()[1:] == [0.5]


def cells(html: str) -> list[list[str]]:
    """Return the cells of a table of HTML, row by row."""
    lines = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[hd]>(?:<bdi>)?(.*?)(?:</bdi>)?</t[hd]>", line) for line in lines]


def test_a_notebook_shows_roles_labels_keys_and_columns_of_a_batch() -> None:
    html = several()._repr_html_()
    assert "<b>Batch of 3 rows</b>" in html
    heads, *rows = cells(html)
    assert [head.replace('<br><span class="muted">', " ").removesuffix("</span>") for head in heads] == [
        *("weight float32", "group int64", "click label", "buy label", "tags keys"),
        *("price float32", "vector.0 float32", "vector.1 float32"),
    ]
    assert rows == [
        ["1.0", "5", "0", "1", "7, 8, 9, …", "0.5", "1", "2"],
        ["2.0", "6", "1", "", "7, 8, 9", "1.25", "3", "4"],
        ["1.0", "7", "0", "0", "", "1e+06", "5", "6"],
    ]
    assert [len(cells(several(rows)._repr_html_())) for rows in (0, 2)] == [1, 3]
    many = several().take(np.array([0, 1, 2, 0, 1, 2]))
    assert "<b>Batch of 6 rows</b>" in many._repr_html_()
    assert len(cells(many._repr_html_())) == 1 + 5


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (0, "Batch(1,234 rows, dense: 1 columns)"),
        (1, "Batch(1,234 rows, sparse: s0, dense: 1 columns)"),
        (5, "Batch(1,234 rows, sparse: s0, s1, s2, s3, s4, dense: 1 columns)"),
        (6, "Batch(1,234 rows, sparse: s0, s1, s2, s3, s4 and 1 more, dense: 1 columns)"),
    ],
)
def test_a_batch_prints_five_of_its_fields(fields: int, shown: str) -> None:
    sparse = Fields([f"s{k}" for k in range(fields)], lambda k: Ragged(np.arange(1234), np.arange(1235)))
    schema = Schema((), (("x", 1),), False, False, False)
    assert repr(Batch(schema, 1234, None, np.zeros((1234, 1), np.float32), sparse, None)) == shown


def test_a_batch_prints_its_several_labels() -> None:
    assert repr(several()) == "Batch(3 rows, weight, group, labels: click, buy, sparse: tags, dense: 3 columns)"


def test_a_schema_names_its_columns_and_the_kinds_of_its_keys() -> None:
    schema = Schema((Field("ad", "ad", False, "int"), Field("x", "x", True)), DENSE, True, False, False)
    assert schema.dense_width == 4
    assert schema.dense_names == ["price", "vector.0", "vector.1", "age"]
    assert schema.key_kinds == {
        "ad": "int",
        "x": "",
        **dict.fromkeys(["price", "vector.0", "vector.1", "age"], "dense"),
    }


def test_fields_are_wrapped_once_when_they_are_asked_for() -> None:
    made: list[int] = []

    def make(place: int) -> Ragged:
        made.append(place)
        return Ragged(np.arange(place), np.array([0, place]))

    fields = Fields(["user", "ad"], make)
    assert (len(fields), list(fields), made) == (2, ["user", "ad"], [])
    assert fields["ad"] is fields["ad"]
    assert made == [1]
