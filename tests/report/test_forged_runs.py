"""Run folders that somebody forged, every checksum right: refused before a size that they claim takes memory."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import CtrboxError, DataError
from ctrbox.files.sealed_json import read_sealed, sealed
from ctrbox.report.write_report import write_report
from tests.train.worlds import checkerboard

# Loads each folder with a gigabyte of address space to spare; a forged size needs hundreds.
LIMITED = """
import resource, sys
import ctrbox as cb
cb.Run.load(sys.argv[1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
for folder in sys.argv[2:]:
    try:
        cb.Run.load(folder)
        print("loaded")
    except cb.errors.CtrboxError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("honest") / "run"
    sparse = {"user": col("user").key(), "ad": col("ad").key()}
    plan = cb.compile(
        cb.View(checkerboard(400), name="log"), cb.FeatureSet(label=col("clicked"), sparse=sparse), device="cpu"
    )
    model = cb.models.DCNv2(plan.schema, 4, hidden=(8,))
    cb.Trainer(model, cb.MemoryTable(4)).fit(plan, batch_size=100, valid=0.25, out=place)
    return place


def forged(run: Path, place: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy of a run with another state.json, sealed anew."""
    shutil.copytree(run, place)
    state = read_sealed(place / "model" / "state.json", "folder of weights")
    change(state)
    (place / "model" / "state.json").write_text(sealed(state), encoding="utf-8")
    return place


def with_header(run: Path, place: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy of a run whose weights have another safetensors header, its checksum told anew."""
    shutil.copytree(run, place)
    path = place / "model" / "dense.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    shutil.rmtree(place / "again", ignore_errors=True)
    state = read_sealed(place / "model" / "state.json", "folder of weights")
    facts = {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    state["files"]["dense.safetensors"] = facts
    (place / "model" / "state.json").write_text(sealed(state), encoding="utf-8")
    return place


def first(header: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(v for k, v in sorted(header.items()) if k != "__metadata__")
    return found


def grown(header: dict[str, Any]) -> None:
    """A tensor that claims a terabyte."""
    first(header).update(shape=[1 << 28, 1 << 10])


CONFIGS = {
    "wide": {"hidden": [1 << 17, 1 << 17]},
    "many layers": {"layers": 10**9},
    "many experts": {"rank": 2, "experts": 10**9},
    "deep": {"hidden": [1] * 100_000},
    "dim": {"dim": 1 << 30},
    "words": {"hidden": "x" * 300_000},
    "no numbers": {"hidden": [float("inf")]},
    "less than none": {"hidden": [-5]},
}


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of address space and /proc are Linux's")
def test_forged_sizes_are_refused_before_they_take_memory(run: Path, tmp_path: Path) -> None:
    folders = []
    for name, config in CONFIGS.items():
        change: Callable[[dict[str, Any]], Any] = lambda state, config=config: state["config"].update(config)
        folders.append(forged(run, tmp_path / name, change))
    folders.append(with_header(run, tmp_path / "tensor", grown))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(run), *map(str, folders)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert len(said) == len(folders), said
    for folder, line in zip(folders, said, strict=True):
        assert line.startswith(("DataError", "PlanError")), (folder.name, line)
        assert "memory" not in line, (folder.name, line)  # refused for what it says, not because there was no room


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(tables=[["user"]] * 100_000),
        lambda s: s.update(tables=7),
        lambda s: s.update(tables=[[7]]),
        lambda s: s.update(tables=[["user", "ad"], ["user"]]),
        lambda s: s.update(shift=float("1e300")),
        lambda s: s.update(shift="0"),
        lambda s: s.update(config=[1]),
        lambda s: s.update(config={"schema": 1}),
        lambda s: s["files"].update({"../../secret.bin": {"bytes": 1}}),
        lambda s: s["files"].update({"/etc/hostname": {"bytes": 1}}),
        lambda s: s["files"].update({"state.json": {"bytes": 10**30}}),
        lambda s: s["files"].update({"dense.safetensors": {"bytes": True}}),
        lambda s: s.update(files={}),
    ],
)
def test_a_state_that_contradicts_itself_is_one_error(
    run: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    with pytest.raises(CtrboxError):
        cb.Run.load(forged(run, tmp_path / "run", change))


def test_links_in_the_place_of_weights_are_refused(run: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(run, place)
    weights = place / "model" / "dense.safetensors"
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"dense\.safetensors is a symbolic link"):
        cb.Run.load(place)


# What a load reads from a run folder or a model folder besides weights.
SMALL = ("config.json", "summary.json", "model/state.json", "plan.ctrplan")


def copied(source: Path, place: Path, name: str) -> Path:
    """Return a copy of a folder that lacks one file, for something else to take its place."""
    shutil.copytree(source, place)
    (place / name).unlink()
    return place


def test_links_to_endless_files_and_fifos_are_refused_without_memory_or_waiting(run: Path, tmp_path: Path) -> None:
    folders, expected = [], []
    for k, name in enumerate(SMALL):
        folders.append(copied(run, tmp_path / f"link-{k}", name))
        (folders[-1] / name).symlink_to("/dev/zero")
        expected.append(rf"{name} .*(a symbolic link|a device); expected a regular file")
        folders.append(copied(run, tmp_path / f"fifo-{k}", name))
        os.mkfifo(folders[-1] / name)
        expected.append(rf"{name} .*is a FIFO; expected a regular file")
    found = subprocess.run(
        [sys.executable, "-c", LIMITED, str(run), *map(str, folders)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    for words, line in zip(expected, found.stdout.splitlines(), strict=True):
        assert re.search(words, line), line


def test_a_link_to_a_whole_run_folder_is_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "today").symlink_to(run)
    assert cb.Run.load(tmp_path / "today").metrics["rows"] == 100


def test_a_report_refuses_what_is_no_regular_file(run: Path, tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "plan.svg"):
        place = copied(run, tmp_path / name, name)
        os.mkfifo(place / name)
        with pytest.raises(DataError, match=rf"{name} is a FIFO; expected a regular file"):
            write_report(place)


def test_a_table_folder_holds_regular_files_only(tmp_path: Path) -> None:
    plan = cb.compile(
        cb.View(checkerboard(400), name="log"),
        cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()}),
        device="cpu",
    )
    place = tmp_path / "run"
    with cb.SparseTable(tmp_path / "table", 4) as table:
        cb.Trainer(cb.models.FM(plan.schema, 4), table).fit(plan, batch_size=100, out=place)
    manifest = place / "model" / "table-0.ctrtable" / "MANIFEST"
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(DataError, match=r"MANIFEST is a FIFO"):
        cb.Run.load(place)


def test_deep_json_is_one_error(run: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(run, place)
    (place / "model" / "state.json").write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(DataError, match="damaged"):
        cb.Run.load(place)
