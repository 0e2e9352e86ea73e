"""Describes the encoder that made a vector file, so that whoever encodes further items can tell whether theirs is the same.

A vector file and a published version hold these facts as JSON: the names of the encoder, of its module and of its function
`prepare`, and the checksum of its weights. They hold no code, and nobody imports what they name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ctrbox.errors import DataError

MOST_CHARACTERS = 1000  # of one fact
IMAGE, TEXT = "image", "text"
SAME = {"kind": "items", "name": "name", "module": "module", "prepare": "prepare", "weights": "SHA-256 of the weights"}


@dataclass(frozen=True)
class EncodedBy:
    """The facts that identify an encoder: two encoders with equal facts give equal vectors."""

    name: str
    kind: str  # IMAGE or TEXT
    module: str  # name of the class of the torch module
    prepare: str  # what makes a tensor of an image
    weights: str  # SHA-256 of names, types, shapes and bytes of all weights
    device: str  # type of the device that computed the vectors, such as cpu
    torch: str  # version

    @staticmethod
    def read(found: Any, where: str) -> EncodedBy:
        """Return the facts that a file holds; raise `DataError` if they are no facts of an encoder."""
        names = [field.name for field in fields(EncodedBy)]
        if not isinstance(found, Mapping) or set(found) != set(names):
            raise DataError(
                f"{where} is damaged: it does not describe the encoder that made its vectors; encode the items again"
            )
        for name in names:
            value = found[name]
            if not isinstance(value, str) or len(value) > MOST_CHARACTERS or not value.isprintable():
                raise DataError(
                    f"{where} is damaged: the {name} of its encoder is not a short text; encode the items again"
                )
        if found["kind"] not in (IMAGE, TEXT):
            raise DataError(f"{where} is damaged: its encoder takes items of kind {found['kind'][:20]!r}")
        return EncodedBy(**found)

    def facts(self) -> dict[str, str]:
        return asdict(self)

    @property
    def same(self) -> tuple[tuple[str, str], ...]:
        """Return the facts that equal encoders share."""
        return tuple((name, getattr(self, name)) for name in SAME)

    def differences(self, other: EncodedBy) -> list[str]:
        """Return a phrase for each fact in which ``other`` differs; empty if it is the same encoder."""
        pairs = [(told, getattr(self, name), getattr(other, name)) for name, told in SAME.items()]
        return [
            f"{told} is {_brief(theirs)}, expected {_brief(mine)}" for told, mine, theirs in pairs if mine != theirs
        ]

    def rounding(self, other: EncodedBy) -> str:
        """Return why vectors of ``other`` may differ from these in their last bits; "" if they do not."""
        if self.device != other.device:
            return f"the published vectors were computed on {self.device}, but this process computes vectors on {other.device}"
        if self.torch != other.torch:
            return (
                f"the published vectors were computed with torch {self.torch}, but this process has torch {other.torch}"
            )
        return ""


def _brief(value: str) -> str:
    return repr(value if len(value) <= 80 else value[:16] + "…")
