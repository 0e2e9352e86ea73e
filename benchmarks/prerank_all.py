"""How fast and how complete is pre-rank over all ads, by exact search and by the index?

    python -m benchmarks.prerank_all [--ads N] [--requests N] [--exact] [--quick]

A request brings a user's vector and no candidates: the best 400 of all ads are searched, by `PreRank.best` over every vector and
by the HNSW graph whose finds `PreRank.best` ranks. Recall is the share of the exact best 400 that the graph finds; every exact
answer is checked against a sort of all products in double precision. Vectors have 32 numbers and lie in one of two worlds:
    scattered   every number is drawn alone: the hardest case for a graph, which no trained model has
    topics      an ad and a user lie near one of 256 topics, as trained towers put them
One thread for a request, as in a server with as many workers as cores; making the graph uses all cores. CPU ms is the time of
the thread, in which others on the machine have no part. --exact leaves out the graph, which takes long to make.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ctrbox as cb
from benchmarks.report import finish, options, table
from ctrbox.embed.vectors.nearest_index import NearestIndex, _faiss

KEPT, DIM, TOPICS = 400, 32, 256
WORLDS = ("scattered", "topics")


def vectors_of(world: str, count: int, rng: np.random.Generator, topics: np.ndarray) -> np.ndarray:
    made = rng.standard_normal((count, DIM))
    if world == "topics":
        made = topics[rng.integers(0, TOPICS, count)] + 0.5 * made
    return made.astype(np.float32)


def measured(times: list[float]) -> tuple[float, float]:
    return statistics.median(times) * 1e3, float(np.percentile(times, 99)) * 1e3


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ads", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--exact", action="store_true", help="no index")
    parser.add_argument("--quick", action="store_true", help="20,000 ads and 30 requests")
    given = parser.parse_args()
    if given.quick:
        given.ads, given.requests = 20_000, 30
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((TOPICS, DIM))
    shown, recalls, p50 = [], {}, {}
    for world in WORLDS:
        vectors = vectors_of(world, given.ads, rng, topics)
        with tempfile.TemporaryDirectory() as folder:
            keys = np.arange(1, given.ads + 1)
            file = cb.tables.write_vectors(Path(folder) / "ads", {"k": keys, "v": vectors}, key="k", vector="v")
            rank = cb.tables.PreRank(file)
        built, index = 0.0, None
        if not given.exact:
            began = time.process_time()
            index = NearestIndex.of(vectors)
            built = time.process_time() - began
            _faiss().omp_set_num_threads(1)  # as a server does
        searches: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
            "exact": lambda user: rank.best(user, KEPT)  # noqa: B023
        }
        if index is not None:
            searches["index"] = lambda user: rank.best(user, KEPT, among=index.search(user, KEPT))  # noqa: B023
        times: dict[str, list[float]] = {name: [] for name in searches}
        cpu: dict[str, list[float]] = {name: [] for name in searches}
        found_of_graph = 0
        for user in vectors_of(world, given.requests, rng, topics):
            products = vectors.astype(np.float64) @ user
            least = np.partition(products, -KEPT)[-KEPT]
            for name, search in searches.items():
                began, busy = time.perf_counter(), time.thread_time()
                best, scores = search(user)
                cpu[name].append(time.thread_time() - busy)
                times[name].append(time.perf_counter() - began)
                assert np.allclose(products[best], scores, atol=1e-3)
                if name == "exact":
                    assert len(set(best.tolist())) == KEPT
                    assert (products[best] >= least - 1e-4).all(), "an ad was taken that is not among the best"
                    exact = best
                else:
                    found_of_graph += len(np.intersect1d(exact, best))
        recalls[world] = found_of_graph / (KEPT * given.requests)
        for name in searches:
            median, most = measured(cpu[name])
            p50[world, name] = median
            last = ["1", ""] if name == "exact" else [f"{recalls[world]:.4f}", f"{built:.0f}"]
            wall = measured(times[name])
            shown.append([world, name, f"{median:.2f}", f"{most:.2f}", f"{wall[0]:.2f}", f"{wall[1]:.2f}", *last])
    print(f"the best {KEPT} of {given.ads:,} ads, vectors of {DIM}; {given.requests} requests, one thread")
    table(["vectors", "search", "CPU ms", "p99", "ms", "p99", "recall", "CPU s to make"], shown)
    finish(
        p50["topics", list(searches)[-1]],
        {"exact": p50["topics", "exact"]},
        "CPU ms a request, median, vectors near topics",
        more_is_better=False,
        cores=1,
        recall=None if given.exact else {world: round(recall, 4) for world, recall in recalls.items()},
    )


if __name__ == "__main__":
    main()
