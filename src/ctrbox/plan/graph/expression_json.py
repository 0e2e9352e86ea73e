"""Converts expressions, features and the steps of views to and from JSON.

Everything is stored in flat tables, and an entry refers only to entries before it. Reading therefore needs no recursion and
cannot loop. Equal expressions are one entry. Before it makes anything, reading checks the structure, the names of operators and
sizes. It runs no code, and raises one `PlanError` for everything that is malformed.

    expressions: [operator, [arguments: places], {parameter: value}]
    views:       {"name", "key", "keep", "steps": [[step, …]]}; a view in a step is a place in this table
    values:      null, true, 5, "text"; {"float": hex}, {"time": µs}, {"bytes": base64}, {"tuple": […]},
                 {"dictionary": place}, {"operator": {…}}
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import counted
from ctrbox.columns.label_task import MOST_TASKS
from ctrbox.errors import PlanError
from ctrbox.plan.language.encode import EncodeOperator
from ctrbox.plan.language.expressions import Expr, Time, expression, plain
from ctrbox.plan.language.features import FeatureSet, Label
from ctrbox.plan.language.history_columns import MOST_SPAN, Past, PastFeature
from ctrbox.plan.language.operators import PLAIN, SPECIAL
from ctrbox.plan.language.tables_of_operators import Dictionary
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.views.view import (
    DEFAULT_BUDGET,
    Cast,
    Fill,
    Filter,
    Join,
    Merge,
    Select,
    Step,
    View,
    WithColumns,
    WithHistory,
    views_of,
)

OPERATORS = frozenset([*PLAIN, *SPECIAL, "column", "literal"])
MOST_ENTRIES = 1_000_000  # of a table
MOST_CALLS = 5_000_000  # of all expressions written out; sharing hides a tree's size
DEEPEST = 10_000  # calls inside each other
ROLES = ("label", "group", "weight")


def canonical(value: Any) -> str:
    """Return a text that is the same for equal data, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


# ---- writing ----------------------------------------------------------------------------------------------


# An operator keeps the name under which plans were first saved, so that files and fingerprints stay the same.
STORED = {"standardize": "standardise"}
CALLED = {stored: op for op, stored in STORED.items()}


@dataclass
class Writer:
    """Collects expressions, dictionaries and views, each of them once."""

    expressions: list[list[Any]] = field(default_factory=list)
    dictionaries: list[Dictionary] = field(default_factory=list)
    operators: list[UserOperator] = field(default_factory=list)
    views: list[View] = field(default_factory=list)  # in the order of their entries
    _known: dict[str, int] = field(default_factory=dict)
    _seen: dict[int, tuple[Expr, int]] = field(default_factory=dict)  # holds what it names by id
    _placed: dict[int, int] = field(default_factory=dict)

    def expression(self, e: Expr) -> int:
        """Return the place of an expression. Arguments have places before the expressions that use them."""
        stack = [e]
        while stack:
            here = stack[-1]
            missing = [a for a in here.args if id(a) not in self._seen]
            if missing and id(here) not in self._seen:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if id(here) not in self._seen:
                params = {name: self.value(value) for name, value in here.params}
                entry = [STORED.get(here.op, here.op), [self._seen[id(a)][1] for a in here.args], params]
                place = self._known.setdefault(canonical(entry), len(self.expressions))
                if place == len(self.expressions):
                    self.expressions.append(entry)
                self._seen[id(here)] = (here, place)
        return self._seen[id(e)][1]

    def value(self, value: Any) -> Any:
        """Return a parameter in a form that JSON stores without changing a bit."""
        value = plain(value)
        match value:
            case None | bool() | str():
                return value
            case Time():
                return {"time": int(value)}
            case int():
                return int(value)
            case float():
                return {"float": float(value).hex()}
            case bytes():
                return {"bytes": base64.b64encode(value).decode()}
            case tuple() | list():
                return {"tuple": [self.value(v) for v in value]}
            case Dictionary():
                return {"dictionary": self._place(self.dictionaries, value)}
            case EncodeOperator():
                self._place(self.operators, value)
                return {"encoder": {"facts": dict(value.facts), "width": value.width}}
            case UserOperator():
                self._place(self.operators, value)
                kinds = {"args": list(value.args), "result": value.result}
                return {
                    "operator": {
                        "path": value.path,
                        **kinds,
                        "nullable": value.nullable,
                        "arrays": value.arrays,
                        **({"cuda": value.cuda} if value.cuda else {}),
                        **({"scalar": True} if value.scalar else {}),
                    }
                }
        raise PlanError(f"a plan with {type(value).__name__} {value!r} as a parameter cannot be saved")

    @staticmethod
    def _place(table: list[Any], value: Any) -> int:
        for place, known in enumerate(table):
            if known is value:
                return place
        table.append(value)
        return len(table) - 1

    def view(self, view: View) -> int:
        """Return the place of a view. Views that it joins have earlier places. A view that is joined twice is one entry."""
        if id(view) not in self._placed:
            for step in view.steps:
                for other in views_of(step):
                    self.view(other)
            self._placed[id(view)] = len(self.views)
            self.views.append(view)
        return self._placed[id(view)]

    def steps(self, view: View) -> list[list[Any]]:
        return [self._step(step) for step in view.steps]

    def _step(self, step: Step) -> list[Any]:
        match step:
            case WithColumns(columns):
                return ["with_columns", [[name, self.expression(expression(e))] for name, e in columns]]
            case Fill(values):
                return ["fill", [[name, self.expression(expression(v))] for name, v in values]]
            case Cast(types):
                return ["cast", [[name, to] for name, to in types]]
            case Filter(condition):
                return ["filter", self.expression(condition)]
            case Select(columns):
                return ["select", list(columns)]
            case Join(view, on, how, prefix, as_of):
                times = [] if as_of is None else [list(as_of)]
                return ["join", self.view(view), list(on), how, prefix, *times, *memory_of(step)]
            case Merge(view, ordered, budget):
                return ["merge", self.view(view), ordered, budget, *([] if step.spill is None else [True])]
            case WithHistory(features):
                written = [[name, *self._past(feature)] for name, feature in features]
                return ["with_history", written, [_memory_of_past(feature.past) for _, feature in features]]

    def _past(self, feature: PastFeature) -> list[Any]:
        past = feature.past
        places = [[self.expression(e) for e in several] for several in (feature.values, past.by)]
        where = None if past.where is None else self.expression(past.where)
        spans = [feature.last, feature.within, feature.half_life, past.gap, past.lateness]
        events = [] if past.events is None else [self.view(past.events)]
        return [feature.what, *places, self.expression(past.time), where, spans, *events]

    def features(self, features: FeatureSet) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for role in ROLES:
            e = getattr(features, role)
            written[role] = None if e is None else self.expression(e)
        for role in ("sparse", "dense"):
            written[role] = [[name, self.expression(e)] for name, e in getattr(features, role).items()]
        if features.labels:
            written["labels"] = [[n, *self._label(one)] for n, one in features.labels.items()]
        return written

    def _label(self, label: Label) -> list[Any]:
        first, *ages = (self.expression(e) for e in label.expressions)
        return [first, label.kind, *ages, *([label.window] if ages else [])]


# ---- reading ----------------------------------------------------------------------------------------------


def malformed(what: str) -> PlanError:
    return PlanError(f"the saved plan is malformed: {what}; compile the plan and save it again")


def _memory_of_past(past: Past) -> Any:
    """Return the budget of a past, and true if its events may be on a disk. The folder is not saved: it belongs to this
    machine.
    """
    return past.budget if past.spill is None else [past.budget, True]


def memory_of(step: Join) -> list[dict[str, Any]]:
    """Return what a file contains about the memory of a joined view; nothing if it has the default."""
    found: dict[str, Any] = {} if step.budget_bytes == DEFAULT_BUDGET else {"budget": step.budget_bytes}
    if step.spill is not None:
        found["spill"] = True  # the folder belongs to this machine
    return [found] if found else []


def a_dict(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise malformed(f"{what} must be an object")
    return value


def a_list(value: Any, what: str, most: int = MOST_ENTRIES, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or len(value) > most or (length is not None and len(value) != length):
        expected = f"at most {most:,} elements" if length is None else counted(length, "element")
        raise malformed(f"{what} must be a list of {expected}")
    return value


def a_text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise malformed(f"{what} must be a string")
    return value


def a_flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise malformed(f"{what} must be true or false")
    return value


def a_number(value: Any, what: str, below: int = 1 << 63) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < below:
        expected = (
            f"a whole number from 0 to {below - 1:,}"
            if below > 0
            else "the number of an earlier entry, but there is none"
        )
        raise malformed(f"{what} must be {expected}")
    return value


def texts(value: Any, what: str) -> tuple[str, ...]:
    return tuple(a_text(v, what) for v in a_list(value, what))


def sizes(expressions: list[list[Any]]) -> list[int]:
    """Return the number of calls of each expression, written out; raise a PlanError if one is too large for a file."""
    depth: list[int] = []
    calls: list[int] = []
    for _, args, _ in expressions:
        depth.append(1 + max((depth[a] for a in args), default=0))
        calls.append(1 + sum(calls[a] for a in args))
        if depth[-1] > DEEPEST or calls[-1] > MOST_CALLS:
            raise PlanError(
                f"an expression of {calls[-1]:,} "
                f"calls, nested {depth[-1]:,} deep, is too large for a saved plan; the "
                f"limits are {MOST_CALLS:,} calls and a depth of {DEEPEST:,}"
            )
    return calls


@dataclass
class Reader:
    """Makes expressions, features and steps from their tables. `operator` finds an operator of a user."""

    dictionaries: Sequence[Dictionary]
    operator: Callable[[dict[str, Any]], UserOperator]
    made: list[Expr] = field(default_factory=list)
    _calls: list[int] = field(default_factory=list)  # of each expression, written out

    def expressions(self, table: Any) -> None:
        """Check a whole table of expressions, then make them."""
        entries = a_list(table, "expressions")
        for place, entry in enumerate(entries):
            op, args, params = a_list(entry, "an expression", length=3)
            if CALLED.get(a_text(op, "an operator"), op) not in OPERATORS:
                raise malformed(f"there is no operator {op!r}{nearest(op, OPERATORS)}")
            for a in a_list(args, "arguments"):
                a_number(a, "an argument", place)
            a_dict(params, "parameters")
        calls = sizes(entries)
        for op, args, params in entries:
            values = tuple(sorted((name, self.value(value)) for name, value in params.items()))
            self.made.append(Expr(CALLED.get(op, op), tuple(self.made[a] for a in args), values))
        self._calls = calls

    def at(self, place: Any) -> Expr:
        found = a_number(place, "the place of an expression", max(1, len(self.made)))
        if found >= len(self.made):
            raise malformed("it refers to an expression that it does not contain")
        return self.made[found]

    def value(self, value: Any, depth: int = 0) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if not isinstance(value, dict) or len(value) != 1 or depth > 4:
            raise malformed(f"{str(value)[:60]!r} is not a value")
        ((tag, inner),) = value.items()
        match tag:
            case "float":
                try:
                    return float.fromhex(a_text(inner, "a float"))
                except (ValueError, OverflowError):
                    raise malformed(f"{inner[:60]!r} is not a float") from None
            case "time" if isinstance(inner, int) and not isinstance(inner, bool):
                return Time(inner)
            case "bytes":
                try:
                    return base64.b64decode(a_text(inner, "bytes"), validate=True)
                except ValueError:
                    raise malformed("it contains bytes that are not base64") from None
            case "tuple":
                return tuple(self.value(v, depth + 1) for v in a_list(inner, "a tuple"))
            case "dictionary":
                place = a_number(inner, "a dictionary's place")
                if place >= len(self.dictionaries):
                    raise malformed("it refers to a dictionary that it does not contain")
                return self.dictionaries[place]
            case "encoder":
                return self.operator({"encoder": a_dict(inner, "an encoder")})
            case "operator":
                return self.operator(a_dict(inner, "an operator"))
        raise malformed(f"{tag[:60]!r} is not a kind of value")

    def features(self, written: Any) -> FeatureSet:
        written = a_dict(written, "features")
        used: list[int] = []

        def one(place: Any) -> Expr:
            e = self.at(place)
            used.append(self._calls[place])
            return e

        roles: dict[str, Any] = {r: None if written.get(r) is None else one(written[r]) for r in ROLES}
        many: dict[str, dict[str, Expr]] = {}
        for role in ("sparse", "dense"):
            pairs = [a_list(p, "a feature", length=2) for p in a_list(written.get(role), f"{role} features")]
            many[role] = {a_text(name, "a feature's name"): one(place) for name, place in pairs}
            if len(many[role]) != len(pairs):
                raise malformed(f"two {role} features have the same name")
        several: dict[str, Label] = {}
        for part in a_list(written.get("labels", []), "labels", most=MOST_TASKS):
            late = len(a_list(part, "a label")) > 3
            name, place, kind, *ages = a_list(part, "a label", length=6 if late else 3)
            if a_text(name, "a label's name") in several:
                raise malformed("two labels have the same name")
            more = {"delay": one(ages[0]), "elapsed": one(ages[1]), "window": ages[2]} if late else {}
            several[name] = Label(one(place), a_text(kind, "the kind of a label"), **more)
        if sum(used) > MOST_CALLS:
            raise malformed(f"its features have {sum(used):,} calls; at most {MOST_CALLS:,} are allowed")
        return FeatureSet(**roles, sparse=many["sparse"], dense=many["dense"], labels=several)

    def step(self, written: Any, views: Sequence[View]) -> Step:
        """Return a step of a view. ``views`` are those that were made so far."""
        parts = a_list(written, "a step")
        if not parts:
            raise malformed("a step of a view is empty")
        what, rest = parts[0], parts[1:]
        match what:
            case "with_columns" | "fill":
                pairs = [a_list(p, what, length=2) for p in self._rest(rest, 1, what, list)]
                columns = tuple((a_text(n, what), self.at(e)) for n, e in pairs)
                return WithColumns(columns) if what == "with_columns" else Fill(columns)
            case "cast":
                pairs = [a_list(p, what, length=2) for p in self._rest(rest, 1, what, list)]
                return Cast(tuple((a_text(n, what), a_text(to, what)) for n, to in pairs))
            case "filter":
                return Filter(self.at(self._rest(rest, 1, what, int)))
            case "select":
                return Select(texts(self._rest(rest, 1, what, list), what))
            case "join":
                memory = a_dict(rest.pop(), what) if len(rest) > 4 and isinstance(rest[-1], dict) else {}
                view, on, how, prefix, *times = a_list(rest, what, length=4 if len(rest) < 5 else 5)
                if how not in ("left", "inner"):
                    raise malformed(f"a join must be left or inner, not {how!r}")
                as_of = None
                if times:
                    mine, theirs = texts(a_list(times[0], "the times of a join", length=2), "a time of a join")
                    as_of = mine, theirs
                joined = Join(self._view(view, views), texts(on, what), how, a_text(prefix, what), as_of)
                budget = a_number(memory.get("budget", DEFAULT_BUDGET), "a budget")
                # A file from somebody else does not choose the folder that is written to.
                return replace(joined, budget_bytes=budget, spill="" if memory.get("spill") is True else None)
            case "merge":
                spill = a_flag(rest.pop(), "spill") if len(rest) == 4 else False
                view, ordered, budget = a_list(rest, what, length=3)
                order = None if ordered is None else a_flag(ordered, "ordered")
                return Merge(self._view(view, views), order, a_number(budget, "a budget"), "" if spill else None)
            case "with_history":
                features, budgets = a_list(rest, what, length=2)
                a_list(budgets, what, length=len(a_list(features, what)))
                return WithHistory(tuple(self._past(f, b, views) for f, b in zip(features, budgets, strict=True)))
        raise malformed(f"there is no step {str(what)[:60]!r}")

    def _past(self, written: Any, budget: Any, views: Sequence[View]) -> tuple[str, PastFeature]:
        parts = a_list(written, "a history column")
        length = 8 if len(parts) == 8 else 7
        name, what, values, by, time, where, spans, *place = a_list(parts, "a history column", length=length)
        condition = None if where is None else self.at(where)
        last, within, half_life, gap, lateness = (
            a_number(n, "a span", MOST_SPAN + 1) for n in a_list(spans, "the spans of a history", length=5)
        )
        several = [tuple(self.at(e) for e in a_list(places, "columns of a history")) for places in (values, by)]
        events = self._view(place[0], views) if place else None
        budget, spills = (
            a_list(budget, "the memory of a history", length=2) if isinstance(budget, list) else (budget, False)
        )
        spill = "" if a_flag(spills, "spill") else None  # a saved plan must not choose the folder on this machine
        past = Past(several[1], self.at(time), condition, gap, lateness, a_number(budget, "a budget"), events, spill)
        feature = PastFeature(past, a_text(what, "a history column"), several[0], last, within, half_life)
        if not several[1] or (len(several[0]) > 1 and any(e.op != "column" for e in several[0])):
            raise malformed("a history column has no key, or reads several expressions")
        return a_text(name, "the name of a history"), feature

    @staticmethod
    def _rest(rest: list[Any], length: int, what: str, kind: type) -> Any:
        (value,) = a_list(rest, what, length=length)
        if not isinstance(value, kind):
            raise malformed(f"{what} must not contain a value of type {type(value).__name__}")
        return value

    @staticmethod
    def _view(place: Any, views: Sequence[View]) -> View:
        if not isinstance(place, int) or not 0 <= place < len(views):
            raise malformed("a step refers to a view that does not come before it")
        return views[place]
