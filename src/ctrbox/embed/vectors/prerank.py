"""Selects, among thousands of candidates, those with the largest inner product with the user's vector (``PreRank``).

rank = cb.tables.PreRank("ads.ctrvec")                        # as `export_vectors` wrote them
positions, scores = rank.top(user_vector, candidates, 400)

The vectors lie in memory. Candidates without a vector are left out and counted (``found``, ``missing``); equal scores keep the
order of the candidates. If the first ``FIRST`` candidates or more are all without a vector, a warning says so once: their keys
are probably made in another way than those of the file.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import numpy.typing as npt

from ctrbox.arguments.numbers import whole
from ctrbox.embed.embedder import Floats, Keys
from ctrbox.embed.vectors.file import VectorFile
from ctrbox.errors import DataError, PlanError

FIRST = 1000  # candidates, none of which has a vector, until a warning says so


class PreRank:
    """The vectors of all candidates, from which `top` selects those with the largest product with a user's vector."""

    def __init__(self, vectors: VectorFile | str | os.PathLike[str]) -> None:
        self.file = vectors if isinstance(vectors, VectorFile) else VectorFile(vectors)
        if self.file.tokens:
            raise PlanError(f"{self.file.path} holds tokens; expected vectors of floats")
        self._rows: Floats = self.file.read(np.arange(len(self.file)))
        self.found = self.missing = 0  # candidates with and without a vector, of all calls
        self._warned = False

    @property
    def dim(self) -> int:
        return self.file.width

    def top(self, user: npt.ArrayLike, candidates: Keys, k: int = 400) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the positions in ``candidates`` of the best ``k``, best first, and their products with ``user``."""
        vector = np.asarray(user, np.float32)
        if vector.shape != (self.dim,) or not np.isfinite(vector).all():
            raise DataError(f"expected a user vector of {self.dim} finite floats, got {vector.shape} {vector.dtype}")
        whole("k=", k, 1, 1 << 30)
        places = self.file.find(candidates)
        there = np.flatnonzero(places >= 0)
        self.found += len(there)
        self.missing += len(places) - len(there)
        if not self.found and self.missing >= FIRST and not self._warned:
            self._warned = True
            known = (
                f"; a candidate is {int(candidates[0])}, a key of the file is {int(self.file.keys[0])}"
                if len(self.file)
                else ""
            )
            warnings.warn(
                f"none of the first {self.missing:,} candidates has a vector in {self.file.path}, which holds "
                f"{len(self.file):,} keys{known}. Make the keys of candidates with the key expression, the id type and the key "
                "space that the file was written with",
                stacklevel=2,
            )
        scores = np.take(self._rows, places[there], axis=0) @ vector
        best = np.arange(len(scores))
        if k < len(scores):
            least = np.partition(scores, -k)[-k]
            above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
            best = np.concatenate([above, equal[: k - len(above)]])
        best = best[np.lexsort((best, -scores[best]))]
        return there[best], scores[best]
