"""Computes sizes: registers on a GPU, columns that are copied to it, and tables that stay there.

Strings and lists are assumed to have an average size. What a plan says exactly is used as it is: the width of a fixed list, the
first five elements, or the length of a vector. No data are read.
"""

from __future__ import annotations

import pyarrow as pa

from ctrbox.columns.kind import arrow_type
from ctrbox.plan.graph.graph import FrameSpec, Graph
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.tables_of_operators import Dictionary, TableSpec

BATCH_ROWS = 65_536
TEXT_BYTES = 24  # of an average string
WORD_BYTES = 6  # of a string in a list
DOCUMENT_BYTES = 180  # of a string that JSON paths are read from; 182 in the synthetic log
LIST_ITEMS = 8  # of an average list
SLOT_BYTES = 16  # of a hash index, which is at most half full
VERSION_BYTES = 16  # of a row in the index of an as-of join; the slot of its key comes on top
ROW_BYTES = 64  # of a stored row, where only the size of a file is known

# These point into what is already there: no bytes of their own.
POINTING = frozenset(
    [
        "gather",
        "json",
        "dictionary_vector",
        "fill",
        "select",
        "strip",
        "prefix",
        "suffix",
        "substring",
        "first",
        "last",
        "get",
    ]
)
# A string that comes out is about as long as the first that went in.
KEEPING_TEXT = frozenset(["fill", "lower", "strip", "replace", "concat", "select"])


class Sizes:
    """Average sizes per row of every node of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._text: dict[int, float] = {}
        self._items: dict[int, float] = {}
        order = graph.typed.nodes.order
        documents: set[int] = set()
        # Numbers ascend from inputs to users: from the top down, what JSON is read from is known before its inputs.
        for node in reversed(order):
            if node.op == "json":
                documents.add(node.args[0].id)
            elif node.id in documents:
                below = node.args if node.op in KEEPING_TEXT else (node.inner,) if node.inner is not None else ()
                documents.update(a.id for a in below if a.kind == "s" and a.op != "literal")
        for node in order:
            self._text[node.id] = DOCUMENT_BYTES if node.id in documents else self._own_text(node)
            self._items[node.id] = self._own_items(node)

    def text(self, node: Node) -> float:
        """Return the bytes of a string, or of a string in a list; 0 for anything else."""
        return self._text.get(node.id, 0.0)

    def items(self, node: Node) -> float:
        """Return the number of elements of a list; 1 for anything else."""
        return self._items.get(node.id, 1.0)

    def _own_text(self, node: Node) -> float:
        if not node.kind.endswith("s"):
            return 0
        if node.kind == "*s":
            return WORD_BYTES
        args = [a for a in node.args if a.kind.endswith("s")]
        match node.op:
            case "literal":
                return len(node.param("value"))
            case "gather" if node.inner is not None:
                return self._text[node.inner.id]
            case "concat":
                return sum(self._text[a.id] for a in args)
            case "fill" | "lower" | "strip" | "replace":
                return self._text[args[0].id]
            case "select":
                return max(self._text[a.id] for a in args)
            case "get":
                return WORD_BYTES
            case "prefix" | "suffix":
                return min(abs(node.param("ints")[0]), self._text[args[0].id])
            case "join":
                return self._items[args[0].id] * (WORD_BYTES + 1)
        return TEXT_BYTES

    def _own_items(self, node: Node) -> float:
        if not node.kind.startswith("*"):
            return 1
        lists = [self._items[a.id] for a in node.args if a.kind.startswith("*")]
        match node.op:
            case "column":
                return int(node.param("width")) or LIST_ITEMS
            case "gather" if node.inner is not None:
                return self._items[node.inner.id]
            case "dictionary_vector":
                return int(node.param("table").data.width)
            case "first" | "last":
                return min(abs(node.param("ints")[0]), lists[0])
            case "cross":
                every = lists[0] * (lists[1] if len(lists) > 1 else 1)
                return min(every, dict(node.params).get("ints", (every,))[0])
            case "ngrams" if not lists:
                return self._text[node.args[0].id]
        return lists[0] if lists else LIST_ITEMS

    # ---- on the GPU
    def variable(self, node: Node) -> float:
        """Return the bytes of a value beyond its entry, wherever they are."""
        if node.kind.startswith("*"):
            return self.items(node) * (entry_bytes(node.kind[1:]) + self.text(node))
        return self.text(node)

    def entry(self, node: Node) -> int:
        """Return the bytes of an entry of a register, including the byte that says whether it is null."""
        return entry_bytes(node.kind) + (1 if node.nullable else 0)

    def register(self, node: Node) -> float:
        """Return the bytes of one row of an operator's result: its entry, and its part of the pool."""
        points = node.op in POINTING or (node.op == "column" and node.kind == "s")
        return self.entry(node) + (0 if points else self.variable(node))

    # ---- between the devices
    def traveling(self, node: Node) -> float:
        """Return the bytes per row of a raw column in memory, or of an operator's result as a column."""
        if node.op == "column":
            source = self.graph.frames[node.frame].sources[node.param("source")].view.source
            type_ = source.schema.field(node.name).type
        else:
            type_ = arrow_type(node.kind)
        return stored_bytes(type_, self.text(node), self.items(node)) + (0.125 if node.nullable else 0)


def stored_bytes(type_: pa.DataType, text: float, items: float) -> float:
    """Return the bytes of a value in Arrow's layout."""
    if pa.types.is_dictionary(type_):
        return float(type_.index_type.bit_width) / 8
    if pa.types.is_fixed_size_list(type_):
        return float(type_.list_size) * stored_bytes(type_.value_type, text, 0)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return (4 if pa.types.is_list(type_) else 8) + items * stored_bytes(type_.value_type, text, 0)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return 4 + text
    if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_):
        return 8 + text
    return float(type_.bit_width) / 8


def entry_bytes(kind: str) -> int:
    """Return the bytes of one entry of a register, which is one row."""
    return 1 if kind == "b" else 16 if kind == "s" or kind.startswith("*") else 8


# ---- tables -----------------------------------------------------------------------------------------------


def records_bytes(graph: Graph, frame: FrameSpec, sizes: Sizes) -> int | None:
    """Return the bytes of the index and rows of a joined view; None if its number of rows is not known."""
    source = frame.view.source
    rows = source.rows
    if rows is None:
        if source.bytes is None:
            return None
        rows = source.bytes // ROW_BYTES
    width = 0.0
    for node in graph.asked[frame.id]:
        width += sizes.entry(node) + sizes.variable(node)
    versions = VERSION_BYTES * rows if frame.time is not None else 0
    return index_bytes(rows) + versions + (rows + 1) * ((int(width) + 7) // 8 * 8)


def index_bytes(entries: int) -> int:
    slots = 16
    while slots < 2 * entries:
        slots *= 2
    return slots * SLOT_BYTES


def table_bytes(spec: TableSpec, graph: Graph) -> int | None:
    """Return the bytes of a table; for a fitted table, the most that it can take."""
    match spec.what:
        case "int_set" | "float_set":
            return index_bytes(len(spec.data))
        case "str_set":
            return index_bytes(len(spec.data)) + sum(map(len, spec.data))
        case "boundaries":
            return 8 * len(spec.data)
        case "dictionary":
            return int(spec.data.bytes)
    fit = graph.fits[int(spec.data)]
    if fit.how == "quantiles":
        return 8 * int(dict(fit.settings)["quantiles"])
    if fit.how == "moments":
        return 16
    rows = graph.frames[0].view.source.rows
    return None if rows is None else index_bytes(rows) + 16 * rows


def described(spec: TableSpec, graph: Graph) -> str:
    """Return a table in words."""
    match spec.what:
        case "dictionary":
            table: Dictionary = spec.data
            values = f"vectors of {table.width}" if table.width else "ids"
            return f"a dictionary of {len(table):,} words to {values}"
        case "fit":
            return f"what was fitted ({graph.fits[int(spec.data)].how})"
        case "boundaries":
            return f"{len(spec.data)} boundaries"
    return f"a set of {len(spec.data):,}"
