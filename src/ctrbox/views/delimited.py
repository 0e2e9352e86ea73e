"""Reads delimited text files (CSV, TSV or any other delimiter) into Arrow batches.

The first line names the columns unless the view says `header=False` or gives `names`. An empty field without quotes is
null, in every column; a quoted field is never null and may hold delimiters and line ends. Blank lines are left out.
fields_of_delimited_text.py says what the other fields become.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.csv as pacsv

from ctrbox.arguments.names import nearest
from ctrbox.columns.one_array import one_batch
from ctrbox.errors import SourceError
from ctrbox.files.filesystems import File, first_line
from ctrbox.views.fields_of_delimited_text import (
    DECLARED,
    Misfit,
    convert,
    infer,
    infer_time,
    name_of_type,
    number_as_time,
)
from ctrbox.views.files_without_row_index import BlockError, NoRows, Parse
from ctrbox.views.simple_types import Leaf
from ctrbox.views.text_guesses import evident_delimiter, is_a_header, is_a_row
from ctrbox.views.text_in_blocks import Block, NotText, check_text, text_blocks
from ctrbox.views.text_options import TextOptions

_ROW = re.compile(r"Row #(\d+): ")
_SPARE = [bytes([byte]) for byte in (0x1F, 0x1E, 0x1D, 0x1C, *range(0x01, 0x09), *range(0x0E, 0x1C))]


class Csv:
    """Delimited text."""

    def __init__(self, delimiter: str = ",", options: TextOptions | None = None):
        self.name = "tsv" if delimiter == "\t" else "csv"
        self.options = options or TextOptions()
        self.delimiter = delimiter if self.options.delimiter is None else self.options.delimiter
        quote = '"' if self.options.quote is None else self.options.quote
        self._separator = self.delimiter.encode()
        self._quote = str(quote).encode() if quote else b""
        # Arrow splits at one ASCII character. A longer delimiter is replaced by a character that the block lacks.
        self._single = len(self._separator) == 1
        if not self._quote:
            return
        # A quote opens a field only where a field begins; elsewhere it is a letter. Possessive: one pass, no
        # backtracking, about 100 MB/s of text that is mostly quotes.
        names = {b"q": re.escape(self._quote), b"d": re.escape(self._separator)}
        letter = (rb"(?<=[^\n\r%(d)s])%(q)s" if self._single else rb"(?<=[^\n\r])(?<!%(d)s)%(q)s") % names
        self._field = rb"%(q)s[^%(q)s]*+(?:%(q)s%(q)s[^%(q)s]*+)*+%(q)s" % names
        names |= {b"letter": letter, b"field": self._field}
        loose = rb"(?:[^%(q)s\n]++|%(letter)s|%(field)s)*+\n" % names
        strict = rb"(?:[^%(q)s\n]++|%(letter)s|%(field)s(?=%(d)s|\r|\n))*+\n" % names
        self._line, self._lines = re.compile(strict), re.compile(rb"(?:%s)*+" % strict)
        self._loose_line, self._loose_lines = re.compile(loose), re.compile(rb"(?:%s)*+" % loose)

    # ---- where lines end -----------------------------------------------------------------------------------

    def _last_line_end(self, block: bytes) -> int:
        """Return the end of the last line, outside quotes; of the first line alone where its quotes are malformed."""
        if not self._quote or self._quote not in block:
            return block.rfind(b"\n") + 1
        found = self._lines.match(block)
        return found.end() if found and found.end() else self._first_line_end(block)

    def _first_line_end(self, block: bytes) -> int:
        if not self._quote:
            return block.find(b"\n") + 1
        found = self._loose_line.match(block)
        return found.end() if found else 0

    def _unquoted(self, data: bytes) -> bytes:
        """Return the text without its quoted fields."""
        return re.sub(self._field, b"", data) if self._quote else data

    # ---- the first file ------------------------------------------------------------------------------------

    def schema(self, file: File) -> pa.Schema:
        names, first, blocks = self._opened(file)
        block = next(blocks, None)
        columns: list[pa.Array] = []
        if block is not None:
            try:
                columns = self._texts(block, names, names).columns
            except BlockError as error:
                if "columns, got" in str(
                    error
                ):  # Another delimiter may be why the rows have more fields than the header.
                    self._check_delimiter(file, names, first, block)
                where = "" if error.row is None else f" row {error.row}"
                raise SourceError(f"{file.shown}{where}: {error}") from error
        self._check_looks(file, names, first, columns, block)
        declared = dict(self.options.types or ())
        for name in declared:
            if name not in names:
                raise SourceError(
                    f"types= names the column {name!r}, which {file.shown} does not have{nearest(name, names)}"
                )
        types = [self._type(name, column, declared) for name, column in zip(names, columns, strict=False)]
        if block is None:
            raise NoRows(pa.schema([(name, DECLARED[declared.get(name, "str")]) for name in names]))
        return pa.schema(list(zip(names, types, strict=True)))

    def _type(self, name: str, column: pa.Array, declared: dict[str, str]) -> pa.DataType:
        said = declared.get(name)
        if said is None:
            return infer(column)
        return infer_time(column) if said == "time" else DECLARED[said]

    def _check_looks(
        self, file: File, names: Sequence[str], first: list[str], columns: Sequence[pa.Array], block: Block | None
    ) -> None:
        """Refuse a file that seems to have another delimiter, no header, or a header that was not expected."""
        self._check_delimiter(file, names, first, block)
        options = self.options
        if options.header is not None:
            return
        shown = ", ".join(map(repr, first[:4])) + (", …" if len(first) > 4 else "")
        if options.names is None and is_a_row(first, columns):
            raise SourceError(
                f"the first line of {file.shown} ({shown}) looks like a row, but the names of the columns were expected; pass "
                "header=False, names=[…] if it is a row, or header=True if these are names"
            )
        if options.names is not None and is_a_header(first, names, [column[1:] for column in columns]):
            raise SourceError(
                f"the first line of {file.shown} ({shown}) looks like a header although names= are given; pass "
                "header=True to replace this header with names=, or header=False if the line is a row"
            )

    def _check_delimiter(self, file: File, names: Sequence[str], first: list[str], block: Block | None) -> None:
        """Refuse a file whose first line holds one field, unless the view says that this is so."""
        if len(names) != 1 or self.options.delimiter is not None or self.options.names is not None:
            return
        text = self.delimiter.join(first) + "\n" + (block.data[: 1 << 16].decode(errors="replace") if block else "")
        other = evident_delimiter(text, self.delimiter)
        evident = f"Its delimiter seems to be {other!r}: pass delimiter={other!r}. " if other else ""
        advice = "" if other else ", or pass its delimiter as delimiter="
        raise SourceError(
            f"{file.shown} has one column, {names[0][:60]!r}, when it is split at {self.delimiter!r}. {evident}"
            f"If the file really has one column, confirm it with delimiter={self.delimiter!r}{advice}"
        )

    # ---- any file ------------------------------------------------------------------------------------------

    def _opened(self, file: File) -> tuple[list[str], list[str], Iterator[Block]]:
        """Return the names of the columns, the fields of the first line, and the blocks of rows."""
        blocks = text_blocks(file, self.options, self._last_line_end)
        first = next(blocks, None)
        if first is None:
            raise SourceError(f"{file.shown} holds only blank lines; expected rows")
        skipped = len(first.data) - len(first.data.lstrip(b"\r\n"))
        data = first.data[skipped:]
        end = self._first_line_end(data) or len(data)
        if b"\r" in self._unquoted(data[:end].rstrip(b"\r\n")):
            raise SourceError(
                f"{file.shown} has lines that end with CR alone; write it again with lines that end with LF or CR LF"
            )
        fields = self._fields(file, Block(data[:end], first.at + skipped, first.last and end == len(data)))
        options = self.options
        if options.header is False and options.names is None:
            raise SourceError(
                f"header=False needs the names of the columns of {file.shown}, which has {len(fields)} of them: names=[…]"
            )
        if options.names is not None and len(options.names) != len(fields):
            raise SourceError(
                f"{file.shown} has {len(fields)} columns, but names= has {len(options.names)}; give one name for each column"
            )
        headed = options.header is True or options.names is None
        rest = Block(data[end:], first.at + skipped + end, first.last) if headed else first

        def remaining() -> Iterator[Block]:
            if rest.data and not rest.data.isspace():
                yield rest
            yield from blocks

        names = list(options.names) if options.names is not None else fields
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            advice = "" if options.header else "; if the first line is a row, pass header=False, names=[…]"
            raise SourceError(f"{file.shown} has two columns called {twice[0]!r}; rename one of them{advice}")
        return names, fields, remaining()

    def _fields(self, file: File, line: Block) -> list[str]:
        """Return the fields of the first line; an empty one is an empty text."""
        try:
            self._check(line, None)
            data, parse = self._split(line.data)
            read = pacsv.ReadOptions(use_threads=False, autogenerate_column_names=True)
            probe = pacsv.read_csv(pa.BufferReader(data), read, parse, pacsv.ConvertOptions(column_types={}))
            texts = pacsv.ConvertOptions(column_types={name: pa.utf8() for name in probe.column_names})
            row = pacsv.read_csv(pa.BufferReader(data), read, parse, texts).to_pylist()[0]
        except (pa.ArrowInvalid, BlockError, IndexError) as error:
            raise SourceError(f"{file.shown} row 0: {first_line(error)}") from error
        return [value or "" for value in row.values()]

    def blocks(self, file: File, leaves: Sequence[Leaf]) -> Iterator[Parse]:
        names, _, blocks = self._opened(file)
        types = {leaf.path[0]: leaf.stored for leaf in leaves}
        for name, type in types.items():
            if name not in names:
                told = f"expected {name_of_type(type)} as in the first file"
                raise SourceError(f"{file.shown} has no column {name!r}, {told}{nearest(name, names)}")
        for block in blocks:
            yield partial(self._block, block, names, types)

    def _block(self, block: Block, names: list[str], types: dict[str, pa.DataType]) -> pa.RecordBatch:
        # At least one column is parsed, because rows are counted by it.
        texts = self._texts(block, names, list(types) or names[:1])
        arrays = []
        for name, type in types.items():
            try:
                arrays.append(convert(texts.column(name), type))
            except Misfit as error:
                kind = name_of_type(type)
                declared = name in dict(self.options.types or ())
                if declared and kind == "time" and error.value.lstrip("-").isdecimal():
                    raise BlockError(f"column {name!r}: {error}; {number_as_time(name)}", error.row) from None
                told = (
                    f"as types= says; pass types={{{name!r}: 'str'}} to read the column as text"
                    if declared
                    else f"as in the first rows; pass types={{{name!r}: 'str'}} to read the column as text"
                    + (f", or types={{{name!r}: 'float'}}" if kind == "int" else "")
                )
                raise BlockError(f"column {name!r}: {error}, expected {kind} {told}", error.row) from None
        return pa.RecordBatch.from_arrays(arrays, names=list(types)) if types else texts

    def _texts(self, block: Block, names: list[str], wanted: Sequence[str]) -> pa.RecordBatch:
        """Return the wanted columns of a block as text; an empty field without quotes is null."""
        self._check(block, names)
        return self._read(block.data, names, wanted)

    def _read(self, data: bytes, names: list[str], wanted: Sequence[str]) -> pa.RecordBatch:
        data, parse = self._split(data)
        read = pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names)
        text = pacsv.ConvertOptions(
            include_columns=list(wanted),
            column_types={name: pa.utf8() for name in wanted},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,  # "" and an absent value stay apart
            check_utf8=False,  # checked already
        )
        try:
            return one_batch(pacsv.read_csv(pa.BufferReader(data), read, parse, text))
        except pa.ArrowInvalid as error:
            told = first_line(error)
            found = _ROW.search(told)
            raise BlockError(_ROW.sub("", told), int(found[1]) - 1 if found else None) from error

    def _split(self, data: bytes) -> tuple[bytes, pacsv.ParseOptions]:
        """Return the text as Arrow can split it, and how."""
        if not data.endswith(b"\n"):
            data += b"\n"  # At the end of its input, Arrow takes an empty field behind a quoted one for a quoted field.
        separator = self._separator
        if not self._single:
            separator = next((byte for byte in _SPARE if byte not in data and byte != self._quote), b"")
            if not separator:
                raise BlockError(
                    f"text with delimiter {self.delimiter!r} contains too many control characters; check that the file is "
                    "text",
                    None,
                )
            if self._quote and self._quote in data:
                token = re.compile(
                    rb"(?:(?<=\n)|(?<=%s)|\A)%s|%s" % ((e := re.escape(self._separator)), self._field, e)
                )
                data = token.sub(lambda m: separator if m[0] == self._separator else m[0], data)
            else:
                data = data.replace(self._separator, separator)
        if data.startswith(b"\xef\xbb\xbf"):
            data = b"\n" + data  # Arrow would drop what is a letter here: the mark of the file is gone already.
        quote = self._quote.decode() or False
        return data, pacsv.ParseOptions(delimiter=separator.decode(), quote_char=quote, newlines_in_values=True)

    # ---- what Arrow would read without a word --------------------------------------------------------------

    def _check(self, block: Block, names: list[str] | None) -> None:
        """Refuse bytes that are not text, quotes that never close and lines that end with CR alone."""
        data = block.data
        try:
            check_text(block, self.options)
        except NotText as error:
            raise BlockError(str(error), self._rows_before(data, error.at, names)) from None
        if self._quote and self._quote in data:
            self._check_quotes(block, names)
        if b"\r" in data and data.count(b"\r") != data.count(b"\r\n") + data.endswith(b"\r"):
            plain = self._unquoted(data)
            at = re.search(rb"\r(?!\n|\Z)", plain)
            if at:
                row = plain.count(b"\n", 0, at.start()) if names else 0
                raise BlockError(
                    "a line ends with CR alone; end each line with LF or CR LF, and put a CR that belongs to a value inside "
                    "quotes",
                    row,
                )

    def _check_quotes(self, block: Block, names: list[str] | None) -> None:
        whole = block.data if block.data.endswith(b"\n") else block.data + b"\n"
        if not block.last and self._line.match(whole):
            return  # Blocks but the last end with a line, and a malformed line is a block of its own.
        found = self._lines.match(whole)
        end = found.end() if found else 0
        if end == len(whole):
            return
        loose = self._loose_lines.match(whole, end)
        row = self._rows_before(block.data, end, names)
        quote = self._quote.decode()
        if loose and loose.end() > end:
            told = f"text follows a closing quote ({quote}), expected the delimiter or the end of the line"
        else:
            told = f"a quote ({quote}) opens in this row and never closes, expected it before the end of the file"
        raise BlockError(f"{told}; if quotes are ordinary characters in this file, pass quote=False", row)

    def _rows_before(self, data: bytes, at: int, names: list[str] | None) -> int | None:
        """Return how many rows end before a byte of a block, or None if they cannot be counted."""
        if names is None:
            return 0
        end = data.rfind(b"\n", 0, at) + 1
        try:
            return self._read(data[:end], names, names[:1]).num_rows if data[:end].strip() else 0
        except BlockError:
            return None
