"""Labels are checked as they come; the advice never turns an unknown label into a row without a click."""

from __future__ import annotations

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.train.sampling import Labels


def batch(*labels: float) -> cb.Batch:
    schema = cb.types.Schema((), (), True, False, False)
    dense = np.zeros((len(labels), 0), np.float32)
    return cb.Batch(schema, len(labels), np.array(labels, np.float32), dense, {}, None)


@pytest.mark.parametrize(
    ("label", "advice"), [(float("nan"), r"filter\(~col\(…\)\.is_nan\(\)\)"), (3.0, r"col\(…\) > 0")]
)
def test_a_label_that_is_neither_0_nor_1_is_refused_with_advice(label: float, advice: str) -> None:
    with pytest.raises(cb.errors.DataError, match=rf"the label is {label} in row 11 of the training rows.*{advice}"):
        Labels().add(batch(1.0, label), 10, "training")
