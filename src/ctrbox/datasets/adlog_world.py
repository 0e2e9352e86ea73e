"""Simulates the world of the synthetic ad log: its users, its ads and the probability of a click.

The log odds of a click are a sum of effects, each a function of columns that the log shows:

    bias                                  solved so that BASE_RATE of a pilot sample is clicked
    segment vector · category vector      a cross of users.segment and ads.category (4 dimensions)
    the ad's topic is an interest         users.interests against ads.category
    the ad's leaf is the user's taste     seen through users.history, whose ads are mostly of that leaf
    words of the query in the title       overlap of impressions.query and ads.title, at most 3
    hour × advertiser                     a daily wave of its own for every advertiser
    position, device, depth, experiment   impressions.position/.device, context.page.depth, context.exp
    user                                  age and segment, and a small part of user_id alone
    ad                                    advertiser, campaign, a small part of ad_id alone; wears out by age
    day                                   the base rate moves; which ads are popular moves too
    image                                 where the log has images: style against the user's visual taste (adlog_images.py)

Ids carry little that no other column shows, so a user seen once is not a coin toss and a model of a million
rows can come within 0.01 of the best AUC. A user or ad that its view does not hold is *neutral*: the last
entry of every array here, with all effects zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrbox.datasets.adlog_images import Visual
from ctrbox.datasets.adlog_vocabulary import (
    BRANDS_PER_TOPIC,
    CATEGORIES,
    COUNTRY_LANGUAGE,
    LANGUAGE_SHARE,
    LEAVES_PER_TOPIC,
    TOPIC_SHARE,
    TOPICS,
    vocabulary,
)
from ctrbox.datasets.random_draws import chance

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]

BASE_RATE = 0.18
START_US = 1_709_251_200_000_000  # 2024-03-01 00:00 UTC
DAY_US = 86_400_000_000
SEGMENTS = 24
DEVICES = ("ios", "android", "web", "tv")
QUERY_WORDS = 5
TITLE_WORDS = 7

UNKNOWN_USERS = 0.025  # share of impressions whose user the users view lacks
UNKNOWN_ADS = 0.015
NULL_QUERY = 0.03
TAIL_QUERIES = 0.2  # share of impressions whose query is composed for them alone

_DEVICE_EFFECT = np.array([0.25, 0.05, -0.2, -0.6, 0.0], np.float32)  # last: null
_POSITION_EFFECT = np.append(-0.55 * np.log1p(np.arange(10)), -0.3).astype(np.float32)  # last: null
_POSITION_SHARE = 0.78 ** np.arange(10) / np.sum(0.78 ** np.arange(10))


def stream(seed: int, *path: int) -> np.random.Generator:
    """Return an independent generator for each (seed, path), so that a block has the same values in any order of blocks."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *path])))


def power_law(u: Floats, n: Ints | int, s: float) -> npt.NDArray[np.int64]:
    """Turn uniform numbers ``u`` into ranks in [0, n) whose probabilities are about proportional to (rank + 1)^-s.

    The inverse of the distribution function is a formula, so that no table is needed, however large n is.
    """
    top = (np.asarray(n, np.float64) + 1.0) ** (1.0 - s) - 1.0
    rank = (1.0 + u * top) ** (1.0 / (1.0 - s)) - 1.0
    return np.minimum(rank.astype(np.int64), np.asarray(n) - 1)


def choose(rng: np.random.Generator, share: Any, size: int) -> npt.NDArray[np.int64]:
    """Draw `size` indices from a small table of shares."""
    cumulative = np.cumsum(np.asarray(share, np.float64))
    return np.searchsorted(cumulative / cumulative[-1], rng.random(size), side="right").astype(np.int64)


def user_id(index: Ints) -> npt.NDArray[np.int64]:
    """Return ids that look hashed; an odd factor modulo 2^40 keeps them distinct."""
    return (index.astype(np.int64) * 654_188_429 + 977) & ((1 << 40) - 1)


def ad_id(index: Ints) -> npt.NDArray[np.int64]:
    return (index.astype(np.int64) * 1_640_531_527 + 31) & ((1 << 32) - 1)


@dataclass(frozen=True, slots=True)
class Users:
    """Arrays of length users + 1; the last entry is the neutral user."""

    count: int
    age: npt.NDArray[np.int32]  # 0 = null in the view
    gender: npt.NDArray[np.int8]  # 3 = null
    country: npt.NDArray[np.int8]
    segment: npt.NDArray[np.int8]
    interests: npt.NDArray[np.int8]  # (user, 4) topics, repeated to fill
    interest_bits: npt.NDArray[np.uint16]
    taste: npt.NDArray[np.int8]  # a leaf category; -1 for none
    vector: npt.NDArray[np.float32]  # (user, 4)
    effect: npt.NDArray[np.float32]
    clicks: npt.NDArray[np.int32]  # items in the history
    signup_us: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ads:
    """Arrays of length ads + 1, by category, so that a topic and a leaf are ranges; the last is neutral."""

    count: int
    category: npt.NDArray[np.int8]
    topic: npt.NDArray[np.int8]
    advertiser: npt.NDArray[np.int32]
    campaign: npt.NDArray[np.int32]
    title: npt.NDArray[np.int16]  # (TITLE_WORDS, ad) word numbers, -2 where there is none
    language: npt.NDArray[np.int8]
    created_us: npt.NDArray[np.int64]
    bid: Floats
    vector: npt.NDArray[np.float32]  # (ad, 4)
    effect: Floats
    wave: npt.NDArray[np.float32]  # (24, ad): hour of the day × advertiser
    popularity: Floats
    phase: npt.NDArray[np.float64]
    leaf_start: npt.NDArray[np.int64]  # (73,): first ad of a leaf


@dataclass(frozen=True, slots=True)
class Queries:
    """The known queries, in order of (topic, language); popular ones first within a cell."""

    words: npt.NDArray[np.int16]  # (QUERY_WORDS, query), -1 where there is none
    start: npt.NDArray[np.int64]  # (topic, language)
    count: npt.NDArray[np.int64]  # (topic, language)


@dataclass(slots=True)
class Draw:
    """One block of impressions, before it becomes text."""

    ts_us: npt.NDArray[np.int64]
    day: npt.NDArray[np.int64]
    user: npt.NDArray[np.int64]  # index; users.count = unknown
    user_id: npt.NDArray[np.int64]
    ad: npt.NDArray[np.int64]  # index; ads.count = unknown
    ad_id: npt.NDArray[np.int64]
    query: npt.NDArray[np.int64]  # number of a known query; -1 where composed for this row alone
    words: npt.NDArray[np.int16]  # (QUERY_WORDS, row)
    no_query: Mask
    country: npt.NDArray[np.int8]
    device: npt.NDArray[np.int64]  # 4 = null
    position: npt.NDArray[np.int64]  # 10 = null
    depth: npt.NDArray[np.int64]  # hundredths; -1 where the context does not say
    arm: npt.NDArray[np.int64]  # 0..3; -1 where the context does not say
    broken: Mask  # the context is cut off
    overlap: npt.NDArray[np.int16]
    affinity: npt.NDArray[np.float32]
    logit: npt.NDArray[np.float64]


@dataclass(slots=True)
class World:
    seed: int
    days: int
    users: Users
    ads: Ads
    queries: Queries
    visual: Visual | None = None
    bias: float = 0.0
    _cdf: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)

    @staticmethod
    def make(seed: int, users: int, ads: int, days: int, queries: int, images: int = 0) -> World:
        adverts = _make_ads(stream(seed, 1), ads, days)
        people = _make_users(stream(seed, 2), users)
        visual = Visual.make(seed, users, adverts.advertiser, images) if images else None
        world = World(seed, days, people, adverts, _make_queries(stream(seed, 3), queries), visual)
        for day in range(-1, days):
            world._cdf[day] = world._popularity(day)
        pilot = world.draw(stream(seed, 4), 0, 40_000, 40_000).logit
        low, high = -12.0, 12.0
        for _ in range(50):
            world.bias = (low + high) / 2
            if np.mean(1.0 / (1.0 + np.exp(-(pilot + world.bias)))) > BASE_RATE:
                high = world.bias
            else:
                low = world.bias
        return world

    def _popularity(self, day: int) -> npt.NDArray[np.float64]:
        """Return the cumulative weight of the ads on a day, from 0. Popularity varies, and no ad is shown before it exists."""
        ads = self.ads
        swing = np.exp(0.8 * np.sin(2 * np.pi * day / 7 * (1 + ads.phase) + 7 * ads.phase))
        born = ads.created_us[:-1] <= START_US + day * DAY_US
        # The faint floor keeps every range drawable, also in a log of ten ads all created later.
        return np.concatenate([[0.0], np.cumsum(ads.popularity * swing * (born + 1e-9))])

    def pick_ads(self, rng: np.random.Generator, day: int, low: Ints, high: Ints) -> npt.NDArray[np.int64]:
        """Draw an ad from each range [low, high) by the popularity of the day; from all ads if the range is empty."""
        cdf = self._cdf[day]
        empty = low >= high
        start = cdf[np.where(empty, 0, low)]
        stop = cdf[np.where(empty, self.ads.count, high)]
        at = start + rng.random(len(low)) * (stop - start)
        return np.clip(np.searchsorted(cdf, at, side="right") - 1, 0, self.ads.count - 1).astype(np.int64)

    def topic_range(self, topic: Ints) -> tuple[Ints, Ints]:
        start = self.ads.leaf_start
        return start[topic * LEAVES_PER_TOPIC], start[(topic + 1) * LEAVES_PER_TOPIC]

    def histories(self, rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the ads clicked before the log begins: (ad indices, offsets by user). Most of them are of the user's taste."""
        users = self.users
        clicks = users.clicks[:-1]
        owner = np.repeat(np.arange(users.count), clicks)
        taste = users.taste[owner].astype(np.int64)
        low, high = self.topic_range(users.interests[owner, rng.integers(0, 4, len(owner))].astype(np.int64))
        of_taste = rng.random(len(owner)) < 0.7
        low = np.where(of_taste, self.ads.leaf_start[taste], low)
        high = np.where(of_taste, self.ads.leaf_start[taste + 1], high)
        offsets = np.concatenate([[0], np.cumsum(clicks, dtype=np.int64)])
        return self.pick_ads(rng, -1, low, high), offsets

    def draw(self, rng: np.random.Generator, first: int, count: int, total: int) -> Draw:
        """Draw the impressions first … first+count of `total`: every random column and the log odds of a click."""
        users, ads, queries = self.users, self.ads, self.queries
        ts_us = _times(rng, first, count, total, self.days)
        day = np.minimum((ts_us - START_US) // DAY_US, self.days - 1)

        user = power_law(rng.random(count), users.count, 0.7)
        shown_user = user_id(user)
        unknown = chance(rng, UNKNOWN_USERS, count)
        strangers = int(np.count_nonzero(unknown))
        shown_user[unknown] = user_id(users.count + power_law(rng.random(strangers), users.count // 20 + 1, 0.7))
        user[unknown] = users.count

        pick = rng.integers(0, 4, count)
        own = chance(rng, 0.6, count)
        topic = np.where(own, users.interests[user, pick], choose(rng, TOPIC_SHARE, count)).astype(np.int64)
        country = users.country[user]
        # A user without a row is from anywhere: some other user's country.
        country[unknown] = users.country[rng.integers(0, users.count, strangers)]
        language = np.asarray(COUNTRY_LANGUAGE, np.int64)[country]

        start, size = queries.start[topic, language], queries.count[topic, language]
        query = start + power_law(rng.random(count), size, 0.9)
        words = queries.words[:, query]
        tail = np.flatnonzero(chance(rng, TAIL_QUERIES, count))
        words[:, tail] = _compose(rng, topic[tail], language[tail], QUERY_WORDS, -1)
        query[tail] = -1
        no_query = chance(rng, NULL_QUERY, count)
        words[:, no_query] = -1

        low, high = self.topic_range(topic)
        anywhere = ~chance(rng, 0.65, count)
        low = np.where(anywhere, 0, low)
        high = np.where(anywhere, ads.count, high)
        ad = np.empty(count, np.int64)
        for today in range(int(day[0]), int(day[-1]) + 1):
            a, b = np.searchsorted(day, [today, today + 1])
            ad[a:b] = self.pick_ads(rng, today, low[a:b], high[a:b])
        shown_ad = ad_id(ad)
        unknown = chance(rng, UNKNOWN_ADS, count)
        strangers = int(np.count_nonzero(unknown))
        shown_ad[unknown] = ad_id(ads.count + power_law(rng.random(strangers), ads.count // 20 + 1, 0.7))
        ad[unknown] = ads.count

        device = choose(rng, (0.33, 0.38, 0.22, 0.06, 0.01), count)
        position = choose(rng, [*(_POSITION_SHARE * 0.99), 0.01], count)
        broken = chance(rng, 0.001, count)
        depth = rng.integers(0, 101, count)
        depth[broken | chance(rng, 0.06, count)] = -1
        arm = rng.integers(0, 4, count)
        arm[broken | chance(rng, 0.08, count)] = -1

        overlap = np.zeros(count, np.int16)
        title = ads.title[:, ad]
        for word in words:
            found = title[0] == word
            for other in title[1:]:
                found |= other == word
            overlap += found
        np.minimum(overlap, 3, out=overlap)

        affinity = np.einsum("ij,ij->i", users.vector[user], ads.vector[ad])
        interest = (users.interest_bits[user] >> ads.topic[ad].astype(np.uint16)) & 1
        taste = users.taste[user] == ads.category[ad]
        hour = (ts_us - START_US) // 3_600_000_000 % 24
        age_days = np.maximum((ts_us - ads.created_us[ad]) / DAY_US, 0.0)
        logit = (
            self.bias
            + 1.15 * affinity
            + 0.7 * interest
            + 0.7 * taste
            + 0.7 * overlap
            + ads.wave[hour, ad]
            + users.effect[user]
            + ads.effect[ad]
            - np.where(ad == ads.count, 0.0, 0.12 * np.log1p(age_days))
            + _POSITION_EFFECT[position]
            + _DEVICE_EFFECT[device]
            + np.where(depth >= 0, 0.006 * depth, 0.3)
            + np.where(arm == 3, 0.2, 0.0)
            + 0.18 * np.sin(2 * np.pi * day / 5)
        )
        if self.visual is not None:
            logit += self.visual.odds(self, user, ad)
        return Draw(
            ts_us, day, user, shown_user, ad, shown_ad, query, words, no_query, country, device, position,
            depth, arm, broken, overlap, affinity, logit,
        )  # fmt: skip


def _times(rng: np.random.Generator, first: int, count: int, total: int, days: int) -> npt.NDArray[np.int64]:
    """Return ascending times, without sorting: row i is at the (i + u)/total quantile of a day-and-night curve."""
    hours = np.arange(days * 24)
    rate = 1.0 + 0.6 * np.sin(2 * np.pi * (hours % 24 - 9) / 24) + 0.1 * np.sin(2 * np.pi * hours / (24 * 7))
    cumulative = np.concatenate([[0.0], np.cumsum(rate)])
    quantile = (first + np.arange(count) + rng.random(count)) / total
    at = np.interp(quantile * cumulative[-1], cumulative, np.arange(days * 24 + 1))
    last = START_US + days * DAY_US - 1
    return np.minimum(START_US + (at * 3_600_000_000).astype(np.int64), last)


def _compose(rng: np.random.Generator, topic: Ints, language: Ints, width: int, none: int) -> npt.NDArray[np.int16]:
    """Return word numbers (width, n): [brand] word [word [word …]] [generic]; `none` where a slot stays empty."""
    known = vocabulary()
    n = len(topic)
    words = np.full((width, n), none, np.int16)
    brand = known.brands[topic, power_law(rng.random(n), BRANDS_PER_TOPIC, 0.8)]
    words[0] = np.where(chance(rng, 0.55, n), brand, none)
    # A run of neighbors in the pool of five, so that no word comes twice.
    first = rng.integers(0, 5, n)
    share = (1.0, 0.7, 0.45, 0.35, 0.25)
    for k in range(width - 2):
        words[1 + k] = np.where(chance(rng, share[k], n), known.pool[topic, language, (first + k) % 5], none)
    generic = known.generic[language, rng.integers(0, 5, n)]
    words[width - 1] = np.where(chance(rng, 0.35, n), generic, none)
    return words


def _make_queries(rng: np.random.Generator, count: int) -> Queries:
    share = np.outer(TOPIC_SHARE, LANGUAGE_SHARE)
    size = np.maximum(3, (share * count).astype(np.int64))
    start = np.concatenate([[0], np.cumsum(size)[:-1]]).reshape(size.shape)
    topic, language = np.divmod(np.repeat(np.arange(size.size), size.ravel()), size.shape[1])
    return Queries(_compose(rng, topic, language, QUERY_WORDS, -1), start, size)


def _make_users(rng: np.random.Generator, count: int) -> Users:
    n = count + 1
    age = np.clip(rng.normal(36, 13, n), 13, 90).astype(np.int32)
    age[chance(rng, 0.08, n)] = 0
    gender = choose(rng, (0.44, 0.42, 0.04, 0.10), n).astype(np.int8)
    language_share = np.asarray(LANGUAGE_SHARE)
    speakers = np.bincount(COUNTRY_LANGUAGE)
    country = choose(rng, [language_share[k] / speakers[k] for k in COUNTRY_LANGUAGE], n).astype(np.int8)
    segment = power_law(rng.random(n), SEGMENTS, 0.4).astype(np.int8)
    interests = choose(rng, TOPIC_SHARE, n * 4).reshape(n, 4).astype(np.int8)
    kinds = rng.integers(1, 5, n)
    interests = np.where(np.arange(4) < kinds[:, None], interests, interests[:, :1])
    bits = np.bitwise_or.reduce(np.left_shift(np.uint16(1), interests.astype(np.uint16)), axis=1)
    # The taste is a leaf of the first interest.
    taste = (interests[:, 0] * LEAVES_PER_TOPIC + rng.integers(0, LEAVES_PER_TOPIC, n)).astype(np.int8)
    clicks = np.minimum(rng.geometric(1 / 13, n) - 1, 50).astype(np.int32)
    vector = rng.standard_normal((SEGMENTS, 4)).astype(np.float32)[segment] * np.float32(0.62)
    by_segment = rng.normal(0, 0.25, SEGMENTS)[segment]
    by_age = np.where(age > 0, 0.3 * np.cos((age - 25) / 12), 0.0)
    effect = (by_segment + by_age + rng.normal(0, 0.08, n)).astype(np.float32)
    signup = START_US - (rng.random(n) * 1500 * DAY_US).astype(np.int64)
    bits[-1], taste[-1], vector[-1], effect[-1], clicks[-1] = 0, -1, 0, 0, 0
    return Users(count, age, gender, country, segment, interests, bits, taste, vector, effect, clicks, signup)


def _make_ads(rng: np.random.Generator, count: int, days: int) -> Ads:
    n = count + 1
    advertisers = max(4, count // 200)
    campaigns = max(8, count // 8)
    # Advertiser → topic, campaign → advertiser and leaf, ad → campaign.
    home = choose(rng, TOPIC_SHARE, advertisers)
    owner = power_law(rng.random(campaigns), advertisers, 0.5)
    leaf_of = home[owner] * LEAVES_PER_TOPIC + rng.integers(0, LEAVES_PER_TOPIC, campaigns)
    campaign = rng.integers(0, campaigns, n)
    campaign = campaign[np.argsort(leaf_of[campaign], kind="stable")]
    advertiser = owner[campaign]
    category = leaf_of[campaign]
    topic = category // LEAVES_PER_TOPIC
    language = choose(rng, LANGUAGE_SHARE, n)
    title = _compose(rng, topic, language, TITLE_WORDS, -2)
    created = START_US - (rng.random(n) * 300 * DAY_US).astype(np.int64)
    late = chance(rng, 0.1, n)
    created = np.where(late, START_US + (rng.random(n) * days * DAY_US).astype(np.int64), created)
    bid = np.round(np.exp(rng.normal(-0.5, 0.7, n)), 3)
    bid[chance(rng, 0.05, n)] = np.nan
    # Leaves of a topic are alike, so that segment × topic already tells most.
    by_topic, by_leaf = rng.standard_normal((len(TOPICS), 4)), rng.standard_normal((len(CATEGORIES), 4))
    vector = (0.62 * (0.87 * by_topic[topic] + 0.5 * by_leaf[category])).astype(np.float32)
    effect = rng.normal(0, 0.25, advertisers)[advertiser] + rng.normal(0, 0.1, campaigns)[campaign]
    effect = (effect + rng.normal(0, 0.1, n)).astype(np.float32)
    strength = 0.3 + 0.6 * rng.random(advertisers)
    peak = rng.integers(0, 24, advertisers)
    hours = np.arange(24)[:, None]
    wave = (strength * np.cos(2 * np.pi * (hours - peak) / 24)).astype(np.float32)[:, advertiser]
    rank = rng.permutation(count)
    popularity = (rank + 3.0) ** -0.95
    phase = rng.random(count)
    leaf_start = np.searchsorted(category[:count], np.arange(len(CATEGORIES) + 1))
    title[:, -1], vector[-1], effect[-1], wave[:, -1], bid[-1] = -2, 0, 0, 0, np.nan
    category, topic = category.astype(np.int8), topic.astype(np.int8)
    category[-1], topic[-1] = -2, len(TOPICS)
    return Ads(
        count, category, topic, advertiser.astype(np.int32), campaign.astype(np.int32), title,
        language.astype(np.int8), created, bid, vector, effect, wave, popularity, phase, leaf_start,
    )  # fmt: skip
