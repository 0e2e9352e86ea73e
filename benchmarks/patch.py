"""How large are updates of a Deep FFM of 2^24 weights after 1k, 10k and 100k further examples, and how long do they take?

python -m benchmarks.patch [--quick] [--all-peers]

1,000,000 examples are learned (a tenth of it and 2^20 weights with --quick), then further ones (benchmarks/ffm_data.py). For
each: the weights as float32 without accumulators (100 %), as 16-bit codes, a patch between float32 files, a patch between
files of codes; each as a share of all weights and of the weights in use (those that learning has changed: a table of 2^24 is
mostly untouched zeros and starting values, which cost a patch nothing, so the share of all weights flatters). `zstd --patch-
from` and xdelta3 between the same files where they are installed (zstd at level 19, minutes, with --all-peers). Every patch
is applied and compared bytewise. AUC is that of 200,000 held out examples with float32 and with codes. A time is from the
model in memory to the file on disk, the best of three, and counts everything that makes it: packing, checksums, writing,
fsync; a peer's starts from the file.
"""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import ffm_data, report
from ctrbox import publish
from ctrbox.ffm.engine import DeepFFM
from ctrbox.ffm.examples_from_text_or_cache import ExampleCache
from ctrbox.ffm.progressive_validation import auc

ROWS, TEST, BITS = 1_000_000, 200_000, 24
FURTHER = (1_000, 10_000, 100_000)
REPEATS = 3
PEERS = {
    "zstd -3 --patch-from": ["zstd", "-q", "-f", "-3", "--long=31", "--patch-from={base}", "{new}", "-o", "{out}"],
    "xdelta3": ["xdelta3", "-q", "-f", "-e", "-B", "{size}", "-s", "{base}", "{new}", "{out}"],
}
SLOW_PEERS = {
    "zstd -19 --patch-from": ["zstd", "-q", "-f", "-19", "--long=31", "--patch-from={base}", "{new}", "-o", "{out}"],
}


def bytes_in_use(model: DeepFFM, fresh: DeepFFM) -> int:
    """Bytes of float32 weights that learning has changed."""
    changed = 0
    for part in ("lr", "ffm", "dense"):
        now, before = (getattr(m._native, part)() for m in (model, fresh))
        changed += int((now != before).sum())
    return 4 * changed


def timed(make: Callable[[], object], repeats: int = REPEATS) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        make()
        best = min(best, time.perf_counter() - began)
    return best


def ours(model: DeepFFM, folder: Path) -> dict[str, tuple[int, float]]:
    """Bytes and seconds of none, quantize, patch and both, from base to `model`."""
    new, codes, patch, both = (folder / n for n in ("new.f32", "new.fbw", "f32.patch", "update.patch"))

    def none() -> None:
        publish.pack(model, new, quantize=False)

    def quantize() -> None:
        publish.pack(model, codes, base=folder / "base.fbw")

    def patched() -> None:
        none()
        publish.diff(folder / "base.f32", new, patch)

    def quantized_and_patched() -> None:
        quantize()
        publish.diff(folder / "base.fbw", codes, both)

    made = {"none": (new, none), "quantize": (codes, quantize), "patch": (patch, patched)}
    made["quantize + patch"] = (both, quantized_and_patched)
    found = {}
    for name, (path, make) in made.items():
        seconds = timed(make)
        found[name] = (path.stat().st_size, seconds)
    for base, update, result in (("base.f32", patch, new), ("base.fbw", both, codes)):
        again = folder / "again"
        seconds = timed(lambda b=base, u=update, a=again: publish.apply(folder / b, u, a))  # type: ignore[misc]
        if not filecmp.cmp(again, result, shallow=False):
            raise RuntimeError(f"{update.name} does not give {result.name}")
        found[f"apply to {base}"] = (again.stat().st_size, seconds)
    return found


def peers(folder: Path, slow: bool) -> dict[str, tuple[int, float]]:
    found = {}
    for name, command in (PEERS | (SLOW_PEERS if slow else {})).items():
        if shutil.which(command[0]) is None:
            continue
        for base, new in (("base.f32", "new.f32"), ("base.fbw", "new.fbw")):
            places = {"base": folder / base, "new": folder / new, "out": folder / "peer.patch"}
            places["size"] = max(1 << 20, places["base"].stat().st_size)  # type: ignore[assignment]
            words = [word.format(**places) for word in command]
            seconds = timed(lambda w=words: subprocess.run(w, check=True, capture_output=True), 1)  # type: ignore[misc]
            kind = "float32" if base.endswith("f32") else "codes"
            found[f"{name}, {kind}"] = (places["out"].stat().st_size, seconds)
    return found


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--all-peers", action="store_true")
    asked = parser.parse_args()
    rows, tests, bits = (ROWS // 10, TEST // 10, 20) if asked.quick else (ROWS, TEST, BITS)
    further = [n // 10 if asked.quick else n for n in FURTHER]
    with TemporaryDirectory(prefix="ctrbox-patch-") as name:
        folder = Path(name)
        clicks = ffm_data.make(rows + further[-1] + tests)
        ends = [0, rows, *(rows + n for n in further), rows + further[-1] + tests]
        caches = []
        for n, (begin, end) in enumerate(pairwise(ends)):
            clicks.text(folder / "part.vw", slice(begin, end))
            caches.append(ExampleCache.parse(folder / "part.vw", folder / f"{n}.ctrx"))
        (folder / "part.vw").unlink()
        test, labels = caches.pop(), clicks.labels[-tests:]
        del clicks
        model, fresh = (
            DeepFFM(list(ffm_data.NAMES), k=4, hidden=(24, 24), lr=0.02, nn=0.05, bits=bits) for _ in range(2)
        )
        model.learn(caches[0])
        publish.pack(model, folder / "base.f32", quantize=False)
        publish.pack(model, folder / "base.fbw")
        whole = (folder / "base.f32").stat().st_size
        print(
            f"2^{bits} weights each for lr and ffm, {rows:,} examples learned; float32 without accumulators: {whole:,} bytes"
        )
        lines: list[list[str]] = []
        kept: dict[str, Any] = {}
        for n, cache in zip(further, caches[1:], strict=True):
            model.learn(cache)
            found = ours(model, folder) | peers(folder, asked.all_peers)
            aucs = [auc(labels, m.predict(test)) for m in (model, DeepFFM.load(folder / "new.fbw"))]
            used = bytes_in_use(model, fresh)
            for what, (size, seconds) in found.items():
                shares = [f"{100 * size / of:.2f} %" for of in (used, whole)]
                lines.append([f"{n:,}", what, f"{size:,}", *shares, f"{seconds:.2f} s"])
            lines.append([f"{n:,}", "AUC, float32 and codes", f"{aucs[0]:.6f}", f"{aucs[1]:.6f}", "", ""])
            lines.append([f"{n:,}", "float32 weights in use", f"{used:,}", "100 %", f"{100 * used / whole:.2f} %", ""])
            kept[str(n)] = {
                w: {"bytes": s, "share": s / whole, "share_of_used": s / used, "seconds": t}
                for w, (s, t) in found.items()
            }
            kept[str(n)]["auc"] = aucs
        report.table(["further", "update", "bytes", "of weights in use", "of all weights", "time"], lines)
        first = kept[str(further[0])]
        report.finish(
            first["quantize + patch"]["bytes"],
            {w: f["bytes"] for w, f in first.items() if w.startswith(("zstd", "xdelta3"))},
            f"bytes of an update after {further[0]:,} examples",
            more_is_better=False,
            updates=kept,
        )


if __name__ == "__main__":
    main()
