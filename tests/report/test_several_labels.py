"""Metrics of several labels on the terminal and in the report: every line worked out by hand."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path
from typing import Any

import pytest

from ctrbox.report.read_recorded_files import Fields
from ctrbox.report.run_in_notebook import for_notebook
from ctrbox.report.several_labels import brief_tasks, by_task, task_table, tasks_shown

PLAIN = {
    "loss": 0.75,
    "rows": 1200.0,
    "click.rows": 1200.0,
    "click.auc": 0.625,
    "click.auc_low": 0.5,
    "click.auc_high": 0.75,
    "click.logloss": 0.25,
    "watch.rows": 40.0,
    "watch.rmse": 1.5,
    "watch.rmse_low": 1.25,
}
WEIGHTED = {**PLAIN, "click.weighted_auc": 0.375, "click.weighted_logloss": math.nan}


def test_metrics_are_grouped_by_the_label_before_the_dot() -> None:
    assert by_task({"loss": 1.0, "a.auc": 0.5, "a.b.c": 2.0, "b.auc": 0.25}) == {
        "a": {"auc": 0.5, "b.c": 2.0},
        "b": {"auc": 0.25},
    }
    assert by_task({"auc": 0.5}) == {}


def test_the_line_has_the_loss_and_the_finite_main_figures_of_each_label() -> None:
    assert brief_tasks(PLAIN) == "loss 0.7500  click: AUC 0.6250 log loss 0.2500  watch: RMSE 1.5000"
    assert brief_tasks({"a.auc": math.nan, "a.rows": 0.0}) == "a: not observed"


def test_the_table_has_a_line_for_each_figure_of_each_label() -> None:
    assert [re.split(r"\s{2,}", line.strip()) for line in task_table(PLAIN)] == [
        ["95 % interval"],
        ["click", "rows observed", "1,200"],
        ["click", "AUC", "0.6250", "0.5000 to 0.7500"],
        ["click", "log loss", "0.2500"],
        ["watch", "rows observed", "40"],
        ["watch", "RMSE", "1.5000"],  # an interval with one end is none
        ["all", "loss", "0.7500"],
        ["all", "rows", "1,200"],
    ]


def test_the_table_has_a_column_by_weight_where_any_label_has_weighted_metrics() -> None:
    lines = task_table(WEIGHTED)
    assert lines[0].endswith("  95 % interval         by weight")
    begin = lines[0].index("by weight")
    assert [line[begin:] for line in lines[1:]] == ["", "0.3750", "", "", "", "", ""]
    assert [line[:begin].rstrip() for line in lines[1:]] == task_table(PLAIN)[1:]


@pytest.mark.parametrize("metrics", [{"auc": 0.5, "loss": 1.0}, {}])
def test_the_report_has_no_section_of_labels_for_a_run_with_one(metrics: dict[str, float]) -> None:
    assert tasks_shown(Fields({"metrics": metrics}, Path("summary.json"))) == ""


def test_the_section_of_labels_has_the_figures_of_the_table() -> None:
    metrics: dict[str, Any] = {**PLAIN, "click.gauc": None}
    page = tasks_shown(Fields({"metrics": metrics}, Path("summary.json")))
    cells = [re.sub(r"<[^>]+>", "", one) for one in re.findall(r"<td[^>]*>(.*?)</td>", page)]
    assert [cells[k : k + 4] for k in range(0, len(cells), 4)] == [
        ["click", "rows observed", "1,200", ""],
        ["click", "AUC", "0.6250", "0.5000 to 0.7500"],
        ["click", "log loss", "0.2500", ""],
        ["watch", "rows observed", "40", ""],
        ["watch", "RMSE", "1.5000", ""],
    ]


@pytest.mark.parametrize(
    ("young", "told"),
    [
        ([], None),
        (["buy"], "Conversions of 'buy' arrive late: these metrics count only rows that are as old as the window of the label"),
        (["buy", "sign"], "Conversions of 'buy' and 'sign' arrive late: these metrics count only rows that are as old as the"),
    ],
)  # fmt: skip
def test_labels_that_arrive_late_are_named_in_their_section(young: list[str], told: str | None) -> None:
    metrics = {"click.auc": 0.5, **{f"{name}.young_rows": 7.0 for name in young}}
    words = html.unescape(tasks_shown(Fields({"metrics": metrics}, Path("summary.json"))))
    assert ("arrive late" in words) == bool(young)
    assert told is None or told in words


def cells_of(page: str) -> dict[str, str]:
    return dict(re.findall(r'<tr><td class="muted">(.*?)</td><td>(.*?)</td></tr>', page))


def test_a_run_in_a_notebook_shows_the_figures_that_are_numbers() -> None:
    one = for_notebook("Run", {"auc": 0.5, "gauc": math.nan, "logloss": 0.25, "rig": 0.1, "rows": 1200.0}, None)
    assert cells_of(one) == {"AUC": "0.5000", "log loss": "0.2500", "validation rows": "1,200"}
    assert "This run has no folder (out=), so there is no learning curve." in one
    assert cells_of(for_notebook("Run", {**PLAIN, "watch.deviance": math.inf}, None)) == {
        "click AUC": "0.6250",
        "click log loss": "0.2500",
        "watch RMSE": "1.5000",
        "validation rows": "1,200",
    }
    assert cells_of(for_notebook("Run", {}, None)) == {}
    assert "there is no run folder nowhere" in for_notebook("Run", {"auc": 0.5}, Path("nowhere"))
