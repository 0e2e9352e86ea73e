"""A small ad log, its stream of events, and a loop over them, for tests and for processes that are killed.

    python -m tests.loop.online_world DATA STREAM MODEL [--once] [--every 500ex] [--model deepfm]

learns until it is killed, with a checkpoint behind every piece, and says a word before and after each thing it does.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ctrbox as cb
from ctrbox import col
from ctrbox.loop import online_loop
from ctrbox.loop.decode_events import Piece
from ctrbox.loop.online_loop import OnlineLoop

if TYPE_CHECKING:
    from ctrbox.loop.online_click_model import OnlineClickModel


def made(data: Path, bits: int = 12) -> tuple[cb.Plan, cb.DeepFFM]:
    """The plan over an ad log, and a fresh engine."""
    ads = cb.View(f"{data}/ads", key="ad_id").fill(category="none")
    log = cb.View(f"{data}/impressions", key="instance_id").fill(query="", device="unknown").join(ads, on="ad_id")
    features = cb.FeatureSet(
        label=col("clicked"),
        sparse={
            "user": col("user_id").key(),
            "ad": col("ad_id").key(),
            "category": col("category").key(),
            "device": col("device").key(),
            "words": col("query").lower().split(" ").key(),
            "hour": col("ts").hour().key(),
        },
    )
    plan = cb.compile(log, features, device="cpu", threads=1)
    return plan, cb.DeepFFM(plan.schema, k=4, hidden=(4,), bits=bits)


def deepfm(data: Path, table: Any = None, **settings: Any) -> OnlineClickModel:
    """A fresh DeepFM over the same plan; its dropout draws random numbers in every step."""
    import torch

    plan, _ = made(data)
    with torch.random.fork_rng():  # the same weights in every process
        torch.manual_seed(7)
        net = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,), dropout=0.1)
    return cb.loop.OnlineClickModel(plan, net, cb.MemoryTable(4) if table is None else table, batch_size=48, **settings)


def engine_of(kind: str, data: Path, model: Path) -> OnlineClickModel | None:
    """Return a fresh model of a kind: None for a Deep FFM; "ssd" has a Sparse Table beside the model folder."""
    if kind == "ffm":
        return None
    return deepfm(data, cb.SparseTable(f"{model}-rows", dim=4, ram="64MB") if kind == "ssd" else None)


def loop(
    data: Path,
    stream: str | Path,
    model: Path,
    kind: type[OnlineLoop] = OnlineLoop,
    engine: OnlineClickModel | None = None,
    **options: Any,
) -> OnlineLoop:
    plan, usual_engine = made(data) if engine is None else (engine.plan, engine)
    usual: dict[str, Any] = {"every": "500ex", "window": "1h", "lateness": "4m", "context": ["user_id", "query", "ts"]}
    return kind(plan, usual_engine, str(stream), model, tell=lambda line: None, **{**usual, **options})


def followed(
    world: Path, stream: Path, model: Path, request: bytes, engine: OnlineClickModel | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Serve a model while a loop learns the files of a world from an empty stream, until the server has the new version.

    Return its answers to a request before and after that.
    """
    from tests.serve.running import running

    with running(model) as server:
        before = server.score(request).json()
        for chunk in sorted((world / "parquet").iterdir()):
            shutil.copy(chunk, stream)
        found = loop(world / "data", stream, model, engine=engine, once=True).run()
        until = time.monotonic() + 60
        while server.score(request).json()["version"] < found["version"] and time.monotonic() < until:
            time.sleep(0.05)
        after, live = server.score(request).json(), server.get("/v1/live").json()
    assert (before["version"], after["version"]) == (1, found["version"])
    assert live["patches"]["refused"] == 0
    assert live["online"]["examples"] == found["learned"]
    return before, after


class Talking(OnlineLoop):
    """Says what it does, so that whoever kills it can choose the moment."""

    def _take(self, piece: Piece) -> None:
        word("piece")
        super()._take(piece)

    def _checkpoint(self) -> bool:
        word("checkpoint")
        done = super()._checkpoint()
        word("kept")
        return done

    def _publish(self) -> None:
        word("publish")
        super()._publish()
        word("published")

    def _between(self, publish: bool = True) -> None:
        super()._between(publish)
        if not self._changed:
            word("idle" if self.warm["done"] else "warm")


def word(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("stream")
    parser.add_argument("model", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--every", default="500ex")
    parser.add_argument("--warm-up", default="")
    parser.add_argument("--model", dest="kind", choices=["ffm", "deepfm", "ssd"], default="ffm")
    asked = parser.parse_args()
    made_loop = loop(
        asked.data,
        asked.stream,
        asked.model,
        Talking,
        engine_of(asked.kind, asked.data, asked.model),
        once=asked.once,
        publish_at_end=False,
        every=asked.every,
        warm_up=[asked.warm_up] if asked.warm_up else [],
        checkpoint=0,
        checkpoint_share=1,
    )
    made_loop.tell = lambda line: print(line, file=sys.stderr)
    online_loop.ROWS = 100  # of past rows: small steps, so that a kill can come between two
    word("ready")
    made_loop.run()
    word("end")


if __name__ == "__main__":
    main()
