"""A training that begins with the weights of an earlier one: which of them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ctrbox as cb
from ctrbox.errors import PlanError, SourceError
from tests.models.conftest import one_thread
from tests.train.test_model_server_training import DIM, WIDTH, Visual, file, plan, rows, server
from tests.train.test_run_folder import Stop, StopAt, see_every_step

__all__ = ["file", "one_thread", "plan", "rows", "see_every_step"]
Earlier = tuple[cb.Run, dict[str, bytes]]  # a training, and its weights
FAST: dict[str, Any] = {"batch_size": 100, "checkpoint_seconds": 1e9, "valid": 0.0}


class Caught(Exception):
    pass


def begun(plan: cb.Plan, file: cb.tables.VectorFile, **options: Any) -> dict[str, bytes]:
    """All weights as they are before the first step."""
    from ctrbox.train import learn_batch

    one = cb.tables.ModelServer(file, cb.tables.ImageEmbedding(WIDTH, (6,), DIM), optimizer=cb.optim.Adam(lr=0.01))
    table = options.pop("table", None) or cb.MemoryTable(DIM)
    trainer = cb.Trainer(Visual(plan.schema, seed=8), {"image": one, "seen": one, "*": table})
    original = learn_batch.Learner._learn

    def stop(self: Any, *_: Any) -> float:
        raise Caught

    learn_batch.Learner._learn = stop  # type: ignore[method-assign]
    try:
        with pytest.raises(Caught):
            trainer.fit(plan, **FAST, overlap=False, **options)  # the rows of one batch are made
    finally:
        learn_batch.Learner._learn = original  # type: ignore[method-assign]
    return parts(trainer.model, one, table)


def parts(model: torch.nn.Module, one: cb.tables.ModelServer, table: cb.MemoryTable) -> dict[str, bytes]:
    def bits(module: torch.nn.Module) -> bytes:
        return b"".join(v.numpy().tobytes() for v in module.state_dict().values())

    keys, values, states = table.export()
    return {
        "dense": bits(model),
        "images": bits(one.submodel),
        "ids": keys.tobytes() + values.tobytes() + states.tobytes(),
    }


@pytest.fixture(scope="module")
def earlier(plan: cb.Plan, file: cb.tables.VectorFile, tmp_path_factory: pytest.TempPathFactory) -> Earlier:
    one, table = server(file), cb.MemoryTable(DIM)
    out = tmp_path_factory.mktemp("warm") / "run"
    run = cb.Trainer(Visual(plan.schema), {"image": one, "seen": one, "*": table}).fit(plan, **FAST, out=out)
    return run, parts(run.model, one, table)


@pytest.mark.parametrize("kind", ["partial", "full"])
@pytest.mark.parametrize("how", ["run", "folder", "memory"])
def test_a_training_begins_with_the_parts_asked_for(
    plan: cb.Plan, file: cb.tables.VectorFile, earlier: Earlier, kind: str, how: str
) -> None:
    run, weights = earlier
    memory = cb.Run(run.plan, run.learner, run.summary, None)
    given: Any = {"run": run, "folder": run.folder, "memory": memory}[how]
    found = begun(plan, file, warm_up=kind, warm_from=given)
    empty = begun(plan, file)
    assert (found["dense"], found["images"]) == (weights["dense"], weights["images"])
    assert empty["dense"] != found["dense"]
    assert empty["images"] != found["images"]
    assert found["ids"] == (weights["ids"] if kind == "full" else empty["ids"])


def test_partial_warm_up_refuses_tables_that_hold_rows(
    plan: cb.Plan, file: cb.tables.VectorFile, earlier: Earlier
) -> None:
    table = cb.MemoryTable(DIM)
    one = server(file)
    fit = cb.Trainer(Visual(plan.schema), {"image": one, "seen": one, "*": table}).fit
    fit(plan, **FAST)
    with pytest.raises(
        PlanError, match=r"partial warm-up starts with new embeddings.*the table of 'user' holds \d+ rows"
    ):
        fit(plan, **FAST, warm_up="partial", warm_from=earlier[0])


def test_what_cannot_be_begun_from_is_refused(
    plan: cb.Plan, file: cb.tables.VectorFile, earlier: Earlier, tmp_path: Path
) -> None:
    one = server(file)
    usual = {"image": one, "seen": one, "*": cb.MemoryTable(DIM)}

    def refused(message: str, kind: type[Exception] = PlanError, embedders: Any = usual, **options: Any) -> None:
        with pytest.raises(kind, match=message):
            cb.Trainer(options.pop("model", Visual(plan.schema)), embedders).fit(plan, **FAST, **options)

    refused("nearest: 'partial'", warm_up="partail", warm_from=earlier[0])
    refused(r"warm_up='full' needs the run to start from", warm_up="full")
    refused("use 'partial', 'full' or 'continue'", warm_from=earlier[0])
    refused("must be a run or its folder, got int", warm_up="full", warm_from=3)
    refused("holds no finished run", SourceError, warm_up="full", warm_from=tmp_path)
    other = cb.models.DICM(plan.schema, DIM, behavior="seen", query="user", ad_image="image", image_dim=DIM)
    refused(
        "was trained with model 'Visual', but this training has 'DICM'",
        model=other,
        warm_up="full",
        warm_from=earlier[0],
    )
    joined = {"*": cb.MemoryTable(DIM)}
    refused(
        "has no embedder for 'user', 'image', 'seen' together", embedders=joined, warm_up="full", warm_from=earlier[0]
    )


def test_a_warm_run_that_was_stopped_goes_on_exactly(
    plan: cb.Plan, file: cb.tables.VectorFile, earlier: Earlier, tmp_path: Path
) -> None:
    def fit(**options: Any) -> dict[str, bytes]:
        one, table = server(file), cb.MemoryTable(DIM)
        trainer = cb.Trainer(Visual(plan.schema, seed=8), {"image": one, "seen": one, "*": table})
        run = trainer.fit(plan, **FAST, warm_up="partial", warm_from=earlier[0], **options)
        return parts(run.model, one, table)

    expected = fit()
    options = {"out": tmp_path / "run", "checkpoint_steps": 4}
    with pytest.raises(Stop):
        fit(**options, progress=StopAt(9))
    one = server(file)
    cold = cb.Trainer(Visual(plan.schema, seed=8), {"image": one, "seen": one, "*": cb.MemoryTable(DIM)})
    with pytest.raises(cb.errors.DataError, match="differs in warm up"):
        cold.fit(plan, **FAST, **options)
    assert fit(**options) == expected
