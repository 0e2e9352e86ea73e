"""HDFS: a real NameNode and DataNode give the same bytes as local disk, and their death is named."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from ctrbox.errors import SourceError
from ctrbox.views.source import open_source
from tests.views.hdfs.minihdfs import Hdfs, hdfs, why_not

pytestmark = [pytest.mark.hdfs, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

DEATH_NOTICE_S = 30  # three tries of a client that itself tries thrice, with room for a slow machine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


def log(rows: int, first: int = 0) -> pa.Table:
    ids = range(first, first + rows)
    return pa.table({"id": pa.array(ids, pa.int64()), "query": [f"word{i % 31} {i * 7919 % 104729}" for i in ids]})


def rows_of(data: Any, **scan: Any) -> pa.Table:
    return pa.Table.from_batches([morsel.rows for morsel in open_source(data).scan(["id", "query"], **scan)])


@pytest.mark.parametrize("kind", ["parquet", "csv", "arrow"])
def test_hdfs_gives_the_rows_of_local_disk(cluster: Hdfs, tmp_path: Path, kind: str) -> None:
    for day in (1, 2):
        folder = tmp_path / f"day={day}"
        folder.mkdir()
        table = log(60_000, 60_000 * day)  # more than one HDFS block
        if kind == "parquet":
            pq.write_table(table, folder / "a.parquet", row_group_size=9000)
        elif kind == "csv":
            pacsv.write_csv(table, folder / "a.csv")
            (folder / "b.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes()))
        else:
            with pa.ipc.new_file(folder / "a.arrow", table.schema) as out:
                out.write_table(table, max_chunksize=7000)
    url = cluster.put(tmp_path, f"/logs/{kind}")
    for start in (0, 70_001):
        assert rows_of(url, start=start).equals(rows_of(tmp_path, start=start))
    remote, local = open_source(f"{url}/day=*/a.*"), open_source(str(tmp_path / "day=*/a.*"))
    assert remote.schema == local.schema
    assert remote.rows == local.rows
    assert remote.bytes == local.bytes
    assert remote.nullable("id") == local.nullable("id")


def test_missing_paths_on_hdfs_are_named(cluster: Hdfs) -> None:
    cluster.put_bytes("/names/clicks.csv", b"id\n1\n")
    with pytest.raises(SourceError, match=r"names/click\.csv does not exist; nearest: 'clicks\.csv'"):
        open_source(f"{cluster.url}/names/click.csv")


def test_hdfs_killed_in_mid_read_is_named_soon(tmp_path: Path) -> None:
    data, home = tmp_path / "data", tmp_path / "home"
    data.mkdir()
    home.mkdir()
    pq.write_table(log(400_000), data / "big.parquet", row_group_size=10_000, use_dictionary=False)
    with hdfs(home) as cluster:
        source = open_source(cluster.put(data, "/big"))
        scan = source.scan(["id", "query"], rows=10_000)
        seen = [next(scan) for _ in range(3)]
        cluster.kill()
        began = time.monotonic()
        with pytest.raises(SourceError, match=r"hdfs://.*/big/big\.parquet row group .*3 tries"):
            seen.extend(scan)
        assert time.monotonic() - began < DEATH_NOTICE_S
        assert seen[2].start == 20_000


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_file_that_is_replaced_on_hdfs_during_a_pass_is_refused(
    cluster: Hdfs, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("ctrbox.views.text_in_blocks.BLOCK_BYTES", 4096)
    monkeypatch.setattr("ctrbox.views.files_without_row_index.FETCH_BYTES", 4096)

    def put(version: int) -> None:
        sink = pa.BufferOutputStream()
        rows = pa.table({"version": pa.array([version] * 6000, pa.int64()), "row": pa.array(range(6000), pa.int64())})
        if kind == "csv":
            pacsv.write_csv(rows, sink)
        else:
            pq.write_table(rows, sink, row_group_size=500, compression="none", use_dictionary=False)
        cluster.put_bytes(f"/changing/log.{kind}", sink.getvalue().to_pybytes())

    put(1)
    source = open_source(f"{cluster.url}/changing/log.{kind}")
    before = source.fingerprint()
    scan = source.scan(["version"], rows=100, threads=0)
    seen = [next(scan).rows]
    put(2)
    with pytest.raises(SourceError, match=rf"changing/log\.{kind} changed after it was opened.*modification_time"):
        seen.extend(morsel.rows for morsel in scan)
    assert pa.Table.from_batches(seen)["version"].unique().to_pylist() == [1]
    assert open_source(f"{cluster.url}/changing/log.{kind}").fingerprint() != before


def test_table_of_delta_lake_on_hdfs_is_refused(cluster: Hdfs, tmp_path: Path) -> None:
    pq.write_table(log(10), tmp_path / "a.parquet")
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("{}")
    url = cluster.put(tmp_path, "/warehouse/clicks")
    for path in (url, f"{url}/a.parquet", f"{url}/*.parquet"):
        with pytest.raises(
            SourceError, match=r"hdfs://.*/warehouse/clicks is a (table of Delta Lake|Delta Lake table)"
        ):
            open_source(path)
