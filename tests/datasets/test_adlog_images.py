"""The ad log with images: its views against plain recomputation, its planted taste against a slow twin."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrbox.datasets.adlog_image_views import BEHAVIORS, images_schema
from ctrbox.datasets.adlog_images import APPEAL, MOOD, NOISE, TASTE
from ctrbox.datasets.adlog_world import World, ad_id
from ctrbox.datasets.write_adlog import AdLog, adlog
from ctrbox.errors import DataError

ROWS, USERS, ADS, WIDTH = 20_000, 1500, 800, 12


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> AdLog:
    return adlog(ROWS, 3, tmp_path_factory.mktemp("adlog") / "log", users=USERS, ads=ADS, images=WIDTH)


@pytest.fixture(scope="module")
def world() -> World:
    return World.make(3, USERS, ADS, 7, 2000, WIDTH)


def test_images_are_one_a_known_ad_and_a_few_are_absent(log: AdLog) -> None:
    images = pq.read_table(log.images)
    assert images.schema.equals(images_schema(WIDTH)) or images.schema.field("image").type.list_size == WIDTH
    ids = images["ad_id"].to_numpy()
    known = set(pq.read_table(log.ads)["ad_id"].to_pylist())
    assert len(set(ids.tolist())) == len(ids)
    assert set(ids.tolist()) <= known
    assert 0.97 < len(ids) / len(known) <= 1
    values = images["image"].combine_chunks().flatten().to_numpy()
    assert values.dtype == np.float32
    assert np.isfinite(values).all()


def test_behavior_is_what_was_clicked_in_14_days_and_dwelled_on(log: AdLog) -> None:
    clicks = pq.read_table(log.behaviors)
    assert clicks.schema.equals(BEHAVIORS)
    start = dt.datetime(2024, 3, 1)
    recent, every = defaultdict(list), defaultdict(list)
    last: dict[int, dt.datetime] = {}
    for row in clicks.to_pylist():
        assert last.get(row["user_id"], row["ts"]) <= row["ts"] <= start  # newest last
        last[row["user_id"]] = row["ts"]
        every[row["user_id"]].append(str(row["ad_id"]))
        if start - row["ts"] <= dt.timedelta(days=14) and row["dwell"] >= 15:
            recent[row["user_id"]].append(str(row["ad_id"]))
    users = pq.read_table(log.users, columns=["user_id", "behavior", "all_clicks"]).to_pylist()
    assert len(users) == USERS
    for user in users:
        assert user["behavior"] == "|".join(recent[user["user_id"]])
        assert user["all_clicks"] == "|".join(every[user["user_id"]])
    assert 50 < np.mean([len(r) for r in recent.values()]) < 80


def test_the_odds_of_an_image_are_those_of_the_plain_definition(world: World) -> None:
    visual = world.visual
    assert visual is not None
    rng = np.random.default_rng(0)
    user, ad = rng.integers(0, USERS + 1, 400), rng.integers(0, ADS + 1, 400)
    found = visual.odds(world, user, ad)
    for u, a, odds in zip(user.tolist(), ad.tolist(), found, strict=True):
        style = visual.style[a].astype(np.float64)
        expected = APPEAL * float(style @ visual.appeal)
        slots = [k for k in range(4) if world.users.interests[u, k] == world.ads.topic[a]]
        if u < USERS and slots:
            taste = visual.tastes[visual.taste[u, slots[0]]]
            expected += TASTE * float(style @ taste) + MOOD * float(taste @ visual.appeal)
        assert odds == pytest.approx(expected, abs=1e-4)
    assert not visual.odds(world, np.array([USERS]), np.array([ADS])).any()


def test_recent_clicks_show_the_taste_and_others_do_not(world: World) -> None:
    visual = world.visual
    assert visual is not None
    clicks = visual.behaviors(world, 0, USERS)
    match = world.users.interests[clicks.user] == world.ads.topic[clicks.ad][:, None]
    within, slot = match.any(1), match.argmax(1)
    style = visual.style[clicks.ad]
    now = np.einsum("ij,ij->i", visual.tastes[visual.taste[clicks.user, slot]], style)
    then = np.einsum("ij,ij->i", visual.tastes[visual.before[clicks.user, slot]], style)
    recent, long = clicks.age_us <= 14 * 86_400_000_000, clicks.dwell >= 15
    told = now[within & recent & long].mean()
    assert told > 0.45
    assert then[within & ~recent & long].mean() > 0.45
    assert abs(now[within & ~recent & long].mean()) < told / 2
    assert abs(now[within & ~long].mean()) < told / 2
    assert np.array_equal(clicks.kept(), recent & long)


def test_a_style_can_be_read_off_its_image(world: World) -> None:
    visual = world.visual
    assert visual is not None
    wide = World.make(3, USERS, ADS, 7, 2000, 256)
    assert wide.visual is not None
    assert np.array_equal(wide.visual.style, visual.style)  # the width changes images, not clicks
    at, images = wide.visual.images(wide, 0, ADS)
    half = len(at) // 2
    fitted, *_ = np.linalg.lstsq(images[:half], visual.style[at[:half]], rcond=1e-2)
    error = np.square(images[half:] @ fitted - visual.style[at[half:]]).mean()
    assert error < 0.2  # of 1


def test_an_image_is_its_style_and_its_topic_with_noise(world: World) -> None:
    visual = world.visual
    assert visual is not None
    at, images = visual.images(world, 100, ADS)
    of_style, of_topic = visual._maps()
    assert at.tolist() == [ad for ad in range(100, ADS) if visual.imaged[ad]]
    plain = [visual.style[ad] @ of_style + visual.shown[ad] * of_topic[world.ads.topic[ad]] for ad in at]
    noise = images - np.array(plain)
    assert abs(noise.mean()) < 0.05 * NOISE
    assert abs(noise.std() - NOISE) < 0.05 * NOISE


def test_the_same_seed_gives_the_same_images_and_clicks(log: AdLog, tmp_path: Path) -> None:
    again = adlog(ROWS, 3, tmp_path / "again", users=USERS, ads=ADS, images=WIDTH)
    for view in ("images", "behaviors", "users", "impressions"):
        assert pq.read_table(again.path / view).equals(pq.read_table(log.path / view))
    plain = adlog(ROWS, 3, tmp_path / "plain", users=USERS, ads=ADS)
    assert not plain.images.exists()
    assert "behavior" not in pq.read_schema(next(plain.users.glob("*.parquet"))).names
    assert plain.best_auc < log.best_auc
    columns = ["instance_id", "ts", "user_id", "ad_id", "query"]
    clicks = [pq.read_table(one.impressions, columns=[*columns, "clicked"]) for one in (plain, log)]
    assert clicks[0].select(columns[1:]).equals(clicks[1].select(columns[1:]))
    assert not clicks[0]["clicked"].equals(clicks[1]["clicked"])
    assert (ad_id(np.arange(3)) > 0).all()


def test_a_log_with_images_is_not_taken_for_one_without(tmp_path: Path) -> None:
    one = adlog(100, 1, tmp_path / "log", images=4)
    assert adlog(100, 1, tmp_path / "log", images=4).image_width == 4
    assert one.images.exists()
    assert adlog(100, 1, tmp_path / "log").image_width == 0
    assert not one.images.exists()
    with pytest.raises(DataError, match="must be from 0 to 65,536"):
        adlog(100, 1, tmp_path / "log", images=-1)
    with pytest.raises(DataError, match="images of adlog must be a whole number"):
        adlog(100, 1, tmp_path / "log", images="4096")  # type: ignore[arg-type]
    assert pa.types.is_string(pq.read_schema(next(one.users.glob("*.parquet"))).field("history").type)
