"""Finds out whether the keys of a field are hashes or plain numbers."""

from __future__ import annotations

from ctrbox.plan.language.node import Node


def hashed_kind(node: Node) -> str | None:
    """Return the kind of value that a sparse feature hashes; "" if it uses whole numbers as keys.

    Return None if a key is made of several values, or of values other than text and whole numbers.
    """
    while node.inner is not None:  # a key that was computed below a join
        node = node.inner
    if node.op == "as_key":
        return ""
    hashed = node.args[0]
    kind = hashed.args[0].kind[-1] if hashed.op == "hash" else ""
    return kind if kind in ("s", "i") else None
