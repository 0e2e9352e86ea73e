"""The ad log as a stream of events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctrbox.datasets import adlog, adlog_events
from ctrbox.errors import DataError, PlanError


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("log") / "data"
    adlog(rows=3_000, seed=2, out=place, days=1)
    return place


def test_every_impression_and_every_click_is_there_once_in_order_but_for_the_disorder(
    log: Path, tmp_path: Path
) -> None:
    events = adlog_events(log, tmp_path / "events", chunk_rows=250, click_delay_s=600, disorder_s=30)
    files = sorted((tmp_path / "events").iterdir())
    assert [f.name for f in files] == [f"chunk-{n:06}.parquet" for n in range(len(files))]
    parts = [pq.read_table(f) for f in files]
    assert all(len(p) == 250 for p in parts[:-1])
    rows = [r for p in parts for r in p.to_pylist()]
    assert len(rows) == events
    known = {r["instance_id"]: r for r in pq.read_table(log / "impressions").to_pylist()}
    shown = [r for r in rows if r["event"] == "impression"]
    clicks = [r for r in rows if r["event"] == "click"]
    assert sorted(r["instance_id"] for r in shown) == sorted(known)
    assert sorted(r["instance_id"] for r in clicks) == sorted(n for n, r in known.items() if r["clicked"])
    assert all(r["ts"] > known[r["instance_id"]]["ts"] for r in clicks)
    plain = {k: v for k, v in known[shown[5]["instance_id"]].items() if k != "clicked"}
    assert {k: v for k, v in shown[5].items() if k != "event"} == plain
    times = np.array([r["ts"].timestamp() for r in rows])
    assert (np.maximum.accumulate(times) - times).max() <= 30
    assert (np.diff(times) < 0).any()


def test_the_same_seed_gives_the_same_stream_and_formats_agree(log: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        adlog_events(log, tmp_path / name, rows=500, format="jsonl")
    assert [p.read_bytes() for p in sorted((tmp_path / "a").iterdir())] == [
        p.read_bytes() for p in sorted((tmp_path / "b").iterdir())
    ]
    with pytest.raises(DataError, match="format must be one of parquet, arrow, jsonl"):
        adlog_events(log, tmp_path / "c", format="csv")
    for name, given in (("chunk_rows", 0), ("chunk_rows", -5), ("rows", 0)):
        with pytest.raises(PlanError, match=f"{name}= must be a whole number"):
            adlog_events(log, tmp_path / "c", **{name: given})
    with pytest.raises(DataError, match="does not contain an ad log"):
        adlog_events(tmp_path / "nothing", tmp_path / "c")
