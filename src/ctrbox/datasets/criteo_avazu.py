"""Reads Criteo and Avazu click logs with the CSV parser of Arrow."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from ctrbox.arguments.names import nearest
from ctrbox.datasets.public_text_logs import OnError, Paths, TextLog, Unparsed, find, head, shown
from ctrbox.errors import DataError

CRITEO_INTS = tuple(f"I{i}" for i in range(1, 14))
CRITEO_CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
_AVAZU_INTS = frozenset(
    ["hour", "C1", "banner_pos", "device_type", "device_conn_type", *(f"C{i}" for i in range(14, 22))]
)
_INTEGER = re.compile(rb"-?0*[0-9]{1,19}\Z")  # `_fits` compares the value


class Delimited:
    """Lines of as many values as `raw` has fields; an empty value is null. These logs know no quotes."""

    def __init__(self, raw: pa.Schema, delimiter: str, header: bytes | None = None) -> None:
        self.schema = raw
        self.header = header
        self._raw = raw
        self._delimiter = delimiter.encode()
        self._read = pacsv.ReadOptions(column_names=raw.names, block_size=8 << 20)
        self._parse = pacsv.ParseOptions(delimiter=delimiter, quote_char=False)
        self._convert = pacsv.ConvertOptions(column_types=raw, null_values=[""], strings_can_be_null=True)

    def parse(self, block: bytes) -> pa.RecordBatch:
        if not block.strip():
            return pa.RecordBatch.from_pylist([], schema=self._raw)
        table = pacsv.read_csv(pa.py_buffer(block), self._read, self._parse, self._convert)
        if any(sign in block for sign in (b"0x", b"0X", b" ")):
            self._check_integers(block)
        return pa.RecordBatch.from_arrays([c.combine_chunks() for c in table.columns], schema=self._raw)

    def _check_integers(self, block: bytes) -> None:
        """Refuse integers that Arrow reads although they are not decimal digits: 0x1F as 31, and spaces around digits."""
        names = [field.name for field in self._raw if pa.types.is_integer(field.type)]
        types = {name: pa.string() for name in names}
        texts = pacsv.ConvertOptions(column_types=types, include_columns=names)
        for column in pacsv.read_csv(pa.py_buffer(block), self._read, self._parse, texts).columns:
            if not pc.all(pc.match_substring_regex(column, "^-?[0-9]*$")).as_py():
                raise Unparsed("an integer is not written in decimal digits")

    def complaint(self, line: bytes) -> str | None:
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            return f"byte {error.start} is {line[error.start]:#04x}; expected UTF-8"
        line = line.removesuffix(b"\r")
        if b"\r" in line:
            return "the line contains a carriage return; expected one only at the end of a line"
        values = line.split(self._delimiter)
        if len(values) != len(self._raw):
            return f"found {len(values)} values; expected {len(self._raw)}"
        for field, value in zip(self._raw, values, strict=True):
            if value and pa.types.is_integer(field.type) and not _fits(value, field.type.bit_width):
                bits = field.type.bit_width
                return f"{field.name} is {shown(value)}; expected an integer of {bits} bits, or nothing"
        return None


def _fits(value: bytes, bits: int) -> bool:
    return bool(_INTEGER.match(value)) and -(1 << (bits - 1)) <= int(value) < 1 << (bits - 1)


class Avazu(Delimited):
    """Avazu: a header, and `hour` (YYMMDDHH) once more as the timestamp `ts`."""

    def __init__(self, names: Sequence[str], header: bytes) -> None:
        super().__init__(pa.schema([(name, _avazu_type(name)) for name in names]), ",", header)
        self.schema = pa.schema([*self._raw, ("ts", pa.timestamp("us"))])
        self._hour = self._raw.names.index("hour")

    def parse(self, block: bytes) -> pa.RecordBatch:
        raw = super().parse(block)
        hours = raw.column(self._hour)
        filled = hours.fill_null(70_01_01_00).to_numpy(zero_copy_only=False)
        moments, valid = _moments(filled)
        if not valid.all():
            raise Unparsed("an hour is not YYMMDDHH")
        empty = np.asarray(hours.is_null()) if hours.null_count else None
        ts = pa.array(moments, pa.timestamp("us"), mask=empty)
        return pa.RecordBatch.from_arrays([*raw.columns, ts], schema=self.schema)

    def complaint(self, line: bytes) -> str | None:
        problem = super().complaint(line)
        if problem is not None:
            return problem
        value = line.removesuffix(b"\r").split(self._delimiter)[self._hour]
        if value and not _moments(np.array([int(value)]))[1][0]:
            return f"hour is {shown(value)}; expected YYMMDDHH"
        return None


def _avazu_type(name: str) -> pa.DataType:
    if name == "click":
        return pa.int8()
    return pa.int64() if name in _AVAZU_INTS else pa.string()


def _moments(hours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Convert YYMMDDHH to microseconds (datetime64), and say which of them are real hours of the years 2000 to 2099."""
    rest, hour = np.divmod(hours, 100)
    rest, day = np.divmod(rest, 100)
    year, month = np.divmod(rest, 100)
    start = ((year + 30) * 12 + month - 1).astype("datetime64[M]")
    date = start.astype("datetime64[D]") + (day - 1)
    # A 31st of April lies in May: the month tells.
    valid = (hours >= 0) & (year < 100) & (month >= 1) & (month <= 12) & (day >= 1) & (hour < 24)
    valid &= date.astype("datetime64[M]") == start
    return date.astype("datetime64[us]") + hour.astype("timedelta64[h]"), valid


def criteo(path: Paths, *, label: bool = True, on_error: OnError = "raise") -> TextLog:
    """Read a Criteo log (Kaggle or 1TB), uncompressed, gz or zstd: tab-separated label, 13 counts and 26 hashed categories.

    The columns are `row` (int64), `label` (int8), `I1` to `I13` (int64) and `C1` to `C26` (string). A missing value is null.
    `label=False` reads the test files of the Kaggle data, which have no label.
    """
    fields = [("label", pa.int8())] if label else []
    fields += [(name, pa.int64()) for name in CRITEO_INTS]
    fields += [(name, pa.string()) for name in CRITEO_CATEGORIES]
    return TextLog(find(path), Delimited(pa.schema(fields), "\t"), on_error)


def avazu(path: Paths, *, on_error: OnError = "raise") -> TextLog:
    """Read an Avazu log: CSV files with the same header.

    The columns are `row` (int64), the columns of the header, and `ts`, the timestamp that `hour` denotes. Of the header,
    `click` is int8; `hour`, `C1`, `C14` to `C21`, `banner_pos`, `device_type` and `device_conn_type` are int64; all others,
    including `id`, are strings.
    """
    paths = find(path)
    first = head(paths[:1], 1)
    if not first:
        raise DataError(f"{paths[0]} is empty; expected a header such as 'id,click,hour,C1,...'")
    try:
        names = first[0].decode("utf-8-sig").rstrip("\r").split(",")
    except UnicodeDecodeError as error:
        raise DataError(f"{paths[0]} line 1: not UTF-8; expected a header") from error
    if "hour" not in names:
        raise DataError(f"{paths[0]} line 1: the header has no column 'hour'{nearest('hour', names)}")
    twice = sorted({name for name in names if names.count(name) > 1 or name in ("row", "ts")})
    if twice:
        raise DataError(
            f"{paths[0]} line 1: the column name {twice[0]!r} occurs twice in the header, or is the name of a "
            f"column that the reader adds"
        )
    return TextLog(paths, Avazu(names, first[0].rstrip(b"\r")), on_error)
