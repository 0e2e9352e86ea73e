"""Conversions and the stream of events of a small synthetic log, compared with figures that are kept, as in test_kept_log.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrbox.datasets import adlog, adlog_events, write_adlog
from ctrbox.datasets.write_adlog import AdLog
from ctrbox.datasets.write_adlog_events import encoded
from ctrbox.errors import DataError, WriteError
from tests.datasets.test_kept_log import FILE, figures, probe

CONVERSIONS: dict[str, dict[str, list[Any]]] = {
    "conversions": {"instance_id": [0, 3374206.0, 163596700.0], "converted": [1244, 67.0, 2997.0]},
    "conversion_truth": {
        "instance_id": [0, 3374206.0, 163596700.0],
        "p_convert": [0, 354.4876, 17115.92],
        "would_convert": [0, 338.0, 16510.0],
    },
    "conversion_delays": {
        "instance_id": [0, 3374206.0, 163596700.0],
        "age": [0, 50991.89, 2441419.0],
        "delay": [1433, 1787.562, 89940.48],
        "delay_by_category": [1433, 1393.88, 68323.42],
    },
}
EVENTS: dict[str, list[Any]] = {
    "instance_id": [0, 1418455.0, 69367260.0],
    "ts": [0, 90865140.0, 4445549000.0],
    "event": [0, 3809568863],
    "query": [168, 4024599359],
    "price": [163, 413.9214, 20359.97],
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> AdLog:
    seen: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_adlog, "BLOCK", 1000)
        place = tmp_path_factory.mktemp("kept") / "log"
        made = adlog(
            1_500, 5, place, users=150, ads=80, days=3, conversions=True, progress=lambda *told: seen.append(told)
        )
    assert seen == [(1_000, 1_500), (1_500, 1_500)]
    return made


@pytest.fixture
def same_numbers() -> None:
    if probe() != json.loads(FILE.read_text())["probe"]:
        pytest.skip("this version of NumPy draws other random numbers than the one that the kept figures are of")


@pytest.mark.usefixtures("same_numbers")
def test_the_conversions_of_a_seed_are_those_that_are_kept(log: AdLog) -> None:
    for view, kept in CONVERSIONS.items():
        files = sorted((log.path / view).iterdir())
        assert [file.name for file in files] == ["part-00000.parquet", "part-00001.parquet"]
        table = pq.read_table(log.path / view)
        assert table.column_names == list(kept)
        for name, expected in kept.items():
            assert figures(table[name]) == pytest.approx(expected, rel=1e-5), f"{view}.{name}"
    assert log.best_convert_auc == pytest.approx(0.6683645265734818, abs=1e-5)


@pytest.mark.usefixtures("same_numbers")
def test_the_events_of_a_seed_are_those_that_are_kept(log: AdLog, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"chunk_rows": 300, "rows": 900, "click_delay_s": 30.0, "disorder_s": 60.0, "seed": 3}
    assert adlog_events(log.path, tmp_path / "events", **asked) == 1044
    files = sorted((tmp_path / "events").iterdir())
    assert [(file.name, pq.read_metadata(file).num_rows) for file in files] == [
        ("chunk-000000.parquet", 300),
        ("chunk-000001.parquet", 300),
        ("chunk-000002.parquet", 300),
        ("chunk-000003.parquet", 144),
    ]
    table = pa.concat_tables([pq.read_table(file) for file in files])
    assert table.column_names == [name for name in write_adlog.IMPRESSIONS.names if name != "clicked"] + ["event"]
    for name, expected in EVENTS.items():
        assert figures(table[name]) == pytest.approx(expected, rel=1e-5), name


@pytest.mark.usefixtures("same_numbers")
def test_a_stream_of_lines_has_the_columns_that_an_event_has(log: AdLog, tmp_path: Path) -> None:
    assert adlog_events(log.path, tmp_path, chunk_rows=5, rows=3, format="jsonl") == 4
    (file,) = tmp_path.iterdir()
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [(row["instance_id"], row["ts"], row["event"]) for row in rows] == [
        (1, "2024-03-01T00:03:40.471325", "impression"),
        (5, "2024-03-01T00:09:58.287358", "impression"),
        (6, "2024-03-01T00:14:02.980075", "impression"),
        (6, "2024-03-01T00:14:44.275989", "click"),
    ]
    assert rows[1]["query"] == "札 謎"
    assert "札" in file.read_text(encoding="utf-8")
    assert list(rows[3]) == ["instance_id", "ts", "event"]


def test_every_format_of_a_chunk_holds_its_events() -> None:
    events = pa.table({"id": [1, 2], "ts": pa.array([0, None], pa.timestamp("us")), "query": ["ü", None]})
    assert pq.read_table(pa.BufferReader(encoded(events, "parquet"))).equals(events)
    assert pa.ipc.open_file(encoded(events, "arrow")).read_all().equals(events)
    assert encoded(events, "jsonl").decode() == '{"id": 1, "ts": "1970-01-01T00:00:00", "query": "ü"}\n{"id": 2}\n'


@pytest.mark.parametrize("rows", [1, 1000, 1001, 2000])
def test_so_many_impressions_are_used(log: AdLog, tmp_path: Path, rows: int) -> None:
    adlog_events(log.path, tmp_path / "events", rows=rows, chunk_rows=700)
    files = sorted((tmp_path / "events").iterdir())
    kinds = [kind for file in files for kind in pq.read_table(file)["event"].to_pylist()]
    assert kinds.count("impression") == min(rows, 1500)
    assert all(pq.read_metadata(file).num_rows == 700 for file in files[:-1])


def test_a_folder_without_a_log_is_told_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "impressions").mkdir()
    with pytest.raises(DataError) as caught:
        adlog_events(tmp_path, tmp_path / "events")
    assert (
        str(caught.value) == f"{tmp_path} does not contain an ad log; make one: ctrbox datasets adlog --out {tmp_path}"
    )


# ---- logs that are there already


def test_another_log_is_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    first = adlog(100, 1, tmp_path / "log", users=20, ads=20)
    assert adlog(100, 1, tmp_path / "log", users=20, ads=20, overwrite=False) == first
    with pytest.raises(DataError) as caught:
        adlog(101, 2, tmp_path / "log", users=20, ads=20, conversions=True, overwrite=False)
    assert str(caught.value) == (
        f"{tmp_path}/log holds another ad log (rows=100, seed=1, conversions=False, delays=False); choose another folder, or "
        "replace it with overwrite=True"
    )
    found = json.loads((tmp_path / "log" / "adlog.json").read_text())
    assert (found["rows"], found["version"]) == (100, write_adlog.VERSION)


def test_what_is_no_log_is_not_replaced_and_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        DataError,
        match=r"file exists and is not the folder of a generated ad log, so it is not replaced; choose another",
    ):
        adlog(10, 0, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert adlog(10, 0, tmp_path / "empty").rows == 10
    for text in ("5", "{", '{"rows": 10}'):  # none of these says what a log is
        (tmp_path / "empty" / "adlog.json").write_text(text)
        with pytest.raises(DataError, match="empty exists and is not the folder of a generated ad log"):
            adlog(10, 0, tmp_path / "empty")


def test_a_first_log_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(write_adlog, "_swap", full)
    with pytest.raises(WriteError, match=r"^cannot write .*log: the disk is gone; no partial output was kept$"):
        adlog(10, 0, tmp_path / "log")
    assert list(tmp_path.iterdir()) == []


def test_a_log_from_before_a_setting_existed_has_its_default(tmp_path: Path) -> None:
    adlog(10, 0, tmp_path / "log", users=20, ads=20)
    file = tmp_path / "log" / "adlog.json"
    old = {name: value for name, value in json.loads(file.read_text()).items() if name not in ("images", "delays")}
    file.write_text(json.dumps(old))
    stamp = file.stat().st_mtime_ns
    assert adlog(10, 0, tmp_path / "log", users=20, ads=20).image_width == 0
    assert file.stat().st_mtime_ns == stamp
