"""Aggregators against their NumPy twins; DICM and the two towers: what they read, what they refuse, what they are made of."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.columns.batch import Field, Schema
from ctrbox.errors import PlanError
from ctrbox.models import (
    DICM,
    AttentivePooling,
    Concatenation,
    MaxPooling,
    MultiQueryAttentivePooling,
    SumPooling,
    TwoTower,
    build,
)
from tests.models.worlds import inputs, leaves, schema, take
from tests.twins import aggregators as twin

HISTORY, AD_IMAGE, BEHAVIOR = (
    Field("history", "ad", True),
    Field("ad_image", "image", False),
    Field("behavior", "image", True),
)
IMAGES = Schema((*schema(2).sparse, HISTORY, AD_IMAGE, BEHAVIOR), (("bid", 1),), label=True, group=True, weight=False)
BOTH: dict[str, Any] = {"ad_image": "ad_image", "behavior": "behavior"}
KINDS = ("concatenation", "max", "sum", "attentive", "multi_query")


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=0, max_size=6),
    padding=st.integers(0, 3),
    dim=st.integers(1, 4),
    other=st.integers(1, 5),
    kept=st.integers(1, 7),
    scale=st.sampled_from([0.0, 1.0, 1e3, -1.0]),
    seed=st.integers(0, 99),
)
def test_every_aggregator_is_its_twin(
    lengths: list[int], padding: int, dim: int, other: int, kept: int, scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    rows, longest = len(lengths), max(lengths, default=0) + padding
    count = torch.tensor(lengths, dtype=torch.int64)
    real = (torch.arange(longest) < count[:, None]).unsqueeze(2)
    items = (
        (torch.randn(rows, longest, dim) * scale).abs().neg() if scale < 0 else torch.randn(rows, longest, dim) * scale
    )
    items = items * real
    image, ad = torch.randn(rows, dim), torch.randn(rows, other)
    multi = MultiQueryAttentivePooling(dim, [dim, other], (5,))
    parts = {
        "concatenation": (Concatenation(dim, kept), ()),
        "sum": (SumPooling(dim), ()),
        "max": (MaxPooling(dim), ()),
        "attentive": (AttentivePooling(dim, dim, (5,)), (image,)),
        "multi_query": (multi, (image, ad)),
    }
    for name, (part, queries) in parts.items():
        found = part(items, count, *queries).detach().numpy()
        assert found.shape == (rows, part.width)
        for r in range(rows):
            mine = [items[r, k].numpy().astype(np.float64) for k in range(lengths[r])]
            match name:
                case "concatenation":
                    expected = twin.concatenation(mine, kept, dim)
                case "sum":
                    expected = twin.total(mine, dim)
                case "max":
                    expected = twin.largest(mine, dim)
                case "attentive":
                    expected = twin.attentive(mine, image[r].numpy(), twin.weights_of(part), dim)
                case _:
                    asked = zip(multi.channels, (image[r], ad[r]), strict=True)
                    expected = np.concatenate(
                        [twin.attentive(mine, q.numpy(), twin.weights_of(c), dim) for c, q in asked]
                    )
            np.testing.assert_allclose(found[r], expected, rtol=1e-3, atol=1e-4 * max(1.0, abs(scale) ** 2))


@pytest.mark.parametrize("base", ["lr", "mlp", "din"])
@pytest.mark.parametrize("aggregator", KINDS)
def test_dicm_reads_ids_and_images_over_every_base(base: str, aggregator: str) -> None:
    torch.manual_seed(0)
    model = DICM(IMAGES, 6, base=base, aggregator=aggregator, image_dim=4, hidden=(8,), longest=3, **BOTH)
    assert model.reads.dims["ad_image"] == model.reads.dims["behavior"] == 4
    assert set(model.reads.sequences) == ({"behavior", "history"} if base == "din" else {"behavior"})
    assert model.reads.dims["user"] == (1 if base == "lr" else 6)
    for rows in (0, 1, 20):
        x = inputs(model.reads, rows)
        logits = model(x)
        assert logits.shape == (rows,)
        assert torch.isfinite(logits).all()
    logits.square().sum().backward()
    for what, value in leaves(x).items():
        assert value.grad is not None, what
        if not (aggregator == "max" and "behavior" in what):  # a maximum leaves some out
            assert (value.grad.abs().sum(tuple(range(1, value.dim()))) > 0).any(), what
    for what, parameter in model.named_parameters():
        assert parameter.grad is not None, what
    again = build("DICM", IMAGES, model.config)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again.eval()(x), model.eval()(x), rtol=0, atol=0)
    some = [3, 17, 4]
    torch.testing.assert_close(model(take(x, some)), model(x)[some], rtol=1e-4, atol=1e-5)


def test_lr_is_weights_of_keys_and_a_linear_map_of_images() -> None:
    torch.manual_seed(0)
    model = DICM(IMAGES, base="lr", aggregator="sum", image_dim=3, **BOTH).eval()
    x = inputs(model.reads, 7)
    with torch.no_grad():
        seen = torch.cat([x.field("ad_image"), x.sequence("behavior")[0].sum(1)], 1) @ model.images.weight
        expected = x.field("user") + x.field("ad") + x.field("history") + seen
        assert model.reads.fields == ("user", "ad", "history", "ad_image")
        torch.testing.assert_close(model(x), expected.squeeze(1))


def test_without_images_dicm_is_its_base() -> None:
    ids = ["user", "ad", "history"]
    torch.manual_seed(0)
    plain = DICM(IMAGES, 4, fields=ids, hidden=(8,))
    assert set(plain.reads.dims) == set(ids)
    only = DICM(IMAGES, 4, fields=ids, behavior="behavior", hidden=(8,))
    assert only.queries == ["ad"]  # there is no image of the ad to ask with
    assert DICM(IMAGES, 4, fields=ids, **BOTH).queries == ["ad_image", "ad"]
    assert DICM(IMAGES, 4, fields=ids, aggregator="attentive", **BOTH).queries == ["ad_image"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"ad_image": "ad_imag"}, "nearest: 'ad_image'"),
        (
            {"ad_image": "ad", "behavior": "behavior"},
            r"keys lie in the spaces 'image' and 'ad'; give both the same space",
        ),
        ({"ad_image": "behavior"}, "exactly one image per ad"),
        ({"ad_image": "ad_image", "behavior": "ad_image"}, "cannot be both the image of the ad and"),
        ({**BOTH, "fields": ["user", "ad_image"]}, "'ad_image' as an image; remove it from fields"),
        (
            {**BOTH, "query": "add"},
            "uses the id 'add' as the query of its attention, but does not read it; nearest: 'ad'",
        ),
        ({"behavior": "behavior", "aggregator": "attentive"}, "weighs images by a query"),
        ({**BOTH, "aggregator": "atentive"}, "nearest: 'attentive'"),
        ({"base": "dim"}, "nearest: 'din'"),
        ({**BOTH, "pooling": {"history": "none"}}, "DICM reads no sequences; field 'history'"),
        ({**BOTH, "aggregator": "concatenation", "longest": 0}, "longest must be a whole number from 1 to"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_dicm_says_what_is_wrong(more: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        DICM(IMAGES, **more)


def test_multi_query_needs_a_query() -> None:
    with pytest.raises(PlanError, match="at least one query"):
        MultiQueryAttentivePooling(3, [])


# ---- pre-rank


def towers(**more: Any) -> TwoTower:
    torch.manual_seed(0)
    sides = {"user": ["user", "history", "behavior"], "ad": ["ad", "ad_image"], "images": ["behavior", "ad_image"]}
    return TwoTower(IMAGES, 5, **{**sides, "image_dim": 4, "vector": 6, **more})


def test_the_logit_is_the_product_of_vectors_that_know_one_side_only() -> None:
    model = towers().eval()
    assert model.reads.pooling["behavior"] == "sum"
    assert model.reads.dims == {"user": 5, "history": 5, "behavior": 4, "ad": 5, "ad_image": 4}
    x = inputs(model.reads, 9)
    user, ad = model.user_vectors(x), model.ad_vectors(x)
    assert user.shape == ad.shape == (9, 6)
    torch.testing.assert_close(model(x), (user * ad).sum(1) + model.bias)
    user.sum().backward()
    (one,) = [p for p in x.pooled if "user" in p.fields]
    touched = {
        n for p in x.pooled for k, n in enumerate(p.fields) if p.vectors.grad is not None and p.vectors.grad[:, k].any()
    }
    assert touched == {"user", "history", "behavior"}
    assert one.vectors.grad is not None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"user": ["usr"]}, "nearest: 'user'"),
        ({"user": []}, "at least one field of the user"),
        ({"user": ["user", "user"]}, r"^user of TwoTower names 'user' twice; remove one of the two$"),
        ({"user": ["user", "ad"]}, "'ad' is a field of both sides"),
        (
            {"user": ["user"], "images": ["behavior"]},
            "'behavior' is in images=, but is not a field of the user or of the ad",
        ),
        ({"vector": 0}, "vector must be a whole number from 1 to"),
        ({"pooling": {"history": "none"}}, "TwoTower reads no sequences"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_two_towers_say_what_is_wrong(more: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        towers(**more)


@pytest.mark.parametrize("given", [{"dropout": 0.5}, {"batch_norm": True}])
def test_two_towers_of_one_hidden_layer_warn_that_nothing_is_between_layers(given: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=r"no effect with hidden=\(64,\); name at least two layers"):
        towers(hidden=(64,), **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        towers(hidden=(8, 8), **given)
        towers(hidden=(64,))
