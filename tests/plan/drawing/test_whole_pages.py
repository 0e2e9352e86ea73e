"""Whole pages and pictures of fixed plans, compared with the files in `whole/`.

A change to the planner, its costs or its drawings that is meant changes these files:
`python -m tests.plan.drawing.test_whole_pages` writes them anew, and `git diff` shows what became different.
"""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.plan.drawing.draw import picture
from ctrbox.plan.drawing.explain import explain
from tests.plan import shop, world

FOLDER = Path(__file__).parent / "whole"


@cb.operator(args=["float"], result="float", arrays="numpy")
def doubled(x: Any) -> Any:
    return x * 2


def own() -> cb.Plan:
    """The world's plan with a Python function, so that a GPU leaves a part to the CPU."""
    return world.plan(own=doubled(col("price")).bucketize([1.0]).key())


def many() -> cb.Plan:
    """A plan of 100 features: too many for a curve each, and of more operators than a picture shows one by one."""
    log = cb.View(pa.table({f"c{k}": [k] for k in range(15)}), name="log")
    pairs = [(a, b) for a in range(15) for b in range(a)][:96]
    sparse = {f"c{a} with c{b}": cb.cross(f"c{a}", f"c{b}") for a, b in pairs}
    dense = {f"log {k}": (col(f"c{k}") / (k + 1)).log1p() for k in range(4)}
    return cb.compile(log, cb.FeatureSet(sparse=sparse, dense=dense), device="cpu")


class Endless:
    """A stream of which nobody knows how many rows it has."""

    streaming, name = True, "endless"

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        return pa.table({"shop": [1], "city": ["Rome"]}).__arrow_c_stream__(requested)


def rare(write: Callable[[cb.Plan], str], python: bool = True) -> str:
    """Write a plan over a text file, prices that were valid at a time and may lie on disk, and a stream; some views are idle."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shown.csv"
        path.write_text("shop;day;price;click;buy;age\n1;2026-01-01;0.5;1;0;2.5\n2;2026-01-02;;0;;0.5\n")
        kinds = {"day": "time", "price": "float", "click": "int", "buy": "int", "age": "float"}
        log = cb.View(path, name="shown", types=kinds, delimiter=";")
        since = pa.array([1_767_139_200_000_000], pa.timestamp("us"))
        prices = cb.View(pa.table({"shop": [1], "since": since, "bid": [1.0], "never": [0]}), key="shop", name="prices")
        idle = cb.View(pa.table({"shop": [1], "unasked": [1]}), key="shop", name="idle")
        view = (
            log.filter(col("day").is_not_null())
            .join(prices.fill(bid=0.0), on="shop", as_of=("day", "since"), budget="1MB", spill=folder)
            .join(cb.View(Endless(), key="shop", name="cities").fill(city=""), on="shop", how="inner")
            .join(idle, on="shop")
        )
        bid = doubled(col("bid")) if python else col("bid")
        features = cb.FeatureSet(
            labels={
                "click": col("click").fill(0),
                "buy": cb.Label("buy", delay="age", elapsed=col("age").fill(0.0), window=30),
            },
            sparse={"city": col("city").key(), "hour": col("day").hour().fill(-1)},
            dense={"bid": bid, "price": col("price").fill(0.0).clip(0, 9)},
        )
        return write(cb.compile(view, features, device="cpu")).replace(folder, "FOLDER")


def tiny() -> cb.Plan:
    """A plan of one feature: no joined view, no table, no fit, and nothing that was dropped."""
    log = cb.View(pa.table({"n": [1.0, 2.0], "m": [1.0, 2.0]}), name="log").filter(col("n") > 0.5)
    return cb.compile(log, cb.FeatureSet(dense={"n": col("n").log1p()}), device="cpu")


def loaded(plan: cb.Plan) -> str:
    """Explain a plan whose views are loaded: the prices on a disk, the stream in memory."""
    kept = {"needed_bytes": 3 << 20, "memory_bytes": 5000, "folder": "/mnt/ssd", "file_bytes": 1 << 22}
    facts = {1: kept, 2: {"needed_bytes": 700, "memory_bytes": 700, "folder": None, "file_bytes": 0}}
    memory = {1: {**kept, "folder": None}}
    return explain(plan.graph, "cpu", loaded=facts) + explain(plan.graph, "cpu", loaded=memory)


MEASURED = {"cuda": {"split": 0.75, "layer_2": 2.5, "%26": 120.0, "emit": 0.5}, "cpu": {"user": 30.0}}
WHOLE: dict[str, Callable[[], str]] = {
    "world_on_the_cpu.txt": lambda: explain(world.plan().graph, "cpu"),
    "world_on_a_gpu.txt": lambda: explain(own().graph, "cuda:32GB", measured=MEASURED),
    "shop_on_a_gpu.txt": lambda: explain(shop.plan().graph, "cuda:32GB"),
    "shop_without_python.txt": lambda: explain(shop.plan(python=False).graph, "cuda:32GB"),
    "shop_on_a_small_gpu.txt": lambda: explain(
        shop.plan(python=False).graph, cb.types.Device("cuda", 9_800_000, cores=2, pcie=3)
    ),
    "shop_on_a_slow_bus.txt": lambda: explain(
        shop.plan(python=False).graph, cb.types.Device("cuda", "32GB", cores=64, pcie=0.2)
    ),
    "world_on_a_gpu.svg": lambda: svg_lines(picture(own().graph, "cuda:32GB")),
    "shop.svg": lambda: svg_lines(picture(shop.plan().graph, "cuda:32GB")),
    "many.svg": lambda: svg_lines(picture(many().graph, "cpu")),
    "tiny.txt": lambda: "".join(explain(tiny().graph, device) for device in ("cpu", "cuda:1GB", "cuda:3KB")),
    "tiny.svg": lambda: svg_lines(picture(tiny().graph, "cpu")),
    "rare_on_the_cpu.txt": lambda: rare(lambda plan: explain(plan.graph, "cpu")),
    "rare_when_loaded.txt": lambda: rare(loaded),
    "rare_on_a_gpu.txt": lambda: rare(
        lambda plan: explain(plan.graph, cb.types.Device("cuda", "1GB", cores=1), measured={"cuda": {"emit": 0.5}})
    ),
    "rare_without_python.txt": lambda: rare(lambda plan: explain(plan.graph, "cuda:8MB"), python=False),
    "rare.svg": lambda: rare(lambda plan: svg_lines(picture(plan.graph, "cpu"))),
    "rare_on_a_gpu.svg": lambda: rare(lambda plan: svg_lines(picture(plan.graph, "cuda:1GB"))),
}


def svg_lines(svg: str) -> str:
    """Put each element on a line of its own, so that a difference can be read."""
    return svg.replace("><", ">\n<")


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_page_is_the_one_that_is_kept(name: str) -> None:
    kept, now = (FOLDER / name).read_text(encoding="utf-8"), WHOLE[name]()
    different = list(difflib.unified_diff(kept.splitlines(), now.splitlines(), name, "now", lineterm="", n=0))
    assert not different, "\n".join(different[:40])


if __name__ == "__main__":
    for file, made in WHOLE.items():
        (FOLDER / file).write_text(made(), encoding="utf-8")
