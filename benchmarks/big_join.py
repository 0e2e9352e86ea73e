"""How many rows a second does a join with a view ten times larger than its memory budget give, beside DuckDB?

    python -m benchmarks.big_join [--quick] [--rows N] [--view N] [--tools memory,disk,duckdb] [--repeats N] [--folder DIR]

A log and a view of ads, both in Parquet files on the disk of --folder. The ads of the log follow a power law, and one row in
twenty has an ad that the view lacks. Each row gets the bid, the title (about 150 bytes) and the list of tags of its ad, as Arrow
columns.

`memory`: the view in memory. `disk`: the view on disk with a budget of a tenth of what it takes in memory. `duckdb`: DuckDB with
its memory_limit at the same budget and its temporary files on the same disk; it may give the rows in any order. Where it ends
with an out-of-memory error, it is tried again with twice the limit, up to 16 times the budget.

First all tools must give the same rows on a smaller log, and `disk` the order and the bits of `memory`; at full size they must
agree on sums. Every run is a process of its own, tools run in turns, and loading the view counts for all of them. The file of
`disk` is read past the page cache; the files of DuckDB are not. The fastest run of each tool counts; its peak of memory is that
of the whole process, with the libraries (about 150 MB) and what is decoded ahead of the join.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import report

THIS = "benchmarks.big_join"
ROWS, VIEW = 10_000_000, 8_000_000
QUICK = (200_000, 100_000)
CHECKED = (20_000, 5_000)
TOOLS = ("memory", "disk", "duckdb")
SHARE = 0.1  # of the view in memory: the budget
COLUMNS = ("row", "bid", "title", "tags")
WRITTEN_AT_ONCE = 500_000  # rows
ROW_GROUP = 65_536  # rows: what is decoded at once is small beside the budget
MOST_TIMES = 16  # the budget: the largest memory limit that DuckDB is tried with


def write(folder: Path, rows: int, view: int) -> None:
    """The log and the view, in parts of some hundred thousand rows."""
    random = np.random.default_rng(rows + view)
    words = pa.array([f"word{k:04}" for k in range(5000)])
    (folder / "log").mkdir(parents=True)
    (folder / "ads").mkdir()
    for number, begin in enumerate(range(0, view, WRITTEN_AT_ONCE)):
        count = min(WRITTEN_AT_ONCE, view - begin)
        lengths = random.integers(10, 25, count)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        drawn = words.take(pa.array(random.integers(0, len(words), offsets[-1])))
        tag_offsets = np.arange(count + 1, dtype=np.int32) * 4
        ads = pa.table(
            {
                "ad": pa.array(np.arange(begin, begin + count)),
                "bid": random.integers(0, 1000, count),
                "title": pc.binary_join(pa.ListArray.from_arrays(offsets, drawn), " "),
                "tags": pa.ListArray.from_arrays(tag_offsets, pa.array(random.integers(0, 10**6, 4 * count))),
            }
        )
        pq.write_table(
            ads.take(pa.array(random.permutation(count))),
            folder / "ads" / f"part-{number}.parquet",
            row_group_size=ROW_GROUP,
        )
    for number, begin in enumerate(range(0, rows, WRITTEN_AT_ONCE)):
        count = min(WRITTEN_AT_ONCE, rows - begin)
        popular = (view * random.random(count) ** 2).astype(np.int64)
        # Popular ads lie anywhere in the view.
        ad = np.where(random.random(count) < 0.05, view + popular, popular * 7919 % view)
        log = pa.table({"row": np.arange(begin, begin + count), "ad": ad})
        pq.write_table(log, folder / "log" / f"part-{number}.parquet", row_group_size=ROW_GROUP)


def ours(folder: Path, budget: int | None) -> Iterator[pa.Table]:
    """The rows of the join; ``budget``: of the view on disk, None: in memory."""
    import ctrbox as cb
    from ctrbox import col

    ads = cb.View(folder / "ads", key="ad", name="ads")
    more: dict[str, Any] = {"budget": "1TB"} if budget is None else {"budget": budget, "spill": folder}
    log = cb.View(folder / "log", key="row", name="log").join(ads, on="ad", **more)
    plan = cb.compile(log, cb.FeatureSet(dense={"row": col("row")}), device="cpu")
    yield from plan.columns({name: col(name) for name in COLUMNS})


def view_bytes(folder: Path) -> int:
    """Return the memory of those columns of the view that the join reads."""
    import ctrbox as cb
    from ctrbox import col
    from ctrbox.columns.batch import Schema
    from ctrbox.engines.cpu.extract import Extractor
    from ctrbox.plan.graph.build_graph import build_columns

    ads = cb.View(folder / "ads", key="ad", name="ads")
    log = cb.View(folder / "log", key="row", name="log").join(ads, on="ad", budget="1TB")
    graph = build_columns(log, {name: col(name) for name in COLUMNS})
    loaded = Extractor(graph, {}, schema=Schema((), (), False, False, False)).dimensions
    return sum(dimension.needed_bytes for dimension in loaded.values())


def duckdb(folder: Path, budget: int, cores: int) -> Iterator[pa.Table]:
    import duckdb as library

    query = f"""
        SELECT log."row", bid, title, tags
        FROM read_parquet('{folder}/log/*.parquet') AS log LEFT JOIN read_parquet('{folder}/ads/*.parquet') AS ads USING (ad)
    """
    with library.connect() as connection:
        connection.execute(f"SET threads = {cores}")
        connection.execute(f"SET memory_limit = '{budget}B'")
        connection.execute(f"SET temp_directory = '{folder}/duckdb'")
        connection.execute("SET preserve_insertion_order = false")
        for batch in connection.sql(query).to_arrow_reader(65_536):
            yield pa.Table.from_batches([batch])


def tables(tool: str, folder: Path, budget: int, cores: int) -> Iterator[pa.Table]:
    if tool == "duckdb":
        return duckdb(folder, budget, cores)
    return ours(folder, None if tool == "memory" else budget)


def sums(found: pa.Table) -> list[int]:
    """Rows, and sums that a wrong or missing row changes."""
    row = found["row"].to_numpy()
    bid = pc.fill_null(found["bid"], -1).to_numpy()
    title = pc.fill_null(pc.binary_length(found["title"]), 0).to_numpy()
    tags = pc.sum(pc.list_flatten(found["tags"])).as_py() or 0
    return [len(row), int((row * (bid + 2)).sum()), int((title * (row % 97)).sum()), int(tags)]


def measure(given: argparse.Namespace) -> None:
    """One tool in this process; the answer is the last line."""
    report.pin(given.cores)
    if given.measure == "size":
        print(json.dumps(view_bytes(Path(given.folder))))
        return
    began, spent = time.perf_counter(), time.process_time()
    totals, first = [0, 0, 0, 0], 0.0
    for found in tables(given.measure, Path(given.folder), given.budget, given.cores):
        first = first or time.perf_counter() - began
        totals = [a + b for a, b in zip(totals, sums(found), strict=True)]
    answer = {
        "seconds": time.perf_counter() - began,
        "first": first,
        "cpu": time.process_time() - spent,
        "peak": report.peak_rss(),
        "sums": totals,
    }
    print(json.dumps(answer))


def check(tools: list[str], folder: Path, cores: int) -> None:
    """All tools give the same rows on a small log, with a budget that the view does not fit into."""
    write(folder, *CHECKED)
    small = {
        tool: pa.concat_tables(tables(tool, folder, 200 << 10 if tool == "disk" else 64 << 20, cores)) for tool in tools
    }
    expected = next(iter(small.values())).sort_by("row").to_pylist()
    for tool, found in small.items():
        if found.sort_by("row").to_pylist() != expected:
            raise SystemExit(f"{tool} gives other rows")
    if {"memory", "disk"} <= small.keys() and not small["memory"].equals(small["disk"]):
        raise SystemExit("the view on disk gives other rows than the view in memory")


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true", help="{:,} rows, {:,} ads".format(*QUICK))
    parser.add_argument("--rows", type=int, help=f"rows of the log; default {ROWS:,}")
    parser.add_argument("--view", type=int, help=f"rows of the view; default {VIEW:,}")
    report.compares_tools(parser, TOOLS, repeats=3, counts="")
    parser.add_argument("--folder", help="folder on the disk to be measured; default: that for temporary files")
    parser.add_argument("--measure", choices=("size", *TOOLS), help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given)
        return
    rows, view = (a or b for a, b in zip((given.rows, given.view), QUICK if given.quick else (ROWS, VIEW), strict=True))
    tools = given.tools.split(",")
    place = Path(tempfile.mkdtemp(prefix="ctrbox-big-join-", dir=given.folder))
    try:
        check(tools, place / "small", given.cores)
        write(place / "full", rows, view)
        run(tools, place / "full", rows, view, given)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run(tools: list[str], folder: Path, rows: int, view: int, given: argparse.Namespace) -> None:
    whole: Any = report.fresh(THIS, "--measure", "size", "--folder", str(folder))
    budget = int(whole * SHARE)
    print(f"the view takes {whole / 2**20:,.0f} MB in memory; the budget on disk is {budget / 2**20:,.0f} MB\n")
    runs = {tool: report.Runs() for tool in tools}
    loaded: dict[str, list[float]] = {tool: [] for tool in tools}
    failed: dict[str, str] = {}
    totals: dict[str, list[int]] = {}
    limits = dict.fromkeys(tools, budget)
    common = ["--folder", str(folder), "--cores", str(given.cores)]
    for _ in range(given.repeats):
        for tool in tools:
            if tool in failed:
                continue
            answer = None
            while answer is None and tool not in failed:
                try:
                    answer = report.fresh(THIS, "--measure", tool, *common, "--budget", str(limits[tool]))
                except RuntimeError as error:
                    if tool != "duckdb" or "Out of Memory Error" not in str(error):
                        raise
                    print(f"duckdb runs out of memory with memory_limit={limits[tool] / 2**20:,.0f} MB")
                    if limits[tool] >= MOST_TIMES * budget:
                        failed[tool] = "out of memory"
                    limits[tool] *= 2
            if answer is None:
                continue
            runs[tool].add(answer)
            loaded[tool].append(answer["first"])
            totals[tool] = answer["sums"]
    if len({tuple(found) for found in totals.values()}) > 1:
        raise SystemExit(f"the tools do not agree: {totals}")
    lines = [
        [
            t,
            "–" if t == "memory" else f"{limits[t] / 2**20:,.0f}",
            f"{r.best:.2f}",
            f"{min(loaded[t]):.2f}",
            f"{min(r.cpu):.2f}",
            f"{r.peak / 2**20:,.0f}",
            f"{rows / r.best:,.0f}",
        ]
        for t, r in runs.items()
        if t not in failed
    ]
    report.table(["tool", "budget MB", "seconds", "to the first rows", "CPU seconds", "peak MB", "rows/s"], lines)
    rates = {tool: rows / r.best for tool, r in runs.items() if tool not in failed}
    mine = "disk" if "disk" in rates else "memory"
    facts = {
        "cores": given.cores,
        "rows": rows,
        "view": view,
        "view_bytes": whole,
        "budget": budget,
        "limits": {tool: limit for tool, limit in limits.items() if tool != "memory"},
        "peaks": {tool: r.peak for tool, r in runs.items()},
        "failed": failed,
    }
    report.finish(rates.get(mine), {t: rate for t, rate in rates.items() if t != mine}, "rows/s", **facts)


if __name__ == "__main__":
    main()
