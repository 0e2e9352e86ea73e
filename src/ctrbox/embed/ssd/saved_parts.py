"""Defines ``TableParts``: a Sparse Table that several processes saved in parts, read where the parts lie.

A key is in part ``shard_of(key, parts)``. Each part is opened read-only, so nothing is copied or joined.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ctrbox.embed.embedder import FixedShape, Floats, Keys, NextUse
from ctrbox.embed.embedder_traits import Traits
from ctrbox.embed.settings_of_tables import same_shape
from ctrbox.embed.ssd.folder import described
from ctrbox.embed.ssd.sparse_table import SparseTable
from ctrbox.embed.vectors.vector_file import shard_of
from ctrbox.errors import PlanError


class TableParts(FixedShape):
    """All rows of a Sparse Table that was saved in ``parts``, for predictions and exports. ``ram``: memory for all
    parts together, in bytes.
    """

    _holder = "these saved parts hold rows of"

    def __init__(self, parts: Sequence[Path], *, ram: int) -> None:
        shape = described(parts[0])
        for part in parts[1:]:
            same_shape(part, described(part), shape)
        self.path = parts[0].parent
        self.parts = [SparseTable.load(part, read_only=True, ram=max(1, ram // len(parts))) for part in parts]
        self._row = self.parts[0].row

    @property
    def traits(self) -> Traits:
        """Return the operations of the parts that predictions and exports use."""
        first = self.parts[0].traits
        return Traits(shows=first.shows, folder=self.path, publishes=True, initial=first.initial)

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        if create:
            self._refuse()
        home = shard_of(keys, len(self.parts))
        found = np.empty((len(keys), self.row.width), np.float32)
        for k, part in enumerate(self.parts):
            mine = np.flatnonzero(home == k)
            found[mine] = part.pull(keys[mine], create=False)
        return found

    def prefetch(self, keys: Keys, *, next_use: NextUse | None = None) -> None:
        self._refuse()

    def push(self, keys: Keys, gradients: Floats, *, shows: Floats | None = None, clicks: Floats | None = None) -> None:
        self._refuse()

    def save(self, path: str | os.PathLike[str]) -> None:
        self._refuse()

    def restore(self, path: str | os.PathLike[str]) -> None:
        self._refuse()

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def export(self) -> tuple[Keys, Floats, Floats]:
        """Return the keys in ascending order, their rows and their optimizer states, as `SparseTable.export` does."""
        keys, rows, states = (np.concatenate(arrays) for arrays in zip(*(p.export() for p in self.parts), strict=True))
        order = np.argsort(keys)
        return keys[order], rows[order], states[order]

    def scan(self, since: int = 0) -> Iterator[tuple[Keys, Any, Floats]]:
        """Yield keys, versions and whole rows of all parts, as `SparseTable.scan` does."""
        for part in self.parts:
            yield from part.scan(since)

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def _refuse(self) -> NoReturn:
        raise PlanError(
            f"the table in {self.path} was saved in {len(self.parts)} parts, which can only be read; to continue "
            "training, start a training from its run (ctrbox train JOB --from RUN)"
        )
