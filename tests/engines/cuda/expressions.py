"""Expressions over the columns of hostile.py that together run every line of the native catalogue, edges of their
parameters included. Operators that learn from a log get `FITTED` in place of what they would have learned.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

import ctrbox as cb
from ctrbox import col
from ctrbox.plan.graph.graph import Graph
from tests.engines.cuda.hostile import INTS, TIMES, WORDS

DICTIONARY = cb.Dictionary([*WORDS, "", "42"], [2**62, -1, *range(len(WORDS))])
NUMBERED = cb.Dictionary([*INTS], list(range(100, 100 + len(INTS))))
VECTORS = cb.Dictionary([*WORDS], [[k, -k / 3, 1e300] for k in range(len(WORDS))])
EMPTY = cb.Dictionary(np.zeros(0, np.int64), np.zeros(0, np.int64))
COLUMNS = {  # kind → two columns of it
    "b": ("p", "q"),
    "i": ("n", "m"),
    "f": ("x", "y"),
    "t": ("t", "u"),
    "s": ("s", "r"),
    "*b": ("lp", "lp"),
    "*i": ("ln", "lm"),
    "*f": ("lx", "ly"),
    "*t": ("lt", "lt"),
    "*s": ("ls", "lr"),
}
TEXT = "a" * 300 + "é"


def keyed() -> dict[str, tuple[Any, Any]]:
    """Two expressions of every kind; keys are made."""
    two = {kind: (col(a), col(b)) for kind, (a, b) in COLUMNS.items()}
    return two | {"k": (col("n").hash(), col("s").hash()), "*k": (col("ln").hash(), col("ls").hash())}


def of_any_kind() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, (a, b) in keyed().items():
        found |= {
            f"{kind}.same": a,
            f"{kind}.fill": a.fill(b),
            f"{kind}.is_null": a.is_null(),
            f"{kind}.select": cb.when(col("p")).then(a).otherwise(b),
            f"{kind}.select_computed": cb.when(col("few") > 0).then(b).otherwise(a),
        }
        if kind.startswith("*"):
            found |= {f"{kind}.length": a.length(), f"{kind}.fill_empty": a.fill([])}
            found |= {f"{kind}.{op}({n})": getattr(a, op)(n) for op in ("first", "last") for n in (0, 2, 2**40)}
            found |= {f"{kind}.get({n})": a.get(n) for n in (0, 2, -1, -(2**40))}
            if kind != "*f":
                found[f"{kind}.distinct"] = a.distinct()
    found |= {f"same.{name}": col(name) for name in ("i8", "i16", "i32", "u8", "u16", "u32", "x32", "big", "d", "few")}
    found |= {f"same.{name}": col(name) for name in ("l8", "lu", "ly", "lr", "ld", "v", "doc", "num", "iso")}
    found |= {f"lit.{k}": cb.lit(v) for k, v in enumerate([True, 7, -(2**63), -0.0, float("nan"), "é", b"\xff", TEXT])}
    found["lit.time"] = cb.lit(datetime(2024, 2, 29, 23, 59, 59, 999_999))
    found["lit.fill_text"] = col("s").fill(TEXT)
    found["lit.fill_float"] = col("x").fill(-0.0)
    found["lit.select"] = cb.when(col("p")).then("yes").otherwise(TEXT)
    found["lit.both"] = cb.when(cb.lit(True)).then(cb.lit(1.5)).otherwise(col("x"))
    return found


def numbers() -> dict[str, Any]:
    n, m, x, y, p, q, few = (col(c) for c in ("n", "m", "x", "y", "p", "q", "few"))
    found: dict[str, Any] = {}
    for kind, (a, b) in {"i": (n, m), "f": (x, y), "small": (n, few), "u8": (col("u8"), col("i16"))}.items():
        found |= {
            f"add.{kind}": a + b,
            f"sub.{kind}": a - b,
            f"mul.{kind}": a * b,
            f"div.{kind}": a / b,
            f"floordiv.{kind}": a // b,
            f"neg.{kind}": -a,
            f"abs.{kind}": a.abs(),
            f"min.{kind}": cb.min_(a, b),
            f"max.{kind}": cb.max_(a, b),
        }
    for k, (a, b) in keyed().items():
        if not k.startswith("*"):
            found |= {f"eq.{k}": a == b, f"ne.{k}": a != b}
            if k != "k":
                found |= {f"lt.{k}": a < b, f"le.{k}": a <= b, f"gt.{k}": a > b, f"ge.{k}": a >= b}
    found |= {
        "eq.self": x == x,
        "ge.self": x >= x,
        "eq.k.same": n.hash() == col("few").hash(),
        "lt.s.lit": col("s") < "m",
    }
    casts: dict[str, dict[str, Any]] = {
        "float": {
            "i": n,
            "b": p,
            "s": col("num"),
            "text": col("s"),
            "*i": col("ln"),
            "*s": col("lnum"),
            "*text": col("ls"),
        },
        "int": {"b": p, "f": x, "t": col("t"), "s": col("num"), "*s": col("lnum"), "*text": col("ls")},
        "bool": {"i": n, "f": x},
        "str": {"i": n, "b": p, "*i": col("ln"), "*8": col("l8")},
    }
    for divisor in (7, -3, 0, -1, 2**63 - 1):
        found |= {f"mod({divisor})": n % divisor, f"floordiv({divisor})": n // divisor}
    found |= {
        "mod": n % few,
        "sub.t": col("t") - col("u"),
        "min.t": cb.min_("t", "u"),
        "max.t": cb.max_("t", "u"),
        "sqrt": x.sqrt(),
        "log1p": x.log1p(),
        "floor": x.floor(),
        "ceil": x.ceil(),
        "is_nan": x.is_nan(),
        **{f"round({k})": x.round(k) for k in (0, 1, 7, 15)},
        "and": p & q,
        "or": p | q,
        "not": ~p,
        "clip.i": n.clip(-3, 100),
        "clip.f": x.clip(-1.5, 2.5),
        "clip.inf": x.clip(float("-inf"), 0.1),
        "clip.ends": n.clip(-(2**63), 2**63 - 1),
        "clip.if": n.clip(-0.5, 0.5),
        **{f"{kind[0]}.{name}": value.cast(kind) for kind, values in casts.items() for name, value in values.items()},
        "is_in.i": n.is_in([0, -1, 2**63 - 1, -(2**63)]),
        "is_in.none": n.is_in([]),
        "is_in.few": few.is_in([-2, 2]),
        "is_in.f": x.is_in([0.0, 2.5, float("nan"), float("inf")]),
        "is_in.s": col("s").is_in([b"\xff", "", *WORDS]),
        "is_in.d": col("d").is_in(["靴", "no"]),
        "is_in.t": col("t").is_in([datetime(1970, 1, 1), datetime(2000, 2, 29)]),
        "bucketize": x.bucketize([-1.5, 0.0, 2.5, 1e300]),
        "bucketize.none": x.bucketize([]),
        "bucketize.i": n.bucketize([0]),
        "standardize": x.standardize(),
        "quantiles": x.bucketize(quantiles=4),
    }
    return found


def times() -> dict[str, Any]:
    found: dict[str, Any] = {
        "t.i": col("n").cast("time", unit="us"),
        "t.i.s": col("n").cast("time", unit="s"),
        "t.i.ns": col("n").cast("time", unit="ns"),
        "t.s": col("iso").cast("time"),
        "t.text": col("s").cast("time"),
    }
    for part in ("hour", "minute", "weekday", "day", "month", "year", "epoch_day"):
        found |= {f"{part}({offset})": getattr(col("t"), part)(offset) for offset in (0, 330, -1)}
    found |= {f"age.{unit}": col("t").age(col("u"), unit) for unit in ("seconds", "minutes", "hours", "days")}
    found["age.lit"] = col("t").age(datetime(2024, 1, 1))
    return found


def strings() -> dict[str, Any]:
    s, r, big, d = (col(c) for c in ("s", "r", "big", "d"))
    found: dict[str, Any] = {
        "lower": s.lower(),
        "lower.big": big.lower(),
        "lower.d": d.lower(),
        "lower.twice": s.lower().lower(),
        "strip": s.strip(),
        "strip(e靴\x00)": s.strip("e靴\x00"),
        "words": s.words(),
        "words.big": big.words(),
        **{f"prefix({n})": s.prefix(n) for n in (0, 1, 5, 2**40)},
        **{f"suffix({n})": s.suffix(n) for n in (0, 1, 5, 2**40)},
        **{
            f"substring{a}": s.substring(*a)
            for a in ((0, -1), (2, 3), (-3, 2), (-100, 2), (2**40, 1), (1, 0), (-1, -1))
        },
        **{f"contains({t!r})": s.contains(t) for t in ("", "e", "靴", TEXT)},
        **{f"starts_with({t!r})": s.starts_with(t) for t in ("", "A", "Ü")},
        **{f"ends_with({t!r})": s.ends_with(t) for t in ("", "s", "👟")},
        "replace": s.replace("e", "eé"),
        "replace.none": s.replace("", "x"),
        "replace.away": s.replace("靴", ""),
        "replace.long": s.replace("a", TEXT),
        "replace.lower": s.lower().replace("red", ""),
        "concat": cb.concat(s, r, sep="/"),
        "concat.self": cb.concat(s, s),
        "concat.lit": cb.concat(cb.lit(TEXT), r),
        **{f"split({t!r})": s.split(t) for t in (" ", "|", "e", "靴", "\x00")},
        **{f"ngrams({n})": s.ngrams(n) for n in (1, 2, 5, 64)},
        **{f"edit({k})": s.edit_distance(r, limit=k) for k in (0, 3, 64)},
        "edit.self": s.edit_distance(s.lower()),
        "length": s.length(),
        "byte_length": s.byte_length(),
        "hash.text": big.hash(),
        "hash.d": d.hash(),
        "deep": s.lower().split(" ").join("").strip("a").prefix(9).suffix(4),
    }
    return found


def lists() -> dict[str, Any]:
    found: dict[str, Any] = {f"join({t!r})": col("ls").join(t) for t in ("", ", ", TEXT)}
    found |= {f"join.{name}": col(name).join("-") for name in ("lr", "ld", "lnum")}
    found |= {f"hash.{c}": col(c).hash() for c in ("n", "t", "p", "s", "ln", "lt", "lp", "ls", "lr", "ld", "l8", "lu")}
    found |= {f"key.{c}": col(c).key(space="a") for c in ("n", "s", "ln", "ls")}
    found |= {"as_key": col("n").as_key(), "as_key.*": col("ln").as_key()}
    found |= {f"ngrams.{c}({n})": col(c).ngrams(n) for c in ("ls", "ln") for n in (1, 2, 64)}
    found |= {
        f"{op}.{c}": getattr(col(c), op)() for op in ("sum", "min", "max") for c in ("ln", "lx", "ly", "l8", "lu", "v")
    }
    found |= {f"mean.{c}": col(c).mean() for c in ("lx", "ly", "v")}
    for a, b in (("ln", "lm"), ("lm", "lm"), ("ls", "lr"), ("ld", "lr"), ("lm", "l8")):
        found |= {f"overlap.{a}.{b}": cb.overlap(a, b), f"jaccard.{a}.{b}": cb.overlap(a, b, "jaccard")}
    found |= {
        f"contains.{a}.{b}": col(a).contains(col(b)) for a, b in (("ln", "n"), ("lm", "few"), ("ls", "s"), ("ld", "d"))
    }
    crosses = {
        "k,k": ("n", "s"),
        "*k,k": ("ls", "few"),
        "k,*k": ("few", "ls"),
        "*k,*k": ("ls", "ln"),
        "three": ("ls", "few", "lm"),
        "self": ("lm", "lm"),
        "lit": (cb.lit("x"), "lm"),
        "d": ("d", "p"),
    }
    for name, members in crosses.items():
        found |= {f"cross.{name}({n})": cb.cross(*members, limit=n) for n in (1, 7, 1024)}
    found |= {"distinct.split": col("s").split(" ").distinct(), "distinct.lm": col("lm").distinct()}
    return found


def tables() -> dict[str, Any]:
    s, ls, n, ln, d, t = (col(c) for c in ("s", "ls", "n", "ln", "d", "t"))
    found: dict[str, Any] = {
        "id": s.lookup(DICTIONARY, default=-5),
        "id.*": ls.lookup(DICTIONARY, default=2**62),
        "maybe": d.lookup(DICTIONARY),
        "id.n": n.lookup(NUMBERED, default=0),
        "id.ln": ln.lookup(NUMBERED, default=-1),
        "maybe.n": n.lookup(NUMBERED),
        "vector": d.lookup(VECTORS),
        "vector.s": s.lookup(VECTORS),
        "vector.sum": d.lookup(VECTORS).sum(),
        "id.none": n.lookup(EMPTY, default=3),
        "maybe.none": n.lookup(EMPTY),
    }
    label, day = col("p").fill(False), "1d"
    for what, count in (("shows", cb.shows), ("clicks", cb.clicks), ("rate", cb.rate)):
        for window in (None, "30d"):
            found[f"{what}.{window}"] = count("few", time=t, label=label, every=day, window=window)
        found[f"{what}.d"] = count("d", time=t, label=label, every="1h")
    return found


def documents() -> dict[str, Any]:
    doc = col("doc")
    paths = [
        "$",
        "$.n",
        "$.x",
        "$.ok",
        "$.a",
        "$.a.b",
        "$.a['c']",
        "$.tags",
        "$.tags[0]",
        "$.tags[1]",
        "$.nums",
        "$.nums[2]",
    ]
    paths += ["$[0]", "$[1]", "$['a b']['é'][0].k", "$.a.a.a", "$.none"]
    found: dict[str, Any] = {}
    for to in ("str", "int", "float", "bool", "list[str]", "list[int]", "list[float]"):
        found |= {f"json({path}, {to})": doc.json(path, to) for path in paths}  # more than one scan takes
    found |= {
        "json.of.text": col("s").json("$.n", "int"),
        "json.of.d": col("d").json("$"),
        "json.lower": doc.lower().json("$.a.b"),
    }
    found["json.hash"] = doc.json("$.tags", "list[str]").hash()
    found["json.part"] = doc.json("$.a.b").lower().split(" ")
    return found


FAMILIES = {
    "any kind": of_any_kind,
    "numbers": numbers,
    "times": times,
    "strings": strings,
    "lists": lists,
    "tables": tables,
    "documents": documents,
}


def everything() -> dict[str, Any]:
    """All of them; NVRTC takes minutes for it, and compiles families at the same time where it may."""
    return {name: e for family in FAMILIES.values() for name, e in family().items()}


def history() -> dict[str, np.ndarray]:
    """Shows and clicks of some values of `few` and `d` in buckets around the times of hostile rows."""
    members = [pa.table({"k": list(range(-2, 2))}), pa.table({"k": WORDS[:9]})]
    words = [k for values in members for k in cb.compute({"k": col("k").hash()}, values)["k"].to_pylist()]
    buckets = sorted({t // unit for t in TIMES for unit in (86400_000_000, 3600_000_000)} | {0, 1, 2, 19_000, 20_000})
    pairs = [(word, bucket) for word in sorted(words) for bucket in buckets]
    shows = np.arange(len(pairs), dtype=np.int64) % 7 + 1
    return {
        "hashes": np.array([word for word, _ in pairs], np.uint64),
        "buckets": np.array([bucket for _, bucket in pairs], np.int64),
        "shows": shows,
        "clicks": shows // 2,
    }


def fitted(graph: Graph) -> dict[int, dict[str, np.ndarray]]:
    """In place of what a plan would learn."""
    states = {
        "moments": {"mean": np.array([0.25]), "scale": np.array([3.0])},
        "quantiles": {"boundaries": np.array([-1e9, -0.5, 0.5, 1e9])},
        "history": history(),
    }
    return {number: states[fit.how] for number, fit in enumerate(graph.fits)}
