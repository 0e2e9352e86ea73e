"""A second day's training: as if the first had not ended; learning rates of tables that exist; runs that begin anew."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import DataError, PlanError
from ctrbox.train.warm_up import differences

BATCH, DAY = 100, 600
FAST: dict[str, Any] = {"batch_size": BATCH, "valid": 0.0, "checkpoint_seconds": 1e9}


def log(count: int = 2 * DAY, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    user, ad = rng.integers(0, 50, count), rng.integers(0, 80, count)
    clicked = (rng.random(count) < 1 / (1 + np.exp(-((user % 5) - (ad % 4))))).astype(np.int64)
    return pa.table({"id": np.arange(count), "user": user, "ad": ad, "clicked": clicked, "bid": rng.random(count)})


def planned(rows: pa.Table) -> cb.Plan:
    sparse, dense = {"user": col("user"), "ad": col("ad")}, {"bid": col("bid")}
    return cb.compile(
        cb.View(rows, key="id"), cb.FeatureSet(label=col("clicked"), sparse=sparse, dense=dense), threads=1
    )


@pytest.fixture(scope="module")
def days() -> tuple[cb.Plan, cb.Plan, cb.Plan]:
    """The first day, the second, and both together."""
    rows = log()
    return planned(rows.slice(0, DAY)), planned(rows.slice(DAY)), planned(rows)


def trainer(plan: cb.Plan, table: Any, **options: Any) -> cb.Trainer:
    torch.manual_seed(7)
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,), dropout=0.3)  # dropout: the random state matters, too
    return cb.Trainer(model, table, optimizer=cb.optim.Adam(lr=0.01), threads=1, **options)


def weights(run: cb.Run) -> list[bytes]:
    dense = [value.numpy().tobytes() for value in run.model.state_dict().values()]
    return [*dense, *(part.tobytes() for part in run.learner.embedders[0].export())]


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in ("LOCK", ".lock")):
        found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


@pytest.mark.parametrize("kind", ["memory", "sparse"])
def test_two_days_are_one_training_bit_for_bit(days: Any, kind: str, tmp_path: Path) -> None:
    first, second, both = days

    def table(name: str) -> Any:
        optimizer = cb.Adagrad(lr=0.05)
        if kind == "memory":
            return cb.MemoryTable(4, optimizer=optimizer)
        return cb.SparseTable(tmp_path / name, 4, ram="4MB", optimizer=optimizer)

    whole = trainer(both, table("whole")).fit(both, **FAST)
    mine = table("days")
    trainer(first, mine).fit(first, out=tmp_path / "one", **FAST)
    before = digest(tmp_path / "one")
    if kind == "sparse":
        mine.close()
        mine = table("days")  # as another process would open it
    else:
        mine = table("days")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = trainer(second, mine).fit(
            second, out=tmp_path / "two", warm_up="continue", warm_from=tmp_path / "one", **FAST
        )
    assert weights(run) == weights(whole)
    assert digest(tmp_path / "one") == before
    assert cb.Run.load(tmp_path / "one", views={"memory": log(10)}).predict(log(10)).shape == (10,)


def test_two_days_are_one_training_when_the_first_run_is_in_memory(days: Any) -> None:
    first, second, both = days
    whole = trainer(both, cb.MemoryTable(4)).fit(both, **FAST)
    run = trainer(first, cb.MemoryTable(4)).fit(first, **FAST)
    torch.rand(5)  # whatever happens in between
    again = trainer(second, cb.MemoryTable(4)).fit(second, warm_up="continue", warm_from=run, **FAST)
    assert weights(again) == weights(whole)


def test_a_full_warm_up_begins_with_a_fresh_optimizer_and_differs(days: Any, tmp_path: Path) -> None:
    first, second, both = days
    whole = trainer(both, cb.MemoryTable(4)).fit(both, **FAST)
    trainer(first, cb.MemoryTable(4)).fit(first, out=tmp_path / "one", **FAST)
    run = trainer(second, cb.MemoryTable(4)).fit(second, warm_up="full", warm_from=tmp_path / "one", **FAST)
    assert weights(run) != weights(whole)


def test_a_second_day_goes_on_from_the_best_weights_with_their_optimizer(days: Any, tmp_path: Path) -> None:
    first, second, _ = days
    options = {**FAST, "valid": 0.2, "evaluate_every": 1, "patience": 2, "epochs": 3}
    run = trainer(first, cb.MemoryTable(4), lr=2.0).fit(first, out=tmp_path / "one", **options)
    assert run.summary["best_step"] < run.summary["steps"]  # otherwise nothing came back
    assert run.learner.optimizer is not None
    steps = {float(state["step"]) for state in run.learner.optimizer.state.values()}
    assert steps == {run.summary["best_step"]}
    trainer(second, cb.MemoryTable(4)).fit(second, warm_up="continue", warm_from=tmp_path / "one", **FAST)


def test_another_dense_optimizer_or_table_kind_cannot_continue(days: Any, tmp_path: Path) -> None:
    first, second, _ = days
    trainer(first, cb.MemoryTable(4)).fit(first, out=tmp_path / "one", **FAST)
    options = {**FAST, "warm_up": "continue", "warm_from": tmp_path / "one"}
    other = trainer(second, cb.MemoryTable(4))
    other.optimizer = cb.optim.SGD(lr=0.1)
    with pytest.raises(PlanError, match="trained with the dense optimizer Adam, but this training uses SGD"):
        other.fit(second, **options)
    with pytest.raises(DataError, match="cannot use those optimizer states"):
        trainer(second, cb.MemoryTable(4, optimizer=cb.optim.SGD())).fit(second, **options)


def test_the_second_day_may_have_another_learning_rate(days: Any, tmp_path: Path) -> None:
    first, second, _ = days
    trainer(first, cb.MemoryTable(4)).fit(first, out=tmp_path / "one", **FAST)
    options = {**FAST, "warm_up": "continue", "warm_from": tmp_path / "one"}
    found = [
        weights(trainer(second, table, lr=lr).fit(second, **options))
        for table, lr in (
            (cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.5)), None),
            (cb.MemoryTable(4), 0.5),
            (cb.MemoryTable(4), None),
        )
    ]
    assert found[0] == found[1] != found[2]


def test_lr_without_tables_is_refused_and_another_lr_is_another_run(days: Any, tmp_path: Path) -> None:
    first, *_ = days

    class Stop(Exception):
        pass

    class StopAt:
        def see(self, progress: Any) -> None:
            raise Stop

        def evaluated(self, metrics: Any) -> None: ...

        def resumed(self, step: int, rows: int) -> None: ...

        def end(self) -> None: ...

    options = {**FAST, "out": tmp_path / "run", "checkpoint_steps": 1}
    with pytest.raises(Stop):
        trainer(first, cb.MemoryTable(4), lr=0.1).fit(first, progress=StopAt(), **options)
    with pytest.raises(DataError, match="differs in tables"):
        trainer(first, cb.MemoryTable(4), lr=0.2).fit(first, **options)
    for lr in (0.0, -1, "fast", float("nan")):
        with pytest.raises(PlanError, match="lr must be a number above 0"):
            trainer(first, cb.MemoryTable(4), lr=lr)


def test_overwrite_asks_what_becomes_of_the_rows_of_a_table(days: Any, tmp_path: Path) -> None:
    first, *_ = days
    with cb.SparseTable(tmp_path / "params", 4, ram="4MB") as table:
        one = weights(trainer(first, table).fit(first, out=tmp_path / "run", **FAST))
        held = len(table)
        with pytest.raises(PlanError, match=rf"params still holds {held} rows .*tables='empty'.*tables='keep'"):
            trainer(first, table).fit(first, out=tmp_path / "run", overwrite=True, **FAST)
        assert len(table) == held
        assert (tmp_path / "run" / "summary.json").exists()  # the run of before is as it was
        again = trainer(first, table).fit(first, out=tmp_path / "run", overwrite=True, tables="empty", **FAST)
        assert weights(again) == one
        kept = trainer(first, table).fit(first, out=tmp_path / "run", overwrite=True, tables="keep", **FAST)
        assert weights(kept) != one
    with pytest.raises(PlanError, match="tables must be 'keep' or 'empty', got 'emtpy'"):
        trainer(first, cb.MemoryTable(4)).fit(first, tables="emtpy", **FAST)


def test_rows_of_a_table_in_memory_are_told_as_those_on_disk(days: Any) -> None:
    first, *_ = days
    table = cb.MemoryTable(4)
    trainer(first, table).fit(first, **FAST)
    with pytest.warns(
        UserWarning, match="the MemoryTable already holds .* rows, and this training continues from them"
    ):
        trainer(first, table).fit(first, **FAST)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(first, table).fit(first, tables="keep", **FAST)


def test_a_second_training_on_the_same_log_says_so(days: Any, tmp_path: Path) -> None:
    first, second, _ = days
    run = trainer(first, cb.MemoryTable(4)).fit(first, out=tmp_path / "run", **FAST)
    for earlier in (run, tmp_path / "run"):
        with pytest.warns(
            UserWarning, match=r"was trained on the same log 'memory', so this training sees rows that its model"
        ):
            trainer(first, cb.MemoryTable(4)).fit(first, warm_up="continue", warm_from=earlier, **FAST)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer(second, cb.MemoryTable(4)).fit(second, warm_up="continue", warm_from=earlier, **FAST)


def test_each_difference_to_the_earlier_model_is_one_line(days: Any) -> None:
    first, second, _ = days
    run = cb.Trainer(cb.models.DeepFM(first.schema, dim=4, hidden=(8,)), threads=1).fit(first, **FAST)
    wider = cb.models.DeepFM(second.schema, dim=8, hidden=(8,))
    with pytest.raises(PlanError) as met:
        cb.Trainer(wider, threads=1).fit(second, warm_up="full", warm_from=run, **FAST)
    lines = str(met.value).splitlines()
    assert lines[0].endswith("build both with the same arguments. The differences are:")
    assert lines[1:] == ["  dim: 4 there, 8 here"]
    theirs, mine = (
        {"dim": {"user": 4, "ad": 8}, "hidden": [8]},
        {"dim": {"user": 4, "ad": 16, "query": 2}, "hidden": [8]},
    )
    assert differences(theirs, mine) == ["dim of 'ad': 8 there, 16 here", "dim of 'query': not set there, 2 here"]
    assert differences({"dim": 4}, {"dim": {"user": 4}}) == ["dim: 4 there, {'user': 4} here"]
