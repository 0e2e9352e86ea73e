"""A model's folder: written whole, opened again, damaged, refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.errors import CtrboxError, DataError, PlanError, SourceError, WriteError
from ctrbox.serve.model_folder import ModelFolder, create
from tests.serve.worlds import CONTEXT, World


def test_a_folder_opens_with_the_plan_and_the_weights_it_was_made_of(world: World) -> None:
    found = ModelFolder.open(world.folder)
    assert (found.kind, found.context) == ("deep_ffm", CONTEXT)
    plan = found.plan()
    assert plan.fingerprint == world.plan.fingerprint
    (version,) = found.published.log()
    assert version.number == 1
    batch = next(world.plan.batches(500))
    assert np.abs(found.engine().predict(batch) - world.engine.predict(batch)).max() < 1e-3  # codes of 16 bits


def test_the_log_may_be_gone(world: World, tmp_path: Path) -> None:
    moved = tmp_path / "model"
    shutil.copytree(world.folder, moved)
    shutil.move(world.data / "impressions", tmp_path / "away")
    try:
        assert ModelFolder.open(moved).plan().fingerprint == world.plan.fingerprint
    finally:
        shutil.move(tmp_path / "away", world.data / "impressions")


def test_what_is_there_is_not_written_over(world: World, tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="not empty"):
        create(world.folder, world.plan, world.engine, context=CONTEXT)
    with pytest.raises(PlanError, match="nearest: 'user_id'"):
        create(tmp_path / "model", world.plan, world.engine, context=["user_idd"])
    other = cb.DeepFFM(["user", "adversary"], bits=10)
    with pytest.raises(PlanError, match="'adversary' is not a feature of the plan"):
        create(tmp_path / "model", world.plan, other, context=CONTEXT)
    with pytest.raises(PlanError, match=r"a plan, as cb\.compile returns it, got NoneType"):
        create(tmp_path / "model", None, world.engine, context=CONTEXT)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_an_engine_that_learned_from_text_is_not_served_behind_a_plan(world: World, tmp_path: Path) -> None:
    text = tmp_path / "train.vw"
    text.write_text("1 |user 7 |ad 3\n-1 |user 8 |ad 4\n")
    engine = cb.DeepFFM(["user", "ad"], bits=10)
    engine.learn(cb.ffm.ExampleText(text))
    with pytest.raises(
        PlanError,
        match=r"field 'user' was trained on keys of the text of examples, but the plan makes keys of whole numbers; its scores "
        r"would be random\. Train the model on this plan: engine\.learn\(plan\)",
    ):
        create(tmp_path / "model", world.plan, engine, context=CONTEXT)
    assert list(tmp_path.iterdir()) == [text]


@pytest.mark.parametrize("name", ["serve.json", "plan.ctr", "log.arrow"])
def test_a_damaged_file_is_refused(world: World, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(world.folder, folder)
    whole = (folder / name).read_bytes()
    for cut in (0, 7, len(whole) // 2, len(whole) - 1):
        (folder / name).write_bytes(whole[:cut])
        with pytest.raises(CtrboxError):
            ModelFolder.open(folder).plan()
    (folder / name).unlink()
    if name != "log.arrow":
        with pytest.raises(CtrboxError):
            ModelFolder.open(folder).plan()


def test_what_is_no_model_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no model folder"):
        ModelFolder.open(tmp_path / "nothing")
    with pytest.raises(SourceError, match=r"serve\.json is missing"):
        ModelFolder.open(tmp_path)
    (tmp_path / "serve.json").write_text("{}")
    with pytest.raises(DataError):
        ModelFolder.open(tmp_path)
