"""Does damage pass? A patch cut at every byte, bits flipped in models and patches, sizes that lie behind true checksums.

    python -m benchmarks.faults [--quick]

A small Deep FFM is saved (.ffm), published twice (.fbw) and diffed (.patch). Every fault is one file with something wrong in
it; it is refused by an error of ours, or it passed. After all of them the folder holds what it held, byte by byte, and the
memory beside that of the honest files is counted. Beside it: xdelta3's patch of the same two files, the same bits flipped.
Native parsers are fuzzed by `make fuzz`; docs/faults.md says what covers what.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import ctrbox as cb
from benchmarks import report
from ctrbox import _native, publish
from ctrbox.errors import CtrboxError
from ctrbox.publish.patch import HEAD as PATCH_HEAD
from ctrbox.publish.patch import REGION, SEAL

FLIPS, QUICK = 10_000, 300
MOST_MEMORY = 64 << 20  # above the honest files' peak
PEER_FLIPS = 400


@dataclass
class Faults:
    """How many of one kind were refused, and which passed."""

    kind: str
    refused: int = 0
    same: int = 0  # a lie about nothing: what came out is what the honest file gives
    passed: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def row(self) -> list[str]:
        count = self.refused + self.same + len(self.passed)
        shown = [f"{n:,}" for n in (count, self.refused, self.same, len(self.passed))]
        return [self.kind, *shown, f"{self.seconds:.1f} s"]


def tried(kind: str, faults: Iterator[tuple[str, bytes]], path: Path, use: Callable[[], bool]) -> Faults:
    """``use`` says whether what it read gives the honest result."""
    found = Faults(kind)
    start = time.perf_counter()
    for what, damaged in faults:
        path.write_bytes(damaged)
        try:
            if use():
                found.same += 1
            else:
                found.passed.append(what)
        except CtrboxError:
            found.refused += 1
    found.seconds = time.perf_counter() - start
    path.unlink(missing_ok=True)
    return found


def cuts(whole: bytes, step: int) -> Iterator[tuple[str, bytes]]:
    for n in range(0, len(whole), step):
        yield f"cut at byte {n}", whole[:n]


def flips(whole: bytes, count: int) -> Iterator[tuple[str, bytes]]:
    draw = random.Random(count)
    for _ in range(count):
        at = draw.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        yield f"bit {at}", bytes(flipped)


# ---- lies: sizes that are false, checksums that are true


def sealed(text: bytes) -> bytes:
    return text + hashlib.sha256(text).digest()


def lying_patches(whole: bytes) -> Iterator[tuple[str, bytes]]:
    body = whole[:-SEAL]
    numbers = [0, 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1]
    places = {"base": 16, "result": 56}
    for region in range(struct.unpack_from("<I", body, 96)[0]):
        places |= {f"region {region} {n}": PATCH_HEAD.size + REGION.size * region + 8 * n for n in range(3)}
    streams = PATCH_HEAD.size + REGION.size * struct.unpack_from("<I", body, 96)[0]
    places |= {f"stream {n}": streams + 8 * n for n in range(2 * struct.unpack_from("<I", body, 100)[0])}
    for what, at in places.items():
        honest = struct.unpack_from("<Q", body, at)[0]
        for number in [*numbers, honest + 1, honest - 1 if honest else 7, honest * 2 + 2]:
            if number != honest:
                yield f"{what}: {number}", sealed(body[:at] + struct.pack("<Q", number) + body[at + 8 :])
    for what, at in (("version", 8), ("word", 12), ("regions", 96), ("streams", 100)):
        for small in (0, 3, 8, 2**16, 2**32 - 1):
            if struct.unpack_from("<I", body, at)[0] != small:
                yield f"{what}: {small}", sealed(body[:at] + struct.pack("<I", small) + body[at + 4 :])


def lying_weights(whole: bytes) -> Iterator[tuple[str, bytes]]:
    length = struct.unpack_from("<I", whole, 12)[0]
    honest = json.loads(whole[64 : 64 + length])
    for name, values in {
        "bits": (36, 20, -1, 10**30, "8"), "fields": (512, 1, 0), "k": (65, 2**40, 0), "hidden": ([1024] * 8, [0], [1] * 9, 7),
        "context": (400, -1), "names": ([], ["x"] * 600, 3), "learned": (-1, 2**70, None), "lr": ("yes", None),
    }.items():  # fmt: skip
        for value in values:
            yield (
                f"{name}: {value!r}"[:60],
                with_directory(whole, {**honest, "about": {**honest["about"], name: value}}),
            )
    for n, part in enumerate(honest["parts"]):
        for name, values in {
            "bytes": (2**62, 2**31, -1), "at": (0, 2**62, -64), "shape": ([2**40, 2**40], [-1], [2**62]), "dtype": ("F64", "X"),
            "first": (2**40,), "bucket": (0, -1.0, 1e400), "sum": ("", "z" * 16),
        }.items():  # fmt: skip
            for value in values:
                parts = [*honest["parts"]]
                parts[n] = {**part, name: value}
                yield f"part {n} {name}: {value!r}"[:60], with_directory(whole, {**honest, "parts": parts})


def with_directory(whole: bytes, directory: dict[str, object]) -> bytes:
    """The same parts behind another directory, whose checksum is true. Places are left as they were."""
    length = struct.unpack_from("<I", whole, 12)[0]
    text = json.dumps(directory, separators=(",", ":")).encode().ljust(length)
    sum_ = _native.checksum(np.frombuffer(text, np.uint8))
    size = 64 + len(text) + len(whole) - 64 - length
    return whole[:12] + struct.pack("<IQQ", len(text), sum_, size) + bytes(32) + text + whole[64 + length :]


def lying_models(whole: bytes, head: int) -> Iterator[tuple[str, bytes]]:
    """The first block of a saved model ends with its checksum, which is made true again."""
    for at in range(8, head, 4):
        for number in (0, 1, 36, 513, 2**16, 2**31, 2**32 - 1):
            block = whole[:at] + struct.pack("<I", number) + whole[at + 4 : head]
            if block == whole[:head]:
                continue
            sum_ = _native.checksum(np.frombuffer(block, np.uint8))
            lying = block + struct.pack("<Q", sum_) + whole[head + 8 :]
            # The next block's checksum starts from this one's, so a head with other settings never passes; that of the same
            # settings (rates, seed) is a lie about nothing that has a size.
            yield f"byte {at}: {number}", lying


# ---- the files


def made(folder: Path) -> dict[str, bytes]:
    text = folder / "train.vw"
    draw = random.Random(1)
    fields = ("user", "ad", "words", "site")
    lines = (
        f"{draw.randrange(2)} " + " ".join(f"|{name} x{draw.randrange(40)}" for name in fields) for _ in range(2_000)
    )
    text.write_text("\n".join(lines) + "\n")
    cache = cb.ffm.ExampleCache.parse(text, folder / "train.ctrx")
    engine = cb.DeepFFM(cache, bits=10, k=4, hidden=(8,), context=("user",))
    engine.learn(cache)
    publish.pack(engine, folder / "old.fbw")
    engine.learn(cb.ffm.ExampleText(text))
    publish.pack(engine, folder / "new.fbw", base=folder / "old.fbw")
    engine.save(folder / "model.ffm")
    publish.diff(folder / "old.fbw", folder / "new.fbw", folder / "update.patch")
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".fbw", ".ffm", ".patch")}


def head_bytes(whole: bytes) -> int:
    """Where the first checksum of a saved model stands."""
    for at in range(60, 2_000):
        if _native.checksum(np.frombuffer(whole[:at], np.uint8)) == struct.unpack_from("<Q", whole, at)[0]:
            return at
    raise RuntimeError("a saved model without a head")


def peer(folder: Path, count: int) -> Faults | None:
    """Bits flipped in xdelta3's patch: refused, or a result that is not the file it was made from."""
    if not shutil.which("xdelta3"):
        return None
    old, new, patch, out = (str(folder / name) for name in ("old.fbw", "new.fbw", "peer.xdelta", "peer.out"))
    subprocess.run(["xdelta3", "-e", "-f", "-s", old, new, patch], check=True, capture_output=True)
    whole, found = Path(patch).read_bytes(), Faults("xdelta3: bits flipped in its patch")
    start = time.perf_counter()
    for what, damaged in flips(whole, count):
        Path(patch).write_bytes(damaged)
        done = subprocess.run(["xdelta3", "-d", "-f", "-s", old, patch, out], capture_output=True)
        if done.returncode == 0 and Path(out).read_bytes() != Path(new).read_bytes():
            found.passed.append(what)
        else:
            found.refused += 1
    found.seconds = time.perf_counter() - start
    for name in (patch, out):
        Path(name).unlink(missing_ok=True)
    return found


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    count, step = (QUICK, 17) if asked.quick else (FLIPS, 1)
    with TemporaryDirectory(prefix="ctrbox-faults-") as name:
        folder = Path(name)
        files = made(folder)
        bad, out = folder / "bad", folder / "served.fbw"
        out.write_bytes(files["old.fbw"])
        before = {p.name: p.read_bytes() for p in folder.iterdir()}
        publish.apply(folder / "old.fbw", folder / "update.patch", folder / "check.fbw")
        assert (folder / "check.fbw").read_bytes() == files["new.fbw"]
        (folder / "check.fbw").unlink()
        cb.DeepFFM.load(folder / "model.ffm")
        cb.DeepFFM.load(folder / "new.fbw")
        honest = report.peak_rss()

        def apply() -> bool:
            publish.apply(folder / "old.fbw", bad, out)
            same = out.read_bytes() == files["new.fbw"]
            out.write_bytes(files["old.fbw"])
            return same

        def load() -> bool:
            cb.DeepFFM.load(bad)
            return False

        head = head_bytes(files["model.ffm"])
        found = [
            tried("patch cut at every byte", cuts(files["update.patch"], step), bad, apply),
            tried("bits flipped in the patch", flips(files["update.patch"], count), bad, apply),
            tried("bits flipped in the saved model", flips(files["model.ffm"], count), bad, load),
            tried("bits flipped in published weights", flips(files["new.fbw"], count), bad, load),
            tried("weights cut", cuts(files["new.fbw"], 7 * step), bad, load),
            tried("saved model cut", cuts(files["model.ffm"], 7 * step), bad, load),
            tried("lies in a sealed patch", lying_patches(files["update.patch"]), bad, apply),
            tried("lies in sealed weights", lying_weights(files["new.fbw"]), bad, load),
            tried("lies in a sealed model", lying_models(files["model.ffm"], head), bad, load),
        ]
        memory = report.peak_rss() - honest
        left = {p.name: p.read_bytes() for p in folder.iterdir()} != before
        theirs = peer(folder, QUICK if asked.quick else PEER_FLIPS)
    report.table(
        ["fault", "tried", "refused", "same result", "passed", "time"],
        [f.row for f in [*found, *([theirs] if theirs else [])]],
    )
    passed = [f"{f.kind}: {what}" for f in found for what in f.passed]
    for what in passed[:10]:
        print("passed:", what)
    print(
        f"memory beside the honest files' peak: {memory / 2**20:.1f} MiB; left behind: {'something' if left else 'nothing'}"
    )
    refused = sum(f.refused for f in found)
    report.finish(
        refused / (refused + len(passed)),
        {"xdelta3, of bits flipped": theirs.refused / (theirs.refused + len(theirs.passed))} if theirs else {},
        "share of faults refused",
        faults={f.kind: {"refused": f.refused, "same": f.same, "passed": len(f.passed)} for f in found},
        memory_bytes=memory,
        left_behind=left,
    )
    if passed or left or memory > MOST_MEMORY:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
