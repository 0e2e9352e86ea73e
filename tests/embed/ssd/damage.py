"""Damage to the files of a closed table: one flipped bit, a shorter file, a page in another's place.

    patient = Patient.made(folder, seed=0)
    found = patient.flip(rng)                # where it was found: "open" or "verify"; Unnoticed when it was not

The damaged file lies beside hard links to the others, so that ten thousand tries cost little. Each try reads every row
as well: what comes is the right row or an error that names the file, never another row. Of a table whose files have
parts that are not in use, damage in these is found "nowhere" and does no harm.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ctrbox as cb

PAGE = 4096
SETTINGS: dict[str, Any] = {"dim": 12, "optimizer": cb.Adagrad(lr=0.05), "init": 0.05, "seed": 5, "threads": 1}


def opened(folder: Path) -> cb.SparseTable:
    return cb.SparseTable(folder, ram="1MB", segment_bytes=1 << 17, **SETTINGS)


class Unnoticed(AssertionError):
    """Damage that nobody found, or a row that is wrong."""


@dataclass
class Patient:
    folder: Path
    keys: np.ndarray
    values: np.ndarray
    states: np.ndarray
    all_in_use: bool = True
    tries: int = 0

    @classmethod
    def made(cls, folder: Path, seed: int, keys: int = 2000) -> Patient:
        """A table of a few hundred pages, four runs a shard, closed; every byte of its files is in use."""
        rng = np.random.default_rng(seed)
        known = np.unique(rng.integers(-(2**63), 2**63 - 1, keys))
        with opened(folder) as table:
            for turn in range(4):
                for _ in range(3):
                    some = rng.choice(known, 300, replace=False)
                    table.push(some, rng.normal(size=(len(some), SETTINGS["dim"])).astype(np.float32))
                table.flush()
                if turn % 2:
                    table.checkpoint()
            assert table.stats()["disk_bytes"] == table.stats()["live_bytes"]
            rows = table.export()
        return cls(folder, *rows)

    @classmethod
    def merged(cls, folder: Path, seed: int) -> Patient:
        """One whose runs were merged: its files have parts that nobody needs any more."""
        made = cls.made(folder, seed)
        with opened(folder) as table:
            table.push(made.keys[:1], np.ones((1, SETTINGS["dim"]), np.float32))
            table.compact()
            made.keys, made.values, made.states = table.export()
        made.all_in_use = False
        return made

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file() and path.name != "LOCK")

    def flip(self, rng: random.Random) -> str:
        """Flip one bit, every bit of all files as likely as another."""
        files = self.files()
        path = rng.choices(files, [file.stat().st_size for file in files])[0]
        bit = rng.randrange(path.stat().st_size * 8)

        def flipped(data: bytearray) -> bytearray:
            data[bit // 8] ^= 1 << bit % 8
            return data

        return self.damaged(path, flipped, f"bit {bit % 8} of byte {bit // 8} flipped")

    def damaged(self, path: Path, change: Callable[[bytearray], bytes | bytearray | None], what: str) -> str:
        """Try the table with one file changed (None: removed)."""
        place = self.folder.with_name(f"{self.folder.name}-damaged-{self.tries}")
        self.tries += 1
        name = path.relative_to(self.folder)
        shutil.copytree(self.folder, place, copy_function=os.link)
        data = change(bytearray(path.read_bytes()))
        (place / name).unlink()
        if data is not None:
            (place / name).write_bytes(data)
        found = self.tried(place, name.name, f"{name} ({path.stat().st_size} bytes), {what}, in {place}")
        shutil.rmtree(place)
        return found

    def tried(self, place: Path, name: str, what: str) -> str:
        """Open, verify and read a damaged table; where the damage was found."""
        try:
            table = opened(place)
        except cb.errors.SourceError as error:
            if name not in str(error):
                raise Unnoticed(f"{what}: refused without naming the file: {error}") from error
            return "open"
        try:
            damage = table.verify()
            refused = self.read(table, name, what)
            if any(name in line for line in damage):
                return "verify"
            if self.all_in_use or damage or refused:
                raise Unnoticed(f"{what}: verify finds {damage}, and {refused} calls are refused")
            return "nowhere"
        finally:
            table.close(checkpoint=False)

    def read(self, table: cb.SparseTable, name: str, what: str) -> int:
        """Pull every key; how many calls were refused. A wrong row is never given."""
        refused = 0
        for at in range(0, len(self.keys), 50):
            part = slice(at, at + 50)
            try:
                found = table.pull(self.keys[part], create=False)
            except cb.errors.SourceError as error:
                if name not in str(error):
                    raise Unnoticed(f"{what}: a pull is refused without naming the file: {error}") from error
                refused += 1
                continue
            if not np.array_equal(found.view(np.uint32), self.values[part].view(np.uint32)):
                raise Unnoticed(f"{what}: a pull gives wrong rows, from key {self.keys[part][0]} on")
        try:
            keys, values, states = table.export()
        except cb.errors.SourceError as error:
            if name not in str(error):
                raise Unnoticed(f"{what}: export is refused without naming the file: {error}") from error
            return refused + 1
        for mine, right in ((keys, self.keys), (values, self.values), (states, self.states)):
            if mine.tobytes() != right.tobytes():
                raise Unnoticed(f"{what}: export gives wrong rows")
        return refused
