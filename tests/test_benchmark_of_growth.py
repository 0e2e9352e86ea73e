"""The benchmark of growth measures the limit of the machine and the parts of a step, here at a tiny size."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import extract_job, scale, scale_extract, scale_ffm, scale_limit, scale_plot, scale_train

ROWS = 2_000  # of the ad log
BATCH = 64
USABLE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.fixture(scope="module")
def ad_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract_job.make(tmp_path_factory.mktemp("growth") / "data", ROWS)


class Meetings:
    """Counts the meetings of a process that has no others to wait for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def tiny_ffm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_ffm, "ROWS", 4_000)
    monkeypatch.setattr(scale_ffm, "TEST", 1_000)


def test_independent_processes_work_at_the_same_time_and_their_rates_are_added_up(tmp_path: Path) -> None:
    processes = min(2, USABLE)
    found = scale_limit.independent(None, tmp_path, processes, True, 0.01)
    assert {"arithmetic", "random reads"} <= set(found)
    assert min(found.values()) > 0


def test_an_independent_process_that_fails_ends_the_others_and_names_the_cause(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_part"):
        scale_limit.independent("benchmarks.no_such_part", tmp_path, min(2, USABLE), True, 0.01)


def test_an_independent_process_learns_and_predicts_deep_ffm_for_the_stated_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_ffm(monkeypatch)
    monkeypatch.setattr(scale_ffm, "BITS", 12)
    scale_ffm.prepare(tmp_path, False)
    meet = Meetings()
    found = scale_ffm.limit(tmp_path, False, 0.001, meet)
    assert list(found) == [f"{model} {what}" for model in scale_ffm.MODELS for what in ("learned", "predicted")]
    assert min(found.values()) > 0
    assert meet.count == len(found)  # one meeting before each measurement


def test_an_independent_process_extracts_for_the_stated_time(ad_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_job, "data", lambda rows: ad_log)
    monkeypatch.setattr(scale_extract, "BATCH", BATCH)
    meet = Meetings()
    found = scale_extract.limit(ad_log, False, 0.001, meet)
    assert found["extraction after its start"] > 0
    assert meet.count == 1


def test_training_is_measured_by_part_and_stops_after_the_stated_time(
    ad_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale_train, "SETTINGS", {"epochs": 1, "batch_size": BATCH})
    monkeypatch.setattr(scale_train, "LIMIT_STEPS", 3)
    (found,) = scale_train.measure(ad_log.parent, 2, False).values()
    stages = found["stages"]
    parts = [name for name in stages if name not in ("step", "cores busy", "parallel calls")]
    own = [name for name in parts if not name.startswith(("hand-over", "prefetch", "helpers"))]
    assert sum(stages[name] for name in own) == pytest.approx(
        stages["step"]
    )  # nothing is left out, nothing counts twice
    assert all(stages[name] > 0 for name in ("pull", "push", "dense step", "native step: rows", "native step: keys"))

    meet = Meetings()
    assert scale_train.limit(ad_log.parent, False, 0.001, meet)["demo's job trained"] > 0
    assert meet.count == 1


def test_the_picture_has_a_ring_for_the_limit_of_the_machine(tmp_path: Path) -> None:
    found: Any = {n: {"learned": {"rate": 100.0 * n, "unit": "examples/s"}} for n in (1, 2)}
    scale_plot.write_svg(
        tmp_path / "scale.svg", {"ffm": found}, {"ffm": {1: {"learned": 100.0}, 2: {"learned": 150.0}}}
    )
    assert "processes 1.5 ×" in (tmp_path / "scale.svg").read_text(encoding="utf-8")


@pytest.mark.slow  # five processes import torch
@pytest.mark.skipif(USABLE < 2, reason="the benchmark compares one core with two")
def test_growth_is_printed_beside_the_limit_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_ffm(monkeypatch)
    svg = str(tmp_path / "scale.svg")
    monkeypatch.setattr(sys, "argv", ["scale", "--only", "ffm", "--cores", "1,2", "--seconds", "0.01", "--svg", svg])
    scale.main()
    printed = capsys.readouterr().out
    assert "2 independent processes: " in printed
    last = json.loads(printed.strip().splitlines()[-1])
    assert set(last["independent"]["ffm"]) == {"1", "2"}
    assert set(last["independent"]["ffm"]["2"]) >= {"FFM k=4 predicted", "arithmetic", "random reads"}
