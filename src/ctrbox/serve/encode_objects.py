"""Encodes the images and texts of requests with the encoders that made the vectors of a published model.

    bytes → checked against the bounds, decoded, prepared, encoded (embed/vectors/encoders.py, as for a vector file)
          → rounded to the type of the vector file → the sub-model of the version (published_table.py)

The vector of an image is the one that `cb.tables.encode` writes for the same bytes, bit for bit where both run on the same kind
of CPU with the same version of torch. Every version of the model names the encoder that made its vectors; a version whose
vectors another encoder made is refused. Any number of threads may call it; each encodes one item at a time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ctrbox.arguments.names import nearest
from ctrbox.columns.encoder_of_vectors import TEXT, EncodedBy
from ctrbox.embed.embedder import Floats
from ctrbox.embed.vectors.decode_image import Refused
from ctrbox.embed.vectors.encode_single_items import EncodedItems
from ctrbox.embed.vectors.encoders import NAMED, Encoder
from ctrbox.embed.vectors.published_table import PublishedVectors
from ctrbox.errors import CtrboxError, DataError, PlanError
from ctrbox.serve.objects_in_requests import Raw

MOST_IMAGES, MOST_PIXELS = 8, 16_000_000  # most images and texts per request; most pixels per image
log = logging.getLogger("ctrbox.serve")


class RawEncoder:
    """One encoder, with a cache of the vectors that it computed last; its errors name the part of the request."""

    def __init__(self, encoder: Encoder, most_pixels: int = MOST_PIXELS) -> None:
        self.encoder, self.facts = encoder, encoder.facts
        self.items = EncodedItems(encoder, most_pixels=most_pixels)

    def vector(self, raw: Raw, what: str) -> Floats:
        """Return the vector of an item as float32, (width,). ``what`` names the item in errors."""
        if raw.kind and raw.kind != self.facts.kind:
            raise DataError(f"{what} is sent as {raw.kind!r}, but the encoder of this field takes {self.facts.kind!r}")
        named = f"{what}, {'a text' if self.facts.kind == TEXT else 'an image'} of {len(raw.data):,} bytes,"
        try:
            return self.items.vector(raw.data)
        except Refused as refused:
            raise DataError(f"{named} {refused.detail}") from None
        except CtrboxError as error:
            raise DataError(f"{named} cannot be encoded: {error}") from error
        except Exception as error:  # raised by the user's module or prepare()
            raise DataError(f"{named} cannot be encoded: {type(error).__name__}: {str(error)[:200]}") from error


class RawEncoders:
    """The encoders of a server, by field of the model."""

    def __init__(self, by_field: Mapping[str, RawEncoder] | None = None, most: int = MOST_IMAGES) -> None:
        self.by_field, self.most = dict(by_field or {}), most

    @staticmethod
    def of(
        given: Mapping[str, Encoder | str | os.PathLike[str]],
        tables: Mapping[str, PublishedVectors],
        *,
        most: int = MOST_IMAGES,
        most_pixels: int = MOST_PIXELS,
    ) -> RawEncoders:
        """Return the encoders for the fields of a published version. ``given``: by field, an encoder or the weight file of the
        built-in encoder that made the vectors of the field."""
        found: dict[str, RawEncoder] = {}
        for name, one in given.items():
            if name not in tables:
                known = ", ".join(map(repr, tables)) or "none"
                raise PlanError(
                    f"an encoder is given for {name[:100]!r}, which is not a field of a Model Server{nearest(name, tables)}; "
                    f"the model has {known}"
                )
            encoder = one if isinstance(one, Encoder) else _named(name, one, facts_of(name, tables[name]))
            made = RawEncoder(encoder, most_pixels)
            # Fields of one Model Server share its vectors, so they share its encoder.
            found |= {other: made for other, table in tables.items() if table is tables[name]}
        encoders = RawEncoders(found, most)
        for told in encoders.check(tables):
            log.warning("%s", told)
        return encoders

    def check(self, tables: Mapping[str, PublishedVectors]) -> list[str]:
        """Raise an error if other encoders made the vectors of a version. Return warnings about differences by rounding."""
        warnings = {}
        for name, mine in self.by_field.items():
            if name not in tables:
                raise DataError(
                    f"the server was started with an encoder for the field {name!r}, but in this version of the model no "
                    "field of this name reads vectors of a Model Server; start the server without this encoder"
                )
            made_by = facts_of(name, tables[name])
            if differences := made_by.differences(mine.facts):
                raise DataError(
                    f"the encoder given for {name!r} is not the encoder that made the vectors of the model: "
                    f"{'; '.join(differences)}"
                )
            if why := made_by.rounding(mine.facts):
                warnings[id(mine)] = (
                    f"the vectors of images and texts in requests may differ from the published vectors of {name!r} in their "
                    f"last bits: {why}"
                )
        return list(warnings.values())

    def check_count(self, count: int) -> None:
        if count > self.most:
            raise DataError(
                f"the request has {count:,} images and texts; this server encodes at most {self.most} per request"
            )

    def of_field(self, name: str, what: str, table: PublishedVectors) -> RawEncoder:
        found = self.by_field.get(name)
        if found is None:
            if table.encoder is None:
                raise DataError(
                    f"{what} must be a list of {table.width:,} numbers: the model does not say which encoder made the "
                    "vectors of this field"
                )
            raise DataError(
                f"{what} must be a list of {table.width:,} numbers: this server was started without --encoder "
                f"{name}=WEIGHTS, the encoder {table.encoder.name!r}"
            )
        return found

    @property
    def encoded(self) -> int | None:
        """Number of items that the modules have encoded; None if the server has no encoders."""
        if not self.by_field:
            return None
        return sum(one.items.encoded for one in {id(one): one for one in self.by_field.values()}.values())


def facts_of(name: str, table: PublishedVectors) -> EncodedBy:
    if table.encoder is None:
        raise PlanError(
            f"the vectors of {name!r} were published without a description of their encoder, so the server cannot check that "
            "the given encoder made them; make the vector file with `ctrbox vectors encode` or cb.tables.encode, train, and "
            "publish again"
        )
    return table.encoder


def _named(name: str, weights: Any, made_by: EncodedBy) -> Encoder:
    if made_by.name not in NAMED:
        raise PlanError(
            f"the vectors of {name!r} were made by your own encoder {made_by.name!r} (module {made_by.module!r}); define it "
            f"in a job file, encoders = {{{name!r}: cb.tables.Encoder(…)}}, and pass that file: --job JOB.PY"
        )
    return Encoder.named(made_by.name, weights)


def rounded(vector: Floats, dtype: np.dtype[Any]) -> Floats:
    """Return a vector as float32, with its numbers rounded to the type of a vector file."""
    with np.errstate(over="ignore"):
        return vector.astype(dtype).astype(np.float32)
