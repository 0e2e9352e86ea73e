"""Builds the graph from views and features: names become nodes, joins become look-ups, and nulls are tracked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox import _native
from ctrbox.arguments.names import nearest
from ctrbox.columns.kind import kind_of_arrow, name_of
from ctrbox.errors import PlanError
from ctrbox.plan.graph.graph import FitSpec, FrameSpec, Graph, Output, SourceSpec
from ctrbox.plan.graph.unfilled_nulls import Gap, NullsUnfilled, present, told
from ctrbox.plan.graph.unlabeled import conjuncts, tested
from ctrbox.plan.language.encode import EncodeOperator
from ctrbox.plan.language.expressions import Expr, Time, col, expression
from ctrbox.plan.language.features import FeatureSet, Label, space_of
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.operators import crossed, hashed, resolve
from ctrbox.plan.language.types_of_operators import Typed, origin
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.views.columns_as_recorded import RecordedSource
from ctrbox.views.view import Cast, Fill, Filter, Join, Merge, Select, View, WithColumns, WithHistory

LATE = ("delay", "elapsed")  # roles of the outputs of a label whose ones arrive late
NOTHING: dict[str, Any] = {"s": "", "f": 0.0, "i": 0, "b": False, "t": Time(0), "*": ()}  # by the kind's first letter


@dataclass(frozen=True)
class Unusable:
    """A column of a type that no operator accepts, and the view whose data contain it."""

    type: pa.DataType
    view: str


@dataclass
class Scope:
    """The columns of a view after some step, as nodes of its frame."""

    builder: Builder
    frame: FrameSpec
    columns: dict[str, Node | Unusable] = field(default_factory=dict)
    known: dict[int, tuple[Expr, Node]] = field(default_factory=dict)  # cleared when columns change
    past: dict[str, Node | Unusable] = field(default_factory=dict)  # columns that a later step ``with_history`` adds
    view: str = ""  # the view's name where it shares the frame of another one, as in a streamed merge

    @property
    def typed(self) -> Typed:
        return self.builder.typed

    def column(self, name: str) -> Node:
        found = self.columns.get(name)
        if found is None:
            raise PlanError(
                f"column {name!r} is not in view {self.view or self.frame.name!r}{nearest(name, self.columns)}"
                + ("" if nearest(name, self.columns) else f"; it has: {', '.join(list(self.columns)[:20])}")
            )
        if isinstance(found, Unusable) and pa.types.is_null(found.type):
            raise PlanError(
                f"column {name!r} of view {found.view!r} has Arrow type null: none of its values is known, so its type is not "
                "known either; write it with the type that it should have, such as pa.nulls(rows, pa.int64())"
            )
        if isinstance(found, Unusable):
            raise PlanError(
                f"column {name!r} of view {found.view!r} has type {found.type}; expected a number, string, bool, time "
                "or a list of them (fields of a struct are columns named 'struct.field')"
            )
        return found

    def fit(self, how: str, inputs: tuple[Node, ...], settings: tuple[tuple[str, Any], ...]) -> int:
        return self.builder.fit(how, inputs, settings, self.frame)

    def user(self, function: UserOperator, args: tuple[Node, ...]) -> Node:
        widened = []
        for k, (arg, kind) in enumerate(zip(args, function.args, strict=True)):
            if arg.kind != kind and (arg.kind, kind) not in (("b", "i"), ("i", "f"), ("b", "f")):
                raise PlanError(
                    f"operator {function.name!r} takes {name_of(kind)} as argument {k + 1}, got {name_of(arg.kind)} "
                    f"({origin(arg).name!r})"
                )
            widened.append(self.typed.widen(arg, kind))
        why = f"operator {function.name!r} may return nulls" if function.nullable else ""
        nullable = function.nullable or (function.skips_nulls and any(a.nullable for a in widened))
        return self.typed.node("user", tuple(widened), (("function", function),), function.result, nullable, why)


class Builder:
    def __init__(self) -> None:
        self.typed = Typed()
        self.frames: list[FrameSpec] = []
        self.fits: list[FitSpec] = []
        self.dimensions: dict[tuple[int, str, str | None], Scope] = {}
        self.views: list[View] = []  # holds views so that their ids stay theirs
        self.required: dict[int, str] = {}  # by the id of a filter: the column that it requires not to be null

    def fit(self, how: str, inputs: tuple[Node, ...], settings: tuple[tuple[str, Any], ...], frame: FrameSpec) -> int:
        if frame.id != 0:
            raise PlanError(
                "an operator that is fitted, such as bucketize(quantiles=…), can only be fitted on the log; move it from "
                f"view {frame.name!r} to the log, after the join"
            )
        spec = FitSpec(how, inputs, settings)
        if spec in self.fits:
            return self.fits.index(spec)
        self.fits.append(spec)
        return len(self.fits) - 1

    # ---- views
    def open(self, view: View, role: str, time: str | None = None) -> Scope:
        """Open a view. ``time`` is the name of its time column, if an as-of join reads the view."""
        frame = FrameSpec(len(self.frames), view.name, role, [SourceSpec(view)], key=view.key)
        self.frames.append(frame)
        self.views.append(view)
        scope = Scope(self, frame, self.raw_columns(frame, 0, view, missing=role == "left"))
        self.set_past_aside(scope, view)
        if role != "log":
            members = tuple(scope.column(k) for k in view.key)
            frame.hash = self.single_key(scope, members)
        raw = dict(scope.columns)
        for step in view.steps:
            self.apply(scope, step)
        if time is not None:
            # A step such as a cast may have made the time. Like the key, the time can be used even if a select left it out.
            hidden = {time: raw[time]} if time in raw and time not in scope.columns else {}
            frame.time = self.time(replace(scope, columns={**scope.columns, **hidden}), time)
        return scope

    @staticmethod
    def time(scope: Scope, name: str) -> Node:
        """Return the time column of one side of an as-of join, or raise a PlanError if it is not a time."""
        node = scope.column(name)
        if node.kind != "t":
            raise PlanError(
                f"as_of: {name!r} of view {scope.frame.name!r} is {name_of(node.kind)}, expected a time; "
                + (
                    f"say what the number counts: {_as_time(name)}"
                    if node.kind == "i"
                    else f"cast it first: .cast({name}='time')"
                )
            )
        return node

    @staticmethod
    def set_past_aside(scope: Scope, view: View) -> None:
        """Hide the columns of ``with_history`` until the step that adds them."""
        for name in [name for step in view.steps if isinstance(step, WithHistory) for name in step.names]:
            if scope.frame.role != "log":
                raise PlanError(
                    f"view {view.name!r} has histories (with_history), but is joined or merged here; only the log can have "
                    "histories, so call with_history on the log"
                )
            scope.past[name] = scope.columns.pop(name)

    def raw_columns(self, frame: FrameSpec, source: int, view: View, missing: bool) -> dict[str, Node | Unusable]:
        columns: dict[str, Node | Unusable] = {}
        for f in view.source.schema:
            kind = kind_of_arrow(f.type)
            if kind is None:
                columns[f.name] = Unusable(f.type, view.name)
                continue
            if missing:
                nullable, why = True, f"a key may be missing from view {view.name!r}"
            else:
                nullable, why = view.source.nullable(f.name), "its data holds nulls or does not rule them out"
            width = f.type.list_size if pa.types.is_fixed_size_list(f.type) else 0
            params = (("name", f.name), ("source", source), ("width", width))
            columns[f.name] = self.typed.nodes.intern(
                "column", (), params, kind, nullable, frame.id, name=f.name, why=why if nullable else ""
            )
        return columns

    def apply(self, scope: Scope, step: Any) -> None:
        self.change(scope, step)
        scope.known.clear()

    def change(self, scope: Scope, step: Any) -> None:
        match step:
            case WithColumns(columns):
                made = {name: resolve(expression(e), scope) for name, e in columns}
                scope.columns.update(made)
            case Fill(values):
                for name, value in values:
                    scope.columns[name] = resolve(col(name).fill(value), scope)
                scope.known.clear()
            case Cast(types):
                for name, to in types:
                    scope.columns[name] = resolve(col(name).cast(to), scope)
            case Filter(condition):
                self.filter(scope, condition)
            case Select(names):
                scope.columns = {name: scope.column(name) for name in names}
            case Join():
                self.join(scope, step)
            case Merge():
                self.merge(scope, step)
            case WithHistory():
                for name in step.names:
                    if name in scope.columns:
                        raise PlanError(
                            f"with_history adds column {name!r}, which view {scope.frame.name!r} has already; choose "
                            "another name"
                        )
                    scope.columns[name] = scope.past[name]

    def filter(self, scope: Scope, condition: Any) -> None:
        """Add a filter. If it requires that a column is not null, the column is not null in later steps."""
        asked = [tested(part) for part in conjuncts(condition)] if isinstance(condition, Expr) else []
        # A condition of its own for each, so that one about the label can be left out where there is no label.
        parts = conjuncts(condition) if any(asked) else [condition]
        made = [self.condition(part, scope) for part in parts]
        scope.frame.filters += made
        self.required |= {node.id: name for node, name in zip(made, asked, strict=False) if name is not None}
        if scope.frame.role == "left":
            return  # Its null row, the answer for keys that it lacks, passes every filter.
        scope.known.clear()
        for name in asked:
            node = scope.columns.get(name) if name is not None else None
            if name is not None and isinstance(node, Node) and node.nullable:
                # The value is never used: rows that would need it do not pass.
                scope.columns[name] = resolve(col(name).fill(NOTHING[node.kind[0]]), scope)

    def condition(self, e: Any, scope: Scope) -> Node:
        if not isinstance(e, Expr):
            raise PlanError(f"filter needs a condition such as col('device') == 'ios', got {e!r}")
        node = resolve(e, scope)
        if node.kind != "b":
            raise PlanError(f"filter needs a condition (bool), got {name_of(node.kind)}: {e!r}")
        return node

    def join(self, scope: Scope, step: Join) -> None:
        # Below a left join even an inner one has a row for missing keys: the null row of the view that holds it.
        role = "left" if scope.frame.role == "left" else step.how
        time = None if step.as_of is None else step.as_of[1]
        key = (id(step.view), role, time)
        inner = self.dimensions.get(key)
        if inner is None:
            inner = self.dimensions[key] = self.open(step.view, role, time)
            inner.frame.budget_bytes = step.budget_bytes
        # Joins of the same view share what is loaded: the smallest of their budgets, and the first folder.
        inner.frame.budget_bytes = min(inner.frame.budget_bytes, step.budget_bytes)
        if inner.frame.spill is None:
            inner.frame.spill = step.spill
        members = []
        for name, theirs in zip(step.on, step.view.key, strict=True):
            mine, other = scope.column(name), inner.frame.view.source.schema.field(theirs)
            other_kind = kind_of_arrow(other.type)
            if mine.kind != other_kind:
                raise PlanError(
                    f"join on {name!r}: the column is {name_of(mine.kind)} in view {scope.frame.name!r}, but "
                    f"{name_of(other_kind) if other_kind else other.type} in view {step.view.name!r} ({theirs!r}); "
                    f"{key_advice(name, mine.kind, theirs, other_kind, step.view)}"
                )
            members.append(mine)
        when = () if step.as_of is None else (self.time(scope, step.as_of[0]),)
        row = self.row(scope, inner.frame, tuple(members), when)
        if step.how == "inner":
            scope.frame.filters.append(self.typed.node("found", (row,), (), "b", False, ""))
        # If both time columns have the same name, the rows keep their own.
        same = step.as_of is not None and step.prefix + step.as_of[1] == step.as_of[0]
        self.bring(scope, inner, row, step.prefix, step.view, step.as_of[1:] if step.as_of and same else ())

    def single_key(self, scope: Scope, members: tuple[Node, ...]) -> Node:
        """Return the hash of a join key. Each column must have one value per row, of a type that can be a key."""
        for member in members:
            if member.kind not in ("i", "s", "b", "t", "k"):
                raise PlanError(
                    f"{origin(member).name!r} of view {scope.frame.name!r} is {name_of(member.kind)}, which cannot be a join "
                    "key; expected a whole number, a string, a bool or a time"
                )
        return crossed(scope, members, 1) if len(members) > 1 else hashed(scope, members[0], "join")

    def row(self, scope: Scope, frame: FrameSpec, members: tuple[Node, ...], when: tuple[Node, ...] = ()) -> Node:
        """Return, for each row, the row of a joined view from which it takes columns. ``when`` is the time of an as-of join."""
        value = self.single_key(scope, members)
        return self.typed.nodes.intern("row", (value, *when), (("frame", frame.id),), "i", False, scope.frame.id)

    def bring(
        self, scope: Scope, inner: Scope, row: Node, prefix: str, view: View, without: tuple[str, ...] = ()
    ) -> None:
        """Add the columns of a joined view, except its key and the columns ``without``, under their names with the prefix."""
        for name, node in inner.columns.items():
            if name in view.key or name in without:
                continue
            mine = prefix + name
            if mine in scope.columns:
                raise PlanError(
                    f"column {mine!r} is in both {scope.frame.name!r} and {view.name!r}"
                    f"; use join(…, "
                    f"prefix='{view.name}_'), or leave the column out with .select(…)"
                )
            scope.columns[mine] = node if isinstance(node, Unusable) else self.typed.gather(row, node)

    def merge(self, scope: Scope, step: Merge) -> None:
        frame, view = scope.frame, step.view
        mine, theirs = frame.view.key[0], view.key[0]
        mine_kind, their_kind = (
            kind_of_arrow(v.source.schema.field(k).type) for v, k in ((frame.view, mine), (view, theirs))
        )
        if mine_kind != their_kind or mine_kind not in ("i", "s", "t", "b"):
            raise PlanError(
                f"merge by id: {mine!r} of view {frame.name!r} is {frame.view.source.schema.field(mine).type}, {theirs!r} of "
                f"view {view.name!r} is {view.source.schema.field(theirs).type}; both must be whole numbers, or both strings"
            )
        simple = frame.role == "log" and not any(isinstance(s, Join | Merge | Filter | WithHistory) for s in view.steps)
        if step.ordered and not simple:
            raise PlanError(
                f"a merge with {view.name!r} and ordered=True is possible only on the log, and only if view {view.name!r} has "
                "no filters, joins, merges and histories; remove them, or use ordered=False"
            )
        ordered = step.ordered
        if ordered is None:
            ordered = simple and mine_kind == "i" and looks_ordered(frame.view, mine) and looks_ordered(view, theirs)
        if not ordered:
            inner = self.open(view, "left")
            inner.frame.budget_bytes, inner.frame.spill, inner.frame.merged = step.budget_bytes, step.spill, True
            self.bring(scope, inner, self.row(scope, inner.frame, (scope.column(mine),)), "", view)
            return
        if mine_kind != "i":
            raise PlanError(
                f"a merge of sorted streams needs whole-number ids in {mine!r} and {theirs!r}; use ordered=False"
            )
        frame.sources.append(SourceSpec(view, theirs))
        self.views.append(view)
        columns = self.raw_columns(frame, len(frame.sources) - 1, view, missing=True)
        inner = Scope(self, frame, columns, view=view.name)
        for other in view.steps:
            self.apply(inner, other)
        for name, node in inner.columns.items():
            if name == theirs:
                continue
            if name in scope.columns:
                raise PlanError(
                    f"column {name!r} is in both {frame.name!r} and {view.name!r}; leave it out with .select(…)"
                )
            scope.columns[name] = node


def _as_time(name: str) -> str:
    return f".with_columns({name}=col({name!r}).cast('time', unit='s'))"


def key_advice(name: str, mine: str, theirs: str, other: str | None, view: View) -> str:
    """Return what to do about a join key that has another type in the joined view.

    The advice is to convert numbers to text, never text to numbers: text that is not a number would become null, and a null finds
    no row.
    """
    if mine == "i" and other == "t":
        return f"say before the join what the number counts: {_as_time(name)}"
    if mine != "s" or other not in ("i", "b"):
        return f"cast it before the join: .cast({name}='{name_of(other) if other else 'str'}')"
    if getattr(view.source, "text_options", None) is not None:
        return f"read the key as text: View(…, types={{{theirs!r}: 'str'}}) for view {view.name!r}"
    return (
        f"convert column {theirs!r} in the data of view {view.name!r} to text, so that both are text (the steps of a joined "
        "view do not change its key)"
    )


def looks_ordered(view: View, key: str) -> bool:
    """Return whether row groups ascend according to their statistics, and the first rows too. The stream checks every later
    row.
    """
    if not view.source.ordered(key):
        return False
    if isinstance(view.source, RecordedSource):
        return True  # the plan that was saved has looked at the first rows
    for morsel in view.source.scan([key], threads=0):
        ids = morsel.rows.column(0).to_numpy(zero_copy_only=False).astype("int64", copy=False)
        return bool(_native.first_descent(np.ascontiguousarray(ids)) < 0)
    return True


def build(log: View, features: FeatureSet) -> Graph:
    """Return the graph of a job; raise a PlanError if it cannot be built."""
    builder = Builder()
    scope = builder.open(log, "log")
    outputs: list[Output] = []
    gaps: list[Gap] = []
    for role in ("label", "weight"):
        e = getattr(features, role)
        if e is not None:
            node = present(resolve(e, scope), role, gaps)
            if node.kind not in ("b", "i", "f"):
                advice = as_label(node, f"{role}=") if role == "label" else ""
                raise PlanError(
                    f"the {role} must be a number, but {origin(node).name!r} is {name_of(node.kind)}{advice}"
                )
            outputs.append(Output(role, role, node))
    for name, label in features.labels.items():
        outputs += task(name, label, scope)
    if features.group is not None:
        node = present(hashed(scope, resolve(features.group, scope), "group"), "group", gaps)
        if node.kind != "k":
            raise PlanError("the group must have one value per row, but it is a list; choose another column")
        outputs.append(Output("group", "group", node))
    for name, e in features.dense.items():
        outputs.append(dense(name, resolve(e, scope), gaps))
    for name, e in features.sparse.items():
        settled, space = space_of(name, e)
        node = present(resolve(settled, scope), f"feature {name!r}", gaps)
        outputs.append(Output("sparse", name, node, space=space))
    if gaps:
        if builder.typed.units_unsaid:  # The unit comes first: with it, other values may be null than without it.
            raise PlanError(builder.typed.units_unsaid[0])
        raise NullsUnfilled(told(gaps))
    # Fits of labels come last: a plan over rows without labels lacks them, and the numbers of the others stay.
    for place, output in enumerate(outputs):
        if output.role == "elapsed":
            fit = fit_of_delays(output.name, features.labels[output.name], scope)
            outputs[place] = replace(output, fit=fit)
    return Graph(builder.typed, builder.frames, outputs, builder.fits)


def as_label(node: Node, argument: str = "") -> str:
    """Return how a column of text becomes a label, or "" for other values."""
    if node.kind != "s" or node.op != "column":
        return ""
    return f"; compare it with the value that counts as 1: {argument}col({node.name!r}) == '…'"


def task(name: str, label: Label, scope: Scope) -> list[Output]:
    """Return the output of one of several labels and, if it may be null, the output that says whether it was observed."""
    e = label.expression
    node = resolve(e, scope)
    if node.kind not in ("b", "i", "f"):
        advice = as_label(node)
        raise PlanError(f"label {name!r} must be a number, but {origin(node).name!r} is {name_of(node.kind)}{advice}")
    about: dict[str, Any] = {"kind": label.kind, "window": label.window}
    ages = [age(role, name, getattr(label, role), scope) for role in LATE if label.window is not None]
    if not node.nullable:
        return [Output("task", name, node, **about), *ages]
    # The value that fills a null is never used: the batch has NaN where the label was not observed.
    filled = resolve(e.fill(NOTHING[node.kind]), scope)
    return [Output("task", name, filled, **about), Output("observed", name, resolve(e.is_not_null(), scope)), *ages]


def age(role: str, name: str, e: Expr, scope: Scope) -> Output:
    """Return the output of the ages of a label whose ones arrive late; a null becomes -1, which is not a valid age."""
    node = resolve(e, scope)
    if node.kind not in ("i", "f"):
        raise PlanError(
            f"{role}= of label {name!r} must be a number, but {origin(node).name!r} is {name_of(node.kind)}; give the time in a "
            "unit of your choice, such as hours, the same as that of window="
        )
    return Output(role, name, resolve(e.fill(-1 if node.kind == "i" else -1.0), scope) if node.nullable else node)


def fit_of_delays(name: str, label: Label, scope: Scope) -> int:
    """Return the number of the fit that learns how late the ones of a label arrive."""
    inputs = tuple(resolve(e, scope) for e in label.expressions)
    return scope.fit("delays", inputs, (("label", name), ("window", label.window)))


def columns_after(view: View) -> dict[str, Node | Unusable]:
    """Return the columns of a view after its steps."""
    return dict(Builder().open(view, "log").columns)


def build_columns(log: View, columns: dict[str, Any]) -> Graph:
    """Return the graph of plain expressions, which may be null; its outputs have the role "column"."""
    builder = Builder()
    scope = builder.open(log, "log")
    steps = len(builder.typed.units_unsaid)  # those of a saved view are not asked for
    outputs = [Output("column", name, resolve(expression(e), scope)) for name, e in columns.items()]
    if told := builder.typed.units_unsaid[steps:]:
        raise PlanError(told[0])
    return Graph(builder.typed, builder.frames, outputs, builder.fits)


def dense(name: str, node: Node, gaps: list[Gap]) -> Output:
    node = present(node, f"feature {name!r}", gaps)
    if node.kind in ("b", "i", "f"):
        return Output("dense", name, node)
    if node.kind == "*f":
        width = vector_width(node)
        if width:
            return Output("dense", name, node, width)
        raise PlanError(
            f"dense feature {name!r} is a list whose length varies; reduce it to one number with .sum(), .mean(), .max() or "
            ".get(n)"
        )
    hints = {"t": ".hour() or .age(…)", "*i": ".sum(), .max(), .get(n) or put it under sparse"}
    hint = hints.get(node.kind, ".length() or put it under sparse")
    raise PlanError(f"dense feature {name!r} must be a number, but it is {name_of(node.kind)}; use {hint}")


def vector_width(node: Node) -> int:
    while node.op in ("gather", "fill"):
        node = node.inner if node.inner is not None else node.args[0]
    if node.op == "dictionary_vector":
        return int(node.param("table").data.width)
    if node.op == "user":
        function = node.param("function")
        return function.width if isinstance(function, EncodeOperator) else 0
    return int(node.param("width")) if node.op == "column" else 0
