"""Counts, for each cast and JSON path of a plan, the values that it took and those that it could not convert.

A value that a cast cannot convert becomes null (an element of a list is left out), and a fill or a filter behind the cast hides
that. So every cast is counted with the rows that are read: ``plan.casts`` and ``plan.warnings`` show the counts, and a cast that
could convert none of its first values is warned of at once. A JSON path whose values have another type than it asks for is
counted and warned of in the same way; a value that is missing or JSON's null is not a lost one. A whole number that counts
another unit than ``unit=`` says is not lost: it becomes a time in January 1970 or far in the future. Where all of the first
times lie there, that is warned of as well.

The CPU engine keeps the first value that each cast lost. The GPU engine counts alike, but keeps no example and does not look at
the years of times.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ctrbox.columns.kind import name_of
from ctrbox.columns.times import UNITS, likely_unit
from ctrbox.engines.cpu.assemble_program import Assembled
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.operators import unit_of
from ctrbox.plan.language.types_of_operators import origin, shown_name

if TYPE_CHECKING:
    from ctrbox.engines.cpu.extract import Extractor


Counts = tuple[int, int, int, int, bytes | None]  # as `_native.Program.converted` gives them


@dataclass(frozen=True)
class CastCount:
    """A cast of one column, or a JSON path of it, with the counts of the values that it has read.

    ``values``: rows that were not null before the cast; for a JSON path, rows with a value there that is not null. ``lost``:
    how many of these rows became null or lost an element of their list. ``example``: the first 100 bytes of the first lost value
    (of a JSON path: as it stands in the document), or None if it is not known.
    """

    cast: str  # as users write it: cast('time', unit='s'), json('$.price', 'float')
    column: str
    values: int
    lost: int
    example: str | None = None

    @property
    def name(self) -> str:
        """Return the key of this cast in ``plan.warnings``."""
        return f"{self.cast} of {self.column!r}"


@dataclass
class Met:
    """Counts of the values that the instructions of one cast have read and lost."""

    node: Node
    values: int = 0
    lost: int = 0
    example: str | None = None
    times: int = 0  # made of whole numbers
    early: int = 0  # times in January 1970
    late: int = 0  # times in the year 2200 or later
    first: int | None = None  # the first time, in microseconds

    @property
    def cast(self) -> str:
        """Return the cast as users write it."""
        if self.node.op == "json":
            return f"json({self.node.param('path')!r}, {name_of(self.node.kind)!r})"
        unit = unit_of(self.node)
        return shown_name(self.node.op) if unit is None else f"cast('time', unit={unit!r})"

    @property
    def column(self) -> str:
        return origin(self.node).name or "an expression"


class Casts:
    """The casts of one extractor."""

    def __init__(self, extractor: Extractor) -> None:
        self.extractor: Extractor = weakref.proxy(extractor)  # weak for the reason in `missed_keys.Joins`
        self.told: set[int] = set()  # ids of casts that were warned of

    def counts(self) -> list[CastCount]:
        """Return what each cast that can lose a value has met so far, in the order of the plan."""
        return [CastCount(met.cast, met.column, met.values, met.lost, met.example) for met in self._met()]

    def _met(self) -> list[Met]:
        extractor = self.extractor
        return met_in([*extractor.programs, *(p for d in extractor.dimensions.values() for p in d.programs)])

    def warn(self, least: int) -> None:
        """Warn once about each cast that read at least ``least`` values and converted none of them.

        A cast that made only implausible times of them counts, too.
        """
        for met in self._met():
            if met.values < least or met.node.id in self.told:
                continue
            said = nothing_kept(met) if met.lost == met.values else unlikely_times(met)
            if said:
                self.told.add(met.node.id)
                warnings.warn(said, stacklevel=2)


def met_in(programs: Iterable[Assembled]) -> list[Met]:
    """Return what the casts of programs have met.

    A cast that runs in several programs, before and behind a user's operator, counts in the one that met the most values.
    """
    casts: dict[int, Met] = {}
    quotients: dict[int, tuple[int, int]] = {}
    for node, (values, lost, early, late, example) in converted_in(programs):
        if node.op == "floordiv":
            quotients[node.id] = max(quotients.get(node.id, (0, 0)), (values, lost))
        elif node.op.startswith("cast_") or (node.op == "json" and node.kind != "s"):  # every value has a text
            met = casts.setdefault(node.id, Met(node))
            if unit_of(node) is None and values > met.values:
                met.values, met.lost = values, lost
                met.example = None if example is None else example.decode("utf-8", "replace")
            elif unit_of(node) is not None and values > met.times:
                met.times, met.early, met.late = values, early, late
                met.first = None if example is None else int(example)
    for met in casts.values():
        if unit_of(met.node) is not None:
            # A number outside the years 0001 to 9999 is lost by the division before the cast (operators.time_of_number).
            met.values, met.lost = quotients.get(met.node.args[0].id, (met.times, 0))
    return [casts[number] for number in sorted(casts) if casts[number].values]


def converted_in(programs: Iterable[Assembled]) -> Iterator[tuple[Node, Counts]]:
    """Return the counts of each node that converts values; a JSON instruction has one for each of its paths."""
    for program in programs:
        for number, (node, results) in enumerate(zip(program.nodes, program.native.converted(), strict=True)):
            nodes = program.paths.get(number, [node] * len(results))
            yield from ((n, counts) for n, counts in zip(nodes, results, strict=True) if n is not None)


# ---- warnings --------------------------------------------------------------------------------------------------------


WANTED = {
    "cast_t": "an ISO 8601 time such as '2026-01-31' or '2026-01-31T09:30:00Z'",
    "cast_i": "a whole number such as '17'",
    "cast_f": "a number such as '0.5'",
}


def nothing_kept(met: Met) -> str:
    """Say that a cast lost all of its first values, and what to do."""
    unit = unit_of(met.node)
    lost = f"none of the first {met.values:,} values of {met.column!r}"
    if unit is not None:
        finer = " or ".join(f"unit={other!r}" for other in list(UNITS)[list(UNITS).index(unit) + 1 :])
        return (
            f"{lost} lies within the years 0001 to 9999 when it counts {UNITS[unit]} since 1970, so {met.cast} makes all of "
            f"them null; numbers this large usually count a finer unit: {finer}"
        )
    if met.node.op == "json":
        return (
            f"none of the first {met.values:,} values that {met.cast} finds in {met.column!r} can be read, so they are all "
            f"null or left out of their lists{first_of(met)}; {other_type(met)}"
        )
    if met.node.kind.startswith("*"):
        return f"{lost} keeps all of its elements when {met.cast} converts it; {not_read(met)}"
    return f"{lost} could be converted by {met.cast}, so all of them are null{first_of(met)}; {not_read(met)}"


def first_of(met: Met) -> str:
    return "" if met.example is None else f"; the first is {met.example!r}"


def other_type(met: Met) -> str:
    """Say which values a JSON path takes, and how the one that was met can be read."""
    kind, begin, path = met.node.kind, (met.example or " ")[0], met.node.param("path")
    wanted = name_of(kind)
    advice = ""
    if kind == "b" and begin in "01":
        advice = f"; a bool that is written as 0 or 1 is read by .json({path!r}, 'int') == 1"
    elif kind in ("i", "f") and begin == '"':
        advice = f"; a number that is written as text is read by .json({path!r}).cast({wanted!r})"
    elif kind in ("*i", "*f") and begin == '"':
        advice = (
            f"; numbers that are written as text are read by .json({path!r}, 'list[str]').cast({name_of(kind[1:])!r})"
        )
    elif kind == "i" and begin in "-0123456789":
        advice = f"; a fraction is read by .json({path!r}, 'float')"
    elif begin == "[" and not kind.startswith("*"):
        advice = f"; a list is read by .json({path!r}, 'list[{'str' if kind == 'b' else wanted}]')"
    return f"expected values of type {wanted}{advice}"


def not_read(met: Met) -> str:
    """Say which values a cast takes, and what could make these fit."""
    op, text = met.node.op, met.example or ""
    if met.node.args[0].kind == "f":
        return "NaN, infinite numbers and numbers beyond 64 bits cannot be converted to whole numbers"
    advice = ""
    if text != text.strip():
        advice = "; remove the white space first: .strip()"
    elif op == "cast_t" and text.lstrip("-").isdecimal():
        advice = "; a number of seconds since 1970 is read by .cast('int').cast('time', unit='s')"
    elif op == "cast_t":
        advice = "; rewrite other formats before the view reads them, for example with pandas.to_datetime(…, format=…)"
    elif op == "cast_i" and "." in text:
        advice = "; a number with a fraction is read by .cast('float'), and .round().cast('int') then makes it whole"
    elif op == "cast_f" and "," in text:
        advice = "; replace a decimal comma first: .replace(',', '.')"
    return f"expected {WANTED[op]}{advice}"


def unlikely_times(met: Met) -> str:
    """Say that all of the first times that were made of numbers lie where no log does, and which unit the numbers may count.

    Return "" where at least one of them does not.
    """
    unit = unit_of(met.node)
    if unit is None or not met.times or met.times not in (met.early, met.late):
        return ""
    where = "in January 1970" if met.times == met.early else "in the year 2200 or later"
    said = f"all of the first {met.times:,} times that {met.cast} makes of {met.column!r} lie {where}"
    if met.first is None:
        return f"{said}; check the unit"
    likely = likely_unit(met.first, unit)
    if likely is None:
        return f"{said}; the first is {met.first / 1e6:.0f} s after 1970: check the unit"
    number, other, day = likely
    return f"{said}; the first number is {number}, which is {day} when it counts {UNITS[other]}: use unit={other!r}"
