"""The report as a reader gets it: one file that needs nothing else, true to the run folder, deaf to what data says."""

from __future__ import annotations

import copy
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox.errors import CtrboxError, DataError, SourceError, WriteError
from ctrbox.files.sealed_json import sealed
from ctrbox.report.number_format import remarks
from ctrbox.report.quality_sections import curve, smoothed, thinned
from ctrbox.report.read_recorded_files import Fields, Recorded, read_run
from ctrbox.report.write_report import build, reproduce, write_report
from ctrbox.show import charts
from ctrbox.show.charts import Dot, Line, Part
from tests.train import worlds

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><title>Plan</title></svg>'

CONFIG: dict[str, Any] = {
    "format": 1,
    "command": ["ctrbox", "train", "my job.py", "--batch-size", "100"],
    "identity": {"plan": "9f1c04e2b7aa51d3", "settings": {"batch_size": 100, "seed": 7, "limit": None}},
}
SUMMARY: dict[str, Any] = {
    "format": 1,
    "model": "DeepFM",
    "data": "impressions",
    "rows": {"train": 1_800, "valid": 200},
    "seconds": 36.4,
    "started": "2026-11-15T10:58:12+00:00",
    "finished": "2026-11-15T10:58:49+00:00",
    "epochs": 1,
    "steps": 18,
    "batch_size": 100,
    "metrics": {
        "auc": 0.7843,
        "gauc": 0.7311,
        "logloss": 0.3716,
        "rig": 0.172,
        "calibration": 1.0132,
        "base_rate": 0.1421,
        "best_auc": 0.7891,
        "best_constant_logloss": 0.4489,
    },
    "rows_per_second": 54_945.2,
    "intermediate_bytes": 0,
    "stages": [
        {
            "name": "extract",
            "seconds": 14.8,
            "waited": 21.2,
            "for_input": 0.0,
            "for_room": 21.2,
            "rows": 1800,
            "utilization": 0.41,
            "queue": 1.8,
            "queue_most": 2,
        },
        {"name": "learn", "seconds": 33.9, "waited": 1.9, "rows": 1800, "utilization": 0.94},
    ],
    "tables": [
        {
            "name": "table-0",
            "fields": ["user", "ad"],
            "path": "params",
            "asked": 12_345,
            "hits": 8_000,
            "misses": 2_000,
            "new": 2_345,
            "false_positives": 17,
            "hit_rate": 0.8,
            "reads_per_key": 0.163,
            "bytes_read": 8_261_632,
            "bytes_written": 4_096,
            "disk_bytes": 1 << 20,
        }
    ],
    "bottleneck": "learn",
    "calibration": [{"p": 0.1, "rate": 0.09, "rows": 100}, {"p": 0.2, "rate": 0.31, "rows": 100}],
    "windows": [
        {"start": "2026-11-15T00:00:00Z", "rows": 80, "auc": 0.78, "logloss": 0.37, "calibration": 1.0},
        {"start": "2026-11-15T01:00:00Z", "rows": 120, "auc": 0.79, "logloss": 0.36, "calibration": None},
    ],
    "slices": [
        {
            "field": "device",
            "value": "tv",
            "rows": 120,
            "clicks": 4,
            "auc": 0.612,
            "logloss": 0.141,
            "calibration": 1.42,
            "reason": "too many clicks promised",
        }
    ],
    "features": [
        {
            "name": "user",
            "kind": "sparse",
            "coverage": 1.0,
            "keys": 1.0,
            "distinct": 90,
            "importance": 0.04,
            "space": "user",
        },
        {
            "name": "age",
            "kind": "dense",
            "coverage": 0.5,
            "keys": None,
            "distinct": None,
            "importance": -0.001,
            "space": None,
        },
    ],
    "table": {"keys": 1_243, "bytes": 312_000},
    "warnings": {"key of users that is not in the view": 12},
    "machine": "2 cores",
}
METRICS: list[dict[str, Any]] = [
    {"kind": "train", "step": 1, "rows": 100, "loss": 0.6},
    {"kind": "train", "step": 9, "rows": 900, "loss": 0.5},
    {"kind": "valid", "step": 9, "rows": 900, "auc": 0.7, "logloss": 0.45},
    {"kind": "train", "step": 18, "rows": 1800, "loss": None},
    {"kind": "valid", "step": 18, "rows": 1800, "auc": 0.78, "logloss": 0.37},
    *(
        {
            "kind": "stages",
            "step": step,
            "pass": number,
            "seconds": 2.0,
            "extract_busy": 1.3,
            "extract_for_room": 0.6,
            "extract_queue": 1.5,
            "lookup_busy": 1.6 + (-1) ** number * 0.2,
            "lookup_for_input": 0.1,
            "learn_busy": 1.8,
        }
        for number, step in ((1, 9), (2, 18))
    ),
    {"kind": "table-0", "step": 9, "pass": 1, "asked": 700, "new": 600, "hit_rate": None, "reads": 0},
    {"kind": "table-0", "step": 18, "pass": 2, "asked": 711, "new": 90, "hit_rate": 0.85, "reads": 31},
    {"kind": "unheard of", "rows": "so what"},
]


def write_run(
    folder: Path, summary: Any = SUMMARY, config: Any = CONFIG, metrics: Any = METRICS, svg: str = SVG
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(sealed(config))
    (folder / "summary.json").write_text(sealed(summary))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (folder / "plan.svg").write_text(svg)
    return folder


def recorded(summary: Any = SUMMARY, config: Any = CONFIG, metrics: Any = METRICS) -> Recorded:
    """What `read_run` gives, without a disk."""
    lines = [Fields(line, Path("metrics.jsonl")) for line in metrics]
    return Recorded(
        Path("run"), Fields(config, Path("config.json")), Fields(summary, Path("summary.json")), lines, SVG.encode()
    )


class Page(HTMLParser):
    """The elements of a page, its text, and whether every element is closed in order."""

    VOID = frozenset({"meta", "img", "input", "br"})

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        # Without xmlns an SVG element may close itself as in `<path/>`; the parser then calls handle_startendtag.
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


# ---- the page -----------------------------------------------------------------------------------


def test_the_page_tells_what_the_folder_holds(tmp_path: Path) -> None:
    place = write_report(write_run(tmp_path / "run"))
    assert place == tmp_path / "run" / "report.html"
    text = Page(place.read_text(encoding="utf-8")).text
    for expected in (
        "DeepFM",
        "on impressions",
        "15 November 2026",
        "0.7843",
        "best possible 0.7891, gap 0.0048",
        "0.7311",
        "always predicting the click rate gives 0.4489",
        "17.2%",
        "1.013",
        "54,945",
        "0 bytes",
        "1,243 keys",
        "The bottleneck is learning, busy 94% of the time. What would help: larger batches",
        "Learning curve",
        "Calibration",
        "00:00",
        "too many clicks promised",
        "device = tv",
        "For 1 feature the interval includes 0, so these rows do not show that the model benefits: age",
        "0.04000",
        "9f1c04e2b7aa51d3",
        "ctrbox train 'my job.py' --batch-size 100",
        "identity.settings.seed",
        "key of users that is not in the view",
    ):
        assert expected in text, expected


def cells(page: str, first: str) -> list[str]:
    """The texts of the row of a table that begins with ``first``."""
    rows = [
        [Page(c).text for c in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in re.findall("<tr>(.*?)</tr>", page)
    ]
    return next(row for row in rows if row and row[0].startswith(first))


def test_stages_are_told_by_plain_names_and_tables_by_what_they_were_asked() -> None:
    page = build(recorded())
    assert cells(page, "extract")[0] == "extract read the log, compute features"
    assert cells(page, "extract")[1:] == ["1.30 s", "65%", "0%", "0%", "30%", "1.5, most 2"]
    assert cells(page, "lookup")[1:] == ["1.60 s", "80%", "10%", "5%", "0%", ""]
    assert cells(page, "learn")[1:] == ["1.80 s", "90%", "0%", "0%", "0%", ""]
    for word in ("RE", "ST", "EL", "JL", "AIBox"):
        assert not re.search(rf"\b{word}\b", Page(page).text)
    assert cells(page, "one after the other")[1:3] == ["4.70 s", "235%"]
    assert cells(page, "as a pipeline")[1:3] == ["2.00 s", "100%"]
    assert "A pass takes 1.11 times as long as its slowest stage" in page
    asked = ["table-0", "12,345", "8,000", "2,000", "2,345", "17", "80.0%", "0.163", "7.9 MiB", "4.0 KiB", "1.0 MiB"]
    assert cells(page, "table-0") == asked
    for point in ("asked for: 711 at 2 pass", "pages read from SSD: 31 at 2 pass", "hit rate: 85 at 2 pass"):
        assert point in page
    assert "new keys, not read: 600 at 1 pass" in page


def test_a_look_up_that_reads_from_an_ssd_is_helped_by_memory() -> None:
    stages = [{**SUMMARY["stages"][0], "name": "lookup", "utilization": 0.9}]
    page = build(recorded({**SUMMARY, "stages": stages, "bottleneck": "lookup"}))
    assert "reading their rows from the SSD</b>, busy 90% of the time. What would help: more memory" in page
    calm = build(recorded({**SUMMARY, "stages": stages, "bottleneck": "lookup", "tables": []}))
    assert "finding the unique keys of a batch</b>" in calm


def test_a_run_whose_tables_count_nothing_has_no_section_of_them() -> None:
    page = build(recorded({**SUMMARY, "tables": []}, metrics=[m for m in METRICS if m["kind"] != "stages"]))
    assert 'id="tables"' not in page
    assert 'href="#tables"' not in page
    assert "Time of a pass by stage" not in page


@given(st.sampled_from([m for m in METRICS if "pass" in m]), st.data())
@settings(max_examples=60, deadline=None)
def test_a_strange_number_of_a_pass_gives_a_page_or_an_error_that_names_the_file(
    line: Any, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([n for n in line if n != "kind"]))
    new = data.draw(st.sampled_from([None, "text", [], True, -1, 0, 0.5, 1e308, -1e308, 5e-324, 10**400, math.nan]))
    lines = [{**m, name: new} if m is line else m for m in METRICS]
    met, page = "", ""
    try:
        page = build(recorded(metrics=lines))
    except DataError as error:
        met = str(error)
    assert not met or met.startswith(f"metrics.jsonl: {name}")
    Page(page)
    assert not re.search(r'(?:d|x|y|cx|cy|r|width|height)="[^"]*(?:nan|inf)', page)


def test_the_page_needs_nothing_but_itself() -> None:
    page = Page(build(recorded()))
    assert not page.tags.keys() & {"script", "link", "iframe", "object", "embed", "form", "base"}
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href", "action", "srcset", "data"):
            assert value.startswith("#") or (tag == "img" and value.startswith("data:image/svg+xml;base64,"))
    whole = build(recorded())
    assert "@import" not in whole
    assert not re.search(r"url\((?!#)", whole)
    assert "default-src 'none'" in whole


def test_every_link_leads_to_a_section_and_no_id_is_used_twice() -> None:
    page = Page(build(recorded()))
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for tag, name, value in page.attributes if tag == "a" and name == "href"} <= set(ids)


def test_the_same_folder_gives_the_same_page() -> None:
    assert build(recorded()) == build(recorded(copy.deepcopy(SUMMARY), copy.deepcopy(CONFIG), copy.deepcopy(METRICS)))


HOSTILE = st.one_of(
    st.sampled_from(
        [
            "<script>alert(1)</script>",
            "</style><b>",
            '" onload="x',
            "</title>",
            "&lt;",
            "`a`",
            "a\x00b",
            "\u202eevil",
            "\ud800",
            "'",
            "</svg>",
        ]
    ),
    st.text(max_size=40),
)


@given(HOSTILE, HOSTILE, HOSTILE)
@settings(max_examples=40, deadline=None)
def test_no_name_can_add_an_element_to_the_page(one: str, two: str, three: str) -> None:
    calm, wild = copy.deepcopy(SUMMARY), copy.deepcopy(SUMMARY)
    for summary, names in ((calm, ("x", "y", "z")), (wild, (one or "x", two or "y", three or "z"))):
        summary["model"] = summary["data"] = names[0]
        summary["machine"] = summary["finished"] = names[2]
        summary["features"][1] |= {"name": names[0], "kind": names[1], "space": names[0]}
        summary["slices"][0] |= {"field": names[1], "value": names[2], "reason": names[0]}
        summary["stages"][0]["name"] = names[1]
        summary["bottleneck"] = names[2] if names[2] != "learn" else "z"
        summary["windows"][0]["start"] = names[1]
        summary["warnings"] = {names[2]: 3}
    first = Page(build(recorded(calm, {"a": "x", "command": ["x"]})))
    second = Page(build(recorded(wild, {"a": one, "command": [two]})))
    assert first.tags == second.tags
    assert [(tag, name) for tag, name, _ in first.attributes] == [(tag, name) for tag, name, _ in second.attributes]
    build(recorded(wild)).encode("utf-8")
    shown = charts.UNPRINTABLE.sub("\ufffd", one).replace("\r", "\n")
    if len(shown) <= 100:
        assert shown in second.text.replace("\r", "\n")


# ---- absent and damaged -------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything inside `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*path, name)
        yield from leaves(inner, (*path, name))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    whole = copy.deepcopy(value)
    inner = whole
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = new
    return whole


EVERYWHERE = [path for path in leaves(SUMMARY) if path != ("format",)]


@pytest.mark.parametrize("path", EVERYWHERE, ids=lambda path: ".".join(map(str, path)))
def test_whatever_is_absent_the_page_is_built_or_the_place_is_named(path: tuple[Any, ...]) -> None:
    summary = replaced(SUMMARY, path, None)
    if isinstance(path[-1], int) and len(path) == 2:  # only an entry of a list of objects cannot be absent
        with pytest.raises(
            DataError, match=re.escape(f"summary.json: {path[0]}[{path[-1]}] is absent; expected an object")
        ):
            build(recorded(summary))
    else:
        Page(build(recorded(summary)))


@given(
    st.sampled_from(EVERYWHERE),
    st.sampled_from(
        [
            "text",
            [],
            {},
            [1],
            {"a": 1},
            True,
            -1,
            0,
            0.5,
            1e308,
            -1e308,
            5e-324,
            10**400,
            math.nan,
            math.inf,
            "",
            "\ud800",
        ]
    ),
)
@settings(max_examples=200, deadline=None)
def test_a_strange_value_gives_a_page_or_an_error_that_names_the_file(path: tuple[Any, ...], new: Any) -> None:
    met = ""
    try:
        whole = build(recorded(replaced(SUMMARY, path, new)))
    except DataError as error:
        met, whole = str(error), ""
    assert not met or met.startswith(f"summary.json: {path[0]}")
    Page(whole)
    whole.encode("utf-8")
    assert not re.search(r'(?:d|x|y|cx|cy|r|width|height)="[^"]*(?:nan|inf)', whole)


def test_an_almost_empty_run_still_has_a_page() -> None:
    page = Page(build(recorded({"format": 1}, {}, [])))
    assert "No log loss was recorded." in page.text
    assert "cb.Trainer(model, table).fit(plan, out='run')" in page.text


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl", "plan.svg"])
def test_a_file_cut_in_the_middle_is_named(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run")
    (run / "report.html").write_text("old")
    whole = (run / name).read_bytes()
    for size in {1, len(whole) // 3, len(whole) // 2, len(whole) - 4}:
        (run / name).write_bytes(whole[:size])
        with pytest.raises(DataError, match=name):
            write_report(run)
    (run / name).write_bytes(b"\xff\xfe" + whole)
    with pytest.raises(DataError, match=name):
        write_report(run)
    assert (run / "report.html").read_text() == "old"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("summary.json", "[1, 2]", "not a file of a CTRBox run folder"),
        ("summary.json", '{"format": 1, "seal": "0"}', "its checksum does not match"),
        ("summary.json", sealed({"format": 2}), "format 2, but this version of CTRBox reads format 1"),
        ("summary.json", sealed({"metrics": [0.5]}), "metrics is a list; expected an object"),
        ("summary.json", sealed({"windows": {"a": 1}}), "windows is an object; expected a list"),
        ("summary.json", sealed({"metrics": {"auc": "good"}}), "metrics.auc is 'good'; expected a number"),
        ("summary.json", sealed({"rows": {"train": -5}}), "rows.train is -5; expected a count"),
        ("summary.json", "[" * 100_000, "damaged"),
        ("metrics.jsonl", '{"kind": "train"}\n{"kind": "valid", "rows"\n', "metrics.jsonl:2 is damaged"),
        ("metrics.jsonl", "7\n", "metrics.jsonl:1 holds 7"),
        ("plan.svg", "<html></html>", "its root element is <html>"),
        ("config.json", "", "config.json is damaged"),
    ],
)
def test_a_foreign_file_is_one_sentence(tmp_path: Path, name: str, content: str, message: str) -> None:
    run = write_run(tmp_path / "run")
    (run / name).write_text(content)
    with pytest.raises(DataError) as caught:
        write_report(run)
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "is not a run folder: config.json is missing"),
        ("summary.json", "its run has not finished;"),
        (
            "metrics.jsonl",
            "metrics.jsonl, so the run folder is not complete; resume the run, or restore the folder from a copy",
        ),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, missing: str, message: str) -> None:
    run = write_run(tmp_path / "run")
    (run / missing).unlink()
    with pytest.raises(SourceError, match=re.escape(message)):
        write_report(run)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no run folder .*nowhere"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(SourceError, match="there is no run folder"):
        write_report(tmp_path / "file")


def test_a_run_without_a_picture_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "plan.svg").unlink()
    assert read_run(run).picture is None
    assert "kept no picture" in write_report(run).read_text(encoding="utf-8")


def test_a_report_that_cannot_be_written_leaves_nothing_beside_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "report.html").mkdir()
    before = sorted(p.name for p in run.iterdir())
    with pytest.raises(WriteError, match=r"report\.html"):
        write_report(run)
    assert sorted(p.name for p in run.iterdir()) == before
    assert issubclass(WriteError, CtrboxError)


# ---- curves -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 30), st.one_of(st.none(), st.floats(0, 1))), max_size=60))
def test_after_a_resume_the_later_report_counts(reports: list[tuple[int, float | None]]) -> None:
    lines = [Fields({"kind": "train", "rows": r, "loss": v}, Path("m")) for r, v in reports]
    # The slow twin: a report forgets every earlier one of as many rows or more.
    expected: dict[float, float] = {}
    for rows, value in reports:
        if value is not None:
            expected = {r: v for r, v in expected.items() if r < rows} | {float(rows): value}
    assert curve(lines, "train", "loss") == sorted(expected.items())


POINTS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200).map(
    lambda ys: [(float(i), y) for i, y in enumerate(ys)]
)


@given(POINTS, st.integers(1, 20))
def test_thinning_keeps_the_end_and_the_mean(points: list[tuple[float, float]], most: int) -> None:
    thin = thinned(points, most)
    assert len(thin) <= max(most, 1)
    assert thin[-1][0] == points[-1][0]
    if len(points) % most == 0:
        mean = sum(y for _, y in points) / len(points)
        assert sum(y for _, y in thin) / len(thin) == pytest.approx(mean, rel=1e-9, abs=1e-6)


@given(POINTS)
def test_smoothing_stays_between_the_extremes_and_keeps_a_level(points: list[tuple[float, float]]) -> None:
    smooth = smoothed(points)
    ys = [y for _, y in points]
    assert [x for x, _ in smooth] == [x for x, _ in points]
    assert all(min(ys) - 1e-6 <= y <= max(ys) + 1e-6 for _, y in smooth)
    level = smoothed([(x, 0.25) for x, _ in points])
    assert all(y == pytest.approx(0.25) for _, y in level)


@pytest.mark.parametrize("command", [None, [], [1], "rm -rf", {"a": 1}])
def test_without_a_command_the_call_is_shown(command: Any) -> None:
    config = {
        "command": command,
        "identity": {"settings": {"batch_size": 100, "seed": 7, "limit": None, "monitor": "auc"}},
    }
    assert (
        reproduce(recorded(config=config))
        == "cb.Trainer(model, table).fit(plan, batch_size=100, seed=7, monitor='auc', out='run')"
    )


# ---- charts -------------------------------------------------------------------------------------

ANY = st.floats(allow_nan=True, allow_infinity=True)


def numbers(source: str, tag: str, name: str, kind: str = "") -> list[float]:
    found = [dict(re.findall(r'([\w-]+)="([^"]*)"', m)) for m in re.findall(rf"<{tag}\b([^>]*)>", source)]
    return [float(a[name]) for a in found if name in a and a.get("class", "").startswith(kind)]


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(2, 10),
)
def test_ticks_lie_inside_and_evenly_apart(one: float, two: float, most: int) -> None:
    low, high = sorted((one, two))
    places = charts.ticks(low, high, most)
    assert 1 <= len(places) <= max(most, 2)
    assert all(min(low, charts.LARGEST) <= p <= max(high, -charts.LARGEST) for p in places)
    assert places == sorted(places)
    gaps = [b - a for a, b in pairwise(places)]
    assert all(g > 0 for g in gaps)
    # The outermost may be moved onto the edge by rounding.
    assert all(g == pytest.approx(gaps[0], rel=1e-3) for g in gaps)


def test_ticks_are_round() -> None:
    assert charts.ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert charts.ticks(0.71, 0.79, 5) == pytest.approx([0.72, 0.74, 0.76, 0.78])
    assert charts.log_ticks(0.004, 0.6) == pytest.approx([0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (999, "999"),
        (12_500, "12.5k"),
        (999_960, "1M"),
        (3e6, "3M"),
        (-2_000, "-2k"),
        (0.0312, "0.0312"),
        (1e18, "1e+18"),
    ],
)
def test_short_numbers(value: float, expected: str) -> None:
    assert charts.short(value) == expected


@given(st.lists(st.tuples(ANY, ANY), max_size=30), st.one_of(st.none(), ANY))
@settings(deadline=None)
def test_a_line_chart_of_anything_is_sound(points: list[tuple[float, float]], level: float | None) -> None:
    drawn = charts.line_chart(
        [Line("a<b", points, dots=True)], label="x&y", rule=None if level is None else (level, "best")
    )
    Page(drawn)
    good = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
    assert len(numbers(drawn, "circle", "cx")) == len(good)
    assert not re.search(r'="[^"]*(?:nan|inf)', drawn.replace("aria-label", ""))


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=2, max_size=20, unique_by=lambda p: p[0])
)
@settings(deadline=None)
def test_points_are_drawn_to_scale(points: list[tuple[int, int]]) -> None:
    points = sorted(points)
    drawn = charts.line_chart([Line("a", [(float(x), float(y)) for x, y in points], dots=True)], label="a")
    check_linear([x for x, _ in points], numbers(drawn, "circle", "cx"), 1)
    check_linear([y for _, y in points], numbers(drawn, "circle", "cy"), -1)


def check_linear(values: list[int], places: list[float], sign: int) -> None:
    """Places are an affine function of values, to the tenth of a pixel they are written with."""
    low, high = values.index(min(values)), values.index(max(values))
    if values[low] == values[high]:
        assert len(set(places)) == 1
        return
    slope = (places[high] - places[low]) / (values[high] - values[low])
    assert slope * sign > 0
    for value, place in zip(values, places, strict=True):
        assert place == pytest.approx(places[low] + slope * (value - values[low]), abs=0.2)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 10**9)), max_size=25))
@settings(max_examples=40, deadline=None)
def test_an_honest_dot_lies_on_the_diagonal(dots: list[tuple[float, float, int]]) -> None:
    drawn = charts.calibration_chart([Dot(*d) for d in dots])
    Page(drawn)
    assert len(numbers(drawn, "circle", "cx")) == sum(rows > 0 for _, _, rows in dots)
    honest = charts.calibration_chart([Dot(p, p, rows) for p, _, rows in dots])
    line = re.search(r'class="rule" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', honest)
    for cx, cy in zip(numbers(honest, "circle", "cx"), numbers(honest, "circle", "cy"), strict=True):
        assert line is not None
        x0, y0, x1, y1 = map(float, line.groups())
        assert cy == pytest.approx(y0 + (cx - x0) * (y1 - y0) / (x1 - x0), abs=0.3)


@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 1e6)), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_stacked_bars_are_as_long_as_their_parts(rows: list[tuple[float, float]]) -> None:
    named = [(f"s{i}", [Part("busy", a, "a"), Part("waiting", b, "wait")], "") for i, (a, b) in enumerate(rows)]
    drawn = charts.stacked_bars(named)
    Page(drawn)
    longest = max(a + b for a, b in rows)
    if longest <= 0:
        assert "No stage was timed" in drawn
        return
    values = [v for row in rows for v in row if v > 0]
    for value, width in zip(values, numbers(drawn, "rect", "width"), strict=True):
        assert width == pytest.approx(max(0.5, value / longest * (1100 - 250 - 90)), abs=0.1)


@pytest.mark.parametrize(("value", "left", "width"), [(0.5, 50, 49), (-0.25, 25.5, 24.5), (1.0, 50, 49)])
def test_a_bar_starts_at_zero(value: float, left: float, width: float) -> None:
    low, high = (-0.5, 0.5) if abs(value) <= 0.5 else (-1.0, 1.0)
    drawn = charts.bar(value, low, high, "tip", width=100)
    assert numbers(drawn, "rect", "x", "a") == [left]
    assert numbers(drawn, "rect", "width", "a") == [width]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_bar_of_nothing_is_nothing(value: float | None) -> None:
    assert charts.bar(value, 0, 1, "tip") == ""


@given(st.text(max_size=400), st.integers(2, 300))
def test_text_is_what_html_gives_back(words: str, longest: int) -> None:
    shown = Page(f"<p>{charts.text(words, longest)}</p>").text
    expected = charts.UNPRINTABLE.sub("\ufffd", words)
    assert shown == (expected if len(expected) <= longest else expected[: longest - 1] + "…")


CHARTS: list[Callable[[], str]] = [
    lambda: charts.line_chart([], label="a"),
    lambda: charts.line_chart([Line("a", [])], label="a"),
    lambda: charts.calibration_chart([]),
    lambda: charts.stacked_bars([]),
]


@pytest.mark.parametrize("draw", CHARTS)
def test_a_chart_of_nothing_is_a_sentence(draw: Callable[[], str]) -> None:
    assert "<svg" not in draw()
    assert 'class="nothing"' in draw()


# ---- figures that can be trusted ----------------------------------------------------------------


def told(**more: Any) -> str:
    return Page(build(recorded({**SUMMARY, **more}))).text


def test_every_headline_has_its_interval_and_weights_have_a_section_of_their_own() -> None:
    figures = {
        "auc_low": 0.77,
        "auc_high": 0.8,
        "calibration_low": 1.2,
        "calibration_high": 1.6,
        "mean_prediction": 0.5,
    }
    metrics = {**SUMMARY["metrics"], **figures, "calibration": 1.4, "weighted_calibration": 0.99}
    page = told(metrics=metrics)
    assert "95 %: 0.7700 to 0.8000" in page
    assert "With and without weights" in page
    assert "because training used sample weights, the predictions are far from the click rate" in page.lower().replace(
        "Because", "because"
    )
    assert "With and without weights" not in told()
    fitted = told(metrics=metrics, settings={"calibrate": "intercept"}, logit_shift=-0.7)
    assert "-0.7000 was added to every logit" in fitted
    assert "their calibration is 1 by construction" in fitted


def test_gauc_over_few_groups_is_shown_without_an_interval_even_if_an_older_run_recorded_one() -> None:
    ends = {"gauc_low": 0.7256, "gauc_high": 0.7366}
    few = told(metrics={**SUMMARY["metrics"], **ends, "gauc_groups": 2})
    assert "over 2 groups with clicks and non-clicks; fewer than 20 groups give no interval" in few
    assert "0.7256" not in few
    assert "95 %: 0.7256 to 0.7366" in told(metrics={**SUMMARY["metrics"], **ends, "gauc_groups": 20})


def test_a_run_over_few_groups_trains_saves_and_loads_without_an_interval_of_gauc(tmp_path: Path) -> None:
    log = worlds.checkerboard(1_200)
    log = log.set_column(log.column_names.index("user"), "user", pa.compute.less(log.column("user"), 20).cast("int64"))
    plan = worlds.plan_of(log)
    trainer = cb.Trainer(cb.models.LR(plan.schema), threads=1)
    run = trainer.fit(
        plan, batch_size=100, monitor="gauc", patience=9, evaluate_every=5, seed=1, out=tmp_path / "run", progress=False
    )
    assert run.metrics["gauc_groups"] == 2
    saved = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["metrics"]
    assert 0 <= saved["gauc"] <= 1
    assert [saved[f"gauc_{end}"] for end in ("se", "low", "high")] == [None] * 3
    again = cb.Run.load(tmp_path / "run", views={"memory": log})
    assert again.metrics["gauc"] == run.metrics["gauc"]
    assert any("below 20 groups" in remark for remark in remarks(again.evaluate(log)))
    assert "fewer than 20 groups give no interval" in write_report(tmp_path / "run").read_text(encoding="utf-8")


def test_calibration_is_called_off_only_outside_of_its_interval() -> None:
    def words(ratio: float, low: float, high: float) -> str:
        figures = {"calibration": ratio, "calibration_low": low, "calibration_high": high}
        return told(metrics={**SUMMARY["metrics"], **figures})

    assert "agree as far as these rows can tell (calibration 1.300, 95 % interval 0.900 to 1.800)" in words(
        1.3, 0.9, 1.8
    )
    assert "predicts 30.0% more clicks than there were (calibration 1.300" in words(1.3, 1.2, 1.4)


def test_a_group_of_rows_without_clicks_is_not_off_by_itself() -> None:
    few = [{"p": 0.001, "rate": 0.0, "rows": 200}]
    assert "None of the 1 groups differ by more than chance explains" in told(calibration=few)
    many = [{"p": 0.1, "rate": 0.0, "rows": 200}]
    assert "1 of the 1 groups differs by more than chance explains" in told(calibration=many)


def test_windows_are_named_only_where_they_differ_by_more_than_chance() -> None:
    def words(*aucs: float, se: float = 0.01) -> str:
        found = [{"first_row": k, "rows": 10, "auc": v, "auc_se": se} for k, v in enumerate(aucs)]
        return told(windows=found, metrics={"auc": 0.78}, rows_without_time=3)

    assert "AUC differs between windows by no more than chance explains." in words(0.77, 0.79, 0.8)
    assert "One window differs from the AUC of all rows by more than chance explains: row 1 (0.6000)" in words(
        0.77, 0.6
    )
    assert "more than chance explains:" not in words(0.77, 0.6, se=0.2)
    assert "3 rows have no time and are in no window." in words(0.77, 0.6)


def test_a_feature_whose_interval_holds_0_is_no_finding() -> None:
    features = [
        {"name": n, "kind": "dense", "importance": 0.01, "importance_low": low, "importance_high": 0.03}
        for n, low in (("sure", 0.005), ("unsure", -0.005))
    ]
    page = told(features=features)
    assert "For 1 feature the interval includes 0" in page
    assert "benefits: unsure." in page
    assert "0.00500 to 0.03000" in page


def test_slices_without_clicks_are_listed_apart() -> None:
    bare = {"field": "city", "value": "x", "rows": 500, "clicks": 0, "mean_prediction": 0.02, "base_rate_low": 0.0}
    page = told(slices=[], slices_looked_at=12, slices_without_figures=[{**bare, "base_rate_high": 0.008}])
    assert "Of 12 slices of the validation rows, none shows errors larger than chance explains." in page
    assert "Slices without a figure" in page
    assert "0.0% to 0.8%" in page


def test_the_rows_that_were_tested_on_are_named() -> None:
    assert "rows of another log" in told()
    assert "the last rows of the log" in told(held={"start": 900, "stop": 1000})
    assert "The same rows decided when to stop training" in told(settings={"patience": 2})


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(1, 10**6), st.floats(0, 1), st.floats(0, 1)),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_error_bars_stay_inside_their_plot(dots: list[tuple[float, float, int, float, float]]) -> None:
    height = 330
    drawn = charts.calibration_chart([Dot(p, c, n, *sorted((a, b))) for p, c, n, a, b in dots], height=height)
    bars = re.findall(r'class="mark a spread" d="M([\d.-]+) ([\d.-]+)V([\d.-]+)"', drawn)
    assert len(bars) == len(dots)
    for _, top, foot in bars:
        assert charts.TOP - 0.1 <= float(top) <= float(foot) + 0.1 <= height - charts.BOTTOM + 0.2


def test_error_bars_of_lines_are_cut_at_the_plot_and_widen_it() -> None:
    line = Line("a", [(0.0, 0.5), (1.0, 0.6)], spread=[(0.1, 0.9), (math.nan, 1.0)])
    drawn = charts.line_chart([line], label="a")
    bars = re.findall(r'spread" d="M[\d.]+ ([\d.]+)V([\d.]+)" clip-path', drawn)
    assert len(bars) == 1  # the other has no known ends
    assert charts.TOP <= float(bars[0][1]) < float(bars[0][0]) <= 250 - charts.BOTTOM


def test_a_run_of_few_steps_has_a_learning_curve(tmp_path: Path) -> None:
    plan = worlds.plan_of(worlds.checkerboard(400))
    cb.Trainer(cb.models.LR(plan.schema)).fit(plan, out=tmp_path / "run", batch_size=100, limit=300).report()
    steps = [line["step"] for line in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
             if line["kind"] == "train"]  # fmt: skip
    assert steps == [1, 2, 3]
    page = (tmp_path / "run" / "report.html").read_text()
    section = page[page.index('id="learning"') : page.index('id="calibration"')]
    assert len(re.findall(r'<circle class="dot a"', section)) == 3
    assert "There was one evaluation" in section
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(summary["windows"]) == len(summary["calibration"]) == 1  # thirty rows tell nothing in twenty parts


def test_rows_without_a_time_are_counted_and_are_not_rows_of_1970(tmp_path: Path) -> None:
    log = worlds.checkerboard(1000)
    times = [None if k % 4 == 0 else t for k, t in enumerate(log.column("ts").to_pylist())]
    log = log.set_column(1, "ts", pa.array([t and t.replace(year=2024) for t in times], pa.timestamp("us")))
    plan = worlds.plan_of(log)
    run = cb.Trainer(cb.models.LR(plan.schema)).fit(
        plan, out=tmp_path / "run", batch_size=100, valid=0.4, time=cb.col("ts")
    )
    windows = run.summary["windows"]
    assert run.summary["rows_without_time"] == 100
    assert sum(w["rows"] for w in windows) == 300
    assert {w["start"][:4] for w in windows} == {"2024"}
    assert run.metrics["rows"] == 400


def test_figures_of_a_weighted_run_are_plain_in_its_report(tmp_path: Path) -> None:
    log = worlds.checkerboard(1500)
    log = log.append_column("w", pa.array(np.where(log.column("clicked").to_numpy() == 1, 9.0, 1.0)))
    plan = worlds.plan_of(log, weight=cb.col("w"))
    with pytest.warns(UserWarning, match="far from the click rate"):
        run = cb.Trainer(cb.models.LR(plan.schema)).fit(plan, out=tmp_path / "run", batch_size=20, valid=0.3, epochs=2)
    page = Page(run.report().read_text()).text
    assert f"calibration {run.metrics['calibration']:.3f}" in page
    assert "so the two cannot be compared" in page
    rate = sum(d["rate"] * d["rows"] for d in run.summary["calibration"]) / 450
    assert rate == pytest.approx(run.metrics["base_rate"])
    assert all(w["calibration"] > 1.1 for w in run.summary["windows"])
