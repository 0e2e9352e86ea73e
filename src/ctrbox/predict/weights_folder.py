"""Reads the weights of a model from their folder, and uses no file before its size and checksum were compared.

    state.json            sealed: the state, and the size and SHA-256 of every other file (for a table, of a sample of its bytes)
    dense.safetensors     the model's state_dict
    optimizer.safetensors dense optimizer state and torch's random states
    table-K.ctrtable      an embedder, in its own format with checksums: a file, a folder of a Sparse Table, or one of shards

The shape of every tensor is compared with the model. Training writes such folders (train/checkpoint.py).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from ctrbox.errors import DataError
from ctrbox.files.data_fingerprint import checksums_of_own_files
from ctrbox.files.sealed_json import read_sealed
from ctrbox.files.untrusted_files import kind_of

STATE = "state.json"
# As safetensors names them.
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"}
DTYPES |= {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"}


def read_state(place: Path) -> dict[str, Any]:
    """Check the files of a folder of weights, and return its state."""
    state = read_sealed(place / STATE, "folder of weights")
    if not isinstance(state.get("files"), dict) or "dense.safetensors" not in state["files"]:
        raise DataError(
            f"{place / STATE} is damaged: it does not list the files of a model; restore the folder from a copy"
        )
    for name, facts in state["files"].items():
        _check(place, name, facts)
    return state


def read_dense(place: Path, model: nn.Module) -> None:
    """Load the dense weights of a checked folder into the model."""
    model.load_state_dict(dense_of(place, model))


def same_weights(place: Path, model: nn.Module) -> None:
    """Raise a DataError if the weights of a folder have other names, shapes or types than those of a model.

    Only the header of the file is read; safetensors compares its sizes with that of the file. ``model`` may be on the meta
    device, so that no memory is allocated for a size that a file merely claims.
    """
    shapes = shapes_in(place)
    mine = model.state_dict()
    if set(shapes) != set(mine):
        odd = sorted(set(shapes) ^ set(mine))[0]
        raise DataError(f"{place} holds a different model: only one of the two has the weight {odd!r}")
    for name, (shape, dtype) in shapes.items():
        expected = tuple(mine[name].shape), DTYPES.get(mine[name].dtype, "")
        if (shape, dtype) != expected:
            raise DataError(
                f"{place} holds a different model: weight {name!r} is {dtype} of shape {shape}, expected {expected[1]} of "
                f"shape "
                f"{expected[0]}"
            )


def shapes_in(place: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and type of every weight of a folder, from the header of its file."""
    path = place / "dense.safetensors"
    try:
        with safe_open(path, "pt") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return {name: (tuple(part.get_shape()), str(part.get_dtype())) for name, part in found.items()}
    except SafetensorError as error:
        raise DataError(f"{path} is damaged: {error}") from error


def dense_of(place: Path, model: nn.Module) -> dict[str, torch.Tensor]:
    same_weights(place, model)
    return tensors_of(place / "dense.safetensors")


# ---- files


def facts_of(path: Path) -> dict[str, Any]:
    # A table carries checksums of its own, and may be many gigabytes. They do not tell it from the sound table of another
    # step or run, which often has the same size; a checksum of sampled content does.
    table = path.suffix == ".ctrtable"
    return {"bytes": _bytes(path), **({"content": _content(path)} if table else {"sha256": _digest(path)})}


def _files(path: Path) -> list[Path]:
    """Return the file itself or, for the folder of a table, all its files except its lock."""
    if path.is_file():
        return [path]
    found = sorted(path.rglob("*"))
    for p in found:
        if p.is_symlink() or not (p.is_file() or p.is_dir()):
            raise DataError(
                f"{p} is {kind_of(p.lstat().st_mode)}; the folder of a table may contain only regular files and folders"
            )
    return [p for p in found if p.is_file() and p.name != "LOCK"]


def _bytes(path: Path) -> int:
    return sum(p.stat().st_size for p in _files(path))


def _content(path: Path) -> str:
    """Return a checksum of the files of a table; files/data_fingerprint.py says which bytes it covers."""
    files = _files(path)
    checksums = checksums_of_own_files(files)
    names = [str(p.relative_to(path)) for p in files]
    return hashlib.sha256(repr(list(zip(names, checksums, strict=True))).encode()).hexdigest()


def _check(place: Path, name: str, facts: Any) -> None:
    if not re.fullmatch(r"[\w-]+\.[a-z]+", name) or not isinstance(facts, dict):
        raise DataError(f"{place / STATE} names a file {name!r}; expected a file name without folders")
    path = place / name
    if path.is_symlink():
        raise DataError(f"{path} is a symbolic link; expected a regular file inside the folder")
    if not path.is_file() and not (path.is_dir() and path.suffix == ".ctrtable"):
        raise DataError(f"{place} is damaged: {name} is missing; restore the folder from a copy")
    if _bytes(path) != facts.get("bytes"):
        raise DataError(
            f"{path} is damaged: it has {_bytes(path):,} bytes, expected {facts.get('bytes')!r}; restore the folder from a copy"
        )
    if "sha256" in facts and _digest(path) != facts["sha256"]:
        raise DataError(f"{path} is damaged: its checksum does not match; restore the folder from a copy")
    if "content" in facts and _content(path) != facts["content"]:
        raise DataError(
            f"{path} is not the table that was saved with this checkpoint: it is damaged, or it belongs to another step or "
            "run; restore the folder from a copy"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    try:
        found: dict[str, torch.Tensor] = load_file(path)
        return found
    except SafetensorError as error:
        raise DataError(f"{path} is damaged: {error}") from error
