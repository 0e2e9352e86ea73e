"""Writes the page at /: a form to try a request (try_form.py), and the state of the server.

The page asks /v1/live once a second and draws the answer as SVG. It loads nothing from outside: the content policy forbids
that. Charts are lines over the last minute, and over the learner's windows where something learns beside the server.
"""

from __future__ import annotations

from html import escape

from ctrbox.serve import try_form
from ctrbox.serve.service import Service
from ctrbox.show.page import STYLE

LOOK = """svg.line{display:block;width:100%;height:150px}svg.line path{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}
svg.line .grid{stroke:var(--line);stroke-width:1}svg.line text{fill:var(--muted);font-size:11px}
path.a{stroke:var(--a)}path.b{stroke:var(--b)}path.c{stroke:var(--c)}circle.a{fill:var(--a)}
#state{font-size:13px;color:var(--muted)}#state.bad{color:var(--bad)}"""

CARDS = (
    ("rate", "requests/s"),
    ("p50", "p50"),
    ("p99", "p99"),
    ("hits", "cache hits"),
    ("version", "model version"),
    ("patch", "last patch"),
    ("auc", "rolling AUC"),
    ("calibration", "predicted / clicked"),
)

SCRIPT = r"""
'use strict';
const $ = id => document.getElementById(id);
const put = (id, value, note) => { $(id).textContent = value; if (note !== undefined) $(id + '-note').textContent = note; };
const short = n => n == null ? '–' : n >= 1e6 ? (n / 1e6).toFixed(1) + ' M' : n >= 1e4 ? (n / 1e3).toFixed(1) + ' k'
  : n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2);
const ago = s => s < 90 ? s.toFixed(0) + ' s ago' : s < 5400 ? (s / 60).toFixed(0) + ' min ago'
  : (s / 3600).toFixed(1) + ' h ago';
const W = 560, H = 150, L = 44, B = 18;
function lines(id, series, names, zero) {
  const all = series.flat().filter(v => v != null && isFinite(v));
  const svg = $(id);
  svg.replaceChildren();
  const add = (tag, attributes, words) => {
    const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    if (words != null) e.textContent = words;
    svg.appendChild(e);
    return e;
  };
  if (!all.length) { add('text', {x: L, y: H / 2}, 'nothing yet'); return; }
  let low = zero ? 0 : Math.min(...all), high = Math.max(...all);
  if (high - low < 1e-9) { high += Math.abs(high) * 0.05 + 1e-3; if (!zero) low -= Math.abs(low) * 0.05 + 1e-3; }
  const y = v => 8 + (H - B - 8) * (1 - (v - low) / (high - low));
  for (const v of [low, (low + high) / 2, high]) {
    add('line', {x1: L, x2: W, y1: y(v), y2: y(v), class: 'grid'});
    add('text', {x: L - 6, y: y(v) + 4, 'text-anchor': 'end'}, high > 3 ? short(v) : v.toFixed(3));
  }
  series.forEach((values, k) => {
    const n = Math.max(values.length - 1, 1);
    let d = '', pen = 'M';
    values.forEach((v, i) => {
      if (v == null || !isFinite(v)) { pen = 'M'; return; }
      d += pen + (L + (W - L) * i / n).toFixed(1) + ' ' + y(v).toFixed(1);
      pen = 'L';
    });
    if (values.length === 1) add('circle', {cx: L, cy: y(values[0]), r: 3, class: 'a'});
    add('path', {d: d || 'M0 0', class: 'abc'[k]}).appendChild(document.createElementNS('http://www.w3.org/2000/svg', 'title'))
      .textContent = names[k];
  });
}
function show(s) {
  put('rate', short(s.requests_per_second), short(s.candidates_per_second) + ' candidates/s, ' + short(s.refused_per_second)
    + ' refused/s');
  put('p50', s.p50_ms == null ? '–' : s.p50_ms.toFixed(2) + ' ms', 'the last 10 s');
  put('p99', s.p99_ms == null ? '–' : s.p99_ms.toFixed(2) + ' ms', s.waiting + ' waiting');
  const asked = s.cache.hits + s.cache.misses;
  put('hits', asked ? (100 * s.cache.hits / asked).toFixed(1) + ' %' : '–',
    short(s.cache.entries) + ' contexts, ' + (s.cache.bytes / 1e6).toFixed(1) + ' MB');
  put('version', s.model.version, s.model.name + ', ' + s.model.kind.replace('_', ' '));
  const last = s.patches.last;
  put('patch', last.at ? ago(Date.now() / 1000 - last.at) : 'none yet',
    s.patches.applied + ' applied, ' + s.patches.refused + ' refused'
      + (last.seconds ? ', took ' + last.seconds.toFixed(2) + ' s' : ''));
  s.labels.forEach((one, k) => put('label-' + k, one.mean == null ? '–' : one.mean.toPrecision(4),
    'mean of ' + short(one.rows) + ' predictions'));
  const minute = s.minute;
  lines('requests', [minute.requests], ['requests/s'], true);
  lines('latency', [minute.p50_ms, minute.p99_ms], ['p50', 'p99'], true);
  const o = s.online, ws = o && Array.isArray(o.windows) ? o.windows : [];
  const number = v => typeof v === 'number' && isFinite(v) ? v : null;
  $('learning').hidden = !o;
  if (o) {
    const auc = number(o.auc), c = o.calibration || {}, p = number(c.predicted), k = number(c.clicked);
    put('auc', auc == null ? '–' : auc.toFixed(4),
      short(number(o.examples)) + ' examples, loss ' + (number(o.loss) ?? NaN).toFixed(4));
    put('calibration', p != null && k ? (p / k).toFixed(3) : '–',
      p != null && k != null ? (100 * p).toFixed(2) + ' % and ' + (100 * k).toFixed(2) + ' %' : '');
    lines('aucs', [ws.map(w => number(w[2]))], ['AUC'], false);
    lines('losses', [ws.map(w => number(w[1])), ws.map(w => number(w[3]))], ['loss', 'best constant'], false);
  } else { put('auc', '–', 'nothing learns here'); put('calibration', '–', ''); }
  const span = seconds => ago(seconds).replace(' ago', '');
  const refusal = s.stale ? 'stale for ' + span(s.stale.seconds) + ': ' + s.stale.reason
    : s.fields_without_known_keys.length
      ? 'the model learned none of the keys that the last requests had in: ' + s.fields_without_known_keys.join(', ')
    : s.patches.last_refusal && 'last refused version: ' + s.patches.last_refusal;
  $('state').className = refusal ? 'bad' : '';
  const w = s.workers, workers = w.count === 1 ? '' : ', ' + w.serving + ' of ' + w.count + ' workers serve'
    + (w.replaced ? ', ' + w.replaced + ' replaced' : '');
  $('state').textContent = refusal || 'up ' + span(s.uptime) + workers;
}
async function tick() {
  try {
    const answer = await fetch('/v1/live', {cache: 'no-store'});
    if (!answer.ok) throw new Error('HTTP ' + answer.status);
    show(await answer.json());
    document.body.dataset.ticks = 1 + Number(document.body.dataset.ticks || 0);
  } catch (error) {
    $('state').className = 'bad';
    $('state').textContent = 'the server does not answer (' + error.message + ')';
  }
  setTimeout(tick, 1000);
}
tick();
"""


def labels_of(service: Service) -> str:
    """Return a card for each of several labels, in which the script shows the mean of its predictions."""
    cards = "".join(
        f'<div class="card"><small class="what">{escape(task.name)}, {task.kind}</small><b id="label-{k}">–</b>'
        f'<small id="label-{k}-note"></small></div>'
        for k, task in enumerate(service.served.tasks)
    )
    told = "The mean prediction of each label for all candidates that were scored since the start."
    return (
        f'<section><h2>Labels</h2><p class="note">{told}</p><div class="cards">{cards}</div></section>' if cards else ""
    )


def page(service: Service) -> str:
    name = escape(service.name)
    cards = "".join(
        f'<div class="card{" first" if key == "rate" else ""}"><small class="what">{escape(words)}</small><b id="{key}">–</b>'
        f'<small id="{key}-note"></small></div>'
        for key, words in CARDS
    )

    def chart(key: str, words: str, *legend: str) -> str:
        keys = "".join(f'<span><i class="key {k}"></i>{escape(w)}</span>' for k, w in zip("abc", legend, strict=False))
        return (
            f'<div><h3>{escape(words)}</h3><svg class="line" id="{key}" viewBox="0 0 560 150" role="img" '
            f'aria-label="{escape(words)}"></svg><div class="legend">{keys}</div></div>'
        )

    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>CTRBox: {name}</title><style>{STYLE}{LOOK}{try_form.LOOK}</style><body><main><h1>{name} <span>live</span></h1>"
        f'<p id="state">connecting…</p><nav><a href="/docs">routes</a><a href="/metrics">metrics</a></nav>'
        f'<div class="cards">{cards}</div><section><h2>Serving</h2><p class="note">The last minute.</p><div class="two">'
        f"{chart('requests', 'Requests a second')}{chart('latency', 'Latency, ms', 'p50', 'p99')}</div></section>"
        f"{labels_of(service)}{try_form.form(service)}"
        f'<section id="learning" hidden><h2>Learning</h2><p class="note">Windows of the stream, each predicted before it was '
        f'learned from.</p><div class="two">{chart("aucs", "AUC by window")}'
        f"{chart('losses', 'Log loss by window', 'model', 'best constant')}</div></section></main>"
        f"<script>{SCRIPT}{try_form.SCRIPT}</script></body></html>"
    )
