"""Parts of the towers by themselves: fields that name a row, vectors that are not finite, batches, and places of bad values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.errors import DataError, PlanError
from ctrbox.predict.exported_reader import Exported
from ctrbox.predict.prerank_folder import PrerankFolder, recall_of
from ctrbox.predict.row_of_bad_value import Sought
from ctrbox.predict.two_tower_vectors import TowerVectors, batches_of, key_field, one_key_each, two_tower_of

TOWERS: Any = SimpleNamespace(sides={"user": ["id", "age"], "ad": ["ad"]})


def ragged(*rows: list[int]) -> Ragged:
    return Ragged(np.array([k for keys in rows for k in keys], np.int64), np.cumsum([0, *map(len, rows)]))


def test_a_field_of_a_side_names_its_rows() -> None:
    assert [key_field(TOWERS, *given) for given in (("user", None), ("user", "age"), ("ad", None))] == [
        "id",
        "age",
        "ad",
    ]
    with pytest.raises(PlanError, match=r"^'ad' is not a field of the user; it has \['id', 'age'\]$"):
        key_field(TOWERS, "user", "ad")
    with pytest.raises(PlanError, match=r"^side must be 'user' or 'ad', got 'usr'; nearest: 'user'$"):
        key_field(TOWERS, "usr", None)
    with pytest.raises(
        PlanError, match=r"^only a run of cb\.models\.TwoTower has vectors of users and ads, but this run"
    ):
        two_tower_of(SimpleNamespace(model=TOWERS))  # type: ignore[arg-type]


def test_a_field_that_names_rows_has_one_key_in_each() -> None:
    assert one_key_each(ragged([5], [6]), 2, "ad").tolist() == [5, 6]
    assert one_key_each(ragged(), 0, "ad").tolist() == []
    for keys in (ragged([5, 6], []), ragged([5], [6], [7]), ragged([5])):
        with pytest.raises(
            PlanError, match=r"^field 'ad' has rows with no key or several keys; name a field with exactly"
        ):
            one_key_each(keys, 2, "ad")


@pytest.mark.parametrize("side", ["user", "ad"])
def test_a_side_is_given_its_own_fields_and_its_vectors_are_finite(side: str) -> None:
    fields = (Field("id", "id", False), Field("ad", "ad", False))
    schema = Schema(fields, (("x", 2),), False, False, False)
    asked: list[Any] = []
    found = np.ones((3, 2), np.float64)

    def answers(batch: Batch, of: Any) -> np.ndarray:
        asked.append((of, batch.sparse["id"].values.tolist(), batch.sparse["ad"].values.tolist(), batch.dense.tolist()))
        return found

    made = TowerVectors.__new__(TowerVectors)
    made.side, made.key = side, "id"
    made.model = SimpleNamespace(user_vectors="users", ad_vectors="ads")  # type: ignore[assignment]
    made.click_model = SimpleNamespace(schema=schema, answers=answers)  # type: ignore[assignment]
    part: Any = SimpleNamespace(rows=3, sparse={"id": ragged([7], [8], [9])})
    vectors = made._vectors(part)
    assert (vectors.dtype, vectors.shape) == (np.float32, (3, 2))
    assert asked == [("users" if side == "user" else "ads", [7, 8, 9], [0, 0, 0], [[0.0, 0.0]] * 3)]
    made.features = SimpleNamespace(batch=lambda rows: part)  # type: ignore[assignment]
    keys, again = made.keys_and_vectors(None)  # type: ignore[arg-type]
    assert (keys.tolist(), again.tolist()) == ([7, 8, 9], vectors.tolist())
    found[1, 1], found[2, 0] = np.nan, np.inf
    with pytest.raises(DataError, match=rf"^the vector of the {side} in row 1 is not finite; train the model again"):
        made._vectors(part)


def test_a_table_is_read_in_batches_of_chosen_columns() -> None:
    table = pa.concat_tables([pa.table({"a": [k, k + 1], "b": ["x", "y"], "c": [0, 0]}) for k in (0, 2, 4)])
    schema = pa.schema([("b", pa.string()), ("a", pa.int64())])
    found = list(batches_of(table, schema, 4))
    assert [one.num_rows for one in found] == [4, 2]
    assert [one.schema for one in found] == [schema] * 2
    assert [a for one in found for a in one.column(1).to_pylist()] == [0, 1, 2, 3, 4, 5]
    assert list(batches_of(table.slice(0, 0), schema)) == []


# ---- pre-rank


class Rank:
    """Vectors of twelve ads; the best are those with the lowest number among the asked ones."""

    def __len__(self) -> int:
        return 12

    def checked(self, user: Any) -> Any:
        return f"checked {user}"

    def best(self, vector: Any, k: int, *, threads: int = 1, among: Any = None) -> tuple[Any, Any]:
        rows = np.arange(12) if among is None else np.sort(among)
        return rows[:k], (vector, threads if among is None else "among")


class Index:
    def search(self, vector: Any, k: int) -> np.ndarray:
        return np.arange(1, 1 + k)


def test_the_best_ads_come_from_the_index_unless_the_search_is_exact() -> None:
    def folder(index: Any) -> Any:
        return PrerankFolder(None, Rank(), None, "ad", index, None, 0)  # type: ignore[arg-type]

    for made, exact in ((folder(None), False), (folder(None), True), (folder(Index()), True)):
        rows, told = made.best("u", 3, exact=exact, threads=2)
        assert (rows.tolist(), told) == ([0, 1, 2], ("checked u", 2))
    rows, told = folder(Index()).best("u", 3)
    assert (rows.tolist(), told) == ([1, 2, 3], ("checked u", "among"))
    assert len(folder(Index()).best("u", 50)[0]) == 12
    assert recall_of(Index(), Rank(), np.zeros((5, 1)), 4) == 0.75  # type: ignore[arg-type]


# ---- an export's reader


def exported(longest: int | None, inputs: tuple[str, ...] = ("rows.a", "count.a")) -> Any:
    made = Exported.__new__(Exported)
    made.described = {"inputs": [{"name": name} for name in inputs]}
    made.fields = {"a": {"table": 0, "keys": "several", "longest": longest}, "b": {"table": 0, "keys": "one"}}
    table = SimpleNamespace(linear=True, dim=1, look_up=lambda keys: np.stack([keys, -keys], 1).astype(np.float32))
    made.tables, made.outputs = [table], ["score"]  # type: ignore[list-item]
    return made


def batch_of(**fields: Any) -> Any:
    dense = fields.pop("dense", None)
    return SimpleNamespace(rows=3, dense=dense, sparse=fields)


@pytest.mark.parametrize(
    ("longest", "rows", "counts"),
    [
        (None, [[1, 2, 3], [0, 0, 0], [4, 0, 0]], [3, 0, 1]),
        (3, [[1, 2, 3], [0, 0, 0], [4, 0, 0]], [3, 0, 1]),
        (2, [[2, 3], [0, 0], [4, 0]], [2, 0, 1]),
        (1, [[3], [0], [4]], [1, 0, 1]),
    ],
)
def test_lists_are_padded_and_of_longer_ones_the_last_keys_are_read(longest: Any, rows: Any, counts: Any) -> None:
    found = exported(longest).inputs(batch_of(a=ragged([1, 2, 3], [], [4])))
    assert found["rows.a"][:, :, 0].tolist() == rows
    assert (found["rows.a"][:, :, 1] == -found["rows.a"][:, :, 0]).all()
    assert (found["count.a"].tolist(), found["count.a"].dtype) == (counts, np.int64)
    empty = exported(longest).inputs(batch_of(a=ragged([], [], [])))
    assert empty["rows.a"].shape == (3, 1, 2)


def test_fields_of_one_key_and_dense_columns_are_checked() -> None:
    made = exported(None, ("dense.values", "rows.b", "key.b"))
    dense = np.arange(6.0).reshape(3, 2)
    found = made.inputs(batch_of(b=Ragged(np.array([9, 7, 8, 6]), np.array([1, 2, 3, 4])), dense=dense))
    assert list(found) == ["dense.values", "rows.b", "key.b"]
    assert found["dense.values"].dtype == np.float32
    assert found["rows.b"][:, 0].tolist() == [7, 8, 6]
    for keys in (ragged([1], [], [2, 3]), ragged([1], [2], [])):
        with pytest.raises(
            ValueError, match=r"^field 'b' has rows with no key or several keys; expected exactly one key"
        ):
            made.inputs(batch_of(b=keys, dense=dense))
    for wrong in (np.nan, np.inf):
        dense[1, 1] = wrong
        with pytest.raises(
            ValueError, match=r"^a dense column contains a NaN or an infinity; expected finite numbers$"
        ):
            made.inputs(batch_of(b=ragged([1], [2], [3]), dense=dense))
    nothing = SimpleNamespace(rows=0)
    assert made.scores(nothing)["score"].shape == (0,)


# ---- values that training refuses


@pytest.mark.parametrize(
    ("part", "values", "found"),
    [
        ("label", [0.0, 1.0, 1.0], False),
        ("label", [0.0, 0.5, 1.0], True),
        ("label", [0.0, np.nan, 1.0], True),
        ("label", None, False),
        ("weight", [0.0, 2.0, 1.0], False),
        ("weight", [0.0, -1.0, 1.0], True),
        ("weight", [0.0, np.inf, 1.0], True),
        ("weight", [0.0, np.nan, 1.0], True),
        ("weight", None, False),
    ],
)
def test_a_part_of_a_batch_holds_a_refused_value_or_not(part: Any, values: Any, found: bool) -> None:
    array = None if values is None else np.array(values, np.float32)
    schema = Schema((), (("x", 1), ("y", 2)), True, True, False)
    dense = np.array([[1, 2, 3], [1, 2, np.inf], [1, 2, 3]], np.float32)
    label, weight = (array, None) if part == "label" else (None, array)
    batch = Batch(schema, 3, label, dense, {}, group=None, weight=weight)
    assert Sought(part).found(batch) is found
    columns = [Sought("dense", name).found(batch) for name in schema.dense_names]
    assert columns == [False, False, True]
