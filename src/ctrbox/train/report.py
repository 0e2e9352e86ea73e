"""A run as one page for a person: `report.html` in the run folder, from the files of the folder alone.

The page needs nothing but itself: charts are SVG inside it, the plan's picture is part of it, there is no script.
Every text that comes from data is escaped. A folder that is damaged or no run is refused (see recorded.py).
"""

from __future__ import annotations

import base64
import datetime
import json
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ctrbox.engines.aside import written_aside
from ctrbox.show import charts
from ctrbox.show.charts import Dot, Line, Part, short, text
from ctrbox.show.page import card, named, page, section, table
from ctrbox.train.passes_shown import stage_times, tables
from ctrbox.train.recorded import Fields, Recorded, read_run
from ctrbox.train.words import duration, fixed, sized

MOST_POINTS = 240  # of a learning curve; more cannot be told apart on 500 pixels
MOST_FEATURES, MOST_SLICES, MOST_SETTINGS = 400, 40, 400
IDLE = 0.6  # below this share no stage holds the others up
OFF = 0.1  # a calibration further from 1 than this is marked

HELPS = {
    "read": (
        "reading the log",
        "Parquet with fewer, larger row groups, a nearer or faster disk, and columns that nobody reads left out",
    ),
    "extract": (
        "extracting features",
        "more threads, fewer or shorter lists (`.last(n)`), and moving what depends on one view into that view",
    ),
    "lookup": (
        "finding the unique keys of a batch",
        "fewer keys a row (`.last(n)` on long lists), larger batches, in which more keys repeat, and more threads",
    ),
    "learn": (
        "learning",
        "larger batches, smaller dims or towers, more threads, or a GPU",
    ),
    "evaluate": (
        "validating",
        "validating less often (`evaluate_every`), or on fewer rows",
    ),
    "checkpoint": (
        "writing checkpoints",
        "writing them less often (`checkpoint_seconds`), or to a faster disk",
    ),
}


# Of "lookup", where rows of its keys lie on an SSD.
FROM_SSD = (
    "finding the unique keys of a batch and reading their rows from the SSD",
    "more memory for the table (`ram`), a faster SSD, fewer keys a row, and larger batches, in which more keys repeat",
)


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder and return its path; what was there is replaced in one step."""
    run = read_run(Path(run_folder))
    whole = build(run)
    place = run.folder / "report.html"
    with written_aside(place) as aside:
        aside.write_text(whole, encoding="utf-8")
    return place


def build(run: Recorded) -> str:
    """The page of a run."""
    links = ["learning", "calibration", "time", "stages", "tables", "plan", "features", "slices", "configuration"]
    links = [link for link in links if link != "tables" or run.summary.each("tables")]
    nav = "".join(f'<a href="#{link}">{link}</a>' for link in links)
    s = run.summary
    body = [
        heading(s),
        f"<nav>{nav}</nav>",
        headline(s),
        learning(run.metrics, s),
        calibration(s),
        windows(s),
        stages(run.metrics, s),
        tables(run.metrics, s),
        plan(run.picture),
        features(s),
        slices(s),
        warnings(s),
        configuration(run),
    ]
    model, data = s.text("model") or "model", s.text("data") or "data"
    return page(f"{model} on {data}", [part for part in body if part])


# ---- the top -------------------------------------------------------------------------------------


def heading(s: Fields) -> str:
    model, data = s.text("model") or "A model", s.text("data")
    rows, seconds = s.fields("rows"), s.number("seconds")
    train, valid = rows.count("train"), rows.count("valid")
    auc, best = s.fields("metrics").number("auc"), s.fields("metrics").number("best_auc")
    words = f"{model} learned"
    words += f" from {train:,} rows" if train is not None else ""
    words += f" in {duration(seconds)}" if seconds is not None else ""
    words += f" and was tested on {valid:,} rows that it had not seen." if valid else "."
    if auc is not None:
        words += f" It ranks a click above a non-click {auc:.1%} of the time"
        words += f"; nothing could do better than {best:.1%} on this data." if best is not None else "."
    when = " · ".join(part for part in (moment(s.text("finished") or s.text("started")), s.text("machine")) if part)
    on = f" <span>on {named(data)}</span>" if data else ""
    return f'<h1>{named(model)}{on}</h1><p class="lead">{text(words, 900)}</p><p class="when">{text(when)}</p>'


def headline(s: Fields) -> str:
    m = s.fields("metrics")
    auc, gauc, best = m.number("auc"), m.number("gauc"), m.number("best_auc")
    loss, constant, rig = m.number("logloss"), m.number("best_constant_logloss"), m.number("rig")
    ratio, base = m.number("calibration"), m.number("base_rate")
    speed, between = s.number("rows_per_second"), s.number("intermediate_bytes")
    keys, held = s.fields("table").count("keys"), s.fields("table").number("bytes")

    gap = ""
    if auc is not None and best is not None:
        tone = "good" if best - auc <= 0.01 else "bad"
        gap = f'best possible {best:.4f}, gap <span class="{tone}">{best - auc:.4f}</span>'
    kept = f"{keys:,} keys" + (f" in {sized(held)}" if held is not None else "") if keys is not None else ""
    cards = [
        card("AUC", fixed(auc), gap or "a click ranked above a non-click", kind="first"),
        card("GAUC", fixed(gauc), "AUC within a group, by its rows") if gauc is not None else "",
        card("Log loss", fixed(loss), f"a constant has {constant:.4f}" if constant is not None else "nats a row"),
        card("RIG", f"{rig:.1%}" if rig is not None else "–", "of a constant's log loss gone"),
        card(
            "Calibration",
            fixed(ratio, 3),
            f"predicted ÷ clicked{f'; {base:.2%} are clicked' if base is not None else ''}",
        ),
        card("Rows a second", rate(speed), text(kept) or "from raw log to weights"),
        card("Intermediate files", "–" if between is None else sized(between), "between raw log and model"),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def warnings(s: Fields) -> str:
    met = s.values.get("warnings")
    met = met if isinstance(met, dict) else {}
    rows = [[named(name, 300), text(f"{n:,}" if isinstance(n, int) else n)] for name, n in met.items() if n]
    if not rows:
        return ""
    return section(
        "warnings", "What was odd", "Counted while the log was read.", table([("", ""), ("rows", "n")], rows)
    )


# ---- quality -------------------------------------------------------------------------------------


def learning(metrics: Sequence[Fields], s: Fields) -> str:
    raw = curve(metrics, "train", "loss")
    smooth = smoothed(raw)
    valid = curve(metrics, "valid", "logloss")
    auc = curve(metrics, "valid", "auc")
    best = s.fields("metrics").number("best_auc")
    until = max((rows for points in (raw, valid, auc) for rows, _ in points), default=None)
    loss = charts.line_chart(
        [
            Line("each report", raw, "a", faint=True),
            Line("training, smoothed", smooth, "a"),
            Line("validation", valid, "b", dots=True),
        ],
        label="log loss",
        across="rows learned",
        until=until,
    )
    ranking = charts.line_chart(
        [Line("validation AUC", auc, "b", dots=True)],
        label="AUC",
        across="rows learned",
        until=until,
        rule=(best, f"best possible {best:.4f}") if best is not None else None,
    )
    note = "Loss while learning, before each batch is learned from, and both measures on rows kept for validation."
    return section(
        "learning",
        "Learning curve",
        note,
        f'<div class="two"><div><h3>Log loss</h3>{loss}</div><div><h3>AUC</h3>{ranking}</div></div>',
    )


def curve(metrics: Sequence[Fields], kind: str, name: str) -> list[tuple[float, float]]:
    """Points (rows, value) of one measure. After a resume the later report of the same rows counts."""
    points: list[tuple[float, float]] = []
    for line in metrics:
        if line.values.get("kind") == kind:
            rows, value = line.number("rows"), line.number(name)
            if rows is None or value is None:
                continue
            while points and points[-1][0] >= rows:
                points.pop()
            points.append((rows, value))
    return thinned(points)


def thinned(points: list[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most `most` points: neighbours are averaged."""
    if len(points) <= most:
        return points
    cuts = [len(points) * i // most for i in range(most + 1)]
    groups = [points[a:b] for a, b in pairwise(cuts)]
    return [(g[-1][0], sum(v for _, v in g) / len(g)) for g in groups]


def smoothed(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Each point averaged with its neighbours: never with more behind it than before it, as curves fall at their start."""
    widest = max(1, len(points) // 25)
    found = []
    for i, (rows, _) in enumerate(points):
        before = min(i, widest)
        near = [value for _, value in points[i - before : i + before + 1]]
        found.append((rows, sum(near) / len(near)))
    return found


def calibration(s: Fields) -> str:
    dots = []
    for point in s.each("calibration"):
        p, met, rows = point.share("p"), point.share("rate"), point.count("rows")
        if p is not None and met is not None and rows:
            dots.append(Dot(p, met, rows))
    far = [d for d in dots if abs(d.predicted - d.clicked) > 3 * (d.clicked * (1 - d.clicked) / d.rows) ** 0.5 + 1e-9]
    ratio = s.fields("metrics").number("calibration")
    words = []
    if ratio is not None:
        side = "fewer" if ratio < 1 else "more"
        many = f"{abs(ratio - 1):.1%} {side} clicks than there were"
        words.append(f"Over all rows the model promises {many}." if abs(ratio - 1) >= 0.0005 else "The sum is right.")
    if dots:
        many = "No group" if not far else f"{len(far)} of {len(dots)} groups"
        words.append(f"{many} of rows of like prediction lie{'s' * (len(far) <= 1)} further off than chance explains.")
    body = f'<div class="two"><div>{charts.calibration_chart(dots)}</div><div>{_calibration_table(dots)}</div></div>'
    note = "A dot is a group of rows of like prediction: on the diagonal, as many clicked as were promised. "
    return section("calibration", "Calibration", note + text(" ".join(words), 600), body)


def _calibration_table(dots: Sequence[Dot]) -> str:
    if not dots:
        return ""
    # A table of twenty lines is read; one of two hundred is not.
    shown = dots if len(dots) <= 20 else [dots[len(dots) * i // 20] for i in range(20)]
    rows = []
    for d in shown:
        ratio = d.predicted / d.clicked if d.clicked > 0 else None
        rows.append([f"{d.predicted:.3%}", f"{d.clicked:.3%}", marked(ratio), f"{d.rows:,}"])
    return table([("predicted", "n"), ("clicked", "n"), ("ratio", "n"), ("rows", "n")], rows)


def windows(s: Fields) -> str:
    found = s.each("windows")
    if not found:
        return section("time", "Over time", "", charts.nothing("No time windows were recorded."))
    names = window_names(found)
    kinds = [("auc", "AUC", "b", None), ("logloss", "Log loss", "a", None), ("calibration", "Calibration", "c", 1.0)]
    drawn = []
    for name, title, tone, level in kinds:
        points = [(float(i), v) for i, w in enumerate(found) if (v := w.number(name)) is not None]
        chart = charts.line_chart(
            [Line(title, points, tone, dots=len(points) <= 60)],
            label=title,
            across="",
            rule=(level, "") if level is not None else None,
            names=names,
            width=380,
            height=210,
        )
        drawn.append(f"<div><h3>{title}</h3>{chart}</div>")
    counts = [n for w in found if (n := w.count("rows")) is not None]
    kind = "of time" if any(w.text("start") for w in found) else "in the order of the log"
    note = f"Validation rows in {len(found)} windows {kind}"
    note += f", {min(counts):,} to {max(counts):,} rows each. " if counts else ". "
    auc = [(v, i) for i, w in enumerate(found) if (v := w.number("auc")) is not None]
    if len(auc) > 1:
        worst, best = min(auc), max(auc)
        note += f"AUC is lowest at {text(names[worst[1]])} ({worst[0]:.4f}), highest at {text(names[best[1]])} ({best[0]:.4f})."
    return section("time", "Over time", note, f'<div class="three">{"".join(drawn)}</div>')


def window_names(found: Sequence[Fields]) -> list[str]:
    """Starts in the fewest words that tell them apart: hours within a day, days beyond; without times, first rows."""
    try:
        times = [datetime.datetime.fromisoformat(w.text("start")) for w in found]
    except ValueError:
        return [
            f"row {short(first)}" if (first := w.number("first_row")) is not None else str(i + 1)
            for i, w in enumerate(found)
        ]
    days = {t.date() for t in times}
    if len(days) == 1:
        return [f"{t:%H:%M}" for t in times]
    if len(days) == len(times) or all(t.hour == t.minute == 0 for t in times):
        return [f"{t:%b} {t.day}" for t in times]
    return [f"{t:%b} {t.day} {t:%H:%M}" for t in times]


# ---- speed ---------------------------------------------------------------------------------------


def stages(metrics: Sequence[Fields], s: Fields) -> str:
    rows = []
    for stage in s.each("stages"):
        busy, waited, used = stage.number("seconds") or 0.0, stage.number("waited") or 0.0, stage.number("utilisation")
        room = stage.number("for_room") or 0.0
        count = stage.count("rows") or 0
        note = f"{used:.0%} busy" if used is not None else ""
        note += f", {short(count / busy)} rows/s when busy" if busy > 0 and count else ""
        waits = [Part("waiting for input", waited - room, "wait"), Part("waiting for room", room, "room")]
        rows.append((stage.text("name"), [Part("busy", busy, "a"), *waits], note.strip(", ")))
    said = bottleneck(s)
    return section(
        "stages",
        "Where the time went",
        "Stages run at the same time, each on the batch after the one that the next stage has.",
        f'<p class="say">{said}</p>' if said else "",
        charts.stacked_bars(rows, strong=s.text("bottleneck")),
        stage_times(metrics, s),
    )


def bottleneck(s: Fields) -> str:
    """One sentence, as HTML: which stage the others wait for and what would help."""
    used = {stage.text("name"): stage.number("utilisation") for stage in s.each("stages")}
    name = s.text("bottleneck") or max((n for n in used if used[n] is not None), key=lambda n: used[n] or 0, default="")
    if not name:
        return ""
    share = used.get(name)
    doing, helps = HELPS.get(name, (f"stage {name!r}", ""))
    if name == "lookup" and any(t.count("misses") for t in s.each("tables")):
        doing, helps = FROM_SSD
    helps = _code(text(helps))
    if share is not None and share < IDLE:
        return (
            f"No stage is a clear bottleneck: the busiest, <b>{text(doing)}</b>, works {share:.0%} of the time. The run is "
            "short, other programs share the machine, or batches are so few that the stages hardly overlap."
        )
    busy = f", busy {share:.0%} of the time" if share is not None else ""
    return f"The bottleneck is <b>{text(doing)}</b>{busy}." + (f" What would help: {helps}." if helps else "")


def _code(escaped: str) -> str:
    parts = escaped.split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def plan(picture: bytes | None) -> str:
    if picture is None:
        return section("plan", "Plan", "", charts.nothing("This run kept no picture of its plan."))
    inside = base64.b64encode(picture).decode("ascii")
    body = (
        '<input type="checkbox" id="full"><label for="full"><span class="real">show in full size</span>'
        '<span class="fit">fit to the page</span></label>'
        f'<div class="plan"><img alt="the plan: operators by layer" src="data:image/svg+xml;base64,{inside}"></div>'
    )
    note = "From raw columns at the top to features at the bottom. <code>plan.svg</code> in this folder names each operator."
    return section("plan", "Plan", note, body)


# ---- features and slices -------------------------------------------------------------------------


def features(s: Fields) -> str:
    found = s.each("features")
    if not found:
        return section("features", "Features", "", charts.nothing("No features were recorded."))
    ranked = sorted(found, key=lambda f: (f.number("importance") is None, -(f.number("importance") or 0.0)))
    gains = [v for f in found if (v := f.number("importance")) is not None]
    low, high = min([0.0, *gains]), max([0.0, *gains])
    rows = []
    for f in ranked[:MOST_FEATURES]:
        gain, coverage, keys, distinct = (f.number(n) for n in ("importance", "coverage", "keys", "distinct"))
        weight = charts.bar(
            gain, low, high, f"AUC {-(gain or 0):+.5f} without it", tone="b" if (gain or 0) < 0 else "a"
        )
        filled = charts.bar(coverage, 0, 1, f"{coverage or 0:.2%} of rows", tone="c", width=70)
        space = f.text("space")
        shared = f' <small class="muted">keys of {named(space)}</small>' if space and space != f.text("name") else ""
        rows.append(
            [
                named(f.text("name")) + shared,
                f'<span class="chip">{text(f.text("kind"), 20)}</span>',
                f'<div class="pair">{filled}<span>{share(coverage)}</span></div>',
                f"{keys:.4g}" if keys is not None else "",
                f"{distinct:,.0f}" if distinct is not None else "",
                f'<div class="pair">{weight}<span>{fixed(gain, 5) if gain is not None else ""}</span></div>',
            ]
        )
    heads = [("feature", "name"), ("kind", ""), ("coverage", ""), ("keys a row", "n"), ("distinct keys", "n")]
    words = "Importance is the AUC lost when a feature's values are shuffled among the validation rows."
    idle = [f.text("name") for f in found if (v := f.number("importance")) is not None and v <= 0]
    if idle and gains:
        many = "1 feature" if len(idle) == 1 else f"{len(idle)} features"
        words += f" Nothing is lost without {many}: {', '.join(idle[:6])}{'…' if len(idle) > 6 else ''}."
    if len(ranked) > MOST_FEATURES:
        words += f" The first {MOST_FEATURES} of {len(ranked):,} are shown."
    return section("features", "Features", text(words, 900), table([*heads, ("importance", "")], rows))


def slices(s: Fields) -> str:
    found = s.each("slices")
    if not found:
        return section("slices", "Where the model is worst", "", charts.nothing("No slices were recorded."))
    rows = []
    for f in found[:MOST_SLICES]:
        count, clicks = f.count("rows"), f.count("clicks")
        rows.append(
            [
                f"{named(f.text('field'), 60)} = {named(_value(f.values.get('value')), 80)}",
                f"{count:,}" if count is not None else "",
                f"{clicks:,}" if clicks is not None else "",
                fixed(f.number("auc")),
                fixed(f.number("logloss")),
                marked(f.number("calibration")),
                named(f.text("reason").removeprefix(f"{f.text('field')} = {_value(f.values.get('value'))}: "), 300),
            ]
        )
    heads = [("slice", "name"), ("rows", "n"), ("clicks", "n"), ("AUC", "n"), ("log loss", "n"), ("calibration", "n")]
    return section(
        "slices",
        "Where the model is worst",
        "Parts of the validation rows, worst first.",
        table([*heads, ("why", "why")], rows),
    )


# ---- the bottom ----------------------------------------------------------------------------------


def configuration(run: Recorded) -> str:
    settings = list(flat(run.config.values))
    rows = [[named(name), text(value, 400)] for name, value in settings[:MOST_SETTINGS]]
    mark = run.config.fields("identity").text("plan")
    return section(
        "configuration",
        "Configuration",
        f"Fingerprint of the plan: <code>{text(mark)}</code>" if mark else "",
        "<h3>Run it again</h3>",
        f"<pre>{text(reproduce(run), 4000)}</pre>",
        "<details><summary>All settings</summary>",
        table([("setting", "name"), ("value", "value")], rows),
        "</details>",
    )


def reproduce(run: Recorded) -> str:
    """The command that gives this run again; where the run came from Python, the call."""
    command = run.config.values.get("command")
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        return shlex.join(command)
    settings = run.config.fields("identity").fields("settings").values
    asked = [f"{name}={value!r}" for name, value in settings.items() if isinstance(value, int | float) and value]
    return f"cb.Trainer(model, table).fit(plan, {', '.join([*asked, f'out={str(run.folder)!r}'])})"


def flat(values: dict[str, Any], path: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Nested settings as dotted names and values."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        at = f"{path}.{name}" if path else str(name)
        if isinstance(value, dict) and value and depth < 6:
            found += flat(value, at, depth + 1)
        else:
            found.append((at, _value(value)))
    return found


# ---- words ---------------------------------------------------------------------------------------


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def rate(speed: float | None) -> str:
    """Rows a second in the room of a card."""
    return "–" if speed is None else f"{speed:,.0f}" if speed < 1e5 else short(float(f"{speed:.3g}"))


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def marked(ratio: float | None) -> str:
    """A calibration, coloured where it is far from 1."""
    if ratio is None:
        return "–"
    return f'<span class="bad">{fixed(ratio, 3)}</span>' if abs(ratio - 1) > OFF else fixed(ratio, 3)


def moment(iso: str) -> str:
    try:
        when = datetime.datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{when.day} {when:%B %Y, %H:%M}"
