"""Passes a plan to native code, so that the server and libctrbox (docs/publishing/c_abi.md) score requests without Python.

    save_request_plan(plan, "request.ctr", context=["user_id", "query"])

The file contains what the server runs for a request: the programs of both parts of the plan
(`ctrbox.compiled_plan.split_for_requests`), the names and types of the columns of a request, and the rows that the joined views
have now. It contains no weights, so it stays the same when new versions of them are published. The layout is in
native/core/request/request_plan.h. The file is written under a temporary name, read by the code that libctrbox uses, and renamed.
The server passes the same programs in memory (`native_scorer`).

A file cannot contain operators written in Python, joined views on a disk, and columns that only the Python reader of requests can
read: lists, uint64, float16, and times in another unit than microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ctrbox import _native
from ctrbox.columns.raw_values import RawColumn
from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.split_for_requests import Split
from ctrbox.engines.cpu.assemble_program import Assembled, Dimension
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cpu.morsel_stages import Native
from ctrbox.errors import PlanError
from ctrbox.ffm.engine import DeepFFM
from ctrbox.files.atomic import written_aside
from ctrbox.files.urls import local_path
from ctrbox.serve.request import described_for_native

# Columns of a part of a request: those that are read, and names of those that may come and are not read.
Columns = tuple[list[tuple[str, str, int, int, bool, int]], list[str]]


def save_request_plan(plan: Plan, path: str | os.PathLike[str], *, context: Sequence[str]) -> None:
    """Write a plan to a file that libctrbox opens.

    ``context``: the columns of the log that come once per request, as for `cb.serve.create`; every other column that the plan
    reads comes with each candidate.
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"save_request_plan needs a plan, as cb.compile returns it, got {type(plan).__name__}")
    if isinstance(context, str):
        raise PlanError(f"context= must be a list of column names, got {context!r}")
    if plan.schema.tasks:
        raise PlanError(
            "this plan has several labels (labels=), but libctrbox scores only a Deep FFM, which has one label; use one "
            "label="
        )
    place: Path = local_path(path, "a plan for requests")
    plan.fit()
    split = Split(plan, tuple(context))
    extractors = [split.once, *([split.shared] if split.shared else []), split.each]
    for extractor in extractors:
        refuse_python(extractor)
    once, shared, each = parts_of(split)
    known, units = plan.log.source.schema.names, plan.time_units

    def columns(schema: pa.Schema, once: bool) -> Columns:
        described = [described_column(field, units.get(field.name)) for field in schema]
        return described, [name for name in known if (name in context) == once and name not in schema.names]

    with written_aside(place) as aside:
        try:
            _native.write_request_plan(
                str(aside),
                columns(split.context_schema, True),
                columns(split.candidate_schema, False),
                split.merged,
                plan.fingerprint,
                [(d.index, d.records) for d in views_of(extractors)],
                once,
                shared,
                each,
            )
            _native.RequestPlan.read(str(aside))
        except ValueError as error:
            raise PlanError(f"this plan cannot be written for libctrbox: {error}") from error


def parts_of(split: Split) -> tuple[Any, Any, Any]:
    """Return the parts of a plan for native code; the plan must not have operators written in Python.

    The parts are the features of the context, those of them that candidates read (None if they read none), and the features of
    the candidates.
    """
    at = {name: k for k, name in enumerate(split.context_schema.names)}

    def part(extractor: Extractor, numbers: list[int]) -> Any:
        filters = [step for step in extractor.stages.steps if isinstance(step, Native)]
        slots = [
            (output.role == "sparse", output.node.kind, output.width if output.role == "dense" else 1, output.name)
            for output in extractor.outputs
            if output.role != "column"
        ]
        chosen = None
        if filters:
            kept = filters[0].kept
            chosen = filters[0].program.native, [n.kind for n in kept], [n.nullable for n in kept]
        return numbers, chosen, slots, extractor.body.native

    def of_context(extractor: Extractor) -> Any:
        return part(extractor, [at[name] for name in split._read(extractor)])

    shared = None if split.shared is None else of_context(split.shared)
    return of_context(split.once), shared, part(split.each, list(range(len(split.candidate_schema.names))))


def native_scorer(split: Split, rows: tuple[Any, Any], engine: DeepFFM) -> Any:
    """Return a `_native.RequestScorer`, which scores requests from their bytes without Python.

    ``rows``: the native readers of the context and of the candidates. Returns None if the plan has operators written in Python,
    or if the engine does not compute a context once.
    """
    extractors = [split.once, *([split.shared] if split.shared else []), split.each]
    if not all(isinstance(step, Native) for extractor in extractors for step in extractor.stages.steps):
        return None
    once, shared, each = parts_of(split)
    made = _native.RequestScorer.of_parts(
        *rows, split.merged, once, shared, split.kinds, split.nullable, each, engine._native, engine.fields
    )
    return made if made.shares else None


def described_column(field: pa.Field, unit: str | None) -> tuple[str, str, int, int, bool, int]:
    found = described_for_native(RawColumn(field, unit))
    if found is None:
        raise PlanError(
            f"column {field.name!r} is {field.type}, which libctrbox cannot read from a request; it reads bools, whole "
            "numbers up to int64, float32 and float64, strings and timestamps of microseconds. Leave the feature out, or "
            "serve the model with `ctrbox serve`"
        )
    return found


def refuse_python(extractor: Extractor) -> None:
    """Raise PlanError if a part of the plan needs Python, or reads a view that is not in memory."""
    for step in extractor.stages.steps:
        if not isinstance(step, Native):
            names = ", ".join(dict.fromkeys(repr(node.param("function").name) for node in step.nodes))
            raise PlanError(
                f"the plan runs operators written in Python ({names}), which libctrbox cannot run; write these features with "
                "built-in operators, or serve the model with `ctrbox serve`"
            )
    for view in views_of([extractor]):
        if view.on_disk:
            raise PlanError(
                f"joined view {view.name!r} is kept on a disk (spill=), but libctrbox keeps joined views in memory; raise "
                "its budget: join(…, budget=…)"
            )


def views_of(extractors: Sequence[Extractor]) -> list[Dimension]:
    """Return the joined views that programs read, each of them once."""
    programs: list[Assembled] = [program for extractor in extractors for program in extractor.programs]
    nodes = [node for program in programs for node in program.nodes if node is not None]
    rows = [node if node.op == "row" else node.args[0] for node in nodes if node.op in ("row", "gather")]
    numbers = dict.fromkeys(row.param("frame") for row in rows)
    return [extractors[0].dimensions[number] for number in numbers]
