"""The vectors that an encoding keeps, byte by byte: which records are taken over, and what is refused."""

from __future__ import annotations

import json
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrbox.embed.vectors.resume_encoding import EncodedSoFar
from ctrbox.embed.vectors.vector_file import MOST_WIDTH
from ctrbox.errors import DataError, WriteError
from ctrbox.files.sealed_json import sealed

IDENTITY = {"encoder": "tiny"}


def name(k: int) -> bytes:
    return bytes([k + 1]) * 32


def record(k: int, vector: list[float]) -> bytes:
    body = name(k) + np.array(vector, "<f4").tobytes()
    return body + zlib.crc32(body).to_bytes(4, "little")


def kept(folder: Path, batch: int) -> EncodedSoFar:
    return EncodedSoFar(folder, lambda: IDENTITY, batch)


def state(folder: Path, **changed: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(sealed({"identity": IDENTITY, "width": 2, **changed}))


def test_vectors_are_written_as_the_head_of_the_file_says(tmp_path: Path) -> None:
    made = kept(tmp_path / "w", 2)
    assert (made.width, made.places) == (None, {})
    made.add([name(0), name(1)], np.array([[1, 2], [3, 4]], np.float32))
    made.add([name(2)], np.array([[5, 6]], np.float32))
    assert (made.width, made.places) == (2, {name(0): 0, name(1): 1, name(2): 2})
    assert made.vectors(np.array([2, 0])).tolist() == [[5, 6], [1, 2]]
    made.close(remove=False)
    made.close(remove=False)
    assert (tmp_path / "w" / "vectors").read_bytes() == record(0, [1, 2]) + record(1, [3, 4]) + record(2, [5, 6])
    told = json.loads((tmp_path / "w" / "state.json").read_text())
    assert (told["identity"], told["width"]) == (IDENTITY, 2)
    again = kept(tmp_path / "w", 2)
    assert (again.width, again.places) == (2, {name(0): 0, name(1): 1})
    again.close(remove=True)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("records", "batch", "whole"),
    [
        ([record(0, [1, 2]), record(1, [3, 4]), record(2, [5, 6])], 1, 3),
        ([record(0, [1, 2]), record(1, [3, 4]), record(2, [5, 6])], 3, 3),
        ([record(0, [1, 2]), record(1, [3, 4]), record(2, [5, 6])], 4, 0),
        ([record(0, [1, 2]), record(1, [3, 4]), record(2, [5, 6])[:-1]], 1, 2),
        ([record(0, [1, 2]), record(0, [3, 4]), record(2, [5, 6])], 1, 1),  # an item has one vector
        ([record(0, [1, 2]), record(1, [3, 4])[:-1] + b"?", record(2, [5, 6])], 1, 1),
        ([record(0, [1, 2])[:-1] + b"?"], 1, 0),
    ],
)
def test_sound_records_of_whole_batches_are_taken_over(
    tmp_path: Path, records: list[bytes], batch: int, whole: int
) -> None:
    state(tmp_path / "w")
    (tmp_path / "w" / "vectors").write_bytes(b"".join(records))
    made = kept(tmp_path / "w", batch)
    assert made.places == {name(k): k for k in range(whole)}
    assert (tmp_path / "w" / "vectors").read_bytes() == b"".join(records[:whole])
    made.add([name(8)], np.array([[7, 8]], np.float32))
    assert made.places[name(8)] == whole
    assert made.vectors(np.array([whole])).tolist() == [[7, 8]]
    made.close(remove=True)


def test_another_thread_can_read_each_vector_whose_place_it_sees(tmp_path: Path) -> None:
    so_far = kept(tmp_path / "f", 2)
    seen: list[list[list[float]]] = []

    class Places(dict[bytes, int]):
        def __setitem__(self, key: bytes, place: int) -> None:
            super().__setitem__(key, place)
            seen.append(so_far.vectors(np.array([place])).tolist())  # as a thread that was waiting for it

        def update(self, *others: Any, **_: Any) -> None:
            for key, place in dict(*others).items():
                self[key] = place

    so_far.places = Places()
    so_far.add([name(0), name(1)], np.array([[1, 2], [3, 4]], np.float32))
    assert seen == [[[1, 2]], [[3, 4]]]
    so_far.close(remove=True)


def test_vectors_without_a_state_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "vectors").write_bytes(record(0, [1, 2]))
    kept(tmp_path / "w", 1).close(remove=False)
    assert not (tmp_path / "w" / "vectors").exists()
    state(tmp_path / "w")
    made = kept(tmp_path / "w", 1)
    assert (made.width, made.places, (tmp_path / "w" / "vectors").read_bytes()) == (2, {}, b"")
    made.close(remove=True)


@pytest.mark.parametrize(
    ("width", "fits"), [(1, True), (MOST_WIDTH, True), (0, False), (MOST_WIDTH + 1, False), ("2", False), (None, False)]
)
def test_the_width_of_a_state_is_that_of_a_vector(tmp_path: Path, width: Any, fits: bool) -> None:
    state(tmp_path / "w", width=width)
    if fits:
        made = kept(tmp_path / "w", 1)
        assert made.width == width
        made.close(remove=True)
        return
    with pytest.raises(
        DataError, match=rf"state\.json is damaged: it says that a vector has {width!r} numbers; delete the folder"
    ):
        kept(tmp_path / "w", 1)


def test_a_state_of_another_encoding_is_refused(tmp_path: Path) -> None:
    state(tmp_path / "w", identity={"encoder": "other"})
    with pytest.raises(
        DataError, match="holds an unfinished encoding that used another encoder, prepare function, batch"
    ):
        kept(tmp_path / "w", 1)


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteError, match=r"cannot save the vectors of this encoding in .*file/w: Not a directory"):
        kept(tmp_path / "file" / "w", 1)
    made = kept(tmp_path / "w", 1)
    (tmp_path / "w" / "vectors").mkdir()
    with pytest.raises(WriteError, match=r"cannot save the vectors of this encoding in .*w: Is a directory"):
        made.add([name(0)], np.array([[1, 2]], np.float32))
    assert made.places == {}
    made.close(remove=True)


@pytest.mark.parametrize("patient", [True, False])
def test_only_a_patient_encoding_waits_until_its_state_is_written(tmp_path: Path, patient: bool) -> None:
    known = threading.Event()

    def identity() -> dict[str, str]:
        known.wait(0.05 if patient else 60)
        return IDENTITY

    made = EncodedSoFar(tmp_path / "w", identity, 1, patient=patient)
    made.add([name(0)], np.array([[1, 2]], np.float32))
    assert (tmp_path / "w" / "state.json").exists() == patient
    known.set()
    made.close(remove=False)
    assert (tmp_path / "w" / "state.json").exists()


def test_an_encoding_that_does_not_wait_raises_the_error_of_its_state_later(tmp_path: Path) -> None:
    known = threading.Event()

    def identity() -> dict[str, str]:
        known.wait(60)
        raise DataError("the weights are damaged")

    made = EncodedSoFar(tmp_path / "w", identity, 1, patient=False)
    made.add([name(0)], np.array([[1, 2]], np.float32))
    known.set()
    assert made._state is not None
    assert isinstance(made._state.exception(60), DataError)
    with pytest.raises(DataError, match="the weights are damaged"):
        made.add([name(1)], np.array([[1, 2]], np.float32))
    made.close(remove=True)
