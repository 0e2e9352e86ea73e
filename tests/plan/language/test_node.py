"""Nodes: which of them are one, the order in which they are walked, and their layers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ctrbox.plan.graph.layers import depths, layers
from ctrbox.plan.language.node import LITERAL, Node, Nodes, closure, reached


def literal(nodes: Nodes, value: Any) -> Node:
    return nodes.intern("literal", (), (("value", value),), "i", False, LITERAL)


def column(nodes: Nodes, name: str, **more: Any) -> Node:
    return nodes.intern("column", (), (("name", name),), **{"kind": "i", "nullable": False, "frame": 0, **more})


def test_equal_nodes_are_one_and_different_constants_are_not() -> None:
    nodes = Nodes()
    values: list[Any] = [1, 1.0, True, 0.0, -0.0, False, 0, "1", b"1", (1,), (1.0,), ((True,),), ((1,),), ()]
    made = [literal(nodes, value) for value in values]
    assert [literal(nodes, value) for value in values] == made
    assert [n.id for n in made] == list(range(len(values)))
    assert nodes.order == made
    assert repr(made[3]) == "%3"
    assert made[4].param("value") == 0.0


def test_nodes_that_differ_in_one_fact_are_two() -> None:
    nodes = Nodes()
    first = column(nodes, "a")
    others = [column(nodes, "b"), column(nodes, "a", kind="f"), column(nodes, "a", nullable=True)]
    others += [column(nodes, "a", frame=1), column(nodes, "a", inner=first)]
    others += [nodes.intern("neg", (first,), (), "i", False, 0), nodes.intern("neg", (others[0],), (), "i", False, 0)]
    assert len({first.id, *(n.id for n in others)}) == 1 + len(others)
    # Texts of messages make no difference: the first ones stay.
    assert nodes.intern("column", (), (("name", "a"),), "i", False, 0, name="shown", why="because") is first
    assert (first.name, first.why) == ("", "")


def grown(seed: int) -> list[Node]:
    """Return nodes, each made of up to three earlier ones."""
    rng, nodes = random.Random(seed), Nodes()
    made = [column(nodes, str(k)) for k in range(3)]
    for k in range(20):
        args = tuple(rng.sample(made, rng.randint(1, 3)))
        made.append(nodes.intern(f"op{k}", args, (), "i", False, 0))
    return made


def needed(root: Node, given: set[int], found: list[Node]) -> None:
    """The slow way: inputs first, by recursion."""
    if root not in found:
        for arg in () if root.id in given else root.args:
            needed(arg, given, found)
        found.append(root)


@pytest.mark.parametrize("seed", range(20))
def test_a_closure_has_inputs_first_and_each_node_once(seed: int) -> None:
    made = grown(seed)
    rng = random.Random(seed + 1)
    roots, given = rng.sample(made, 3), {n.id for n in rng.sample(made, 3)}
    for stop in (set(), given):
        expected: list[Node] = []
        for root in roots:
            needed(root, stop, expected)
        assert closure(roots, stop) == expected
    below = list(reached(roots[0], lambda n: n.args))
    expected = []
    needed(roots[0], set(), expected)
    assert below[0] is roots[0]
    assert sorted(n.id for n in below) == sorted(n.id for n in expected)


@pytest.mark.parametrize("seed", range(10))
def test_a_layer_is_one_behind_the_deepest_of_what_it_needs(seed: int) -> None:
    made = grown(seed)
    random.Random(seed).shuffle(made)
    found = depths({n: list(n.args) for n in made})
    for node in made:
        assert found[node] == 1 + max((found[a] for a in node.args), default=-1)
    by_layer = layers({n: list(n.args) for n in made})
    assert [[n for n in made if found[n] == k] for k in range(len(by_layer))] == by_layer
    assert layers({}) == []


def test_what_depends_on_itself_has_no_layer() -> None:
    assert layers({"a": ["b", "c"], "b": ["c"], "c": []}) == [["c"], ["b"], ["a"]]
    for circle in ({"a": ["a"]}, {"a": ["b"], "b": ["c"], "c": ["a"]}):
        with pytest.raises(ValueError, match=r"^operator 'a' depends on itself$"):
            depths(circle)
