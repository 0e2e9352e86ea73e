"""How fast do raw logs become training batches, next to Polars and DuckDB on the same cores?

    python -m benchmarks.extract [--quick] [--tools ours,duckdb-tuned,…] [--cores 2] [--rows 2000000]

The answers of all tools are checked against each other first. Then every tool runs the job from Parquet files
in the page cache to arrays in memory, in turns and in fresh processes. Planning counts, imports do not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import extract_job, report
from benchmarks.extract_job import READ, Chunk

ROWS, QUICK_ROWS = 2_000_000, 200_000
CORES = 2
TOOLS = ["ours", "polars", "polars-tuned", "duckdb", "duckdb-tuned"]


def run(tool: str, root: Path, *, ids: bool = False, cores: int = CORES) -> Iterator[Chunk]:
    name, _, style = tool.partition("-")
    if name == "ours":
        return extract_job.extract(root, ids=ids)
    if name == "polars":
        from benchmarks import extract_polars

        return extract_polars.extract(root, hoisted=style == "tuned", ids=ids)
    if name == "duckdb":
        from benchmarks import extract_duckdb

        return extract_duckdb.extract(root, hoisted=style == "tuned", ids=ids, threads=cores)
    raise SystemExit(f"no tool {tool!r}; known: {', '.join(TOOLS)}")


def preload(tool: str) -> None:
    """Import before the clock starts."""
    name = tool.partition("-")[0]
    if name == "ours":
        import ctrbox

        for public in ("View", "FeatureSet", "Dictionary", "col", "cross", "overlap", "compile"):
            getattr(ctrbox, public)  # a name loads its modules when it is first asked for
    else:
        __import__(name)
        __import__(f"benchmarks.extract_{name}")


def measure(tool: str, root: Path, cores: int) -> None:
    """One run in this process; the answer is the last line."""
    import pyarrow as pa

    report.pin(cores)
    pa.set_cpu_count(cores)
    if tool == "decode":
        import pyarrow.dataset as ds

        start, cpu = time.perf_counter(), time.process_time()
        rows = size = 0
        for view, columns in READ.items():
            for batch in ds.dataset(root / view).scanner(columns=columns, use_threads=True).to_batches():
                rows, size = rows + batch.num_rows, size + batch.nbytes
    else:
        preload(tool)
        start, cpu = time.perf_counter(), time.process_time()
        rows = size = 0
        for chunk in run(tool, root, cores=cores):
            rows, size = rows + len(chunk.label), size + chunk.nbytes
    answer = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}
    print(json.dumps(answer | {"rows": rows, "bytes": size, "peak": report.peak_rss()}))


def profile(root: Path, cores: int) -> None:
    """Seconds by operator class of one run of ours, summed over threads."""
    report.pin(cores)
    plan = extract_job.plan(root)
    for _ in plan.batches(65_536):
        pass
    print(json.dumps(plan.profile()))


def check(tools: list[str], root: Path) -> None:
    """All tools against the first on a whole small log, the first against plain Python on a tiny one."""
    from benchmarks import extract_oracle
    from benchmarks.extract_check import differences, gathered

    tiny = extract_job.data(2_000)
    truth = gathered(extract_oracle.extract(tiny))
    found = {tool: differences(truth, gathered(run(tool, tiny, ids=True))) for tool in tools}
    first = gathered(run(tools[0], root, ids=True))
    for tool in tools[1:]:
        found[tool] += differences(first, gathered(run(tool, root, ids=True)))
    wrong = {tool: what for tool, what in found.items() if what}
    if wrong:
        lines = [f"  {tool}: {what}" for tool, several in wrong.items() for what in several]
        raise SystemExit("\n".join(["answers differ:", *lines]))
    print(json.dumps({"rows": len(first.label)}))


def question(rows: int, tools: list[str], repeats: int, cores: int) -> None:
    small, root = extract_job.data(QUICK_ROWS), extract_job.data(rows)
    this, pinned = "benchmarks.extract", ("--cores", str(cores))
    checked = report.fresh(this, "--check", ",".join(tools), "--data", str(small))["rows"]
    print(f"{len(tools)} tools agree on {checked:,} rows and, on 2,000, with plain Python")

    runs = {tool: report.Runs() for tool in [*tools, "decode"]}
    report.fresh(this, "--measure", "decode", "--data", str(root), *pinned)  # files into the page cache
    for _ in range(repeats):  # in turns, so that a noisy minute hurts all alike
        for tool, kept in runs.items():
            answer = report.fresh(this, "--measure", tool, "--data", str(root), *pinned)
            kept.add(answer)
            if tool != "decode":
                out_rows, out_bytes = answer["rows"], answer["bytes"]

    print(f"\n{rows:,} impressions → {out_rows:,} rows of {out_bytes / out_rows:.0f} bytes")
    print(report.machine(cores))
    print(f"commit {report.commit()}, best and median of {repeats} runs in turns\n")
    decode = runs.pop("decode")
    speed = {tool: rows / kept.best for tool, kept in runs.items()}
    ours = speed.get("ours")

    def line(tool: str, r: report.Runs) -> list[str]:
        ratio = f"{ours / (rows / r.best):.2f}" if ours else "–"
        times = [f"{r.best:.2f}", f"{r.median:.2f}", f"{min(r.cpu):.2f}", f"{min(r.cpu) / r.best:.1f}"]
        return [tool, *times, f"{rows / r.best / 1e3:,.0f}k", f"{r.peak / 2**30:.2f} GB", ratio]

    head = ["tool", "best s", "median s", "cpu s", "cores busy", "rows/s", "peak RSS", "ours is × faster"]
    report.table(head, [*(line(*item) for item in runs.items()), line("decode only", decode)])

    classes: dict[str, float] = {}
    if ours:
        classes = report.fresh(this, "--profile", "--data", str(root), *pinned)
        total = sum(classes.values()) or 1.0
        print()
        ranked = sorted(classes.items(), key=lambda item: -item[1])
        shares = [(name, f"{seconds:.3f}", f"{seconds / total:.1%}") for name, seconds in ranked]
        report.table(["ours, by class", "cpu s", "share"], shares)
        print(f"\nours takes {runs['ours'].best / decode.best:.2f} × the time of decoding alone")
    peers = {tool: speed[tool] for tool in tools if tool != "ours"}
    print()
    report.finish(
        ours,
        peers,
        "rows/s",
        cores=cores,
        busy_cores=min(runs["ours"].cpu) / runs["ours"].best if ours else None,
        seconds={tool: kept.seconds for tool, kept in runs.items()},
        cpu_seconds={tool: kept.cpu for tool, kept in runs.items()},
        peak_rss={tool: kept.peak for tool, kept in runs.items()},
        decode_limit=rows / decode.best,
        classes=classes,
        ratio_to_best_peer=ours / max(peers.values()) if ours and peers else None,
    )


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="200,000 rows, 3 repeats")
    options.add_argument("--tools", default=",".join(TOOLS), help="which to run, in this order")
    options.add_argument("--repeats", type=int, help="runs of each tool: 5, or 3 with --quick")
    options.add_argument("--cores", type=int, default=CORES, help="cores that every tool is kept to (default: 2)")
    options.add_argument("--rows", type=int, help="rows of the log: 2,000,000, or 200,000 with --quick")
    for step in ("measure", "check"):
        options.add_argument(f"--{step}", help=argparse.SUPPRESS)
    options.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        measure(given.measure, given.data, given.cores)
    elif given.check:
        check(given.check.split(","), given.data)
    elif given.profile:
        profile(given.data, given.cores)
    else:
        rows = given.rows or (QUICK_ROWS if given.quick else ROWS)
        question(rows, given.tools.split(","), given.repeats or (3 if given.quick else 5), given.cores)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
