"""Trains many Deep FFMs on one stream of examples and compares them by progressive validation.

    found = cb.ffm.search("train.ctrx", cb.ffm.grid(k=[4, 8], hidden=[(), (16,), (24, 24)]), test="test.ctrx")
    print(found)                      # of each: average, median, max, std and min of the windows' AUC, and the test AUC
    found.write("search.html")        # the same, and its traces
    best = found.best.model

The stream is read and parsed once; all models learn from one block before the next block is read. A model learns in one
thread at a time, so it has the same bits as a model that is trained alone. All models are in memory at the same time,
which is checked before the first one is created. A model whose output is no longer finite is marked as failed and
learns no further examples.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrbox import _native
from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Batch
from ctrbox.engines.threads import MOST_LEARNING, checked_threads
from ctrbox.errors import BudgetError, DataError, PlanError, SourceError, TrainError
from ctrbox.ffm.engine import DeepFFM, memory_here
from ctrbox.ffm.examples_from_text_or_cache import ExampleCache, ExampleText
from ctrbox.ffm.progressive_validation import auc
from ctrbox.files.atomic import written_aside
from ctrbox.files.interruptible_wait import results_of
from ctrbox.files.urls import local_path
from ctrbox.show.charts import Line, line_chart, text
from ctrbox.show.page import page

HEAD = ("model", "avg", "median", "max", "std", "min", "test")
OPTIONS = ("context", "k", "hidden", "bits", "lr", "ffm", "nn", "norm", "residual", "ffm_init", "seed")
MOST = 1_000  # models


@dataclass
class Found:
    """One model of a search: its options, the trained model, and its AUC on the test examples."""

    name: str
    options: Mapping[str, Any]
    model: DeepFFM
    test: float = math.nan
    failed: str = ""
    aucs: list[float] = field(default_factory=list)  # of the windows

    def score(self, tested: bool) -> float:
        """Return the AUC by which models are compared; NaN if this model failed or has no AUC."""
        numbers = [v for v in self.aucs if math.isfinite(v)]
        if self.failed:
            return math.nan
        return self.test if tested else statistics.fmean(numbers) if numbers else math.nan

    @property
    def row(self) -> tuple[str, ...]:
        numbers = [v for v in self.aucs if math.isfinite(v)]
        made = (
            [
                statistics.fmean(numbers),
                statistics.median(numbers),
                max(numbers),
                statistics.pstdev(numbers),
                min(numbers),
            ]
            if numbers
            else [math.nan] * 5
        )
        return (self.name, *("-" if math.isnan(v) else f"{v:.4f}" for v in (*made, self.test)))


@dataclass
class Results:
    """The models of a search, in the order in which they were given. AUCs are not weighted: all examples count equally."""

    found: list[Found]
    window: int
    examples: int
    tested: bool = False  # whether there were test examples, by which the best is then chosen

    @property
    def best(self) -> Found:
        """The model with the highest AUC on the test examples or, without test examples, the highest mean AUC over its
        windows.

        A model that failed, or that has no AUC, is never the best. Raises a `TrainError` if there is no other model.
        """
        found = self._best()
        if found is None:
            why = "; ".join(f"{f.name}: {f.failed}" for f in self.found if f.failed)
            what = "the test examples" if self.tested else "the examples"
            none = "no model" if len(self.found) == 1 else f"none of the {len(self.found):,} models"
            raise TrainError(
                f"no model can be chosen, because {none} has an AUC"
                + (f" ({why})" if why else f"; {what} need clicks and non-clicks")
            )
        return found

    def _best(self) -> Found | None:
        scored = [(f.score(self.tested), -n, f) for n, f in enumerate(self.found)]
        known = [one for one in scored if math.isfinite(one[0])]
        return max(known, key=lambda one: one[:2])[2] if known else None  # of equal ones the first

    def __str__(self) -> str:
        rows = [HEAD, *(f.row for f in self.found)]
        widths = [max(len(row[c]) for row in rows) for c in range(len(HEAD))]
        lines = []
        best = self._best()
        for row in rows:
            marked = "*" if len(self.found) > 1 and best is not None and row[0] == best.name else " "
            numbers = (cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))
            lines.append("  ".join([row[0].ljust(widths[0]), *numbers]) + (f" {marked}" if marked == "*" else ""))
        lines += [f"{f.name}: {f.failed}" for f in self.found if f.failed]
        return "\n".join([f"window = {self.window:,}, {self.examples:,} examples", *lines])

    def json(self) -> dict[str, Any]:
        models = [
            {
                "name": f.name,
                "options": dict(f.options),
                "windows": [v if math.isfinite(v) else None for v in f.aucs],
                "test": f.test if math.isfinite(f.test) else None,
                "failed": f.failed,
            }
            for f in self.found
        ]
        best = self._best()
        name = None if best is None else best.name
        return {"window": self.window, "examples": self.examples, "best": name, "models": models}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write an HTML page with the table and the traces of all models, the best one in front."""
        best = self._best()
        order = sorted(self.found, key=lambda f: f is best)
        lines = [
            Line(
                f.name,
                [((n + 1) * self.window, v) for n, v in enumerate(f.aucs)],
                "a" if f is best else "b",
                f is not best,
            )
            for f in order
        ]
        cells = "".join(
            "<tr>"
            + f'<td class="name">{text(f.row[0])}</td>'
            + "".join(f'<td class="n">{v}</td>' for v in f.row[1:])
            + "</tr>"
            for f in self.found
        )
        heads = "".join(f'<th class="n">{h}</th>' if h != "model" else f"<th>{h}</th>" for h in HEAD)
        front = (
            "no model has an AUC" if best is None else f"the best, {text(best.name)}, is drawn in front of the others"
        )
        body = [
            f"<h1>Model search <span>{len(self.found):,} models, {self.examples:,} examples</span></h1>",
            "<section><h2>AUC before learning</h2>"
            f'<p class="note">In windows of {self.window:,} examples; {front}.</p>',
            line_chart(lines, label="AUC", across="examples", width=1080, height=380),
            "</section><section><h2>Results by window and on the test examples</h2>"
            f'<div class="wide"><table><tr>{heads}</tr>{cells}</table></div></section>',
        ]
        with written_aside(local_path(path, "the page of a model search")) as aside:
            aside.write_text(page("Model search", body), encoding="utf-8")


def grid(**options: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the options of a model for every combination of the given values. The names of the models contain the
    options that differ.
    """
    for name, values in options.items():
        if name not in OPTIONS:
            raise PlanError(f"DeepFFM has no option {name!r}{nearest(name, OPTIONS)}")
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
            raise PlanError(f"grid({name}=…) needs a list of values, got {values!r}")
    varied = {name: how_to_show(values) for name, values in options.items() if len(values) > 1}
    made = {}
    for chosen in itertools.product(*options.values()):
        one = dict(zip(options, chosen, strict=True))
        made[" ".join(f"{name}={shown(one[name])}" for name, shown in varied.items()) or "the model"] = one
    return made


def search(
    source: Any,
    models: Mapping[str, Mapping[str, Any]],
    *,
    test: Any = None,
    fields: Any = None,
    window: int = 30_000,
    threads: int | None = None,
    tick: Callable[[int], None] = lambda examples: None,
) -> Results:
    """Learn all of ``models`` (options of `DeepFFM` by name) from ``source`` at the same time, and compare them.

    ``source``, ``test``  examples to learn from and to test on: what `DeepFFM.learn` takes, or the path of an `ExampleCache`
    ``threads``           number of models that learn at once, from 1 to 256; default: the cores that this process may use
    ``tick``              function that is called with the number of examples learned from so far
    ``fields``            names of the fields; needed for text without ``fields=`` and for batches
    """
    source, test = opened(source), opened(test)
    if not isinstance(models, Mapping) or not 1 <= len(models) <= MOST:
        raise PlanError(f"models= must be a dict of 1 to {MOST:,} models by name, as cb.ffm.grid returns it")
    window = whole("window=", window, 2, 2**62)
    for name, options in models.items():
        for option in options:
            if option not in OPTIONS:
                raise PlanError(f"model {name!r}: DeepFFM has no option {option!r}{nearest(option, OPTIONS)}")
    used = _native.usable_cores() if threads is None else checked_threads(threads, MOST_LEARNING)
    over = fields_of(source) if fields is None else fields
    check_memory(models)
    found = [Found(name, options, made(name, over, options)) for name, options in models.items()]
    for f in found:
        f.model.progress.window = window
    examples = learn_all(found, source, used, tick)
    for f in found:
        f.aucs = [w.auc for w in f.model.progress.windows]
        if not f.aucs and f.model.progress.examples:
            f.aucs = [f.model.progress.auc]
    if test is not None:
        for f in found:
            if not f.failed:
                try:
                    f.test = test_auc(f.model, test)
                except TrainError as error:  # one model's output is not finite; the others are still compared
                    f.failed = f"test: {error}"
    for given in (source, test):
        if isinstance(given, ExampleText):
            given.complain()
    return Results(found, window, examples, test is not None)


def learn_all(found: list[Found], source: Any, threads: int, tick: Callable[[int], None]) -> int:
    reader = found[0].model
    examples = 0

    def learn(one: tuple[Found, _native.Examples]) -> None:
        f, block = one
        try:
            f.model.learn(block)
        except TrainError as error:
            f.failed = str(error)

    with ThreadPoolExecutor(max(1, min(threads, len(found)))) as pool:
        # Context fields may put the fields of models in another order than the reader's.
        for block in reader._examples(reader._read_for(source)):
            examples += block.rows
            live = [(f, f.model._renumbered(block, reader.fields, "the search")) for f in found if not f.failed]
            for _ in results_of(pool, learn, live):
                pass
            tick(examples)
            if not live:
                break
    return examples


def test_auc(model: DeepFFM, test: Any) -> float:
    """Return the AUC on the test examples. Raise a `TrainError` if an output of the model is not finite."""
    labels, predictions = [], []
    for block in model._examples(model._read_for(test)):
        if block.unlabeled:
            raise DataError(
                f"{block.unlabeled:,} of {block.rows:,} test examples have no label; give every test example a label of 0 or 1"
            )
        labels.append(block.labels)
        try:
            predictions.append(model.predict(block))
        except DataError as error:
            raise TrainError(str(error)) from error
    if not labels:
        return math.nan
    return auc(np.concatenate(labels), np.concatenate(predictions))


def opened(source: Any) -> Any:
    """Return a source as it is, but for a path the `ExampleCache` in this file."""
    if not isinstance(source, str | os.PathLike):
        return source
    if not local_path(source, "a file of parsed examples").exists():
        raise SourceError(f"cannot read {source}: there is no such file")
    return ExampleCache(source)


def fields_of(source: Any) -> Any:
    if isinstance(source, ExampleCache):
        return source
    if isinstance(source, ExampleText) and source.given is not None:
        return source.given
    if isinstance(source, Batch) or hasattr(source, "schema"):
        return source.schema
    raise PlanError("the fields of this source are not known before it is read; pass them: search(…, fields=[…])")


def made(name: str, fields: Any, options: Mapping[str, Any]) -> DeepFFM:
    try:
        return DeepFFM(fields, **options)
    except PlanError as error:
        raise PlanError(f"model {name!r}: {error}") from error


def check_memory(models: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise a `BudgetError` if this machine has too little memory for all models at the same time."""
    needed = sum(
        ((8 * (o.get("lr", 1) is not None) + 8 * (o.get("ffm", 1) is not None)) << bits)
        for o in models.values()
        if isinstance(bits := o.get("bits", 22), int) and 0 <= bits <= 36
    )
    memory = memory_here()
    if needed > memory:
        raise BudgetError(
            f"{len(models):,} models need {needed:,} bytes at the same time, but this machine has {memory:,} bytes; try "
            "fewer models, or smaller values of bits"
        )


def how_to_show(values: Sequence[Any]) -> Callable[[Any], str]:
    """Return `short` if it tells these values apart, else ``str``, as for two rates that differ in another part."""
    return short if len({*map(short, values)}) == len({*map(str, values)}) else str


def short(value: Any) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "(" + ",".join(map(str, value)) + ")"
    rate = getattr(value, "rate", None)
    return str(value if rate is None else rate)
