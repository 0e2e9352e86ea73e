"""Does a killed training end as an unbroken one? kill -9 at random moments, resume, compare every bit of the weights.

    python -m benchmarks.crash [--quick] [--kills 50] [--seed 0]

A training of 30,000 raw rows (two epochs, shuffled, negatives thinned, dropout, early stop, a checkpoint every three
steps) runs in a process of its own. It is killed after a random part of its time, resumed, perhaps killed again, and so
on until it ends by itself.
"""

from __future__ import annotations

import collections
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.extract_job import data, plan

ROWS = 30_000


def train(root: Path, out: Path) -> str:
    """Train, or go on, in ``out``; a digest of the weights at the end."""
    import torch

    import ctrbox as cb

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if (out / "summary.json").exists():  # killed after its end
        return digest_of(cb.Run.load(out))
    job = plan(root)
    model = cb.models.DeepFM(job.schema, dim=4, hidden=(16,), dropout=0.2, batch_norm=True)
    run = cb.Trainer(model, cb.MemoryTable(4, optimizer=cb.optim.Adam(lr=0.01), threads=2)).fit(
        job,
        out=out,
        epochs=2,
        batch_size=1024,
        shuffle=8192,
        negatives=0.7,
        patience=2,
        evaluate_every=10,
        checkpoint_steps=3,
        schedule=cb.optim.Cosine(60, warmup=5),
        explain=False,
    )
    return digest_of(run)


def digest_of(run: Any) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(run.model.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    for embedder in run.learner.embedders:
        for array in embedder.export():  # type: ignore[attr-defined]
            digest.update(array.tobytes())
    return digest.hexdigest()


def start(root: Path, out: Path) -> int:
    """The training in a child process, which writes its digest beside the run folder. The parent has no threads yet."""
    child = os.fork()
    if child == 0:
        try:
            found = train(root, out)
            out.with_suffix(".digest").write_text(found)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child


def ended(child: int) -> bool:
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def state_of(out: Path) -> str:
    """Where a kill met the run, as far as its folder tells."""
    if (out / "summary.json").exists():
        return "after the end"
    steps = sorted((out / "checkpoints").glob("step-*")) if (out / "checkpoints").is_dir() else []
    inside = any(p.name.startswith(".step") for p in (out / "checkpoints").glob(".*")) if steps else False
    if inside:
        return "while a checkpoint was written"
    return "between checkpoints" if steps else "before the first checkpoint"


def main() -> None:
    kills, seed = report.count_and_seed(__doc__, "kills", 50, quick=5, quick_help="5 kills")
    rng = random.Random(seed)
    root = data(ROWS)
    import torch  # noqa: F401 - imported once, before the children

    import ctrbox as cb

    _ = cb.Trainer, cb.models.DeepFM
    folder = Path(tempfile.mkdtemp(prefix="ctrbox-crash-"))
    met: collections.Counter[str] = collections.Counter()
    try:
        began = time.perf_counter()
        if not ended(start(root, folder / "whole")):
            sys.exit("the unbroken training failed")
        whole, seconds = (folder / "whole.digest").read_text(), time.perf_counter() - began
        done = runs = 0
        while done < kills:
            out = folder / f"run-{runs}"
            while True:
                child = start(root, out)
                if done < kills and rng.random() < 0.8:
                    time.sleep(rng.random() * seconds)
                    os.kill(child, signal.SIGKILL)
                    if not ended(child):
                        done += 1
                        met[state_of(out)] += 1
                        continue
                elif not ended(child):
                    sys.exit(f"a resumed training failed in {out}")
                break
            runs += 1
            if out.with_suffix(".digest").read_text() != whole:
                sys.exit(f"run {runs} ended with other weights than the unbroken one")
            shutil.rmtree(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows: list[list[Any]] = [[where, count] for where, count in met.most_common()]
    report.table(["killed", "times"], rows)
    print(f"{done} kills in {runs} runs of {seconds:.1f} s: all ended with the weights of the unbroken run")
    report.finish(done, {}, "kills survived", runs=runs)


if __name__ == "__main__":
    main()
