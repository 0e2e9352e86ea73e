"""Writes and reads checkpoints of the online loop: the position in the stream, waiting events and the model.

    model/online/
      LOCK                     held by the one loop that learns into this folder
      checkpoint-0000000012/   one of the last two checkpoints
        state.json             sealed: positions, counts, progress; size and SHA-256 of the other files
        engine.ffm             only for a Deep FFM: weights and accumulators, with checksums of its own
        model/                 only for a click model of torch: weights, tables and optimizer states, with checksums of their own
                               (predict/weights_folder.py)
        histories.past         only if the plan has histories or counters: their state, with checksums of its own
        held.arrow             impressions whose click window has not passed
        clicks.arrow           clicks whose impression has not arrived
        ready.arrow            examples that the model has not learned from yet
        window.arrow           predictions in the newest window of the progressive validation
        batch.arrow            only for a click model of torch: examples that wait until their batch is full

A checkpoint is first written into a temporary folder, every file is synced, and then the folder is renamed. Therefore the parts
of a checkpoint always belong together, even after a crash: each event is either in the weights, or waits in a file, or comes
after the position in the stream.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ctrbox.engines.history.state_of_histories import Histories
from ctrbox.errors import CtrboxError, DataError, PlanError, SourceError
from ctrbox.files.atomic import locked, remove, synced, written_aside
from ctrbox.files.sealed_json import read_sealed, sealed
from ctrbox.loop.online_model import ENGINE, MODEL, OnlineFfm, OnlineModel

NAME = re.compile(r"checkpoint-(\d{10})")
STATE, PAST = "state.json", "histories.past"
CHECKED = (ENGINE, PAST)  # files that check themselves
KEPT = 2

Read = Callable[[Path, Any], OnlineModel]  # from the folder of a checkpoint and the number of examples learned


@dataclass
class Checkpoint:
    number: int
    state: dict[str, Any]
    tables: dict[str, pa.Table]
    engine: OnlineModel
    has_histories: bool = False


class Checkpoints:
    """The last two checkpoints in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold a lock on the folder, so that no other process learns into it at the same time."""
        return locked(self.folder, f"learn into {self.folder.parent}")

    def write(
        self,
        number: int,
        state: Mapping[str, Any],
        tables: Mapping[str, pa.Table],
        engine: OnlineModel,
        histories: Histories | None = None,
    ) -> None:
        """Write a checkpoint, which is complete or not there at all, and then remove all but the newest two."""
        place = self.folder / f"checkpoint-{number:010}"
        with written_aside(place, folder=True) as aside:
            aside.mkdir()
            engine.save(aside)
            if histories is not None:
                histories.save(aside / PAST)
            for name, table in tables.items():
                _write(aside / f"{name}.arrow", table)
            files = {p.name: _facts(p) for p in sorted(aside.iterdir())}
            text = sealed({**state, "learned": engine.learned, "files": files})
            (aside / STATE).write_text(text, encoding="utf-8")
            for path in [*aside.iterdir(), aside]:
                synced(path)
        for old in self.found()[:-KEPT]:
            remove(old)

    def found(self) -> list[Path]:
        """Return the checkpoints in the folder, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(p for p in self.folder.iterdir() if NAME.fullmatch(p.name) and p.is_dir())

    def last(
        self,
        tell: Any,
        histories: Histories | None = None,
        *,
        check: Callable[[Mapping[str, Any]], None] = lambda state: None,
        read: Read = OnlineFfm.read,
    ) -> Checkpoint | None:
        """Return the newest complete checkpoint. Newer ones that are damaged are removed, and ``tell`` gets the reason.

        Raises `SourceError` if there is no complete checkpoint.

        ``histories`` takes the state that the checkpoint contains. ``check`` raises a `PlanError` if the checkpoint is sound but
        does not belong to this loop. ``read`` reads the model.
        """
        wrong: dict[Path, str] = {}
        for place in reversed(self.found()):
            try:
                found = _read(place, histories, check, read)
            except PlanError:  # a sound checkpoint of another job
                raise
            except CtrboxError as error:
                wrong[place] = str(error)
                continue
            for damaged, why in wrong.items():
                tell(f"a checkpoint is damaged, so the loop continues from the previous one: {why}")
                remove(damaged)  # two that are whole are kept, not this and one
            return found
        if wrong:
            raise SourceError(
                f"every checkpoint in {self.folder} is damaged: {next(iter(wrong.values()))}. Restore the folder from a "
                "copy, or choose another output folder"
            )
        return None


def _read(
    place: Path, histories: Histories | None, check: Callable[[Mapping[str, Any]], None], read: Read
) -> Checkpoint:
    state = read_sealed(place / STATE, "checkpoint")
    files = state.get("files")
    if not isinstance(files, dict) or not {ENGINE, MODEL} & files.keys():
        raise DataError(f"{place / STATE} is damaged: it does not name the files of a checkpoint")
    check(state)
    tables = {}
    for name, facts in files.items():
        path = place / name
        if Path(name).name != name or not (path.is_dir() if name == MODEL else path.is_file()):
            raise SourceError(f"{path} is missing")
        if _facts(path) != facts:
            raise DataError(f"{path} is damaged: its size or checksum does not match")
        if path.suffix == ".arrow":
            try:
                with pa.ipc.open_file(pa.BufferReader(path.read_bytes())) as file:
                    tables[path.stem] = file.read_all()
            except (pa.ArrowException, OSError, ValueError) as error:
                raise DataError(f"{path} is damaged: {error}") from error
    engine = read(place, state.get("learned"))
    if histories is not None and PAST in files:
        with contextlib.suppress(PlanError):  # of another plan, which the loop tells
            histories.load(place / PAST)
    found = NAME.fullmatch(place.name)
    return Checkpoint(int(found[1]) if found else 0, state, tables, engine, PAST in files)


def _write(path: Path, table: pa.Table) -> None:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with path.open("wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as file:
        file.write_table(table)


def _facts(path: Path) -> list[Any]:
    """Return the size and checksum of a file. Files of the engine and of histories check themselves; state.json checks the
    others.
    """
    if path.is_dir():
        path /= STATE
    if path.name in CHECKED:
        return [path.stat().st_size, ""]
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]
