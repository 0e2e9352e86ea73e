"""Reads the recorded files of a run folder and checks every value, because the files may be damaged.

A number may be null, because it was not finite when it was written; it is then None. A text in place of a number, an
object in place of a list, or a truncated file is one error that names the file and the place in it. config.json and
summary.json are sealed (sealed_json.py); metrics.jsonl is not, because it grows during the run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

from ctrbox.errors import DataError, SourceError
from ctrbox.files.sealed_json import read_sealed
from ctrbox.files.untrusted_files import read_regular

MOST_LINES = 1 << 30  # bytes of metrics.jsonl
MOST_PICTURE = 64 << 20


@dataclass(frozen=True)
class Fields:
    """A JSON object and its place in a file. Every method that reads a value says what it expects."""

    values: dict[str, Any]
    file: Path
    path: str = ""

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, value, "a number")
        try:
            found = float(value)
        except OverflowError:
            self._refuse(name, value, "a number")
        return found if math.isfinite(found) else None

    def count(self, name: str) -> int | None:
        """Return a whole number of 0 or more, or None."""
        found = self.number(name)
        if found is None:
            return None
        if found < 0 or found != int(found):
            self._refuse(name, self.values[name], "a count")
        return int(found)

    def share(self, name: str) -> float | None:
        """Return a number from 0 to 1, or None."""
        found = self.number(name)
        if found is not None and not 0 <= found <= 1:
            self._refuse(name, self.values[name], "a share from 0 to 1")
        return found

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            self._refuse(name, value, "a text")
        return value

    def fields(self, name: str) -> Fields:
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            self._refuse(name, value, "an object")
        return Fields(value or {}, self.file, self._at(name))

    def each(self, name: str) -> list[Fields]:
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self._refuse(name, value, "a list")
        for number, item in enumerate(value):
            if not isinstance(item, dict):
                self._refuse(f"{name}[{number}]", item, "an object")
        return [Fields(item, self.file, f"{self._at(name)}[{number}]") for number, item in enumerate(value)]

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def _refuse(self, name: str, value: Any, expected: str) -> NoReturn:
        raise DataError(f"{self.file}: {self._at(name)} is {_shown(value)}; expected {expected}")


@dataclass(frozen=True)
class Recorded:
    """The recorded files of a run folder."""

    folder: Path
    config: Fields
    summary: Fields
    metrics: list[Fields]
    picture: bytes | None  # plan.svg


def read_run(folder: Path) -> Recorded:
    """Read everything that a report needs. Raise a `SourceError` if the folder or a file is missing, and a `DataError`
    if a file is damaged.
    """
    if not folder.is_dir():
        raise SourceError(f"there is no run folder {folder}")
    config = _sealed(folder / "config.json")
    if not (folder / "summary.json").is_file():
        raise SourceError(
            f"{folder} has no summary.json, because its run has not finished; resume the run until it ends"
        )
    summary = _sealed(folder / "summary.json")
    return Recorded(folder, config, summary, list(read_lines(folder / "metrics.jsonl")), _picture(folder / "plan.svg"))


def _sealed(file: Path) -> Fields:
    return Fields(read_sealed(file, "run folder"), file)


def read_lines(file: Path) -> Iterator[Fields]:
    """Yield the objects of a .jsonl file. Empty lines are skipped."""
    for number, line in enumerate(_read(file).split("\n"), 1):
        if line.strip():
            yield _parse(line, file, f"{file}:{number}")


def _read(file: Path) -> str:
    try:
        return read_regular(file, MOST_LINES).decode("utf-8")
    except FileNotFoundError as error:
        raise SourceError(
            f"there is no {file}, so the run folder is not complete; resume the run, or restore the folder from a copy"
        ) from error
    except OSError as error:
        raise SourceError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is damaged: byte {error.start:,} is not UTF-8") from error


def _parse(source: str, file: Path, where: str) -> Fields:
    try:
        # NaN and Infinity are no JSON; what they stand for here is a value nobody has.
        found = json.loads(source, parse_constant=lambda name: None)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is damaged: {error.msg} at character {error.pos:,}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(
            f"{where} is damaged: it does not contain what a run writes ({type(error).__name__})"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{where} holds {_shown(found)}; expected a JSON object")
    return Fields(found, file)


def _picture(file: Path) -> bytes | None:
    """plan.svg, if it is one. A run may have none: not every plan can be drawn."""
    try:
        found = read_regular(file, MOST_PICTURE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"cannot read {file}: {error.strerror or error}") from error
    try:
        root = ElementTree.fromstring(found)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError(f"{file} is damaged: {error}") from error
    if root.tag.rpartition("}")[2] != "svg":
        raise DataError(f"{file} is not a drawing: its root element is <{root.tag}>; expected <svg>")
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    shown = repr(value) if not isinstance(value, int) or isinstance(value, bool) else "a very large number"
    if isinstance(value, int) and abs(value) < 10**18:
        shown = str(value)
    return shown if len(shown) <= 60 else shown[:59] + "…"
