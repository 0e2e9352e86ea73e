"""Writes the additional views of an ad log with images.

out/images/*.parquet       ad_id, image: a list of floats of one width; 0.5 % of the ads have none
out/behaviors/*.parquet   user_id, ad_id, ts, dwell: clicks of the 28 days before the log, user by user, newest last
users.behavior            the ads of `behaviors` a user clicked in the last 14 days and dwelled on, "id|id|…", newest last
users.all_clicks           the same, of all clicks
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctrbox.datasets import adlog_text
from ctrbox.datasets.adlog_images import BLOCK, Visual, lists_of
from ctrbox.datasets.adlog_world import START_US, World, ad_id, user_id

MOST_BYTES = 32 << 20  # of a file of images
COLUMNS = ("behavior", "all_clicks")

BEHAVIORS = pa.schema(
    [
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("ad_id", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us"), nullable=False),
        pa.field("dwell", pa.float32(), nullable=False),
    ]
)

Save = Callable[[Path, pa.Table], None]


def images_schema(width: int) -> pa.Schema:
    image = pa.list_(pa.field("item", pa.float32(), nullable=False), width)
    return pa.schema([pa.field("ad_id", pa.int64(), nullable=False), pa.field("image", image, nullable=False)])


def write_images(folder: Path, world: World, visual: Visual, save: Save) -> None:
    step = max(1, MOST_BYTES // (4 * visual.width))
    schema = images_schema(visual.width)
    for number, first in enumerate(range(0, world.ads.count, step)):
        at, images = visual.images(world, first, min(first + step, world.ads.count))
        lists = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), type=schema.field("image").type)
        save(folder / f"part-{number:05}.parquet", pa.Table.from_arrays([pa.array(ad_id(at)), lists], schema=schema))


def write_behaviors(folder: Path, world: World, visual: Visual, save: Save) -> list[pa.ChunkedArray]:
    """Write the clicks, and return the columns `behavior` and `all_clicks` of the users, in their order."""
    found: tuple[list[pa.Array], list[pa.Array]] = ([], [])
    for number, first in enumerate(range(0, world.users.count, BLOCK)):
        last = min(first + BLOCK, world.users.count)
        clicks = visual.behaviors(world, first, last)
        columns = [
            pa.array(user_id(clicks.user)),
            pa.array(ad_id(clicks.ad)),
            pa.array(START_US - clicks.age_us, pa.timestamp("us")),
            pa.array(clicks.dwell),
        ]
        save(folder / f"part-{number:05}.parquet", pa.Table.from_arrays(columns, schema=BEHAVIORS))
        for column, kept in zip(found, (clicks.kept(), np.ones(len(clicks.ad), np.bool_)), strict=True):
            ads, offsets = lists_of(clicks.user[kept], first, last, ad_id(clicks.ad[kept]))
            ids = pa.array(ads).cast(pa.string())
            column.append(adlog_text.list_joined(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), ids), "|"))
    return [pa.chunked_array(column, pa.string()) for column in found]
