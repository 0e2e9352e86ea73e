"""The graph that finds vectors with large inner products: refusals of files that are damaged or of other vectors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ctrbox.embed.vectors.nearest_index import NearestIndex
from ctrbox.errors import DataError

pytest.importorskip("faiss")
ROWS = np.random.default_rng(3).standard_normal((20, 4)).astype(np.float32)


def test_a_graph_that_was_written_finds_the_same_rows_when_it_is_opened(tmp_path: Path) -> None:
    graph = NearestIndex.of(ROWS)
    graph.write(tmp_path / "graph")
    found = NearestIndex.open(tmp_path / "graph", 20, 4).search(ROWS[7], 5)
    assert found.tolist() == sorted(np.argsort(-(ROWS @ ROWS[7]))[:5].tolist())
    assert found.tolist() == graph.search(ROWS[7], 5).tolist()


def test_a_file_that_is_no_graph_is_named(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    path.write_bytes(b"not a graph" * 20)
    with pytest.raises(DataError, match=f"^cannot read {re.escape(str(path))}: .+"):
        NearestIndex.open(path, 20, 4)


@pytest.mark.parametrize(("rows", "width"), [(19, 4), (20, 5)])
def test_a_graph_of_other_vectors_is_refused(tmp_path: Path, rows: int, width: int) -> None:
    path = tmp_path / "graph"
    NearestIndex.of(ROWS).write(path)
    with pytest.raises(DataError) as met:
        NearestIndex.open(path, rows, width)
    assert str(met.value) == (
        f"{path} indexes 20 vectors of 4 numbers; expected {rows} vectors of {width} numbers, "
        "compared by their inner product; make the folder again"
    )
