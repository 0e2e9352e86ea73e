"""Draws charts as plain SVG text: lines, calibration dots, horizontal bars and stacked bars.

A chart carries no color of its own: marks have classes (`a`, `b`, `c`, `faint`, …) that STYLE paints in light and in
dark. Hovering over a mark shows its numbers through `<title>`; there is no script. Values that are not finite are
left out, and a chart with nothing to draw is a sentence. All text given to a chart is escaped here.
"""

from __future__ import annotations

import html
import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

# A value beyond this cannot be told apart on a picture, and its distance to another could overflow.
LARGEST = 1e300
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 12, 40

# Not allowed in HTML, or able to break the file: controls, lone surrogates, non-characters.
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

STYLE = """
svg.chart{display:block;width:100%;height:auto;overflow:visible;font:11px system-ui,sans-serif}
.chart text{fill:var(--muted)}.chart .name{fill:var(--ink)}.chart .strong{fill:var(--ink);font-weight:600}
.chart .grid{stroke:var(--line);stroke-width:1}.chart .axis{stroke:var(--edge);stroke-width:1}
.chart .mark{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.chart .faint{stroke-width:1;opacity:.28}
.chart .rule{stroke:var(--muted);stroke-width:1.2;stroke-dasharray:5 4;fill:none}
.chart .a{stroke:var(--a)}.chart .b{stroke:var(--b)}.chart .c{stroke:var(--c)}
.chart circle.a,.chart rect.a{fill:var(--a);stroke:none}.chart circle.b,.chart rect.b{fill:var(--b);stroke:none}
.chart circle.c,.chart rect.c{fill:var(--c);stroke:none}.chart rect.wait{fill:var(--wait)}
.chart rect.room{fill:var(--room)}
.chart rect.idle{fill:var(--well)}.chart circle.dot{stroke:var(--card);stroke-width:1.5}
.chart circle.through{fill-opacity:.72}.chart .spread{stroke-width:1.4;opacity:.55}
.chart circle.touch{fill:transparent;stroke:none}.chart circle.touch:hover{fill:var(--ink);fill-opacity:.2}
.chart g:hover>rect{filter:brightness(1.12)}.chart circle:hover{fill-opacity:1}
"""


def text(value: object, longest: int = 300) -> str:
    """Return `value` as HTML: escaped, printable, and cut if it is longer than `longest`."""
    shown = UNPRINTABLE.sub("\ufffd", str(value))
    if len(shown) > longest:
        shown = shown[: longest - 1] + "…"
    return html.escape(shown, quote=True)


# ---- numbers -------------------------------------------------------------------------------------


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def short(value: float) -> str:
    """Return a number in a few characters, such as 950, 12.5k, 3M or 0.0312."""
    size = abs(value)
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 999,960 is 1M: what rounds up to the next unit is shown in it.
        if unit * 0.99995 <= size < 1e15:
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers from `low` to `high` at equal distances, at least one and at most `most`."""
    low, high = (max(-LARGEST, min(LARGEST, v)) for v in sorted((low, high)))
    span = high - low
    if span <= max(abs(low), abs(high)) * 1e-12:
        return [low]
    power = 10.0 ** math.floor(math.log10(max(span / most, 1e-300)))
    # Ten times the power is enough; where rounding makes that one tick too many, twenty times is.
    for step in (power, 2 * power, 5 * power, 10 * power, 20 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if 0 <= last - first < most:
            return [min(high, max(low, i * step)) for i in range(first, last + 1)]
    return [low, high]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten between two positive numbers and, for a short range, also 2 and 5 times these powers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    times = (1, 2, 5) if len(powers) <= 4 else (1,)
    found = [m * 10.0**p for p in powers for m in times if low * 0.999 <= m * 10.0**p <= high * 1.001]
    return found or [low]


def padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """Return the range of `values`, extended on both sides by a share of its length; never an empty range."""
    low, high = max(min(values), -LARGEST), min(max(values), LARGEST)
    air = (high - low) * share or abs(high) * 0.05 or 1.0
    return low - air, high + air


@dataclass(frozen=True)
class Scale:
    """Converts a value to a position between two positions in pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = self.low, self.high, max(-LARGEST, min(LARGEST, value))
        if self.log:
            low, high, value = (math.log(max(v, 1e-300)) for v in (low, high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        # One and a half times out of the picture is out of the picture: the file keeps sane numbers.
        return self.start + max(-1.5, min(2.5, share)) * (self.end - self.start)


# ---- lines ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """Points in the order of x. A `faint` line is drawn behind the others and does not widen the range of the axes."""

    name: str
    points: Sequence[tuple[float, float]]
    tone: str = "a"
    faint: bool = False
    dots: bool = False
    spread: Sequence[tuple[float, float]] = ()  # low and high end of the bar through each point


def line_chart(
    lines: Sequence[Line],
    *,
    label: str,
    across: str = "rows",
    rule: tuple[float, str] | None = None,
    names: Sequence[str] = (),
    until: float | None = None,
    level: Callable[[float], str] | None = None,
    width: int = 540,
    height: int = 250,
) -> str:
    """Draw lines over one axis. `rule` is a dashed level with its name; `names` label x = 0, 1, 2… instead of numbers.

    With `until`, the x axis goes from 0 to this value, so that charts beside each other have the same axis. `level` says how
    values are written; the y axis then begins at 0 if no value is negative.
    """
    lines = [kept for s in lines if (kept := _finite_line(s)).points]
    loud = [s for s in lines if not s.faint] or lines
    if not loud:
        return nothing(f"No {label} was recorded.")
    xs = [x for s in lines for x, _ in s.points]
    ys = [y for s in loud for _, y in s.points] + [end for s in loud for ends in s.spread for end in ends]
    if rule and math.isfinite(rule[0]):
        ys.append(rule[0])
    if until is not None and 0 < until <= LARGEST:
        xs = [0.0, until]
    x_low, x_high = (min(xs), max(xs)) if min(xs) < max(xs) else padded(xs)
    x = Scale(x_low, x_high, LEFT + 6, width - RIGHT - 6)
    y_low, y_high = padded(ys)
    y = Scale(0.0 if level and min(ys) >= 0 else y_low, y_high, height - BOTTOM, TOP)
    inside = f"clip{zlib.crc32(repr((label, ys)).encode()):08x}"
    body = [
        f'<clipPath id="{inside}"><rect x="{LEFT}" y="{TOP}" width="{width - LEFT - RIGHT}" '
        f'height="{height - TOP - BOTTOM}"/></clipPath>',
        _level_axis(y, width, _decimals if level is None else lambda places: level),
        _named_axis(x, names, height) if names else _number_axis(x, height, short),
        f'<text x="{(LEFT + width - RIGHT) / 2:.0f}" y="{height - 6}" text-anchor="middle">{text(across)}</text>',
    ]
    if rule and math.isfinite(rule[0]):
        place = y(rule[0])
        body.append(f'<path class="rule" d="M{LEFT} {place:.1f}H{width - RIGHT}"/>')
        above = place - 5 if place > TOP + 16 else place + 13
        body.append(f'<text x="{LEFT + 6}" y="{above:.1f}">{text(rule[1])}</text>')
    for s in lines:
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in s.points)
        body.append(
            f'<path class="mark {s.tone}{" faint" if s.faint else ""}" d="M{path}" clip-path="url(#{inside})"/>'
        )
    for s in loud:
        for (a, _), (low, high) in zip(s.points, s.spread, strict=False):
            if high > low:
                body.append(
                    f'<path class="mark {s.tone} spread" d="M{x(a):.1f} {y(low):.1f}V{y(high):.1f}" clip-path="url(#{inside})"/>'
                )
    for s in loud:
        for a, b in s.points:
            where = names[int(a)] if names and 0 <= int(a) < len(names) else f"{a:,.0f} {across}"
            kind = f"dot {s.tone}" if s.dots or len(s.points) == 1 else "touch"
            body.append(
                f'<circle class="{kind}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="{4 if kind != "touch" else 5}">'
                f"<title>{text(s.name)}: {b:.5g} at {text(where)}</title></circle>"
            )
    return chart(body, width, height, label) + legend([(s.name, s.tone) for s in loud] if len(loud) > 1 else [])


def _finite_line(line: Line) -> Line:
    """Return the line without points that are not finite, and without bars whose ends are not finite."""
    spread = line.spread or [(b, b) for _, b in line.points]
    kept = [(p, ends) for p, ends in zip(line.points, spread, strict=True) if finite(p[0]) and finite(p[1])]
    bars = [ends if finite(ends[0]) and finite(ends[1]) else (b, b) for (_, b), ends in kept]
    return Line(line.name, [p for p, _ in kept], line.tone, line.faint, line.dots, bars if line.spread else ())


def _decimals(places: Sequence[float]) -> Callable[[float], str]:
    """Return a function that writes the numbers of an axis with as many digits as tell its ticks apart."""
    apart = min((b - a for a, b in pairwise(places) if b > a), default=abs(places[0]) or 1.0)
    largest = max(abs(p) for p in places)
    if largest >= 1e4 or apart < 1e-7:
        return lambda v: f"{v:.6g}"
    digits = max(0, -math.floor(math.log10(apart) + 1e-9))
    return lambda v: f"{v:.{min(digits, 8)}f}"


def _level_axis(y: Scale, width: int, form: Callable[[Sequence[float]], Callable[[float], str]]) -> str:
    places = ticks(y.low, y.high, 5)
    shown = form(places)
    return "".join(
        f'<path class="grid" d="M{LEFT} {y(v):.1f}H{width - RIGHT}"/>'
        f'<text x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{text(shown(v))}</text>'
        for v in places
    )


def _number_axis(x: Scale, height: int, shown: Callable[[float], str]) -> str:
    base = height - BOTTOM
    marks = "".join(
        f'<path class="axis" d="M{x(v):.1f} {base}v4"/>'
        f'<text x="{x(v):.1f}" y="{base + 17}" text-anchor="middle">{text(shown(v))}</text>'
        for v in (log_ticks(x.low, x.high) if x.log else ticks(x.low, x.high, 6))
    )
    return f'<path class="axis" d="M{LEFT} {base}H{x.end + 6:.0f}"/>{marks}'


def _named_axis(x: Scale, names: Sequence[str], height: int) -> str:
    base = height - BOTTOM
    # About 70 pixels a name.
    every = max(1, math.ceil(len(names) / max(1, int((x.end - x.start) / 70))))
    marks = "".join(
        f'<path class="axis" d="M{x(i):.1f} {base}v4"/>'
        f'<text x="{x(i):.1f}" y="{base + 17}" text-anchor="middle">{text(names[i], 14)}</text>'
        for i in range(0, len(names), every)
    )
    return f'<path class="axis" d="M{LEFT} {base}H{x.end + 6:.0f}"/>{marks}'


# ---- calibration ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dot:
    """A group of rows: the mean prediction, the share that was clicked, and the 95 % interval of that share."""

    predicted: float
    clicked: float
    rows: int
    low: float = math.nan
    high: float = math.nan


def calibration_chart(dots: Sequence[Dot], *, width: int = 540, height: int = 330) -> str:
    """Draw the share of clicks over the mean prediction. Calibrated groups are on the diagonal; bars are 95 % intervals."""
    dots = [d for d in dots if 0 <= d.predicted <= 1 and 0 <= d.clicked <= 1 and d.rows > 0]
    if not dots:
        return nothing("No calibration was recorded.")
    values = [v for d in dots for v in (d.predicted, d.clicked)]
    least = min((v for v in values if v > 0), default=0.0)
    # Click rates that differ by more than 30 times are told apart by their ratio.
    log = least > 0 and max(values) / least > 30
    low, high = (least / 1.3, min(1.0, max(values) * 1.3)) if log else (0.0, max(values) * 1.08 or 1.0)
    x = Scale(low, high, LEFT + 6, width - RIGHT - 6, log)
    y = Scale(low, high, height - BOTTOM, TOP, log)
    places = log_ticks(low, high) if log else ticks(low, high, 6)
    rate = (lambda v: f"{v * 100:.3g}%") if log else _rates(places)
    body = [
        *(
            f'<path class="grid" d="M{LEFT} {y(v):.1f}H{width - RIGHT}"/>'
            f'<text x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{rate(v)}</text>'
            for v in places
        ),
        *(
            f'<path class="axis" d="M{x(v):.1f} {height - BOTTOM}v4"/>'
            f'<text x="{x(v):.1f}" y="{height - BOTTOM + 17}" text-anchor="middle">{rate(v)}</text>'
            for v in places
        ),
        f'<path class="axis" d="M{LEFT} {height - BOTTOM}H{width - RIGHT}"/>',
        f'<path class="rule" d="M{x(low):.1f} {y(low):.1f}L{x(high):.1f} {y(high):.1f}"/>',
        f'<text x="{(LEFT + width - RIGHT) / 2:.0f}" y="{height - 6}" text-anchor="middle">predicted</text>',
        f'<text x="{LEFT + 8}" y="{TOP + 10}">clicked</text>',
    ]
    for d in dots:
        if finite(d.low) and finite(d.high):
            # Cut at the edges of the plot: on an axis of ratios the lower end may be 0, which has no place.
            top, foot = (y(min(max(end, low), high)) for end in (d.high, d.low))
            body.append(f'<path class="mark a spread" d="M{x(max(d.predicted, low)):.1f} {top:.1f}V{foot:.1f}"/>')
    most = max(d.rows for d in dots)
    for d in dots:
        radius = 3.5 + 4.5 * math.sqrt(d.rows / most)
        # On an axis of ratios zero has no place: it is drawn at the edge.
        across, up = x(max(d.predicted, low)), y(max(d.clicked, low))
        body.append(
            f'<circle class="dot a through" cx="{across:.1f}" cy="{up:.1f}" r="{radius:.1f}"><title>'
            f"predicted {d.predicted:.3%}, clicked {d.clicked:.3%}, {d.rows:,} rows</title></circle>"
        )
    return chart(body, width, height, "calibration")


def _rates(places: Sequence[float]) -> Callable[[float], str]:
    apart = min((b - a for a, b in pairwise(places) if b > a), default=0.01)
    digits = max(0, -math.floor(math.log10(apart * 100) + 1e-9))
    return lambda v: f"{v * 100:.{min(digits, 6)}f}%"


# ---- bars ----------------------------------------------------------------------------------------


def bar(value: float | None, low: float, high: float, tip: str, *, tone: str = "a", width: int = 150) -> str:
    """Draw a bar from zero for a cell of a table. `low` and `high` are the range of the column; zero is added to it."""
    if value is None or not math.isfinite(value):
        return ""
    x = Scale(min(low, 0.0), max(high, 0.0), 1, width - 1)
    zero, end = x(0.0), x(value)
    left, size = min(zero, end), max(abs(end - zero), 1.0)
    body = [
        f'<rect class="idle" x="0" y="3" width="{width}" height="8" rx="2"/>',
        f'<g><rect class="{tone}" x="{left:.1f}" y="3" width="{size:.1f}" height="8" rx="2"/>'
        f"<title>{text(tip)}</title></g>",
    ]
    if low < 0:
        body.append(f'<path class="axis" d="M{zero:.1f} 0v14"/>')
    return f'<svg class="chart cell" viewBox="0 0 {width} 14" style="width:{width}px">{"".join(body)}</svg>'


@dataclass(frozen=True)
class Part:
    """A piece of a stacked bar."""

    name: str
    value: float
    tone: str


def stacked_bars(
    rows: Sequence[tuple[str, Sequence[Part], str]], *, strong: str = "", unit: str = "s", width: int = 1100
) -> str:
    """Draw a stacked bar for each row: its name, its parts and a note. `strong` is the name of the row to highlight."""
    kept = [(name, [p for p in parts if finite(p.value) and p.value > 0], note) for name, parts, note in rows]
    longest = max((math.fsum(p.value for p in parts) for _, parts, _ in kept), default=0.0)
    if longest <= 0:
        return nothing("No stage was timed.")
    left, right, step = 90, 250, 34
    x = Scale(0.0, longest, left, width - right)
    body = []
    for number, (name, parts, note) in enumerate(kept):
        top, done = number * step + 4, 0.0
        body.append(
            f'<text class="{"strong" if name == strong else "name"}" x="{left - 10}" y="{top + 15}" '
            f'text-anchor="end">{text(name, 16)}</text>'
        )
        for part in parts:
            size = max(x(done + part.value) - x(done), 0.5)
            body.append(
                f'<g><rect class="{part.tone}" x="{x(done):.1f}" y="{top}" width="{size:.1f}" height="22" rx="3"/>'
                f"<title>{text(name)}: {text(part.name)} {part.value:.3g} {unit}</title></g>"
            )
            done += part.value
        body.append(f'<text x="{width - right + 12}" y="{top + 15}">{text(note)}</text>')
    tones = {p.name: p.tone for _, parts, _ in kept for p in parts}
    return chart(body, width, len(kept) * step + 2, "stages") + legend(list(tones.items()))


# ---- frames --------------------------------------------------------------------------------------


def chart(body: Sequence[str], width: int, height: int, label: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{text(label)}">{"".join(body)}</svg>'
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend with names beside their colors."""
    if not entries:
        return ""
    spans = "".join(f'<span><i class="key {tone}"></i>{text(name)}</span>' for name, tone in entries)
    return f'<p class="legend">{spans}</p>'


def nothing(sentence: str) -> str:
    return f'<p class="nothing">{text(sentence)}</p>'
