"""Defines the frame and the style sheet of a report page, for light and dark.

The page may load nothing and run nothing: its content policy allows pictures and styles that are inside it, no more.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrbox.show.charts import STYLE as CHARTS
from ctrbox.show.charts import text

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

STYLE = """
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--ink:#1c2430;--muted:#667085;--line:#e9ecf1;--edge:#b8c0cc;
--well:#eef1f5;--wait:#cfd8e6;--room:#f0d9a8;--a:#2f6fde;--b:#d9682f;--c:#1f9a78;--good:#1f9a78;--bad:#c2410c;--tint:#eaf1fd}
@media (prefers-color-scheme:dark){:root{--back:#0f1318;--card:#181d25;--ink:#e7eaf0;--muted:#97a3b6;--line:#262d38;
--edge:#475263;--well:#222a35;--wait:#3b475a;--room:#6b5426;--a:#6ea6ff;--b:#f2986a;--c:#4cc9a5;--good:#4cc9a5;--bad:#ff9a6b;
--tint:#1b2a42}.plan img{filter:invert(.91) hue-rotate(180deg)}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:36px 24px 64px}
h1{font-size:30px;line-height:1.2;margin:0;letter-spacing:-.02em}h1 span{color:var(--muted);font-weight:400}
h2{font-size:18px;margin:0 0 2px;letter-spacing:-.01em}h3{font-size:13px;font-weight:600;margin:0 0 8px}
h3.under{margin:22px 0 8px}
p{margin:0}.lead{font-size:17px;margin:10px 0 4px;max-width:78ch}.muted,.when{color:var(--muted)}.when{font-size:13px}
nav{margin:14px 0 0;font-size:13px;display:flex;flex-wrap:wrap;gap:4px 16px}nav a{color:var(--a);text-decoration:none}
nav a:hover{text-decoration:underline}
section{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:22px 24px;margin-top:18px}
section .note{color:var(--muted);margin-bottom:14px;max-width:90ch}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-top:22px}
.card{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:14px}
.card b{display:block;font-size:25px;line-height:1.25;font-weight:650;letter-spacing:-.02em;
font-variant-numeric:tabular-nums}
.card small{display:block;color:var(--muted);font-size:12.5px;line-height:1.4}
.card .what{font-weight:600;font-size:12px;white-space:nowrap}
.card.first{background:var(--tint);border-color:transparent}.good{color:var(--good)}.bad{color:var(--bad)}
.two,.three{display:grid;gap:26px 34px;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}
.three{grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr))}
.two>*,.three>*{min-width:0}
.legend{display:flex;flex-wrap:wrap;gap:2px 18px;font-size:12.5px;color:var(--muted);margin-top:4px}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.key.a{background:var(--a)}.key.b{background:var(--b)}.key.c{background:var(--c)}.key.wait{background:var(--wait)}
.key.idle{background:var(--well)}.key.room{background:var(--room)}
.nothing{color:var(--muted);font-style:italic;padding:8px 0}
.say{border-left:3px solid var(--b);padding:2px 0 2px 12px;margin:0 0 16px;max-width:90ch}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--muted);font-size:12px;white-space:nowrap}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:middle}
td:last-child,th:last-child{padding-right:0}tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right;white-space:nowrap}td.name{font-weight:550;overflow-wrap:anywhere;min-width:90px}
td.why{color:var(--muted);min-width:200px}
td .chart.cell{display:inline-block;vertical-align:middle;height:14px}
.pair{display:flex;align-items:center;gap:10px;white-space:nowrap}.pair span{min-width:58px;text-align:right}
.chip{font-size:11.5px;padding:1px 8px;border-radius:99px;background:var(--well);color:var(--muted)}
.plan{overflow:auto;border:1px solid var(--line);border-radius:10px;max-height:1100px}
.plan img{display:block;width:100%;min-width:1000px;height:auto}#full{position:absolute;opacity:0}
#full:checked~.plan{max-height:none}#full:checked~.plan img{min-width:0}
label[for=full]{color:var(--a);cursor:pointer;font-size:13px;display:inline-block;margin:0 0 10px}
#full:focus-visible+label{outline:2px solid var(--a);outline-offset:3px;border-radius:3px}
#full:checked+label .fit,#full:not(:checked)+label .real{display:inline}.fit,.real{display:none}
pre{background:var(--well);border-radius:8px;padding:12px 14px;margin:8px 0 18px;overflow-x:auto;
font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
code,td.value{font:12.5px ui-monospace,SFMono-Regular,Menlo,monospace;overflow-wrap:anywhere}
td.value{white-space:pre-wrap}
details summary{cursor:pointer;color:var(--a);font-size:14px;margin-bottom:8px}
@media print{section,.card{break-inside:avoid}body{background:#fff}}
"""


def page(title: str, body: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}{CHARTS}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def section(name: str, title: str, note: str, *body: str) -> str:
    """Return a block of the page. `note` is HTML with one or two sentences, which are shown below the title."""
    words = f'<p class="note">{note}</p>' if note else ""
    return f'<section id="{name}"><h2>{text(title)}</h2>{words}{"".join(body)}</section>'


def card(what: str, value: str, note: str, *, kind: str = "") -> str:
    """Return a card with one figure. `note` is HTML."""
    return (
        f'<div class="card {kind}"><small class="what">{text(what)}</small><b>{text(value)}</b>'
        f"<small>{note}</small></div>"
    )


def table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. `heads`: for each column, its title and the class of its cells; cells are HTML."""
    top = "".join(f'<th class="{kind if kind == "n" else ""}">{text(title)}</th>' for title, kind in heads)
    lines = [
        "".join(f'<td class="{kind}">{cell}</td>' for cell, (_, kind) in zip(row, heads, strict=True)) for row in rows
    ]
    return f'<div class="wide"><table><tr>{top}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def named(value: object, longest: int = 120) -> str:
    """Return a name from data as HTML: escaped, and isolated, so that its writing direction does not affect the text around."""
    return f"<bdi>{text(value, longest)}</bdi>"
