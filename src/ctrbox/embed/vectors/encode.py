"""Encodes raw images or texts into a vector file, and lists the items without a vector in a report.

cb.tables.encode("images.ctrvec", "images/", encoder, key=col("name").key(space="image"))
cb.tables.encode("images.ctrvec", cb.View("ads.parquet"), encoder, key=col("ad_id").key(space="image"), column="image")
cb.tables.encode("titles.ctrvec", cb.View("ads.parquet"), encoder, key=col("ad_id").key(space="title"), column="title")

Several threads decode the items, or several processes if the encoder is on a GPU (`decode_in_processes`,
`encode_on_gpu`). The encoder gets batches of distinct items, in the order in which they first occur: items of equal
bytes (by SHA-256) are encoded once. A thread writes the vector file meanwhile. An encoding that was killed continues
when it is called again. The vector file names the encoder and the checksum of its weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from ctrbox._native import usable_cores
from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import whole
from ctrbox.columns.encoder_of_vectors import TEXT, EncodedBy
from ctrbox.embed.vectors.decode_image import MOST_BYTES, MOST_PIXELS, Refused, bounded, decode, pillow, read_bytes
from ctrbox.embed.vectors.decode_in_processes import STAGES, DecodingProcesses
from ctrbox.embed.vectors.encode_on_gpu import GpuBatches
from ctrbox.embed.vectors.encoders import Crop, Encoder, undivided
from ctrbox.embed.vectors.resume_encoding import EncodedSoFar
from ctrbox.embed.vectors.vector_file import VectorFile
from ctrbox.embed.vectors.write_vector_file import FLOATS, check_place, write_encoded
from ctrbox.engines.compute import compute
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.atomic import written_aside
from ctrbox.files.filesystems import naturally_sorted, printable
from ctrbox.files.interruptible_wait import result_of
from ctrbox.files.urls import local_path
from ctrbox.plan.language.expressions import Expr
from ctrbox.views.readahead import readahead
from ctrbox.views.view import View

CHUNK = 1024  # rows of a view at a time
WRITTEN = 512  # rows of the vector file at a time


@dataclass(frozen=True)
class Encoded:
    """Result of an encoding. ``skipped`` counts the items without a vector by cause; the report lists them.

    ``seconds`` has the time of each stage (reading, decoding, transform, network, writing), summed over the threads and processes
    that work on it. The stages run at the same time.
    """

    file: VectorFile
    items: int
    encoded: int
    resumed: int
    skipped: dict[str, int]
    report: Path
    seconds: dict[str, float]


class _Item(NamedTuple):
    """An item before it is encoded: the path of its file, its bytes, or the reason why there is neither. ``facts`` are the
    columns that its key is computed from.
    """

    shown: str
    facts: dict[str, Any]
    data: str | bytes | Refused


@dataclass(frozen=True)
class _Prepared:
    """An item that a thread read. ``input`` is None if the item is refused, or if its vector is known already."""

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
    threads: int | None = None,
    dtype: str = "float32",
    width: int | None = None,
    most_bytes: int = MOST_BYTES,
    most_pixels: int = MOST_PIXELS,
    progress: Callable[[int], None] | None = None,
) -> Encoded:
    """Write the vectors of all items of ``data`` to the vector file ``path``.

    ``data``        a folder of images, or a view with a ``column`` of image bytes or of texts
    ``key``         expression that computes the key of an item from the columns of the view, as the plan does. A folder has
                    the columns ``name``, the name of a file without its extension, and ``path``, the path of the file below
                    the folder
    ``width``       expected width of the vectors; an encoder that returns another width is refused
    ``batch_size``  number of items per batch, 1 to 65,536
    ``threads``     on the CPU, number of threads that decode and number of threads that run the encoder, 1 to 256; on a GPU,
                    number of processes that decode, or of threads if the encoder has a ``prepare`` of its own. Default: the
                    number of usable cores
    ``most_bytes``, ``most_pixels``  largest image that is decoded

    The report, a file with the name ``path`` followed by ``.skipped.jsonl``, has one line of JSON for each item without a
    vector.
    """
    if not isinstance(encoder, Encoder):
        raise PlanError(f"encoder must be a cb.tables.Encoder, got a {type(encoder).__name__}")
    if not isinstance(key, Expr):
        raise PlanError(f"key must be an expression such as col('name').key(space='image'), got {key!r}")
    if dtype not in FLOATS:
        raise PlanError(f"dtype must be float32 or float16, got {dtype!r}")
    threads = min(256, usable_cores()) if threads is None else threads
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
    beside = ThreadPoolExecutor(1, "ctrbox-checksum")
    told = beside.submit(lambda: encoder.facts)  # the checksum of many weights takes as long as several batches
    beside.shutdown(wait=False)

    code = (
        {"prepare": found} if (found := encoder.code) else {}
    )  # as it is now: a call may change the attributes of an object

    def identity() -> dict[str, Any]:
        return {"encoder": result_of(told).facts(), "batch": batch_size, "bounds": list(bounds), **code}

    patient = not encoder.whole_batches  # a GPU does not wait for the checksum
    so_far = EncodedSoFar(place.with_name(f".{place.name}.encoding"), identity, batch_size, patient)
    try:
        job = _Job(encoder, so_far, batch_size, width, bounds)
        schema, items = _items(data, column, key)
        file = job.run(items, threads, progress, lambda: job.write(place, key, schema, dtype, lambda: result_of(told)))
        report = place.with_name(place.name + ".skipped.jsonl")
        with written_aside(report) as aside:
            aside.write_text("".join(json.dumps(line) + "\n" for line in job.refused), encoding="utf-8")
    except BaseException:
        so_far.close(remove=False)
        raise
    so_far.close(remove=True)
    causes = Counter(str(line["cause"]) for line in job.refused)
    return Encoded(file, job.items, job.encoded, job.resumed, dict(causes), report, job.seconds)


class _Job:
    """One encoding: it reads items in order, passes batches to the encoder, and keeps the facts of each item until the end.

    A thread writes the vector file while the encoder runs: the rows of the leading items whose vectors are kept.
    """

    def __init__(
        self, encoder: Encoder, so_far: EncodedSoFar, batch_size: int, width: int | None, bounds: tuple[int, int]
    ) -> None:
        self.encoder, self.so_far, self.batch_size, self.width, self.bounds = encoder, so_far, batch_size, width, bounds
        self.processes = encoder.whole_batches and type(encoder.prepare) is Crop  # decode; else threads
        self.items = self.encoded = 0
        self.resumed = len(so_far.places)
        self.seconds = dict.fromkeys((*STAGES, "network", "writing"), 0.0)
        self.facts: list[dict[str, Any]] = []
        self.shown: list[str] = []  # names of the items that have a vector, for errors
        self.hashes: list[bytes] = []
        self.refused: list[dict[str, str]] = []
        self._taken = set(so_far.places)  # hashes of all items that the encoder got or need not get
        self._moved = threading.Condition()  # vectors were kept, or no more will be
        self._ended: bool | None = None  # True: all vectors are kept; False: the encoding failed
        self._timing = threading.Lock()
        if so_far.width is not None:
            self._check_width(so_far.width)

    def run(
        self,
        items: Iterator[_Item],
        threads: int,
        progress: Callable[[int], None] | None,
        write: Callable[[], VectorFile],
    ) -> VectorFile:
        """Encode all items, and write the vector file meanwhile."""
        with ThreadPoolExecutor(1, "ctrbox-writing") as writer:
            written = writer.submit(write)
            ended = False
            try:
                self._encode(items, threads, progress, written)
                ended = True
            finally:
                with self._moved:
                    self._ended = ended
                    self._moved.notify()
            return result_of(written)

    def _encode(
        self, items: Iterator[_Item], threads: int, progress: Callable[[int], None] | None, written: Future[VectorFile]
    ) -> None:
        with contextlib.ExitStack() as stack:
            if self.encoder.whole_batches:
                finish = self.encoder.prepare.normalized if type(self.encoder.prepare) is Crop else None
                batches: GpuBatches | _ItemByItem = GpuBatches(self.encoder, self.batch_size, self._keep, finish)
            else:
                pool = stack.enter_context(undivided(threads))
                batches = _ItemByItem(self.encoder, self.batch_size, self._keep, pool)
            stack.callback(batches.close)
            take = self._take_from_processes if self.processes else self._take_from_threads
            for _ in stack.enter_context(contextlib.closing(take(items, threads, batches))):
                if written.done():
                    result_of(written)  # the file cannot be written
                if progress is not None:
                    progress(self.items)
            batches.end()
            self.seconds["network"] = batches.seconds

    def _take_from_threads(
        self, items: Iterator[_Item], threads: int, batches: GpuBatches | _ItemByItem
    ) -> Generator[None, None, None]:
        """Read, hash and decode the items in threads, and add them to the batches in their order; yield after each."""
        tasks = (partial(self._prepare, item) for item in items)
        with contextlib.closing(readahead(tasks, threads=threads, ahead=2 * self.batch_size)) as found:
            for one in found:
                self.items += 1
                if one.refused is not None:
                    self._refuse(one.item, one.refused)
                elif one.hash is not None and self._is_new(one.item, one.hash):
                    batches.add([one.hash], [one.input] if isinstance(batches, _ItemByItem) else one.input[None])
                yield

    def _take_from_processes(
        self, items: Iterator[_Item], threads: int, batches: GpuBatches | _ItemByItem
    ) -> Generator[None, None, None]:
        """Read, hash and decode the items in processes, and add them to the batches in their order; yield after each group.

        This thread has time for few lines per image, because it also feeds the GPU. New images that follow each other in a group
        are copied at once.
        """
        prepare = self.encoder.prepare
        assert isinstance(prepare, Crop)
        pillow()  # its absence is told here and not by a process
        most_bytes, most_pixels = self.bounds
        with DecodingProcesses[_Item](
            threads,
            size=prepare.size,
            resize=prepare.resize,
            most_bytes=most_bytes,
            most_pixels=most_pixels,
            known=self._taken,
        ) as processes:
            pixels = torch.frombuffer(processes.memory, dtype=torch.uint8).view(-1, prepare.size, prepare.size, 3)
            for group in processes.decode((item, item.data) for item in items):
                self.items += len(group.tags)
                new: list[bytes] = []  # hashes of the new images before image k that follow each other
                for k, (item, digest) in enumerate(zip(group.tags, group.hashes, strict=True)):
                    if digest is None:
                        self._refuse(item, group.refused[k])
                    elif self._is_new(item, digest):
                        new.append(digest)
                        continue
                    batches.add(new, pixels[group.slot + k - len(new) : group.slot + k])
                    new = []
                end = group.slot + len(group.tags)
                batches.add(new, pixels[end - len(new) : end])
                yield
            self.seconds.update(processes.seconds)

    def _refuse(self, item: _Item, refused: Refused) -> None:
        self.refused.append({"item": item.shown, "cause": refused.cause, "detail": refused.detail})

    def _is_new(self, item: _Item, digest: bytes) -> bool:
        """Keep the facts of an item that has a vector; return whether its vector is still to be computed."""
        self.facts.append(item.facts)
        self.shown.append(item.shown)
        self.hashes.append(digest)
        if digest in self._taken:
            return False
        self._taken.add(digest)
        return True

    def _prepare(self, item: _Item) -> _Prepared:
        """Read, hash and decode an item; runs in a thread."""
        began = time.perf_counter()
        try:
            if isinstance(item.data, Refused):
                raise item.data
            data = read_bytes(Path(item.data), self.bounds[0]) if isinstance(item.data, str) else item.data
            found = hashlib.sha256(bounded(data, self.bounds[0])).digest()
            self._count("reading", began)
            if found in self.so_far.places:
                return _Prepared(item, found)
            if self.encoder.kind == TEXT:
                return _Prepared(item, found, self.encoder.prepared(data, *self.bounds))
            began = time.perf_counter()
            image = decode(data, *self.bounds)
            self._count("decoding", began)
            began = time.perf_counter()
            prepared = self.encoder.prepare(image)
            self._count("transform", began)
            return _Prepared(item, found, prepared)
        except Refused as refused:
            return _Prepared(item, refused=refused)

    def _count(self, stage: str, began: float) -> None:
        with self._timing:
            self.seconds[stage] += time.perf_counter() - began

    def _keep(self, hashes: list[bytes], vectors: np.ndarray) -> None:
        """Keep the vectors of a batch; runs in one thread at a time."""
        began = time.perf_counter()
        self._check_width(vectors.shape[1])
        self.so_far.add(hashes, vectors)
        self.encoded += len(hashes)
        with self._moved:
            self._moved.notify()
        self._count("writing", began)

    def _check_width(self, width: int) -> None:
        wanted = self.width if self.width is not None else self.so_far.width
        if wanted is not None and width != wanted:
            raise DataError(
                f"encoder {self.encoder.name!r} returned vectors of {width} numbers; expected {wanted} numbers"
            )

    def write(self, place: Path, key: Expr, facts: pa.Schema, dtype: str, told: Callable[[], EncodedBy]) -> VectorFile:
        """Write the vector file; waits for the vectors of each chunk of rows. The file appears when it is complete."""
        if not self._wait(0, 1):
            first = f"; the first, {self.refused[0]['item']}, {self.refused[0]['detail']}" if self.refused else ""
            raise DataError(f"no vector could be computed for any of the {self.items:,} items{first}")
        schema = pa.schema([("key", pa.int64()), ("vector", pa.list_(pa.float32(), self.so_far.width))])

        def batches() -> Iterator[pa.RecordBatch]:
            begin = 0
            while rows := self._wait(begin, WRITTEN):
                began = time.perf_counter()
                part = slice(begin, begin + rows)
                keys = _keys(key, self.facts[part], facts)
                places = np.array([self.so_far.places[one] for one in self.hashes[part]], np.int64)
                flat = pa.array(np.ascontiguousarray(self.so_far.vectors(places)).reshape(-1))
                vectors = pa.FixedSizeListArray.from_arrays(flat, self.so_far.width)
                self._count("writing", began)
                yield pa.RecordBatch.from_arrays([keys, vectors], schema=schema)
                begin += rows

        reader = pa.RecordBatchReader.from_batches(schema, batches())
        return write_encoded(place, reader, told(), dtype, self.shown.__getitem__)

    def _wait(self, begin: int, wanted: int) -> int:
        """Wait until the vectors of ``wanted`` items from ``begin`` on are kept; return their number, fewer at the end alone."""
        ready = begin
        with self._moved:
            while True:
                ended = self._ended
                if ended is False:
                    raise _Failed
                limit = min(len(self.hashes), begin + wanted)
                while ready < limit and self.hashes[ready] in self.so_far.places:
                    ready += 1
                if ready - begin == wanted or ended:
                    return ready - begin
                self._moved.wait()


class _Failed(Exception):
    """The encoding failed, so that its file is not written; the caller raises the reason."""


class _ItemByItem:
    """Batches on a CPU, where threads run the encoder on one item at a time, and for texts."""

    def __init__(
        self, encoder: Encoder, batch_size: int, keep: Callable[[list[bytes], np.ndarray], None], pool: Executor
    ) -> None:
        self.encoder, self.batch_size, self.keep, self.pool = encoder, batch_size, keep, pool
        self.seconds = 0.0
        self._waiting: dict[bytes, Any] = {}

    def add(self, digests: list[bytes], inputs: Sequence[Any]) -> None:
        for digest, prepared in zip(digests, inputs, strict=True):
            self._waiting[digest] = prepared
            if len(self._waiting) == self.batch_size:
                self.end()

    def end(self) -> None:
        if self._waiting:
            began = time.perf_counter()
            vectors = self.encoder.encode(list(self._waiting.values()), self.pool)
            self.seconds += time.perf_counter() - began
            self.keep(list(self._waiting), vectors)
            self._waiting = {}

    def close(self) -> None:
        """Nothing runs between two calls."""


def _keys(key: Expr, facts: list[dict[str, Any]], schema: pa.Schema) -> pa.Array:
    found = compute({"key": key}, pa.Table.from_pylist(facts, schema))["key"]
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    if found.type not in (pa.uint64(), pa.int64()):
        raise PlanError(f"the key expression gives {found.type}; expected keys, such as {key!r}.key(space='image')")
    return found.view(pa.int64()) if found.type == pa.uint64() else found


def _items(data: Any, column: str | None, key: Expr) -> tuple[pa.Schema, Iterator[_Item]]:
    """Return the columns that the key is computed from, and the items in their order."""
    if isinstance(data, str | os.PathLike):
        schema = pa.schema([("name", pa.utf8()), ("path", pa.utf8())])
        return schema, _of_folder(local_path(data, "a folder of images"))
    if isinstance(data, View):
        if data.steps:
            raise PlanError(
                f"view {data.name!r} has steps such as filter or with_columns, which encode does not apply; pass the view "
                "without steps"
            )
        if column is None:
            raise PlanError(f"name the column with the images or texts of view {data.name!r}: column='image'")
        names = sorted(_columns_of(key))
        for name in (column, *names):
            if name not in data.source.schema.names:
                raise PlanError(f"view {data.name!r} has no column {name!r}{nearest(name, data.source.schema.names)}")
        return pa.schema([data.source.schema.field(name) for name in names]), _of_view(data, column, names)
    raise PlanError(f"expected a folder of images, or a cb.View with images or texts, got a {type(data).__name__}")


def _columns_of(key: Expr) -> set[str]:
    if key.op == "column":
        return {str(dict(key.params)["name"])}
    return {name for arg in key.args for name in _columns_of(arg)}


def _of_folder(folder: Path) -> Iterator[_Item]:
    if not folder.is_dir():
        raise SourceError(f"{folder} is not a folder; expected a folder of images")
    files = naturally_sorted(list(_files_below(folder)))
    if not files:
        raise SourceError(f"{folder} holds no files; expected a folder of images")
    for below in files:
        shown = printable(below)
        if shown != below:
            yield _Item(shown, {}, Refused("name", "has a name that is not UTF-8, so it has no key; rename it"))
        else:
            yield _Item(shown, {"name": _stem(below), "path": below}, f"{folder}/{below}")


def _stem(path: str) -> str:
    """Return the file's name without its ending, as `Path.stem` does, which takes several times as long."""
    name = path.rpartition("/")[2]
    dot = name.rfind(".")
    return name[:dot] if 0 < dot < len(name) - 1 else name


def _files_below(folder: Path) -> Iterator[str]:
    """Return the paths of all files below a folder, without those whose name or folder begins with "." or "_"."""
    # A directory entry knows whether it is a file, without a question to the disk. Path objects take several times as long, which
    # shows when a GPU encodes thousands of images per second.
    folders = [""]
    while folders:
        below = folders.pop()
        try:
            entries = os.scandir(f"{folder}/{below}")
        except OSError:
            continue
        with entries:
            for entry in entries:
                if entry.name.startswith((".", "_")):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{below}{entry.name}/")
                elif entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path):  # noqa: PTH113 - a link to a file
                    yield below + entry.name


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
            data = value.as_py()
            yield _Item(morsel.origin.name(row), mine, Refused("null", "is null") if data is None else data)
