"""An extension that is older than its sources is named as the cause of Python's errors, with the command that builds it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctrbox import _native
from ctrbox.cli.old_native import PACKAGE, old_native


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "src" / "ctrbox"
    (tmp_path / "native" / "core").mkdir(parents=True)
    package.mkdir(parents=True)
    for seconds, path in enumerate((tmp_path / "native" / "core" / "a.h", package / "_native.cpython-311.so")):
        path.write_bytes(b"")
        os.utime(path, (seconds, seconds))
    return package


def test_the_extension_that_is_running_has_its_name_and_its_sources() -> None:
    assert Path(_native.__file__).parent == PACKAGE
    assert Path(_native.__file__).match("_native*.so")


def test_an_extension_older_than_a_source_is_named_with_what_to_run(package: Path) -> None:
    error = AttributeError("module 'ctrbox._native' has no attribute 'best_products'\nmore")
    assert old_native(error, package) == ""
    os.utime(package.parents[1] / "native" / "core" / "a.h", (5, 5))
    told = old_native(error, package)
    assert told == (
        f"the native extension is older than native/core/a.h; run `make native` in {package.parents[1]}, and then this command "
        "again (AttributeError: module 'ctrbox._native' has no attribute 'best_products')"
    )
    assert "TypeError: best(): incompatible" in old_native(
        TypeError("best(): incompatible function arguments"), package
    )
    assert old_native(KeyError("x"), package) == ""  # not what a missing name or argument raises


def test_an_extension_that_is_not_built_is_named_and_an_installed_package_has_no_sources(package: Path) -> None:
    error = ImportError("cannot import name '_native'")
    (package / "_native.cpython-311.so").unlink()
    assert old_native(error, package).startswith("the native extension is not built; run `make native`")
    (package.parents[1] / "native" / "core" / "a.h").unlink()
    assert old_native(error, package) == ""
