"""Computes vectors of single items with an encoder, and caches those that it computed last.

Any number of threads may call it. The size of the cache in bytes is bounded; the least recently used vectors are evicted first.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ctrbox.embed.embedder import Floats
from ctrbox.embed.vectors.decode_image import MOST_PIXELS, Refused
from ctrbox.errors import DataError

if TYPE_CHECKING:
    from ctrbox.embed.vectors.encoders import Encoder

KEPT_BYTES = 64 << 20
ENTRY = 256  # bytes of a cache entry without its vector


class EncodedItems:
    """Vectors by the SHA-256 of the items' bytes. ``encoded`` counts the items for which the module ran."""

    def __init__(self, encoder: Encoder, *, most_pixels: int = MOST_PIXELS, kept_bytes: int = KEPT_BYTES) -> None:
        self.encoder, self.most_pixels, self.kept_bytes = encoder, most_pixels, kept_bytes
        self.encoded = 0
        self._kept: OrderedDict[bytes, Floats] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def vector(self, data: bytes) -> Floats:
        """Return the vector of an item as float32, (width,); raise `Refused` if the item cannot be decoded."""
        digest = hashlib.sha256(data).digest()
        with self._lock:
            known = self._kept.get(digest)
            if known is not None:
                self._kept.move_to_end(digest)
                return known
        vector: Floats = self.encoder.encode([self.encoder.prepared(data, most_pixels=self.most_pixels)])[0]
        with self._lock:
            self.encoded += 1
            self._kept[digest] = vector
            while len(self._kept) > max(1, self.kept_bytes // (vector.nbytes + ENTRY)):
                self._kept.popitem(last=False)
        return vector

    def column(self, items: pa.Array) -> pa.Array:
        """Return the vectors of a column of texts or images, each a list of `Encoder.width` numbers."""
        raw = items.view(pa.large_binary() if pa.types.is_large_string(items.type) else pa.binary())
        encoded = raw.dictionary_encode()
        width = self.encoder.width
        rows = np.empty((len(encoded.dictionary), width), np.float64)
        for k, item in enumerate(encoded.dictionary):
            rows[k] = self._row(item.as_py(), width)
        flat = rows[encoded.indices.to_numpy()].reshape(-1)
        return pa.LargeListArray.from_arrays(np.arange(len(items) + 1, dtype=np.int64) * width, flat)

    def _row(self, data: bytes, width: int) -> Floats:
        what = f"{self.encoder.kind} of {len(data):,} bytes that begins with {data[:20]!r}"
        try:
            found = self.vector(data)
        except Refused as refused:
            raise DataError(f"the {what} {refused.detail}") from None
        if found.shape != (width,) or not np.isfinite(found).all():
            raise DataError(
                f"the vector of the {what} has {len(found):,} numbers; expected {width:,} numbers, all of them finite"
            )
        return found
