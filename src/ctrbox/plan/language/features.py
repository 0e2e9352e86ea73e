"""Defines feature sets (labels, group, weight, sparse and dense features) and features computed from the past of a log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Never

from ctrbox.arguments.names import nearest, no_argument
from ctrbox.arguments.numbers import number
from ctrbox.columns.label_task import KINDS, MOST_TASKS
from ctrbox.errors import PlanError
from ctrbox.plan.language import check_parameters
from ctrbox.plan.language.expressions import Expr, column

RESERVED = {"label", "weight", "group"}
LEAST_AGE, MOST_AGE = 1e-30, 1e30  # of an attribution window; ages are float32 in a batch


@dataclass(frozen=True, init=False)
class Label:
    """One of several labels: an expression and its kind, "binary" (0 or 1), "regression" (a number) or "count" (0, 1, 2, …).

    Example: ``cb.FeatureSet(labels={"click": col("clicked"), "value": cb.Label(col("revenue"), "regression")})``. A null
    means that the label was not observed in this row. The row then adds nothing to the loss and the metrics of this label.

    ``delay``, ``elapsed`` and ``window`` are for a binary label that may turn from 0 to 1 later, such as a conversion:
    ``cb.Label("converted", delay="days_to_convert", elapsed="days_since_click", window=30)``. Give all three together, in the
    same unit, which may be any unit:

    ``elapsed``  the time from the click until the row was recorded
    ``delay``    the time from the click to the conversion; it is read in rows whose label is 1, and may be null in other rows
    ``window``   a conversion counts if its delay is at most this long

    The model then predicts whether there is a conversion within the window, even if most rows are younger than the window
    (docs/training/several_labels.md).
    """

    expression: Expr
    kind: str
    delay: Expr | None
    elapsed: Expr | None
    window: float | None

    def __init__(
        self,
        expression: Any,
        kind: str = "binary",
        *,
        delay: Any = None,
        elapsed: Any = None,
        window: float | None = None,
    ) -> None:
        if not isinstance(expression, Expr | str):
            raise PlanError(
                f"a label must be an expression or a column's name, got {check_parameters.shown(expression)}"
            )
        if kind not in KINDS:
            got = check_parameters.shown(kind)
            raise PlanError(f"kind of a label must be one of {', '.join(KINDS)}, got {got}{nearest(str(kind), KINDS)}")
        object.__setattr__(self, "expression", column(expression))
        object.__setattr__(self, "kind", kind)
        given = {"delay": delay, "elapsed": elapsed, "window": window}
        missing = [name for name, value in given.items() if value is None]
        if 0 < len(missing) < len(given):
            raise PlanError(
                f"a label whose ones arrive late needs delay=, elapsed= and window= together; {' and '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing"
            )
        if not missing and kind != "binary":
            raise PlanError(f"delay=, elapsed= and window= belong to a binary label, but its kind is {kind!r}")
        for name in ("delay", "elapsed"):
            if not isinstance(given[name], Expr | str | None):
                raise PlanError(
                    f"{name} must be an expression or a column's name, got {check_parameters.shown(given[name])}"
                )
            object.__setattr__(self, name, None if given[name] is None else column(given[name]))
        object.__setattr__(self, "window", None if window is None else number("window", window, LEAST_AGE, MOST_AGE))

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The expressions that the label reads."""
        return tuple(e for e in (self.expression, self.delay, self.elapsed) if e is not None)


@dataclass(frozen=True, init=False)
class FeatureSet:
    """The label and the features of a plan: a sparse feature is one or many keys per row, a dense feature is a number or a
    vector.

    ``label`` is what a model predicts: 0 or 1. ``labels`` is a dict of several labels, for a model that predicts all of them
    (docs/training/several_labels.md). A value of this dict is the expression of a binary label, or a `cb.Label`, which can
    have another kind. ``group`` is one value per row, such as the user, for the metric GAUC; a batch has its hash.
    """

    label: Expr | None
    group: Expr | None
    weight: Expr | None
    sparse: Mapping[str, Expr]
    dense: Mapping[str, Expr]
    labels: Mapping[str, Label]

    def __init__(
        self,
        label: Any = None,
        group: Any = None,
        weight: Any = None,
        sparse: Mapping[str, Any] | None = None,
        dense: Mapping[str, Any] | None = None,
        labels: Mapping[str, Any] | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise no_argument("FeatureSet", unknown, list(FeatureSet.__init__.__annotations__)[:-2])
        object.__setattr__(self, "labels", _several(labels, label))
        for role, given in (("sparse", sparse), ("dense", dense)):
            if given is not None and not isinstance(given, Mapping):
                raise PlanError(f"{role} features must be a dict from names to expressions, got {type(given).__name__}")
            for name, value in (given or {}).items():
                check_parameters.name("a feature's name", name)
                if not isinstance(value, Expr | str):
                    raise PlanError(
                        f"feature {name!r} must be an expression or a column's name, got {check_parameters.shown(value)}"
                    )
        for name, value in (("label", label), ("group", group), ("weight", weight)):
            object.__setattr__(self, name, None if value is None else column(value))
        object.__setattr__(self, "sparse", {k: column(v) for k, v in (sparse or {}).items()})
        object.__setattr__(self, "dense", {k: column(v) for k, v in (dense or {}).items()})
        for name, times in Counter([*self.labels, *self.sparse, *self.dense]).items():
            if name in RESERVED or times > 1:
                what = "label" if name in self.labels else "feature"
                raise PlanError(f"{what} name {name!r} is already in use; each {what} needs a name of its own")


def _several(labels: Any, label: Any) -> dict[str, Label]:
    """Check ``labels=`` and return its labels by name; an empty dict if there is one label or none."""
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        raise PlanError(f"labels must be a dict from names to expressions, got {type(labels).__name__}")
    if label is not None and labels:
        raise PlanError("a FeatureSet has either label= or labels=; move the expression of label= into labels=")
    if len(labels) > MOST_TASKS:
        raise PlanError(f"labels has {len(labels):,} entries; expected at most {MOST_TASKS}")
    for name in labels:
        check_parameters.name("a label's name", name)
        if not name.isidentifier():
            raise PlanError(
                f"label name {name!r} must be a name such as 'click' or 'add_to_cart': letters, digits and underscores, not "
                "beginning with a digit, because metrics and expressions of scores use it"
            )
    return {name: value if isinstance(value, Label) else Label(value) for name, value in labels.items()}


def space_of(name: str, e: Expr) -> tuple[Expr, str]:
    """Return a sparse feature with its key space: the one that the user gave, else the name of the feature."""
    params = dict(e.params)
    if e.op in ("key", "cross", "as_key"):
        space = params["space"] or name
        return Expr(e.op, e.args, tuple(sorted({**params, "space": space}.items()))), space
    return Expr("key", (e,), (("space", name),)), name


SPANS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 7 * 86_400_000_000}


def span(text: str) -> int:
    """Return the microseconds of a span of time such as '6h'."""
    if not isinstance(text, str) or not re.fullmatch(r"-?[0-9]{1,15}[smhdw]", text):
        raise PlanError(f"expected a span such as '30m', '6h', '1d' or '2w', got {check_parameters.shown(text)}")
    return int(text[:-1]) * SPANS[text[-1]]


def _history(
    what: str, members: tuple[Any, ...], time: Any, label: Any, every: str, window: str | None, **more: Any
) -> Expr:
    if not members:
        raise PlanError(f"{what} needs at least one column to group by, such as 'ad_id'")
    length = span(every)
    if length <= 0:
        raise PlanError(f"every= must be a span of time above 0, such as '1d', got {every!r}")
    buckets = 0
    if window is not None:
        buckets, rest = divmod(span(window), length)
        if rest or buckets < 1:
            raise PlanError(f"window {window!r} must be a multiple of every={every!r}")
    params = check_parameters.history({"what": what, "every": length, "buckets": buckets, **more})
    args = (column(label), column(time), *(column(m) for m in members))
    return Expr("history", args, tuple(sorted(params.items())))


def shows(*by: Any, time: Any, label: Any, every: str = "1d", window: str | None = None) -> Expr:
    """Count the earlier rows with the same value. The counts are fitted on the log. ``rate`` describes the arguments."""
    return _history("shows", by, time, label, every, window)


def clicks(*by: Any, time: Any, label: Any, every: str = "1d", window: str | None = None) -> Expr:
    """Count the earlier rows with the same value that were clicked. The counts are fitted on the log. ``rate`` describes the
    arguments.
    """
    return _history("clicks", by, time, label, every, window)


def rate(
    *by: Any,
    time: Any,
    label: Any,
    every: str = "1d",
    window: str | None = None,
    prior: float = 0.05,
    weight: float = 20.0,
) -> Expr:
    """Return the past click rate of a value, or of a combination of values, as a smoothed rate.

    The rate is ``(clicks + prior · weight) / (shows + weight)``. ``label`` says whether a row was clicked, and ``time`` is
    the time of the row. Time is divided into buckets of length ``every``. A row counts the buckets before the bucket of the
    row itself, at most as far back as ``window`` (default: all). It therefore sees neither its own click nor any later click.
    """
    return _history("rate", by, time, label, every, window, prior=prior, weight=weight)
