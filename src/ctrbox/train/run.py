"""Defines ``Run``: a finished training with its plan, model and tables, to inspect and to predict with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import nn

from ctrbox import models
from ctrbox.arguments.names import nearest
from ctrbox.arguments.sizes import parse_bytes
from ctrbox.columns.batch import Batch, Schema
from ctrbox.columns.records import is_dicts
from ctrbox.embed.embedder import Embedder
from ctrbox.embed.memory.table import MemoryTable
from ctrbox.embed.ssd.table import SparseTable
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.embed.vectors.server_file import is_server, read_server
from ctrbox.embed.vectors.submodels import OTHER, kind_of_shapes, unfilled
from ctrbox.engines.fingerprint import difference, only_filters_differ
from ctrbox.engines.plan import Plan
from ctrbox.engines.saved import operators_of
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.evaluate.calibration import MOST_SHIFT
from ctrbox.files.sealed import read_sealed
from ctrbox.plan.language.user import UserOperator
from ctrbox.publish.weights import Weights
from ctrbox.train.checkpoint import read_dense, read_state, same_weights, shapes_in
from ctrbox.train.evaluation import score_plan, scored
from ctrbox.train.learner import Learner
from ctrbox.train.model_servers import check_key_kinds
from ctrbox.train.unlearned import refusing_unknown
from ctrbox.train.untrained import untrained
from ctrbox.views.recorded import RecordedSource

ROWS = 16_384
BUDGET = 8 << 30  # of a loaded table at least; it holds what it held, and may go on learning


class Run:
    """A finished training: ``run.metrics["auc"]``, ``run.predict(data)``, ``run.report()``.

    ``cb.Run.load("runs/today")`` loads one from its folder.
    """

    def __init__(self, plan: Plan, learner: Learner, summary: Mapping[str, Any], folder: Path | None) -> None:
        self.plan = plan
        self.learner = learner
        self.summary = summary
        self.folder = folder

    def __repr__(self) -> str:
        where = "" if self.folder is None else f", {str(self.folder)!r}"
        return f"Run({type(self.model).__name__}, auc={self.metrics.get('auc') or float('nan'):.4f}{where})"

    def _repr_html_(self) -> str:
        """Return the metrics and the learning curve, for notebooks."""
        from ctrbox.report.notebook import for_notebook

        return for_notebook(repr(self), self.metrics, self.folder)

    @property
    def model(self) -> nn.Module:
        return self.learner.model

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the validation rows at the end of the training."""
        found: Mapping[str, float] = self.summary.get("metrics", {})
        return found

    def predict_batch(self, batch: Batch) -> np.ndarray:
        """Return the click probability of each row of a batch of this run's plan."""
        if batch.schema.fingerprint not in ("", self.learner.schema.fingerprint):
            raise PlanError(other_plan(self.learner.schema.fingerprint, batch.schema.fingerprint))
        return self.learner.predict(batch)

    def predict(self, rows: Any, *, warn: bool = True) -> np.ndarray:
        """Return the click probability of each raw row; NaN, with a warning, for a row that a filter drops.

        ``rows``: anything that speaks Arrow, a dict or a list of dicts. Columns that the plan merges from another view must
        be among them. ``warn=False``: say nothing about rows that a filter drops.
        """
        table = self._table(rows)
        merged = self.plan.extractor()
        for source, columns in zip(merged.log.sources[1:], merged.columns[1:], strict=True):
            for name in columns:
                if name not in table.column_names:
                    raise DataError(
                        f"these rows lack column {name!r}, which the plan merges from view {source.view.name!r}; add it, or "
                        "predict a whole log with its views: run.predictions(path)"
                    )
        batch = self.plan.run(table)
        p = self.learner.predict(batch)
        if batch.index is None:
            return p
        whole = np.full(table.num_rows, np.nan, np.float32)
        whole[batch.index] = p
        dropped = table.num_rows - len(p)
        if dropped and warn:
            warnings.warn(
                f"the plan's filters drop {dropped:,} of {table.num_rows:,} rows; their predictions are NaN",
                stacklevel=2,
            )
        return whole

    def _table(self, rows: Any) -> pa.Table:
        if is_dicts(rows):
            return self.plan.table_of_dicts(rows)
        if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
            return pa.table(rows)
        raise PlanError(
            f"predict takes rows (a frame, an Arrow table, a list of dicts), got {type(rows).__name__}; for a whole log: "
            "run.predictions(path)"
        )

    def predictions(
        self, data: Any, batch_size: int = ROWS, views: Mapping[str, Any] | None = None
    ) -> Iterator[np.ndarray]:
        """Yield the click probabilities of a whole log in its order, one batch at a time, without the rows that filters drop.

        ``views``: other data for joined and merged views, by name.
        """
        with refusing_unknown(self.learner):
            for _, p in scored(self.learner, self.plan.over(data, label=False, views=views), batch_size):
                yield p

    def evaluate(
        self, data: Any = None, batch_size: int = ROWS, views: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        """Return the metrics on another log with labels, or a plan over one. Default: on the rows that this run held back."""
        if data is None:
            held = self.summary.get("held")
            if not isinstance(held, Mapping):
                raise PlanError("this run held back no rows for validation; pass a log with labels to evaluate on")
            self._need_log()
            return score_plan(self.learner, self.plan, batch_size, int(held["start"]), int(held["stop"])).result()
        if isinstance(data, Plan):
            if self.learner.schema.fingerprint not in (data.fingerprint, data.made_over):
                if only_filters_differ(self.plan, data):
                    raise PlanError(f"this plan has {difference(self.plan, data)}")
                raise PlanError(other_plan(self.learner.schema.fingerprint, data.fingerprint))
            plan = data
        else:
            plan = self.plan.over(data, views=views)
        with refusing_unknown(self.learner):
            return score_plan(self.learner, plan, batch_size).result()

    def _need_log(self) -> None:
        """Raise a PlanError where the rows that this run held back are not to be found."""
        log = self.plan.log
        if isinstance(log.source, RecordedSource) and log.source.described.reference is None:
            raise PlanError(
                "this run was trained on rows in memory, which are not saved. To evaluate it on other labelled data, use "
                "run.evaluate(data); to evaluate it on its own validation rows, pass the original log again: "
                f"load(…, views={{{log.name!r}: …}})"
            )

    def published(self) -> Weights:
        """Everything that decides its predictions, for `cb.publish`: the vectors of all objects of its Model Servers are
        computed now, and published with the sub-models."""
        from ctrbox.train.published import weights_of_run

        return weights_of_run(self.learner)

    def report(self) -> Path:
        """Write report.html into the run folder and return its path."""
        if self.folder is None:
            raise PlanError("this run has no folder; call fit with out='runs/…' to get a report")
        from ctrbox.report.write import write_report

        return write_report(self.folder)

    @staticmethod
    def load(
        folder: str | Path,
        *,
        model: nn.Module | None = None,
        views: dict[str, Any] | None = None,
        allow_operators: bool | Sequence[UserOperator] = False,
        allow_views: Sequence[str] = (),
        plan: Plan | None = None,
        ram: int | str | None = None,
        servers: Mapping[str, ModelServer] | None = None,
    ) -> Run:
        """Load a finished run. ``model``: an untrained instance of your own model class; models of ``cb.models`` are built
        automatically. ``views``, ``allow_operators`` and ``allow_views``: as for ``cb.Plan.load``. ``plan``: the plan of the job
        that trained it, whose views and operators are then used instead of the saved ones; fitted values come from the folder. An
        operator that the run names and this plan lacks is refused, unless ``allow_operators`` allows it.
        ``ram``: memory for all its Sparse Tables together, which are opened read-only; default: 2 GB per table. ``servers``:
        Model Servers by field; their weights are read from the folder, their data is not."""
        place = Path(folder)
        if not place.is_dir():
            raise SourceError(f"there is no run folder {place}")
        read_sealed(place / "config.json", "run folder")
        if not (place / "model").is_dir():
            raise DataError(
                f"{place} holds an unfinished run: its model is missing; run the training again with the same out= to "
                f"continue it"
            )
        state = read_state(place / "model")
        saved = Plan.load(
            place / "plan.ctrplan",
            views=views,
            allow_operators=allow_operators if plan is None else _and_those_of(plan, allow_operators),
            allow_views=allow_views,
        )
        if plan is not None:
            if len(plan.graph.fits) == len(saved.graph.fits):
                plan.fitted = saved.fitted
            saved = plan
        schema = saved.schema
        if schema.fingerprint != state.get("fingerprint"):
            raise DataError(f"{place}: " + other_plan(str(state.get("fingerprint")), schema.fingerprint))
        if model is None:
            model = _built(place, state, schema)
        learner = Learner(model, schema, _tables(place, state, ram, servers or {}), threads=saved.threads)
        check_key_kinds(learner, saved)
        read_dense(place / "model", model)
        shift = state.get("shift")
        if not isinstance(shift, int | float) or not abs(shift) < MOST_SHIFT:
            raise DataError(f"{place / 'model'} is damaged: its shift is {shift!r}")
        learner.shift = float(shift)
        return Run(saved, learner, read_sealed(place / "summary.json", "finished run"), place)


def _and_those_of(plan: Plan, allowed: bool | Sequence[UserOperator]) -> bool | Sequence[UserOperator]:
    """Return what is allowed, and with it the operators of a plan, which its owner has imported already."""
    if allowed is True:
        return True
    return [*operators_of(plan), *(allowed or ())]


def _built(place: Path, state: Mapping[str, Any], schema: Schema) -> nn.Module:
    """Return the model that a run names. Its shapes are compared with the weights before it takes memory for any."""
    name, config = state.get("model"), state.get("config")
    if not isinstance(name, str) or name not in models.MODELS or not isinstance(config, dict):
        raise PlanError(
            f"{place} was trained with {name!r}, which is not one of cb.models; build the model and pass it: "
            f"cb.Run.load(…, model={name}(plan.schema))"
        )
    try:
        held = len(shapes_in(place / "model"))
        return untrained(name, schema, config, held, lambda shapes: same_weights(place / "model", shapes))
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError) as error:
        raise DataError(f"{place / 'model'} is damaged: {name} cannot be built from its config: {error}") from None


def _tables(
    place: Path, state: Mapping[str, Any], ram: int | str | None, servers: Mapping[str, ModelServer]
) -> dict[str, Embedder]:
    by_field: dict[str, Embedder] = {}
    folders = sum(p.is_dir() for p in (place / "model").glob("table-*.ctrtable"))
    if ram is not None and not folders:
        raise PlanError(f"ram= is for Sparse Tables, but the tables of {place} are in memory; remove ram=")
    share: dict[str, Any] = {} if ram is None else {"ram": parse_bytes(ram) // folders}
    for k, fields in enumerate(_fields_of_tables(place / "model", state)):
        file = place / "model" / f"table-{k}.ctrtable"
        table: Embedder
        given = {id(servers[name]): servers[name] for name in fields if name in servers}
        if is_server(file):
            if len(given) != 1:
                raise PlanError(
                    f"{place} computes the vectors of {', '.join(map(repr, fields))} "
                    f"with a Model Server; pass one, "
                    f"with its data: cb.Run.load(…, servers={{{fields[0]!r}: cb.tables.ModelServer(…)}})"
                )
            table = given.popitem()[1]
            table.restore(file, optimizer=False)
        elif given:
            raise PlanError(f"{place} has a table for {fields[0]!r}, not a Model Server; remove it from servers=")
        elif file.is_dir():
            table = SparseTable.load(file, read_only=True, **share)
        else:
            table = MemoryTable.load(file, budget=max(BUDGET, 4 * file.stat().st_size))
        by_field.update(dict.fromkeys(fields, table))
    return by_field


def _fields_of_tables(model: Path, state: Mapping[str, Any]) -> list[list[str]]:
    """Return the fields of each table of a run; there is a file for each, and no field is in two of them."""
    tables = state.get("tables")
    held = [name for name in state["files"] if name.startswith("table-")]
    if not isinstance(tables, list) or not all(isinstance(fields, list) and fields for fields in tables):
        raise DataError(f"{model} is damaged: it does not describe its tables")
    if sorted(held) != sorted(f"table-{k}.ctrtable" for k in range(len(tables))):
        raise DataError(f"{model} is damaged: it describes {len(tables):,} tables and holds {len(held):,}")
    named = [name for fields in tables for name in fields]
    if not all(isinstance(name, str) for name in named) or len(set(named)) != len(named):
        raise DataError(f"{model} is damaged: a table field is not a string, or one field belongs to two tables")
    return tables


def servers_of(folder: str | Path, files: Mapping[str, str | Path]) -> dict[str, ModelServer]:
    """Return Model Servers for `Run.load`, over vector files by field.

    Their sub-models are `cb.tables.ImageEmbedding` or `cb.tables.TextEmbedding`."""
    place = Path(folder)
    found: dict[str, ModelServer] = {}
    tables = server_tables(place)
    known = [field for fields in tables.values() for field in fields]
    for name in files:
        if name not in known:
            there = f"it has those of {', '.join(map(repr, known))}" if known else "it has none"
            raise PlanError(f"{place} has no Model Server for {name!r}, {there}{nearest(name, known)}")
    for file, fields in tables.items():
        mine = [name for name in fields if name in files]
        if not mine:
            continue
        if len(mine) > 1:
            raise PlanError(
                f"{', '.join(map(repr, mine))} share one Model Server in {place}; pass its file for {mine[0]!r} only"
            )
        tensors, _ = read_server(file)
        shapes = {n.removeprefix("model."): tuple(t.shape) for n, t in tensors.items() if n.startswith("model.")}
        kind = kind_of_shapes(shapes)
        if kind == OTHER:
            raise PlanError(
                f"the sub-model of {mine[0]!r} is a user-defined class, so a vector file is not enough; load it from Python: "
                f"cb.Run.load(folder, servers={{{mine[0]!r}: cb.tables.ModelServer(path, submodel)}})"
            )
        found[mine[0]] = ModelServer(files[mine[0]], unfilled(kind, shapes).to_empty(device="cpu"))
    return found


def server_tables(folder: str | Path) -> dict[Path, list[str]]:
    """Files of a run's Model Servers, and the fields of each."""
    model = Path(folder) / "model"
    tables = _fields_of_tables(model, read_state(model))
    files = {model / f"table-{k}.ctrtable": fields for k, fields in enumerate(tables)}
    return {file: fields for file, fields in files.items() if is_server(file)}


def other_plan(mine: str, theirs: str) -> str:
    return (
        f"this model was trained with a plan of fingerprint {mine[:16]}…, this one has {theirs[:16]}…"
        f"; features, "
        f"cleaning or fitted values differ; use run.plan, or run.plan.over(data)"
    )
