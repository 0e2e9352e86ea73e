"""Files that earlier versions wrote still load, and give the scores that they gave then, bit for bit."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.views.allowed_paths import VARIABLE
from tests.artifacts.make import ASKED, hexed, served, views

KEPT = sorted((Path(__file__).parent / "kept").glob("*.zip"))


class Kept:
    """What one version wrote, in a folder that tests may write into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())
        self.asked = pq.read_table(folder / "asked.parquet")

    def plan(self) -> cb.Plan:
        return cb.Plan.load(self.folder / "click.plan", views=views(self.folder), device="cpu")

    def batch(self) -> cb.Batch:
        return self.plan().run(self.asked)


@pytest.fixture(scope="module", params=KEPT, ids=lambda path: path.stem)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp(request.param.stem)
    with zipfile.ZipFile(request.param) as file:
        file.extractall(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, os.fspath(folder))
        yield Kept(folder)


def test_there_is_something_of_each_version_that_was_kept() -> None:
    assert {path.stem for path in KEPT} >= {"3fde960", "069295d"}


def test_a_plan_computes_the_same_features(kept: Kept) -> None:
    plan, batch = kept.plan(), kept.batch()
    assert plan.fingerprint == kept.expected["fingerprint"]
    assert hexed(batch.dense) == kept.expected["dense"]
    assert {name: hexed(ragged.values) for name, ragged in batch.sparse.items()} == kept.expected["keys"]


@pytest.mark.parametrize("name", ["run", "run_ssd"])
def test_a_run_folder_gives_the_same_scores(kept: Kept, name: str) -> None:
    run = cb.Run.load(kept.folder / name, views=views(kept.folder))
    scores = run.predict(kept.asked)
    assert len(scores) == ASKED
    assert hexed(scores) == kept.expected[name]


def test_a_deep_ffm_gives_the_same_scores_and_goes_on_learning(kept: Kept) -> None:
    engine, batch = cb.DeepFFM.load(kept.folder / "model.ffm"), kept.batch()
    assert hexed(engine.predict(batch)) == kept.expected["ffm"]
    engine.learn(list(kept.plan().batches(100))[4:])
    assert hexed(engine.predict(batch)) == kept.expected["ffm_further"]


def test_published_weights_and_their_patch_give_the_same_scores(kept: Kept, tmp_path: Path) -> None:
    batch = kept.batch()
    for name in ("first", "second"):
        assert hexed(cb.DeepFFM.load(kept.folder / f"{name}.fbw").predict(batch)) == kept.expected[name]
    cb.publish.apply(kept.folder / "first.fbw", kept.folder / "update.patch", tmp_path / "patched.fbw")
    assert (tmp_path / "patched.fbw").read_bytes() == (kept.folder / "second.fbw").read_bytes()


@pytest.mark.parametrize("name", ["served_ffm", "served_run"])
def test_a_published_model_is_served_with_the_same_scores(kept: Kept, name: str) -> None:
    assert served(kept.folder / name, kept.folder, kept.asked) == kept.expected[name]
    published = cb.publish.Published(kept.folder / name / "weights")
    assert published.verify() == []
    assert len(published.log()) == (2 if name == "served_ffm" else 1)


def test_tables_hold_the_same_rows_states_and_counts(kept: Kept) -> None:
    memory = cb.MemoryTable.load(kept.folder / "memory.ctrtable")
    assert [hexed(array) for array in memory.export()] == kept.expected["memory"]
    with cb.SparseTable.load(kept.folder / "sparse", ram="8MB") as sparse:
        assert [hexed(array) for array in sparse.export()] == kept.expected["sparse"]
        assert 0 < len(sparse) < len(memory)  # some rows were expired
        assert sparse.verify() == []
