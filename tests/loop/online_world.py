"""A small ad log, its stream of events, and a loop over them, for tests and for processes that are killed.

    python -m tests.loop.online_world DATA STREAM MODEL [--once] [--every 500ex]

learns until it is killed, with a checkpoint behind every piece, and says a word before and after each thing it does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ctrbox as cb
from ctrbox import col
from ctrbox.loop import loop as online_loop
from ctrbox.loop.events import Piece
from ctrbox.loop.loop import OnlineLoop


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


def loop(
    data: Path, stream: str | Path, model: Path, kind: type[OnlineLoop] = OnlineLoop, **options: Any
) -> OnlineLoop:
    plan, engine = made(data)
    usual: dict[str, Any] = {"every": "500ex", "window": "1h", "lateness": "4m", "context": ["user_id", "query", "ts"]}
    return kind(plan, engine, str(stream), model, tell=lambda line: None, **{**usual, **options})


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
    asked = parser.parse_args()
    made_loop = loop(
        asked.data,
        asked.stream,
        asked.model,
        Talking,
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
