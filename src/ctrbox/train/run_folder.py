"""Manages the run folder on disk: its lock, its contents, and what a resumed run finds in it.

``docs/training/run_folder.md`` describes its files.

Only one process can train into a folder at a time (a lock). A folder that contains other files is refused and never emptied.
``summary.json`` marks a finished run and is written after the model.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ctrbox.compiled_plan.plan import Plan
from ctrbox.errors import CtrboxError, DataError, WriteError
from ctrbox.files.atomic import remove, written_aside
from ctrbox.files.sealed_json import plain, read_sealed, sealed, tidy
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.files.untrusted_files import read_regular
from ctrbox.predict.stored_calibration import described_calibration
from ctrbox.train.checkpoint import checkpoint_path, remove_older, whole, write_weights
from ctrbox.train.learn_batch import Learner
from ctrbox.train.settings import same_run
from ctrbox.train.tensorboard_file import Events

OURS = (
    "config.json",
    "plan.ctrplan",
    "plan.svg",
    "metrics.jsonl",
    "summary.json",
    "report.html",
    "model",
    "best",
    "checkpoints",
)
KEEP_CHECKPOINTS = 2
MOST_LINES = 1 << 30  # bytes of metrics.jsonl


class RunFolder:
    """An open run folder, made by ``open``. It holds the lock of the folder until it is closed or the process ends."""

    def __init__(self, path: Path, lock: int, stored: StoredFolder | None = None) -> None:
        self.path = path
        self.stored = stored
        self.shown = str(path) if stored is None else stored.url
        self.lock = lock
        self.best = path / "best"
        self.before = path / ".before"
        self.gone = path / ".gone"
        self.events: Events | None = None
        self.resumed_at: int | None = None

    @staticmethod
    def open(
        place: Path | StoredFolder, identity: dict[str, Any], plan: Plan, *, resume: bool, overwrite: bool
    ) -> RunFolder:
        """Begin a run in ``place``, or continue the unfinished run there."""
        stored = place if isinstance(place, StoredFolder) else None
        path = place.path if isinstance(place, StoredFolder) else place
        mine = json.loads(json.dumps(identity))  # as it will be read back
        try:
            path.mkdir(parents=True, exist_ok=True)
            refuse_foreign(path)
            lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            if isinstance(error, CtrboxError):
                raise
            raise WriteError(f"cannot write run folder {path}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise WriteError(
                f"another process is training into {path}; choose another out=, or wait until it has finished"
            ) from None
        folder = RunFolder(path, lock, stored)
        try:
            if stored is not None:
                stored.pull(lambda name: "/" not in name)
            folder._begin(mine, plan, resume, overwrite)
            if stored is not None:
                folder._continue_stored(stored)
        except BaseException:
            folder.close()
            raise
        return folder

    def _begin(self, mine: dict[str, Any], plan: Plan, resume: bool, overwrite: bool) -> None:
        path, there = self.path, self.path / "config.json"
        remove(self.gone)
        if self.before.exists():
            self._bring_back()  # a process that was to replace this run ended before it had anything better
        if there.exists() and not overwrite:
            kept = read_sealed(there, "run folder")
            if (path / "summary.json").exists():
                raise DataError(
                    f"{self.shown} contains a finished run; choose another out=, or replace the run with overwrite=True"
                )
            if not resume:
                raise DataError(
                    f"{self.shown} holds an unfinished run; continue it with resume=True, or start over with overwrite=True"
                )
            same_run(self.shown, kept.get("identity"), mine)
        else:
            if there.exists():
                self._set_aside()
            config = {"started": datetime.now(UTC).isoformat(timespec="seconds"), "identity": mine}
            with written_aside(there) as aside:
                aside.write_text(sealed(config), encoding="utf-8")
        if not (path / "plan.ctrplan").exists():
            plan.save(path / "plan.ctrplan")
        if not (path / "plan.svg").exists():
            with written_aside(path / "plan.svg") as aside:
                plan.show(aside)

    # ---- a run folder on S3 or HDFS: this folder is a local copy of it, which is uploaded at each checkpoint and at the end

    def _continue_stored(self, stored: StoredFolder) -> None:
        """Download the checkpoints of an unfinished run. If the run is to be replaced, download nothing more."""
        if self.before.exists():
            stored.replace_all()
        else:
            stored.pull()
            stored.push()

    def push(self) -> None:
        """Upload new files, if this is the local copy of a folder on S3 or HDFS.

        A run that is to be replaced stays there until the new one has a checkpoint.
        """
        if self.stored is not None and not self.before.exists():
            self.stored.push()

    # ---- a run that is to be replaced waits in .before until the new one has a checkpoint or an end
    #
    # Killed at any moment, nothing is lost: config.json goes in last and comes out first, so .before holds it exactly while
    # the whole old run is there and whatever stands beside it is the new one's.
    def _set_aside(self) -> None:
        self.before.mkdir()
        for item in sorted(ours(self.path), key=lambda p: p.name == "config.json"):
            item.rename(self.before / item.name)

    def _bring_back(self) -> None:
        if (self.before / "config.json").exists():
            for item in ours(self.path):
                remove(item)
        for item in sorted(self.before.iterdir(), key=lambda p: p.name != "config.json"):
            item.rename(self.path / item.name)
        remove(self.before)

    def _let_go(self) -> None:
        """Remove the replaced run in one step (a rename), because half a run in .before would look like a run to restore."""
        if self.before.exists():
            self.before.rename(self.gone)
            remove(self.gone)

    # ---- while it runs
    def record(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Write one line of metrics.jsonl, and its numbers as TensorBoard scalars."""
        line = {"kind": kind, "step": step, **{k: plain(v) for k, v in values.items()}}
        try:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            if self.events is None:
                self.events = Events(self.path, resumed_at=self.resumed_at)
            for name, value in line.items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    self.events.scalar(f"{kind}/{name}", float(value), step)
            self.events.flush()
        except OSError as error:
            if isinstance(error, CtrboxError):
                raise
            raise WriteError(f"cannot write to run folder {self.path}: {error.strerror}") from error

    def checkpoint(self, learner: Learner, step: int, state: Mapping[str, Any]) -> None:
        """Write everything that the next step depends on. The checkpoint before stays until this one is complete."""
        folder = self.path / "checkpoints"
        folder.mkdir(exist_ok=True)
        place = checkpoint_path(folder, step)
        write_weights(place, {"state": dict(state)}, learner.held, random=True, average=learner.average)
        remove_older(folder, KEEP_CHECKPOINTS)
        self._let_go()
        self.push()

    def whole_checkpoints(self, wrong: list[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Return the complete checkpoints, newest first; ``wrong`` gets the faults of others."""
        return whole(self.path / "checkpoints", wrong)

    def goes_on_after(self, step: int) -> None:
        """Mark what was recorded after this step as void, because the training continues from this step."""
        self._forget(step)
        self.resumed_at = max(0, step)

    def _forget(self, step: int) -> None:
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        kept = []
        for line in read_regular(path, MOST_LINES).decode("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                if json.loads(line)["step"] <= step:
                    kept.append(line)
        with written_aside(path) as aside:
            aside.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def finish(self, learner: Learner, summary: Mapping[str, Any]) -> None:
        """Write the model and then the summary, after which the run is finished."""
        write_weights(self.path / "model", describe(learner, summary), learner.held, random=True)
        with written_aside(self.path / "summary.json") as aside:
            aside.write_text(sealed(summary), encoding="utf-8")
        self._let_go()
        for item in (self.path / "checkpoints", self.best):
            remove(item)
        self.push()

    def close(self) -> None:
        """Release the lock. If a run was to be replaced and was not, restore it."""
        try:
            events, self.events = self.events, None
            if events is not None:
                events.close()
            if self.before.exists():
                self._bring_back()
        finally:  # a full disk must not keep the folder locked for as long as the process lives
            if self.lock >= 0:
                os.close(self.lock)
                self.lock = -1


def holds_run(place: Path | StoredFolder) -> bool:
    """Return whether a run was begun in a folder."""
    return place.holds("config.json") if isinstance(place, StoredFolder) else (place / "config.json").exists()


def ours(path: Path) -> list[Path]:
    """Return the files that a run wrote into a folder."""
    return [
        p for p in path.iterdir() if p.name in OURS or p.name.startswith("events.out.tfevents.") or ".partial" in p.name
    ]


def refuse_foreign(path: Path) -> None:
    """Refuse a folder that is neither empty nor a run folder, so that no other files are touched."""
    if (path / ".before").exists():
        return  # a run that was being replaced
    known = {p.name for p in ours(path)} - {"config.json"}
    names = sorted(p.name for p in path.iterdir() if p.name not in (".lock", ".gone") and p.name not in known)
    if (path / "config.json").exists():
        read_sealed(path / "config.json", "run folder")
    elif names or (path / "model").exists():
        raise DataError(
            f"{path} is not a run folder: it holds {[*names, 'model'][0]!r} but no config.json; choose another out="
        )


def describe(learner: Learner, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is needed, besides the plan, to make the model and its tables again."""
    return {
        "model": type(learner.model).__name__,
        "config": getattr(learner.model, "config", None),
        "fingerprint": learner.schema.fingerprint,
        **described_calibration(learner),
        "tables": [list(s.fields) for s in learner.sources],
        "dense optimizer": None if learner.optimizer is None else type(learner.optimizer).__name__,
        "metrics": tidy(summary.get("metrics", {})),
    }
