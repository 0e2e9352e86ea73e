"""How fast and how complete is pre-rank over all ads, by exact search and by the index?

    python -m benchmarks.prerank_all [--ads N] [--requests N]

A request brings a user's vector and no candidates: the best 400 of all ads are searched, by `PreRank.best` over every vector and
by the HNSW graph whose finds `PreRank.best` ranks. Recall is the share of the exact best 400 that the graph finds; every exact
answer is checked against a sort of all products in double precision. Vectors have 32 numbers and lie in one of two worlds:
    scattered   every number is drawn alone: the hardest case for a graph, which no trained model has
    topics      an ad and a user lie near one of 256 topics, as trained towers put them
One thread for a request, as in a server with as many workers as cores; making the graph uses all cores.
"""

from __future__ import annotations

import statistics
import tempfile
import time
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
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((TOPICS, DIM))
    shown, recalls, p50 = [], {}, {}
    for world in WORLDS:
        vectors = vectors_of(world, given.ads, rng, topics)
        with tempfile.TemporaryDirectory() as folder:
            keys = np.arange(1, given.ads + 1)
            file = cb.tables.write_vectors(Path(folder) / "ads", {"k": keys, "v": vectors}, key="k", vector="v")
            rank = cb.tables.PreRank(file)
        began = time.perf_counter()
        index = NearestIndex.of(vectors)
        built = time.perf_counter() - began
        _faiss().omp_set_num_threads(1)  # as a server does
        exact: list[float] = []
        graph: list[float] = []
        found_of_graph = 0
        for user in vectors_of(world, given.requests, rng, topics):
            began = time.perf_counter()
            best, scores = rank.best(user, KEPT)
            exact.append(time.perf_counter() - began)
            began = time.perf_counter()
            near, near_scores = rank.best(user, KEPT, among=index.search(user, KEPT))
            graph.append(time.perf_counter() - began)
            products = vectors.astype(np.float64) @ user
            least = np.partition(products, -KEPT)[-KEPT]
            assert len(set(best.tolist())) == KEPT
            assert (products[best] >= least - 1e-4).all(), "an ad was taken that is not among the best"
            assert np.allclose(products[best], scores, atol=1e-3)
            assert np.allclose(products[near], near_scores, atol=1e-3)
            found_of_graph += len(np.intersect1d(best, near))
        recalls[world] = found_of_graph / (KEPT * given.requests)
        for name, times in (("exact", exact), ("index", graph)):
            median, most = measured(times)
            p50[world, name] = median
            recall = "1" if name == "exact" else f"{recalls[world]:.4f}"
            shown.append(
                [world, name, f"{median:.2f}", f"{most:.2f}", recall, "" if name == "exact" else f"{built:.0f}"]
            )
    print(f"the best {KEPT} of {given.ads:,} ads, vectors of {DIM}; {given.requests} requests, one thread")
    table(["vectors", "search", "median ms", "p99 ms", "recall", "s to make"], shown)
    finish(
        p50["topics", "index"],
        {"exact": p50["topics", "exact"]},
        "ms a request, median, vectors near topics",
        more_is_better=False,
        cores=1,
        recall={world: round(recall, 4) for world, recall in recalls.items()},
    )


if __name__ == "__main__":
    main()
