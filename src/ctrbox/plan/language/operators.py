"""Translates expressions into nodes: one entry for each operator that a user can write.

Most operators are a kernel of the same name and a list of parameters (``PLAIN``). The others are functions below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ctrbox import _native
from ctrbox.columns.kind import kind_named, name_of
from ctrbox.columns.times import FIRST, LAST, MICROSECONDS, checked_unit
from ctrbox.errors import PlanError
from ctrbox.plan.language import check_parameters
from ctrbox.plan.language.check_parameters import encoded
from ctrbox.plan.language.expressions import Expr, Time, plain
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.tables_of_operators import Dictionary, TableSpec
from ctrbox.plan.language.types_of_operators import UNIT_ADVICE, Typed, origin
from ctrbox.plan.language.user_operators import UserOperator


class Names(Protocol):
    """The names by which columns are found."""

    known: dict[int, tuple[Expr, Node]]  # expressions resolved so far, by id

    @property
    def typed(self) -> Typed: ...

    def column(self, name: str) -> Node: ...

    def fit(self, how: str, inputs: tuple[Node, ...], settings: tuple[tuple[str, Any], ...]) -> int: ...

    def user(self, function: Any, args: tuple[Node, ...]) -> Node: ...


@dataclass(frozen=True)
class Plain:
    ints: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


PLAIN: dict[str, Plain] = {
    **dict.fromkeys(
        [
            "add",
            "sub",
            "mul",
            "div",
            "floordiv",
            "mod",
            "neg",
            "abs",
            "sqrt",
            "log1p",
            "floor",
            "ceil",
            "is_nan",
            "and",
            "or",
            "not",
            "length",
            "byte_length",
            "lower",
            "words",
            "distinct",
            "sum",
            "mean",
            "min",
            "max",
            "hash",
        ],
        Plain(),
    ),
    **dict.fromkeys(["hour", "minute", "weekday", "day", "month", "year", "epoch_day"], Plain(ints=("offset",))),
    "round": Plain(ints=("digits",)),
    "prefix": Plain(ints=("n",)),
    "suffix": Plain(ints=("n",)),
    "first": Plain(ints=("n",)),
    "last": Plain(ints=("n",)),
    "get": Plain(ints=("index",)),
    "substring": Plain(ints=("start", "length")),
    "edit_distance": Plain(ints=("limit",)),
    "strip": Plain(texts=("characters",)),
    "starts_with": Plain(texts=("text",)),
    "ends_with": Plain(texts=("text",)),
    "replace": Plain(texts=("old", "new")),
    "concat": Plain(texts=("separator",)),
    "split": Plain(texts=("separator",)),
    "join": Plain(texts=("separator",)),
}

UNITS = {"seconds": 1e6, "minutes": 60e6, "hours": 3600e6, "days": 86400e6}


def resolve(e: Expr, names: Names) -> Node:
    """Return the node of an expression; raise a PlanError if a column or a type is wrong."""
    # Arguments before what uses them, shared ones once, and without recursion: an expression may be of any depth.
    known, waiting = names.known, [e]
    while waiting:
        here = waiting[-1]
        missing = [] if id(here) in known else [a for a in here.args if id(a) not in known]
        if missing:
            waiting.extend(reversed(missing))
            continue
        waiting.pop()
        if id(here) not in known:
            # The expression is held, so its id stays its own.
            try:
                known[id(here)] = (here, resolved(here, tuple(known[id(a)][1] for a in here.args), names))
            except PlanError as error:
                error.written_at = error.written_at or here._written_at
                raise
    return known[id(e)][1]


def resolved(e: Expr, args: tuple[Node, ...], names: Names) -> Node:
    params = dict(e.params)
    if e.op == "column":
        return names.column(params["name"])
    if e.op == "literal":
        if params["value"] == () and isinstance(params["value"], tuple):
            return names.typed.literal((), "*s")  # an empty list; fill gives it the kind it needs
        return names.typed.literal(params["value"])
    special = SPECIAL.get(e.op)
    if special is not None:
        return special(names, args, params)
    plan = PLAIN.get(e.op)
    if plan is None:
        raise PlanError(f"there is no operator {e.op!r}")
    return names.typed.call(e.op, args, shown=e.op, **parameters(e.op, plan, params))


def parameters(op: str, plan: Plain, params: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if plan.ints:
        out["ints"] = tuple(check_parameters.whole(op, n, params[n]) for n in plan.ints)
    if plan.texts:
        check = check_parameters.separator if op == "split" else encoded
        out["texts"] = tuple(check(op, params[n]) for n in plan.texts)
    return out


# ---- the operators that are more than a kernel ----------------------------------------------------------------------


def fill(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    value, default = args
    if default.op == "literal":
        default = fit_literal(names, default, value)
    if default.kind != value.kind:
        raise PlanError(
            f"fill of column {origin(value).name!r} ({name_of(value.kind)}) "
            f"must be {name_of(value.kind)}, got "
            f"{name_of(default.kind)}"
        )
    if not value.nullable:  # checked all the same: tomorrow's log may have nulls
        return value
    return names.typed.call("fill", (value, default), nullable=default.nullable)


def fit_literal(names: Names, literal: Node, like: Node) -> Node:
    """Return a constant as the kind of another value, if that loses nothing."""
    value = literal.param("value")
    if isinstance(value, tuple):
        return names.typed.literal((), like.kind) if like.kind.startswith("*") else literal
    if like.kind == "f" and literal.kind in "ib":
        return names.typed.literal(float(value), "f")
    if like.kind == "i" and literal.kind == "b":
        return names.typed.literal(int(value), "i")
    if like.kind == "i" and literal.kind == "f" and float(value).is_integer() and abs(value) < 2**63:
        return names.typed.literal(int(value), "i")
    if like.kind == "b" and literal.kind == "i" and value in (0, 1):
        return names.typed.literal(bool(value), "b")
    if like.kind == "t" and literal.kind == "i":
        names.typed.units_unsaid += unit_unsaid(value, like)
        return names.typed.literal(Time(value), "t")
    return literal


def unit_unsaid(number: int, like: Node) -> list[str]:
    """Return the error about a whole number beside a time. For 0, there is no error, because 0 is 1970 in every unit."""
    # Not refused here: plans that were saved before this was asked have counted microseconds.
    if number == 0 or isinstance(number, Time):
        return []
    return [
        f"the constant {number} is used with {origin(like).name or 'a value'!r}, which is a time, but a number has no unit; "
        f"write datetime(2026, 1, 31, 9, 30), or cb.lit({number}).cast('time', unit='s') with its unit, 's', 'ms', 'us' or "
        "'ns'"
    ]


def compare(op: str) -> Callable[[Names, tuple[Node, ...], dict[str, Any]], Node]:
    def build(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
        a, b = args
        if b.op == "literal" and a.kind in "it" and b.kind != "f":
            b = fit_literal(names, b, a)
        return names.typed.call(op, (a, b))

    return build


def cast(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    (value,) = args
    wanted = kind_named(str(params["to"]))
    if wanted is None or wanted.endswith("k"):
        raise PlanError(
            f"cast cannot convert to {check_parameters.shown(params['to'])}; expected int, float, str, bool or time"
        )
    if value.kind.startswith("*") and not wanted.startswith("*"):
        wanted = "*" + wanted
    if wanted.startswith("*") and not value.kind.startswith("*"):
        raise PlanError(
            f"cast of {origin(value).name!r} ({name_of(value.kind)}) to a list is not possible; use .split(…) or .json(…)"
        )
    if params.get("unit") is not None:
        return time_of_number(names, value, str(params["unit"]))
    if value.kind == wanted:
        return value
    if (value.kind, wanted) == ("i", "t"):
        # Not refused here: plans that were saved before a unit could be said have counted microseconds.
        names.typed.units_unsaid.append(
            f"cast to time of {origin(value).name or 'a number'!r}, which is int, needs the unit that it counts since 1970: "
            ".cast('time', unit='s'), or 'ms', 'us' or 'ns'; in a view, write this cast in .with_columns(…)"
        )
    return names.typed.call(f"cast_{wanted[-1]}", (value,), shown=f"cast to {params['to']}")


def time_of_number(names: Names, value: Node, unit: str) -> Node:
    """Convert a whole number that counts ``unit`` since 1970 to a time; null outside the years 0001 to 9999."""
    typed, each = names.typed, MICROSECONDS.get(checked_unit(unit), 1)
    if value.kind != "i":
        cure = {
            "f": "; make it a whole number of microseconds first; if it counts seconds: "
            "(col(…) * 1000000).round().cast('int').cast('time', unit='us')",
            "s": "; cast text without unit=, or convert it to a number first: .cast('int').cast('time', unit='s')",
            "t": "; it needs no cast",
        }.get(value.kind, "")
        raise PlanError(
            f"cast to time with unit={unit!r} takes whole numbers, but {origin(value).name!r} is {name_of(value.kind)}{cure}"
        )
    first, last = FIRST // each, LAST // each
    if value.op == "literal":
        number = value.param("value")
        if unit != "ns" and not first <= number <= last:
            raise PlanError(
                f"cast to time with unit={unit!r} of {number} is a time outside the years 0001 to 9999; check the unit"
            )
        return typed.literal(Time(number // 1000 if unit == "ns" else number * each), "t")
    if unit == "ns":  # 64 bits of nanoseconds are the years 1677 to 2262
        kept = typed.call("floordiv", (value, typed.literal(1000)))
    else:
        # The product wraps where it leaves 64 bits; that lies outside the years, and dividing by 0 makes it null.
        inside = typed.call("eq", (typed.call("clip", (value,), ints=(first, last)), value))
        scaled = typed.call("mul", (value, typed.literal(each))) if each > 1 else value
        kept = typed.call("floordiv", (scaled, typed.call("cast_i", (inside,))))
    why = f"cast to time with unit={unit!r} has no value outside the years 0001 to 9999"
    return typed.call("cast_t", (kept,), why=why)


def unit_of(node: Node) -> str | None:
    """Return the unit of a cast from a whole number to a time, as `time_of_number` builds it; None for any other node."""
    if node.op != "cast_t" or node.args[0].kind != "i":
        return None
    kept = node.args[0]
    if kept.op != "floordiv":
        return "us"  # a plan that was saved before a unit could be said
    scaled, divisor = kept.args
    if divisor.op == "literal":
        return "ns"
    value = divisor.args[0].args[1]  # cast_i(eq(clip(value), value))
    if scaled is value:
        return "us"
    return next(unit for unit, each in MICROSECONDS.items() if each == scaled.args[1].param("value"))


def select(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    condition, a, b = args
    if a.op == "literal":
        a = fit_literal(names, a, b)
    if b.op == "literal":
        b = fit_literal(names, b, a)
    return names.typed.call("select", (condition, a, b), nullable=a.nullable or b.nullable)


def is_null(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    return names.typed.call("is_null", args, nullable=False)


def clip(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    low, high = plain(params["low"]), plain(params["high"])
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise PlanError(f"clip needs a number for each bound, got {check_parameters.shown(bound)}")
        if isinstance(bound, int) and not check_parameters.fits_64_bits(bound):
            raise PlanError(f"clip: {check_parameters.too_long(bound)}")
    if not low <= high:
        raise PlanError(f"clip needs low <= high, got low={low!r} and high={high!r}")
    if args[0].kind == "i" and isinstance(low, int) and isinstance(high, int):
        return names.typed.call("clip", args, ints=(low, high))
    value = names.typed.widen(args[0], "f") if args[0].kind in "bi" else args[0]
    return names.typed.call("clip", (value,), floats=(float(low), float(high)))


def bucketize(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    value = names.typed.widen(args[0], "f") if args[0].kind in "bi" else args[0]
    if value.kind != "f":
        raise PlanError(f"bucketize takes a number, not {name_of(value.kind)} ({origin(value).name!r})")
    if "boundaries" in params:
        table = TableSpec("boundaries", check_parameters.boundaries(params["boundaries"]))
    else:
        parts = check_parameters.whole("bucketize", "quantiles", params["quantiles"])
        table = TableSpec("fit", names.fit("quantiles", (value,), (("quantiles", parts),)), "quantiles")
    return names.typed.call("bucketize", (value,), table=table)


def standardize(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    value = names.typed.widen(args[0], "f") if args[0].kind in "bi" else args[0]
    if value.kind != "f":
        raise PlanError(f"standardize takes a number, not {name_of(value.kind)} ({origin(value).name!r})")
    table = TableSpec("fit", names.fit("moments", (value,), ()), "moments")
    return names.typed.call("standardize", (value,), table=table)


def is_in(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    (value,) = args
    values = check_parameters.listed("is_in", params["values"])
    if value.kind == "b":
        value = names.typed.widen(value, "i")
    sets: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "i": ("int_set", lambda v: isinstance(v, int) and not isinstance(v, Time) and check_parameters.fits_64_bits(v)),
        "t": ("int_set", lambda v: isinstance(v, int) and check_parameters.fits_64_bits(v)),
        "f": ("float_set", lambda v: isinstance(v, float) or (isinstance(v, int) and abs(v) < 2**1023)),
        "s": ("str_set", lambda v: isinstance(v, str | bytes)),
    }
    if value.kind not in sets:
        raise PlanError(f"is_in takes int, float, str or time, not {name_of(value.kind)} ({origin(value).name!r})")
    table, fits = sets[value.kind]
    for v in values:
        if not fits(v):
            raise PlanError(
                f"is_in on {origin(value).name!r} ({name_of(value.kind)}, 64 bits) cannot contain "
                f"{check_parameters.shown(v)} ({type(v).__name__}); give values of the type of the column"
            )
    if value.kind == "s":
        values = tuple(encoded("is_in", v) for v in values)
    elif value.kind == "f":
        values = tuple(float(v) for v in values)
    else:
        if value.kind == "t":
            names.typed.units_unsaid += [told for v in values for told in unit_unsaid(v, value)]
        values = tuple(int(v) for v in values)
    return names.typed.call("is_in", (value,), table=TableSpec(table, values))


def age(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    unit = params["unit"]
    if not isinstance(unit, str) or unit not in UNITS:
        raise PlanError(f"age needs a unit of {', '.join(UNITS)}, got {check_parameters.shown(unit)}")
    return names.typed.call("age", args, floats=(UNITS[unit],))


def contains(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    if len(args) == 1:
        return names.typed.call("contains", args, texts=(encoded("contains", params["text"]),))
    return names.typed.call("contains", (hashed(names, args[0], "contains"), hashed(names, args[1], "contains")))


def json(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    (value,) = args
    kind = kind_named(str(params["to"]))
    if kind not in ("s", "i", "f", "b", "*s", "*i", "*f"):
        raise PlanError(
            f"json can return str, int, float, bool or a list of str, int or float, not {check_parameters.shown(params['to'])}"
        )
    if value.kind != "s":
        raise PlanError(f"json reads a str column; {origin(value).name!r} is {name_of(value.kind)}")
    path, strict = params["path"], plain(params["strict"])
    if not isinstance(path, str) or not isinstance(strict, bool):
        raise PlanError(
            f"json needs a path and strict=True or False, got {check_parameters.shown(path)} and {check_parameters.shown(strict)}"
        )
    try:
        path.encode()
        _native.JsonPaths([path], [kind])
    except UnicodeEncodeError:
        raise PlanError(f"JSON path {check_parameters.shown(path)} is not valid text") from None
    except ValueError as error:
        raise PlanError(str(error)) from None
    why = f"JSON path {path} of {origin(value).name!r} can be missing"
    return names.typed.node("json", (value,), (("path", path), ("strict", strict)), kind, nullable=True, why=why)


def hashed(names: Names, value: Node, op: str) -> Node:
    if value.kind in ("k", "*k"):
        return value
    if value.kind.endswith("f"):
        one = "one element, .get(n) or .max(), and " if value.kind == "*f" else ""
        raise PlanError(
            f"{op}: {origin(value).name!r} is {name_of(value.kind)}, which cannot be a key, because numbers that are nearly "
            f"equal would get unrelated keys; use {one}.bucketize([…]) or .round().cast('int').fill(0), or put it under dense"
        )
    return names.typed.call("hash", (value,))


def key(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    space = params["space"]
    if space is None:
        raise PlanError(
            "key needs a space here, because it is not a sparse feature whose name it could use: .key(space='…')"
        )
    return salted(names, hashed(names, args[0], "key"), space)


def as_key(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    if args[0].kind not in ("i", "*i"):
        raise PlanError(
            f"as_key takes whole numbers that are already keys; {origin(args[0]).name!r} is {name_of(args[0].kind)}; use .key()"
        )
    if params["space"] is not None:
        check_parameters.name("a key's space", params["space"])
    return names.typed.call("as_key", args)


def salted(names: Names, value: Node, space: str) -> Node:
    salt = _native.salt(check_parameters.name("a key's space", space))
    return names.typed.call("key", (value,), ints=(salt - 2**64 if salt >= 2**63 else salt,))


def crossed(names: Names, args: tuple[Node, ...], limit: int) -> Node:
    """Combine all members by crossing two at a time.

    Only the last step cuts at ``limit`` and counts the row. The steps before it keep one key more, which tells the last one that
    there were too many.
    """
    result = hashed(names, args[0], "cross")
    for k, member in enumerate(args[1:], 2):
        member = hashed(names, member, "cross")
        cut: dict[str, Any] = {}
        if result.kind == "*k" or member.kind == "*k":
            cut = {"ints": (limit,)} if k == len(args) else {"ints": (limit + 1,), "quiet": True}
        result = names.typed.call("cross", (result, member), **cut)
    return result


def cross(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    if len(args) < 2:
        raise PlanError("cross needs two or more columns or expressions, such as cb.cross('user', 'ad')")
    folded = crossed(names, args, check_parameters.whole("cross", "limit", params["limit"]))
    return folded if params["space"] is None else salted(names, folded, params["space"])


def ngrams(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    value = args[0] if args[0].kind == "s" else hashed(names, args[0], "ngrams")
    return names.typed.call("ngrams", (value,), ints=(check_parameters.whole("ngrams", "n", params["n"]),))


def overlap_count(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    return names.typed.call("overlap_count", tuple(hashed(names, a, "overlap") for a in args))


def overlap_jaccard(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    """Compute the Jaccard index from the sizes of both sets and of what they share, each of which is an operator of its own."""
    sets = [hashed(names, a, "overlap") for a in args]
    sizes = [names.typed.call("distinct_count", (s,)) for s in sets]
    return names.typed.call("jaccard", (names.typed.call("overlap_count", tuple(sets)), *sizes))


def dictionary(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    table, default = params["table"], plain(params["default"])
    if not isinstance(table, Dictionary):
        raise PlanError(f"lookup needs a cb.Dictionary, got {type(table).__name__}")
    word = args[0]
    if word.kind.lstrip("*") != table.word_kind:
        raise PlanError(
            f"lookup of {origin(word).name!r} ({name_of(word.kind)}) in a dictionary of {name_of(table.word_kind)}; "
            f"cast the column or the words"
        )
    value, spec = hashed(names, word, "lookup"), TableSpec("dictionary", table)
    if table.width:
        return names.typed.call("dictionary_vector", (value,), table=spec)
    if default is None and word.kind.startswith("*"):
        raise PlanError(
            "lookup of a list needs a default for words that the dictionary does not contain: .lookup(dictionary, default=0)"
        )
    if default is None:
        return names.typed.call("dictionary_maybe", (value,), table=spec, shown="lookup")
    if not isinstance(default, int) or not check_parameters.fits_64_bits(default):
        raise PlanError(
            f"the default of a dictionary of ids must be a whole number of 64 bits, got {check_parameters.shown(default)}"
        )
    return names.typed.call("dictionary_id", (value,), table=spec, ints=(int(default),))


def history(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    """Return the node of a click history. ``args``: label, time, then the parts of the key."""
    label, time, *members = args
    params = check_parameters.history(params)
    if not members:
        raise PlanError(f"{params['what']} needs the columns to group by")
    if time.kind != "t":
        advice = {"i": f"; {UNIT_ADVICE}", "s": "; make it a time with .cast('time')"}.get(time.kind, "")
        raise PlanError(
            f"{params['what']} needs a time column, but {origin(time).name!r} is {name_of(time.kind)}{advice}"
        )
    value = crossed(names, tuple(members), 1) if len(members) > 1 else hashed(names, members[0], params["what"])
    if value.kind != "k":
        lists = next(m for m in members if m.kind.startswith("*"))
        raise PlanError(f"{params['what']} counts single values, not lists ({origin(lists).name!r})")
    click = names.typed.widen(label, "f") if label.kind in "bi" else label
    if click.kind != "f":
        raise PlanError(
            f"{params['what']} needs a label of numbers, but {origin(label).name!r} is {name_of(label.kind)}"
        )
    fit = names.fit("history", (value, time, click), (("every", params["every"]),))
    call: dict[str, Any] = {"table": TableSpec("fit", fit, "history"), "ints": (params["every"], params["buckets"])}
    if params["what"] == "rate":
        call["floats"] = (params["prior"], params["weight"])
    return names.typed.call(f"history_{params['what']}", (value, time), **call)


def user(names: Names, args: tuple[Node, ...], params: dict[str, Any]) -> Node:
    function = params["function"]
    if not isinstance(function, UserOperator):
        raise PlanError(f"an operator must be declared with @cb.operator, got {check_parameters.shown(function)}")
    if len(args) != len(function.args):
        raise PlanError(f"operator {function.name!r} takes {len(function.args)} columns, got {len(args)}")
    return names.user(function, args)


SPECIAL: dict[str, Callable[[Names, tuple[Node, ...], dict[str, Any]], Node]] = {
    "fill": fill,
    "cast": cast,
    "select": select,
    "is_null": is_null,
    "clip": clip,
    "bucketize": bucketize,
    "standardize": standardize,
    "is_in": is_in,
    "age": age,
    "contains": contains,
    "json": json,
    "key": key,
    "as_key": as_key,
    "cross": cross,
    "ngrams": ngrams,
    "overlap_count": overlap_count,
    "overlap_jaccard": overlap_jaccard,
    "dictionary": dictionary,
    "history": history,
    "user": user,
    **{op: compare(op) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
}
