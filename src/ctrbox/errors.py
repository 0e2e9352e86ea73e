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
    """A plan or an argument is wrong: an unknown column, a wrong type, a value out of range, or a null without a fill value."""

    written_at: tuple[str, int] | None = None  # file and line of the expression that is wrong, where that is known


class DataError(CtrboxError):
    """The data can be read, but a value is not what was expected. The message names the file and the row."""


class SignatureError(DataError):
    """A published model is not signed by a trusted key, or was changed after it was signed. The message says which."""


class SourceError(CtrboxError):
    """A source cannot be opened or read. The message names the file."""


class CompactionError(SourceError):
    """The background compaction of a Sparse Table failed. The next checkpoint raises this error after it has been written."""


class WriteError(CtrboxError, OSError):
    """A file cannot be written. The message names the file and, if the disk is full, the number of bytes."""


class BudgetError(CtrboxError):
    """A table, a view or another part needs more memory than its budget. The message names both sizes."""


class DeviceError(CtrboxError):
    """A GPU or a cluster cannot be used: it does not exist, a package is missing, its memory is used up, or a kernel failed."""


class TrainError(CtrboxError):
    """Training cannot begin or continue: all labels are equal, no rows are left, or a value is not a number."""
