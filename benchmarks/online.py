"""How fast does the online loop learn from a stream, and what do its checkpoints, versions and reading cost?

    python -m benchmarks.online [--quick] [--rows 1000000] [--bits 22]

The synthetic ad log as a stream of Parquet chunks goes through the whole loop: fetch, parse, join, plan, learn, checkpoint,
publish. Beside it the engine alone learns from the same rows, extracted by the same plan from the log on disk; losses must agree.
Then the same rows are learned from by way of warm-up.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import ctrbox as cb
from benchmarks import report
from ctrbox import col
from ctrbox.datasets import adlog, adlog_events
from ctrbox.ffm.warm_up import ahead
from ctrbox.loop.loop import OnlineLoop


def made(data: Path, bits: int) -> tuple[cb.Plan, cb.DeepFFM]:
    users = cb.View(f"{data}/users", key="user_id").fill(
        age=0, gender="unknown", country="none", segment=-1, interests=""
    )
    ads = cb.View(f"{data}/ads", key="ad_id").fill(advertiser_id=0, campaign_id=0, category="none")
    log = cb.View(f"{data}/impressions", key="instance_id").fill(query="", device="unknown", position=-1)
    log = log.join(users, on="user_id").join(ads, on="ad_id")
    names = (
        "ad_id",
        "advertiser_id",
        "campaign_id",
        "category",
        "segment",
        "gender",
        "country",
        "device",
        "position",
        "user_id",
    )
    sparse = {name: col(name).key() for name in names}
    sparse |= {
        "hour": col("ts").hour().key(),
        "age": col("age").bucketize(list(range(1, 90, 4))).key(),
        "interests": col("interests").split("|").key(),
        "query": col("query").lower().words().key(),
    }
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse=sparse), device="cpu")
    return plan, cb.DeepFFM(plan.schema, k=4, hidden=(16, 16), bits=bits)


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    """Seconds, and seconds of this process's threads together: others may be at work on the machine."""
    return time.perf_counter() - began[0], time.process_time() - began[1]


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=22)
    parser.add_argument("--quick", action="store_true", help="50,000 rows, 2^16 weights")
    asked = parser.parse_args()
    if asked.quick:
        asked.rows, asked.bits = 50_000, 16
    folder = Path(tempfile.mkdtemp(prefix="ctrbox-online-"))
    try:
        data, stream = folder / "data", folder / "stream"
        adlog(rows=asked.rows, seed=0, out=data)
        events = adlog_events(data, stream, chunk_rows=20_000)
        plan, engine = made(data, asked.bits)
        list(plan.batches(65_536, limit=65_536))  # dimensions are loaded before anything is timed

        began = now()
        loop = OnlineLoop(plan, engine, str(stream), folder / "model", every="5m", once=True, tell=print)
        found = loop.run()
        spent, spent_cpu = since(began)
        learned = found["learned"]
        assert learned + found["held"] == asked.rows
        saved = found["checkpoints"]["seconds"]

        alone = made(data, asked.bits)[1]
        began = now()
        for batch in plan.batches(8192, limit=learned):
            alone.learn(batch)
        beside, beside_cpu = since(began)

        warm = made(data, asked.bits)[1]
        began = now()
        rows = ahead(str(data / "impressions"), columns=plan.request_schema(label=True).names)
        for morsel in rows:
            for at in range(0, morsel.rows.num_rows, 8192):
                warm.learn(plan.run(morsel.rows.slice(at, 8192)))
        warmed, warmed_cpu = since(began)
        # The loop learns in order of time, as the log lies, so the beginnings are the same examples.
        assert abs(alone.progress.loss - found["loss"]) < 0.01, (alone.progress.loss, found["loss"])
    finally:
        shutil.rmtree(folder)
    report.table(
        ["", "examples/s", "seconds", "CPU seconds"],
        [
            ["online loop", f"{learned / spent:,.0f}", f"{spent:.1f}", f"{spent_cpu:.1f}"],
            ["plan and engine alone", f"{learned / beside:,.0f}", f"{beside:.1f}", f"{beside_cpu:.1f}"],
            ["warm-up", f"{asked.rows / warmed:,.0f}", f"{warmed:.1f}", f"{warmed_cpu:.1f}"],
        ],
    )
    print(
        f"{events:,} events; {found['checkpoints']['number']} checkpoints took {saved:.2f} s ({saved / spent:.1%}), waiting for "
        f"input {found['waited_s']:.2f} s; warm-up waited {rows.share_waited:.1%} of its time; loss {found['loss']:.4f} and "
        f"{alone.progress.loss:.4f} alone, AUC {found['auc']:.4f}"
    )
    report.finish(
        learned / spent,
        {"plan and engine alone": learned / beside},
        "examples/s",
        cpu_s=spent_cpu,
        alone_cpu_s=beside_cpu,
        warm_up_cpu_s=warmed_cpu,
        checkpoint_share=saved / spent,
        warm_up_per_s=asked.rows / warmed,
        warm_up_waited=rows.share_waited,
    )


if __name__ == "__main__":
    main()
