"""Lookups against a plain loop: unique keys in a fixed order, references that lead back to them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox import _native
from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.embed.unique_keys import Lookup
from ctrbox.errors import DataError, PlanError
from tests.twins import unique_keys as twin

INT64 = np.iinfo(np.int64)


def batch_of(columns: dict[str, list[list[int]] | list[int]], lead: int = 0) -> Batch:
    """A batch of fields given row by row; a field of plain numbers has one key per row. ``lead`` values stand unused."""
    rows = len(next(iter(columns.values()), []))
    fields, sparse = [], {}
    for name, column in columns.items():
        ragged = any(isinstance(row, list) for row in column)
        lists = [row if isinstance(row, list) else [row] for row in column]
        offsets = np.cumsum([lead, *(len(row) for row in lists)], dtype=np.int64)
        values = np.array([7] * lead + [key for row in lists for key in row], np.int64)
        fields.append(Field(name, name, ragged))
        sparse[name] = Ragged(values, offsets)
    schema = Schema(tuple(fields), (), False, False, False)
    return Batch(schema, rows, None, np.zeros((rows, 0), np.float32), sparse, None)


keys = st.one_of(st.integers(-3, 3), st.integers(INT64.min, INT64.max), st.sampled_from([INT64.min, INT64.max, 0]))


@st.composite
def batches(draw: st.DrawFn, key: st.SearchStrategy[int] = keys) -> Batch:
    rows = draw(st.integers(0, 12))
    columns: dict[str, list[list[int]] | list[int]] = {}
    for k in range(draw(st.integers(0, 5))):
        one = key if draw(st.booleans()) else st.lists(key, max_size=draw(st.sampled_from([0, 2, 6])))
        columns[f"f{k}"] = draw(st.lists(one, min_size=rows, max_size=rows))  # type: ignore[arg-type]
    batch = batch_of(columns, lead=draw(st.sampled_from([0, 0, 3])))
    return batch if columns else Batch(batch.schema, rows, None, np.zeros((rows, 0), np.float32), {}, None)


def agree(found: Lookup, batch: Batch, fields: Sequence[str]) -> None:
    slow = twin.lookup(batch, fields)
    assert found.keys.tolist() == slow.keys
    assert found.inverse.tolist() == slow.inverse
    assert (found.keys.dtype, found.inverse.dtype) == (np.int64, np.int32)
    assert found.rows == batch.rows
    assert found.fields == tuple(fields)
    for k, lists in enumerate(slow.lists):
        part = found.inverse[found.starts[k] : found.starts[k + 1]]
        ends = np.arange(batch.rows + 1) if found.offsets[k] is None else found.offsets[k]
        assert ends is not None
        assert len(ends) == batch.rows + 1
        assert [part[a:b].tolist() for a, b in itertools.pairwise(ends)] == lists
        if found.offsets[k] is None:
            assert all(len(row) == 1 for row in lists)


@settings(max_examples=150, deadline=None)
@given(batches(), st.integers(1, 3), st.randoms())
def test_a_lookup_equals_the_plain_loop(batch: Batch, threads: int, random: object) -> None:
    fields = [f.name for f in batch.schema.sparse]
    random.shuffle(fields)  # type: ignore[attr-defined]
    agree(Lookup.of(batch, fields, threads), batch, fields)


@pytest.mark.parametrize("distinct", [1, 2, 700, 10**9])
def test_many_chunks_give_the_same_lookup_for_any_number_of_threads(distinct: int) -> None:
    random = np.random.default_rng(distinct)
    lists = [random.integers(0, distinct, n).tolist() for n in random.integers(0, 9, 9_000)]
    batch = batch_of({"a": random.integers(0, distinct, 9_000).tolist(), "b": lists, "c": lists})
    first = Lookup.of(batch, ["a", "b", "c"], 1)
    agree(first, batch, ["a", "b", "c"])
    for threads in (2, 3, 8):
        again = Lookup.of(batch, ["a", "b", "c"], threads)
        assert np.array_equal(first.keys, again.keys)
        assert np.array_equal(first.inverse, again.inverse)


def test_one_row_may_hold_more_keys_than_a_chunk() -> None:
    row = np.random.default_rng(0).integers(INT64.min, INT64.max, 100_000).tolist()
    batch = batch_of({"empty": [[], [], []], "long": [[], row, []], "one": [1, 2, 1]})
    agree(Lookup.of(batch, ["empty", "long", "one"], 2), batch, ["empty", "long", "one"])


def test_keys_that_fall_into_one_shard_are_told_apart() -> None:
    same = [key for key in range(200_000) if twin.shard(key) == 63][:2_500]
    batch = batch_of({"a": same + same[::-1]})
    agree(Lookup.of(batch, ["a"]), batch, ["a"])


def test_ragged_rows_of_one_key_take_the_short_way() -> None:
    found = Lookup.of(batch_of({"a": [[4], [5], [4]], "b": [[4], [], [4, 5]]}), ["a", "b"])
    assert found.offsets[0] is None
    assert found.offsets[1] is not None
    assert found.offsets[1].tolist() == [0, 1, 1, 3]


def test_arrays_outlive_the_lookup_and_keep_their_numbers() -> None:
    batch = batch_of({"a": list(range(50_000))})
    kept = [Lookup.of(batch, ["a"]).inverse for _ in range(4)]
    expected = Lookup.of(batch, ["a"]).inverse.tolist()
    assert all(array.tolist() == expected for array in kept)
    assert not kept[0].flags.writeable


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PlanError, match="'qury' is not a sparse field of this batch; nearest: 'query'"):
        Lookup.of(batch_of({"query": [1]}), ["qury"])


@pytest.mark.parametrize(
    ("values", "offsets", "message"),
    [
        ([1, 2], [0, 2], "field 'a' has 1 rows, but the batch has 2"),
        ([1, 2], [0, 2, 1], "field 'a': offsets decrease from one row to the next"),
        ([1, 2], [0, 1, 3], "field 'a': offsets end at 3, but there are only 2 values"),
        ([1, 2], [-1, 1, 2], "field 'a': offsets begin at -1, below 0"),
        ([1, 2], [INT64.min, INT64.max, 2], "field 'a': offsets begin at"),
        ([1, 2], [0, INT64.max, 2], "field 'a': offsets decrease"),
        ([1, 2], [0, INT64.max - 1, INT64.max], "field 'a': offsets end at"),
    ],
)
@pytest.mark.parametrize("ragged", [True, False])
def test_offsets_that_do_not_fit_are_refused(values: list[int], offsets: list[int], message: str, ragged: bool) -> None:
    field = Ragged(np.array(values, np.int64), np.array(offsets, np.int64))
    schema = Schema((Field("z", "z", True), Field("a", "a", ragged)), (), False, False, False)
    good = Ragged(np.array([1, 2, 3]), np.array([0, 0, 3]))
    batch = Batch(schema, 2, None, np.zeros((2, 0), np.float32), {"a": field, "z": good}, None)
    if not ragged and len(offsets) == 3 and offsets[0] == 0:
        assert Lookup.of(batch, ["z", "a"]).starts == (0, 3, 5)  # two rows, two values: offsets are not looked at
        return
    with pytest.raises(DataError, match=message):
        Lookup.of(batch, ["z", "a"])


def test_a_field_of_one_key_with_other_lengths_is_refused() -> None:
    schema = Schema((Field("a", "a", False),), (), False, False, False)
    field = Ragged(np.array([1, 2, 3]), np.array([0, 1, 3]))
    with pytest.raises(
        DataError, match="'a' has rows with no key or several keys, but its schema says exactly one key per row"
    ):
        Lookup.of(Batch(schema, 2, None, np.zeros((2, 0), np.float32), {"a": field}, None), ["a"])


def test_keys_of_another_type_are_refused() -> None:
    schema = Schema((Field("a", "a", True),), (), False, False, False)
    field = Ragged(np.array([1.0, 2.0]), np.array([0, 1, 2]))
    with pytest.raises(DataError, match="'a' has float64 keys and int64 offsets; expected int64"):
        Lookup.of(Batch(schema, 2, None, np.zeros((2, 0), np.float32), {"a": field}, None), ["a"])


def test_native_refuses_arrays_that_do_not_fit() -> None:
    values = np.arange(3)
    with pytest.raises(ValueError, match="offsets are"):
        _native.Lookup.of([(values, np.array([0, 3]))], 2, 1)
    with pytest.raises(ValueError, match="3 values for 2 rows of one key"):
        _native.Lookup.of([(values, None)], 2, 1)
    with pytest.raises(ValueError, match=r"more than 2\^31 - 1 rows"):
        _native.Lookup.of([(values, None)] * 3, 2**31, 1)
    with pytest.raises(TypeError):
        _native.Lookup.of([(np.arange(6).reshape(3, 2), None)], 3, 1)
