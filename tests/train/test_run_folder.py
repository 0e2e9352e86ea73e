"""A run folder: goes on exactly where it stopped, comes back whole, and refuses what is damaged or not its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.errors import CtrboxError, DataError, PlanError, SourceError, WriteError
from ctrbox.predict.weights_folder import read_state
from ctrbox.train.checkpoint import checkpoints
from tests.train.worlds import FAST, Small, checkerboard, fit, on_disk, plan_of, table, weights


class Stop(Exception):
    pass


class StopAt:
    """Ends a training from inside, as a crash would: nothing of the trainer's is tidied up but threads and locks."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.resumed_at: int | None = None

    def see(self, progress: Any) -> None:
        if progress.step >= self.step:
            raise Stop

    def evaluated(self, metrics: Any) -> None: ...
    def resumed(self, step: int, rows: int) -> None:
        self.resumed_at = step

    def end(self) -> None: ...


@pytest.fixture(autouse=True)
def see_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told at most ten times a second; here at each step."""
    from ctrbox.train import trainer

    original = trainer.Fit._report

    def report(self: Any, row: int) -> None:
        self.told = -1e9
        original(self, row)

    monkeypatch.setattr(trainer.Fit, "_report", report)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> cb.Plan:
    return on_disk(tmp_path_factory.mktemp("log"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"epochs": 2, "shuffle": 1500, "negatives": 0.6},
        {"epochs": 3, "patience": 1, "evaluate_every": 7},
    ],
)
@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_weights(plan: cb.Plan, tmp_path: Path, options: dict) -> None:
    whole = fit(plan, out=tmp_path / "whole", checkpoint_steps=4, **options)
    for stop in (1, 10, 18):
        out = tmp_path / f"stopped-{stop}"
        with pytest.raises(Stop):
            fit(plan, out=out, checkpoint_steps=4, progress=StopAt(stop), **options)
        watch = StopAt(10**9)
        again = fit(plan, out=out, checkpoint_steps=4, progress=watch, **options)
        assert (watch.resumed_at is None) == (stop < 4)
        assert weights(again) == weights(whole)
        assert again.metrics == whole.metrics
        steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert steps == sorted(steps)


def test_a_loaded_run_predicts_what_the_trained_one_does(plan: cb.Plan, tmp_path: Path) -> None:
    run = fit(plan, out=tmp_path / "run", negatives=0.5)
    loaded = cb.Run.load(tmp_path / "run", model=Small(plan.schema, seed=9))
    rows = checkerboard(100, seed=5)
    assert np.array_equal(run.predict(rows), loaded.predict(rows))
    assert weights(run) == weights(loaded)
    assert loaded.metrics["auc"] == run.metrics["auc"]
    assert loaded.evaluate(rows) == run.evaluate(rows)


def test_a_model_of_cb_models_is_built_again_from_the_folder(plan: cb.Plan, tmp_path: Path) -> None:
    run = cb.Trainer(cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))).fit(plan, out=tmp_path / "run", **FAST)
    loaded = cb.Run.load(tmp_path / "run")
    rows = checkerboard(100, seed=5)
    assert np.array_equal(run.predict(rows), loaded.predict(rows))


def test_the_folder_holds_what_its_page_says(plan: cb.Plan, tmp_path: Path) -> None:
    run = fit(plan, out=tmp_path / "run")
    names = {p.name for p in (tmp_path / "run").iterdir() if not p.name.startswith((".", "events.out"))}
    assert names == {"config.json", "plan.ctrplan", "plan.svg", "metrics.jsonl", "summary.json", "model"}
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"train", "valid", "stages"}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metrics"]["auc"] == run.metrics["auc"]
    assert summary["intermediate_bytes"] == 0
    assert {f["name"] for f in summary["features"]} == {"user", "ad", "tags", "device", "price"}
    assert run.report() == tmp_path / "run" / "report.html"
    assert "device" in (tmp_path / "run" / "report.html").read_text()


# ---- what is refused --------------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_trained_over(plan: cb.Plan, tmp_path: Path) -> None:
    fit(plan, out=tmp_path / "run", limit=600)
    with pytest.raises(
        DataError, match="contains a finished run; choose another out=, or replace the run with overwrite=True"
    ):
        fit(plan, out=tmp_path / "run", limit=600)
    fit(plan, out=tmp_path / "run", limit=600, overwrite=True)


def test_a_foreign_folder_is_left_alone(plan: cb.Plan, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.doc").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(DataError, match=r"is not a run folder: it holds 'thesis\.doc'"):
            fit(plan, out=tmp_path / "home", overwrite=overwrite)
    assert (tmp_path / "home" / "thesis.doc").read_text() == "years of work"
    with pytest.raises(WriteError):
        fit(plan, out=tmp_path / "home" / "thesis.doc")


def unfinished(plan: cb.Plan, out: Path, **options: Any) -> None:
    with pytest.raises(Stop):
        fit(plan, out=out, checkpoint_steps=4, progress=StopAt(10), **options)


def test_resume_with_other_settings_names_the_difference(plan: cb.Plan, tmp_path: Path) -> None:
    unfinished(plan, tmp_path / "run")
    with pytest.raises(DataError, match="differs in settings 'batch_size': it has 256, but this training has 128"):
        fit(plan, out=tmp_path / "run", batch_size=128)
    with pytest.raises(DataError, match="differs in tables"):
        cb.Trainer(Small(plan.schema), cb.MemoryTable(4)).fit(plan, out=tmp_path / "run", **FAST)
    with pytest.raises(DataError, match="unfinished run; continue it with resume=True, or start over with"):
        fit(plan, out=tmp_path / "run", resume=False)


def test_resume_with_other_data_is_refused(plan: cb.Plan, tmp_path: Path) -> None:
    unfinished(plan, tmp_path / "run")
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(DataError, match="differs in data"):
        fit(on_disk(other, 5000), out=tmp_path / "run")


def test_resume_with_other_rows_of_the_same_size_and_time_is_refused(tmp_path: Path) -> None:
    """As `cp -p` or `rsync -t` leaves a file whose labels were corrected."""
    plan = on_disk(tmp_path)
    log = tmp_path / "log.parquet"
    unfinished(plan, tmp_path / "run")
    with contextlib.suppress(Stop):
        fit(on_disk(tmp_path), out=tmp_path / "run", checkpoint_steps=4, progress=StopAt(12))  # the same rows go on
    facts, rows = log.stat(), log.read_bytes()
    place = facts.st_size // 2
    log.write_bytes(rows[:place] + bytes([rows[place] ^ 1]) + rows[place + 1 :])
    os.utime(log, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert (log.stat().st_size, log.stat().st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    with pytest.raises(DataError, match="differs in data"):
        fit(on_disk(tmp_path), out=tmp_path / "run")


def test_table_of_another_step_is_not_taken_for_that_of_a_checkpoint(plan: cb.Plan, tmp_path: Path) -> None:
    """Both tables are sound and of one size, as after a copy that was broken off."""
    unfinished(plan, tmp_path / "run")
    older, newer = checkpoints(tmp_path / "run" / "checkpoints")
    table = "table-0.ctrtable"
    read_state(newer)
    assert (older / table).stat().st_size == (newer / table).stat().st_size
    (newer / table).write_bytes((older / table).read_bytes())
    with pytest.raises(DataError, match=r"table-0\.ctrtable is not the table that was saved with this checkpoint:"):
        read_state(newer)


def test_resume_with_other_code_is_refused(plan: cb.Plan, tmp_path: Path) -> None:
    unfinished(plan, tmp_path / "run")

    from tests.train import worlds

    class Other(worlds.Small):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 2

    Other.__name__ = "Small"
    with pytest.raises(DataError, match="differs in code of the model"):
        cb.Trainer(Other(plan.schema), table()).fit(plan, out=tmp_path / "run", **FAST)


def test_two_trainings_into_one_folder_are_refused(plan: cb.Plan, tmp_path: Path) -> None:
    held: list[str] = []

    class Watch(StopAt):
        def see(self, progress: Any) -> None:
            if not held:
                with pytest.raises(WriteError, match="another process is training into"):
                    fit(plan, out=tmp_path / "run")
                held.append("seen")

    fit(plan, out=tmp_path / "run", progress=Watch(0))
    assert held


@pytest.mark.slow
def test_any_damaged_file_of_a_checkpoint_is_met_and_the_one_before_is_used(plan: cb.Plan, tmp_path: Path) -> None:
    whole = weights(fit(plan, out=tmp_path / "whole", checkpoint_steps=4))
    for name in ("dense.safetensors", "optimizer.safetensors", "table-0.ctrtable", "state.json"):
        out = tmp_path / name
        unfinished(plan, out)
        newest = sorted((out / "checkpoints").iterdir())[-1] / name
        newest.write_bytes(newest.read_bytes()[:-7])
        watch = StopAt(10**9)
        assert weights(fit(plan, out=out, checkpoint_steps=4, progress=watch)) == whole
        assert watch.resumed_at == 4


def test_a_run_folder_with_any_damaged_file_is_refused_by_name(plan: cb.Plan, tmp_path: Path) -> None:
    fit(plan, out=tmp_path / "run", limit=600)
    for name in ("config.json", "plan.ctrplan", "summary.json", "model/state.json", "model/dense.safetensors",
                 "model/table-0.ctrtable"):  # fmt: skip
        path = tmp_path / "run" / name
        good = path.read_bytes()
        for bad in (b"", good[: len(good) // 2], good[:40] + bytes([good[40] ^ 0x10]) + good[41:]):
            path.write_bytes(bad)
            with pytest.raises(CtrboxError, match=Path(name).name.split(".")[0]):
                cb.Run.load(tmp_path / "run", model=Small(plan.schema))
        path.write_bytes(good)
    cb.Run.load(tmp_path / "run", model=Small(plan.schema))
    with pytest.raises(SourceError, match="there is no run folder"):
        cb.Run.load(tmp_path / "nowhere")
    with pytest.raises(PlanError, match=r"trained with 'Small', which is not one of cb\.models"):
        cb.Run.load(tmp_path / "run")


def test_a_plan_of_another_fingerprint_is_refused(plan: cb.Plan, tmp_path: Path) -> None:
    run = fit(plan, limit=600)
    other = plan_of(checkerboard(600), dense={"twice": cb.col("price") * 2})
    with pytest.raises(
        PlanError,
        match=f"fingerprint {plan.fingerprint[:16]}…, but this plan has the fingerprint {other.fingerprint[:16]}",
    ):
        run.evaluate(other)
    with pytest.raises(PlanError, match="trained with a plan of fingerprint"):
        run.predict_batch(next(iter(other.batches(10))))


def test_a_disk_that_fills_at_a_checkpoint_leaves_the_one_before_valid(
    plan: cb.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weights(fit(plan, out=tmp_path / "whole", checkpoint_steps=4))
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here: needs root")
    try:
        out = small / "run"
        filler = small / "filler"

        class Fill(StopAt):
            def see(self, progress: Any) -> None:
                if progress.step == 9:
                    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                        while True:
                            file.write(bytes(4096))

        with pytest.raises(WriteError, match="No space left"):
            fit(plan, out=out, checkpoint_steps=4, progress=Fill(0))
        assert [p.name for p in sorted((out / "checkpoints").iterdir())] == ["step-0000000004", "step-0000000008"]
        filler.unlink()
        watch = StopAt(10**9)
        assert weights(fit(plan, out=out, checkpoint_steps=4, progress=watch)) == whole
        assert watch.resumed_at == 8
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


# ---- what an attack found once ------------------------------------------------------------------------------------------


def test_overwrite_spares_a_folder_that_is_not_a_run(plan: cb.Plan, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "model").mkdir(parents=True)
    (project / "config.json").write_text('{"mine": 1}')
    (project / "model" / "weights.bin").write_text("w")
    with pytest.raises(DataError, match=r"config\.json"):
        fit(plan, out=project, overwrite=True)
    assert sorted(p.name for p in project.iterdir()) == ["config.json", "model"]
    assert (project / "model" / "weights.bin").read_text() == "w"


def test_a_failed_overwrite_gives_the_old_run_back(plan: cb.Plan, tmp_path: Path) -> None:
    old = weights(fit(plan, out=tmp_path / "run", limit=600))
    files = sorted(p.name for p in (tmp_path / "run").iterdir())
    with pytest.raises(Stop):
        fit(plan, out=tmp_path / "run", overwrite=True, progress=StopAt(3))
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == files
    assert weights(cb.Run.load(tmp_path / "run", model=Small(plan.schema))) == old


@pytest.mark.parametrize("moved", [0, 1, 3, 99])
def test_a_run_killed_while_it_replaced_another_gives_it_back(plan: cb.Plan, tmp_path: Path, moved: int) -> None:
    old = weights(fit(plan, out=tmp_path / "run", limit=600))
    before = tmp_path / "run" / ".before"
    before.mkdir()
    items = [p for p in (tmp_path / "run").iterdir() if p.name not in (".before", ".lock")]
    for item in sorted(items, key=lambda p: p.name == "config.json")[:moved]:
        item.rename(before / item.name)
    if moved == 99:
        (tmp_path / "run" / "config.json").write_text("half of")
    with pytest.raises(DataError, match="contains a finished run"):
        fit(plan, out=tmp_path / "run", limit=600)
    assert weights(cb.Run.load(tmp_path / "run", model=Small(plan.schema))) == old


def test_a_run_that_ended_before_its_plan_was_written_begins_again(plan: cb.Plan, tmp_path: Path) -> None:
    unfinished(plan, tmp_path / "run")
    for name in ("plan.ctrplan", "plan.svg"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / ".plan.host-1.partial.ctrplan").write_text("")
    fit(plan, out=tmp_path / "run")
    cb.Run.load(tmp_path / "run", model=Small(plan.schema))


def test_a_flipped_bit_in_a_table_means_the_checkpoint_before_it(plan: cb.Plan, tmp_path: Path) -> None:
    whole = weights(fit(plan, out=tmp_path / "whole", checkpoint_steps=4))
    unfinished(plan, tmp_path / "run")
    path = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1] / "table-0.ctrtable"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    watch = StopAt(10**9)
    assert weights(fit(plan, out=tmp_path / "run", checkpoint_steps=4, progress=watch)) == whole
    assert watch.resumed_at == 4


def test_other_rows_in_memory_are_other_data(tmp_path: Path) -> None:
    unfinished(plan_of(checkerboard(6000, seed=1)), tmp_path / "run")
    with pytest.raises(DataError, match="differs in data"):
        fit(plan_of(checkerboard(6000, seed=2)), out=tmp_path / "run")


def test_functions_as_optimizer_and_schedule_can_be_resumed(plan: cb.Plan, tmp_path: Path) -> None:
    import torch

    def train(**options: Any) -> cb.Run:
        trainer = cb.Trainer(Small(plan.schema), table(), optimizer=lambda p: torch.optim.AdamW(p, lr=0.01))
        return trainer.fit(plan, out=tmp_path / "run", checkpoint_steps=4, schedule=lambda step: 0.5, **FAST, **options)

    with pytest.raises(Stop):
        train(progress=StopAt(10))
    watch = StopAt(10**9)
    train(progress=watch)
    assert watch.resumed_at == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [("epoch", "1"), ("step", None), ("rows", []), ("position", {"row": "x"}), ("position", {"far": 1}), ("losses", 3)],
)
def test_a_hostile_state_is_damage_not_a_crash(plan: cb.Plan, tmp_path: Path, name: str, value: Any) -> None:
    from ctrbox.files.sealed_json import read_sealed, sealed

    unfinished(plan, tmp_path / "run")
    for place in (tmp_path / "run" / "checkpoints").iterdir():
        kept = read_sealed(place / "state.json", "")
        kept["state"][name] = value
        (place / "state.json").write_text(sealed(kept))
    with pytest.raises(DataError, match=r"no checkpoint in .* can be used"):
        fit(plan, out=tmp_path / "run")


def test_half_a_removal_of_a_replaced_run_is_finished_not_undone(plan: cb.Plan, tmp_path: Path) -> None:
    unfinished(plan, tmp_path / "run")
    gone = tmp_path / "run" / ".gone"
    (gone / "model").mkdir(parents=True)
    (gone / "config.json").write_text("of the run before")
    watch = StopAt(10**9)
    fit(plan, out=tmp_path / "run", progress=watch)
    assert watch.resumed_at == 8
    assert not gone.exists()
