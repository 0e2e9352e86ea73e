"""Commands refuse a URL for an argument that must be a local path, and create nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import ctrbox


@pytest.mark.parametrize(
    "command",
    [
        "train s3://bucket/job.py",
        "tune job.py --out s3://bucket/study",
        "extract job.py -o s3://bucket/features.parquet",
        "show job.py -o s3://bucket/plan.svg",
        "predict runs/a data -o s3://bucket/clicks.parquet",
        "datasets adlog --out s3://bucket/data",
        "publish pack a.ffm -o s3://bucket/a.fbw",
        "publish apply s3://bucket/a.fbw a.patch -o b.fbw",
        "table export s3://bucket/table -o a.parquet",
        "serve model/ --token-file s3://bucket/token",
    ],
)
def test_a_url_is_refused_for_a_local_path(command: str, tmp_path: Path) -> None:
    told = ctrbox(*command.split(), cwd=tmp_path, check=1).stderr
    assert "is a URL, but" in told
    assert "can only be on a local disk" in told
    assert len(told.splitlines()) == 1
    assert not list(tmp_path.iterdir())
