"""The table of a text sub-model comes back from published weights with its vocabulary, and only where its parts agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ctrbox.embed.vectors.published_table import PublishedVectors
from ctrbox.embed.vectors.submodels import TextEmbedding
from ctrbox.errors import DataError
from ctrbox.predict.published_run import _table, _tensor_parts
from ctrbox.publish.weight_file import Part, Weights

WORDS, LONGEST, DIM = 5, 3, 2


def opened(server: dict[str, Any], dim: int = DIM, submodel_dim: int = DIM) -> PublishedVectors:
    torch.manual_seed(0)
    submodel = TextEmbedding(WORDS, hidden=4, dim=submodel_dim)
    keys = Part("table.0.key", "I64", (1,), np.array([7], np.int64).view(np.uint8))
    vector = Part.floats("table.0.vector", np.ones((1, dim), np.float32))
    weights = Weights("learner", {}, [keys, vector, *_tensor_parts("table.0.model.", submodel)])
    about = {"dim": dim, "linear": False, "server": {"submodel": "text", "width": LONGEST, "tokens": True} | server}
    table = _table(weights, 0, about, "v1")
    assert isinstance(table, PublishedVectors)
    return table


def test_every_word_of_the_vocabulary_is_known_and_none_beyond_it() -> None:
    table = opened({})
    assert (table.vocabulary, table.width, table.dim) == (WORDS, LONGEST, DIM)
    assert table.checked(np.array([[1, WORDS, 0]])).tolist() == [[1, WORDS, 0]]
    with pytest.raises(DataError, match="5"):
        table.checked(np.array([[1, WORDS + 1, 0]]))
    torch.manual_seed(0)
    submodel = TextEmbedding(WORDS, hidden=4, dim=DIM)
    found, _ = table.embed(np.array([8]), np.array([[2, 3, 0]]))
    assert found[8].tolist() == submodel(torch.tensor([[2, 3, 0]]))[0].tolist()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"server": {"tokens": False}}, "a sub-model from 3 to 2 numbers, a table from 3 to 2"),
        ({"server": {}, "submodel_dim": 3}, "a sub-model from 3 to 3 numbers, a table from 3 to 2"),
        ({"server": {}, "dim": 1}, "a sub-model from 3 to 2 numbers, a table from 3 to 1"),
    ],
)
def test_a_text_sub_model_that_contradicts_its_table_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        opened(**change)
