"""Parquet columns that the device decodes, in whole plans, run on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import ctrbox as cb
from ctrbox.plan.placement.device_description import PARQUET_SWITCH
from tests.engines.cuda.reading_checks import *  # noqa: F403  # the test bodies
from tests.engines.cuda.reading_checks import plan, write


def test_explain_says_which_columns_the_cpu_decodes_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write(tmp_path, "log", [60], 25, 1.0, compression={"n": "zstd", "x": "lz4"})
    made = plan(log, write(tmp_path, "basic", [60], 25, 0.9))
    gpu = cb.types.Device("cuda", memory="80GB")
    monkeypatch.delenv(PARQUET_SWITCH, raising=False)
    assert "decoded by the GPU" not in made.explain(device=gpu)
    monkeypatch.setenv(PARQUET_SWITCH, "1")
    assert "decoded by the GPU" not in made.explain(device="cpu")
    told = made.explain(device=gpu)
    assert "decoded by the GPU: 6 of these columns" in told
    assert "decoded by the CPU: id, because it holds the ids by which views are merged" in told
    assert "decoded by the CPU: late, because it is stored as timestamp[ms], which the CPU converts" in told
    assert "decoded by the CPU: n, because it is compressed with ZSTD, which only the CPU decompresses" in told
    sources = made.explain(device=gpu, json=True)["frames"][0]["sources"]
    assert [set(source["decoded_by_cpu"]) for source in sources] == [{"id", "late", "n"}, {"id"}]
