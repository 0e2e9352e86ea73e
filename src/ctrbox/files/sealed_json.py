"""Reads and writes JSON files that hold a SHA-256 of their own contents, so that damage is detected.

{"format": 1, …, "seal": "…"}       a person can read and compare such files, but a file that was edited is refused
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctrbox.errors import DataError, SourceError
from ctrbox.files.untrusted_files import read_regular

FORMAT = 1
MOST_BYTES = 64 << 20


def sealed(value: Mapping[str, Any]) -> str:
    """Return the text of an object with its seal. NaN and infinities become null."""
    whole = {"format": FORMAT, **tidy(value)}
    return json.dumps({**whole, "seal": _seal(whole)}, indent=1)


def read_sealed(path: Path, what: str) -> dict[str, Any]:
    """Return the object in a sealed file; if the file is missing, unreadable or damaged, raise an error that says why.

    ``what``: what kind of folder the file belongs to, for the error.
    """
    try:
        text = read_regular(path, MOST_BYTES)
    except FileNotFoundError:
        raise SourceError(f"{path.parent} is not a {what}: {path.name} is missing") from None
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    return unsealed(text, str(path), what)


def unsealed(text: bytes, shown: str, what: str) -> dict[str, Any]:
    """Return the object that a sealed text holds. ``shown``: where the text was read; ``what``: the folder that it belongs to."""
    try:
        found = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shown} is damaged: it is not valid JSON ({error}); restore the file from a copy") from error
    if not isinstance(found, dict) or "format" not in found or "seal" not in found:
        raise DataError(f"{shown} is not a file of a CTRBox {what}, or it is damaged: it has no format or no checksum")
    seal = found.pop("seal")
    if seal != _seal(found):
        raise DataError(f"{shown} is damaged: its checksum does not match its contents; restore the file from a copy")
    if found["format"] != FORMAT:
        raise DataError(
            f"{shown} has format {found['format']!r}, but this version of CTRBox reads format {FORMAT}; use the version that "
            "wrote it"
        )
    return found


def _seal(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return a value for JSON: a number of NumPy becomes one of Python, and NaN and infinities become None."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tidy(value: Any) -> Any:
    """Return a copy of nested dicts and lists in which every value is as `plain` returns it."""
    if isinstance(value, Mapping):
        return {str(k): tidy(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [tidy(v) for v in value]
    return plain(value)
