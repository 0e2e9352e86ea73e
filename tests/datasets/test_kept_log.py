"""A small synthetic log, column by column, compared with the figures in `kept/adlog.json`.

Of numbers the file has the sum and a sum in which each row weighs its place; five digits must agree, because the arithmetic of
another processor may differ in the last bits. Of texts it has a checksum. A change to the log that is meant changes the file:
`python -m tests.datasets.test_kept_log` writes it anew.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ctrbox.datasets import adlog
from ctrbox.datasets.adlog_world import START_US

FILE = Path(__file__).parent / "kept/adlog.json"


def probe() -> list[float]:
    """Return a number of each kind of draw: another version of NumPy may draw others."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, 1])))
    drawn = [rng.random(), rng.integers(0, 1000), rng.standard_normal(), rng.permutation(1000)[0], rng.normal(2.0, 3.0)]
    drawn += [rng.negative_binomial(4, 0.1), rng.gumbel(), rng.gamma(2.0), rng.standard_normal(1, np.float32)[0]]
    return [float(f"{value:.5g}") for value in drawn]


def figures(column: pa.ChunkedArray) -> list[Any]:
    """Return the number of nulls, then a checksum of texts or two sums of numbers."""
    nulls, kind = column.null_count, column.type
    if pa.types.is_timestamp(kind):  # as seconds of the log
        column = pc.divide(pc.subtract(column.cast(pa.int64()), START_US), 1e6)
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        column = pc.list_flatten(column)
    if pa.types.is_string(column.type):
        return [nulls, zlib.crc32("\n".join(column.fill_null("-").to_pylist()).encode())]
    values = column.fill_null(0).to_numpy().astype(np.float64)
    weighed = values * (1 + np.arange(len(values)) % 97)
    return [nulls, *(float(f"{total:.7g}") for total in (values.sum(), weighed.sum()))]


def made(folder: Path) -> dict[str, Any]:
    adlog(1_500, 5, folder / "log", users=150, ads=80, days=3, images=5)
    found: dict[str, Any] = {"probe": probe()}
    for view in sorted(p for p in (folder / "log").iterdir() if p.is_dir()):
        table = pq.read_table(view)
        found[view.name] = {name: figures(table[name]) for name in table.column_names}
    manifest = json.loads((folder / "log/adlog.json").read_text())
    found["scores"] = {name: [float(f"{manifest[name]:.7g}")] for name in ("best_auc", "logloss", "base_rate")}
    return found


def test_the_log_of_a_seed_is_the_one_that_is_kept(tmp_path: Path) -> None:
    kept = json.loads(FILE.read_text())
    if probe() != kept["probe"]:
        pytest.skip("this version of NumPy draws other random numbers than the one that the kept figures are of")
    now = made(tmp_path)
    assert now.keys() == kept.keys()
    for view in now.keys() - {"probe"}:
        assert now[view].keys() == kept[view].keys()
        for name, found in now[view].items():
            assert found == pytest.approx(kept[view][name], rel=1e-5), f"{view}.{name}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        text = json.dumps(made(Path(place)), indent=1)
    FILE.write_text(text.replace("[\n   ", "[").replace(",\n   ", ", ").replace("\n  ]", "]") + "\n")
