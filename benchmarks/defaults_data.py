"""The data of `benchmarks.defaults`: every set as a frame for ``cb.Classifier`` and as batches for one epoch and for Deep FFM.

A set has three parts in the order of its rows (which for Frappe is random): rows to learn from, rows to choose by, and test rows,
which nobody looks at before the choice is made. The final models learn from the last 90,000 rows before the test rows.

    set                      test rows                   rows to choose by        rows to learn from, at the choice
    criteo_1tb_80k           newest fifth                quarter before           48,000 before those
    criteo_attribution_165k  newest fifth                the 20,000 before        48,000 before those
    frappe_x1                as published                the last 20,000 before   48,000 before those
    open_bandit_60k          29-30 Nov                   quarter before           all before those
    adlog                    newest tenth of 100,000     the 20,000 before        48,000 before those
    pairs                    last sixth of 120,000       the 20,000 before        48,000 before those (Deep FFM alone)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import ctrbox as cb
from benchmarks import ffm_data, quality_data
from ctrbox import col
from ctrbox.columns.batch import Batch, Schema

LEARN, CHOOSE = 48_000, 20_000  # the most rows to learn from and to choose by
FINAL = 90_000  # the most rows that the final models learn from
ADLOG_ROWS = 100_000
PAIRS_ROWS = 120_000
FRAMES = ("criteo_1tb_80k", "criteo_attribution_165k", "frappe_x1", "open_bandit_60k", "adlog")
STREAMS = (*FRAMES, "pairs")


@dataclass(frozen=True)
class Rows:
    """Rows to learn from and rows to score: columns and labels."""

    learn: pa.Table
    learn_labels: npt.NDArray[np.int64]
    score: pa.Table
    score_labels: npt.NDArray[np.int64]


def text(table: pa.Table, *names: str) -> pa.Table:
    """The same table with these columns as text: numbers that are names of things."""
    for name in names:
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.string()))
    return table


def parts(name: str) -> tuple[pa.Table, pa.Table]:
    """The rows before the test rows, at most `FINAL`, and the test rows, as they are in the files."""
    found = {part: pq.read_table(quality_data.folder(name) / f"{part}.parquet") for part in quality_data.PARTS}
    before = pa.concat_tables([found["train"], found["valid"]])
    return before.slice(max(0, before.num_rows - FINAL)), found["test"]


def columns(name: str, table: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The frame that a newcomer would make of the set, and its labels."""
    if name == "criteo_1tb_80k":
        words = quality_data.WORDS
        return text(table.select([*quality_data.COUNTS, *words]), *words), label(table, "label")
    if name == "criteo_attribution_165k":
        return text(table.select(quality_data.ATTRIBUTION), *quality_data.ATTRIBUTION), label(table, "click")
    if name == "frappe_x1":
        return text(table.select(quality_data.FRAPPE), *quality_data.FRAPPE), label(table, "label")
    if name == "open_bandit_60k":
        user = [f"user_feature_{i}" for i in range(4)]
        ids = ("campaign", "item_id", "position")
        return text(table.select(["timestamp", *ids, *user]), *ids), label(table, "click")
    return adlog_frame(table), label(table, "clicked")


def adlog_frame(table: pa.Table) -> pa.Table:
    """Impressions with the columns of their user and ad, texts and lists split into words."""
    root = quality_data.adlog_folder()
    users = pq.read_table(root / "users", columns=["user_id", "age", "gender", "country", "interests", "segment"])
    ads = pq.read_table(root / "ads", columns=["ad_id", "advertiser_id", "campaign_id", "title", "category", "bid"])
    joined = table.append_column("#order", pa.array(np.arange(table.num_rows)))
    joined = joined.join(users, "user_id").join(ads, "ad_id").sort_by("#order")
    ids = ("user_id", "ad_id", "advertiser_id", "campaign_id", "position", "segment")
    joined = text(joined.drop_columns(["#order", "instance_id", "clicked", "context"]), *ids)
    for name, mark in (("query", " "), ("title", " "), ("interests", "|")):
        words = pc.split_pattern(pc.fill_null(joined[name], ""), mark)
        joined = joined.set_column(joined.column_names.index(name), name, words)
    return joined


def label(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return table[name].to_numpy().astype(np.int64)


def bounds(rows: int) -> tuple[int, int]:
    """Where the rows to learn from begin and end at the choice; those to choose by are the rest."""
    end = rows - min(rows // 4, CHOOSE)
    return max(0, end - LEARN), end


@cache
def frame(name: str, final: bool) -> Rows:
    """Rows for ``cb.Classifier``: those of the choice, or with ``final`` the rows before the test rows, and these."""
    before, test = parts(name)
    if final:
        return Rows(*columns(name, before), *columns(name, test))
    begin, end = bounds(before.num_rows)
    return Rows(*columns(name, before.slice(begin, end - begin)), *columns(name, before.slice(end)))


@dataclass(frozen=True)
class Stream:
    """Batches to learn from and batches to score, of one schema."""

    schema: Schema
    learn: list[Batch]
    score: list[Batch]
    score_labels: npt.NDArray[np.float32]


@cache
def stream(name: str, final: bool) -> Stream:
    """The rows of `frame` through the set's plan of ``benchmarks/quality_data.py``, in the order of the log."""
    learn, score = plans(name, final)
    first, second = list(learn.batches(16_384)), list(score.batches(16_384))
    return Stream(learn.schema, first, second, np.concatenate([b.label for b in second if b.label is not None]))


def plans(name: str, final: bool) -> tuple[cb.Plan, cb.Plan]:
    """A plan over the rows to learn from and the same plan over the rows to score."""
    if name == "pairs":
        before, test = pairs()
        made = cb.compile(cb.View(before, name="pairs"), pair_features(), device="cpu", threads=1)
    else:
        before, test = parts(name)
        made = quality_data.plan(name, "train").using(threads=1)
    if final:
        return made.over(before), made.over(test)
    begin, end = bounds(before.num_rows)
    return made.over(before.slice(begin, end - begin)), made.over(before.slice(end))


def pair_features() -> cb.FeatureSet:
    return cb.FeatureSet(label=col("label"), sparse={name: col(name).key() for name in ffm_data.NAMES})


@cache
def pairs() -> tuple[pa.Table, pa.Table]:
    """The generated clicks of ``benchmarks/ffm_data.py``, whose truth is made of pairs of fields."""
    clicks = ffm_data.make(PAIRS_ROWS)
    made: dict[str, pa.Array] = {"label": pa.array(clicks.labels)}
    for field, values in zip(ffm_data.NAMES, clicks.values.T, strict=True):
        made[field] = pa.array(values.astype(np.int64))
    for place, more in zip(ffm_data.MULTI, clicks.more, strict=True):
        both = np.concatenate([clicks.values[:, place : place + 1], more], axis=1)
        lists = [row[row >= 0].tolist() for row in both]
        made[ffm_data.NAMES[place]] = pa.array(lists, pa.list_(pa.int64()))
    table = pa.table(made)
    last = PAIRS_ROWS * 5 // 6
    return table.slice(last - FINAL, FINAL), table.slice(last)
