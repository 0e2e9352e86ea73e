"""Reads JSON lines into Arrow batches: one object on each line; a missing field is null; fields that first occur after the
first block are ignored unless `types=` declares them.

Whole numbers are int if all of them fit into 64 bits and there is no fraction; with fractions, the column is float. A whole
number that a double would round is never rounded: a column of whole numbers becomes text, and next to fractions it is
refused. Strings that are all ISO 8601 dates or times of whole seconds in the first block become times, the other strings
are text; times with fractions of a second are declared (`types=`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson
from pyarrow import types as pt

from ctrbox.columns.one_array import one_batch
from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File, first_line
from ctrbox.views.fields_of_delimited_text import DECLARED, EXACT, exact_whole, number_as_time
from ctrbox.views.files_without_row_index import BlockError, Parse
from ctrbox.views.simple_types import Leaf
from ctrbox.views.text_in_blocks import Block, NotText, check_text, no_null_type, text_blocks
from ctrbox.views.text_options import TextOptions

_ROW = re.compile(r" in row (\d+)$")
_UNPLAIN = re.compile(rb"[0-9][.eE]|-0")  # perhaps a number that is not a plain whole number
_PLAIN = re.compile(r"(?:0|-?[1-9][0-9]*)\Z")
_NULL_FIRST = re.compile(rb"\s*null")
WHOLE = pa.decimal128(38, 0)  # how whole numbers that become text are parsed
Path = tuple[str, ...]


class Rounded(pa.ArrowInvalid):  # type: ignore[misc]
    """A whole number that a double would round."""

    def __init__(self, path: Path, row: int, text: str):
        super().__init__(f"column {'.'.join(path)!r} holds {text}, which float would round")
        self.path = path
        self.row = row


def _newline(block: bytes) -> int:
    return block.rfind(b"\n") + 1


class Json:
    """JSON lines."""

    name = "json"

    def __init__(self, options: TextOptions | None = None):
        self.options = options or TextOptions()
        self._texts: frozenset[Path] = frozenset()  # columns of text whose values may be written as numbers
        self._unknown: frozenset[str] = (
            frozenset()
        )  # columns without a value in the first block, which are read as text

    def schema(self, file: File) -> pa.Schema:
        block = next(text_blocks(file, self.options, _newline), None)
        if block is None:
            raise SourceError(f"{file.shown} contains no JSON objects; expected one on each line")
        if block.data.lstrip()[:1] == b"[":
            raise SourceError(
                f"{file.shown} is a JSON array, expected one object on each line (JSON lines); write each element on a "
                "line of its own, for example with jq -c '.[]'"
            )
        try:
            found = self._inferred(block)
        except BlockError as error:
            where = "" if error.row is None else f" row {error.row}"
            parsed = error.__cause__ is not None and not isinstance(error.__cause__, Rounded)
            expected = "; expected one JSON object per line" if parsed else ""
            raise SourceError(f"{file.shown}{where}: {error}{expected}") from error
        if not found.names:
            raise SourceError(
                f"{file.shown} does not begin with a JSON object that has fields; expected one on each line"
            )
        return found

    def _inferred(self, block: Block) -> pa.Schema:
        """Return the types of the first block's fields; `types=` decides the types of the fields that it names."""
        met = self._checked(block, None, exact=False).schema
        self._unknown = frozenset(_without_values(met))
        wanted = _tree(met)
        declared = {_path(name, met): DECLARED[type] for name, type in self.options.types or ()}
        for path, type in declared.items():
            _plant(wanted, path, type)
        self._texts = frozenset(path for path, type in declared.items() if pt.is_string(type))
        reason: BlockError | None = None
        while True:  # once more for each column of whole numbers that do not fit
            try:
                self._read(block, pa.schema(_fields(wanted)))
            except BlockError as error:
                rounded = error.__cause__
                if not isinstance(rounded, Rounded) or rounded.path in declared or rounded.path in self._texts:
                    if reason is None:
                        raise
                    raise reason from error
                reason = error
                self._texts |= {rounded.path}
                _plant(wanted, rounded.path, pa.utf8())
            else:
                return pa.schema(_fields(wanted))

    def blocks(self, file: File, leaves: Sequence[Leaf]) -> Iterator[Parse]:
        wanted: dict[str, Any] = {}
        for leaf in leaves:
            _plant(wanted, leaf.path, leaf.stored)
        schema = pa.schema(_fields(wanted))
        for block in text_blocks(file, self.options, _newline):
            yield partial(self._read, block, schema)

    def _read(self, block: Block, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows of a block; whole numbers in a column of text become their digits."""
        tree = _tree(schema)
        written = [path for path in self._texts if _has(tree, path) and _all_numbers(block.data, path)]
        if not written:
            return self._checked(block, schema)
        for path in written:
            _check_plain(block.data, path)
            _plant(tree, path, WHOLE)
        return self._checked(block, pa.schema(_fields(tree))).cast(schema)

    def _checked(self, block: Block, schema: pa.Schema | None, exact: bool = True) -> pa.RecordBatch:
        """Parse a block; raise a `BlockError` with the row if something cannot be parsed."""
        try:
            check_text(block, self.options)
            batch = parse_json(block.data, schema, exact=exact)
        except NotText as error:
            raise BlockError(str(error), _lines_before(block.data, error.at)) from None
        except Rounded as error:
            name = ".".join(error.path)
            advice = f"write such numbers as strings, or pass types={{{name!r}: 'str'}} if all are whole numbers"
            raise BlockError(f"{error}; {advice}", error.row) from error
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            text = first_line(error)
            found = _ROW.search(text)
            row = int(found[1]) - _led(block.data) if found else _broken_line(block.data, schema)
            column = None if schema is None or row is None else _broken_column(block.data, schema, row)
            if column is not None and row is not None and self._number_as_time(block.data, column, row):
                raise BlockError(f"column {column!r}: {number_as_time(column)}", row) from None
            if column in self._unknown and row is not None:
                raise BlockError(self._known_later(block.data, column, row), row) from error
            told = "" if column is None else f"column {column!r}: "
            advice = "" if column is None else f"; pass types={{{column!r}: …}} if another type was meant"
            raise BlockError(told + _ROW.sub("", text) + advice, row) from error
        _check_lines(block.data, batch.num_rows)
        return batch

    def _number_as_time(self, data: bytes, column: str, row: int) -> bool:
        """Tell whether a row holds a number in a column that ``types=`` declares a time."""
        if dict(self.options.types or ()).get(column) != "time":
            return False
        value = _value_at(data, column, row)
        return isinstance(value, int | float) and not isinstance(value, bool)

    def _known_later(self, data: bytes, column: str, row: int) -> str:
        """Say that a column had no value where types are found, and has one that is no text here."""
        value = _value_at(data, column, row)
        kinds = [(bool, "bool"), (int, "int"), (float, "float")]
        type = next((name for kind, name in kinds if isinstance(value, kind)), None)
        advice = f"pass types={{{column!r}: {type!r}}}" if type else "write objects that have a value first"
        return (
            f"column {column!r} has no value in the first rows of the view, where its type is found, so it is read as text; "
            f"here it holds {json.dumps(value)[:60]}; {advice}"
        )


def _value_at(data: bytes, column: str, row: int) -> Any:
    """Return the value of a column, by its dotted name, in a row."""
    value: Any = json.loads([line for line in data.splitlines() if line.strip()][row])
    for name in (column,) if column in value else column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _without_values(fields: Any, above: str = "") -> Iterator[str]:
    """Yield the dotted names of columns in which no value was found."""
    for field in fields:
        if pt.is_struct(field.type):
            yield from _without_values(field.type, f"{above}{field.name}.")
        elif pt.is_null(field.type):
            yield above + field.name


def _all_numbers(data: bytes, path: Path) -> bool:
    """Tell whether a column holds numbers and nulls alone. Arrow would read quoted text as a decimal, too."""
    alone: dict[str, Any] = {}
    _plant(alone, path, pa.float64())
    try:
        parse_json(data, pa.schema(_fields(alone)), exact=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _check_plain(data: bytes, path: Path) -> None:
    """Refuse numbers of a column of text that are not plain whole numbers, because they could be written in several ways."""
    if not _UNPLAIN.search(data):
        return
    for row, line in enumerate(line for line in data.split(b"\n") if line.strip()):
        try:
            value: Any = json.loads(line, parse_int=_Digits, parse_float=_Digits)
        except ValueError:
            return  # Arrow refuses the line.
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, _Digits) and not _PLAIN.match(value):
            name = ".".join(path)
            raise BlockError(
                f"column {name!r} is read as text and holds the number {value[:60]}, expected strings, or whole numbers "
                f"without a fraction or an exponent; write such numbers as strings, or pass types={{{name!r}: 'float'}}",
                row,
            )


def _lines_before(data: bytes, at: int) -> int:
    return sum(1 for line in data[: data.rfind(b"\n", 0, at) + 1].splitlines() if line.strip())


def _check_lines(data: bytes, rows: int) -> None:
    """Refuse objects that share a line or use several lines, because a file is cut into blocks at line ends."""
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    if lines == rows:
        return
    filled = [line for line in data.split(b"\n") if line.strip()]
    if len(filled) == rows:
        return
    for row, line in enumerate(filled):
        try:
            json.loads(line)
        except ValueError as error:
            raise BlockError(f"a line does not hold exactly one JSON object ({first_line(error)})", row) from None
    raise BlockError(f"{len(filled)} lines hold {rows} JSON objects; expected one on each line")


def _led(block: bytes) -> int:
    """Return how many rows must be put before a block, because pyarrow crashes if the first value is null."""
    return 1 if _NULL_FIRST.match(block) else 0


def parse_json(block: bytes, schema: pa.Schema | None, *, exact: bool = True) -> pa.RecordBatch:
    """Parse lines of JSON as rows with the given columns, or with all columns of the lines if none are given.

    A whole number that a double would round raises `Rounded`, a ``pa.ArrowInvalid``, unless `exact` is False.
    """
    lead = _led(block)
    data = b"{}\n" + block if lead else block
    read = pajson.ReadOptions(use_threads=False, block_size=len(data) + 1)
    behavior = "infer" if schema is None else "ignore"
    parse = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behavior)
    batch = one_batch(pajson.read_json(pa.BufferReader(data), read, parse)).slice(lead)
    if exact:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _check_exact(block, column, (name,), np.arange(batch.num_rows))
    return batch


def _check_exact(block: bytes, column: pa.Array, path: Path, rows: np.ndarray) -> None:
    """Refuse floats that rounded a whole number of the file. `rows` are the rows of the values."""
    if pt.is_struct(column.type):
        for field, inner in zip(column.type, column.flatten(), strict=True):
            _check_exact(block, inner, (*path, field.name), rows)
    elif pt.is_list(column.type):
        lengths = np.nan_to_num(column.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
        _check_exact(block, column.flatten(), path, np.repeat(rows, lengths))
    elif pt.is_floating(column.type):
        with np.errstate(invalid="ignore"):
            large = np.abs(column.to_numpy(zero_copy_only=False)) >= EXACT
        if large.any():
            lines = [line for line in block.split(b"\n") if line.strip()]
            for row in np.unique(rows[large]):
                text = _rounded(lines[row], path) if row < len(lines) else None
                if text is not None:
                    raise Rounded(path, int(row), text)


class _Digits(str):
    """A number as it is written."""


def _rounded(line: bytes, path: Path) -> str | None:
    """Return the first whole number at `path` of a line that a double does not hold."""
    try:
        value: Any = json.loads(line, parse_int=_Digits)
    except ValueError:
        return None
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    waiting = [value]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, _Digits) and not exact_whole(value):
            return value[:60]
    return None


def _broken_line(block: bytes, schema: pa.Schema | None) -> int | None:
    """Return the first row that cannot be parsed alone; None if each row can be (then their types differ)."""
    lines = [line for line in block.splitlines() if line.strip()]
    low, high = 0, len(lines)
    while low < high:
        middle = (low + high) // 2
        try:
            parse_json(b"\n".join(lines[low : middle + 1]), schema, exact=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            high = middle
        else:
            low = middle + 1
    return low if low < len(lines) else None


def _broken_column(block: bytes, schema: pa.Schema, row: int) -> str | None:
    """Return the first column that cannot be read from a row although the row is JSON."""
    line = [line for line in block.splitlines() if line.strip()][row]
    try:
        json.loads(line)
    except ValueError:
        return None
    for leaf in _leaves(_tree(schema), ()):
        alone: dict[str, Any] = {}
        _plant(alone, *leaf)
        try:
            parse_json(line, pa.schema(_fields(alone)), exact=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return ".".join(leaf[0])
    return None


def _leaves(tree: dict[str, Any], above: Path) -> Iterator[tuple[Path, pa.DataType]]:
    for name, inner in tree.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, (*above, name))
        else:
            yield (*above, name), inner


# ---- columns inside columns --------------------------------------------------------------------------------


def _tree(fields: Any) -> dict[str, Any]:
    """Return fields as a dictionary of types, structs as dictionaries; unknown types become text."""
    return {
        field.name: _tree(field.type) if pt.is_struct(field.type) and field.type.num_fields else _steady(field.type)
        for field in fields
    }


def _path(name: str, met: pa.Schema) -> Path:
    """Return the path of a column by its dotted name."""
    return (name,) if name in met.names else tuple(name.split("."))


def _steady(type: pa.DataType) -> pa.DataType:
    """Return the type for the whole view, in which times keep fractions of a second that occur later."""
    return pa.timestamp("us") if pt.is_timestamp(type) else no_null_type(type)


def _plant(tree: dict[str, Any], path: Path, type: pa.DataType) -> None:
    for name in path[:-1]:
        inner = tree.get(name)
        tree[name] = inner = inner if isinstance(inner, dict) else {}
        tree = inner
    tree[path[-1]] = type


def _has(tree: dict[str, Any], path: Path) -> bool:
    inner: Any = tree
    for name in path:
        if not isinstance(inner, dict) or name not in inner:
            return False
        inner = inner[name]
    return not isinstance(inner, dict)


def _fields(wanted: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, pa.struct(_fields(inner)) if isinstance(inner, dict) else inner)
        for name, inner in wanted.items()
    ]
