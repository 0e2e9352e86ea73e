"""Pre-rank: how long until 4,000 candidates have become 400?

    python -m benchmarks.prerank [--quick]

The vectors of all ads lie in memory; a request brings a user's vector and the keys of its candidates. Ours and torch (gather,
product, topk over the same rows, which it is given instead of keys) alternate, on one thread. Every answer is checked against
a sort of all products in double precision.
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

LIMIT_MS = 5.0
CANDIDATES, KEPT, DIM = 4000, 400, 32


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer ads and requests")
    quick = parser.parse_args().quick
    one_thread()
    ads, requests = (50_000, 100) if quick else (1_000_000, 1000)
    rng = np.random.default_rng(0)
    keys = rng.permutation(np.arange(1, 4 * ads))[:ads] * 7_919
    vectors = rng.standard_normal((ads, DIM)).astype(np.float32)
    times: dict[str, list[float]] = {"ours": [], "torch": []}
    cpu: list[float] = []  # of ours: what others do on the machine does not count
    with tempfile.TemporaryDirectory() as folder:
        rank = cb.tables.PreRank(
            cb.tables.write_vectors(Path(folder) / "ads", {"k": keys, "v": vectors}, key="k", vector="v")
        )
        rows = torch.from_numpy(vectors)
        for _ in range(requests):
            user = rng.standard_normal(DIM).astype(np.float32)
            at = rng.choice(ads, CANDIDATES, replace=False)
            began, busy = time.perf_counter(), time.thread_time()
            found, scores = rank.top(user, keys[at], KEPT)
            between = time.perf_counter()
            cpu.append(time.thread_time() - busy)
            torch.topk(rows[torch.from_numpy(at)] @ torch.from_numpy(user), KEPT)
            times["ours"].append(between - began)
            times["torch"].append(time.perf_counter() - between)
            exact = vectors[at].astype(np.float64) @ user
            least = np.sort(exact)[-KEPT]
            assert len(set(found.tolist())) == KEPT
            assert (exact[found] >= least - 1e-4).all(), "a candidate was taken that is not among the best"
            assert (np.diff(scores) <= 0).all()
            assert np.allclose(exact[found], scores, atol=1e-3)
    shown = {n: (statistics.median(t) * 1e3, float(np.percentile(t, 99)) * 1e3, max(t) * 1e3) for n, t in times.items()}
    print(
        f"{CANDIDATES:,} candidates of {ads:,} ads, vectors of {DIM}, the best {KEPT}; {requests} requests, one thread"
    )
    table(["", "median ms", "p99 ms", "most ms"], [[n, *(f"{v:.3f}" for v in s)] for n, s in shown.items()])
    finish(
        shown["ours"][0],
        {"torch": shown["torch"][0]},
        "ms a request, median",
        more_is_better=False,
        cores=1,
        p99_ms=round(shown["ours"][1], 3),
        cpu_p99_ms=round(float(np.percentile(cpu, 99)) * 1e3, 3),
        limit_ms=LIMIT_MS,
        within_limit=shown["ours"][0] < LIMIT_MS,
    )


if __name__ == "__main__":
    main()
