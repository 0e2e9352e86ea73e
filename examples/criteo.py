"""Criteo: 13 counts and 26 hashed categories, many of them missing, with DCNv2.

ctrbox train examples/criteo.py --batch-size 2048
ctrbox trial examples/criteo.py --batch-size 2048 --add "C1_C2=cross('C1', 'C2')"

Real data: set CTRBOX_CRITEO to train.txt of the Kaggle set, or to a day of the 1TB logs (plain, .gz or .zst). Without
it a log of the same format is made up (CTRBOX_ROWS rows, 100,000 unless told): categories have effects, some pairs of
them too, and counts matter by their logarithm. Everything goes to CTRBOX_DATA, "data" unless told.
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

import ctrbox as cb
from ctrbox import col

COUNTS = [f"I{k}" for k in range(1, 14)]
CATEGORIES = [f"C{k}" for k in range(1, 27)]
STEPS = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 4096, 16384]


def make_up(path: Path, rows: int, seed: int = 1) -> None:
    """Tab-separated lines: label, counts, categories as eight hex digits; a missing value is empty."""
    rng = np.random.default_rng(seed)
    logit = np.full(rows, -2.2)
    columns, codes = [], []
    for k in range(len(COUNTS)):
        count = np.floor(np.exp(rng.normal(1 + k % 4, 1.2, rows))).astype(np.int64) - 1
        logit += rng.normal(0, 0.15) * (np.log1p(np.maximum(count, 0)) - 1 - k % 4)
        columns.append(pa.array(count, mask=rng.random(rows) < 0.05 * (k % 5)))
    for k in range(len(CATEGORIES)):
        values = int(rng.choice([3, 12, 100, 1000, 5000]))
        code = (values * rng.random(rows) ** 3).astype(int)  # a few are common, most are rare
        logit += rng.normal(0, 0.35, values)[code]
        codes.append((code, values))
        names = np.array([f"{int(n):08x}" for n in rng.integers(0, 2**32, values)])
        columns.append(pa.array(names[code], mask=rng.random(rows) < 0.03 * (k % 6)))
    for a, b in ((0, 1), (2, 5), (7, 9)):
        logit += rng.normal(0, 0.6, (min(codes[a][1], 50), min(codes[b][1], 50)))[codes[a][0] % 50, codes[b][0] % 50]
    label = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int8)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    plain = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    csv.write_csv(pa.table([pa.array(label), *columns], names=["label", *COUNTS, *CATEGORIES]), aside, plain)
    aside.replace(path)


def as_parquet(source: Path, out: Path) -> None:
    """Write the log as Parquet, block by block. Text would be parsed anew in every epoch, and `ctrbox evaluate` needs a file."""
    lines = cb.datasets.criteo(source)
    aside = out.with_suffix(".part")
    with pq.ParquetWriter(aside, lines.schema) as writer:
        for block in lines.batches():
            writer.write_batch(block)
    aside.replace(out)


data = Path(os.environ.get("CTRBOX_DATA", "data")) / "criteo"
text = Path(os.environ.get("CTRBOX_CRITEO") or data / "made-up.txt")
if "CTRBOX_CRITEO" not in os.environ and not text.exists():
    make_up(text, int(os.environ.get("CTRBOX_ROWS", "100000")))
log_file = data / f"{text.name.split('.')[0]}.parquet"
if not log_file.exists():
    log_file.parent.mkdir(parents=True, exist_ok=True)
    as_parquet(text, log_file)

log = cb.View(log_file, key="row").fill(**dict.fromkeys(COUNTS, -2), **dict.fromkeys(CATEGORIES, "none"))

features = cb.FeatureSet(
    label=col("label"),
    sparse={
        **{name: col(name).key() for name in CATEGORIES},
        **{name: col(name).bucketize(STEPS).key() for name in COUNTS},
    },
    dense={f"log_{name}": col(name).clip(0, 1e9).log1p() for name in COUNTS},
)

plan = cb.compile(log, features)
table = cb.MemoryTable(8, optimizer=cb.Adagrad(lr=0.03), init=0.02)
model = cb.models.DCNv2(plan.schema, dim=8, layers=2, hidden=(64, 32))
