"""The paper's Figure 4, that very example: eight operators, three layers, one too large for the GPU."""

from __future__ import annotations

import pytest

from ctrbox.plan.graph.layers import layers
from ctrbox.plan.placement.placement import place_operators

GB = 1 << 30

# Op1 calls Func3; Op2 calls Func1 and Func3; Op3 calls Func2 and Func3. Func1 and Func2 prepare what Op2 and
# Op3 read, Func3 finishes what all three give. Each call is an operator of its own.
CALLS = {
    "Op1": [],
    "Op2": ["Op4"],
    "Op3": ["Op5"],
    "Op4": [],  # Func1, called by Op2
    "Op5": [],  # Func2, called by Op3: looks up a word embedding table
    "Op6": ["Op1"],  # Func3
    "Op7": ["Op2"],
    "Op8": ["Op3"],
}
MEMORY = dict.fromkeys(CALLS, 64 << 20) | {"Op5": 400 * GB}


def test_operators_without_dependencies_are_the_first_layer_and_others_follow_by_depth() -> None:
    assert [set(layer) for layer in layers(CALLS)] == [
        {"Op1", "Op4", "Op5"},
        {"Op2", "Op3", "Op6"},
        {"Op7", "Op8"},
    ]


def test_the_word_embedding_look_up_stays_on_the_cpu_and_its_result_is_copied() -> None:
    placed = place_operators(CALLS, MEMORY, budget=32 * GB)
    assert [set(layer) for layer in placed.layers] == [set(layer) for layer in layers(CALLS)]
    assert {op for op, device in placed.devices.items() if device == "cpu"} == {"Op5"}
    assert placed.copies == [("Op5", "H2D")]


def test_operators_of_a_layer_do_not_depend_on_each_other() -> None:
    for layer in layers(CALLS):
        assert not any(set(CALLS[operator]) & set(layer) for operator in layer)


def test_everything_is_on_a_gpu_that_is_large_enough() -> None:
    placed = place_operators(CALLS, MEMORY, budget=500 * GB)
    assert set(placed.devices.values()) == {"cuda"}
    assert placed.copies == []


def test_without_a_gpu_nothing_is_copied() -> None:
    placed = place_operators(CALLS, MEMORY, budget=0)
    assert set(placed.devices.values()) == {"cpu"}
    assert placed.copies == []


def test_an_operator_on_the_cpu_in_the_middle_is_copied_both_ways() -> None:
    placed = place_operators({"a": [], "b": ["a"], "c": ["b"]}, dict.fromkeys("abc", 1), 10, host_only=["b"])
    assert placed.devices == {"a": "cuda", "b": "cpu", "c": "cuda"}
    assert placed.copies == [("a", "D2H"), ("b", "H2D")]


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="depends on itself"):
        layers({"a": ["b"], "b": ["a"]})
