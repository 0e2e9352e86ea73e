"""The real sets beside the repository: label, key and split are as their README says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ctrbox.datasets import ClickSet, criteo_attribution, criteo_sample, frappe, open_bandit
from ctrbox.errors import DataError, SourceError

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"

SETS = [
    (frappe, "frappe_x1", {"train": 202_027, "valid": 57_722, "test": 28_860}, 1 / 3),
    (criteo_sample, "criteo_1tb_80k", {"train": 64_000, "test": 16_000}, 0.0322),
    (criteo_attribution, "criteo_attribution_165k", {"train": 132_121, "test": 33_031}, 0.361),
    (open_bandit, "open_bandit_60k", None, 0.0048),
]


def folder(name: str) -> Path:
    path = DATA / name
    if not path.is_dir():
        pytest.skip(f"../shared/data/{name} is not on this machine")
    return path


@pytest.mark.parametrize(("reader", "name", "parts", "rate"), SETS)
def test_parts_cover_the_set_and_labels_have_the_published_rate(
    reader: Callable[[Path], ClickSet], name: str, parts: dict[str, int] | None, rate: float
) -> None:
    clicks = reader(folder(name))
    whole = clicks.table()
    assert whole.num_rows == clicks.rows
    assert pc.mean(whole[clicks.label]).as_py() == pytest.approx(rate, abs=5e-4)
    assert set(clicks.categories) | set(clicks.numbers) <= set(whole.column_names)
    assert whole[clicks.key].equals(pa.chunked_array([pa.array(np.arange(clicks.rows, dtype=np.int64))]))
    found = {part: clicks.table(part) for part in clicks.parts}
    assert sum(t.num_rows for t in found.values()) == clicks.rows
    assert all(t.num_rows for t in found.values())
    if parts is not None:
        assert {part: t.num_rows for part, t in found.items()} == parts
    seen = pa.concat_arrays([c for t in found.values() for c in t["row"].chunks])
    assert pc.count_distinct(seen).as_py() == clicks.rows


def test_open_bandit_joins_by_item() -> None:
    clicks = open_bandit(folder("open_bandit_60k"))
    items = clicks.dimension("items")
    assert pc.count_distinct(items["item"]).as_py() == items.num_rows == 160
    assert pc.all(pc.is_in(clicks.table()["item"], items["item"].combine_chunks())).as_py()
    train, test = clicks.table("train"), clicks.table("test")
    assert pc.max(train["timestamp"]).as_py() < pc.min(test["timestamp"]).as_py()
    with pytest.raises(DataError, match="has no table 'users'; it has items"):
        clicks.dimension("users")


def test_an_unknown_part_and_an_absent_or_foreign_file_are_named(tmp_path: Path) -> None:
    for reader in (frappe, criteo_sample, criteo_attribution, open_bandit):
        with pytest.raises(SourceError, match="cannot read a NoneType, expected the folder of"):
            reader(None)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"frappe_x1\.parquet cannot be read"):
        frappe(tmp_path)
    pq.write_table(pa.table({"split": ["train"], "label": [1]}), tmp_path / "frappe_x1.parquet")
    with pytest.raises(DataError, match="has no column 'user'; it has split, label"):
        frappe(tmp_path)
    columns = {c: pa.array([1], pa.int32()) for c in ("orig_row", "cat1", "cat4", "cat6", "cat8", "cat9", "click")}
    pq.write_table(pa.table(columns), tmp_path / "criteo_attribution_165k.parquet")
    with pytest.raises(DataError, match="has no part 'valid'; it has train, test"):
        criteo_attribution(tmp_path).table("valid")
