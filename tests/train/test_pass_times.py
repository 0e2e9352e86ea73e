"""What stages and tables did, pass by pass: nothing counted twice, nothing lost, evaluations left out."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import ctrbox as cb
from ctrbox.train.pass_times import Passes
from ctrbox.train.pipeline import Clock, Stage, run_stages
from ctrbox.train.progress_line import Lately, Progress
from tests.train.test_run_folder import Stop, StopAt
from tests.train.test_sparse_training import fitted, plan, sparse, told_at_every_step  # noqa: F401 - plan is a fixture
from tests.train.test_tensorboard_file import scalars
from tests.train.worlds import FAST, Small, table

STAGES = ("extract", "lookup", "learn")


# ---- clocks


def numbers(many: int) -> Generator[int, None, None]:
    yield from range(many)


def test_a_queue_that_nobody_empties_is_as_deep_as_it_may_be() -> None:
    first, second = Clock("first"), Clock("second")
    walk = run_stages(numbers(9), first, [Stage(second, lambda item: -item)], ahead=2)
    assert next(walk) == 0
    while (second.given, first.given) != (4, 7):  # one taken, two in each queue, one in the hands of each stage
        time.sleep(0.001)
    assert (first.deepest, second.deepest) == (2, 2)
    assert list(walk) == [-k for k in range(1, 9)]
    assert (first.given, second.given) == (9, 9)
    assert 0 < first.depths / first.given == first.depth <= 2
    assert first.for_input == 0
    assert first.waited == first.for_room
    assert second.waited == second.for_input + second.for_room


def test_one_after_the_other_there_are_no_queues() -> None:
    first, second = Clock("first"), Clock("second")
    assert len(list(run_stages(numbers(5), first, [Stage(second, str)], overlap=False))) == 5
    assert first.depth is None
    assert second.depth is None


def test_what_is_shown_is_of_the_last_seconds() -> None:
    clocks = [Clock("extract"), Clock("learn")]
    lately = Lately(clocks, 100.0)
    clocks[0].busy, clocks[0].given, clocks[0].depths = 1.0, 10, 20
    assert lately.look(101.0) == ({"extract": 1.0, "learn": 0.0}, {"extract": 2.0})
    lately.look(102.5)
    lately.look(105.0)  # what was before 102.5 is forgotten
    clocks[0].busy, clocks[0].given, clocks[0].depths, clocks[1].busy = 2.0, 20, 25, 99.0
    shares, queues = lately.look(106.5)
    assert (shares, queues) == ({"extract": 0.25, "learn": 1.0}, {"extract": 0.5})
    assert Progress(1, 0.5, 0.1, 9.0, 1.0, 1, 0, shares, queues).shown == "extract 25% →0.5→ learn 100%"


# ---- passes


class Counting:
    """A table of which only the counters matter."""

    traits = cb.tables.Traits(statistics=True)

    def __init__(self) -> None:
        self.counts = {"asked": 0, "hits": 0, "misses": 0, "reads": 0, "keys": 7, "strange": 1}

    def stats(self) -> dict[str, int]:
        return dict(self.counts)


def test_a_pass_counts_what_happened_in_it_and_nothing_that_an_evaluation_reads() -> None:
    clocks = [Clock(name) for name in STAGES]
    tables: list[Any] = [object(), Counting()]
    passes = Passes(clocks, tables, epochs=2)
    passes.begin(0.0)
    assert passes.end(0.04) == {}
    clocks[2].busy, clocks[0].given, clocks[0].depths = 2.0, 4, 6
    tables[1].counts |= {"asked": 100, "hits": 60, "misses": 20, "reads": 30}
    with passes.paused():
        clocks[0].busy, clocks[0].for_room = 0.5, 9.0
        tables[1].counts |= {"reads": 1030, "asked": 110}
    tables[1].counts["hits"] += 20
    told = passes.end(0.05)
    assert told.keys() == {"stages", "table-1"}
    assert told["stages"]["pass"] == 1
    assert told["stages"]["learn_busy"] == 2.0
    assert told["stages"]["extract_busy"] == 0.5
    assert told["stages"]["extract_for_room"] == 0.0
    assert told["stages"]["extract_queue"] == 1.5
    assert "learn_queue" not in told["stages"]
    assert told["table-1"] == {
        "pass": 1, "asked": 110, "hits": 80, "misses": 20, "reads": 30, "hit_rate": 0.8, "reads_per_key": 30 / 110, "keys": 7,
    }  # fmt: skip
    assert passes.end(0.99) == {}  # nothing was learned
    clocks[2].busy += 1.0
    tables[1].counts |= {"asked": 3, "hits": 3}  # a table that was restored began anew
    assert passes.end(1.0)["table-1"]["asked"] == 0
    assert passes.done["stages"]["learn_busy"] == 3.0
    assert passes.done["table-1"]["asked"] == 110


def lines(run: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


def test_a_run_tells_the_passes_of_stages_and_of_tables_that_count(tmp_path: Path, plan: cb.Plan) -> None:  # noqa: F811
    with sparse(tmp_path / "a") as one, sparse(tmp_path / "b") as other:
        embedder = {"visit": one, "user": other, "*": table()}
        run = fitted(plan, embedder, epochs=2, out=tmp_path / "run", evaluate_every=7)
        counted = {str(t.path): t.stats() for t in (one, other)}
    assert run.folder is not None
    found = {t["path"]: t for t in run.summary["tables"]}
    assert found.keys() == counted.keys()
    for path, told in found.items():
        passes = lines(run.folder, told["name"])
        assert [p["pass"] for p in passes] == sorted({p["pass"] for p in passes})
        assert passes[-1]["pass"] == 40
        for name in ("asked", "hits", "misses", "new"):  # an evaluation asks for nothing to stay
            assert sum(p[name] for p in passes) == told[name] == counted[path][name]
        assert told["reads"] <= counted[path]["reads"]
    visits = found[str(tmp_path / "a")]
    assert visits["fields"] == ["visit"]
    assert 0 < visits["hit_rate"] < 1
    assert visits["new"] == visits["keys"] > 1000

    stages = lines(run.folder, "stages")
    summed = {s["name"]: s for s in run.summary["stages"]}
    for name in STAGES:
        assert sum(s[f"{name}_busy"] for s in stages) == pytest.approx(summed[name]["seconds"])
    assert run.summary["pipeline"]["seconds"] == pytest.approx(sum(s["seconds"] for s in stages))
    assert summed["extract"]["queue_most"] <= 2
    tags = {tag for path in run.folder.glob("events.out.*") for tag, *_ in scalars(path)}
    assert {"stages/extract_queue", "stages/learn_busy", f"{visits['name']}/hit_rate"} <= tags

    page = run.report().read_text(encoding="utf-8")
    assert "Time of a pass by stage" in page
    assert page.count("Reads that filters spared") == 2


def test_tables_in_memory_are_not_told_of(tmp_path: Path, plan: cb.Plan) -> None:  # noqa: F811
    run = fitted(plan, table(), out=tmp_path / "run")
    assert run.summary["tables"] == []
    assert 'id="tables"' not in run.report().read_text(encoding="utf-8")
    assert lines(tmp_path / "run", "stages")


def test_after_a_resume_every_pass_is_told_once(
    tmp_path: Path,
    plan: cb.Plan,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told_at_every_step(monkeypatch)
    options = {**FAST, "out": tmp_path / "run", "checkpoint_steps": 5}
    with sparse(tmp_path / "t") as mine, pytest.raises(Stop):
        cb.Trainer(Small(plan.schema), mine).fit(plan, **options, progress=StopAt(13))
    with sparse(tmp_path / "t") as mine:
        cb.Trainer(Small(plan.schema), mine).fit(plan, **options, progress=StopAt(10**9))
    for kind in ("stages", "table-0"):
        told = [line["pass"] for line in lines(tmp_path / "run", kind)]
        assert told == sorted(set(told))
        assert told[-1] == 20
