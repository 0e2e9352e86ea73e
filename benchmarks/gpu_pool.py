"""How long does it take to split two million short strings at blanks and hash their tokens, by where memory comes from?

    python -m benchmarks.gpu_pool [--quick]

The pool (one atomic add a block) in one kernel, written in four ways, and as the engine's own layers; beside it device
malloc, a call a row, and two passes: count, sum up, write. gpu_pool.cu has the kernels. All lists are checked against the
CPU engine, on hostile strings and on those that are timed. Inputs and results of three sets take turns: together they do
not fit the cache. A reset of the pool is inside its time; the passes' sums are, finding out how much to allocate is not.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks import gpu, report

NAME = "gpu_pool"
ROWS, QUICK_ROWS = 2_000_000, 500_000
GOAL_MS = 0.25
SETS = 3
HEAP = 4 << 30  # for malloc, which takes several times what it is asked for
POOL = ["pool_reserve", "pool_rows", "pool_staged", "pool_tokens"]
PASSES = {"rows": ("count_rows", "write_rows"), "tokens": ("count_staged", "write_tokens")}
KERNELS = [*POOL, *(name for both in PASSES.values() for name in both), "malloc_rows", "free_rows", "collect"]
WORDS = {
    "pool_reserve": "pool: a thread a row, 16 bytes a step",
    "pool_rows": "pool: a thread a row, rows end to end",
    "pool_staged": "pool: a thread a row, text staged",
    "pool_tokens": "pool: a thread a token, text staged",
    "passes_rows": "two passes: a thread a row",
    "passes_tokens": "two passes: a thread a token, text staged",
    "malloc": "device malloc, and free",
    "engine": "the engine: split and hash, one operator",
}


# ---- strings ---------------------------------------------------------------------------------------------------------


def strings(rows: int, seed: int = 1) -> pa.StringArray:
    """About 30 bytes and 5 tokens a row."""
    rng = np.random.default_rng(seed)
    counts = 1 + rng.binomial(8, 0.5, rows)
    lengths = rng.integers(2, 9, counts.sum())  # of tokens, with the blank behind them one more
    ends = np.cumsum(lengths + 1)
    last = np.cumsum(counts) - 1
    text = rng.integers(ord("a"), ord("z") + 1, ends[-1], dtype=np.uint8)
    text[ends - 1] = ord(" ")
    keep = np.ones(len(text), bool)
    keep[ends[last] - 1] = False  # no blank behind a row's last token
    offsets = np.concatenate([[0], ends[last] - np.arange(1, rows + 1)]).astype(np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text[keep]))


def hostile(seed: int = 2) -> pa.StringArray:
    """Empty rows, blanks only, rows around 8, 16 and 64 bytes, bytes above 127, rows longer than shared memory."""
    rng = np.random.default_rng(seed)
    made = ["", " ", "  ", "a", " a", "a ", " a  b ", "é ü", "x" * 64, "x" * 63 + " ", " " * 64, "y " * 100]
    for size in [*range(20), *range(60, 70), 127, 128, 129, 200]:
        letters = rng.choice(list("ab   é"), size)
        made.append("".join(letters))
    many = [made[k] for k in rng.integers(0, len(made), 3_000)]
    many[700] = "word " * 4_000  # this block's text passes the shared memory
    many[1_500:1_756] = ["a b c d e f g h i j k l"] * 256  # and this one's tokens
    return pa.array(many, pa.string())


def hashes(texts: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """The CPU engine's: number of tokens by row, and all hashes."""
    import ctrbox as cb
    from ctrbox import col

    table = cb.compute({"h": col("text").split(" ").hash()}, pa.table({"text": texts}))
    lists = table["h"].combine_chunks()
    lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
    return np.diff(lists.offsets.to_numpy()), lists.flatten().to_numpy().view(np.uint64)


# ---- on the device ---------------------------------------------------------------------------------------------------


@dataclass
class Set:
    """Strings on the device, and memory for results."""

    rows: int
    text: torch.Tensor
    offsets: torch.Tensor
    lists: torch.Tensor  # (rows, 2) pointer and length
    pool: torch.Tensor
    head: torch.Tensor
    counts: torch.Tensor
    ends: torch.Tensor

    @staticmethod
    def of(texts: pa.StringArray, runtime: Any, tokens: int) -> Set:
        _, offsets, text = texts.buffers()
        rows, device = len(texts), runtime.device
        bytes_ = torch.zeros(text.size + 64, dtype=torch.uint8, device=device)
        bytes_[: text.size] = torch.from_numpy(np.frombuffer(text, np.uint8).copy()).to(device)
        at = torch.from_numpy(np.frombuffer(offsets, np.int32)[: rows + 1].copy()).to(device)

        def words(n: int) -> torch.Tensor:
            return torch.zeros(n, dtype=torch.int64, device=device)

        room = tokens + rows + 16 * (rows // runtime.threads + 1)  # of hashes, whatever is lost to alignment
        return Set(rows, bytes_, at, words(2 * rows), words(room), words(1), words(rows), words(rows))

    @property
    def place(self) -> tuple[int, int, int]:
        return self.text.data_ptr(), self.offsets.data_ptr(), self.rows

    @property
    def read_bytes(self) -> int:
        return self.text.numel() - 64 + self.offsets.nbytes


class Ways:
    """Every way to do the job, as a call over a set."""

    def __init__(self, runtime: Any, *, allocate: bool = True) -> None:
        source = (Path(__file__).parent / "gpu_pool.cu").read_text("utf-8")
        self.threads = runtime.threads
        self.kernels = runtime.compile(source, KERNELS, name="pool")
        self.names = [*POOL, *(f"passes_{name}" for name in PASSES), *(["malloc"] if allocate else [])]

    def launch(self, name: str, rows: int, *args: int) -> None:
        self.kernels[name]((-(-rows // self.threads), 1), self.threads, *args)

    def run(self, way: str, s: Set) -> None:
        if way in POOL:
            s.head.zero_()
            args = (s.lists.data_ptr(), s.pool.data_ptr(), s.pool.nbytes, s.head.data_ptr())
            self.launch(way, s.rows, *s.place, *args)
        elif way == "malloc":
            self.launch("malloc_rows", s.rows, *s.place, s.lists.data_ptr())
        else:
            count, write = PASSES[way.removeprefix("passes_")]
            self.launch(count, s.rows, *s.place, s.counts.data_ptr())
            torch.cumsum(s.counts, 0, out=s.ends)
            self.launch(write, s.rows, *s.place, s.lists.data_ptr(), s.pool.data_ptr(), s.ends.data_ptr())

    def end(self, way: str, s: Set) -> None:
        """Give back what has to be given back."""
        if way == "malloc":
            self.launch("free_rows", s.rows, s.rows, s.lists.data_ptr())

    def found(self, s: Set) -> tuple[np.ndarray, np.ndarray]:
        """The lists of the last run: lengths, and all hashes."""
        counts = s.lists.view(-1, 2)[:, 1] & 0xFFFFFFFF
        ends = torch.cumsum(counts, 0)
        values = torch.zeros(max(1, int(ends[-1])), dtype=torch.int64, device=ends.device)
        self.launch("collect", s.rows, s.rows, s.lists.data_ptr(), values.data_ptr(), ends.data_ptr())
        return counts.cpu().numpy(), values.cpu().numpy().view(np.uint64)[: int(ends[-1])]

    def differences(self, way: str, s: Set, truth: tuple[np.ndarray, np.ndarray]) -> list[str]:
        s.lists.zero_()
        s.pool.fill_(-1)
        self.run(way, s)
        counts, values = self.found(s)
        self.end(way, s)
        if not np.array_equal(counts, truth[0]):
            wrong = np.flatnonzero(counts != truth[0])
            row = int(wrong[0])
            return [
                f"{way}: {len(wrong):,} rows have another number of tokens, row {row} {counts[row]}, not {truth[0][row]}"
            ]
        wrong = np.flatnonzero(values != truth[1])
        return [f"{way}: {len(wrong):,} of {len(values):,} hashes differ, first at {wrong[0]:,}"] if len(wrong) else []


def engine_layers(runtime: Any, texts: pa.StringArray) -> gpu.Chunk:
    """The engine's own way: a layer that loads, and one that splits and hashes."""
    from ctrbox.engines.cuda.program import Output, Recorded

    program = Recorded()
    text = program.load(0, 0, "s", False, "text")
    (split,) = program.call("split", "s", [text], ["*s"], [False], [], [], [b" "], None, False)
    (hashed,) = program.call("hash", "*s", [split], ["*k"], [False], [], [], [], None, False)
    program.emit(0, hashed)
    outputs = [Output("lists", program.registers[hashed])]
    return gpu.chunk_of(runtime, program, outputs, pa.RecordBatch.from_arrays([texts], ["text"]))


def engine_differences(chunk: gpu.Chunk, truth: tuple[np.ndarray, np.ndarray]) -> list[str]:
    chunk.run()
    offsets = chunk.slot.parts["offsets"][0].cpu().numpy()[: len(truth[0]) + 1]
    values = chunk.slot.values[0].cpu().numpy().view(np.uint64)[: offsets[-1]]
    if not np.array_equal(np.diff(offsets), truth[0]) or not np.array_equal(values, truth[1]):
        return ["engine: its lists differ"]
    return []


def engine_times(chunk: gpu.Chunk, clock: gpu.Clock) -> dict[str, float]:
    """Milliseconds of its layers. A later layer writes where an earlier one read, so only a run from the first is one."""
    chunk.run()

    def upto(last: int) -> None:
        chunk.slot.counters.zero_()
        for name in chunk.source.launches:
            if name.startswith("layer_") and int(name.split("_")[1]) <= last:  # a heavy layer is two launches
                chunk.launch(name)

    first, second = (clock.gpu(lambda n=number: upto(n)) for number in range(2))
    return {"load": first, "split and hash": second - first}


def set_heap(size: int) -> None:
    """Memory that malloc inside kernels may hand out; must be said before the first kernel that calls it."""
    from cuda.bindings import driver

    (wrong,) = driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, size)
    if wrong != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"the heap of malloc cannot be made {size >> 20} MB: {wrong}")


def checked(runtime: Any, ways: Ways, texts: pa.StringArray, clock: gpu.Clock) -> tuple[int, int]:
    """All ways over some strings against the CPU engine; the rows and tokens compared."""
    truth = hashes(texts)
    s = Set.of(texts, runtime, len(truth[1]))
    wrong = [what for way in ways.names for what in ways.differences(way, s, truth)]
    wrong += engine_differences(engine_layers(runtime, texts), truth)
    clock.wait()
    if wrong:
        raise SystemExit("\n".join(["answers differ from the CPU engine's:", *wrong]))
    return len(texts), len(truth[1])


def measured(runtime: Any, ways: Ways, texts: pa.StringArray, tokens: int, clock: gpu.Clock) -> dict[str, float]:
    """Milliseconds of every way, over sets that take turns."""
    sets = [Set.of(texts, runtime, tokens) for _ in range(SETS)]
    found = {}
    for way in ways.names:
        order = itertools.cycle(sets)

        def once(turn: Any = order, way: str = way) -> None:
            s = next(turn)
            ways.run(way, s)
            ways.end(way, s)

        found[way] = clock.gpu(once, *((1, 3) if way == "malloc" else (30, 7)))
    return found


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows")
    given = options.parse_args()
    runtime = gpu.runtime_here(NAME)
    if runtime is None:
        return
    rows = QUICK_ROWS if given.quick else ROWS
    clock = gpu.Clock(runtime.device)
    set_heap(HEAP)
    ways = Ways(runtime)
    print(f"{gpu.gpu_in_words()}\ncommit {report.commit()}\n")
    few = checked(runtime, ways, hostile(), clock)
    texts = strings(rows)
    _, tokens = checked(runtime, ways, texts, clock)
    print(f"{len(ways.names) + 1} ways agree with the CPU engine on {few[0]:,} hostile and {rows:,} plain strings")
    times = measured(runtime, ways, texts, tokens, clock)
    engine = engine_times(engine_layers(runtime, texts), clock)
    times["engine"] = engine["split and hash"]
    copy = clock.copy_gbs()
    size = texts.buffers()[2].size
    moved = size + 4 * rows + 16 * rows + 8 * tokens  # text, offsets, lists, hashes: each once
    print(
        f"\n{rows:,} strings, {size / rows:.1f} bytes and {tokens / rows:.2f} tokens each; at the copy's {copy:,.0f} GB/s"
    )
    print(f"reading text and offsets and writing lists and hashes once takes {moved / copy / 1e6:.3f} ms\n")
    lines = [
        [
            WORDS[way],
            f"{ms:.3f}",
            f"{size / ms / 1e6:,.0f}",
            f"{tokens / ms / 1e6:,.1f}",
            f"{moved / ms / 1e6 / copy:.1%}",
        ]
        for way, ms in sorted(times.items(), key=lambda item: item[1])
    ]
    report.table(["way", "ms", "GB/s of text", "G tokens/s", "of copy bandwidth"], lines)
    print(f"\nthe engine's layers: {', '.join(f'{name} {ms:.3f} ms' for name, ms in engine.items())}")
    best = min(POOL, key=lambda way: times[way])
    goals = {f"{rows:,} strings by the pool in {GOAL_MS} ms": times[best] <= GOAL_MS * rows / ROWS}
    peers = {way: ms for way, ms in times.items() if way not in POOL}
    gpu.finish(
        NAME,
        goals,
        times[best],
        peers,
        f"ms, {rows:,} strings",
        more_is_better=False,
        quick=given.quick,
        best=best,
        times_ms=times,
        engine_ms=engine,
        text_bytes=size,
        tokens=tokens,
        text_gbs=size / times[best] / 1e6,
        copy_gbs=copy,
        copy_share=moved / times[best] / 1e6 / copy,
    )


if __name__ == "__main__":
    main()
