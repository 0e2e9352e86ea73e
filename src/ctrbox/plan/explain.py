"""A plan in words: what is read, what is computed where, in which layers, and why there.

`explain_json` gathers the facts as plain data, `explain` sets them as a page. Reads no row; the same plan and
device give the same page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ctrbox import _native
from ctrbox.columns.kind import name_of
from ctrbox.plan.expr import Time
from ctrbox.plan.graph import FrameSpec, Graph, Output
from ctrbox.plan.node import Node
from ctrbox.plan.placement import Placed, Placement, live_frames, place, shown_bytes
from ctrbox.plan.tables import Dictionary, TableSpec

WIDTH = 118  # of the page; a list of features is cut there
CALL_WIDTH = 46  # of an operator's column
SHOWN_VALUES = 4  # of a set or of boundaries


class Words:
    """Writes operators of one graph compactly."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        spaces = {o.space for o in graph.outputs if o.role == "sparse" and o.space}
        self.spaces = {
            signed(_native.salt(space.encode("utf-8", "surrogateescape"))): space for space in sorted(spaces)
        }
        self.users = users(graph)
        self.names = [*(o.name for o in graph.outputs), "(filter)", "(join key)", "(fit)"]

    def operator(self, node: Node) -> str:
        """Without its number: ``split(%7, " ")``."""
        frames = self.graph.frames
        if node.op == "column":
            return f"column {node.name}"
        if node.op == "row":
            return f"row of {frames[node.param('frame')].name}({self.value(node.args[0])})"
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
        """The outputs that an operator is computed for, in their order; then filters, keys, fits."""
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
    """For each node a bit mask of the outputs it is computed for; then bits for filters, keys and fits."""
    masks: dict[int, int] = {}
    beyond = len(graph.outputs)
    for k, output in enumerate(graph.outputs):
        masks[output.node.id] = masks.get(output.node.id, 0) | 1 << k
    for frame in graph.frames:
        for node in frame.filters:
            masks[node.id] = masks.get(node.id, 0) | 1 << beyond
        if frame.hash is not None:
            masks[frame.hash.id] = masks.get(frame.hash.id, 0) | 2 << beyond
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


def explain_json(graph: Graph, device: Any = "auto") -> dict[str, Any]:
    """Everything `explain` says, as data that JSON can hold."""
    placement, words = place(graph, device), Words(graph)
    live = {f.id for f in live_frames(graph)}
    rows = graph.frames[0].view.source.rows
    return {
        "device": placement.device.kind,
        "memory_bytes": placement.device.budget,
        "note": placement.device.note,
        "frames": [_frame(graph, f, f.id in live, rows, placement, words) for f in graph.frames],
        "outputs": [_output(o) for o in graph.outputs],
        "sharing": _sharing(graph),
        "fits": [{"how": f.how, "inputs": [str(n) for n in f.inputs], **dict(f.settings)} for f in graph.fits],
        "placement": {
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
                    "when": c.when,
                }
                for c in placement.copies
            ],
        },
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
    graph: Graph, frame: FrameSpec, live: bool, log_rows: int | None, placement: Placement, words: Words
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
        "sources": [_source(graph, frame, k, live) for k in range(len(frame.sources))],
        "filters": [words.operator(n) for n in frame.filters],
        "hoisted": len(hoisted),
        "hoisted_factor": factor,
        "layers": [[_operator(n, placement.operators[n.id], words) for n in layer] for layer in layers],
    }


def _source(graph: Graph, frame: FrameSpec, place_: int, live: bool) -> dict[str, Any]:
    spec = frame.sources[place_]
    read = graph.columns(frame, place_) if live else []
    ids = [spec.on] if spec.on else list(frame.key) if len(frame.sources) > 1 else []
    read += [name for name in ids if name not in read]
    names = spec.view.source.schema.names
    return {
        "name": spec.view.name,
        "source": spec.view.source.name,
        "rows": spec.view.source.rows,
        "bytes": spec.view.source.bytes,
        "columns_read": read,
        "columns_unread": [n for n in names if n not in read],
        "merged_on": spec.on,
    }


def _operator(node: Node, placed: Placed, words: Words) -> dict[str, Any]:
    return {
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


def _sharing(graph: Graph) -> dict[str, int]:
    """Operators if every feature were computed by itself, and how many are left."""
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


# ---- the page ---------------------------------------------------------------------------------------------


def explain(graph: Graph, device: Any = "auto") -> str:
    """The plan as a page of plain text."""
    facts = explain_json(graph, device)
    lines = _head(facts)
    for frame in facts["frames"]:
        lines += ["", *_frame_lines(frame, facts["device"] == "cuda")]
    lines += ["", *_placement_lines(facts)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _head(facts: dict[str, Any]) -> list[str]:
    roles = [o["role"] for o in facts["outputs"]]
    parts = [f"{roles.count(r)} {r}" for r in ("sparse", "dense", "column") if r in roles]
    parts += [r for r in ("label", "weight", "group") if r in roles]
    sources = [s for f in facts["frames"] for s in f["sources"]]
    read = sum(len(s["columns_read"]) for s in sources)
    total = read + sum(len(s["columns_unread"]) for s in sources)
    sharing = facts["sharing"]
    dropped = f"; {sharing['dropped']:,} that nothing needs dropped" if sharing["dropped"] else ""
    layers = [len(f["layers"]) for f in facts["frames"] if f["read"]]
    lines = [
        f"Features   {', '.join(parts)}",
        f"Operators  {sharing['written']:,} as the features are written, {sharing['kept']:,} after sharing "
        f"equal ones{dropped}",
        f"Columns    {read:,} read of {total:,}",
        f"Layers     {layers[0]} of the log"
        + (f", {', '.join(map(str, layers[1:]))} of joined views" if layers[1:] else ""),
        f"Device     {facts['device']}"
        + (f" with {shown_bytes(facts['memory_bytes'])}" if facts["device"] == "cuda" else ""),
    ]
    if facts["note"]:
        lines.append(f"           {facts['note']}")
    for fit in facts["fits"]:
        settings = ", ".join(f"{k} {v}" for k, v in fit.items() if k not in ("how", "inputs"))
        lines.append(f"Fitted     {fit['how']} of {', '.join(fit['inputs'])}{f' ({settings})' if settings else ''}")
    return lines


def _frame_lines(frame: dict[str, Any], placed: bool) -> list[str]:
    role = {"log": "the log", "left": "joined (left)", "inner": "joined (inner)"}[frame["role"]]
    title = f"── {frame['name']}: {role} "
    lines = [title + "─" * max(3, WIDTH - len(title))]
    for source in frame["sources"]:
        if source["merged_on"]:
            lines.append(f"   merged by {source['merged_on']}, row by row, with {source['name']}:")
        rows = "rows unknown" if source["rows"] is None else f"{source['rows']:,} rows"
        size = "" if source["bytes"] is None else f", {shown_bytes(source['bytes'])}"
        count, unread = len(source["columns_read"]), len(source["columns_unread"])
        lines.append(f"   {source['source']}  {rows}{size}, {count} of {count + unread} columns read")
        if unread:
            lines.append(cut("   never read: " + ", ".join(source["columns_unread"])))
    if not frame["read"]:
        return [*lines, "   nothing needs it: it is not read"]
    lines += [cut(f"   filter: {text}") for text in frame["filters"]]
    if frame["hoisted"]:
        factor = frame["hoisted_factor"]
        saved = "" if factor is None else f" (the log has {factor:,.1f} rows for each)"
        lines.append(f"   hoisted below the join: {frame['hoisted']} operators, once a row of this view{saved}")
    return lines + _layer_lines(frame["layers"], placed)


def _layer_lines(layers: list[list[dict[str, Any]]], placed: bool) -> list[str]:
    every = [n for layer in layers for n in layer]
    number = max((len(n["id"]) for n in every), default=0)
    call = min(CALL_WIDTH, max((len(n["text"]) for n in every), default=0))
    lines = []
    for k, layer in enumerate(layers):
        lines.append(f"   layer {k}")
        for n in layer:
            kind = n["kind"] + ("?" if n["nullable"] else "")
            text = n["text"] if len(n["text"]) <= call else n["text"][: call - 1] + "…"
            line = f"     {n['id']:>{number}} = {text:<{call}}  {kind:<11}"
            if placed:
                line += f" {'GPU' if n['device'] == 'cuda' else 'CPU'}"
            lines.append(line + listed(n["features"], WIDTH - len(line)))
    return lines


def _placement_lines(facts: dict[str, Any]) -> list[str]:
    lines = [(title := "── Placement ") + "─" * (WIDTH - len(title))]
    placement, gpu = facts["placement"], facts["device"] == "cuda"
    operators = [n for f in facts["frames"] for layer in f["layers"] for n in layer]
    if gpu:
        lines.append(
            f"   {shown_bytes(placement['used_bytes'])} of {shown_bytes(facts['memory_bytes'])} used: "
            "registers for a batch of 65,536 rows, and tables"
        )
    for place_ in ("cuda", "cpu"):
        mine = [n for n in operators if n["device"] == place_]
        reasons: dict[str, list[dict[str, Any]]] = {}
        for n in mine:
            reasons.setdefault(n["reason"], []).append(n)
        for reason, group in reasons.items():
            some = listed([n["id"] for n in group], 48, arrow="")
            name = "GPU" if place_ == "cuda" else "CPU"
            lines.append(cut(f"   {name}  {len(group):>4}  {reason}:{some}"))
    if placement["tables"]:
        lines.append("   tables")
    width = max((len(t["what"]) for t in placement["tables"]), default=0)
    for t in placement["tables"]:
        where = "GPU" if t["device"] == "cuda" else "CPU"
        reason = f"  {t['reason']}" if t["reason"] else ""
        lines.append(cut(f"     {where}  {t['what']:<{width}}  {shown_bytes(t['bytes']):>9}{reason}"))
    return lines + _copy_lines(placement["copies"])


def _copy_lines(copies: list[dict[str, Any]]) -> list[str]:
    if not copies:
        return []
    lines = ["   copies between devices"]
    for when, words in (("batch", "a batch"), ("load", "once, when loaded")):
        raw = [c for c in copies if c["when"] == when and c["raw"]]
        if raw:
            total = shown_bytes(sum(c["bytes"] for c in raw))
            lines.append(f"     H2D  {total:>9} {words}  {len(raw)} raw columns")
        for c in copies:
            if c["when"] == when and not c["raw"]:
                size = shown_bytes(c["bytes"])
                lines.append(cut(f"     {c['way']}  {size:>9} {words}  {c['operator']} = {c['what']}"))
    return lines


def cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def listed(names: list[str], room: int, arrow: str = " →") -> str:
    """As many names as there is room for, and how many more."""
    shown = arrow
    for k, name in enumerate(names):
        more = f" +{len(names) - k}"
        piece = (" " if k == 0 else ", ") + name
        last = k == len(names) - 1
        if len(shown) + len(piece) + (0 if last else len(more)) > room and k:
            return shown + more
        shown += piece
    return shown if names else ""
