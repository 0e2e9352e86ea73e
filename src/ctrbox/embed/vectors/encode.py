"""Encodes raw images or texts into a vector file, and lists the items without a vector in a report.

cb.tables.encode("images.ctrvec", "images/", encoder, key=col("name").key(space="image"))
cb.tables.encode("images.ctrvec", cb.View("ads.parquet"), encoder, key=col("ad_id").key(space="image"), column="image")
cb.tables.encode("titles.ctrvec", cb.View("ads.parquet"), encoder, key=col("ad_id").key(space="title"), column="title")

Several threads decode the items. The encoder gets batches of distinct items, in the order in which they first occur: items
of equal bytes (by SHA-256) are encoded once. An encoding that was killed continues when it is called again. The vector file names
the encoder and the checksum of its weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import whole
from ctrbox.columns.encoded_by import EncodedBy
from ctrbox.embed.vectors.encoded_so_far import EncodedSoFar
from ctrbox.embed.vectors.encoders import Encoder, undivided
from ctrbox.embed.vectors.file import VectorFile
from ctrbox.embed.vectors.pictures import MOST_BYTES, MOST_PIXELS, Refused
from ctrbox.embed.vectors.write import FLOATS, check_place, write_encoded
from ctrbox.engines.computing import compute
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.atomic import written_aside
from ctrbox.files.filesystems import natural, printable
from ctrbox.files.urls import local_path
from ctrbox.plan.language.expr import Expr
from ctrbox.views.readahead import readahead
from ctrbox.views.view import View

CHUNK = 1024  # rows of keys at a time


@dataclass(frozen=True)
class Encoded:
    """Result of an encoding. ``skipped`` counts the items without a vector by cause; the report lists them."""

    file: VectorFile
    items: int
    encoded: int
    resumed: int
    skipped: dict[str, int]
    report: Path


@dataclass(frozen=True)
class _Item:
    """An item before it is encoded; ``facts`` are the columns that its key is computed from."""

    shown: str
    facts: dict[str, Any]
    read: Callable[[], bytes | None]


@dataclass(frozen=True)
class _Prepared:
    item: _Item
    hash: bytes | None = None
    input: Any = None
    refused: Refused | None = None


def encode(
    path: str | os.PathLike[str],
    data: str | os.PathLike[str] | View,
    encoder: Encoder,
    *,
    key: Expr,
    column: str | None = None,
    batch_size: int = 32,
    threads: int = 4,
    dtype: str = "float32",
    width: int | None = None,
    most_bytes: int = MOST_BYTES,
    most_pixels: int = MOST_PIXELS,
    progress: Callable[[int], None] | None = None,
) -> Encoded:
    """Write the vectors of all items of ``data`` to the vector file ``path``.

    ``data``: a folder of images, or a view with a ``column`` of image bytes or of texts. ``key``: an expression that computes
    the key of an item from the columns of the view, as the plan does. A folder has the columns ``name``, the file's name without
    its ending, and ``path``, the file's path below the folder. ``width``: expected width of the vectors; an encoder that returns
    another width is refused. ``batch_size``: number of items per batch (1 to 65,536). ``threads``: number of threads that decode
    and, on the CPU, of those that run the encoder (1 to 256). ``most_bytes`` and ``most_pixels``: largest image that is decoded.
    The report, ``path`` followed by ``.skipped.jsonl``, has one line of JSON for each item that has no vector.
    """
    if not isinstance(encoder, Encoder):
        raise PlanError(f"encoder must be a cb.tables.Encoder, got a {type(encoder).__name__}")
    if not isinstance(key, Expr):
        raise PlanError(f"key must be an expression such as col('name').key(space='image'), got {key!r}")
    if dtype not in FLOATS:
        raise PlanError(f"dtype must be float32 or float16, got {dtype!r}")
    for name, value, least, most in (
        ("batch_size=", batch_size, 1, 65_536),
        ("threads=", threads, 1, 256),
        ("most_bytes=", most_bytes, 1, 1 << 31),
        ("most_pixels=", most_pixels, 1, 1 << 31),
    ):
        whole(name, value, least, most)
    place = local_path(path, "a vector file")
    check_place(place, data if isinstance(data, str | os.PathLike) else None)
    bounds = (most_bytes, most_pixels)
    told = encoder.facts
    identity = {"encoder": told.facts(), "batch": batch_size, "bounds": list(bounds)}
    so_far = EncodedSoFar(place.with_name(f".{place.name}.encoding"), identity, batch_size)
    try:
        job = _Job(encoder, so_far, batch_size, width, bounds)
        schema, items = _items(data, column, key, bounds[0])
        with undivided(threads) as pool:
            job.run(items, threads, progress, pool)
        file = job.write(place, key, schema, dtype, told)
        report = place.with_name(place.name + ".skipped.jsonl")
        with written_aside(report) as aside:
            aside.write_text("".join(json.dumps(line) + "\n" for line in job.refused), encoding="utf-8")
    except BaseException:
        so_far.close(remove=False)
        raise
    so_far.close(remove=True)
    causes = Counter(str(line["cause"]) for line in job.refused)
    return Encoded(file, job.items, job.encoded, job.resumed, dict(causes), report)


class _Job:
    """One encoding: it reads items in order, passes batches to the encoder, and keeps the facts of each item until the end."""

    def __init__(
        self, encoder: Encoder, so_far: EncodedSoFar, batch_size: int, width: int | None, bounds: tuple[int, int]
    ) -> None:
        self.encoder, self.so_far, self.batch_size, self.width, self.bounds = encoder, so_far, batch_size, width, bounds
        self.items = self.encoded = 0
        self.resumed = len(so_far.places)
        self.facts: list[dict[str, Any]] = []
        self.hashes: list[bytes] = []
        self.refused: list[dict[str, str]] = []
        self._waiting: dict[bytes, Any] = {}
        if so_far.width is not None:
            self._check_width(so_far.width)

    def run(self, items: Iterator[_Item], threads: int, progress: Callable[[int], None] | None, pool: Executor) -> None:
        tasks = (partial(self._prepare, item) for item in items)
        for one in readahead(tasks, threads=threads, ahead=2 * self.batch_size):
            self.items += 1
            if one.refused is not None or one.hash is None:
                refused = one.refused or Refused("null", "is null")
                self.refused.append({"item": one.item.shown, "cause": refused.cause, "detail": refused.detail})
            else:
                self.facts.append(one.item.facts)
                self.hashes.append(one.hash)
                if one.hash not in self.so_far.places and one.hash not in self._waiting:
                    self._waiting[one.hash] = one.input
                    if len(self._waiting) == self.batch_size:
                        self._encode(pool)
            if progress is not None:
                progress(self.items)
        if self._waiting:
            self._encode(pool)

    def _prepare(self, item: _Item) -> _Prepared:
        """Read, hash and decode an item; runs in a thread."""
        try:
            data = item.read()
            if data is None:
                return _Prepared(item)
            if len(data) > self.bounds[0]:
                raise Refused("bytes", f"has {len(data):,} bytes; at most {self.bounds[0]:,} are read")
            found = hashlib.sha256(data).digest()
            if found in self.so_far.places:
                return _Prepared(item, found)
            return _Prepared(item, found, self.encoder.prepared(data, *self.bounds))
        except Refused as refused:
            return _Prepared(item, refused=refused)

    def _encode(self, pool: Executor) -> None:
        vectors = self.encoder.encode(list(self._waiting.values()), pool)
        self._check_width(vectors.shape[1])
        self.so_far.add(list(self._waiting), vectors)
        self.encoded += len(self._waiting)
        self._waiting = {}

    def _check_width(self, width: int) -> None:
        wanted = self.width if self.width is not None else self.so_far.width
        if wanted is not None and width != wanted:
            raise DataError(f"encoder {self.encoder.name!r} gives vectors of {width} numbers; expected {wanted}")

    def write(self, place: Path, key: Expr, facts: pa.Schema, dtype: str, told: EncodedBy) -> VectorFile:
        if not self.hashes:
            first = f"; the first, {self.refused[0]['item']}, {self.refused[0]['detail']}" if self.refused else ""
            raise DataError(f"none of the {self.items:,} items has a vector{first}")
        places = np.array([self.so_far.places[one] for one in self.hashes], np.int64)
        schema = pa.schema([("key", pa.int64()), ("vector", pa.list_(pa.float32(), self.so_far.width))])

        def batches() -> Iterator[pa.RecordBatch]:
            for begin in range(0, len(places), CHUNK):
                keys = _keys(key, self.facts[begin : begin + CHUNK], facts)
                rows = self.so_far.vectors(places[begin : begin + CHUNK])
                flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
                vectors = pa.FixedSizeListArray.from_arrays(flat, self.so_far.width)
                yield pa.RecordBatch.from_arrays([keys, vectors], schema=schema)

        reader = pa.RecordBatchReader.from_batches(schema, batches())
        return write_encoded(place, reader, told, dtype)


def _keys(key: Expr, facts: list[dict[str, Any]], schema: pa.Schema) -> pa.Array:
    found = compute({"key": key}, pa.Table.from_pylist(facts, schema))["key"]
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    if found.type not in (pa.uint64(), pa.int64()):
        raise PlanError(f"the key expression gives {found.type}; expected keys, such as {key!r}.key(space='image')")
    return found.view(pa.int64()) if found.type == pa.uint64() else found


def _items(data: Any, column: str | None, key: Expr, most_bytes: int) -> tuple[pa.Schema, Iterator[_Item]]:
    """Return the columns that the key is computed from, and the items in their order."""
    if isinstance(data, str | os.PathLike):
        schema = pa.schema([("name", pa.utf8()), ("path", pa.utf8())])
        return schema, _of_folder(local_path(data, "a folder of images"), most_bytes)
    if isinstance(data, View):
        if data.steps:
            raise PlanError(f"view {data.name!r} has steps, which an encoding does not run; pass the view without them")
        if column is None:
            raise PlanError(f"name the column with the images or texts of view {data.name!r}: column='image'")
        names = sorted(_columns_of(key))
        for name in (column, *names):
            if name not in data.source.schema.names:
                raise PlanError(f"view {data.name!r} has no column {name!r}{nearest(name, data.source.schema.names)}")
        return pa.schema([data.source.schema.field(name) for name in names]), _of_view(data, column, names)
    raise PlanError(f"images come from a folder, and images or texts from a cb.View, got a {type(data).__name__}")


def _columns_of(key: Expr) -> set[str]:
    if key.op == "column":
        return {str(dict(key.params)["name"])}
    return {name for arg in key.args for name in _columns_of(arg)}


def _of_folder(folder: Path, most_bytes: int) -> Iterator[_Item]:
    if not folder.is_dir():
        raise SourceError(f"{folder} is not a folder of images")
    files = [path for path in folder.rglob("*") if path.is_file() and not _hidden(path.relative_to(folder))]
    if not files:
        raise SourceError(f"{folder} holds no files")
    for path in sorted(files, key=lambda path: natural(str(path.relative_to(folder)))):
        below = str(path.relative_to(folder))
        if printable(below) != below:
            yield _Item(printable(below), {}, _not_unicode)
            continue
        yield _Item(below, {"name": path.stem, "path": below}, partial(_read, path, most_bytes))


def _not_unicode() -> bytes:
    raise Refused("name", "has a name that is not UTF-8, so it has no key; rename it")


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _read(path: Path, most_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most_bytes + 1)
    except OSError as error:
        raise Refused("unreadable", f"cannot be read: {error.strerror}") from None


def _of_view(view: View, column: str, names: list[str]) -> Iterator[_Item]:
    for morsel in view.source.scan(list(dict.fromkeys([column, *names])), rows=CHUNK):
        values = morsel.rows.column(column)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            raise PlanError(f"column {column!r} of view {view.name!r} is {values.type}; expected bytes or text")
        raw = values.view(pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary())
        facts = morsel.rows.select(names).to_pylist() if names else [{}] * len(raw)
        for row, (value, mine) in enumerate(zip(raw, facts, strict=True)):
            yield _Item(morsel.origin.name(row), mine, value.as_py)
