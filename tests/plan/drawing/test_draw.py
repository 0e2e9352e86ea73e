"""`plan.show()`: a valid picture with everything on it."""

from __future__ import annotations

import os
import re
import time
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.plan.drawing import draw as drawing
from ctrbox.plan.drawing.draw import (
    BOX_H,
    CHIP_GAP,
    PAGE,
    Box,
    Chip,
    _boxes,
    _lines,
    _Page,
    _short,
    _text,
    draw,
    picture,
)
from ctrbox.plan.placement.placement import place
from tests.plan import world

SVG = "{http://www.w3.org/2000/svg}"


def wide(count: int) -> cb.Plan:
    log = cb.View(pa.table({f"c{k}": [k] for k in range(40)}), name="log")
    pairs = [(a, b) for a in range(40) for b in range(a)][:count]
    sparse = {f"x{a}_{b}": cb.cross(f"c{a}", f"c{b}") for a, b in pairs}
    return cb.compile(log, cb.FeatureSet(sparse=sparse), device="cpu")


def texts(svg: str) -> set[str]:
    root = ElementTree.fromstring(svg)
    return {"".join(element.itertext()) for element in root.iter(f"{SVG}text")}


@pytest.mark.parametrize("device", ["cpu", "cuda:32GB", "cuda:20MB"])
def test_the_picture_is_xml_and_names_every_feature(device: str, tmp_path: Path) -> None:
    plan = world.plan()
    plan.show(tmp_path / "plan.svg", device)
    svg = (tmp_path / "plan.svg").read_text(encoding="utf-8")
    assert {o.name for o in plan.graph.outputs} <= texts(svg)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.svg"]


def test_500_features_are_all_named_and_operators_grouped() -> None:
    plan = wide(500)
    began = time.perf_counter()
    svg = picture(plan.graph, "cuda:32GB")
    assert time.perf_counter() - began < 5
    assert {o.name for o in plan.graph.outputs} <= texts(svg)
    assert "cross ×500" in texts(svg)


def test_every_operator_is_in_a_box_and_no_two_boxes_overlap() -> None:
    for plan in (world.plan(), wide(120)):
        placement = place(plan.graph, "cpu")
        boxes, lanes = _boxes(plan.graph, placement)
        assert set(boxes) == set(placement.operators)
        page = _Page(plan.graph, placement, boxes, lanes)
        places = [(round(b.x), round(b.y)) for b in page.each()]
        assert len(set(places)) == len(places)
        for box in page.each():
            for above in (*box.above, *box.gathered):
                assert runs_down(above, box)


def runs_down(above: Box, below: Box) -> bool:
    return above.y + BOX_H <= below.y


def test_features_are_as_wide_as_their_names_and_do_not_overlap() -> None:
    table = pa.table({"a": ["x"], "b": [1.0]})
    long = {name * 30: col("b") for name in "xyz"}
    plan = cb.compile(cb.View(table), cb.FeatureSet(dense={**long, "short": col("b")}, sparse={"a": col("a")}))
    found: dict[float, list[tuple[float, float]]] = {}
    for group in ElementTree.fromstring(picture(plan.graph, "cpu")).iter(f"{SVG}g"):
        box, text = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        if box is not None and text is not None and text.get("class") == "chip":
            left, width = float(box.attrib["x"]), float(box.attrib["width"])
            assert width >= 6 * len(text.text or "")
            found.setdefault(float(box.attrib["y"]), []).append((left, left + width))
    assert sum(len(row) for row in found.values()) == 5
    for row in found.values():
        assert all(right < left for (_, right), (left, _) in pairwise(sorted(row)))


def test_the_lane_of_the_log_holds_its_features_where_curves_lead_to_them() -> None:
    for count, inside in ((3, True), (500, False)):
        root = ElementTree.fromstring(picture(wide(count).graph, "cpu"))
        (lane,) = [box for box in root.iter(f"{SVG}rect") if box.get("fill") == "#fbfcfd"]
        bottom = float(lane.attrib["y"]) + float(lane.attrib["height"])
        chips = [float(t.attrib["y"]) for t in root.iter(f"{SVG}text") if t.get("class") == "chip"]
        assert len(chips) >= count
        assert all((y < bottom) == inside for y in chips)


def test_names_that_xml_could_choke_on_are_escaped(tmp_path: Path) -> None:
    log = cb.View(pa.table({"a<b>&\"'": ["x"], "c]]>": [1]}), name="<log> & \x01")
    features = cb.FeatureSet(
        sparse={"<f>&amp;": col("a<b>&\"'").split("</svg>"), "π\x02": col("c]]>")},
        dense={"\x0b": col("c]]>")},
    )
    draw(cb.compile(log, features, device="cpu").graph, tmp_path / "p.svg", "cpu")
    svg = (tmp_path / "p.svg").read_text(encoding="utf-8")
    assert {"<f>&amp;", "π�", "�"} <= texts(svg)


def test_the_same_plan_gives_the_same_picture() -> None:
    assert picture(world.plan().graph, "cuda:1GB") == picture(world.plan().graph, "cuda:1GB")


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "dir.svg").mkdir()
    with pytest.raises(OSError):
        world.plan().show(tmp_path / "dir.svg")
    assert [p.name for p in tmp_path.iterdir()] == ["dir.svg"]


def test_a_wide_plan_fits_the_width_of_a_page_and_every_curve_runs_down() -> None:
    rows = 10
    names = [f"c{k}" for k in range(60)]
    log = pa.table(
        {"id": range(rows), "u": range(rows), "a": range(rows), "s": range(rows), **{n: range(rows) for n in names}}
    )
    view = cb.View(log, name="log", key="id")
    for key in ("u", "a", "s"):
        joined = pa.table({key: range(rows), **{f"{key}{k}": ["x"] * rows for k in range(5)}})
        view = view.join(cb.View(joined, name=key, key=key).fill(**{f"{key}{k}": "" for k in range(5)}), on=key)
    sparse = {n: (col(n) % (k + 2)).fill(0).key() for k, n in enumerate(names)}
    sparse |= {f"{key}{k}": col(f"{key}{k}").lower().key() for key in "uas" for k in range(5)}
    drawn = picture(cb.compile(view, cb.FeatureSet(sparse=sparse)).graph, "cpu")
    width = float(re.search(r'viewBox="0 0 (\d+) ', drawn)[1])  # type: ignore[index]
    assert width <= PAGE
    for _, top, bottom in re.findall(r'class="(edge|gather)" stroke="[^"]*" d="M\S+ (\S+)C.* (\S+)"', drawn):
        assert float(bottom) > float(top)
    legend = [float(x) for x in re.findall(r'class="note" x="(\d+)"', drawn)]
    assert max(legend) < width


def apart(operators: int) -> cb.Plan:
    """Five columns, each with a chain of operators: logarithms of the first three, roots of the others."""
    log = cb.View(pa.table({f"c{k}": [1.0] for k in range(5)}), name="log")
    dense = {f"c{k}": (col(f"c{k}").log1p() if k < 3 else col(f"c{k}").abs()).sqrt().abs() for k in range(5)}
    plan = cb.compile(log, cb.FeatureSet(dense=dense), device="cpu")
    assert len(place(plan.graph, "cpu").operators) == operators
    return plan


@pytest.mark.parametrize(
    ("most", "boxes"),
    [
        ((20, 99), 20),  # as many operators as are shown one by one
        ((19, 99), 8),  # one more: logarithms and roots apart, from their columns to their ends
        ((19, 8), 8),
        ((19, 7), 5),  # still too many: all operators of one kind in a layer are one box
    ],
)
def test_boxes_are_grouped_only_as_far_as_the_limits_ask(
    most: tuple[int, int], boxes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = apart(20)
    monkeypatch.setattr(drawing, "MOST_BOXES", most)
    found, _ = _boxes(plan.graph, place(plan.graph, "cpu"))
    assert len({id(box) for box in found.values()}) == boxes


@pytest.mark.parametrize(("count", "told"), [(40, ""), (41, "… 1 more"), (43, "… 3 more")])
def test_a_box_lists_at_most_40_of_its_operators(count: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MOST_BOXES", (1, 99))
    log = cb.View(pa.table({f"c{k}": [1.0] for k in range(count)}), name="log")
    dense = {f"f{k}": col(f"c{k}").log1p() for k in range(count)}
    graph = cb.compile(log, cb.FeatureSet(dense=dense), device="cpu").graph
    found, _ = _boxes(graph, place(graph, "cpu"))
    (box,) = [box for box in {id(b): b for b in found.values()}.values() if box.label == f"log1p ×{count}"]
    lines = box.tip.splitlines()
    assert len([line for line in lines if " = log1p(" in line]) == 40
    assert [line for line in lines if line.startswith("…")] == ([told] if told else [])
    assert f"for {', '.join(f'f{k}' for k in range(20))} and {count - 20} more" in lines


@pytest.mark.parametrize(("count", "told"), [(20, "f19"), (21, "f19 and 1 more")])
def test_a_box_lists_at_most_20_of_its_features(count: int, told: str) -> None:
    log = cb.View(pa.table({"c": [1.0]}), name="log")
    dense = {f"f{k}": col("c") + float(k) for k in range(count)}
    graph = cb.compile(log, cb.FeatureSet(dense=dense), device="cpu").graph
    (column,) = [b for b in _boxes(graph, place(graph, "cpu"))[0].values() if b.label == "c"]
    assert column.tip.splitlines()[1] == f"for {', '.join(f'f{k}' for k in range(19))}, {told}"


@pytest.mark.parametrize(("most", "linked"), [(3, True), (2, False)])
def test_features_have_a_curve_each_up_to_the_limit(most: int, linked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MOST_LINKED", most)
    svg = picture(wide(3).graph, "cpu")
    assert svg.count('class="output"') == (3 if linked else 0)
    assert ("features" in texts(svg)) == linked
    assert ("Features" in texts(svg)) != linked


def test_a_picture_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        wide(1).show(tmp_path / "p.svg")
    finally:
        os.umask(before)
    assert (tmp_path / "p.svg").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("room", "lines"),
    [
        (3 * 50 + 2 * CHIP_GAP, [[0, 1, 2]]),
        (3 * 50 + 2 * CHIP_GAP - 1, [[0, 2], [1]]),
        (2 * 50 + CHIP_GAP, [[0, 2], [1]]),
        (2 * 50 + CHIP_GAP - 1, [[0], [1], [2]]),
        (1, [[0], [1], [2]]),
    ],
)
def test_features_take_as_few_lines_as_they_fit_into(room: float, lines: list[list[int]]) -> None:
    box = Box([], 0, 0, "", "", "", "numbers", "cpu")
    chips = [Chip(box, "dense", str(k), 50.0) for k in range(3)]
    assert [[int(chip.name) for chip in line] for line in _lines(chips, room)] == lines
    assert _lines(chips[:1], room) == [chips[:1]]
    assert _lines([], room) == []


def test_a_label_of_up_to_17_characters_is_not_cut() -> None:
    assert [_short("x" * count) for count in (16, 17, 18)] == ["x" * 16, "x" * 17, "x" * 16 + "…"]


def test_what_xml_cannot_hold_is_replaced() -> None:
    assert _text("a\tb\nc d<e>&\x1f\x00\ufffe\uffff\ud800z") == "a\tb\nc d&lt;e&gt;&amp;�����z"
