"""Makes the raw data of the DICM example: a folder of JPEG files, and logs of impressions and clicks.

    data/images/*.jpg      an image for each ad, named by its ad_id
    data/clicks/           the users' clicks of four weeks, in order of time: user_id, ad_id, ts, dwell
    data/impressions/      a week of impressions and whether they were clicked; data/users, data/ads: what is known of both
    data/palette.safetensors    weights of the encoder in palette.py

The logs are the synthetic ad log, in which the image of an ad decides about clicks. Its images are 48 numbers each; they become
the colors of 16 squares.
"""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from palette import DATA, SIDE, SQUARES, Palette, torch
from PIL import Image
from safetensors.torch import save_file

import ctrbox as cb

rows = int(os.environ.get("CTRBOX_ROWS", "200000"))
log = cb.datasets.adlog(
    rows=rows, seed=7, out=DATA, images=3 * SQUARES**2, users=max(20, rows // 40), ads=max(40, rows // 60)
)

clicks = pq.read_table(DATA / "behaviors").sort_by("ts")
(DATA / "clicks").mkdir()
pq.write_table(clicks, DATA / "clicks" / "part-00000.parquet")

(DATA / "images").mkdir(exist_ok=True)
drawn = pq.read_table(DATA / "images")
for path in (DATA / "images").glob("*.parquet"):
    path.unlink()
for ad, numbers in zip(drawn["ad_id"].to_pylist(), drawn["image"].to_pylist(), strict=True):
    colors = np.clip(128 + 30 * np.array(numbers).reshape(SQUARES, SQUARES, 3), 0, 255).astype(np.uint8)
    picture = Image.fromarray(colors).resize((SIDE * SQUARES, SIDE * SQUARES), Image.Resampling.NEAREST)
    picture.save(Path(DATA / "images" / f"{ad}.jpg"), quality=95)

torch.manual_seed(0)
save_file(Palette().state_dict(), DATA / "palette.safetensors")
print(f"{log.impressions}: {rows:,} impressions; {DATA / 'images'}: {drawn.num_rows:,} images")
