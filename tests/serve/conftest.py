from __future__ import annotations

import pytest

from tests.serve.worlds import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("serve"))
