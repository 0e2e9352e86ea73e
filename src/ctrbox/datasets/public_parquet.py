"""Describes four public click datasets in Parquet for the quality tables: label column, tables and split.

Each function takes the folder of one dataset and reads only the schema; `ClickSet.table` reads the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctrbox.errors import DataError, SourceError

Folder = str | PathLike[str]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ClickSet:
    """A public click log with a known label, a recommended split into parts, and its dimension tables.

    `parts` are the names of the parts, in the order in which a model may see them. `key` is a column with unique, ascending
    values in every table that `table` returns.
    """

    name: str
    path: Path
    label: str
    categories: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    key: str = "row"
    parts: tuple[str, ...] = ("train", "test")
    dimensions: dict[str, Path] = field(default_factory=dict)
    _split: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows of the log."""
        return pq.read_metadata(self.path).num_rows

    def table(self, part: str | None = None) -> pa.Table:
        """Return the log, or one part of it, in its order, with an int64 column `row`: the position of each row in the whole
        log.
        """
        if part is not None and part not in self.parts:
            raise DataError(f"{self.name} has no part {part!r}; it has {', '.join(self.parts)}")
        table = _keyed(pq.read_table(self.path, use_threads=False))
        if part is None:
            return table
        chosen = self._split[part]
        if isinstance(chosen, tuple):
            return table.slice(chosen[0], chosen[1] - chosen[0])
        return table.filter(chosen)

    def dimension(self, name: str) -> pa.Table:
        """Return a dimension table by its name."""
        if name not in self.dimensions:
            raise DataError(f"{self.name} has no table {name!r}; it has {', '.join(self.dimensions) or 'none'}")
        return _keyed(pq.read_table(self.dimensions[name], use_threads=False))


def _keyed(table: pa.Table) -> pa.Table:
    """Add `row`, and `item` (campaign/item_id) where an item is known by both."""
    if "campaign" in table.column_names and "item_id" in table.column_names:
        item = pc.binary_join_element_wise(table["campaign"].cast(pa.string()), table["item_id"].cast(pa.string()), "/")
        table = table.append_column("item", item)
    row = pa.array(np.arange(table.num_rows, dtype=np.int64))
    if "row" in table.column_names:
        return table.set_column(table.column_names.index("row"), "row", row)
    return table.add_column(0, "row", row)


def _find(folder: Folder, name: str, columns: tuple[str, ...]) -> Path:
    if not isinstance(folder, (str, PathLike)):
        raise SourceError(f"cannot read a {type(folder).__name__}, expected the folder of {name}")
    path = Path(folder) / name
    try:
        found = pq.read_schema(path).names
    except (OSError, pa.ArrowInvalid) as error:
        raise SourceError(f"{path} cannot be read as Parquet: {error}") from error
    missing = [c for c in columns if c not in found]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; it has {', '.join(found)}")
    return path


def frappe(folder: Folder) -> ClickSet:
    """Read Frappe_x1 of the BARS benchmark: 288,609 rows with 10 id fields, in the published random split."""
    categories = (
        "user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city"
    )  # fmt: skip
    parts = ("train", "valid", "test")
    return ClickSet(
        name="frappe_x1",
        path=_find(folder, "frappe_x1.parquet", ("split", "label", *categories)),
        label="label",
        categories=categories,
        parts=parts,
        _split={part: pc.field("split") == part for part in parts},
    )


def criteo_sample(folder: Folder) -> ClickSet:
    """Read 80,000 rows of the Criteo 1TB logs, with counts i1 to i13 and categories c1 to c26. The last fifth is the test
    part.
    """
    numbers = tuple(f"i{k}" for k in range(1, 14))
    categories = tuple(f"c{k}" for k in range(1, 27))
    return ClickSet(
        name="criteo_1tb_80k",
        path=_find(folder, "criteo_1tb_80k.parquet", ("row", "label", *numbers, *categories)),
        label="label",
        categories=categories,
        numbers=numbers,
        _split={"train": (0, 64_000), "test": (64_000, 80_000)},
    )


def criteo_attribution(folder: Folder) -> ClickSet:
    """Read 165,152 rows of the Criteo attribution data in their original order. The last fifth is the test part."""
    categories = ("cat1", "cat4", "cat6", "cat8", "cat9")
    path = _find(folder, "criteo_attribution_165k.parquet", ("orig_row", "click", *categories))
    rows = pq.read_metadata(path).num_rows
    cut = rows * 4 // 5
    return ClickSet(
        name="criteo_attribution_165k",
        path=path,
        label="click",
        categories=categories,
        _split={"train": (0, cut), "test": (cut, rows)},
    )


def open_bandit(folder: Folder) -> ClickSet:
    """Read 60,000 impressions of the Open Bandit Dataset in order of time, and its items. The test part is 29 and 30 November.

    Both tables get a column `item` with the value campaign/item_id, by which they are joined. An item_id alone is not enough,
    because it means another item in another campaign.
    """
    features = tuple(f"user_feature_{k}" for k in range(4))
    columns = (
        "timestamp",
        "item_id",
        "position",
        "click",
        "propensity_score",
        *features,
        "policy",
        "campaign",
    )
    items = _find(folder, "items.parquet", ("campaign", "item_id"))
    cut = pa.scalar("2019-11-29").cast(pa.timestamp("us"))
    return ClickSet(
        name="open_bandit_60k",
        path=_find(folder, "impressions.parquet", columns),
        label="click",
        categories=("item", "position", *features, "policy", "campaign"),
        numbers=("propensity_score",),
        dimensions={"items": items},
        _split={"train": pc.field("timestamp") < cut, "test": pc.field("timestamp") >= cut},
    )
