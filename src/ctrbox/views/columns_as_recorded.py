"""Checks sources against columns that were described earlier, by a saved plan or by the log that a plan was compiled on.

`RecordedSource` stands for data that nobody has opened yet. It answers every question of the planner from what was recorded, and
opens its data at the first scan. `AgreeingSource` holds opened data to a description: columns must be of the recorded kinds,
whole numbers become floats where floats were recorded (exactly, or it is an error), float64 is rounded to float32 where float32
was recorded, and a null in a column that had none is an error that names its row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.arguments.names import lacking
from ctrbox.columns.kind import kind_of_arrow, name_of
from ctrbox.columns.raw_values import narrowed, narrower
from ctrbox.columns.times import as_time_advice
from ctrbox.errors import DataError, PlanError
from ctrbox.files.filesystems import File
from ctrbox.views.morsel import Morsel, Source, SourceOver
from ctrbox.views.text_options import TextOptions

EXACT = 1 << 53  # whole numbers up to this one are floats without rounding


@dataclass(frozen=True)
class Described:
    """What is known about the data of a view. ``types``: by column; ``maybe_null``: the columns that could hold nulls."""

    view: str
    types: Mapping[str, pa.DataType]
    maybe_null: frozenset[str]
    cure: str = "fill or leave out such rows in this data, or train again with .fill({column}=…) on the view"
    rows: int | None = None
    bytes: int | None = None
    ordered: bool = False  # whether rows ascend by the view's key
    shown: str = ""  # the path, for messages
    reference: Mapping[str, Any] | None = None  # where a saved plan finds the data; None for rows in memory
    text_options: TextOptions | None = None  # how text files are read
    format_name: str | None = None
    spare: frozenset[str] = frozenset()  # columns of ``types`` that nothing reads any more, so that data may lack them


class AgreeingSource(SourceOver):
    """An opened source that is held to a description.

    ``strict``: columns that had no nulls are taken to have none, and a scan that meets one is an error. Otherwise the planner
    learns of nulls that the data may hold beyond those described.
    """

    def __init__(self, inner: Source, described: Described, *, strict: bool) -> None:
        self.inner = inner
        self.described = described
        self.strict = strict
        agreeing = [self._field(f) for f in inner.schema]
        both = zip(inner.schema, agreeing, strict=True)
        self._valueless = {mine.name for mine, f in both if mine.type != f.type and pa.types.is_null(mine.type)}
        self._lacking = sorted(described.spare - set(inner.schema.names))
        lacking = [pa.field(name, described.types[name], name in described.maybe_null) for name in self._lacking]
        self.schema: pa.Schema = pa.schema([*agreeing, *lacking])

    def _field(self, mine: pa.Field) -> pa.Field:
        then = self.described.types.get(mine.name)
        if then is not None and kind_of_arrow(mine.type) == "i" and kind_of_arrow(then) == "f":
            return pa.field(mine.name, narrower(pa.float64(), then) or pa.float64(), mine.nullable)
        if then is not None and (rounded := narrower(mine.type, then)) is not None:
            return pa.field(mine.name, rounded, mine.nullable)
        if then is not None and pa.types.is_null(mine.type):  # a column without any value may have every type
            return pa.field(mine.name, then)
        return mine

    def check(self, columns: Sequence[str]) -> None:
        """Raise a PlanError if one of these columns exists but has another kind than described."""
        for name in columns:
            then = self.described.types.get(name)
            place = self.schema.get_field_index(name)
            if then is None or place < 0:
                continue
            now = self.schema.field(place).type
            if (kind_of_arrow(now) or kind_of_arrow(then)) and _shape(now) != _shape(then):
                raise PlanError(
                    f"column {name!r} of view {self.described.view!r} is {_named(now)} in {self.inner.name}"
                    f", but the "
                    f"plan was built on {_named(then)}"
                    + (as_time_advice(name, kind_of_arrow(now)) if kind_of_arrow(then) == "t" else "")
                )

    @property
    def changed(self) -> bool:
        """Return whether this source hands out anything else than the data itself would."""
        return self.strict or self.schema != self.inner.schema

    def nullable(self, column: str) -> bool:
        if self.nullable_then(column):
            return True
        return (not self.strict or column not in self.described.types) and self._nullable_now(column)

    def _nullable_now(self, column: str) -> bool:
        return column not in self._lacking and (column in self._valueless or self.inner.nullable(column))

    def nullable_then(self, column: str) -> bool:
        """Return whether the column could be null in the data that the plan was made on."""
        if column in self.described.types:
            return column in self.described.maybe_null
        return self._nullable_now(column)

    def ordered(self, column: str) -> bool:
        return column not in self._valueless and column not in self._lacking and self.inner.ordered(column)

    def fingerprint(self) -> str:
        return self.inner.fingerprint()

    def scan(self, columns: Sequence[str], **options: Any) -> Iterator[Morsel]:
        if missing := [n for n in columns if n not in self.schema.names or n in self._lacking]:
            raise DataError(
                f"{self.inner.name} lacks {lacking(missing, self.inner.schema.names)}; the plan reads it from view "
                f"{self.described.view!r}"
            )
        self.check(columns)
        changed = [n for n in columns if self.schema.field(n).type != self.inner.schema.field(n).type]
        full = [n for n in columns if self.strict and not self.nullable(n) and self._nullable_now(n)]
        if not changed and not full:
            return self.inner.scan(columns, **options)
        return self._agreeing(columns, changed, full, options)

    def _agreeing(
        self, columns: Sequence[str], changed: list[str], full: list[str], options: Mapping[str, Any]
    ) -> Iterator[Morsel]:
        floats = [name for name in changed if name not in self._valueless]
        for morsel in self.inner.scan([name for name in columns if name not in self._valueless], **options):
            rows = self._with_valueless(morsel.rows, columns)
            for name in full:
                column = rows.column(name)
                if column.null_count:
                    row = pc.index(column.is_null(), True).as_py()
                    raise DataError(
                        f"column {name!r} is null at {morsel.origin.name(row)}; the plan was built on data without nulls "
                        f"in this column and has no fill value for it: {self.described.cure.format(column=name)}"
                    )
            for name in floats:
                field = self.schema.field(name)
                made = _as_floats(rows.column(name), name, morsel, field.type)
                rows = rows.set_column(rows.schema.get_field_index(name), field, made)
            yield Morsel(rows, morsel.origin, morsel.start)

    def _with_valueless(self, rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the rows with the columns that have no values added at their places, as nulls of the described type."""
        if not self._valueless:
            return rows
        fields = [self.schema.field(name) if name in self._valueless else rows.schema.field(name) for name in columns]
        arrays = [
            pa.nulls(rows.num_rows, field.type) if field.name in self._valueless else rows.column(field.name)
            for field in fields
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _as_floats(column: pa.Array, name: str, morsel: Morsel, wanted: pa.DataType) -> pa.Array:
    """Return whole numbers as floats, and floats as those of another width."""
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if kind_of_arrow(plain.type) == "i":
        large = pc.or_kleene(pc.greater(plain, EXACT), pc.less(plain, -EXACT))
        if pc.any(large).as_py():
            row = pc.index(large, True).as_py()
            raise DataError(
                f"column {name!r} is {plain[row]} at {morsel.origin.name(row)}; the plan was built on floats, and this "
                "integer cannot be represented exactly as a float64"
            )
        plain = plain.cast(pa.float64())
    try:
        return narrowed(plain, wanted)
    except OverflowError as error:
        last = morsel.origin.row + len(column) - 1
        raise DataError(
            f"column {name!r} of {morsel.origin.name(0)} to {last}: {error}, the type that the plan was built with"
        ) from None


def _shape(type_: pa.DataType) -> tuple[str | None, int]:
    return kind_of_arrow(type_), type_.list_size if pa.types.is_fixed_size_list(type_) else 0


def _named(type_: pa.DataType) -> str:
    kind, width = _shape(type_)
    return f"{name_of(kind)}{f' of {width}' if width else ''}" if kind else f"of no simple type ({type_})"


class RecordedSource:
    """Data that is described and not opened. ``open_data`` opens it, once, when rows are asked for."""

    def __init__(self, described: Described, open_data: Callable[[], Source]) -> None:
        self.described = described
        self.schema: pa.Schema = pa.schema(
            [pa.field(name, type_, name in described.maybe_null) for name, type_ in described.types.items()]
        )
        self._open_data = open_data
        self._lock = threading.Lock()
        self._opened: AgreeingSource | None = None

    def open(self) -> Source:
        """Open the data and hold it to the description."""
        with self._lock:
            if self._opened is None:
                self._opened = AgreeingSource(self._open_data(), self.described, strict=True)
            return self._opened

    def open_anew(self) -> Source:
        """Open the data that is at the paths now; this source stays as it is, and the caller compares the columns."""
        return self._open_data()

    @property
    def name(self) -> str:
        return self.described.shown or self.described.view

    @property
    def text_options(self) -> TextOptions | None:
        return self.described.text_options

    @property
    def format_name(self) -> str | None:
        return self.described.format_name

    @property
    def rows(self) -> int | None:
        return self.described.rows if self._opened is None else self._opened.rows

    @property
    def bytes(self) -> int | None:
        return self.described.bytes if self._opened is None else self._opened.bytes

    def nullable(self, column: str) -> bool:
        return column in self.described.maybe_null

    nullable_then = nullable

    def ordered(self, column: str) -> bool:
        return self.described.ordered

    def fingerprint(self) -> str:
        return self.open().fingerprint()

    def scan(self, columns: Sequence[str], **options: Any) -> Iterator[Morsel]:
        return self.open().scan(columns, **options)


def opened(source: Source) -> Source:
    """Return the source with its data open, so that its rows and bytes are those of today."""
    found: Source = source.open() if hasattr(source, "open") else source
    return found


def files_behind(source: Source) -> Sequence[File]:
    """Return the files that a source reads, also if it computes histories or is compared with a description; open it first."""
    source = opened(source)
    while isinstance(source, SourceOver):
        source = opened(source.inner)
    found: Sequence[File] = getattr(source, "_files", ())
    return found
