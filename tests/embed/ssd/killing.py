"""Rounds of kill -9: a trainee is killed at a random moment, its table is looked at, another one goes on from there.

    Rounds(place, seed).go(kills=200)                       # a dead process: what it wrote is there
    Rounds(place, seed, library, cuts=5).go(kills=200)      # a power cut: unsynced writes may be gone

After each kill the table is opened from a copy: ``verify`` finds nothing, its rows are those of a checkpoint that was
asked for and not older than the last one that was there, bit for bit, by ``export`` and by ``pull``. With the library of
``power_cut.py`` the copy is what a power cut may leave; ``cuts`` at random earlier moments are looked at as well. A
trainee that lives to its end must have the rows of an unbroken training.
"""

from __future__ import annotations

import collections
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import ctrbox as cb
from tests.embed.ssd.power_cut import Disk, files_of, read_log, shim
from tests.embed.ssd.trainee import Replay, batches_in, opened
from tests.kill_rounds import KillRounds

ROOT = Path(__file__).parents[3]


class Broken(AssertionError):
    """A table that is not what was promised; the message names the folder, which is left as it is."""


class Rounds(KillRounds):
    def __init__(
        self,
        place: Path,
        seed: int,
        library: Path | None = None,
        *,
        cuts: int = 0,
        batches: int = 150,
        span: float = 0.02,  # a kill comes within so many seconds of the word it waits for
    ) -> None:
        super().__init__(place, seed)
        self.library, self.cuts_a_kill, self.batches, self.span = library, cuts, batches, span
        self.cuts = self.lost = 0
        self.modes: collections.Counter[str] = collections.Counter()

    def _training(self, kills: int) -> None:
        replay, folder = Replay(self.runs), self.place / f"run-{self.runs}-0"
        folder.mkdir()
        told = ""  # what the outside knows of checkpoints
        while True:
            beside = self.rng.random() < 0.4
            log = self.place / "log"
            log.unlink(missing_ok=True)
            disk = Disk(folder) if self.library else None
            said = self._trainee(folder, log, beside, self.kills < kills)
            where = f"seed {self.seed}, run {self.runs}, kill {self.kills}"
            if said.endswith("end\n"):
                break
            self.kills += 1
            if disk is not None:
                folder = self._power_cut(folder, log, disk, replay, told, beside, where)
                said = disk.said.decode()
            self.during[_doing(said)] += 1
            number = look(folder, replay, told + said, beside, where)
            self.lost += max(_numbers("push", said), default=number) - number
            told = f"asks {number}\nhas {number}\n"
            replay.forget(number)
        if disk is not None:
            for entry in read_log(log):
                disk.play(entry)
            if disk.now() != files_of(folder):
                raise Broken(f"the log of {folder} misses a write: unsynced.c does not see all that the table does")
        if look(folder, replay, f"asks {self.batches}\n", False, where) != self.batches:
            raise Broken(f"{where}: the training in {folder} ended early")
        shutil.rmtree(folder)

    def _trainee(self, folder: Path, log: Path, beside: bool, kill: bool) -> str:
        """Start one and kill it a moment after it said a random word for the n-th time; all that it said."""
        word, times = self.rng.choice(["open", "push", "flush", "compact", "asks"]), self.rng.randrange(1, 10)
        delay = self.rng.choice([0, self.span / 10, self.span]) * self.rng.random()
        command = [sys.executable, "-m", "tests.embed.ssd.trainee", str(folder), f"--batches={self.batches}"]
        command += [f"--seed={self.runs}", *(["--beside"] if beside else [])]
        env = os.environ | (shim(self.library, folder, log) if self.library else {})
        errors = self.place / "errors"
        with (
            errors.open("w") as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, env=env, text=True) as child,
        ):
            assert child.stdout is not None
            said = ""
            for line in child.stdout:
                said += line
                times -= line.startswith(word)
                if kill and (times == 0 or line == "open\n" == f"{word}\n"):
                    time.sleep(delay)
                    child.kill()
            code = child.wait()
        if code not in (0, -9):
            raise Broken(f"a trainee ended by itself with {code} in {folder}: {errors.read_text()[-3000:]}")
        return said

    def _power_cut(
        self, folder: Path, log: Path, disk: Disk, replay: Replay, told: str, beside: bool, where: str
    ) -> Path:
        """The folder after a cut at the kill; before that, cuts at earlier moments, each looked at."""
        entries = read_log(log)
        for moment in sorted(self.rng.randrange(len(entries) + 1) for _ in range(self.cuts_a_kill)):
            while disk.seq < moment:
                disk.play(entries[disk.seq])
            state = self._cut(disk, self.place / "state")
            what = f"{where}, cut after call {moment} of {len(entries)}"
            look(state, replay, told + disk.said.decode(), beside, what)
            shutil.rmtree(state)
        while disk.seq < len(entries):
            disk.play(entries[disk.seq])
        run, _, number = folder.name.rpartition("-")
        after = self._cut(disk, folder.with_name(f"{run}-{int(number) + 1}"))
        shutil.rmtree(folder)
        return after

    def _cut(self, disk: Disk, to: Path) -> Path:
        self.modes[disk.cut(to, self.rng)] += 1
        self.cuts += 1
        return to


def look(folder: Path, replay: Replay, said: str, beside: bool, where: str) -> int:
    """Open what a kill left, on a copy; how many batches it holds."""
    copy = folder.with_name(folder.name + "-look")
    shutil.copytree(folder, copy)

    def broken(why: str) -> Broken:
        return Broken(f"{where}: {why}; the folder is {folder}, the trainee's last lines {said.split(chr(10))[-9:-1]}")

    try:
        table = opened(copy)
    except cb.errors.CtrboxError as error:
        raise broken(f"it does not open: {error}") from error
    try:
        damage = table.verify()
        rows = table.export()
        parts = [table.pull(rows[0][at : at + 100], create=False) for at in range(0, len(rows[0]), 100)]
    except cb.errors.CtrboxError as error:
        raise broken(f"it cannot be read: {error}") from error
    finally:
        table.close(checkpoint=False)
    if damage:
        raise broken(f"verify finds {damage}")
    number = batches_in(rows)
    if wrong := replay.differences(rows):
        raise broken(wrong)
    if parts and not np.array_equal(np.concatenate(parts).view(np.uint32), rows[1].view(np.uint32)):
        raise broken("pull and export differ")
    if number < max(_numbers("has", said), default=0):
        raise broken(f"it holds {number} batches, fewer than the last checkpoint")
    if not beside and number not in [0, *_numbers("asks", said)]:
        raise broken(f"it holds {number} batches, of which no checkpoint was asked")
    shutil.rmtree(copy)
    return number


def _numbers(word: str, said: str) -> list[int]:
    return [int(line.split()[1]) for line in said.split("\n") if line.startswith(word + " ")]


def _doing(said: str) -> str:
    """In which call a kill came, as far as the last line tells."""
    word = said.split("\n")[-2].split()[0] if "\n" in said else "open"
    return {"asks": "checkpoint", "has": "between", "ready": "open"}.get(word, word)
