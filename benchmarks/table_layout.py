"""Do sorted runs serve a table larger than its memory better than the paper's groups, and a blocked filter than its Bloom filter?

    python -m benchmarks.table_layout [--quick] [--rounds N] [--tuning B:L:S,…] [--folder DIR]

The trace of `benchmarks.table` at a reduced size: Zipf 1.05 over 20M keys, 300 batches of 60,000 references, 64-byte rows,
plain SGD, memory for a tenth of the final table's keys and rows, O_DIRECT for all, bytes as the kernel counted them. A batch
is one pull and one push of its unique keys. Three tables in turn, each run in a process of its own:

    runs, heat    `cb.SparseTable` as it is
    runs, lfu     the same with the paper's choice of rows that leave memory
    groups        the paper's layout, benchmarks/paper_store/group_store.h: a group of rows is read, changed and written anew;
                  groups of a bucket, MAX_LFU (0: its share of the rows) and FLUSH_STEP by --tuning

First all must give the rows of the table in memory, bit for bit, on a smaller trace. The paper's store is compiled with
benchmarks/table_layout.cpp into the scratch folder; it is told the number of keys beforehand.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report, table
from benchmarks.table import DIM, INIT, KEY, LR, ROW, SEED, Mark
from benchmarks.table_trace import Keys, Shape, Trace

THIS = "benchmarks.table_layout"
FULL = Shape(20_000_000, 300, 60_000)
QUICK = Shape(5_000_000, 200, 12_500)
NATIVE = report.ROOT / "native"
SOURCES = [
    Path(__file__).with_suffix(".cpp"),
    Path(__file__).parent / "paper_store" / "group_store.cpp",
    *(NATIVE / "core" / name for name in ("embed/table_row.cpp", "ssd/segment_files.cpp", "ssd/block_reader.cpp")),
]
POLICIES = {"runs, heat": "default", "runs, lfu": "lfu"}
# The more rows leave together, the fewer groups are written, and the more rows must be read again: docs/tried.md.
BEST = "4:0:64"


def build(folder: Path) -> Path:
    """The library of table_layout.cpp, with the flags of CMakeLists.txt."""
    out = folder / "table_layout.so"
    if not out.exists():
        command = ["c++", "-std=c++20", "-O3", "-DNDEBUG", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC"]
        command += ["-pthread", f"-I{NATIVE}", f"-I{Path(__file__).parent}", *map(str, SOURCES), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return out


class GroupTable:
    """The paper's store with the embedder's pull and push."""

    def __init__(self, path: Path, library: Path, *, ram: int, keys: int, tuning: str) -> None:
        self.path = path
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        self.native = ctypes.CDLL(str(library))
        for name in ("group_open", "group_pull", "group_push", "group_stats"):
            getattr(self.native, name).restype = ctypes.c_char_p
        self.store = ctypes.c_void_p()
        numbers = [ctypes.c_uint64(n) for n in (SEED, ram, keys, *map(int, tuning.split(":")))]
        self._check(
            self.native.group_open(
                str(path).encode(),
                ctypes.c_uint64(DIM),
                ctypes.c_double(LR),
                ctypes.c_double(INIT),
                *numbers,
                ctypes.byref(self.store),
            )
        )

    def pull(self, keys: Keys) -> np.ndarray:
        rows = np.empty((len(keys), DIM), np.float32)
        self._check(self.native.group_pull(self.store, *self._keys(keys), ctypes.c_void_p(rows.ctypes.data)))
        return rows

    def push(self, keys: Keys, gradients: np.ndarray) -> None:
        self._check(self.native.group_push(self.store, *self._keys(keys), ctypes.c_void_p(gradients.ctypes.data)))

    def stats(self) -> dict[str, int]:
        lines = self.native.group_stats(self.store).decode().splitlines()
        return {name: int(value) for name, value in (line.split() for line in lines)}

    def close(self) -> None:
        self.native.group_close(self.store)
        shutil.rmtree(self.path, ignore_errors=True)

    def _keys(self, keys: Keys) -> tuple[ctypes.c_void_p, ctypes.c_uint64]:
        return ctypes.c_void_p(keys.ctypes.data), ctypes.c_uint64(len(keys))

    def _check(self, said: bytes | None) -> None:
        if said is not None:
            raise RuntimeError(f"the paper's store: {said.decode()}")


def opened(side: str, folder: Path, ram: int, keys: int) -> Any:
    """A side's table, empty. A side of groups is named by its tuning."""
    if side in POLICIES:
        return table.opened("ours", folder, ram, policy=POLICIES[side])
    return GroupTable(folder / "groups.table", build(folder), ram=ram, keys=keys, tuning=side.split()[1])


# ---- one run


def measure(given: argparse.Namespace) -> None:
    """One side in this process; the answer is the last line."""
    folder, trace, gradients = table.work(given)
    before = report.peak_rss()
    store = opened(given.measure, folder, given.ram, trace.distinct)
    done, half = 0, None
    first = Mark.now(store, 0)
    for number, keys in enumerate(trace.walk()):
        if number == trace.shape.batches // 2:
            half = Mark.now(store, done)
        store.pull(keys)
        store.push(keys, gradients[: len(keys)])
        done += len(keys)
    last = Mark.now(store, done)
    assert half is not None
    answer = {"whole": last.since(first), "late": last.since(half), "stats": last.stats}
    store.close()
    shutil.rmtree(folder / "ours.table", ignore_errors=True)
    print(json.dumps(answer | {"peak": report.peak_rss(), "before": before}))


def check(sides: list[str], folder: Path) -> None:
    """Every row that a pull gives on the small trace, and all rows at the end, are those in memory."""
    trace = Trace.made(table.SMALL, folder)
    ram = int(trace.distinct * (KEY + ROW) * 0.25)
    rng = np.random.default_rng(6)
    steps = [(keys, rng.normal(size=(len(keys), DIM)).astype(np.float32)) for keys in trace.walk()]
    everything = np.unique(np.concatenate([keys for keys, _ in steps]))
    reference = table.opened("memory", folder, ram)
    expected = list(table.replayed(reference, steps, "sequential", folder))
    end = reference.pull(everything)
    for side in sides:
        store = opened(side, folder, ram, trace.distinct)
        for number, rows in enumerate(table.replayed(store, steps, "sequential", folder)):
            assert table.same(rows, expected[number]), f"{side}: other rows in batch {number}"
        for part in np.array_split(np.random.default_rng(7).permutation(len(everything)), 8):
            assert table.same(store.pull(everything[part]), end[part]), f"{side}: other rows at the end"
        store.close()
        shutil.rmtree(folder / "ours.table", ignore_errors=True)
    print(f"same rows bit for bit, {trace.keys:,} keys in {len(steps)} batches: memory; {'; '.join(sides)}\n")


# ---- figures


def reads(part: dict[str, Any]) -> int:
    """Blocks read at random: for keys, and by groups for rows that leave. Runs are merged in long reads, not counted here."""
    return int(part["stats"]["reads"] + part["stats"].get("flush_reads", 0))


def figures(answer: dict[str, Any]) -> dict[str, float]:
    whole, late = answer["whole"], answer["late"]
    cache = table.Cache.of(late["stats"])
    return {
        "keys_per_second": table.speed(whole),
        "last_half": table.speed(late),
        "cpu_us_a_key": whole["cpu"] / whole["keys"] * 1e6,
        "read_a_key": late["read"] / late["keys"],
        "written_a_key": late["written"] / late["keys"],
        "reads_a_key": reads(late) / late["keys"],
        "hit_rate": cache.rate,
        "capacity": answer["stats"]["capacity"],
        "disk_mb": answer["stats"]["disk_bytes"] / 1e6,
        "rss_mb": (answer["peak"] - answer["before"]) / 1e6,
    }


HEAD = [
    "",
    "keys/s",
    "last half",
    "CPU µs a key",
    "bytes read a key",
    "written a key",
    "reads a key",
    "hits",
    "rows in memory",
    "disk MB",
    "RSS above start MB",
]


def row_of(side: str, of: dict[str, float]) -> list[str]:
    forms = ("{:,.0f}", "{:,.0f}", "{:.2f}", "{:,.0f}", "{:,.0f}", "{:.3f}", "{:.1%}", "{:,.0f}", "{:,.0f}", "{:,.0f}")
    return [side, *(form.format(value) for form, value in zip(forms, of.values(), strict=True))]


def filters(folder: Path, quick: bool) -> list[dict[str, float | str]]:
    """Both filters at the same bits, in this process."""
    native = ctypes.CDLL(str(build(folder)))
    found: list[dict[str, float | str]] = []
    for keys in (100_000, 1_000_000 if quick else 10_000_000):
        for bits in (6.0, 10.0, 16.0):
            for name, blocked in (("blocked", 1), ("Bloom", 0)):
                out = (ctypes.c_double * 4)()
                native.filter_figures(ctypes.c_int(blocked), ctypes.c_uint64(keys), ctypes.c_double(bits), out)
                facts = dict(zip(("bits", "wrong", "ns_there", "ns_not_there"), out, strict=True))
                found.append({"filter": name, "keys": keys} | facts)
    return found


def question(given: argparse.Namespace, folder: Path) -> None:
    tunings = [f"groups {t}" for t in given.tuning.split(",") if t]
    sides = [*POLICIES, *tunings]
    (folder / "table_layout.so").unlink(missing_ok=True)
    build(folder)
    if not given.unchecked:
        check(sides, folder)
    trace = Trace.made(QUICK if given.quick else FULL, folder)
    shape, size = trace.shape, trace.distinct * (KEY + ROW)
    ram = int(size * table.SHARE)
    rounds = given.rounds or (1 if given.quick else 3)
    print(
        f"{shape.batches} batches of {shape.references:,} references over {shape.space:,} keys, Zipf {shape.exponent}: "
        f"{trace.keys / shape.batches:,.0f} unique keys per batch, {trace.distinct:,} in all, {size / 1e6:,.0f} MB\n"
        f"memory {ram / 1e6:,.1f} MB ({table.SHARE:.0%}), {report.machine()}, commit {report.commit()}; "
        f"medians of {rounds} round{'s' * (rounds > 1)}, bytes, reads and hits of the last half\n"
    )
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    last: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            last[side] = report.fresh(
                THIS,
                *("--measure", side, "--ram", str(ram), "--folder", str(folder)),
                *("--trace", json.dumps(shape.__dict__)),
            )
            runs[side].append(figures(last[side]))
    met = {side: {name: statistics.median(r[name] for r in all_) for name in all_[0]} for side, all_ in runs.items()}
    report.table(HEAD, [row_of(side, of) for side, of in met.items()])
    for side in tunings:
        stats = last[side]["stats"]
        print(
            f"{side}: {stats['evicted'] / max(1, stats['groups_written'] - stats['groups_moved']):.2f} rows left memory for "
            f"a group written; {stats['merges']} merges moved {stats['groups_moved']:,} of {stats['groups_written']:,} groups "
            f"written; {stats['memory'] / 1e6:,.1f} MB by its own account"
        )
    print()
    asked = filters(folder, given.quick)
    columns = ["filter", "keys", "bits a key", "wrong maybe", "ns a key there", "ns a key not there"]
    cells = [
        [
            f"{f['filter']}",
            f"{f['keys']:,}",
            f"{f['bits']:.1f}",
            f"{f['wrong']:.3%}",
            f"{f['ns_there']:.1f}",
            f"{f['ns_not_there']:.1f}",
        ]
        for f in asked
    ]
    report.table(columns, cells)
    print()
    ours = met["runs, heat"]
    others = {side: of["keys_per_second"] for side, of in met.items() if side != "runs, heat"}
    report.finish(
        ours["keys_per_second"],
        others,
        "unique keys/s, pull + push",
        figures={side: {name: round(value, 4) for name, value in of.items()} for side, of in met.items()},
        cpu_ratios={side: round(met[side]["cpu_us_a_key"] / ours["cpu_us_a_key"], 3) for side in others},
        written_ratios={side: round(met[side]["written_a_key"] / ours["written_a_key"], 3) for side in others},
        every_round={side: [round(r["keys_per_second"]) for r in all_] for side, all_ in runs.items()},
        filters=asked,
        ram=ram,
        quick=given.quick,
    )


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="5M keys, 200 batches of 12,500 references, one round")
    options.add_argument("--rounds", type=int, default=0, help="of all tables in turn; 3, or 1 with --quick")
    options.add_argument("--tuning", default=BEST, help="of the paper's store, by commas")
    table.run_or_measure(options, measure, question)


if __name__ == "__main__":
    main()
