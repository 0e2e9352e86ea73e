"""How many rows a second does an as-of join give their version, beside Polars and DuckDB?

    python -m benchmarks.as_of [--quick] [--rows N] [--keys N] [--versions N] [--tools ours,polars,duckdb] [--repeats N]

A log in order of time and a view of versions in no order, both in memory. Users follow a power law; each has a number of versions
at random times, with a city and a level. Each row gets the city and the level of the newest version of its user at or before its
own time. First all tools must give the answers of a plain-Python search on a smaller log. Sorting the versions and building an
index count for each tool. DuckDB may give the rows in any order. Polars needs both sides sorted by time and gets the log sorted.
Tools run in turns, so that a busy machine is unfair to all of them alike.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import report

ROWS, KEYS, VERSIONS = 10_000_000, 500_000, 4_000_000
QUICK = (300_000, 20_000, 120_000)
CHECKED = (20_000, 500, 3_000)
DAYS = 30
CITIES = [f"city {k}" for k in range(200)]


def tables(rows: int, keys: int, versions: int, seed: int = 1) -> tuple[pa.Table, pa.Table]:
    """A log in order of time, and versions of its users in no order; no user has two versions of one time."""
    random = np.random.default_rng(seed)
    span = DAYS * 86_400
    log = pa.table(
        {
            "row": np.arange(rows),
            "user": (keys * random.random(rows) ** 2).astype(np.int64),
            "ts": pa.array(np.sort(random.integers(0, span, rows)) * 1_000_000, pa.timestamp("us")),
        }
    )
    pairs = np.unique(random.integers(0, keys, versions) * span + random.integers(0, span, versions))
    random.shuffle(pairs)
    made = pa.table(
        {
            "user": pairs // span,
            "ts": pa.array(pairs % span * 1_000_000, pa.timestamp("us")),
            "city": pa.array(CITIES).take(pa.array(random.integers(0, len(CITIES), len(pairs)))),
            "level": random.integers(0, 100, len(pairs)),
        }
    )
    return log, made


def ours(log: pa.Table, versions: pa.Table, cores: int) -> pa.Table:
    import ctrbox as cb
    from ctrbox import col

    view = cb.View(log, name="log").join(cb.View(versions, key="user", name="versions"), on="user", as_of="ts")
    return cb.compute({name: col(name) for name in ("row", "city", "level")}, view)


def polars(log: pa.Table, versions: pa.Table, cores: int) -> pa.Table:
    import polars as pl

    left, right = pl.from_arrow(log), pl.from_arrow(versions)
    assert isinstance(left, pl.DataFrame)
    assert isinstance(right, pl.DataFrame)
    found = left.set_sorted("ts").join_asof(
        right.sort("ts"), on="ts", by="user", strategy="backward", check_sortedness=False
    )
    return found.select("row", "city", "level").to_arrow()


def duckdb(log: pa.Table, versions: pa.Table, cores: int) -> pa.Table:
    import duckdb as library

    query = """
        SELECT log_rows.row, city, level
        FROM log_rows ASOF LEFT JOIN versions ON log_rows.user_id = versions.user_id AND log_rows.ts >= versions.ts
    """
    with library.connect() as connection:
        connection.execute(f"SET threads = {cores}")
        connection.execute("SET preserve_insertion_order = false")
        connection.register("log_rows", log.rename_columns(["row", "user_id", "ts"]))
        connection.register("versions", versions.rename_columns(["user_id", "ts", "city", "level"]))
        return connection.sql(query).to_arrow_table()


TOOLS: dict[str, Callable[[pa.Table, pa.Table, int], pa.Table]] = {"ours": ours, "polars": polars, "duckdb": duckdb}


def plain(log: pa.Table, versions: pa.Table) -> list[dict[str, Any]]:
    """The answers by a search among the sorted versions of each user."""
    known: dict[int, list[Any]] = {}
    for version in sorted(versions.to_pylist(), key=lambda v: v["ts"]):
        known.setdefault(version["user"], []).append(version)
    found = []
    for row in log.to_pylist():
        mine = known.get(row["user"], [])
        at = bisect_right(mine, row["ts"], key=lambda v: v["ts"])
        version = mine[at - 1] if at else {"city": None, "level": None}
        found.append({"row": row["row"], "city": version["city"], "level": version["level"]})
    return found


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true", help="{:,} rows, {:,} users, {:,} versions".format(*QUICK))
    parser.add_argument("--rows", type=int, help=f"rows of the log; default {ROWS:,}")
    parser.add_argument("--keys", type=int, help=f"users; default {KEYS:,}")
    parser.add_argument("--versions", type=int, help=f"versions of all users together; default {VERSIONS:,}")
    report.compares_tools(parser, TOOLS, repeats=3)
    given = parser.parse_args()
    sizes = QUICK if given.quick else (ROWS, KEYS, VERSIONS)
    rows, keys, versions = (a or b for a, b in zip((given.rows, given.keys, given.versions), sizes, strict=True))
    report.pin(given.cores)
    tools = given.tools.split(",")
    small = tables(*CHECKED, seed=2)
    expected = plain(*small)
    for tool in tools:
        if TOOLS[tool](*small, given.cores).sort_by("row").to_pylist() != expected:
            raise SystemExit(f"{tool} gives other answers")
    log, known = tables(rows, keys, versions)
    seconds: dict[str, list[float]] = {tool: [] for tool in tools}
    work: dict[str, list[float]] = {tool: [] for tool in tools}  # CPU seconds of all threads
    for _ in range(given.repeats):
        for tool in tools:
            began, spent = time.perf_counter(), time.process_time()
            made = TOOLS[tool](log, known, given.cores)
            seconds[tool].append(time.perf_counter() - began)
            work[tool].append(time.process_time() - spent)
            assert made.num_rows == rows
            del made
    processor = {tool: min(spent) for tool, spent in work.items()}
    rates = {tool: rows / min(took) for tool, took in seconds.items()}
    lines = [[t, f"{min(seconds[t]):.2f}", f"{processor[t]:.2f}", f"{rates[t]:,.0f}"] for t in tools]
    report.table(["tool", "seconds", "CPU seconds", "rows/s"], lines)
    peers = {tool: rate for tool, rate in rates.items() if tool != "ours"}
    facts = {"cores": given.cores, "rows": rows, "keys": keys, "versions": len(known), "cpu_seconds": processor}
    report.finish(rates.get("ours"), peers, "rows/s", **facts)


if __name__ == "__main__":
    main()
