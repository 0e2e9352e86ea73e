"""How fast does the online loop learn from a stream, and what do its checkpoints, versions and reading cost?

    python -m benchmarks.online [--quick] [--rows 1000000] [--bits 22] [--every 100000ex]

The synthetic ad log as a stream of Parquet chunks goes through the whole loop: fetch, parse, join, plan, learn, checkpoint,
publish. A Deep FFM learns from it, then a DeepFM of torch with its table. Beside each the model alone learns from the same rows,
extracted by the same plan from the log on disk, in the same batches; losses must agree. Then the Deep FFM learns from the same
rows by way of warm-up. The bytes of every version's patch are compared with those of its whole weight file.
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
from ctrbox.ffm.warm_up_sources import ahead
from ctrbox.loop.online_click_model import BATCH_SIZE, OnlineClickModel
from ctrbox.loop.online_loop import OnlineLoop
from ctrbox.serve.model_folder import ModelFolder


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


def deepfm(plan: cb.Plan) -> OnlineClickModel:
    return OnlineClickModel(plan, cb.models.DeepFM(plan.schema, dim=8, hidden=(64, 32)), cb.MemoryTable(8))


def shares(model: Path) -> tuple[float, float]:
    """Return the size of the patches of a folder after the first ones, as a share of their weight files: mean and largest."""
    found = [v.patch_bytes / v.bytes for v in ModelFolder.open(model).published.log()][1:]
    return sum(found) / len(found), max(found)


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    """Seconds, and seconds of this process's threads together: others may be at work on the machine."""
    return time.perf_counter() - began[0], time.process_time() - began[1]


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=22)
    parser.add_argument("--every", default="100000ex", help="how often a version is published")
    parser.add_argument("--quick", action="store_true", help="50,000 rows, 2^16 weights")
    asked = parser.parse_args()
    if asked.quick:
        asked.rows, asked.bits, asked.every = 50_000, 16, "10000ex"
    folder = Path(tempfile.mkdtemp(prefix="ctrbox-online-"))
    try:
        data, stream = folder / "data", folder / "stream"
        adlog(rows=asked.rows, seed=0, out=data)
        events = adlog_events(data, stream, chunk_rows=20_000)
        plan, engine = made(data, asked.bits)
        list(plan.batches(65_536, limit=65_536))  # dimensions are loaded before anything is timed

        began = now()
        loop = OnlineLoop(plan, engine, str(stream), folder / "model", every=asked.every, once=True, tell=print)
        found = loop.run()
        spent, spent_cpu = since(began)
        learned = found["learned"]
        assert learned + found["held"] == asked.rows
        saved, patches = found["checkpoints"]["seconds"], shares(folder / "model")

        net = deepfm(plan)
        began = now()
        loop = OnlineLoop(plan, net, str(stream), folder / "net", every=asked.every, once=True, tell=print)
        other = loop.run()
        net_spent, net_cpu = since(began)
        net_learned = other["learned"]
        assert net_learned + other["unlearned"] + other["held"] == asked.rows
        net_saved, net_patches = other["checkpoints"]["seconds"], shares(folder / "net")

        net_alone = deepfm(plan)
        began = now()
        for batch in plan.batches(8192, limit=net_learned):
            net_alone.learn(net_alone.examples(batch))
        net_beside, net_beside_cpu = since(began)
        assert abs(net_alone.progress.loss - other["loss"]) < 0.01, (net_alone.progress.loss, other["loss"])

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
            ["online loop, Deep FFM", f"{learned / spent:,.0f}", f"{spent:.1f}", f"{spent_cpu:.1f}"],
            ["plan and Deep FFM alone", f"{learned / beside:,.0f}", f"{beside:.1f}", f"{beside_cpu:.1f}"],
            ["online loop, DeepFM", f"{net_learned / net_spent:,.0f}", f"{net_spent:.1f}", f"{net_cpu:.1f}"],
            ["plan and DeepFM alone", f"{net_learned / net_beside:,.0f}", f"{net_beside:.1f}", f"{net_beside_cpu:.1f}"],
            ["warm-up, Deep FFM", f"{asked.rows / warmed:,.0f}", f"{warmed:.1f}", f"{warmed_cpu:.1f}"],
        ],
    )
    print(
        f"{events:,} events; {found['checkpoints']['number']} checkpoints took {saved:.2f} s ({saved / spent:.1%}), waiting for "
        f"input {found['waited_s']:.2f} s; warm-up waited {rows.share_waited:.1%} of its time; loss {found['loss']:.4f} and "
        f"{alone.progress.loss:.4f} alone, AUC {found['auc']:.4f}"
    )
    print(
        f"DeepFM, batches of {BATCH_SIZE}: {other['checkpoints']['number']} checkpoints took {net_saved:.2f} s "
        f"({net_saved / net_spent:.1%}); loss {other['loss']:.4f} and {net_alone.progress.loss:.4f} alone, AUC {other['auc']:.4f}"
    )
    for name, (mean, most) in (("Deep FFM", patches), ("DeepFM", net_patches)):
        print(
            f"a patch of the {name} every {asked.every}: {mean:.1%} of the weight file on average, {most:.1%} at most"
        )
    report.finish(
        learned / spent,
        {"plan and Deep FFM alone": learned / beside, "online loop, DeepFM": net_learned / net_spent},
        "examples/s",
        cpu_s=spent_cpu,
        alone_cpu_s=beside_cpu,
        warm_up_cpu_s=warmed_cpu,
        checkpoint_share=saved / spent,
        deepfm_cpu_s=net_cpu,
        deepfm_alone_cpu_s=net_beside_cpu,
        deepfm_checkpoint_share=net_saved / net_spent,
        patch_share=patches[0],
        deepfm_patch_share=net_patches[0],
        warm_up_per_s=asked.rows / warmed,
        warm_up_waited=rows.share_waited,
    )


if __name__ == "__main__":
    main()
