"""Defines history columns: what happened to the same user, ad or combination before a row.

    ad = cb.past(by="ad_id", time="ts", gap="10m")
    log = log.with_history(
        clicks=cb.history("ad_id", by="user_id", time="ts", where=col("clicked") == 1, last=100, within="14d"),
        shows_1h=ad.count(within="1h"),
        ctr_7d=ad.mean("clicked", within="7d"),
    )

An event is a row that passes `where`: a row of the log or, with `clicks.history(…)`, a row of the view `clicks`. A row at time t
sees the events of its own key with time < t - gap. It never sees itself, an event of the same time, or a later event. The classes
of this module only describe history columns; `ctrbox.engines.history` computes them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ctrbox.arguments.names import named_parameters
from ctrbox.arguments.numbers import whole
from ctrbox.arguments.sizes import checked_bytes
from ctrbox.errors import PlanError
from ctrbox.plan.language import check_parameters
from ctrbox.plan.language.expressions import Expr, column
from ctrbox.plan.language.features import span
from ctrbox.views.view import View, folder_of

MOST_SPAN = 2**60  # microseconds; the native state adds two of them in 64 bits
MOST_LAST = 100_000
BUDGET = "4GB"
KINDS = ("history", "count", "sum", "mean", "decayed", "since", "distinct")


@dataclass(frozen=True, eq=False)
class Past:
    """The earlier events that rows with the same key can see, made by ``cb.past``. Its methods are the features."""

    by: tuple[Expr, ...]
    time: Expr
    where: Expr | None
    gap: int  # microseconds, as all spans here
    lateness: int
    budget: int  # bytes
    events: View | None = None  # the view of the events; None: the log itself
    spill: str | None = None  # folder of events beyond the budget, "" for the system's; None: they are an error

    def history(self, *values: Any, last: int = 100, within: str | None = None) -> PastFeature:
        """Return the values of the last events as a list, newest last; see ``cb.history``."""
        return PastFeature(self, "history", _columns(values), last=last, within=_window("within", within))

    def count(self, within: str | None = None) -> PastFeature:
        """Count the events within ``within`` before the row (such as "1h" or "7d"; default: of all time)."""
        return PastFeature(self, "count", within=_window("within", within))

    def sum(self, value: Any, within: str | None = None) -> PastFeature:
        """Return the sum of a number or bool over the events within ``within`` before the row; 0.0 if there are none.

        Events whose value is null, NaN or infinite are not counted.
        """
        return PastFeature(self, "sum", _columns((value,)), within=_window("within", within))

    def mean(self, value: Any, within: str | None = None) -> PastFeature:
        """Return the mean over the events within ``within`` before the row; null if there are none. For clicks, it is the click
        rate.
        """
        return PastFeature(self, "mean", _columns((value,)), within=_window("within", within))

    def decayed(self, value: Any = None, *, half_life: str) -> PastFeature:
        """Return the sum over all events, each weighted by 2^(-age / half_life). Without ``value`` each event counts 1."""
        values = () if value is None else _columns((value,))
        return PastFeature(self, "decayed", values, half_life=_window("half_life", half_life))

    def distinct(self, *values: Any, within: str | None = None, last: int = 1000) -> PastFeature:
        """Count the distinct values of the last ``last`` events, from 1 to 100,000, within ``within`` before the row.

        ``values``: a column or expression, or several columns, whose combinations are counted. Events with a null among them
        are left out. The number is exact for keys with at most ``last`` events in the window, and never larger than ``last``.
        """
        return PastFeature(self, "distinct", _columns(values), last=last, within=_window("within", within))

    def since(self, within: str | None = None) -> PastFeature:
        """Return the seconds since the last event; null if there is none (within ``within`` before the row)."""
        return PastFeature(self, "since", within=_window("within", within))


@dataclass(frozen=True, eq=False)
class PastFeature:
    """One history column; ``View.with_history`` gives it a name. ``within`` and ``half_life`` of 0 mean none."""

    past: Past
    what: str
    values: tuple[Expr, ...] = ()
    last: int = 0
    within: int = 0
    half_life: int = 0

    def __post_init__(self) -> None:
        if self.what not in KINDS:
            raise PlanError(f"a history column is one of {', '.join(KINDS)}, got {check_parameters.shown(self.what)}")
        wanted = {"history": range(1, 65), "distinct": range(1, 65), "sum": (1,), "mean": (1,), "decayed": (0, 1)}.get(
            self.what, (0,)
        )
        if len(self.values) not in wanted:
            raise PlanError(f"{self.what} takes {_number(wanted)} columns of values, got {len(self.values)}")
        low = 1 if self.what in ("history", "distinct") else 0
        object.__setattr__(self, "last", whole("last", self.last, low, MOST_LAST))  # NumPy's numbers become ints
        if self.within and self.within <= self.past.gap:
            raise PlanError(
                f"the window within= ({self.within / 1e6:g} s) must be longer than gap= ({self.past.gap / 1e6:g} s); "
                "otherwise no event could ever be counted"
            )
        if (self.what == "decayed") != bool(self.half_life):
            raise PlanError("only decayed has a half_life, such as '1d', and it needs one")

    def over(self, events: View) -> PastFeature:
        """Return the same feature with the rows of the view ``events`` as its events."""
        return replace(self, past=replace(self.past, events=events))

    def columns(self, name: str) -> list[str]:
        """Return the names of the columns that this feature adds to a view under ``name``."""
        if self.what != "history":
            return [name]
        if len(self.values) == 1:
            return [name, f"{name}_age"]
        return [*(f"{name}_{dict(value.params)['name']}" for value in self.values), f"{name}_age"]


@named_parameters
def past(
    *,
    by: Any,
    time: Any,
    where: Any = None,
    gap: str = "0s",
    lateness: str = "0s",
    budget: str | int = BUDGET,
    spill: bool | str | os.PathLike[str] = False,
) -> Past:
    """Describe which earlier events of the log a row sees, for counts in time windows and for histories.

    ``by``        the key: a column, an expression, or a list of them. A row sees only events with the same key
    ``time``      the time of a row; it must have the type time
    ``where``     the condition that makes a row an event; default: every row is an event
    ``gap``       the row sees only events that are older than this span of time, such as "10m" if clicks arrive in the log up
                  to ten minutes late; default: "0s"
    ``lateness``  how much older a row may be than the newest row before it. With the default, "0s", a log that is not in
                  order of time is an error that names the row
    ``budget``    memory that the events of this past may use; default: "4GB". If they need more, reading ends with an error,
                  unless ``spill`` is set
    ``spill``     where to store the events of keys that have not occurred recently: True for the system's folder for
                  temporary files, or a path such as "/mnt/ssd". The features are the same
    """
    members = tuple(by) if isinstance(by, Sequence) and not isinstance(by, str) else (by,)
    if not members:
        raise PlanError("past needs by=, the columns whose values say to whom an event belongs, such as by='user_id'")
    if where is not None and not isinstance(where, Expr):
        raise PlanError(f"where must be a condition such as col('clicked') == 1, got {check_parameters.shown(where)}")
    return Past(
        tuple(column(m) for m in members),
        column(time),
        where,
        _span("gap", gap),
        _span("lateness", lateness),
        checked_bytes("budget", budget),
        spill=folder_of(spill),
    )


def past_of(
    events: View, by: Any, time: Any, where: Any, gap: str, lateness: str, budget: str | int, spill: Any
) -> Past:
    """Describe the past of a row among the events of another view; see ``View.past``."""
    described = past(by=by, time=time, where=where, gap=gap, lateness=lateness, budget=budget, spill=spill)
    return replace(described, events=events)


@named_parameters
def history(
    *values: Any,
    by: Any,
    time: Any,
    where: Any = None,
    last: int = 100,
    within: str | None = None,
    gap: str = "0s",
    lateness: str = "0s",
    budget: str | int = BUDGET,
    spill: bool | str | os.PathLike[str] = False,
) -> PastFeature:
    """Return the values of earlier events of the same key as a list, the newest last, for ``View.with_history``.

    ``values`` are one or several columns. If a feature with the name ``clicks`` has one column, the new column is ``clicks``.
    If it has several, there is one new column for each, such as ``clicks_ad_id``. The column ``clicks_age`` contains the
    seconds from each event to the row.

    ``last``    maximum number of events, from 1 to 100,000; default: 100
    ``within``  maximum age of an event, such as "14d"; default: no maximum

    Events with a null among their values are left out. ``cb.past`` describes ``by``, ``time``, ``where``, ``gap``,
    ``lateness``, ``budget`` and ``spill``.
    """
    described = past(by=by, time=time, where=where, gap=gap, lateness=lateness, budget=budget, spill=spill)
    return described.history(*values, last=last, within=within)


def _columns(values: Sequence[Any]) -> tuple[Expr, ...]:
    found = tuple(column(value) for value in values)
    if len(found) > 1:
        names = [dict(e.params)["name"] if e.op == "column" else None for e in found]
        if None in names or len(set(names)) < len(names):
            raise PlanError(
                "history and distinct take several values only if each is a column and their names differ; give expressions "
                "a name first: .with_columns(name=…)"
            )
    return found


def _span(name: str, text: str) -> int:
    found = span(text)
    if not 0 <= found <= MOST_SPAN:
        raise PlanError(f"{name} must be a span from 0 to {MOST_SPAN // 86_400_000_000:,} days, got {text!r}")
    return found


def _window(name: str, text: str | None) -> int:
    if text is None:
        return 0
    found = _span(name, text)
    if not found:
        raise PlanError(f"{name} must be longer than 0, got {text!r}")
    return found


def _number(wanted: Any) -> str:
    low, high = min(wanted), max(wanted)
    return str(low) if low == high else f"{low} to {high}"
