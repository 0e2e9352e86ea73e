"""Hashed interactions against the plain product of an example's features."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native
from ctrbox.ffm.engine import DeepFFM
from ctrbox.ffm.examples_from_text_or_cache import ExampleText
from tests.ffm.test_deep_ffm import lines, parsed
from tests.twins.deep_ffm import rows_of
from tests.twins.example_text import finish

F = np.float32
FIELDS = ("a", "b", "c")
MASK = 2**64 - 1


def fold(a: int, b: int) -> int:
    return finish((a * 0x9E3779B97F4A7C15 & MASK) ^ b)


def crossed(features: list[tuple[int, int, F]], fields: tuple[int, ...], name: str) -> list[tuple[int, F]]:
    """Key and value of each combination."""
    found = []
    for chosen in itertools.product(*([(k, v) for f, k, v in features if f == field] for field in fields)):
        key, value = 0, F(1)
        for k, v in chosen:
            key, value = fold(key, k), value * v
        if value != 0:
            found.append((finish(key ^ _native.salt(name.encode())) & ~0xFFFF, value))
    return found


@given(
    lines(FIELDS), st.lists(st.sampled_from([(0, 1), (1, 0), (2, 2), (0, 1, 2)]), min_size=1, max_size=3, unique=True)
)
@settings(max_examples=60, deadline=None)
def test_interactions_are_products(text: str, asked: list[tuple[int, ...]]) -> None:
    plain = parsed(text, FIELDS)
    names = ["*".join(FIELDS[f] for f in one) for one in asked]
    given_ = [(list(one), 3 + n, _native.salt(names[n].encode())) for n, one in enumerate(asked)]
    met = plain.crossed(given_)
    assert met.labels.tobytes() == plain.labels.tobytes()
    for before, after in zip(rows_of(plain), rows_of(met), strict=True):
        expected = [(f, k, v) for f, k, v in before[0]]
        for n, one in enumerate(asked):
            expected += [(3 + n, key, value) for key, value in crossed(before[0], one, names[n])]
        assert after[0] == expected
        assert before[1:] == after[1:]


def test_text_and_cache_have_them_as_fields(tmp_path: Path) -> None:
    (tmp_path / "t.vw").write_text("1 |a x y |b z:2\n-1 |c w |a x\n" * 20)
    options = {"fields": FIELDS, "interactions": [("a", "b"), ("c", "a")]}
    text = ExampleText(tmp_path / "t.vw", **options)
    assert text.fields == ["a", "b", "c", "a*b", "c*a"]
    cache = cb.ffm.ExampleCache.parse(tmp_path / "t.vw", tmp_path / "t.ctrx", **options)
    assert cache.fields == text.fields
    one, two, first = (
        DeepFFM(text.fields, bits=10),
        DeepFFM(cache, bits=10),
        DeepFFM(text.fields, bits=10, context=["c*a"]),
    )
    one.learn(text)
    two.learn(cache)
    first.learn(text)  # its fields are in another order
    assert one._native.weights().tobytes() == two._native.weights().tobytes()
    assert np.allclose(first.predict(text), one.predict(text), atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interactions": [("a", "b")]}, "needs fields="),
        ({"fields": FIELDS, "interactions": [("a", "bb")]}, "'bb', which is not a field"),
        ({"fields": FIELDS, "interactions": [("a",)]}, "two or more fields"),
        ({"fields": FIELDS, "interactions": [("a", "b"), ("a", "b")]}, "two fields have the name"),
    ],
)
def test_what_is_no_interaction_is_refused(options: dict[str, list], message: str, tmp_path: Path) -> None:
    with pytest.raises(cb.errors.PlanError, match=message):
        ExampleText(tmp_path / "t.vw", **options)


def test_too_many_features_are_refused_before_they_are_made(tmp_path: Path) -> None:
    many = " ".join(map(str, range(2_000)))
    (tmp_path / "t.vw").write_text(f"1 |a x |b y\n1 |a {many} |b {many}\n")
    with pytest.raises(cb.errors.DataError, match="example 1: an interaction has more than 65,535 features"):
        list(ExampleText(tmp_path / "t.vw", fields=FIELDS, interactions=[("a", "b")]))
    (tmp_path / "t.vw").write_text("1 |a x:3e38 |b y:3e38\n")
    with pytest.raises(cb.errors.DataError, match="not finite"):
        list(ExampleText(tmp_path / "t.vw", fields=FIELDS, interactions=[("a", "b")]))
