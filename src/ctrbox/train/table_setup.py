"""Prepares tables before a training run: rows that they already hold, and a new learning rate."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ctrbox.arguments.names import nearest
from ctrbox.embed.embedder import Embedder
from ctrbox.embed.embedder_traits import full, traits_of
from ctrbox.errors import PlanError

TABLES = ("keep", "empty")


def check_tables(asked: str | None) -> None:
    if asked is not None and asked not in TABLES:
        raise PlanError(f"tables must be 'keep' or 'empty', got {asked!r}{nearest(str(asked), TABLES)}")


def _holding(embedders: Sequence[Embedder]) -> list[Embedder]:
    """Return the tables with rows that can be removed. A Model Server has data, but no rows of an earlier training run."""
    return [table for table in embedders if traits_of(table).clears and len(table)]


def _named(table: Embedder) -> str:
    place = traits_of(table).folder
    return f"the {type(table).__name__}" if place is None else f"the table in {place}"


def check_rows_told(embedders: Sequence[Embedder], asked: str | None) -> None:
    """Require a decision if a run is to be replaced and its table still has the rows of the old one: keep or remove them."""
    found = _holding(embedders)
    if asked is None and found:
        raise PlanError(
            f"overwrite=True starts the run over, but {_named(found[0])} still holds {len(found[0]):,} rows from an earlier "
            "training; remove them with tables='empty', or continue from them with tables='keep'"
        )


def clear_rows(embedders: Sequence[Embedder]) -> None:
    """Empty the tables; run folders keep their own copies of the rows."""
    for table in _holding(embedders):
        full(table).clear()


def warn_of_rows(embedders: Sequence[Embedder]) -> None:
    """Warn if a table contains rows of an earlier training run when a new one begins."""
    for table in _holding(embedders):
        warnings.warn(
            f"{_named(table)} already holds {len(table):,} rows, and this training continues from them. Use tables='empty' "
            "(--tables empty) to remove them before the first step, or tables='keep' to silence this warning",
            stacklevel=4,  # where fit is called
        )


def set_rate(embedders: Sequence[Embedder], lr: float) -> None:
    """Set the learning rate of every table, for vectors and first-order weights. Sub-models of Model Servers keep theirs."""
    tables = [table for table in embedders if traits_of(table).sets_lr]
    if not tables:
        kinds = ", ".join(sorted({type(one).__name__ for one in embedders}))
        raise PlanError(
            f"lr= is the learning rate of embedding tables, but this model has none (it reads {kinds or 'nothing'}); remove lr="
        )
    for table in tables:
        full(table).set_lr(lr)
