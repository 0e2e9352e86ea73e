"""Defines the errors that users may see.

A message is one sentence that says what was found, what was expected, and the nearest known name.
"""

from __future__ import annotations

__all__ = [
    "BudgetError",
    "CtrboxError",
    "DataError",
    "DeviceError",
    "PlanError",
    "SignatureError",
    "SourceError",
    "TrainError",
    "WriteError",
]


class CtrboxError(Exception):
    """The base class of all errors that CTRBox raises on purpose."""


class PlanError(CtrboxError):
    """A plan cannot be built: unknown column, wrong type, a null that nobody fills."""

    written_at: tuple[str, int] | None = None  # file and line of the expression that is wrong, where that is known


class DataError(CtrboxError):
    """The rows are readable but a value breaks a promise; the message names file and row."""


class SignatureError(DataError):
    """A published model is not signed by a trusted key, or is not what was signed; the message says which."""


class SourceError(CtrboxError):
    """A source cannot be opened or read; the message names the file."""


class CompactionError(SourceError):
    """The background compaction of a Sparse Table failed; raised by the next checkpoint, which is whole all the same."""


class WriteError(CtrboxError, OSError):
    """A file cannot be written; the message names it, and the bytes where the disk is full."""


class BudgetError(CtrboxError):
    """Something would outgrow the memory it was given; the message states what it holds and the budget."""


class DeviceError(CtrboxError):
    """A GPU cannot be used or failed: nothing there, something not installed, out of its memory, a kernel that broke."""


class TrainError(CtrboxError):
    """Training cannot go on or begin: a constant label, an empty split, a value that is not a number."""
