"""Generates queries, titles and the JSON context of the synthetic ad log, without a Python loop over rows.

A string is the join of a few pieces; a piece is a `take` from a small table. Entry 0 of every table is the
empty string, so a piece that a row lacks, and the tail of a context that is cut off, is index 0.
"""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctrbox.datasets.adlog_vocabulary import CITIES, COUNTRIES, ENDINGS, vocabulary
from ctrbox.datasets.adlog_world import Draw, Ints, Mask, choose
from ctrbox.datasets.random_draws import chance

_SITES = 4_000
_FLOORS = 200
_PLAIN = 0.95  # share of JSON pieces without the optional blanks


@cache
def _surface() -> pa.Array:
    return pa.array(["", *vocabulary().surface[:-1]], pa.string())


@cache
def _endings() -> pa.Array:
    return pa.array(ENDINGS, pa.string())


def join(*pieces: pa.Array) -> pa.Array:
    """Concatenate pieces row by row; the result is null where a piece is null."""
    return pc.binary_join_element_wise(*pieces, "")


def sentences(rng: np.random.Generator, words: npt.NDArray[np.int16]) -> pa.Array:
    """Return strings in mixed case, with punctuation and emoji, from word numbers (slot, n), which are negative for no word."""
    count = len(vocabulary().words)
    n = words.shape[1]
    # A text is lower case, Title Case or UPPER CASE throughout.
    spelling = choose(rng, (0.62, 0.3, 0.08), n)
    begun = np.zeros(n, np.int64)
    pieces = []
    for slot in words:
        there = slot >= 0
        index = np.where(there, 1 + slot + (spelling + 3 * begun) * count, 0)
        pieces.append(_surface().take(pa.array(index)))
        begun |= there
    ending = np.where(chance(rng, 0.5, n), rng.integers(0, len(ENDINGS), n), 0)
    pieces.append(_endings().take(pa.array(ending)))
    return join(*pieces)


def queries(rng: np.random.Generator, known: pa.Array, draw: Draw) -> pa.Array:
    """Return the query column: known queries by number, the rest composed; null where the log has none."""
    tail = np.flatnonzero(draw.query < 0)
    fresh = sentences(rng, draw.words[:, tail])
    index = draw.query.copy()
    index[tail] = len(known) + np.arange(len(tail))
    return pa.concat_arrays([known, fresh]).take(pa.array(index, mask=draw.no_query))


class Table:
    """Pieces of JSON: `wide` twins with blanks follow the plain entries, so a style is an addition."""

    def __init__(self, pieces: list[str]) -> None:
        plain = ["", *pieces]
        wide = [p.replace('":', '": ').replace(',"', ', "') for p in plain]
        self.count = len(plain)
        self.strings = pa.array(plain + wide, pa.string())

    def take(self, index: Ints, wide: Mask, gone: Mask) -> pa.Array:
        """Return pieces by their `index`, which counts from 0; -1 leaves the piece out."""
        at = np.where(gone, 0, index + 1 + self.count * wide)
        return self.strings.take(pa.array(at))


def _quoted(text: str, ascii_only: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)


@cache
def _tables() -> dict[str, Table]:
    """Return the pieces of a context, in order: geo, ip, ip_end, slot, page, path, depth, app, exp, floor."""
    geo = []
    for country, cities in zip(COUNTRIES, CITIES, strict=True):
        for city in cities:
            geo += [
                f'{{"geo":{{"city":{_quoted(city, False)},"country":"{country}"',
                f'{{"geo":{{"city":{_quoted(city, True)},"country":"{country}"',  # \u escapes
                f'{{"geo":{{"city":null,"country":"{country}"',
                f'{{"geo":{{"country":"{country}"',
            ]
    geo.append('{"geo":null')
    rng = np.random.default_rng(11)
    names = vocabulary().words
    sites = []
    for i in range(_SITES):
        host = f"{names[-1 - i % 280]}.example/{names[int(rng.integers(0, 55))]}"
        slash = "\\/" if i % 10 == 0 else "/"
        sites.append(f',"page":{{"url":"https:{slash}{slash}{host.replace("/", slash)}')
    apps = [f'"{names[-1 - i]}-{i % 7}"' for i in range(120)]
    arms = [json.dumps([f"a{i % 5}", f"b{i // 5}"], separators=(",", ":")) for i in range(40)]
    return {
        "geo": Table(geo),
        "ip": Table([f',"ip":"{a}.{b}' for a in (10, 81, 89, 178, 203) for b in range(256)]),
        "ip_end": Table(["}"] + [f'.{c}.{d}"}}' for c in range(64) for d in range(250)]),
        "slot": Table([*(f',"slot":{i}' for i in range(8)), ',"slot":null']),
        "page": Table([*sites, ',"page":null']),
        "path": Table([f'/{i}"' for i in range(20_000)]),
        "depth": Table([*(f',"depth":{i / 100}}}' for i in range(101)), ',"depth":null}', "}"]),
        "app": Table([*(f',"app":{a}' for a in apps), ',"app":null']),
        "exp": Table([*(f',"exp":{a}' for a in arms), ',"exp":[]']),
        "floor": Table([*(f',"bid_floor":{i / 100}}}' for i in range(_FLOORS)), ',"bid_floor":null}', "}"]),
    }


def contexts(rng: np.random.Generator, draw: Draw) -> pa.Array:
    """Return the JSON column. Fields are sometimes absent, null, escaped or spaced; a broken document ends half-way."""
    n = len(draw.user)
    tables = _tables()
    city = draw.country.astype(np.int64) * 4 + rng.integers(0, 4, n)
    geo = city * 4 + choose(rng, (0.86, 0.08, 0.03, 0.03), n)
    no_geo = chance(rng, 0.02, n)
    no_ip = chance(rng, 0.05, n)
    no_page = (draw.depth < 0) & chance(rng, 0.5, n)
    # exp = a·5 + b with b ≡ arm (mod 4), so that the arm is read from the text.
    exp = rng.integers(0, 5, n) + 5 * (np.maximum(draw.arm, 0) + 4 * rng.integers(0, 2, n))
    exp = np.where(draw.arm >= 0, exp, np.where(chance(rng, 0.5, n), 40, -1))
    slot = choose(rng, (*(0.96 / 8,) * 8, 0.02, 0.02), n)
    depth = np.where(draw.depth >= 0, draw.depth, np.where(chance(rng, 0.5, n), 101, 102))
    index = {
        "geo": np.where(no_geo, len(COUNTRIES) * 16, geo),
        "ip": np.where(no_geo | no_ip, -1, rng.integers(0, 5 * 256, n)),
        "ip_end": np.where(no_geo, -1, np.where(no_ip, 0, rng.integers(1, 64 * 250 + 1, n))),
        "slot": np.where(slot == 9, -1, slot),
        "page": np.where(no_page, np.where(chance(rng, 0.5, n), _SITES, -1), rng.integers(0, _SITES, n)),
        "path": np.where(no_page, -1, rng.integers(0, 20_000, n)),
        "depth": np.where(no_page, -1, depth),
        "app": np.where(chance(rng, 0.1, n), -1, rng.integers(0, 121, n)),
        "exp": exp,
        "floor": np.where(chance(rng, 0.1, n), _FLOORS + 1, rng.integers(0, _FLOORS + 1, n)),
    }
    wide = ~chance(rng, _PLAIN, n)
    stops = np.where(draw.broken, rng.integers(1, len(index), n), len(index))
    return join(*(tables[name].take(at, wide, (at < 0) | (k >= stops)) for k, (name, at) in enumerate(index.items())))


def joined(pieces: list[pa.Array | str], separator: str) -> pa.Array:
    """Join pieces row by row, without null pieces."""
    return pc.binary_join_element_wise(*pieces, separator, null_handling="skip")


def list_joined(lists: pa.ListArray, separator: str) -> pa.Array:
    """Join the strings of each list to one string per row; an empty list gives the empty string."""
    return pc.binary_join(lists, separator)
