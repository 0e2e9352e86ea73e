"""Renders objects for notebooks: small tables and pictures in plain HTML, without a script, in light and in dark.

A notebook puts this HTML into a page of its own, so the style holds below one `div` alone. Names and values are escaped here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence

from ctrbox.show.charts import STYLE as CHARTS
from ctrbox.show.charts import text

MOST_COLUMNS = 60
LONGEST = 80  # characters of a cell

LIGHT = "--ink:#1c2430;--muted:#667085;--line:#d5dae2;--edge:#b8c0cc;--card:#fff;--a:#2f6fde;--b:#d9682f;--c:#1f9a78"
DARK = "--ink:#e7eaf0;--muted:#97a3b6;--line:#3a4454;--edge:#475263;--card:#181d25;--a:#6ea6ff;--b:#f2986a;--c:#4cc9a5"
STYLE = f"""
.ctrbox{{{LIGHT};overflow-x:auto}}
@media (prefers-color-scheme:dark){{.ctrbox{{{DARK}}}}}
.ctrbox{{
p{{margin:4px 0}}.muted{{color:var(--muted);font-weight:400}}
table{{border-collapse:collapse;font-variant-numeric:tabular-nums}}
th,td{{text-align:left;padding:3px 12px 3px 0;border-bottom:1px solid var(--line);white-space:nowrap}}
.legend{{display:flex;gap:18px;font-size:12.5px;color:var(--muted)}}
.key{{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}}
.key.a{{background:var(--a)}}.key.b{{background:var(--b)}}.key.c{{background:var(--c)}}
.two{{display:grid;gap:20px;grid-template-columns:repeat(auto-fit,minmax(300px,460px))}}
{CHARTS}
}}
"""


def framed(title: str, *body: str) -> str:
    """Return the HTML of one object: its title, which is escaped, above parts that are HTML already."""
    return f'<div class="ctrbox"><style>{STYLE}</style><p><b>{text(title)}</b></p>{"".join(body)}</div>'


def said(sentence: object) -> str:
    """Return a sentence in a muted color."""
    return f'<p class="muted">{text(sentence)}</p>'


def grid(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a name and a type, or nothing, above each column; at most 60 columns are shown."""
    shown = heads[:MOST_COLUMNS]
    top = "".join(
        f'<th>{text(name, LONGEST)}<br><span class="muted">{text(kind, LONGEST)}</span></th>' for name, kind in shown
    )
    lines = [
        "".join(f"<td><bdi>{text(value, LONGEST)}</bdi></td>" for value in list(row)[:MOST_COLUMNS]) for row in rows
    ]
    more = said(f"{len(heads) - len(shown)} more columns are not shown") if len(heads) > len(shown) else ""
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>{more}"


def facts(values: Mapping[str, object]) -> str:
    """Return a table of names and values, one below the other."""
    lines = [f'<tr><td class="muted">{text(name)}</td><td>{text(value)}</td></tr>' for name, value in values.items()]
    return f"<table>{''.join(lines)}</table>"


def image(svg: str, label: str) -> str:
    """Return an SVG picture as an image, so that its text and style stay inside it."""
    data = base64.b64encode(svg.encode("utf-8", "backslashreplace")).decode("ascii")
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{text(label)}" style="max-width:none;background:#fff">'
