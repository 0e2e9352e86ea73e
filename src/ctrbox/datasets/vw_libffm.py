"""Reads Vowpal Wabbit and libffm text: the tokens of a line become list columns, one for each namespace or field.

Both parse a block with a handful of Arrow splits and NumPy gathers; no Python runs per line unless a block
holds a bad one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.datasets.public_text_logs import OnError, Paths, TextLog, Unparsed, find, head, shown
from ctrbox.errors import DataError

DEFAULT = "default"  # the column of VW's namespace without a name
HEAD_LINES = 1_000

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\Z", re.ASCII)
_FIELD = re.compile(r"[0-9]{1,9}\Z", re.ASCII)

Ints = npt.NDArray[np.int64]


def _lines(block: bytes) -> pa.Array:
    """Return the non-blank lines of a block, without line ends and without blanks at both ends."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unparsed("not UTF-8") from error
    if "\t" in text or "\r" in text:
        text = text.replace("\t", " ").replace("\r", "")
    lines = pc.split_pattern(pa.array([text], pa.large_string()), "\n").flatten().cast(pa.string())
    return lines.filter(pc.not_equal(pc.utf8_trim(lines, " "), ""))


def _split(values: pa.Array, pattern: str, **options: Any) -> tuple[pa.Array, Ints]:
    """Return (parts, offsets): the parts of value i are offsets[i] … offsets[i+1]; there is always at least one."""
    lists = pc.split_pattern(values, pattern, **options)
    return lists.flatten(), np.asarray(lists.offsets, np.int64) - lists.offsets[0].as_py()


def _owner(offsets: Ints) -> Ints:
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _floats(values: pa.Array) -> pa.Array:
    try:
        numbers = values.cast(pa.float64())
    except pa.ArrowInvalid:
        # Arrow knows no leading plus, and "+1" is how many tools write a click.
        numbers = pc.replace_substring_regex(values, r"^\+([0-9.])", r"\1").cast(pa.float64())
    if not pc.all(pc.is_finite(numbers)).as_py() and len(numbers):
        raise Unparsed("a number is not finite")
    return numbers


def _binary(labels: pa.Array) -> pa.Array:
    """Convert the labels -1, 0 and 1 to 0, 0 and 1."""
    if len(labels) and pc.any(pc.invert(pc.is_in(labels, pa.array([-1.0, 0.0, 1.0, None])))).as_py():
        raise Unparsed("a label is not -1, 0 or 1")
    return pc.if_else(pc.greater(labels, 0.0), 1.0, 0.0)


def _binary_complaint(label: str) -> str | None:
    return None if float(label) in (-1.0, 0.0, 1.0) else f"label is {label!r}; binary=True expects -1, 0 or 1"


def _columns(rows: int, groups: int, row: Ints, group: Ints, names: pa.Array, weights: pa.Array) -> list[pa.Array]:
    """Return, for every group, the list column of names and that of weights, from tokens in the order of the lines."""
    # One stable sort for all groups; 16-bit numbers are sorted by radix.
    order = np.argsort(group.astype(np.uint16) if groups < 1 << 16 else group, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=groups))])
    row, names, weights = row[order], names.take(pa.array(order)), weights.take(pa.array(order))
    columns = []
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        counts = np.bincount(row[start:stop], minlength=rows)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        columns.append(pa.ListArray.from_arrays(offsets, names.slice(start, stop - start)))
        columns.append(pa.ListArray.from_arrays(offsets, weights.slice(start, stop - start)))
    return columns


def _list_fields(names: Sequence[str]) -> list[pa.Field]:
    fields = []
    for name in names:
        fields.append(pa.field(name, pa.list_(pa.string()), nullable=False))
        fields.append(pa.field(f"{name}.weights", pa.list_(pa.float64()), nullable=False))
    return fields


def _unknown(what: str, known: Sequence[str]) -> str:
    listed = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "") if known else "none"
    return (
        f"{what} is unknown: it was not named and does not occur in the first lines, from which the names are "
        f"taken (known: {listed})"
    )


class VowpalWabbit:
    """``label importance 'tag|namespace:scale feature:value feature |other feature``

    A base (initial prediction) after the importance must be 0, because no column could hold it.
    """

    header = None

    def __init__(self, namespaces: Sequence[str], columns: Sequence[str], binary: bool) -> None:
        self.schema = pa.schema(
            [
                pa.field("label", pa.float64()),
                pa.field("weight", pa.float64(), nullable=False),
                pa.field("tag", pa.string()),
                *_list_fields(columns),
            ]
        )
        self._namespaces = tuple(namespaces)
        self._known = pa.array(["" if n == DEFAULT else n for n in namespaces], pa.string())
        self._binary = binary

    def parse(self, block: bytes) -> pa.RecordBatch:
        lines = _lines(block)
        n = len(lines)
        sections, at = _split(lines, "|")
        if n and int(np.diff(at).min()) < 2:
            raise Unparsed("a line has no |")
        heads = np.zeros(len(sections), bool)
        heads[at[:-1]] = True
        label, weight, tag = self._heads(sections.take(pa.array(at[:-1])))
        bodies = sections.filter(pa.array(~heads))
        line = _owner(at)[~heads]

        tokens, at = _split(bodies, " ")
        owner = _owner(at)
        first = np.zeros(len(tokens), bool)
        first[at[:-1]] = True
        names, scales, _ = _values(tokens.take(pa.array(at[:-1])), reverse=False)
        group = pc.index_in(names, self._known)
        if group.null_count:
            raise Unparsed("an unknown namespace")
        kept = np.flatnonzero(~first & ~np.asarray(pc.equal(tokens, "")))
        owner = owner[kept]
        features, weights, _ = _values(tokens.take(pa.array(kept)), reverse=True)
        weights = pa.array(np.asarray(weights) * np.asarray(scales)[owner])
        groups = np.asarray(group, np.int64)[owner]
        lists = _columns(n, len(self._namespaces), line[owner], groups, features, weights)
        return pa.RecordBatch.from_arrays([label, weight, tag, *lists], schema=self.schema)

    def _heads(self, heads: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Parse the part before the first bar. A tag touches the bar, or begins with an apostrophe."""
        parts = pc.extract_regex(heads, _HEAD)
        if parts.null_count:
            raise Unparsed("a label section")
        number, importance, base, quoted, touching = (pc.struct_field(parts, k) for k in ("l", "w", "b", "q", "t"))
        none = pa.scalar(None, pa.string())
        label = _floats(pc.if_else(pc.equal(number, ""), none, number))
        weight = _floats(pc.if_else(pc.equal(importance, ""), "1", importance))
        if pc.any(pc.not_equal(_floats(pc.if_else(pc.equal(base, ""), "0", base)), 0.0)).as_py():
            raise Unparsed("a base is not 0")
        tag = pc.if_else(pc.equal(quoted, ""), touching, quoted)
        tag = pc.if_else(pc.equal(tag, ""), none, tag)
        return (_binary(label) if self._binary else label), weight, tag

    def complaint(self, line: bytes) -> str | None:
        try:
            text = line.decode("utf-8").replace("\t", " ").replace("\r", "")
        except UnicodeDecodeError as error:
            return f"byte {error.start} is {line[error.start]:#04x}; expected UTF-8"
        label, *bodies = text.split("|")
        if not bodies:
            return f"found {shown(line)}; expected 'label |namespace feature ...'"
        found = _HEAD_PYTHON.match(label)
        if found is None:
            return f"the text before the first | is {label!r}; expected [label [importance]] ['tag]"
        if found["b"] and float(found["b"]) != 0:
            return (
                f"the base (initial prediction) after label and importance is {found['b']!r}; expected 0 or none, because "
                "initial predictions are not supported"
            )
        if self._binary and found["l"]:
            problem = _binary_complaint(found["l"])
            if problem:
                return problem
        for body in bodies:
            spec, *features = body.split(" ")
            name, colon, scale = spec.partition(":")
            if colon and not _NUMBER.match(scale):
                return f"namespace {name!r} has the scale {scale!r}; expected a number"
            if (name or DEFAULT) not in self._namespaces:
                return _unknown(f"namespace {name or DEFAULT!r}", self._namespaces)
            for feature in features:
                name, colon, value = feature.rpartition(":")
                if colon and not _NUMBER.match(value):
                    return f"feature {feature!r} has the value {value!r}; expected a number"
        return None


_DIGITS = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
# [label [importance [base]]] ['tag] or a tag that touches the bar, which may look like anything but a blank.
_HEAD = (
    rf"^ *(?:(?P<l>{_DIGITS}) +(?:(?P<w>{_DIGITS}) +(?:(?P<b>{_DIGITS}) +)?)?)?"
    r"(?:'(?P<q>[^ ]*) *|(?P<t>[^ ]*))$"
)
_HEAD_PYTHON = re.compile(_HEAD.removesuffix("$") + r"\Z", re.ASCII)


def _values(tokens: pa.Array, *, reverse: bool) -> tuple[pa.Array, pa.Array, Ints]:
    """``name:number`` → (names, numbers with 1 for none, parts per token)."""
    parts, at = _split(tokens, ":", max_splits=1, reverse=reverse)
    counts = np.diff(at)
    names = parts.take(pa.array(at[:-1]))
    numbers = np.ones(len(tokens))
    valued = np.flatnonzero(counts == 2)
    if len(valued):
        numbers[valued] = np.asarray(_floats(parts.take(pa.array(at[:-1][valued] + 1))))
    return names, pa.array(numbers), counts


class LibFfm:
    """``label field:index:value field:index:value``"""

    header = None

    def __init__(self, fields: int, binary: bool) -> None:
        self._fields = [f"f{k}" for k in range(fields)]
        self.schema = pa.schema([pa.field("label", pa.float64(), nullable=False), *_list_fields(self._fields)])
        self._binary = binary

    def parse(self, block: bytes) -> pa.RecordBatch:
        lines = pc.utf8_trim(_lines(block), " ")
        n = len(lines)
        tokens, at = _split(lines, " ")
        first = np.zeros(len(tokens), bool)
        first[at[:-1]] = True
        label = _floats(tokens.take(pa.array(at[:-1])))
        kept = np.flatnonzero(~first & ~np.asarray(pc.equal(tokens, "")))
        row = _owner(at)[kept]
        parts, at = _split(tokens.take(pa.array(kept)), ":")
        if np.any(np.diff(at) != 3):
            raise Unparsed("a token is not field:index:value")
        start = at[:-1]
        fields = parts.take(pa.array(start))
        # Arrow also reads 0x1F as 31.
        if (b"0x" in block or b"0X" in block) and not pc.all(pc.match_substring_regex(fields, "^[0-9]*$")).as_py():
            raise Unparsed("a field is not written in decimal digits")
        field = np.asarray(fields.cast(pa.int64()), np.int64)
        if len(field) and (field.min() < 0 or field.max() >= len(self._fields)):
            raise Unparsed("an unknown field")
        index = parts.take(pa.array(start + 1))
        weights = _floats(parts.take(pa.array(start + 2)))
        lists = _columns(n, len(self._fields), row, field, index, weights)
        label = _binary(label) if self._binary else label
        return pa.RecordBatch.from_arrays([label, *lists], schema=self.schema)

    def complaint(self, line: bytes) -> str | None:
        try:
            label, *tokens = line.decode("utf-8").replace("\t", " ").replace("\r", "").strip(" ").split(" ")
        except UnicodeDecodeError as error:
            return f"byte {error.start} is {line[error.start]:#04x}; expected UTF-8"
        if not _NUMBER.match(label):
            return f"label is {label!r}; expected a number"
        if self._binary:
            problem = _binary_complaint(label)
            if problem:
                return problem
        for token in tokens:
            parts = token.split(":")
            if not token:
                continue
            if len(parts) != 3 or not _FIELD.match(parts[0]) or not _NUMBER.match(parts[2]):
                return f"found {token!r}; expected field:index:value"
            if int(parts[0]) >= len(self._fields):
                return _unknown(f"field {parts[0]}", self._fields)
        return None


def vw(
    path: Paths,
    *,
    namespaces: Sequence[str] | None = None,
    prefix: str = "",
    binary: bool = False,
    on_error: OnError = "raise",
) -> TextLog:
    """Read a Vowpal Wabbit text log.

    The columns are `row` (int64), `label` (float64, null if a line has none), `weight` (float64, the importance, or 1 if a
    line has none), `tag` (string), and two columns for every namespace, which are lists of equal length: ``<ns>``
    list<string> with the names of the features, and ``<ns>.weights`` list<float64> with their values times the scale of the
    namespace. The namespace without a name is called "default". A line with an initial prediction (the "base" after label and
    importance) other than 0 is a bad line.

    `namespaces` names the namespaces; by default, they are those of the first thousand lines. A namespace that first occurs
    later raises a `DataError`. `prefix` is put before the column names of namespaces. `binary=True` converts the labels -1
    and 1 to 0 and 1.
    """
    paths = find(path)
    if namespaces is None:
        met: dict[str, None] = {}
        for line in head(paths, HEAD_LINES):
            for section in line.decode("utf-8", "replace").split("|")[1:]:
                met[re.split("[: \t\r]", section, maxsplit=1)[0] or DEFAULT] = None
        namespaces = list(met)
    columns = [prefix + name for name in namespaces]
    taken = {"row", "label", "weight", "tag"}
    for name in columns:
        if name in taken or f"{name}.weights" in taken:
            raise DataError(f"{paths[0]}: two columns would be called {name!r}; choose another prefix")
        taken |= {name, f"{name}.weights"}
    return TextLog(paths, VowpalWabbit(namespaces, columns, binary), on_error)


def libffm(path: Paths, *, fields: int | None = None, binary: bool = False, on_error: OnError = "raise") -> TextLog:
    """Read a libffm text log.

    The columns are `row` (int64), `label` (float64) and two columns for every field k, which are lists of equal length:
    ``f<k>`` list<string> with the indices as text, and ``f<k>.weights`` list<float64> with the values. `fields` is the number
    of fields; by default, it is the number in the first thousand lines, and a field that first occurs later raises a
    `DataError`. `binary=True` converts the labels -1 and 1 to 0 and 1.
    """
    paths = find(path)
    if fields is None:
        numbers = [
            int(token.partition(b":")[0])
            for line in head(paths, HEAD_LINES)
            for token in line.split()[1:]
            if _FIELD.match(token.partition(b":")[0].decode("utf-8", "replace"))
        ]
        fields = max(numbers, default=-1) + 1
    return TextLog(paths, LibFfm(fields, binary), on_error)
