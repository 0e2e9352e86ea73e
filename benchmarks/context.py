"""What does a request save when its context is worked out once?

python -m benchmarks.context [--quick]

Deep FFM k=4, hidden (24, 24), 2^24 weights, learned from benchmarks/ffm_data.py: 16 fields are the context, 8 are a
candidate's. Predictions a second of one core, on whole rows, with the context worked out once per request, and with it
found in a cache; the scalar twin beside. All must have the same bits.

Two limits stand beside: the bytes of a candidate's rows over what one core reads a second, and the multiplications of what
only a candidate decides over those one core makes a second (a matrix product of NumPy).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import ffm_data, report
from ctrbox import _native, publish
from ctrbox.ffm.engine import DeepFFM
from ctrbox.ffm.examples_from_text_or_cache import ExampleCache

CONTEXT = 16
NAMES = list(ffm_data.NAMES)
HIDDEN = (24, 24)
BITS = 24
CANDIDATES = (50, 200, 1000)
BLOCK = 1 << 26  # floats that are read to find the speed of memory


@dataclass
class Request:
    context: _native.Examples
    candidates: _native.Examples
    whole: _native.Examples


def examples(values: np.ndarray, fields: range) -> _native.Examples:
    """One feature in each of `fields`, by its number of benchmarks/ffm_data."""
    rows = len(values)
    some, none = np.arange(rows + 1), np.zeros(rows + 1, np.int64)
    columns = [
        (np.ascontiguousarray(values[:, f], np.int64), some) if f in fields else (np.zeros(0, np.int64), none)
        for f in range(len(NAMES))
    ]
    salts = [_native.salt(name.encode()) for name in NAMES]
    empty = np.zeros(0, np.float32)
    return _native.Examples.from_batch(columns, np.zeros((rows, 0), np.float32), salts, empty, empty)


def requests(count: int, candidates: int, seed: int) -> list[Request]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        values = np.stack([ffm_data.zipf(random, size, candidates) for size in ffm_data.SIZES], axis=1)
        values[:, :CONTEXT] = values[0, :CONTEXT]
        every = range(len(NAMES))
        found.append(
            Request(examples(values[:1], every[:CONTEXT]), examples(values, every[CONTEXT:]), examples(values, every))
        )
    return found


def learned(rows: int) -> DeepFFM:
    """As a server has it: from its published file, without accumulators."""
    with TemporaryDirectory(prefix="ctrbox-context-") as name:
        folder = Path(name)
        ffm_data.make(rows).text(folder / "train.vw", slice(None))
        cache = ExampleCache.parse(folder / "train.vw", folder / "train.ctrx")
        model = DeepFFM(NAMES, context=NAMES[:CONTEXT], k=4, hidden=HIDDEN, bits=BITS)
        model.learn(cache)
        publish.pack(model, folder / "model.fbw")
        return DeepFFM.load(folder / "model.fbw", learns=False)


def best(repeats: int, *work: Callable[[], list[np.ndarray]]) -> tuple[list[float], list[list[np.ndarray]]]:
    """The best seconds of each, taken in turns, and what each gave."""
    seconds = [float("inf")] * len(work)
    gave: list[list[np.ndarray]] = [[] for _ in work]
    for _ in range(repeats):
        for n, run in enumerate(work):
            begin = time.perf_counter()
            gave[n] = run()
            seconds[n] = min(seconds[n], time.perf_counter() - begin)
    return seconds, gave


def limits(model: DeepFFM) -> tuple[float, float]:
    """Predictions a second that reading a candidate's rows, and its multiplications, would allow one core."""
    block = np.ones(BLOCK, np.float32)
    a, b = np.ones((24, 4096), np.float32), np.ones((4096, 512), np.float32)
    (read, product), _ = best(5, lambda: [block.sum()], lambda: [a @ b])
    fields = len(NAMES) - CONTEXT
    row = model._native.stride * 4 + 4
    inputs = (len(NAMES) * (len(NAMES) + 3) - CONTEXT * (CONTEXT + 3)) // 2
    pairs = 4 * (inputs - fields)
    work = pairs + inputs * HIDDEN[0] + (HIDDEN[0] + 1) * HIDDEN[1] + HIDDEN[1]
    return block.nbytes / read / (fields * row), a.shape[0] * a.shape[1] * b.shape[1] / product / work


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    report.pin(1)
    model = learned(20_000 if quick else 200_000)
    simd = model.simd
    lines, found = [], {}
    for candidates in CANDIDATES:
        asked = requests((4_000 if quick else 100_000) // candidates, candidates, candidates)
        rows = sum(r.candidates.rows for r in asked)

        def whole(asked: list[Request] = asked) -> list[np.ndarray]:
            return [model.predict(r.whole) for r in asked]

        def once(asked: list[Request] = asked) -> list[np.ndarray]:
            return [model.score(model.context(r.context), r.candidates) for r in asked]

        known = [model.context(r.context) for r in asked]

        def cached(asked: list[Request] = asked, known: list[_native.FfmContext] = known) -> list[np.ndarray]:
            return [model.score(c, r.candidates) for c, r in zip(known, asked, strict=True)]

        seconds, gave = best(3 if quick else 7, whole, once, cached)
        model._native.use("scalar")
        slow, scalar = best(1, once)
        model._native.use(simd)
        for other in (*gave[1:], *scalar):
            if any(a.tobytes() != b.tobytes() for a, b in zip(gave[0], other, strict=True)):
                raise RuntimeError(f"{candidates} candidates: scores differ")
        speeds = [rows / s for s in (*seconds, *slow)]
        lines.append([str(candidates), *(f"{s / 1e6:.3f}" for s in speeds), f"{speeds[2] / speeds[0]:.2f}"])
        found[str(candidates)] = dict(zip(("whole_rows", "once", "cached", "scalar"), speeds, strict=True))
    print(f"{simd}; million predictions a second on one core; {known[0].bytes:,} bytes a context, scores identical\n")
    report.table(["candidates", "whole rows", "context once", "cached", "scalar, once", "gain"], lines)
    read, multiply = limits(model)
    print(
        f"\nreading a candidate's rows allows {read / 1e6:.2f}, its multiplications {multiply / 1e6:.2f} million a second"
    )
    top = found[str(CANDIDATES[-1])]
    print(f"reached: {top['cached'] / read:.0%} of the first, {top['cached'] / multiply:.0%} of the second")
    report.finish(
        top["once"],
        {"whole rows": top["whole_rows"], "scalar": top["scalar"]},
        "predictions/s",
        cores=1,
        candidates=found,
        limit_read=read,
        limit_multiply=multiply,
    )


if __name__ == "__main__":
    main()
