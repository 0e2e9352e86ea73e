"""Feature trials without training: seeds, candidates, tables, and the verdict in numbers and words."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError
from ctrbox.evaluate.compare_two_models import Difference
from ctrbox.evaluate.trial_verdict import Candidate, Cost, Trial
from ctrbox.train import feature_trial as trial_module
from ctrbox.train.evaluation import Split
from ctrbox.train.feature_trial import _builder, _candidates, _seeds, _tables
from ctrbox.train.settings import Settings
from tests.train.test_second_day import log, planned

NAN = math.nan


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    return planned(log(100))


@pytest.mark.parametrize(
    ("seeds", "found"),
    [
        (1, [7]),
        (3, [7, 8, 9]),
        (100, [*range(7, 107)]),
        ([5, 3], [5, 3]),
        ((0, 2**63 - 1), [0, 2**63 - 1]),
        ([*range(100)], [*range(100)]),
        *(
            (wrong, None)
            for wrong in (0, 101, True, [], "12", [1, 1], [True], [-1], [2**63], [0.5], [*range(101)], None)
        ),
    ],
)
def test_seeds_are_a_number_or_a_list_of_different_ones(seeds: Any, found: list[int] | None) -> None:
    if found is not None:
        assert _seeds(seeds, 7) == found
        return
    with pytest.raises(PlanError, match="seeds must be a number from 1 to 100, or a list of different seeds"):
        _seeds(seeds, 7)


def test_candidates_are_tried_one_by_one_or_together(plan: cb.Plan) -> None:
    add = {"x": cb.cross("user", "ad"), "y": col("bid")}
    assert [*_candidates(plan, add, False)] == ["x", "y"]
    assert {name: [*found] for name, found in _candidates(plan, add, True).items()} == {"x + y": ["x", "y"]}
    for wrong in ({}, [], None):
        with pytest.raises(PlanError, match="add must be a dict of the features to try"):
            _candidates(plan, wrong, False)  # type: ignore[arg-type]
    for taken in ("user", "bid"):
        with pytest.raises(PlanError, match=f"feature '{taken}' is already in the plan;"):
            _candidates(plan, {taken: col("bid")}, False)


def test_tables_of_a_trial_share_the_budget_and_have_seeds_of_their_own() -> None:
    recipe = cb.MemoryTable(4, budget=1000, seed=2**64 - 1, init=0.25)
    one = _tables(recipe, {"a": 4}, 3, 4)
    assert isinstance(one, cb.MemoryTable)
    assert one is not recipe
    assert (one.dim, one.budget, one.seed, one.init) == (4, 250, 2, 0.25)
    by_field = _tables({"a": recipe, "b": recipe}, {"a": 4, "b": 4}, 0, 2000)
    assert isinstance(by_field, dict)
    assert by_field["a"] is by_field["b"]
    assert by_field["a"].budget == 1  # type: ignore[attr-defined]
    made = _tables(None, {"a": 4, "b": 8, "c": 4}, 0, 1)
    assert isinstance(made, dict)
    assert made["a"] is made["c"]
    assert made["b"].dim == 8
    with pytest.raises(
        PlanError, match=r"a trial creates its own tables with the settings of a cb.MemoryTable, got object"
    ):
        _tables(object(), {"a": 4}, 0, 1)  # type: ignore[arg-type]


def test_a_model_is_built_anew_from_its_config(plan: cb.Plan) -> None:
    made = _builder(cb.models.LR(plan.schema))(plan.schema)
    assert isinstance(made, cb.models.LR)
    function = lambda schema: torch.nn.Linear(1, 1)
    assert _builder(function) is function
    with pytest.raises(PlanError, match="Linear cannot be built again for other features, because it has no config"):
        _builder(torch.nn.Linear(1, 1))
    with pytest.raises(PlanError, match="model must be a torch module or a function from a schema to one, got str"):
        _builder("LR")  # type: ignore[arg-type]


def candidate(low: float, high: float, *, rows: int = 1000, clicks: int = 100, name: str = "x") -> Candidate:
    value = (low + high) / 2
    auc = Difference("auc", 0.5, 0.5 + value, value, low, high, 0.1, 0.5, 0.95, rows, 2, clicks)
    loss = Difference("logloss", 0.5, 0.25, -0.25, -0.5, 0.0, 0.1, NAN, 0.95, rows, 2, clicks)
    return Candidate(
        name, {name: f"col({name!r})"}, auc, loss, (0.5, NAN), (0.25, 0.25), Cost(1.5, 2.0, 1000, -5, 0.25)
    )


@pytest.mark.parametrize(
    ("found", "verdict", "needed"),
    [
        (candidate(0.1, 0.3), "better", None),
        (candidate(-0.3, -0.1), "worse", None),
        (candidate(-0.125, 0.375), "cannot tell", 4000),  # reach 0.25, value 0.125: four times the rows
        (candidate(-0.1, 0.1), "cannot tell", None),
        (candidate(0.1, 0.3, clicks=10), "better", None),
        (candidate(0.1, 0.3, clicks=9), "cannot tell", None),
        (candidate(0.1, 0.3, clicks=990), "better", None),
        (candidate(0.1, 0.3, clicks=991), "cannot tell", None),
        (candidate(-0.1, 0.3, clicks=9), "cannot tell", None),
        (candidate(NAN, NAN), "cannot tell", None),
        (candidate(0.0, 0.3), "cannot tell", 1000),
    ],
)
def test_a_verdict_needs_an_interval_without_0_and_ten_rows_of_each_class(
    found: Candidate, verdict: str, needed: int | None
) -> None:
    assert (found.verdict, found.rows_needed) == (verdict, needed)


def tried(*found: Candidate, seeds: tuple[int, ...] = (1, 2), weighted: bool = False) -> Trial:
    return Trial(
        {c.name: c for c in found},
        model="LR",
        data="log",
        seeds=seeds,
        train_rows=9000,
        valid_rows=1000,
        valid_clicks=100,
        weighted=weighted,
        aucs=(0.5, 0.75),
        loglosses=(0.25, 0.75),
        extract_us=1.0,
        learn_us=2.0,
        seconds=3.0,
    )


def test_a_trial_is_printed_as_two_aligned_tables() -> None:
    lines = str(tried(candidate(0.1, 0.3), candidate(-0.125, 0.375, name="longer"))).splitlines()
    assert lines[0] == "LR on log: 9,000 training rows, 1,000 validation rows (100 clicks), 2 seeds"
    twice = tried(candidate(0.1, 0.3))
    twice.epochs = 2
    assert str(twice).startswith("LR on log: 9,000 training rows in 2 epochs, 1,000 validation rows")
    assert lines[2].split() == [
        "AUC",
        "difference",
        "95",
        "%",
        "interval",
        "log",
        "loss",
        "difference",
        "95",
        "%",
        "interval",
    ]
    assert lines[3].split() == ["without", "0.62500", "0.50000"]
    assert lines[4].split() == [
        *(
            "x",
            "0.70000",
            "+0.20000",
            "[+0.10000,",
            "+0.30000]",
            "0.25000",
            "-0.25000",
            "[-0.50000,",
            "+0.00000]",
            "better",
        )
    ]
    assert lines[5].endswith("cannot tell; about 4,000 validation rows might be enough to tell")
    assert lines[7].split() == ["extract", "µs/row", "learn", "µs/row", "keys/row", "new", "keys", "table", "bytes"]
    assert lines[9].split() == ["x", "+1.50", "+0.25", "+2.00", "+1,000", "-5"]
    # Numbers end below each other, names begin below each other.
    assert lines[4].index("0.70000") == lines[5].index("0.62500") == lines[3].index("0.62500")
    assert lines[9].index("+1.50") == lines[10].index("+1.50")


def test_a_trial_says_what_its_intervals_cover() -> None:
    one, two = candidate(0.1, 0.3), candidate(0.1, 0.3, name="y")
    assert "One seed:" in str(tried(one, seeds=(1,)))
    assert ", 1 seed\n" in str(tried(one, seeds=(1,)))
    assert "One seed:" not in str(tried(one))
    assert "Training used sample weights." in str(tried(one, weighted=True))
    assert "Training used sample weights." not in str(tried(one))
    assert (
        len(str(tried(one, two)).splitlines()) > len(str(tried(one)).splitlines()) + 2
    )  # a word about several candidates
    for found, words in (
        (candidate(0.1, 0.3, clicks=9), "cannot tell; the validation rows have fewer than 10 clicks or non-clicks"),
        (candidate(-0.3, 0.3000001), "cannot tell; the difference is too small to measure"),
    ):
        assert words in str(tried(found))


def test_a_trial_as_plain_data_has_no_nan() -> None:
    found = tried(candidate(0.1, 0.3)).to_dict()
    assert found["without"]["auc"] == 0.625
    assert found["candidates"][0]["auc"]["by_seed"] == [0.5, None]
    assert found["candidates"][0]["logloss"]["p_value"] is None
    assert found["candidates"][0]["cost"]["new_keys"] == 1000
    with pytest.raises(PlanError, match="'z' was not tried"):
        tried(candidate(0.1, 0.3))["z"]


# ---- learners of a trial, with a clock that moves one second whenever somebody looks at it


class Ticking:
    """In the place of the module ``time``."""

    def __init__(self) -> None:
        self.now = self.looks = 0

    def perf_counter(self) -> float:
        self.now += 1
        return float(self.now)

    def process_time(self) -> float:
        self.looks += 1
        return float(self.looks)


class Sees:
    """A watcher that keeps all it is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.ended = 0

    def see(self, progress: Any) -> None:
        self.seen.append(progress)

    def evaluated(self, metrics: Any) -> None: ...
    def resumed(self, step: int, rows: int) -> None: ...
    def end(self) -> None:
        self.ended += 1


def test_learners_of_a_trial_learn_all_rows_and_tell_how_far_they_are(
    plan: cb.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, watch = Ticking(), Sees()
    settings = Settings(batch_size=30, valid=0.1, epochs=2)
    split = Split.of(plan, None, settings)
    candidates = _candidates(plan, {"x": cb.cross("user", "ad")}, False)
    union = trial_module._union(plan, candidates, plan)
    build = lambda schema: cb.models.FM(schema, 2)
    arms = trial_module._arms(union.schema, candidates, build, None, [5, 6], None, 1, settings)
    assert [arm.name for arm in arms] == ["", "x"]
    assert [[f.name for f in arm.schema.sparse] for arm in arms] == [["user", "ad"], ["user", "ad", "x"]]
    assert [len(arm.learners) for arm in arms] == [2, 2]
    monkeypatch.setattr(trial_module, "time", clock)
    assert trial_module._learn(union, arms, settings, split, False, watch) == 180
    assert [p.step for p in watch.seen] == [1, 2, 3, 4, 5, 6]
    assert [p.rows for p in watch.seen] == [30, 60, 90, 120, 150, 180]
    assert [p.share for p in watch.seen] == pytest.approx([k / 6 for k in range(1, 7)])
    assert [p.epoch for p in watch.seen] == [0, 0, 0, 1, 1, 1]
    assert all(p.rows_per_second == pytest.approx(p.rows / p.seconds) for p in watch.seen)
    assert watch.ended == 1
    for arm, keys in zip(arms, (2, 3), strict=True):
        assert len(arm.seconds) == 6
        assert arm.references == 180 * keys
        assert arm.seconds == pytest.approx([1 / 30 / 2] * 6)  # a second, thirty rows, two learners
    label, scores = trial_module._score(union, arms, 4, split, False)
    assert (label.shape, [s.shape for s in scores]) == ((10,), [(2, 10), (2, 10)])
    assert not any((s[0] == s[1]).all() for s in scores)  # seeds differ


def test_extraction_is_timed_three_times_where_that_is_long_enough(
    plan: cb.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Ticking()
    candidates = _candidates(plan, {"x": cb.cross("user", "ad")}, False)
    union = trial_module._union(plan, candidates, plan)
    arms = trial_module._arms(
        union.schema, candidates, lambda s: cb.models.FM(s, 2), None, [5], None, 1, Settings(batch_size=30)
    )
    union.fit()
    monkeypatch.setattr(trial_module, "time", clock)
    # Each round takes one second by this clock: after three rounds of two arms there is enough.
    assert trial_module._extraction_cost(union, arms, 80) == pytest.approx([1e6 / 80] * 2)
    assert clock.looks == 3 * 2 * 2
    clock.looks = 0
    monkeypatch.setattr(trial_module, "TIMED_SECONDS", 1e9)
    trial_module._extraction_cost(union, arms, 80)
    assert clock.looks == 15 * 2 * 2
