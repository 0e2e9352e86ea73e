"""What is told at the end of a training, line by line, from a summary made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctrbox.cli.training_summary import Done, finish, stalls, told_of

STAGE = {"name": "read", "seconds": 2.0, "rows": 4000, "utilization": 0.5, "for_input": 0.0, "for_room": 0.0}
SUMMARY: dict[str, Any] = {
    "metrics": {},
    "rows": {"train": 9000},
    "epochs": 2,
    "steps": 40,
    "batch_size": 500,
    "seconds": 3.25,
    "rows_per_second": 5538.0,
    "table": {"keys": 1234},
    "settings": {},
    "best_step": 20,
    "stages": [STAGE, {**STAGE, "name": "wait", "seconds": 0.0}, {**STAGE, "name": "train", "rows": 0}],
    "bottleneck": "read",
    "pipeline": {"sequential": 5.0, "slowest": 3.0, "seconds": 3.5},
    "tables": [{"name": "table", "asked": 5000, "hit_rate": None}],
    "servers": [
        {"fields": ["ad", "seen"], "missing": 3, "missing_share": 0.125, "data": "images.ctrvec"},
        {"fields": ["text"], "missing": 0, "missing_share": 0.0, "data": "texts.ctrvec"},
    ],
    "warnings": {"nulls": 7, "none": 0},
    "look_ahead": 8,
    "intermediate_bytes": 1000,
}
METRICS = {"rows": 100.0, "clicks": 20.0, "auc": 0.75, "logloss": 0.4}
END = (
    "the validation metrics were best after step 20; with --patience 1, training stops after the first evaluation that is "
    "not better, and keeps the best weights"
)


def lines(capsys: pytest.CaptureFixture[str], as_json: bool = False, **changed: Any) -> tuple[str, list[str]]:
    run = SimpleNamespace(summary={**SUMMARY, **changed})
    finish(Done(run, Path("runs/job"), Path("runs/job/report.html")), as_json)
    found = capsys.readouterr()
    return found.out, [" ".join(line.split()) for line in found.err.splitlines()]


def test_every_line_of_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    out, told = lines(capsys)
    assert out == "runs/job\n"
    assert told == [
        "no metrics, because there are no validation rows; add --valid 0.1",
        "learned from 4,500 rows, 2 epochs, in 40 steps of 500 and 3.2 s (5,538 rows/s), 1,234 keys in the table",
        END,
        "read 2.00 s busy 2,000 rows/s 50% ← bottleneck",
        "wait 0.00 s busy 50%",
        "train 2.00 s busy 50%",
        "all stages one after the other: 5.00 s; the slowest stage alone: 3.00 s; all stages in parallel: 3.50 s",
        "table: 5,000 keys looked up",
        "Model Server of ad, seen: 12.5% of the keys have no row in images.ctrvec",
        "warning: nulls: 7 values lost, counted over all epochs",
        "intermediate files: 1,000 bytes, for batches that were read ahead (--look-ahead 8)",
        "report: runs/job/report.html",
    ]


def test_the_end_as_json_keeps_the_words_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    out, told = lines(capsys, as_json=True)
    found = json.loads(out)
    assert (found["run"], found["report"], found["steps"]) == ("runs/job", "runs/job/report.html", 40)
    assert told[-1] == "report: runs/job/report.html"


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({"best_step": 0}, False),
        ({"best_step": 1}, True),
        ({"best_step": 39}, True),
        ({"best_step": 40}, False),
        ({"settings": {"patience": 1}}, False),
    ],
)
def test_patience_is_advised_where_it_would_have_helped(
    changed: dict[str, Any], shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    told = lines(capsys, **changed)[1]
    assert any("--patience 1, training stops after the first evaluation" in line for line in told) is shown


def test_a_short_training_tells_less(capsys: pytest.CaptureFixture[str]) -> None:
    less = {"epochs": 1, "pipeline": {"seconds": 0}, "look_ahead": None, "servers": [], "warnings": {}, "tables": []}
    told = lines(capsys, **less)[1]
    assert "learned from 9,000 rows in 40 steps" in told[1]
    assert told[-2] == "intermediate files: 1,000 bytes"
    assert not any("one after the other" in line or "warning" in line for line in told)


def test_what_a_stage_waited_for_from_five_milliseconds_on() -> None:
    assert stalls({"for_input": 0.0049, "for_room": 0.0}) == ""
    assert stalls({"for_input": 0.005, "for_room": 0.0}) == "  waited 0.01 s for input"
    both = {"for_input": 1.0, "for_room": 2.0, "queue": 1.5, "queue_most": 4}
    assert stalls(both) == "  waited 1.00 s for input and 2.00 s for room  queue 1.5, most 4"


def test_what_was_asked_of_a_table() -> None:
    table = {"name": "table 0", "path": "params", "asked": 5000, "hit_rate": 0.75, "new": 1200, "disk_bytes": 0}
    reads = {"reads": 50, "reads_per_key": 0.01, "false_positives": 3}
    told = told_of(table | reads)
    assert told.startswith(
        "table 0 (params): 5,000 keys looked up, 75.0% of the known keys found in memory, 1,200 new keys, "
    )
    assert "0.010 pages read per key (3 false positives of filters)" in told
    assert told.endswith(" on disk")


def test_joins_that_found_no_row_and_the_distance_to_the_best_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    joins = [
        {"view": "users", "on": ["user", "day"], "keys": 4000, "missed": 1000},
        {"view": "ads", "on": ["ad"], "keys": 10, "missed": 0},
    ]
    told = lines(capsys, joins=joins)[1]
    assert [line for line in told if line.startswith("join with view")] == [
        "join with view users on user, day: 25.0% of 4,000 keys have no row in this view"
    ]
    told = lines(capsys, metrics={**METRICS, "best_auc": 0.81})[1]
    assert "best possible AUC 0.8100; this model is 0.0600 below it" in told
    assert not [line for line in lines(capsys, metrics=METRICS)[1] if "best possible" in line]
