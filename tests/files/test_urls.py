"""URLs and local paths: what is told from what, and that no call takes s3://bucket/run for a local folder called s3:."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.errors import PlanError
from ctrbox.files.atomic import locked, written_aside
from ctrbox.files.urls import local_path, readable_url, refuse_url, stored_url, url_of
from tests.train.worlds import Small, checkerboard, plan_of

URL = "s3://bucket/place"


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        (Path("s3://bucket/run"), "s3://bucket/run"),
        ("hdfs://name:9000/run", "hdfs://name:9000/run"),
        (Path("file:///data/run"), "file:///data/run"),
        ("runs/today", None),
        ("runs/s3://bucket", None),
        ("/s3:/bucket", None),
        ("c:/run", None),
        ("run:today", None),
        (b"s3://bucket", None),
    ],
)
def test_a_url_is_told_from_a_local_path(path: str | Path, url: str | None) -> None:
    assert url_of(path) == url


def test_a_file_url_is_answered_with_the_plain_path() -> None:
    with pytest.raises(PlanError, match=r"a saved plan needs a plain path; write it as /data/a\.plan"):
        refuse_url("file:///data/a.plan", "a saved plan")
    assert local_path("/data/a.plan", "a saved plan") == Path("/data/a.plan")


@pytest.mark.parametrize(
    ("path", "stored", "readable"),
    [
        ("runs/today", None, None),
        ("s3://bucket/run", "s3://bucket/run", "s3://bucket/run"),
        (Path("s3a://bucket/run"), "s3a://bucket/run", "s3a://bucket/run"),
        ("viewfs://n/run", "viewfs://n/run", "viewfs://n/run"),
        ("https://host/run", "", "https://host/run"),
        (Path("http://host/run"), "", "http://host/run"),
    ],
)
def test_folders_are_kept_in_stores_and_read_from_web_servers_too(
    path: str | Path, stored: str | None, readable: str | None
) -> None:
    assert readable_url(path, "a run folder") == readable
    if stored != "":
        assert stored_url(path, "a run folder") == stored
        return
    with pytest.raises(PlanError) as caught:
        stored_url(path, "a run folder")
    assert str(caught.value) == (
        f"{readable} is a URL, but a run folder can only be on a local disk, on s3:// or on hdfs://"
    )


@pytest.mark.parametrize("path", ["FILE:///data/run", Path("file:///data/run")])
def test_a_file_url_is_answered_with_its_path_wherever_folders_are_kept(path: str | Path) -> None:
    for kept in (stored_url, readable_url):
        with pytest.raises(PlanError, match=r"is a URL, but a run folder needs a plain path; write it as /data/run$"):
            kept(path, "a run folder")
    with pytest.raises(
        PlanError, match=r"^file://host/run is a URL, but a run folder can only be on a local disk; use a"
    ):
        stored_url("file://host/run", "a run folder")


def write(path: str) -> None:
    with written_aside(Path(path)):
        pass


def lock(path: str) -> None:
    with locked(Path(path), "write"):
        pass


def engine() -> cb.DeepFFM:
    return cb.DeepFFM(["a"], bits=8)


def plan() -> cb.Plan:
    return plan_of(checkerboard(64))


def table() -> cb.tables.MemoryTable:
    return cb.tables.MemoryTable(dim=2)


CALLS: dict[str, Callable[[str], object]] = {
    "written_aside": write,
    "locked": lock,
    "fit(warm_from=)": lambda path: cb.Trainer(Small(plan().schema), table()).fit(
        plan(), warm_up="full", warm_from=path
    ),
    "plan.save": lambda path: plan().save(path),
    "Plan.load": cb.Plan.load,
    "plan.show": lambda path: plan().show(path),
    "MemoryTable.save": lambda path: table().save(path),
    "MemoryTable.load": cb.tables.MemoryTable.load,
    "SparseTable": lambda path: cb.SparseTable(path, dim=2, ram="16MB"),
    "SparseTable.load": cb.SparseTable.load,
    "SparseTables": lambda path: cb.tables.SparseTables(path, dims={"a": 2}, ram="64MB"),
    "write_vectors": lambda path: cb.tables.write_vectors(
        path, {"key": [1], "vector": np.zeros((1, 2), np.float32)}, key="key", vector="vector"
    ),
    "ModelServer": lambda path: cb.tables.ModelServer(path, cb.tables.ImageEmbedding(2, (2,))),
    "DeepFFM.save": lambda path: engine().save(path),
    "DeepFFM.load": cb.DeepFFM.load,
    "ExampleCache": cb.ffm.ExampleCache,
    "ExampleText": lambda path: list(cb.ffm.ExampleText(path)),
    "publish.pack": lambda path: cb.publish.pack(engine(), path),
    "publish.pack of": lambda path: cb.publish.pack(path, "new.fbw"),
    "publish.diff": lambda path: cb.publish.diff(path, path, "a.patch"),
    "publish.apply": lambda path: cb.publish.apply(path, path, "new.fbw"),
    "Classifier.load": lambda path: cb.Classifier.load(path),
    "adlog": lambda path: cb.datasets.adlog(rows=10, out=path),
    "movielens": lambda path: cb.datasets.movielens(path),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_url_is_refused_where_only_local_paths_are_supported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlanError, match=f"{URL} is a URL, but .* can only be on a local disk; use a local path"):
        CALLS[name](URL)
    assert not list(tmp_path.iterdir())


STORED: dict[str, Callable[[str], object]] = {
    "fit(out=)": lambda path: cb.Trainer(Small(plan().schema), table()).fit(plan(), out=path),
    "fit(out=Path)": lambda path: cb.Trainer(Small(plan().schema), table()).fit(plan(), out=Path(path)),
    "Run.load": cb.Run.load,
    "plan.materialize": lambda path: plan().materialize(path),
    "Published": cb.publish.Published,
    "serve.create": lambda path: cb.serve.create(path, plan(), engine(), context=[]),
    "ModelFolder.open": cb.serve.ModelFolder.open,
}


@pytest.mark.parametrize("name", STORED)
def test_a_store_that_is_neither_s3_nor_hdfs_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = "gs://bucket/place is a URL, but .* can only be on a local disk, on s3:// or on hdfs://"
    with pytest.raises(PlanError, match=told):
        STORED[name]("gs://bucket/place")
    with pytest.raises(PlanError, match="needs a plain path; write it as /data/place"):
        STORED[name]("file:///data/place")
    with pytest.raises(PlanError, match="has options after '\\?'"):
        STORED[name]("s3://bucket/place?endpoint=elsewhere")
    assert not list(tmp_path.iterdir())
