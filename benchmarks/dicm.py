"""What are images worth, which aggregator, which warm-up? The paper's Tables 3, 4 and 5 on the ad log's planted visual taste.

    python -m benchmarks.dicm [--quick] [--seeds 5] [--jobs 1] [--only information,aggregators,warm-up,bases] [--svg FILE]

Every seed is another world: log, images, initial weights. Ids are sparse (20 impressions a user, 8 an ad; 3 where warm-ups are
compared, which differ by what ids overfit); 68 clicks a user tell the taste. Every aggregator is given the last 100 of them.
All models of a study and a seed see the same rows in the same order, so differences within a seed are compared, not means
across worlds. GAUC over the newest fifth of the log, by user. The table gives the mean of the seeds, and the gain over the line
before it, in the paper's order, with its 95 % interval (Student's t).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import ctrbox as cb
from benchmarks.dicm_plot import write_svg
from benchmarks.report import finish, fresh, options, table
from ctrbox import col
from ctrbox.datasets.write_adlog import AdLog

# The strongest of what is planted among ids stands in crosses: learned as products of embeddings it comes late, and the later the
# more inputs a network has, so that a world with much of it would compare how far two trainings got, not what they know.
CROSSES = ["segment_x_category", "hour_x_advertiser"]
ALONE = ["user", "segment", "interests", "ad", "category", "advertiser", "history", "position", "device", "hour"]
IDS = [*ALONE, *CROSSES]
CLICKS = 100
IMAGE = {"ad_image": "ad_image", "behavior": "behavior"}
# In the paper's order, worst first.
STUDIES: dict[str, list[str]] = {
    "information": ["baseline", "behavior images", "ad image", "joint"],
    "aggregators": ["concatenation", "max", "sum", "attentive", "joint"],
    "warm-up": ["full", "none", "partial"],
    "bases": ["LR", "LR with images", "baseline", "joint", "DIN", "DIN with images"],
}
SHOWN = {
    "aggregators": {"joint": "multi-query"},
    "bases": {"baseline": "MLP", "joint": "MLP with images"},
}
MODELS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "behavior images": {"behavior": "behavior"},
    "ad image": {"ad_image": "ad_image"},
    "joint": IMAGE,
    "concatenation": {**IMAGE, "aggregator": "concatenation", "longest": CLICKS},
    **{kind: {**IMAGE, "aggregator": kind} for kind in ("max", "sum", "attentive")},
    "LR": {"base": "lr"},
    "LR with images": {"base": "lr", **IMAGE},
    "DIN": {"base": "din"},
    "DIN with images": {"base": "din", **IMAGE},
    **dict.fromkeys(STUDIES["warm-up"], IMAGE),
}
# Student's t by degrees of freedom, from 1.
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
WIDTH = 48
PER_USER = 20  # impressions
PER_AD, PER_SPARSE_AD = 8, 3  # with 8, at rates that stay, full is no worse than none: tried.md, 21
BATCH, EPOCHS = 250, 2
# Adam's, falling to 0: at a rate that stays, where the last steps lead is worth 0.004 of GAUC, as much as some of the gains. Half
# for images: a step of the sub-model moves all images of a history at once, those of ids one each.
IMAGE_RATE, RATE = 0.0015, 0.003
# Worlds 11 to 15, 101 to 110, 201 to 208, 301 to 316, 401 to 405 were looked at when sizes, rates and what is planted were set.
FIRST = 501


def plan_of(log: AdLog) -> cb.Plan:
    key = col("ad_id").cast("str").key(space="image")
    behavior = col("behavior").split("|").last(CLICKS)
    users = cb.View(log.users, key="user_id").fill(segment=-1, interests="", behavior="")
    ads = cb.View(log.ads, key="ad_id").fill(category="none", advertiser_id=0)
    impressions = cb.View(log.impressions, key="instance_id").fill(device="none", position=-1)
    features = cb.FeatureSet(
        label=col("clicked"),
        group=col("user_id"),
        sparse={
            "user": col("user_id"),
            "segment": col("segment"),
            "interests": col("interests").split("|"),
            "ad": col("ad_id").cast("str").key(space="ad"),
            "category": col("category"),
            "advertiser": col("advertiser_id"),
            "history": behavior.key(space="ad"),  # the ids of the images: part of the paper's baseline, too
            "position": col("position"),
            "device": col("device"),
            "hour": col("ts").hour(),
            "segment_x_category": cb.cross("segment", "category"),
            "hour_x_advertiser": cb.cross(col("ts").hour(), "advertiser_id"),
            "ad_image": key,
            "behavior": behavior.key(space="image"),
        },
    )
    return cb.compile(impressions.join(users, on="user_id").join(ads, on="ad_id"), features, threads=1)


class World:
    """The log of a seed, and trainings on it."""

    def __init__(self, seed: int, rows: int, per_ad: int, folder: Path) -> None:
        self.seed, self.rows = seed, rows
        log = cb.datasets.adlog(rows, seed, folder / "log", images=WIDTH, users=rows // PER_USER, ads=rows // per_ad)
        key = col("ad_id").cast("str").key(space="image")
        self.file = cb.tables.write_vectors(folder / "images.ctrvec", log.images, key=key, vector="image")
        self.plan = plan_of(log)

    def fit(self, name: str, limit: int | None = None, valid: float = 0.2, **options: Any) -> cb.Run:
        torch.manual_seed(self.seed)
        model = cb.models.DICM(self.plan.schema, 12, fields=IDS, hidden=(64, 32), query="category", **MODELS[name])
        server = cb.tables.ModelServer(
            self.file, cb.tables.ImageEmbedding(WIDTH, (64,), 12), optimizer=cb.optim.Adam(lr=IMAGE_RATE)
        )
        embedders: dict[str, Any] = {n: server for n in IMAGE if n in model.reads.dims}
        # The weights of LR are vectors of one number; no id shares its space with an image.
        width = model.reads.dims["user"]
        embedders["*"] = cb.MemoryTable(width, optimizer=cb.optim.Adam(lr=RATE), seed=self.seed, threads=1)
        trainer = cb.Trainer(model, embedders, optimizer=cb.optim.Adam(lr=RATE), threads=1)
        falling = cb.optim.Cosine(EPOCHS * round((limit or self.rows) * (1 - valid)) // BATCH)
        usual: dict[str, Any] = {"batch_size": BATCH, "epochs": EPOCHS, "schedule": falling, "seed": self.seed}
        return trainer.fit(self.plan, limit=limit, valid=valid, **usual, **options)

    def scores(self, name: str) -> dict[str, float]:
        options: dict[str, Any] = {}
        if name in ("partial", "full"):
            # Trained until the day before: most of its rows are met again.
            yesterday = self.fit("joint", limit=round(0.7 * self.rows), valid=0.0)
            options = {"warm_up": name, "warm_from": yesterday}
        found = self.fit(name, **options).metrics
        return {"gauc": found["gauc"], "auc": found["auc"]}


def one_model(name: str, seed: int, rows: int) -> dict[str, float]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ctrbox-dicm-") as folder:
        per_ad = PER_SPARSE_AD if name in STUDIES["warm-up"] else PER_AD
        return World(seed, rows, per_ad, Path(folder)).scores(name)


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval."""
    if len(values) < 2:
        return values[0], float("nan")
    t = T95[min(len(values) - 1, len(T95)) - 1]
    return statistics.mean(values), t * statistics.stdev(values) / len(values) ** 0.5


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="two small worlds, without bases")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="models at a time, each with one thread")
    parser.add_argument("--only", default="information,aggregators,warm-up", help="studies, with commas")
    parser.add_argument("--svg", type=Path, default=None)
    parser.add_argument("--model", choices=MODELS, default=None, help="one model, as JSON: used by the others")
    parser.add_argument("--seed", type=int, default=FIRST, help="its world")
    asked = parser.parse_args()
    rows = asked.rows or (24_000 if asked.quick else 200_000)
    studies = asked.only.split(",")
    names = list(dict.fromkeys(n for study in studies for n in STUDIES[study]))
    if asked.model is not None:
        print(json.dumps(one_model(asked.model, asked.seed, rows)))
        return
    seeds = range(FIRST, FIRST + (2 if asked.quick else asked.seeds))

    def scores(one: tuple[str, int]) -> dict[str, float]:
        name, seed = one
        answer = fresh("benchmarks.dicm", "--model", name, "--seed", str(seed), "--rows", str(rows))
        print(f"world {seed}, {name}: GAUC {answer['gauc']:.5f}, AUC {answer['auc']:.5f}", file=sys.stderr, flush=True)
        return answer

    # Those of two trainings first, so that none of them is left for the end.
    pairs = [(n, seed) for n in sorted(names, key=lambda n: n not in ("partial", "full")) for seed in seeds]
    with ThreadPoolExecutor(asked.jobs) as pool:
        found = dict(zip(pairs, pool.map(scores, pairs), strict=True))
    by_name = {n: [found[n, seed]["gauc"] for seed in seeds] for n in names}
    orders: dict[str, dict[str, Any]] = {}
    drawn: dict[str, list[tuple[str, float, float]]] = {}
    for study in studies:
        lines, before = [], None
        orders[study], drawn[study] = {}, []
        for name in STUDIES[study]:
            shown = SHOWN.get(study, {}).get(name, name)
            mean, half = interval(by_name[name])
            auc = statistics.mean(found[name, seed]["auc"] for seed in seeds)
            gain = ""
            if before is not None:
                more, wide = interval([a - b for a, b in zip(by_name[name], by_name[before], strict=True)])
                orders[study][shown] = {"gain": round(more, 5), "interval": round(wide, 5), "holds": more > 0}
                gain = f"{more:+.4f} ± {wide:.4f}"
            drawn[study].append((shown, mean, half))
            lines.append([shown, f"{mean:.4f} ± {half:.4f}", f"{auc:.4f}", gain])
            before = name
        of_ad = PER_SPARSE_AD if study == "warm-up" else PER_AD
        print(f"\n{study}: {len(seeds)} worlds of {rows:,} impressions, {of_ad} an ad, images of {WIDTH} numbers")
        table(["", "GAUC", "AUC", "gain over the line before"], lines)
    if asked.svg is not None:
        write_svg(asked.svg, drawn)
    steps = [gain["holds"] for study in orders.values() for gain in study.values()]
    finish(
        statistics.mean(by_name.get("joint", [0.0])),
        {n: statistics.mean(v) for n, v in by_name.items() if n != "joint"},
        "GAUC",
        steps_in_the_papers_order=f"{sum(steps)} of {len(steps)}",
        orders=orders,
        worlds={n: [round(one, 5) for one in v] for n, v in by_name.items()},
        seeds=len(seeds),
    )


if __name__ == "__main__":
    main()
