"""Defines the options of text files, as the user of a view gives them. Options that are not given are None."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ctrbox.arguments.names import nearest
from ctrbox.errors import PlanError
from ctrbox.views.fields_of_delimited_text import DECLARED

FOR_JSON = ("encoding", "types")


@dataclass(frozen=True)
class TextOptions:
    """The text options of `View`.

    ``delimiter`` separates fields and may have several characters. ``header`` is True when the first line names the
    columns and False when it is a row. ``names`` are the names of all columns. ``quote`` is one character, or False
    if quotes are ordinary characters. ``types`` maps columns to "int", "float", "bool", "time" or "str".
    """

    delimiter: str | None = None
    header: bool | None = None
    names: tuple[str, ...] | None = None
    encoding: str | None = None
    quote: str | bool | None = None
    types: tuple[tuple[str, str], ...] | None = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given, as plain JSON values and as `checked_options` takes them."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        plain = {name: value for name, value in found.items() if value is not None}
        if self.names is not None:
            plain["names"] = list(self.names)
        if self.types is not None:
            plain["types"] = dict(self.types)
        return plain

    def shown(self) -> str:
        """Return the options that were given as they would be written in Python."""
        return ", ".join(f"{name}={value!r}" for name, value in self.given().items())


def checked_options(
    *,
    delimiter: Any = None,
    header: Any = None,
    names: Any = None,
    encoding: Any = None,
    quote: Any = None,
    types: Any = None,
) -> TextOptions:
    """Check the text options of a view; a wrong one is a `PlanError` that says what was expected."""
    if delimiter is not None:
        _check_delimiter(delimiter)
    if header is not None and not isinstance(header, bool):
        raise PlanError(f"header must be True (the first line names the columns) or False, got {header!r}")
    if encoding is not None:
        _check_encoding(encoding)
    if quote is not None and quote is not False:
        if not isinstance(quote, str) or len(quote) != 1 or not quote.isascii() or quote in "\r\n\0":
            raise PlanError(f"quote must be one ASCII character, or False for none, got {quote!r}")
        if delimiter is not None and quote in delimiter:
            raise PlanError(
                f"quote {quote!r} is also part of the delimiter {delimiter!r}; choose another quote= or delimiter="
            )
    kept = None if names is None else _checked_names(names)
    return TextOptions(delimiter, header, kept, encoding, quote, None if types is None else _checked_types(types, kept))


def _check_delimiter(delimiter: Any) -> None:
    if not isinstance(delimiter, str) or not 1 <= len(delimiter) <= 16 or set(delimiter) & set("\r\n\0"):
        raise PlanError(
            f"delimiter must be a text of 1 to 16 characters without line ends, such as ';', '\\t' or '::', "
            f"got {delimiter!r}"
        )


def _check_encoding(encoding: Any) -> None:
    try:
        known = isinstance(encoding, str) and b"a".decode(encoding, "ignore") is not None
    except (LookupError, ValueError, UnicodeError):
        known = False
    if not known:
        raise PlanError(f"encoding must be one that Python knows, such as 'latin-1' or 'utf-16', got {encoding!r}")


def _checked_names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise PlanError(f"names must be a list of the names of all columns, got {names!r}")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str) or not name:
            raise PlanError(f"names must be strings that are not empty, got {name!r}")
        if found.count(name) > 1:
            raise PlanError(f"names contains {name!r} twice; rename one of the two columns")
    if not found:
        raise PlanError("names= must list at least one column, got an empty list")
    return found


def _checked_types(types: Any, names: tuple[str, ...] | None) -> tuple[tuple[str, str], ...]:
    if not isinstance(types, Mapping):
        raise PlanError(f"types must map columns to types, such as types={{'zip': 'str'}}, got {types!r}")
    for column, type in types.items():
        if not isinstance(column, str) or (names is not None and column not in names):
            raise PlanError(
                f"types= names the column {column!r}, which is not in names={nearest(str(column), names or ())}"
            )
        if not isinstance(type, str) or type not in DECLARED:
            raise PlanError(f"the type of column {column!r} must be one of {', '.join(DECLARED)}, got {type!r}")
    return tuple(types.items())
