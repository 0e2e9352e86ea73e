"""Find out whether the keys of a field are hashes or plain numbers."""

from __future__ import annotations

from ctrbox.plan.node import Node


def hashed_kind(node: Node) -> str | None:
    """Return the kind of value that a field hashes, "" where it takes whole numbers as keys; None where a key is of several."""
    while node.op not in ("key", "as_key"):
        inner = node.inner if node.op == "gather" else next(iter(node.args), None)
        if inner is None or not inner.kind.endswith("k"):
            return None
        node = inner
    if node.op == "as_key":
        return ""
    value = node.args[0].args[0] if node.args[0].op == "hash" else None
    return value.kind[-1] if value is not None and value.kind[-1] in "si" else None
