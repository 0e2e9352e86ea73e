"""Every operator of the CUDA engine, run on the CPU."""

import pytest

import ctrbox as cb
from ctrbox import _native
from ctrbox.plan.graph.build_graph import build_columns
from tests.cuda_host import HostRuntime
from tests.engines.cuda import expressions, hostile
from tests.engines.cuda.operator_checks import *  # noqa: F403  # the test bodies; the GPU's tests have them too
from tests.engines.cuda.registers import Registers


def test_every_line_of_the_catalogue_is_among_the_expressions() -> None:
    seen: set[str] = set()
    for family in expressions.FAMILIES.values():
        graph = build_columns(cb.View(hostile.sample(nulls=True)), family())
        seen |= {f"{n.op}({','.join(a.kind for a in n.args)})" for n in graph.nodes(graph.frames[0])}
    assert seen >= set(_native.bodies())


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", expressions.FAMILIES)
def test_nothing_is_done_that_c_leaves_undefined(family: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Misaligned words above all, which a GPU cannot read."""
    runtime = HostRuntime(256, sanitize=True, level="-O0")
    made = Registers(expressions.FAMILIES[family](), hostile.sample(nulls=True), runtime, fitted=expressions.fitted)
    for seed in range(5):
        made.check(hostile.table(seed, 60, long=1))
    assert "runtime error" not in capfd.readouterr().err


@pytest.mark.parametrize("family", expressions.FAMILIES)
def test_the_order_in_which_threads_run_does_not_matter(family: str) -> None:
    runtime = HostRuntime(256, order=1, level="-O0")  # elsewhere the last runs first
    made = Registers(expressions.FAMILIES[family](), hostile.sample(nulls=True), runtime, fitted=expressions.fitted)
    made.check(hostile.table(2, 300, long=1))
