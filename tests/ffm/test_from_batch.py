"""Batches of a plan as examples of Deep FFM: which features they have, and which arrays are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ctrbox import _native

ROWS = 2
FIELD = ([5, 0, 6], [0, 2, 3])  # of rows 5, 0 and 6; key 0 is no feature
SALTS = [11, 12, 13]


def examples(
    sparse: Any = (FIELD, ([7, 8], [0, 1, 2])),
    dense: Any = ((0.5,), (0.0,)),
    salts: list[int] = SALTS,
    label: Any = (),
    weight: Any = (),
) -> _native.Examples:
    columns = [(np.array(values, np.int64), np.array(offsets, np.int64)) for values, offsets in sparse]
    floats = [np.array(part, np.float32) for part in (dense, label, weight)]
    return _native.Examples.from_batch(columns, floats[0], salts, *floats[1:])


def test_keys_become_features_and_numbers_fields_of_one_feature() -> None:
    found = examples()
    assert found.offsets.tolist() == [0, 3, 5]
    assert found.fields.tolist() == [0, 1, 2, 0, 1]
    assert found.values.tolist() == [1, 1, 0.5, 1, 1]
    assert found.weights.size == 0
    assert np.isnan(found.labels).all()
    assert (found.rows, found.features, found.unlabeled) == (2, 5, 2)
    assert len(set(found.keys.tolist())) == 5
    labeled = examples(label=[0, 1], weight=[0.0, 2.5])
    assert (labeled.labels.tolist(), labeled.weights.tolist(), labeled.unlabeled) == ([0, 1], [0, 2.5], 0)


@pytest.mark.parametrize(
    "given",
    [
        {"salts": SALTS[:2]},
        {"salts": [*SALTS, 14]},
        {"label": [0]},
        {"label": [0, 1, 1]},
        {"weight": [1]},
        {"weight": [1, 1, 1]},
        {"label": [0], "weight": [1, 1]},
        {"label": [0, 1], "weight": [1]},
        *(
            {"sparse": fields}
            for bad in (
                ([5, 0, 6], [0, 3]),
                ([5, 0, 6], [0, 1, 2, 3]),
                ([5, 0, 6], [-1, 2, 3]),
                ([5, 0, 6], [0, 2, 4]),
                ([5, 0, 6], [0, 3, 2]),
                ([5, 0, 6], [4, 3, 3]),
            )
            for fields in ((FIELD, bad), (bad, FIELD))
        ),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the arrays of the batch have different lengths"):
        examples(**given)


def test_offsets_may_begin_late_end_early_and_leave_rows_empty() -> None:
    found = examples(sparse=(([5, 6, 7, 8], [1, 1, 3]), ([], [0, 0, 0])), dense=np.zeros((2, 1)))
    assert found.offsets.tolist() == [0, 0, 2]
    expected = examples(sparse=(([6, 7], [0, 0, 2]), ([], [0, 0, 0])), dense=np.zeros((2, 1)))
    assert found.keys.tolist() == expected.keys.tolist()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"dense": [[1.0], [math.nan]]}, "row 1: dense column 0 is nan"),
        ({"dense": [[math.inf], [1.0]]}, "row 0: dense column 0 is inf"),
        ({"label": [0, 0.5]}, "row 1: its label is 0.5"),
        ({"label": [-1, 0]}, "row 0: its label is -1.0"),
        ({"label": [0, math.nan]}, "row 1: its label is nan"),
        ({"weight": [1, -0.5]}, "row 1: its weight is -0.5"),
        ({"weight": [math.inf, 1]}, "row 0: its weight is inf"),
        ({"weight": [1, math.nan]}, "row 1: its weight is nan"),
    ],
)
def test_numbers_that_cannot_be_learned_name_their_row(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        examples(**given)


def test_an_example_has_at_most_65535_features() -> None:
    keys = np.arange(1, 65_540)
    for count, fits in ((65_535, True), (65_536, False)):
        sparse = ((keys, [0, 3, 3 + count]),)
        if fits:
            assert examples(sparse, np.zeros((2, 0)), [1]).offsets.tolist() == [0, 3, 3 + count]
        else:
            with pytest.raises(ValueError, match="row 1: it has more than 65,535 features"):
                examples(sparse, np.zeros((2, 0)), [1])


def test_renumbered_fields_are_in_order_again_with_what_belongs_to_them() -> None:
    found = examples(dense=[[0.5], [2.0]])
    turned = found.renumbered([2, 1, 0])
    assert turned.fields.tolist() == [0, 1, 2, 0, 1, 2]
    assert turned.keys.tolist() == [found.keys[k] for k in (2, 1, 0, 5, 4, 3)]
    assert turned.values.tolist() == [0.5, 1, 1, 2, 1, 1]
    same = found.renumbered([3, 4, 5])
    assert same.fields.tolist() == [3, 4, 5, 3, 4, 5]
    assert same.keys.tolist() == found.keys.tolist()
