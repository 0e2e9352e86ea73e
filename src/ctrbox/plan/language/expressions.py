"""Defines the expressions that users write. Each call is one operator; nothing is computed here.

An expression is plain immutable data (operator, arguments, parameters), so it can be compared, saved and shared. Types are
checked when a plan is built, because the columns are known only then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from ctrbox.arguments.names import no_attribute
from ctrbox.columns.times import checked_unit
from ctrbox.errors import PlanError
from ctrbox.plan.language import check_parameters
from ctrbox.plan.language.source_line import Where, written_at

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_SHOWN = 100_000  # characters of an expression; sharing hides how long one is

# Names that pandas, polars and SQL have, and what does the same here.
INSTEAD = {
    **dict.fromkeys(("dayofweek", "day_of_week", "isoweekday"), ".weekday(); Monday is 0"),
    **dict.fromkeys(
        ("dt", "str", "list"), "the method without it: col('ts').hour(), col('query').lower(), col('tags').length()"
    ),
    **dict.fromkeys(("fillna", "fill_null", "coalesce"), ".fill(0)"),
    **dict.fromkeys(("isnull", "isna"), ".is_null()"),
    **dict.fromkeys(("notnull", "notna"), ".is_not_null()"),
    "astype": ".cast('int'), or 'float', 'bool', 'str' or 'time' in place of 'int'",
    "log": ".log1p(), which is log(1 + x)",
    **dict.fromkeys(("len", "size"), ".length()"),
    **dict.fromkeys(("unique", "drop_duplicates"), ".distinct()"),
    **dict.fromkeys(("trim", "str_strip"), ".strip()"),
    **dict.fromkeys(("date", "dayofyear"), ".epoch_day(), the number of days since 1970"),
    **dict.fromkeys(("map", "apply", "map_elements"), "an operator of your own: cb.operator"),
}


@dataclass(frozen=True, eq=False)
class Expr:
    """A column or a computation on columns. Build one with ``col`` or ``lit`` and the methods below."""

    op: str
    args: tuple[Expr, ...] = ()
    params: tuple[tuple[str, Any], ...] = ()
    _written_at: Where | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_written_at", written_at())  # for errors that are found when a plan is built

    def _call(self, op: str, *args: Any, **params: Any) -> Expr:
        return Expr(op, (self, *(expression(a) for a in args)), tuple(sorted(params.items())))

    def __repr__(self) -> str:
        return render(self)

    def __bool__(self) -> bool:
        raise PlanError(
            "an expression has no value while the plan is built, so it cannot be used with if, and, or, not; combine "
            "conditions with & | ~, and put comparisons in parentheses"
        )

    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # so that type checkers still refuse unknown methods

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("an expression", name, dir(type(self)), INSTEAD)

    # ---- nulls and types
    def fill(self, value: Any) -> Expr:
        """Replace nulls by ``value``."""
        return self._call("fill", value)

    def is_null(self) -> Expr:
        return self._call("is_null")

    def is_not_null(self) -> Expr:
        """Return whether there is a value: ``.filter(col("click").is_not_null())`` drops the rows without one."""
        return ~self.is_null()

    def cast(self, to: str, *, unit: str | None = None) -> Expr:
        """Convert to "int", "float", "str", "bool" or "time". A value that cannot be converted becomes null.

        A whole number becomes a time only with ``unit``, which says what the number counts since 1970 UTC: "s" (seconds),
        "ms" (milliseconds), "us" (microseconds) or "ns" (nanoseconds, rounded down to microseconds). A number outside the
        years 0001 to 9999 becomes null. Text has no unit.
        """
        if unit is None:
            return self._call("cast", to=to)
        if to != "time":
            raise PlanError(f"cast to {check_parameters.shown(to)} takes no unit=; only .cast('time', unit='s') does")
        return self._call("cast", to=to, unit=checked_unit(unit))

    # ---- arithmetic
    def __add__(self, other: Any) -> Expr:
        return self._call("add", other)

    def __radd__(self, other: Any) -> Expr:
        return expression(other)._call("add", self)

    def __sub__(self, other: Any) -> Expr:
        return self._call("sub", other)

    def __rsub__(self, other: Any) -> Expr:
        return expression(other)._call("sub", self)

    def __mul__(self, other: Any) -> Expr:
        return self._call("mul", other)

    def __rmul__(self, other: Any) -> Expr:
        return expression(other)._call("mul", self)

    def __truediv__(self, other: Any) -> Expr:
        return self._call("div", other)

    def __rtruediv__(self, other: Any) -> Expr:
        return expression(other)._call("div", self)

    def __floordiv__(self, other: Any) -> Expr:
        return self._call("floordiv", other)

    def __rfloordiv__(self, other: Any) -> Expr:
        return expression(other)._call("floordiv", self)

    def __mod__(self, other: Any) -> Expr:
        return self._call("mod", other)

    def __rmod__(self, other: Any) -> Expr:
        return expression(other)._call("mod", self)

    def __neg__(self) -> Expr:
        return self._call("neg")

    def abs(self) -> Expr:
        return self._call("abs")

    def sqrt(self) -> Expr:
        return self._call("sqrt")

    def log1p(self) -> Expr:
        return self._call("log1p")

    def round(self, digits: int = 0) -> Expr:
        return self._call("round", digits=digits)

    def floor(self) -> Expr:
        return self._call("floor")

    def ceil(self) -> Expr:
        return self._call("ceil")

    def clip(self, low: float, high: float) -> Expr:
        """Limit values to the range [low, high]."""
        return self._call("clip", low=low, high=high)

    def is_nan(self) -> Expr:
        return self._call("is_nan")

    def bucketize(self, boundaries: Sequence[float] | None = None, *, quantiles: int | None = None) -> Expr:
        """Return the number of boundaries at or below the value.

        The boundaries are given, or they are ``quantiles`` quantiles that are fitted on the log.
        """
        if (boundaries is None) == (quantiles is None):
            raise PlanError("bucketize needs either boundaries=[…] or quantiles=n, and not both")
        if boundaries is not None:
            return self._call("bucketize", boundaries=check_parameters.boundaries(boundaries))
        return self._call("bucketize", quantiles=check_parameters.whole("bucketize", "quantiles", quantiles))

    def standardize(self) -> Expr:
        """Return (x − mean) / standard deviation, both fitted on the log."""
        return self._call("standardize")

    # ---- comparison and logic
    def __eq__(self, other: object) -> Expr:  # type: ignore[override]  # an expression, as in every frame library
        return self._call("eq", other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return self._call("ne", other)

    def __lt__(self, other: Any) -> Expr:
        return self._call("lt", other)

    def __le__(self, other: Any) -> Expr:
        return self._call("le", other)

    def __gt__(self, other: Any) -> Expr:
        return self._call("gt", other)

    def __ge__(self, other: Any) -> Expr:
        return self._call("ge", other)

    def __and__(self, other: Any) -> Expr:
        return self._call("and", other)

    def __rand__(self, other: Any) -> Expr:
        return expression(other)._call("and", self)

    def __or__(self, other: Any) -> Expr:
        return self._call("or", other)

    def __ror__(self, other: Any) -> Expr:
        return expression(other)._call("or", self)

    def __invert__(self) -> Expr:
        return self._call("not")

    def is_in(self, values: Iterable[Any]) -> Expr:
        """Return whether the value is one of the given values."""
        return self._call("is_in", values=tuple(plain(v) for v in check_parameters.listed("is_in", values)))

    # ---- time
    def hour(self, offset_minutes: int = 0) -> Expr:
        return self._call("hour", offset=offset_minutes)

    def minute(self, offset_minutes: int = 0) -> Expr:
        return self._call("minute", offset=offset_minutes)

    def weekday(self, offset_minutes: int = 0) -> Expr:
        """Return the day of the week; Monday is 0."""
        return self._call("weekday", offset=offset_minutes)

    def day(self, offset_minutes: int = 0) -> Expr:
        """Return the day of the month, from 1."""
        return self._call("day", offset=offset_minutes)

    def month(self, offset_minutes: int = 0) -> Expr:
        return self._call("month", offset=offset_minutes)

    def year(self, offset_minutes: int = 0) -> Expr:
        return self._call("year", offset=offset_minutes)

    def epoch_day(self, offset_minutes: int = 0) -> Expr:
        """Return the number of days since 1970-01-01."""
        return self._call("epoch_day", offset=offset_minutes)

    def age(self, since: Any, unit: str = "seconds") -> Expr:
        """Return the time that passed from ``since`` to this time, as a float in "seconds", "minutes", "hours" or "days"."""
        return self._call("age", since, unit=unit)

    # ---- strings
    def length(self) -> Expr:
        """Return the number of code points of a string, or of elements of a list."""
        return self._call("length")

    def byte_length(self) -> Expr:
        return self._call("byte_length")

    def lower(self) -> Expr:
        return self._call("lower")

    def strip(self, characters: str = "") -> Expr:
        """Remove white space (or the given characters) from both ends."""
        return self._call("strip", characters=characters)

    def prefix(self, n: int) -> Expr:
        return self._call("prefix", n=n)

    def suffix(self, n: int) -> Expr:
        return self._call("suffix", n=n)

    def substring(self, start: int, length: int = -1) -> Expr:
        """Return ``length`` code points from ``start`` on.

        A negative ``start`` counts from the end; ``length=-1`` takes all code points to the end.
        """
        return self._call("substring", start=start, length=length)

    def contains(self, needle: Any) -> Expr:
        """Return whether a string contains the given text, or a list of keys the given key."""
        if isinstance(needle, Expr):
            return self._call("contains", needle)
        return self._call("contains", text=needle)

    def starts_with(self, text: str) -> Expr:
        return self._call("starts_with", text=text)

    def ends_with(self, text: str) -> Expr:
        return self._call("ends_with", text=text)

    def replace(self, old: str, new: str) -> Expr:
        return self._call("replace", old=old, new=new)

    def split(self, separator: str) -> Expr:
        """Split a string into the tokens between separators; an empty string has none."""
        check_parameters.separator("split", separator)
        return self._call("split", separator=separator)

    def words(self) -> Expr:
        """Split a string into words: runs of letters and digits of any script.

        Each Han, Hiragana or Katakana character is a word.
        """
        return self._call("words")

    def ngrams(self, n: int) -> Expr:
        """Return every run of n characters of a string, or a key for every n consecutive elements of a list."""
        return self._call("ngrams", n=check_parameters.whole("ngrams", "n", n))

    def edit_distance(self, other: Any, limit: int = 8) -> Expr:
        """Return the Levenshtein distance in characters, or limit + 1 if it is larger than ``limit`` (at most 64)."""
        return self._call("edit_distance", other, limit=check_parameters.whole("edit_distance", "limit", limit))

    def json(self, path: str, to: str = "str", *, strict: bool = False) -> Expr:
        """Return the value at a path such as "$.geo.city" of a JSON text; null if it is absent.

        Its type is "str", "int", "float", "bool" or "list[…]". A value of another type gives null (an element of a list is left
        out), and ``plan.casts`` counts it.

        A document that is not JSON gives null and a counted warning, or an error with ``strict=True``.
        """
        return self._call("json", path=path, to=to, strict=strict)

    # ---- lists
    def first(self, n: int) -> Expr:
        return self._call("first", n=n)

    def last(self, n: int) -> Expr:
        return self._call("last", n=n)

    def get(self, index: int) -> Expr:
        """Return one element of a list; null if the list is too short. A negative index counts from the end."""
        return self._call("get", index=index)

    def join(self, separator: str) -> Expr:
        return self._call("join", separator=separator)

    def distinct(self) -> Expr:
        return self._call("distinct")

    def sum(self) -> Expr:
        return self._call("sum")

    def mean(self) -> Expr:
        return self._call("mean")

    def min(self) -> Expr:
        return self._call("min")

    def max(self) -> Expr:
        return self._call("max")

    # ---- keys
    def hash(self) -> Expr:
        """Return the 64-bit hash of a value. ``key`` mixes this hash with the name of a space."""
        return self._call("hash")

    def key(self, space: str | None = None) -> Expr:
        """Return the 64-bit key of a value, or of each element of a list.

        ``space``: a name; equal values have different keys in different spaces. Default: the name of the feature.
        """
        return self._call("key", space=space)

    def as_key(self, space: str | None = None) -> Expr:
        """Use whole numbers as keys without hashing them, such as features written by ``plan.materialize``.

        0 is the key that means "no value", so ``.fill(0)`` before it means "no key"; lists are filled with ``[]``.
        """
        return self._call("as_key", space=space)

    def lookup(self, dictionary: Any, default: Any = None) -> Expr:
        """Return the value of a ``cb.Dictionary`` for a word, or for each word of a list; ``default`` for unknown words."""
        return self._call("dictionary", table=dictionary, default=default)

    def encode(self, encoder: Any) -> Expr:
        """Return the vector that a ``cb.tables.Encoder`` computes from a text, or from the bytes of an image, for ``dense``."""
        operator = getattr(encoder, "operator", None)
        if not callable(operator):
            raise PlanError(f"encode() takes a cb.tables.Encoder, got {type(encoder).__name__}")
        found: Expr = operator(self)
        return found


def plain(value: Any) -> Any:
    """Return a Python value as a literal. Times become microseconds and are marked as times."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return Time((moment - EPOCH) // timedelta(microseconds=1))
    if isinstance(value, date):
        return Time((datetime(value.year, value.month, value.day, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1))
    if isinstance(value, np.datetime64) and not np.isnat(value):
        if not -290_000 < int(value.astype("datetime64[Y]").astype(np.int64)) < 290_000:
            raise PlanError(
                f"the constant {value!r} does not fit into 64-bit microseconds; expected years up to 290,000"
            )
        return Time(int(value.astype("datetime64[us]").astype(np.int64)))  # a finer unit is rounded down
    if isinstance(value, np.timedelta64):
        return value  # its number alone would say nothing about its unit
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        try:
            return value.item()  # NumPy scalars
        except (ValueError, TypeError, RuntimeError):
            return value  # an array of several; whoever asked says what it needs
    return value


class Time(int):
    """A time as a literal, in microseconds since 1970 UTC."""


def expression(value: Any) -> Expr:
    """Return an expression unchanged, and anything else as a literal."""
    return value if isinstance(value, Expr) else lit(value)


def column(value: Any) -> Expr:
    """Return an expression unchanged, and a string as the column of this name."""
    return col(value) if isinstance(value, str) else expression(value)


def col(name: str) -> Expr:
    """Return a column of the log or of a joined view, or a column that ``with_columns`` made."""
    if not isinstance(name, str) or not name:
        raise PlanError(f"col needs the name of a column, got {name!r}")
    return Expr("column", (), (("name", name),))


def lit(value: Any) -> Expr:
    """Return a constant as an expression."""
    value = plain(value)
    if isinstance(value, list | tuple):
        if value:
            raise PlanError(
                "a list can be a constant only if it is empty; to compare with several values, use is_in([...])"
            )
        value = ()
    elif not isinstance(value, bool | int | float | str | bytes):
        raise PlanError(
            f"a constant must be a number, a string, a bool or a time, got {type(value).__name__} {check_parameters.shown(value)}"
        )
    return Expr("literal", (), (("value", value),))


@dataclass(frozen=True)
class Then:
    condition: Expr
    value: Expr

    def otherwise(self, value: Any) -> Expr:
        return Expr("select", (self.condition, self.value, expression(value)))


@dataclass(frozen=True)
class When:
    condition: Expr

    def then(self, value: Any) -> Then:
        return Then(self.condition, expression(value))


def when(condition: Expr) -> When:
    """Begin a choice: ``when(condition).then(a).otherwise(b)``. Where the condition is null, the result is ``b``."""
    return When(expression(condition))


def cross(*members: Any, limit: int = 1024) -> Expr:
    """Return one key for each combination of the values of the members.

    Members are names of columns or expressions. If members are lists, each combination of their elements gets a key.

    A row gets at most ``limit`` keys; ``plan.warnings`` counts the rows that have more combinations.
    """
    if len(members) < 2:
        raise PlanError("cross needs two or more columns or expressions, such as cb.cross('user', 'ad')")
    most = check_parameters.whole("cross", "limit", limit)
    return Expr("cross", tuple(column(m) for m in members), (("limit", most), ("space", None)))


def overlap(a: Any, b: Any, measure: str = "count") -> Expr:
    """Compare two lists by their distinct values.

    "count" returns the number of values that occur in both lists. "jaccard" divides this number by the number of values that
    occur in at least one of them.
    """
    if measure not in ("count", "jaccard"):
        raise PlanError(f"the measure of overlap must be 'count' or 'jaccard', got {measure!r}")
    return Expr(f"overlap_{measure}", (column(a), column(b)))


def concat(*parts: Any, sep: str = "") -> Expr:
    """Join strings, with ``sep`` between them."""
    if not parts:
        raise PlanError("concat needs at least one column or expression")
    found = [column(part) for part in parts]
    while len(found) > 1:  # neighbors in pairs: what is copied grows as n log n, not as n²
        pairs = [a._call("concat", b, separator=sep) for a, b in zip(found[::2], found[1::2], strict=False)]
        found = pairs + found[len(pairs) * 2 :]
    return found[0]


def min_(a: Any, b: Any) -> Expr:
    """Return the smaller of two values of a row."""
    return column(a)._call("min", column(b))


def max_(a: Any, b: Any) -> Expr:
    """Return the larger of two values of a row."""
    return column(a)._call("max", column(b))


def render(e: Expr) -> str:
    """Return an expression as the user would have written it, cut off if it is long."""
    parts: list[str] = []
    length = 0
    waiting: list[Expr | str] = [e]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Expr):
            waiting.extend(reversed(pieces(here)))
            continue
        parts.append(here)
        length += len(here)
        if length > MOST_SHOWN:
            return "".join(parts)[: MOST_SHOWN - 1] + "…"
    return "".join(parts)


def pieces(e: Expr) -> list[Expr | str]:
    """Return a call as text, and the expressions between its parts."""
    params = dict(e.params)
    if e.op == "column":
        return [f"col({params['name']!r})"]
    if e.op == "literal":
        return [check_parameters.shown(params["value"], 1000)]
    shown: list[list[Expr | str]] = [[a] for a in e.args[1:]]
    shown += [[f"{k}={check_parameters.shown(v, 1000)}"] for k, v in params.items() if v is not None and k != "strict"]
    found: list[Expr | str] = [*e.args[:1], f".{e.op}("]
    for k, part in enumerate(shown):
        found += [*([", "] if k else []), *part]
    return [*found, ")"]
