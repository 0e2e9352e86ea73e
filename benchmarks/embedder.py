"""How many key references a second does a training step look up, pool and update, against torch and torchrec?

python -m benchmarks.embedder [--quick]

A step: 65,536 rows of 26 fields with one key and one with 0 to 10, Zipf 1.05, 200,000 keys a field. Pull → sum pooling →
gradients of what was pooled (given) → push. Ours starts from 64-bit keys and includes finding the unique ones; peers
start from row numbers of a table of just the right size. First every tool must reach the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import report
from benchmarks.embedder_peers import EPS, LR, TorchBag, Torchrec, Work, torchrec_missing
from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.embed.embedder import Row
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.embed.pooling import pool
from ctrbox.embed.unique_keys import Lookup
from ctrbox.optimizers.of_table_rows import Adagrad, Adam, Optimizer, RowwiseAdagrad

DIM, EXPONENT, GOAL = 16, 1.05, 3.0
ONE, LONGEST = 26, 10
VOCABULARY, QUICK_VOCABULARY = 200_000, 40_000  # keys of a field
ROWS = 65_536  # of a step
COPIED = 1 << 26  # floats of the copy that tells the speed of memory
FIELDS = [f"f{k}" for k in range(ONE)] + ["tags"]
OURS: dict[str, Optimizer] = {
    "Adagrad": Adagrad(lr=LR, eps=EPS),
    "RowwiseAdagrad": RowwiseAdagrad(lr=LR, eps=EPS),
    "Adam": Adam(lr=LR, eps=EPS),
}


class Ours:
    """The step as the trainer does it; `seconds` of its parts add up over the steps."""

    def __init__(self, keys: np.ndarray, optimizer: Optimizer, threads: int) -> None:
        self.keys, self.threads = keys, threads
        self.table = MemoryTable(DIM, optimizer=optimizer, seed=1, threads=threads)
        for part in np.array_split(keys, 32):
            self.table.prefetch(part)
        self.seconds = dict.fromkeys(("lookup", "pull", "pool", "gradient", "push"), 0.0)
        self.unique = 0

    def step(self, work: Work) -> None:
        marks = [time.perf_counter()]
        lookup = Lookup.of(work.batch, FIELDS, self.threads)
        marks.append(time.perf_counter())
        rows = torch.from_numpy(self.table.pull(lookup.keys)).requires_grad_()
        marks.append(time.perf_counter())
        _, pooled = pool(rows, lookup, Row(DIM), ["sum"] * len(FIELDS), self.threads)
        marks.append(time.perf_counter())
        pooled.backward(work.gradient)
        marks.append(time.perf_counter())
        assert rows.grad is not None
        self.table.push(lookup.keys, rows.grad.numpy())
        marks.append(time.perf_counter())
        self.unique = len(lookup)
        for name, begin, end in zip(self.seconds, marks, marks[1:], strict=False):
            self.seconds[name] += end - begin

    def weights(self) -> np.ndarray:
        return self.table.pull(self.keys)


def works(count: int, rows: int, vocabulary: int, keys: np.ndarray, seed: int = 0) -> list[Work]:
    rng = np.random.default_rng(seed)
    share = np.cumsum(np.arange(1, vocabulary + 1) ** -EXPONENT)
    schema = Schema(tuple(Field(name, name, name == "tags") for name in FIELDS), (), False, False, False)
    found = []
    for _ in range(count):
        locals_, lengths, sparse = [], [], {}
        for k, name in enumerate(FIELDS):
            length = np.ones(rows, np.int64) if name != "tags" else rng.integers(0, LONGEST + 1, rows)
            ids = np.searchsorted(share, rng.random(length.sum()) * share[-1])
            locals_.append(ids)
            lengths.append(length)
            sparse[name] = Ragged(keys[k * vocabulary + ids], np.concatenate([[0], np.cumsum(length)]))
        batch = Batch(schema, rows, None, np.zeros((rows, 0), np.float32), sparse, None)
        gradient = torch.from_numpy(rng.normal(size=(rows, len(FIELDS), DIM)).astype(np.float32))
        sizes, local = np.concatenate(lengths), np.concatenate(locals_)
        ids = np.concatenate([k * vocabulary + part for k, part in enumerate(locals_)])
        found.append(
            Work(
                batch,
                torch.from_numpy(ids),
                torch.from_numpy(local),
                torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)])),
                torch.from_numpy(sizes),
                gradient,
                gradient.transpose(0, 1).reshape(-1, DIM).contiguous(),
            )
        )
    return found


def makers(keys: np.ndarray, threads: int) -> dict[str, tuple[str, Callable[[np.ndarray], Any]]]:
    """Name → the optimizer of ours that does the same, and how to make it from weights."""
    tools: dict[str, tuple[str, Callable[[np.ndarray], Any]]] = {
        f"ctrbox {name}": (name, lambda _, o=optimizer: Ours(keys, o, threads)) for name, optimizer in OURS.items()
    }
    tools["torch EmbeddingBag + Adagrad"] = ("Adagrad", lambda w: TorchBag(w, "Adagrad"))
    tools["torch EmbeddingBag + SparseAdam"] = ("Adam", lambda w: TorchBag(w, "Adam"))
    missing = torchrec_missing()
    if missing:
        print(f"torchrec is left out: {missing}\n")
        return tools
    tools["torchrec EBC + Adagrad"] = ("Adagrad", lambda w: Torchrec(w, FIELDS, "Adagrad", fused=False))
    tools["torchrec fused EBC, Adagrad"] = ("Adagrad", lambda w: Torchrec(w, FIELDS, "Adagrad", fused=True))
    tools["torchrec fused EBC, rowwise"] = ("RowwiseAdagrad", lambda w: Torchrec(w, FIELDS, "RowwiseAdagrad", True))
    return tools


def check(threads: int) -> None:
    """The same weights in, the same weights out: two steps on a small world (Adam one: torch counts steps by table)."""
    vocabulary = 2_000
    keys = np.random.default_rng(1).integers(1, 2**63 - 1, vocabulary * len(FIELDS))
    batches = works(2, 1_000, vocabulary, keys)
    tools = makers(keys, threads)
    for name, (optimizer, make) in tools.items():
        ours = Ours(keys, OURS[optimizer], threads)
        tool = make(ours.weights())
        before = ours.weights().copy()
        for work in batches[: 1 if optimizer == "Adam" else 2]:
            ours.step(work)
            tool.step(work)
        np.testing.assert_allclose(tool.weights(), ours.weights(), rtol=2e-4, atol=2e-5, err_msg=name)
        assert np.abs(ours.weights() - before).max() > 0.01
    print(f"same weights: {', '.join(tools)}\n")


def bandwidth(threads: int) -> float:
    """Bytes a second that a plain copy reads and writes on all cores."""
    torch.set_num_threads(threads)
    source, target = torch.ones(COPIED), torch.empty(COPIED)
    best = 1e9
    for _ in range(5):
        begin = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - begin)
    return 2 * source.nbytes / best


def moved(references: int, bags: int, unique: int) -> int:
    """Bytes a step with Adagrad cannot avoid: keys, positions, rows with their states, what is pooled, gradients."""
    row = DIM * 4
    lookup = references * (8 + 4) + unique * 8
    pull = unique * (64 + 2 * row)
    pooled = references * 4 + unique * row + bags * row
    back = references * 4 + bags * row + unique * row
    push = unique * (row + 4 * row)
    return lookup + pull + pooled + back + push


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="a fifth of the keys, fewer repeats")
    options.add_argument("--repeats", type=int)
    options.add_argument("--only", default="", help="tools whose name contains this, and ours")
    given = options.parse_args()
    vocabulary, repeats = (QUICK_VOCABULARY, 3) if given.quick else (VOCABULARY, 7)
    repeats = given.repeats or repeats
    rows, threads = ROWS, torch.get_num_threads()
    check(threads)

    keys = np.random.default_rng(2).integers(1, 2**63 - 1, vocabulary * len(FIELDS))
    batches = works(3, rows, vocabulary, keys)
    references = sum(len(w.ids) for w in batches)
    weights = Ours(keys, OURS["Adagrad"], threads).weights().copy()
    tools = {
        n: (o, make(weights)) for n, (o, make) in makers(keys, threads).items() if given.only in n or "ctrbox" in n
    }
    seconds: dict[str, list[float]] = {name: [] for name in tools}
    cpu: dict[str, list[float]] = {name: [] for name in tools}
    for repeat in range(repeats + 1):
        for name, (_, tool) in tools.items():
            if repeat == 1 and isinstance(tool, Ours):
                tool.seconds = dict.fromkeys(tool.seconds, 0.0)
            begin, used = time.perf_counter(), time.process_time()
            for work in batches:
                tool.step(work)
            if repeat:  # the first round warms up
                seconds[name].append(time.perf_counter() - begin)
                cpu[name].append(time.process_time() - used)

    rate = {name: references / min(taken) for name, taken in seconds.items()}
    middle = {name: references / float(np.median(taken)) for name, taken in seconds.items()}
    ours = {optimizer: rate[f"ctrbox {optimizer}"] for optimizer in OURS}
    lines = []
    for name, (optimizer, _) in tools.items():
        ratio = "" if name.startswith("ctrbox") else f"{ours[optimizer] / rate[name]:.1f}×"
        busy = f"{min(cpu[name]) / len(batches) * 1e3:.0f}"
        lines.append((name, f"{rate[name] / 1e6:.2f}", f"{middle[name] / 1e6:.2f}", ratio, busy))
    report.table(["million key references a second", "best", "median", "ours is", "CPU ms a step"], lines)

    plain = tools["ctrbox Adagrad"][1]
    total = sum(plain.seconds.values())
    parts = ", ".join(f"{name} {taken / total:.0%}" for name, taken in plain.seconds.items())
    per_step = references // len(batches)
    needed = moved(per_step, rows * len(FIELDS), plain.unique)
    took, copy = min(seconds["ctrbox Adagrad"]) / len(batches), bandwidth(threads)
    print(f"\na step of ours: {took * 1e3:.1f} ms for {per_step:,} references, {plain.unique:,} unique; {parts}")
    print(f"it must move {needed / 1e6:.0f} MB: {needed / took / 1e9:.1f} GB/s, a plain copy {copy / 1e9:.1f} GB/s\n")

    peers = {name: rate[name] for name in tools if not name.startswith("ctrbox")}
    same = {name: round(ours[tools[name][0]] / rate[name], 3) for name in peers}
    report.finish(
        ours["Adagrad"],
        peers,
        "key references/s, pull → pool → push",
        same_optimizer=same,
        ours_by_optimizer={name: round(value) for name, value in ours.items()},
        cpu_seconds_a_step={name: round(min(used) / len(batches), 4) for name, used in cpu.items()},
        bandwidth_used=round(needed / took / copy, 3),
        goal=GOAL,
        met=bool(same) and min(same.values()) >= GOAL,
    )


if __name__ == "__main__":
    main()
