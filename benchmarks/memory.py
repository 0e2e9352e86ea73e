"""Does a log ten times as long cost the same memory?

    python -m benchmarks.memory [--quick]

Users and ads stay as they are, and the log grows from R = 1,000,000 rows to 10 R rows, or to 3 R with --quick. Each log is read
in fresh processes, in turns.
"""

from __future__ import annotations

from benchmarks import extract_job, report

USERS, ADS = 50_000, 10_000
ALLOWED = 0.10


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="a log three times as long instead of ten, one repeat")
    options.add_argument("--tool", default="ours", help="any tool of benchmarks.extract")
    given = options.parse_args()
    # R is well above what readers and batches in flight hold, or the short log would not fill them.
    short, times, repeats = (1_000_000, 3, 1) if given.quick else (1_000_000, 10, 3)
    logs = {rows: extract_job.data(rows, users=USERS, ads=ADS) for rows in (short, times * short)}
    runs = {rows: report.Runs() for rows in logs}
    for _ in range(repeats):
        for rows, root in logs.items():
            runs[rows].add(report.fresh("benchmarks.extract", "--measure", given.tool, "--data", str(root)))
    lines = [(f"{n:,}", f"{r.peak / 2**20:,.0f} MB", f"{n / r.best:,.0f}") for n, r in runs.items()]
    report.table(["rows", "peak RSS", "rows/s"], lines)
    ratio = runs[times * short].peak / runs[short].peak
    constant = abs(ratio - 1) <= ALLOWED
    print(f"\n{times} × the rows: {ratio:.3f} × the memory; 1 ± {ALLOWED} is {'met' if constant else 'NOT met'}\n")
    peaks = {str(n): r.peak for n, r in runs.items()}
    report.finish(ratio, {}, f"peak RSS, {times} R rows / R rows", tool=given.tool, met=constant, peak_rss=peaks)
    if not constant:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
