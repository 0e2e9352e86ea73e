"""`PreRank`: from some thousand candidates to the few hundred whose vectors have the largest product with the user's.

rank = cb.PreRank("ads.ctrvec")                        # as `export_vectors` wrote them
positions, scores = rank.top(user_vector, candidates, 400)

The vectors lie in memory. Candidates without a vector are left out and counted; equal scores keep the order of the candidates.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from ctrbox.embed.embedder import Floats, Keys
from ctrbox.embed.table import whole
from ctrbox.embed.vector_file import VectorFile
from ctrbox.errors import DataError, PlanError


class PreRank:
    def __init__(self, vectors: VectorFile | str | os.PathLike[str]) -> None:
        self.file = vectors if isinstance(vectors, VectorFile) else VectorFile(vectors)
        if self.file.tokens:
            raise PlanError(f"{self.file.path} holds tokens; expected vectors of floats")
        self._rows: Floats = self.file.read(np.arange(len(self.file)))
        self.missing = 0

    @property
    def dim(self) -> int:
        return self.file.width

    def top(self, user: npt.ArrayLike, candidates: Keys, k: int = 400) -> tuple[npt.NDArray[np.int64], Floats]:
        """Positions in ``candidates`` of the best ``k``, best first, and their products with ``user``."""
        vector = np.asarray(user, np.float32)
        if vector.shape != (self.dim,) or not np.isfinite(vector).all():
            raise DataError(f"expected a user vector of {self.dim} finite floats, got {vector.shape} {vector.dtype}")
        whole("k", k, 1, 1 << 30)
        places = self.file.find(candidates)
        there = np.flatnonzero(places >= 0)
        self.missing += len(places) - len(there)
        scores = np.take(self._rows, places[there], axis=0) @ vector
        best = np.arange(len(scores))
        if k < len(scores):
            least = np.partition(scores, -k)[-k]
            above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
            best = np.concatenate([above, equal[: k - len(above)]])
        best = best[np.lexsort((best, -scores[best]))]
        return there[best], scores[best]
