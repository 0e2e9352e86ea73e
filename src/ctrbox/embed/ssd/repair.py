"""Repairs damaged files of a Sparse Table with copies from a table that was saved earlier.

A segment is never changed after it is written, so a saved table that still names it has the same bytes. The table keeps
the state of its own last checkpoint: only damaged files are replaced, and only if the table is undamaged afterwards.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from ctrbox import _native
from ctrbox.embed.ssd.folder import absolute, described, link, locked, segments_of
from ctrbox.errors import SourceError
from ctrbox.files.atomic import synced

PAGE = 4096


def repair(path: str | os.PathLike[str], source: str | os.PathLike[str]) -> list[Path]:
    """Replace damaged files of the table at ``path`` by those of its copy at ``source``, and return the replaced files."""
    mine, theirs = absolute(path), absolute(source)
    for place in (mine, theirs):
        described(place)
    if mine.samefile(theirs):
        raise SourceError(f"{mine} cannot be repaired from itself; pass a copy that was saved earlier, on another disk")
    lock = locked(mine, False)
    try:
        segments_of(mine, _native.SparseTable.generation(os.fspath(mine))).mkdir(exist_ok=True)
        damaged = _native.SparseTable.damaged(os.fspath(mine))
        here, there = (segments_of(p, _native.SparseTable.generation(os.fspath(p))) for p in (mine, theirs))
        runs, saved = (_native.SparseTable.runs_by_segment(os.fspath(p)) for p in (mine, theirs))
        names = {number: f"{number:010}.seg" for number in runs}
        for number, what in damaged.items():
            if not set(runs[number]) <= set(saved.get(number, ())) or _differ(
                here / names[number], there / names[number]
            ):
                raise SourceError(
                    f"{here / names[number]} cannot be repaired: "
                    f"{theirs} has no identical copy of it; {what}. If "
                    f"{theirs} is an older checkpoint of the same table, restore() returns to it"
                )
        if not damaged:
            return []
        aside = Path(tempfile.mkdtemp(prefix=f".{mine.name}.repair-", dir=mine.parent))
        try:
            made = segments_of(aside, _native.SparseTable.generation(os.fspath(mine)))
            made.mkdir()
            shutil.copyfile(mine / "MANIFEST", aside / "MANIFEST")
            for number, name in names.items():
                if number in damaged:
                    shutil.copyfile(there / name, made / name)
                    synced(made / name)
                else:
                    link(here / name, made / name)
            still = _native.SparseTable.damaged(os.fspath(aside))
            if still:
                number, what = next(iter(still.items()))
                raise SourceError(
                    f"{here / names[number]} cannot be repaired: its copy in {theirs} is damaged too: {what}"
                )
            for number in damaged:
                (made / names[number]).replace(here / names[number])
            synced(here)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return [here / names[number] for number in damaged]
    except _native.DamagedFile as error:
        raise SourceError(f"cannot repair {mine} from {theirs}: {error}") from error
    except OSError as error:
        raise SourceError(f"cannot repair {mine} from {theirs}: {error.strerror or error}") from error
    finally:
        if lock >= 0:
            os.close(lock)


def _differ(damaged: Path, copy: Path) -> bool:
    """Whether these are two files, not one with damage: most of the blocks that are not zero differ."""
    if not copy.exists() or (damaged.exists() and damaged.samefile(copy)):
        return True
    if not damaged.exists():
        return False
    blocks = unlike = 0
    with damaged.open("rb") as a, copy.open("rb") as b:
        while (mine := a.read(PAGE)) and (theirs := b.read(PAGE)):
            blocks += any(mine)
            unlike += any(mine) and mine != theirs
    return unlike * 2 > blocks
