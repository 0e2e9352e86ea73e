"""What online learning refuses, and in which words: layouts of streams, settings of models, checkpoints, searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox.errors import DataError, PlanError
from ctrbox.ffm.examples_from_text_or_cache import names
from ctrbox.loop.chunk_decoder import row_of_line
from ctrbox.loop.decode_events import Layout
from ctrbox.loop.join import NOWHERE, Join, origin_of
from ctrbox.loop.stream import open_stream

TIME = pa.timestamp("us")
LOG = pa.schema(
    [("id", pa.int64()), ("ts", TIME), ("page.depth", pa.float64()), ("n", pa.int64()), ("f", pa.float64())]
)
COLUMNS = pa.schema([LOG.field("page.depth")])


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        (pa.schema([]), {}, "no feature of the plan reads a column of the log"),
        (
            COLUMNS,
            {"event": "page.depth"},
            "column 'page.depth' contains the kind of the event, but a feature reads it too; choose another column with "
            "event=, or on the command line with --event COLUMN",
        ),
        (COLUMNS, {"time": "tss"}, "the log has no column 'tss' for the time of an event"),
        (COLUMNS, {"id": "idd"}, "the log has no column 'idd' for the id of an impression; nearest: 'id'"),
        (COLUMNS, {"time": "n"}, "column 'n', the event time, is int64 in the log, and its unit is unknown; pass the"),
        (COLUMNS, {"time": "f"}, "column 'f', the event time, is double in the log; expected timestamps, ISO 8601"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(columns: pa.Schema, given: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as told:
        Layout.of(columns, LOG, **{"id": "id", "time": "ts", **given})
    assert str(told.value).startswith(message)
    assert Layout.of(COLUMNS, LOG, id="id", time="n", time_units={"n": "s"}).clock_unit == "s"


def test_a_column_within_another_is_refused() -> None:
    columns = pa.schema([("page", pa.int64()), ("page.depth", pa.int64())])
    log = pa.schema([*columns, ("id", pa.int64()), ("ts", TIME)])
    with pytest.raises(
        PlanError,
        match=r"column 'page\.depth' is nested inside another column that is also read; read "
        "only one of the two",
    ):
        _ = Layout.of(columns, log, id="id", time="ts").nested


def test_a_field_whose_parent_is_no_object_is_refused() -> None:
    layout = Layout.of(COLUMNS, LOG, id="id", time="ts")
    line = b'{"id": 1, "ts": "2026-01-01T00:00:00", "event": "click", "page": %b}'
    assert row_of_line(line % b'{"depth": 0.5}', layout).column("page.depth").to_pylist() == [0.5]
    assert row_of_line(line % b"null", layout).column("page.depth").to_pylist() == [None]
    with pytest.raises(DataError, match=r"column 'page\.depth' is nested in a field that is 7; expected a JSON obj"):
        row_of_line(line % b"7", layout)


def test_names_of_fields_have_a_size() -> None:
    assert names(["ä" * 500]) == ["ä" * 500]
    with pytest.raises(PlanError, match=f"the name of a field has at most 1,000 bytes, got 1,002: '{'ä' * 40}'…"):
        names(["ä" * 501])
    assert len(names([str(k) for k in range(512)])) == 512
    for wrong in (0, 513):
        with pytest.raises(PlanError, match=f"fields= must have 1 to 512 names, got {wrong}"):
            names([str(k) for k in range(wrong)])


# ---- checkpoints


def test_counts_and_origins_of_other_versions() -> None:
    layout = Layout.of(COLUMNS, LOG, id="id", time="ts")
    numbers, held, clicks = Join(layout, 10).state()
    assert origin_of(held) == []
    assert origin_of(pa.table({"a": [1, 2]})) == [NOWHERE, NOWHERE]
    Join(layout, 10).restore(numbers, held, clicks)
    with pytest.raises(DataError, match="the counts of waiting impressions were written by another version of CTRBox"):
        Join(layout, 10).restore({**numbers, "counts": {}}, held, clicks)


# ---- models and searches


@pytest.mark.parametrize("given", [{"ffm_init": None}, {"ffm_init": "much"}])
def test_a_setting_of_the_wrong_type_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="a setting of DeepFFM is of the wrong type or out of range: "):
        cb.DeepFFM(["a"], bits=5, **given)


def test_a_score_that_is_not_finite_names_its_candidate(tmp_path: Path) -> None:
    rows = pa.table({"user": [1, 1], "ad": [1, 2]})
    sparse = {"user": cb.col("user").key(), "ad": cb.col("ad").key()}
    plan = cb.compile(cb.View(rows), cb.FeatureSet(sparse=sparse), device="cpu", threads=1)
    engine = cb.DeepFFM(plan.schema, bits=8, context=["user"])
    batch, one = plan.run(rows), plan.run(rows.slice(0, 1))
    assert len(engine.score(engine.context(one), batch)) == 2
    engine._native.give_weights(np.full(engine._native.weights().shape, 1e30, np.float32))
    with pytest.raises(
        DataError,
        match="the model's output for candidate 0 is not finite; check that no value is too large",
    ):
        engine.score(engine.context(one), batch)


def test_the_running_table_goes_to_a_function_or_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.vw").write_text("1 |a x\n-1 |a z\n" * 200)
    lines: list[str] = []
    for show in (lines.append, True, False):
        engine = cb.DeepFFM(["a"], bits=8)
        engine.progress.window = 100
        engine.learn(cb.ffm.ExampleText(tmp_path / "a.vw"), show=show)
        told = capsys.readouterr().err
        assert bool(told) is (show is True)
    assert len(lines) > 3


@pytest.mark.parametrize("window", [1, 2.0, True, "2"])
def test_windows_of_a_search_have_at_least_two_examples(window: Any, tmp_path: Path) -> None:
    (tmp_path / "t.vw").write_text("1 |a x\n-1 |a z\n")
    rows = cb.ffm.ExampleText(tmp_path / "t.vw", fields=["a"])
    with pytest.raises(PlanError, match=f"window= must be a whole number from 2 to .* got {window!r}"):
        cb.ffm.search(rows, {"a": {"bits": 5}}, window=window)


def test_a_broker_deletes_nothing() -> None:
    layout = Layout.of(COLUMNS, LOG, id="id", time="ts")
    with pytest.raises(
        PlanError,
        match="delete= works only with a folder of chunks; a NATS stream deletes events according to its own retention policy",
    ):
        open_stream("nats://127.0.0.1:1/EVENTS", layout, None, print, delete=True)
    with pytest.raises(PlanError, match="the address of the stream is empty; pass a folder of chunks, or nats://"):
        open_stream(" ", layout, None, print)
