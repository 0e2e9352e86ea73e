"""Weights that are no numbers, learning rates without tables, and runs that kept too little to go on."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.embedder_traits import traits_of
from ctrbox.errors import DataError, PlanError, TrainError
from ctrbox.predict.check_keys_of_vector_files import check_key_kinds
from ctrbox.predict.published_run import _finite, _floats, _tensor_parts, _tensors
from ctrbox.publish.weight_file import Part, Weights
from ctrbox.train.table_setup import set_rate
from ctrbox.train.warm_up import _check_continues
from tests.train.test_second_day import FAST, log, planned


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_no_number_is_named_when_rows_are_scored(value: float) -> None:
    plan = planned(log(200))
    model = cb.models.DeepFM(plan.schema, dim=2, hidden=(3,))
    run = cb.Trainer(model, cb.MemoryTable(2), threads=1).fit(plan, **FAST)
    assert np.isfinite(np.concatenate(list(run.predictions(log(200))))).all()
    with torch.no_grad():
        list(run.model.parameters())[-1].fill_(value)
    with pytest.raises(
        TrainError,
        match=r"weight '.*' of the model is not finite; lower the learning rate, or limit the gradients with clip=1.0",
    ):
        list(run.predictions(log(200)))


def test_a_learning_rate_needs_a_table() -> None:
    with pytest.raises(
        PlanError, match=r"lr= is the learning rate of embedding tables, but this model has none \(it reads nothing\)"
    ):
        set_rate([], 0.1)
    others: Any = [SimpleNamespace(), SimpleNamespace()]
    with pytest.raises(PlanError, match=r"this model has none \(it reads SimpleNamespace\); remove lr="):
        set_rate(others, 0.1)


@pytest.mark.parametrize("state", [{"files": {"optimizer.safetensors": {}}}, {"files": {}, "dense optimizer": "Adam"}])
def test_a_run_that_kept_no_optimizer_cannot_be_continued(state: dict[str, Any]) -> None:
    with pytest.raises(
        PlanError,
        match=r"runs/x was trained by a version of CTRBox that did not save the optimizer state .*: warm_up='full'",
    ):
        _check_continues(Path("runs/x/model"), state, SimpleNamespace())  # type: ignore[arg-type]


def test_published_parts_are_finite_floats() -> None:
    part = Part("rows", "F32", (2,), np.array([1.0, 2.0], np.float32))
    assert _floats(part, (1, 2)).tolist() == [[1.0, 2.0]]
    with pytest.raises(ValueError, match="part 'rows' of I64"):
        _floats(Part("rows", "I64", (1,), np.zeros(8, np.uint8)), (1, 1))
    with pytest.raises(DataError, match="part 'rows' contains a NaN or an infinity"):
        _finite(Part("rows", "F32", (1,), np.array([np.nan], np.float32)))
    module = nn.Module()
    module.register_buffer("b", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(PlanError, match=r"weight 'b' has the type torch\.complex64, which cannot be published"):
        list(_tensor_parts("x.", module))


def test_published_weights_fit_the_model_by_name_shape_and_type() -> None:
    module = nn.Linear(2, 1, bias=False)
    part = Part("dense.weight", "F32", (1, 2), np.array([1.0, 2.0], np.float32))
    other = Part("else.weight", "F32", (1,), np.array([3.0], np.float32))

    def read(*parts: Part) -> dict[str, torch.Tensor]:
        return _tensors(module, Weights("click model", {}, list(parts)), "dense.", "v1")

    assert {name: tensor.tolist() for name, tensor in read(part, other).items()} == {"weight": [[1.0, 2.0]]}
    for wrong in ([], [Part("dense.bias", "F32", (1,), part.data[:1]), part]):
        with pytest.raises(
            DataError, match=r"v1 holds a different model: only one of the two has the weight '(weight|bias)'"
        ):
            read(*wrong)
    for shape, dtype, data in (((2, 1), "F32", part.data), ((1, 2), "I32", part.data.view(np.uint8))):
        says = (
            rf"v1 holds a different model: weight 'weight' is \({shape[0]}, {shape[1]}\) {dtype}, expected \(1, 2\) F32"
        )
        with pytest.raises(DataError, match=says):
            read(Part("dense.weight", dtype, shape, data))
    empty = nn.Module()
    empty.register_buffer("weight", torch.empty(3, 0))
    nothing = Weights("click model", {}, [Part("dense.weight", "F32", (3, 0), np.zeros(0, np.float32))])
    assert _tensors(empty, nothing, "dense.", "v1")["weight"].shape == (3, 0)


def test_a_vector_file_of_plain_numbers_is_refused_for_a_field_of_hashed_keys(tmp_path: Path) -> None:
    vectors = {"k": np.array([5, 9]), "v": np.ones((2, 3), np.float32)}
    cb.tables.write_vectors(tmp_path / "v", vectors, key="k", vector="v")
    server = cb.tables.ModelServer(tmp_path / "v", dim=2)
    log = cb.View(pa.table({"ad": [5, 9], "name": ["a", "b"]}))
    sparse = {"hashed": col("ad").key(), "text": col("name").key()}
    plan = cb.compile(log, cb.FeatureSet(sparse=sparse), device="cpu", threads=1)

    def check(embedder: Any, *fields: str) -> None:
        learner: Any = SimpleNamespace(sources=[SimpleNamespace(traits=traits_of(embedder), fields=fields)])
        check_key_kinds(learner, plan)

    check(server, "of another plan")
    check(cb.tables.MemoryTable(2), "hashed", "text")
    for fields in (["hashed"], ["of another plan", "text"]):
        says = rf"field '{fields[-1]}' hashes its values to keys, so none of them can be in .*v: .* The first is 5\."
        with pytest.raises(DataError, match=says):
            check(server, *fields)
