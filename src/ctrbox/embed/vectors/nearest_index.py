"""Finds vectors with large inner products without looking at all of them: an HNSW graph of faiss (``pip install
'ctrbox[prerank]'``).

The graph may miss some of the best ads. `PreRank` computes the products of the ads that it found again, so an ad that is found
has the same score as in the exact search. faiss parses the file of a graph in native code that trusts its bytes: open only files
from a source that you trust. One thread of faiss searches for one request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox.embed.embedder import Floats
from ctrbox.errors import DataError, PlanError

LINKS, BUILD, SEARCH = (
    32,
    100,
    128,
)  # neighbors of a vector; vectors looked at while building, and while searching at least


class NearestIndex:
    """An HNSW graph over the rows of a matrix. Several threads may call ``search`` at the same time."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    @staticmethod
    def of(rows: Floats) -> NearestIndex:
        faiss = _faiss()
        graph = faiss.IndexHNSWFlat(rows.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = BUILD
        graph.add(np.ascontiguousarray(rows, np.float32))
        return NearestIndex(graph)

    @staticmethod
    def open(path: Path, rows: int, width: int) -> NearestIndex:
        faiss = _faiss()
        faiss.omp_set_num_threads(1)  # threads of OpenMP do not survive the fork that starts the workers of a server
        try:
            graph = faiss.read_index(str(path))
        except RuntimeError as error:
            raise DataError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
        if (graph.ntotal, graph.d, graph.metric_type) != (rows, width, faiss.METRIC_INNER_PRODUCT):
            raise DataError(
                f"{path} indexes {graph.ntotal:,} vectors of {graph.d} numbers; expected {rows:,} vectors of {width} "
                "numbers, compared by their inner product; make the folder again"
            )
        return NearestIndex(graph)

    def write(self, path: Path) -> None:
        _faiss().write_index(self._graph, str(path))

    def search(self, vector: Floats, k: int) -> npt.NDArray[np.int64]:
        """Return up to ``k`` rows, in ascending order, that are probably those with the largest products."""
        parameters = _faiss().SearchParametersHNSW(efSearch=max(SEARCH, 2 * k))
        _, found = self._graph.search(vector[None], k, params=parameters)
        return np.unique(found[found >= 0]).astype(np.int64)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise PlanError(
            "an index of vectors needs faiss-cpu, which is not installed: pip install 'ctrbox[prerank]'; or search exactly, "
            "without an index"
        ) from None
    return faiss
