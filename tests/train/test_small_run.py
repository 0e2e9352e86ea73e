"""One small training with a Model Server, looked at from all sides: records, summary, files that come back, "
"published weights."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.callbacks import Callback
from ctrbox.embed.vectors.count_keys_without_vector import BATCHES
from ctrbox.errors import DataError, PlanError
from ctrbox.files.sealed_json import read_sealed
from ctrbox.predict.published_run import click_model_of, weights_of_run
from ctrbox.predict.read_run_folder import _and_those_of, other_plan, server_tables, servers_of
from ctrbox.predict.unlearned_keys import refusing_unknown
from ctrbox.publish.weight_file import Weights
from ctrbox.train import fit as fit_module
from ctrbox.train.batch_feed import Foresight, Handed
from ctrbox.train.feature_trial import _Arm
from ctrbox.train.learn_batch import Learner
from ctrbox.train.pass_times import Passes
from ctrbox.train.pipeline import Clock
from ctrbox.train.settings import Settings
from ctrbox.train.summary import Look, few_valued, summarize, time_column
from ctrbox.train.training_progress import State

ROWS, ADS, WIDTH, DIM, BATCH = 200, 20, 3, 2, 20
DECAY = cb.optim.Decay(0.5, every=2)


def log(rows: int = ROWS, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    user, ad = rng.integers(0, 10, rows), rng.integers(0, ADS, rows)
    return pa.table(
        {
            "id": np.arange(rows),
            "ts": pa.array([None if k == 5 else k * 3_600_000_000 for k in range(rows)], pa.timestamp("us")),
            "user": user,
            "ad": ad,
            "bid": rng.random(rows),
            "clicked": (rng.random(rows) < 0.25 + 0.5 * (user % 2)).astype(np.int8),
        }
    )


def planned(rows: pa.Table) -> cb.Plan:
    sparse = {"user": col("user"), "image": col("ad").key(space="image"), "bucket": col("bid").bucketize(quantiles=4)}
    features = cb.FeatureSet(label=col("clicked"), group=col("user"), sparse=sparse, dense={"bid": col("bid")})
    return cb.compile(cb.View(rows, key="id"), features, threads=1)


class Steps(Callback):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, event: Any) -> None:
        self.losses.append(event.loss)


@dataclasses.dataclass(frozen=True)
class World:
    """A finished run, its folder, its vector file, the losses of its steps, and all that may be asked of it."""

    run: cb.Run
    folder: Path
    file: cb.tables.VectorFile
    losses: list[float]
    took: float  # seconds


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    place = tmp_path_factory.mktemp("small")
    vectors = np.random.default_rng(1).standard_normal((ADS, WIDTH)).astype(np.float32)
    data = {"ad": np.arange(ADS), "v": vectors}
    file = cb.tables.write_vectors(place / "images.ctrvec", data, key=col("ad").key(space="image"), vector="v")
    plan, steps = planned(log()), Steps()
    torch.manual_seed(0)
    server = cb.tables.ModelServer(file, cb.tables.ImageEmbedding(WIDTH, (4,), DIM))
    model = cb.models.EmbeddingMLP(plan.schema, dim=DIM, hidden=(4,))
    trainer = cb.Trainer(model, {"image": server, "*": cb.MemoryTable(DIM)}, threads=1)
    began = time.perf_counter()
    run = trainer.fit(
        plan, valid=0.1, epochs=2, batch_size=BATCH, schedule=DECAY, out=place / "run", callbacks=[steps], seed=3
    )
    return World(run, place / "run", file, steps.losses, time.perf_counter() - began)


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["kind"] == kind]


# ---- what a training records


def test_every_step_of_a_short_run_is_recorded_with_its_smoothed_loss_and_rate(world: World) -> None:
    lines = records(world.folder, "train")
    assert [line["step"] for line in lines] == [*range(1, 19)]  # 180 rows of training, batches of 20, two epochs
    assert [line["rows"] for line in lines] == [BATCH * k for k in range(1, 19)]
    assert [line["lr"] for line in lines] == [DECAY(k) for k in range(18)]
    assert [line["epoch"] for line in lines] == [0] * 9 + [1] * 9
    assert len(world.losses) == 18
    top = bottom = 0.0
    for line, loss in zip(lines, world.losses, strict=True):
        top, bottom = 0.95 * top + 0.05 * loss, 0.95 * bottom + 0.05
        assert line["loss"] == pytest.approx(top / bottom)
        assert line["rows_per_second"] == pytest.approx(line["rows"] / line["seconds"])
        assert 0 < line["seconds"] <= world.run.summary["seconds"] <= world.took


def test_each_epoch_is_evaluated_and_recorded_without_the_ends_of_intervals(world: World) -> None:
    lines = records(world.folder, "valid")
    assert [(line["step"], line["epoch"], line["rows"]) for line in lines] == [(9, 1, 180), (18, 2, 360)]
    assert "auc_se" in lines[0]
    assert "auc_low" not in lines[0]


@pytest.mark.parametrize(
    ("points", "steps"), [(18, [*range(1, 19)]), (9, [1, *range(2, 19, 2)]), (5, [1, 3, 6, 9, 12, 15, 18])]
)
def test_long_runs_record_about_so_many_points(
    world: World, tmp_path: Path, points: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_module, "POINTS", points)
    plan = world.run.plan
    trainer = cb.Trainer(cb.models.LR(plan.schema), threads=1)
    trainer.fit(plan, valid=0.1, epochs=2, batch_size=BATCH, out=tmp_path / "run", explain=False)
    # The last step of an epoch is recorded in any case.
    assert [line["step"] for line in records(tmp_path / "run", "train")] == sorted({*steps, 9, 18})


def test_the_identity_of_a_run_names_its_job_and_not_its_device(world: World) -> None:
    identity = read_sealed(world.folder / "config.json", "run folder")["identity"]
    assert "device" not in identity  # a run may go on on another device
    assert identity["common"] == []
    assert identity["warm up"] == ["none"]


def test_the_summary_of_the_folder_is_that_of_the_run(world: World) -> None:
    found = read_sealed(world.folder / "summary.json", "run folder")
    assert found["rows"] == {"train": 360, "valid": 20}
    assert (found["epochs"], found["steps"], found["batch_size"]) == (2, 18, BATCH)
    assert found["held"] == {"start": 180, "stop": 200}
    assert found["rows_without_time"] == 0  # the row without a time is not among the last twenty
    assert sum(w["rows"] for w in found["windows"]) == 20
    assert sum(b["rows"] for b in found["calibration"]) == 20
    assert found["servers"] == [
        {
            "fields": ["image"],
            "data": str(world.file.path),
            "keys": found["servers"][0]["keys"],
            "missing": 0,
            "missing_share": 0.0,
        }
    ]
    assert {f["name"]: f["kind"] for f in found["features"]} == {
        **dict.fromkeys(("user", "image", "bucket"), "sparse"),
        "bid": "dense",
    }


def test_a_stage_that_waited_for_room_is_not_the_bottleneck(world: World) -> None:
    learner, plan = world.run.learner, world.run.plan
    # The source did the most work and waited for room behind it; the learner waited for nothing.
    clocks = [
        Clock("extract", 5.0, 0.0, 3.0, 90),
        Clock("lookup", 1.0, 0.5, 6.5, 90),
        Clock("learn", 4.8, 0.2, rows=90),
    ]
    passes = Passes(clocks, learner.embedders, 1)
    state = State(seconds=8.0, seen=90, step=5, epoch=1)
    timed = {"seconds": 5.0, "extract_busy": 3.0, "extract_for_room": 2.0, "lookup_busy": 1.0, "lookup_for_room": 4.0}
    passes.done["stages"] = {**timed, "learn_busy": 4.8, "learn_for_input": 0.2}
    found = summarize(learner, plan, Settings(batch_size=7), state, clocks, passes)
    assert found["bottleneck"] == "learn"
    passes.done["stages"] = {**timed, "learn_busy": 2.5, "learn_for_input": 2.5}
    found = summarize(learner, plan, Settings(batch_size=7), state, clocks, passes)
    assert found["bottleneck"] == "extract"
    passes.done["stages"] = {**timed, "extract_busy": 2.9, "learn_busy": 2.5, "learn_for_input": 2.5}
    assert summarize(learner, plan, Settings(batch_size=7), state, clocks, passes)["bottleneck"] is None


def test_a_summary_tells_shares_of_the_time_of_this_process(world: World) -> None:
    learner, plan = world.run.learner, world.run.plan
    clocks = [Clock("extract", 1.0, 0.25, 0.5, 90, 4, 6, 3), Clock("learn", 9.0, rows=90), Clock("idle")]
    passes = Passes(clocks, learner.embedders, 1)
    passes.done["stages"] = {"seconds": 5.0, "extract_busy": 1.0, "learn_busy": 3.0}
    state = State(seconds=3600.0, seen=7200, step=5, epoch=1, best_step=4)
    found = summarize(learner, plan, Settings(batch_size=7), state, clocks, passes, before=3595.0)
    began, ended = (datetime.fromisoformat(found[name]) for name in ("started", "finished"))
    assert 3599 <= (ended - began).total_seconds() <= 3602
    assert [s["name"] for s in found["stages"]] == ["extract", "learn"]
    assert [s["utilization"] for s in found["stages"]] == [pytest.approx(0.2), 1.0]
    assert (found["stages"][0]["waited"], found["stages"][0]["queue"], found["stages"][0]["queue_most"]) == (
        0.75,
        1.5,
        3,
    )
    assert "queue" not in found["stages"][1]
    assert (found["bottleneck"], found["rows_per_second"], found["batch_size"]) == ("learn", 2.0, 7)
    shares = found["pipeline"].pop("stages")
    assert shares == [
        {"name": "extract", "busy": pytest.approx(0.2), "waited": 0.0},
        {"name": "learn", "busy": pytest.approx(0.6), "waited": 0.0},
    ]
    assert found["pipeline"] == {"seconds": 5.0, "sequential": 4.0, "slowest": 3.0}
    assert found["table"]["keys"] == sum(len(e) for e in learner.embedders)
    assert found["dense_weights"] == sum(p.numel() for p in learner.model.parameters())


def test_a_log_with_one_time_has_windows_and_fields_of_few_values_are_slices(world: World) -> None:
    plan = world.run.plan
    assert repr(time_column(plan)) == repr(col("ts"))
    two = planned(log().append_column("later", log().column("ts")))
    assert time_column(two) is None
    described = [{"name": "user", "kind": "sparse", "distinct": 200, "keys": 1.0}]
    assert [*few_valued(plan, described)] == ["user"]
    for other in ({"distinct": 201}, {"keys": 1.5}, {"kind": "dense"}, {"name": "bucket"}):
        assert few_valued(plan, [{**described[0], **other}]) == {}
    assert [*few_valued(plan, [{**described[0], "name": "image"}])] == ["image"]


def test_what_the_validation_is_cut_by_is_checked_before(world: World) -> None:
    plan = world.run.plan
    Look(col("ts"), {"hour": col("ts").hour()}).check(plan)
    Look().check(plan)
    Look("ts", {"hour": "ts"}).check(plan)
    with pytest.raises(PlanError, match=r"^column 'zeit' is not in view"):
        Look("zeit").check(plan)
    with pytest.raises(PlanError, match=r"^column 'stunde' is not in view"):
        Look(by={"hour": "stunde"}).check(plan)
    with pytest.raises(PlanError, match="by must be a dict from names to expressions, got list"):
        Look(by=["user"]).check(plan)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"time must be a time, such as col\('ts'\), got int; make it a time"):
        Look(col("user")).check(plan)
    with pytest.raises(PlanError, match=r"time must be a time, such as col\('ts'\), got float$"):
        Look(col("bid")).check(plan)


# ---- a run that comes back


def test_a_run_comes_back_from_its_folder_and_a_vector_file(world: World) -> None:
    servers = servers_of(world.folder, {"image": world.file.path})
    loaded = cb.Run.load(world.folder, views={"memory": log()}, servers=servers)
    assert np.array_equal(loaded.predict(log(30, 9)), world.run.predict(log(30, 9)))
    assert list(server_tables(world.folder).values()) == [["image"]]
    assert servers_of(world.folder, {}) == {}


def test_a_server_for_another_field_is_refused(world: World) -> None:
    with pytest.raises(PlanError, match="has no Model Server for 'imag', it has those of 'image'; nearest: 'image'"):
        servers_of(world.folder, {"imag": world.file.path})
    with pytest.raises(PlanError, match="with a Model Server; pass one, with its data"):
        cb.Run.load(world.folder, views={"memory": log()})


def test_a_plan_of_ones_own_takes_the_fitted_values_of_the_folder(world: World) -> None:
    other = planned(log(300, seed=8))  # its quantiles would be others
    loaded = cb.Run.load(world.folder, plan=other, servers=servers_of(world.folder, {"image": world.file.path}))
    assert loaded.plan.log is other.log
    assert not other.is_fitted  # a plan that is given does not change
    assert np.array_equal(loaded.predict(log(30, 9)), world.run.predict(log(30, 9)))
    without = cb.compile(cb.View(log(), key="id"), cb.FeatureSet(label=col("clicked"), sparse={"user": col("user")}))
    with pytest.raises(DataError, match="this model was trained with a plan of fingerprint"):
        cb.Run.load(world.folder, plan=without)


def test_operators_of_a_plan_are_allowed_with_those_that_were_named(world: World) -> None:
    named: Any = [object()]
    assert _and_those_of(world.run.plan, True) is True
    assert _and_those_of(world.run.plan, False) == []
    assert _and_those_of(world.run.plan, named) == named


def test_a_loaded_table_may_grow_to_four_times_its_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from ctrbox.embed import shards

    size = (world.folder / "model" / "table-0.ctrtable").stat().st_size
    original, budgets = cb.MemoryTable.load, []

    def load(path: Path, budget: int) -> cb.MemoryTable:
        budgets.append(budget)
        return original(path, budget=1 << 30)  # a table of few rows takes more than four times its file

    monkeypatch.setattr(shards.MemoryTable, "load", load)
    for least in (1 << 33, 1):
        monkeypatch.setattr(shards, "BUDGET", least)
        servers = servers_of(world.folder, {"image": world.file.path})
        cb.Run.load(world.folder, views={"memory": log()}, servers=servers)
    assert budgets == [1 << 33, 4 * size]


@pytest.mark.parametrize("shift", [None, "1", math.inf, 50.0, -50.0, 49.0, 0])
def test_a_saved_shift_is_a_number_below_fifty(world: World, shift: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ctrbox.predict import read_run_folder as run_module

    state = {**run_module.read_state(world.folder / "model"), "shift": shift}
    monkeypatch.setattr(run_module, "read_state", lambda place: state)
    servers = servers_of(world.folder, {"image": world.file.path})
    if shift in (49.0, 0):
        assert cb.Run.load(world.folder, views={"memory": log()}, servers=servers).learner.shift == shift
        return
    with pytest.raises(DataError, match="is damaged: its shift, the number"):
        cb.Run.load(world.folder, views={"memory": log()}, servers=servers)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (None, "it does not describe its tables"),
        ([["user", "bucket"], []], "it does not describe its tables"),
        ([["user", "bucket"], "image"], "it does not describe its tables"),
        ([["user", "bucket", "image"]], "it describes 1 tables and holds 2"),
        ([["user", "bucket"], ["image"], ["x"]], "it describes 3 tables and holds 2"),
        ([["user", "bucket"], ["user"]], "one field belongs to two tables"),
        ([["user", 5], ["image"]], "the name of a field is not a string"),
    ],
)
def test_tables_of_a_run_are_described_one_by_one(
    world: World, tables: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctrbox.predict import read_run_folder as run_module

    state = {**run_module.read_state(world.folder / "model"), "tables": tables}
    monkeypatch.setattr(run_module, "read_state", lambda place: state)
    with pytest.raises(DataError, match=message):
        server_tables(world.folder)


def test_memory_is_for_tables_on_disk(world: World) -> None:
    with pytest.raises(PlanError, match=r"ram= is for Sparse Tables, but the tables of .* are in memory"):
        cb.Run.load(world.folder, views={"memory": log()}, ram="1GB")


def test_rows_are_predicted_wherever_they_come_from(world: World) -> None:
    rows = log(5, 9)
    expected = world.run.predict(rows)
    assert np.array_equal(world.run.predict(rows.to_pylist()), expected)
    assert np.concatenate([*world.run.predictions(rows)]) == pytest.approx(expected, rel=1e-6)  # in float64
    with pytest.raises(PlanError, match=r"predict takes rows .* got str; for a whole log"):
        world.run.predict("log.parquet")
    batch = world.run.plan.run(rows)
    assert np.array_equal(world.run.predict_batch(batch), expected)
    other = dataclasses.replace(batch, schema=dataclasses.replace(batch.schema, fingerprint="f" * 64))
    with pytest.raises(PlanError, match=f"but this plan has the fingerprint {'f' * 16}…; features"):
        world.run.predict_batch(other)
    assert other_plan("a" * 64, "b" * 64).startswith(f"this model was trained with a plan of fingerprint {'a' * 16}…, ")
    blank = dataclasses.replace(batch, schema=dataclasses.replace(batch.schema, fingerprint=""))
    assert np.array_equal(world.run.predict_batch(blank), expected)


def test_a_run_is_printed_with_its_auc_and_folder(world: World) -> None:
    assert repr(world.run) == f"Run(EmbeddingMLP, auc={world.run.metrics['auc']:.4f}, {str(world.folder)!r})"
    bare = cb.Run(world.run.plan, world.run.learner, {"model": "EmbeddingMLP"}, None)
    assert repr(bare) == "Run(EmbeddingMLP, auc=nan)"
    with pytest.raises(PlanError, match="this run kept no rows for validation; pass"):
        bare.evaluate()


def test_rows_held_back_are_evaluated_again(world: World) -> None:
    again = world.run.evaluate()
    assert again["rows"] == 20
    assert again["auc"] == world.run.metrics["auc"]
    assert world.run.evaluate(world.run.plan)["rows"] == ROWS


# ---- published weights


@pytest.fixture(scope="module")
def published(world: World) -> Weights:
    return weights_of_run(world.run.learner)


def test_published_weights_predict_the_same(world: World, published: Weights) -> None:
    # Vectors of a Model Server are computed for other numbers of rows at once, and on x86 their last bits depend on it.
    back = click_model_of(published, world.run.plan.schema, "v1")
    batch = world.run.plan.run(log(30, 9))
    assert back.predict(batch) == pytest.approx(world.run.learner.predict(batch), abs=1e-6)
    assert not any(p.requires_grad for p in back.model.parameters())
    assert published.about["model"] == "EmbeddingMLP"
    assert "own" not in published.about
    server = next(t for t in published.about["tables"] if "server" in t)
    assert server["server"] == {"submodel": "image", "width": WIDTH, "tokens": False}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": WIDTH + 1}, rf"a sub-model from {WIDTH} to {DIM} numbers, a table from {WIDTH + 1} to {DIM}"),
        ({"tokens": True}, "a sub-model from"),
        ({"submodel": "text"}, "cannot read v1"),
    ],
)
def test_a_published_sub_model_that_contradicts_its_table_is_refused(
    world: World, published: Weights, change: dict[str, Any], message: str
) -> None:
    tables = [{**t, "server": {**t["server"], **change}} if "server" in t else t for t in published.about["tables"]]
    changed = dataclasses.replace(published, about={**published.about, "tables": tables})
    with pytest.raises(DataError, match=message):
        click_model_of(changed, world.run.plan.schema, "v1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "other"}, "v1 was trained with a plan of fingerprint other…, but this plan has"),
        (
            {"shift": 50.0},
            "cannot read v1: it is damaged: its shift, the number that is added to every logit, is 50.0; expected",
        ),
        (
            {"shift": -50.0},
            "cannot read v1: it is damaged: its shift, the number that is added to every logit, is -50.0; expected",
        ),
        (
            {"shift": None},
            "cannot read v1: it is damaged: its shift, the number that is added to every logit, is None; expected",
        ),
        ({"own": True}, "it holds weights of the user-defined model class 'EmbeddingMLP'"),
        ({"tables": []}, "cannot read v1"),
    ],
)
def test_published_facts_that_contradict_each_other_are_refused(
    world: World, published: Weights, change: dict[str, Any], message: str
) -> None:
    changed = dataclasses.replace(published, about={**published.about, **change})
    with pytest.raises(DataError, match=message):
        click_model_of(changed, world.run.plan.schema, "v1")
    with pytest.raises(DataError, match="v1 contains weights of kind 'other'"):
        click_model_of(dataclasses.replace(published, kind="other"), world.run.plan.schema, "v1")
    fine = dataclasses.replace(published, about={**published.about, "shift": 49.0})
    assert click_model_of(fine, world.run.plan.schema, "v1").shift == 49.0


def test_a_model_of_ones_own_comes_back_into_one_of_the_same_class(world: World, published: Weights) -> None:
    changed = dataclasses.replace(published, about={**published.about, "own": True})
    mine = cb.models.EmbeddingMLP(world.run.plan.schema, dim=DIM, hidden=(4,))
    batch = world.run.plan.run(log(30, 9))
    back = click_model_of(changed, world.run.plan.schema, "v1", mine)
    assert back.predict(batch) == pytest.approx(world.run.learner.predict(batch), abs=1e-6)
    with pytest.raises(
        DataError, match="it holds the weights of 'EmbeddingMLP', but the model that was passed is a LR"
    ):
        click_model_of(changed, world.run.plan.schema, "v1", cb.models.LR(world.run.plan.schema))
    wider = cb.models.EmbeddingMLP(world.run.plan.schema, dim=DIM, hidden=(5,))
    with pytest.raises(DataError, match=r"holds a different model: weight .* expected"):
        click_model_of(changed, world.run.plan.schema, "v1", wider)
    deeper = cb.models.EmbeddingMLP(world.run.plan.schema, dim=DIM, hidden=(4, 4))
    with pytest.raises(DataError, match=r"holds a different model: only one of the two has the weight"):
        click_model_of(changed, world.run.plan.schema, "v1", deeper)


def test_weights_that_are_not_finite_are_not_read(world: World, published: Weights) -> None:
    for name in ("dense.", "table."):
        parts = []
        for part in published.parts:
            if part.name.startswith(name) and part.dtype == "F32" and part.data.size:
                data = part.data.copy()
                data.reshape(-1)[0] = np.nan
                part = dataclasses.replace(part, data=data)
            parts.append(part)
        with pytest.raises(DataError, match="contains a NaN or an infinity"):
            click_model_of(dataclasses.replace(published, parts=parts), world.run.plan.schema, "v1")


class OwnTable:
    """An embedder of a user's own: zeros for every key."""

    dim = DIM

    def __init__(self) -> None:
        self.row: Any = None

    def open(self, row: Any) -> None:
        self.row = row

    def __len__(self) -> int:
        return 0

    nbytes = 0

    def pull(self, keys: Any, create: bool = True) -> Any:
        return np.zeros((len(keys), self.row.width), np.float32)

    def push(self, keys: Any, gradients: Any) -> None: ...
    def prefetch(self, keys: Any) -> None: ...
    def save(self, path: Path) -> None: ...
    def restore(self, path: Path) -> None: ...


def test_rows_of_an_embedder_of_ones_own_cannot_be_published(world: World) -> None:
    schema = world.run.plan.schema
    learner = Learner(cb.models.EmbeddingMLP(schema, dim=DIM, hidden=(4,)), schema, OwnTable())  # type: ignore[arg-type]
    with pytest.raises(
        PlanError, match=r"cannot publish the rows of OwnTable; expected a table or a cb.tables.ModelServer"
    ):
        weights_of_run(learner)


# ---- batches that wait, keys that were never learned, arms of a trial


def test_a_batch_that_waits_on_disk_comes_back_as_it_was(world: World, tmp_path: Path) -> None:
    plan = world.run.plan
    table = cb.SparseTable(tmp_path / "table", DIM, ram="64MB")
    learner = Learner(cb.models.EmbeddingMLP(plan.schema, dim=DIM, hidden=(4,)), plan.schema, table)
    waiting = Foresight(learner, 4)
    assert waiting.folder == table.path
    (batch,) = plan.batches(30, limit=30)
    handed = Handed(batch, cb.types.Position(30), 30, 7, 3)
    kept, arrays, keys = waiting.pack(handed)
    assert [k.tolist() for k in keys] == [k.tolist() for k in learner.keys(batch)]
    assert sum(map(len, keys)) > 0
    assert waiting.bytes == sum(a.nbytes for a in (*arrays, *keys))
    back = waiting.unpack(kept, arrays)
    assert (back.position, back.rows, back.clicks, back.number) == (handed.position, 30, 7, 3)
    assert back.batch.weight is None
    for name in ("label", "dense", "group"):
        assert np.array_equal(getattr(back.batch, name), getattr(batch, name))
    for name, ragged in batch.sparse.items():
        assert np.array_equal(back.batch.sparse[name].values, ragged.values)
        assert np.array_equal(back.batch.sparse[name].offsets, ragged.offsets)
    assert waiting.pack(dataclasses.replace(handed, batch=batch.take(np.arange(0))))[2] == []
    with pytest.raises(PlanError, match=r"look_ahead= needs a cb.SparseTable, but this training has none"):
        Foresight(world.run.learner, 4)


@pytest.mark.parametrize("batches", [1, BATCHES - 1, BATCHES, BATCHES + 1])
def test_keys_that_were_never_learned_are_told_once(
    world: World, batches: int, recwarn: pytest.WarningsRecorder
) -> None:
    strangers = log(4, 9).set_column(2, "user", pa.array([1000, 1001, 1002, 1003]))
    batch = world.run.plan.run(strangers)
    with refusing_unknown(world.run.learner):
        for _ in range(batches):
            world.run.learner.predict(batch)
        during = len(recwarn)
    told = [str(w.message) for w in recwarn if "was learned by this model" in str(w.message)]
    assert told == [told[0]]
    assert f"none of the {4 * min(batches, BATCHES)} keys of field 'user' was learned" in told[0]
    assert (during > 0) == (batches >= BATCHES)


def test_an_arm_of_a_trial_averages_over_its_learners_and_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from ctrbox.train import feature_trial as trial_module

    class Learns(SimpleNamespace):
        def learn(self, looked: Any, factor: float) -> float:
            return self.loss * factor

    moments = iter([10.0, 16.0])
    monkeypatch.setattr(trial_module.time, "perf_counter", lambda: next(moments))
    table = cb.MemoryTable(2)
    learners = [Learns(loss=loss, embedders=[table, table]) for loss in (1.0, 4.0)]
    arm = _Arm("x", world.run.plan.schema, learners, [torch.get_rng_state()] * 2)  # type: ignore[arg-type]
    looked = SimpleNamespace(batch=SimpleNamespace(rows=3))
    assert arm.learn(looked, 2.0) == 5.0  # type: ignore[arg-type]
    assert arm.seconds == [1.0]  # six seconds, three rows, two learners
    assert (arm.held, arm.bytes) == (2 * len(table), 2 * table.nbytes)


# ---- the classifier


@pytest.mark.parametrize("valid", [True, "0.1", -0.01, 0.91, math.nan, None])
def test_a_classifier_holds_back_a_share_from_0_to_nine_tenths(valid: Any) -> None:
    with pytest.raises(PlanError, match=r"valid must be a share from 0 to 0.9, got"):
        cb.Classifier(valid=valid).fit([[0.5], [1.5]], [0, 1])


@pytest.mark.parametrize(
    ("shuffle", "rows", "settings"), [(True, 100, (96, 32)), (False, 100, (0, 32)), (True, 20, (32, 32))]
)
def test_a_classifier_shuffles_whole_batches(shuffle: bool, rows: int, settings: tuple[int, int]) -> None:
    x = np.random.default_rng(0).random((rows, 1))
    made = cb.Classifier("LR", epochs=1, shuffle=shuffle, threads=1).fit(x, np.arange(rows) % 2)
    found = made.run_.summary["settings"]
    assert (found["shuffle"], found["batch_size"]) == settings
    assert made.run_.summary["rows"] == {"train": rows * 9 // 10, "valid": rows // 10}
    assert made.n_features_in_ == 1
    assert not hasattr(made, "feature_names_in_")
    p = made.predict_proba(x)
    assert p.sum(1).tolist() == pytest.approx([1.0] * rows)
    assert made.predict(x).tolist() == (p[:, 1] > 0.5).astype(int).tolist()
    right = made.predict(x) == np.arange(rows) % 2
    assert made.score(x, np.arange(rows) % 2) == pytest.approx(right.mean())
    with pytest.raises(DataError, match=f"X has {rows} rows and y has 1; expected one label for each row"):
        made.score(x, [0])


def test_parameters_of_a_classifier_are_set_by_name() -> None:
    made = cb.Classifier(dim=4)
    assert made.set_params(dim=5, epochs=2).get_params()["dim"] == 5
    assert repr(made) == "Classifier(dim=5, epochs=2)"
    with pytest.raises(DataError, match="Classifier has no parameter 'dimm'; nearest: 'dim'"):
        made.set_params(dimm=3)
    with pytest.raises(PlanError, match=r"model must be a name of cb.models or a function from a schema to a module"):
        cb.Classifier(nn.Linear(1, 1))._module(None)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"model must be a name of cb.models or a function from a schema to a module"):
        cb.Classifier(5)._module(None)  # type: ignore[arg-type]
