"""Looks up the rows of a published version; they cannot be trained.

PublishedTable     of a table: a key that was never learned has its initial row, which seed and key decide
PublishedVectors   of a Model Server: what its sub-model gave for every object it had, and the sub-model for objects it had not

Any number of threads may look up rows; the sub-model runs in one thread at a time. The tables refuse a key that is
given twice, different numbers of rows and keys, objects of another width, numbers that are not finite, and tokens
beyond the vocabulary.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ctrbox import _native
from ctrbox.arguments.numbers import whole
from ctrbox.columns.encoder_of_vectors import EncodedBy
from ctrbox.embed.embedder import FixedShape, Floats, Keys, NextUse, Row
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.embed.settings_of_tables import checked_init, checked_keys
from ctrbox.errors import DataError, PlanError

NOBODY = np.empty(0, np.int64)
KEPT, KEPT_BYTES = 65_536, 64 << 20  # objects embedded on request that a version remembers, at most; and their bytes


class PublishedTable(FixedShape):
    """Keys in any order and their rows (n, ``row.width``): an embedder that cannot be trained."""

    _holder = "this published table holds rows of"

    def __init__(self, keys: Keys, rows: Floats, row: Row, *, init: float = 0.0, seed: int = 0) -> None:
        keys = checked_keys(keys)
        if rows.shape != (len(keys), row.width) or rows.dtype != np.float32:
            raise DataError(
                f"the rows of {len(keys):,} keys have shape {rows.shape} and type {rows.dtype}; expected "
                f"{row} for each key"
            )
        self._rows, self._row = _native.PublishedRows(keys, np.ascontiguousarray(rows)), row
        if (twice := self._rows.twice) is not None:
            raise DataError(f"the rows to publish contain key {twice} twice; give each key one row")
        self._initial = MemoryTable(row.dim, init=checked_init(init), seed=whole("seed=", seed, 0, 2**64 - 1))
        self._initial.open(row)
        self._alone = threading.Lock()

    def found(self, keys: Keys) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return a copy of the rows of keys, and the places of the keys without a row; their rows are 0."""
        return self._rows.find(keys)

    def pull(self, keys: Keys, *, create: bool = False) -> Floats:
        return self.pull_told(checked_keys(keys))[0]

    def pull_told(self, keys: Keys) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return the rows of keys, and the places of the keys that were never learned, which get their initial rows."""
        rows, lost = self.found(keys)
        if len(lost):
            rows[lost] = self._absent(keys[lost])
        return rows, lost

    def _absent(self, keys: Keys) -> Floats:
        with self._alone:
            return np.array(self._initial.pull(keys, create=False))

    # ---- the rest of the contract

    def prefetch(self, keys: Keys, *, next_use: NextUse | None = None) -> None:
        """Do nothing, because all rows are in memory."""

    def push(self, keys: Keys, gradients: Floats, *, shows: Floats | None = None, clicks: Floats | None = None) -> None:
        raise PlanError("a published table cannot be trained; train the table of the run instead")

    def save(self, path: str | os.PathLike[str] | Path) -> None:
        raise PlanError("a published table cannot be saved; copy the file of its version instead")

    def restore(self, path: str | os.PathLike[str] | Path) -> None:
        raise PlanError("a published table cannot be restored; open the file of its version instead")

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes


class PublishedVectors(PublishedTable):
    """The published vectors of a Model Server, and its sub-model for other objects.

    ``submodel``: None if it cannot be built again from its weights; then only published objects have vectors.
    ``width``: count of numbers of an object. ``vocabulary``: the largest token, or 0 if objects are floats.
    ``encoder``: the encoder that computed the numbers from images or texts, if it is known. ``dtype``: the type of the
    numbers in the vector file.
    """

    def __init__(
        self,
        keys: Keys,
        vectors: Floats,
        submodel: nn.Module | None,
        *,
        width: int,
        vocabulary: int = 0,
        kept: int = KEPT,
        encoder: EncodedBy | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        super().__init__(keys, vectors, Row(vectors.shape[1] if vectors.ndim == 2 else 0))
        self.submodel = None if submodel is None else submodel.eval().requires_grad_(False)
        self.width, self.vocabulary = width, vocabulary
        self.encoder, self.dtype = encoder, np.dtype(dtype)
        self.kept = max(1, min(kept, KEPT_BYTES // (192 + 4 * self.dim)))  # 192: key, digest, headers
        self._seen: OrderedDict[int, tuple[bytes, Floats]] = OrderedDict()
        self._seen_lock = threading.Lock()
        self.changes = 0  # of what was seen: a look-up with keys that were not published is good until the next

    def checked(self, rows: npt.ArrayLike, what: str = "an object") -> npt.NDArray[np.generic]:
        """Check objects and return them as the sub-model takes them, (n, width): float32, or tokens as int32."""
        self.check_submodel(what)
        text = self.vocabulary > 0
        given = np.asarray(rows)
        if given.ndim != 2 or given.shape[1] != self.width:
            met = given.shape[1] if given.ndim == 2 else f"shape {given.shape}"
            raise DataError(f"{what} has {met} numbers; expected {self.width}")
        if text and (
            given.dtype.kind not in "iu" or given.min(initial=0) < 0 or given.max(initial=0) > self.vocabulary
        ):
            raise DataError(f"{what} must hold tokens, whole numbers from 0 to {self.vocabulary:,}")
        with np.errstate(over="ignore"):
            made = given.astype(np.int32 if text else np.float32)
        if not text and not np.isfinite(made).all():
            raise DataError(f"{what} holds a number that is not finite as float32")
        return made

    def check_submodel(self, what: str) -> None:
        if self.submodel is None:
            raise DataError(
                f"{what}: the sub-model of this version is a user-defined class, which the server cannot run; send ids that "
                "were published with a vector"
            )

    def embed(self, keys: Keys, rows: npt.NDArray[np.generic]) -> tuple[dict[int, Floats], int]:
        """Return the vectors of those of these objects that were not published, and the number of objects for which the
        sub-model ran.

        Computed vectors are cached by key and content.
        """
        fresh = [k for k in self.found(keys)[1].tolist() if keys[k] != 0]
        digests = {k: hashlib.blake2b(rows[k].tobytes(), digest_size=16).digest() for k in fresh}
        found: dict[int, Floats] = {}
        with self._seen_lock:
            for k in fresh:
                known = self._seen.get(int(keys[k]))
                if known is not None and known[0] == digests[k]:
                    self._seen.move_to_end(int(keys[k]))
                    found[int(keys[k])] = known[1]
        todo = [k for k in fresh if int(keys[k]) not in found]
        if not todo:
            return found, 0
        assert self.submodel is not None
        with self._alone, torch.inference_mode():
            vectors = self.submodel(torch.from_numpy(rows[todo])).numpy()
        if not np.isfinite(vectors).all():
            raise DataError(
                "the sub-model's vector of an object is not finite; check that its numbers are not too large"
            )
        with self._seen_lock:
            self.changes += 1
            for k, vector in zip(todo, vectors, strict=True):
                found[int(keys[k])] = vector.copy()
                self._seen[int(keys[k])] = digests[k], found[int(keys[k])]
                self._seen.move_to_end(int(keys[k]))
            while len(self._seen) > self.kept:
                self._seen.popitem(last=False)
        return found, len(todo)

    def look_up(self, keys: Keys, own: Mapping[int, Floats] | None = None) -> tuple[Floats, Keys, Keys]:
        """Return vectors, the keys that have no vector at all, whose vectors are zero, and the keys that were not published.

        ``own``: vectors of objects in the same request, which are used rather than those from earlier requests.
        """
        found, lost = self.found(keys)
        if not lost.size:
            return found, NOBODY, NOBODY
        without = []
        with self._seen_lock:
            for k in lost.tolist():
                key = int(keys[k])
                if own is not None and key in own:
                    found[k] = own[key]
                elif key in self._seen:
                    self._seen.move_to_end(key)
                    found[k] = self._seen[key][1]
                elif key:
                    without.append(key)
        return found, np.array(without, np.int64), keys[lost]

    def pull(self, keys: Keys, *, create: bool = False) -> Floats:
        return self.look_up(checked_keys(keys))[0]

    @property
    def remembered(self) -> int:
        return len(self._seen)
