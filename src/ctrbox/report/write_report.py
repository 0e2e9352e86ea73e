"""Writes ``report.html`` into a run folder, from the files of the folder alone.

The page needs no other files: the charts are SVG inside it, and so is the picture of the plan; there is no script.
Every text that comes from data is escaped. A folder that is damaged or contains no run is refused (see
read_recorded_files.py).
"""

from __future__ import annotations

import base64
import datetime
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctrbox.evaluate.auc_of_many_sets import LEAST_GROUPS
from ctrbox.files.atomic import written_aside
from ctrbox.files.urls import local_path
from ctrbox.report.bottleneck import CLEAR, StageShares, least_waiting
from ctrbox.report.calibration_section import calibrator
from ctrbox.report.number_format import duration, few_groups, fixed, learned_rows, sized
from ctrbox.report.quality_sections import between, calibration, features, learning, slices, weights, windows
from ctrbox.report.read_recorded_files import Fields, Recorded, read_run
from ctrbox.report.several_labels import tasks_shown
from ctrbox.report.speed_section import stage_times, tables
from ctrbox.show import charts
from ctrbox.show.charts import Part, short, text
from ctrbox.show.page import card, named, page, section, table

MOST_SETTINGS = 400
SCHEDULES = ("Warmup(", "Cosine(", "Decay(", "ReduceOnPlateau(")  # of cb.optim
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
        "fewer keys per row (`.last(n)` on long lists), larger batches, in which more keys repeat, and more threads",
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
    "more memory for the table (`ram`), a faster SSD, fewer keys per row, and larger batches, in which more keys repeat",
)


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder and return its path; what was there is replaced in one step."""
    run = read_run(local_path(run_folder, "a run folder"))
    whole = build(run)
    place = run.folder / "report.html"
    with written_aside(place) as aside:
        aside.write_text(whole, encoding="utf-8")
    return place


def build(run: Recorded) -> str:
    """Return the HTML page of a run."""
    links = [
        "weights",
        "learning",
        "calibration",
        "calibrator",
        "time",
        "stages",
        "tables",
        "plan",
        "features",
        "slices",
        "configuration",
    ]
    weighted = run.summary.fields("metrics").number("weighted_logloss") is not None
    there = {"tables": bool(run.summary.each("tables")), "weights": weighted}
    there["calibrator"] = bool(run.summary.fields("calibrator").values)
    several = bool(tasks_shown(run.summary))
    there |= dict.fromkeys(("calibration", "time", "features", "slices"), not several)
    links = [*(["labels"] if several else []), *(link for link in links if there.get(link, True))]
    nav = "".join(f'<a href="#{link}">{link}</a>' for link in links)
    s = run.summary
    body = [
        heading(s),
        f"<nav>{nav}</nav>",
        tasks_shown(s) or headline(s),
        weights(s),
        learning(run.metrics, s),
        "" if several else calibration(s),
        calibrator(s),
        "" if several else windows(s),
        stages(run.metrics, s),
        tables(run.metrics, s),
        plan(run.picture),
        "" if several else features(s),
        "" if several else slices(s),
        joins(s),
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
    m = s.fields("metrics")
    auc, best = m.number("auc"), m.number("best_auc")
    words = f"{model} learned"
    if train is not None:
        whole = not s.values.get("stopped") and s.fields("settings").values.get("negatives", 1) == 1
        learned = learned_rows(train, s.count("epochs") or 1, whole=whole)
        words += f" from {learned}" + ("," if (s.count("epochs") or 1) > 1 and seconds is not None else "")
    words += f" in {duration(seconds)}" if seconds is not None else ""
    if valid:
        which = "the last rows of the log" if s.fields("held").values else "rows of another log"
        words += f" and was tested on {valid:,} rows that it had not learned from, {which}."
    else:
        words += "; no rows were held back to test it on."
    if auc is not None:
        words += f" It gives a click a higher score than a non-click in {auc:.1%} of all click/non-click pairs"
        words += f" (95 % interval {span})." if (span := between(m, "auc", percent=True)) else "."
        words += f" The best possible model would reach {best:.1%} on this data." if best is not None else ""
    if valid and s.fields("settings").number("patience") is not None:
        words += " The same rows decided when to stop training, so the figures are slightly too good."
    when = " · ".join(part for part in (moment(s.text("finished") or s.text("started")), s.text("machine")) if part)
    on = f" <span>on {named(data)}</span>" if data else ""
    return f'<h1>{named(model)}{on}</h1><p class="lead">{text(words, 1200)}</p><p class="when">{text(when)}</p>'


def headline(s: Fields) -> str:
    m = s.fields("metrics")
    auc, gauc, best = m.number("auc"), m.number("gauc"), m.number("best_auc")
    loss, constant, rig = m.number("logloss"), m.number("best_constant_logloss"), m.number("rig")
    ratio, base = m.number("calibration"), m.number("base_rate")
    speed, intermediate = s.number("rows_per_second"), s.number("intermediate_bytes")
    keys, held = s.fields("table").count("keys"), s.fields("table").number("bytes")

    def note(name: str, about: str, digits: int = 4, percent: bool = False) -> str:
        ends = between(m, name, digits, percent)
        return (f"95 %: {ends}<br>" if ends else "") + about

    gap = ""
    if auc is not None and best is not None:
        tone = "good" if best - auc <= 0.01 else "bad"
        gap = f'best possible {best:.4f}, gap <span class="{tone}">{best - auc:.4f}</span>'
    kept = f"{keys:,} keys" + (f" in {sized(held)}" if held is not None else "") if keys is not None else ""
    groups = m.count("gauc_groups")
    of = f" over {groups:,} groups with clicks and non-clicks" if groups is not None else ""
    within = f"AUC within a group{of}"
    if few_groups(gauc, groups):
        within += f"; fewer than {LEAST_GROUPS} groups give no interval"
    else:
        within = note("gauc", within)
    cards = [
        card("AUC", fixed(auc), note("auc", gap or "how often a click outranks a non-click"), kind="first"),
        card("GAUC", fixed(gauc), within) if gauc is not None else "",
        card(
            "Log loss",
            fixed(loss),
            note(
                "logloss",
                f"always predicting the click rate gives {constant:.4f}" if constant is not None else "nats per row",
            ),
        ),
        card(
            "Information gain",
            f"{rig:.1%}" if rig is not None else "–",
            note("rig", "lower log loss than always predicting the click rate (RIG)", percent=True),
        ),
        card(
            "Calibration",
            fixed(ratio, 3),
            note(
                "calibration",
                f"predicted ÷ actual clicks{f'; {base:.2%} of rows clicked' if base is not None else ''}",
                3,
            ),
        ),
        card("Rows per second", rate(speed), text(kept) or "from raw log to weights"),
        card("Intermediate files", "–" if intermediate is None else sized(intermediate), "between raw log and model"),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def joins(s: Fields) -> str:
    rows = []
    for join in s.each("joins"):
        keys, missed, on = join.count("keys"), join.count("missed"), join.values.get("on")
        if not keys:
            continue
        columns = ", ".join(map(str, on)) if isinstance(on, list) else ""
        share = f"{(missed or 0) / keys:.1%}"
        rows.append([named(join.text("view")), text(columns), text(f"{keys:,}"), text(f"{missed or 0:,}"), text(share)])
    if not rows:
        return ""
    return section(
        "joins",
        "Joins",
        "Keys that were looked up in joined and merged views while the log was read, over all epochs, nulls left out. A key "
        "without a row gets the null or filled values of its view.",
        table([("view", "name"), ("on", "name"), ("keys", "n"), ("without a row", "n"), ("share", "n")], rows),
    )


def warnings(s: Fields) -> str:
    met = s.values.get("warnings")
    met = met if isinstance(met, dict) else {}
    first = {f"{cast.text('cast')} of {cast.text('column')!r}": cast.text("example") for cast in s.each("casts")}
    rows = [
        [named(name, 300), text(f"{n:,}" if isinstance(n, int) else n), named(first.get(name, ""), 100)]
        for name, n in met.items()
        if n
    ]
    if not rows:
        return ""
    return section(
        "warnings",
        "Warnings",
        "Values that could not be used, counted while the log was read, over all epochs. A value that a cast cannot convert, "
        "or that has another type than its JSON path asks for, becomes null.",
        table([("what", "name"), ("count", "n"), ("first value", "name")], rows),
    )


# ---- speed ---------------------------------------------------------------------------------------


def stages(metrics: Sequence[Fields], s: Fields) -> str:
    rows = []
    for stage in s.each("stages"):
        busy, waited, used = stage.number("seconds") or 0.0, stage.number("waited") or 0.0, stage.number("utilization")
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
        "The stages run at the same time: while one batch is learned from, the next ones are already read and looked up.",
        f'<p class="say">{said}</p>' if said else "",
        charts.stacked_bars(rows, strong=s.text("bottleneck")),
        stage_times(metrics, s),
    )


def bottleneck(s: Fields) -> str:
    """Say in one sentence, as HTML, which stage the others wait for and what would help."""
    shares = recorded_shares(s)
    found = least_waiting(shares)
    name = s.text("bottleneck") or (found.name if found is not None else "")
    if not name:
        return ""
    share = next((stage.busy for stage in shares if stage.name == name), None)
    doing, helps = HELPS.get(name, (f"stage {name!r}", ""))
    if name == "lookup" and any(t.count("misses") for t in s.each("tables")):
        doing, helps = FROM_SSD
    helps = _code(text(helps))
    if share is not None and share < CLEAR:
        return (
            f"No stage is a clear bottleneck: even the stage that waits least, <b>{text(doing)}</b>, works only {share:.0%} of "
            "the time. Possible causes: the run is short, other programs share the machine, or there are too few batches to "
            "overlap."
        )
    busy = f", busy {share:.0%} of the time" if share is not None else ""
    return f"The bottleneck is <b>{text(doing)}</b>{busy}." + (f" What would help: {helps}." if helps else "")


def recorded_shares(s: Fields) -> list[StageShares]:
    """Return how the stages spent the time of the passes; runs of earlier versions recorded only how busy each was."""
    found = [
        StageShares(stage.text("name"), busy, waited)
        for stage in s.fields("pipeline").each("stages")
        if (busy := stage.share("busy")) is not None and (waited := stage.share("waited")) is not None
    ]
    return found or [
        StageShares(stage.text("name"), used, 1 - used)
        for stage in s.each("stages")
        if (used := stage.number("utilization")) is not None
    ]


def _code(escaped: str) -> str:
    parts = escaped.split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def plan(picture: bytes | None) -> str:
    if picture is None:
        return section("plan", "Plan", "", charts.nothing("This run kept no picture of its plan."))
    inside = base64.b64encode(picture).decode("ascii")
    body = (
        '<input type="checkbox" id="full"><label for="full"><span class="real">show the whole plan at once</span>'
        '<span class="fit">show it at a readable size</span></label>'
        f'<div class="plan"><img alt="the plan: operators by layer" src="data:image/svg+xml;base64,{inside}"></div>'
    )
    note = (
        "From raw columns at the top to features at the bottom; joined views stand above the log. <code>plan.svg</code> in "
        "this folder is the same picture: there, hovering over a box says what it computes."
    )
    return section("plan", "Plan", note, body)


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
    """Return the command that repeats this run or, if the run was started from Python, the call."""
    command = run.config.values.get("command")
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        return shlex.join(command)
    settings = dict(run.config.fields("identity").fields("settings").values)
    schedule = settings.pop("schedule", None)
    asked = [f"{name}={value!r}" for name, value in settings.items() if isinstance(value, int | float | str) and value]
    if settings.get("valid") == 0:  # another share is the default
        asked.append(f"valid={'valid_plan' if run.summary.fields('rows').count('valid') else 0}")
    if isinstance(schedule, str) and schedule != "Constant()":
        # The record of a function is its name and a checksum.
        asked.append(f"schedule=cb.optim.{schedule}" if schedule.startswith(SCHEDULES) else "schedule=schedule")
    return f"cb.Trainer(model, table).fit(plan, {', '.join([*asked, f'out={str(run.folder)!r}'])})"


def flat(values: dict[str, Any], path: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Return nested settings as pairs of dotted names and values."""
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
    """Format rows per second so that they fit into a card."""
    return "–" if speed is None else f"{speed:,.0f}" if speed < 1e5 else short(float(f"{speed:.3g}"))


def moment(iso: str) -> str:
    try:
        when = datetime.datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{when.day} {when:%B %Y, %H:%M}"
