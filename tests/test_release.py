"""What a release consists of: one version, wheels without a compiler, workflows and images that name what exists."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml

import ctrbox as cb

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKE = runpy.run_path(str(ROOT / "tools" / "make_wheel.py"))
TRY = runpy.run_path(str(ROOT / "tools" / "try_wheel.py"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
IMAGES = [ROOT / "Dockerfile", ROOT / "Dockerfile.cuda"]


def test_the_version_is_written_in_one_place_of_the_package() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["scikit-build"]["metadata"]["version"]["input"] == "src/ctrbox/__init__.py"
    header = (ROOT / "native" / "capi" / "ctrbox.h").read_text(encoding="utf-8")
    assert f'#define CTRBOX_VERSION "{cb.__version__}"' in header


def test_tools_of_a_release_are_pinned() -> None:
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    for extra in ("release", "docs"):
        for requirement in PROJECT["project"]["optional-dependencies"][extra]:
            assert re.match(r"[\w-]+", requirement)[0] in pinned, requirement  # type: ignore[index]


def test_a_wheel_is_built_with_the_build_requirements_and_the_release_extra() -> None:
    assert set(MAKE["requirements"]()) == {
        *PROJECT["build-system"]["requires"],
        *PROJECT["project"]["optional-dependencies"]["release"],
    }


def test_a_wheel_is_not_tried_where_a_compiler_can_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc")
    assert TRY["without_compilers"](tmp_path)["PATH"] == str(tmp_path)
    assert "CC" not in TRY["without_compilers"](tmp_path)
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    with pytest.raises(SystemExit, match=r"has g\+\+, so this would not show"):
        TRY["without_compilers"](tmp_path)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_that_the_makefile_has(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {target for command in commands for target in re.findall(r"^make ([\w-]+)", command)}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert called
    assert called <= targets


def test_continuous_integration_and_releases_cover_both_architectures() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "release.yml"]
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        assert re.search(r"ubuntu-24\.04\b(?!-arm)", text)
        assert "ubuntu-24.04-arm" in text


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_an_image_installs_the_wheel_and_runs_without_privileges(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^USER ctrbox$", text, re.MULTILINE)
    assert "--only-binary :all:" in text
    for extra in re.findall(r'\.whl"\)\[([\w,]+)\]', text)[0].split(","):
        assert extra in PROJECT["project"]["optional-dependencies"], extra


def test_the_image_for_cpus_serves_at_the_port_that_it_exposes() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert 'CMD ["serve", "/model", "--host", "0.0.0.0"]' in text
    assert "EXPOSE 8000" in text
