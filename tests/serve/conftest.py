from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.running import Running, running
from tests.serve.worlds import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="session")
def server(world: World) -> Iterator[Running]:
    """One that tests of routes share; those that change its model start their own."""
    with running(world.folder, "--name", "ads", "--max-body", "200KB", "--max-candidates", "500") as found:
        yield found
