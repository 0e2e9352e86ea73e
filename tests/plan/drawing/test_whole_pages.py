"""Whole pages and pictures of fixed plans, compared with the files in `whole/`.

A change to the planner, its costs or its drawings that is meant changes these files:
`python -m tests.plan.drawing.test_whole_pages` writes them anew, and `git diff` shows what became different.
"""

from __future__ import annotations

import difflib
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
