"""A model that asks for what the plan or its Reads lack is told what there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError
from ctrbox.models import MLP
from ctrbox.models.inputs import Inputs, Pooled, Reads
from ctrbox.models.model_arguments import MOST_LAYERS, sizes


@pytest.fixture(scope="module")
def schema() -> Any:
    rows = pa.table({"user": ["a", "b"], "words": [["a"], ["b", "c"]], "price": [0.5, 1.0]})
    sparse = {"user": col("user"), "words": col("words").key()}
    return cb.compile(cb.View(rows), cb.FeatureSet(sparse=sparse, dense={"price": col("price")}), device="cpu").schema


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda s: Reads("user"), "a model needs a schema, such as plan.schema, got a str"),  # type: ignore[arg-type]
        (
            lambda s: Reads(s, fields=["usr"]),
            "'usr' is not a sparse field of this plan; nearest: 'user'; it has ['user', 'words']",
        ),
        (lambda s: Reads(s, dims={"price": 4}), "'price' is not a sparse field of this plan"),
        (lambda s: Reads(s, pooling={"x": "sum"}), "'x' is not a sparse field of this plan"),
        (lambda s: Reads(s, pooling="median"), "pooling of 'user' is 'median'; expected one of"),
        (lambda s: Reads(s, pooling={"words": "first"}), "pooling of 'words' is 'first'; expected one of"),
        (lambda s: Reads(s, 4097), "dim of 'dim' must be a whole number from 0 to 4,096, got 4097"),
        (lambda s: Reads(s, dims={"user": -1}), "dim of 'user' must be a whole number from 0 to 4,096, got -1"),
        (lambda s: Reads(s, True), "dim of 'dim' must be a whole number from 0 to 4,096, got True"),
        (lambda s: MLP(0, [1]), "a tower needs at least one input, got 0"),
        (lambda s: MLP(1, [1], dropout=1.0), "dropout must be from 0 to less than 1, got 1.0"),
        (lambda s: MLP(1, [1], dropout=-0.1), "dropout must be from 0 to less than 1, got -0.1"),
        (lambda s: MLP(1, [1], dropout="a"), "dropout must be from 0 to less than 1, got 'a'"),  # type: ignore[arg-type]
        (lambda s: MLP(1, []), "must be a list of layer widths such as (128, 64), got []"),
        (lambda s: sizes("hidden", "64"), "hidden must be a list of layer widths such as (128, 64), got '64'"),
        (
            lambda s: sizes("hidden", [1] * (MOST_LAYERS + 1)),
            f"has {MOST_LAYERS + 1} layers; expected at most {MOST_LAYERS}",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(schema: Any, make: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        make(schema)
    assert says in str(caught.value)


def test_the_bounds_themselves_are_accepted(schema: Any) -> None:
    assert Reads(schema, 4096, fields=["user"]).width == 4096
    assert Reads(schema, 0).width == 0
    assert sizes("hidden", [1] * MOST_LAYERS) == (1,) * MOST_LAYERS
    assert sizes("hidden", []) == ()
    assert MLP(1, [1], dropout=0)(torch.ones(2, 1)).shape[0] == 2


def test_a_field_is_read_the_way_its_reads_say(schema: Any) -> None:
    reads = Reads(schema, 2, pooling={"words": "none"})
    words = (torch.ones(2, 2, 2), torch.tensor([1, 2]))
    pooled = Pooled(("user",), None, torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
    x = Inputs(reads, 2, torch.zeros(2, 1), (pooled,), {"words": words})
    assert x.field("user").tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert x.sequence("words") is words
    with pytest.raises(
        PlanError, match=r"field 'words' is read as a sequence, so it has no pooled vector; use x.sequence\('words'\)"
    ):
        x.field("words")
    with pytest.raises(PlanError, match="this model does not read 'uesr'; nearest: 'user'"):
        x.field("uesr")
    with pytest.raises(
        PlanError, match=r"field 'user' is not read as a sequence; build Reads with pooling={'user': 'none'}"
    ):
        x.sequence("user")
    with pytest.raises(PlanError, match=r"this model reads x\.linear; build its Reads with linear=True"):
        _ = x.linear


def test_what_depends_on_the_context_alone_is_computed_once_for_a_context(schema: Any) -> None:
    made: list[str] = []

    def make() -> int:
        made.append("made")
        return len(made)

    reads = Reads(schema, 2, fields=[])
    once = Inputs(reads, 2, torch.zeros(2, 1), (), {}, kept={})
    assert [once.once("a", make), once.once("a", make), once.once("b", make), once.once("a", make)] == [1, 1, 2, 1]
    assert once.kept == {"a": 1, "b": 2}
    plain = Inputs(reads, 2, torch.zeros(2, 1), (), {})
    assert [plain.once("a", make), plain.once("a", make)] == [3, 4]
