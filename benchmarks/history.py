"""How many rows a second get their history and six windowed counters, beside Polars and DuckDB?

    python -m benchmarks.history [--quick] [--rows N] [--users N] [--tools ours,polars,duckdb] [--repeats N]

A log in order of time, in memory: users and ads follow a power law, a tenth of the rows are clicks, and the rows span 30 days.
Each row gets the ads of the user's last 50 clicks of 14 days with their ages, and six counters: rows of the ad in the last 1 h,
1 d and 7 d, the ad's click rate of 1 d and of 7 d, and rows of the user in the last 1 h. First all tools must give the same
answers on a smaller log. Polars and DuckDB get the log whole; CTRBox streams it in morsels of 65,536 rows. Each run is a process
of its own, whose peak memory holds the log, the library, the work, and all answers.

Polars has rolling windows by time over groups, DuckDB has window functions with RANGE frames. Both end before the row's own time,
so that rows of equal time do not see each other. DuckDB collects the clicks of the window and keeps the last 50 of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import report

ROWS, USERS, ADS = 10_000_000, 1_000_000, 100_000
QUICK_ROWS, QUICK_USERS = 300_000, 30_000
CHECKED = 20_000  # rows of the log on which all tools must agree
LAST, DAYS = 50, 30
COUNTERS = ["ad_1h", "ad_1d", "ad_7d", "ctr_1d", "ctr_7d", "user_1h"]


def log_of(rows: int, users: int, seed: int = 1) -> pa.Table:
    """A log in order of time; some rows share their time."""
    random = np.random.default_rng(seed)
    times = np.sort(random.integers(0, DAYS * 86_400, rows)) * 1_000_000
    return pa.table(
        {
            "user": (users * random.random(rows) ** 2).astype(np.int64),
            "ad": (ADS * random.random(rows) ** 3).astype(np.int64),
            "ts": pa.array(times, pa.timestamp("us")),
            "clicked": random.random(rows) < 0.1,
        }
    )


def ours(log: pa.Table, cores: int) -> pa.Table:
    import ctrbox as cb
    from ctrbox import col

    ad, user = cb.past(by="ad", time="ts"), cb.past(by="user", time="ts")
    view = cb.View(log).with_history(
        clicks=cb.history("ad", by="user", time="ts", where=col("clicked"), last=LAST, within="14d"),
        ad_1h=ad.count(within="1h"),
        ad_1d=ad.count(within="1d"),
        ad_7d=ad.count(within="7d"),
        ctr_1d=ad.mean("clicked", within="1d"),
        ctr_7d=ad.mean("clicked", within="7d"),
        user_1h=user.count(within="1h"),
    )
    names = ["clicks", "clicks_age", *COUNTERS]
    return pa.Table.from_batches([m.rows for m in view.source.scan(names, threads=cores)])


def polars(log: pa.Table, cores: int) -> pa.Table:
    import polars as pl

    frame = pl.from_arrow(log)
    assert isinstance(frame, pl.DataFrame)
    clicked = pl.col("clicked").cast(pl.Float64)

    def rated(span: str) -> Any:
        return clicked.rolling_mean_by("ts", window_size=span, closed="left").over("ad")

    frame = frame.with_columns(one=pl.lit(1, pl.Int64))
    ones = pl.col("one")
    found = frame.with_columns(
        **{f"ad_{s}": ones.rolling_sum_by("ts", window_size=s, closed="left").over("ad") for s in ("1h", "1d", "7d")},
        ctr_1d=rated("1d"),
        ctr_7d=rated("7d"),
        user_1h=ones.rolling_sum_by("ts", window_size="1h", closed="left").over("user"),
        turn=pl.int_range(pl.len()).over("user"),
    )
    event = pl.col("clicked")
    lists = (
        frame.lazy()
        .rolling("ts", period="14d", closed="left", group_by="user")
        .agg(clicks=pl.col("ad").filter(event).tail(LAST), at=pl.col("ts").cast(pl.Int64).filter(event).tail(LAST))
        .with_columns(turn=pl.int_range(pl.len()).over("user"))
        .collect()
    )
    joined = found.join(lists, on=["user", "turn"], how="left", maintain_order="left")
    ages = (pl.col("ts").cast(pl.Int64) - pl.col("at")) / 1e6
    return joined.with_columns(clicks_age=ages).select("clicks", "clicks_age", *COUNTERS).to_arrow()


def duckdb(log: pa.Table, cores: int) -> pa.Table:
    import duckdb as library

    def frame(by: str, span: str) -> str:
        bounds = f"INTERVAL {span} PRECEDING AND INTERVAL 1 MICROSECOND PRECEDING"
        return f"(PARTITION BY {by} ORDER BY ts RANGE BETWEEN {bounds})"

    clicks = f"FILTER (WHERE clicked) OVER {frame('user_id', '14 DAY')}"
    query = f"""
        SELECT coalesce(list(ad) {clicks}, [])[-{LAST}:] AS clicks,
               list_transform(coalesce(list(ts) {clicks}, [])[-{LAST}:], lambda e: epoch_us(ts - e) / 1e6) AS clicks_age,
               count(*) OVER {frame("ad", "1 HOUR")} AS ad_1h,
               count(*) OVER {frame("ad", "1 DAY")} AS ad_1d,
               count(*) OVER {frame("ad", "7 DAY")} AS ad_7d,
               avg(clicked::INT) OVER {frame("ad", "1 DAY")} AS ctr_1d,
               avg(clicked::INT) OVER {frame("ad", "7 DAY")} AS ctr_7d,
               count(*) OVER {frame("user_id", "1 HOUR")} AS user_1h
        FROM log_rows ORDER BY row
    """
    rows = log.rename_columns(["user_id", "ad", "ts", "clicked"]).append_column("row", pa.array(np.arange(len(log))))
    with library.connect() as connection:
        connection.execute(f"SET threads = {cores}")
        connection.register("log_rows", rows)
        return connection.sql(query).to_arrow_table()


TOOLS: dict[str, Callable[[pa.Table, int], pa.Table]] = {"ours": ours, "polars": polars, "duckdb": duckdb}


def plain(log: pa.Table) -> list[dict[str, Any]]:
    """The answers for a small log, by looking at all earlier rows of a user or an ad."""
    rows = [{**r, "ts": int(t)} for r, t in zip(log.to_pylist(), log["ts"].cast(pa.int64()).to_numpy(), strict=True)]
    hour, day = 3_600_000_000, 86_400_000_000
    users: dict[int, list[Any]] = {}
    ads: dict[int, list[Any]] = {}
    found = []
    for row in rows:
        mine, theirs = users.setdefault(row["user"], []), ads.setdefault(row["ad"], [])

        def of(events: list[Any], span: int, now: int = row["ts"]) -> list[Any]:
            return [e for e in events if now - span <= e["ts"] < now]

        def rate(events: list[Any]) -> float | None:
            return sum(e["clicked"] for e in events) / len(events) if events else None

        clicks = [e for e in of(mine, 14 * day) if e["clicked"]][-LAST:]
        answers = [
            [e["ad"] for e in clicks],
            [(row["ts"] - e["ts"]) / 1e6 for e in clicks],
            *(len(of(theirs, span)) for span in (hour, day, 7 * day)),
            rate(of(theirs, day)),
            rate(of(theirs, 7 * day)),
            len(of(mine, hour)),
        ]
        found.append(dict(zip(["clicks", "clicks_age", *COUNTERS], answers, strict=True)))
        mine.append(row)
        theirs.append(row)
    return found


def same(found: pa.Table, expected: list[dict[str, Any]]) -> bool:
    """Whether answers agree; a window without rows is 0 or null, rates to 12 digits."""
    for name in ["clicks", "clicks_age", *COUNTERS]:
        for mine, theirs in zip(found[name].to_pylist(), (row[name] for row in expected), strict=True):
            if name.startswith("ctr") and mine is not None and theirs is not None:
                if abs(mine - theirs) > 1e-12:
                    return False
            elif (mine or 0) != (theirs or 0):
                return False
    return True


def one(tool: str, rows: int, users: int, cores: int) -> None:
    """Run a tool once in this process, and print its seconds, its CPU seconds and the most memory that the process held."""
    TOOLS[tool](log_of(1000, 10), cores)  # imports the library and starts its threads
    log = log_of(rows, users)
    began, spent = time.perf_counter(), time.process_time()
    made = TOOLS[tool](log, cores)
    seconds, cpu = time.perf_counter() - began, time.process_time() - spent
    assert made.num_rows == rows
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": report.peak_rss()}))


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows of {QUICK_USERS:,} users")
    parser.add_argument("--rows", type=int, help=f"rows of the log; default {ROWS:,}")
    parser.add_argument("--users", type=int, help=f"users of the log; default {USERS:,}")
    report.compares_tools(parser, TOOLS, repeats=1)
    parser.add_argument("--one", choices=TOOLS, help="run this tool alone, once and unchecked; other runs call this")
    given = parser.parse_args()
    rows = given.rows or (QUICK_ROWS if given.quick else ROWS)
    users = given.users or (QUICK_USERS if given.quick else USERS)
    report.pin(given.cores)
    if given.one:
        one(given.one, rows, users, given.cores)
        return
    tools = given.tools.split(",")
    small = log_of(min(rows, CHECKED), max(1, min(users, CHECKED // 50)), seed=2)
    expected = plain(small)
    for tool in tools:
        if not same(TOOLS[tool](small, given.cores), expected):
            raise SystemExit(f"{tool} gives other answers")
    runs = {tool: report.Runs() for tool in tools}
    sizes = ["--rows", str(rows), "--users", str(users), "--cores", str(given.cores)]
    for _ in range(given.repeats):  # in turns, so that other work on the machine disturbs all tools alike
        for tool in tools:
            runs[tool].add(report.fresh("benchmarks.history", "--one", tool, *sizes))
    rates = {tool: rows / run.best for tool, run in runs.items()}
    processor = {tool: min(run.cpu) for tool, run in runs.items()}  # of all threads; says more on a busy machine
    lines = [
        [tool, f"{run.best:.2f}", f"{processor[tool]:.2f}", f"{rates[tool]:,.0f}", f"{run.peak / 2**30:.2f}"]
        for tool, run in runs.items()
    ]
    report.table(["tool", "seconds", "CPU seconds", "rows/s", "peak GB"], lines)
    peers = {tool: rate for tool, rate in rates.items() if tool != "ours"}
    report.finish(
        rates.get("ours"),
        peers,
        "rows/s",
        cores=given.cores,
        rows=rows,
        users=users,
        cpu_seconds=processor,
        peak_bytes={t: r.peak for t, r in runs.items()},
    )


if __name__ == "__main__":
    main()
