"""How objects look in a notebook: what they show, that every text is escaped, and what happens where nothing can be read."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import ctrbox as cb
from ctrbox import col
from ctrbox.show.notebook import MOST_COLUMNS, facts, framed, grid

NASTY = "<script>alert('x')</script>"


def log(rows: int = 400) -> pa.Table:
    ad = np.arange(rows) % 7
    return pa.table({"ad": ad, "title": [NASTY] * rows, "bid": ad / 8, "clicked": (ad + np.arange(rows) // 7) % 3 == 0})


def plan_of(table: pa.Table) -> cb.Plan:
    sparse = {"ad": col("ad").key(), "letters": col("title").ngrams(3).key()}
    return cb.compile(cb.View(table), cb.FeatureSet(label=col("clicked"), sparse=sparse, dense={"bid": col("bid")}))


def html_of(thing: Any) -> str:
    shown: str = thing._repr_html_()
    assert shown.startswith('<div class="ctrbox">')
    assert shown.endswith("</div>")
    assert "<script" not in shown
    return shown


def test_a_view_shows_its_columns_and_first_rows_escaped() -> None:
    shown = html_of(cb.View(log(), name=NASTY))
    assert "title<br>" in shown
    assert shown.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;") >= 5
    assert shown.count("<tr>") == 1 + 5


def test_a_view_whose_rows_cannot_be_computed_shows_why() -> None:
    view = cb.View(log()).with_columns(level=col("bid").standardize())
    shown = html_of(view)
    assert "level<br>" in shown
    assert "head cannot run operators that are fitted" in shown


def test_a_plan_shows_its_drawing_as_an_image() -> None:
    shown = html_of(plan_of(log()))
    data = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', shown)
    assert data is not None
    assert base64.b64decode(data[1]).startswith((b"<svg", b"<?xml"))


def test_a_batch_shows_its_first_rows_and_three_keys_of_a_field() -> None:
    batch = next(plan_of(log()).batches(100))
    shown = html_of(batch)
    assert "Batch of 100 rows" in shown
    assert shown.count("<tr>") == 1 + 5
    first = batch.sparse["letters"][0]
    assert f"{first[0]}, {first[1]}, {first[2]}, …" in shown
    assert "label<br>" in shown
    assert "bid<br>" in shown


def test_an_empty_batch_shows_its_columns() -> None:
    batch = next(plan_of(log()).batches(100)).take(np.array([], np.int64))
    assert html_of(batch).count("<tr>") == 1


def test_a_table_shows_its_settings_and_rows() -> None:
    table = cb.MemoryTable(4, optimizer=cb.optim.SGD(lr=0.5), admission=cb.tables.Admission(count=1))
    table.pull(np.array([1, 2, 3], np.int64))
    shown = html_of(table)
    for word in ("MemoryTable", ">3<", "SGD", "Admission"):
        assert word in shown
    assert "counters" not in shown


def test_a_table_on_disk_shows_its_folder_and_memory_before_and_after_it_has_rows(tmp_path: Path) -> None:
    table = cb.SparseTable(tmp_path / "params", dim=4, ram="64MB")
    shown = html_of(table)
    assert str(tmp_path / "params") in shown
    assert "67,108,864 bytes" in shown
    table.push(np.array([1, 2], np.int64), np.ones((2, 4), np.float32))
    assert ">2<" in html_of(table)
    table.close()


def test_a_run_shows_its_metrics_and_its_curve(tmp_path: Path) -> None:
    plan = plan_of(log())
    trainer = cb.Trainer(cb.models.LR(plan.schema), cb.MemoryTable(0))
    run = trainer.fit(plan, batch_size=64, out=tmp_path / "run")
    shown = html_of(run)
    assert f"{run.metrics['auc']:.4f}" in shown
    assert "<svg" in shown
    assert "Learning curve" in shown
    assert "GAUC" not in shown  # there are no groups, so it is NaN
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert "there is no run folder" in html_of(run)


def test_a_run_without_a_folder_says_that_it_has_no_curve() -> None:
    plan = plan_of(log())
    run = cb.Trainer(cb.models.LR(plan.schema), cb.MemoryTable(0)).fit(plan, batch_size=64)
    assert "This run has no folder (out=), so there is no learning curve." in html_of(run)


def test_names_values_and_titles_are_escaped_and_wide_tables_cut() -> None:
    shown = framed(NASTY, facts({NASTY: NASTY}), grid([(NASTY, NASTY)], [[NASTY]]))
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") == 6
    wide = grid([(f"c{k}", "int64") for k in range(MOST_COLUMNS + 3)], [range(MOST_COLUMNS + 3)])
    assert wide.count("<td>") == MOST_COLUMNS
    assert '<p class="muted">3 more columns are not shown</p>' in wide
    assert "not shown" not in grid([(f"c{k}", "int64") for k in range(MOST_COLUMNS)], [])
