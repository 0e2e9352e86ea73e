"""Defines the models that the server uses. A model converts a request to probabilities.

Weights and joined views are replaced while requests are in progress. `live` is one reference, which is read once per request. A
request therefore uses one version of the weights and of the views from its beginning to its end. The plan's graph and the readers
are the same for all versions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ctrbox import _native
from ctrbox._native import ContextCache
from ctrbox.arguments.names import nearest
from ctrbox.columns.batch import Batch, Schema
from ctrbox.columns.key_kinds import mismatch
from ctrbox.columns.label_task import Task
from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.refreshed_views import JoinedViews
from ctrbox.compiled_plan.split_for_requests import ContextPart, Split
from ctrbox.engines.missed_keys import JoinCount, counted_in
from ctrbox.engines.run_on_request import merged_as_streams
from ctrbox.errors import DataError, PlanError
from ctrbox.ffm.engine import DeepFFM, scored
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.publish.weights_of_models import CLICK_MODEL, DEEP_FFM
from ctrbox.serve.model_folder import RUN, ModelFolder
from ctrbox.serve.native_scoring import Plain
from ctrbox.serve.request import Request, RequestReader
from ctrbox.serve.request_plan import native_scorer
from ctrbox.serve.split_model import SplitModel
from ctrbox.serve.state_of_histories import ServedPast, past_of
from ctrbox.serve.unlearned_keys import KnownKeys
from ctrbox.serve.view_versions import SplitViews, joins_together, told_of

if TYPE_CHECKING:
    from ctrbox.embed.vectors.encoders import Encoder
    from ctrbox.predict.run_predictor import RunPredictor
    from ctrbox.serve.own_copy_of_weights import OwnCopy
    from ctrbox.serve.prerank import Prerank
    from ctrbox.serve.served_click_model import ServedModel

Scores = npt.NDArray[Any]  # float32 (rows,) of one label, float64 (rows, labels) of several

OBJECTS = 1 << 10  # bytes of the small objects that a cached context is made of, beside its parts


class Scored(NamedTuple):
    """Scores as `Served.score` returns them, with the versions of the model and of the views that made them."""

    scores: Scores
    version: int
    views: bytes  # versions of the joined views, as the response header says them; empty where the plan joins none


class Served(Protocol):
    """The interface of a model for the routes. ``score`` may be called from many threads."""

    kind: str
    reader: RequestReader
    cache: ContextCache
    known: KnownKeys  # counts of keys by field; without fields where the model knows no keys
    tasks: tuple[Task, ...]  # several labels, in the order of the scores; () for one label
    past: ServedPast | None  # the state of histories that the server keeps

    @property
    def version(self) -> int: ...
    @property
    def views(self) -> JoinedViews:
        """The joined views that requests read now."""
        ...

    def answer(self, request: Request) -> Scored:
        """Return a score for each candidate, NaN if a filter of the plan drops it, and the versions of model and views.

        For one label, they are click probabilities (rows,) in float32. For several labels, they are predictions (rows, labels) in
        float64.
        """
        ...

    def plain(self) -> Plain | None:
        """Return what scores plain requests natively now; None if Python scores every request."""
        ...

    def score(self, request: Request) -> tuple[Scores, int]:
        """Return the scores of `answer`, and the version of the model."""
        ...

    def take_views(self, views: JoinedViews) -> None:
        """Read other joined views from the next request on."""
        ...

    def objects(self) -> dict[str, int]:
        """Return counts of objects whose vectors are published or computed; nothing for a model without objects."""
        ...

    def joins(self) -> list[JoinCount]:
        """Return the number of keys that requests looked up in joined views, and how many of them have no row there."""
        ...


class Updated(Protocol):
    """A model whose version can be replaced while it serves."""

    @property
    def version(self) -> int: ...
    def take(self, weights: str | os.PathLike[str], version: int, *, shared: bool = False) -> None:
        """Serve the version of a weight file from the next request on. If it is refused, the old version stays.

        ``shared``: a file of `SharedVersions`, which other processes use as well and which never changes.
        """
        ...


@dataclass(frozen=True)
class Live:
    """One version of a Deep FFM that was loaded and checked, with the joined views that it reads."""

    engine: DeepFFM
    version: int
    scorer: Scorer | None = None  # made when the version is loaded, and again with other views
    parts: SplitViews | None = None  # the same
    key: bytes = b""  # what stands before a context in the cache
    native: Any = None  # `_native.RequestScorer` of plain requests; None if the plan or the engine needs Python


@dataclass(frozen=True)
class CachedContext:
    """An entry of the cache for a context that the engine does not compute once. Other entries are `_native.RequestContext`."""

    frame: Any  # what candidates read of the context; None where they read nothing
    part: ContextPart  # the features of the context


class ServedFfm(SplitModel[Live]):
    kind = DEEP_FFM
    tasks: tuple[Task, ...] = ()

    def __init__(
        self,
        plan: Plan,
        context: tuple[str, ...],
        live: Live,
        *,
        cache_bytes: int,
        most_candidates: int,
        past: ServedPast | None = None,
    ) -> None:
        super().__init__(plan, context, cache_bytes, past)
        self.reader = reader_of(plan, self.split, context, most_candidates, past)
        self.live = self.over(live, self._parts)
        self.known = KnownKeys()

    def over(self, live: Live, parts: SplitViews) -> Live:
        """Return a version that reads these joined views. Raise a DataError if a field of the engine is not in the plan."""
        split = parts.split
        known = split.schema.key_kinds
        for name in live.engine.fields:
            if name not in known:
                raise DataError(f"the model's field {name!r} is not a feature of its plan{nearest(name, known)}")
        if told := mismatch(live.engine.key_kinds, known):
            raise DataError(
                f"the model does not fit its plan: {told}; train it on this plan, or create the model folder with its own plan"
            )
        scorer, rows = Scorer(live.engine, split), self.reader.native
        native = None
        if rows is not None and scorer.direct is not None and scorer.direct_context is not None:
            native = native_scorer(split, rows, live.engine)
        return replace(live, scorer=scorer, parts=parts, key=parts.cache_key(live.version), native=native)

    def take(self, weights: str | os.PathLike[str], version: int, *, shared: bool = False) -> None:
        """Serve another version from the next request on."""
        engine = DeepFFM._mapped(weights) if shared else DeepFFM.load(weights, learns=False)
        with self._changing:
            self.live = self.over(Live(engine, version), self._parts)
        self.cache.clear()

    def objects(self) -> dict[str, int]:
        return {}

    def answer(self, request: Request) -> Scored:
        no_objects(request)
        live = self.live
        scorer, parts = live.scorer, live.parts
        assert scorer is not None
        assert parts is not None
        split = parts.split
        if self.past is not None:
            if not request.rows:
                return Scored(no_scores(self.tasks), live.version, parts.told)
            request = self.past.request(request, split.context_schema, split.candidate_schema, parts.views)
        key = live.key + request.key
        found = cast("CachedContext | _native.RequestContext | None", self.cache.get(key))
        if found is None:
            part = split.context(request.context())
            found = scorer.context(part)
            self.cache.put(key, found, len(key) + size_of(found))
        batch = split.candidates(found.frame, request.candidates)
        scores = scorer.score(found, batch)
        return Scored(spread(scores, batch, request.rows), live.version, parts.told)

    def plain(self) -> Plain | None:
        live = self.live
        if live.native is None:
            return None
        assert live.parts is not None
        return Plain(live.native, live.key, self.cache, live.version, live.parts.told)


class Scorer:
    """A Deep FFM over the two parts of a plan. ``shares``: it computes the context of a request once.

    For this, the context fields of the engine must be those of the plan. Otherwise a request is scored as whole rows, with the
    same result.
    """

    def __init__(self, engine: DeepFFM, split: Split) -> None:
        self.engine, self.split = engine, split
        once = {*(f.name for f in split.context_features.sparse), *split.context_features.dense_names}
        mine = engine.context_fields
        self.shares = bool(mine) and {n for n in engine.fields if n in once} == set(mine)
        self.direct = self._fields_in(split.candidate_features) if self.shares else None
        self.direct_context = self._fields_in(split.context_features) if self.shares else None

    def _fields_in(self, schema: Schema) -> Any:
        """Return the field of the engine for each column of a batch; None if the engine does not read a dense column."""
        number = {name: n for n, name in enumerate(self.engine.fields)}
        keyed = [(k, f.name) for k, f in enumerate(schema.sparse) if f.name in number]
        if any(name not in number for name in schema.dense_names):
            return None
        names = [*(name for _, name in keyed), *schema.dense_names]
        salts = [_native.salt(name.encode()) for name in names]
        return _native.ModelFields(
            [k for k, _ in keyed], salts, [number[name] for name in names], list(schema.dense_names)
        )

    def context(self, part: ContextPart) -> CachedContext | _native.RequestContext:
        """Return what the cache stores for a context: what the engine computes from it or, if that is nothing, its features."""
        if not self.shares:
            return CachedContext(part.frame, part.owned())
        native = getattr(part.batch.sparse, "native", None)
        if self.direct_context is None or native is None:
            return _native.RequestContext(part.frame, self.engine.context(part.batch))
        try:
            return _native.RequestContext(part.frame, self.direct_context.context(self.engine._native, native))
        except ValueError as error:
            raise DataError(f"the context: {error}") from error

    def score(self, context: CachedContext | _native.RequestContext, candidates: Batch) -> Scores:
        if isinstance(context, CachedContext):
            return self.engine.predict(self.split.joined(context.part, candidates))
        direct, native = self.direct, getattr(candidates.sparse, "native", None)
        if direct is None or native is None:
            return self.engine.score(context.prepared, candidates)
        return scored(lambda: direct.score(self.engine._native, context.prepared, native))


def reader_of(
    plan: Plan, split: Split, context: Sequence[str], most_candidates: int, past: ServedPast | None
) -> RequestReader:
    """Return the reader of requests for a plan that is split into the context and the candidates.

    With ``past``, requests contain no history columns, because the server computes them.
    """
    fields = [*split.context_schema, *split.candidate_schema]
    names, units, merged = plan.log.source.schema.names, plan.time_units, merged_as_streams(plan.graph)
    if past is None:
        return RequestReader(pa.schema(fields), names, context, most_candidates, units, merged=merged)
    schema = pa.schema(past.fields(fields))
    return RequestReader(schema, names, past.context, most_candidates, units, frames=False, merged=merged)


def size_of(context: CachedContext | _native.RequestContext) -> int:
    """Return the bytes of memory of a cached context, without its small objects."""
    return OBJECTS + context.part.bytes if isinstance(context, CachedContext) else context.bytes


def no_objects(request: Request) -> None:
    if request.objects:
        raise DataError("this model does not compute vectors for objects; leave objects out of the request")


def no_scores(tasks: Sequence[Task]) -> Scores:
    """Return an empty array of scores, for a request without candidates."""
    return np.zeros((0, len(tasks))) if tasks else np.zeros(0, np.float32)


def as_scores(predictions: np.ndarray, tasks: Sequence[Task]) -> Scores:
    """Return predictions in float64 as scores: those of one label are rounded to float32."""
    return predictions if tasks else predictions.astype(np.float32)


def spread(scores: Scores, batch: Batch, rows: int) -> Scores:
    if batch.index is None:
        return scores
    whole = np.full((rows, *scores.shape[1:]), np.nan, scores.dtype)
    whole[batch.index] = scores
    return whole


@dataclass(frozen=True)
class LiveRun:
    """A run with the joined views that it reads."""

    run: RunPredictor
    views: JoinedViews
    told: bytes  # the versions of the views, as the response header says them


class ServedRun:
    """A run of `cb.Trainer`; its version is 1. Columns of the context are repeated for every candidate."""

    kind = RUN
    version = 1
    prerank: Prerank | None = None  # that computes users with this run, from the same joined views

    def __init__(self, run: RunPredictor, *, most_candidates: int, past: ServedPast | None = None) -> None:
        from ctrbox.predict.unlearned_keys import tell_of_keys  # brings torch, which a Deep FFM is served without

        self.tasks, self.past = run.click_model.tasks, past
        views = JoinedViews(run.plan, past.histories.expressions if past else ())
        self.live = LiveRun(run, views, told_of(views))
        self._joined: list[JoinCount] = []  # in views that were replaced
        self.cache = ContextCache(0)
        self.known = KnownKeys(run.fields)
        tell_of_keys(run.click_model, lambda _, asked: self.known.add(asked))
        plan: Plan = run.plan
        log = plan.log.source.schema
        everything = Split(plan, ()).candidate_schema
        merged = plan._request_extractor()
        beside = [
            pa.field(name, source.view.source.schema.field(name).type)
            for source, columns in zip(merged.log.sources[1:], merged.loaded[1:], strict=True)
            for name in columns
            if name not in everything.names
        ]
        schema = pa.schema([*(everything if past is None else past.fields(everything)), *beside])
        self.reader = RequestReader(
            schema, [*log.names, *(f.name for f in beside)], None, most_candidates, plan.time_units,
            merged=merged_as_streams(plan.graph),
        )  # fmt: skip

    def objects(self) -> dict[str, int]:
        return {}

    @property
    def run(self) -> RunPredictor:
        return self.live.run

    @property
    def views(self) -> JoinedViews:
        return self.live.views

    def take_views(self, views: JoinedViews) -> None:
        """Read other joined views from the next request on."""
        from ctrbox.predict.run_predictor import RunPredictor

        before = self.live.run
        run = RunPredictor(views.plan, before.click_model, before.folder, before.stored)
        run.plan.extractor()  # made now, not by the first request
        if self.prerank is not None:
            self.prerank.take_views(run)
        joined = self.joins()
        self.live, self._joined = LiveRun(run, views, told_of(views)), joined
        if self.past is not None:
            self.past.take_views(views)

    def joins(self) -> list[JoinCount]:
        now = counted_in(r.extractor for r in self.run.plan._requests or () if r is not None)
        return joins_together(self._joined, now)

    def score(self, request: Request) -> tuple[Scores, int]:
        return self.answer(request)[:2]

    def plain(self) -> None:
        """Return None: Python scores every request."""

    def answer(self, request: Request) -> Scored:
        no_objects(request)
        live = self.live
        context, candidates = request.context(), request.candidates
        if not request.rows:
            return Scored(no_scores(self.tasks), self.version, live.told)
        zeros = pa.array(np.zeros(request.rows, np.int32))
        columns = {n: context.column(n).take(zeros) for n in context.schema.names}
        columns |= {n: candidates.column(n) for n in candidates.schema.names}
        table = pa.table(columns)
        if self.past is not None:
            table = self.past.histories.added_to(table, extractors=live.views.of_histories)
        scores = as_scores(live.run.predictions_of_rows(table, warn=False), self.tasks)
        return Scored(scores, self.version, live.told)


def open_served(
    folder: ModelFolder,
    *,
    views: Mapping[str, Any] | None = None,
    servers: Mapping[str, str] | None = None,
    allow_operators: bool | Sequence[UserOperator] = False,
    allow_views: Sequence[str] = (),
    own_plan: Plan | None = None,
    own_model: Any = None,
    cache_bytes: int = 256 << 20,
    most_candidates: int = 1000,
    own: OwnCopy | None = None,
    state: str | os.PathLike[str] | None = None,
    encoders: Mapping[str, Encoder | str | os.PathLike[str]] | None = None,
    most_images: int | None = None,
    most_pixels: int | None = None,
    table_memory: int | None = None,
) -> ServedFfm | ServedModel | ServedRun:
    """Open the model of a folder for scoring. ``servers``: vector files of a run's Model Servers, by field.

    ``state``: the file of the state of histories that the server keeps (`ctrbox.serve.state_of_histories`). ``encoders``: what
    encodes the images and texts of requests, by field of a Model Server: a `cb.tables.Encoder`, or the weight file of a built-in
    encoder (`ctrbox.serve.encode_objects`). ``most_images``: largest number of images and texts in a request (default: 8).
    ``most_pixels``: largest number of pixels of an image (default: 16,000,000).

    ``views``, ``allow_operators``, ``allow_views``: as for ``cb.Plan.load``. ``own_plan`` and ``own_model``: the plan and model
    of the user's job, if the model is of a class of their own. ``own``: the server's copy of the weights; without it, the current
    version is read from the folder. ``table_memory``: bytes for all Sparse Tables of a run (default: 2 GB for each table).
    """
    if encoders and folder.kind != CLICK_MODEL:
        raise PlanError(
            f"encoders= is for published models with Model Servers, and {folder.folder} "
            + (
                "is a run folder; publish it: ctrbox publish create MODEL --model RUN"
                if folder.kind == RUN
                else "has none"
            )
        )
    if folder.kind == RUN:
        from ctrbox.predict.read_run_folder import servers_of
        from ctrbox.predict.run_predictor import RunPredictor

        data = servers_of(folder.folder, servers or {})
        run = RunPredictor.open(
            folder.folder if folder.stored is None else folder.stored,
            model=own_model,
            plan=own_plan,
            views=dict(views or {}),
            servers=data,
            ram=table_memory,
            allow_operators=allow_operators,
            allow_views=allow_views,
        )
        return ServedRun(run, most_candidates=most_candidates, past=past_of(run.plan, state))
    if table_memory is not None:
        raise PlanError(
            f"table_memory= is for the Sparse Tables of a run folder, and {folder.folder} was published with its rows in "
            "one file, which the server maps into memory; remove table_memory="
        )
    if servers:
        raise PlanError(
            f"servers= can only be used with a run folder; {folder.folder} was published with its vectors, so remove servers="
        )
    plan = folder.plan(views, allow_operators=allow_operators, allow_views=allow_views)
    published = folder.published
    version = published.current if own is None else own.version
    number = version.number if version else 0
    file = published.file() if own is None else own.file
    past = past_of(plan, state, folder.context)
    if folder.kind == CLICK_MODEL:
        from ctrbox.serve.served_click_model import ServedModel

        sizes: dict[str, Any] = {"cache_bytes": cache_bytes, "most_candidates": most_candidates, "encoders": encoders}
        sizes |= {} if most_images is None else {"most_images": most_images}
        sizes |= {} if most_pixels is None else {"most_pixels": most_pixels}
        return ServedModel(plan, folder.context, file, number, own=own_model, past=past, **sizes)
    live = Live(DeepFFM.load(file, learns=False), number)
    return ServedFfm(plan, folder.context, live, cache_bytes=cache_bytes, most_candidates=most_candidates, past=past)
