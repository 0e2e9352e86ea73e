"""Plants conversions into the synthetic ad log, with a known probability.

    out/conversions/*.parquet        instance_id, converted: 1 or 0 where the impression was clicked, null where it was not
    out/conversion_truth/*.parquet   instance_id, p_convert: the probability of a conversion given a click; would_convert: what a
                                     click of this impression leads to, also where there was none
    out/conversion_delays/*.parquet  instance_id, age: hours from the impression to the end of the log; delay: hours from the
                                     click to the conversion, null where there is none; delay_by_category: the same with delays
                                     that depend on the category of the ad

The log odds of a conversion are a sum of effects that also decide clicks, so that clicks teach about conversions, and of effects
of their own: of the ad, of the user's segment with the ad's category, and a constant. All are functions of columns that the log
shows. The numbers come from streams of their own: the other views of a log have the same bits with and without conversions.

Delays: `FAST_SHARE` of the conversions come after an exponential time with the mean `FAST_HOURS`, the others `PAUSE_HOURS` later
than an exponential time with the mean `SLOW_HOURS`; `delay_share` is their distribution function. In ``delay_by_category``, the
delays of ads whose category has an odd number are half as long, and those of other ads one and a half times as long.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ctrbox.datasets.adlog_world import DAY_US, START_US, Draw, World, stream
from ctrbox.datasets.random_draws import chance

VIEWS = ("conversions", "conversion_truth", "conversion_delays")
STREAM = 9  # of random numbers; others are those of the views that every log has
DELAY_STREAM = 10
FAST_SHARE, FAST_HOURS, PAUSE_HOURS, SLOW_HOURS = 0.3, 1.0, 6.0, 48.0
HOUR_US = 3_600_000_000
BIAS, SHARED, OWN = -1.6, 0.9, 0.6
GRID = 64  # segments and categories of the effect of both

CONVERSIONS = pa.schema([pa.field("instance_id", pa.int64(), nullable=False), pa.field("converted", pa.int8())])
TRUTH = pa.schema(
    [
        pa.field("instance_id", pa.int64(), nullable=False),
        pa.field("p_convert", pa.float64(), nullable=False),
        pa.field("would_convert", pa.int8(), nullable=False),
    ]
)
DELAYS = pa.schema(
    [
        pa.field("instance_id", pa.int64(), nullable=False),
        pa.field("age", pa.float64(), nullable=False),
        pa.field("delay", pa.float64()),
        pa.field("delay_by_category", pa.float64()),
    ]
)


def delay_share(hours: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the share of conversions whose delay is at most ``hours``."""
    slow = 1 - np.exp(-np.maximum(hours - PAUSE_HOURS, 0) / SLOW_HOURS)
    fast = 1 - np.exp(-np.maximum(hours, 0) / FAST_HOURS)
    return np.asarray(FAST_SHARE * fast + (1 - FAST_SHARE) * slow)


def longer(category: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the factor of the delays of each ad category in the mode ``delay_by_category``."""
    return np.where(category % 2 == 1, 0.5, 1.5)


def probability(world: World, draw: Draw) -> npt.NDArray[np.float64]:
    """Return the probability of a conversion of each impression, given that it is clicked."""
    own = stream(world.seed, STREAM)
    of_ad = own.standard_normal(len(world.ads.effect))
    of_both = own.standard_normal((GRID, GRID))
    segment, category = world.users.segment[draw.user] % GRID, world.ads.category[draw.ad] % GRID
    shared = world.users.effect[draw.user] + world.ads.effect[draw.ad] + draw.affinity
    logit = BIAS + SHARED * shared + OWN * (of_ad[draw.ad] + of_both[segment, category])
    return np.asarray(1.0 / (1.0 + np.exp(-logit.astype(np.float64))))


def write_conversions(
    folder: Path, part: str, world: World, draw: Draw, instance: Any, clicked: Any, block: int, save: Any
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Write the conversions of one block; return probability and conversion of its clicked rows."""
    p = probability(world, draw)
    would = chance(stream(world.seed, STREAM, block), p, len(p))
    columns = [pa.array(instance), pa.array(would.astype(np.int8), mask=~clicked)]
    save(folder / "conversions" / part, pa.Table.from_arrays(columns, schema=CONVERSIONS))
    truth = [pa.array(instance), pa.array(p), pa.array(would.astype(np.int8))]
    save(folder / "conversion_truth" / part, pa.Table.from_arrays(truth, schema=TRUTH))
    own = stream(world.seed, DELAY_STREAM, block)
    fast = chance(own, FAST_SHARE, len(p))
    delay = np.where(fast, own.exponential(FAST_HOURS, len(p)), PAUSE_HOURS + own.exponential(SLOW_HOURS, len(p)))
    age = (START_US + world.days * DAY_US - draw.ts_us) / HOUR_US
    none = ~(clicked & would)
    slower = delay * longer(world.ads.category[draw.ad])
    delays = [pa.array(instance), pa.array(age), pa.array(delay, mask=none), pa.array(slower, mask=none)]
    save(folder / "conversion_delays" / part, pa.Table.from_arrays(delays, schema=DELAYS))
    return p[clicked], would[clicked]
