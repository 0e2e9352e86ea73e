"""How many keys a second does a table ten times larger than its memory pull and push, against RocksDB and the disk?

    python -m benchmarks.table [--quick] [--peer none|rocksdb] [--folder DIR]

Zipf 1.05 over 100M keys, 200 batches of 500,000 references, 64-byte rows, plain SGD; memory: a tenth of the final
table's keys and rows. The page cache has no part: both stores read and write with O_DIRECT, and bytes are those the
kernel counted. A batch is one pull and one push of its unique keys. `pipelined`: while a batch is pulled and pushed,
another thread prefetches the next (queues of one batch, as the trainer's stages do it). `looking ahead`: the same with
the keys of 64 to 128 batches ahead spooled on disk and known to the table, as `fit(look_ahead=64)` does it; writing,
reading and finding next uses are part of the run. Every run has a process of its own. First all stores must give the
same rows, bit for bit, on a smaller trace.

Of the hit rate two figures are printed: of the keys that the table had, those that were in memory, and of all keys those that
needed no read, new ones being none. The second is what decides how many keys a second a disk allows, and what is asked for.

RocksDB is left out, and said so, where its C++ library is missing: benchmarks/table_rocksdb.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import disk, report, table_rocksdb
from benchmarks.table_trace import Keys, Shape, Trace, belady

THIS = "benchmarks.table"
DIM, LR, INIT, SEED = 16, 0.05, 0.01, 3
KEY, ROW = 8, 4 * DIM
FULL = Shape(100_000_000, 200, 500_000)
QUICK = Shape(10_000_000, 100, 100_000)
SMALL = Shape(3_000_000, 50, 60_000, seed=1)  # what all must agree on
SHARE = 0.1  # of the final table that fits in memory
TIMES_ROCKSDB, OF_DISK, HITS = 3.0, 0.7, 0.85
MODES = ("sequential", "pipelined")
AHEAD, WINDOW = "looking ahead", 64  # of our table alone


def modes_of(side: str) -> tuple[str, ...]:
    return (*MODES, AHEAD) if side == "ours" else MODES


def opened(side: str, folder: Path, ram: int, tuning: str = "", policy: str = "default") -> Any:
    """A side's table, empty."""
    import ctrbox as cb

    optimizer = cb.optim.SGD(lr=LR)
    if side == "memory":
        return cb.MemoryTable(DIM, optimizer=optimizer, init=INIT, seed=SEED, budget="64GB")
    path = folder / f"{side}.table"
    shutil.rmtree(path, ignore_errors=True)
    if side == "ours":
        return cb.SparseTable(path, DIM, ram=ram, optimizer=optimizer, init=INIT, seed=SEED, policy=policy)
    library = table_rocksdb.build(folder)
    how = table_rocksdb.TUNINGS[tuning]
    return table_rocksdb.RocksTable(path, library, DIM, ram=ram, optimizer=optimizer, init=INIT, seed=SEED, tuning=how)


def closed(table: Any, side: str, folder: Path) -> None:
    if side != "memory":
        table.close()
        shutil.rmtree(folder / f"{side}.table", ignore_errors=True)


# ---- one run


@dataclass
class Mark:
    """Where a run stands."""

    seconds: float
    cpu: float
    keys: int
    read: int
    written: int
    stats: dict[str, int]

    @staticmethod
    def now(table: Any, keys: int) -> Mark:
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        stats = table.stats() if hasattr(table, "stats") else {}
        seconds, cpu = time.perf_counter(), time.process_time()
        return Mark(seconds, cpu, keys, int(counts["read_bytes"]), int(counts["write_bytes"]), stats)

    def since(self, other: Mark) -> dict[str, Any]:
        counts = {name: value - other.stats.get(name, 0) for name, value in self.stats.items()}
        return {
            "seconds": self.seconds - other.seconds,
            "cpu": self.cpu - other.cpu,
            "keys": self.keys - other.keys,
            "read": self.read - other.read,
            "written": self.written - other.written,
            "stats": counts,
        }


def batches(trace: Trace) -> Generator[Keys, None, None]:
    yield from trace.walk()


class KeysAlone:
    """Batches of the trace are their keys."""

    def pack(self, keys: Keys) -> tuple[None, list[Keys], list[Keys]]:
        return None, [keys], [keys]

    def unpack(self, kept: None, arrays: list[Keys]) -> Keys:
        return arrays[0]


def work(given: argparse.Namespace) -> tuple[Path, Trace, np.ndarray]:
    """The folder of a run, its trace, and gradients for as many keys as the widest batch has."""
    folder = Path(given.folder)
    trace = Trace.made(Shape(**json.loads(given.trace)), folder)
    widest = max(b - a for a, b in zip(trace.starts, trace.starts[1:], strict=False))
    return folder, trace, np.random.default_rng(5).normal(size=(widest, DIM)).astype(np.float32)


def measure(given: argparse.Namespace) -> None:
    """One side in this process; the answer is the last line."""
    from ctrbox.train.look_ahead import look_ahead
    from ctrbox.train.pipeline import Clock, Stage, run_stages

    folder, trace, gradients = work(given)
    before = report.peak_rss()
    table = opened(given.measure, folder, given.ram, given.tuning, given.policy)
    ahead, pull, push = Clock("prefetch"), Clock("pull"), Clock("push")

    def prefetched(keys: Keys) -> Keys:
        table.prefetch(keys)
        return keys

    def foreseen(item: tuple[Keys, list[np.ndarray]]) -> Keys:
        table.prefetch(item[0], next_use=item[1][0])
        return item[0]

    source: Generator[Any, None, None] = batches(trace)
    stages = [Stage(ahead, prefetched)] if given.mode == "pipelined" else []
    if given.mode == AHEAD:
        source, stages = look_ahead(source, WINDOW, KeysAlone(), folder), [Stage(ahead, foreseen)]
    done, half = 0, None
    first = Mark.now(table, 0)
    read = Clock("keys")
    walk = run_stages(source, read, stages, ahead=1, overlap=bool(stages))
    for number, keys in enumerate(walk):
        if number == trace.shape.batches // 2:
            half = Mark.now(table, done)
        pull.time(table.pull, keys)
        push.time(table.push, keys, gradients[: len(keys)])
        done += len(keys)
    last = Mark.now(table, done)
    assert half is not None
    whole = last.since(first)
    answer = {
        "seconds": whole["seconds"],
        "cpu": whole["cpu"],
        "peak": report.peak_rss(),
        "before": before,
        "whole": whole,
        "late": last.since(half),
        "stats": last.stats,
        "busy": {clock.name: clock.busy for clock in (read, ahead, pull, push)},
    }
    closed(table, given.measure, folder)
    print(json.dumps(answer))


# ---- the same answers


def check(sides: list[str], folder: Path, tunings: list[str]) -> None:
    """Every row that a pull gives on the small trace, in both modes, and all rows at the end, are those in memory."""
    trace = Trace.made(SMALL, folder)
    ram = int(trace.distinct * (KEY + ROW) * 0.25)
    rng = np.random.default_rng(6)
    steps = [(keys, rng.normal(size=(len(keys), DIM)).astype(np.float32)) for keys in trace.walk()]
    everything = np.unique(np.concatenate([keys for keys, _ in steps]))
    reference = opened("memory", folder, ram)
    expected = []
    for keys, gradients in steps:
        expected.append(reference.pull(keys).copy())
        reference.push(keys, gradients)
    end = reference.pull(everything)
    assert np.abs(end).max() > 0.1
    for side in sides:
        for tuning in tunings if side == "rocksdb" else [""]:
            for mode in modes_of(side):
                table = opened(side, folder, ram, tuning)
                for number, rows in enumerate(replayed(table, steps, mode, folder)):
                    assert same(rows, expected[number]), f"{side} {tuning}, {mode}: other rows in batch {number}"
                for part in np.array_split(np.random.default_rng(7).permutation(everything), 8):
                    at = np.searchsorted(everything, part)
                    assert same(table.pull(part), end[at]), f"{side} {tuning}, {mode}: other rows at the end"
                closed(table, side, folder)
    print(f"same rows bit for bit, {trace.keys:,} keys in {len(steps)} batches: memory, {', '.join(sides)}\n")


def replayed(
    table: Any, steps: list[tuple[Keys, np.ndarray]], mode: str, folder: Path
) -> Generator[np.ndarray, None, None]:
    """What each pull gives. Pipelined: two batches are prefetched before the first is pulled, then always one ahead."""
    from ctrbox.train.look_ahead import look_ahead

    ahead = 2 if mode != "sequential" else 0
    known = iter(look_ahead((keys for keys, _ in steps), 8, KeysAlone(), folder)) if mode == AHEAD else None

    def prefetch(number: int) -> None:
        if known is None:
            table.prefetch(steps[number][0])
        else:
            table.prefetch(steps[number][0], next_use=next(known)[1][0])

    for number in range(min(ahead, len(steps))):
        prefetch(number)
    for number, (keys, gradients) in enumerate(steps):
        yield table.pull(keys).copy()
        if ahead and number + ahead < len(steps):
            prefetch(number + ahead)
        table.push(keys, gradients)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


# ---- figures


@dataclass(frozen=True)
class Cache:
    """What a part of a run asked of the table's memory."""

    asked: int
    hits: int
    new: int
    misses: int
    wrong: int  # filters that said yes for nothing
    reads: int

    @staticmethod
    def of(stats: dict[str, int]) -> Cache:
        names = ("asked", "hits", "new", "misses", "false_positives", "reads")
        return Cache(*(stats[name] for name in names))

    @property
    def rate(self) -> float:
        """Of the keys that the table had."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def unread(self) -> float:
        """Of all keys asked, those that needed nothing from the disk."""
        return 1 - self.misses / max(1, self.asked)


def speed(part: dict[str, Any]) -> float:
    return float(part["keys"] / part["seconds"])


def row_of(name: str, answer: dict[str, Any], ram: int) -> list[str]:
    whole, late = answer["whole"], answer["late"]
    grown = (answer["peak"] - answer["before"]) / 1e6
    return [
        name,
        f"{speed(whole):,.0f}",
        f"{speed(late):,.0f}",
        f"{late['read'] / late['keys']:,.0f}",
        f"{late['written'] / late['keys']:,.0f}",
        f"{answer['peak'] / 1e6:,.0f}",
        f"{grown:,.0f}" + (f" ({grown * 1e6 / ram:.2f} ×)" if ram else ""),
        f"{whole['cpu'] / whole['keys'] * 1e6:.2f}",
    ]


HEAD = [
    "",
    "keys/s",
    "last half",
    "bytes read a key",
    "written a key",
    "peak RSS MB",
    "above the start MB",
    "CPU µs a key",
]


def question(given: argparse.Namespace, folder: Path) -> None:
    shape = QUICK if given.quick else FULL
    sides = ["ours"]
    why = table_rocksdb.missing() if given.peer == "rocksdb" else "--peer none"
    tunings = [t for t in given.tuning.split(",") if t]
    if why:
        print(f"rocksdb is left out: {why}")
    else:
        sides.append("rocksdb")
    if not given.unchecked:
        check(sides, folder, tunings)

    began = time.perf_counter()
    trace = Trace.made(shape, folder)
    size = trace.distinct * (KEY + ROW)
    ram = int(size * given.share)
    print(
        f"{shape.batches} batches of {shape.references:,} references over {shape.space:,} keys, Zipf {shape.exponent}: "
        f"{trace.keys / shape.batches:,.0f} unique keys per batch, {trace.distinct:,} in all, {size / 1e6:,.0f} MB\n"
        f"memory {ram / 1e6:,.1f} MB ({given.share:.0%}), {report.machine()}, commit {report.commit()}"
    )
    best = belady(trace, ram // (KEY + ROW))
    print(f"(trace and Belady's optimum: {time.perf_counter() - began:.0f} s)\n")

    rates = disk_rates(folder, given.quick)
    runs: dict[str, dict[str, Any]] = {}
    for side in [*sides, "memory"]:
        for tuning in tunings if side == "rocksdb" else [""]:
            for mode in modes_of(side):
                name = f"{side}{' ' if tuning else ''}{tuning} {mode}"
                runs[name] = run(side, mode, trace, ram, folder, tuning, given.policy)
    rates = {
        depth: max(rate, again)
        for (depth, rate), again in zip(rates.items(), disk_rates(folder, given.quick).values(), strict=True)
    }
    report.table(HEAD, [row_of(name, answer, 0 if "memory" in name else ram) for name, answer in runs.items()])
    figures(runs, rates, trace, ram, best, given)


def disk_rates(folder: Path, quick: bool) -> dict[int, float]:
    """Measured before and after the runs: a disk that others use too is not always the same."""
    path = folder / "disk.bin"
    try:
        disk.written(path, disk.QUICK_SIZE if quick else disk.SIZE)
        return {depth: disk.random_reads(path, depth) for depth in (32, 64)}
    finally:
        path.unlink(missing_ok=True)


def run(side: str, mode: str, trace: Trace, ram: int, folder: Path, tuning: str, policy: str) -> dict[str, Any]:
    more = ["--tuning", tuning] if tuning else []
    return report.fresh(
        THIS,
        *("--measure", side, "--mode", mode, "--ram", str(ram), "--folder", str(folder), "--policy", policy),
        *("--trace", json.dumps(trace.shape.__dict__), *more),
    )


def figures(
    runs: dict[str, dict[str, Any]],
    rates: dict[int, float],
    trace: Trace,
    ram: int,
    best: Any,
    given: argparse.Namespace,
) -> None:
    reads = max(rates.values())
    since = trace.shape.batches // 2
    fastest = max((n for n in runs if n.startswith("ours")), key=lambda n: speed(runs[n]["whole"]))
    peers = {n: speed(a["whole"]) for n, a in runs.items() if n.startswith("rocksdb")}
    print(f"\ndisk: {', '.join(f'{rate:,.0f} random 4 KiB reads/s at depth {depth}' for depth, rate in rates.items())}")
    shares = {}
    for name in (n for n in runs if n.startswith("ours")):
        answer = runs[name]
        late, cache = answer["late"], Cache.of(answer["late"]["stats"])
        allowed = reads / max(1e-9, cache.misses / cache.asked)
        shares[name] = speed(late) / allowed
        stats, floor = answer["stats"], cache.misses * disk.BLOCK / late["keys"]
        print(
            f"{name}, last half: {cache.rate:.1%} of the keys the table had were in memory, {cache.unread:.1%} of all "
            f"needed no read; {late['read'] / late['keys']:,.0f} bytes read a key, 4 KiB a miss are {floor:,.0f}; "
            f"{cache.wrong / max(1, cache.new + cache.misses):.2%} false positives\n"
            f"  the disk allows {allowed:,.0f} keys/s at that rate: {shares[name]:.0%} of it; "
            f"busy {', '.join(f'{what} {seconds:.1f} s' for what, seconds in answer['busy'].items() if seconds)} "
            f"of {answer['seconds']:.1f} s\n"
            f"  {stats['capacity']:,} rows fit in memory, {stats['memory'] / 1e6:,.1f} MB by its own account; "
            f"{stats['disk_bytes'] / 1e6:,.0f} MB on disk, {stats['live_bytes'] / 1e6:,.0f} live; "
            f"{stats['compactions']:,} compactions wrote {stats['compacted_bytes'] / 1e6:,.0f} MB"
        )
    own = belady(trace, runs[fastest]["stats"]["capacity"])
    frequent = top(trace, ram // (KEY + ROW), since)
    print(
        f"Belady's optimum, last half: {best.rate(since):.1%} with all memory for rows, {own.rate(since):.1%} with as many "
        f"rows as the table holds; always holding the most frequent keys: {frequent:.1%}"
    )
    cache = Cache.of(runs[fastest]["late"]["stats"])
    ratio = speed(runs[fastest]["whole"]) / max(peers.values()) if peers else None
    goals = {
        f"{TIMES_ROCKSDB:g} × RocksDB": (None if ratio is None else ratio >= TIMES_ROCKSDB, ratio and f"{ratio:.2f} ×"),
        f"{OF_DISK:.0%} of the disk": (shares[fastest] >= OF_DISK, f"{shares[fastest]:.0%}"),
        f"{HITS:.0%} of the keys without a read": (
            cache.unread >= HITS,
            f"{cache.unread:.1%}; {cache.rate:.1%} of what was there, the optimum of as many rows {own.rate(since):.1%}",
        ),
    }
    print(f"asked for, of {fastest}, the fastest:")
    for goal, (met, found) in goals.items():
        print(
            f"{goal}: {'not measured' if met is None else 'met' if met else 'NOT met'}{f', {found}' if found else ''}"
        )
    print()
    report.finish(
        speed(runs[fastest]["whole"]),
        peers | {n: speed(a["whole"]) for n, a in runs.items() if n.startswith("memory")},
        "unique keys/s, pull + push",
        last_half={name: round(speed(answer["late"])) for name, answer in runs.items()},
        bytes_read_a_key={n: round(a["late"]["read"] / a["late"]["keys"]) for n, a in runs.items()},
        bytes_written_a_key={n: round(a["late"]["written"] / a["late"]["keys"]) for n, a in runs.items()},
        disk_reads_per_second={str(depth): round(rate) for depth, rate in rates.items()},
        share_of_disk={name: round(share, 3) for name, share in shares.items()},
        hit_rate=round(cache.rate, 4),
        needed_no_read=round(cache.unread, 4),
        belady=round(best.rate(since), 4),
        belady_own_capacity=round(own.rate(since), 4),
        ram=ram,
        fastest=fastest,
        rss_above_start={name: answer["peak"] - answer["before"] for name, answer in runs.items()},
        met={goal: met for goal, (met, _) in goals.items()},
        quick=given.quick,
    )


def top(trace: Trace, rows: int, since: int) -> float:
    """The hit rate of a cache that always holds the most frequent keys: without the future no policy does better."""
    seen = np.zeros(trace.shape.space + 1, bool)
    hits = known = 0
    for batch in range(trace.shape.batches):
        ranks = trace.ranks(batch)
        if batch >= since:
            had = ranks[seen[ranks]]
            hits, known = hits + int((had <= rows).sum()), known + len(had)
        seen[ranks] = True
    return hits / max(1, known)


def run_or_measure(
    options: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], None],
    question: Callable[[argparse.Namespace, Path], None],
) -> None:
    """Answer the question of a benchmark whose sides are measured by processes of their own; these call `measure`."""
    options.add_argument("--folder", help="on the disk to measure; traces stay there for the next run")
    options.add_argument("--unchecked", action="store_true", help="skip the comparison of rows")
    options.add_argument("--measure", help=argparse.SUPPRESS)
    options.add_argument("--ram", type=int, default=0, help=argparse.SUPPRESS)
    options.add_argument("--trace", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        measure(given)
        return
    with disk.scratch(given.folder) as folder:
        question(given, folder)


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="10M keys, 100 batches of 100,000 references")
    options.add_argument("--peer", choices=["none", "rocksdb"], default="rocksdb")
    options.add_argument(
        "--tuning", default=table_rocksdb.BEST, help=f"of RocksDB, by commas: {', '.join(table_rocksdb.TUNINGS)}"
    )
    options.add_argument("--policy", default="default", help="of our table: which rows leave memory")
    options.add_argument("--share", type=float, default=SHARE, help="of the final table that fits in memory")
    options.add_argument("--mode", default="sequential", help=argparse.SUPPRESS)
    run_or_measure(options, measure, question)


if __name__ == "__main__":
    main()
