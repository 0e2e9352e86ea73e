"""Computes the fingerprint of a plan: a digest of everything that determines the bits of its batches."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.columns.kind import kind_of_arrow
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.history.history_columns_of_log import steps_of
from ctrbox.plan.graph.expression_json import Writer, canonical
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.language.tables_of_operators import Dictionary
from ctrbox.views.view import Filter, View, WithHistory

KEY_FORMAT = 1  # counts changes of an operator's bits: hashes, salts, float bodies

_digests: weakref.WeakKeyDictionary[Dictionary, str] = weakref.WeakKeyDictionary()
_fingerprints: weakref.WeakKeyDictionary[Plan, tuple[list[np.ndarray], str]] = weakref.WeakKeyDictionary()


def fingerprint(plan: Plan) -> str:
    """Return a digest of everything that decides the bits of a batch; it is the same in every process.

    It covers features, steps of views, the kinds and null facts of the columns that are read, dictionaries, fitted values, and
    the names and CUDA bodies of user operators, but not paths, names of views, sizes of files or budgets. It is computed once
    for each fitted state of a plan.
    """
    learned = [array for _, state in sorted(plan.fitted.items()) for _, array in sorted(state.items())]
    known = _fingerprints.get(plan)
    if known is not None and [id(a) for a in known[0]] == [id(a) for a in learned]:
        return known[1]
    digest = hashlib.sha256(canonical(_canonical_form(plan)).encode()).hexdigest()
    _fingerprints[plan] = (learned, digest)
    return digest


def _canonical_form(plan: Plan) -> dict[str, Any]:
    writer = Writer()
    log = writer.view(plan.log)
    read = columns_read(plan.graph)
    views = []
    for view in list(writer.views):
        steps = [without_budget(s) for s in writer.steps(view)]
        columns = columns_of(view, {*read.get(id(view), ()), *view.key})
        views.append({"key": list(view.key), "keep": view.keep, "columns": sorted(columns), "steps": steps})
    features = writer.features(plan.features)
    return {
        "format": KEY_FORMAT,
        "log": log,
        "views": views,
        "features": features,
        "expressions": writer.expressions,
        "dictionaries": [_dictionary_digest(d) for d in writer.dictionaries],
        "fitted": {str(k): {n: _array_digest(a) for n, a in s.items()} for k, s in plan.fitted.items()},
    }


def histories_fingerprint(log: View) -> str:
    """Return a digest of all that decides the state of the histories of a log: its steps up to the last ``with_history``.

    It covers the expressions and spans of the histories, the steps before them, and the kinds and null facts of the columns that
    they read, but not features, data or budgets. Two plans with equal histories can use the same state.
    """
    last = max(place for place, step in enumerate(log.steps) if isinstance(step, WithHistory))
    view = log.with_steps(log.steps[: last + 1])
    writer = Writer()
    writer.view(view)
    read: dict[int, set[str]] = {}
    for source in steps_of(log.source):
        read.setdefault(id(view), set()).update(source.inputs.columns)
        for part in (source.inputs, *source.inputs.events.values()):
            for key, names in columns_read(part.graph).items():
                read.setdefault(key, set()).update(names)
        for events in source.inputs.events.values():
            read.setdefault(id(events.view), set()).update(events.columns)
    views = []
    for one in list(writer.views):
        steps = [without_budget(s) for s in writer.steps(one)]
        columns = columns_of(one, {*read.get(id(one), ()), *(one.key if one is not view else ())})
        views.append([sorted(columns), steps])
    written = [KEY_FORMAT, views, writer.expressions, [_dictionary_digest(d) for d in writer.dictionaries]]
    return hashlib.sha256(canonical(written).encode()).hexdigest()


def without_budget(step: list[Any]) -> list[Any]:
    """Return the parts of a written step on which results depend: not the order of a merge, nor the budget of a join, a merge or
    a history."""
    if step[0] in ("merge", "with_history"):
        return step[:2]
    return [part for part in step if not isinstance(part, dict)] if step[0] == "join" else step


def difference(plan: Plan, other: Plan) -> str:
    """Return how a plan for evaluation differs from the plan that a model is trained with, and what to do."""
    if not only_filters_differ(plan, other):
        return "other features than the training plan; create it with plan.over(data)"
    theirs, mine = (_filters(p.log) or "no filter" for p in (other, plan))
    return (
        f"another filter than the training plan (here: {theirs}; in the training plan: {mine}). Everything else is equal, so "
        "divide the data before cb.View, compile one plan over the training rows, and use plan.over(validation_rows)"
    )


def only_filters_differ(plan: Plan, other: Plan) -> bool:
    """Tell whether two plans differ in the filters of their logs and in no other step, nor in a feature."""
    return _filters(plan.log) != _filters(other.log) and _unfiltered_form(plan) == _unfiltered_form(other)


def _filters(log: View) -> str:
    return "".join(f".filter({step.condition!r})" for step in log.steps if isinstance(step, Filter))


def _unfiltered_form(plan: Plan) -> str:
    writer = Writer()
    writer.view(plan.log.with_steps(tuple(step for step in plan.log.steps if not isinstance(step, Filter))))
    views = [[list(view.key), view.keep, writer.steps(view)] for view in list(writer.views)]
    features = writer.features(plan.features)
    dictionaries = [_dictionary_digest(d) for d in writer.dictionaries]
    return canonical([views, features, writer.expressions, dictionaries])


def columns_read(graph: Graph) -> dict[int, set[str]]:
    """Return the columns that are read of each view, by the view's id."""
    read: dict[int, set[str]] = {}
    for frame in graph.frames:
        for place, source in enumerate(frame.sources):
            read.setdefault(id(source.view), set()).update(graph.columns(frame, place))
    return read


def columns_of(view: View, wanted: set[str] | None = None) -> list[list[Any]]:
    """Return, for each column: name, kind ("" if it has none), width of a fixed-size list, and whether it may have nulls.

    For data that was given to a saved plan, the recorded null facts count, so that the plan keeps its fingerprint.
    """
    found = []
    nullable = getattr(view.source, "nullable_then", view.source.nullable)
    for f in view.source.schema:
        if wanted is not None and f.name not in wanted:
            continue
        width = f.type.list_size if pa.types.is_fixed_size_list(f.type) else 0
        kind = kind_of_arrow(f.type)
        found.append([f.name, kind or "", width, kind is None or nullable(f.name)])
    return found


def _dictionary_digest(dictionary: Dictionary) -> str:
    """Return a digest of the words and values themselves, equal for slices and copies of equal words."""
    if dictionary not in _digests:
        h = hashlib.sha256(f"{dictionary.word_kind} {len(dictionary)} {dictionary.width}".encode())
        words = dictionary.words
        if dictionary.word_kind == "s":
            offsets = np.frombuffer(words.buffers()[1] or b"", np.int64)[words.offset :][: len(words) + 1]
            if len(offsets):
                h.update((offsets - offsets[0]).data)
                h.update(memoryview(words.buffers()[2] or b"")[offsets[0] : offsets[-1]])
        else:
            h.update(np.ascontiguousarray(words.to_numpy()).data)
        h.update(dictionary.ids.data)
        h.update(dictionary.vectors.data)
        _digests[dictionary] = h.hexdigest()
    return _digests[dictionary]


def _array_digest(array: np.ndarray) -> str:
    plain = plain_array(array)
    return hashlib.sha256(f"{plain.dtype.str} {plain.shape} ".encode() + plain.tobytes()).hexdigest()


def plain_array(array: np.ndarray) -> np.ndarray:
    plain = np.ascontiguousarray(array).reshape(np.shape(array))
    return plain.astype(plain.dtype.newbyteorder("<"), copy=False)
