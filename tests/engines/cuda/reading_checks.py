"""Plans whose Parquet columns the device decodes give the CPU engine's batches; bodies of tests, with a fixture `runtime`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cuda.runtime import Runtime
from ctrbox.errors import CtrboxError
from ctrbox.views.files_with_row_index import IndexedFiles
from tests.engines.cuda.plans import assert_same, on_cpu, on_device

__all__ = [
    "test_a_damaged_page_is_the_error_of_the_cpu",
    "test_columns_that_only_the_cpu_decodes_come_from_there",
    "test_ids_below_what_statistics_tell_find_their_rows",
    "test_plans_over_files_equal_the_cpus",
    "test_row_groups_that_are_too_large_are_decoded_by_the_cpu",
]


def rows_of(count: int, first: int, rng: Any) -> pa.Table:
    words = [None, "", "a b", "b c d", '{"a": {"b": 3}}', "word " * 30]
    return pa.table(
        {
            "id": np.arange(first, first + count) * 3,
            "n": pa.array(rng.integers(0, 50, count), mask=rng.random(count) < 0.1),
            "x": rng.random(count).astype(np.float32),
            "when": pa.array(rng.integers(0, 10**15, count), pa.timestamp("us")),
            "text": pa.array([words[k] for k in rng.integers(0, len(words), count)], pa.string()),
            "small": pa.array(rng.integers(-9, 9, count).astype(np.int16), mask=rng.random(count) < 0.1),
            "tiny": pa.array(rng.integers(0, 256, count).astype(np.uint8)),
            "late": pa.array(rng.integers(0, 10**12, count), pa.timestamp("ms")),
            "clicked": rng.integers(0, 2, count),
        }
    )


def write(folder: Path, name: str, counts: list[int], group: int, kept: float, **options: Any) -> Path:
    rng = np.random.default_rng(len(name))
    first = 0
    for number, count in enumerate(counts):
        table = rows_of(count, first, rng)
        if kept < 1:
            table = table.filter(pa.array(rng.random(count) < kept)).rename_columns(
                ["id", *(f"b_{n}" for n in table.column_names[1:])]
            )
        first += count
        (folder / name).mkdir(exist_ok=True)
        pq.write_table(table, folder / name / f"part-{number}.parquet", row_group_size=group, **options)
    return folder / name


def plan(log: Path, basic: Path | None) -> cb.Plan:
    view = cb.View(str(log), key="id").filter(col("n").fill(0) != 7).fill(n=-1, text="none", small=0)
    dense: dict[str, Any] = {"x": col("x"), "small": col("small"), "hour": col("when").hour()}
    dense |= {"tiny": col("tiny"), "late": col("late").hour()}
    sparse: dict[str, Any] = {
        "n": col("n").key(),
        "words": col("text").split(" ").key(),
        "cross": cb.cross("n", "text"),
    }
    if basic is not None:
        view = view.merge(cb.View(str(basic), key="id").fill(b_x=0.0, b_text="", b_n=0))
        dense["bx"] = col("b_x")
        sparse |= {"b": col("b_text").key(), "bn": col("b_n").key()}
    return cb.compile(view, cb.FeatureSet(label=col("clicked"), dense=dense, sparse=sparse))


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("codec", ["lz4", "snappy", "none"])
def test_plans_over_files_equal_the_cpus(tmp_path: Path, runtime: Runtime, codec: str, merged: bool) -> None:
    log = write(tmp_path, "log", [500, 130, 700], 100, 1.0, compression=codec)
    basic = write(tmp_path, "basic", [650, 680], 90, 0.9, compression=codec, use_dictionary=False) if merged else None
    made = plan(log, basic)
    want = list(on_cpu(made).batches(64))
    device = on_device(made, runtime, parquet_bytes=1 << 26, graphs=False)
    for _ in range(2):
        assert_same(list(device.batches(64)), want)
    assert device.readings[0] is not None
    assert device.readings[0].decoded == {"n", "x", "when", "text", "clicked", "small", "tiny"}
    assert set(device.readings[0].reasons) == {"late"}
    if merged:
        assert device.readings[1] is not None
        assert device.readings[1].decoded == {"b_x", "b_text", "b_n"}
    assert_same(list(device.batches(50, start=333, stop=1200)), list(on_cpu(made).batches(50, start=333, stop=1200)))


@pytest.mark.parametrize("least", [-5, 777, None])
def test_ids_below_what_statistics_tell_find_their_rows(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, least: int | None
) -> None:
    """The merged view is read before the first id of the log is known."""
    made = plan(write(tmp_path, "log", [300], 100, 1.0), write(tmp_path, "basic", [300], 90, 0.9))
    want = list(on_cpu(made).batches(64))
    monkeypatch.setattr(IndexedFiles, "least", lambda *_: least)
    device = on_device(made, runtime, parquet_bytes=1 << 26, graphs=False)
    assert_same(list(device.batches(64)), want)


def test_columns_that_only_the_cpu_decodes_come_from_there(tmp_path: Path, runtime: Runtime) -> None:
    log = write(tmp_path, "log", [600], 250, 1.0, compression={"n": "zstd", "x": "lz4", "text": "gzip"})
    made = plan(log, None)
    device = on_device(made, runtime, parquet_bytes=1 << 26, graphs=False)
    assert_same(list(device.batches(64)), list(on_cpu(made).batches(64)))
    assert device.readings[0] is not None
    assert device.readings[0].reasons["n"] == "is compressed with ZSTD, which only the CPU decompresses"
    assert device.readings[0].reasons["text"] == "is compressed with GZIP, which only the CPU decompresses"


def test_a_damaged_page_is_the_error_of_the_cpu(tmp_path: Path, runtime: Runtime) -> None:
    """Bytes of a file are changed; both engines give the same batches and then the same message, if any."""
    log = write(tmp_path, "log", [400], 150, 1.0, compression="lz4")
    file = log / "part-0.parquet"
    whole = file.read_bytes()
    rng = np.random.default_rng(3)
    failed = 0

    def told(extractor: Any) -> tuple[list[Any], str]:
        got: list[Any] = []
        try:
            got.extend(extractor.batches(64))  # what came before the error stays
        except CtrboxError as error:
            return got, str(error)
        return got, ""

    made = plan(log, None)
    made.fit()
    for _ in range(12):
        raw = bytearray(whole)
        for _ in range(3):
            raw[int(rng.integers(4, len(whole) - 6000))] ^= 1 << int(rng.integers(0, 8))
        file.write_bytes(raw)
        changed = plan(log, None)
        _, message = told(on_cpu(changed))
        want, before = told(on_device(changed, runtime, graphs=False))
        got, said = told(on_device(changed, runtime, parquet_bytes=1 << 26, graphs=False))
        assert said == before == message
        assert_same(got, [(batch.cpu(), after) for batch, after in want])
        failed += bool(message)
    assert failed > 1


def test_row_groups_that_are_too_large_are_decoded_by_the_cpu(tmp_path: Path, runtime: Runtime) -> None:
    made = plan(write(tmp_path, "log", [500], 250, 1.0, compression="lz4"), None)
    device = on_device(made, runtime, parquet_bytes=20_000, graphs=False)
    assert_same(list(device.batches(64)), list(on_cpu(made).batches(64)))
    assert device.readings[0] is not None
    assert not device.readings[0].decoded
    assert "too large for the 20,000 bytes" in device.readings[0].reasons["x"]
