"""Random JSON values, read by the JSON operator and by Python's json module.

Every document is ``{"v": VALUE}``, sometimes damaged. The twin (tests/twins/json_paths.py) decides with Python's json whether
it is JSON, and converts the value's own text by the rules of docs/operators/numbers.md; where those differ from Python's json
(a whole number such as 1e2 is an int, NaN is not JSON, more than 64 levels are refused), the docs say so.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa

import ctrbox as cb
from ctrbox import col
from tests.oracle_suite.random_files import Difference, bits, plain
from tests.twins.json_paths import Malformed, check, convert, find, private

KINDS = ("str", "int", "float", "bool", "list[int]", "list[float]", "list[str]")
NUMBERS = (
    *("0", "-0", "-0.0", "1", "1.0", "1e2", "1E+2", "12e-1", "0.1", "1e400", "-1e400", "1e-400", "5e-324", "2.5e-324"),
    *("9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("123456789012345678901234567890", "0.1000000000000000055511151231257827", "1.7976931348623159e308", "19.99"),
    *("01", "+1", ".5", "1.", "1e", "-", "NaN", "Infinity", "-Infinity", "0x1", "1_0", "--1"),  # none of these is JSON
)
STRINGS = (
    *('""', '"a"', '"12"', '"\\u0041\\n"', '"\\ud83d\\udc5f"', '"\\ud83d"', '"\\udc5f x"'),
    *('"naïve"', '"靴👟"', '"a\\/b"', '"\\x"', '"\t"'),
)
WORDS = ("true", "false", "null", "True", "nul", "", "{}", "[]", "[ ]", "{ }")


def value(rng: random.Random, depth: int = 0) -> str:
    """The text of a random value: mostly JSON, now and then not quite."""
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(NUMBERS)
    if kind < 0.4:
        wide = rng.random() * 10.0 ** rng.randint(-320, 300)
        return repr(rng.choice((rng.uniform(-1e3, 1e3), rng.randint(-(2**70), 2**70), wide)))
    if kind < 0.5:
        return rng.choice(STRINGS)
    if kind < 0.6:
        letters = (chr(rng.choice((32, 97, 34, 92, 233, 0x9774, 0x1F45F))) for _ in range(rng.randrange(6)))
        return json.dumps("".join(letters), ensure_ascii=rng.random() < 0.5)
    if kind < 0.75 or depth > 3:
        return rng.choice(WORDS)
    space = rng.choice(("", "", " ", "\n\t"))
    if kind < 0.93:
        return "[" + f"{space},{space}".join(value(rng, depth + 1) for _ in range(rng.randrange(5))) + space + "]"
    names = [rng.choice("abv") for _ in range(rng.randrange(4))]
    return "{" + ",".join(f'"{name}"{space}:{space}{value(rng, depth + 1)}' for name in names) + "}"


def document(rng: random.Random, text: str) -> bytes:
    space = rng.choice(("", " ", "\r\n"))
    made = f'{space}{{"u":1,{space}"v"{space}:{space}{text}{space}}}{space}'.encode()
    if rng.random() < 0.1:  # cut it, or change a byte
        at = rng.randrange(len(made))
        made = made[:at] if rng.random() < 0.5 else made[:at] + rng.randbytes(1) + made[at + 1 :]
    return made


def check_json(seed: int, count: int, tally: Counter[str]) -> None:
    """Compare ``count`` random documents in every kind, and the row that is named for the first that is not JSON."""
    rng = random.Random(seed)
    docs = [document(rng, value(rng)) for _ in range(count)]
    docs[0] = b"[" * 40 + b'{"v": 1}' + b"]" * 40
    view = cb.View(pa.table({"doc": pa.array(docs, pa.binary())}), name="docs")
    made = cb.compute({kind: col("doc").json("$.v", kind) for kind in KINDS}, view)
    columns = {kind: plain(made[kind]) for kind in KINDS}
    first_broken = None
    for row, doc in enumerate(docs):
        whole = private(doc)
        expected: list[Any]
        try:
            check(whole)
        except Malformed:
            first_broken = row if first_broken is None else first_broken
            expected = [None] * len(KINDS)
            tally["JSON documents that are broken"] += 1
        else:
            found = find(whole, [b"v"])
            expected = [convert(found, kind) for kind in KINDS]
        for kind, wanted in zip(KINDS, expected, strict=True):
            if bits(columns[kind][row]) != bits(wanted):
                raise Difference(f"JSON, seed {seed}: {doc!r} as {kind} is {columns[kind][row]!r}, expected {wanted!r}")
        tally["JSON values"] += 1
        tally["JSON conversions"] += len(KINDS)
    _check_row_number(view, first_broken, seed)


def _check_row_number(view: Any, first_broken: int | None, seed: int) -> None:
    if first_broken is None:
        return
    try:
        cb.compute({"v": col("doc").json("$.v", "str", strict=True)}, view)
    except cb.errors.DataError as error:
        if not str(error).endswith(f"row {first_broken})"):
            raise Difference(f"JSON, seed {seed}: row {first_broken} is broken, the error says: {error}") from error
    else:
        raise Difference(f"JSON, seed {seed}: row {first_broken} is broken, and strict=True says nothing")
