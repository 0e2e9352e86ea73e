"""What does a Model Server cost beside the same sub-model inside torch's graph, and what do kept activations save?

    python -m benchmarks.model_server [--quick]

A step is a pull and a push of 8,192 distinct keys of 40,000, 4096-256-64-12, rows read ahead as a trainer does it. Kept
activations, activations computed again, and torch (rows already in memory, the sub-model inside the graph) alternate on one
thread; the gradients of all three are the same bits.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import ctrbox as cb
from benchmarks.report import finish, one_thread, options, table


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the keys, fewer rounds")
    quick = parser.parse_args().quick
    one_thread()
    objects, asked, rounds = (4000, 820, 3) if quick else (40_000, 8192, 7)
    width, dim = 4096, 12
    rng = np.random.default_rng(0)
    keys = np.arange(1, objects + 1)
    times: dict[str, list[float]] = {"kept": [], "computed again": [], "torch": []}
    with tempfile.TemporaryDirectory() as folder:
        rows = rng.standard_normal((objects, width), np.float32)
        file = cb.tables.write_vectors(Path(folder) / "v", {"k": keys, "v": rows}, key="k", vector="v")
        del rows
        servers = {
            name: cb.tables.ModelServer(
                file, seed=1, block=asked, recompute=name != "kept", optimizer=cb.optim.SGD(lr=0.01)
            )
            for name in ("kept", "computed again")
        }
        inside = cb.tables.ModelServer(file, seed=1).submodel
        step = torch.optim.SGD(inside.parameters(), lr=0.01)
        for _ in range(rounds):
            wanted = rng.permutation(keys)[:asked]
            gradient = rng.standard_normal((asked, dim)).astype(np.float32) / asked
            found = {}
            for name, server in servers.items():
                server.prefetch(wanted)
                began = time.thread_time()
                server.pull(wanted)
                server.push(wanted, gradient)
                times[name].append(time.thread_time() - began)
                found[name] = [p.grad.numpy().tobytes() for p in server.submodel.parameters()]
            given = torch.from_numpy(file.read(file.find(wanted)))
            began = time.thread_time()
            step.zero_grad()
            inside(given).backward(torch.from_numpy(gradient))
            step.step()
            times["torch"].append(time.thread_time() - began)
            found["torch"] = [p.grad.numpy().tobytes() for p in inside.parameters()]
            assert found["kept"] == found["computed again"] == found["torch"], "other gradients"
        memory = {
            "kept": f"{servers['kept']._bytes(asked, keep=True) / 2**20:.0f} MB",
            "computed again": f"{servers['kept']._bytes(asked, rows=True) / 2**20:.0f} MB",
            "torch": "",
        }
    best = {n: statistics.median(t) * 1e3 for n, t in times.items()}
    print(f"{asked:,} keys a step, {width} floats each, one thread; CPU ms, median of {rounds}")
    table(["", "ms a step", "rows and activations"], [[n, f"{v:.0f}", memory[n]] for n, v in best.items()])
    peers = {n: round(v, 1) for n, v in best.items() if n != "kept"}
    finish(round(best["kept"], 1), peers, "CPU ms a step", more_is_better=False, cores=1)


if __name__ == "__main__":
    main()
