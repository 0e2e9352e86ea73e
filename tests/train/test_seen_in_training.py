"""Evaluating a run on the log that it was trained on is warned of; its held-back rows, other logs and streams are not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.train.seen_in_training import log_marks
from tests.train.worlds import checkerboard, plan_of

TRAINED_ON = "is the log that this run was trained on: the model has learned from rows of it"


def fit(plan: cb.Plan, **settings: Any) -> cb.Run:
    return cb.Trainer(cb.models.LR(plan.schema), threads=2).fit(plan, batch_size=128, **settings)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("same_log")
    pq.write_table(checkerboard(1000), place / "log.parquet")
    pq.write_table(checkerboard(1000).slice(800), place / "end.parquet")
    fit(plan_of(str(place / "log.parquet")), out=place / "run")
    return place


def silently(work: Any) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return dict(work())


def test_a_loaded_run_warns_of_its_own_log_and_names_the_held_back_rows(world: Path) -> None:
    run = cb.Run.load(world / "run", allow_views=[str(world)])
    with pytest.warns(UserWarning, match=TRAINED_ON + r".*on the 100 rows that the run held back .*run\.evaluate\(\)"):
        assert run.evaluate(world / "log.parquet")["rows"] == 1000


def test_rows_that_were_held_back_and_other_logs_are_evaluated_without_a_warning(world: Path) -> None:
    run = cb.Run.load(world / "run", allow_views=[str(world)])
    assert silently(run.evaluate)["rows"] == 100
    assert silently(lambda: run.evaluate(world / "end.parquet"))["rows"] == 200


def test_separate_validation_rows_are_evaluated_without_a_warning(world: Path, tmp_path: Path) -> None:
    plan = plan_of(str(world / "log.parquet"))
    fit(plan, valid=plan.over(world / "end.parquet"), out=tmp_path / "run")
    run = cb.Run.load(tmp_path / "run", allow_views=[str(world)])
    assert silently(lambda: run.evaluate(world / "end.parquet"))["rows"] == 200
    with pytest.warns(UserWarning, match=TRAINED_ON + ".*Measure it on rows that it has not seen"):
        run.evaluate(world / "log.parquet")


def test_a_copy_of_the_log_and_some_of_its_files_are_warned_of(tmp_path: Path) -> None:
    for k in range(3):
        pq.write_table(checkerboard(1000).slice(k * 300, 300), tmp_path / f"day{k}.parquet")
    for source, name in ((0, "copy0"), (1, "copy1")):
        (tmp_path / f"{name}.parquet").write_bytes((tmp_path / f"day{source}.parquet").read_bytes())
    fit(plan_of(str(tmp_path / "day[01].parquet")), out=tmp_path / "run")
    run = cb.Run.load(tmp_path / "run", allow_views=[str(tmp_path)])
    with pytest.warns(UserWarning, match=r"2 of the 2 files of .*copy\* have the same content as files of the log"):
        run.evaluate(str(tmp_path / "copy*"))
    with pytest.warns(UserWarning, match=r"1 of the 2 files of .* \([45].% of the bytes\): the model has learned"):
        run.evaluate(str(tmp_path / "day[12].parquet"))
    with pytest.warns(
        UserWarning, match=r"copy1.parquet has the same content as files of the log .* \(100% of the bytes"
    ):
        run.evaluate(tmp_path / "copy1.parquet")
    assert silently(lambda: run.evaluate(tmp_path / "day2.parquet"))["rows"] == 300


def test_a_log_that_is_gone_when_the_training_ends_has_no_marks(tmp_path: Path) -> None:
    pq.write_table(checkerboard(100), tmp_path / "log.parquet")
    plan = plan_of(str(tmp_path / "log.parquet"))
    assert len(log_marks(plan)) == 1
    (tmp_path / "log.parquet").unlink()
    assert log_marks(plan) == []
    assert log_marks(plan_of(checkerboard(100))) == []


def test_a_run_in_memory_knows_the_table_that_it_was_trained_on() -> None:
    table = checkerboard(500)
    run = fit(plan_of(table))
    with pytest.warns(UserWarning, match=TRAINED_ON):
        run.evaluate(table)
    silently(lambda: run.evaluate(table.slice(250)))


class Stream:
    """Rows that are handed out anew for each scan, by an object that cannot tell what they are."""

    streaming = True

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def test_two_streams_that_cannot_tell_their_content_are_not_taken_for_one_log() -> None:
    table = checkerboard(500)
    table = table.cast(pa.schema([field.with_nullable(field.name == "tags") for field in table.schema]))
    held = plan_of(table).over(Stream(table.slice(400)))
    run = fit(plan_of(Stream(table.slice(0, 400))), valid=held)
    silently(lambda: run.evaluate(Stream(table.slice(400))))
