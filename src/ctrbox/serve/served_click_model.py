"""Serves the published versions of a run.

One reference leads to the tables, vectors and sub-models of a version, so that all of them are replaced together.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from torch import nn

from ctrbox.columns.batch import Schema
from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.split_for_requests import ContextPart
from ctrbox.embed.keys_looked_up import Asked
from ctrbox.embed.vectors.encoders import Encoder
from ctrbox.predict.model_with_tables import ClickModel
from ctrbox.predict.published_run import click_model_of
from ctrbox.publish.weight_file import read_weights
from ctrbox.publish.weights_of_models import CLICK_MODEL
from ctrbox.serve.encode_objects import MOST_IMAGES, MOST_PIXELS, RawEncoders
from ctrbox.serve.objects_in_requests import ObjectKeys
from ctrbox.serve.request import Request
from ctrbox.serve.served_models import OBJECTS, Scored, no_scores, reader_of, spread
from ctrbox.serve.split_model import SplitModel
from ctrbox.serve.state_of_histories import ServedPast
from ctrbox.serve.torch_model_scorer import Found, ModelScorer
from ctrbox.serve.unlearned_keys import KnownKeys
from ctrbox.serve.view_versions import SplitViews

NOTHING: dict[int, dict[int, np.ndarray]] = {}


@dataclass(frozen=True)
class LiveModel:
    """One version that was loaded and checked."""

    click_model: ClickModel
    version: int
    scorer: ModelScorer
    parts: SplitViews


@dataclass
class CachedContext:
    part: ContextPart
    found: Found
    counted: int = -1  # of what the model keeps of it, so many are in the bytes that the cache knows of


class ServedModel(SplitModel[LiveModel]):
    kind = CLICK_MODEL

    def __init__(
        self,
        plan: Plan,
        context: tuple[str, ...],
        weights: str | os.PathLike[str],
        version: int,
        *,
        cache_bytes: int,
        most_candidates: int,
        own: nn.Module | None = None,
        past: ServedPast | None = None,
        encoders: Mapping[str, Encoder | str | os.PathLike[str]] | None = None,
        most_images: int = MOST_IMAGES,
        most_pixels: int = MOST_PIXELS,
    ) -> None:
        self.own = own  # a model of the user's own class, into copies of which versions are read
        super().__init__(plan, context, cache_bytes, past)
        self.schema: Schema = plan.schema
        self.tasks = self.schema.tasks
        self.keys = ObjectKeys(plan)
        self.encoders = RawEncoders()
        self.live = self.read(weights, version)
        if encoders:
            tables = self.live.scorer.tables
            self.encoders = RawEncoders.of(encoders, tables, most=most_images, most_pixels=most_pixels)
            self.live = self.over(self.live, self._parts)
        self.known = KnownKeys(name for source in self.live.click_model.sources for name in source.fields)
        self.missing = self.embedded = 0
        self._counting = threading.Lock()
        self.reader = reader_of(plan, self.split, context, most_candidates, past)

    def read(self, weights: str | os.PathLike[str], version: int) -> LiveModel:
        model = click_model_of(read_weights(weights), self.schema, str(weights), self.own)
        parts = self._parts
        return LiveModel(model, version, ModelScorer(model, parts.split, self.keys, self.encoders), parts)

    def take(self, weights: str | os.PathLike[str], version: int, *, shared: bool = False) -> None:
        """Serve another version from the next request on. Tables are copied into memory of this process in any case."""
        live = self.read(weights, version)
        with self._changing:
            self.live = live if live.parts is self._parts else self.over(live, self._parts)
        self.known.restart()
        self.cache.clear()

    def over(self, live: LiveModel, parts: SplitViews) -> LiveModel:
        return replace(live, scorer=ModelScorer(live.click_model, parts.split, self.keys, self.encoders), parts=parts)

    def answer(self, request: Request) -> Scored:
        live = self.live
        scorer, parts = live.scorer, live.parts
        split = parts.split
        if self.past is not None:
            if not request.rows:
                return Scored(no_scores(self.tasks), live.version, parts.told)
            request = self.past.request(request, split.context_schema, split.candidate_schema, parts.views)
        own, ran = scorer.embed(request.objects) if request.objects else (NOTHING, 0)
        key = parts.cache_key(live.version) + request.key
        met = cast("CachedContext | None", self.cache.get(key))
        counted: tuple[Asked, ...] = ()
        if met is None or own or not met.found.fresh:
            part = split.context(request.context()).owned() if met is None else met.part
            met = CachedContext(part, scorer.context(part.batch, own))
            counted = met.found.counted
        batch = split.candidates(met.part.frame, request.candidates)
        scores, missing, theirs = scorer.score(met.part.batch, met.found, batch, own)
        self.known.add((*counted, *theirs))
        if not own and met.counted != len(met.found.kept) and self.live is live:
            met.counted = len(met.found.kept)
            self.cache.put(key, met, len(key) + OBJECTS + met.part.bytes + met.found.bytes)
        if missing or ran:
            with self._counting:
                self.missing += missing
                self.embedded += ran
        return Scored(spread(scores, batch, request.rows), live.version, parts.told)

    def objects(self) -> dict[str, int]:
        """Return counts of objects: without a vector, embedded on request, and of these the number that are cached.

        If the server has encoders, there are also counts of images and texts that were encoded.
        """
        tables = {id(t): t for t in self.live.scorer.tables.values()}.values()
        remembered = sum(t.remembered for t in tables)
        found = {
            "vectors": sum(map(len, tables)),
            "missing": self.missing,
            "embedded": self.embedded,
            "remembered": remembered,
        }
        encoded = self.encoders.encoded
        return found if encoded is None else {**found, "encoded": encoded}
