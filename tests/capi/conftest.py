"""Builds libctrbox once for all tests of this folder: the system's compiler takes half a minute, and a second when repeated."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tests.capi.library import installed, loaded


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("prefix"))


@pytest.fixture(scope="session")
def lib(prefix: Path) -> ctypes.CDLL:
    return loaded(prefix)
