"""Simulates images of ads and the visual taste of users in the synthetic ad log.

    style    every ad has one, STYLE numbers: half of it is its advertiser's, the rest its own, which nothing but its image
             (and its id) tells
    image    a fixed random map of the style, of the ad's topic in two images of three, and noise
    taste    a user has a visual taste for each interest, the same for half of them: one number of the style, more of it or less
    click    log odds += TASTE · (taste · style) + MOOD · (taste · appeal) + APPEAL · (style · appeal), the taste being the one
             for the ad's topic, and nothing where that is no interest of the user; the appeal is the same for everybody

Tastes show in what users clicked before the log begins (`Behaviors`): most of the clicks of the last RECENT days with a long
dwell time follow the taste. Older clicks follow an earlier taste, and clicks with a short dwell time are accidents. A model that
filters clicks by both sees the taste; a model that does not sees half as much of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ctrbox.datasets.adlog_vocabulary import TOPICS
from ctrbox.datasets.random_draws import chance

if TYPE_CHECKING:
    from ctrbox.datasets.adlog_world import World

STYLE = 6
TASTES = 2 * STYLE
TASTE = 1.8
MOOD = 1.3
APPEAL = 1.1
BRAND = 0.5  # share of a style's variance that is its advertiser's
NOISE = 0.5  # of a number of an image, where styles have about 1
SHOWN = 2 / 3  # share of the images in which the topic can be seen
NO_IMAGE = 0.005  # share of the ads without one

DAYS = 28  # of clicks before the log
RECENT = 14
DWELL = 15.0  # seconds that tell an interest from an accident
ACCIDENTS = 0.4
MEAN_CLICKS, MOST_CLICKS = 160, 400  # 68 of 160 tell the taste; the paper's users have 200, and it keeps 33
EVEN = 4  # negative binomial's shape: a standard deviation of half the mean, so that a sum of clicks tells more than their number
CHOICES = 8  # ads of which a user clicks the one most to the taste
SHARED = 0.5  # of the interests have the taste of the user, the others one of their own
LIKING = 2.0  # weight of the taste in that choice, beside a Gumbel
BLOCK = 1 << 14  # users whose clicks are drawn at a time: 0.1 GB

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Behaviors:
    """Clicks of some users, user by user, newest last: index of the ad, microseconds before the log, seconds of dwelling."""

    user: Indices
    ad: Indices
    age_us: Indices
    dwell: npt.NDArray[np.float32]

    def kept(self) -> npt.NDArray[np.bool_]:
        """Return which clicks show the taste: recent ones, with a long dwell time."""
        return (self.age_us <= RECENT * 86_400_000_000) & (self.dwell >= DWELL)


@dataclass(frozen=True, slots=True)
class Visual:
    """Arrays by ad and by user, in the form of those of `World`; their last entries are neutral."""

    width: int
    seed: int
    style: npt.NDArray[np.float32]  # (ads + 1, STYLE)
    shown: npt.NDArray[np.bool_]  # whether an ad's image shows its topic
    imaged: npt.NDArray[np.bool_]  # whether an ad has an image
    tastes: npt.NDArray[np.float32]  # (TASTES, STYLE), of length 1
    appeal: npt.NDArray[np.float32]  # (STYLE,)
    taste: npt.NDArray[np.int8]  # (users + 1, 4): of each interest, now
    before: npt.NDArray[np.int8]  # (users + 1, 4): and before the last RECENT days

    @staticmethod
    def make(seed: int, users: int, advertiser: npt.NDArray[np.int32], width: int) -> Visual:
        """Return the images and tastes of a log. ``advertiser``: the advertiser of each ad, and of the neutral ad."""
        rng = _stream(seed, 20)
        ads = len(advertiser) - 1
        brands = rng.standard_normal((int(advertiser.max()) + 1, STYLE))
        own = rng.standard_normal((ads + 1, STYLE))
        style = (np.sqrt(BRAND) * brands[advertiser] + np.sqrt(1 - BRAND) * own).astype(np.float32)
        style[-1] = 0
        # The same in every world, so that an effect is of one strength whatever the seed.
        tastes = np.concatenate([np.eye(STYLE), -np.eye(STYLE)])
        appeal = np.full(STYLE, STYLE**-0.5)
        return Visual(
            width,
            seed,
            style,
            chance(rng, SHOWN, ads + 1),
            ~chance(rng, NO_IMAGE, ads + 1),
            tastes.astype(np.float32),
            appeal.astype(np.float32),
            _tastes(rng, users + 1),
            _tastes(rng, users + 1),
        )

    def odds(self, world: World, user: Indices, ad: Indices) -> npt.NDArray[np.float64]:
        """Return what the image adds to the log odds of a click."""
        match = world.users.interests[user] == world.ads.topic[ad][:, None]
        slot = match.argmax(axis=1)
        known = match.any(axis=1) & (user < world.users.count)
        style = self.style[ad]
        taste = self.tastes[self.taste[user, slot]]
        liked = TASTE * np.einsum("ij,ij->i", taste, style) + MOOD * (taste @ self.appeal)
        return np.asarray(np.where(known, liked, 0.0) + APPEAL * (style @ self.appeal), np.float64)

    def images(self, world: World, first: int, last: int) -> tuple[Indices, npt.NDArray[np.float32]]:
        """Return the indices of those of the ads first … last that have an image, and their images (n, width)."""
        at = first + np.flatnonzero(self.imaged[first:last])
        of_style, of_topic = self._maps()
        rng = _stream(self.seed, 22, first)
        images = self.style[at] @ of_style + self.shown[at, None] * of_topic[world.ads.topic[at]]
        images += NOISE * rng.standard_normal(images.shape, np.float32)
        return at, images.astype(np.float32)

    def _maps(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        rng = _stream(self.seed, 21)
        of_style = rng.standard_normal((STYLE, self.width)) / np.sqrt(STYLE)
        return of_style.astype(np.float32), rng.standard_normal((len(TOPICS), self.width)).astype(np.float32)

    def behaviors(self, world: World, first: int, last: int) -> Behaviors:
        """Return what the users with the numbers ``first`` to ``last`` - 1 clicked before the log begins."""
        rng = _stream(self.seed, 23, first)
        count = np.minimum(rng.negative_binomial(EVEN, EVEN / (EVEN + MEAN_CLICKS), last - first), MOST_CLICKS)
        user = np.repeat(np.arange(first, last), count)
        n = len(user)
        # More of them lately: half within the last ten days.
        age_us = (np.square(rng.random(n)) * DAYS * 86_400_000_000).astype(np.int64)
        accident = chance(rng, ACCIDENTS, n)
        dwell = np.exp(rng.normal(np.where(accident, np.log(6.0), np.log(45.0)), 0.6)).astype(np.float32)
        slot = rng.integers(0, 4, n)
        low, high = world.topic_range(world.users.interests[user, slot].astype(np.int64))
        low, high = np.where(accident, 0, low), np.where(accident, world.ads.count, high)
        # The taste of an interest that is listed twice is that of its first place, as in `odds`.
        slot = (world.users.interests[user] == world.users.interests[user, slot][:, None]).argmax(axis=1)
        then = np.where(age_us <= RECENT * 86_400_000_000, self.taste[user, slot], self.before[user, slot])
        best = np.zeros(n, np.int64)
        most = np.full(n, -np.inf)
        for _ in range(CHOICES):
            ad = world.pick_ads(rng, -1, low, high)
            liking = LIKING * np.einsum("ij,ij->i", self.tastes[then], self.style[ad]) + rng.gumbel(size=n)
            liking = np.where(accident, 0.0, liking)
            best = np.where(liking > most, ad, best)
            most = np.maximum(most, liking)
        order = np.lexsort((-age_us, user))
        return Behaviors(user[order], best[order], age_us[order], dwell[order])


def _tastes(rng: np.random.Generator, users: int) -> npt.NDArray[np.int8]:
    """Return the taste of each user for each interest (users, 4); for about half of the interests, it is the same taste."""
    own, usual = rng.integers(0, TASTES, (users, 4), np.int8), rng.integers(0, TASTES, (users, 1), np.int8)
    return np.where(rng.random((users, 4)) < SHARED, usual, own)


def _stream(seed: int, *path: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *path])))


def lists_of(user: Indices, first: int, last: int, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Indices]:
    """Return values of ascending users as (values, offsets) of the users first … last."""
    return values, np.searchsorted(user, np.arange(first, last + 1)).astype(np.int64)
