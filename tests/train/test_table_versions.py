"""A run records which versions of its tables it reads, and goes on only with the same ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ctrbox as cb
from ctrbox.errors import DataError
from tests.train.test_run_folder import see_every_step, unfinished  # noqa: F401
from tests.train.worlds import checkerboard, fit, plan_of, weights

deltalake = pytest.importorskip(
    "deltalake", reason="the deltalake package, with which tables are written, is not installed"
)


def test_a_training_goes_on_with_the_version_of_its_table_alone(tmp_path: Path) -> None:
    path, rows = tmp_path / "clicks", checkerboard(6000)
    for start in (0, 3000):
        deltalake.write_deltalake(str(path), rows.slice(start, 3000), mode="append")
    unfinished(plan_of(str(path)), tmp_path / "run")
    deltalake.write_deltalake(str(path), rows.slice(0, 100), mode="append")
    with pytest.raises(DataError, match="differs in version of the table 'clicks': it has 1, but this training has 2"):
        fit(plan_of(str(path)), out=tmp_path / "run")
    pinned = cb.compile(cb.View(path, key="id", version=1).fill(tags=[]), plan_of(str(path)).features, threads=2)
    run = fit(pinned, out=tmp_path / "run")
    assert weights(run) == weights(fit(pinned))
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["table_versions"]
    assert found == {"clicks": {"path": str(path), "format": "delta", "version": 1}}
