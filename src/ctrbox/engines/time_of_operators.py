"""Tells what the operators of a plan have done so far: the time that they took, and the rows that lost something in them."""

from __future__ import annotations

from ctrbox.engines.cpu.assemble_program import Assembled
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.errors import PlanError
from ctrbox.plan.language.types_of_operators import origin


def measured(extractor: Extractor) -> dict[str, dict[str, float]]:
    """Return nanoseconds per row by device and operator; `Plan.measure` describes them."""
    if hasattr(extractor, "measure"):
        return {"cuda": extractor.measure()}
    rows = extractor.stats.stages["extract"].rows if "extract" in extractor.stats.stages else 0
    if not rows:
        raise PlanError("this plan has not run yet, so there are no measured times; read a batch first")
    found: dict[str, float] = {}
    for program in extractor.programs:
        for node, (_, nanos, _) in zip(program.nodes, program.native.profile(), strict=True):
            if node is not None and nanos:
                found[str(node)] = found.get(str(node), 0.0) + nanos / rows
    return {"cpu": found}


def seconds_of_operators(extractor: Extractor) -> dict[str, float]:
    """Return the seconds of each operator class, summed over all threads, the largest first."""
    seconds: dict[str, float] = {}
    for program in _programs(extractor):
        for label, (_, nanos, _) in zip(program.labels, program.native.profile(), strict=True):
            seconds[label] = seconds.get(label, 0.0) + nanos / 1e9
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def lost_rows(extractor: Extractor) -> dict[str, int]:
    """Return the number of rows that lost a value, by operator and column; `Plan.warnings` describes these losses."""
    counts: dict[str, int] = {}
    for program in _programs(extractor):
        for node, (_, _, warned) in zip(program.nodes, program.native.profile(), strict=True):
            if warned and node is not None:
                name = f"{node.op} of {origin(node).name!r}"
                counts[name] = counts.get(name, 0) + warned
    for cast in extractor.casts.counts():
        if cast.lost:
            counts[cast.name] = counts.get(cast.name, 0) + cast.lost
    return counts


def _programs(extractor: Extractor) -> list[Assembled]:
    joined = [p for d in extractor.dimensions.values() for p in d.programs]
    return [*extractor.programs, *joined]
