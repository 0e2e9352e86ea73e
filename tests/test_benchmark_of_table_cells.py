"""The log of finished cells: a benchmark that was stopped continues, and a damaged line costs one cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import frappe, quality
from benchmarks.table_cells_in_processes import Cells, key_of


def work(seen: list[int], seeds: int) -> Any:
    def run(seed: int) -> dict[str, Any]:
        seen.append(seed)
        return {"auc": seed / 10}

    return [({"model": "LR", "seed": seed}, run, (seed,)) for seed in range(seeds)]


def test_a_finished_cell_is_not_run_again(tmp_path: Path) -> None:
    log, seen = tmp_path / "log.jsonl", []
    Cells(log).run(work(seen, 2), 1)
    again = Cells(log)
    again.run(work(seen, 3), 1)
    assert seen == [0, 1, 2]
    assert again.get({"seed": 1, "model": "LR"}) == {"auc": 0.1}
    assert again.get({"seed": 3, "model": "LR"}) is None
    assert len(log.read_text().splitlines()) == 3


@pytest.mark.parametrize("end", ['{"cell": {"model": "LR", "se', "null", "[1]", '{"cell": 1}', "\ufffd"])
def test_a_line_that_was_cut_off_is_run_again_and_spoils_no_other(tmp_path: Path, end: str) -> None:
    log, seen = tmp_path / "log.jsonl", []
    Cells(log).run(work(seen, 1), 1)
    with log.open("a") as file:
        file.write(end)
    Cells(log).run(work(seen, 2), 1)
    assert seen == [0, 1]
    assert Cells(log).get({"model": "LR", "seed": 1}) == {"auc": 0.1}


def test_no_time_left_runs_nothing() -> None:
    seen: list[int] = []
    Cells(None).run(work(seen, 2), 1, 0)
    assert seen == []


def test_validation_chooses_and_test_rows_do_not() -> None:
    cells = Cells(None)
    for k in range(4):
        cells.known[key_of(quality.cell("s", "LR", k, 0, 0))] = {
            "valid_auc": [0.6, 0.7, 0.7, 0.5][k],
            "test_auc": k / 10,
        }
    assert quality.best(cells, "s", "LR", 0) == 1  # of two equal ones the earlier one
    del cells.known[key_of(quality.cell("s", "LR", 3, 0, 0))]
    assert quality.best(cells, "s", "LR", 0) is None
    for seed in range(2):
        for name, valid, test in (("BARS", 0.9, 0.1), ("hold 10", 0.8, 0.9)):
            found = {"valid_auc": valid, "test_auc": test}
            cells.known[key_of(frappe.cell("DeepFM", name, seed, False))] = found
    picked = frappe.best(cells, "DeepFM", 2, False)
    assert picked is not None
    assert picked[0] == "BARS"
