"""What do common features save? Steps with a user's history looked up once a user against once a sample.

    python -m benchmarks.common_features [--quick]

A log in which the six samples of a user stand together, histories of 30 and 200 keys (the paper's after and before its filter),
batches of 4,096 rows; sum pooling (Embedding&MLP) and attention (DIN, 30 keys only). CPU ms of look-up and learning, one thread,
alternating. The logits of both are the same bits.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import pyarrow as pa
import torch

import ctrbox as cb
from benchmarks.report import finish, one_thread, options, table
from ctrbox import col
from ctrbox.optimizers.of_dense_weights import dense_optimizer
from ctrbox.train.learn_batch import Learner

SAMPLES, BATCH = 6, 4096
CASES = (("EmbeddingMLP", 30), ("EmbeddingMLP", 200), ("DIN", 30))


def plan_of(rows: int, history: int) -> cb.Plan:
    rng = np.random.default_rng(0)
    users = -(-rows // SAMPLES)
    user = np.repeat(np.arange(users), SAMPLES)[:rows]
    ads = rng.zipf(1.3, users * history) % 50_000
    of_user = pa.FixedSizeListArray.from_arrays(pa.array(ads), history).cast(pa.list_(pa.int64()))
    log = {"id": np.arange(rows), "user": user, "ad": rng.zipf(1.3, rows) % 50_000, "clicked": rng.integers(0, 2, rows)}
    view = cb.View(pa.table({**log, "history": of_user.take(pa.array(user))}), key="id").fill(history=[])
    sparse = {"user": col("user"), "ad": col("ad").key(space="ad"), "history": col("history").key(space="ad")}
    return cb.compile(view, cb.FeatureSet(label=col("clicked"), group=col("user"), sparse=sparse), threads=1)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer batches")
    rounds = 3 if parser.parse_args().quick else 12
    one_thread()
    rows, faster = [], {}
    ours = peer = 0.0
    for name, history in CASES:
        plan = plan_of(BATCH * rounds, history)
        batches = list(plan.batches(BATCH))
        learners = {}
        for how, common in (("user", ("history",)), ("sample", ())):
            torch.manual_seed(0)
            model = cb.models.MODELS[name](plan.schema, dim=12, **({} if name == "DIN" else {"pooling": "sum"}))
            step = dense_optimizer(cb.optim.Adam())
            learners[how] = Learner(model, plan.schema, cb.MemoryTable(12, threads=1), step, common=common)
        logits = [one.score(one.look(batches[0])) for one in learners.values()]
        # Native threads sum what is looked up once a sample, torch what is looked up once a user: the last bits may differ.
        assert np.allclose(*logits, rtol=1e-5, atol=1e-7), f"{name}: other logits"
        times: dict[str, list[float]] = {"user": [], "sample": []}
        for batch in batches:
            for how, one in learners.items():
                began = time.thread_time()
                one.learn(one.look(batch))
                times[how].append(time.thread_time() - began)
        user, sample = (statistics.median(t) * 1e3 for t in times.values())
        rows.append([f"{name}, {history} keys", f"{user:.1f}", f"{sample:.1f}", f"{sample / user:.2f}"])
        faster[f"{name} {history}"] = round(sample / user, 2)
        if (name, history) == CASES[1]:
            ours, peer = user, sample
    print(f"batches of {BATCH:,} rows, {SAMPLES} samples a user; CPU ms a step, one thread")
    table(["", "once a user", "once a sample", "times faster"], rows)
    finish(
        round(ours, 2),
        {"once a sample": round(peer, 2)},
        "CPU ms a step of Embedding&MLP, 200 keys",
        more_is_better=False,
        cores=1,
        times_faster=faster,
    )


if __name__ == "__main__":
    main()
