"""Selects, among thousands of candidates, those with the largest inner product with the user's vector (``PreRank``).

rank = cb.tables.PreRank("ads.ctrvec")                        # as `export_vectors` wrote them
positions, scores = rank.top(user_vector, candidates, 400)
rows, scores = rank.best(user_vector, 400)                    # of all vectors of the file, by their rows in it

The vectors lie in memory, and native code computes the products (``native/core/vectors/best_products.h``): the same
bits on every machine, for any number of threads. Candidates without a vector are left out and counted (``found``,
``missing``); equal scores keep the order of the candidates, or of the rows. If the first ``FIRST`` candidates or more
are all without a vector, a warning says so once: their keys were probably not made in the same way as those of the
file.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import numpy.typing as npt

from ctrbox import _native
from ctrbox.arguments.numbers import whole
from ctrbox.embed.embedder import Floats, Keys
from ctrbox.embed.vectors.vector_file import VectorFile
from ctrbox.errors import DataError, PlanError

FIRST = 1000  # candidates, none of which has a vector, until a warning says so


class PreRank:
    """The vectors of all candidates. `top` selects the candidates with the largest inner products with a user's vector."""

    def __init__(self, vectors: VectorFile | str | os.PathLike[str]) -> None:
        self.file = vectors if isinstance(vectors, VectorFile) else VectorFile(vectors)
        if self.file.tokens:
            raise PlanError(
                f"{self.file.path} contains tokens, which cannot be pre-ranked; pass a vector file of floats"
            )
        self._rows: Floats = self.file.read(np.arange(len(self.file)))
        self.found = self.missing = 0  # candidates with and without a vector, of all calls
        self._warned = False

    @property
    def dim(self) -> int:
        """Number of floats in a vector."""
        return self.file.width

    def __len__(self) -> int:
        """Return the number of vectors."""
        return len(self._rows)

    def top(
        self, user: npt.ArrayLike, candidates: Keys, k: int = 400, *, threads: int = 1
    ) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the positions in ``candidates`` of the best ``k`` candidates, the best first, and their inner products with
        ``user``.

        ``threads``: number of threads that compute the products; it never changes the result.
        """
        whole("k=", k, 1, 1 << 30)
        vector = self.checked(user)
        places = self.file.find(candidates)
        found = int((places >= 0).sum())
        self.found += found
        self.missing += len(places) - found
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
        return self.top_of(vector, places, k, threads=threads)

    def top_of(
        self, user: npt.ArrayLike, places: npt.NDArray[np.int64], k: int, *, threads: int = 1
    ) -> tuple[npt.NDArray[np.int64], Floats]:
        """Do the same as `top` for candidates whose rows in the file are known, without counting candidates.

        The place of a candidate without a row is -1.
        """
        there = np.flatnonzero(places >= 0)
        best, scores = self._best(self.checked(user), places[there], k, threads)
        return there[best], scores

    def best(
        self, user: npt.ArrayLike, k: int = 400, *, threads: int = 1, among: npt.NDArray[np.int64] | None = None
    ) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the rows of the file with the ``k`` largest inner products with ``user``, the best first, and these products.

        ``among``: consider only these rows, each once and in ascending order. ``threads``: as for `top`.
        """
        vector = self.checked(user)
        found, scores = self._best(vector, among, whole("k=", k, 1, 1 << 30), threads)
        return (found if among is None else among[found]), scores

    def checked(self, user: npt.ArrayLike) -> Floats:
        """Return the vector of a user in the form in which it is multiplied. Raise a DataError if its width is wrong or it is
        not finite.
        """
        vector = np.ascontiguousarray(user, np.float32)
        if vector.shape != (self.dim,) or not np.isfinite(vector).all():
            raise DataError(f"expected a user vector of {self.dim} finite floats, got {vector.shape} {vector.dtype}")
        return vector

    def _best(
        self, vector: Floats, places: npt.NDArray[np.int64] | None, k: int, threads: int
    ) -> tuple[npt.NDArray[np.int64], Floats]:
        found, scores = _native.best_products(self._rows, vector, places, k, whole("threads", threads, 1, 1024))
        wrong = np.flatnonzero(~np.isfinite(scores))
        if len(wrong):
            row = int(found[wrong[0]] if places is None else places[found[wrong[0]]])
            raise DataError(
                f"the product of the user's vector with row {row} of {self.file.path} is {scores[wrong[0]]}: the numbers are too "
                "large for float32; train the model with less extreme weights and export its vectors again"
            )
        return found, scores
