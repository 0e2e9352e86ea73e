"""Defines the operators of a plan as typed nodes of a graph. Equal nodes are one node.

A node belongs to a frame: the log (0) or a dimension view (1, 2, …). ``gather`` is the only node whose value comes from another
frame: ``inner`` is computed once per row of that frame, and ``args[0]`` gives the row.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

LITERAL = -1  # the frame of constants: they are at home everywhere


@dataclass(frozen=True, eq=False)
class Node:
    id: int
    op: str
    args: tuple[Node, ...]
    params: tuple[tuple[str, Any], ...]
    kind: str
    nullable: bool
    frame: int
    inner: Node | None = None
    name: str = ""  # of a column, for messages
    why: str = ""  # why it may be null, where the null begins

    def __repr__(self) -> str:
        return f"%{self.id}"

    def param(self, name: str) -> Any:
        return dict(self.params)[name]


@dataclass
class Nodes:
    """Makes nodes. If an equal node exists, it is returned instead of a new one."""

    known: dict[Any, Node] = field(default_factory=dict)
    order: list[Node] = field(default_factory=list)

    def intern(
        self,
        op: str,
        args: tuple[Node, ...],
        params: tuple[tuple[str, Any], ...],
        kind: str,
        nullable: bool,
        frame: int,
        inner: Node | None = None,
        name: str = "",
        why: str = "",
    ) -> Node:
        # 1, 1.0 and True are equal in Python and different literals here, so types are part of the key.
        marked = tuple((k, marked_value(v)) for k, v in params)
        key = (op, tuple(a.id for a in args), marked, kind, nullable, frame, inner.id if inner else None)
        found = self.known.get(key)
        if found is None:
            found = Node(len(self.order), op, args, params, kind, nullable, frame, inner, name, why)
            self.known[key] = found
            self.order.append(found)
        return found


def marked_value(value: Any) -> Any:
    """Return a parameter as a key that differs for 1, 1.0 and True, and for 0.0 and -0.0."""
    if isinstance(value, tuple):
        return tuple(marked_value(v) for v in value)
    return type(value).__name__, repr(value) if isinstance(value, float) else value


def reached(begin: Node, below: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """Yield ``begin`` and all nodes that ``below`` leads to from it, each once. Of the known nodes, the newest comes first."""
    seen: set[int] = set()
    waiting = [begin]
    while waiting:
        node = waiting.pop()
        if node.id not in seen:
            seen.add(node.id)
            yield node
            waiting += below(node)


def closure(roots: Iterable[Node], given: Container[int] = ()) -> list[Node]:
    """Return everything that the roots need inside their frame, inputs first. Nodes in ``given`` (ids) need nothing."""
    seen: set[int] = set()
    out: list[Node] = []
    stack: list[tuple[Node, bool]] = [(r, False) for r in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if done:
            out.append(node)
        elif node.id not in seen:
            seen.add(node.id)
            stack.append((node, True))
            if node.id not in given:
                stack.extend((a, False) for a in reversed(node.args) if a.id not in seen)
    return out
