"""An extension that is older than its sources is named as the cause of Python's errors, with the command that builds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ctrbox import _native
from ctrbox.cli.outdated_native_build import PACKAGE, old_native


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


# An editable install imports ctrbox from its own checkout, whatever PYTHONPATH says.
ONLY_PATHS = 'import sys; sys.meta_path = [m for m in sys.meta_path if m.__module__.startswith("_frozen")]'


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import ctrbox as cb; cb.View", "ImportError: cannot import name 'gone'"),
        ("from ctrbox import _native; _native.gone", "AttributeError: module 'ctrbox._native' has no attribute 'gone'"),
    ],
)
def test_a_script_is_told_that_the_extension_is_old(tmp_path: Path, script: str, told: str) -> None:
    """A checkout in which a module asks the extension for a name that it does not have, because a source is newer."""
    made = tmp_path / "src" / "ctrbox"
    shutil.copytree(PACKAGE, made, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "gone.h").write_text("")
    first = made / "views" / "view.py"
    first.write_text(first.read_text().replace("\nimport ", "\nfrom ctrbox._native import gone\nimport ", 1))

    def error() -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", f"{ONLY_PATHS}; {script}"], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 1
        return done.stderr

    before = error()
    assert told in before
    assert f"the native extension is older than native/gone.h; run `make native` in {tmp_path}" in before
    for built in made.glob("_native*.so"):
        os.utime(built)  # built after the source was changed: the error has another cause
    after = error()
    assert told in after
    assert "make native" not in after
