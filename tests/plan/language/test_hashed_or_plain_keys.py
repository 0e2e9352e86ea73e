"""Whether the keys of a feature are hashes of text, hashes of numbers, or plain numbers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.plan.language.hashed_or_plain_keys import hashed_kind


def log() -> cb.View:
    rows = pa.table({"i": [1], "s": ["a"], "l": [["a"]], "b": [True], "j": [[1, 2]]})
    ads = pa.table({"i": [1], "title": ["a"], "owner": [3]})
    owners = pa.table({"owner": [3], "country": ["IT"], "size": [5]})
    far = cb.View(owners, key="owner", name="owners").fill(country="", size=0)
    near = cb.View(ads, key="i", name="ads").fill(title="", owner=0).join(far, on="owner")
    return cb.View(rows, name="log").join(near, on="i")


@pytest.mark.parametrize(
    ("feature", "kind"),
    [
        (col("i"), "i"),
        (col("s").key(), "s"),
        (col("l"), "s"),
        (col("j"), "i"),
        (col("s").hash().key(), "s"),
        (col("i").as_key(), ""),
        (col("j").as_key(), ""),
        (col("title"), "s"),
        (col("owner").as_key(), ""),
        (col("country"), "s"),
        (col("size"), "i"),
        (col("b"), None),
        (cb.cross("i", "s"), None),
        (col("l").ngrams(2).key(), None),
        (cb.when(col("b")).then(col("i").as_key()).otherwise(col("i").as_key()), None),
    ],
    ids=repr,
)
def test_the_kind_is_that_of_the_value_behind_the_key(feature: Any, kind: str | None) -> None:
    plan = cb.compile(log(), cb.FeatureSet(sparse={"f": feature}), device="cpu")
    (output,) = plan.graph.outputs
    assert hashed_kind(output.node) == kind
