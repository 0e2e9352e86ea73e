"""Is a Sparse Table after a crash exactly its last checkpoint, and is damage to its files always found?

    python -m benchmarks.table_crash [--quick] [--kills 200] [--cuts 200] [--flips 10000] [--seed 0]

Kills: a training that pushes, flushes, compacts and checkpoints runs in a process of its own, in 2 of 5 rounds with the
checkpoints and compactions in a thread beside the pushes. It is killed at a random moment, its table is opened, verified
and compared bit for bit with a replay in memory; another process goes on from there, until the training ends with the
rows of an unbroken one.

Cuts: the same, but what was not synced may be gone. A preloaded library logs every write, rename and sync; from its log
folders are made that a power cut may leave, one at the kill and four at random moments before it.

Flips: one bit of the files of a closed table is flipped at a time. Every flip must be found by opening or by `verify`,
naming the file, and no row that is read may be wrong.

The parts live in tests/embed/ssd/: trainee.py, killing.py, power_cut.py with unsynced.c, damage.py.
"""

from __future__ import annotations

import collections
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import report
from tests.embed.ssd.damage import Patient, Unnoticed
from tests.embed.ssd.killing import Broken, Rounds
from tests.embed.ssd.power_cut import NoShim, compile_shim

CUTS_A_KILL = 4


def rounds(place: Path, kills: int, seed: int, library: Path | None) -> Rounds:
    began, cuts = time.perf_counter(), CUTS_A_KILL if library else 0
    place.mkdir()
    done = Rounds(place, seed, library, cuts=cuts).go(kills)
    shutil.rmtree(place)
    print(
        f"{done.kills} {'power cuts' if library else 'kills'} in {done.runs} trainings, {done.lost} pushes to be made again; "
        f"{time.perf_counter() - began:.0f} s"
    )
    return done


def flips(place: Path, count: int, seed: int) -> collections.Counter[str]:
    began, rng = time.perf_counter(), random.Random(seed)
    place.mkdir()
    found: collections.Counter[str] = collections.Counter()
    patient = Patient.made(place / "table", seed)
    size = sum(path.stat().st_size for path in patient.files())
    for _ in range(count):
        found[patient.flip(rng)] += 1
    shutil.rmtree(place)
    print(f"{count:,} flips in {size:,} bytes: {dict(found)}; {time.perf_counter() - began:.0f} s")
    return found


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="5 kills, 5 cuts, 500 flips")
    asked = parser.parse_args()
    if asked.quick:
        asked.kills, asked.cuts, asked.flips = 5, 5, 500
    folder = Path(tempfile.mkdtemp(prefix="ctrbox-table-crash-"))
    try:
        library = compile_shim(folder)
    except NoShim as why:
        library = None
        print(f"no cuts: {why}")
    try:
        killed = rounds(folder / "kills", asked.kills, asked.seed, None)
        cut = rounds(folder / "cuts", asked.cuts, asked.seed + 1, library) if library else None
        found = flips(folder / "flips", asked.flips, asked.seed)
    except (Broken, Unnoticed) as error:  # the folder stays: it is the evidence
        sys.exit(f"{error}\nkept: {folder}")
    shutil.rmtree(folder)
    rows: list[list[Any]] = []
    for word in sorted(killed.during | (cut.during if cut else killed.during)):
        rows.append([word, killed.during[word], cut.during[word] if cut else "-"])
    report.table(["killed during", "kills", "power cuts"], rows)
    if cut:
        kept = ", ".join(f"{mode} {count}" for mode, count in cut.modes.most_common())
        print(f"what was not synced and yet there, over {cut.cuts} cuts: {kept}")
    print("every table opened, verified and was its last checkpoint; every training ended as an unbroken one")
    report.finish(
        killed.kills + (cut.kills if cut else 0),
        {},
        "crashes survived",
        kills=killed.kills,
        power_cuts=cut.kills if cut else 0,
        states_looked_at=cut.cuts if cut else 0,
        trainings=killed.runs + (cut.runs if cut else 0),
        flips=asked.flips,
        flips_found=found["open"] + found["verify"],
    )


if __name__ == "__main__":
    main()
