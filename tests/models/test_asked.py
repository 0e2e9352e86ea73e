"""What a model may be asked for: which inputs it needs."""

from __future__ import annotations

import pytest

import ctrbox as cb
from ctrbox.columns.batch import Field, Schema
from ctrbox.errors import PlanError


def schema(fields: int, dense: int) -> Schema:
    sparse = tuple(Field(f"f{k}", f"f{k}", False) for k in range(fields))
    return Schema(sparse, (("v", dense),) if dense else (), True, False, False)


@pytest.mark.parametrize("model", [cb.models.EmbeddingMLP, cb.models.YouTubeDNN])
def test_a_model_of_vectors_and_dense_columns_needs_one_of_them(model: type) -> None:
    for fields, dim, dense in ((1, 4, 4), (2, 2, 4), (1, 4, 0), (1, 4, 9), (0, 4, 3)):
        model(schema(fields, dense), dim=dim)
    for dim in (0, 4):
        with pytest.raises(PlanError, match="reads neither a dense column nor a sparse field of dim 1 or more"):
            model(schema(0, 0), dim=dim)


@pytest.mark.parametrize(
    "model", [cb.models.FM, cb.models.DeepFM, cb.models.AutoInt, cb.models.XDeepFM, cb.models.MaskNet]
)
def test_a_model_that_multiplies_vectors_needs_a_field_and_a_dim(model: type) -> None:
    model(schema(2, 1), dim=4)
    with pytest.raises(
        PlanError, match=f"{model.__name__} multiplies the vectors of sparse fields, but reads no sparse field"
    ):
        model(schema(0, 3), dim=4)
    with pytest.raises(PlanError, match=f"{model.__name__} multiplies .* so their dim must be 1 or more, got 0"):
        model(schema(2, 3), dim=0)
