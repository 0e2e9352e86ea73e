"""What the online loop refuses: checkpoints of others, broken chunks, streams that fail; and why nothing was learned."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.ffm.progressive_validation import Progress
from ctrbox.files.sealed_json import sealed
from ctrbox.loop.checkpoint import Checkpoints, _facts
from ctrbox.loop.intervals import seconds
from ctrbox.loop.learn_events import Learner, _labeled
from ctrbox.loop.online_loop import OnlineLoop
from ctrbox.loop.online_model import OnlineFfm
from ctrbox.loop.status import Complaints, status
from ctrbox.serve.model_folder import ModelFolder
from tests.loop.online_world import loop, made
from tests.loop.test_online_loop import unbroken, world

__all__ = ["unbroken", "world"]


def test_checkpoints_of_others_are_refused(world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    for share in (0, 1.01):
        with pytest.raises(cb.errors.PlanError, match=f"checkpoint_share= must be above 0 and at most 1, got {share}"):
            loop(world / "data", world / "parquet", tmp_path / "model", checkpoint_share=share)
    fresh = loop(world / "data", world / "parquet", tmp_path / "model", checkpoint_share=1)
    found = Checkpoints(unbroken[0] / "online").last(print)
    assert found is not None
    with pytest.raises(
        cb.errors.PlanError,
        match=r"was trained with another plan \(fingerprint 0000000000000000…, but the plan of this job",
    ):
        fresh._check({**found.state, "plan": "0" * 64})
    state = {name: value for name, value in found.state.items() if name != "learner"}
    with pytest.raises(
        cb.errors.DataError,
        match=rf"checkpoint {found.number} in .* was written by another version of CTRBox: KeyError",
    ):
        fresh._restore(replace(found, state=state))
    model = tmp_path / "copy"
    shutil.copytree(unbroken[0], model)
    log = cb.View(f"{world}/data/impressions", key="instance_id")
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse={"ad": col("ad_id").key()}), device="cpu")
    other = OnlineLoop(plan, cb.DeepFFM(plan.schema, bits=8), str(world / "parquet"), model, once=True)
    with pytest.raises(cb.errors.PlanError, match=f"{model} holds the model of another plan; choose another folder"):
        other.run()
    fresh.folder = ModelFolder.open(model)
    shutil.rmtree(model / "weights")
    with pytest.raises(
        cb.errors.DataError,
        match="contains no published version; restore the folder from a copy, or choose another output folder",
    ):
        fresh._know_version()


@pytest.mark.parametrize(("span", "microseconds"), [("8.2s", 8_200_000), ("1.001s", 1_001_000), (0.29, 290_000)])
def test_spans_of_decimal_numbers_lose_no_microsecond(span: str | float, microseconds: int, tmp_path: Path) -> None:
    log = pa.table({"id": [1], "ts": pa.array([0], pa.timestamp("us")), "ad": [2], "clicked": [0]})
    features = cb.FeatureSet(label=col("clicked"), sparse={"ad": col("ad").key()})
    plan = cb.compile(cb.View(log, key="id"), features, device="cpu", threads=1)
    made = OnlineLoop(plan, cb.DeepFFM(plan.schema, bits=8), tmp_path, tmp_path / "m", window=span, lateness=span)
    assert (made.window_us, made.lateness_us) == (microseconds, microseconds)
    long = OnlineLoop(plan, cb.DeepFFM(plan.schema, bits=8), tmp_path, tmp_path / "m", window="30d", lateness=span)
    state = {"plan": plan.fingerprint, "settings": long._decisive}
    assert (state["settings"]["window"], seconds(state["settings"]["lateness"])) == ("2592000s", microseconds / 1e6)
    for window in ("2592000s", "2.592e+06s"):  # the second one is of an earlier version
        long._check({**state, "settings": {**long._decisive, "window": window}})
    with pytest.raises(PlanError, match=r"trained with window 2592004s, but window 2592000s was requested"):
        long._check({**state, "settings": {**long._decisive, "window": "2592004s"}})


def test_a_folder_of_the_old_defaults_names_the_settings_that_continue_it(world: Path, tmp_path: Path) -> None:
    plan, _ = made(world / "data")
    before: dict[str, Any] = {"hidden": (), "lr": 0.02, "nn": 0.05}  # the defaults of version 0.2

    def run(**settings: Any) -> dict[str, Any]:
        engine = cb.DeepFFM(plan.schema, bits=12, **settings)
        return OnlineLoop(plan, engine, str(world / "parquet"), tmp_path / "model", once=True).run()

    learned = run(**before)["learned"]
    with pytest.raises(cb.errors.PlanError) as refused:
        run()
    assert (
        "has hidden=(), lr=cb.ffm.Rate(0.02, 0.5, 1), nn=cb.ffm.Rate(0.05, 0.5, 0.01), but the engine of this job has "
        "hidden=(24, 24), lr=cb.ffm.Rate(0.05, 0.5, 1), nn=cb.ffm.Rate(0.1, 0.5, 0.01); to continue, give the engine"
    ) in str(refused.value)
    assert run(**before)["learned"] == learned


def test_a_start_that_learned_from_nothing_says_why(
    world: Path, unbroken: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    fresh: Any = loop(world / "data", world / "parquet", tmp_path / "model")
    fresh.stream = SimpleNamespace(name="the stream")
    assert fresh.nothing_learned == "nothing was learned: the stream has no events"
    fresh.events_read = 5
    expected = "nothing was learned from 5 events"
    assert fresh.nothing_learned == f"{expected}: no impression among them could be used, see the counts"
    fresh._restore(Checkpoints(unbroken[0] / "online").last(print))
    assert fresh.nothing_learned == ""
    fresh.began_with, held = fresh.engine.learned, fresh.learner.join.held
    waiting = (
        "impressions still wait: an impression is learned from only when an event arrives that is more than "
        "3,840 s later, the sum of window and lateness"
    )
    assert fresh.nothing_learned == f"{expected}: {held:,} {waiting}"
    fresh.events_read = 0
    assert fresh.nothing_learned == "nothing was learned: the stream has no new events"


@pytest.mark.parametrize(("once", "failing"), [(True, "gone"), (True, ""), (False, "gone")])
def test_a_stream_that_fails_ends_a_loop_that_runs_once(world: Path, tmp_path: Path, once: bool, failing: str) -> None:
    fresh: Any = loop(world / "data", world / "parquet", tmp_path / "model", once=once)
    fresh.stream = SimpleNamespace(pieces=lambda: iter([None]), drained=lambda: False, failing=failing)
    fresh._between = lambda: None
    if once and failing:
        with pytest.raises(cb.errors.SourceError, match=r"^gone$"):
            fresh._follow()
    else:
        fresh._follow()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    engine = OnlineFfm(cb.DeepFFM(["a"], bits=5, k=1))
    made = Checkpoints(tmp_path / "online")
    (tmp_path / "online").mkdir()
    made.write(1, {}, {"held": pa.table({"a": [1]})}, engine)
    return made


def test_a_checkpoint_that_contradicts_itself_is_refused(checkpoints: Checkpoints) -> None:
    (place,) = checkpoints.found()
    state = json.loads((place / "state.json").read_text())
    state = state.get("facts", state)
    files = state["files"]
    arrow = place / "held.arrow"
    whole = arrow.read_bytes()

    def told(**changed: Any) -> str:
        given = {k: v for k, v in {**state, **changed}.items() if k not in ("seal", "sum", "sha256")}
        (place / "state.json").write_text(sealed(given))
        with pytest.raises(SourceError) as met:
            checkpoints.last(lambda line: None)
        return str(met.value).removesuffix(". Restore the folder from a copy, or choose another output folder")

    prefix = f"every checkpoint in {checkpoints.folder} is damaged: "
    unnamed = f"{prefix}{place / 'state.json'} is damaged: it does not name the files of a checkpoint"
    assert told(files=[]) == unnamed
    assert told(files={"held.arrow": files["held.arrow"]}) == unnamed
    assert told(files={**files, "more.arrow": [1, ""]}) == f"{prefix}{place / 'more.arrow'} is missing"
    assert told(files={**files, "../x": [1, ""]}) == f"{prefix}{place / '../x'} is missing"
    assert told(learned=5) == f"{prefix}{place / 'engine.ffm'} has learned from 0 examples, but its checkpoint says 5"
    arrow.write_bytes(b"no arrow file")
    broken = told(files={**files, "held.arrow": _facts(arrow)})
    assert broken.startswith(f"{prefix}{arrow} is damaged: ")
    arrow.write_bytes(whole[:-1])
    assert told() == f"{prefix}{arrow} is damaged: its size or checksum does not match"
    arrow.write_bytes(whole)
    (place / "state.json").write_text(sealed({k: v for k, v in state.items() if k not in ("seal", "sum", "sha256")}))
    found = checkpoints.last(lambda line: None)
    assert found is not None
    assert found.tables["held"].to_pydict() == {"a": [1]}


def test_a_plan_with_weights_and_rows_without_labels_are_not_learned_online() -> None:
    rows = pa.table({"a": [1, 2], "y": [0, 1], "w": [1.0, 2.0]})
    features = cb.FeatureSet(label=col("y"), weight=col("w"), sparse={"a": col("a").key()})
    plan = cb.compile(cb.View(rows), features, device="cpu", threads=1)
    with pytest.raises(
        PlanError, match="the plan has sample weights, but the online loop counts every example once; remove weight="
    ):
        Learner(plan, OnlineFfm(cb.DeepFFM(plan.schema, bits=5)), None, lambda *given: None)  # type: ignore[arg-type]
    batch = plan.run(rows)
    assert _labeled(batch, None) is batch
    with pytest.raises(
        PlanError, match="rows have no label columns; past impressions need to say whether they were clicked"
    ):
        _labeled(replace(batch, label=None), None)
    clicked = np.array([1, 0], np.float32)
    assert _labeled(batch, clicked).label is clicked


def test_a_strict_loop_stops_at_a_chunk_or_line_that_is_broken(tmp_path: Path) -> None:
    strict = Complaints(print, tmp_path / "refused.jsonl", strict=True)
    with pytest.raises(DataError, match=r"^chunk 7\.jsonl cannot be read: cut$"):
        strict.chunk("7.jsonl", "cut")
    with pytest.raises(DataError, match=r"^7\.jsonl line 4: no JSON$"):
        strict.line("7.jsonl", 3, "no JSON")
    assert (strict.chunks, strict.lines) == (1, 1)
    told: list[str] = []
    lenient = Complaints(told.append, tmp_path / "none" / "refused.jsonl")
    lenient.chunk("7.jsonl", "cut")
    assert told == ["refused: chunk 7.jsonl: cut", f"cannot write {lenient.log}: No such file or directory"]


def test_the_status_has_weighted_figures_where_there_are_weights() -> None:
    labels, predictions = np.array([0, 1], np.float32), np.array([0.2, 0.7], np.float32)
    plain, weighted = Progress(window=10), Progress(window=10)
    plain.add(labels, predictions)
    weighted.add(labels, predictions, np.array([1, 3], np.float32))
    assert "weighted" not in status(plain)
    assert all(np.isnan(plain.weighted_calibration))
    assert status(weighted)["weighted"]["clicked"] == pytest.approx(0.75)
    assert weighted.weighted_calibration[1] == pytest.approx(0.75)
    assert weighted.calibration[1] == pytest.approx(0.5)
