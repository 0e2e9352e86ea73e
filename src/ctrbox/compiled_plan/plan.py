"""Defines ``Plan``, the compiled job: the public face of the graph and of the engine behind it.

The modules `batch_order`, `compute` and `time_of_operators` of `ctrbox.engines` walk through batches, compute expressions and
report the work of operators.
"""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pyarrow as pa

from ctrbox import _native
from ctrbox.arguments.numbers import whole
from ctrbox.columns.batch import Batch, Schema
from ctrbox.columns.rows_as_dicts import is_dicts, table_of_dicts
from ctrbox.engines import batch_order, time_of_operators
from ctrbox.engines.batch_stream import BatchStream, Position
from ctrbox.engines.choose_device import device_of_labels, wants_gpu
from ctrbox.engines.compute import EVALUATE_ROWS, columns_of
from ctrbox.engines.cpu.assemble_program import Dimension
from ctrbox.engines.cpu.extract import CHUNK_ROWS, Extractor
from ctrbox.engines.lost_values import CastCount
from ctrbox.engines.missed_keys import JoinCount
from ctrbox.engines.run_on_request import Requests, names_of, single
from ctrbox.engines.threads import MOST_EXTRACTING, checked_threads
from ctrbox.errors import PlanError
from ctrbox.plan.graph.build_graph import build
from ctrbox.plan.graph.graph import Graph
from ctrbox.plan.graph.label_leak import label_leak
from ctrbox.plan.graph.unlabeled import LABELS, without_label_filters
from ctrbox.plan.language.features import FeatureSet
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.plan.placement.device_description import Device, device_named, gpu_here, gpu_number
from ctrbox.views.columns_as_recorded import opened
from ctrbox.views.view import Merge, View

if TYPE_CHECKING:
    from ctrbox.engines.history.state_of_histories import Histories

Fitted = dict[int, dict[str, np.ndarray]]
Told = tuple[set[tuple[str, tuple[str, ...]]], set[int]]  # joins and casts that a plan's extractors have warned of


class Plan:
    """A compiled plan, which turns raw rows into batches. ``cb.compile`` and ``cb.Plan.load`` create plans.

    A plan cannot be changed: setting an attribute raises an error. ``using`` returns a new plan with another number of
    threads or for another device. A plan keeps only what follows from its definition: fitted values, loaded views and the
    compiled program.
    """

    log: View
    features: FeatureSet
    device: str | Device
    threads: int  # that extract
    chunk_rows: int
    graph: Graph
    fitted: Fitted  # values that operators took from the log; empty before ``fit``
    made_over: str  # the fingerprint of the plan that this one is, over another log

    def __init__(
        self,
        log: View,
        features: FeatureSet,
        *,
        device: str | Device = "auto",
        threads: int | None = None,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        self.log = log
        self.features = features
        self.device = device_of_labels(features, device)
        self.threads = _native.usable_cores() if threads is None else whole("threads", threads, 1, MOST_EXTRACTING)
        chunk_rows = whole("chunk_rows", chunk_rows, 1, 65_536)
        self.chunk_rows = chunk_rows
        self.graph = build(log, features)
        self.fitted = {}
        self.made_over = ""
        self._measured: dict[str, dict[str, float]] = {}
        self._dimensions: dict[int, Dimension] | None = None
        self._extractor: Extractor | None = None
        self._told: Told = (set(), set())
        self._lock = threading.Lock()
        self._requests: tuple[Requests, Requests | None] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and "_requests" in vars(self):  # which is set last, when the plan is made
            other = f"; make another plan: plan = plan.using({name}=…)" if name in ("threads", "device") else ""
            raise PlanError(f"{name} cannot be set, because a plan cannot be changed after it was compiled{other}")
        super().__setattr__(name, value)

    def using(self, *, threads: int | None = None, device: str | Device | None = None) -> Plan:
        """Return this plan with another number of threads, or for another device. Both plans share fitted values and loaded
        views.

        ``threads``: number of threads that extract, from 1 to 1,024. ``device``: as for ``cb.compile``. Default: those of
        this plan.
        """
        changes: dict[str, Any] = {}
        if threads is not None:
            changes["threads"] = checked_threads(threads, MOST_EXTRACTING)
        if device is not None:
            changes["device"] = device_of_labels(self.features, device)
        return self._like(**changes)

    def _like(self, **changes: Any) -> Plan:
        """Return a copy with other values of these attributes. It shares the graph with this plan, but builds its own program."""
        made = copy.copy(self)
        vars(made).update(changes, _extractor=None, _requests=None, _told=(set(), set()), _lock=threading.Lock())
        if "fitted" in changes:
            vars(made).update(_dimensions=None)  # they were computed with the values of before
        return made

    def _repr_html_(self) -> str:
        from ctrbox.plan.drawing.draw import for_notebook

        return for_notebook(repr(self), self.graph, self._known(self.device))

    def __repr__(self) -> str:
        roles = [o.role for o in self.graph.outputs]
        return f"Plan({self.log.name!r}, sparse={roles.count('sparse')}, dense={roles.count('dense')}, threads={self.threads})"

    @property
    def schema(self) -> Schema:
        """The features that the batches contain. Reading this attribute does not read the log.

        The schema has a fingerprint, which covers fitted values. It is empty if the plan must be fitted first.
        """
        return self.graph.schema(self.fingerprint if self.is_fitted else "")

    @property
    def is_fitted(self) -> bool:
        """Whether the plan has all values that its operators learn from the log. True for a plan without such operators."""
        return bool(self.fitted) or not self.graph.fits

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the bits of a batch. Models contain it. Before ``fit``, it does not cover fitted
        values.
        """
        from ctrbox.compiled_plan.fingerprint import fingerprint

        return fingerprint(self)

    def data_fingerprints(self) -> list[list[str]]:
        """Return a hash of the data of each view, by the view's name. It covers names, sizes, times and contents of the files.

        `files.data_fingerprint` says which bytes of the files are covered. Compare these hashes before you resume at a saved
        position in another process.
        """
        return [[view.name, view.source.fingerprint()] for view in self._views()]

    @property
    def table_versions(self) -> dict[str, dict[str, Any]]:
        """The ``path``, ``format`` ("delta" or "iceberg") and ``version`` of each table that a view reads, by the view's name."""
        from ctrbox.compiled_plan.saved_views import versions_of

        return versions_of(self._views())

    def _views(self) -> list[View]:
        views = {id(source.view): source.view for frame in self.graph.frames for source in frame.sources}
        return list(views.values())

    # ---- learning, looking, keeping
    def fit(self) -> Plan:
        """Read the log and compute the values that operators learn from it: quantiles, means and deviations, and counts of
        clicks.

        Returns this plan. If the plan has no such operators, or already has their values, it reads nothing. ``batches`` and
        the other methods that run the plan fit it first.
        """
        if not self.is_fitted:
            from ctrbox.engines.fitted_values import fit_plan

            vars(self)["fitted"] = fit_plan(self)
            self._extractor = self._requests = None
        return self

    @overload
    def explain(self, device: Any = None, *, json: Literal[False] = False) -> str: ...
    @overload
    def explain(self, device: Any = None, *, json: Literal[True]) -> dict[str, Any]: ...
    def explain(self, device: Any = None, *, json: bool = False) -> str | dict[str, Any]:
        """Describe the layers, where each operator runs and why, the rows and the bytes, as text or as plain data.

        ``device``: a ``cb.types.Device`` to describe the plan for; default: the device of the plan. After ``measure()`` on a
        GPU, the description also has the measured times.
        """
        from ctrbox.plan.drawing.explain import explain, explain_json

        where = self._known(self.device if device is None else device)
        if json:
            return explain_json(self.graph, where, measured=self._measured, loaded=self._loaded())
        return explain(self.graph, where, measured=self._measured, loaded=self._loaded())

    def _loaded(self) -> dict[int, dict[str, Any]]:
        """Return where each loaded joined view is stored."""
        return {number: dimension.lies for number, dimension in (self._dimensions or {}).items()}

    @staticmethod
    def _known(device: Any) -> Any:
        """Return the device, with the memory of this machine's GPU if the device names it."""
        named = device == "auto" or device == "cuda" or gpu_number(device) is not None
        if not named or not gpu_here():
            return device
        from ctrbox.engines.cuda.runtime import gpu_bytes

        return device_named(device, gpu_bytes=gpu_bytes())

    def measure(self) -> dict[str, dict[str, float]]:
        """Measure the nanoseconds per row of each operator.

        On the CPU, the times are those of all rows so far, for all threads together. On a GPU, the method runs each group of
        operators alone over the last chunk. ``explain()`` then shows these times, and placement uses them.
        """
        self._measured = time_of_operators.measured(self.extractor())
        return self._measured

    @property
    def measured(self) -> dict[str, dict[str, float]]:
        """The result of the last ``measure``, by device and operator; empty before the first."""
        return self._measured

    def show(self, path: str | os.PathLike[str], device: Any = None) -> None:
        """Draw the plan as an SVG picture."""
        from ctrbox.plan.drawing.draw import draw

        draw(self.graph, path, self._known(self.device if device is None else device))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file with checksums: its views, features and fitted values."""
        from ctrbox.compiled_plan.plan_file import save_plan

        save_plan(self, path)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        views: dict[str, Any] | None = None,
        allow_operators: bool | Sequence[UserOperator] = False,
        allow_views: Sequence[str] = (),
        device: str | Device | None = None,
    ) -> Plan:
        """Read a saved plan. This runs no code of the file and opens none of its paths.

        ``views``            other data for views, by the view's name
        ``allow_operators``  True imports your own operators by the import paths in the file; a list allows these operators
                             and imports nothing
        ``allow_views``      folders from which views may be read, such as ``["/data", "s3://bucket/"]``, in addition to the
                             current folder and the folder of the plan file. A view is opened when the plan runs
        ``device``           as for ``cb.compile``; default: "cpu" for a plan that was compiled for it, otherwise "auto"
        """
        from ctrbox.compiled_plan.plan_file import load_plan

        plan = load_plan(path, views=views, allow_operators=allow_operators, allow_views=allow_views)
        return plan if device is None else plan.using(device=device)

    def materialize(self, path: str | os.PathLike[str], features: list[str] | None = None, **options: Any) -> int:
        """Write chosen features, with the instance id, as basic features for later runs. Returns the number of rows written."""
        from ctrbox.engines.materialize import materialize

        return materialize(self, path, features, **options)

    # ---- running
    def extractor(self, begin: int | None = None) -> Extractor:
        """Return the engine of the plan. The first call fits the operators, loads the joined views and builds the programs.

        ``begin``: the row of the log from which the caller will ask for batches. The CPU engine can then read the log while
        it loads the joined views.
        """
        self.fit()
        with self._lock:
            if self._extractor is None:
                options = self._options(schema=self.schema)
                if wants_gpu(self.device):
                    from ctrbox.engines.cuda.extract import on_gpu

                    self._extractor = on_gpu(self.graph, self.fitted, self.device, **options)
                else:
                    self._extractor = Extractor(self.graph, self.fitted, begin=begin, **options)
                self._dimensions = self._extractor.dimensions
                self._extractor.joins.told, self._extractor.casts.told = self._told
            return self._extractor

    def batches(
        self,
        batch_size: int = 65_536,
        *,
        shuffle: int = 0,
        seed: int = 0,
        start: Position | None = None,
        limit: int | None = None,
        stop: int | None = None,
    ) -> BatchStream:
        """Return a stream of batches of ``batch_size`` rows in the order of the log. The last batch may be smaller.

        ``shuffle``  number of consecutive rows that are put into a random order, at least the size of a batch; ``seed``
                     decides the order
        ``start``    the ``position`` of an earlier stream at which this stream continues
        ``limit``    maximum number of rows
        ``stop``     the first row of the log that is not read
        """
        walk = batch_order.walk(self.extractor, batch_size, shuffle, seed, start, limit, stop)
        return BatchStream(walk, start)

    def parts(
        self,
        batch_size: int,
        part: int,
        of: int,
        *,
        shuffle: int = 0,
        seed: int = 0,
        start: Position | None = None,
        stop: int | None = None,
    ) -> Generator[tuple[Batch, Position, int], None, None]:
        """Yield one worker's part of each batch, together with the number n of rows of the whole batch.

        The part has the rows n·part/of to n·(part + 1)/of. Without ``shuffle``, the operators run over these rows alone.
        """
        return batch_order.parts(self.extractor, batch_size, part, of, shuffle, seed, start, stop)

    def columns(
        self, columns: dict[str, Any], *, rows: int = EVALUATE_ROWS, start: int = 0, stop: int | None = None
    ) -> Generator[pa.Table, None, None]:
        """Compute other expressions for the rows of the batches, in the same order, for slices of metrics but never for training.

        ``rows``: number of rows of each table. ``start`` and ``stop``: rows of the log.
        """
        return columns_of(self, columns, rows, start, stop)

    def over(
        self,
        data: Any,
        *,
        label: bool = True,
        views: Mapping[str, Any] | None = None,
        histories: str | os.PathLike[str] | None = None,
    ) -> Plan:
        """Return this plan, with its fitted values, over another log, whose columns must have the types for which the plan
        was built.

        If the other log has a null for which the plan has no fill value, reading raises an error that names the row.

        ``label``      False if the other log has no labels
        ``views``      other data for joined and merged views, by name
        ``histories``  the file of a saved state (``plan.histories``) with which the histories of the other log begin; by
                       default, they begin empty
        """
        from ctrbox.compiled_plan.plan_over_other_log import plan_over

        made = plan_over(self, data, label, views, histories)
        # The fits of labels are the last; a plan over rows without labels does not have them.
        fitted = {k: state for k, state in self.fit().fitted.items() if k < len(made.graph.fits)}
        return made._like(fitted=fitted, made_over=self.made_over or self.fingerprint)

    def histories(self, state: str | os.PathLike[str] | None = None) -> Histories:
        """Return the state of the histories and counts of the log: an empty state, or the state that was saved to the file
        ``state``.

        ``plan.histories().read_log(until="2026-11-18")`` adds rows of the plan's log. ``observe(rows)`` adds new events,
        ``columns_of(rows)`` returns the history columns of rows that are to be scored, and ``save(path)`` writes the state to
        a file.
        """
        from ctrbox.compiled_plan.fingerprint import histories_fingerprint
        from ctrbox.engines.history.state_of_histories import Histories

        made = Histories(self.log, lambda: histories_fingerprint(self.log), self.threads)
        return made if state is None else made.load(state)

    @property
    def reads(self) -> dict[str, list[str]]:
        """The columns that the plan reads from each view, by the view's name."""
        found: dict[str, list[str]] = {}
        for frame in self.graph.frames:
            for place, source in enumerate(frame.sources):
                read = {*self.graph.columns(frame, place), *((source.on,) if source.on else ())}
                names = found.setdefault(source.view.name, [])
                names += [name for name in source.view.source.schema.names if name in read and name not in names]
        return found

    @property
    def rows(self) -> int:
        """Number of rows of the log before filters. If the log does not say it, the log is read once to count them."""
        source = opened(self.log.source)
        known = source.rows
        if known is None:
            known = sum(m.rows.num_rows for m in source.scan(source.schema.names[:1], threads=self.threads))
        return known

    def run(self, rows: Any) -> Batch:
        """Compute the features of a few raw rows of the log, such as the rows of a request, with the operators of the plan.

        ``rows``: any object with the Arrow PyCapsule interface, a dict, or a list of dicts. Dicts are checked by the rules of
        requests, and an empty list gives a batch without rows. If the columns of the label are missing, the batch has no
        labels. Columns of a view that is merged as a stream are used if the rows have all of them that features read, and
        filled if they have none. Filters apply: ``batch.index`` then says which rows of the request are in the batch.
        """
        if isinstance(rows, list | tuple) and not rows:
            rows = self.request_schema().empty_table()
        rows = self.table_of_dicts(rows) if is_dicts(rows) else single(rows)
        full, unlabeled = self._requests or (None, None)
        if full is not None and full.knows(rows):
            return full.run(rows)
        if unlabeled is not None and unlabeled.knows(rows):
            return unlabeled.run(rows)
        if full is None:
            full = Requests(self._request_extractor())
            self._requests = (full, None)
        names = names_of(rows)
        if full.lacks(names) or full.incomplete(names):  # what is missing may be no more than the label
            unlabeled = unlabeled or self._without_labels(full.extractor)
            self._requests = (full, unlabeled)
            return unlabeled.run(rows)
        return full.run(rows)

    def request_schema(self, *, label: bool = False) -> pa.Schema:
        """Return the columns that a request may contain.

        They are the columns of the log that features read, and the columns of views that are merged as streams. With
        ``label``, they include the columns of the label and the weight.
        """
        full = Requests(self._request_extractor())
        needed = full if label else self._without_labels(full.extractor)
        found: dict[str, pa.Field] = {}
        for source, names in zip(needed.extractor.log.sources, needed.extractor.loaded, strict=True):
            for name in names:
                found.setdefault(name, source.view.source.schema.field(name))
        return pa.schema(list(found.values()))

    def table_of_dicts(self, rows: Any) -> pa.Table:
        """Convert a dict, or a list of dicts, to a table with the types of the log and of merged views."""
        views = [*(step.view for step in self.log.steps if isinstance(step, Merge)), self.log]
        fields = {field.name: field for view in views for field in view.source.schema}
        given = [rows] if isinstance(rows, Mapping) else list(rows)
        return table_of_dicts(given, pa.schema(list(fields.values())), self.time_units)

    @property
    def time_units(self) -> dict[str, str]:
        """Return the units in which requests and streams may give times as numbers, by column of the log and of merged views."""
        merged = [step.view for step in self.log.steps if isinstance(step, Merge)]
        return {name: unit for view in [*merged, self.log] for name, unit in view.time_units.items()}

    def features_of(self, columns: Sequence[str]) -> list[str]:
        """Return the features that read nothing but these columns of the log and the views that are joined by them.

        A request computes these features once for all its candidates.
        """
        from ctrbox.compiled_plan.split_for_requests import features_of

        return features_of(self, columns)

    def _request_extractor(self) -> Extractor:
        """Return a program for the CPU, whatever the device of the plan is, because a few rows are no work for a GPU."""
        if self._extractor is not None or not wants_gpu(self.device):
            return self.extractor()
        self.fit()
        with self._lock:
            made = Extractor(self.graph, self.fitted, **self._options(schema=self.schema))
            self._dimensions = made.dimensions
            return made

    def _without_labels(self, full: Extractor) -> Requests:
        outputs = [o for o in full.outputs if o.role not in LABELS]
        schema = replace(full.schema, label=False, weight=False, tasks=())
        options = self._options(schema=schema, outputs=outputs, dimensions=full.dimensions)
        return Requests(Extractor(without_label_filters(self.graph), self.fitted, **options), full.loaded[1:])

    def _options(self, **others: Any) -> dict[str, Any]:
        """Return the arguments of an `Extractor` of this plan: those that all of them share, and ``others``."""
        shared = {"dimensions": self._dimensions, "chunk_rows": self.chunk_rows, "threads": self.threads}
        return shared | others

    # ---- what happened
    @property
    def stats(self) -> dict[str, dict[str, float]]:
        """Rows and seconds of each stage; the seconds are the sum over all threads."""
        stages = self.extractor().stats.stages
        return {name: {"rows": s.rows, "seconds": s.seconds} for name, s in stages.items()}

    def profile(self) -> dict[str, float]:
        """Return the seconds of each kind of operator, summed over all threads."""
        return time_of_operators.seconds_of_operators(self.extractor())

    @property
    def warnings(self) -> dict[str, int]:
        """Numbers of rows in which something was lost, by operator and column.

        Such rows have a malformed document, a cross that was cut at its limit, or a value that a cast or a JSON path could
        not convert. ``casts`` shows the first value that each cast or path lost.
        """
        return time_of_operators.lost_rows(self.extractor())

    @property
    def casts(self) -> list[CastCount]:
        """For each cast and JSON path: how many values it has read, how many it could not convert, and the first of those."""
        return self.extractor().casts.counts()

    @property
    def joins(self) -> list[JoinCount]:
        """For each join and merge: how many keys it has looked up, and how many of them have no row in its view."""
        return self.extractor().joins.counts()


def compile(
    log: View,
    features: FeatureSet,
    *,
    device: str | Device = "auto",
    threads: int | None = None,
    chunk_rows: int = CHUNK_ROWS,
) -> Plan:
    """Make a plan from a log and its features.

    ``device``   "cpu", "cuda", "cuda:3" (the GPU with this number), "cuda:32GB", a ``cb.types.Device``, or "auto": a GPU if
                 one can be used, otherwise the CPU
    ``threads``  number of threads that extract, from 1 to 1,024; default: the cores that this process may use

    Warns if a feature reads a column that the label reads.
    """
    if not isinstance(log, View):
        raise PlanError(f"compile needs a View, got {type(log).__name__}; wrap it: cb.View(data, key=…)")
    if not isinstance(features, FeatureSet):
        raise PlanError(
            f"compile needs a FeatureSet, got {type(features).__name__}: cb.FeatureSet(label=…, sparse={{…}})"
        )
    if threads is not None:
        checked_threads(threads, MOST_EXTRACTING)
    plan = Plan(log, features, device=device, threads=threads, chunk_rows=chunk_rows)
    plan.graph.check_units()
    plan.graph.check_names()
    if leak := label_leak(plan.graph):
        warnings.warn(leak, stacklevel=2)  # where compile is called
    return plan
