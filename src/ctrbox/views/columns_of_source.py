"""Defines the columns of a source: stored columns in simple types, and columns from the paths; and a base class of sources."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.files.data_fingerprint import content_checksums
from ctrbox.files.filesystems import File
from ctrbox.views.device_columns import behind
from ctrbox.views.hive_partitions import Partitions
from ctrbox.views.morsel import MORSEL_ROWS, Morsel, Origin
from ctrbox.views.simple_types import STRINGS, Leaf, choose, is_text, leaves, pick, simplify

if TYPE_CHECKING:
    from ctrbox.views.device_columns import Elsewhere


class Columns:
    """Stored leaves and partition columns under one schema; a partition hides a stored column of its name."""

    def __init__(self, stored: pa.Schema, shown: str, partitions: Partitions | None = None):
        self.stored = leaves(stored, shown)
        self.partitions = partitions
        self._join()

    def _join(self) -> None:
        self.all = dict(self.stored)
        for field in self.partitions.fields if self.partitions else ():
            self.all[field.name] = Leaf(field.name, (field.name,), field.type, field.type, field.nullable)
        self.schema = pa.schema([leaf.field for leaf in self.all.values()])

    def settle(self, files: Sequence[Mapping[str, Leaf]]) -> None:
        """Give each column of Arrow type null the type that it has in the first of ``files`` that stores values of it."""
        for name, leaf in self.stored.items():
            if pa.types.is_null(leaf.stored):
                others = (file[name] for file in files if name in file)
                typed = next((other for other in others if other.type is not None), leaf)
                self.stored[name] = replace(leaf, stored=typed.stored, type=typed.type)
        self._join()

    def choose(self, columns: Sequence[str], source: str, dictionary: Sequence[str] = ()) -> list[Leaf]:
        """Return the leaves of these columns; those in `dictionary` that are text become ``dictionary<int32, utf8>``."""
        found = choose(self.all, columns, source)
        return [
            replace(leaf, type=STRINGS) if leaf.name in dictionary and is_text(leaf.type) else leaf for leaf in found
        ]

    def assemble(
        self,
        batch: pa.RecordBatch | int,
        chosen: Sequence[Leaf],
        paths: Mapping[str, tuple[str, ...]],
        file: int,
        origin: Origin,
    ) -> pa.RecordBatch:
        """Return the chosen columns of a stored batch, or of this number of rows if none of the columns is stored."""
        rows = batch if isinstance(batch, int) else batch.num_rows
        if chosen and isinstance(batch, pa.RecordBatch) and batch.schema.equals(schema_of(chosen)):
            return batch
        arrays = []
        for leaf in chosen:
            if self.partitions and leaf.name in self.partitions.columns:
                arrays.append(self.partitions.array(leaf.name, file, rows))
            else:
                array = pick(batch, paths[leaf.name])
                arrays.append(array if behind(array) is not None else simplify(array, leaf, origin))
        return make_batch(arrays, chosen, rows)


def make_batch(arrays: Sequence[pa.Array], chosen: Sequence[Leaf], rows: int) -> pa.RecordBatch:
    if not arrays:
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["rows"]).select([])
    fields = [
        leaf.field if behind(array) is None else leaf.field.with_type(array.type)
        for array, leaf in zip(arrays, chosen, strict=True)
    ]
    return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


def schema_of(chosen: Sequence[Leaf]) -> pa.Schema:
    return pa.schema([leaf.field for leaf in chosen])


def cut(batch: pa.RecordBatch, skip: int, rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield slices of at most `rows` rows after the first `skip` rows, each with its place in the batch, without copying."""
    if rows < 1:
        raise ValueError(f"a morsel has at least one row, not {rows}")
    for offset in range(skip, batch.num_rows, rows):
        yield offset, batch.slice(offset, rows)


def digest(schema: pa.Schema, files: Sequence[File] = (), extra: str = "") -> str:
    """Return a digest of the schema and of the files: their names below the common folder, sizes, times and content.

    `files.data_fingerprint` says which bytes of a file its content checksum covers.
    """
    state = hashlib.blake2b(digest_size=16)
    for field in schema:
        state.update(f"{field.name}\0{field.type}\0{field.nullable}\n".encode())
    folders = [file.path.split("/")[:-1] for file in files]
    depth = 0
    while (
        folders
        and depth < len(folders[0])
        and all(folder[: depth + 1] == folders[0][: depth + 1] for folder in folders)
    ):
        depth += 1
    shown = {id(file.version): file for file in files}
    contents = content_checksums(
        [file.version for file in files],
        lambda version, read: shown[id(version)].store.attempt(version.shown, read),
    )
    for file, content in zip(files, contents, strict=True):
        name = "/".join(file.path.split("/")[depth:])
        state.update(f"{name}\0{file.size}\0{file.mtime_ns}\0{content}\n".encode())
    state.update(extra.encode())
    return state.hexdigest()


@dataclass(frozen=True)
class Scan:
    """The options of `Source.scan`, which says what they mean."""

    start: int = 0
    stop: int | None = None
    rows: int = MORSEL_ROWS
    ahead: int = 2
    threads: int = 2
    prune: pc.Expression | None = None
    dictionary: Sequence[str] = ()
    elsewhere: Elsewhere | None = None


class ColumnSource(ABC):
    """A `Source` whose columns are known. It proves nothing about their values unless a subclass does."""

    name: str
    _columns: Columns

    @property
    def schema(self) -> pa.Schema:
        return self._columns.schema

    def nullable(self, column: str) -> bool:
        (leaf,) = self._columns.choose([column], self.name)
        return leaf.nullable

    def ordered(self, column: str) -> bool:
        self._columns.choose([column], self.name)
        return False

    def scan(self, columns: Sequence[str], **options: Any) -> Iterator[Morsel]:
        return self._scan(columns, Scan(**options))

    @abstractmethod
    def _scan(self, columns: Sequence[str], asked: Scan) -> Iterator[Morsel]:
        """Yield what `scan` promises."""
