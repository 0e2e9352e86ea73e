"""Names the kinds of keys: what the keys of a field are hashes of.

The same value has another key as a whole number, as a string and in the text of examples, so a model that is given the wrong one
answers as if it had never seen the value. Models therefore store the kind of each field, and loaders compare it with the plan. A
file of an earlier release has no kinds ("" for each field), and is not compared. The names are part of the file formats
(native/core/ffm/key_kinds.h).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctrbox import _native

# By the name of a kind in files: what messages call it.
TOLD: dict[str, str] = _native.KEY_KINDS


def joined(first: str, second: str) -> str:
    """Return the kind of a field that learned from keys of both kinds.

    Text wins, because no plan makes such keys; of two other kinds the result is unknown.
    """
    if "text" in (first, second):
        return "text"
    return first if not second or first == second else second if not first else ""


def mismatch(trained: Mapping[str, Any], planned: Mapping[str, str]) -> str:
    """Describe the first field whose kind in a plan differs from that in a model; return "" if there is none."""
    for name, kind in trained.items():
        other = planned.get(name, "")
        if isinstance(kind, str) and kind in TOLD and other and kind != other:
            return f"field {name!r} was trained on {TOLD[kind]}, but the plan makes {TOLD[other]}"
    return ""


def checked_kinds(kinds: object, fields: Sequence[str]) -> list[str]:
    """Return the kinds that a file has for these fields, or "" for each if it has none. Raise ValueError if they are damaged."""
    if kinds is None:
        return [""] * len(fields)
    if not isinstance(kinds, list) or len(kinds) != len(fields) or any(k != "" and k not in TOLD for k in kinds):
        raise ValueError(
            f'its list of kinds of keys is damaged; expected one for each of its {len(fields)} fields: {", ".join(TOLD)} or ""'
        )
    return kinds
