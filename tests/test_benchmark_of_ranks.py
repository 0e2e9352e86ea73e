"""The benchmarks of ranks check what they say, at a tiny size, and the projection for eight GPUs is what its formula gives."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import ranks_crash, ranks_equal, ranks_job
from benchmarks import ranks_projection as projection
from tests.ranks.threads import in_ranks

ROOT = Path(__file__).resolve().parents[1]

# ---- equality


def test_two_ranks_learn_din_with_a_model_server_as_one_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `benchmarks.ranks_equal` does it with all cases and numbers of ranks, with threads in place of processes."""
    lock, parts_of = threading.Lock(), ranks_job.parts_of

    def one_at_a_time(*given: Any) -> Any:
        with lock:  # threads share torch's random numbers
            return parts_of(*given)

    monkeypatch.setattr(ranks_job, "parts_of", one_at_a_time)
    monkeypatch.setattr(ranks_job, "BATCH", 32)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ranks_job.make_data(tmp_path, 20)
        for name in ("1", "2a", "2b"):
            (tmp_path / name).mkdir()
        ranks_job.train("din-server", tmp_path, tmp_path / "1", None)
        for name in ("2a", "2b"):
            ends = in_ranks(2, lambda ranks, name=name: ranks_job.train("din-server", tmp_path, tmp_path / name, ranks))  # type: ignore[misc]
            assert ends == [None, None]
    finally:
        torch.set_num_threads(threads)
    whole, *found = (ranks_equal.figures(tmp_path / name, "din-server") for name in ("1", "2a", "2b"))
    ranks_equal.check("din-server", 2, found, whole, 20)
    assert whole["rows"] == {"train": 641, "valid": 71}


def figures(**more: Any) -> dict[str, Any]:
    return {"losses": [0.5, 0.4], "auc": 0.7, "rows": {"train": 9}, "steps": 2, "digest": "a"} | more


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([{}, {"digest": "b"}], "two trainings differ"),
        ([{"rows": {"train": 8}}] * 2, "rows {'train': 8}, expected {'train': 9}"),
        ([{"losses": [0.5]}] * 2, "1 losses of 2 steps"),
        ([{"losses": [0.5, 0.40002]}] * 2, "the loss of step 2 differs by 2.0e-05"),
        ([{"losses": [float("nan"), 0.4]}] * 2, "the loss of step 1 differs by nan"),
    ],
)
def test_ranks_that_learn_something_else_are_refused(found: list[dict[str, Any]], words: str) -> None:
    ranks_equal.check("demo", 2, [figures(losses=[0.500009, 0.4])] * 2, figures(), 2)
    with pytest.raises(SystemExit) as raised:
        ranks_equal.check("demo", 2, [figures(**one) for one in found], figures(), 2)
    assert words in str(raised.value)


def test_losses_of_steps_are_found_in_their_moving_averages() -> None:
    losses, state, averages = [0.7, 0.2, 0.9, 0.4], [0.0, 0.0], []
    for loss in losses:  # as the trainer does it
        state = [0.95 * state[0] + 0.05 * loss, 0.95 * state[1] + 0.05]
        averages.append(state[0] / state[1])
    np.testing.assert_allclose(ranks_equal.losses_of(averages), losses, atol=1e-12)


# ---- the projection


def test_the_projection_is_what_its_formula_gives() -> None:
    link = projection.Link(1e9, 0.5)
    one = projection.projected(16_384, 8, link, keys=1000.0, dense_weights=500, each=4)
    assert one.alone == pytest.approx(0.0110)
    assert one.keys == 8 * 1000 * 7 / 8
    assert one.rows == 4 * 128 * 1000 * 7 / 8
    assert one.dense == 8 * 500 * 7 / 8
    exchange = (2 * 448_000 + 3500) / 0.5e9 + 4 * 30e-6
    assert one.exchange == pytest.approx(exchange)
    assert (one.fastest, one.slowest) == (max(0.011, exchange), pytest.approx(0.011 + exchange))
    assert one.rate(one.slowest) == pytest.approx(8 * 16_384 / (0.011 + exchange))
    pooled = projection.projected(16_384, 8, link, 1000.0, 500, each=2, pooled=True)
    assert pooled.rows == 2 * 128 * 26 * 16_384 * 7 / 8
    assert projection.step_alone(65_536) == pytest.approx(0.0396)
    assert projection.step_alone((16_384 + 65_536) / 2) == pytest.approx((0.0110 + 0.0396) / 2)


@pytest.mark.parametrize("size", [1, 3, 5000, 60_000])
def test_the_expected_number_of_different_ids_is_that_of_draws(size: int) -> None:
    p = np.diff(np.log(np.arange(1, size + 2))) / np.log(size + 1)
    for draws in (1, 100, 20_000):
        exact = float((1 - (1 - p) ** draws).sum())
        assert projection.different(size, draws) == pytest.approx(exact, rel=1e-6)
    rng = np.random.default_rng(0)
    drawn = [(np.exp(rng.random(20_000) * np.log(size + 1)).astype(np.int64) - 1).clip(0, size - 1) for _ in range(5)]
    met = np.mean([len(np.unique(ids)) for ids in drawn])
    assert projection.different(size, 20_000) == pytest.approx(met, rel=0.02)


def test_the_projection_in_the_documentation_is_what_the_script_prints(capsys: pytest.CaptureFixture[str]) -> None:
    projection.main([])
    written = (ROOT / "docs" / "results" / "processes.md").read_text(encoding="utf-8")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.split("  ")[0].replace(",", "").isdecimal()]
    assert len(lines) == 9
    for line in lines:
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        assert f"| {' | '.join(cells)} |" in written


SETTINGS = {"code": "0123", "steps": 60, "seed": 0}


def test_rounds_of_kills_are_kept_in_a_file_and_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    log = ranks_crash.Log(path, SETTINGS)
    done = ranks_crash.Round("demo-sparse", 3, 0.75, 1e-5, 1, [(3, 2)], [0.5])
    log.add(done)
    with path.open("a") as file:
        file.write('{"settings": {"code": "01')  # the benchmark was killed here
    again = ranks_crash.Log(path, SETTINGS)
    assert again.rounds == {("demo-sparse", 3): replace(done, met=[[3, 2]])}
    kills = ranks_crash.Kills(tmp_path / "no data", "demo-sparse", again, 0)
    kills.make(3)  # would fail without data
    assert kills.line() == ["demo-sparse", 1, 1, 1, "0.7500", "1.0e-05", "0.5"]
    again.add(ranks_crash.Round("demo-sparse", 4, 0.75))
    assert list(ranks_crash.Log(path, SETTINGS).rounds) == [("demo-sparse", 3), ("demo-sparse", 4)]


def test_rounds_of_other_code_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    ranks_crash.Log(path, SETTINGS).add(ranks_crash.Round("demo-sparse", 3, 0.75))
    with pytest.raises(
        SystemExit, match=r"rounds\.jsonl has rounds of .*'0123'.*, expected .*'4567'.*choose another --log"
    ):
        ranks_crash.Log(path, SETTINGS | {"code": "4567"})
