"""How long does a plan of 500 features take to compile, and a request of 1, 10, 100 rows to run?

python -m benchmarks.compile [--quick]
"""

from __future__ import annotations

import statistics
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks import extract_job, report

FEATURES = 500
LIMIT_SECONDS, LIMIT_OVERHEAD_US = 1.0, 100.0


def wide(root: Path) -> tuple[Any, Any]:
    """A log and 500 features of it: keys, buckets, token lists, pairs and triples, and numbers."""
    import ctrbox as cb
    from ctrbox import col

    users = cb.View(str(root / "users"), key="user_id").fill(age=0, gender="unknown", country="none", interests="")
    ads = cb.View(str(root / "ads"), key="ad_id").fill(
        advertiser_id=0, campaign_id=0, title="", category="", bid=0.0, keywords=""
    )
    log = (
        cb.View(str(root / "impressions"), key="instance_id")
        .fill(query="", device="unknown", position=0, price=0.0)
        .with_columns(city=col("context").json("$.geo.city").fill("none"))
        .join(users, on="user_id")
        .join(ads, on="ad_id")
    )
    query, title = col("query").lower().split(" "), col("title").lower().split(" ")
    names = [
        "user_id",
        "ad_id",
        "advertiser_id",
        "campaign_id",
        "city",
        "device",
        "gender",
        "country",
        "position",
        "category",
    ]
    values = {name: col(name) for name in names}
    values |= {
        "hour": col("ts").hour(),
        "weekday": col("ts").weekday(),
        "age": col("age").bucketize([18, 35]),
    }
    lists = {"query": query, "title": title, "bigrams": query.ngrams(2)}
    lists["interests"] = col("interests").split("|")
    sparse = {name: value.key() for name, value in {**values, **lists}.items()}
    sparse |= {f"{a}_x_{v}": cb.cross(lists[a], values[v]) for a in lists for v in values}
    for group in (*combinations(values, 2), *combinations(values, 3)):
        sparse["_x_".join(group)] = cb.cross(*(values[name] for name in group))
    dense = {"log_bid": col("bid").log1p(), "overlap": cb.overlap(query, title)}
    dense |= {f"price_{i}": (col("price") * float(i) + col("bid")).log1p() for i in range(1, 48)}
    sparse = dict(list(sparse.items())[: FEATURES - len(dense)])
    for i in range(FEATURES - len(dense) - len(sparse)):
        sparse[f"bucket_{i}"] = col("price").bucketize([0.1 * (i + 1), 0.2 * (i + 1)]).key()
    return log, cb.FeatureSet(label=col("clicked"), sparse=sparse, dense=dense)


def compiled(root: Path, repeats: int) -> list[float]:
    import ctrbox as cb

    seconds = []
    for _ in range(repeats):
        log, features = wide(root)
        assert len(features.sparse) + len(features.dense) == FEATURES
        start = time.perf_counter()
        cb.compile(log, features, device="cpu")
        seconds.append(time.perf_counter() - start)
    return seconds


def latency(plan: Any, rows: pa.Table, calls: int) -> tuple[float, float]:
    """Median and 99th percentile of a call, in µs."""
    for _ in range(20):
        plan.run(rows)
    taken = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        plan.run(rows)
        taken.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(taken), sorted(taken)[int(len(taken) * 0.99)]


def smallest(root: Path) -> Any:
    """Two features of one column: what is left is overhead."""
    import ctrbox as cb
    from ctrbox import col

    log = cb.View(str(root / "impressions"), key="instance_id")
    features = cb.FeatureSet(sparse={"user": col("user_id").key()}, dense={"ad": col("ad_id")})
    return cb.compile(log, features, device="cpu")


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="fewer repeats")
    quick = options.parse_args().quick
    root = extract_job.data(20_000)
    seconds = compiled(root, 3 if quick else 7)
    first, best = seconds[0], min(seconds)
    print(f"{FEATURES} features compile in {best:.3f} s, the first time {first:.3f} s\n")

    raw = ds.dataset(root / "impressions").to_table(columns=extract_job.READ["impressions"])
    raw = raw.filter(pc.field("device").isin(extract_job.DEVICES)).combine_chunks()
    plans = {"2 features": smallest(root), "the job, 40": extract_job.plan(root, merged=False)}
    found, lines = {}, []
    for name, plan in plans.items():
        for n in (1, 10, 100):
            middle, late = latency(plan, raw.slice(0, n), 200 if quick else 2_000)
            found[f"{name}, {n}"] = {"median_us": round(middle, 1), "p99_us": round(late, 1)}
            lines.append((name, n, f"{middle:.1f}", f"{late:.1f}", f"{middle / n:.2f}"))
    report.table(["plan.run", "rows", "median µs", "p99 µs", "µs a row"], lines)
    overhead = found["2 features, 1"]["median_us"]
    fast = first < LIMIT_SECONDS and overhead < LIMIT_OVERHEAD_US
    print(f"\noverhead of a call: {overhead:.1f} µs; asked: under {LIMIT_OVERHEAD_US:.0f} µs\n")
    report.finish(first, {}, f"seconds to compile {FEATURES} features", best=best, run=found, met=fast)
    if not fast:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
