"""Writes the report's sections on quality: learning curve, calibration, windows, features and slices.

Every figure has its 95 % interval, and a difference within the interval is not reported as a finding. If many windows,
groups or slices are compared, the level is divided by their number (Bonferroni).
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from ctrbox.evaluate.calibration import weights_advice
from ctrbox.evaluate.log_loss_from_sums import Z, wilson
from ctrbox.report.number_format import fixed
from ctrbox.report.read_recorded_files import Fields
from ctrbox.show import charts
from ctrbox.show.charts import Dot, Line, short, text
from ctrbox.show.page import named, section, table

MOST_POINTS = 240  # of a learning curve; more cannot be told apart on 500 pixels
MOST_FEATURES, MOST_SLICES = 400, 40
LEVEL = 0.05  # the chance that a section names something that is not there


def between(m: Fields, name: str, digits: int = 4, percent: bool = False) -> str:
    """Return the 95 % interval of a figure in words, or "" if it is not known."""
    low, high = m.number(f"{name}_low"), m.number(f"{name}_high")
    if low is None or high is None:
        return ""
    return f"{low:.1%} to {high:.1%}" if percent else f"{fixed(low, digits)} to {fixed(high, digits)}"


# ---- weights -------------------------------------------------------------------------------------

TITLES = {
    "auc": "AUC",
    "gauc": "GAUC",
    "logloss": "Log loss",
    "rig": "Information gain",
    "calibration": "Calibration",
    "base_rate": "Click rate",
    "mean_prediction": "Mean prediction",
}


def weights(s: Fields) -> str:
    """Set the figures of rows that count alike beside those by sample weight."""
    m = s.fields("metrics")
    rows = []
    for name, title in TITLES.items():
        plain, weighted = m.number(name), m.number(f"weighted_{name}")
        if weighted is not None:
            ends = [between(m, name), between(m, f"weighted_{name}")]
            rows.append([text(title), fixed(plain), ends[0], fixed(weighted), ends[1]])
    if not rows:
        return ""
    calibrate = s.fields("settings").values.get("calibrate")
    numbers = {name: v for name in m.values if (v := m.number(name)) is not None}
    advice = weights_advice(numbers, corrected=calibrate is not None) if _has(numbers) else ""
    shift = s.number("logit_shift")
    words = (
        "The rows have sample weights. The rest of this report counts all rows equally; this table shows both the unweighted and "
        "the weighted figures. "
    )
    if shift:
        words += f"{shift:+.4f} was added to every logit to correct for sample weights or downsampled negatives. "
    if calibrate == "intercept":
        words += "The correction was fitted to these same rows, so that their calibration is 1 by construction. "
    said = f'<p class="say">{text(advice[:1].upper() + advice[1:], 900)}.</p>' if advice else ""
    heads = [
        ("figure", "name"),
        ("all rows alike", "n"),
        ("95 % interval", "n"),
        ("by weight", "n"),
        ("95 % interval", "n"),
    ]
    return section("weights", "With and without weights", text(words, 900), said, table(heads, rows))


def _has(numbers: dict[str, float]) -> bool:
    return all(name in numbers for name in ("mean_prediction", "base_rate", "calibration", "weighted_calibration"))


# ---- the learning curve --------------------------------------------------------------------------


def learning(metrics: Sequence[Fields], s: Fields) -> str:
    raw = curve(metrics, "train", "loss")
    smooth = smoothed(raw)
    valid, auc = curve(metrics, "valid", "logloss"), curve(metrics, "valid", "auc")
    valid = valid or curve(metrics, "valid", "loss")  # a run with several labels has this one
    best = s.fields("metrics").number("best_auc")
    until = max((rows for points in (raw, valid, auc) for rows, _ in points), default=None)
    loss = charts.line_chart(
        [
            Line("each record", raw, "a", faint=True),
            Line("training, smoothed", smooth, "a", dots=len(raw) <= 12),
            Line("validation", valid, "b", dots=True, spread=reach(curve(metrics, "valid", "logloss_se"), valid)),
        ],
        label="log loss",
        across="rows learned",
        until=until,
    )
    ranking = charts.line_chart(
        [Line("validation AUC", auc, "b", dots=True, spread=reach(curve(metrics, "valid", "auc_se"), auc))],
        label="AUC",
        across="rows learned",
        until=until,
        rule=(best, f"best possible {best:.4f}") if best is not None else None,
    )
    note = (
        "The training loss is that of each batch before it is learned from, averaged over about 20 steps. Validation is on "
        "rows that are not learned from; bars show 95 % intervals."
    )
    if s.fields("metrics").number("weighted_logloss") is not None:
        note += " The training loss is weighted and the validation loss is not, so the two cannot be compared."
    if len(auc) == 1:
        note += " There was one evaluation; <code>evaluate_every=</code> (steps) gives more points."
    return section(
        "learning",
        "Learning curve",
        note,
        f'<div class="two"><div><h3>Log loss</h3>{loss}</div><div><h3>AUC</h3>{ranking}</div></div>',
    )


def reach(errors: list[tuple[float, float]], points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the ends of the bar through each point; a point whose error is not known has none."""
    known = dict(errors)
    return [(v - Z * known.get(rows, 0.0), v + Z * known.get(rows, 0.0)) for rows, v in points]


def curve(metrics: Sequence[Fields], kind: str, name: str) -> list[tuple[float, float]]:
    """Return the points (rows, value) of one measure. If a resumed run reports the same rows again, the later report counts."""
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
    """Return at most ``most`` points by averaging neighbors."""
    if len(points) <= most:
        return points
    cuts = [len(points) * i // most for i in range(most + 1)]
    groups = [points[a:b] for a, b in pairwise(cuts)]
    return [(g[-1][0], sum(v for _, v in g) / len(g)) for g in groups]


def smoothed(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Average each point with its neighbors, but never with more points after it than before it, because curves fall at
    their start.
    """
    widest = max(1, len(points) // 25)
    found = []
    for i, (rows, _) in enumerate(points):
        before = min(i, widest)
        near = [value for _, value in points[i - before : i + before + 1]]
        found.append((rows, sum(near) / len(near)))
    return found


# ---- calibration ---------------------------------------------------------------------------------


def dots_of(points: Iterable[Fields], predicted: str, met: str) -> list[Dot]:
    """Return a dot with its interval for each group of rows; ``predicted`` and ``met`` name the fields with its two rates."""
    found = []
    for point in points:
        p, rate, rows = point.share(predicted), point.share(met), point.count("rows")
        if p is not None and rate is not None and rows:
            found.append(Dot(p, rate, rows, *wilson(rate, rows)))
    return found


def calibration(s: Fields) -> str:
    dots = dots_of(s.each("calibration"), "p", "rate")
    far = [differs(d, len(dots)) for d in dots]
    words = [
        "Each dot is a group of rows with similar predictions. On the diagonal, as many rows were clicked as predicted."
    ]
    m = s.fields("metrics")
    ratio, low, high = (m.number(f"calibration{end}") for end in ("", "_low", "_high"))
    if ratio is not None:
        side = "fewer" if ratio < 1 else "more"
        known = low is not None and high is not None
        span = (
            f" (calibration {ratio:.3f}, 95 % interval {low:.3f} to {high:.3f})"
            if known
            else f" (calibration {ratio:.3f})"
        )
        if known and low <= 1 <= high:  # type: ignore[operator]
            words.append(f"Over all rows, predicted and actual clicks agree as far as these rows can tell{span}.")
        else:
            words.append(f"Over all rows, the model predicts {abs(ratio - 1):.1%} {side} clicks than there were{span}.")
    elif m.count("clicks") == 0:
        words.append("No row was clicked, so there is no ratio of predicted to actual clicks.")
    if dots:
        many = "None" if not any(far) else f"{sum(far)}"
        words.append(f"{many} of the {len(dots)} groups differ{'s' * (sum(far) == 1)} by more than chance explains.")
        if len(dots) > 1:
            words.append(corrected(len(dots), "groups"))
            words.append(
                "The 95 % intervals of the table are of one group each: about 1 in 20 of them misses by chance."
            )
    body = (
        f'<div class="two"><div>{charts.calibration_chart(dots)}</div><div>{_calibration_table(dots, far)}</div></div>'
    )
    return section("calibration", "Calibration", text(" ".join(words), 1200), body)


def corrected(count: int, things: str) -> str:
    """Say that a limit allows for so many comparisons."""
    return (
        f"The limit is corrected for {count:,} comparisons: without a real difference, the probability that any of the {things} "
        f"is named is at most {LEVEL:.0%}."
    )


def differs(d: Dot, looked_at: int) -> bool:
    """Say whether chance explains a difference with a probability below LEVEL for all groups together (Chernoff)."""
    q = min(max(d.predicted, 1e-7), 1 - 1e-7)
    parts = [r * math.log(r / e) for r, e in ((d.clicked, q), (1 - d.clicked, 1 - q)) if r > 0]
    return d.rows * sum(parts) > math.log(2 * max(looked_at, 1) / LEVEL)


def _calibration_table(dots: Sequence[Dot], far: Sequence[bool]) -> str:
    if not dots:
        return ""
    # A table of twenty lines is read; one of two hundred is not.
    places = range(len(dots)) if len(dots) <= 20 else [len(dots) * i // 20 for i in range(20)]
    rows = []
    for k in places:
        d = dots[k]
        ratio = d.predicted / d.clicked if d.clicked > 0 else None
        rows.append(
            [
                f"{d.predicted:.3%}",
                f"{d.clicked:.3%}",
                f"{d.low:.2%} to {d.high:.2%}",
                marked(ratio, far[k]),
                f"{d.rows:,}",
            ]
        )
    heads = [("predicted", "n"), ("clicked", "n"), ("95 % interval", "n"), ("ratio", "n"), ("rows", "n")]
    return table(heads, rows)


# ---- windows -------------------------------------------------------------------------------------


def windows(s: Fields) -> str:
    found = s.each("windows")
    if not found:
        return section("time", "Over time", "", charts.nothing("No time windows were recorded."))
    names = window_names(found)
    kinds = [("auc", "AUC", "b", None), ("logloss", "Log loss", "a", None), ("calibration", "Calibration", "c", 1.0)]
    drawn = []
    for name, title, tone, level in kinds:
        known = [(float(i), v, w) for i, w in enumerate(found) if (v := w.number(name)) is not None]
        points = [(i, v) for i, v, _ in known]
        ends = [
            (
                v if (low := w.number(f"{name}_low")) is None else low,
                v if (high := w.number(f"{name}_high")) is None else high,
            )
            for _, v, w in known
        ]
        chart = charts.line_chart(
            [Line(title, points, tone, dots=len(points) <= 60, spread=ends)],
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
    each = f"{min(counts):,}" + (f" to {max(counts):,}" if min(counts) < max(counts) else "") if counts else ""
    note += f", {each} row{'s' * (max(counts) > 1)} each; bars show 95 % intervals. " if counts else ". "
    note += text(odd_windows(found, names, s.fields("metrics").number("auc")), 900)
    untimed = s.count("rows_without_time")
    note += f" {untimed:,} rows have no time and are in no window." if untimed else ""
    return section("time", "Over time", note, f'<div class="three">{"".join(drawn)}</div>')


def odd_windows(found: Sequence[Fields], names: Sequence[str], overall: float | None) -> str:
    """Name the windows whose AUC differs from that of all rows by more than chance explains."""
    known = [
        (value, se, names[i])
        for i, w in enumerate(found)
        if (value := w.number("auc")) is not None and (se := w.number("auc_se")) is not None and se > 0
    ]
    if overall is None or len(known) < 2:
        return ""
    far = NormalDist().inv_cdf(1 - LEVEL / 2 / len(known))
    odd = sorted((value, name) for value, se, name in known if abs(value - overall) > far * se)
    told = corrected(len(known), "windows")
    if not odd:
        return f"AUC differs between windows by no more than chance explains. {told}"
    listed = ", ".join(f"{name} ({value:.4f})" for value, name in (odd if len(odd) <= 4 else [*odd[:2], *odd[-2:]]))
    some = "" if len(odd) <= 4 else ", the two lowest and the two highest being"
    many = "One window differs" if len(odd) == 1 else f"{len(odd)} windows differ"
    return f"{many} from the AUC of all rows by more than chance explains{some or ':'} {listed}. {told}"


def window_names(found: Sequence[Fields]) -> list[str]:
    """Return short names of windows: the hours if all are on one day, otherwise the days; without times, the first rows."""
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


# ---- features ------------------------------------------------------------------------------------


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
        sure = not useless(f)
        weight = charts.bar(gain, low, high, f"AUC {-(gain or 0):+.5f} without it", tone="a" if sure else "wait")
        filled = charts.bar(coverage, 0, 1, f"{coverage or 0:.2%} of rows", tone="c", width=70)
        space = f.text("space")
        shared = f' <small class="muted">keys of {named(space)}</small>' if space and space != f.text("name") else ""
        rows.append(
            [
                named(f.text("name")) + shared,
                f'<span class="chip">{text(f.text("kind"), 20)}</span>',
                f'<div class="pair">{filled}<span>{"" if coverage is None else f"{coverage:.1%}"}</span></div>',
                f"{keys:.4g}" if keys is not None else "",
                f"{distinct:,.0f}" if distinct is not None else "",
                f'<div class="pair">{weight}<span>{fixed(gain, 5) if gain is not None else "not read"}</span></div>',
                between(f, "importance", 5),
            ]
        )
    heads = [("feature", "name"), ("kind", ""), ("coverage", ""), ("keys per row", "n"), ("distinct keys", "n")]
    heads += [("importance", ""), ("interval", "n")]
    words = "Importance is the AUC that is lost when the values of a feature are shuffled among up to 20,000 validation rows."
    words += " The intervals are simultaneous: with 95 % probability all of them contain the true value."
    idle = [f.text("name") for f in ranked if f.number("importance") is not None and useless(f)]
    if idle:
        many = "1 feature" if len(idle) == 1 else f"{len(idle)} features"
        names = ", ".join(idle[:6]) + ("…" if len(idle) > 6 else "")
        words += f" For {many} the interval includes 0, so these rows do not show that the model benefits: {names}."
    words += " If two features carry the same information, both look unimportant."
    if len(ranked) > MOST_FEATURES:
        words += f" The first {MOST_FEATURES} of {len(ranked):,} are shown."
    return section("features", "Features", text(words, 900), table(heads, rows))


def useless(f: Fields) -> bool:
    """Say whether the rows do not show that a feature helps: its interval reaches down to 0, or is not known."""
    low, gain = f.number("importance_low"), f.number("importance")
    return (gain or 0.0) <= 0 if low is None else low <= 0


# ---- slices --------------------------------------------------------------------------------------


def slices(s: Fields) -> str:
    found, without, asked = s.each("slices"), s.each("slices_without_figures"), s.each("slices_asked_for")
    looked = s.count("slices_looked_at")
    if not found and not without and not looked:
        return section("slices", "Where the model is worst", "", charts.nothing("No slices were recorded."))
    heads = [("slice", "name"), ("rows", "n"), ("clicks", "n"), ("AUC", "n"), ("log loss", "n"), ("calibration", "n")]
    of = f"Of {looked:,} slices of the validation rows, " if looked else "Of the slices of the validation rows, "
    if found:
        note = (
            of + "these show errors larger than chance explains, the clearest first. Small figures are 95 % intervals."
        )
        body = table([*heads, ("what is wrong", "why")], [_slice(f) for f in found[:MOST_SLICES]])
    else:
        note, body = of + "none shows errors larger than chance explains.", ""
    if looked and looked > 1:
        note += f" {corrected(looked, 'slices')}"
    if without:
        body += (
            '<h3 class="under">Slices without a figure</h3><p class="note">All of their rows are clicks, or none is: AUC and '
            "calibration are not defined, and they are not compared with the others.</p>"
        )
        rows = [
            [
                f"{named(f.text('field'), 60)} = {named(_value(f.values.get('value')), 80)}",
                *(f"{n:,}" if (n := f.count(name)) is not None else "" for name in ("rows", "clicks")),
                f"{p:.3%}" if (p := f.number("mean_prediction")) is not None else "",
                between(f, "base_rate", percent=True),
            ]
            for f in without[:MOST_SLICES]
        ]
        last = [("mean prediction", "n"), ("95 % interval of the click rate", "n")]
        body += table([*heads[:3], *last], rows)
    if asked:
        body += (
            '<h3 class="under">Slices of by=</h3><p class="note">Every slice of the expressions in the setting <code>by=</code>, '
            "whether or not the model is bad there.</p>"
        )
        body += table(heads, [_slice(f)[: len(heads)] for f in asked])
    return section("slices", "Where the model is worst", text(note, 600), body)


def _slice(f: Fields) -> list[str]:
    count, clicks = f.count("rows"), f.count("clicks")
    low, high = f.number("calibration_low"), f.number("calibration_high")
    off = low is not None and high is not None and not low <= 1 <= high
    where = f"{f.text('field')} = {_value(f.values.get('value'))}: "

    def with_interval(shown: str, name: str, digits: int) -> str:
        ends = between(f, name, digits)
        return shown + (f'<br><small class="muted">{ends}</small>' if ends else "")

    return [
        f"{named(f.text('field'), 60)} = {named(_value(f.values.get('value')), 80)}",
        f"{count:,}" if count is not None else "",
        f"{clicks:,}" if clicks is not None else "",
        with_interval(fixed(f.number("auc")), "auc", 3),
        with_interval(fixed(f.number("logloss")), "logloss", 3),
        with_interval(marked(f.number("calibration"), off), "calibration", 2),
        named(f.text("reason").removeprefix(where), 300),
    ]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def marked(ratio: float | None, off: bool) -> str:
    """Show a calibration, colored where it is further from 1 than chance explains."""
    if ratio is None:
        return "–"
    return f'<span class="bad">{fixed(ratio, 3)}</span>' if off else fixed(ratio, 3)
