"""The training loss in metrics.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train.test_callbacks import Seen, fit
from tests.train.test_second_day import log, planned


def test_the_recorded_loss_is_the_weighted_mean_of_the_last_steps(tmp_path: Path) -> None:
    seen, plan = Seen(), planned(log())
    fit(plan, seen, epochs=1, out=tmp_path / "run")
    total = weight = 0.0
    for loss in [event.loss for kind, event in seen.told if kind == "step"]:
        total, weight = 0.95 * total + 0.05 * loss, 0.95 * weight + 0.05
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    recorded = [line["loss"] for line in lines if "loss" in line]
    assert recorded[-1] == pytest.approx(total / weight)
