"""Defines ``View``: a collection of raw rows from one source, and the steps that clean it and join it with others.

Everything is lazy: a view is a source and a tuple of steps. The planner reads the steps; nothing here touches a row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Never

import pyarrow as pa

from ctrbox.arguments.names import named_parameters, nearest, no_argument, no_attribute
from ctrbox.arguments.sizes import checked_bytes
from ctrbox.columns.times import UNITS, check_are_times, checked_units
from ctrbox.errors import PlanError
from ctrbox.files.urls import refuse_url
from ctrbox.views.source import Source, as_before, open_source
from ctrbox.views.text_options import checked_options

# Names that pandas, polars and Arrow have, and what does the same here.
SOME_ROWS = ".head(n) to look at the first rows, .filter(…) to keep some, and limit=n of fit to train on the first n"
INSTEAD = {
    **dict.fromkeys(("slice", "limit", "take", "sample", "iloc", "loc"), SOME_ROWS),
    **dict.fromkeys(("where", "query"), ".filter(col('x') > 0)"),
    **dict.fromkeys(("fillna", "fill_null"), ".fill(x=0)"),
    **dict.fromkeys(("dropna", "drop_nulls"), ".filter(col('x').is_not_null())"),
    **dict.fromkeys(("assign", "with_column"), ".with_columns(y=col('x') + 1)"),
    "astype": ".cast(x='int'), or 'float', 'bool', 'str' or 'time' in place of 'int'",
    "drop": ".select('x', 'y') with the columns to keep",
    "rename": ".with_columns(new=col('old'))",
    **dict.fromkeys(("dtypes", "info", "describe"), ".schema for names and types, and .head() for the first rows"),
}


DEFAULT_BUDGET = 4 << 30  # bytes of memory that a joined view may take


@dataclass(frozen=True)
class WithColumns:
    columns: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Fill:
    values: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Cast:
    types: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Filter:
    condition: Any


@dataclass(frozen=True)
class Select:
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Join:
    view: View
    on: tuple[str, ...]
    how: str
    prefix: str
    as_of: tuple[str, str] | None = None  # the time columns of this view and of the joined view, in this order
    budget_bytes: int = DEFAULT_BUDGET
    spill: str | None = (
        None  # folder of a view that is larger than its budget, "" for the system's; None: it is refused
    )


@dataclass(frozen=True)
class Merge:
    view: View
    ordered: bool | None
    budget_bytes: int = DEFAULT_BUDGET
    spill: str | None = None  # as of a join


@dataclass(frozen=True)
class WithHistory:
    features: tuple[tuple[str, Any], ...]  # each a ctrbox.plan.language.history_columns.PastFeature

    @property
    def names(self) -> list[str]:
        """The names of the columns that the step adds."""
        return [column for name, feature in self.features for column in feature.columns(name)]

    @property
    def events(self) -> list[View]:
        """The other views whose rows are the events of features; each view is listed once."""
        found = [feature.past.events for _, feature in self.features if feature.past.events is not None]
        return list({id(view): view for view in found}.values())

    def over(self, made: Callable[[View], View]) -> WithHistory:
        """Return the step with each view of events replaced by what ``made`` returns for it."""
        views = {id(view): made(view) for view in self.events}
        return WithHistory(
            tuple(
                (name, feature if feature.past.events is None else feature.over(views[id(feature.past.events)]))
                for name, feature in self.features
            )
        )


Step = WithColumns | Fill | Cast | Filter | Select | Join | Merge | WithHistory


@dataclass(frozen=True, eq=False)
class View:
    """A source of rows, together with the steps that clean the rows and join them with the rows of other views.

    The source is a path, a glob or a folder on any filesystem, or any object that provides Arrow data.

    ``key``         name of the column, or of the columns, that identify a row; joins and merges find rows by it
    ``keep``        "last" makes joins use the last row of each key of a joined view; by default, a key with several rows is
                    an error
    ``version``     version of a Delta Lake table, or the id of a snapshot of an Iceberg table. By default, the view reads the
                    version that is the newest when the view is made
    ``time_units``  a dict such as ``{"ts": "s"}``, with the units ("s", "ms", "us" or "ns") in which requests and streams may
                    give times as numbers. Without it, they must give ISO 8601 text. It does not change how the files of the
                    view are read

    For text files:

    ``delimiter``   text between two fields, of one or several characters; default: ``","``, for .tsv files a tab
    ``header``      False if the first line is a row and not a header
    ``names``       the names of all columns
    ``encoding``    encoding of the files; default: UTF-8
    ``quote``       the quote character; default: ``'"'``; False if quotes are ordinary characters
    ``types``       types of some columns, "int", "float", "bool", "time" or "str", instead of types inferred from the first
                    rows
    """

    source: Source
    key: tuple[str, ...]
    keep: str | None
    name: str
    time_units: Mapping[str, str]
    steps: tuple[Step, ...]

    def __init__(
        self,
        data: Any,
        key: str | Sequence[str] = (),
        *,
        keep: str | None = None,
        name: str | None = None,
        time_units: Mapping[str, str] | None = None,
        format: str | None = None,
        filesystem: Any = None,
        storage_options: dict[str, Any] | None = None,
        version: int | None = None,
        delimiter: str | None = None,
        header: bool | None = None,
        names: Sequence[str] | None = None,
        encoding: str | None = None,
        quote: str | bool | None = None,
        types: Mapping[str, str] | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise no_argument("View", unknown, list(View.__init__.__annotations__)[:-2])
        text = checked_options(
            delimiter=delimiter, header=header, names=names, encoding=encoding, quote=quote, types=types
        )
        source = open_source(
            data, format=format, filesystem=filesystem, storage_options=storage_options, text=text, version=version
        )
        keys = _names(key, "key")
        for k in keys:
            if k not in source.schema.names:
                raise PlanError(f"key {k!r} is not a column of {source.name}{nearest(k, source.schema.names)}")
        if keep not in (None, "last"):
            raise PlanError(f"keep must be None or 'last', got {keep!r}")
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "key", keys)
        object.__setattr__(self, "keep", keep)
        object.__setattr__(self, "name", name or short_name(source.name))
        units = checked_units(time_units, source.schema.names)
        check_are_times(units, source.schema)
        object.__setattr__(self, "time_units", units)
        object.__setattr__(self, "steps", ())

    if not TYPE_CHECKING:  # so that type checkers still refuse unknown methods

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("a View", name, dir(type(self)), INSTEAD)

        __iter__ = None  # __getitem__ alone would make Python try to iterate over a view

        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, str):
                advice = (
                    f"write col({key!r}) for the column in an expression, and .select({key!r}) for a view of it alone"
                )
            else:
                advice = (
                    "use .select('x', 'y') for some columns, .filter(…) for some rows, and .head(n) for the first rows"
                )
            raise TypeError(f"a View is not subscriptable; {advice}")

    def _with(self, step: Step) -> View:
        return self.with_steps((*self.steps, step))

    def with_steps(self, steps: tuple[Step, ...]) -> View:
        """Return the same rows with these steps instead of the steps of this view."""
        return self._changed(steps=steps)

    def _changed(self, **changes: Any) -> View:
        """Return this view with other values of some of its attributes; nothing is checked."""
        return View.of(**{field.name: changes.get(field.name, getattr(self, field.name)) for field in fields(View)})

    @staticmethod
    def of(**attributes: Any) -> View:
        """Return a view with these attributes over a source that exists already. Nothing is checked."""
        view = object.__new__(View)
        for field in fields(View):
            object.__setattr__(view, field.name, attributes[field.name])
        return view

    def over(self, data: Any, views: Mapping[str, Any] | None = None) -> View:
        """Return the steps of this view over other rows.

        ``data``: what ``View`` takes, or a view without steps. ``views``: other data for joined and merged views, by name,
        also for views that a joined view joins. If this view and the other data are text files, the text options of this view
        apply to the other data as well.
        """
        given = views or {}
        known = sorted(view.name for view in self.brought())
        for name in given:
            if name not in known:
                raise PlanError(
                    f"view {name!r} is not joined or merged here{nearest(name, known)}; the joined and merged views are: "
                    f"{known}"
                )
        if isinstance(data, View):
            if data.steps:
                steps = ", ".join(dict.fromkeys(_called(step) for step in data.steps))
                raise PlanError(
                    f"the steps of view {self.name!r} are applied to the other rows, so these must have none of their own, but "
                    f"view {data.name!r} has {steps}; pass its data, or a View without steps"
                )
            source = data.source
            for k in self.key:
                if k not in source.schema.names:
                    raise PlanError(f"key {k!r} is not a column of {source.name}{nearest(k, source.schema.names)}")
        else:
            source = View(data, self.key, keep=self.keep, name=self.name, **as_before(self.source, data)).source
        return self._changed(source=source, steps=self._steps_over(given)).with_histories()

    def with_histories(self) -> View:
        """Return this view over a source that computes the columns of its ``with_history`` steps.

        A view without such steps is returned as it is.
        """
        if not any(isinstance(step, WithHistory) for step in self.steps):
            return self
        return _past().wrapped(self)  # type: ignore[no-any-return]

    def brought(self) -> list[View]:
        """Return the views that this view joins, merges or takes events from, and recursively the views that those views
        bring in.
        """
        mine = [view for step in self.steps for view in views_of(step)]
        return [found for view in mine for found in (view, *view.brought())]

    def _steps_over(self, given: Mapping[str, Any]) -> tuple[Step, ...]:
        return tuple(with_views(step, lambda view: view._replaced(given)) for step in self.steps)

    def _replaced(self, given: Mapping[str, Any]) -> View:
        """Return this view, with other data for it and for the views below it if they are given."""
        if self.name in given:
            return self.over(given[self.name], {n: given[n] for n in given if n in {v.name for v in self.brought()}})
        if any(view.name in given for view in self.brought()):
            return self._changed(steps=self._steps_over(given)).with_histories()
        return self

    @property
    def columns(self) -> list[str]:
        """The columns of the source, before any step."""
        return list(self.source.schema.names)

    @property
    def schema(self) -> pa.Schema:
        """The columns after all steps: their names, their Arrow types, and whether they may be null. This reads no row."""
        found: pa.Schema = _preview().schema(self)
        return found

    def head(self, n: int = 5) -> pa.Table:
        """Return the first ``n`` rows (0 to 1,000,000) after all steps, including filters and joins.

        Reads the source only until it has these rows, but reads joined views completely. Columns of types that CTRBox cannot
        read, such as maps, are left out.
        """
        found: pa.Table = _preview().head(self, n)
        return found

    def _repr_html_(self) -> str:
        """Return the columns and the first rows, for notebooks."""
        found: str = _preview().for_notebook(self)
        return found

    def __repr__(self) -> str:
        return f"View({self.name!r}, key={self.key}, steps={len(self.steps)})"

    def select(self, *columns: str) -> View:
        """Keep only these columns."""
        return self._with(Select(_names(columns, "select")))

    def with_columns(self, **columns: Any) -> View:
        """Add or replace columns that are computed from expressions."""
        return self._with(WithColumns(tuple(columns.items())))

    def with_history(self, **features: Any) -> View:
        """Add columns that are computed from earlier rows: ``cb.history`` and the features of ``cb.past``.

        They are computed once, while the log is read in order of time. The rows that reach this step are the events: earlier
        filters decide which rows are events, and rows that a later filter drops, as in ``.with_history(…).filter(…)``, are
        events too. If the events are the rows of another view, use ``View.history`` and ``View.past`` of that view. For a
        plan, these columns are columns of its log: a request must contain them, unless the server keeps the state of the
        histories.
        """
        return _past().add_histories(self, features)  # type: ignore[no-any-return]

    def past(
        self,
        *,
        by: Any,
        time: Any,
        where: Any = None,
        gap: str = "0s",
        lateness: str = "0s",
        budget: str | int = "4GB",
        spill: bool | str | os.PathLike[str] = False,
    ) -> Any:
        """Describe which rows of this view count as earlier events for the rows of another view. Except as stated below, the
        arguments are those of ``cb.past``.

        Example: ``log.with_history(clicks_1h=clicks.past(by="user_id", time="ts").count(within="1h"))``. ``by`` and ``time``
        are columns or expressions that are read from both views; ``where`` and the values are read from this view. Both views
        must be in order of time, except for rows that are late by at most ``lateness``.
        """
        return _language().past_of(self, by, time, where, gap, lateness, budget, spill)

    def history(
        self,
        *values: Any,
        by: Any,
        time: Any,
        where: Any = None,
        last: int = 100,
        within: str | None = None,
        gap: str = "0s",
        lateness: str = "0s",
        budget: str | int = "4GB",
        spill: bool | str | os.PathLike[str] = False,
    ) -> Any:
        """Describe a list of values of earlier rows of this view, for the rows of another view. Except as stated below, the
        arguments are those of ``cb.history``.

        Example: ``log.with_history(clicked=clicks.history("ad_id", by="user_id", time="ts", last=50))``. See ``View.past``.
        """
        described = _language().past_of(self, by, time, where, gap, lateness, budget, spill)
        return described.history(*values, last=last, within=within)

    def fill(self, **values: Any) -> View:
        """Replace nulls by these values. In a joined view, rows of the log whose key has no row in the view get these values,
        too.
        """
        return self._with(Fill(tuple(values.items())))

    def cast(self, **types: str) -> View:
        """Convert columns to "int", "float", "str", "bool" or "time".

        Text becomes a time if it is ISO 8601, such as "2026-01-31T09:30:00Z". A value that cannot be converted becomes null;
        ``plan.warnings`` and ``plan.casts`` count such values. A whole number becomes a time only if its unit is given:
        ``.with_columns(ts=col("ts").cast("time", unit="s"))``.
        """
        if types.get("unit") in UNITS:
            name = next((name for name, to in types.items() if to == "time"), "ts")
            raise PlanError(
                f"View.cast takes no unit=; a whole number becomes a time with "
                f".with_columns({name}=col({name!r}).cast('time', unit={types['unit']!r}))"
            )
        return self._with(Cast(tuple(types.items())))

    def filter(self, condition: Any) -> View:
        """Keep only the rows for which the condition is true. A row for which it is null is dropped."""
        return self._with(Filter(condition))

    @named_parameters
    def join(
        self,
        view: View,
        on: str | Sequence[str],
        how: str = "left",
        *,
        prefix: str = "",
        as_of: str | Sequence[str] | None = None,
        budget: str | int = DEFAULT_BUDGET,
        spill: bool | str | os.PathLike[str] = False,
    ) -> View:
        """Add to each row the columns of the row of ``view`` whose key equals the columns ``on`` of this row.

        ``on``      name of a column, or several names, which belong to the columns of the key of ``view`` in their order
        ``how``     "left" keeps rows whose key has no row in ``view``: they get nulls, which the fills of ``view`` replace.
                    "inner" drops these rows
        ``prefix``  text that is put before the names of the added columns
        ``as_of``   makes an as-of join. It is the name of the time column or, if the names differ, two names, such as
                    ``("ts", "valid_from")``: first that of this view, then that of ``view``. ``view`` may then have several
                    rows with the same key, in any order. Each row of this view gets the newest of them whose time is at or
                    before its own time. A row for which there is none, or whose time is null, is treated like a row whose key
                    has no row
        ``budget``  maximum memory of the loaded view, such as "500MB"; default: "4GB". If the view needs more, there is an
                    error that names the view, unless ``spill`` is set
        ``spill``   stores a view that exceeds the budget on a local disk: True stores it in the system's folder for temporary
                    files, and a path such as "/mnt/ssd" in this folder. The result of the join is the same. The system
                    removes the file when the process ends, even if the process is killed
        """
        keys = _names(on, "on")
        if how not in ("left", "inner"):
            raise PlanError(f"how must be 'left' or 'inner', got {how!r}")
        if not isinstance(view, View):
            raise PlanError(f"join needs a View, got {type(view).__name__}; wrap it: cb.View(data, key=…)")
        if not view.key:
            raise PlanError(f"view {view.name!r} has no key to join on; create it with View(…, key={keys[0]!r})")
        if len(keys) != len(view.key):
            raise PlanError(f"join on {keys} must have as many columns as the key {view.key} of view {view.name!r}")
        if keys != view.key and sorted(keys) == sorted(view.key):
            # Keys are paired by position, so the same names in another order would look up values of other columns.
            raise PlanError(
                f"the order of on= differs from the key of view {view.name!r}: use on={list(view.key)} instead of "
                f"on={list(keys)}"
            )
        times = None if as_of is None else _two_times(as_of, view)
        return self._with(Join(view, keys, how, prefix, times, checked_bytes("budget", budget), folder_of(spill)))

    @named_parameters
    def merge(
        self,
        view: View,
        *,
        ordered: bool | None = None,
        budget: str | int = DEFAULT_BUDGET,
        spill: bool | str | os.PathLike[str] = False,
    ) -> View:
        """Add the columns of the row of ``view`` that has the same id. The id is the key of both views.

        If both views are in the order of their ids, they are read side by side. Statistics of the files, or ``ordered=True``,
        say whether they are. Otherwise ``view`` is loaded into memory with an index, within ``budget`` (default: "4GB");
        ``spill`` stores a larger view on a local disk, as for ``join``.
        """
        if not isinstance(view, View):
            raise PlanError(f"merge needs a View, got {type(view).__name__}; wrap it: cb.View(data, key=…)")
        if len(self.key) != 1 or len(view.key) != 1:
            raise PlanError("merge matches rows by id, so both views need one key column: View(…, key='instance_id')")
        return self._with(Merge(view, ordered, checked_bytes("budget", budget), folder_of(spill)))


def views_of(step: Step) -> list[View]:
    """Return the other views that a step reads."""
    if isinstance(step, Join | Merge):
        return [step.view]
    return step.events if isinstance(step, WithHistory) else []


def with_views(step: Step, made: Callable[[View], View]) -> Step:
    """Return the step with each of the other views that it reads replaced by what ``made`` returns for it."""
    if isinstance(step, Join | Merge):
        return replace(step, view=made(step.view))
    return step.over(made) if isinstance(step, WithHistory) else step


def _called(step: Step) -> str:
    """Return the method of ``View`` that adds such a step."""
    named = {WithColumns: "with_columns", WithHistory: "with_history"}
    return named.get(type(step), type(step).__name__.lower())


def _preview() -> Any:
    """Return the part of the engines that looks at views. It lies above this folder, so it is found when it is needed."""
    return import_module("ctrbox.engines.preview")


def _language() -> Any:
    """Return the module that describes history columns, which lies above this folder as well."""
    return import_module("ctrbox.plan.language.history_columns")


def _past() -> Any:
    """Return the part of the engines that computes history columns, which lies above this folder as well."""
    return import_module("ctrbox.engines.history.history_columns_of_log")


def _names(names: Any, what: str) -> tuple[str, ...]:
    """Return one name, or several, as a tuple."""
    if isinstance(names, str):
        return (names,)
    found = tuple(names) if isinstance(names, Iterable) else (names,)
    for name in found:
        if not isinstance(name, str):
            raise PlanError(f"{what} takes the names of columns, got {name!r}")
    return found


def folder_of(spill: Any) -> str | None:
    """Return the folder for data beyond the budget; "": the system's temporary folder; None: exceeding it is an error."""
    if spill is False or spill is None:
        return None
    if spill is True:
        return ""
    if isinstance(spill, str | os.PathLike) and isinstance(folder := os.fspath(spill), str) and folder:
        refuse_url(folder, "a folder for what does not fit into memory")
        return folder
    raise PlanError(f"spill must be True or a folder on a local disk, such as spill='/mnt/ssd', got {spill!r}")


def _two_times(as_of: Any, view: View) -> tuple[str, str]:
    """Return the time columns of both sides of an as-of join."""
    names = _names(as_of, "as_of")
    if len(names) not in (1, 2):
        raise PlanError(
            f"as_of takes a time column, or two where their names differ: as_of=('ts', 'valid_from'); got {as_of!r}"
        )
    if names[-1] in view.key:
        raise PlanError(
            f"as_of: the time {names[-1]!r} is also in the key {view.key} of view {view.name!r}, so only rows with "
            f"exactly the same time would be found; leave it out of the key: View(…, key=…)"
        )
    return names[0], names[-1]


def short_name(name: str) -> str:
    """Return the last part of a path without wildcards, such as 'users' for 'data/users/*.parquet'."""
    parts = [p for p in name.replace("\\", "/").rstrip("/").split("/") if p and "*" not in p]
    return parts[-1].split(".")[0] if parts else name
