"""Computes vectors of one side of a trained ``TwoTower`` model from raw rows that have just the columns of this side.

users = TowerVectors(run, "user"); users.columns; users.of(rows)      # one vector for each row
ads = TowerVectors(run, "ad", key="ad"); ads.keys(rows)               # and the key of each row

A vector has the bits that the model gives this side in a whole row of the log, because neither side reads the other. Also here:
the rows of a view of ads, so that every ad gets a vector, not only those in the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ctrbox.arguments.names import nearest
from ctrbox.columns.batch import Batch, Ragged
from ctrbox.columns.kind import kind_of_arrow
from ctrbox.columns.one_array import one_batch
from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.some_features import SomeFeatures
from ctrbox.embed.embedder import Floats, Keys
from ctrbox.engines.compute import compute
from ctrbox.errors import DataError, PlanError
from ctrbox.models.two_tower import TwoTower
from ctrbox.plan.language.expressions import col
from ctrbox.predict.run_predictor import RunPredictor
from ctrbox.views.view import View, views_of

SIDES = ("user", "ad")
ROWS = 16_384  # of one batch


def two_tower_of(run: RunPredictor) -> TwoTower:
    """Return the model of a run. Raise a PlanError if it is not a ``TwoTower``."""
    model = run.model
    if not isinstance(model, TwoTower):
        raise PlanError(
            f"only a run of cb.models.TwoTower has vectors of users and ads, but this run trained {type(model).__name__}"
        )
    return model


def key_field(model: TwoTower, side: str, key: str | None) -> str:
    """Return the field whose key names a row of a side: ``key``, or the first of the side's fields."""
    if side not in SIDES:
        raise PlanError(f"side must be 'user' or 'ad', got {side!r}{nearest(str(side), SIDES)}")
    fields = model.sides[side]
    name = fields[0] if key is None else key
    if name not in fields:
        raise PlanError(f"{name!r} is not a field of the {side}{nearest(name, fields)}; it has {list(fields)}")
    return name


def one_key_each(ragged: Ragged, rows: int, name: str) -> Keys:
    """Return the keys of a field that has exactly one key in each row."""
    if len(ragged.values) != rows or not np.array_equal(ragged.offsets, np.arange(rows + 1)):
        raise PlanError(
            f"field {name!r} has rows with no key or several keys; name a field with exactly one key per row: key="
        )
    return np.ascontiguousarray(ragged.values, np.int64)


def seal_of_towers(run: RunPredictor) -> str:
    """Return the SHA-256 of the model's weights. It differs for vectors that another training run made."""
    seal = hashlib.sha256()
    for name, tensor in sorted(two_tower_of(run).state_dict().items()):
        seal.update(name.encode() + b"\0" + tensor.detach().cpu().contiguous().numpy().tobytes())
    return seal.hexdigest()


class TowerVectors:
    """One side of the model of a run. Thread-safe."""

    def __init__(self, run: RunPredictor, side: str, key: str | None = None) -> None:
        self.model, self.side = two_tower_of(run), side
        self.key = key_field(self.model, side, key)
        self.click_model = run.click_model
        self.features = SomeFeatures(run.plan, self.model.sides[side])
        self.key_alone = SomeFeatures(run.plan, [self.key])

    @property
    def columns(self) -> pa.Schema:
        """Columns of the log that this side reads, with their types."""
        return self.features.columns

    def of(self, rows: pa.RecordBatch) -> Floats:
        """Return the vectors of rows that have exactly `columns`."""
        return self._vectors(self.features.batch(rows))

    def keys(self, rows: pa.RecordBatch) -> Keys:
        """Return the key of each row; 0 for null. The rows have exactly the columns of ``key_alone``."""
        return one_key_each(self.key_alone.batch(rows).sparse[self.key], rows.num_rows, self.key)

    def keys_and_vectors(self, rows: pa.RecordBatch) -> tuple[Keys, Floats]:
        batch = self.features.batch(rows)
        return one_key_each(batch.sparse[self.key], batch.rows, self.key), self._vectors(batch)

    def _vectors(self, part: Batch) -> Floats:
        """Return the vectors of a batch of this side's features; the other side's fields have the null key in every row."""
        schema, rows = self.click_model.schema, part.rows
        nothing = Ragged(np.zeros(rows, np.int64), np.arange(rows + 1, dtype=np.int64))
        sparse = {f.name: part.sparse.get(f.name, nothing) for f in schema.sparse}
        dense = np.zeros((rows, schema.dense_width), np.float32)
        of = self.model.user_vectors if self.side == "user" else self.model.ad_vectors
        found = self.click_model.answers(Batch(schema, rows, None, dense, sparse, None), of)
        if not np.isfinite(found).all():
            row = int(np.flatnonzero(~np.isfinite(found).all(1))[0])
            raise DataError(
                f"the vector of the {self.side} in row {row} is not finite; train the model again with a lower learning rate"
            )
        return np.ascontiguousarray(found, np.float32)


def joined_views(plan: Plan) -> dict[str, View]:
    """Return the views that a plan's log joins, by name, including the views that these join."""
    found: dict[str, View] = {}

    def walk(view: View) -> None:
        for step in view.steps:
            for other in views_of(step):
                found.setdefault(other.name, other)
                walk(other)

    walk(plan.log)
    return found


def rows_of_view(view: View | str, plan: Plan, tower: TowerVectors, more: tuple[str, ...] = ()) -> pa.Table:
    """Return the columns that a side reads, and ``more``, of all rows of a view. ``view``: the name of a view that the plan
    joins, or any view."""
    if isinstance(view, str):
        known = joined_views(plan)
        if view not in known:
            raise PlanError(f"the plan joins no view {view!r}{nearest(view, known)}; it joins {sorted(known)}")
        view = known[view]
    there = list(view.schema.names)
    for name in (*tower.columns.names, *more):
        if name not in there:
            reads = "" if name in more else f", which the fields of the {tower.side} read in the log"
            raise PlanError(f"view {view.name!r} has no column {name!r}{reads}{nearest(name, there)}; it has {there}")
    names = list(dict.fromkeys([*tower.columns.names, *more]))
    table = compute({name: col(name) for name in names}, view)
    for name in tower.key_alone.columns.names:
        nulls = np.flatnonzero(table.column(name).is_null().to_numpy())
        if len(nulls):
            raise DataError(
                f"column {name!r} is null in row {nulls[0]:,} of view {view.name!r}, so this {tower.side} cannot be "
                "identified; remove such rows with .filter"
            )
    for field in tower.columns:
        met = table.schema.field(field.name).type
        if kind_of_arrow(met) != kind_of_arrow(field.type):
            raise PlanError(
                f"column {field.name!r} is {met} in view {view.name!r} but {field.type} in the log, so its keys would "
                "differ; cast one of the two columns, so that both have the same type"
            )
        try:
            at = table.schema.get_field_index(field.name)
            table = table.set_column(at, field.name, table.column(at).cast(field.type))
        except pa.ArrowException as error:
            raise DataError(f"column {field.name!r} of view {view.name!r}: {str(error).splitlines()[0]}") from None
    return table


def batches_of(table: pa.Table, columns: pa.Schema, rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table as record batches of just ``columns``."""
    part = table.select(columns.names).combine_chunks()
    for begin in range(0, part.num_rows, rows):
        yield pa.RecordBatch.from_arrays(one_batch(part.slice(begin, rows)).columns, schema=columns)


def vectors_of_view(table: pa.Table, tower: TowerVectors, name: str) -> tuple[Keys, Floats]:
    """Return key and vector of each row of a view; each key must occur once and must not be null."""
    keys, vectors = [np.zeros(0, np.int64)], [np.zeros((0, tower.model.config["vector"]), np.float32)]
    for rows in batches_of(table, tower.columns):
        found, matrix = tower.keys_and_vectors(rows)
        keys.append(found)
        vectors.append(matrix)
    every = np.concatenate(keys)
    empty = np.flatnonzero(every == 0)
    if len(empty):
        raise DataError(
            f"row {empty[0]:,} of view {name!r} has no value in {tower.key!r}, which identifies the candidates; remove such "
            "rows with .filter"
        )
    order = np.argsort(every, kind="stable")
    again = np.flatnonzero(every[order][1:] == every[order][:-1])
    if len(again):
        one, two = sorted((int(order[again[0]]), int(order[again[0] + 1])))
        raise DataError(
            f"rows {one:,} and {two:,} of view {name!r} have the same {tower.key!r}; remove one of them, because each "
            f"{tower.side} needs exactly one row"
        )
    return every, np.concatenate(vectors)
