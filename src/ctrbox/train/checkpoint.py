"""Saves and loads the weights of a training run: checkpoints, from which a run resumes exactly, and the final model.

predict/weights_folder.py lists the files. A folder is first written under a temporary name, every file is synced, and then the
folder is renamed. It is therefore complete or not there at all. The checkpoint before it is removed only after that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from ctrbox.embed.embedder import Embedder
from ctrbox.embed.shards import restore_shard
from ctrbox.errors import CompactionError, CtrboxError, DataError
from ctrbox.files.atomic import remove, synced, written_aside
from ctrbox.files.sealed_json import sealed
from ctrbox.optimizers.of_dense_weights import optimizer_state, restore_optimizer
from ctrbox.predict.weights_folder import STATE, dense_of, facts_of, read_state, tensors_of
from ctrbox.train.average_of_weights import PREFIX, Average

NAME = re.compile(r"step-(\d{10})")


@dataclass(frozen=True)
class Held:
    """The parts of a training run whose state a folder of weights holds."""

    model: nn.Module
    embedders: Sequence[Embedder]
    optimizer: torch.optim.Optimizer | None = None


def write_weights(
    place: Path,
    state: Mapping[str, Any],
    held: Held,
    random: bool | Mapping[str, torch.Tensor] = False,
    average: Average | None = None,
) -> None:
    """Write a folder of weights at ``place``, which is complete or not there at all.

    ``random`` adds the random states of torch: those of now, or those that ``random_states`` returned earlier. ``average`` is the
    average of the weights so far, with which a resumed training continues.

    Raises `CompactionError` after the folder was written, if the background compaction of a table failed before.
    """
    failed: CompactionError | None = None
    with written_aside(place, folder=True) as aside:
        aside.mkdir()
        # Not save_file: its errors do not say that a disk is full.
        (aside / "dense.safetensors").write_bytes(
            save({k: v.cpu().contiguous() for k, v in held.model.state_dict().items()})
        )
        kept, plain = optimizer_state(held.optimizer)
        if random:
            kept |= random_states(held.model) if isinstance(random, bool) else random
        if average is not None:
            kept |= average.tensors()
        if kept:
            (aside / "optimizer.safetensors").write_bytes(save(kept))
        for k, embedder in enumerate(held.embedders):
            try:
                embedder.save(aside / f"table-{k}.ctrtable")
            except CompactionError as error:  # what it saved is whole
                failed = error
        files = {p.name: facts_of(p) for p in sorted(aside.iterdir())}
        (aside / STATE).write_text(sealed({**state, "optimizer": plain, "files": files}), encoding="utf-8")
        for path in [*aside.iterdir(), *aside.glob("*.ctrtable/*.ctrtable"), aside]:
            synced(path)
    if failed is not None:
        raise failed


def random_states(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the random state of torch and, if the model is on a GPU, that of the GPU; dropout uses them."""
    found = {"random": torch.get_rng_state()}
    gpu = _gpu_of(model)
    if gpu is not None:
        found["random_gpu"] = torch.cuda.get_rng_state(gpu)
    return found


def read_weights(place: Path, state: Mapping[str, Any], held: Held, average: Average | None = None) -> None:
    """Load the weights of a checked folder into a model, its embedders, its optimizer and the average of its weights."""
    tables = sorted(n for n in state["files"] if n.startswith("table-"))
    if len(tables) != len(held.embedders):
        raise DataError(f"{place} holds {len(tables)} tables, but the model reads {len(held.embedders)}")
    tensors = dense_of(place, held.model)
    for k, embedder in enumerate(held.embedders):
        restore_shard(embedder, place / f"table-{k}.ctrtable")
    held.model.load_state_dict(tensors)
    read_optimizer(place, state, held.model, held.optimizer, average)


def read_optimizer(
    place: Path,
    state: Mapping[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    average: Average | None = None,
) -> None:
    """Restore the optimizer state, the random states and the averages of a checked folder, if it contains them."""
    kept = tensors_of(place / "optimizer.safetensors") if "optimizer.safetensors" in state["files"] else {}
    random, random_gpu = kept.pop("random", None), kept.pop("random_gpu", None)
    averages = {name: kept.pop(name) for name in [*kept] if name.startswith(PREFIX)}
    if average is not None:
        average.restore(averages, place)
    if optimizer is not None:
        restore_optimizer(optimizer, kept, state.get("optimizer") or {}, place)
    if random is not None:
        torch.set_rng_state(random)
    gpu = _gpu_of(model)
    if random_gpu is not None and gpu is not None:
        torch.cuda.set_rng_state(random_gpu, gpu)


# ---- checkpoints of a run


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:010}"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if NAME.fullmatch(p.name) and p.is_dir())


def whole(folder: Path, wrong: list[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Return the checkpoints whose files match their state, newest first; ``wrong`` gets the faults of the others."""
    for place in reversed(checkpoints(folder)):
        try:
            yield place, read_state(place)
        except CtrboxError as error:
            wrong.append(str(error))


def remove_older(folder: Path, keep: int) -> None:
    for place in checkpoints(folder)[:-keep]:
        remove(place)


# ---- parts


def _gpu_of(model: nn.Module) -> torch.device | None:
    """Return the GPU whose random numbers the dropout of a model uses."""
    found = next((p.device for p in model.parameters()), torch.device("cpu"))
    return found if found.type == "cuda" else None
