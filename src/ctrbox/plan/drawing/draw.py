"""Draws a plan as a self-contained SVG file.

A lane is a view, a row of a lane is a layer, and a box is an operator. Joined views are above the log, side by side as far as the
width of a page allows, so that every curve runs down. A layer with many operators takes several lines. Features are at the
bottom. In a large plan, operators that have the same part are one box, marked ×n. Hovering over a box shows the operators that it
represents.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from math import fsum
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from ctrbox.columns.kind import name_of
from ctrbox.files.urls import local_path
from ctrbox.plan.drawing.explain import Words
from ctrbox.plan.graph.graph import FrameSpec, Graph
from ctrbox.plan.language.node import Node
from ctrbox.plan.placement.placement import Placement, live_frames, place, shown_bytes

# What a reader can take in, box by box; larger plans are grouped, ever more coarsely.
MOST_BOXES = (90, 220)

BOX_W, BOX_H, GAP_X, GAP_Y = 122, 34, 10, 10
BAND_GAP = 30  # between layers, for the curves
LANE_LEFT, LANE_RIGHT, LANE_GAP, LANE_HEAD = 58, 16, 28, 46
LOG_COLUMNS, VIEW_COLUMNS = 7, 3
PAGE = 1_060  # pixels across: at the width of a page the text of a box stays readable
LEGEND_H = 22
CHIP_H, CHIP_GAP, CHARACTER = 20, 6, 6.1
MOST_LINKED = 90  # features that get a curve each
MARGIN = 24

FAMILIES = {  # fill, stroke
    "raw column": ("#eceff1", "#90a4ae"),
    "cleaning": ("#fff4d6", "#d9a021"),
    "text and JSON": ("#e0f0fc", "#3c8dc5"),
    "lists": ("#daf2ec", "#249a7c"),
    "numbers": ("#ece6f9", "#7a57c4"),
    "time": ("#fde7dc", "#d9682f"),
    "keys": ("#e6f1da", "#5f9130"),
    "joins": ("#dbe4f8", "#3c5db4"),
    "tables": ("#fae0ec", "#c43d80"),
    "Python": ("#f6d9d9", "#b23333"),
}
MEMBERS = {
    "raw column": "column",
    "cleaning": "fill is_null cast_i cast_f cast_s cast_b cast_t select is_nan",
    "text and JSON": "json lower strip prefix suffix substring contains starts_with ends_with replace concat "
    "byte_length edit_distance",
    "lists": "split words ngrams first last get join distinct overlap_count overlap_jaccard",
    "time": "hour minute weekday day month year epoch_day age",
    "keys": "hash key cross",
    "joins": "row gather found",
    "tables": "dictionary_id dictionary_maybe dictionary_vector history_shows history_clicks history_rate "
    "is_in bucketize standardize",
    "Python": "user",
}
FAMILY = {op: family for family, ops in MEMBERS.items() for op in ops.split()}
ROLES = {
    "sparse": ("#5f9130", "#ffffff"),
    "dense": ("#7a57c4", "#ffffff"),
    "label": ("#37474f", "#ffffff"),
    "weight": ("#37474f", "#ffffff"),
    "task": ("#37474f", "#ffffff"),
    "observed": ("#90a4ae", "#ffffff"),
    "delay": ("#90a4ae", "#ffffff"),
    "elapsed": ("#90a4ae", "#ffffff"),
    "group": ("#37474f", "#ffffff"),
    "column": ("#90a4ae", "#ffffff"),
}
COPY = "#e05a00"
FORBIDDEN = re.compile("[\ud800-\udfff\ufffe\uffff]")  # in XML


@dataclass
class Box:
    """One operator, or several that have the same part."""

    nodes: list[Node]
    frame: int
    layer: int
    label: str
    about: str
    tip: str
    family: str
    device: str
    above: list[Box] = field(default_factory=list)  # what it reads in its own lane
    gathered: list[Box] = field(default_factory=list)  # what it takes from another lane
    below: list[Box] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0


@dataclass
class Chip:
    """A feature."""

    box: Box
    role: str
    name: str
    width: float
    x: float = 0.0
    y: float = 0.0


@dataclass
class Lane:
    frame: FrameSpec
    layers: list[list[Box]]
    columns: int
    shift: int = 0  # the row at which layer 0 is drawn
    x: float = 0.0

    @property
    def width(self) -> float:
        return self.columns * (BOX_W + GAP_X) - GAP_X + LANE_LEFT + LANE_RIGHT

    def lines(self, row: int) -> int:
        """Return the number of lines of boxes in a row of the picture."""
        layer = row - self.shift
        return -(-len(self.layers[layer]) // self.columns) if 0 <= layer < len(self.layers) else 0


def draw(graph: Graph, path: str | os.PathLike[str], device: Any = "auto") -> None:
    """Write the picture of a plan, placed on a device, to an SVG file. The file is written under a temporary name and renamed."""
    target = local_path(path, "the drawing of a plan")
    text = picture(graph, device).encode("utf-8", "backslashreplace")
    handle, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(aside).chmod(0o666 & ~mask)
        Path(aside).replace(target)
    finally:
        with suppress(OSError):
            Path(aside).unlink()


def for_notebook(title: str, graph: Graph, device: Any) -> str:
    """Return the picture of a plan below a title, as HTML."""
    from ctrbox.show.notebook import framed, image

    return framed(title, image(picture(graph, device), title))


def picture(graph: Graph, device: Any = "auto") -> str:
    """Return the text of the SVG file."""
    placement = place(graph, device)
    boxes, lanes = _boxes(graph, placement)
    return _Page(graph, placement, boxes, lanes).text()


# ---- what is drawn ----------------------------------------------------------------------------------------


def _boxes(graph: Graph, placement: Placement) -> tuple[dict[int, Box], list[Lane]]:
    frames = live_frames(graph)
    layers = {f.id: graph.layers(f) for f in frames}
    where = {n.id: (f.id, k) for f in frames for k, layer in enumerate(layers[f.id]) for n in layer}
    parts = _parts(graph, layers, where, placement)
    words = Words(graph)
    boxes: dict[int, Box] = {}
    lanes = []
    for frame in frames:
        made: list[list[Box]] = []
        for k, layer in enumerate(layers[frame.id]):
            groups: dict[int, list[Node]] = {}
            for node in layer:
                groups.setdefault(parts[node.id], []).append(node)
            made.append([_box(nodes, frame.id, k, graph, placement, words) for nodes in groups.values()])
            for box in made[-1]:
                boxes.update((n.id, box) for n in box.nodes)
        widest = max((len(layer) for layer in made), default=1)
        lanes.append(Lane(frame, made, max(1, min(widest, VIEW_COLUMNS if frame.id else LOG_COLUMNS))))
    for box in {id(b): b for b in boxes.values()}.values():
        for node in box.nodes:
            for arg in node.args:
                if arg.id in boxes and boxes[arg.id] not in box.above:
                    box.above.append(boxes[arg.id])
                    boxes[arg.id].below.append(box)
            if node.inner is not None and node.inner.id in boxes and boxes[node.inner.id] not in box.gathered:
                box.gathered.append(boxes[node.inner.id])
    return boxes, lanes


def _parts(
    graph: Graph,
    layers: dict[int, list[list[Node]]],
    where: dict[int, tuple[int, int]],
    placement: Placement,
) -> dict[int, int]:
    """Return a number for each node; nodes that are drawn as one box have the same number."""
    nodes = [n for frame in layers.values() for layer in frame for n in layer]
    if len(nodes) <= MOST_BOXES[0]:
        return {n.id: n.id for n in nodes}
    roles = {o.node.id: o.role for o in graph.outputs}
    users: dict[int, list[int]] = {n.id: [] for n in nodes}
    for n in nodes:
        for a in (*n.args, *([n.inner] if n.inner is not None else [])):
            if a.id in users:
                users[a.id].append(n.id)
    coarse = _numbered({n.id: (where[n.id], n.op, n.kind, placement.device_of(n), roles.get(n.id)) for n in nodes})
    fine = coarse
    for _ in range(4):  # nodes that differ in what they read or in who reads them play different parts
        fine = _numbered(
            {
                n.id: (
                    fine[n.id],
                    tuple(sorted({fine[a.id] for a in n.args if a.id in fine})),
                    fine[n.inner.id] if n.inner is not None and n.inner.id in fine else -1,
                    tuple(sorted({fine[u] for u in users[n.id]})),
                )
                for n in nodes
            }
        )
    return fine if len(set(fine.values())) <= MOST_BOXES[1] else coarse


def _numbered(marks: dict[int, Any]) -> dict[int, int]:
    known: dict[Any, int] = {}
    return {k: known.setdefault(mark, len(known)) for k, mark in marks.items()}


def _box(nodes: list[Node], frame: int, layer: int, graph: Graph, placement: Placement, words: Words) -> Box:
    first = nodes[0]
    label, about = (
        _label(first, graph, words),
        f"{first}  {name_of(first.kind)}{'?' if first.nullable else ''}",
    )
    if len(nodes) > 1:
        label = f"{first.op} ×{len(nodes)}"
        about = name_of(first.kind)
    placed = placement.operators[first.id]
    lines = [f"{n} = {words.operator(n)}" for n in nodes[:40]]
    if len(nodes) > 40:
        lines.append(f"… {len(nodes) - 40} more")
    for_ = words.features(first) if len(nodes) == 1 else list(_distinct(f for n in nodes for f in words.features(n)))
    lines.append(f"for {', '.join(for_[:20])}{f' and {len(for_) - 20} more' if len(for_) > 20 else ''}")
    lines.append(f"{'GPU' if placed.device == 'cuda' else 'CPU'}: {placed.reason}")
    lines.append(f"{shown_bytes(sum(placement.operators[n.id].bytes for n in nodes))} for a batch of 65,536 rows")
    family = FAMILY.get(first.op, "numbers")
    return Box(nodes, frame, layer, label, about, "\n".join(lines), family, placed.device)


def _distinct(names: Iterable[str]) -> Iterator[str]:
    return iter(dict.fromkeys(names))


def _label(node: Node, graph: Graph, words: Words) -> str:
    if node.op == "column":
        return node.name
    if node.op == "row":
        return f"join {graph.frames[node.param('frame')].name}{' as of' if len(node.args) > 1 else ''}"
    if node.op == "gather":
        inner = _label(node.inner, graph, words) if node.inner is not None else ""
        return f"{graph.frames[node.args[0].param('frame')].name}: {inner}"
    if node.op == "user":
        return str(node.param("function").name)
    constants = [words.value(a) for a in node.args if a.op == "literal"]
    return " ".join([node.op, *constants, *(p.strip("'") for p in words.parameters(node))])


# ---- where it is drawn ------------------------------------------------------------------------------------


class _Page:
    def __init__(self, graph: Graph, placement: Placement, boxes: dict[int, Box], lanes: list[Lane]) -> None:
        self.graph = graph
        self.placement = placement
        self.boxes = boxes
        self.lanes = {lane.frame.id: lane for lane in lanes}
        self.parts: list[str] = []
        self.heads: list[Chip] = []
        self.place()
        self.legend_lines = self.legend(draw=False)
        self.head = 96.0 + LEGEND_H * (self.legend_lines - 1)
        self.order()
        self.down()

    def place(self) -> None:
        """Put lanes on shelves of at most PAGE pixels: a view above the lanes that take values from it, and the log on the last
        shelf.
        """
        waiting = [lane for frame, lane in self.lanes.items() if frame]
        shelves: list[list[Lane]] = []
        placed: set[int] = set()
        while waiting:
            ready = [lane for lane in waiting if self.gathers(lane) <= placed]
            for lane in ready:
                # A lane whose views all stand higher may share the shelf of its neighbor.
                room = (
                    shelves and fsum(other.width + LANE_GAP for other in shelves[-1]) + lane.width <= PAGE - 2 * MARGIN
                )
                if room and not self.gathers(lane) & {other.frame.id for other in shelves[-1]}:
                    shelves[-1].append(lane)
                else:
                    shelves.append([lane])
            placed |= {lane.frame.id for lane in ready}
            waiting = [lane for lane in waiting if lane.frame.id not in placed]
        shelves.append([self.lanes[0]])
        widths = [fsum(lane.width + LANE_GAP for lane in shelf) - LANE_GAP for shelf in shelves]
        self.width = max(max(widths) + 2 * MARGIN, 900.0)
        row = 0
        for shelf, width in zip(shelves, widths, strict=True):
            x = (self.width - width) / 2
            for lane in shelf:
                lane.shift, lane.x = row, x
                x += lane.width + LANE_GAP
            row += max(len(lane.layers) for lane in shelf)

    def gathers(self, lane: Lane) -> set[int]:
        """Return the views that a lane takes values from."""
        return {inner.frame for layer in lane.layers for box in layer for inner in box.gathered}

    def order(self) -> None:
        """Sort the boxes of a layer by what they read, then by what reads them, so that fewer curves cross."""
        for sweep in range(6):
            down = sweep % 2 == 0
            for lane in sorted(self.lanes.values(), key=lambda lane: lane.shift):
                for layer in lane.layers if down else lane.layers[::-1]:
                    self.spread(lane, layer)
                    weights = {id(box): _middle(box, down) for box in layer}
                    layer.sort(key=lambda box: weights[id(box)])
                    self.spread(lane, layer)

    def spread(self, lane: Lane, layer: list[Box]) -> None:
        lines = max(1, -(-len(layer) // lane.columns))
        width = -(-len(layer) // lines)
        for k, box in enumerate(layer):
            # Neighbors in order are neighbors in the picture: lines fill column by column.
            column, line = divmod(k, lines)
            free = lane.width - LANE_LEFT - LANE_RIGHT - (width * (BOX_W + GAP_X) - GAP_X)
            box.x = lane.x + LANE_LEFT + free / 2 + column * (BOX_W + GAP_X)
            box.y = line

    def down(self) -> None:
        rows = max(lane.shift + len(lane.layers) for lane in self.lanes.values())
        top = self.head + LANE_HEAD
        self.rows: list[float] = []
        self.heights: list[float] = []
        for row in range(rows):
            lines = max(lane.lines(row) for lane in self.lanes.values())
            # A layer that begins a lane leaves room for its heading.
            begins = row and any(lane.shift == row for lane in self.lanes.values())
            top += LANE_HEAD if begins else 0
            self.rows.append(top)
            self.heights.append(lines * (BOX_H + GAP_Y) - GAP_Y)
            top += self.heights[-1] + BAND_GAP
        for box in self.each():
            lane = self.lanes[box.frame]
            box.y = self.rows[lane.shift + box.layer] + box.y * (BOX_H + GAP_Y)
        self.bottom = top

    def each(self) -> Iterator[Box]:
        for lane in self.lanes.values():
            for layer in lane.layers:
                yield from layer

    # ---- and how
    def text(self) -> str:
        chips = self.chips()
        self.title()
        for lane in self.lanes.values():
            self.lane(lane)
        for box in self.each():
            for above in box.above:
                self.curve(above, box, "edge", FAMILIES[above.family][1])
        for box in self.each():
            for inner in box.gathered:
                self.curve(inner, box, "gather", FAMILIES["joins"][1])
        for chip in chips if self.linked else ():
            x, y = chip.box.x + BOX_W / 2, chip.box.y + BOX_H
            self.line(x, y, chip.x + chip.width / 2, chip.y, "output", ROLES[chip.role][0])
        for box in self.each():
            self.box(box)
        for chip in chips:
            self.chip(chip)
        for head in self.heads:
            self.parts.append(f'<text class="head" x="{head.x:.1f}" y="{head.y + 14:.1f}">{_text(head.name)}</text>')
        height = self.bottom + MARGIN
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} {height:.0f}" '
            f'width="{self.width:.0f}" height="{height:.0f}" '
            'font-family="system-ui, Helvetica, Arial, sans-serif">'
            f"<title>Plan of {_text(self.graph.frames[0].name)}</title><style>{STYLE}</style>"
            f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(self.parts)}</svg>\n'
        )

    def chips(self) -> list[Chip]:
        """Draw the features below the last layer of the log, in the order of the operators that compute them."""
        wanted = [(self.boxes[o.node.id], o) for o in self.graph.outputs if o.node.id in self.boxes]
        wanted.sort(key=lambda pair: (pair[0].x, pair[0].y))
        self.linked = len(wanted) <= MOST_LINKED
        lane = self.lanes[0]
        left, right = (lane.x + LANE_LEFT, lane.x + lane.width - LANE_RIGHT)
        if not self.linked:
            self.bottom += 8
            left, right = MARGIN + LANE_RIGHT, self.width - MARGIN - LANE_RIGHT
        self.features_top = self.bottom + 8
        chips = [Chip(box, o.role, o.name, max(36.0, len(o.name) * CHARACTER + 18)) for box, o in wanted]
        y = self.features_top + 16
        for line in _lines(chips, right - left) if self.linked else self.by_box(chips, right - left):
            used = fsum(c.width + CHIP_GAP for c in line) - CHIP_GAP
            x = left + (max(0.0, (right - left - used) / 2) if self.linked else 0.0)
            for chip in line:
                chip.x, chip.y = x, y
                x += chip.width + CHIP_GAP
            y += CHIP_H + CHIP_GAP
        self.bottom = y + 10
        return chips

    def by_box(self, chips: list[Chip], room: float) -> Iterator[list[Chip]]:
        """Draw the features of each box together after its name, if there are too many features for curves."""
        for _, group in groupby(chips, key=lambda chip: id(chip.box)):
            members = list(group)
            box = members[0].box
            name = f"{box.label}, layer {box.layer}"
            head = Chip(box, "", name, len(name) * 6.6 + 8)
            self.heads.append(head)
            line, used = [head], head.width
            for chip in members:
                if used + CHIP_GAP + chip.width > room:
                    yield line
                    line, used = [], 0.0
                line.append(chip)
                used += CHIP_GAP + chip.width
            yield line

    def title(self) -> None:
        device, add = self.placement.device, self.parts.append
        count = sum(len(box.nodes) for box in self.each())
        roles = [o.role for o in self.graph.outputs]
        features = sum(r in ("sparse", "dense") for r in roles)
        add(f'<text class="title" x="{MARGIN}" y="40">Plan of {_text(self.graph.frames[0].name)}</text>')
        add(
            f'<text class="note" x="{MARGIN}" y="60">{features} features, {count} operators, '
            f"{len(self.lanes[0].layers)} layers, on {_text(str(device))}</text>"
        )
        self.legend()

    def legend(self, draw: bool = True) -> int:
        """Explain colors and lines below the title; return how many lines that takes."""
        device = self.placement.device
        present = {box.family for box in self.each()}
        entries = [(14, family, "box", family) for family in FAMILIES if family in present]
        entries.append((26, "gathered through a join", "gather", FAMILIES["joins"][1]))
        if device.kind == "cuda":
            entries += [(26, "copied to the GPU", "copy", COPY), (20, "on the CPU", "cpu", "#555555")]
        x, y, lines = float(MARGIN), 81.0, 1
        for size, meaning, kind, color in entries:
            width = size + 6 + len(meaning) * 6.7
            if x + width > self.width - MARGIN and x > MARGIN:
                x, y, lines = float(MARGIN), y + LEGEND_H, lines + 1
            if draw:
                if kind == "box":
                    self.parts.append(_rect(x, y - 7, size, 14, 3, *FAMILIES[color]))
                elif kind == "cpu":
                    self.parts.append(_rect(x, y - 7, size, 14, 3, "#ffffff", color, "cpu"))
                else:
                    self.parts.append(f'<path class="{kind}" stroke="{color}" d="M{x:.0f} {y:.0f}h{size}"/>')
                self.parts.append(f'<text class="note" x="{x + size + 6:.0f}" y="{y + 4:.0f}">{_text(meaning)}</text>')
            x += width + 18
        return lines

    def lane(self, lane: Lane) -> None:
        frame, add = lane.frame, self.parts.append
        if not lane.layers:  # nothing is computed
            return
        top = self.rows[lane.shift] - LANE_HEAD
        last = lane.shift + len(lane.layers) - 1
        bottom = self.rows[last] + self.heights[last] + 16
        if frame.id == 0 and self.linked:
            bottom = self.bottom
        fill = "#fbfcfd" if frame.id == 0 else "#f5f8ff"
        add(_rect(lane.x, top, lane.width, bottom - top, 12, fill, "#d5dbe3"))
        rows = frame.view.source.rows
        about = "the log" if frame.id == 0 else "once per row"
        if rows is not None:
            about += f", {rows:,} rows"
        if frame.role == "inner":
            about += ", inner join"
        if len(frame.sources) > 1:
            about += f", merged with {', '.join(s.view.name for s in frame.sources[1:])}"
        add(
            f'<text x="{lane.x + 14:.1f}" y="{top + 24:.1f}"><tspan class="lane">{_text(frame.name)}</tspan>'
            f'<tspan class="note" dx="8">{_text(about)}</tspan></text>'
        )
        for k in range(len(lane.layers)):
            y = self.rows[lane.shift + k]
            if k:
                self.band(lane.x, y - BAND_GAP / 2, lane.width)
            add(f'<text class="layer" x="{lane.x + 14:.1f}" y="{y + 21:.1f}">layer {k}</text>')
        if frame.id == 0:
            y = self.features_top
            if self.linked:
                self.band(lane.x, y, lane.width)
                add(f'<text class="layer" x="{lane.x + 14:.1f}" y="{y + 30:.1f}">features</text>')
            else:
                add(f'<text class="lane" x="{MARGIN + LANE_RIGHT}" y="{y:.1f}">Features</text>')

    def band(self, x: float, y: float, width: float) -> None:
        self.parts.append(f'<path class="band" d="M{x + 10:.1f} {y:.1f}h{width - 20:.1f}"/>')

    def chip(self, chip: Chip) -> None:
        fill, ink = ROLES[chip.role]
        self.parts.append(
            f"<g><title>{_text(chip.role)}: {_text(chip.name)}</title>"
            f'<rect x="{chip.x:.1f}" y="{chip.y:.1f}" width="{chip.width:.1f}" height="{CHIP_H}" rx="10" '
            f'fill="{fill}"/><text class="chip" x="{chip.x + chip.width / 2:.1f}" y="{chip.y + 14:.1f}" '
            f'fill="{ink}">{_text(chip.name)}</text></g>'
        )

    def curve(self, above: Box, below: Box, kind: str, color: str) -> None:
        # Nothing travels back, and what is gathered was copied with its table, once.
        if above.device == "cpu" and below.device == "cuda" and above.family != "raw column" and kind != "gather":
            kind, color = "copy", COPY
        self.line(above.x + BOX_W / 2, above.y + BOX_H, below.x + BOX_W / 2, below.y, kind, color)

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str, color: str) -> None:
        bend = max(14.0, (to_y - y) * 0.45)
        self.parts.append(
            f'<path class="{kind}" stroke="{color}" d="M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} '
            f'{to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}"/>'
        )

    def box(self, box: Box) -> None:
        fill, stroke = FAMILIES[box.family]
        x, y, add = box.x, box.y, self.parts.append
        off = self.placement.device.kind == "cuda" and box.device == "cpu" and box.family != "raw column"
        add(f"<g><title>{_text(box.tip)}</title>")
        if len(box.nodes) > 1:
            add(_rect(x + 3, y + 3, BOX_W, BOX_H, 6, fill, stroke))
        add(_rect(x, y, BOX_W, BOX_H, 6, fill, stroke, "cpu" if off else ""))
        add(f'<text class="op" x="{x + BOX_W / 2:.1f}" y="{y + 15:.1f}">{_text(_short(box.label))}</text>')
        about = box.about + ("  CPU" if off else "")
        add(f'<text class="kind" x="{x + BOX_W / 2:.1f}" y="{y + 28:.1f}">{_text(about)}</text></g>')


def _middle(box: Box, down: bool) -> float:
    near = [*box.above, *box.gathered] if down else box.below
    return fsum(b.x for b in near) / len(near) if near else box.x


def _lines(chips: list[Chip], room: float) -> list[list[Chip]]:
    """Divide features into as few lines as possible, column by column, so that a feature is below its operator."""
    for count in range(1, len(chips)):
        made = [chips[k::count] for k in range(count)]
        if all(fsum(c.width + CHIP_GAP for c in line) - CHIP_GAP <= room for line in made):
            return made
    return [[chip] for chip in chips]


def _rect(x: float, y: float, width: float, height: float, radius: int, fill: str, stroke: str, kind: str = "") -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{radius}" fill="{fill}" stroke="{stroke}"/>'
    )


def _short(label: str) -> str:
    most = 17
    return label if len(label) <= most else label[: most - 1] + "…"


def _text(value: str) -> str:
    """Return a text for an SVG element; characters that XML cannot contain become �."""
    safe = "".join(c if c in "\t\n" or (c >= " " and not FORBIDDEN.match(c)) else "�" for c in value)
    return escape(safe)


STYLE = (
    ".title{font-size:22px;font-weight:600;fill:#1f2933}"
    ".note{font-size:12px;fill:#5b6875}"
    ".lane{font-size:16px;font-weight:600;fill:#1f2933}"
    ".layer{font-size:10px;fill:#94a1ae}"
    ".op{font-size:11px;font-weight:600;fill:#1f2933;text-anchor:middle}"
    ".kind{font-size:9.5px;fill:#5b6875;text-anchor:middle}"
    ".chip{font-size:11px;text-anchor:middle}"
    ".head{font-size:11px;font-weight:600;fill:#1f2933}"
    ".edge{fill:none;stroke-width:1.1;opacity:.5}"
    ".output{fill:none;stroke-width:.9;opacity:.35}"
    ".gather{fill:none;stroke-width:1.5;opacity:.6;stroke-dasharray:5 3}"
    ".copy{fill:none;stroke-width:1.8;opacity:.9}"
    ".band{fill:none;stroke:#e3e8ee;stroke-width:1}"
    ".cpu{stroke-width:2;stroke-dasharray:3 2}"
    "g:hover rect{filter:brightness(.93)}"
)
