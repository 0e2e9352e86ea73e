"""Reads Hive partitions: ``day=2026-01-01/`` in a path is a column with the same value for every row of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")  # 007 and +7 are text: as numbers they would not be told from 7


class Partitions:
    """The partition columns of a list of files: integers where every value is a plain one, else strings."""

    def __init__(self, files: Sequence[File], values: Sequence[Mapping[str, Any]] | None = None):
        found = [_hive(file.path) for file in files] if values is None else [dict(value) for value in values]
        names = list(found[0]) if found else []
        for file, value in zip(files, found, strict=True):
            if set(value) != set(names):
                raise SourceError(
                    f"{file.shown} is partitioned by {_words(value)}, expected {_words(names)} as in {files[0].shown}"
                )
        self.columns = {name: _column([value[name] for value in found]) for name in names}

    @classmethod
    def of(cls, columns: Mapping[str, pa.Array]) -> Partitions:
        """Return partition columns of these values, one for each file, in the types that they have."""
        made = cls([])
        made.columns = dict(columns)
        return made

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(name, column.type, nullable=column.null_count > 0) for name, column in self.columns.items()]

    def array(self, name: str, file: int, rows: int) -> pa.Array:
        return pa.repeat(self.columns[name][file], rows)

    def guarantee(self, file: int) -> pc.Expression | None:
        """Return what the path of a file says about all of its rows, for pruning."""
        promise: pc.Expression | None = None
        for name, column in self.columns.items():
            value = column[file]
            fact = pc.field(name) == value if value.is_valid else pc.is_null(pc.field(name))
            promise = fact if promise is None else promise & fact
        return promise


def _hive(path: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name and not name.startswith("."):
            found[unquote(name)] = None if value == _NO_VALUE else unquote(value)
    return found


def _column(values: list[Any]) -> pa.Array:
    if all(value is None or isinstance(value, str) for value in values):
        present = [value for value in values if value is not None]
        if not present or not all(_INTEGER.fullmatch(value) for value in present):
            return pa.array(values, pa.utf8())
        values = [None if value is None else int(value) for value in values]
        small = all(-(2**31) <= value < 2**31 for value in values if value is not None)
        return pa.array(values, pa.int32() if small else pa.int64())
    column = pa.array(values)
    return column.cast(pa.timestamp("us")) if pa.types.is_date(column.type) else column


def _words(names: Any) -> str:
    return ", ".join(map(repr, names)) or "nothing"
