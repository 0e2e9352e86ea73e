"""Ranks train these as one process does: several labels, averages, counters, admission, common features, Model Servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import SourceError
from ctrbox.models.inputs import Inputs, Reads
from tests.ranks.threads import DRAWING, Plain, in_ranks
from tests.train.test_several_labels import world
from tests.train.worlds import features, weights

LABELS = {"click": col("clicked"), "convert": col("converted"), "value": cb.Label("revenue", "regression")}


pytestmark = pytest.mark.usefixtures("one_thread")


class Run:
    """One kind of training, by any number of ranks: each rank makes its own model and table."""

    def __init__(self, plan: cb.Plan, model: Any, table: Any, trainer: dict[str, Any] | None = None) -> None:
        self.plan, self.model, self.table, self.trainer = plan, model, table, trainer or {}

    def __call__(self, size: int, **options: Any) -> cb.Run:
        options = {"batch_size": 64, "checkpoint_seconds": 1e9, "explain": False, **options}

        def work(ranks: Any) -> Any:
            with DRAWING:
                torch.manual_seed(3)
                net = self.model(self.plan.schema)
                table = self.table(0 if ranks is None else ranks.world.rank)
            return cb.Trainer(net, table, threads=1, **self.trainer).fit(self.plan, **options, cluster=ranks)

        found = work(None) if size == 1 else in_ranks(size, work)[0]
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, cb.Run)
        return found


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def deepfm(schema: cb.types.Schema) -> Any:
    return cb.models.DeepFM(schema, dim=4, hidden=(8,), dropout=0.0)


def stopping(last: int | None) -> Any:
    """A model that fails in its step ``last``, counted from the start of this training."""

    def made(schema: cb.types.Schema) -> Any:
        net = Plain(schema)
        net.stop_at = last
        return net

    return made


def adagrad(**more: Any) -> cb.MemoryTable:
    return cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1, **more)


def export(run: cb.Run) -> list[np.ndarray]:
    return list(run.learner.embedders[0].export())  # type: ignore[attr-defined]


def close(found: cb.Run, alone: cb.Run, atol: float = 1e-3) -> None:
    """Rows of tables and dense weights agree: one row learned twice or not at all would move them by more."""
    for some, others in zip(export(found), export(alone), strict=True):
        np.testing.assert_allclose(some, others, atol=atol)
    for some, others in zip(found.model.state_dict().values(), alone.model.state_dict().values(), strict=True):
        np.testing.assert_allclose(some.numpy(), others.numpy(), atol=atol)


@pytest.mark.parametrize("stored", [True, False], ids=["shared reading", "every rank reads"])
def test_several_labels_are_those_of_one_process(stored: bool, tmp_path: Path) -> None:
    rows = world(500)
    pq.write_table(rows, tmp_path / "log.parquet", row_group_size=200)
    features = cb.FeatureSet(
        labels=LABELS,
        group=col("user"),
        weight=col("x").abs(),
        sparse={"user": col("user").key()},
        dense={"x": col("x")},
    )
    data = str(tmp_path / "log.parquet") if stored else rows
    plan = cb.compile(cb.View(data, key="id"), features, threads=1)
    run = Run(plan, lambda s: cb.models.ESMM(s, dim=4, hidden=(8,), weights="learned"), lambda rank: adagrad())
    options: dict[str, Any] = {"valid": 0.2, "evaluate_every": 4, "monitor": "click.auc", "patience": 5}
    alone = run(1, out=tmp_path / "1", **options)
    for size in (2, 3) if stored else (2,):
        found = run(size, out=tmp_path / str(size), **options)
        np.testing.assert_allclose(losses(tmp_path / str(size)), losses(tmp_path / "1"), atol=1e-5)
        assert dict(found.metrics) == pytest.approx(dict(alone.metrics), abs=1e-4, nan_ok=True)
        close(found, alone)


def test_a_label_that_no_rank_observed_is_refused_once_for_all() -> None:
    rows = world(200)
    rows = rows.set_column(5, "revenue", pa.nulls(200, pa.float64()))
    features = cb.FeatureSet(labels=LABELS, sparse={"user": col("user").key()}, dense={"x": col("x")})
    plan = cb.compile(cb.View(rows, key="id"), features, threads=1)
    run = Run(plan, lambda s: cb.models.SharedBottom(s, dim=4, hidden=(8,)), lambda rank: adagrad())
    with pytest.raises(cb.errors.TrainError, match="label 'value' is null in all 200 training rows"):
        run(2, valid=0.0)


def test_averages_calibration_plateaus_and_l2_are_those_of_one_process(plan: cb.Plan, tmp_path: Path) -> None:
    run = Run(plan, deepfm, lambda rank: adagrad())

    def options() -> dict[str, Any]:
        return {
            "limit": 900,
            "average": 0.9,
            "l2": 1e-4,
            "calibrate": "isotonic",
            "schedule": cb.optim.ReduceOnPlateau(patience=1),
            "evaluate_every": 3,
            "patience": 50,
            "epochs": 2,
            "checkpoint_steps": 8,
        }

    alone = run(1, out=tmp_path / "1", **options())
    found = run(3, out=tmp_path / "3", **options())
    np.testing.assert_allclose(losses(tmp_path / "3"), losses(tmp_path / "1"), atol=1e-5)
    assert found.summary["best_step"] == alone.summary["best_step"]
    assert found.metrics["logloss"] == pytest.approx(alone.metrics["logloss"], abs=1e-4)
    assert found.learner.calibration is not None
    rates = [json.loads(line).get("lr") for line in (tmp_path / "3" / "metrics.jsonl").read_text().splitlines()]
    assert min(rate for rate in rates if rate is not None) < 1.0  # the plateau was met
    close(found, alone)


def test_a_rank_without_rows_follows_the_schedule(plan: cb.Plan) -> None:
    """Batches of two rows leave one of three ranks without rows in each step, but it owns rows that the others learn."""
    run = Run(plan, deepfm, lambda rank: adagrad())
    options: dict[str, Any] = {"limit": 60, "batch_size": 2, "valid": 0.1, "schedule": cb.optim.Warmup(steps=20)}
    close(run(3, **options), run(1, **options), atol=1e-5)


COUNTED: dict[str, Any] = {
    "counters": cb.tables.Counters(0.9),
    "admission": cb.tables.Admission(count=9, probability=0.7, sketch="1MB"),
}


def test_counters_admission_and_adaptive_l2_are_those_of_one_process(plan: cb.Plan, tmp_path: Path) -> None:
    """The log has 86 keys, and the chance decides by the number of pushes: a rank that misses one would admit others."""
    run = Run(plan, deepfm, lambda rank: adagrad(**COUNTED))
    options: dict[str, Any] = {"limit": 560, "adaptive_l2": 0.05, "batch_size": 16, "valid": 0.2}
    alone = run(1, out=tmp_path / "1", **options)
    assert 40 < len(alone.learner.embedders[0]) < 86
    again = [run(3, out=tmp_path / f"3-{k}", **options) for k in range(2)]
    assert weights(again[0]) == weights(again[1])
    np.testing.assert_allclose(losses(tmp_path / "3-0"), losses(tmp_path / "1"), atol=1e-5)
    close(again[0], alone)
    shows = [export(one)[2][:, -3:] for one in (alone, again[0])]
    np.testing.assert_array_equal(*shows)  # shows, clicks and period of every row


@pytest.mark.parametrize("kind", ["memory", "sparse"])
def test_counts_survive_another_number_of_ranks_and_rows_expire_then(kind: str, plan: cb.Plan, tmp_path: Path) -> None:
    def table(name: str) -> Any:
        def made(rank: int) -> Any:
            if kind == "memory":
                return adagrad(**COUNTED)
            place = tmp_path / f"{name}-{rank}"
            return cb.SparseTable(place, 4, ram="24MB", optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1, **COUNTED)

        return made

    options: dict[str, Any] = {"limit": 400, "batch_size": 16, "checkpoint_steps": 5, "valid": 0.1}
    whole = Run(plan, stopping(None), table("whole"))(1, out=tmp_path / "whole", **options)
    for size, last in ((3, 8), (1, 4)):
        with pytest.raises(cb.errors.TrainError, match="stopped by the test"):
            Run(plan, stopping(last), table(f"cut-{size}"))(size, out=tmp_path / "run", **options)
    found = Run(plan, stopping(None), table("end"))(2, out=tmp_path / "run", **options)
    close(found, whole)
    ends: list[Any] = [run.learner.embedders[0] for run in (found, whole)]
    for end in ends:
        end.advance(2)
    assert ends[0].clock == ends[1].clock == 2
    assert ends[0].expire(score=2.0) == ends[1].expire(score=2.0) > 0


def test_parts_of_different_clocks_are_refused(tmp_path: Path) -> None:
    tables = [adagrad(counters=cb.tables.Counters()) for _ in range(2)]
    tables[1].advance()
    for k, table in enumerate(tables):
        table.save(tmp_path / f"{k}.ctrtable")
    with pytest.raises(SourceError, match="at period 1 and push 0, but another part of the table is at period 0"):
        adagrad(counters=cb.tables.Counters()).join_life([tmp_path / f"{k}.ctrtable" for k in range(2)])


def visits(rows: int = 1200) -> pa.Table:
    """Users with six rows each; a third of them changes its history in between."""
    rng = np.random.default_rng(0)
    user, ad = np.arange(rows) // 6, rng.integers(0, 30, rows)
    likes = [rng.integers(0, 30, rng.integers(1, 5)).tolist() for _ in range(rows // 6)]
    history = [[*likes[u], 29] if u % 3 == 0 and r % 6 > 2 else likes[u] for r, u in enumerate(user)]
    clicked = np.array([(a in h) or c for a, h, c in zip(ad, history, rng.random(rows) < 0.2, strict=True)])
    return pa.table({"id": np.arange(rows), "user": user, "ad": ad, "clicked": clicked, "history": history})


def din_run(log: Path, activation: str, **features: Any) -> Run:
    """DIN on a log of ``visits``, with the history as a common feature; ``features``: more of them."""
    chosen = cb.FeatureSet(
        label=col("clicked"),
        group=col("user"),
        sparse={"ad": col("ad").key(space="ad"), "history": col("history").key(space="ad"), "user": col("user").key()},
        **features,
    )
    return Run(
        cb.compile(cb.View(str(log), key="id"), chosen, threads=1),
        lambda s: cb.models.DIN(s, dim=4, attention=(6,), hidden=(8,), activation=activation),
        lambda rank: adagrad(),
        {"common": ["history"]},
    )


def test_common_features_of_din_are_those_of_one_process(tmp_path: Path) -> None:
    pq.write_table(visits(), tmp_path / "log.parquet", row_group_size=250)
    run = din_run(tmp_path / "log.parquet", "prelu")
    options: dict[str, Any] = {"batch_size": 50}
    alone = run(1, out=tmp_path / "1", **options)
    for size in (2, 4):
        found = run(size, out=tmp_path / str(size), **options)
        np.testing.assert_allclose(losses(tmp_path / str(size)), losses(tmp_path / "1"), atol=1e-5)
        close(found, alone)


class Pictured(torch.nn.Module):
    def __init__(self, schema: cb.types.Schema) -> None:
        super().__init__()
        self.reads = Reads(schema, 4)
        self.tower = torch.nn.Linear(self.reads.width, 1)

    def forward(self, x: Inputs) -> torch.Tensor:
        return self.tower(x.flat).squeeze(1)  # type: ignore[no-any-return]


def test_a_model_server_is_that_of_one_process(plan: cb.Plan, tmp_path: Path) -> None:
    features = cb.FeatureSet(
        label=col("clicked"), sparse={"user": col("user").key(), "image": col("ad").key(space="image")}
    )
    plan = cb.compile(plan.log, features, threads=1)
    rng = np.random.default_rng(0)
    cb.tables.write_vectors(
        tmp_path / "images.ctrvec",
        pa.table({"ad": np.arange(30), "v": list(rng.standard_normal((30, 6)).astype(np.float32))}),
        key=col("ad").key(space="image"),
        vector="v",
    )

    def tables(rank: int) -> dict[str, Any]:
        torch.manual_seed(5)
        server = cb.tables.ModelServer(
            tmp_path / "images.ctrvec", torch.nn.Linear(6, 4), optimizer=cb.optim.SGD(lr=0.5)
        )
        return {"image": server, "*": cb.MemoryTable(4, optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1)}

    run = Run(plan, Pictured, tables)
    options: dict[str, Any] = {"limit": 700, "batch_size": 50, "checkpoint_steps": 6}
    alone = run(1, out=tmp_path / "1", **options)
    runs = [run(size, out=tmp_path / f"{size}-{k}", **options) for k, size in enumerate((3, 3))]
    servers: list[Any] = [
        next(e for e in r.learner.embedders if isinstance(e, cb.tables.ModelServer)) for r in [alone, *runs]
    ]
    before = torch.nn.Linear(6, 4).weight
    assert not torch.allclose(before, servers[0].submodel.weight, atol=1e-3)
    for found, server, name in zip(runs, servers[1:], ("3-0", "3-1"), strict=True):
        np.testing.assert_allclose(losses(tmp_path / name), losses(tmp_path / "1"), atol=1e-5)
        torch.testing.assert_close(server.submodel.weight, servers[0].submodel.weight, atol=1e-4, rtol=0)
        assert found.summary["servers"] == alone.summary["servers"]
        assert found.summary["servers"][0]["missing"] > 0  # the ads of 30 and more
    assert torch.equal(servers[1].submodel.weight, servers[2].submodel.weight)


def test_a_filtered_log_is_learned_once_by_any_numbers_of_ranks(plan: cb.Plan, tmp_path: Path) -> None:
    """Validation rows are filtered, too; each rank decodes its own row groups of both."""
    log = plan.log.filter((col("price") > 0.3) & (col("device") == "web"))
    filtered = cb.compile(log, features(), threads=1)
    options: dict[str, Any] = {"epochs": 2, "shuffle": 200, "batch_size": 50, "checkpoint_steps": 4, "negatives": 0.8}
    whole = Run(filtered, stopping(None), lambda rank: adagrad())(1, out=tmp_path / "1", **options)
    for size, last in ((3, 10), (2, 9)):
        with pytest.raises(cb.errors.TrainError, match="stopped by the test"):
            Run(filtered, stopping(last), lambda rank: adagrad())(size, out=tmp_path / "run", **options)
    found = Run(filtered, stopping(None), lambda rank: adagrad())(3, out=tmp_path / "run", **options)
    assert found.summary["rows"] == whole.summary["rows"]
    assert found.summary["steps"] == whole.summary["steps"]
    assert found.metrics["auc"] == pytest.approx(whole.metrics["auc"], abs=1e-4)
    close(found, whole)
    told = found.summary["ranks"]
    assert [one["rank"] for one in told] == [0, 1, 2]
    assert all(one["rows_read"] > 0 and one["bytes_read"] > 0 and one["bytes_sent_per_step"] > 0 for one in told)
