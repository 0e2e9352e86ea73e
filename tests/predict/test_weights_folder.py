"""Folders of weights, and models that files name: nothing is believed before sizes, checksums and shapes fit."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import CtrboxError, DataError
from ctrbox.evaluate.calibration import MOST_SHIFT
from ctrbox.files.sealed_json import sealed
from ctrbox.predict.model_from_file import MOST_CONFIG, untrained
from ctrbox.predict.stored_calibration import described_calibration, restore_calibration
from ctrbox.predict.weights_folder import facts_of, read_dense, read_state, same_weights, shapes_in


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save_file(nn.Linear(2, 3).state_dict(), tmp_path / "dense.safetensors")
    (tmp_path / "table-0.ctrtable").mkdir()
    (tmp_path / "table-0.ctrtable" / "rows").write_bytes(b"x" * 100)
    return tmp_path


def state(place: Path, **changed: Any) -> dict[str, Any]:
    files: dict[str, Any] = {name: facts_of(place / name) for name in ("dense.safetensors", "table-0.ctrtable")}
    made = {"files": files | changed}
    (place / "state.json").write_text(sealed(made))
    return read_state(place)


def test_a_folder_is_read_where_everything_fits(place: Path) -> None:
    found = state(place)["files"]
    assert sorted(found["dense.safetensors"]) == ["bytes", "sha256"]
    assert (sorted(found["table-0.ctrtable"]), found["table-0.ctrtable"]["bytes"]) == (["bytes", "content"], 100)
    assert shapes_in(place) == {"weight": ((3, 2), "F32"), "bias": ((3,), "F32")}
    read_dense(place, nn.Linear(2, 3))


DENSE = "dense.safetensors"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"../x.bin": {"bytes": 1}}, "/state.json names a file '../x.bin'; expected a file name without folders"),
        ({"x": {"bytes": 1}}, "/state.json names a file 'x'; expected a file name without folders"),
        ({DENSE: 5}, f"/state.json names a file '{DENSE}'; expected a file name without folders"),
        ({"gone.bin": {"bytes": 1}}, " is damaged: gone.bin is missing; restore the folder from a copy"),
        ({"folder.bin": {"bytes": 0}}, " is damaged: folder.bin is missing; restore the folder from a copy"),
        ({"link.bin": {"bytes": 1}}, "/link.bin is a symbolic link; expected a regular file inside the folder"),
        (
            {"table-0.ctrtable": {"bytes": 99}},
            "/table-0.ctrtable is damaged: it has 100 bytes, expected 99; restore the folder from a copy",
        ),
        (
            {"table-0.ctrtable": {"bytes": 100, "content": "0"}},
            "/table-0.ctrtable is not the table that was saved with this checkpoint: it is damaged, or it belongs to another "
            "step or run; restore the folder from a copy",
        ),
    ],
)
def test_a_file_that_is_not_as_it_was_is_named(place: Path, changed: dict[str, Any], message: str) -> None:
    (place / "link.bin").symlink_to(place / DENSE)
    (place / "folder.bin").mkdir()
    with pytest.raises(DataError, match=f"^{re.escape(str(place) + message)}$"):
        state(place, **changed)


def test_the_folder_of_a_table_holds_files_and_a_lock_that_does_not_count(place: Path) -> None:
    table = place / "table-0.ctrtable"
    before = facts_of(table)
    (table / "LOCK").write_bytes(b"123")
    (table / "parts").mkdir()
    assert facts_of(table) == before
    (table / "parts" / "more").write_bytes(b"y" * 11)
    assert facts_of(table)["bytes"] == 111
    assert facts_of(table)["content"] != before["content"]
    (table / "parts" / "more").rename(table / "more")
    assert facts_of(table)["bytes"] == 111
    (table / "link").symlink_to(table / "more")
    with pytest.raises(DataError, match=r"table-0\.ctrtable.*link.* is a symbolic link"):
        facts_of(table)
    (table / "link").unlink()
    os.mkfifo(table / "pipe")
    with pytest.raises(DataError, match=r"table-0\.ctrtable.*pipe.* is a FIFO"):
        facts_of(table)


def test_damaged_weights_and_lists_of_files_are_refused(place: Path) -> None:
    good = state(place)["files"][DENSE]
    with pytest.raises(
        DataError, match=r"dense\.safetensors is damaged: its checksum does not match; restore the folder"
    ):
        state(place, **{DENSE: {**good, "sha256": "0" * 64}})
    for files in ({}, [], None):
        (place / "state.json").write_text(sealed({"files": files}))
        with pytest.raises(DataError, match=r"state\.json is damaged: it does not list the files of a model; restore"):
            read_state(place)
    (place / DENSE).write_bytes(b"12")
    for read in (lambda: shapes_in(place), lambda: read_dense(place, nn.Linear(2, 3))):
        with pytest.raises(DataError, match=r"dense\.safetensors is damaged: "):
            read()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 3, bias=False), "only one of the two has the weight 'bias'"),
        (nn.Linear(3, 3), "weight 'weight' is F32 of shape (3, 2), expected F32 of shape (3, 3)"),
        (nn.Linear(2, 3).half(), "is F32 of shape (3,), expected F16 of shape (3,)"),
        (nn.BatchNorm1d(3), "only one of the two has the weight 'num_batches_tracked'"),
    ],
)
def test_weights_of_another_model_are_refused(place: Path, model: nn.Module, message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(str(place))} holds a different model: .*{re.escape(message)}$"):
        same_weights(place, model)


# ---- models that a file names


def schema_of() -> Any:
    log = cb.View(pa.table({"user": [1, 2], "clicked": [0, 1]}))
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()})
    return cb.compile(log, features, device="cpu", threads=1).schema


def test_a_model_is_compared_before_it_takes_memory() -> None:
    compared: list[Any] = []
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    made = untrained("FM", schema_of(), {"dim": 2}, 1, compared.append)
    assert [p.device.type for p in compared[0].parameters()] == ["meta"] * len(list(made.parameters()))
    assert {p.device.type for p in made.parameters()} == {"cpu"}
    assert torch.equal(torch.random.get_rng_state(), before)
    size = len('{"dim": 2, "x": ""}')
    with pytest.raises(DataError, match=r"^the constructor arguments of FM in the file need more than 262,144 bytes"):
        untrained("FM", schema_of(), {"dim": 2, "x": "a" * (MOST_CONFIG - size + 1)}, 1, compared.append)
    with pytest.raises((CtrboxError, TypeError), match="x"):  # of just that size: the model itself refuses it
        untrained("FM", schema_of(), {"dim": 2, "x": "a" * (MOST_CONFIG - size)}, 1, compared.append)
    assert len(compared) == 1


@pytest.mark.parametrize(
    ("shift", "good"),
    [
        (0, True),
        (-1.5, True),
        (MOST_SHIFT, False),
        (-MOST_SHIFT, False),
        (MOST_SHIFT - 0.5, True),
        (float("nan"), False),
        (True, False),
        ("1", False),
        (None, False),
    ],
)
def test_a_shift_is_a_small_number(shift: Any, good: bool) -> None:
    model: Any = SimpleNamespace(shift=0.0, calibration=None, tasks=())
    if good:
        restore_calibration(model, {"shift": shift}, "here")
        assert model.shift == shift
        assert described_calibration(model) == {"shift": shift}
        return
    with pytest.raises(DataError) as met:
        restore_calibration(model, {"shift": shift}, "here")
    assert str(met.value) == (
        f"here is damaged: its shift, the number that is added to every logit, is {shift!r}; expected a number between -50 "
        "and 50; restore it from a copy"
    )
