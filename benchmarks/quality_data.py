"""The quality table's data: five sets, each split in time into train, valid and test, and one plan a part.

    set                      train                 valid                     test
    frappe_x1                as published          as published              as published (a random split)
    criteo_1tb_80k           rows 0-55,999         rows 56,000-63,999        rows 64,000-79,999
    criteo_attribution_165k  first 72 %            next 8 %                  last 20 %, by orig_row
    open_bandit_60k          24-27 Nov             28 Nov                    29-30 Nov
    adlog                    first 80 %            next 10 %                 last 10 %, synthetic, by time

Parts are written once, as Parquet, to a folder outside the repository, so that the plans of one set differ in nothing
but the path of their log: they have one fingerprint. Peers get their columns from the same plans through `arrays`, so
every model sees the same rows in the same order. Nothing is fitted on valid or test rows: words of a dictionary are
counted in the training part, and where a plan holds past click rates (`rates`, which the peers are not given: they make
their own), valid and test have to be read through `plan(set, "train").over(path)`, with what the training part taught.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import ctrbox as cb
from ctrbox import col

SHARED = Path(__file__).parents[2] / "shared" / "data"
KEPT = Path(tempfile.gettempdir()) / "ctrbox-quality"
PARTS = ("train", "valid", "test")
ADLOG_ROWS = 2_000_000
MISSING = -1_000_000  # no count of Criteo is so low

Split = dict[str, pa.Table]


# ---- loading and splitting ------------------------------------------------------------------------------------


def cut(table: pa.Table, train: int, test: int) -> Split:
    """Rows before `train`, rows from there to `test`, and the rest."""
    return {
        "train": table.slice(0, train),
        "valid": table.slice(train, test - train),
        "test": table.slice(test),
    }


def load_frappe() -> Split:
    table = pq.read_table(SHARED / "frappe_x1" / "frappe_x1.parquet")
    return {part: table.filter(pc.equal(table["split"], part)) for part in PARTS}


def load_criteo() -> Split:
    return cut(pq.read_table(SHARED / "criteo_1tb_80k" / "criteo_1tb_80k.parquet").sort_by("row"), 56_000, 64_000)


def load_attribution() -> Split:
    table = pq.read_table(SHARED / "criteo_attribution_165k" / "criteo_attribution_165k.parquet").sort_by("orig_row")
    rows = table.num_rows
    return cut(table, rows * 72 // 100, rows * 80 // 100)


def load_bandit() -> Split:
    table = pq.read_table(SHARED / "open_bandit_60k" / "impressions.parquet").sort_by("timestamp")
    ends = [pa.scalar(datetime(2019, 11, day), table["timestamp"].type) for day in (28, 29)]
    return cut(table, *(pc.sum(pc.less(table["timestamp"], end)).as_py() for end in ends))


def load_adlog() -> Split:
    table = pq.read_table(adlog_folder() / "impressions")  # in order of time
    return cut(table, table.num_rows * 80 // 100, table.num_rows * 90 // 100)


def adlog_folder() -> Path:
    return cb.datasets.adlog(rows=ADLOG_ROWS, seed=1, out=KEPT / f"adlog-log-{ADLOG_ROWS}").path


def folder(name: str) -> Path:
    """The set's parts as `train.parquet`, `valid.parquet`, `test.parquet`; written at the first call."""
    found = KEPT / (f"adlog-{ADLOG_ROWS}" if name == "adlog" else name)  # parts of another log would meet other users
    if not found.exists():
        aside = KEPT / f".{name}.{uuid.uuid4().hex[:8]}.part"
        aside.mkdir(parents=True)
        try:
            for part, table in SETS[known(name)].load().items():
                pq.write_table(table, aside / f"{part}.parquet")
            aside.rename(found)
        except OSError:
            if not found.exists():  # else another process was first, and its rows are these
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return found


# ---- features ---------------------------------------------------------------------------------------------------

FRAPPE = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
COUNTS = tuple(f"i{i}" for i in range(1, 14))
WORDS = tuple(f"c{i}" for i in range(1, 27))
ATTRIBUTION = ("cat1", "cat4", "cat6", "cat8", "cat9")
BASIC = tuple(f"f{i:02d}" for i in range(15))
SCALE = {"f04": 50.0, "f05": 1e3, "f06": 10.0, "f07": 10.0, "f12": 24.0, "f13": 1e5}  # about the largest value


def frappe(log: cb.View, *, crosses: int = 0) -> cb.Plan:
    """`crosses=1` adds user × item as a field, `crosses=2` the item with everything else, `crosses=3` also user × item with
    everything else."""
    rest = [name for name in FRAPPE if name not in ("user", "item")]
    several: list[tuple[str, ...]] = [("user", "item")] if crosses else []
    several += [("item", name) for name in rest] if crosses > 1 else []
    several += [("user", "item", name) for name in rest] if crosses > 2 else []
    features = cb.FeatureSet(
        label=col("label"),
        group=col("user"),
        sparse={
            **{name: col(name).key() for name in FRAPPE},
            **{"_x_".join(names): cb.cross(*names) for names in several},
        },
    )
    return cb.compile(log, features, device="cpu")


def attribution(log: cb.View, *, crosses: int = 1, rates: int = 0) -> cb.Plan:
    """`crosses=2` adds every pair of the five fields as a field, `crosses=3` every three as well; `rates=2` the past
    click rates of every value and pair as dense features."""
    several = [names for size in range(2, crosses + 1) for names in combinations(ATTRIBUTION, size)]
    counted = [names for size in range(1, rates + 1) for names in combinations(ATTRIBUTION, size)]
    features = cb.FeatureSet(
        label=col("click"),
        sparse={
            **{name: col(name).key() for name in ATTRIBUTION},
            **{"_x_".join(names): cb.cross(*names) for names in several},
        },
        dense={
            "rate_" + "_x_".join(names): past(*names, order="orig_row", label="click", prior=0.36, every="1d")
            for names in counted
        },
    )
    return cb.compile(log, features, device="cpu")


@cache
def frequent(path: Path, column: str, least: int) -> cb.Dictionary:
    """The values that occur so often among the rows of a file, each under its own number."""
    counts = pc.value_counts(pq.read_table(path, columns=[column])[column].drop_null())
    words = counts.field("values").filter(pc.greater_equal(counts.field("counts"), least)).cast(pa.int64())
    words = words.take(pc.sort_indices(words))
    return cb.Dictionary(words, words.to_numpy())


def log_square(name: str) -> cb.types.Expr:
    """Criteo's usual bucket of a count: floor(log(x)²) above 2, the count itself below; missing is its own bucket."""
    count = col(name).fill(MISSING)
    log = (cb.max_(count, 2) - 1.0).log1p()
    return cb.when(count > 2).then((log * log).floor().cast("int").fill(0)).otherwise(count)


def past(*by: Any, order: str, label: str, prior: float, every: str) -> cb.types.Expr:
    """The click rate of values among earlier rows; `order` numbers the rows, one a second."""
    return cb.rate(*by, time=second(order), label=col(label), every=every, prior=prior, weight=50.0)


def second(order: str) -> cb.types.Expr:
    return col(order).cast("time", unit="s").fill(0)


def criteo(log: cb.View, *, least: int = 4, rates: bool = False) -> cb.Plan:
    """`least`: hashed values that are rarer than that in the training part are one value, "rare"; `rates`: past clicks in
    a thousand shows, and past shows, of each of the 39 values as dense features, learned from blocks of 600 rows before."""
    values = {**{name: col(name) for name in WORDS}, **{name: log_square(name) for name in COUNTS}}
    counted: dict[str, cb.types.Expr] = {}
    for name, value in values.items() if rates else ():
        clicked = past(value, order="row", label="label", prior=0.032, every="10m")
        counted[f"rate_{name}"] = clicked * 1000.0
        counted[f"shows_{name}"] = cb.shows(value, time=second("row"), label=col("label"), every="10m") * 1.0

    train = folder("criteo_1tb_80k") / "train.parquet"
    words = {
        name: col(name).fill(-1).lookup(frequent(train, name, least), default=-2).key()
        if least > 1
        else col(name).fill(-1).key()
        for name in WORDS
    }
    features = cb.FeatureSet(
        label=col("label"),
        sparse={**words, **{name: log_square(name).key() for name in COUNTS}},
        dense={
            **{f"log_{name}": cb.max_(col(name).fill(0), 0).log1p() for name in COUNTS},
            **counted,
        },
    )
    return cb.compile(log.fill(**dict.fromkeys(WORDS, -1)), features, device="cpu")


def bandit(log: cb.View) -> cb.Plan:
    """Policy and propensity say how an item was chosen, not who sees it: they are left out."""
    items = cb.View(str(SHARED / "open_bandit_60k" / "items.parquet"), key=["campaign", "item_id"], name="items").fill(
        item_feature_0=0.0, item_feature_1="", item_feature_2="", item_feature_3=""
    )
    shared = ("item_feature_1", "item_feature_2", "item_feature_3")
    user = tuple(f"user_feature_{i}" for i in range(4))
    features = cb.FeatureSet(
        label=col("click"),
        sparse={
            "item": cb.cross("campaign", "item_id"),
            "campaign": col("campaign").key(),
            "position": col("position").key(),
            "hour": col("timestamp").hour().key(),
            **{name: col(name).key() for name in (*user, *shared)},
        },
        dense={"item_feature_0": col("item_feature_0"), "affinity": col("user_item_affinity").sum().log1p()},
    )
    return cb.compile(log.join(items, on=["campaign", "item_id"]), features, device="cpu")


@cache
def leaves(path: Path) -> cb.Dictionary:
    """The leaf category of an ad, as a number, by the ad's id as it stands in a user's history."""
    ads = pq.read_table(path / "ads", columns=["ad_id", "category"])
    order = {leaf: i for i, leaf in enumerate(sorted(set(ads["category"].to_pylist())))}
    return cb.Dictionary(ads["ad_id"].cast(pa.string()), [order[leaf] for leaf in ads["category"].to_pylist()])


def adlog(log: cb.View) -> cb.Plan:
    root = adlog_folder()
    leaf = leaves(root)
    users = cb.View(str(root / "users"), key="user_id").fill(
        age=0, gender="unknown", country="none", interests="", history="", segment=-1
    )
    ads = cb.View(str(root / "ads"), key="ad_id").fill(advertiser_id=0, campaign_id=0, title="", category="", bid=0.0)
    basic = cb.View(str(root / "basic"), key="instance_id").fill(**dict.fromkeys(BASIC, 0.0))
    context = col("context")
    log = (
        log.fill(query="", device="unknown", position=-1, price=0.0)
        .with_columns(
            city=context.json("$.geo.city").fill("none"),
            app=context.json("$.app").fill("none"),
            slot=context.json("$.slot", "int").fill(-1),
            arm=context.json("$.exp[0]").fill("none"),
            depth=context.json("$.page.depth", "float").fill(0.5),
        )
        .join(users, on="user_id")
        .join(ads, on="ad_id")
        .merge(basic)
    )
    query, title = col("query").lower().words(), col("title").lower().words()
    topic = col("category").split("/").first(1)
    seen = col("history").split("|").last(20).lookup(leaf, default=-1)
    this = col("ad_id").cast("str").fill("").split("|").lookup(leaf, default=-2)
    features = cb.FeatureSet(
        label=col("clicked"),
        group=col("user_id"),
        sparse={
            "user": col("user_id").key(),
            "ad": col("ad_id").key(),
            "advertiser": col("advertiser_id").key(),
            "campaign": col("campaign_id").key(),
            "category": col("category").key(),
            "segment": col("segment").key(),
            "age": col("age").bucketize([18, 25, 35, 45, 55, 65]).key(),
            "gender": col("gender").key(),
            "country": col("country").key(),
            "city": col("city").key(),
            "app": col("app").key(),
            "slot": col("slot").key(),
            "device": col("device").key(),
            "position": col("position").key(),
            "arm": col("arm").key(),
            "hour": col("ts").hour().key(),
            "segment_x_category": cb.cross("segment", "category"),
            "hour_x_advertiser": cb.cross(col("ts").hour(), "advertiser_id"),
            "query": query.key(space="word"),
            "title": title.key(space="word"),
            "interests": col("interests").split("|").key(),
            "leaf": this.key(space="leaf"),
            "history": seen.key(space="leaf"),
        },
        dense={
            "log_bid": col("bid").log1p(),
            "log_price": col("price").log1p(),
            "depth": col("depth"),
            "overlap": cb.overlap(query, title),
            "interest": cb.overlap(col("interests").split("|"), topic),
            "taste": cb.overlap(seen, this),
            "log_ad_age": col("ts").age(col("created"), unit="days").fill(0.0).clip(0.0, 1e6).log1p(),
            "user_age": col("age") / 100.0,
            **{name: col(name) / SCALE.get(name, 1.0) for name in BASIC},
        },
    )
    return cb.compile(log, features, device="cpu")


@dataclass(frozen=True)
class DataSet:
    load: Callable[[], Split]
    compile: Callable[..., cb.Plan]
    key: str | list[str]
    numbers: Mapping[str, str]  # dense feature → raw column, where the raw one has nulls that a tree can use


SETS: dict[str, DataSet] = {
    "frappe_x1": DataSet(load_frappe, frappe, [], {}),
    "criteo_1tb_80k": DataSet(load_criteo, criteo, "row", {f"log_{name}": name for name in COUNTS}),
    "criteo_attribution_165k": DataSet(load_attribution, attribution, "orig_row", {}),
    "open_bandit_60k": DataSet(load_bandit, bandit, [], {}),
    "adlog": DataSet(load_adlog, adlog, "instance_id", {}),
}


def known(name: str) -> str:
    if name not in SETS:
        raise SystemExit(f"no set {name!r}; known: {', '.join(SETS)}")
    if name != "adlog" and not (SHARED / name).is_dir():
        raise SystemExit(f"{SHARED / name} is absent; the real sets are not part of the repository")
    return name


def plan(name: str, part: str, **options: Any) -> cb.Plan:
    """The plan of one part of a set. All parts of a set have plans of one fingerprint."""
    chosen = SETS[known(name)]
    if part not in PARTS:
        raise SystemExit(f"no part {part!r}; known: {', '.join(PARTS)}")
    log = cb.View(str(folder(name) / f"{part}.parquet"), key=chosen.key, name=name)
    return chosen.compile(log, **options)


def plans(name: str, **options: Any) -> tuple[cb.Plan, cb.Plan, cb.Plan]:
    """Train, valid and test."""
    train, valid, test = (plan(name, part, **options) for part in PARTS)
    return train, valid, test


# ---- the same rows for tools that take arrays -------------------------------------------------------------------


@dataclass(frozen=True)
class Arrays:
    """A part in memory. A field has as many keys per row as its offsets say; dense may hold NaN if asked for."""

    label: npt.NDArray[np.float32]
    sparse: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    dense: npt.NDArray[np.float32]
    dense_names: tuple[str, ...]

    @property
    def rows(self) -> int:
        return len(self.label)

    @property
    def single(self) -> list[str]:
        """Fields of exactly one key per row."""
        return [name for name, (values, _) in self.sparse.items() if len(values) == self.rows]


def arrays(name: str, part: str, *, nan: bool = False, limit: int | None = None, **options: Any) -> Arrays:
    """What the plan of a part gives, as whole arrays. `nan=True`: counts that are missing stay missing, unlogged."""
    made = plan(name, part, **options)
    labels, dense = [], []
    keys: dict[str, list[npt.NDArray[np.int64]]] = {}
    sizes: dict[str, list[npt.NDArray[np.int64]]] = {}
    for batch in made.batches(65_536, limit=limit):
        assert batch.label is not None
        labels.append(batch.label.copy())
        dense.append(batch.dense.copy())
        for field, ragged in batch.sparse.items():
            keys.setdefault(field, []).append(ragged.values.copy())
            sizes.setdefault(field, []).append(np.diff(ragged.offsets))
    sparse = {
        field: (np.concatenate(found), np.concatenate([[0], np.cumsum(np.concatenate(sizes[field]))]))
        for field, found in keys.items()
    }
    names = tuple(made.schema.dense_names)
    matrix = np.concatenate(dense)
    if nan:
        for feature, column in SETS[name].numbers.items():
            raw = pq.read_table(folder(name) / f"{part}.parquet", columns=[column])[column]
            matrix[:, names.index(feature)] = raw.to_numpy().astype(np.float32)[: len(matrix)]
    return Arrays(np.concatenate(labels), sparse, matrix, names)


# ---- scores -----------------------------------------------------------------------------------------------------


def auc(label: npt.ArrayLike, score: npt.ArrayLike) -> float:
    """The share of pairs (clicked, not clicked) in the right order; a tie counts half."""
    y, s = np.asarray(label) > 0.5, np.asarray(score, np.float64)
    _, place, count = np.unique(s, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - (count - 1) / 2  # mean rank of a tie, from 1
    n = int(y.sum())
    m = len(y) - n
    return float((middle[place][y].sum() - n * (n + 1) / 2) / (n * m)) if n and m else 0.5


def auc_error(label: npt.ArrayLike, value: float) -> float:
    """One standard error of an AUC, after Hanley and McNeil: how far luck alone moves it."""
    n = float(np.sum(np.asarray(label) > 0.5))
    m = len(np.asarray(label)) - n
    one, two = value / (2 - value), 2 * value**2 / (1 + value)
    spread = value * (1 - value) + (n - 1) * (one - value**2) + (m - 1) * (two - value**2)
    return float(np.sqrt(max(spread, 0.0) / (n * m))) if n and m else 0.0


def logloss(label: npt.ArrayLike, p: npt.ArrayLike) -> float:
    y = np.asarray(label, np.float64)
    q = np.clip(np.asarray(p, np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(y * np.log(q) + (1 - y) * np.log(1 - q)))


def main() -> None:
    """Rows, click rate and fields of every part, checked against the tables they come from."""
    for name in SETS:
        prints = set()
        for part, table in SETS[known(name)].load().items():
            made = arrays(name, part)
            label = next(c for c in ("label", "click", "clicked") if c in table.column_names)
            assert (made.label == table[label].to_numpy().astype(np.float32)).all(), f"{name} {part}: other rows"
            prints.add(plan(name, part).fingerprint)
            widths = {f: len(np.unique(values)) for f, (values, _) in made.sparse.items()}
            print(f"{name} {part}: {made.rows:,} rows, {made.label.mean():.4f} clicked, {len(widths)} fields,")
            print(f"    {sum(widths.values()):,} keys, {len(made.dense_names)} dense")
        assert len(prints) == 1, f"{name}: plans of its parts differ"


if __name__ == "__main__":
    main()
