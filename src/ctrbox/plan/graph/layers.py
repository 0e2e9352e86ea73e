"""Sorts operators into layers by their depth in the graph (Figure 4 of the FeatureBox paper).

Operators of a layer do not depend on each other. A layer is therefore started as one piece of work, and waited for once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def depths(dependencies: Mapping[T, Sequence[T]]) -> dict[T, int]:
    """Return the layer of each operator, from 0. Raises a ValueError that names an operator if there is a cycle."""
    depth: dict[T, int] = {}
    for start in dependencies:
        stack = [(start, iter(dependencies[start]))] if start not in depth else []
        path = {start}
        while stack:
            here, rest = stack[-1]
            for need in rest:
                if need in path:
                    raise ValueError(f"operator {need!r} depends on itself")
                if need not in depth:
                    path.add(need)
                    stack.append((need, iter(dependencies[need])))
                    break
            else:
                depth[here] = 1 + max((depth[n] for n in dependencies[here]), default=-1)
                path.discard(here)
                stack.pop()
    return depth


def layers(dependencies: Mapping[T, Sequence[T]]) -> list[list[T]]:
    """Return operators layer by layer, in the given order within a layer."""
    depth = depths(dependencies)
    result: list[list[T]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for operator in dependencies:
        result[depth[operator]].append(operator)
    return result
