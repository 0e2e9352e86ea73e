"""Reduces every Arrow type to a few simple ones; string bytes are never looked at or changed.

| type                                         | handed out                                         |
|----------------------------------------------|----------------------------------------------------|
| bool, int8…int64, uint8…uint32, float32/64   | as they are                                        |
| uint64                                       | int64; a larger value is a `DataError`             |
| float16                                      | float32, exactly                                   |
| decimal                                      | float64, the nearest one, half to even             |
| timestamp, date                              | timestamp[us], UTC, no zone; finer is rounded down |
| time, duration                               | int64 microseconds; finer is rounded down          |
| utf8, binary, their views, fixed-size binary | utf8 (large_utf8 for the large ones)               |
| dictionary of strings / of anything else     | dictionary<int32, utf8> / decoded                  |
| run-end encoded, extension                   | what they hold                                     |
| null                                         | the type of a later file; else refused when read   |
| list, large list, list view of the above     | list, large list                                   |
| fixed-size list                              | fixed-size list                                    |
| struct                                       | its fields under dotted names                      |
| map, union, interval, lists of lists/structs | listed in the schema, refused when read            |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from ctrbox.arguments.names import nearest
from ctrbox.columns.exact_casts import decimals_to_float64, floor_divide, times_to_microseconds
from ctrbox.columns.times import TIME
from ctrbox.errors import DataError, SourceError
from ctrbox.views.morsel import Origin

STRINGS = pa.dictionary(pa.int32(), pa.utf8())


@dataclass(frozen=True)
class Leaf:
    """One column as handed out: `path` leads to it through structs, `stored` is its type in the file."""

    name: str
    path: tuple[str, ...]
    stored: pa.DataType
    type: pa.DataType | None  # None: it has no simple type
    nullable: bool

    @cached_property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.stored if self.type is None else self.type, self.nullable)


@lru_cache(maxsize=1024)
def simple_type(stored: pa.DataType) -> pa.DataType | None:
    """Return the simple type that stands for `stored`, or None if there is none."""
    if isinstance(stored, pa.BaseExtensionType):
        return simple_type(stored.storage_type)
    if pt.is_run_end_encoded(stored):
        return simple_type(stored.value_type)
    if pt.is_dictionary(stored):
        value = simple_type(stored.value_type)
        return STRINGS if value is not None and is_text(value) else value
    if pt.is_fixed_size_list(stored):
        element = _element_type(stored)
        return None if element is None else pa.list_(element, stored.list_size)
    if pt.is_large_list(stored) or pt.is_large_list_view(stored):
        element = _element_type(stored)
        return None if element is None else pa.large_list(element)
    if pt.is_list(stored) or pt.is_list_view(stored):
        element = _element_type(stored)
        return None if element is None else pa.list_(element)
    return _simple_scalar(stored)


def _simple_scalar(stored: pa.DataType) -> pa.DataType | None:
    if pt.is_uint64(stored) or pt.is_time(stored) or pt.is_duration(stored):
        return pa.int64()
    if pt.is_boolean(stored) or pt.is_integer(stored) or pt.is_float32(stored) or pt.is_float64(stored):
        return stored
    if pt.is_float16(stored):
        return pa.float32()
    if pt.is_decimal(stored):
        return pa.float64()
    if pt.is_timestamp(stored) or pt.is_date(stored):
        return TIME
    if pt.is_large_string(stored) or pt.is_large_binary(stored):
        return pa.large_utf8()
    if is_text(stored) or _is_bytes(stored):
        return pa.utf8()
    return None


def _element_type(stored: pa.DataType) -> pa.DataType | None:
    element = pa.utf8() if pt.is_null(stored.value_type) else simple_type(stored.value_type)
    if element is None or is_list(element):
        return None
    return element.value_type if pt.is_dictionary(element) else element


def is_text(type: pa.DataType) -> bool:
    return pt.is_string(type) or pt.is_large_string(type) or pt.is_string_view(type)


def _is_bytes(type: pa.DataType) -> bool:
    return pt.is_binary(type) or pt.is_binary_view(type) or pt.is_fixed_size_binary(type)


def is_list(type: pa.DataType) -> bool:
    return pt.is_list(type) or pt.is_large_list(type) or pt.is_fixed_size_list(type)


def leaves(schema: pa.Schema, source: str) -> dict[str, Leaf]:
    """Return the columns of `schema`, with structs flattened. Two columns with one name are an error."""
    found: dict[str, Leaf] = {}
    try:
        columns = list(_walk(schema, (), False))
    except UnicodeDecodeError as error:
        raise SourceError(f"{source} has a column whose name is not UTF-8: {error.object!r}") from error
    for leaf in columns:
        if leaf.name in found:
            raise SourceError(f"{source} has two columns called {leaf.name!r}; rename one of them")
        found[leaf.name] = leaf
    return found


def _walk(fields: Iterable[pa.Field], above: tuple[str, ...], nullable: bool) -> Iterator[Leaf]:
    for field in fields:
        path = (*above, field.name)
        maybe = nullable or field.nullable
        inner = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        if pt.is_struct(inner) and inner.num_fields:
            yield from _walk(inner, path, maybe)
        else:
            yield Leaf(".".join(path), path, field.type, simple_type(field.type), maybe)


def choose(found: dict[str, Leaf], columns: Sequence[str], source: str) -> list[Leaf]:
    """Return the leaves called `columns`; raise a `SourceError` if one is unknown or cannot be read."""
    chosen = []
    for column in columns:
        leaf = found.get(column)
        if leaf is None:
            instead = nearest(column, found) or _listing(found)
            raise SourceError(f"{source} has no column {column!r}{instead}")
        if pt.is_null(leaf.stored):
            raise SourceError(
                f"column {column!r} of {source} has Arrow type null: none of its values is known, so its type is not known "
                "either; write it with the type that it should have, such as pa.nulls(rows, pa.int64())"
            )
        if leaf.type is None:
            raise SourceError(
                f"column {column!r} of {source} is {leaf.stored}, which views cannot read; store its parts as columns, as "
                "lists of simple values or as JSON text"
            )
        chosen.append(leaf)
    return chosen


def _listing(found: dict[str, Leaf]) -> str:
    names = list(found)
    return "; it has " + ", ".join(map(repr, names[:12])) + (", …" if len(names) > 12 else "")


def pick(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    """Return the array at the end of `path`, which is null where a struct on the way is null."""
    array = batch.column(path[0])
    for name in path[1:]:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        array = array.flatten()[array.type.get_field_index(name)]
    return array


def simplify(array: pa.Array, leaf: Leaf, origin: Origin) -> pa.Array:
    """Return `array` as ``leaf.type``; a value that does not fit is a `DataError` that names its row."""
    if array.type == leaf.type:  # the common case, and the one a request's latency hangs on
        return array
    if pt.is_null(array.type):
        return pa.nulls(len(array), leaf.type)
    try:
        return conform(_simple(array), leaf.type)
    except pa.ArrowInvalid as error:
        raise _misfit(array, leaf, origin, error) from error


def conform(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast between simple types without loss, or raise ``pa.ArrowInvalid``."""
    if array.type == target:
        return array
    if pt.is_dictionary(array.type) and not pt.is_dictionary(target):
        array = array.dictionary_decode()
    if pt.is_dictionary(target) and not pt.is_dictionary(array.type):
        return array.cast(target.value_type).dictionary_encode()
    return array if array.type == target else array.cast(target)


def castable(found: pa.DataType | None, wanted: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether a column of a later file may be read in the type of the first file: strings as strings, numbers as numbers
    that can be equal to them, and columns of type null as anything."""
    if found == wanted or pt.is_null(stored):
        return True
    if found is None:
        return False
    if _text_like(found) and _text_like(wanted):
        return True
    if pt.is_integer(wanted):
        return bool(pt.is_integer(found))
    if pt.is_float64(wanted):
        return bool(pt.is_integer(found) or pt.is_float32(found))
    if is_list(found) and is_list(wanted) and not pt.is_fixed_size_list(wanted):
        return castable(found.value_type, wanted.value_type, found.value_type)
    return False


def _text_like(type: pa.DataType) -> bool:
    return is_text(type) or type == STRINGS


def _simple(array: pa.Array) -> pa.Array:
    """Convert `array` to ``simple_type(array.type)``."""
    type = array.type
    if isinstance(type, pa.BaseExtensionType):
        return _simple(array.storage)
    if pt.is_run_end_encoded(type):
        return _simple(pc.run_end_decode(array))
    if pt.is_dictionary(type):
        value = simple_type(type.value_type)
        if value is None or not is_text(value):
            return _simple(array.dictionary_decode())
        if type == STRINGS:
            return array
        words = _simple(array.dictionary).cast(pa.utf8())
        return pa.DictionaryArray.from_arrays(array.indices.cast(pa.int32()), words, safe=False)
    if is_list(type) or pt.is_list_view(type) or pt.is_large_list_view(type):
        return _simple_list(array)
    return _simple_values(array)


def _simple_values(array: pa.Array) -> pa.Array:
    type = array.type
    if pt.is_binary(type):
        return array.view(pa.utf8())
    if pt.is_large_binary(type):
        return array.view(pa.large_utf8())
    if pt.is_binary_view(type) or pt.is_fixed_size_binary(type):
        return array.cast(pa.binary()).view(pa.utf8())
    if pt.is_decimal(type):
        return decimals_to_float64(array)
    if pt.is_timestamp(type) or pt.is_date(type):
        return times_to_microseconds(array)
    # As for timestamps, nanoseconds are rounded down, and a coarser unit that leaves int64 is an error.
    if (pt.is_time(type) or pt.is_duration(type)) and type.unit == "ns":
        return floor_divide(array, 1000)
    if pt.is_time(type):
        return array.cast(pa.time64("us")).view(pa.int64())
    if pt.is_duration(type):
        return array.cast(pa.duration("us")).view(pa.int64())
    target = simple_type(type)
    return array if target is None or type == target else array.cast(target)


def _simple_list(array: pa.Array) -> pa.Array:
    type = array.type
    target: Any = simple_type(type)
    if type == target:
        return array
    if is_list(type) and type.value_type == target.value_type:  # they differ in "not null" elements only
        return array.cast(target)
    if pt.is_fixed_size_list(type):
        size = type.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        mask = array.is_null() if array.null_count else None
        elements = conform(_simple(values), target.value_type)
        if not size:  # from_arrays cannot tell how many lists without an element there are
            valid = array.is_valid().buffers()[1] if array.null_count else None
            return pa.Array.from_buffers(target, len(array), [valid], children=[elements])
        return pa.FixedSizeListArray.from_arrays(elements, size, mask=mask)
    # pyarrow 26 casts list views to lists with a short offsets buffer, so offsets are rebuilt from lengths.
    values = conform(_simple(array.flatten()), target.value_type)
    width = pa.int64() if pt.is_large_list(target) else pa.int32()
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    # From NumPy, so that they carry no validity buffer: older pyarrow refuses one beside a mask.
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(width.to_pandas_dtype()))
    mask = array.is_null() if array.null_count else None
    kind = pa.LargeListArray if pt.is_large_list(target) else pa.ListArray
    return kind.from_arrays(offsets, values, type=target, mask=mask)


def _misfit(array: pa.Array, leaf: Leaf, origin: Origin, error: Exception) -> DataError:
    """Return an error that names the first row whose value does not fit."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            conform(_simple(array.slice(low, middle - low)), leaf.type)
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    try:
        value = str(array[low].as_py())
    except (ValueError, OverflowError):
        value = str(error)
    told = f"{origin.name(low)}: column {leaf.name!r} holds {value} ({array.type}), which does not fit {leaf.type}"
    if array.type == leaf.stored:
        return DataError(f"{told}; store such values as text")
    wide = simple_type(array.type)
    return DataError(
        f"{told}, the type of this column in the first file of the view; write the first file again with {wide}, or put a "
        f"file that has {wide} first"
    )
