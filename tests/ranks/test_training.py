"""Trainings of several ranks against those of one process: equal losses, equal bits, resuming, and what is refused."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctrbox as cb
from ctrbox import datasets
from ctrbox.cli.demo import demo_job_path
from ctrbox.errors import PlanError, TrainError
from ctrbox.ranks.group import RankLost
from ctrbox.ranks.ranks import Followed
from ctrbox.views.columns_as_recorded import opened
from ctrbox.views.files_with_row_index import IndexedFiles
from tests.ranks.threads import DRAWING, fit, in_ranks, model
from tests.train.worlds import on_disk, table, weights

pytestmark = pytest.mark.usefixtures("one_thread")


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def values(run: cb.Run) -> np.ndarray:
    found: np.ndarray = run.learner.embedders[0].export()[1]  # type: ignore[attr-defined]
    return found


@pytest.mark.slow
def test_one_two_and_three_ranks_have_the_losses_of_the_demo_over_100_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets.adlog(rows=7200, seed=1, out=tmp_path / "data")
    monkeypatch.setenv("CTRBOX_DATA", str(tmp_path / "data"))
    demo = runpy.run_path(str(demo_job_path()))["plan"].using(threads=1)
    runs = {n: fit(demo, n, out=tmp_path / str(n), limit=7200, negatives=0.7)[0] for n in (1, 2, 3)}
    found = {n: losses(tmp_path / str(n)) for n in runs}
    assert len(found[1]) > 100
    for n in (2, 3):
        np.testing.assert_allclose(found[n], found[1], atol=1e-5)
        assert runs[n].summary["rows"] == runs[1].summary["rows"]
        assert runs[n].metrics["auc"] == pytest.approx(runs[1].metrics["auc"], abs=1e-4)
        # The floats of a row may drift apart by rounding; a row learned twice or not at all moves by about its rate, 0.1.
        np.testing.assert_allclose(values(runs[n]), values(runs[1]), atol=2e-3)
        assert weights(cb.Run.load(tmp_path / str(n), model=model(demo), plan=demo)) == weights(runs[n])


def test_the_same_number_of_ranks_gives_the_same_bits_and_rank_0_has_the_run(plan: cb.Plan) -> None:
    (first, other), (second, _) = (fit(plan, 2, limit=900, clip=1.0) for _ in range(2))
    assert isinstance(other, Followed)
    assert weights(first) == weights(second)
    assert first.metrics == second.metrics


@pytest.mark.slow
def test_a_training_of_three_ranks_goes_on_with_one_and_then_with_two(plan: cb.Plan, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "limit": 1600,
        "epochs": 2,
        "checkpoint_steps": 5,
        "shuffle": 400,
        "out": tmp_path / "run",
    }
    unbroken = fit(plan, 1, **{**options, "out": tmp_path / "unbroken"})[0]
    ended = fit(plan, 3, stop_at=18, **options)
    assert all("stopped by the test" in str(error) for error in ended)
    saved = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved[-1] == "step-0000000015"
    shards = (tmp_path / "run" / "checkpoints" / saved[-1] / "table-0.ctrtable").iterdir()
    assert sorted(p.name for p in shards) == [f"0000{k}-of-00003.ctrtable" for k in range(3)]
    with pytest.raises(TrainError, match="stopped by the test"):
        fit(plan, 1, stop_at=12, **options)
    run = fit(plan, 2, **options)[0]
    assert run.summary["rows"] == unbroken.summary["rows"]
    assert run.summary["steps"] == unbroken.summary["steps"]
    np.testing.assert_allclose(losses(tmp_path / "run")[-20:], losses(tmp_path / "unbroken")[-20:], atol=1e-5)
    np.testing.assert_allclose(values(run), values(unbroken), atol=2e-3)


@pytest.mark.slow
def test_early_stopping_takes_the_best_weights_of_all_ranks(plan: cb.Plan, tmp_path: Path) -> None:
    options: dict[str, Any] = {"limit": 800, "epochs": 30, "patience": 1, "evaluate_every": 8}
    alone, together = fit(plan, 1, **options)[0], fit(plan, 2, out=tmp_path / "run", **options)[0]
    assert together.summary["best_step"] == alone.summary["best_step"] < together.summary["steps"]
    np.testing.assert_allclose(values(together), values(alone), atol=2e-3)


@pytest.mark.parametrize("size", [2, 3])
def test_the_native_step_of_ranks_learns_what_that_of_one_process_does(
    plan: cb.Plan, tmp_path: Path, size: int
) -> None:
    def trained(ranks: Any, torchs_step: bool = False) -> Any:
        with DRAWING:
            torch.manual_seed(3)
            net = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,), dropout=0.0)
        if torchs_step:
            net.register_forward_hook(lambda *given: None)  # only torch calls hooks
        out = tmp_path / f"{'alone' if ranks is None else size}{torchs_step}"
        options: dict[str, Any] = {"batch_size": 50, "limit": 1201, "valid": 0.1, "explain": False, "clip": 1.0}
        return cb.Trainer(net, table(), threads=1).fit(plan, out=out, cluster=ranks, **options)

    alone, native = trained(None), in_ranks(size, trained)[0]
    torchs = in_ranks(size, lambda ranks: trained(ranks, torchs_step=True))[0]
    assert alone.learner.native is not None
    found = [losses(run.folder) for run in (alone, native, torchs)]
    assert len(found[0]) > 20
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)
    np.testing.assert_allclose(found[2], found[0], atol=1e-5)
    state = native.learner.model.state_dict()
    for name, expected in alone.learner.model.state_dict().items():
        np.testing.assert_allclose(state[name].numpy(), expected.numpy(), atol=1e-4, err_msg=name)


def test_a_batch_with_fewer_rows_than_ranks_is_learned(plan: cb.Plan) -> None:
    alone, together = (fit(plan, n, limit=40, batch_size=2, valid=0.1)[0] for n in (1, 3))
    assert together.summary["rows"] == alone.summary["rows"]
    np.testing.assert_allclose(values(together), values(alone), atol=1e-5)


def test_a_rank_tells_what_it_decoded_in_this_training_alone(tmp_path: Path) -> None:
    own = [on_disk(tmp_path, 2000).using(threads=1) for _ in range(3)]  # two row groups

    def trained(ranks: Any) -> Any:
        mine = own[ranks.world.rank]
        list(mine.batches(500))  # decoded before the training
        net = model(mine)
        return cb.Trainer(net, table(), threads=1).fit(mine, cluster=ranks, batch_size=500, valid=0.0, explain=False)

    told = in_ranks(2, trained)[0].summary["ranks"]
    list(own[2].batches(500))
    whole = opened(own[2].log.source)
    assert isinstance(whole, IndexedFiles)
    assert [one["rows_read"] for one in told] == [1000, 1000]
    assert sum(one["bytes_read"] for one in told) == whole.bytes_read > 0


def test_the_bytes_sent_per_step_are_over_the_steps_of_this_training_alone(plan: cb.Plan, tmp_path: Path) -> None:
    options: dict[str, Any] = {"limit": 400, "batch_size": 100, "valid": 0.0, "checkpoint_steps": 3}
    stopped = fit(plan, 2, stop_at=4, out=tmp_path / "run", **options)[0]
    assert isinstance(stopped, TrainError)
    run = fit(plan, 2, out=tmp_path / "run", resume=True, **options)[0]
    assert run.summary["steps"] == 4
    for one in run.summary["ranks"]:  # which took step 4; the other bytes are of messages about the run
        assert one["bytes_sent_per_step"] == sum(one["sent_per_step"].values())
        assert one["bytes_sent"] // 2 < one["bytes_sent_per_step"] <= one["bytes_sent"]


@pytest.mark.slow
def test_sparse_tables_of_two_ranks_are_those_of_one_process(plan: cb.Plan, tmp_path: Path) -> None:
    def tables(name: str) -> Any:
        return lambda rank: cb.SparseTable(
            tmp_path / f"{name}-{rank}", 4, ram="16MB", optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1
        )

    memory = fit(plan, 2, limit=1500)[0]
    options: dict[str, Any] = {"limit": 1500, "checkpoint_steps": 10, "out": tmp_path / "run"}
    assert all(isinstance(end, Exception) for end in fit(plan, 2, stop_at=15, tables=tables("first"), **options))
    run = fit(plan, 2, tables=tables("second"), **options)[0]
    keys, rows, _ = run.learner.embedders[0].export()
    for found, expected in zip((keys, rows), memory.learner.embedders[0].export(), strict=False):
        assert found.tobytes() == expected.tobytes()
    assert not list(tmp_path.glob("*.shards"))


# ---- what goes wrong


def test_a_rank_that_fails_ends_the_others_with_its_message(plan: cb.Plan, tmp_path: Path) -> None:
    def work(ranks: Any) -> Any:
        net = model(plan, stop_at=7 if ranks.world.rank == 1 else None)
        options: dict[str, Any] = {"batch_size": 64, "out": tmp_path / "run", "cluster": ranks}
        return cb.Trainer(net, table(), threads=1).fit(plan, **options)

    ends = in_ranks(3, work)
    assert [type(end) for end in ends] == [RankLost, TrainError, RankLost]
    assert [str(end) for end in ends] == [
        "rank 1 failed: stopped by the test",
        "stopped by the test",
        "rank 1 failed: stopped by the test",
    ]


def test_ranks_with_other_settings_or_data_are_refused_before_anything_is_written(
    plan: cb.Plan, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = on_disk(tmp_path / "other", 3000)

    def ends(differing: dict[str, Any]) -> set[str]:
        def work(ranks: Any) -> Any:
            given = {"plan": plan, "seed": 0, "table": table()} | (differing if ranks.world.rank == 1 else {})
            options: dict[str, Any] = {"batch_size": 64, "limit": 1000, "out": tmp_path / "run", "cluster": ranks}
            return cb.Trainer(model(plan), given["table"]).fit(given["plan"], seed=given["seed"], **options)

        found = in_ranks(2, work)
        assert {type(end) for end in found} == {PlanError}
        return {str(end) for end in found}

    assert ends({"seed": 1}) == {
        "rank 1 differs in setting 'seed': 1, expected 0; give all processes the same code, data and settings"
    }
    assert all("rank 1 differs in data: ['log'," in text for text in ends({"plan": other}))
    assert all("rank 1 differs in tables: " in text for text in ends({"table": cb.MemoryTable(4)}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"table": lambda: cb.MemoryTable(4, optimizer=cb.optim.Adam(dense=True))}, "is a dense optimizer"),
        ({"table": lambda: OwnTable(4)}, "OwnTable cannot be shared"),
    ],
)
def test_what_ranks_cannot_train_is_refused_before_anything_is_written(
    plan: cb.Plan, tmp_path: Path, what: dict[str, Any], words: str
) -> None:
    trainer = cb.Trainer(model(plan), what.get("table", table)())

    def work(ranks: Any) -> Any:
        return trainer.fit(plan, batch_size=64, limit=1000, out=tmp_path / "run", cluster=ranks)

    (end,) = in_ranks(1, work)
    assert isinstance(end, PlanError)
    assert words in str(end)
    assert "train in one process" in str(end)
    assert not (tmp_path / "run").exists()


class OwnTable:
    """An embedder of a user."""

    def __init__(self, dim: int) -> None:
        self.inner = cb.MemoryTable(dim)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)
