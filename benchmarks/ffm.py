"""How many examples a second does Deep FFM learn from and predict, at which AUC, beside Vowpal Wabbit?

python -m benchmarks.ffm [--quick] [--vw PYTHON] [--all-peers]

1,000,000 lines to learn from, 200,000 to test on (benchmarks/ffm_data.py); a tenth with --quick. One pass. Ours reads its
parsed cache, and the time holds reading, checking and progressive validation; Vowpal Wabbit reads its own cache. Both predict
from their caches with the model loaded; Vowpal Wabbit's time with loading, parsing and writing predictions is printed below
the table. Vowpal Wabbit runs in the interpreter given, which needs its package; without one its lines are left out. --all-
peers adds its factorization (--lrqfa), minutes. libffm and xLearn are in no package index and are not run:
docs/results/deep_ffm.md.
Then one and two threads in turns, the best of three each, and sparse updates by the number of hidden layers, whose weights
must be the same bits.

A second is one of the wall; "per CPU" counts this process's own, for machines that others use too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import ffm_data, report
from ctrbox.ffm.engine import DeepFFM
from ctrbox.ffm.examples_from_text_or_cache import ExampleCache
from ctrbox.ffm.progressive_validation import auc

ROWS, TEST = 1_000_000, 200_000
BITS = 24
# These rates of lr and nn were chosen on this data.
MODELS: dict[str, dict[str, Any]] = {
    "LR": {"ffm": None, "lr": 0.05, "hidden": ()},
    "FFM k=4": {"k": 4, "lr": 0.01, "hidden": ()},
    "FFM k=8": {"k": 8, "lr": 0.01, "hidden": ()},
    "Deep FFM k=4": {"k": 4, "lr": 0.01, "hidden": (24, 24), "nn": 0.05},
    "Deep FFM k=8": {"k": 8, "lr": 0.01, "hidden": (24, 24), "nn": 0.05},
}
THREADED = ("LR", "FFM k=4", "Deep FFM k=4")
WIDTHS = (24, 128, 512)  # neurons of a hidden layer, for sparse updates
PEERS = {"vw linear": "", "vw --nn 24": "--nn 24"}
SLOW_PEERS = {"vw --lrqfa": f"--lrqfa {ffm_data.NAMES}4"}


@dataclass
class Measured:
    rows: int
    seconds: float
    cpu: float

    @property
    def speed(self) -> float:
        return self.rows / self.seconds

    @property
    def per_cpu(self) -> float:
        return self.rows / self.cpu


class Clock:
    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def of(self, rows: int) -> Measured:
        return Measured(rows, time.perf_counter() - self.wall, time.process_time() - self.cpu)


@dataclass
class Result:
    learned: Measured
    predicted: Measured
    auc: float


def ours(options: dict[str, Any], train: ExampleCache, test: ExampleCache, labels: np.ndarray, threads: int) -> Result:
    model = DeepFFM(list(ffm_data.NAMES), bits=BITS, **options)
    clock = Clock()
    model.learn(train, threads=threads)
    learned = clock.of(model.learned)
    clock = Clock()
    predictions = model.predict(test, threads=threads)
    return Result(learned, clock.of(len(predictions)), auc(labels, predictions))


def vowpal_wabbit(
    python: str, folder: Path, arguments: str, labels: np.ndarray, rows: int
) -> tuple[float, float, float, float]:
    """Examples learned a second, predicted a second, predicted with loading and writing a second, AUC."""
    out = folder / "vw.txt"
    command = [
        python,
        "-c",
        "from benchmarks.ffm_vw import main; main()",
        str(folder / "train.vw"),
        str(folder / "test.vw"),
        str(out),
    ]
    done = subprocess.run([*command, *arguments.split()], capture_output=True, text=True, cwd=report.ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    seconds = json.loads(done.stdout.strip().splitlines()[-1])
    predicted = [len(labels) / seconds[name] for name in ("predict", "predict_whole")]
    return rows / seconds["cache"], *predicted, auc(labels, np.loadtxt(out, dtype=np.float32))


def has_vw(python: str) -> bool:
    return subprocess.run([python, "-c", "import vowpalwabbit"], capture_output=True).returncode == 0


def sparse_updates(train: ExampleCache, rows: int, width: int) -> list[tuple[int, float, float]]:
    """Hidden layers, examples a CPU second with all branches, with those that pass nothing skipped."""
    found = []
    blocks = []
    for block in train:
        blocks.append(block)
        if sum(b.rows for b in blocks) >= rows:
            break
    for layers in range(1, 5):
        speeds, weights = [], []
        for sparse in (False, True):
            model = DeepFFM(list(ffm_data.NAMES), bits=20, hidden=(width,) * layers)
            clock = Clock()
            for block in blocks:
                model.learn(block, sparse_updates=sparse)
            speeds.append(clock.of(model.learned).per_cpu)
            weights.append((model._native.ffm().tobytes(), model._native.dense().tobytes()))
        if weights[0] != weights[1]:
            raise RuntimeError(f"{layers} hidden layers: sparse updates changed the weights")
        found.append((layers, speeds[0], speeds[1]))
    return found


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--vw", default=sys.executable, help="an interpreter with the package vowpalwabbit")
    parser.add_argument("--all-peers", action="store_true")
    asked = parser.parse_args()
    rows, tests = (ROWS // 10, TEST // 10) if asked.quick else (ROWS, TEST)
    with TemporaryDirectory(prefix="ctrbox-ffm-") as name:
        folder = Path(name)
        clicks = ffm_data.make(rows + tests)
        clicks.text(folder / "train.vw", slice(0, rows))
        clicks.text(folder / "test.vw", slice(rows, None))
        labels = clicks.labels[rows:]
        best = auc(labels, clicks.truth[rows:].astype(np.float32))
        print(f"{rows:,} + {tests:,} examples, click rate {clicks.labels.mean():.3f}, best possible AUC {best:.4f}")

        clock = Clock()
        train = ExampleCache.parse(folder / "train.vw", folder / "train.ctrx")
        parsed = clock.of(rows)
        test = ExampleCache.parse(folder / "test.vw", folder / "test.ctrx")
        sizes = [(folder / f"train.{kind}").stat().st_size / rows for kind in ("vw", "ctrx")]
        print(f"text parsed: {parsed.speed:,.0f} lines/s; {sizes[0]:.0f} bytes a line, {sizes[1]:.0f} in the cache\n")

        lines: list[list[str]] = []
        speeds: dict[str, Any] = {}
        for name_, options in MODELS.items():
            found = ours(options, train, test, labels, 1)
            l, p = found.learned, found.predicted
            lines.append([name_, *(f"{v:,.0f}" for v in (l.speed, l.per_cpu, p.speed, p.per_cpu)), f"{found.auc:.4f}"])
            speeds[name_] = {"learn": l.speed, "learn_cpu": l.per_cpu, "predict": p.speed, "predict_cpu": p.per_cpu}
            speeds[name_] |= {"auc": found.auc}
        peers: dict[str, float] = {}
        whole: list[str] = []
        if has_vw(asked.vw):
            for name_, arguments in (PEERS | (SLOW_PEERS if asked.all_peers else {})).items():
                learn, predict, with_files, met = vowpal_wabbit(asked.vw, folder, arguments, labels, rows)
                whole.append(f"{name_} {with_files:,.0f}/s")
                lines.append([name_, f"{learn:,.0f}", "", f"{predict:,.0f}", "", f"{met:.4f}"])
                peers[name_] = learn
        else:
            print(f"{asked.vw} has no vowpalwabbit: left out\n")
        report.table(["one thread", "learn/s", "per CPU", "predict/s", "per CPU", "AUC"], lines)
        if whole:
            print(f"predicting with loading the model, parsing text and writing predictions: {', '.join(whole)}")

        print()
        lines = []
        for name_ in THREADED:
            turns: dict[int, list[Result]] = {1: [], 2: []}
            for _ in range(1 if asked.quick else 3):
                for threads, found_in in turns.items():
                    found_in.append(ours(MODELS[name_], train, test, labels, threads))
            one, two = (max(found_in, key=lambda r: r.learned.speed) for found_in in turns.values())
            scale, work = two.learned.speed / one.learned.speed, one.learned.per_cpu / two.learned.per_cpu
            lines.append([name_, f"{two.learned.speed:,.0f}", f"{scale:.2f}", f"{work:.2f}", f"{two.auc:.4f}"])
            speeds[name_] |= {"two_threads": scale, "two_threads_work": work}
        report.table(["two threads", "learn/s", "faster", "CPU an example", "AUC"], lines)

        sparse: dict[str, float] = {}
        for width in WIDTHS[:2] if asked.quick else WIDTHS:
            found_ = sparse_updates(train, rows // width, width)
            print()
            report.table(
                [f"layers of {width}", "all branches/s", "sparse/s", "faster"],
                [[str(n), f"{a:,.0f}", f"{b:,.0f}", f"{b / a:.2f}"] for n, a, b in found_],
            )
            sparse |= {f"{n} x {width}": b / a for n, a, b in found_}
        report.finish(
            speeds["Deep FFM k=4"]["learn"],
            peers,
            "examples learned/s",
            best_auc=best,
            models=speeds,
            sparse_updates=sparse,
        )


if __name__ == "__main__":
    main()
