"""Writes the form of the page at /, in which a person fills in one candidate, sends it to /v1/score and reads its score.

The form shows the raw columns that the model reads, with their types and an example of each. The script writes JSON itself, so
that the digits of a whole number are sent as they were typed: numbers of a browser have only 53 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import orjson

from ctrbox.columns.raw_values import RawColumn
from ctrbox.columns.times import UNITS
from ctrbox.predict.score_expression import example
from ctrbox.serve.openapi import parts_of, sample
from ctrbox.serve.service import Service

LOOK = """#try .fields{display:grid;grid-template-columns:repeat(auto-fill,minmax(230px,1fr));gap:12px 18px;margin:6px 0 16px}
#try label{display:block;font-size:13px;font-weight:600}#try small{display:block;color:var(--muted);font-weight:400}
#try input{width:100%;margin-top:3px;padding:6px 8px;font:13px ui-monospace,SFMono-Regular,Menlo,monospace;color:inherit;
background:var(--well);border:1px solid var(--line);border-radius:6px}
#try button{padding:7px 16px;font:inherit;font-weight:600;color:#fff;background:var(--a);border:0;border-radius:8px;
cursor:pointer}#scored{margin:12px 0;font-size:16px}#scored.bad{color:var(--bad)}"""

SCRIPT = r"""
function requestText() {
  const parts = {context: [], candidates: []};
  for (const field of document.querySelectorAll('#try input[data-part]')) {
    const {part, kind, words} = field.dataset, typed = field.value.trim();
    const quoted = kind === 'text' || (kind === 'time' && typed !== '' && !/^-?\d+$/.test(typed));
    const value = quoted ? JSON.stringify(kind === 'text' ? field.value : typed) : typed === '' ? 'null' : typed;
    try { JSON.parse(value); } catch { throw new Error(field.name + ': expected ' + words + ', got ' + field.value); }
    parts[part].push(JSON.stringify(field.name) + ': ' + value);
  }
  const context = parts.context.length ? '"context": {' + parts.context.join(', ') + '}, ' : '';
  const asked = $('expression') ? $('expression').value.trim() : '';
  const score = asked ? ', "score": ' + JSON.stringify(asked) : '';
  return '{' + context + '"candidates": [{' + parts.candidates.join(', ') + '}]' + score + '}';
}
$('try').addEventListener('submit', async event => {
  event.preventDefault();
  const told = (words, bad) => { $('scored').className = bad ? 'bad' : ''; $('scored').textContent = words; };
  try {
    const text = requestText();
    $('curl').textContent = "curl " + $('curl').dataset.options + location.origin + "/v1/score -d '"
      + text.replaceAll("'", "'\\''") + "'";
    $('as-curl').hidden = false;
    const answer = await fetch('/v1/score', {method: 'POST', headers: {'content-type': 'application/json'}, body: text});
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    const several = Array.isArray(found.scores) ? null : Object.entries(found.scores).map(([name, p]) => [name, p[0]]);
    if (several && found.score) several.push(['score', found.score[0]]);
    const score = several ? several[0][1] : found.scores[0];
    const words = several ? () => several.map(([name, p]) => name + ' ' + p.toPrecision(5)).join(', ')
      : () => 'click probability ' + score.toPrecision(5);
    told(score == null ? 'A filter of the plan drops this row, so it has no score.'
      : words() + ' (model version ' + found.version + ')', false);
  } catch (error) { told(error.message, true); }
});
"""

KINDS = {
    "b": "true or false",
    "i": "whole number",
    "f": "number",
    "s": "text",
    "t": "time, such as 2026-11-15T12:00:00",
}
PLURALS = {"b": "true or false", "i": "whole numbers", "f": "numbers", "s": "texts", "t": "times"}


def form(service: Service) -> str:
    """Return the section with the form as HTML."""
    once, each = parts_of(service)
    parts = ""
    if once:
        parts += f"<h3>Context, sent once per request</h3>{_fields(once, 'context')}<h3>Candidate</h3>"
    parts += _fields(each, "candidates")
    if service.labels:
        shown = escape(example(service.labels))
        parts += (
            '<h3>Score</h3><div class="fields"><label>score<small>optional; an expression of the labels, such as '
            f'{shown}</small><input id="expression" value="{shown}" autocomplete="off" spellcheck="false"></label></div>'
        )
    options = '-H "Authorization: Bearer $TOKEN" ' if service.token else ""
    return (
        '<section><h2>Try a request</h2><p class="note">The fields are the columns of the raw log that the model reads, each '
        "with an example value. An empty field is sent as null, or as an empty text if it is a text. A real request may have "
        'many candidates: see <a href="/docs">routes</a>.</p>'
        f'<form id="try">{parts}<button>Score this candidate</button></form><p id="scored"></p>'
        '<details id="as-curl" hidden><summary>The same request with curl</summary>'
        f'<pre id="curl" data-options="{escape(options)}"></pre></details></section>'
    )


def _fields(columns: Mapping[str, RawColumn], part: str) -> str:
    return f'<div class="fields">{"".join(_field(name, column, part) for name, column in columns.items())}</div>'


def _field(name: str, column: RawColumn, part: str) -> str:
    words = described(column)
    example = sample(column)
    kind = "json" if column.is_list else {"s": "text", "t": "time"}.get(column.letter, "json")
    value = example if isinstance(example, str) else orjson.dumps(example).decode()
    return (
        f"<label>{escape(name)}<small>{escape(words)}</small>"
        f'<input name="{escape(name)}" value="{escape(value)}" data-part="{part}" data-kind="{kind}" '
        f'data-words="{escape(words)}" autocomplete="off" spellcheck="false"></label>'
    )


def described(column: RawColumn) -> str:
    """Return the type of a column in words."""
    counted = f", or {UNITS[column.unit]} since 1970" if column.unit is not None else ""
    if column.is_list:
        return f"list of {PLURALS[column.letter]}{counted}, such as {orjson.dumps(sample(column)).decode()}"
    return KINDS[column.letter] + counted
