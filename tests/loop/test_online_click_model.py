"""Click models of torch in the online loop: what they learn, what a checkpoint holds, what is published and what "
"is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.embedder_traits import Traits
from ctrbox.errors import DataError, PlanError
from ctrbox.loop.checkpoint import Checkpoints
from ctrbox.loop.online_click_model import OnlineClickModel
from ctrbox.loop.online_loop import OnlineLoop
from ctrbox.optimizers.of_dense_weights import dense_optimizer
from ctrbox.predict.published_run import click_model_of
from ctrbox.publish.weight_file import read_weights
from ctrbox.publish.weights_of_models import pack
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.served_click_model import ServedModel
from ctrbox.train.learn_batch import Learner
from tests.loop.online_killing import Rounds, weights_in
from tests.loop.online_world import deepfm, followed, loop, made
from tests.loop.test_online_loop import joined_by_hand, unbroken, world

__all__ = ["unbroken", "world"]
BATCH = 48


class Mine(torch.nn.Module):
    """A model of one's own, which torch computes; its dropout draws from torch's random state."""

    def __init__(self, schema: cb.types.Schema) -> None:
        super().__init__()
        self.reads = cb.models.Reads(schema, dim=4)
        self.drop = torch.nn.Dropout(0.2)
        self.out = torch.nn.Linear(len(self.reads.fields) * 4, 1)
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Any) -> torch.Tensor:
        flat = self.drop(inputs.vectors.flatten(1))
        return (self.out(flat) + self.bias).squeeze(1)


def model_of(kind: str, world: Path, place: Path, **settings: Any) -> OnlineClickModel:
    if kind == "deepfm":
        return deepfm(world / "data", **settings)
    if kind == "ssd":
        return deepfm(world / "data", cb.SparseTable(place / "rows", dim=4, ram="64MB"), **settings)
    plan, _ = made(world / "data")
    torch.manual_seed(7)
    return OnlineClickModel(plan, Mine(plan.schema), batch_size=BATCH, optimizer=cb.optim.AdamW(lr=0.01), **settings)


def learned(model: Path) -> bytes:
    return weights_in(Checkpoints(model / "online").found()[-1])


def versions(model: Path) -> list[tuple[str, str]]:
    return [(v.note, v.sha256) for v in ModelFolder.open(model).published.log()]


@pytest.fixture(scope="module")
def whole(world: Path) -> tuple[Path, dict[str, Any]]:
    """A folder that a DeepFM learned into without an interruption."""
    model = world / "deepfm"
    engine = deepfm(world / "data")
    return model, loop(world / "data", world / "parquet", model, engine=engine, once=True, publish_at_end=False).run()


def test_learning_equals_steps_of_full_batches_by_hand(world: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    model, found = whole
    rows, labels = joined_by_hand(world)
    examples = len(labels)
    assert found["learned"] == examples // BATCH * BATCH
    assert found["unlearned"] == examples % BATCH > 0
    twin = deepfm(world / "data")
    learner = Learner(twin.learner.model, twin.plan.schema, cb.MemoryTable(4), dense_optimizer(cb.optim.Adam(lr=1e-3)))
    batch = replace(twin.plan.run(rows), label=labels)
    torch.manual_seed(0)
    loss = 0.0
    for at in range(0, found["learned"], BATCH):
        part = batch.take(np.arange(at, at + BATCH))
        p = np.clip(learner.predict(part).astype(np.float64), 1e-7, 1 - 1e-7)
        loss -= np.log(np.where(part.label == 1, p, 1 - p)).sum()
        learner.learn(learner.look(part))
    assert found["loss"] == pytest.approx(loss / found["learned"], rel=1e-6)
    place = Checkpoints(model / "online").found()[-1] / "model"
    kept = cb.MemoryTable.load(place / "table-0.ctrtable").export()
    (table,) = learner.embedders
    assert isinstance(table, cb.MemoryTable)
    for mine, theirs in zip(table.export(), kept, strict=True):
        assert mine.tobytes() == theirs.tobytes()
    other = deepfm(world / "data")
    other.restored(place.parent, found["learned"])
    for name, weight in learner.model.state_dict().items():
        assert torch.equal(weight, other.learner.model.state_dict()[name]), name


def test_versions_follow_the_batch_in_which_they_are_due(whole: tuple[Path, dict[str, Any]]) -> None:
    notes = [note for note, _ in versions(whole[0])]
    assert notes == [f"online, {n:,} examples" for n in (0, 528, 1_008)]  # 500 and 1,000 lie within batches of 48


@pytest.mark.parametrize(
    "kind", ["deepfm", pytest.param("ssd", marks=pytest.mark.slow), pytest.param("mine", marks=pytest.mark.slow)]
)
def test_cuts_and_restarts_give_the_same_weights_and_versions(
    world: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path, kind: str
) -> None:
    expected = whole[0]
    if kind == "mine":
        expected = tmp_path / "expected"
        engine = model_of(kind, world, tmp_path / "a")
        loop(world / "data", world / "parquet", expected, engine=engine, once=True, publish_at_end=False).run()
    lines = b"".join(p.read_bytes() for p in sorted((world / "jsonl").iterdir())).splitlines(keepends=True)
    stream, model = tmp_path / "stream", tmp_path / "model"
    stream.mkdir()
    for number, at in enumerate(range(0, len(lines), 501)):
        (stream / f"{number}.jsonl").write_bytes(b"".join(lines[at : at + 501]))
        engine = model_of(kind, world, tmp_path / "b")
        found = loop(world / "data", stream, model, engine=engine, once=True, publish_at_end=False).run()
        for table in engine.learner.embedders:
            if isinstance(table, cb.SparseTable):
                table.close()
    assert learned(model) == learned(expected)
    assert versions(model) == versions(expected)
    assert found["counts"]["examples"] == found["learned"] + found["unlearned"]
    if kind != "mine":
        assert found["loss"] == whole[1]["loss"]


@pytest.mark.parametrize(
    ("kind", "kills"),
    [pytest.param("deepfm", 2, marks=pytest.mark.slow), pytest.param("ssd", 3, marks=pytest.mark.exhaustive)],
)
def test_a_few_kills_lose_nothing_and_repeat_nothing(tmp_path: Path, kind: str, kills: int) -> None:
    rounds = Rounds(tmp_path, 21, rows=800, chunk_rows=40, pace=0.03, kind=kind).go(kills)
    assert rounds.kills >= kills


def test_a_version_is_the_model_of_its_checkpoint(
    world: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(whole[0], model)
    found = loop(world / "data", world / "parquet", model, engine=deepfm(world / "data"), once=True).run()
    published = ModelFolder.open(model).published
    last = Checkpoints(model / "online").last(print, read=deepfm(world / "data").restored)
    assert last is not None
    assert last.engine.learned == found["learned"] == read_weights(published.file()).about["learned"]
    pack(last.engine, tmp_path / "packed.fbw", base=published.file(found["version"] - 1))
    assert (tmp_path / "packed.fbw").read_bytes() == published.file().read_bytes()
    plan = ModelFolder.open(model).plan()
    batch = plan.run(pq.read_table(world / "data" / "impressions").slice(0, 50).drop_columns(["clicked"]))
    served = click_model_of(read_weights(published.file()), plan.schema, "it").predict(batch)
    np.testing.assert_allclose(served, last.engine.predict_batch(batch), atol=1e-4)  # codes of 16 bits
    exact = click_model_of(last.engine.published(), plan.schema, "it").predict(batch)
    assert exact.tobytes() == last.engine.predict_batch(batch).tobytes()


@pytest.mark.slow
def test_a_server_follows_and_scores_the_bits_of_the_published_model(world: Path, tmp_path: Path) -> None:
    stream, model = tmp_path / "stream", tmp_path / "model"
    stream.mkdir()
    loop(world / "data", stream, model, engine=deepfm(world / "data"), once=True).run()
    rows = pq.read_table(world / "data" / "impressions").slice(7, 1).to_pylist()
    context = {name: str(rows[0][name]) if name == "ts" else rows[0][name] for name in ("user_id", "query", "ts")}
    candidates = [{"ad_id": ad, "device": rows[0]["device"]} for ad in range(20)]
    body = json.dumps({"context": context, "candidates": candidates}).encode()
    before, after = followed(world, stream, model, body, deepfm(world / "data"))
    # The model of the learner at that version, published from its checkpoint, scored in this process.
    last = Checkpoints(model / "online").last(print, read=deepfm(world / "data").restored)
    assert last is not None
    folder = ModelFolder.open(model)
    pack(last.engine, tmp_path / "learner.fbw", base=folder.published.file(after["version"] - 1))
    here = ServedModel(
        folder.plan(), folder.context, tmp_path / "learner.fbw", 1, cache_bytes=1 << 20, most_candidates=100
    )
    expected, _ = here.score(here.reader.from_json(body))
    np.testing.assert_array_equal(np.array(after["scores"], np.float32), expected)
    assert before["scores"] != after["scores"]


# ---- from a trained run


@pytest.fixture(scope="module")
def run(world: Path) -> cb.Run:
    plan, _ = made(world / "data")
    trainer = cb.Trainer(deepfm(world / "data").learner.model, cb.MemoryTable(4))
    return trainer.fit(plan, batch_size=256, valid=0, out=world / "run")


def test_a_loop_begins_with_a_trained_run_and_its_optimizer(world: Path, run: cb.Run, tmp_path: Path) -> None:
    assert run.folder is not None
    started = deepfm(world / "data", start=run.folder)
    stream, model = tmp_path / "stream", tmp_path / "model"
    stream.mkdir()
    loop(world / "data", stream, model, engine=started, once=True).run()
    batch = started.plan.run(pq.read_table(world / "data" / "impressions").slice(0, 50))
    assert started.predict_batch(batch).tobytes() == run.predict_batch(batch).tobytes()
    assert started.learner.optimizer is not None
    steps = [state["step"].item() for state in started.learner.optimizer.state.values()]
    assert set(steps) == {-(-1_500 // 256)}
    # The next start continues from the checkpoint, not from the run.
    for chunk in sorted((world / "parquet").iterdir())[:4]:
        shutil.copy(chunk, stream)
    first = loop(world / "data", stream, model, engine=deepfm(world / "data", start=run.folder), once=True).run()
    again = deepfm(world / "data", start=run)
    loop(world / "data", stream, model, engine=again, once=True).run()
    assert again.learned == first["learned"] > 0
    assert again.predict_batch(batch).tobytes() != run.predict_batch(batch).tobytes()


def test_a_published_run_is_continued_only_with_its_weights(world: Path, run: cb.Run, tmp_path: Path) -> None:
    model = tmp_path / "model"
    cb.serve.create(model, run.plan, run, context=["user_id"])
    with pytest.raises(PlanError, match=r"holds a version of a trained run, but .* new weights: start from that run"):
        loop(world / "data", world / "parquet", model, engine=deepfm(world / "data"), once=True).run()
    assert not (model / "online").exists()
    engine = deepfm(world / "data", start=run)
    found = loop(world / "data", world / "parquet", model, engine=engine, once=True, every="1d").run()
    assert found["version"] == 2
    assert found["learned"] > 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"shift": 0.5}, r"corrects its predictions \(calibrate= or negatives=\), which the online loop cannot keep"),
        ({"fingerprint": "0" * 64}, "was trained with a plan of fingerprint 0000000000000000…"),
    ],
)
def test_a_run_that_the_loop_cannot_continue_is_refused(
    world: Path, run: cb.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], said: str
) -> None:
    from ctrbox.loop import online_click_model

    read = online_click_model.read_state
    monkeypatch.setattr(online_click_model, "read_state", lambda place: {**read(place), **changed})
    with pytest.raises(PlanError, match=said):
        deepfm(world / "data", start=run)


def test_a_table_with_rows_is_told_of(world: Path) -> None:
    engine = deepfm(world / "data")
    assert engine.fresh
    engine.learner.embedders[0].pull(np.array([5]), create=True)
    assert not engine.fresh
    with pytest.warns(
        UserWarning, match="the MemoryTable of this job already holds 1 rows, and the loop continues from"
    ):
        engine.begin()


def test_a_start_must_be_a_finished_run_with_a_folder(world: Path, run: cb.Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlanError, match=r"start= needs a finished run, but .*empty holds none"):
        deepfm(world / "data", start=tmp_path / "empty")
    with pytest.raises(PlanError, match="start= needs a run with a folder; train it with out="):
        deepfm(world / "data", start=cb.Run(run.plan, run.learner, run.summary, None))


# ---- what is refused


def test_other_settings_than_those_of_the_folder_are_refused(
    world: Path, whole: tuple[Path, dict[str, Any]], unbroken: tuple[Path, dict[str, Any]]
) -> None:
    plan, engine = made(world / "data")
    torch.manual_seed(7)
    net = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,), dropout=0.1)
    for other, said in (
        (
            OnlineClickModel(plan, net, cb.MemoryTable(4), batch_size=64),
            "has batch_size 48, but the model of this job has 64",
        ),
        (OnlineClickModel(plan, net, cb.MemoryTable(4, seed=3), batch_size=48), "has tables .*seed=0.*seed=3"),
        (OnlineClickModel(plan, cb.models.FM(plan.schema, dim=4), batch_size=48), "has model DeepFM, but .* has FM"),
    ):
        with pytest.raises(PlanError, match=said):
            loop(world / "data", world / "parquet", whole[0], engine=other, once=True).run()
    with pytest.raises(
        PlanError, match="holds a model of kind 'deep_ffm', but this job trains one of kind 'click_model'"
    ):
        loop(world / "data", world / "parquet", unbroken[0], engine=deepfm(world / "data"), once=True).run()
    with pytest.raises(
        PlanError, match="holds a model of kind 'click_model', but this job trains one of kind 'deep_ffm'"
    ):
        OnlineLoop(plan, engine, world / "parquet", whole[0], once=True).run()


def test_a_damaged_model_in_a_checkpoint_is_told_of_and_the_one_before_is_taken(
    world: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(whole[0], model)
    last = Checkpoints(model / "online").found()[-1]
    table = last / "model" / "table-0.ctrtable"
    damaged = bytearray(table.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    table.write_bytes(damaged)
    told: list[str] = []
    again = loop(
        world / "data", world / "parquet", model, engine=deepfm(world / "data"), once=True, publish_at_end=False
    )
    again.tell = told.append
    again.run()
    assert "a checkpoint is damaged" in told[0]
    assert learned(model) == learned(whole[0])


class Elsewhere(cb.MemoryTable):
    """A table whose rows cannot be published."""

    @property
    def traits(self) -> Traits:
        return replace(super().traits, publishes=False)


def test_what_the_loop_cannot_train_is_refused_in_a_sentence(world: Path, tmp_path: Path) -> None:
    plan, _ = made(world / "data")
    net = cb.models.LR(plan.schema)
    with pytest.raises(PlanError, match=r"^the online loop trains a cb.DeepFFM or a .*, got LR; wrap a torch model"):
        OnlineLoop(plan, net, "events", tmp_path / "model")  # type: ignore[arg-type]
    with pytest.raises(
        PlanError,
        match=r"threads= of the loop can be used only with a Deep FFM; pass it to the model instead: OnlineCl",
    ):
        OnlineLoop(plan, OnlineClickModel(plan, net), "events", tmp_path / "model", threads=2)
    with pytest.raises(PlanError, match=r"whose rows it cannot publish; use a cb\.MemoryTable or a cb\.SparseTable"):
        OnlineClickModel(plan, net, Elsewhere(0))
    with pytest.raises(PlanError, match=r"OnlineClickModel needs a plan, as cb\.compile returns it, got str"):
        OnlineClickModel("plan", net)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="batch_size must be"):
        OnlineClickModel(plan, net, batch_size=0)
    log = cb.View(f"{world}/data/impressions", key="instance_id")
    sparse = {"ad": col("ad_id").key()}
    several = cb.FeatureSet(labels={"click": col("clicked"), "other": col("clicked")}, sparse=sparse)
    tasks = cb.compile(log, several, device="cpu", threads=1)
    with pytest.raises(PlanError, match="this plan has several"):
        OnlineClickModel(tasks, cb.models.SharedBottom(tasks.schema, dim=4))
    other = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse=sparse), device="cpu", threads=1)
    with pytest.raises(PlanError, match="this model was trained with a plan of fingerprint"):
        OnlineClickModel(plan, net).check_schema(other.schema)
    assert not (tmp_path / "model").exists()


def test_rows_that_no_model_can_learn_from_are_named(world: Path) -> None:
    rows = pa.table({"a": [1, 2, 3], "y": [0.0, 1.0, 0.0], "x": [0.5, 1.5, 2.5]})
    features = cb.FeatureSet(label=col("y"), sparse={"a": col("a").key()}, dense={"x": col("x")})
    plan = cb.compile(cb.View(rows), features, device="cpu", threads=1)
    model = OnlineClickModel(plan, cb.models.LR(plan.schema), batch_size=2)
    batch = plan.run(rows)
    with pytest.raises(DataError, match=r"^batch, row 1: the label is 0.5; expected 0 or 1$"):
        model.examples(replace(batch, label=np.array([0, 0.5, 1], np.float32)))
    with pytest.raises(DataError, match=r"^batch, row 2: dense column 'x' is nan; expected a finite number$"):
        model.examples(replace(batch, dense=np.array([[1], [2], [np.nan]], np.float32)))
    model.learn(model.examples(batch))
    assert (model.learned, model.waiting, model.room(1), model.room(3)) == (2, 1, 1, 3)
    kept = model.tables()
    other = OnlineClickModel(plan, cb.models.LR(plan.schema), batch_size=2)
    other.take_tables(kept)
    assert (other.waiting, other.tables()["batch"].equals(kept["batch"])) == (1, True)
    other.take_tables({})
    assert other.waiting == 0
