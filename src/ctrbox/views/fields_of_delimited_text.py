"""Converts the fields of delimited text to values.

Types are not guessed: a column is a number, a truth value or a time only when every field of the first
block is written in one of the plain forms below; any other column stays text, letter by letter. The type then holds for
the whole view, and a later field that does not fit is refused.

| type  | forms                                                                                     |
|-------|-------------------------------------------------------------------------------------------|
| int   | digits, perhaps after "-", without leading zeros, from -2^63 to 2^63 - 1                  |
| float | decimal numbers, perhaps with an exponent; nan and inf beside at least one number. Whole  |
|       | numbers must be exact as a double                                                         |
| bool  | true, false, True, False, TRUE, FALSE                                                     |
| time  | ISO 8601 dates and times, either all with a zone or all without                           |
| str   | everything else: 007, +5, 0x1F, 1,000, 12:30, " 5", 9223372036854775808                   |
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

FIRST_TRIED = 16  # fields of a column that are tried before more of them; each further slice is 8 times as long
EXACT = 2.0**53  # From here on, a double does not hold every whole number.
TIMES = (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
DECLARED = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "time": TIMES[0], "str": pa.utf8()}

_TRUE = pa.array(["true", "True", "TRUE"])
_FALSE = pa.array(["false", "False", "FALSE"])
_LAST = np.frombuffer(b".nNfFyY", np.uint8)  # the last letters of "1.", "nan", "inf" and "infinity"
_WHOLE = re.compile(r"-?[0-9]+\Z")
_INFINITE = re.compile(r"-?inf(inity)?\Z", re.IGNORECASE)


class Misfit(Exception):
    """A field that cannot be read as the type of its column; `row` counts from 0 in the array."""

    def __init__(self, row: int, value: str, type: pa.DataType):
        shown = value if len(value) <= 60 else value[:57] + "..."
        super().__init__(f"{shown!r} is not {expected(type)}")
        self.row = row
        self.value = value


def number_as_time(name: str) -> str:
    """Say how to read a column of numbers that ``types=`` declares a time."""
    return (
        f"a number is not a time; read the column as int, types={{{name!r}: 'int'}}, and convert it: "
        f"col({name!r}).cast('time', unit='s'), where the unit is 's', 'ms', 'us' or 'ns'"
    )


def expected(type: pa.DataType) -> str:
    """Describe the forms that a column of this type takes, for messages."""
    if pt.is_integer(type):
        return "a whole number of at most 64 bits without leading zeros (int)"
    if pt.is_floating(type):
        return "a decimal number, or a whole number that a double holds exactly (float)"
    if pt.is_boolean(type):
        return "true or false (bool)"
    if pt.is_timestamp(type):
        zone = "with a zone" if type.tz else "without a zone"
        return f"an ISO 8601 date or time {zone} (time)"
    return "text (str)"


def name_of_type(type: pa.DataType) -> str:
    """Return the name that `types=` uses for an Arrow type."""
    if pt.is_timestamp(type):
        return "time"
    return next((name for name, arrow in DECLARED.items() if arrow == type), str(type))


def infer(texts: pa.Array) -> pa.DataType:
    """Return the type of a column from all its fields so far."""
    met = texts.drop_null()
    if not len(met):
        return pa.utf8()
    for type in (pa.int64(), pa.float64(), pa.bool_(), *TIMES):
        if fits(met, type) and not _only_words(met, type):
            return type
    return pa.utf8()


def infer_time(texts: pa.Array) -> pa.DataType:
    """Return the unit and the zone of a column that is declared a time."""
    met = texts.drop_null()
    return next((type for type in TIMES if fits(met, type)), TIMES[0])


def fits(texts: pa.Array, type: pa.DataType) -> bool:
    """Tell whether every field can be read as this type.

    The fields are tried in slices that grow from a few fields to most of them, so that a column of another type is known by
    its first fields. Arrow's cast does not stop at the first field that it refuses, and refusing is slow: the casts of
    48,842 rows with 9 columns of text took 9 s.
    """
    begin, length = 0, FIRST_TRIED
    while begin < len(texts):
        part = texts.slice(begin, length)
        try:
            _parse(part, type)
        except (Misfit, pa.ArrowInvalid):
            return False
        begin, length = begin + length, length * 8
    return True


def _only_words(texts: pa.Array, type: pa.DataType) -> bool:
    """Tell whether a column of floats holds no number at all: "nan" and "inf" alone may as well be names."""
    return bool(pt.is_floating(type) and not pc.any(pc.is_finite(texts.cast(type))).as_py())


def convert(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """Read text as `type`; nulls stay null. Raise `Misfit` for the first field that is written in another form."""
    try:
        return _parse(texts, type)
    except pa.ArrowInvalid:
        raise _misfit(texts, type, lambda part: part.cast(type)) from None


def _parse(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """Read text as `type`. Raise `Misfit`, or Arrow's own error, which does not say which field it is about."""
    if pt.is_string(type):
        return texts
    if pt.is_boolean(type):
        return _booleans(texts)
    if not pt.is_timestamp(type):  # Arrow takes a time in its plain forms alone.
        _first(texts, ~_plain(texts, type), type)
    found = texts.cast(type)
    if pt.is_floating(type):
        _check_exact(texts, found)
    return found


def _booleans(texts: pa.Array) -> pa.Array:
    true = pc.is_in(texts, _TRUE)
    known = pc.or_(pc.or_(true, pc.is_in(texts, _FALSE)), texts.is_null())
    _first(texts, ~known.to_numpy(zero_copy_only=False), pa.bool_())
    return pc.if_else(texts.is_valid(), true, pa.scalar(None, pa.bool_()))


def _first(texts: pa.Array, bad: np.ndarray, type: pa.DataType) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise Misfit(row, texts[row].as_py(), type)


def _plain(texts: pa.Array, type: pa.DataType) -> np.ndarray:
    """Tell for each field whether its first and last letters allow the plain form of `type`.

    Arrow's parsers are laxer than the table above: they take spaces around a number, leading zeros and hexadecimal
    digits. What stands between the first letters and the last is left to them.
    """
    absent = texts.is_null().to_numpy(zero_copy_only=False)
    _, offsets_at, data_at = texts.buffers()
    offsets = np.frombuffer(offsets_at, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.frombuffer(data_at or b"", np.uint8)
    if not len(data):
        return absent
    begins, ends = offsets[:-1], offsets[1:]
    most = len(data) - 1
    negative = data[np.minimum(begins, most)] == ord("-")
    begins = begins + negative
    left = ends - begins
    first = data[np.minimum(begins, most)]
    second = data[np.minimum(begins + 1, most)]
    last = data[np.maximum(ends - 1, 0)]
    if pt.is_integer(type):
        zero = first == ord("0")
        plain = _digit(first) & _digit(last) & (~zero | ((left == 1) & ~negative))
    else:
        padded = (first == ord("0")) & (left > 1) & _digit(second)
        ends_plainly = _digit(last) | np.isin(last, _LAST)  # not so "nan(x)", which Arrow reads as NaN
        plain = (first > ord(" ")) & (first != ord("+")) & ends_plainly & ~padded
    return absent | (plain & (left > 0))


def _digit(letters: np.ndarray) -> np.ndarray:
    return (letters >= ord("0")) & (letters <= ord("9"))


def _check_exact(texts: pa.Array, found: pa.Array) -> None:
    """Refuse what a double cannot hold: numbers beyond its range, and whole numbers that it would round."""
    values = np.abs(found.to_numpy(zero_copy_only=False))
    for row in np.flatnonzero(values >= EXACT):
        text = texts[int(row)].as_py()
        if text is None:
            continue
        if np.isinf(values[row]):
            kept = bool(_INFINITE.match(text))
        else:
            kept = exact_whole(text)
        if not kept:
            raise Misfit(int(row), text, pa.float64())


def exact_whole(text: str) -> bool:
    """Tell whether a number may be a double: a fraction or an exponent may, a whole number only without a loss."""
    return not _WHOLE.match(text) or (abs(int(text)) < 2**63 and int(float(text)) == int(text))


def _misfit(texts: pa.Array, type: pa.DataType, parse: Callable[[pa.Array], object]) -> Misfit:
    """Find the first field that `parse` refuses."""
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(texts.slice(low, middle - low))
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return Misfit(low, texts[low].as_py(), type)
