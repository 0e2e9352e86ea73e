"""Writes an ad log of several views whose true click probability is known (``adlog``).

    out/adlog.json          what was asked for and the best scores possible; written last
    out/impressions/*.parquet   one file a block of 262,144 rows, in order of time and of instance_id
    out/basic/*.parquet     15 features by instance_id, same order, 0.5 % of the instances absent
    out/truth/*.parquet     instance_id, p_click
    out/users/*.parquet, out/ads/*.parquet   the dimension views, one row a key
    out/images, out/behaviors   where images are asked for (adlog_image_views.py)
    out/conversions, out/conversion_truth, out/conversion_delays   where conversions are asked for (adlog_conversions.py)

Blocks are drawn independently from (seed, block) and written by a few threads, so memory does not grow with
the log and the values do not depend on the number of threads. The folder is written aside and renamed when
whole.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ctrbox import _native
from ctrbox.datasets import adlog_conversions as planted
from ctrbox.datasets import adlog_image_views, adlog_text
from ctrbox.datasets.adlog_vocabulary import CATEGORIES, COUNTRIES, TOPICS, vocabulary
from ctrbox.datasets.adlog_world import DEVICES, Draw, Mask, World, ad_id, stream, user_id
from ctrbox.datasets.random_draws import chance
from ctrbox.errors import DataError, WriteError
from ctrbox.files.interruptible_wait import result_of
from ctrbox.files.urls import local_path

VERSION = 2  # a log of another version is made anew
BLOCK = 1 << 18
ROW_GROUP = 1 << 16
_VIEWS = ("impressions", "users", "ads", "basic", "truth")
_BINS = 1 << 16  # of the score histogram: its AUC is exact to about 1e-5

_BASIC_INTS = {"f04", "f05", "f12", "f13"}
_BASIC_NULLS = {"f03": 0.04, "f05": 0.02, "f07": 0.08, "f11": 0.01}


def _schema(nullable: Collection[str], **columns: pa.DataType) -> pa.Schema:
    """Return a schema in which columns without nulls say so; such a column decodes faster and needs no fill."""
    return pa.schema([pa.field(name, kind, nullable=name in nullable) for name, kind in columns.items()])


IMPRESSIONS = _schema(
    {"query", "device", "position", "price"},
    instance_id=pa.int64(),
    ts=pa.timestamp("us"),
    user_id=pa.int64(),
    ad_id=pa.int64(),
    query=pa.string(),
    device=pa.string(),
    context=pa.string(),
    position=pa.int32(),
    price=pa.float64(),
    clicked=pa.int8(),
)
USERS = _schema(
    {"age", "gender"},
    user_id=pa.int64(),
    age=pa.int32(),
    gender=pa.string(),
    country=pa.string(),
    signup=pa.timestamp("us"),
    interests=pa.string(),
    history=pa.string(),
    segment=pa.int32(),
)
ADS = _schema(
    {"bid"},
    ad_id=pa.int64(),
    advertiser_id=pa.int64(),
    campaign_id=pa.int64(),
    title=pa.string(),
    category=pa.string(),
    bid=pa.float64(),
    created=pa.timestamp("us"),
    keywords=pa.string(),
    landing=pa.string(),
)
BASIC = _schema(
    _BASIC_NULLS,
    instance_id=pa.int64(),
    **{f"f{i:02}": pa.int32() if f"f{i:02}" in _BASIC_INTS else pa.float32() for i in range(15)},
)
TRUTH = _schema((), instance_id=pa.int64(), p_click=pa.float64())


@dataclass(frozen=True, slots=True)
class AdLog:
    """Paths of the views of an ad log, and the metrics of the best possible model on the whole log.

    `best_auc` and `logloss` are those of the true probability against the clicks drawn from it.
    """

    path: Path
    rows: int
    seed: int
    users_count: int
    ads_count: int
    days: int
    best_auc: float
    logloss: float
    base_rate: float
    image_width: int = 0
    best_convert_auc: float | None = (
        None  # of clicked impressions, by the true probability; None of a log without conversions
    )

    @property
    def impressions(self) -> Path:
        return self.path / "impressions"

    @property
    def users(self) -> Path:
        return self.path / "users"

    @property
    def ads(self) -> Path:
        return self.path / "ads"

    @property
    def basic(self) -> Path:
        return self.path / "basic"

    @property
    def truth(self) -> Path:
        return self.path / "truth"

    @property
    def images(self) -> Path:
        return self.path / "images"

    @property
    def behaviors(self) -> Path:
        return self.path / "behaviors"

    @property
    def conversions(self) -> Path:
        return self.path / "conversions"

    @property
    def conversion_truth(self) -> Path:
        return self.path / "conversion_truth"

    @property
    def conversion_delays(self) -> Path:
        return self.path / "conversion_delays"


def adlog(
    rows: int,
    seed: int = 0,
    out: str | os.PathLike[str] = "data",
    *,
    users: int | None = None,
    ads: int | None = None,
    days: int = 7,
    images: int = 0,
    conversions: bool = False,
    overwrite: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> AdLog:
    """Write a generated ad log of `rows` impressions to the folder `out`, or use the log that the folder already contains.

    The same arguments give the same values. The log consists of several views.

    `seed`         seed of all random values; default: 0
    `users`        number of users; default: a tenth of the rows, at most 2 million
    `ads`          number of ads; default: a fortieth of the rows, at most 200,000
    `days`         number of days that the log covers; default: 7
    `progress`     called as `progress(done, rows)` as blocks are written, from the calling thread
    `images`       number of values per image (4,096 in the paper); default: 0, no images. With images, users have a visual
                   taste that influences their clicks. There are two more views, `images` and `behaviors`, and the view of
                   users has the additional columns `behavior` and `all_clicks`
    `conversions`  whether clicks may lead to a conversion of known probability, some hours later. There are three more views,
                   `conversions`, `conversion_truth` and `conversion_delays`; all other views have the same values as without
                   conversions

    A folder that holds another ad log is replaced, unless `overwrite=False`. A folder that holds anything else is refused.
    """
    for name, given in (
        ("rows", rows),
        ("seed", seed),
        ("days", days),
        ("images", images),
        ("users", users),
        ("ads", ads),
    ):
        if not isinstance(given, int) and not (given is None and name in ("users", "ads")):
            raise DataError(f"{name} of adlog must be a whole number, got {given!r}")
    if not isinstance(out, (str, os.PathLike)):
        raise DataError(f"out= of adlog must be the folder to write to, got {out!r}")
    if rows < 1:
        raise DataError(f"rows= of adlog must be at least 1, got {rows}")
    if days < 1:
        raise DataError(f"days= of adlog must be at least 1, got {days}")
    if seed < 0:
        raise DataError(f"seed= of adlog must be 0 or more, got {seed}")
    if not 0 <= images <= 1 << 16:
        raise DataError(
            f"images= of adlog must be from 0 to 65,536, got {images}; it is the length of the vector of an image"
        )
    user_count = min(max(rows // 10, 20), 2_000_000) if users is None else users
    ad_count = min(max(rows // 40, 20), 200_000) if ads is None else ads
    if user_count < 1 or ad_count < 1:
        raise DataError(f"users= and ads= of adlog must be at least 1, got users={user_count}, ads={ad_count}")

    if not isinstance(conversions, bool):
        raise DataError(f"conversions= of adlog must be True or False, got {conversions!r}")

    target = local_path(out, "a generated ad log").absolute()
    asked = {
        "version": VERSION,
        "rows": rows,
        "seed": seed,
        "users": user_count,
        "ads": ad_count,
        "days": days,
        "images": images,
        "conversions": conversions,
        "delays": conversions,  # a log that was written without them is generated again
    }
    found = _manifest(target)
    if found is not None and all(found.get(k, 0) == v for k, v in asked.items()):
        return _load(target, found)
    if found is None and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(
            f"{target} exists and is not the folder of a generated ad log, so it is not replaced; choose another folder, or "
            "empty this one"
        )

    if found is not None and not overwrite:
        differs = ", ".join(f"{k}={found.get(k, 0)}" for k, v in asked.items() if found.get(k, 0) != v)
        raise DataError(
            f"{target} holds another ad log ({differs}); choose another folder, or replace it with overwrite=True"
        )

    aside = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.part"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for view in (*_VIEWS, *(("images", "behaviors") if images else ()), *(planted.VIEWS if conversions else ())):
            (aside / view).mkdir(parents=True)
        scores = _write(aside, rows, seed, user_count, ad_count, days, images, conversions, progress)
        manifest = asked | scores
        (aside / "adlog.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        _swap(aside, target)
    except OSError as error:
        kept = "the previous log is unchanged" if found is not None else "no partial output was kept"
        raise WriteError(f"cannot write {target}: {error.strerror or error}; {kept}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return _load(target, manifest)


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "adlog.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and "version" in found
    return found if whole else None


def _load(folder: Path, manifest: dict[str, Any]) -> AdLog:
    return AdLog(
        path=folder,
        rows=manifest["rows"],
        seed=manifest["seed"],
        users_count=manifest["users"],
        ads_count=manifest["ads"],
        days=manifest["days"],
        best_auc=manifest["best_auc"],
        logloss=manifest["logloss"],
        base_rate=manifest["base_rate"],
        image_width=manifest.get("images", 0),
        best_convert_auc=manifest.get("best_convert_auc"),
    )


def _swap(aside: Path, target: Path) -> None:
    """Put the finished folder in place; the old one, an ad log or empty, is removed only after that."""
    old = target.parent / f"{aside.name}.old"
    if target.exists():
        target.rename(old)
    try:
        aside.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Score:
    """Histograms of the true probability, one for shown and one for clicked rows, which are added up over blocks."""

    shown: npt.NDArray[np.int64]
    clicked: npt.NDArray[np.int64]
    loss: float

    @staticmethod
    def of(p: npt.NDArray[np.float64], clicked: Mask) -> _Score:
        at = np.minimum((p * _BINS).astype(np.int64), _BINS - 1)
        loss = -float(np.sum(np.log(np.where(clicked, p, 1.0 - p))))
        return _Score(np.bincount(at, minlength=_BINS), np.bincount(at[clicked], minlength=_BINS), loss)

    @staticmethod
    def total(parts: list[_Score]) -> dict[str, float]:
        shown = np.sum([s.shown for s in parts], axis=0)
        clicked = np.sum([s.clicked for s in parts], axis=0)
        other = shown - clicked
        below = np.concatenate([[0], np.cumsum(other)[:-1]])
        pairs = float(clicked.sum()) * float(other.sum())
        wins = float(np.sum(clicked * (below + other / 2)))
        # Without a click, or without a miss, no pair can be ordered: chance.
        auc = wins / pairs if pairs else 0.5
        rows = int(shown.sum())
        return {
            "best_auc": auc,
            "logloss": sum(s.loss for s in parts) / rows,
            "base_rate": int(clicked.sum()) / rows,
        }


def _write(
    folder: Path,
    rows: int,
    seed: int,
    users: int,
    ads: int,
    days: int,
    images: int,
    conversions: bool,
    progress: Callable[[int, int], None] | None,
) -> dict[str, float]:
    world = World.make(seed, users, ads, days, min(max(rows // 20, 2_000), 100_000), images)
    known = adlog_text.sentences(stream(seed, 6), world.queries.words)
    blocks = range(0, rows, BLOCK)
    done = 0
    parts: list[_Score] = []
    converted: list[_Score] = []
    # A block in flight takes about 0.2 GB, so the number of threads bounds the memory.
    with ThreadPoolExecutor(min(4, _native.usable_cores())) as pool:
        dimensions = [pool.submit(_write_users, folder, world), pool.submit(_write_ads, folder, world)]
        if world.visual is not None:
            shown = (folder / "images", world, world.visual, _save)
            dimensions.append(pool.submit(adlog_image_views.write_images, *shown))
        futures = [pool.submit(_write_block, folder, world, known, first, rows, conversions) for first in blocks]
        try:
            for future, first in zip(futures, blocks, strict=True):
                score, of_conversions = result_of(future)
                parts.append(score)
                converted += [] if of_conversions is None else [of_conversions]
                done = min(first + BLOCK, rows)
                if progress is not None:
                    progress(done, rows)
            for dimension in dimensions:
                result_of(dimension)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    found = _Score.total(parts)
    return found | ({"best_convert_auc": _Score.total(converted)["best_auc"]} if converted else {})


def _write_block(
    folder: Path, world: World, known: pa.Array, first: int, rows: int, conversions: bool
) -> tuple[_Score, _Score | None]:
    count = min(BLOCK, rows - first)
    block = first // BLOCK
    rng = stream(world.seed, 5, block)
    draw = world.draw(rng, first, count, rows)
    p = 1.0 / (1.0 + np.exp(-draw.logit))
    clicked = chance(rng, p, count)
    # Ascending with gaps: a log that was filtered once already.
    instance = (np.arange(first, first + count) * 3) + rng.integers(0, 3, count)

    columns = [
        pa.array(instance),
        pa.array(draw.ts_us, pa.timestamp("us")),
        pa.array(draw.user_id),
        pa.array(draw.ad_id),
        adlog_text.queries(rng, known, draw),
        pa.array(DEVICES).take(pa.array(draw.device, mask=draw.device == len(DEVICES))),
        adlog_text.contexts(rng, draw),
        pa.array(draw.position.astype(np.int32), mask=draw.position == 10),
        _prices(rng, world, draw),
        pa.array(clicked.astype(np.int8)),
    ]
    _save(
        folder / "impressions" / _part(block),
        pa.Table.from_arrays(columns, schema=IMPRESSIONS),
        ["device", "position"],
    )
    _save(folder / "truth" / _part(block), pa.Table.from_arrays([pa.array(instance), pa.array(p)], schema=TRUTH))
    _save(folder / "basic" / _part(block), _basic(rng, world, draw, instance))
    if not conversions:
        return _Score.of(p, clicked), None
    found = planted.write_conversions(folder, _part(block), world, draw, instance, clicked, block, _save)
    return _Score.of(p, clicked), _Score.of(*found)


def _part(block: int) -> str:
    return f"part-{block:05}.parquet"


def _save(path: Path, table: pa.Table, repeated: list[str] | bool = False) -> None:
    # LZ4 decodes in 0.7 of the time of Snappy and zstd here; a dictionary only where few values repeat.
    pq.write_table(
        table,
        path,
        row_group_size=ROW_GROUP,
        compression="lz4",
        use_dictionary=repeated,
        write_page_checksum=True,
    )


def _prices(rng: np.random.Generator, world: World, draw: Draw) -> pa.Array:
    """Return what each impression cost, which is a part of the bid; null where the auction log has a gap."""
    n = len(draw.ad)
    bid = np.nan_to_num(world.ads.bid[draw.ad], nan=0.5)
    price = np.round(bid * (0.4 + 0.6 * rng.random(n)), 4)
    return pa.array(price, mask=chance(rng, 0.02, n))


def _basic(rng: np.random.Generator, world: World, draw: Draw, instance: npt.NDArray[np.int64]) -> pa.Table:
    """Return features "materialized earlier": f00 to f02 are noisy rates of user, ad and pair; the others say little."""
    kept = np.flatnonzero(rng.random(len(instance)) >= 0.005)
    n = len(kept)
    user, ad = draw.user[kept], draw.ad[kept]

    def noise(scale: float) -> npt.NDArray[np.float32]:
        return rng.standard_normal(n, np.float32) * np.float32(scale)

    def rate(logit: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.float32(1) / (np.float32(1) + np.exp(np.float32(1.5) - logit))

    values: dict[str, npt.NDArray[Any]] = {
        "f00": rate(world.users.effect[user] + noise(0.15)),
        "f01": rate(world.ads.effect[ad] + noise(0.15)),
        "f02": rate(draw.affinity[kept] + noise(0.5)),
        "f03": (draw.words[:, kept] >= 0).sum(axis=0).astype(np.float32),
        "f04": world.users.clicks[user],
        "f05": rng.integers(0, 1_000, n, np.int32),
        "f12": rng.integers(0, 24, n, np.int32),
        "f13": rng.integers(0, 100_000, n, np.int32),
    }
    for name in BASIC.names[1:]:
        if name not in values:
            values[name] = np.exp(noise(1.0)) if name in ("f06", "f07") else noise(1.0)
    columns = [pa.array(instance[kept])]
    for name in BASIC.names[1:]:
        holes = rng.random(n, np.float32) < _BASIC_NULLS[name] if name in _BASIC_NULLS else None
        columns.append(pa.array(values[name], mask=holes))
    return pa.Table.from_arrays(columns, schema=BASIC)


def _write_users(folder: Path, world: World) -> None:
    users = world.users
    rng = stream(world.seed, 7)
    n = users.count
    ads, offsets = world.histories(rng)
    clicked = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ad_id(ads)).cast(pa.string()))
    # Two equal interests are written once; the first is never repeated from the second slot on.
    names = pa.array(TOPICS)
    interests = users.interests[:n].astype(np.int64)
    pieces = [names.take(pa.array(interests[:, 0]))]
    for k in range(1, 4):
        again = (interests[:, :k] == interests[:, k : k + 1]).any(axis=1)
        pieces.append(names.take(pa.array(interests[:, k], mask=again)))
    age = users.age[:n]
    gender = users.gender[:n].astype(np.int64)
    table = pa.Table.from_arrays(
        [
            pa.array(user_id(np.arange(n))),
            pa.array(age, mask=age == 0),
            pa.array(["f", "m", "x"]).take(pa.array(gender, mask=gender == 3)),
            pa.array(COUNTRIES).take(pa.array(users.country[:n].astype(np.int64))),
            pa.array(users.signup_us[:n], pa.timestamp("us")),
            adlog_text.joined(pieces, "|"),
            adlog_text.list_joined(clicked, "|"),
            pa.array(users.segment[:n].astype(np.int32)),
        ],
        schema=USERS,
    )
    if world.visual is not None:
        told = adlog_image_views.write_behaviors(folder / "behaviors", world, world.visual, _save)
        for name, column in zip(adlog_image_views.COLUMNS, told, strict=True):
            table = table.append_column(pa.field(name, pa.string(), nullable=False), column)
    order = pa.array(rng.permutation(n))
    _save(folder / "users" / _part(0), table.take(order), ["gender", "country", "segment"])


def _write_ads(folder: Path, world: World) -> None:
    ads = world.ads
    rng = stream(world.seed, 8)
    n = ads.count
    words = pa.array(vocabulary().words)
    title = ads.title[:, :n]
    keywords = [words.take(pa.array(np.maximum(slot, 0).astype(np.int64), mask=slot < 0)) for slot in title]
    category = pa.array(CATEGORIES).take(pa.array(ads.category[:n].astype(np.int64)))
    number = pa.array(ad_id(np.arange(n)))
    bid = ads.bid[:n]
    table = pa.Table.from_arrays(
        [
            number,
            pa.array(ads.advertiser[:n].astype(np.int64) + 5_000),
            pa.array(ads.campaign[:n].astype(np.int64) + 70_000),
            adlog_text.sentences(rng, title),
            category,
            pa.array(bid, mask=np.isnan(bid)),
            pa.array(ads.created_us[:n], pa.timestamp("us")),
            adlog_text.joined(keywords, ","),
            adlog_text.joined(["https://shop.example/", category, "?ad=", number.cast(pa.string())], ""),
        ],
        schema=ADS,
    )
    order = pa.array(rng.permutation(n))
    _save(folder / "ads" / _part(0), table.take(order), ["category"])
