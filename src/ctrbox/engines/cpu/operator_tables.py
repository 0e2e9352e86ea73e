"""Builds native tables from their descriptions, each once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox import _native
from ctrbox.errors import PlanError
from ctrbox.plan.language.tables_of_operators import Dictionary, TableSpec, misfit


class Tables:
    """The native tables of a plan, each built when it is first needed. ``fitted``: fitted values, by the number of the fit."""

    def __init__(self, fitted: dict[int, dict[str, np.ndarray]]) -> None:
        self.fitted = fitted
        self.built: dict[Any, Any] = {}

    def native(self, spec: TableSpec) -> tuple[Any, list[float]]:
        """Return the native table, and the numbers that the operator needs from it."""
        if spec.what == "fit":
            return self.learned(int(spec.data), spec.how)
        key = (spec.what, id(spec.data) if spec.what == "dictionary" else spec.data)
        if key not in self.built:
            self.built[key] = (build(spec), spec.data)  # the data is held so that its id stays its own
        return self.built[key][0], []

    def learned(self, number: int, how: str) -> tuple[Any, list[float]]:
        state = self.fitted.get(number)
        if state is None:
            raise PlanError(
                "the plan has operators that are fitted on the log, such as quantiles, but was not fitted yet; call "
                "plan.fit() first"
            )
        key = ("fit", number)
        if key not in self.built:
            wrong = misfit(how, state)
            if wrong:
                raise PlanError(f"the fitted values do not match the operators of the plan: {wrong}")
            self.built[key] = (fitted_table(how, state), state)
        numbers = [float(state["mean"][0]), float(state["scale"][0])] if how == "moments" else []
        return self.built[key][0], numbers


def fitted_table(how: str, state: dict[str, np.ndarray]) -> Any:
    match how:
        case "quantiles":
            return _native.Boundaries([float(b) for b in state["boundaries"]])
        case "history":
            return _native.History(state["hashes"], state["buckets"], state["shows"], state["clicks"])
    return None


def build(spec: TableSpec) -> Any:
    match spec.what:
        case "int_set":
            return _native.IntSet(list(spec.data))
        case "float_set":
            return _native.FloatSet(list(spec.data))
        case "str_set":
            return _native.StrSet(list(spec.data))
        case "boundaries":
            return _native.Boundaries(list(spec.data))
        case "dictionary":
            table: Dictionary = spec.data
            return _native.Dictionary(hashes_of(table.words), table.ids, table.vectors, table.width)
    raise PlanError(f"no native table {spec.what!r}")


def hashes_of(words: pa.Array) -> np.ndarray:
    """Return the hash of each word, from the kernel that also hashes columns."""
    kind = "i" if pa.types.is_integer(words.type) else "s"
    program = _native.Program(1024)
    register = program.load(0, 0, kind, False, "word")
    (hashed,) = program.call("hash", kind, [register], ["k"], [False], [], [], [], None, False)
    program.emit(0, hashed)
    program.finish()
    frame = _native.Frame.from_arrow(pa.RecordBatch.from_arrays([words], ["word"]))
    kept, _ = program.run_frame([(len(words), [(frame, None, 0)])], ["k"], [False], [frame])
    if not len(words):
        return np.zeros(0, np.uint64)
    (values,) = kept.export(0)[2]
    return np.asarray(values)
