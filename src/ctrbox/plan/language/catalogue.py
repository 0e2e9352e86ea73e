"""Generates the tables of operators in docs/operators/*.md: syntax, kinds and behavior.

The ``catalogue_<family>`` modules describe the behavior, and the native catalogue has the kinds. This module adds the notation of
each row (``WRITTEN``). ``tools/make_operator_docs.py`` writes the table of each family into its page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ctrbox import _native
from ctrbox.columns.kind import NAMES
from ctrbox.plan.language import catalogue_keys, catalogue_lists, catalogue_numbers, catalogue_strings
from ctrbox.plan.language.catalogue_phrases import GENERAL, NULL

# Anything that a key can be made of: hashed on the way in.
HASHABLE = "H"
ORDER = [*NAMES, HASHABLE]
FAMILIES = {
    "keys": catalogue_keys.ROWS,
    "numbers": catalogue_numbers.ROWS,
    "strings": catalogue_strings.ROWS,
    "lists": catalogue_lists.ROWS,
}


@dataclass(frozen=True)
class Written:
    """The notation of a row. ``calls`` are methods of Expr (``.lower``) and functions of ``cb`` (``cross``)."""

    examples: tuple[str, ...]
    calls: tuple[str, ...]
    kernels: tuple[str, ...] = ()  # of the native catalogue
    kinds: str = ""  # where the native catalogue cannot tell
    hashed: bool = False  # key arguments may be anything that can be hashed


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    family: str
    name: str
    written: Written
    what: str
    null: str
    empty: str
    unicode: str
    overflow: str

    @property
    def kinds(self) -> str:
        return self.written.kinds or "; ".join(signatures(self.family, self.written))


def one(example: str, call: str, *kernels: str, kinds: str = "", hashed: bool = False) -> Written:
    return Written((example,), (call,), kernels, kinds, hashed)


def plain(names: str, columns: str) -> dict[str, Written]:
    """Return the methods without arguments whose kernel has the same name."""
    return {name: one(f'col("{columns}").{name}()', f".{name}", name) for name in names.split()}


def two_sided(op: str, sign: str, example: str) -> Written:
    return Written((example,), (f".__{sign}__", f".__r{sign}__"), (op,))


COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

KEYS = {
    "column": one('col("n")', "col", kinds="any"),
    "literal": Written(("lit(3)", 'lit("none")'), ("lit",), (), "bool, int, float, time, str"),
    "hash": one('col("s").hash()', ".hash", "hash"),
    "key": Written(('col("s").key()', 'col("words").key(space="query")'), (".key",), ("hash", "key"), hashed=True),
    "as_key": one('col("ids").as_key()', ".as_key", "as_key"),
    "cross": Written(
        ('cb.cross("n", "s")', 'cb.cross(col("words"), "s", limit=64)'),
        ("cross",),
        ("cross",),
        "two or more of H or list[H] → key, or list[key] if one of them is a list",
    ),
    "lookup": Written(
        ('col("s").lookup(cities)', 'col("words").lookup(cities, default=-1)'),
        (".lookup",),
        ("dictionary_id", "dictionary_maybe"),
        "int or str → int; list[int] or list[str] → list[int]",
    ),
    "lookup of vectors": one(
        'col("s").lookup(vectors)', ".lookup", "dictionary_vector", kinds="int or str → list[float]"
    ),
    "shows": one('cb.shows("s", time="ts", label="ok")', "shows", "history_shows", hashed=True),
    "clicks": one('cb.clicks("s", time="ts", label="ok", window="7d")', "clicks", "history_clicks", hashed=True),
    "rate": one('cb.rate("s", "n", time="ts", label="ok", every="6h")', "rate", "history_rate", hashed=True),
    "history": one(
        'view.with_history(clicks=cb.history("ad_id", by="user_id", time="ts", last=100))',
        "history",
        kinds="H, time, any but key → lists",
    ),
    "past": one(
        'view.with_history(shows=cb.past(by="ad_id", time="ts").count(within="1h"))',
        "past",
        kinds="H, time, a number or bool → int or float",
    ),
    "join": one('view.join(ads, on="ad_id")', "View.join", kinds="H → the columns of a view"),
    "merge": one("view.merge(basic)", "View.merge", kinds="int or str → the columns of a view"),
    "encode": one('col("s").encode(encoder)', ".encode", kinds="str → list[float]"),
    "operator": one(
        '@cb.operator(args=["str"], result="int")', "operator", kinds="any but key, as declared → any but key"
    ),
}

NUMBERS = {
    "add": two_sided("add", "add", 'col("n") + 1'),
    "sub": two_sided("sub", "sub", 'col("x") - col("n")'),
    "mul": two_sided("mul", "mul", '2 * col("x")'),
    "div": two_sided("div", "truediv", 'col("n") / col("x")'),
    "floordiv": two_sided("floordiv", "floordiv", 'col("n") // 60'),
    "mod": two_sided("mod", "mod", 'col("n") % 7'),
    "neg": one('-col("n")', ".__neg__", "neg"),
    **plain("abs sqrt log1p floor ceil standardize is_nan", "x"),
    "round": one('col("x").round(2)', ".round", "round"),
    "min": one('cb.min_("n", 10)', "min_", "min"),
    "max": one('cb.max_("n", col("x"))', "max_", "max"),
    "clip": one('col("x").clip(0, 100)', ".clip", "clip"),
    "bucketize": Written(
        ('col("x").bucketize([1, 10, 100])', 'col("x").bucketize(quantiles=20)'), (".bucketize",), ("bucketize",)
    ),
    **{op: one(f'col("n") {sign} 3', f".__{op}__", op) for op, sign in COMPARISONS.items()},
    "and": two_sided("and", "and", '(col("n") > 3) & col("ok")'),
    "or": two_sided("or", "or", 'col("ok") | col("x").is_nan()'),
    "not": one('~col("ok")', ".__invert__", "not"),
    "is_in": one('col("s").is_in(["ios", "android"])', ".is_in", "is_in"),
    "fill": one('col("s").fill("none")', ".fill", "fill"),
    "is_null": Written(
        ('col("s").is_null()', 'col("s").is_not_null()'),
        (".is_null", ".is_not_null"),
        ("is_null", "not"),
        kinds="T → bool; list[T] → bool",
    ),
    "select": one('when(col("ok")).then(1).otherwise(col("n"))', "when", "select"),
    **{f"cast_{to[0]}": one(f'col("s").cast("{to}")', ".cast", f"cast_{to[0]}") for to in ("int", "float")},
    "cast_t": Written(('col("s").cast("time")', 'col("n").cast("time", unit="s")'), (".cast",), ("cast_t",)),
    "cast_s": one('col("n").cast("str")', ".cast", "cast_s"),
    "cast_b": one('col("n").cast("bool")', ".cast", "cast_b"),
    **{
        part: Written(
            (f'col("ts").{part}()', f'col("ts").{part}(offset_minutes=480)')[: 2 if part == "hour" else 1],
            (f".{part}",),
            (part,),
        )
        for part in ("hour", "minute", "weekday", "day", "month", "year", "epoch_day")
    },
    "age": one('col("ts").age(col("seen"), "hours")', ".age", "age"),
    "json": Written(
        ('col("doc").json("$.geo.city")', 'col("doc").json("$.tags", "list[str]", strict=True)'),
        (".json",),
        ("json",),
        "str → str, int, float, bool, list[str], list[int], list[float]",
    ),
}

STRINGS = {
    **plain("length byte_length lower words", "s"),
    "strip": Written(('col("s").strip()', 'col("s").strip("#.")'), (".strip",), ("strip",)),
    "prefix": one('col("s").prefix(3)', ".prefix", "prefix"),
    "suffix": one('col("s").suffix(3)', ".suffix", "suffix"),
    "substring": one('col("s").substring(2, 5)', ".substring", "substring"),
    "contains": one('col("s").contains("sale")', ".contains", "contains"),
    "starts_with": one('col("s").starts_with("http")', ".starts_with", "starts_with"),
    "ends_with": one('col("s").ends_with(".com")', ".ends_with", "ends_with"),
    "replace": one('col("s").replace("-", " ")', ".replace", "replace"),
    "concat": one('cb.concat("s", "doc", sep="/")', "concat", "concat"),
    "split": one('col("s").split(" ")', ".split", "split"),
    "ngrams": one('col("s").ngrams(3)', ".ngrams", "ngrams"),
    "edit_distance": one('col("s").edit_distance(col("doc"), limit=8)', ".edit_distance", "edit_distance"),
    "eq ne lt le gt ge": Written(
        tuple(f'col("s") {sign} "m"' for sign in COMPARISONS.values()),
        tuple(f".__{op}__" for op in COMPARISONS),
        tuple(COMPARISONS),
    ),
}

LISTS = {
    "length": one('col("words").length()', ".length", "length"),
    "first": one('col("words").first(5)', ".first", "first"),
    "last": one('col("words").last(20)', ".last", "last"),
    "get": one('col("words").get(-1)', ".get", "get"),
    "join": one('col("words").join(" ")', ".join", "join"),
    "distinct": one('col("words").distinct()', ".distinct", "distinct"),
    "ngrams": one('col("words").ngrams(2)', ".ngrams", "ngrams", hashed=True),
    "overlap_count": one('cb.overlap("words", col("s").split(" "))', "overlap", "overlap_count", hashed=True),
    "overlap_jaccard": Written(
        ('cb.overlap("words", col("s").words(), "jaccard")',),
        ("overlap",),
        ("overlap_count", "distinct_count", "jaccard"),
        "list[H], list[H] → float",
    ),
    "contains": one('col("words").contains(col("s"))', ".contains", "contains", hashed=True),
    "sum": one('col("prices").sum()', ".sum", "sum"),
    "mean": one('col("prices").mean()', ".mean", "mean"),
    "max": one('col("ids").max()', ".max", "max"),
    "min": one('col("ids").min()', ".min", "min"),
}

WRITTEN = {"keys": KEYS, "numbers": NUMBERS, "strings": STRINGS, "lists": LISTS}

# Every operator, family by family, in the order of the page.
ROWS: tuple[Row, ...] = tuple(
    Row(family, name, WRITTEN[family][name], *texts) for family, rows in FAMILIES.items() for name, *texts in rows
)


# ---- kinds -------------------------------------------------------------------------------------------------


def signatures(family: str, written: Written) -> list[str]:
    """Return the arguments and results of a row by the native catalogue. Kernels that differ in one kind only share a T."""
    found: dict[str, dict[str, str]] = {}  # arguments with T → kind T stands for → result
    for name, arguments, result, _ in _native.catalogue():
        args = arguments.split(",")
        if name != written.kernels[-1] or not of_family(family, name, args):
            continue
        if written.hashed:
            args = [a.replace("k", HASHABLE) for a in args]
        kind = args[-1].lstrip("*")
        fixed = 1 if name == "select" else 0  # its condition is a bool, whatever the branches are
        shape = ", ".join([*map(shown, args[:fixed]), *(shown(a.replace(kind, "T")) for a in args[fixed:])])
        found.setdefault(shape, {})[kind] = result
    return [line for shape, results in found.items() for line in told(shape, results)]


def told(shape: str, results: dict[str, str]) -> list[str]:
    """Return the arguments for several kinds in words: up to two kinds are listed, and all kinds need no list."""
    kinds = sorted(results, key=ORDER.index)
    general = {r.replace(k, "T") for k, r in results.items()}
    if len(general) > 1:
        general = set(results.values())
    if len(kinds) <= 2 or len(general) > 1:
        return [f"{shape.replace('T', shown(k))} → {shown(results[k])}" for k in kinds]
    which = "" if len(kinds) == len(NAMES) else f", T: {', '.join(map(shown, kinds))}"
    return [f"{shape} → {shown(general.pop())}{which}"]


def of_family(family: str, name: str, args: list[str]) -> bool:
    """Return whether a kernel belongs to this family. length, contains, ngrams, min, max and comparisons belong to two."""
    if family == "lists":
        return args[0].startswith("*")
    if family == "strings":
        return args[0] == "s"
    if name in ("min", "max"):
        return len(args) == 2
    return name not in COMPARISONS or args[0] != "s"


def shown(kind: str) -> str:
    """Return the name of a kind in the documentation: 'list[str]' for '*s'. T and H stay letters."""
    inner = kind.lstrip("*")
    name = NAMES.get(inner, inner)
    return f"list[{name}]" if kind.startswith("*") else name


# ---- the pages ---------------------------------------------------------------------------------------------

COLUMNS = ("example", "kinds", "what it does", "special cases")


def markdown(family: str) -> str:
    """Return the table of a family, for docs/operators/FAMILY.md."""
    lines = [line_of(COLUMNS), line_of(["---"] * len(COLUMNS))]
    for row in ROWS:
        if row.family == family:
            written = "<br>".join(f"`{example}`" for example in row.written.examples)
            lines.append(line_of([written, f"`{row.kinds}`".replace("; ", "`<br>`"), row.what, special_cases(row)]))
    return "\n".join(lines) + "\n"


def special_cases(row: Row) -> str:
    """Return what a row says about nulls, empty values, Unicode and large numbers, without the rules of all operators."""
    texts = (row.null.removeprefix(NULL).strip(), row.empty, row.unicode, row.overflow)
    return " ".join(text for text in texts if text and text not in GENERAL)


def line_of(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
