"""Checkpoints of a loop: the last two are kept, damaged ones are told of and removed, and each file is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox.errors import DataError, PlanError, SourceError, WriteError
from ctrbox.files.sealed_json import sealed
from ctrbox.loop.checkpoint import Checkpoints
from ctrbox.loop.online_model import OnlineFfm, online_model


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    (tmp_path / "online").mkdir()
    return Checkpoints(tmp_path / "online")


def model() -> OnlineFfm:
    return OnlineFfm(cb.DeepFFM(["a"], bits=5, k=1, hidden=()))


def write(kept: Checkpoints, number: int) -> Path:
    kept.write(number, {"at": number}, {"held": pa.table({"n": [number]})}, model())
    return kept.found()[-1]


def test_the_last_two_are_kept_and_the_newest_is_read(kept: Checkpoints) -> None:
    assert Checkpoints(kept.folder / "nothing").found() == []
    assert kept.last(print) is None
    (kept.folder / "checkpoint-0000000000").touch()  # a file
    (kept.folder / "checkpoint-7").mkdir()
    for number in (1, 2, 12):
        place = write(kept, number)
        assert place.name == f"checkpoint-{number:010}"
    assert [place.name for place in kept.found()] == ["checkpoint-0000000002", "checkpoint-0000000012"]
    assert sorted(p.name for p in place.iterdir()) == ["engine.ffm", "held.arrow", "state.json"]
    told: list[str] = []
    found = kept.last(told.append)
    assert found is not None
    assert (found.number, found.state["at"], found.state["learned"], found.has_histories) == (12, 12, 0, False)
    assert (found.tables["held"].to_pydict(), found.engine.learned, told) == ({"n": [12]}, 0, [])
    state = json.loads((place / "state.json").read_text())
    files = state.get("facts", state)["files"]
    size = (place / "engine.ffm").stat().st_size
    assert files["engine.ffm"] == [size, ""]  # the engine checks itself
    assert files["held.arrow"][0] == (place / "held.arrow").stat().st_size
    assert len(files["held.arrow"][1]) == 64


def test_a_damaged_one_is_told_of_and_removed_and_the_one_before_is_read(kept: Checkpoints) -> None:
    old, new = write(kept, 1), write(kept, 2)
    data = (new / "held.arrow").read_bytes()
    (new / "held.arrow").write_bytes(data[:-1] + b"x")
    told: list[str] = []
    found = kept.last(told.append)
    assert found is not None
    assert (found.number, kept.found()) == (1, [old])
    assert told == [
        f"a checkpoint is damaged, so the loop continues from the previous one: {new / 'held.arrow'} is damaged: its size or "
        "checksum does not match"
    ]
    (old / "held.arrow").unlink()
    told.clear()
    with pytest.raises(SourceError) as met:
        kept.last(told.append)
    assert str(met.value) == (
        f"every checkpoint in {kept.folder} is damaged: {old / 'held.arrow'} is missing. Restore the folder from a copy, or "
        "choose another output folder"
    )
    assert (told, kept.found()) == ([], [old])


def test_a_sound_checkpoint_of_another_job_is_an_error_and_stays(kept: Checkpoints) -> None:
    places = [write(kept, number) for number in (1, 2)]

    def other(state: Any) -> None:
        raise PlanError(f"of another job: {state['at']}")

    with pytest.raises(PlanError, match=r"^of another job: 2$"):
        kept.last(print, check=other)
    assert kept.found() == places


def test_a_state_without_files_is_damaged(kept: Checkpoints) -> None:
    place = write(kept, 1)
    for files in (None, [], {}, {"held.arrow": [1, ""]}):
        (place / "state.json").write_text(sealed({"learned": 0, "files": files}))
        with pytest.raises(SourceError, match="is damaged: it does not name the files of a checkpoint"):
            kept.last(print)


def test_one_loop_learns_into_a_folder(kept: Checkpoints) -> None:
    with kept.locked():
        with pytest.raises(WriteError, match=f"^cannot learn into {kept.folder.parent}: another process is doing so"):
            with kept.locked():
                pass


def test_a_model_of_a_loop_has_threads_only_if_it_is_a_deep_ffm(tmp_path: Path) -> None:
    engine = cb.DeepFFM(["a"], bits=5, k=1, hidden=())
    assert [online_model(engine, threads).threads for threads in (None, 3)] == [1, 3]  # type: ignore[attr-defined]
    ready = OnlineFfm(engine, 2)
    assert online_model(ready, None) is ready
    with pytest.raises(PlanError) as threads:
        online_model(ready, 2)
    assert str(threads.value) == (
        "threads= of the loop can be used only with a Deep FFM; pass it to the model instead: OnlineFfm(…, threads=2)"
    )
    with pytest.raises(
        PlanError, match=r"^the online loop trains a cb\.DeepFFM or a cb\.loop\.OnlineClickModel, got dict; wrap"
    ):
        online_model({}, None)
    assert (ready.fresh, ready.waiting, ready.room(7), ready.tables()) == (True, 0, 7, {})
    ready.save(tmp_path)
    assert OnlineFfm.read(tmp_path, 0).learned == 0
    with pytest.raises(DataError, match=r"engine\.ffm has learned from 0 examples, but its checkpoint says 3$"):
        OnlineFfm.read(tmp_path, 3)
    assert ready.restored(tmp_path, 0).threads == 2
    with pytest.raises(PlanError, match=r"has k=1, but the engine of this job has k=2; to continue, give the engine"):
        OnlineFfm(cb.DeepFFM(["a"], bits=5, k=2, hidden=())).restored(tmp_path, 0)
