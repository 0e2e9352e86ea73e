"""Which operators an expression becomes, with its converted constants and parameters, or how it is refused.

`whole/expressions.txt` holds expressions, each followed by its indented outcome: ``operator(argument, parameter=…)``,
``value:kind`` for a constant, ``?`` where the value may be null. `python -m tests.plan.language.test_resolved` writes the
outcomes anew.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pyarrow as pa

import ctrbox as cb
from ctrbox import col
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.tables_of_operators import TableSpec
from tests.plan import world

FILE = Path(__file__).parent / "whole/expressions.txt"
LOG = cb.View(
    pa.table(
        {
            "i": [1],
            "f": [1.0],
            "s": ["a"],
            "b": [True],
            "t": [datetime(2026, 1, 1)],
            "ls": [["a"]],
            "li": [[1]],
            "lf": [[1.0]],
            "ni": pa.array([None], pa.int64()),
            "nf": pa.array([None], pa.float64()),
            "ns": pa.array([None], pa.string()),
            "nb": pa.array([None], pa.bool_()),
            "nt": pa.array([None], pa.timestamp("us")),
            "nl": pa.array([None], pa.list_(pa.int64())),
        }
    ),
    name="log",
)


def shown(node: Node) -> str:
    if node.op == "column":
        return node.name
    if node.op == "literal":
        return f"{node.param('value')!r}:{node.kind}"
    parts = [shown(a) for a in node.args]
    for name, value in node.params:
        if isinstance(value, TableSpec):
            data = value.data if isinstance(value.data, tuple | int) else f"of {len(value.data)}"
            value = f"{value.what} {data}"
        parts.append(f"{name}={value}")
    return f"{node.op}({', '.join(parts)})"


def outcome(text: str) -> str:
    """Return what an expression of the file becomes: the filter that asks whether it is null holds it whole."""
    try:
        expression = eval(text, {"cb": cb, "col": col, "datetime": datetime, "world": world})  # noqa: S307
        view = LOG.with_columns(made=expression).filter(col("made").is_null())
        graph = cb.compile(view, cb.FeatureSet(dense={"f": col("f")}), device="cpu").graph
    except cb.errors.PlanError as error:
        return f"PlanError: {error}"
    (made,) = graph.frames[0].filters[0].args
    return shown(made) + (" ?" if made.nullable else "")


def outcomes() -> dict[str, str]:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {text: told.strip() for text, told in zip(lines[::2], lines[1::2], strict=True)}


def test_every_expression_becomes_what_is_written_below_it() -> None:
    kept = outcomes()
    assert len(kept) > 200
    assert {text: outcome(text) for text in kept} == kept


if __name__ == "__main__":
    made = {text: outcome(text) for text in outcomes()}
    FILE.write_text("".join(f"{text}\n    {told}\n" for text, told in made.items()), encoding="utf-8")
