"""The errors a user may meet. A message is one sentence: what was met, what was expected, what is nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "BudgetError",
    "CtrboxError",
    "DataError",
    "DeviceError",
    "PlanError",
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


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of ``names`` that is most like `name`, or None when none is like it."""
    known = list(dict.fromkeys(names))
    name = name[:100]  # it may be a client's: half a million letters took 0.6 s
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not found:
        lower = {known_name.lower(): known_name for known_name in known}
        found = [lower[match] for match in difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)]
    return found[0] if found else None


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``"; nearest: 'query'"`` for the name most like `name`, or ``""`` when none is like it."""
    found = closest(name, names)
    return "" if found is None else f"; nearest: {found!r}"


def lacking(missing: Sequence[str], names: Iterable[str]) -> str:
    """Return ``"column 'query'; nearest: 'queri'; also 'hour', 'city'"``: all that is missing, so that one answer is enough."""
    first, *others = missing
    shown = ", ".join(map(repr, others[:10])) + (f" and {len(others) - 10:,} more" if len(others) > 10 else "")
    return f"column {first!r}{nearest(first, names)}" + (f"; also {shown}" if others else "")


def no_attribute(owner: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for an attribute that ``owner`` lacks, with the name most like it among ``names``."""
    # Python and libraries ask for names such as __deepcopy__ all the time; those need no advice.
    advice = "" if name.startswith("_") else nearest(name, (known for known in names if not known.startswith("_")))
    return AttributeError(f"{owner} has no attribute {name!r}{advice}", name=name)


def no_argument(owner: str, given: Iterable[str], names: Iterable[str]) -> PlanError:
    """Return the error for keyword arguments that ``owner`` does not take, with the name most like the first."""
    first = next(iter(given))
    known = [name for name in names if name != "self"]
    return PlanError(f"{owner} has no argument {first!r}{nearest(first, known)}; it has {', '.join(known)}")
