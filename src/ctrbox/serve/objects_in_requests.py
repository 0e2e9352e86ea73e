"""Reads the objects that come with a request, such as images and titles, for the Model Servers of the model.

    "objects": {"ad_image": {"77": [0.1, …], "78": […]}}                 by field, by raw id: the text or number that is hashed
    "objects": {"ad_image": {"77": {"image": "/9j/4AAQ…"}}}              the bytes of an image in base64
    "objects": {"title": {"77": {"text": "Red shoes"}}}                  a text
    tensors objects.ad_image [n, width] and objects.ad_image.id [n]       the same in the Open Inference Protocol; of type BYTES
                                                                          and shape [n], images or texts in UTF-8

An object is used only if its key has no published vector. Images and texts are first encoded (encode_objects.py); then the
sub-model of the version computes the vector. A list of tokens may be shorter than the width of the sub-model. The number of
objects is limited here; their width, type and numbers are compared with the version that scores.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ctrbox.arguments.names import nearest
from ctrbox.columns.raw_values import brief
from ctrbox.compiled_plan.plan import Plan, compile
from ctrbox.embed.embedder import Keys
from ctrbox.errors import DataError
from ctrbox.plan.language.expressions import col
from ctrbox.plan.language.features import FeatureSet
from ctrbox.plan.language.hashed_or_plain_keys import hashed_kind
from ctrbox.views.view import View

if TYPE_CHECKING:
    from ctrbox.embed.vectors.published_table import (
        PublishedVectors,  # brings torch, which a Deep FFM is served without
    )

MOST_OBJECTS = 64  # of a request: the paper's sub-model takes 0.5 ms for one
MOST_DIGITS = 20  # of an id that is a whole number, with its sign
PREFIX, ID = "objects.", ".id"


@dataclass(frozen=True)
class Raw:
    """The bytes of an image or of a text; ``kind`` is "" for a tensor, which does not say which of the two it holds."""

    kind: str
    data: bytes


@dataclass(frozen=True)
class Objects:
    """Objects of one field: their raw ids, and a list of numbers or a `Raw` for each, or one matrix."""

    ids: list[Any]
    rows: Any

    @property
    def raw(self) -> set[int]:
        """Positions of the objects that are images or texts."""
        return {k for k, row in enumerate(self.rows) if isinstance(row, Raw)} if isinstance(self.rows, list) else set()

    def some(self, places: list[int]) -> Objects:
        """Return the objects at these positions."""
        if len(places) == len(self.ids):
            return self
        return Objects([self.ids[k] for k in places], [self.rows[k] for k in places])


def from_json(given: Any) -> dict[str, Objects]:
    if not isinstance(given, dict):
        raise DataError(f"objects must be a JSON object with one entry per field, got {brief(given)}")
    found = {}
    for field, by_id in given.items():
        if not isinstance(by_id, dict):
            raise DataError(
                f"objects of {field[:100]!r} must be a JSON object that maps ids to lists, got {brief(by_id)}"
            )
        rows = [raw_of(field, name, one) if isinstance(one, dict) else one for name, one in by_id.items()]
        found[field] = Objects(list(by_id), rows)
    return bounded(found)


def raw_of(field: str, name: str, given: dict[str, Any]) -> Raw:
    """Return the bytes of an image or of a text in the JSON of a request."""
    what = f"object {brief(name)} of {field[:100]!r}"
    kind = next(iter(given), "")
    if len(given) != 1 or kind not in ("image", "text") or not isinstance(given[kind], str):
        raise DataError(
            f'{what} must be a list of numbers, {{"image": BASE64}} or {{"text": TEXT}}, got an object with '
            f"{', '.join(map(brief, list(given)[:3])) or 'nothing'}"
        )
    if kind == "text":
        return Raw(kind, given[kind].encode())
    try:
        return Raw(kind, base64.b64decode(given[kind], validate=True))
    except (binascii.Error, ValueError) as error:
        raise DataError(f"{what}: its image is not base64: {error}; it begins with {brief(given[kind][:20])}") from None


def from_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, Objects]:
    found = {}
    for name, values in tensors.items():
        field = name.removeprefix(PREFIX).removesuffix(ID)
        if f"{PREFIX}{field}" not in tensors or f"{PREFIX}{field}{ID}" not in tensors:
            raise DataError(
                f"objects of {field[:100]!r} must be sent as two tensors, {PREFIX}{field} and {PREFIX}{field}{ID}"
            )
        if name.endswith(ID):
            continue
        ids = tensors[f"{PREFIX}{field}{ID}"]
        if values.dtype == object and values.shape in ((len(values),), (len(values), 1)):
            values = values.reshape(-1)
            if ids.shape in ((len(values),), (len(values), 1)):
                found[field] = Objects(ids.reshape(-1).tolist(), [Raw("", bytes(one)) for one in values])
                continue
        if values.ndim != 2 or values.dtype == object or ids.shape not in ((len(values),), (len(values), 1)):
            raise DataError(
                f"tensors {name!r} and {name + ID!r} have the shapes {values.shape} and {ids.shape}; expected [n, width] "
                f"and [n], or [n] and [n] if the objects are images or texts of type BYTES"
            )
        found[field] = Objects(ids.reshape(-1).tolist(), values)
    return bounded(found)


def bounded(found: dict[str, Objects]) -> dict[str, Objects]:
    count = sum(len(o.ids) for o in found.values())
    if count > MOST_OBJECTS:
        raise DataError(f"the request has {count:,} objects; this server takes at most {MOST_OBJECTS}")
    return found


class ObjectKeys:
    """Converts the raw ids of objects to the keys that the plan gives them."""

    def __init__(self, plan: Plan) -> None:
        self.hashing: dict[tuple[str, str], Plan] = {}
        # Of a field its space, and what is hashed there, "s" or "i"; "": numbers are keys as they are.
        self.plain: dict[str, tuple[str, str]] = {}
        for output in plan.graph.outputs:
            kind = hashed_kind(output.node) if output.role == "sparse" else None
            if kind is not None:
                self.plain[output.name] = output.space, kind

    def of(self, field: str, ids: list[Any]) -> Keys:
        if field not in self.plain:
            raise DataError(
                f"objects of {field!r}: the keys of this field are not made from one id column alone, so an id cannot "
                "identify an object; leave objects of this field out of the request"
            )
        space, kind = self.plain[field]
        texts = [i.decode(errors="replace") if isinstance(i, bytes) else str(i) for i in ids]
        if kind == "s":
            return self.hashed(pa.array(texts, pa.string()), space)
        numbers = []
        for text in texts:
            plain = text.removeprefix("-").isdigit() and text.isascii() and len(text) <= MOST_DIGITS
            if not plain or not -(1 << 63) <= int(text) < 1 << 63:
                raise DataError(f"objects of {field!r}: id {brief(text)} is not a whole number from -2^63 to 2^63 - 1")
            numbers.append(int(text))
        return self.hashed(pa.array(numbers, pa.int64()), space) if kind else np.array(numbers, np.int64)

    def hashed(self, ids: pa.Array, space: str) -> Keys:
        """Return the keys of ids, by a plan of one feature. It is compiled once, and a call takes 0.1 ms."""
        plan = self.hashing.get((space, str(ids.type)))
        if plan is None:
            features = FeatureSet(sparse={"key": col("id").key(space=space)})
            plan = compile(View(pa.table({"id": ids[:0]})), features, device="cpu", threads=1)
            self.hashing[space, str(ids.type)] = plan
        return np.array(plan.run(pa.table({"id": ids})).sparse["key"].values)


def matrix(field: str, objects: Objects, table: PublishedVectors) -> Any:
    """Return the objects of a field in the form that the sub-model of a version reads."""
    rows = objects.rows
    if isinstance(rows, list):
        for name, row in zip(objects.ids, rows, strict=True):
            what = f"object {brief(name)} of {field!r}"
            if not isinstance(row, list) or not set(map(type, row)) <= {int, float}:
                raise DataError(f"{what} must be a list of {table.width} numbers, got {brief(row)}")
            if len(row) > table.width or (len(row) < table.width and not table.vocabulary):
                raise DataError(f"{what} has {len(row):,} numbers; expected {table.width:,}")
        rows = np.array([[*row, *[0] * (table.width - len(row))] for row in rows])
    if not len(rows):
        return np.empty((0, table.width), np.float32)
    return table.checked(rows, f"an object of {field!r}")


def served_by(field: str, tables: Mapping[str, PublishedVectors]) -> PublishedVectors:
    if field not in tables:
        known = f"; it takes objects of {', '.join(map(repr, tables))}" if tables else "; it takes none"
        raise DataError(f"this model does not compute vectors for {field[:100]!r}{nearest(field, tables)}{known}")
    return tables[field]
