"""``col("title").encode(encoder)``: vectors as dense columns, encoded once per distinct value, the same in a loaded plan."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import DataError, PlanError
from ctrbox.plan.placement.placement import place

TITLES = ["red shoes", "", "blue hat", "red shoes", "grün"]


class Letters(nn.Module):
    """How often each vowel occurs, times a weight; counts its calls."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.calls: list[str] = []

    def forward(self, texts: list[str]) -> torch.Tensor:
        self.calls += texts
        return self.weight * torch.tensor([[float(text.count(letter)) for letter in "aeiou"] for text in texts])


def letters(weight: float = 1.0, name: str = "letters") -> cb.tables.Encoder:
    return cb.tables.Encoder(Letters(weight), kind="text", name=name)


def vowels(title: str) -> list[float]:
    return [float(title.count(letter)) for letter in "aeiou"]


def plan_with(encoder: cb.tables.Encoder, rows: int = 40, titles: list[str] = TITLES) -> cb.Plan:
    log = pa.table({"id": range(rows), "ad": [k % 7 for k in range(rows)], "y": [k % 2 for k in range(rows)]})
    ads = cb.View(pa.table({"ad": range(len(titles)), "title": titles}), key="ad", name="ads").fill(title="none")
    features = cb.FeatureSet(
        label=col("y"),
        sparse={"ad": col("ad")},
        dense={"ad_number": col("ad"), "title": col("title").encode(encoder), "again": col("title").encode(encoder)},
    )
    return cb.compile(cb.View(log, key="id", name="log").join(ads, on="ad"), features, device="cpu", threads=2)


def test_vectors_are_dense_columns_and_distinct_values_are_encoded_once() -> None:
    encoder = letters()
    plan = plan_with(encoder)
    assert plan.schema.dense == (("ad_number", 1), ("title", 5), ("again", 5))
    assert plan.schema.dense_names[1:6] == [f"title.{k}" for k in range(5)]
    for rows in (40, 9):
        batch = cb.Batch.concat(list(plan.batches(rows)))
        for k in range(40):
            title = TITLES[k % 7] if k % 7 < len(TITLES) else "none"
            assert batch.dense[k].tolist() == [k % 7, *vowels(title), *vowels(title)]
    calls = encoder.module.calls
    assert sorted(calls) == sorted({*TITLES, "none", "a"})  # "a": the trial that tells the width
    assert "encode('letters')" in plan.explain()


def test_a_null_is_refused_until_it_is_filled() -> None:
    table = pa.table({"title": ["aa", None], "y": [0, 1]})
    with pytest.raises(PlanError, match="title"):
        cb.compile(cb.View(table), cb.FeatureSet(label=col("y"), dense={"t": col("title").encode(letters())}))
    filled = cb.FeatureSet(label=col("y"), dense={"t": col("title").fill("o").encode(letters())})
    (batch,) = cb.compile(cb.View(table), filled, device="cpu").batches(8)
    assert batch.dense.tolist() == [vowels("aa"), vowels("o")]


def test_a_saved_plan_needs_the_same_encoder(tmp_path: Path) -> None:
    plan = plan_with(letters(2.0))
    plan.save(tmp_path / "p.ctrplan")
    views = {"log": pa.table({"id": [0], "ad": [2], "y": [0]}), "ads": pa.table({"ad": range(5), "title": TITLES})}
    made = cb.Plan.load(tmp_path / "p.ctrplan", views=views, allow_operators=[letters(2.0)])
    assert made.fingerprint == plan.fingerprint != plan_with(letters(1.0)).fingerprint
    (batch,) = made.batches(5)
    assert batch.dense[0, 1:6].tolist() == [2 * v for v in vowels(TITLES[2])]
    assert b"Letters" in (tmp_path / "p.ctrplan").read_bytes()
    for allowed, words in (
        (
            False,
            r"the plan encodes a column with the encoder 'letters' \(module 'Letters'\), which a saved plan does not contain",
        ),
        (True, r"pass it: cb.Plan.load\(…, allow_operators=\[encoder\]\)"),
        ([letters(name="other")], "which a saved plan does not contain"),
        ([letters(3.0)], "the given encoder of this name has other weights"),
    ):
        with pytest.raises(PlanError, match=words):
            cb.Plan.load(tmp_path / "p.ctrplan", views=views, allow_operators=allowed)


def test_on_a_gpu_the_operator_is_placed_on_the_cpu() -> None:
    log = cb.View(pa.table({"title": TITLES, "y": [0] * 5}))
    features = cb.FeatureSet(label=col("y"), dense={"title": col("title").encode(letters())})
    placement = place(cb.compile(log, features, device="cpu").graph, "cuda:32GB")
    assert "user" in {node.op for node in placement.cpu}
    assert "user" not in {node.op for node in placement.gpu}


def test_images_in_a_column_are_encoded_and_damaged_ones_are_an_error() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow, with which images are decoded, is not installed")

    class Means(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((2, 3))

    def small(picture: image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(picture.resize((8, 8)), np.uint8)).permute(2, 0, 1).float()

    def png(color: tuple[int, int, int]) -> bytes:
        file = io.BytesIO()
        image.new("RGB", (20, 10), color).save(file, "PNG")
        return file.getvalue()

    table = pa.table({"image": [png((1, 2, 3)), png((200, 100, 0))], "y": [0, 1]})
    features = cb.FeatureSet(label=col("y"), dense={"i": col("image").encode(cb.tables.Encoder(Means(), small))})
    (batch,) = cb.compile(cb.View(table), features, device="cpu").batches(8)
    assert batch.dense.tolist() == [[1, 2, 3], [200, 100, 0]]
    broken = cb.View(pa.table({"image": [b"junk"], "y": [0]}))
    with pytest.raises(
        DataError, match="the image of 4 bytes that begins with b'junk' is not a JPEG, PNG or WebP image"
    ):
        list(cb.compile(broken, features, device="cpu").batches(8))


def test_wrong_uses_are_named() -> None:
    with pytest.raises(PlanError, match=r"encode\(\) takes a cb.tables.Encoder, got Letters"):
        col("title").encode(Letters())
    log = cb.View(pa.table({"n": [1], "y": [0]}))
    with pytest.raises(PlanError, match="takes str as argument 1, got int"):
        cb.compile(log, cb.FeatureSet(label=col("y"), dense={"n": col("n").encode(letters())}))

    class Wide(nn.Module):
        def forward(self, texts: list[str]) -> torch.Tensor:
            return torch.zeros(len(texts), len(texts[0]))

    features = cb.FeatureSet(
        label=col("y"), dense={"n": col("n").cast("str").encode(cb.tables.Encoder(Wide(), kind="text"))}
    )
    with pytest.raises(DataError, match="has 2 numbers; expected 1 numbers, all of them finite"):
        list(cb.compile(cb.View(pa.table({"n": [17], "y": [0]})), features, device="cpu").batches(8))
