"""The default number of threads counts the cores that this process may use, not those that the machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import _native, col

ROWS = pa.table({"ad": [1, 2, 3], "clicked": [0, 1, 0]})


def limit(root: Path, folder: str, **files: str) -> None:
    where = root / folder
    where.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (where / name.replace("__", ".")).write_text(text)


def test_cores_that_were_taken_away_are_not_counted() -> None:
    allowed = os.sched_getaffinity(0)
    assert 1 <= _native.usable_cores() <= len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert _native.usable_cores() == 1
        features = cb.FeatureSet(label=col("clicked"), sparse={"ad": col("ad").key()})
        assert cb.compile(cb.View(ROWS), features, device="cpu").threads == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_containers_limit_of_cpu_time_is_read_from_its_group_and_the_groups_above(tmp_path: Path) -> None:
    limit(tmp_path, "pod/box", cpu__max="400000 100000\n")
    limit(tmp_path, "pod", cpu__max="150000 100000\n")
    limit(tmp_path, "", cpu__max="max 100000\n")
    assert _native.cgroup_cores("0::/pod/box\n", str(tmp_path)) == 1.5
    assert _native.cgroup_cores("0::/other/box\n", str(tmp_path)) == 0.0


def test_the_older_kind_of_group_is_read_too(tmp_path: Path) -> None:
    limit(tmp_path, "cpu,cpuacct/box", cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")
    limit(tmp_path, "cpu,cpuacct", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert _native.cgroup_cores("5:memory:/box\n4:cpu,cpuacct:/box\n", str(tmp_path)) == 2.5
    assert _native.cgroup_cores("4:cpu,cpuacct:/\n", str(tmp_path)) == 0.0


@pytest.mark.parametrize(
    "text", ["", "\n", "no colons", "0:", "0::", "0::///", "1:cpu", "x:y:z:w", "0::/" + "a/" * 5000]
)
def test_text_that_is_no_list_of_groups_limits_nothing(text: str, tmp_path: Path) -> None:
    assert _native.cgroup_cores(text, str(tmp_path)) == 0.0


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2"])
def test_a_number_of_threads_that_makes_no_sense_is_refused(threads: object) -> None:
    features = cb.FeatureSet(label=col("clicked"), sparse={"ad": col("ad").key()})
    with pytest.raises(cb.errors.PlanError, match="threads"):
        cb.compile(cb.View(ROWS), features, threads=threads)  # type: ignore[arg-type]
