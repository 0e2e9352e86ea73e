from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrbox.serve.model_folder import ModelFolder
from ctrbox.views.allowed_paths import VARIABLE
from tests.serve.running import Running, running
from tests.serve.worlds import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("serve"))


@pytest.fixture
def folder(world: World, tmp_path: Path) -> ModelFolder:
    """A copy of the world's model, for a test that changes it."""
    place = tmp_path / "model"
    shutil.copytree(world.folder, place)
    return ModelFolder.open(place)


@pytest.fixture(scope="session")
def server(world: World) -> Iterator[Running]:
    """One that tests of routes share; those that change its model start their own."""
    with running(world.folder, "--name", "ads", "--max-body", "200KB", "--max-candidates", "500") as found:
        yield found


@pytest.fixture(scope="session", autouse=True)
def _views_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Allow the views below the tests' own folders: models and their data lie in several of them."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(tmp_path_factory.getbasetemp())
    yield
    del os.environ[VARIABLE]
    if before is not None:
        os.environ[VARIABLE] = before
