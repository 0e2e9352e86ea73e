"""Collects the facts about a plan: what is read, and where, in which layer and why each operator runs.

`explain_json` collects the facts as plain data, and `explain` prints them as a page (explain_text.py). Both read no row and need
no GPU. The same plan, device and measurements give the same page.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ctrbox import _native
from ctrbox.columns.kind import name_of
from ctrbox.plan.drawing.explain_text import page
from ctrbox.plan.graph.graph import FrameSpec, Graph, Output
from ctrbox.plan.language.expressions import Time
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.tables_of_operators import Dictionary, TableSpec
from ctrbox.plan.placement.device_description import gpu_decodes_parquet
from ctrbox.plan.placement.expected_speed import Expected, expected
from ctrbox.plan.placement.metakernels import MetaKernel, launches, metakernels
from ctrbox.plan.placement.operator_costs import Measured
from ctrbox.plan.placement.placement import SLOTS, Placed, Placement, live_frames, place
from ctrbox.views.parquet_chunks import readable, why_the_cpu

SHOWN_VALUES = 4  # of a set or of boundaries

# "needed_bytes" that a joined view would take in memory, "memory_bytes" that it takes; on a disk its "folder" and "file_bytes".
Loaded = Mapping[int, Mapping[str, Any]]


class Words:
    """Writes the operators of one graph in a short form."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        spaces = {o.space for o in graph.outputs if o.role == "sparse" and o.space}
        self.spaces = {
            signed(_native.salt(space.encode("utf-8", "surrogateescape"))): space for space in sorted(spaces)
        }
        self.users = users(graph)
        self.names = [*(o.name for o in graph.outputs), "(filter)", "(join key)", "(fit)"]

    def operator(self, node: Node) -> str:
        """Return the operator without its number: ``split(%7, " ")``."""
        frames = self.graph.frames
        if node.op == "column":
            return f"column {node.name}"
        if node.op == "row":
            as_of = f" as of {self.value(node.args[1])}" if len(node.args) > 1 else ""
            return f"row of {frames[node.param('frame')].name}({self.value(node.args[0])}{as_of})"
        if node.op == "gather":
            return f"{frames[node.args[0].param('frame')].name}[{node.args[0]}].{node.inner}"
        if node.op == "found":
            return f"found({node.args[0]})"
        parts = [self.value(a) for a in node.args] + list(self.parameters(node))
        name = node.param("function").name if node.op == "user" else node.op
        return f"{name}({', '.join(parts)})"

    def value(self, node: Node) -> str:
        return constant(node.param("value")) if node.op == "literal" else f"{node}"

    def parameters(self, node: Node) -> Iterable[str]:
        params = dict(node.params)
        for number in params.get("ints", ()):
            space = self.spaces.get(number) if node.op == "key" else None
            yield f"{space!r}" if space is not None else f"{number}"
        for number in params.get("floats", ()):
            yield f"{number:g}"
        for text in params.get("texts", ()):
            yield constant(text)
        if "path" in params:
            yield params["path"]
        table = params.get("table")
        if isinstance(table, TableSpec):
            yield self.table(table)

    def table(self, spec: TableSpec) -> str:
        if isinstance(spec.data, Dictionary):
            return f"{len(spec.data):,} words"
        if spec.what == "fit":
            fit = self.graph.fits[int(spec.data)]
            settings = ", ".join(f"{value}" for name, value in fit.settings if name == "quantiles")
            return f"fitted {settings + ' ' if settings else ''}{fit.how}"
        values = [f"{v:g}" if isinstance(v, float) else constant(v) for v in spec.data[:SHOWN_VALUES]]
        if len(spec.data) > SHOWN_VALUES:
            values.append(f"… {len(spec.data)}")
        brackets = "[]" if spec.what == "boundaries" else "{}"
        return brackets[0] + ", ".join(values) + brackets[1]

    def features(self, node: Node) -> list[str]:
        """Return the outputs for which an operator is computed, in their order; then filters, keys and fits."""
        mask, found = self.users.get(node.id, 0), []
        while mask:
            lowest = mask & -mask
            found.append(self.names[lowest.bit_length() - 1])
            mask ^= lowest
        return found


def signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def constant(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, Time):
        return f"{int(value)} µs"
    if isinstance(value, str):
        shown = value if len(value) <= 24 else value[:23] + "…"
        return json.dumps(shown, ensure_ascii=not shown.isprintable())
    return "[]" if value == () else f"{value!r}"


def users(graph: Graph) -> dict[int, int]:
    """Return a bit mask for each node: the outputs for which it is computed, then bits for filters, keys and fits."""
    masks: dict[int, int] = {}
    beyond = len(graph.outputs)
    for k, output in enumerate(graph.outputs):
        masks[output.node.id] = masks.get(output.node.id, 0) | 1 << k
    for frame in graph.frames:
        for node in frame.filters:
            masks[node.id] = masks.get(node.id, 0) | 1 << beyond
        for key in (frame.hash, frame.time):
            if key is not None:
                masks[key.id] = masks.get(key.id, 0) | 2 << beyond
    for fit in graph.fits:
        for node in fit.inputs:
            masks[node.id] = masks.get(node.id, 0) | 4 << beyond
    # Numbers ascend from inputs to users, so one sweep from the top is enough.
    for node in reversed(graph.typed.nodes.order):
        mask = masks.get(node.id, 0)
        if mask:
            for below in (*node.args, *((node.inner,) if node.inner is not None else ())):
                masks[below.id] = masks.get(below.id, 0) | mask
    return masks


# ---- the facts --------------------------------------------------------------------------------------------


def explain(
    graph: Graph, device: Any = "auto", *, measured: Measured | None = None, loaded: Loaded | None = None
) -> str:
    """Return the plan as a page of plain text. ``measured`` and ``loaded`` are as for `explain_json`."""
    return page(explain_json(graph, device, measured=measured, loaded=loaded))


def explain_json(
    graph: Graph, device: Any = "auto", *, measured: Measured | None = None, loaded: Loaded | None = None
) -> dict[str, Any]:
    """Return everything that `explain` says, as data for JSON.

    ``measured``: nanoseconds per row by device and operator, ``{"cuda": {"json": 2.5, "%12": 0.1, "layer_3": 4.0}}``. They are
    shown beside the estimates, and replace them when the device of an operator is chosen. ``loaded``: where the joined views are
    stored that have been loaded, by the number of their frame.
    """
    placement, words = place(graph, device, measured), Words(graph)
    live = {f.id for f in live_frames(graph)}
    rows = graph.frames[0].view.source.rows
    kernels = metakernels(graph, placement)
    facts = {
        "device": placement.device.kind,
        "memory_bytes": placement.device.budget,
        "note": placement.device.note,
        "frames": [_frame(graph, f, f.id in live, rows, placement, words, loaded or {}) for f in graph.frames],
        "outputs": [_output(o) for o in graph.outputs],
        "sharing": _sharing(graph),
        "fits": [{"how": f.how, "inputs": [str(n) for n in f.inputs], **dict(f.settings)} for f in graph.fits],
        "placement": _placement(placement, words),
    }
    if placement.device.kind == "cuda":
        facts["cores"] = placement.device.cores
        facts["pcie_bytes_s"] = placement.device.pcie * 1e9
        facts["metakernels"] = [_kernel(k) for k in kernels]
        facts["launches"] = launches(graph, kernels)
        facts["expected"] = _expected(placement, expected(graph, placement, kernels))
    return facts


def _placement(placement: Placement, words: Words) -> dict[str, Any]:
    found: dict[str, Any] = {
        "used_bytes": placement.used_bytes,
        "tables": [
            {"what": t.what, "device": t.device, "bytes": t.bytes, "reason": t.reason} for t in placement.tables
        ],
        "copies": [
            {
                "operator": str(c.node),
                "what": words.operator(c.node),
                "raw": c.node.op == "column",
                "way": c.way,
                "bytes": c.bytes,
                "row_bytes": c.row_bytes,
            }
            for c in placement.copies
        ],
    }
    if placement.device.kind == "cuda":
        found["memory"] = asdict(placement.memory)
        found["slots"], found["chunk_rows"], found["filters"] = SLOTS, placement.chunk_rows, placement.filters
    return found


def _kernel(kernel: MetaKernel) -> dict[str, Any]:
    # What makes one mask of several filters is no operator of the plan and has no number.
    named = {n.id: str(n) if n.id >= 0 else "mask" for n in kernel.operators}
    counts: dict[str, int] = {}
    loads = {n.id for n in kernel.loads}
    for n in kernel.operators:
        if n.id not in loads:
            counts[n.op] = counts.get(n.op, 0) + 1
    return {
        "name": kernel.name,
        "operators": [named[n.id] for n in kernel.operators],
        "loads": len(loads),
        "counts": counts,
        "groups": [{"how": g.how, "operators": [named[n.id] for n in g.operators]} for g in kernel.groups],
        "row_bytes": kernel.row_bytes,
        "estimated_ns": kernel.estimated_ns,
        "measured_ns": kernel.measured_ns,
    }


def _expected(placement: Placement, found: Expected | None) -> dict[str, Any] | None:
    if found is None:
        return None
    slowest = found.parts[found.bottleneck]
    return {
        "parts_ns": found.parts,
        "bottleneck": found.bottleneck,
        "rows_s": 1e9 / slowest if slowest else None,
        "copy_row_bytes": sum(c.row_bytes for c in placement.copies),
        "cpu_operators": sum(n.op != "column" for n in placement.cpu),
    }


def _output(o: Output) -> dict[str, Any]:
    found: dict[str, Any] = {
        "role": o.role,
        "name": o.name,
        "node": str(o.node),
        "kind": name_of(o.node.kind),
    }
    if o.role == "sparse":
        found["space"] = o.space
    if o.width > 1:
        found["width"] = o.width
    return found


def _frame(
    graph: Graph,
    frame: FrameSpec,
    live: bool,
    log_rows: int | None,
    placement: Placement,
    words: Words,
    loaded: Loaded,
) -> dict[str, Any]:
    layers = graph.layers(frame) if live else []
    rows = frame.view.source.rows
    hoisted = [n for layer in layers for n in layer if n.op != "column"] if frame.id else []
    factor = log_rows / rows if frame.id and log_rows and rows else None
    return {
        "name": frame.name,
        "role": frame.role,
        "read": live,
        "key": list(frame.key),
        "sources": [_source(graph, frame, k, live, placement) for k in range(len(frame.sources))],
        "memory": _memory(frame, loaded) if frame.id else None,
        "filters": [words.operator(n) for n in frame.filters],
        "hoisted": len(hoisted),
        "hoisted_factor": factor,
        "layers": [
            [_operator(n, placement.operators[n.id], words, placement.device.kind == "cuda") for n in layer]
            for layer in layers
        ],
    }


def _memory(frame: FrameSpec, loaded: Loaded) -> dict[str, Any]:
    """Return the memory budget of a joined view and, if it is loaded, where it is stored."""
    found: dict[str, Any] = {
        "budget_bytes": frame.budget_bytes,
        "spill": None if frame.spill is None else frame.spill or tempfile.gettempdir(),
        "loaded": frame.id in loaded,
    }
    return {**found, **loaded.get(frame.id, {})}


def _source(graph: Graph, frame: FrameSpec, place_: int, live: bool, placement: Placement) -> dict[str, Any]:
    spec = frame.sources[place_]
    read = graph.columns(frame, place_) if live else []
    ids = [spec.on] if spec.on else list(frame.key) if len(frame.sources) > 1 else []
    read += [name for name in ids if name not in read]
    # Columns that only histories are computed from are read as well.
    read += [name for name in getattr(spec.view.source, "read_for_histories", ()) if live and name not in read]
    names = spec.view.source.schema.names
    text = getattr(spec.view.source, "text_options", None)
    return {
        "name": spec.view.name,
        "source": spec.view.source.name,
        "rows": spec.view.source.rows,
        "bytes": spec.view.source.bytes,
        "columns_read": read,
        "columns_unread": [n for n in names if n not in read],
        "merged_on": spec.on,
        "decoded_by_cpu": _decoded_by_cpu(spec.view.source, read, ids, placement) if frame.id == 0 else None,
        "text": text.given() if text is not None else {},
    }


def _decoded_by_cpu(source: Any, read: list[str], ids: list[str], placement: Placement) -> dict[str, str] | None:
    """Return why the CPU decodes some columns of these files although the GPU decodes the others; None if it decodes none."""
    if placement.device.kind != "cuda" or not gpu_decodes_parquet() or not readable(source):
        return None
    if placement.carried or placement.filters == "cpu":
        return dict.fromkeys(read, "may be read by operators that run on the CPU")
    reasons = dict.fromkeys(ids, "holds the ids by which views are merged")
    reasons |= {name: why_the_cpu(source, name) for name in read if name not in ids}
    return {name: reason for name, reason in reasons.items() if reason}


def _operator(node: Node, placed: Placed, words: Words, weighed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": str(node),
        "op": node.op,
        "text": words.operator(node),
        "args": [str(a) for a in node.args if a.op != "literal"],
        "gathers": str(node.inner) if node.inner is not None else None,
        "kind": name_of(node.kind),
        "nullable": node.nullable,
        "features": words.features(node),
        "device": placed.device,
        "reason": placed.reason,
        "bytes": placed.bytes,
    }
    if weighed:
        found |= {"estimated_ns": placed.estimated_ns, "measured_ns": placed.measured_ns, "again": placed.again}
    return found


def _sharing(graph: Graph) -> dict[str, int]:
    """Return the number of operators without sharing, when every feature is computed by itself, and the number with sharing."""
    live = live_frames(graph)
    kept = {n.id for f in live for n in graph.nodes(f)}
    sizes: dict[int, int] = {}
    dropped = 0
    for node in graph.typed.nodes.order:
        own = node.op not in ("column", "literal", "gather")
        # Each use of a joined column would look it up and compute it anew.
        below = sum(sizes[a.id] for a in (*node.args, *([node.inner] if node.inner is not None else [])))
        sizes[node.id] = below + own
        dropped += own and node.id not in kept
    roots = [o.node for o in graph.outputs] + [n for f in live for n in graph.roots(f)]
    counted = [n for n in graph.typed.nodes.order if n.id in kept and n.op not in ("column", "literal", "gather")]
    return {"written": sum(sizes[n.id] for n in roots), "kept": len(counted), "dropped": dropped}
