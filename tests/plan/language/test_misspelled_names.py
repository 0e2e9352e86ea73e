"""A name that does not exist is answered with the nearest one that does."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col

TABLE = pa.table({"a": [1]})


@pytest.mark.parametrize(
    ("owner", "wrong", "nearest"),
    [
        (col("ts"), "hours", "hour"),
        (cb.View(TABLE), "filtr", "filter"),
        (cb.models, "DeepFn", "DeepFM"),
        (cb.datasets, "movie_lens", "movielens"),
        (cb.callbacks, "Checkpoints", "Checkpoint"),
    ],
)
def test_an_unknown_attribute_is_answered_with_the_nearest_name(owner: Any, wrong: str, nearest: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{wrong}'; nearest: '{nearest}'"):
        getattr(owner, wrong)
    assert not hasattr(owner, wrong)
    assert hasattr(owner, nearest)


def test_unknown_arguments_are_answered_with_the_nearest_name() -> None:
    wrong: dict[str, Any] = {"delimeter": ";"}
    with pytest.raises(
        cb.errors.PlanError, match=r"View has no argument 'delimeter'; nearest: 'delimiter'; it has data, key, .*types$"
    ):
        cb.View(TABLE, **wrong)
    wrong = {"lable": "a"}
    with pytest.raises(
        cb.errors.PlanError,
        match=r"FeatureSet has no argument 'lable'; nearest: 'label'; it has label, .*dense, labels$",
    ):
        cb.FeatureSet(**wrong)


def test_expressions_and_views_are_copied_and_asked_for_protocols_as_before() -> None:
    e, view = (col("a") + 1).fill(0), cb.View(TABLE, name="log").filter(col("a") > 0)
    for one in (copy.copy(e), copy.deepcopy(e), pickle.loads(pickle.dumps(e))):  # noqa: S301  # its own bytes
        assert repr(one) == repr(e)
    assert copy.copy(view).head()["a"].to_pylist() == [1]
    for name in ("__arrow_c_stream__", "__array__", "_repr_png_"):
        assert not hasattr(e, name)
        assert not hasattr(view, name)
