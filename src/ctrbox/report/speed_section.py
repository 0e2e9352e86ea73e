"""Writes the report's section on speed: the time of each stage and the work of each table, pass by pass.

A pass is a twentieth of an epoch, or a larger part if the run has more than 20 epochs. The two parts answer the
questions of Table 1 and Figure 7 of the AIBox paper; the report itself uses plain names for the stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from ctrbox.report.number_format import sized, spent
from ctrbox.report.read_recorded_files import Fields
from ctrbox.show import charts
from ctrbox.show.charts import Line, short, text
from ctrbox.show.page import named, section, table

STAGES = {
    "extract": "read the log, compute features",
    "lookup": "find keys and their rows in tables",
    "learn": "train embeddings and model",
}
MOST_TABLES = 12


def passes_of(metrics: Sequence[Fields], kind: str) -> list[Fields]:
    """Return the passes in their order. If a resumed run records a pass again, the later record counts."""
    found: dict[int, Fields] = {}
    for line in metrics:
        if line.values.get("kind") == kind and (number := line.count("pass")) is not None:
            found[number] = line
    return [found[number] for number in sorted(found)]


# ---- stages ---------------------------------------------------------------------------------------------------------


def stage_times(metrics: Sequence[Fields], s: Fields) -> str:
    """Return the table of the seconds of a pass: of each stage, of all stages one after the other, and of the pipeline."""
    passes = [p for p in passes_of(metrics, "stages") if _sane(p, "seconds") > 0]
    if not passes:
        return ""
    whole = fmean(_sane(p, "seconds") for p in passes)
    most = {stage.text("name"): stage.count("queue_most") for stage in s.each("stages")}
    rows, sequential, slowest = [], 0.0, 0.0
    for name, theirs in STAGES.items():
        busy = [_sane(p, f"{name}_busy") for p in passes]
        mean = fmean(busy)
        sequential, slowest = sequential + mean, max(slowest, mean)
        waits = [fmean(_sane(p, f"{name}_{what}") for p in passes) for what in ("for_input", "for_room")]
        depths = [_sane(p, f"{name}_queue") for p in passes if p.number(f"{name}_queue") is not None]
        queue = f"{fmean(depths):.1f}" if depths else ""
        queue += f", most {most[name]}" if depths and most.get(name) is not None else ""
        rows.append(
            [
                f'{named(name)} <small class="muted">{theirs}</small>',
                spent(mean),
                f"{mean / whole:.0%}",
                f"{pstdev(busy) / whole:.0%}",
                *(f"{wait / whole:.0%}" for wait in waits),
                queue,
            ]
        )
    rows.append(["one after the other", spent(sequential), f"{sequential / whole:.0%}", *[""] * 4])
    rows.append(["<b>as a pipeline</b>", f"<b>{spent(whole)}</b>", "<b>100%</b>", *[""] * 4])
    heads = ["per pass", "share of a pass", "std dev", "waits for input", "waits for room", "batches queued after it"]
    words = (
        f"Averages over {len(passes):,} passes. A pass is a twentieth of an epoch (a larger part if the run has more than 20 "
        "epochs), but at least one batch; "
    )
    words += "evaluations and checkpoints are left out. "
    if slowest > 0:
        words += f"A pass takes {whole / slowest:.2f} times as long as its slowest stage; run one after the other, the stages "
        words += f"would take {sequential / whole:.2f} times as long as a pass does."
    return (
        f'<h3 class="under">Time of a pass by stage</h3><p class="note">{text(words, 600)}</p>'
        f"{table([('stage', 'name'), *((head, 'n') for head in heads)], rows)}"
    )


# ---- tables --------------------------------------------------------------------------------------------------------


def tables(metrics: Sequence[Fields], s: Fields) -> str:
    """Return the section on the look-ups of each pass in the tables that count them: hits in memory, reads from the
    SSD, and new keys.
    """
    found = s.each("tables")
    if not found:
        return ""
    drawn = []
    for one in found[:MOST_TABLES]:
        fields = one.values.get("fields")
        reads = ", ".join(map(str, fields[:6])) + ("…" if len(fields) > 6 else "") if isinstance(fields, list) else ""
        title = f"{named(one.text('name'))} <small class='muted'>{text(reads, 200)}</small>"
        drawn.append(f'<h3 class="under">{title}</h3>{_figure(passes_of(metrics, one.text("name")))}')
    note = "Each pass asks a table for the unique keys of its batches. A key is found in memory, or read from the SSD, or new: "
    note += "in-memory filters recognize most new keys without a disk read. The hit rate is the share of known keys that were "
    note += "found in memory."
    return section("tables", "Tables", note, _totals(found[:MOST_TABLES]), *drawn)


def _totals(found: Sequence[Fields]) -> str:
    rows = []
    for one in found:
        rate, reads = one.number("hit_rate"), one.number("reads_per_key")
        rows.append(
            [
                named(one.text("name")),
                *(_count(one, name) for name in ("asked", "hits", "misses", "new", "false_positives")),
                "" if rate is None else f"{rate:.1%}",
                "" if reads is None else f"{reads:.3f}",
                *(_bytes(one, name) for name in ("bytes_read", "bytes_written", "disk_bytes")),
            ]
        )
    heads = [
        "keys asked for",
        "in memory",
        "on disk",
        "new",
        "false positives of the filters",
        "hit rate",
        "reads per key",
    ]
    heads += ["read", "written", "on disk now"]
    return table([("table", "name"), *((head, "n") for head in heads)], rows)


def _figure(passes: Sequence[Fields]) -> str:
    def line(name: str, key: str, tone: str, times: float = 1.0) -> Line:
        points = [(float(p.count("pass") or 0), v * times) for p in passes if (v := p.number(key)) is not None]
        return Line(name, points, tone, dots=len(points) <= 40)

    kinds = [
        ("Accesses", [line("asked for", "asked", "a"), line("pages read from SSD", "reads", "b")], short),
        ("Hit rate", [line("hit rate", "hit_rate", "c", 100.0)], lambda v: f"{v:.3g}%"),
        (
            "Reads that filters spared",
            [line("new keys, not read", "new", "a"), line("false positives of the filters", "false_positives", "b")],
            short,
        ),
    ]
    charts_of = [
        f"<div><h3>{title}</h3>"
        f"{charts.line_chart(lines, label=title.lower(), across='pass', level=level, width=380, height=210)}</div>"
        for title, lines, level in kinds
    ]
    return f'<div class="three">{"".join(charts_of)}</div>'


def _sane(p: Fields, name: str) -> float:
    """A number of a sum of which an average is taken: never so large that it overflows."""
    return min(max(p.number(name) or 0.0, 0.0), 1e15)


def _count(one: Fields, name: str) -> str:
    found = one.count(name)
    return "" if found is None else f"{found:,}"


def _bytes(one: Fields, name: str) -> str:
    found = one.count(name)
    return "" if found is None else sized(found)
