"""A model's folder: written whole, opened again, damaged, refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.errors import CtrboxError, DataError, PlanError, SourceError, WriteError
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.served_models import open_served
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


def test_a_folder_that_is_taken_is_named_with_what_to_do(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("")
    for taken in (tmp_path / "file", tmp_path / "folder"):
        says = f"^{taken} exists and is not empty; publish to {taken}/weights, or choose another folder$"
        with pytest.raises(WriteError, match=says):
            create(taken, world.plan, world.engine, context=CONTEXT)
    (tmp_path / "empty").mkdir()
    made = create(tmp_path / "empty", world.plan, world.engine, context=CONTEXT, note="first")
    assert [version.note for version in made.published.log()] == ["first"]
    assert sorted(p.name for p in made.folder.iterdir()) == ["log.arrow", "plan.ctr", "serve.json", "weights"]
    assert (made.online, made.source) == (tmp_path / "empty/online.json", tmp_path / "empty")
    (made.folder / "config.json").write_text("{}")  # a file of the user's own does not make it a run
    assert ModelFolder.open(made.folder).kind == "deep_ffm"


def test_settings_of_other_kinds_of_models_are_refused(world: World, tmp_path: Path) -> None:
    found = ModelFolder.open(world.folder)
    for settings, message in (
        (
            {"encoders": {"ad": "w"}},
            f"encoders= is for published models with Model Servers, and {world.folder} has none",
        ),
        (
            {"table_memory": 1 << 20},
            f"table_memory= is for the Sparse Tables of a run folder, and {world.folder} was published with its rows in one "
            "file, which the server maps into memory; remove table_memory=",
        ),
        (
            {"servers": {"ad": "v"}},
            f"servers= can only be used with a run folder; {world.folder} was published with its vectors, so remove servers=",
        ),
    ):
        with pytest.raises(PlanError) as told:
            open_served(found, **settings)
        assert str(told.value) == message
    run = ModelFolder(tmp_path, "run", (), "")
    with pytest.raises(PlanError) as told:
        open_served(run, encoders={"ad": "w"})
    assert str(told.value).endswith(f"{tmp_path} is a run folder; publish it: ctrbox publish create MODEL --model RUN")
    served = open_served(found, servers={}, encoders={}, cache_bytes=1 << 20, most_candidates=7)
    assert (served.version, served.reader.most) == (1, 7)
    assert served.past is None
