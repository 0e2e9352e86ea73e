"""How long from raw logs to a trained model, next to jobs that write Parquet between their stages?

    python -m benchmarks.end_to_end [--quick] [--sides ours,polars,spark] [--repeats N] [--hidden 64-32]

The peers clean, join and extract with files between the stages, as MapReduce does, then train from the last file; ours
trains from the raw log. The trainer, the model, the rows and their order are the same on all sides. Every feature of
every row is checked first.

The clock runs from raw Parquet in the page cache to a model that has been validated. Imports do not count, nor does
the start of Spark's JVM with a first query; `--warm` leaves Spark's first use of every stage out as well.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import end_to_end_job, extract_job, report, staged_train
from benchmarks.end_to_end_job import STAGES, Stage

ROWS, QUICK_ROWS, TINY_ROWS = 2_000_000, 200_000, 2_000
CORES = 2
SIDES = ["ours", "polars", "spark"]
GOALS = {"polars": 2.0, "spark": 10.0}
SAME_AUC, EQUAL_AUC = 0.002, 0.0001  # of timed runs; of runs that start from equal weights
WAKE_UPS = 65_536  # threads wake each other by writing a few bytes; more than this is a file
THIS = "benchmarks.end_to_end"


def absent(side: str) -> str | None:
    """Why a side cannot run here, if it cannot."""
    if side not in SIDES:
        return f"there is no such side; known: {', '.join(SIDES)}"
    module = {"polars": "polars", "spark": "pyspark"}.get(side, "ctrbox")
    if importlib.util.find_spec(module) is None:
        return f"{module} is not installed: pip install {module}"
    if side == "spark":
        java = shutil.which("java")
        if java is None:
            return "there is no java on the path; Spark needs Java 17 or later"
        said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
        version = said.split('"')[1] if said.count('"') >= 2 else "0"
        if int(version.split(".")[0]) < 17:
            return f"Spark needs Java 17 or later, java is {version}"
    return None


@dataclass
class Tool:
    """A staged peer that is ready to work; `pid` is a second process whose time counts."""

    stages: dict[str, Stage]
    pid: int | None = None

    def cpu(self) -> float:
        return time.process_time() + (cpu_of(self.pid) if self.pid else 0.0)

    def peak(self) -> int:
        return report.peak_rss() + (peak_of(self.pid) if self.pid else 0)


def cpu_of(pid: int) -> float:
    """Seconds of processor time that another process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def written() -> int:
    """Bytes this process has given to write(2), whatever became of them."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["wchar"])


@contextmanager
def tool(side: str, work: Path) -> Iterator[Tool]:
    if side == "spark":
        from benchmarks import staged_spark

        with staged_spark.session(work) as spark:
            job = staged_spark.Job(spark)
            yield Tool({name: getattr(job, name) for name in STAGES}, staged_spark.process(spark))
    else:
        from benchmarks import staged_polars

        yield Tool({name: getattr(staged_polars, name) for name in STAGES})


def scratch(side: str) -> Path:
    return end_to_end_job.emptied(report.ROOT / ".cache" / "bench" / "staged" / side)


def check(side: str, roots: list[Path]) -> None:
    """A peer's features of whole logs: of the smallest against plain Python, of others against ours.

    Then both train on the last log from equal weights, where the AUC tells any difference that is left.
    """
    from benchmarks import extract_oracle
    from benchmarks.extract_check import differences, gathered

    work, found, rows = scratch(side), [], 0
    with tool(side, work) as peer:
        for number, root in enumerate(roots):
            for stage in peer.stages.values():
                stage(root, work)
            truth = gathered(extract_job.extract(root, ids=True) if number else extract_oracle.extract(root))
            theirs = gathered(end_to_end_job.chunks(work))
            found += differences(truth, theirs) + end_to_end_job.faults(root, work)
            rows += len(theirs.label)
    last = roots[-1]
    ours, _ = staged_train.train(lambda: extract_job.plan(last), staged_train.HELD, init=0.0)
    peers, _ = staged_train.train(lambda: end_to_end_job.plan(work), staged_train.held_share(last), init=0.0)
    auc = ours.metrics["auc"], peers.metrics["auc"]
    if abs(auc[0] - auc[1]) > EQUAL_AUC:
        found.append(f"AUC of equal starts: {auc[0]:.5f} against {auc[1]:.5f}")
    shutil.rmtree(work)
    if found:
        raise SystemExit("\n".join([f"{side} differs:", *(f"  {what}" for what in found)]))
    print(json.dumps({"rows": rows, "auc": auc}))


def preload() -> None:
    """Import what training needs before the clock starts."""
    import pyarrow as pa
    import torch._dynamo  # noqa: F401 - torch imports it when the first optimizer is made: 1.7 s

    import ctrbox as cb

    pa.set_cpu_count(CORES)
    _ = cb.Trainer, cb.MemoryTable, cb.models.DeepFM


def measure(side: str, root: Path, warm: bool) -> None:
    """One run of a side in this process; the answer is the last line."""
    sys.dont_write_bytecode = True  # or a late import would count as an intermediate file
    report.pin(CORES)
    preload()
    held = staged_train.HELD if side == "ours" else staged_train.held_share(root)
    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}
    size: dict[str, int] = {}
    work, peak = scratch(side), 0
    if side != "ours":
        with tool(side, work) as peer:
            if warm:
                for stage in peer.stages.values():
                    stage(extract_job.data(TINY_ROWS), work)
            for name, stage in peer.stages.items():
                start, used = time.perf_counter(), peer.cpu()
                stage(root, work)
                seconds[name], cpu[name] = time.perf_counter() - start, peer.cpu() - used
                size[name] = end_to_end_job.nbytes(end_to_end_job.folder(work, name))
            peak = peer.peak()
    before, whole = written(), time.perf_counter()
    clock, run = staged_train.train(
        lambda: extract_job.plan(root) if side == "ours" else end_to_end_job.plan(work), held
    )
    whole = time.perf_counter() - whole
    seconds["train"], cpu["train"] = clock.seconds, clock.cpu
    written_in_training = written() - before
    shutil.rmtree(work)
    answer = {
        "stages": seconds,
        "cpu_stages": cpu,
        "bytes": size,
        "intermediate": sum(size.values()) + (written_in_training if written_in_training > WAKE_UPS else 0),
        "seconds": sum(seconds.values()),
        "cpu": sum(cpu.values()),
        "peak": max(peak, report.peak_rss()),
        "auc": clock.metrics["auc"],
        "logloss": clock.metrics["logloss"],
        "report_seconds": whole - clock.seconds,
        "rows": run.summary["rows"],
        "trainer": {stage["name"]: stage["seconds"] for stage in run.summary["stages"]},
    }
    print(json.dumps(answer))


@dataclass
class Side:
    """The runs of one side."""

    runs: report.Runs = field(default_factory=report.Runs)
    answers: list[dict[str, Any]] = field(default_factory=list)

    def add(self, answer: dict[str, Any]) -> None:
        self.runs.add(answer)
        self.answers.append(answer)

    @property
    def best(self) -> dict[str, Any]:
        """The fastest run."""
        return min(self.answers, key=lambda answer: float(answer["seconds"]))

    @property
    def auc(self) -> float:
        return float(statistics.median(answer["auc"] for answer in self.answers))


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size else "0 bytes"


def show(sides: dict[str, Side]) -> None:
    """Seconds by stage of the fastest run of each side, then the bytes between the stages."""
    ours = sides["ours"].runs.best if "ours" in sides else None
    lines = []
    for name, side in sides.items():
        best = side.best
        stages = [f"{best['stages'][s]:.2f}" if s in best["stages"] else "–" for s in [*STAGES, "train"]]
        ratio = f"{side.runs.best / ours:.2f}" if ours else "–"
        total = [f"{best['seconds']:.2f}", f"{side.runs.median:.2f}", f"{best['cpu']:.2f}"]
        lines.append([name, *stages, *total, f"{side.auc:.4f}", megabytes(best["intermediate"]), ratio])
    head = ["side", *(f"{stage} s" for stage in STAGES), "train s", "total s", "median s", "cpu s", "AUC"]
    report.table([*head, "intermediate files", "ours is × faster"], lines)
    for name, side in sides.items():
        if side.best["bytes"]:
            print(
                f"{name} wrote {', '.join(f'{megabytes(n)} after {stage}' for stage, n in side.best['bytes'].items())}"
            )


def limit(ours: Side, root: Path) -> dict[str, float]:
    """The time ours cannot go below: the work of extracting and of learning, spread evenly over the cores."""
    alone = report.fresh("benchmarks.extract", "--measure", "ours", "--data", str(root))
    total = min(ours.runs.cpu)
    return {"extract_cpu": alone["cpu"], "learn_cpu": total - alone["cpu"], "seconds": total / CORES}


def question(given: argparse.Namespace) -> None:
    rows = QUICK_ROWS if given.quick else ROWS
    repeats = given.repeats or (1 if given.quick else 3)
    reasons = {side: absent(side) for side in given.sides.split(",")}
    for side, why in reasons.items():
        if why:
            print(f"{side} is left out: {why}")
    names = [side for side, why in reasons.items() if not why]
    if not names:
        raise SystemExit("no side is left to run")
    tiny, small, root = (extract_job.data(n) for n in (TINY_ROWS, QUICK_ROWS, rows))
    for side in names:
        if side != "ours":
            checked = report.fresh(THIS, "--check", side, "--data", f"{tiny},{small}")
            theirs, rows_checked = checked["auc"][1], checked["rows"]
            print(f"{side}: {rows_checked:,} rows agree with plain Python or with ours, in the order of the log;")
            print(
                f"  from equal weights, {QUICK_ROWS:,} rows give ours AUC {checked['auc'][0]:.5f} and {side} {theirs:.5f}"
            )

    sides = {name: Side() for name in names}
    report.fresh("benchmarks.extract", "--measure", "decode", "--data", str(root))  # files into the page cache
    for _ in range(repeats):  # in turns, so that a noisy minute hurts all alike
        for name, side in sides.items():
            more = ["--warm"] if given.warm and name == "spark" else []
            side.add(report.fresh(THIS, "--measure", name, "--data", str(root), *more))

    some = next(iter(sides.values())).best
    print(
        f"\n{rows:,} impressions → {some['rows']['train']:,} rows to learn, {int(some['rows']['valid']):,} to validate"
    )
    print(f"{staged_train.words()}\n{report.machine(CORES)}")
    print(f"commit {report.commit()}, {repeats} runs in turns, stages of the fastest\n")
    show(sides)
    bound: dict[str, float] = {}
    if "ours" in sides:
        bound = limit(sides["ours"], root)
        shares = f"{bound['extract_cpu']:.2f} s to extract, {bound['learn_cpu']:.2f} s for all else"
        times = sides["ours"].runs.best / bound["seconds"]
        print(f"\nours used {shares}, on {CORES} cores at best {bound['seconds']:.2f} s; it took {times:.2f} × that")
    finish(sides, bound, given)


def finish(sides: dict[str, Side], bound: dict[str, float], given: argparse.Namespace) -> None:
    aucs = {name: side.auc for name, side in sides.items()}
    apart = max(aucs.values()) - min(aucs.values())
    same = apart <= SAME_AUC
    best = {name: side.runs.best for name, side in sides.items()}
    ours = best.get("ours")
    goals = {name: best[name] / ours >= goal for name, goal in GOALS.items() if ours and name in best}
    met = [f"{GOALS[name]:g} × {name} is {'met' if done else 'NOT met'}" for name, done in goals.items()]
    print(f"AUC lie {apart:.4f} apart, {SAME_AUC} allowed: {'met' if same else 'NOT met'}; {', '.join(met)}")
    if given.quick:
        print("in the quick log other starting weights alone move AUC that far: neither proves anything")
    print()
    report.finish(
        ours,
        {name: seconds for name, seconds in best.items() if name != "ours"},
        "seconds, raw log to validated model",
        more_is_better=False,
        cores=CORES,
        auc=aucs,
        same_auc=same,
        goals=goals,
        warm=given.warm,
        quick=given.quick,
        intermediate_bytes={name: side.best["intermediate"] for name, side in sides.items()},
        bytes_by_stage={name: side.best["bytes"] for name, side in sides.items()},
        stages={name: side.best["stages"] for name, side in sides.items()},
        cpu_stages={name: side.best["cpu_stages"] for name, side in sides.items()},
        trainer={name: side.best["trainer"] for name, side in sides.items()},
        seconds={name: side.runs.seconds for name, side in sides.items()},
        cpu_seconds={name: side.runs.cpu for name, side in sides.items()},
        peak_rss={name: side.runs.peak for name, side in sides.items()},
        limit=bound,
    )
    sys.stdout.flush()
    if not same and not given.quick:
        raise SystemExit(1)


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="200,000 rows, 1 run of each side")
    options.add_argument("--sides", default=",".join(SIDES), help="which to run, in this order")
    options.add_argument("--repeats", type=int, help="runs of each side: 3, or 1 with --quick")
    options.add_argument("--warm", action="store_true", help="let Spark run the job on 2,000 rows before the clock")
    options.add_argument("--hidden", default="64-32", help="hidden layers of the network (default: 64-32, the demo's)")
    for step in ("measure", "check"):
        options.add_argument(f"--{step}", help=argparse.SUPPRESS)
    options.add_argument("--data", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        measure(given.measure, Path(given.data), given.warm)
    elif given.check:
        check(given.check, [Path(root) for root in given.data.split(",")])
    else:
        os.environ[staged_train.HIDDEN] = given.hidden
        question(given)


if __name__ == "__main__":
    main()
