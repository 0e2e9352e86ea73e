"""The public names: few at the root, the rest in namespaces, and advice for a name that does not exist."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

import ctrbox as cb

SPACES = ["callbacks", "datasets", "errors", "ffm", "loop", "models", "optim", "publish", "serve", "tables", "types"]
ROOT_NAMES = [name for name in dir(cb) if name not in SPACES and not name.startswith("_")]


def test_the_root_has_about_thirty_names_and_the_namespaces() -> None:
    assert set(SPACES) <= set(dir(cb))
    assert 25 <= len(ROOT_NAMES) <= 31
    documented = {
        "View",
        "col",
        "FeatureSet",
        "cross",
        "overlap",
        "compile",
        "SparseTable",
        "Adagrad",
        "Trainer",
        "DeepFFM",
    }
    assert documented <= set(ROOT_NAMES)


def test_every_name_of_the_list_can_be_imported() -> None:
    for name in ROOT_NAMES:
        assert getattr(cb, name).__name__ == name
    for space in SPACES:
        for name in getattr(cb, space).__all__:
            assert hasattr(getattr(cb, space), name), f"cb.{space}.{name}"


@pytest.mark.parametrize("space", ["", *SPACES])
def test_no_two_names_differ_only_by_case(space: str) -> None:
    names = getattr(cb, space).__all__ if space else dir(cb)
    assert [name for name, times in Counter(map(str.lower, names)).items() if times > 1] == []


def test_a_name_is_in_one_namespace_alone() -> None:
    found = Counter(name for space in SPACES for name in getattr(cb, space).__all__)
    assert [name for name, times in found.items() if times > 1] == []


def test_a_name_at_the_root_is_the_object_of_its_namespace() -> None:
    for space in SPACES:
        for name in getattr(cb, space).__all__:
            if name in ROOT_NAMES:
                assert getattr(cb, name) is getattr(getattr(cb, space), name)


@pytest.mark.parametrize(
    ("asked", "right"),
    [
        ("Counters", "cb.tables.Counters"),
        ("PlanError", "cb.errors.PlanError"),
        ("Adam", "cb.optim.Adam"),
        ("grid", "cb.ffm.grid"),
        ("Device", "cb.types.Device"),
        ("cros", "cb.cross"),
        ("SparceTable", "cb.SparseTable"),
        ("Featureset", "cb.FeatureSet"),
    ],
)
def test_a_name_that_is_not_at_the_root_is_answered_with_the_nearest(asked: str, right: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'ctrbox' has no attribute '{asked}'; nearest: {right}$"):
        getattr(cb, asked)


def test_a_name_like_none_is_answered_without_advice() -> None:
    with pytest.raises(AttributeError, match=r"module 'ctrbox' has no attribute 'zzz'$"):
        cb.zzz  # noqa: B018
    assert not hasattr(cb, "__wrapped__")


def test_importing_ctrbox_imports_no_part_of_it() -> None:
    code = "import sys, ctrbox; sys.exit(any(name.startswith('ctrbox.') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
